/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_DAEMON_H
#define FS_DAEMON_H

/* The life of the daemon, from the free mount point to the last object stored. */

#include "fs/options.h"

/*
 * Mounts, serves, drains. READY (with USER) is called once, from another thread, when the mount
 * answers; never when the start failed. Expects kvcfs_daemon_block_signals() to have been called.
 * Returns the exit status of the process, after one line for each reason.
 */
int kvcfs_daemon_run(const KvcfsOptions *options, void (*ready)(void *user), void *user);
/* Blocks what the daemon waits for; before any thread is started. */
void kvcfs_daemon_block_signals(void);

#endif
