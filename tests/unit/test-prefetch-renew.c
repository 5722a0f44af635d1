/* SPDX-License-Identifier: Apache-2.0 */

/* What a shared store is asked again, and what comes of its answers. */

#include "tests/unit/prefetch-fixture.h"

#define RENEW (KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_RENEW)

/* Over N_ADAPTERS shared stores; the keys are plain files'. */
static Bench
plain_bench_new(size_t n_adapters)
{
	Bench b = bench_new(n_adapters, &first, 8);
	keys_free(b.keys, N);
	kvc_key_scope_unref(b.env->scope);
	b.env->scope = kvc_key_scope_new_plain("dir", NULL);
	b.keys = keys_new(b.env, N);
	for (size_t a = 0; a < n_adapters; a++)
		b.env->slots[a].is_shared = true;
	return b;
}

/* ADAPTER has VERSION of key I with this stamp, SIZE bytes long. */
static void
put_version(Bench *b, size_t adapter, size_t i, size_t size, unsigned version, int64_t version_ns)
{
	FakeAdapter *fake = b->env->fakes[adapter];
	g_autoptr(GBytes) data = bytes_of(b->keys[i], size, version);
	fake_put(fake, b->keys[i], data);
	pthread_mutex_lock(&fake->lock);
	fake_object(fake, b->keys[i])->attributes.version_ns = version_ns;
	pthread_mutex_unlock(&fake->lock);
}

/* Key I is in L1 and stored in ADAPTERS (bits), as by a writer here. */
static void
commit(Bench *b, size_t i, uint32_t adapters)
{
	const char which[] = {(char)('0' + i), '\0'};
	KvcObjectAttributes attributes;
	put_l1(b, which);
	kvc_key_index_get_attributes(b->env->context.index, b->keys[i], &attributes);
	for (size_t a = 0; adapters >> a; a++) {
		if (!(adapters & (1u << a)))
			continue;
		put_version(b, a, i, size_of(b->keys[i]), 0, attributes.version_ns);
		kvc_key_index_note_stored(b->env->context.index, b->keys[i], 1u << a);
	}
	kvc_object_attributes_clear(&attributes);
}

static KvcObjectInfo
info_of(Bench *b, size_t i)
{
	KvcObjectInfo info;
	assert_int_equal(kvc_key_index_get(b->env->context.index, b->keys[i], &info), 0);
	return info;
}

static void
test_what_is_the_same_stays(void **state)
{
	Bench b = plain_bench_new(1);
	commit(&b, 0, 1);
	uint32_t version = info_of(&b, 0).version;
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_true(is_resident(&b, 0));
	assert_int_equal(info_of(&b, 0).version, version);
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1 | 1);
	assert_int_equal(env_stat(b.env, renewed_replaced), 0);
	assert_int_equal(env_stat(b.env, hits_l1) + env_stat(b.env, misses), 0);
	assert_int_equal(l2_locks(&b, 0), 0);
	bench_free(&b);
}

/* Of the same size, with an older stamp: what the store has is what counts. */
static void
test_what_is_replaced_leaves_l1(void **state)
{
	Bench b = plain_bench_new(1);
	KvcL1Object *held;
	commit(&b, 0, 1);
	uint32_t version = info_of(&b, 0).version;
	kvc_l1_manager_reserve_read(b.env->context.l1, b.keys, 1, 1, &held, NULL);
	put_version(&b, 0, 0, size_of(b.keys[0]), 1, 77);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	assert_int_not_equal(info_of(&b, 0).version, version);
	assert_int_equal(info_of(&b, 0).mtime_ns, 1000);
	assert_int_equal(env_stat(b.env, renewed_replaced), 1);
	/* Who has the version before keeps it; who asks gets the new one. */
	g_autoptr(GBytes) old = bytes_of(b.keys[0], size_of(b.keys[0]), 0);
	g_autoptr(GBytes) new = bytes_of(b.keys[0], size_of(b.keys[0]), 1);
	assert_true(object_has(held, old));
	Call call = {0};
	submit(&b, &call, 1, 0);
	assert_int_equal(answer(&b, &call), 1);
	KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, 0);
	assert_true(object_has(object, new));
	kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	kvc_l1_manager_finish_read(b.env->context.l1, held, 1);
	drop(&call);
	/* That one is known now. */
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_stat(b.env, renewed_replaced), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1 | 1);
	bench_free(&b);
}

