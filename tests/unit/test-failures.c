/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/failures.h>

static GString *logged;

static GLogWriterOutput
write_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer user)
{
	for (gsize i = 0; i < n; i++)
		if (!strcmp(fields[i].key, "MESSAGE"))
			g_string_append_printf(logged, "%s\n", (const char *)fields[i].value);
	return G_LOG_WRITER_HANDLED;
}

static int
set_up(void **state)
{
	g_string_truncate(logged, 0);
	*state = kvc_failures_new("test", "/there");
	return 0;
}

static int
tear_down(void **state)
{
	kvc_failures_free(*state);
	return 0;
}

static void
add_line(void *user, const char *name, const char *value)
{
	g_string_append_printf(user, "%s=%s;", name, value);
}

static void
assert_status(KvcFailures *f, bool is_failed, const char *status)
{
	g_autoptr(GString) text = g_string_new(NULL);

	kvc_failures_describe(f, is_failed, add_line, text);
	assert_string_equal(text->str, status);
}

static void
the_last_error_is_in_words(void **state)
{
	KvcFailures *f = *state;

	assert_status(f, false, "health=ok;store_errors=0;lookup_errors=0;load_errors=0;");
	assert_int_equal(kvc_failures_note(f, KVC_TASK_LOAD, "open", "a/b", EIO), 1);
	assert_status(f, false,
		      "health=degraded;last_error=load failed: cannot open \"a/b\": Input/output "
		      "error (errno 5);store_errors=0;lookup_errors=0;load_errors=1;");
	kvc_failures_note(f, KVC_TASK_STORE, "sync", NULL, EIO);
	kvc_failures_count(f, KVC_TASK_STORE);
	assert_status(f, false,
		      "health=degraded;last_error=store failed: cannot sync: Input/output "
		      "error (errno 5);store_errors=2;lookup_errors=0;load_errors=1;");
}

static bool
is_failed(KvcFailures *f)
{
	g_autoptr(GString) text = g_string_new(NULL);

	kvc_failures_describe(f, false, add_line, text);
	return g_str_has_prefix(text->str, "health=failed;");
}

static void
many_in_a_row_are_failed(void **state)
{
	KvcFailures *f = *state;

	for (unsigned i = 1; i < KVC_FAILURES_IN_A_ROW; i++)
		assert_int_equal(kvc_failures_note(f, KVC_TASK_LOAD, "read", "a", EIO), i);
	assert_false(is_failed(f));
	kvc_failures_note(f, KVC_TASK_STORE, "write", "a", EIO);
	assert_true(is_failed(f));
	kvc_failures_clear(f, KVC_TASK_LOOKUP, false);
	assert_true(is_failed(f));
	kvc_failures_clear(f, KVC_TASK_STORE, true);
	assert_false(is_failed(f));
	assert_int_equal(kvc_failures_in_a_row(f), 0);
}

static void
a_lack_of_room_is_degraded_only(void **state)
{
	static const int errnums[] = {ENOSPC, EDQUOT, EROFS, ENAMETOOLONG};
	KvcFailures *f = *state;

	for (size_t i = 0; i < 20 * G_N_ELEMENTS(errnums); i++)
		assert_int_equal(kvc_failures_note(f, KVC_TASK_STORE, "write", "a",
						   errnums[i % G_N_ELEMENTS(errnums)]),
				 0);
	assert_false(is_failed(f));
}

static void
the_adapter_may_know_better(void **state)
{
	assert_status(*state, true, "health=failed;store_errors=0;lookup_errors=0;load_errors=0;");
}

static void
an_error_of_no_task_is_told_too(void **state)
{
	kvc_failures_remember(*state, "gone");
	assert_status(
		*state, false,
		"health=degraded;last_error=gone;store_errors=0;lookup_errors=0;load_errors=0;");
	assert_string_equal(logged->str, "");
}

static void
one_line_a_second_is_logged(void **state)
{
	KvcFailures *f = *state;

	kvc_failures_warn(f, "a", "\"%s\" is bad", "a");
	for (size_t i = 0; i < 5; i++)
		kvc_failures_note(f, KVC_TASK_LOAD, "open", "b", EIO);
	assert_string_equal(logged->str, "test /there: \"a\" is bad (0 more not shown)\n");
	g_usleep(1100 * 1000);
	kvc_failures_warn(f, "a", "again");
	assert_string_equal(logged->str, "test /there: \"a\" is bad (0 more not shown)\n");
	g_string_truncate(logged, 0);
	kvc_failures_warn(f, NULL, "%d", 7);
	assert_string_equal(logged->str, "test /there: 7 (6 more not shown)\n");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(the_last_error_is_in_words),      TEST(many_in_a_row_are_failed),
		TEST(a_lack_of_room_is_degraded_only), TEST(the_adapter_may_know_better),
		TEST(an_error_of_no_task_is_told_too), TEST(one_line_a_second_is_logged),
	};

	logged = g_string_new(NULL);
	g_log_set_writer_func(write_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
