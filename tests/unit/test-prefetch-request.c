/* SPDX-License-Identifier: Apache-2.0 */

/* What can be asked of a request, and the ways in which it ends. */

#include "tests/unit/prefetch-fixture.h"

/* ---- Flags -------------------------------------------------------------------------------------
 */

static void
test_no_lock_warms_without_locks(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "1");
	put_l2(&b, 0, "0123");
	submit(&b, &call, N, KVC_PREFETCH_NO_LOCK);
	assert_int_equal(answer(&b, &call), 4);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_stat(b.env, loads), 3);
	assert_null(kvc_prefetch_handle_take_object(call.handle, 0));
	for (size_t i = 0; i < 4; i++)
		assert_true(is_resident(&b, i));
	drop(&call);
	bench_free(&b);
}

static void
test_lookup_only_loads_and_locks_nothing(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l1(&b, "1");
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "4");
	submit(&b, &call, N, KVC_PREFETCH_LOOKUP_ONLY);
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_int_equal(call.found_when_planned, 3);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(l2_locks(&b, 0) + l2_locks(&b, 1), 0);
	assert_int_equal(env_stat(b.env, loads), 0);
	assert_int_equal(env_tiers(b.env, b.keys[4]), 2);
	drop(&call);
	bench_free(&b);
}

static void
test_hold_loads_nothing_before_start(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit(&b, &call, N, KVC_PREFETCH_HOLD);
	wait_until(get(&call.planned) == 1);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	nap(20);
	assert_int_equal(env_stat(b.env, loads), 0);
	assert_int_equal(l2_locks(&b, 0), 2);
	assert_int_equal(read_locks(&b), 1);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), -EAGAIN);
	kvc_prefetch_handle_start(call.handle);
	kvc_prefetch_handle_start(call.handle);
	assert_int_equal(answer(&b, &call), 3);
	drop(&call);
	bench_free(&b);
}

static void
test_start_before_the_plan_is_remembered(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "0");
	b.env->fakes[0]->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, 1, KVC_PREFETCH_HOLD);
	kvc_prefetch_handle_start(call.handle);
	nap(5);
	fake_release(b.env->fakes[0], FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 1);
	drop(&call);
	bench_free(&b);
}

static void
test_difference_10_found_is_known_before_the_loads_end(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "0123");
	b.env->fakes[0]->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(get(&call.planned) == 1);
	assert_int_equal(call.found_when_planned, 4);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 4);
	assert_int_equal(get(&call.done), 0);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 4);
	drop(&call);
	bench_free(&b);
}

static void
test_a_key_can_be_taken_when_it_has_arrived(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "01");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	fake_release_nth(fake, FAKE_LOAD, 0);
	KvcL1Object *object = NULL;
	wait_until((object = kvc_prefetch_handle_take_object(call.handle, 0)) != NULL);
	assert_int_equal(read_locks(&b), 1);
	assert_int_equal(get(&call.done), 0);
	fake_release(fake, FAKE_LOAD);
	/* What was taken counts. */
	assert_int_equal(answer(&b, &call), 2);
	drop(&call);
	assert_int_equal(read_locks(&b), 1);
	kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	bench_free(&b);
}

static void
test_max_locked_bytes_bounds_the_plan(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	uint64_t bytes = 0;
	put_l1(&b, "0");
	put_l2(&b, 0, "1234");
	for (size_t i = 0; i < 3; i++)
		bytes += size_of(b.keys[i]);
	submit_with(&b, &call, N, (KvcPrefetchParams){.max_locked_bytes = bytes});
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	assert_int_equal(read_locks(&b), 3);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_stat(b.env, loads), 2);
	drop(&call);

	/* The same of what is all in L1. */
	put_l1(&b, "01234");
	call = (Call){0};
	submit_with(&b, &call, N, (KvcPrefetchParams){.max_locked_bytes = bytes});
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	assert_int_equal(read_locks(&b), 3);
	drop(&call);
	bench_free(&b);
}

