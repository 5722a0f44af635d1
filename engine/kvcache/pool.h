/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_POOL_H
#define KVCACHE_POOL_H

/*
 * Threads for what blocks shortly: to open, to check, to write a header. Work that finishes what
 * was begun goes first, because it frees memory and descriptors; then loads, because somebody waits
 * for them; then stores. Loads and stores that begin are held back by their count and bytes, so
 * that a task of thousands of objects does not open thousands of files, and stores cannot fill a
 * ring before the loads.
 */

#include "kvcache/decls.h"

#include <stddef.h>

KVC_BEGIN_DECLS

typedef struct KvcPool KvcPool;

typedef enum {
	KVC_POOL_FINISH, /* second halves, and what is short: never held back */
	KVC_POOL_LOAD,
	KVC_POOL_STORE,
	KVC_POOL_CLASSES,
} KvcPoolClass;

/* A part of the caller's struct, which stays alive until RUN is called; that may free it. */
typedef struct KvcWork KvcWork;
struct KvcWork {
	void (*run)(KvcWork *work); /* on a thread of the pool, without a lock */
	size_t bytes;		    /* what it occupies of its class */
	KvcWork *link;		    /* the pool's */
};

/* How much work of a class may be between run and leave; one is always let in. */
typedef struct KvcPoolLimit {
	unsigned max_works; /* 0: any number */
	size_t max_bytes;
} KvcPoolLimit;

/*
 * A pool (transfer full) of N_THREADS threads called NAME (15 bytes). NULL for LOADS or STORES: no
 * limit. NULL with ERROR set: no more threads.
 */
KvcPool *kvc_pool_new(const char *name,
		      unsigned n_threads,
		      const KvcPoolLimit *loads,
		      const KvcPoolLimit *stores,
		      GError **error);
/* Runs WORK->run once on a thread of the pool. Never blocks; any thread. */
void kvc_pool_push(KvcPool *pool, KvcPoolClass kind, KvcWork *work);
/*
 * Work of a class with a limit is over, whose bytes were BYTES: others may begin. Once for each
 * that was run, by any thread. Never blocks.
 */
void kvc_pool_leave(KvcPool *pool, KvcPoolClass kind, size_t bytes);
/*
 * Runs what is queued, then joins the threads: what is held back must leave meanwhile. Blocks. What
 * is pushed later is not run. POOL may be NULL.
 */
void kvc_pool_stop(KvcPool *pool);
/* Stops it if it is not, and frees it. POOL may be NULL. */
void kvc_pool_free(KvcPool *pool);

KVC_END_DECLS

#endif
