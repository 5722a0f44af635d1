/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The tables of L1. The locks on their objects are in l1-lock.c, the objects' memory in
 * l1-object.c.
 */

#include "engine/l1-private.h"

#include <errno.h>

/*
 * How long a writer's last descriptor may take to go before his file is copied (at most 2.4 ms were
 * measured on an idle machine), and before it is dropped where it cannot be.
 */
#define NO_WRITER_WAIT_NS (5 * KVC_MSEC_NS)
#define NO_COPY_WAIT_NS (1 * KVC_SEC_NS)
/* Attempts of a reservation to find room: others may take what an eviction freed. */
#define MAKE_ROOM_TRIES 8

const char *
kvc_l1_strerror(KvcL1Error error)
{
	static const char *const texts[] = {
		[KVC_L1_SUCCESS] = "success",
		[KVC_L1_KEY_NOT_EXIST] = "the key is not in L1",
		[KVC_L1_KEY_NOT_READABLE] = "the key is in L1 but not readable",
		[KVC_L1_KEY_NOT_WRITABLE] = "the key is in L1 already",
		[KVC_L1_KEY_IN_WRONG_STATE] = "the object is not in a state that allows this",
		[KVC_L1_KEY_IS_LOCKED] = "the object is locked or not replicated yet",
		[KVC_L1_OUT_OF_MEMORY] = "L1 has no room",
	};
	return error < G_N_ELEMENTS(texts) ? texts[error] : "unknown error";
}

KvcL1Manager *
kvc_l1_manager_new(KvcL1Memory *memory, KvcStats *stats)
{
	KvcL1Manager *m = g_new0(KvcL1Manager, 1);
	m->memory = memory;
	m->stats = stats;
	m->read_ttl_ns = KVC_L1_READ_TTL_NS;
	m->write_ttl_ns = KVC_L1_WRITE_TTL_NS;
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		kvc_mutex_init(&m->shards[i].lock, KVC_LOCK_L1_SHARD);
		m->shards[i].objects = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	}
	return m;
}

void
kvc_l1_manager_free(KvcL1Manager *m)
{
	m->n_listeners = 0; /* some are gone already */
	kvc_l1_report_leaks(m);
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		GHashTableIter iter;
		KvcL1Object *object;
		g_hash_table_iter_init(&iter, m->shards[i].objects);
		while (g_hash_table_iter_next(&iter, NULL, (void **)&object)) {
			g_hash_table_iter_remove(&iter);
			kvc_l1_object_unref(object);
		}
		g_hash_table_unref(m->shards[i].objects);
		g_clear_pointer(&m->shards[i].pinned, g_hash_table_unref);
		kvc_mutex_deinit(&m->shards[i].lock);
	}
	g_free(m);
}

void
kvc_l1_manager_register_listener(KvcL1Manager *m, KvcL1ManagerListener *listener)
{
	g_assert(m->n_listeners < KVC_L1_MAX_LISTENERS);
	m->listeners[m->n_listeners++] = listener;
}

void
kvc_l1_manager_set_make_room(KvcL1Manager *m,
			     bool (*make_room)(void *user, uint64_t bytes, unsigned files),
			     void *user)
{
	m->make_room = make_room;
	m->make_room_user = user;
}

void
kvc_l1_manager_set_may_admit(KvcL1Manager *m,
			     bool (*may_admit)(void *user, KvcL1Object *object),
			     void *user)
{
	m->may_admit = may_admit;
	m->may_admit_user = user;
}

void
kvc_l1_manager_set_is_taken(KvcL1Manager *m,
			    bool (*is_taken)(void *user, KvcL1Object *object, bool is_resident),
			    void *user)
{
	m->is_taken = is_taken;
	m->is_taken_user = user;
}

void
kvc_l1_manager_set_lock_ttl(KvcL1Manager *m, int64_t read_ns, int64_t write_ns)
{
	m->read_ttl_ns = read_ns > 0 ? read_ns : KVC_L1_READ_TTL_NS;
	m->write_ttl_ns = write_ns > 0 ? write_ns : KVC_L1_WRITE_TTL_NS;
}

