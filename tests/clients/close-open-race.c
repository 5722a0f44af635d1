/* SPDX-License-Identifier: Apache-2.0 */

/*
 * close-open-race [-k] [-s BYTES] DIRECTORY COUNT LARGE: the promise every engine relies on, COUNT
 * times. One process writes an object and closes it (even turns: in place; odd turns: under a
 * temporary name, then renames it) and tells another through a pipe, which opens it at once. The
 * name must be there, with its whole size and its bytes. LARGE of the objects, spread evenly, have
 * 32 MiB, the others BYTES (64K). Each is removed before the next, with -k all are kept. The last
 * line is the longest that a close took, in milliseconds.
 *
 * The writer's buffer is shared memory and does not change before the reader has answered, so the
 * reader compares with what was written.
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#define LARGE_BYTES (32u << 20)
#define PAGE_BYTES 4096u

typedef struct Race {
	const char *directory;
	unsigned count, large;
	size_t small_bytes;
	bool keeps;
	long longest_close_ms;
	char *buffer; /* shared by both processes */
} Race;

static size_t
object_bytes(const Race *race, unsigned i)
{
	if (race->large > 0 && i % (race->count / race->large) == 0)
		return LARGE_BYTES;
	return race->small_bytes;
}

static void
object_path(const Race *race, unsigned i, char out[PATH_MAX])
{
	snprintf(out, PATH_MAX, "%s/%056x%08x", race->directory, 0xcafe, i + 1);
}

/* Makes the buffer differ from the one before on every page. */
static void
stamp(char *buffer, size_t bytes, unsigned i)
{
	for (size_t offset = 0; offset < bytes; offset += PAGE_BYTES)
		memcpy(buffer + offset, &i, sizeof(i));
}

static long
now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000 + ts.tv_nsec / 1000000;
}

static void
write_object(Race *race, unsigned i)
{
	char name[PATH_MAX], temporary[PATH_MAX + 16];
	bool in_place = i % 2 == 0;
	size_t bytes = object_bytes(race, i);
	const char *path;
	int fd;

	object_path(race, i, name);
	snprintf(temporary, sizeof(temporary), "%s.tmp.%d", name, (int)getpid());
	path = in_place ? name : temporary;
	stamp(race->buffer, bytes, i);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		err(1, "%u: create %s", i, path);
	client_write_all(fd, race->buffer, bytes, path);
	long begin = now_ms();
	if (close(fd) < 0)
		err(1, "%u: close %s", i, path);
	if (now_ms() - begin > race->longest_close_ms)
		race->longest_close_ms = now_ms() - begin;
	if (!in_place && rename(temporary, name) < 0)
		err(1, "%u: rename to %s", i, name);
}

static void
read_object(const Race *race, unsigned i, char *data)
{
	char name[PATH_MAX];
	size_t bytes = object_bytes(race, i);
	struct stat st;
	ssize_t n;
	int fd;

	object_path(race, i, name);
	fd = open(name, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		err(1, "%u: open %s just after its close", i, name);
	if (fstat(fd, &st) < 0)
		err(1, "%u: fstat %s", i, name);
	if ((size_t)st.st_size != bytes)
		errx(1, "%u: size of %s is %lld, not %zu", i, name, (long long)st.st_size, bytes);
	n = read(fd, data, bytes);
	if (n != (ssize_t)bytes)
		errx(1, "%u: read %s: %zd of %zu", i, name, n, bytes);
	if (memcmp(data, race->buffer, bytes) != 0)
		errx(1, "%u: %s differs from what was written", i, name);
	close(fd);
	if (!race->keeps && unlink(name) < 0)
		err(1, "%u: unlink %s", i, name);
}

static int
run_reader(const Race *race, int requests, int answers)
{
	char *data = malloc(LARGE_BYTES);
	unsigned i;

	if (!data)
		err(2, "malloc");
	while (read(requests, &i, sizeof(i)) == sizeof(i)) {
		read_object(race, i, data);
		if (write(answers, &i, sizeof(i)) != sizeof(i))
			err(2, "answer");
	}
	free(data);
	return 0;
}

static void
run_writer(Race *race, int requests, int answers)
{
	unsigned answer;

	for (unsigned i = 0; i < race->count; i++) {
		write_object(race, i);
		if (write(requests, &i, sizeof(i)) != sizeof(i))
			err(2, "request");
		if (read(answers, &answer, sizeof(answer)) != sizeof(answer))
			errx(1, "the reader ended at %u", i);
	}
}

int
main(int argc, char **argv)
{
	Race race = {.small_bytes = 64u << 10};
	uint64_t seed = 7;
	int requests[2], answers[2], status, option;
	pid_t reader;

	while ((option = getopt(argc, argv, "ks:")) != -1) {
		if (option == 'k')
			race.keeps = true;
		else if (option == 's')
			race.small_bytes = client_parse_size(optarg);
		else
			return 2;
	}
	if (argc - optind != 3 || race.small_bytes > LARGE_BYTES)
		errx(2, "usage: close-open-race [-k] [-s BYTES] DIRECTORY COUNT LARGE");
	race.directory = argv[optind];
	race.count = (unsigned)strtoul(argv[optind + 1], NULL, 10);
	race.large = (unsigned)strtoul(argv[optind + 2], NULL, 10);
	race.buffer =
		mmap(NULL, LARGE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (race.buffer == MAP_FAILED || pipe(requests) < 0 || pipe(answers) < 0)
		err(2, "set up");
	pattern_fill(&seed, race.buffer, LARGE_BYTES);
	reader = fork();
	if (reader < 0)
		err(2, "fork");
	if (reader == 0) {
		close(requests[1]);
		close(answers[0]);
		_exit(run_reader(&race, requests[0], answers[1]));
	}
	close(requests[0]);
	close(answers[1]);
	run_writer(&race, requests[1], answers[0]);
	close(requests[1]);
	if (waitpid(reader, &status, 0) < 0 || status != 0)
		errx(1, "the reader failed");
	printf("%u objects, %u of them %u MiB\n", race.count, race.large, LARGE_BYTES >> 20);
	printf("%ld\n", race.longest_close_ms);
	return 0;
}
