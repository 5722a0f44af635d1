/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_INTERNAL_H
#define FS_INTERNAL_H

/*
 * What the files of fs/ share.
 *
 * Locks, outermost first: a staging's copy_lock (one copy is made of it), Kvcfs.save_lock (one
 * chain is written at a time), Kvcfs.names (the tree, the tables, reference counts, chains,
 * stagings), then an inode's io_lock (its opens and its backing id). The last two are held for
 * short work in memory only; engine functions that never block may be called under them, since the
 * engine's listeners take neither (they only post to the notifier; what says that a prefetch, a
 * flush or a listing has ended is called without locks). Nothing is answered under a
 * lock, and nothing is waited for but room in L1 under the first two.
 */

#include "fs/kvcfs.h"
#include "fs/loop.h"
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
	X(loads_unread, "Of these, those closed before anybody had read what they loaded")         \
	X(opens_stale, "Opens of a replaced file, answered with another look at its name")         \
	X(opens_missed, "Opens answered ENOENT: nowhere, lost on the way, or too late")            \
	X(creates, "Writers that created a file")                                                  \
	X(overwrites, "Committed objects opened for writing")                                      \
	X(overwrites_refused, "Overwrites refused: the caller is in another pid name space")       \
	X(overwrites_copied, "Of these, those copied at their first write")                        \
	X(creates_unreserved, "Creates without a reservation of their size: in direct mode")       \
	X(creates_no_room, "Creates refused because L1 is full of what may not go")                \
	X(writes_published, "Written files that became objects")                                   \
	X(writes_duplicate, "Written files dropped because the object existed already")            \
	X(writes_not_published_killed, "Written files whose writer was ended by a signal")         \
	X(writes_not_published_cut_off, "Written files whose writer ended while it had threads")   \
	X(writes_not_published_after_close, "Files written to after the last close of a writer")   \
	X(writes_not_published_replaced, "Versions that a later close had replaced")               \
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
	X(lookups, "Names that the kernel asked for")                                              \
	X(entries_with_attributes, "Names that it need not ask for: a listing told it")            \
	X(lookups_waited_commit, "Lookups that waited for a closed writer's commit")               \
	X(lookups_waited_commit_in_vain, "Of these, those that saw none: the descriptor lives on") \
	X(opens_waited_commit, "Opens that waited for a closed writer's commit")                   \
	X(changes_waited_commit, "Unlinks and renames that waited for a closed writer")            \
	X(lookups_asked_l2, "Lookups of unknown names asked of L2")                                \
	X(lookups_timed_out, "Of these, those answered ENOENT before L2 did")                      \
	X(checks, "Plain files and chains looked up in a shared L2 again, after --coherence")      \
	X(checks_stale, "Times these were served as known: L2 did not tell in --lookup-wait")      \
	X(listings_stale, "Directories listed as known: L2 did not tell in --lookup-wait")         \
	X(chains_saved, "Chains of prefix directories written to L1 and L2")                       \
	X(chains_save_failed, "Chains that could not be written (tried again)")                    \
	X(chains_load_failed, "Chains that could not be loaded in time")                           \
	X(directory_log_errors, "Failed tries to write or sync the log of directories")            \
	X(directory_log_corrupt, "Damaged records of the log of directories, left out")            \
	X(prefetches, "Paths written to .kvcache/prefetch, one write counted once")                \
	X(prefetch_objects, "Objects whose load was asked for by them")                            \
	X(prefetch_loaded, "Of these, those that are in L1 now")                                   \
	X(prefetch_failed, "Of these, those that could not be loaded, or not in time")             \
	X(prefetch_over_bound, "Objects left out because half of L1 was loaded by the write")      \
	X(readahead_requests, "Loads of entries ahead of one that was opened")                     \
	X(readahead_objects, "Entries in them")                                                    \
	X(readahead_loaded, "Of these, those that were loaded")                                    \
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
	KVCFS_DIR,    /* the root, a component of a model's name, a directory of plain files */
	KVCFS_RANK,   /* "@01000100" */
	KVCFS_PREFIX, /* a prefix directory */
	KVCFS_OBJECT, /* an object, or a file on its way to become one, or a temporary file */
	KVCFS_KEYS,   /* the .keys of a prefix directory */
	KVCFS_CONTROL_ROOT, /* .kvcache */
	KVCFS_CONTROL,	    /* a file in it */
} KvcfsKind;

typedef struct KvcfsInode KvcfsInode;
typedef struct KvcfsChain KvcfsChain;

/* A thread and its process, of a request; 0: not known, or not looked at. The numbers come again,
 * but not with the same start (kvcfs_writer_start). */
typedef struct KvcfsCaller {
	pid_t thread, process;
	uint64_t thread_start, process_start;
} KvcfsCaller;

/* Somebody has flushed what is one of these; its RELEASE is to come (commit-wait.c). */
typedef struct KvcfsClosing {
	struct KvcfsStaging *staging; /* its RELEASE would commit it */
	struct KvcfsHandle *keys;     /* KEYS_WRITE: its RELEASE would replace the chain */
	int64_t since_ns;	      /* when it last came to be in Kvcfs.closing; 0: never */
} KvcfsClosing;

