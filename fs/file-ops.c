/* SPDX-License-Identifier: Apache-2.0 */

/* Requests about files: attributes, OPEN to RELEASE. Only OPEN and FSYNC wait for L2, bounded. */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
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
	KvcL1Object *object =
		why == KVCFS_WAKE_DONE ? kvc_prefetch_handle_take_object(fetch->handle, 0) : NULL;
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
	if (is_write && kvcfs_staging_join(inode, fi->flags & O_TRUNC) < 0)
		return false;
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_WRITE : KVCFS_HANDLE_READ, inode);
	pthread_mutex_lock(&fs->names);
	int fd = inode->staging ? kvc_l1_object_get_fd(inode->staging->object) : -1;
	if (fd >= 0) {
		inode->open_bytes = kvc_l1_object_get_bytes(inode->staging->object);
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	}
	pthread_mutex_unlock(&fs->names);
	if (fd < 0) {
		kvcfs_handle_free(handle);
		return false;
	}
	fi->noflush = !is_write;
	reply_open(req, handle, fd, fi);
	close(fd);
	return true;
}

static void
open_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
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

/* ---- READ and WRITE (direct mode, texts, control files) ------------------------------------ */

static void
reply_text(fuse_req_t req, const GString *text, size_t size, off_t off)
{
	size_t start = MIN((size_t)off, text->len);
	fuse_reply_buf(req, text->str + start, MIN(size, text->len - start));
}

/* From the mapping of the file: one copy, by the kernel. */
static void
reply_mapped(fuse_req_t req, int fd, size_t size, off_t off)
{
	struct stat st;
	if (fstat(fd, &st) != 0) {
		fuse_reply_err(req, errno);
		return;
	}
	if (off >= st.st_size || size == 0) {
		fuse_reply_buf(req, NULL, 0);
		return;
	}
	size = MIN(size, (size_t)(st.st_size - off));
	off_t start = off & ~(off_t)4095;
	size_t length = (size_t)(off - start) + size;
	char *data = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, start);
	if (data == MAP_FAILED) {
		fuse_reply_err(req, errno);
		return;
	}
	fuse_reply_buf(req, data + (off - start), size);
	munmap(data, length);
}

/* A descriptor of the handle's file that stays valid (to be closed), or -1. */
static int
dup_file(KvcfsHandle *handle)
{
	KvcfsInode *inode = handle->inode;
	if (handle->object)
		return fcntl(kvc_l1_object_get_fd(handle->object), F_DUPFD_CLOEXEC, 3);
	int fd = -1;
	pthread_mutex_lock(&inode->fs->names);
	if (inode->staging)
		fd = kvc_l1_object_get_fd(inode->staging->object);
	pthread_mutex_lock(&inode->io_lock);
	if (fd < 0 && inode->commit_lock)
		fd = kvc_l1_object_get_fd(inode->commit_lock);
	pthread_mutex_unlock(&inode->io_lock);
	if (fd >= 0)
		fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	pthread_mutex_unlock(&inode->fs->names);
	return fd;
}

void
kvcfs_op_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t off, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	if (handle->kind == KVCFS_HANDLE_TEXT) {
		reply_text(req, handle->text, size, off);
		return;
	}
	if (handle->kind == KVCFS_HANDLE_KEYS_WRITE) {
		GString *text = kvcfs_prefix_text(handle->inode->parent);
		reply_text(req, text, size, off);
		g_string_free(text, TRUE);
		return;
	}
	int fd = dup_file(handle);
	if (fd < 0) {
		fuse_reply_err(req, EBADF);
		return;
	}
	reply_mapped(req, fd, size, off);
	close(fd);
}

