/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_MANAGER_H
#define ENGINE_L1_MANAGER_H

/*
 * What is in L1: 64 tables key -> object, the locks on the objects, and the listeners.
 *
 *	STAGING --finish_write--> RESIDENT --(delete, evict, replaced)--> DETACHED
 *	   \----abort_write----------------------------------------------> DETACHED
 *
 * A staging object is in no table: nobody but its owner can reach it, so two writers of one key
 * never share a buffer and an unfinished object is never readable. Read locks and "dirty" are
 * explicit counts on the object; time never changes them. A detached
 * object lives until its last reader gave it back, and its memory until no client maps it.
 */

#include "engine/l1-memory.h"
#include "engine/lock.h"
#include "engine/stats.h"
#include "kvcache/policy.h"
#include "kvcache/storage-manager.h"

/* The error codes of the specification; they are LMCache's L1Error. */
typedef enum {
	KVC_L1_SUCCESS = 0,
	KVC_L1_KEY_NOT_EXIST,
	KVC_L1_KEY_NOT_READABLE,
	KVC_L1_KEY_NOT_WRITABLE,
	KVC_L1_KEY_IN_WRONG_STATE,
	KVC_L1_KEY_IS_LOCKED,
	KVC_L1_OUT_OF_MEMORY,
} KvcL1Error;
const char *kvc_l1_strerror(KvcL1Error error);

typedef enum { KVC_L1_STAGING, KVC_L1_RESIDENT, KVC_L1_DETACHED } KvcL1State;

typedef struct KvcL1Hold KvcL1Hold;

struct KvcL1Object {
	/* Immutable after reserve_write. */
	struct KvcL1Manager *manager;
	int fd;
	bool is_temporary;   /* loaded by a prefetch: first to be evicted, never stored back */
	uint64_t full_epoch; /* of the memory when it was reserved */
	int refs;	     /* Atomic */

	/* Owned by the writer while STAGING; immutable after. */
	KvcObjectKey *key;
	uint64_t bytes;
	uint64_t charged_bytes;
	int64_t mtime_ns;
	int64_t version_ns;		 /* set by its commit; 0: by none of this run */
	KvcObjectAttributes *attributes; /* owned; NULL: none were given */
	bool is_sealed;			 /* STAGING: its bytes and size are final */

	uint64_t crc32c; /* Atomic: KVC_L1_CRC_KNOWN and the checksum, once computed */

	/* Protected by the lock of the key's shard; while STAGING the writer's. */
	KvcL1State state;
	unsigned read_locks;
	KvcL1Hold *holds;     /* who has them, in l1-lock.c */
	bool is_pinned;	      /* its key is: not evictable */
	bool is_dirty;	      /* not replicated yet: not evictable */
	bool is_unreplicated; /* every target failed: evicted last */
	bool is_last_to_go;   /* what the eviction policy was told of that */
	bool is_counted_free; /* in the manager's free_bytes */
};

#define KVC_L1_CRC_KNOWN (UINT64_C(1) << 32)

/*
 * Called inside a shard's lock: never blocks, never calls the L1Manager (invariant 6; debug builds
 * abort on both). Slots may be NULL. Objects are valid during the call; take references to keep
 * them.
 */
typedef struct KvcL1ManagerListener {
	void (*on_reserved_read)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	void (*on_read_finished)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	void (*on_reserved_write)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	/* A writer's commit: what the StoreController replicates. */
	void (*on_write_finished)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	/* An admission by prefetch (with or without read locks): never stored back (difference 4).
	 */
	void (*on_prefetch_finished)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	void (*on_deleted_by_manager)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	void (*on_accessed)(struct KvcL1ManagerListener *l, KvcL1Object *object);
	/* The object OLD_KEY is NEW_KEY now; OBJECT: what is resident as NEW_KEY, or NULL. What was
	 * there before is gone; on_deleted_by_manager is not called for it. */
	void (*on_renamed)(struct KvcL1ManagerListener *l,
			   KvcObjectKey *old_key,
			   KvcObjectKey *new_key,
			   KvcL1Object *object);
	/* set_clean() was called for a resident object; is_unreplicated says how it ended. */
	void (*on_store_ended)(struct KvcL1ManagerListener *l, KvcL1Object *object);
} KvcL1ManagerListener;

