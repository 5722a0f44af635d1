/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/state-dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

struct KvcfsStateDir {
	char *path; /* the real one */
	int lock_fd;
};

static char *
escape_path(const char *path)
{
	GString *name = g_string_new(NULL);
	for (const char *p = path; *p != '\0'; p++) {
		if (*p == '/') {
			if (name->len > 0 && p[1] != '\0')
				g_string_append_c(name, '-');
		} else if (g_ascii_isalnum(*p) || *p == ':' || *p == '_' ||
			   (*p == '.' && name->len > 0)) {
			g_string_append_c(name, *p);
		} else {
			g_string_append_printf(name, "\\x%02x", (unsigned char)*p);
		}
	}
	if (name->len == 0)
		g_string_append_c(name, '-'); /* the root directory */
	return g_string_free(name, FALSE);
}

char *
kvcfs_state_dir_default(const char *mountpoint)
{
	g_autofree char *id = escape_path(mountpoint);
	if (geteuid() == 0)
		return g_build_filename("/var/lib/kvcachefs/state", id, NULL);
	return g_build_filename(g_get_user_state_dir(), "kvcachefs", id, NULL);
}

/*
 * What others can write to cannot be believed. Nor may their files be changed: what was there
 * before us keeps its mode.
 */
static bool
check_owner(const char *path, GError **error)
{
	struct stat st;
	if (stat(path, &st) != 0)
		return true; /* the open of the lock has the reason */
	const char *reason = st.st_uid != geteuid() && geteuid() != 0 ? "belongs to somebody else"
			     : st.st_mode & (S_IWGRP | S_IWOTH)	      ? "can be written by others"
								      : NULL;
	if (reason)
		g_set_error(error, G_FILE_ERROR, G_FILE_ERROR_PERM,
			    "state directory %s %s; it must be private (mode 0700)", path, reason);
	return !reason;
}

KvcfsStateDir *
kvcfs_state_dir_open(const char *path, GError **error)
{
	g_autofree char *file = g_build_filename(path, "lock", NULL);
	int fd = -1;
	if (!check_owner(path, error))
		return NULL;
	if (g_mkdir_with_parents(path, 0700) == 0)
		fd = open(file, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0) {
		int code = errno;
		g_set_error(error, G_FILE_ERROR, (int)g_file_error_from_errno(code),
			    "state directory %s: %s (--state-dir names another)", path,
			    g_strerror(code));
		return NULL;
	}
	KvcfsStateDir *state = g_new0(KvcfsStateDir, 1);
	state->lock_fd = fd;
	char *real = realpath(path, NULL);
	state->path = g_strdup(real != NULL ? real : path);
	free(real);
	return state;
}

char *
kvcfs_state_dir_get_file(const KvcfsStateDir *state, const char *name)
{
	return g_build_filename(state->path, name, NULL);
}

const char *
kvcfs_state_dir_path(const KvcfsStateDir *state)
{
	return state->path;
}

int
kvcfs_state_dir_try_lock(KvcfsStateDir *state)
{
	if (flock(state->lock_fd, LOCK_EX | LOCK_NB) == 0)
		return 1;
	return errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
}

KvcfsStateRecord
kvcfs_state_dir_read(const KvcfsStateDir *state)
{
	KvcfsStateRecord record = {0};
	char text[4 * PATH_MAX + 64] = "", word[16] = "";
	int pid = 0, at = 0;

	if (pread(state->lock_fd, text, sizeof text - 1, 0) <= 0 ||
	    sscanf(text, "%d %15s %u:%u %n", &pid, word, &record.dev_major, &record.dev_minor,
		   &at) != 4)
		return (KvcfsStateRecord){0};
	/* What a longer record left is behind the end of the line; a name may have one itself. */
	text[at + (int)strcspn(text + at, "\n")] = '\0';
	g_autofree char *mountpoint = g_strcompress(text + at);
	g_strlcpy(record.mountpoint, mountpoint, sizeof record.mountpoint);
	record.pid = pid;
	record.draining = strcmp(word, "draining") == 0;
	return record;
}

void
kvcfs_state_dir_write(KvcfsStateDir *state, const KvcfsStateRecord *record)
{
	/* One write, of the same length for one daemon: a reader never sees a mixture of two. */
	g_autofree char *mountpoint = g_strescape(record->mountpoint, NULL);
	g_autofree char *text = g_strdup_printf("%10d %8s %6u:%-10u %s\n", (int)record->pid,
						record->draining ? "draining" : "running",
						record->dev_major, record->dev_minor, mountpoint);
	(void)!pwrite(state->lock_fd, text, strlen(text), 0);
}

void
kvcfs_state_dir_free(KvcfsStateDir *state)
{
	if (state == NULL)
		return;
	close(state->lock_fd);
	g_free(state->path);
	g_free(state);
}
