/* SPDX-License-Identifier: Apache-2.0 */

/*
 * libfuse before 3.17 knows nothing of passthrough and leaves out other flags of INIT. Its answer
 * to INIT goes through our writev, which adds what the kernel offered and we want.
 * OPEN and CREATE are answered with raw bytes, as libfuse has no field for
 * the backing id. The structures below are the kernel's protocol 7.40, the parts that are needed.
 */
#include "fs/passthrough.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include "fs/mount.h"

typedef struct BackingMap {
	int32_t fd;
	uint32_t flags;
	uint64_t padding;
} BackingMap;

#define DEV_IOC_BACKING_OPEN _IOW(229, 1, BackingMap)
#define DEV_IOC_BACKING_CLOSE _IOW(229, 2, uint32_t)

static atomic_bool negotiated;
static bool wanted; /* immutable after install */

bool
kvcfs_passthrough_is_negotiated(void)
{
	return atomic_load(&negotiated);
}

int
kvcfs_backing_open(struct fuse_session *se, int fd)
{
	BackingMap map = {.fd = fd};
	int id = ioctl(fuse_session_fd(se), DEV_IOC_BACKING_OPEN, &map);
	if (id < 0)
		return -errno;
	return id > 0 ? id : -EPROTO;
}

void
kvcfs_backing_close(struct fuse_session *se, int backing_id)
{
	uint32_t id = (uint32_t)backing_id;
	/* Fails only when the connection is gone, and the id with it. */
	(void)!ioctl(fuse_session_fd(se), DEV_IOC_BACKING_CLOSE, &id);
}

#if FUSE_VERSION >= FUSE_MAKE_VERSION(3, 17)

int
kvcfs_passthrough_install(struct fuse_session *se, bool want)
{
	wanted = want;
	return 0;
}

void
kvcfs_passthrough_init(struct fuse_conn_info *conn)
{
	/* Each is set only where the kernel offers it. */
	fuse_set_feature_flag(conn, FUSE_CAP_PARALLEL_DIROPS);
	fuse_set_feature_flag(conn, FUSE_CAP_HANDLE_KILLPRIV_V2);
	fuse_set_feature_flag(conn, FUSE_CAP_DIRECT_IO_ALLOW_MMAP);
	conn->max_backing_stack_depth = 0; /* no stacked file system below: 1 on the wire */
	atomic_store(&negotiated, wanted && fuse_set_feature_flag(conn, FUSE_CAP_PASSTHROUGH));
}

static struct fuse_file_info
with_backing(const struct fuse_file_info *fi, int backing_id)
{
	struct fuse_file_info copy = *fi;
	copy.backing_id = backing_id;
	if (backing_id != 0)
		copy.keep_cache = 0; /* the kernel answers EIO to both */
	copy.parallel_direct_writes = copy.direct_io;
	return copy;
}

int
kvcfs_reply_open(fuse_req_t req, const struct fuse_file_info *fi, int backing_id)
{
	struct fuse_file_info copy = with_backing(fi, backing_id);
	return fuse_reply_open(req, &copy);
}

int
kvcfs_reply_create(fuse_req_t req,
		   const struct fuse_entry_param *entry,
		   const struct fuse_file_info *fi,
		   int backing_id)
{
	struct fuse_file_info copy = with_backing(fi, backing_id);
	return fuse_reply_create(req, entry, &copy);
}

#else /* before 3.17 */

/* ---- The protocol -------------------------------------------------------------------------- */

#define OPCODE_INIT 26

/* INIT, flags */
#define INIT_WRITEBACK_CACHE (1u << 16)
#define INIT_PARALLEL_DIROPS (1u << 18)
#define INIT_HANDLE_KILLPRIV_V2 (1u << 28)
#define INIT_EXT (1u << 30)
/* INIT, flags2: bit 32 and up */
#define INIT2_DIRECT_IO_ALLOW_MMAP (1u << (36 - 32))
#define INIT2_PASSTHROUGH (1u << (37 - 32))

/* OPEN, open_flags */
#define OPEN_DIRECT_IO (1u << 0)
#define OPEN_KEEP_CACHE (1u << 1)
#define OPEN_NONSEEKABLE (1u << 2)
#define OPEN_NOFLUSH (1u << 5)
#define OPEN_PASSTHROUGH (1u << 7)

typedef struct InHeader {
	uint32_t len, opcode;
	uint64_t unique, nodeid;
	uint32_t uid, gid, pid, padding;
} InHeader;

typedef struct OutHeader {
	uint32_t len;
	int32_t error;
	uint64_t unique;
} OutHeader;

