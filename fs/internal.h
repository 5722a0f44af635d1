/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_INTERNAL_H
#define FS_INTERNAL_H

/*
 * What the files of fs/ share.
 *
 * Locks, outermost first: Kvcfs.save_lock (one chain is written at a time), Kvcfs.names (the tree,
 * the tables, reference counts, chains, stagings), then an inode's io_lock (its opens and its
 * backing id). Both are held for short work in memory only; engine functions that never block may
 * be called under them, since the engine's callbacks take neither (they only post to the notifier).
 * Nothing is answered and nothing is waited for under a lock.
 */

#include "fs/kvcfs.h"
#include "fs/path-codec.h"
#include "fs/pending.h"
#include "fs/writer-exit.h"

#include <glib.h>
#include <pthread.h>
#include <sys/stat.h>

/* ---- Counters ------------------------------------------------------------------------------ */

#define KVCFS_STATS(X)                                                                             \
	X(opens, "Opens of objects for reading")                                                   \
	X(opens_waited, "Of these, those that waited for a load from L2")                          \
	X(opens_missed, "Opens answered ENOENT: nowhere, lost on the way, or too late")            \
	X(creates, "Writers that created a file")                                                  \
	X(creates_no_room, "Creates refused because L1 is full of what may not go")                \
	X(writes_published, "Written files that became objects")                                   \
	X(writes_duplicate, "Written files dropped because the object existed already")            \
	X(writes_not_published_killed, "Written files whose writer was ended by a signal")         \
	X(writes_not_published_cut_off, "Written files whose writer ended while it had threads")   \
	X(writes_not_published_after_close, "Files written to after the last close of a writer")   \
	X(writes_not_published_file_limit, "Files as long as their writer's RLIMIT_FSIZE")         \
	X(writes_not_published_unflushed, "Written files released without a close")                \
	X(writes_not_published_empty, "Files under a hash name that were never written to")        \
	X(writes_not_published_tail, "Files whose declared end was never written")                 \
	X(writes_not_published_too_big, "Files larger than --max-object-size")                     \
	X(writes_not_published_error, "Written files that L1 could not take (log has the errno)")  \
	X(writes_not_published_memory_full, "Written files during which L1 memory ran out")        \
	X(writes_not_published_unlinked, "Written files whose name was removed before the commit") \
	X(closes_slowed, "Closes of writers that waited because half of L1 was dirty")             \
	X(writers_unknown, "Writers in another pid name space: taken as closed")                   \
	X(lookups_waited_commit, "Lookups that waited for a closed writer's commit")               \
	X(lookups_waited_commit_in_vain, "Of these, those that saw none: the descriptor lives on") \
	X(lookups_asked_l2, "Lookups of unknown names asked of L2")                                \
	X(lookups_timed_out, "Of these, those answered ENOENT before L2 did")                      \
	X(chains_saved, "Chains of prefix directories written to L1 and L2")                       \
	X(chains_save_failed, "Chains that could not be written (tried again)")                    \
	X(chains_load_failed, "Chains that could not be loaded in time")                           \
	X(interrupted, "Waiting requests whose caller was interrupted")                            \
	X(backing_open_failed, "Passthrough registrations the kernel refused")

typedef enum {
#define X(name, help) KVCFS_STAT_##name,
	KVCFS_STATS(X)
#undef X
		KVCFS_N_STATS
} KvcfsStat;

#define kvcfs_count_stat(fs, stat)                                                                 \
	((void)__atomic_fetch_add(&(fs)->stats[stat], 1, __ATOMIC_RELAXED))
#define kvcfs_count(fs, name) kvcfs_count_stat(fs, KVCFS_STAT_##name)

/* ---- Inodes -------------------------------------------------------------------------------- */

