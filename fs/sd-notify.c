/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/sd-notify.h"

#include <errno.h>
#include <glib.h>
#include <stddef.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

void
kvcfs_sd_notify(const char *state)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	const char *path = g_getenv("NOTIFY_SOCKET");
	size_t len = path ? strlen(path) : 0;
	if (len == 0)
		return;
	int fd = -1;
	errno = EINVAL;
	if ((path[0] == '/' || path[0] == '@') && len < sizeof address.sun_path)
		fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	memcpy(address.sun_path, path, MIN(len, sizeof address.sun_path));
	if (path[0] == '@') /* in the abstract name space */
		address.sun_path[0] = '\0';
	socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
	if (fd < 0 || sendto(fd, state, strlen(state), MSG_NOSIGNAL,
			     (const struct sockaddr *)&address, size) < 0)
		g_warning("$NOTIFY_SOCKET %s: %s", path, g_strerror(errno));
	if (fd >= 0)
		close(fd);
}
