/* SPDX-License-Identifier: Apache-2.0 */

/* Batches, what is in flight, and how it ends. */

#include "tests/unit/store-fixture.h"

#include "tests/unit/log-fixture.h"

#include <limits.h>

/* ---- Batches ------------------------------------------------------------------------------- */

static void
test_the_object_is_read_locked_while_it_is_stored(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->hold[FAKE_STORE] = b.env->fakes[1]->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(b.env->fakes[1], FAKE_STORE) == 1);
	assert_int_equal(env_counts(b.env).read_locks, 2);
	assert_int_equal(kvc_l1_manager_evict(b.env->context.l1, key), KVC_L1_KEY_IS_LOCKED);
	fake_release(b.env->fakes[0], FAKE_STORE);
	wait_until(env_counts(b.env).read_locks == 1);
	fake_release(b.env->fakes[1], FAKE_STORE);
	drain(&b);
	assert_int_equal(env_counts(b.env).read_locks, 0);
	bench_free(&b);
}

static void
test_a_batch_has_at_most_16_keys(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 40);
	for (size_t i = 0; i < 40; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	drain(&b);
	GArray *batches = b.env->fakes[0]->batches;
	assert_int_equal(batches->len, 3);
	assert_int_equal(g_array_index(batches, guint, 0), 16);
	assert_int_equal(g_array_index(batches, guint, 1), 16);
	assert_int_equal(g_array_index(batches, guint, 2), 8);
	keys_free(keys, 40);
	bench_free(&b);
}

static void
test_a_batch_has_at_most_64_mib(void **state)
{
	Bench b = bench_new(1, UINT64_C(160) << 20, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 3);
	for (size_t i = 0; i < 3; i++)
		env_write(b.env, keys[i], 30 << 20, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	drain(&b);
	GArray *batches = b.env->fakes[0]->batches;
	assert_int_equal(batches->len, 2);
	assert_int_equal(g_array_index(batches, guint, 0) + g_array_index(batches, guint, 1), 3);
	keys_free(keys, 3);
	bench_free(&b);
}

static void
test_invariant_2_task_ids_per_adapter(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter **fakes = b.env->fakes;
	fakes[0]->hold[FAKE_STORE] = fakes[1]->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fakes[1], FAKE_STORE) == 1);
	assert_int_equal(fakes[0]->last_id, fakes[1]->last_id);
	fake_release(fakes[1], FAKE_STORE);
	wait_until(env_tiers(b.env, key) & 2);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	assert_int_equal(env_counts(b.env).dirty_objects, 1);
	fake_release(fakes[0], FAKE_STORE);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 3);
	bench_free(&b);
}

static void
write_mixed(Bench *b, KvcObjectKey **keys, KvcKeyScope *other)
{
	for (unsigned i = 0; i < 8; i++) {
		keys[i] = key_in(i & 1 ? other : b->env->scope, KVC_SPACE_CHUNK, i);
		env_write(b->env, keys[i], i & 2 ? 100 : 5000, 0, KVC_FINISH_FIRST_WINS);
	}
}

static void
test_difference_5_a_batch_may_mix_sizes_but_not_scopes(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcKeyScope) other = scope_of(0x02010200);
	KvcObjectKey *keys[8];
	write_mixed(&b, keys, other);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(b.env->fakes[0]->batches->len, 2);
	assert_false(b.env->fakes[0]->mixed_scopes);
	assert_true(b.env->fakes[0]->mixed_sizes);
	for (size_t i = 0; i < 8; i++)
		kvc_object_key_unref(keys[i]);
	bench_free(&b);
}

static void
test_difference_5_uniform_batches_have_one_size(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcKeyScope) other = scope_of(0x02010200);
	KvcObjectKey *keys[8];
	b.env->fakes[0]->ops.uniform_batches = true;
	write_mixed(&b, keys, other);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(b.env->fakes[0]->batches->len, 4);
	assert_false(b.env->fakes[0]->mixed_scopes);
	assert_false(b.env->fakes[0]->mixed_sizes);
	for (size_t i = 0; i < 8; i++)
		kvc_object_key_unref(keys[i]);
	bench_free(&b);
}

