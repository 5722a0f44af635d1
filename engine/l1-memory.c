/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The budget is exact: files are charged for what they have reserved, and a reservation is
 * allocated when it is made. The tmpfs is larger than the budget by the overrun, which only files
 * that outgrow their reservation use, until their commit charges it.
 *
 * A passed-through write that finds the tmpfs full fails without the daemon seeing it. So the free
 * space is sampled before anything is released: when it was used up, the "full epoch" moves on, and
 * a staging object from an earlier epoch cannot be proven complete.
 *
 * A client's mapping keeps a file's memory after we closed it, where no budget sees it. So a file
 * that clients may have seen is closed only with a write lease on it; until that can be had it
 * lingers: open, charged, and looked at again now and then.
 */

#include "engine/l1-memory.h"

#include "engine/l1-lease.h"
#include "engine/lock.h"
#include "kvcache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

#define LONGEST_NO_WRITER_WAIT_NS (1 * KVC_SEC_NS)

/* After a sweep there is none for so many times what it took. */
#define SWEEP_PAUSE_FACTOR 9

typedef struct Lingering {
	int fd;
	uint64_t bytes;
} Lingering;

struct KvcL1Memory {
	/* Immutable after new. */
	int mount_fd; /* -1: memfd */
	uint64_t capacity;
	uint64_t overrun;
	uint64_t files_limit;

	/* Atomic. */
	uint64_t used;
	uint64_t files;
	uint64_t full_epoch;
	uint64_t lingering_files;
	uint64_t lingering_bytes;
	int lease_error; /* errno; 0: leases work */

	KvcMutex lock;
	/* Protected by lock. */
	GArray *lingering; /* of Lingering; empty while a sweep looks at them */
	int64_t next_sweep_ns;
};

uint64_t
kvc_l1_page_round(uint64_t bytes)
{
	/* What would overflow is beyond any budget as it is. */
	return bytes > UINT64_MAX - 4095 ? UINT64_MAX : (bytes + 4095) & ~UINT64_C(4095);
}

static int
set_option(int fs_fd, const char *key, const char *value)
{
	return fsconfig(fs_fd, FSCONFIG_SET_STRING, key, value, 0);
}

/* A tmpfs in no name space: nobody but this process and its clients' descriptors can reach it. */
static int
make_private_tmpfs(uint64_t size, uint64_t files)
{
	int fs_fd = fsopen("tmpfs", FSOPEN_CLOEXEC);
	if (fs_fd < 0)
		return -errno;
	g_autofree char *size_text = g_strdup_printf("%" PRIu64, size);
	g_autofree char *inodes_text = g_strdup_printf("%" PRIu64, files);
	int result = -1;
	if (set_option(fs_fd, "size", size_text) == 0 &&
	    set_option(fs_fd, "nr_inodes", inodes_text) == 0 &&
	    set_option(fs_fd, "mode", "0700") == 0) {
		/* Both are improvements, not conditions: status reports the measured share. */
		(void)set_option(fs_fd, "huge", "within_size");
		(void)fsconfig(fs_fd, FSCONFIG_SET_FLAG, "noswap", NULL, 0);
		if (fsconfig(fs_fd, FSCONFIG_CMD_CREATE, NULL, NULL, 0) == 0)
			result = fsmount(fs_fd, FSMOUNT_CLOEXEC, 0);
	}
	if (result < 0)
		result = -errno;
	close(fs_fd);
	return result;
}

/* Descriptors that objects do not take, where there are few: of the daemon itself, of stores and
 * loads in flight, of open files that are being written. */
#define OTHER_FILES 128u

static uint64_t
files_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 1024;
	uint64_t n = limit.rlim_cur == RLIM_INFINITY ? 1 << 20 : limit.rlim_cur;
	return n - MAX(n / 20, MIN(n / 2, OTHER_FILES));
}

/* What both proofs need, tried on the empty file FD: 0 or -errno. */
static int
try_leases(int fd)
{
	int read_only = kvc_reopen(fd, O_RDONLY);
	if (read_only < 0)
		return read_only;
	int rc = kvc_l1_lease_prove_no_writer(read_only);
	close(read_only);
	if (rc == 0) /* FD itself can write */
		return -EOPNOTSUPP;
	return rc == -EAGAIN ? kvc_l1_lease_prove_unused(fd) : rc;
}

static void
settle_leases(KvcL1Memory *memory, int fd)
{
	int rc = try_leases(fd);
	if (rc < 0)
		g_warning("l1 memory: no leases (%s): every commit copies its object, and memory "
			  "that clients keep mapped is not seen",
			  g_strerror(-rc));
	memory->lease_error = -rc;
}

static void
free_parts(KvcL1Memory *memory)
{
	for (guint i = 0; i < memory->lingering->len; i++)
		close(g_array_index(memory->lingering, Lingering, i).fd);
	g_array_unref(memory->lingering);
	kvc_mutex_deinit(&memory->lock);
	if (memory->mount_fd >= 0)
		close(memory->mount_fd);
	g_free(memory);
}

