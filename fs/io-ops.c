/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is done with an open file, READ to RELEASE. Passed-through reads and writes never get here.
 * Only FSYNC waits for L2 and a close for room, both bounded and interruptible.
 */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

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

/*
 * A file on its way is not mapped: that would give it the pages of its holes, and a declared end
 * that nobody has written would count as written.
 */
static void
reply_copied(fuse_req_t req, int fd, size_t size, off_t off)
{
	g_autofree char *data = g_malloc(size);
	ssize_t n = pread(fd, data, size, off);
	if (n < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_buf(req, data, (size_t)n);
}

/* The handle's file; stays valid while the handle does. Of a private inode it may change. */
static int
file_of(const KvcfsHandle *handle)
{
	if (handle->object)
		return kvc_l1_object_get_fd(handle->object);
	if (handle->fd < 0 && handle->kind == KVCFS_HANDLE_WRITE)
		return kvcfs_staging_get_fd(handle->inode);
	return handle->fd;
}

/* What a writer of .keys reads (transfer full). */
static GString *
keys_text(KvcfsHandle *handle)
{
	GString *text = NULL;
	pthread_mutex_lock(&handle->inode->fs->names);
	if (handle->is_replacing)
		text = g_string_new_len(handle->text->str, (gssize)handle->text->len);
	pthread_mutex_unlock(&handle->inode->fs->names);
	return text ? text : kvcfs_prefix_text(handle->inode->parent);
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
		GString *text = keys_text(handle);
		reply_text(req, text, size, off);
		g_string_free(text, TRUE);
		return;
	}
	int fd = file_of(handle);
	if (fd < 0)
		fuse_reply_err(req, EBADF);
	else if (handle->object)
		reply_mapped(req, fd, size, off);
	else
		reply_copied(req, fd, size, off);
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
	if (n == 0)
		n = write_fully(file_of(handle), data, size, off);
	if (n < 0 && n != -EROFS) {
		pthread_mutex_lock(&inode->fs->names);
		if (inode->staging && n == -EFBIG)
			inode->staging->is_too_big = true;
		else if (inode->staging)
			inode->staging->was_memory_full = true;
		pthread_mutex_unlock(&inode->fs->names);
	}
	return n;
}

/*
 * A line that cannot become a hash fails its write. What is appended is taken as lines become
 * complete, a replacement when the writer closes. Writers that share the descriptor are kept apart
 * by names.
 */
static ssize_t
write_keys_locked(KvcfsHandle *handle,
		  const char *data,
		  size_t size,
		  off_t off,
		  bool is_append,
		  bool *must_arm)
{
	GString *text = handle->text;
	kvcfs_closing_end_locked(handle->inode->fs, &handle->closing);
	if (!is_append && (uint64_t)off != handle->write_offset) {
		handle->has_failed |= handle->is_replacing;
		return -EINVAL;
	}
	if (text->len + size > KVCFS_CHAIN_MAX_BYTES) {
		handle->has_failed = true;
		return -EFBIG;
	}
	size_t old_len = text->len;
	const char *line = memrchr(text->str, '\n', text->len);
	size_t checked = line ? (size_t)(line - text->str) + 1 : 0;
	g_string_append_len(text, data, (gssize)size);
	const char *newline = memrchr(text->str, '\n', text->len);
	size_t complete = newline ? (size_t)(newline - text->str) + 1 : 0;
	if (!kvcfs_chain_are_lines(text->str + checked, complete - checked) ||
	    text->len - complete > 2 * KVC_CHUNK_HASH_MAX_BYTES) {
		g_string_truncate(text, old_len);
		handle->has_failed = true;
		return -EINVAL;
	}
	if (!handle->is_replacing &&
	    !kvcfs_chain_has_room(handle->inode->parent->chain, complete)) {
		g_string_truncate(text, old_len);
		handle->has_failed = true;
		return -EFBIG;
	}
	if (!handle->is_replacing && complete > 0) {
		*must_arm = kvcfs_prefix_append_lines_locked(handle->inode->parent, text->str,
							     complete);
		g_string_erase(text, 0, (gssize)complete);
	}
	handle->write_offset += size;
	return (ssize_t)size;
}

