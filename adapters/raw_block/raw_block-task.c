/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tasks and jobs: what stores, loads and lookups have in common. Results are published under
 * tasks_lock, then the event fd is signalled; whoever ends the last job of a task completes it.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "raw_block.h"

static void
job_init(RawBlockJob *job, RawBlockTask *task, size_t i, const KvcMemoryObj *object)
{
	job->rb = task->rb;
	job->task = task;
	job->key = task->keys[i];
	job->object = *object;
	job->work.bytes = object->bytes;
	job->work.run =
		task->kind == RAW_BLOCK_STORE ? raw_block_store_begin : raw_block_load_begin;
}

RawBlockTask *
raw_block_task_new(RawBlock *rb,
		   RawBlockKind kind,
		   KvcObjectKey *const *keys,
		   const KvcMemoryObj *objects,
		   size_t n)
{
	RawBlockTask *task = g_new0(RawBlockTask, 1);

	task->rb = rb;
	task->kind = kind;
	task->n = n;
	task->keys = g_new0(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		task->keys[i] = kvc_object_key_ref(keys[i]);
	if (kind == RAW_BLOCK_LOOKUP) {
		task->info = g_new0(KvcL2ObjectInfo, n);
		task->found = g_new0(bool, n);
		task->work.run = raw_block_lookup_run;
		return task;
	}
	task->jobs = g_new0(RawBlockJob, n);
	for (size_t i = 0; i < n; i++)
		job_init(&task->jobs[i], task, i, &objects[i]);
	return task;
}

void
raw_block_task_free(RawBlockTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		kvc_object_key_unref(task->keys[i]);
		if (task->info)
			kvc_xattrs_unref(task->info[i].xattrs);
	}
	g_free(task->keys);
	g_free(task->jobs);
	g_free(task->info);
	g_free(task->found);
	g_free(task);
}

/* A task without keys has nobody to complete it. */
static void
task_complete_empty(RawBlockWork *work)
{
	raw_block_task_complete(
		(RawBlockTask *)((char *)work - G_STRUCT_OFFSET(RawBlockTask, work)));
}

/* Deletions and renames leave these keys alone from here on. */
static void
begin_stores(RawBlockTask *task)
{
	RawBlock *rb = task->rb;

	pthread_mutex_lock(&rb->lock);
	for (size_t i = 0; i < task->n; i++) {
		raw_block_get_locked(rb, task->keys[i])->stores++;
		task->jobs[i].sequence = ++rb->last_sequence;
	}
	pthread_mutex_unlock(&rb->lock);
}

KvcL2TaskId
raw_block_task_submit(RawBlockTask *task)
{
	RawBlock *rb = task->rb;
	RawBlockClass class =
		task->kind == RAW_BLOCK_STORE ? RAW_BLOCK_CLASS_STORE : RAW_BLOCK_CLASS_FINISH;
	size_t n = task->n;
	RawBlockJob *jobs = task->jobs;

	atomic_init(&task->remaining, n);
	if (task->kind == RAW_BLOCK_STORE)
		begin_stores(task);

	pthread_mutex_lock(&rb->tasks_lock);
	KvcL2TaskId id = task->id = ++rb->last_id;
	rb->outstanding++;
	if (task->kind != RAW_BLOCK_STORE)
		g_hash_table_insert(rb->tasks, &task->id, task);
	pthread_mutex_unlock(&rb->tasks_lock);

	/* From the last push on the task may be gone. */
	if (task->kind == RAW_BLOCK_LOOKUP) {
		raw_block_pool_push(&rb->lookups, RAW_BLOCK_CLASS_FINISH, &task->work);
	} else if (n == 0) {
		task->work.run = task_complete_empty;
		raw_block_pool_push(&rb->workers, RAW_BLOCK_CLASS_FINISH, &task->work);
	} else {
		for (size_t i = 0; i < n; i++)
			raw_block_pool_push(&rb->workers, class, &jobs[i].work);
	}
	return id;
}

void
raw_block_task_complete(RawBlockTask *task)
{
	RawBlock *rb = task->rb;
	int event_fd = rb->event_fds[task->kind];

	pthread_mutex_lock(&rb->tasks_lock);
	task->done = true;
	if (task->kind == RAW_BLOCK_STORE)
		g_queue_push_tail(&rb->stored, task);
	kvc_eventfd_signal(event_fd);
	if (--rb->outstanding == 0)
		pthread_cond_broadcast(&rb->idle);
	pthread_mutex_unlock(&rb->tasks_lock);
}

RawBlockTask *
raw_block_task_take(RawBlock *rb, KvcL2TaskId id, RawBlockKind kind, int *result)
{
	pthread_mutex_lock(&rb->tasks_lock);
	RawBlockTask *task = g_hash_table_lookup(rb->tasks, &id);
	if (!task || task->kind != kind)
		*result = -ENOENT;
	else
		*result = task->done ? 1 : 0;
	if (*result == 1)
		g_hash_table_steal(rb->tasks, &id);
	pthread_mutex_unlock(&rb->tasks_lock);
	return *result == 1 ? task : NULL;
}

size_t
raw_block_task_pop_stored(RawBlock *rb, KvcL2StoreResult *results, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&rb->tasks_lock);
	while (n < max && !g_queue_is_empty(&rb->stored)) {
		RawBlockTask *task = g_queue_pop_head(&rb->stored);

		results[n].task_id = task->id;
		results[n++].bytes_transferred = task->result;
		raw_block_task_free(task);
	}
	pthread_mutex_unlock(&rb->tasks_lock);
	return n;
}

static void
end_store(RawBlockJob *job)
{
	RawBlock *rb = job->rb;
	RawBlockTask *task = job->task;

	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_find_locked(rb, job->key);
	node->stores--;
	raw_block_drop_if_idle_locked(rb, node);
	pthread_mutex_unlock(&rb->lock);
	pthread_mutex_lock(&rb->tasks_lock);
	if (task->result >= 0)
		task->result = job->result < 0 ? job->result : task->result + job->result;
	pthread_mutex_unlock(&rb->tasks_lock);
	raw_block_pool_leave(&rb->workers, job->object.bytes);
}

void
raw_block_job_end(RawBlockJob *job, int64_t result)
{
	RawBlockTask *task = job->task;

	g_clear_pointer(&job->bounce, free);
	job->result = result;
	if (task->kind == RAW_BLOCK_STORE)
		end_store(job);
	if (atomic_fetch_sub(&task->remaining, 1) == 1)
		raw_block_task_complete(task);
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
	job->transfer = (KvcIoTransfer){
		.fd = rb->fd,
		.is_write = is_write,
		.data = job->bounce ? job->bounce : job->object.data,
		.offset = raw_block_slot_offset(rb, run.slot),
		.bytes = rb->is_direct ? pages : bytes,
		.done = done,
		.user = job,
	};
	kvc_io_submit(rb->io, &job->transfer);
}