typedef enum {
	KVCFS_DIR,	    /* the root or a component of a model's name */
	KVCFS_RANK,	    /* "@01000100" */
	KVCFS_PREFIX,	    /* a prefix directory */
	KVCFS_OBJECT,	    /* an object, or a file on its way to become one, or a temporary file */
	KVCFS_KEYS,	    /* the .keys of a prefix directory */
	KVCFS_CONTROL_ROOT, /* .kvcache */
	KVCFS_CONTROL,	    /* a file in it */
} KvcfsKind;

typedef struct KvcfsInode KvcfsInode;
typedef struct KvcfsChain KvcfsChain;

/* A file that is being written, or a temporary one. Protected by names. */
typedef struct KvcfsStaging {
	KvcL1Object *object; /* owned */
	KvcfsInode *rank;    /* owned reference: whose size hint it updates */
	/* Where it commits to: an object, and the prefix directory it was created in, if any. */
	KvcObjectKey *target; /* owned; NULL: temporary or unlinked */
	KvcfsInode *prefix;   /* owned reference or NULL */
	/* Where it is visible as a temporary file; NULL: not. */
	KvcfsInode *temp_dir; /* not owned: the directory's table owns this inode */
	char *temp_name;
	uint64_t sequence; /* order in listings */
	unsigned n_writers;
	int64_t flushed_ns; /* the last FLUSH by a living writer; 0: none */
	bool is_closing;    /* counted in Kvcfs.closing */
	/* What is known against it (write-proof.c); stays. */
	bool is_killed;
	bool is_cut_off;
	bool is_too_big;
	bool is_file_limited;
	bool is_written_after_close;
	bool was_memory_full;
	/* What the file was at the last FLUSH. */
	int64_t flushed_mtime_ns;
	uint64_t flushed_bytes;
} KvcfsStaging;

struct KvcfsInode {
	/* Immutable. */
	Kvcfs *fs;
	KvcfsKind kind;
	uint64_t ino;
	KvcKeyScope *scope; /* RANK, PREFIX, KEYS: owned */
	KvcfsInode *parent; /* owned reference; NULL for OBJECT and the root */
	char *name;	    /* in parent; for a DIR in its parent's encoded path */
	int control;	    /* CONTROL: index in the table of control.c */

	/* Protected by names. */
	KvcfsInode *next, *prev; /* in Kvcfs.inodes */
	uint64_t refs;		 /* of the kernel (lookups) and of ours */
	KvcObjectKey *key;	 /* OBJECT: once committed; PREFIX: of its chain. Owned */
	bool is_unlinked;
	GHashTable *children;  /* DIR: name -> inode (owned reference) */
	GHashTable *temps;     /* RANK, PREFIX: name -> inode (owned reference), or NULL */
	GHashTable *nlinks;    /* RANK: key -> references in loaded chains, or NULL */
	uint64_t last_bytes;   /* RANK: size of the last object written: the next reservation */
	KvcfsChain *chain;     /* PREFIX */
	KvcfsStaging *staging; /* OBJECT: not committed yet */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	int64_t atime_ns, mtime_ns; /* 0: as the index says */
	uint64_t open_bytes; /* OBJECT: size when it was last opened, for stat after an unlink */

	/* Protected by io_lock. OBJECT only. */
	pthread_mutex_t io_lock;
	unsigned n_opens;
	int backing_id;
	ino_t backing_ino;	  /* of the file that it stands for */
	KvcL1Object *commit_lock; /* read lock for handles that were open when it was committed */
};

/* ---- The file system ----------------------------------------------------------------------- */

typedef struct KvcfsNotifier KvcfsNotifier;

struct Kvcfs {
	/* Immutable after the session started. */
	KvcfsConfig config;
	KvcStorageManager *sm;
	struct fuse_session *se;
	bool is_passthrough;
	uint64_t l1_capacity_bytes;
	KvcfsPendings *pendings;
	KvcfsNotifier *notifier;

	bool is_draining;	       /* Atomic */
	uint64_t scopes_version;       /* Atomic: moves when a scope became known */
	uint64_t stats[KVCFS_N_STATS]; /* Atomic */

