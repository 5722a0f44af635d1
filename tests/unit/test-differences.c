/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The eleven differences from the specification: one test each, at least, which names
 * it. What concerns one part only is tested in detail beside that part.
 */

#include "tests/unit/engine-fixture.h"

/* ---- 1: the plan is made over L1 and L2 together ------------------------------------------- */

static void
test_difference_1_l1_0_2_l2_0123_answers_4(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "02");
	put_l2(&b, 0, "0123");
	submit(&b, &call, N, 0);
	assert_int_equal(call.handle->l1_prefix_hit_count, 1);
	assert_int_equal(answer(&b, &call), 4);
	assert_int_equal(env_stat(b.env, loads), 2);
	assert_int_equal(env_stat(b.env, hits_l1), 2);
	assert_int_equal(env_stat(b.env, hits_l2), 2);
	assert_int_equal(env_stat(b.env, misses), 1);
	assert_int_equal(read_locks(&b), 4);
	drop(&call);
	bench_free(&b);
}

static void
test_difference_1_a_load_in_flight_is_joined(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[3] = {0};
	put_l2(&b, 0, "01234");
	fake->hold[FAKE_LOAD] = true;
	for (size_t i = 0; i < 3; i++) {
		submit(&b, &calls[i], N, 0);
		wait_until(get(&calls[i].planned) == 1);
	}
	wait_until(env_stat(b.env, loads_joined) == 2 * N);
	fake_release(fake, FAKE_LOAD);
	for (size_t i = 0; i < 3; i++)
		assert_int_equal(answer(&b, &calls[i]), N);
	assert_int_equal(env_stat(b.env, loads), N);
	/* Difference 10: one lock for each consumer. */
	assert_int_equal(read_locks(&b), 3 * N);
	drop(&calls[0]);
	assert_int_equal(read_locks(&b), 2 * N);
	drop(&calls[1]);
	drop(&calls[2]);
	bench_free(&b);
}

static void
test_difference_1_what_became_resident_meanwhile_is_a_hit(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	b.env->fakes[0]->hold[FAKE_LOOKUP] = true;
	put_l2(&b, 0, "0");
	submit(&b, &call, 2, 0);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOOKUP) == 1);
	put_l1(&b, "01");
	fake_release(b.env->fakes[0], FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(env_stat(b.env, loads), 0);
	assert_int_equal(read_locks(&b), 2);
	drop(&call);
	bench_free(&b);
}

/* ---- 2: failed loads are aborted atomically ------------------------------------------------ */

static void
test_difference_2_failed_loads_are_aborted(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "01234");
	g_hash_table_add(fake->bad_keys, b.keys[2]);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == N);
	/* The last ones first: they are there when the gap appears. */
	fake_release_nth(fake, FAKE_LOAD, 4);
	fake_release_nth(fake, FAKE_LOAD, 3);
	wait_until(read_locks(&b) == 2);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	assert_false(is_resident(&b, 2));
	assert_int_equal(env_tiers(b.env, b.keys[2]), 0);
	/* Keys beyond the prefix stay in L1, unlocked. */
	assert_true(is_resident(&b, 3));
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(env_counts(b.env).staging_objects, 0);
	assert_int_equal(env_stat(b.env, loads_failed_missing), 1);
	drop(&call);
	bench_free(&b);
}

/* ---- 3: complete is a state, not a clock --------------------------------------------------- */

/* Whatever time it takes, a load is not readable before it ended. */
static void
test_difference_3_nothing_is_readable_before_it_is_complete(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "0");
	b.env->fakes[0]->hold[FAKE_LOAD] = true;
	submit(&b, &call, 1, 0);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOAD) == 1);
	nap(50);
	assert_false(is_resident(&b, 0));
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	assert_null(kvc_prefetch_handle_take_object(call.handle, 0));
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 1);
	assert_true(is_resident(&b, 0));
	drop(&call);
	bench_free(&b);
}

/* A lock lasts until it is given back, an object that nobody holds can go at once. */
static void
test_difference_3_no_time_changes_what_is_locked(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcL1Manager *l1 = b.env->context.l1;
	KvcL1Object *object;
	put_l1(&b, "0");
	kvc_l1_manager_reserve_read(l1, b.keys, 1, 1, &object, NULL);
	nap(50);
	assert_int_equal(kvc_l1_manager_evict(l1, b.keys[0]), KVC_L1_KEY_IS_LOCKED);
	kvc_l1_manager_finish_read(l1, object, 1);
	assert_int_equal(kvc_l1_manager_evict(l1, b.keys[0]), KVC_L1_SUCCESS);
	bench_free(&b);
}

/* ---- 4: prefetched data is never stored back ----------------------------------------------- */

typedef struct Commits {
	KvcL1ManagerListener listener; /* must be first */
	int finished, prefetched;      /* Atomic */
} Commits;

