/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tasks and jobs: what stores, loads and lookups have in common. Results are published under the
 * adapter's lock, then the event fd is signalled; whoever ends the last job of a task completes it.
 */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fs.h"

static void
job_init(FsJob *job, FsTask *task, size_t i, const KvcMemoryObj *object)
{
	job->fs = task->fs;
	job->task = task;
	job->key = task->keys[i];
	job->object = *object;
	job->fd = -1;
	job->work.bytes = object->bytes;
	job->work.run = task->kind == FS_STORE ? fs_store_begin : fs_load_begin;
}

FsTask *
fs_task_new(FsAdapter *fs,
	    FsKind kind,
	    KvcObjectKey *const *keys,
	    const KvcMemoryObj *objects,
	    size_t n)
{
	FsTask *task = g_new0(FsTask, 1);

	task->fs = fs;
	task->kind = kind;
	task->n = n;
	task->keys = g_new0(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		task->keys[i] = kvc_object_key_ref(keys[i]);
	if (kind == FS_LOOKUP) {
		task->info = g_new0(KvcL2ObjectInfo, n);
		task->found = g_new0(bool, n);
		task->work.run = fs_lookup_run;
		return task;
	}
	task->jobs = g_new0(FsJob, n);
	for (size_t i = 0; i < n; i++)
		job_init(&task->jobs[i], task, i, &objects[i]);
	return task;
}

void
fs_task_free(FsTask *task)
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
task_complete_empty(FsWork *work)
{
	fs_task_complete((FsTask *)((char *)work - G_STRUCT_OFFSET(FsTask, work)));
}

KvcL2TaskId
fs_task_submit(FsTask *task)
{
	FsAdapter *fs = task->fs;
	FsClass class = task->kind == FS_STORE ? FS_CLASS_STORE : FS_CLASS_LOAD;
	size_t n = task->n;
	FsJob *jobs = task->jobs;

	atomic_init(&task->remaining, n);
	for (size_t i = 0; task->kind == FS_STORE && i < n; i++)
		jobs[i].sequence = fs_keys_begin_store(fs, jobs[i].key);

	pthread_mutex_lock(&fs->lock);
	KvcL2TaskId id = task->id = ++fs->last_id;
	fs->outstanding++;
	if (task->kind != FS_STORE)
		g_hash_table_insert(fs->tasks, &task->id, task);
	pthread_mutex_unlock(&fs->lock);

	/* From the last push on the task may be gone. */
	if (task->kind == FS_LOOKUP) {
		fs_pool_push(&fs->lookups, FS_CLASS_FINISH, &task->work);
	} else if (n == 0) {
		task->work.run = task_complete_empty;
		fs_pool_push(&fs->workers, FS_CLASS_FINISH, &task->work);
	} else {
		for (size_t i = 0; i < n; i++)
			fs_pool_push(&fs->workers, class, &jobs[i].work);
	}
	return id;
}

void
fs_task_complete(FsTask *task)
{
	FsAdapter *fs = task->fs;
	int event_fd = fs->event_fds[task->kind];

	pthread_mutex_lock(&fs->lock);
	task->done = true;
	if (task->kind == FS_STORE)
		g_queue_push_tail(&fs->stored, task);
	kvc_eventfd_signal(event_fd);
	if (--fs->outstanding == 0)
		pthread_cond_broadcast(&fs->idle);
	pthread_mutex_unlock(&fs->lock);
}

FsTask *
fs_task_take(FsAdapter *fs, KvcL2TaskId id, FsKind kind, int *result)
{
	pthread_mutex_lock(&fs->lock);
	FsTask *task = g_hash_table_lookup(fs->tasks, &id);
	if (!task || task->kind != kind)
		*result = -ENOENT;
	else
		*result = task->done ? 1 : 0;
	if (*result == 1)
		g_hash_table_steal(fs->tasks, &id);
	pthread_mutex_unlock(&fs->lock);
	return *result == 1 ? task : NULL;
}

size_t
fs_task_pop_stored(FsAdapter *fs, KvcL2StoreResult *results, size_t max)
{
	size_t n = 0;

	pthread_mutex_lock(&fs->lock);
	while (n < max && !g_queue_is_empty(&fs->stored)) {
		FsTask *task = g_queue_pop_head(&fs->stored);

		results[n].task_id = task->id;
		results[n++].bytes_transferred = task->result;
		fs_task_free(task);
	}
	pthread_mutex_unlock(&fs->lock);
	return n;
}

void
fs_job_end(FsJob *job, int64_t result)
{
	FsAdapter *fs = job->fs;
	FsTask *task = job->task;
	bool is_store = task->kind == FS_STORE;

	if (job->fd >= 0)
		close(job->fd);
	g_clear_pointer(&job->path, g_free);
	g_clear_pointer(&job->temp_path, g_free);
	job->result = result;
	if (is_store) {
		pthread_mutex_lock(&fs->lock);
		if (task->result >= 0)
			task->result = result < 0 ? result : task->result + result;
		pthread_mutex_unlock(&fs->lock);
	}
	fs_pool_leave(&fs->workers, is_store ? FS_CLASS_STORE : FS_CLASS_LOAD, job->object.bytes);
	if (atomic_fetch_sub(&task->remaining, 1) == 1)
		fs_task_complete(task);
}

/* One check of everything that O_DIRECT wants. */
static bool
may_use_direct(const FsJob *job)
{
	const KvcMemoryObj *object = &job->object;

	return job->fs->want_direct && !atomic_load(&job->fs->direct_refused) &&
	       object->bytes > 0 && (uintptr_t)object->data % KVC_IO_ALIGN_BYTES == 0 &&
	       kvc_io_align_up(object->bytes) <= object->mapped_bytes;
}

/*
 * O_DIRECT is set on the open file, not at open: where it is refused, open with O_CREAT may leave
 * the file behind. This also clears O_NONBLOCK, with which the ring would answer EAGAIN.
 */
int
fs_job_set_mode(FsJob *job, bool direct)
{
	int flags = fcntl(job->fd, F_GETFL);

	if (flags < 0)
		return -errno;
	flags &= ~(O_DIRECT | O_NONBLOCK);
	job->direct = direct && may_use_direct(job);
	if (job->direct) {
		if (fcntl(job->fd, F_SETFL, flags | O_DIRECT) == 0)
			return 0;
		if (!kvc_io_is_direct_refused(errno))
			return -errno;
		fs_note_refused(job->fs, errno);
		job->direct = false;
	}
	return fcntl(job->fd, F_SETFL, flags) < 0 ? -errno : 0;
}

void
fs_job_transfer(FsJob *job, bool is_write, void (*done)(KvcIoTransfer *transfer))
{
	size_t bytes = job->object.bytes;

	job->transfer = (KvcIoTransfer){
		.fd = job->fd,
		.is_write = is_write,
		.data = job->object.data,
		.bytes = job->direct ? kvc_io_align_up(bytes) : bytes,
		.done = done,
		.user = job,
	};
	kvc_io_submit(job->fs->io, &job->transfer);
}

bool
fs_job_was_refused(FsJob *job)
{
	int errnum = -job->transfer.error;

	if (!job->direct || !kvc_io_is_direct_refused(errnum))
		return false;
	/* Not proven yet: it may as well fail without. The log then has both. */
	fs_note_refused(job->fs, errnum);
	return fs_job_set_mode(job, false) == 0;
}