/* A file that is being written, or a temporary one. Protected by names. */
typedef struct KvcfsStaging {
	/*
	 * Owned; NULL: a copy (of BASE) that nobody has written to yet, or with who commits it,
	 * and SEALED is what its file was then. Else never taken back.
	 */
	KvcL1Object *object;
	struct stat sealed;
	KvcL1Object *base;	   /* read-locked: the committed object it is a copy of, or NULL */
	pthread_mutex_t copy_lock; /* outermost: the copy is made once */
	KvcfsInode *dir;	   /* owned reference: a RANK or DIR, whose size hint it updates */
	/* Where it commits to: an object, and the prefix directory it was created in, if any. */
	KvcObjectKey *target; /* owned; NULL: temporary or unlinked */
	KvcfsInode *prefix;   /* owned reference or NULL */
	/* Where it is visible as a temporary file; NULL: not. */
	KvcfsInode *temp_dir; /* not owned: the directory's table owns this inode */
	char *temp_name;
	uint64_t sequence; /* order in listings */
	unsigned n_writers;
	/* Who sees it as a plain file before its commit (own-file.c). */
	KvcfsCaller owner;
	unsigned n_owner_opens;
	bool is_expected;    /* made for an OPEN that is to come: no writer yet */
	bool is_overwrite;   /* a committed object of this name was opened for writing */
	bool is_target_gone; /* its name was removed: nothing will be committed */
	bool is_declared_complete;
	bool is_direct;	     /* not passed through: a copy, or made without a reservation */
	int64_t flushed_ns;  /* the last FLUSH by a living writer; 0: none */
	int64_t named_ns;    /* CREATE under TARGET, or the rename to it */
	int64_t replaced_ns; /* order (staging.c) of the newest version committed beside it */
	/* When its name, or that in PREFIX, was removed: what was closed before does not bring it
	 * back. */
	int64_t removed_ns, entry_removed_ns;
	KvcfsClosing closing;
	int n_releases; /* of writers, that have begun */
	bool is_committing;
	bool is_given_up; /* a waiter has done so once */
	/* Of its reservation (reservation.c): what is a guess (0: nothing), what of that is not
	 * charged any more; the most that was asked for. */
	uint64_t guess_bytes, returned_bytes, asked_bytes;
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

/* What an inode was called before: others may be looking at it. */
typedef struct KvcfsRetired {
	struct KvcfsRetired *next;
	void *data;
	GDestroyNotify free_func;
} KvcfsRetired;

struct KvcfsInode {
	/* Immutable. */
	Kvcfs *fs;
	KvcfsKind kind;
	int control; /* CONTROL: index in the table of control.c */

	/* Changed by a rename under names; what they were stays alive with the inode. */
	uint64_t ino;
	KvcKeyScope *scope; /* RANK, PREFIX, KEYS; DIR: of its plain files. Owned */
	KvcfsInode *parent; /* owned reference; NULL for OBJECT and the root */
	char *name;	    /* in parent; for a DIR in its parent's encoded path */
	KvcObjectKey *key;  /* OBJECT: once committed; PREFIX: of its chain. Owned */
	KvcfsRetired *retired;

	/* Protected by names. */
	KvcfsInode *next, *prev; /* in Kvcfs.inodes */
	uint64_t refs;		 /* of the kernel (lookups) and of ours */
	bool is_unlinked;
	GHashTable *children; /* DIR: name -> inode (owned reference) */
	GHashTable *temps;    /* RANK, PREFIX, DIR: name -> inode (owned reference), or NULL */
	GHashTable *nlinks;   /* RANK: key -> references in loaded chains, or NULL */
	int64_t listed_ns;    /* RANK, DIR: when the last renewal of its listing that ended began */
	int64_t stale_ns;     /* RANK, DIR: when somebody last waited for one in vain */
	uint64_t last_bytes;  /* RANK, DIR: size of the last object written: the next reservation */
	KvcfsChain *chain;    /* PREFIX */
	KvcfsStaging *staging; /* OBJECT: not committed yet */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	/* Of an OBJECT once committed: a copy of what the engine said last (attr.c). */
	int64_t atime_ns, mtime_ns, ctime_ns; /* 0: none given */
	int64_t written_ns;		      /* staging: its last write when mtime_ns was given */
	KvcXattrs *xattrs; /* owned or NULL; of an OBJECT until it is committed */
	bool is_pinned;	   /* staging: to be pinned at its commit */
	KvcObjectKey *via; /* OBJECT: the chain of the prefix directory it was last looked up in */
	uint64_t told_bytes;	       /* OBJECT: the size that the kernel was last told */
	char *was_temp_name;	       /* OBJECT: the last temporary name that it lost, or NULL */
	const KvcfsInode *was_temp_in; /* in this directory; only to compare */

	/* Protected by io_lock. OBJECT only. */
	pthread_mutex_t io_lock;
	unsigned n_opens;
	int backing_id;		  /* of all opens; 0: direct */
	uint64_t open_bytes;	  /* the size of that, for stat when it is gone or replaced */
	KvcL1Object *open_object; /* what all opens have, read-locked by each; NULL: look at */
	ino_t open_file;	  /* its file: a staging's, or that of several objects */
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
	uint64_t l1_capacity_bytes, l1_overrun_bytes;
	int64_t start_ns;
	KvcfsPendings *pendings;
	KvcfsNotifier *notifier;
	struct KvcfsDirLog *dir_log; /* NULL: directories are forgotten */

	bool is_draining;	       /* Atomic */
	unsigned n_redirects;	       /* Atomic */
	size_t n_forgotten;	       /* Atomic: inodes, by the kernel */
	uint64_t scopes_version;       /* Atomic: moves when a scope became known */
	uint64_t stats[KVCFS_N_STATS]; /* Atomic */

	pthread_mutex_t save_lock; /* outermost: one chain is written at a time, in order */
	pthread_mutex_t names;
	/* Protected by names. */
	KvcfsInode *root;
	KvcfsInode *control_root;
	KvcfsInode *inodes;	 /* all there are */
	GHashTable *handles;	 /* all there are (a set) */
	GPtrArray *controls;	 /* the inodes of the control files, by index */
	GHashTable *dirs;	 /* scope -> RANK or DIR inode (not owned) */
	GHashTable *objects;	 /* key -> OBJECT inode (not owned) */
	GHashTable *renounced;	 /* set of OBJECT inodes that the kernel may have, not in objects */
	GHashTable *prefixes;	 /* key -> PREFIX inode (not owned) */
	GHashTable *closing;	 /* set of KvcfsClosing: flushed, RELEASE or commit to come */
	GHashTable *writing;	 /* key -> GPtrArray of stagings' inodes (not owned) */
	GHashTable *guesses;	 /* set of KvcfsStaging: those with a guess (reservation.c) */
	uint64_t guessed_bytes;	 /* of those, and of requests about to make one */
	uint64_t returned_bytes; /* of these: not charged any more */
	guint published_limit;	 /* beyond this size it is looked through for old ones */
	GHashTable *published;	 /* key -> when a plain file was; commit-wait.c's */
	guint checked_limit;	 /* as published_limit */
	GHashTable *checked;	 /* key -> coherence.c's */
	GHashTable *redirects;	 /* thread -> redirect.c's */
	GThreadPool *copier;	 /* see kvcfs_copy() */
	bool is_sweep_armed;	 /* a timer will look at the redirects */
	GPtrArray *held_dirs;	 /* of KvcfsHandle: opendirs whose loads have not begun */
	GPtrArray *open_prefixes; /* of KvcfsHandle: all open prefix directories */
	bool is_save_armed;	  /* a timer will save the changed chains */
	uint64_t scopes_seen;	  /* scopes_version of the last sync */
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
/* The inode number of an object or a prefix directory: those of directories are higher. */
uint64_t kvcfs_key_ino(const KvcObjectKey *key);
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
/* KEY is called NEW_KEY now, or is gone (NULL): with all inodes of it. */
void kvcfs_object_moved_locked(Kvcfs *fs, KvcObjectKey *key, KvcObjectKey *new_key);
/* Its key, as of now; alive as long as INODE is. Takes names. */
KvcObjectKey *kvcfs_inode_get_key(KvcfsInode *inode);
/* A rename: the new key or name; the old one stays alive. RETIRE frees DATA with the inode. */
void kvcfs_inode_set_key_locked(KvcfsInode *inode, KvcObjectKey *key);
void kvcfs_inode_set_name_locked(KvcfsInode *inode, const char *name);
void kvcfs_inode_retire_locked(KvcfsInode *inode, void *data, GDestroyNotify free_func);
/* Has the plain file that INODE was got another version, which is another inode? */
bool kvcfs_inode_is_replaced_locked(const KvcfsInode *inode);
/* May the kernel keep its name and attributes for a while? */
bool kvcfs_inode_is_lasting(KvcfsInode *inode);
/* Is DIR setgid? Then what is made there has its group, which is stored in GID. Without locks. */
bool kvcfs_inode_gives_group(KvcfsInode *dir, gid_t *gid);
/* Attributes: 0 or -ENOENT. Without locks. */
int kvcfs_inode_get_attr(KvcfsInode *inode, struct stat *st);
/* What the kernel is told of INODE under a name, and for how long: 0 or -ENOENT. Without locks. */
int kvcfs_inode_get_entry(KvcfsInode *inode, struct fuse_entry_param *entry);
/*
 * Answers a LOOKUP-like request with INODE and hands the caller's reference to the kernel, or gives
 * it back when the answer could not be delivered.
 */
void kvcfs_reply_entry(fuse_req_t req, KvcfsInode *inode);

/* ---- attr.c: mode, owner, times -------------------------------------------------------------- */

/* SETATTR of everything but the size, TO_SET as in FUSE. Without locks. */
void kvcfs_attr_set(KvcfsInode *inode, const struct stat *attr, int to_set);
/*
 * The key (transfer full) under which the engine has INODE's attributes, or NULL. What is set there
 * is to be set as well on the copies that will replace the object; INODE may be one that nobody has
 * written to. Without locks.
 */
KvcObjectKey *kvcfs_attr_engine_key(KvcfsInode *inode);
/* The mtime that a user gave a staging, unless BACKING was written to since: then 0. */
int64_t kvcfs_attr_given_mtime_locked(const KvcfsInode *inode, const struct stat *backing);
/* What INODE (a staging, a PREFIX) has goes with OBJECT, which is about to be committed. Without
 * names. */
void kvcfs_attr_give(KvcfsInode *inode, KvcL1Object *object);
/* INODE was committed as KEY: what could only be done now. */
void kvcfs_attr_settle_locked(KvcfsInode *inode, KvcObjectKey *key);
/* Keeps a copy of what the engine says of INODE. */
void kvcfs_attr_remember_locked(KvcfsInode *inode, const KvcObjectInfo *info);
/* A new PREFIX takes what its chain carries. */
void kvcfs_attr_remember_prefix_locked(KvcfsInode *prefix, const KvcObjectInfo *info);
/* INODE (committed) was opened for reading. */
void kvcfs_attr_note_open_locked(KvcfsInode *inode);

/* ---- dir-times.c ----------------------------------------------------------------------------- */

/* An entry of DIR was made or removed: now. */
void kvcfs_dir_changed_locked(KvcfsInode *dir);
void kvcfs_dir_changed(KvcfsInode *dir);
/* The kernel asks for DIR's attributes when it needs them next. Without locks. */
void kvcfs_dir_forget_attr(KvcfsInode *dir);
/* The file of ST is there, or will be at once: changes its directories. ST stays meanwhile. Without
 * locks. */
void kvcfs_dir_gets_entry(Kvcfs *fs, const KvcfsStaging *st);

/* ---- tree.c: directories above the objects -------------------------------------------------- */

/* The child directory of a DIR (transfer full), or NULL. Looks at what the engine knows by now. */
KvcfsInode *kvcfs_tree_lookup(KvcfsInode *dir, const char *name);
/* Does a directory hide the plain file NAME of DIR (left by others in L2)? */
bool kvcfs_tree_has_child(KvcfsInode *dir, const char *name);
/* The path of NAME in DIR, a DIR, below the root (transfer full). */
char *kvcfs_tree_path(const KvcfsInode *dir, const char *name);
/* CHILD, a DIR that has its new scope, becomes NEW_NAME in NEW_DIR, where nothing has that name. */
void kvcfs_tree_move_locked(KvcfsInode *child, KvcfsInode *new_dir, const char *new_name);
/* mkdir in a DIR: 0 and *OUT (transfer full), or -errno. */
int kvcfs_tree_mkdir(KvcfsInode *dir, const char *name, mode_t mode, KvcfsInode **out);
int kvcfs_tree_rmdir(KvcfsInode *dir, const char *name);
/* Could it be removed? */
bool kvcfs_tree_is_empty_locked(KvcfsInode *inode);
/* Takes CHILD, which is empty, out of DIR; its reference is the caller's. The log is not told. */
void kvcfs_tree_remove_locked(KvcfsInode *dir, KvcfsInode *child);
/* The RANK or DIR inode of SCOPE, not referenced; NULL when the tree does not have it. */
KvcfsInode *kvcfs_tree_find_dir_locked(Kvcfs *fs, KvcKeyScope *scope);
/* The path of a directory of the tree below the mount's root, "" for the root (transfer full). */
char *kvcfs_tree_path_of(const KvcfsInode *dir);
/* All children of a DIR, referenced (transfer full). */
GPtrArray *kvcfs_tree_list(KvcfsInode *dir);
/* All DIR and RANK inodes at or below INODE (one of them), referenced (transfer full). */
GPtrArray *kvcfs_tree_dirs_below(KvcfsInode *inode);
/* The inode of a directory path relative to the mount's root (transfer full), or NULL. For
 * control.c. */
KvcfsInode *kvcfs_tree_resolve(Kvcfs *fs, const char *const *components, size_t n);

/* ---- tree-log.c: directories that outlive the mount ------------------------------------------ */

/* Opens the log at PATH (NULL: none) as fs->dir_log; false with ERROR set. */
bool kvcfs_tree_open_log(Kvcfs *fs, const char *path, GError **error);
/* Makes what is in the log again. Before the session. */
void kvcfs_tree_restore(Kvcfs *fs);
/*
 * mkdir made the directory INODE; its mode or owner changed; it was removed. Then, without locks,
 * kvcfs_dir_log_settle() before the answer.
 */
void kvcfs_tree_remember_locked(KvcfsInode *inode);
void kvcfs_tree_update_locked(KvcfsInode *inode);
void kvcfs_tree_forget_locked(KvcfsInode *inode);

/* ---- coherence.c: what other mounts change in L2 --------------------------------------------- */

/* For how long, in seconds, may the kernel keep what it is told of KEY, if else for TIMEOUT? */
double kvcfs_coherence_limit(Kvcfs *fs, KvcObjectKey *key, double timeout);
/*
 * Is L2 to be asked before KEY, which is known, is served? If it is but has just not answered,
 * that is counted, and false. Without locks.
 */
bool kvcfs_coherence_is_due(Kvcfs *fs, KvcObjectKey *key);
/*
 * Asks for KEY and keeps REQ until L2 has told, at most for --lookup-wait. ANSWER as in
 * kvcfs_pending_new(); whatever WHY, unless INTERRUPT: KEY is to be served as it is known by then.
 */
void kvcfs_coherence_check(Kvcfs *fs,
			   fuse_req_t req,
			   KvcObjectKey *key,
			   void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
			   void *user);

/*
 * Is the listing of DIR, a RANK or DIR, to be renewed before it is shown? Not if somebody waited
 * for that in vain a moment ago: then it is shown as it is known, and counted.
 */
bool kvcfs_listing_is_due(KvcfsInode *dir);
/* It was not renewed in time: counted. */
void kvcfs_listing_note_stale(KvcfsInode *dir);
/*
 * Renews it, and keeps REQ until that is done, at most for --lookup-wait. ANSWER as in
 * kvcfs_pending_new(); whatever WHY, unless INTERRUPT: what is known by then is the listing.
 */
void kvcfs_listing_renew(KvcfsInode *dir,
			 fuse_req_t req,
			 void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
			 void *user);

/* ---- commit-wait.c: names whose writer has closed -------------------------------------------- */

/*
 * A writer has flushed. The end is, of a staging, its RELEASE, its commit or its own end; of a
 * handle that replaces a chain its RELEASE or another write.
 */
void kvcfs_closing_begin_locked(Kvcfs *fs, KvcfsClosing *closing);
void kvcfs_closing_end_locked(Kvcfs *fs, KvcfsClosing *closing);

/* The plain file KEY has a new version. Was that within the last second? */
void kvcfs_note_published_locked(Kvcfs *fs, const KvcObjectKey *key);
bool kvcfs_is_just_published_locked(Kvcfs *fs, const KvcObjectKey *key);

/* Writers of KEY, or of any object in SCOPE, or of the temporary file NAME in DIR (not owned), or
 * (also beside a SCOPE) who replaces the chain of PREFIX, and WITH_ENTRIES who adds to it; with
 * nothing set of any object or chain.
 */
typedef struct KvcfsClosingFilter {
	const KvcObjectKey *key;
	const KvcKeyScope *scope;
	const KvcfsInode *prefix;
	bool with_entries;
	KvcfsInode *dir;
	const char *name;
	int64_t before_ns; /* of those only who is before in kvcfs_staging_order(); 0: all */
} KvcfsClosingFilter;

/* Is such a writer closing, and worth waiting for? */
bool kvcfs_is_closing(Kvcfs *fs, const KvcfsClosingFilter *filter);
bool kvcfs_is_closing_locked(Kvcfs *fs, const KvcfsClosingFilter *filter);
/*
 * Waits until such writers as are closing now committed or gave up: 50 ms for a RELEASE (then the
 * answer is KVCFS_WAKE_TIMEOUT and nobody waits for that writer until its next FLUSH), and as long
 * as a commit takes. ANSWER is called once, possibly before this returns; what FILTER points to
 * stays alive until then.
 */
void kvcfs_wait_for_commit(Kvcfs *fs,
			   fuse_req_t req,
			   const KvcfsClosingFilter *filter,
			   void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
			   void *user);

/* ---- staging.c: from CREATE to the commit --------------------------------------------------- */

/* What a new staging file is made of. */
typedef struct KvcfsStagingParams {
	KvcfsInode *dir; /* whose size hint it follows: RANK or DIR */
	mode_t mode;
	uid_t uid;
	gid_t gid;
	KvcfsCaller owner;
	KvcL1Object *object; /* taken; NULL: a copy to be (overwrite.c) */
	uint64_t guess_bytes;
	bool is_direct, is_expected, is_overwrite;
} KvcfsStagingParams;

/* A new inode (transfer full), with one writer unless one is expected. */
KvcfsInode *kvcfs_staging_new_locked(const KvcfsStagingParams *params);
/* It will be committed as KEY; as NAME in DIR, where a prefix gives it a position. true: a writer
 * still has it open and will commit it. */
void kvcfs_staging_set_target_locked(KvcfsInode *inode, KvcObjectKey *key);
bool kvcfs_staging_set_name_locked(KvcfsInode *inode, KvcfsInode *dir, const char *name);
/*
 * CREATE of NAME in DIR (RANK, PREFIX or DIR), an object's or temporary: 0 and *OUT (transfer full)
 * with one writer more, a new file or, without O_TRUNC, the temporary one that is there. -errno;
 * FLAGS of open(2).
 */
int kvcfs_staging_create(KvcfsInode *dir,
			 const char *name,
			 const struct fuse_ctx *ctx,
			 mode_t mode,
			 int flags,
			 KvcfsInode **out);
/* One more writer: 0, or -EROFS when INODE is no staging, or is being committed. */
int kvcfs_staging_join(KvcfsInode *inode);
/*
 * An open with O_TRUNC does not join a temporary file: the name means a new file, the old one is as
 * after unlink. 1: *OUT (transfer full) is the new one, *DIR (transfer full) and *NAME where it is;
 * 0: INODE has no temporary name; -errno.
 */
int kvcfs_staging_displace(KvcfsInode *inode, KvcfsInode **out, KvcfsInode **dir, char **name);
/* Is somebody writing a file that will be KEY? */
bool kvcfs_is_being_written_locked(Kvcfs *fs, const KvcObjectKey *key);
/* Their inodes in the order in which they got the name (not owned), or NULL. */
GPtrArray *kvcfs_staging_writers_locked(Kvcfs *fs, const KvcObjectKey *key);
/* INODE, which has a target, has lost that name: its last close drops it. */
void kvcfs_staging_lose_name_locked(KvcfsInode *inode);
/* INODE, which has a target, will be committed as KEY instead. */
void kvcfs_staging_retarget_locked(KvcfsInode *inode, KvcObjectKey *key);
/* KEY was removed: who was overwriting it writes into a file without a name. */
void kvcfs_staging_object_removed_locked(Kvcfs *fs, const KvcObjectKey *key);
/*
 * unlink(2) of KEY in PREFIX, or (NULL) of the object: files of the name that were closed before,
 * and whose RELEASE is still to come, do not bring it back.
 */
void
kvcfs_staging_name_removed_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsInode *prefix);
/* A rename: who was overwriting the object, or writes into the directory, writes there now. */
void kvcfs_staging_object_moved_locked(Kvcfs *fs, KvcObjectKey *old_key, KvcObjectKey *new_key);
void kvcfs_staging_scope_moved_locked(Kvcfs *fs, KvcKeyScope *old_scope, KvcKeyScope *scope);
/* Is it a copy of a committed object (made, or to be made at the first write)? */
bool kvcfs_staging_is_copy(KvcfsInode *inode);
/* The file to read; -1: none. Stays open as long as the caller's handle is a writer. */
int kvcfs_staging_get_fd(KvcfsInode *inode);
/* FLUSH by thread TID: 0, or -errno for close(). */
int kvcfs_staging_flush(KvcfsInode *inode, pid_t tid);
/* close(2) returns only now: who asks for the name waits for the RELEASE from here on. */
void kvcfs_staging_renew_flush(KvcfsInode *inode);
/* It is complete as it is, by its owner's word (truncate(2)). */
void kvcfs_staging_declare_complete(KvcfsInode *inode);
/*
 * When ST became a version of its name, in ns: with its last close, or a rename after that. Of a
 * plain file the last one is it, of a hash the first. Locks: names.
 */
int64_t kvcfs_staging_order(const KvcfsStaging *st);
/*
 * The end of one writer; the last one commits or drops, of a hash after those that were closed
 * before it: then possibly later, in another thread.
 */
void kvcfs_staging_release_writer(KvcfsInode *inode);
/* A RELEASE of a writer begins (1), or ends (-1). */
void kvcfs_staging_count_release(KvcfsInode *inode, int change);
/* The end of a staging without writers that has a target: an object, or nothing. 0 or -errno. */
int kvcfs_staging_commit(KvcfsInode *inode);
/* SETATTR size, FALLOCATE: 0 or -errno. */
int kvcfs_staging_set_size(KvcfsInode *inode, uint64_t bytes);
int kvcfs_staging_reserve(KvcfsInode *inode, uint64_t bytes);
/* Gives the memory of a temporary file without name, writers and opens back. */
void kvcfs_staging_drop_if_idle(KvcfsInode *inode);
/* Frees what a dying inode still has; from inode.c, without locks. */
void kvcfs_staging_free(KvcfsInode *inode);

/* ---- own-file.c: who sees a plain file before its commit ------------------------------------- */

/* Who will see the file NAME that TID makes in DIR by an open with FLAGS. Without locks. */
KvcfsCaller kvcfs_own_file_maker(const KvcfsInode *dir, const char *name, pid_t tid, int flags);
/* TID, looked at as far as it matters for KEY and OTHER (NULL: none). Without locks. */
KvcfsCaller
kvcfs_own_file_caller(Kvcfs *fs, const KvcObjectKey *key, const KvcObjectKey *other, pid_t tid);
/* TID has opened INODE for writing, or closed it. */
void kvcfs_own_file_opened(KvcfsInode *inode, pid_t tid);
void kvcfs_own_file_closed_locked(KvcfsStaging *st, pid_t tid);
/* CALLER's file that will be KEY, the youngest (not referenced), or NULL. */
KvcfsInode *
kvcfs_own_file_find_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsCaller *caller);
/* CALLER removes the name KEY, or gives it to another file: true: it had such a file. */
bool kvcfs_own_file_unlink_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsCaller *caller);
/* CALLER renames its file INODE, and may. */
void
kvcfs_own_file_rename_locked(KvcfsInode *inode, KvcObjectKey *new_key, const KvcfsCaller *caller);

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
/* May the file INODE have BYTES? 0, or -EFBIG, which is logged with its name. Takes names. */
int kvcfs_write_proof_check_size(KvcfsInode *inode, uint64_t bytes);
/* ---- temp-names.c -----------------------------------------------------------------------------
 */

