/* SPDX-License-Identifier: Apache-2.0 */

/* Fetch modes, read locks for several consumers, and why a key is not held. */

#include "tests/unit/prefetch-fixture.h"

static void
assert_keys(Call *call, const char *found, const char *held)
{
	g_autoptr(KvcBitmap) found_bits = kvc_bitmap_new(strlen(found));
	g_autoptr(KvcBitmap) held_bits = kvc_bitmap_new(strlen(held));
	assert_int_equal(kvc_prefetch_handle_get_keys(call->handle, found_bits, held_bits), 0);
	for (size_t i = 0; found[i]; i++) {
		assert_int_equal(kvc_bitmap_test(found_bits, i), found[i] == '1');
		assert_int_equal(kvc_bitmap_test(held_bits, i), held[i] == '1');
		assert_int_equal(kvc_prefetch_handle_get_key_state(call->handle, i) ==
					 KVC_PREFETCH_KEY_HELD,
				 held[i] == '1');
	}
}

#define assert_state(call, i, expected)                                                            \
	assert_int_equal(kvc_prefetch_handle_get_key_state((call)->handle, i),                     \
			 KVC_PREFETCH_KEY_##expected)

/* ---- Fetch mode full ----------------------------------------------------------------------- */

static void
test_full_loads_every_key_that_exists(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l1(&b, "3");
	put_l2(&b, 0, "13");
	put_l2(&b, 1, "4");
	submit(&b, &call, N, KVC_PREFETCH_FULL);
	assert_int_equal(call.handle->l1_prefix_hit_count, 0);
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_int_equal(call.found_when_planned, 3);
	assert_keys(&call, "01011", "01011");
	assert_state(&call, 0, NOT_FOUND);
	assert_int_equal(read_locks(&b), 3);
	assert_int_equal(l2_locks(&b, 0) + l2_locks(&b, 1), 0);
	assert_int_equal(env_stat(b.env, loads), 2);
	assert_null(kvc_prefetch_handle_take_object(call.handle, 0));
	for (size_t i = 3; i < N; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
		assert_ptr_equal(object->key, b.keys[i]);
		kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	}
	drop(&call);
	bench_free(&b);
}

static void
test_prefix_says_what_lies_behind_the_gap(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "3");
	put_l2(&b, 0, "0134");
	submit(&b, &call, N, 0);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 2);
	assert_keys(&call, "11011", "11000");
	assert_state(&call, 2, NOT_FOUND);
	assert_state(&call, 3, AFTER_GAP);
	assert_state(&call, 4, AFTER_GAP);
	drop(&call);
	bench_free(&b);
}

/* "found" is the early result: what existed but does not fit is in it. */
static void
test_full_reports_what_did_not_fit(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	KvcObjectKey *keys[] = {b.keys[0], b.keys[1], b.keys[2], b.keys[3]};
	static const size_t sizes[] = {4000, 9000, 3000, 100};
	for (size_t i = 0; i < 4; i++) {
		g_autoptr(GBytes) data = bytes_of(keys[i], sizes[i], 0);
		fake_put(b.env->fakes[0], keys[i], data);
	}
	/* Key 1 does not fit beside key 0; smaller ones behind it do. */
	submit_with(&b, &call, 4,
		    (KvcPrefetchParams){
			    .keys = keys,
			    .flags = KVC_PREFETCH_FULL,
			    .max_locked_bytes = 7100,
		    });
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 4);
	assert_keys(&call, "1111", "1011");
	assert_state(&call, 1, OVER_BOUND);
	assert_int_equal(l2_locks(&b, 0), 0);
	drop(&call);
	bench_free(&b);
}

static void
test_full_goes_on_behind_a_failed_load(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "01234");
	g_hash_table_add(fake->bad_keys, b.keys[1]);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, KVC_PREFETCH_FULL);
	wait_until(fake_count_held(fake, FAKE_LOAD) == N);
	fake_release_nth(fake, FAKE_LOAD, 1);
	/* Only the lock of the one that failed goes back. */
	wait_until(l2_locks(&b, 0) == N - 1);
	assert_int_equal(get(&call.done), 0);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), N - 1);
	assert_keys(&call, "11111", "10111");
	assert_state(&call, 1, LOST);
	assert_int_equal(read_locks(&b), N - 1);
	drop(&call);
	bench_free(&b);
}