/* L1 does not have it: only what is known of it changes. */
static void
test_what_is_replaced_in_l2_only_is_known(void **state)
{
	Bench b = plain_bench_new(1);
	put_version(&b, 0, 0, 100, 0, 5);
	assert_int_equal(run(&b, 1, KVC_PREFETCH_LOOKUP_ONLY), 1);
	put_version(&b, 0, 0, 200, 1, 6);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(info_of(&b, 0).bytes, 200);
	assert_int_equal(env_stat(b.env, renewed_replaced), 1);
	fake_put(b.env->fakes[0], b.keys[0], NULL);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 0);
	bench_free(&b);
}

/* Files that others wrote have no stamp: another size, or another mtime. */
static void
test_without_a_stamp_size_and_mtime_tell(void **state)
{
	Bench b = plain_bench_new(1);
	const size_t size = size_of(b.keys[0]);
	put_version(&b, 0, 0, size, 0, 0);
	assert_int_equal(run(&b, 1, 0), 1);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_true(is_resident(&b, 0));
	put_version(&b, 0, 0, size + 1, 1, 0);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	assert_int_equal(info_of(&b, 0).bytes, size + 1);
	pthread_mutex_lock(&b.env->fakes[0]->lock);
	fake_object(b.env->fakes[0], b.keys[0])->mtime_ns = 2000;
	pthread_mutex_unlock(&b.env->fakes[0]->lock);
	assert_int_equal(run(&b, 1, 0), 1);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	assert_int_equal(info_of(&b, 0).mtime_ns, 2000);
	bench_free(&b);
}

static void
test_what_is_removed_is_gone(void **state)
{
	Bench b = plain_bench_new(2);
	commit(&b, 0, 3);
	fake_put(b.env->fakes[0], b.keys[0], NULL);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_true(is_resident(&b, 0)); /* the other one has it */
	fake_put(b.env->fakes[1], b.keys[0], NULL);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), 0);
	assert_false(is_resident(&b, 0));
	assert_int_equal(env_stat(b.env, renewed_removed), 1);
	bench_free(&b);
}

/* Absent from a store in which it never was: nobody has removed it. */
static void
test_what_is_not_stored_yet_stays(void **state)
{
	Bench b = plain_bench_new(1);
	env_write(b.env, b.keys[0], 100, 0, KVC_FINISH_REPLACE);
	commit(&b, 1, 0);
	assert_int_equal(run(&b, 2, RENEW), 2);
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1);
	assert_true(is_resident(&b, 1));
	/* The store has a version before, or somebody else's: ours will replace it. */
	put_version(&b, 0, 0, 200, 1, 5);
	assert_int_equal(run(&b, 2, RENEW), 2);
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1);
	assert_int_equal(info_of(&b, 0).bytes, 100);
	bench_free(&b);
}

/* The answer is about the time before a commit, and comes after it. */
static void
test_an_answer_from_before_a_commit_says_nothing(void **state)
{
	Bench b = plain_bench_new(1);
	FakeAdapter *fake = b.env->fakes[0];
	for (int is_absent = 0; is_absent < 2; is_absent++) {
		Call call = {0};
		commit(&b, 0, 1);
		put_version(&b, 0, 0, size_of(b.keys[0]), 1, 77);
		if (is_absent)
			fake_put(fake, b.keys[0], NULL);
		fake->hold[FAKE_LOOKUP] = true;
		submit(&b, &call, 1, RENEW);
		wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
		env_write(b.env, b.keys[0], 100, 2, KVC_FINISH_REPLACE);
		fake->hold[FAKE_LOOKUP] = false;
		fake_release(fake, FAKE_LOOKUP);
		assert_int_equal(answer(&b, &call), 1);
		assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1);
		assert_int_equal(info_of(&b, 0).bytes, 100);
		drop(&call);
	}
	bench_free(&b);
}

static void
test_a_store_that_cannot_be_asked_says_nothing(void **state)
{
	Bench b = plain_bench_new(1);
	commit(&b, 0, 1);
	b.env->fakes[0]->is_unreachable = true;
	assert_int_equal(run(&b, 1, RENEW), 0);
	assert_true(is_resident(&b, 0));
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1 | 1);
	bench_free(&b);
}

/* Nobody else writes to it. */
static void
test_a_store_that_is_not_shared_is_not_asked(void **state)
{
	Bench b = plain_bench_new(1);
	commit(&b, 0, 1);
	b.env->slots[0].is_shared = false;
	put_version(&b, 0, 0, 1, 1, 77);
	assert_int_equal(run(&b, 1, RENEW), 0);
	assert_int_equal(env_stat(b.env, lookups), 0);
	assert_true(is_resident(&b, 0));
	bench_free(&b);
}

