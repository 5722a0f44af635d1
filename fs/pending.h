/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PENDING_H
#define FS_PENDING_H

/*
 * Requests that are answered later. Each is answered exactly once: by whoever it waits for, at its
 * deadline, or when its caller is interrupted. Every one has an interrupt function, else its caller
 * could not be killed. One thread keeps the deadlines; it also runs timers.
 */

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>
#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct KvcfsPendings KvcfsPendings;
typedef struct KvcfsPending KvcfsPending;

typedef enum { KVCFS_WAKE_DONE, KVCFS_WAKE_TIMEOUT, KVCFS_WAKE_INTERRUPT } KvcfsWake;

/* *N_INTERRUPTED (Atomic; stays) counts the requests whose caller was interrupted. */
KvcfsPendings *kvcfs_pendings_new(uint64_t *n_interrupted);
/* Wakes everything with KVCFS_WAKE_INTERRUPT and refuses to wait from now on. */
void kvcfs_pendings_stop(KvcfsPendings *pendings);
void kvcfs_pendings_free(KvcfsPendings *pendings);

/*
 * Keeps REQ (NULL: a timer) until DEADLINE_NS (CLOCK_MONOTONIC). ANSWER is called once, in any
 * thread without locks, and answers the request; on KVCFS_WAKE_INTERRUPT with EINTR. The caller
 * owns a reference and must call kvcfs_pending_wake() exactly once (for a timer without a waker: at
 * once kvcfs_pending_release()). When a wake has to come later than this call, what it needs must
 * be set up after it.
 */
KvcfsPending *kvcfs_pending_new(KvcfsPendings *pendings,
				fuse_req_t req,
				int64_t deadline_ns,
				void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
				void *user);
/* What was waited for has come: answers unless that has happened; gives the reference back. */
void kvcfs_pending_wake(KvcfsPending *pending);
/* Wakes each of PENDINGS (of KvcfsPending; NULL: none) and frees the array. */
void kvcfs_pending_wake_all(GPtrArray *pendings);
/* How many requests wait (timers do not count); *OLDEST_NS: since when the first, 0: none does. */
unsigned kvcfs_pendings_count(KvcfsPendings *pendings, int64_t *oldest_ns);
/* Gives the reference back; the deadline or an interrupt answers. */
void kvcfs_pending_release(KvcfsPending *pending);

#endif
