/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How long the start takes when every slot has an object: by the headers, and by the checkpoint.
 * KVC_TEST_SLOTS: how many (20000); with 1000000 the targets are asserted, 60 s and 2 s. The file
 * takes 8.5 GB then, of which 4 GiB are written, in TMPDIR or /var/tmp.
 */

#include "test-raw_block-util.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#define SLOTS 20000
#define MANY 1000000
#define BATCH 256

static double
now(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

/* The header of an empty object in each slot, and superblocks that know of no checkpoint. */
static void
write_headers(const char *path, RawBlockSuper *super)
{
	uint8_t page[RAW_BLOCK_PAGE_BYTES];
	g_autofree uint8_t *pages = g_malloc(BATCH * sizeof(page));
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	for (uint32_t slot = 0; slot < super->n_slots; slot += BATCH) {
		uint32_t n = (uint32_t)MIN(BATCH, super->n_slots - slot);

		for (uint32_t i = 0; i < n; i++) {
			g_autoptr(KvcObjectKey) key = chunk(slot + i);
			RawBlockHeader header = {
				.generation = slot + i + 1, .data = {slot + i, 1}, .mode = 0100644};
			g_autofree uint8_t *record = raw_block_record_encode(key, NULL, &header);

			raw_block_header_encode(super, &header, record, pages + i * sizeof(page));
		}
		off_t at = (off_t)(super->headers_offset + (uint64_t)slot * sizeof(page));
		assert_int_equal(pwrite(fd, pages, n * sizeof(page), at), n * sizeof(page));
	}
	super->is_clean = false;
	super->sequence++;
	raw_block_super_encode(super, page);
	assert_int_equal(pwrite(fd, page, sizeof(page), RAW_BLOCK_SUPER_A_OFFSET), sizeof(page));
	assert_int_equal(pwrite(fd, page, sizeof(page), RAW_BLOCK_SUPER_B_OFFSET), sizeof(page));
	assert_int_equal(fdatasync(fd), 0);
	/* Out of the page cache, as after a restart of the machine. */
	assert_int_equal(posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED), 0);
	close(fd);
}

/* Opens and closes the store; seconds until the first lookup is answered. */
static double
start(const char *path, uint32_t n_slots)
{
	double begin = now(CLOCK_MONOTONIC), cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	g_autoptr(KvcObjectKey) last = chunk(n_slots - 1), absent = chunk(n_slots);
	Store store;

	store_open(&store, path, "");
	assert_true(find(&store, last, NULL));
	double seconds = now(CLOCK_MONOTONIC) - begin;
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	assert_false(find(&store, absent, NULL));
	assert_int_equal(usage_of(&store).objects, n_slots);
	assert_int_equal(get(&store, last, 0, 0), 1);
	begin = now(CLOCK_MONOTONIC);
	store_close(&store);
	printf("start %.2f s (%.2f s of CPU), close %.2f s\n", seconds, cpu,
	       now(CLOCK_MONOTONIC) - begin);
	return seconds;
}

static void
test_start(void **state)
{
	const char *text = getenv("KVC_TEST_SLOTS");
	uint64_t n = text ? g_ascii_strtoull(text, NULL, 10) : SLOTS;
	char *dir = disk_dir_new();
	g_autofree char *path = g_build_filename(dir, "store", NULL);
	Store store;

	file_write(path, "", 0);
	assert_int_equal(truncate(path, (off_t)(n * (4096 + 4096 + 260) + MIB)), 0);
	store_open(&store, path, ",slot_bytes=4K");
	store_close(&store);
	RawBlockSuper super = super_of(path);
	assert_true(super.n_slots >= n);
	write_headers(path, &super);
	double by_headers = start(path, (uint32_t)super.n_slots);
	assert_true(super_of(path).is_clean);
	double by_checkpoint = start(path, (uint32_t)super.n_slots);
	printf("%" G_GUINT64_FORMAT " slots: by headers %.2f s, by checkpoint %.2f s\n",
	       super.n_slots, by_headers, by_checkpoint);
	if (n >= MANY) {
		assert_true(by_headers < 60);
		assert_true(by_checkpoint < 2);
	}
	dir_remove(dir);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_start)};

	log_silence();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
