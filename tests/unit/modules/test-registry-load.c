/* SPDX-License-Identifier: Apache-2.0 */

/* The only argument is the folder in which the modules were built. */

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kvcache/registry.h"

static char *directory;

/* Puts the file that was built for KIND/NAME at DIRECTORY/KIND/NAME.so. */
static void
install(const char *kind, const char *name, const char *as)
{
	g_autofree char *built = g_strdup_printf("%s_%s.so", kind, name);
	g_autofree char *from = NULL;
	g_autofree char *to = g_strdup_printf("%s/%s/%s.so", directory, kind, as);

	g_strcanon(built, "abcdefghijklmnopqrstuvwxyz.", '_');
	from = g_strdup_printf("%s/%s", getenv("KVC_TEST_MODULES"), built);
	assert_int_equal(access(from, R_OK), 0);
	assert_int_equal(symlink(from, to), 0);
}

static void
assert_refused(const char *name, const char *expected)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *start = g_strdup_printf(
		"L2 adapter \"%s\": cannot load %s/adapters/%s.so: ", name, directory, name);

	assert_null(kvc_find_l2_adapter(name, &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, EINVAL));
	if (!g_str_has_prefix(error->message, start))
		fail_msg("\"%s\" does not begin with \"%s\"", error->message, start);
	if (!strstr(error->message + strlen(start), expected))
		fail_msg("no \"%s\" in: %s", expected, error->message);
}

static bool
is_registered(const char *name)
{
	const KvcL2AdapterOps *ops;

	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)); i++)
		if (!strcmp(ops->type_name, name))
			return true;
	return false;
}

/* ---- Tests --------------------------------------------------------------------------------- */

static void
test_an_adapter_is_loaded_on_first_use(void **state)
{
	g_autoptr(KvcOptions) options = NULL;
	g_autoptr(GError) error = NULL;

	install("adapters", "good", "good");
	assert_false(is_registered("good"));
	KvcL2Adapter *adapter = kvc_l2_adapter_open("type=good", &options, &error);
	if (!adapter)
		fail_msg("%s", error->message);
	assert_string_equal(adapter->ops->type_name, "good");
	adapter->ops->close(adapter);
	assert_true(is_registered("good"));
	/* It stays, and is not asked for again. */
	g_autofree char *path = g_strdup_printf("%s/adapters/good.so", directory);
	assert_int_equal(unlink(path), 0);
	assert_non_null(kvc_find_l2_adapter("good", NULL));
}

static void
test_a_policy_is_loaded_on_first_use(void **state)
{
	install("policies", "test-tiered", "test-tiered");
	const KvcStorePolicy *policy = kvc_find_store_policy("test-tiered", NULL);
	assert_non_null(policy);
	assert_int_equal(policy->select_store_targets(NULL, NULL, 3), 1 << 2);
	assert_ptr_equal(kvc_find_store_policy("test-tiered", NULL), policy);

	/* It is a policy of one kind only. */
	g_autoptr(GError) error = NULL;
	assert_null(kvc_find_prefetch_policy("test-tiered", &error));
	assert_non_null(strstr(error->message, "it registers no prefetch policy"));
}

static void
test_a_bad_policy_is_refused(void **state)
{
	g_autoptr(GError) error = NULL;

	install("policies", "test-bare", "test-bare");
	assert_null(kvc_find_store_policy("test-bare", &error));
	assert_non_null(strstr(error->message, "store policy \"test-bare\": the required slot "
					       "select_store_targets is NULL"));
}

static void
test_a_type_that_is_nowhere(void **state)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *file = g_strdup_printf("there is no file %s/adapters/mocc.so", directory);

	assert_null(kvc_find_l2_adapter("mocc", &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, ENOENT));
	assert_non_null(strstr(error->message, "there is no L2 adapter \"mocc\", did you mean "
					       "\"mock\"?"));
	assert_non_null(strstr(error->message, file));
}

static void
test_names_that_are_no_file(void **state)
{
	static const char *const names[] = {"../adapters/good", "..",  ".",   "",   "a/b",
					    "/tmp/x",		"a.b", "a b", "a%s"};

	install("adapters", "good", "a.b");
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autoptr(GError) error = NULL;

		assert_null(kvc_find_l2_adapter(names[i], &error));
		assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, ENOENT));
		assert_null(strstr(error->message, "there is no file"));
	}
}

