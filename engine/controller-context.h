/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CONTROLLER_CONTEXT_H
#define ENGINE_CONTROLLER_CONTEXT_H

/*
 * What both controllers work with. Immutable after the StorageManager was built, except for the
 * adapters, which come and go.
 */

#include "engine/adapter-health.h"
#include "engine/key-index.h"
#include "engine/l1-manager.h"
#include "engine/stats.h"
#include "kvcache/policy.h"

typedef struct KvcAdapterSlot {
	bool is_listing; /* Atomic: pages of it are on their way into the index */
	KvcL2Adapter *adapter;
	KvcOptions *options;
	bool is_shared;
	KvcBreaker *breaker; /* owned; NULL: never open */
	KvcAdapterHealth health;
	uint64_t n_reached; /* Atomic: how often its store answered, also with an error */
	/* Atomic: consecutive failed stores, and objects given up, for health. */
	int store_failures;
	uint64_t stores_failed;
	/* Atomic: deletions that are not confirmed; of these, the ones whose last try failed. */
	uint64_t deletes_pending, deletes_failing;
	/* Atomic: the same of renames. */
	uint64_t renames_pending, renames_failing;
} KvcAdapterSlot;

struct KvcDeletionLog;

/*
 * ADAPTERS has KVC_MAX_ADAPTERS slots that stay where they are. A slot is filled before it becomes
 * active, and emptied after both controllers have let go of it (adapter-set.c).
 */
typedef struct KvcControllerContext {
	KvcL1Manager *l1;
	KvcKeyIndex *index;
	KvcStats *stats;
	KvcAdapterSlot *adapters;
	KvcAdapterDescriptor *descriptors;
	size_t n_adapters; /* Atomic: the slots from here on were never used */
	/* Atomic, bits of the other slots. Draining: gets no new work. Empty: there is none. */
	uint32_t draining, empty;
	uint64_t l1_capacity_bytes;
	struct KvcDeletionLog *deletions; /* NULL: none is kept */
} KvcControllerContext;

static inline size_t
kvc_controller_context_count(const KvcControllerContext *context)
{
	return __atomic_load_n(&context->n_adapters, __ATOMIC_ACQUIRE);
}

/* Adapters that are open, and of these the ones that get new work (bits). */
static inline uint32_t
kvc_controller_context_present(const KvcControllerContext *context)
{
	uint32_t all = (1u << kvc_controller_context_count(context)) - 1;
	return all & ~__atomic_load_n(&context->empty, __ATOMIC_ACQUIRE);
}

static inline uint32_t
kvc_controller_context_active(const KvcControllerContext *context)
{
	return kvc_controller_context_present(context) &
	       ~__atomic_load_n(&context->draining, __ATOMIC_ACQUIRE);
}

/* What policies are told of ADAPTERS (bits): how many. */
static inline size_t
kvc_controller_context_view(const KvcControllerContext *context,
			    uint32_t adapters,
			    KvcAdapterDescriptor view[KVC_MAX_ADAPTERS])
{
	size_t n = 0;
	for (; adapters; adapters &= adapters - 1)
		view[n++] = context->descriptors[__builtin_ctz(adapters)];
	return n;
}

/* Active adapters that can rename (bits). */
static inline uint32_t
kvc_controller_context_renamers(const KvcControllerContext *context)
{
	uint32_t renamers = 0;
	for (uint32_t bits = kvc_controller_context_active(context); bits; bits &= bits - 1) {
		unsigned a = (unsigned)__builtin_ctz(bits);
		if (context->adapters[a].adapter->ops->rename_key)
			renamers |= 1u << a;
	}
	return renamers;
}

/*
 * TIERS (not 0) were found to have an older version of KEY than another adapter, as
 * kvc_key_index_add_with() returns it: counts that, and what L1 loaded of it is not served any
 * more. Any thread, outside of locks and listeners.
 */
void kvc_controller_context_note_older(const KvcControllerContext *context,
				       KvcObjectKey *key,
				       uint32_t tiers);
/* What messages call the adapter A (transfer full): as in status, with its type. */
static inline char *
kvc_controller_context_adapter_name(const KvcControllerContext *context, size_t a)
{
	return g_strdup_printf("l2.%zu (%s)", a, context->adapters[a].adapter->ops->type_name);
}

#endif
