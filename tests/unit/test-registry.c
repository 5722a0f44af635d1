/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "kvcache/registry.h"

/* ---- An adapter that only opens and closes ------------------------------------------------------
 */

static int n_open;
static bool opened_shared, opened_persist;

static KvcL2Adapter *stub_open(const KvcOptions *options, GError **error);

static void
stub_close(KvcL2Adapter *adapter)
{
	n_open--;
	g_free(adapter);
}

static int
stub_fd(KvcL2Adapter *adapter)
{
	return -1;
}

static KvcL2TaskId
stub_submit(KvcL2Adapter *adapter, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n)
{
	return 1;
}

static size_t
stub_pop(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	return 0;
}

static KvcL2TaskId
stub_lookup(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return 1;
}

static int
stub_query_lookup(KvcL2Adapter *adapter,
		  KvcL2TaskId task_id,
		  KvcBitmap *found,
		  KvcL2ObjectInfo *info)
{
	return -ENOENT;
}

static void
stub_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
}

static int
stub_query_load(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded)
{
	return -ENOENT;
}

static void
stub_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
}

static const KvcOptionSpec stub_options[] = {
	{.name = "path", .type = KVC_OPTION_STRING, .required = true, .help = "where"},
	{.name = NULL},
};

#define STUB(name, is_shared)                                                                      \
	{                                                                                          \
		.api = KVC_L2_ADAPTER_API, .struct_size = sizeof(KvcL2AdapterOps),                 \
		.type_name = name, .summary = "for this test", .options = stub_options,            \
		.shared_by_default = is_shared, .open = stub_open, .close = stub_close,            \
		.get_store_event_fd = stub_fd, .get_lookup_and_lock_event_fd = stub_fd,            \
		.get_load_event_fd = stub_fd, .submit_store_task = stub_submit,                    \
		.pop_completed_store_tasks = stub_pop, .submit_lookup_and_lock_task = stub_lookup, \
		.query_lookup_and_lock_result = stub_query_lookup, .submit_unlock = stub_unlock,   \
		.submit_load_task = stub_submit, .query_load_result = stub_query_load,             \
		.describe = stub_describe,                                                         \
	}

static const KvcL2AdapterOps stub_adapter = STUB("test-stub", false);
static const KvcL2AdapterOps shared_adapter = STUB("test-a-shared", true);
static const KvcL2AdapterOps last_adapter = STUB("zzz-test", false);

/* Not in the order of their names. */
KVC_REGISTER(kvc_register_l2_adapter, last_adapter)
KVC_REGISTER(kvc_register_l2_adapter, shared_adapter)
KVC_REGISTER(kvc_register_l2_adapter, stub_adapter)

static KvcL2Adapter *
stub_open(const KvcOptions *options, GError **error)
{
	KvcL2Adapter *adapter;

	if (!strcmp(kvc_options_get_string(options, "path"), "bad")) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "path \"bad\" is bad");
		return NULL;
	}
	opened_shared = kvc_options_get_bool(options, "shared");
	opened_persist = kvc_options_get_bool(options, "persist_enabled");
	adapter = g_new0(KvcL2Adapter, 1);
	adapter->ops =
		!strcmp(kvc_options_type(options), "test-stub") ? &stub_adapter : &shared_adapter;
	n_open++;
	return adapter;
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void
test_adapters_are_sorted_and_found(void **state)
{
	const KvcL2AdapterOps *ops;
	const char *previous = "";
	size_t n = 0;

	for (; (ops = kvc_l2_adapter_at(n)); n++) {
		assert_true(strcmp(previous, ops->type_name) < 0);
		assert_ptr_equal(kvc_find_l2_adapter(ops->type_name, NULL), ops);
		previous = ops->type_name;
	}
	assert_true(n >= 3);
	assert_null(kvc_l2_adapter_at(n + 1));
	assert_ptr_equal(kvc_find_l2_adapter("test-stub", NULL), &stub_adapter);
}

static void
test_policies_are_there(void **state)
{
	g_autoptr(GError) error = NULL;

	assert_string_equal(kvc_find_store_policy("default", &error)->name, "default");
	assert_string_equal(kvc_find_prefetch_policy("default", &error)->name, "default");
	assert_string_equal(kvc_find_eviction_policy("lru", &error)->name, "lru");
	assert_null(error);
	assert_non_null(kvc_store_policy_at(0));
	assert_non_null(kvc_prefetch_policy_at(0));
	assert_non_null(kvc_eviction_policy_at(0));
	assert_null(kvc_store_policy_at(1000));
	assert_null(kvc_prefetch_policy_at(1000));
	assert_null(kvc_eviction_policy_at(1000));
}