	pthread_mutex_t save_lock; /* outermost: one chain is written at a time, in order */
	pthread_mutex_t names;
	/* Protected by names. */
	KvcfsInode *root;
	KvcfsInode *control_root;
	KvcfsInode *inodes;	   /* all there are */
	GHashTable *handles;	   /* all there are (a set) */
	GPtrArray *controls;	   /* the inodes of the control files, by index */
	GHashTable *ranks;	   /* scope -> RANK inode (not owned) */
	GHashTable *objects;	   /* key -> OBJECT inode (not owned) */
	GHashTable *prefixes;	   /* key -> PREFIX inode (not owned) */
	GHashTable *closing;	   /* key -> KvcfsClosing: flushed, RELEASE to come */
	GPtrArray *commit_waiters; /* who waits for it; staging.c's */
	GPtrArray *held_dirs;	   /* of KvcfsHandle: opendirs whose loads have not begun */
	GPtrArray *open_prefixes;  /* of KvcfsHandle: all open prefix directories */
	bool is_save_armed;	   /* a timer will save the changed chains */
	uint64_t scopes_seen;	   /* scopes_version of the last sync */
	uint64_t next_ino;
	uint64_t next_temp; /* the next temporary file's sequence */
};

static inline Kvcfs *
kvcfs_of(fuse_req_t req)
{
	return fuse_req_userdata(req);
}

int64_t kvcfs_now_ns(void);  /* CLOCK_MONOTONIC */
int64_t kvcfs_wall_ns(void); /* CLOCK_REALTIME */

/* ---- inode.c ------------------------------------------------------------------------------- */

#define KVCFS_ENTRY_TIMEOUT 60.0
#define KVCFS_ATTR_TIMEOUT 1.0

static inline KvcfsInode *
kvcfs_inode_of(Kvcfs *fs, fuse_ino_t ino)
{
	return ino == FUSE_ROOT_ID ? fs->root : (KvcfsInode *)(uintptr_t)ino;
}

fuse_ino_t kvcfs_inode_nodeid(const KvcfsInode *inode);
/* A new inode with one reference. PARENT (gets a reference), NAME, SCOPE as the kind needs. */
KvcfsInode *kvcfs_inode_new_locked(
	Kvcfs *fs, KvcfsKind kind, KvcfsInode *parent, const char *name, KvcKeyScope *scope);
KvcfsInode *kvcfs_inode_ref_locked(KvcfsInode *inode);
KvcfsInode *kvcfs_inode_ref(KvcfsInode *inode);
/* Without names held; the last one frees. */
void kvcfs_inode_unref(KvcfsInode *inode, uint64_t n);
/* At the very end: drops what the kernel never gave back. Nobody else is there any more. */
void kvcfs_inodes_free_stagings(Kvcfs *fs);
void kvcfs_inodes_free_all(Kvcfs *fs);
/* The inode of a committed object (transfer full), made when there is none. */
KvcfsInode *kvcfs_object_inode_locked(Kvcfs *fs, KvcObjectKey *key);
/* From now on the object of INODE has another inode, made when it is next looked up. */
void kvcfs_object_inode_renounce(KvcfsInode *inode);
/* Attributes: 0 or -ENOENT. Without locks. */
int kvcfs_inode_get_attr(KvcfsInode *inode, struct stat *st);
/*
 * Answers a LOOKUP-like request with INODE and hands the caller's reference to the kernel, or gives
 * it back when the answer could not be delivered.
 */
void kvcfs_reply_entry(fuse_req_t req, KvcfsInode *inode);

/* ---- tree.c: directories above the objects -------------------------------------------------- */

