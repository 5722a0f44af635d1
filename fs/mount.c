/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mount.h"

#include <errno.h>
#include <fcntl.h>
#include <fuse_log.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "fs/loop.h"
#include "fs/mount-device.h"
#include "fs/mount-table.h"

#define LOCK_WAIT_US (120 * G_USEC_PER_SEC)
#define DYING_WAIT_US (1 * G_USEC_PER_SEC)
#define LOCK_MESSAGE_US (2 * G_USEC_PER_SEC)
#define PROBE_TIMEOUT_MS 2000
#define MAX_STALE_MOUNTS 64
#define END_LOOP_MS 10000

struct KvcfsMount {
	/* Immutable after open */
	char *mountpoint;
	struct fuse_session *se;
	KvcfsMountEntry entry;
	KvcfsLoop *loop;
	/* Atomic */
	atomic_bool loop_ended;
};

static void set_errno_error(GError **error, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);

static void
set_errno_error(GError **error, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_autofree char *text = g_strdup_vprintf(format, args);
	va_end(args);
	g_set_error_literal(error, KVC_OPTIONS_ERROR, code, text);
}

/* ---- Is the place free? -------------------------------------------------------------------- */

char *
kvcfs_mount_resolve(const char *path, GError **error)
{
	char *real = realpath(path, NULL);
	if (real == NULL) {
		int code = errno;
		set_errno_error(error, code,
				code == ENOENT ? "mount point %s does not exist"
					       : "mount point %s: %s",
				path, g_strerror(code));
		return NULL;
	}
	char *copy = g_strdup(real);
	free(real);
	/* O_PATH asks no file system: a mount that hangs there is for the probe. */
	int fd = open(copy, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (fd < 0 && errno == ENOTDIR) {
		set_errno_error(error, ENOTDIR, "mount point %s is not a directory", copy);
		g_clear_pointer(&copy, g_free);
	}
	if (fd >= 0)
		close(fd);
	return copy;
}

/* In a child: stat() of a mount that hangs cannot be given up otherwise. */
static void
probe_child(const char *path, int fd)
{
	struct stat st;
	int code = 0;
	if (stat(path, &st) != 0)
		code = errno;
	else if (!S_ISDIR(st.st_mode))
		code = ENOTDIR;
	(void)!write(fd, &code, sizeof code);
	_exit(0);
}

int
kvcfs_mount_probe(const char *path, int timeout_ms)
{
	int fds[2], code = ETIMEDOUT;
	if (pipe2(fds, O_CLOEXEC) != 0)
		return -errno;
	pid_t pid = fork();
	if (pid == 0)
		probe_child(path, fds[1]);
	close(fds[1]);
	if (pid < 0) {
		code = errno;
		close(fds[0]);
		return -code;
	}
	struct pollfd poller = {.fd = fds[0], .events = POLLIN};
	if (poll(&poller, 1, timeout_ms) == 1 && read(fds[0], &code, sizeof code) != sizeof code)
		code = EIO;
	close(fds[0]);
	kill(pid, SIGKILL);
	/* A child that cannot be killed is left to init. */
	waitpid(pid, NULL, code == ETIMEDOUT ? WNOHANG : 0);
	return -code;
}

static bool
already_mounted(const char *mountpoint, GError **error)
{
	set_errno_error(error, EBUSY, "%s is already mounted", mountpoint);
	return false;
}

/* Has PID been killed, though it still has its descriptors? It does not come back. */
static bool
is_dying(pid_t pid)
{
	g_autofree char *path = g_strdup_printf("/proc/%d/status", (int)pid);
	g_autofree char *status = NULL;
	if (!g_file_get_contents(path, &status, NULL, NULL))
		return true;
	const char *state = strstr(status, "\nState:\t");
	const char *pending = strstr(status, "\nSigPnd:\t");
	if (state && strchr("ZX", state[strlen("\nState:\t")]))
		return true;
	return pending && (g_ascii_strtoull(pending + strlen("\nSigPnd:\t"), NULL, 16) &
			   (UINT64_C(1) << (SIGKILL - 1)));
}

/* Is what the writer of RECORD mounted the topmost mount at MOUNTPOINT? */
static bool
is_mount_of(const KvcfsStateRecord *record, const char *mountpoint)
{
	KvcfsMountEntry entry;
	return kvcfs_mount_table_find(mountpoint, &entry) && entry.is_kvcachefs &&
	       entry.dev_major == record->dev_major && entry.dev_minor == record->dev_minor;
}

/*
 * A daemon that was killed while it told the kernel of a name that a request has locked cannot end,
 * and the request is never answered: aborting the connection frees both. (The mount stays, stale.)
 */
static void
abort_connection(const KvcfsStateRecord *holder, const char *mountpoint)
{
	if (!is_mount_of(holder, mountpoint))
		return;
	g_message("the daemon of %s was killed and cannot end: aborting its connection",
		  mountpoint);
	umount2(mountpoint, MNT_FORCE | UMOUNT_NOFOLLOW);
}

/* PLACE: its mount point. A daemon that is about to mount there is waited for. */
static bool
check_holder(const KvcfsStateRecord *holder,
	     const char *place,
	     const char *mountpoint,
	     const KvcfsStateDir *state,
	     GError **error)
{
	if (holder->draining || is_dying(holder->pid))
		return true;
	if (strcmp(place, mountpoint) == 0)
		return !is_mount_of(holder, mountpoint) || already_mounted(mountpoint, error);
	set_errno_error(error, EBUSY, "the state directory %s is that of %s (pid %d)",
			kvcfs_state_dir_path(state), place, (int)holder->pid);
	return false;
}

/*
 * Waits while another daemon has the lock and does not serve (any more): it drains, is dying, or it
 * is another start that is about to mount at MOUNTPOINT.
 */
static bool
take_lock(const char *mountpoint, KvcfsStateDir *state, GError **error)
{
	int64_t start = g_get_monotonic_time();
	bool said = false, has_aborted = false;

	for (;;) {
		int locked = kvcfs_state_dir_try_lock(state);
		if (locked == 1)
			return true;
		if (locked < 0) {
			set_errno_error(error, -locked, "state lock: %s", g_strerror(-locked));
			return false;
		}
		KvcfsStateRecord holder = kvcfs_state_dir_read(state);
		const char *place = holder.mountpoint[0] != '\0' ? holder.mountpoint : mountpoint;
		if (!check_holder(&holder, place, mountpoint, state, error))
			return false;
		int64_t waited = g_get_monotonic_time() - start;
		if (waited > DYING_WAIT_US && !has_aborted && is_dying(holder.pid)) {
			has_aborted = true;
			abort_connection(&holder, place);
		}
		if (waited > LOCK_WAIT_US) {
			set_errno_error(
				error, EBUSY,
				"the daemon of an earlier mount of %s (pid %d) is not done yet",
				place, (int)holder.pid);
			return false;
		}
		if (waited > LOCK_MESSAGE_US && !said) {
			fprintf(stderr,
				"kvcachefs: waiting for the daemon of an earlier mount of %s "
				"(pid %d) to finish\n",
				place, (int)holder.pid);
			said = true;
		}
		g_usleep(20000);
	}
}

static int
run_fusermount(const char *mountpoint, bool lazy)
{
	const char *argv[] = {"fusermount3", lazy ? "-uqz" : "-uq", "--", mountpoint, NULL};
	int status = 0;
	if (!g_spawn_sync("/", (char **)argv, NULL,
			  G_SPAWN_SEARCH_PATH | G_SPAWN_STDOUT_TO_DEV_NULL |
				  G_SPAWN_STDERR_TO_DEV_NULL,
			  NULL, NULL, NULL, NULL, &status, NULL))
		return -ENOENT;
	return status == 0 ? 0 : -EBUSY;
}

static int
unmount_path(const char *mountpoint, bool lazy)
{
	if (umount2(mountpoint, UMOUNT_NOFOLLOW | (lazy ? MNT_DETACH : 0)) == 0)
		return 0;
	if (errno == EPERM)
		return run_fusermount(mountpoint, lazy);
	return -errno;
}

/*
 * With the lock held, the daemon that wrote the record is dead. 1: a stale mount is on top, 0: the
 * place is free, -1: ERROR is set.
 */
static int
check_place(const char *mountpoint, const KvcfsStateRecord *last, GError **error)
{
	int answer = kvcfs_mount_probe(mountpoint, PROBE_TIMEOUT_MS);
	KvcfsMountEntry entry;
	bool is_ours = kvcfs_mount_table_find(mountpoint, &entry) && entry.is_kvcachefs;

	/* Its daemon has let go of the lock: it is dead, if perhaps not yet of its connection. */
	if (answer == -ENOTCONN || is_mount_of(last, mountpoint))
		return 1;
	if (is_ours) {
		already_mounted(mountpoint, error);
		return -1;
	}
	if (answer == -ETIMEDOUT)
		set_errno_error(error, ETIMEDOUT, "mount point %s does not answer", mountpoint);
	else if (answer != 0)
		set_errno_error(error, -answer, "mount point %s: %s", mountpoint,
				g_strerror(-answer));
	return answer == 0 ? 0 : -1;
}

bool
kvcfs_mount_prepare(const char *mountpoint, KvcfsStateDir *state, GError **error)
{
	if (!take_lock(mountpoint, state, error))
		return false;
	KvcfsStateRecord last = kvcfs_state_dir_read(state);
	for (int i = 0; i < MAX_STALE_MOUNTS; i++) {
		int place = check_place(mountpoint, &last, error);
		if (place <= 0)
			return place == 0;
		int result = unmount_path(mountpoint, true);
		if (result != 0) {
			set_errno_error(error, -result, "cannot remove the stale mount at %s: %s",
					mountpoint, g_strerror(-result));
			return false;
		}
		g_info("removed a stale mount at %s", mountpoint);
	}
	set_errno_error(error, EBUSY, "too many stale mounts at %s", mountpoint);
	return false;
}

/* ---- The session --------------------------------------------------------------------------- */

/* Owned by the main thread until the mount is there: libfuse's words for what went wrong. */
static char fuse_message[256];
static atomic_bool fuse_message_is_logged;

static void
on_fuse_log(enum fuse_log_level level, const char *format, va_list args)
{
	char text[sizeof fuse_message];
	vsnprintf(text, sizeof text, format, args);
	if (level > FUSE_LOG_WARNING)
		g_debug("%s", g_strchomp(text));
	else if (atomic_load(&fuse_message_is_logged))
		g_warning("%s", g_strchomp(text));
	else
		g_strlcat(fuse_message, text, sizeof fuse_message); /* it comes in pieces */
}

/* What libfuse said since the last call, as one line. */
static const char *
take_fuse_message(void)
{
	static char line[sizeof fuse_message];
	g_strlcpy(line,
		  fuse_message + (g_str_has_prefix(fuse_message, "fuse: ") ? strlen("fuse: ") : 0),
		  sizeof line);
	fuse_message[0] = '\0';
	return g_strdelimit(g_strchomp(line), "\n", ' ');
}

static void
on_init(void *userdata, struct fuse_conn_info *conn)
{
	if (kvcfs_ops.init != NULL)
		kvcfs_ops.init(userdata, conn);
	kvcfs_passthrough_init(conn);
}

static struct fuse_session *
session_new(const GPtrArray *options, Kvcfs *fs, GError **error)
{
	struct fuse_args args = FUSE_ARGS_INIT(0, NULL);
	struct fuse_lowlevel_ops ops = kvcfs_ops;
	ops.init = on_init;
	fuse_opt_add_arg(&args, "kvcachefs");
	fuse_opt_add_arg(&args, "-ofsname=kvcachefs,subtype=kvcachefs");
	if (geteuid() == 0)
		fuse_opt_add_arg(&args, "-oallow_other,default_permissions");
	for (guint i = 0; i < options->len; i++) {
		fuse_opt_add_arg(&args, "-o");
		fuse_opt_add_arg(&args, options->pdata[i]);
	}
	struct fuse_session *se = fuse_session_new(&args, &ops, sizeof ops, fs);
	fuse_opt_free_args(&args);
	if (se == NULL)
		set_errno_error(error, EINVAL, "mount options: %s", take_fuse_message());
	return se;
}

/* Receives requests until INIT was answered; normally that is the first one. */
static int
process_init(struct fuse_session *se)
{
	struct fuse_buf buf = {.mem = NULL};
	int n;
	do
		n = fuse_session_receive_buf(se, &buf);
	while (n == -EINTR);
	if (n > 0)
		fuse_session_process_buf(se, &buf);
	free(buf.mem);
	if (n <= 0)
		return n < 0 ? n : -ENODEV;
	return fuse_session_exited(se) ? -EPROTO : 0;
}

static bool
mount_session(KvcfsMount *mount, Kvcfs *fs, bool want_passthrough, GError **error)
{
	char said[256];
	if (kvcfs_mount_silently(mount->se, mount->mountpoint, said, sizeof said) != 0) {
		const char *reason = take_fuse_message();
		if (said[0] != '\0')
			reason = said;
		set_errno_error(error, EPERM, "cannot mount %s%s%s", mount->mountpoint,
				reason[0] != '\0' ? ": " : "", reason);
		return false;
	}
	kvcfs_set_session(fs, mount->se);
	int result = kvcfs_passthrough_install(mount->se, want_passthrough);
	if (!kvcfs_mount_table_find(mount->mountpoint, &mount->entry))
		result = -ENOENT;
	if (result == 0)
		result = process_init(mount->se);
	if (result != 0) {
		const char *reason = take_fuse_message();
		set_errno_error(error, -result, "the kernel and libfuse do not agree: %s",
				reason[0] != '\0' ? reason : g_strerror(-result));
	}
	return result == 0;
}

KvcfsMount *
kvcfs_mount_new(const char *mountpoint,
		const GPtrArray *options,
		Kvcfs *fs,
		bool want_passthrough,
		GError **error)
{
	if (!kvcfs_mount_check_device(error))
		return NULL;
	fuse_set_log_func(on_fuse_log);
	struct fuse_session *se = session_new(options, fs, error);
	if (se == NULL)
		return NULL;
	KvcfsMount *mount = g_new0(KvcfsMount, 1);
	mount->mountpoint = g_strdup(mountpoint);
	mount->se = se;
	mount->loop = kvcfs_loop_new(se);
	if (!mount_session(mount, fs, want_passthrough, error)) {
		kvcfs_mount_unmount(mount, true);
		kvcfs_mount_free(mount);
		return NULL;
	}
	atomic_store(&fuse_message_is_logged, true);
	return mount;
}

void
kvcfs_mount_get_dev(const KvcfsMount *mount, unsigned *dev_major, unsigned *dev_minor)
{
	*dev_major = mount->entry.dev_major;
	*dev_minor = mount->entry.dev_minor;
}

void
kvcfs_mount_free(KvcfsMount *mount)
{
	/* After hang_up libfuse takes it for unmounted and leaves the mount point alone. */
	kvcfs_mount_hang_up(mount);
	fuse_session_unmount(mount->se);
	fuse_session_destroy(mount->se);
	kvcfs_loop_free(mount->loop);
	g_free(mount->mountpoint);
	g_free(mount);
}

/* ---- The loop ------------------------------------------------------------------------------ */

int
kvcfs_mount_loop(KvcfsMount *mount)
{
	int result = kvcfs_loop_run(mount->loop);
	atomic_store(&mount->loop_ended, true);
	return result;
}

int
kvcfs_mount_end_loop(KvcfsMount *mount, int wait_ms)
{
	for (int i = 0; i < wait_ms && !atomic_load(&mount->loop_ended); i += 5)
		g_usleep(5000);
	if (!atomic_load(&mount->loop_ended))
		fuse_session_exit(mount->se);
	for (int i = 0; i < END_LOOP_MS; i += 5) {
		if (atomic_load(&mount->loop_ended))
			return 0;
		kvcfs_loop_wake(mount->loop);
		g_usleep(5000);
	}
	return -ETIMEDOUT;
}

/* ---- The end ------------------------------------------------------------------------------- */

bool
kvcfs_mount_is_mounted(const KvcfsMount *mount)
{
	return kvcfs_mount_table_has_id(mount->entry.id);
}

int
kvcfs_mount_unmount(KvcfsMount *mount, bool lazy)
{
	KvcfsMountEntry top;
	if (!kvcfs_mount_is_mounted(mount))
		return 0;
	/* Something else was mounted over it: that is not ours to unmount. */
	if (!kvcfs_mount_table_find(mount->mountpoint, &top) || top.id != mount->entry.id)
		return -EBUSY;
	return unmount_path(mount->mountpoint, lazy);
}

void
kvcfs_mount_hang_up(KvcfsMount *mount)
{
	int fds[2], fd = fuse_session_fd(mount->se);
	if (fd < 0 || pipe2(fds, O_CLOEXEC) != 0)
		return;
	/* A pipe without a reader polls POLLERR, as a connection whose mount is gone. */
	close(fds[0]);
	dup3(fds[1], fd, O_CLOEXEC);
	close(fds[1]);
}