static void
test_a_failed_batch_is_tried_again_key_by_key(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 4);
	b.env->fakes[0]->fail_stores = 1;
	for (size_t i = 0; i < 4; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	drain(&b);
	GArray *batches = b.env->fakes[0]->batches;
	assert_int_equal(batches->len, 5);
	assert_int_equal(g_array_index(batches, guint, 0), 4);
	for (guint i = 1; i < 5; i++)
		assert_int_equal(g_array_index(batches, guint, i), 1);
	assert_int_equal(env_stat(b.env, stores_completed), 4);
	keys_free(keys, 4);
	bench_free(&b);
}

/* ---- Bytes in flight ----------------------------------------------------------------------- */

/* Many small objects reach the bound by their least charge. */
static void
test_bytes_in_flight_are_bounded(void **state)
{
	size_t bound = 512, n = bound + 50;
	Bench b = bench_new(1, CAPACITY, &everywhere);
	assert_int_equal(b.store->max_bytes_in_flight, KVC_STORE_BYTES_IN_FLIGHT);
	b.store->max_bytes_in_flight = bound * KVC_STORE_MIN_CHARGE_BYTES;
	KvcObjectKey **keys = keys_new(b.env, n);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed flushed = {0};
	fake->hold[FAKE_STORE] = true;
	for (size_t i = 0; i < n; i++)
		env_write(b.env, keys[i], 1, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	wait_until(fake_count_held(fake, FAKE_STORE) == bound / 16);
	nap(20);
	assert_int_equal(env_stat(b.env, stores), bound);

	/* Store first: what is flushed goes before what was committed before it. */
	kvc_store_controller_flush(b.store, keys[n - 1], on_flushed, &flushed);
	nap(20);
	assert_int_equal(fake_count(fake, "store", keys[n - 1]), 0);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "store", keys[n - 1]) == 1);
	assert_int_equal(fake_position(fake, "store", keys[n - 1]), bound);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(env_stat(b.env, stores_completed), n);
	keys_free(keys, n);
	bench_free(&b);
}

/* Sizes of the objects that FAKE was given and has not answered for, and how many they are. */
static uint64_t
held_bytes(FakeAdapter *fake, unsigned *n)
{
	uint64_t bytes = 0;
	*n = 0;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->tasks->len; i++) {
		const FakeTask *task = fake->tasks->pdata[i];
		for (guint k = 0; task->kind == FAKE_STORE && k < task->keys->len; k++) {
			bytes += task->objects[k].bytes;
			++*n;
		}
	}
	pthread_mutex_unlock(&fake->lock);
	return bytes;
}

#define LANE_BYTES (UINT64_C(600) << 10) /* what one adapter may have in flight here */

static uint64_t most_bytes[2];	   /* Owned by the controller thread: per adapter at a time */
static unsigned n_larger, n_mixed; /* the same: larger objects alone, and not alone */
static FakeAdapter **measured;

static KvcL2TaskId
submit_measured(KvcL2Adapter *adapter,
		KvcObjectKey *const *keys,
		const KvcMemoryObj *objects,
		size_t n)
{
	KvcL2TaskId id = fake_submit_store(adapter, keys, objects, n);
	unsigned held;
	uint64_t bytes = held_bytes((FakeAdapter *)adapter, &held);
	unsigned a = &measured[0]->base == adapter ? 0 : 1;
	if (bytes <= LANE_BYTES)
		most_bytes[a] = MAX(most_bytes[a], bytes);
	else if (held == 1)
		n_larger++;
	else
		n_mixed++;
	return id;
}

