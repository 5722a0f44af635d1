/* SPDX-License-Identifier: Apache-2.0 */

/* What a lookup tells the index, and the index a lookup. */

#include "tests/unit/prefetch-fixture.h"

/* ---- The index ---------------------------------------------------------------------------------
 */

static void
test_the_index_learns_what_lookups_find(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcObjectInfo info;
	put_l2(&b, 0, "02");
	kvc_key_index_add(b.env->context.index, b.keys[1], 1, 10, 1);
	assert_int_equal(run(&b, 3, KVC_PREFETCH_LOOKUP_ONLY), 1);
	assert_int_equal(kvc_key_index_get(b.env->context.index, b.keys[2], &info), 0);
	assert_int_equal(info.tiers, 1);
	assert_int_equal(info.bytes, size_of(b.keys[2]));
	assert_int_equal(info.mtime_ns, 1000);
	/* What the adapter has no more is forgotten. */
	assert_int_equal(env_tiers(b.env, b.keys[1]), 0);
	bench_free(&b);
}

/* A dead server does not make anybody forget what it has. */
static void
test_what_could_not_be_asked_is_not_forgotten(void **state)
{
	Bench b = bench_new(1, &first, 8);
	put_l2(&b, 0, "01");
	kvc_key_index_add(b.env->context.index, b.keys[0], 1, size_of(b.keys[0]), 1);
	kvc_key_index_add(b.env->context.index, b.keys[2], 1, 10, 1);
	b.env->fakes[0]->is_unreachable = true;
	assert_int_equal(run(&b, 3, KVC_PREFETCH_LOOKUP_ONLY), 0);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	assert_int_equal(env_tiers(b.env, b.keys[1]), 0);
	assert_int_equal(env_tiers(b.env, b.keys[2]), 1);
	b.env->fakes[0]->is_unreachable = false;
	assert_int_equal(run(&b, 3, KVC_PREFETCH_LOOKUP_ONLY), 2);
	assert_int_equal(env_tiers(b.env, b.keys[2]), 0);
	bench_free(&b);
}

/* What the store has as key 0 is what the renamed object replaces. */
static void
test_a_key_that_is_being_renamed_is_not_found_and_not_forgotten(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcKeyIndex *index = b.env->context.index;
	put_l2(&b, 0, "0");
	kvc_key_index_add(index, b.keys[3], 1, size_of(b.keys[0]), 1);
	kvc_key_index_rename(index, b.keys[3], b.keys[0], false, 1, 1);
	assert_int_equal(run(&b, 1, KVC_PREFETCH_LOOKUP_ONLY), 0);
	assert_int_equal(run(&b, 1, 0), 0);
	assert_int_equal(env_stat(b.env, loads), 0);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	kvc_key_index_end_rename_from(index, b.keys[3], 1, false);
	kvc_key_index_end_rename_to(index, b.keys[0], 1, KVC_RENAME_PRESENT, false);
	assert_int_equal(run(&b, 1, 0), 1);
	bench_free(&b);
}

/* The answer is about the time before the rename, and comes after it. */
static void
test_a_lookup_from_before_a_rename_forgets_nothing(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcKeyIndex *index = b.env->context.index;
	Call call = {0};
	b.env->fakes[0]->hold[FAKE_LOOKUP] = true;
	kvc_key_index_add(index, b.keys[3], 1, 10, 1);
	kvc_key_index_rename(index, b.keys[3], b.keys[0], false, 1, 1);
	submit(&b, &call, 1, KVC_PREFETCH_LOOKUP_ONLY);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOOKUP) == 1);
	kvc_key_index_end_rename_from(index, b.keys[3], 1, false);
	kvc_key_index_end_rename_to(index, b.keys[0], 1, KVC_RENAME_PRESENT, false);
	fake_release(b.env->fakes[0], FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 0);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	drop(&call);
	bench_free(&b);
}