static void
on_commit(KvcL1ManagerListener *l, KvcL1Object *object)
{
	__atomic_fetch_add(&((Commits *)l)->finished, 1, __ATOMIC_RELEASE);
}

static void
on_prefetched(KvcL1ManagerListener *l, KvcL1Object *object)
{
	__atomic_fetch_add(&((Commits *)l)->prefetched, 1, __ATOMIC_RELEASE);
}

static void
test_difference_4_admission_is_not_a_finished_write(void **state)
{
	Commits commits = {
		.listener = {.on_write_finished = on_commit, .on_prefetch_finished = on_prefetched},
	};
	Engine e = engine_new_with(1, &everywhere, &commits.listener);
	kvc_store_controller_start(e.store);
	put_l2(&e.b, 0, "01234");
	assert_int_equal(run(&e.b, N, 0), N);
	assert_int_equal(get(&commits.finished), 0);
	assert_int_equal(get(&commits.prefetched), N);
	assert_int_equal(env_counts(e.b.env).dirty_objects, 0);
	engine_drain(&e);
	assert_int_equal(env_stat(e.b.env, stores), 0);
	engine_free(&e);
}

/* ---- 5: objects of one batch may differ in size -------------------------------------------- */

static void
test_difference_5_sizes_come_from_the_lookup(void **state)
{
	static const size_t sizes[N] = {0, 1, 4096, 4097, 300000};
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	for (size_t i = 0; i < N; i++) {
		g_autoptr(GBytes) data = bytes_of(b.keys[i], sizes[i], 7);
		fake_put(b.env->fakes[0], b.keys[i], data);
	}
	submit(&b, &call, N, 0);
	assert_int_equal(answer(&b, &call), N);
	for (size_t i = 0; i < N; i++) {
		g_autoptr(GBytes) data = bytes_of(b.keys[i], sizes[i], 7);
		KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
		assert_true(object_has(object, data));
		kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	}
	drop(&call);
	bench_free(&b);
}

static void
test_difference_5_store_tasks_mix_sizes_only_where_the_adapter_can(void **state)
{
	Engine e = engine_new_with(2, &everywhere, NULL);
	FakeAdapter **fakes = e.b.env->fakes;
	fakes[1]->ops.uniform_batches = true;
	for (unsigned i = 0; i < 6; i++) {
		g_autoptr(KvcObjectKey) key = key_new(e.b.env, 50 + i);
		env_write(e.b.env, key, i & 1 ? 100 : 5000, 0, KVC_FINISH_FIRST_WINS);
	}
	kvc_store_controller_start(e.store);
	engine_drain(&e);
	assert_int_equal(fakes[0]->batches->len, 1);
	assert_int_equal(fakes[1]->batches->len, 2);
	assert_false(fakes[1]->mixed_sizes);
	engine_free(&e);
}

/* ---- 6: stop is quiescence ----------------------------------------------------------------- */

