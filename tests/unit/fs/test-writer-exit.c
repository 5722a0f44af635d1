/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A thread is seen in the middle of its exit only by chance, but a process that nobody has waited
 * for yet shows the same flags and exit code.
 */

#include "fs/writer-exit.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void
test_running_thread_has_closed(void **state)
{
	(void)state;
	assert_int_equal(kvcfs_writer_exit_look(getpid()), KVCFS_WRITER_CLOSED);
	assert_int_equal(kvcfs_writer_exit_look(gettid()), KVCFS_WRITER_CLOSED);
	assert_int_equal(kvcfs_writer_exit_look(getppid()), KVCFS_WRITER_CLOSED);
}

static void *
look_at_myself(void *user)
{
	*(KvcfsWriterExit *)user = kvcfs_writer_exit_look(gettid());
	return NULL;
}

static void
test_other_thread_has_closed(void **state)
{
	pthread_t thread;
	KvcfsWriterExit seen = KVCFS_WRITER_UNKNOWN;
	(void)state;
	assert_int_equal(pthread_create(&thread, NULL, look_at_myself, &seen), 0);
	pthread_join(thread, NULL);
	assert_int_equal(seen, KVCFS_WRITER_CLOSED);
}

static void
test_pid_zero_is_unknown(void **state)
{
	(void)state;
	assert_int_equal(kvcfs_writer_exit_look(0), KVCFS_WRITER_UNKNOWN);
}

/* A child that ends by SIGNUM, or with the exit code CODE; not waited for yet. */
static pid_t
make_ended_child(int signum, int code)
{
	siginfo_t info;
	struct rlimit no_core = {0, 0};
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &no_core);
		if (signum) {
			signal(signum, SIG_DFL);
			raise(signum);
		}
		_exit(code);
	}
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	return pid;
}

static KvcfsWriterExit
look_and_reap(pid_t pid)
{
	int status;
	KvcfsWriterExit seen = kvcfs_writer_exit_look(pid);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return seen;
}

static void
test_dead_pid_is_unknown(void **state)
{
	(void)state;
	pid_t pid = make_ended_child(0, 0);
	look_and_reap(pid);
	assert_int_equal(kvcfs_writer_exit_look(pid), KVCFS_WRITER_UNKNOWN);
}

static void
test_ended_by_a_signal_is_killed(void **state)
{
	static const int signals[] = {SIGKILL, SIGTERM, SIGHUP, SIGSEGV};
	(void)state;
	for (size_t i = 0; i < sizeof(signals) / sizeof(signals[0]); i++)
		assert_int_equal(look_and_reap(make_ended_child(signals[i], 0)),
				 KVCFS_WRITER_KILLED);
}

/* The exit code of exit(9) is 9 << 8 there: no signal. */
static void
test_ended_by_exit_has_closed(void **state)
{
	static const int codes[] = {0, 1, 9, 127, 255};
	(void)state;
	for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++)
		assert_int_equal(look_and_reap(make_ended_child(0, codes[i])), KVCFS_WRITER_CLOSED);
}

static void *
sleep_for_ever(void *user)
{
	while (pause() < 0)
		;
	return user;
}

static void *
end_at_once(void *user)
{
	return user;
}

/* Its first thread has ended, another has not: what a FLUSH sees while exit cuts threads off. */
static void
test_exit_with_a_thread_left_is_cut_off(void **state)
{
	(void)state;
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, sleep_for_ever, NULL) != 0)
			_exit(1);
		pthread_exit(NULL);
	}
	KvcfsWriterExit seen = KVCFS_WRITER_CLOSED;
	for (int i = 0; i < 1000 && seen == KVCFS_WRITER_CLOSED; i++) {
		usleep(10000);
		seen = kvcfs_writer_exit_look(pid);
	}
	kill(pid, SIGKILL);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(seen, KVCFS_WRITER_CUT_OFF);
}

/* A thread that is gone may be one that was cut off and was the first to be done with its end. */
static void
test_exit_after_other_threads_is_cut_off(void **state)
{
	siginfo_t info;
	(void)state;
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		pthread_t thread;
		if (pthread_create(&thread, NULL, end_at_once, NULL) != 0)
			_exit(1);
		pthread_join(thread, NULL);
		_exit(0);
	}
	assert_int_equal(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
	assert_int_equal(look_and_reap(pid), KVCFS_WRITER_CUT_OFF);
}

