/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/eviction-controller.h"

/* Usage is looked at this often even when nobody signals. */
#define PERIOD_NS (1 * KVC_SEC_NS)
/* And for locks that are held for long. */
#define REPORT_PERIOD_NS (30 * KVC_SEC_NS)

struct KvcEvictionController {
	/* Immutable after start. */
	KvcL1ManagerListener listener;
	KvcL1Manager *l1;
	KvcL1Memory *memory;
	const KvcEvictionPolicy *policy;
	KvcEvictionState *state;
	double watermark;
	double ratio;
	pthread_t thread;
	bool is_running;
	int64_t next_report_ns; /* Owned by the thread */

	KvcMutex lock;
	pthread_cond_t wake;
	bool is_stopping; /* Protected by lock */
	int is_waiting;	  /* Atomic: the thread sleeps, a signal is worth it */
};

static bool
is_above_watermark(KvcEvictionController *c)
{
	double capacity = (double)kvc_l1_memory_capacity(c->memory);
	double files = (double)kvc_l1_memory_files_limit(c->memory);
	return (double)kvc_l1_memory_used(c->memory) >= c->watermark * capacity ||
	       (double)kvc_l1_memory_files(c->memory) >= c->watermark * files;
}

/* Inside a shard's lock: no lock of ours is taken, a lost wake-up costs one period. */
static void
wake_if_needed(KvcEvictionController *c)
{
	if (__atomic_load_n(&c->is_waiting, __ATOMIC_RELAXED) && is_above_watermark(c)) {
		__atomic_store_n(&c->is_waiting, 0, __ATOMIC_RELAXED);
		pthread_cond_signal(&c->wake);
	}
}

static void
on_write_finished(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	c->policy->created(c->state, object->key, object->charged_bytes, KVC_EVICTION_NORMAL);
	wake_if_needed(c);
}

static void
on_prefetch_finished(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	c->policy->created(c->state, object->key, object->charged_bytes,
			   object->is_temporary ? KVC_EVICTION_FIRST : KVC_EVICTION_NORMAL);
	wake_if_needed(c);
}

static void
on_store_ended(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	if (object->is_unreplicated == object->is_last_to_go)
		return;
	object->is_last_to_go = object->is_unreplicated;
	c->policy->created(c->state, object->key, object->charged_bytes,
			   object->is_unreplicated ? KVC_EVICTION_LAST : KVC_EVICTION_NORMAL);
}

static void
on_accessed(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	c->policy->touched(c->state, object->key);
}

static void
on_deleted(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	c->policy->removed(c->state, object->key);
}

static void
on_renamed(KvcL1ManagerListener *l,
	   KvcObjectKey *old_key,
	   KvcObjectKey *new_key,
	   KvcL1Object *object)
{
	KvcEvictionController *c = (KvcEvictionController *)l;
	c->policy->removed(c->state, old_key);
	if (!object)
		c->policy->removed(c->state, new_key);
	else
		c->policy->created(c->state, new_key, object->charged_bytes,
				   object->is_temporary ? KVC_EVICTION_FIRST : KVC_EVICTION_NORMAL);
}

static bool
is_evictable(void *user, const KvcObjectKey *key)
{
	return kvc_l1_manager_is_key_evictable(user, key, true);
}

static bool
is_evictable_and_stored(void *user, const KvcObjectKey *key)
{
	return kvc_l1_manager_is_key_evictable(user, key, false);
}

/* Evicts what the policy names; false: it names nothing. Some may be in use again by now. */
static bool
evict(KvcEvictionController *c,
      uint64_t bytes,
      size_t count,
      bool (*eligible)(void *user, const KvcObjectKey *key))
{
	g_autoptr(GPtrArray) victims =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	c->policy->select_victims(c->state, bytes, count, eligible, c->l1, victims);
	for (size_t i = 0; i < victims->len; i++)
		kvc_l1_manager_evict(c->l1, victims->pdata[i]);
	return victims->len > 0;
}

static uint64_t
lacking(uint64_t wanted, uint64_t used, uint64_t limit)
{
	return used + wanted > limit ? used + wanted - limit : 0;
}

