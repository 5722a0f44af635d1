/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The directories below plain/ and prefix/. They come with the first file in them and go with the
 * last one, so that a name can be a file now and a directory later. Nobody holds them: whoever
 * needs one may see it go between two calls, and makes it again.
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

	for (char *slash = strrchr(copy, '/'); slash; slash = strrchr(copy, '/')) {
		*slash = '\0';
		if (!strchr(copy, '/') || unlinkat(fs->base_fd, copy, AT_REMOVEDIR) < 0)
			return;
	}
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