typedef struct InitIn {
	uint32_t major, minor, max_readahead, flags, flags2, unused[11];
} InitIn;

typedef struct InitOut {
	uint32_t major, minor, max_readahead, flags;
	uint16_t max_background, congestion_threshold;
	uint32_t max_write, time_gran;
	uint16_t max_pages, map_alignment;
	uint32_t flags2, max_stack_depth;
	uint32_t unused[6];
} InitOut;

typedef struct Attr {
	uint64_t ino, size, blocks, atime, mtime, ctime;
	uint32_t atimensec, mtimensec, ctimensec;
	uint32_t mode, nlink, uid, gid, rdev, blksize, flags;
} Attr;

typedef struct EntryOut {
	uint64_t nodeid, generation, entry_valid, attr_valid;
	uint32_t entry_valid_nsec, attr_valid_nsec;
	Attr attr;
} EntryOut;

typedef struct OpenOut {
	uint64_t fh;
	uint32_t open_flags;
	int32_t backing_id;
} OpenOut;

_Static_assert(sizeof(InHeader) == 40, "fuse_in_header");
_Static_assert(sizeof(OutHeader) == 16, "fuse_out_header");
_Static_assert(sizeof(InitIn) == 64, "fuse_init_in");
_Static_assert(sizeof(InitOut) == 64, "fuse_init_out");
_Static_assert(sizeof(EntryOut) == 128, "fuse_entry_out");
_Static_assert(sizeof(OpenOut) == 16, "fuse_open_out");

/* ---- INIT ---------------------------------------------------------------------------------- */

/*
 * Written by the thread that processes INIT, before any other reads requests; done is what the
 * later ones look at.
 */
static struct {
	atomic_bool done;
	uint64_t unique;
	uint32_t flags, flags2; /* offered by the kernel */
} init;

void
kvcfs_passthrough_init(struct fuse_conn_info *conn)
{
}

static void
patch_init(InitOut *out)
{
	out->flags |= init.flags & (INIT_PARALLEL_DIROPS | INIT_HANDLE_KILLPRIV_V2);
	if ((init.flags & INIT_EXT) == 0)
		return;
	out->flags |= INIT_EXT;
	out->flags2 |= init.flags2 & INIT2_DIRECT_IO_ALLOW_MMAP;
	if (wanted && (init.flags2 & INIT2_PASSTHROUGH) != 0 &&
	    (out->flags & INIT_WRITEBACK_CACHE) == 0) {
		out->flags2 |= INIT2_PASSTHROUGH;
		out->max_stack_depth = 1; /* backing files on tmpfs: nothing stacked below */
	}
}

/*
 * A client's request comes after the answers that it has seen. ThreadSanitizer does not see the
 * kernel do that, so these stand for it.
 */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
static char answers;
static void
before_answer(void)
{
	__tsan_release(&answers);
}
static void
after_request(void)
{
	__tsan_acquire(&answers);
}
#else
static void
before_answer(void)
{
}
static void
after_request(void)
{
}
#endif

static ssize_t
io_read(int fd, void *buf, size_t len, void *userdata)
{
	ssize_t n = read(fd, buf, len);
	after_request();
	if (atomic_load_explicit(&init.done, memory_order_acquire))
		return n;
	if (n >= (ssize_t)sizeof(InHeader) + (ssize_t)offsetof(InitIn, flags2)) {
		InHeader header;
		InitIn in = {0};
		memcpy(&header, buf, sizeof header);
		memcpy(&in, (char *)buf + sizeof header, MIN((size_t)n - sizeof header, sizeof in));
		if (header.opcode == OPCODE_INIT) {
			init.unique = header.unique;
			init.flags = in.flags;
			init.flags2 = in.flags2;
		}
	}
	return n;
}

static ssize_t
write_init_reply(int fd, struct iovec *iov)
{
	InitOut out;
	memcpy(&out, iov[1].iov_base, sizeof out);
	patch_init(&out);
	struct iovec patched[2] = {iov[0], {&out, sizeof out}};
	ssize_t n = writev(fd, patched, 2);
	if (n >= 0) {
		atomic_store(&negotiated, (out.flags2 & INIT2_PASSTHROUGH) != 0);
		atomic_store_explicit(&init.done, true, memory_order_release);
	}
	return n;
}

