/* SPDX-License-Identifier: Apache-2.0 */

/* Wires the engine together; the parts know nothing of each other but what is passed here. */

#include "kvcache/storage-manager.h"

#include "engine/adapter-set.h"
#include "engine/deletion-log.h"
#include "engine/eviction-controller.h"
#include "engine/prefetch-controller.h"
#include "engine/storage-manager-private.h"
#include "engine/store-controller.h"
#include "kvcache/registry.h"

#include <errno.h>

#define OVERRUN_MIN_BYTES (UINT64_C(256) << 20)

/* ---- The index follows L1 ------------------------------------------------------------------ */

static KvcStorageManager *
of_listener(KvcL1ManagerListener *l)
{
	return (KvcStorageManager *)((char *)l - offsetof(KvcStorageManager, index_listener));
}

static void
on_admitted(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcKeyIndex *index = of_listener(l)->context.index;
	KvcObjectAttributes attributes = {0};
	if (object->attributes)
		attributes = *object->attributes;
	attributes.mtime_ns = object->mtime_ns;
	/* Chunks of one hash are the same bytes wherever they are. */
	if (object->key->space == KVC_SPACE_CHUNK)
		kvc_key_index_add_with(index, object->key, KVC_TIER_L1, object->bytes, &attributes);
	else
		object->version_ns =
			kvc_key_index_replace_with(index, object->key, object->bytes, &attributes);
}

static void
on_loaded(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_key_index_add(of_listener(l)->context.index, object->key, KVC_TIER_L1, object->bytes,
			  0);
}

static void
on_deleted(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_key_index_remove(of_listener(l)->context.index, object->key, KVC_TIER_L1);
}

static void
on_renamed(KvcL1ManagerListener *l,
	   KvcObjectKey *old_key,
	   KvcObjectKey *new_key,
	   KvcL1Object *object)
{
	KvcControllerContext *context = &of_listener(l)->context;
	uint32_t adapters = kvc_controller_context_active(context);
	kvc_key_index_rename(context->index, old_key, new_key, object != NULL, adapters,
			     kvc_controller_context_renamers(context));
}

/*
 * The first complete object of a key wins also when only L2 has it, but not when that goes. A chunk
 * of the same size becomes its L1 copy (the store finds it there and skips); another size would be
 * other bytes. One that L1 has yet, and somebody else removed from L2, does not win.
 */
static bool
is_taken(void *user, KvcL1Object *object, bool is_resident)
{
	const KvcStorageManager *sm = user;
	KvcObjectInfo info;
	int rc = kvc_key_index_get(sm->context.index, object->key, &info);
	if (is_resident)
		return rc < 0 || !info.is_removed;
	if (rc < 0 || !(info.tiers & kvc_controller_context_active(&sm->context)))
		return false;
	return object->key->space != KVC_SPACE_CHUNK ||
	       (info.bytes != 0 && info.bytes != object->bytes);
}

/* ---- Construction -------------------------------------------------------------------------- */

static bool
find_policies(KvcStorageManager *sm, const KvcStorageManagerConfig *config, GError **error)
{
	sm->store_policy = kvc_find_store_policy(
		config->store_policy ? config->store_policy : "default", error);
	if (!sm->store_policy)
		return false;
	sm->prefetch_policy = kvc_find_prefetch_policy(
		config->prefetch_policy ? config->prefetch_policy : "default", error);
	if (!sm->prefetch_policy)
		return false;
	sm->eviction_policy = kvc_find_eviction_policy(
		config->eviction_policy ? config->eviction_policy : "lru", error);
	return sm->eviction_policy != NULL;
}

uint64_t
kvc_l1_overrun_default(uint64_t l1_size_bytes)
{
	return MAX(l1_size_bytes / 10, OVERRUN_MIN_BYTES);
}

