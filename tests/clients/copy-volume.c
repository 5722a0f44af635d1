/* SPDX-License-Identifier: Apache-2.0 */

/*
 * copy-volume DIRECTORY ROUNDS OBJECTS BYTES: ROUNDS times it writes OBJECTS objects of BYTES into
 * DIRECTORY, reads each back, by read() and mmap in turn, checks it, and removes it. Prints the
 * bytes moved each way.
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <fcntl.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

static char path[PATH_MAX];

static void
object_path(const char *directory, unsigned round, unsigned i)
{
	snprintf(path, sizeof(path), "%s/%032x%032x", directory, round + 1, i + 1);
}

static void
write_object(const char *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	if (fd < 0)
		err(1, "create %s", path);
	client_write_all(fd, data, bytes, path);
	if (close(fd) < 0)
		err(1, "close %s", path);
}

static void
check_object(const char *data, char *buffer, size_t bytes, bool by_mmap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "open %s", path);
	if (by_mmap) {
		char *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);

		if (map == MAP_FAILED)
			err(1, "mmap %s", path);
		memcpy(buffer, map, bytes);
		munmap(map, bytes);
	} else {
		client_pread_all(fd, buffer, bytes, 0, path);
	}
	if (memcmp(buffer, data, bytes) != 0)
		errx(1, "%s: differs", path);
	close(fd);
}

int
main(int argc, char **argv)
{
	unsigned rounds, objects;
	uint64_t moved = 0, seed = 1;
	size_t bytes;
	char *data, *buffer;

	if (argc != 5)
		errx(2, "usage: copy-volume DIRECTORY ROUNDS OBJECTS BYTES");
	rounds = (unsigned)strtoul(argv[2], NULL, 10);
	objects = (unsigned)strtoul(argv[3], NULL, 10);
	bytes = client_parse_size(argv[4]);
	data = malloc(bytes);
	buffer = malloc(bytes);
	if (!data || !buffer)
		err(2, "malloc");
	pattern_fill(&seed, data, bytes);
	for (unsigned round = 0; round < rounds; round++) {
		for (unsigned i = 0; i < objects; i++) {
			memcpy(data, &(uint64_t){(uint64_t)round << 32 | i}, 8);
			object_path(argv[1], round, i);
			write_object(data, bytes);
			moved += bytes;
		}
		for (unsigned i = 0; i < objects; i++) {
			memcpy(data, &(uint64_t){(uint64_t)round << 32 | i}, 8);
			object_path(argv[1], round, i);
			check_object(data, buffer, bytes, i % 2 == 1);
			if (unlink(path) < 0)
				err(1, "unlink %s", path);
		}
	}
	printf("%llu\n", (unsigned long long)moved);
	free(data);
	free(buffer);
	return 0;
}
