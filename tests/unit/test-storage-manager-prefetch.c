/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/unit/storage-manager-fixture.h"

/* ---- Prefetch ------------------------------------------------------------------------------ */

static void
test_difference_1_plan_over_l1_and_l2(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < 4; i++)
		put(f, i, 1000 + i);
	drain(f);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(evict(f, 3), 0);
	/* L1={0,2}, L2={0,1,2,3}, and 4 nowhere. */
	KvcPrefetchHandle *handle = prefetch(f, 0, 5, 0);
	assert_true(handle->request_id >= 0);
	assert_int_equal(handle->l1_prefix_hit_count, 1);
	assert_int_equal(handle->total_requested_keys, 5);
	assert_int_equal(found_of(handle), 4);
	assert_int_equal(result_of(f, handle), 4);
	/* Once. */
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), -ENODATA);
	assert_int_equal(stat_of(f, "loads"), 2);
	assert_status(f, "l1_read_locks", "4");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(evict(f, i), -EBUSY);
	kvc_prefetch_handle_drop(handle, NULL);
	wait_until(is_status(f, "l1_read_locks", "0"));
	for (unsigned i = 0; i < 4; i++)
		assert_in_l1(f, i, 1000 + i, 0);
}

static void
test_all_in_l1_needs_no_request(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 0, 100);
	put(f, 1, 100);
	drain(f);
	KvcPrefetchHandle *handle = prefetch(f, 0, 2, 0);
	assert_int_equal(handle->request_id, -1);
	assert_int_equal(handle->l1_prefix_hit_count, 2);
	assert_int_equal(kvc_prefetch_handle_get_found(handle), 2);
	/* Always. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 2);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_status(f, "l1_read_locks", "0");
	assert_int_equal(stat_of(f, "lookups"), 0);
}

static void
test_difference_2_failed_load_leaves_nothing(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_loads=1", NULL);
	put_in_l2(f, 0, 100);
	assert_int_equal(load(f, 0, 1), 0);
	assert_false(is_in_l1(f, 0));
	wait_until(is_status(f, "l1_used_bytes", "0"));
	assert_status(f, "l1_staging_objects", "0");
	assert_int_equal(stat_of(f, "loads_failed_missing"), 1);
	drain(f);
	/* It was not stored either: the next load has the bytes of old. */
	assert_int_equal(stat_of(f, "stores"), 1);
	put_in_l2(f, 1, 100);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_other_adapter_helps_out(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_loads=1000", MOCK);
	put_in_l2(f, 0, 100);
	assert_int_equal(load(f, 0, 1), 1);
	assert_in_l1(f, 0, 100, 0);
}

static void
test_difference_4_loaded_is_never_stored_back(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put_in_l2(f, 0, 100);
	unsigned stores = stat_of(f, "stores");
	assert_int_equal(load(f, 0, 1), 1);
	assert_status(f, "l1_temporary_objects", "1");
	assert_status(f, "l1_dirty_objects", "0");
	drain(f);
	g_usleep(20000);
	assert_int_equal(stat_of(f, "stores"), stores);
	assert_int_equal(stat_of(f, "l1_writes_finished"), 1);
	/* Clean from the start: it may go at once. */
	assert_int_equal(evict(f, 0), 0);
}

static void
test_difference_5_sizes_differ_in_one_batch(void **state)
{
	static const uint64_t sizes[] = {100, 0, 5000, 4096, 300000, 1, 8191};
	enum { N = G_N_ELEMENTS(sizes) };
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < N; i++)
		put(f, i, sizes[i]);
	drain(f);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(evict(f, i), 0);
	assert_int_equal(load(f, 0, N), N);
	for (unsigned i = 0; i < N; i++)
		assert_in_l1(f, i, sizes[i], 0);
}