static bool
build_l1(KvcStorageManager *sm, const KvcStorageManagerConfig *config, GError **error)
{
	uint64_t overrun = config->l1_overrun_bytes ? config->l1_overrun_bytes
						    : kvc_l1_overrun_default(config->l1_size_bytes);
	double watermark = config->eviction_trigger_watermark;
	double ratio = config->eviction_ratio;
	if (config->l1_size_bytes == 0) {
		g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_INVAL,
			    "l1_size_bytes is 0: the cache needs memory");
		return false;
	}
	sm->memory = kvc_l1_memory_new(config->l1_size_bytes, overrun, error);
	if (!sm->memory)
		return false;
	sm->context.l1_capacity_bytes = config->l1_size_bytes;
	sm->context.l1 = kvc_l1_manager_new(sm->memory, &sm->stats);
	kvc_l1_manager_set_tracks_dirty(sm->context.l1, sm->context.n_adapters > 0);
	kvc_l1_manager_set_lock_ttl(sm->context.l1, config->l1_read_ttl_seconds * KVC_SEC_NS,
				    config->l1_write_ttl_seconds * KVC_SEC_NS);
	sm->index_listener = (KvcL1ManagerListener){
		.on_write_finished = on_admitted,
		.on_prefetch_finished = on_loaded,
		.on_deleted_by_manager = on_deleted,
		.on_renamed = on_renamed,
	};
	kvc_l1_manager_register_listener(sm->context.l1, &sm->index_listener);
	kvc_l1_manager_set_is_taken(sm->context.l1, is_taken, sm);
	sm->eviction = kvc_eviction_controller_new(sm->context.l1, sm->memory, sm->eviction_policy,
						   watermark > 0 ? watermark : 0.8,
						   ratio > 0 ? ratio : 0.2);
	return true;
}

static bool
build(KvcStorageManager *sm, const KvcStorageManagerConfig *config, GError **error)
{
	if (!find_policies(sm, config, error) ||
	    !kvc_adapter_set_open(sm, config->l2_adapters, error) || !build_l1(sm, config, error))
		return false;
	if (config->deletion_log) {
		sm->context.deletions =
			kvc_deletion_log_open(config->deletion_log, &sm->context, error);
		if (!sm->context.deletions)
			return false;
	}
	sm->store = kvc_store_controller_new(&sm->context, sm->store_policy, error);
	if (!sm->store)
		return false;
	sm->prefetch = kvc_prefetch_controller_new(
		&sm->context, sm->prefetch_policy,
		config->prefetch_max_in_flight ? config->prefetch_max_in_flight : 8, error);
	return sm->prefetch != NULL;
}

/* Before the listings start, which would make the key known again. */
static void
replay_deletion(void *user, KvcObjectKey *key, size_t adapter, uint64_t id)
{
	KvcStorageManager *sm = user;
	kvc_key_index_hide(sm->context.index, key, 1u << adapter, id);
	kvc_store_controller_submit_delete(sm->store, key, 1u << adapter, id);
}

KvcStorageManager *
kvc_storage_manager_new(const KvcStorageManagerConfig *config, GError **error)
{
	KvcStorageManager *sm = g_new0(KvcStorageManager, 1);
	kvc_mutex_init(&sm->lock, KVC_LOCK_STORAGE_MANAGER);
	kvc_rwlock_init(&sm->adapters_lock, KVC_LOCK_ADAPTER_SET);
	kvc_cond_init(&sm->listed);
	kvc_cond_init(&sm->adapters_changed);
	sm->relister = kvc_relister_new(sm);
	sm->context.adapters = g_new0(KvcAdapterSlot, KVC_MAX_ADAPTERS);
	sm->context.descriptors = g_new0(KvcAdapterDescriptor, KVC_MAX_ADAPTERS);
	sm->context.stats = &sm->stats;
	sm->context.index = kvc_key_index_new(config->key_lost, config->scope_known, config->user);
	if (!build(sm, config, error)) {
		kvc_storage_manager_free(sm);
		return NULL;
	}
	kvc_eviction_controller_start(sm->eviction);
	kvc_deletion_log_replay(sm->context.deletions, replay_deletion, sm);
	kvc_store_controller_start(sm->store);
	kvc_prefetch_controller_start(sm->prefetch);
	for (size_t i = 0; i < sm->context.n_adapters; i++)
		kvc_listing_start(sm, i);
	return sm;
}

void
kvc_storage_manager_free(KvcStorageManager *sm)
{
	kvc_relister_free(sm->relister);
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++)
		kvc_listing_stop(sm, i, 0);
	/* First: its thread walks the listeners, and one of them is the store controller's. */
	if (sm->eviction)
		kvc_eviction_controller_stop(sm->eviction);
	if (sm->prefetch) {
		kvc_prefetch_controller_stop(sm->prefetch);
		kvc_prefetch_controller_free(sm->prefetch);
	}
	if (sm->store) {
		kvc_store_controller_stop(sm->store);
		kvc_deletion_log_free(sm->context.deletions); /* it calls the controller */
		sm->context.deletions = NULL;
		kvc_store_controller_free(sm->store);
	}
	kvc_deletion_log_free(sm->context.deletions);
	kvc_adapter_set_close(sm);
	g_free(sm->context.adapters);
	g_free(sm->context.descriptors);
	if (sm->context.l1)
		kvc_l1_manager_free(sm->context.l1);
	if (sm->eviction)
		kvc_eviction_controller_free(sm->eviction);
	if (sm->memory)
		kvc_l1_memory_free(sm->memory);
	kvc_key_index_free(sm->context.index);
	pthread_cond_destroy(&sm->listed);
	pthread_cond_destroy(&sm->adapters_changed);
	kvc_rwlock_deinit(&sm->adapters_lock);
	kvc_mutex_deinit(&sm->lock);
	g_free(sm);
}

