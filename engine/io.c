/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One ring, one thread. Any thread appends transfers to a queue; the ring's thread takes them over,
 * cuts them in pieces in the order of arrival (the first object of a batch is complete first) and
 * keeps as many pieces in flight as the depth allows, whichever transfers they belong to. Only the
 * ring's thread touches the ring, so SINGLE_ISSUER holds; the queue wakes it through an eventfd
 * that the ring itself polls.
 */

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/lock.h"
#include "kvcache/io.h"

/* More pieces than this in flight gain nothing, however small they are. */
#define PIECES_MAX 1024
#define PIECES_MIN 64
/* A transfer that meets only EINTR or EAGAIN for this long is broken: fail it instead of spinning.
 */
#define TRIES_MAX 100000
/* Short O_DIRECT reads that end inside a sector end the file. */
#define SECTOR_BYTES 512

typedef struct Piece Piece;
struct Piece {
	KvcIoTransfer *transfer;
	size_t offset; /* from the start of the transfer */
	size_t bytes;
	size_t seen_end; /* where a short direct read ended the last time */
	unsigned tries;	 /* EINTR and EAGAIN in a row */
	Piece *link;
};

typedef struct TransferList {
	KvcIoTransfer *first;
	KvcIoTransfer **last;
} TransferList;

struct KvcIo {
	/* Immutable after open */
	size_t depth_bytes;
	unsigned pieces_max;
	int wake_fd;
	int file_fd; /* registered as file 0; -1: none */
	pthread_t thread;

	/* Protected by lock */
	KvcMutex lock;
	TransferList queue;
	bool stopping;

	/* Owned by the ring's thread */
	struct io_uring ring;
	TransferList
		active; /* not yet completely issued; only the first one has pieces in flight */
	Piece *pieces;
	Piece *unused;
	Piece *again; /* to be issued again: retries and the rest of short counts */
	unsigned pieces_in_flight;
	size_t bytes_in_flight;
	bool wake_armed;
};

size_t
kvc_io_align_up(size_t bytes)
{
	return (bytes + KVC_IO_ALIGN_BYTES - 1) & ~(size_t)(KVC_IO_ALIGN_BYTES - 1);
}

bool
kvc_io_is_direct_refused(int errnum)
{
	return errnum == EINVAL || errnum == EOPNOTSUPP || errnum == ENOTSUP || errnum == EPERM;
}

int
kvc_reopen(int fd, int flags)
{
	char path[32];
	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	int again = open(path, flags | O_CLOEXEC);
	return again < 0 ? -errno : again;
}

int
kvc_eventfd_new(void)
{
	int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);

	return fd < 0 ? -errno : fd;
}

void
kvc_eventfd_signal(int fd)
{
	uint64_t one = 1;

	/* EAGAIN: the counter is at its end, so the reader is awake anyway. */
	while (write(fd, &one, sizeof(one)) < 0 && errno == EINTR)
		;
}

void
kvc_eventfd_drain(int fd)
{
	uint64_t count;

	while (read(fd, &count, sizeof(count)) < 0 && errno == EINTR)
		;
}

static int64_t
clock_ns(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return now.tv_sec * KVC_SEC_NS + now.tv_nsec;
}

int64_t
kvc_now_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t
kvc_wall_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

static void
list_init(TransferList *list)
{
	list->first = NULL;
	list->last = &list->first;
}

static void
list_append(TransferList *list, KvcIoTransfer *transfer)
{
	transfer->link = NULL;
	*list->last = transfer;
	list->last = &transfer->link;
}

static void
list_pop(TransferList *list)
{
	list->first = list->first->link;
	if (!list->first)
		list->last = &list->first;
}

/* Moves everything from FROM to the end of TO. */
static void
list_splice(TransferList *to, TransferList *from)
{
	if (!from->first)
		return;
	*to->last = from->first;
	to->last = from->last;
	list_init(from);
}

