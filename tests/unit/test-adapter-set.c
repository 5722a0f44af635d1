/* SPDX-License-Identifier: Apache-2.0 */

/* Adapters that come and go, and what cannot be reached, in the engine as a whole. */

#include "kvcache/io.h"
#include "kvcache/registry.h"
#include "tests/unit/adapter-set-fixture.h"

#include <pthread.h>

#define SLOW MOCK ",latency_ms=300"
#define HELD "type=test-held,max_size_gb=0.1"

/* ---- A policy that tells what it was told -------------------------------------------------- */

static KvcAdapterDescriptor told[KVC_MAX_ADAPTERS];
static size_t n_told;
static char told_sizes[KVC_MAX_ADAPTERS][32];

static uint32_t
select_last(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	n_told = n;
	for (size_t i = 0; i < n; i++) {
		told[i] = adapters[i];
		g_snprintf(told_sizes[i], sizeof(told_sizes[i]), "%g",
			   kvc_options_get_double(adapters[i].options, "max_size_gb"));
	}
	return n > 0 ? 1u << (n - 1) : 0;
}

static const KvcStorePolicy last_policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = "test-last",
	.summary = "the last adapter",
	.select_store_targets = select_last,
};

KVC_REGISTER(kvc_register_store_policy, last_policy)

/* ---- A mock whose tasks end when the test says so ------------------------------------------ */

static const KvcL2AdapterOps *mock_ops;
static KvcL2AdapterOps held_ops;
static KvcL2Adapter *held_adapter; /* the last one that was opened */
static int is_holding;		   /* Atomic */

static KvcL2Adapter *
held_open(const KvcOptions *options, GError **error)
{
	held_adapter = mock_ops->open(options, error);
	if (held_adapter)
		held_adapter->ops = &held_ops;
	return held_adapter;
}

static size_t
held_pop(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	return __atomic_load_n(&is_holding, __ATOMIC_ACQUIRE)
		       ? 0
		       : mock_ops->pop_completed_store_tasks(adapter, results, max);
}

static int
held_query(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info)
{
	return __atomic_load_n(&is_holding, __ATOMIC_ACQUIRE)
		       ? 0
		       : mock_ops->query_lookup_and_lock_result(adapter, id, found, info);
}

static void
hold(void)
{
	__atomic_store_n(&is_holding, true, __ATOMIC_RELEASE);
}

static void
release(void)
{
	__atomic_store_n(&is_holding, false, __ATOMIC_RELEASE);
	kvc_eventfd_signal(mock_ops->get_store_event_fd(held_adapter));
	kvc_eventfd_signal(mock_ops->get_lookup_and_lock_event_fd(held_adapter));
}

static void
register_held_adapter(void)
{
	mock_ops = kvc_find_l2_adapter("mock", NULL);
	held_ops = *mock_ops;
	held_ops.type_name = "test-held";
	held_ops.open = held_open;
	held_ops.pop_completed_store_tasks = held_pop;
	held_ops.query_lookup_and_lock_result = held_query;
	kvc_register_l2_adapter(&held_ops);
}

/* ---- Helpers ------------------------------------------------------------------------------- */

static bool
has_status(Fixture *f, const char *name)
{
	Wanted wanted = {name, NULL};
	kvc_storage_manager_report_status(f->sm, find_line, &wanted);
	bool has = wanted.value != NULL;
	g_free(wanted.value);
	return has;
}

static void
assert_nothing_held(Fixture *f)
{
	wait_until(is_status(f, "l1_read_locks", "0"));
	wait_until(is_status(f, "prefetches_active", "0"));
	assert_status(f, "l1_staging_objects", "0");
}

/* ---- Adding -------------------------------------------------------------------------------- */

static void
test_the_first_adapter_of_an_engine_without_l2(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	assert_false(kvc_storage_manager_has_l2(f->sm));
	put(f, 1, 100);
	assert_int_equal(add(f, MOCK), 0);
	assert_true(kvc_storage_manager_has_l2(f->sm));
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(tiers(f, 2), L1 | A);
	assert_int_equal(evict(f, 2), 0);
	assert_int_equal(load(f, 2, 3), 1);
	assert_status(f, "l2.0.state", "active");
}

