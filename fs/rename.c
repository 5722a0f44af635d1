/* SPDX-License-Identifier: Apache-2.0 */

/*
 * RENAME. A temporary file gets another name or is committed (temp-names.c). Plain files, their
 * directories and prefix directories move within the engine's index, L2 follows in the background;
 * a hash is the name of its bytes, and what is below a rank or model stays there: EXDEV, so that mv
 * copies.
 *
 * Who looked at a name, key or scope before it changed holds no lock: the old ones live as long as
 * the inode (kvcfs_inode_retire), and a look that finds nothing is repeated when they have changed.
 */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- Plain files --------------------------------------------------------------------------- */

/* OLD_KEY is NEW_KEY, in the engine and in our tables, in one step for who takes names. */
int
kvcfs_move_key_locked(Kvcfs *fs, KvcObjectKey *old_key, KvcObjectKey *new_key, unsigned flags)
{
	kvcfs_notifier_set_own(old_key);
	int rc = kvc_storage_manager_rename(fs->sm, old_key, new_key, flags);
	kvcfs_notifier_set_own(NULL);
	if (rc < 0)
		return rc;
	kvcfs_object_moved_locked(fs, new_key, NULL);
	kvcfs_note_published_locked(fs, new_key);
	kvcfs_staging_object_removed_locked(fs, new_key);
	kvcfs_staging_object_moved_locked(fs, old_key, new_key);
	kvcfs_object_moved_locked(fs, old_key, new_key);
	return 0;
}

static int
rename_file(KvcfsInode *dir,
	    KvcObjectKey *old_key,
	    KvcfsInode *new_dir,
	    const char *new_name,
	    unsigned flags,
	    pid_t tid)
{
	Kvcfs *fs = dir->fs;
	if (kvcfs_tree_has_child(new_dir, new_name))
		return -EISDIR;
	g_autoptr(KvcObjectKey) new_key =
		new_dir->kind == KVCFS_DIR ? kvcfs_name_to_key(new_dir->scope, new_name) : NULL;
	if (!new_key)
		return -EXDEV;
	if (kvc_object_key_equal(old_key, new_key))
		return 0;
	KvcfsCaller caller = kvcfs_own_file_caller(fs, new_key, NULL, tid);
	pthread_mutex_lock(&fs->names);
	bool is_noreplace = flags & RENAME_NOREPLACE;
	/* A name that somebody writes is taken, as for O_EXCL: lock files. */
	int rc = is_noreplace && kvcfs_is_being_written_locked(fs, new_key) ? -EEXIST : 0;
	if (rc == 0)
		rc = kvcfs_move_key_locked(fs, old_key, new_key,
					   is_noreplace ? KVC_RENAME_NOREPLACE : 0);
	if (rc == 0)
		kvcfs_own_file_unlink_locked(fs, new_key, &caller);
	pthread_mutex_unlock(&fs->names);
	return rc;
}

/* What TID itself is writing, and nobody else sees yet. */
static int
rename_own_file(KvcfsInode *dir,
		KvcObjectKey *key,
		KvcfsInode *new_dir,
		const char *new_name,
		unsigned flags,
		pid_t tid)
{
	Kvcfs *fs = dir->fs;
	g_autoptr(KvcObjectKey) new_key =
		new_dir->kind == KVCFS_DIR ? kvcfs_name_to_key(new_dir->scope, new_name) : NULL;
	/* What another thread of the process makes under the new name is the caller's as well. */
	KvcfsCaller caller = kvcfs_own_file_caller(fs, key, new_key, tid);
	int rc = 0;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_own_file_find_locked(fs, key, &caller);
	if (!inode)
		rc = -ENOENT;
	else if (!new_key)
		rc = -EXDEV;
	else if (g_hash_table_contains(new_dir->children, new_name))
		rc = -EISDIR;
	else if ((flags & RENAME_NOREPLACE) &&
		 (kvcfs_object_exists(fs, new_key) || kvcfs_is_being_written_locked(fs, new_key)))
		rc = -EEXIST;
	else
		kvcfs_own_file_rename_locked(inode, new_key, &caller);
	pthread_mutex_unlock(&fs->names);
	return rc;
}

/* ---- Objects within their rank --------------------------------------------------------------- */

/*
 * Between a rank directory and its prefix directories an object keeps its name: a rename adds and
 * drops references. With EXDEV mv(1) would copy it onto itself, and then delete it.
 */
