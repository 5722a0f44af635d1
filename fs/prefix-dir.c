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
#include <string.h>
#include <unistd.h>

#define SAVE_DELAY_NS (1000 * INT64_C(1000000))

static KvcObjectKey *
chain_key(KvcfsInode *rank, const char *name)
{
	return kvc_object_key_new(rank->scope, KVC_SPACE_PREFIX, name, strlen(name), NULL);
}

/* ---- Saving -------------------------------------------------------------------------------- */

static void
save_timer(fuse_req_t req, KvcfsWake why, void *user)
{
	Kvcfs *fs = user;
	pthread_mutex_lock(&fs->names);
	fs->is_save_armed = false;
	pthread_mutex_unlock(&fs->names);
	/* At the end of the session the chains are saved by others. */
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_prefix_save_all(fs);
}

/* Changed chains stay in memory until they are saved. Returns true when a timer has to be armed. */
static bool
mark_dirty_locked(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	if (!prefix->chain->is_dirty)
		kvcfs_inode_ref_locked(prefix);
	prefix->chain->is_dirty = true;
	bool must_arm = !fs->is_save_armed;
	fs->is_save_armed = true;
	return must_arm;
}

static void
arm_save_timer(Kvcfs *fs)
{
	int64_t at = kvcfs_now_ns() + SAVE_DELAY_NS;
	kvcfs_pending_release(kvcfs_pending_new(fs->pendings, NULL, at, save_timer, fs));
}

static int
write_chain(KvcfsInode *prefix, const GString *text)
{
	Kvcfs *fs = prefix->fs;
	KvcL1Object *object;
	int rc = kvc_storage_manager_reserve_write(fs->sm, prefix->key, text->len, &object);
	if (rc < 0)
		return rc;
	ssize_t n = pwrite(kvc_l1_object_get_fd(object), text->str, text->len, 0);
	if (n != (ssize_t)text->len) {
		rc = n < 0 ? -errno : -ENOSPC;
		kvc_storage_manager_abort_write(fs->sm, object);
		return rc;
	}
	return kvc_storage_manager_finish_write(fs->sm, object, prefix->key, KVC_FINISH_REPLACE);
}

int
kvcfs_prefix_save(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	int rc = 0;
	pthread_mutex_lock(&fs->save_lock);
	pthread_mutex_lock(&fs->names);
	/* Before it is loaded, what was added is not the chain. */
	bool must_save = prefix->chain->is_dirty && prefix->chain->is_loaded;
	bool is_gone = prefix->is_unlinked;
	GString *text = must_save && !is_gone ? kvcfs_chain_text(prefix->chain) : NULL;
	if (must_save)
		prefix->chain->is_dirty = false;
	pthread_mutex_unlock(&fs->names);
	if (text) {
		rc = write_chain(prefix, text);
		g_string_free(text, TRUE);
	}
	bool must_arm = false;
	if (rc < 0) {
		kvcfs_count(fs, chains_save_failed);
		pthread_mutex_lock(&fs->names);
		must_arm = mark_dirty_locked(prefix);
		pthread_mutex_unlock(&fs->names);
	} else if (text) {
		kvcfs_count(fs, chains_saved);
	}
	pthread_mutex_unlock(&fs->save_lock);
	if (must_arm)
		arm_save_timer(fs);
	if (must_save)
		kvcfs_inode_unref(prefix, 1);
	return rc;
}

void
kvcfs_prefix_save_all(Kvcfs *fs)
{
	g_autoptr(GPtrArray) dirty = g_ptr_array_new();
	GHashTableIter iter;
	KvcfsInode *prefix;
	pthread_mutex_lock(&fs->names);
	g_hash_table_iter_init(&iter, fs->prefixes);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&prefix))
		if (prefix->chain->is_dirty)
			g_ptr_array_add(dirty, kvcfs_inode_ref_locked(prefix));
	pthread_mutex_unlock(&fs->names);
	for (guint i = 0; i < dirty->len; i++) {
		kvcfs_prefix_save(dirty->pdata[i]);
		kvcfs_inode_unref(dirty->pdata[i], 1);
	}
}

