/* SPDX-License-Identifier: Apache-2.0 */

/* Directories of a shared store that are listed again while it is slow or does not go on. */

#include "engine/storage-manager-private.h"
#include "kvcache/io.h"
#include "kvcache/registry.h"
#include "tests/unit/adapter-set-fixture.h"

#include <pthread.h>

#define GATE "type=test-gate,max_size_gb=0.1,shared=true"

/* ---- A shared mock in which something changes all the time, and that can be held ------------- */

static const KvcL2AdapterOps *mock_ops;
static KvcL2AdapterOps gate_ops;
/* Atomic. */
static bool is_list_held;
static unsigned n_lists;  /* of a directory: begun */
static unsigned n_passed; /* that may end all the same */
static bool is_endless;	  /* there is always another page */
static bool is_lookup_held;
static KvcL2Adapter *opened; /* the last one */

static unsigned
get(unsigned *counter)
{
	return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

static void
hold_lists(bool is_held)
{
	__atomic_store_n(&is_list_held, is_held, __ATOMIC_RELEASE);
}

/* Lets the first N listings of a directory end. */
static void
pass_lists(unsigned n)
{
	__atomic_store_n(&n_passed, n, __ATOMIC_RELEASE);
}

static int
gate_get_changes(KvcL2Adapter *adapter,
		 const KvcKeyScope *scope,
		 uint64_t *stamp,
		 int64_t *changed_ns)
{
	static uint64_t last_stamp;
	*stamp = ++last_stamp;
	*changed_ns = kvc_wall_ns();
	return 0;
}

/* Is held when it has read everything. */
static ssize_t
gate_list(KvcL2Adapter *adapter,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max)
{
	if (*cursor && !**cursor)
		g_clear_pointer(cursor, g_free);
	ssize_t n = mock_ops->list(adapter, scope, cursor, entries, max);
	if (!scope)
		return n;
	unsigned number = __atomic_add_fetch(&n_lists, 1, __ATOMIC_ACQ_REL);
	while (__atomic_load_n(&is_list_held, __ATOMIC_ACQUIRE) && get(&n_passed) < number)
		g_usleep(500);
	if (__atomic_load_n(&is_endless, __ATOMIC_ACQUIRE) && n >= 0 && !*cursor)
		*cursor = g_strdup("");
	return n;
}

static int
gate_query_lookup(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info)
{
	if (__atomic_load_n(&is_lookup_held, __ATOMIC_ACQUIRE))
		return 0;
	return mock_ops->query_lookup_and_lock_result(adapter, id, found, info);
}

static void
hold_lookups(bool is_held)
{
	bool was_held = __atomic_exchange_n(&is_lookup_held, is_held, __ATOMIC_ACQ_REL);
	/* Else the adapter may be gone. */
	if (was_held && !is_held)
		kvc_eventfd_signal(mock_ops->get_lookup_and_lock_event_fd(opened));
}

static KvcL2Adapter *
gate_open(const KvcOptions *options, GError **error)
{
	KvcL2Adapter *adapter = mock_ops->open(options, error);
	if (adapter)
		adapter->ops = &gate_ops;
	return opened = adapter;
}

static void
register_gate(void)
{
	mock_ops = kvc_find_l2_adapter("mock", NULL);
	g_assert(mock_ops);
	gate_ops = *mock_ops;
	gate_ops.type_name = "test-gate";
	gate_ops.open = gate_open;
	gate_ops.list = gate_list;
	gate_ops.get_changes = gate_get_changes;
	gate_ops.query_lookup_and_lock_result = gate_query_lookup;
	kvc_register_l2_adapter(&gate_ops);
}

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
	is_endless = false;
	return set_up(state);
}

/* A test that failed holds nothing either. */
static int
release_all(void **state)
{
	hold_lists(false);
	__atomic_store_n(&is_endless, false, __ATOMIC_RELEASE);
	hold_lookups(false);
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
	hold_lists(true);
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
	hold_lists(true);
	__atomic_store_n(&is_endless, true, __ATOMIC_RELEASE);
	relist(f, &done);
	wait_until(get(&n_lists) == 1);
	assert_int_equal(kvc_storage_manager_remove_adapter(f->sm, 0, 50 * KVC_MSEC_NS),
			 -ETIMEDOUT);
	assert_status(f, "l2.0.state", "draining");
	assert_int_equal(get(&done), 0);
	hold_lists(false);
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
	__atomic_store_n(&is_endless, true, __ATOMIC_RELEASE);
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
	hold_lookups(true);
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
	hold_lookups(false);
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
	hold_lookups(false);
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