/* The child directory of a DIR (transfer full), or NULL. Looks at what the engine knows by now. */
KvcfsInode *kvcfs_tree_lookup(KvcfsInode *dir, const char *name);
/* mkdir in a DIR: 0 and *OUT (transfer full), or -errno. */
int kvcfs_tree_mkdir(KvcfsInode *dir, const char *name, mode_t mode, KvcfsInode **out);
int kvcfs_tree_rmdir(KvcfsInode *dir, const char *name);
/* The RANK inode of SCOPE, not referenced; NULL when the tree does not have it. */
KvcfsInode *kvcfs_tree_find_rank_locked(Kvcfs *fs, KvcKeyScope *scope);
/* All children of a DIR, referenced (transfer full). */
GPtrArray *kvcfs_tree_list(KvcfsInode *dir);
/* All RANK inodes at or below INODE (a DIR or a RANK), referenced (transfer full). */
GPtrArray *kvcfs_tree_ranks_below(KvcfsInode *inode);
/* The inode of a directory path relative to the mount's root (transfer full), or NULL. For
 * control.c. */
KvcfsInode *kvcfs_tree_resolve(Kvcfs *fs, const char *const *components, size_t n);

/* ---- commit-wait.c: names whose writer has closed -------------------------------------------- */

typedef struct KvcfsClosing {
	unsigned count;
	int64_t flushed_ns;
} KvcfsClosing;

/* A writer of KEY has flushed (IS_NEW: for the first time). kvcfs_closing_end_locked() undoes one.
 */
void kvcfs_closing_begin_locked(Kvcfs *fs, KvcObjectKey *key, bool is_new);
void kvcfs_closing_end_locked(Kvcfs *fs, const KvcObjectKey *key);
/* A writer of KEY committed or gave up: wakes who waits for it. Without locks. */
void kvcfs_commit_wake(Kvcfs *fs, const KvcObjectKey *key);

/* How long the name of a flushed writer is waited for. */
#define KVCFS_COMMIT_WAIT_NS (50 * INT64_C(1000000))

/* Is a writer of KEY (or, with NULL, of anything in SCOPE) closing, and worth waiting for? */
bool kvcfs_is_closing(Kvcfs *fs, const KvcObjectKey *key, const KvcKeyScope *scope);
/*
 * Waits until that writer committed or gave up, at most KVCFS_COMMIT_WAIT_NS after its FLUSH.
 * ANSWER is called once, possibly before this returns; KEY and SCOPE stay alive until then.
 */
void kvcfs_wait_for_commit(Kvcfs *fs,
			   fuse_req_t req,
			   KvcObjectKey *key,
			   KvcKeyScope *scope,
			   void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
			   void *user);

/* ---- staging.c: from CREATE to the commit --------------------------------------------------- */

/*
 * A new file in DIR (RANK or PREFIX) with a reservation: 0 and *OUT (transfer full, one writer), or
 * -errno. NAME is a hash or temporary.
 */
int kvcfs_staging_create(KvcfsInode *dir,
			 const char *name,
			 const struct fuse_ctx *ctx,
			 mode_t mode,
			 KvcfsInode **out);
/* One more writer of a temporary file: 0, or -EROFS when INODE is no staging. */
int kvcfs_staging_join(KvcfsInode *inode);
/*
 * An open with O_TRUNC does not join: the temporary file loses its name, as by unlink. true: the
 * open is to be answered ESTALE, the kernel then walks again, finds no such name and creates a new
 * file.
 */
bool kvcfs_staging_displace(KvcfsInode *inode);
/* FLUSH by thread TID: 0, or -errno for close(). */
int kvcfs_staging_flush(KvcfsInode *inode, pid_t tid);
/* close(2) returns only now: who asks for the name waits for the RELEASE from here on. */
void kvcfs_staging_renew_flush(KvcfsInode *inode);
/* The end of one writer; the last one commits or drops. */
void kvcfs_staging_release_writer(KvcfsInode *inode);
/* rename(2) of the temporary file NAME in DIR to NEW_NAME in NEW_DIR: 0 or -errno. */
int kvcfs_staging_rename(KvcfsInode *dir,
			 const char *name,
			 KvcfsInode *new_dir,
			 const char *new_name,
			 unsigned flags);
