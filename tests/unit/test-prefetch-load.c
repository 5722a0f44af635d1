/* SPDX-License-Identifier: Apache-2.0 */

/* The limits on loads, and loads that fail. */

#include "tests/unit/prefetch-fixture.h"

/* ---- Limits ------------------------------------------------------------------------------------
 */

static void
test_max_in_flight_bounds_requests_but_not_urgent_ones(void **state)
{
	Bench b = bench_new(1, &first, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[4] = {0}, urgent = {0}, held = {0};
	put_l2(&b, 0, "01234");
	/* Held ones do not count. */
	submit(&b, &held, N, KVC_PREFETCH_HOLD);
	wait_until(get(&held.planned) == 1);
	fake->hold[FAKE_LOOKUP] = true;
	for (size_t i = 0; i < 4; i++)
		submit(&b, &calls[i], N, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 2);
	nap(20);
	assert_int_equal(fake_count_held(fake, FAKE_LOOKUP), 2);
	submit(&b, &urgent, N, KVC_PREFETCH_URGENT);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 3);
	nap(10);
	assert_int_equal(fake_count_held(fake, FAKE_LOOKUP), 3);
	fake_release_nth(fake, FAKE_LOOKUP, 2);
	assert_int_equal(answer(&b, &urgent), N);
	assert_int_equal(fake_count_held(fake, FAKE_LOOKUP), 2);
	fake_release(fake, FAKE_LOOKUP);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(answer(&b, &calls[i]), N);
		drop(&calls[i]);
	}
	drop(&urgent);
	drop(&held);
	bench_free(&b);
}

/* A quarter of 64 MiB is two objects of 7 MiB; an object larger than that goes alone. */
static void
test_bytes_in_flight_are_bounded_and_loads_are_in_order(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_large(&b, 7 << 20);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 4, 0);
	for (int i = 0; i < 3; i++) {
		wait_until(fake_position(fake, "load", b.keys[i + 1]) == i + 1);
		nap(10);
		assert_int_equal(fake_count_held(fake, FAKE_LOAD), 2);
		fake_release_nth(fake, FAKE_LOAD, 0);
	}
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 4);
	drop(&call);
	bench_free(&b);

	b = bench_new(1, &first, 8);
	put_large(&b, 20 << 20);
	assert_int_equal(run(&b, 1, 0), 1);
	bench_free(&b);
}

static void
test_urgent_loads_go_first(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call slow = {0}, urgent = {0};
	KvcObjectKey *keys[] = {b.keys[4]};
	put_large(&b, 7 << 20);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &slow, 4, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	submit_with(&b, &urgent, 1,
		    (KvcPrefetchParams){.keys = keys, .flags = KVC_PREFETCH_URGENT});
	wait_until(get(&urgent.planned) == 1);
	fake_release_nth(fake, FAKE_LOAD, 0);
	wait_until(fake_count(fake, "load", b.keys[4]) == 1);
	assert_int_equal(fake_position(fake, "load", b.keys[4]), 2);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &urgent), 1);
	assert_int_equal(answer(&b, &slow), 4);
	drop(&slow);
	drop(&urgent);
	bench_free(&b);
}

static void
test_without_memory_the_prefix_ends(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcL1Object *object;
	Call call = {0};
	put_large(&b, 1 << 20);
	/* All but 2.5 MiB are taken by somebody who writes. */
	assert_int_equal(kvc_l1_manager_reserve_write(b.env->context.l1, NULL, CAPACITY - (5 << 19),
						      false, &object, NULL),
			 KVC_L1_SUCCESS);
	submit(&b, &call, N, 0);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(kvc_prefetch_handle_get_found(call.handle), N);
	assert_int_equal(env_stat(b.env, loads_failed_no_memory), 1);
	assert_int_equal(env_stat(b.env, loads), 2);
	assert_int_equal(l2_locks(&b, 0), 0);
	/* L2 still has it. */
	assert_int_equal(env_tiers(b.env, b.keys[2]), 1);
	drop(&call);
	kvc_l1_manager_abort_write(b.env->context.l1, object);
	bench_free(&b);
}

/* ---- Rude and failing adapters -----------------------------------------------------------------
 */

static void
test_a_load_that_the_adapter_forgot_has_failed(void **state)
{
	Bench b = bench_new(1, &first, 8);
	b.env->fakes[0]->rude[FAKE_LOAD] = true;
	put_l2(&b, 0, "01");
	assert_int_equal(run(&b, 2, 0), 0);
	wait_idle(&b);
	assert_int_equal(env_stat(b.env, loads_failed_missing), 2);
	bench_free(&b);
}

static void
test_refused_tasks_are_failures(void **state)
{
	Bench b = bench_new(2, &first, 8);
	b.env->fakes[0]->refuse[FAKE_LOOKUP] = true;
	b.env->fakes[1]->refuse[FAKE_LOAD] = true;
	put_l2(&b, 1, "01");
	assert_int_equal(run(&b, 2, 0), 0);
	wait_idle(&b);
	bench_free(&b);
}

