/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STORAGE_MANAGER_PRIVATE_H
#define ENGINE_STORAGE_MANAGER_PRIVATE_H

/* Shared by storage-manager*.c, adapter-set.c, listing.c and status.c only. */

#include "engine/controller-context.h"
#include "engine/lock.h"

struct KvcEvictionController;
struct KvcStoreController;
struct KvcPrefetchController;

/* The background listing of one adapter, from when it is opened. */
typedef struct KvcListing {
	KvcStorageManager *sm;
	size_t adapter;
	pthread_t thread;
	bool is_running;  /* owned by whoever starts and stops it */
	bool is_stopping; /* Atomic: it ends early */
	bool is_done;	  /* Protected by the manager's lock */
	int error;	  /* Atomic: 0 or -errno, once done */
	int64_t begun_ns; /* Immutable once it runs: CLOCK_REALTIME */
	uint64_t count;	  /* Atomic: keys so far */
} KvcListing;

/* Lists again what others may have changed (relist.c). */
typedef struct KvcRelister KvcRelister;
KvcRelister *kvc_relister_new(KvcStorageManager *sm);
/* Ends what it is doing early. Before the controllers stop. */
void kvc_relister_free(KvcRelister *l);

struct KvcStorageManager {
	/* Immutable after new. */
	KvcRelister *relister;
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
	KvcListing listings[KVC_MAX_ADAPTERS];
	uint64_t last_delete_id; /* Atomic; without a deletion log, which counts itself */

	/* Held, shared, from a look at the active adapters until the controllers were told. */
	KvcRwLock adapters_lock;

	KvcMutex lock;
	pthread_cond_t listed;		 /* some listing ended */
	pthread_cond_t adapters_changed; /* a hold or a change ended */
	/* Protected by lock. */
	unsigned holds[KVC_MAX_ADAPTERS];
	bool is_changing; /* an adapter is being added or removed */
};

/* Adapter I was opened, and nobody knows it yet. */
void kvc_listing_init(KvcStorageManager *sm, size_t i);
/* Begins to list it, if it can be. */
void kvc_listing_start(KvcStorageManager *sm, size_t i);
/* Waits until it has ended, early: 0, or -ETIMEDOUT. DEADLINE_NS 0: none. */
int kvc_listing_stop(KvcStorageManager *sm, size_t i, int64_t deadline_ns);

#endif
