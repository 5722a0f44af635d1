/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_PRIVATE_H
#define ENGINE_L1_PRIVATE_H

/* What l1-manager.c, l1-lock.c and l1-report.c share. */

#include "engine/l1-manager.h"
#include "engine/l1-object.h"

#define KVC_L1_MAX_LISTENERS 4

/* The locks of one owner on one object: the read locks, or the right to fill a staging one. */
struct KvcL1Hold {
	KvcL1Hold *next; /* of the object */
	KvcL1Hold *shard_next, **shard_link;
	KvcL1Object *object;
	KvcLockOwner owner;
	int64_t since_ns; /* of the newest lock: each renews them all */
	unsigned count;
	bool is_write;
	bool is_reported; /* as expired */
};

typedef struct KvcL1Shard {
	KvcMutex lock;
	GHashTable *objects; /* KvcObjectKey (the object's) -> KvcL1Object (owned reference) */
	GHashTable *pinned;  /* a set of KvcObjectKey (owned), NULL while nothing is */
	KvcL1Hold *holds;    /* on objects of these keys, and on some staging objects */
} KvcL1Shard;

struct KvcL1Manager {
	/* Immutable after start. */
	KvcL1Memory *memory;
	KvcStats *stats;
	KvcL1ManagerListener *listeners[KVC_L1_MAX_LISTENERS];
	size_t n_listeners;
	bool (*make_room)(void *user, uint64_t bytes, unsigned files);
	void *make_room_user;
	bool (*may_admit)(void *user, KvcL1Object *object);
	void *may_admit_user;
	bool (*is_taken)(void *user, KvcL1Object *object, bool is_resident);
	void *is_taken_user;
	bool tracks_dirty; /* Atomic */
	int64_t read_ttl_ns, write_ttl_ns;

	KvcL1Shard shards[KVC_L1_SHARDS];
	KvcL1Counts counts; /* Atomic */
};

/* Calls SLOT of every listener, with the lock of the object's shard held. */
#define kvc_l1_notify(m, slot, ...)                                                                \
	do {                                                                                       \
		kvc_listener_enter();                                                              \
		for (size_t l_ = 0; l_ < (m)->n_listeners; l_++)                                   \
			if ((m)->listeners[l_]->slot)                                              \
				(m)->listeners[l_]->slot((m)->listeners[l_], __VA_ARGS__);         \
		kvc_listener_leave();                                                              \
	} while (0)

#define kvc_l1_count_add(m, field, n)                                                              \
	((void)__atomic_fetch_add(&(m)->counts.field, (n), __ATOMIC_RELAXED))
#define kvc_l1_count_sub(m, field, n)                                                              \
	((void)__atomic_fetch_sub(&(m)->counts.field, (n), __ATOMIC_RELAXED))

static inline KvcL1Shard *
kvc_l1_shard_of(KvcL1Manager *m, const KvcObjectKey *key)
{
	return &m->shards[key->hash % KVC_L1_SHARDS];
}

/* ---- l1-manager.c -------------------------------------------------------------------------- */

/* After every change that decides whether OBJECT could go at once. Shard's lock held. */
void kvc_l1_recount_free_locked(KvcL1Manager *m, KvcL1Object *object);

/* ---- l1-lock.c ----------------------------------------------------------------------------- */

/* N read locks of OWNER, and a reference for each. The lock of the key's shard is held. */
void kvc_l1_lock_read_locked(
	KvcL1Manager *m, KvcL1Object *object, unsigned n, KvcLockOwner owner, int64_t now_ns);
/* OWNER fills the staging OBJECT from here on; without locks. */
void kvc_l1_begin_staging(KvcL1Manager *m, KvcL1Object *object, KvcLockOwner owner);
/* It is finished or given up: who filled it. After this its fields are the caller's alone. */
KvcLockOwner kvc_l1_end_staging(KvcL1Manager *m, KvcL1Object *object);

/* ---- l1-report.c --------------------------------------------------------------------------- */

/* At the end of M: reports every lock that is left, and drops it. */
void kvc_l1_report_leaks(KvcL1Manager *m);

#endif
