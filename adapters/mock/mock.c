/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The reference implementation of an L2 adapter: memory only, one lock, one thread.
 *
 * A submit puts a task into a queue ordered by the time at which it is due: latency, plus its bytes
 * at the bandwidth behind those of earlier tasks. The thread does the work of each task when it is
 * due and signals. What a task means is there once, in the plainest form.
 */

#include <errno.h>

#include <kvcache/registry.h>

#include "mock.h"

static const KvcOptionSpec mock_options[] = {
	{.name = "max_size_gb",
	 .type = KVC_OPTION_DOUBLE,
	 .required = true,
	 .min = 1e-9,
	 .max = 1e6,
	 .help = "capacity in GiB; the oldest objects make room"},
	{.name = "mock_bandwidth_gb",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e6,
	 .help = "GB/s that stores and loads share; 0: unlimited"},
	{.name = "latency_ms",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e6,
	 .help = "milliseconds that each task takes at least"},
	{.name = "fail_stores",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e9,
	 .help = "how many store tasks fail with EIO first (for tests)"},
	{.name = "fail_loads",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e9,
	 .help = "how many load tasks load nothing first (for tests)"},
	{.name = "store_failure_rate",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1,
	 .help = "share of store tasks that fail with EIO, at random (for tests)"},
	{.name = "load_failure_rate",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1,
	 .help = "share of load tasks that load nothing, at random (for tests)"},
	{.name = "jitter_ms",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e6,
	 .help = "milliseconds that a task takes longer at most, at random (for tests)"},
	{.name = "seed",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = UINT32_MAX,
	 .help = "of what is random (for tests)"},
	{.name = "fail_connections",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e9,
	 .help = "how many tasks and calls cannot reach the store first (for tests)"},
	{.name = "connection_failure_rate",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1,
	 .help = "share of tasks and calls that cannot reach the store, at random (for tests)"},
	{.name = NULL},
};

static void
mock_destroy(MockAdapter *mock)
{
	kvc_task_board_free(mock->base.board);
	mock_tasks_deinit(mock);
	mock_objects_deinit(mock);
	g_rand_free(mock->random);
	g_free(mock);
}

static const KvcL2AdapterOps mock_adapter_ops;

static KvcL2Adapter *
mock_open(const KvcOptions *options, GError **error)
{
	MockAdapter *mock = g_new0(MockAdapter, 1);

	mock->base.l2.ops = &mock_adapter_ops;
	mock->capacity_bytes = (uint64_t)(kvc_options_get_double(options, "max_size_gb") * GIB);
	mock->bytes_per_sec = kvc_options_get_double(options, "mock_bandwidth_gb") * 1e9;
	mock->latency_ns = (int64_t)(kvc_options_get_double(options, "latency_ms") * 1e6);
	mock->fail_stores = kvc_options_get_int(options, "fail_stores");
	mock->fail_loads = kvc_options_get_int(options, "fail_loads");
	mock->store_failure_rate = kvc_options_get_double(options, "store_failure_rate");
	mock->load_failure_rate = kvc_options_get_double(options, "load_failure_rate");
	mock->jitter_ns = kvc_options_get_double(options, "jitter_ms") * 1e6;
	mock->random = g_rand_new_with_seed((guint32)kvc_options_get_int(options, "seed"));
	mock->fail_connections = kvc_options_get_int(options, "fail_connections");
	mock->connection_failure_rate = kvc_options_get_double(options, "connection_failure_rate");
	mock_tasks_init(mock);
	mock_objects_init(mock);
	mock->base.board = kvc_task_board_new(NULL, error);
	if (!mock->base.board) {
		mock_destroy(mock);
		return NULL;
	}
	int rc = pthread_create(&mock->thread, NULL, mock_main, mock);
	if (rc > 0) {
		g_set_error(error, KVC_OPTIONS_ERROR, rc, "cannot start: %s", g_strerror(rc));
		mock_destroy(mock);
		return NULL;
	}
	pthread_setname_np(mock->thread, "kvc-mock");
	return &mock->base.l2;
}

static void
mock_close(KvcL2Adapter *adapter)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	mock->stopping = true;
	pthread_cond_signal(&mock->wake);
	pthread_mutex_unlock(&mock->lock);
	pthread_join(mock->thread, NULL);
	mock_destroy(mock);
}

static KvcL2TaskId
mock_submit_store_task(KvcL2Adapter *adapter,
		       KvcObjectKey *const *keys,
		       const KvcMemoryObj *objects,
		       size_t n)
{
	return mock_submit(adapter, KVC_TASK_STORE, keys, objects, n);
}

static KvcL2TaskId
mock_submit_lookup_and_lock_task(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return mock_submit(adapter, KVC_TASK_LOOKUP, keys, NULL, n);
}

