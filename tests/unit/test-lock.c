/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/lock.h"

typedef struct Counter {
	KvcMutex lock;
	pthread_cond_t changed;
	/* Protected by lock. */
	int value;
} Counter;

static void
counter_init(Counter *counter)
{
	kvc_mutex_init(&counter->lock, KVC_LOCK_LEAF);
	kvc_cond_init(&counter->changed);
	counter->value = 0;
}

static void
counter_deinit(Counter *counter)
{
	pthread_cond_destroy(&counter->changed);
	kvc_mutex_deinit(&counter->lock);
}

static void *
count_up(void *user)
{
	Counter *counter = user;

	for (int i = 0; i < 10000; i++) {
		kvc_mutex_lock(&counter->lock);
		counter->value++;
		pthread_cond_signal(&counter->changed);
		kvc_mutex_unlock(&counter->lock);
	}
	return NULL;
}

#define N_READERS 8

typedef struct Readers {
	KvcRwLock lock;
	int is_stopping; /* Atomic */
} Readers;

/* Some reader always has the lock. */
static void *
read_without_end(void *user)
{
	Readers *readers = user;
	struct timespec pause = {.tv_nsec = 2 * KVC_MSEC_NS};

	while (!__atomic_load_n(&readers->is_stopping, __ATOMIC_RELAXED)) {
		kvc_rwlock_lock_shared(&readers->lock);
		nanosleep(&pause, NULL);
		kvc_rwlock_unlock(&readers->lock);
	}
	return NULL;
}

static void *
write_ten_times(void *user)
{
	Readers *readers = user;

	for (int i = 0; i < 10; i++) {
		kvc_rwlock_lock(&readers->lock);
		kvc_rwlock_unlock(&readers->lock);
	}
	return NULL;
}

static void
test_readers_do_not_keep_a_writer_out(void **state)
{
	Readers readers = {0};
	pthread_t threads[N_READERS], writer;
	struct timespec limit;

	kvc_rwlock_init(&readers.lock, KVC_LOCK_LEAF);
	for (int i = 0; i < N_READERS; i++)
		pthread_create(&threads[i], NULL, read_without_end, &readers);
	pthread_create(&writer, NULL, write_ten_times, &readers);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 20;
	int rc = pthread_timedjoin_np(writer, NULL, &limit);
	__atomic_store_n(&readers.is_stopping, 1, __ATOMIC_RELAXED);
	for (int i = 0; i < N_READERS; i++)
		pthread_join(threads[i], NULL);
	if (rc != 0)
		pthread_join(writer, NULL);
	kvc_rwlock_deinit(&readers.lock);
	assert_int_equal(rc, 0);
}

typedef struct Pair {
	KvcMutex locks[2];
	/* Protected by both locks. */
	int value;
} Pair;

static void
add_with_both(Pair *pair, int first)
{
	KvcMutex *a = &pair->locks[first], *b = &pair->locks[1 - first];
	kvc_mutex_lock_both(a, b);
	pair->value++;
	kvc_mutex_unlock_both(a, b);
}

static void *
count_with_both(void *user)
{
	for (int i = 0; i < 20000; i++)
		add_with_both(user, 1);
	return NULL;
}

static void
test_two_locks_of_a_rank_are_taken_in_one_order(void **state)
{
	Pair pair = {.value = 0};
	pthread_t thread;
	for (size_t i = 0; i < 2; i++)
		kvc_mutex_init(&pair.locks[i], KVC_LOCK_L1_SHARD);
	assert_int_equal(pthread_create(&thread, NULL, count_with_both, &pair), 0);
	for (int i = 0; i < 20000; i++)
		add_with_both(&pair, 0);
	pthread_join(thread, NULL);
	assert_int_equal(pair.value, 40000);
	/* The same one twice is locked once. */
	kvc_mutex_lock_both(&pair.locks[0], &pair.locks[0]);
	assert_int_equal(pthread_mutex_trylock(&pair.locks[0].mutex), EBUSY);
	kvc_mutex_unlock_both(&pair.locks[0], &pair.locks[0]);
	for (size_t i = 0; i < 2; i++)
		kvc_mutex_deinit(&pair.locks[i]);
}

