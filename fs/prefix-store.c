/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A chain as an object of space 2, whose bytes are those of .keys. It is written at most once a
 * second, at closedir, flush and unmount. A chain that is only in L2 is loaded without anybody
 * waiting under a directory lock; references added meanwhile come after the loaded ones.
 */

#include "fs/internal.h"
#include "fs/reservation.h"
#include "fs/prefix-chain.h"

#include <errno.h>
#include <unistd.h>

#define SAVE_DELAY_NS (1000 * INT64_C(1000000))

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

bool
kvcfs_prefix_mark_dirty_locked(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	if (!prefix->chain->is_dirty)
		kvcfs_inode_ref_locked(prefix);
	prefix->chain->is_dirty = true;
	bool must_arm = !fs->is_save_armed;
	fs->is_save_armed = true;
	return must_arm;
}

bool
kvcfs_prefix_changed_locked(KvcfsInode *prefix)
{
	kvcfs_dir_changed_locked(prefix);
	kvcfs_chain_set_time_locked(prefix, prefix->mtime_ns);
	return kvcfs_prefix_mark_dirty_locked(prefix);
}

void
kvcfs_prefix_arm_save_timer(Kvcfs *fs)
{
	int64_t at = kvcfs_now_ns() + SAVE_DELAY_NS;
	kvcfs_pending_release(kvcfs_pending_new(fs->pendings, NULL, at, save_timer, fs));
}

static void start_loading(KvcfsInode *prefix);

static int
write_chain(KvcfsInode *prefix, const GString *text)
{
	Kvcfs *fs = prefix->fs;
	KvcL1Object *object;
	int rc = kvcfs_reservation_new(fs, prefix->key, text->len, &object);
	if (rc < 0)
		return rc;
	ssize_t n = pwrite(kvc_l1_object_get_fd(object), text->str, text->len, 0);
	if (n != (ssize_t)text->len) {
		rc = n < 0 ? -errno : -ENOSPC;
		kvc_storage_manager_abort_write(fs->sm, object);
		return rc;
	}
	kvcfs_attr_give(prefix, object);
	return kvc_storage_manager_finish_write(fs->sm, object, prefix->key, KVC_FINISH_REPLACE);
}

/* What is stored under its key now, or on its way there. */
static uint32_t
stored_version(Kvcfs *fs, KvcObjectKey *key)
{
	KvcObjectInfo info = {0};
	kvc_storage_manager_stat(fs->sm, key, &info);
	return info.version;
}

void
kvcfs_prefix_note_version_locked(KvcfsInode *prefix)
{
	prefix->chain->version = stored_version(prefix->fs, prefix->key);
}

/* True: the timer has to be armed. */
static bool
end_saving(KvcfsInode *prefix, int rc)
{
	Kvcfs *fs = prefix->fs;
	bool must_arm = false;
	kvcfs_count_stat(fs, rc < 0 ? KVCFS_STAT_chains_save_failed : KVCFS_STAT_chains_saved);
	pthread_mutex_lock(&fs->names);
	prefix->chain->is_saving = false;
	if (rc < 0)
		must_arm = kvcfs_prefix_mark_dirty_locked(prefix);
	else
		kvcfs_prefix_note_version_locked(prefix);
	pthread_mutex_unlock(&fs->names);
	return must_arm;
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
	bool must_load = prefix->chain->is_dirty && !prefix->chain->is_loaded;
	bool is_gone = prefix->is_unlinked;
	g_autoptr(GString) text = must_save && !is_gone ? kvcfs_chain_text(prefix->chain) : NULL;
	if (must_save)
		prefix->chain->is_dirty = false;
	prefix->chain->is_saving = text != NULL;
	pthread_mutex_unlock(&fs->names);
	bool must_arm = false;
	if (text) {
		rc = write_chain(prefix, text);
		must_arm = end_saving(prefix, rc);
	}
	pthread_mutex_unlock(&fs->save_lock);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
	if (must_save)
		kvcfs_inode_unref(prefix, 1);
	if (must_load)
		start_loading(prefix); /* which saves it */
	return must_load ? -EAGAIN : rc;
}

int
kvcfs_prefix_save_all(Kvcfs *fs)
{
	int first = 0;
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
		int rc = kvcfs_prefix_save(dirty->pdata[i]);
		first = first && rc != -EAGAIN ? first : rc; /* what may yet come is waited for */
		kvcfs_inode_unref(dirty->pdata[i], 1);
	}
	return first;
}

/* ---- Loading ------------------------------------------------------------------------------- */

/*
 * The chain is TEXT, what was stored as KEY, then what was added before it was known. False: PREFIX
 * has another name by now, and another directory may have this one.
 */
static bool
install(KvcfsInode *prefix, const KvcObjectKey *key, uint32_t version, const char *text, size_t len)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	bool is_named_so = kvc_object_key_equal(prefix->key, key);
	if (is_named_so && !prefix->chain->is_loaded) {
		kvcfs_chain_install_locked(prefix, text, len);
		prefix->chain->version = version;
	}
	pthread_mutex_unlock(&fs->names);
	return is_named_so;
}

/* VERSION: the one of KEY before it was asked for. */
static bool
install_object(KvcfsInode *prefix, const KvcObjectKey *key, uint32_t version, KvcL1Object *object)
{
	/* What is longer was not written by us: its first lines are taken. */
	uint64_t stored_bytes = kvc_l1_object_get_bytes(object);
	uint64_t bytes = MIN(stored_bytes, KVCFS_CHAIN_MAX_BYTES);
	kvcfs_loop_hand_over(); /* it may be a million lines */
	g_autofree char *text = g_malloc(bytes + 1);
	ssize_t n = pread(kvc_l1_object_get_fd(object), text, bytes, 0);
	kvc_storage_manager_finish_read(prefix->fs->sm, object);
	if (n != (ssize_t)bytes)
		return false;
	while (bytes < stored_bytes && bytes > 0 && text[bytes - 1] != '\n')
		bytes--;
	return install(prefix, key, version, text, bytes);
}

