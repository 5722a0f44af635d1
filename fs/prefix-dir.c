/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A prefix directory: an ordered set of references to objects of its rank directory. The chain is
 * kept here while the inode lives and stored as an object of space 2 whose bytes are those of
 * .keys; it is written at most once a second, at closedir, flush and unmount. A chain that is only
 * in L2 is loaded without anybody waiting under a directory lock; references added meanwhile come
 * after the loaded ones.
 */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static KvcObjectKey *
chain_key(KvcfsInode *rank, const char *name)
{
	return kvc_object_key_new(rank->scope, KVC_SPACE_PREFIX, name, strlen(name), NULL);
}

/* ---- The directory ------------------------------------------------------------------------- */

static KvcfsInode *
prefix_inode_locked(KvcfsInode *rank, const char *name, KvcObjectKey *key)
{
	Kvcfs *fs = rank->fs;
	KvcfsInode *prefix = g_hash_table_lookup(fs->prefixes, key);
	if (prefix)
		return kvcfs_inode_ref_locked(prefix);
	prefix = kvcfs_inode_new_locked(fs, KVCFS_PREFIX, rank, name, rank->scope);
	prefix->ino = kvcfs_key_ino(key);
	prefix->key = kvc_object_key_ref(key);
	prefix->chain = kvcfs_chain_new();
	prefix->uid = rank->uid;
	prefix->gid = rank->gid;
	prefix->mtime_ns = prefix->chain->mtime_ns = kvcfs_wall_ns();
	g_hash_table_replace(fs->prefixes, prefix->key, prefix);
	return prefix;
}

KvcfsInode *
kvcfs_prefix_lookup(KvcfsInode *rank, const char *name)
{
	Kvcfs *fs = rank->fs;
	g_autoptr(KvcObjectKey) key = chain_key(rank, name);
	if (!key)
		return NULL;
	KvcObjectInfo info = {0};
	bool is_known = kvc_storage_manager_stat(fs->sm, key, &info) == 0;
	KvcfsInode *prefix = NULL;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *old = g_hash_table_lookup(fs->prefixes, key);
	if (is_known || (old && old->chain->is_dirty && !old->is_unlinked))
		prefix = prefix_inode_locked(rank, name, key);
	if (prefix && is_known && !old) {
		kvcfs_attr_remember_prefix_locked(prefix, &info);
		prefix->chain->mtime_ns = prefix->mtime_ns;
	}
	pthread_mutex_unlock(&fs->names);
	if (prefix)
		kvcfs_prefix_is_loaded(prefix);
	return prefix;
}

