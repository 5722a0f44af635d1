/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The device: opened for this process alone, looked at, formatted if it may be, its superblocks.
 * What is not certain is refused: a device holds one thing only, and there is no way back.
 */

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "raw_block.h"

#define DEFAULT_SLOT_BYTES (UINT64_C(1) << 20)
/* An empty device has zeros at its begin and at its end. */
#define EMPTY_BEGIN_BYTES (1u << 20)
#define EMPTY_END_BYTES (64u << 10)

static bool fail(GError **error, int errnum, const char *format, ...) G_GNUC_PRINTF(3, 4);

static bool
fail(GError **error, int errnum, const char *format, ...)
{
	va_list arguments;

	va_start(arguments, format);
	g_autofree char *text = g_strdup_vprintf(format, arguments);
	va_end(arguments);
	g_set_error_literal(error, KVC_OPTIONS_ERROR, errnum, text);
	return false;
}

/* ---- Reading and writing ------------------------------------------------------------------- */

int
raw_block_read(RawBlock *rb, void *data, size_t bytes, uint64_t offset)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n = pread(rb->fd, (char *)data + at, bytes - at, (off_t)(offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

int
raw_block_write(RawBlock *rb, const void *data, size_t bytes, uint64_t offset)
{
	for (size_t at = 0; at < bytes;) {
		ssize_t n =
			pwrite(rb->fd, (const char *)data + at, bytes - at, (off_t)(offset + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		at += (size_t)n;
	}
	return 0;
}

int
raw_block_sync(RawBlock *rb)
{
	bool was_unsynced = atomic_exchange(&rb->is_unsynced, false);

	if (fdatasync(rb->fd) == 0)
		return 0;
	int rc = -errno;
	if (was_unsynced)
		atomic_store(&rb->is_unsynced, true);
	return rc;
}

uint64_t
raw_block_slot_offset(const RawBlock *rb, uint32_t slot)
{
	return rb->super.slots_offset + slot * rb->super.slot_bytes;
}

int
raw_block_write_super(RawBlock *rb)
{
	_Alignas(RAW_BLOCK_PAGE_BYTES) uint8_t page[RAW_BLOCK_PAGE_BYTES];

	rb->super.sequence++;
	raw_block_super_encode(&rb->super, page);
	int rc = raw_block_write(rb, page, sizeof(page), RAW_BLOCK_SUPER_A_OFFSET);
	if (rc == 0)
		rc = raw_block_write(rb, page, sizeof(page), RAW_BLOCK_SUPER_B_OFFSET);
	return rc;
}

/* ---- Opening ------------------------------------------------------------------------------- */

/* Where the block device DEV is mounted (transfer full), or NULL. */
static char *
find_mount(dev_t dev)
{
	g_autofree char *text = NULL;
	g_autofree char *number = g_strdup_printf("%u:%u", major(dev), minor(dev));

	if (!g_file_get_contents("/proc/self/mountinfo", &text, NULL, NULL))
		return NULL;
	g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
	for (char **line = lines; *line; line++) {
		g_auto(GStrv) fields = g_strsplit(*line, " ", 6);

		if (g_strv_length(fields) == 6 && !strcmp(fields[2], number))
			return g_strdup(fields[4]);
	}
	return NULL;
}

static bool
refuse_busy(RawBlock *rb, GError **error)
{
	struct stat st;
	g_autofree char *mount =
		stat(rb->path, &st) == 0 && S_ISBLK(st.st_mode) ? find_mount(st.st_rdev) : NULL;

	if (mount)
		return fail(error, EBUSY, "device_path \"%s\" is mounted at \"%s\"", rb->path,
			    mount);
	return fail(error, EBUSY,
		    "device_path \"%s\" is used by another program, or mounted, or a part of it is",
		    rb->path);
}

/* A file that is not there yet is made, with all its blocks, if its size is known. */
static bool
make_file(RawBlock *rb, uint64_t capacity, GError **error)
{
	struct stat st;

	if (stat(rb->path, &st) == 0)
		return true;
	/* A misspelt device is no file in memory. */
	bool is_device =
		g_str_has_prefix(rb->path, "/dev/") && !g_str_has_prefix(rb->path, "/dev/shm/");
	if (errno != ENOENT || is_device)
		return fail(error, errno, "cannot open device_path \"%s\": %s", rb->path,
			    g_strerror(errno));
	if (capacity == 0)
		return fail(error, ENOENT,
			    "device_path \"%s\" is not there; with capacity_bytes a file of that "
			    "size is made",
			    rb->path);
	int fd = open(rb->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (fd < 0)
		return fail(error, errno, "cannot make device_path \"%s\": %s", rb->path,
			    g_strerror(errno));
	int rc = fallocate(fd, 0, 0, (off_t)capacity) < 0 ? errno : 0;
	if (rc == EOPNOTSUPP || rc == ENOSYS)
		rc = ftruncate(fd, (off_t)capacity) < 0 ? errno : 0;
	close(fd);
	if (rc == 0)
		return true;
	unlink(rb->path);
	return fail(error, rc, "cannot make device_path \"%s\" of %" PRIu64 " bytes: %s", rb->path,
		    capacity, g_strerror(rc));
}

/* Two descriptors: one that holds the device and one for I/O, see the test of kill -9. */
static bool
open_device(RawBlock *rb, bool want_direct, GError **error)
{
	struct stat st;

	if (stat(rb->path, &st) == 0 && !S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
		return fail(error, EINVAL,
			    "device_path \"%s\" is neither a block device nor a regular file",
			    rb->path);
	/* Of a block device O_EXCL is the kernel's own claim; of a file it says nothing. */
	rb->lock_fd = open(rb->path, O_RDWR | O_EXCL | O_NONBLOCK | O_CLOEXEC);
	if (rb->lock_fd < 0 && errno == EBUSY)
		return refuse_busy(rb, error);
	if (rb->lock_fd < 0)
		return fail(error, errno, "cannot open device_path \"%s\": %s", rb->path,
			    g_strerror(errno));
	if (flock(rb->lock_fd, LOCK_EX | LOCK_NB) < 0)
		return errno == EWOULDBLOCK ? refuse_busy(rb, error)
					    : fail(error, errno, "cannot lock \"%s\": %s", rb->path,
						   g_strerror(errno));
	rb->is_direct = want_direct;
	rb->fd = open(rb->path, O_RDWR | O_CLOEXEC | (want_direct ? O_DIRECT : 0));
	if (rb->fd < 0 && want_direct && kvc_io_is_direct_refused(errno)) {
		rb->is_direct = false;
		rb->fd = open(rb->path, O_RDWR | O_CLOEXEC);
	}
	if (rb->fd < 0)
		return fail(error, errno, "cannot open device_path \"%s\": %s", rb->path,
			    g_strerror(errno));
	return true;
}

/* The bytes of the device, or 0 with ERROR set. */
static uint64_t
get_size(RawBlock *rb, GError **error)
{
	struct stat st;
	uint64_t bytes = 0;
	int sector = 0;

	if (fstat(rb->fd, &st) < 0) {
		fail(error, errno, "cannot stat \"%s\": %s", rb->path, g_strerror(errno));
		return 0;
	}
	if (S_ISREG(st.st_mode)) {
		bytes = (uint64_t)st.st_size;
	} else if (ioctl(rb->fd, BLKGETSIZE64, &bytes) < 0) {
		fail(error, errno, "cannot get the size of \"%s\": %s", rb->path,
		     g_strerror(errno));
		return 0;
	} else if (ioctl(rb->fd, BLKSSZGET, &sector) == 0 && sector > (int)RAW_BLOCK_PAGE_BYTES) {
		fail(error, EINVAL, "device_path \"%s\" has sectors of %d bytes, more than %u",
		     rb->path, sector, RAW_BLOCK_PAGE_BYTES);
		return 0;
	}
	if (bytes < RAW_BLOCK_CHECKPOINT_OFFSET) {
		fail(error, EINVAL, "device_path \"%s\" has %" PRIu64 " bytes: too few", rb->path,
		     bytes);
		return 0;
	}
	return bytes;
}

/* ---- What is on it ------------------------------------------------------------------------- */

/* O_DIRECT may be refused as late as by the first read: then it is not used. */
static int
read_page(RawBlock *rb, void *page, uint64_t offset)
{
	int rc = raw_block_read(rb, page, RAW_BLOCK_PAGE_BYTES, offset);

	if (rc == 0 || !rb->is_direct || !kvc_io_is_direct_refused(-rc))
		return rc;
	if (fcntl(rb->fd, F_SETFL, fcntl(rb->fd, F_GETFL) & ~O_DIRECT) < 0)
		return rc;
	rb->is_direct = false;
	return raw_block_read(rb, page, RAW_BLOCK_PAGE_BYTES, offset);
}

/* What was read of one superblock. */
typedef struct Found {
	_Alignas(RAW_BLOCK_PAGE_BYTES) uint8_t page[RAW_BLOCK_PAGE_BYTES];
	RawBlockSuperState state;
	RawBlockSuper super;
	uint32_t version;
	int error; /* of reading it: 0 or -errno */
} Found;

static void
read_super(RawBlock *rb, uint64_t offset, Found *found)
{
	*found = (Found){.state = RAW_BLOCK_SUPER_DAMAGED};
	found->error = read_page(rb, found->page, offset);
	if (found->error == 0)
		found->state = raw_block_super_decode(found->page, &found->super, &found->version);
}

/*
 * Is OTHER what is left of the twin of VALID? Else something that is none of ours was written over
 * it, as mkfs does, and the store may be half gone.
 */
static bool
is_twin(const Found *valid, const Found *other)
{
	return other->state >= RAW_BLOCK_SUPER_DAMAGED || other->state == RAW_BLOCK_SUPER_VALID ||
	       raw_block_super_has_id(other->page, &valid->super);
}

/* The newer of the two superblocks that are right; else what there is instead. */
static Found *
choose(Found *a, Found *b)
{
	bool a_is_valid = a->state == RAW_BLOCK_SUPER_VALID;
	bool b_is_valid = b->state == RAW_BLOCK_SUPER_VALID;

	if (a_is_valid && b_is_valid)
		return a->super.sequence >= b->super.sequence ? a : b;
	if (a_is_valid || b_is_valid) {
		Found *valid = a_is_valid ? a : b, *other = a_is_valid ? b : a;

		if (!is_twin(valid, other))
			other->state = RAW_BLOCK_SUPER_FOREIGN;
		return is_twin(valid, other) ? valid : other;
	}
	return b->state >= RAW_BLOCK_SUPER_DAMAGED && b->state > a->state ? b : a;
}

static RawBlockSuperState
read_supers(RawBlock *rb, uint32_t *version, int *rc)
{
	Found a, b;

	read_super(rb, RAW_BLOCK_SUPER_A_OFFSET, &a);
	read_super(rb, RAW_BLOCK_SUPER_B_OFFSET, &b);
	const Found *found = choose(&a, &b);
	rb->super = found->super;
	*version = found->version;
	*rc = a.error < 0 ? a.error : b.error;
	return found->state;
}

/* Are there zeros only from OFFSET on, in BYTES, whole pages? 1, 0 or -errno. */
static int
is_zero(RawBlock *rb, uint64_t offset, size_t bytes)
{
	uint8_t *data = aligned_alloc(RAW_BLOCK_PAGE_BYTES, bytes);
	int rc = data ? raw_block_read(rb, data, bytes, offset) : -ENOMEM;

	if (rc == 0)
		rc = data[0] == 0 && !memcmp(data, data + 1, bytes - 1);
	free(data);
	return rc;
}

static int
is_empty(RawBlock *rb, uint64_t total)
{
	int rc;

	total -= total % RAW_BLOCK_PAGE_BYTES;
	rc = is_zero(rb, 0, MIN(total, EMPTY_BEGIN_BYTES));
	return rc == 1 ? is_zero(rb, total - EMPTY_END_BYTES, EMPTY_END_BYTES) : rc;
}

/* ---- Formatting ---------------------------------------------------------------------------- */

/* What is there must not be read as a header, whatever it is: that is what the store id is for. */
static bool
format(RawBlock *rb, uint64_t slot_bytes, uint64_t total, GError **error)
{
	if (slot_bytes == 0)
		slot_bytes = DEFAULT_SLOT_BYTES;
	if (slot_bytes % RAW_BLOCK_PAGE_BYTES != 0)
		return fail(error, EINVAL, "slot_bytes %" PRIu64 " is not a multiple of %u",
			    slot_bytes, RAW_BLOCK_PAGE_BYTES);
	if (!raw_block_super_lay_out(&rb->super, slot_bytes, total))
		return fail(error, EINVAL,
			    "device_path \"%s\" has room for no slot of %" PRIu64
			    " bytes: it has %" PRIu64 " bytes",
			    rb->path, slot_bytes, total);
	if (getrandom(rb->super.store_id, sizeof(rb->super.store_id), 0) !=
	    (ssize_t)sizeof(rb->super.store_id))
		return fail(error, EIO, "cannot get random bytes for \"%s\"", rb->path);
	rb->super.is_clean = true;
	int rc = raw_block_write_super(rb);
	if (rc == 0)
		rc = raw_block_sync(rb);
	if (rc < 0)
		return fail(error, -rc, "cannot format \"%s\": %s", rb->path, g_strerror(-rc));
	return true;
}

/* Why the device is not used as it is (ERROR is set), or true: it holds nothing. */
static bool
check_empty(
	RawBlock *rb, RawBlockSuperState state, uint32_t version, uint64_t total, GError **error)
{
	int rc;

	switch (state) {
	case RAW_BLOCK_SUPER_LMCACHE:
		return fail(error, EINVAL,
			    "device_path \"%s\" holds a raw_block store of LMCache, which is not "
			    "read here; format=true overwrites it",
			    rb->path);
	case RAW_BLOCK_SUPER_DAMAGED:
		return fail(error, EINVAL,
			    "device_path \"%s\": both superblocks are damaged; format=true "
			    "overwrites what is there",
			    rb->path);
	case RAW_BLOCK_SUPER_NEWER:
		return fail(error, EINVAL,
			    "device_path \"%s\" has format %u, and this kvcachefs knows format %u; "
			    "format=true overwrites what is there",
			    rb->path, version, RAW_BLOCK_VERSION);
	default:
		rc = is_empty(rb, total);
		if (rc < 0)
			return fail(error, -rc, "cannot read \"%s\": %s", rb->path,
				    g_strerror(-rc));
		return rc == 1 ||
		       fail(error, EINVAL,
			    "device_path \"%s\" is not empty and holds no store of raw_block; "
			    "format=true overwrites what is there",
			    rb->path);
	}
}

/* Is the store that was found one for these options and this device? */
static bool
check_store(RawBlock *rb, uint64_t slot_bytes, uint64_t capacity, uint64_t total, GError **error)
{
	uint64_t end = raw_block_super_end(&rb->super);

	if (end > total)
		return fail(error, EINVAL,
			    "device_path \"%s\" shrank: it has %" PRIu64
			    " bytes, and its store needs %" PRIu64,
			    rb->path, total, end);
	if (capacity > 0 && end > capacity)
		return fail(error, EINVAL,
			    "capacity_bytes is %" PRIu64 ", and the store in \"%s\" has %" PRIu64,
			    capacity, rb->path, end);
	if (slot_bytes > 0 && slot_bytes != rb->super.slot_bytes)
		return fail(error, EINVAL,
			    "slot_bytes is %" PRIu64
			    ", and the store in \"%s\" has slots of %" PRIu64
			    "; format=true makes a new one",
			    slot_bytes, rb->path, rb->super.slot_bytes);
	return true;
}

static bool
use_device(RawBlock *rb, const KvcOptions *options, GError **error)
{
	uint64_t slot_bytes = kvc_options_get_size(options, "slot_bytes");
	uint64_t capacity = kvc_options_get_size(options, "capacity_bytes");
	bool may_format = kvc_options_get_bool(options, "format");
	uint64_t total = get_size(rb, error);
	uint32_t version = 0;
	g_autoptr(GError) why = NULL;
	int rc = 0;

	if (total == 0)
		return false;
	RawBlockSuperState state = read_supers(rb, &version, &rc);
	/* What cannot be read is not overwritten either. */
	if (rc < 0 && state != RAW_BLOCK_SUPER_VALID)
		return fail(error, -rc, "cannot read \"%s\": %s", rb->path, g_strerror(-rc));
	bool is_usable = state == RAW_BLOCK_SUPER_VALID
				 ? check_store(rb, slot_bytes, capacity, total, &why)
				 : check_empty(rb, state, version, total, &why);
	if (!is_usable && !may_format) {
		g_propagate_error(error, g_steal_pointer(&why));
		return false;
	}
	if (is_usable && state == RAW_BLOCK_SUPER_VALID)
		return true;
	if (capacity > total)
		return fail(error, EINVAL,
			    "capacity_bytes is %" PRIu64 ", and \"%s\" has %" PRIu64 " bytes",
			    capacity, rb->path, total);
	return format(rb, slot_bytes, capacity > 0 ? capacity : total, error);
}

bool
raw_block_device_open(RawBlock *rb, const KvcOptions *options, GError **error)
{
	if (!g_path_is_absolute(rb->path))
		return fail(error, EINVAL, "device_path \"%s\" is not an absolute path", rb->path);
	return make_file(rb, kvc_options_get_size(options, "capacity_bytes"), error) &&
	       open_device(rb, kvc_options_get_bool(options, "use_odirect"), error) &&
	       use_device(rb, options, error);
}

void
raw_block_device_close(RawBlock *rb)
{
	if (rb->fd >= 0)
		close(rb->fd);
	if (rb->lock_fd >= 0)
		close(rb->lock_fd); /* the last: somebody may wait for it */
}
