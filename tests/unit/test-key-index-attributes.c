/* SPDX-License-Identifier: Apache-2.0 */

/* Who is believed about mode, owner, times and xattrs of a key. */

#include "engine/key-index.h"
#include "engine/lock.h"

#include <errno.h>
#include <limits.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#define A (1u << 0)
#define B (1u << 1)
#define L1 KVC_TIER_L1

typedef struct Fixture {
	KvcKeyIndex *index;
	KvcKeyScope *scope;
	KvcObjectKey *key, *plain;
	KvcXattrs *xattrs; /* user.x=1 */
} Fixture;

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	f->index = kvc_key_index_new(NULL, NULL, NULL);
	f->scope = kvc_key_scope_new("model", 1, 0, NULL, NULL);
	f->key = kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, "abcd", 4, NULL);
	g_autoptr(KvcKeyScope) directory = kvc_key_scope_new_plain("directory", NULL);
	f->plain = kvc_object_key_new(directory, KVC_SPACE_PLAIN, "file", 4, NULL);
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
	kvc_object_key_unref(f->plain);
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

/* ---- Which of two versions is believed ----------------------------------------------------- */

#define T INT64_C(1700000000123456789)

static uint32_t
tell(Fixture *f,
     KvcObjectKey *key,
     uint32_t tier,
     int64_t version_ns,
     uint64_t bytes,
     uint32_t mode)
{
	/* What users set must not matter: the newer, the older. */
	KvcObjectAttributes attributes = {
		.mtime_ns = 2 * T - version_ns, .mode = mode, .version_ns = version_ns};
	return kvc_key_index_add_with(f->index, key, tier, bytes, &attributes);
}

static KvcObjectInfo
info_of(Fixture *f, KvcObjectKey *key)
{
	KvcObjectInfo info;
	assert_int_equal(kvc_key_index_get(f->index, key, &info), 0);
	return info;
}

static int64_t
version_of(Fixture *f, KvcObjectKey *key)
{
	KvcObjectAttributes attributes;
	assert_int_equal(kvc_key_index_get_attributes(f->index, key, &attributes), 0);
	kvc_xattrs_unref(attributes.xattrs);
	return attributes.version_ns;
}

static void
test_an_older_version_is_hidden(void **state)
{
	Fixture *f = *state;
	assert_int_equal(tell(f, f->plain, A, T, 100, 0), 0);
	assert_int_equal(tell(f, f->plain, B, T - 1, 50, 0), B);
	KvcObjectInfo info = info_of(f, f->plain);
	assert_int_equal(info.tiers, A);
	assert_int_equal(info.bytes, 100);
	assert_int_equal(info.mtime_ns, T);
	assert_int_equal(version_of(f, f->plain), T);
	assert_int_equal(kvc_key_index_hidden_from(f->index, f->plain), B);
	/* Nor is it believed the second time. */
	assert_int_equal(tell(f, f->plain, B, T - 1, 50, 0), 0);
	assert_int_equal(info_of(f, f->plain).tiers, A);
}

/* What was loaded from the older one is told too: L1 must not keep it. */
static void
test_a_newer_version_hides_what_was_known(void **state)
{
	Fixture *f = *state;
	tell(f, f->plain, A, T - 1, 50, S_IFREG | 0600);
	tell(f, f->plain, L1, 0, 50, 0);
	uint32_t version = info_of(f, f->plain).version;
	assert_int_equal(tell(f, f->plain, B, T, 100, S_IFREG | 0640), A | L1);
	KvcObjectInfo info = info_of(f, f->plain);
	assert_int_equal(info.tiers, B);
	assert_int_equal(info.bytes, 100);
	assert_int_equal(info.mtime_ns, T);
	assert_int_equal(info.mode, S_IFREG | 0640);
	assert_int_equal(version_of(f, f->plain), T);
	assert_int_not_equal(info.version, version);
	assert_int_equal(kvc_key_index_hidden_from(f->index, f->plain), A);
}

static void
assert_both_believed(Fixture *f, KvcObjectKey *key, int64_t first_ns, int64_t second_ns)
{
	assert_int_equal(tell(f, key, A, first_ns, 100, 0), 0);
	assert_int_equal(tell(f, key, B, second_ns, 100, 0), 0);
	assert_int_equal(info_of(f, key).tiers, A | B);
	kvc_key_index_remove(f->index, key, A | B);
}

static void
test_versions_that_cannot_be_told_apart_are_one(void **state)
{
	Fixture *f = *state;
	assert_both_believed(f, f->plain, T, T);
	assert_both_believed(f, f->plain, T, 0);
	assert_both_believed(f, f->plain, 0, T);
	assert_both_believed(f, f->plain, 0, 0);
	/* All chunks of one hash are the same. */
	assert_both_believed(f, f->key, T, T - 1);
}

