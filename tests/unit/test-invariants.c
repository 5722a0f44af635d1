/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The ten invariants of the specification's summary ("Assumptions and Invariants Summary"),
 * and ten more that the code it was written from keeps: one test each, at least, which names it.
 */

#include "engine/store-private.h"
#include "tests/unit/engine-fixture.h"

/* ---- 1: all event fds are unique ----------------------------------------------------------- */

static void
test_invariant_1_event_fds_are_unique(void **state)
{
	Env *env = env_new(2, CAPACITY);
	g_autoptr(GError) error = NULL;
	int own = env->fakes[1]->fds[FAKE_LOOKUP];
	env->fakes[1]->fds[FAKE_LOOKUP] = env->fakes[0]->fds[FAKE_LOAD];
	assert_null(kvc_prefetch_controller_new(&env->context, &first, 8, &error));
	assert_non_null(error);
	assert_non_null(strstr(error->message, "l2.1 "));
	env->fakes[1]->fds[FAKE_LOOKUP] = own;
	env_free(env);
}

/* ---- 2: task ids are per adapter ----------------------------------------------------------- */

/* Both adapters number from 1; each answer goes to its own task. */
static void
test_invariant_2_task_ids_per_adapter(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "02");
	put_l2(&b, 1, "13");
	for (size_t a = 0; a < 2; a++)
		b.env->fakes[a]->hold[FAKE_LOAD] = true;
	submit(&b, &call, 4, 0);
	wait_until(fake_count_held(b.env->fakes[1], FAKE_LOAD) == 2);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOAD) == 2);
	assert_int_equal(b.env->fakes[0]->last_id, b.env->fakes[1]->last_id);
	fake_release(b.env->fakes[1], FAKE_LOAD);
	wait_until(is_resident(&b, 1) && is_resident(&b, 3));
	assert_false(is_resident(&b, 0));
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 4);
	drop(&call);
	bench_free(&b);
}

/* ---- 3: query results are one-shot --------------------------------------------------------- */

/* The adapter counts a query after the answer; env_free() asserts that there was none. */
static void
test_invariant_3_results_are_queried_once(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "024");
	put_l2(&b, 1, "13");
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(run(&b, N, 0), N);
	bench_free(&b);
}

/* ---- 4: every lock gets one unlock, never tried again -------------------------------------- */

/* The adapter counts an unlock without a lock; env_free() asserts that there was none. */
static void
test_invariant_4_every_lock_is_unlocked_once(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "0124");
	put_l2(&b, 1, "0124");
	assert_int_equal(run(&b, N, 0), 3);
	assert_int_equal(l2_locks(&b, 0) + l2_locks(&b, 1), 0);
	bench_free(&b);
}

static void
test_invariant_4_locks_on_other_adapters_go_back_before_the_load(void **state)
{
	Bench b = bench_new(2, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "01");
	put_l2(&b, 1, "012");
	b.env->fakes[0]->hold[FAKE_LOAD] = b.env->fakes[1]->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(b.env->fakes[1], FAKE_LOAD) == 1);
	assert_int_equal(l2_locks(&b, 0), 2);
	assert_int_equal(l2_locks(&b, 1), 1);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	fake_release(b.env->fakes[1], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 3);
	drop(&call);
	bench_free(&b);
}

/* ---- 5: prefix only ------------------------------------------------------------------------ */

static void
test_invariant_5_prefix_only(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l2(&b, 0, "0134");
	b.env->fakes[0]->hold[FAKE_LOAD] = true;
	submit(&b, &call, N, 0);
	wait_until(fake_count_held(b.env->fakes[0], FAKE_LOAD) == 2);
	/* Phase 1 unlock: what is not in the plan went back before the loads ended. */
	assert_int_equal(l2_locks(&b, 0), 2);
	fake_release(b.env->fakes[0], FAKE_LOAD);
	assert_int_equal(answer(&b, &call), 2);
	assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[3]), 0);
	assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[4]), 0);
	assert_int_equal(read_locks(&b), 2);
	drop(&call);
	bench_free(&b);
}

/* ---- 6: listeners run inside L1's lock and do not block ------------------------------------ */