static void
test_difference_10_early_answer_and_held_loads(void **state)
{
	Fixture *f = *state;
	Callbacks callbacks = {0};
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 3, KVC_PREFETCH_HOLD, 0, &callbacks);
	assert_int_equal(found_of(handle), 2);
	wait_until(__atomic_load_n(&callbacks.planned, __ATOMIC_RELAXED) == 1);
	g_usleep(20000);
	assert_int_equal(stat_of(f, "loads"), 0);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), -EAGAIN);
	assert_null(kvc_prefetch_handle_take_object(handle, 0));
	kvc_prefetch_handle_start(handle);
	kvc_prefetch_handle_start(handle);
	assert_int_equal(result_of(f, handle), 2);
	KvcL1Object *object = kvc_prefetch_handle_take_object(handle, 1);
	assert_true(has_content(object, 100, byte_of(1, 0)));
	assert_null(kvc_prefetch_handle_take_object(handle, 1));
	assert_null(kvc_prefetch_handle_take_object(handle, 2));
	assert_null(kvc_prefetch_handle_take_object(handle, 3));
	kvc_prefetch_handle_drop(handle, on_freed);
	wait_until(__atomic_load_n(&callbacks.freed, __ATOMIC_ACQUIRE) == 1);
	assert_int_equal(callbacks.planned, 1);
	assert_int_equal(callbacks.done, 1);
	/* What was taken out stays locked. */
	wait_until(is_status(f, "l1_read_locks", "1"));
	assert_int_equal(evict(f, 1), -EBUSY);
	kvc_storage_manager_finish_read(f->sm, object);
}

static void
test_difference_10_lookup_only_and_no_lock(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 1, 100);
	assert_int_equal(look_up(f, 0, 3), 2);
	assert_int_equal(stat_of(f, "loads"), 0);
	assert_status(f, "l1_used_bytes", "0");
	KvcPrefetchHandle *handle = prefetch(f, 0, 3, KVC_PREFETCH_NO_LOCK);
	assert_int_equal(result_of(f, handle), 2);
	assert_status(f, "l1_read_locks", "0");
	assert_null(kvc_prefetch_handle_take_object(handle, 0));
	assert_in_l1(f, 0, 100, 0);
	assert_in_l1(f, 1, 100, 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(delete_key(f, 0), 0);
	drain(f);
}

static void
test_difference_10_deadline_and_draining(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=150", NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 1, 0, 220 * KVC_MSEC_NS, NULL);
	assert_int_equal(result_of(f, handle), 0);
	assert_int_equal(stat_of(f, "prefetches_timed_out"), 1);
	kvc_prefetch_handle_drop(handle, NULL);
	/* The load that was under way is for who comes next. */
	wait_until(is_in_l1(f, 0));
	assert_in_l1(f, 0, 100, 0);
	wait_until(is_status(f, "prefetches_active", "0"));
	assert_int_equal(stat_of(f, "loads"), 1);
}

