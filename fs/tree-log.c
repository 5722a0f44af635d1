/* SPDX-License-Identifier: Apache-2.0 */

/* The tree's directories in the log of the state directory: what mkdir made comes back at a start.
 */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>

static KvcfsDirEntry
entry_of_locked(KvcfsInode *inode)
{
	return (KvcfsDirEntry){
		.path = kvcfs_tree_path_of(inode),
		.mode = inode->mode & 07777,
		.uid = inode->uid,
		.gid = inode->gid,
	};
}

void
kvcfs_tree_remember_locked(KvcfsInode *inode)
{
	KvcfsDirEntry entry = entry_of_locked(inode);
	if (!inode->is_unlinked)
		kvcfs_dir_log_add(inode->fs->dir_log, &entry);
	g_free(entry.path);
}

void
kvcfs_tree_update_locked(KvcfsInode *inode)
{
	KvcfsDirEntry entry = entry_of_locked(inode);
	if (!inode->is_unlinked)
		kvcfs_dir_log_update(inode->fs->dir_log, &entry);
	g_free(entry.path);
}

void
kvcfs_tree_forget_locked(KvcfsInode *inode)
{
	g_autofree char *path = kvcfs_tree_path_of(inode);
	kvcfs_dir_log_remove(inode->fs->dir_log, path);
}

/* The child of DIR, made where needed (transfer full); NULL: it may not be there. */
static KvcfsInode *
get_child(KvcfsInode *dir, const char *name)
{
	KvcfsInode *child = NULL;
	if (dir->kind != KVCFS_DIR)
		return NULL;
	if (kvcfs_tree_mkdir(dir, name, 0755, &child) == -EEXIST)
		child = kvcfs_tree_lookup(dir, name);
	return child;
}

static void
restore(void *user, const KvcfsDirEntry *entry)
{
	Kvcfs *fs = user;
	g_auto(GStrv) components = g_strsplit(entry->path, "/", -1);
	KvcfsInode *inode = kvcfs_inode_ref(fs->root);
	for (size_t i = 0; inode && components[i]; i++) {
		KvcfsInode *child = get_child(inode, components[i]);
		kvcfs_inode_unref(inode, 1);
		inode = child;
	}
	if (!inode) {
		g_warning("the directory %s cannot be made again", entry->path);
		return;
	}
	pthread_mutex_lock(&fs->names);
	inode->mode = S_IFDIR | entry->mode;
	inode->uid = entry->uid;
	inode->gid = entry->gid;
	pthread_mutex_unlock(&fs->names);
	kvcfs_inode_unref(inode, 1);
}

static void
on_failed(void *user)
{
	Kvcfs *fs = user;
	kvcfs_count(fs, directory_log_errors);
}

bool
kvcfs_tree_open_log(Kvcfs *fs, const char *path, GError **error)
{
	KvcRecordLogStatus status;
	if (!path)
		return true;
	fs->dir_log = kvcfs_dir_log_open(path, on_failed, fs, error);
	if (!fs->dir_log)
		return false;
	kvcfs_dir_log_get_status(fs->dir_log, &status);
	fs->stats[KVCFS_STAT_directory_log_corrupt] += status.corrupt;
	return true;
}

void
kvcfs_tree_restore(Kvcfs *fs)
{
	kvcfs_dir_log_foreach(fs->dir_log, restore, fs);
}