KvcL1Memory *
kvc_l1_memory_new(uint64_t capacity, uint64_t overrun, GError **error)
{
	KvcL1Memory *memory = g_new0(KvcL1Memory, 1);
	memory->capacity = capacity;
	memory->overrun = overrun;
	memory->files_limit = files_limit();
	memory->lingering = g_array_new(FALSE, FALSE, sizeof(Lingering));
	kvc_mutex_init(&memory->lock, KVC_LOCK_LEAF);
	memory->mount_fd = make_private_tmpfs(capacity + overrun, memory->files_limit + 1024);
	if (memory->mount_fd < 0) {
		g_message("l1 memory: no private tmpfs (%s), using memfd",
			  g_strerror(-memory->mount_fd));
		memory->mount_fd = -1;
	}
	int fd = kvc_l1_memory_create_file(memory);
	if (fd < 0) {
		g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(-fd),
			    "l1 memory: cannot create a file: %s", g_strerror(-fd));
		free_parts(memory);
		return NULL;
	}
	settle_leases(memory, fd);
	close(fd);
	return memory;
}

void
kvc_l1_memory_free(KvcL1Memory *memory)
{
	free_parts(memory);
}

static bool
charge_counter(uint64_t *counter, uint64_t n, uint64_t limit)
{
	uint64_t old = __atomic_load_n(counter, __ATOMIC_RELAXED);
	do {
		if (n > limit || old > limit - n)
			return false;
	} while (!__atomic_compare_exchange_n(counter, &old, old + n, true, __ATOMIC_RELAXED,
					      __ATOMIC_RELAXED));
	return true;
}

bool
kvc_l1_memory_charge(KvcL1Memory *memory, uint64_t bytes, unsigned files)
{
	if (!charge_counter(&memory->files, files, memory->files_limit))
		return false;
	if (charge_counter(&memory->used, bytes, memory->capacity))
		return true;
	__atomic_fetch_sub(&memory->files, files, __ATOMIC_RELAXED);
	return false;
}

void
kvc_l1_memory_charge_over(KvcL1Memory *memory, uint64_t bytes)
{
	__atomic_fetch_add(&memory->used, bytes, __ATOMIC_RELAXED);
}

void
kvc_l1_memory_uncharge(KvcL1Memory *memory, uint64_t bytes, unsigned files)
{
	uint64_t used = __atomic_fetch_sub(&memory->used, bytes, __ATOMIC_RELAXED);
	uint64_t n = __atomic_fetch_sub(&memory->files, files, __ATOMIC_RELAXED);
	g_assert(used >= bytes && n >= files);
}

/* The kernel does not count the descriptor that memfd_create made as a writer: open it again. */
static int
create_memfd(void)
{
	int fd = memfd_create("kvcache-l1", MFD_CLOEXEC);
	if (fd < 0)
		return -errno;
	int counted = kvc_reopen(fd, O_RDWR);
	if (counted == -ENOENT) /* no /proc: then there are no leases either */
		return fd;
	close(fd);
	return counted;
}

int
kvc_l1_memory_create_file(KvcL1Memory *memory)
{
	if (memory->mount_fd < 0)
		return create_memfd();
	int fd = openat(memory->mount_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	return fd < 0 ? -errno : fd;
}

/* ---- Proofs -------------------------------------------------------------------------------- */

bool
kvc_l1_memory_prove_no_writer(KvcL1Memory *memory, int fd, int64_t wait_ns)
{
	if (kvc_l1_memory_lease_error(memory) != 0)
		return false;
	int64_t deadline = kvc_now_ns() + LONGEST_NO_WRITER_WAIT_NS;
	int64_t waited_ns = 0;
	unsigned pause_us = 20;
	int rc;
	while ((rc = kvc_l1_lease_prove_no_writer(fd)) == -EAGAIN) {
		if (waited_ns >= wait_ns || kvc_now_ns() >= deadline)
			return false;
		g_usleep(pause_us);
		waited_ns += pause_us * INT64_C(1000);
		pause_us = MIN(2 * pause_us, 500);
	}
	return rc == 0;
}

/* Is FD the last that keeps its file? Also when that cannot be asked, which is said once. */
static bool
is_unused(KvcL1Memory *memory, int fd)
{
	if (kvc_l1_memory_lease_error(memory) != 0)
		return true;
	int rc = kvc_l1_lease_prove_unused(fd);
	if (rc == -EAGAIN || rc == -ENOMEM)
		return false;
	if (rc < 0 && __atomic_exchange_n(&memory->lease_error, -rc, __ATOMIC_RELAXED) == 0)
		g_warning("l1 memory: no leases any more: %s", g_strerror(-rc));
	return true;
}

static void
release_file(KvcL1Memory *memory, int fd, uint64_t bytes)
{
	kvc_l1_memory_sample_full(memory);
	close(fd);
	kvc_l1_memory_uncharge(memory, bytes, 1);
}

void
kvc_l1_memory_close_file(KvcL1Memory *memory, int fd, uint64_t bytes, bool is_given_out)
{
	if (!is_given_out || is_unused(memory, fd)) {
		release_file(memory, fd, bytes);
		return;
	}
	Lingering one = {.fd = fd, .bytes = bytes};
	__atomic_fetch_add(&memory->lingering_files, 1, __ATOMIC_RELAXED);
	__atomic_fetch_add(&memory->lingering_bytes, bytes, __ATOMIC_RELAXED);
	kvc_mutex_lock(&memory->lock);
	g_array_append_val(memory->lingering, one);
	kvc_mutex_unlock(&memory->lock);
}

/* Those that are to be looked at, out of the list; NULL: none, or not yet. */
static GArray *
take_lingering(KvcL1Memory *memory)
{
	GArray *taken = NULL;
	kvc_mutex_lock(&memory->lock);
	if (memory->lingering->len > 0 && kvc_now_ns() >= memory->next_sweep_ns) {
		taken = memory->lingering;
		memory->lingering = g_array_new(FALSE, FALSE, sizeof(Lingering));
	}
	kvc_mutex_unlock(&memory->lock);
	return taken;
}

/* Releases those of FILES that are unused by now and removes them: true if any was. */
static bool
release_unused(KvcL1Memory *memory, GArray *files)
{
	guint n_left = 0, n = files->len;
	for (guint i = 0; i < n; i++) {
		Lingering one = g_array_index(files, Lingering, i);
		if (!is_unused(memory, one.fd)) {
			g_array_index(files, Lingering, n_left++) = one;
			continue;
		}
		__atomic_fetch_sub(&memory->lingering_files, 1, __ATOMIC_RELAXED);
		__atomic_fetch_sub(&memory->lingering_bytes, one.bytes, __ATOMIC_RELAXED);
		release_file(memory, one.fd, one.bytes);
	}
	g_array_set_size(files, n_left);
	return n_left < n;
}

/* What a sweep has cost. Not the time that it waited for a processor: who needs room would wait for
 * that again. */
static int64_t
thread_cpu_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * KVC_SEC_NS + ts.tv_nsec;
}

