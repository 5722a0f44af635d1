/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Older versions that a store left behind, beside renames and deletions: what is deleted, and what
 * must not be.
 */

#include "tests/unit/gated-policy.h"
#include "tests/unit/rename-log-fixture.h"

static Two
two_logged_started(size_t n, Dir *dir)
{
	Two t = two_new(n);
	open_log(&t, dir);
	kvc_store_controller_start(t.b.store);
	return t;
}

static void
set_int(FakeAdapter *fake, int *what, int value)
{
	pthread_mutex_lock(&fake->lock);
	*what = value;
	pthread_mutex_unlock(&fake->lock);
}

static void
set_locks(FakeAdapter *fake, const KvcObjectKey *key, int locks)
{
	pthread_mutex_lock(&fake->lock);
	fake_object(fake, key)->locks = locks;
	pthread_mutex_unlock(&fake->lock);
}

/* `mv y n; mv n z; write n`: only one adapter has y, and does not rename n: it is z's. */
static void
test_an_older_version_is_not_what_is_yet_to_be_renamed(void **state)
{
	Two t = two_logged_started(2, *state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	rename_and_hold(&t);
	rename_keys(&t.b, t.new_key, third);
	write_version(&t, t.new_key, 1);
	kvc_store_controller_settle(t.b.store);
	set_locks(fake, third, 1);
	fake_release_renames(fake);
	wait_until(env_stat(t.b.env, stores_blocked) == 1);
	wait_until(env_counts(t.b.env).dirty_objects == 0);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_false(is_replayed(all, 0, t.new_key));
	set_locks(fake, third, 0);
	drain(&t.b);
	assert_true(fake_has_version(fake, third, t.old_key, 0));
	assert_false(fake_has(fake, t.new_key, NULL));
	assert_true(fake_has_version(t.b.env->fakes[1], t.new_key, t.new_key, 1));
	two_logged_free(&t);
}

/* The store of the newer OLD was given up before NEW was stored: nothing overwrites OLD. */
static void
test_an_old_name_is_deleted_where_a_newer_one_was_given_up(void **state)
{
	Two t = two_new(2);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	fake_set(fake, &fake->hold[FAKE_STORE], false);
	fake->bad_store = t.old_key;
	write_version(&t, t.old_key, 1);
	wait_until(env_stat(t.b.env, stores_failed) == 1);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_true(fake_has_version(t.b.env->fakes[1], t.old_key, t.old_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_free(&t);
}

/* The same when it is given up after NEW was stored. */
static void
test_an_old_name_is_deleted_where_a_newer_one_is_given_up_later(void **state)
{
	Two t = two_new(2);
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
	fake->bad_store = t.old_key;
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(info_of(&t, t.new_key).tiers == (KVC_TIER_L1 | 3));
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_true(fake_has_version(t.b.env->fakes[1], t.old_key, t.old_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_free(&t);
}

/* The index does not know yet what an adapter has. */
static void
test_an_older_version_is_deleted_before_it_was_listed(void **state)
{
	Two t = two_started(2);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(GBytes) data = bytes_of(t.old_key, 100, 0);
	fake_put(fake, t.old_key, data);
	__atomic_store_n(&t.b.env->slots[0].is_listing, true, __ATOMIC_RELEASE);
	fake->fail_stores = KVC_STORE_TRIES;
	write_version(&t, t.old_key, 1);
	drain(&t.b);
	assert_true(fake_has_version(t.b.env->fakes[1], t.old_key, t.old_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_free(&t);
}

/* What blocks a store is before a rename that has ended on the adapter. */
static void
test_nothing_stays_dirty_behind_a_deletion_before_a_rename(void **state)
{
	Two t = two_new(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 0);
	drain(&t.b);
	set_int(fake, &fake->fail_deletes, INT_MAX);
	delete_key(&t.b, t.new_key, 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(env_counts(t.b.env).dirty_objects == 0);
	assert_int_equal(get(&t.b.env->slots[0].renames_pending), 0);
	write_version(&t, t.new_key, 1);
	wait_until(env_counts(t.b.env).dirty_objects == 0);
	set_int(fake, &fake->fail_deletes, 0);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.new_key, 1));
	two_free(&t);
}

/* Without a log: an adapter that takes nothing and deletes nothing. */
static void
test_a_drain_does_not_wait_for_an_older_version(void **state)
{
	Two t = two_started(2);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	set_int(fake, &fake->fail_stores, INT_MAX);
	set_int(fake, &fake->fail_deletes, INT_MAX);
	write_version(&t, t.old_key, 1);
	assert_int_equal(kvc_store_controller_drain(t.b.store, 5 * KVC_SEC_NS), 0);
	two_free(&t);
}

/* `mv k z; write k; mv k y; write k; rm k`. */
static void
test_a_deletion_is_not_of_what_an_earlier_rename_has_yet_to_take(void **state)
{
	Two t = two_logged_started(1, *state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	rename_and_hold(&t);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.old_key, third);
	write_version(&t, t.old_key, 2);
	delete_logged(&t, t.old_key, 1);
	kvc_store_controller_settle(t.b.store);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_false(is_replayed(all, 0, t.old_key));
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_true(fake_has_version(fake, third, t.old_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_logged_free(&t);
}

/* `mv k z; write k; mv k y; rm y`: k is z's. */
static void
test_a_former_name_is_not_what_an_earlier_rename_has_yet_to_take(void **state)
{
	Two t = two_logged_started(1, *state);
	FakeAdapter *fake = t.b.env->fakes[0];
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	rename_and_hold(&t);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.old_key, third);
	delete_logged(&t, third, 1);
	kvc_store_controller_settle(t.b.store);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_false(is_replayed(all, 0, t.old_key));
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_false(fake_has(fake, third, NULL));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_logged_free(&t);
}

/* `write k; mv k z; write k; rm k` while the first one is being stored. */
static void
carried(void **state, bool twice)
{
	Two t = two_logged_started(1, *state);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake_set(fake, &fake->hold[FAKE_STORE], true);
	fake_set(fake, &fake->hold_renames, true);
	write_version(&t, t.old_key, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.old_key, 1);
	delete_logged(&t, t.old_key, 1);
	kvc_store_controller_settle(t.b.store);
	fake_release(fake, FAKE_STORE);
	wait_until(fake_count(fake, "rename", t.old_key) == 1);
	if (twice) {
		write_version(&t, t.old_key, 2);
		delete_logged(&t, t.old_key, 1);
		kvc_store_controller_settle(t.b.store);
	} else {
		g_autoptr(GArray) all = replay(&t, *state);
		assert_true(fake_has_version(fake, t.old_key, t.old_key, 0));
		assert_false(is_replayed(all, 0, t.old_key));
	}
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_false(fake_has(fake, t.old_key, NULL));
	assert_int_equal(fake_count(fake, "delete", t.old_key), 0);
	assert_int_equal(get(&t.b.env->slots[0].deletes_pending), 0);
	two_logged_free(&t);
}

static void
test_a_deletion_is_not_of_what_is_being_stored_to_be_renamed(void **state)
{
	carried(state, false);
}

static void
test_it_is_not_deleted_with_a_second_deletion_either(void **state)
{
	carried(state, true);
}

/* ---- An old name that stays, since nothing could be stored as the new one -------------------- */

static void
set_bad_store(Two *t, const KvcObjectKey *key)
{
	for (size_t a = 0; a < 2; a++) {
		pthread_mutex_lock(&t->b.env->fakes[a]->lock);
		t->b.env->fakes[a]->bad_store = key;
		pthread_mutex_unlock(&t->b.env->fakes[a]->lock);
	}
}

/* Version 0 of OLD is everywhere, version 1 only in L1 and renamed to NEW. */
static Two
two_left(Dir *dir)
{
	Two t = two_logged_started(2, dir);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	set_bad_store(&t, t.old_key);
	write_version(&t, t.old_key, 1);
	drain(&t.b);
	set_bad_store(&t, t.new_key);
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++)
		assert_true(fake_has_version(t.b.env->fakes[a], t.old_key, t.old_key, 0));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1);
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	return t;
}

static void
assert_old_is_gone(Two *t)
{
	drain(&t->b);
	for (size_t a = 0; a < 2; a++)
		assert_false(fake_has(t->b.env->fakes[a], t->old_key, NULL));
	assert_int_equal(kvc_key_index_hidden_from(t->b.env->context.index, t->old_key), 0);
	two_logged_free(t);
}

/* Also when we are killed before that is done. */
static void
delete_left(Two *t, Dir *dir, KvcObjectKey *key)
{
	for (size_t a = 0; a < 2; a++)
		fake_set(t->b.env->fakes[a], &t->b.env->fakes[a]->hold_deletes, true);
	delete_logged(t, key, 3);
	kvc_store_controller_settle(t->b.store);
	g_autoptr(GArray) all = replay(t, dir);
	for (size_t a = 0; a < 2; a++) {
		assert_true(is_replayed(all, a, t->old_key));
		fake_release_deletes(t->b.env->fakes[a]);
	}
	assert_old_is_gone(t);
}

static void
test_a_name_that_stayed_is_deleted_with_the_new_one(void **state)
{
	Two t = two_left(*state);
	delete_left(&t, *state, t.new_key);
}

static void
test_a_name_that_stayed_is_deleted_with_what_came_after_the_new_one(void **state)
{
	Two t = two_left(*state);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	set_bad_store(&t, third);
	rename_keys(&t.b, t.new_key, third);
	drain(&t.b);
	delete_left(&t, *state, third);
}

static void
test_a_name_that_stayed_is_deleted_once_the_new_one_is_stored(void **state)
{
	Two t = two_left(*state);
	Flushed done = {0};
	set_bad_store(&t, NULL);
	kvc_store_controller_flush(t.b.store, t.new_key, on_flushed, &done);
	wait_until(calls(&done) == 1);
	assert_int_equal(done.error, 0);
	assert_true(fake_has_version(t.b.env->fakes[1], t.new_key, t.old_key, 1));
	assert_old_is_gone(&t);
}

static void
test_a_name_that_stayed_is_deleted_when_the_new_one_is_replaced(void **state)
{
	Two t = two_left(*state);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, third, 2);
	rename_keys(&t.b, third, t.new_key);
	assert_old_is_gone(&t);
}

/* What is the old name by now is not what stayed. */
static void
test_a_newer_old_name_is_not_deleted_with_the_new_one(void **state)
{
	Two t = two_left(*state);
	set_bad_store(&t, NULL);
	write_version(&t, t.old_key, 2);
	drain(&t.b);
	delete_logged(&t, t.new_key, 3);
	drain(&t.b);
	g_autoptr(GArray) all = replay(&t, *state);
	for (size_t a = 0; a < 2; a++) {
		assert_true(fake_has_version(t.b.env->fakes[a], t.old_key, t.old_key, 2));
		assert_false(is_replayed(all, a, t.old_key));
	}
	two_logged_free(&t);
}

static void
test_a_name_that_stayed_may_be_the_name_again(void **state)
{
	Two t = two_left(*state);
	set_bad_store(&t, NULL);
	rename_keys(&t.b, t.new_key, t.old_key);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++)
		assert_true(fake_has_version(t.b.env->fakes[a], t.old_key, t.old_key, 1));
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 3);
	two_logged_free(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_an_older_version_is_not_what_is_yet_to_be_renamed),
		cmocka_unit_test(test_an_old_name_is_deleted_where_a_newer_one_was_given_up),
		cmocka_unit_test(test_an_old_name_is_deleted_where_a_newer_one_is_given_up_later),
		cmocka_unit_test(test_an_older_version_is_deleted_before_it_was_listed),
		cmocka_unit_test(test_nothing_stays_dirty_behind_a_deletion_before_a_rename),
		cmocka_unit_test(test_a_drain_does_not_wait_for_an_older_version),
		TEST_IN_DIR(test_a_deletion_is_not_of_what_an_earlier_rename_has_yet_to_take),
		TEST_IN_DIR(test_a_former_name_is_not_what_an_earlier_rename_has_yet_to_take),
		TEST_IN_DIR(test_a_deletion_is_not_of_what_is_being_stored_to_be_renamed),
		TEST_IN_DIR(test_it_is_not_deleted_with_a_second_deletion_either),
		TEST_IN_DIR(test_a_name_that_stayed_is_deleted_with_the_new_one),
		TEST_IN_DIR(test_a_name_that_stayed_is_deleted_with_what_came_after_the_new_one),
		TEST_IN_DIR(test_a_name_that_stayed_is_deleted_once_the_new_one_is_stored),
		TEST_IN_DIR(test_a_name_that_stayed_is_deleted_when_the_new_one_is_replaced),
		TEST_IN_DIR(test_a_newer_old_name_is_not_deleted_with_the_new_one),
		TEST_IN_DIR(test_a_name_that_stayed_may_be_the_name_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
