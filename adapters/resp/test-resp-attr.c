/* SPDX-License-Identifier: Apache-2.0 */

/* What goes with the bytes: it comes back, goes with them, and is in nobody's way. */

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "resp.h"
#include "test-resp-util.h"

#define SECRET "a\0b\n1 2\n"

/* 0640, 12:34 and two xattrs; to be cleared. */
static KvcObjectAttributes
attributes_new(void)
{
	KvcObjectAttributes a = {
		.mtime_ns = INT64_C(-1700000000) * KVC_SEC_NS,
		.mode = 0100640,
		.uid = 12,
		.gid = 34,
		.version_ns = INT64_C(1700000001) * KVC_SEC_NS,
	};
	g_autoptr(KvcXattrs) first = NULL;

	assert_int_equal(kvc_xattrs_set(NULL, "user.x", SECRET, sizeof(SECRET), &first), 0);
	assert_int_equal(kvc_xattrs_set(first, "user.empty name", "", 0, &a.xattrs), 0);
	return a;
}

static void
assert_info(const Resp *r, KvcObjectKey *key, const KvcObjectAttributes *want)
{
	KvcL2ObjectInfo info;
	size_t bytes;

	assert_true(lookup_info(r, key, &info) >= 0);
	assert_int_equal(info.mtime_ns, want->mtime_ns);
	assert_int_equal(info.mode, want->mode);
	assert_int_equal(info.uid, want->uid);
	assert_int_equal(info.gid, want->gid);
	assert_int_equal(info.version_ns, want->version_ns);
	const void *value = kvc_xattrs_get(info.xattrs, "user.x", &bytes);
	assert_int_equal(!value, !want->xattrs);
	if (value) {
		assert_int_equal(bytes, sizeof(SECRET));
		assert_memory_equal(value, SECRET, sizeof(SECRET));
		assert_non_null(kvc_xattrs_get(info.xattrs, "user.empty name", &bytes));
		assert_int_equal(bytes, 0);
	}
	kvc_xattrs_unref(info.xattrs);
}

static void
test_plain_file(void **state)
{
	const KvcObjectAttributes unknown = {0};
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) a = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "a", 1, NULL);
	g_autoptr(KvcObjectKey) b = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "b", 1, NULL);
	KvcObjectAttributes attributes = attributes_new(), other = attributes;
	KvcL2ListEntry entries[3] = {0};
	char *cursor = NULL;
	bool is_gone;

	assert_int_equal(store_with(&r, a, "12", 2, &attributes), 2);
	assert_answer("12", "GET kvcfs:1:a/b/a");
	assert_info(&r, a, &attributes);
	assert_int_equal(r.ops->list(r.adapter, NULL, &cursor, entries, 3), 1);
	assert_int_equal(entries[0].info.mode, 0100640);
	kvc_object_key_unref(entries[0].key);
	kvc_xattrs_unref(entries[0].info.xattrs);

	/* They go with it, and nothing is left. */
	assert_int_equal(r.ops->rename_key(r.adapter, a, b), 0);
	assert_info(&r, b, &attributes);
	assert_answer("2", "DBSIZE");
	other.mode = 0100000;
	assert_int_equal(store_with(&r, a, "", 0, &other), 0);
	assert_info(&r, a, &other);
	assert_int_equal(r.ops->rename_key(r.adapter, a, b), 0);
	assert_info(&r, b, &other);
	assert_answer("2", "DBSIZE");

	/* Changed alone: the version stays. */
	other.mode = 0100600;
	other.version_ns++;
	assert_int_equal(r.ops->set_attributes(r.adapter, b, &other), 0);
	other.version_ns--;
	assert_info(&r, b, &other);
	assert_int_equal(r.ops->set_attributes(r.adapter, a, &other), -ENOENT);
	assert_answer("2", "DBSIZE");

	/* Somebody else has replaced it, and by one whose attributes nobody knows. */
	assert_answer("OK", "SET kvcfs:1:a/b/b 123");
	assert_info(&r, b, &unknown);
	assert_int_equal(store(&r, b, "", 0), 0);
	assert_info(&r, b, &unknown);
	assert_answer("1", "DBSIZE");
	assert_int_equal(store_with(&r, b, "12", 2, &attributes), 2);
	assert_int_equal(delete_key(&r, b, &is_gone), 0);
	assert_true(is_gone);
	assert_answer("0", "DBSIZE");
	kvc_object_attributes_clear(&attributes);
	resp_free(&r);
}

