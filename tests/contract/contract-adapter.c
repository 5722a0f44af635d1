/* SPDX-License-Identifier: Apache-2.0 */

/*
 * contract-adapter [SPECIFICATION...]: what kvcache/adapter.h promises, of every registered
 * adapter. Those that a SPECIFICATION opens are opened; of the others the vtable is looked at.
 * "@DIRECTORY@" in a specification becomes an empty directory of its own, "@TMPFS@" one on a tmpfs
 * of 64 MiB (left out where this process may not mount one), "@LOOP@" an empty loop device of 280
 * MiB (left out where this process may not make one), "@NUMBER@" a number from 1 on that
 * nobody else of this run has: of an empty database of a server, say.
 *
 * A module names its specifications in its meson.build (module_contracts), so that a new folder is
 * tested here by itself. The tests of an instance are in adapter-*.c; a new one must hold for every
 * adapter, and skips what an optional slot is missing for.
 */

#include "adapter-fixture.h"

char **specifications;

/* ---- The vtable, of every adapter ---------------------------------------------------------- */

static void
check_option(const KvcOptionSpec *specs, const KvcOptionSpec *spec)
{
	const KvcOptionSpec *common = kvc_l2_adapter_get_common_options();

	assert_true(spec->help && *spec->help && !strchr(spec->help, '\n'));
	assert_false(spec->required && spec->default_value);
	assert_true(spec->min <= spec->max);
	for (const KvcOptionSpec *other = specs; other != spec; other++)
		assert_string_not_equal(other->name, spec->name);
	for (const KvcOptionSpec *other = common; other->name; other++)
		assert_string_not_equal(other->name, spec->name);
}

static void
test_vtable(void **state)
{
	const KvcL2AdapterOps *ops = ((Subject *)*state)->ops;

	assert_int_equal(ops->api, KVC_L2_ADAPTER_API);
	assert_int_equal(ops->struct_size, sizeof(*ops));
	assert_ptr_equal(kvc_find_l2_adapter(ops->type_name, NULL), ops);
	assert_int_equal(strspn(ops->type_name, "abcdefghijklmnopqrstuvwxyz0123456789_"),
			 strlen(ops->type_name));
	assert_true(ops->summary && *ops->summary && !strchr(ops->summary, '\n'));
	assert_non_null(ops->open);
	assert_non_null(ops->close);
	assert_non_null(ops->get_store_event_fd);
	assert_non_null(ops->get_lookup_and_lock_event_fd);
	assert_non_null(ops->get_load_event_fd);
	assert_non_null(ops->submit_store_task);
	assert_non_null(ops->pop_completed_store_tasks);
	assert_non_null(ops->submit_lookup_and_lock_task);
	assert_non_null(ops->query_lookup_and_lock_result);
	assert_non_null(ops->submit_unlock);
	assert_non_null(ops->submit_load_task);
	assert_non_null(ops->query_load_result);
	assert_non_null(ops->describe);
	assert_non_null(ops->options);
	for (const KvcOptionSpec *spec = ops->options; spec->name; spec++)
		check_option(ops->options, spec);
}

/* ---- All of them --------------------------------------------------------------------------- */

static const struct CMUnitTest *const themes[] = {
	adapter_basic_tests, adapter_store_tests, adapter_lookup_tests,	 adapter_load_tests,
	adapter_key_tests,   adapter_list_tests,  adapter_restart_tests, adapter_thread_tests,
};

static GPtrArray *subjects; /* owned */

static Subject *
subject_new(const KvcL2AdapterOps *ops)
{
	Subject *subject = g_new0(Subject, 1);
	subject->ops = ops;
	g_ptr_array_add(subjects, subject);
	return subject;
}

/* "TYPE: TEST", with the specification behind it for all but the first one of a type. */
static void
add_test(GArray *tests, const struct CMUnitTest *test, Subject *subject, bool is_first)
{
	struct CMUnitTest named = *test;

	named.name = is_first ? g_strdup_printf("%s: %s", subject->ops->type_name, test->name)
			      : g_strdup_printf("%s: %s (%s)", subject->ops->type_name, test->name,
						subject->specification);
	named.initial_state = subject;
	g_array_append_val(tests, named);
}

static void
add_tests(GArray *tests, const KvcL2AdapterOps *ops)
{
	static const struct CMUnitTest vtable_test = {"vtable", test_vtable, NULL, NULL, NULL};
	Subject *subject = subject_new(ops);
	bool is_opened = false;

	add_test(tests, &vtable_test, subject, true);
	for (char **specification = specifications; *specification; specification++) {
		g_autoptr(KvcOptions) options = kvc_options_parse(*specification, NULL);

		if (!options || strcmp(kvc_options_type(options), ops->type_name) != 0)
			continue;
		subject = subject_new(ops);
		subject->specification = *specification;
		for (size_t i = 0; i < G_N_ELEMENTS(themes); i++)
			for (const struct CMUnitTest *test = themes[i]; test->name; test++)
				add_test(tests, test, subject, !is_opened);
		is_opened = true;
	}
	if (!is_opened)
		printf("%s: not opened, it has no specification here\n", ops->type_name);
}

/* A misspelt one would test nothing. */
static void
check_specification(const char *specification)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(KvcOptions) options = kvc_options_parse(specification, &error);

	if (!options || !kvc_find_l2_adapter(kvc_options_type(options), &error)) {
		fprintf(stderr, "%s: %s\n", specification, error->message);
		exit(1);
	}
}

/* Those that can be opened here. */
static char **
take_specifications(char **arguments)
{
	g_autoptr(GPtrArray) taken = g_ptr_array_new();
	bool has_tmpfs = false;

	for (char **argument = arguments; *argument; argument++) {
		check_specification(*argument);
		if (strstr(*argument, "@TMPFS@") && !has_tmpfs && !make_tmpfs()) {
			printf("%s: not opened, no tmpfs can be mounted here\n", *argument);
			continue;
		}
		if (strstr(*argument, "@LOOP@") && !may_make_loop()) {
			printf("%s: not opened, no loop device can be made here\n", *argument);
			continue;
		}
		has_tmpfs |= strstr(*argument, "@TMPFS@") != NULL;
		g_ptr_array_add(taken, *argument);
	}
	g_ptr_array_add(taken, NULL);
	return (char **)g_ptr_array_free(g_steal_pointer(&taken), FALSE);
}

int
main(int argc, char **argv)
{
	GArray *tests = g_array_new(FALSE, FALSE, sizeof(struct CMUnitTest));
	const KvcL2AdapterOps *ops;

	if (argc == 3 && !strcmp(argv[1], "--victim"))
		return victim_main(argv[2]);
	specifications = take_specifications(argv + 1);
	subjects = g_ptr_array_new_with_free_func(g_free);
	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)) != NULL; i++)
		add_tests(tests, ops);
	const struct CMUnitTest *all = (const struct CMUnitTest *)(void *)tests->data;
	int failed = _cmocka_run_group_tests("adapters", all, tests->len, NULL, NULL);
	for (guint i = 0; i < tests->len; i++)
		g_free((char *)all[i].name);
	g_array_unref(tests);
	g_ptr_array_unref(subjects);
	g_free(specifications);
	remove_tmpfs();
	return failed;
}
