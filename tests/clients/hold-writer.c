/* SPDX-License-Identifier: Apache-2.0 */

/*
 * hold-writer FILE SEED BYTES: creates FILE and writes the seed's data in pieces of 1 MiB, prints
 * "written" and waits for a line on standard input: "close" closes and prints "closed"; "exit" ends
 * without a close; anything else may kill it meanwhile. Prints the name of the errno instead when a
 * call fails.
 */

#include "tests/clients/client-io.h"
#include "tests/clients/pattern.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>

static void
say(const char *text)
{
	puts(text);
	fflush(stdout);
}

static void
say_errno(const char *call)
{
	printf("%s:%s\n", call, strerrorname_np(errno));
	fflush(stdout);
	_exit(1);
}

int
main(int argc, char **argv)
{
	static char buffer[1 << 20];
	uint64_t state, left;
	char line[64] = "";
	int fd;

	if (argc != 4)
		errx(2, "usage: hold-writer FILE SEED BYTES");
	state = strtoull(argv[2], NULL, 10);
	left = client_parse_size(argv[3]);
	fd = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	if (fd < 0)
		say_errno("open");
	while (left > 0) {
		size_t n = left < sizeof(buffer) ? left : sizeof(buffer);

		pattern_fill(&state, buffer, n);
		if (write(fd, buffer, n) != (ssize_t)n)
			say_errno("write");
		left -= n;
	}
	say("written");
	if (!fgets(line, sizeof(line), stdin))
		errx(2, "nothing on standard input");
	if (line[0] == 'e')
		_exit(0);
	if (close(fd) < 0)
		say_errno("close");
	say("closed");
	return 0;
}
