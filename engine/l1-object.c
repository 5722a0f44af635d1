/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One object's file: allocated when reserved, trimmed when sealed, given back with the last
 * reference. Its descriptor can write while it is staging and only read afterwards.
 */

#include "engine/l1-object.h"

#include "kvcache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* PAGEMAP_SCAN (linux 6.7); the headers of the oldest supported distribution do not have it. */
struct page_region {
	uint64_t start, end, categories;
};
struct pm_scan_arg {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t category_inverted, category_mask, category_anyof_mask, return_mask;
};
#define KVC_PAGEMAP_SCAN _IOWR('f', 16, struct pm_scan_arg)
#define KVC_PAGE_IS_HUGE (UINT64_C(1) << 6)
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

/* The manager keeps the memory alive; an object finds it through this. */
typedef struct Object {
	KvcL1Object base;
	KvcL1Memory *memory;
	KvcL1Object *owner; /* of the file and its charge, owned; NULL: this one */
	bool is_sized;	    /* the file was made with the size that it keeps */
	bool is_given_out;  /* Atomic: somebody has had the descriptor of the file */
} Object;

/* The one that the file belongs to. */
static Object *
owner_of(const KvcL1Object *object)
{
	const Object *o = (const Object *)object;
	return (Object *)(o->owner ? o->owner : object);
}

/*
 * Has anybody ever had the descriptor of the file? If not, no client can have opened or mapped it:
 * there is nothing to prove.
 */
static bool
is_given_out(const KvcL1Object *object)
{
	return __atomic_load_n(&owner_of(object)->is_given_out, __ATOMIC_RELAXED);
}

/* MODE 0: the file has the size END after it. */
static int
allocate(KvcL1Memory *memory, int fd, int mode, uint64_t begin, uint64_t end)
{
	if (begin >= end)
		return 0;
	int rc;
	do
		rc = fallocate(fd, mode, (off_t)begin, (off_t)(end - begin));
	while (rc != 0 && errno == EINTR);
	if (rc == 0)
		return 0;
	rc = -errno;
	/* What it had taken before it failed others may have missed. */
	if (rc == -ENOSPC)
		kvc_l1_memory_note_full(memory);
	return rc;
}

int
kvc_l1_object_create(KvcL1Manager *manager,
		     KvcL1Memory *memory,
		     uint64_t bytes,
		     bool is_sized,
		     KvcL1Object **out)
{
	uint64_t reserved = kvc_l1_page_round(bytes);
	int fd = kvc_l1_memory_create_file(memory);
	if (fd < 0)
		return fd;
	Object *o = g_new0(Object, 1);
	o->memory = memory;
	o->base.manager = manager;
	o->base.fd = fd;
	o->base.refs = 1;
	o->base.state = KVC_L1_STAGING;
	o->base.full_epoch = kvc_l1_memory_full_epoch(memory);
	int rc = is_sized ? allocate(memory, fd, 0, 0, bytes)
			  : kvc_l1_object_allocate(&o->base, 0, reserved);
	if (rc < 0) {
		close(fd);
		g_free(o);
		return rc;
	}
	o->is_sized = is_sized;
	o->base.bytes = is_sized ? bytes : 0;
	o->base.charged_bytes = reserved;
	*out = &o->base;
	return 0;
}

int
kvc_l1_object_allocate(KvcL1Object *object, uint64_t begin, uint64_t end)
{
	return allocate(((Object *)object)->memory, object->fd, FALLOC_FL_KEEP_SIZE, begin, end);
}

int
kvc_l1_object_set_size(KvcL1Object *object, uint64_t bytes)
{
	g_assert(!((Object *)object)->is_sized);
	kvc_l1_memory_sample_full(((Object *)object)->memory);
	return ftruncate(object->fd, (off_t)bytes) == 0 ? 0 : -errno;
}

static void
adjust_charge(KvcL1Object *object, KvcL1Memory *memory, uint64_t exact)
{
	if (exact > object->charged_bytes)
		kvc_l1_memory_charge_over(memory, exact - object->charged_bytes);
	else
		kvc_l1_memory_uncharge(memory, object->charged_bytes - exact, 0);
	object->charged_bytes = exact;
}

