/* SPDX-License-Identifier: Apache-2.0 */

/* The invariants and the differences that concern prefetches, one test each. */

#include "tests/unit/prefetch-fixture.h"

/* ---- Answers -----------------------------------------------------------------------------------
 */

static void
test_all_in_l1_needs_no_request(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "01234");
	submit(&b, &call, N, 0);
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(call.handle->l1_prefix_hit_count, N);
	assert_int_equal(call.handle->total_requested_keys, N);
	assert_true(call.handle->submit_time_ns > 0);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	/* Answered again and again. */
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), N);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), N);
	assert_int_equal(read_locks(&b), N);
	kvc_prefetch_handle_start(call.handle);
	kvc_prefetch_handle_cancel(call.handle);
	drop(&call);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(get(&call.planned) + get(&call.done), 0);
	assert_int_equal(env_stat(b.env, lookups), 0);
	assert_int_equal(env_stat(b.env, hits_l1), N);
	bench_free(&b);
}

static void
test_without_adapters_the_l1_prefix_is_the_answer(void **state)
{
	Bench b = bench_new(0, &first, 8);
	Call call = {0};
	put_l1(&b, "013");
	submit(&b, &call, N, 0);
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 2);
	/* Nothing after the gap stays locked. */
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(env_stat(b.env, misses), 2);
	drop(&call);
	bench_free(&b);
}

static void
test_no_keys_are_answered_at_once(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	submit(&b, &call, 0, 0);
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(answer(&b, &call), 0);
	drop(&call);
	bench_free(&b);
}

static void
test_the_answer_is_given_once(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "01234");
	b.env->fakes[0]->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, N, 0);
	assert_true(call.handle->request_id >= 0);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), -EAGAIN);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), -EAGAIN);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOOKUP) == 1);
	fake_release(b.env->fakes[0], FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), N);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), -ENODATA);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	assert_int_equal(read_locks(&b), N);
	assert_int_equal(l2_locks(&b, 0), 0);
	for (size_t i = 0; i < N; i++) {
		g_autoptr(GBytes) data = bytes_of(b.keys[i], size_of(b.keys[i]), 0);
		KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
		assert_true(object_has(object, data));
		assert_null(kvc_prefetch_handle_take_object(call.handle, i));
		kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	}
	assert_null(kvc_prefetch_handle_take_object(call.handle, N));
	assert_int_equal(get(&call.planned), 1);
	assert_int_equal(get(&call.done), 1);
	assert_int_equal(env_stat(b.env, loads_completed), N);
	assert_int_equal(env_stat(b.env, hits_l2), N);
	drop(&call);
	bench_free(&b);
}

static void
test_what_nobody_has_is_a_miss(void **state)
{
	Bench b = bench_new(2, &first, 8);
	assert_int_equal(run(&b, N, 0), 0);
	assert_int_equal(env_stat(b.env, misses), N);
	assert_int_equal(env_stat(b.env, loads), 0);
	bench_free(&b);
}

static void
test_disjoint_adapters_add_up(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "0134");
	assert_int_equal(run(&b, N, 0), N);
	assert_int_equal(fake_count(b.env->fakes[1], "load", b.keys[0]), 0);
	bench_free(&b);
}

static void
test_a_policy_that_claims_too_much_does_no_harm(void **state)
{
	Bench b = bench_new(2, &bad, 8);
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "01");
	assert_int_equal(run(&b, N, 0), 3);
	assert_int_equal(env_stat(b.env, loads), 3);
	bench_free(&b);
}

static void
test_a_key_asked_for_twice_is_loaded_once(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	KvcObjectKey *keys[] = {b.keys[0], b.keys[1], b.keys[0], b.keys[1]};
	put_l2(&b, 0, "01");
	submit_with(&b, &call, 4, (KvcPrefetchParams){.keys = keys});
	assert_int_equal(answer(&b, &call), 4);
	assert_int_equal(read_locks(&b), 4);
	assert_int_equal(env_stat(b.env, loads), 2);
	drop(&call);
	bench_free(&b);
}