static void
test_an_added_adapter_is_listed(void **state)
{
	Fixture *f = *state;
	f->directory = g_dir_make_tmp("kvc-set-XXXXXX", NULL);
	g_autofree char *spec = g_strdup_printf("type=fs,base_path=%s", f->directory);
	start(f, spec, NULL);
	put_in_l2(f, 1, 5000);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(lost(f), 1);
	assert_int_equal(add(f, spec), 0);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, WAIT), 0);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 5000, 0);
}

static void
test_a_bad_specification_adds_nothing(void **state)
{
	Fixture *f = *state;
	g_autoptr(GError) error = NULL;
	start(f, MOCK, NULL);
	assert_int_equal(kvc_storage_manager_add_adapter(f->sm, "type=mock", &error), -1);
	assert_non_null(strstr(error->message, "max_size_gb"));
	g_clear_error(&error);
	assert_int_equal(kvc_storage_manager_add_adapter(f->sm, "type=mocc", &error), -1);
	assert_non_null(strstr(error->message, "\"mocc\""));
	assert_false(has_status(f, "l2.1.type"));
	assert_int_equal(add(f, MOCK), 1);
}

static void
test_no_more_than_there_are_slots(void **state)
{
	Fixture *f = *state;
	g_autoptr(GError) error = NULL;
	start(f, MOCK, NULL);
	for (int i = 1; i < KVC_MAX_ADAPTERS; i++)
		assert_int_equal(add(f, MOCK), i);
	assert_int_equal(kvc_storage_manager_add_adapter(f->sm, MOCK, &error), -1);
	assert_non_null(strstr(error->message, "at most 16"));
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | 0xffff);
	assert_int_equal(take_away(f, 7), 0);
	assert_int_equal(tiers(f, 1), L1 | 0xff7f);
	assert_int_equal(add(f, MOCK), 7);
}

/* Its record is older than the adapter: the store has to reach both. */
static void
test_an_adapter_is_added_while_keys_are_busy(void **state)
{
	Fixture *f = *state;
	kvc_key_scope_unref(f->scope);
	f->scope = kvc_key_scope_new_plain("dir", NULL);
	g_autoptr(KvcObjectKey) plain = key_of(f, 1);
	start(f, SLOW, NULL);
	assert_int_equal(commit(f, plain, 100, 1, KVC_FINISH_REPLACE), 0);
	wait_until(stat_of(f, "stores") == 1);
	assert_int_equal(add(f, MOCK), 1);
	assert_int_equal(commit(f, plain, 100, 2, KVC_FINISH_REPLACE), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A | B);
	assert_int_equal(delete_key(f, 1), 0);
	drain(f);
	assert_int_equal(look_up(f, 1, 2), 0);
}

/* ---- Removing ------------------------------------------------------------------------------ */

static void
test_keys_that_only_it_had_are_lost(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK, NULL, NULL);
	put_in_l2(f, 1, 100);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(add(f, MOCK), 1);
	put_in_l2(f, 3, 100);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(tiers(f, 1), 0);
	drain(f);
	assert_int_equal(tiers(f, 2), L1 | B);
	assert_int_equal(tiers(f, 3), B);
	assert_int_equal(lost(f), 1);
	assert_int_equal(load(f, 3, 4), 1);
	assert_false(has_status(f, "l2.0.type"));
	assert_status(f, "l2.1.type", "mock");
	assert_null(kvc_storage_manager_adapter_type(f->sm, 0));
	assert_string_equal(kvc_storage_manager_adapter_type(f->sm, 1), "mock");
}