static void
test_unknown_names(void **state)
{
	g_autoptr(GError) error = NULL;

	assert_null(kvc_find_l2_adapter("test-stubb", &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, ENOENT));
	assert_non_null(strstr(error->message, "no L2 adapter \"test-stubb\""));
	assert_non_null(strstr(error->message, "did you mean \"test-stub\"?"));
	assert_non_null(strstr(error->message, "test-a-shared, test-stub, "));
	g_clear_error(&error);
	assert_null(kvc_find_eviction_policy("", &error));
	assert_non_null(strstr(error->message, "no eviction policy \"\""));
	assert_non_null(strstr(error->message, "lru"));
	assert_null(kvc_find_store_policy("no such thing", NULL));
	assert_null(kvc_find_prefetch_policy("no such thing", NULL));
}

static void
assert_opens(const char *specification, bool shared, bool persist)
{
	g_autoptr(KvcOptions) options = NULL;
	g_autoptr(GError) error = NULL;
	KvcL2Adapter *adapter = kvc_l2_adapter_open(specification, &options, &error);

	assert_null(error);
	assert_non_null(adapter);
	assert_string_equal(kvc_options_get_string(options, "path"), "/p");
	assert_int_equal(opened_shared, shared);
	assert_int_equal(opened_persist, persist);
	adapter->ops->close(adapter);
	assert_int_equal(n_open, 0);
}

static void
test_open_knows_common_options(void **state)
{
	assert_opens("type=test-stub,path=/p", false, true);
	assert_opens("type=test-a-shared,path=/p", true, true);
	assert_opens("type=test-stub,path=/p,shared=true,persist_enabled=false", true, false);
	assert_opens("type=test-a-shared,path=/p,shared=false", false, true);
}

static void
assert_open_refused(const char *specification, const char *quoted)
{
	KvcOptions *options = NULL;
	g_autoptr(GError) error = NULL;

	assert_null(kvc_l2_adapter_open(specification, &options, &error));
	assert_null(options);
	assert_non_null(error);
	if (!strstr(error->message, quoted))
		fail_msg("no %s in: %s", quoted, error->message);
}

static void
test_open_says_what_is_wrong(void **state)
{
	assert_open_refused("test-stub", "'='");
	assert_open_refused("type=test-stup,path=/p", "\"test-stup\"");
	assert_open_refused("type=test-stub", "\"path\"");
	assert_open_refused("type=test-stub,path=/p,share=1", "\"shared\"");
	assert_open_refused("type=test-stub,path=bad", "path \"bad\" is bad");
	assert_int_equal(n_open, 0);
}

/* ---- Programming errors -------------------------------------------------------------------- */

static void
assert_dies(void (*do_it)(const void *), const void *argument)
{
	pid_t pid = fork();
	int status;

	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		signal(SIGABRT, SIG_DFL);
		signal(SIGTRAP, SIG_DFL);
		close(STDERR_FILENO);
		do_it(argument);
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status));
	assert_true(WTERMSIG(status) == SIGABRT || WTERMSIG(status) == SIGTRAP);
}

static void
register_adapter(const void *ops)
{
	kvc_register_l2_adapter(ops);
}

static void
register_eviction_policy(const void *policy)
{
	kvc_register_eviction_policy(policy);
}

static void
test_bad_modules_abort(void **state)
{
	KvcL2AdapterOps ops = STUB("test-bad", false);
	KvcEvictionPolicy policy = *kvc_find_eviction_policy("lru", NULL);
	KvcL2AdapterOps other_api = ops, other_size = ops, no_name = ops, no_slot = ops;

	other_api.api++;
	other_size.struct_size -= (uint32_t)sizeof(void *);
	no_name.type_name = "";
	no_slot.submit_unlock = NULL;
	assert_dies(register_adapter, &stub_adapter); /* there already */
	assert_dies(register_adapter, &other_api);
	assert_dies(register_adapter, &other_size);
	assert_dies(register_adapter, &no_name);
	assert_dies(register_adapter, &no_slot);
	assert_dies(register_eviction_policy, &policy);
	policy.name = "test-bad";
	policy.touched = NULL;
	assert_dies(register_eviction_policy, &policy);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_adapters_are_sorted_and_found),
		cmocka_unit_test(test_policies_are_there),
		cmocka_unit_test(test_unknown_names),
		cmocka_unit_test(test_open_knows_common_options),
		cmocka_unit_test(test_open_says_what_is_wrong),
		cmocka_unit_test(test_bad_modules_abort),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
