/* SPDX-License-Identifier: Apache-2.0 */

/*
 * mmap-equals-read FILE...: the bytes of each FILE by one read() of the whole, by reads at odd
 * offsets and by shared and private mappings are the same. Prints how many bytes were compared.
 */

#include "tests/clients/client-io.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static void
compare_mapping(int fd, const char *data, size_t bytes, int flags, const char *path)
{
	char *map = mmap(NULL, bytes, PROT_READ, flags, fd, 0);

	if (map == MAP_FAILED)
		err(1, "mmap %s", path);
	if (memcmp(map, data, bytes) != 0)
		errx(1, "%s: the %s mapping differs from read()", path,
		     flags == MAP_SHARED ? "shared" : "private");
	munmap(map, bytes);
}

static void
compare_odd_reads(int fd, const char *data, size_t bytes, const char *path)
{
	static char piece[300007];

	for (size_t offset = 0; offset < bytes; offset += sizeof(piece)) {
		size_t n = bytes - offset < sizeof(piece) ? bytes - offset : sizeof(piece);

		client_pread_all(fd, piece, n, offset, path);
		if (memcmp(piece, data + offset, n) != 0)
			errx(1, "%s: the read at %zu differs", path, offset);
	}
}

static size_t
compare_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	char *data;
	size_t bytes;

	if (fd < 0 || fstat(fd, &st) < 0)
		err(1, "open %s", path);
	bytes = (size_t)st.st_size;
	data = malloc(bytes + 1);
	if (!data)
		err(2, "malloc");
	if (read(fd, data, bytes + 1) != (ssize_t)bytes)
		errx(1, "%s: one read() is not the whole of %zu bytes", path, bytes);
	compare_mapping(fd, data, bytes, MAP_SHARED, path);
	compare_mapping(fd, data, bytes, MAP_PRIVATE, path);
	compare_odd_reads(fd, data, bytes, path);
	free(data);
	close(fd);
	return bytes;
}

int
main(int argc, char **argv)
{
	size_t total = 0;

	if (argc < 2)
		errx(2, "usage: mmap-equals-read FILE...");
	for (int i = 1; i < argc; i++)
		total += compare_file(argv[i]);
	printf("%zu\n", total);
	return 0;
}