/* ---- Loading ------------------------------------------------------------------------------- */

/* The chain is TEXT, then what was added before it was known; wakes who waits. */
static void
install(KvcfsInode *prefix, const char *text, size_t len)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	if (!prefix->chain->is_loaded)
		kvcfs_chain_install_locked(prefix, text, len);
	pthread_mutex_unlock(&fs->names);
}

static bool
install_object(KvcfsInode *prefix, KvcL1Object *object)
{
	uint64_t bytes = kvc_l1_object_get_bytes(object);
	g_autofree char *text = g_malloc(bytes + 1);
	ssize_t n = pread(kvc_l1_object_get_fd(object), text, bytes, 0);
	kvc_storage_manager_finish_read(prefix->fs->sm, object);
	if (n != (ssize_t)bytes)
		return false;
	install(prefix, text, bytes);
	return true;
}

static void
end_loading(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	prefix->chain->is_loading = false;
	GPtrArray *waiters = g_steal_pointer(&prefix->chain->load_waiters);
	pthread_mutex_unlock(&fs->names);
	if (!waiters)
		return;
	for (guint i = 0; i < waiters->len; i++)
		kvcfs_pending_wake(waiters->pdata[i]);
	g_ptr_array_unref(waiters);
}

static bool
on_loaded(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	KvcfsInode *prefix = user;
	Kvcfs *fs = prefix->fs;
	KvcL1Object *object =
		why == KVCFS_WAKE_DONE ? kvc_prefetch_handle_take_object(fetch->handle, 0) : NULL;
	if (!object || !install_object(prefix, object)) {
		kvcfs_count(fs, chains_load_failed);
		/* Every tier says that there is none: what was added is the chain. */
		if (kvc_storage_manager_stat(fs->sm, prefix->key, NULL) < 0)
			install(prefix, "", 0);
	}
	end_loading(prefix);
	kvcfs_prefix_save(prefix);
	kvcfs_inode_unref(prefix, 1);
	return false;
}

static void
start_loading(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	bool must_start = !prefix->chain->is_loading && !prefix->chain->is_loaded;
	if (must_start) {
		prefix->chain->is_loading = true;
		kvcfs_inode_ref_locked(prefix);
	}
	pthread_mutex_unlock(&fs->names);
	if (!must_start)
		return;
	int64_t timeout = fs->config.load_timeout_ns;
	KvcPrefetchParams params = {
		.keys = &prefix->key,
		.n_keys = 1,
		.flags = KVC_PREFETCH_URGENT,
		.timeout_ns = timeout,
	};
	kvcfs_fetch_start(fs, NULL, &params, false, kvcfs_now_ns() + timeout, on_loaded, prefix);
}

bool
kvcfs_prefix_is_loaded(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	KvcL1Object *object;
	pthread_mutex_lock(&fs->names);
	bool is_loaded = prefix->chain->is_loaded;
	pthread_mutex_unlock(&fs->names);
	if (is_loaded)
		return true;
	if (kvc_storage_manager_reserve_read(fs->sm, prefix->key, &object) == 0)
		return install_object(prefix, object);
	start_loading(prefix);
	return false;
}

