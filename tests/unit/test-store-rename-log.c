/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Renames and deletions that overtake each other in the StoreController, and what the deletion log
 * says meanwhile: killed at any moment, nothing that was deleted is back after the replay.
 */

#include "tests/unit/gated-policy.h"
#include "tests/unit/rename-log-fixture.h"

static Two
two_logged(Dir *dir)
{
	Two t = two_new(1);
	open_log(&t, dir);
	return t;
}

static Two
two_logged_started(Dir *dir)
{
	Two t = two_logged(dir);
	kvc_store_controller_start(t.b.store);
	return t;
}

/* OLD was renamed before anything was stored: NEW's store is held, OLD is to be deleted after it.
 */
static void
rename_what_is_not_stored(Two *t)
{
	FakeAdapter *fake = t->b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	write_version(t, t->old_key, 0);
	rename_keys(&t->b, t->old_key, t->new_key);
	kvc_store_controller_start(t->b.store);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
}

/* Killed now: what FAKE has as KEY is deleted, or it has nothing. */
static void
assert_gone_after_a_kill(Two *t, Dir *dir, const KvcObjectKey *key)
{
	g_autoptr(GArray) all = replay(t, dir);
	assert_true(is_replayed(all, 0, key) || !fake_has(t->b.env->fakes[0], key, NULL));
}

/* OLD is deleted late, and there is a newer one of a newer one. */
static void
test_a_late_deletion_of_the_old_name_and_a_store_do_not_overlap(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	rename_what_is_not_stored(&t);
	fake_set(fake, &fake->hold[FAKE_STORE], false);
	fake->fail_stores = 2;
	write_version(&t, t.old_key, 1);
	wait_until(env_stat(t.b.env, stores_retried) == 2);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	rename_keys(&t.b, t.old_key, third);
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	write_version(&t, t.old_key, 2);
	wait_until(fake_count_held(fake, FAKE_STORE) == 3);
	fake_set(fake, &fake->hold_deletes, true);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "delete", t.new_key) == 1);
	fake_release(fake, FAKE_STORE);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_int_equal(fake_get(fake, &fake->overlaps), 0);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 2));
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 1);
	two_logged_free(&t);
}

/* A newer OLD, one of two that wait for their next try, when the log has to be written before it.
 */
static void
test_a_store_in_back_off_waits_for_the_log(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	rename_what_is_not_stored(&t);
	fake_set(fake, &fake->hold[FAKE_STORE], false);
	fake->fail_stores = INT_MAX; /* they may be in one batch, or not */
	write_version(&t, t.old_key, 1);
	write_version(&t, third, 1);
	wait_until(env_stat(t.b.env, stores_retried) == 4);
	pthread_mutex_lock(&fake->lock);
	fake->fail_stores = 0;
	pthread_mutex_unlock(&fake->lock);
	delete_logged(&t, t.new_key, 1);
	wait_until(fake_count(fake, "delete", t.old_key) == 1);
	fake_release_nth(fake, FAKE_STORE, 0);
	drain(&t.b);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 1));
	assert_true(fake_has_version(fake, third, third, 1));
	two_logged_free(&t);
}

/* As without the rename: an object must not stay dirty for ever. */
static void
test_what_is_renamed_behind_a_failing_deletion_is_given_up(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->fail_deletes = INT_MAX;
	delete_key(&t.b, t.old_key, 1);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(env_counts(t.b.env).dirty_objects == 0);
	assert_int_equal(env_stat(t.b.env, stores_blocked), 1);
	pthread_mutex_lock(&fake->lock);
	fake->fail_deletes = 0;
	pthread_mutex_unlock(&fake->lock);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 1));
	two_free(&t);
}

/* The index has the rename when the controller is told of the deletion before it. */
static void
test_a_deletion_is_done_though_something_is_renamed_onto_the_name(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	t.b.store->policy = &gated_policy;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold_renames, true);
	gate_close();
	write_version(&t, third, 0);
	gate_wait();
	delete_logged(&t, t.new_key, 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	gate_open();
	wait_until(fake_count(fake, "rename", t.old_key) == 1);
	assert_gone_after_a_kill(&t, *state, t.new_key);
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	two_logged_free(&t);
}

/* The same, when another rename onto it is going on. */
static void
test_a_deletion_is_done_though_something_is_renamed_onto_the_name_twice(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3), fourth = key_new(t.b.env, 4);
	t.b.store->policy = &gated_policy;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	write_version(&t, third, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold_renames, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count(fake, "rename", t.old_key) == 1);
	gate_close();
	write_version(&t, fourth, 0);
	gate_wait();
	delete_logged(&t, t.new_key, 1);
	rename_keys(&t.b, third, t.new_key);
	gate_open();
	go_round(&t);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_true(is_replayed(all, 0, t.new_key));
	fake_release_renames(fake);
	drain(&t.b);
	assert_int_equal(fake_count(fake, "delete", t.new_key), 1);
	assert_true(fake_has_version(fake, t.new_key, third, 0));
	two_logged_free(&t);
}