/* ---- Writing and reading ------------------------------------------------------------------- */

static int
to_errno(KvcL1Error error, int errnum)
{
	switch (error) {
	case KVC_L1_SUCCESS:
		return 0;
	case KVC_L1_KEY_NOT_EXIST:
		return -ENOENT;
	case KVC_L1_KEY_NOT_WRITABLE:
		return -EEXIST;
	case KVC_L1_OUT_OF_MEMORY:
		return errnum ? -errnum : -ENOSPC;
	case KVC_L1_KEY_IS_LOCKED:
	case KVC_L1_KEY_NOT_READABLE:
		return -EBUSY;
	default:
		return -EIO;
	}
}

int
kvc_storage_manager_reserve_write(KvcStorageManager *sm,
				  KvcObjectKey *key,
				  uint64_t bytes,
				  KvcL1Object **object)
{
	int errnum = 0;
	KvcL1Error error =
		kvc_l1_manager_reserve_write(sm->context.l1, key, bytes, false, object, &errnum);
	return to_errno(error, errnum);
}

size_t
kvc_storage_manager_reserve_writes(KvcStorageManager *sm,
				   KvcWrite *writes,
				   size_t n,
				   KvcReserveMode mode)
{
	size_t reserved = 0;
	for (size_t i = 0; i < n; i++) {
		KvcL1Write write = {.key = writes[i].key, .bytes = writes[i].bytes};
		reserved += kvc_l1_manager_reserve_writes(sm->context.l1, &write, 1, mode,
							  KVC_OWNER_USER);
		writes[i].object = write.object;
		writes[i].error = to_errno(write.error, write.errnum);
	}
	return reserved;
}

int
kvc_storage_manager_extend_write(KvcStorageManager *sm, KvcL1Object *object, uint64_t bytes)
{
	int errnum = 0;
	return to_errno(kvc_l1_manager_extend_write(sm->context.l1, object, bytes, &errnum),
			errnum);
}

void
kvc_storage_manager_trim_write(KvcStorageManager *sm, KvcL1Object *object, uint64_t bytes)
{
	kvc_l1_manager_trim_write(sm->context.l1, object, bytes);
}

int
kvc_storage_manager_finish_write(KvcStorageManager *sm,
				 KvcL1Object *object,
				 KvcObjectKey *key,
				 KvcFinishMode mode)
{
	KvcObjectKey *reserved = object->key;
	if (!key)
		key = reserved;
	if (!key || (reserved && !kvc_object_key_equal(reserved, key))) {
		kvc_l1_manager_abort_write(sm->context.l1, object);
		return -EINVAL;
	}
	KvcL1Error error = kvc_l1_manager_finish_write(sm->context.l1, object, key, mode);
	if (error == KVC_L1_KEY_NOT_WRITABLE)
		return KVC_FINISHED_DROPPED;
	return to_errno(error, 0);
}

int
kvc_storage_manager_seal_write(KvcStorageManager *sm, KvcL1Object *object)
{
	return to_errno(kvc_l1_manager_seal_write(sm->context.l1, object), 0);
}

void
kvc_storage_manager_abort_write(KvcStorageManager *sm, KvcL1Object *object)
{
	kvc_l1_manager_abort_write(sm->context.l1, object);
}

int
kvc_storage_manager_reserve_read(KvcStorageManager *sm, KvcObjectKey *key, KvcL1Object **object)
{
	if (kvc_l1_manager_reserve_read(sm->context.l1, &key, 1, 1, object, NULL) == 0)
		return -ENOENT;
	kvc_stats_add(&sm->stats, hits_l1, 1);
	return 0;
}

void
kvc_storage_manager_reserve_read_again(KvcStorageManager *sm, KvcL1Object *object)
{
	kvc_l1_manager_reserve_read_again(sm->context.l1, object);
}

