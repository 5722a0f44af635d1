/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Directories that other users of a shared store may have changed are listed again when somebody
 * asks for it, in one thread, and only where the adapter says that something changed. A listing is
 * about a time that has passed, so nothing is believed of it: what it has and the index has not, or
 * has otherwise, or the other way round, is looked up (KVC_PREFETCH_RENEW).
 */

#include "engine/adapter-call.h"
#include "engine/adapter-set.h"
#include "engine/prefetch-controller.h"
#include "engine/storage-manager-private.h"

#include <errno.h>

#define PAGE 256
/* A store may give the same time to changes that come so soon after one another. */
#define SAME_TIME_NS (100 * KVC_MSEC_NS)
#define LOOKUP_TIMEOUT_NS (10 * KVC_SEC_NS)
/* How soon a lookup that goes on is left alone when there is no use for it any more. */
#define LOOK_NS (50 * KVC_MSEC_NS)

typedef struct Waiter {
	void (*done)(void *user);
	void *user;
} Waiter;

typedef struct Relist {
	KvcKeyScope *scope; /* owned */
	GArray *waiters;    /* of Waiter */
} Relist;

/* What an adapter said of a scope when it was last listed. */
typedef struct Seen {
	uint64_t stamp;
	int64_t listed_ns; /* CLOCK_REALTIME; 0: by the listing at the start */
} Seen;

struct KvcRelister {
	KvcStorageManager *sm;
	KvcMutex lock;
	pthread_cond_t wake;
	/* Protected by lock. */
	GQueue queue; /* of Relist: none that has begun, and may have read the directory already */
	bool is_running, is_stopping;
	pthread_t thread;
	/* Owned by the thread. */
	GHashTable *seen[KVC_MAX_ADAPTERS]; /* scope -> Seen */
};

/* ---- One scope of one adapter --------------------------------------------------------------- */

typedef struct Pass {
	KvcRelister *l;
	size_t adapter;
	KvcKeyScope *scope;
	GHashTable *found; /* set of KvcObjectKey (owned) */
	GPtrArray *doubts; /* of KvcObjectKey (owned): to be looked up */
} Pass;

/* Is everything to end, or the adapter to go? */
static bool
must_end(const Pass *pass)
{
	return __atomic_load_n(&pass->l->is_stopping, __ATOMIC_RELAXED) ||
	       !(kvc_controller_context_active(&pass->l->sm->context) & (1u << pass->adapter));
}

static void
look_up(const Pass *pass)
{
	for (guint i = 0; i < pass->doubts->len; i += PAGE) {
		if (must_end(pass))
			return;
		KvcPrefetchParams params = {
			.keys = (KvcObjectKey *const *)pass->doubts->pdata + i,
			.n_keys = MIN(PAGE, pass->doubts->len - i),
			.flags = KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_RENEW,
			.timeout_ns = LOOKUP_TIMEOUT_NS,
		};
		KvcPrefetchHandle *handle =
			kvc_prefetch_controller_submit(pass->l->sm->prefetch, &params);
		while (kvc_prefetch_handle_wait(handle, LOOK_NS) == -ETIMEDOUT && !must_end(pass))
			;
		kvc_prefetch_handle_drop(handle, NULL);
	}
}

/* ENTRY is the caller's, but for its key. */
static void
compare(const Pass *pass, const KvcL2ListEntry *entry)
{
	KvcKeyIndex *index = pass->l->sm->context.index;
	uint32_t tier = 1u << pass->adapter;
	KvcObjectAttributes attributes = kvc_l2_object_info_attributes(&entry->info);
	KvcObjectInfo info;
	bool is_known = kvc_key_index_get(index, entry->key, &info) == 0 && (info.tiers & tier);
	if (!is_known || (entry->key->space != KVC_SPACE_CHUNK &&
			  kvc_key_index_is_other(index, entry->key, tier, info.version,
						 entry->info.bytes, &attributes)))
		g_ptr_array_add(pass->doubts, kvc_object_key_ref(entry->key));
	g_hash_table_add(pass->found, entry->key);
}

