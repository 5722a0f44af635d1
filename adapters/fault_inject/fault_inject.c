/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An adapter around another one that makes things go wrong, for tests: see README.md. Stores,
 * lookups and loads go through a thread (fault_inject-task.c); what blocks is passed on at once.
 */

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/io.h>
#include <kvcache/registry.h>

#include "fault_inject.h"

static const KvcOptionSpec fault_options[] = {
	{.name = "inner",
	 .type = KVC_OPTION_STRING,
	 .required = true,
	 .is_secret = true, /* may have a password in it */
	 .help = "specification of the adapter that is wrapped"},
	{.name = "faults",
	 .type = KVC_OPTION_STRING,
	 .default_value = "load_miss",
	 .help = "what happens to the keys selected, a list (for tests)"},
	{.name = "rate",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .min = 0,
	 .max = 1,
	 .help = "share of keys selected, drawn by seed and key"},
	{.name = "seed",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = UINT32_MAX,
	 .help = "of the draw"},
	{.name = "redraw",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "draw anew for each task instead of once a key"},
	{.name = "gap_indices",
	 .type = KVC_OPTION_STRING,
	 .help = "positions in a task selected, a list"},
	{.name = "drop_chunk_hashes",
	 .type = KVC_OPTION_STRING,
	 .help = "chunk hashes selected, a list in hex"},
	{.name = "max_faults",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .min = 0,
	 .max = 1e9,
	 .help = "how many faults happen before all goes well; 0: no limit"},
	{.name = "switch_path",
	 .type = KVC_OPTION_STRING,
	 .help = "faults happen only while this file exists; what hangs goes on without it"},
	{.name = "delay_ms",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "100",
	 .min = 0,
	 .max = 1e6,
	 .help = "milliseconds that a delayed task waits"},
	{.name = "error",
	 .type = KVC_OPTION_STRING,
	 .default_value = "EIO",
	 .help = "errno of store_error, lookup_error and delete_error"},
	{.name = NULL},
};

static const KvcL2AdapterOps fault_inject_adapter_ops;

static FaultAdapter *
get(KvcL2Adapter *adapter)
{
	return (FaultAdapter *)adapter;
}

/* ---- Opening ------------------------------------------------------------------------------- */

static void
destroy(FaultAdapter *fault)
{
	if (fault->inner)
		fault->inner->ops->close(fault->inner);
	kvc_options_free(fault->inner_options);
	kvc_task_board_free(fault->base.board);
	if (fault->wake_fd >= 0)
		close(fault->wake_fd);
	g_queue_clear(&fault->incoming);
	g_ptr_array_unref(fault->running);
	fault_select_deinit(fault);
	pthread_mutex_destroy(&fault->lock);
	g_free(fault);
}

/* This vtable has these slots, so the inner one must. */
static const char *
missing_slot(const KvcL2AdapterOps *ops)
{
	if (!ops->delete_keys)
		return "delete_keys";
	if (!ops->rename_key)
		return "rename_key";
	if (!ops->set_attributes)
		return "set_attributes";
	return ops->list ? NULL : "list";
}

static bool
open_inner(FaultAdapter *fault, const KvcOptions *options, GError **error)
{
	fault->inner = kvc_l2_adapter_open(kvc_options_get_string(options, "inner"),
					   &fault->inner_options, error);
	if (!fault->inner) {
		g_prefix_error(error, "option \"inner\": ");
		return false;
	}
	const char *missing = missing_slot(fault->inner->ops);
	if (missing || fault->inner->ops->uniform_batches) {
		g_set_error(
			error, KVC_OPTIONS_ERROR, EINVAL,
			"option \"inner\": an adapter of type \"%s\" cannot be wrapped, it %s%s",
			fault->inner->ops->type_name, missing ? "has no " : "needs ",
			missing ? missing : "uniform batches");
		return false;
	}
	if (!kvc_options_get_bool(options, "persist_enabled")) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "option \"persist_enabled\": false belongs into \"inner\"");
		return false;
	}
	return true;
}

static bool
start(FaultAdapter *fault, GError **error)
{
	int rc = 0;

	fault->base.board = kvc_task_board_new(fault_task_clear, error);
	if (!fault->base.board)
		return false;
	fault->wake_fd = kvc_eventfd_new();
	rc = MIN(rc, fault->wake_fd);
	if (rc == 0)
		rc = -pthread_create(&fault->thread, NULL, fault_main, fault);
	if (rc < 0) {
		g_set_error(error, KVC_OPTIONS_ERROR, -rc, "cannot start: %s", g_strerror(-rc));
		return false;
	}
	pthread_setname_np(fault->thread, "kvc-fault");
	return true;
}

static KvcL2Adapter *
fault_open(const KvcOptions *options, GError **error)
{
	FaultAdapter *fault = g_new0(FaultAdapter, 1);

	fault->base.l2.ops = &fault_inject_adapter_ops;
	pthread_mutex_init(&fault->lock, NULL);
	fault->wake_fd = -1;
	fault->running = g_ptr_array_new();
	if (!fault_select_init(fault, options, error) || !open_inner(fault, options, error) ||
	    !start(fault, error)) {
		destroy(fault);
		return NULL;
	}
	return &fault->base.l2;
}

/* What hangs or waits was never passed on, or its result is dropped; the inner one ends its own. */
static void
fault_close(KvcL2Adapter *adapter)
{
	FaultAdapter *fault = get(adapter);

	pthread_mutex_lock(&fault->lock);
	fault->stopping = true;
	pthread_mutex_unlock(&fault->lock);
	kvc_eventfd_signal(fault->wake_fd);
	pthread_join(fault->thread, NULL);
	destroy(fault);
}

