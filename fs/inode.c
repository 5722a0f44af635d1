/* SPDX-License-Identifier: Apache-2.0 */

/* Inodes: their references, the table of committed objects, their attributes. A nodeid is a
 * pointer. */

#include "fs/internal.h"

#include <errno.h>
#include <string.h>
#include <time.h>

int64_t
kvcfs_now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

int64_t
kvcfs_wall_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_REALTIME, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

fuse_ino_t
kvcfs_inode_nodeid(const KvcfsInode *inode)
{
	return inode == inode->fs->root ? FUSE_ROOT_ID : (fuse_ino_t)(uintptr_t)inode;
}

uint64_t
kvcfs_key_ino(const KvcObjectKey *key)
{
	const uint64_t top = UINT64_C(1) << 63;
	return key->space == KVC_SPACE_PREFIX ? key->hash | top : key->hash & ~top;
}

KvcfsInode *
kvcfs_inode_new_locked(
	Kvcfs *fs, KvcfsKind kind, KvcfsInode *parent, const char *name, KvcKeyScope *scope)
{
	KvcfsInode *inode = g_new0(KvcfsInode, 1);
	inode->fs = fs;
	inode->kind = kind;
	inode->ino = fs->next_ino++;
	inode->parent = parent ? kvcfs_inode_ref_locked(parent) : NULL;
	inode->name = g_strdup(name);
	inode->scope = scope ? kvc_key_scope_ref(scope) : NULL;
	inode->refs = 1;
	bool is_dir = kind == KVCFS_DIR || kind == KVCFS_RANK || kind == KVCFS_PREFIX ||
		      kind == KVCFS_CONTROL_ROOT;
	inode->mode = is_dir ? S_IFDIR | 0755 : S_IFREG | 0644;
	if (kind == KVCFS_DIR)
		inode->children = g_hash_table_new(g_str_hash, g_str_equal);
	pthread_mutex_init(&inode->io_lock, NULL);
	inode->next = fs->inodes;
	if (fs->inodes)
		fs->inodes->prev = inode;
	fs->inodes = inode;
	return inode;
}

KvcfsInode *
kvcfs_inode_ref_locked(KvcfsInode *inode)
{
	inode->refs++;
	return inode;
}

KvcfsInode *
kvcfs_inode_ref(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	kvcfs_inode_ref_locked(inode);
	pthread_mutex_unlock(&inode->fs->names);
	return inode;
}

void
kvcfs_inode_retire_locked(KvcfsInode *inode, void *data, GDestroyNotify free_func)
{
	KvcfsRetired *retired = g_new(KvcfsRetired, 1);
	*retired = (KvcfsRetired){inode->retired, data, free_func};
	inode->retired = retired;
}

KvcObjectKey *
kvcfs_inode_get_key(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	KvcObjectKey *key = inode->key;
	pthread_mutex_unlock(&inode->fs->names);
	return key;
}

void
kvcfs_inode_set_key_locked(KvcfsInode *inode, KvcObjectKey *key)
{
	KvcObjectKey *old = inode->key;
	__atomic_store_n(&inode->key, kvc_object_key_ref(key), __ATOMIC_RELEASE);
	inode->ino = kvcfs_key_ino(key);
	kvcfs_inode_retire_locked(inode, old, (GDestroyNotify)kvc_object_key_unref);
}

void
kvcfs_inode_set_name_locked(KvcfsInode *inode, const char *name)
{
	char *old = inode->name;
	__atomic_store_n(&inode->name, g_strdup(name), __ATOMIC_RELEASE);
	kvcfs_inode_retire_locked(inode, old, g_free);
}

static void
free_retired(KvcfsInode *inode)
{
	while (inode->retired) {
		KvcfsRetired *retired = inode->retired;
		inode->retired = retired->next;
		retired->free_func(retired->data);
		g_free(retired);
	}
}

static void
leave_list_locked(KvcfsInode *inode)
{
	if (inode->next)
		inode->next->prev = inode->prev;
	if (inode->prev)
		inode->prev->next = inode->next;
	else
		inode->fs->inodes = inode->next;
}

/* Out of the tables that find inodes without owning them. */
static void
leave_tables_locked(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	leave_list_locked(inode);
	GHashTable *table = inode->kind == KVCFS_OBJECT	  ? fs->objects
			    : inode->kind == KVCFS_PREFIX ? fs->prefixes
							  : NULL;
	if (table && inode->key && g_hash_table_lookup(table, inode->key) == inode) {
		g_hash_table_remove(table, inode->key);
		g_hash_table_remove(fs->checked, inode->key);
	}
	g_hash_table_remove(fs->renounced, inode);
	if (inode->kind == KVCFS_KEYS)
		kvcfs_chain_forget_keys_inode_locked(inode->parent, inode);
	if (inode->chain)
		kvcfs_chain_uncount_locked(inode);
	bool is_dir = inode->kind == KVCFS_RANK || inode->kind == KVCFS_DIR;
	if (is_dir && g_hash_table_lookup(fs->dirs, inode->scope) == inode)
		g_hash_table_remove(fs->dirs, inode->scope);
}