static ssize_t
write_fully(int fd, const char *data, size_t size, off_t off)
{
	size_t done = 0;
	while (done < size) {
		ssize_t n = pwrite(fd, data + done, size - done, off + (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -ENOSPC;
		done += (size_t)n;
	}
	return (ssize_t)done;
}

/* Direct mode: the daemon sees the write, makes room for it, and fails it exactly. */
static ssize_t
write_staging(KvcfsHandle *handle, const char *data, size_t size, off_t off)
{
	KvcfsInode *inode = handle->inode;
	ssize_t n = kvcfs_staging_reserve(inode, (uint64_t)off + size);
	if (n == 0) {
		int fd = dup_file(handle);
		n = fd < 0 ? -EBADF : write_fully(fd, data, size, off);
		if (fd >= 0)
			close(fd);
	}
	if (n < 0) {
		pthread_mutex_lock(&inode->fs->names);
		if (inode->staging)
			inode->staging->was_memory_full = true;
		pthread_mutex_unlock(&inode->fs->names);
	}
	return n;
}

/* Lines are taken as they become complete; a line that cannot become a hash fails its write. */
static ssize_t
write_keys(KvcfsHandle *handle, const char *data, size_t size, off_t off, bool is_append)
{
	KvcfsInode *prefix = handle->inode->parent;
	if (!is_append && (uint64_t)off != handle->write_offset)
		return -EINVAL;
	g_autoptr(GString) text = g_string_new_len(handle->text->str, (gssize)handle->text->len);
	g_string_append_len(text, data, (gssize)size);
	const char *newline = memrchr(text->str, '\n', text->len);
	size_t complete = newline ? (size_t)(newline - text->str) + 1 : 0;
	if (!kvcfs_chain_are_lines(text->str, complete) ||
	    text->len - complete > 2 * KVC_CHUNK_HASH_MAX_BYTES)
		return -EINVAL;
	kvcfs_prefix_append_lines(prefix, text->str, complete);
	g_string_assign(handle->text, "");
	g_string_append_len(handle->text, text->str + complete, (gssize)(text->len - complete));
	handle->write_offset += size;
	return (ssize_t)size;
}

void
kvcfs_op_write(fuse_req_t req,
	       fuse_ino_t ino,
	       const char *data,
	       size_t size,
	       off_t off,
	       struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	ssize_t n = -EBADF;
	if (handle->kind == KVCFS_HANDLE_CONTROL_WRITE) {
		kvcfs_control_write(req, handle->inode, data, size);
		return;
	}
	if (handle->kind == KVCFS_HANDLE_KEYS_WRITE)
		n = write_keys(handle, data, size, off, fi->flags & O_APPEND);
	else if (handle->kind == KVCFS_HANDLE_WRITE)
		n = write_staging(handle, data, size, off);
	if (n < 0)
		fuse_reply_err(req, (int)-n);
	else
		fuse_reply_write(req, (size_t)n);
}

void
kvcfs_op_fallocate(fuse_req_t req,
		   fuse_ino_t ino,
		   int mode,
		   off_t offset,
		   off_t length,
		   struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	uint64_t end = (uint64_t)offset + (uint64_t)length;
	int rc = -EBADF;
	if (mode & ~FALLOC_FL_KEEP_SIZE)
		rc = -EOPNOTSUPP;
	else if (handle->kind == KVCFS_HANDLE_WRITE)
		rc = kvcfs_staging_reserve(handle->inode, end);
	struct stat st;
	if (rc == 0 && !(mode & FALLOC_FL_KEEP_SIZE) &&
	    kvcfs_inode_get_attr(handle->inode, &st) == 0 && (uint64_t)st.st_size < end)
		rc = kvcfs_staging_set_size(handle->inode, end);
	fuse_reply_err(req, -rc);
}

void
kvcfs_op_lseek(fuse_req_t req, fuse_ino_t ino, off_t off, int whence, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	bool has_file = handle->kind == KVCFS_HANDLE_READ || handle->kind == KVCFS_HANDLE_WRITE;
	int fd = has_file ? dup_file(handle) : -1;
	if (fd < 0) {
		fuse_reply_err(req, EINVAL);
		return;
	}
	off_t result = lseek(fd, off, whence);
	if (result < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, result);
	close(fd);
}

/* ---- FLUSH, RELEASE, FSYNC ------------------------------------------------------------------ */

/* The last line of .keys may lack its newline. */
static int
flush_keys(KvcfsHandle *handle)
{
	if (handle->text->len == 0)
		return 0;
	int rc = kvcfs_prefix_append_lines(handle->inode->parent, handle->text->str,
					   handle->text->len);
	g_string_truncate(handle->text, 0);
	return rc;
}

/*
 * While more than half of L1 is dirty, a writer's close waits for stores to end, at most 1 s:
 * writers are slowed before they are refused (design.md 4, ENOSPC).
 */
#define SLOW_WRITER_NS INT64_C(1000000000)
#define SLOW_WRITER_STEP_NS INT64_C(5000000)

typedef struct SlowFlush {
	Kvcfs *fs;
	int64_t deadline_ns;
} SlowFlush;

static void
slow_flush_step(fuse_req_t req, KvcfsWake why, void *user)
{
	SlowFlush *slow = user;
	Kvcfs *fs = slow->fs;
	int64_t now = kvcfs_now_ns();
	if (why == KVCFS_WAKE_INTERRUPT || now >= slow->deadline_ns ||
	    !kvc_storage_manager_is_half_dirty(fs->sm)) {
		/* Interrupted or not, the file is closed. */
		fuse_reply_err(req, 0);
		g_free(slow);
		return;
	}
	kvcfs_pending_release(kvcfs_pending_new(fs->pendings, req, now + SLOW_WRITER_STEP_NS,
						slow_flush_step, slow));
}

void
kvcfs_op_flush(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	Kvcfs *fs = handle->inode->fs;
	int rc = 0;
	if (handle->kind == KVCFS_HANDLE_KEYS_WRITE)
		rc = flush_keys(handle);
	else if (handle->kind == KVCFS_HANDLE_WRITE)
		rc = kvcfs_staging_flush(handle->inode, fuse_req_ctx(req)->pid);
	if (rc < 0 || handle->kind != KVCFS_HANDLE_WRITE ||
	    !kvc_storage_manager_is_half_dirty(fs->sm)) {
		fuse_reply_err(req, -rc);
		return;
	}
	kvcfs_count(fs, closes_slowed);
	SlowFlush *slow = g_new(SlowFlush, 1);
	*slow = (SlowFlush){fs, kvcfs_now_ns() + SLOW_WRITER_NS};
	slow_flush_step(req, KVCFS_WAKE_DONE, slow);
}

void
kvcfs_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	kvcfs_handle_release(kvcfs_handle_of(fi));
	fuse_reply_err(req, 0);
}

typedef struct FsyncWait {
	KvcfsPending *pending;
	int refs;  /* Atomic: the answer and the flush */
	int error; /* Atomic */
} FsyncWait;

static void
unref_fsync(FsyncWait *wait)
{
	if (__atomic_fetch_sub(&wait->refs, 1, __ATOMIC_ACQ_REL) == 1)
		g_free(wait);
}

static void
answer_fsync(fuse_req_t req, KvcfsWake why, void *user)
{
	FsyncWait *wait = user;
	int error = __atomic_load_n(&wait->error, __ATOMIC_ACQUIRE);
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else if (why == KVCFS_WAKE_TIMEOUT)
		fuse_reply_err(req, EIO); /* the store goes on */
	else
		fuse_reply_err(req, error == -ENOENT ? 0 : -error);
	unref_fsync(wait);
}

static void
fsync_done(void *user, int error)
{
	FsyncWait *wait = user;
	__atomic_store_n(&wait->error, error, __ATOMIC_RELEASE);
	kvcfs_pending_wake(wait->pending);
	unref_fsync(wait);
}

static void
fsync_key(fuse_req_t req, Kvcfs *fs, KvcObjectKey *key)
{
	FsyncWait *wait = g_new0(FsyncWait, 1);
	g_autoptr(KvcObjectKey) held = kvc_object_key_ref(key);
	wait->refs = 2;
	wait->pending = kvcfs_pending_new(
		fs->pendings, req, kvcfs_now_ns() + fs->config.load_timeout_ns, answer_fsync, wait);
	kvc_storage_manager_flush(fs->sm, held, fsync_done, wait);
}

void
kvcfs_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	KvcfsInode *inode = handle->inode;
	if (handle->object) {
		fsync_key(req, inode->fs, inode->key);
	} else if (inode->kind == KVCFS_KEYS) {
		kvcfs_prefix_save(inode->parent);
		fsync_key(req, inode->fs, inode->parent->key);
	} else {
		/* Not committed: it cannot be durable yet. */
		fuse_reply_err(req, 0);
	}
}
