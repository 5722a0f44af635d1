/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_STORAGE_MANAGER_H
#define KVCACHE_STORAGE_MANAGER_H

/*
 * The engine's face: one L1 (memory), any number of L2 adapters, the two controllers, eviction and
 * the index of what is known in any tier. Thread-safe unless said otherwise. Data-path functions
 * return 0, a positive documented condition, or -errno.
 */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"
#include "kvcache/object-key.h"
#include "kvcache/policy.h"

KVC_BEGIN_DECLS

typedef struct KvcStorageManager KvcStorageManager;
typedef struct KvcL1Object KvcL1Object;
typedef struct KvcPrefetchHandle KvcPrefetchHandle;

/*
 * Who holds locks, as leak reports and dumps name him. NAME is static; ID tells owners of one name
 * apart. A lock is given back by its owner only.
 */
typedef struct KvcLockOwner {
	const char *name;
	uint64_t id;
} KvcLockOwner;
static inline KvcLockOwner
kvc_lock_owner(const char *name, uint64_t id)
{
	KvcLockOwner owner = {name, id};
	return owner;
}
/* Of the functions that name none. */
#define KVC_OWNER_USER kvc_lock_owner("user", 0)

typedef struct KvcStorageManagerConfig {
	/*
	 * Required. Each object in L1 also costs a file descriptor: at most 95 % of RLIMIT_NOFILE
	 * (as it is when the cache is opened; below 2560 all but 128, below 256 half) are in L1,
	 * whatever the size. Many small objects want a higher limit.
	 */
	uint64_t l1_size_bytes;
	uint64_t l1_overrun_bytes; /* beyond that, for files that outgrow what was reserved for
				      them; 0: a tenth, at least 256 MiB */
	const char *const
		*l2_adapters;	  /* NULL-terminated specifications, in order of index; or NULL */
	const char *store_policy; /* NULL: "default" */
	const char *prefetch_policy;	   /* NULL: "default" */
	const char *eviction_policy;	   /* NULL: "lru" */
	double eviction_trigger_watermark; /* 0: 0.8 */
	double eviction_ratio;		   /* 0: 0.2 */
	unsigned prefetch_max_in_flight;   /* requests; 0: 8 */
	/* Locks and reservations held longer are reported, nothing else comes of it. */
	unsigned l1_read_ttl_seconds;  /* 0: 300 */
	unsigned l1_write_ttl_seconds; /* 0: 600 */
	/*
	 * The file in which deletions that an adapter has not confirmed outlive the engine, made if
	 * absent; two engines must not use it at a time. NULL: they are forgotten with the engine.
	 */
	const char *deletion_log;
	/*
	 * Called when the last tier that had KEY lost it (evicted without a copy, vanished from L2,
	 * deleted). Any thread, possibly inside engine locks: must only post, never block, and
	 * never call the engine.
	 */
	void (*key_lost)(void *user, KvcObjectKey *key);
	/* Called when the first key of SCOPE became known. Same rules. */
	void (*scope_known)(void *user, KvcKeyScope *scope);
	void *user;
} KvcStorageManagerConfig;

/* What l1_overrun_bytes 0 means. */
uint64_t kvc_l1_overrun_default(uint64_t l1_size_bytes);

/* Builds everything and starts the threads and the background listing; NULL with ERROR set. */
KvcStorageManager *kvc_storage_manager_new(const KvcStorageManagerConfig *config, GError **error);
/*
 * Quiescence: answers every request, stores nothing more, releases
 * every lock, closes the adapters, frees everything. All handles and objects must have been given
 * back: what was not is logged with its key, owner and age, and gone. Call
 * kvc_storage_manager_drain() first to keep what is dirty. Blocks. One thread.
 */
void kvc_storage_manager_free(KvcStorageManager *sm);

/* ---- Writing ------------------------------------------------------------------------------- */

