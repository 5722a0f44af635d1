/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_SD_NOTIFY_H
#define FS_SD_NOTIFY_H

/* The readiness protocol of systemd, sd_notify(3): one datagram; no library is needed for it. */

/*
 * Sends STATE ("READY=1", lines) to the socket of $NOTIFY_SOCKET. Does nothing without one. Any
 * thread. A failure is logged: the service manager would take us for hanging.
 */
void kvcfs_sd_notify(const char *state);

#endif
