/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STORAGE_MANAGER_PRIVATE_H
#define ENGINE_STORAGE_MANAGER_PRIVATE_H

/* Shared by storage-manager.c, listing.c and status.c only. */

#include "engine/controller-context.h"

struct KvcEvictionController;
struct KvcStoreController;
struct KvcPrefetchController;

/* The background listing of one adapter at the start. */
typedef struct KvcListing {
	KvcStorageManager *sm;
	size_t adapter;
	pthread_t thread;
	bool is_running;
	bool is_done;	/* Protected by the manager's lock */
	int error;	/* Atomic: 0 or -errno, once done */
	uint64_t count; /* Atomic: keys so far */
} KvcListing;

struct KvcStorageManager {
	/* Immutable after new. */
	KvcControllerContext context;
	KvcL1Memory *memory;
	struct KvcEvictionController *eviction;
	struct KvcStoreController *store;
	struct KvcPrefetchController *prefetch;
	const KvcStorePolicy *store_policy;
	const KvcPrefetchPolicy *prefetch_policy;
	const KvcEvictionPolicy *eviction_policy;
	KvcL1ManagerListener index_listener;

	KvcStats stats;
	bool is_stopping; /* Atomic: the listing ends early */

	KvcMutex lock;
	pthread_cond_t listed; /* some listing ended */
	KvcListing listings[KVC_MAX_ADAPTERS];
};

void kvc_listing_start(KvcStorageManager *sm);
void kvc_listing_stop(KvcStorageManager *sm);

#endif
