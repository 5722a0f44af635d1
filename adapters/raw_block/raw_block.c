/* SPDX-License-Identifier: Apache-2.0 */

/* The L2 adapter "raw_block": objects in the slots of a block device or a file. See README.md. */

#include <errno.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/registry.h>

#include "raw_block.h"

static const KvcOptionSpec raw_block_options[] = {
	{.name = "device_path",
	 .type = KVC_OPTION_STRING,
	 .required = true,
	 .help = "block device, or file, of the objects (absolute)"},
	{.name = "capacity_bytes",
	 .type = KVC_OPTION_SIZE,
	 .help = "bytes of the device that are used when it is formatted; a file is made with "
		 "them"},
	{.name = "slot_bytes",
	 .type = KVC_OPTION_SIZE,
	 .min = RAW_BLOCK_SLOT_MIN_BYTES,
	 .max = (double)RAW_BLOCK_SLOT_MAX_BYTES,
	 .help = "size of a slot when the device is formatted (without it 1M)"},
	{.name = "format",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "overwrite a device that is not empty and holds no store that can be used"},
	{.name = "use_odirect",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "read and write past the page cache where that is possible"},
	{.name = "load_checkpoint_on_init",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "use the checkpoint of the index at the start, not the headers of all slots"},
	{.name = "meta_checkpoint_interval_sec",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "60",
	 .min = 0,
	 .max = 86400,
	 .help = "seconds without a change until the checkpoint is written; 0: only at the end"},
	{.name = "io_depth_bytes",
	 .type = KVC_OPTION_SIZE,
	 .default_value = "256M",
	 .min = 1 << 20,
	 .max = 1ULL << 40,
	 .help = "bytes of payload in flight"},
	{.name = "workers",
	 .type = KVC_OPTION_INT,
	 .default_value = "4",
	 .min = 1,
	 .max = 64,
	 .help = "threads that check objects and write their headers"},
	{.name = "verify_checksum",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "compare each load with the CRC32C of its store"},
	{.name = NULL},
};

static const KvcL2AdapterOps raw_block_adapter_ops;

static RawBlock *
adapter_new(const KvcOptions *options)
{
	RawBlock *rb = g_new0(RawBlock, 1);
	pthread_condattr_t monotonic;

	rb->base.ops = &raw_block_adapter_ops;
	rb->path = g_strdup(kvc_options_get_string(options, "device_path"));
	rb->verify = kvc_options_get_bool(options, "verify_checksum");
	rb->persist = kvc_options_get_bool(options, "persist_enabled");
	rb->use_checkpoint = kvc_options_get_bool(options, "load_checkpoint_on_init");
	rb->checkpoint_ns =
		(int64_t)(kvc_options_get_double(options, "meta_checkpoint_interval_sec") * 1e9);
	rb->fd = rb->lock_fd = -1;
	for (size_t i = 0; i < RAW_BLOCK_KINDS; i++)
		rb->event_fds[i] = -1;

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&rb->keeper_wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_cond_init(&rb->wake, NULL);
	pthread_cond_init(&rb->idle, NULL);
	pthread_cond_init(&rb->change_wake, NULL);
	pthread_mutex_init(&rb->tasks_lock, NULL);
	pthread_mutex_init(&rb->change_lock, NULL);
	pthread_mutex_init(&rb->lock, NULL);
	pthread_mutex_init(&rb->health_lock, NULL);
	rb->tasks = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL,
					  (GDestroyNotify)raw_block_task_free);
	g_queue_init(&rb->stored);
	raw_block_index_init(rb);
	return rb;
}

static void
adapter_free(RawBlock *rb)
{
	for (size_t i = 0; i < RAW_BLOCK_KINDS; i++)
		if (rb->event_fds[i] >= 0)
			close(rb->event_fds[i]);
	g_queue_clear_full(&rb->stored, (GDestroyNotify)raw_block_task_free);
	g_hash_table_unref(rb->tasks);
	raw_block_index_deinit(rb);
	pthread_mutex_destroy(&rb->health_lock);
	pthread_mutex_destroy(&rb->lock);
	pthread_mutex_destroy(&rb->change_lock);
	pthread_mutex_destroy(&rb->tasks_lock);
	pthread_cond_destroy(&rb->change_wake);
	pthread_cond_destroy(&rb->idle);
	pthread_cond_destroy(&rb->keeper_wake);
	pthread_cond_destroy(&rb->wake);
	raw_block_device_close(rb);
	g_free(rb->last_error);
	g_free(rb->path);
	g_free(rb);
}

static bool
fail(GError **error, int errnum, const char *what, const char *subject)
{
	g_set_error(error, KVC_OPTIONS_ERROR, errnum, "cannot %s \"%s\": %s", what, subject,
		    g_strerror(errnum));
	return false;
}