KvcfsInode *kvcfs_temp_lookup_locked(KvcfsInode *dir, const char *name);
bool kvcfs_temp_exists(KvcfsInode *dir, const char *name);
/* Gives INODE, a staging, a name; returns whom it displaces, for kvcfs_temp_forget(). */
KvcfsInode *kvcfs_temp_add_locked(KvcfsInode *dir, const char *name, KvcfsInode *inode);
/* INODE (transfer full) has lost its name. Without locks. */
void kvcfs_temp_forget(KvcfsInode *inode);
/* unlink(2) of a temporary file: 0 or -ENOENT. */
int kvcfs_temp_unlink(KvcfsInode *dir, const char *name);
/* rename(2) by TID of the temporary file NAME in DIR to NEW_NAME in NEW_DIR: 0 or -errno. */
int kvcfs_temp_rename(KvcfsInode *dir,
		      const char *name,
		      KvcfsInode *new_dir,
		      const char *new_name,
		      unsigned flags,
		      pid_t tid);

/* ---- rename.c ----------------------------------------------------------------------------------
 */

/* OLD_KEY is NEW_KEY in the engine and in our tables: 0 or -errno. FLAGS: KvcRenameFlags. */
int kvcfs_move_key_locked(Kvcfs *fs, KvcObjectKey *old_key, KvcObjectKey *new_key, unsigned flags);

