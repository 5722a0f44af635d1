/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A process that ends closes its files by itself, with a FLUSH like that of close(2). What is known
 * of the end is in /proc: PF_EXITING and the signal.
 *
 * exit_group() cuts the other threads off in the middle of a write, with no signal to be seen. They
 * are still counted while they end, but may be gone before the last one closes the files. So a
 * process that ends is trusted only if it never had another thread: the page faults of those that
 * are gone stay in the sum of the process. execve() ends the other threads in the same way, and
 * then closes what is close-on-exec; that moment shows as a memory without program.
 */

#include "fs/writer-exit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#define PF_EXITING 0x4

/* Fields of a stat line, counted from 1 as in proc(5). */
enum {
	FIELD_FLAGS = 9,
	FIELD_MINOR_FAULTS = 10,
	FIELD_THREADS = 20,
	FIELD_START_TIME = 22,
	FIELD_EXIT_CODE = 52,
};

/* The name in field 2 may hold anything. */
static unsigned long
stat_field(const char *line, int n)
{
	const char *p = strrchr(line, ')');
	for (int field = 2; p && field < n; field++)
		p = strchr(p + 1, ' ');
	return p ? strtoul(p + 1, NULL, 10) : 0;
}

static bool
read_line(const char *path, char *line, size_t size)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	ssize_t n = read(fd, line, size - 1);
	close(fd);
	if (n <= 0)
		return false;
	line[n] = '\0';
	return true;
}

/* Has thread TID, whose process says PROCESS, or did it ever have, others beside it? */
static bool
had_other_threads(pid_t tid, const char *process)
{
	char path[64], line[1024];
	if (stat_field(process, FIELD_THREADS) > 1)
		return true;
	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)tid, (int)tid);
	return !read_line(path, line, sizeof(line)) ||
	       stat_field(line, FIELD_MINOR_FAULTS) != stat_field(process, FIELD_MINOR_FAULTS);
}

/* A memory (the first number) without text (the fourth); what is exiting has no memory. */
static bool
is_in_exec(pid_t tid)
{
	char path[64], line[256];
	unsigned long size, text;
	snprintf(path, sizeof(path), "/proc/%d/statm", (int)tid);
	return read_line(path, line, sizeof(line)) &&
	       sscanf(line, "%lu %*u %*u %lu", &size, &text) == 2 && size > 0 && text == 0;
}

/* The link is for those who may; nothing is resolved by reading it. */
static bool
may_trace(pid_t tid)
{
	char path[64], target[8];
	snprintf(path, sizeof(path), "/proc/%d/cwd", (int)tid);
	return readlink(path, target, sizeof(target)) >= 0 || errno != EACCES;
}

KvcfsWriterExit
kvcfs_writer_exit_look(pid_t tid)
{
	char path[64], line[1024];
	if (tid == 0)
		return KVCFS_WRITER_UNKNOWN;
	if (is_in_exec(tid))
		return KVCFS_WRITER_CUT_OFF;
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)tid);
	if (!read_line(path, line, sizeof(line)))
		return KVCFS_WRITER_UNKNOWN;
	if (!(stat_field(line, FIELD_FLAGS) & PF_EXITING))
		return KVCFS_WRITER_CLOSED;
	long exit_code = stat_field(line, FIELD_EXIT_CODE);
	if (exit_code & 0x7f)
		return KVCFS_WRITER_KILLED;
	/* Who may not trace a process (no CAP_SYS_PTRACE) reads 0 there. */
	if (exit_code == 0 && !may_trace(tid))
		return KVCFS_WRITER_CUT_OFF;
	return had_other_threads(tid, line) ? KVCFS_WRITER_CUT_OFF : KVCFS_WRITER_CLOSED;
}

pid_t
kvcfs_writer_process(pid_t tid)
{
	char path[64], text[512];
	snprintf(path, sizeof(path), "/proc/%d/status", (int)tid);
	if (tid == 0 || !read_line(path, text, sizeof(text)))
		return 0;
	/* In a name, which comes first, a newline is escaped. */
	const char *tgid = strstr(text, "\nTgid:");
	return tgid ? (pid_t)strtol(tgid + strlen("\nTgid:"), NULL, 10) : 0;
}

uint64_t
kvcfs_writer_start(pid_t tid)
{
	char path[64], line[1024];
	snprintf(path, sizeof(path), "/proc/%d/stat", (int)tid);
	return tid != 0 && read_line(path, line, sizeof(line)) ? stat_field(line, FIELD_START_TIME)
							       : 0;
}

uint64_t
kvcfs_writer_file_limit(pid_t tid)
{
	struct rlimit limit;
	if (tid == 0 || prlimit(tid, RLIMIT_FSIZE, NULL, &limit) != 0 ||
	    limit.rlim_cur == RLIM_INFINITY)
		return UINT64_MAX;
	return limit.rlim_cur;
}
