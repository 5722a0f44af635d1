/* SPDX-License-Identifier: Apache-2.0 */

/*
 * watch-file FILE ALLOWED...: prints "watching", then reads FILE whole again and again until there
 * is a line on standard input. Each time its bytes must be those of one of the files ALLOWED.
 * Prints how often it was each of them.
 */

#include "tests/clients/client-io.h"

#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define MAX_BYTES (1u << 20)
#define MAX_ALLOWED 8

/* How many bytes FILE has, by reads to its end. */
static size_t
read_whole(const char *path, char *data)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	size_t bytes = 0;
	ssize_t n;

	if (fd < 0)
		err(1, "open %s", path);
	while ((n = read(fd, data + bytes, MAX_BYTES - bytes)) > 0)
		bytes += (size_t)n;
	if (n < 0)
		err(1, "read %s", path);
	close(fd);
	return bytes;
}

static bool
is_told_to_stop(void)
{
	struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};

	return poll(&input, 1, 0) > 0;
}

int
main(int argc, char **argv)
{
	static char data[MAX_BYTES], allowed[MAX_ALLOWED][MAX_BYTES];
	size_t lengths[MAX_ALLOWED], n_allowed = (size_t)argc - 2;
	unsigned counts[MAX_ALLOWED] = {0};

	if (argc < 3 || n_allowed > MAX_ALLOWED)
		errx(2, "usage: watch-file FILE ALLOWED...");
	for (size_t i = 0; i < n_allowed; i++)
		lengths[i] = read_whole(argv[i + 2], allowed[i]);
	puts("watching");
	fflush(stdout);
	do {
		size_t i = 0, bytes = read_whole(argv[1], data);

		while (i < n_allowed &&
		       (lengths[i] != bytes || memcmp(allowed[i], data, bytes) != 0))
			i++;
		if (i == n_allowed)
			errx(1, "%s has %zu bytes that are none of the allowed", argv[1], bytes);
		counts[i]++;
	} while (!is_told_to_stop());
	for (size_t i = 0; i < n_allowed; i++)
		printf("%s %u\n", argv[i + 2], counts[i]);
	puts("done");
	return 0;
}
