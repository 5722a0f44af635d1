/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/breaker.h"

#include "engine/lock.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>

#include <cmocka.h>

/* Long enough that a slow machine does not reach it, and one that a test can wait for. */
#define LONG_NS (3600 * KVC_SEC_NS)
#define SHORT_NS (20 * KVC_MSEC_NS)

static void
fail_times(KvcBreaker *b, unsigned n)
{
	for (unsigned i = 0; i < n; i++)
		kvc_breaker_note(b, -ECONNREFUSED);
}

static KvcBreakerStatus
status_of(KvcBreaker *b)
{
	KvcBreakerStatus status;
	kvc_breaker_get_status(b, &status);
	return status;
}

/* Until a probe may go. */
static void
wait_for_probe(KvcBreaker *b)
{
	while (!kvc_breaker_would_admit(b))
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
}

static void
test_connection_errors_in_a_row_open_it(void **state)
{
	KvcBreaker *b = kvc_breaker_new(LONG_NS, LONG_NS);
	fail_times(b, KVC_BREAKER_FAILURES - 1);
	assert_int_equal(status_of(b).state, KVC_BREAKER_CLOSED);
	assert_true(kvc_breaker_admit(b));
	/* Not in a row: a success, or another error, which only a store that is there can give. */
	kvc_breaker_note(b, 0);
	fail_times(b, KVC_BREAKER_FAILURES - 1);
	kvc_breaker_note(b, -ENOSPC);
	fail_times(b, KVC_BREAKER_FAILURES - 1);
	assert_true(kvc_breaker_admit(b));
	fail_times(b, 1);
	assert_int_equal(status_of(b).state, KVC_BREAKER_OPEN);
	assert_int_equal(status_of(b).opened, 1);
	assert_false(kvc_breaker_would_admit(b));
	assert_false(kvc_breaker_admit(b));
	assert_false(kvc_breaker_admit(b));
	assert_int_equal(status_of(b).refused, 2);
	kvc_breaker_free(b);
}

static void
test_what_ends_while_open_changes_nothing(void **state)
{
	KvcBreaker *b = kvc_breaker_new(LONG_NS, LONG_NS);
	fail_times(b, KVC_BREAKER_FAILURES);
	kvc_breaker_note(b, 0);
	fail_times(b, KVC_BREAKER_FAILURES);
	assert_int_equal(status_of(b).state, KVC_BREAKER_OPEN);
	assert_int_equal(status_of(b).opened, 1);
	kvc_breaker_free(b);
}

static void
test_one_probe_goes_and_closes_it(void **state)
{
	KvcBreaker *b = kvc_breaker_new(SHORT_NS, LONG_NS);
	fail_times(b, KVC_BREAKER_FAILURES);
	wait_for_probe(b);
	assert_int_equal(status_of(b).state, KVC_BREAKER_OPEN); /* to look takes nothing */
	assert_true(kvc_breaker_admit(b));
	assert_int_equal(status_of(b).state, KVC_BREAKER_HALF_OPEN);
	kvc_breaker_note(b, 0);
	assert_int_equal(status_of(b).state, KVC_BREAKER_CLOSED);
	assert_true(kvc_breaker_admit(b));
	/* As new: not one failure less. */
	fail_times(b, KVC_BREAKER_FAILURES - 1);
	assert_true(kvc_breaker_admit(b));
	kvc_breaker_free(b);
}

