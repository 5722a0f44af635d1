/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An adapter that is added comes in this order. Whoever deletes a key must name the adapter once it
 * may have the key, and what it missed while it was away must be deleted before that:
 *
 *	deletion log	says which deletions it missed
 *	attached	to the StoreController, which stores nothing there yet
 *	published	can be named; in the same step these keys are hidden and their deletions
 *			submitted
 *	used		gets new stores, is asked and listed
 *
 * One that is removed goes in this order, each step waiting for the one before:
 *
 *	draining    nobody names it any more: who reads the set of active adapters does so, and
 *	            tells the controllers what it means, under ADAPTERS_LOCK, so what was said
 *	            before the change is in their queues before they are told to let go
 *	controllers let go: what was begun has ended, locks are returned; the listing ends
 *	empty       the index and the deletion log forget it, and nobody calls it (HOLD)
 *	closed
 *
 * Only then the slot, and with it the bit, may be another adapter's.
 */

#include "engine/adapter-set.h"

#include "engine/adapter-call.h"
#include "engine/deletion-log.h"
#include "engine/prefetch-controller.h"
#include "engine/store-controller.h"
#include "kvcache/registry.h"

#include <errno.h>

static KvcBreaker *
new_breaker(const KvcOptions *options)
{
	double first = kvc_options_get_double(options, "breaker_cooldown_s");
	double max = kvc_options_get_double(options, "breaker_max_s");
	return kvc_breaker_new((int64_t)(first * KVC_SEC_NS), (int64_t)(max * KVC_SEC_NS));
}

/* ERROR is about the adapter I, which is not open: what status would call it in front. */
static void
name_adapter(size_t i, const char *specification, GError **error)
{
	g_autoptr(KvcOptions) options = kvc_options_parse(specification, NULL);
	if (options)
		g_prefix_error(error, "l2.%zu (%s): ", i, kvc_options_type(options));
	else
		g_prefix_error(error, "l2.%zu: ", i);
}

static bool
open_slot(KvcStorageManager *sm, size_t i, const char *specification, GError **error)
{
	KvcAdapterSlot *slot = &sm->context.adapters[i];
	*slot = (KvcAdapterSlot){0};
	slot->adapter = kvc_l2_adapter_open(specification, &slot->options, error);
	if (!slot->adapter)
		return false;
	slot->is_shared = kvc_options_get_bool(slot->options, "shared");
	slot->breaker = new_breaker(slot->options);
	slot->adapter->breaker = slot->breaker;
	sm->context.descriptors[i] = (KvcAdapterDescriptor){
		.index = i,
		.type_name = slot->adapter->ops->type_name,
		.options = slot->options,
	};
	kvc_listing_init(sm, i);
	return true;
}

static void
close_slot(KvcStorageManager *sm, size_t i)
{
	KvcAdapterSlot *slot = &sm->context.adapters[i];
	slot->adapter->ops->close(slot->adapter);
	slot->adapter = NULL;
	kvc_options_free(g_steal_pointer(&slot->options));
	kvc_breaker_free(g_steal_pointer(&slot->breaker));
}

bool
kvc_adapter_set_open(KvcStorageManager *sm, const char *const *specifications, GError **error)
{
	size_t n = specifications ? g_strv_length((char **)specifications) : 0;
	if (n > KVC_MAX_ADAPTERS) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "%zu L2 adapters given, at most %d are supported", n, KVC_MAX_ADAPTERS);
		return false;
	}
	for (size_t i = 0; i < n; i++) {
		if (!open_slot(sm, i, specifications[i], error)) {
			name_adapter(i, specifications[i], error);
			return false;
		}
		sm->context.n_adapters = i + 1;
	}
	return true;
}

void
kvc_adapter_set_close(KvcStorageManager *sm)
{
	for (uint32_t bits = kvc_controller_context_present(&sm->context); bits; bits &= bits - 1)
		close_slot(sm, (size_t)__builtin_ctz(bits));
}

/* ---- Others -------------------------------------------------------------------------------- */

bool
kvc_adapter_set_hold(KvcStorageManager *sm, size_t i)
{
	kvc_mutex_lock(&sm->lock);
	bool is_open = kvc_controller_context_present(&sm->context) & (1u << i);
	if (is_open)
		sm->holds[i]++;
	kvc_mutex_unlock(&sm->lock);
	return is_open;
}

void
kvc_adapter_set_release(KvcStorageManager *sm, size_t i)
{
	kvc_mutex_lock(&sm->lock);
	if (--sm->holds[i] == 0)
		pthread_cond_broadcast(&sm->adapters_changed);
	kvc_mutex_unlock(&sm->lock);
}

bool
kvc_storage_manager_has_l2(KvcStorageManager *sm)
{
	return kvc_controller_context_active(&sm->context) != 0;
}