typedef struct Inside {
	KvcL1ManagerListener listener; /* must be first */
	KvcL1Manager *l1;
	KvcObjectKey *key;
	pthread_t reader;
	bool was_read_meanwhile;
	int is_read; /* Atomic */
} Inside;

static void *
read_thread(void *data)
{
	Inside *inside = data;
	KvcL1Object *object;
	size_t n = kvc_l1_manager_reserve_read(inside->l1, &inside->key, 1, 1, &object, NULL);
	__atomic_store_n(&inside->is_read, 1, __ATOMIC_RELEASE);
	if (n > 0)
		kvc_l1_manager_finish_read(inside->l1, object, 1);
	return GSIZE_TO_POINTER(n);
}

static void
on_write_inside(KvcL1ManagerListener *l, KvcL1Object *object)
{
	Inside *inside = (Inside *)l;
	pthread_create(&inside->reader, NULL, read_thread, inside);
	nap(20);
	inside->was_read_meanwhile = get(&inside->is_read);
}

/* While the listener is told of a write nobody can look at the key; then it is there. */
static void
test_invariant_6_listeners_run_inside_the_lock(void **state)
{
	Env *env = env_new(0, CAPACITY);
	void *found;
	Inside inside = {
		.listener = {.on_write_finished = on_write_inside},
		.l1 = env->context.l1,
		.key = key_new(env, 1),
	};
	kvc_l1_manager_register_listener(env->context.l1, &inside.listener);
	env_write(env, inside.key, 100, 0, KVC_FINISH_FIRST_WINS);
	pthread_join(inside.reader, &found);
	assert_false(inside.was_read_meanwhile);
	assert_int_equal(GPOINTER_TO_SIZE(found), 1);
	kvc_object_key_unref(inside.key);
	env_free(env);
}

/* The StoreController does not run at all: a commit goes through its listener all the same. */
static void
test_invariant_6_the_store_listener_waits_for_nobody(void **state)
{
	Engine e = engine_new_with(1, &everywhere, NULL);
	engine_write(&e, "01234");
	assert_int_equal(env_stat(e.b.env, stores), 0);
	assert_int_equal(env_counts(e.b.env).dirty_objects, N);
	kvc_store_controller_start(e.store);
	engine_drain(&e);
	assert_int_equal(env_stat(e.b.env, stores_completed), N);
	engine_free(&e);
}

/* ---- 7: buffers of a prefetch are temporary ------------------------------------------------ */

static bool
is_temporary(Bench *b, size_t i)
{
	KvcL1Object *object;
	KvcL1Manager *l1 = b->env->context.l1;
	assert_int_equal(kvc_l1_manager_reserve_read(l1, &b->keys[i], 1, 1, &object, NULL), 1);
	bool temporary = object->is_temporary;
	kvc_l1_manager_finish_read(l1, object, 1);
	return temporary;
}

static void
test_invariant_7_prefetched_objects_are_temporary(void **state)
{
	Bench b = bench_new(1, &first, 8);
	put_l2(&b, 0, "0");
	assert_int_equal(run(&b, 1, 0), 1);
	assert_true(is_temporary(&b, 0));
	bench_free(&b);
	b = bench_new(1, &retain, 8);
	put_l2(&b, 0, "0");
	assert_int_equal(run(&b, 1, 0), 1);
	assert_false(is_temporary(&b, 0));
	bench_free(&b);
}

/* ---- 8: no eviction between write and read lock -------------------------------------------- */

static void *
evict_thread(void *data)
{
	Bench *b = data;
	uint64_t evicted = 0;
	while (env_stat(b->env, loads_completed) < 200)
		for (size_t i = 0; i < N; i++)
			evicted += kvc_l1_manager_evict(b->env->context.l1, b->keys[i]) == 0;
	return GSIZE_TO_POINTER(evicted);
}

