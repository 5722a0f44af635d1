/* SPDX-License-Identifier: Apache-2.0 */

/*
 * rotate DIRECTORY ROTATIONS: two names in DIRECTORY are written again and again, ROTATIONS times
 * in all, by a process each: with O_TRUNC, in place with O_RDWR, and by a rename onto the name, in
 * turn. Meanwhile others open them, O_RDONLY and O_RDWR, and read, map and check them.
 *
 * Each page of a version carries its generation, its place, the number of pages and a checksum. A
 * reader must find the pages of exactly one generation, as many as it had, and none older than the
 * last one whose writer's close() or rename() had returned before the open began. Any error of a
 * call fails it: ENOENT, ESTALE, EIO. Prints how many opens there were.
 */

#include "tests/clients/client-io.h"

#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define PAGE_BYTES 4096u
#define N_NAMES 2u
#define N_READERS 3u /* of each name; the last one opens with O_RDWR */
#define MAX_PAGES 24u

typedef struct Page {
	uint64_t generation, index, n_pages, checksum;
	uint64_t words[PAGE_BYTES / 8 - 4];
} Page;

_Static_assert(sizeof(Page) == PAGE_BYTES, "a page");

/* Shared by all processes. */
typedef struct Shared {
	_Atomic uint64_t returned[N_NAMES]; /* the generation whose close() or rename() returned */
	_Atomic uint64_t opens;
	_Atomic bool must_stop;
} Shared;

static Shared *shared;
static char name[PATH_MAX], temporary[PATH_MAX + 8];

/* ---- Versions ------------------------------------------------------------------------------ */

static uint64_t
checksum(const Page *page)
{
	uint64_t sum = page->generation * 0x9e3779b97f4a7c15u ^ page->index << 32 ^ page->n_pages;

	for (size_t i = 0; i < sizeof(page->words) / sizeof(page->words[0]); i++)
		sum = (sum ^ page->words[i]) * 0x100000001b3u;
	return sum;
}

static uint64_t
pages_of(uint64_t generation)
{
	return 1 + generation * 7 % MAX_PAGES;
}

static void
fill(Page *pages, uint64_t generation)
{
	uint64_t n = pages_of(generation);

	for (uint64_t i = 0; i < n; i++) {
		pages[i].generation = generation;
		pages[i].index = i;
		pages[i].n_pages = n;
		for (size_t j = 0; j < sizeof(pages[i].words) / 8; j++)
			pages[i].words[j] = (generation << 20 | i << 10 | j) * 0xd1342543de82ef95u;
		pages[i].checksum = checksum(&pages[i]);
	}
}

/* Ends the program unless the pages are all of one generation that is not older than FLOOR. */
static void
check(const Page *pages, size_t bytes, uint64_t floor, const char *how)
{
	uint64_t generation = pages[0].generation;

	if (bytes == 0 || bytes % PAGE_BYTES || bytes / PAGE_BYTES != pages_of(generation))
		errx(1, "%s %s: %zu bytes of generation %llu", how, name, bytes,
		     (unsigned long long)generation);
	if (generation < floor)
		errx(1, "%s %s: generation %llu, though the close of %llu had returned", how, name,
		     (unsigned long long)generation, (unsigned long long)floor);
	for (size_t i = 0; i < bytes / PAGE_BYTES; i++)
		if (pages[i].generation != generation || pages[i].index != i ||
		    pages[i].checksum != checksum(&pages[i]))
			errx(1, "%s %s: page %zu of generation %llu is page %llu of %llu%s", how,
			     name, i, (unsigned long long)generation,
			     (unsigned long long)pages[i].index,
			     (unsigned long long)pages[i].generation,
			     pages[i].checksum == checksum(&pages[i]) ? "" : ", damaged");
}

/* ---- Writers ------------------------------------------------------------------------------- */

static void
write_file(const char *path, int flags, const Page *pages, size_t bytes)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);

	if (fd < 0)
		err(1, "open %s to write generation %llu, flags %#x", path,
		    (unsigned long long)pages->generation, (unsigned)flags);
	/* In two parts, so that a reader could meet a half. */
	size_t half = bytes / 2 / PAGE_BYTES * PAGE_BYTES;
	client_write_all(fd, (const char *)pages, half, path);
	client_write_all(fd, (const char *)pages + half, bytes - half, path);
	if (!(flags & O_TRUNC) && ftruncate(fd, (off_t)bytes) < 0)
		err(1, "ftruncate %s", path);
	if (close(fd) < 0)
		err(1, "close %s", path);
}

