/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loads: open, compare sizes, payload by the ring straight into the given memory, CRC. A file that
 * does not hold what was written under its name is a miss and remembered as corrupt, so that
 * lookups do not find it again and the next store replaces it.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>

#include <kvcache/crc.h>

#include "fs.h"

#define BAD_SIZE "does not have the size it was stored with"
#define BAD_CRC "does not have the CRC32C it was stored with"

static FsJob *
job_of(KvcWork *work)
{
	return (FsJob *)((char *)work - G_STRUCT_OFFSET(FsJob, work));
}

static void
load_end(FsJob *job)
{
	FsStats *stats = &job->fs->stats;

	atomic_fetch_add(job->loaded ? &stats->loads : &stats->load_misses, 1);
	if (job->loaded) {
		fs_note_success(job->fs, KVC_TASK_LOAD);
		fs_capacity_touch(job->fs->capacity, job->key);
	}
	fs_job_end(job, job->loaded ? (int64_t)job->object.bytes : 0);
}

static void
load_fail(FsJob *job, const char *what, int errnum)
{
	fs_note_error(job->fs, KVC_TASK_LOAD, what, job->path, errnum);
	load_end(job);
}

static void
load_reject(FsJob *job, _Atomic uint64_t *counter, const char *why)
{
	atomic_fetch_add(counter, 1);
	fs_keys_note_corrupt(job->fs, job->key, &job->st);
	fs_note_bad_file(job->fs, job->path, why);
	load_end(job);
}

/* Nothing is wrong with the file by itself: it was replaced, or cut where nothing says its size. */
static void
load_mismatch(FsJob *job)
{
	g_autofree char *why = g_strdup_printf(
		"has %" G_GINT64_FORMAT " bytes, not the %" G_GSIZE_FORMAT " that were looked up",
		(int64_t)job->st.st_size, job->object.bytes);

	atomic_fetch_add(&job->fs->stats.size_mismatches, 1);
	fs_note_bad_file(job->fs, job->path, why);
	load_end(job);
}

/* Absent, or something under this name that no store of ours made: nothing to tell anybody. */
static bool
is_absent(int errnum)
{
	return errnum == ENOENT || errnum == ENOTDIR || errnum == ELOOP || errnum == ENAMETOOLONG;
}

/* Opens the file; 0 or a positive errno. A fifo must not keep a worker: O_NONBLOCK. */
static int
open_object(FsJob *job)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
	int base_fd = job->fs->base_fd;

	job->fd = openat(base_fd, job->path, flags);
	for (unsigned i = 0; job->fd < 0 && errno == ENOENT; i++) {
		char *other = fs_path_format_other(job->fs, job->key, i);

		if (!other)
			return ENOENT;
		g_free(job->path);
		job->path = other;
		job->fd = openat(base_fd, job->path, flags);
	}
	if (job->fd < 0)
		return errno;
	if (fstat(job->fd, &job->st) < 0)
		return errno;
	return fs_digest_check(job->fs, job->key, job->path, job->fd);
}

/* The value of an xattr as text: 1, 0 when there is none, or -errno. */
static int
get_xattr(FsJob *job, const char *name, char *text, size_t size)
{
	ssize_t len = fgetxattr(job->fd, name, text, size - 1);

	if (len >= 0 || errno == ERANGE) {
		text[MAX(len, 0)] = '\0'; /* too long is not a value of ours: equals nothing */
		return 1;
	}
	if (errno == ENOTSUP)
		fs_note_no_xattrs(job->fs, errno);
	return errno == ENODATA || errno == ENOTSUP ? 0 : -errno;
}

/* Does the file have the size it says and the one that was asked for? Else the job is over. */
static bool
check_size(FsJob *job)
{
	char text[24], expected[24];
	int rc = get_xattr(job, "user.kvcache.size", text, sizeof(text));

	g_snprintf(expected, sizeof(expected), "%" G_GINT64_FORMAT, (int64_t)job->st.st_size);
	if (rc < 0) {
		load_fail(job, "read the size of", -rc);
	} else if (rc == 1 && strcmp(text, expected)) {
		load_reject(job, &job->fs->stats.size_mismatches, BAD_SIZE);
	} else if ((uint64_t)job->st.st_size != job->object.bytes) {
		load_mismatch(job);
	} else {
		return true;
	}
	return false;
}

/* Is the file the one that was written for the key? Else the job is over. */
static bool
check_id(FsJob *job)
{
	char text[FS_ID_MAX_BYTES];
	struct stat st;
	int rc = get_xattr(job, FS_ID_XATTR, text, sizeof(text));

	if (rc < 0) {
		load_fail(job, "read the id of", -rc);
	} else if (rc == 1 && !fs_id_names(text, job->key)) {
		/* Moved since it was opened: simply not there any more. */
		if (fstatat(job->fs->base_fd, job->path, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    st.st_ino == job->st.st_ino)
			fs_id_reject(job->fs, job->path);
		load_end(job);
	} else {
		return true;
	}
	return false;
}

/* Reads the CRC the file was stored with, if any (LMCache's own has none: its size has to do). */
static bool
read_crc(FsJob *job)
{
	char text[24], back[24];
	int rc = get_xattr(job, "user.kvcache.crc32c", text, sizeof(text));

	if (rc < 0) {
		load_fail(job, "read the checksum of", -rc);
		return false;
	}
	if (rc == 0 || !job->fs->verify)
		return true;
	job->has_crc = true;
	job->crc = (uint32_t)strtoul(text, NULL, 16);
	g_snprintf(back, sizeof(back), "%08x", job->crc);
	if (!strcmp(text, back))
		return true;
	load_reject(job, &job->fs->stats.crc_mismatches, BAD_CRC);
	return false;
}

static bool
is_intact(FsJob *job)
{
	return !job->has_crc || job->crc == kvc_crc32c(0, job->object.data, job->object.bytes);
}

static void load_transferred(KvcIoTransfer *transfer);

static void
load_finish(KvcWork *work)
{
	FsJob *job = job_of(work);

	if (fs_job_was_refused(job)) {
		fs_job_transfer(job, false, load_transferred);
	} else if (job->transfer.error) {
		load_fail(job, "read", -job->transfer.error);
	} else if (job->transfer.transferred < job->object.bytes) {
		load_reject(job, &job->fs->stats.size_mismatches, BAD_SIZE);
	} else if (!is_intact(job)) {
		load_reject(job, &job->fs->stats.crc_mismatches, BAD_CRC);
	} else {
		job->loaded = true;
		load_end(job);
	}
}

static void
load_transferred(KvcIoTransfer *transfer)
{
	FsJob *job = transfer->user;

	job->work.run = load_finish;
	kvc_pool_push(job->fs->workers, KVC_POOL_FINISH, &job->work);
}

void
fs_load_begin(KvcWork *work)
{
	FsJob *job = job_of(work);
	int errnum;

	if (atomic_load(&job->fs->closing)) {
		load_end(job);
		return;
	}
	if (fs_place_is_lost(job->fs, KVC_TASK_LOAD)) {
		load_end(job);
		return;
	}
	job->path = fs_path_format(job->fs, job->key);
	errnum = open_object(job);
	if (is_absent(errnum) || (errnum == 0 && !S_ISREG(job->st.st_mode))) {
		load_end(job);
		return;
	}
	if (errnum) {
		load_fail(job, "open", errnum);
		return;
	}
	if (!check_id(job) || !check_size(job) || !read_crc(job))
		return;
	int rc = fs_job_set_mode(job, true);
	if (rc < 0)
		load_fail(job, "set the mode of", -rc);
	else
		fs_job_transfer(job, false, load_transferred);
}