/* That the store of a newer OLD overwrote the renamed one does not confirm its own deletion. */
static void
test_a_deletion_behind_a_store_is_not_confirmed_by_it(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	rename_what_is_not_stored(&t);
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	fake_set(fake, &fake->hold_deletes, true);
	delete_logged(&t, t.old_key, 1);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release_nth(fake, FAKE_STORE, 1);
	wait_until(fake_count(fake, "delete", t.old_key) == 1);
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release(fake, FAKE_STORE);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_gone_after_a_kill(&t, *state, t.old_key);
	two_logged_free(&t);
}

/* There and back, deleted, written again and renamed: nothing waits for itself. */
static void
test_a_deleted_name_of_before_waits_for_no_later_store(void **state)
{
	Two t = two_logged(*state);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, t.old_key, 0);
	rename_keys(&t.b, t.old_key, t.new_key);
	rename_keys(&t.b, t.new_key, t.old_key);
	delete_logged(&t, t.old_key, 1);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.old_key, third);
	kvc_store_controller_start(t.b.store);
	drain(&t.b);
	assert_true(fake_has_version(t.b.env->fakes[0], third, t.old_key, 1));
	assert_false(fake_has(t.b.env->fakes[0], t.old_key, NULL));
	two_logged_free(&t);
}

/* There, back and there, and deleted: the end of the first rename is not that of the last one. */
static void
test_a_name_that_was_former_twice_is_deleted(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	rename_what_is_not_stored(&t);
	rename_keys(&t.b, t.new_key, t.old_key);
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	rename_keys(&t.b, t.old_key, t.new_key);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release_nth(fake, FAKE_STORE, 1);
	wait_until(env_stat(t.b.env, stores_completed) == 1);
	go_round(&t);
	assert_true(fake_has(fake, t.old_key, NULL));
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_false(fake_has(fake, t.old_key, NULL));
	assert_false(fake_has(fake, t.new_key, NULL));
	two_logged_free(&t);
}

/* A newer OLD is there, and not stored yet, when NEW is deleted. */
static void
test_a_former_name_is_deleted_though_it_is_there_again(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->fail_stores = 2;
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(env_stat(t.b.env, stores_retried) == 2);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	fake_set(fake, &fake->hold_deletes, true);
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	delete_logged(&t, t.new_key, 1);
	wait_until(fake_count(fake, "delete", t.new_key) == 1);
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release(fake, FAKE_STORE);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 1));
	two_logged_free(&t);
}

/* NEW is stored, and deleted, before the newer OLD is stored over what was renamed. */
static void
test_a_former_name_is_deleted_though_its_newer_store_is_held(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(info_of(&t, t.new_key).tiers == (KVC_TIER_L1 | 1));
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	wait_until(!fake_has(fake, t.new_key, NULL));
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 1));
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 1);
	two_logged_free(&t);
}

/* OLD is to be deleted late, and another one is being renamed to it. */
static void
test_a_late_deletion_of_the_old_name_is_none_of_what_is_renamed_to_it(void **state)
{
	Two t = two_logged_started(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, third, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	fake->fail_stores = 1;
	write_version(&t, t.old_key, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "store", t.new_key) == 1);
	fake_set(fake, &fake->hold_renames, true);
	rename_keys(&t.b, third, t.old_key);
	wait_until(fake_count(fake, "rename", third) == 1);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release_renames(fake);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.old_key, third, 0));
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 1);
	two_logged_free(&t);
}