int
kvcfs_prefix_mkdir(KvcfsInode *rank, const char *name, mode_t mode, KvcfsInode **out)
{
	Kvcfs *fs = rank->fs;
	if (strlen(name) > KVC_NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (kvcfs_name_classify(rank->scope, name) != KVCFS_NAME_OTHER)
		return -EINVAL;
	g_autoptr(KvcObjectKey) key = chain_key(rank, name);
	if (!key)
		return -EINVAL;
	if (kvc_storage_manager_stat(fs->sm, key, NULL) == 0)
		return -EEXIST;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *prefix = prefix_inode_locked(rank, name, key);
	prefix->mode = S_IFDIR | (mode & 07777);
	kvcfs_chain_set_loaded_locked(prefix);
	bool must_arm = kvcfs_prefix_changed_locked(prefix);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
	*out = prefix;
	/* At once: the index is what knows that the directory exists. If it fails it is tried
	 * again. */
	kvcfs_prefix_save(prefix);
	return 0;
}

static bool
lists_an_entry_locked(KvcfsInode *prefix)
{
	const GPtrArray *refs = prefix->chain->refs;
	if (prefix->temps && g_hash_table_size(prefix->temps) > 0)
		return true;
	const KvcfsRef *first = refs->len > 0 ? refs->pdata[0] : NULL;
	return first && first->is_committed && kvcfs_object_exists(prefix->fs, first->key);
}

int
kvcfs_prefix_rmdir(KvcfsInode *rank, const char *name)
{
	Kvcfs *fs = rank->fs;
	KvcfsInode *prefix = kvcfs_prefix_lookup(rank, name);
	if (!prefix)
		return -ENOENT;
	int rc = 0;
	pthread_mutex_lock(&fs->save_lock);
	pthread_mutex_lock(&fs->names);
	if (!prefix->chain->is_loaded || lists_an_entry_locked(prefix)) {
		rc = -ENOTEMPTY;
	} else {
		prefix->is_unlinked = true;
		kvcfs_chain_clear_locked(prefix);
		if (g_hash_table_lookup(fs->prefixes, prefix->key) == prefix)
			g_hash_table_remove(fs->prefixes, prefix->key);
	}
	bool was_dirty = rc == 0 && prefix->chain->is_dirty;
	if (was_dirty)
		prefix->chain->is_dirty = false;
	if (rc == 0)
		kvcfs_prefix_set_keys_file_locked(prefix, true);
	pthread_mutex_unlock(&fs->names);
	if (rc == 0) {
		/* The kernel knows; a rename may give the name to another one at once. */
		kvcfs_notifier_set_own(prefix->key);
		kvc_storage_manager_delete(fs->sm, prefix->key);
		kvcfs_notifier_set_own(NULL);
	}
	pthread_mutex_unlock(&fs->save_lock);
	kvc_storage_manager_settle_deletions(fs->sm);
	kvcfs_inode_unref(prefix, was_dirty ? 2 : 1);
	return rc;
}

/* What is under the new name may be a prefix that lists nothing. */
static int
clear_place(KvcfsInode *rank, const char *name, unsigned flags)
{
	KvcfsInode *target = kvcfs_prefix_lookup(rank, name);
	if (!target)
		return 0;
	kvcfs_inode_unref(target, 1);
	return flags & RENAME_NOREPLACE ? -EEXIST : kvcfs_prefix_rmdir(rank, name);
}

static int
move_chain_locked(KvcfsInode *prefix, KvcObjectKey *key, const char *name)
{
	Kvcfs *fs = prefix->fs;
	kvcfs_notifier_set_own(prefix->key);
	int rc = kvc_storage_manager_rename(fs->sm, prefix->key, key, 0);
	kvcfs_notifier_set_own(NULL);
	if (rc == -ENOENT && prefix->chain->is_dirty)
		rc = 0; /* not stored yet */
	if (rc < 0)
		return rc;
	if (g_hash_table_lookup(fs->prefixes, prefix->key) == prefix)
		g_hash_table_remove(fs->prefixes, prefix->key);
	kvcfs_inode_set_key_locked(prefix, key);
	kvcfs_inode_set_name_locked(prefix, name);
	kvcfs_prefix_note_version_locked(prefix);
	g_hash_table_replace(fs->prefixes, prefix->key, prefix);
	return 0;
}

int
kvcfs_prefix_rename(KvcfsInode *rank, const char *name, const char *new_name, unsigned flags)
{
	Kvcfs *fs = rank->fs;
	if (kvcfs_name_classify(rank->scope, new_name) != KVCFS_NAME_OTHER)
		return -EINVAL;
	KvcfsInode *prefix = kvcfs_prefix_lookup(rank, name);
	if (!prefix)
		return -ENOENT;
	g_autoptr(KvcObjectKey) key = chain_key(rank, new_name);
	int rc = key ? clear_place(rank, new_name, flags) : -EINVAL;
	if (rc == 0) {
		pthread_mutex_lock(&fs->save_lock);
		pthread_mutex_lock(&fs->names);
		rc = move_chain_locked(prefix, key, new_name);
		pthread_mutex_unlock(&fs->names);
		pthread_mutex_unlock(&fs->save_lock);
	}
	kvcfs_inode_unref(prefix, 1);
	return rc;
}

/* ---- Its entries --------------------------------------------------------------------------- */

bool
kvcfs_prefix_has_locked(KvcfsInode *prefix, const KvcObjectKey *key)
{
	KvcfsRef *ref = g_hash_table_lookup(prefix->chain->by_key, key);
	return ref && ref->is_committed;
}

bool
kvcfs_prefix_has(KvcfsInode *prefix, const KvcObjectKey *key)
{
	pthread_mutex_lock(&prefix->fs->names);
	bool has = kvcfs_prefix_has_locked(prefix, key);
	pthread_mutex_unlock(&prefix->fs->names);
	return has;
}

void
kvcfs_prefix_take_position_locked(KvcfsInode *prefix, KvcObjectKey *key)
{
	kvcfs_chain_append_locked(prefix, key, false)->n_writers++;
}

/* true: a timer has to be armed. */
static bool
settle_locked(KvcfsInode *prefix, KvcfsRef *ref, bool committed)
{
	bool must_arm = false;
	if (ref->n_writers > 0)
		ref->n_writers--;
	if (committed && !ref->is_committed && !prefix->is_unlinked) {
		kvcfs_chain_set_committed_locked(prefix, ref, true);
		must_arm = kvcfs_prefix_changed_locked(prefix);
	}
	if (!ref->is_committed && ref->n_writers == 0)
		kvcfs_chain_remove_locked(prefix, ref);
	return must_arm;
}

void
kvcfs_prefix_settle_position(KvcfsInode *prefix, KvcObjectKey *key, bool committed)
{
	Kvcfs *fs = prefix->fs;
	bool must_arm = false;
	pthread_mutex_lock(&fs->names);
	KvcfsRef *ref = g_hash_table_lookup(prefix->chain->by_key, key);
	if (ref)
		must_arm = settle_locked(prefix, ref, committed);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
}

static void
cancel_loads_locked(KvcfsInode *prefix)
{
	GPtrArray *open = prefix->fs->open_prefixes;
	for (guint i = 0; i < open->len; i++) {
		KvcfsHandle *handle = open->pdata[i];
		if (handle->inode == prefix && handle->fetch)
			kvc_prefetch_handle_cancel(kvcfs_fetch_handle(handle->fetch));
	}
}

int
kvcfs_prefix_unlink(KvcfsInode *prefix, const char *name)
{
	Kvcfs *fs = prefix->fs;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(prefix->scope, name);
	bool must_arm = false;
	int rc = -ENOENT;
	pthread_mutex_lock(&fs->names);
	KvcfsRef *ref = key ? g_hash_table_lookup(prefix->chain->by_key, key) : NULL;
	if (ref && ref->is_committed) {
		rc = 0;
		kvcfs_chain_set_committed_locked(prefix, ref, false);
		kvcfs_staging_name_removed_locked(fs, key, prefix);
		if (ref->n_writers == 0)
			kvcfs_chain_remove_locked(prefix, ref);
		must_arm = kvcfs_prefix_changed_locked(prefix);
		cancel_loads_locked(prefix);
	}
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
	return rc;
}

GPtrArray *
kvcfs_prefix_keys(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	GPtrArray *keys = kvcfs_chain_keys(prefix->chain);
	pthread_mutex_unlock(&prefix->fs->names);
	return keys;
}

GPtrArray *
kvcfs_prefix_run(KvcfsInode *prefix)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	pthread_mutex_lock(&prefix->fs->names);
	const GPtrArray *refs = prefix->chain->refs;
	for (guint i = 0; i < refs->len; i++) {
		const KvcfsRef *ref = refs->pdata[i];
		if (!ref->is_committed)
			break;
		g_ptr_array_add(keys, kvc_object_key_ref(ref->key));
	}
	pthread_mutex_unlock(&prefix->fs->names);
	return keys;
}