static int
rename_reference(KvcfsInode *dir,
		 KvcObjectKey *key,
		 KvcfsInode *new_dir,
		 const char *new_name,
		 unsigned flags)
{
	g_autoptr(KvcObjectKey) new_key =
		new_dir->scope ? kvcfs_name_to_key(new_dir->scope, new_name) : NULL;
	if (!new_key || !kvc_object_key_equal(key, new_key))
		return -EXDEV;
	int rc = new_dir->kind == KVCFS_PREFIX ? kvcfs_prefix_link(new_dir, key) : -EEXIST;
	if (rc == -EEXIST && (flags & RENAME_NOREPLACE))
		return rc;
	if (rc == -EEXIST)
		rc = 0;
	if (rc == 0 && dir->kind == KVCFS_PREFIX && dir != new_dir)
		rc = kvcfs_prefix_unlink(dir, new_name);
	return rc;
}

/* ---- Directories of plain files ------------------------------------------------------------- */

/* Moves every key of FROM to TO; 0 or the first -errno, then those that had moved are back. */
static int
move_keys_locked(Kvcfs *fs, KvcKeyScope *from, KvcKeyScope *to)
{
	g_autoptr(GPtrArray) moved =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	KvcListEntry entry;
	uint64_t after = 0;
	int rc = 0;
	while (rc == 0 &&
	       kvc_storage_manager_list(fs->sm, from, UINT32_MAX, after, &entry, 1) == 1) {
		g_autoptr(KvcObjectKey) old_key = entry.key;
		g_autoptr(KvcObjectKey) new_key = kvc_object_key_new(
			to, old_key->space, old_key->chunk_hash, old_key->chunk_hash_len, NULL);
		after = entry.info.sequence;
		rc = kvcfs_move_key_locked(fs, old_key, new_key, 0);
		if (rc == -ENOENT)
			rc = 0;
		else if (rc == 0)
			g_ptr_array_add(moved, g_steal_pointer(&new_key));
	}
	for (guint i = 0; rc < 0 && i < moved->len; i++) {
		KvcObjectKey *key = moved->pdata[i];
		g_autoptr(KvcObjectKey) back = kvc_object_key_new(from, key->space, key->chunk_hash,
								  key->chunk_hash_len, NULL);
		kvcfs_move_key_locked(fs, key, back, 0);
	}
	return rc;
}

/* Gives the directory INODE the plain scope of PATH, with all its files: 0 or -errno. */
static int
move_directory_locked(KvcfsInode *inode, const char *path)
{
	Kvcfs *fs = inode->fs;
	KvcKeyScope *old = inode->scope;
	KvcKeyScope *scope = kvc_key_scope_new_plain(path, NULL);
	if (scope == old) { /* a roll-back that has come to what had not moved */
		kvc_key_scope_unref(scope);
		return 0;
	}
	int rc = move_keys_locked(fs, old, scope);
	if (rc < 0) {
		kvc_key_scope_unref(scope);
		return rc;
	}
	kvcfs_staging_scope_moved_locked(fs, old, scope);
	if (g_hash_table_lookup(fs->dirs, old) == inode)
		g_hash_table_remove(fs->dirs, old);
	__atomic_store_n(&inode->scope, scope, __ATOMIC_RELEASE);
	g_hash_table_insert(fs->dirs, scope, inode);
	kvcfs_inode_retire_locked(inode, old, (GDestroyNotify)kvc_key_scope_unref);
	return 0;
}

static bool
has_rank_locked(KvcfsInode *dir)
{
	GHashTableIter iter;
	KvcfsInode *child;
	g_hash_table_iter_init(&iter, dir->children);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&child))
		if (child->kind == KVCFS_RANK || has_rank_locked(child))
			return true;
	return false;
}

/* DIR and everything below gets the path PATH. An error leaves what has moved where it is then. */
static int
move_tree_locked(KvcfsInode *dir, const char *path)
{
	GHashTableIter iter;
	KvcfsInode *child;
	int rc = move_directory_locked(dir, path);
	g_hash_table_iter_init(&iter, dir->children);
	while (rc == 0 && g_hash_table_iter_next(&iter, NULL, (void **)&child)) {
		g_autofree char *below = g_strdup_printf("%s/%s", path, child->name);
		rc = move_tree_locked(child, below);
	}
	return rc;
}