/* The chain may have changed: entries have come or gone. */
static void
keys_written(KvcfsInode *keys, bool must_arm)
{
	if (must_arm)
		kvcfs_prefix_arm_save_timer(keys->fs);
	kvcfs_dir_forget_attr(keys->parent);
}

static ssize_t
write_keys(KvcfsHandle *handle, const char *data, size_t size, off_t off, bool is_append)
{
	Kvcfs *fs = handle->inode->fs;
	bool must_arm = false;
	pthread_mutex_lock(&fs->names);
	ssize_t n = write_keys_locked(handle, data, size, off, is_append, &must_arm);
	pthread_mutex_unlock(&fs->names);
	keys_written(handle->inode, must_arm);
	return n;
}

void
kvcfs_keys_begin_replacement(KvcfsHandle *handle)
{
	pthread_mutex_lock(&handle->inode->fs->names);
	g_string_truncate(handle->text, 0);
	handle->write_offset = 0;
	handle->is_replacing = true;
	handle->has_failed = false;
	pthread_mutex_unlock(&handle->inode->fs->names);
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
	int rc = -EOPNOTSUPP;
	if (!(mode & ~FALLOC_FL_KEEP_SIZE) && handle->kind == KVCFS_HANDLE_WRITE)
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
	off_t result = has_file ? lseek(file_of(handle), off, whence) : -1;
	if (!has_file)
		fuse_reply_err(req, EINVAL);
	else if (result < 0)
		fuse_reply_err(req, errno);
	else
		fuse_reply_lseek(req, result);
}

/* ---- FLUSH, RELEASE, FSYNC ------------------------------------------------------------------ */

/*
 * The last line of .keys may lack its newline. What is appended is there now, a replacement with
 * the last close, as a whole: a shell closes the descriptor that it has redirected before the
 * command writes, and the commands of a list close theirs one after the other. A writer that
 * failed, or was killed in the middle, leaves the chain as it is.
 */
static int
flush_keys(KvcfsHandle *handle, pid_t tid)
{
	Kvcfs *fs = handle->inode->fs;
	KvcfsWriterExit how = kvcfs_writer_exit_look(tid);
	bool must_arm = false;
	pthread_mutex_lock(&fs->names);
	GString *text = handle->text;
	bool is_whole = how != KVCFS_WRITER_KILLED && how != KVCFS_WRITER_CUT_OFF;
	bool are_lines = kvcfs_chain_are_lines(text->str, text->len);
	handle->has_failed |= !is_whole || (!are_lines && !handle->is_replacing);
	if (handle->has_failed) {
		kvcfs_closing_end_locked(fs, &handle->closing);
	} else if (handle->is_replacing) {
		kvcfs_closing_begin_locked(fs, &handle->closing);
	} else {
		must_arm = kvcfs_prefix_append_lines_locked(handle->inode->parent, text->str,
							    text->len);
	}
	if (!handle->is_replacing)
		g_string_truncate(text, 0);
	pthread_mutex_unlock(&fs->names);
	keys_written(handle->inode, must_arm);
	return is_whole && !are_lines ? -EINVAL : 0;
}

static void
flush_keys_now(fuse_req_t req, KvcfsWake why, void *user)
{
	fuse_reply_err(req, -flush_keys(user, fuse_req_ctx(req)->pid));
}

/*
 * What has closed an entry or the chain before comes before: its RELEASE is waited for as a LOOKUP
 * does. HANDLE stays, it has not been released.
 */
static void
flush_keys_in_order(fuse_req_t req, KvcfsHandle *handle)
{
	Kvcfs *fs = handle->inode->fs;
	KvcfsClosingFilter filter = {.prefix = handle->inode->parent, .with_entries = true};
	pthread_mutex_lock(&fs->names);
	bool is_replacing = handle->is_replacing;
	kvcfs_closing_end_locked(fs, &handle->closing); /* not for itself */
	pthread_mutex_unlock(&fs->names);
	if (is_replacing && kvcfs_is_closing(fs, &filter))
		kvcfs_wait_for_commit(fs, req, &filter, flush_keys_now, handle);
	else
		flush_keys_now(req, KVCFS_WAKE_DONE, handle);
}

