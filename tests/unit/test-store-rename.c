/* SPDX-License-Identifier: Apache-2.0 */

/* Renames in the StoreController: their order among stores and deletions, and what an adapter does
 * not do. */

#include "tests/unit/rename-fixture.h"

/* ---- What is stored already ------------------------------------------------------------------ */

static void
test_a_stored_object_is_renamed_in_every_adapter(void **state)
{
	Two t = two_started(2);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	rename_keys(&t.b, t.old_key, t.new_key);
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	assert_true(is_in_l1(&t, t.new_key, t.old_key, 0));
	drain(&t.b);
	for (size_t a = 0; a < 2; a++) {
		assert_false(fake_has(t.b.env->fakes[a], t.old_key, NULL));
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 0));
		assert_int_equal(fake_count(t.b.env->fakes[a], "store", t.new_key), 0);
		assert_int_equal(get(&t.b.env->slots[a].renames_pending), 0);
	}
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	assert_int_equal(info_of(&t, t.new_key).renaming, 0);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	two_free(&t);
}

static void
test_an_object_that_only_l2_has_is_renamed(void **state)
{
	Two t = two_started(1);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	assert_int_equal(kvc_l1_manager_evict(t.b.env->context.l1, t.old_key), KVC_L1_SUCCESS);
	t.b.env->fakes[0]->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	assert_int_equal(info_of(&t, t.new_key).tiers, 1);
	assert_int_equal(info_of(&t, t.new_key).renaming, 1);
	fake_release_renames(t.b.env->fakes[0]);
	drain(&t.b);
	assert_int_equal(info_of(&t, t.new_key).tiers, 1);
	assert_int_equal(info_of(&t, t.new_key).renaming, 0);
	assert_true(fake_has_version(t.b.env->fakes[0], t.new_key, t.old_key, 0));
	two_free(&t);
}

static void
test_the_old_and_the_new_name_are_hidden_until_it_is_confirmed(void **state)
{
	Two t = two_started(1);
	KvcKeyIndex *index = t.b.env->context.index;
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[0]->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	kvc_key_index_add(index, t.old_key, 1, 100, 1); /* as a listing or a lookup */
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	kvc_key_index_add(index, t.new_key, 1, 100, 1);
	assert_int_equal(info_of(&t, t.new_key).renaming, 1);
	kvc_key_index_remove(index, t.new_key, 1);
	assert_int_equal(info_of(&t, t.new_key).renaming, 1);
	fake_release_renames(t.b.env->fakes[0]);
	drain(&t.b);
	assert_false(is_hidden(&t.b, t.old_key, 1));
	two_free(&t);
}

static void
test_what_was_there_is_replaced(void **state)
{
	Two t = two_started(2);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 1);
	drain(&t.b);
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	assert_true(is_in_l1(&t, t.new_key, t.old_key, 0));
	assert_true(fake_has_version(t.b.env->fakes[0], t.new_key, t.old_key, 0));
	assert_true(fake_has_version(t.b.env->fakes[1], t.new_key, t.old_key, 0));
	assert_int_equal(kvc_key_index_count(t.b.env->context.index), 1);
	two_free(&t);
}

/* ---- What is being stored -------------------------------------------------------------------- */

static void
test_a_dirty_object_is_stored_under_its_new_name_only(void **state)
{
	Two t = two_new(2);
	write_version(&t, t.old_key, 0);
	rename_keys(&t.b, t.old_key, t.new_key);
	kvc_store_controller_start(t.b.store);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++) {
		assert_int_equal(fake_count(t.b.env->fakes[a], "store", t.old_key), 0);
		assert_int_equal(fake_count(t.b.env->fakes[a], "store", t.new_key), 1);
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 0));
	}
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	assert_int_equal(env_stat(t.b.env, renames_lost), 0);
	two_free(&t);
}