/*
 * Reserves a fresh, empty L1 object of BYTES (rounded up to pages, allocated, so that writing it
 * cannot fail for lack of memory), evicting synchronously to make room. KEY may be NULL: it is then
 * given to finish_write. Returns 0 and *OBJECT (owned by the caller until finish_write or
 * abort_write), -ENOSPC when L1 is full of what may not go, or -errno.
 */
int kvc_storage_manager_reserve_write(KvcStorageManager *sm,
				      KvcObjectKey *key,
				      uint64_t bytes,
				      KvcL1Object **object);
typedef enum {
	KVC_RESERVE_NEW,    /* keys that are not in L1; -EEXIST */
	KVC_RESERVE_UPDATE, /* keys that are in L1; -ENOENT */
	KVC_RESERVE_ALL,    /* any */
} KvcReserveMode;

/* One reservation of several, and its result. */
typedef struct KvcWrite {
	KvcObjectKey *key; /* NULL only with KVC_RESERVE_ALL, as above */
	uint64_t bytes;
	KvcL1Object *object; /* result, as above; NULL: ERROR says why */
	int error;	     /* result: 0, -EEXIST, -ENOENT (see MODE), -ENOSPC, -errno */
} KvcWrite;
/*
 * The same for N keys, each for itself: what lacks room leaves the others reserved. MODE looks at
 * L1 as it is now. Two reservations of one key, in one call or not, never share an object. Returns
 * how many were reserved.
 */
size_t kvc_storage_manager_reserve_writes(KvcStorageManager *sm,
					  KvcWrite *writes,
					  size_t n,
					  KvcReserveMode mode);
/* Raises the reservation of an unfinished object to BYTES. 0, -ENOSPC, -errno. */
int kvc_storage_manager_extend_write(KvcStorageManager *sm, KvcL1Object *object, uint64_t bytes);
/*
 * Lowers the reservation to BYTES, after the file was cut to that size. If it was not, or somebody
 * writes it without extend_write before each write (passthrough), what is beyond BYTES uses the
 * overrun until the object is finished: see to it that it is not too much.
 */
void kvc_storage_manager_trim_write(KvcStorageManager *sm, KvcL1Object *object, uint64_t bytes);

typedef enum {
	/* An object in L1 or L2 stays, ours is dropped: KVC_FINISHED_DROPPED. Chunks of one hash
	 * are the same: where only L2 has one of ours' size, ours becomes its L1 copy. */
	KVC_FINISH_FIRST_WINS = 0,
	KVC_FINISH_REPLACE = 1, /* ours becomes the object */
} KvcFinishMode;
#define KVC_FINISHED_DROPPED 1

/*
 * Commits OBJECT under KEY with the size its file has now: trims the reservation, makes it visible,
 * hands it to the StoreController. KEY NULL: the key of the reservation. Takes the caller's
 * reference in every case. 0, KVC_FINISHED_DROPPED (a complete object was there in L1 or L2 and
 * stays), -EINVAL (no key at all, or another one than that of the reservation), -errno; nothing
 * became visible then.
 */
int kvc_storage_manager_finish_write(KvcStorageManager *sm,
				     KvcL1Object *object,
				     KvcObjectKey *key,
				     KvcFinishMode mode);
/*
 * Does ahead what finish_write may wait for: a few ms for the last descriptor of the writer, or a
 * copy. Bytes, size and attributes of OBJECT are final then, and what follows, finish_write or
 * abort_write, waits for nothing: a caller can look at his names and commit in one step, under a
 * lock of his own. 0; -errno: it was dropped as by a finish_write that fails. Once for an object.
 */
int kvc_storage_manager_seal_write(KvcStorageManager *sm, KvcL1Object *object);
/* Drops an unfinished object and its memory; nothing was ever visible. */
void kvc_storage_manager_abort_write(KvcStorageManager *sm, KvcL1Object *object);

/* ---- Reading ------------------------------------------------------------------------------- */