void
kvc_io_submit(KvcIo *io, KvcIoTransfer *transfer)
{
	transfer->error = 0;
	transfer->transferred = 0;
	transfer->ring.next = 0;
	transfer->ring.end = transfer->bytes;
	transfer->ring.pieces = 0;

	kvc_mutex_lock(&io->lock);
	bool was_empty = !io->queue.first;
	list_append(&io->queue, transfer);
	/* Inside the lock, so that nobody frees the ring between the two. Does not block. */
	if (was_empty)
		kvc_eventfd_signal(io->wake_fd);
	kvc_mutex_unlock(&io->lock);
}

/* Takes over what was submitted. Returns whether the ring is to stop when it is idle. */
static bool
take_submitted(KvcIo *io)
{
	kvc_mutex_lock(&io->lock);
	list_splice(&io->active, &io->queue);
	bool stopping = io->stopping;
	kvc_mutex_unlock(&io->lock);
	return stopping;
}

static void
transfer_finish(KvcIoTransfer *transfer)
{
	transfer->transferred = transfer->ring.end;
	transfer->done(transfer);
}

static bool
transfer_is_finished(const KvcIoTransfer *transfer)
{
	return transfer->ring.pieces == 0 && transfer->ring.next >= transfer->ring.end;
}

/* Queues PIECE on the ring; false when the ring is full. */
static bool
piece_issue(KvcIo *io, Piece *piece)
{
	const KvcIoTransfer *transfer = piece->transfer;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&io->ring);

	if (!sqe)
		return false;
	char *data = (char *)transfer->data + piece->offset;
	uint64_t offset = transfer->offset + piece->offset;
	bool is_file = transfer->fd == io->file_fd;
	int fd = is_file ? 0 : transfer->fd;
	if (transfer->is_write)
		io_uring_prep_write(sqe, fd, data, (unsigned)piece->bytes, offset);
	else
		io_uring_prep_read(sqe, fd, data, (unsigned)piece->bytes, offset);
	if (is_file)
		io_uring_sqe_set_flags(sqe, IOSQE_FIXED_FILE);
	io_uring_sqe_set_data(sqe, piece);
	return true;
}

/* Cuts the next piece off TRANSFER and issues it; false when the depth or the ring is exhausted. */
static bool
transfer_issue_next(KvcIo *io, KvcIoTransfer *transfer)
{
	size_t bytes = MIN(transfer->ring.end - transfer->ring.next, (size_t)KVC_IO_PIECE_BYTES);
	Piece *piece = io->unused;

	if (!piece || (io->bytes_in_flight > 0 && io->bytes_in_flight + bytes > io->depth_bytes))
		return false;
	Piece *rest = piece->link;
	*piece = (Piece){.transfer = transfer, .offset = transfer->ring.next, .bytes = bytes};
	if (!piece_issue(io, piece)) {
		piece->link = rest;
		return false;
	}
	io->unused = rest;
	io->pieces_in_flight++;
	io->bytes_in_flight += bytes;
	transfer->ring.next += bytes;
	transfer->ring.pieces++;
	return true;
}

static void
issue_again(KvcIo *io)
{
	while (io->again) {
		Piece *piece = io->again;

		if (!piece_issue(io, piece))
			return;
		io->again = piece->link;
	}
}

static void
issue(KvcIo *io)
{
	issue_again(io);
	while (io->active.first) {
		KvcIoTransfer *transfer = io->active.first;

		if (transfer->ring.next < transfer->ring.end) {
			if (!transfer_issue_next(io, transfer))
				return;
			continue;
		}
		list_pop(&io->active);
		if (transfer_is_finished(transfer)) /* nothing to move */
			transfer_finish(transfer);
	}
}

/* PIECE is back for good: the transfer is valid up to END (of it), with ERROR if it failed. */
static void
piece_end(KvcIo *io, Piece *piece, size_t end, int error)
{
	KvcIoTransfer *transfer = piece->transfer;

	io->pieces_in_flight--;
	io->bytes_in_flight -= piece->bytes;
	piece->link = io->unused;
	io->unused = piece;

	if (end < transfer->ring.end)
		transfer->ring.end = end;
	if (error && !transfer->error)
		transfer->error = error;
	transfer->ring.pieces--;
	if (!transfer_is_finished(transfer))
		return;
	if (io->active.first == transfer)
		list_pop(&io->active);
	transfer_finish(transfer);
}