/* A chunk has them only where there is something to say, since LMCache knows nothing of them. */
static void
test_chunk(void **state)
{
	KvcObjectAttributes common = {.mode = KVC_MODE_DEFAULT, .mtime_ns = 1, .version_ns = 2};
	const KvcObjectAttributes unknown = {0};
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);

	assert_int_equal(store_with(&r, key, "12", 2, &common), 2);
	assert_info(&r, key, &unknown);
	assert_answer("1", "DBSIZE");
	/* It is there, but gets the attributes. */
	common.mode = 0100600;
	assert_int_equal(store_with(&r, key, "12", 2, &common), 0);
	common.version_ns = 0;
	assert_info(&r, key, &common);
	assert_answer("2", "DBSIZE");
	common.mode = KVC_MODE_DEFAULT;
	assert_int_equal(r.ops->set_attributes(r.adapter, key, &common), 0);
	assert_info(&r, key, &unknown);
	assert_answer("1", "DBSIZE");
	resp_free(&r);
}

static void
test_nonsense(void **state)
{
	static const char *const texts[] = {
		"",
		"1",
		"1 2 100644 0 0 0 0",
		"2 2 100644 1 1 1 1\n",
		"1 3 100644 1 1 1 1\n",
		"1 2 40755 1 1 1 1\n",
		"1 2 100644 1 1 1 1 1\n",
		"1 -2 100644 1 1 1\n",
	};
	static const char *const half[] = {
		"1 2 100640 12 34 5 6\n18446744073709551615 2\nuser.x12",
		"1 2 100640 12 34 5 6\n6 3\nuser.x12",
		"1 2 100640 12 34 5 6\n6 18446744073709551615\nuser.x12",
		"1 2 100640 12 34 5 6\n6 2\nuser.",
		"1 2 100640 12 34 5 6\n20 1\nuser.kvcache.pinned11",
		"1 2 100640 12 34 5 6\n\n\n",
	};

	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
		KvcL2ObjectInfo info = {.bytes = 2};
		resp_attr_parse(texts[i], strlen(texts[i]), &info);
		assert_int_equal(info.mode, 0);
		assert_int_equal(info.version_ns, 0);
	}
	for (size_t i = 0; i < G_N_ELEMENTS(half); i++) {
		KvcL2ObjectInfo info = {.bytes = 2};
		resp_attr_parse(half[i], strlen(half[i]), &info);
		assert_int_equal(info.mode, 0100640);
		assert_int_equal(info.version_ns, 6);
		assert_null(info.xattrs);
	}
}

/* What is under the name of attributes may be anything. */
static void
test_others(void **state)
{
	const KvcObjectAttributes unknown = {0};
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "a", 1, NULL);
	g_autoptr(KvcObjectKey) other = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "b", 1, NULL);

	assert_int_equal(store(&r, key, "12", 2), 2);
	assert_answer("1", "RPUSH kvcfs:a:kvcfs:1:a/b/a x");
	assert_info(&r, key, &unknown);
	assert_int_equal(r.ops->rename_key(r.adapter, key, other), 0);
	assert_answer("1", "DBSIZE");
	assert_answer("1000000", "SETRANGE kvcfs:a:kvcfs:1:a/b/b 999999 x"); /* too long */
	assert_info(&r, other, &unknown);
	assert_line(&r, "server", "ok");
	resp_free(&r);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, start_server, stop_server)
	const struct CMUnitTest tests[] = {
		TEST(test_plain_file),
		TEST(test_chunk),
		TEST(test_others),
		cmocka_unit_test(test_nonsense),
	};
	g_autofree char *program = g_find_program_in_path("redis-server");

	if (!program) {
		printf("skipped: no command redis-server\n");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, set_up_directory, tear_down_directory);
}