void
kvcfs_prefix_wait(KvcfsInode *prefix,
		  fuse_req_t req,
		  int64_t deadline_ns,
		  void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		  void *user)
{
	Kvcfs *fs = prefix->fs;
	/* Once it is answered the caller's reference may be gone. */
	kvcfs_inode_ref(prefix);
	KvcfsPending *pending = kvcfs_pending_new(fs->pendings, req, deadline_ns, answer, user);
	pthread_mutex_lock(&fs->names);
	bool waits = prefix->chain->is_loading;
	if (waits) {
		if (!prefix->chain->load_waiters)
			prefix->chain->load_waiters = g_ptr_array_new();
		g_ptr_array_add(prefix->chain->load_waiters, pending);
	}
	pthread_mutex_unlock(&fs->names);
	if (!waits)
		kvcfs_pending_wake(pending);
	kvcfs_inode_unref(prefix, 1);
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
	prefix->ino = key->hash;
	prefix->key = kvc_object_key_ref(key);
	prefix->chain = kvcfs_chain_new();
	prefix->uid = rank->uid;
	prefix->gid = rank->gid;
	prefix->mtime_ns = kvcfs_wall_ns();
	g_hash_table_insert(fs->prefixes, prefix->key, prefix);
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
	if (prefix && is_known && !old)
		prefix->mtime_ns = info.mtime_ns;
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
	if (kvcfs_name_classify(name) != KVCFS_NAME_OTHER)
		return -EINVAL;
	g_autoptr(KvcObjectKey) key = chain_key(rank, name);
	if (!key)
		return -EINVAL;
	if (kvc_storage_manager_stat(fs->sm, key, NULL) == 0)
		return -EEXIST;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *prefix = prefix_inode_locked(rank, name, key);
	prefix->mode = S_IFDIR | (mode & 07777);
	prefix->chain->is_loaded = true;
	bool must_arm = mark_dirty_locked(prefix);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		arm_save_timer(fs);
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
	return first && kvc_storage_manager_stat(prefix->fs->sm, first->key, NULL) == 0;
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
	pthread_mutex_unlock(&fs->names);
	if (rc == 0)
		kvc_storage_manager_delete(fs->sm, prefix->key);
	pthread_mutex_unlock(&fs->save_lock);
	kvcfs_inode_unref(prefix, was_dirty ? 2 : 1);
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
	if (committed && !ref->is_committed) {
		ref->is_committed = true;
		must_arm = mark_dirty_locked(prefix);
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
		arm_save_timer(fs);
}

static void
cancel_loads_locked(KvcfsInode *prefix)
{
	GPtrArray *open = prefix->fs->open_prefixes;
	for (guint i = 0; i < open->len; i++) {
		KvcfsHandle *handle = open->pdata[i];
		if (handle->inode == prefix && handle->fetch)
			kvc_prefetch_handle_cancel(handle->fetch->handle);
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
		ref->is_committed = false;
		if (ref->n_writers == 0)
			kvcfs_chain_remove_locked(prefix, ref);
		must_arm = mark_dirty_locked(prefix);
		cancel_loads_locked(prefix);
	}
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		arm_save_timer(fs);
	return rc;
}

GPtrArray *
kvcfs_prefix_keys(KvcfsInode *prefix)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	pthread_mutex_lock(&prefix->fs->names);
	const GPtrArray *refs = prefix->chain->refs;
	for (guint i = 0; i < refs->len; i++) {
		const KvcfsRef *ref = refs->pdata[i];
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
		kvc_prefetch_handle_start(handle->fetch->handle);
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

bool
kvcfs_prefix_shows_keys_file(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	bool shows = !prefix->chain->is_keys_file_removed;
	pthread_mutex_unlock(&prefix->fs->names);
	return shows;
}

void
kvcfs_prefix_clear(KvcfsInode *prefix, bool remove_keys_file)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	kvcfs_chain_clear_locked(prefix);
	prefix->chain->is_loaded = true;
	prefix->chain->is_keys_file_removed = remove_keys_file;
	cancel_loads_locked(prefix);
	bool must_arm = mark_dirty_locked(prefix);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		arm_save_timer(fs);
}

int
kvcfs_prefix_append_lines(KvcfsInode *prefix, const char *text, size_t len)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	int rc = kvcfs_chain_append_lines_locked(prefix, text, len);
	prefix->chain->is_keys_file_removed = false;
	bool must_arm = mark_dirty_locked(prefix);
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		arm_save_timer(fs);
	return rc;
}

int
kvcfs_prefix_replace(KvcfsInode *prefix, const char *text, size_t len)
{
	if (!kvcfs_chain_are_lines(text, len))
		return -EINVAL;
	kvcfs_prefix_clear(prefix, false);
	return kvcfs_prefix_append_lines(prefix, text, len);
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
	keys->mtime_ns = prefix->mtime_ns;
	keys->uid = prefix->uid;
	keys->gid = prefix->gid;
	prefix->chain->keys_inode = keys;
	pthread_mutex_unlock(&fs->names);
	return keys;
}
