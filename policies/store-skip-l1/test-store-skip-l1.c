/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <kvcache/registry.h>

static void
test_every_adapter_gets_it_and_l1_forgets_it(void **state)
{
	const KvcStorePolicy *policy = kvc_find_store_policy("skip_l1", NULL);
	KvcAdapterDescriptor adapters[KVC_MAX_ADAPTERS] = {{0}};

	assert_non_null(policy);
	assert_int_equal(policy->select_store_targets(NULL, adapters, 0), 0);
	assert_int_equal(policy->select_store_targets(NULL, adapters, 1), 1);
	assert_int_equal(policy->select_store_targets(NULL, adapters, KVC_MAX_ADAPTERS), 0xffff);
	assert_true(policy->select_l1_deletion(NULL));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_adapter_gets_it_and_l1_forgets_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
