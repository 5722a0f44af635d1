/* SPDX-License-Identifier: Apache-2.0 */

/*
 * file-steps [-t]: does what standard input says, a step a line, with one descriptor, and answers
 * each line at once: "TAG STEP [ARGUMENT...]" with "TAG RESULT". RESULT is 0, the name of the errno
 * ("ENOENT"), or what the step says; with -t the milliseconds that the step took follow. It ends
 * without a close at the end of its input.
 *
 *   open PATH FLAGS: of r w (both: read and write) c (O_CREAT) t (O_TRUNC) x (O_EXCL) a (O_APPEND)
 *     d (O_DIRECT) n (O_NOATIME)
 *   dup, drop: keeps a second descriptor of the same open, closes that one
 *   keep: the descriptor is that second one, for another open
 *   direct: O_DIRECT by F_SETFL
 *   write SEED BYTES: that seed's data, in one write
 *   pwrite SEED BYTES OFFSET: the same at an offset
 *   check SEED BYTES: by fstat and pread the file is exactly that: "0", "size:N", "differs"
 *   map-write SEED BYTES: declares the size, stores the data through a shared mapping, unmaps
 *   map-check SEED BYTES: a shared mapping has that data: "0" or "differs"
 *   ftruncate BYTES, fsync, close
 *   stat PATH, unlink PATH, mkdir PATH, rmdir PATH, list PATH
 *   rename PATH PATH, truncate PATH BYTES, chmod PATH MODE (octal), utimens PATH SECONDS
 *   thread STEP [ARGUMENT...]: the same, in a thread made for it
 *   limit BYTES STEP [ARGUMENT...]: the same, with that RLIMIT_FSIZE: EFBIG instead of a signal
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>

#define N_WORDS 6

static int fd = -1, second_fd = -1;
static char answer[64];

static const char *
errno_or_0(long rc)
{
	return rc < 0 ? strerrorname_np(errno) : "0";
}

static const char *
do_open(const char *path, const char *flags)
{
	bool reads = strchr(flags, 'r'), writes = strchr(flags, 'w');
	int how = reads && writes ? O_RDWR : writes ? O_WRONLY : O_RDONLY;

	how |= strchr(flags, 'c') ? O_CREAT : 0;
	how |= strchr(flags, 't') ? O_TRUNC : 0;
	how |= strchr(flags, 'x') ? O_EXCL : 0;
	how |= strchr(flags, 'a') ? O_APPEND : 0;
	how |= strchr(flags, 'd') ? O_DIRECT : 0;
	how |= strchr(flags, 'n') ? O_NOATIME : 0;
	fd = open(path, how | O_CLOEXEC, 0644);
	return errno_or_0(fd);
}

static char *
data_of(const char *seed, size_t bytes)
{
	uint64_t state = strtoull(seed, NULL, 10);
	char *data = malloc(bytes + 1);

	if (!data)
		err(2, "malloc");
	pattern_fill(&state, data, bytes);
	return data;
}

static const char *
do_write(const char *seed, size_t bytes, const char *offset)
{
	char *data = data_of(seed, bytes);
	ssize_t n;

	n = offset ? pwrite(fd, data, bytes, (off_t)client_parse_size(offset))
		   : write(fd, data, bytes);
	free(data);
	if (n < 0 || (size_t)n == bytes)
		return errno_or_0(n);
	snprintf(answer, sizeof(answer), "short:%zd", n);
	return answer;
}

static const char *
do_check(const char *seed, size_t bytes)
{
	struct stat st;

	if (fstat(fd, &st) < 0)
		return errno_or_0(-1);
	if ((size_t)st.st_size != bytes) {
		snprintf(answer, sizeof(answer), "size:%lld", (long long)st.st_size);
		return answer;
	}
	char *expected = data_of(seed, bytes), *data = malloc(bytes + 1);
	if (!data)
		err(2, "malloc");
	ssize_t n = pread(fd, data, bytes + 1, 0);
	bool is_same = n == (ssize_t)bytes && memcmp(data, expected, bytes) == 0;
	free(data);
	free(expected);
	return n < 0 ? errno_or_0(n) : is_same ? "0" : "differs";
}

static const char *
do_map_write(const char *seed, size_t bytes)
{
	if (ftruncate(fd, (off_t)bytes) < 0)
		return errno_or_0(-1);
	char *map = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return errno_or_0(-1);
	char *data = data_of(seed, bytes);
	memcpy(map, data, bytes);
	free(data);
	return errno_or_0(munmap(map, bytes));
}

static const char *
do_map_check(const char *seed, size_t bytes)
{
	char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		return errno_or_0(-1);
	char *expected = data_of(seed, bytes);
	bool is_same = memcmp(map, expected, bytes) == 0;
	free(expected);
	munmap(map, bytes);
	return is_same ? "0" : "differs";
}

static const char *
do_close(int *descriptor)
{
	int rc = close(*descriptor);

	*descriptor = -1;
	return errno_or_0(rc);
}

static const char *
do_list(const char *path)
{
	DIR *dir = opendir(path);

	if (!dir)
		return errno_or_0(-1);
	do
		errno = 0;
	while (readdir(dir));
	int rc = errno ? -1 : 0;
	const char *result = errno_or_0(rc);
	closedir(dir);
	return result;
}

/* What is done with the descriptor; NULL: no such step. */
static const char *
do_descriptor_step(char **words)
{
	const char *step = words[0];

	if (!strcmp(step, "open"))
		return do_open(words[1], words[2]);
	if (!strcmp(step, "dup"))
		return errno_or_0(second_fd = fcntl(fd, F_DUPFD_CLOEXEC, 0));
	if (!strcmp(step, "keep")) {
		second_fd = fd;
		fd = -1;
		return "0";
	}
	if (!strcmp(step, "drop"))
		return do_close(&second_fd);
	if (!strcmp(step, "direct"))
		return errno_or_0(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT));
	if (!strcmp(step, "write"))
		return do_write(words[1], client_parse_size(words[2]), NULL);
	if (!strcmp(step, "pwrite"))
		return do_write(words[1], client_parse_size(words[2]), words[3]);
	if (!strcmp(step, "check"))
		return do_check(words[1], client_parse_size(words[2]));
	if (!strcmp(step, "map-write"))
		return do_map_write(words[1], client_parse_size(words[2]));
	if (!strcmp(step, "map-check"))
		return do_map_check(words[1], client_parse_size(words[2]));
	if (!strcmp(step, "ftruncate"))
		return errno_or_0(ftruncate(fd, (off_t)client_parse_size(words[1])));
	if (!strcmp(step, "fsync"))
		return errno_or_0(fsync(fd));
	if (!strcmp(step, "close"))
		return do_close(&fd);
	return NULL;
}