/* False: the deadline came before what it is to come after. */
static bool
full_holds_what_is_there(int64_t timeout_ns)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l1(&b, "4");
	put_l2(&b, 0, "013");
	fake->hold[FAKE_LOAD] = true;
	submit_with(&b, &call, N,
		    (KvcPrefetchParams){.flags = KVC_PREFETCH_FULL, .timeout_ns = timeout_ns});
	if (!has_begun(&b, &call, FAKE_LOAD, 3) || !is_released_in_time(&b, &call, 1)) {
		bench_give_up(&b, &call);
		return false;
	}
	assert_int_equal(answer(&b, &call), 2);
	assert_keys(&call, "11011", "01001");
	assert_state(&call, 0, NOT_LOADED);
	assert_state(&call, 2, NOT_FOUND);
	assert_int_equal(read_locks(&b), 2);
	fake_release(fake, FAKE_LOAD);
	wait_idle(&b);
	/* Admitted late, without locks; the answer stays what it was. */
	assert_true(is_resident(&b, 0) && is_resident(&b, 3));
	assert_int_equal(read_locks(&b), 2);
	assert_keys(&call, "11011", "01001");
	drop(&call);
	bench_free(&b);
	return true;
}

static void
test_full_at_the_deadline_holds_what_is_there(void **state)
{
	int64_t timeout_ns = 100 * KVC_MSEC_NS;
	while (!full_holds_what_is_there(timeout_ns))
		timeout_ns *= 2;
}

static void
test_full_cancel_keeps_what_is_loading(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_large(&b, 7 << 20);
	put_l1(&b, "4");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, KVC_PREFETCH_FULL);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	kvc_prefetch_handle_cancel(call.handle);
	wait_until(l2_locks(&b, 0) == 2);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 3);
	assert_keys(&call, "11111", "11001");
	assert_state(&call, 2, NOT_LOADED);
	assert_int_equal(env_stat(b.env, loads), 2);
	drop(&call);
	bench_free(&b);
}

static void
test_full_without_adapters_is_what_l1_has(void **state)
{
	Bench b = bench_new(0, &first, 8);
	Call call = {0};
	put_l1(&b, "024");
	submit(&b, &call, N, KVC_PREFETCH_FULL);
	assert_int_equal(call.handle->request_id, -1);
	assert_int_equal(answer(&b, &call), 3);
	assert_keys(&call, "10101", "10101");
	assert_int_equal(read_locks(&b), 3);
	drop(&call);
	bench_free(&b);
}

static void
test_full_warm_and_lookup_only(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "13");
	assert_int_equal(run(&b, N, KVC_PREFETCH_FULL | KVC_PREFETCH_LOOKUP_ONLY), 2);
	assert_int_equal(env_stat(b.env, loads), 0);
	submit(&b, &call, N, KVC_PREFETCH_FULL | KVC_PREFETCH_NO_LOCK);
	assert_int_equal(answer(&b, &call), 2);
	assert_keys(&call, "01010", "01010");
	assert_int_equal(read_locks(&b), 0);
	assert_true(is_resident(&b, 1) && is_resident(&b, 3));
	drop(&call);
	bench_free(&b);
}

/* ---- L1 only ------------------------------------------------------------------------------- */

static void
test_l1_only_asks_no_adapter(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "013");
	put_l2(&b, 0, "24");
	submit(&b, &call, N, KVC_PREFETCH_L1_ONLY);
	assert_int_equal(call.handle->request_id, -1);
	/* At once, and again. */
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), 2);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), 2);
	assert_keys(&call, "11010", "11000");
	assert_int_equal(read_locks(&b), 2);
	assert_int_equal(env_stat(b.env, lookups), 0);
	drop(&call);

	call = (Call){0};
	submit(&b, &call, N, KVC_PREFETCH_L1_ONLY | KVC_PREFETCH_FULL);
	assert_int_equal(kvc_prefetch_controller_query(b.c, call.handle), 3);
	assert_keys(&call, "11010", "11010");
	drop(&call);
	assert_int_equal(run(&b, N, KVC_PREFETCH_L1_ONLY | KVC_PREFETCH_LOOKUP_ONLY), 2);
	assert_int_equal(env_stat(b.env, lookups), 0);
	bench_free(&b);
}

/* ---- Consumers ----------------------------------------------------------------------------- */