/* ---- redirect.c: an OPEN that needs another inode than the one the kernel found -------------- */

/*
 * The LOOKUPs of thread TID for KEY, or for the temporary file NAME in DIR, are answered with INODE
 * (its reference is taken) until kvcfs_redirect_take(), or for five seconds. One a thread.
 */
void kvcfs_redirect_object(Kvcfs *fs, pid_t tid, KvcObjectKey *key, KvcfsInode *inode);
/*
 * The same, TID wants to write what it has found as ORIGIN. Should that have lost the name, the
 * LOOKUP is answered by kvcfs_redirect_found(); TRUNCATES: the copy is empty.
 */
void kvcfs_redirect_writer(
	Kvcfs *fs, pid_t tid, KvcfsInode *origin, bool truncates, KvcfsInode *private);
void
kvcfs_redirect_temp(Kvcfs *fs, pid_t tid, KvcfsInode *dir, const char *name, KvcfsInode *inode);
/* The inode that TID is redirected to (transfer full), or NULL. */
KvcfsInode *kvcfs_redirect_lookup(KvcfsInode *dir, const char *name, pid_t tid);
/*
 * The LOOKUP of TID for KEY has found it, or not. An OPEN of it could come too late again, and
 * cannot be answered ESTALE again: so who wants to write it gets a private inode (transfer full) at
 * once; NULL: it was not redirected for that.
 */
