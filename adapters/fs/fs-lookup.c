/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Lookups and deletions. The directory is the truth: what others stored is found, what others
 * removed is not.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "fs.h"

int64_t
fs_mtime_ns(const struct stat *st)
{
	return st->st_mtim.tv_sec * INT64_C(1000000000) + st->st_mtim.tv_nsec;
}

char *
fs_find_file(FsAdapter *fs, const KvcObjectKey *key, struct stat *st, int *errnum)
{
	g_autofree char *path = fs_path_format(fs, key);

	*errnum = fstatat(fs->base_fd, path, st, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
	for (unsigned i = 0; *errnum == ENOENT; i++) {
		char *other = fs_path_format_other(fs, key, i);

		if (!other)
			break;
		g_free(path);
		path = other;
		*errnum = fstatat(fs->base_fd, path, st, AT_SYMLINK_NOFOLLOW) < 0 ? errno : 0;
	}
	if (*errnum == 0)
		*errnum = fs_digest_check(fs, key, path, -1);
	return *errnum ? NULL : g_steal_pointer(&path);
}

/* The value of an xattr of PATH below the base as text; false: there is none, or it cannot be read.
 */
static bool
read_xattr(FsAdapter *fs, const char *path, const char *name, char *text, size_t size)
{
	g_autofree char *file = g_strdup_printf("/proc/self/fd/%d/%s", fs->base_fd, path);
	ssize_t len = lgetxattr(file, name, text, size - 1);

	text[MAX(len, 0)] = '\0';
	return len >= 0;
}

static bool
says_other_size(FsAdapter *fs, const char *path, const struct stat *st)
{
	char text[24], expected[24];

	snprintf(expected, sizeof(expected), "%" PRIu64, (uint64_t)st->st_size);
	return read_xattr(fs, path, "user.kvcache.size", text, sizeof(text)) &&
	       strcmp(text, expected);
}

bool
fs_was_replaced(FsAdapter *fs, const char *path, struct stat *st)
{
	struct stat old = *st;

	return fstatat(fs->base_fd, path, st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       (st->st_ino != old.st_ino || st->st_size != old.st_size);
}

bool
fs_is_cut(FsAdapter *fs, const char *path, struct stat *st)
{
	while (says_other_size(fs, path, st)) {
		if (fs_was_replaced(fs, path, st))
			continue;
		atomic_fetch_add(&fs->stats.size_mismatches, 1);
		return true;
	}
	return false;
}

bool
fs_has_other_crc(FsAdapter *fs, const char *path, uint32_t crc)
{
	char text[24], expected[24];

	snprintf(expected, sizeof(expected), "%08x", crc);
	return read_xattr(fs, path, "user.kvcache.crc32c", text, sizeof(text)) &&
	       strcmp(text, expected);
}

bool
fs_is_gone(int errnum)
{
	/* A key whose path the file system does not take was never stored. */
	return errnum == ENOENT || errnum == ENOTDIR || errnum == EINVAL || errnum == EILSEQ ||
	       errnum == ENAMETOOLONG;
}

bool
fs_is_object(FsAdapter *fs, const KvcObjectKey *key, const char *path, struct stat *st)
{
	return S_ISREG(st->st_mode) && !fs_keys_is_corrupt(fs, key, st) &&
	       !fs_is_cut(fs, path, st) && !fs_is_others(fs, key, path, st);
}

/* KEY could not be asked for: a miss now, but nobody is to forget it. */
static void
note_failure(FsAdapter *fs, const KvcObjectKey *key, KvcL2ObjectInfo *info, int errnum)
{
	g_autofree char *path = fs_path_format(fs, key);

	info->mtime_ns = KVC_L2_NOT_ASKED;
	fs_note_error(fs, KVC_TASK_LOOKUP, "look for", path, errnum);
}

/* The lock is taken before the look: a file that was seen is not deleted any more. */
static bool
lookup_and_lock(FsAdapter *fs, KvcObjectKey *key, KvcL2ObjectInfo *info)
{
	struct stat st;
	int errnum;

	if (fs_place_is_lost(fs, KVC_TASK_LOOKUP)) {
		info->mtime_ns = KVC_L2_NOT_ASKED;
		return false;
	}
	if (!fs_keys_lock(fs, key))
		return false;
	g_autofree char *path = fs_find_file(fs, key, &st, &errnum);
	if (path || fs_is_gone(errnum))
		fs_note_answer(fs);
	else
		note_failure(fs, key, info, errnum);
	if (!path && fs_is_gone(errnum))
		fs_capacity_forget(fs->capacity, key);
	if (!path || !S_ISREG(st.st_mode) || fs_keys_is_corrupt(fs, key, &st) ||
	    !fs_attr_read(fs, key, path, &st, info)) {
		fs_keys_unlock(fs, key);
		return false;
	}
	fs_capacity_note(fs->capacity, key, info->bytes);
	return true;
}

void
fs_lookup_run(KvcWork *work)
{
	FsTask *task = (FsTask *)((char *)work - G_STRUCT_OFFSET(FsTask, work));
	FsAdapter *fs = task->fs;
	KvcTask *base = &task->base;

	for (size_t i = 0; i < base->n && !atomic_load(&fs->closing); i++)
		base->hits[i] = lookup_and_lock(fs, base->keys[i], &base->info[i]);
	kvc_task_end_part(base, 0);
}

int
fs_remove_files(FsAdapter *fs, KvcObjectKey *key)
{
	int errnum = 0;

	for (;;) {
		struct stat st;
		g_autofree char *path = fs_find_file(fs, key, &st, &errnum);

		if (!path) {
			if (fs_is_gone(errnum))
				fs_capacity_forget(fs->capacity, key);
			return fs_is_gone(errnum) ? 0 : errnum;
		}
		/* The name is that of a directory now, with newer files; the other spaces have
		 * none. */
		if (S_ISDIR(st.st_mode) && key->space == KVC_SPACE_PLAIN)
			return 0;
		if (unlinkat(fs->base_fd, path, 0) < 0) {
			if (errno != ENOENT)
				return errno;
			continue;
		}
		atomic_fetch_sub(&fs->bytes_used, st.st_size);
		atomic_fetch_sub(&fs->objects, 1);
		fs_prune_parents(fs, path);
	}
}

/*
 * With fsync: what DELETED says is so on the disk too, or it says so no longer. Also of what was
 * gone already: the call that removed it may have failed to sync. 0 or -errno.
 */
static int
sync_deleted(FsAdapter *fs, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	g_autofree char *last = NULL;
	int rc = 0, result = 0;

	for (size_t i = 0; i < n; i++) {
		if (!kvc_bitmap_test(deleted, i))
			continue;
		g_autofree char *path = fs_path_format(fs, keys[i]);
		g_autofree char *dir = g_path_get_dirname(path);
		if (g_strcmp0(dir, last)) /* else as for the one before */
			rc = fs_sync_parents(fs, path);
		g_free(last);
		last = g_steal_pointer(&dir);
		if (rc == 0)
			continue;
		kvc_bitmap_clear(deleted, i);
		if (result == 0)
			fs_note_error(fs, KVC_TASK_STORE, "sync the deletion of", path, -rc);
		result = rc;
	}
	return result;
}

int
fs_delete_keys(FsAdapter *fs, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	int result = 0;

	if (fs_place_is_lost(fs, KVC_TASK_STORE))
		return -FS_LOST;
	for (size_t i = 0; i < n; i++) {
		if (!fs_keys_begin_delete(fs, keys[i]))
			continue;
		int errnum = fs_remove_files(fs, keys[i]);
		fs_keys_end_delete(fs, keys[i]);
		if (errnum == 0) {
			fs_keys_forget_corrupt(fs, keys[i]);
			kvc_bitmap_set(deleted, i);
		} else if (result == 0) {
			result = -errnum;
		}
	}
	int rc = fs->fsync ? sync_deleted(fs, keys, n, deleted) : 0;
	fs_note_space(fs);
	return result ? result : rc;
}
