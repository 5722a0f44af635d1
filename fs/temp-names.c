/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The names of temporary files: visible while they are written, memory only, and what becomes of
 * them by unlink and rename. A rename to an ordinary name commits.
 */

#include "fs/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

KvcfsInode *
kvcfs_temp_lookup_locked(KvcfsInode *dir, const char *name)
{
	return dir->temps ? g_hash_table_lookup(dir->temps, name) : NULL;
}

bool
kvcfs_temp_exists(KvcfsInode *dir, const char *name)
{
	pthread_mutex_lock(&dir->fs->names);
	bool found = kvcfs_temp_lookup_locked(dir, name) != NULL;
	pthread_mutex_unlock(&dir->fs->names);
	return found;
}

/* Removes the name; returns the table's reference for the caller to drop without the lock. */
static KvcfsInode *
remove_temp_locked(KvcfsInode *dir, const char *name)
{
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	if (!inode)
		return NULL;
	g_hash_table_remove(dir->temps, name);
	if (dir->kind == KVCFS_PREFIX) {
		g_assert(dir->refs > 1); /* whose request this is */
		dir->refs--;
	}
	g_free(inode->was_temp_name);
	inode->was_temp_name = g_steal_pointer(&inode->staging->temp_name);
	inode->was_temp_in = dir;
	inode->staging->temp_dir = NULL;
	return inode;
}

KvcfsInode *
kvcfs_temp_add_locked(KvcfsInode *dir, const char *name, KvcfsInode *inode)
{
	KvcfsInode *old = remove_temp_locked(dir, name);
	if (old)
		old->is_unlinked = true;
	if (!dir->temps)
		dir->temps = g_hash_table_new(g_str_hash, g_str_equal);
	/* The kernel may forget a prefix directory, and with it must not go what is in it. */
	if (dir->kind == KVCFS_PREFIX)
		kvcfs_inode_ref_locked(dir);
	inode->staging->temp_dir = dir;
	inode->staging->temp_name = g_strdup(name);
	inode->staging->sequence = ++dir->fs->next_temp;
	g_hash_table_insert(dir->temps, inode->staging->temp_name, kvcfs_inode_ref_locked(inode));
	return old;
}

/* ---- Names of temporary files -------------------------------------------------------------- */

void
kvcfs_temp_forget(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	inode->is_unlinked = true;
	pthread_mutex_unlock(&inode->fs->names);
	kvcfs_staging_drop_if_idle(inode);
	kvcfs_inode_unref(inode, 1);
}

int
kvcfs_temp_unlink(KvcfsInode *dir, const char *name)
{
	pthread_mutex_lock(&dir->fs->names);
	KvcfsInode *inode = remove_temp_locked(dir, name);
	pthread_mutex_unlock(&dir->fs->names);
	if (!inode)
		return -ENOENT;
	kvcfs_temp_forget(inode);
	return 0;
}

/* rename onto .keys: the temporary file's text becomes the chain, the file is gone. */
static int
rename_to_keys(KvcfsInode *dir, const char *name, KvcfsInode *prefix)
{
	Kvcfs *fs = dir->fs;
	g_autofree char *text = NULL;
	ssize_t n = -ENOENT;
	int64_t mtime_ns = 0; /* that was set: rsync and cp -p set it before the rename */
	struct stat backing;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	int damage = inode ? kvcfs_write_proof_damage(fs, inode->staging, NULL) : 0;
	if (damage < 0) {
		n = damage;
	} else if (inode &&
		   kvc_l1_object_get_bytes(inode->staging->object) > KVCFS_CHAIN_MAX_BYTES) {
		n = -EFBIG;
	} else if (inode) {
		uint64_t bytes = kvc_l1_object_get_bytes(inode->staging->object);
		if (fstat(kvc_l1_object_get_fd(inode->staging->object), &backing) == 0)
			mtime_ns = kvcfs_attr_given_mtime_locked(inode, &backing);
		text = g_malloc(bytes + 1);
		n = pread(kvc_l1_object_get_fd(inode->staging->object), text, bytes, 0);
		n = n < 0 ? -errno : n;
	}
	pthread_mutex_unlock(&fs->names);
	if (n < 0)
		return (int)n;
	int rc = kvcfs_prefix_replace(prefix, text, (size_t)n);
	if (rc == 0 && mtime_ns) {
		pthread_mutex_lock(&fs->names);
		kvcfs_chain_set_time_locked(prefix, mtime_ns);
		pthread_mutex_unlock(&fs->names);
	}
	return rc < 0 ? rc : kvcfs_temp_unlink(dir, name);
}