void
kvcfs_keys_release(KvcfsHandle *handle)
{
	Kvcfs *fs = handle->inode->fs;
	const GString *text = handle->text;
	bool must_arm = false;
	pthread_mutex_lock(&fs->names);
	bool replaces = handle->is_replacing && handle->closing.since_ns != 0 &&
			!handle->has_failed && kvcfs_chain_are_lines(text->str, text->len);
	if (replaces)
		must_arm = kvcfs_prefix_replace_locked(handle->inode->parent, text->str, text->len);
	kvcfs_closing_end_locked(fs, &handle->closing);
	pthread_mutex_unlock(&fs->names);
	if (replaces)
		keys_written(handle->inode, must_arm);
}

/*
 * While more than half of L1 is dirty, a writer's close waits for stores to end, at most 1 s:
 * writers are slowed before they are refused.
 */
#define SLOW_WRITER_NS INT64_C(1000000000)
#define SLOW_WRITER_STEP_NS INT64_C(5000000)

typedef struct SlowFlush {
	KvcfsInode *inode; /* the open file keeps it */
	int64_t deadline_ns;
} SlowFlush;

static void
slow_flush_step(fuse_req_t req, KvcfsWake why, void *user)
{
	SlowFlush *slow = user;
	Kvcfs *fs = slow->inode->fs;
	int64_t now = kvcfs_now_ns();
	if (why == KVCFS_WAKE_INTERRUPT || now >= slow->deadline_ns ||
	    !kvc_storage_manager_is_half_dirty(fs->sm)) {
		/* Interrupted or not, the file is closed: the RELEASE is worth waiting for from
		 * now. */
		kvcfs_staging_renew_flush(slow->inode);
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
	if (handle->kind == KVCFS_HANDLE_KEYS_WRITE) {
		flush_keys_in_order(req, handle);
		return;
	}
	if (handle->kind == KVCFS_HANDLE_WRITE)
		rc = kvcfs_staging_flush(handle->inode, fuse_req_ctx(req)->pid);
	if (rc < 0 || handle->kind != KVCFS_HANDLE_WRITE ||
	    !kvc_storage_manager_is_half_dirty(fs->sm)) {
		fuse_reply_err(req, -rc);
		return;
	}
	kvcfs_count(fs, closes_slowed);
	SlowFlush *slow = g_new(SlowFlush, 1);
	*slow = (SlowFlush){handle->inode, kvcfs_now_ns() + SLOW_WRITER_NS};
	slow_flush_step(req, KVCFS_WAKE_DONE, slow);
}

void
kvcfs_op_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	/* What was removed gives its memory back with its last reader. */
	if (handle->object && !kvc_l1_object_is_shared(handle->object))
		kvcfs_loop_hand_over();
	kvcfs_handle_release(handle);
	fuse_reply_err(req, 0);
}

static void
reply_fsync(fuse_req_t req, int error, size_t size)
{
	fuse_reply_err(req, -error);
}

static void
fsync_key(fuse_req_t req, Kvcfs *fs, KvcObjectKey *key)
{
	/* Once the request is answered the inode may go. */
	g_autoptr(KvcObjectKey) held = kvc_object_key_ref(key);
	KvcfsFlushWait *wait = kvcfs_flush_wait_new(fs, req, 1, reply_fsync, 0);
	kvc_storage_manager_flush(fs->sm, held, kvcfs_flush_wait_done, wait);
}

void
kvcfs_op_fsync(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_of(fi);
	KvcfsInode *inode = handle->inode;
	if (handle->object) {
		fsync_key(req, inode->fs, inode->key);
	} else if (inode->kind == KVCFS_KEYS) {
		int rc = kvcfs_prefix_save(inode->parent);
		if (rc < 0)
			fuse_reply_err(req, -rc);
		else
			fsync_key(req, inode->fs, inode->parent->key);
	} else {
		/* Not committed: it cannot be durable yet. */
		fuse_reply_err(req, 0);
	}
}