static void
test_remove_twice(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	assert_int_equal(take_away(f, 1), 0);
	assert_int_equal(take_away(f, 1), -ENOENT);
	assert_int_equal(take_away(f, 2), -ENOENT);
	assert_int_equal(take_away(f, 1000), -ENOENT);
	assert_int_equal(take_away(f, 0), 0);
	assert_false(kvc_storage_manager_has_l2(f->sm));
	/* What is written now needs no store. */
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_status(f, "l1_dirty_objects", "0");
	assert_status(f, "health", "ok");
	assert_int_equal(delete_key(f, 1), 0);
	drain(f);
}

static void
test_a_slot_is_another_adapters_afterwards(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put_in_l2(f, 1, 100);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(tiers(f, 1), B);
	assert_int_equal(add(f, MOCK), 0);
	assert_int_equal(tiers(f, 1), B);
	put_in_l2(f, 2, 100);
	assert_int_equal(tiers(f, 2), A | B);
	assert_int_equal(take_away(f, 1), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(load(f, 2, 3), 1);
}

/* What was hidden from the one before is not from the next. */
static void
test_a_deletion_does_not_hide_from_the_next_one(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, SLOW);
	for (unsigned i = 0; i < 20; i++)
		put(f, i, 100);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(delete_key(f, i), 0);
	assert_int_equal(take_away(f, 1), 0);
	assert_int_equal(add(f, MOCK), 1);
	for (unsigned i = 0; i < 20; i++) {
		put(f, i, 100);
		assert_int_equal(flush(f, i), 0);
		assert_int_equal(tiers(f, i), L1 | A | B);
	}
}

static void
test_a_store_in_flight_ends_first(void **state)
{
	Fixture *f = *state;
	start(f, HELD, MOCK);
	hold();
	put(f, 1, 100);
	wait_until(stat_of(f, "stores") == 2);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 0), -ETIMEDOUT);
	assert_status(f, "l2.0.state", "draining");
	/* Nothing new for it, while the other one goes on. */
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(tiers(f, 2), L1 | B);
	release();
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(stat_of(f, "stores_completed"), 3);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_status(f, "l1_dirty_objects", "0");
	assert_nothing_held(f);
}

/* The policy chose the one that goes. */
static void
test_what_is_not_replicated_goes_to_another_one(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK, HELD, "test-last");
	hold();
	put(f, 1, 100);
	wait_until(stat_of(f, "stores") == 1);
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 1, 0), -ETIMEDOUT);
	/* Once this one is elsewhere, the store in flight ends on one that goes. */
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	release();
	assert_int_equal(take_away(f, 1), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
}

static void
test_what_failed_there_goes_to_another_one(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK,
			  MOCK ",fail_connections=1000000000,breaker_cooldown_s=1800,"
			       "breaker_max_s=3600",
			  "test-last");
	put(f, 1, 100);
	wait_until(is_status(f, "l2.1.breaker", "open"));
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(take_away(f, 1), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(stat_of(f, "stores_failed"), 0);
}

static void
test_the_last_one_leaves_objects_clean(void **state)
{
	Fixture *f = *state;
	start(f, SLOW, NULL);
	put(f, 1, 100);
	wait_until(stat_of(f, "stores") == 1);
	assert_int_equal(take_away(f, 0), 0);
	drain(f);
	assert_int_equal(tiers(f, 1), L1);
	assert_status(f, "l1_dirty_objects", "0");
	assert_status(f, "l1_unreplicated_objects", "0");
}

static void
test_a_dead_adapter_can_be_removed(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_connections=1000000000,breaker_cooldown_s=3600", MOCK);
	put(f, 1, 100);
	wait_until(is_status(f, "l2.0.breaker", "open"));
	assert_int_equal(delete_key(f, 1), 0);
	put(f, 2, 100);
	assert_int_equal(take_away(f, 0), 0);
	drain(f);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(tiers(f, 2), L1 | B);
	assert_status(f, "health", "ok");
}