typedef struct KvcL1Manager KvcL1Manager;

/* MEMORY and STATS stay the caller's and outlive the manager. */
KvcL1Manager *kvc_l1_manager_new(KvcL1Memory *memory, KvcStats *stats);
/*
 * Drops what is resident. All objects must have been given back: a lock or reservation that is left
 * is logged with its key, owner and age, counted in l1_leaked_locks, and dropped. No listener is
 * called.
 */
void kvc_l1_manager_free(KvcL1Manager *m);
/* Before any other thread uses the manager. LISTENER outlives it. At most 4. */
void kvc_l1_manager_register_listener(KvcL1Manager *m, KvcL1ManagerListener *listener);
/*
 * MAKE_ROOM is asked to free BYTES and FILES at once when a reservation finds none; returns false
 * when nothing could be freed. Called without locks. Set before use.
 */
void kvc_l1_manager_set_make_room(KvcL1Manager *m,
				  bool (*make_room)(void *user, uint64_t bytes, unsigned files),
				  void *user);
/*
 * MAY_ADMIT is asked, inside the lock of the key's shard and under a listener's rules, whether a
 * load is to become resident: no commit or deletion of the key comes between its answer and that.
 * Set before use; NULL: always.
 */
void kvc_l1_manager_set_may_admit(KvcL1Manager *m,
				  bool (*may_admit)(void *user, KvcL1Object *object),
				  void *user);
/*
 * IS_TAKEN is asked likewise whether there is a first object of the key of OBJECT, which is to be
 * committed FIRST_WINS: in another tier, or, IS_RESIDENT, in L1. Set before use; NULL: if resident.
 */
void
kvc_l1_manager_set_is_taken(KvcL1Manager *m,
			    bool (*is_taken)(void *user, KvcL1Object *object, bool is_resident),
			    void *user);
/* Are finished writes dirty (is there something that will call set_clean)? Default: no. */
void kvc_l1_manager_set_tracks_dirty(KvcL1Manager *m, bool tracks_dirty);

/*
 * How long a lock may be held before kvc_l1_manager_report_expired() speaks of it: after its owner
 * took its last one on the object. Nothing else comes of it (difference 3). 0: the default. Set
 * before use.
 */
#define KVC_L1_READ_TTL_NS (300 * KVC_SEC_NS)
#define KVC_L1_WRITE_TTL_NS (600 * KVC_SEC_NS)
void kvc_l1_manager_set_lock_ttl(KvcL1Manager *m, int64_t read_ns, int64_t write_ns);

/*
 * Every lock has an owner, who alone can give it back. The functions without one are those of
 * KVC_OWNER_USER.
 *
 * Takes READ_LOCKS locks, one for each consumer, on each resident key; a key named twice is locked
 * twice. objects[i] (one reference per lock, all given back by finish_read) or NULL; errors[i]
 * SUCCESS or KEY_NOT_EXIST; ERRORS may be NULL. Returns how many keys are resident. READ_LOCKS 0
 * only looks: no object, no lock, no listener.
 */
size_t kvc_l1_manager_reserve_read_for(KvcL1Manager *m,
				       KvcObjectKey *const *keys,
				       size_t n,
				       unsigned read_locks,
				       KvcLockOwner owner,
				       KvcL1Object **objects,
				       KvcL1Error *errors);
size_t kvc_l1_manager_reserve_read(KvcL1Manager *m,
				   KvcObjectKey *const *keys,
				   size_t n,
				   unsigned read_locks,
				   KvcL1Object **objects,
				   KvcL1Error *errors);
