/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_FS_FS_H
#define ADAPTERS_FS_FS_H

/*
 * Private to the adapter: see README.md for what it does and how the files fit together.
 *
 * Threads: submits and queries come from the engine. A pool of workers does what blocks shortly
 * (open, xattrs, rename, CRC), a second small pool does lookups so that they never wait for those,
 * the ring of KvcIo moves payload. A job goes worker -> ring -> worker.
 */

#include <kvcache/failures.h>
#include <kvcache/io.h>
#include <kvcache/pool.h>
#include <kvcache/task-board.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/stat.h>

/* At most so many objects of one class (loads, stores) have a file open. */
#define FS_JOBS_MAX 128
#define FS_LOOKUP_THREADS 2

typedef struct FsAdapter FsAdapter;

/* fs-names.c */

#define FS_TEMP_PREFIX ".kvcfs."
#define FS_TEMP_SUFFIX ".tmp"
#define FS_PREFIX_DIR "prefix"
#define FS_PLAIN_DIR "plain"

typedef enum {
	FS_LAYOUT_LMCACHE,
	FS_LAYOUT_NIXL_DYNAMIC,
} FsLayout;

/* The path of KEY below base_path (transfer full); a digest name when no other is fit for a file.
 */
char *fs_path_format(const FsAdapter *fs, const KvcObjectKey *key);
/*
 * The I-th of the paths where KEY may be instead, in the order in which they are looked at
 * (transfer full), or NULL: there are no more. With or without shard_dirs; as older versions of
 * LMCache named it.
 */
char *fs_path_format_other(const FsAdapter *fs, const KvcObjectKey *key, unsigned i);
/* The key whose file has PATH (transfer full), or NULL. Not of a digest name: that needs the file.
 */
KvcObjectKey *fs_path_parse(const FsAdapter *fs, const char *path);
/* May NAME be one of the two directories above a file with shard_dirs? */
bool fs_is_shard_name(const char *name);
/* A name that nobody else uses, in relative_tmp_dir or the directory of PATH (transfer full). */
char *fs_temp_path_new(const FsAdapter *fs, const char *path);
/* Is NAME one of ours? *PID gets the process that made it. */
bool fs_temp_name_parse(const char *name, int *pid);

/* fs-nixl.c: the names of LMCache's nixl_store_dynamic */

/* Of a chunk (transfer full), or NULL: it would be read back as another key. Of any length. */
char *fs_nixl_name_format(const KvcObjectKey *key);
/* The key (transfer full), or NULL. Also of names that are not what the function above returns. */
KvcObjectKey *fs_nixl_name_parse(const char *name);

/* fs-digest.c: files named after the digest of their key, which has no other path */

char *fs_digest_name_format(const KvcObjectKey *key);
bool fs_is_digest_name(const char *path);
/*
 * Does the file PATH hold what is stored under KEY? Of a digest name its xattr tells, every other
 * name tells by itself. FD: the file when it is open, else -1. 0, ENOENT: no, or a positive errno.
 */
int fs_digest_check(FsAdapter *fs, const KvcObjectKey *key, const char *path, int fd);
/* The key of the file NAME (transfer full), or NULL: foreign; *ERRNUM: it cannot be read. */
KvcObjectKey *fs_digest_read_key(FsAdapter *fs, const char *name, int *errnum);
/* 0 or -errno; -ENOTSUP, -ENAMETOOLONG: no file here can carry this key. */
int fs_digest_write_key(FsAdapter *fs, int fd, const KvcObjectKey *key);
int fs_digest_remove_key(int fd);
/* Did writing the file PATH fail with RC because of its key? */
bool fs_digest_is_keys_fault(const char *path, int rc);

/* fs-id.c: the xattr that says which key a file was written for */

#define FS_ID_XATTR "user.kvcache.id"
/* Room for its text: two ids, and one byte for what is longer than any of ours. */
#define FS_ID_MAX_BYTES 35

/* A file on its way to another key. */
typedef struct FsMove {
	KvcObjectKey *old_key, *new_key;
	const char *from, *to; /* paths below base_path */
} FsMove;

