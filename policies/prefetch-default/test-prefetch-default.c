/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include <kvcache/registry.h>

enum { ADAPTERS = 3, KEYS = 8 };

static KvcBitmap *
bits(const char *text)
{
	KvcBitmap *bitmap = kvc_bitmap_new(strlen(text));

	for (size_t i = 0; text[i]; i++)
		if (text[i] == '1')
			kvc_bitmap_set(bitmap, i);
	return bitmap;
}

static void
assert_bits(const KvcBitmap *bitmap, const char *text)
{
	for (size_t i = 0; text[i]; i++)
		assert_int_equal(kvc_bitmap_test(bitmap, i), text[i] == '1');
}

static void
test_lowest_index_wins(void **state)
{
	const KvcPrefetchPolicy *policy = kvc_find_prefetch_policy("default", NULL);
	KvcBitmap *found[ADAPTERS] = {bits("10010010"), bits("11000110"), bits("11101011")};
	KvcBitmap *plan[ADAPTERS] = {bits("00000000"), bits("00000000"), bits("00000000")};
	KvcObjectKey *keys[KEYS] = {NULL};
	KvcAdapterDescriptor adapters[ADAPTERS] = {{.index = 0}, {.index = 1}, {.index = 2}};

	policy->select_load_plan(keys, KEYS, (const KvcBitmap *const *)found, adapters, ADAPTERS,
				 plan);
	assert_bits(plan[0], "10010010");
	assert_bits(plan[1], "01000100");
	assert_bits(plan[2], "00101001");
	/* What was found is not touched. */
	assert_bits(found[2], "11101011");
	for (int a = 0; a < ADAPTERS; a++) {
		kvc_bitmap_free(found[a]);
		kvc_bitmap_free(plan[a]);
	}
}

static void
test_loaded_objects_go_first(void **state)
{
	assert_false(kvc_find_prefetch_policy("default", NULL)->retain);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_lowest_index_wins),
		cmocka_unit_test(test_loaded_objects_go_first),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
