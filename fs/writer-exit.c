/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/writer-exit.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PF_EXITING 0x4
#define FIELD_FLAGS 9
#define FIELD_EXIT_CODE 52

/* Field N (counted from 1) of a /proc/PID/stat line, as a number; the name in field 2 may hold
 * anything. */
static long
stat_field(const char *line, int n)
{
	const char *p = strrchr(line, ')');
	for (int field = 2; p && field < n; field++)
		p = strchr(p + 1, ' ');
	return p ? strtol(p + 1, NULL, 10) : 0;
}

KvcfsWriterExit
kvcfs_writer_exit_look(pid_t tid)
{
	char path[64], line[1024];
	if (tid == 0)
		return KVCFS_WRITER_UNKNOWN;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)tid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return KVCFS_WRITER_UNKNOWN;
	ssize_t n = read(fd, line, sizeof(line) - 1);
	close(fd);
	if (n <= 0)
		return KVCFS_WRITER_UNKNOWN;
	line[n] = '\0';
	if (!(stat_field(line, FIELD_FLAGS) & PF_EXITING))
		return KVCFS_WRITER_CLOSED;
	return (stat_field(line, FIELD_EXIT_CODE) & 0x7f) ? KVCFS_WRITER_KILLED
							  : KVCFS_WRITER_CLOSED;
}