/* The lookup ran before the store, its answer comes after it. */
static void
test_a_store_during_the_lookup_is_not_forgotten(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, 1, KVC_PREFETCH_LOOKUP_ONLY);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	kvc_key_index_add(b.env->context.index, b.keys[0], 1, 10, 1);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 0);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	drop(&call);
	bench_free(&b);
}

static uint64_t
known_bytes(Bench *b, KvcObjectKey *key)
{
	KvcObjectInfo info;
	assert_int_equal(kvc_key_index_get(b->env->context.index, key, &info), 0);
	return info.bytes;
}

/* The lookup found the version before the one whose store ended meanwhile. */
static void
test_a_lookup_from_before_a_store_says_nothing_of_its_size(void **state)
{
	Bench b = bench_new(2, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	KvcKeyIndex *index = b.env->context.index;
	Call call = {0};
	put_l2(&b, 0, "0");
	kvc_key_index_hide(index, b.keys[0], 1, 0);
	kvc_key_index_add(index, b.keys[0], 2, 54321, 1);
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, 1, KVC_PREFETCH_LOOKUP_ONLY);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	kvc_key_index_unhide(index, b.keys[0], 1, 0);
	kvc_key_index_add(index, b.keys[0], 1, 54321, 1);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(known_bytes(&b, b.keys[0]), 54321);
	drop(&call);
	bench_free(&b);
}

/* Somebody else replaced it in the store. */
static void
test_a_lookup_knows_the_size_of_what_was_stored_before(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcKeyIndex *index = b.env->context.index;
	put_l2(&b, 0, "0");
	kvc_key_index_add(index, b.keys[0], 1, 54321, 1);
	assert_int_equal(run(&b, 1, KVC_PREFETCH_LOOKUP_ONLY), 1);
	assert_int_not_equal(known_bytes(&b, b.keys[0]), 54321);
	assert_int_equal(run(&b, 1, 0), 1);
	bench_free(&b);
}

static void
test_a_key_that_is_being_deleted_is_not_found(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "012");
	put_l2(&b, 1, "1");
	kvc_key_index_hide(b.env->context.index, b.keys[1], 1, 0);
	kvc_key_index_hide(b.env->context.index, b.keys[2], 3, 0);
	assert_int_equal(run(&b, 3, 0), 2);
	assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[1]), 0);
	assert_int_equal(fake_count(b.env->fakes[1], "load", b.keys[1]), 1);
	assert_false(is_resident(&b, 2));
	bench_free(&b);
}

static void
test_a_key_deleted_while_it_is_loading_does_not_return(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "01");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	kvc_key_index_hide(b.env->context.index, b.keys[1], 1, 0);
	kvc_l1_manager_delete(b.env->context.l1, b.keys[1], true);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 1);
	assert_false(is_resident(&b, 1));
	assert_int_equal(env_tiers(b.env, b.keys[1]), 0);
	assert_int_equal(env_stat(b.env, loads_failed_deleted), 1);
	drop(&call);
	bench_free(&b);
}

/* ---- Versions ----------------------------------------------------------------------------------
 */

static KvcObjectKey *
plain_new(void)
{
	g_autoptr(KvcKeyScope) directory = kvc_key_scope_new_plain("directory", NULL);
	return kvc_object_key_new(directory, KVC_SPACE_PLAIN, "file", 4, NULL);
}

static void
put_version(Bench *b, size_t adapter, KvcObjectKey *key, size_t bytes, int64_t version_ns)
{
	g_autoptr(GBytes) data = bytes_of(key, bytes, 0);
	fake_put(b->env->fakes[adapter], key, data);
	fake_object(b->env->fakes[adapter], key)->attributes.version_ns = version_ns;
}

#define LOADER kvc_lock_owner("load", 0)

