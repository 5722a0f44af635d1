/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes and OPEN. An OPEN of what is not in L1 waits for its load, bounded and interruptible.
 */

#include "fs/internal.h"
#include "kvcache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- Attributes ---------------------------------------------------------------------------- */

static void
reply_attr(fuse_req_t req, KvcfsInode *inode)
{
	struct stat st;
	int rc = kvcfs_inode_get_attr(inode, &st);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	pthread_mutex_lock(&inode->fs->names);
	bool changes = inode->kind == KVCFS_KEYS || inode->staging || inode->is_unlinked;
	pthread_mutex_unlock(&inode->fs->names);
	fuse_reply_attr(req, &st, changes ? 0 : KVCFS_ATTR_TIMEOUT);
}

void
kvcfs_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	reply_attr(req, kvcfs_inode_of(kvcfs_of(req), ino));
}

static int
set_size(KvcfsInode *inode, off_t bytes)
{
	switch (inode->kind) {
	case KVCFS_OBJECT:
		return kvcfs_staging_set_size(inode, (uint64_t)bytes);
	case KVCFS_KEYS:
		if (bytes != 0)
			return -EINVAL;
		kvcfs_prefix_clear(inode->parent, false);
		return 0;
	case KVCFS_CONTROL:
		return 0; /* what "echo > evict" does first */
	default:
		return -EISDIR;
	}
}

static int64_t
time_to_set(const struct timespec *ts, bool is_now)
{
	return is_now ? kvcfs_wall_ns() : ts->tv_sec * INT64_C(1000000000) + ts->tv_nsec;
}

static void
set_others(KvcfsInode *inode, const struct stat *attr, int to_set)
{
	pthread_mutex_lock(&inode->fs->names);
	if (to_set & FUSE_SET_ATTR_MODE)
		inode->mode = (inode->mode & S_IFMT) | (attr->st_mode & 07777);
	if (to_set & FUSE_SET_ATTR_UID)
		inode->uid = attr->st_uid;
	if (to_set & FUSE_SET_ATTR_GID)
		inode->gid = attr->st_gid;
	if (to_set & (FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW))
		inode->mtime_ns = time_to_set(&attr->st_mtim, to_set & FUSE_SET_ATTR_MTIME_NOW);
	if (to_set & (FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW))
		inode->atime_ns = time_to_set(&attr->st_atim, to_set & FUSE_SET_ATTR_ATIME_NOW);
	pthread_mutex_unlock(&inode->fs->names);
}

void
kvcfs_op_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	int rc = to_set & FUSE_SET_ATTR_SIZE ? set_size(inode, attr->st_size) : 0;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	set_others(inode, attr, to_set);
	reply_attr(req, inode);
}

/* ---- OPEN of an object --------------------------------------------------------------------- */

/* Answers OPEN with HANDLE (owned), passed through to FD where that is in effect. */
static void
reply_open(fuse_req_t req, KvcfsHandle *handle, int fd, struct fuse_file_info *fi)
{
	int id = kvcfs_io_open(handle->inode, fd);
	handle->is_counted = id >= 0;
	fi->fh = (uintptr_t)handle;
	fi->direct_io = id == 0;
	fi->keep_cache = 0;
	if (id == -ESTALE) /* the kernel then looks the name up again */
		kvcfs_object_inode_renounce(handle->inode);
	if (id < 0) {
		fuse_reply_err(req, -id);
		kvcfs_handle_release(handle);
	} else if (kvcfs_reply_open(req, fi, id) != 0) {
		kvcfs_handle_release(handle);
	}
}

/* With the read lock OBJECT (owned). */
static void
open_locked_object(fuse_req_t req,
		   KvcfsInode *inode,
		   KvcL1Object *object,
		   struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_new(KVCFS_HANDLE_READ, inode);
	handle->object = object;
	pthread_mutex_lock(&inode->fs->names);
	inode->open_bytes = kvc_l1_object_get_bytes(object);
	inode->atime_ns = kvcfs_wall_ns();
	pthread_mutex_unlock(&inode->fs->names);
	fi->noflush = 1;
	reply_open(req, handle, kvc_l1_object_get_fd(object), fi);
}

typedef struct OpenWait {
	KvcfsInode *inode; /* owned reference */
	struct fuse_file_info fi;
} OpenWait;

static bool
after_load(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	OpenWait *wait = user;
	Kvcfs *fs = wait->inode->fs;
	KvcL1Object *object = kvcfs_fetch_take_object(fetch, why);
	if (object) {
		open_locked_object(req, wait->inode, object, &wait->fi);
	} else if (why == KVCFS_WAKE_INTERRUPT) {
		fuse_reply_err(req, EINTR);
	} else {
		/* Nowhere, lost on the way, or not in time: a miss, never EIO
		 * (facts/engines.md 1.2). */
		kvcfs_count(fs, opens_missed);
		fuse_reply_err(req, ENOENT);
	}
	kvcfs_inode_unref(wait->inode, 1);
	g_free(wait);
	return false;
}

