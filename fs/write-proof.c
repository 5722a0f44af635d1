/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is known against a written file. An object is published only when nothing is: it is then
 * certain that every write into it has succeeded as a whole, and that its writers meant to end.
 *
 * The last reference to an open file is not always dropped by a close: a descriptor in flight in a
 * socket goes with the socket, one registered with an io_uring with the ring, a mapping in direct
 * mode with its unmap or its process. Then RELEASE comes without a FLUSH, and nobody says how that
 * holder ended. What the file was at the last FLUSH some living process has closed; if it has
 * changed since, the change was never closed, and nothing is published.
 */

#include "fs/internal.h"

#include <errno.h>

#define NS_PER_SECOND INT64_C(1000000000)

typedef struct FileState {
	int64_t mtime_ns;
	uint64_t bytes;
} FileState;

static FileState
look_at_file(const KvcfsStaging *st)
{
	struct stat attr;
	if (fstat(kvc_l1_object_get_fd(st->object), &attr) != 0)
		return (FileState){0};
	return (FileState){
		.mtime_ns = attr.st_mtim.tv_sec * NS_PER_SECOND + attr.st_mtim.tv_nsec,
		.bytes = (uint64_t)attr.st_size,
	};
}

void
kvcfs_write_proof_seen_locked(KvcfsStaging *st)
{
	if (!st->object)
		return;
	FileState now = look_at_file(st);
	st->flushed_mtime_ns = now.mtime_ns;
	st->flushed_bytes = now.bytes;
}

bool
kvcfs_write_proof_flush_locked(KvcfsStaging *st, KvcfsWriterExit how, uint64_t file_limit)
{
	if (how == KVCFS_WRITER_KILLED)
		st->is_killed = true;
	if (how == KVCFS_WRITER_CUT_OFF)
		st->is_cut_off = true;
	if (!st->object) /* opened for writing, and not written to */
		return false;
	if (kvc_l1_object_get_bytes(st->object) == file_limit)
		st->is_file_limited = true;
	if (how == KVCFS_WRITER_KILLED || how == KVCFS_WRITER_CUT_OFF)
		return false;
	st->was_memory_full |= kvc_l1_object_was_memory_full(st->object);
	kvcfs_write_proof_seen_locked(st);
	return true;
}

void
kvcfs_write_proof_release_locked(KvcfsStaging *st)
{
	if (!st->object || st->flushed_ns == 0)
		return;
	FileState now = look_at_file(st);
	if (now.mtime_ns != st->flushed_mtime_ns || now.bytes != st->flushed_bytes)
		st->is_written_after_close = true;
}

int
kvcfs_write_proof_damage(const Kvcfs *fs, const KvcfsStaging *st, KvcfsStat *why)
{
	const struct {
		bool is_so;
		int rc;
		KvcfsStat why;
	} reasons[] = {
		{st->is_killed, -EIO, KVCFS_STAT_writes_not_published_killed},
		{st->is_cut_off, -EIO, KVCFS_STAT_writes_not_published_cut_off},
		{st->is_too_big ||
			 kvc_l1_object_get_bytes(st->object) > fs->config.max_object_size_bytes,
		 -EFBIG, KVCFS_STAT_writes_not_published_too_big},
		{st->was_memory_full, -ENOSPC, KVCFS_STAT_writes_not_published_memory_full},
		{st->is_file_limited, -EIO, KVCFS_STAT_writes_not_published_file_limit},
		{st->is_written_after_close, -EIO, KVCFS_STAT_writes_not_published_after_close},
	};
	for (size_t i = 0; i < G_N_ELEMENTS(reasons); i++) {
		if (!reasons[i].is_so)
			continue;
		if (why)
			*why = reasons[i].why;
		return reasons[i].rc;
	}
	return 0;
}

/* The path of a temporary file, below the mount point (transfer full). */
static char *
temp_path_locked(const KvcfsStaging *st)
{
	char *path = g_strdup(st->temp_name);
	for (const KvcfsInode *dir = st->temp_dir; dir->parent; dir = dir->parent) {
		g_autofree char *below = path;
		path = g_strdup_printf("%s/%s", dir->name, below);
	}
	/* It becomes a part of a line. */
	for (char *p = path; *p != '\0'; p++)
		if (g_ascii_iscntrl(*p))
			*p = '?';
	return path;
}

/* What people call the file (transfer full). */
static char *
get_name(KvcfsInode *inode)
{
	char *name = NULL;
	pthread_mutex_lock(&inode->fs->names);
	const KvcfsStaging *st = inode->staging;
	if (st && st->temp_name)
		name = temp_path_locked(st);
	else if (st && st->target)
		name = kvc_object_key_to_string(st->target);
	pthread_mutex_unlock(&inode->fs->names);
	return name ? name : g_strdup("(without a name)");
}

int
kvcfs_write_proof_check_size(KvcfsInode *inode, uint64_t bytes)
{
	uint64_t most = inode->fs->config.max_object_size_bytes;
	if (bytes <= most)
		return 0;
	g_autofree char *name = get_name(inode);
	g_warning("%s: a file of %" G_GUINT64_FORMAT " bytes is refused: it is larger than "
		  "--max-object-size (%" G_GUINT64_FORMAT ")",
		  name, bytes, most);
	return -EFBIG;
}
