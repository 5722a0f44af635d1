/* SPDX-License-Identifier: Apache-2.0 */

/* --l1-size: how much memory there is for us, and whether that is a sensible part of it. */

#include "fs/options-table.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <unistd.h>

#define SMALLEST_L1 (UINT64_C(2) << 20)

static uint64_t
machine_bytes(void)
{
	return (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
}

bool
kvcfs_check_l1_size(uint64_t bytes, GError **error)
{
	uint64_t most = machine_bytes();
	if (bytes >= SMALLEST_L1 && bytes <= most)
		return true;
	return kvcfs_options_fail(error, ERANGE,
				  "--l1-size: %" PRIu64 " bytes are not within 2M and the %" PRIu64
				  " bytes of memory of this machine",
				  bytes, most);
}

static void
min_with_file(uint64_t *bytes, const char *path)
{
	g_autofree char *text = NULL;
	if (!g_file_get_contents(path, &text, NULL, NULL))
		return;
	uint64_t limit = g_ascii_strtoull(text, NULL, 10); /* "max" is 0 */
	if (limit > 0 && limit < *bytes)
		*bytes = limit;
}

uint64_t
kvcfs_default_l1_size(void)
{
	uint64_t bytes = machine_bytes();
	g_autofree char *text = NULL;
	char *group = NULL;

	min_with_file(&bytes, "/sys/fs/cgroup/memory.max");
	if (g_file_get_contents("/proc/self/cgroup", &text, NULL, NULL))
		group = strstr(text, "0::/");
	if (group != NULL) {
		group += strlen("0::");
		*strchrnul(group, '\n') = '\0';
		for (char *slash; (slash = strrchr(group, '/')) != NULL; *slash = '\0') {
			g_autofree char *path =
				g_strdup_printf("/sys/fs/cgroup%s/memory.max", group);
			min_with_file(&bytes, path);
		}
	}
	return bytes / 4 & ~(uint64_t)4095;
}