/* Of random sizes, answered in a random order: never more than the shares of both adapters. */
static void
test_bytes_in_flight_are_bounded_over_all_adapters(void **state)
{
	enum { N = 80 };
	Bench b = bench_new(2, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	g_autoptr(GRand) random = g_rand_new_with_seed(4);
	b.store->max_bytes_in_flight = 2 * LANE_BYTES;
	measured = b.env->fakes;
	for (unsigned a = 0; a < 2; a++) {
		b.env->fakes[a]->ops.submit_store_task = submit_measured;
		b.env->fakes[a]->hold[FAKE_STORE] = true;
	}
	for (unsigned i = 0; i < N; i++) /* each 16th is larger than the bound */
		env_write(b.env, keys[i],
			  i % 16 == 8 ? LANE_BYTES + 4096
				      : (gsize)g_rand_int_range(random, 65536, 200000),
			  0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	while (kvc_store_controller_drain(b.store, KVC_MSEC_NS) < 0) {
		FakeAdapter *fake = b.env->fakes[g_rand_boolean(random)];
		unsigned held = fake_count_held(fake, FAKE_STORE);
		if (held > 0)
			fake_release_nth(fake, FAKE_STORE,
					 (unsigned)g_rand_int_range(random, 0, (gint)held));
	}
	assert_int_equal(env_stat(b.env, stores_completed), 2 * N);
	assert_int_equal(n_larger, 2 * N / 16);
	assert_int_equal(n_mixed, 0);
	/* And it is made use of. */
	assert_true(most_bytes[0] > LANE_BYTES / 2 && most_bytes[1] > LANE_BYTES / 2);
	assert_int_equal(b.store->lanes[0].bytes_in_flight, 0);
	assert_int_equal(b.store->lanes[1].bytes_in_flight, 0);
	keys_free(keys, N);
	bench_free(&b);
}

static void
test_an_object_larger_than_the_bound_goes_alone(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 3);
	FakeAdapter *fake = b.env->fakes[0];
	b.store->max_bytes_in_flight = LANE_BYTES;
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, keys[0], 100, 0, KVC_FINISH_FIRST_WINS);
	env_write(b.env, keys[1], LANE_BYTES + 1, 0, KVC_FINISH_FIRST_WINS);
	env_write(b.env, keys[2], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	for (unsigned i = 0; i < 3; i++) {
		wait_until(fake_count(fake, "store", keys[i]) == 1);
		nap(20);
		assert_int_equal(fake_count_held(fake, FAKE_STORE), 1);
		fake_release_nth(fake, FAKE_STORE, 0);
	}
	drain(&b);
	keys_free(keys, 3);
	bench_free(&b);
}

static void
test_a_hanging_adapter_does_not_hold_the_other(void **state)
{
	enum { N = 50 };
	Bench b = bench_new(2, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	b.store->max_bytes_in_flight = 2 * LANE_BYTES;
	b.env->fakes[0]->hold[FAKE_STORE] = true;
	for (unsigned i = 0; i < N; i++)
		env_write(b.env, keys[i], 100000, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	wait_until(env_stat(b.env, stores_completed) == N);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | 2);
	assert_int_equal(env_counts(b.env).dirty_objects, N);
	fake_release(b.env->fakes[0], FAKE_STORE);
	drain(&b);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | 3);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	keys_free(keys, N);
	bench_free(&b);
}

static void
test_a_failing_adapter_does_not_hold_the_other(void **state)
{
	enum { N = 50 };
	Bench b = bench_new(2, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	b.store->max_bytes_in_flight = 2 * LANE_BYTES;
	b.env->fakes[0]->fail_stores = INT_MAX;
	for (unsigned i = 0; i < N; i++)
		env_write(b.env, keys[i], 100000, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	wait_until(env_stat(b.env, stores_completed) == N);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_failed), N);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(fake_count(b.env->fakes[1], "store", keys[i]), 1);
	keys_free(keys, N);
	bench_free(&b);
}

/* Among them in the order of the flushes, before everything else. */
static void
test_store_first_is_in_order(void **state)
{
	enum { N = 8 };
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed flushed[2] = {0};
	b.store->max_bytes_in_flight = 1; /* one after the other */
	fake->hold[FAKE_STORE] = true;
	for (unsigned i = 0; i < N; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	kvc_store_controller_flush(b.store, keys[6], on_flushed, &flushed[0]);
	kvc_store_controller_flush(b.store, keys[3], on_flushed, &flushed[1]);
	assert_int_equal(kvc_store_controller_drain(b.store, 20 * KVC_MSEC_NS), -ETIMEDOUT);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	static const int position[N] = {0, 3, 4, 2, 5, 6, 1, 7};
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(fake_position(fake, "store", keys[i]), position[i]);
	assert_int_equal(calls(&flushed[0]), 1);
	assert_int_equal(calls(&flushed[1]), 1);
	keys_free(keys, N);
	bench_free(&b);
}

/* ---- The end of a task ---------------------------------------------------------------------- */

static void
test_a_refused_task_is_a_failed_one(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->refuse[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 1);
	bench_free(&b);
}

static size_t
pop_strangers(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	static int told; /* Atomic */
	if (__atomic_exchange_n(&told, 1, __ATOMIC_RELAXED) == 0) {
		results[0] = (KvcL2StoreResult){4711, 1};
		return 1;
	}
	return fake_pop_stores(adapter, results, max);
}

static void
test_an_unknown_completion_is_ignored(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->ops.pop_completed_store_tasks = pop_strangers;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	nap(20);
	kvc_eventfd_signal(b.env->fakes[0]->fds[FAKE_STORE]);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_completed), 1);
	assert_int_equal(env_stat(b.env, stores_unknown), 1);
	bench_free(&b);
}