static void
test_a_key_asked_for_twice_that_fails_ends_at_the_first(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcObjectKey *keys[] = {b.keys[0], b.keys[1], b.keys[1], b.keys[0]};
	Call call = {0};
	put_l2(&b, 0, "01");
	g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[1]);
	submit_with(&b, &call, 4, (KvcPrefetchParams){.keys = keys});
	assert_int_equal(answer(&b, &call), 1);
	drop(&call);
	wait_idle(&b);
	bench_free(&b);
}

/* ---- Invariants --------------------------------------------------------------------------------
 */

static void
test_invariant_1_event_fds_are_unique(void **state)
{
	Env *env = env_new(2, CAPACITY);
	g_autoptr(GError) error = NULL;
	int own = env->fakes[1]->fds[FAKE_LOOKUP];
	env->fakes[1]->fds[FAKE_LOOKUP] = env->fakes[0]->fds[FAKE_LOAD];
	assert_null(kvc_prefetch_controller_new(&env->context, &first, 8, &error));
	assert_non_null(error);
	assert_non_null(strstr(error->message, "#2"));
	env->fakes[1]->fds[FAKE_LOOKUP] = own;
	env_free(env);
}

/* Both adapters number from 1; each answer goes to its own task. */
static void
test_invariant_2_task_ids_per_adapter(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "13");
	for (size_t a = 0; a < 2; a++)
		b.env->fakes[a]->hold[FAKE_LOAD] = true;
	submit(&b, &call, 4, 0);
	wait_until(fake_count_held(b.env->fakes[1], FAKE_LOAD) == 2);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOAD) == 2);
	assert_int_equal(b.env->fakes[0]->last_id, b.env->fakes[1]->last_id);
	fake_release(b.env->fakes[1], FAKE_LOAD);
	wait_until(is_resident(&b, 1) && is_resident(&b, 3));
	assert_false(is_resident(&b, 0));
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 4);
	drop(&call);
	bench_free(&b);
}

/* The adapter counts a query after the answer; env_free() asserts that there was none. */
static void
test_invariant_3_results_are_queried_once(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "024");
	put_l2(&b, 1, "13");
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(run(&b, N, 0), N);
	bench_free(&b);
}

/* The adapter counts an unlock without a lock; env_free() asserts that there was none. */
static void
test_invariant_4_every_lock_is_unlocked_once(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "0124");
	put_l2(&b, 1, "0124");
	assert_int_equal(run(&b, N, 0), 3);
	assert_int_equal(l2_locks(&b, 0) + l2_locks(&b, 1), 0);
	bench_free(&b);
}

static void
test_invariant_4_locks_on_other_adapters_go_back_before_the_load(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "01");
	put_l2(&b, 1, "012");
	b.env->fakes[0]->hold[FAKE_LOAD] = b.env->fakes[1]->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(b.env->fakes[1], FAKE_LOAD) == 1);
	assert_int_equal(l2_locks(&b, 0), 2);
	assert_int_equal(l2_locks(&b, 1), 1);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	fake_release(b.env->fakes[1], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 3);
	drop(&call);
	bench_free(&b);
}

static void
test_invariant_5_prefix_only(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "0134");
	b.env->fakes[0]->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOAD) == 2);
	/* Phase 1 unlock: what is not in the plan went back before the loads ended. */
	assert_int_equal(l2_locks(&b, 0), 2);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[3]), 0);
	assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[4]), 0);
	assert_int_equal(read_locks(&b), 2);
	drop(&call);
	bench_free(&b);
}

static bool
is_temporary(Bench *b, size_t i)
{
	KvcL1Object *object;
	KvcL1Manager *l1 = b->env->context.l1;
	assert_int_equal(kvc_l1_manager_reserve_read(l1, &b->keys[i], 1, 1, &object, NULL), 1);
	bool temporary = object->is_temporary;
	kvc_l1_manager_finish_read(l1, object, 1);
	return temporary;
}

