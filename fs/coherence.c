/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Other mounts write to the same L2. Directories whose listing is older than --coherence are listed
 * there again at OPENDIR, where something changed. Plain files, which can be replaced, and the
 * chains of prefix directories are looked up there again when that was last done more than
 * --coherence ago: in a LOOKUP, OPEN or OPENDIR, at most for --lookup-wait. What L2 does not tell
 * in that time is served as it is known, and counted; L2 is then not waited for again before
 * another --coherence.
 */

#include "fs/internal.h"

#include <string.h>

/* Of one key; protected by names. */
typedef struct KvcfsChecked {
	int64_t checked_ns; /* when L2 last told; 0: never */
	int64_t tried_ns;   /* when it was last asked */
} KvcfsChecked;

#define MANY_CHECKED 256

static bool
is_recent(const Kvcfs *fs, int64_t when_ns, int64_t now_ns)
{
	return when_ns && now_ns - when_ns < fs->config.coherence_ns;
}

typedef struct Aging {
	const Kvcfs *fs;
	int64_t now_ns;
} Aging;

static gboolean
is_of_no_use(void *key, void *value, void *user)
{
	const Aging *aging = user;
	const KvcfsChecked *checked = value;
	return !is_recent(aging->fs, checked->checked_ns, aging->now_ns) &&
	       !is_recent(aging->fs, checked->tried_ns, aging->now_ns);
}

static KvcfsChecked *
find_or_make_locked(Kvcfs *fs, KvcObjectKey *key)
{
	KvcfsChecked *checked = g_hash_table_lookup(fs->checked, key);
	if (checked)
		return checked;
	if (g_hash_table_size(fs->checked) >= fs->checked_limit) {
		Aging aging = {fs, kvcfs_now_ns()};
		g_hash_table_foreach_remove(fs->checked, is_of_no_use, &aging);
		fs->checked_limit = 2 * g_hash_table_size(fs->checked) + MANY_CHECKED;
	}
	checked = g_new0(KvcfsChecked, 1);
	g_hash_table_insert(fs->checked, kvc_object_key_ref(key), checked);
	return checked;
}

double
kvcfs_coherence_limit(Kvcfs *fs, KvcObjectKey *key, double timeout)
{
	if (key->space == KVC_SPACE_CHUNK || !kvc_storage_manager_is_shared(fs->sm))
		return timeout;
	return MIN(timeout, (double)fs->config.coherence_ns / 1e9);
}

/* Is it in an adapter that others may have changed? What is not stored yet is ours. */
static bool
is_stored(Kvcfs *fs, KvcObjectKey *key)
{
	KvcObjectInfo info;
	return kvc_storage_manager_stat(fs->sm, key, &info) == 0 &&
	       (info.tiers & ~info.renaming & ~KVC_TIER_L1) != 0;
}

bool
kvcfs_coherence_is_due(Kvcfs *fs, KvcObjectKey *key)
{
	if (key->space == KVC_SPACE_CHUNK || !is_stored(fs, key) ||
	    !kvc_storage_manager_is_shared(fs->sm))
		return false;
	int64_t now = kvcfs_now_ns();
	pthread_mutex_lock(&fs->names);
	const KvcfsChecked *checked = g_hash_table_lookup(fs->checked, key);
	bool is_due = !checked || !is_recent(fs, checked->checked_ns, now);
	bool is_vain = is_due && checked && is_recent(fs, checked->tried_ns, now);
	pthread_mutex_unlock(&fs->names);
	if (is_vain)
		kvcfs_count(fs, checks_stale);
	return is_due && !is_vain;
}

/* ---- The question -------------------------------------------------------------------------- */

typedef struct Check {
	Kvcfs *fs;
	KvcObjectKey *key; /* owned */
	uint32_t version;
	KvcfsInode *inode; /* that had the key then: owned reference, or NULL */
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user);
	void *user;
} Check;

/* Who has the version before open keeps that inode. What we have replaced ourselves meanwhile has
 * another one already. */
static void
renounce_replaced(Kvcfs *fs, const Check *check)
{
	KvcObjectInfo info;
	if (check->inode && (kvc_storage_manager_stat(fs->sm, check->key, &info) < 0 ||
			     info.version != check->version))
		kvcfs_object_inode_renounce(check->inode);
}

