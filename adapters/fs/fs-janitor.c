/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Temporary files and empty directories that a crash left: removed in the background at open. A
 * file is left over when it is older than this adapter, its process is gone, and nobody holds the
 * lock that every writer takes on it. The lock is what counts where the pid means nothing: in a
 * container that is always pid 1, or with another container on the same directory. Where neither
 * means anything (other hosts, on a file system that does not share locks) orphan_age_s helps: who
 * writes a file renews its time. Those that are too young at the start are looked at once more when
 * they no longer are.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "fs.h"

/* Each level takes a file descriptor while those below it are cleaned. */
#define LEVELS_MAX 64

static bool
is_process_gone(int pid)
{
	return pid == getpid() || (kill(pid, 0) < 0 && errno == ESRCH);
}

/* Is it a TYPE from before this adapter? What is newer somebody may be about to use. */
static bool
is_older(FsAdapter *fs, int dir_fd, const char *name, mode_t type)
{
	struct stat st;

	return fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
	       (st.st_mode & S_IFMT) == type && fs_mtime_ns(&st) < fs->opened_ns;
}

/* Is it old enough to be nobody's? */
static bool
is_aged(FsAdapter *fs, int dir_fd, const char *name)
{
	struct stat st;

	if (fs->orphan_age_s == 0)
		return true;
	if (fstatat(dir_fd, name, &st, AT_SYMLINK_NOFOLLOW) < 0)
		return false;
	int64_t age_us = g_get_real_time() - fs_mtime_ns(&st) / 1000;
	if (age_us >= fs->orphan_age_s * G_USEC_PER_SEC)
		return true;
	atomic_store(&fs->has_young_temps, true);
	return false;
}

static void
remove_if_left_over(FsAdapter *fs, int dir_fd, const char *name)
{
	int pid;

	if (!fs_temp_name_parse(name, &pid) || !is_process_gone(pid) ||
	    !is_older(fs, dir_fd, name, S_IFREG) || !is_aged(fs, dir_fd, name))
		return;
	int fd = openat(dir_fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (fd < 0)
		return;
	if (flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(dir_fd, name, 0) == 0) {
		atomic_fetch_add(&fs->stats.orphans_removed, 1);
		g_debug("fs: removed the left-over temporary file %s", name);
	}
	close(fd);
}

/*
 * Takes DIR_FD over. LEVELS: so many levels of directories below it are cleaned too, and removed
 * when there is nothing in them.
 */
static void
clean_directory(FsAdapter *fs, int dir_fd, unsigned levels)
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
		if (entry->d_type == DT_REG || entry->d_type == DT_UNKNOWN)
			remove_if_left_over(fs, dirfd(dir), name);
		if (levels == 0 || (entry->d_type != DT_DIR && entry->d_type != DT_UNKNOWN))
			continue;
		bool is_old = is_older(fs, dirfd(dir), name, S_IFDIR);
		clean_directory(fs, openat(dirfd(dir), name, flags), levels - 1);
		if (is_old)
			unlinkat(dirfd(dir), name, AT_REMOVEDIR);
	}
	closedir(dir);
}

void
fs_clean_directory(FsAdapter *fs, const char *path)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;

	clean_directory(fs, openat(fs->base_fd, path, flags), LEVELS_MAX);
}

/* The files in the directory PATH alone. */
static void
clean_files(FsAdapter *fs, const char *path)
{
	clean_directory(fs, openat(fs->base_fd, path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), 0);
}

/* Their directories stay: LMCache does not make its own again. */
static void
clean_shards(FsAdapter *fs)
{
	const unsigned n = atomic_load(&fs->has_shards) ? 65536 : 0;
	char path[8];

	for (unsigned i = 0; i < n && !atomic_load(&fs->closing); i++) {
		if (i % 256 == 0) {
			g_snprintf(path, sizeof(path), "%02x", i / 256);
			if (faccessat(fs->base_fd, path, F_OK, 0) < 0) {
				i += 255;
				continue;
			}
		}
		g_snprintf(path, sizeof(path), "%02x/%02x", i / 256, i % 256);
		clean_files(fs, path);
	}
}

static void
clean_all(FsAdapter *fs)
{
	clean_files(fs, ".");
	if (fs->temp_dir)
		clean_files(fs, fs->temp_dir);
	clean_shards(fs);
	fs_clean_directory(fs, FS_PREFIX_DIR);
	fs_clean_directory(fs, FS_PLAIN_DIR);
}

void *
fs_janitor_main(void *user)
{
	FsAdapter *fs = user;

	fs_capacity_count(fs->capacity);
	clean_all(fs);
	if (atomic_load(&fs->has_young_temps) && fs_sleep(fs, fs->orphan_age_s + 1))
		clean_all(fs);
	return NULL;
}