static void
test_each_failed_probe_doubles_the_cooldown(void **state)
{
	KvcBreaker *b = kvc_breaker_new(SHORT_NS, 4 * SHORT_NS);
	fail_times(b, KVC_BREAKER_FAILURES);
	for (unsigned factor = 1; factor <= 4; factor = factor * 2) {
		int64_t begin_ns = kvc_now_ns();
		assert_int_equal(status_of(b).is_slowest, factor == 4);
		wait_for_probe(b);
		/* The clock was read after the failure: a millisecond for that. */
		assert_true(kvc_now_ns() - begin_ns >= factor * SHORT_NS - 10 * KVC_MSEC_NS);
		assert_true(kvc_breaker_admit(b));
		fail_times(b, 1);
		assert_int_equal(status_of(b).state, KVC_BREAKER_OPEN);
	}
	assert_true(status_of(b).is_slowest); /* not beyond the maximum */
	assert_int_equal(status_of(b).opened, 1);
	/* Closed and open again: the first cool-down. */
	wait_for_probe(b);
	assert_true(kvc_breaker_admit(b));
	kvc_breaker_note(b, 0);
	fail_times(b, KVC_BREAKER_FAILURES);
	assert_false(status_of(b).is_slowest);
	assert_int_equal(status_of(b).opened, 2);
	kvc_breaker_free(b);
}

static void
test_a_probe_that_does_not_end_is_followed_by_another(void **state)
{
	KvcBreaker *b = kvc_breaker_new(SHORT_NS, LONG_NS);
	fail_times(b, KVC_BREAKER_FAILURES);
	wait_for_probe(b);
	assert_true(kvc_breaker_admit(b));
	assert_int_equal(status_of(b).state, KVC_BREAKER_HALF_OPEN);
	wait_for_probe(b);
	assert_true(kvc_breaker_admit(b));
	assert_int_equal(status_of(b).state, KVC_BREAKER_HALF_OPEN);
	kvc_breaker_free(b);
}

/* One a cool-down, however often it is asked. */
static void
test_only_one_probe_goes(void **state)
{
	KvcBreaker *b = kvc_breaker_new(SHORT_NS, LONG_NS);
	fail_times(b, KVC_BREAKER_FAILURES);
	unsigned admitted = 0;
	/* Each failed probe doubles: in all of 15 cool-downs only a handful may go. */
	int64_t end_ns = kvc_now_ns() + 15 * SHORT_NS;
	while (kvc_now_ns() < end_ns) {
		if (!kvc_breaker_admit(b))
			continue;
		admitted++;
		fail_times(b, 1);
	}
	assert_in_range(admitted, 1, 4);
	kvc_breaker_free(b);
}

static void
test_which_errors_are_connection_errors(void **state)
{
	static const int yes[] = {ECONNREFUSED, ECONNRESET,   ECONNABORTED, EPIPE,
				  ETIMEDOUT,	EHOSTUNREACH, EHOSTDOWN,    ENETUNREACH,
				  ENETDOWN,	ENETRESET,    ENOTCONN};
	static const int no[] = {0, EIO, ENOSPC, ENOENT, EACCES, EBUSY, EINVAL};
	for (size_t i = 0; i < G_N_ELEMENTS(yes); i++)
		assert_true(kvc_is_connection_error(-yes[i]));
	for (size_t i = 0; i < G_N_ELEMENTS(no); i++)
		assert_false(kvc_is_connection_error(-no[i]));
}

static void
test_no_breaker_is_always_closed(void **state)
{
	fail_times(NULL, 2 * KVC_BREAKER_FAILURES);
	assert_true(kvc_breaker_admit(NULL));
	assert_true(kvc_breaker_would_admit(NULL));
	assert_string_equal(kvc_breaker_state_name(status_of(NULL).state), "closed");
	kvc_breaker_free(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_connection_errors_in_a_row_open_it),
		cmocka_unit_test(test_what_ends_while_open_changes_nothing),
		cmocka_unit_test(test_one_probe_goes_and_closes_it),
		cmocka_unit_test(test_each_failed_probe_doubles_the_cooldown),
		cmocka_unit_test(test_a_probe_that_does_not_end_is_followed_by_another),
		cmocka_unit_test(test_only_one_probe_goes),
		cmocka_unit_test(test_which_errors_are_connection_errors),
		cmocka_unit_test(test_no_breaker_is_always_closed),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
