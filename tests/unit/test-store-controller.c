/* SPDX-License-Identifier: Apache-2.0 */

/* The invariants and the differences that concern stores, one test each. */

#include "tests/unit/store-fixture.h"

#include <limits.h>

/* ---- Storing -----------------------------------------------------------------------------------
 */

static void
test_a_commit_is_stored_on_every_target(void **state)
{
	Bench b = bench_started(2, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 3);
	for (size_t i = 0; i < 3; i++)
		env_write(b.env, keys[i], 1000 + i, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	for (size_t i = 0; i < 3; i++) {
		g_autoptr(GBytes) data = bytes_of(keys[i], 1000 + i, 0);
		assert_true(fake_has(b.env->fakes[0], keys[i], data));
		assert_true(fake_has(b.env->fakes[1], keys[i], data));
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | 3);
	}
	assert_int_equal(env_stat(b.env, stores), 6);
	assert_int_equal(env_stat(b.env, stores_completed), 6);
	assert_int_equal(env_stat(b.env, store_bytes), 2 * (3000 + 3));
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(env_counts(b.env).objects, 3);
	keys_free(keys, 3);
	bench_free(&b);
}

static void
test_an_empty_object_is_stored(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	g_autoptr(GBytes) data = bytes_of(key, 0, 0);
	env_write(b.env, key, 0, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_true(fake_has(b.env->fakes[0], key, data));
	bench_free(&b);
}

static void
test_without_adapters_objects_are_clean_at_once(void **state)
{
	Bench b = bench_started(0, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	bench_free(&b);
}

static void
test_without_targets_objects_are_clean_at_once(void **state)
{
	Bench b = bench_started(1, &nowhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	drain(&b);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, 0);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 0);
	bench_free(&b);
}

/* ---- Invariants and differences ----------------------------------------------------------------
 */

/* The lock wrapper of this build aborts when a listener takes a lock out of order. */
static void
test_invariant_6_the_listener_does_not_block(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 100);
	/* Nobody takes what it posts: one that waited would wait for ever. */
	for (size_t i = 0; i < 100; i++)
		env_write(b.env, keys[i], 10, 0, KVC_FINISH_FIRST_WINS);
	assert_int_equal(env_counts(b.env).dirty_objects, 100);
	assert_int_equal(env_stat(b.env, stores), 0);
	assert_int_equal(kvc_store_controller_drain(b.store, KVC_MSEC_NS), -ETIMEDOUT);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_completed), 100);
	keys_free(keys, 100);
	bench_free(&b);
}

static void *
stop_thread(void *data)
{
	kvc_store_controller_stop(data);
	return NULL;
}

static void
test_invariant_9_stop_releases_all_locks(void **state)
{
	Bench b = bench_started(1, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 3);
	Flushed flushed = {0};
	pthread_t thread;
	b.env->fakes[0]->hold[FAKE_STORE] = true;
	for (size_t i = 0; i < 3; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_stat(b.env, stores) == 3);
	kvc_store_controller_flush(b.store, keys[0], on_flushed, &flushed);
	pthread_create(&thread, NULL, stop_thread, b.store);
	nap(50);
	/* Difference 6: the buffers stay while the adapter may touch them. */
	assert_int_equal(env_counts(b.env).read_locks, 3);
	fake_release(b.env->fakes[0], FAKE_STORE);
	pthread_join(thread, NULL);
	assert_int_equal(env_counts(b.env).read_locks, 0);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, -ESHUTDOWN);
	keys_free(keys, 3);
	bench_free(&b);
}

/* Also of a deletion: the adapter is not left before its call came back. */
static void
test_invariant_9_stop_waits_for_the_deletion_in_progress(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	pthread_t thread;
	b.env->fakes[0]->hold_deletes = true;
	delete_key(&b, key, 1);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	wait_until(fake_count(b.env->fakes[0], "delete", key) == 1);
	pthread_create(&thread, NULL, stop_thread, b.store);
	nap(50);
	assert_int_equal(calls(&flushed), 0);
	fake_release_deletes(b.env->fakes[0]);
	pthread_join(thread, NULL);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, -ESHUTDOWN);
	assert_int_equal(b.env->slots[0].deletes_pending, 0);
	bench_free(&b);
}