static void
unref_table(GHashTable *table)
{
	GHashTableIter iter;
	KvcfsInode *inode;
	if (!table)
		return;
	g_hash_table_iter_init(&iter, table);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&inode)) {
		g_hash_table_iter_remove(&iter);
		kvcfs_inode_unref(inode, 1);
	}
}

static void
free_inode(KvcfsInode *inode)
{
	g_clear_pointer(&inode->children, g_hash_table_unref);
	g_clear_pointer(&inode->temps, g_hash_table_unref);
	g_clear_pointer(&inode->nlinks, g_hash_table_unref);
	if (inode->chain)
		kvcfs_loop_hand_over(); /* it may be a million keys */
	g_clear_pointer(&inode->chain, kvcfs_chain_free);
	g_clear_pointer(&inode->key, kvc_object_key_unref);
	g_clear_pointer(&inode->xattrs, kvc_xattrs_unref);
	g_clear_pointer(&inode->via, kvc_object_key_unref);
	g_clear_pointer(&inode->scope, kvc_key_scope_unref);
	pthread_mutex_destroy(&inode->io_lock);
	free_retired(inode);
	g_free(inode->was_temp_name);
	g_free(inode->name);
	g_free(inode);
}

/* The last reference is gone: gives back those it had. */
static void
dispose(KvcfsInode *inode)
{
	KvcfsInode *parent = inode->parent;
	if (inode->staging)
		kvcfs_staging_free(inode);
	unref_table(inode->children);
	unref_table(inode->temps);
	free_inode(inode);
	if (parent)
		kvcfs_inode_unref(parent, 1);
}

void
kvcfs_inodes_free_stagings(Kvcfs *fs)
{
	for (KvcfsInode *inode = fs->inodes; inode; inode = inode->next) {
		/* Against its end while its staging lets go of others. */
		kvcfs_inode_ref(inode);
		if (inode->staging)
			kvcfs_staging_free(inode);
	}
}

void
kvcfs_inodes_free_all(Kvcfs *fs)
{
	while (fs->inodes) {
		KvcfsInode *inode = fs->inodes;
		fs->inodes = inode->next;
		free_inode(inode);
	}
}

void
kvcfs_inode_unref(KvcfsInode *inode, uint64_t n)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	g_assert(inode->refs >= n);
	inode->refs -= n;
	bool is_last = inode->refs == 0;
	if (is_last)
		leave_tables_locked(inode);
	pthread_mutex_unlock(&fs->names);
	if (is_last)
		dispose(inode);
}

KvcfsInode *
kvcfs_object_inode_locked(Kvcfs *fs, KvcObjectKey *key)
{
	KvcfsInode *inode = g_hash_table_lookup(fs->objects, key);
	if (inode)
		return kvcfs_inode_ref_locked(inode);
	inode = kvcfs_inode_new_locked(fs, KVCFS_OBJECT, NULL, NULL, NULL);
	inode->ino = kvcfs_key_ino(key);
	inode->key = kvc_object_key_ref(key);
	g_hash_table_insert(fs->objects, inode->key, inode);
	return inode;
}

void
kvcfs_object_inode_renounce(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	if (inode->key && g_hash_table_lookup(fs->objects, inode->key) == inode) {
		g_hash_table_remove(fs->objects, inode->key);
		g_hash_table_add(fs->renounced, inode);
	}
	pthread_mutex_unlock(&fs->names);
}

void
kvcfs_object_moved_locked(Kvcfs *fs, KvcObjectKey *key, KvcObjectKey *new_key)
{
	KvcfsInode *inode = g_hash_table_lookup(fs->objects, key);
	if (inode) {
		g_hash_table_remove(fs->objects, key);
		inode->is_unlinked = !new_key;
	}
	if (inode && new_key) {
		kvcfs_inode_set_key_locked(inode, new_key);
		g_hash_table_insert(fs->objects, inode->key, inode);
	}
	GHashTableIter iter;
	g_hash_table_iter_init(&iter, fs->renounced);
	while (g_hash_table_iter_next(&iter, (void **)&inode, NULL)) {
		if (!kvc_object_key_equal(inode->key, key))
			continue;
		inode->is_unlinked = !new_key;
		if (new_key)
			kvcfs_inode_set_key_locked(inode, new_key);
		else
			g_hash_table_iter_remove(&iter);
	}
}

