/* SPDX-License-Identifier: Apache-2.0 */

/* What is particular to the mock: capacity, eviction, bandwidth, failures; and the contract once.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include <kvcache/io.h>
#include <kvcache/registry.h>

#define MANY 100

typedef struct Mock {
	KvcL2Adapter *adapter;
	KvcOptions *options;
	KvcKeyScope *scope, *plain_scope;
} Mock;

static Mock
mock_new(const char *specification)
{
	Mock mock = {0};
	GError *error = NULL;

	mock.adapter = kvc_l2_adapter_open(specification, &mock.options, &error);
	if (!mock.adapter)
		fail_msg("%s", error->message);
	mock.scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);
	mock.plain_scope = kvc_key_scope_new_plain("some/directory", NULL);
	return mock;
}

static void
mock_free(Mock *mock)
{
	mock->adapter->ops->close(mock->adapter);
	kvc_options_free(mock->options);
	kvc_key_scope_unref(mock->scope);
	kvc_key_scope_unref(mock->plain_scope);
}

static KvcObjectKey *
key_new(const Mock *mock, KvcSpace space, uint32_t number)
{
	KvcKeyScope *scope = space == KVC_SPACE_PLAIN ? mock->plain_scope : mock->scope;
	char name[16];
	int len = snprintf(name, sizeof(name), "n%07u", number);

	return kvc_object_key_new(scope, space, name, (size_t)len, NULL);
}

static void
await_event(int fd)
{
	struct pollfd poll_fd = {fd, POLLIN, 0};

	assert_int_equal(poll(&poll_fd, 1, 20000), 1);
	kvc_eventfd_drain(fd);
}

static int64_t
await_store(const Mock *mock, KvcL2TaskId id)
{
	KvcL2StoreResult result;

	await_event(mock->adapter->ops->get_store_event_fd(mock->adapter));
	assert_int_equal(mock->adapter->ops->pop_completed_store_tasks(mock->adapter, &result, 1),
			 1);
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

/* Stores BYTES times FILL under the key. */
static int64_t
store(const Mock *mock, KvcSpace space, uint32_t number, size_t bytes, char fill)
{
	g_autoptr(KvcObjectKey) key = key_new(mock, space, number);
	g_autofree char *data = g_malloc(bytes + 1);
	KvcMemoryObj object = {data, bytes, kvc_io_align_up(bytes)};

	memset(data, fill, bytes);
	return await_store(mock,
			   mock->adapter->ops->submit_store_task(mock->adapter, &key, &object, 1));
}

/* Loads BYTES; the byte they consist of, or -1. */
static int
load(const Mock *mock, KvcSpace space, uint32_t number, size_t bytes)
{
	const KvcL2AdapterOps *ops = mock->adapter->ops;
	g_autoptr(KvcObjectKey) key = key_new(mock, space, number);
	g_autofree char *data = g_malloc0(bytes + 1);
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	KvcMemoryObj object = {data, bytes, kvc_io_align_up(bytes)};
	KvcL2TaskId id = ops->submit_load_task(mock->adapter, &key, &object, 1);

	await_event(ops->get_load_event_fd(mock->adapter));
	assert_int_equal(ops->query_load_result(mock->adapter, id, loaded), 1);
	assert_int_equal(ops->query_load_result(mock->adapter, id, loaded), -ENOENT);
	if (!kvc_bitmap_test(loaded, 0))
		return -1;
	for (size_t i = 1; i < bytes; i++)
		assert_int_equal(data[i], data[0]);
	return data[0];
}

static bool
lookup_and_lock(const Mock *mock, uint32_t number, KvcL2ObjectInfo *info)
{
	const KvcL2AdapterOps *ops = mock->adapter->ops;
	g_autoptr(KvcObjectKey) key = key_new(mock, KVC_SPACE_CHUNK, number);
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2TaskId id = ops->submit_lookup_and_lock_task(mock->adapter, &key, 1);

	await_event(ops->get_lookup_and_lock_event_fd(mock->adapter));
	assert_int_equal(ops->query_lookup_and_lock_result(mock->adapter, id, found, info), 1);
	return kvc_bitmap_test(found, 0);
}