/* Somebody evicts all the time; no request ever loses what it was told that it has. */
static void
test_invariant_8_no_eviction_between_load_and_lock(void **state)
{
	Bench b = bench_new(1, &first, 8);
	pthread_t thread;
	void *evicted;
	put_l2(&b, 0, "01234");
	pthread_create(&thread, NULL, evict_thread, &b);
	while (env_stat(b.env, loads_completed) < 200) {
		Call call = {0};
		submit(&b, &call, N, 0);
		assert_int_equal(answer(&b, &call), N);
		for (size_t i = 0; i < N; i++) {
			KvcL1Object *object = kvc_prefetch_handle_take_object(call.handle, i);
			assert_non_null(object);
			assert_int_equal(kvc_l1_manager_evict(b.env->context.l1, b.keys[i]),
					 KVC_L1_KEY_IS_LOCKED);
			kvc_l1_manager_finish_read(b.env->context.l1, object, 1);
		}
		drop(&call);
	}
	pthread_join(thread, &evicted);
	assert_true(GPOINTER_TO_SIZE(evicted) > 0);
	bench_free(&b);
}

/* ---- 9: both controllers release all locks on stop ----------------------------------------- */

/* A request in each state: in the queue, looking up, held, loading, done. */
static void
test_invariant_9_stop_of_prefetches_releases_all_locks(void **state)
{
	Bench b = bench_new(1, &first, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[5] = {0};
	pthread_t thread;
	put_l1(&b, "0");
	put_l2(&b, 0, "1234");
	submit(&b, &calls[0], 2, 0);
	assert_int_equal(answer(&b, &calls[0]), 2);
	submit(&b, &calls[1], 4, KVC_PREFETCH_HOLD);
	wait_until(get(&calls[1].planned) == 1);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &calls[2], 5, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 3);
	fake->hold[FAKE_LOOKUP] = true;
	submit(&b, &calls[3], 5, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	submit(&b, &calls[4], 5, 0);
	pthread_create(&thread, NULL, stop_prefetch_thread, b.c);
	for (size_t i = 0; i < 5; i++)
		wait_until(get(&calls[i].done) == 1 && get(&calls[i].planned) == 1);
	/* Answered, but not stopped: adapters still touch memory (difference 6). */
	assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
	assert_int_equal(kvc_prefetch_controller_active(b.c), 4);
	assert_int_equal(env_counts(b.env).staging_objects, 3);
	fake_release(fake, FAKE_LOOKUP);
	fake_release(fake, FAKE_LOAD);
	pthread_join(thread, NULL);
	assert_int_equal(l2_locks(&b, 0), 0);
	assert_int_equal(env_counts(b.env).staging_objects, 0);
	/* The one that was done before keeps its locks until it is given back. */
	assert_int_equal(read_locks(&b), 2);
	for (size_t i = 1; i < 5; i++)
		assert_int_equal(kvc_prefetch_controller_query(b.c, calls[i].handle), 0);
	for (size_t i = 0; i < 5; i++)
		drop(&calls[i]);
	assert_int_equal(read_locks(&b), 0);
	bench_free(&b);
}

static bool
is_stopping(KvcStoreController *c)
{
	kvc_mutex_lock(&c->lock);
	bool is = c->is_stopping;
	kvc_mutex_unlock(&c->lock);
	return is;
}

static void
test_invariant_9_stop_of_stores_releases_all_locks(void **state)
{
	Engine e = engine_new(1, &everywhere);
	FakeAdapter *fake = e.b.env->fakes[0];
	pthread_t thread;
	fake->hold[FAKE_STORE] = true;
	engine_write(&e, "012");
	wait_until(env_stat(e.b.env, stores) == 3);
	assert_int_equal(read_locks(&e.b), 3);
	pthread_create(&thread, NULL, stop_store_thread, e.store);
	wait_until(is_stopping(e.store));
	/* The adapter still reads the buffers. */
	assert_int_equal(pthread_tryjoin_np(thread, NULL), EBUSY);
	assert_int_equal(read_locks(&e.b), 3);
	fake_release(fake, FAKE_STORE);
	pthread_join(thread, NULL);
	assert_int_equal(read_locks(&e.b), 0);
	engine_free(&e);
}

/* ---- 10: adapters are called by both controllers at the same time -------------------------- */

#define STRESS_THREADS 3
#define STRESS_STEPS 150

typedef struct Stress {
	Bench *bench;
	unsigned seed;
} Stress;

static void
check_answer(Bench *b, Call *call, int result)
{
	for (int i = 0; i < N; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(call->handle, (size_t)i);
		if (i >= result) {
			assert_null(object);
			continue;
		}
		g_autoptr(GBytes) data = bytes_of(b->keys[i], size_of(b->keys[i]), 0);
		assert_true(object_has(object, data));
		kvc_l1_manager_finish_read(b->env->context.l1, object, 1);
	}
}

static void *
stress_thread(void *data)
{
	Stress *s = data;
	Bench *b = s->bench;
	g_autoptr(GRand) random = g_rand_new_with_seed(s->seed);
	for (unsigned step = 0; step < STRESS_STEPS; step++) {
		Call call = {0};
		unsigned flags = g_rand_boolean(random) ? KVC_PREFETCH_URGENT : 0;
		int64_t timeout = g_rand_int_range(random, 0, 4) == 0 ? 300000 : 0;
		submit_with(b, &call, N,
			    (KvcPrefetchParams){.flags = flags, .timeout_ns = timeout});
		if (g_rand_int_range(random, 0, 4) > 0)
			check_answer(b, &call, answer(b, &call));
		drop(&call);
		size_t i = (size_t)g_rand_int_range(random, 0, N);
		kvc_l1_manager_evict(b->env->context.l1, b->keys[i]);
	}
	return NULL;
}

static void
test_invariant_10_concurrent_requests(void **state)
{
	Bench b = bench_new(2, &first, 2);
	pthread_t threads[STRESS_THREADS];
	Stress stress[STRESS_THREADS];
	unsigned seed = (unsigned)kvc_now_ns();
	print_message("seed %u\n", seed);
	put_l2(&b, 0, "0134");
	put_l2(&b, 1, "1234");
	b.env->fakes[0]->fail_loads = 20;
	for (unsigned t = 0; t < STRESS_THREADS; t++) {
		stress[t] = (Stress){&b, seed + t};
		pthread_create(&threads[t], NULL, stress_thread, &stress[t]);
	}
	for (unsigned t = 0; t < STRESS_THREADS; t++)
		pthread_join(threads[t], NULL);
	wait_idle(&b);
	bench_free(&b);
}

static void *
write_thread(void *data)
{
	Engine *e = data;
	for (unsigned step = 0; step < 3 * STRESS_STEPS; step++) {
		g_autoptr(KvcObjectKey) key = key_new(e->b.env, 100 + step % 7);
		env_write(e->b.env, key, 1000 + step, step, KVC_FINISH_REPLACE);
	}
	return NULL;
}

static void
test_invariant_10_stores_and_loads_at_the_same_time(void **state)
{
	Engine e = engine_new(2, &everywhere);
	pthread_t writer, reader;
	Stress stress = {&e.b, (unsigned)kvc_now_ns()};
	print_message("seed %u\n", stress.seed);
	put_l2(&e.b, 0, "0134");
	put_l2(&e.b, 1, "1234");
	pthread_create(&writer, NULL, write_thread, &e);
	pthread_create(&reader, NULL, stress_thread, &stress);
	pthread_join(writer, NULL);
	pthread_join(reader, NULL);
	wait_idle(&e.b);
	engine_drain(&e);
	engine_free(&e);
}

/* ---- The list of the facts, 4.4 ------------------------------------------------------------ */

/* 1: at quiescence the L1 locks are those of callers who have not finished, and L2 has none. */
static void
test_facts_1_locks_at_quiescence_have_owners(void **state)
{
	Bench b = bench_new(2, &first, 8);
	KvcL1Manager *l1 = b.env->context.l1;
	Call calls[3] = {0};
	put_l1(&b, "0");
	put_l2(&b, 0, "12");
	put_l2(&b, 1, "34");
	for (size_t i = 0; i < 3; i++) {
		submit_with(&b, &calls[i], N, (KvcPrefetchParams){.read_locks = (unsigned)i + 1});
		assert_int_equal(answer(&b, &calls[i]), N);
	}
	wait_idle(&b);
	assert_int_equal(l2_locks(&b, 0) + l2_locks(&b, 1), 0);
	assert_int_equal(read_locks(&b), (1 + 2 + 3) * N);
	KvcL1Object *object = kvc_prefetch_handle_take_object(calls[2].handle, 4);
	drop(&calls[0]);
	assert_int_equal(read_locks(&b), (2 + 3) * N);
	assert_int_equal(total(&b).l1_locks, (2 + 3) * N - 1);
	drop(&calls[1]);
	drop(&calls[2]);
	assert_int_equal(read_locks(&b), 1);
	kvc_l1_manager_finish_read(l1, object, 1);
	assert_int_equal(read_locks(&b), 0);
	bench_free(&b);
}

/* 2: each lookup and each load is submitted, answered and consumed once. */
static void
test_facts_2_every_result_is_consumed_once(void **state)
{
	Bench b = bench_new(2, &first, 8);
	put_l2(&b, 0, "013");
	put_l2(&b, 1, "024");
	for (unsigned i = 0; i < 5; i++)
		assert_int_equal(run(&b, N, i % 2 ? KVC_PREFETCH_FULL : 0), N);
	wait_idle(&b);
	for (size_t a = 0; a < 2; a++) {
		assert_int_equal(fake_get(b.env->fakes[a], &b.env->fakes[a]->bad_queries), 0);
		/* A task is forgotten when its result was given. */
		assert_int_equal(b.env->fakes[a]->tasks->len, 0);
	}
	bench_free(&b);
}

/* 3: each key is loaded from one adapter, whatever the policy says. */
static void
test_facts_3_plans_are_disjoint(void **state)
{
	const KvcPrefetchPolicy *policies[] = {&first, &bad};
	for (size_t p = 0; p < 2; p++) {
		Bench b = bench_new(3, policies[p], 8);
		put_l2(&b, 0, "04");
		put_l2(&b, 1, "0124");
		put_l2(&b, 2, "01234");
		assert_int_equal(run(&b, N, 0), N);
		for (size_t i = 0; i < N; i++)
			assert_int_equal(fake_count(b.env->fakes[0], "load", b.keys[i]) +
						 fake_count(b.env->fakes[1], "load", b.keys[i]) +
						 fake_count(b.env->fakes[2], "load", b.keys[i]),
					 1);
		bench_free(&b);
	}
}

static void
put_bits(Bench *b, int adapter, unsigned bits)
{
	for (unsigned i = 0; i < N; i++) {
		char which[2] = {(char)('0' + i), 0};
		if (!(bits & (1u << i)))
			continue;
		if (adapter < 0)
			put_l1(b, which);
		else
			put_l2(b, (size_t)adapter, which);
	}
}

static void
check_contiguous(unsigned in_l1, unsigned in_l2, unsigned failing)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_bits(&b, -1, in_l1);
	put_bits(&b, 0, in_l2);
	for (unsigned i = 0; i < N; i++)
		if (failing & (1u << i))
			g_hash_table_add(b.env->fakes[0]->bad_keys, b.keys[i]);
	unsigned usable = in_l1 | (in_l2 & ~failing);
	int expected = __builtin_ctz(~usable);
	submit(&b, &call, N, 0);
	assert_int_equal(answer(&b, &call), expected);
	assert_int_equal(read_locks(&b), expected);
	for (int i = 0; i < N; i++)
		assert_int_equal(kvc_prefetch_handle_get_key_state(call.handle, (size_t)i) ==
					 KVC_PREFETCH_KEY_HELD,
				 i < expected);
	drop(&call);
	bench_free(&b);
}