/* Holes have not been paid for: only within the budget, the overrun is for what is written. */
static int
fill_holes(KvcL1Object *object, KvcL1Memory *memory, uint64_t exact)
{
	if (exact > object->charged_bytes) {
		if (!kvc_l1_memory_charge(memory, exact - object->charged_bytes, 0))
			return -ENOSPC;
		object->charged_bytes = exact;
	}
	return kvc_l1_object_allocate(object, 0, exact);
}

/*
 * Has the file still the size and the memory that it was made with, to whole pages? Then there is
 * nothing to look at. (After an end within a page a load may have left something, which the trim
 * clears.)
 */
static bool
is_as_made(const KvcL1Object *object)
{
	return ((const Object *)object)->is_sized && !is_given_out(object) &&
	       object->charged_bytes == object->bytes;
}

static int
trim_file(KvcL1Object *object, KvcL1Memory *memory)
{
	struct stat st;
	if (fstat(object->fd, &st) != 0)
		return -errno;
	uint64_t exact = kvc_l1_page_round((uint64_t)st.st_size);
	kvc_l1_memory_sample_full(memory);
	if (ftruncate(object->fd, st.st_size) != 0)
		return -errno;
	if ((uint64_t)st.st_blocks * 512 < exact) {
		int rc = fill_holes(object, memory, exact);
		if (rc < 0)
			return rc;
	}
	adjust_charge(object, memory, exact);
	object->bytes = (uint64_t)st.st_size;
	return 0;
}

int
kvc_l1_object_seal(KvcL1Object *object, KvcL1Memory *memory)
{
	int rc = is_as_made(object) ? 0 : trim_file(object, memory);
	if (rc < 0)
		return rc;
	object->mtime_ns = object->attributes ? object->attributes->mtime_ns : 0;
	if (object->mtime_ns == 0)
		object->mtime_ns = kvc_wall_ns();
	return 0;
}

/* ---- Protection ---------------------------------------------------------------------------- */

/* The number stays, what is behind it becomes read-only: 0 or -errno. */
static int
make_read_only(int fd)
{
	int read_only = kvc_reopen(fd, O_RDONLY);
	if (read_only < 0)
		return read_only;
	int rc = dup3(read_only, fd, O_CLOEXEC) < 0 ? -errno : 0;
	close(read_only);
	return rc;
}

int
kvc_l1_object_protect(KvcL1Object *object, int64_t wait_ns)
{
	KvcL1Memory *memory = ((Object *)object)->memory;
	struct stat st;
	if (make_read_only(object->fd) < 0)
		return KVC_L1_STILL_WRITABLE;
	if (!is_given_out(object))
		return 0;
	if (!kvc_l1_memory_prove_no_writer(memory, object->fd, wait_ns) ||
	    fstat(object->fd, &st) != 0)
		return KVC_L1_STILL_WRITABLE;
	/* Sealed while a writer still had it: then he may have changed it since. */
	return (uint64_t)st.st_size == object->bytes ? 0 : KVC_L1_STILL_WRITABLE;
}

static int
write_bytes(int fd, const uint8_t *data, uint64_t bytes)
{
	uint64_t done = 0;
	while (done < bytes) {
		ssize_t n = pwrite(fd, data + done, bytes - done, (off_t)done);
		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return n < 0 ? -errno : -EIO;
		done += (uint64_t)n;
	}
	return 0;
}

/* The new file's descriptor, or -errno. */
static int
copy_file(KvcL1Object *object, KvcL1Memory *memory)
{
	KvcMemoryObj from;
	int fd = kvc_l1_memory_create_file(memory);
	if (fd < 0)
		return fd;
	int rc = kvc_l1_object_map(object, false, &from);
	if (rc == 0) {
		rc = allocate(memory, fd, FALLOC_FL_KEEP_SIZE, 0, object->charged_bytes);
		if (rc == 0)
			rc = write_bytes(fd, from.data, from.bytes);
		kvc_l1_object_unmap(&from);
	}
	if (rc == 0)
		return fd;
	close(fd);
	return rc;
}