static void
test_file_limit(void **state)
{
	struct rlimit limit = {12345, RLIM_INFINITY};
	(void)state;
	assert_true(kvcfs_writer_file_limit(0) == UINT64_MAX);
	assert_true(kvcfs_writer_file_limit(getpid()) == UINT64_MAX);
	int go[2];
	char byte;
	assert_int_equal(pipe(go), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		close(go[1]);
		_exit((int)read(go[0], &byte, 1));
	}
	assert_int_equal(prlimit(pid, RLIMIT_FSIZE, &limit, NULL), 0);
	uint64_t seen = kvcfs_writer_file_limit(pid);
	close(go[0]);
	close(go[1]);
	assert_int_equal(waitpid(pid, NULL, 0), pid);
	assert_int_equal(seen, 12345);
	assert_true(kvcfs_writer_file_limit(pid) == UINT64_MAX);
}

/* Field 2 of the line is the name, which may look like the rest of it. */
static void
test_name_with_brackets_and_spaces(void **state)
{
	static const char *const names[] = {"a) R 1 2 3 4 5", ") (", "   ", "((((((((((", "x)"};
	char before[16];
	(void)state;
	prctl(PR_GET_NAME, before);
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		prctl(PR_SET_NAME, names[i]);
		KvcfsWriterExit running = kvcfs_writer_exit_look(getpid());
		/* The child inherits the name. */
		pid_t killed = make_ended_child(SIGKILL, 0), exited = make_ended_child(0, 9);
		prctl(PR_SET_NAME, before);
		assert_int_equal(running, KVCFS_WRITER_CLOSED);
		assert_int_equal(look_and_reap(killed), KVCFS_WRITER_KILLED);
		assert_int_equal(look_and_reap(exited), KVCFS_WRITER_CLOSED);
	}
}

static void *
look_for_process(void *user)
{
	*(pid_t *)user = kvcfs_writer_process(gettid());
	return NULL;
}

static void
test_process_of_a_thread(void **state)
{
	pthread_t thread;
	pid_t process = 0;
	(void)state;
	/* A name that looks like the line that is read. */
	prctl(PR_SET_NAME, "a\nTgid:\t1\n");
	assert_int_equal(kvcfs_writer_process(getpid()), getpid());
	assert_int_equal(pthread_create(&thread, NULL, look_for_process, &process), 0);
	pthread_join(thread, NULL);
	assert_int_equal(process, getpid());
	assert_int_equal(kvcfs_writer_process(0), 0);
	pid_t pid = make_ended_child(0, 0);
	look_and_reap(pid);
	assert_int_equal(kvcfs_writer_process(pid), 0);
}

static void
test_start_tells_a_number_that_came_again(void **state)
{
	uint64_t before = kvcfs_writer_start(getpid()), own = 0;
	(void)state;
	assert_true(before > 0);
	assert_int_equal(kvcfs_writer_start(getpid()), before);
	assert_int_equal(kvcfs_writer_start(0), 0);
	usleep(30 * 1000); /* it counts hundredths of a second */
	pid_t pid = make_ended_child(0, 0);
	own = kvcfs_writer_start(pid);
	look_and_reap(pid);
	assert_true(own > before);
	assert_int_equal(kvcfs_writer_start(pid), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_running_thread_has_closed),
		cmocka_unit_test(test_other_thread_has_closed),
		cmocka_unit_test(test_pid_zero_is_unknown),
		cmocka_unit_test(test_dead_pid_is_unknown),
		cmocka_unit_test(test_ended_by_a_signal_is_killed),
		cmocka_unit_test(test_ended_by_exit_has_closed),
		cmocka_unit_test(test_exit_with_a_thread_left_is_cut_off),
		cmocka_unit_test(test_exit_after_other_threads_is_cut_off),
		cmocka_unit_test(test_file_limit),
		cmocka_unit_test(test_name_with_brackets_and_spaces),
		cmocka_unit_test(test_process_of_a_thread),
		cmocka_unit_test(test_start_tells_a_number_that_came_again),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