static bool
has_shared(KvcStorageManager *sm, bool must_admit)
{
	bool has_one = false;
	kvc_rwlock_lock_shared(&sm->adapters_lock);
	uint32_t bits = kvc_controller_context_active(&sm->context);
	for (; bits && !has_one; bits &= bits - 1) {
		const KvcAdapterSlot *slot = &sm->context.adapters[__builtin_ctz(bits)];
		has_one =
			slot->is_shared && (!must_admit || kvc_breaker_would_admit(slot->breaker));
	}
	kvc_rwlock_unlock(&sm->adapters_lock);
	return has_one;
}

bool
kvc_storage_manager_has_shared_l2(KvcStorageManager *sm)
{
	return has_shared(sm, true);
}

bool
kvc_storage_manager_is_shared(KvcStorageManager *sm)
{
	return has_shared(sm, false);
}

const char *
kvc_storage_manager_adapter_type(KvcStorageManager *sm, size_t i)
{
	const char *type = NULL;
	kvc_rwlock_lock_shared(&sm->adapters_lock);
	if (i < KVC_MAX_ADAPTERS && (kvc_controller_context_present(&sm->context) & (1u << i)))
		type = sm->context.descriptors[i].type_name;
	kvc_rwlock_unlock(&sm->adapters_lock);
	return type;
}

/* ---- One change at a time ------------------------------------------------------------------ */

static bool
begin_change(KvcStorageManager *sm, int64_t deadline_ns)
{
	int rc = 0;
	kvc_mutex_lock(&sm->lock);
	while (sm->is_changing && rc == 0)
		rc = kvc_cond_wait_until(&sm->adapters_changed, &sm->lock, deadline_ns);
	bool is_ours = !sm->is_changing;
	sm->is_changing = true;
	kvc_mutex_unlock(&sm->lock);
	return is_ours;
}

static void
end_change(KvcStorageManager *sm)
{
	kvc_mutex_lock(&sm->lock);
	sm->is_changing = false;
	pthread_cond_broadcast(&sm->adapters_changed);
	kvc_mutex_unlock(&sm->lock);
}

static void
set_bit(KvcStorageManager *sm, uint32_t *bits, size_t i, bool is_set)
{
	kvc_rwlock_lock(&sm->adapters_lock);
	if (is_set)
		__atomic_fetch_or(bits, 1u << i, __ATOMIC_RELEASE);
	else
		__atomic_fetch_and(bits, ~(1u << i), __ATOMIC_RELEASE);
	kvc_rwlock_unlock(&sm->adapters_lock);
}

/* Objects that are written from now on are stored, or not. */
static void
update_tracks_dirty(KvcStorageManager *sm)
{
	bool has_l2 = kvc_controller_context_active(&sm->context) != 0;
	kvc_l1_manager_set_tracks_dirty(sm->context.l1, has_l2);
}

/* ---- Adding -------------------------------------------------------------------------------- */

static int
find_free_slot(const KvcStorageManager *sm)
{
	uint32_t present = kvc_controller_context_present(&sm->context);
	for (int i = 0; i < KVC_MAX_ADAPTERS; i++)
		if (!(present & (1u << i)))
			return i;
	return -1;
}

/* Invariant 1: what is signalled on a shared fd would be taken for something else. */
static bool
has_own_event_fds(KvcStorageManager *sm, size_t i)
{
	uint32_t bits = kvc_controller_context_present(&sm->context) | (1u << i);
	g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
	guint n = 0;
	for (; bits; bits &= bits - 1) {
		KvcL2Adapter *adapter = sm->context.adapters[__builtin_ctz(bits)].adapter;
		const KvcL2AdapterOps *ops = adapter->ops;
		g_hash_table_add(seen, GINT_TO_POINTER(ops->get_store_event_fd(adapter)));
		g_hash_table_add(seen, GINT_TO_POINTER(ops->get_lookup_and_lock_event_fd(adapter)));
		g_hash_table_add(seen, GINT_TO_POINTER(ops->get_load_event_fd(adapter)));
		n += 3;
	}
	return g_hash_table_size(seen) == n;
}

typedef struct Missed {
	KvcObjectKey *key; /* owned */
	uint64_t id;
} Missed;

static void
missed_clear(void *data)
{
	kvc_object_key_unref(((Missed *)data)->key);
}

static void
note_missed(void *user, KvcObjectKey *key, size_t adapter, uint64_t id)
{
	Missed missed = {kvc_object_key_ref(key), id};
	g_array_append_val((GArray *)user, missed);
}

/* I can be named from now on; before that the deletions that it MISSED are on their way. */
static void
publish(KvcStorageManager *sm, size_t i, const GArray *missed)
{
	kvc_rwlock_lock(&sm->adapters_lock);
	for (guint j = 0; j < missed->len; j++) {
		const Missed *m = &g_array_index(missed, Missed, j);
		kvc_key_index_hide_from(sm->context.index, m->key, 1u << i, m->id);
		kvc_store_controller_submit_delete(sm->store, m->key, 1u << i, m->id);
	}
	if (i < kvc_controller_context_count(&sm->context))
		__atomic_fetch_and(&sm->context.empty, ~(1u << i), __ATOMIC_RELEASE);
	else
		__atomic_store_n(&sm->context.n_adapters, i + 1, __ATOMIC_RELEASE);
	kvc_rwlock_unlock(&sm->adapters_lock);
}