static void
test_difference_6_stop_waits_for_what_adapters_still_do(void **state)
{
	Engine e = engine_new(1, &everywhere);
	FakeAdapter *fake = e.b.env->fakes[0];
	Call loading = {0}, asking = {0};
	pthread_t prefetches, stores;
	put_l2(&e.b, 0, "01");
	fake->hold[FAKE_LOAD] = fake->hold[FAKE_STORE] = true;
	engine_write(&e, "4");
	submit(&e.b, &loading, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2 && fake_count_held(fake, FAKE_STORE) == 1);
	fake->hold[FAKE_LOOKUP] = true;
	submit(&e.b, &asking, 3, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	pthread_create(&prefetches, NULL, stop_prefetch_thread, e.b.c);
	pthread_create(&stores, NULL, stop_store_thread, e.store);
	/* Callers are answered at once. */
	wait_until(get(&loading.done) == 1 && get(&asking.done) == 1);
	nap(20);
	assert_int_equal(env_counts(e.b.env).staging_objects, 2);
	assert_int_equal(read_locks(&e.b), 1);
	assert_int_equal(kvc_prefetch_controller_active(e.b.c), 3);
	fake_release(fake, FAKE_LOAD);
	fake_release(fake, FAKE_LOOKUP);
	fake_release(fake, FAKE_STORE);
	pthread_join(prefetches, NULL);
	pthread_join(stores, NULL);
	assert_int_equal(env_counts(e.b.env).staging_objects, 0);
	assert_int_equal(read_locks(&e.b) + (unsigned)l2_locks(&e.b, 0), 0);
	drop(&loading);
	drop(&asking);
	engine_free(&e);
}

/* ---- 7: what is not replicated yet is not evicted ------------------------------------------ */

static void
test_difference_7_dirty_until_its_store_ended(void **state)
{
	Engine e = engine_new(1, &everywhere);
	KvcL1Manager *l1 = e.b.env->context.l1;
	e.b.env->fakes[0]->hold[FAKE_STORE] = true;
	engine_write(&e, "0");
	assert_int_equal(kvc_l1_manager_evict(l1, e.b.keys[0]), KVC_L1_KEY_IS_LOCKED);
	fake_release(e.b.env->fakes[0], FAKE_STORE);
	engine_drain(&e);
	assert_int_equal(kvc_l1_manager_evict(l1, e.b.keys[0]), KVC_L1_SUCCESS);
	engine_free(&e);
}

static void
test_difference_7_a_failed_store_is_retried_then_shown(void **state)
{
	Engine e = engine_new(1, &everywhere);
	e.b.env->fakes[0]->fail_stores = 3;
	engine_write(&e, "0");
	engine_drain(&e);
	assert_int_equal(fake_count(e.b.env->fakes[0], "store", e.b.keys[0]), 3);
	assert_int_equal(env_stat(e.b.env, stores_retried), 2);
	assert_int_equal(env_stat(e.b.env, stores_failed), 1);
	assert_int_equal(env_counts(e.b.env).unreplicated_objects, 1);
	assert_int_equal(env_counts(e.b.env).dirty_objects, 0);
	assert_true(kvc_l1_manager_is_key_unreplicated(e.b.env->context.l1, e.b.keys[0]));
	engine_free(&e);
}

/* ---- 8: eviction frees bytes, now ---------------------------------------------------------- */

#define PART (CAPACITY / 4)

/* The key NUMBER, a quarter of L1 in size, is in L1 and in L2. */
static KvcObjectKey *
write_part(Engine *e, unsigned number)
{
	KvcObjectKey *key = key_new(e->b.env, number);
	env_write(e->b.env, key, PART, 0, KVC_FINISH_FIRST_WINS);
	return key;
}

static void
test_difference_8_a_load_evicts_at_once_what_may_go(void **state)
{
	Engine e = engine_new(1, &everywhere);
	FakeAdapter *fake = e.b.env->fakes[0];
	KvcObjectKey *parts[4];
	KvcL1Object *locked;
	g_autoptr(GBytes) data = bytes_of(e.b.keys[0], PART, 0);
	fake_put(fake, e.b.keys[0], data);
	for (unsigned i = 0; i < 3; i++)
		parts[i] = write_part(&e, 50 + i);
	engine_drain(&e);
	/* The oldest is locked, the newest dirty: what is between them goes. */
	kvc_l1_manager_reserve_read(e.b.env->context.l1, &parts[0], 1, 1, &locked, NULL);
	kvc_l1_manager_touch_keys(e.b.env->context.l1, &parts[2], 1);
	fake->hold[FAKE_STORE] = true;
	parts[3] = write_part(&e, 53);
	assert_int_equal(run(&e.b, 1, 0), 1);
	assert_int_equal(env_stat(e.b.env, l1_evicted_objects), 1);
	assert_false(env_tiers(e.b.env, parts[1]) & KVC_TIER_L1);
	assert_true(env_tiers(e.b.env, parts[0]) & KVC_TIER_L1);
	assert_true(env_tiers(e.b.env, parts[3]) & KVC_TIER_L1);
	fake_release(fake, FAKE_STORE);
	engine_drain(&e);
	kvc_l1_manager_finish_read(e.b.env->context.l1, locked, 1);
	for (unsigned i = 0; i < 4; i++)
		kvc_object_key_unref(parts[i]);
	engine_free(&e);
}

/* ---- 9: deletions from L1 follow the last target ------------------------------------------- */

static void
test_difference_9_l1_deletion_after_the_last_target(void **state)
{
	Engine e = engine_new(2, &skip_l1);
	FakeAdapter **fakes = e.b.env->fakes;
	fakes[1]->hold[FAKE_STORE] = true;
	engine_write(&e, "0");
	wait_until(env_tiers(e.b.env, e.b.keys[0]) & 1);
	nap(10);
	assert_int_equal(env_tiers(e.b.env, e.b.keys[0]), KVC_TIER_L1 | 1);
	fake_release(fakes[1], FAKE_STORE);
	engine_drain(&e);
	assert_int_equal(env_tiers(e.b.env, e.b.keys[0]), 3);
	/* Only if one succeeded. */
	fakes[0]->fail_stores = fakes[1]->fail_stores = 3;
	engine_write(&e, "1");
	engine_drain(&e);
	assert_int_equal(env_tiers(e.b.env, e.b.keys[1]), KVC_TIER_L1);
	engine_free(&e);
}

/* ---- 10: what the API offers beyond the specification -------------------------------------- */

static void
test_difference_10_reader_counts(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "1");
	submit_with(&b, &call, 2, (KvcPrefetchParams){.read_locks = 2});
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(read_locks(&b), 4);
	drop(&call);
	bench_free(&b);
}