void
kvc_storage_manager_finish_read(KvcStorageManager *sm, KvcL1Object *object)
{
	kvc_l1_manager_finish_read(sm->context.l1, object, 1);
}

void
kvc_storage_manager_move_read_lock(KvcStorageManager *sm,
				   KvcL1Object *object,
				   KvcLockOwner from,
				   KvcLockOwner to)
{
	kvc_l1_manager_move_read_locks(sm->context.l1, object, 1, from, to);
}

void
kvc_storage_manager_finish_read_for(KvcStorageManager *sm, KvcL1Object *object, KvcLockOwner owner)
{
	kvc_l1_manager_finish_read_for(sm->context.l1, object, 1, owner);
}

KvcPrefetchHandle *
kvc_storage_manager_submit_prefetch_task(KvcStorageManager *sm, const KvcPrefetchParams *params)
{
	return kvc_prefetch_controller_submit(sm->prefetch, params);
}

ssize_t
kvc_storage_manager_query_prefetch_status(KvcStorageManager *sm, KvcPrefetchHandle *handle)
{
	return kvc_prefetch_controller_query(sm->prefetch, handle);
}

void
kvc_storage_manager_dump_prefetches(KvcStorageManager *sm, KvcDescribeFunc func, void *user)
{
	kvc_prefetch_controller_dump(sm->prefetch, func, user);
}

/* ---- Keys ---------------------------------------------------------------------------------- */

int
kvc_storage_manager_stat(KvcStorageManager *sm, KvcObjectKey *key, KvcObjectInfo *info)
{
	return kvc_key_index_get(sm->context.index, key, info);
}

size_t
kvc_storage_manager_list(KvcStorageManager *sm,
			 KvcKeyScope *scope,
			 unsigned spaces,
			 uint64_t after,
			 KvcListEntry *entries,
			 size_t max)
{
	return kvc_key_index_list(sm->context.index, scope, spaces, after, entries, max);
}

GPtrArray *
kvc_storage_manager_list_scopes(KvcStorageManager *sm)
{
	return kvc_key_index_list_scopes(sm->context.index);
}

/* Returns its id. */
static uint64_t
add_deletion(KvcStorageManager *sm, KvcObjectKey *key, uint32_t adapters)
{
	if (sm->context.deletions)
		return kvc_deletion_log_add(sm->context.deletions, key, adapters);
	return __atomic_add_fetch(&sm->last_delete_id, 1, __ATOMIC_RELAXED);
}

/*
 * Every adapter: a store may be on its way to one that the index does not name yet. One that is
 * about to go is asked nothing more; the log keeps the deletion for its return.
 */
static int
delete_in_set(KvcStorageManager *sm, KvcObjectKey *key)
{
	uint32_t adapters = kvc_controller_context_active(&sm->context);
	uint32_t present = kvc_controller_context_present(&sm->context);
	if (kvc_key_index_get(sm->context.index, key, NULL) < 0)
		return -ENOENT;
	/* First: what confirms an older deletion must not unhide the key after we hid it. */
	uint64_t id = add_deletion(sm, key, present);
	kvc_key_index_hide(sm->context.index, key, present, id);
	kvc_l1_manager_delete(sm->context.l1, key, true);
	kvc_l1_manager_set_pinned(sm->context.l1, key, false);
	if (adapters)
		kvc_store_controller_submit_delete(sm->store, key, adapters, id);
	return 0;
}

int
kvc_storage_manager_delete(KvcStorageManager *sm, KvcObjectKey *key)
{
	kvc_rwlock_lock_shared(&sm->adapters_lock);
	int rc = delete_in_set(sm, key);
	kvc_rwlock_unlock(&sm->adapters_lock);
	return rc;
}

typedef struct RenameCheck {
	KvcStorageManager *sm;
	KvcObjectKey *old_key, *new_key;
	unsigned flags;
} RenameCheck;

/* Where an adapter cannot rename, the object must be there to be stored under its new name. */
static int
check_rename(void *user, bool is_resident)
{
	const RenameCheck *check = user;
	const KvcControllerContext *context = &check->sm->context;
	KvcObjectInfo old = {0}, new = {0};
	if (kvc_key_index_get(context->index, check->old_key, &old) < 0)
		return -ENOENT;
	int rc = kvc_key_index_get(context->index, check->new_key, &new);
	if (rc == 0 && (check->flags & KVC_RENAME_NOREPLACE))
		return -EEXIST;
	uint32_t adapters = kvc_controller_context_present(context);
	uint32_t unable = adapters & ~kvc_controller_context_renamers(context);
	if (!((old.tiers | new.tiers) & unable))
		return 0;
	return is_resident ? KVC_L1_RENAME_STORE : -EXDEV;
}