static void
test_a_store_in_flight_ends_and_is_renamed(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	write_version(&t, t.old_key, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	nap(20);
	assert_int_equal(fake_count(fake, "rename", t.old_key), 0);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 1);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(fake_count(fake, "rename", t.old_key), 1);
	assert_int_equal(fake_count(fake, "store", t.new_key), 0);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_int_equal(info_of(&t, t.old_key).tiers, 0);
	two_free(&t);
}

static void
test_a_newer_version_than_the_stored_one_is_stored_after_the_rename(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	write_version(&t, t.old_key, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_int_equal(fake_count(fake, "store", t.old_key), 1);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_free(&t);
}

static void
test_a_new_commit_of_the_old_name_comes_after_the_rename(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.old_key, 1);
	assert_true(is_in_l1(&t, t.old_key, t.old_key, 1));
	nap(20);
	assert_int_equal(fake_count(fake, "store", t.old_key), 1);
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 1));
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 1);
	two_free(&t);
}

static void
test_a_new_commit_of_the_new_name_comes_after_the_rename(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.new_key, 1);
	fake_release_renames(fake);
	drain(&t.b);
	assert_true(fake_position(fake, "rename", t.old_key) <
		    fake_position(fake, "store", t.new_key));
	assert_true(fake_has_version(fake, t.new_key, t.new_key, 1));
	assert_false(fake_has(fake, t.old_key, NULL));
	two_free(&t);
}

/* ---- Deletions ------------------------------------------------------------------------------- */

static void
test_a_deletion_of_the_new_name_removes_both(void **state)
{
	Two t = two_started(2);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[0]->hold_renames = true;
	t.b.env->fakes[1]->fail_renames = 2;
	rename_keys(&t.b, t.old_key, t.new_key);
	delete_key(&t.b, t.new_key, 3);
	fake_release_renames(t.b.env->fakes[0]);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++) {
		assert_false(fake_has(t.b.env->fakes[a], t.old_key, NULL));
		assert_false(fake_has(t.b.env->fakes[a], t.new_key, NULL));
	}
	assert_int_equal(kvc_key_index_count(t.b.env->context.index), 0);
	assert_false(is_hidden(&t.b, t.old_key, 1));
	assert_false(is_hidden(&t.b, t.new_key, 2));
	two_free(&t);
}

static void
test_a_deletion_begun_before_ends_before(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 1);
	drain(&t.b);
	fake->hold_deletes = true;
	delete_key(&t.b, t.new_key, 1);
	wait_until(fake_count(fake, "delete", t.new_key) == 1);
	rename_keys(&t.b, t.old_key, t.new_key);
	nap(20);
	assert_int_equal(fake_count(fake, "rename", t.old_key), 0);
	fake_release_deletes(fake);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 1);
	two_free(&t);
}

/* ---- Failures -------------------------------------------------------------------------------- */

static void
test_a_failed_rename_is_tried_again(void **state)
{
	Two t = two_started(1);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[0]->fail_renames = 3;
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(get(&t.b.env->slots[0].renames_failing) == 1);
	drain(&t.b);
	assert_int_equal(env_stat(t.b.env, rename_errors), 3);
	assert_int_equal(env_stat(t.b.env, renames_retried), 3);
	assert_int_equal(get(&t.b.env->slots[0].renames_failing), 0);
	assert_true(fake_has_version(t.b.env->fakes[0], t.new_key, t.old_key, 0));
	two_free(&t);
}

static void
test_a_locked_key_is_tried_again_without_an_error(void **state)
{
	Two t = two_started(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	KvcBitmap *found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info;
	KvcL2TaskId id = fake_submit_lookup(&fake->base, &t.old_key, 1);
	assert_int_equal(fake_query_lookup(&fake->base, id, found, &info), 1);
	kvc_bitmap_free(found);
	rename_keys(&t.b, t.old_key, t.new_key);
	wait_until(env_stat(t.b.env, renames_retried) >= 1);
	fake_unlock(&fake->base, &t.old_key, 1);
	drain(&t.b);
	assert_int_equal(env_stat(t.b.env, rename_errors), 0);
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	two_free(&t);
}

static void
test_an_object_that_l2_lost_is_stored_again_if_it_is_resident(void **state)
{
	Two t = two_started(2);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake_put(t.b.env->fakes[0], t.old_key, NULL);
	fake_put(t.b.env->fakes[1], t.old_key, NULL);
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++)
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 0));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_int_equal(env_stat(t.b.env, renames_lost), 0);
	two_free(&t);
}