/* That it is renamed away does not confirm the deletion of what is to be renamed back. */
static void
test_a_rename_back_is_no_end_of_a_deletion(void **state)
{
	Two t = two_logged_started(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	rename_and_hold(&t);
	rename_keys(&t.b, t.new_key, t.old_key);
	delete_logged(&t, t.old_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_set(fake, &fake->hold_deletes, true);
	fake_release_renames(fake);
	wait_until(fake_count(fake, "delete", t.old_key) == 1);
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_false(fake_has(fake, t.old_key, NULL));
	two_logged_free(&t);
}

/* `mv k z; write k; rm k`: what L2 has as k until it is renamed is z's. */
static void
test_a_deletion_is_not_of_what_is_yet_to_be_renamed(void **state)
{
	Two t = two_logged_started(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	rename_and_hold(&t);
	write_version(&t, t.old_key, 1);
	delete_logged(&t, t.old_key, 1);
	kvc_store_controller_settle(t.b.store);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_false(is_replayed(all, 0, t.old_key));
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 0));
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_false(fake_has(fake, t.old_key, NULL));
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	two_logged_free(&t);
}

/* Nor does it confirm the deletion of what was there before that, and is yet to be renamed too. */
static void
test_a_deletion_of_nothing_does_not_confirm_an_older_one(void **state)
{
	Two t = two_logged_started(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3), fourth = key_new(t.b.env, 4);
	write_version(&t, t.old_key, 0);
	write_version(&t, third, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold_renames, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count(fake, "rename", t.old_key) == 1);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	rename_keys(&t.b, third, t.old_key);
	rename_keys(&t.b, t.old_key, fourth);
	write_version(&t, t.old_key, 1);
	delete_logged(&t, t.old_key, 1);
	kvc_store_controller_settle(t.b.store);
	assert_gone_after_a_kill(&t, *state, t.old_key);
	fake_release_renames(fake);
	drain(&t.b);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_int_equal(all->len, 0);
	assert_true(fake_has_version(fake, fourth, third, 0));
	assert_false(fake_has(fake, t.old_key, NULL));
	assert_false(fake_has(fake, t.new_key, NULL));
	two_logged_free(&t);
}

/* The older one was stored when there was a newer one, and another adapter was yet to rename. */
static void
test_an_older_version_is_deleted_though_a_rename_is_not_over(void **state)
{
	Two t = two_new(2);
	FakeAdapter **fakes = t.b.env->fakes;
	open_log(&t, *state);
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_set(fakes[1], &fakes[1]->hold_renames, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(info_of(&t, t.new_key).renaming == 2);
	fake_set(fakes[0], &fakes[0]->hold[FAKE_STORE], true);
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(fakes[0], FAKE_STORE) == 1);
	write_version(&t, t.old_key, 2);
	fake_release_nth(fakes[0], FAKE_STORE, 0);
	fakes[0]->fail_stores = 3;
	fake_release(fakes[0], FAKE_STORE);
	wait_until(env_stat(t.b.env, stores_failed) == 1);
	fake_release_renames(fakes[1]);
	drain(&t.b);
	assert_true(fake_has_version(fakes[1], t.old_key, t.old_key, 2));
	assert_false(fake_has(fakes[0], t.old_key, NULL));
	two_logged_free(&t);
}

/* NEW is deleted, and so OLD again, while an earlier deletion of OLD is being done. */
static void
test_a_former_name_that_was_deleted_before_is_not_hidden_for_ever(void **state)
{
	Two t = two_logged(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	fake_set(fake, &fake->hold_deletes, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	delete_logged(&t, t.old_key, 1);
	wait_until(fake_count(fake, "delete", t.old_key) == 1);
	delete_logged(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release_deletes(fake);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(kvc_key_index_hidden_from(t.b.env->context.index, t.old_key), 0);
	assert_int_equal(kvc_key_index_hidden_from(t.b.env->context.index, t.new_key), 0);
	two_logged_free(&t);
}

/* OLD, deleted since, is not there to be hidden when the store of NEW is given up. */
static void
test_a_deleted_former_name_is_not_hidden_where_the_new_one_is_given_up(void **state)
{
	Two t = two_logged_started(*state);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	fake->fail_stores = 1 + KVC_STORE_TRIES;
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "store", t.new_key) == 1);
	delete_logged(&t, t.old_key, 1);
	wait_until(!fake_has(fake, t.old_key, NULL));
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(env_stat(t.b.env, stores_failed), 1);
	assert_int_equal(kvc_key_index_hidden_from(t.b.env->context.index, t.old_key), 0);
	two_logged_free(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_a_late_deletion_of_the_old_name_and_a_store_do_not_overlap),
		TEST_IN_DIR(test_a_store_in_back_off_waits_for_the_log),
		cmocka_unit_test(test_what_is_renamed_behind_a_failing_deletion_is_given_up),
		TEST_IN_DIR(test_a_deletion_is_done_though_something_is_renamed_onto_the_name),
		TEST_IN_DIR(
			test_a_deletion_is_done_though_something_is_renamed_onto_the_name_twice),
		TEST_IN_DIR(test_a_name_that_was_former_twice_is_deleted),
		TEST_IN_DIR(test_a_deletion_behind_a_store_is_not_confirmed_by_it),
		TEST_IN_DIR(test_a_deleted_name_of_before_waits_for_no_later_store),
		TEST_IN_DIR(test_a_former_name_is_deleted_though_it_is_there_again),
		TEST_IN_DIR(test_a_former_name_is_deleted_though_its_newer_store_is_held),
		TEST_IN_DIR(test_a_former_name_that_was_deleted_before_is_not_hidden_for_ever),
		TEST_IN_DIR(test_a_deleted_former_name_is_not_hidden_where_the_new_one_is_given_up),
		TEST_IN_DIR(test_a_late_deletion_of_the_old_name_is_none_of_what_is_renamed_to_it),
		TEST_IN_DIR(test_a_rename_back_is_no_end_of_a_deletion),
		TEST_IN_DIR(test_a_deletion_is_not_of_what_is_yet_to_be_renamed),
		TEST_IN_DIR(test_a_deletion_of_nothing_does_not_confirm_an_older_one),
		TEST_IN_DIR(test_an_older_version_is_deleted_though_a_rename_is_not_over),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
