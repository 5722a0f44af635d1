/* SPDX-License-Identifier: Apache-2.0 */

/* Tasks that are submitted, waited for and queried, as the engine does it. */

#include "adapter-fixture.h"

#include <poll.h>

void
await_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&event, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

bool
has_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	return poll(&event, 1, 0) == 1;
}

/* ---- Stores -------------------------------------------------------------------------------- */

int64_t
await_store(const Subject *subject, KvcL2TaskId id)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcL2StoreResult result = {0};

	assert_int_not_equal(id, 0);
	while (ops->pop_completed_store_tasks(subject->adapter, &result, 1) == 0)
		await_event(ops->get_store_event_fd(subject->adapter));
	assert_int_equal(result.task_id, id);
	assert_int_equal(ops->pop_completed_store_tasks(subject->adapter, &result, 1), 0);
	return result.bytes_transferred;
}

int64_t
store_many(const Subject *subject,
	   KvcObjectKey *const *keys,
	   const KvcMemoryObj *memories,
	   size_t n)
{
	return await_store(subject,
			   subject->ops->submit_store_task(subject->adapter, keys, memories, n));
}

int64_t
store(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *memory)
{
	return store_many(subject, &key, memory, 1);
}

/* ---- Lookups ------------------------------------------------------------------------------- */

KvcBitmap *
await_lookup(const Subject *subject, KvcL2TaskId id, size_t n, KvcL2ObjectInfo *info)
{
	const KvcL2AdapterOps *ops = subject->ops;
	g_autofree KvcL2ObjectInfo *own = g_new0(KvcL2ObjectInfo, n);
	KvcBitmap *found = kvc_bitmap_new(n);
	int rc;

	assert_int_not_equal(id, 0);
	while ((rc = ops->query_lookup_and_lock_result(subject->adapter, id, found, own)) == 0)
		await_event(ops->get_lookup_and_lock_event_fd(subject->adapter));
	assert_int_equal(rc, 1);
	for (size_t i = 0; i < n; i++) {
		kvc_xattrs_unref(g_steal_pointer(&own[i].xattrs));
		if (!kvc_bitmap_test(found, i)) /* every store can be asked here */
			assert_int_equal(own[i].mtime_ns, 0);
	}
	if (info)
		memcpy(info, own, n * sizeof(*info));
	rc = ops->query_lookup_and_lock_result(subject->adapter, id, found, own);
	assert_int_equal(rc, -ENOENT);
	return found;
}

KvcBitmap *
lookup_many(const Subject *subject, KvcObjectKey *const *keys, size_t n, KvcL2ObjectInfo *info)
{
	KvcL2TaskId id = subject->ops->submit_lookup_and_lock_task(subject->adapter, keys, n);

	return await_lookup(subject, id, n, info);
}

bool
lookup_and_lock(const Subject *subject, KvcObjectKey *key, uint64_t *bytes)
{
	KvcL2ObjectInfo info = {0};
	g_autoptr(KvcBitmap) found = lookup_many(subject, &key, 1, &info);

	if (bytes)
		*bytes = info.bytes;
	return kvc_bitmap_test(found, 0);
}

void
unlock(const Subject *subject, KvcObjectKey *key)
{
	subject->ops->submit_unlock(subject->adapter, &key, 1);
}

bool
is_found(const Subject *subject, KvcObjectKey *key)
{
	bool is_there = lookup_and_lock(subject, key, NULL);

	if (is_there)
		unlock(subject, key);
	return is_there;
}

/* ---- Loads --------------------------------------------------------------------------------- */

KvcBitmap *
await_load(const Subject *subject, KvcL2TaskId id, size_t n)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcBitmap *loaded = kvc_bitmap_new(n);
	int rc;

	assert_int_not_equal(id, 0);
	while ((rc = ops->query_load_result(subject->adapter, id, loaded)) == 0)
		await_event(ops->get_load_event_fd(subject->adapter));
	assert_int_equal(rc, 1);
	assert_int_equal(ops->query_load_result(subject->adapter, id, loaded), -ENOENT);
	return loaded;
}

KvcBitmap *
load_many(const Subject *subject, KvcObjectKey *const *keys, const KvcMemoryObj *memories, size_t n)
{
	KvcL2TaskId id = subject->ops->submit_load_task(subject->adapter, keys, memories, n);

	return await_load(subject, id, n);
}

bool
load(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *memory)
{
	g_autoptr(KvcBitmap) loaded = load_many(subject, &key, memory, 1);

	return kvc_bitmap_test(loaded, 0);
}

void
assert_loads(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *want)
{
	KvcMemoryObj memory = memory_new(want->bytes, ~0u);

	assert_true(load(subject, key, &memory));
	assert_true(memory_equal(&memory, want));
	memory_free(&memory);
}

void
assert_misses(const Subject *subject, KvcObjectKey *key, size_t bytes)
{
	KvcMemoryObj memory = memory_new(bytes, ~0u);

	assert_false(load(subject, key, &memory));
	memory_free(&memory);
}

/* ---- Deletions and listings ---------------------------------------------------------------- */

bool
delete_key(const Subject *subject, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);

	assert_int_equal(subject->ops->delete_keys(subject->adapter, &key, 1, deleted), 0);
	return kvc_bitmap_test(deleted, 0);
}

unsigned
count_listed(const Subject *subject,
	     const KvcKeyScope *scope,
	     KvcObjectKey *key,
	     size_t bytes,
	     size_t page)
{
	g_autofree KvcL2ListEntry *entries = g_new0(KvcL2ListEntry, page);
	char *cursor = NULL;
	unsigned count = 0;

	do {
		ssize_t n = subject->ops->list(subject->adapter, scope, &cursor, entries, page);

		assert_in_range(n, 0, page);
		for (ssize_t i = 0; i < n; i++) {
			if (kvc_object_key_equal(entries[i].key, key)) {
				count++;
				assert_int_equal(entries[i].info.bytes, bytes);
			}
			kvc_xattrs_unref(entries[i].info.xattrs);
			kvc_object_key_unref(entries[i].key);
		}
	} while (cursor);
	return count;
}

void
list_page(const Subject *subject,
	  const KvcKeyScope *scope,
	  char **cursor,
	  size_t page,
	  GPtrArray *keys)
{
	g_autofree KvcL2ListEntry *entries = g_new0(KvcL2ListEntry, page);
	ssize_t n = subject->ops->list(subject->adapter, scope, cursor, entries, page);

	assert_in_range(n, 0, page);
	for (ssize_t i = 0; i < n; i++) {
		kvc_xattrs_unref(entries[i].info.xattrs);
		g_ptr_array_add(keys, entries[i].key);
	}
}

GPtrArray *
list_keys(const Subject *subject, const KvcKeyScope *scope, size_t page)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	char *cursor = NULL;

	do
		list_page(subject, scope, &cursor, page, keys);
	while (cursor);
	return keys;
}
