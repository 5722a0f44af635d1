/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Temporary files that a crash left: removed in the background at open. One is left over when it is
 * older than this adapter, its process is gone, and nobody holds the lock that every writer takes
 * on it. The lock is what counts where the pid means nothing: in a container that is always pid 1,
 * or with another container on the same directory.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "fs.h"

static bool
is_process_gone(int pid)
{
	return pid == getpid() || (kill(pid, 0) < 0 && errno == ESRCH);
}

static void
remove_if_left_over(FsAdapter *fs, int dir_fd, const char *name)
{
	struct stat st;
	int pid;

	if (!fs_temp_name_parse(name, &pid) || !is_process_gone(pid))
		return;
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode) ||
	    fs_mtime_ns(&st) >= fs->opened_ns)
		return;
	int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir_fd, name, 0) == 0)
		g_debug("fs: removed the left-over temporary file %s", name);
	close(fd);
}

/* Takes DIR_FD over. SUBDIRS: also what is below. */
static void
clean_directory(FsAdapter *fs, int dir_fd, bool subdirs)
{
	DIR *dir = dir_fd < 0 ? NULL : fdopendir(dir_fd);
	const struct dirent *entry;

	if (!dir) {
		if (dir_fd >= 0)
			close(dir_fd);
		return;
	}
	while (!atomic_load(&fs->closing) && (entry = readdir(dir))) {
		const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
		const char *name = entry->d_name;

		if (!strcmp(name, ".") || !strcmp(name, ".."))
			continue;
		if (entry->d_type == DT_DIR || entry->d_type == DT_UNKNOWN) {
			if (subdirs)
				clean_directory(fs, openat(dirfd(dir), name, flags), true);
		}
		if (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN)
			remove_if_left_over(fs, dirfd(dir), name);
	}
	closedir(dir);
}

void *
fs_janitor_main(void *user)
{
	FsAdapter *fs = user;
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

	clean_directory(fs, openat(fs->base_fd, ".", flags), false);
	clean_directory(fs, openat(fs->base_fd, FS_PREFIX_DIR, flags), true);
	return NULL;
}
