/* SPDX-License-Identifier: Apache-2.0 */

/* Renames as a front end sees them: at once in what is known and in L1, then in L2. */

#include "tests/unit/storage-manager-rename-fixture.h"

static void
test_what_is_not_known_cannot_be_renamed(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	assert_int_equal(rename_number(f, 1, 2, 0), -ENOENT);
	assert_int_equal(rename_number(f, 1, 1, 0), -ENOENT);
	assert_int_equal(stat_of(f, "renames"), 0);
}

static void
test_a_known_name_is_kept_with_noreplace(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, SIZE);
	put(f, 2, SIZE);
	assert_int_equal(rename_number(f, 1, 2, KVC_RENAME_NOREPLACE), -EEXIST);
	assert_in_l1(f, 2, SIZE, 0);
	assert_int_equal(rename_number(f, 1, 3, KVC_RENAME_NOREPLACE), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(stat_of(f, "renames"), 1);
}

static void
test_a_name_for_itself_changes_nothing(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, SIZE);
	assert_int_equal(rename_number(f, 1, 1, 0), 0);
	assert_in_l1(f, 1, SIZE, 0);
}

static void
test_it_works_without_l2(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	put(f, 1, SIZE);
	KvcObjectInfo before = info_of(f, 1);
	assert_int_equal(rename_number(f, 1, 2, 0), 0);
	KvcObjectInfo after = info_of(f, 2);
	assert_int_equal(after.bytes, before.bytes);
	assert_int_equal(after.mtime_ns, before.mtime_ns);
	assert_int_equal(after.tiers, KVC_TIER_L1);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(lost(f), 1);
	assert_int_equal(await_rename(f, 2), 0);
}

static void
test_readers_keep_what_they_hold(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	put(f, 1, SIZE);
	put(f, 2, SIZE);
	KvcL1Object *old_one = try_read(f, 1), *replaced = try_read(f, 2);
	assert_int_equal(rename_number(f, 1, 2, 0), 0);
	assert_int_equal(rename_number(f, 2, 3, 0), 0);
	assert_true(has_content(old_one, SIZE, byte_of(1, 0)));
	assert_true(has_content(replaced, SIZE, byte_of(2, 0)));
	KvcL1Object *new_one = try_read(f, 3);
	assert_true(has_content(new_one, SIZE, byte_of(1, 0)));
	kvc_storage_manager_finish_read(f->sm, old_one);
	kvc_storage_manager_finish_read(f->sm, replaced);
	assert_int_equal(delete_key(f, 3), 0);
	assert_true(has_content(new_one, SIZE, byte_of(1, 0)));
	kvc_storage_manager_finish_read(f->sm, new_one);
	assert_status(f, "l1_used_bytes", "0");
	assert_status(f, "l1_read_locks", "0");
}

static void
test_its_memory_is_charged_once(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	put(f, 1, 3 * 4096);
	KvcL1Object *reader = try_read(f, 1);
	assert_int_equal(rename_number(f, 1, 2, 0), 0);
	assert_status(f, "l1_used_bytes", "12288");
	assert_status(f, "l1_objects", "1");
	kvc_storage_manager_finish_read(f->sm, reader);
	assert_status(f, "l1_used_bytes", "12288");
	assert_int_equal(delete_key(f, 2), 0);
	assert_status(f, "l1_used_bytes", "0");
}

static void
test_a_listing_has_the_new_name_once_and_last(void **state)
{
	Fixture *f = *state;
	KvcListEntry entries[4];
	start(f, MOCK, NULL);
	for (unsigned i = 1; i < 4; i++)
		put(f, i, SIZE);
	assert_int_equal(rename_number(f, 1, 9, 0), 0);
	size_t n = kvc_storage_manager_list(f->sm, f->scope, 1u << KVC_SPACE_PLAIN, 0, entries, 4);
	assert_int_equal(n, 3);
	static const unsigned expected[] = {2, 3, 9};
	for (size_t i = 0; i < n; i++) {
		g_autoptr(KvcObjectKey) key = key_of(f, expected[i]);
		assert_true(kvc_object_key_equal(entries[i].key, key));
		kvc_object_key_unref(entries[i].key);
	}
}

static void
test_a_scope_becomes_known_by_a_rename(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcKeyScope) other = kvc_key_scope_new_plain("other", NULL);
	g_autoptr(KvcObjectKey) old_key = key_of(f, 1);
	g_autoptr(KvcObjectKey) new_key = key_in(other, KVC_SPACE_PLAIN, 1);
	start(f, MOCK, NULL);
	put(f, 1, SIZE);
	assert_int_equal(f->n_scopes, 1);
	assert_int_equal(kvc_storage_manager_rename(f->sm, old_key, new_key, 0), 0);
	assert_int_equal(f->n_scopes, 2);
	g_autoptr(GPtrArray) scopes = kvc_storage_manager_list_scopes(f->sm);
	assert_int_equal(scopes->len, 1);
	assert_ptr_equal(scopes->pdata[0], other);
}