/* Of an adapter that does not know its version nothing is hidden, whatever the others know. */
static void
test_an_unknown_version_is_not_hidden(void **state)
{
	Fixture *f = *state;
	const uint32_t C = 1u << 2;
	for (unsigned is_first = 0; is_first < 2; is_first++) {
		assert_int_equal(tell(f, f->plain, is_first ? A : B, is_first ? 0 : T - 1, 100, 0),
				 0);
		assert_int_equal(tell(f, f->plain, is_first ? B : A, is_first ? T - 1 : 0, 100, 0),
				 0);
		assert_int_equal(tell(f, f->plain, C, T, 100, 0), B);
		assert_int_equal(info_of(f, f->plain).tiers, A | C);
		assert_int_equal(kvc_key_index_hidden_from(f->index, f->plain), B);
		kvc_key_index_unhide(f->index, f->plain, B, 0);
		kvc_key_index_remove(f->index, f->plain, A | C);
	}
	/* A tier that tells something else of itself: what it told before is not known any more. */
	tell(f, f->plain, A, T, 100, 0);
	tell(f, f->plain, A, 0, 100, 0);
	assert_int_equal(tell(f, f->plain, B, T - 1, 100, 0), 0);
	assert_int_equal(info_of(f, f->plain).tiers, A | B);
}

static int64_t
commit(Fixture *f)
{
	const KvcObjectAttributes attributes = {.mtime_ns = 5, .version_ns = 7};
	return kvc_key_index_replace_with(f->index, f->plain, 100, &attributes);
}

static void
test_a_commit_is_newer_than_what_was_known(void **state)
{
	Fixture *f = *state;
	int64_t before = kvc_wall_ns();
	int64_t first = commit(f);
	assert_true(first >= before && first <= kvc_wall_ns());
	assert_true(commit(f) > first);
	kvc_key_index_remove(f->index, f->plain, L1);
	/* The clock was ahead once, or of another host. */
	int64_t ahead = kvc_wall_ns() + 1000 * KVC_SEC_NS;
	tell(f, f->plain, A, ahead, 100, 0);
	assert_int_equal(commit(f), ahead + 1);
	assert_int_equal(version_of(f, f->plain), ahead + 1);
	kvc_key_index_remove(f->index, f->plain, L1);
	kvc_key_index_unhide(f->index, f->plain, A, 0);
	tell(f, f->plain, A, INT64_MAX, 100, 0);
	assert_int_equal(commit(f), INT64_MAX);
}

/* What is set here says nothing about which version an adapter has. */
static void
test_the_version_stays(void **state)
{
	Fixture *f = *state;
	KvcObjectAttributes attributes = {.mtime_ns = 3 * T, .mode = 0600, .version_ns = 3 * T};
	tell(f, f->plain, A, T, 100, 0);
	assert_int_equal(kvc_key_index_set_attributes(f->index, f->plain, &attributes, UINT_MAX),
			 0);
	assert_int_equal(kvc_key_index_set_xattr(f->index, f->plain, "user.x", "1", 1, 0), 0);
	tell(f, f->plain, L1, 0, 100, 0);
	assert_int_equal(version_of(f, f->plain), T);
	assert_int_equal(tell(f, f->plain, B, T - 1, 100, 0), B);
	assert_int_equal(info_of(f, f->plain).tiers, A | L1);
}

/* But what others tell of the new name is not compared with what was told of the former one. */
static void
test_a_rename_keeps_the_version(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) new_key =
		kvc_object_key_new(f->plain->scope, KVC_SPACE_PLAIN, "new", 3, NULL);
	tell(f, f->plain, A, T, 100, 0);
	kvc_key_index_rename(f->index, f->plain, new_key, false, A, A);
	kvc_key_index_end_rename_from(f->index, f->plain, A, false);
	kvc_key_index_end_rename_to(f->index, new_key, A, KVC_RENAME_PRESENT, false);
	assert_int_equal(version_of(f, new_key), T);
	assert_int_equal(tell(f, new_key, B, T + 1, 100, 0), 0);
	assert_int_equal(info_of(f, new_key).tiers, A | B);
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
		TEST(test_an_older_version_is_hidden),
		TEST(test_a_newer_version_hides_what_was_known),
		TEST(test_versions_that_cannot_be_told_apart_are_one),
		TEST(test_an_unknown_version_is_not_hidden),
		TEST(test_a_commit_is_newer_than_what_was_known),
		TEST(test_the_version_stays),
		TEST(test_a_rename_keeps_the_version),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