static void
test_stop_answers_flushes_and_forgets_retries(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed before = {0}, after = {0};
	b.env->fakes[0]->fail_stores = 100;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &before);
	wait_until(env_stat(b.env, stores_retried) == 1);
	kvc_store_controller_stop(b.store);
	assert_int_equal(calls(&before), 1);
	assert_int_equal(before.error, -ESHUTDOWN);
	kvc_store_controller_flush(b.store, key, on_flushed, &after);
	assert_int_equal(after.error, -ESHUTDOWN);
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	kvc_store_controller_submit_delete(b.store, key, 1, 0);
	assert_int_equal(env_stat(b.env, stores_failed), 0);
	bench_free(&b);
}

static void
test_stop_without_start_releases_what_was_queued(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	kvc_store_controller_stop(b.store);
	assert_int_equal(flushed.error, -ESHUTDOWN);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 0);
	bench_free(&b);
}

/* With and without locks, first to be evicted or kept like a written one. */
static void
test_difference_4_prefetched_data_is_never_stored_back(void **state)
{
	Bench b = bench_started(1, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 4);
	KvcL1Manager *l1 = b.env->context.l1;
	for (unsigned i = 0; i < 4; i++) {
		bool is_temporary = i & 1, locks = i & 2;
		KvcL1Object *object, *locked;
		int errnum;
		assert_int_equal(kvc_l1_manager_reserve_write(l1, keys[i], 100, is_temporary,
							      &object, &errnum),
				 0);
		assert_int_equal(kvc_l1_object_set_size(object, 100), 0);
		assert_int_equal(
			kvc_l1_manager_finish_write_and_reserve_read(l1, object, locks, &locked),
			0);
		if (locked)
			kvc_l1_manager_finish_read(l1, locked, 1);
	}
	drain(&b);
	nap(10);
	assert_int_equal(env_stat(b.env, stores), 0);
	assert_int_equal(env_counts(b.env).objects, 4);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	keys_free(keys, 4);
	bench_free(&b);
}

static void
test_difference_7_dirty_until_the_last_target_ended(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_tiers(b.env, key) & 2);
	assert_int_equal(env_counts(b.env).dirty_objects, 1);
	fake_release(b.env->fakes[0], FAKE_STORE);
	drain(&b);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	bench_free(&b);
}

static void
test_difference_7_a_failed_store_is_tried_three_times(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	b.env->fakes[0]->fail_stores = 3;
	int64_t begin = kvc_now_ns();
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	wait_until(env_stat(b.env, stores_retried) == 1);
	assert_int_equal(env_counts(b.env).dirty_objects, 1);
	wait_until(env_counts(b.env).read_locks == 0);
	drain(&b);
	/* 100 ms, then 400 ms. */
	assert_true(kvc_now_ns() - begin >= 500 * KVC_MSEC_NS);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 3);
	assert_int_equal(env_stat(b.env, stores_retried), 2);
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	assert_int_equal(b.env->slots[0].stores_failed, 1);
	assert_int_equal(b.env->slots[0].store_failures, 3);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 1);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1);
	assert_int_equal(flushed.error, -EIO);

	/* The next success is the end of the adapter's bad health. */
	env_write(b.env, key, 100, 0, KVC_FINISH_REPLACE);
	drain(&b);
	assert_int_equal(b.env->slots[0].store_failures, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	bench_free(&b);
}

static void
test_difference_7_a_retry_that_succeeds_leaves_no_trace(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	b.env->fakes[0]->fail_stores = 2;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_retried), 2);
	assert_int_equal(env_stat(b.env, stores_failed), 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static void
test_difference_7_one_target_of_two_is_enough(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	b.env->fakes[0]->fail_stores = 3;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

/* A failure that nobody cares about any more is counted nevertheless: every store ends somehow. */
static void
test_a_failed_store_of_what_was_replaced_is_counted(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	/* Handled in order: the controller knows the new version once it has seen this. */
	Flushed flushed = {0};
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	fake->fail_stores = 1;
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores), 2);
	assert_int_equal(env_stat(b.env, stores_completed), 1);
	assert_int_equal(env_stat(b.env, stores_retried) + env_stat(b.env, stores_outdated), 1);
	assert_int_equal(env_stat(b.env, stores_failed), 0);
	bench_free(&b);
}