static bool
after_check(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Check *check = user;
	Kvcfs *fs = check->fs;
	bool is_told = why == KVCFS_WAKE_DONE &&
		       kvc_prefetch_handle_get_found(kvcfs_fetch_handle(fetch)) > 0;
	pthread_mutex_lock(&fs->names);
	KvcfsChecked *checked = find_or_make_locked(fs, check->key);
	checked->tried_ns = kvcfs_now_ns();
	if (is_told)
		checked->checked_ns = checked->tried_ns;
	pthread_mutex_unlock(&fs->names);
	if (is_told)
		renounce_replaced(fs, check);
	else if (why != KVCFS_WAKE_INTERRUPT)
		kvcfs_count(fs, checks_stale);
	check->answer(req, why, check->user);
	if (check->inode)
		kvcfs_inode_unref(check->inode, 1);
	kvc_object_key_unref(check->key);
	g_free(check);
	return false;
}

void
kvcfs_coherence_check(Kvcfs *fs,
		      fuse_req_t req,
		      KvcObjectKey *key,
		      void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		      void *user)
{
	int64_t wait = fs->config.lookup_wait_ns;
	KvcObjectInfo info = {0};
	Check *check = g_new(Check, 1);
	kvc_storage_manager_stat(fs->sm, key, &info);
	*check = (Check){fs, kvc_object_key_ref(key), info.version, NULL, answer, user};
	pthread_mutex_lock(&fs->names);
	check->inode = g_hash_table_lookup(fs->objects, key);
	if (check->inode)
		kvcfs_inode_ref_locked(check->inode);
	pthread_mutex_unlock(&fs->names);
	KvcPrefetchParams params = {
		.keys = &check->key,
		.n_keys = 1,
		.flags = KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_URGENT | KVC_PREFETCH_RENEW,
	};
	kvcfs_count(fs, checks);
	kvcfs_fetch_start(fs, req, &params, false, kvcfs_now_ns() + wait, after_check, check);
}

/* ---- Listings ------------------------------------------------------------------------------ */

bool
kvcfs_listing_is_due(KvcfsInode *dir)
{
	Kvcfs *fs = dir->fs;
	if (!kvc_storage_manager_has_shared_l2(fs->sm))
		return false;
	int64_t now = kvcfs_now_ns();
	pthread_mutex_lock(&fs->names);
	bool is_due = !is_recent(fs, dir->listed_ns, now);
	bool is_vain = is_due && is_recent(fs, dir->stale_ns, now);
	pthread_mutex_unlock(&fs->names);
	if (is_vain)
		kvcfs_count(fs, listings_stale);
	return is_due && !is_vain;
}

void
kvcfs_listing_note_stale(KvcfsInode *dir)
{
	Kvcfs *fs = dir->fs;
	pthread_mutex_lock(&fs->names);
	dir->stale_ns = kvcfs_now_ns();
	pthread_mutex_unlock(&fs->names);
	kvcfs_count(fs, listings_stale);
}

typedef struct Renewal {
	KvcfsInode *dir; /* owned reference */
	int64_t begun_ns;
	KvcfsPending *pending;
} Renewal;

/* Also when nobody has waited for so long. */
static void
on_relisted(void *user)
{
	Renewal *renewal = user;
	KvcfsInode *dir = renewal->dir;
	pthread_mutex_lock(&dir->fs->names);
	dir->listed_ns = MAX(dir->listed_ns, renewal->begun_ns);
	pthread_mutex_unlock(&dir->fs->names);
	kvcfs_pending_wake(renewal->pending);
	kvcfs_inode_unref(dir, 1);
	g_free(renewal);
}

void
kvcfs_listing_renew(KvcfsInode *dir,
		    fuse_req_t req,
		    void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		    void *user)
{
	Kvcfs *fs = dir->fs;
	Renewal *renewal = g_new(Renewal, 1);
	*renewal = (Renewal){dir, kvcfs_now_ns(), NULL};
	int64_t deadline = renewal->begun_ns + fs->config.lookup_wait_ns;
	pthread_mutex_lock(&fs->names);
	kvcfs_inode_ref_locked(dir);
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_ref(dir->scope);
	pthread_mutex_unlock(&fs->names);
	renewal->pending = kvcfs_pending_new(fs->pendings, req, deadline, answer, user);
	kvc_storage_manager_relist(fs->sm, scope, on_relisted, renewal);
}
