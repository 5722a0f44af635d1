/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_DIR_LOG_H
#define FS_DIR_LOG_H

/*
 * The directories that somebody made, remembered in a file of the state directory until somebody
 * removes them. No object needs them, and no store has them. Paths are relative to the mount's root
 * ("a/b"). Every function but open may be called with LOG NULL: then nothing is remembered. Any
 * thread; only what says so may wait.
 */

#include <kvcache/record-log.h>

#include <sys/types.h>

typedef struct KvcfsDirLog KvcfsDirLog;

typedef struct KvcfsDirEntry {
	char *path;
	mode_t mode; /* the permissions: 07777 */
	uid_t uid;
	gid_t gid;
} KvcfsDirEntry;

/*
 * Opens the log at PATH and starts its thread. FAILED(user) is called in that thread for each try
 * to write that failed. NULL with ERROR set that names the file. Blocks.
 */
KvcfsDirLog *
kvcfs_dir_log_open(const char *path, void (*failed)(void *user), void *user, GError **error);
/* Writes and syncs what is left. Blocks. */
void kvcfs_dir_log_free(KvcfsDirLog *log);

/* The directory was made; or, if it is known already, its attributes changed. */
void kvcfs_dir_log_add(KvcfsDirLog *log, const KvcfsDirEntry *entry);
/* Its attributes changed, if it is one that was made. */
void kvcfs_dir_log_update(KvcfsDirLog *log, const KvcfsDirEntry *entry);
/* The (empty) directory was removed. */
void kvcfs_dir_log_remove(KvcfsDirLog *log, const char *path);
/* It was renamed, with all below it, and took the place of what was there. In one step. */
void kvcfs_dir_log_rename(KvcfsDirLog *log, const char *old_path, const char *new_path);
/* Waits a moment until all of that is safe from a SIGKILL; see kvc_record_log_settle(). */
void kvcfs_dir_log_settle(KvcfsDirLog *log);
/* As kvc_record_log_sync(). */
void kvcfs_dir_log_sync(KvcfsDirLog *log, void (*done)(void *user, int error), void *user);

/* Calls FUNC for each directory, parents first; the entry is only lent. */
void kvcfs_dir_log_foreach(KvcfsDirLog *log,
			   void (*func)(void *user, const KvcfsDirEntry *entry),
			   void *user);
/* From memory; all zero without a log. */
void kvcfs_dir_log_get_status(KvcfsDirLog *log, KvcRecordLogStatus *status);

#endif
