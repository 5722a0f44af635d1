/* SPDX-License-Identifier: Apache-2.0 */

/* Requests that want one key at the same time: one load, and nobody hangs on another's fate. */

#include "tests/unit/prefetch-fixture.h"

/* LEADER has begun the load of key 0, JOINER waits for it, too. */
static void
lead_and_join(Bench *b, Call *leader, int64_t timeout_ns, Call *joiner)
{
	FakeAdapter *fake = b->env->fakes[0];
	fake->hold[FAKE_LOAD] = true;
	submit_with_deadline(b, leader, 1, (KvcPrefetchParams){.timeout_ns = timeout_ns}, FAKE_LOAD,
			     1);
	submit(b, joiner, 1, 0);
	wait_until(env_stat(b->env, loads_joined) == 1);
}

static void
test_when_the_load_fails_the_joiner_has_a_miss(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call leader = {0}, joiner = {0};
	put_l2(&b, 0, "0");
	g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[0]);
	lead_and_join(&b, &leader, 0, &joiner);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &leader), 0);
	assert_int_equal(answer(&b, &joiner), 0);
	assert_int_equal(kvc_prefetch_handle_get_key_state(joiner.handle, 0),
			 KVC_PREFETCH_KEY_LOST);
	assert_int_equal(l2_locks(&b, 0), 0);
	drop(&leader);
	drop(&joiner);
	bench_free(&b);
}

/* The joiner knows an adapter that the one who began did not. */
static void
test_when_the_load_fails_the_joiner_loads_from_elsewhere(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call leader = {0}, joiner = {0};
	FakeAdapter *fake = b.env->fakes[0];
	put_l2(&b, 0, "0");
	g_hash_table_add(fake->bad_keys, b.keys[0]);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &leader, 1, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
	put_l2(&b, 1, "0");
	submit(&b, &joiner, 1, 0);
	wait_until(env_stat(b.env, loads_joined) == 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &joiner), 1);
	/* And who began has it as well. */
	assert_int_equal(answer(&b, &leader), 1);
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(fake_count(b.env->fakes[1], "load", b.keys[0]), 1);
	drop(&leader);
	drop(&joiner);
	bench_free(&b);
}

static void
test_when_the_leader_is_dropped_the_joiner_has_the_load(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call leader = {0}, joiner = {0};
	put_l2(&b, 0, "0");
	lead_and_join(&b, &leader, 0, &joiner);
	drop(&leader);
	assert_int_equal(get(&joiner.done), 0);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &joiner), 1);
	assert_int_equal(read_locks(&b), 1);
	drop(&joiner);
	bench_free(&b);
}

static void
test_when_the_leader_is_dropped_and_the_load_fails_the_joiner_has_a_miss(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call leader = {0}, joiner = {0};
	put_l2(&b, 0, "0");
	g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[0]);
	lead_and_join(&b, &leader, 0, &joiner);
	drop(&leader);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &joiner), 0);
	drop(&joiner);
	bench_free(&b);
}

static void
test_when_the_leader_is_cancelled_both_have_the_load(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call leader = {0}, joiner = {0};
	put_l2(&b, 0, "0");
	lead_and_join(&b, &leader, 0, &joiner);
	kvc_prefetch_handle_cancel(leader.handle);
	assert_true(maps_are_exact(&b, 0));
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &leader), 1);
	assert_int_equal(answer(&b, &joiner), 1);
	drop(&leader);
	drop(&joiner);
	bench_free(&b);
}

static void
test_when_the_leader_times_out_the_joiner_waits_on(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call leader = {0}, joiner = {0};
	put_l2(&b, 0, "0");
	lead_and_join(&b, &leader, 400 * KVC_MSEC_NS, &joiner);
	assert_int_equal(answer(&b, &leader), 0);
	assert_int_equal(get(&joiner.done), 0);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &joiner), 1);
	/* What it was told is not taken back. */
	assert_int_equal(kvc_prefetch_handle_get_key_state(leader.handle, 0),
			 KVC_PREFETCH_KEY_NOT_LOADED);
	assert_int_equal(read_locks(&b), 1);
	drop(&leader);
	drop(&joiner);
	bench_free(&b);
}