void
kvc_l1_manager_set_tracks_dirty(KvcL1Manager *m, bool tracks_dirty)
{
	__atomic_store_n(&m->tracks_dirty, tracks_dirty, __ATOMIC_RELAXED);
}

static bool
tracks_dirty(const KvcL1Manager *m)
{
	return __atomic_load_n(&m->tracks_dirty, __ATOMIC_RELAXED);
}

/* Nobody holds, pins or fills it, and L2 has it or never will. */
static bool
is_free_locked(const KvcL1Object *object)
{
	return object->state == KVC_L1_RESIDENT && object->read_locks == 0 && !object->is_dirty &&
	       !object->is_pinned;
}

void
kvc_l1_recount_free_locked(KvcL1Manager *m, KvcL1Object *object)
{
	bool is_free = is_free_locked(object);
	if (is_free == object->is_counted_free)
		return;
	object->is_counted_free = is_free;
	if (is_free)
		kvc_l1_count_add(m, free_bytes, object->charged_bytes);
	else
		kvc_l1_count_sub(m, free_bytes, object->charged_bytes);
}

/* Only of a resident object. */
static void
set_pinned_locked(KvcL1Manager *m, KvcL1Object *object, bool pinned)
{
	if (object->is_pinned == pinned)
		return;
	object->is_pinned = pinned;
	if (pinned) {
		kvc_l1_count_add(m, pinned_objects, 1);
		kvc_l1_count_add(m, pinned_bytes, object->charged_bytes);
	} else {
		kvc_l1_count_sub(m, pinned_objects, 1);
		kvc_l1_count_sub(m, pinned_bytes, object->charged_bytes);
	}
}

static bool
is_key_pinned_locked(const KvcL1Shard *shard, const KvcObjectKey *key)
{
	return shard->pinned && g_hash_table_contains(shard->pinned, key);
}

static void
note_pin_locked(KvcL1Shard *shard, KvcObjectKey *key, bool pinned)
{
	if (pinned && !shard->pinned)
		shard->pinned = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						      (GDestroyNotify)kvc_object_key_unref, NULL);
	if (pinned)
		g_hash_table_add(shard->pinned, kvc_object_key_ref(key));
	else if (shard->pinned)
		g_hash_table_remove(shard->pinned, key);
}

/* ---- Reservations -------------------------------------------------------------------------- */

/* Could evicting everything that is free make room for BYTES? If not, nothing is evicted. */
static bool
can_make_room(KvcL1Manager *m, uint64_t bytes)
{
	uint64_t capacity = kvc_l1_memory_capacity(m->memory);
	uint64_t used = kvc_l1_memory_used(m->memory);
	uint64_t free_bytes = __atomic_load_n(&m->counts.free_bytes, __ATOMIC_RELAXED);
	uint64_t pinned = used - MIN(used, free_bytes);
	return bytes <= capacity && pinned <= capacity - bytes;
}

/* Takes the bytes from the budget, evicting synchronously to make room (difference 8). */
static bool
charge_or_make_room(KvcL1Manager *m, uint64_t bytes, unsigned files)
{
	for (unsigned try = 0; try < MAKE_ROOM_TRIES; try++) {
		if (kvc_l1_memory_charge(m->memory, bytes, files))
			return true;
		if (kvc_l1_memory_sweep(m->memory))
			continue;
		if (try > 1)
			g_usleep(200); /* who looks at a victim is done soon */
		if (!m->make_room || !can_make_room(m, bytes) ||
		    !m->make_room(m->make_room_user, bytes, files))
			break;
	}
	return kvc_l1_memory_charge(m->memory, bytes, files);
}

static KvcL1Error
out_of_memory(KvcL1Manager *m, int errnum, int *errnum_out)
{
	if (errnum == ENOSPC)
		kvc_stats_add(m->stats, l1_reserve_failed_no_memory, 1);
	else
		kvc_stats_add(m->stats, l1_reserve_failed_error, 1);
	if (errnum_out)
		*errnum_out = errnum;
	return KVC_L1_OUT_OF_MEMORY;
}