static void
test_an_object_that_no_tier_has_is_lost_and_counted(void **state)
{
	Two t = two_started(1);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 1);
	drain(&t.b);
	assert_int_equal(kvc_l1_manager_evict(t.b.env->context.l1, t.old_key), KVC_L1_SUCCESS);
	fake_put(t.b.env->fakes[0], t.old_key, NULL);
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	assert_int_equal(env_stat(t.b.env, renames_lost), 1);
	assert_int_equal(kvc_key_index_count(t.b.env->context.index), 0);
	/* What was there has other bytes: it must not come back under that name. */
	assert_false(fake_has(t.b.env->fakes[0], t.new_key, NULL));
	two_free(&t);
}

static void
test_a_dead_adapter_does_not_hold_up_the_other_one(void **state)
{
	Two t = two_started(2);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[1]->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.new_key, 1);
	write_version(&t, t.old_key, 2);
	wait_until(fake_has_version(t.b.env->fakes[0], t.new_key, t.new_key, 1));
	wait_until(fake_has_version(t.b.env->fakes[0], t.old_key, t.old_key, 2));
	assert_int_equal(get(&t.b.env->slots[1].renames_pending), 1);
	fake_release_renames(t.b.env->fakes[1]);
	drain(&t.b);
	assert_true(fake_has_version(t.b.env->fakes[1], t.new_key, t.new_key, 1));
	assert_true(fake_has_version(t.b.env->fakes[1], t.old_key, t.old_key, 2));
	two_free(&t);
}

static void
test_an_object_behind_a_failing_rename_does_not_stay_dirty(void **state)
{
	Two t = two_started(2);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[1]->fail_renames = 1000000;
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.new_key, 1);
	rename_keys(&t.b, t.new_key, third);
	wait_until(env_counts(t.b.env).dirty_objects == 0);
	assert_int_equal(env_stat(t.b.env, stores_failed), 1);
	assert_true(fake_has_version(t.b.env->fakes[0], third, t.new_key, 1));
	two_free(&t);
}

/* ---- Adapters that cannot rename ------------------------------------------------------------- */

static Two
two_unable(size_t n_adapters)
{
	Two t = two_new(n_adapters);
	for (size_t a = 0; a < n_adapters; a++)
		t.b.env->fakes[a]->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	return t;
}

static void
test_without_rename_the_object_is_stored_then_the_old_name_deleted(void **state)
{
	Two t = two_unable(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->hold[FAKE_STORE] = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	assert_int_equal(env_counts(t.b.env).dirty_objects, 1);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	nap(20);
	assert_true(fake_has(fake, t.old_key, NULL));
	fake_release(fake, FAKE_STORE);
	drain(&t.b);
	assert_false(fake_has(fake, t.old_key, NULL));
	assert_true(fake_has_version(fake, t.new_key, t.old_key, 0));
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 1);
	assert_false(is_hidden(&t.b, t.old_key, 1));
	two_free(&t);
}

static void
test_without_rename_names_can_be_swapped(void **state)
{
	Two t = two_unable(2);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 1);
	drain(&t.b);
	rename_keys(&t.b, t.old_key, third);
	rename_keys(&t.b, t.new_key, t.old_key);
	rename_keys(&t.b, third, t.new_key);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++) {
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 0));
		assert_true(fake_has_version(t.b.env->fakes[a], t.old_key, t.new_key, 1));
		assert_false(fake_has(t.b.env->fakes[a], third, NULL));
	}
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 3);
	two_free(&t);
}