/* Read-locks KEY if it is in L1: 0 and *OBJECT (give back with finish_read), or -ENOENT. */
int
kvc_storage_manager_reserve_read(KvcStorageManager *sm, KvcObjectKey *key, KvcL1Object **object);
/* One lock more on an object that the caller knows to be read-locked. */
void kvc_storage_manager_reserve_read_again(KvcStorageManager *sm, KvcL1Object *object);
/* Gives one lock back: OBJECT, its file and what the caller has mapped of it are not used any more.
 */
void kvc_storage_manager_finish_read(KvcStorageManager *sm, KvcL1Object *object);
/*
 * The lock of FROM on OBJECT is TO's from now on, for the reports of locks that are left; TO alone
 * can give it back, with finish_read_for. From the functions that name no owner (also from a
 * prefetch handle) a lock comes as KVC_OWNER_USER's.
 */
void kvc_storage_manager_move_read_lock(KvcStorageManager *sm,
					KvcL1Object *object,
					KvcLockOwner from,
					KvcLockOwner to);
void
kvc_storage_manager_finish_read_for(KvcStorageManager *sm, KvcL1Object *object, KvcLockOwner owner);

/*
 * The file of an object; owned by the object, and of a finished one good for reading only. Any
 * thread that holds the object. Whoever opens the file for somebody else takes the descriptor from
 * here: from then on others may have it open or mapped, and L1 sees to that.
 */
int kvc_l1_object_get_fd(const KvcL1Object *object);
/* Size in bytes: of a finished object its own, of an unfinished one what its file has now. */
uint64_t kvc_l1_object_get_bytes(const KvcL1Object *object);
/* What the object takes of L1 now, in bytes: of an unfinished one what was reserved for it. */
uint64_t kvc_l1_object_get_reserved_bytes(const KvcL1Object *object);
/* Gives an unfinished object's file the size BYTES: 0 or -errno. */
int kvc_l1_object_set_size(KvcL1Object *object, uint64_t bytes);
/*
 * An unfinished object is to be committed with these attributes (copied): a later commit of the key
 * has them all, MTIME_NS 0: the time of the commit. Without this call a key keeps what it has.
 */
void kvc_l1_object_set_attributes(KvcL1Object *object, const KvcObjectAttributes *attributes);
/*
 * Has nobody read or mapped OBJECT since it was loaded? Says so once. What the kernel reads for a
 * passed-through file counts as well: it moves the access time of the file.
 */
bool kvc_l1_object_take_unread(KvcL1Object *object);
/* Does L1 or another reader hold OBJECT as well? If not its memory goes with the caller's
 * reference. True of a moment. */
bool kvc_l1_object_is_shared(const KvcL1Object *object);
/* Did L1 memory run out since the object was reserved (a write into it may have failed)? */
bool kvc_l1_object_was_memory_full(KvcL1Object *object);

/* ---- Prefetch ------------------------------------------------------------------------------ */

typedef enum {
	KVC_PREFETCH_HOLD = 1 << 0,    /* plan only; loads begin with kvc_prefetch_handle_start() */
	KVC_PREFETCH_URGENT = 1 << 1,  /* somebody waits: not queued behind max_in_flight */
	KVC_PREFETCH_NO_LOCK = 1 << 2, /* warm: loaded objects are not read-locked */
	KVC_PREFETCH_LOOKUP_ONLY = 1 << 3, /* ask the tiers, load and lock nothing */
	/*
	 * Fetch mode "full": every key that exists, not only the unbroken run from the first one.
	 * The numbers of keys found and held then count keys, kvc_prefetch_handle_get_keys() says
	 * which.
	 */
	KVC_PREFETCH_FULL = 1 << 4,
	KVC_PREFETCH_L1_ONLY = 1 << 5, /* ask no L2: answered at once, request_id -1 */
	/*
	 * With LOOKUP_ONLY: shared adapters are asked also for what is known, in L1 too. What
	 * somebody else has replaced or removed there is so for stat, list and reserve_read from
	 * then on; who holds the object of before keeps it. Not what is not stored yet, nor the
	 * bytes of chunks. A key counts as found when an adapter could be asked, whatever it said.
	 */
	KVC_PREFETCH_RENEW = 1 << 6,
} KvcPrefetchFlags;