/* May KEY be reserved in MODE, as things are now? */
static KvcL1Error
check_mode(KvcL1Manager *m, KvcObjectKey *key, KvcReserveMode mode)
{
	if (mode == KVC_RESERVE_ALL)
		return KVC_L1_SUCCESS;
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	bool is_resident = g_hash_table_contains(shard->objects, key);
	kvc_mutex_unlock(&shard->lock);
	if (mode == KVC_RESERVE_NEW)
		return is_resident ? KVC_L1_KEY_NOT_WRITABLE : KVC_L1_SUCCESS;
	return is_resident ? KVC_L1_SUCCESS : KVC_L1_KEY_NOT_EXIST;
}

static KvcL1Error
reserve_one(KvcL1Manager *m, KvcL1Write *write, KvcLockOwner owner)
{
	uint64_t reserved = kvc_l1_page_round(write->bytes);
	if (!charge_or_make_room(m, reserved, 1))
		return out_of_memory(m, ENOSPC, &write->errnum);
	KvcL1Object *o = NULL;
	int rc = kvc_l1_object_create(m, m->memory, write->bytes, write->is_sized, &o);
	if (rc < 0) {
		kvc_l1_memory_uncharge(m->memory, reserved, 1);
		return out_of_memory(m, -rc, &write->errnum);
	}
	o->is_temporary = write->is_temporary;
	o->key = write->key ? kvc_object_key_ref(write->key) : NULL;
	kvc_l1_begin_staging(m, o, owner);
	kvc_stats_add(m->stats, l1_writes_reserved, 1);
	if (o->key) {
		KvcL1Shard *shard = kvc_l1_shard_of(m, o->key);
		kvc_mutex_lock(&shard->lock);
		kvc_l1_notify(m, on_reserved_write, o);
		kvc_mutex_unlock(&shard->lock);
	}
	write->object = o;
	return KVC_L1_SUCCESS;
}

size_t
kvc_l1_manager_reserve_writes(
	KvcL1Manager *m, KvcL1Write *writes, size_t n, KvcReserveMode mode, KvcLockOwner owner)
{
	kvc_listener_forbid(__func__);
	size_t reserved = 0;
	for (size_t i = 0; i < n; i++) {
		KvcL1Write *write = &writes[i];
		write->object = NULL;
		write->errnum = 0;
		g_assert(write->key || mode == KVC_RESERVE_ALL);
		write->error = check_mode(m, write->key, mode);
		if (write->error == KVC_L1_SUCCESS)
			write->error = reserve_one(m, write, owner);
		reserved += write->error == KVC_L1_SUCCESS;
	}
	return reserved;
}

KvcL1Error
kvc_l1_manager_reserve_write(KvcL1Manager *m,
			     KvcObjectKey *key,
			     uint64_t bytes,
			     bool is_temporary,
			     KvcL1Object **object,
			     int *errnum)
{
	KvcL1Write write = {.key = key, .bytes = bytes, .is_temporary = is_temporary};
	if (kvc_l1_manager_reserve_writes(m, &write, 1, KVC_RESERVE_ALL, KVC_OWNER_USER) == 1)
		*object = write.object;
	else if (errnum)
		*errnum = write.errnum;
	return write.error;
}