/* ---- Deadlines ---------------------------------------------------------------------------------
 */

static void
test_timeout_in_the_lookup_answers_the_l1_prefix(void **state)
{
	Bench b = bench_new(2, &first, 1);
	FakeAdapter *slow = b.env->fakes[0];
	Call call = {0}, queued = {0};
	put_l1(&b, "013");
	put_l2(&b, 0, "24");
	put_l2(&b, 1, "24");
	slow->hold[FAKE_LOOKUP] = true;
	unsigned n_early = submit_with_deadline(
		&b, &call, N, (KvcPrefetchParams){.timeout_ns = 300 * KVC_MSEC_NS}, FAKE_LOOKUP, 1);
	submit_with(&b, &queued, N, (KvcPrefetchParams){.timeout_ns = 300 * KVC_MSEC_NS});
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(answer(&b, &queued), 2);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 2);
	assert_int_equal(get(&call.planned), 1);
	assert_int_equal(env_stat(b.env, lookups_timed_out), n_early + 2);
	assert_int_equal(env_stat(b.env, prefetches_timed_out), n_early + 2);
	assert_int_equal(read_locks(&b), 4);
	/* What the other adapter had answered went back, too. */
	assert_int_equal(l2_locks(&b, 1), 0);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 1);
	drop(&call);
	drop(&queued);
	/* The late answer is unlocked, and what it says is known. */
	fake_release(slow, FAKE_LOOKUP);
	wait_idle(&b);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_tiers(b.env, b.keys[2]), 3);
	assert_int_equal(env_stat(b.env, loads), 0);
	bench_free(&b);
}

/* False: the deadline came before what it is to come after. */
static bool
timeout_answers_what_is_there(int64_t timeout_ns)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "1234");
	fake->hold[FAKE_LOAD] = true;
	submit_with(&b, &call, N, (KvcPrefetchParams){.timeout_ns = timeout_ns});
	if (!has_begun(&b, &call, FAKE_LOAD, 4) || !is_released_in_time(&b, &call, 0) ||
	    !is_released_in_time(&b, &call, 2)) {
		bench_give_up(&b, &call);
		return false;
	}
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(env_stat(b.env, prefetches_timed_out), 1);
	assert_int_equal(env_stat(b.env, lookups_timed_out), 0);
	assert_int_equal(read_locks(&b), 2);
	/* The rest drains: it keeps its L2 locks, and is admitted without L1 locks. */
	assert_int_equal(l2_locks(&b, 0), 2);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 2);
	fake_release(fake, FAKE_LOAD);
	wait_idle(&b);
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(l2_locks(&b, 0), 0);
	for (size_t i = 0; i < N; i++)
		assert_true(is_resident(&b, i));
	drop(&call);
	bench_free(&b);
	return true;
}

static void
test_timeout_while_loading_answers_what_is_there(void **state)
{
	int64_t timeout_ns = 100 * KVC_MSEC_NS;
	while (!timeout_answers_what_is_there(timeout_ns))
		timeout_ns *= 2;
}

static void
test_timeout_while_held_answers_the_l1_prefix(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit_with(&b, &call, N,
		    (KvcPrefetchParams){
			    .flags = KVC_PREFETCH_HOLD,
			    .timeout_ns = 30 * KVC_MSEC_NS,
		    });
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_int_equal(l2_locks(&b, 0), 0);
	kvc_prefetch_handle_start(call.handle);
	nap(10);
	assert_int_equal(env_stat(b.env, loads), 0);
	drop(&call);
	bench_free(&b);
}

static void
test_a_draining_load_can_be_joined(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0}, next = {0};
	put_l2(&b, 0, "0");
	fake->hold[FAKE_LOAD] = true;
	/* Until the load has begun before the deadline. */
	for (int64_t timeout = 20 * KVC_MSEC_NS;; timeout *= 2) {
		call = (Call){0};
		submit_with(&b, &call, 1, (KvcPrefetchParams){.timeout_ns = timeout});
		assert_int_equal(answer(&b, &call), 0);
		if (fake_count_held(fake, FAKE_LOAD) == 1)
			break;
		drop(&call);
	}
	submit(&b, &next, 1, 0);
	wait_until(env_stat(b.env, loads_joined) == 1);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &next), 1);
	assert_int_equal(read_locks(&b), 1);
	drop(&call);
	drop(&next);
	bench_free(&b);
}

