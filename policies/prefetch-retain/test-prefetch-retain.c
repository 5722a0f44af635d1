/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <kvcache/registry.h>

enum { ADAPTERS = 2, KEYS = 4 };

static void
test_plans_as_default_does(void **state)
{
	const KvcPrefetchPolicy *retain = kvc_find_prefetch_policy("retain", NULL);
	const KvcPrefetchPolicy *other = kvc_find_prefetch_policy("default", NULL);
	KvcObjectKey *keys[KEYS] = {NULL};
	KvcAdapterDescriptor adapters[ADAPTERS] = {{.index = 0}, {.index = 1}};

	/* Every key on none, one or both of the adapters. */
	for (unsigned bits = 0; bits < 1u << (ADAPTERS * KEYS); bits++) {
		KvcBitmap *found[ADAPTERS], *plan[ADAPTERS], *expected[ADAPTERS];
		for (unsigned a = 0; a < ADAPTERS; a++) {
			found[a] = kvc_bitmap_new(KEYS);
			plan[a] = kvc_bitmap_new(KEYS);
			expected[a] = kvc_bitmap_new(KEYS);
			for (unsigned i = 0; i < KEYS; i++)
				if (bits & (1u << (a * KEYS + i)))
					kvc_bitmap_set(found[a], i);
		}
		const KvcBitmap *const *had = (const KvcBitmap *const *)found;
		retain->select_load_plan(keys, KEYS, had, adapters, ADAPTERS, plan);
		other->select_load_plan(keys, KEYS, had, adapters, ADAPTERS, expected);
		for (unsigned a = 0; a < ADAPTERS; a++) {
			for (unsigned i = 0; i < KEYS; i++)
				assert_int_equal(kvc_bitmap_test(plan[a], i),
						 kvc_bitmap_test(expected[a], i));
			kvc_bitmap_free(found[a]);
			kvc_bitmap_free(plan[a]);
			kvc_bitmap_free(expected[a]);
		}
	}
}

static void
test_loaded_objects_stay(void **state)
{
	assert_true(kvc_find_prefetch_policy("retain", NULL)->retain);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plans_as_default_does),
		cmocka_unit_test(test_loaded_objects_stay),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
