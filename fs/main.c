/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kvcachefs [OPTION...] MOUNTPOINT. In the background by default: the process forks first,
 * everything else (threads, rings, the mount) is made in the child, and the parent returns when the
 * mount answers.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "config.h"
#include "fs/daemon.h"
#include "fs/mount.h"

#define ANSWER_TIMEOUT_MS 5000
#define EXIT_USAGE 2

/* ---- Log ----------------------------------------------------------------------------------- */

static bool in_background;	/* immutable after the start */
static atomic_bool is_detached; /* stderr is /dev/null */

static const char *
find_field(const GLogField *fields, gsize n, const char *key)
{
	for (gsize i = 0; i < n; i++)
		if (strcmp(fields[i].key, key) == 0 && fields[i].length < 0)
			return fields[i].value;
	return NULL;
}

/*
 * To the journal where it is there and nobody looks at stderr, else to stderr, one line each. While
 * a daemon starts its stderr gets everything: that is where the reason is looked for if the start
 * fails.
 */
static GLogWriterOutput
write_log(GLogLevelFlags level, const GLogField *fields, gsize n, void *user)
{
	const char *message = find_field(fields, n, "MESSAGE");
	bool detached = atomic_load(&is_detached);
	bool logged = false;

	if (g_log_writer_default_would_drop(level, find_field(fields, n, "GLIB_DOMAIN")))
		return G_LOG_WRITER_HANDLED;
	if (detached || !isatty(STDERR_FILENO))
		logged = g_log_writer_journald(level, fields, n, NULL) == G_LOG_WRITER_HANDLED;
	if (!detached && (in_background || !logged))
		fprintf(stderr, "kvcachefs: %s\n", message != NULL ? message : "");
	return G_LOG_WRITER_HANDLED;
}

/* ---- Background ---------------------------------------------------------------------------- */

/* One byte through the pipe: the exit status the parent is to have. */
static void
tell_parent(int fd, unsigned char status)
{
	ssize_t n;
	do
		n = write(fd, &status, 1);
	while (n < 0 && errno == EINTR);
	/* The parent was interrupted: nobody waits for this mount any more. */
	if (n < 0 && status == 0)
		kill(getpid(), SIGTERM);
}

static void
on_ready(void *user)
{
	int *fd = user;
	if (*fd < 0)
		return;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (null >= 0) {
		atomic_store(&is_detached, true);
		fflush(NULL);
		for (int i = STDIN_FILENO; i <= STDERR_FILENO; i++)
			dup2(null, i);
		if (null > STDERR_FILENO)
			close(null);
	}
	tell_parent(*fd, 0);
	close(*fd);
	*fd = -1;
}

static int
wait_for_daemon(int fd, pid_t pid, const char *mountpoint)
{
	unsigned char code = 1;
	int status = 0;
	ssize_t n;

	do
		n = read(fd, &code, 1);
	while (n < 0 && errno == EINTR);
	if (n != 1) {
		waitpid(pid, &status, 0);
		fprintf(stderr, "kvcachefs: the daemon ended while starting (%s %d)\n",
			WIFSIGNALED(status) ? "signal" : "status",
			WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
		return 1;
	}
	if (code != 0)
		return code;
	int answer = kvcfs_mount_probe(mountpoint, ANSWER_TIMEOUT_MS);
	if (answer != 0)
		fprintf(stderr, "kvcachefs: %s: %s\n", mountpoint, g_strerror(-answer));
	return answer != 0;
}

/* In the parent: the exit status; in the child: -1, and *FD is the pipe. */
static int
go_to_background(const char *mountpoint, int *fd)
{
	int fds[2];
	pid_t pid = -1;

	in_background = true;
	if (pipe2(fds, O_CLOEXEC) == 0)
		pid = fork();
	if (pid < 0) {
		fprintf(stderr, "kvcachefs: cannot start the daemon: %s\n", g_strerror(errno));
		return 1;
	}
	if (pid > 0) {
		close(fds[1]);
		return wait_for_daemon(fds[0], pid, mountpoint);
	}
	/* Inherited descriptors: one on a file of this very mount would keep it busy for ever. */
	if (fds[1] > STDERR_FILENO + 1)
		close_range(STDERR_FILENO + 1, (unsigned)fds[1] - 1, 0);
	close_range((unsigned)fds[1] + 1, ~0u, 0);
	setsid();
	*fd = fds[1];
	return -1;
}

static int
print_text(const KvcfsOptions *options)
{
	if (options->version) {
		printf("kvcachefs %s (libfuse %s)\n", KVC_VERSION, fuse_pkgversion());
	} else {
		g_autofree char *help = kvcfs_options_get_help();
		fputs(help, stdout);
	}
	return 0;
}

int
main(int argc, char **argv)
{
	g_autoptr(GError) error = NULL;
	int fd = -1, status = -1;

	g_log_set_writer_func(write_log, NULL, NULL);
	g_autoptr(KvcfsOptions) options = kvcfs_options_parse(argc, argv, &error);
	if (options == NULL) {
		fprintf(stderr, "kvcachefs: %s\n", error->message);
		return EXIT_USAGE;
	}
	if (options->help || options->version)
		return print_text(options);
	if (options->is_fake)
		return 0;
	if (!options->foreground)
		status = go_to_background(options->mountpoint, &fd);
	if (status >= 0)
		return status;
	kvcfs_daemon_block_signals();
	status = kvcfs_daemon_run(options, on_ready, &fd);
	if (fd >= 0)
		tell_parent(fd, (unsigned char)status);
	return status;
}
