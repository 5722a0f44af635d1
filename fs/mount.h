/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_MOUNT_H
#define FS_MOUNT_H

/*
 * The mount from start to end: finding out whether the place is free, the FUSE session, its loop,
 * and the unmount. After kvcfs_mount_new() nothing here resolves a path under the mount point: the
 * daemon would wait for itself.
 */

#include "fs/kvcfs.h"
#include "fs/state-dir.h"

typedef struct KvcfsMount KvcfsMount;

/* The absolute real path of a mount point (transfer full); NULL with ERROR set when there is no
 * such directory. */
char *kvcfs_mount_resolve(const char *path, GError **error);
/*
 * Takes the lock of STATE, waiting for a daemon that drains, removes stale mounts and makes sure
 * that MOUNTPOINT is a directory no kvcachefs is mounted on. Forks: call before threads are
 * started. false with ERROR set.
 */
bool kvcfs_mount_prepare(const char *mountpoint, KvcfsStateDir *state, GError **error);
/*
 * Is PATH a directory that answers? 0, -errno, -ETIMEDOUT. Bounded whatever is mounted there;
 * before threads are started, as it forks.
 */
int kvcfs_mount_probe(const char *path, int timeout_ms);

/*
 * Mounts FS and processes INIT. OPTIONS (of char *) are given to -o. NULL with ERROR set, whose
 * code is EINVAL when an option is the reason; then nothing is mounted. Does not yet answer
 * requests.
 */
KvcfsMount *kvcfs_mount_new(const char *mountpoint,
			    const GPtrArray *options,
			    Kvcfs *fs,
			    bool want_passthrough,
			    GError **error);
void kvcfs_mount_get_dev(const KvcfsMount *mount, unsigned *dev_major, unsigned *dev_minor);
/*
 * Answers requests until the file system is unmounted or kvcfs_mount_end_loop() was called. 0 or
 * -errno.
 */
int kvcfs_mount_loop(KvcfsMount *mount);
/* From another thread: waits for the loop to end, then makes it. -ETIMEDOUT: a request hangs. */
int kvcfs_mount_end_loop(KvcfsMount *mount, int wait_ms);
bool kvcfs_mount_is_mounted(const KvcfsMount *mount);
/* 0 (also when it was not mounted any more), -EBUSY, -errno. Any thread; LAZY: detaches it if busy.
 */
int kvcfs_mount_unmount(KvcfsMount *mount, bool lazy);
/*
 * After the loop: closes the connection, so that whoever still has a file open gets ENOTCONN
 * instead of waiting. The session stays valid (every use of it fails).
 */
void kvcfs_mount_hang_up(KvcfsMount *mount);
void kvcfs_mount_free(KvcfsMount *mount);

/* Called from INIT; in passthrough.c, nothing to do before libfuse 3.17. */
void kvcfs_passthrough_init(struct fuse_conn_info *conn);

#endif