static void
activate(KvcStorageManager *sm, size_t i)
{
	g_autoptr(GArray) missed = g_array_new(FALSE, FALSE, sizeof(Missed));
	g_array_set_clear_func(missed, missed_clear);
	kvc_deletion_log_attach(sm->context.deletions, i, sm->context.adapters[i].adapter,
				note_missed, missed);
	kvc_store_controller_set_adapter(sm->store, i, true, 0);
	publish(sm, i, missed);
	kvc_store_controller_set_target(sm->store, i);
	kvc_prefetch_controller_set_adapter(sm->prefetch, i, true, 0);
	update_tracks_dirty(sm);
	kvc_listing_start(sm, i);
}

static int
add_adapter(KvcStorageManager *sm, const char *specification, GError **error)
{
	int i = find_free_slot(sm);
	if (i < 0) {
		g_set_error(error, KVC_OPTIONS_ERROR, ENOSPC,
			    "there are %d L2 adapters already, at most %d are supported",
			    KVC_MAX_ADAPTERS, KVC_MAX_ADAPTERS);
		return -1;
	}
	if (!open_slot(sm, (size_t)i, specification, error)) {
		name_adapter((size_t)i, specification, error);
		return -1;
	}
	if (!has_own_event_fds(sm, (size_t)i)) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "l2.%d uses an event fd for two purposes", i);
		close_slot(sm, (size_t)i);
		return -1;
	}
	activate(sm, (size_t)i);
	return i;
}

int
kvc_storage_manager_add_adapter(KvcStorageManager *sm, const char *specification, GError **error)
{
	begin_change(sm, 0);
	int i = add_adapter(sm, specification, error);
	end_change(sm);
	return i;
}

/* ---- Removing ------------------------------------------------------------------------------ */

/* Nobody takes one any more; false: somebody has one yet. */
static bool
wait_for_holds(KvcStorageManager *sm, size_t i, int64_t deadline_ns)
{
	int rc = 0;
	kvc_mutex_lock(&sm->lock);
	while (sm->holds[i] > 0 && rc == 0)
		rc = kvc_cond_wait_until(&sm->adapters_changed, &sm->lock, deadline_ns);
	bool is_free = sm->holds[i] == 0;
	kvc_mutex_unlock(&sm->lock);
	return is_free;
}

/* What L1 alone has is lost when it is evicted: to another adapter with it. */
static void
forget_keys(KvcStorageManager *sm, size_t i)
{
	g_autoptr(GPtrArray) left = kvc_key_index_forget(sm->context.index, 1u << i);
	if (!kvc_controller_context_active(&sm->context))
		return;
	for (guint j = 0; j < left->len; j++)
		kvc_store_controller_submit_store(sm->store, left->pdata[j]);
}

static int
remove_adapter(KvcStorageManager *sm, size_t i, int64_t deadline_ns)
{
	if (i >= KVC_MAX_ADAPTERS || !(kvc_controller_context_present(&sm->context) & (1u << i)))
		return -ENOENT;
	set_bit(sm, &sm->context.draining, i, true);
	update_tracks_dirty(sm);
	/* Both are told before one is waited for: a deletion may wait for a lock of a prefetch. */
	kvc_store_controller_set_adapter(sm->store, i, false, 1);
	int prefetch = kvc_prefetch_controller_set_adapter(sm->prefetch, i, false, deadline_ns);
	int store = kvc_store_controller_set_adapter(sm->store, i, false, deadline_ns);
	int listing = kvc_listing_stop(sm, i, deadline_ns);
	if (store < 0 || prefetch < 0 || listing < 0)
		return -ETIMEDOUT;
	set_bit(sm, &sm->context.empty, i, true);
	if (!wait_for_holds(sm, i, deadline_ns)) {
		set_bit(sm, &sm->context.empty, i, false);
		return -ETIMEDOUT;
	}
	kvc_deletion_log_detach(sm->context.deletions, i);
	forget_keys(sm, i);
	close_slot(sm, i);
	set_bit(sm, &sm->context.draining, i, false);
	return 0;
}

int
kvc_storage_manager_remove_adapter(KvcStorageManager *sm, size_t index, int64_t timeout_ns)
{
	int64_t now = kvc_now_ns();
	int64_t deadline_ns = now + CLAMP(timeout_ns, 0, INT64_MAX - now);
	if (!begin_change(sm, deadline_ns))
		return -ETIMEDOUT;
	int rc = remove_adapter(sm, index, deadline_ns);
	end_change(sm);
	return rc;
}
