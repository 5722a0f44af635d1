/* SPDX-License-Identifier: Apache-2.0 */

/* The device and the system call that mount a FUSE file system, and what they say on failure. */

#include "fs/mount-device.h"

#include "kvcache/options.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define FUSE_MAJOR 10
#define FUSE_MINOR 229

bool
kvcfs_mount_check_device(GError **error)
{
	struct stat st;
	int code = access("/dev/fuse", R_OK | W_OK) == 0 ? 0 : errno;
	const char *advice = code == EACCES ? ""
					    : " (is the fuse module loaded, and the device "
					      "given to this container?)";
	if (code == 0 && stat("/dev/fuse", &st) == 0 &&
	    (!S_ISCHR(st.st_mode) || st.st_rdev != makedev(FUSE_MAJOR, FUSE_MINOR)))
		code = ENXIO;
	if (code != 0)
		g_set_error(error, KVC_OPTIONS_ERROR, code, "/dev/fuse: %s%s", g_strerror(code),
			    advice);
	return code == 0;
}

int
kvcfs_mount_silently(struct fuse_session *se, const char *mountpoint, char *text, size_t size)
{
	int memory = memfd_create("stderr", MFD_CLOEXEC);
	int saved = memory >= 0 ? fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3) : -1;
	if (saved >= 0)
		dup2(memory, STDERR_FILENO);
	int result = fuse_session_mount(se, mountpoint);
	if (saved >= 0) {
		dup2(saved, STDERR_FILENO);
		close(saved);
	}
	ssize_t n = memory >= 0 ? pread(memory, text, size - 1, 0) : 0;
	text[n > 0 ? n : 0] = '\0';
	if (memory >= 0)
		close(memory);
	if (result == 0 && n > 0) /* another thread's, or a warning */
		(void)!write(STDERR_FILENO, text, (size_t)n);
	g_strdelimit(g_strchomp(text), "\n", ' ');
	return result;
}
