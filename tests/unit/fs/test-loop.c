/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static bool
is_short(uint32_t opcode, const void *arg, size_t arg_size)
{
	char request[sizeof(struct fuse_in_header) + 128] = {0};
	struct fuse_in_header in = {.opcode = opcode, .len = (uint32_t)(sizeof in + arg_size)};
	memcpy(request, &in, sizeof in);
	memcpy(request + sizeof in, arg, arg_size);
	return kvcfs_loop_is_short(request, in.len);
}

static bool
is_short_open(uint32_t flags)
{
	struct fuse_open_in arg = {.flags = flags};
	return is_short(FUSE_OPEN, &arg, sizeof arg);
}

static bool
is_short_release(uint32_t flags)
{
	struct fuse_release_in arg = {.flags = flags};
	return is_short(FUSE_RELEASE, &arg, sizeof arg);
}

static void
test_reading_is_short(void **state)
{
	(void)state;
	assert_true(is_short(FUSE_LOOKUP, "name", 5));
	assert_true(is_short(FUSE_GETATTR, &(struct fuse_getattr_in){0},
			     sizeof(struct fuse_getattr_in)));
	assert_true(is_short_open(O_RDONLY));
	assert_true(is_short_open(O_RDONLY | O_CLOEXEC | O_DIRECT));
	assert_true(is_short_release(O_RDONLY));
}

static void
test_what_copies_or_commits_is_not(void **state)
{
	(void)state;
	const uint32_t opcodes[] = {FUSE_READ,	 FUSE_WRITE,	    FUSE_FLUSH,	   FUSE_FSYNC,
				    FUSE_CREATE, FUSE_FALLOCATE,    FUSE_RENAME2,  FUSE_READDIRPLUS,
				    FUSE_UNLINK, FUSE_BATCH_FORGET, FUSE_SETXATTR, FUSE_INIT,
				    0,		 UINT32_MAX};
	for (size_t i = 0; i < sizeof opcodes / sizeof opcodes[0]; i++)
		assert_false(is_short(opcodes[i], "", 0));
	assert_false(is_short_open(O_WRONLY));
	assert_false(is_short_open(O_RDWR));
	assert_false(is_short_open(O_RDONLY | O_TRUNC));
	assert_false(is_short_release(O_WRONLY));
	assert_false(is_short_release(O_RDWR));
}

static void
test_what_is_cut_off_is_not(void **state)
{
	(void)state;
	struct fuse_in_header in = {.opcode = FUSE_OPEN, .len = sizeof in};
	assert_false(kvcfs_loop_is_short(NULL, 4096));
	assert_false(kvcfs_loop_is_short(&in, 0));
	assert_false(kvcfs_loop_is_short(&in, sizeof in - 1));
	assert_false(kvcfs_loop_is_short(&in, sizeof in));
	in.opcode = FUSE_RELEASE;
	assert_false(kvcfs_loop_is_short(&in, sizeof in));
}

static void
test_hand_over_of_another_thread_does_nothing(void **state)
{
	(void)state;
	kvcfs_loop_hand_over();
	kvcfs_loop_hand_over();
}

/* ---- A loop of which the test is the kernel ------------------------------------------------- */

/* Handlers that wait until the test or another handler lets them go on. */
static struct {
	int kernel_fd;
	sem_t may_answer;
	struct fuse_session *se;
	KvcfsLoop *loop;
	pthread_t thread;
} mount;

static void
on_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	kvcfs_loop_hand_over();
	sem_wait(&mount.may_answer);
	fuse_reply_err(req, EDOM);
}

static void
on_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, ENOENT);
}

static void
on_statfs(fuse_req_t req, fuse_ino_t ino)
{
	sem_wait(&mount.may_answer);
	fuse_reply_err(req, ERANGE);
}

static ssize_t
io_read(int fd, void *buf, size_t size, void *userdata)
{
	ssize_t n = recv(fd, buf, size, 0);
	/* What the kernel says of a mount that is gone. */
	if (n == 0) {
		errno = ENODEV;
		n = -1;
	}
	return n;
}

static ssize_t
io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	return writev(fd, iov, count);
}

static void
send_request(uint32_t opcode, uint64_t unique, const void *arg, size_t arg_size)
{
	char request[512];
	struct fuse_in_header in = {.opcode = opcode,
				    .unique = unique,
				    .nodeid = 1,
				    .len = (uint32_t)(sizeof in + arg_size)};
	memcpy(request, &in, sizeof in);
	memcpy(request + sizeof in, arg, arg_size);
	assert_int_equal(send(mount.kernel_fd, request, in.len, 0), in.len);
}

/* The errno that the next answer has, of the request *UNIQUE. */
static int
receive_answer(uint64_t *unique)
{
	char answer[512];
	struct fuse_out_header out;
	assert_true(recv(mount.kernel_fd, answer, sizeof answer, 0) >= (ssize_t)sizeof out);
	memcpy(&out, answer, sizeof out);
	*unique = out.unique;
	return -out.error;
}

