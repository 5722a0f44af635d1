/* SPDX-License-Identifier: Apache-2.0 */

/* What is written: stored, replaced, deleted, evicted. */

#include "tests/unit/storage-manager-fixture.h"

#include "kvcache/registry.h"

/* A policy that decides by what it is told of the adapters: not where the latency is. */
static uint32_t
where_it_is_fast(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	uint32_t targets = 0;
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(adapters[i].index, i);
		assert_string_equal(adapters[i].type_name, "mock");
		if (kvc_options_get_double(adapters[i].options, "latency_ms") < 1)
			targets |= 1u << adapters[i].index;
	}
	return targets;
}

static const KvcStorePolicy test_fast = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = "test-fast",
	.summary = "where there is no latency",
	.select_store_targets = where_it_is_fast,
};
KVC_REGISTER(kvc_register_store_policy, test_fast)

/* ---- Stores -------------------------------------------------------------------------------- */

static void
test_written_is_stored(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	assert_true(kvc_storage_manager_has_l2(f->sm));
	assert_false(kvc_storage_manager_has_shared_l2(f->sm));
	put(f, 1, 5000);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A | B);
	assert_int_equal(stat_of(f, "stores_completed"), 2);
	assert_int_equal(stat_of(f, "store_bytes"), 10000);
	assert_status(f, "l1_dirty_objects", "0");
	/* Again: nothing to do. */
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(flush(f, 2), -ENOENT);
	assert_int_equal(stat_of(f, "stores"), 2);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.l1_capacity_bytes, L1_SIZE);
	assert_int_equal(capacity.l1_used_bytes, 2 * PAGE);
	assert_int_equal(capacity.l1_pinned_bytes, 0);
	assert_int_equal(capacity.l2_used_bytes, 10000);
	assert_int_equal(capacity.objects, 1);
}

static void
test_shared_is_an_option_of_every_adapter(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK ",shared=true");
	assert_true(kvc_storage_manager_has_shared_l2(f->sm));
}

static void
test_drain_waits_and_gives_up(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=300", NULL);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 0), 0);
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_MSEC_NS), -ETIMEDOUT);
	assert_int_equal(tiers(f, 1), L1);
	assert_status(f, "l1_dirty_objects", "1");
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_status(f, "l1_dirty_objects", "0");
}

static void
test_difference_7_failed_store_is_retried(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=2", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(stat_of(f, "stores_retried"), 2);
	assert_int_equal(stat_of(f, "stores_failed"), 0);
	assert_status(f, "l1_unreplicated_objects", "0");
	drain(f);
	assert_status(f, "health", "ok");
}

static void
test_difference_7_given_up_is_not_silent(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=6", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), -EIO);
	assert_int_equal(stat_of(f, "stores_failed"), 1);
	assert_status(f, "l2.0.stores_failed", "1");
	assert_status(f, "l1_unreplicated_objects", "1");
	assert_status(f, "l1_dirty_objects", "0");
	assert_status(f, "health", "degraded");
	/* It is tried again each time it is asked, and says so. */
	assert_int_equal(flush(f, 1), -EIO);
	assert_int_equal(stat_of(f, "stores_failed"), 2);
	assert_status(f, "l1_unreplicated_objects", "1");
	assert_status(f, "l1_dirty_objects", "0");
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_int_equal(evict(f, 1), -EBUSY);
	assert_in_l1(f, 1, 100, 0);
	/* The adapter is well again: others are stored, and go before this one. */
	put(f, 2, 100);
	put(f, 3, L1_SIZE - 2 * PAGE);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(flush(f, 3), 0);
	put(f, 4, 100);
	assert_true(is_in_l1(f, 1));
	assert_false(is_in_l1(f, 2));
	assert_int_equal(flush(f, 4), 0);
	put(f, 5, L1_SIZE);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(lost(f), 1);
	assert_status(f, "l1_unreplicated_objects", "0");
	drain(f);
}