static void
test_invariant_7_prefetched_objects_are_temporary(void **state)
{
	Bench b = bench_new(1, &first, 8);
	put_l2(&b, 0, "0");
	assert_int_equal(run(&b, 1, 0), 1);
	assert_true(is_temporary(&b, 0));
	bench_free(&b);
	b = bench_new(1, &retain, 8);
	put_l2(&b, 0, "0");
	assert_int_equal(run(&b, 1, 0), 1);
	assert_false(is_temporary(&b, 0));
	bench_free(&b);
}

static void *
evict_thread(void *data)
{
	Bench *b = data;
	uint64_t evicted = 0;
	while (env_stat(b->env, loads_completed) < 200)
		for (size_t i = 0; i < N; i++)
			evicted += kvc_l1_manager_evict(b->env->context.l1, b->keys[i]) == 0;
	return GSIZE_TO_POINTER(evicted);
}

/* Somebody evicts all the time; no request ever loses what it was told that it has. */
static void
test_invariant_8_no_eviction_between_load_and_lock(void **state)
{
	Bench b = bench_new(1, &first, 8);
	pthread_t thread;
	void *evicted;
	put_l2(&b, 0, "01234");
	pthread_create(&thread, NULL, evict_thread, &b);
	while (env_stat(b.env, loads_completed) < 200) {
		Call call = {0};
		submit(&b, &call, N, 0);
		assert_int_equal(answer(&b, &call), N);
		for (size_t i = 0; i < N; i++) {
			KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
			assert_non_null(object);
			assert_int_equal(kvc_l1_manager_evict(b.env->context.l1, b.keys[i]),
					 KVC_L1_KEY_IS_LOCKED);
			kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
		}
		drop(&call);
	}
	pthread_join(thread, &evicted);
	assert_true(GPOINTER_TO_SIZE(evicted) > 0);
	bench_free(&b);
}

static void *
stop_thread(void *data)
{
	kvc_prefetch_controller_stop(data);
	return NULL;
}

/* A request in each state: in the queue, looking up, held, loading, done. */
static void
test_invariant_9_stop_releases_all_locks(void **state)
{
	Bench b = bench_new(1, &first, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[5] = {0};
	pthread_t thread;
	put_l1(&b, "0");
	put_l2(&b, 0, "1234");
	submit(&b, &calls[0], 2, 0);
	assert_int_equal(answer(&b, &calls[0]), 2);
	submit(&b, &calls[1], 4, KVC_PREFETCH_HOLD);
	wait_until(get(&calls[1].planned) == 1);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &calls[2], 5, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 3);
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &calls[3], 5, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	submit(&b, &calls[4], 5, 0);
	pthread_create(&thread, NULL, stop_thread, b.c);
	for (size_t i = 0; i < 5; i++)
		wait_until(get(&calls[i].done) == 1 && get(&calls[i].planned) == 1);
	/* Answered, but not stopped: adapters still touch memory (difference 6). */
	nap(20);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 4);
	assert_int_equal(env_counts(b.env).staging_objects, 3);
	fake_release(fake, FAKE_LOOKUP);
	fake_release(fake, FAKE_LOAD);
	pthread_join(thread, NULL);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_counts(b.env).staging_objects, 0);
	/* The one that was done before keeps its locks until it is given back. */
	assert_int_equal(read_locks(&b), 2);
	for (size_t i = 1; i < 5; i++)
		assert_int_equal(kvc_prefetch_controller_query(b.c, calls[i].handle), 0);
	for (size_t i = 0; i < 5; i++)
		drop(&calls[i]);
	assert_int_equal(read_locks(&b), 0);
	bench_free(&b);
}

static void
test_a_stopped_controller_answers_from_l1(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	kvc_prefetch_controller_stop(b.c);
	submit(&b, &call, 2, 0);
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(answer(&b, &call), 1);
	drop(&call);
	bench_free(&b);
}