KvcfsInode *kvcfs_redirect_found(Kvcfs *fs, KvcObjectKey *key, pid_t tid);
void kvcfs_redirect_not_found(Kvcfs *fs, const KvcObjectKey *key, pid_t tid);
/* TID makes KEY: what it was redirected for is over. */
void kvcfs_redirect_created(Kvcfs *fs, const KvcObjectKey *key, pid_t tid);
/*
 * The same for the LOOKUP of the temporary file NAME in DIR. Who truncates it gets a fresh one
 * (transfer full) in its place.
 */
KvcfsInode *kvcfs_redirect_found_temp(KvcfsInode *dir, const char *name, pid_t tid);
void kvcfs_redirect_created_temp(KvcfsInode *dir, const char *name, pid_t tid);
/* TID has arrived at INODE: true if it was redirected there; that is over then. */
bool kvcfs_redirect_take(KvcfsInode *inode, pid_t tid);
/* May an open of KEY by TID still be answered ESTALE? The kernel repeats a walk only once. */
bool kvcfs_redirect_retry_once(Kvcfs *fs, pid_t tid, KvcObjectKey *key);
/* The same for an open for writing of INODE, which has been removed; its next LOOKUP as above. */
bool kvcfs_redirect_retry_writer(Kvcfs *fs, pid_t tid, KvcfsInode *inode, bool truncates);
/* The same for INODE that was a temporary file, and is nothing any more, or being committed. */
bool kvcfs_redirect_retry_temp(Kvcfs *fs, pid_t tid, KvcfsInode *inode, bool truncates);
/* An open of KEY by TID succeeded: the next one may retry again. */
void kvcfs_redirect_forget_retry(Kvcfs *fs, pid_t tid, const KvcObjectKey *key);
/* A LOOKUP of TID is answered with INODE: if that is its one retry, the OPEN that follows gets this
 * version. */
