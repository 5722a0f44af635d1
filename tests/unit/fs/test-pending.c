/* SPDX-License-Identifier: Apache-2.0 */

/* Timers (requests without a fuse_req_t): whatever comes first answers, once. */

#include "fs/pending.h"

#include <glib.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

#define MSEC INT64_C(1000000)
#define FAR (INT64_C(3600) * 1000 * MSEC)
#define N_RACES 300

static int64_t
now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

/* One answer, as it was seen. */
typedef struct Seen {
	int count; /* Atomic */
	int order; /* Atomic; which answer of all */
	KvcfsWake why;
	fuse_req_t req;
	int64_t at_ns;
} Seen;

static int n_answers; /* Atomic */
static uint64_t n_interrupted;

static void
note(fuse_req_t req, KvcfsWake why, void *user)
{
	Seen *seen = user;
	seen->why = why;
	seen->req = req;
	seen->at_ns = now_ns();
	__atomic_store_n(&seen->order, __atomic_fetch_add(&n_answers, 1, __ATOMIC_RELAXED),
			 __ATOMIC_RELAXED);
	__atomic_fetch_add(&seen->count, 1, __ATOMIC_RELEASE);
}

static int
count_of(const Seen *seen)
{
	return __atomic_load_n(&seen->count, __ATOMIC_ACQUIRE);
}

static void
wait_answered(const Seen *seen)
{
	int64_t until = now_ns() + 20000 * MSEC;
	while (count_of(seen) == 0 && now_ns() < until)
		g_usleep(500);
	assert_int_equal(count_of(seen), 1);
}

static int
set_up(void **state)
{
	__atomic_store_n(&n_answers, 0, __ATOMIC_RELAXED);
	*state = kvcfs_pendings_new(&n_interrupted);
	assert_non_null(*state);
	return 0;
}

static int
tear_down(void **state)
{
	kvcfs_pendings_free(*state);
	return 0;
}

static void
test_wake_answers_at_once(void **state)
{
	Seen seen = {0};
	KvcfsPending *p = kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &seen);
	assert_int_equal(count_of(&seen), 0);
	kvcfs_pending_wake(p);
	/* In the waker's thread. */
	assert_int_equal(count_of(&seen), 1);
	assert_int_equal(seen.why, KVCFS_WAKE_DONE);
	assert_null(seen.req);
}

static void
test_deadline_answers(void **state)
{
	Seen seen = {0};
	int64_t deadline = now_ns() + 30 * MSEC;
	KvcfsPending *p = kvcfs_pending_new(*state, NULL, deadline, note, &seen);
	wait_answered(&seen);
	assert_int_equal(seen.why, KVCFS_WAKE_TIMEOUT);
	assert_true(seen.at_ns >= deadline);
	/* The waker comes too late and still gives its reference back. */
	kvcfs_pending_wake(p);
	assert_int_equal(count_of(&seen), 1);
	assert_int_equal(seen.why, KVCFS_WAKE_TIMEOUT);
}

static void
test_deadline_that_has_passed(void **state)
{
	Seen seen = {0}, zero = {0};
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns() - MSEC, note, &seen));
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, 0, note, &zero));
	wait_answered(&seen);
	wait_answered(&zero);
	assert_int_equal(seen.why, KVCFS_WAKE_TIMEOUT);
	assert_int_equal(zero.why, KVCFS_WAKE_TIMEOUT);
}

static void
test_released_timer_runs(void **state)
{
	Seen seen = {0};
	int64_t deadline = now_ns() + 20 * MSEC;
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, deadline, note, &seen));
	wait_answered(&seen);
	assert_int_equal(seen.why, KVCFS_WAKE_TIMEOUT);
	assert_true(seen.at_ns >= deadline);
}

/* A nearer deadline than the one the thread sleeps for. */
static void
test_later_timer_may_be_due_first(void **state)
{
	Seen far = {0}, near = {0};
	KvcfsPending *p = kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &far);
	g_usleep(20000);
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns() + 10 * MSEC, note, &near));
	wait_answered(&near);
	assert_int_equal(count_of(&far), 0);
	kvcfs_pending_wake(p);
	assert_int_equal(far.why, KVCFS_WAKE_DONE);
}

