/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two adapters that came with different versions of one file, as a kill between two stores leaves
 * them, and the file is renamed.
 */

#include "tests/unit/rename-log-fixture.h"

/* As listings tell it: OLD is version 2 on the second adapter, 1 on the first one; which may have
 * something as NEW, too. */
static Two
two_versions(Dir *dir, bool has_new)
{
	Two t = two_new(2);
	KvcKeyIndex *index = t.b.env->context.index;
	open_log(&t, dir);
	for (unsigned a = 0; a < 2; a++) {
		g_autoptr(GBytes) data = bytes_of(t.old_key, 100, a + 1);
		fake_put(t.b.env->fakes[a], t.old_key, data);
		const KvcObjectAttributes told = {.mtime_ns = 1002 - a, .version_ns = 1001 + a};
		kvc_key_index_add_with(index, t.old_key, 1u << a, 100, &told);
	}
	if (has_new) {
		g_autoptr(GBytes) data = bytes_of(t.new_key, 100, 0);
		fake_put(t.b.env->fakes[0], t.new_key, data);
		const KvcObjectAttributes told = {.mtime_ns = 1001, .version_ns = 1001};
		kvc_key_index_add_with(index, t.new_key, 1, 100, &told);
	}
	kvc_store_controller_start(t.b.store);
	return t;
}

static void
assert_at_rest(Two *t)
{
	drain(&t->b);
	assert_true(fake_has_version(t->b.env->fakes[1], t->new_key, t->old_key, 2));
	assert_false(fake_has(t->b.env->fakes[0], t->new_key, NULL));
	for (size_t a = 0; a < 2; a++)
		assert_false(fake_has(t->b.env->fakes[a], t->old_key, NULL));
	assert_int_equal(info_of(t, t->new_key).tiers, 2);
	assert_int_equal(info_of(t, t->new_key).renaming, 0);
	assert_int_equal(kvc_key_index_hidden_from(t->b.env->context.index, t->old_key), 0);
	assert_int_equal(kvc_key_index_hidden_from(t->b.env->context.index, t->new_key), 0);
	assert_int_equal(fake_count(t->b.env->fakes[0], "rename", t->old_key), 0);
}

static void
test_an_older_version_is_not_renamed(void **state)
{
	Two t = two_versions(*state, false);
	assert_int_equal(info_of(&t, t.old_key).tiers, 2);
	rename_keys(&t.b, t.old_key, t.new_key);
	assert_at_rest(&t);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_int_equal(all->len, 0);
	two_logged_free(&t);
}

/* What is replaced goes, too. */
static void
test_what_is_replaced_by_a_rename_is_gone_there(void **state)
{
	Two t = two_versions(*state, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	assert_at_rest(&t);
	two_logged_free(&t);
}

/* The second adapter has renamed, the first one has deleted nothing yet. */
static void
test_an_older_version_does_not_return_after_a_kill(void **state)
{
	Two t = two_versions(*state, false);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->fail_deletes = INT_MAX;
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(info_of(&t, t.new_key).tiers == 2);
	wait_until(fake_count(fake, "delete", t.new_key) >= 1);
	g_autoptr(GArray) all = replay(&t, *state);
	assert_true(fake_has(fake, t.old_key, NULL));
	assert_true(is_replayed(all, 0, t.old_key));
	assert_false(is_replayed(all, 1, t.old_key));
	pthread_mutex_lock(&fake->lock);
	fake->fail_deletes = 0;
	pthread_mutex_unlock(&fake->lock);
	assert_at_rest(&t);
	two_logged_free(&t);
}

/* A new OLD that follows is stored after all that, and its deletion is a newer one. */
static void
test_the_old_name_is_used_again_and_deleted(void **state)
{
	Two t = two_versions(*state, false);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake_set(fake, &fake->hold_deletes, true);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(fake_count(fake, "delete", t.new_key) == 1);
	write_version(&t, t.old_key, 3);
	wait_until(fake_has_version(t.b.env->fakes[1], t.old_key, t.old_key, 3));
	assert_int_equal(fake_count(fake, "store", t.old_key), 0);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 3);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 3));
	delete_logged(&t, t.old_key, 3);
	assert_at_rest(&t);
	two_logged_free(&t);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_an_older_version_is_not_renamed),
		TEST_IN_DIR(test_what_is_replaced_by_a_rename_is_gone_there),
		TEST_IN_DIR(test_an_older_version_does_not_return_after_a_kill),
		TEST_IN_DIR(test_the_old_name_is_used_again_and_deleted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