static void
test_a_failed_load_is_tried_on_the_next_adapter(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "012");
	put_l2(&b, 1, "1");
	b.env->fakes[0]->fail_loads = 0;
	g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[1]);
	assert_int_equal(run(&b, 3, 0), 3);
	assert_int_equal(fake_count(b.env->fakes[1], "load", b.keys[1]), 1);
	/* The one that failed is not asked again by anybody. */
	assert_int_equal(env_tiers(b.env, b.keys[1]), KVC_TIER_L1 | 2);
	assert_int_equal(env_stat(b.env, loads_failed_missing), 1);
	bench_free(&b);
}

static void
test_when_every_adapter_fails_the_key_is_unknown(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "01");
	put_l2(&b, 1, "01");
	g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[1]);
	g_hash_table_add(b.env->fakes[1]->bad_keys, b.keys[1]);
	assert_int_equal(run(&b, 2, 0), 1);
	assert_int_equal(env_tiers(b.env, b.keys[1]), 0);
	assert_int_equal(env_stat(b.env, loads_failed_missing), 2);
	bench_free(&b);
}

/* The bytes are those that the renamed object replaced. */
static void
test_a_load_from_before_a_rename_is_not_admitted(void **state)
{
	Bench b = bench_new(1, &first, 8);
	KvcKeyIndex *index = b.env->context.index;
	FakeAdapter *fake = b.env->fakes[0];
	Call call = {0};
	put_l2(&b, 0, "0");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &call, 1, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
	kvc_key_index_add(index, b.keys[3], 1, 10, 1);
	kvc_key_index_rename(index, b.keys[3], b.keys[0], false, 1, 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 0);
	assert_false(is_resident(&b, 0));
	assert_int_equal(env_tiers(b.env, b.keys[0]), 1);
	drop(&call);
	bench_free(&b);
}

/* ---- What changes while it is loading ------------------------------------------------------ */

/* A writer commits VERSION of KEY; it is stored (the test puts it into the fake) and evicted. */
static void
write_store_and_evict(Bench *b, KvcObjectKey *key, size_t bytes, unsigned version)
{
	KvcL1Object *object;
	KvcL1Manager *l1 = b->env->context.l1;
	env_write(b->env, key, bytes, version, KVC_FINISH_REPLACE);
	kvc_l1_manager_reserve_read(l1, &key, 1, 1, &object, NULL);
	kvc_l1_manager_set_clean(l1, object, true);
	kvc_l1_manager_finish_read(l1, object, 1);
	kvc_key_index_note_stored(b->env->context.index, key, 1);
	assert_int_equal(kvc_l1_manager_evict(l1, key), KVC_L1_SUCCESS);
}

static void
put_version(Bench *b, KvcObjectKey *key, size_t bytes, unsigned version)
{
	g_autoptr(GBytes) data = bytes_of(key, bytes, version);
	fake_put(b->env->fakes[0], key, data);
}

static void
assert_version(Bench *b, Call *call, size_t bytes, unsigned version)
{
	KvcL1Object *object = kvc_prefetch_handle_take_object(call->handle, 0);
	g_autoptr(GBytes) data = bytes_of(object->key, bytes, version);
	assert_true(object_has(object, data));
	kvc_l1_manager_finish_read(b->env->context.l1, object, 1);
}

/* The load has read the old bytes; meanwhile the new ones went to L2 and left L1. */
static void
test_a_load_of_a_replaced_version_is_not_admitted(void **state)
{
	static const size_t sizes[] = {5000, 5000, 7000};
	for (unsigned i = 1; i < G_N_ELEMENTS(sizes); i++) {
		Bench b = bench_new(1, &first, 8);
		FakeAdapter *fake = b.env->fakes[0];
		g_autoptr(KvcObjectKey) key = plain_key_new(0);
		Call call = {0};
		put_version(&b, key, sizes[0], 0);
		fake->hold[FAKE_LOAD] = true;
		submit_with(&b, &call, 1, (KvcPrefetchParams){.keys = &key});
		wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
		write_store_and_evict(&b, key, sizes[i], 1);
		fake_release_nth(fake, FAKE_LOAD, 0);
		/* It is loaded again, as what it is now. */
		wait_until(fake_count(fake, "load", key) == 2);
		assert_int_equal(env_tiers(b.env, key), 1);
		put_version(&b, key, sizes[i], 1);
		fake_release(fake, FAKE_LOAD);
		assert_int_equal(answer(&b, &call), 1);
		assert_version(&b, &call, sizes[i], 1);
		assert_int_equal(env_stat(b.env, loads_failed_contended), 1);
		drop(&call);
		bench_free(&b);
	}
}

