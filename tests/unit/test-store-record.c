/* SPDX-License-Identifier: Apache-2.0 */

/* The order of what happens to one key: commits, deletions, flushes. */

#include "tests/unit/gated-policy.h"
#include "tests/unit/store-fixture.h"

/* ---- Order of one key --------------------------------------------------------------------------
 */

static void
test_a_deletion_waits_for_the_store_in_flight(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	delete_key(&b, key, 1);
	nap(20);
	assert_int_equal(fake_count(fake, "delete", key), 0);
	assert_true(is_hidden(&b, key, 1));
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(fake_count(fake, "delete", key), 1);
	assert_false(fake_has(fake, key, NULL));
	assert_false(is_hidden(&b, key, 1));
	assert_int_equal(env_tiers(b.env, key), 0);
	bench_free(&b);
}

static void
test_a_deletion_drops_the_queued_store(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	delete_key(&b, key, 1);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 0);
	assert_int_equal(fake_count(b.env->fakes[0], "delete", key), 1);
	assert_int_equal(env_stat(b.env, deletes_completed), 1);
	bench_free(&b);
}

static void
test_a_deletion_ends_the_retries_of_the_store(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->fail_stores = 3;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_stat(b.env, stores_retried) == 1);
	delete_key(&b, key, 1);
	drain(&b);
	nap(150);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 1);
	assert_int_equal(env_stat(b.env, stores_failed), 0);
	bench_free(&b);
}

static void
test_a_commit_after_a_deletion_is_stored_after_it(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	g_autoptr(GBytes) second = bytes_of(key, 200, 2);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 1, KVC_FINISH_FIRST_WINS);
	drain(&b);
	fake->hold_deletes = true;
	delete_key(&b, key, 1);
	wait_until(fake_count(fake, "delete", key) == 1);
	env_write(b.env, key, 200, 2, KVC_FINISH_FIRST_WINS);
	nap(20);
	assert_int_equal(fake_count(fake, "store", key), 1);
	fake_release_deletes(fake);
	drain(&b);
	assert_int_equal(fake_count(fake, "store", key), 2);
	assert_true(fake_has(fake, key, second));
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	bench_free(&b);
}

/* L1 had: delete, commit. The queue has: commit, delete. */
static void
test_a_commit_that_is_told_before_the_deletion_survives_it(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	g_autoptr(GBytes) second = bytes_of(key, 100, 2);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 1, KVC_FINISH_FIRST_WINS);
	drain(&b);
	fake->hold[FAKE_STORE] = true;
	kvc_key_index_hide(b.env->context.index, key, 1, 0);
	kvc_l1_manager_delete(b.env->context.l1, key, true);
	env_write(b.env, key, 100, 2, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	fake->hold_deletes = true;
	kvc_store_controller_submit_delete(b.store, key, 1, 0);
	nap(10);
	fake_release(fake, FAKE_STORE);
	wait_until(fake_count(fake, "delete", key) == 1);
	/* What was stored is about to be deleted: L1 has the only copy. */
	assert_int_equal(env_counts(b.env).dirty_objects, 1);
	fake_release_deletes(fake);
	drain(&b);
	assert_int_equal(fake_count(fake, "delete", key), 1);
	assert_true(fake_position(fake, "store", key) > fake_position(fake, "delete", key));
	assert_true(fake_has(fake, key, second));
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	bench_free(&b);
}

static void
test_the_newest_object_of_a_key_is_stored_after_the_one_in_flight(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	g_autoptr(GBytes) third = bytes_of(key, 300, 3);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed flushed = {0};
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	env_write(b.env, key, 200, 2, KVC_FINISH_REPLACE);
	env_write(b.env, key, 300, 3, KVC_FINISH_REPLACE);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	nap(20);
	assert_int_equal(fake_count(fake, "store", key), 1);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "store", key) == 2);
	nap(10);
	assert_int_equal(calls(&flushed), 0);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(fake_count(fake, "store", key), 2);
	assert_true(fake_has(fake, key, third));
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static void
test_a_flush_of_a_failing_store_waits_for_the_newer_object(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	g_autoptr(GBytes) second = bytes_of(key, 200, 2);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed flushed = {0};
	fake->hold[FAKE_STORE] = true;
	fake->fail_stores = 1;
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	nap(10);
	env_write(b.env, key, 200, 2, KVC_FINISH_REPLACE);
	nap(10);
	fake_release_nth(fake, FAKE_STORE, 0);
	wait_until(fake_count(fake, "store", key) == 2);
	nap(10);
	assert_int_equal(calls(&flushed), 0);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_true(fake_has(fake, key, second));
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static void
test_an_object_that_went_before_its_store_is_skipped(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_l1_manager_delete(b.env->context.l1, key, true);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 0);
	bench_free(&b);
}