/* 4: in mode prefix the hits are contiguous from 0, for every state of L1 and L2. */
static void
test_facts_4_hits_are_contiguous(void **state)
{
	for (unsigned in_l1 = 0; in_l1 < 1u << N; in_l1 += 3)
		for (unsigned in_l2 = 0; in_l2 < 1u << N; in_l2 += 5)
			check_contiguous(in_l1, in_l2,
					 (in_l1 * 7 + in_l2) % 11 == 0 ? in_l2 & 4 : 0);
}

/* 5: a hit is locked once for each consumer, anything else not at all. */
static void
test_facts_5_hits_are_locked_exactly(void **state)
{
	Bench b = bench_new(1, &first, 8);
	Call call = {0};
	put_l1(&b, "03");
	put_l2(&b, 0, "14");
	submit_with(&b, &call, N, (KvcPrefetchParams){.read_locks = 3});
	assert_int_equal(answer(&b, &call), 2);
	for (size_t i = 0; i < N; i++) {
		KvcResidency residency;
		kvc_l1_manager_get_residency(b.env->context.l1, b.keys[i], &residency);
		assert_int_equal(residency.read_locks, i < 2 ? 3 : 0);
	}
	drop(&call);
	bench_free(&b);
}

/* 6: what was prefetched is never stored. */
static void
test_facts_6_no_store_of_prefetched_objects(void **state)
{
	Engine e = engine_new(2, &everywhere);
	put_l2(&e.b, 0, "0123");
	assert_int_equal(run(&e.b, 4, 0), 4);
	engine_write(&e, "4");
	engine_drain(&e);
	/* What was written after them has been stored: they would have been before it. */
	for (size_t a = 0; a < 2; a++)
		for (size_t i = 0; i < N; i++)
			assert_int_equal(fake_count(e.b.env->fakes[a], "store", e.b.keys[i]),
					 i == 4);
	engine_free(&e);
}

