/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/adapter-health.h"

#include "engine/lock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#define NOW (1000 * KVC_SEC_NS)

static void
note(KvcAdapterHealth *health, unsigned good, unsigned bad, int64_t now_ns)
{
	for (unsigned i = 0; i < good + bad; i++)
		kvc_adapter_health_note_at(health, i < good, now_ns);
}

static KvcHealth
health_of(unsigned good, unsigned bad)
{
	KvcAdapterHealth health = {0};
	note(&health, good, bad, NOW);
	return kvc_adapter_health_get_at(&health, NOW);
}

static void
test_rates(void **state)
{
	assert_int_equal(health_of(0, 0), KVC_HEALTH_OK);
	assert_int_equal(health_of(0, 7), KVC_HEALTH_OK); /* too few */
	assert_int_equal(health_of(0, 8), KVC_HEALTH_FAILED);
	assert_int_equal(health_of(8, 8), KVC_HEALTH_DEGRADED);
	assert_int_equal(health_of(8, 9), KVC_HEALTH_FAILED);
	assert_int_equal(health_of(9, 1), KVC_HEALTH_DEGRADED);
	assert_int_equal(health_of(10, 1), KVC_HEALTH_OK);
	assert_int_equal(health_of(1000, 0), KVC_HEALTH_OK);
}

static void
test_what_is_old_does_not_count(void **state)
{
	KvcAdapterHealth health = {0};
	note(&health, 0, 20, NOW);
	assert_int_equal(kvc_adapter_health_get_at(&health, NOW + 10 * KVC_SEC_NS),
			 KVC_HEALTH_FAILED);
	assert_int_equal(kvc_adapter_health_get_at(&health, NOW + 30 * KVC_SEC_NS), KVC_HEALTH_OK);
	/* New outcomes take the place of old ones. */
	note(&health, 20, 0, NOW + 30 * KVC_SEC_NS);
	assert_int_equal(kvc_adapter_health_get_at(&health, NOW + 30 * KVC_SEC_NS), KVC_HEALTH_OK);
	note(&health, 0, 5, NOW + 45 * KVC_SEC_NS);
	assert_int_equal(kvc_adapter_health_get_at(&health, NOW + 45 * KVC_SEC_NS),
			 KVC_HEALTH_DEGRADED);
}

static void
test_names(void **state)
{
	for (int h = KVC_HEALTH_OK; h <= KVC_HEALTH_FAILED; h++)
		assert_int_equal(kvc_health_parse(kvc_health_name((KvcHealth)h)), h);
	assert_int_equal(kvc_health_parse("fine"), KVC_HEALTH_DEGRADED);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_rates),
		cmocka_unit_test(test_what_is_old_does_not_count),
		cmocka_unit_test(test_names),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