static bool
sees_keys_file(KvcfsInode *prefix, pid_t tid)
{
	return kvcfs_prefix_shows_keys_file(prefix) && !kvcfs_prefix_hides_keys_file(prefix, tid);
}

/* From one temporary name to another. */
static int
rename_temp(KvcfsInode *dir,
	    const char *name,
	    KvcfsInode *new_dir,
	    const char *new_name,
	    unsigned flags)
{
	Kvcfs *fs = dir->fs;
	pthread_mutex_lock(&fs->names);
	if ((flags & RENAME_NOREPLACE) && kvcfs_temp_lookup_locked(new_dir, new_name)) {
		pthread_mutex_unlock(&fs->names);
		return -EEXIST;
	}
	KvcfsInode *inode = remove_temp_locked(dir, name);
	KvcfsInode *displaced = inode ? kvcfs_temp_add_locked(new_dir, new_name, inode) : NULL;
	pthread_mutex_unlock(&fs->names);
	if (displaced)
		kvcfs_temp_forget(displaced);
	if (!inode)
		return -ENOENT;
	kvcfs_inode_unref(inode, 1);
	return 0;
}

/*
 * For RENAME_NOREPLACE, in one step with taking the name: who publishes it holds names, too. A
 * plain name that somebody writes is taken, as for O_EXCL.
 */
static bool
is_taken_locked(KvcfsInode *dir, KvcObjectKey *key)
{
	bool is_named = dir->kind != KVCFS_PREFIX || kvcfs_prefix_has_locked(dir, key);
	return (is_named && kvcfs_object_exists(dir->fs, key)) ||
	       (key->space == KVC_SPACE_PLAIN && kvcfs_is_being_written_locked(dir->fs, key));
}

static int
rename_to_object(KvcfsInode *dir,
		 const char *name,
		 KvcfsInode *new_dir,
		 const char *new_name,
		 unsigned flags,
		 pid_t tid)
{
	Kvcfs *fs = dir->fs;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(new_dir->scope, new_name);
	KvcfsCaller caller = kvcfs_own_file_caller(fs, key, NULL, tid);
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	bool is_open = false;
	int rc = 0;
	if (!inode)
		rc = -ENOENT;
	else if ((flags & RENAME_NOREPLACE) && is_taken_locked(new_dir, key))
		rc = -EEXIST;
	else if (!kvcfs_dir_has_room_locked(new_dir))
		rc = -ENOSPC;
	else
		rc = kvcfs_write_proof_damage(fs, inode->staging, NULL);
	if (rc == 0) {
		remove_temp_locked(dir, name);
		/* Who overwrites what is replaced has a file without a name, as after unlink. */
		if (key->space == KVC_SPACE_PLAIN)
			kvcfs_staging_object_removed_locked(fs, key);
		kvcfs_own_file_unlink_locked(fs, key, &caller);
		is_open = kvcfs_staging_set_name_locked(inode, new_dir, new_name);
	}
	pthread_mutex_unlock(&fs->names);
	if (rc < 0)
		return rc;
	/* If a writer still has it open, its close commits. */
	if (!is_open)
		rc = kvcfs_staging_commit(inode);
	kvcfs_inode_unref(inode, 1);
	return rc;
}

int
kvcfs_temp_rename(KvcfsInode *dir,
		  const char *name,
		  KvcfsInode *new_dir,
		  const char *new_name,
		  unsigned flags,
		  pid_t tid)
{
	KvcfsNameClass class = kvcfs_name_classify(new_dir->scope, new_name);
	if (new_dir->kind == KVCFS_PREFIX && strcmp(new_name, KVCFS_KEYS_FILE) == 0)
		return (flags & RENAME_NOREPLACE) && sees_keys_file(new_dir, tid)
			       ? -EEXIST
			       : rename_to_keys(dir, name, new_dir);
	if (class == KVCFS_NAME_OTHER)
		return -EINVAL;
	if (kvcfs_tree_has_child(new_dir, new_name))
		return -EISDIR;
	if (class == KVCFS_NAME_TEMPORARY)
		return rename_temp(dir, name, new_dir, new_name, flags);
	return rename_to_object(dir, name, new_dir, new_name, flags, tid);
}
