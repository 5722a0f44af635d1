/* SPDX-License-Identifier: Apache-2.0 */

/*
 * read-bench fill DIRECTORY TOTAL BYTES: writes objects of BYTES up to TOTAL into DIRECTORY, then
 * removes them.
 *
 * read-bench read ROUNDS OBJECTS BYTES DIRECTORY-A DIRECTORY-B: writes OBJECTS objects of BYTES to
 * both, then in ROUNDS alternating rounds opens, reads and closes each object of A a few times,
 * then of B. Once by one read() of the whole object into a buffer that is used again and was
 * touched before, once by a shared mapping that is copied into it. Prints one line a way: WAY
 * A-bytes-per-second B-bytes-per-second RATIO-of-medians LOWEST-ratio-of-a-round HIGHEST-ratio. The
 * objects are left there.
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <time.h>

#define MAX_ROUNDS 101
/* Over all objects in a round: long enough for what else the machine does to even out. */
#define PASSES 4

static char path[PATH_MAX];
static char *buffer; /* of one object */
static size_t object_bytes;

static int64_t
now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * 1000000000ll + ts.tv_nsec;
}

static void
set_path(const char *directory, unsigned i)
{
	snprintf(path, sizeof(path), "%s/%056zx%08x", directory, object_bytes, i + 1);
}

static void
make_buffer(const char *text)
{
	uint64_t seed = 3;

	object_bytes = client_parse_size(text);
	buffer = aligned_alloc(2 << 20, (object_bytes + (2 << 20) - 1) & ~((size_t)(2 << 20) - 1));
	if (!buffer)
		err(2, "aligned_alloc");
	madvise(buffer, object_bytes, MADV_HUGEPAGE);
	pattern_fill(&seed, buffer, object_bytes);
}

static void
write_object(const char *directory, unsigned i)
{
	struct statfs fs;
	int fd;

	set_path(directory, i);
	fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		err(1, "create %s", path);
	/* kvcachefs reserves by itself; a plain tmpfs gives huge pages reliably only when asked. */
	if (fstatfs(fd, &fs) == 0 && fs.f_type == TMPFS_MAGIC &&
	    fallocate(fd, FALLOC_FL_KEEP_SIZE, 0, (off_t)object_bytes) < 0)
		err(1, "fallocate %s", path);
	client_write_all(fd, buffer, object_bytes, path);
	if (close(fd) < 0)
		err(1, "close %s", path);
}

static void
read_object(const char *directory, unsigned i, bool by_mmap)
{
	int fd;

	set_path(directory, i);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		err(1, "open %s", path);
	if (by_mmap) {
		char *map = mmap(NULL, object_bytes, PROT_READ, MAP_SHARED, fd, 0);

		if (map == MAP_FAILED)
			err(1, "mmap %s", path);
		memcpy(buffer, map, object_bytes);
		munmap(map, object_bytes);
	} else {
		ssize_t n = read(fd, buffer, object_bytes);

		if (n != (ssize_t)object_bytes)
			err(1, "read %s: %zd", path, n);
	}
	close(fd);
}

/* Bytes per second of one round over all objects. */
static double
time_round(const char *directory, unsigned objects, bool by_mmap)
{
	int64_t begin = now_ns();

	for (unsigned i = 0; i < objects * PASSES; i++)
		read_object(directory, i % objects, by_mmap);
	return (double)objects * PASSES * (double)object_bytes * 1e9 / (double)(now_ns() - begin);
}

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

static void
compare_directories(const char *a, const char *b, unsigned rounds, unsigned objects, bool by_mmap)
{
	double rates_a[MAX_ROUNDS], rates_b[MAX_ROUNDS], ratios[MAX_ROUNDS];

	time_round(a, objects, by_mmap);
	time_round(b, objects, by_mmap);
	for (unsigned i = 0; i < rounds; i++) {
		rates_a[i] = time_round(a, objects, by_mmap);
		rates_b[i] = time_round(b, objects, by_mmap);
		ratios[i] = rates_a[i] / rates_b[i];
	}
	qsort(rates_a, rounds, sizeof(double), compare_doubles);
	qsort(rates_b, rounds, sizeof(double), compare_doubles);
	qsort(ratios, rounds, sizeof(double), compare_doubles);
	printf("%s %.0f %.0f %.3f %.3f %.3f\n", by_mmap ? "mmap" : "read", rates_a[rounds / 2],
	       rates_b[rounds / 2], rates_a[rounds / 2] / rates_b[rounds / 2], ratios[0],
	       ratios[rounds - 1]);
	fflush(stdout);
}

static void
run_fill(const char *directory, uint64_t total)
{
	unsigned objects = (unsigned)(total / object_bytes);

	for (unsigned i = 0; i < objects; i++)
		write_object(directory, i);
	for (unsigned i = 0; i < objects; i++) {
		set_path(directory, i);
		/* The last ones may have pushed the first ones out. */
		if (unlink(path) < 0 && errno != ENOENT)
			err(1, "unlink %s", path);
	}
}

static void
run_read(unsigned rounds, unsigned objects, const char *a, const char *b)
{
	if (rounds < 1 || rounds > MAX_ROUNDS || objects < 1)
		errx(2, "1 to %d rounds, at least one object", MAX_ROUNDS);
	for (unsigned i = 0; i < objects; i++) {
		write_object(a, i);
		write_object(b, i);
	}
	compare_directories(a, b, rounds, objects, false);
	compare_directories(a, b, rounds, objects, true);
}

int
main(int argc, char **argv)
{
	if (argc == 5 && !strcmp(argv[1], "fill")) {
		make_buffer(argv[4]);
		run_fill(argv[2], client_parse_size(argv[3]));
	} else if (argc == 7 && !strcmp(argv[1], "read")) {
		make_buffer(argv[4]);
		run_read((unsigned)atoi(argv[2]), (unsigned)atoi(argv[3]), argv[5], argv[6]);
	} else {
		errx(2, "usage: read-bench fill DIRECTORY TOTAL BYTES | read ROUNDS OBJECTS BYTES "
			"A B");
	}
	return 0;
}