/* ---- Tasks --------------------------------------------------------------------------------- */

static KvcL2TaskId
fault_submit_store_task(KvcL2Adapter *adapter,
			KvcObjectKey *const *keys,
			const KvcMemoryObj *objects,
			size_t n)
{
	return fault_submit(adapter, KVC_TASK_STORE, keys, objects, n);
}

static KvcL2TaskId
fault_submit_lookup_and_lock_task(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return fault_submit(adapter, KVC_TASK_LOOKUP, keys, NULL, n);
}

static void
fault_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	FaultAdapter *fault = get(adapter);
	bool loses = fault->faults & FAULT_LOST_UNLOCK && fault_is_on(fault);

	for (size_t i = 0; i < n; i++)
		if (!loses || !fault_take(fault, keys[i], i))
			fault->inner->ops->submit_unlock(fault->inner, &keys[i], 1);
}

static KvcL2TaskId
fault_submit_load_task(KvcL2Adapter *adapter,
		       KvcObjectKey *const *keys,
		       const KvcMemoryObj *objects,
		       size_t n)
{
	return fault_submit(adapter, KVC_TASK_LOAD, keys, objects, n);
}

/* ---- What blocks --------------------------------------------------------------------------- */

static bool
fails(FaultAdapter *fault, const KvcObjectKey *key, size_t position)
{
	return fault->faults & FAULT_DELETE_ERROR && fault_is_on(fault) &&
	       fault_take(fault, key, position);
}

static int
fault_delete_keys(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	FaultAdapter *fault = get(adapter);
	int result = 0;

	for (size_t i = 0; i < n; i++) {
		g_autoptr(KvcBitmap) own = kvc_bitmap_new(1);
		int rc = fails(fault, keys[i], i)
				 ? fault->error
				 : fault->inner->ops->delete_keys(fault->inner, &keys[i], 1, own);

		if (kvc_bitmap_test(own, 0))
			kvc_bitmap_set(deleted, i);
		if (result == 0)
			result = rc;
	}
	return result;
}

static int
fault_rename_key(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	FaultAdapter *fault = get(adapter);

	if (fails(fault, old_key, 0))
		return fault->error;
	return fault->inner->ops->rename_key(fault->inner, old_key, new_key);
}

static int
fault_set_attributes(KvcL2Adapter *adapter,
		     KvcObjectKey *key,
		     const KvcObjectAttributes *attributes)
{
	FaultAdapter *fault = get(adapter);

	if (fails(fault, key, 0))
		return fault->error;
	return fault->inner->ops->set_attributes(fault->inner, key, attributes);
}

static ssize_t
fault_list(KvcL2Adapter *adapter,
	   const KvcKeyScope *scope,
	   char **cursor,
	   KvcL2ListEntry *entries,
	   size_t max)
{
	KvcL2Adapter *inner = get(adapter)->inner;

	return inner->ops->list(inner, scope, cursor, entries, max);
}

/* The engine takes an error for "do not list again", as if the slot was missing. */
static int
fault_get_changes(KvcL2Adapter *adapter,
		  const KvcKeyScope *scope,
		  uint64_t *stamp,
		  int64_t *changed_ns)
{
	KvcL2Adapter *inner = get(adapter)->inner;

	if (!inner->ops->get_changes)
		return -ENOTSUP;
	return inner->ops->get_changes(inner, scope, stamp, changed_ns);
}

static void
fault_usage(KvcL2Adapter *adapter, KvcL2Usage *usage)
{
	KvcL2Adapter *inner = get(adapter)->inner;

	if (inner->ops->usage)
		inner->ops->usage(inner, usage);
}

/* ---- Status -------------------------------------------------------------------------------- */

typedef struct Lines {
	KvcDescribeFunc func;
	void *user;
} Lines;

/* The lines that every adapter has; what else the inner one counts has other names there. */
static void
pass_line(void *user, const char *name, const char *value)
{
	const Lines *lines = user;

	if (!strcmp(name, "health") || !strcmp(name, "io_mode") || !strcmp(name, "location"))
		lines->func(lines->user, name, value);
}

static void
fault_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	FaultAdapter *fault = get(adapter);
	Lines lines = {.func = func, .user = user};

	fault->inner->ops->describe(fault->inner, pass_line, &lines);
	pthread_mutex_lock(&fault->lock);
	uint64_t n_faults = fault->n_faults, n_held = fault->n_held;
	pthread_mutex_unlock(&fault->lock);
	func(user, "inner", fault->inner->ops->type_name);
	kvc_describe_count(func, user, "faults", n_faults);
	kvc_describe_count(func, user, "held_tasks", n_held);
}

static const KvcL2AdapterOps fault_inject_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "fault_inject",
	.summary = "another adapter, of which some keys fail, hang or are spoilt, for tests",
	.options = fault_options,
	.open = fault_open,
	.close = fault_close,
	KVC_TASK_BOARD_SLOTS,
	.submit_store_task = fault_submit_store_task,
	.submit_lookup_and_lock_task = fault_submit_lookup_and_lock_task,
	.submit_unlock = fault_submit_unlock,
	.submit_load_task = fault_submit_load_task,
	.delete_keys = fault_delete_keys,
	.rename_key = fault_rename_key,
	.set_attributes = fault_set_attributes,
	.list = fault_list,
	.get_changes = fault_get_changes,
	.usage = fault_usage,
	.describe = fault_describe,
};

KVC_REGISTER(kvc_register_l2_adapter, fault_inject_adapter_ops)
