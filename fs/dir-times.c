/* SPDX-License-Identifier: Apache-2.0 */

/*
 * When a directory was last changed: make and Python's import cache go by it. In memory only. The
 * kernel forgets the attributes of a directory when it is the one who changes it; of a name that
 * comes to be with the close of its writer, or of an entry that comes with .keys, it must be told.
 */

#include "fs/internal.h"

void
kvcfs_dir_changed_locked(KvcfsInode *dir)
{
	dir->mtime_ns = dir->ctime_ns = kvcfs_wall_ns();
}

void
kvcfs_dir_changed(KvcfsInode *dir)
{
	pthread_mutex_lock(&dir->fs->names);
	kvcfs_dir_changed_locked(dir);
	pthread_mutex_unlock(&dir->fs->names);
}

/* No page and no name is touched, so the kernel waits for nobody: any thread may. */
void
kvcfs_dir_forget_attr(KvcfsInode *dir)
{
	if (dir->fs->se)
		fuse_lowlevel_notify_inval_inode(dir->fs->se, kvcfs_inode_nodeid(dir), -1, 0);
}

void
kvcfs_dir_gets_entry(Kvcfs *fs, const KvcfsStaging *st)
{
	KvcfsInode *dirs[2] = {NULL, st->prefix};
	/* An overwritten file was in its directory before. */
	if (st->is_overwrite)
		return;
	pthread_mutex_lock(&fs->names);
	if (st->target && !st->is_target_gone)
		dirs[0] = kvcfs_tree_find_dir_locked(fs, st->target->scope);
	for (size_t i = 0; dirs[0] && i < G_N_ELEMENTS(dirs); i++)
		if (dirs[i])
			kvcfs_dir_changed_locked(kvcfs_inode_ref_locked(dirs[i]));
	pthread_mutex_unlock(&fs->names);
	for (size_t i = 0; dirs[0] && i < G_N_ELEMENTS(dirs); i++) {
		if (!dirs[i])
			continue;
		kvcfs_dir_forget_attr(dirs[i]);
		kvcfs_inode_unref(dirs[i], 1);
	}
}
