/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stores: a temporary file in the same directory, payload by the ring while a worker computes the
 * CRC, xattrs, rename. Whatever fails, the name stays as it was.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <kvcache/crc.h>

#include "fs.h"

static FsJob *
job_of(KvcWork *work)
{
	return (FsJob *)((char *)work - G_STRUCT_OFFSET(FsJob, work));
}

/* The job is over, with RESULT >= 0 bytes written or -errno at the step WHAT. */
static void
store_end(FsJob *job, int64_t result, const char *what)
{
	FsAdapter *fs = job->fs;
	const char *path = job->temp_path ? job->temp_path : job->path;

	if (result < 0 && job->temp_path) {
		unlinkat(fs->base_fd, job->temp_path, 0);
		fs_prune_parents(fs, job->temp_path);
	}
	/* In this order: whoever waits for room may want to evict this very object. */
	fs_keys_end_store(fs, job->key);
	if (job->has_room)
		fs_capacity_release(fs->capacity, job->reserved);
	if (result == -ENOENT) /* the directory was removed? */
		fs_place_look(fs);
	if (fs_place_is_lost(fs, KVC_TASK_STORE))
		result = -FS_LOST;
	else if (result >= 0)
		fs_note_success(fs, KVC_TASK_STORE);
	else if (path && fs_digest_is_keys_fault(job->path, (int)result))
		fs_note_unsupported(fs, job->key, (int)-result);
	else if (path)
		fs_note_error(fs, KVC_TASK_STORE, what, path, (int)-result);
	fs_job_end(job, result);
}

/*
 * Is the object there already? In the other spaces it is replaced, and so is a file that says
 * itself that its bytes are not these (LMCache's own say nothing: their name and size have to do).
 */
