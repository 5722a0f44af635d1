/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Renames of two names to each other, with overwrites between, that come faster than an adapter
 * takes them: the StoreController's work grows with their number, or with its square where one
 * object goes all the way, an adapter cannot rename, or another one is ahead; not faster.
 */

#include "tests/unit/rename-fixture.h"

#define ROUNDS 200
/* Of four times as many: 4 and 16, and as much again for caches and what else the machine does; the
 * third power is 64. */
#define LINEAR 8
#define SQUARE 32

/* What one round does with the two names; returns the versions that it wrote. */
typedef unsigned (*Round)(Two *t, unsigned v);

/* Each name is overwritten, or replaced, by each rename. */
static unsigned
replace_both(Two *t, unsigned v)
{
	write_version(t, t->old_key, v);
	rename_keys(&t->b, t->old_key, t->new_key);
	write_version(t, t->old_key, v + 1);
	rename_keys(&t->b, t->new_key, t->old_key);
	return 2;
}

/* There is one object, which goes to and fro. */
static unsigned
overwrite_one(Two *t, unsigned v)
{
	write_version(t, t->old_key, v);
	rename_keys(&t->b, t->old_key, t->new_key);
	rename_keys(&t->b, t->new_key, t->old_key);
	return 1;
}

/* What is renamed to the other name is gone with the next round. */
static unsigned
replace_one(Two *t, unsigned v)
{
	write_version(t, t->old_key, v);
	rename_keys(&t->b, t->old_key, t->new_key);
	return 1;
}

static int64_t
thread_cpu_ns(const Bench *b)
{
	clockid_t clock;
	struct timespec ts;
	assert_int_equal(pthread_getcpuclockid(b->store->thread, &clock), 0);
	assert_int_equal(clock_gettime(clock, &ts), 0);
	return ts.tv_sec * KVC_SEC_NS + ts.tv_nsec;
}

static void
assert_has_only(Two *t, FakeAdapter *fake, KvcObjectKey *key)
{
	bool is_known = info_of(t, key).tiers != 0;
	assert_int_equal(fake_has(fake, key, NULL), is_known);
}

/*
 * N rounds, while the first store is held, then all that is left of them: what the thread had to do
 * in ns. The adapters (bits) in RENAMERS can rename.
 */
static int64_t
work_off(Round round, unsigned n, size_t n_adapters, uint32_t renamers)
{
	Two t = two_new(n_adapters);
	for (size_t a = 0; a < n_adapters; a++)
		if (!(renamers & (1u << a)))
			t.b.env->fakes[a]->ops.rename_key = NULL;
	kvc_store_controller_start(t.b.store);
	write_version(&t, t.old_key, 0);
	write_version(&t, t.new_key, 0);
	drain(&t.b);
	int64_t begin_ns = thread_cpu_ns(&t.b);
	FakeAdapter *held = t.b.env->fakes[0];
	held->hold[FAKE_STORE] = true;
	write_version(&t, t.old_key, 1);
	wait_until(fake_count_held(held, FAKE_STORE) == 1);
	unsigned v = 2;
	for (unsigned i = 0; i < n; i++)
		v += round(&t, v);
	kvc_store_controller_settle(t.b.store); /* it has been told of them */
	fake_release(held, FAKE_STORE);
	drain(&t.b);
	int64_t work_ns = thread_cpu_ns(&t.b) - begin_ns;
	KvcObjectKey *last = round == replace_one ? t.new_key : t.old_key;
	unsigned stays = round == replace_both ? v - 2 : v - 1;
	for (size_t a = 0; a < n_adapters; a++) {
		FakeAdapter *fake = t.b.env->fakes[a];
		assert_true(fake_has_version(fake, last, t.old_key, stays));
		assert_has_only(&t, fake, t.old_key);
		assert_has_only(&t, fake, t.new_key);
	}
	assert_int_equal(info_of(&t, last).tiers, KVC_TIER_L1 | ((1u << n_adapters) - 1));
	assert_int_equal(env_counts(t.b.env).dirty_objects, 0);
	assert_int_equal(env_stat(t.b.env, renames_lost), 0);
	two_free(&t);
	return work_ns;
}

/* Four times as many cost at most FACTOR times as much. */
static void
assert_grows(Round round, size_t n_adapters, uint32_t renamers, int64_t factor)
{
	int64_t few = work_off(round, ROUNDS, n_adapters, renamers);
	int64_t many = work_off(round, 4 * ROUNDS, n_adapters, renamers);
	print_message("%d: %.1f ms, %d: %.1f ms\n", ROUNDS, (double)few / 1e6, 4 * ROUNDS,
		      (double)many / 1e6);
	assert_true(many <= factor * few);
}

static void
test_both_names_replaced(void **state)
{
	assert_grows(replace_both, 1, 1, LINEAR);
}

static void
test_one_object_to_and_fro(void **state)
{
	assert_grows(overwrite_one, 1, 1, SQUARE);
}

static void
test_one_name_replaced(void **state)
{
	assert_grows(replace_one, 1, 1, LINEAR);
}

static void
test_an_adapter_that_cannot_rename(void **state)
{
	assert_grows(replace_both, 1, 0, SQUARE);
	assert_grows(overwrite_one, 1, 0, SQUARE);
}

/* The other adapter goes on meanwhile. */
static void
test_one_of_two_adapters_is_held(void **state)
{
	assert_grows(replace_both, 2, 3, SQUARE);
	assert_grows(overwrite_one, 2, 3, SQUARE);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_both_names_replaced),
		cmocka_unit_test(test_one_object_to_and_fro),
		cmocka_unit_test(test_one_name_replaced),
		cmocka_unit_test(test_an_adapter_that_cannot_rename),
		cmocka_unit_test(test_one_of_two_adapters_is_held),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