/* May TARGET, what has the new name (or NULL), be replaced? 0 or -errno. */
static int
check_target_locked(KvcfsInode *target, unsigned flags)
{
	if (!target || target->is_unlinked)
		return 0;
	if (flags & RENAME_NOREPLACE)
		return -EEXIST;
	return kvcfs_tree_is_empty_locked(target) ? 0 : -ENOTEMPTY;
}

/* The directory CHILD becomes NEW_NAME in NEW_DIR, whose path is PATH. An error changes nothing. */
static int
replace_directory_locked(KvcfsInode *child,
			 KvcfsInode *new_dir,
			 const char *new_name,
			 const char *path,
			 KvcfsInode *target)
{
	Kvcfs *fs = child->fs;
	g_autofree char *old_path = g_strdup(child->scope->model_name);
	int rc = move_tree_locked(child, path);
	if (rc < 0) {
		move_tree_locked(child, old_path);
		if (target) /* its scope was the child's for a moment */
			g_hash_table_insert(fs->dirs, target->scope, target);
		return rc;
	}
	if (target)
		kvcfs_tree_remove_locked(new_dir, target);
	kvcfs_tree_move_locked(child, new_dir, new_name);
	kvcfs_dir_log_rename(fs->dir_log, old_path, path); /* the target's entry goes with it */
	return 0;
}

static int
rename_directory(KvcfsInode *dir,
		 const char *name,
		 KvcfsInode *new_dir,
		 const char *new_name,
		 unsigned flags)
{
	Kvcfs *fs = dir->fs;
	if (new_dir->kind != KVCFS_DIR || new_name[0] == '@')
		return -EXDEV;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *child = g_hash_table_lookup(dir->children, name);
	bool may_move = child && child->kind == KVCFS_DIR && !has_rank_locked(child);
	pthread_mutex_unlock(&fs->names);
	if (!may_move)
		return child ? -EXDEV : -ENOENT;
	g_autofree char *old_path = g_strdup(child->scope->model_name);
	g_autofree char *path = kvcfs_tree_path(new_dir, new_name);
	/* Its files would become temporary ones, or these files: mv copies them. */
	if (kvcfs_directory_is_temporary(path) != kvcfs_directory_is_temporary(old_path))
		return -EXDEV;
	KvcfsInode *target = kvcfs_tree_lookup(new_dir, new_name);
	pthread_mutex_lock(&fs->names);
	bool replaces = target && !target->is_unlinked;
	int rc = check_target_locked(target, flags);
	if (rc == 0)
		rc = replace_directory_locked(child, new_dir, new_name, path,
					      replaces ? target : NULL);
	pthread_mutex_unlock(&fs->names);
	if (target)
		kvcfs_inode_unref(target, rc == 0 && replaces ? 2 : 1);
	kvcfs_dir_log_settle(fs->dir_log);
	return rc;
}

/* ---- RENAME -------------------------------------------------------------------------------- */

static int
rename_object(KvcfsInode *dir,
	      const char *name,
	      KvcfsInode *new_dir,
	      const char *new_name,
	      unsigned flags,
	      pid_t tid)
{
	g_autoptr(KvcObjectKey) key = dir->scope ? kvcfs_name_to_key(dir->scope, name) : NULL;
	bool was_temp = dir->scope && kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_TEMPORARY;
	if (!key) /* somebody else may have renamed the temporary file by now */
		return was_temp ? -ENOENT : -EXDEV;
	if (!kvcfs_dir_has_object(dir, key))
		return rename_own_file(dir, key, new_dir, new_name, flags, tid);
	return key->space == KVC_SPACE_PLAIN ? rename_file(dir, key, new_dir, new_name, flags, tid)
					     : rename_reference(dir, key, new_dir, new_name, flags);
}

static int
move_entry(KvcfsInode *dir,
	   const char *name,
	   KvcfsInode *new_dir,
	   const char *new_name,
	   unsigned flags,
	   pid_t tid)
{
	if (kvcfs_temp_exists(dir, name))
		return kvcfs_temp_rename(dir, name, new_dir, new_name, flags, tid);
	if (dir == new_dir && strcmp(name, new_name) == 0)
		return 0;
	if (kvcfs_tree_has_child(dir, name))
		return rename_directory(dir, name, new_dir, new_name, flags);
	if (dir->kind == KVCFS_RANK && !kvcfs_name_is_hash(name))
		return dir == new_dir ? kvcfs_prefix_rename(dir, name, new_name, flags) : -EXDEV;
	return rename_object(dir, name, new_dir, new_name, flags, tid);
}