/* unlink(2) of a temporary file: 0 or -ENOENT. */
int kvcfs_staging_unlink(KvcfsInode *dir, const char *name);
KvcfsInode *kvcfs_temp_lookup_locked(KvcfsInode *dir, const char *name);
/* SETATTR size, FALLOCATE: 0 or -errno. */
int kvcfs_staging_set_size(KvcfsInode *inode, uint64_t bytes);
int kvcfs_staging_reserve(KvcfsInode *inode, uint64_t bytes);
/* Frees what a dying inode still has; from inode.c, without locks. */
void kvcfs_staging_free(KvcfsInode *inode);

/* ---- write-proof.c: what is known against a written file ------------------------------------- */

/* The daemon itself has changed the file of ST: that is no write after a close. */
void kvcfs_write_proof_seen_locked(KvcfsStaging *st);
/*
 * A FLUSH by a holder that ended as HOW says and may write files of FILE_LIMIT bytes: was it a
 * close? What speaks against ST is noted either way: one holder that ended badly is enough.
 */
bool kvcfs_write_proof_flush_locked(KvcfsStaging *st, KvcfsWriterExit how, uint64_t file_limit);
/* The last writer's RELEASE. */
void kvcfs_write_proof_release_locked(KvcfsStaging *st);
/*
 * Is it certain already that ST cannot become an object? 0, or the -errno for close() and rename,
 * and the counter of the reason in *WHY (may be NULL).
 */
int kvcfs_write_proof_damage(const Kvcfs *fs, const KvcfsStaging *st, KvcfsStat *why);
/* May a file have BYTES? 0, or -EFBIG, which is logged. */
int kvcfs_write_proof_check_size(const Kvcfs *fs, uint64_t bytes);

/* ---- handle.c: open files -------------------------------------------------------------------- */

typedef enum {
	KVCFS_HANDLE_READ,
	KVCFS_HANDLE_WRITE,
	KVCFS_HANDLE_TEXT, /* a text made at open: control files, .keys */
	KVCFS_HANDLE_KEYS_WRITE,
	KVCFS_HANDLE_CONTROL_WRITE,
	KVCFS_HANDLE_DIR,
	KVCFS_HANDLE_PREFIX_DIR,
} KvcfsHandleKind;

typedef struct KvcfsFetch KvcfsFetch;

typedef struct KvcfsHandle {
	KvcfsHandleKind kind;
	KvcfsInode *inode;   /* owned reference */
	KvcL1Object *object; /* READ: read-locked; NULL for a staging inode */
	int fd;		     /* READ and WRITE of a staging inode: its file (owned); else -1 */
	bool is_counted;     /* in the inode's n_opens */
	GString *text;	     /* TEXT: what is read; KEYS_WRITE: the line that is not complete yet */
	uint64_t write_offset; /* KEYS_WRITE: where the next write must be, unless O_APPEND */
	/* DIR of a DIR: its children. */
	GPtrArray *children;
	/* PREFIX_DIR: the chain when it was opened, how much of it exists, and who holds it. */
	GPtrArray *keys;     /* of KvcObjectKey */
	GHashTable *key_set; /* the same, for "is it one of ours" */
	size_t n_found;
	KvcfsFetch *fetch;
} KvcfsHandle;

KvcfsHandle *kvcfs_handle_new(KvcfsHandleKind kind, KvcfsInode *inode);
void kvcfs_handle_free(KvcfsHandle *handle);
/* What RELEASE and RELEASEDIR do: frees the handle and ends its writer or its prefetch. */
void kvcfs_handle_release(KvcfsHandle *handle);
/* At the end of the session: releases every handle whose RELEASE did not come. */
void kvcfs_handles_release_all(Kvcfs *fs);
static inline KvcfsHandle *
kvcfs_handle_of(const struct fuse_file_info *fi)
{
	return (KvcfsHandle *)(uintptr_t)fi->fh;
}
/*
 * Counts an open of the inode's file FD and returns the backing id to answer with (0: direct), or
 * -errno; -ESTALE: who has the inode open has another file, the name wants a new inode.
 * kvcfs_io_close() ends it.
 */