typedef struct KvcPrefetchParams {
	KvcObjectKey *const *keys; /* copied; first chunk first */
	size_t n_keys;
	unsigned flags;		   /* KvcPrefetchFlags */
	unsigned read_locks;	   /* on each key, one for each consumer; 0: 1 */
	uint64_t max_locked_bytes; /* bound on what the request may hold and load; 0: half of L1 */
	int64_t timeout_ns; /* from now; 0: none. Then the answer is what is known, the rest drains
			     */
	/*
	 * planned: the lookup phase ended, kvc_prefetch_handle_get_found() is final. done: the
	 * result is final. Each at most once, planned before done, from the controller's thread
	 * without locks; must not block. Not called for a handle whose request_id is -1.
	 */
	void (*planned)(void *user, KvcPrefetchHandle *handle);
	void (*done)(void *user, KvcPrefetchHandle *handle);
	void *user;
} KvcPrefetchParams;

/* The fields of the specification; read-only for the caller. */
struct KvcPrefetchHandle {
	int64_t request_id; /* -1: no L2 request was needed, everything is known already */
	size_t l1_prefix_hit_count;
	size_t total_requested_keys;
	int64_t submit_time_ns; /* CLOCK_MONOTONIC */
};

/*
 * Submits a prefetch task (transfer full): L1 is probed for all keys at once, hits are read-locked,
 * the rest is looked up in L2 and the unbroken run from the first key is loaded. Never blocks.
 * Callbacks may run before this returns; they get the same handle.
 */
KvcPrefetchHandle *kvc_storage_manager_submit_prefetch_task(KvcStorageManager *sm,
							    const KvcPrefetchParams *params);
/* Keys of the unbroken run that exist in L1 or L2: the early result. -EAGAIN while looking up. */
ssize_t kvc_prefetch_handle_get_found(KvcPrefetchHandle *handle);

/* How a key of a request ended. */
typedef enum {
	KVC_PREFETCH_KEY_PENDING = 0,
	KVC_PREFETCH_KEY_HELD, /* in the answer: in L1, locked unless the request locks nothing */
	KVC_PREFETCH_KEY_NOT_FOUND,  /* in no tier that could be asked */
	KVC_PREFETCH_KEY_AFTER_GAP,  /* behind a key that the answer has not */
	KVC_PREFETCH_KEY_OVER_BOUND, /* would exceed max_locked_bytes */
	KVC_PREFETCH_KEY_NOT_LOADED, /* the deadline, a cancel, the stop or the policy prevented it
				      */
	KVC_PREFETCH_KEY_L1_OOM,     /* no room in L1 */
	KVC_PREFETCH_KEY_L1_CONTENDED, /* written anew again and again while it was loading */
	KVC_PREFETCH_KEY_LOST, /* found, but every load failed or it was deleted meanwhile */
} KvcPrefetchKeyState;
/* PENDING until the answer is known. I is below total_requested_keys. Any thread. */
KvcPrefetchKeyState kvc_prefetch_handle_get_key_state(KvcPrefetchHandle *handle, size_t i);
/*
 * Sets the bits of the keys that exist in FOUND, of those that the answer holds in HELD (each of
 * total_requested_keys bits, clear; or NULL): 0. -EAGAIN: what is asked for is not known yet,
 * nothing is set. As often as one likes, any thread.
 */
int kvc_prefetch_handle_get_keys(KvcPrefetchHandle *handle, KvcBitmap *found, KvcBitmap *held);
/*
 * total = L1 prefix + L2 prefix, read-locked: once for a request with an id (then -ENODATA), always
 * for one with id -1. -EAGAIN while it runs.
 */