/* The bytes of a chunk are those of its hash; only where it is may have changed. */
static void
test_chunks_stay_in_l1(void **state)
{
	Bench b = bench_new(1, &first, 8);
	b.env->slots[0].is_shared = true;
	put_l2(&b, 0, "01");
	assert_int_equal(run(&b, 2, 0), 2);
	put_version(&b, 0, 0, 1, 1, 77);
	fake_put(b.env->fakes[0], b.keys[1], NULL);
	assert_int_equal(run(&b, 2, RENEW), 2);
	assert_true(is_resident(&b, 0));
	assert_true(is_resident(&b, 1));
	assert_int_equal(env_tiers(b.env, b.keys[1]), KVC_TIER_L1);
	bench_free(&b);
}

static bool
is_removed(Bench *b, size_t i)
{
	return info_of(b, i).is_removed;
}

/* Over one shared store that has them, as L1 does, clean. */
static Bench
chunk_bench_new(void)
{
	Bench b = bench_new(1, &first, 8);
	b.env->slots[0].is_shared = true;
	put_l2(&b, 0, "0123");
	assert_int_equal(run(&b, 4, 0), 4);
	return b;
}

/* What somebody else removed from L2 must not return to it from L1. */
static void
test_a_removed_chunk_is_marked(void **state)
{
	Bench b = chunk_bench_new();
	fake_put(b.env->fakes[0], b.keys[0], NULL);
	assert_int_equal(run(&b, 2, RENEW), 2);
	assert_true(is_removed(&b, 0));
	assert_false(is_removed(&b, 1));
	/* There again. */
	put_l2(&b, 0, "0");
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_false(is_removed(&b, 0));
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1 | 1);
	/* Committed again. */
	fake_put(b.env->fakes[0], b.keys[0], NULL);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_true(is_removed(&b, 0));
	env_write(b.env, b.keys[0], 100, 1, KVC_FINISH_REPLACE);
	assert_false(is_removed(&b, 0));
	assert_int_equal(info_of(&b, 0).bytes, 100);
	bench_free(&b);
}

/* What is on its way to L2 is not removed, nor what L2 could not take or has elsewhere. */
static void
test_a_chunk_that_is_not_clean_is_not_removed(void **state)
{
	Bench b = chunk_bench_new();
	KvcL1Manager *l1 = b.env->context.l1;
	for (size_t i = 0; i < 2; i++) {
		fake_put(b.env->fakes[0], b.keys[i], NULL);
		KvcL1Object *object = kvc_l1_manager_make_dirty(l1, b.keys[i]);
		if (i == 1)
			kvc_l1_manager_set_clean(l1, object, false);
		kvc_l1_object_unref(object);
	}
	kvc_key_index_add(b.env->context.index, b.keys[2], 2, 100, 0);
	fake_put(b.env->fakes[0], b.keys[2], NULL);
	assert_int_equal(run(&b, 3, RENEW), 3);
	for (size_t i = 0; i < 2; i++)
		assert_int_equal(env_tiers(b.env, b.keys[i]), KVC_TIER_L1);
	assert_int_equal(env_tiers(b.env, b.keys[2]), KVC_TIER_L1 | 2);
	for (size_t i = 0; i < 3; i++)
		assert_false(is_removed(&b, i));
	bench_free(&b);
}

/* A load that finds it missing says nothing of who did it. */
static void
test_a_lost_chunk_is_not_removed(void **state)
{
	Bench b = chunk_bench_new();
	fake_put(b.env->fakes[0], b.keys[0], NULL);
	kvc_key_index_remove(b.env->context.index, b.keys[0], 1);
	assert_int_equal(run(&b, 1, RENEW), 1);
	assert_int_equal(env_tiers(b.env, b.keys[0]), KVC_TIER_L1);
	assert_false(is_removed(&b, 0));
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_what_is_the_same_stays),
		cmocka_unit_test(test_what_is_replaced_leaves_l1),
		cmocka_unit_test(test_what_is_replaced_in_l2_only_is_known),
		cmocka_unit_test(test_without_a_stamp_size_and_mtime_tell),
		cmocka_unit_test(test_what_is_removed_is_gone),
		cmocka_unit_test(test_what_is_not_stored_yet_stays),
		cmocka_unit_test(test_an_answer_from_before_a_commit_says_nothing),
		cmocka_unit_test(test_a_store_that_cannot_be_asked_says_nothing),
		cmocka_unit_test(test_a_store_that_is_not_shared_is_not_asked),
		cmocka_unit_test(test_chunks_stay_in_l1),
		cmocka_unit_test(test_a_removed_chunk_is_marked),
		cmocka_unit_test(test_a_chunk_that_is_not_clean_is_not_removed),
		cmocka_unit_test(test_a_lost_chunk_is_not_removed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
