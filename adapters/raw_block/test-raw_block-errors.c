/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A device that fails or hangs, and memory that is not there: pread, pwrite and aligned_alloc of
 * the adapter are the ones in here. (The payload goes through the ring, which is left alone.)
 */

#include "test-raw_block-util.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#define SLOT_BYTES 8192
#define OPTIONS ",capacity_bytes=1M,slot_bytes=8K"

static struct Faults {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	uint64_t from, end;	/* reads and writes in here are meant */
	bool fails_reads;	/* with EIO */
	int writes_before_fail; /* then one write fails with EIO; -1: none does */
	bool fails_writes;	/* all of them */
	bool hangs, is_hanging; /* a write waits */
	bool has_no_memory;
} faults = {.lock = PTHREAD_MUTEX_INITIALIZER,
	    .changed = PTHREAD_COND_INITIALIZER,
	    .writes_before_fail = -1};

ssize_t
pread(int fd, void *data, size_t bytes, off_t offset)
{
	uint64_t at = (uint64_t)offset;

	if (faults.fails_reads && at < faults.end && at + bytes > faults.from) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pread64, fd, data, bytes, offset);
}

static bool
fails_write_locked(void)
{
	while (faults.hangs) {
		faults.is_hanging = true;
		pthread_cond_broadcast(&faults.changed);
		pthread_cond_wait(&faults.changed, &faults.lock);
	}
	faults.is_hanging = false;
	if (faults.writes_before_fail >= 0 && faults.writes_before_fail-- == 0)
		return true;
	return faults.fails_writes;
}

ssize_t
pwrite(int fd, const void *data, size_t bytes, off_t offset)
{
	uint64_t at = (uint64_t)offset;

	pthread_mutex_lock(&faults.lock);
	bool fails = at < faults.end && at >= faults.from && fails_write_locked();
	pthread_mutex_unlock(&faults.lock);
	if (fails) {
		errno = EIO;
		return -1;
	}
	return syscall(SYS_pwrite64, fd, data, bytes, offset);
}

void *
aligned_alloc(size_t alignment, size_t bytes)
{
	void *data = NULL;

	if (faults.has_no_memory || posix_memalign(&data, alignment, bytes))
		return NULL;
	return data;
}

static void
set_hangs(bool hangs)
{
	pthread_mutex_lock(&faults.lock);
	faults.hangs = hangs;
	pthread_cond_broadcast(&faults.changed);
	pthread_mutex_unlock(&faults.lock);
}

static void
await_hanging(void)
{
	pthread_mutex_lock(&faults.lock);
	while (!faults.is_hanging)
		pthread_cond_wait(&faults.changed, &faults.lock);
	pthread_mutex_unlock(&faults.lock);
}

typedef struct Fixture {
	char *dir, *path;
	Store store;
} Fixture;

static void
mean(const RawBlockSuper *super, uint64_t from, uint64_t n)
{
	pthread_mutex_lock(&faults.lock);
	faults.from = super->headers_offset + from * RAW_BLOCK_PAGE_BYTES;
	faults.end = faults.from + n * RAW_BLOCK_PAGE_BYTES;
	pthread_mutex_unlock(&faults.lock);
}

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);

	faults.fails_reads = faults.fails_writes = false; /* of a test that failed */
	f->dir = dir_new();
	f->path = g_build_filename(f->dir, "store", NULL);
	store_open(&f->store, f->path, OPTIONS);
	RawBlockSuper super = super_of(f->path);
	mean(&super, 0, super.n_slots);
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;

	if (f->store.adapter)
		store_close(&f->store);
	dir_remove(f->dir);
	g_free(f->path);
	g_free(f);
	return 0;
}

/* The header of a slot in the middle of an object says nothing: that it is unreadable neither. */
static void
an_unreadable_header_within_an_object(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = chunk(1);
	RawBlockSuper super = super_of(f->path);

	assert_int_equal(put(&f->store, key, 4 * SLOT_BYTES, 1), 4 * SLOT_BYTES);
	store_close(&f->store);
	mean(&super, 2, 1);
	faults.fails_reads = true;
	store_open(&f->store, f->path, ",load_checkpoint_on_init=false");
	assert_int_equal(get(&f->store, key, 4 * SLOT_BYTES, 1), 1);
	g_autofree char *free_slots = line_of(&f->store, "slots_free");
	assert_int_equal(strtoull(free_slots, NULL, 10), super.n_slots - 4);
	store_close(&f->store);
	faults.fails_reads = false;
	store_open(&f->store, f->path, ",load_checkpoint_on_init=false");
	assert_int_equal(get(&f->store, key, 4 * SLOT_BYTES, 1), 1);
}