ssize_t kvc_storage_manager_query_prefetch_status(KvcStorageManager *sm, KvcPrefetchHandle *handle);
/*
 * An event fd that is readable once the result is final, for poll() with others; the status does
 * not say -EAGAIN then. Owned by the handle, the same one each time; not to be read or closed, not
 * used after the drop. Or -errno (-EMFILE). Never blocks.
 */
int kvc_prefetch_handle_get_event_fd(KvcPrefetchHandle *handle);
/*
 * Waits until the result is final: 0, -ETIMEDOUT after TIMEOUT_NS (0: does not wait, below 0: no
 * limit), or -errno as above. Blocks; from several threads at a time if need be. A held request
 * (KVC_PREFETCH_HOLD) is not final before it was started or cancelled.
 */
int kvc_prefetch_handle_wait(KvcPrefetchHandle *handle, int64_t timeout_ns);
/*
 * Moves one read lock of key I out of the handle: the object, to be given back with finish_read, or
 * NULL (not loaded, not locked, all taken already). After done, or any time for a key that has
 * arrived.
 */
KvcL1Object *kvc_prefetch_handle_take_object(KvcPrefetchHandle *handle, size_t i);
/*
 * One line for each handle ("prefetch.7", its phase, which of its keys have L1 locks, L2 locks and
 * reservations in L1), for each load on its way ("load.KEY"), and their sum ("total"). Exact when
 * the controller's thread is between two steps; waits for that, so not from a callback. Any thread.
 */
void kvc_storage_manager_dump_prefetches(KvcStorageManager *sm, KvcDescribeFunc func, void *user);
/* Begins the loads of a held request. Never blocks; a second call does nothing. */
void kvc_prefetch_handle_start(KvcPrefetchHandle *handle);
/* Forbids loads that have not begun; what is loaded stays locked. */
void kvc_prefetch_handle_cancel(KvcPrefetchHandle *handle);
/*
 * Gives the handle back: loads not begun are cancelled, every lock it still holds is released
 * (soon, in the controller's thread). Never blocks. A callback that is running or about to run may
 * still be called: USER must stay alive until the user_free given here was called (may be NULL).
 */
void kvc_prefetch_handle_drop(KvcPrefetchHandle *handle, void (*user_free)(void *user));

/* ---- Keys ---------------------------------------------------------------------------------- */

#define KVC_TIER_L1 (1u << 31) /* bits 0..15: adapters by index */

typedef struct KvcObjectInfo {
	uint32_t tiers;
	/* Of these, adapters that have it under a former name yet, see await_rename. */
	uint32_t renaming;
	uint64_t bytes;
	int64_t mtime_ns;
	uint64_t sequence; /* order in its scope, ascending by when it became known; stable */
	/* Since the epoch, from memory only: after a start as mtime_ns. ATIME moves with
	 * note_access, CTIME with a commit or a change of attributes. */
	int64_t atime_ns, ctime_ns;
	uint32_t mode; /* S_IFREG and permission bits; 0: unknown, as are uid and gid then */
	uint32_t uid, gid;
	uint32_t hits; /* calls of note_access since the key became known */
	/* To be compared only: another one when other bytes may be under the key (it was committed
	 * anew, renamed, or deleted and is back). */
	uint32_t version;
	/* Of a chunk: L1 alone has it, since somebody else removed it from a shared adapter. It is
	 * served until it is evicted, which it may be, never stored again, and no first object to
	 * KVC_FINISH_FIRST_WINS. */
	bool is_removed;
} KvcObjectInfo;

/* What the index knows, from memory: 0 or -ENOENT. */
int kvc_storage_manager_stat(KvcStorageManager *sm, KvcObjectKey *key, KvcObjectInfo *info);

typedef struct KvcListEntry {
	KvcObjectKey *key; /* owned by the caller */
	KvcObjectInfo info;
} KvcListEntry;