/* The log keeps what it could not delete, also what was deleted while it was away. */
static void
test_deletions_wait_for_the_return(void **state)
{
	Fixture *f = *state;
	f->directory = g_dir_make_tmp("kvc-set-XXXXXX", NULL);
	g_autofree char *data = g_strdup_printf("%s/data", f->directory);
	g_autofree char *log = g_strdup_printf("%s/deletions", f->directory);
	g_autofree char *spec = g_strdup_printf("type=fs,base_path=%s", data);
	const char *const adapters[] = {spec, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = L1_SIZE,
		.l2_adapters = adapters,
		.deletion_log = log,
		.key_lost = on_lost,
		.user = f,
	};
	f->sm = kvc_storage_manager_new(&config, NULL);
	assert_non_null(f->sm);
	put_in_l2(f, 1, 100);
	put_in_l2(f, 2, 100);
	/* A prefetch holds a lock on 1: the adapter skips it. */
	KvcPrefetchHandle *handle = prefetch(f, 1, 2, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(handle), 1);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(take_away(f, 0), 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_status(f, "deletion_log_pending", "0"); /* its lock was returned: deleted */
	assert_int_equal(add(f, spec), 0);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, WAIT), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(tiers(f, 2), A);
	assert_int_equal(delete_key(f, 2), 0);
	drain(f);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(add(f, spec), 0);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, WAIT), 0);
	assert_int_equal(tiers(f, 2), 0);
}

/* ---- Prefetches ---------------------------------------------------------------------------- */

static void
test_a_held_plan_takes_another_adapter(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 2, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(handle), 2);
	/* The plan, and the locks, are on the first one. */
	assert_int_equal(take_away(f, 0), 0);
	kvc_prefetch_handle_start(handle);
	assert_int_equal(result_of(f, handle), 2);
	assert_in_l1(f, 1, 100, 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_nothing_held(f);
}

static void
test_a_held_plan_ends_where_nobody_else_has_the_key(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	assert_int_equal(add(f, MOCK), 1);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 2, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 3, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(handle), 3);
	assert_int_equal(take_away(f, 0), 0);
	kvc_prefetch_handle_start(handle);
	assert_int_equal(result_of(f, handle), 1);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_nothing_held(f);
}

static void
test_a_load_in_flight_ends_first(void **state)
{
	Fixture *f = *state;
	start(f, SLOW, NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 1, 0);
	wait_until(stat_of(f, "loads") == 1);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(result_of(f, handle), 1);
	assert_in_l1(f, 0, 100, 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(tiers(f, 0), L1);
	assert_nothing_held(f);
}

static void
test_a_lookup_in_flight_finds_nothing_there(void **state)
{
	Fixture *f = *state;
	start(f, HELD, NULL);
	put_in_l2(f, 0, 100);
	assert_int_equal(add(f, MOCK), 1);
	hold();
	KvcPrefetchHandle *handle = prefetch(f, 0, 1, 0);
	wait_until(stat_of(f, "lookups") == 2);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 0), -ETIMEDOUT);
	/* Once this is answered the lookup in flight ends on one that goes. */
	assert_int_equal(load(f, 1, 2), 0);
	release();
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(result_of(f, handle), 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(tiers(f, 0), 0);
	assert_nothing_held(f);
}

/* ---- Policies ------------------------------------------------------------------------------ */

static void
test_policies_are_told_what_there_is(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK, "type=mock,max_size_gb=0.2", "test-last");
	assert_int_equal(add(f, "type=mock,max_size_gb=0.3"), 2);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(n_told, 3);
	assert_int_equal(tiers(f, 1), L1 | 1 << 2);
	assert_int_equal(take_away(f, 1), 0);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(n_told, 2);
	assert_int_equal(told[0].index, 0);
	assert_int_equal(told[1].index, 2);
	assert_string_equal(told[1].type_name, "mock");
	assert_string_equal(told_sizes[0], "0.1");
	assert_string_equal(told_sizes[1], "0.3");
	assert_int_equal(tiers(f, 2), L1 | 1 << 2);
	/* Both load plans go by position, too. */
	assert_int_equal(evict(f, 2), 0);
	assert_int_equal(load(f, 2, 3), 1);
	assert_int_equal(add(f, "type=mock,max_size_gb=0.4"), 1);
	put(f, 3, 100);
	assert_int_equal(flush(f, 3), 0);
	assert_int_equal(n_told, 3);
	assert_string_equal(told_sizes[1], "0.4");
}