static void
write_version(Page *pages, uint64_t generation)
{
	size_t bytes = pages_of(generation) * PAGE_BYTES;

	fill(pages, generation);
	switch (generation % 3) {
	case 0:
		write_file(name, O_RDWR, pages, bytes);
		break;
	case 1:
		write_file(name, O_WRONLY | O_CREAT | O_TRUNC, pages, bytes);
		break;
	default:
		write_file(temporary, O_WRONLY | O_CREAT | O_TRUNC, pages, bytes);
		if (rename(temporary, name) < 0)
			err(1, "rename to %s", name);
	}
}

static void
run_writer(unsigned which, uint64_t rotations)
{
	static Page pages[MAX_PAGES];

	for (uint64_t i = 0; i < rotations && !atomic_load(&shared->must_stop); i++) {
		uint64_t generation = atomic_load(&shared->returned[which]) + 1;

		write_version(pages, generation);
		atomic_store(&shared->returned[which], generation);
	}
}

/* ---- Readers ------------------------------------------------------------------------------- */

static void
read_once(unsigned which, int flags, bool by_mapping)
{
	static Page pages[MAX_PAGES + 1];
	uint64_t floor = atomic_load(&shared->returned[which]);
	const char *how = flags == O_RDWR ? "O_RDWR" : "O_RDONLY";
	int fd = open(name, flags | O_CLOEXEC);
	struct stat st;

	if (fd < 0)
		err(1, "open %s %s", name, how);
	if (fstat(fd, &st) < 0)
		err(1, "fstat %s", name);
	ssize_t n = pread(fd, pages, sizeof(pages), 0);
	if (n < 0)
		err(1, "read %s %s", name, how);
	if (n != st.st_size)
		errx(1, "%s %s: %zd bytes read of %lld", how, name, n, (long long)st.st_size);
	check(pages, (size_t)n, floor, how);
	if (by_mapping) {
		void *map = mmap(NULL, (size_t)n, PROT_READ, MAP_SHARED, fd, 0);

		if (map == MAP_FAILED)
			err(1, "mmap %s %s", name, how);
		if (memcmp(map, pages, (size_t)n) != 0)
			errx(1, "%s %s: the mapping differs", how, name);
		munmap(map, (size_t)n);
	}
	close(fd);
	atomic_fetch_add(&shared->opens, 1);
}

static void
run_reader(unsigned which, unsigned kind)
{
	int flags = kind == N_READERS - 1 ? O_RDWR : O_RDONLY;

	for (unsigned i = 0; !atomic_load(&shared->must_stop); i++)
		read_once(which, flags, i % 2 == kind % 2);
}

/* ---- All of them --------------------------------------------------------------------------- */

static pid_t
start(const char *directory, unsigned which, unsigned kind, uint64_t rotations)
{
	pid_t pid = fork();

	if (pid < 0)
		err(2, "fork");
	if (pid > 0)
		return pid;
	snprintf(name, sizeof(name), "%s/name-%u", directory, which);
	snprintf(temporary, sizeof(temporary), "%s.tmp", name);
	if (kind == N_READERS)
		run_writer(which, rotations);
	else
		run_reader(which, kind);
	_exit(0);
}

int
main(int argc, char **argv)
{
	static Page pages[MAX_PAGES];
	unsigned n_writers = N_NAMES;
	int status, failed = 0;

	if (argc != 3)
		errx(2, "usage: rotate DIRECTORY ROTATIONS");
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	if (shared == MAP_FAILED)
		err(2, "mmap");
	for (unsigned i = 0; i < N_NAMES; i++) {
		snprintf(name, sizeof(name), "%s/name-%u", argv[1], i);
		write_version(pages, 1);
		atomic_store(&shared->returned[i], 1);
	}
	pid_t writers[N_NAMES];
	for (unsigned i = 0; i < N_NAMES; i++) {
		writers[i] = start(argv[1], i, N_READERS, strtoull(argv[2], NULL, 10) / N_NAMES);
		for (unsigned j = 0; j < N_READERS; j++)
			start(argv[1], i, j, 0);
	}
	for (pid_t pid; (pid = wait(&status)) > 0;) {
		failed |= status;
		for (unsigned i = 0; i < N_NAMES; i++)
			n_writers -= pid == writers[i];
		if (failed || n_writers == 0)
			atomic_store(&shared->must_stop, true);
	}
	printf("%llu and %llu generations, %llu opens\n", (unsigned long long)shared->returned[0],
	       (unsigned long long)shared->returned[1], (unsigned long long)shared->opens);
	return failed ? 1 : 0;
}