/* ---- Deletions ---------------------------------------------------------------------------------
 */

static void
test_deletions_are_retried_until_they_are_confirmed(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	fake->fail_deletes = 3;
	int64_t begin = kvc_now_ns();
	delete_key(&b, key, 1);
	wait_until(env_stat(b.env, deletes_retried) == 1);
	assert_true(is_hidden(&b, key, 1));
	drain(&b);
	/* 50, 100 and 200 ms. */
	assert_true(kvc_now_ns() - begin >= 350 * KVC_MSEC_NS);
	assert_int_equal(fake_count(fake, "delete", key), 4);
	assert_int_equal(env_stat(b.env, deletes), 1);
	assert_int_equal(env_stat(b.env, deletes_retried), 3);
	assert_int_equal(env_stat(b.env, deletes_completed), 1);
	assert_false(fake_has(fake, key, NULL));
	assert_false(is_hidden(&b, key, 1));
	bench_free(&b);
}

static void
test_a_locked_key_is_deleted_when_its_lock_is_gone(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	pthread_mutex_lock(&fake->lock);
	fake_object(fake, key)->locks = fake->n_locks = 1;
	pthread_mutex_unlock(&fake->lock);
	delete_key(&b, key, 1);
	wait_until(env_stat(b.env, deletes_retried) >= 1);
	assert_true(fake_has(fake, key, NULL));
	fake_unlock(&fake->base, (KvcObjectKey *const[]){key}, 1);
	drain(&b);
	assert_false(fake_has(fake, key, NULL));
	bench_free(&b);
}

static void
test_what_an_adapter_cannot_delete_stays_hidden(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->ops.delete_keys = NULL;
	kvc_store_controller_start(b.store);
	delete_key(&b, key, 1);
	drain(&b);
	assert_true(is_hidden(&b, key, 1));
	assert_int_equal(env_stat(b.env, deletes_unsupported), 1);
	assert_int_equal(env_stat(b.env, deletes_completed), 0);
	/* Until it is written anew. */
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_false(is_hidden(&b, key, 1));
	bench_free(&b);
}

/* A page that was read before the deletion is added after it. */
static void
test_what_is_deleted_during_a_listing_stays_hidden(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->slots[0].is_listing = true;
	delete_key(&b, key, 1);
	drain(&b);
	assert_int_equal(env_stat(b.env, deletes_completed), 1);
	assert_true(is_hidden(&b, key, 1));
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_false(is_hidden(&b, key, 1));
	bench_free(&b);
}

/* The second deletion is decided, and its message not sent yet, when the first one is confirmed. */
static void
test_a_confirmation_is_of_its_own_deletion(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->hold_deletes = true;
	delete_key(&b, key, 1);
	kvc_key_index_hide(b.env->context.index, key, 1, ++b.last_delete_id);
	fake_release_deletes(b.env->fakes[0]);
	drain(&b);
	assert_int_equal(env_stat(b.env, deletes_completed), 1);
	assert_true(is_hidden(&b, key, 1));
	kvc_store_controller_submit_delete(b.store, key, 1, b.last_delete_id);
	drain(&b);
	assert_false(is_hidden(&b, key, 1));
	bench_free(&b);
}

