/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The budget is exact: files are charged for what they have reserved, and a reservation is
 * allocated when it is made. The tmpfs is larger than the budget by the overrun, which only files
 * that outgrow their reservation use, until their commit charges it.
 *
 * A passed-through write that finds the tmpfs full fails without the daemon seeing it. So the free
 * space is sampled before anything is released: when it was used up, the "full epoch" moves on, and
 * a staging object from an earlier epoch cannot be proven complete.
 */

#include "engine/l1-memory.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/vfs.h>
#include <unistd.h>

struct KvcL1Memory {
	/* Immutable after new. */
	int mount_fd; /* -1: memfd */
	uint64_t capacity;
	uint64_t files_limit;

	/* Atomic. */
	uint64_t used;
	uint64_t files;
	uint64_t full_epoch;
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

static uint64_t
files_limit(void)
{
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return 1024;
	uint64_t n = limit.rlim_cur == RLIM_INFINITY ? 1 << 20 : limit.rlim_cur;
	return n - n / 20;
}

KvcL1Memory *
kvc_l1_memory_new(uint64_t capacity, uint64_t overrun, GError **error)
{
	g_autofree KvcL1Memory *memory = g_new0(KvcL1Memory, 1);
	memory->capacity = capacity;
	memory->files_limit = files_limit();
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
		if (memory->mount_fd >= 0)
			close(memory->mount_fd);
		return NULL;
	}
	close(fd);
	return g_steal_pointer(&memory);
}

void
kvc_l1_memory_free(KvcL1Memory *memory)
{
	if (memory->mount_fd >= 0)
		close(memory->mount_fd);
	g_free(memory);
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

int
kvc_l1_memory_create_file(KvcL1Memory *memory)
{
	int fd = memory->mount_fd >= 0
			 ? openat(memory->mount_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)
			 : memfd_create("kvcache-l1", MFD_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

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