int kvcfs_io_open(KvcfsInode *inode, int fd);
void kvcfs_io_close(KvcfsInode *inode);

/* ---- fetch.c: requests that wait for a prefetch ---------------------------------------------- */

struct KvcfsFetch {
	Kvcfs *fs;
	KvcPrefetchHandle *handle; /* Atomic; NULL only before the submit returned */
	KvcfsPending *pending;
	int refs;     /* Atomic */
	int is_woken; /* Atomic */
	bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user);
	void *user;
};

/*
 * Submits PARAMS (its callbacks are set here) and keeps REQ (NULL: none) until the result is there,
 * or with ON_PLANNED until the lookup phase ended, at most until DEADLINE_NS. ANSWER is called
 * once; if it returns true it has kept the fetch (kvcfs_fetch_drop), else it is dropped afterwards.
 */
void kvcfs_fetch_start(Kvcfs *fs,
		       fuse_req_t req,
		       KvcPrefetchParams *params,
		       bool on_planned,
		       int64_t deadline_ns,
		       bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user),
		       void *user);
void kvcfs_fetch_drop(KvcfsFetch *fetch);
/* NULL only while the submit runs. */
static inline KvcPrefetchHandle *
kvcfs_fetch_handle(const KvcfsFetch *fetch)
{
	return __atomic_load_n(&fetch->handle, __ATOMIC_ACQUIRE);
}

/* The object of a fetch of one key, read-locked, if WHY says that it has come; else NULL. */
static inline KvcL1Object *
kvcfs_fetch_take_object(const KvcfsFetch *fetch, KvcfsWake why)
{
	return why == KVCFS_WAKE_DONE
		       ? kvc_prefetch_handle_take_object(kvcfs_fetch_handle(fetch), 0)
		       : NULL;
}

/* ---- prefix-dir.c ---------------------------------------------------------------------------- */

KvcfsChain *kvcfs_chain_new(void);
void kvcfs_chain_free(KvcfsChain *chain);
void kvcfs_chain_forget_keys_inode_locked(KvcfsInode *prefix, KvcfsInode *keys);
/* The PREFIX inode NAME of RANK (transfer full), or NULL when the index has no such chain. */
KvcfsInode *kvcfs_prefix_lookup(KvcfsInode *rank, const char *name);
int kvcfs_prefix_mkdir(KvcfsInode *rank, const char *name, mode_t mode, KvcfsInode **out);
int kvcfs_prefix_rmdir(KvcfsInode *rank, const char *name);
/* Is the chain in memory? If not, its load has begun. */
bool kvcfs_prefix_is_loaded(KvcfsInode *prefix);
/* Keeps REQ until the load has ended, at most until DEADLINE_NS. ANSWER as in kvcfs_pending_new().
 */
void kvcfs_prefix_wait(KvcfsInode *prefix,
		       fuse_req_t req,
		       int64_t deadline_ns,
		       void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		       void *user);
bool kvcfs_prefix_has(KvcfsInode *prefix, const KvcObjectKey *key);
bool kvcfs_prefix_has_locked(KvcfsInode *prefix, const KvcObjectKey *key);
/* A writer takes the next position, or joins one; later it commits or gives it up. */
void kvcfs_prefix_take_position_locked(KvcfsInode *prefix, KvcObjectKey *key);
void kvcfs_prefix_settle_position(KvcfsInode *prefix, KvcObjectKey *key, bool committed);
/* unlink(2) of an entry: 0 or -ENOENT. */
int kvcfs_prefix_unlink(KvcfsInode *prefix, const char *name);
/* The keys of the chain in order (transfer full). */
GPtrArray *kvcfs_prefix_keys(KvcfsInode *prefix);
/* The chain's text: a line a key. And its length, which is cheap. */
GString *kvcfs_prefix_text(KvcfsInode *prefix);
size_t kvcfs_prefix_text_len(KvcfsInode *prefix);
/* Is KEY an object of this mount? An empty file that somebody left in L2 is none. */
bool kvcfs_object_exists(Kvcfs *fs, KvcObjectKey *key);
bool kvcfs_prefix_shows_keys_file(KvcfsInode *prefix);
void kvcfs_prefix_clear(KvcfsInode *prefix, bool remove_keys_file);
/* Appends complete lines that have been checked. true: the save timer has to be armed. */
bool kvcfs_prefix_append_lines_locked(KvcfsInode *prefix, const char *text, size_t len);
/* A chain longer than this is refused (a line is at most 129 bytes). */
#define KVCFS_CHAIN_MAX_BYTES (64u << 20)
/* Replaces the chain by LINES as a whole, in one step: 0 or -EINVAL. */
int kvcfs_prefix_replace(KvcfsInode *prefix, const char *text, size_t len);
/* It has changed and stays in memory until saved. true: the timer has to be armed, without the
 * lock. */