/* ---- What cannot be reached ---------------------------------------------------------------- */

static void
test_stores_wait_for_an_adapter_that_cannot_be_reached(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_connections=8,breaker_cooldown_s=0.02,breaker_max_s=60", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_status(f, "l2.0.breaker", "closed");
	assert_status(f, "l2.0.breaker_opened", "1");
	assert_status(f, "l2.0.stores_failed", "0");
	assert_int_equal(stat_of(f, "stores_retried"), 0);
	assert_true(stat_of(f, "stores_put_off") >= 8);
}

static void
test_while_open_nothing_is_asked(void **state)
{
	Fixture *f = *state;
	start(f,
	      MOCK ",shared=true,fail_connections=1000000,breaker_cooldown_s=1800,"
		   "breaker_max_s=3600",
	      NULL);
	assert_true(kvc_storage_manager_has_shared_l2(f->sm));
	for (unsigned i = 0; i < KVC_BREAKER_FAILURES; i++)
		assert_int_equal(look_up(f, i, i + 1), 0);
	assert_status(f, "l2.0.breaker", "open");
	assert_status(f, "l2.0.health", "failed");
	assert_status(f, "health", "failed");
	assert_false(kvc_storage_manager_has_shared_l2(f->sm));
	unsigned lookups = stat_of(f, "lookups");
	assert_int_equal(look_up(f, 0, 1), 0);
	assert_int_equal(stat_of(f, "lookups"), lookups);
	assert_int_equal(stat_of(f, "lookups_unreachable"), 1);
	/* An object is dirty for as long as that takes, and no try has failed. */
	put(f, 1, 100);
	wait_until(stat_of(f, "stores_put_off") >= 2);
	assert_status(f, "l1_dirty_objects", "1");
	assert_int_equal(stat_of(f, "stores"), 0);
	assert_int_equal(stat_of(f, "stores_failed"), 0);
}

/*
 * With no end in sight L1 may have the memory back; and what it still has then is stored when the
 * adapter is there again.
 */
static void
test_a_long_outage_does_not_fill_l1(void **state)
{
	Fixture *f = *state;
	/* Also what was given up is tried now and then. */
	start(f, MOCK ",fail_connections=70,breaker_cooldown_s=0.01,breaker_max_s=0.02", NULL);
	for (unsigned i = 0; i < 6; i++) { /* L1 has 2 MiB */
		put(f, i, MIB / 2);
		wait_until(is_status(f, "l1_dirty_objects", "0"));
	}
	assert_true(stat_of(f, "stores_failed") >= 6);
	/* Each write is a probe, until the last one is answered. */
	for (unsigned i = 6; i < 4000 && tiers(f, 5) == L1; i++) {
		put(f, i, 10);
		g_usleep(20000); /* else L1 is full of these when they are stored */
	}
	wait_until(tiers(f, 5) == (L1 | A));
	drain(f);
	assert_status(f, "l1_unreplicated_objects", "0");
}

/* Else every object would be dirty until it is back, though the other one has it. */
static void
test_another_adapter_is_enough_in_the_end(void **state)
{
	Fixture *f = *state;
	start(f,
	      MOCK ",fail_connections=1000000000,breaker_cooldown_s=0.01,"
		   "breaker_max_s=0.02",
	      MOCK);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_status(f, "l2.0.stores_failed", "1");
	assert_status(f, "l1_unreplicated_objects", "0");
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
}

/* ---- All at once --------------------------------------------------------------------------- */

typedef struct Worker {
	Fixture *f;
	unsigned number;
	bool *is_stopping; /* Atomic */
} Worker;

