/* SPDX-License-Identifier: Apache-2.0 */

/* Everything at once. */

#include "tests/unit/storage-manager-fixture.h"

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_KEYS 24
#define N_STEPS 250

typedef struct Worker {
	Fixture *f;
	unsigned number, bad;
} Worker;

/* The size and the bytes of a key are always the same: whoever reads sees all or nothing. */
static uint64_t
size_of(unsigned number)
{
	return 1 + number * 4001;
}

static bool
is_right(KvcL1Object *object, unsigned number)
{
	return has_content(object, size_of(number), byte_of(number, 0));
}

static void
check_prefetched(Worker *w, unsigned from, unsigned flags)
{
	KvcPrefetchHandle *handle = prefetch(w->f, from, from + 4, flags);
	ssize_t n = -EAGAIN;
	for (int i = 0; i < 20000 && n == -EAGAIN; i++) {
		n = kvc_storage_manager_query_prefetch_status(w->f->sm, handle);
		if (n == -EAGAIN)
			g_usleep(1000);
	}
	w->bad += n < 0;
	for (ssize_t i = 0; i < n && !flags; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(handle, (size_t)i);
		w->bad += !object || !is_right(object, from + (unsigned)i);
		if (object)
			kvc_storage_manager_finish_read(w->f->sm, object);
	}
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
random_step(Worker *w, GRand *rand)
{
	Fixture *f = w->f;
	unsigned number = (unsigned)g_rand_int_range(rand, 0, N_KEYS);
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object;
	int rc;
	switch (g_rand_int_range(rand, 0, 8)) {
	case 0:
		rc = kvc_storage_manager_delete(f->sm, key);
		w->bad += rc != 0 && rc != -ENOENT;
		break;
	case 1:
		rc = kvc_storage_manager_evict(f->sm, key);
		w->bad += rc != 0 && rc != -ENOENT && rc != -EBUSY;
		break;
	case 2:
	case 3:
		check_prefetched(w, number, number % 5 ? 0 : KVC_PREFETCH_NO_LOCK);
		break;
	case 4:
	case 5:
		if (kvc_storage_manager_reserve_read(f->sm, key, &object) < 0)
			break;
		w->bad += !is_right(object, number);
		kvc_storage_manager_finish_read(f->sm, object);
		break;
	default:
		rc = commit(f, key, size_of(number), byte_of(number, 0), number % 2);
		w->bad += rc != 0 && rc != KVC_FINISHED_DROPPED && rc != -ENOSPC;
	}
}

static void *
work(void *user)
{
	Worker *w = user;
	GRand *rand = g_rand_new_with_seed(w->number);
	for (int i = 0; i < N_STEPS; i++)
		random_step(w, rand);
	g_rand_free(rand);
	return NULL;
}

static void
run_threads(Fixture *f)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();
	pthread_t threads[5];
	Worker workers[5];
	print_message("KVC_TEST_SEED=%u\n", seed);
	for (unsigned i = 0; i < 5; i++) {
		workers[i] = (Worker){f, seed + i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 5; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
}

/* Facts 4.4, 1 and 10: at rest nothing is locked, and what was submitted has ended. */
static void
test_threads_leave_nothing_behind(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=1", MOCK);
	run_threads(f);
	wait_until(is_status(f, "prefetches_active", "0"));
	drain(f);
	wait_until(is_status(f, "l1_read_locks", "0"));
	assert_status(f, "l1_staging_objects", "0");
	assert_status(f, "l1_dirty_objects", "0");
	assert_int_equal(stat_of(f, "stores"), stat_of(f, "stores_completed") +
						       stat_of(f, "stores_retried") +
						       stat_of(f, "stores_failed"));
	assert_int_equal(stat_of(f, "loads"),
			 stat_of(f, "loads_completed") + stat_of(f, "loads_failed_missing"));
	assert_int_equal(stat_of(f, "prefetches"),
			 stat_of(f, "prefetches_completed") + stat_of(f, "prefetches_cancelled"));
	for (unsigned i = 0; i < N_KEYS; i++)
		delete_key(f, i);
	drain(f);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.objects, 0);
	assert_int_equal(capacity.l1_used_bytes, 0);
	assert_int_equal(capacity.l2_used_bytes, 0);
}

/* A plain file is deleted at the very moment when a store of it ends: it does not come back. */
static void
test_a_deletion_beats_the_end_of_a_store(void **state)
{
	Fixture *f = *state;
	kvc_key_scope_unref(f->scope);
	f->scope = kvc_key_scope_new_plain("directory", NULL);
	start(f, MOCK ",latency_ms=1", NULL);
	GRand *rand = g_rand_new_with_seed(1);
	for (unsigned i = 0; i < 1500; i++) {
		g_autoptr(KvcObjectKey) key = key_of(f, i % 4);
		assert_int_equal(commit(f, key, 10, 1, KVC_FINISH_REPLACE), 0);
		int64_t until = kvc_now_ns() + g_rand_int_range(rand, 900, 1600) * INT64_C(1000);
		while (kvc_now_ns() < until)
			;
		assert_int_equal(kvc_storage_manager_delete(f->sm, key), 0);
		g_usleep(100);
		assert_int_equal(kvc_storage_manager_stat(f->sm, key, NULL), -ENOENT);
	}
	g_rand_free(rand);
}

static void
test_threads_and_then_stop_at_once(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=10", NULL);
	run_threads(f);
	stop(f);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_threads_leave_nothing_behind),
		TEST(test_a_deletion_beats_the_end_of_a_store),
		TEST(test_threads_and_then_stop_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
