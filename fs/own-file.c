/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Who sees a plain file before its commit. Nobody who may take it for complete: an engine looks in
 * one thread for what another one is writing. But a program may stat, change, rename and above all
 * remove what it has just made, or the close would bring back what it has removed. So the thread
 * that made the file sees it, until it has closed it as often as it has opened it: who has closed a
 * file takes it for complete, even if a duplicate or a mapping lives on. Made with O_EXCL it is a
 * lock, or a file that only its maker knows of, and all threads of the process see it to the end.
 * Both may end before the file, which lives with its descriptors, and their numbers be another's.
 *
 * Hash names stay invisible to all: each open for writing has a file of its own, in one thread too.
 */

#include "fs/internal.h"

#include <fcntl.h>

static KvcfsCaller
look(pid_t tid, bool at_thread, bool at_process)
{
	KvcfsCaller caller = {.thread = tid, .process = at_process ? kvcfs_writer_process(tid) : 0};
	if (at_thread)
		caller.thread_start = kvcfs_writer_start(tid);
	caller.process_start = kvcfs_writer_start(caller.process);
	return caller;
}

KvcfsCaller
kvcfs_own_file_maker(const KvcfsInode *dir, const char *name, pid_t tid, int flags)
{
	bool is_plain = dir->kind == KVCFS_DIR &&
			kvcfs_name_classify(dir->scope, name) != KVCFS_NAME_TEMPORARY;
	return look(tid, is_plain, is_plain && (flags & O_EXCL));
}

void
kvcfs_own_file_opened(KvcfsInode *inode, pid_t tid)
{
	pthread_mutex_lock(&inode->fs->names);
	KvcfsStaging *st = inode->staging;
	if (st && st->owner.thread == tid)
		st->n_owner_opens++;
	pthread_mutex_unlock(&inode->fs->names);
}

void
kvcfs_own_file_closed_locked(KvcfsStaging *st, pid_t tid)
{
	if (st->owner.thread == tid && st->n_owner_opens > 0)
		st->n_owner_opens--;
}

static bool
is_owner(const KvcfsStaging *st, const KvcfsCaller *caller)
{
	const KvcfsCaller *owner = &st->owner;
	return (owner->thread && owner->thread == caller->thread &&
		owner->thread_start == caller->thread_start && st->n_owner_opens > 0) ||
	       (owner->process && owner->process == caller->process &&
		owner->process_start == caller->process_start);
}

KvcfsCaller
kvcfs_own_file_caller(Kvcfs *fs, const KvcObjectKey *key, const KvcObjectKey *other, pid_t tid)
{
	const KvcObjectKey *keys[] = {key, other};
	bool is_thread_asked = false, is_process_asked = false;
	pthread_mutex_lock(&fs->names);
	for (size_t k = 0; k < G_N_ELEMENTS(keys); k++) {
		const GPtrArray *writers =
			keys[k] ? kvcfs_staging_writers_locked(fs, keys[k]) : NULL;
		for (guint i = 0; writers && i < writers->len; i++) {
			const KvcfsStaging *st = ((KvcfsInode *)writers->pdata[i])->staging;
			is_thread_asked |= st->owner.thread == tid;
			is_process_asked |= st->owner.process != 0;
		}
	}
	pthread_mutex_unlock(&fs->names);
	return look(tid, is_thread_asked, is_process_asked);
}

KvcfsInode *
kvcfs_own_file_find_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsCaller *caller)
{
	const GPtrArray *writers =
		key->space == KVC_SPACE_PLAIN ? kvcfs_staging_writers_locked(fs, key) : NULL;
	for (guint i = writers ? writers->len : 0; i > 0; i--) {
		KvcfsInode *inode = writers->pdata[i - 1];
		if (is_owner(inode->staging, caller))
			return inode;
	}
	return NULL;
}

bool
kvcfs_own_file_unlink_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsCaller *caller)
{
	KvcfsInode *inode;
	bool had_one = false;
	while ((inode = kvcfs_own_file_find_locked(fs, key, caller))) {
		kvcfs_staging_lose_name_locked(inode);
		had_one = true;
	}
	return had_one;
}

void
kvcfs_own_file_rename_locked(KvcfsInode *inode, KvcObjectKey *new_key, const KvcfsCaller *caller)
{
	Kvcfs *fs = inode->fs;
	/* What is replaced is read until the commit, but who overwrites it has lost the name. */
	kvcfs_staging_object_removed_locked(fs, new_key);
	kvcfs_own_file_unlink_locked(fs, new_key, caller);
	kvcfs_staging_retarget_locked(inode, new_key);
}
