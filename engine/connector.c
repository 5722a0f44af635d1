/* SPDX-License-Identifier: Apache-2.0 */

/* The vtable of an adapter that is a connector; its threads are in connector-work and -task. */

#include "engine/connector-private.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#define DEGRADED_NS (60 * KVC_SEC_NS)

static KvcConnector *
connector(KvcL2Adapter *adapter)
{
	return (KvcConnector *)adapter;
}

/* ---- Open and close ------------------------------------------------------------------------ */

static KvcConnector *
connector_alloc(const KvcConnectorConfig *config)
{
	KvcConnector *c = g_new0(KvcConnector, 1);

	c->base.l2.ops = config->adapter_ops;
	c->ops = config->ops;
	c->store = config->store;
	c->location = g_strdup(config->location);
	c->io_mode = g_strdup(config->io_mode);
	c->n_workers = MAX(config->n_workers, 1);
	c->n_links = c->n_workers + CONNECTOR_LOOKUP_WORKERS;
	c->max_bytes_in_flight = config->max_bytes_in_flight;
	c->connect_timeout_ns = config->connect_timeout_ns;
	c->request_timeout_ns = config->request_timeout_ns;
	c->links = g_new0(ConnectorLink, c->n_links);
	c->caller.connector = c;
	pthread_mutex_init(&c->caller_mutex, NULL);
	kvc_mutex_init(&c->lock, KVC_LOCK_LEAF);
	kvc_cond_init(&c->work);
	kvc_cond_init(&c->completed);
	c->keys = kvc_connector_keys_new();
	if (!config->persist)
		c->ours = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						(GDestroyNotify)kvc_object_key_unref, NULL);
	return c;
}

/* No thread is left. */
static void
connector_free(KvcConnector *c)
{
	if (c->ops->free)
		c->ops->free(c->store);
	kvc_task_board_free(c->base.board);
	g_hash_table_unref(c->keys);
	g_clear_pointer(&c->ours, g_hash_table_unref);
	pthread_cond_destroy(&c->completed);
	pthread_cond_destroy(&c->work);
	kvc_mutex_deinit(&c->lock);
	pthread_mutex_destroy(&c->caller_mutex);
	g_free(c->links);
	g_free(c->last_error);
	g_free(c->location);
	g_free(c->io_mode);
	g_free(c);
}

static int
start(KvcConnector *c)
{
	int rc = -pthread_create(&c->demux, NULL, kvc_connector_demux_main, c);

	c->is_demux_started = rc == 0;
	for (unsigned i = 0; rc == 0 && i < c->n_links; i++) {
		ConnectorLink *link = &c->links[i];

		link->connector = c;
		link->is_lookup = i < CONNECTOR_LOOKUP_WORKERS;
		rc = -pthread_create(&link->thread, NULL, kvc_connector_worker_main, link);
		link->is_started = rc == 0;
		if (link->is_started)
			pthread_setname_np(link->thread,
					   link->is_lookup ? "kvc-lookup" : "kvc-worker");
	}
	return rc;
}

static void
interrupt_locked(KvcConnector *c)
{
	if (!c->ops->interrupt)
		return;
	for (unsigned i = 0; i < c->n_links; i++)
		if (c->links[i].connection)
			c->ops->interrupt(c->links[i].connection);
}

/* Every task is complete afterwards. */
static void
stop(KvcConnector *c)
{
	kvc_mutex_lock(&c->lock);
	c->is_stopping = true;
	interrupt_locked(c);
	pthread_cond_broadcast(&c->work);
	kvc_mutex_unlock(&c->lock);
	for (unsigned i = 0; i < c->n_links; i++)
		if (c->links[i].is_started)
			pthread_join(c->links[i].thread, NULL);
	kvc_mutex_lock(&c->lock);
	kvc_connector_fail_queued_locked(c, -ECANCELED);
	c->is_demux_stopping = true;
	pthread_cond_signal(&c->completed);
	kvc_mutex_unlock(&c->lock);
	if (c->is_demux_started)
		pthread_join(c->demux, NULL);
}

