/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loads and lookups. A load holds a reference to what it reads, so that its slots are not used for
 * something else meanwhile. An object that does not have its CRC any more is a miss, and from then
 * on not found, until the next store of its key replaces it.
 */

#include <errno.h>
#include <string.h>

#include <kvcache/crc.h>

#include "raw_block.h"

static RawBlockJob *
job_of(KvcWork *work)
{
	return (RawBlockJob *)((char *)work - G_STRUCT_OFFSET(RawBlockJob, work));
}

static void
load_end(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	RawBlockStats *stats = &rb->stats;

	if (job->entry) {
		pthread_mutex_lock(&rb->lock);
		raw_block_entry_unref_locked(rb, job->entry);
		pthread_mutex_unlock(&rb->lock);
	}
	atomic_fetch_add(job->loaded ? &stats->loads : &stats->load_misses, 1);
	if (job->loaded)
		kvc_failures_clear(rb->failures, KVC_TASK_LOAD, true);
	raw_block_job_end(job, job->loaded ? (int64_t)job->object.bytes : 0);
}

static void
note_corrupt(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	g_autofree char *name = kvc_object_key_to_string(job->key);

	pthread_mutex_lock(&rb->lock);
	job->entry->is_corrupt = true;
	pthread_mutex_unlock(&rb->lock);
	atomic_fetch_add(&rb->stats.crc_mismatches, 1);
	kvc_failures_warn(rb->failures, name,
			  "\"%s\" does not have the CRC32C it was stored with: a miss", name);
}

static void
load_finish(KvcWork *work)
{
	RawBlockJob *job = job_of(work);
	RawBlock *rb = job->rb;
	size_t bytes = job->object.bytes;

	if (job->transfer.error || job->transfer.transferred < bytes) {
		int errnum = job->transfer.error ? -job->transfer.error : EIO;

		raw_block_note_error(rb, KVC_TASK_LOAD, "read", job->key, errnum);
		load_end(job);
		return;
	}
	if (job->bounce)
		memcpy(job->object.data, job->bounce, bytes);
	job->loaded =
		!rb->verify || kvc_crc32c(0, job->object.data, bytes) == job->header.payload_crc;
	if (!job->loaded)
		note_corrupt(job);
	load_end(job);
}

static void
load_transferred(KvcIoTransfer *transfer)
{
	RawBlockJob *job = transfer->user;

	job->work.run = load_finish;
	kvc_pool_push(job->rb->workers, KVC_POOL_FINISH, &job->work);
}

/* Takes a reference to the object, if there is one of this size. */
static bool
find_object(RawBlockJob *job)
{
	RawBlock *rb = job->rb;

	pthread_mutex_lock(&rb->lock);
	RawBlockEntry *entry = raw_block_entry_locked(raw_block_find_locked(rb, job->key));
	if (entry && entry->header.bytes == job->object.bytes) {
		job->entry = entry;
		job->header = entry->header;
		entry->refs++;
	}
	pthread_mutex_unlock(&rb->lock);
	return job->entry != NULL;
}

void
raw_block_load_begin(KvcWork *work)
{
	RawBlockJob *job = job_of(work);

	if (!raw_block_await_ready(job->rb) || !find_object(job))
		load_end(job);
	else
		raw_block_job_transfer(job, job->header.data, false, load_transferred);
}

/* ---- Lookups ------------------------------------------------------------------------------- */

static bool
lookup_and_lock_locked(RawBlock *rb, const KvcObjectKey *key, KvcL2ObjectInfo *info)
{
	RawBlockNode *node;

	/* An object that takes the place of another is never missed. */
	while ((node = raw_block_find_locked(rb, key)) && node->is_renaming)
		pthread_cond_wait(&rb->wake, &rb->lock);
	const RawBlockEntry *entry = raw_block_entry_locked(node);
	if (!entry || node->is_deleting)
		return false;
	node->locks++;
	*info = raw_block_info_locked(entry);
	return true;
}

void
raw_block_lookup_run(KvcWork *work)
{
	RawBlockTask *task = (RawBlockTask *)((char *)work - G_STRUCT_OFFSET(RawBlockTask, work));
	RawBlock *rb = task->rb;
	KvcTask *base = &task->base;
	bool is_ready = raw_block_await_ready(rb);

	pthread_mutex_lock(&rb->lock);
	for (size_t i = 0; i < base->n; i++) {
		if (is_ready)
			base->hits[i] = lookup_and_lock_locked(rb, base->keys[i], &base->info[i]);
		else
			base->info[i].mtime_ns = KVC_L2_NOT_ASKED;
	}
	pthread_mutex_unlock(&rb->lock);
	if (is_ready)
		/* It asked no device, so that proves nothing about that. */
		kvc_failures_clear(rb->failures, KVC_TASK_LOOKUP, false);
	kvc_task_end_part(base, 0);
}