/* Starts everything that runs; what was started is stopped by stop_threads(). */
static bool
start_threads(RawBlock *rb, const KvcOptions *options, GError **error)
{
	size_t depth = kvc_options_get_size(options, "io_depth_bytes");
	unsigned workers = (unsigned)kvc_options_get_int(options, "workers");

	for (size_t i = 0; i < RAW_BLOCK_KINDS; i++) {
		rb->event_fds[i] = kvc_eventfd_new();
		if (rb->event_fds[i] < 0)
			return fail(error, -rb->event_fds[i], "make an event fd for", rb->path);
	}
	rb->io = kvc_io_new_for_file("kvc-raw-ring", depth, rb->fd, error);
	if (!rb->io)
		return false;
	/* Stores may fill half of the ring. */
	int rc = raw_block_pool_init(&rb->workers, "kvc-raw-work", workers, depth / 2);
	if (rc == 0)
		rc = raw_block_pool_init(&rb->lookups, "kvc-raw-lookup", 1, 0);
	/* The last one: it ends when the adapter is closed only. */
	if (rc == 0)
		rc = -pthread_create(&rb->keeper, NULL, raw_block_keeper_main, rb);
	if (rc < 0)
		return fail(error, -rc, "start the threads for", rb->path);
	pthread_setname_np(rb->keeper, "kvc-raw-keeper");
	return true;
}

/* Workers before the ring (they submit to it), both before either is freed (it pushes to them). */
static void
stop_threads(RawBlock *rb)
{
	if (rb->keeper)
		pthread_join(rb->keeper, NULL);
	if (rb->workers.threads)
		raw_block_pool_stop(&rb->workers);
	if (rb->lookups.threads)
		raw_block_pool_stop(&rb->lookups);
	kvc_io_free(rb->io);
	if (rb->workers.threads)
		raw_block_pool_deinit(&rb->workers);
	if (rb->lookups.threads)
		raw_block_pool_deinit(&rb->lookups);
}

static KvcL2Adapter *
raw_block_open(const KvcOptions *options, GError **error)
{
	RawBlock *rb = adapter_new(options);

	if (!raw_block_device_open(rb, options, error)) {
		adapter_free(rb);
		return NULL;
	}
	raw_block_space_init(&rb->space, (uint32_t)rb->super.n_slots);
	if (!start_threads(rb, options, error)) {
		stop_threads(rb);
		adapter_free(rb);
		return NULL;
	}
	return &rb->base;
}

static void
raw_block_close(KvcL2Adapter *adapter)
{
	RawBlock *rb = (RawBlock *)adapter;

	pthread_mutex_lock(&rb->lock);
	atomic_store(&rb->closing, true);
	pthread_cond_broadcast(&rb->wake);
	pthread_cond_signal(&rb->keeper_wake);
	pthread_mutex_unlock(&rb->lock);
	pthread_mutex_lock(&rb->tasks_lock);
	while (rb->outstanding > 0)
		pthread_cond_wait(&rb->idle, &rb->tasks_lock);
	pthread_mutex_unlock(&rb->tasks_lock);
	stop_threads(rb);
	raw_block_remove_stored(rb);
	if (rb->zombies->len > 0 && raw_block_begin_change(rb) == 0) {
		raw_block_bury_zombies(rb, NULL);
		raw_block_end_change(rb);
	}
	raw_block_checkpoint_write(rb);
	adapter_free(rb);
}

static int
raw_block_get_store_event_fd(KvcL2Adapter *adapter)
{
	return ((RawBlock *)adapter)->event_fds[RAW_BLOCK_STORE];
}

static int
raw_block_get_lookup_and_lock_event_fd(KvcL2Adapter *adapter)
{
	return ((RawBlock *)adapter)->event_fds[RAW_BLOCK_LOOKUP];
}

static int
raw_block_get_load_event_fd(KvcL2Adapter *adapter)
{
	return ((RawBlock *)adapter)->event_fds[RAW_BLOCK_LOAD];
}

static KvcL2TaskId
raw_block_submit_store_task(KvcL2Adapter *adapter,
			    KvcObjectKey *const *keys,
			    const KvcMemoryObj *objects,
			    size_t n)
{
	return raw_block_task_submit(
		raw_block_task_new((RawBlock *)adapter, RAW_BLOCK_STORE, keys, objects, n));
}

static size_t
raw_block_pop_completed_store_tasks(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	return raw_block_task_pop_stored((RawBlock *)adapter, results, max);
}