/* True: the order was right; the thread may have been late for several at once, then *LATE. */
static bool
run_in_order(KvcfsPendings *pendings, int64_t gap_ns, bool *late)
{
	enum { N = 6 };
	static const int turn[N] = {3, 0, 5, 1, 4, 2};
	Seen seen[N] = {0};
	int64_t begin = now_ns() + gap_ns, deadlines[N];
	bool in_order = true;
	*late = false;
	for (int i = 0; i < N; i++)
		deadlines[i] = begin + i * gap_ns;
	for (int i = 0; i < N; i++)
		kvcfs_pending_release(kvcfs_pending_new(pendings, NULL, deadlines[turn[i]], note,
							&seen[turn[i]]));
	for (int i = 0; i < N; i++) {
		wait_answered(&seen[i]);
		assert_true(seen[i].at_ns >= deadlines[i]);
		*late |= i + 1 < N && seen[i].at_ns >= deadlines[i + 1];
		in_order &= i == 0 || seen[i].order > seen[i - 1].order;
	}
	return in_order;
}

static void
test_deadlines_are_met_in_order(void **state)
{
	bool late = true;
	for (int64_t gap = 20 * MSEC; late && gap < 2000 * MSEC; gap *= 2)
		if (!run_in_order(*state, gap, &late) && !late)
			fail_msg("answered in another order than the deadlines'");
	if (late)
		skip();
}

static void
test_stop_answers_what_waits(void **state)
{
	Seen waiting = {0}, released = {0}, done = {0}, late = {0};
	KvcfsPending *p = kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &waiting);
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &released));
	kvcfs_pending_wake(kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &done));
	kvcfs_pendings_stop(*state);
	assert_int_equal(count_of(&waiting), 1);
	assert_int_equal(waiting.why, KVCFS_WAKE_INTERRUPT);
	assert_int_equal(count_of(&released), 1);
	assert_int_equal(released.why, KVCFS_WAKE_INTERRUPT);
	assert_int_equal(count_of(&done), 1);
	assert_int_equal(done.why, KVCFS_WAKE_DONE);
	kvcfs_pending_wake(p);
	assert_int_equal(count_of(&waiting), 1);
	/* It refuses to wait from now on. */
	p = kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &late);
	assert_int_equal(count_of(&late), 1);
	assert_int_equal(late.why, KVCFS_WAKE_INTERRUPT);
	kvcfs_pending_wake(p);
	assert_int_equal(count_of(&late), 1);
	kvcfs_pendings_stop(*state);
}

/* ---- An answer may make the next one ------------------------------------------------------- */

typedef struct Chain {
	KvcfsPendings *pendings;
	int left;
	Seen end;
} Chain;

static void
go_on(fuse_req_t req, KvcfsWake why, void *user)
{
	Chain *chain = user;
	if (--chain->left == 0) {
		note(req, why, &chain->end);
		return;
	}
	kvcfs_pending_release(
		kvcfs_pending_new(chain->pendings, NULL, now_ns() + MSEC, go_on, chain));
}

/* No lock is held while it answers. */
static void
test_answer_may_make_another(void **state)
{
	Chain chain = {.pendings = *state, .left = 20};
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns(), go_on, &chain));
	wait_answered(&chain.end);
	assert_int_equal(chain.end.why, KVCFS_WAKE_TIMEOUT);
}

/* ---- Races --------------------------------------------------------------------------------- */

typedef struct Race {
	KvcfsPendings *pendings;
	Seen seen[N_RACES];
	unsigned seed;
} Race;

/* Deadlines about now, a wake about then. */
static void *
race_wakes(void *user)
{
	Race *race = user;
	GRand *rand = g_rand_new_with_seed(race->seed);
	for (int i = 0; i < N_RACES; i++) {
		int64_t deadline = now_ns() + g_rand_int_range(rand, 0, 200000);
		KvcfsPending *p =
			kvcfs_pending_new(race->pendings, NULL, deadline, note, &race->seen[i]);
		if (g_rand_int_range(rand, 0, 4) == 0) {
			kvcfs_pending_release(p);
			continue;
		}
		if (g_rand_boolean(rand))
			g_usleep((gulong)g_rand_int_range(rand, 0, 200));
		kvcfs_pending_wake(p);
	}
	g_rand_free(rand);
	return NULL;
}

