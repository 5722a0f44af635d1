/* SPDX-License-Identifier: Apache-2.0 */

/* What the adapter tells about itself: errors, logs, usage, status. */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <string.h>
#include <sys/statvfs.h>

#include "fs.h"

/* Health stays "degraded" for so long after the last failure. */
#define DEGRADED_NS (60 * KVC_SEC_NS)
/* At most one line of warning in this time, and none for the file that had the last one. */
#define WARN_NS KVC_SEC_NS
#define SPACE_NS KVC_SEC_NS
/* So many failures without a success between them: nothing works. */
#define FAILED_IN_A_ROW 8
/* The directory itself is looked at after the first failure and then so often. */
#define DIRECTORY_NS KVC_SEC_NS

/* How many warnings were left out before this one, or -1: leave this one out too. */
static int
take_warning_locked(FsAdapter *fs, const char *path)
{
	int64_t now = kvc_now_ns();
	int suppressed = (int)fs->warnings_suppressed;

	if ((fs->warned_ns && now - fs->warned_ns < WARN_NS) || !g_strcmp0(fs->warned_path, path)) {
		fs->warnings_suppressed++;
		return -1;
	}
	fs->warned_ns = now;
	fs->warnings_suppressed = 0;
	g_free(fs->warned_path);
	fs->warned_path = g_strdup(path);
	return suppressed;
}

/* 0, or why nothing can be done in the directory (positive): its server or its disk is gone, ... */
static int
ask_directory(FsAdapter *fs)
{
	struct stat st;

	if (fstatat(fs->base_fd, ".", &st, 0) < 0)
		return errno;
	return st.st_nlink == 0 ? ENOENT : 0; /* removed under us */
}

static void
note_directory(FsAdapter *fs)
{
	int errnum = ask_directory(fs);

	pthread_mutex_lock(&fs->lock);
	fs->directory_errnum = errnum;
	pthread_mutex_unlock(&fs->lock);
}

/* Counts a failure; true: the directory is to be looked at. */
static bool
count_failure_locked(FsAdapter *fs, FsKind kind, int errnum)
{
	int64_t now = fs->last_error_ns = kvc_now_ns();
	bool is_lack_of_room = errnum == ENOSPC || errnum == EDQUOT || errnum == EROFS;

	fs->failing[kind]++;
	if (is_lack_of_room) /* what is there can be read */
		return false;
	if (++fs->failed_in_a_row > 1 && now - fs->directory_asked_ns < DIRECTORY_NS)
		return false;
	fs->directory_asked_ns = now;
	return true;
}

void
fs_count_error(FsAdapter *fs, FsKind kind)
{
	_Atomic uint64_t *const counters[FS_KINDS] = {
		&fs->stats.store_errors, &fs->stats.lookup_errors, &fs->stats.load_errors};

	atomic_fetch_add(counters[kind], 1);
}

void
fs_note_error(FsAdapter *fs, FsKind kind, const char *what, const char *path, int errnum)
{
	static const char *const names[FS_KINDS] = {"store", "lookup", "load"};

	fs_count_error(fs, kind);
	pthread_mutex_lock(&fs->lock);
	bool is_suspect = count_failure_locked(fs, kind, errnum);
	g_free(fs->last_error);
	fs->last_error = g_strdup_printf("%s failed: cannot %s \"%s\": %s (errno %d)", names[kind],
					 what, path, g_strerror(errnum), errnum);
	g_autofree char *text = g_strdup(fs->last_error);
	int suppressed = take_warning_locked(fs, path);
	pthread_mutex_unlock(&fs->lock);
	if (is_suspect)
		note_directory(fs);
	if (suppressed >= 0)
		g_warning("fs %s: %s (%d more not shown)", fs->base_path, text, suppressed);
}

void
fs_note_success(FsAdapter *fs, FsKind kind)
{
	pthread_mutex_lock(&fs->lock);
	fs->failing[kind] = 0;
	fs->failed_in_a_row = 0;
	fs->directory_errnum = 0;
	pthread_mutex_unlock(&fs->lock);
}

/* Of a directory that was removed everything can be asked, so that proves nothing by itself. */
void
fs_note_answer(FsAdapter *fs)
{
	pthread_mutex_lock(&fs->lock);
	fs->failing[FS_LOOKUP] = 0;
	bool is_suspect = fs->failed_in_a_row > 0 || fs->directory_errnum;
	pthread_mutex_unlock(&fs->lock);
	if (is_suspect && ask_directory(fs) == 0)
		fs_note_success(fs, FS_LOOKUP);
}

void
fs_note_bad_file(FsAdapter *fs, const char *path, const char *why)
{
	pthread_mutex_lock(&fs->lock);
	int suppressed = take_warning_locked(fs, path);
	pthread_mutex_unlock(&fs->lock);
	if (suppressed >= 0)
		g_warning("fs %s: \"%s\" %s: a miss (%d more not shown)", fs->base_path, path, why,
			  suppressed);
}

