/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Two threads matter here. The main thread starts everything and then is inside the session loop.
 * The supervisor tells when the mount is ready, then waits for a signal to stop: it drains,
 * unmounts and ends the loop. When the loop ends, for this or another reason, the main thread ends
 * the supervisor and does what is left. So at each time one thread only drains, and that one looks
 * at the signals.
 *
 * Each step is bounded: the drain by --drain-timeout, the unmount by BUSY_NS, what should not take
 * time by a watchdog.
 */
#include "fs/daemon.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "fs/mount.h"
#include "fs/path-codec.h"
#include "fs/sd-notify.h"

#define SECOND_NS 1000000000LL
#define SLICE_NS (SECOND_NS / 20)
#define LISTED_NS (5 * SECOND_NS)
#define BUSY_NS (5 * SECOND_NS)
#define NATURAL_END_MS 1000
#define WATCHDOG_SLACK_S 30
#define EXIT_USAGE 2

typedef struct Daemon {
	/* Immutable after start */
	const KvcfsOptions *options;
	char *mountpoint;
	KvcfsStateDir *state;
	Kvcfs *fs;
	KvcfsMount *mount;
	void (*ready)(void *user);
	void *user;
	pthread_t supervisor;
	/* Owned by the supervisor, then, after it was joined, by the main thread */
	bool is_ready;
	bool is_stopping;
	int64_t deadline_ns;
	unsigned stop_signals;
	bool store_failed;
	bool was_busy; /* the mount was detached with files open */
} Daemon;

static int64_t
now_ns(void)
{
	return g_get_monotonic_time() * 1000;
}

/* ---- Signals ------------------------------------------------------------------------------- */

/* SIGUSR1 from the main thread: the loop has ended. */
static void
fill_signals(sigset_t *set)
{
	sigemptyset(set);
	sigaddset(set, SIGTERM);
	sigaddset(set, SIGINT);
	sigaddset(set, SIGHUP);
	sigaddset(set, SIGUSR1);
}

void
kvcfs_daemon_block_signals(void)
{
	sigset_t set;
	fill_signals(&set);
	pthread_sigmask(SIG_BLOCK, &set, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGUSR2, SIG_IGN); /* never was the end of a mount */
	/* A limit on the size of files is EFBIG for who writes one, not the end of the mount. */
	signal(SIGXFSZ, SIG_IGN);
}

/* Waits up to TIMEOUT_NS (-1: for ever). Returns the signal or 0; counts the ones that say stop. */
static int
next_signal(Daemon *d, int64_t timeout_ns)
{
	struct timespec timeout = {timeout_ns / SECOND_NS, timeout_ns % SECOND_NS};
	sigset_t set;
	int n;

	fill_signals(&set);
	do
		n = timeout_ns < 0 ? sigwaitinfo(&set, NULL) : sigtimedwait(&set, NULL, &timeout);
	while (n < 0 && errno == EINTR && timeout_ns < 0);
	if (n > 0 && n != SIGUSR1)
		d->stop_signals++;
	return n > 0 ? n : 0;
}

/* ---- Start --------------------------------------------------------------------------------- */

/* Every resident object is a file descriptor. */
static void
raise_nofile(void)
{
	struct rlimit limit;
	g_autofree char *text = NULL;

	if (g_file_get_contents("/proc/sys/fs/nr_open", &text, NULL, NULL)) {
		limit.rlim_cur = limit.rlim_max = g_ascii_strtoull(text, NULL, 10);
		if (limit.rlim_cur > 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0)
			return;
	}
	if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
		limit.rlim_cur = limit.rlim_max;
		setrlimit(RLIMIT_NOFILE, &limit);
	}
}

static bool
is_inside(const char *path, const char *directory)
{
	size_t n = strlen(directory);
	if (strcmp(directory, "/") == 0)
		return true;
	return strncmp(path, directory, n) == 0 && (path[n] == '/' || path[n] == '\0');
}

/* The real path of what exists of PATH, with the rest as it is. */
static char *
real_path(const char *path)
{
	g_autofree char *head = g_canonicalize_filename(path, NULL);
	g_autofree char *whole = g_strdup(head);

	for (;;) {
		char *real = realpath(head, NULL);
		if (real != NULL) {
			char *result = g_build_filename(real, whole + strlen(head), NULL);
			free(real);
			return result;
		}
		char *slash = strrchr(head, '/');
		if (slash == head)
			return g_strdup(whole);
		*slash = '\0';
	}
}

static bool
check_outside(const char *what, const char *path, const char *mountpoint, GError **error)
{
	g_autofree char *lexical = g_canonicalize_filename(path, NULL);
	if (!is_inside(lexical, mountpoint)) {
		g_autofree char *real = real_path(path);
		if (!is_inside(real, mountpoint))
			return true;
	}
	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "%s \"%s\" is inside the mount point %s",
		    what, path, mountpoint);
	return false;
}