/* ---- Cancel ------------------------------------------------------------------------------------
 */

static void
test_cancel_in_the_queue(void **state)
{
	Bench b = bench_new(1, &first, 1);
	FakeAdapter *fake = b.env->fakes[0];
	Call running = {0}, queued = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "1");
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &running, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	submit(&b, &queued, 2, 0);
	kvc_prefetch_handle_cancel(queued.handle);
	assert_int_equal(answer(&b, &queued), 1);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &running), 2);
	drop(&running);
	drop(&queued);
	bench_free(&b);
}

static void
test_cancel_in_the_lookup_keeps_the_early_result(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	kvc_prefetch_handle_cancel(call.handle);
	nap(10);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_stat(b.env, loads), 0);
	drop(&call);
	bench_free(&b);
}

static void
test_cancel_of_a_held_request(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit(&b, &call, N, KVC_PREFETCH_HOLD);
	wait_until(get(&call.planned) == 1);
	assert_int_equal(l2_locks(&b, 0), 2);
	kvc_prefetch_handle_cancel(call.handle);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(read_locks(&b), 1);
	drop(&call);
	bench_free(&b);
}

static void
test_cancel_while_loading_lets_running_loads_end(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_large(&b, 7 << 20);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 4, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	kvc_prefetch_handle_cancel(call.handle);
	/* The L2 locks of the loads that have not begun go back. */
	wait_until(l2_locks(&b, 0) == 2);
	assert_int_equal(get(&call.done), 0);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(env_stat(b.env, loads), 2);
	drop(&call);
	bench_free(&b);
}

/* ---- Drop --------------------------------------------------------------------------------------
 */

static void
test_drop_in_the_queue(void **state)
{
	Bench b = bench_new(1, &first, 1);
	FakeAdapter *fake = b.env->fakes[0];
	Call running = {0}, queued = {0};
	put_l1(&b, "0");
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &running, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	submit(&b, &queued, 2, 0);
	drop(&queued);
	assert_int_equal(get(&queued.planned) + get(&queued.done), 0);
	assert_int_equal(read_locks(&b), 1);
	assert_int_equal(env_stat(b.env, prefetches_cancelled), 1);
	fake_release(fake, FAKE_LOOKUP);
	assert_int_equal(answer(&b, &running), 1);
	drop(&running);
	assert_int_equal(env_stat(b.env, lookups), 1);
	bench_free(&b);
}

static void
test_drop_in_the_lookup(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	/* The caller does not wait for the adapter. */
	drop(&call);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 1);
	fake_release(fake, FAKE_LOOKUP);
	wait_idle(&b);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(get(&call.planned) + get(&call.done), 0);
	bench_free(&b);
}

static void
test_drop_of_a_held_request(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit(&b, &call, N, KVC_PREFETCH_HOLD);
	wait_until(get(&call.planned) == 1);
	drop(&call);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(get(&call.done), 0);
	assert_int_equal(env_stat(b.env, loads), 0);
	bench_free(&b);
}

static void
test_drop_while_loading(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_large(&b, 7 << 20);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 4, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	drop(&call);
	assert_int_equal(get(&call.done), 0);
	assert_int_equal(l2_locks(&b, 0), 2);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 2);
	fake_release(fake, FAKE_LOAD);
	wait_idle(&b);
	assert_int_equal(env_stat(b.env, loads), 2);
	assert_int_equal(read_locks(&b), 0);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_counts(b.env).objects, 2);
	bench_free(&b);
}