void kvcfs_redirect_keep_found(KvcfsInode *inode, pid_t tid);
/* The read lock on the version that the LOOKUP of TID's retry found as INODE (transfer full), or
 * NULL: there is none, it is in L2 only, or the kernel was told of another one. */
KvcL1Object *kvcfs_redirect_take_found(KvcfsInode *inode, pid_t tid);
/* At the end of the session. */
void kvcfs_redirects_drop_all(Kvcfs *fs);

/* ---- overwrite.c: writing what is committed ---------------------------------------------------
 */

/*
 * A private inode for a writer of the committed INODE: 0 and *OUT (transfer full), or -errno. With
 * TRUNCATE an empty staging file, else a copy that is made at the first write; only plain files are
 * written so, the others answer EROFS then.
 */
int kvcfs_overwrite_begin(KvcfsInode *inode, bool truncate, KvcfsInode **out);
/*
 * Calls DONE once the committed object that the private INODE is a copy of is read-locked in L1, or
 * with -errno. REQ is kept meanwhile, at most for the load timeout.
 */
void kvcfs_overwrite_load(fuse_req_t req,
			  KvcfsInode *inode,
			  void (*done)(fuse_req_t req, int error, void *user),
			  void *user);
/* Makes the copy if there is none: 0 or -errno. The caller is one of its writers. */
int kvcfs_overwrite_copy(KvcfsInode *inode, uint64_t bytes);
/* truncate(2): the private INODE gets the size BYTES and is committed: 0 or -errno. After
 * kvcfs_overwrite_load(). */