static KvcL2TaskId
raw_block_submit_lookup_and_lock_task(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return raw_block_task_submit(
		raw_block_task_new((RawBlock *)adapter, RAW_BLOCK_LOOKUP, keys, NULL, n));
}

static int
raw_block_query_lookup_and_lock_result(KvcL2Adapter *adapter,
				       KvcL2TaskId task_id,
				       KvcBitmap *found,
				       KvcL2ObjectInfo *info)
{
	int result;
	RawBlockTask *task =
		raw_block_task_take((RawBlock *)adapter, task_id, RAW_BLOCK_LOOKUP, &result);

	for (size_t i = 0; task && i < task->n; i++) {
		if (task->found[i])
			kvc_bitmap_set(found, i);
		info[i] = task->info[i]; /* of what was not found: whether it could be asked for */
		task->info[i].xattrs = NULL;
	}
	if (task)
		raw_block_task_free(task);
	return result;
}

static void
raw_block_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	RawBlock *rb = (RawBlock *)adapter;

	pthread_mutex_lock(&rb->lock);
	for (size_t i = 0; i < n; i++) {
		RawBlockNode *node = raw_block_find_locked(rb, keys[i]);

		if (!node || node->locks == 0)
			continue;
		node->locks--;
		raw_block_drop_if_idle_locked(rb, node);
	}
	pthread_mutex_unlock(&rb->lock);
}

static KvcL2TaskId
raw_block_submit_load_task(KvcL2Adapter *adapter,
			   KvcObjectKey *const *keys,
			   const KvcMemoryObj *objects,
			   size_t n)
{
	return raw_block_task_submit(
		raw_block_task_new((RawBlock *)adapter, RAW_BLOCK_LOAD, keys, objects, n));
}

static int
raw_block_query_load_result(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded)
{
	int result;
	RawBlockTask *task =
		raw_block_task_take((RawBlock *)adapter, task_id, RAW_BLOCK_LOAD, &result);

	for (size_t i = 0; task && i < task->n; i++)
		if (task->jobs[i].loaded)
			kvc_bitmap_set(loaded, i);
	if (task)
		raw_block_task_free(task);
	return result;
}

static int
raw_block_delete_keys_slot(KvcL2Adapter *adapter,
			   KvcObjectKey *const *keys,
			   size_t n,
			   KvcBitmap *deleted)
{
	return raw_block_delete_keys((RawBlock *)adapter, keys, n, deleted);
}

static int
raw_block_rename_key_slot(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	return raw_block_rename_key((RawBlock *)adapter, old_key, new_key);
}

static int
raw_block_set_attributes_slot(KvcL2Adapter *adapter,
			      KvcObjectKey *key,
			      const KvcObjectAttributes *attributes)
{
	return raw_block_set_attributes((RawBlock *)adapter, key, attributes);
}

static ssize_t
raw_block_list_slot(KvcL2Adapter *adapter,
		    const KvcKeyScope *scope,
		    char **cursor,
		    KvcL2ListEntry *entries,
		    size_t max)
{
	return raw_block_list((RawBlock *)adapter, scope, cursor, entries, max);
}

static void
raw_block_usage_slot(KvcL2Adapter *adapter, KvcL2Usage *usage)
{
	raw_block_usage((RawBlock *)adapter, usage);
}

static void
raw_block_describe_slot(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	raw_block_describe((RawBlock *)adapter, func, user);
}

/* Nobody else writes to the device, so there is no get_changes. */
static const KvcL2AdapterOps raw_block_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "raw_block",
	.summary = "slots of a block device or a file, for this daemon alone",
	.options = raw_block_options,
	.open = raw_block_open,
	.close = raw_block_close,
	.get_store_event_fd = raw_block_get_store_event_fd,
	.get_lookup_and_lock_event_fd = raw_block_get_lookup_and_lock_event_fd,
	.get_load_event_fd = raw_block_get_load_event_fd,
	.submit_store_task = raw_block_submit_store_task,
	.pop_completed_store_tasks = raw_block_pop_completed_store_tasks,
	.submit_lookup_and_lock_task = raw_block_submit_lookup_and_lock_task,
	.query_lookup_and_lock_result = raw_block_query_lookup_and_lock_result,
	.submit_unlock = raw_block_submit_unlock,
	.submit_load_task = raw_block_submit_load_task,
	.query_load_result = raw_block_query_load_result,
	.delete_keys = raw_block_delete_keys_slot,
	.rename_key = raw_block_rename_key_slot,
	.set_attributes = raw_block_set_attributes_slot,
	.list = raw_block_list_slot,
	.usage = raw_block_usage_slot,
	.describe = raw_block_describe_slot,
};

KVC_REGISTER(kvc_register_l2_adapter, raw_block_adapter_ops)
