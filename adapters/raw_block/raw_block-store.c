/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Stores: slots, payload by the ring while a worker computes the CRC, then the header, which is the
 * commit. Whatever fails, what was stored under the key before stays.
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

/* Gives back what the job took and did not use. */
static void
free_slots(RawBlockJob *job)
{
	RawBlock *rb = job->rb;

	if (job->run.n == 0)
		return;
	pthread_mutex_lock(&rb->lock);
	raw_block_space_give(&rb->space, job->run);
	pthread_mutex_unlock(&rb->lock);
	job->run.n = 0;
}

static void
store_fail(RawBlockJob *job, const char *what, int errnum)
{
	free_slots(job);
	if (errnum == ENAMETOOLONG)
		atomic_fetch_add(&job->rb->stats.unsupported_keys, 1);
	if (errnum != ECANCELED)
		raw_block_note_error(job->rb, KVC_TASK_STORE, what, job->key, errnum);
	raw_block_job_end(job, -errnum);
}

static void
store_end(RawBlockJob *job)
{
	kvc_failures_clear(job->rb->failures, KVC_TASK_STORE, true);
	raw_block_job_end(job, (int64_t)job->object.bytes);
}

/* It is there already: only its attributes are new. */
static void
store_skip(RawBlockJob *job)
{
	RawBlock *rb = job->rb;

	free_slots(job);
	atomic_fetch_add(&rb->stats.skipped, 1);
	if (job->object.attributes)
		raw_block_set_attributes(rb, job->key, job->object.attributes);
	raw_block_job_end(job, 0);
}

/* Is this very chunk stored under NODE? In the other spaces it is replaced. */
static bool
is_stored_locked(const RawBlockJob *job, RawBlockNode *node)
{
	const RawBlockEntry *entry = raw_block_entry_locked(node);

	return job->key->space == KVC_SPACE_CHUNK && entry &&
	       entry->header.bytes == job->object.bytes;
}

static void
set_crc(RawBlockJob *job)
{
	if (!job->has_crc)
		job->crc = kvc_crc32c(0, job->object.data, job->object.bytes);
	job->has_crc = true;
}

/*
 * The same before the payload is written. Waits for a deletion or a rename that began before the
 * store: what is there now may be gone then.
 */
static bool
is_stored(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	uint32_t crc = 0;

	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_find_locked(rb, job->key);
	while (node->is_deleting || node->is_renaming)
		pthread_cond_wait(&rb->wake, &rb->lock);
	bool found = is_stored_locked(job, node);
	if (found)
		crc = node->entry->header.payload_crc;
	pthread_mutex_unlock(&rb->lock);
	if (!found)
		return false;
	set_crc(job);
	return job->crc == crc;
}

static RawBlockHeader
make_header(const RawBlockJob *job)
{
	const KvcObjectAttributes *attributes = job->object.attributes;
	RawBlockHeader header = {
		.bytes = job->object.bytes,
		.payload_crc = job->crc,
		.data = job->run,
	};

	if (attributes) {
		header.mtime_ns = attributes->mtime_ns;
		header.version_ns = attributes->version_ns;
		header.mode = attributes->mode;
		header.uid = attributes->uid;
		header.gid = attributes->gid;
	}
	if (header.mtime_ns == 0)
		header.mtime_ns = kvc_wall_ns();
	return header;
}

typedef enum {
	COMMIT_WRITE,
	COMMIT_SKIP,	/* somebody else has stored it meanwhile */
	COMMIT_OBSOLETE /* a store that was submitted later is there already */
} Commit;

/* Takes the key, if there is something to write. */
static Commit
begin_commit(RawBlockJob *job, RawBlockNode *node)
{
	RawBlock *rb = job->rb;
	Commit commit = COMMIT_WRITE;

	pthread_mutex_lock(&rb->lock);
	while (node->is_changing)
		pthread_cond_wait(&rb->wake, &rb->lock);
	if (is_stored_locked(job, node) && node->entry->header.payload_crc == job->crc)
		commit = COMMIT_SKIP;
	else if (job->key->space != KVC_SPACE_CHUNK && job->sequence < node->published)
		commit = COMMIT_OBSOLETE;
	if (commit == COMMIT_WRITE) {
		node->is_changing = true;
		node->published = job->sequence;
	}
	pthread_mutex_unlock(&rb->lock);
	return commit;
}