void
kvcfs_prefix_start_loads(Kvcfs *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->names);
	for (guint i = 0; i < fs->held_dirs->len;) {
		KvcfsHandle *handle = fs->held_dirs->pdata[i];
		if (!g_hash_table_contains(handle->key_set, key)) {
			i++;
			continue;
		}
		kvc_prefetch_handle_start(kvcfs_fetch_handle(handle->fetch));
		g_ptr_array_remove_index_fast(fs->held_dirs, i);
	}
	pthread_mutex_unlock(&fs->names);
}

/* ---- .keys --------------------------------------------------------------------------------- */

GString *
kvcfs_prefix_text(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	GString *text = kvcfs_chain_text(prefix->chain);
	pthread_mutex_unlock(&prefix->fs->names);
	return text;
}

size_t
kvcfs_prefix_text_len(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	size_t len = prefix->chain->text_bytes;
	KvcObjectInfo info;
	/* Not loaded yet: the stored chain is its text, and what was appended since comes on top.
	 */
	if (!prefix->chain->is_loaded &&
	    kvc_storage_manager_stat(prefix->fs->sm, prefix->key, &info) == 0)
		len += info.bytes;
	pthread_mutex_unlock(&prefix->fs->names);
	return len;
}

void
kvcfs_prefix_set_keys_file_locked(KvcfsInode *prefix, bool exists)
{
	KvcfsChain *chain = prefix->chain;
	if (chain->is_keys_file_removed && exists)
		prefix->refs--; /* the caller has one as well */
	else if (!chain->is_keys_file_removed && !exists)
		kvcfs_inode_ref_locked(prefix); /* the kernel may forget the directory */
	chain->is_keys_file_removed = !exists;
}

bool
kvcfs_dir_has_room_locked(const KvcfsInode *dir)
{
	return dir->kind != KVCFS_PREFIX ||
	       kvcfs_chain_has_room(dir->chain, 2 * KVC_CHUNK_HASH_MAX_BYTES + 1);
}

