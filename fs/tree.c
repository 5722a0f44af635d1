/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The directories above the objects: components of model names, which are the directories of plain
 * files too (DIR), and ranks (RANK). They appear when the engine knows a key below them, or by
 * mkdir, and stay until rmdir; those of mkdir also over a restart (tree-log.c). Only directories
 * are kept here: plain files are in the engine's index, under the scope of their directory.
 */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <string.h>

KvcfsInode *
kvcfs_tree_find_dir_locked(Kvcfs *fs, KvcKeyScope *scope)
{
	return g_hash_table_lookup(fs->dirs, scope);
}

char *
kvcfs_tree_path(const KvcfsInode *dir, const char *name)
{
	const char *path = dir->scope->model_name;
	return g_strdup_printf("%s%s%s", path, path[0] ? "/" : "", name);
}

/* SCOPE: of a RANK; NULL: a DIR. */
static KvcfsInode *
add_child_locked(KvcfsInode *dir, const char *name, KvcKeyScope *scope)
{
	g_autofree char *path = kvcfs_tree_path(dir, name);
	g_autoptr(KvcKeyScope) plain = scope ? NULL : kvc_key_scope_new_plain(path, NULL);
	KvcfsInode *child = kvcfs_inode_new_locked(dir->fs, scope ? KVCFS_RANK : KVCFS_DIR, dir,
						   name, scope ? scope : plain);
	child->mtime_ns = child->atime_ns = kvcfs_wall_ns();
	child->uid = dir->uid;
	child->gid = dir->gid;
	g_hash_table_insert(dir->children, child->name, child);
	g_hash_table_insert(dir->fs->dirs, child->scope, child);
	return child;
}

/* Makes the directories of PATH that are not there; NULL: one of them cannot be a directory. */
static KvcfsInode *
add_path_locked(Kvcfs *fs, const char *path)
{
	g_auto(GStrv) components = g_strsplit(path, "/", -1);
	KvcfsInode *dir = fs->root;
	if (components[0] && strcmp(components[0], KVCFS_CONTROL_DIR) == 0)
		return NULL;
	for (size_t i = 0; components[i]; i++) {
		KvcfsInode *child = g_hash_table_lookup(dir->children, components[i]);
		if (components[i][0] == '@' || (child && child->kind != KVCFS_DIR))
			return NULL;
		dir = child ? child : add_child_locked(dir, components[i], NULL);
	}
	return dir;
}

static bool
has_object(Kvcfs *fs, KvcKeyScope *scope)
{
	KvcListEntry entry;
	if (kvc_storage_manager_list(fs->sm, scope, UINT32_MAX, 0, &entry, 1) == 0)
		return false;
	kvc_object_key_unref(entry.key);
	return true;
}

static void
add_scope_locked(Kvcfs *fs, KvcKeyScope *scope)
{
	/* Since they were listed its objects, and the directory, may have been removed. */
	if (g_hash_table_contains(fs->dirs, scope) || !has_object(fs, scope))
		return;
	if (scope->is_plain) {
		add_path_locked(fs, scope->model_name);
		return;
	}
	g_autofree char *path = kvc_model_path_format(scope);
	g_autofree char *rank = kvc_rank_format(scope);
	KvcfsInode *dir = add_path_locked(fs, path);
	if (dir && !g_hash_table_contains(dir->children, rank))
		add_child_locked(dir, rank, scope);
}

/* Adds what the engine has come to know since the last time. */
static void
sync_with_engine(Kvcfs *fs)
{
	uint64_t version = __atomic_load_n(&fs->scopes_version, __ATOMIC_ACQUIRE);
	pthread_mutex_lock(&fs->names);
	bool is_current = fs->scopes_seen == version;
	pthread_mutex_unlock(&fs->names);
	if (is_current)
		return;
	g_autoptr(GPtrArray) scopes = kvc_storage_manager_list_scopes(fs->sm);
	pthread_mutex_lock(&fs->names);
	for (guint i = 0; i < scopes->len; i++)
		add_scope_locked(fs, scopes->pdata[i]);
	fs->scopes_seen = MAX(fs->scopes_seen, version);
	pthread_mutex_unlock(&fs->names);
}

KvcfsInode *
kvcfs_tree_lookup(KvcfsInode *dir, const char *name)
{
	Kvcfs *fs = dir->fs;
	sync_with_engine(fs);
	pthread_mutex_lock(&fs->names);
	KvcfsInode *child = g_hash_table_lookup(dir->children, name);
	if (child)
		kvcfs_inode_ref_locked(child);
	pthread_mutex_unlock(&fs->names);
	return child;
}

bool
kvcfs_tree_has_child(KvcfsInode *dir, const char *name)
{
	pthread_mutex_lock(&dir->fs->names);
	bool has = dir->children && g_hash_table_contains(dir->children, name);
	pthread_mutex_unlock(&dir->fs->names);
	return has;
}

/* Is NAME in DIR a file, or about to become one? */
static bool
has_file_locked(KvcfsInode *dir, const char *name)
{
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	if (!key)
		return kvcfs_temp_lookup_locked(dir, name) != NULL;
	return kvcfs_object_exists(dir->fs, key) || kvcfs_is_being_written_locked(dir->fs, key);
}

char *
kvcfs_tree_path_of(const KvcfsInode *dir)
{
	return dir->kind == KVCFS_DIR ? g_strdup(dir->scope->model_name)
				      : kvcfs_tree_path(dir->parent, dir->name);
}

