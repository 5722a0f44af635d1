/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Worker threads. Second halves of jobs go first, because they free memory and descriptors; then
 * loads, because somebody waits for them; then stores. New jobs are held back by count and bytes,
 * so that a task of thousands of objects does not open thousands of files, and stores cannot fill
 * the ring before the loads.
 */

#include "fs.h"

static bool
gate_is_open(const FsGate *gate)
{
	if (!gate->first)
		return false;
	if (gate->jobs == 0 || gate->max_jobs == 0)
		return true;
	return gate->jobs < gate->max_jobs && gate->bytes + gate->first->bytes <= gate->max_bytes;
}

static FsWork *
take_work_locked(FsPool *pool)
{
	for (size_t class = 0; class < FS_CLASSES; class ++) {
		FsGate *gate = &pool->gates[class];
		FsWork *work = gate->first;

		if (!gate_is_open(gate))
			continue;
		gate->first = work->link;
		if (!gate->first)
			gate->last = &gate->first;
		if (gate->max_jobs > 0) {
			gate->jobs++;
			gate->bytes += work->bytes;
		}
		return work;
	}
	return NULL;
}

static bool
is_empty_locked(const FsPool *pool)
{
	for (size_t class = 0; class < FS_CLASSES; class ++)
		if (pool->gates[class].first)
			return false;
	return true;
}

static void *
pool_main(void *user)
{
	FsPool *pool = user;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		FsWork *work = take_work_locked(pool);

		if (work) {
			pthread_mutex_unlock(&pool->lock);
			work->run(work);
			pthread_mutex_lock(&pool->lock);
		} else if (pool->stopping && is_empty_locked(pool)) {
			break;
		} else {
			pthread_cond_wait(&pool->wake, &pool->lock);
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

void
fs_pool_push(FsPool *pool, FsClass class, FsWork *work)
{
	FsGate *gate = &pool->gates[class];

	work->link = NULL;
	pthread_mutex_lock(&pool->lock);
	*gate->last = work;
	gate->last = &work->link;
	pthread_cond_signal(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

void
fs_pool_leave(FsPool *pool, FsClass class, size_t bytes)
{
	FsGate *gate = &pool->gates[class];

	pthread_mutex_lock(&pool->lock);
	gate->jobs--;
	gate->bytes -= bytes;
	/* One large job may make room for several small ones. */
	if (gate->first)
		pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

int
fs_pool_init(
	FsPool *pool, const char *name, unsigned n_threads, size_t load_bytes, size_t store_bytes)
{
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	for (size_t class = 0; class < FS_CLASSES; class ++)
		pool->gates[class].last = &pool->gates[class].first;
	pool->gates[FS_CLASS_LOAD].max_jobs = FS_JOBS_MAX;
	pool->gates[FS_CLASS_LOAD].max_bytes = load_bytes;
	pool->gates[FS_CLASS_STORE].max_jobs = FS_JOBS_MAX;
	pool->gates[FS_CLASS_STORE].max_bytes = store_bytes;
	pool->threads = g_new0(pthread_t, n_threads);
	for (; pool->n_threads < n_threads; pool->n_threads++) {
		pthread_t *thread = &pool->threads[pool->n_threads];
		int rc = pthread_create(thread, NULL, pool_main, pool);

		if (rc)
			return -rc;
		pthread_setname_np(*thread, name);
	}
	return 0;
}

void
fs_pool_stop(FsPool *pool)
{
	pthread_mutex_lock(&pool->lock);
	pool->stopping = true;
	pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	pool->n_threads = 0;
}

void
fs_pool_deinit(FsPool *pool)
{
	g_clear_pointer(&pool->threads, g_free);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
}