static unsigned n_pops[2]; /* Atomic */

static size_t
pop_counted(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	unsigned a = &measured[0]->base == adapter ? 0 : 1;
	__atomic_fetch_add(&n_pops[a], 1, __ATOMIC_RELAXED);
	return fake_pop_stores(adapter, results, max);
}

static void
test_only_the_adapter_whose_fd_fired_is_drained(void **state)
{
	Bench b = bench_started(2, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 5);
	measured = b.env->fakes;
	for (unsigned a = 0; a < 2; a++)
		b.env->fakes[a]->ops.pop_completed_store_tasks = pop_counted;
	b.env->fakes[1]->hold[FAKE_STORE] = true;
	for (unsigned i = 0; i < 5; i++) {
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
		wait_until(env_tiers(b.env, keys[i]) & 1);
	}
	assert_true(__atomic_load_n(&n_pops[0], __ATOMIC_RELAXED) >= 5);
	assert_int_equal(__atomic_load_n(&n_pops[1], __ATOMIC_RELAXED), 0);
	fake_release(b.env->fakes[1], FAKE_STORE);
	drain(&b);
	assert_true(__atomic_load_n(&n_pops[1], __ATOMIC_RELAXED) > 0);
	keys_free(keys, 5);
	bench_free(&b);
}