static void
test_without_rename_an_object_that_cannot_be_stored_keeps_its_old_copy(void **state)
{
	Two t = two_unable(1);
	FakeAdapter *fake = t.b.env->fakes[0];
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	fake->fail_stores = KVC_STORE_TRIES;
	rename_keys(&t.b, t.old_key, t.new_key);
	drain(&t.b);
	assert_true(fake_has_version(fake, t.old_key, t.old_key, 0));
	assert_int_equal(env_stat(t.b.env, rename_errors), 1);
	assert_int_equal(env_counts(t.b.env).unreplicated_objects, 1);
	two_free(&t);
}

/* ---- Chains, waiters, the end ---------------------------------------------------------------- */

static void
test_names_can_be_swapped_while_nothing_is_confirmed(void **state)
{
	Two t = two_started(2);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 1);
	drain(&t.b);
	t.b.env->fakes[0]->hold_renames = true;
	rename_keys(&t.b, t.old_key, third);
	rename_keys(&t.b, t.new_key, t.old_key);
	rename_keys(&t.b, third, t.new_key);
	fake_release_renames(t.b.env->fakes[0]);
	drain(&t.b);
	for (size_t a = 0; a < 2; a++) {
		assert_true(fake_has_version(t.b.env->fakes[a], t.new_key, t.old_key, 0));
		assert_true(fake_has_version(t.b.env->fakes[a], t.old_key, t.new_key, 1));
		assert_false(fake_has(t.b.env->fakes[a], third, NULL));
	}
	assert_int_equal(info_of(&t, t.old_key).tiers, KVC_TIER_L1 | 3);
	assert_int_equal(info_of(&t, t.new_key).tiers, KVC_TIER_L1 | 3);
	two_free(&t);
}

static void
test_a_flush_waits_for_the_rename_everywhere_an_await_for_one_adapter(void **state)
{
	Two t = two_started(2);
	Flushed flushed = {.error = 1}, awaited = {.error = 1};
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	assert_int_equal(kvc_l1_manager_evict(t.b.env->context.l1, t.old_key), KVC_L1_SUCCESS);
	t.b.env->fakes[0]->hold_renames = t.b.env->fakes[1]->hold_renames = true;
	rename_keys(&t.b, t.old_key, t.new_key);
	kvc_store_controller_flush(t.b.store, t.new_key, on_flushed, &flushed);
	kvc_store_controller_await_rename(t.b.store, t.new_key, on_flushed, &awaited);
	nap(20);
	assert_int_equal(calls(&flushed) + calls(&awaited), 0);
	fake_release_renames(t.b.env->fakes[1]);
	wait_until(calls(&awaited) == 1);
	assert_int_equal(awaited.error, 0);
	assert_int_equal(calls(&flushed), 0);
	fake_release_renames(t.b.env->fakes[0]);
	wait_until(calls(&flushed) == 1);
	assert_int_equal(flushed.error, 0);
	two_free(&t);
}

static void
test_a_stop_with_renames_pending_gives_everything_back(void **state)
{
	Two t = two_started(2);
	g_autoptr(KvcObjectKey) third = key_new(t.b.env, 3);
	Flushed flushed = {.error = 1};
	write_version(&t, t.old_key, 0);
	drain(&t.b);
	t.b.env->fakes[0]->fail_renames = 1000000;
	t.b.env->fakes[1]->ops.delete_keys = NULL;
	rename_keys(&t.b, t.old_key, t.new_key);
	write_version(&t, t.old_key, 1);
	rename_keys(&t.b, t.new_key, third);
	write_version(&t, t.new_key, 2);
	kvc_store_controller_flush(t.b.store, third, on_flushed, &flushed);
	wait_until(env_stat(t.b.env, rename_errors) >= 2);
	kvc_store_controller_stop(t.b.store);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, -ESHUTDOWN);
	assert_int_equal(get(&t.b.env->slots[0].renames_pending), 0);
	two_free(&t);
}

/* ---- Random ---------------------------------------------------------------------------------- */

#define N_KEYS 5
#define N_STEPS 150

typedef struct Version {
	int origin; /* the key that it was written as, -1: nothing */
	unsigned number;
} Version;

