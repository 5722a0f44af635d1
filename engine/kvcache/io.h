/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_IO_H
#define KVCACHE_IO_H

/*
 * File I/O for adapters: one io_uring ring with its own thread, depth bounded in bytes, objects
 * split into pieces, alignment rules for O_DIRECT, eventfd helpers, and the clocks. Written once,
 * used by every adapter that has a file descriptor. What is not of a ring may be called from any
 * thread.
 */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KVC_BEGIN_DECLS

/* Address, offset and length of O_DIRECT transfers are multiples of this. */
#define KVC_IO_ALIGN_BYTES 4096
/* An object is transferred in pieces of this size. */
#define KVC_IO_PIECE_BYTES (1024 * 1024)

typedef struct KvcIo KvcIo;
typedef struct KvcIoTransfer KvcIoTransfer;

/*
 * One read or write of a range. Filled in and owned by the caller; must stay alive and untouched
 * from the submit until DONE was called. DONE runs on the ring's thread, exactly once, and must not
 * block or submit and wait; it may free the transfer and may submit others.
 */
struct KvcIoTransfer {
	int fd;
	bool is_write;
	void *data;
	uint64_t offset; /* in the file */
	size_t bytes;
	void (*done)(KvcIoTransfer *transfer);
	void *user;

	/* Set before DONE is called. */
	int error;	    /* 0 or -errno of the first piece that failed */
	size_t transferred; /* bytes from the start without a gap; less than BYTES with error 0: end
			       of file */

	/* Owned by the ring's thread. */
	struct {
		size_t next;	 /* where the next piece begins */
		size_t end;	 /* where the file ended, or bytes */
		unsigned pieces; /* in flight */
	} ring;
	KvcIoTransfer *link;
};

/*
 * A ring whose pieces in flight add up to at most DEPTH_BYTES (at least one piece). NAME names the
 * thread (15 bytes). NULL with ERROR set (no io_uring: the errno and what to allow).
 */
KvcIo *kvc_io_new(const char *name, size_t depth_bytes, GError **error);
/*
 * The same for transfers of the open file FD mostly: the kernel need not look it up for each piece.
 * FD is the caller's, and stays open as long as the ring. Other descriptors work as ever.
 */
KvcIo *kvc_io_new_for_file(const char *name, size_t depth_bytes, int fd, GError **error);
/* Waits for every submitted transfer (their DONE is called), then stops the thread. */
void kvc_io_free(KvcIo *io);
/*
 * Queues a transfer. Never blocks; any thread. Short counts are continued, EINTR and EAGAIN
 * retried; a read that ends early is the end of the file.
 */
void kvc_io_submit(KvcIo *io, KvcIoTransfer *transfer);

/* Rounds up to KVC_IO_ALIGN_BYTES. */
size_t kvc_io_align_up(size_t bytes);
/* Does this errno (positive) of an open, read or write mean that O_DIRECT is refused here? */
bool kvc_io_is_direct_refused(int errnum);

/*
 * Opens the file of FD again, with FLAGS (O_RDONLY, O_RDWR) and a file position of its own: a
 * close-on-exec descriptor, or -errno (-ENOENT: there is no /proc).
 */
int kvc_reopen(int fd, int flags);

/* A nonblocking, close-on-exec eventfd, or -errno. */
int kvc_eventfd_new(void);
void kvc_eventfd_signal(int fd);
/* Resets the counter; never blocks. */
void kvc_eventfd_drain(int fd);

#define KVC_MSEC_NS INT64_C(1000000)
#define KVC_SEC_NS INT64_C(1000000000)
/* CLOCK_MONOTONIC and CLOCK_REALTIME in nanoseconds. Any thread. */
int64_t kvc_now_ns(void);
int64_t kvc_wall_ns(void);

KVC_END_DECLS

#endif
