/* SPDX-License-Identifier: Apache-2.0 */

/* Tasks and jobs: what stores, loads and lookups have in common. */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "raw_block.h"

void
raw_block_task_clear(KvcTask *task)
{
	g_free(((RawBlockTask *)task)->jobs);
}

static void
make_jobs(RawBlockTask *task, const KvcMemoryObj *objects)
{
	bool is_store = task->base.kind == KVC_TASK_STORE;

	task->jobs = g_new0(RawBlockJob, task->base.n);
	for (size_t i = 0; i < task->base.n; i++) {
		RawBlockJob *job = &task->jobs[i];

		job->rb = task->rb;
		job->task = task;
		job->key = task->base.keys[i];
		job->object = objects[i];
		job->work.bytes = objects[i].bytes;
		job->work.run = is_store ? raw_block_store_begin : raw_block_load_begin;
	}
}

/* Deletions and renames leave these keys alone from here on. */
static void
begin_stores(RawBlockTask *task)
{
	RawBlock *rb = task->rb;

	pthread_mutex_lock(&rb->lock);
	for (size_t i = 0; i < task->base.n; i++) {
		raw_block_get_locked(rb, task->jobs[i].key)->stores++;
		task->jobs[i].sequence = ++rb->last_sequence;
	}
	pthread_mutex_unlock(&rb->lock);
}

KvcL2TaskId
raw_block_submit(KvcL2Adapter *adapter,
		 KvcTaskKind kind,
		 KvcObjectKey *const *keys,
		 const KvcMemoryObj *objects,
		 size_t n)
{
	RawBlock *rb = (RawBlock *)adapter;
	KvcPoolClass class = kind == KVC_TASK_STORE ? KVC_POOL_STORE : KVC_POOL_FINISH;
	/* The jobs have the objects. */
	RawBlockTask *task =
		(RawBlockTask *)kvc_task_new(rb->base.board, sizeof(*task), kind, keys, NULL, n);

	task->rb = rb;
	if (kind == KVC_TASK_LOOKUP) {
		task->work.run = raw_block_lookup_run;
		KvcL2TaskId id = kvc_task_post(&task->base, 1);
		kvc_pool_push(rb->lookups, KVC_POOL_FINISH, &task->work);
		return id;
	}
	make_jobs(task, objects);
	if (kind == KVC_TASK_STORE)
		begin_stores(task);
	/* From the last push on the task may be gone. */
	RawBlockJob *jobs = task->jobs;
	KvcL2TaskId id = kvc_task_post(&task->base, n);
	for (size_t i = 0; i < n; i++)
		kvc_pool_push(rb->workers, class, &jobs[i].work);
	return id;
}

static void
end_store(RawBlockJob *job)
{
	RawBlock *rb = job->rb;

	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_find_locked(rb, job->key);
	node->stores--;
	raw_block_drop_if_idle_locked(rb, node);
	pthread_mutex_unlock(&rb->lock);
	kvc_pool_leave(rb->workers, KVC_POOL_STORE, job->object.bytes);
}

void
raw_block_job_end(RawBlockJob *job, int64_t result)
{
	KvcTask *task = &job->task->base;

	g_clear_pointer(&job->bounce, free);
	if (task->kind == KVC_TASK_STORE)
		end_store(job);
	else
		task->hits[job - job->task->jobs] = job->loaded;
	kvc_task_end_part(task, result);
}

/* Does O_DIRECT take the memory as it is? */
static bool
is_aligned(const KvcMemoryObj *object)
{
	return (uintptr_t)object->data % KVC_IO_ALIGN_BYTES == 0 &&
	       kvc_io_align_up(object->bytes) <= object->mapped_bytes;
}

void
raw_block_job_transfer(RawBlockJob *job,
		       RawBlockRun run,
		       bool is_write,
		       void (*done)(KvcIoTransfer *transfer))
{
	RawBlock *rb = job->rb;
	size_t bytes = job->object.bytes, pages = kvc_io_align_up(bytes);
	bool bounces = rb->is_direct && bytes > 0 && !is_aligned(&job->object);

	if (bounces && (job->bounce = aligned_alloc(KVC_IO_ALIGN_BYTES, pages)) && is_write) {
		memcpy(job->bounce, job->object.data, bytes);
		memset((char *)job->bounce + bytes, 0, pages - bytes);
	}
	bool has_memory = !bounces || job->bounce;
	job->transfer = (KvcIoTransfer){
		.fd = rb->fd,
		.is_write = is_write,
		.data = job->bounce ? job->bounce : job->object.data,
		.offset = raw_block_slot_offset(rb, run.slot),
		.bytes = rb->is_direct ? pages : bytes,
		.done = done,
		.user = job,
	};
	/* The pages of the memory itself may go on behind its end. */
	if (has_memory) {
		kvc_io_submit(rb->io, &job->transfer);
	} else {
		job->transfer.error = -ENOMEM;
		done(&job->transfer);
	}
}
