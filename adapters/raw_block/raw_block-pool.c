/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Worker threads. Loads and second halves of stores go first. New stores are held back by their
 * bytes, so that they cannot fill the ring before the loads.
 */

#include "raw_block.h"

static bool
may_store(const RawBlockPool *pool)
{
	const RawBlockWork *work = pool->first[RAW_BLOCK_CLASS_STORE];

	return work &&
	       (pool->stores == 0 || pool->store_bytes + work->bytes <= pool->store_bytes_max);
}

static RawBlockWork *
take_locked(RawBlockPool *pool, RawBlockClass class)
{
	RawBlockWork *work = pool->first[class];

	pool->first[class] = work->link;
	if (!pool->first[class])
		pool->last[class] = &pool->first[class];
	return work;
}

static RawBlockWork *
take_work_locked(RawBlockPool *pool)
{
	if (pool->first[RAW_BLOCK_CLASS_FINISH])
		return take_locked(pool, RAW_BLOCK_CLASS_FINISH);
	if (!may_store(pool))
		return NULL;
	RawBlockWork *work = take_locked(pool, RAW_BLOCK_CLASS_STORE);
	pool->stores++;
	pool->store_bytes += work->bytes;
	return work;
}

static void *
pool_main(void *user)
{
	RawBlockPool *pool = user;

	pthread_mutex_lock(&pool->lock);
	for (;;) {
		RawBlockWork *work = take_work_locked(pool);

		if (work) {
			pthread_mutex_unlock(&pool->lock);
			work->run(work);
			pthread_mutex_lock(&pool->lock);
		} else if (pool->stopping && !pool->first[RAW_BLOCK_CLASS_STORE]) {
			break;
		} else {
			pthread_cond_wait(&pool->wake, &pool->lock);
		}
	}
	pthread_mutex_unlock(&pool->lock);
	return NULL;
}

void
raw_block_pool_push(RawBlockPool *pool, RawBlockClass class, RawBlockWork *work)
{
	work->link = NULL;
	pthread_mutex_lock(&pool->lock);
	*pool->last[class] = work;
	pool->last[class] = &work->link;
	pthread_cond_signal(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

void
raw_block_pool_leave(RawBlockPool *pool, size_t bytes)
{
	pthread_mutex_lock(&pool->lock);
	pool->stores--;
	pool->store_bytes -= bytes;
	/* One large store may make room for several small ones. */
	if (pool->first[RAW_BLOCK_CLASS_STORE])
		pthread_cond_broadcast(&pool->wake);
	pthread_mutex_unlock(&pool->lock);
}

int
raw_block_pool_init(RawBlockPool *pool, const char *name, unsigned n_threads, size_t store_bytes)
{
	pthread_mutex_init(&pool->lock, NULL);
	pthread_cond_init(&pool->wake, NULL);
	for (size_t class = 0; class < RAW_BLOCK_CLASSES; class ++)
		pool->last[class] = &pool->first[class];
	pool->store_bytes_max = store_bytes;
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
raw_block_pool_stop(RawBlockPool *pool)
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
raw_block_pool_deinit(RawBlockPool *pool)
{
	g_clear_pointer(&pool->threads, g_free);
	pthread_cond_destroy(&pool->wake);
	pthread_mutex_destroy(&pool->lock);
}
