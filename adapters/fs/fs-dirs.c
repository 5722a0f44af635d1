/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The directories of files. Those below plain/ and prefix/ come with the first file in them and go
 * with the last one, so that a name can be a file now and a directory later. Nobody holds them:
 * whoever needs one may see it go between two calls, and makes it again.
 */

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs.h"

int
fs_make_parents(FsAdapter *fs, const char *path)
{
	g_autofree char *copy = g_strdup(path);

	for (char *slash = strchr(copy, '/'); slash; slash = strchr(slash + 1, '/')) {
		*slash = '\0';
		if (mkdirat(fs->base_fd, copy, 0755) < 0 && errno != EEXIST)
			return -errno;
		*slash = '/';
	}
	return 0;
}

void
fs_prune_parents(FsAdapter *fs, const char *path)
{
	g_autofree char *copy = g_strdup(path);

	/* The others stay: LMCache does not make its own again. */
	if (!g_str_has_prefix(path, FS_PLAIN_DIR "/") && !g_str_has_prefix(path, FS_PREFIX_DIR "/"))
		return;
	for (char *slash = strrchr(copy, '/'); slash; slash = strrchr(copy, '/')) {
		*slash = '\0';
		if (!strchr(copy, '/') || unlinkat(fs->base_fd, copy, AT_REMOVEDIR) < 0)
			return;
	}
}

int
fs_sync_parents(FsAdapter *fs, const char *path)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	g_autofree char *copy = g_strdup(path);
	int rc = 0;

	if (!fs->fsync)
		return 0;
	for (char *slash = strrchr(copy, '/'); slash; slash = strrchr(copy, '/')) {
		*slash = '\0';
		int fd = openat(fs->base_fd, copy, flags);
		if (fd < 0 && errno != ENOENT && errno != ENOTDIR)
			return -errno;
		if (fd >= 0 && fsync(fd) < 0)
			rc = -errno;
		if (fd >= 0)
			close(fd);
	}
	return fsync(fs->base_fd) < 0 ? -errno : rc;
}

/* Makes room for a file where there are only directories that a crash left; false: it cannot. */
static bool
remove_empty_tree(FsAdapter *fs, const char *path)
{
	fs_clean_directory(fs, path);
	return unlinkat(fs->base_fd, path, AT_REMOVEDIR) == 0 || errno == ENOENT ||
	       errno == ENOTDIR;
}

int
fs_move(FsAdapter *fs, const char *from, const char *to)
{
	for (int i = 0;; i++) {
		if (renameat(fs->base_fd, from, fs->base_fd, to) == 0)
			return 0;
		int rc = -errno;
		if (i == FS_RACES_MAX || (rc != -ENOENT && rc != -EISDIR))
			return rc;
		if (rc == -EISDIR && !remove_empty_tree(fs, to))
			return rc;
		rc = fs_make_parents(fs, to);
		if (rc < 0 && rc != -ENOENT)
			return rc;
	}
}