static void
unlock(const Mock *mock, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_new(mock, KVC_SPACE_CHUNK, number);

	mock->adapter->ops->submit_unlock(mock->adapter, &key, 1);
}

static bool
delete_key(const Mock *mock, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_new(mock, KVC_SPACE_CHUNK, number);
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);

	assert_int_equal(mock->adapter->ops->delete_keys(mock->adapter, &key, 1, deleted), 0);
	return kvc_bitmap_test(deleted, 0);
}

static KvcL2Usage
usage(const Mock *mock)
{
	KvcL2Usage usage = {0};

	mock->adapter->ops->usage(mock->adapter, &usage);
	return usage;
}

static void
test_store_and_load(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");

	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 1000, 'a'), 1000);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 1000), 'a');
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 999), -1);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 1001), -1);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 2, 1000), -1);
	assert_int_equal(load(&mock, KVC_SPACE_PREFIX, 1, 1000), -1);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 3, 0, 'x'), 0);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 3, 0), 0);
	assert_int_equal(usage(&mock).bytes_used, 1000);
	assert_int_equal(usage(&mock).objects, 2);
	mock_free(&mock);
}

static void
test_chunks_are_skipped_others_replaced(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");

	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 100, 'a'), 100);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 100, 'b'), 0);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 100), 'a');
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 200, 'c'), 200);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 200), 'c');
	for (KvcSpace space = KVC_SPACE_PLAIN; space <= KVC_SPACE_PREFIX; space++) {
		assert_int_equal(store(&mock, space, 1, 100, 'a'), 100);
		assert_int_equal(store(&mock, space, 1, 100, 'b'), 100);
		assert_int_equal(load(&mock, space, 1, 100), 'b');
	}
	assert_int_equal(usage(&mock).bytes_used, 400);
	mock_free(&mock);
}

static void
test_locks_against_delete(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");
	KvcL2ObjectInfo info = {0};

	assert_false(lookup_and_lock(&mock, 1, &info));
	store(&mock, KVC_SPACE_CHUNK, 1, 100, 'a');
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_int_equal(info.bytes, 100);
	assert_true(info.mtime_ns > 0);
	assert_false(delete_key(&mock, 1));
	unlock(&mock, 1);
	assert_false(delete_key(&mock, 1));
	unlock(&mock, 1);
	unlock(&mock, 1);
	unlock(&mock, 2);
	assert_true(delete_key(&mock, 1));
	assert_true(delete_key(&mock, 1));
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 100), -1);
	assert_int_equal(usage(&mock).objects, 0);
	mock_free(&mock);
}

static int
rename_plain(const Mock *mock, uint32_t from, uint32_t to)
{
	g_autoptr(KvcObjectKey) old_key = key_new(mock, KVC_SPACE_PLAIN, from);
	g_autoptr(KvcObjectKey) new_key = key_new(mock, KVC_SPACE_PLAIN, to);

	return mock->adapter->ops->rename_key(mock->adapter, old_key, new_key);
}

static void
test_rename(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");

	assert_int_equal(rename_plain(&mock, 1, 2), -ENOENT);
	assert_int_equal(rename_plain(&mock, 1, 1), -ENOENT);
	store(&mock, KVC_SPACE_PLAIN, 1, 100, 'a');
	assert_int_equal(rename_plain(&mock, 1, 1), 0);
	assert_int_equal(rename_plain(&mock, 1, 2), 0);
	assert_int_equal(load(&mock, KVC_SPACE_PLAIN, 1, 100), -1);
	assert_int_equal(load(&mock, KVC_SPACE_PLAIN, 2, 100), 'a');

	/* In the place of what is there. */
	store(&mock, KVC_SPACE_PLAIN, 1, 30, 'b');
	assert_int_equal(rename_plain(&mock, 1, 2), 0);
	assert_int_equal(load(&mock, KVC_SPACE_PLAIN, 2, 30), 'b');
	assert_int_equal(usage(&mock).objects, 1);
	assert_int_equal(usage(&mock).bytes_used, 30);
	mock_free(&mock);
}

