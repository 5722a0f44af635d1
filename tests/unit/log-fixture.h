/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_LOG_FIXTURE_H
#define TESTS_UNIT_LOG_FIXTURE_H

/* For tests of logs in files: a directory of their own, a disk that is full, what was logged. */

#include <errno.h>
#include <glib.h>
#include <glib/gstdio.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#ifndef wait_until
#define wait_until(condition)                                                                      \
	do {                                                                                       \
		gint64 until_ = g_get_monotonic_time() + 20 * G_USEC_PER_SEC;                      \
		bool is_met_;                                                                      \
		while (!(is_met_ = (condition)) && g_get_monotonic_time() < until_)                \
			g_usleep(1000);                                                            \
		if (!is_met_)                                                                      \
			fail_msg("waited in vain for: %s", #condition);                            \
	} while (0)
#endif

typedef struct Dir {
	char *path;
	char *file; /* "log" in it; absent at first */
	char *copy; /* "copy" in it */
} Dir;

static inline int
dir_set_up(void **state)
{
	Dir *dir = g_new0(Dir, 1);
	const char *parent = getenv("TMPDIR");
	dir->path = g_strdup_printf("%s/kvcache-test-log-XXXXXX", parent ? parent : "/var/tmp");
	assert_non_null(g_mkdtemp(dir->path));
	dir->file = g_build_filename(dir->path, "log", NULL);
	dir->copy = g_build_filename(dir->path, "copy", NULL);
	*state = dir;
	return 0;
}

/* What a test left of its files; the directory has no other ones. */
static inline int
dir_tear_down(void **state)
{
	Dir *dir = *state;
	static const char *const names[] = {"log", "log.new", "copy", "copy.new"};
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autofree char *path = g_build_filename(dir->path, names[i], NULL);
		unlink(path);
	}
	int rc = rmdir(dir->path);
	g_free(dir->path);
	g_free(dir->file);
	g_free(dir->copy);
	g_free(dir);
	return rc;
}

#define TEST_IN_DIR(function) cmocka_unit_test_setup_teardown(function, dir_set_up, dir_tear_down)

static inline char *
read_file(const char *path)
{
	char *text = NULL;
	assert_true(g_file_get_contents(path, &text, NULL, NULL));
	return text;
}

/* Changes one bit of the record in line NUMBER, the first being 1. */
static inline void
damage_line(const char *path, unsigned number)
{
	g_autofree char *text = read_file(path);
	g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
	assert_true(g_strv_length(lines) > number);
	lines[number - 1][strlen(lines[number - 1]) - 1] ^= 1;
	g_autofree char *damaged = g_strjoinv("\n", lines);
	assert_true(g_file_set_contents(path, damaged, -1, NULL));
}

/* The log as a SIGKILL would leave it now: the path of a copy. */
static inline const char *
copy_file(Dir *dir)
{
	gsize len;
	g_autofree char *text = NULL;
	assert_true(g_file_get_contents(dir->file, &text, &len, NULL));
	assert_true(g_file_set_contents(dir->copy, text, (gssize)len, NULL));
	return dir->copy;
}

static inline bool
file_exists(Dir *dir, const char *name)
{
	g_autofree char *path = g_build_filename(dir->path, name, NULL);
	return g_access(path, F_OK) == 0;
}

/* No file may grow beyond BYTES. */
static inline void
limit_files(rlim_t bytes)
{
	struct rlimit limit;
	assert_int_equal(getrlimit(RLIMIT_FSIZE, &limit), 0);
	limit.rlim_cur = bytes;
	assert_int_equal(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

typedef struct Synced {
	int error;
	int calls; /* Atomic */
} Synced;

static inline void
on_synced(void *user, int error)
{
	Synced *synced = user;
	synced->error = error;
	__atomic_fetch_add(&synced->calls, 1, __ATOMIC_RELEASE);
}

static inline int
wait_synced(Synced *synced)
{
	wait_until(__atomic_load_n(&synced->calls, __ATOMIC_ACQUIRE) > 0);
	return synced->error;
}

/* ---- What is logged -------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	GString *text; /* the messages, one a line */
} logged = {PTHREAD_MUTEX_INITIALIZER, NULL};

static inline GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, void *user)
{
	pthread_mutex_lock(&logged.lock);
	for (gsize i = 0; i < n; i++)
		if (strcmp(fields[i].key, "MESSAGE") == 0)
			g_string_append_printf(logged.text, "%s\n", (const char *)fields[i].value);
	pthread_mutex_unlock(&logged.lock);
	return G_LOG_WRITER_HANDLED;
}

static inline void
capture_log(void)
{
	logged.text = g_string_new(NULL);
	g_log_set_writer_func(on_log, NULL, NULL);
}

#endif
