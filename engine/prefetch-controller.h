/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PREFETCH_CONTROLLER_H
#define ENGINE_PREFETCH_CONTROLLER_H

/*
 * Loads from L2 into L1: one thread in poll() on eventfds only. The requests' state machine and
 * lock tables are those of the specification, but for what test-differences.c names. The
 * public half of the interface (kvc_prefetch_handle_*) is declared in kvcache/storage-manager.h and
 * implemented here.
 */

#include "engine/controller-context.h"

typedef struct KvcPrefetchController KvcPrefetchController;

KvcPrefetchController *kvc_prefetch_controller_new(const KvcControllerContext *context,
						   const KvcPrefetchPolicy *policy,
						   unsigned max_in_flight,
						   GError **error);
void kvc_prefetch_controller_start(KvcPrefetchController *c);
/*
 * Quiescence: answers every request (0 more hits), waits for tasks in flight, releases every L1 and
 * L2 lock the controller holds, joins. Handles may be dropped before or after.
 */
void kvc_prefetch_controller_stop(KvcPrefetchController *c);
void kvc_prefetch_controller_free(KvcPrefetchController *c);

/* See kvc_storage_manager_submit_prefetch_task and kvc_storage_manager_query_prefetch_status. */
KvcPrefetchHandle *kvc_prefetch_controller_submit(KvcPrefetchController *c,
						  const KvcPrefetchParams *params);
ssize_t kvc_prefetch_controller_query(KvcPrefetchController *c, KvcPrefetchHandle *handle);
/* Requests that are queued, looking up, loading or draining. */
size_t kvc_prefetch_controller_active(KvcPrefetchController *c);
/* See kvc_storage_manager_dump_prefetches. */
void kvc_prefetch_controller_dump(KvcPrefetchController *c, KvcDescribeFunc func, void *user);

/*
 * Attaches ADAPTER, whose slot is filled, or detaches it; waits until that is done: 0, or
 * -ETIMEDOUT: it goes on, call again. DEADLINE_NS 0: none. No new work may name it meanwhile. One
 * thread at a time.
 */
int kvc_prefetch_controller_set_adapter(KvcPrefetchController *c,
					size_t adapter,
					bool is_wanted,
					int64_t deadline_ns);

#endif
