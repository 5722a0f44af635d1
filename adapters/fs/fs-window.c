/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The names of a directory in their order, so many at a time as memory is given for. A page of a
 * listing that ends within them leaves them for the next one, or each page would read the whole
 * directory again.
 */

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "fs.h"

guint fs_window_names = 65536;

void
fs_window_free(FsWindow *window)
{
	if (!window)
		return;
	g_ptr_array_unref(window->names);
	g_free(window->dir);
	g_free(window);
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Only the first stay. true: some did not. */
static bool
cut(GPtrArray *names)
{
	g_ptr_array_sort(names, compare_names);
	if (names->len <= fs_window_names)
		return false;
	g_ptr_array_set_size(names, (gint)fs_window_names);
	return true;
}

static void
add_name(FsWindow *window, const char *name)
{
	GPtrArray *names = window->names;

	/* Sorted and cut it has no more than this, of which the last is in the way of others. */
	if (!window->is_last && strcmp(name, names->pdata[fs_window_names - 1]) > 0)
		return;
	g_ptr_array_add(names, g_strdup(name));
	if (names->len == 2 * fs_window_names && cut(names))
		window->is_last = false;
}

/* 0 or the errno (positive) that ended it; what was read by then stays. */
static int
read_names(FsAdapter *fs, FsWindow *window, const char *from)
{
	const int flags = O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
	int fd = openat(fs->base_fd, window->dir, flags);
	DIR *dir = fd < 0 ? NULL : fdopendir(fd);
	const struct dirent *entry;

	if (!dir) {
		int errnum = errno;

		if (fd >= 0)
			close(fd);
		return errnum;
	}
	errno = 0;
	while ((entry = readdir(dir))) {
		const char *name = entry->d_name;

		if (strcmp(name, ".") && strcmp(name, "..") && (!from || strcmp(name, from) >= 0))
			add_name(window, name);
		errno = 0;
	}
	int errnum = errno;

	closedir(dir);
	return errnum;
}

FsWindow *
fs_window_read(FsAdapter *fs, const char *dir, const char *from, int *errnum)
{
	static _Atomic uint64_t last_number;
	FsWindow *window = g_new0(FsWindow, 1);

	window->number = atomic_fetch_add(&last_number, 1) + 1;
	window->dir = g_strdup(dir);
	window->names = g_ptr_array_new_with_free_func(g_free);
	window->is_last = true;
	*errnum = read_names(fs, window, from);
	if (cut(window->names))
		window->is_last = false;
	return window;
}

void
fs_window_leave(FsAdapter *fs, FsWindow *window)
{
	pthread_mutex_lock(&fs->lock);
	FsWindow *before = fs->window;
	fs->window = window;
	pthread_mutex_unlock(&fs->lock);
	fs_window_free(before);
}

FsWindow *
fs_window_take(FsAdapter *fs, uint64_t number, const char *dir)
{
	FsWindow *window = NULL;

	pthread_mutex_lock(&fs->lock);
	if (fs->window && fs->window->number == number && strcmp(fs->window->dir, dir) == 0)
		window = g_steal_pointer(&fs->window);
	pthread_mutex_unlock(&fs->lock);
	return window;
}
