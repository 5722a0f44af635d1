/* SPDX-License-Identifier: Apache-2.0 */

/* Answers of the controller; its invariants are in test-invariants.c and test-differences.c. */

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

/* ---- Stop ---------------------------------------------------------------------------------- */

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
		cmocka_unit_test(test_a_stopped_controller_answers_from_l1),
		cmocka_unit_test(test_stop_without_start_answers_what_was_submitted),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