static void
piece_again(KvcIo *io, Piece *piece)
{
	piece->link = io->again;
	io->again = piece;
}

/* The first BYTES of PIECE are done; go on behind them. */
static void
piece_advance(KvcIo *io, Piece *piece, size_t bytes)
{
	piece->offset += bytes;
	piece->bytes -= bytes;
	io->bytes_in_flight -= bytes;
	piece_again(io, piece);
}

/*
 * A count of BYTES that is less than was asked for. O_DIRECT must not go on at an unaligned offset
 * (EINVAL, which would look like "O_DIRECT refused"): it goes on at the last aligned one, and when
 * a read then ends at the same place again, the file ends there.
 */
static void
piece_short(KvcIo *io, Piece *piece, size_t bytes)
{
	bool is_write = piece->transfer->is_write;
	int flags = fcntl(piece->transfer->fd, F_GETFL);
	bool direct = flags >= 0 && (flags & O_DIRECT);
	size_t end = piece->offset + bytes;

	if (bytes == 0 || (direct && bytes < SECTOR_BYTES && is_write)) {
		/* A write that makes no progress would be retried for ever. */
		piece_end(io, piece, piece->offset, is_write ? -EIO : 0);
	} else if (!direct) {
		piece_advance(io, piece, bytes);
	} else if (!is_write && (bytes % SECTOR_BYTES != 0 || end == piece->seen_end)) {
		piece_end(io, piece, end, 0);
	} else if (is_write) {
		piece_advance(io, piece, bytes - bytes % SECTOR_BYTES);
	} else {
		piece->seen_end = end;
		piece_advance(io, piece, bytes - bytes % KVC_IO_ALIGN_BYTES);
	}
}

static void
piece_complete(KvcIo *io, Piece *piece, int result)
{
	if ((result == -EINTR || result == -EAGAIN) && ++piece->tries < TRIES_MAX) {
		piece_again(io, piece);
		return;
	}
	if (result < 0) {
		piece_end(io, piece, piece->offset, result);
		return;
	}
	piece->tries = 0;
	if ((size_t)result < piece->bytes)
		piece_short(io, piece, (size_t)result);
	else
		piece_end(io, piece, SIZE_MAX, 0);
}

static void
arm_wake(KvcIo *io)
{
	struct io_uring_sqe *sqe = io->wake_armed ? NULL : io_uring_get_sqe(&io->ring);

	if (!sqe)
		return;
	io_uring_prep_poll_add(sqe, io->wake_fd, POLLIN);
	io_uring_sqe_set_data(sqe, NULL);
	io->wake_armed = true;
}

static void
reap(KvcIo *io)
{
	struct io_uring_cqe *cqe;

	while (io_uring_peek_cqe(&io->ring, &cqe) == 0) {
		Piece *piece = io_uring_cqe_get_data(cqe);
		int result = cqe->res;

		io_uring_cqe_seen(&io->ring, cqe);
		if (piece) {
			piece_complete(io, piece, result);
		} else {
			kvc_eventfd_drain(io->wake_fd);
			io->wake_armed = false;
		}
	}
}