/* All pages: 0 or -errno. */
static int
list(const Pass *pass)
{
	KvcAdapterSlot *slot = &pass->l->sm->context.adapters[pass->adapter];
	char *cursor = NULL;
	ssize_t n;
	do {
		KvcL2ListEntry entries[PAGE] = {0};
		n = kvc_adapter_list(slot, pass->scope, &cursor, entries, PAGE);
		for (ssize_t i = 0; i < n; i++) {
			compare(pass, &entries[i]);
			kvc_xattrs_unref(entries[i].info.xattrs);
		}
	} while (n >= 0 && cursor && !must_end(pass));
	int rc = n < 0 ? (int)n : cursor ? -ECANCELED : 0;
	g_free(cursor);
	return rc;
}

/* What the index says that the adapter has, and it has not listed. */
static void
find_missing(const Pass *pass)
{
	KvcListEntry entries[PAGE];
	uint64_t after = 0;
	size_t n;
	do {
		n = kvc_key_index_list(pass->l->sm->context.index, pass->scope, UINT32_MAX, after,
				       entries, PAGE);
		for (size_t i = 0; i < n; i++) {
			const KvcObjectInfo *info = &entries[i].info;
			uint32_t had = info->tiers & ~info->renaming & (1u << pass->adapter);
			after = info->sequence;
			if (had && !g_hash_table_contains(pass->found, entries[i].key))
				g_ptr_array_add(pass->doubts, entries[i].key);
			else
				kvc_object_key_unref(entries[i].key);
		}
	} while (n == PAGE);
}

static int
relist(KvcRelister *l, size_t adapter, KvcKeyScope *scope)
{
	GDestroyNotify unref = (GDestroyNotify)kvc_object_key_unref;
	g_autoptr(GHashTable) found =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, unref, NULL);
	g_autoptr(GPtrArray) doubts = g_ptr_array_new_with_free_func(unref);
	const Pass pass = {l, adapter, scope, found, doubts};
	int rc = list(&pass);
	if (rc == 0)
		find_missing(&pass);
	look_up(&pass);
	kvc_stats_add(&l->sm->stats, relists, 1);
	if (rc < 0 && rc != -ECANCELED)
		kvc_stats_add(&l->sm->stats, list_failed, 1);
	return rc;
}

static Seen *
seen_of(KvcRelister *l, size_t adapter, KvcKeyScope *scope)
{
	if (!l->seen[adapter])
		l->seen[adapter] = g_hash_table_new_full(
			NULL, NULL, (GDestroyNotify)kvc_key_scope_unref, g_free);
	Seen *seen = g_hash_table_lookup(l->seen[adapter], scope);
	if (!seen) {
		seen = g_new0(Seen, 1);
		g_hash_table_insert(l->seen[adapter], kvc_key_scope_ref(scope), seen);
	}
	return seen;
}

static void
relist_if_changed(KvcRelister *l, size_t adapter, KvcKeyScope *scope)
{
	KvcAdapterSlot *slot = &l->sm->context.adapters[adapter];
	const KvcL2AdapterOps *ops = slot->adapter->ops;
	uint64_t stamp;
	int64_t changed_ns, now = kvc_wall_ns();
	bool is_listing = __atomic_load_n(&slot->is_listing, __ATOMIC_ACQUIRE);
	if (!slot->is_shared || !ops->list || !ops->get_changes || is_listing ||
	    kvc_adapter_get_changes(slot, scope, &stamp, &changed_ns) < 0)
		return;
	Seen *seen = seen_of(l, adapter, scope);
	if (seen->listed_ns < l->sm->listings[adapter].begun_ns)
		*seen = (Seen){0}; /* perhaps of another adapter */
	int64_t listed_ns = seen->listed_ns ? seen->listed_ns : l->sm->listings[adapter].begun_ns;
	bool is_same = seen->listed_ns == 0 || seen->stamp == stamp;
	if (is_same && changed_ns < listed_ns - SAME_TIME_NS)
		return;
	if (relist(l, adapter, scope) == 0)
		*seen = (Seen){stamp, now};
}