typedef struct ChainLoad {
	KvcfsInode *prefix; /* owned reference */
	KvcObjectKey *key;  /* owned; the one of PREFIX when it began */
	uint32_t version;
} ChainLoad;

static void load_chain(KvcfsInode *prefix);

static void
end_loading(KvcfsInode *prefix, bool is_installed)
{
	Kvcfs *fs = prefix->fs;
	KvcfsChain *chain = prefix->chain;
	if (!is_installed)
		kvcfs_count(fs, chains_load_failed);
	pthread_mutex_lock(&fs->names);
	/* Every tier says that there is none: what was added is the chain. A rename between the
	 * question for its name and that for the object would make it look so. */
	if (!chain->is_loaded && kvc_storage_manager_stat(fs->sm, prefix->key, NULL) < 0)
		kvcfs_chain_install_locked(prefix, "", 0);
	bool is_loaded = chain->is_loaded;
	/* What was added is in no tier: it is tried again. */
	bool must_arm = !is_loaded && chain->is_dirty && !fs->is_save_armed;
	fs->is_save_armed |= must_arm;
	chain->is_loading = false;
	GPtrArray *waiters = g_steal_pointer(&chain->load_waiters);
	pthread_mutex_unlock(&fs->names);
	kvcfs_pending_wake_all(waiters);
	if (is_loaded)
		kvcfs_prefix_save(prefix);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
}

static bool
on_loaded(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	ChainLoad *load = user;
	KvcfsInode *prefix = load->prefix;
	KvcL1Object *object = kvcfs_fetch_take_object(fetch, why);
	bool is_installed = object && install_object(prefix, load->key, load->version, object);
	/* What its former name has now, if anything, is not its chain. */
	bool has_moved = !is_installed && why == KVCFS_WAKE_DONE &&
			 !kvc_object_key_equal(kvcfs_inode_get_key(prefix), load->key);
	if (has_moved)
		load_chain(prefix);
	else
		end_loading(prefix, is_installed);
	kvc_object_key_unref(load->key);
	kvcfs_inode_unref(prefix, 1);
	g_free(load);
	return false;
}

/* PREFIX is loading: from what it is called now. */
static void
load_chain(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	ChainLoad *load = g_new(ChainLoad, 1);
	load->prefix = kvcfs_inode_ref(prefix);
	load->key = kvc_object_key_ref(kvcfs_inode_get_key(prefix));
	load->version = stored_version(fs, load->key);
	kvcfs_fetch_object(fs, NULL, load->key, on_loaded, load);
}

static void
start_loading(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	bool must_start = !prefix->chain->is_loading && !prefix->chain->is_loaded;
	prefix->chain->is_loading |= must_start;
	pthread_mutex_unlock(&fs->names);
	if (must_start)
		load_chain(prefix);
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
	KvcObjectKey *key = kvcfs_inode_get_key(prefix);
	uint32_t version = stored_version(fs, key);
	if (kvc_storage_manager_reserve_read(fs->sm, key, &object) == 0 &&
	    install_object(prefix, key, version, object))
		return true;
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

/* ---- Changed by another mount --------------------------------------------------------------- */

/* Was it changed here, and is not stored yet, or is it gone? That is newer than what L2 has. */
static bool
is_ours_locked(const KvcfsInode *prefix)
{
	return prefix->chain->is_dirty || prefix->chain->is_saving || prefix->is_unlinked;
}

bool
kvcfs_prefix_is_check_due(KvcfsInode *prefix)
{
	pthread_mutex_lock(&prefix->fs->names);
	bool is_ours = is_ours_locked(prefix);
	pthread_mutex_unlock(&prefix->fs->names);
	return !is_ours && kvcfs_coherence_is_due(prefix->fs, kvcfs_inode_get_key(prefix));
}

/* What it was is dropped; until the new one is loaded, who asks for an entry waits for that. */
static void
forget_chain_locked(KvcfsInode *prefix)
{
	KvcfsChain *chain = prefix->chain;
	chain->former = kvcfs_chain_keys(chain);
	kvcfs_chain_clear_locked(prefix);
	chain->is_loaded = false;
}

static void
remove_locked(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	g_autoptr(GPtrArray) old = kvcfs_chain_keys(prefix->chain);
	prefix->is_unlinked = true;
	kvcfs_prefix_set_keys_file_locked(prefix, true);
	kvcfs_chain_clear_locked(prefix);
	kvcfs_chain_forget_entries_locked(prefix, old);
	if (g_hash_table_lookup(fs->prefixes, prefix->key) == prefix)
		g_hash_table_remove(fs->prefixes, prefix->key);
}

bool
kvcfs_prefix_renew(KvcfsInode *prefix)
{
	Kvcfs *fs = prefix->fs;
	KvcfsChain *chain = prefix->chain;
	KvcObjectInfo info;
	bool is_there = true;
	pthread_mutex_lock(&fs->names);
	bool is_ours = is_ours_locked(prefix) || chain->is_loading;
	if (!is_ours)
		is_there = kvc_storage_manager_stat(fs->sm, prefix->key, &info) == 0;
	if (!is_there) {
		remove_locked(prefix);
	} else if (!is_ours && chain->is_loaded && info.version != chain->version) {
		kvcfs_attr_remember_prefix_locked(prefix, &info);
		kvcfs_chain_set_time_locked(prefix, prefix->mtime_ns);
		forget_chain_locked(prefix);
	}
	pthread_mutex_unlock(&fs->names);
	return is_there;
}