/* 7: after stop there are no locks and no fds, and every request was answered. */
static void
test_facts_7_stop_leaves_no_lock_and_no_fd(void **state)
{
	unsigned fds = count_fds();
	Engine e = engine_new(1, &everywhere);
	Call calls[3] = {0};
	pthread_t thread;
	FakeAdapter *fake = e.b.env->fakes[0];
	put_l2(&e.b, 0, "012");
	engine_write(&e, "3");
	engine_drain(&e);
	fake->hold[FAKE_LOAD] = true;
	submit(&e.b, &calls[0], 2, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 2);
	fake->hold[FAKE_LOOKUP] = true;
	submit(&e.b, &calls[1], 3, 0);
	wait_until(fake_count_held(fake, FAKE_LOOKUP) == 1);
	submit(&e.b, &calls[2], 3, KVC_PREFETCH_FULL);
	pthread_create(&thread, NULL, stop_prefetch_thread, e.b.c);
	for (size_t i = 0; i < 3; i++)
		wait_until(get(&calls[i].done) == 1);
	fake_release(fake, FAKE_LOAD);
	fake_release(fake, FAKE_LOOKUP);
	pthread_join(thread, NULL);
	assert_int_equal(read_locks(&e.b) + (unsigned)l2_locks(&e.b, 0), 0);
	for (size_t i = 0; i < 3; i++) {
		assert_int_equal(kvc_prefetch_controller_query(e.b.c, calls[i].handle), 0);
		drop(&calls[i]);
	}
	engine_free(&e);
	assert_int_equal(count_fds(), fds);
}