/*
 * An adapter gets the old version, while the new one is in L1 already, and fails to store that one:
 * what it says of the key is about the old version.
 */
static void
test_an_adapter_left_with_a_replaced_version_is_not_believed(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	fake->fail_stores = 100;
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	kvc_key_index_add(b.env->context.index, key, 1, 100, 0); /* as a lookup would */
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	bench_free(&b);
}

static void
test_difference_9_l1_deletion_follows_the_last_target(void **state)
{
	Bench b = bench_started(2, &skip_l1);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[1]->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_tiers(b.env, key) & 1);
	nap(10);
	assert_true(env_tiers(b.env, key) & KVC_TIER_L1);
	fake_release(b.env->fakes[1], FAKE_STORE);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), 3);
	assert_int_equal(env_counts(b.env).objects, 0);
	bench_free(&b);
}

static void
test_difference_9_no_l1_deletion_when_every_target_failed(void **state)
{
	Bench b = bench_started(2, &skip_l1);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->fail_stores = b.env->fakes[1]->fail_stores = 3;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1);
	assert_int_equal(env_counts(b.env).objects, 1);
	bench_free(&b);
}

/* ---- The policy ---------------------------------------------------------------------------- */

static uint32_t
store_beyond(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return 1u << 31 | 1u << n | 1u;
}