/* With the key, the adapter and the reason; not more than ten a second. */
static void
test_what_is_given_up_is_in_the_log(void **state)
{
	enum { N = 30 };
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	b.env->fakes[0]->fail_stores = INT_MAX;
	for (unsigned i = 0; i < N; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	pthread_mutex_lock(&logged.lock);
	g_string_truncate(logged.text, 0);
	pthread_mutex_unlock(&logged.lock);
	int64_t begin = kvc_now_ns();
	kvc_store_controller_start(b.store);
	drain(&b);
	int64_t seconds = (kvc_now_ns() - begin) / KVC_SEC_NS;
	assert_int_equal(env_stat(b.env, stores_failed), N);
	g_autofree char *name = kvc_object_key_to_string(keys[0]);
	g_autofree char *who = kvc_controller_context_adapter_name(&b.env->context, 0);
	g_autofree char *line =
		g_strdup_printf("%s could not store %s: %s\n", who, name, g_strerror(EIO));
	pthread_mutex_lock(&logged.lock);
	g_auto(GStrv) lines = g_strsplit(logged.text->str, "\n", -1);
	assert_non_null(strstr(logged.text->str, line));
	assert_in_range(g_strv_length(lines) - 1, 10, 10 * (seconds + 1));
	pthread_mutex_unlock(&logged.lock);
	keys_free(keys, N);
	bench_free(&b);
}

/* ---- What cannot be reached ---------------------------------------------------------------- */

/* Odd keys to the first adapter, even ones to the second. */
static uint32_t
store_by_number(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return g_ascii_xdigit_value((char)key->chunk_hash[key->chunk_hash_len - 1]) & 1 ? 1 : 2;
}

static const KvcStorePolicy by_number = {.select_store_targets = store_by_number};

static void
bring_back(FakeAdapter *dead)
{
	pthread_mutex_lock(&dead->lock);
	dead->fail_stores = 0;
	pthread_mutex_unlock(&dead->lock);
}

/* Another adapter that takes something does not say that this one will. */
static void
test_what_was_given_up_waits_for_the_adapter_that_failed_it(void **state)
{
	enum { N = 40 };
	Bench b = bench_new(2, CAPACITY, &by_number);
	KvcObjectKey **keys = keys_new(b.env, 2 * N);
	FakeAdapter *dead = b.env->fakes[0];
	KvcBreaker *breaker = kvc_breaker_new(1, 1); /* a probe goes at once */
	b.env->slots[0].breaker = breaker;
	dead->store_error = ECONNREFUSED;
	dead->fail_stores = INT_MAX;
	for (unsigned i = 1; i < 2 * N; i += 2)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_failed), N);
	for (unsigned i = 0; i < 2 * N; i += 2) {
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
		drain(&b);
	}
	assert_int_equal(env_stat(b.env, stores_completed), N);
	assert_int_equal(env_stat(b.env, stores_failed), N);
	assert_int_equal(env_counts(b.env).unreplicated_objects, N);
	bring_back(dead);
	kvc_object_key_unref(keys[0]);
	keys[0] = key_new(b.env, 2 * N + 1);
	env_write(b.env, keys[0], 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_counts(b.env).unreplicated_objects == 0);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_failed), N);
	for (unsigned i = 1; i < 2 * N; i += 2)
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | 1);
	keys_free(keys, 2 * N);
	bench_free(&b);
	kvc_breaker_free(breaker);
}

/* Nobody writes, deletes or looks up anything any more, and the adapter comes back. */
static void
test_what_was_given_up_is_stored_when_the_adapter_is_back(void **state)
{
	enum { N = 3 };
	Bench b = bench_started(1, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	FakeAdapter *dead = b.env->fakes[0];
	KvcBreaker *breaker = kvc_breaker_new(1, 1);
	b.env->slots[0].breaker = breaker;
	dead->store_error = ECONNREFUSED;
	dead->fail_stores = INT_MAX;
	for (unsigned i = 0; i < N; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_counts(b.env).unreplicated_objects, N);
	uint64_t n_put_off = env_stat(b.env, stores_put_off);
	wait_until(env_stat(b.env, stores_put_off) > n_put_off + 1);
	assert_int_equal(env_stat(b.env, stores_failed), N); /* not counted again */
	bring_back(dead);
	wait_until(env_counts(b.env).unreplicated_objects == 0);
	drain(&b);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(env_tiers(b.env, keys[i]), KVC_TIER_L1 | 1);
	keys_free(keys, N);
	bench_free(&b);
	kvc_breaker_free(breaker);
}

/* Not the adapter is gone, but something is wrong with this object. */
static void
test_a_connection_that_only_one_object_breaks_is_a_failed_try(void **state)
{
	enum { N = 500 };
	Bench b = bench_started(1, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, N);
	FakeAdapter *fake = b.env->fakes[0];
	KvcBreaker *breaker = kvc_breaker_new(KVC_MSEC_NS, 60 * KVC_SEC_NS);
	b.env->slots[0].breaker = breaker;
	fake->bad_store = keys[0];
	fake->store_error = ECONNRESET;
	env_write(b.env, keys[0], 100, 0, KVC_FINISH_FIRST_WINS);
	for (unsigned i = 1; i < N && env_stat(b.env, stores_failed) == 0; i++) {
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
		nap(20);
	}
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	drain(&b);
	assert_int_equal(env_tiers(b.env, keys[0]), KVC_TIER_L1);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 1);
	keys_free(keys, N);
	bench_free(&b);
	kvc_breaker_free(breaker);
}

