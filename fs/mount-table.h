/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_MOUNT_TABLE_H
#define FS_MOUNT_TABLE_H

/*
 * What is mounted where, from /proc/self/mountinfo: reading it resolves no path, so it is safe
 * whatever state the mounts are in.
 */

#include <glib.h>
#include <stdbool.h>

typedef struct KvcfsMountEntry {
	int id;
	unsigned dev_major, dev_minor;
	bool is_kvcachefs; /* its type is fuse.kvcachefs */
} KvcfsMountEntry;

/* The topmost mount at MOUNTPOINT (absolute, real). false: nothing is mounted there. */
bool kvcfs_mount_table_find(const char *mountpoint, KvcfsMountEntry *entry);
/* Is the mount with this ID still there? */
bool kvcfs_mount_table_has_id(int id);

#endif