static void
test_drop_by_one_of_two_waiters(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call stays = {0}, goes = {0};
	put_l2(&b, 0, "012");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &goes, 3, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 3);
	submit(&b, &stays, 3, 0);
	wait_until(env_stat(b.env, loads_joined) == 3);
	drop(&goes);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &stays), 3);
	assert_int_equal(read_locks(&b), 3);
	drop(&stays);
	bench_free(&b);
}

static void
test_drop_inside_the_callback(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {.drop_when_done = true};
	put_l2(&b, 0, "012");
	submit(&b, &call, 3, 0);
	wait_until(get(&call.freed) == 1);
	assert_int_equal(get(&call.done), 1);
	assert_int_equal(read_locks(&b), 0);
	bench_free(&b);
}

/* The first one is forgotten by the controller, but a message about it is still on its way. */
static void
test_drop_overtakes_an_earlier_wish(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call a = {.start_when_done = true}, z = {.drop_other_when_done = &a};
	KvcObjectKey *keys[] = {b.keys[1]};
	put_l2(&b, 0, "01");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &a, 1, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
	submit_with(&b, &z, 1, (KvcPrefetchParams){.keys = keys});
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &z), 1);
	nap(20);
	assert_int_equal(get(&a.freed), 1);
	drop(&z);
	bench_free(&b);
}

/* Start and drop right after each other, again and again, at whatever moment it hits. */
static void
test_drop_races_with_everything(void **state)
{
	Bench b = bench_new(1, &first, 4);
	g_autoptr(GRand) random = g_rand_new_with_seed(7);
	put_l1(&b, "0");
	put_l2(&b, 0, "123");
	for (unsigned i = 0; i < 300; i++) {
		Call call = {0};
		unsigned flags = i & 1 ? KVC_PREFETCH_HOLD : 0;
		int64_t timeout = i & 2 ? g_rand_int_range(random, 1, 200000) : 0;
		submit_with(&b, &call, N,
			    (KvcPrefetchParams){.flags = flags, .timeout_ns = timeout});
		kvc_prefetch_handle_start(call.handle);
		if (i & 4)
			kvc_prefetch_handle_cancel(call.handle);
		g_usleep((gulong)g_rand_int_range(random, 0, 200));
		drop(&call);
		assert_int_equal(get(&call.freed), 1);
		if (i % 8 == 0)
			for (size_t k = 1; k < 4; k++)
				kvc_l1_manager_evict(b.env->context.l1, b.keys[k]);
	}
	wait_idle(&b);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_no_lock_warms_without_locks),
		cmocka_unit_test(test_lookup_only_loads_and_locks_nothing),
		cmocka_unit_test(test_hold_loads_nothing_before_start),
		cmocka_unit_test(test_start_before_the_plan_is_remembered),
		cmocka_unit_test(test_difference_10_found_is_known_before_the_loads_end),
		cmocka_unit_test(test_a_key_can_be_taken_when_it_has_arrived),
		cmocka_unit_test(test_max_locked_bytes_bounds_the_plan),
		cmocka_unit_test(test_timeout_in_the_lookup_answers_the_l1_prefix),
		cmocka_unit_test(test_timeout_while_loading_answers_what_is_there),
		cmocka_unit_test(test_timeout_while_held_answers_the_l1_prefix),
		cmocka_unit_test(test_a_draining_load_can_be_joined),
		cmocka_unit_test(test_cancel_in_the_queue),
		cmocka_unit_test(test_cancel_in_the_lookup_keeps_the_early_result),
		cmocka_unit_test(test_cancel_of_a_held_request),
		cmocka_unit_test(test_cancel_while_loading_lets_running_loads_end),
		cmocka_unit_test(test_drop_in_the_queue),
		cmocka_unit_test(test_drop_in_the_lookup),
		cmocka_unit_test(test_drop_of_a_held_request),
		cmocka_unit_test(test_drop_while_loading),
		cmocka_unit_test(test_drop_by_one_of_two_waiters),
		cmocka_unit_test(test_drop_inside_the_callback),
		cmocka_unit_test(test_drop_overtakes_an_earlier_wish),
		cmocka_unit_test(test_drop_races_with_everything),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