static void *
ring_main(void *user)
{
	KvcIo *io = user;

	/*
	 * Makes this thread the single issuer. By hand: liburing 2.3 declares
	 * io_uring_enable_rings() but does not export it.
	 */
	syscall(__NR_io_uring_register, io->ring.ring_fd, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	for (;;) {
		bool stopping = take_submitted(io);

		arm_wake(io);
		issue(io);
		if (stopping && !io->active.first && io->pieces_in_flight == 0 &&
		    take_submitted(io) && !io->active.first)
			break;
		int rc = io_uring_submit_and_wait(&io->ring, 1);
		/* The kernel is out of memory for requests: what was not taken stays queued. */
		if (rc < 0 && rc != -EINTR)
			g_usleep(1000);
		reap(io);
	}
	/* Here, where it is done at once; the end of the ring leaves it to a later time. */
	if (io->file_fd >= 0)
		io_uring_unregister_files(&io->ring);
	return NULL;
}

static int
ring_init(struct io_uring *ring, unsigned entries)
{
	static const unsigned wanted[] = {
		IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_COOP_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		0,
	};
	int rc = -EINVAL;

	/* Born disabled: the thread that enables it becomes its issuer. */
	for (size_t i = 0; i < G_N_ELEMENTS(wanted) && rc == -EINVAL; i++)
		rc = io_uring_queue_init(entries, ring, wanted[i] | IORING_SETUP_R_DISABLED);
	return rc;
}

static void
set_ring_error(GError **error, int errnum)
{
	const char *hint = "";

	if (errnum == EPERM)
		hint = "; allow it: sysctl kernel.io_uring_disabled=0 and the container's seccomp "
		       "profile";
	else if (errnum == ENOSYS)
		hint = "; the kernel or a seccomp profile lacks io_uring_setup";
	else if (errnum == ENOMEM)
		hint = "; raise RLIMIT_MEMLOCK";
	g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(errnum),
		    "io_uring cannot be used: %s (errno %d)%s", g_strerror(errnum), errnum, hint);
}

static void
io_destroy(KvcIo *io)
{
	if (io->wake_fd >= 0)
		close(io->wake_fd);
	kvc_mutex_deinit(&io->lock);
	g_free(io->pieces);
	g_free(io);
}

KvcIo *
kvc_io_new(const char *name, size_t depth_bytes, GError **error)
{
	return kvc_io_new_for_file(name, depth_bytes, -1, error);
}

KvcIo *
kvc_io_new_for_file(const char *name, size_t depth_bytes, int fd, GError **error)
{
	KvcIo *io = g_new0(KvcIo, 1);
	char thread_name[16];
	int rc;

	io->file_fd = -1;
	io->depth_bytes = MAX(depth_bytes, (size_t)KVC_IO_PIECE_BYTES);
	io->pieces_max = (unsigned)CLAMP(io->depth_bytes / 65536, PIECES_MIN, PIECES_MAX);
	io->pieces = g_new0(Piece, io->pieces_max);
	for (unsigned i = 0; i < io->pieces_max; i++) {
		io->pieces[i].link = io->unused;
		io->unused = &io->pieces[i];
	}
	kvc_mutex_init(&io->lock, KVC_LOCK_LEAF);
	list_init(&io->queue);
	list_init(&io->active);

	io->wake_fd = kvc_eventfd_new();
	rc = io->wake_fd < 0 ? io->wake_fd : ring_init(&io->ring, io->pieces_max + 1);
	if (rc < 0) {
		set_ring_error(error, -rc);
		io_destroy(io);
		return NULL;
	}
	/* Where it cannot be had (RLIMIT_NOFILE) it is done without. */
	if (fd >= 0 && io_uring_register_files(&io->ring, &fd, 1) == 0)
		io->file_fd = fd;
	rc = pthread_create(&io->thread, NULL, ring_main, io);
	if (rc) {
		set_ring_error(error, rc);
		io_uring_queue_exit(&io->ring);
		io_destroy(io);
		return NULL;
	}
	g_strlcpy(thread_name, name, sizeof(thread_name));
	pthread_setname_np(io->thread, thread_name);
	return io;
}

void
kvc_io_free(KvcIo *io)
{
	if (!io)
		return;
	kvc_mutex_lock(&io->lock);
	io->stopping = true;
	kvc_eventfd_signal(io->wake_fd);
	kvc_mutex_unlock(&io->lock);
	pthread_join(io->thread, NULL);
	io_uring_queue_exit(&io->ring);
	io_destroy(io);
}
