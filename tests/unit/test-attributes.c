/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/attributes.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/xattr.h>

#include <cmocka.h>

/* XATTRS (taken over) with NAME set to TEXT. */
static KvcXattrs *
with(KvcXattrs *xattrs, const char *name, const char *text)
{
	KvcXattrs *changed = NULL;
	assert_int_equal(kvc_xattrs_set(xattrs, name, text, strlen(text), &changed), 0);
	kvc_xattrs_unref(xattrs);
	return changed;
}

static void
assert_value(const KvcXattrs *xattrs, const char *name, const char *text)
{
	size_t bytes = 0;
	const void *value = kvc_xattrs_get(xattrs, name, &bytes);
	if (!text) {
		assert_null(value);
		return;
	}
	assert_non_null(value);
	assert_int_equal(bytes, strlen(text));
	assert_memory_equal(value, text, bytes);
}

static unsigned
count(const KvcXattrs *xattrs)
{
	size_t cursor = 0;
	unsigned n = 0;
	while (kvc_xattrs_next(xattrs, &cursor, NULL, NULL, NULL))
		n++;
	return n;
}

static void
test_set_get_and_remove(void **state)
{
	g_autoptr(KvcXattrs) xattrs = NULL;
	assert_value(xattrs, "user.a", NULL);
	xattrs = with(xattrs, "user.a", "one");
	xattrs = with(xattrs, "user.b", "");
	xattrs = with(xattrs, "user.c", "three");
	xattrs = with(xattrs, "user.a", "a longer value");
	assert_int_equal(count(xattrs), 3);
	assert_value(xattrs, "user.a", "a longer value");
	assert_value(xattrs, "user.b", "");
	assert_value(xattrs, "user.c", "three");
	assert_value(xattrs, "user.", NULL);

	KvcXattrs *less = NULL;
	assert_int_equal(kvc_xattrs_remove(xattrs, "user.none", &less), -ENODATA);
	assert_int_equal(kvc_xattrs_remove(xattrs, "user.b", &less), 0);
	assert_int_equal(count(less), 2);
	assert_value(less, "user.c", "three");
	/* The old set is as it was. */
	assert_value(xattrs, "user.b", "");
	kvc_xattrs_unref(less);
}

static void
test_the_last_one_removed_leaves_nothing(void **state)
{
	g_autoptr(KvcXattrs) xattrs = with(NULL, "user.a", "x");
	KvcXattrs *less = xattrs;
	assert_int_equal(kvc_xattrs_remove(xattrs, "user.a", &less), 0);
	assert_null(less);
	assert_int_equal(kvc_xattrs_remove(NULL, "user.a", &less), -ENODATA);
}

static void
test_values_are_bytes(void **state)
{
	const char value[] = {0, 1, 0, (char)0xff, 0};
	KvcXattrs *xattrs = NULL;
	size_t bytes, cursor = 0;
	const void *got;
	const char *name;
	assert_int_equal(kvc_xattrs_set(NULL, "user.x", value, sizeof(value), &xattrs), 0);
	assert_true(kvc_xattrs_next(xattrs, &cursor, &name, &got, &bytes));
	assert_string_equal(name, "user.x");
	assert_int_equal(bytes, sizeof(value));
	assert_memory_equal(got, value, sizeof(value));
	assert_false(kvc_xattrs_next(xattrs, &cursor, &name, &got, &bytes));
	kvc_xattrs_unref(xattrs);
}

static void
test_limits(void **state)
{
	g_autofree char *big = g_malloc0(KVC_XATTR_VALUE_MAX_BYTES + 1);
	g_autofree char *name = g_strnfill(KVC_XATTR_NAME_MAX_BYTES, 'n');
	g_autofree char *long_name = g_strnfill(KVC_XATTR_NAME_MAX_BYTES + 1, 'n');
	g_autoptr(KvcXattrs) xattrs = NULL;
	KvcXattrs *out = NULL;
	assert_int_equal(kvc_xattrs_set(NULL, "", "", 0, &out), -ERANGE);
	assert_int_equal(kvc_xattrs_set(NULL, long_name, "", 0, &out), -ERANGE);
	assert_int_equal(kvc_xattrs_set(NULL, name, big, KVC_XATTR_VALUE_MAX_BYTES + 1, &out),
			 -E2BIG);
	assert_int_equal(kvc_xattrs_set(NULL, name, big, KVC_XATTR_VALUE_MAX_BYTES, &xattrs), 0);
	assert_int_equal(kvc_xattrs_set(xattrs, "user.b", big, 4096, &out), -ENOSPC);
	assert_null(out);
	/* What takes the place of a value needs no room besides it. */
	assert_int_equal(kvc_xattrs_set(xattrs, name, big, KVC_XATTR_VALUE_MAX_BYTES, &out), 0);
	kvc_xattrs_unref(out);
}

static void
test_flags(void **state)
{
	g_autoptr(KvcXattrs) xattrs = with(NULL, "user.a", "x");
	KvcXattrs *out = NULL;
	assert_int_equal(kvc_xattrs_change(xattrs, "user.a", "y", 1, XATTR_CREATE, &out), -EEXIST);
	assert_int_equal(kvc_xattrs_change(xattrs, "user.b", "y", 1, XATTR_REPLACE, &out),
			 -ENODATA);
	assert_int_equal(kvc_xattrs_change(xattrs, "user.b", NULL, 0, 0, &out), -ENODATA);
	assert_int_equal(kvc_xattrs_change(xattrs, "user.b", "y", 1, XATTR_CREATE, &out), 0);
	assert_int_equal(count(out), 2);
	kvc_xattrs_unref(out);
	assert_int_equal(kvc_xattrs_change(xattrs, "user.a", NULL, 0, 0, &out), 0);
	assert_null(out);
}

static void
test_names_of_users(void **state)
{
	assert_true(kvc_xattr_name_is_user("user.a"));
	assert_true(kvc_xattr_name_is_user("user.kvcache"));
	assert_false(kvc_xattr_name_is_user("user."));
	assert_false(kvc_xattr_name_is_user("user.kvcache.tiers"));
	assert_false(kvc_xattr_name_is_user("security.capability"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_set_get_and_remove),
		cmocka_unit_test(test_the_last_one_removed_leaves_nothing),
		cmocka_unit_test(test_values_are_bytes),
		cmocka_unit_test(test_limits),
		cmocka_unit_test(test_flags),
		cmocka_unit_test(test_names_of_users),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