bool kvcfs_prefix_mark_dirty_locked(KvcfsInode *prefix);
void kvcfs_prefix_arm_save_timer(Kvcfs *fs);
/*
 * Writes the chain to L1 (and so to L2) if it changed: 0 or -errno; -EAGAIN: it changed and what it
 * was before is not loaded yet. It is tried again by the timer.
 */
int kvcfs_prefix_save(KvcfsInode *prefix);
/* All that changed: 0 or the first -errno. */
int kvcfs_prefix_save_all(Kvcfs *fs);
/* The inode of .keys (transfer full). */
KvcfsInode *kvcfs_prefix_keys_inode(KvcfsInode *prefix);
/* Begins the held loads of every open prefix directory that has KEY. */
void kvcfs_prefix_start_loads(Kvcfs *fs, const KvcObjectKey *key);

/* ---- control.c ------------------------------------------------------------------------------- */

KvcfsInode *kvcfs_control_lookup(Kvcfs *fs, const char *name);
int kvcfs_control_count(void);
const char *kvcfs_control_name(int control);
mode_t kvcfs_control_mode(int control);
/* OPEN, answered here. */
void kvcfs_control_open(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi);
/* WRITE of paths, answered when all is done. */
void kvcfs_control_write(fuse_req_t req, KvcfsInode *inode, const char *data, size_t len);

/* ---- notify.c -------------------------------------------------------------------------------- */

KvcfsNotifier *kvcfs_notifier_new(Kvcfs *fs);
void kvcfs_notifier_free(KvcfsNotifier *notifier);
/* From the engine, any thread: KEY is in no tier any more. */
void kvcfs_notifier_key_lost(KvcfsNotifier *notifier, KvcObjectKey *key);

/* ---- kvcfs.c ------------------------------------------------------------------------------- */

extern const char *const kvcfs_stat_names[KVCFS_N_STATS];

/* ---- The operations, by file ------------------------------------------------------------------
 */

void kvcfs_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name);
void kvcfs_op_create(fuse_req_t req,
		     fuse_ino_t parent,
		     const char *name,
		     mode_t mode,
		     struct fuse_file_info *fi);
void kvcfs_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode);
void kvcfs_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name);
void kvcfs_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name);
void kvcfs_op_rename(fuse_req_t req,
		     fuse_ino_t parent,
		     const char *name,
		     fuse_ino_t new_parent,
		     const char *new_name,
		     unsigned flags);
void kvcfs_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kvcfs_op_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi);
void kvcfs_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void
kvcfs_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void kvcfs_op_write(fuse_req_t req,
		    fuse_ino_t ino,
		    const char *data,
		    size_t size,
		    off_t off,
		    struct fuse_file_info *fi);
void kvcfs_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kvcfs_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kvcfs_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi);
void kvcfs_op_fallocate(fuse_req_t req,
			fuse_ino_t ino,
			int mode,
			off_t offset,
			off_t length,
			struct fuse_file_info *fi);
void
kvcfs_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi);
void kvcfs_op_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void
kvcfs_op_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void kvcfs_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);

#endif