int
kvc_storage_manager_rename(KvcStorageManager *sm,
			   KvcObjectKey *old_key,
			   KvcObjectKey *new_key,
			   unsigned flags)
{
	RenameCheck check = {sm, old_key, new_key, flags};
	if (kvc_object_key_equal(old_key, new_key)) {
		int rc = kvc_key_index_get(sm->context.index, old_key, NULL);
		return rc == 0 && (flags & KVC_RENAME_NOREPLACE) ? -EEXIST : rc;
	}
	kvc_rwlock_lock_shared(&sm->adapters_lock);
	int rc = kvc_l1_manager_rename(sm->context.l1, old_key, new_key, check_rename, &check);
	kvc_rwlock_unlock(&sm->adapters_lock);
	if (rc == 0)
		kvc_stats_add(&sm->stats, renames, 1);
	return rc;
}

void
kvc_storage_manager_await_rename(KvcStorageManager *sm,
				 KvcObjectKey *key,
				 void (*done)(void *user, int error),
				 void *user)
{
	KvcObjectInfo info;
	int rc = kvc_key_index_get(sm->context.index, key, &info);
	if (rc < 0 || (info.tiers & ~info.renaming))
		done(user, 0);
	else
		kvc_store_controller_await_rename(sm->store, key, done, user);
}

void
kvc_storage_manager_settle_deletions(KvcStorageManager *sm)
{
	kvc_store_controller_settle(sm->store);
	kvc_deletion_log_settle(sm->context.deletions);
}

int
kvc_storage_manager_evict(KvcStorageManager *sm, KvcObjectKey *key)
{
	KvcObjectInfo info;
	int rc = kvc_key_index_get(sm->context.index, key, &info);
	if (rc < 0)
		return rc;
	if (!(info.tiers & KVC_TIER_L1))
		return -ENOENT;
	if (!(info.tiers & kvc_controller_context_active(&sm->context)) && !info.is_removed)
		return -EBUSY;
	return to_errno(kvc_l1_manager_evict(sm->context.l1, key), 0);
}

size_t
kvc_storage_manager_clear_l1(KvcStorageManager *sm, bool force)
{
	return kvc_l1_manager_clear(sm->context.l1, force);
}

typedef struct Flush {
	KvcStorageManager *sm;
	KvcObjectKey *key; /* owned */
	void (*done)(void *user, int error);
	void *user;
} Flush;

static void
flush_done(void *user, int error)
{
	Flush *flush = user;
	if (error == 0 && kvc_l1_manager_is_key_unreplicated(flush->sm->context.l1, flush->key))
		error = -EIO;
	flush->done(flush->user, error);
	kvc_object_key_unref(flush->key);
	g_free(flush);
}

void
kvc_storage_manager_flush(KvcStorageManager *sm,
			  KvcObjectKey *key,
			  void (*done)(void *user, int error),
			  void *user)
{
	if (kvc_key_index_get(sm->context.index, key, NULL) < 0) {
		done(user, -ENOENT);
		return;
	}
	Flush *flush = g_new(Flush, 1);
	*flush = (Flush){sm, kvc_object_key_ref(key), done, user};
	kvc_store_controller_flush(sm->store, key, flush_done, flush);
}

void
kvc_storage_manager_sync_deletions(KvcStorageManager *sm,
				   void (*done)(void *user, int error),
				   void *user)
{
	kvc_deletion_log_sync(sm->context.deletions, done, user);
}

static void
ignore_result(void *user, int error)
{
}

void
kvc_storage_manager_retry_unreplicated(KvcStorageManager *sm)
{
	g_autoptr(GPtrArray) keys = kvc_l1_manager_list_unreplicated(sm->context.l1);
	for (guint i = 0; i < keys->len; i++)
		kvc_store_controller_flush(sm->store, keys->pdata[i], ignore_result, NULL);
}

int
kvc_storage_manager_drain(KvcStorageManager *sm, int64_t timeout_ns)
{
	int rc = kvc_store_controller_drain(sm->store, timeout_ns);
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(sm->context.l1, &counts);
	if (rc == 0 && kvc_controller_context_active(&sm->context) &&
	    counts.unreplicated_objects > 0)
		rc = -EIO;
	return rc;
}