static void
test_bad_files_are_refused(void **state)
{
	g_autofree char *garbage = g_strdup_printf("%s/adapters/garbage.so", directory);

	assert_true(g_file_set_contents(garbage, "not a shared object", -1, NULL));
	assert_refused("garbage", "garbage.so: "); /* the words of dlopen() */
	install("adapters", "silent", "silent");
	assert_refused("silent", "it registers no L2 adapter");
	install("adapters", "policy-only", "policy-only");
	assert_refused("policy-only", "it registers no L2 adapter");
	install("adapters", "other-api", "other-api");
	assert_refused("other-api", "L2 adapter: api is 2, this engine has 1");
	install("adapters", "other-size", "other-size");
	assert_refused("other-size", "L2 adapter: struct_size is 64, this engine has ");
	install("adapters", "no-slot", "no-slot");
	assert_refused("no-slot",
		       "L2 adapter \"no-slot\": the required slot submit_unlock is NULL");
	install("adapters", "no-name", "no-name");
	assert_refused("no-name", "L2 adapter: its name is missing");
	install("adapters", "other-name", "other-name");
	assert_refused("other-name", "it registers \"another\", not \"other-name\"");
	install("adapters", "known-name", "known-name");
	assert_refused("known-name", "L2 adapter \"mock\" is registered twice");
	/* Nothing of them is left, also of what was good, and a second try says the same. */
	assert_false(is_registered("another"));
	assert_false(is_registered("known-name"));
	assert_null(kvc_find_store_policy("policy-only", NULL));
	assert_refused("other-name", "it registers \"another\", not \"other-name\"");
}

static void
test_a_module_cannot_kill_or_hang_the_program(void **state)
{
	g_autofree char *fifo = g_strdup_printf("%s/adapters/fifo.so", directory);

	assert_int_equal(mkfifo(fifo, 0600), 0);
	assert_refused("fifo", "it is not a regular file");
	install("adapters", "null", "null");
	assert_refused("null", "L2 adapter: it is NULL");
	/* What its constructor asks for is not loaded within it. */
	install("adapters", "silent", "asked");
	install("adapters", "asks", "asks");
	assert_non_null(kvc_find_l2_adapter("asks", NULL));
	assert_string_equal(g_getenv("KVC_TEST_ANSWER"),
			    "L2 adapter \"asked\": a module that is being loaded cannot load one");
}

static void
test_an_adapter_with_another_vtable_is_refused(void **state)
{
	g_autoptr(KvcOptions) options = NULL;
	g_autoptr(GError) error = NULL;

	install("adapters", "other-ops", "other-ops");
	assert_null(kvc_l2_adapter_open("type=other-ops", &options, &error));
	assert_true(g_error_matches(error, KVC_OPTIONS_ERROR, EINVAL));
	assert_string_equal(error->message, "L2 adapter \"other-ops\": what it opened has the "
					    "vtable of another type");
	assert_null(options);
}

static void *
find_parallel(void *user)
{
	return (void *)kvc_find_l2_adapter("parallel", NULL);
}

static void
test_two_threads_load_one_file_once(void **state)
{
	pthread_t threads[4];
	void *found[4];

	install("adapters", "parallel", "parallel");
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, find_parallel, NULL), 0);
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
		pthread_join(threads[i], &found[i]);
		assert_non_null(found[i]);
		assert_ptr_equal(found[i], found[0]);
	}
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_adapter_is_loaded_on_first_use),
		cmocka_unit_test(test_a_policy_is_loaded_on_first_use),
		cmocka_unit_test(test_a_bad_policy_is_refused),
		cmocka_unit_test(test_a_type_that_is_nowhere),
		cmocka_unit_test(test_names_that_are_no_file),
		cmocka_unit_test(test_bad_files_are_refused),
		cmocka_unit_test(test_a_module_cannot_kill_or_hang_the_program),
		cmocka_unit_test(test_an_adapter_with_another_vtable_is_refused),
		cmocka_unit_test(test_two_threads_load_one_file_once),
	};

	g_assert(argc == 2);
	g_setenv("KVC_TEST_MODULES", argv[1], TRUE);
	directory = g_dir_make_tmp("kvc-modules-XXXXXX", NULL);
	g_autofree char *adapters = g_strdup_printf("%s/adapters", directory);
	g_autofree char *policies = g_strdup_printf("%s/policies", directory);
	g_assert(g_mkdir_with_parents(adapters, 0700) == 0);
	g_assert(g_mkdir_with_parents(policies, 0700) == 0);
	g_setenv("KVC_ADAPTER_DIR", adapters, TRUE);
	g_setenv("KVC_POLICY_DIR", policies, TRUE);
	int rc = cmocka_run_group_tests(tests, NULL, NULL);
	g_autofree char *command = g_strdup_printf("rm -rf '%s'", directory);
	if (system(command) != 0)
		rc++;
	g_free(directory);
	return rc;
}