KvcL1Error
kvc_l1_manager_extend_write(KvcL1Manager *m, KvcL1Object *object, uint64_t bytes, int *errnum)
{
	kvc_listener_forbid(__func__);
	uint64_t reserved = kvc_l1_page_round(bytes);
	uint64_t old = __atomic_load_n(&object->charged_bytes, __ATOMIC_RELAXED);
	while (reserved > old) {
		uint64_t more = reserved - old;
		if (!charge_or_make_room(m, more, 0))
			return out_of_memory(m, ENOSPC, errnum);
		/* Only what is new: small writes must not go through the whole file. */
		int rc = kvc_l1_object_allocate(object, old, reserved);
		if (rc < 0) {
			kvc_l1_memory_uncharge(m->memory, more, 0);
			return out_of_memory(m, -rc, errnum);
		}
		if (__atomic_compare_exchange_n(&object->charged_bytes, &old, reserved, false,
						__ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
			kvc_l1_count_add(m, staging_bytes, more);
			break;
		}
		/* Another writer of the file has raised it meanwhile. */
		kvc_l1_memory_uncharge(m->memory, more, 0);
	}
	return KVC_L1_SUCCESS;
}

void
kvc_l1_manager_trim_write(KvcL1Manager *m, KvcL1Object *object, uint64_t bytes)
{
	kvc_listener_forbid(__func__);
	uint64_t kept = kvc_l1_page_round(bytes);
	uint64_t old = __atomic_load_n(&object->charged_bytes, __ATOMIC_RELAXED);
	while (kept < old) {
		if (!__atomic_compare_exchange_n(&object->charged_bytes, &old, kept, false,
						 __ATOMIC_RELAXED, __ATOMIC_RELAXED))
			continue;
		kvc_l1_memory_uncharge(m->memory, old - kept, 0);
		kvc_l1_count_sub(m, staging_bytes, old - kept);
		break;
	}
}

/* ---- Commit -------------------------------------------------------------------------------- */

KvcL1Error
kvc_l1_manager_abort_write(KvcL1Manager *m, KvcL1Object *object)
{
	kvc_listener_forbid(__func__);
	if (object->state != KVC_L1_STAGING)
		return KVC_L1_KEY_IN_WRONG_STATE;
	if (!object->is_sealed)
		kvc_l1_end_staging(m, object);
	object->state = KVC_L1_DETACHED;
	kvc_stats_add(m->stats, l1_writes_aborted, 1);
	kvc_l1_object_unref(object);
	return KVC_L1_SUCCESS;
}

static void
forget_dirty_locked(KvcL1Manager *m, KvcL1Object *object)
{
	if (object->is_dirty) {
		kvc_l1_count_sub(m, dirty_objects, 1);
		kvc_l1_count_sub(m, dirty_bytes, object->charged_bytes);
		object->is_dirty = false;
	}
	if (object->is_unreplicated) {
		kvc_l1_count_sub(m, unreplicated_objects, 1);
		object->is_unreplicated = false;
	}
}

/* Takes OBJECT out of its table; the caller drops the table's reference after the lock. */
static void
detach_locked(KvcL1Manager *m, KvcL1Shard *shard, KvcL1Object *object)
{
	g_hash_table_remove(shard->objects, object->key);
	object->state = KVC_L1_DETACHED;
	set_pinned_locked(m, object, false);
	forget_dirty_locked(m, object);
	kvc_l1_recount_free_locked(m, object);
	kvc_l1_count_sub(m, objects, 1);
	if (object->is_temporary)
		kvc_l1_count_sub(m, temporary_objects, 1);
}

static void
set_dirty_locked(KvcL1Manager *m, KvcL1Object *object)
{
	object->is_dirty = true;
	kvc_l1_count_add(m, dirty_objects, 1);
	kvc_l1_count_add(m, dirty_bytes, object->charged_bytes);
}

static void
attach_locked(KvcL1Manager *m, KvcL1Shard *shard, KvcL1Object *object, bool dirty)
{
	object->state = KVC_L1_RESIDENT;
	set_pinned_locked(m, object, is_key_pinned_locked(shard, object->key));
	g_hash_table_insert(shard->objects, object->key, object);
	kvc_l1_count_add(m, objects, 1);
	if (object->is_temporary)
		kvc_l1_count_add(m, temporary_objects, 1);
	if (dirty)
		set_dirty_locked(m, object);
	kvc_l1_recount_free_locked(m, object);
}

/*
 * Somebody can still write the file: what is published is a copy that he cannot reach. Without room
 * for one: what was written, if he goes soon.
 */
static int
make_private(KvcL1Manager *m, KvcL1Object *object)
{
	uint64_t bytes = object->charged_bytes;
	int rc = -ENOSPC;
	if (charge_or_make_room(m, bytes, 1)) {
		rc = kvc_l1_object_make_private(object);
		if (rc == 0) {
			kvc_stats_add(m->stats, l1_commits_copied, 1);
			return 0;
		}
		kvc_l1_memory_uncharge(m->memory, bytes, 1);
	}
	if (kvc_l1_object_protect(object, NO_COPY_WAIT_NS) == 0)
		return 0;
	kvc_stats_add(m->stats, l1_commit_copies_failed, 1);
	return rc;
}

/*
 * Trims a staging object to its size and sees to it that its bytes stay what they are; after this
 * its fields are immutable. 0 or -errno. Without locks.
 */
static int
seal(KvcL1Manager *m, KvcL1Object *object, KvcLockOwner *owner)
{
	*owner = kvc_l1_end_staging(m, object);
	object->is_sealed = true;
	int rc = kvc_l1_object_seal(object, m->memory);
	if (rc == 0 && kvc_l1_object_protect(object, NO_WRITER_WAIT_NS) == KVC_L1_STILL_WRITABLE)
		rc = make_private(m, object);
	return rc;
}

static KvcL1Error
drop_unsealed(KvcL1Object *object, int rc)
{
	g_autofree char *name = object->key ? kvc_object_key_to_string(object->key) : NULL;
	g_warning("l1: %s could not be committed: %s", name ? name : "an object", g_strerror(-rc));
	object->state = KVC_L1_DETACHED;
	kvc_l1_object_unref(object);
	return KVC_L1_OUT_OF_MEMORY;
}

/* QUESTION(USER, OBJECT), with the shard's lock held; OTHERWISE without a question. */
static bool
ask_locked(bool (*question)(void *user, KvcL1Object *object),
	   void *user,
	   KvcL1Object *object,
	   bool otherwise)
{
	if (!question)
		return otherwise;
	kvc_listener_enter();
	bool answer = question(user, object);
	kvc_listener_leave();
	return answer;
}

static bool
is_taken_locked(KvcL1Manager *m, KvcL1Object *object, bool is_resident)
{
	if (!m->is_taken)
		return is_resident;
	kvc_listener_enter();
	bool is_taken = m->is_taken(m->is_taken_user, object, is_resident);
	kvc_listener_leave();
	return is_taken;
}

KvcL1Error
kvc_l1_manager_seal_write(KvcL1Manager *m, KvcL1Object *object)
{
	kvc_listener_forbid(__func__);
	if (object->state != KVC_L1_STAGING || object->is_sealed)
		return KVC_L1_KEY_IN_WRONG_STATE;
	KvcLockOwner owner;
	int rc = seal(m, object, &owner);
	return rc < 0 ? drop_unsealed(object, rc) : KVC_L1_SUCCESS;
}

KvcL1Error
kvc_l1_manager_finish_write(KvcL1Manager *m,
			    KvcL1Object *object,
			    KvcObjectKey *key,
			    KvcFinishMode mode)
{
	kvc_listener_forbid(__func__);
	if (object->state != KVC_L1_STAGING)
		return KVC_L1_KEY_IN_WRONG_STATE;
	g_assert(!object->key || kvc_object_key_equal(object->key, key));
	KvcLockOwner owner;
	int rc = object->is_sealed ? 0 : seal(m, object, &owner);
	if (!object->key)
		object->key = kvc_object_key_ref(key);
	if (rc < 0)
		return drop_unsealed(object, rc);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *old = g_hash_table_lookup(shard->objects, key);
	if (mode == KVC_FINISH_FIRST_WINS && is_taken_locked(m, object, old != NULL)) {
		object->state = KVC_L1_DETACHED;
		kvc_mutex_unlock(&shard->lock);
		kvc_stats_add(m->stats, l1_writes_dropped, 1);
		kvc_l1_object_unref(object);
		return KVC_L1_KEY_NOT_WRITABLE;
	}
	if (old)
		detach_locked(m, shard, old);
	attach_locked(m, shard, object, tracks_dirty(m));
	kvc_stats_add(m->stats, l1_writes_finished, 1);
	kvc_l1_notify(m, on_write_finished, object);
	kvc_mutex_unlock(&shard->lock);
	if (old)
		kvc_l1_object_unref(old);
	return KVC_L1_SUCCESS;
}

static bool
may_admit_locked(KvcL1Manager *m, KvcL1Object *object)
{
	return ask_locked(m->may_admit, m->may_admit_user, object, true);
}

KvcL1Error
kvc_l1_manager_finish_write_and_reserve_read(KvcL1Manager *m,
					     KvcL1Object *object,
					     unsigned read_locks,
					     KvcL1Object **locked)
{
	kvc_listener_forbid(__func__);
	*locked = NULL;
	if (object->state != KVC_L1_STAGING || !object->key)
		return KVC_L1_KEY_IN_WRONG_STATE;
	KvcLockOwner owner;
	int rc = seal(m, object, &owner);
	if (rc < 0)
		return drop_unsealed(object, rc);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *resident = g_hash_table_lookup(shard->objects, object->key);
	if (!resident && !may_admit_locked(m, object)) {
		object->state = KVC_L1_DETACHED;
		kvc_mutex_unlock(&shard->lock);
		kvc_l1_object_unref(object);
		return KVC_L1_KEY_NOT_WRITABLE;
	}
	if (!resident) {
		attach_locked(m, shard, object, false);
		kvc_l1_notify(m, on_prefetch_finished, object);
		resident = object;
		object = NULL;
	} else {
		object->state = KVC_L1_DETACHED;
	}
	if (read_locks > 0) {
		kvc_l1_lock_read_locked(m, resident, read_locks, owner, kvc_now_ns());
		*locked = resident;
	}
	kvc_mutex_unlock(&shard->lock);
	if (object)
		kvc_l1_object_unref(object);
	return KVC_L1_SUCCESS;
}

/* ---- Removal ------------------------------------------------------------------------------- */

/*
 * Memory returns with the last reference: what somebody still refers to (a commit on its way to the
 * StoreController) is not worth evicting yet.
 */
static bool
is_evictable_locked(const KvcL1Object *object)
{
	return is_free_locked(object) && kvc_l1_object_is_unshared(object);
}

static KvcL1Error
remove_key(KvcL1Manager *m, KvcObjectKey *key, bool force, bool is_eviction)
{
	kvc_listener_forbid(is_eviction ? "kvc_l1_manager_evict" : "kvc_l1_manager_delete");
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	bool may_go =
		object &&
		(force || (is_eviction ? is_evictable_locked(object) : is_free_locked(object)));
	if (!may_go) {
		kvc_mutex_unlock(&shard->lock);
		return object ? KVC_L1_KEY_IS_LOCKED : KVC_L1_KEY_NOT_EXIST;
	}
	detach_locked(m, shard, object);
	kvc_l1_notify(m, on_deleted_by_manager, object);
	kvc_mutex_unlock(&shard->lock);
	if (is_eviction) {
		kvc_stats_add(m->stats, l1_evicted_objects, 1);
		kvc_stats_add(m->stats, l1_evicted_bytes, object->bytes);
	}
	kvc_l1_object_unref(object);
	return KVC_L1_SUCCESS;
}

KvcL1Error
kvc_l1_manager_delete(KvcL1Manager *m, KvcObjectKey *key, bool force)
{
	return remove_key(m, key, force, false);
}

bool
kvc_l1_manager_delete_if(KvcL1Manager *m,
			 KvcObjectKey *key,
			 bool (*question)(void *user, KvcL1Object *object),
			 void *user)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	bool may_go = object && ask_locked(question, user, object, true);
	if (may_go) {
		detach_locked(m, shard, object);
		kvc_l1_notify(m, on_deleted_by_manager, object);
	}
	kvc_mutex_unlock(&shard->lock);
	if (may_go)
		kvc_l1_object_unref(object);
	return may_go;
}