/* Does TEXT, the value of the xattr, name KEY? */
bool fs_id_names(const char *text, const KvcObjectKey *key);
/* Does FILE, a path for calls that take no directory, say that it is another key's than KEY? */
bool fs_id_is_others(const char *file, const KvcObjectKey *key);
/* Does PATH? Then it is counted and logged. ST is renewed when the file was replaced since. */
bool fs_is_others(FsAdapter *fs, const KvcObjectKey *key, const char *path, struct stat *st);
/* PATH is a miss because of it: counted, logged. */
void fs_id_reject(FsAdapter *fs, const char *path);
/* 0 or -errno. */
int fs_id_write(int fd, const KvcObjectKey *key);
/*
 * Before the file moves: from here on it names both keys, or none. 1: it named the old one, 0:
 * none, or -errno, then it must not move.
 */
int fs_id_begin_move(FsAdapter *fs, const FsMove *move);
/* After that (HAD_ID: what begin said): the file names the key that it is under now. */
void fs_id_end_move(FsAdapter *fs, const FsMove *move, bool had_id, bool is_moved);

/* fs-dirs.c: directories below plain/ and prefix/ */

/* How often one that was just made may be gone again before it is somebody's fault. */
#define FS_RACES_MAX 64

/* Makes the directories of PATH. 0 or -errno; -ENOENT: another one removes them, try again. */
int fs_make_parents(FsAdapter *fs, const char *path);
/* Removes those directories of PATH below plain/ and prefix/ that are empty. */
void fs_prune_parents(FsAdapter *fs, const char *path);
/*
 * With fsync: the names that came and went in the directories above PATH are on stable storage.
 * Those that are gone do not matter. 0 or -errno. Blocks.
 */
int fs_sync_parents(FsAdapter *fs, const char *path);
/* Renames a file, makes the directories it needs, removes empty ones in its way. 0 or -errno. */
int fs_move(FsAdapter *fs, const char *from, const char *to);

/*
 * fs-capacity.c: the limit of max_capacity_gb. Any thread; does nothing with NULL, which is without
 * one.
 */
typedef struct FsCapacity FsCapacity;

FsCapacity *fs_capacity_new(FsAdapter *fs, uint64_t max_bytes);
void fs_capacity_free(FsCapacity *c);
/* The file of KEY has so many bytes, and was used just now. */
void fs_capacity_note(FsCapacity *c, KvcObjectKey *key, uint64_t bytes);
/* It was used, if it is there. */
void fs_capacity_touch(FsCapacity *c, const KvcObjectKey *key);
/* It is not there any more. */
void fs_capacity_forget(FsCapacity *c, KvcObjectKey *key);
/* Replaces what is used, and bounds the capacity. Never blocks. */
void fs_capacity_get_usage(FsCapacity *c, KvcL2Usage *usage);
/*
 * Evicts until there is room for so many bytes, and takes it. 0; -EAGAIN: WORK, the store, is run
 * again when another one has ended; -ENOSPC. Blocks.
 */
int fs_capacity_reserve(FsCapacity *c, uint64_t bytes, KvcWork *work);
/* What was reserved is what KEY has now. */
void fs_capacity_settle(FsCapacity *c, KvcObjectKey *key, uint64_t bytes);
/* The store that had got room is over; so many BYTES of it were not settled. */
void fs_capacity_release(FsCapacity *c, uint64_t bytes);
/* The file system is full: evicts so many bytes. false: it could not. Blocks. */
bool fs_capacity_free_bytes(FsCapacity *c, uint64_t bytes);
/* true: WORK, a store, waits until the directory was counted, and is then run again. */
bool fs_capacity_await_count(FsCapacity *c, KvcWork *work);
/* Counts the directory and evicts what is beyond the limit, once. Blocks for long. */
void fs_capacity_count(FsCapacity *c);

/* fs-keys.c: what is going on with each key. All of it may be called from any thread. */

