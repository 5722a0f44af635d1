/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CONTROLLER_CONTEXT_H
#define ENGINE_CONTROLLER_CONTEXT_H

/* What both controllers work with: immutable after the StorageManager was built. */

#include "engine/key-index.h"
#include "engine/l1-manager.h"
#include "engine/stats.h"
#include "kvcache/policy.h"

typedef struct KvcAdapterSlot {
	KvcL2Adapter *adapter;
	KvcOptions *options;
	bool is_shared;
	/* Atomic: consecutive failed stores, and objects given up, for health. */
	int store_failures;
	uint64_t stores_failed;
	/* Atomic: deletions that are not confirmed; of these, the ones whose last try failed. */
	uint64_t deletes_pending, deletes_failing;
	/* Atomic: the same of renames. */
	uint64_t renames_pending, renames_failing;
} KvcAdapterSlot;

struct KvcDeletionLog;

typedef struct KvcControllerContext {
	KvcL1Manager *l1;
	KvcKeyIndex *index;
	KvcStats *stats;
	KvcAdapterSlot *adapters;
	KvcAdapterDescriptor *descriptors;
	size_t n_adapters;
	uint64_t l1_capacity_bytes;
	struct KvcDeletionLog *deletions; /* NULL: none is kept */
} KvcControllerContext;

/* Adapters that can rename (bits). */
static inline uint32_t
kvc_controller_context_renamers(const KvcControllerContext *context)
{
	uint32_t renamers = 0;
	for (size_t a = 0; a < context->n_adapters; a++)
		if (context->adapters[a].adapter->ops->rename_key)
			renamers |= 1u << a;
	return renamers;
}

/* What messages call the adapter A (transfer full): as in status, with its type. */
static inline char *
kvc_controller_context_adapter_name(const KvcControllerContext *context, size_t a)
{
	return g_strdup_printf("l2.%zu (%s)", a, context->adapters[a].adapter->ops->type_name);
}

#endif