/* The joiner itself is dropped, times out, or is cancelled: the leader does not notice. */
static void
test_when_the_joiner_goes_the_leader_has_the_load(void **state)
{
	for (int how = 0; how < 2; how++) {
		Bench b = bench_new(1, &first, 8);
		Call leader = {0}, joiner = {0};
		put_l2(&b, 0, "0");
		lead_and_join(&b, &leader, 0, &joiner);
		if (how == 0)
			drop(&joiner);
		else
			kvc_prefetch_handle_cancel(joiner.handle);
		fake_release(b.env->fakes[0], FAKE_LOAD);
		assert_int_equal(answer(&b, &leader), 1);
		if (how == 1) {
			assert_int_equal(answer(&b, &joiner), 1);
			drop(&joiner);
		}
		drop(&leader);
		bench_free(&b);
	}
}

/* The load failed for others between the joiner's lookup and its turn: then it is no source. */
static void
test_a_key_that_was_lost_before_its_turn_is_a_miss(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call waits = {0};
	put_l2(&b, 0, "0");
	submit(&b, &waits, 1, KVC_PREFETCH_HOLD);
	wait_until(get(&waits.planned) == 1);
	kvc_key_index_remove(b.env->context.index, b.keys[0], 1);
	kvc_prefetch_handle_start(waits.handle);
	assert_int_equal(answer(&b, &waits), 0);
	assert_int_equal(kvc_prefetch_handle_get_key_state(waits.handle, 0), KVC_PREFETCH_KEY_LOST);
	assert_int_equal(env_stat(b.env, loads), 0);
	assert_int_equal(l2_locks(&b, 0), 0);
	drop(&waits);
	bench_free(&b);
}

/* ---- Slots --------------------------------------------------------------------------------- */

/* What a request leaves behind counts against max_in_flight until it has ended. */
static void
test_a_draining_request_keeps_its_slot(void **state)
{
	Bench b = bench_new(1, &first, 1);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0}, next = {0};
	KvcObjectKey *keys[] = {b.keys[3]};
	put_l2(&b, 0, "03");
	fake->hold[FAKE_LOAD] = true;
	submit_with_deadline(&b, &call, 1, (KvcPrefetchParams){.timeout_ns = 300 * KVC_MSEC_NS},
			     FAKE_LOAD, 1);
	uint64_t lookups = env_stat(b.env, lookups);
	assert_int_equal(answer(&b, &call), 0);
	drop(&call);
	assert_int_equal(total(&b).slots, 1);
	submit_with(&b, &next, 1, (KvcPrefetchParams){.keys = keys});
	nap(20);
	assert_int_equal(env_stat(b.env, lookups), lookups);
	/* The buffer of the late load is there until it ends, and is not given to anybody. */
	assert_int_equal(env_counts(b.env).staging_objects, 1);
	fake_release_nth(fake, FAKE_LOAD, 0);
	wait_until(env_stat(b.env, lookups) == lookups + 1);
	assert_int_equal(total(&b).slots, 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &next), 1);
	assert_int_equal(total(&b).slots, 0);
	assert_true(is_resident(&b, 0));
	drop(&next);
	bench_free(&b);
}

static void
test_a_dropped_request_keeps_its_slot_while_it_loads(void **state)
{
	Bench b = bench_new(1, &first, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[3] = {0};
	put_l2(&b, 0, "01");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &calls[0], 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	submit(&b, &calls[1], 2, 0);
	wait_until(env_stat(b.env, loads_joined) == 2);
	drop(&calls[0]);
	drop(&calls[1]);
	assert_int_equal(total(&b).slots, 2);
	fake_release_nth(fake, FAKE_LOAD, 0);
	wait_until(total(&b).bytes_in_flight == size_of(b.keys[1]));
	assert_int_equal(total(&b).slots, 2);
	fake_release(fake, FAKE_LOAD);
	wait_idle(&b);
	assert_int_equal(total(&b).slots, 0);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_when_the_load_fails_the_joiner_has_a_miss),
		cmocka_unit_test(test_when_the_load_fails_the_joiner_loads_from_elsewhere),
		cmocka_unit_test(test_when_the_leader_is_dropped_the_joiner_has_the_load),
		cmocka_unit_test(
			test_when_the_leader_is_dropped_and_the_load_fails_the_joiner_has_a_miss),
		cmocka_unit_test(test_when_the_leader_is_cancelled_both_have_the_load),
		cmocka_unit_test(test_when_the_leader_times_out_the_joiner_waits_on),
		cmocka_unit_test(test_when_the_joiner_goes_the_leader_has_the_load),
		cmocka_unit_test(test_a_key_that_was_lost_before_its_turn_is_a_miss),
		cmocka_unit_test(test_a_draining_request_keeps_its_slot),
		cmocka_unit_test(test_a_dropped_request_keeps_its_slot_while_it_loads),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