/* One lock more on an object that is read-locked, also a detached one. */
void kvc_l1_manager_reserve_read_again(KvcL1Manager *m, KvcL1Object *object);
void
kvc_l1_manager_reserve_read_again_for(KvcL1Manager *m, KvcL1Object *object, KvcLockOwner owner);
/*
 * Releases READ_LOCKS locks and references of OBJECT, also of a detached one. KEY_IN_WRONG_STATE:
 * the owner has not so many, nothing is released.
 */
KvcL1Error kvc_l1_manager_finish_read_for(KvcL1Manager *m,
					  KvcL1Object *object,
					  unsigned read_locks,
					  KvcLockOwner owner);
KvcL1Error kvc_l1_manager_finish_read(KvcL1Manager *m, KvcL1Object *object, unsigned read_locks);
/* READ_LOCKS locks of FROM are TO's from now on. KEY_IN_WRONG_STATE: FROM has not so many. */
KvcL1Error kvc_l1_manager_move_read_locks(KvcL1Manager *m,
					  KvcL1Object *object,
					  unsigned read_locks,
					  KvcLockOwner from,
					  KvcLockOwner to);

/* One reservation of several, and its result. */
typedef struct KvcL1Write {
	KvcObjectKey *key;   /* NULL (only with KVC_RESERVE_ALL): given to finish_write */
	uint64_t bytes;	     /* rounded up to pages; 0 allowed */
	bool is_temporary;   /* first to be evicted; survives its last reader (difference 11) */
	bool is_sized;	     /* the file has BYTES at once, and keeps that size: a load's */
	KvcL1Object *object; /* result, transfer full; NULL: ERROR says why */
	KvcL1Error error;    /* result */
	int errnum;	     /* result of OUT_OF_MEMORY: a positive errno, ENOSPC: no room */
} KvcL1Write;
/*
 * Reserves for each of N keys a fresh staging object of OWNER, whatever is resident: a resident one
 * stays as it is for its readers until this one is finished. NEW: a key that is resident is
 * KEY_NOT_WRITABLE. UPDATE: one that is not is KEY_NOT_EXIST. ALL takes either. That is as things
 * are now; who is first in the end is finish_write's. Each key is for itself, in order: one without
 * room is OUT_OF_MEMORY, the others stay reserved. A key named twice gets two objects. Returns how
 * many were reserved.
 */
size_t kvc_l1_manager_reserve_writes(
	KvcL1Manager *m, KvcL1Write *writes, size_t n, KvcReserveMode mode, KvcLockOwner owner);
/*
 * One with KVC_RESERVE_ALL: a fresh staging object with BYTES reserved and allocated (rounded up to
 * pages; 0 allowed). KEY may be NULL. SUCCESS and *OBJECT (transfer full), or OUT_OF_MEMORY with
 * *ERRNUM set to a positive errno (ENOSPC: the budget is full). The file is empty (size 0).
 */
KvcL1Error kvc_l1_manager_reserve_write(KvcL1Manager *m,
					KvcObjectKey *key,
					uint64_t bytes,
					bool is_temporary,
					KvcL1Object **object,
					int *errnum);
KvcL1Error
kvc_l1_manager_extend_write(KvcL1Manager *m, KvcL1Object *object, uint64_t bytes, int *errnum);
/* Lowers it to BYTES, after the file was cut to that size. */
void kvc_l1_manager_trim_write(KvcL1Manager *m, KvcL1Object *object, uint64_t bytes);

/*
 * Commits a staging object (takes the reference): size = what the file has, memory trimmed to it,
 * its file one that nobody can write any more (a copy, where somebody still can). SUCCESS;
 * KEY_NOT_WRITABLE: FIRST_WINS and the key is resident or taken, ours was dropped;
 * KEY_IN_WRONG_STATE: not staging (then the reference stays the caller's); OUT_OF_MEMORY: its file
 * could not be trimmed, filled or copied, it was dropped. May wait a few ms for the last descriptor
 * of the writer to go: without locks. Fires on_write_finished.
 */