/* As long as nothing gets through at all, no try is counted. */
static void
test_an_outage_is_no_failed_try(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	KvcBreaker *breaker = kvc_breaker_new(KVC_MSEC_NS, 60 * KVC_SEC_NS);
	b.env->slots[0].breaker = breaker;
	b.env->fakes[0]->store_error = ECONNREFUSED;
	b.env->fakes[0]->fail_stores = KVC_STORE_TRIES + 1;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_put_off), KVC_STORE_TRIES + 1);
	assert_int_equal(env_stat(b.env, stores_failed), 0);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	bench_free(&b);
	kvc_breaker_free(breaker);
}

/* bench_free() adds them up. */
static void
test_a_store_that_is_not_submitted_is_counted(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	KvcObjectKey **keys = keys_new(b.env, 3);
	KvcBreaker *breaker = kvc_breaker_new(400 * KVC_MSEC_NS, 60 * KVC_SEC_NS);
	b.env->slots[0].breaker = breaker;
	for (unsigned i = 0; i < KVC_BREAKER_FAILURES; i++)
		kvc_breaker_note(breaker, -ECONNREFUSED);
	for (unsigned i = 0; i < 3; i++)
		env_write(b.env, keys[i], 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_completed), 3);
	assert_int_equal(env_stat(b.env, stores_unreachable), env_stat(b.env, stores_put_off));
	assert_true(env_stat(b.env, stores_unreachable) > 0);
	keys_free(keys, 3);
	bench_free(&b);
	kvc_breaker_free(breaker);
}

static void
test_a_store_that_fails_on_an_adapter_that_goes_is_counted(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	assert_int_equal(kvc_store_controller_set_adapter(b.store, 0, false, 1), -ETIMEDOUT);
	/* Handled after that. */
	Flushed flushed = {0};
	g_autoptr(KvcObjectKey) other = key_new(b.env, 2);
	kvc_store_controller_flush(b.store, other, on_flushed, &flushed);
	wait_until(calls(&flushed) == 1);
	fake->fail_stores = 1;
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(env_stat(b.env, stores_outdated), 1);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_the_object_is_read_locked_while_it_is_stored),
		cmocka_unit_test(test_a_batch_has_at_most_16_keys),
		cmocka_unit_test(test_a_batch_has_at_most_64_mib),
		cmocka_unit_test(test_invariant_2_task_ids_per_adapter),
		cmocka_unit_test(test_difference_5_a_batch_may_mix_sizes_but_not_scopes),
		cmocka_unit_test(test_difference_5_uniform_batches_have_one_size),
		cmocka_unit_test(test_a_failed_batch_is_tried_again_key_by_key),
		cmocka_unit_test(test_bytes_in_flight_are_bounded),
		cmocka_unit_test(test_bytes_in_flight_are_bounded_over_all_adapters),
		cmocka_unit_test(test_an_object_larger_than_the_bound_goes_alone),
		cmocka_unit_test(test_a_hanging_adapter_does_not_hold_the_other),
		cmocka_unit_test(test_a_failing_adapter_does_not_hold_the_other),
		cmocka_unit_test(test_store_first_is_in_order),
		cmocka_unit_test(test_a_refused_task_is_a_failed_one),
		cmocka_unit_test(test_an_unknown_completion_is_ignored),
		cmocka_unit_test(test_only_the_adapter_whose_fd_fired_is_drained),
		cmocka_unit_test(test_what_is_given_up_is_in_the_log),
		cmocka_unit_test(test_what_was_given_up_waits_for_the_adapter_that_failed_it),
		cmocka_unit_test(test_what_was_given_up_is_stored_when_the_adapter_is_back),
		cmocka_unit_test(test_a_connection_that_only_one_object_breaks_is_a_failed_try),
		cmocka_unit_test(test_an_outage_is_no_failed_try),
		cmocka_unit_test(test_a_store_that_is_not_submitted_is_counted),
		cmocka_unit_test(test_a_store_that_fails_on_an_adapter_that_goes_is_counted),
	};
	capture_log();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
