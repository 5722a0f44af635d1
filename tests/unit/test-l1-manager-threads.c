/* SPDX-License-Identifier: Apache-2.0 */

/* Readers, writers and eviction at once. */

#include "tests/unit/l1-manager-fixture.h"

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_KEYS 16
#define N_STEPS 1500

typedef struct Worker {
	Fixture *fixture;
	unsigned number;
	unsigned bad, hits;
} Worker;

/* The value of an object's bytes tells its key: its first byte is repeated, and is the key's. */
static bool
is_whole(const KvcL1Object *object, unsigned number)
{
	uint8_t data[600];
	ssize_t n = pread(object->fd, data, sizeof(data), 0);
	if (n < 100 || (uint64_t)n != object->bytes)
		return false;
	for (ssize_t i = 0; i < n; i++)
		if (data[i] != (uint8_t)number)
			return false;
	return true;
}

static void *
read_again_and_again(void *user)
{
	Worker *w = user;
	Fixture *f = w->fixture;
	for (unsigned i = 0; i < N_STEPS * 2; i++) {
		unsigned number = (i * 7 + w->number) % N_KEYS;
		g_autoptr(KvcObjectKey) key = key_of(f, number);
		KvcL1Object *object;
		if (kvc_l1_manager_reserve_read(f->m, &key, 1, 2, &object, NULL) == 0)
			continue;
		w->hits++;
		w->bad += !is_whole(object, number);
		w->bad += kvc_l1_manager_finish_read(f->m, object, 1) != KVC_L1_SUCCESS;
		w->bad += !is_whole(object, number);
		w->bad += kvc_l1_manager_finish_read(f->m, object, 1) != KVC_L1_SUCCESS;
	}
	return NULL;
}

static void *
evict_again_and_again(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < N_STEPS * 2; i++) {
		g_autoptr(KvcObjectKey) key = key_of(w->fixture, i % N_KEYS);
		KvcL1Error error = i % 11 == 0 ? kvc_l1_manager_delete(w->fixture->m, key, true)
					       : kvc_l1_manager_evict(w->fixture->m, key);
		w->bad += error != KVC_L1_SUCCESS && error != KVC_L1_KEY_NOT_EXIST &&
			  error != KVC_L1_KEY_IS_LOCKED;
		kvc_l1_manager_is_key_evictable(w->fixture->m, key, true);
	}
	return NULL;
}

static void
write_one(Worker *w, unsigned number, size_t bytes, unsigned how)
{
	Fixture *f = w->fixture;
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	uint8_t data[600];
	KvcL1Object *object, *locked = NULL;
	memset(data, (int)number, sizeof(data));
	if (kvc_l1_manager_reserve_write(f->m, key, bytes, how == 0, &object, NULL) !=
	    KVC_L1_SUCCESS) {
		w->bad++;
		return;
	}
	w->bad += pwrite(object->fd, data, bytes, 0) != (ssize_t)bytes;
	if (how == 0) {
		kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked);
		w->bad += !is_whole(locked, number);
		kvc_l1_manager_finish_read(f->m, locked, 1);
	} else if (how == 1) {
		kvc_l1_manager_abort_write(f->m, object);
	} else {
		kvc_l1_manager_finish_write(f->m, object, key, how % 2);
	}
}

static void *
write_again_and_again(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < N_STEPS; i++)
		write_one(w, (i * 5 + w->number) % N_KEYS, 100 + i % 500, i % 6);
	return NULL;
}

static void
test_concurrent_evict_vs_reserve_read(void **state)
{
	static void *(*const works[])(void *) = {read_again_and_again, read_again_and_again,
						 write_again_and_again, write_again_and_again,
						 evict_again_and_again};
	Fixture *f = *state;
	pthread_t threads[G_N_ELEMENTS(works)];
	Worker workers[G_N_ELEMENTS(works)];
	for (unsigned i = 0; i < G_N_ELEMENTS(works); i++) {
		workers[i] = (Worker){f, i, 0, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, works[i], &workers[i]), 0);
	}
	for (unsigned i = 0; i < G_N_ELEMENTS(works); i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
	assert_int_equal(n_criticals, 0);
	/* What is left is what is charged. */
	assert_int_equal(used(f), counts_of(f).objects * PAGE);
	assert_int_equal(kvc_l1_memory_files(f->memory), counts_of(f).objects);
	for (unsigned i = 0; i < N_KEYS; i++)
		evict(f, i);
	assert_int_equal(counts_of(f).objects, 0);
	assert_int_equal(counts_of(f).temporary_objects, 0);
	assert_int_equal(used(f), 0);
}

static void *
commit_the_same(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < 100; i++) {
		KvcL1Object *object = reserve(w->fixture, i, 100, false);
		fill_file(object, 100, (uint8_t)w->number);
		KvcL1Error error = finish(w->fixture, object, i, KVC_FINISH_FIRST_WINS);
		w->hits += error == KVC_L1_SUCCESS;
		w->bad += error != KVC_L1_SUCCESS && error != KVC_L1_KEY_NOT_WRITABLE;
	}
	return NULL;
}

static void
test_threads_first_wins_once(void **state)
{
	Fixture *f = *state;
	pthread_t threads[4];
	Worker workers[4];
	unsigned won = 0;
	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (Worker){f, i + 1, 0, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, commit_the_same, &workers[i]),
				 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
		won += workers[i].hits;
	}
	assert_int_equal(won, 100);
	assert_int_equal(counts_of(f).objects, 100);
	assert_int_equal(used(f), 100 * PAGE);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_dropped), 300);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_concurrent_evict_vs_reserve_read),
		TEST(test_threads_first_wins_once),
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