/* One lock for each consumer, of keys that were in L1 and of keys that were loaded. */
static void
test_read_locks_are_taken_for_every_consumer(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcL1Manager *l1 = b.env->context.l1;
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit_with(&b, &call, 3, (KvcPrefetchParams){.read_locks = 3});
	assert_int_equal(answer(&b, &call), 3);
	assert_int_equal(read_locks(&b), 9);
	for (size_t i = 0; i < 2; i++) {
		for (int consumer = 0; consumer < 3; consumer++) {
			KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
			assert_non_null(object);
			assert_int_equal(kvc_l1_manager_finish_read(l1, object, 1), KVC_L1_SUCCESS);
			bool is_last = consumer == 2;
			assert_int_equal(kvc_l1_manager_evict(l1, b.keys[i]),
					 is_last ? KVC_L1_SUCCESS : KVC_L1_KEY_IS_LOCKED);
		}
		assert_null(kvc_prefetch_handle_take_object(call.handle, i));
	}
	/* What was not taken goes back with the handle. */
	KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, 2);
	assert_int_equal(read_locks(&b), 3);
	drop(&call);
	assert_int_equal(read_locks(&b), 1);
	kvc_l1_manager_finish_read(l1, object, 1);
	bench_free(&b);
}

static void
test_waiters_of_one_load_get_their_own_number_of_locks(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call one = {0}, four = {0}, none = {0};
	put_l2(&b, 0, "0");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &one, 1, 0);
	submit_with(&b, &four, 1, (KvcPrefetchParams){.read_locks = 4});
	submit_with(&b, &none, 1,
		    (KvcPrefetchParams){.read_locks = 2, .flags = KVC_PREFETCH_NO_LOCK});
	wait_until(env_stat(b.env, loads_joined) == 2);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &one) + answer(&b, &four) + answer(&b, &none), 3);
	assert_int_equal(read_locks(&b), 5);
	drop(&four);
	assert_int_equal(read_locks(&b), 1);
	drop(&one);
	drop(&none);
	assert_int_equal(read_locks(&b), 0);
	bench_free(&b);
}

/* ---- Reasons ------------------------------------------------------------------------------- */

static void
test_states_are_pending_until_the_answer(void **state)
{
	Bench b = bench_new(1, &first, 8);
	g_autoptr(KvcBitmap) bits = kvc_bitmap_new(2);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "1");
	b.env->fakes[0]->hold[FAKE_LOOKUP] = b.env->fakes[0]->hold[FAKE_LOAD] = true;
	submit(&b, &call, 2, 0);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOOKUP) == 1);
	assert_state(&call, 0, PENDING);
	assert_int_equal(kvc_prefetch_handle_get_keys(call.handle, bits, NULL), -EAGAIN);
	fake_release(b.env->fakes[0], FAKE_LOOKUP);
	wait_until(get(&call.planned) == 1);
	assert_int_equal(kvc_prefetch_handle_get_keys(call.handle, bits, NULL), 0);
	assert_int_equal(kvc_bitmap_count(bits), 2);
	assert_int_equal(kvc_prefetch_handle_get_keys(call.handle, NULL, bits), -EAGAIN);
	assert_state(&call, 1, PENDING);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_state(&call, 1, HELD);
	drop(&call);
	bench_free(&b);
}

/* Each key for itself: the L2 lock of the one without room goes back while the others load. */
static void
test_l1_oom_is_said_and_its_lock_goes_back_at_once(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	KvcL1Object *writer;
	Call call = {0};
	for (size_t i = 0; i < 3; i++) {
		g_autoptr(GBytes) data = bytes_of(b.keys[i], i == 1 ? 4 << 20 : 1 << 20, 0);
		fake_put(fake, b.keys[i], data);
	}
	assert_int_equal(kvc_l1_manager_reserve_write(b.env->context.l1, NULL, CAPACITY - (3 << 20),
						      false, &writer, NULL),
			 KVC_L1_SUCCESS);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 3, KVC_PREFETCH_FULL);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	wait_until(l2_locks(&b, 0) == 2);
	assert_int_equal(get(&call.done), 0);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_keys(&call, "111", "101");
	assert_state(&call, 1, L1_OOM);
	assert_int_equal(env_stat(b.env, loads_failed_no_memory), 1);
	drop(&call);

	/* In mode prefix it ends the plan. */
	for (size_t i = 0; i < 3; i++)
		kvc_l1_manager_evict(b.env->context.l1, b.keys[i]);
	call = (Call){0};
	submit(&b, &call, 3, 0);
	assert_int_equal(answer(&b, &call), 1);
	assert_state(&call, 1, L1_OOM);
	assert_state(&call, 2, AFTER_GAP);
	drop(&call);
	kvc_l1_manager_abort_write(b.env->context.l1, writer);
	bench_free(&b);
}

