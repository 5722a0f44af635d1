/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PASSTHROUGH_H
#define FS_PASSTHROUGH_H

/*
 * FUSE passthrough for the libfuse at hand. 3.14 to 3.16 have no API for it: the INIT reply is
 * patched through fuse_session_custom_io(); from 3.17 on the public API is
 * used. This is the only file that knows the difference.
 */

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <stdbool.h>

/*
 * Installs what is needed in SE after fuse_session_mount() and before the first request is read.
 * WANT: ask for passthrough at all (false under --io-mode=direct; the other flags are set in any
 * case: PARALLEL_DIROPS, HANDLE_KILLPRIV_V2, DIRECT_IO_ALLOW_MMAP). 0 or -errno.
 */
int kvcfs_passthrough_install(struct fuse_session *se, bool want);
/* After INIT was processed: did the kernel offer passthrough and did we accept it? */
bool kvcfs_passthrough_is_negotiated(void);
/* Registers FD (stays the caller's): a backing id > 0, or -errno. */
int kvcfs_backing_open(struct fuse_session *se, int fd);
void kvcfs_backing_close(struct fuse_session *se, int backing_id);
/*
 * Answer OPEN and CREATE; BACKING_ID 0: not passed through, FI's direct_io, keep_cache, noflush
 * count. 0, or -errno: -ENOENT means that the open was interrupted and no RELEASE will come.
 */
int kvcfs_reply_open(fuse_req_t req, const struct fuse_file_info *fi, int backing_id);
int kvcfs_reply_create(fuse_req_t req,
		       const struct fuse_entry_param *entry,
		       const struct fuse_file_info *fi,
		       int backing_id);

#endif