static void
race_all(KvcfsPendings *pendings, bool stops)
{
	enum { N = 4 };
	g_autofree Race *races = g_new0(Race, N);
	pthread_t threads[N];
	for (unsigned i = 0; i < N; i++) {
		races[i].pendings = pendings;
		races[i].seed = g_random_int();
		assert_int_equal(pthread_create(&threads[i], NULL, race_wakes, &races[i]), 0);
	}
	if (stops) {
		g_usleep(5000);
		kvcfs_pendings_stop(pendings);
	}
	for (unsigned i = 0; i < N; i++)
		pthread_join(threads[i], NULL);
	for (unsigned i = 0; i < N * N_RACES; i++)
		wait_answered(&races[i / N_RACES].seen[i % N_RACES]);
	/* Nobody answers a second time, not at the end either. */
	kvcfs_pendings_stop(pendings);
	for (unsigned i = 0; i < N * N_RACES; i++)
		assert_int_equal(count_of(&races[i / N_RACES].seen[i % N_RACES]), 1);
	assert_int_equal(__atomic_load_n(&n_answers, __ATOMIC_RELAXED), N * N_RACES);
}

static void
test_wake_against_deadline_answers_once(void **state)
{
	race_all(*state, false);
}

static void
test_wake_against_deadline_and_stop_answers_once(void **state)
{
	race_all(*state, true);
}

/* Answered ones are freed after a second: the sanitizers see what is touched after that. */
static void
test_answered_ones_are_freed_in_time(void **state)
{
	Seen first = {0}, waiting = {0}, last = {0};
	KvcfsPending *unreleased = kvcfs_pending_new(*state, NULL, now_ns(), note, &waiting);
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns(), note, &first));
	wait_answered(&first);
	wait_answered(&waiting);
	g_usleep(1300000);
	kvcfs_pending_release(kvcfs_pending_new(*state, NULL, now_ns(), note, &last));
	wait_answered(&last);
	/* This one lives as long as its waker. */
	kvcfs_pending_wake(unreleased);
	assert_int_equal(count_of(&waiting), 1);
}

/* Each has its own deadline, however many there are that are far from theirs. */
static void
test_many_wait_while_some_are_due(void **state)
{
	enum { N_FAR = 100000, N_NEAR = 1000 };
	g_autofree Seen *far = g_new0(Seen, N_FAR), *near = g_new0(Seen, N_NEAR);
	g_autofree KvcfsPending **waiting = g_new(KvcfsPending *, N_FAR);
	g_autofree int64_t *deadlines = g_new(int64_t, N_NEAR);
	for (int i = 0; i < N_FAR; i++)
		waiting[i] = kvcfs_pending_new(*state, NULL, now_ns() + FAR - i, note, &far[i]);
	for (int i = 0; i < N_NEAR; i++) {
		deadlines[i] = now_ns() + (i % 10) * MSEC;
		kvcfs_pending_release(
			kvcfs_pending_new(*state, NULL, deadlines[i], note, &near[i]));
	}
	for (int i = 0; i < N_NEAR; i++) {
		wait_answered(&near[i]);
		assert_int_equal(near[i].why, KVCFS_WAKE_TIMEOUT);
		assert_true(near[i].at_ns >= deadlines[i]);
	}
	for (int i = 0; i < N_FAR; i++) {
		assert_int_equal(count_of(&far[i]), 0);
		if (i % 2)
			kvcfs_pending_wake(waiting[i]);
	}
	kvcfs_pendings_stop(*state);
	for (int i = 0; i < N_FAR; i++) {
		assert_int_equal(count_of(&far[i]), 1);
		assert_int_equal(far[i].why, i % 2 ? KVCFS_WAKE_DONE : KVCFS_WAKE_INTERRUPT);
		if (i % 2 == 0)
			kvcfs_pending_release(waiting[i]);
	}
}

/* Timers wait for nobody: only requests are told to an operator. */
static void
test_timers_are_not_requests_that_wait(void **state)
{
	Seen seen = {0};
	int64_t oldest = 1;
	KvcfsPending *timer = kvcfs_pending_new(*state, NULL, now_ns() + FAR, note, &seen);
	assert_int_equal(kvcfs_pendings_count(*state, &oldest), 0);
	assert_int_equal(oldest, 0);
	kvcfs_pending_wake(timer);
	assert_int_equal(count_of(&seen), 1);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_wake_answers_at_once),
		TEST(test_deadline_answers),
		TEST(test_deadline_that_has_passed),
		TEST(test_released_timer_runs),
		TEST(test_later_timer_may_be_due_first),
		TEST(test_deadlines_are_met_in_order),
		TEST(test_stop_answers_what_waits),
		TEST(test_answer_may_make_another),
		TEST(test_wake_against_deadline_answers_once),
		TEST(test_wake_against_deadline_and_stop_answers_once),
		TEST(test_answered_ones_are_freed_in_time),
		TEST(test_many_wait_while_some_are_due),
		TEST(test_timers_are_not_requests_that_wait),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