static bool
is_stored(FsJob *job)
{
	struct stat st;

	if (job->key->space != KVC_SPACE_CHUNK)
		return false;
	if (fstatat(job->fs->base_fd, job->path, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	if (!S_ISREG(st.st_mode) || (uint64_t)st.st_size != job->object.bytes ||
	    fs_keys_is_corrupt(job->fs, job->key, &st) ||
	    fs_digest_check(job->fs, job->key, job->path, -1) != 0 ||
	    fs_is_others(job->fs, job->key, job->path, &st))
		return false;
	uint32_t crc = kvc_crc32c(0, job->object.data, job->object.bytes);
	return !fs_has_other_crc(job->fs, job->path, crc);
}

/* From here on its directories stay. Until then those that were just made may go again. */
static int
create_temp(FsJob *job)
{
	const int flags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;

	for (int i = 0;; i++) {
		job->fd = openat(job->fs->base_fd, job->temp_path, flags,
				 fs_attr_file_mode(job->object.attributes));
		if (job->fd >= 0)
			return 0;
		int rc = -errno;
		if (rc != -ENOENT || i == FS_RACES_MAX)
			return rc;
		rc = fs_make_parents(job->fs, job->temp_path);
		if (rc < 0 && rc != -ENOENT)
			return rc;
	}
}

static int
open_temp(FsJob *job)
{
	int rc = -EEXIST;

	/* Another pid name space may have a process with our pid. */
	for (int i = 0; rc == -EEXIST && i < FS_RACES_MAX; i++) {
		g_free(job->temp_path);
		job->temp_path = fs_temp_path_new(job->fs, job->path);
		rc = create_temp(job);
	}
	if (rc < 0)
		return rc;
	/* Tells the janitors of other processes, also in other pid name spaces, that it is alive.
	 */
	flock(job->fd, LOCK_EX | LOCK_NB);
	return fs_job_set_mode(job, true);
}

/* Direct writes that extend the file are done one by one; so it gets its size first. */
static int
preallocate(FsJob *job)
{
	if (!job->direct ||
	    fallocate(job->fd, 0, 0, (off_t)kvc_io_align_up(job->object.bytes)) == 0)
		return 0;
	return errno == ENOSPC || errno == EDQUOT || errno == EFBIG ? -errno : 0;
}

static int
set_xattrs(FsJob *job)
{
	char text[24];
	int len = snprintf(text, sizeof(text), "%08x", job->crc);
	int rc = fs_is_digest_name(job->path) ? fs_digest_write_key(job->fs, job->fd, job->key) : 0;

	if (rc < 0)
		return rc;
	if (atomic_load(&job->fs->no_xattrs))
		return 0;
	if (fsetxattr(job->fd, "user.kvcache.crc32c", text, (size_t)len, 0) == 0) {
		len = snprintf(text, sizeof(text), "%zu", job->object.bytes);
		if (fsetxattr(job->fd, "user.kvcache.size", text, (size_t)len, 0) == 0)
			return fs_is_digest_name(job->path) ? 0 : fs_id_write(job->fd, job->key);
	}
	if (errno != ENOTSUP)
		return -errno;
	fs_note_no_xattrs(job->fs, errno);
	return 0;
}

/* The usage after the file OLD (if it was there) was replaced by ours. */
static void
count_stored(FsJob *job, const struct stat *old)
{
	FsAdapter *fs = job->fs;

	atomic_fetch_add(&fs->stats.stores, 1);
	atomic_fetch_add(&fs->bytes_used, (int64_t)job->object.bytes - (old ? old->st_size : 0));
	if (!old)
		atomic_fetch_add(&fs->objects, 1);
	fs_capacity_settle(fs->capacity, job->key, job->object.bytes);
	job->reserved = 0;
	fs_note_space(fs);
	if (!fs->ours)
		return;
	pthread_mutex_lock(&fs->lock);
	g_hash_table_add(fs->ours, kvc_object_key_ref(job->key));
	pthread_mutex_unlock(&fs->lock);
}

static int
rename_temp(FsJob *job)
{
	int base_fd = job->fs->base_fd;
	struct stat old;
	bool existed =
		fstatat(base_fd, job->path, &old, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(old.st_mode);
	int rc = fs_move(job->fs, job->temp_path, job->path);

	if (rc < 0)
		return rc;
	fs_keys_forget_corrupt(job->fs, job->key);
	count_stored(job, existed ? &old : NULL);
	return 0;
}

/* Two stores of one name are published in the order of their submits, whichever is ready first. */
static int
publish(FsJob *job)
{
	FsAdapter *fs = job->fs;
	int rc = 0;

	if (job->key->space == KVC_SPACE_CHUNK)
		return rename_temp(job);
	pthread_mutex_lock(&fs->replace_lock);
	job->superseded = !fs_keys_note_publish(fs, job->key, job->sequence);
	if (!job->superseded)
		rc = rename_temp(job);
	pthread_mutex_unlock(&fs->replace_lock);
	if (job->superseded)
		unlinkat(fs->base_fd, job->temp_path, 0);
	return rc;
}

static void store_transferred(KvcIoTransfer *transfer);

/* The payload is on its way or back, and the CRC is known. */
static void
store_finish(KvcWork *work)
{
	FsJob *job = job_of(work);
	size_t bytes = job->object.bytes;

	if (fs_job_was_refused(job)) {
		atomic_store(&job->parts, 1);
		fs_job_transfer(job, true, store_transferred);
		return;
	}
	if (job->transfer.error || job->transfer.transferred < bytes) {
		store_end(job, job->transfer.error ? job->transfer.error : -EIO, "write");
		return;
	}
	/* The tail of an O_DIRECT write, or of what was allocated for one. */
	if (job->transfer.bytes != bytes || !job->direct) {
		if (ftruncate(job->fd, (off_t)bytes) < 0) {
			store_end(job, -errno, "truncate");
			return;
		}
	}
	int rc = set_xattrs(job);
	if (rc < 0) {
		store_end(job, rc, "set xattr");
		return;
	}
	fs_attr_write(job->fs, job->fd, job->path, job->object.attributes, FS_ATTR_NEW);
	if (job->fs->fsync && fsync(job->fd) < 0) {
		store_end(job, -errno, "sync");
		return;
	}
	rc = publish(job);
	if (rc < 0) {
		store_end(job, rc, "rename");
		return;
	}
	rc = fs_sync_parents(job->fs, job->path);
	store_end(job, rc < 0 ? rc : (int64_t)bytes, "sync");
}

/* CRC and payload end in any order; the later one goes on. */
static bool
is_last_part(FsJob *job)
{
	return atomic_fetch_sub(&job->parts, 1) == 1;
}

static void
store_transferred(KvcIoTransfer *transfer)
{
	FsJob *job = transfer->user;

	if (!is_last_part(job))
		return;
	job->work.run = store_finish;
	kvc_pool_push(job->fs->workers, KVC_POOL_FINISH, &job->work);
}

/* Of a file that is there already: others may have written it, or it could not be synced. */
static int
sync_stored(FsJob *job)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

	if (!job->fs->fsync)
		return 0;
	job->fd = openat(job->fs->base_fd, job->path, flags);
	if (job->fd < 0 || fsync(job->fd) < 0)
		return -errno;
	return fs_sync_parents(job->fs, job->path);
}

static void
store_skip(FsJob *job)
{
	int rc = sync_stored(job);

	fs_capacity_note(job->fs->capacity, job->key, job->object.bytes);
	if (rc == 0)
		atomic_fetch_add(&job->fs->stats.skipped, 1);
	store_end(job, rc, "sync");
}

void
fs_store_begin(KvcWork *work)
{
	FsJob *job = job_of(work);

	if (atomic_load(&job->fs->closing)) {
		store_end(job, -ECANCELED, NULL);
		return;
	}
	if (atomic_load(&job->fs->is_lost)) {
		store_end(job, -FS_LOST, NULL);
		return;
	}
	if (fs_capacity_await_count(job->fs->capacity, work))
		return;
	g_free(job->path); /* of a run before that had to wait */
	job->path = fs_path_format(job->fs, job->key);
	if (fs_is_digest_name(job->path) && atomic_load(&job->fs->no_xattrs)) {
		store_end(job, -ENOTSUP, "set xattr");
		return;
	}
	fs_keys_await_delete(job->fs, job->key);
	if (is_stored(job)) {
		fs_attr_add(job->fs, job->key, job->object.attributes);
		store_skip(job);
		return;
	}
	int rc = fs_capacity_reserve(job->fs->capacity, job->object.bytes, work);
	if (rc == -EAGAIN)
		return;
	if (rc < 0) {
		store_end(job, rc, "make room within max_capacity_gb for");
		return;
	}
	job->has_room = true;
	job->reserved = job->object.bytes;
	rc = open_temp(job);
	if (rc < 0) {
		store_end(job, rc, "create");
		return;
	}
	rc = preallocate(job);
	if (rc == -ENOSPC && fs_capacity_free_bytes(job->fs->capacity, job->object.bytes))
		rc = preallocate(job);
	if (rc < 0) {
		store_end(job, rc, "allocate");
		return;
	}
	atomic_store(&job->parts, 2);
	fs_job_transfer(job, true, store_transferred);
	job->crc = kvc_crc32c(0, job->object.data, job->object.bytes);
	if (is_last_part(job))
		store_finish(work);
}

void
fs_remove_stored(FsAdapter *fs)
{
	GHashTableIter iter;
	void *key;

	if (!fs->ours)
		return;
	g_hash_table_iter_init(&iter, fs->ours);
	while (g_hash_table_iter_next(&iter, &key, NULL)) {
		g_autofree char *path = fs_path_format(fs, key);

		if (unlinkat(fs->base_fd, path, 0) == 0)
			fs_prune_parents(fs, path);
	}
	/* If this emptied them; base_path itself stays. */
	unlinkat(fs->base_fd, FS_PLAIN_DIR, AT_REMOVEDIR);
	unlinkat(fs->base_fd, FS_PREFIX_DIR, AT_REMOVEDIR);
}