static void
work_once(Fixture *f, GRand *rand)
{
	unsigned n = (unsigned)g_rand_int_range(rand, 0, 40);
	switch (g_rand_int_range(rand, 0, 5)) {
	case 0:
	case 1:
		(void)try_put(f, n, 4096, 0);
		break;
	case 2:
		(void)delete_key(f, n);
		break;
	case 3:
		(void)load(f, n, n + 4);
		break;
	default: {
		KvcPrefetchHandle *handle = prefetch(f, n, n + 3, KVC_PREFETCH_HOLD);
		(void)found_of(handle);
		kvc_prefetch_handle_drop(handle, NULL);
	}
	}
}

static void *
worker_thread(void *data)
{
	Worker *w = data;
	GRand *rand = g_rand_new_with_seed(w->number);
	while (!__atomic_load_n(w->is_stopping, __ATOMIC_RELAXED))
		work_once(w->f, rand);
	g_rand_free(rand);
	return NULL;
}

static void
test_adapters_change_under_load(void **state)
{
	Fixture *f = *state;
	bool is_stopping = false;
	pthread_t threads[3];
	Worker workers[3];
	start(f, MOCK, MOCK ",latency_ms=1,fail_stores=20,fail_loads=20");
	for (unsigned i = 0; i < 3; i++) {
		workers[i] = (Worker){f, i + 1, &is_stopping};
		assert_int_equal(pthread_create(&threads[i], NULL, worker_thread, &workers[i]), 0);
	}
	for (unsigned round = 0; round < 30; round++) {
		size_t i = round % 2;
		assert_int_equal(take_away(f, i), 0);
		g_free(status_of(f, "health"));
		assert_int_equal(add(f, round % 3 ? MOCK : MOCK ",latency_ms=2,fail_loads=9"), i);
	}
	__atomic_store_n(&is_stopping, true, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < 3; i++)
		pthread_join(threads[i], NULL);
	wait_until(kvc_storage_manager_drain(f->sm, WAIT) != -ETIMEDOUT);
	assert_nothing_held(f);
	/* Both work, and nothing of the ones before is left in the index. */
	for (unsigned i = 0; i < 44; i++)
		(void)delete_key(f, i);
	drain(f);
	assert_status(f, "keys", "0");
	for (unsigned i = 0; i < 44; i++) {
		put(f, i, 100);
		assert_int_equal(flush(f, i), 0);
		assert_int_equal(tiers(f, i), L1 | A | B);
	}
}

int
main(void)
{
	register_held_adapter();
	const struct CMUnitTest tests[] = {
		TEST(test_the_first_adapter_of_an_engine_without_l2),
		TEST(test_an_added_adapter_is_listed),
		TEST(test_a_bad_specification_adds_nothing),
		TEST(test_no_more_than_there_are_slots),
		TEST(test_an_adapter_is_added_while_keys_are_busy),
		TEST(test_keys_that_only_it_had_are_lost),
		TEST(test_remove_twice),
		TEST(test_a_slot_is_another_adapters_afterwards),
		TEST(test_a_deletion_does_not_hide_from_the_next_one),
		TEST(test_a_store_in_flight_ends_first),
		TEST(test_what_is_not_replicated_goes_to_another_one),
		TEST(test_what_failed_there_goes_to_another_one),
		TEST(test_the_last_one_leaves_objects_clean),
		TEST(test_a_dead_adapter_can_be_removed),
		TEST(test_deletions_wait_for_the_return),
		TEST(test_a_held_plan_takes_another_adapter),
		TEST(test_a_held_plan_ends_where_nobody_else_has_the_key),
		TEST(test_a_load_in_flight_ends_first),
		TEST(test_a_lookup_in_flight_finds_nothing_there),
		TEST(test_policies_are_told_what_there_is),
		TEST(test_stores_wait_for_an_adapter_that_cannot_be_reached),
		TEST(test_while_open_nothing_is_asked),
		TEST(test_a_long_outage_does_not_fill_l1),
		TEST(test_another_adapter_is_enough_in_the_end),
		TEST(test_adapters_change_under_load),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
