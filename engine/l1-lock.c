/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Who holds what: read locks are counts on the object, and beside them each owner has a hold with
 * its part of the count. Holds exist only while something is held; they are what leak reports and
 * dumps name. A staging object has one, of its writer, in a shard that its address decides: its key
 * may not be known yet.
 */

#include "engine/l1-private.h"

/* ---- Holds --------------------------------------------------------------------------------- */

static bool
is_same_owner(KvcLockOwner a, KvcLockOwner b)
{
	return a.id == b.id && (a.name == b.name || g_strcmp0(a.name, b.name) == 0);
}

/* The link to OWNER's hold, or to the end of the list. */
static KvcL1Hold **
find_hold(KvcL1Object *object, KvcLockOwner owner)
{
	KvcL1Hold **link = &object->holds;
	while (*link && !is_same_owner((*link)->owner, owner))
		link = &(*link)->next;
	return link;
}

static KvcL1Hold *
new_hold(KvcL1Shard *shard, KvcL1Object *object, KvcLockOwner owner)
{
	KvcL1Hold *hold = g_new0(KvcL1Hold, 1);
	hold->object = object;
	hold->owner = owner;
	hold->next = object->holds;
	object->holds = hold;
	hold->shard_next = shard->holds;
	hold->shard_link = &shard->holds;
	if (shard->holds)
		shard->holds->shard_link = &hold->shard_next;
	shard->holds = hold;
	return hold;
}

static void
free_hold(KvcL1Hold **link)
{
	KvcL1Hold *hold = *link;
	*link = hold->next;
	*hold->shard_link = hold->shard_next;
	if (hold->shard_next)
		hold->shard_next->shard_link = hold->shard_link;
	g_free(hold);
}

static void
add_to_hold(KvcL1Shard *shard, KvcL1Object *object, unsigned n, KvcLockOwner owner, int64_t now_ns)
{
	KvcL1Hold *hold = *find_hold(object, owner);
	if (!hold)
		hold = new_hold(shard, object, owner);
	hold->count += n;
	hold->since_ns = now_ns;
	hold->is_reported = false;
}

/* False, and nothing is changed, when OWNER has not so many. */
static bool
take_from_hold(KvcL1Object *object, unsigned n, KvcLockOwner owner)
{
	KvcL1Hold **link = find_hold(object, owner);
	if (n == 0)
		return true;
	if (!*link || (*link)->count < n)
		return false;
	(*link)->count -= n;
	if ((*link)->count == 0)
		free_hold(link);
	return true;
}

/* ---- Staging ------------------------------------------------------------------------------- */

static KvcL1Shard *
staging_shard_of(KvcL1Manager *m, const KvcL1Object *object)
{
	return &m->shards[((uintptr_t)object >> 6) % KVC_L1_SHARDS];
}

void
kvc_l1_begin_staging(KvcL1Manager *m, KvcL1Object *object, KvcLockOwner owner)
{
	KvcL1Shard *shard = staging_shard_of(m, object);
	kvc_l1_count_add(m, staging_objects, 1);
	kvc_l1_count_add(m, staging_bytes, object->charged_bytes);
	kvc_mutex_lock(&shard->lock);
	KvcL1Hold *hold = new_hold(shard, object, owner);
	hold->count = 1;
	hold->is_write = true;
	hold->since_ns = kvc_now_ns();
	kvc_mutex_unlock(&shard->lock);
}

KvcLockOwner
kvc_l1_end_staging(KvcL1Manager *m, KvcL1Object *object)
{
	KvcL1Shard *shard = staging_shard_of(m, object);
	kvc_mutex_lock(&shard->lock);
	KvcLockOwner owner = object->holds->owner;
	free_hold(&object->holds);
	kvc_mutex_unlock(&shard->lock);
	kvc_l1_count_sub(m, staging_objects, 1);
	kvc_l1_count_sub(m, staging_bytes, object->charged_bytes);
	return owner;
}

/* ---- Read locks ---------------------------------------------------------------------------- */

void
kvc_l1_lock_read_locked(
	KvcL1Manager *m, KvcL1Object *object, unsigned n, KvcLockOwner owner, int64_t now_ns)
{
	add_to_hold(kvc_l1_shard_of(m, object->key), object, n, owner, now_ns);
	if (object->read_locks == 0)
		kvc_l1_count_add(m, locked_bytes, object->charged_bytes);
	object->read_locks += n;
	kvc_l1_count_add(m, read_locks, n);
	kvc_l1_recount_free_locked(m, object);
	__atomic_fetch_add(&object->refs, (int)n, __ATOMIC_RELAXED);
}