KvcL1Error kvc_l1_manager_finish_write(KvcL1Manager *m,
				       KvcL1Object *object,
				       KvcObjectKey *key,
				       KvcFinishMode mode);
/*
 * The end of a load: admits OBJECT (takes the reference) and takes READ_LOCKS locks in the same
 * step (0: warm). When the key is resident already, ours is dropped and the resident one locked.
 * *LOCKED is the object that carries the locks (READ_LOCKS references), NULL for 0. They are of the
 * owner who reserved OBJECT. Fires on_prefetch_finished. KEY_NOT_WRITABLE: may_admit refused, ours
 * was dropped.
 */
KvcL1Error kvc_l1_manager_finish_write_and_reserve_read(KvcL1Manager *m,
							KvcL1Object *object,
							unsigned read_locks,
							KvcL1Object **locked);
/*
 * The part of finish_write that may wait, for who must know the key as late as possible or commits
 * under a lock of his own: finish_write, or abort_write, must follow, and does not wait then.
 * SUCCESS; else as finish_write, OBJECT was dropped. Not twice.
 */
KvcL1Error kvc_l1_manager_seal_write(KvcL1Manager *m, KvcL1Object *object);
/* Drops a staging object; was never observable (difference 2). Takes the reference. */
KvcL1Error kvc_l1_manager_abort_write(KvcL1Manager *m, KvcL1Object *object);

/*
 * Removes KEY. KEY_NOT_EXIST; KEY_IS_LOCKED when read-locked or dirty, unless FORCE (readers keep
 * the detached object). Fires on_deleted_by_manager.
 */
KvcL1Error kvc_l1_manager_delete(KvcL1Manager *m, KvcObjectKey *key, bool force);
/*
 * As delete with FORCE, if QUESTION says so of the resident object, inside the lock that keeps it
 * so: the rules of a listener. Was it removed?
 */
bool kvc_l1_manager_delete_if(KvcL1Manager *m,
			      KvcObjectKey *key,
			      bool (*question)(void *user, KvcL1Object *object),
			      void *user);
/* As delete without force, but only if the resident object is evictable; counts an eviction. */
KvcL1Error kvc_l1_manager_evict(KvcL1Manager *m, KvcObjectKey *key);
/*
 * Deletes each resident key, as kvc_l1_manager_delete does: without FORCE what is read-locked,
 * dirty or pinned stays, with it everything goes (readers keep the detached objects). Staging
 * objects are their owners' and go on. Returns how many went.
 */
size_t kvc_l1_manager_clear(KvcL1Manager *m, bool force);
/*
 * Renames OLD_KEY, resident or not, to NEW_KEY (another key), whose resident object is replaced:
 * one step for whoever looks, with the listeners' on_renamed inside it. CHECK is called under both
 * tables' locks: a negative errno refuses; KVC_L1_RENAME_STORE: the resident object must be stored
 * again; 0: it is as dirty as it was (unreplicated counts as dirty). Readers of both objects keep
 * what they hold; the memory is not copied. 0 or CHECK's errno.
 */
#define KVC_L1_RENAME_STORE 1
int kvc_l1_manager_rename(KvcL1Manager *m,
			  KvcObjectKey *old_key,
			  KvcObjectKey *new_key,
			  int (*check)(void *user, bool is_resident),
			  void *user);
/* The resident object of KEY must be stored (again): a reference to it, or NULL. */
KvcL1Object *kvc_l1_manager_make_dirty(KvcL1Manager *m, KvcObjectKey *key);
/* Fires on_accessed. */
void kvc_l1_manager_touch_keys(KvcL1Manager *m, KvcObjectKey *const *keys, size_t n);
/*
 * Resident, not read-locked, not dirty (and, without WITH_UNREPLICATED, stored somewhere). A look
 * only, evict checks again: never waits for a lock (a busy table answers true), so that an eviction
 * policy may ask under its own lock.
 */