/* Neither key may be locked. */
static void
test_rename_respects_locks(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");
	g_autoptr(KvcObjectKey) locked = key_new(&mock, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcObjectKey) other = key_new(&mock, KVC_SPACE_CHUNK, 2);
	KvcL2ObjectInfo info;

	store(&mock, KVC_SPACE_CHUNK, 1, 10, 'a');
	store(&mock, KVC_SPACE_CHUNK, 2, 20, 'b');
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_int_equal(mock.adapter->ops->rename_key(mock.adapter, locked, other), -EBUSY);
	assert_int_equal(mock.adapter->ops->rename_key(mock.adapter, other, locked), -EBUSY);
	unlock(&mock, 1);
	assert_int_equal(mock.adapter->ops->rename_key(mock.adapter, other, locked), 0);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 20), 'b');
	mock_free(&mock);
}

static void
test_rename_respects_stores_in_flight(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1,latency_ms=50");
	g_autoptr(KvcObjectKey) key = key_new(&mock, KVC_SPACE_PLAIN, 1);
	char data[10] = "123456789";
	KvcMemoryObj object = {data, sizeof(data), 4096};
	KvcL2TaskId id = mock.adapter->ops->submit_store_task(mock.adapter, &key, &object, 1);

	assert_int_equal(rename_plain(&mock, 1, 2), -EBUSY);
	assert_int_equal(rename_plain(&mock, 2, 1), -EBUSY);
	assert_int_equal(await_store(&mock, id), sizeof(data));
	assert_int_equal(rename_plain(&mock, 1, 2), 0);
	mock_free(&mock);
}

/* 0.00001 GiB is 10737 bytes. */
static void
test_eviction(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.00001");
	KvcL2ObjectInfo info;

	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 5000, 'a'), 5000);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 2, 5000, 'b'), 5000);
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 3, 5000, 'c'), 5000);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 5000), 'a');
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 2, 5000), -1);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 4, 6000, 'd'), -ENOSPC);
	unlock(&mock, 1);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 4, 6000, 'd'), 6000);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 5, 20000, 'e'), -ENOSPC);
	assert_true(usage(&mock).bytes_used <= usage(&mock).capacity_bytes);
	mock_free(&mock);
}

static void
test_failures(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1,fail_stores=2,fail_loads=1");

	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 100, 'a'), -EIO);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 100, 'a'), -EIO);
	assert_int_equal(usage(&mock).objects, 0);
	assert_int_equal(store(&mock, KVC_SPACE_CHUNK, 1, 100, 'a'), 100);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 100), -1);
	assert_int_equal(load(&mock, KVC_SPACE_CHUNK, 1, 100), 'a');
	mock_free(&mock);
}

static void
test_random_failures(void **state)
{
	Mock mock =
		mock_new("type=mock,max_size_gb=0.1,store_failure_rate=0.5,load_failure_rate=0.5,"
			 "jitter_ms=1,seed=7");
	int failed_stores = 0, failed_loads = 0;

	for (unsigned i = 0; i < 64; i++) {
		int64_t rc = store(&mock, KVC_SPACE_CHUNK, i, 100, 'a');

		assert_true(rc == 100 || rc == -EIO);
		failed_stores += rc < 0;
		failed_loads += rc > 0 && load(&mock, KVC_SPACE_CHUNK, i, 100) < 0;
	}
	/* Whatever the seed makes of it: neither never nor always. */
	assert_in_range(failed_stores, 1, 63);
	assert_in_range(failed_loads, 1, 63 - failed_stores);
	mock_free(&mock);
}

