/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random commits, renames, deletions, evictions and loads of a few plain files from one thread,
 * over two adapters that are slow, of which one fails now and then. After each step what is known
 * is compared with a plain model; at the end all of it is loaded from L2.
 *
 * Many short runs, each with its seed, for a quarter of KVC_TEST_SECONDS (default 2): what they
 * find depends on what overlaps in the StoreController. KVC_TEST_SEED: one run with this seed.
 */

#include "tests/unit/storage-manager-rename-fixture.h"

#define N_KEYS 6

/* CONTENTS: what each name ought to have, 0: nothing. */
static void
check_names(Fixture *f, const unsigned *contents)
{
	for (unsigned i = 1; i <= N_KEYS; i++) {
		assert_int_equal(tiers(f, i) != 0, contents[i] != 0);
		KvcL1Object *object = try_read(f, i);
		if (!object)
			continue;
		assert_true(has_content(object, SIZE, byte_of(contents[i], 0)));
		kvc_storage_manager_finish_read(f->sm, object);
	}
}

static void
write_content(Fixture *f, unsigned number, unsigned content)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	assert_int_equal(commit(f, key, SIZE, byte_of(content, 0), KVC_FINISH_REPLACE), 0);
}

static void
act(Fixture *f, GRand *rand, unsigned *contents, unsigned step)
{
	unsigned i = (unsigned)g_rand_int_range(rand, 1, N_KEYS + 1);
	unsigned j = (unsigned)g_rand_int_range(rand, 1, N_KEYS + 1);
	switch (g_rand_int_range(rand, 0, 8)) {
	case 0:
	case 1:
		write_content(f, i, step);
		contents[i] = step;
		break;
	case 2:
		assert_int_equal(delete_key(f, i), contents[i] ? 0 : -ENOENT);
		contents[i] = 0;
		break;
	case 3:
		evict(f, i);
		break;
	case 4:
		kvc_prefetch_handle_drop(prefetch(f, i, i + 1, 0), NULL);
		break;
	case 5:
		look_up(f, i, i + 1);
		break;
	default:
		assert_int_equal(rename_number(f, i, j, 0), contents[i] ? 0 : -ENOENT);
		if (i != j && contents[i]) {
			contents[j] = contents[i];
			contents[i] = 0;
		}
	}
}

static void
run(unsigned seed)
{
	Fixture *f;
	GRand *rand = g_rand_new_with_seed(seed);
	unsigned contents[N_KEYS + 1] = {0};
	print_message("KVC_TEST_SEED=%u\n", seed);
	set_up_plain((void **)&f);
	start(f, SLOW_MOCK, MOCK ",fail_stores=2");
	for (unsigned step = 1; step <= 600; step++) {
		act(f, rand, contents, step);
		check_names(f, contents);
	}
	drain(f);
	for (unsigned i = 1; i <= N_KEYS; i++) {
		evict(f, i);
		assert_int_equal(info_of(f, i).renaming, 0);
		if (contents[i])
			assert_loaded(f, i, contents[i]);
		else
			assert_int_equal(look_up(f, i, i + 1), 0);
	}
	assert_int_equal(stat_of(f, "renames_lost"), 0);
	g_rand_free(rand);
	tear_down((void **)&f);
}

static void
test_random_orders_agree_with_a_plain_model(void **state)
{
	const char *seconds = g_getenv("KVC_TEST_SECONDS"), *seed = g_getenv("KVC_TEST_SEED");
	gint64 until = g_get_monotonic_time() +
		       G_USEC_PER_SEC * (seconds ? strtoll(seconds, NULL, 10) : 2) / 4;
	do
		run(seed ? (unsigned)strtoul(seed, NULL, 10) : g_random_int());
	while (!seed && g_get_monotonic_time() < until);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_orders_agree_with_a_plain_model),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
