/* SPDX-License-Identifier: Apache-2.0 */

/* Directories of a shared store that are listed again while it is slow or does not go on. */

#include "engine/storage-manager-private.h"
#include "tests/unit/adapter-set-fixture.h"
#include "tests/unit/gate-adapter.h"

#include <pthread.h>

#define GATE "type=test-gate,max_size_gb=0.1,shared=true"

/* ---- Helpers ------------------------------------------------------------------------------- */

static void
on_relisted(void *user)
{
	__atomic_fetch_add((unsigned *)user, 1, __ATOMIC_RELEASE);
}

static void
relist(Fixture *f, unsigned *done)
{
	kvc_storage_manager_relist(f->sm, f->scope, on_relisted, done);
}

static int
set_up_gate(void **state)
{
	n_lists = n_passed = 0;
	return set_up(state);
}

/* A test that failed holds nothing either. */
static int
release_all(void **state)
{
	set_endless(false);
	release(~0u);
	return tear_down(state);
}

#define GATE_TEST(function) cmocka_unit_test_setup_teardown(function, set_up_gate, release_all)

/* ---- Tests --------------------------------------------------------------------------------- */

/* What is in the works has perhaps read the directory already. */
static void
test_a_request_joins_only_what_is_queued(void **state)
{
	Fixture *f = *state;
	unsigned first = 0, others = 0;
	start(f, GATE, NULL);
	hold(HOLD_LIST_END);
	relist(f, &first);
	wait_until(get(&n_lists) == 1);
	relist(f, &others);
	relist(f, &others);
	pass_lists(1);
	wait_until(get(&n_lists) == 2);
	assert_int_equal(get(&first), 1);
	assert_int_equal(get(&others), 0);
	pass_lists(2);
	wait_until(get(&others) == 2);
	assert_int_equal(stat_of(f, "relists"), 2);
	assert_int_equal(get(&n_lists), 2);
}

/* A page that does not come: the adapter stays, draining, and goes when the page has come. */
static void
test_a_removal_waits_for_a_listing_until_its_deadline(void **state)
{
	Fixture *f = *state;
	unsigned done = 0;
	start(f, GATE, NULL);
	put_in_l2(f, 1, 100);
	hold(HOLD_LIST_END);
	set_endless(true);
	relist(f, &done);
	wait_until(get(&n_lists) == 1);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 50 * KVC_MSEC_NS),
			 -ETIMEDOUT);
	assert_status(f, "l2.0.state", "draining");
	assert_int_equal(get(&done), 0);
	release(HOLD_LIST_END);
	assert_int_equal(take_away(f, 0), 0);
	wait_until(get(&done) == 1);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(stat_of(f, "list_failed"), 0);
	assert_int_equal(add(f, GATE), 0);
}

/* More pages than anybody waits for. */
static void
test_a_listing_ends_when_its_adapter_goes(void **state)
{
	Fixture *f = *state;
	unsigned done = 0;
	start(f, GATE, NULL);
	set_endless(true);
	relist(f, &done);
	wait_until(get(&n_lists) > 2);
	assert_int_equal(take_away(f, 0), 0);
	wait_until(get(&done) == 1);
	assert_int_equal(stat_of(f, "list_failed"), 0);
}

/* It lists a key that nobody knows, and does not say what it has. */
static void
begin_vain_lookup(Fixture *f, unsigned *done)
{
	start(f, GATE, NULL);
	put_in_l2(f, 1, 100);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	kvc_key_index_remove(f->sm->context.index, key, A);
	assert_int_equal(tiers(f, 1), 0);
	hold(HOLD_LOOKUPS);
	unsigned before = stat_of(f, "lookups");
	relist(f, done);
	wait_until(stat_of(f, "lookups") == before + 1);
}

static void *
stopping_thread(void *data)
{
	stop(data);
	return NULL;
}

/* Far longer than it should take, far shorter than the time that a lookup is given. */
#define SOON_NS (3 * KVC_SEC_NS)

static void
test_a_stop_does_not_wait_for_a_lookup_of_a_listing(void **state)
{
	Fixture *f = *state;
	unsigned done = 0;
	pthread_t thread;
	begin_vain_lookup(f, &done);
	int64_t begin_ns = kvc_now_ns();
	assert_int_equal(pthread_create(&thread, NULL, stopping_thread, f), 0);
	wait_until(get(&done) == 1);
	int64_t took_ns = kvc_now_ns() - begin_ns;
	release(HOLD_LOOKUPS);
	pthread_join(thread, NULL);
	assert_true(took_ns < SOON_NS);
}

static void
test_a_removal_does_not_wait_for_a_lookup_of_a_listing(void **state)
{
	Fixture *f = *state;
	unsigned done = 0;
	begin_vain_lookup(f, &done);
	int64_t begin_ns = kvc_now_ns();
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 0), -ETIMEDOUT);
	wait_until(get(&done) == 1);
	assert_true(kvc_now_ns() - begin_ns < SOON_NS);
	release(HOLD_LOOKUPS);
	assert_int_equal(take_away(f, 0), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		GATE_TEST(test_a_request_joins_only_what_is_queued),
		GATE_TEST(test_a_removal_waits_for_a_listing_until_its_deadline),
		GATE_TEST(test_a_listing_ends_when_its_adapter_goes),
		GATE_TEST(test_a_stop_does_not_wait_for_a_lookup_of_a_listing),
		GATE_TEST(test_a_removal_does_not_wait_for_a_lookup_of_a_listing),
	};
	register_gate();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