size_t
kvc_l1_manager_reserve_read_for(KvcL1Manager *m,
				KvcObjectKey *const *keys,
				size_t n,
				unsigned read_locks,
				KvcLockOwner owner,
				KvcL1Object **objects,
				KvcL1Error *errors)
{
	kvc_listener_forbid(__func__);
	int64_t now_ns = kvc_now_ns();
	size_t hits = 0;
	for (size_t i = 0; i < n; i++) {
		KvcL1Shard *shard = kvc_l1_shard_of(m, keys[i]);
		kvc_mutex_lock(&shard->lock);
		KvcL1Object *object = g_hash_table_lookup(shard->objects, keys[i]);
		hits += object != NULL;
		if (object && read_locks > 0) {
			kvc_l1_lock_read_locked(m, object, read_locks, owner, now_ns);
			kvc_l1_notify(m, on_reserved_read, object);
		}
		kvc_mutex_unlock(&shard->lock);
		objects[i] = read_locks > 0 ? object : NULL;
		if (errors)
			errors[i] = object ? KVC_L1_SUCCESS : KVC_L1_KEY_NOT_EXIST;
	}
	return hits;
}

size_t
kvc_l1_manager_reserve_read(KvcL1Manager *m,
			    KvcObjectKey *const *keys,
			    size_t n,
			    unsigned read_locks,
			    KvcL1Object **objects,
			    KvcL1Error *errors)
{
	return kvc_l1_manager_reserve_read_for(m, keys, n, read_locks, KVC_OWNER_USER, objects,
					       errors);
}

void
kvc_l1_manager_reserve_read_again(KvcL1Manager *m, KvcL1Object *object)
{
	kvc_l1_manager_reserve_read_again_for(m, object, KVC_OWNER_USER);
}

void
kvc_l1_manager_reserve_read_again_for(KvcL1Manager *m, KvcL1Object *object, KvcLockOwner owner)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	kvc_l1_lock_read_locked(m, object, 1, owner, kvc_now_ns());
	kvc_l1_notify(m, on_reserved_read, object);
	kvc_mutex_unlock(&shard->lock);
}

static KvcL1Error
fail_not_held(const KvcL1Object *object, const char *what, unsigned n, KvcLockOwner owner)
{
	g_autofree char *key = kvc_object_key_to_string(object->key);
	g_critical("l1: %s: %s %" G_GUINT64_FORMAT " %s %u read locks that it does not hold", key,
		   owner.name, owner.id, what, n);
	return KVC_L1_KEY_IN_WRONG_STATE;
}

KvcL1Error
kvc_l1_manager_finish_read_for(KvcL1Manager *m,
			       KvcL1Object *object,
			       unsigned read_locks,
			       KvcLockOwner owner)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	if (!take_from_hold(object, read_locks, owner)) {
		kvc_mutex_unlock(&shard->lock);
		return fail_not_held(object, "releases", read_locks, owner);
	}
	if (read_locks > 0) {
		object->read_locks -= read_locks;
		kvc_l1_count_sub(m, read_locks, read_locks);
		if (object->read_locks == 0)
			kvc_l1_count_sub(m, locked_bytes, object->charged_bytes);
		kvc_l1_recount_free_locked(m, object);
		kvc_l1_notify(m, on_read_finished, object);
	}
	kvc_mutex_unlock(&shard->lock);
	for (unsigned i = 0; i < read_locks; i++)
		kvc_l1_object_unref(object);
	return KVC_L1_SUCCESS;
}

KvcL1Error
kvc_l1_manager_finish_read(KvcL1Manager *m, KvcL1Object *object, unsigned read_locks)
{
	return kvc_l1_manager_finish_read_for(m, object, read_locks, KVC_OWNER_USER);
}

KvcL1Error
kvc_l1_manager_move_read_locks(KvcL1Manager *m,
			       KvcL1Object *object,
			       unsigned read_locks,
			       KvcLockOwner from,
			       KvcLockOwner to)
{
	kvc_listener_forbid(__func__);
	KvcL1Shard *shard = kvc_l1_shard_of(m, object->key);
	kvc_mutex_lock(&shard->lock);
	bool is_held = take_from_hold(object, read_locks, from);
	if (is_held && read_locks > 0)
		add_to_hold(shard, object, read_locks, to, kvc_now_ns());
	kvc_mutex_unlock(&shard->lock);
	return is_held ? KVC_L1_SUCCESS : fail_not_held(object, "passes on", read_locks, from);
}