bool
kvcfs_prefix_shows_keys_file(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	bool shows = !prefix->chain->is_keys_file_removed;
	pthread_mutex_unlock(&prefix->fs->names);
	return shows;
}

/*
 * Who copies a prefix directory (cp -r, tar) makes it, then its entries, then .keys, each of them
 * by O_EXCL, and would find a .keys that nobody has written. So the thread that made the directory
 * sees none, until it was written or that thread has listed the directory. Everybody else does.
 */
void
kvcfs_prefix_set_maker_locked(KvcfsInode *prefix, pid_t tid, uint64_t start)
{
	prefix->chain->maker = tid;
	prefix->chain->maker_start = start;
}

bool
kvcfs_prefix_hides_keys_file(KvcfsInode *prefix, pid_t tid)
{
	pthread_mutex_lock(&prefix->fs->names);
	bool hides = tid != 0 && prefix->chain->maker == tid;
	uint64_t start = prefix->chain->maker_start;
	pthread_mutex_unlock(&prefix->fs->names);
	return hides && kvcfs_writer_start(tid) == start;
}

void
kvcfs_prefix_was_listed(KvcfsInode *prefix, pid_t tid)
{
	pthread_mutex_lock(&prefix->fs->names);
	if (prefix->chain->maker == tid)
		prefix->chain->maker = 0;
	pthread_mutex_unlock(&prefix->fs->names);
}

/*
 * Another chain, of the lines TEXT. The kernel may know entries that this ends: it is told, or it
 * would go on with them.
 */
static void
set_chain_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	g_autoptr(GPtrArray) old = kvcfs_chain_keys(prefix->chain);
	kvcfs_chain_replace_locked(prefix, text, len);
	kvcfs_chain_forget_entries_locked(prefix, old);
}

/* true: a timer has to be armed. A directory that is gone has no chain any more. */
static bool
replace_chain_locked(KvcfsInode *prefix, const char *text, size_t len, bool remove_keys_file)
{
	if (prefix->is_unlinked)
		return false;
	set_chain_locked(prefix, text, len);
	prefix->chain->maker = 0;
	kvcfs_chain_set_loaded_locked(prefix);
	kvcfs_prefix_set_keys_file_locked(prefix, !remove_keys_file);
	cancel_loads_locked(prefix);
	return kvcfs_prefix_changed_locked(prefix);
}

void
kvcfs_prefix_clear(KvcfsInode *prefix, bool remove_keys_file)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	bool must_arm = replace_chain_locked(prefix, "", 0, remove_keys_file);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
}

void
kvcfs_prefix_keys_created(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	prefix->chain->maker = 0;
	kvcfs_prefix_set_keys_file_locked(prefix, true);
	pthread_mutex_unlock(&prefix->fs->names);
}

bool
kvcfs_prefix_append_lines_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	if (len == 0 || prefix->is_unlinked)
		return false;
	kvcfs_chain_append_lines_locked(prefix, text, len);
	kvcfs_prefix_set_keys_file_locked(prefix, true);
	prefix->chain->maker = 0;
	return kvcfs_prefix_changed_locked(prefix);
}

bool
kvcfs_prefix_replace_locked(KvcfsInode *prefix, const char *text, size_t len)
{
	return replace_chain_locked(prefix, text, len, false);
}

int
kvcfs_prefix_replace(KvcfsInode *prefix, const char *text, size_t len)
{
	Kvcfs *fs = prefix->fs;
	if (!kvcfs_chain_are_lines(text, len))
		return -EINVAL;
	pthread_mutex_lock(&fs->names);
	int rc = prefix->is_unlinked ? -ENOENT : 0;
	bool must_arm = kvcfs_prefix_replace_locked(prefix, text, len);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
	return rc;
}

KvcfsInode *
kvcfs_prefix_keys_inode(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *keys = prefix->chain->keys_inode;
	if (keys)
		kvcfs_inode_ref_locked(keys);
	else
		keys = kvcfs_inode_new_locked(fs, KVCFS_KEYS, prefix, KVCFS_KEYS_FILE,
					      prefix->scope);
	/* cp copies in the order of these numbers: .keys, which would make entries exist, last. */
	keys->ino = prefix->ino | UINT64_C(0xffffff) << 40;
	keys->mtime_ns = prefix->chain->mtime_ns;
	keys->uid = prefix->uid;
	keys->gid = prefix->gid;
	prefix->chain->keys_inode = keys;
	pthread_mutex_unlock(&fs->names);
	return keys;
}
