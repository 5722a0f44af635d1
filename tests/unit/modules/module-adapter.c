/* SPDX-License-Identifier: Apache-2.0 */

/* An adapter out of tree that only opens and closes; the definitions spoil it in one way each. */

#include <errno.h>

#include <kvcache/registry.h>

#ifndef TYPE_NAME
#define TYPE_NAME "good"
#endif
#ifndef API
#define API KVC_L2_ADAPTER_API
#endif
#ifndef STRUCT_SIZE
#define STRUCT_SIZE sizeof(KvcL2AdapterOps)
#endif

static const KvcL2AdapterOps module_ops;

#ifdef OTHER_OPS
static void module_close(KvcL2Adapter *adapter);

/* As of one whose vtable was copied under another name. */
static const KvcL2AdapterOps other_ops = {.close = module_close};
#endif

static KvcL2Adapter *
module_open(const KvcOptions *options, GError **error)
{
	KvcL2Adapter *adapter = g_new0(KvcL2Adapter, 1);

#ifdef OTHER_OPS
	adapter->ops = &other_ops;
#else
	adapter->ops = &module_ops;
#endif
	return adapter;
}

static void
module_close(KvcL2Adapter *adapter)
{
	g_free(adapter);
}

static int
module_fd(KvcL2Adapter *adapter)
{
	return -1;
}

static KvcL2TaskId
module_submit(KvcL2Adapter *adapter,
	      KvcObjectKey *const *keys,
	      const KvcMemoryObj *objects,
	      size_t n)
{
	return 0;
}

static size_t
module_pop(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	return 0;
}

static KvcL2TaskId
module_lookup(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return 0;
}

static int
module_query_lookup(KvcL2Adapter *adapter,
		    KvcL2TaskId task_id,
		    KvcBitmap *found,
		    KvcL2ObjectInfo *info)
{
	return -ENOENT;
}

static int
module_query_load(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded)
{
	return -ENOENT;
}

#ifndef NO_SLOT
static void
module_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
}
#endif

static void
module_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	func(user, "health", "ok");
}

static const KvcL2AdapterOps module_ops = {
	.api = API,
	.struct_size = STRUCT_SIZE,
	.type_name = TYPE_NAME,
	.summary = "out of tree",
	.open = module_open,
	.close = module_close,
	.get_store_event_fd = module_fd,
	.get_lookup_and_lock_event_fd = module_fd,
	.get_load_event_fd = module_fd,
	.submit_store_task = module_submit,
	.pop_completed_store_tasks = module_pop,
	.submit_lookup_and_lock_task = module_lookup,
	.query_lookup_and_lock_result = module_query_lookup,
#ifndef NO_SLOT
	.submit_unlock = module_unlock,
#endif
	.submit_load_task = module_submit,
	.query_load_result = module_query_load,
	.describe = module_describe,
};

KVC_REGISTER(kvc_register_l2_adapter, module_ops)

#ifdef REGISTERS_NULL
__attribute__((constructor)) static void
register_null(void)
{
	kvc_register_l2_adapter(NULL);
}
#endif

#ifdef ASKS
__attribute__((constructor)) static void
ask(void)
{
	g_autoptr(GError) error = NULL;

	if (!kvc_find_l2_adapter(ASKS, &error))
		g_setenv("KVC_TEST_ANSWER", error->message, TRUE);
}
#endif

#ifdef ALSO
/* One more, whose name is taken. */
static KvcL2AdapterOps also_ops;

static void
register_also(KvcL2AdapterOps *ops)
{
	*ops = module_ops;
	ops->type_name = ALSO;
	kvc_register_l2_adapter(ops);
}

KVC_REGISTER(register_also, also_ops)
#endif
