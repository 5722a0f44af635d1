/* SPDX-License-Identifier: Apache-2.0 */

/* What happens while an adapter that comes or goes does not go on. */

#include "tests/unit/adapter-set-fixture.h"
#include "tests/unit/gate-adapter.h"

#include <pthread.h>

#define GATE "type=test-gate,max_size_gb=0.1"

/* ---- Helpers ------------------------------------------------------------------------------- */

static int
rename_key(Fixture *f, unsigned from, unsigned to)
{
	g_autoptr(KvcObjectKey) old_key = key_of(f, from), new_key = key_of(f, to);
	return kvc_storage_manager_rename(f->sm, old_key, new_key, 0);
}

static int
set_mode(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectAttributes attributes = {.mode = 0600};
	return kvc_storage_manager_set_attributes(f->sm, key, &attributes, KVC_ATTRIBUTE_MODE);
}

static int
set_xattr(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_storage_manager_set_xattr(f->sm, key, "user.a", "b", 1, 0);
}

/* A load of key 1, in the first adapter, is held, and that one is not removed because of it. */
static KvcPrefetchHandle *
begin_removal(Fixture *f)
{
	hold(HOLD_LOADS);
	KvcPrefetchHandle *handle = prefetch(f, 1, 2, 0);
	wait_until(stat_of(f, "loads") == 1);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 0), -ETIMEDOUT);
	assert_status(f, "l2.0.state", "draining");
	/* The StoreController let go of it before it stored this. */
	put(f, 9, 100);
	assert_int_equal(flush(f, 9), 0);
	assert_int_equal(tiers(f, 9), L1 | B);
	return handle;
}

static void
end_removal(Fixture *f, KvcPrefetchHandle *handle)
{
	release(HOLD_LOADS);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(result_of(f, handle), 1);
	kvc_prefetch_handle_drop(handle, NULL);
	drain(f);
}

/* ---- Coming -------------------------------------------------------------------------------- */

static void *
adding_thread(void *data)
{
	assert_int_equal(add(data, GATE), 1);
	return NULL;
}

/* A second adapter, which is asked where it is and does not say so yet. */
static pthread_t
begin_adding(Fixture *f)
{
	pthread_t thread;
	hold(HOLD_DESCRIBE);
	assert_int_equal(pthread_create(&thread, NULL, adding_thread, f), 0);
	wait_until(is_blocked());
	return thread;
}

static void
end_adding(Fixture *f, pthread_t thread)
{
	release(HOLD_DESCRIBE);
	pthread_join(thread, NULL);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, WAIT), 0);
}

static void
start_with_log(Fixture *f, const char *second)
{
	f->directory = g_dir_make_tmp("kvc-set-XXXXXX", NULL);
	g_autofree char *log = g_strdup_printf("%s/deletions", f->directory);
	const char *const adapters[] = {MOCK, second, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = L1_SIZE,
		.l2_adapters = adapters,
		.deletion_log = log,
		.eviction_trigger_watermark = 2,
		.key_lost = on_lost,
		.scope_known = on_scope,
		.user = f,
	};
	f->sm = kvc_storage_manager_new(&config, NULL);
	assert_non_null(f->sm);
}

static void
test_what_is_deleted_while_it_comes_stays_deleted(void **state)
{
	Fixture *f = *state;
	start_with_log(f, NULL);
	pthread_t thread = begin_adding(f);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(delete_key(f, 1), 0);
	end_adding(f, thread);
	drain(f);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(tiers(f, 2), L1 | A | B);
}

/* A deletion that it missed must not take what is stored again. */
static void
test_what_is_stored_while_it_comes_is_not_deleted(void **state)
{
	Fixture *f = *state;
	start_with_log(f, GATE ",fail_connections=1000000000,breaker_cooldown_s=1800,"
			       "breaker_max_s=3600");
	put(f, 1, 100);
	wait_until(tiers(f, 1) == (L1 | A));
	wait_until(is_status(f, "l2.1.breaker", "open"));
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(take_away(f, 1), 0);
	wait_until(is_status(f, "deletion_log_pending", "1"));
	pthread_t thread = begin_adding(f);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	end_adding(f, thread);
	drain(f);
	assert_status(f, "deletion_log_pending", "0");
	assert_int_equal(tiers(f, 1), L1 | A);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(tiers(f, 2), L1 | A | B);
	/* Nobody says that it has what it has not. */
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
}

/* ---- Going --------------------------------------------------------------------------------- */