/*
 * Up to MAX known keys of SCOPE with sequence > AFTER and a space in SPACES (bit 1 << space), in
 * order. Returns how many. AFTER 0 begins; sequences are stable while entries come and go. From
 * memory.
 */
size_t kvc_storage_manager_list(KvcStorageManager *sm,
				KvcKeyScope *scope,
				unsigned spaces,
				uint64_t after,
				KvcListEntry *entries,
				size_t max);

/*
 * SCOPE's keys are listed again in every shared adapter that says that something changed there;
 * what is thereby found to have come, gone or been replaced is so for stat and list from then on.
 * Calls DONE(user) once when that has ended, possibly before this returns, else in a thread of its
 * own; it must not block. Any thread; does not block.
 */
void kvc_storage_manager_relist(KvcStorageManager *sm,
				KvcKeyScope *scope,
				void (*done)(void *user),
				void *user);

/* All scopes with a known key (transfer full, of referenced KvcKeyScope). From memory. */
GPtrArray *kvc_storage_manager_list_scopes(KvcStorageManager *sm);

/* ---- Attributes ---------------------------------------------------------------------------- */

typedef enum {
	KVC_ATTRIBUTE_MODE = 1 << 0,
	KVC_ATTRIBUTE_UID = 1 << 1,
	KVC_ATTRIBUTE_GID = 1 << 2,
	KVC_ATTRIBUTE_MTIME = 1 << 3,
	KVC_ATTRIBUTE_ATIME = 1 << 4,
} KvcAttribute;

/*
 * Sets those of WHICH (KvcAttribute) of a known key; xattrs have calls of their own. Visible at
 * once, and taken to every L2 that can keep them in the background: flush and drain wait for that.
 * 0 or -ENOENT. Never blocks; any thread.
 */
int kvc_storage_manager_set_attributes(KvcStorageManager *sm,
				       KvcObjectKey *key,
				       const KvcObjectAttributes *attributes,
				       unsigned which);
/* The extended attributes of KEY (transfer full), NULL: none, or not known. From memory. */
KvcXattrs *kvc_storage_manager_get_xattrs(KvcStorageManager *sm, KvcObjectKey *key);
/*
 * Sets one, as set_attributes. FLAGS as of setxattr(2). 0, -ENOENT (no such key), -EEXIST,
 * -ENODATA, -ERANGE, -E2BIG, -ENOSPC. A NAME that no user may set (kvc_xattr_name_is_user()):
 * -EOPNOTSUPP.
 */
int kvc_storage_manager_set_xattr(KvcStorageManager *sm,
				  KvcObjectKey *key,
				  const char *name,
				  const void *value,
				  size_t bytes,
				  int flags);
/* 0, -ENOENT (no such key), -ENODATA. */
int kvc_storage_manager_remove_xattr(KvcStorageManager *sm, KvcObjectKey *key, const char *name);
/* KEY was opened for reading: moves atime_ns, counts in hits. */
void kvc_storage_manager_note_access(KvcStorageManager *sm, KvcObjectKey *key);
/*
 * A pinned key is not evicted from L1 while it is there, and stays pinned when it is loaded later.
 * Until it is unpinned or deleted; in memory only. 0 or -ENOENT.
 */
int kvc_storage_manager_set_pinned(KvcStorageManager *sm, KvcObjectKey *key, bool pinned);

typedef struct KvcResidency {
	bool is_resident;     /* in L1; else the rest is 0 */
	bool is_dirty;	      /* not in any L2 yet */
	bool is_unreplicated; /* every L2 failed to store it */
	unsigned read_locks;
	bool is_pinned; /* also when not resident */
} KvcResidency;
/* What L1 knows of KEY. Never blocks; any thread. */
void kvc_storage_manager_get_residency(KvcStorageManager *sm,
				       KvcObjectKey *key,
				       KvcResidency *residency);
/*
 * The CRC32C of KEY's bytes: what was computed before, else computed here if it is in L1 (a pass
 * over its bytes). 0, or -ENODATA: it is not in L1. Takes no other lock while it computes.
 */