static void
test_a_policy_that_chooses_an_unknown_adapter_is_counted_and_skipped(void **state)
{
	static const KvcStorePolicy beyond = {.name = "beyond",
					      .select_store_targets = store_beyond};
	Bench b = bench_started(2, &beyond);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {0};
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	drain(&b);
	assert_int_equal(env_stat(b.env, store_policy_errors), 1);
	assert_int_equal(env_stat(b.env, stores), 1);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static uint32_t
store_by_hash(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	assert_int_equal(n, 2);
	for (size_t a = 0; a < n; a++)
		assert_int_equal(adapters[a].index, a);
	return key->hash & 1 ? 1 : 2;
}

/* A target that was not chosen is not asked and not waited for. */
static void
test_each_key_goes_where_the_policy_says(void **state)
{
	static const KvcStorePolicy by_hash = {.name = "by-hash",
					       .select_store_targets = store_by_hash};
	Bench b = bench_started(2, &by_hash);
	KvcObjectKey **keys = keys_new(b.env, 20);
	for (unsigned i = 0; i < 20; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	for (unsigned i = 0; i < 20; i++) {
		uint32_t wanted = keys[i]->hash & 1 ? 1 : 2;
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | wanted);
		for (unsigned a = 0; a < 2; a++)
			assert_int_equal(fake_count(b.env->fakes[a], "store", keys[i]),
					 wanted == 1u << a);
	}
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	keys_free(keys, 20);
	bench_free(&b);
}

/* ---- Waiters and dirty objects ------------------------------------------------------------- */

static void
test_flush_waiters_are_answered_once_with_0_or_eio(void **state)
{
	enum { N = 5 };
	Bench b = bench_started(1, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed good[N] = {0}, bad[N] = {0};
	fake->hold[FAKE_STORE] = true;
	for (unsigned k = 0; k < 2; k++) {
		env_write(b.env, keys[k], 100, 0, KVC_FINISH_FIRST_WINS);
		wait_until(fake_count_held(fake, FAKE_STORE) == 1);
		fake->fail_stores = k == 0 ? 0 : KVC_STORE_TRIES;
		for (unsigned i = 0; i < N; i++)
			kvc_store_controller_flush(b.store, keys[k], on_flushed,
						   k == 0 ? &good[i] : &bad[i]);
		nap(10);
		for (unsigned i = 0; i < N; i++)
			assert_int_equal(calls(k == 0 ? &good[i] : &bad[i]), 0);
		fake_release(fake, FAKE_STORE);
		drain(&b);
		fake->hold[FAKE_STORE] = true;
	}
	kvc_store_controller_stop(b.store);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(calls(&good[i]), 1);
		assert_int_equal(good[i].error, 0);
		assert_int_equal(calls(&bad[i]), 1);
		assert_int_equal(bad[i].error, -EIO);
	}
	keys_free(keys, 2);
	bench_free(&b);
}

static void
assert_dirty(Bench *b, uint64_t objects, uint64_t bytes)
{
	assert_int_equal(env_counts(b->env).dirty_objects, objects);
	assert_int_equal(env_counts(b->env).dirty_bytes, bytes);
}

/* In pages, as L1 is charged. */
static void
test_difference_7_dirty_objects_and_bytes_are_exact(void **state)
{
	Bench b = bench_started(2, &everywhere);
	FakeAdapter **fakes = b.env->fakes;
	KvcObjectKey *keys[4];
	for (unsigned i = 0; i < 4; i++)
		keys[i] = plain_key_new(i);
	fakes[0]->hold[FAKE_STORE] = fakes[1]->hold[FAKE_STORE] = true;
	for (unsigned i = 0; i < 4; i++)
		env_write(b.env, keys[i], 4096 * (i + 1), 0, KVC_FINISH_REPLACE);
	assert_dirty(&b, 4, 4096 * 10);
	/* One version of a key counts, and what is deleted does not. */
	env_write(b.env, keys[1], 4096 * 5, 1, KVC_FINISH_REPLACE);
	assert_dirty(&b, 4, 4096 * 13);
	delete_key(&b, keys[2], 3);
	assert_dirty(&b, 3, 4096 * 10);
	wait_until(fake_count_held(fakes[0], FAKE_STORE) > 0 &&
		   fake_count_held(fakes[1], FAKE_STORE) > 0);
	/* All that A is asked fails for good; B has the rest, and what ends there is clean. */
	pthread_mutex_lock(&fakes[0]->lock);
	fakes[0]->fail_stores = INT_MAX;
	pthread_mutex_unlock(&fakes[0]->lock);
	fake_release(fakes[0], FAKE_STORE);
	wait_until(env_stat(b.env, stores_failed) >= 2);
	assert_dirty(&b, 3, 4096 * 10);
	fake_release(fakes[1], FAKE_STORE);
	drain(&b);
	assert_dirty(&b, 0, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	/* Given up everywhere: clean, and known to be in L1 only. */
	pthread_mutex_lock(&fakes[1]->lock);
	fakes[1]->fail_stores = INT_MAX;
	pthread_mutex_unlock(&fakes[1]->lock);
	env_write(b.env, keys[3], 100, 2, KVC_FINISH_REPLACE);
	assert_dirty(&b, 1, 4096);
	drain(&b);
	assert_dirty(&b, 0, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 1);
	for (unsigned i = 0; i < 4; i++)
		kvc_object_key_unref(keys[i]);
	bench_free(&b);
}

/* ---- Everything at once ------------------------------------------------------------------------
 */

#define STRESS_KEYS 20
#define STRESS_STEPS 400

typedef struct Stress {
	Bench *bench;
	KvcObjectKey **keys;
	unsigned seed;
	Flushed flushed;
	int flushes;
} Stress;

static void *
stress_thread(void *data)
{
	Stress *s = data;
	g_autoptr(GRand) random = g_rand_new_with_seed(s->seed);
	for (unsigned step = 0; step < STRESS_STEPS; step++) {
		KvcObjectKey *key = s->keys[g_rand_int_range(random, 0, STRESS_KEYS)];
		switch (g_rand_int_range(random, 0, 4)) {
		case 0:
			delete_key(s->bench, key, 3);
			break;
		case 1:
			s->flushes++;
			kvc_store_controller_flush(s->bench->store, key, on_flushed, &s->flushed);
			break;
		default:
			env_write(s->bench->env, key, 50, step, KVC_FINISH_REPLACE);
			break;
		}
	}
	return NULL;
}

/* Whatever the order was, at the end L1 and every adapter agree on each key. */
static void
test_invariant_10_concurrent_commits_deletions_and_flushes(void **state)
{
	Bench b = bench_started(2, &everywhere);
	KvcObjectKey *keys[STRESS_KEYS];
	Stress stress[2];
	pthread_t threads[2];
	unsigned seed = (unsigned)kvc_now_ns();
	print_message("seed %u\n", seed);
	for (unsigned i = 0; i < STRESS_KEYS; i++)
		keys[i] = plain_key_new(i);
	b.env->fakes[0]->fail_stores = 5;
	b.env->fakes[1]->fail_deletes = 5;
	for (unsigned t = 0; t < 2; t++) {
		stress[t] = (Stress){.bench = &b, .keys = keys, .seed = seed + t};
		pthread_create(&threads[t], NULL, stress_thread, &stress[t]);
	}
	for (unsigned t = 0; t < 2; t++)
		pthread_join(threads[t], NULL);
	drain(&b);
	for (unsigned t = 0; t < 2; t++)
		assert_int_equal(calls(&stress[t].flushed), stress[t].flushes);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).dirty_bytes, 0);
	for (unsigned i = 0; i < STRESS_KEYS; i++) {
		KvcL1Object *object;
		KvcL1Manager *l1 = b.env->context.l1;
		bool resident = kvc_l1_manager_reserve_read(l1, &keys[i], 1, 1, &object, NULL);
		for (unsigned a = 0; a < 2; a++) {
			FakeObject *stored = fake_object(b.env->fakes[a], keys[i]);
			assert_int_equal(stored->data != NULL, resident);
			assert_true(!resident || object_has(object, stored->data));
		}
		assert_int_equal(env_tiers(b.env, keys[i]), resident ? KVC_TIER_L1 | 3 : 0);
		if (resident)
			kvc_l1_manager_finish_read(l1, object, 1);
		kvc_object_key_unref(keys[i]);
	}
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_commit_is_stored_on_every_target),
		cmocka_unit_test(test_an_empty_object_is_stored),
		cmocka_unit_test(test_without_adapters_objects_are_clean_at_once),
		cmocka_unit_test(test_without_targets_objects_are_clean_at_once),
		cmocka_unit_test(test_invariant_6_the_listener_does_not_block),
		cmocka_unit_test(test_invariant_9_stop_releases_all_locks),
		cmocka_unit_test(test_invariant_9_stop_waits_for_the_deletion_in_progress),
		cmocka_unit_test(test_stop_answers_flushes_and_forgets_retries),
		cmocka_unit_test(test_stop_without_start_releases_what_was_queued),
		cmocka_unit_test(test_difference_4_prefetched_data_is_never_stored_back),
		cmocka_unit_test(test_difference_7_dirty_until_the_last_target_ended),
		cmocka_unit_test(test_difference_7_a_failed_store_is_tried_three_times),
		cmocka_unit_test(test_difference_7_a_retry_that_succeeds_leaves_no_trace),
		cmocka_unit_test(test_difference_7_one_target_of_two_is_enough),
		cmocka_unit_test(test_a_failed_store_of_what_was_replaced_is_counted),
		cmocka_unit_test(test_an_adapter_left_with_a_replaced_version_is_not_believed),
		cmocka_unit_test(test_difference_9_l1_deletion_follows_the_last_target),
		cmocka_unit_test(test_difference_9_no_l1_deletion_when_every_target_failed),
		cmocka_unit_test(
			test_a_policy_that_chooses_an_unknown_adapter_is_counted_and_skipped),
		cmocka_unit_test(test_each_key_goes_where_the_policy_says),
		cmocka_unit_test(test_flush_waiters_are_answered_once_with_0_or_eio),
		cmocka_unit_test(test_difference_7_dirty_objects_and_bytes_are_exact),
		cmocka_unit_test(test_invariant_10_concurrent_commits_deletions_and_flushes),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
