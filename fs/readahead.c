/* SPDX-License-Identifier: Apache-2.0 */

/*
 * --readahead: who opens one entry of a prefix directory will want the next ones, so their loads
 * begin. An inode may have names in several prefix directories; an open does not say by which one
 * it came, so the last LOOKUP decides. An open directory prefetches its whole chain: then there is
 * nothing to do here.
 */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

void
kvcfs_readahead_note_locked(KvcfsInode *inode, KvcfsInode *dir)
{
	KvcObjectKey *via = dir->kind == KVCFS_PREFIX ? dir->key : NULL;
	if (inode->via == via)
		return;
	g_clear_pointer(&inode->via, kvc_object_key_unref);
	if (via)
		inode->via = kvc_object_key_ref(via);
}

static bool
is_open_locked(const KvcfsInode *prefix)
{
	const GPtrArray *open = prefix->fs->open_prefixes;
	for (guint i = 0; i < open->len; i++) {
		const KvcfsHandle *handle = open->pdata[i];
		if (handle->inode == prefix)
			return true;
	}
	return false;
}

/* Where KEY is in the chain; its length: nowhere. A reader mostly asks for the next one. */
static guint
find_position_locked(KvcfsChain *chain, const KvcObjectKey *key)
{
	guint len = chain->refs->len;
	for (guint n = 0; n < len; n++) {
		guint i = (chain->readahead_at + n) % len;
		const KvcfsRef *ref = chain->refs->pdata[i];
		if (kvc_object_key_equal(ref->key, key)) {
			chain->readahead_at = i;
			return i;
		}
	}
	return len;
}

/* The keys to ask for (transfer full): those of the next entries that are not in L1. */
static GPtrArray *
collect_locked(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	KvcfsInode *prefix = inode->via ? g_hash_table_lookup(fs->prefixes, inode->via) : NULL;
	if (!prefix || !inode->key || is_open_locked(prefix))
		return keys;
	const GPtrArray *refs = prefix->chain->refs;
	guint at = find_position_locked(prefix->chain, inode->key);
	for (guint i = at + 1; i < refs->len && i - at <= fs->config.readahead; i++) {
		const KvcfsRef *ref = refs->pdata[i];
		KvcObjectInfo info;
		bool is_known = kvc_storage_manager_stat(fs->sm, ref->key, &info) == 0;
		if (!is_known || !(info.tiers & KVC_TIER_L1))
			g_ptr_array_add(keys, kvc_object_key_ref(ref->key));
	}
	return keys;
}

static bool
after_readahead(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Kvcfs *fs = user;
	ssize_t n = 0;
	if (why == KVCFS_WAKE_DONE)
		n = kvc_storage_manager_query_prefetch_status(fs->sm, kvcfs_fetch_handle(fetch));
	if (n > 0)
		__atomic_fetch_add(&fs->stats[KVCFS_STAT_readahead_loaded], (uint64_t)n,
				   __ATOMIC_RELAXED);
	return false;
}

void
kvcfs_readahead(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	int64_t timeout = fs->config.load_timeout_ns;
	if (fs->config.readahead == 0)
		return;
	pthread_mutex_lock(&fs->names);
	g_autoptr(GPtrArray) keys = collect_locked(inode);
	pthread_mutex_unlock(&fs->names);
	if (keys->len == 0)
		return;
	KvcPrefetchParams params = {
		.keys = (KvcObjectKey *const *)keys->pdata,
		.n_keys = keys->len,
		.flags = KVC_PREFETCH_NO_LOCK,
		.timeout_ns = timeout,
	};
	kvcfs_count(fs, readahead_requests);
	__atomic_fetch_add(&fs->stats[KVCFS_STAT_readahead_objects], keys->len, __ATOMIC_RELAXED);
	kvcfs_fetch_start(fs, NULL, &params, false, kvcfs_now_ns() + timeout, after_readahead, fs);
}