void
fs_note_unsupported(FsAdapter *fs, const KvcObjectKey *key, int errnum)
{
	g_autofree char *name = kvc_object_key_to_string(key);

	atomic_fetch_add(&fs->stats.unsupported_keys, 1);
	pthread_mutex_lock(&fs->lock);
	int suppressed = take_warning_locked(fs, name);
	pthread_mutex_unlock(&fs->lock);
	if (suppressed >= 0)
		g_warning(
			"fs %s: cannot store \"%s\": no file can have this name here, nor this key "
			"as an xattr: %s (errno %d) (%d more not shown)",
			fs->base_path, name, g_strerror(errnum), errnum, suppressed);
}

void
fs_note_refused(FsAdapter *fs, int errnum)
{
	if (!atomic_exchange(&fs->direct_refused, true))
		g_warning("fs %s: O_DIRECT is refused here: %s (errno %d); going on with buffered "
			  "I/O",
			  fs->base_path, g_strerror(errnum), errnum);
}

void
fs_note_no_xattrs(FsAdapter *fs, int errnum)
{
	if (!atomic_exchange(&fs->no_xattrs, true))
		g_warning(
			"fs %s: this file system has no user xattrs: %s (errno %d); objects carry "
			"no checksums",
			fs->base_path, g_strerror(errnum), errnum);
}

void
fs_note_space(FsAdapter *fs)
{
	struct statvfs vfs;
	int64_t now = kvc_now_ns();

	pthread_mutex_lock(&fs->lock);
	bool is_due = !fs->space_ns || now - fs->space_ns >= SPACE_NS;
	if (is_due)
		fs->space_ns = now;
	pthread_mutex_unlock(&fs->lock);
	if (!is_due)
		return;
	bool known = fstatvfs(fs->base_fd, &vfs) == 0;
	pthread_mutex_lock(&fs->lock);
	fs->space_known = known;
	fs->free_bytes = known ? (uint64_t)vfs.f_bavail * vfs.f_frsize : 0;
	pthread_mutex_unlock(&fs->lock);
}

/* The capacity is what this cache uses plus what is free: the rest of the disk is not ours. */
void
fs_usage(FsAdapter *fs, KvcL2Usage *usage)
{
	int64_t bytes = atomic_load(&fs->bytes_used), objects = atomic_load(&fs->objects);

	usage->bytes_used = (uint64_t)MAX(bytes, 0);
	usage->objects = (uint64_t)MAX(objects, 0);
	pthread_mutex_lock(&fs->lock);
	usage->capacity_bytes = fs->space_known ? usage->bytes_used + fs->free_bytes : 0;
	pthread_mutex_unlock(&fs->lock);
	fs_capacity_get_usage(fs->capacity, usage);
}

static const char *
health_locked(const FsAdapter *fs)
{
	bool is_failing = fs->last_error && kvc_now_ns() - fs->last_error_ns < DEGRADED_NS;

	if (atomic_load(&fs->is_lost) || fs->directory_errnum ||
	    fs->failed_in_a_row >= FAILED_IN_A_ROW)
		return "failed";
	for (size_t i = 0; i < FS_KINDS; i++)
		is_failing = is_failing || fs->failing[i] > 0;
	return is_failing ? "degraded" : "ok";
}

static const char *
checksums_name(const FsAdapter *fs)
{
	if (atomic_load(&fs->no_xattrs))
		return "unsupported";
	return fs->verify ? "crc32c" : "off";
}

static void
describe_stats(FsAdapter *fs, KvcDescribeFunc func, void *user)
{
	FsStats *stats = &fs->stats;
	const struct {
		const char *name;
		_Atomic uint64_t *value;
	} lines[] = {
		{"stores", &stats->stores},
		{"loads", &stats->loads},
		{"skipped", &stats->skipped},
		{"renames", &stats->renames},
		{"store_errors", &stats->store_errors},
		{"lookup_errors", &stats->lookup_errors},
		{"load_errors", &stats->load_errors},
		{"load_misses", &stats->load_misses},
		{"crc_mismatches", &stats->crc_mismatches},
		{"size_mismatches", &stats->size_mismatches},
		{"id_mismatches", &stats->id_mismatches},
		{"foreign_files", &stats->foreign_files},
		{"unsupported_keys", &stats->unsupported_keys},
		{"attribute_errors", &stats->attribute_errors},
		{"evicted", &stats->evicted},
		{"orphans_removed", &stats->orphans_removed},
	};

	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++) {
		char text[24];

		g_snprintf(text, sizeof(text), "%" G_GUINT64_FORMAT, atomic_load(lines[i].value));
		func(user, lines[i].name, text);
	}
}

void
fs_describe(FsAdapter *fs, KvcDescribeFunc func, void *user)
{
	bool direct = fs->want_direct && !atomic_load(&fs->direct_refused);

	pthread_mutex_lock(&fs->lock);
	const char *health = health_locked(fs);
	g_autofree char *last_error = g_strdup(fs->last_error);
	pthread_mutex_unlock(&fs->lock);

	func(user, "health", health);
	func(user, "io_mode", direct ? "direct" : "buffered");
	func(user, "location", fs->base_path);
	func(user, "checksums", checksums_name(fs));
	if (last_error)
		func(user, "last_error", last_error);
	describe_stats(fs, func, user);
}
