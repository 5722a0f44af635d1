/* SPDX-License-Identifier: Apache-2.0 */

/* An older version is open, hence read-locked in L1, when an adapter that comes has a newer one. */

#include "tests/unit/storage-manager-fixture.h"

static char *
make_store(Fixture *f, const char *name)
{
	g_autofree char *path = g_build_filename(f->directory, name, NULL);
	assert_int_equal(mkdir(path, 0700), 0);
	return g_strdup_printf("type=fs,base_path=%s", path);
}

static void
fill(Fixture *f, const char *store, uint64_t bytes, unsigned version)
{
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	start(f, store, NULL);
	assert_int_equal(commit(f, key, bytes, byte_of(1, version), KVC_FINISH_REPLACE), 0);
	drain(f);
	stop(f);
}

static void
test_what_is_open_is_not_read_again(void **state)
{
	Fixture *f = *state;
	f->directory = g_dir_make_tmp("kvc-context-XXXXXX", NULL);
	kvc_key_scope_unref(f->scope);
	f->scope = kvc_key_scope_new_plain("directory", NULL);
	g_autofree char *a = make_store(f, "a");
	g_autofree char *b = make_store(f, "b");
	fill(f, a, 100, 1);
	fill(f, b, 200, 2);
	start(f, a, NULL);
	assert_int_equal(load(f, 1, 2), 1);
	KvcL1Object *open = try_read(f, 1);
	assert_non_null(open);
	g_autoptr(GError) error = NULL;
	assert_true(kvc_storage_manager_add_adapter(f->sm, b, &error) >= 0);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, 20 * KVC_SEC_NS), 0);
	/* Who has it open keeps it. */
	assert_true(has_content(open, 100, byte_of(1, 1)));
	kvc_storage_manager_finish_read(f->sm, open);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	KvcObjectInfo info;
	assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
	assert_int_equal(info.bytes, 200);
	assert_null(try_read(f, 1));
	assert_int_equal(load(f, 1, 2), 1);
	KvcL1Object *again = try_read(f, 1);
	assert_non_null(again);
	assert_true(has_content(again, 200, byte_of(1, 2)));
	kvc_storage_manager_finish_read(f->sm, again);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_what_is_open_is_not_read_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