/* ---- With L2 --------------------------------------------------------------------------------- */

static void
test_an_evicted_object_is_loaded_by_its_new_name(void **state)
{
	Fixture *f = *state;
	start(f, SLOW_MOCK, MOCK);
	put_in_l2(f, 1, SIZE);
	assert_int_equal(rename_number(f, 1, 2, 0), 0);
	assert_int_equal(await_rename(f, 2), 0);
	assert_loaded(f, 2, 1);
	drain(f);
	assert_int_equal(info_of(f, 2).renaming, 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_status(f, "l2.0.renames_pending", "0");
	assert_int_equal(stat_of(f, "renames_lost"), 0);
}

/* The locks of a lookup that was held up keep the rename from being done. */
static void
test_a_lookup_does_not_make_a_renamed_key_forgotten(void **state)
{
	Fixture *f = *state;
	start(f, SLOW_MOCK, NULL);
	put_in_l2(f, 1, SIZE);
	for (unsigned i = 1; i < 20; i++) {
		KvcPrefetchHandle *lookups[] = {
			prefetch(f, i, i + 1, KVC_PREFETCH_LOOKUP_ONLY),
			prefetch(f, i + 1, i + 2, KVC_PREFETCH_LOOKUP_ONLY),
		};
		assert_int_equal(rename_number(f, i, i + 1, 0), 0);
		assert_int_not_equal(tiers(f, i + 1), 0);
		look_up(f, i + 1, i + 2);
		for (size_t k = 0; k < 2; k++)
			kvc_prefetch_handle_drop(lookups[k], NULL);
		assert_int_not_equal(tiers(f, i + 1), 0);
		assert_int_equal(tiers(f, i), 0);
	}
	assert_int_equal(await_rename(f, 20), 0);
	assert_loaded(f, 20, 1);
}

/* What a load brings of the object that was there before is not shown under the new name. */
static void
test_a_load_in_flight_of_the_replaced_object_is_not_admitted(void **state)
{
	Fixture *f = *state;
	start(f, SLOW_MOCK, NULL);
	put_in_l2(f, 1, SIZE);
	for (unsigned i = 0; i < 10; i++) {
		put(f, 2, SIZE);
		assert_int_equal(flush(f, 2), 0);
		assert_int_equal(evict(f, 2), 0);
		KvcPrefetchHandle *handle = prefetch(f, 2, 3, 0);
		g_usleep(i * 700);
		assert_int_equal(rename_number(f, 1, 2, 0), 0);
		result_of(f, handle);
		kvc_prefetch_handle_drop(handle, NULL);
		KvcL1Object *object = try_read(f, 2);
		if (object) {
			assert_true(has_content(object, SIZE, byte_of(1, 0)));
			kvc_storage_manager_finish_read(f->sm, object);
		}
		assert_int_equal(await_rename(f, 2), 0);
		assert_loaded(f, 2, 1);
		drain(f);
		assert_int_equal(rename_number(f, 2, 1, 0), 0);
		drain(f);
	}
}

static void
test_a_flush_waits_for_the_rename(void **state)
{
	Fixture *f = *state;
	start(f, SLOW_MOCK, NULL);
	put(f, 1, SIZE);
	assert_int_equal(rename_number(f, 1, 2, 0), 0);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(tiers(f, 2), KVC_TIER_L1 | 1);
	assert_status(f, "l1_dirty_objects", "0");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		PLAIN_TEST(test_what_is_not_known_cannot_be_renamed),
		PLAIN_TEST(test_a_known_name_is_kept_with_noreplace),
		PLAIN_TEST(test_a_name_for_itself_changes_nothing),
		PLAIN_TEST(test_it_works_without_l2),
		PLAIN_TEST(test_readers_keep_what_they_hold),
		PLAIN_TEST(test_its_memory_is_charged_once),
		PLAIN_TEST(test_a_listing_has_the_new_name_once_and_last),
		PLAIN_TEST(test_a_scope_becomes_known_by_a_rename),
		PLAIN_TEST(test_an_evicted_object_is_loaded_by_its_new_name),
		PLAIN_TEST(test_a_lookup_does_not_make_a_renamed_key_forgotten),
		PLAIN_TEST(test_a_load_in_flight_of_the_replaced_object_is_not_admitted),
		PLAIN_TEST(test_a_flush_waits_for_the_rename),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