bool
kvcfs_object_exists(Kvcfs *fs, KvcObjectKey *key)
{
	KvcObjectInfo info;
	return kvc_storage_manager_stat(fs->sm, key, &info) == 0 &&
	       (info.bytes > 0 || key->space == KVC_SPACE_PLAIN);
}

bool
kvcfs_dir_names(KvcfsInode *dir, const KvcObjectKey *key)
{
	return dir->kind != KVCFS_PREFIX || kvcfs_prefix_has(dir, key);
}

bool
kvcfs_dir_has_object(KvcfsInode *dir, KvcObjectKey *key)
{
	return kvcfs_object_exists(dir->fs, key) && kvcfs_dir_names(dir, key);
}

/* ---- Attributes ---------------------------------------------------------------------------- */

static struct timespec
to_timespec(int64_t ns)
{
	/* Rounded down, also before the epoch. */
	int64_t rest = (ns % 1000000000 + 1000000000) % 1000000000;
	return (struct timespec){(ns - rest) / 1000000000, rest};
}

/* Those that INODE has; of ctime and atime 0 is as mtime. */
static void
set_times(struct stat *st, const KvcfsInode *inode)
{
	st->st_mtim = to_timespec(inode->mtime_ns);
	st->st_ctim = to_timespec(inode->ctime_ns ? inode->ctime_ns : inode->mtime_ns);
	st->st_atim = to_timespec(inode->atime_ns ? inode->atime_ns : inode->mtime_ns);
}

static unsigned
count_links_locked(KvcfsInode *inode)
{
	KvcfsInode *dir = g_hash_table_lookup(inode->fs->dirs, inode->key->scope);
	if (!dir || !dir->nlinks)
		return 1;
	return 1 + GPOINTER_TO_UINT(g_hash_table_lookup(dir->nlinks, inode->key));
}

/* A file on its way: what its memory has now. */
static int
stat_staging(KvcfsInode *inode, struct stat *st)
{
	const KvcfsStaging *staging = inode->staging;
	KvcObjectInfo info = {0};
	struct stat backing = staging->sealed;
	/* Whose OPEN does not come, since its walk has failed, sees with stat what is there. */
	bool is_unopened = staging->is_overwrite && staging->is_expected;
	if (is_unopened || (!staging->object && !staging->sealed.st_ino)) {
		/* A copy that nobody has written to is what it is a copy of. */
		kvc_storage_manager_stat(inode->fs->sm, staging->target, &info);
		backing.st_size = (off_t)(staging->base ? kvc_l1_object_get_bytes(staging->base)
							: info.bytes);
		backing.st_blocks = (backing.st_size + 511) / 512;
		backing.st_mtim = backing.st_atim = to_timespec(info.mtime_ns);
	} else if (staging->object && fstat(kvc_l1_object_get_fd(staging->object), &backing) != 0) {
		return -errno;
	}
	st->st_size = backing.st_size;
	st->st_blocks = MIN(backing.st_blocks, (backing.st_size + 511) / 512);
	st->st_nlink = inode->is_unlinked ? 0 : 1;
	st->st_mtim = st->st_ctim = backing.st_mtim;
	st->st_atim = backing.st_atim;
	int64_t mtime_ns = kvcfs_attr_given_mtime_locked(inode, &backing);
	if (mtime_ns)
		st->st_mtim = to_timespec(mtime_ns);
	if (inode->atime_ns)
		st->st_atim = to_timespec(inode->atime_ns);
	struct timespec changed = to_timespec(inode->ctime_ns);
	if (changed.tv_sec > st->st_ctim.tv_sec ||
	    (changed.tv_sec == st->st_ctim.tv_sec && changed.tv_nsec > st->st_ctim.tv_nsec))
		st->st_ctim = changed;
	return 0;
}

bool
kvcfs_inode_is_replaced_locked(const KvcfsInode *inode)
{
	if (!inode->key || inode->key->space != KVC_SPACE_PLAIN)
		return false;
	const KvcfsInode *current = g_hash_table_lookup(inode->fs->objects, inode->key);
	return current && current != inode;
}

/* What its open descriptors have may be gone, or the version before: 0 or -ENOENT. */
static int
stat_open_file(KvcfsInode *inode, struct stat *st)
{
	pthread_mutex_lock(&inode->io_lock);
	bool is_open = inode->n_opens > 0;
	st->st_size = (off_t)inode->open_bytes;
	pthread_mutex_unlock(&inode->io_lock);
	st->st_blocks = (st->st_size + 511) / 512;
	set_times(st, inode);
	return is_open ? 0 : -ENOENT;
}

