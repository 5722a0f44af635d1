/* SPDX-License-Identifier: Apache-2.0 */

/* Renames in the StoreController: which version of a key an adapter has before, under way and
 * after. */

#include "tests/unit/rename-fixture.h"

/*
 * One adapter gave up the newer version: it has none then, neither under its name nor, by a rename,
 * under another one; not even where a deletion of that one is confirmed in between.
 */
static void
test_an_older_version_is_deleted_where_a_newer_one_was_given_up(void **state)
{
	Two t = two_started(2);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 0);
	drain(&t.b);
	fake->fail_stores = KVC_STORE_TRIES;
	write_version(&t, t.old_key, 1);
	drain(&t.b);
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 2);
	assert_false(fake_has(fake, t.old_key, NULL));
	fake->hold_deletes = true;
	delete_key(&t.b, t.new_key, 3);
	rename_keys(&t.b, t.old_key, t.new_key);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_false(fake_has(fake, t.new_key, NULL));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 2);
	two_free(&t);
}

/* OLD is renamed while version 1 of it is being stored and 2 waits: 1 is stored, 2 is held as NEW.
 */
static void
rename_behind_an_older_version(Two *t)
{
	FakeAdapter *fake = t->b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	write_version(t, t->old_key, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	write_version(t, t->old_key, 2);
	rename_keys(&t->b, t->old_key, t->new_key);
	wait_until(get(&t->b.env->slots[0].renames_pending) == 1);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_has_version(fake, t->old_key, t->old_key, 1) &&
		   fake_count_held(fake, FAKE_STORE) == 1);
}

/* A crash before the last store leaves each name with bytes that were written for it. */
static void
test_an_older_version_does_not_get_the_new_name(void **state)
{
	Two t = two_started(2);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 0);
	drain(&t.b);
	rename_behind_an_older_version(&t);
	assert_true(fake_has_version(fake, t.new_key, t.new_key, 0));
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(fake_count(fake, "rename", t.old_key), 0);
	for (size_t a = 0; a < 2; a++) {
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 2));
		assert_false(fake_has(t.b.env->fakes[a], t.old_key, NULL));
	}
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	two_free(&t);
}

static void
fail_renames(FakeAdapter *fake, int n)
{
	pthread_mutex_lock(&fake->lock);
	fake->fail_renames = n;
	pthread_mutex_unlock(&fake->lock);
}

/* Its older version was still to be deleted under the name that something else gets now. */
static void
test_what_is_renamed_over_an_older_version_stays(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3), fourth = key_new(t.b.env, 4);
	write_version(&t, t.old_key, 0);
	write_version(&t, third, 0);
	drain(&t.b);
	rename_behind_an_older_version(&t);
	rename_keys(&t.b, third, t.old_key);
	wait_until(fake_count(fake, "rename", third) == 1);
	wait_until(info_of(&t, t.old_key).tiers == (KVC_TIER_L1 | 1));
	assert_int_equal(kvc_l1_manager_evict(t.b.env->context.l1, t.old_key), KVC_L1_SUCCESS);
	/* It is only in L2, and goes on to a name that it does not get at once. */
	fail_renames(fake, INT_MAX);
	rename_keys(&t.b, t.old_key, fourth);
	wait_until(fake_count(fake, "rename", t.old_key) > 0);
	fake_release(fake, FAKE_STORE);
	wait_until(fake_has_version(fake, t.new_key, t.old_key, 2));
	wait_until(get(&t.b.env->slots[0].renames_pending) == 1);
	fail_renames(fake, 0);
	drain(&t.b);
	assert_true(fake_has_version(fake, fourth, third, 0));
	assert_int_equal(info_of(&t, fourth).tiers, 1);
	assert_int_equal(fake_count(fake, "delete", t.old_key), 0);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 2));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 1);
	two_free(&t);
}

/* What is renamed to it is not there: nothing of that waits for the end of the rename from it. */
static void
test_a_rename_to_a_name_ends_before_one_from_it(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, t.old_key, 0);
	write_version(&t, third, 0);
	drain(&t.b);
	fake_put(fake, third, NULL);
	rename_behind_an_older_version(&t);
	rename_keys(&t.b, third, t.old_key);
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	assert_int_equal(info_of(&t, t.old_key).renaming, 0);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(info_of(&t, t.old_key).renaming, 0);
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 1);
	assert_true(fake_has_version(fake, t.old_key, third, 0));
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 2));
	two_free(&t);
}

/* The newest one is stored nowhere: its name of before does not show what was there before it. */
static void
test_an_older_version_is_not_back_under_the_old_name(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	rename_behind_an_older_version(&t);
	fake->fail_stores = KVC_STORE_TRIES;
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 1));
	kvc_key_index_add(t.b.env->context.index, t.old_key, 1, 100, 1);
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1);
	two_free(&t);
}

/* The page was read before the rename, and is told after it. */
static void
test_a_listing_does_not_bring_the_old_name_back(void **state)
{
	Two t = two_started(2);
	t.b.env->fakes[1]->ops.rename_key = NULL;
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->slots[0].is_listing = t.b.env->slots[1].is_listing = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	for (uint32_t adapter = 1; adapter <= 2; adapter++) {
		kvc_key_index_add(t.b.env->context.index, t.old_key, adapter, 100, 1);
		assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	}
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	write_version(&t, t.old_key, 1);
	drain(&t.b);
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 3);
	two_free(&t);
}

/* Stored under a name that it does not have any more: nobody knows it in L2 until it is renamed. */
static void
test_an_object_may_go_when_it_is_known_under_its_new_name(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	fake->hold_renames = fake->hold[FAKE_STORE] = true;
	write_version(&t, t.old_key, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(get(&t.b.env->slots[0].renames_pending) == 1);
	fake_release(fake, FAKE_STORE);
	wait_until(fake_count(fake, "rename", t.old_key) == 1);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 1);
	rename_keys(&t.b, t.new_key, third);
	assert_int_equal(kvc_l1_manager_evict(t.b.env->context.l1, third), KVC_L1_KEY_IS_LOCKED);
	fake_release_renames(fake);
	drain(&t.b);
	assert_int_equal(info_of(&t, third).tiers, KVC_TIER_L1 | 1);
	assert_true(fake_has_version(fake, third, t.old_key, 0));
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_int_equal(env_stat(t.b.env, renames_lost), 0);
	two_free(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_an_older_version_is_deleted_where_a_newer_one_was_given_up),
		cmocka_unit_test(test_an_older_version_does_not_get_the_new_name),
		cmocka_unit_test(test_what_is_renamed_over_an_older_version_stays),
		cmocka_unit_test(test_a_rename_to_a_name_ends_before_one_from_it),
		cmocka_unit_test(test_an_older_version_is_not_back_under_the_old_name),
		cmocka_unit_test(test_a_listing_does_not_bring_the_old_name_back),
		cmocka_unit_test(test_an_object_may_go_when_it_is_known_under_its_new_name),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
