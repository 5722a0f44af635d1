/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CLIENTS_CLIENT_IO_H
#define TESTS_CLIENTS_CLIENT_IO_H

/* What the client programs share: errors that end them, and sizes as people write them. */

#include <err.h>
#include <stdint.h>
#include <stdlib.h>
#include <unistd.h>

/* "64K", "32M", "2G" or plain bytes. */
static inline uint64_t
client_parse_size(const char *text)
{
	char *end;
	uint64_t value = strtoull(text, &end, 10);

	switch (*end) {
	case 'G':
		value <<= 10;
		/* fall through */
	case 'M':
		value <<= 10;
		/* fall through */
	case 'K':
		value <<= 10;
		end++;
	}
	if (end == text || *end != '\0')
		errx(2, "not a size: \"%s\"", text);
	return value;
}

/* Engines read and write a block with one call and no loop: anything short is an error here. */
static inline void
client_write_all(int fd, const void *data, size_t bytes, const char *path)
{
	ssize_t n = write(fd, data, bytes);

	if (n < 0)
		err(1, "write %s", path);
	if ((size_t)n != bytes)
		errx(1, "write %s: short: %zd of %zu", path, n, bytes);
}

static inline void
client_pread_all(int fd, void *data, size_t bytes, uint64_t offset, const char *path)
{
	ssize_t n = pread(fd, data, bytes, (off_t)offset);

	if (n < 0)
		err(1, "read %s", path);
	if ((size_t)n != bytes)
		errx(1, "read %s: short: %zd of %zu", path, n, bytes);
}

#endif
