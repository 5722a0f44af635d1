/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/pool.h"

#include "engine/lock.h"
#include "kvcache/options.h"

#include <stdbool.h>

/* A queue of work, of which so much may be between run and leave. */
typedef struct Gate {
	KvcPoolLimit limit;
	bool has_limit;
	KvcWork *first, **last;
	unsigned works;
	size_t bytes;
} Gate;

struct KvcPool {
	/* Immutable after open */
	pthread_t *threads;
	unsigned n_threads;

	KvcMutex lock;
	/* Protected by lock */
	pthread_cond_t wake;
	Gate gates[KVC_POOL_CLASSES];
	bool is_stopping;
};

static bool
is_open_locked(const Gate *gate)
{
	const KvcPoolLimit *limit = &gate->limit;

	if (!gate->first)
		return false;
	if (gate->works == 0)
		return true;
	return (limit->max_works == 0 || gate->works < limit->max_works) &&
	       gate->bytes + gate->first->bytes <= limit->max_bytes;
}

static KvcWork *
take_locked(KvcPool *pool)
{
	for (size_t i = 0; i < KVC_POOL_CLASSES; i++) {
		Gate *gate = &pool->gates[i];
		KvcWork *work = gate->first;

		if (!is_open_locked(gate))
			continue;
		gate->first = work->link;
		if (!gate->first)
			gate->last = &gate->first;
		if (gate->has_limit) {
			gate->works++;
			gate->bytes += work->bytes;
		}
		return work;
	}
	return NULL;
}

static bool
is_empty_locked(const KvcPool *pool)
{
	for (size_t i = 0; i < KVC_POOL_CLASSES; i++)
		if (pool->gates[i].first)
			return false;
	return true;
}

static void *
pool_main(void *user)
{
	KvcPool *pool = user;

	kvc_mutex_lock(&pool->lock);
	for (;;) {
		KvcWork *work = take_locked(pool);

		if (work) {
			kvc_mutex_unlock(&pool->lock);
			work->run(work);
			kvc_mutex_lock(&pool->lock);
		} else if (pool->is_stopping && is_empty_locked(pool)) {
			break;
		} else {
			kvc_cond_wait_until(&pool->wake, &pool->lock, 0);
		}
	}
	kvc_mutex_unlock(&pool->lock);
	return NULL;
}

void
kvc_pool_push(KvcPool *pool, KvcPoolClass kind, KvcWork *work)
{
	Gate *gate = &pool->gates[kind];

	work->link = NULL;
	kvc_mutex_lock(&pool->lock);
	*gate->last = work;
	gate->last = &work->link;
	pthread_cond_signal(&pool->wake);
	kvc_mutex_unlock(&pool->lock);
}

void
kvc_pool_leave(KvcPool *pool, KvcPoolClass kind, size_t bytes)
{
	Gate *gate = &pool->gates[kind];

	kvc_mutex_lock(&pool->lock);
	gate->works--;
	gate->bytes -= bytes;
	/* One large work may make room for several small ones. */
	if (gate->first)
		pthread_cond_broadcast(&pool->wake);
	kvc_mutex_unlock(&pool->lock);
}

static void
set_limit(Gate *gate, const KvcPoolLimit *limit)
{
	gate->has_limit = limit;
	if (limit)
		gate->limit = *limit;
}

KvcPool *
kvc_pool_new(const char *name,
	     unsigned n_threads,
	     const KvcPoolLimit *loads,
	     const KvcPoolLimit *stores,
	     GError **error)
{
	KvcPool *pool = g_new0(KvcPool, 1);

	kvc_mutex_init(&pool->lock, KVC_LOCK_LEAF);
	kvc_cond_init(&pool->wake);
	for (size_t i = 0; i < KVC_POOL_CLASSES; i++)
		pool->gates[i].last = &pool->gates[i].first;
	set_limit(&pool->gates[KVC_POOL_LOAD], loads);
	set_limit(&pool->gates[KVC_POOL_STORE], stores);
	pool->threads = g_new0(pthread_t, n_threads);
	for (; pool->n_threads < n_threads; pool->n_threads++) {
		pthread_t *thread = &pool->threads[pool->n_threads];
		int errnum = pthread_create(thread, NULL, pool_main, pool);

		if (errnum) {
			g_set_error(error, KVC_OPTIONS_ERROR, errnum,
				    "cannot start thread %u of %u of \"%s\": %s",
				    pool->n_threads + 1, n_threads, name, g_strerror(errnum));
			kvc_pool_free(pool);
			return NULL;
		}
		pthread_setname_np(*thread, name);
	}
	return pool;
}

void
kvc_pool_stop(KvcPool *pool)
{
	if (!pool)
		return;
	kvc_mutex_lock(&pool->lock);
	pool->is_stopping = true;
	pthread_cond_broadcast(&pool->wake);
	kvc_mutex_unlock(&pool->lock);
	for (unsigned i = 0; i < pool->n_threads; i++)
		pthread_join(pool->threads[i], NULL);
	pool->n_threads = 0;
}

void
kvc_pool_free(KvcPool *pool)
{
	if (!pool)
		return;
	kvc_pool_stop(pool);
	g_free(pool->threads);
	pthread_cond_destroy(&pool->wake);
	kvc_mutex_deinit(&pool->lock);
	g_free(pool);
}
