/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_LOCK_H
#define ENGINE_LOCK_H

/*
 * Mutexes that know their rank. A thread takes locks in ascending rank only; debug builds
 * (KVC_DEBUG_LOCKS) abort on an inversion. No lock is held across a blocking call or a callback,
 * except the listeners of the L1Manager (invariant 6 of the specification).
 */

#include "kvcache/io.h" /* the clock of the deadlines */

#include <pthread.h>
#include <stdint.h>

/* The whole lock order of the engine, outermost first. */
typedef enum {
	KVC_LOCK_MODULE_LOAD = 1,     /* one module is loaded at a time */
	KVC_LOCK_STORAGE_MANAGER,     /* adapters' listing state, drain waiters */
	KVC_LOCK_ADAPTER_SET,	      /* which adapters get new work; shared */
	KVC_LOCK_PREFETCH_HANDLE,     /* one prefetch request */
	KVC_LOCK_EVICTION_CONTROLLER, /* its wake-up state */
	KVC_LOCK_L1_SHARD,	      /* one of the 64 tables of L1; listeners run inside */
	KVC_LOCK_STORE_QUEUE,	      /* messages to the StoreController (from listeners) */
	KVC_LOCK_PREFETCH_QUEUE,      /* messages to the PrefetchController */
	KVC_LOCK_DELETER_QUEUE,	      /* work of the deletion threads */
	KVC_LOCK_INDEX_SCOPES,	      /* the scopes of the key index */
	KVC_LOCK_INDEX_SCOPE,	      /* the order of the keys of one scope */
	KVC_LOCK_INDEX_SHARD,	      /* one of the 64 tables of the key index */
	KVC_LOCK_EVICTION_POLICY,     /* a policy's own */
	KVC_LOCK_REGISTRIES,	      /* what modules registered */
	KVC_LOCK_LEAF,		      /* nothing but the next two are taken inside */
	KVC_LOCK_TASK_BOARD,	      /* results of an adapter; nothing is taken inside */
	KVC_LOCK_KEY_SCOPES,	      /* the table of scopes: any key may be the last of its one */
} KvcLockRank;

typedef struct KvcMutex {
	pthread_mutex_t mutex;
	KvcLockRank rank;
} KvcMutex;

/* Many readers or one writer; a thread does not take it twice. */
typedef struct KvcRwLock {
	pthread_rwlock_t lock;
	KvcLockRank rank;
} KvcRwLock;

void kvc_rwlock_init(KvcRwLock *lock, KvcLockRank rank);
void kvc_rwlock_deinit(KvcRwLock *lock);
void kvc_rwlock_lock_shared(KvcRwLock *lock);
void kvc_rwlock_lock(KvcRwLock *lock);
void kvc_rwlock_unlock(KvcRwLock *lock);

void kvc_mutex_init(KvcMutex *mutex, KvcLockRank rank);
void kvc_mutex_deinit(KvcMutex *mutex);
void kvc_mutex_lock(KvcMutex *mutex);
void kvc_mutex_unlock(KvcMutex *mutex);
/*
 * Two locks of one rank, which may be the same one: the only way to hold two of a rank, in an order
 * that all threads share.
 */
void kvc_mutex_lock_both(KvcMutex *a, KvcMutex *b);
void kvc_mutex_unlock_both(KvcMutex *a, KvcMutex *b);
/* Condition variables on CLOCK_MONOTONIC. 0 or ETIMEDOUT; DEADLINE_NS 0: no limit. */
void kvc_cond_init(pthread_cond_t *cond);
int kvc_cond_wait_until(pthread_cond_t *cond, KvcMutex *mutex, int64_t deadline_ns);

/*
 * Around a listener of the L1Manager, which must not call the L1Manager: debug builds abort in
 * kvc_listener_forbid(FUNCTION) when the thread is between the two others.
 */
#ifdef KVC_DEBUG_LOCKS
void kvc_listener_enter(void);
void kvc_listener_leave(void);
void kvc_listener_forbid(const char *function);
#else
static inline void
kvc_listener_enter(void)
{
}

static inline void
kvc_listener_leave(void)
{
}

static inline void
kvc_listener_forbid(const char *function)
{
	(void)function;
}
#endif

/*
 * WHAT is about to be called, which is not the engine's: this thread must hold none of its locks.
 * Debug builds abort if it does.
 */
void kvc_lock_assert_none_held(const char *what);

#endif