static void
open_by_load(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	int64_t timeout = fs->config.load_timeout_ns;
	OpenWait *wait = g_new(OpenWait, 1);
	*wait = (OpenWait){kvcfs_inode_ref(inode), *fi};
	KvcPrefetchParams params = {
		.keys = &inode->key,
		.n_keys = 1,
		.flags = KVC_PREFETCH_URGENT,
		.timeout_ns = timeout,
	};
	kvcfs_count(fs, opens_waited);
	kvcfs_fetch_start(fs, req, &params, false, kvcfs_now_ns() + timeout, after_load, wait);
}

static void
open_object(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	KvcL1Object *object;
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC);
	if (is_write || inode->is_unlinked) {
		fuse_reply_err(req, is_write ? EROFS : ENOENT);
		return;
	}
	kvcfs_count(fs, opens);
	kvcfs_prefix_start_loads(fs, inode->key);
	if (kvc_storage_manager_reserve_read(fs->sm, inode->key, &object) == 0)
		open_locked_object(req, inode, object, fi);
	else
		open_by_load(req, inode, fi);
}

/* A reader may outlive the commit, when nothing may be left that can write. */
static int
own_descriptor(int fd, bool is_write)
{
	if (!is_write)
		return kvc_reopen(fd, O_RDONLY);
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return copy < 0 ? -errno : copy;
}

/*
 * A temporary file, or one whose writer passes it on through /proc. true: answered. The file of a
 * staging is only sure to be there while names is held.
 */
static bool
open_staging(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY;
	pthread_mutex_lock(&fs->names);
	bool is_staging = inode->staging != NULL;
	pthread_mutex_unlock(&fs->names);
	if (!is_staging)
		return false;
	if (fi->flags & O_TRUNC) {
		fuse_reply_err(req, kvcfs_staging_displace(inode) ? ESTALE : EROFS);
		return true;
	}
	if (is_write && kvcfs_staging_join(inode) < 0)
		return false;
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_WRITE : KVCFS_HANDLE_READ, inode);
	pthread_mutex_lock(&fs->names);
	int fd = inode->staging ? kvc_l1_object_get_fd(inode->staging->object) : -1;
	if (fd >= 0) {
		inode->open_bytes = kvc_l1_object_get_bytes(inode->staging->object);
		fd = own_descriptor(fd, is_write);
	}
	pthread_mutex_unlock(&fs->names);
	handle->fd = fd;
	fi->noflush = !is_write;
	if (fd >= 0) {
		reply_open(req, handle, fd, fi);
		return true;
	}
	fuse_reply_err(req, fd == -EMFILE ? EMFILE : ENOENT);
	kvcfs_handle_release(handle);
	return true;
}

typedef struct KeysWait {
	KvcfsInode *keys; /* owned reference */
	struct fuse_file_info fi;
} KeysWait;

static void
open_loaded_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
{
	KvcfsInode *prefix = keys->parent;
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY;
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_KEYS_WRITE : KVCFS_HANDLE_TEXT, keys);
	if (fi->flags & O_TRUNC)
		kvcfs_prefix_clear(prefix, false);
	GString *text = kvcfs_prefix_text(prefix);
	handle->write_offset = text->len;
	if (is_write)
		g_string_truncate(text, 0);
	handle->text = text;
	fi->fh = (uintptr_t)handle;
	fi->direct_io = 1;
	if (kvcfs_reply_open(req, fi, 0) != 0)
		kvcfs_handle_free(handle);
}

static void
after_chain(fuse_req_t req, KvcfsWake why, void *user)
{
	KeysWait *wait = user;
	bool is_loaded = kvcfs_prefix_is_loaded(wait->keys->parent);
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else if (!is_loaded)
		fuse_reply_err(req, EIO); /* not in time: an empty answer would be a lie */
	else
		open_loaded_keys(req, wait->keys, &wait->fi);
	kvcfs_inode_unref(wait->keys, 1);
	g_free(wait);
}

static void
open_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
{
	Kvcfs *fs = keys->fs;
	if ((fi->flags & O_TRUNC) || kvcfs_prefix_is_loaded(keys->parent)) {
		open_loaded_keys(req, keys, fi);
		return;
	}
	KeysWait *wait = g_new0(KeysWait, 1);
	wait->keys = kvcfs_inode_ref(keys);
	wait->fi = *fi;
	int64_t deadline = kvcfs_now_ns() + fs->config.load_timeout_ns;
	kvcfs_prefix_wait(keys->parent, req, deadline, after_chain, wait);
}

void
kvcfs_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	if (inode->kind == KVCFS_CONTROL)
		kvcfs_control_open(req, inode, fi);
	else if (inode->kind == KVCFS_KEYS)
		open_keys(req, inode, fi);
	else if (inode->kind != KVCFS_OBJECT)
		fuse_reply_err(req, EISDIR);
	else if (open_staging(req, inode, fi))
		return;
	else if (inode->key)
		open_object(req, inode, fi);
	else
		fuse_reply_err(req, ENOENT);
}
