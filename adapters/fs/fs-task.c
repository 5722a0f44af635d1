/* SPDX-License-Identifier: Apache-2.0 */

/* Tasks and jobs: what stores, loads and lookups have in common. */

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "fs.h"

void
fs_task_clear(KvcTask *task)
{
	g_free(((FsTask *)task)->jobs);
}

static void
make_jobs(FsTask *task, const KvcMemoryObj *objects)
{
	bool is_store = task->base.kind == KVC_TASK_STORE;

	task->jobs = g_new0(FsJob, task->base.n);
	for (size_t i = 0; i < task->base.n; i++) {
		FsJob *job = &task->jobs[i];

		job->fs = task->fs;
		job->task = task;
		job->key = task->base.keys[i];
		job->object = objects[i];
		job->fd = -1;
		job->work.bytes = objects[i].bytes;
		job->work.run = is_store ? fs_store_begin : fs_load_begin;
		if (is_store)
			job->sequence = fs_keys_begin_store(job->fs, job->key);
	}
}

KvcL2TaskId
fs_submit(KvcL2Adapter *adapter,
	  KvcTaskKind kind,
	  KvcObjectKey *const *keys,
	  const KvcMemoryObj *objects,
	  size_t n)
{
	FsAdapter *fs = (FsAdapter *)adapter;
	KvcPoolClass class = kind == KVC_TASK_STORE ? KVC_POOL_STORE : KVC_POOL_LOAD;
	/* The jobs have the objects. */
	FsTask *task = (FsTask *)kvc_task_new(fs->base.board, sizeof(*task), kind, keys, NULL, n);

	task->fs = fs;
	if (kind == KVC_TASK_LOOKUP) {
		task->work.run = fs_lookup_run;
		KvcL2TaskId id = kvc_task_post(&task->base, 1);
		kvc_pool_push(fs->lookups, KVC_POOL_FINISH, &task->work);
		return id;
	}
	make_jobs(task, objects);
	/* From the last push on the task may be gone. */
	FsJob *jobs = task->jobs;
	KvcL2TaskId id = kvc_task_post(&task->base, n);
	for (size_t i = 0; i < n; i++)
		kvc_pool_push(fs->workers, class, &jobs[i].work);
	return id;
}

void
fs_job_end(FsJob *job, int64_t result)
{
	FsAdapter *fs = job->fs;
	KvcTask *task = &job->task->base;
	bool is_store = task->kind == KVC_TASK_STORE;

	if (job->fd >= 0)
		close(job->fd);
	g_clear_pointer(&job->path, g_free);
	g_clear_pointer(&job->temp_path, g_free);
	if (!is_store)
		task->hits[job - job->task->jobs] = job->loaded;
	kvc_pool_leave(fs->workers, is_store ? KVC_POOL_STORE : KVC_POOL_LOAD, job->object.bytes);
	kvc_task_end_part(task, result);
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
