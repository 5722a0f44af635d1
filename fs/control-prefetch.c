/* SPDX-License-Identifier: Apache-2.0 */

/*
 * .kvcache/prefetch: loads what a path stands for into L1, without locking it there. The write is
 * answered when all is loaded, so that "echo PATH > prefetch && serve" does what it says. It goes
 * batch by batch: a batch is one prefetch request, queued like any other behind
 * --l2-prefetch-max-in-flight, and what fails in one does not stop the next. A batch in which
 * nothing comes within --l2-prefetch-load-timeout ends the write.
 */

#include "fs/internal.h"

#include <errno.h>

#define BATCH_KEYS 64
#define BATCH_BYTES (UINT64_C(256) << 20)

/* One write. Held by the answer and by whoever drives it: the batch in flight or the next step. */
typedef struct Warm {
	Kvcfs *fs;
	GPtrArray *keys; /* of KvcObjectKey, owned */
	size_t size;
	KvcfsPending *pending;
	int refs;	   /* Atomic */
	bool is_cancelled; /* Atomic */
	bool has_failed;   /* Atomic */
	/* Owned by the driver. */
	guint next;	  /* in keys: not looked at yet */
	uint64_t bytes;	  /* asked for so far */
	GPtrArray *batch; /* of KvcObjectKey, not owned */
	/* Of the batch's keys: where in keys, their size, and was a tier known to have them? */
	guint positions[BATCH_KEYS];
	uint64_t sizes[BATCH_KEYS];
	bool is_known[BATCH_KEYS];
	int64_t batch_ns;
} Warm;

static void
unref_warm(Warm *warm)
{
	if (__atomic_fetch_sub(&warm->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	g_ptr_array_unref(warm->keys);
	g_ptr_array_unref(warm->batch);
	g_free(warm);
}

static void
answer_warm(fuse_req_t req, KvcfsWake why, void *user)
{
	Warm *warm = user;
	if (why == KVCFS_WAKE_INTERRUPT) {
		__atomic_store_n(&warm->is_cancelled, true, __ATOMIC_RELEASE);
		fuse_reply_err(req, EINTR);
	} else if (__atomic_load_n(&warm->has_failed, __ATOMIC_ACQUIRE)) {
		fuse_reply_err(req, EIO);
	} else {
		fuse_reply_write(req, warm->size);
	}
	unref_warm(warm);
}

static void
count_failed(Warm *warm)
{
	kvcfs_count(warm->fs, prefetch_failed);
	__atomic_store_n(&warm->has_failed, true, __ATOMIC_RELEASE);
}

/* ---- A batch ------------------------------------------------------------------------------- */

/* The next keys that are not in L1. What would be more than half of L1 is left out, and counted. */
static void
fill_batch(Warm *warm)
{
	Kvcfs *fs = warm->fs;
	uint64_t batch_bytes = 0;
	g_ptr_array_set_size(warm->batch, 0);
	for (; warm->next < warm->keys->len; warm->next++) {
		KvcObjectKey *key = warm->keys->pdata[warm->next];
		KvcObjectInfo info = {0};
		bool is_known = kvc_storage_manager_stat(fs->sm, key, &info) == 0;
		if (is_known && (info.tiers & KVC_TIER_L1))
			continue;
		if (warm->bytes + info.bytes > fs->l1_capacity_bytes / 2) {
			kvcfs_count(fs, prefetch_over_bound);
			continue;
		}
		if (warm->batch->len == BATCH_KEYS ||
		    (warm->batch->len > 0 && batch_bytes + info.bytes > BATCH_BYTES))
			return;
		warm->positions[warm->batch->len] = warm->next;
		warm->sizes[warm->batch->len] = info.bytes;
		warm->is_known[warm->batch->len] = is_known;
		g_ptr_array_add(warm->batch, key);
		batch_bytes += info.bytes;
		warm->bytes += info.bytes;
		kvcfs_count(fs, prefetch_objects);
	}
}

static guint
count_resident(const Warm *warm)
{
	guint n = 0;
	KvcObjectInfo info;
	while (n < warm->batch->len &&
	       kvc_storage_manager_stat(warm->fs->sm, warm->batch->pdata[n], &info) == 0 &&
	       (info.tiers & KVC_TIER_L1))
		n++;
	return n;
}

/* The batch stopped at its key I: what of it is to be tried again begins at warm->next. */
static void
settle_stop(Warm *warm, guint i)
{
	bool is_late = kvcfs_now_ns() - warm->batch_ns >= warm->fs->config.load_timeout_ns;
	warm->next = warm->positions[i];
	for (guint k = i; k < warm->batch->len; k++)
		warm->bytes -= warm->sizes[k];
	if (is_late && i > 0)
		return;
	/* What no tier was known to have, as a chain may name it, has not failed. */
	if (is_late || warm->is_known[i])
		count_failed(warm);
	warm->next = is_late ? warm->keys->len : warm->next + 1;
}

static void step_warm(fuse_req_t req, KvcfsWake why, void *user);

static bool
after_batch(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Warm *warm = user;
	Kvcfs *fs = warm->fs;
	ssize_t n = -1;
	if (why == KVCFS_WAKE_DONE)
		n = kvc_storage_manager_query_prefetch_status(fs->sm, kvcfs_fetch_handle(fetch));
	guint loaded = n >= 0 ? (guint)n : count_resident(warm);
	__atomic_fetch_add(&fs->stats[KVCFS_STAT_prefetch_loaded], loaded, __ATOMIC_RELAXED);
	if (loaded < warm->batch->len && why != KVCFS_WAKE_INTERRUPT)
		settle_stop(warm, loaded);
	/* Not from here: the controller's thread has other things to do. */
	kvcfs_pending_release(
		kvcfs_pending_new(fs->pendings, NULL, kvcfs_now_ns(), step_warm, warm));
	return false;
}

/* Submits the next batch, or ends the write. */
static void
step_warm(fuse_req_t req, KvcfsWake why, void *user)
{
	Warm *warm = user;
	Kvcfs *fs = warm->fs;
	bool is_over = why == KVCFS_WAKE_INTERRUPT ||
		       __atomic_load_n(&warm->is_cancelled, __ATOMIC_ACQUIRE);
	if (!is_over)
		fill_batch(warm);
	if (is_over || warm->batch->len == 0) {
		kvcfs_pending_wake(warm->pending);
		unref_warm(warm);
		return;
	}
	int64_t timeout = fs->config.load_timeout_ns;
	KvcPrefetchParams params = {
		.keys = (KvcObjectKey *const *)warm->batch->pdata,
		.n_keys = warm->batch->len,
		.flags = KVC_PREFETCH_NO_LOCK,
		.timeout_ns = timeout,
	};
	warm->batch_ns = kvcfs_now_ns();
	kvcfs_fetch_start(fs, NULL, &params, false, warm->batch_ns + timeout, after_batch, warm);
}

void
kvcfs_control_act_prefetch(fuse_req_t req, Kvcfs *fs, GPtrArray *keys, size_t size)
{
	Warm *warm = g_new0(Warm, 1);
	warm->fs = fs;
	warm->keys = g_ptr_array_ref(keys);
	warm->batch = g_ptr_array_new();
	warm->size = size;
	warm->refs = 2;
	kvcfs_count(fs, prefetches);
	warm->pending = kvcfs_pending_new(fs->pendings, req, INT64_MAX, answer_warm, warm);
	step_warm(NULL, KVCFS_WAKE_DONE, warm);
}