/* Just what is lacking: the rest may be the only copy. */
static bool
make_room(void *user, uint64_t bytes, unsigned files)
{
	KvcEvictionController *c = user;
	uint64_t lacking_bytes =
		lacking(bytes, kvc_l1_memory_used(c->memory), kvc_l1_memory_capacity(c->memory));
	uint64_t lacking_files = lacking(files, kvc_l1_memory_files(c->memory),
					 kvc_l1_memory_files_limit(c->memory));
	if (lacking_bytes == 0 && lacking_files == 0)
		return true;
	return evict(c, lacking_bytes, lacking_files, is_evictable);
}

/* One round of eviction, if there is cause for it. */
static void
evict_down(KvcEvictionController *c)
{
	if (!is_above_watermark(c))
		return;
	double bytes = c->ratio * (double)kvc_l1_memory_used(c->memory);
	double files = c->ratio * (double)kvc_l1_memory_files(c->memory);
	bool by_files = (double)kvc_l1_memory_files(c->memory) >=
			c->watermark * (double)kvc_l1_memory_files_limit(c->memory);
	evict(c, by_files ? 0 : (uint64_t)bytes, by_files ? (size_t)files : 0,
	      is_evictable_and_stored);
}

static void
report_expired(KvcEvictionController *c)
{
	int64_t now_ns = kvc_now_ns();
	if (now_ns < c->next_report_ns)
		return;
	c->next_report_ns = now_ns + REPORT_PERIOD_NS;
	kvc_l1_manager_report_expired(c->l1, now_ns);
}

static void *
eviction_thread(void *data)
{
	KvcEvictionController *c = data;
	pthread_setname_np(pthread_self(), "kvc-evict");
	kvc_mutex_lock(&c->lock);
	while (!c->is_stopping) {
		__atomic_store_n(&c->is_waiting, 1, __ATOMIC_RELAXED);
		kvc_cond_wait_until(&c->wake, &c->lock, kvc_now_ns() + PERIOD_NS);
		__atomic_store_n(&c->is_waiting, 0, __ATOMIC_RELAXED);
		if (c->is_stopping)
			break;
		kvc_mutex_unlock(&c->lock);
		kvc_l1_memory_sweep(c->memory);
		evict_down(c);
		report_expired(c);
		kvc_mutex_lock(&c->lock);
	}
	kvc_mutex_unlock(&c->lock);
	return NULL;
}

KvcEvictionController *
kvc_eviction_controller_new(KvcL1Manager *l1,
			    KvcL1Memory *memory,
			    const KvcEvictionPolicy *policy,
			    double watermark,
			    double ratio)
{
	KvcEvictionController *c = g_new0(KvcEvictionController, 1);
	c->listener = (KvcL1ManagerListener){
		.on_write_finished = on_write_finished,
		.on_prefetch_finished = on_prefetch_finished,
		.on_reserved_read = on_accessed,
		.on_accessed = on_accessed,
		.on_deleted_by_manager = on_deleted,
		.on_renamed = on_renamed,
		.on_store_ended = on_store_ended,
	};
	c->l1 = l1;
	c->memory = memory;
	c->policy = policy;
	c->state = policy->state_new();
	c->watermark = watermark;
	c->ratio = ratio;
	kvc_mutex_init(&c->lock, KVC_LOCK_EVICTION_CONTROLLER);
	kvc_cond_init(&c->wake);
	kvc_l1_manager_register_listener(l1, &c->listener);
	kvc_l1_manager_set_make_room(l1, make_room, c);
	return c;
}

void
kvc_eviction_controller_start(KvcEvictionController *c)
{
	c->is_running = pthread_create(&c->thread, NULL, eviction_thread, c) == 0;
	g_assert(c->is_running);
}

void
kvc_eviction_controller_stop(KvcEvictionController *c)
{
	if (!c->is_running)
		return;
	kvc_mutex_lock(&c->lock);
	c->is_stopping = true;
	pthread_cond_signal(&c->wake);
	kvc_mutex_unlock(&c->lock);
	pthread_join(c->thread, NULL);
	c->is_running = false;
}

void
kvc_eviction_controller_free(KvcEvictionController *c)
{
	kvc_eviction_controller_stop(c);
	c->policy->state_free(c->state);
	pthread_cond_destroy(&c->wake);
	kvc_mutex_deinit(&c->lock);
	g_free(c);
}