static void
test_mutex_excludes(void **state)
{
	pthread_t threads[4];
	Counter counter;

	counter_init(&counter);
	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, count_up, &counter), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(counter.value, 40000);
	counter_deinit(&counter);
}

static void
test_wait_ends_when_signalled(void **state)
{
	pthread_t thread;
	Counter counter;
	int result = 0;

	counter_init(&counter);
	assert_int_equal(pthread_create(&thread, NULL, count_up, &counter), 0);
	kvc_mutex_lock(&counter.lock);
	while (counter.value < 5000)
		assert_int_equal(kvc_cond_wait_until(&counter.changed, &counter.lock, 0), 0);
	while (counter.value < 10000 && result == 0)
		result = kvc_cond_wait_until(&counter.changed, &counter.lock,
					     kvc_now_ns() + 60 * KVC_SEC_NS);
	assert_int_equal(result, 0);
	kvc_mutex_unlock(&counter.lock);
	pthread_join(thread, NULL);
	counter_deinit(&counter);
}

static void
test_wait_ends_at_its_deadline(void **state)
{
	Counter counter;
	int64_t deadline_ns;
	int result = 0;

	counter_init(&counter);
	kvc_mutex_lock(&counter.lock);
	deadline_ns = kvc_now_ns() + 30 * KVC_MSEC_NS;
	while (result == 0) /* it may wake up for nothing */
		result = kvc_cond_wait_until(&counter.changed, &counter.lock, deadline_ns);
	assert_int_equal(result, ETIMEDOUT);
	assert_true(kvc_now_ns() >= deadline_ns);
	/* One that has passed already. */
	assert_int_equal(kvc_cond_wait_until(&counter.changed, &counter.lock, 1), ETIMEDOUT);
	kvc_mutex_unlock(&counter.lock);
	counter_deinit(&counter);
}

static void
test_clocks(void **state)
{
	struct timespec before;
	int64_t passed_ns;

	clock_gettime(CLOCK_MONOTONIC, &before);
	passed_ns = kvc_now_ns() - before.tv_sec * KVC_SEC_NS - before.tv_nsec;
	assert_true(passed_ns >= 0 && passed_ns < 60 * KVC_SEC_NS);
	/* Nanoseconds since the epoch: after 2020, before 2200. */
	assert_true(kvc_wall_ns() > INT64_C(1577836800) * KVC_SEC_NS);
	assert_true(kvc_wall_ns() < INT64_C(7258118400) * KVC_SEC_NS);
}

/* Every rank below every higher one, and released in another order than taken. */
static void
test_ascending_ranks_are_fine(void **state)
{
	KvcMutex locks[KVC_LOCK_LEAF + 1];

	for (int round = 0; round < 2; round++) {
		for (int rank = 1; rank <= KVC_LOCK_LEAF; rank++) {
			kvc_mutex_init(&locks[rank], (KvcLockRank)rank);
			kvc_mutex_lock(&locks[rank]);
		}
		for (int rank = 1; rank <= KVC_LOCK_LEAF; rank++) {
			kvc_mutex_unlock(&locks[rank]);
			kvc_mutex_deinit(&locks[rank]);
		}
	}
}

#ifdef KVC_DEBUG_LOCKS

/* Runs DO_IT in a child; its last words, or "" when it came back (static memory). */
static const char *
last_words(void (*do_it)(void))
{
	static char text[512];
	int fds[2], status;
	size_t len = 0;
	ssize_t n;
	pid_t pid;

	assert_int_equal(pipe(fds), 0);
	pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		do_it();
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		return "";
	assert_true(WIFSIGNALED(status));
	assert_int_equal(WTERMSIG(status), SIGABRT);
	return text;
}

static void
take_two(KvcLockRank first, KvcLockRank second)
{
	KvcMutex a, b;

	kvc_mutex_init(&a, first);
	kvc_mutex_init(&b, second);
	kvc_mutex_lock(&a);
	kvc_mutex_lock(&b);
}