static void
test_difference_10_early_result_deadline_and_draining(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	fake->hold[FAKE_LOAD] = true;
	unsigned n_early = submit_with_deadline(
		&b, &call, N, (KvcPrefetchParams){.timeout_ns = 400 * KVC_MSEC_NS}, FAKE_LOAD, 2);
	/* Early: before any load has ended. */
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(env_stat(b.env, prefetches_timed_out), n_early + 1);
	/* Late data keeps its buffer, its L2 lock and its slot, is admitted, and locks nothing. */
	Total t = total(&b);
	assert_int_equal(t.reserved, 2);
	assert_int_equal(t.l2_locks, 2);
	assert_int_equal(t.slots, 1);
	fake_release(fake, FAKE_LOAD);
	wait_idle(&b);
	assert_true(is_resident(&b, 1) && is_resident(&b, 2));
	assert_int_equal(read_locks(&b), 1);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), -ENODATA);
	drop(&call);
	bench_free(&b);
}

static void
test_difference_10_warm_l1_only_and_fetch_modes(void **state)
{
	Bench b = bench_new(1, &first, 8);
	put_l1(&b, "0");
	put_l2(&b, 0, "13");
	assert_int_equal(run(&b, N, KVC_PREFETCH_L1_ONLY), 1);
	assert_int_equal(env_stat(b.env, lookups), 0);
	assert_int_equal(run(&b, N, KVC_PREFETCH_NO_LOCK), 2);
	assert_true(is_resident(&b, 1));
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(run(&b, N, KVC_PREFETCH_FULL), 3);
	assert_true(is_resident(&b, 3));
	bench_free(&b);
}

/* ---- 11: temporary means first to be evicted ----------------------------------------------- */

static void
test_difference_11_temporary_objects_outlive_their_release(void **state)
{
	Bench b = bench_new(1, &first, 8);
	put_l2(&b, 0, "01234");
	assert_int_equal(run(&b, N, 0), N);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(run(&b, N, 0), N);
	assert_int_equal(env_stat(b.env, loads), N);
	bench_free(&b);
}

static void
test_difference_11_temporary_objects_go_first(void **state)
{
	Engine e = engine_new(1, &everywhere);
	KvcObjectKey *parts[4];
	g_autoptr(GBytes) data = bytes_of(e.b.keys[0], PART, 0);
	fake_put(e.b.env->fakes[0], e.b.keys[0], data);
	for (unsigned i = 0; i < 3; i++)
		parts[i] = write_part(&e, 50 + i);
	engine_drain(&e);
	/* Used last, and yet the first to go. */
	assert_int_equal(run(&e.b, 1, 0), 1);
	parts[3] = write_part(&e, 53);
	assert_int_equal(env_tiers(e.b.env, e.b.keys[0]), 1);
	for (unsigned i = 0; i < 4; i++) {
		assert_true(env_tiers(e.b.env, parts[i]) & KVC_TIER_L1);
		kvc_object_key_unref(parts[i]);
	}
	engine_drain(&e);
	engine_free(&e);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_difference_1_l1_0_2_l2_0123_answers_4),
		cmocka_unit_test(test_difference_1_a_load_in_flight_is_joined),
		cmocka_unit_test(test_difference_1_what_became_resident_meanwhile_is_a_hit),
		cmocka_unit_test(test_difference_2_failed_loads_are_aborted),
		cmocka_unit_test(test_difference_3_nothing_is_readable_before_it_is_complete),
		cmocka_unit_test(test_difference_3_no_time_changes_what_is_locked),
		cmocka_unit_test(test_difference_4_admission_is_not_a_finished_write),
		cmocka_unit_test(test_difference_5_sizes_come_from_the_lookup),
		cmocka_unit_test(
			test_difference_5_store_tasks_mix_sizes_only_where_the_adapter_can),
		cmocka_unit_test(test_difference_6_stop_waits_for_what_adapters_still_do),
		cmocka_unit_test(test_difference_7_dirty_until_its_store_ended),
		cmocka_unit_test(test_difference_7_a_failed_store_is_retried_then_shown),
		cmocka_unit_test(test_difference_8_a_load_evicts_at_once_what_may_go),
		cmocka_unit_test(test_difference_9_l1_deletion_after_the_last_target),
		cmocka_unit_test(test_difference_10_reader_counts),
		cmocka_unit_test(test_difference_10_early_result_deadline_and_draining),
		cmocka_unit_test(test_difference_10_warm_l1_only_and_fetch_modes),
		cmocka_unit_test(test_difference_11_temporary_objects_outlive_their_release),
		cmocka_unit_test(test_difference_11_temporary_objects_go_first),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