typedef struct Model {
	Two t;
	KvcObjectKey **keys;
	Version versions[N_KEYS]; /* what each key ought to be */
	unsigned n_versions;
	bool can_rename; /* the second adapter */
	GRand *rand;
} Model;

static void
hold_everything(FakeAdapter *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_renames = fake->hold_deletes = fake->hold[FAKE_STORE] = true;
	pthread_mutex_unlock(&fake->lock);
}

static void
release_everything(FakeAdapter *fake)
{
	fake_release_renames(fake);
	fake_release_deletes(fake);
	fake_release(fake, FAKE_STORE);
}

/* Where an object's only way is a store, one that fails for good leaves the old copy: no model. */
static void
let_fail(Model *m, FakeAdapter *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->fail_renames = fake->fail_deletes = 2;
	fake->fail_stores = m->can_rename;
	pthread_mutex_unlock(&fake->lock);
}

static void
disturb(Model *m)
{
	FakeAdapter *fake = m->t.b.env->fakes[g_rand_int_range(m->rand, 0, 2)];
	switch (g_rand_int_range(m->rand, 0, 6)) {
	case 0:
		hold_everything(fake);
		break;
	case 1:
		let_fail(m, fake);
		break;
	case 2:
		nap(1);
		break;
	default:
		release_everything(fake);
	}
}

static void
act_write(Model *m, int i)
{
	Version version = {i, ++m->n_versions};
	env_write(m->t.b.env, m->keys[i], 100, version.number, KVC_FINISH_REPLACE);
	m->versions[i] = version;
}

static void
act_delete(Model *m, int i)
{
	if (m->versions[i].origin < 0)
		return;
	delete_key(&m->t.b, m->keys[i], 3);
	m->versions[i].origin = -1;
}

static void
act_rename(Model *m, int i, int j)
{
	if (i == j || m->versions[i].origin < 0)
		return;
	int rc = try_rename(&m->t.b, m->keys[i], m->keys[j]);
	assert_true(rc == 0 || (rc == -EXDEV && !m->can_rename));
	if (rc < 0)
		return;
	m->versions[j] = m->versions[i];
	m->versions[i].origin = -1;
}

static void
act(Model *m)
{
	int i = g_rand_int_range(m->rand, 0, N_KEYS), j = g_rand_int_range(m->rand, 0, N_KEYS);
	switch (g_rand_int_range(m->rand, 0, 8)) {
	case 0:
	case 1:
	case 2:
		act_write(m, i);
		break;
	case 3:
		act_delete(m, i);
		break;
	case 4:
		kvc_l1_manager_evict(m->t.b.env->context.l1, m->keys[i]);
		break;
	default:
		act_rename(m, i, j);
	}
}

/* At any time: what is known, and what L1 has. */
static void
check_l1(Model *m)
{
	for (int i = 0; i < N_KEYS; i++) {
		Version v = m->versions[i];
		uint32_t tiers = info_of(&m->t, m->keys[i]).tiers;
		assert_int_equal(tiers != 0, v.origin >= 0);
		if (tiers & KVC_TIER_L1)
			assert_true(is_in_l1(&m->t, m->keys[i], m->keys[v.origin], v.number));
	}
}

/* In the end: what each adapter has. */
static void
check_l2(Model *m, size_t a)
{
	FakeAdapter *fake = m->t.b.env->fakes[a];
	for (int i = 0; i < N_KEYS; i++) {
		Version v = m->versions[i];
		KvcObjectInfo info = info_of(&m->t, m->keys[i]);
		assert_int_equal(info.renaming, 0);
		if (v.origin < 0)
			assert_false(fake_has(fake, m->keys[i], NULL));
		else if (info.tiers & (1u << a))
			assert_true(
				fake_has_version(fake, m->keys[i], m->keys[v.origin], v.number));
		else
			assert_true(env_stat(m->t.b.env, stores_failed) > 0);
		assert_false(is_hidden(&m->t.b, m->keys[i], 1u << a));
	}
}