KvcL1Error
kvc_l1_manager_evict(KvcL1Manager *m, KvcObjectKey *key)
{
	return remove_key(m, key, false, true);
}

/* The keys of what is resident in SHARD (transfer full). */
static GPtrArray *
list_keys(KvcL1Shard *shard)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	GHashTableIter iter;
	KvcObjectKey *key;
	kvc_mutex_lock(&shard->lock);
	g_hash_table_iter_init(&iter, shard->objects);
	while (g_hash_table_iter_next(&iter, (void **)&key, NULL))
		g_ptr_array_add(keys, kvc_object_key_ref(key));
	kvc_mutex_unlock(&shard->lock);
	return keys;
}

GPtrArray *
kvc_l1_manager_list_unreplicated(KvcL1Manager *m)
{
	kvc_listener_forbid(__func__);
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		KvcL1Shard *shard = &m->shards[i];
		GHashTableIter iter;
		KvcL1Object *object;
		kvc_mutex_lock(&shard->lock);
		g_hash_table_iter_init(&iter, shard->objects);
		while (g_hash_table_iter_next(&iter, NULL, (void **)&object))
			if (object->is_unreplicated)
				g_ptr_array_add(keys, kvc_object_key_ref(object->key));
		kvc_mutex_unlock(&shard->lock);
	}
	return keys;
}

