/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <cmocka.h>

#include "kvcache/bitmap.h"

static const size_t sizes[] = {0, 1, 2, 63, 64, 65, 127, 128, 129, 1000};

static unsigned
get_seed(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();

	print_message("KVC_TEST_SEED=%u\n", seed);
	return seed;
}

/* Compares every answer with one found bit by bit in MODEL. */
static void
assert_matches(const KvcBitmap *bitmap, const bool *model, size_t n)
{
	size_t count = 0, leading = 0, next = n;

	assert_int_equal(kvc_bitmap_size(bitmap), n);
	while (leading < n && model[leading])
		leading++;
	for (size_t i = 0; i < n; i++) {
		assert_int_equal(kvc_bitmap_test(bitmap, i), model[i]);
		count += model[i];
	}
	assert_int_equal(kvc_bitmap_count(bitmap), count);
	assert_int_equal(kvc_bitmap_leading_ones(bitmap), leading);
	for (size_t from = n; from-- > 0;) {
		if (model[from])
			next = from;
		assert_int_equal(kvc_bitmap_next(bitmap, from), next);
	}
	assert_int_equal(kvc_bitmap_next(bitmap, n), n);
	assert_int_equal(kvc_bitmap_next(bitmap, n + 1000), n);
}

static void
fill_random(KvcBitmap *bitmap, bool *model, size_t n, GRand *rand)
{
	int one_in = g_rand_int_range(rand, 1, 40);
	bool mostly = g_rand_boolean(rand);

	for (size_t i = 0; i < n; i++) {
		model[i] = (g_rand_int_range(rand, 0, one_in) == 0) != mostly;
		(model[i] ? kvc_bitmap_set : kvc_bitmap_clear)(bitmap, i);
	}
}

static void
check_operations(size_t n, GRand *rand)
{
	g_autoptr(KvcBitmap) a = kvc_bitmap_new(n);
	g_autoptr(KvcBitmap) b = kvc_bitmap_new(n);
	g_autofree bool *model_a = g_new0(bool, n + 1), *model_b = g_new0(bool, n + 1);
	size_t cut = (size_t)g_rand_int_range(rand, 0, (int)n + 10);
	int operation = g_rand_int_range(rand, 0, 4);

	fill_random(a, model_a, n, rand);
	fill_random(b, model_b, n, rand);
	assert_matches(a, model_a, n);
	switch (operation) {
	case 0:
		kvc_bitmap_or(a, b);
		break;
	case 1:
		kvc_bitmap_and(a, b);
		break;
	case 2:
		kvc_bitmap_andnot(a, b);
		break;
	default:
		kvc_bitmap_truncate(a, cut);
	}
	for (size_t i = 0; i < n; i++) {
		const bool results[] = {model_a[i] || model_b[i], model_a[i] && model_b[i],
					model_a[i] && !model_b[i], model_a[i] && i < cut};

		model_a[i] = results[operation];
	}
	assert_matches(a, model_a, n);
	assert_matches(b, model_b, n);
}

static void
test_operations_match_a_plain_array(void **state)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(get_seed());

	for (int round = 0; round < 2000; round++)
		check_operations(sizes[round % G_N_ELEMENTS(sizes)], rand);
}

static void
test_new_is_clear(void **state)
{
	static const bool model[1000];

	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcBitmap) bitmap = kvc_bitmap_new(sizes[i]);

		assert_matches(bitmap, model, sizes[i]);
	}
}

static void
test_all_set_then_clear_all(void **state)
{
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		size_t n = sizes[i];
		g_autoptr(KvcBitmap) bitmap = kvc_bitmap_new(n);

		for (size_t bit = 0; bit < n; bit++)
			kvc_bitmap_set(bitmap, bit);
		assert_int_equal(kvc_bitmap_count(bitmap), n);
		assert_int_equal(kvc_bitmap_leading_ones(bitmap), n);
		kvc_bitmap_clear_all(bitmap);
		assert_int_equal(kvc_bitmap_count(bitmap), 0);
		assert_int_equal(kvc_bitmap_next(bitmap, 0), n);
	}
}

static void
test_copy_is_independent(void **state)
{
	g_autoptr(KvcBitmap) bitmap = kvc_bitmap_new(70);
	g_autoptr(KvcBitmap) copy = NULL;

	kvc_bitmap_set(bitmap, 69);
	copy = kvc_bitmap_copy(bitmap);
	kvc_bitmap_clear(bitmap, 69);
	kvc_bitmap_set(bitmap, 3);
	assert_int_equal(kvc_bitmap_size(copy), 70);
	assert_int_equal(kvc_bitmap_next(copy, 0), 69);
	assert_int_equal(kvc_bitmap_next(bitmap, 0), 3);
	kvc_bitmap_free(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_new_is_clear),
		cmocka_unit_test(test_all_set_then_clear_all),
		cmocka_unit_test(test_copy_is_independent),
		cmocka_unit_test(test_operations_match_a_plain_array),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
