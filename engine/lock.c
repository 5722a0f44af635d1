/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/lock.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#ifdef KVC_DEBUG_LOCKS

#define MAX_HELD 16

static const char *const rank_names[] = {
	[0] = "no lock",
	[KVC_LOCK_MODULE_LOAD] = "MODULE_LOAD",
	[KVC_LOCK_STORAGE_MANAGER] = "STORAGE_MANAGER",
	[KVC_LOCK_ADAPTER_SET] = "ADAPTER_SET",
	[KVC_LOCK_PREFETCH_HANDLE] = "PREFETCH_HANDLE",
	[KVC_LOCK_EVICTION_CONTROLLER] = "EVICTION_CONTROLLER",
	[KVC_LOCK_L1_SHARD] = "L1_SHARD",
	[KVC_LOCK_STORE_QUEUE] = "STORE_QUEUE",
	[KVC_LOCK_PREFETCH_QUEUE] = "PREFETCH_QUEUE",
	[KVC_LOCK_DELETER_QUEUE] = "DELETER_QUEUE",
	[KVC_LOCK_INDEX_SCOPES] = "INDEX_SCOPES",
	[KVC_LOCK_INDEX_SCOPE] = "INDEX_SCOPE",
	[KVC_LOCK_INDEX_SHARD] = "INDEX_SHARD",
	[KVC_LOCK_EVICTION_POLICY] = "EVICTION_POLICY",
	[KVC_LOCK_REGISTRIES] = "REGISTRIES",
	[KVC_LOCK_LEAF] = "LEAF",
	[KVC_LOCK_TASK_BOARD] = "TASK_BOARD",
	[KVC_LOCK_KEY_SCOPES] = "KEY_SCOPES",
};

/* What this thread holds, ascending: a lock is only ever added above the last one. */
static _Thread_local KvcLockRank held[MAX_HELD];
static _Thread_local unsigned n_held;

/* Allocates nothing and takes no lock of GLib: any lock may be held here. */
__attribute__((noreturn)) static void
fail(const char *what, KvcLockRank rank, KvcLockRank other)
{
	fprintf(stderr, "kvcache: %s %s (rank %d) while holding %s (rank %d)\n", what,
		rank_names[rank], (int)rank, rank_names[other], (int)other);
	abort();
}

static KvcLockRank
highest_held(void)
{
	return n_held > 0 ? held[n_held - 1] : (KvcLockRank)0;
}

static void
push(KvcLockRank rank)
{
	if (n_held == MAX_HELD)
		fail("too many locks: taking", rank, highest_held());
	held[n_held++] = rank;
}

/* Before the lock is taken, so that an inversion is reported instead of a deadlock met. */
static void
note_lock(KvcLockRank rank)
{
	if (n_held > 0 && rank <= highest_held())
		fail("lock order violated: taking", rank, highest_held());
	push(rank);
}

/* The second one of a pair: the first one is what was locked last. */
static void
note_lock_again(KvcLockRank rank)
{
	if (rank != highest_held())
		fail("not a pair: taking", rank, highest_held());
	push(rank);
}

static void
note_unlock(KvcLockRank rank)
{
	unsigned i = n_held;

	while (i > 0 && held[i - 1] != rank)
		i--;
	if (i == 0)
		fail("not held: releasing", rank, highest_held());
	for (; i < n_held; i++)
		held[i - 1] = held[i];
	n_held--;
}

void
kvc_lock_assert_none_held(const char *what)
{
	if (n_held == 0)
		return;
	fprintf(stderr, "kvcache: calling %s while holding %s (rank %d)\n", what,
		rank_names[highest_held()], (int)highest_held());
	abort();
}

/* Waiting is blocking: the lock that is waited with must be the only one. */
static void
note_wait(KvcLockRank rank)
{
	for (unsigned i = 0; i < n_held; i++)
		if (held[i] != rank)
			fail("waiting with", rank, held[i]);
	if (n_held == 0)
		fail("not held: waiting with", rank, highest_held());
}

static _Thread_local bool is_in_listener;

void
kvc_listener_enter(void)
{
	is_in_listener = true;
}

void
kvc_listener_leave(void)
{
	is_in_listener = false;
}

void
kvc_listener_forbid(const char *function)
{
	if (!is_in_listener)
		return;
	fprintf(stderr, "kvcache: %s() called by a listener of the L1Manager\n", function);
	abort();
}

#else

void
kvc_lock_assert_none_held(const char *what)
{
	(void)what;
}

static inline void
note_lock(KvcLockRank rank)
{
	(void)rank;
}

static inline void
note_lock_again(KvcLockRank rank)
{
	(void)rank;
}

static inline void
note_unlock(KvcLockRank rank)
{
	(void)rank;
}

static inline void
note_wait(KvcLockRank rank)
{
	(void)rank;
}

#endif

void
kvc_mutex_init(KvcMutex *mutex, KvcLockRank rank)
{
	pthread_mutex_init(&mutex->mutex, NULL);
	mutex->rank = rank;
}

void
kvc_mutex_deinit(KvcMutex *mutex)
{
	pthread_mutex_destroy(&mutex->mutex);
}

void
kvc_mutex_lock(KvcMutex *mutex)
{
	note_lock(mutex->rank);
	pthread_mutex_lock(&mutex->mutex);
}

void
kvc_mutex_unlock(KvcMutex *mutex)
{
	note_unlock(mutex->rank);
	pthread_mutex_unlock(&mutex->mutex);
}

void
kvc_mutex_lock_both(KvcMutex *a, KvcMutex *b)
{
	KvcMutex *first = a < b ? a : b, *second = a < b ? b : a;

	kvc_mutex_lock(first);
	if (first == second)
		return;
	note_lock_again(second->rank);
	pthread_mutex_lock(&second->mutex);
}

void
kvc_mutex_unlock_both(KvcMutex *a, KvcMutex *b)
{
	kvc_mutex_unlock(a);
	if (a != b)
		kvc_mutex_unlock(b);
}

void
kvc_rwlock_init(KvcRwLock *lock, KvcLockRank rank)
{
	pthread_rwlockattr_t attr;

	/* Readers without end must not keep a writer out. */
	pthread_rwlockattr_init(&attr);
	pthread_rwlockattr_setkind_np(&attr, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP);
	pthread_rwlock_init(&lock->lock, &attr);
	pthread_rwlockattr_destroy(&attr);
	lock->rank = rank;
}

void
kvc_rwlock_deinit(KvcRwLock *lock)
{
	pthread_rwlock_destroy(&lock->lock);
}

void
kvc_rwlock_lock_shared(KvcRwLock *lock)
{
	note_lock(lock->rank);
	pthread_rwlock_rdlock(&lock->lock);
}

void
kvc_rwlock_lock(KvcRwLock *lock)
{
	note_lock(lock->rank);
	pthread_rwlock_wrlock(&lock->lock);
}

void
kvc_rwlock_unlock(KvcRwLock *lock)
{
	note_unlock(lock->rank);
	pthread_rwlock_unlock(&lock->lock);
}

void
kvc_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

int
kvc_cond_wait_until(pthread_cond_t *cond, KvcMutex *mutex, int64_t deadline_ns)
{
	struct timespec deadline = {.tv_sec = deadline_ns / KVC_SEC_NS,
				    .tv_nsec = deadline_ns % KVC_SEC_NS};

	note_wait(mutex->rank);
	if (deadline_ns == 0)
		return pthread_cond_wait(cond, &mutex->mutex);
	return pthread_cond_timedwait(cond, &mutex->mutex, &deadline);
}