int kvcfs_overwrite_truncate(KvcfsInode *inode, uint64_t bytes);

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
	KvcLockOwner opener; /* owns that lock */
	int fd;		     /* READ and WRITE of a staging inode: its file (owned); else -1 */
	bool is_counted;     /* in the inode's n_opens */
	bool has_loaded;     /* READ: its open waited for the load, and reads can be seen */
	/* TEXT: what is read; KEYS_WRITE: the line that is not complete yet, or the replacement. */
	GString *text;
	uint64_t write_offset; /* KEYS_WRITE: where the next write must be, unless O_APPEND */
	bool is_replacing;     /* KEYS_WRITE: by O_TRUNC or ftruncate, by the last close */
	bool has_failed;       /* KEYS_WRITE: a write was refused, or a writer killed */
	KvcfsClosing closing;  /* KEYS_WRITE */
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
/* OBJECT, and the caller's read lock on it, is HANDLE's instead of what it has. */
void kvcfs_handle_take_object(KvcfsHandle *handle, KvcL1Object *object);
/* What RELEASE and RELEASEDIR do: frees the handle and ends its writer or its prefetch. */
void kvcfs_handle_release(KvcfsHandle *handle);
/* At the end of the session: releases every handle whose RELEASE did not come. */
void kvcfs_handles_release_all(Kvcfs *fs);
/* ftruncate(0) on HANDLE, a KEYS_WRITE: what is written from here on replaces the chain at its
 * close. Without names. */
void kvcfs_keys_begin_replacement(KvcfsHandle *handle);
/* The last close of HANDLE, a KEYS_WRITE: what it has replaces the chain. Without names. */
void kvcfs_keys_release(KvcfsHandle *handle);
static inline KvcfsHandle *
kvcfs_handle_of(const struct fuse_file_info *fi)
{
	return (KvcfsHandle *)(uintptr_t)fi->fh;
}
/*
 * Counts an open of the inode's file FD (of OBJECT, read-locked by the caller's handle; NULL: a
 * staging's) and returns the backing id to answer with (0: direct), or -errno; -ESTALE: the inode
 * is open with another file. kvcfs_io_close() ends it.
 */