static void
mock_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	for (size_t i = 0; i < n; i++) {
		MockRecord *record = g_hash_table_lookup(mock->records, keys[i]);

		if (record && record->locks > 0) {
			record->locks--;
			mock->n_locks--;
		}
	}
	pthread_mutex_unlock(&mock->lock);
}

static KvcL2TaskId
mock_submit_load_task(KvcL2Adapter *adapter,
		      KvcObjectKey *const *keys,
		      const KvcMemoryObj *objects,
		      size_t n)
{
	return mock_submit(adapter, KVC_TASK_LOAD, keys, objects, n);
}

static int
mock_delete_keys(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	if (mock_take_failure(mock, &mock->fail_connections, mock->connection_failure_rate))
		return -ECONNREFUSED;
	pthread_mutex_lock(&mock->lock);
	for (size_t i = 0; i < n; i++) {
		MockRecord *record = g_hash_table_lookup(mock->records, keys[i]);

		if (record && (record->locks > 0 || record->stores > 0))
			continue;
		if (record)
			mock_drop_data_locked(mock, record);
		kvc_bitmap_set(deleted, i);
	}
	pthread_mutex_unlock(&mock->lock);
	return 0;
}

static int
mock_rename_key(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	if (mock_take_failure(mock, &mock->fail_connections, mock->connection_failure_rate))
		return -ECONNREFUSED;
	pthread_mutex_lock(&mock->lock);
	int rc = mock_rename_object_locked(mock, old_key, new_key);
	pthread_mutex_unlock(&mock->lock);
	return rc;
}

static int
mock_set_attributes(KvcL2Adapter *adapter, KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	if (mock_take_failure(mock, &mock->fail_connections, mock->connection_failure_rate))
		return -ECONNREFUSED;
	pthread_mutex_lock(&mock->lock);
	MockRecord *record = mock_find_stored_locked(mock, key);
	if (record)
		mock_set_attributes_locked(record, attributes);
	pthread_mutex_unlock(&mock->lock);
	return record ? 0 : -ENOENT;
}

/* The cursor is the sequence number of the last entry of the page. */
static ssize_t
mock_list(KvcL2Adapter *adapter,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max)
{
	MockAdapter *mock = (MockAdapter *)adapter;
	MockRecord after = {.sequence = *cursor ? g_ascii_strtoull(*cursor, NULL, 10) : 0};
	size_t n = 0;

	g_clear_pointer(cursor, g_free);
	pthread_mutex_lock(&mock->lock);
	GTreeNode *node = g_tree_upper_bound(mock->by_sequence, &after);
	for (; node && n < max; node = g_tree_node_next(node)) {
		MockRecord *record = g_tree_node_key(node);

		after.sequence = record->sequence;
		if (scope && record->key->scope != scope)
			continue;
		entries[n].key = kvc_object_key_ref(record->key);
		entries[n++].info = mock_get_info_locked(record);
	}
	if (node)
		*cursor = g_strdup_printf("%" G_GUINT64_FORMAT, after.sequence);
	pthread_mutex_unlock(&mock->lock);
	return (ssize_t)n;
}

static void
mock_usage(KvcL2Adapter *adapter, KvcL2Usage *usage)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	usage->bytes_used = mock->bytes_used;
	usage->capacity_bytes = mock->capacity_bytes;
	usage->objects = (uint64_t)g_tree_nnodes(mock->by_sequence);
	pthread_mutex_unlock(&mock->lock);
}

static void
mock_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	uint64_t stores = mock->n_stores, loads = mock->n_loads, skipped = mock->n_skipped;
	uint64_t load_misses = mock->n_load_misses, evicted = mock->n_evicted;
	uint64_t locks = mock->n_locks;
	pthread_mutex_unlock(&mock->lock);

	func(user, "health", "ok");
	func(user, "io_mode", "memory");
	func(user, "location", "memory of this process");
	kvc_describe_count(func, user, "stores", stores);
	kvc_describe_count(func, user, "loads", loads);
	kvc_describe_count(func, user, "skipped", skipped);
	kvc_describe_count(func, user, "load_misses", load_misses);
	kvc_describe_count(func, user, "evicted", evicted);
	kvc_describe_count(func, user, "locks", locks);
}

static const KvcL2AdapterOps mock_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "mock",
	.summary = "memory of the daemon, with bandwidth, latency and failures, for tests",
	.options = mock_options,
	.open = mock_open,
	.close = mock_close,
	KVC_TASK_BOARD_SLOTS,
	.submit_store_task = mock_submit_store_task,
	.submit_lookup_and_lock_task = mock_submit_lookup_and_lock_task,
	.submit_unlock = mock_submit_unlock,
	.submit_load_task = mock_submit_load_task,
	.delete_keys = mock_delete_keys,
	.rename_key = mock_rename_key,
	.set_attributes = mock_set_attributes,
	.list = mock_list,
	.usage = mock_usage,
	.describe = mock_describe,
};

KVC_REGISTER(kvc_register_l2_adapter, mock_adapter_ops)
