/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Renaming: the file goes to the path of the other key, with its xattrs.
 *
 * A file under a digest name carries its key. It gets the new one before it moves: a crash between
 * the two leaves a file that does not belong under its name, which is foreign and never found. A
 * file that moves to a path of its own may keep the key of a digest name for a moment; nobody reads
 * it there. Every other file names both keys while it moves (fs-id.c).
 */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fs.h"

typedef struct Move {
	FsAdapter *fs;
	FsMove file;
	int fd; /* of the file, when its key changes */
} Move;

static int
open_file(Move *move)
{
	const int flags = O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;

	if (!fs_is_digest_name(move->file.from) && !fs_is_digest_name(move->file.to))
		return 0; /* no xattr changes */
	move->fd = openat(move->fs->base_fd, move->file.from, flags);
	return move->fd < 0 ? -errno : 0;
}

/* The xattr as it has to be under PATH, the one of KEY. */
static int
set_key(Move *move, const char *path, const KvcObjectKey *key)
{
	if (fs_is_digest_name(path))
		return fs_digest_write_key(move->fs, move->fd, key);
	return move->fd < 0 ? 0 : fs_digest_remove_key(move->fd);
}

/* 0 or -errno, then nothing has changed. */
static int
move_file(Move *move)
{
	const FsMove *file = &move->file;
	bool is_first = fs_is_digest_name(file->to);
	int rc = open_file(move), had_id = rc < 0 ? rc : fs_id_begin_move(move->fs, file);

	if (had_id < 0)
		return had_id;
	if (is_first)
		rc = set_key(move, file->to, file->new_key);
	if (rc == 0)
		rc = fs_move(move->fs, file->from, file->to);
	if (rc < 0 && is_first)
		set_key(move, file->from, file->old_key);
	else if (rc == 0 && !is_first)
		set_key(move, file->to, file->new_key);
	fs_id_end_move(move->fs, file, had_id == 1, rc == 0);
	return rc;
}

/* The object under the new key is of this run if the one under the old key was. */
static void
note_owner(FsAdapter *fs, const KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	if (!fs->ours)
		return;
	pthread_mutex_lock(&fs->lock);
	if (g_hash_table_remove(fs->ours, old_key))
		g_hash_table_add(fs->ours, kvc_object_key_ref(new_key));
	else
		g_hash_table_remove(fs->ours, new_key);
	pthread_mutex_unlock(&fs->lock);
}

static void
note_moved(Move *move, const struct stat *replaced)
{
	FsAdapter *fs = move->fs;
	struct stat st;

	atomic_fetch_add(&fs->stats.renames, 1);
	if (replaced) {
		atomic_fetch_sub(&fs->bytes_used, replaced->st_size);
		atomic_fetch_sub(&fs->objects, 1);
	}
	fs_keys_forget_corrupt(fs, move->file.new_key);
	note_owner(fs, move->file.old_key, move->file.new_key);
	fs_prune_parents(fs, move->file.from);
	if (fstatat(fs->base_fd, move->file.to, &st, AT_SYMLINK_NOFOLLOW) == 0)
		fs_capacity_note(fs->capacity, move->file.new_key, (uint64_t)st.st_size);
	/* What an older LMCache wrote beside it would be the old key again. */
	fs_remove_files(fs, move->file.old_key);
}

/* 0; what cannot be made stable is an error of the store, not of this rename: it is done. */
static int
sync_names(Move *move)
{
	int rc = fs_sync_parents(move->fs, move->file.to);

	if (rc == 0)
		rc = fs_sync_parents(move->fs, move->file.from);
	if (rc < 0)
		fs_note_error(move->fs, KVC_TASK_STORE, "sync", move->file.to, -rc);
	return 0;
}

static int
rename_file(Move *move)
{
	FsAdapter *fs = move->fs;
	struct stat st;
	bool replaces = fstatat(fs->base_fd, move->file.to, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			S_ISREG(st.st_mode);
	int rc = move_file(move);

	if (move->fd >= 0)
		close(move->fd);
	if (rc == 0) {
		note_moved(move, replaces ? &st : NULL);
		return sync_names(move);
	}
	fs_prune_parents(fs, move->file.to);
	if (fs_digest_is_keys_fault(move->file.to, rc))
		fs_note_unsupported(fs, move->file.new_key, -rc);
	else
		fs_note_error(fs, KVC_TASK_STORE, "rename", move->file.from, -rc);
	return rc;
}

/* The path of the object KEY (transfer full), or NULL and *RC: -ENOENT, or why it is not known. */
static char *
find_object(FsAdapter *fs, const KvcObjectKey *key, int *rc)
{
	struct stat st;
	int errnum;
	g_autofree char *path = fs_find_file(fs, key, &st, &errnum);

	*rc = -ENOENT;
	if (path)
		return fs_is_object(fs, key, path, &st) ? g_steal_pointer(&path) : NULL;
	if (fs_is_gone(errnum))
		return NULL;
	g_autofree char *name = fs_path_format(fs, key);
	fs_note_error(fs, KVC_TASK_STORE, "rename", name, errnum);
	*rc = -errnum;
	return NULL;
}

int
fs_rename_key(FsAdapter *fs, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	bool is_same = kvc_object_key_equal(old_key, new_key);
	int rc;

	if (fs_place_is_lost(fs, KVC_TASK_STORE))
		return -FS_LOST;
	if (!is_same && !fs_keys_begin_rename(fs, old_key, new_key))
		return -EBUSY;
	g_autofree char *from = find_object(fs, old_key, &rc);
	if (is_same)
		return from ? 0 : rc;
	if (from) {
		g_autofree char *to = fs_path_format(fs, new_key);
		Move move = {fs, {old_key, new_key, from, to}, -1};

		rc = rename_file(&move);
	}
	fs_keys_end_rename(fs, old_key, new_key);
	fs_note_space(fs);
	return rc;
}