int kvcfs_io_open(KvcfsInode *inode, int fd, KvcL1Object *object, bool is_direct);
void kvcfs_io_close(KvcfsInode *inode);
/* One more read lock on what the opens of INODE have (give back with finish_read), or NULL. */
KvcL1Object *kvcfs_io_lock_again(KvcfsInode *inode);

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
/* The same for one object that is to be loaded for an OPEN. */
void
kvcfs_fetch_object(Kvcfs *fs,
		   fuse_req_t req,
		   KvcObjectKey *key,
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
/* The inode of a prefix directory goes: what the kernel asks for again is read again. */
void kvcfs_chain_uncount_locked(KvcfsInode *prefix);
/* The mtime of its .keys, in ns since the epoch. */
void kvcfs_chain_set_time_locked(KvcfsInode *prefix, int64_t mtime_ns);
/* The PREFIX inode NAME of RANK (transfer full), or NULL when the index has no such chain. */
KvcfsInode *kvcfs_prefix_lookup(KvcfsInode *rank, const char *name);
int kvcfs_prefix_mkdir(KvcfsInode *rank, const char *name, mode_t mode, KvcfsInode **out);
int kvcfs_prefix_rmdir(KvcfsInode *rank, const char *name);
int kvcfs_prefix_rename(KvcfsInode *rank, const char *name, const char *new_name, unsigned flags);
/* Is the chain in memory? If not, its load has begun. */
bool kvcfs_prefix_is_loaded(KvcfsInode *prefix);
/* Keeps REQ until the load has ended, at most until DEADLINE_NS. ANSWER as in kvcfs_pending_new().
 */
void kvcfs_prefix_wait(KvcfsInode *prefix,
		       fuse_req_t req,
		       int64_t deadline_ns,
		       void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		       void *user);
/* Is L2 to be asked (kvcfs_coherence_check) whether another mount has changed the chain? */
bool kvcfs_prefix_is_check_due(KvcfsInode *prefix);
/* It was asked: a chain that has changed is to be loaded again. False: the directory is gone. */
bool kvcfs_prefix_renew(KvcfsInode *prefix);
/* What is stored is the chain as it is in memory. */
void kvcfs_prefix_note_version_locked(KvcfsInode *prefix);
bool kvcfs_prefix_has(KvcfsInode *prefix, const KvcObjectKey *key);
bool kvcfs_prefix_has_locked(KvcfsInode *prefix, const KvcObjectKey *key);
/* A writer takes the next position, or joins one; later it commits or gives it up. */
void kvcfs_prefix_take_position_locked(KvcfsInode *prefix, KvcObjectKey *key);
void kvcfs_prefix_settle_position(KvcfsInode *prefix, KvcObjectKey *key, bool committed);
/* Appends the object KEY: 0, -EEXIST, -ENOSPC or -ENOENT (the directory is gone). In link.c. */
int kvcfs_prefix_link(KvcfsInode *prefix, KvcObjectKey *key);
/* unlink(2) of an entry: 0 or -ENOENT. */
int kvcfs_prefix_unlink(KvcfsInode *prefix, const char *name);
/* The keys of the chain in order (transfer full). */
GPtrArray *kvcfs_prefix_keys(KvcfsInode *prefix);
/* Those before the first place that a writer only holds: what a listing may show. */
GPtrArray *kvcfs_prefix_run(KvcfsInode *prefix);
/* The chain's text: a line a key. And its length, which is cheap. */
GString *kvcfs_prefix_text(KvcfsInode *prefix);
size_t kvcfs_prefix_text_len(KvcfsInode *prefix);
/* Is KEY an object of this mount? An empty file that somebody left under a hash in L2 is none. */
bool kvcfs_object_exists(Kvcfs *fs, KvcObjectKey *key);
/* Is KEY a name in DIR: a prefix directory has those of its chain, others all of their scope. */
bool kvcfs_dir_names(KvcfsInode *dir, const KvcObjectKey *key);
/* And is there such an object? */
bool kvcfs_dir_has_object(KvcfsInode *dir, KvcObjectKey *key);
bool kvcfs_prefix_shows_keys_file(KvcfsInode *prefix);
/* Somebody has removed .keys, or made it again: known until the unmount. */
void kvcfs_prefix_set_keys_file_locked(KvcfsInode *prefix, bool exists);
/* Thread TID, which began at START, has just made PREFIX: it does not see .keys until it was
 * written, or listed by TID. */
void kvcfs_prefix_set_maker_locked(KvcfsInode *prefix, pid_t tid, uint64_t start);
/* Is TID that thread? Takes names. */
bool kvcfs_prefix_hides_keys_file(KvcfsInode *prefix, pid_t tid);
void kvcfs_prefix_was_listed(KvcfsInode *prefix, pid_t tid);
void kvcfs_prefix_clear(KvcfsInode *prefix, bool remove_keys_file);
/* A CREATE of .keys, which its maker did not see, or which was removed: it is there. */
void kvcfs_prefix_keys_created(KvcfsInode *prefix);
/* Appends complete lines that have been checked; nothing to a directory that is gone. true: the
 * save timer has to be armed. */
bool kvcfs_prefix_append_lines_locked(KvcfsInode *prefix, const char *text, size_t len);
/* A chain longer than this is refused (a line is at most 129 bytes). */
#define KVCFS_CHAIN_MAX_BYTES (64u << 20)
/* May DIR get another entry? All but a PREFIX with such a chain. */
bool kvcfs_dir_has_room_locked(const KvcfsInode *dir);
/* Replaces the chain by LINES as a whole, in one step: 0, -EINVAL or -ENOENT. */
int kvcfs_prefix_replace(KvcfsInode *prefix, const char *text, size_t len);
/* The same for lines that have been checked. true: the save timer has to be armed. */
bool kvcfs_prefix_replace_locked(KvcfsInode *prefix, const char *text, size_t len);
/* It stays in memory until saved. true: the timer has to be armed, without the lock. */
bool kvcfs_prefix_mark_dirty_locked(KvcfsInode *prefix);
/* The same, for who has changed it: the times of PREFIX and its .keys are now. */
bool kvcfs_prefix_changed_locked(KvcfsInode *prefix);
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

/* ---- flush-wait.c ---------------------------------------------------------------------------- */

typedef struct KvcfsFlushWait KvcfsFlushWait;

/*
 * REQ is answered with REPLY once kvcfs_flush_wait_done() was called N times (at least 1) for what
 * this returns: ERROR is 0 or the -errno of one that failed, -EIO at the deadline. It must not be
 * touched after the last call. The calls may come from any thread.
 */
KvcfsFlushWait *kvcfs_flush_wait_new(Kvcfs *fs,
				     fuse_req_t req,
				     unsigned n,
				     void (*reply)(fuse_req_t req, int error, size_t size),
				     size_t size);
/* One flush ended; USER is the KvcfsFlushWait. -ENOENT is no error. */
void kvcfs_flush_wait_done(void *user, int error);

/* ---- control.c ------------------------------------------------------------------------------- */

bool kvcfs_is_control_root(const KvcfsInode *dir, const char *name);
KvcfsInode *kvcfs_control_lookup(Kvcfs *fs, const char *name);
int kvcfs_control_count(void);
const char *kvcfs_control_name(int control);
mode_t kvcfs_control_mode(int control);
/* OPEN, answered here. */
void kvcfs_control_open(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi);
/* WRITE of paths, answered when all is done. */
void kvcfs_control_write(fuse_req_t req, KvcfsInode *inode, const char *data, size_t len);

/* control-prefetch.c: loads KEYS into L1 without locking them, then answers the write of SIZE. */
void kvcfs_control_act_prefetch(fuse_req_t req, Kvcfs *fs, GPtrArray *keys, size_t size);

/* ---- readahead.c ----------------------------------------------------------------------------- */

/* A name of DIR was resolved to the object INODE: where an open of it comes from. */
void kvcfs_readahead_note_locked(KvcfsInode *inode, KvcfsInode *dir);
/* INODE is opened for reading: begins to load what follows it in its prefix directory. */
void kvcfs_readahead(KvcfsInode *inode);

/* ---- notify.c -------------------------------------------------------------------------------- */

KvcfsNotifier *kvcfs_notifier_new(Kvcfs *fs);
void kvcfs_notifier_free(KvcfsNotifier *notifier);
/* From the engine, any thread: KEY is in no tier any more. */
void kvcfs_notifier_key_lost(KvcfsNotifier *notifier, KvcObjectKey *key);
/* Nor does DIR, a prefix directory, have the name of KEY any more. As above. */
void kvcfs_notifier_entry_lost_locked(KvcfsNotifier *notifier, KvcfsInode *dir, KvcObjectKey *key);
/* This thread removes KEY for a request of the kernel, which needs no word of it. NULL: the end. */
void kvcfs_notifier_set_own(const KvcObjectKey *key);

/* ---- kvcfs.c ------------------------------------------------------------------------------- */

extern const char *const kvcfs_stat_names[KVCFS_N_STATS];

/* RUN(USER) in a thread of its own, as it may copy. Any thread; never blocks; until
 * kvcfs_end_session() has returned, which waits for it. */
void kvcfs_copy(Kvcfs *fs, void (*run)(void *user), void *user);

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
void kvcfs_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name);
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
void kvcfs_op_readdirplus(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi);
void kvcfs_op_releasedir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi);
void kvcfs_op_setxattr(fuse_req_t req,
		       fuse_ino_t ino,
		       const char *name,
		       const char *value,
		       size_t size,
		       int flags);
void kvcfs_op_getxattr(fuse_req_t req, fuse_ino_t ino, const char *name, size_t size);
void kvcfs_op_listxattr(fuse_req_t req, fuse_ino_t ino, size_t size);
void kvcfs_op_removexattr(fuse_req_t req, fuse_ino_t ino, const char *name);

#endif