static void
test_stop_without_start_answers_what_was_submitted(void **state)
{
	Env *env = env_new(1, CAPACITY);
	Bench b = {.env = env, .keys = keys_new(env, N)};
	Call calls[2] = {0};
	b.c = kvc_prefetch_controller_new(&env->context, &first, 8, NULL);
	put_l1(&b, "0");
	submit(&b, &calls[0], 2, 0);
	submit(&b, &calls[1], 2, 0);
	kvc_prefetch_handle_drop(calls[1].handle, on_freed);
	kvc_prefetch_controller_stop(b.c);
	assert_int_equal(get(&calls[0].done), 1);
	assert_int_equal(get(&calls[1].done), 0);
	assert_int_equal(get(&calls[1].freed), 1);
	assert_int_equal(kvc_prefetch_controller_query(b.c, calls[0].handle), 0);
	drop(&calls[0]);
	bench_free(&b);
}

/* ---- Differences -------------------------------------------------------------------------------
 */

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
	Env *env = env_new(1, CAPACITY);
	Bench b = {.env = env, .keys = keys_new(env, N)};
	Commits commits = {
		.listener = {.on_write_finished = on_commit, .on_prefetch_finished = on_prefetched},
	};
	kvc_l1_manager_register_listener(env->context.l1, &commits.listener);
	b.c = kvc_prefetch_controller_new(&env->context, &first, 8, NULL);
	kvc_prefetch_controller_start(b.c);
	put_l2(&b, 0, "01234");
	assert_int_equal(run(&b, N, 0), N);
	assert_int_equal(get(&commits.finished), 0);
	assert_int_equal(get(&commits.prefetched), N);
	assert_int_equal(env_counts(env).dirty_objects, 0);
	bench_free(&b);
}

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

static bool
evict_one(void *user, uint64_t bytes, unsigned files)
{
	Bench *b = user;
	return kvc_l1_manager_evict(b->env->context.l1, b->keys[4]) == KVC_L1_SUCCESS;
}

static void
test_difference_8_a_load_evicts_to_make_room(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcL1Object *object;
	KvcL1Manager *l1 = b.env->context.l1;
	g_autoptr(GBytes) data = bytes_of(b.keys[0], 8 << 20, 0);
	fake_put(b.env->fakes[0], b.keys[0], data);
	kvc_l1_manager_set_make_room(l1, evict_one, &b);
	env_write(b.env, b.keys[4], 60 << 20, 0, KVC_FINISH_FIRST_WINS);
	kvc_l1_manager_reserve_read(l1, &b.keys[4], 1, 1, &object, NULL);
	kvc_l1_manager_set_clean(l1, object, true);
	kvc_l1_manager_finish_read(l1, object, 1);
	assert_int_equal(run(&b, 1, 0), 1);
	assert_int_equal(env_stat(b.env, l1_evicted_objects), 1);
	bench_free(&b);
}

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

/* ---- Everything at once ------------------------------------------------------------------------
 */

#define STRESS_THREADS 3
#define STRESS_STEPS 150

typedef struct Stress {
	Bench *bench;
	unsigned seed;
} Stress;

static void
check_answer(Bench *b, Call *call, int result)
{
	for (int i = 0; i < N; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(call->handle, (size_t)i);
		if (i >= result) {
			assert_null(object);
			continue;
		}
		g_autoptr(GBytes) data = bytes_of(b->keys[i], size_of(b->keys[i]), 0);
		assert_true(object_has(object, data));
		kvc_l1_manager_finish_read(b->env->context.l1, object, 1);
	}
}