static void
run_model(unsigned seed, bool can_rename)
{
	Model m = {
		.t = two_new(2),
		.rand = g_rand_new_with_seed(seed),
		.can_rename = can_rename,
	};
	m.t.b.env->fakes[1]->ops.rename_key = can_rename ? fake_rename : NULL;
	kvc_store_controller_start(m.t.b.store);
	m.keys = keys_new(m.t.b.env, N_KEYS);
	for (int i = 0; i < N_KEYS; i++)
		m.versions[i].origin = -1;
	for (int step = 0; step < N_STEPS; step++) {
		act(&m);
		check_l1(&m);
		disturb(&m);
	}
	release_everything(m.t.b.env->fakes[0]);
	release_everything(m.t.b.env->fakes[1]);
	drain(&m.t.b);
	check_l1(&m);
	check_l2(&m, 0);
	check_l2(&m, 1);
	assert_int_equal(env_counts(m.t.b.env).dirty_objects, 0);
	keys_free(m.keys, N_KEYS);
	g_rand_free(m.rand);
	two_free(&m.t);
}

static void
run_models(unsigned n, bool can_rename)
{
	const char *given = g_getenv("KVC_TEST_SEED");
	unsigned seed = given ? (unsigned)strtoul(given, NULL, 10) : g_random_int();
	for (unsigned i = 0; i < (given ? 1 : n); i++) {
		print_message("KVC_TEST_SEED=%u\n", seed + i);
		run_model(seed + i, can_rename);
	}
}

static void
test_random_orders_agree_with_a_plain_model(void **state)
{
	run_models(6, true);
}

static void
test_random_orders_agree_where_one_adapter_cannot_rename(void **state)
{
	run_models(4, false);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_stored_object_is_renamed_in_every_adapter),
		cmocka_unit_test(test_an_object_that_only_l2_has_is_renamed),
		cmocka_unit_test(test_the_old_and_the_new_name_are_hidden_until_it_is_confirmed),
		cmocka_unit_test(test_what_was_there_is_replaced),
		cmocka_unit_test(test_a_dirty_object_is_stored_under_its_new_name_only),
		cmocka_unit_test(test_a_store_in_flight_ends_and_is_renamed),
		cmocka_unit_test(
			test_a_newer_version_than_the_stored_one_is_stored_after_the_rename),
		cmocka_unit_test(test_a_new_commit_of_the_old_name_comes_after_the_rename),
		cmocka_unit_test(test_a_new_commit_of_the_new_name_comes_after_the_rename),
		cmocka_unit_test(test_a_deletion_of_the_new_name_removes_both),
		cmocka_unit_test(test_a_deletion_begun_before_ends_before),
		cmocka_unit_test(test_a_failed_rename_is_tried_again),
		cmocka_unit_test(test_a_locked_key_is_tried_again_without_an_error),
		cmocka_unit_test(test_an_object_that_l2_lost_is_stored_again_if_it_is_resident),
		cmocka_unit_test(test_an_object_that_no_tier_has_is_lost_and_counted),
		cmocka_unit_test(test_a_dead_adapter_does_not_hold_up_the_other_one),
		cmocka_unit_test(test_an_object_behind_a_failing_rename_does_not_stay_dirty),
		cmocka_unit_test(
			test_without_rename_the_object_is_stored_then_the_old_name_deleted),
		cmocka_unit_test(test_without_rename_names_can_be_swapped),
		cmocka_unit_test(
			test_without_rename_an_object_that_cannot_be_stored_keeps_its_old_copy),
		cmocka_unit_test(test_names_can_be_swapped_while_nothing_is_confirmed),
		cmocka_unit_test(
			test_a_flush_waits_for_the_rename_everywhere_an_await_for_one_adapter),
		cmocka_unit_test(test_a_stop_with_renames_pending_gives_everything_back),
		cmocka_unit_test(test_random_orders_agree_with_a_plain_model),
		cmocka_unit_test(test_random_orders_agree_where_one_adapter_cannot_rename),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
