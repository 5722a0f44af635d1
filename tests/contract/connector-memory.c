/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The smallest store that is a whole adapter by the connector framework: a table of the process.
 * The contract suite opens it as a module out of tree; the test of the framework includes it and
 * lets it fail.
 */

#include <errno.h>
#include <pthread.h>
#include <string.h>

#include <kvcache/connector.h>
#include <kvcache/registry.h>

typedef struct MemoryStore {
	pthread_mutex_t lock;
	GHashTable *values; /* name -> GBytes */
	/* For the test of the framework. */
	int connect_error; /* -errno of every connect, or 0 */
	int fail_calls;	   /* so many calls end with ECONNRESET */
	int is_hanging;	   /* calls wait */
	unsigned connects, calls;
} MemoryStore;

typedef struct MemoryConnection {
	MemoryStore *store;
	int is_interrupted;
} MemoryConnection;

static MemoryStore *memory_last; /* the one opened last */

static int
memory_connect(void *user, void **connection, int64_t deadline_ns)
{
	MemoryStore *store = user;
	int rc = g_atomic_int_get(&store->connect_error);

	g_atomic_int_inc(&store->connects);
	if (rc == 0) {
		*connection = g_new0(MemoryConnection, 1);
		((MemoryConnection *)*connection)->store = store;
	}
	return rc;
}

static void
memory_interrupt(void *user)
{
	g_atomic_int_set(&((MemoryConnection *)user)->is_interrupted, 1);
}

/* 0, or how a call ends at once. */
static int
memory_fault(MemoryConnection *connection, int64_t deadline_ns)
{
	MemoryStore *store = connection->store;

	g_atomic_int_inc(&store->calls);
	while (g_atomic_int_get(&store->is_hanging)) {
		g_usleep(1000);
		if (g_atomic_int_get(&connection->is_interrupted))
			return -ECONNABORTED;
		if (g_get_monotonic_time() * 1000 > deadline_ns)
			return -ETIMEDOUT;
	}
	if (g_atomic_int_get(&store->fail_calls) > 0) {
		g_atomic_int_add(&store->fail_calls, -1);
		return -ECONNRESET;
	}
	return 0;
}

/* Each of the calls: ONE for each item, its result is the error. */
static int
memory_call(MemoryConnection *connection,
	    KvcConnectorItem *const *items,
	    size_t n,
	    int64_t deadline_ns,
	    int (*one)(MemoryStore *store, KvcConnectorItem *item))
{
	int rc = memory_fault(connection, deadline_ns);

	if (rc < 0)
		return rc;
	pthread_mutex_lock(&connection->store->lock);
	for (size_t i = 0; i < n; i++)
		items[i]->error = one(connection->store, items[i]);
	pthread_mutex_unlock(&connection->store->lock);
	return 0;
}

static int
get_one(MemoryStore *store, KvcConnectorItem *item)
{
	GBytes *value = g_hash_table_lookup(store->values, item->name);

	if (!value || g_bytes_get_size(value) != item->object.bytes)
		return -ENOENT;
	if (item->object.bytes > 0)
		memcpy(item->object.data, g_bytes_get_data(value, NULL), item->object.bytes);
	return 0;
}

static int
set_one(MemoryStore *store, KvcConnectorItem *item)
{
	g_hash_table_replace(store->values, g_strdup(item->name),
			     g_bytes_new(item->object.data, item->object.bytes));
	return 0;
}

static int
exists_one(MemoryStore *store, KvcConnectorItem *item)
{
	GBytes *value = g_hash_table_lookup(store->values, item->name);

	if (!value)
		return -ENOENT;
	item->info.bytes = g_bytes_get_size(value);
	return 0;
}

static int
remove_one(MemoryStore *store, KvcConnectorItem *item)
{
	return g_hash_table_remove(store->values, item->name) ? 0 : -ENOENT;
}

#define CALL(name)                                                                                 \
	static int memory_##name(void *connection, KvcConnectorItem *const *items, size_t n,       \
				 int64_t deadline_ns)                                              \
	{                                                                                          \
		return memory_call(connection, items, n, deadline_ns, name##_one);                 \
	}
CALL(get)
CALL(set)
CALL(exists)
CALL(remove)

static void
memory_free(void *user)
{
	MemoryStore *store = user;

	g_hash_table_unref(store->values);
	pthread_mutex_destroy(&store->lock);
	g_free(store);
}

static const KvcConnectorOps memory_ops = {
	.struct_size = sizeof(KvcConnectorOps),
	.max_batch = 4,
	.connect = memory_connect,
	.disconnect = g_free,
	.interrupt = memory_interrupt,
	.get = memory_get,
	.set = memory_set,
	.exists = memory_exists,
	.remove = memory_remove,
	.free = memory_free,
};

static const KvcOptionSpec memory_options[] = {{.name = NULL}};
static const KvcL2AdapterOps memory_adapter_ops;

static KvcL2Adapter *
memory_open(const KvcOptions *options, GError **error)
{
	MemoryStore *store = g_new0(MemoryStore, 1);
	const KvcConnectorConfig config = {
		.adapter_ops = &memory_adapter_ops,
		.ops = &memory_ops,
		.store = store,
		.location = "memory of this process",
		.io_mode = "memory",
		.n_workers = 4,
		.max_bytes_in_flight = 64 << 20,
		.connect_timeout_ns = 1000000000,
		.request_timeout_ns = 200000000,
		.persist = kvc_options_get_bool(options, "persist_enabled"),
	};

	pthread_mutex_init(&store->lock, NULL);
	store->values = g_hash_table_new_full(g_str_hash, g_str_equal, g_free,
					      (GDestroyNotify)g_bytes_unref);
	memory_last = store;
	return kvc_connector_new(&config, error);
}

static const KvcL2AdapterOps memory_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "connector_memory",
	.summary = "a table of the process, for tests of the connector framework",
	.options = memory_options,
	.open = memory_open,
	KVC_CONNECTOR_SLOTS,
};

KVC_REGISTER(kvc_register_l2_adapter, memory_adapter_ops)