/* 8: the buffers stay until the adapter is done, whoever has lost interest. */
static void
test_facts_8_no_buffer_goes_while_an_adapter_uses_it(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	pthread_t thread;
	Call dropped = {0}, late = {0};
	KvcObjectKey *keys[] = {b.keys[3], b.keys[4]};
	put_l2(&b, 0, "01234");
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &dropped, 3, 0);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 3);
	drop(&dropped);
	wait_until(kvc_prefetch_controller_active(b.c) == 3);
	submit_with_deadline(&b, &late, 2,
			     (KvcPrefetchParams){.keys = keys, .timeout_ns = 300 * KVC_MSEC_NS},
			     FAKE_LOAD, 5);
	assert_int_equal(answer(&b, &late), 0);
	drop(&late);
	kvc_key_index_hide(b.env->context.index, b.keys[2], 1, 0);
	kvc_l1_manager_delete(b.env->context.l1, b.keys[2], true);
	pthread_create(&thread, NULL, stop_prefetch_thread, b.c);
	nap(20);
	assert_int_equal(env_counts(b.env).staging_objects, N);
	/* The fake writes to all of them now: to memory that is gone it could not. */
	fake_release(fake, FAKE_LOAD);
	pthread_join(thread, NULL);
	assert_int_equal(env_counts(b.env).staging_objects, 0);
	assert_false(is_resident(&b, 2));
	bench_free(&b);
}

