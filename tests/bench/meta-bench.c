/* SPDX-License-Identifier: Apache-2.0 */

/*
 * meta-bench ROUNDS CALLS NAME=DIRECTORY...: what engines do with names, in each DIRECTORY in turn,
 * ROUNDS times: CALLS times each of
 *
 *	open+close     of 256 objects of 4 KiB that are there, read-only
 *	stat           of the same
 *	absent         access() of names that are not there, each another one
 *	create+rename  of new files of 4 KiB: open, write, close, rename
 *
 * Prints a line for each of them and each NAME: OPERATION NAME median-of-rates-per-second
 * p99-in-microseconds (over all calls of all rounds). What it made is removed, the objects at the
 * end.
 */

#include "tests/clients/client-io.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_ROUNDS 101
#define MAX_PLACES 8
#define N_OBJECTS 256
#define OBJECT_BYTES 4096
/* What no object has: of names that are absent, and of new ones. */
#define ABSENT 0x10000000u
#define NEW 0x20000000u

typedef enum { OPEN, STAT, ABSENT_NAME, CREATE, N_OPERATIONS } Operation;

static const char *const operation_names[] = {"open+close", "stat", "absent", "create+rename"};

typedef struct Series {
	double rates[MAX_ROUNDS]; /* one a round */
	uint32_t *calls_ns;	  /* one a call of all rounds */
	size_t n_calls;
} Series;

typedef struct Place {
	char *name, *directory;
	Series series[N_OPERATIONS];
	unsigned next; /* of the names that are used once */
} Place;

static char buffer[OBJECT_BYTES];

static int64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static const char *
path_of(const Place *place, unsigned i, const char *suffix)
{
	static char paths[2][PATH_MAX];
	static unsigned turn;
	char *path = paths[turn++ % 2];

	snprintf(path, PATH_MAX, "%s/%064x%s", place->directory, i + 1, suffix);
	return path;
}

static void
create(const Place *place, unsigned i)
{
	const char *temp = path_of(place, i, ".tmp");
	int fd = open(temp, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);

	if (fd < 0)
		err(1, "create %s", temp);
	client_write_all(fd, buffer, sizeof(buffer), temp);
	if (close(fd) < 0)
		err(1, "close %s", temp);
	if (rename(temp, path_of(place, i, "")) < 0)
		err(1, "rename %s", temp);
}

static void
run_once(Place *place, Operation operation, unsigned i)
{
	const char *path;
	struct stat st;
	int fd;

	switch (operation) {
	case OPEN:
		path = path_of(place, i % N_OBJECTS, "");
		fd = open(path, O_RDONLY | O_CLOEXEC);
		if (fd < 0)
			err(1, "open %s", path);
		close(fd);
		break;
	case STAT:
		path = path_of(place, i % N_OBJECTS, "");
		if (stat(path, &st) < 0)
			err(1, "stat %s", path);
		break;
	case ABSENT_NAME:
		path = path_of(place, ABSENT + place->next++, "");
		if (access(path, F_OK) == 0 || errno != ENOENT)
			err(1, "access %s", path);
		break;
	default:
		create(place, NEW + place->next++);
	}
}

static void
remove_new(const Place *place, unsigned first)
{
	for (unsigned i = first; i < place->next; i++)
		if (unlink(path_of(place, NEW + i, "")) < 0)
			err(1, "unlink in %s", place->directory);
}

static void
run_round(Place *place, Operation operation, unsigned round, unsigned calls)
{
	Series *series = &place->series[operation];
	unsigned first = place->next;
	int64_t begin = now_ns(), last = begin;

	for (unsigned i = 0; i < calls; i++) {
		run_once(place, operation, i);
		int64_t now = now_ns();
		series->calls_ns[series->n_calls++] = (uint32_t)(now - last);
		last = now;
	}
	series->rates[round] = calls * 1e9 / (double)(last - begin);
	if (operation == CREATE)
		remove_new(place, first);
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static int
compare_ns(const void *a, const void *b)
{
	uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;

	return x < y ? -1 : x > y;
}

static void
print_series(const char *operation, const Place *place, Series *series, unsigned rounds)
{
	qsort(series->rates, rounds, sizeof(double), compare_doubles);
	qsort(series->calls_ns, series->n_calls, sizeof(uint32_t), compare_ns);
	printf("%s %s %.0f %.1f\n", operation, place->name, series->rates[rounds / 2],
	       series->calls_ns[series->n_calls * 99 / 100] / 1e3);
}

static void
prepare(Place *place, char *argument, unsigned rounds, unsigned calls)
{
	char *directory = strchr(argument, '=');

	if (!directory)
		errx(2, "%s is not NAME=DIRECTORY", argument);
	*directory++ = '\0';
	*place = (Place){.name = argument, .directory = directory};
	for (unsigned o = 0; o < N_OPERATIONS; o++) {
		place->series[o].calls_ns = calloc((size_t)rounds * calls, sizeof(uint32_t));
		if (!place->series[o].calls_ns)
			err(2, "calloc");
	}
	for (unsigned i = 0; i < N_OBJECTS; i++)
		create(place, i);
}

static void
clean(Place *place)
{
	for (unsigned i = 0; i < N_OBJECTS; i++)
		unlink(path_of(place, i, ""));
	for (unsigned o = 0; o < N_OPERATIONS; o++)
		free(place->series[o].calls_ns);
}

int
main(int argc, char **argv)
{
	Place places[MAX_PLACES];
	unsigned n = (unsigned)(argc - 3);

	if (argc < 4 || n > MAX_PLACES)
		errx(2, "usage: meta-bench ROUNDS CALLS NAME=DIRECTORY...");
	unsigned rounds = (unsigned)atoi(argv[1]), calls = (unsigned)atoi(argv[2]);
	if (rounds < 1 || rounds > MAX_ROUNDS || calls < 1)
		errx(2, "ROUNDS is 1 to %d, CALLS at least 1", MAX_ROUNDS);
	for (unsigned p = 0; p < n; p++)
		prepare(&places[p], argv[3 + p], rounds, calls);
	for (unsigned round = 0; round < rounds; round++)
		for (unsigned o = 0; o < N_OPERATIONS; o++)
			for (unsigned p = 0; p < n; p++)
				run_round(&places[p], o, round, calls);
	for (unsigned o = 0; o < N_OPERATIONS; o++)
		for (unsigned p = 0; p < n; p++)
			print_series(operation_names[o], &places[p], &places[p].series[o], rounds);
	for (unsigned p = 0; p < n; p++)
		clean(&places[p]);
	return 0;
}
