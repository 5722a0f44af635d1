/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A bit of a store is another one: each object is what was stored, or a miss, and what was deleted
 * is a miss; or the store is refused. Every byte that says something in the superblocks, in the
 * checkpoint, in a header, in a record and in a tombstone; at random in the payload. (What the
 * decoders say to every single bit of a page is in test-raw_block-format.c.)
 */

#include "test-raw_block-util.h"

#define SLOT_BYTES 8192
#define OBJECTS 8
#define PAYLOAD_FLIPS 40

typedef struct Image {
	char *dir, *path;
	uint8_t *clean, *dirty; /* after a close, and as a kill leaves it */
	size_t bytes;
	RawBlockSuper super;
	uint64_t seed;
	unsigned refused, missing;
} Image;

static size_t
bytes_of(uint32_t number)
{
	return number * 4000;
}

static KvcObjectKey *
key_of(uint32_t number)
{
	return number % 2 ? chunk(number) : plain(number);
}

/* Objects of several sizes, every one of them replaced once, with one that was deleted for each. */
static void
fill(Store *store)
{
	g_autofree uint8_t *value = g_malloc0(5000);
	KvcObjectAttributes attributes = {.mode = 0100644};

	assert_int_equal(kvc_xattrs_set(NULL, "user.x", value, 5000, &attributes.xattrs), 0);
	for (uint32_t i = 0; i < OBJECTS; i++) {
		g_autoptr(KvcObjectKey) key = key_of(i), gone = key_of(OBJECTS + i);
		KvcMemoryObj memory = memory_new(bytes_of(i), i);

		assert_int_equal(put(store, key, 100, 99), 100);
		assert_int_equal(put(store, gone, bytes_of(i), i), bytes_of(i));
		memory.attributes = i == 3 ? &attributes : NULL; /* a record of its own */
		assert_int_equal(put_object(store, key, &memory), bytes_of(i));
		assert_true(delete_key(store, gone));
		memory_free(&memory);
	}
	kvc_xattrs_unref(attributes.xattrs);
}

static int
set_up(void **state)
{
	Image *image = g_new0(Image, 1);
	Store store;

	image->dir = dir_new();
	image->path = g_build_filename(image->dir, "store", NULL);
	image->seed = test_seed();
	store_open(&store, image->path, ",capacity_bytes=1M,slot_bytes=8K");
	fill(&store);
	image->dirty = file_read(image->path, &image->bytes);
	store_close(&store);
	image->clean = file_read(image->path, &image->bytes);
	image->super = super_of(image->path);
	*state = image;
	return 0;
}

static int
tear_down(void **state)
{
	Image *image = *state;

	printf("%u times refused, %u objects missed\n", image->refused, image->missing);
	dir_remove(image->dir);
	g_free(image->path);
	g_free(image->clean);
	g_free(image->dirty);
	g_free(image);
	return 0;
}

static void
check_objects(Image *image, Store *store, uint64_t where)
{
	for (uint32_t i = 0; i < OBJECTS; i++) {
		g_autoptr(KvcObjectKey) key = key_of(i), gone = key_of(OBJECTS + i);
		KvcL2ObjectInfo info = {0};
		bool is_other = find(store, key, &info) && info.bytes != bytes_of(i);
		int got = get(store, key, bytes_of(i), i);

		kvc_xattrs_unref(info.xattrs);
		if (got < 0 || is_other || find(store, gone, NULL))
			fail_msg("a flip at %" G_GUINT64_FORMAT ": object %u: %d", where, i, got);
		image->missing += got == 0;
	}
}

/* Flips one bit of the byte at WHERE in BYTES of the store, and puts it right again. */
static void
flip(Image *image, uint8_t *bytes, uint64_t where)
{
	uint8_t bit = (uint8_t)(1 << random_below(&image->seed, 8));
	g_autofree char *text = g_strdup_printf(
		"type=raw_block,device_path=%s,io_depth_bytes=1M,workers=1", image->path);
	Store store = {0};

	bytes[where] ^= bit;
	file_write(image->path, bytes, image->bytes);
	bytes[where] ^= bit;
	store.adapter = kvc_l2_adapter_open(text, &store.options, NULL);
	if (!store.adapter) {
		image->refused++;
		return;
	}
	store.ops = store.adapter->ops;
	check_objects(image, &store, where);
	store_close(&store);
}

static void
flip_each(Image *image, uint8_t *bytes, uint64_t from, uint64_t n, uint64_t step)
{
	for (uint64_t at = from; at < from + n; at += step)
		flip(image, bytes, at);
}

static void
test_superblocks(void **state)
{
	Image *image = *state;

	flip_each(image, image->clean, RAW_BLOCK_SUPER_A_OFFSET, 120, 2);
	flip_each(image, image->clean, RAW_BLOCK_SUPER_B_OFFSET, 120, 7);
	flip_each(image, image->dirty, RAW_BLOCK_SUPER_A_OFFSET, 120, 7);
	flip_each(image, image->clean, 200, 3000, 600);
	assert_int_equal(image->missing + image->refused, 0);
}

static void
test_checkpoint(void **state)
{
	Image *image = *state;

	flip_each(image, image->clean, RAW_BLOCK_CHECKPOINT_OFFSET, image->super.checkpoint_bytes,
		  29);
	assert_int_equal(image->missing + image->refused, 0);
}

/* Of every slot, a tombstone or not; the checkpoint knows better, where there is one. */
static void
test_headers(void **state)
{
	Image *image = *state;

	for (uint64_t slot = 0; slot < 40; slot++) {
		uint64_t at = image->super.headers_offset + slot * RAW_BLOCK_PAGE_BYTES;

		flip_each(image, image->dirty, at, 200, slot < 2 ? 5 : 91);
		flip_each(image, image->clean, at, 200, 101);
	}
	assert_int_equal(image->refused, 0);
	assert_true(image->missing > 0);
}

/* Records that have slots of their own are in there, too. */
static void
test_slots(void **state)
{
	Image *image = *state;
	uint64_t used = 60 * SLOT_BYTES;

	for (unsigned i = 0; i < PAYLOAD_FLIPS; i++) {
		flip(image, image->clean,
		     image->super.slots_offset + random_next(&image->seed) % used);
		flip(image, image->dirty,
		     image->super.slots_offset + random_next(&image->seed) % used);
	}
	assert_int_equal(image->refused, 0);
	assert_true(image->missing > 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_superblocks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_checkpoint, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_headers, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_slots, set_up, tear_down),
	};

	log_silence();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