static const char *
do_utimens(const char *path, const char *seconds)
{
	struct timespec times[2] = {{.tv_nsec = UTIME_OMIT}, {.tv_sec = atol(seconds)}};

	return errno_or_0(utimensat(AT_FDCWD, path, times, 0));
}

/* What is done with a path. */
static const char *
do_path_step(char **words)
{
	const char *step = words[0];
	struct stat st;

	if (!strcmp(step, "stat"))
		return errno_or_0(stat(words[1], &st));
	if (!strcmp(step, "unlink"))
		return errno_or_0(unlink(words[1]));
	if (!strcmp(step, "mkdir"))
		return errno_or_0(mkdir(words[1], 0755));
	if (!strcmp(step, "rmdir"))
		return errno_or_0(rmdir(words[1]));
	if (!strcmp(step, "list"))
		return do_list(words[1]);
	if (!strcmp(step, "rename"))
		return errno_or_0(rename(words[1], words[2]));
	if (!strcmp(step, "truncate"))
		return errno_or_0(truncate(words[1], (off_t)client_parse_size(words[2])));
	if (!strcmp(step, "chmod"))
		return errno_or_0(chmod(words[1], (mode_t)strtoul(words[2], NULL, 8)));
	if (!strcmp(step, "utimens"))
		return do_utimens(words[1], words[2]);
	errx(2, "unknown step \"%s\"", step);
}

static const char *do_step(char **words);

static void *
do_step_in_thread(void *user)
{
	return (void *)do_step(user);
}

static const char *
do_thread(char **words)
{
	pthread_t thread;
	void *result;

	errno = pthread_create(&thread, NULL, do_step_in_thread, words);
	if (errno)
		err(2, "pthread_create");
	pthread_join(thread, &result);
	return result;
}

/* Only for its time: it is the limit of the answers as well. */
static const char *
do_limited(size_t bytes, char **words)
{
	struct rlimit before, limit;

	if (getrlimit(RLIMIT_FSIZE, &before) < 0)
		err(2, "getrlimit");
	limit = (struct rlimit){.rlim_cur = bytes, .rlim_max = before.rlim_max};
	signal(SIGXFSZ, SIG_IGN);
	if (setrlimit(RLIMIT_FSIZE, &limit) < 0)
		err(2, "setrlimit");
	const char *result = do_step(words);
	if (setrlimit(RLIMIT_FSIZE, &before) < 0)
		err(2, "setrlimit");
	return result;
}

/* WORDS[0] is the step; those that are missing are empty. */
static const char *
do_step(char **words)
{
	if (!strcmp(words[0], "thread"))
		return do_thread(words + 1);
	if (!strcmp(words[0], "limit"))
		return do_limited(client_parse_size(words[1]), words + 2);
	const char *result = do_descriptor_step(words);

	return result ? result : do_path_step(words);
}

static long
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

int
main(int argc, char **argv)
{
	static char line[2 * PATH_MAX + 64], empty[1];
	bool is_timed = argc == 2 && !strcmp(argv[1], "-t");

	if (argc > 2 || (argc == 2 && !is_timed))
		errx(2, "usage: file-steps [-t] <STEPS");
	while (fgets(line, sizeof(line), stdin)) {
		char *words[N_WORDS + 1] = {empty, empty, empty, empty, empty, empty, empty};
		char *rest = line, *word;
		size_t n = 0;

		while (n <= N_WORDS && (word = strtok_r(rest, " \n", &rest)))
			words[n++] = word;
		if (n < 2)
			errx(2, "no step in a line");
		long begin = now_ms();
		const char *result = do_step(words + 1);
		printf("%s %s", words[0], result);
		if (is_timed)
			printf(" %ld", now_ms() - begin);
		puts("");
		fflush(stdout);
	}
	_exit(0);
}