int
kvc_l1_object_make_private(KvcL1Object *object)
{
	KvcL1Memory *memory = ((Object *)object)->memory;
	int copy = copy_file(object, memory);
	if (copy < 0)
		return copy;
	int old = fcntl(object->fd, F_DUPFD_CLOEXEC, 0);
	if (old < 0 || dup3(copy, object->fd, O_CLOEXEC) < 0) {
		int rc = -errno;
		if (old >= 0)
			close(old);
		close(copy);
		return rc;
	}
	close(copy);
	kvc_l1_memory_close_file(memory, old, object->charged_bytes, true);
	/* Where it fails nobody else has the file all the same. */
	(void)make_read_only(object->fd);
	return 0;
}

/* ---- References ---------------------------------------------------------------------------- */

KvcL1Object *
kvc_l1_object_ref(KvcL1Object *object)
{
	__atomic_fetch_add(&object->refs, 1, __ATOMIC_RELAXED);
	return object;
}

void
kvc_l1_object_unref(KvcL1Object *object)
{
	if (__atomic_fetch_sub(&object->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	Object *o = (Object *)object;
	g_assert(object->state == KVC_L1_DETACHED || object->state == KVC_L1_RESIDENT);
	g_assert(object->read_locks == 0);
	if (o->owner)
		kvc_l1_object_unref(o->owner);
	else
		kvc_l1_memory_close_file(o->memory, object->fd, object->charged_bytes,
					 is_given_out(object));
	if (object->key)
		kvc_object_key_unref(object->key);
	if (object->attributes)
		kvc_object_attributes_clear(object->attributes);
	g_free(object->attributes);
	g_free(o);
}

KvcL1Object *
kvc_l1_object_new_alias(KvcL1Object *object, KvcObjectKey *key)
{
	KvcL1Object *owner = ((Object *)object)->owner ? ((Object *)object)->owner : object;
	Object *o = g_new0(Object, 1);
	o->memory = ((Object *)object)->memory;
	o->owner = kvc_l1_object_ref(owner);
	o->base.manager = object->manager;
	o->base.fd = object->fd;
	o->base.is_temporary = object->is_temporary;
	o->base.full_epoch = object->full_epoch;
	o->base.refs = 1;
	o->base.key = kvc_object_key_ref(key);
	o->base.bytes = object->bytes;
	o->base.charged_bytes = object->charged_bytes;
	o->base.mtime_ns = object->mtime_ns;
	o->base.version_ns = object->version_ns;
	o->base.state = KVC_L1_DETACHED;
	return &o->base;
}

bool
kvc_l1_object_is_unshared(const KvcL1Object *object)
{
	const KvcL1Object *owner = ((const Object *)object)->owner;
	return __atomic_load_n(&object->refs, __ATOMIC_RELAXED) == 1 &&
	       (!owner || __atomic_load_n(&owner->refs, __ATOMIC_RELAXED) == 1);
}

int
kvc_l1_object_get_fd(const KvcL1Object *object)
{
	__atomic_store_n(&owner_of(object)->is_given_out, true, __ATOMIC_RELAXED);
	return object->fd;
}

uint64_t
kvc_l1_object_get_bytes(const KvcL1Object *object)
{
	struct stat st;
	if (object->bytes > 0)
		return object->bytes;
	return fstat(object->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

uint64_t
kvc_l1_object_get_reserved_bytes(const KvcL1Object *object)
{
	return __atomic_load_n(&object->charged_bytes, __ATOMIC_RELAXED);
}

void
kvc_l1_object_set_attributes(KvcL1Object *object, const KvcObjectAttributes *attributes)
{
	if (object->attributes)
		kvc_object_attributes_clear(object->attributes);
	else
		object->attributes = g_new(KvcObjectAttributes, 1);
	*object->attributes = kvc_object_attributes_copy(attributes);
}

bool
kvc_l1_object_was_memory_full(KvcL1Object *object)
{
	KvcL1Memory *memory = ((Object *)object)->memory;
	kvc_l1_memory_sample_full(memory);
	return kvc_l1_memory_full_epoch(memory) != object->full_epoch;
}

/*
 * The access time 0 is "not read": older than the mtime, so that the next read moves it (relatime).
 * Where it cannot be set the object counts as read.
 */
void
kvc_l1_object_mark_unread(KvcL1Object *object)
{
	const struct timespec times[2] = {{0}, {.tv_nsec = UTIME_OMIT}};
	futimens(object->fd, times);
}

bool
kvc_l1_object_take_unread(KvcL1Object *object)
{
	const struct timespec times[2] = {{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_OMIT}};
	struct stat st;
	return fstat(object->fd, &st) == 0 && st.st_atim.tv_sec == 0 &&
	       futimens(object->fd, times) == 0;
}

bool
kvc_l1_object_is_shared(const KvcL1Object *object)
{
	return __atomic_load_n(&object->refs, __ATOMIC_RELAXED) > 1;
}

int
kvc_l1_object_map(KvcL1Object *object, bool write, KvcMemoryObj *out)
{
	uint64_t bytes = kvc_l1_object_get_bytes(object);
	*out = (KvcMemoryObj){.bytes = bytes, .mapped_bytes = kvc_l1_page_round(bytes)};
	if (bytes == 0)
		return 0;
	int protection = PROT_READ | (write ? PROT_WRITE : 0);
	void *data = mmap(NULL, out->mapped_bytes, protection, MAP_SHARED, object->fd, 0);
	if (data == MAP_FAILED)
		return -errno;
	out->data = data;
	return 0;
}

void
kvc_l1_object_unmap(KvcMemoryObj *mapped)
{
	if (mapped->data)
		munmap(mapped->data, mapped->mapped_bytes);
	*mapped = (KvcMemoryObj){0};
}

static int
compare_addresses(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const KvcMemoryObj *)a)->data;
	uintptr_t y = (uintptr_t)((const KvcMemoryObj *)b)->data;
	return x < y ? -1 : x > y;
}

void
kvc_l1_object_unmap_all(KvcMemoryObj *mapped, size_t n)
{
	if (n > 1)
		qsort(mapped, n, sizeof(*mapped), compare_addresses);
	/* All that is between the first and the last of a run is ours, so no gap is unmapped. */
	for (size_t i = 0, end; i < n; i = end) {
		KvcMemoryObj run = mapped[i];
		for (end = i + 1; run.data && end < n &&
				  mapped[end].data == (uint8_t *)run.data + run.mapped_bytes;
		     end++)
			run.mapped_bytes += mapped[end].mapped_bytes;
		kvc_l1_object_unmap(&run);
	}
	if (n > 0)
		memset(mapped, 0, n * sizeof(*mapped));
}

static int64_t
scan_huge_bytes(int pagemap_fd, const KvcMemoryObj *mapped)
{
	struct page_region regions[64];
	uint64_t start = (uintptr_t)mapped->data, end = start + mapped->mapped_bytes;
	int64_t huge = 0;
	while (start < end) {
		struct pm_scan_arg arg = {
			.size = sizeof(arg),
			.start = start,
			.end = end,
			.vec = (uintptr_t)regions,
			.vec_len = G_N_ELEMENTS(regions),
			.category_mask = KVC_PAGE_IS_HUGE,
			.return_mask = KVC_PAGE_IS_HUGE,
		};
		int n = ioctl(pagemap_fd, KVC_PAGEMAP_SCAN, &arg);
		if (n < 0)
			return -1;
		for (int i = 0; i < n; i++)
			huge += (int64_t)(regions[i].end - regions[i].start);
		if (arg.walk_end <= start)
			break;
		start = arg.walk_end;
	}
	return huge;
}

int64_t
kvc_l1_object_measure_huge_bytes(KvcL1Object *object)
{
	KvcMemoryObj mapped;
	if (kvc_l1_object_map(object, false, &mapped) < 0)
		return -1;
	if (!mapped.data)
		return 0;
	int64_t huge = -1;
	int fd = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	if (fd >= 0) {
		if (madvise(mapped.data, mapped.mapped_bytes, MADV_POPULATE_READ) == 0)
			huge = scan_huge_bytes(fd, &mapped);
		close(fd);
	}
	kvc_l1_object_unmap(&mapped);
	return huge;
}
