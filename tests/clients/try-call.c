/* SPDX-License-Identifier: Apache-2.0 */

/*
 * try-call CALL PATH [ARGUMENT]: makes one system call and prints "0" or the name of the errno it
 * ended with ("ENOENT"). A shell test can so tell ENOENT from EINVAL without reading messages.
 *
 * The write-* calls print the first error of open, write and close, with the call before it:
 * "write:EINVAL".
 */

#include "tests/clients/client-io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>

static int
report(const char *stage, int rc)
{
	if (rc >= 0) {
		puts("0");
		return 0;
	}
	if (stage)
		printf("%s:", stage);
	puts(strerrorname_np(errno));
	return 0;
}

static int
try_open(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);

	report(NULL, fd);
	/* What a created file is left as is not this program's business: it ends without a close.
	 */
	return 0;
}

static int
try_write(const char *path, int flags, const char *text)
{
	int fd = open(path, flags | O_CLOEXEC, 0644);
	ssize_t n;

	if (fd < 0)
		return report("open", -1);
	n = write(fd, text, strlen(text));
	if (n < 0)
		return report("write", -1);
	if ((size_t)n != strlen(text)) {
		puts("write:short");
		return 0;
	}
	return report("close", close(fd));
}

static int
try_statfs(const char *path)
{
	struct statfs buf;

	if (statfs(path, &buf) < 0)
		return report(NULL, -1);
	printf("bsize=%ld frsize=%ld namemax=%ld blocks=%llu bfree=%llu bavail=%llu\n",
	       (long)buf.f_bsize, (long)buf.f_frsize, (long)buf.f_namelen,
	       (unsigned long long)buf.f_blocks, (unsigned long long)buf.f_bfree,
	       (unsigned long long)buf.f_bavail);
	return 0;
}

static const struct {
	const char *name;
	int flags;
} opens[] = {
	{"open-read", O_RDONLY},
	{"open-directory", O_RDONLY | O_DIRECTORY},
	{"open-write", O_WRONLY},
	{"open-readwrite", O_RDWR},
	{"open-truncate", O_WRONLY | O_TRUNC},
	{"open-append", O_WRONLY | O_APPEND},
	{"create", O_WRONLY | O_CREAT | O_TRUNC},
	{"create-exclusive", O_WRONLY | O_CREAT | O_EXCL},
};

static int
try_two(const char *call, const char *path, const char *argument)
{
	if (!strcmp(call, "rename"))
		return report(NULL, rename(path, argument));
	if (!strcmp(call, "rename-noreplace"))
		return report(NULL,
			      renameat2(AT_FDCWD, path, AT_FDCWD, argument, RENAME_NOREPLACE));
	if (!strcmp(call, "rename-exchange"))
		return report(NULL, renameat2(AT_FDCWD, path, AT_FDCWD, argument, RENAME_EXCHANGE));
	if (!strcmp(call, "link"))
		return report(NULL, link(path, argument));
	if (!strcmp(call, "symlink"))
		return report(NULL, symlink(argument, path));
	if (!strcmp(call, "truncate"))
		return report(NULL, truncate(path, (off_t)client_parse_size(argument)));
	if (!strcmp(call, "write"))
		return try_write(path, O_WRONLY, argument);
	if (!strcmp(call, "write-append"))
		return try_write(path, O_WRONLY | O_APPEND, argument);
	if (!strcmp(call, "write-create"))
		return try_write(path, O_WRONLY | O_CREAT | O_TRUNC, argument);
	errx(2, "unknown call \"%s\" with an argument", call);
}

static int
try_one(const char *call, const char *path)
{
	struct stat st;

	for (size_t i = 0; i < sizeof(opens) / sizeof(opens[0]); i++)
		if (!strcmp(call, opens[i].name))
			return try_open(path, opens[i].flags);
	if (!strcmp(call, "stat"))
		return report(NULL, lstat(path, &st));
	if (!strcmp(call, "mkdir"))
		return report(NULL, mkdir(path, 0755));
	if (!strcmp(call, "rmdir"))
		return report(NULL, rmdir(path));
	if (!strcmp(call, "unlink"))
		return report(NULL, unlink(path));
	if (!strcmp(call, "mkfifo"))
		return report(NULL, mkfifo(path, 0644));
	if (!strcmp(call, "statfs"))
		return try_statfs(path);
	errx(2, "unknown call \"%s\"", call);
}

int
main(int argc, char **argv)
{
	if (argc != 3 && argc != 4)
		errx(2, "usage: try-call CALL PATH [ARGUMENT]");
	return argc == 4 ? try_two(argv[1], argv[2], argv[3]) : try_one(argv[1], argv[2]);
}