/* The lookup said how long the old version was; the load asks for the new one. */
static void
test_a_version_stored_after_the_lookup_is_loaded(void **state)
{
	Bench b = bench_new(1, &first, 8);
	g_autoptr(KvcObjectKey) key = plain_key_new(0);
	Call call = {0};
	put_version(&b, key, 5000, 0);
	submit_with(&b, &call, 1, (KvcPrefetchParams){.keys = &key, .flags = KVC_PREFETCH_HOLD});
	wait_until(get(&call.planned) == 1);
	write_store_and_evict(&b, key, 7000, 1);
	put_version(&b, key, 7000, 1);
	kvc_prefetch_handle_start(call.handle);
	assert_int_equal(answer(&b, &call), 1);
	assert_version(&b, &call, 7000, 1);
	assert_int_equal(env_stat(b.env, loads), 1);
	drop(&call);
	bench_free(&b);
}

/* It fails by its size, which is not what L2 has by now: L2 has the key all the same. */
static void
test_a_failed_load_of_a_replaced_version_forgets_nothing(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = plain_key_new(0);
	Call call = {0};
	put_version(&b, key, 5000, 0);
	fake->hold[FAKE_LOAD] = true;
	submit_with(&b, &call, 1, (KvcPrefetchParams){.keys = &key});
	wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
	write_store_and_evict(&b, key, 7000, 1);
	put_version(&b, key, 7000, 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 1);
	assert_version(&b, &call, 7000, 1);
	drop(&call);
	bench_free(&b);
}

static bool
read_by_read(KvcL1Object *object)
{
	char byte;
	return pread(kvc_l1_object_get_fd(object), &byte, 1, 0) == 1;
}

static bool
read_by_mapping(KvcL1Object *object)
{
	KvcMemoryObj mapped;
	bool is_mapped = kvc_l1_object_map(object, false, &mapped) == 0;
	kvc_l1_object_unmap(&mapped);
	return is_mapped;
}

static void
test_what_is_loaded_is_unread_until_somebody_reads_it(void **state)
{
	Bench b = bench_new(1, &first, 8);
	bool (*const readers[N])(KvcL1Object *) = {NULL, read_by_read, read_by_mapping};
	Call call = {0};
	put_l2(&b, 0, "01234");
	submit(&b, &call, N, 0);
	assert_int_equal(answer(&b, &call), N);
	for (size_t i = 0; i < N; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
		if (readers[i])
			assert_true(readers[i](object));
		else
			assert_true(kvc_l1_object_take_unread(object));
		assert_false(kvc_l1_object_take_unread(object));
		kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
	}
	drop(&call);
	bench_free(&b);
}

/* What it found was replaced, stored and evicted before it is known: the index knows better. */
static void
test_a_late_lookup_of_a_replaced_version_changes_nothing(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = plain_key_new(0);
	KvcObjectInfo info;
	Call call = {0};
	put_version(&b, key, 5000, 0);
	kvc_key_index_add(b.env->context.index, key, 1, 5000, 1);
	fake->hold[FAKE_LOOKUP] = fake->hold[FAKE_LOAD] = true;
	submit_with(&b, &call, 1, (KvcPrefetchParams){.keys = &key});
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	write_store_and_evict(&b, key, 7000, 1);
	fake_release(fake, FAKE_LOOKUP);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 1);
	assert_int_equal(kvc_key_index_get(b.env->context.index, key, &info), 0);
	assert_int_equal(info.bytes, 7000);
	put_version(&b, key, 7000, 1);
	fake_release(fake, FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 1);
	assert_version(&b, &call, 7000, 1);
	drop(&call);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_late_lookup_of_a_replaced_version_changes_nothing),
		cmocka_unit_test(test_max_in_flight_bounds_requests_but_not_urgent_ones),
		cmocka_unit_test(test_bytes_in_flight_are_bounded_and_loads_are_in_order),
		cmocka_unit_test(test_urgent_loads_go_first),
		cmocka_unit_test(test_without_memory_the_prefix_ends),
		cmocka_unit_test(test_a_load_that_the_adapter_forgot_has_failed),
		cmocka_unit_test(test_refused_tasks_are_failures),
		cmocka_unit_test(test_a_failed_load_is_tried_on_the_next_adapter),
		cmocka_unit_test(test_when_every_adapter_fails_the_key_is_unknown),
		cmocka_unit_test(test_a_load_from_before_a_rename_is_not_admitted),
		cmocka_unit_test(test_a_load_of_a_replaced_version_is_not_admitted),
		cmocka_unit_test(test_a_version_stored_after_the_lookup_is_loaded),
		cmocka_unit_test(test_a_failed_load_of_a_replaced_version_forgets_nothing),
		cmocka_unit_test(test_what_is_loaded_is_unread_until_somebody_reads_it),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
