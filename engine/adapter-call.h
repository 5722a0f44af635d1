/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ADAPTER_CALL_H
#define ENGINE_ADAPTER_CALL_H

/*
 * Every call of the engine into an adapter that is open goes through here: no lock of the engine is
 * held (debug builds abort), the breaker and the health learn how it ended. The functions are the
 * slots of KvcL2AdapterOps; those that may block are refused with -EHOSTDOWN while the breaker is
 * open, for the others the caller asks kvc_adapter_admits() first.
 */

#include "engine/controller-context.h"

/* May a task be submitted? Else the adapter cannot be reached: a miss, or later. */
bool kvc_adapter_admits(KvcAdapterSlot *slot);
/* Is it known that the adapter cannot be reached? */
bool kvc_adapter_is_unreachable(const KvcAdapterSlot *slot);

KvcL2TaskId kvc_adapter_submit_store(KvcAdapterSlot *slot,
				     KvcObjectKey *const *keys,
				     const KvcMemoryObj *objects,
				     size_t n);
size_t kvc_adapter_pop_stores(KvcAdapterSlot *slot, KvcL2StoreResult *results, size_t max);
KvcL2TaskId kvc_adapter_submit_lookup(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n);
/* N: how many keys the task has. */
int kvc_adapter_query_lookup(
	KvcAdapterSlot *slot, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info, size_t n);
void kvc_adapter_unlock(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n);
KvcL2TaskId
kvc_adapter_submit_load(KvcAdapterSlot *slot, KvcObjectKey *key, const KvcMemoryObj *object);
/* Of a task of one key: LOADED has one bit. */
int kvc_adapter_query_load(KvcAdapterSlot *slot, KvcL2TaskId id, KvcBitmap *loaded);

int
kvc_adapter_delete(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted);
int kvc_adapter_rename(KvcAdapterSlot *slot, KvcObjectKey *old_key, KvcObjectKey *new_key);
int kvc_adapter_set_attributes(KvcAdapterSlot *slot,
			       KvcObjectKey *key,
			       const KvcObjectAttributes *attributes);
/* One page of SCOPE (NULL: of everything); the breaker does not refuse it. */
ssize_t kvc_adapter_list(KvcAdapterSlot *slot,
			 const KvcKeyScope *scope,
			 char **cursor,
			 KvcL2ListEntry *entries,
			 size_t max);
/* Only of an adapter that has the slot. */
int kvc_adapter_get_changes(KvcAdapterSlot *slot,
			    const KvcKeyScope *scope,
			    uint64_t *stamp,
			    int64_t *changed_ns);
/* False: the adapter does not say. */
bool kvc_adapter_usage(KvcAdapterSlot *slot, KvcL2Usage *usage);
void kvc_adapter_describe(KvcAdapterSlot *slot, KvcDescribeFunc func, void *user);

#endif