/* Writes the header and puts the object into the index. 0 or -errno. */
static int
write_commit(RawBlockJob *job, RawBlockNode *node)
{
	RawBlock *rb = job->rb;
	const KvcObjectAttributes *attributes = job->object.attributes;
	KvcXattrs *xattrs = attributes ? attributes->xattrs : NULL;
	RawBlockHeader header = make_header(job);
	bool written;
	int rc = raw_block_write_header(rb, job->key, xattrs, &header, &written);
	RawBlockEntry *entry = raw_block_entry_new(&header, xattrs), *old = entry;

	job->run.n = 0; /* the entry's */
	if (rc == 0) {
		pthread_mutex_lock(&rb->lock);
		entry->is_ours = true;
		old = raw_block_set_entry_locked(rb, node, entry);
		pthread_mutex_unlock(&rb->lock);
	}
	if (old && (rc == 0 || written)) {
		raw_block_bury(rb, job->key, old);
	} else if (old) {
		pthread_mutex_lock(&rb->lock);
		raw_block_entry_unref_locked(rb, old);
		pthread_mutex_unlock(&rb->lock);
	}
	return rc;
}

static void
store_commit(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	int rc = raw_block_begin_change(rb);

	if (rc < 0) {
		store_fail(job, "say that the checkpoint is old before", -rc);
		return;
	}
	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_find_locked(rb, job->key);
	pthread_mutex_unlock(&rb->lock);
	Commit commit = begin_commit(job, node);
	if (commit == COMMIT_WRITE) {
		rc = write_commit(job, node);
		pthread_mutex_lock(&rb->lock);
		raw_block_end_node_change_locked(rb, node);
		pthread_mutex_unlock(&rb->lock);
	}
	raw_block_end_change(rb);
	if (rc < 0) {
		store_fail(job, "write the header of", -rc);
		return;
	}
	if (commit == COMMIT_SKIP) {
		store_skip(job);
		return;
	}
	free_slots(job);
	if (commit == COMMIT_WRITE)
		atomic_fetch_add(&rb->stats.stores, 1);
	store_end(job);
}

/* The payload is written, and the CRC is known. */
static void
store_finish(KvcWork *work)
{
	RawBlockJob *job = job_of(work);

	if (job->transfer.error)
		store_fail(job, "write", -job->transfer.error);
	else if (job->transfer.transferred < job->object.bytes)
		store_fail(job, "write", EIO);
	else
		store_commit(job);
}

/* CRC and payload end in any order; the later one goes on. */
static bool
is_last_part(RawBlockJob *job)
{
	return atomic_fetch_sub(&job->parts, 1) == 1;
}

static void
store_transferred(KvcIoTransfer *transfer)
{
	RawBlockJob *job = transfer->user;

	if (!is_last_part(job))
		return;
	job->work.run = store_finish;
	kvc_pool_push(job->rb->workers, KVC_POOL_FINISH, &job->work);
}

static bool
take_slots(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	uint32_t n = raw_block_slots_for(&rb->super, job->object.bytes);

	pthread_mutex_lock(&rb->lock);
	bool taken = n > 0 && raw_block_space_take(&rb->space, n, &job->run);
	pthread_mutex_unlock(&rb->lock);
	return taken;
}

void
raw_block_store_begin(KvcWork *work)
{
	RawBlockJob *job = job_of(work);

	if (!raw_block_await_ready(job->rb)) {
		store_fail(job, NULL, ECANCELED);
		return;
	}
	if (is_stored(job)) {
		store_skip(job);
		return;
	}
	if (!take_slots(job)) {
		store_fail(job, "find room for", ENOSPC);
		return;
	}
	atomic_store(&job->parts, 2);
	raw_block_job_transfer(job, job->run, true, store_transferred);
	set_crc(job);
	if (is_last_part(job))
		store_finish(work);
}