static void
invert(void)
{
	take_two(KVC_LOCK_INDEX_SHARD, KVC_LOCK_L1_SHARD);
}

static void
take_equal_ranks(void)
{
	take_two(KVC_LOCK_LEAF, KVC_LOCK_LEAF);
}

static void
take_in_order(void)
{
	take_two(KVC_LOCK_L1_SHARD, KVC_LOCK_LEAF);
}

/* The highest one goes first; what is left still counts. */
static void
invert_after_unlock(void)
{
	KvcMutex low, high, middle;

	kvc_mutex_init(&low, KVC_LOCK_STORAGE_MANAGER);
	kvc_mutex_init(&middle, KVC_LOCK_L1_SHARD);
	kvc_mutex_init(&high, KVC_LOCK_LEAF);
	kvc_mutex_lock(&middle);
	kvc_mutex_lock(&high);
	kvc_mutex_unlock(&high);
	kvc_mutex_lock(&low);
}

static void
unlock_what_is_not_held(void)
{
	KvcMutex lock;

	kvc_mutex_init(&lock, KVC_LOCK_LEAF);
	kvc_mutex_unlock(&lock);
}

static void
wait_with_another_lock(void)
{
	KvcMutex other;
	Counter counter;

	kvc_mutex_init(&other, KVC_LOCK_L1_SHARD);
	counter_init(&counter);
	kvc_mutex_lock(&other);
	kvc_mutex_lock(&counter.lock);
	kvc_cond_wait_until(&counter.changed, &counter.lock, 1);
}

static void
test_violations_abort(void **state)
{
	const char *text = last_words(invert);

	assert_non_null(strstr(text, "L1_SHARD"));
	assert_non_null(strstr(text, "INDEX_SHARD"));
	text = last_words(take_equal_ranks);
	assert_non_null(strstr(text, "taking LEAF"));
	assert_non_null(strstr(text, "holding LEAF"));
	text = last_words(invert_after_unlock);
	assert_non_null(strstr(text, "taking STORAGE_MANAGER"));
	assert_non_null(strstr(text, "holding L1_SHARD"));
	assert_non_null(strstr(last_words(unlock_what_is_not_held), "releasing LEAF"));
	text = last_words(wait_with_another_lock);
	assert_non_null(strstr(text, "waiting with LEAF"));
	assert_non_null(strstr(text, "holding L1_SHARD"));
	assert_string_equal(last_words(take_in_order), "");
}

static void *
take_and_release_lower(void *user)
{
	KvcMutex *lock = user;

	kvc_mutex_lock(lock);
	kvc_mutex_unlock(lock);
	return NULL;
}

/* What one thread holds says nothing about another. */
static void
test_threads_are_apart(void **state)
{
	KvcMutex low, high;
	pthread_t thread;

	kvc_mutex_init(&low, KVC_LOCK_STORAGE_MANAGER);
	kvc_mutex_init(&high, KVC_LOCK_LEAF);
	kvc_mutex_lock(&high);
	assert_int_equal(pthread_create(&thread, NULL, take_and_release_lower, &low), 0);
	pthread_join(thread, NULL);
	kvc_mutex_unlock(&high);
	kvc_mutex_deinit(&low);
	kvc_mutex_deinit(&high);
}

#endif

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_mutex_excludes),
		cmocka_unit_test(test_two_locks_of_a_rank_are_taken_in_one_order),
		cmocka_unit_test(test_wait_ends_when_signalled),
		cmocka_unit_test(test_wait_ends_at_its_deadline),
		cmocka_unit_test(test_clocks),
		cmocka_unit_test(test_readers_do_not_keep_a_writer_out),
		cmocka_unit_test(test_ascending_ranks_are_fine),
#ifdef KVC_DEBUG_LOCKS
		cmocka_unit_test(test_violations_abort),
		cmocka_unit_test(test_threads_are_apart),
#endif
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
