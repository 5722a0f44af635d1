/* SPDX-License-Identifier: Apache-2.0 */

/*
 * direct-io write|read FILE SEED BYTES: O_DIRECT as engines use it, at any alignment of buffer,
 * offset and length. "write" creates FILE in pieces of many sizes, half of them after an
 * F_SETFL(O_DIRECT); "read" checks that each pread() has the seed's data and is never short before
 * the end of the file, with O_DIRECT at open, by F_SETFL, and without. Prints the bytes moved.
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>

#define PAGE_BYTES 4096u

static const size_t sizes[] = {1,	511,	 512,	  513,	   4095,    4096,
			       4097,	65536,	 65537,	  1000003, 1048576, 2097151,
			       2097152, 2097153, 3000001, 4194304};
#define N_SIZES (sizeof(sizes) / sizeof(sizes[0]))

static uint64_t moved;

static void
set_direct(int fd, const char *path)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT) < 0)
		err(1, "F_SETFL O_DIRECT on %s", path);
}

/* A buffer of BYTES that begins SHIFT bytes after a page boundary. */
static char *
shifted_buffer(char **base, size_t bytes, size_t shift)
{
	if (posix_memalign((void **)base, PAGE_BYTES, bytes + PAGE_BYTES))
		errx(2, "posix_memalign");
	return *base + shift;
}

static void
write_file(const char *path, const char *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0644);
	size_t done = 0;

	if (fd < 0)
		err(1, "create %s with O_DIRECT", path);
	for (size_t i = 0; done < bytes; i++) {
		size_t n = sizes[i % N_SIZES], left = bytes - done;
		char *base, *piece = shifted_buffer(&base, n, i % 7);

		n = n < left ? n : left;
		memcpy(piece, data + done, n);
		client_write_all(fd, piece, n, path);
		free(base);
		done += n;
		if (i == N_SIZES / 2)
			set_direct(fd, path);
	}
	moved += done;
	if (close(fd) < 0)
		err(1, "close %s", path);
}

static void
read_piece(int fd, const char *data, size_t bytes, size_t offset, size_t n, size_t shift)
{
	size_t expected = offset >= bytes ? 0 : n < bytes - offset ? n : bytes - offset;
	char *base, *piece = shifted_buffer(&base, n, shift);
	ssize_t got = pread(fd, piece, n, (off_t)offset);

	if (got < 0)
		err(1, "pread of %zu at %zu", n, offset);
	if ((size_t)got != expected)
		errx(1, "pread of %zu at %zu of %zu: %zd", n, offset, bytes, got);
	if (memcmp(piece, data + offset, expected) != 0)
		errx(1, "pread of %zu at %zu differs", n, offset);
	free(base);
	moved += expected;
}

/* One readv() over buffers that no alignment rule would allow. */
static void
read_vector(int fd, const char *data, size_t bytes)
{
	char *buffer = malloc(bytes + 1);
	size_t half = bytes / 2 | 1;
	struct iovec parts[2] = {{buffer + 1, half}, {buffer + 1 + half, bytes - half}};

	if (!buffer)
		err(2, "malloc");
	ssize_t got = preadv(fd, parts, half < bytes ? 2 : 1, 0);
	if (got < 0 || (size_t)got != bytes)
		err(1, "preadv: %zd of %zu", got, bytes);
	if (memcmp(buffer + 1, data, bytes) != 0)
		errx(1, "preadv differs");
	free(buffer);
	moved += bytes;
}

static void
read_file(int fd, const char *data, size_t bytes)
{
	/* Around its end, its middle and its beginning, and at odd places. */
	const size_t offsets[] = {0,
				  1,
				  511,
				  4096,
				  4097,
				  bytes / 2,
				  bytes / 3 | 1,
				  bytes & ~(size_t)4095,
				  bytes - 1,
				  bytes,
				  bytes + 1234567};

	for (size_t i = 0; i < sizeof(offsets) / sizeof(offsets[0]); i++)
		for (size_t j = 0; j < N_SIZES; j++)
			read_piece(fd, data, bytes, offsets[i], sizes[j], (i + j) % 5);
	read_piece(fd, data, bytes, 0, bytes, 0);
	read_piece(fd, data, bytes, 0, bytes + 4095, 3);
	read_vector(fd, data, bytes);
}

int
main(int argc, char **argv)
{
	uint64_t seed;
	size_t bytes;
	char *data;

	if (argc != 5)
		errx(2, "usage: direct-io write|read FILE SEED BYTES");
	seed = strtoull(argv[3], NULL, 10);
	bytes = client_parse_size(argv[4]);
	data = malloc(bytes + 1);
	if (!data)
		err(2, "malloc");
	pattern_fill(&seed, data, bytes);
	if (!strcmp(argv[1], "write")) {
		write_file(argv[2], data, bytes);
	} else {
		int fd = open(argv[2], O_RDONLY | O_DIRECT | O_CLOEXEC);
		int other = open(argv[2], O_RDONLY | O_CLOEXEC);

		if (fd < 0 || other < 0)
			err(1, "open %s", argv[2]);
		read_file(fd, data, bytes);
		read_file(other, data, bytes);
		set_direct(other, argv[2]);
		read_file(other, data, bytes);
		close(fd);
		close(other);
	}
	printf("%llu\n", (unsigned long long)moved);
	free(data);
	return 0;
}
