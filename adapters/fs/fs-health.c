/* SPDX-License-Identifier: Apache-2.0 */

/* What the adapter tells about itself: errors, logs, usage, status. */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <sys/statvfs.h>

#include "fs.h"

#define SPACE_NS KVC_SEC_NS
/* The directory itself is looked at after the first failure and then so often. */
#define DIRECTORY_NS KVC_SEC_NS

/* 0, or why nothing can be done in the directory (positive): its server or its disk is gone, ... */
static int
ask_directory(FsAdapter *fs)
{
	struct stat st;

	if (fstatat(fs->base_fd, ".", &st, 0) < 0)
		return errno;
	return st.st_nlink == 0 ? ENOENT : 0; /* removed under us */
}

/* Is the directory to be looked at, after so many failures in a row? */
static bool
is_directory_due(FsAdapter *fs, unsigned in_a_row)
{
	int64_t now = kvc_now_ns();

	if (in_a_row == 0 ||
	    (in_a_row > 1 && now - atomic_load(&fs->directory_asked_ns) < DIRECTORY_NS))
		return false;
	atomic_store(&fs->directory_asked_ns, now);
	return true;
}

void
fs_note_error(FsAdapter *fs, KvcTaskKind kind, const char *what, const char *path, int errnum)
{
	unsigned in_a_row = kvc_failures_note(fs->failures, kind, what, path, errnum);

	if (is_directory_due(fs, in_a_row))
		atomic_store(&fs->directory_errnum, ask_directory(fs));
}

void
fs_note_success(FsAdapter *fs, KvcTaskKind kind)
{
	kvc_failures_clear(fs->failures, kind, true);
	if (atomic_load(&fs->directory_errnum))
		atomic_store(&fs->directory_errnum, 0);
}

/* Of a directory that was removed everything can be asked, so that proves nothing by itself. */
void
fs_note_answer(FsAdapter *fs)
{
	kvc_failures_clear(fs->failures, KVC_TASK_LOOKUP, false);
	bool is_suspect =
		kvc_failures_in_a_row(fs->failures) > 0 || atomic_load(&fs->directory_errnum);
	if (is_suspect && ask_directory(fs) == 0)
		fs_note_success(fs, KVC_TASK_LOOKUP);
}

void
fs_note_bad_file(FsAdapter *fs, const char *path, const char *why)
{
	kvc_failures_warn(fs->failures, path, "\"%s\" %s: a miss", path, why);
}

void
fs_note_unsupported(FsAdapter *fs, const KvcObjectKey *key, int errnum)
{
	g_autofree char *name = kvc_object_key_to_string(key);

	atomic_fetch_add(&fs->stats.unsupported_keys, 1);
	kvc_failures_warn(fs->failures, name,
			  "cannot store \"%s\": no file can have this name here, nor this key as "
			  "an xattr: %s (errno %d)",
			  name, g_strerror(errnum), errnum);
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

	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++)
		kvc_describe_count(func, user, lines[i].name, atomic_load(lines[i].value));
}

void
fs_describe(FsAdapter *fs, KvcDescribeFunc func, void *user)
{
	bool is_direct = fs->want_direct && !atomic_load(&fs->direct_refused);
	bool is_failed = atomic_load(&fs->is_lost) || atomic_load(&fs->directory_errnum);

	kvc_failures_describe(fs->failures, is_failed, func, user);
	func(user, "io_mode", is_direct ? "direct" : "buffered");
	func(user, "location", fs->base_path);
	func(user, "checksums", checksums_name(fs));
	describe_stats(fs, func, user);
}