int
kvcfs_tree_mkdir(KvcfsInode *dir, const char *name, mode_t mode, KvcfsInode **out)
{
	Kvcfs *fs = dir->fs;
	g_autoptr(KvcKeyScope) scope = NULL;
	if (strlen(name) > KVC_NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	sync_with_engine(fs);
	if (name[0] == '@') {
		scope = kvc_rank_parse(dir->scope->model_name, name, NULL);
		if (!scope)
			return -EINVAL;
	}
	int rc = 0;
	pthread_mutex_lock(&fs->names);
	if (dir->is_unlinked) {
		rc = -ENOENT;
	} else if (g_hash_table_contains(dir->children, name) || has_file_locked(dir, name)) {
		rc = -EEXIST;
	} else {
		KvcfsInode *child = add_child_locked(dir, name, scope);
		child->mode = S_IFDIR | (mode & 07777);
		*out = kvcfs_inode_ref_locked(child);
	}
	pthread_mutex_unlock(&fs->names);
	return rc;
}

/* Nobody sees what is being written, but its commit needs the directory. */
static bool
has_writer_locked(const KvcfsInode *dir)
{
	GHashTableIter iter;
	const KvcObjectKey *key;
	g_hash_table_iter_init(&iter, dir->fs->writing);
	while (g_hash_table_iter_next(&iter, (void **)&key, NULL))
		if (key->scope == dir->scope)
			return true;
	return false;
}

bool
kvcfs_tree_is_empty_locked(KvcfsInode *inode)
{
	if (inode->kind == KVCFS_DIR && g_hash_table_size(inode->children) > 0)
		return false;
	if (inode->temps && g_hash_table_size(inode->temps) > 0)
		return false;
	return !has_writer_locked(inode) && !has_object(inode->fs, inode->scope);
}

void
kvcfs_tree_remove_locked(KvcfsInode *dir, KvcfsInode *child)
{
	Kvcfs *fs = dir->fs;
	g_hash_table_remove(dir->children, child->name);
	child->is_unlinked = true;
	if (g_hash_table_lookup(fs->dirs, child->scope) != child)
		return;
	g_hash_table_remove(fs->dirs, child->scope);
	/* A key of the scope that comes back brings the directory back. */
	fs->scopes_seen = 0;
}

int
kvcfs_tree_rmdir(KvcfsInode *dir, const char *name)
{
	Kvcfs *fs = dir->fs;
	sync_with_engine(fs);
	int rc = 0;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *child = g_hash_table_lookup(dir->children, name);
	if (!child)
		rc = -ENOENT;
	else if (!kvcfs_tree_is_empty_locked(child))
		rc = -ENOTEMPTY;
	if (rc == 0) {
		kvcfs_tree_forget_locked(child);
		kvcfs_tree_remove_locked(dir, child);
	}
	pthread_mutex_unlock(&fs->names);
	if (rc == 0) {
		kvcfs_inode_unref(child, 1);
		kvcfs_dir_log_settle(fs->dir_log);
	}
	return rc;
}

void
kvcfs_tree_move_locked(KvcfsInode *child, KvcfsInode *new_dir, const char *new_name)
{
	KvcfsInode *parent = child->parent;
	g_hash_table_remove(parent->children, child->name);
	kvcfs_inode_set_name_locked(child, new_name);
	child->parent = kvcfs_inode_ref_locked(new_dir);
	g_assert(parent->refs > 1); /* the request that moves the child has one */
	parent->refs--;
	g_hash_table_insert(new_dir->children, child->name, child);
}

GPtrArray *
kvcfs_tree_list(KvcfsInode *dir)
{
	GPtrArray *children = g_ptr_array_new();
	GHashTableIter iter;
	KvcfsInode *child;
	sync_with_engine(dir->fs);
	pthread_mutex_lock(&dir->fs->names);
	g_hash_table_iter_init(&iter, dir->children);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&child))
		g_ptr_array_add(children, kvcfs_inode_ref_locked(child));
	pthread_mutex_unlock(&dir->fs->names);
	return children;
}

static void
collect_dirs_locked(KvcfsInode *inode, GPtrArray *dirs)
{
	GHashTableIter iter;
	KvcfsInode *child;
	g_ptr_array_add(dirs, kvcfs_inode_ref_locked(inode));
	if (inode->kind != KVCFS_DIR)
		return;
	g_hash_table_iter_init(&iter, inode->children);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&child))
		collect_dirs_locked(child, dirs);
}

GPtrArray *
kvcfs_tree_dirs_below(KvcfsInode *inode)
{
	GPtrArray *dirs = g_ptr_array_new();
	sync_with_engine(inode->fs);
	pthread_mutex_lock(&inode->fs->names);
	collect_dirs_locked(inode, dirs);
	pthread_mutex_unlock(&inode->fs->names);
	return dirs;
}

KvcfsInode *
kvcfs_tree_resolve(Kvcfs *fs, const char *const *components, size_t n)
{
	KvcfsInode *inode = kvcfs_inode_ref(fs->root);
	for (size_t i = 0; inode && i < n; i++) {
		KvcfsInode *child = NULL;
		if (inode->kind == KVCFS_DIR)
			child = kvcfs_tree_lookup(inode, components[i]);
		else if (inode->kind == KVCFS_RANK)
			child = kvcfs_prefix_lookup(inode, components[i]);
		kvcfs_inode_unref(inode, 1);
		inode = child;
	}
	return inode;
}