/* Else each store would fail, and nobody might look. What is not there yet, the adapter makes. */
static bool
check_writable(const KvcfsOptions *options, const char *name, const char *path, GError **error)
{
	if (options->is_read_only || access(path, W_OK) == 0 || errno == ENOENT)
		return true;
	int code = errno;
	g_set_error(error, KVC_OPTIONS_ERROR, code, "%s \"%s\": %s%s", name, path, g_strerror(code),
		    code == EROFS || code == EACCES || code == EPERM
			    ? " (-o ro mounts it to be read only)"
			    : "");
	return false;
}

/* The daemon must not wait for itself: L2 may not be below the mount, nor the mount below L2. */
static bool
check_l2_path(
	void *user, const char *specification, const char *name, const char *path, GError **error)
{
	const Daemon *d = user;
	const char *mountpoint = d->mountpoint;
	if (!check_outside(name, path, mountpoint, error))
		return false;
	g_autofree char *real = real_path(path);
	if (!is_inside(mountpoint, real))
		return check_writable(d->options, name, path, error);
	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "the mount point %s is inside %s \"%s\"",
		    mountpoint, name, path);
	return false;
}

/* fusermount3 would refuse it at the end of the start, when L2 has been opened. */
static bool
check_allow_other(const KvcfsOptions *options, GError **error)
{
	g_autofree char *text = NULL;
	if (!options->has_allow_other || geteuid() == 0)
		return true;
	if (g_file_get_contents("/etc/fuse.conf", &text, NULL, NULL)) {
		g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
		for (char **line = lines; *line != NULL; line++)
			if (strcmp(g_strstrip(*line), "user_allow_other") == 0)
				return true;
	}
	g_set_error(error, KVC_OPTIONS_ERROR, EPERM,
		    "mount options: allow_other is for root, unless /etc/fuse.conf has the line "
		    "user_allow_other");
	return false;
}

/* Two adapters in one directory: each sees, replaces and deletes the files of the other. */
static bool
warn_if_shared(
	void *user, const char *specification, const char *name, const char *path, GError **error)
{
	GPtrArray *seen = user;
	g_autofree char *real = real_path(path);
	for (guint i = 0; i < seen->len; i++) {
		const char *other = seen->pdata[i];
		if (is_inside(real, other) || is_inside(other, real))
			g_warning("two --l2-adapter have the same files: %s \"%s\" and \"%s\"",
				  name, other, real);
	}
	g_ptr_array_add(seen, g_steal_pointer(&real));
	return true;
}

/* What may be meant, and more often is not. */
static void
warn_of_setup(const Daemon *d)
{
	g_autoptr(GPtrArray) seen = g_ptr_array_new_with_free_func(g_free);
	if (d->options->l2_adapters->pdata[0] == NULL)
		g_message("no L2: what is written is gone with this mount");
	kvcfs_options_foreach_path(d->options, warn_if_shared, seen, NULL);
}

/* Finds the place free, locked and sound. */
static bool
claim_place(Daemon *d, GError **error)
{
	g_autofree char *path = g_strdup(d->options->state_dir);

	if (!check_allow_other(d->options, error))
		return false;
	d->mountpoint = kvcfs_mount_resolve(d->options->mountpoint, error);
	if (d->mountpoint == NULL)
		return false;
	if (path == NULL)
		path = kvcfs_state_dir_default(d->mountpoint);
	if (!check_outside("state directory", path, d->mountpoint, error))
		return false;
	d->state = kvcfs_state_dir_open(path, error);
	return d->state != NULL && kvcfs_mount_prepare(d->mountpoint, d->state, error) &&
	       kvcfs_options_foreach_path(d->options, check_l2_path, d, error);
}

static void
write_record(Daemon *d, bool draining)
{
	KvcfsStateRecord record = {.pid = getpid(), .draining = draining};
	g_strlcpy(record.mountpoint, d->mountpoint, sizeof record.mountpoint);
	if (d->mount != NULL)
		kvcfs_mount_get_dev(d->mount, &record.dev_major, &record.dev_minor);
	kvcfs_state_dir_write(d->state, &record);
}