bool
kvc_l1_memory_sweep(KvcL1Memory *memory)
{
	if (kvc_l1_memory_lingering_files(memory) == 0)
		return false;
	GArray *taken = take_lingering(memory);
	if (!taken)
		return false;
	int64_t begin = thread_cpu_ns();
	bool any = release_unused(memory, taken);
	int64_t used = thread_cpu_ns() - begin;
	kvc_mutex_lock(&memory->lock);
	if (taken->len > 0)
		g_array_append_vals(memory->lingering, taken->data, taken->len);
	memory->next_sweep_ns = kvc_now_ns() + SWEEP_PAUSE_FACTOR * used;
	kvc_mutex_unlock(&memory->lock);
	g_array_unref(taken);
	return any;
}

/* ---- Fullness ------------------------------------------------------------------------------ */

void
kvc_l1_memory_sample_full(KvcL1Memory *memory)
{
	struct statfs st;
	if (memory->mount_fd >= 0 && fstatfs(memory->mount_fd, &st) == 0 && st.f_bfree == 0)
		kvc_l1_memory_note_full(memory);
}

void
kvc_l1_memory_note_full(KvcL1Memory *memory)
{
	__atomic_fetch_add(&memory->full_epoch, 1, __ATOMIC_SEQ_CST);
}

uint64_t
kvc_l1_memory_full_epoch(KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->full_epoch, __ATOMIC_SEQ_CST);
}

uint64_t
kvc_l1_memory_capacity(const KvcL1Memory *memory)
{
	return memory->capacity;
}

uint64_t
kvc_l1_memory_used(const KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->used, __ATOMIC_RELAXED);
}

uint64_t
kvc_l1_memory_files(const KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->files, __ATOMIC_RELAXED);
}

uint64_t
kvc_l1_memory_files_limit(const KvcL1Memory *memory)
{
	return memory->files_limit;
}

const char *
kvc_l1_memory_kind(const KvcL1Memory *memory)
{
	return memory->mount_fd >= 0 ? "tmpfs" : "memfd";
}

uint64_t
kvc_l1_memory_lingering_files(const KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->lingering_files, __ATOMIC_RELAXED);
}

uint64_t
kvc_l1_memory_lingering_bytes(const KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->lingering_bytes, __ATOMIC_RELAXED);
}

int
kvc_l1_memory_lease_error(const KvcL1Memory *memory)
{
	return __atomic_load_n(&memory->lease_error, __ATOMIC_RELAXED);
}

uint64_t
kvc_l1_memory_overrun(const KvcL1Memory *memory)
{
	return memory->overrun;
}

/* The files' memory that no charge within the capacity stands for. */
uint64_t
kvc_l1_memory_overrun_used(const KvcL1Memory *memory)
{
	uint64_t used = kvc_l1_memory_used(memory), in_files = used;
	struct statfs st;
	if (memory->mount_fd >= 0 && fstatfs(memory->mount_fd, &st) == 0)
		in_files = ((uint64_t)st.f_blocks - (uint64_t)st.f_bfree) * (uint64_t)st.f_bsize;
	uint64_t within = MIN(used, memory->capacity);
	return in_files > within ? in_files - within : 0;
}