bool
kvc_l1_manager_is_key_evictable(KvcL1Manager *m, const KvcObjectKey *key, bool with_unreplicated);
/* Is KEY resident and did every store of it fail? */
bool kvc_l1_manager_is_key_unreplicated(KvcL1Manager *m, const KvcObjectKey *key);
/* Is KEY resident, and its store has not ended? */
bool kvc_l1_manager_is_key_dirty(KvcL1Manager *m, const KvcObjectKey *key);
/* The keys of all that every target failed to store (transfer full). */
GPtrArray *kvc_l1_manager_list_unreplicated(KvcL1Manager *m);
/* Pins KEY, whether it is resident or not: while pinned it is not evictable. */
void kvc_l1_manager_set_pinned(KvcL1Manager *m, KvcObjectKey *key, bool pinned);
void
kvc_l1_manager_get_residency(KvcL1Manager *m, const KvcObjectKey *key, KvcResidency *residency);
/*
 * Calls FUNC if OBJECT is resident, inside the lock that keeps it so: the rules of a listener. Was
 * it called?
 */
bool kvc_l1_manager_while_resident(KvcL1Manager *m,
				   KvcL1Object *object,
				   void (*func)(void *user),
				   void *user);
/* The store of OBJECT ended; REPLICATED: at least one target has it. */
void kvc_l1_manager_set_clean(KvcL1Manager *m, KvcL1Object *object, bool replicated);

KvcL1Object *kvc_l1_object_ref(KvcL1Object *object);
void kvc_l1_object_unref(KvcL1Object *object);
/* A load has filled it, and nobody has read it yet: see kvc_l1_object_take_unread(). */
void kvc_l1_object_mark_unread(KvcL1Object *object);
/*
 * Maps the whole file (WRITE: also for writing), rounded up to pages: *OUT is filled (data NULL for
 * an empty object). 0 or -errno. kvc_l1_object_unmap() when the adapter is done, WRITE: before the
 * object is finished.
 */
int kvc_l1_object_map(KvcL1Object *object, bool write, KvcMemoryObj *out);
void kvc_l1_object_unmap(KvcMemoryObj *mapped);
/*
 * The same of N mappings, with one call for those that lie side by side: the flush of the address
 * translations costs more than the rest of it. Sorts MAPPED.
 */
void kvc_l1_object_unmap_all(KvcMemoryObj *mapped, size_t n);

typedef struct KvcL1Counts {
	uint64_t objects, read_locks, dirty_objects, unreplicated_objects, temporary_objects,
		staging_objects;
	uint64_t dirty_bytes, locked_bytes, staging_bytes;
	uint64_t free_bytes;		       /* of resident objects that could go at once */
	uint64_t pinned_objects, pinned_bytes; /* of resident objects */
} KvcL1Counts;
void kvc_l1_manager_get_counts(KvcL1Manager *m, KvcL1Counts *counts);
/*
 * One line for each object, also detached and staging ones: the key (staging: perhaps not known
 * yet), and its state, bytes, locks and their owners with count and age. HELD_ONLY: of those that
 * somebody holds. Takes one table at a time and calls FUNC without locks.
 */
void kvc_l1_manager_dump(KvcL1Manager *m, bool held_only, KvcDescribeFunc func, void *user);
/*
 * How many locks and reservations are held for longer than their time to live as of NOW_NS. Those
 * that this is the first call to see are logged (one line) and counted in l1_expired_locks.
 */
uint64_t kvc_l1_manager_report_expired(KvcL1Manager *m, int64_t now_ns);
/* Share (0..1) of the resident bytes that lie on huge pages, measured on a sample; -1: nothing
 * resident. */
double kvc_l1_manager_measure_huge_pages(KvcL1Manager *m);

#endif