/* Latency is per task, bandwidth is shared: two stores of 10 MB at 0.1 GB/s take 0.2 s. */
static void
test_time(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1,mock_bandwidth_gb=0.1,latency_ms=30");
	g_autoptr(KvcObjectKey) keys0 = key_new(&mock, KVC_SPACE_CHUNK, 0);
	g_autoptr(KvcObjectKey) keys1 = key_new(&mock, KVC_SPACE_CHUNK, 1);
	g_autofree char *data = g_malloc0(10000000);
	KvcMemoryObj object = {data, 10000000, kvc_io_align_up(10000000)};
	KvcL2ObjectInfo info;
	int64_t start = g_get_monotonic_time();

	KvcL2TaskId a = mock.adapter->ops->submit_store_task(mock.adapter, &keys0, &object, 1);
	KvcL2TaskId b = mock.adapter->ops->submit_store_task(mock.adapter, &keys1, &object, 1);
	assert_true(g_get_monotonic_time() - start < 90000);
	assert_false(lookup_and_lock(&mock, 0, &info)); /* overtakes the stores */
	assert_true(g_get_monotonic_time() - start >= 30000);
	assert_int_equal(await_store(&mock, a), 10000000);
	assert_int_equal(await_store(&mock, b), 10000000);
	assert_true(g_get_monotonic_time() - start >= 230000);
	mock_free(&mock);
}

static void
test_delete_skips_stores_in_flight(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1,latency_ms=50");
	g_autoptr(KvcObjectKey) key = key_new(&mock, KVC_SPACE_CHUNK, 1);
	char data[10] = "123456789";
	KvcMemoryObj object = {data, sizeof(data), 4096};
	KvcL2TaskId id = mock.adapter->ops->submit_store_task(mock.adapter, &key, &object, 1);

	assert_false(delete_key(&mock, 1));
	assert_int_equal(await_store(&mock, id), sizeof(data));
	assert_true(delete_key(&mock, 1));
	mock_free(&mock);
}

static void
test_list(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");
	KvcL2ListEntry entries[7];
	uint32_t seen = 0;
	char *cursor = NULL;

	for (uint32_t i = 0; i < MANY; i++)
		store(&mock, KVC_SPACE_CHUNK, i, i, 'a');
	do {
		ssize_t n = mock.adapter->ops->list(mock.adapter, mock.scope, &cursor, entries,
						    G_N_ELEMENTS(entries));

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++, seen++) {
			g_autoptr(KvcObjectKey) expected = key_new(&mock, KVC_SPACE_CHUNK, seen);

			assert_true(kvc_object_key_equal(expected, entries[i].key));
			assert_int_equal(entries[i].info.bytes, seen);
			kvc_object_key_unref(entries[i].key);
		}
	} while (cursor);
	assert_int_equal(seen, MANY);

	g_autoptr(KvcKeyScope) other = kvc_key_scope_new("other", 1, 0, NULL, NULL);
	assert_int_equal(mock.adapter->ops->list(mock.adapter, other, &cursor, entries, 7), 0);
	assert_null(cursor);
	mock_free(&mock);
}

