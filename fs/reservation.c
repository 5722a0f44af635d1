/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The room of a file that is being written. One that is passed through has it from its CREATE on,
 * since nobody sees its writes; how much that is can only be guessed, from the last file of its
 * directory. No file is refused for the sake of a guess:
 *
 * All guesses of open files are together at most half of L1, and about what the overrun is. Beyond
 * that a new file is in direct mode, where each write asks for its own room.
 *
 * When there is no room left, guesses are given back: what a file has neither filled nor asked for
 * is not charged any more. The memory itself stays the file's, whose writer may be about to fill
 * it: it is as if it outgrew its reservation, and that is what the overrun is for.
 */

#include "fs/reservation.h"

#include <errno.h>
#include <sys/stat.h>

#define DIRECT_RESERVATION_BYTES 4096

/* ---- Giving guesses back ------------------------------------------------------------------- */

static void
forget_locked(Kvcfs *fs, const KvcfsStaging *st)
{
	fs->guessed_bytes -= st->guess_bytes;
	fs->returned_bytes -= st->returned_bytes;
}

void
kvcfs_reservation_end_locked(KvcfsStaging *st)
{
	Kvcfs *fs = st->dir->fs;
	if (g_hash_table_remove(fs->guesses, st))
		forget_locked(fs, st);
}

/* Nobody writes OBJECT's file: it is cut where it ends, and looks as before. */
static bool
cut_to_size(Kvcfs *fs, KvcL1Object *object)
{
	struct stat attr;
	int fd = kvc_l1_object_get_fd(object);
	if (fstat(fd, &attr) != 0 || kvc_l1_object_set_size(object, (uint64_t)attr.st_size) < 0)
		return false;
	const struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, attr.st_mtim};
	(void)futimens(fd, times);
	kvc_storage_manager_trim_write(fs->sm, object, (uint64_t)attr.st_size);
	return true;
}

/* Temporary files that wait for their rename need no guess. Was there one? */
static bool
release_closed_locked(Kvcfs *fs)
{
	GHashTableIter iter;
	KvcfsStaging *st;
	bool any = false;
	g_hash_table_iter_init(&iter, fs->guesses);
	while (g_hash_table_iter_next(&iter, (void **)&st, NULL)) {
		bool is_closed = st->n_writers == 0 && !st->is_expected && !st->target;
		if (!is_closed || !cut_to_size(fs, st->object))
			continue;
		forget_locked(fs, st);
		g_hash_table_iter_remove(&iter);
		any = true;
	}
	return any;
}

/* Only once, and only while there is as much left of the overrun. */
static bool
give_back_locked(Kvcfs *fs, KvcfsStaging *st)
{
	if (!st->object || st->returned_bytes > 0)
		return false;
	uint64_t needed = MAX(st->asked_bytes, kvc_l1_object_get_bytes(st->object));
	uint64_t reserved = kvc_l1_object_get_reserved_bytes(st->object);
	if (reserved <= needed || reserved - needed > fs->l1_overrun_bytes - fs->returned_bytes)
		return false;
	kvc_storage_manager_trim_write(fs->sm, st->object, needed);
	st->returned_bytes = reserved - needed;
	fs->returned_bytes += st->returned_bytes;
	return true;
}

/* false: there was nothing to be had. */
static bool
give_back_guesses(Kvcfs *fs)
{
	GHashTableIter iter;
	KvcfsStaging *st;
	pthread_mutex_lock(&fs->names);
	bool any = release_closed_locked(fs);
	g_hash_table_iter_init(&iter, fs->guesses);
	while (g_hash_table_iter_next(&iter, (void **)&st, NULL))
		any |= give_back_locked(fs, st);
	pthread_mutex_unlock(&fs->names);
	return any;
}

/* ---- Reserving ----------------------------------------------------------------------------- */

int
kvcfs_reservation_new(Kvcfs *fs, KvcObjectKey *key, uint64_t bytes, KvcL1Object **object)
{
	int rc;
	do
		rc = kvc_storage_manager_reserve_write(fs->sm, key, bytes, object);
	while (rc == -ENOSPC && give_back_guesses(fs));
	return rc;
}

int
kvcfs_reservation_extend(KvcfsInode *inode, uint64_t bytes)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	/* Before it is charged: from here on it is no guess. */
	KvcfsStaging *st = inode->staging;
	KvcL1Object *object = st->object;
	st->asked_bytes = MAX(st->asked_bytes, bytes);
	pthread_mutex_unlock(&fs->names);
	int rc;
	do
		rc = kvc_storage_manager_extend_write(fs->sm, object, bytes);
	while (rc == -ENOSPC && give_back_guesses(fs));
	return rc;
}

static uint64_t
guesses_limit(const Kvcfs *fs)
{
	/* An overrun that somebody made small must not end passthrough. */
	return MIN(fs->l1_capacity_bytes / 2, MAX(fs->l1_overrun_bytes, fs->l1_capacity_bytes / 8));
}

static bool
may_guess_locked(Kvcfs *fs, uint64_t bytes)
{
	return fs->guessed_bytes + bytes <= guesses_limit(fs);
}

/* What a file in DIR is guessed to need; counted. 0: nothing is guessed now. */
static uint64_t
begin_guess(KvcfsInode *dir)
{
	Kvcfs *fs = dir->fs;
	pthread_mutex_lock(&fs->names);
	uint64_t bytes = dir->last_bytes ? dir->last_bytes : KVCFS_FIRST_RESERVATION_BYTES;
	if (may_guess_locked(fs, bytes) ||
	    (release_closed_locked(fs) && may_guess_locked(fs, bytes)))
		fs->guessed_bytes += bytes;
	else
		bytes = 0;
	pthread_mutex_unlock(&fs->names);
	return bytes;
}

static void
cancel_guess(Kvcfs *fs, uint64_t bytes)
{
	pthread_mutex_lock(&fs->names);
	fs->guessed_bytes -= bytes;
	pthread_mutex_unlock(&fs->names);
}

int
kvcfs_reservation_guess(KvcfsStagingParams *params)
{
	Kvcfs *fs = params->dir->fs;
	kvcfs_loop_hand_over(); /* others may have to be evicted */
	uint64_t bytes = begin_guess(params->dir);
	int rc = -ENOSPC;
	if (bytes > 0)
		rc = kvc_storage_manager_reserve_write(fs->sm, NULL, bytes, &params->object);
	if (rc == 0)
		params->guess_bytes = bytes;
	else
		cancel_guess(fs, bytes);
	if (rc == -ENOSPC) {
		/* Perhaps it is smaller than the last one. We must see its writes then. */
		params->is_direct = true;
		kvcfs_count(fs, creates_unreserved);
		rc = kvcfs_reservation_new(fs, NULL, DIRECT_RESERVATION_BYTES, &params->object);
	}
	if (rc < 0)
		kvcfs_count(fs, creates_no_room);
	return rc;
}

void
kvcfs_reservation_drop(KvcfsStagingParams *params)
{
	Kvcfs *fs = params->dir->fs;
	kvc_storage_manager_abort_write(fs->sm, params->object);
	cancel_guess(fs, params->guess_bytes);
}

void
kvcfs_reservation_begin_locked(KvcfsStaging *st)
{
	if (st->guess_bytes > 0)
		g_hash_table_add(st->dir->fs->guesses, st);
}