static void
commit_store_and_evict(Bench *b, KvcObjectKey *key, unsigned version)
{
	KvcL1Manager *l1 = b->env->context.l1;
	KvcL1Object *object;
	env_write(b->env, key, 100, version, KVC_FINISH_REPLACE);
	kvc_l1_manager_reserve_read(l1, &key, 1, 1, &object, NULL);
	kvc_l1_manager_set_clean(l1, object, true);
	kvc_l1_manager_finish_read(l1, object, 1);
	kvc_key_index_note_stored(b->env->context.index, key, 1);
	assert_int_equal(kvc_l1_manager_evict(l1, key), KVC_L1_SUCCESS);
}

/* A writer is faster than the load, again and again: it is not tried for ever. */
static void
test_l1_contended_is_said(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = plain_key_new(0);
	g_autoptr(GBytes) data = bytes_of(key, 100, 0);
	Call call = {0};
	fake_put(fake, key, data);
	fake->hold[FAKE_LOAD] = true;
	submit_with(&b, &call, 1, (KvcPrefetchParams){.keys = &key});
	for (unsigned i = 1; i <= KVC_PREFETCH_RENEWALS + 1; i++) {
		wait_until(fake_count(fake, "load", key) == i);
		commit_store_and_evict(&b, key, i);
		fake_release_nth(fake, FAKE_LOAD, 0);
	}
	assert_int_equal(answer(&b, &call), 0);
	assert_state(&call, 0, L1_CONTENDED);
	assert_int_equal(env_stat(b.env, loads_failed_contended), KVC_PREFETCH_RENEWALS + 1);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_tiers(b.env, key), 1);
	drop(&call);
	bench_free(&b);
}

/* It is in L1 by the time its load fails: then that is what was wanted. */
static void
test_a_failed_load_of_what_is_resident_by_now_is_a_hit(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "01");
	g_hash_table_add(fake->bad_keys, b.keys[0]);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	put_l1(&b, "0");
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(read_locks(&b), 2);
	drop(&call);
	bench_free(&b);
}

/* ---- Policies ------------------------------------------------------------------------------ */

static void
test_a_wrong_plan_is_counted(void **state)
{
	Bench b = bench_new(2, &bad, 8);
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "01");
	/* Of 2 x 5 bits, 3 are right: keys 0 and 2 from the first adapter, 1 from the second. */
	assert_int_equal(run(&b, N, 0), 3);
	assert_int_equal(env_stat(b.env, plan_errors), 7);
	bench_free(&b);
	b = bench_new(2, &first, 8);
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "01");
	assert_int_equal(run(&b, N, 0), 3);
	assert_int_equal(env_stat(b.env, plan_errors), 0);
	bench_free(&b);
}

static void
plan_nothing(KvcObjectKey *const *keys,
	     size_t n_keys,
	     const KvcBitmap *const *found,
	     const KvcAdapterDescriptor *adapters,
	     size_t n_adapters,
	     KvcBitmap **plan)
{
}

/* A policy may leave keys where they are. */
static void
test_what_the_policy_does_not_plan_is_not_loaded(void **state)
{
	static const KvcPrefetchPolicy nothing = {.select_load_plan = plan_nothing};
	Bench b = bench_new(1, &nothing, 8);
	Call call = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	submit(&b, &call, 3, 0);
	assert_int_equal(answer(&b, &call), 1);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), 3);
	assert_state(&call, 1, NOT_LOADED);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_stat(b.env, plan_errors), 0);
	drop(&call);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_full_loads_every_key_that_exists),
		cmocka_unit_test(test_prefix_says_what_lies_behind_the_gap),
		cmocka_unit_test(test_full_reports_what_did_not_fit),
		cmocka_unit_test(test_full_goes_on_behind_a_failed_load),
		cmocka_unit_test(test_full_at_the_deadline_holds_what_is_there),
		cmocka_unit_test(test_full_cancel_keeps_what_is_loading),
		cmocka_unit_test(test_full_without_adapters_is_what_l1_has),
		cmocka_unit_test(test_full_warm_and_lookup_only),
		cmocka_unit_test(test_l1_only_asks_no_adapter),
		cmocka_unit_test(test_read_locks_are_taken_for_every_consumer),
		cmocka_unit_test(test_waiters_of_one_load_get_their_own_number_of_locks),
		cmocka_unit_test(test_states_are_pending_until_the_answer),
		cmocka_unit_test(test_l1_oom_is_said_and_its_lock_goes_back_at_once),
		cmocka_unit_test(test_l1_contended_is_said),
		cmocka_unit_test(test_a_failed_load_of_what_is_resident_by_now_is_a_hit),
		cmocka_unit_test(test_a_wrong_plan_is_counted),
		cmocka_unit_test(test_what_the_policy_does_not_plan_is_not_loaded),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
