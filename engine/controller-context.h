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

#endif
