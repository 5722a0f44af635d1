/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The directories above the objects: components of model names (DIR) and ranks (RANK). They appear
 * when the engine knows a key below them, or by mkdir, and stay until rmdir; those of mkdir also
 * over a restart (tree-log.c). Files in them other than objects do not exist here.
 */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <string.h>

KvcfsInode *
kvcfs_tree_find_rank_locked(Kvcfs *fs, KvcKeyScope *scope)
{
	return g_hash_table_lookup(fs->ranks, scope);
}

static KvcfsInode *
add_child_locked(KvcfsInode *dir, const char *name, KvcfsKind kind, KvcKeyScope *scope)
{
	KvcfsInode *child = kvcfs_inode_new_locked(dir->fs, kind, dir, name, scope);
	child->mtime_ns = child->atime_ns = kvcfs_wall_ns();
	child->uid = dir->uid;
	child->gid = dir->gid;
	g_hash_table_insert(dir->children, child->name, child);
	if (kind == KVCFS_RANK)
		g_hash_table_insert(dir->fs->ranks, child->scope, child);
	return child;
}

static void
add_scope_locked(Kvcfs *fs, KvcKeyScope *scope)
{
	if (g_hash_table_contains(fs->ranks, scope))
		return;
	g_autofree char *path = kvc_model_path_format(scope);
	g_auto(GStrv) components = g_strsplit(path, "/", -1);
	KvcfsInode *dir = fs->root;
	for (size_t i = 0; components[i]; i++) {
		KvcfsInode *child = g_hash_table_lookup(dir->children, components[i]);
		if (!child)
			child = add_child_locked(dir, components[i], KVCFS_DIR, NULL);
		dir = child;
	}
	g_autofree char *rank = kvc_rank_format(scope);
	add_child_locked(dir, rank, KVCFS_RANK, scope);
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

char *
kvcfs_tree_path(KvcfsInode *dir)
{
	if (!dir->parent)
		return g_strdup("");
	g_autofree char *above = kvcfs_tree_path(dir->parent);
	return above[0] ? g_strdup_printf("%s/%s", above, dir->name) : g_strdup(dir->name);
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
		g_autofree char *path = kvcfs_tree_path(dir);
		scope = kvc_rank_parse(path, name, NULL);
		if (!scope)
			return -EINVAL;
	}
	int rc = 0;
	pthread_mutex_lock(&fs->names);
	if (dir->is_unlinked) {
		rc = -ENOENT;
	} else if (g_hash_table_contains(dir->children, name)) {
		rc = -EEXIST;
	} else {
		KvcfsInode *child =
			add_child_locked(dir, name, scope ? KVCFS_RANK : KVCFS_DIR, scope);
		child->mode = S_IFDIR | (mode & 07777);
		*out = kvcfs_inode_ref_locked(child);
	}
	pthread_mutex_unlock(&fs->names);
	return rc;
}

static bool
is_empty_locked(KvcfsInode *inode)
{
	if (inode->kind == KVCFS_DIR)
		return g_hash_table_size(inode->children) == 0;
	KvcListEntry entry;
	unsigned spaces = 1u << KVC_SPACE_CHUNK | 1u << KVC_SPACE_PREFIX;
	if (inode->temps && g_hash_table_size(inode->temps) > 0)
		return false;
	if (kvc_storage_manager_list(inode->fs->sm, inode->scope, spaces, 0, &entry, 1) == 0)
		return true;
	kvc_object_key_unref(entry.key);
	return false;
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
	else if (!is_empty_locked(child))
		rc = -ENOTEMPTY;
	if (rc == 0) {
		g_hash_table_remove(dir->children, name);
		kvcfs_tree_forget_locked(child);
		child->is_unlinked = true;
		if (child->kind == KVCFS_RANK)
			g_hash_table_remove(fs->ranks, child->scope);
		/* A key of the scope that comes back brings the directory back. */
		fs->scopes_seen = 0;
	}
	pthread_mutex_unlock(&fs->names);
	if (rc == 0) {
		kvcfs_inode_unref(child, 1);
		kvcfs_dir_log_settle(fs->dir_log);
	}
	return rc;
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
collect_ranks_locked(KvcfsInode *inode, GPtrArray *ranks)
{
	GHashTableIter iter;
	KvcfsInode *child;
	if (inode->kind == KVCFS_RANK)
		g_ptr_array_add(ranks, kvcfs_inode_ref_locked(inode));
	if (inode->kind != KVCFS_DIR)
		return;
	g_hash_table_iter_init(&iter, inode->children);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&child))
		collect_ranks_locked(child, ranks);
}

GPtrArray *
kvcfs_tree_ranks_below(KvcfsInode *inode)
{
	GPtrArray *ranks = g_ptr_array_new();
	sync_with_engine(inode->fs);
	pthread_mutex_lock(&inode->fs->names);
	collect_ranks_locked(inode, ranks);
	pthread_mutex_unlock(&inode->fs->names);
	return ranks;
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