/* One lookup lock more; false when the key is being deleted. Waits for a rename. */
bool fs_keys_lock(FsAdapter *fs, const KvcObjectKey *key);
void fs_keys_unlock(FsAdapter *fs, const KvcObjectKey *key);
void fs_keys_unlock_many(FsAdapter *fs, KvcObjectKey *const *keys, size_t n);
/* A store was submitted; its place in the order of submission. */
uint64_t fs_keys_begin_store(FsAdapter *fs, const KvcObjectKey *key);
void fs_keys_end_store(FsAdapter *fs, const KvcObjectKey *key);
/* Waits for a deletion that began before the store (one unlink). */
void fs_keys_await_delete(FsAdapter *fs, const KvcObjectKey *key);
/* May a store with this place still be published? Not after a later one was. */
bool fs_keys_note_publish(FsAdapter *fs, const KvcObjectKey *key, uint64_t sequence);
/* false: locked, or a store is in flight. Waits for another deletion of the same key. */
bool fs_keys_begin_delete(FsAdapter *fs, const KvcObjectKey *key);
void fs_keys_end_delete(FsAdapter *fs, const KvcObjectKey *key);
/* The same for two different keys at once; meanwhile lookups of them wait. */
bool fs_keys_begin_rename(FsAdapter *fs, const KvcObjectKey *old_key, const KvcObjectKey *new_key);
void fs_keys_end_rename(FsAdapter *fs, const KvcObjectKey *old_key, const KvcObjectKey *new_key);
/* This very file is corrupt: it is not found any more, and a store replaces it. */
void fs_keys_note_corrupt(FsAdapter *fs, const KvcObjectKey *key, const struct stat *st);
void fs_keys_forget_corrupt(FsAdapter *fs, const KvcObjectKey *key);
bool fs_keys_is_corrupt(FsAdapter *fs, const KvcObjectKey *key, const struct stat *st);
void fs_keys_init(FsAdapter *fs);
void fs_keys_deinit(FsAdapter *fs);

/* The tasks: fs-task.c (submit, complete, query), fs-store.c, fs-load.c, fs-lookup.c */

typedef struct FsTask FsTask;

/* One object of a store or load task. */
typedef struct FsJob {
	/* Immutable after submit */
	FsAdapter *fs;
	FsTask *task;
	KvcObjectKey *key;
	KvcMemoryObj object;
	uint64_t sequence;

	/* Owned by whoever runs the job */
	KvcWork work;
	KvcIoTransfer transfer;
	char *path, *temp_path;
	int fd; /* -1: none */
	bool direct;
	bool has_crc;
	uint32_t crc;
	struct stat st;	  /* load: the file */
	bool has_room;	  /* store: within max_capacity_gb */
	size_t reserved;  /* of it: bytes not settled */
	bool superseded;  /* store: a later one of this key was published first */
	bool loaded;	  /* load: proven */
	atomic_int parts; /* store: CRC and payload are under way at the same time */
} FsJob;

struct FsTask {
	KvcTask base;
	FsAdapter *fs;
	/* Owned by the pool until done */
	FsJob *jobs;  /* store, load */
	KvcWork work; /* lookup */
};

/* For the board: frees the jobs. */
void fs_task_clear(KvcTask *task);
/* Begins a task; its id. OBJECTS is NULL for a lookup. */
KvcL2TaskId fs_submit(KvcL2Adapter *adapter,
		      KvcTaskKind kind,
		      KvcObjectKey *const *keys,
		      const KvcMemoryObj *objects,
		      size_t n);
/* The job is over with RESULT. Nobody may touch it afterwards. */
void fs_job_end(FsJob *job, int64_t result);
/* May this job use O_DIRECT on its file now? Sets the file's flags accordingly. */
int fs_job_set_mode(FsJob *job, bool direct);
/* Starts the transfer of the payload; job->work.run is run on a worker when it is back. */
void fs_job_transfer(FsJob *job, bool is_write, void (*done)(KvcIoTransfer *transfer));
/* The transfer failed because of O_DIRECT: the job goes on without. */
bool fs_job_was_refused(FsJob *job);

/*
 * Does PATH say (user.kvcache.size) that it once had another size? Counted. ST is renewed when the
 * file was replaced since.
 */
bool fs_is_cut(FsAdapter *fs, const char *path, struct stat *st);
/* Is there another file now than the one of ST? Renews ST. */
bool fs_was_replaced(FsAdapter *fs, const char *path, struct stat *st);
/* Does PATH say that its bytes have another CRC32C? */
bool fs_has_other_crc(FsAdapter *fs, const char *path, uint32_t crc);