/* Decided before the commit, told after its store. */
static void
test_a_deletion_that_is_told_late_takes_no_newer_object(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_REPLACE);
	drain(&b);
	kvc_key_index_hide(b.env->context.index, key, 1, ++b.last_delete_id);
	kvc_l1_manager_delete(b.env->context.l1, key, true);
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	drain(&b);
	kvc_store_controller_submit_delete(b.store, key, 1, b.last_delete_id);
	drain(&b);
	g_autoptr(GBytes) data = bytes_of(key, 100, 1);
	assert_true(fake_has(b.env->fakes[0], key, data));
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	/* Nor what L1 has no more. */
	assert_int_equal(kvc_l1_manager_evict(b.env->context.l1, key), KVC_L1_SUCCESS);
	kvc_store_controller_submit_delete(b.store, key, 1, b.last_delete_id);
	drain(&b);
	assert_true(fake_has(b.env->fakes[0], key, data));
	assert_int_equal(env_tiers(b.env, key), 1);
	bench_free(&b);
}

/*
 * What is resident may be taken before its commit is told. The commit of the version before,
 * which is told then, does not make it clean.
 */
static void
test_what_was_taken_early_is_dirty_until_it_is_stored(void **state)
{
	Bench b = bench_new(1, CAPACITY, &gated_policy);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1), other = key_new(b.env, 2);
	kvc_store_controller_start(b.store);
	env_write(b.env, key, 100, 0, KVC_FINISH_REPLACE);
	drain(&b);
	fake->hold[FAKE_STORE] = true;
	gate_close();
	env_write(b.env, other, 100, 0, KVC_FINISH_REPLACE);
	gate_wait();
	kvc_store_controller_submit_store(b.store, key);
	env_write(b.env, key, 100, 1, KVC_FINISH_REPLACE);
	env_write(b.env, key, 100, 2, KVC_FINISH_REPLACE);
	gate_open();
	wait_until(fake_count_held(fake, FAKE_STORE) == 2);
	assert_int_equal(env_counts(b.env).dirty_objects, 2);
	assert_int_equal(kvc_l1_manager_evict(b.env->context.l1, key), KVC_L1_KEY_IS_LOCKED);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	g_autoptr(GBytes) data = bytes_of(key, 100, 2);
	assert_true(fake_has(fake, key, data));
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	bench_free(&b);
}

static void
test_a_deletion_does_not_wait_for_another_adapter(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	b.env->fakes[0]->hold_deletes = true;
	delete_key(&b, key, 3);
	wait_until(!is_hidden(&b, key, 2));
	assert_true(is_hidden(&b, key, 1));
	assert_false(fake_has(b.env->fakes[1], key, NULL));
	fake_release_deletes(b.env->fakes[0]);
	drain(&b);
	bench_free(&b);
}

/* Else everything deleted and written again while a tier is dead would fill L1 for ever. */
static void
test_a_dead_deletion_does_not_keep_the_next_object_dirty(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *dead = b.env->fakes[0];
	Flushed flushed = {0};
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	dead->fail_deletes = 1000;
	delete_key(&b, key, 3);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	wait_until(env_counts(b.env).dirty_objects == 0);
	assert_int_equal(env_stat(b.env, stores_blocked), 1);
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 2);
	assert_int_equal(calls(&flushed), 0); /* the deletion was submitted before, too */
	bench_free(&b);
	assert_int_equal(flushed.error, -ESHUTDOWN);
}

static void
test_what_a_deletion_held_up_is_stored_once_it_ended(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	fake->fail_deletes = 9; /* two more than a store waits for */
	delete_key(&b, key, 1);
	env_write(b.env, key, 200, 0, KVC_FINISH_FIRST_WINS);
	wait_until(env_counts(b.env).unreplicated_objects == 1);
	assert_int_equal(env_stat(b.env, stores_blocked), 1);
	drain(&b);
	assert_int_equal(env_counts(b.env).unreplicated_objects, 0);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_true(fake_has(fake, key, NULL));
	assert_int_equal(env_stat(b.env, stores_blocked), 1);
	bench_free(&b);
}

/* ---- Flush and drain ---------------------------------------------------------------------------
 */

