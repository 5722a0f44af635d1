/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/eviction-controller.h"
#include "kvcache/registry.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define PAGE UINT64_C(4096)
/* The budget: so many objects of one page. */
#define CAPACITY (16 * PAGE)
#define OVERRUN (64 * PAGE)

typedef struct Fixture {
	KvcL1Memory *memory;
	KvcL1Manager *m;
	KvcStats stats;
	KvcKeyScope *scope;
	KvcEvictionController *c;
} Fixture;

static Fixture *
fixture_new(const KvcEvictionPolicy *policy, double watermark, double ratio)
{
	Fixture *f = g_new0(Fixture, 1);
	f->memory = kvc_l1_memory_new(CAPACITY, OVERRUN, NULL);
	assert_non_null(f->memory);
	f->m = kvc_l1_manager_new(f->memory, &f->stats);
	f->scope = kvc_key_scope_new("model", 1, 0, NULL, NULL);
	f->c = kvc_eviction_controller_new(f->m, f->memory, policy, watermark, ratio);
	return f;
}

static void
fixture_free(Fixture *f)
{
	kvc_eviction_controller_stop(f->c);
	kvc_l1_manager_free(f->m);
	kvc_eviction_controller_free(f->c);
	assert_int_equal(kvc_l1_memory_used(f->memory), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 0);
	kvc_l1_memory_free(f->memory);
	kvc_key_scope_unref(f->scope);
	g_free(f);
}

/* The thread does not run: only reservations evict. */
static int
set_up(void **state)
{
	*state = fixture_new(kvc_find_eviction_policy("lru", NULL), 0.75, 0.5);
	return 0;
}

static int
tear_down(void **state)
{
	fixture_free(*state);
	return 0;
}

static KvcObjectKey *
key_of(Fixture *f, uint32_t number)
{
	return kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, &number, 4, NULL);
}

static KvcL1Error
try_reserve(Fixture *f, uint32_t number, uint64_t bytes, bool is_temporary, KvcL1Object **object)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	int errnum = 0;
	KvcL1Error error =
		kvc_l1_manager_reserve_write(f->m, key, bytes, is_temporary, object, &errnum);
	if (error != KVC_L1_SUCCESS)
		assert_int_equal(errnum, ENOSPC);
	return error;
}

static KvcL1Error
try_put(Fixture *f, uint32_t number, unsigned pages)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object;
	KvcL1Error error = try_reserve(f, number, pages * PAGE, false, &object);
	if (error != KVC_L1_SUCCESS)
		return error;
	assert_int_equal(ftruncate(object->fd, (off_t)(pages * PAGE)), 0);
	return kvc_l1_manager_finish_write(f->m, object, key, KVC_FINISH_REPLACE);
}

static void
put(Fixture *f, uint32_t number, unsigned pages)
{
	assert_int_equal(try_put(f, number, pages), KVC_L1_SUCCESS);
}

static void
put_range(Fixture *f, uint32_t from, uint32_t to)
{
	for (; from < to; from++)
		put(f, from, 1);
}

/* As a prefetch does. */
static void
load(Fixture *f, uint32_t number, bool is_temporary)
{
	KvcL1Object *object, *locked;
	assert_int_equal(try_reserve(f, number, PAGE, is_temporary, &object), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_object_set_size(object, PAGE), 0);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 0, &locked),
			 KVC_L1_SUCCESS);
}

static KvcL1Object *
read_lock(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object;
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, &key, 1, 1, &object, NULL), 1);
	return object;
}

static void
read_unlock(Fixture *f, KvcL1Object *object)
{
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 1), KVC_L1_SUCCESS);
}

static void
set_clean(Fixture *f, uint32_t number, bool replicated)
{
	/* Not by a read: that would be a use. */
	KvcL1Object *object = read_lock(f, number);
	kvc_l1_manager_set_clean(f->m, object, replicated);
	read_unlock(f, object);
}

static bool
is_resident(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	/* A deletion that does nothing: looking by a read would be a use. */
	KvcL1Object *object;
	if (kvc_l1_manager_reserve_read(f->m, &key, 1, 1, &object, NULL) == 0)
		return false;
	kvc_l1_manager_finish_read(f->m, object, 1);
	return true;
}