static void
test_difference_11_temporary_goes_first_not_at_release(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 0, L1_SIZE / 4);
	for (unsigned i = 1; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	drain(f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(load(f, 0, 1), 1);
	wait_until(is_status(f, "l1_read_locks", "0"));
	assert_true(is_in_l1(f, 0));
	assert_int_equal(stat_of(f, "loads"), 1);
	put(f, 4, L1_SIZE / 4);
	assert_false(is_in_l1(f, 0));
	for (unsigned i = 1; i < 5; i++)
		assert_true(is_in_l1(f, i));
	drain(f);
}

static void
start_retaining(Fixture *f)
{
	const char *const adapters[] = {MOCK, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = L1_SIZE,
		.l2_adapters = adapters,
		.prefetch_policy = "retain",
		.eviction_trigger_watermark = 2,
	};
	f->sm = kvc_storage_manager_new(&config, NULL);
	assert_non_null(f->sm);
}

/* What was loaded waits for its turn, as what was written does. */
static void
test_policy_retain_keeps_what_was_loaded(void **state)
{
	Fixture *f = *state;
	start_retaining(f);
	put_in_l2(f, 0, L1_SIZE / 4);
	for (unsigned i = 1; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	drain(f);
	assert_int_equal(load(f, 0, 1), 1);
	wait_until(is_status(f, "l1_read_locks", "0"));
	assert_status(f, "l1_temporary_objects", "0");
	assert_status(f, "prefetch_policy", "retain");
	unsigned stores = stat_of(f, "stores");
	put(f, 4, L1_SIZE / 4);
	/* It was used last; the oldest one went. */
	assert_true(is_in_l1(f, 0));
	assert_false(is_in_l1(f, 1));
	drain(f);
	assert_int_equal(stat_of(f, "stores"), stores + 1);
}

/* ---- The API ------------------------------------------------------------------------------- */

static void
note_line(void *user, const char *name, const char *value)
{
	g_string_append_printf(user, "%s: %s\n", name, value);
}

static void
test_dump_names_every_handle_and_what_it_holds(void **state)
{
	Fixture *f = *state;
	g_autoptr(GString) lines = g_string_new(NULL);
	start(f, MOCK, NULL);
	put(f, 0, 100);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *resident = prefetch(f, 0, 1, 0);
	KvcPrefetchHandle *held = prefetch(f, 0, 2, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(held), 2);
	kvc_storage_manager_dump_prefetches(f->sm, note_line, lines);
	g_autofree char *line =
		g_strdup_printf("prefetch.%" G_GINT64_FORMAT
				": held, 2 keys, L1 locks: 0; L2 locks: 1; reserved: \n",
				held->request_id);
	assert_non_null(strstr(lines->str, line));
	assert_non_null(strstr(lines->str, "prefetch.-1: retired, 1 keys, L1 locks: 0;"));
	assert_non_null(strstr(lines->str, "total: 2 L1 locks, 1 L2 locks, 0 reserved, 2 handles"));
	kvc_prefetch_handle_drop(held, NULL);
	kvc_prefetch_handle_drop(resident, NULL);
	wait_until(is_status(f, "l1_read_locks", "0"));
	g_string_truncate(lines, 0);
	kvc_storage_manager_dump_prefetches(f->sm, note_line, lines);
	assert_non_null(strstr(lines->str, "total: 0 L1 locks, 0 L2 locks, 0 reserved, 0 handles"));
	assert_null(strstr(lines->str, "prefetch."));
}

/* Sizes, locks and holes of a real adapter in one request. */
static void
test_full_loads_around_holes(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put_in_l2(f, 1, 5000);
	put_in_l2(f, 3, 70);
	put(f, 4, 10);
	KvcPrefetchHandle *handle = prefetch(f, 0, 6, KVC_PREFETCH_FULL);
	assert_int_equal(result_of(f, handle), 3);
	g_autoptr(KvcBitmap) held = kvc_bitmap_new(6);
	assert_int_equal(kvc_prefetch_handle_get_keys(handle, NULL, held), 0);
	for (unsigned i = 0; i < 6; i++)
		assert_int_equal(kvc_bitmap_test(held, i), i == 1 || i == 3 || i == 4);
	assert_in_l1(f, 1, 5000, 0);
	assert_in_l1(f, 3, 70, 0);
	drain(f); /* the store of 4 has a lock of its own */
	wait_until(is_status(f, "l1_read_locks", "3"));
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
test_l1_only_needs_no_request(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 0, 100);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 2, KVC_PREFETCH_L1_ONLY);
	assert_int_equal(handle->request_id, -1);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 1);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 1);
	assert_int_equal(stat_of(f, "lookups"), 0);
	kvc_prefetch_handle_drop(handle, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_difference_1_plan_over_l1_and_l2),
		TEST(test_all_in_l1_needs_no_request),
		TEST(test_difference_2_failed_load_leaves_nothing),
		TEST(test_other_adapter_helps_out),
		TEST(test_difference_4_loaded_is_never_stored_back),
		TEST(test_difference_5_sizes_differ_in_one_batch),
		TEST(test_difference_10_early_answer_and_held_loads),
		TEST(test_difference_10_lookup_only_and_no_lock),
		TEST(test_difference_10_deadline_and_draining),
		TEST(test_difference_11_temporary_goes_first_not_at_release),
		TEST(test_policy_retain_keeps_what_was_loaded),
		TEST(test_dump_names_every_handle_and_what_it_holds),
		TEST(test_full_loads_around_holes),
		TEST(test_l1_only_needs_no_request),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
