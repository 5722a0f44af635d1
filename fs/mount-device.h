/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_MOUNT_DEVICE_H
#define FS_MOUNT_DEVICE_H

#include "fs/pending.h" /* the one FUSE_USE_VERSION */

/* Is /dev/fuse there, and for us? false with ERROR set; its code is an errno value. */
bool kvcfs_mount_check_device(GError **error);
/*
 * fuse_session_mount(). What libfuse's fusermount3 says on stderr about a failure is TEXT (of SIZE
 * bytes) then, as one line. While it runs, other threads' stderr goes there too. 0 or -1.
 */
int kvcfs_mount_silently(struct fuse_session *se, const char *mountpoint, char *text, size_t size);

#endif