/* Which of the numbers below N are there, as "0 2 3". */
static void
assert_resident(Fixture *f, uint32_t n, const char *expected)
{
	g_autoptr(GString) text = g_string_new(NULL);
	for (uint32_t i = 0; i < n; i++)
		if (is_resident(f, i))
			g_string_append_printf(text, "%s%u", text->len ? " " : "", i);
	assert_string_equal(text->str, expected);
}

static uint64_t
used(Fixture *f)
{
	return kvc_l1_memory_used(f->memory);
}

/* ---- At once, when a reservation lacks room ------------------------------------------------ */

static void
test_difference_8_reservation_evicts_at_once(void **state)
{
	Fixture *f = *state;
	put_range(f, 0, 16);
	assert_int_equal(used(f), CAPACITY);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 0);
	put(f, 16, 1);
	put(f, 17, 3);
	assert_resident(f, 18, "4 5 6 7 8 9 10 11 12 13 14 15 16 17");
	assert_int_equal(used(f), CAPACITY);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 4);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_bytes), 4 * PAGE);
}

static void
test_extend_evicts_at_once(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object;
	put_range(f, 0, 15);
	assert_int_equal(try_reserve(f, 100, PAGE, false, &object), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, 3 * PAGE, NULL), KVC_L1_SUCCESS);
	assert_resident(f, 16, "2 3 4 5 6 7 8 9 10 11 12 13 14");
	kvc_l1_manager_abort_write(f->m, object);
}

static void
test_use_keeps(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) touched = key_of(f, 1);
	put_range(f, 0, 16);
	read_unlock(f, read_lock(f, 0));
	kvc_l1_manager_touch_keys(f->m, &touched, 1);
	put(f, 16, 2);
	assert_resident(f, 17, "0 1 4 5 6 7 8 9 10 11 12 13 14 15 16");
}

static void
test_locked_is_skipped(void **state)
{
	Fixture *f = *state;
	put_range(f, 0, 16);
	KvcL1Object *a = read_lock(f, 0), *b = read_lock(f, 3);
	/* They are the most recent now: everything else has to go before. */
	put(f, 16, 14);
	assert_resident(f, 17, "0 3 16");
	/* 16 goes, the locked ones cannot. */
	put(f, 17, 10);
	assert_resident(f, 18, "0 3 17");
	KvcL1Object *object = NULL;
	assert_int_equal(try_reserve(f, 18, 15 * PAGE, false, &object), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(kvc_stats_get(&f->stats, l1_reserve_failed_no_memory), 1);
	read_unlock(f, a);
	read_unlock(f, b);
	put(f, 18, 16);
	assert_resident(f, 19, "18");
}

static void
test_difference_7_dirty_is_skipped(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = NULL;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put_range(f, 0, 16);
	assert_int_equal(try_reserve(f, 100, PAGE, false, &object), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(used(f), CAPACITY);
	set_clean(f, 7, true);
	put(f, 16, 1);
	assert_resident(f, 17, "0 1 2 3 4 5 6 8 9 10 11 12 13 14 15 16");
	assert_int_equal(try_reserve(f, 100, PAGE, false, &object), KVC_L1_OUT_OF_MEMORY);
	for (uint32_t i = 0; i < 17; i++)
		if (i != 7)
			set_clean(f, i, true);
	put(f, 17, 16);
	assert_resident(f, 18, "17");
}

static void
test_staging_is_skipped(void **state)
{
	Fixture *f = *state;
	KvcL1Object *staging[4], *object = NULL;
	for (uint32_t i = 0; i < 4; i++)
		assert_int_equal(try_reserve(f, i, 4 * PAGE, false, &staging[i]), KVC_L1_SUCCESS);
	assert_int_equal(try_reserve(f, 4, PAGE, false, &object), KVC_L1_OUT_OF_MEMORY);
	for (uint32_t i = 0; i < 4; i++)
		kvc_l1_manager_abort_write(f->m, staging[i]);
	put(f, 4, 16);
}

static void
test_difference_11_temporary_goes_first(void **state)
{
	Fixture *f = *state;
	put_range(f, 0, 10);
	for (uint32_t i = 10; i < 14; i++)
		load(f, i, true);
	/* Kept by the policy `retain`: an ordinary one. */
	load(f, 14, false);
	put(f, 15, 1);
	/* Read and given back: still there, still the first to go. */
	read_unlock(f, read_lock(f, 10));
	put(f, 16, 3);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 3);
	assert_resident(f, 17, "0 1 2 3 4 5 6 7 8 9 10 14 15 16");
	put(f, 17, 2);
	/* Looking at all in order has made 0 the coldest. */
	assert_resident(f, 18, "1 2 3 4 5 6 7 8 9 14 15 16 17");
}

static void
test_unreplicated_goes_last(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put_range(f, 0, 16);
	for (uint32_t i = 0; i < 16; i++)
		set_clean(f, i, i >= 4);
	put(f, 16, 10);
	assert_resident(f, 17, "0 1 2 3 14 15 16");
	set_clean(f, 16, true);
	put(f, 17, 12);
	assert_resident(f, 18, "0 1 2 3 17");
	/* Nothing else is left. */
	set_clean(f, 17, true);
	put(f, 18, 14);
	assert_resident(f, 18, "2 3");
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(f->m, &counts);
	assert_int_equal(counts.unreplicated_objects, 2);
}

static void
test_deleted_and_replaced_are_forgotten(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 0);
	put_range(f, 0, 16);
	assert_int_equal(kvc_l1_manager_delete(f->m, key, false), KVC_L1_SUCCESS);
	put(f, 16, 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 0);
	/* A replaced one counts as just used, with its new size. */
	read_unlock(f, read_lock(f, 1));
	put(f, 1, 2);
	assert_resident(f, 17, "1 4 5 6 7 8 9 10 11 12 13 14 15 16");
	assert_int_equal(used(f), 15 * PAGE);
	put(f, 17, 14);
	assert_resident(f, 18, "15 16 17");
}