void fs_store_begin(KvcWork *work);
void fs_load_begin(KvcWork *work);
void fs_lookup_run(KvcWork *work);
int fs_delete_keys(FsAdapter *fs, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted);
/* The file of KEY: its path below base_path (transfer full) and stat, or NULL and *ERRNUM. */
char *fs_find_file(FsAdapter *fs, const KvcObjectKey *key, struct stat *st, int *errnum);
/* Does ERRNUM (positive) say that there is no such file? */
bool fs_is_gone(int errnum);
/* Is the file that was found under KEY an object, whole as far as it can tell? */
bool fs_is_object(FsAdapter *fs, const KvcObjectKey *key, const char *path, struct stat *st);
/*
 * Removes the file of KEY, also the one that an older LMCache wrote beside it, and the directories
 * that this empties. 0: gone; else a positive errno.
 */
int fs_remove_files(FsAdapter *fs, KvcObjectKey *key);
/* See KvcL2AdapterOps.rename_key. */
int fs_rename_key(FsAdapter *fs, KvcObjectKey *old_key, KvcObjectKey *new_key);
/* Removes what this run stored (persist_enabled=false). */
void fs_remove_stored(FsAdapter *fs);

/* fs-attr.c */

typedef enum {
	FS_ATTR_NEW,	 /* the file has none yet */
	FS_ATTR_ADD,	 /* xattrs that are there stay: somebody else's, maybe */
	FS_ATTR_REPLACE, /* it has these afterwards, and no others */
} FsAttrWrite;

/*
 * All that lookup and list tell of the file PATH of KEY below base_path, whose stat is ST. false:
 * it says that it once had another size, or is another key's; counted. ST is renewed when the file
 * was replaced since.
 */
bool fs_attr_read(FsAdapter *fs,
		  const KvcObjectKey *key,
		  const char *path,
		  struct stat *st,
		  KvcL2ObjectInfo *info);
/* The mode of the file of an object with ATTRIBUTES (may be NULL). */
mode_t fs_attr_file_mode(const KvcObjectAttributes *attributes);
/* ATTRIBUTES may be NULL. 0 or the first -errno, which is counted; as many as can be are set. */
int fs_attr_write(FsAdapter *fs,
		  int fd,
		  const char *path,
		  const KvcObjectAttributes *attributes,
		  FsAttrWrite how);
/* Of a stored object: 0, -ENOENT, -errno. */
int
fs_set_attributes(FsAdapter *fs, const KvcObjectKey *key, const KvcObjectAttributes *attributes);
/* The same for an object whose store was skipped; errors are counted only. */
void fs_attr_add(FsAdapter *fs, const KvcObjectKey *key, const KvcObjectAttributes *attributes);
/* Attributes of PATH are lost because of ERRNUM (positive): counted, logged once a minute. */
void fs_note_attribute_error(FsAdapter *fs, const char *path, int errnum);

/* fs-window.c */

/* Names of a directory from one on, sorted; of one pass. */
typedef struct FsWindow {
	uint64_t number; /* no other has it; not 0 */
	char *dir;	 /* below base_path */
	GPtrArray *names;
	bool is_last; /* the directory has none behind them */
} FsWindow;

/* How many names at most: what they take in memory. Changed by tests only. */
extern guint fs_window_names;

/*
 * The first names of DIR that do not come before FROM (NULL: any); freed by the caller. *ERRNUM: 0
 * or the errno (positive) of a directory that could not be read to its end.
 */
FsWindow *fs_window_read(FsAdapter *fs, const char *dir, const char *from, int *errnum);
void fs_window_free(FsWindow *window);
/* For the next page (taken); the one before is dropped: the pass that left it reads again. */
void fs_window_leave(FsAdapter *fs, FsWindow *window);
/* The one that the page before has left (transfer full), or NULL. */
FsWindow *fs_window_take(FsAdapter *fs, uint64_t number, const char *dir);

/* fs-list.c, fs-janitor.c */

ssize_t fs_list(FsAdapter *fs,
		const KvcKeyScope *scope,
		char **cursor,
		KvcL2ListEntry *entries,
		size_t max);
int fs_get_changes(FsAdapter *fs, const KvcKeyScope *scope, uint64_t *stamp, int64_t *changed_ns);
int64_t fs_mtime_ns(const struct stat *st);
/* Removes what dead processes left in the directory PATH: temporary files, empty directories. */
void fs_clean_directory(FsAdapter *fs, const char *path);
/* Does that everywhere. Thread function, USER is the FsAdapter. */
void *fs_janitor_main(void *user);