static int
rename_entry(KvcfsInode *dir,
	     const char *name,
	     KvcfsInode *new_dir,
	     const char *new_name,
	     unsigned flags,
	     pid_t tid)
{
	int rc = move_entry(dir, name, new_dir, new_name, flags, tid);
	if (rc == 0) {
		kvcfs_dir_changed(dir);
		kvcfs_dir_changed(new_dir);
	}
	return rc;
}

typedef struct Rename {
	KvcfsInode *dir, *new_dir; /* owned references */
	KvcfsInode *target;	   /* owned reference: the prefix that is replaced, or NULL */
	char *name, *new_name;
	unsigned flags;
} Rename;

static void
rename_step(fuse_req_t req, KvcfsWake why, void *user)
{
	Rename *rename = user;
	fuse_reply_err(req, -rename_entry(rename->dir, rename->name, rename->new_dir,
					  rename->new_name, rename->flags, fuse_req_ctx(req)->pid));
	kvcfs_inode_unref(rename->dir, 1);
	kvcfs_inode_unref(rename->new_dir, 1);
	if (rename->target)
		kvcfs_inode_unref(rename->target, 1);
	g_free(rename->name);
	g_free(rename->new_name);
	g_free(rename);
}

/*
 * A writer that has just closed the temporary file: its RELEASE is on its way, and the rename is to
 * be the commit. Or one of an entry of the prefix directory that would be replaced, which is not
 * empty then. true: answered later.
 */
static bool
rename_waits(fuse_req_t req,
	     KvcfsInode *dir,
	     const char *name,
	     KvcfsInode *new_dir,
	     const char *new_name,
	     unsigned flags)
{
	Kvcfs *fs = dir->fs;
	KvcfsClosingFilter filter = {.dir = dir, .name = name};
	KvcfsInode *target = NULL;
	bool waits = kvcfs_is_closing(fs, &filter);
	if (!waits && new_dir->kind == KVCFS_RANK && !kvcfs_name_is_hash(new_name))
		target = kvcfs_prefix_lookup(new_dir, new_name);
	if (target) {
		filter = (KvcfsClosingFilter){.prefix = target, .with_entries = true};
		waits = kvcfs_is_closing(fs, &filter);
	}
	if (!waits) {
		if (target)
			kvcfs_inode_unref(target, 1);
		return false;
	}
	Rename *rename = g_new(Rename, 1);
	*rename = (Rename){
		.dir = kvcfs_inode_ref(dir),
		.new_dir = kvcfs_inode_ref(new_dir),
		.target = target,
		.name = g_strdup(name),
		.new_name = g_strdup(new_name),
		.flags = flags,
	};
	if (!target)
		filter = (KvcfsClosingFilter){.dir = rename->dir, .name = rename->name};
	kvcfs_count(fs, changes_waited_commit);
	kvcfs_wait_for_commit(fs, req, &filter, rename_step, rename);
	return true;
}

void
kvcfs_op_rename(fuse_req_t req,
		fuse_ino_t parent,
		const char *name,
		fuse_ino_t new_parent,
		const char *new_name,
		unsigned flags)
{
	Kvcfs *fs = kvcfs_of(req);
	KvcfsInode *dir = kvcfs_inode_of(fs, parent);
	KvcfsInode *new_dir = kvcfs_inode_of(fs, new_parent);
	int rc;
	if (flags & ~RENAME_NOREPLACE)
		rc = -EINVAL;
	else if (dir->kind == KVCFS_CONTROL_ROOT || new_dir->kind == KVCFS_CONTROL_ROOT ||
		 kvcfs_is_control_root(dir, name) || kvcfs_is_control_root(new_dir, new_name))
		rc = -EACCES;
	else if (strlen(new_name) > KVC_NAME_MAX_BYTES)
		rc = -ENAMETOOLONG;
	else if (__atomic_load_n(&fs->is_draining, __ATOMIC_RELAXED))
		rc = -EROFS;
	else
		rc = 0;
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else if (!rename_waits(req, dir, name, new_dir, new_name, flags))
		fuse_reply_err(req, -rename_entry(dir, name, new_dir, new_name, flags,
						  fuse_req_ctx(req)->pid));
}
