/* SPDX-License-Identifier: Apache-2.0 */

/* A request that is answered when what it flushes has ended, or at the deadline of loads. */

#include "fs/internal.h"

#include <errno.h>

struct KvcfsFlushWait {
	KvcfsPending *pending;
	void (*reply)(fuse_req_t req, int error, size_t size);
	size_t size;
	int refs;  /* Atomic: the answer and every flush not done */
	int left;  /* Atomic: flushes not done */
	int error; /* Atomic: of one that failed */
};

static void
unref(KvcfsFlushWait *wait)
{
	if (__atomic_fetch_sub(&wait->refs, 1, __ATOMIC_ACQ_REL) == 1)
		g_free(wait);
}

static void
answer(fuse_req_t req, KvcfsWake why, void *user)
{
	KvcfsFlushWait *wait = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else if (why == KVCFS_WAKE_TIMEOUT)
		wait->reply(req, -EIO, wait->size); /* the stores go on */
	else
		wait->reply(req, __atomic_load_n(&wait->error, __ATOMIC_ACQUIRE), wait->size);
	unref(wait);
}

KvcfsFlushWait *
kvcfs_flush_wait_new(Kvcfs *fs,
		     fuse_req_t req,
		     unsigned n,
		     void (*reply)(fuse_req_t req, int error, size_t size),
		     size_t size)
{
	KvcfsFlushWait *wait = g_new(KvcfsFlushWait, 1);
	*wait = (KvcfsFlushWait){.reply = reply, .size = size, .refs = (int)n + 1, .left = (int)n};
	wait->pending = kvcfs_pending_new(
		fs->pendings, req, kvcfs_now_ns() + fs->config.load_timeout_ns, answer, wait);
	return wait;
}

void
kvcfs_flush_wait_done(void *user, int error)
{
	KvcfsFlushWait *wait = user;
	/* Gone meanwhile is as good as stored. */
	if (error < 0 && error != -ENOENT)
		__atomic_store_n(&wait->error, error, __ATOMIC_RELEASE);
	if (__atomic_fetch_sub(&wait->left, 1, __ATOMIC_ACQ_REL) == 1)
		kvcfs_pending_wake(wait->pending);
	unref(wait);
}