static bool
start(Daemon *d, GError **error)
{
	KvcStorageManagerConfig engine;
	KvcfsConfig config;

	raise_nofile();
	if (!claim_place(d, error))
		return false;
	write_record(d, false);
	if (chdir("/") != 0) /* not inside the mount, nor keeping another one busy */
		g_warning("cannot change to /: %s", g_strerror(errno));
	kvcfs_options_fill_engine(d->options, &engine);
	kvcfs_options_fill_fs(d->options, &config);
	g_autofree char *deletions = kvcfs_state_dir_get_file(d->state, "deletions");
	g_autofree char *directories = kvcfs_state_dir_get_file(d->state, "directories");
	engine.deletion_log = deletions;
	config.directory_log = directories;
	g_autofree char *text = kvcfs_options_format(d->options, kvcfs_state_dir_path(d->state));
	config.mount_point = d->mountpoint;
	config.options_text = text;
	kvcfs_names_set_temporary((const char *const *)d->options->temp_names->pdata);
	d->fs = kvcfs_new(&config, &engine, error);
	if (d->fs == NULL)
		return false;
	d->mount = kvcfs_mount_new(d->mountpoint, d->options->mount_options, d->fs,
				   config.io_mode != KVCFS_IO_DIRECT, error);
	if (d->mount == NULL)
		return false;
	write_record(d, false);
	if (!kvcfs_settle_io_mode(d->fs, error))
		return false;
	warn_of_setup(d);
	return true;
}

/* ---- Stop ---------------------------------------------------------------------------------- */

static void *
watchdog_main(void *user)
{
	sleep(GPOINTER_TO_UINT(user));
	g_critical("the end takes too long, giving up");
	_exit(1);
}

/* Once: from now on the clock runs. */
static void
begin_stop(Daemon *d)
{
	pthread_t thread;
	unsigned seconds = (unsigned)(d->options->drain_timeout_ns / SECOND_NS) + WATCHDOG_SLACK_S;

	if (d->is_stopping)
		return;
	d->is_stopping = true;
	d->deadline_ns = now_ns() + d->options->drain_timeout_ns;
	write_record(d, true);
	kvcfs_sd_notify("STOPPING=1\nSTATUS=storing what is not stored yet");
	if (pthread_create(&thread, NULL, watchdog_main, GUINT_TO_POINTER(seconds)) == 0)
		pthread_detach(thread);
}

typedef struct Left {
	uint64_t dirty, unreplicated; /* objects */
	GString *adapters;	      /* how they are */
} Left;

static void
note_left(void *user, const char *name, const char *value)
{
	Left *left = user;
	const char *line = strrchr(name, '.');
	if (strcmp(name, "l1_dirty_objects") == 0)
		left->dirty = g_ascii_strtoull(value, NULL, 10);
	else if (strcmp(name, "l1_unreplicated_objects") == 0)
		left->unreplicated = g_ascii_strtoull(value, NULL, 10);
	if (line == NULL || !g_str_has_prefix(name, "l2."))
		return;
	if (strcmp(line, ".type") == 0)
		g_string_append_printf(left->adapters, "; %.*s (%s)", (int)(line - name), name,
				       value);
	else if (strcmp(line, ".health") == 0)
		g_string_append_printf(left->adapters, " %s", value);
	else if (strcmp(line, ".deletes_pending") == 0 && strcmp(value, "0") != 0)
		g_string_append_printf(left->adapters, ", deletions: %s", value);
	else if (strcmp(line, ".renames_pending") == 0 && strcmp(value, "0") != 0)
		g_string_append_printf(left->adapters, ", renames: %s", value);
}

/* WHY with how many objects are left, and the state of each adapter (transfer full). */
static char *
describe_left(const Daemon *d, const char *why)
{
	Left left = {.adapters = g_string_new(NULL)};
	kvc_storage_manager_report_status(kvcfs_get_storage_manager(d->fs), note_left, &left);
	uint64_t n = left.dirty + left.unreplicated;
	g_autofree char *count = n > 0 ? g_strdup_printf(": %" PRIu64, n) : NULL;
	g_autofree char *adapters = g_string_free(left.adapters, FALSE);
	/* Deletions and renames are waited for, too. */
	return g_strconcat(n > 0 ? "objects " : "changes ", why, n > 0 ? count : "", adapters,
			   NULL);
}

/* Stores what is dirty; NULL, or why not everything is stored (transfer full). */
static char *
drain(Daemon *d)
{
	KvcStorageManager *sm = kvcfs_get_storage_manager(d->fs);

	/* L2 may have room again, and this is the last chance. Once: not also after the unmount. */
	if (!d->store_failed)
		kvc_storage_manager_retry_unreplicated(sm);
	for (;;) {
		int64_t left_ns = d->deadline_ns - now_ns();
		int result = kvc_storage_manager_drain(sm, CLAMP(left_ns, 0, SLICE_NS));
		if (result == 0 && !d->store_failed)
			return NULL;
		if (result != -ETIMEDOUT) {
			d->store_failed = true;
			return describe_left(d, "that could not be stored");
		}
		if (left_ns <= 0)
			return describe_left(d, "not stored within --drain-timeout");
		next_signal(d, 0);
		if (d->stop_signals >= 2)
			return describe_left(d,
					     "not stored, as a second signal cut the drain short");
	}
}