/* KEY is in L1, as a load of BYTES leaves it, and read-locked. */
static KvcL1Object *
put_loaded(Bench *b, KvcObjectKey *key, uint64_t bytes)
{
	KvcL1Manager *l1 = b->env->context.l1;
	KvcL1Object *object, *locked;
	KvcL1Write write = {.key = key, .bytes = bytes, .is_sized = true};
	assert_int_equal(kvc_l1_manager_reserve_writes(l1, &write, 1, KVC_RESERVE_ALL, LOADER), 1);
	object = write.object;
	kvc_l1_manager_set_may_admit(l1, NULL, NULL); /* it is none of the controller's */
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(l1, object, 1, &locked),
			 KVC_L1_SUCCESS);
	return locked;
}

static bool
is_in_l1(Bench *b, KvcObjectKey *key)
{
	KvcResidency residency;
	kvc_l1_manager_get_residency(b->env->context.l1, key, &residency);
	return residency.is_resident;
}

/* It was loaded and is open when another adapter tells of a newer one. */
static void
test_an_older_version_in_l1_goes(void **state)
{
	Bench b = bench_new(2, &first, 8);
	g_autoptr(KvcObjectKey) key = plain_new();
	FakeAdapter *fake = b.env->fakes[1];
	Call call = {0};
	put_version(&b, 0, key, 100, 1000);
	put_version(&b, 1, key, 200, 2000);
	fake->hold[FAKE_LOOKUP] = true;
	submit_with(&b, &call, 1,
		    (KvcPrefetchParams){.keys = &key, .flags = KVC_PREFETCH_LOOKUP_ONLY});
	wait_until(env_tiers(b.env, key) == 1);
	KvcL1Object *open = put_loaded(&b, key, 100);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(env_tiers(b.env, key), 2);
	assert_false(is_in_l1(&b, key));
	assert_int_equal(env_stat(b.env, older_versions), 1);
	kvc_l1_manager_finish_read_for(b.env->context.l1, open, 1, LOADER);
	drop(&call);
	bench_free(&b);
}

/* What was committed since is not what was older. */
static void
test_a_commit_in_l1_stays(void **state)
{
	Bench b = bench_new(1, &first, 8);
	g_autoptr(KvcObjectKey) key = plain_new();
	const KvcControllerContext *context = &b.env->context;
	env_write(b.env, key, 100, 0, KVC_FINISH_REPLACE);
	kvc_controller_context_note_older(context, key, KVC_TIER_L1 | 1);
	assert_true(is_in_l1(&b, key));
	kvc_key_index_remove(context->index, key, KVC_TIER_L1);
	kvc_controller_context_note_older(context, key, 1);
	assert_true(is_in_l1(&b, key));
	kvc_controller_context_note_older(context, key, KVC_TIER_L1 | 1);
	assert_false(is_in_l1(&b, key));
	bench_free(&b);
}

/* ---- Rude adapters -----------------------------------------------------------------------------
 */
static void
test_a_lookup_that_the_adapter_forgot_has_found_nothing(void **state)
{
	Bench b = bench_new(2, &first, 8);
	b.env->fakes[0]->rude[FAKE_LOOKUP] = true;
	put_l2(&b, 1, "01");
	assert_int_equal(run(&b, 3, 0), 2);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_index_learns_what_lookups_find),
		cmocka_unit_test(test_what_could_not_be_asked_is_not_forgotten),
		cmocka_unit_test(test_a_store_during_the_lookup_is_not_forgotten),
		cmocka_unit_test(test_a_key_that_is_being_renamed_is_not_found_and_not_forgotten),
		cmocka_unit_test(test_a_lookup_from_before_a_rename_forgets_nothing),
		cmocka_unit_test(test_a_lookup_from_before_a_store_says_nothing_of_its_size),
		cmocka_unit_test(test_a_lookup_knows_the_size_of_what_was_stored_before),
		cmocka_unit_test(test_a_key_that_is_being_deleted_is_not_found),
		cmocka_unit_test(test_a_key_deleted_while_it_is_loading_does_not_return),
		cmocka_unit_test(test_an_older_version_in_l1_goes),
		cmocka_unit_test(test_a_commit_in_l1_stays),
		cmocka_unit_test(test_a_lookup_that_the_adapter_forgot_has_found_nothing),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