KvcL2Adapter *
kvc_connector_new(const KvcConnectorConfig *config, GError **error)
{
	g_assert(config->ops->struct_size == sizeof(KvcConnectorOps) && config->ops->max_batch > 0);
	KvcConnector *c = connector_alloc(config);
	c->base.board = kvc_task_board_new(kvc_connector_task_clear, error);
	if (!c->base.board) {
		connector_free(c);
		return NULL;
	}
	int rc = start(c);
	if (rc == 0)
		return &c->base.l2;
	g_set_error(error, KVC_OPTIONS_ERROR, -rc, "cannot start: %s", g_strerror(-rc));
	stop(c);
	connector_free(c);
	return NULL;
}

/* ---- What blocks: in the thread of the caller ----------------------------------------------- */

/* N items of the keys that may be deleted, the others have -EBUSY. */
static void
begin_delete(KvcConnector *c, KvcObjectKey *const *keys, size_t n, KvcConnectorItem *items)
{
	kvc_mutex_lock(&c->lock);
	for (size_t i = 0; i < n; i++) {
		bool begun = kvc_connector_begin_delete_locked(c, keys[i], false);

		items[i] =
			(KvcConnectorItem){.key = keys[i], .error = begun ? -EINPROGRESS : -EBUSY};
	}
	kvc_mutex_unlock(&c->lock);
	for (size_t i = 0; i < n; i++) {
		items[i].name = kvc_store_name_format(keys[i]);
		if (!items[i].name && items[i].error == -EINPROGRESS)
			items[i].error = -ENOENT;
	}
}

/* 0 or the first error. */
static int
end_delete(KvcConnector *c, KvcConnectorItem *items, size_t n, KvcBitmap *deleted, size_t first)
{
	int rc = 0;

	kvc_mutex_lock(&c->lock);
	for (size_t i = 0; i < n; i++) {
		bool is_gone = items[i].error == 0 || items[i].error == -ENOENT;

		g_free((char *)items[i].name);
		if (items[i].error == -EBUSY)
			continue;
		if (is_gone && deleted)
			kvc_bitmap_set(deleted, first + i);
		if (is_gone && c->ours)
			g_hash_table_remove(c->ours, items[i].key);
		if (!is_gone && rc == 0)
			rc = items[i].error;
		kvc_connector_end_delete_locked(c, items[i].key);
	}
	kvc_mutex_unlock(&c->lock);
	return rc;
}

int
kvc_connector_delete_keys(KvcL2Adapter *adapter,
			  KvcObjectKey *const *keys,
			  size_t n,
			  KvcBitmap *deleted)
{
	KvcConnector *c = connector(adapter);
	size_t max = c->ops->max_batch;
	g_autofree KvcConnectorItem *items = g_new(KvcConnectorItem, MIN(n, max));
	g_autofree KvcConnectorItem **asked = g_new(KvcConnectorItem *, MIN(n, max));
	int rc = 0;

	pthread_mutex_lock(&c->caller_mutex);
	for (size_t first = 0; first < n && rc == 0; first += max) {
		size_t part = MIN(max, n - first);

		begin_delete(c, keys + first, part, items);
		for (size_t i = 0; i < part; i++)
			asked[i] = &items[i];
		kvc_connector_call(&c->caller, c->ops->remove, asked, part, 0);
		rc = end_delete(c, items, part, deleted, first);
	}
	pthread_mutex_unlock(&c->caller_mutex);
	return rc;
}

/* What this instance stored, once all else has stopped. */
static void
remove_ours(KvcConnector *c)
{
	g_autoptr(GPtrArray) keys =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	GHashTableIter iter;
	gpointer key;

	c->is_stopping = false; /* connects again */
	g_hash_table_iter_init(&iter, c->ours);
	while (g_hash_table_iter_next(&iter, &key, NULL))
		g_ptr_array_add(keys, kvc_object_key_ref(key));
	kvc_connector_delete_keys(&c->base.l2, (KvcObjectKey *const *)keys->pdata, keys->len, NULL);
}

void
kvc_connector_close(KvcL2Adapter *adapter)
{
	KvcConnector *c = connector(adapter);

	stop(c);
	if (c->ours) {
		/* Locks of tasks that nobody queries any more. */
		g_hash_table_remove_all(c->keys);
		remove_ours(c);
	}
	kvc_connector_disconnect(&c->caller);
	connector_free(c);
}