int kvc_storage_manager_get_crc32c(KvcStorageManager *sm, KvcObjectKey *key, uint32_t *crc);

/* ---- Deletion and eviction ----------------------------------------------------------------- */

/*
 * Deletes KEY from every tier: gone from the index at once, L2 deletions follow in the background
 * and hide the key until confirmed, also across restarts if there is a deletion log. Readers keep
 * what they hold. Waits for no disk. 0 or -ENOENT.
 */
int kvc_storage_manager_delete(KvcStorageManager *sm, KvcObjectKey *key);
typedef enum {
	KVC_RENAME_NOREPLACE = 1 << 0, /* not over a known key */
} KvcRenameFlags;

/*
 * The object OLD_KEY is NEW_KEY from now on: for stat, list and reserve_read at once, in place of
 * what was there; L2 follows in the background. Readers of either object keep what they hold. From
 * memory, never waits. The caller sees to it that neither key is deleted meanwhile. 0; -ENOENT;
 * -EEXIST (NOREPLACE); -EXDEV: an adapter that cannot rename has one of the two, and L1 has no
 * OLD_KEY to store there anew.
 */
int kvc_storage_manager_rename(KvcStorageManager *sm,
			       KvcObjectKey *old_key,
			       KvcObjectKey *new_key,
			       unsigned flags);
/*
 * Calls DONE(user, 0) once a tier has KEY by this name, so that it can be loaded: at once when L1
 * or an adapter has it or nothing is pending. As flush otherwise (which waits for every tier).
 * -ESHUTDOWN: the engine is stopped.
 */
void kvc_storage_manager_await_rename(KvcStorageManager *sm,
				      KvcObjectKey *key,
				      void (*done)(void *user, int error),
				      void *user);
/*
 * Waits until the deletions so far are safe from a SIGKILL of this process. A disk that hangs is
 * not waited for: at most a second or two, and not at all while the deletion log cannot be written.
 * Hold no lock.
 */
void kvc_storage_manager_settle_deletions(KvcStorageManager *sm);
/*
 * Drops from L1 what is neither locked, dirty nor pinned, whether it is in L2 or not. FORCE: all
 * that is resident; readers keep what they hold, and what was to be stored is stored if that has
 * begun. Returns how many objects went.
 */
size_t kvc_storage_manager_clear_l1(KvcStorageManager *sm, bool force);
/* Drops KEY from L1 if a copy is in L2: 0; -EBUSY (locked, dirty or filling), -ENOENT (not in L1).
 */
int kvc_storage_manager_evict(KvcStorageManager *sm, KvcObjectKey *key);

/*
 * Calls DONE(user, 0) once KEY is stored in L2 or needs no store, DONE(user, -EIO) when every
 * target failed, -ENOENT when it is not known. Possibly before this returns. "Store first"; what
 * was given up before is tried again, and what no adapter has though there is one is stored. DONE
 * may run in the StoreController's thread and must not block.
 */
void kvc_storage_manager_flush(KvcStorageManager *sm,
			       KvcObjectKey *key,
			       void (*done)(void *user, int error),
			       void *user);
/*
 * Calls DONE(user, 0) once every deletion so far is safe from a loss of power (in L2, or in the
 * deletion log), DONE(user, -errno) when the log cannot be written. Possibly before this returns,
 * else in the log's thread; must not block.
 */
void kvc_storage_manager_sync_deletions(KvcStorageManager *sm,
					void (*done)(void *user, int error),
					void *user);
/*
 * What was given up, since every target failed to store it, is dirty again and is tried as if it
 * were new; kvc_storage_manager_drain() waits for that. Any thread; does not block.
 */