/* 9: where an adapter asks for it, every object of a store task has one size. */
static void
test_facts_9_uniform_batches(void **state)
{
	for (int is_uniform = 0; is_uniform < 2; is_uniform++) {
		Engine e = engine_new_with(1, &everywhere, NULL);
		FakeAdapter *fake = e.b.env->fakes[0];
		fake->ops.uniform_batches = is_uniform;
		for (unsigned i = 0; i < 6; i++) {
			g_autoptr(KvcObjectKey) key = key_new(e.b.env, 50 + i);
			env_write(e.b.env, key, i & 1 ? 100 : 5000, 0, KVC_FINISH_FIRST_WINS);
		}
		kvc_store_controller_start(e.store);
		engine_drain(&e);
		assert_int_equal(fake->mixed_sizes, !is_uniform);
		engine_free(&e);
	}
}

/* 10: submitted = completed + failed + in flight, at every moment that the test can make. */
static void
test_facts_10_counters_add_up(void **state)
{
	Bench b = bench_new(1, &first, 8);
	FakeAdapter *fake = b.env->fakes[0];
	Call calls[3] = {0};
	put_l2(&b, 0, "0123");
	g_hash_table_add(fake->bad_keys, b.keys[1]);
	fake->hold[FAKE_LOAD] = true;
	submit(&b, &calls[0], 4, KVC_PREFETCH_FULL);
	wait_until(fake_count_held(fake, FAKE_LOAD) == 4);
	submit(&b, &calls[1], 4, KVC_PREFETCH_FULL);
	submit(&b, &calls[2], 4, KVC_PREFETCH_FULL);
	wait_until(env_stat(b.env, loads_joined) == 8);
	drop(&calls[2]);
	for (unsigned in_flight = 4; in_flight-- > 0;) {
		fake_release_nth(fake, FAKE_LOAD, 0);
		wait_until(env_stat(b.env, loads) == env_stat(b.env, loads_completed) +
							     env_stat(b.env, loads_failed_missing) +
							     in_flight);
		unsigned active = in_flight > 0 ? 2 : 0;
		wait_until(env_stat(b.env, prefetches) ==
			   env_stat(b.env, prefetches_completed) +
				   env_stat(b.env, prefetches_cancelled) + active);
	}
	assert_int_equal(answer(&b, &calls[0]) + answer(&b, &calls[1]), 6);
	assert_int_equal(env_stat(b.env, loads_completed), 3);
	assert_int_equal(env_stat(b.env, prefetches_cancelled), 1);
	drop(&calls[0]);
	drop(&calls[1]);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_invariant_1_event_fds_are_unique),
		cmocka_unit_test(test_invariant_2_task_ids_per_adapter),
		cmocka_unit_test(test_invariant_3_results_are_queried_once),
		cmocka_unit_test(test_invariant_4_every_lock_is_unlocked_once),
		cmocka_unit_test(test_invariant_4_locks_on_other_adapters_go_back_before_the_load),
		cmocka_unit_test(test_invariant_5_prefix_only),
		cmocka_unit_test(test_invariant_6_listeners_run_inside_the_lock),
		cmocka_unit_test(test_invariant_6_the_store_listener_waits_for_nobody),
		cmocka_unit_test(test_invariant_7_prefetched_objects_are_temporary),
		cmocka_unit_test(test_invariant_8_no_eviction_between_load_and_lock),
		cmocka_unit_test(test_invariant_9_stop_of_prefetches_releases_all_locks),
		cmocka_unit_test(test_invariant_9_stop_of_stores_releases_all_locks),
		cmocka_unit_test(test_invariant_10_concurrent_requests),
		cmocka_unit_test(test_invariant_10_stores_and_loads_at_the_same_time),
		cmocka_unit_test(test_facts_1_locks_at_quiescence_have_owners),
		cmocka_unit_test(test_facts_2_every_result_is_consumed_once),
		cmocka_unit_test(test_facts_3_plans_are_disjoint),
		cmocka_unit_test(test_facts_4_hits_are_contiguous),
		cmocka_unit_test(test_facts_5_hits_are_locked_exactly),
		cmocka_unit_test(test_facts_6_no_store_of_prefetched_objects),
		cmocka_unit_test(test_facts_7_stop_leaves_no_lock_and_no_fd),
		cmocka_unit_test(test_facts_8_no_buffer_goes_while_an_adapter_uses_it),
		cmocka_unit_test(test_facts_9_uniform_batches),
		cmocka_unit_test(test_facts_10_counters_add_up),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