static void
test_a_flush_of_an_idle_key_is_answered_at_once(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {.error = 1};
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	wait_until(calls(&flushed) == 1);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static void
test_a_flush_waits_for_the_deletion_before_it(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	Flushed flushed = {.error = 1};
	b.env->fakes[0]->hold_deletes = true;
	delete_key(&b, key, 1);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	nap(20);
	assert_int_equal(calls(&flushed), 0);
	fake_release_deletes(b.env->fakes[0]);
	drain(&b);
	assert_int_equal(calls(&flushed), 1);
	assert_int_equal(flushed.error, 0);
	bench_free(&b);
}

static void
test_drain_waits_and_times_out(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	assert_int_equal(kvc_store_controller_drain(b.store, 30 * KVC_MSEC_NS), -ETIMEDOUT);
	fake_release(b.env->fakes[0], FAKE_STORE);
	assert_int_equal(kvc_store_controller_drain(b.store, INT64_MAX), 0);
	bench_free(&b);
}

/* ---- Random orders -------------------------------------------------------------------------- */

#define RANDOM_KEYS 6
#define RANDOM_STEPS 1500

/* Ends what two adapters are busy with after a while, in any order, now and then with an error. */
typedef struct Jitter {
	Env *env;
	unsigned seed;
	bool is_stopping; /* Atomic */
} Jitter;

static void
jitter_step(FakeAdapter *fake, GRand *random)
{
	unsigned held = fake_count_held(fake, FAKE_STORE);
	pthread_mutex_lock(&fake->lock);
	fake->fail_stores = g_rand_int_range(random, 0, 5) == 0;
	fake->fail_deletes = g_rand_int_range(random, 0, 5) == 0;
	fake->hold_deletes = g_rand_int_range(random, 0, 3) > 0;
	if (!fake->hold_deletes)
		pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
	if (held > 0)
		fake_release_nth(fake, FAKE_STORE,
				 (unsigned)g_rand_int_range(random, 0, (gint)held));
}

static void *
jitter_thread(void *data)
{
	Jitter *j = data;
	g_autoptr(GRand) random = g_rand_new_with_seed(j->seed);
	while (!__atomic_load_n(&j->is_stopping, __ATOMIC_ACQUIRE)) {
		jitter_step(j->env->fakes[g_rand_boolean(random)], random);
		g_usleep((gulong)g_rand_int_range(random, 0, 300));
	}
	return NULL;
}

static void
assert_no_other_version(Bench *b, KvcObjectKey *key, size_t bytes, unsigned version)
{
	g_autoptr(GBytes) data = bytes_of(key, bytes, version);
	uint32_t tiers = env_tiers(b->env, key);
	assert_int_equal((tiers & KVC_TIER_L1) != 0, version != 0);
	for (unsigned a = 0; a < 2; a++)
		if (tiers & (1u << a))
			assert_true(version && fake_has(b->env->fakes[a], key, data));
}

static void
assert_is_version(Bench *b, KvcObjectKey *key, size_t bytes, unsigned version)
{
	g_autoptr(GBytes) data = version ? bytes_of(key, bytes, version) : NULL;
	assert_int_equal(env_tiers(b->env, key), version ? KVC_TIER_L1 | 3 : 0);
	for (unsigned a = 0; a < 2; a++) {
		if (version)
			assert_true(fake_has(b->env->fakes[a], key, data));
		else
			assert_false(fake_has(b->env->fakes[a], key, NULL));
	}
}

/*
 * No store and deletion of one key overlap (env_free() looks at what the adapters saw), and the
 * last one told is the one that counts, on adapters that are slow and fail apart from each other.
 */
static void
test_a_deletion_and_a_store_never_overtake_each_other(void **state)
{
	Bench b = bench_started(2, &everywhere);
	KvcObjectKey *keys[RANDOM_KEYS];
	unsigned versions[RANDOM_KEYS] = {0}; /* the model; 0: deleted */
	Flushed flushed = {0};
	int flushes = 0;
	pthread_t thread;
	Jitter jitter = {.env = b.env, .seed = (unsigned)kvc_now_ns()};
	g_autoptr(GRand) random = g_rand_new_with_seed(jitter.seed);
	print_message("seed %u\n", jitter.seed);
	for (unsigned i = 0; i < RANDOM_KEYS; i++)
		keys[i] = plain_key_new(i);
	for (unsigned a = 0; a < 2; a++)
		b.env->fakes[a]->hold[FAKE_STORE] = true;
	pthread_create(&thread, NULL, jitter_thread, &jitter);
	for (unsigned step = 1; step <= RANDOM_STEPS; step++) {
		unsigned i = (unsigned)g_rand_int_range(random, 0, RANDOM_KEYS);
		int what = g_rand_int_range(random, 0, 6);
		if (what < 3) {
			env_write(b.env, keys[i], 50, step, KVC_FINISH_REPLACE);
			versions[i] = step;
		} else if (what < 5) {
			delete_key(&b, keys[i], 3);
			versions[i] = 0;
		} else {
			kvc_store_controller_flush(b.store, keys[i], on_flushed, &flushed);
			flushes++;
		}
		if (g_rand_int_range(random, 0, 4) == 0)
			g_usleep((gulong)g_rand_int_range(random, 0, 2000));
	}
	__atomic_store_n(&jitter.is_stopping, true, __ATOMIC_RELEASE);
	pthread_join(thread, NULL);
	for (unsigned a = 0; a < 2; a++) {
		pthread_mutex_lock(&b.env->fakes[a]->lock);
		b.env->fakes[a]->fail_stores = b.env->fakes[a]->fail_deletes = 0;
		pthread_mutex_unlock(&b.env->fakes[a]->lock);
		fake_release(b.env->fakes[a], FAKE_STORE);
		fake_release_deletes(b.env->fakes[a]);
	}
	drain(&b);
	/* What an adapter gave up it does not have, as far as anybody is told. */
	for (unsigned i = 0; i < RANDOM_KEYS; i++) {
		assert_no_other_version(&b, keys[i], 50, versions[i]);
		if (versions[i] && env_tiers(b.env, keys[i]) != (KVC_TIER_L1 | 3))
			env_write(b.env, keys[i], 50, versions[i], KVC_FINISH_REPLACE);
	}
	drain(&b);
	for (unsigned i = 0; i < RANDOM_KEYS; i++)
		assert_is_version(&b, keys[i], 50, versions[i]);
	assert_int_equal(calls(&flushed), flushes);
	assert_int_equal(env_counts(b.env).dirty_objects, 0);
	assert_int_equal(env_counts(b.env).dirty_bytes, 0);
	assert_int_equal(g_hash_table_size(b.store->records), 0);
	for (unsigned i = 0; i < RANDOM_KEYS; i++)
		kvc_object_key_unref(keys[i]);
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_deletion_waits_for_the_store_in_flight),
		cmocka_unit_test(test_a_deletion_drops_the_queued_store),
		cmocka_unit_test(test_a_deletion_ends_the_retries_of_the_store),
		cmocka_unit_test(test_a_commit_after_a_deletion_is_stored_after_it),
		cmocka_unit_test(test_a_commit_that_is_told_before_the_deletion_survives_it),
		cmocka_unit_test(test_the_newest_object_of_a_key_is_stored_after_the_one_in_flight),
		cmocka_unit_test(test_a_flush_of_a_failing_store_waits_for_the_newer_object),
		cmocka_unit_test(test_an_object_that_went_before_its_store_is_skipped),
		cmocka_unit_test(test_deletions_are_retried_until_they_are_confirmed),
		cmocka_unit_test(test_a_locked_key_is_deleted_when_its_lock_is_gone),
		cmocka_unit_test(test_what_an_adapter_cannot_delete_stays_hidden),
		cmocka_unit_test(test_what_is_deleted_during_a_listing_stays_hidden),
		cmocka_unit_test(test_a_confirmation_is_of_its_own_deletion),
		cmocka_unit_test(test_a_deletion_that_is_told_late_takes_no_newer_object),
		cmocka_unit_test(test_what_was_taken_early_is_dirty_until_it_is_stored),
		cmocka_unit_test(test_a_deletion_does_not_wait_for_another_adapter),
		cmocka_unit_test(test_a_dead_deletion_does_not_keep_the_next_object_dirty),
		cmocka_unit_test(test_what_a_deletion_held_up_is_stored_once_it_ended),
		cmocka_unit_test(test_a_flush_of_an_idle_key_is_answered_at_once),
		cmocka_unit_test(test_a_flush_waits_for_the_deletion_before_it),
		cmocka_unit_test(test_drain_waits_and_times_out),
		cmocka_unit_test(test_a_deletion_and_a_store_never_overtake_each_other),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
