/* SPDX-License-Identifier: Apache-2.0 */

/*
 * hold-open FILE REFERENCE: opens and maps FILE, prints "open", waits for a line on standard input,
 * then reads FILE through the descriptor and through the mapping and compares both with REFERENCE.
 * Prints "equal" or says what differs.
 */

#include "tests/clients/client-io.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>

static void *
read_reference(const char *path, size_t *bytes)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	struct stat st;
	void *data;

	if (fd < 0 || fstat(fd, &st) < 0)
		err(2, "%s", path);
	*bytes = (size_t)st.st_size;
	data = malloc(*bytes + 1);
	if (!data)
		err(2, "malloc");
	client_pread_all(fd, data, *bytes, 0, path);
	close(fd);
	return data;
}

int
main(int argc, char **argv)
{
	size_t bytes;
	char *reference, *data, *map;
	char line[64];
	int fd;

	if (argc != 3)
		errx(2, "usage: hold-open FILE REFERENCE");
	reference = read_reference(argv[2], &bytes);
	data = malloc(bytes + 1);
	fd = open(argv[1], O_RDONLY | O_CLOEXEC);
	if (fd < 0 || !data)
		err(1, "open %s", argv[1]);
	map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
	if (map == MAP_FAILED)
		err(1, "mmap %s", argv[1]);
	puts("open");
	fflush(stdout);
	if (!fgets(line, sizeof(line), stdin))
		errx(2, "nothing on standard input");
	client_pread_all(fd, data, bytes, 0, argv[1]);
	if (memcmp(data, reference, bytes) != 0)
		errx(1, "%s: read differs from %s", argv[1], argv[2]);
	if (memcmp(map, reference, bytes) != 0)
		errx(1, "%s: the mapping differs from %s", argv[1], argv[2]);
	if (pread(fd, data, 1, (off_t)bytes) != 0)
		errx(1, "%s: longer than %s", argv[1], argv[2]);
	puts("equal");
	munmap(map, bytes);
	free(data);
	free(reference);
	return 0;
}