static void *
stress_thread(void *data)
{
	Stress *s = data;
	Bench *b = s->bench;
	g_autoptr(GRand) random = g_rand_new_with_seed(s->seed);
	for (unsigned step = 0; step < STRESS_STEPS; step++) {
		Call call = {0};
		unsigned flags = g_rand_boolean(random) ? KVC_PREFETCH_URGENT : 0;
		int64_t timeout = g_rand_int_range(random, 0, 4) == 0 ? 300000 : 0;
		submit_with(b, &call, N,
			    (KvcPrefetchParams){.flags = flags, .timeout_ns = timeout});
		if (g_rand_int_range(random, 0, 4) > 0)
			check_answer(b, &call, answer(b, &call));
		drop(&call);
		size_t i = (size_t)g_rand_int_range(random, 0, N);
		kvc_l1_manager_evict(b->env->context.l1, b->keys[i]);
	}
	return NULL;
}

static void
test_invariant_10_concurrent_requests(void **state)
{
	Bench b = bench_new(2, &first, 2);
	pthread_t threads[STRESS_THREADS];
	Stress stress[STRESS_THREADS];
	unsigned seed = (unsigned)kvc_now_ns();
	print_message("seed %u\n", seed);
	put_l2(&b, 0, "0134");
	put_l2(&b, 1, "1234");
	b.env->fakes[0]->fail_loads = 20;
	for (unsigned t = 0; t < STRESS_THREADS; t++) {
		stress[t] = (Stress){&b, seed + t};
		pthread_create(&threads[t], NULL, stress_thread, &stress[t]);
	}
	for (unsigned t = 0; t < STRESS_THREADS; t++)
		pthread_join(threads[t], NULL);
	wait_idle(&b);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_all_in_l1_needs_no_request),
		cmocka_unit_test(test_without_adapters_the_l1_prefix_is_the_answer),
		cmocka_unit_test(test_no_keys_are_answered_at_once),
		cmocka_unit_test(test_the_answer_is_given_once),
		cmocka_unit_test(test_what_nobody_has_is_a_miss),
		cmocka_unit_test(test_disjoint_adapters_add_up),
		cmocka_unit_test(test_a_policy_that_claims_too_much_does_no_harm),
		cmocka_unit_test(test_a_key_asked_for_twice_is_loaded_once),
		cmocka_unit_test(test_a_key_asked_for_twice_that_fails_ends_at_the_first),
		cmocka_unit_test(test_invariant_1_event_fds_are_unique),
		cmocka_unit_test(test_invariant_2_task_ids_per_adapter),
		cmocka_unit_test(test_invariant_3_results_are_queried_once),
		cmocka_unit_test(test_invariant_4_every_lock_is_unlocked_once),
		cmocka_unit_test(test_invariant_4_locks_on_other_adapters_go_back_before_the_load),
		cmocka_unit_test(test_invariant_5_prefix_only),
		cmocka_unit_test(test_invariant_7_prefetched_objects_are_temporary),
		cmocka_unit_test(test_invariant_8_no_eviction_between_load_and_lock),
		cmocka_unit_test(test_invariant_9_stop_releases_all_locks),
		cmocka_unit_test(test_a_stopped_controller_answers_from_l1),
		cmocka_unit_test(test_stop_without_start_answers_what_was_submitted),
		cmocka_unit_test(test_difference_1_l1_0_2_l2_0123_answers_4),
		cmocka_unit_test(test_difference_1_a_load_in_flight_is_joined),
		cmocka_unit_test(test_difference_1_what_became_resident_meanwhile_is_a_hit),
		cmocka_unit_test(test_difference_2_failed_loads_are_aborted),
		cmocka_unit_test(test_difference_3_nothing_is_readable_before_it_is_complete),
		cmocka_unit_test(test_difference_4_admission_is_not_a_finished_write),
		cmocka_unit_test(test_difference_5_sizes_come_from_the_lookup),
		cmocka_unit_test(test_difference_8_a_load_evicts_to_make_room),
		cmocka_unit_test(test_difference_11_temporary_objects_outlive_their_release),
		cmocka_unit_test(test_invariant_10_concurrent_requests),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