static void
test_difference_7_a_flush_tries_again_what_was_given_up(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=4", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), -EIO);
	assert_int_equal(tiers(f, 1), L1);
	assert_status(f, "health", "degraded");
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_status(f, "l1_unreplicated_objects", "0");
	assert_status(f, "l1_dirty_objects", "0");
	assert_int_equal(stat_of(f, "stores_retried"), 3);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_a_drain_may_try_again_what_was_given_up(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=4", NULL);
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_int_equal(tiers(f, 1), L1);
	/* A drain alone does not. */
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_int_equal(stat_of(f, "stores"), 3);
	kvc_storage_manager_retry_unreplicated(f->sm);
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_status(f, "l1_unreplicated_objects", "0");
	/* Nothing is left to try. */
	kvc_storage_manager_retry_unreplicated(f->sm);
	drain(f);
	assert_int_equal(stat_of(f, "stores"), 5);
}

static void
test_one_of_two_adapters_fails(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=1000", MOCK);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_status(f, "l1_unreplicated_objects", "0");
	assert_int_equal(stat_of(f, "stores_failed"), 1);
	assert_status(f, "l2.0.health", "degraded");
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_policies_are_told_of_the_adapters(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK ",latency_ms=5", MOCK, "test-fast");
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_int_equal(stat_of(f, "stores"), 1);
}

static void
test_difference_9_skip_l1_deletes_after_the_last(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK, MOCK ",latency_ms=100", "skip_l1");
	put(f, 1, 100);
	wait_until(tiers(f, 1) & A);
	if (!(tiers(f, 1) & B))
		assert_true(tiers(f, 1) & L1);
	drain(f);
	assert_int_equal(tiers(f, 1), A | B);
	assert_false(is_in_l1(f, 1));
	assert_status(f, "l1_used_bytes", "0");
	assert_int_equal(lost(f), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_difference_9_only_if_one_succeeded(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK ",fail_stores=3", MOCK ",fail_stores=1000", "skip_l1");
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_in_l1(f, 1, 100, 0);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	wait_until(!is_in_l1(f, 2));
	assert_int_equal(tiers(f, 2), A);
	assert_int_equal(tiers(f, 1), L1);
}

/* ---- Who wins ------------------------------------------------------------------------------ */

static void
test_first_wins_in_l1(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_int_equal(try_put(f, 1, 100, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(try_put(f, 1, 7000, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(stat_of(f, "l1_writes_dropped"), 2);
	assert_in_l1(f, 1, 100, 0);
	drain(f);
	assert_int_equal(stat_of(f, "stores"), 1);
	assert_status(f, "l1_used_bytes", "4096");
}

static void
test_other_size_in_l2_wins(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	assert_int_equal(try_put(f, 1, 101, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(tiers(f, 1), A);
	assert_false(is_in_l1(f, 1));
	assert_status(f, "l1_used_bytes", "0");
	/* The same size: a copy in L1, the store finds it there. */
	assert_int_equal(try_put(f, 1, 100, 0), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	drain(f);
	assert_int_equal(stat_of(f, "store_bytes"), 100);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

/* Two plain files of one size are not one. */
static void
test_a_plain_file_in_l2_wins(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	KvcObjectInfo info;
	assert_int_equal(commit(f, key, 100, 1, KVC_FINISH_REPLACE), 0);
	drain(f);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	assert_int_equal(commit(f, key, 100, 2, KVC_FINISH_FIRST_WINS), KVC_FINISHED_DROPPED);
	assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
	assert_int_equal(info.tiers, A);
	assert_int_equal(stat_of(f, "stores"), 1);
	assert_int_equal(kvc_storage_manager_delete(f->sm, key), 0);
	assert_int_equal(commit(f, key, 100, 2, KVC_FINISH_FIRST_WINS), 0);
}

static void
test_replace_wins_in_every_tier(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	KvcObjectInfo info;
	KvcL1Object *object;
	assert_int_equal(commit(f, key, 100, 1, KVC_FINISH_REPLACE), 0);
	drain(f);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	assert_int_equal(commit(f, key, 250, 2, KVC_FINISH_REPLACE), 0);
	assert_int_equal(commit(f, key, 300, 3, KVC_FINISH_REPLACE), 0);
	drain(f);
	assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
	assert_int_equal(info.tiers, L1 | A);
	assert_int_equal(info.bytes, 300);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	KvcPrefetchParams params = {.keys = &key, .n_keys = 1};
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(f->sm, &params);
	assert_int_equal(result_of(f, handle), 1);
	object = kvc_prefetch_handle_take_object(handle, 0);
	assert_non_null(object);
	assert_true(has_content(object, 300, 3));
	kvc_storage_manager_finish_read(f->sm, object);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(lost(f), 0);
}

/* ---- Deletion ------------------------------------------------------------------------------ */

static void
test_delete_from_every_tier(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put(f, 1, 100);
	put_in_l2(f, 2, 100);
	drain(f);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(delete_key(f, 2), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(tiers(f, 2), 0);
	assert_int_equal(lost(f), 2);
	assert_int_equal(delete_key(f, 1), -ENOENT);
	assert_false(is_in_l1(f, 1));
	drain(f);
	assert_int_equal(stat_of(f, "deletes_completed"), 4);
	assert_int_equal(look_up(f, 1, 3), 0);
	assert_int_equal(load(f, 2, 3), 0);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.l2_used_bytes, 0);
	assert_int_equal(capacity.l1_used_bytes, 0);
	assert_int_equal(capacity.objects, 0);
}

static void
test_delete_then_create_again(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=20", NULL);
	put(f, 1, 100);
	drain(f);
	for (unsigned version = 1; version < 8; version++) {
		uint64_t bytes = 100 + version * 1000;
		assert_int_equal(delete_key(f, 1), 0);
		assert_int_equal(try_put(f, 1, bytes, version), 0);
		/* Visible at once, whatever the adapter still has. */
		assert_true(tiers(f, 1) & L1);
		assert_in_l1(f, 1, bytes, version);
		if (version % 3 == 0)
			g_usleep(15000);
	}
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 7100, 7);
}

static void
test_delete_while_it_is_being_stored(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=50", NULL);
	put(f, 1, 100);
	wait_until(stat_of(f, "stores") == 1);
	assert_int_equal(delete_key(f, 1), 0);
	drain(f);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(lost(f), 1);
	assert_status(f, "l1_used_bytes", "0");
}

static void
test_readers_keep_what_is_deleted(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	drain(f);
	KvcL1Object *object = try_read(f, 1);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(try_put(f, 1, 200, 1), 0);
	drain(f);
	assert_true(has_content(object, 100, byte_of(1, 0)));
	assert_in_l1(f, 1, 200, 1);
	kvc_storage_manager_finish_read(f->sm, object);
	assert_status(f, "l1_used_bytes", "4096");
}

/* The lookup's lock makes the adapter skip it: the key stays hidden, and the deletion comes. */
static void
test_deleted_does_not_return_while_locked_in_l2(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *held = prefetch(f, 1, 2, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(held), 1);
	assert_int_equal(delete_key(f, 1), 0);
	wait_until(stat_of(f, "deletes_retried") > 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(load(f, 1, 2), 0);
	kvc_prefetch_handle_start(held);
	assert_int_equal(result_of(f, held), 0);
	assert_false(is_in_l1(f, 1));
	assert_int_equal(tiers(f, 1), 0);
	kvc_prefetch_handle_drop(held, NULL);
	drain(f);
	assert_int_equal(stat_of(f, "deletes_completed"), 1);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(lost(f), 1);
}

static void
test_delete_while_it_is_being_loaded(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=100", NULL);
	put_in_l2(f, 1, 100);
	put_in_l2(f, 2, 100);
	KvcPrefetchHandle *one = prefetch(f, 1, 2, 0), *two = prefetch(f, 2, 3, 0);
	wait_until(stat_of(f, "loads") == 2);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(delete_key(f, 2), 0);
	/* One is made anew meanwhile: what the load brings must not take its place. */
	assert_int_equal(try_put(f, 2, 300, 1), 0);
	assert_int_equal(result_of(f, one), 0);
	assert_false(is_in_l1(f, 1));
	assert_int_equal(tiers(f, 1), 0);
	result_of(f, two);
	assert_in_l1(f, 2, 300, 1);
	kvc_prefetch_handle_drop(one, NULL);
	kvc_prefetch_handle_drop(two, NULL);
	drain(f);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_in_l1(f, 2, 300, 1);
	assert_int_equal(tiers(f, 2), L1 | A);
	assert_int_equal(evict(f, 2), 0);
	assert_int_equal(load(f, 2, 3), 1);
	assert_in_l1(f, 2, 300, 1);
}

/* ---- Eviction ------------------------------------------------------------------------------ */

static void
test_evict_rules(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=100", NULL);
	assert_int_equal(evict(f, 1), -ENOENT);
	put(f, 1, 100);
	/* Dirty. */
	assert_int_equal(evict(f, 1), -EBUSY);
	assert_int_equal(flush(f, 1), 0);
	KvcL1Object *object = try_read(f, 1);
	assert_int_equal(evict(f, 1), -EBUSY);
	kvc_storage_manager_finish_read(f->sm, object);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(lost(f), 0);
	/* Known, and not in L1. */
	assert_int_equal(evict(f, 1), -ENOENT);
	assert_status(f, "l1_used_bytes", "0");
}

static void
test_difference_8_writing_more_than_l1_holds(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < 20; i++) {
		put(f, i, L1_SIZE / 4);
		assert_int_equal(flush(f, i), 0);
	}
	assert_int_equal(stat_of(f, "l1_evicted_objects"), 16);
	assert_int_equal(lost(f), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(tiers(f, i), i < 16 ? A : (L1 | A));
	/* All of it can be had again, a part at a time. */
	assert_int_equal(load(f, 0, 4), 4);
	assert_in_l1(f, 3, L1_SIZE / 4, 0);
}

static void
test_difference_7_full_of_dirty_is_enospc(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=300", NULL);
	for (unsigned i = 0; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	assert_int_equal(try_put(f, 4, 100, 0), -ENOSPC);
	assert_true(stat_of(f, "l1_reserve_failed_no_memory") >= 1);
	for (unsigned i = 0; i < 4; i++)
		assert_in_l1(f, i, L1_SIZE / 4, 0);
	drain(f);
	put(f, 4, 100);
	assert_int_equal(tiers(f, 0), A);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_written_is_stored),
		TEST(test_shared_is_an_option_of_every_adapter),
		TEST(test_drain_waits_and_gives_up),
		TEST(test_difference_7_failed_store_is_retried),
		TEST(test_difference_7_given_up_is_not_silent),
		TEST(test_difference_7_a_flush_tries_again_what_was_given_up),
		TEST(test_a_drain_may_try_again_what_was_given_up),
		TEST(test_one_of_two_adapters_fails),
		TEST(test_policies_are_told_of_the_adapters),
		TEST(test_difference_9_skip_l1_deletes_after_the_last),
		TEST(test_difference_9_only_if_one_succeeded),
		TEST(test_first_wins_in_l1),
		TEST(test_other_size_in_l2_wins),
		TEST(test_a_plain_file_in_l2_wins),
		TEST(test_replace_wins_in_every_tier),
		TEST(test_delete_from_every_tier),
		TEST(test_delete_then_create_again),
		TEST(test_delete_while_it_is_being_stored),
		TEST(test_readers_keep_what_is_deleted),
		TEST(test_deleted_does_not_return_while_locked_in_l2),
		TEST(test_delete_while_it_is_being_loaded),
		TEST(test_evict_rules),
		TEST(test_difference_8_writing_more_than_l1_holds),
		TEST(test_difference_7_full_of_dirty_is_enospc),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
