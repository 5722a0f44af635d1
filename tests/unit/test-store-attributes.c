/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes on their way to L2: with a store, after it, and never at the same time. */

#include "tests/unit/store-fixture.h"

static void
change_mode(Bench *b, KvcObjectKey *key, uint32_t mode)
{
	KvcObjectAttributes attributes = {.mode = mode};
	assert_int_equal(kvc_key_index_set_attributes(b->env->context.index, key, &attributes,
						      KVC_ATTRIBUTE_MODE),
			 0);
	kvc_store_controller_submit_attributes(b->store, key);
}

static uint32_t
mode_at(Bench *b, size_t adapter, KvcObjectKey *key)
{
	FakeAdapter *fake = b->env->fakes[adapter];
	pthread_mutex_lock(&fake->lock);
	uint32_t mode = fake_object(fake, key)->attributes.mode & 07777;
	pthread_mutex_unlock(&fake->lock);
	return mode;
}

static void
test_a_store_brings_them_along(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	change_mode(&b, key, 0600);
	kvc_store_controller_start(b.store);
	drain(&b);
	assert_int_equal(mode_at(&b, 0, key), 0600);
	assert_int_equal(fake_count(b.env->fakes[0], "attributes", key), 0);
	bench_free(&b);
}

static void
test_a_change_reaches_every_adapter_that_has_it(void **state)
{
	Bench b = bench_started(3, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[2]->ops.set_attributes = NULL;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	change_mode(&b, key, 0640);
	drain(&b);
	assert_int_equal(mode_at(&b, 0, key), 0640);
	assert_int_equal(mode_at(&b, 1, key), 0640);
	assert_int_equal(fake_count(b.env->fakes[2], "attributes", key), 0);
	assert_int_equal(fake_count(b.env->fakes[0], "store", key), 1);
	assert_int_equal(env_stat(b.env, attributes_set), 2);
	/* Where it is in no adapter there is nothing to do. */
	g_autoptr(KvcObjectKey) other = key_new(b.env, 2);
	kvc_key_index_add(b.env->context.index, other, KVC_TIER_L1, 1, 1);
	change_mode(&b, other, 0640);
	drain(&b);
	assert_int_equal(fake_count(b.env->fakes[0], "attributes", other), 0);
	bench_free(&b);
}

static void
test_a_change_that_overtakes_a_store_is_told_after_it(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	change_mode(&b, key, 0640);
	change_mode(&b, key, 0600);
	Flushed flushed = {0};
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	nap(30);
	assert_int_equal(fake_count(fake, "attributes", key), 0);
	assert_int_equal(calls(&flushed), 0);
	fake_release(fake, FAKE_STORE);
	wait_until(calls(&flushed) == 1);
	assert_int_equal(flushed.error, 0);
	assert_int_equal(mode_at(&b, 0, key), 0600);
	assert_int_equal(fake_count(fake, "attributes", key), 1);
	drain(&b);
	bench_free(&b);
}

static void
test_a_failed_store_does_not_take_a_change_along(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	fake->fail_stores = 1;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	change_mode(&b, key, 0600);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(fake_count(fake, "store", key), 2);
	assert_int_equal(mode_at(&b, 0, key), 0600);
	bench_free(&b);
}

static void
test_a_deletion_ends_it(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	fake->hold[FAKE_STORE] = true;
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	wait_until(fake_count_held(fake, FAKE_STORE) == 1);
	change_mode(&b, key, 0600);
	delete_key(&b, key, 1);
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_false(fake_has(fake, key, NULL));
	assert_int_equal(fake_count(fake, "attributes", key), 0);
	bench_free(&b);
}

static void
test_a_failure_is_counted(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	b.env->fakes[0]->fail_attributes = 1;
	change_mode(&b, key, 0640);
	drain(&b);
	assert_int_equal(env_stat(b.env, attributes_failed), 1);
	change_mode(&b, key, 0600);
	drain(&b);
	assert_int_equal(mode_at(&b, 0, key), 0600);
	assert_int_equal(env_stat(b.env, attributes_set), 1);
	/* It vanished from the store: no failure. */
	fake_put(b.env->fakes[0], key, NULL);
	change_mode(&b, key, 0640);
	drain(&b);
	assert_int_equal(env_stat(b.env, attributes_failed), 1);
	bench_free(&b);
}

/* Many commits, changes and deletions of few keys: the fixture sees every overlap. */
static void
test_any_order(void **state)
{
	Bench b = bench_started(2, &everywhere);
	unsigned seed = 4711;
	for (unsigned i = 0; i < 2000; i++) {
		g_autoptr(KvcObjectKey) key = key_new(b.env, (unsigned)rand_r(&seed) % 3);
		unsigned what = (unsigned)rand_r(&seed) % 4;
		if (what == 0)
			env_write(b.env, key, 100, i, KVC_FINISH_REPLACE);
		else if (what == 1)
			delete_key(&b, key, 3);
		else if (kvc_key_index_get(b.env->context.index, key, NULL) == 0)
			change_mode(&b, key, i % 512);
	}
	for (unsigned number = 0; number < 3; number++) {
		g_autoptr(KvcObjectKey) key = key_new(b.env, number);
		env_write(b.env, key, 100, 0, KVC_FINISH_REPLACE);
		change_mode(&b, key, 0100 + number);
	}
	drain(&b);
	for (unsigned number = 0; number < 3; number++) {
		g_autoptr(KvcObjectKey) key = key_new(b.env, number);
		assert_int_equal(mode_at(&b, 0, key), 0100 + number);
		assert_int_equal(mode_at(&b, 1, key), 0100 + number);
	}
	bench_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_store_brings_them_along),
		cmocka_unit_test(test_a_change_reaches_every_adapter_that_has_it),
		cmocka_unit_test(test_a_change_that_overtakes_a_store_is_told_after_it),
		cmocka_unit_test(test_a_failed_store_does_not_take_a_change_along),
		cmocka_unit_test(test_a_deletion_ends_it),
		cmocka_unit_test(test_a_failure_is_counted),
		cmocka_unit_test(test_any_order),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