/* What somebody still refers to gives no memory back: others go instead. */
static void
test_referenced_is_skipped(void **state)
{
	Fixture *f = *state;
	KvcL1Object *held[8];
	put_range(f, 0, 16);
	for (uint32_t i = 0; i < 8; i++) {
		held[i] = kvc_l1_object_ref(read_lock(f, i));
		read_unlock(f, held[i]);
	}
	for (uint32_t i = 8; i < 16; i++)
		read_unlock(f, read_lock(f, i)); /* used after those held */
	put(f, 16, 8);
	assert_resident(f, 17, "0 1 2 3 4 5 6 7 16");
	for (uint32_t i = 0; i < 8; i++)
		kvc_l1_object_unref(held[i]);
}

/* A reservation takes what is lacking, not its own size: the rest may be the only copy. */
static void
test_only_what_is_lacking_goes(void **state)
{
	Fixture *f = *state;
	put_range(f, 0, 15);
	put(f, 15, 2);
	assert_resident(f, 16, "1 2 3 4 5 6 7 8 9 10 11 12 13 14 15");
}

static void
test_a_hopeless_reservation_evicts_nothing(void **state)
{
	Fixture *f = *state;
	KvcL1Object *staging, *none = NULL;
	put_range(f, 0, 8);
	assert_int_equal(try_reserve(f, 100, 8 * PAGE, false, &staging), KVC_L1_SUCCESS);
	assert_int_equal(try_reserve(f, 101, 16 * PAGE, false, &none), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(try_reserve(f, 101, UINT64_MAX, false, &none), KVC_L1_OUT_OF_MEMORY);
	kvc_l1_manager_abort_write(f->m, staging);
	assert_resident(f, 8, "0 1 2 3 4 5 6 7");
}

/* A store that succeeds after one was given up makes the object an ordinary one again. */
static void
test_replicated_at_last_is_ordinary(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put_range(f, 0, 16);
	for (uint32_t i = 0; i < 16; i++)
		set_clean(f, i, false);
	set_clean(f, 3, true);
	put(f, 16, 1);
	assert_false(is_resident(f, 3));
	assert_true(is_resident(f, 0));
}

/* ---- The number of files ------------------------------------------------------------------- */

static void
test_files_are_a_budget_too(void **state)
{
	struct rlimit limit, few;
	(void)state;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	few = (struct rlimit){64, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
	Fixture *f = fixture_new(kvc_find_eviction_policy("lru", NULL), 0.75, 0.5);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	uint32_t n = (uint32_t)kvc_l1_memory_files_limit(f->memory);
	assert_int_equal(n, 32);
	for (uint32_t i = 0; i < n + 5; i++)
		put(f, i, 0);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 5);
	assert_int_equal(kvc_l1_memory_files(f->memory), n);
	for (uint32_t i = 0; i < n + 5; i++)
		assert_int_equal(is_resident(f, i), i >= 5);
	/* The thread keeps room of files as well. */
	kvc_eviction_controller_start(f->c);
	for (int i = 0; i < 1000 && kvc_l1_memory_files(f->memory) > n * 3 / 4; i++)
		g_usleep(10000);
	assert_true(kvc_l1_memory_files(f->memory) <= n * 3 / 4);
	assert_true(kvc_l1_memory_files(f->memory) >= n / 4);
	fixture_free(f);
}

/* ---- The thread ---------------------------------------------------------------------------- */

static bool
wait_used_below(Fixture *f, uint64_t bytes)
{
	for (int i = 0; i < 1000 && used(f) >= bytes; i++)
		g_usleep(10000);
	return used(f) < bytes;
}

static void
test_thread_keeps_room_ahead(void **state)
{
	Fixture *f = *state;
	kvc_eviction_controller_start(f->c);
	put_range(f, 0, 11);
	g_usleep(100000);
	/* Below the watermark of 12. */
	assert_int_equal(used(f), 11 * PAGE);
	put(f, 11, 1);
	assert_true(wait_used_below(f, 12 * PAGE));
	g_usleep(50000);
	/* Half of what was used, the coldest. */
	assert_resident(f, 12, "6 7 8 9 10 11");
	kvc_eviction_controller_stop(f->c);
	kvc_eviction_controller_stop(f->c);
	put_range(f, 20, 30);
	g_usleep(50000);
	assert_int_equal(used(f), CAPACITY);
}

static void
test_thread_leaves_dirty_and_unreplicated(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put_range(f, 0, 15);
	set_clean(f, 0, false);
	set_clean(f, 1, true);
	kvc_eviction_controller_start(f->c);
	assert_true(wait_used_below(f, 15 * PAGE));
	g_usleep(1200000);
	assert_resident(f, 15, "0 2 3 4 5 6 7 8 9 10 11 12 13 14");
	/* Once stored they may go, at the latest when the thread looks next. */
	for (uint32_t i = 2; i < 15; i++)
		set_clean(f, i, true);
	assert_true(wait_used_below(f, 12 * PAGE));
	assert_true(is_resident(f, 0));
}

/* ---- A policy that errs -------------------------------------------------------------------- */

static Fixture *wrong_fixture;
static int n_wrong; /* Atomic: how often it was asked */

static KvcEvictionState *
wrong_state_new(void)
{
	return (KvcEvictionState *)g_malloc(1);
}

static void
wrong_state_free(KvcEvictionState *state)
{
	g_free(state);
}

static void
wrong_created(KvcEvictionState *state,
	      const KvcObjectKey *key,
	      uint64_t bytes,
	      KvcEvictionClass klass)
{
}

static void
wrong_key(KvcEvictionState *state, const KvcObjectKey *key)
{
}

/* Names what is not there, the same thing twice, and what is locked; eligible or not. */
static void
wrong_select(KvcEvictionState *state,
	     uint64_t bytes,
	     size_t count,
	     bool (*eligible)(void *user, const KvcObjectKey *key),
	     void *user,
	     GPtrArray *victims)
{
	static const uint32_t numbers[] = {999, 0, 0, 1, 999, 2};
	__atomic_fetch_add(&n_wrong, 1, __ATOMIC_RELAXED);
	for (size_t i = 0; i < G_N_ELEMENTS(numbers); i++)
		g_ptr_array_add(victims, key_of(wrong_fixture, numbers[i]));
}

static void
test_wrong_policy_kills_nothing(void **state)
{
	static const KvcEvictionPolicy policy = {
		.api = KVC_POLICY_API,
		.struct_size = sizeof(policy),
		.name = "wrong",
		.state_new = wrong_state_new,
		.state_free = wrong_state_free,
		.created = wrong_created,
		.touched = wrong_key,
		.removed = wrong_key,
		.select_victims = wrong_select,
	};
	KvcL1Object *object = NULL;
	(void)state;
	Fixture *f = wrong_fixture = fixture_new(&policy, 0.5, 0.5);
	put_range(f, 0, 16);
	KvcL1Object *locked = read_lock(f, 1);
	put(f, 20, 2);
	assert_resident(f, 16, "1 3 4 5 6 7 8 9 10 11 12 13 14 15");
	/* Nothing of what it names can go: refused, not endless. */
	assert_int_equal(try_reserve(f, 21, PAGE, false, &object), KVC_L1_OUT_OF_MEMORY);
	__atomic_store_n(&n_wrong, 0, __ATOMIC_RELAXED);
	kvc_eviction_controller_start(f->c);
	for (int i = 0; i < 1000 && __atomic_load_n(&n_wrong, __ATOMIC_RELAXED) < 2; i++)
		g_usleep(10000);
	/* It is asked again and again. */
	assert_true(__atomic_load_n(&n_wrong, __ATOMIC_RELAXED) >= 2);
	assert_true(is_resident(f, 1));
	read_unlock(f, locked);
	fixture_free(f);
}

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_KEYS 40
#define N_STEPS 3000

typedef struct Worker {
	Fixture *fixture;
	unsigned number;
	unsigned bad, hits;
} Worker;

/* What it holds stays, whatever else is evicted. */
static void *
read_again_and_again(void *user)
{
	Worker *w = user;
	Fixture *f = w->fixture;
	for (uint32_t i = 0; i < N_STEPS; i++) {
		uint32_t number = (i * 7 + w->number) % N_KEYS, read = 0;
		g_autoptr(KvcObjectKey) key = key_of(f, number);
		KvcL1Object *object;
		if (kvc_l1_manager_reserve_read(f->m, &key, 1, 1, &object, NULL) == 0)
			continue;
		w->hits++;
		w->bad += kvc_l1_manager_evict(f->m, key) == KVC_L1_SUCCESS;
		w->bad += pread(object->fd, &read, 4, 0) != 4 || read != number;
		w->bad += kvc_l1_manager_finish_read(f->m, object, 1) != KVC_L1_SUCCESS;
	}
	return NULL;
}

static void *
write_again_and_again(void *user)
{
	Worker *w = user;
	Fixture *f = w->fixture;
	for (uint32_t i = 0; i < N_STEPS; i++) {
		uint32_t number = (i * 3 + w->number) % N_KEYS;
		g_autoptr(KvcObjectKey) key = key_of(f, number);
		KvcL1Object *object;
		if (try_reserve(f, number, PAGE, false, &object) != KVC_L1_SUCCESS)
			continue;
		w->hits++;
		w->bad += pwrite(object->fd, &number, 4, 0) != 4;
		w->bad += kvc_l1_memory_used(f->memory) > CAPACITY;
		/* Not REPLACE: then what a reader holds would not be what the key names. */
		kvc_l1_manager_finish_write(f->m, object, key, KVC_FINISH_FIRST_WINS);
	}
	return NULL;
}

static void
test_threads_evict_against_reserve_read(void **state)
{
	Fixture *f = *state;
	pthread_t threads[4];
	Worker workers[4];
	kvc_eviction_controller_start(f->c);
	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (Worker){f, i, 0, 0};
		assert_int_equal(
			pthread_create(&threads[i], NULL,
				       i % 2 ? read_again_and_again : write_again_and_again,
				       &workers[i]),
			0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
	assert_true(workers[0].hits + workers[2].hits > N_STEPS);
	assert_true(kvc_stats_get(&f->stats, l1_evicted_objects) > 0);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_difference_8_reservation_evicts_at_once),
		TEST(test_extend_evicts_at_once),
		TEST(test_use_keeps),
		TEST(test_locked_is_skipped),
		TEST(test_difference_7_dirty_is_skipped),
		TEST(test_staging_is_skipped),
		TEST(test_difference_11_temporary_goes_first),
		TEST(test_unreplicated_goes_last),
		TEST(test_deleted_and_replaced_are_forgotten),
		TEST(test_referenced_is_skipped),
		TEST(test_only_what_is_lacking_goes),
		TEST(test_a_hopeless_reservation_evicts_nothing),
		TEST(test_replicated_at_last_is_ordinary),
		cmocka_unit_test(test_files_are_a_budget_too),
		TEST(test_thread_keeps_room_ahead),
		TEST(test_thread_leaves_dirty_and_unreplicated),
		cmocka_unit_test(test_wrong_policy_kills_nothing),
		TEST(test_threads_evict_against_reserve_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