static int
stat_object(KvcfsInode *inode, struct stat *st)
{
	KvcObjectInfo info;
	struct stat open_file = *st;
	bool is_gone = inode->is_unlinked || !inode->key ||
		       kvc_storage_manager_stat(inode->fs->sm, inode->key, &info) < 0;
	bool is_open = stat_open_file(inode, &open_file) == 0;
	/* The engine may know the next version a moment before our tables do. */
	bool is_other = !is_gone && inode->key->space == KVC_SPACE_PLAIN &&
			(info.bytes != (uint64_t)open_file.st_size ||
			 kvcfs_inode_is_replaced_locked(inode));
	if (is_open && (is_gone || is_other)) {
		*st = open_file;
		return 0;
	}
	if (is_gone)
		return -ENOENT;
	kvcfs_attr_remember_locked(inode, &info);
	st->st_mode = inode->mode;
	st->st_uid = inode->uid;
	st->st_gid = inode->gid;
	st->st_size = (off_t)info.bytes;
	st->st_blocks =
		info.tiers & KVC_TIER_L1 ? (blkcnt_t)((info.bytes + 511) / 512) : info.bytes > 0;
	st->st_nlink = count_links_locked(inode);
	set_times(st, inode);
	return 0;
}

static void
stat_other(KvcfsInode *inode, struct stat *st)
{
	bool is_dir = S_ISDIR(inode->mode);
	st->st_nlink = is_dir ? 2 : 1;
	set_times(st, inode);
}

int
kvcfs_inode_get_attr(KvcfsInode *inode, struct stat *st)
{
	Kvcfs *fs = inode->fs;
	int rc = 0;
	*st = (struct stat){.st_ino = inode->ino, .st_blksize = 4 << 20};
	if (inode->kind == KVCFS_KEYS) {
		size_t len = kvcfs_prefix_text_len(inode->parent);
		st->st_size = (off_t)len;
		st->st_blocks = (blkcnt_t)((len + 511) / 512);
	}
	pthread_mutex_lock(&fs->names);
	st->st_mode = inode->mode;
	st->st_uid = inode->uid;
	st->st_gid = inode->gid;
	if (inode->kind == KVCFS_OBJECT)
		rc = inode->staging ? stat_staging(inode, st) : stat_object(inode, st);
	else
		stat_other(inode, st);
	inode->told_bytes = (uint64_t)st->st_size;
	pthread_mutex_unlock(&fs->names);
	return rc;
}

bool
kvcfs_inode_gives_group(KvcfsInode *dir, gid_t *gid)
{
	pthread_mutex_lock(&dir->fs->names);
	bool is_setgid = dir->mode & S_ISGID;
	if (is_setgid)
		*gid = dir->gid;
	pthread_mutex_unlock(&dir->fs->names);
	return is_setgid;
}

/* Only what is committed, and nobody is about to replace, may be cached under its name. */
static bool
is_lasting_locked(const KvcfsInode *inode)
{
	if (inode->kind != KVCFS_OBJECT)
		return inode->kind != KVCFS_KEYS;
	return !inode->staging && !inode->is_unlinked && inode->key &&
	       !kvcfs_is_just_published_locked(inode->fs, inode->key) &&
	       !kvcfs_is_being_written_locked(inode->fs, inode->key) &&
	       !kvcfs_inode_is_replaced_locked(inode);
}

bool
kvcfs_inode_is_lasting(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	bool is_lasting = is_lasting_locked(inode);
	pthread_mutex_unlock(&inode->fs->names);
	return is_lasting;
}

int
kvcfs_inode_get_entry(KvcfsInode *inode, struct fuse_entry_param *entry)
{
	*entry = (struct fuse_entry_param){.ino = kvcfs_inode_nodeid(inode)};
	int rc = kvcfs_inode_get_attr(inode, &entry->attr);
	if (rc == 0 && kvcfs_inode_is_lasting(inode)) {
		entry->entry_timeout = KVCFS_ENTRY_TIMEOUT;
		entry->attr_timeout = KVCFS_ATTR_TIMEOUT;
	}
	if (inode->kind == KVCFS_OBJECT && entry->entry_timeout > 0) {
		KvcObjectKey *key = kvcfs_inode_get_key(inode);
		entry->entry_timeout = kvcfs_coherence_limit(inode->fs, key, entry->entry_timeout);
		entry->attr_timeout = kvcfs_coherence_limit(inode->fs, key, entry->attr_timeout);
	}
	return rc;
}

void
kvcfs_reply_entry(fuse_req_t req, KvcfsInode *inode)
{
	struct fuse_entry_param entry;
	int rc = kvcfs_inode_get_entry(inode, &entry);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		kvcfs_inode_unref(inode, 1);
		return;
	}
	if (fuse_reply_entry(req, &entry) != 0)
		kvcfs_inode_unref(inode, 1);
}