size_t
kvc_l1_manager_clear(KvcL1Manager *m, bool force)
{
	kvc_listener_forbid(__func__);
	size_t removed = 0;
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		g_autoptr(GPtrArray) keys = list_keys(&m->shards[i]);
		for (guint j = 0; j < keys->len; j++)
			removed +=
				kvc_l1_manager_delete(m, keys->pdata[j], force) == KVC_L1_SUCCESS;
	}
	return removed;
}

/* ---- Renaming ------------------------------------------------------------------------------ */

static KvcL1Object *
move_locked(KvcL1Manager *m,
	    KvcL1Shard *from,
	    KvcL1Shard *to,
	    KvcL1Object *old,
	    KvcObjectKey *new_key,
	    bool store)
{
	bool dirty = tracks_dirty(m) && (store || old->is_dirty || old->is_unreplicated);
	KvcL1Object *object = kvc_l1_object_new_alias(old, new_key);
	detach_locked(m, from, old);
	attach_locked(m, to, object, dirty);
	return object;
}

/* A pin is of the object, so it goes along; what is replaced has lost its own. */
static void
move_pin_locked(KvcL1Shard *from, KvcL1Shard *to, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	bool is_pinned = is_key_pinned_locked(from, old_key);
	note_pin_locked(from, old_key, false);
	note_pin_locked(to, new_key, is_pinned);
}

