/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_POLICY_H
#define KVCACHE_POLICY_H

/* Store, prefetch and eviction policies: pure decisions, no I/O, no calls back into the engine. */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"

KVC_BEGIN_DECLS

#define KVC_POLICY_API 1
/* A key has at most this many store targets: the adapters of one engine. */
#define KVC_MAX_ADAPTERS 16

/* What a policy is told of an adapter. */
typedef struct KvcAdapterDescriptor {
	size_t index;
	const char *type_name;
	const KvcOptions *options;
} KvcAdapterDescriptor;

/* Where finished writes go. Called by the StoreController thread only. */
typedef struct KvcStorePolicy {
	uint32_t api;
	uint32_t struct_size;
	const char *name;
	const char *summary;
	/* Bit i of the result: store KEY on adapters[i] (N of them). */
	uint32_t (*select_store_targets)(const KvcObjectKey *key,
					 const KvcAdapterDescriptor *adapters,
					 size_t n);
	/* Delete KEY from L1 once its last target ended and at least one succeeded? NULL: never. */
	bool (*select_l1_deletion)(const KvcObjectKey *key);
} KvcStorePolicy;

/* Which adapter a key is loaded from. Called by the PrefetchController thread only. */
typedef struct KvcPrefetchPolicy {
	uint32_t api;
	uint32_t struct_size;
	const char *name;
	const char *summary;
	/*
	 * FOUND[a] (N_KEYS bits each) says what adapter a has; the policy sets in PLAN[a] (clear on
	 * entry) what is to be loaded from it. A key in at most one plan.
	 */
	void (*select_load_plan)(KvcObjectKey *const *keys,
				 size_t n_keys,
				 const KvcBitmap *const *found,
				 const KvcAdapterDescriptor *adapters,
				 size_t n_adapters,
				 KvcBitmap **plan);
	/* Are loaded objects kept like written ones? false: they are the first to be evicted. */
	bool retain;
} KvcPrefetchPolicy;

/* What the eviction policy is told of an object when it appears. */
typedef enum {
	KVC_EVICTION_NORMAL = 0,
	KVC_EVICTION_FIRST = 1, /* prefetched: first to be evicted */
	KVC_EVICTION_LAST = 2,	/* its replication failed: evicted when nothing else is left */
} KvcEvictionClass;

typedef struct KvcEvictionState KvcEvictionState;

/*
 * Order in which L1 objects go. created, touched and removed are called inside the L1Manager's
 * locks from any thread: the policy has its own lock, does not block and does not call the engine.
 */
typedef struct KvcEvictionPolicy {
	uint32_t api;
	uint32_t struct_size;
	const char *name;
	const char *summary;
	KvcEvictionState *(*state_new)(void);
	void (*state_free)(KvcEvictionState *state);
	/* Known from now on; known already: class and size are updated and it counts as just used.
	 */
	void (*created)(KvcEvictionState *state,
			const KvcObjectKey *key,
			uint64_t bytes,
			KvcEvictionClass klass);
	void (*touched)(KvcEvictionState *state, const KvcObjectKey *key); /* unknown: ignored */
	void (*removed)(KvcEvictionState *state, const KvcObjectKey *key); /* unknown: ignored */
	/*
	 * Appends referenced victims (transfer full) to VICTIMS until they add up to BYTES and
	 * COUNT keys or nothing eligible is left; the policy forgets none of them before removed is
	 * called. ELIGIBLE may be called under the policy's lock and only looks. An ineligible key
	 * keeps its position.
	 */
	void (*select_victims)(KvcEvictionState *state,
			       uint64_t bytes,
			       size_t count,
			       bool (*eligible)(void *user, const KvcObjectKey *key),
			       void *user,
			       GPtrArray *victims);
} KvcEvictionPolicy;

KVC_END_DECLS

#endif
