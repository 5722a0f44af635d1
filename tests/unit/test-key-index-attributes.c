/* SPDX-License-Identifier: Apache-2.0 */

/* Who is believed about mode, owner, times and xattrs of a key. */

#include "engine/key-index.h"
#include "engine/lock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#define A (1u << 0)
#define L1 KVC_TIER_L1

typedef struct Fixture {
	KvcKeyIndex *index;
	KvcKeyScope *scope;
	KvcObjectKey *key;
	KvcXattrs *xattrs; /* user.x=1 */
} Fixture;

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	f->index = kvc_key_index_new(NULL, NULL, NULL);
	f->scope = kvc_key_scope_new("model", 1, 0, NULL, NULL);
	f->key = kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, "abcd", 4, NULL);
	assert_int_equal(kvc_xattrs_set(NULL, "user.x", "1", 1, &f->xattrs), 0);
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;
	kvc_key_index_free(f->index);
	kvc_object_key_unref(f->key);
	kvc_key_scope_unref(f->scope);
	kvc_xattrs_unref(f->xattrs);
	g_free(f);
	return 0;
}

static void
add(Fixture *f, uint32_t tier, int64_t mtime_ns, uint32_t mode, uint32_t uid, KvcXattrs *xattrs)
{
	KvcObjectAttributes attributes = {
		.mtime_ns = mtime_ns, .mode = mode, .uid = uid, .gid = uid + 1, .xattrs = xattrs};
	kvc_key_index_add_with(f->index, f->key, tier, 100, &attributes);
}

static void
assert_info(Fixture *f, int64_t mtime_ns, uint32_t mode, uint32_t uid, bool has_xattrs)
{
	KvcObjectInfo info;
	KvcObjectAttributes attributes;
	assert_int_equal(kvc_key_index_get(f->index, f->key, &info), 0);
	assert_int_equal(info.mtime_ns, mtime_ns);
	assert_int_equal(info.mode, mode);
	assert_int_equal(info.uid, uid);
	assert_int_equal(kvc_key_index_get_attributes(f->index, f->key, &attributes), 0);
	assert_int_equal(attributes.mtime_ns, mtime_ns);
	assert_int_equal(attributes.mode, mode);
	assert_int_equal(attributes.uid, uid);
	assert_int_equal(attributes.xattrs != NULL, has_xattrs);
	kvc_object_attributes_clear(&attributes);
}

static void
test_an_adapter_fills_in_what_is_not_known(void **state)
{
	Fixture *f = *state;
	add(f, A, 5, 0, 0, NULL);
	assert_info(f, 5, 0, 0, false);
	add(f, A << 1, 6, 0100600, 7, f->xattrs);
	assert_info(f, 5, 0100600, 7, true);
	add(f, A << 2, 8, 0100640, 9, NULL);
	assert_info(f, 5, 0100600, 7, true);
}

static void
test_a_commit_replaces(void **state)
{
	Fixture *f = *state;
	add(f, A, 5, 0100600, 7, f->xattrs);
	add(f, L1, 6, 0100640, 8, NULL);
	assert_info(f, 6, 0100640, 8, false);
	/* One that brings none keeps what there is. */
	add(f, L1, 7, 0, 0, NULL);
	assert_info(f, 7, 0100640, 8, false);
	/* And so does a load. */
	add(f, L1, 0, 0, 0, NULL);
	assert_info(f, 7, 0100640, 8, false);
}

static void
test_set_attributes(void **state)
{
	Fixture *f = *state;
	KvcObjectAttributes attributes = {.mtime_ns = 50, .atime_ns = 60, .mode = 0400, .uid = 3};
	KvcObjectInfo info;
	assert_int_equal(
		kvc_key_index_set_attributes(f->index, f->key, &attributes, KVC_ATTRIBUTE_MODE),
		-ENOENT);
	add(f, A, 5, 0, 0, NULL);
	int64_t before = kvc_wall_ns();
	kvc_key_index_set_attributes(f->index, f->key, &attributes, KVC_ATTRIBUTE_UID);
	assert_info(f, 5, KVC_MODE_DEFAULT, 3, false);
	kvc_key_index_set_attributes(f->index, f->key, &attributes,
				     KVC_ATTRIBUTE_MODE | KVC_ATTRIBUTE_MTIME |
					     KVC_ATTRIBUTE_ATIME);
	assert_info(f, 50, 0100400, 3, false);
	assert_int_equal(kvc_key_index_get(f->index, f->key, &info), 0);
	assert_int_equal(info.atime_ns, 60);
	assert_true(info.ctime_ns >= before);
	/* What a user set no adapter changes. */
	add(f, A << 1, 6, 0100640, 9, f->xattrs);
	assert_info(f, 50, 0100400, 3, false);
}

static void
test_xattrs_are_changed_one_by_one(void **state)
{
	Fixture *f = *state;
	assert_int_equal(kvc_key_index_set_xattr(f->index, f->key, "user.y", "2", 1, 0), -ENOENT);
	add(f, L1, 5, 0100600, 7, f->xattrs);
	assert_int_equal(kvc_key_index_set_xattr(f->index, f->key, "user.y", "2", 1, 0), 0);
	assert_int_equal(kvc_key_index_set_xattr(f->index, f->key, "user.x", NULL, 0, 0), 0);
	assert_int_equal(kvc_key_index_set_xattr(f->index, f->key, "user.x", NULL, 0, 0), -ENODATA);
	KvcObjectAttributes attributes;
	assert_int_equal(kvc_key_index_get_attributes(f->index, f->key, &attributes), 0);
	assert_non_null(kvc_xattrs_get(attributes.xattrs, "user.y", NULL));
	assert_null(kvc_xattrs_get(attributes.xattrs, "user.x", NULL));
	kvc_object_attributes_clear(&attributes);
	/* They go with the key. */
	kvc_key_index_remove(f->index, f->key, L1);
	add(f, A, 5, 0, 0, NULL);
	assert_info(f, 5, 0, 0, false);
}

static void
test_access_moves_atime_only(void **state)
{
	Fixture *f = *state;
	KvcObjectInfo info;
	kvc_key_index_note_access(f->index, f->key);
	add(f, A, 5, 0, 0, NULL);
	assert_int_equal(kvc_key_index_get(f->index, f->key, &info), 0);
	assert_int_equal(info.atime_ns, 5);
	assert_int_equal(info.ctime_ns, 5);
	assert_int_equal(info.hits, 0);
	kvc_key_index_note_access(f->index, f->key);
	kvc_key_index_note_access(f->index, f->key);
	assert_int_equal(kvc_key_index_get(f->index, f->key, &info), 0);
	assert_true(info.atime_ns > 5);
	assert_int_equal(info.mtime_ns, 5);
	assert_int_equal(info.ctime_ns, 5);
	assert_int_equal(info.hits, 2);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_an_adapter_fills_in_what_is_not_known),
		TEST(test_a_commit_replaces),
		TEST(test_set_attributes),
		TEST(test_xattrs_are_changed_one_by_one),
		TEST(test_access_moves_atime_only),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
