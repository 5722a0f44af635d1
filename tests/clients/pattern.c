/* SPDX-License-Identifier: Apache-2.0 */

/* pattern SEED BYTES: writes that many bytes of the seed's data to standard output. */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <errno.h>

static void
write_out(const char *data, size_t bytes)
{
	while (bytes > 0) {
		ssize_t n = write(STDOUT_FILENO, data, bytes);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			err(1, "write");
		data += n;
		bytes -= (size_t)n;
	}
}

int
main(int argc, char **argv)
{
	static char buffer[1 << 20];
	uint64_t state, left;

	if (argc != 3)
		errx(2, "usage: pattern SEED BYTES");
	state = strtoull(argv[1], NULL, 10);
	left = client_parse_size(argv[2]);
	while (left > 0) {
		size_t n = left < sizeof(buffer) ? left : sizeof(buffer);

		pattern_fill(&state, buffer, n);
		write_out(buffer, n);
		left -= n;
	}
	return 0;
}