static int
rename_items(KvcConnector *c, KvcConnectorItem *old_item, KvcConnectorItem *new_item)
{
	KvcConnectorItem *asked = old_item;

	if (!old_item->name || !new_item->name)
		return old_item->name ? -EINVAL : -ENOENT;
	/* Also so that the connection is a good one: a rename cannot be repeated. */
	kvc_connector_call(&c->caller, c->ops->exists, &asked, 1, 0);
	kvc_xattrs_unref(old_item->info.xattrs);
	if (old_item->error < 0)
		return old_item->error;
	int rc = c->ops->rename(c->caller.connection, old_item, new_item,
				kvc_connector_deadline(c, 0));
	if (kvc_is_connection_error(rc) || rc == -EPROTO)
		kvc_connector_disconnect(&c->caller);
	return rc;
}

static bool
begin_rename(KvcConnector *c, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	kvc_mutex_lock(&c->lock);
	bool begun = kvc_connector_begin_delete_locked(c, old_key, true);
	if (begun && !kvc_connector_begin_delete_locked(c, new_key, true)) {
		kvc_connector_end_delete_locked(c, old_key);
		begun = false;
	}
	kvc_mutex_unlock(&c->lock);
	return begun;
}

static void
end_rename(KvcConnector *c, KvcObjectKey *old_key, KvcObjectKey *new_key, int rc)
{
	kvc_mutex_lock(&c->lock);
	kvc_connector_end_delete_locked(c, old_key);
	kvc_connector_end_delete_locked(c, new_key);
	c->n_renames += rc == 0;
	if (rc == 0 && c->ours && g_hash_table_remove(c->ours, old_key))
		g_hash_table_add(c->ours, kvc_object_key_ref(new_key));
	kvc_mutex_unlock(&c->lock);
}

int
kvc_connector_rename_key(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	KvcConnector *c = connector(adapter);
	g_autofree char *old_name = kvc_store_name_format(old_key);
	g_autofree char *new_name = kvc_store_name_format(new_key);
	KvcConnectorItem old_item = {.key = old_key, .name = old_name, .error = -EINPROGRESS};
	KvcConnectorItem new_item = {.key = new_key, .name = new_name};

	if (kvc_object_key_equal(old_key, new_key))
		return 0;
	pthread_mutex_lock(&c->caller_mutex);
	int rc = -EBUSY;
	if (begin_rename(c, old_key, new_key)) {
		rc = rename_items(c, &old_item, &new_item);
		end_rename(c, old_key, new_key, rc);
	}
	pthread_mutex_unlock(&c->caller_mutex);
	return rc;
}

int
kvc_connector_set_attributes(KvcL2Adapter *adapter,
			     KvcObjectKey *key,
			     const KvcObjectAttributes *attributes)
{
	KvcConnector *c = connector(adapter);
	g_autofree char *name = kvc_store_name_format(key);
	KvcConnectorItem item = {
		.key = key, .name = name, .object.attributes = attributes, .error = -EINPROGRESS};
	KvcConnectorItem *asked = &item;

	if (!name)
		return -ENOENT;
	pthread_mutex_lock(&c->caller_mutex);
	kvc_connector_call(&c->caller, c->ops->set_attributes, &asked, 1, 0);
	pthread_mutex_unlock(&c->caller_mutex);
	return item.error;
}

/* One try; *CURSOR is NULL when it failed. */
static ssize_t
list_once(KvcConnector *c,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max)
{
	ssize_t n = kvc_connector_connect(&c->caller);

	if (n == 0)
		n = c->ops->list(c->caller.connection, scope, cursor, entries, max,
				 kvc_connector_deadline(c, 0));
	if (n < 0)
		g_clear_pointer(cursor, g_free);
	if (kvc_is_connection_error((int)n) || n == -EPROTO)
		kvc_connector_disconnect(&c->caller);
	return n;
}