static void *
run_loop(void *data)
{
	return (void *)(intptr_t)kvcfs_loop_run(mount.loop);
}

static int
set_up(void **state)
{
	static const struct fuse_custom_io io = {.read = io_read, .writev = io_writev};
	static const struct fuse_lowlevel_ops ops = {
		.getattr = on_getattr, .lookup = on_lookup, .statfs = on_statfs};
	struct fuse_init_in init = {.major = FUSE_KERNEL_VERSION, .minor = 31};
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_buf buf = {.mem = NULL};
	uint64_t unique;
	int fds[2];
	assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds), 0);
	mount.kernel_fd = fds[0];
	sem_init(&mount.may_answer, 0, 0);
	fuse_opt_add_arg(&args, "test-loop");
	mount.se = fuse_session_new(&args, &ops, sizeof ops, NULL);
	fuse_opt_free_args(&args);
	assert_non_null(mount.se);
	assert_int_equal(fuse_session_custom_io(mount.se, &io, fds[1]), 0);
	send_request(FUSE_INIT, 1, &init, sizeof init);
	assert_true(fuse_session_receive_buf(mount.se, &buf) > 0);
	fuse_session_process_buf(mount.se, &buf);
	free(buf.mem);
	assert_int_equal(receive_answer(&unique), 0);
	mount.loop = kvcfs_loop_new(mount.se);
	assert_int_equal(pthread_create(&mount.thread, NULL, run_loop, NULL), 0);
	return 0;
}

static int
tear_down(void **state)
{
	void *result;
	shutdown(mount.kernel_fd, SHUT_WR);
	assert_int_equal(pthread_join(mount.thread, &result), 0);
	assert_null(result);
	assert_true(fuse_session_exited(mount.se));
	kvcfs_loop_free(mount.loop);
	fuse_session_destroy(mount.se);
	close(mount.kernel_fd);
	sem_destroy(&mount.may_answer);
	return 0;
}

static void
look_up(uint64_t unique)
{
	uint64_t answered;
	send_request(FUSE_LOOKUP, unique, "name", 5);
	assert_int_equal(receive_answer(&answered), ENOENT);
	assert_int_equal(answered, unique);
}

/* Fifteen handlers wait, in turn of a kind that is short and says that it takes longer, and of one
 * that is not. */
static void
test_others_are_answered_meanwhile(void **state)
{
	struct fuse_getattr_in arg = {0};
	(void)state;
	look_up(100);
	for (uint64_t i = 0; i < 15; i++) {
		if (i % 2 == 0)
			send_request(FUSE_GETATTR, 200 + i, &arg, sizeof arg);
		else
			send_request(FUSE_STATFS, 200 + i, "", 0);
		look_up(300 + i);
		look_up(400 + i);
	}
	uint64_t seen = 0, unique;
	for (int i = 0; i < 15; i++)
		sem_post(&mount.may_answer);
	for (int i = 0; i < 15; i++) {
		int error = receive_answer(&unique);
		assert_in_range(unique, 200, 214);
		assert_int_equal(error, unique % 2 == 0 ? EDOM : ERANGE);
		seen |= UINT64_C(1) << (unique - 200);
	}
	assert_int_equal(seen, (1 << 15) - 1);
	look_up(500);
}

/* Those that wait for a request and for their turn end, and who is in a handler when it returns. */
static void
test_exit_waits_for_handlers(void **state)
{
	(void)state;
	send_request(FUSE_STATFS, 2, "", 0);
	look_up(3);
	fuse_session_exit(mount.se);
	kvcfs_loop_wake(mount.loop);
	usleep(20000);
	assert_int_equal(pthread_tryjoin_np(mount.thread, NULL), EBUSY);
	sem_post(&mount.may_answer);
	uint64_t unique;
	assert_int_equal(receive_answer(&unique), ERANGE);
}

static int64_t
processor_ms(void)
{
	struct timespec t;
	assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t), 0);
	return t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Readers look for the next request while requests follow each other, and only then. */
static void
test_readers_sleep_when_requests_end(void **state)
{
	(void)state;
	for (uint64_t i = 0; i < 200; i++)
		look_up(100 + i);
	int64_t before = processor_ms();
	usleep(300000);
	assert_in_range(processor_ms() - before, 0, 30);
	look_up(400);
	before = processor_ms();
	usleep(300000);
	assert_in_range(processor_ms() - before, 0, 30);
	look_up(401);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_reading_is_short),
		cmocka_unit_test(test_what_copies_or_commits_is_not),
		cmocka_unit_test(test_what_is_cut_off_is_not),
		cmocka_unit_test(test_hand_over_of_another_thread_does_nothing),
		cmocka_unit_test_setup_teardown(test_others_are_answered_meanwhile, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_readers_sleep_when_requests_end, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_exit_waits_for_handlers, set_up, tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