/* fs-place.c: is base_path still the directory that was opened? */

/* The errno (positive) of everything while it is not. */
#define FS_LOST EHOSTDOWN

/* Compares them. May block: not under a lock. */
void fs_place_look(FsAdapter *fs);
/* Does that once a second until the adapter closes. Thread function, USER is the FsAdapter. */
void *fs_place_main(void *user);
/* Sleeps so many seconds; false: the adapter is closing. */
bool fs_sleep(FsAdapter *fs, int64_t seconds);
/* As of the last look: it is not. Counted as a failure of KIND. Never blocks. */
bool fs_place_is_lost(FsAdapter *fs, KvcTaskKind kind);

/* fs-health.c */

typedef struct FsStats {
	_Atomic uint64_t stores, loads, skipped, renames, load_misses;
	_Atomic uint64_t crc_mismatches, size_mismatches, id_mismatches, foreign_files,
		unsupported_keys;
	_Atomic uint64_t attribute_errors, evicted, orphans_removed;
} FsStats;

/*
 * Something failed with ERRNUM (positive): counted, logged, health is degraded for a while, or
 * failed if nothing works. Listing counts as looking up. May block.
 */
void fs_note_error(FsAdapter *fs, KvcTaskKind kind, const char *what, const char *path, int errnum);
void fs_note_success(FsAdapter *fs, KvcTaskKind kind);
/* A lookup was answered: found, or really not there. May block. */
void fs_note_answer(FsAdapter *fs);
/* The file PATH is not what was written under its name: WHY goes on after the name. */
void fs_note_bad_file(FsAdapter *fs, const char *path, const char *why);
/* No file here can have the name of KEY or carry the key: ERRNUM (positive). */
void fs_note_unsupported(FsAdapter *fs, const KvcObjectKey *key, int errnum);
/* O_DIRECT was refused with ERRNUM (positive): never tried again. */
void fs_note_refused(FsAdapter *fs, int errnum);
/* The file system has no xattrs. */
void fs_note_no_xattrs(FsAdapter *fs, int errnum);
/* Renews the free space that usage reports, at most once a second. May block. */
void fs_note_space(FsAdapter *fs);
void fs_usage(FsAdapter *fs, KvcL2Usage *usage);
void fs_describe(FsAdapter *fs, KvcDescribeFunc func, void *user);

struct FsAdapter {
	KvcBoardAdapter base;

	/* Immutable after open */
	char *base_path;
	int base_fd;
	bool want_direct;
	bool verify;
	bool persist;
	FsLayout layout;
	bool shard_dirs;
	char *temp_dir; /* relative_tmp_dir, or NULL */
	bool fsync;
	int64_t orphan_age_s;
	FsCapacity *capacity; /* or NULL */
	int64_t opened_ns;    /* on the clock of file times */
	KvcIo *io;
	KvcPool *workers, *lookups;
	KvcFailures *failures;
	pthread_t janitor, watcher;

	/* Protected by lock */
	pthread_mutex_t lock;
	pthread_cond_t closed; /* closing is set */
	GHashTable *ours;      /* keys that this run stored; NULL when they persist */
	int64_t space_ns;      /* when free_bytes was renewed */
	uint64_t free_bytes;
	bool space_known;
	FsWindow *window; /* what the last page of a listing has left, or NULL */

	/* Protected by replace_lock: publishing under a key that exists; held over one rename */
	pthread_mutex_t replace_lock;

	/* Protected by keys_lock */
	pthread_mutex_t keys_lock;
	pthread_cond_t keys_wake; /* a deletion ended */
	GHashTable *keys;
	uint64_t last_sequence;

	/* Atomic */
	atomic_bool closing;
	atomic_bool is_lost;	     /* base_path is another directory; written under lock */
	atomic_int directory_errnum; /* the directory itself cannot be used (positive), or 0 */
	_Atomic int64_t directory_asked_ns;
	atomic_bool direct_refused;
	atomic_bool no_xattrs;
	atomic_bool has_young_temps; /* that may be orphans: the janitor comes again */
	atomic_bool has_shards;	     /* files may be in directories of shard_dirs */
	atomic_bool counted;	     /* the first complete list has been added to the two below */
	_Atomic int64_t bytes_used, objects;
	_Atomic int64_t attribute_logged_ns;
	FsStats stats;
};

#endif