/* ---- The thread ---------------------------------------------------------------------------- */

static void
relist_everywhere(KvcRelister *l, KvcKeyScope *scope)
{
	uint32_t bits = kvc_controller_context_active(&l->sm->context);
	for (; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		if (!kvc_adapter_set_hold(l->sm, a))
			continue;
		relist_if_changed(l, a, scope);
		kvc_adapter_set_release(l->sm, a);
	}
}

static void
end(Relist *relist)
{
	for (guint i = 0; i < relist->waiters->len; i++) {
		const Waiter *waiter = &g_array_index(relist->waiters, Waiter, i);
		waiter->done(waiter->user);
	}
	kvc_key_scope_unref(relist->scope);
	g_array_unref(relist->waiters);
	g_free(relist);
}

static void *
relist_thread(void *data)
{
	KvcRelister *l = data;
	pthread_setname_np(pthread_self(), "kvc-relist");
	kvc_mutex_lock(&l->lock);
	for (;;) {
		while (!l->is_stopping && l->queue.length == 0)
			kvc_cond_wait_until(&l->wake, &l->lock, 0);
		Relist *relist = g_queue_pop_head(&l->queue);
		if (!relist)
			break;
		bool is_stopping = l->is_stopping;
		kvc_mutex_unlock(&l->lock);
		if (!is_stopping)
			relist_everywhere(l, relist->scope);
		end(relist);
		kvc_mutex_lock(&l->lock);
	}
	kvc_mutex_unlock(&l->lock);
	return NULL;
}

static Relist *
find_or_queue_locked(KvcRelister *l, KvcKeyScope *scope)
{
	for (GList *link = l->queue.head; link; link = link->next)
		if (((Relist *)link->data)->scope == scope)
			return link->data;
	Relist *relist = g_new(Relist, 1);
	*relist = (Relist){kvc_key_scope_ref(scope), g_array_new(FALSE, FALSE, sizeof(Waiter))};
	g_queue_push_tail(&l->queue, relist);
	return relist;
}

void
kvc_storage_manager_relist(KvcStorageManager *sm,
			   KvcKeyScope *scope,
			   void (*done)(void *user),
			   void *user)
{
	KvcRelister *l = sm->relister;
	const Waiter waiter = {done, user};
	kvc_mutex_lock(&l->lock);
	if (!l->is_running && !l->is_stopping)
		l->is_running = pthread_create(&l->thread, NULL, relist_thread, l) == 0;
	bool is_queued = l->is_running && !l->is_stopping;
	if (is_queued) {
		g_array_append_val(find_or_queue_locked(l, scope)->waiters, waiter);
		pthread_cond_signal(&l->wake);
	}
	kvc_mutex_unlock(&l->lock);
	if (!is_queued)
		done(user);
}

KvcRelister *
kvc_relister_new(KvcStorageManager *sm)
{
	KvcRelister *l = g_new0(KvcRelister, 1);
	l->sm = sm;
	kvc_mutex_init(&l->lock, KVC_LOCK_LEAF);
	kvc_cond_init(&l->wake);
	return l;
}

void
kvc_relister_free(KvcRelister *l)
{
	kvc_mutex_lock(&l->lock);
	__atomic_store_n(&l->is_stopping, true, __ATOMIC_RELAXED);
	pthread_cond_signal(&l->wake);
	bool is_running = l->is_running;
	kvc_mutex_unlock(&l->lock);
	if (is_running)
		pthread_join(l->thread, NULL);
	for (size_t a = 0; a < KVC_MAX_ADAPTERS; a++)
		if (l->seen[a])
			g_hash_table_unref(l->seen[a]);
	pthread_cond_destroy(&l->wake);
	kvc_mutex_deinit(&l->lock);
	g_free(l);
}