/* Whether the mount is gone without having been busy. */
static bool
unmount(Daemon *d)
{
	int64_t until_ns = now_ns() + BUSY_NS;
	int result;

	while ((result = kvcfs_mount_unmount(d->mount, false)) != 0) {
		if (now_ns() >= until_ns || d->stop_signals >= 2)
			break;
		next_signal(d, SLICE_NS);
	}
	if (result == 0)
		return true;
	result = kvcfs_mount_unmount(d->mount, true);
	if (result == 0)
		g_message("%s was busy and has been detached", d->mountpoint);
	else
		g_warning("cannot unmount %s: %s", d->mountpoint, g_strerror(-result));
	return false;
}

/* After a signal: everything up to the end of the loop. */
static void
stop(Daemon *d)
{
	begin_stop(d);
	kvcfs_begin_drain(d->fs);
	g_free(drain(d)); /* finish() does it again, and tells */
	bool was_free = unmount(d);
	d->was_busy = !was_free;
	if (kvcfs_mount_end_loop(d->mount, was_free ? NATURAL_END_MS : 0) != 0) {
		g_critical("a request does not end, giving up");
		_exit(1);
	}
}

static void *
supervisor_main(void *user)
{
	Daemon *d = user;
	KvcStorageManager *sm = kvcfs_get_storage_manager(d->fs);
	int64_t until_ns = now_ns() + LISTED_NS;
	int caught = 0;

	while (caught == 0 && now_ns() < until_ns &&
	       kvc_storage_manager_wait_listed(sm, SLICE_NS) != 0)
		caught = next_signal(d, 0);
	if (caught == 0) {
		d->is_ready = true;
		d->ready(d->user);
		kvcfs_sd_notify("READY=1\nSTATUS=mounted");
		caught = next_signal(d, -1);
	}
	if (caught != SIGUSR1)
		stop(d);
	return NULL;
}

/* ---- Life ---------------------------------------------------------------------------------- */

/*
 * After the loop: the end of every path, also of an unmount from outside. NULL, or why not
 * everything is stored (transfer full).
 */
static char *
finish(Daemon *d)
{
	begin_stop(d);
	/* A connection that was aborted leaves its mount behind, and its files open. */
	bool all_closed = !d->was_busy && !kvcfs_mount_is_mounted(d->mount);
	if (kvcfs_mount_is_mounted(d->mount))
		kvcfs_mount_unmount(d->mount, true);
	kvcfs_begin_drain(d->fs);
	kvcfs_end_session(d->fs, all_closed);
	kvcfs_mount_hang_up(d->mount);
	return drain(d);
}

static int
serve(Daemon *d, GError **error)
{
	int result = pthread_create(&d->supervisor, NULL, supervisor_main, d);
	if (result == 0) {
		result = -kvcfs_mount_loop(d->mount);
		pthread_kill(d->supervisor, SIGUSR1);
		pthread_join(d->supervisor, NULL);
	}
	g_autofree char *left = finish(d);
	const char *reason = left;
	if (result != 0)
		reason = g_strerror(result);
	else if (reason == NULL && !d->is_ready)
		reason = "stopped before it was ready";
	if (reason != NULL)
		g_set_error(error, KVC_OPTIONS_ERROR, result, "%s: %s", d->mountpoint, reason);
	return reason == NULL ? 0 : 1;
}

static void
clean_up(Daemon *d)
{
	if (d->mount != NULL && !d->is_stopping) { /* the start failed after the mount */
		kvcfs_mount_unmount(d->mount, true);
		kvcfs_end_session(d->fs, false);
		kvcfs_mount_hang_up(d->mount);
	}
	if (d->fs != NULL)
		kvcfs_free(d->fs);
	if (d->mount != NULL)
		kvcfs_mount_free(d->mount);
	kvcfs_state_dir_free(d->state); /* last: now the next daemon may start */
	g_free(d->mountpoint);
}

int
kvcfs_daemon_run(const KvcfsOptions *options, void (*ready)(void *user), void *user)
{
	Daemon d = {.options = options, .ready = ready, .user = user};
	g_autoptr(GError) error = NULL;
	int status;

	if (start(&d, &error))
		status = serve(&d, &error);
	else
		status = g_error_matches(error, KVC_OPTIONS_ERROR, EINVAL) ? EXIT_USAGE : 1;
	if (error != NULL)
		g_critical("%s", error->message);
	clean_up(&d);
	return status;
}
