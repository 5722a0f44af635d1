/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_STATE_DIR_H
#define FS_STATE_DIR_H

/*
 * The state directory of a mount, private to its owner: the one place that knows the paths in it.
 * Its file "lock" is locked (flock) by the daemon for as long as
 * the daemon lives, also while it drains after the unmount, and says who that is: "PID STATE
 * MAJOR:MINOR MOUNTPOINT".
 */

#include <glib.h>
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

typedef struct KvcfsStateDir KvcfsStateDir;

typedef struct KvcfsStateRecord {
	pid_t pid; /* 0: nothing recorded */
	bool draining;
	unsigned dev_major, dev_minor; /* of its mount; 0:0 before it is mounted */
	char mountpoint[PATH_MAX];     /* absolute; "": nothing recorded */
} KvcfsStateRecord;

/* The default directory for MOUNTPOINT (absolute); its name is made as systemd-escape --path does.
 */
char *kvcfs_state_dir_default(const char *mountpoint);
/* Makes PATH where needed and opens its lock file; NULL with ERROR set. */
KvcfsStateDir *kvcfs_state_dir_open(const char *path, GError **error);
/* The path of the file NAME in it (transfer full): "deletions", "directories". */
char *kvcfs_state_dir_get_file(const KvcfsStateDir *state, const char *name);
/* The real path of the directory. */
const char *kvcfs_state_dir_path(const KvcfsStateDir *state);
/* Never waits. 1: locked, 0: another process has it, -errno. */
int kvcfs_state_dir_try_lock(KvcfsStateDir *state);
/* What the holder, or the last one, wrote. */
KvcfsStateRecord kvcfs_state_dir_read(const KvcfsStateDir *state);
/* Only while locked. Errors are ignored: the record only makes messages and decisions better. */
void kvcfs_state_dir_write(KvcfsStateDir *state, const KvcfsStateRecord *record);
/* Unlocks and frees; NULL is allowed. */
void kvcfs_state_dir_free(KvcfsStateDir *state);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcfsStateDir, kvcfs_state_dir_free)

#endif