void kvc_storage_manager_retry_unreplicated(KvcStorageManager *sm);
/* Waits until nothing is dirty: 0, -ETIMEDOUT, -EIO (something could not be stored). Blocks. */
int kvc_storage_manager_drain(KvcStorageManager *sm, int64_t timeout_ns);
/* Waits until the background listing of every adapter ended: 0 or -ETIMEDOUT. Blocks. */
int kvc_storage_manager_wait_listed(KvcStorageManager *sm, int64_t timeout_ns);
/* Is more than half of L1 on its way to L2? Then writers ought to be slowed. From memory. */
bool kvc_storage_manager_is_half_dirty(KvcStorageManager *sm);
/* Is there an adapter that gets new work (one that is being removed does not)? From memory. */
bool kvc_storage_manager_has_l2(KvcStorageManager *sm);
/*
 * The type of the adapter with index I ("fs"), NULL where there is none; indexes are below
 * KVC_MAX_ADAPTERS and may have holes. Static. Any thread.
 */
const char *kvc_storage_manager_adapter_type(KvcStorageManager *sm, size_t i);
/*
 * Is any adapter shared, i.e. worth asking about keys that no index knows? Not one whose breaker is
 * open.
 */
bool kvc_storage_manager_has_shared_l2(KvcStorageManager *sm);
/* The same, whatever its breaker says: may others change what is stored? From memory. */
bool kvc_storage_manager_is_shared(KvcStorageManager *sm);

/* ---- Adapters that come and go ------------------------------------------------------------- */

/*
 * Opens one more adapter (as in KvcStorageManagerConfig.l2_adapters), which gets new stores,
 * deletions, lookups and plans from now on and is listed in the background. What is in memory
 * already is not stored in it, but what no adapter has is when it is flushed. Returns its index, or
 * -1 with ERROR set. Blocks for a moment; any thread that may block.
 */
int
kvc_storage_manager_add_adapter(KvcStorageManager *sm, const char *specification, GError **error);
/*
 * Removes the adapter with INDEX: at once it gets nothing new; the tasks that it has end, the locks
 * that requests hold on it are returned, and it is closed. Objects that were to be stored in it
 * only, and objects in L1 that only it had, are stored in another one that the policy chooses, if
 * there is one; without one these are clean. Keys that only it had are lost (key_lost). Deletions
 * and renames that fail there are left: the deletion log does the deletions when the store is added
 * again. Its index is then free for another one. Nothing tells its store what is written, renamed
 * or deleted while it is away: when it is added again that store is believed like one that is new.
 *
 * 0; -ENOENT: there is none; -ETIMEDOUT: it is still draining (status says so) and gets nothing
 * new, call this again to wait on. TIMEOUT_NS 0 does not wait. Blocks; any thread that may block.
 */
int kvc_storage_manager_remove_adapter(KvcStorageManager *sm, size_t index, int64_t timeout_ns);

/* ---- Status -------------------------------------------------------------------------------- */

/* Lines of status ("l1_used_bytes", "123") and of stats. FUNC is called once per line, in order. */
void kvc_storage_manager_report_status(KvcStorageManager *sm, KvcDescribeFunc func, void *user);
void kvc_storage_manager_report_stats(KvcStorageManager *sm, KvcDescribeFunc func, void *user);
/*
 * A line for each object in L1 (HELD_ONLY: of those that somebody holds or fills): its key, and
 * state, bytes, locks with their owners and ages. For people: the text may change.
 */
void kvc_storage_manager_dump_l1(KvcStorageManager *sm,
				 bool held_only,
				 KvcDescribeFunc func,
				 void *user);

typedef struct KvcCapacity {
	uint64_t l1_capacity_bytes;
	uint64_t l1_used_bytes;
	uint64_t
		l1_pinned_bytes; /* dirty, locked, pinned, staging, lingering: not free on demand */
	uint64_t l2_capacity_bytes;
	uint64_t l2_used_bytes;
	uint64_t objects;
} KvcCapacity;
/* From memory, never blocks. */
void kvc_storage_manager_get_capacity(KvcStorageManager *sm, KvcCapacity *capacity);

KVC_END_DECLS

#endif