static ssize_t
io_writev(int fd, struct iovec *iov, int count, void *userdata)
{
	before_answer();
	if (!atomic_load_explicit(&init.done, memory_order_acquire) && count == 2 &&
	    iov[0].iov_len == sizeof(OutHeader) && iov[1].iov_len == sizeof(InitOut)) {
		const OutHeader *header = iov[0].iov_base;
		if (header->unique == init.unique && header->error == 0)
			return write_init_reply(fd, iov);
	}
	/*
	 * Not writev(): a sanitizer looks at the buffers once more after it. By then the client may
	 * have its answer and have closed the file whose text that was.
	 */
	return syscall(SYS_writev, fd, iov, count);
}

static ssize_t
io_splice_receive(int fdin,
		  off_t *offin,
		  int fdout,
		  off_t *offout,
		  size_t len,
		  unsigned flags,
		  void *userdata)
{
	return splice(fdin, offin, fdout, offout, len, flags);
}

static ssize_t
io_splice_send(int fdin,
	       off_t *offin,
	       int fdout,
	       off_t *offout,
	       size_t len,
	       unsigned flags,
	       void *userdata)
{
	return splice(fdin, offin, fdout, offout, len, flags);
}

int
kvcfs_passthrough_install(struct fuse_session *se, bool want)
{
	static const struct fuse_custom_io io = {
		.read = io_read,
		.writev = io_writev,
		.splice_receive = io_splice_receive,
		.splice_send = io_splice_send,
	};
	wanted = want;
	return fuse_session_custom_io(se, &io, fuse_session_fd(se));
}

/* ---- OPEN and CREATE ----------------------------------------------------------------------- */

static OpenOut
open_out(const struct fuse_file_info *fi, int backing_id)
{
	OpenOut out = {.fh = fi->fh, .backing_id = backing_id};
	if (fi->direct_io)
		out.open_flags |= OPEN_DIRECT_IO;
	if (fi->noflush)
		out.open_flags |= OPEN_NOFLUSH;
	/* With passthrough the kernel allows no other companions (its fs/fuse/iomode.c). */
	if (backing_id != 0)
		out.open_flags |= OPEN_PASSTHROUGH;
	else if (fi->keep_cache)
		out.open_flags |= OPEN_KEEP_CACHE;
	if (backing_id == 0 && fi->nonseekable)
		out.open_flags |= OPEN_NONSEEKABLE;
	return out;
}

/* Splits SECONDS as the protocol wants it; a large one means "for ever". */
static uint64_t
split_timeout(double seconds, uint32_t *nsec)
{
	const double most = 1e15;
	*nsec = 0;
	if (!(seconds > 0))
		return 0;
	if (seconds >= most)
		return (uint64_t)most;
	uint64_t whole = (uint64_t)seconds;
	*nsec = (uint32_t)((seconds - (double)whole) * 1e9);
	return whole;
}

static EntryOut
entry_out(const struct fuse_entry_param *entry)
{
	const struct stat *st = &entry->attr;
	EntryOut out = {
		.nodeid = entry->ino,
		.generation = entry->generation,
		.attr =
			{
				.ino = st->st_ino,
				.size = (uint64_t)st->st_size,
				.blocks = (uint64_t)st->st_blocks,
				.atime = (uint64_t)st->st_atim.tv_sec,
				.mtime = (uint64_t)st->st_mtim.tv_sec,
				.ctime = (uint64_t)st->st_ctim.tv_sec,
				.atimensec = (uint32_t)st->st_atim.tv_nsec,
				.mtimensec = (uint32_t)st->st_mtim.tv_nsec,
				.ctimensec = (uint32_t)st->st_ctim.tv_nsec,
				.mode = st->st_mode,
				.nlink = (uint32_t)st->st_nlink,
				.uid = st->st_uid,
				.gid = st->st_gid,
				.rdev = (uint32_t)st->st_rdev,
				.blksize = (uint32_t)st->st_blksize,
			},
	};
	out.entry_valid = split_timeout(entry->entry_timeout, &out.entry_valid_nsec);
	out.attr_valid = split_timeout(entry->attr_timeout, &out.attr_valid_nsec);
	return out;
}

int
kvcfs_reply_open(fuse_req_t req, const struct fuse_file_info *fi, int backing_id)
{
	OpenOut out = open_out(fi, backing_id);
	return fuse_reply_buf(req, (const char *)&out, sizeof out);
}

int
kvcfs_reply_create(fuse_req_t req,
		   const struct fuse_entry_param *entry,
		   const struct fuse_file_info *fi,
		   int backing_id)
{
	struct {
		EntryOut entry;
		OpenOut open;
	} out = {entry_out(entry), open_out(fi, backing_id)};
	_Static_assert(sizeof out == sizeof(EntryOut) + sizeof(OpenOut), "no padding");
	return fuse_reply_buf(req, (const char *)&out, sizeof out);
}

#endif