static void
test_attributes(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");
	const KvcL2AdapterOps *ops = mock.adapter->ops;
	g_autoptr(KvcObjectKey) key = key_new(&mock, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcXattrs) xattrs = NULL;
	KvcObjectAttributes attributes = {
		.mtime_ns = 5, .mode = 0100600, .uid = 7, .gid = 8, .version_ns = 9};
	char data[10] = "123456789";
	KvcMemoryObj object = {data, sizeof(data), 4096, &attributes};
	KvcL2ObjectInfo info = {0};
	KvcL2ListEntry entry;
	char *cursor = NULL;

	assert_int_equal(kvc_xattrs_set(NULL, "user.x", "1", 1, &xattrs), 0);
	assert_int_equal(ops->set_attributes(mock.adapter, key, &attributes), -ENOENT);
	await_store(&mock, ops->submit_store_task(mock.adapter, &key, &object, 1));
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_int_equal(info.mode, 0100600);
	assert_int_equal(info.mtime_ns, 5);
	assert_int_equal(info.version_ns, 9);
	assert_null(info.xattrs);
	attributes.version_ns = 0; /* stays with the bytes */
	attributes.xattrs = xattrs;
	attributes.uid = 9;
	assert_int_equal(ops->set_attributes(mock.adapter, key, &attributes), 0);
	assert_int_equal(ops->list(mock.adapter, NULL, &cursor, &entry, 1), 1);
	assert_int_equal(entry.info.uid, 9);
	assert_int_equal(entry.info.version_ns, 9);
	assert_non_null(kvc_xattrs_get(entry.info.xattrs, "user.x", NULL));
	kvc_xattrs_unref(entry.info.xattrs);
	kvc_object_key_unref(entry.key);
	g_free(cursor);
	/* The same chunk again is skipped, and brings its attributes. */
	attributes.uid = 10;
	assert_int_equal(await_store(&mock, ops->submit_store_task(mock.adapter, &key, &object, 1)),
			 0);
	assert_true(lookup_and_lock(&mock, 1, &info));
	assert_int_equal(info.uid, 10);
	kvc_xattrs_unref(info.xattrs);
	mock_free(&mock);
}

/* Nothing is touched after close, whatever was pending. */
static void
test_close_with_pending_tasks(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1,latency_ms=60000");
	g_autoptr(KvcObjectKey) key = key_new(&mock, KVC_SPACE_CHUNK, 1);
	char *data = g_malloc0(10);
	KvcMemoryObj object = {data, 10, 4096};
	g_autoptr(KvcBitmap) bits = kvc_bitmap_new(1);

	mock.adapter->ops->submit_store_task(mock.adapter, &key, &object, 1);
	KvcL2TaskId id = mock.adapter->ops->submit_load_task(mock.adapter, &key, &object, 1);
	mock.adapter->ops->submit_lookup_and_lock_task(mock.adapter, &key, 1);
	assert_int_equal(mock.adapter->ops->query_load_result(mock.adapter, id, bits), 0);
	mock_free(&mock);
	g_free(data);
}

static void
note_line(void *user, const char *name, const char *value)
{
	g_hash_table_insert(user, g_strdup(name), g_strdup(value));
}

static void
test_describe(void **state)
{
	Mock mock = mock_new("type=mock,max_size_gb=0.1");
	g_autoptr(GHashTable) lines =
		g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);

	store(&mock, KVC_SPACE_CHUNK, 1, 10, 'a');
	mock.adapter->ops->describe(mock.adapter, note_line, lines);
	assert_string_equal(g_hash_table_lookup(lines, "health"), "ok");
	assert_string_equal(g_hash_table_lookup(lines, "stores"), "1");
	assert_non_null(g_hash_table_lookup(lines, "io_mode"));
	assert_non_null(g_hash_table_lookup(lines, "location"));
	mock_free(&mock);
}

static void
test_options(void **state)
{
	KvcOptions *options = NULL;
	g_autoptr(GError) error = NULL;

	assert_null(kvc_l2_adapter_open("type=mock", &options, &error));
	assert_non_null(strstr(error->message, "max_size_gb"));
	g_clear_error(&error);
	assert_null(kvc_l2_adapter_open("type=mock,max_size_gb=0", &options, &error));
	assert_non_null(error);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_store_and_load),
		cmocka_unit_test(test_chunks_are_skipped_others_replaced),
		cmocka_unit_test(test_locks_against_delete),
		cmocka_unit_test(test_rename),
		cmocka_unit_test(test_rename_respects_locks),
		cmocka_unit_test(test_rename_respects_stores_in_flight),
		cmocka_unit_test(test_eviction),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_random_failures),
		cmocka_unit_test(test_time),
		cmocka_unit_test(test_delete_skips_stores_in_flight),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_attributes),
		cmocka_unit_test(test_close_with_pending_tasks),
		cmocka_unit_test(test_describe),
		cmocka_unit_test(test_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