ssize_t
kvc_connector_list(KvcL2Adapter *adapter,
		   const KvcKeyScope *scope,
		   char **cursor,
		   KvcL2ListEntry *entries,
		   size_t max)
{
	KvcConnector *c = connector(adapter);
	g_autofree char *at = g_strdup(*cursor);

	pthread_mutex_lock(&c->caller_mutex);
	bool is_old = c->caller.connection;
	ssize_t n = list_once(c, scope, cursor, entries, max);
	if (n < 0 && is_old && !c->caller.connection && n != -ETIMEDOUT) {
		*cursor = g_steal_pointer(&at);
		n = list_once(c, scope, cursor, entries, max);
	}
	pthread_mutex_unlock(&c->caller_mutex);
	return n;
}

int
kvc_connector_get_changes(KvcL2Adapter *adapter,
			  const KvcKeyScope *scope,
			  uint64_t *stamp,
			  int64_t *changed_ns)
{
	int64_t period_ns = KVC_CONNECTOR_RELIST_S * KVC_SEC_NS;

	*stamp = (uint64_t)(kvc_wall_ns() / period_ns);
	*changed_ns = (int64_t)*stamp * period_ns;
	return 0;
}

/* ---- What does not block ------------------------------------------------------------------- */

KvcL2TaskId
kvc_connector_submit_store_task(KvcL2Adapter *adapter,
				KvcObjectKey *const *keys,
				const KvcMemoryObj *objects,
				size_t n)
{
	return kvc_connector_submit(connector(adapter), KVC_TASK_STORE, keys, objects, n);
}

KvcL2TaskId
kvc_connector_submit_lookup_and_lock_task(KvcL2Adapter *adapter,
					  KvcObjectKey *const *keys,
					  size_t n)
{
	return kvc_connector_submit(connector(adapter), KVC_TASK_LOOKUP, keys, NULL, n);
}

KvcL2TaskId
kvc_connector_submit_load_task(KvcL2Adapter *adapter,
			       KvcObjectKey *const *keys,
			       const KvcMemoryObj *objects,
			       size_t n)
{
	return kvc_connector_submit(connector(adapter), KVC_TASK_LOAD, keys, objects, n);
}

void
kvc_connector_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	KvcConnector *c = connector(adapter);

	kvc_mutex_lock(&c->lock);
	for (size_t i = 0; i < n; i++)
		kvc_connector_unlock_key_locked(c, keys[i]);
	kvc_mutex_unlock(&c->lock);
}

void
kvc_connector_usage(KvcL2Adapter *adapter, KvcL2Usage *usage)
{
	KvcConnector *c = connector(adapter);

	kvc_mutex_lock(&c->lock);
	*usage = c->usage;
	kvc_mutex_unlock(&c->lock);
}

static const char *
health_locked(const KvcConnector *c)
{
	bool is_failing = c->last_error_ns && kvc_now_ns() - c->last_error_ns < DEGRADED_NS;

	if (c->connect_error < 0)
		return "failed";
	for (size_t i = 0; i < KVC_TASK_KINDS; i++)
		is_failing = is_failing || c->errors[i] < 0;
	return is_failing ? "degraded" : "ok";
}

void
kvc_connector_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	KvcConnector *c = connector(adapter);

	kvc_mutex_lock(&c->lock);
	const char *health = health_locked(c);
	g_autofree char *last_error = g_strdup(c->last_error);
	const struct {
		const char *name;
		uint64_t value;
	} lines[] = {
		{"connects", c->n_connects},
		{"stores", c->n_stores},
		{"loads", c->n_loads},
		{"skipped", c->n_skipped},
		{"renames", c->n_renames},
		{"load_misses", c->n_load_misses},
		{"store_errors", c->n_errors[KVC_TASK_STORE]},
		{"lookup_errors", c->n_errors[KVC_TASK_LOOKUP]},
		{"load_errors", c->n_errors[KVC_TASK_LOAD]},
		{"bytes_in_flight", c->bytes_in_flight},
		{"locks", kvc_connector_count_locks_locked(c)},
	};
	kvc_mutex_unlock(&c->lock);

	func(user, "health", health);
	func(user, "io_mode", c->io_mode);
	func(user, "location", c->location);
	if (c->base.l2.ops->usage)
		func(user, "usage", "estimated");
	if (last_error)
		func(user, "last_error", last_error);
	if (c->ops->describe)
		c->ops->describe(c->store, func, user);
	for (size_t i = 0; i < G_N_ELEMENTS(lines); i++)
		kvc_describe_count(func, user, lines[i].name, lines[i].value);
}