typedef struct Rename {
	Store *store;
	KvcObjectKey *old_key, *new_key;
	int result;
} Rename;

static void *
rename_main(void *user)
{
	Rename *r = user;

	r->result = r->store->ops->rename_key(r->store->adapter, r->old_key, r->new_key);
	return NULL;
}

/* What is on its way to another name is no reason to skip a store. */
static void
a_store_of_what_is_being_renamed(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) old_key = chunk(1), new_key = chunk(2);
	KvcObjectKey *keys[] = {old_key};
	Rename r = {&f->store, old_key, new_key, 1};
	const KvcL2AdapterOps *ops = f->store.ops;
	KvcMemoryObj memory = memory_new(5000, 1);
	KvcL2StoreResult result;
	pthread_t thread;

	assert_int_equal(put(&f->store, old_key, 5000, 1), 5000);
	set_hangs(true);
	pthread_create(&thread, NULL, rename_main, &r);
	await_hanging();
	ops->submit_store_task(f->store.adapter, keys, &memory, 1);
	struct pollfd event = {ops->get_store_event_fd(f->store.adapter), POLLIN, 0};
	poll(&event, 1, 200);
	set_hangs(false);
	pthread_join(thread, NULL);
	assert_int_equal(r.result, 0);
	await_event(event.fd);
	assert_int_equal(ops->pop_completed_store_tasks(f->store.adapter, &result, 1), 1);
	assert_int_equal(result.bytes_transferred, 5000);
	assert_int_equal(get(&f->store, old_key, 5000, 1), 1);
	assert_int_equal(get(&f->store, new_key, 5000, 1), 1);
	memory_free(&memory);
}

/* An older one whose tombstone could not be written must not come back under the old name. */
static void
a_rename_of_what_could_not_be_buried(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) old_key = plain(1), new_key = plain(2);
	g_autofree char *copy = g_build_filename(f->dir, "copy", NULL);
	size_t bytes;

	assert_int_equal(put(&f->store, old_key, 5000, 1), 5000);
	faults.writes_before_fail = 1; /* the header, then the tombstone of the first one */
	assert_int_equal(put(&f->store, old_key, 6000, 2), 6000);
	assert_int_equal(faults.writes_before_fail, -1);
	g_autofree char *zombies = line_of(&f->store, "not_removed");
	assert_string_equal(zombies, "1");
	assert_int_equal(f->store.ops->rename_key(f->store.adapter, old_key, new_key), 0);
	g_autofree uint8_t *image = file_read(f->path, &bytes); /* as a kill leaves it */
	store_close(&f->store);
	file_write(copy, image, bytes);
	store_open(&f->store, copy, "");
	assert_false(find(&f->store, old_key, NULL));
	assert_int_equal(get(&f->store, new_key, 6000, 2), 1);
}

/* Once an interval, not once a second. */
static void
a_checkpoint_that_fails(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = chunk(1);
	RawBlockSuper super = super_of(f->path);

	store_close(&f->store);
	store_open(&f->store, f->path, ",meta_checkpoint_interval_sec=3");
	assert_int_equal(put(&f->store, key, 5000, 1), 5000);
	faults.from = RAW_BLOCK_CHECKPOINT_OFFSET;
	faults.end = super.headers_offset;
	faults.fails_writes = true;
	for (unsigned i = 0; i < 56; i++)
		g_usleep(100 * 1000);
	g_autofree char *errors = line_of(&f->store, "checkpoint_errors");
	faults.fails_writes = false;
	assert_true(atoi(errors) <= 1);
}

/* Memory that O_DIRECT does not take is copied; what cannot be copied is not written past its end.
 */
static void
no_memory_to_copy(void **state)
{
	char *dir = disk_dir_new();
	g_autofree char *path = g_build_filename(dir, "store", NULL);
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcMemoryObj memory = memory_new(8192, 1), part = memory;
	Store store;

	part.data = (char *)memory.data + 512;
	part.bytes = part.mapped_bytes = 5000;
	store_open(&store, path, OPTIONS);
	g_autofree char *mode = line_of(&store, "io_mode");
	faults.has_no_memory = true;
	int64_t result = put_object(&store, key, &part);
	faults.has_no_memory = false;
	store_close(&store);
	memory_free(&memory);
	dir_remove(dir);
	if (strcmp(mode, "direct") != 0)
		skip();
	assert_int_equal(result, -ENOMEM);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(an_unreadable_header_within_an_object),
		TEST(a_store_of_what_is_being_renamed),
		TEST(a_rename_of_what_could_not_be_buried),
		TEST(a_checkpoint_that_fails),
		TEST(no_memory_to_copy),
	};

	log_silence();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
