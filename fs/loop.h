/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_LOOP_H
#define FS_LOOP_H

/*
 * The threads that answer the kernel's requests. Like fuse_session_loop_mt(), but for who reads:
 * all threads of libfuse wait in read(2) and the kernel wakes another one for each request; here
 * one in four cores may, and it goes on reading after a request that takes microseconds
 * (kvcfs_loop_is_short()). Before any other request it lets the next thread read. While short
 * requests follow each other the reader looks for the next one before it sleeps. On two cores an
 * open+close takes 35 us so, 43 us without the looking, and 50 us with the loop of libfuse
 * (scripts/bench meta).
 */

#include <stdbool.h>
#include <stddef.h>

#include "fs/pending.h" /* the one FUSE_USE_VERSION */

typedef struct KvcfsLoop KvcfsLoop;

/* SE is borrowed and must outlive the loop. Starts nothing yet. */
KvcfsLoop *kvcfs_loop_new(struct fuse_session *se);
void kvcfs_loop_free(KvcfsLoop *loop);
/*
 * Answers requests until SE has exited (unmounted, or fuse_session_exit() and kvcfs_loop_wake())
 * and the last thread has returned from its handler. 0 or -errno. To be called once.
 */
int kvcfs_loop_run(KvcfsLoop *loop);
/*
 * Any thread, after fuse_session_exit(): whoever waits for a request ends. A handler is not
 * disturbed.
 */
void kvcfs_loop_wake(KvcfsLoop *loop);
/*
 * In a handler, any thread, any number of times: what follows may take long, so another thread
 * shall read meanwhile. Takes no lock of the file system. Without effect in threads that are not of
 * a loop.
 */
void kvcfs_loop_hand_over(void);

/* Is the request of SIZE bytes at MEM, as the kernel wrote it, one whose handler neither copies nor
 * waits? */
bool kvcfs_loop_is_short(const void *mem, size_t size);

#endif