static void
test_attributes_change_while_it_goes(void **state)
{
	Fixture *f = *state;
	start(f, GATE, MOCK);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *handle = begin_removal(f);
	assert_int_equal(set_mode(f, 1), 0);
	assert_int_equal(set_xattr(f, 1), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(stat_of(f, "attributes_failed"), 0);
	end_removal(f, handle);
	assert_int_equal(set_mode(f, 1), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
}

static void
test_a_rename_while_it_goes(void **state)
{
	Fixture *f = *state;
	start(f, GATE, MOCK);
	put_in_l2(f, 1, 100);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(set_mode(f, 2), 0);
	KvcPrefetchHandle *handle = begin_removal(f);
	assert_int_equal(set_mode(f, 2), 0);
	assert_int_equal(rename_key(f, 2, 3), 0);
	assert_int_equal(set_mode(f, 3), 0);
	assert_int_equal(flush(f, 3), 0);
	assert_int_equal(tiers(f, 2), 0);
	assert_int_equal(tiers(f, 3), L1 | B);
	end_removal(f, handle);
	assert_int_equal(rename_key(f, 3, 4), 0);
	assert_int_equal(flush(f, 4), 0);
	assert_int_equal(tiers(f, 4), L1 | B);
	assert_int_equal(evict(f, 4), 0);
	assert_int_equal(load(f, 4, 5), 1);
}

/* Which of them are in L1 by a load makes no difference. */
static void
test_what_only_it_had_is_stored_elsewhere(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	put_in_l2(f, 2, 200);
	assert_int_equal(load(f, 2, 3), 1);
	assert_int_equal(add(f, MOCK), 1);
	put(f, 3, 300);
	assert_int_equal(flush(f, 3), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(take_away(f, 0), 0);
	drain(f);
	for (unsigned i = 1; i <= 3; i++)
		assert_int_equal(tiers(f, i), L1 | B);
	assert_status(f, "l1_dirty_objects", "0");
	for (unsigned i = 1; i <= 3; i++)
		assert_int_equal(evict(f, i), 0);
	assert_int_equal(load(f, 1, 4), 3);
	assert_in_l1(f, 2, 200, 0);
}

static void
test_a_flush_stores_what_no_adapter_has(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(add(f, MOCK), 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(stat_of(f, "stores"), 1);
	/* It says so when that fails. */
	assert_int_equal(take_away(f, 0), 0);
	put(f, 2, 100);
	assert_int_equal(add(f, MOCK ",fail_stores=1000000"), 0);
	assert_int_equal(flush(f, 2), -EIO);
	assert_int_equal(flush(f, 1), -EIO);
	assert_status(f, "l1_unreplicated_objects", "2");
}

/* What the one before answered is not what the next one in its slot has. */
static void
test_a_lookup_of_the_one_before_is_not_planned(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	assert_int_equal(add(f, GATE), 1);
	hold(HOLD_LOOKUPS);
	KvcPrefetchHandle *handle = prefetch(f, 1, 2, 0);
	wait_until(stat_of(f, "lookups") == 2);
	assert_int_equal(take_away(f, 0), 0);
	assert_int_equal(add(f, MOCK), 0);
	release(HOLD_LOOKUPS);
	assert_int_equal(result_of(f, handle), 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(stat_of(f, "plan_errors"), 0);
}

static void
test_what_only_one_that_goes_has_does_not_win(void **state)
{
	Fixture *f = *state;
	start(f, GATE, MOCK);
	put_in_l2(f, 2, 100);
	assert_int_equal(take_away(f, 1), 0);
	put_in_l2(f, 1, 100);
	assert_int_equal(add(f, MOCK), 1);
	KvcPrefetchHandle *handle = begin_removal(f);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(try_put(f, 1, 200, 0), 0);
	assert_int_equal(flush(f, 1), 0);
	end_removal(f, handle);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_in_l1(f, 1, 200, 0);
}

static void *
waiting_thread(void *data)
{
	Fixture *f = data;
	return GINT_TO_POINTER(kvc_storage_manager_wait_listed(f->sm, INT64_MAX));
}

static void
test_waiting_for_a_listing_for_ever(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	hold(HOLD_LIST);
	assert_int_equal(add(f, GATE), 1);
	wait_until(is_blocked());
	pthread_t thread;
	assert_int_equal(pthread_create(&thread, NULL, waiting_thread, f), 0);
	g_usleep(20000); /* a wait that ends at once has ended */
	release(HOLD_LIST);
	void *rc;
	pthread_join(thread, &rc);
	assert_int_equal(GPOINTER_TO_INT(rc), 0);
}

/* A test that failed holds nothing either. */
static int
release_all(void **state)
{
	release(~0u);
	return tear_down(state);
}

#define HELD_TEST(function) cmocka_unit_test_setup_teardown(function, set_up, release_all)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		HELD_TEST(test_what_is_deleted_while_it_comes_stays_deleted),
		HELD_TEST(test_what_is_stored_while_it_comes_is_not_deleted),
		HELD_TEST(test_attributes_change_while_it_goes),
		HELD_TEST(test_a_rename_while_it_goes),
		HELD_TEST(test_what_only_it_had_is_stored_elsewhere),
		HELD_TEST(test_a_flush_stores_what_no_adapter_has),
		HELD_TEST(test_a_lookup_of_the_one_before_is_not_planned),
		HELD_TEST(test_what_only_one_that_goes_has_does_not_win),
		HELD_TEST(test_waiting_for_a_listing_for_ever),
	};
	register_gate();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