int
kvc_l1_manager_rename(KvcL1Manager *m,
		      KvcObjectKey *old_key,
		      KvcObjectKey *new_key,
		      int (*check)(void *user, bool is_resident),
		      void *user)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *from = kvc_l1_shard_of(m, old_key), *to = kvc_l1_shard_of(m, new_key);
	kvc_mutex_lock_both(&from->lock, &to->lock);
	KvcL1Object *old = g_hash_table_lookup(from->objects, old_key);
	kvc_listener_enter();
	int rc = check(user, old != NULL);
	kvc_listener_leave();
	if (rc < 0) {
		kvc_mutex_unlock_both(&from->lock, &to->lock);
		return rc;
	}
	KvcL1Object *replaced = g_hash_table_lookup(to->objects, new_key);
	if (replaced)
		detach_locked(m, to, replaced);
	move_pin_locked(from, to, old_key, new_key);
	KvcL1Object *object = NULL;
	if (old)
		object = move_locked(m, from, to, old, new_key, rc == KVC_L1_RENAME_STORE);
	kvc_l1_notify(m, on_renamed, old_key, new_key, object);
	kvc_mutex_unlock_both(&from->lock, &to->lock);
	if (old)
		kvc_l1_object_unref(old);
	if (replaced)
		kvc_l1_object_unref(replaced);
	return 0;
}

