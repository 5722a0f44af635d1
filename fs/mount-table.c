/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/mount-table.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* One line of the table: its entry, and the mount point unescaped in place. */
static char *
parse_line(char *line, KvcfsMountEntry *entry)
{
	int at = 0;
	if (sscanf(line, "%d %*d %u:%u %*s %n", &entry->id, &entry->dev_major, &entry->dev_minor,
		   &at) != 3 ||
	    at == 0)
		return NULL;
	char *path = line + at;
	char *end = strchr(path, ' ');
	if (end == NULL)
		return NULL;
	*end = '\0';
	const char *type = strstr(end + 1, " - ");
	entry->is_kvcachefs = type != NULL && g_str_has_prefix(type, " - fuse.kvcachefs ");

	char *out = path;
	for (const char *in = path; *in != '\0';) {
		if (in[0] == '\\' && in[1] >= '0' && in[1] <= '3' && in[2] != '\0' &&
		    in[3] != '\0') {
			*out++ = (char)((in[1] - '0') << 6 | (in[2] - '0') << 3 | (in[3] - '0'));
			in += 4;
		} else {
			*out++ = *in++;
		}
	}
	*out = '\0';
	return path;
}

/* The last entry that is at MOUNTPOINT (if not NULL) and has ID (if not 0). */
static bool
find_last(const char *mountpoint, int id, KvcfsMountEntry *entry)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	if (file == NULL)
		return false;
	char *line = NULL;
	size_t size = 0;
	bool found = false;
	while (getline(&line, &size, file) > 0) {
		KvcfsMountEntry candidate;
		const char *path = parse_line(line, &candidate);
		if (path == NULL || (id != 0 && candidate.id != id) ||
		    (mountpoint != NULL && strcmp(path, mountpoint) != 0))
			continue;
		*entry = candidate;
		found = true;
	}
	free(line);
	fclose(file);
	return found;
}

bool
kvcfs_mount_table_find(const char *mountpoint, KvcfsMountEntry *entry)
{
	return find_last(mountpoint, 0, entry);
}

bool
kvcfs_mount_table_has_id(int id)
{
	KvcfsMountEntry entry;
	return id != 0 && find_last(NULL, id, &entry);
}
