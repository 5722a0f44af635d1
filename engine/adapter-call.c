/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/adapter-call.h"

#include "engine/lock.h"

#include <errno.h>

bool
kvc_adapter_admits(KvcAdapterSlot *slot)
{
	return kvc_breaker_admit(slot->breaker);
}

bool
kvc_adapter_is_unreachable(const KvcAdapterSlot *slot)
{
	KvcBreakerStatus status;
	kvc_breaker_get_status(slot->breaker, &status);
	return status.state != KVC_BREAKER_CLOSED;
}

static void
note_reached(KvcAdapterSlot *slot, int error)
{
	kvc_breaker_note(slot->breaker, error);
	if (!kvc_is_connection_error(error))
		__atomic_fetch_add(&slot->n_reached, 1, __ATOMIC_RELAXED);
}

/* What the engine sees of a task with an errno. */
static void
note(KvcAdapterSlot *slot, int error)
{
	note_reached(slot, error);
	kvc_adapter_health_note(&slot->health, error == 0);
}

/* Not there, or locked: the store does what it ought to. */
static int
note_call(KvcAdapterSlot *slot, int error)
{
	note_reached(slot, error == -ENOENT || error == -EBUSY ? 0 : error);
	return error;
}

KvcL2TaskId
kvc_adapter_submit_store(KvcAdapterSlot *slot,
			 KvcObjectKey *const *keys,
			 const KvcMemoryObj *objects,
			 size_t n)
{
	kvc_lock_assert_none_held("submit_store_task");
	return slot->adapter->ops->submit_store_task(slot->adapter, keys, objects, n);
}

size_t
kvc_adapter_pop_stores(KvcAdapterSlot *slot, KvcL2StoreResult *results, size_t max)
{
	kvc_lock_assert_none_held("pop_completed_store_tasks");
	size_t n = slot->adapter->ops->pop_completed_store_tasks(slot->adapter, results, max);
	for (size_t i = 0; i < n; i++)
		note(slot, (int)MIN(results[i].bytes_transferred, 0));
	return n;
}

KvcL2TaskId
kvc_adapter_submit_lookup(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n)
{
	kvc_lock_assert_none_held("submit_lookup_and_lock_task");
	return slot->adapter->ops->submit_lookup_and_lock_task(slot->adapter, keys, n);
}

/* Why a key was not asked for only the adapter knows, and notes it; but a probe must end. */
static void
note_lookup(KvcAdapterSlot *slot, const KvcBitmap *found, const KvcL2ObjectInfo *info, size_t n)
{
	size_t n_asked = 0;
	for (size_t i = 0; i < n; i++)
		n_asked += kvc_bitmap_test(found, i) || info[i].mtime_ns != KVC_L2_NOT_ASKED;
	kvc_adapter_health_note(&slot->health, n_asked == n);
	if (n_asked > 0)
		note_reached(slot, 0);
	else if (kvc_adapter_is_unreachable(slot))
		kvc_breaker_note(slot->breaker, -ENOTCONN);
}

int
kvc_adapter_query_lookup(
	KvcAdapterSlot *slot, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info, size_t n)
{
	kvc_lock_assert_none_held("query_lookup_and_lock_result");
	int rc = slot->adapter->ops->query_lookup_and_lock_result(slot->adapter, id, found, info);
	if (rc == 1)
		note_lookup(slot, found, info, n);
	return rc;
}

void
kvc_adapter_unlock(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n)
{
	kvc_lock_assert_none_held("submit_unlock");
	slot->adapter->ops->submit_unlock(slot->adapter, keys, n);
}

KvcL2TaskId
kvc_adapter_submit_load(KvcAdapterSlot *slot, KvcObjectKey *key, const KvcMemoryObj *object)
{
	kvc_lock_assert_none_held("submit_load_task");
	return slot->adapter->ops->submit_load_task(slot->adapter, &key, object, 1);
}

int
kvc_adapter_query_load(KvcAdapterSlot *slot, KvcL2TaskId id, KvcBitmap *loaded)
{
	kvc_lock_assert_none_held("query_load_result");
	int rc = slot->adapter->ops->query_load_result(slot->adapter, id, loaded);
	bool is_loaded = rc == 1 && kvc_bitmap_test(loaded, 0);
	if (rc == 1)
		kvc_adapter_health_note(&slot->health, is_loaded);
	if (is_loaded)
		note_reached(slot, 0);
	return rc;
}

int
kvc_adapter_delete(KvcAdapterSlot *slot, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	kvc_lock_assert_none_held("delete_keys");
	if (!kvc_adapter_admits(slot))
		return -EHOSTDOWN;
	return note_call(slot, slot->adapter->ops->delete_keys(slot->adapter, keys, n, deleted));
}

int
kvc_adapter_rename(KvcAdapterSlot *slot, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	kvc_lock_assert_none_held("rename_key");
	if (!kvc_adapter_admits(slot))
		return -EHOSTDOWN;
	return note_call(slot, slot->adapter->ops->rename_key(slot->adapter, old_key, new_key));
}

int
kvc_adapter_set_attributes(KvcAdapterSlot *slot,
			   KvcObjectKey *key,
			   const KvcObjectAttributes *attributes)
{
	kvc_lock_assert_none_held("set_attributes");
	if (!kvc_adapter_admits(slot))
		return -EHOSTDOWN;
	return note_call(slot, slot->adapter->ops->set_attributes(slot->adapter, key, attributes));
}

ssize_t
kvc_adapter_list(KvcAdapterSlot *slot,
		 const KvcKeyScope *scope,
		 char **cursor,
		 KvcL2ListEntry *entries,
		 size_t max)
{
	kvc_lock_assert_none_held("list");
	ssize_t n = slot->adapter->ops->list(slot->adapter, scope, cursor, entries, max);
	note_call(slot, (int)MIN(n, 0));
	return n;
}

int
kvc_adapter_get_changes(KvcAdapterSlot *slot,
			const KvcKeyScope *scope,
			uint64_t *stamp,
			int64_t *changed_ns)
{
	kvc_lock_assert_none_held("get_changes");
	if (!kvc_adapter_admits(slot))
		return -EHOSTDOWN;
	return note_call(slot,
			 slot->adapter->ops->get_changes(slot->adapter, scope, stamp, changed_ns));
}

bool
kvc_adapter_usage(KvcAdapterSlot *slot, KvcL2Usage *usage)
{
	kvc_lock_assert_none_held("usage");
	*usage = (KvcL2Usage){0};
	if (!slot->adapter->ops->usage)
		return false;
	slot->adapter->ops->usage(slot->adapter, usage);
	return true;
}

void
kvc_adapter_describe(KvcAdapterSlot *slot, KvcDescribeFunc func, void *user)
{
	kvc_lock_assert_none_held("describe");
	slot->adapter->ops->describe(slot->adapter, func, user);
}