KvcL1Object *
kvc_l1_manager_make_dirty(KvcL1Manager *m, KvcObjectKey *key)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	if (object) {
		kvc_l1_object_ref(object);
		if (!object->is_dirty) {
			forget_dirty_locked(m, object);
			set_dirty_locked(m, object);
			kvc_l1_recount_free_locked(m, object);
		}
	}
	kvc_mutex_unlock(&shard->lock);
	return object;
}

void
kvc_l1_manager_touch_keys(KvcL1Manager *m, KvcObjectKey *const *keys, size_t n)
{
	kvc_listener_forbid(__func__);
	for (size_t i = 0; i < n; i++) {
		KvcL1Shard *shard = kvc_l1_shard_of(m, keys[i]);
		kvc_mutex_lock(&shard->lock);
		KvcL1Object *object = g_hash_table_lookup(shard->objects, keys[i]);
		if (object)
			kvc_l1_notify(m, on_accessed, object);
		kvc_mutex_unlock(&shard->lock);
	}
}

bool
kvc_l1_manager_is_key_evictable(KvcL1Manager *m, const KvcObjectKey *key, bool with_unreplicated)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	/* Not kvc_mutex_lock(): called under a policy's lock, which ranks after the shards. */
	if (pthread_mutex_trylock(&shard->lock.mutex) != 0)
		return true;
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	bool evictable = object && is_evictable_locked(object) &&
			 (with_unreplicated || !object->is_unreplicated);
	pthread_mutex_unlock(&shard->lock.mutex);
	return evictable;
}

bool
kvc_l1_manager_is_key_unreplicated(KvcL1Manager *m, const KvcObjectKey *key)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	bool unreplicated = object && object->is_unreplicated;
	kvc_mutex_unlock(&shard->lock);
	return unreplicated;
}

bool
kvc_l1_manager_is_key_dirty(KvcL1Manager *m, const KvcObjectKey *key)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	bool is_dirty = object && object->is_dirty;
	kvc_mutex_unlock(&shard->lock);
	return is_dirty;
}

void
kvc_l1_manager_set_pinned(KvcL1Manager *m, KvcObjectKey *key, bool pinned)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	note_pin_locked(shard, key, pinned);
	KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	if (object) {
		set_pinned_locked(m, object, pinned);
		kvc_l1_recount_free_locked(m, object);
	}
	kvc_mutex_unlock(&shard->lock);
}

void
kvc_l1_manager_get_residency(KvcL1Manager *m, const KvcObjectKey *key, KvcResidency *residency)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, key);
	kvc_mutex_lock(&shard->lock);
	const KvcL1Object *object = g_hash_table_lookup(shard->objects, key);
	*residency = (KvcResidency){.is_pinned = is_key_pinned_locked(shard, key)};
	if (object) {
		residency->is_resident = true;
		residency->is_dirty = object->is_dirty;
		residency->is_unreplicated = object->is_unreplicated;
		residency->read_locks = object->read_locks;
	}
	kvc_mutex_unlock(&shard->lock);
}

bool
kvc_l1_manager_while_resident(KvcL1Manager *m,
			      KvcL1Object *object,
			      void (*func)(void *user),
			      void *user)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	bool is_resident = object->state == KVC_L1_RESIDENT;
	kvc_listener_enter();
	if (is_resident)
		func(user);
	kvc_listener_leave();
	kvc_mutex_unlock(&shard->lock);
	return is_resident;
}

void
kvc_l1_manager_set_clean(KvcL1Manager *m, KvcL1Object *object, bool replicated)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	if (object->state == KVC_L1_RESIDENT) {
		forget_dirty_locked(m, object);
		object->is_unreplicated = !replicated;
		if (!replicated)
			kvc_l1_count_add(m, unreplicated_objects, 1);
		kvc_l1_recount_free_locked(m, object);
		kvc_l1_notify(m, on_store_ended, object);
	}
	kvc_mutex_unlock(&shard->lock);
}
