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

	rb->base.l2.ops = &raw_block_adapter_ops;
	rb->path = g_strdup(kvc_options_get_string(options, "device_path"));
	rb->verify = kvc_options_get_bool(options, "verify_checksum");
	rb->persist = kvc_options_get_bool(options, "persist_enabled");
	rb->use_checkpoint = kvc_options_get_bool(options, "load_checkpoint_on_init");
	rb->checkpoint_ns =
		(int64_t)(kvc_options_get_double(options, "meta_checkpoint_interval_sec") * 1e9);
	rb->fd = rb->lock_fd = -1;
	rb->failures = kvc_failures_new("raw_block", rb->path);

	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&rb->keeper_wake, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_cond_init(&rb->wake, NULL);
	pthread_cond_init(&rb->change_wake, NULL);
	pthread_mutex_init(&rb->change_lock, NULL);
	pthread_mutex_init(&rb->lock, NULL);
	raw_block_index_init(rb);
	return rb;
}

static void
adapter_free(RawBlock *rb)
{
	kvc_task_board_free(rb->base.board);
	raw_block_index_deinit(rb);
	pthread_mutex_destroy(&rb->lock);
	pthread_mutex_destroy(&rb->change_lock);
	pthread_cond_destroy(&rb->change_wake);
	pthread_cond_destroy(&rb->keeper_wake);
	pthread_cond_destroy(&rb->wake);
	raw_block_device_close(rb);
	kvc_failures_free(rb->failures);
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
	KvcPoolLimit stores = {.max_bytes = depth / 2}; /* of the ring */

	rb->base.board = kvc_task_board_new(raw_block_task_clear, error);
	if (!rb->base.board)
		return false;
	rb->io = kvc_io_new_for_file("kvc-raw-ring", depth, rb->fd, error);
	if (!rb->io)
		return false;
	rb->workers = kvc_pool_new("kvc-raw-work", workers, NULL, &stores, error);
	rb->lookups = rb->workers ? kvc_pool_new("kvc-raw-lookup", 1, NULL, NULL, error) : NULL;
	if (!rb->lookups)
		return false;
	/* The last one: it ends when the adapter is closed only. */
	int rc = pthread_create(&rb->keeper, NULL, raw_block_keeper_main, rb);
	if (rc > 0) {
		rb->keeper = 0;
		return fail(error, rc, "start the keeper of", rb->path);
	}
	pthread_setname_np(rb->keeper, "kvc-raw-keeper");
	return true;
}

/* Workers before the ring (they submit to it), both before either is freed (it pushes to them). */
static void
stop_threads(RawBlock *rb)
{
	if (rb->keeper)
		pthread_join(rb->keeper, NULL);
	kvc_pool_stop(rb->workers);
	kvc_pool_stop(rb->lookups);
	kvc_io_free(rb->io);
	kvc_pool_free(rb->workers);
	kvc_pool_free(rb->lookups);
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
	return &rb->base.l2;
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
	kvc_task_board_await_idle(rb->base.board);
	stop_threads(rb);
	raw_block_remove_stored(rb);
	if (rb->zombies->len > 0 && raw_block_begin_change(rb) == 0) {
		raw_block_bury_zombies(rb, NULL);
		raw_block_end_change(rb);
	}
	raw_block_checkpoint_write(rb);
	adapter_free(rb);
}

static KvcL2TaskId
raw_block_submit_store_task(KvcL2Adapter *adapter,
			    KvcObjectKey *const *keys,
			    const KvcMemoryObj *objects,
			    size_t n)
{
	return raw_block_submit(adapter, KVC_TASK_STORE, keys, objects, n);
}

static KvcL2TaskId
raw_block_submit_lookup_and_lock_task(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return raw_block_submit(adapter, KVC_TASK_LOOKUP, keys, NULL, n);
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
	return raw_block_submit(adapter, KVC_TASK_LOAD, keys, objects, n);
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
	KVC_TASK_BOARD_SLOTS,
	.submit_store_task = raw_block_submit_store_task,
	.submit_lookup_and_lock_task = raw_block_submit_lookup_and_lock_task,
	.submit_unlock = raw_block_submit_unlock,
	.submit_load_task = raw_block_submit_load_task,
	.delete_keys = raw_block_delete_keys_slot,
	.rename_key = raw_block_rename_key_slot,
	.set_attributes = raw_block_set_attributes_slot,
	.list = raw_block_list_slot,
	.usage = raw_block_usage_slot,
	.describe = raw_block_describe_slot,
};

KVC_REGISTER(kvc_register_l2_adapter, raw_block_adapter_ops)
