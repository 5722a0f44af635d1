/* SPDX-License-Identifier: Apache-2.0 */

/* What is opened and what is refused; objects over several slots; what is there after a restart. */

#include "test-raw_block-util.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <kvcache/crc.h>

#define SMALL ",capacity_bytes=4M,slot_bytes=16K"
#define BY_HEADERS ",load_checkpoint_on_init=false"

/* Each test has a directory, and in it a path where nothing is yet. */
typedef struct Place {
	char *dir, *path;
} Place;

static int
set_up(void **state)
{
	Place *place = g_new0(Place, 1);

	place->dir = dir_new();
	place->path = g_build_filename(place->dir, "store", NULL);
	*state = place;
	return 0;
}

static int
tear_down(void **state)
{
	Place *place = *state;

	dir_remove(place->dir);
	g_free(place->path);
	g_free(place);
	return 0;
}

/* ---- Opening and refusing ------------------------------------------------------------------ */

static void
assert_refused(const char *path, const char *extra, const char *why)
{
	g_autofree char *text = refusal(path, extra);

	if (!strstr(text, why))
		fail_msg("\"%s\" is not in: %s", why, text);
}

static void
make_store(const char *path)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	Store store;

	store_open(&store, path, SMALL);
	assert_int_equal(put(&store, key, 1000, 1), 1000);
	store_close(&store);
}

/* What make_store() made is there. */
static void
assert_holds(const char *path, const char *extra)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	Store store;

	store_open(&store, path, extra);
	assert_int_equal(get(&store, key, 1000, 1), 1);
	store_close(&store);
}

static void
assert_is_empty(const char *path, const char *extra)
{
	Store store;

	store_open(&store, path, extra);
	assert_int_equal(usage_of(&store).objects, 0);
	g_autoptr(GPtrArray) keys = list_keys(&store);
	assert_int_equal(keys->len, 0);
	store_close(&store);
}

static void
test_paths(void **state)
{
	Place *place = *state;

	assert_refused("relative", SMALL, "device_path \"relative\" is not an absolute path");
	assert_refused(place->path, "", "is not there; with capacity_bytes a file of that size");
	assert_refused("/dev/no-such-device", SMALL, "No such file or directory");
	assert_refused(place->dir, SMALL, "neither a block device nor a regular file");
	assert_refused("/dev/null", SMALL, "neither a block device nor a regular file");
	assert_refused(place->path, ",capacity_bytes=100K", "too few");
	unlink(place->path);
	assert_refused(place->path, ",capacity_bytes=1M", "room for no slot of 1048576 bytes");
	assert_refused(place->path, ",slot_bytes=5000", "not a multiple of 4096");
	assert_refused(place->path, ",capacity_bytes=2M,slot_bytes=4K",
		       "capacity_bytes is 2097152, and");
	assert_is_empty(place->path, ",slot_bytes=4K");
}

/* A file with all its blocks; one that is there already, and empty, is used as it is. */
static void
test_files(void **state)
{
	Place *place = *state;
	struct stat st;

	make_store(place->path);
	assert_int_equal(stat(place->path, &st), 0);
	assert_int_equal(st.st_size, 4 * MIB);
	assert_int_equal(st.st_mode & 0777, 0600);
	assert_true(st.st_blocks * 512 >= (blkcnt_t)(4 * MIB));
	unlink(place->path);
	file_write(place->path, "", 0);
	assert_int_equal(truncate(place->path, 8 * MIB), 0);
	make_store(place->path);
	assert_holds(place->path, "");
	RawBlockSuper super = super_of(place->path);
	assert_true(raw_block_super_end(&super) <= 4 * MIB);
}

static void
test_what_is_not_empty_is_refused(void **state)
{
	static const uint64_t offsets[] = {0, 1080, 65536, 500000, 4 * MIB - 1};
	Place *place = *state;

	for (size_t i = 0; i < G_N_ELEMENTS(offsets); i++) {
		unlink(place->path);
		file_patch(place->path, offsets[i], "x", 1);
		assert_int_equal(truncate(place->path, 4 * MIB), 0);
		assert_refused(place->path, ",slot_bytes=16K",
			       "is not empty and holds no store of raw_block; format=true "
			       "overwrites what is there");
		assert_is_empty(place->path, ",slot_bytes=16K,format=true");
		make_store(place->path);
		/* A store that can be used is never formatted. */
		assert_holds(place->path, ",format=true");
	}
}

static void
test_foreign_formats(void **state)
{
	Place *place = *state;
	uint8_t page[RAW_BLOCK_PAGE_BYTES];

	file_write(place->path, "LMCIDX01", 8);
	assert_int_equal(truncate(place->path, 4 * MIB), 0);
	assert_refused(place->path, "", "holds a raw_block store of LMCache");
	unlink(place->path);

	make_store(place->path);
	RawBlockSuper super = super_of(place->path);
	raw_block_super_encode(&super, page);
	page[8] = 9;
	memset(page + 12, 0, 4);
	uint32_t crc = GUINT32_TO_LE(kvc_crc32c(0, page, sizeof(page)));
	memcpy(page + 12, &crc, 4);
	file_patch(place->path, RAW_BLOCK_SUPER_A_OFFSET, page, sizeof(page));
	file_patch(place->path, RAW_BLOCK_SUPER_B_OFFSET, page, sizeof(page));
	assert_refused(place->path, "", "has format 9, and this kvcachefs knows format 1");

	page[20] ^= 1;
	file_patch(place->path, RAW_BLOCK_SUPER_A_OFFSET, page, sizeof(page));
	file_patch(place->path, RAW_BLOCK_SUPER_B_OFFSET, page, sizeof(page));
	assert_refused(place->path, "", "both superblocks are damaged");
	assert_is_empty(place->path, SMALL ",format=true");
}

/* One of the two is enough, unless somebody else has written over the other one. */
static void
test_mirrored_superblocks(void **state)
{
	static const uint64_t offsets[] = {RAW_BLOCK_SUPER_A_OFFSET, RAW_BLOCK_SUPER_B_OFFSET};
	Place *place = *state;
	uint8_t page[RAW_BLOCK_PAGE_BYTES] = {0};

	for (size_t i = 0; i < G_N_ELEMENTS(offsets); i++) {
		for (size_t at = 0; at < 112; at += 13) {
			unlink(place->path);
			make_store(place->path);
			file_patch(place->path, offsets[i] + at, "\xa5", 1);
			assert_holds(place->path, "");
		}
		unlink(place->path);
		make_store(place->path);
		file_patch(place->path, offsets[i], page, sizeof(page));
		assert_refused(place->path, "", "is not empty and holds no store");
		memset(page, 'x', sizeof(page));
		file_patch(place->path, offsets[i], page, sizeof(page));
		assert_refused(place->path, "", "is not empty and holds no store");
		assert_is_empty(place->path, SMALL ",format=true");
	}
}

static void
test_other_sizes_are_refused(void **state)
{
	Place *place = *state;

	make_store(place->path);
	assert_refused(place->path, ",slot_bytes=32K", "slot_bytes is 32768, and the store in");
	assert_refused(place->path, ",capacity_bytes=2M", "capacity_bytes is 2097152, and the");
	assert_int_equal(truncate(place->path, 3 * MIB), 0);
	assert_refused(place->path, "", "shrank: it has 3145728 bytes, and its store needs");
	assert_int_equal(truncate(place->path, 5 * MIB), 0);
	assert_holds(place->path, "");
	assert_is_empty(place->path, ",slot_bytes=32K,format=true");
	/* Nothing of the store before comes back, whatever its headers say. */
	assert_is_empty(place->path, BY_HEADERS);
}

static void
test_one_at_a_time(void **state)
{
	Place *place = *state;
	Store store;

	store_open(&store, place->path, SMALL);
	assert_refused(place->path, SMALL, "is used by another program");
	assert_refused(place->path, SMALL ",format=true", "is used by another program");
	store_close(&store);
	assert_is_empty(place->path, "");
}

/* Output of a command (transfer full), or NULL. */
static char *
run(const char *format, const char *argument)
{
	g_autofree char *command = g_strdup_printf(format, argument);
	char *output = NULL;
	int status;

	if (!g_spawn_command_line_sync(command, &output, NULL, &status, NULL) || status != 0)
		g_clear_pointer(&output, g_free);
	return output ? g_strchomp(output) : NULL;
}

/* As root, where there are loop devices. */
static void
test_block_device(void **state)
{
	Place *place = *state;
	g_autofree char *dir = disk_dir_new();
	g_autofree char *file = g_build_filename(dir, "disk", NULL);
	g_autofree char *mnt = g_build_filename(dir, "mnt", NULL);
	g_autofree char *ignored = NULL;

	file_write(file, "", 0);
	assert_int_equal(truncate(file, 16 * MIB), 0);
	g_autofree char *loop = geteuid() == 0 ? run("losetup --find --show %s", file) : NULL;
	if (!loop) {
		dir_remove(g_steal_pointer(&dir));
		skip();
	}
	assert_is_empty(loop, ",slot_bytes=16K");
	g_autoptr(KvcObjectKey) key = chunk(1);
	Store store;
	store_open(&store, loop, "");
	assert_int_equal(put(&store, key, 100001, 1), 100001);
	assert_refused(loop, "", "is used by another program");
	store_close(&store);
	store_open(&store, loop, BY_HEADERS);
	assert_int_equal(get(&store, key, 100001, 1), 1);
	store_close(&store);

	g_autofree char *made = run("mkfs.ext4 -q -F %s", loop);
	mkdir(mnt, 0700);
	g_autofree char *arguments = g_strdup_printf("%s %s", loop, mnt);
	g_autofree char *mounted = made ? run("mount %s", arguments) : NULL;
	if (mounted) {
		g_autofree char *text = g_strdup_printf("\"%s\" is mounted at \"%s\"", loop, mnt);

		assert_refused(loop, ",format=true", text);
		g_free(run("umount %s", mnt));
	}
	if (made)
		assert_refused(loop, "", "is not empty and holds no store");
	g_free(run("losetup --detach %s", loop));
	dir_remove(g_steal_pointer(&dir));
	assert_non_null(place);
}

/* ---- Objects ------------------------------------------------------------------------------- */

/* Of every size around one slot and several, in each way of I/O, also after a restart. */
static void
check_sizes(const char *path, const char *extra)
{
	static const size_t sizes[] = {0,     1,	 4095,	 4096,	 4097,	 16383,	  16 * 1024,
				       16385, 32 * 1024, 100001, 163840, 163841, 1 * MIB, MIB + 1};
	g_autofree char *first = g_strconcat(",capacity_bytes=8M,slot_bytes=16K", extra, NULL);
	g_autofree char *again = g_strconcat(BY_HEADERS, extra, NULL);
	Store store;

	store_open(&store, path, first);
	uint64_t capacity = usage_of(&store).capacity_bytes;
	for (uint32_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcObjectKey) key = i % 2 ? chunk(i) : plain(i);

		assert_int_equal(put(&store, key, sizes[i], i), sizes[i]);
	}
	for (int pass = 0; pass < 3; pass++) {
		for (uint32_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
			g_autoptr(KvcObjectKey) key = i % 2 ? chunk(i) : plain(i);
			KvcL2ObjectInfo info;

			assert_true(find(&store, key, &info));
			assert_int_equal(info.bytes, sizes[i]);
			assert_int_equal(get(&store, key, sizes[i], i), 1);
			assert_int_equal(get(&store, key, sizes[i] + 1, i), 0);
		}
		store_close(&store);
		store_open(&store, path, pass == 0 ? extra : again);
	}
	for (uint32_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcObjectKey) key = i % 2 ? chunk(i) : plain(i);

		assert_true(delete_key(&store, key));
	}
	assert_int_equal(usage_of(&store).capacity_bytes, capacity);
	assert_int_equal(usage_of(&store).bytes_used, 0);
	store_close(&store);
}

static void
test_sizes(void **state)
{
	Place *place = *state;
	g_autofree char *dir = disk_dir_new();
	g_autofree char *path = g_build_filename(dir, "store", NULL);

	check_sizes(place->path, "");
	unlink(place->path);
	check_sizes(place->path, ",use_odirect=false");
	check_sizes(path, "");
	dir_remove(g_steal_pointer(&dir));
}

/* Memory that O_DIRECT does not take goes through other memory. */
static void
test_unaligned_memory(void **state)
{
	g_autofree char *dir = disk_dir_new();
	g_autofree char *path = g_build_filename(dir, "store", NULL);
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcMemoryObj memory = memory_new(50001, 1);
	KvcMemoryObj shifted = {.bytes = 50000, .data = (char *)memory.data + 1};
	g_autofree void *back = g_malloc(50000);
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	Store store;

	shifted.mapped_bytes = 50000;
	store_open(&store, path, SMALL);
	assert_int_equal(put_object(&store, key, &shifted), 50000);
	KvcMemoryObj to = {.bytes = 50000, .data = back, .mapped_bytes = 50000};
	KvcL2TaskId id = store.ops->submit_load_task(store.adapter, &key, &to, 1);
	while (store.ops->query_load_result(store.adapter, id, loaded) == 0)
		await_event(store.ops->get_load_event_fd(store.adapter));
	assert_true(kvc_bitmap_test(loaded, 0));
	assert_memory_equal(back, shifted.data, 50000);
	store_close(&store);
	memory_free(&memory);
	dir_remove(g_steal_pointer(&dir));
}

/* Until it is full, and again when every second object is gone; nothing is lost on the way. */
static void
test_space(void **state)
{
	Place *place = *state;
	Store store;
	uint32_t n = 0;

	store_open(&store, place->path, SMALL);
	uint64_t slots = super_of(place->path).n_slots;
	for (; n <= slots; n++) {
		g_autoptr(KvcObjectKey) key = chunk(n);
		int64_t rc = put(&store, key, 10000, n);

		if (rc == -ENOSPC)
			break;
		assert_int_equal(rc, 10000);
	}
	assert_int_equal(n, slots);
	g_autofree char *health = line_of(&store, "health");
	assert_string_equal(health, "degraded");
	for (uint32_t i = 0; i < n; i += 2) {
		g_autoptr(KvcObjectKey) key = chunk(i);

		assert_true(delete_key(&store, key));
	}
	/* Half of it is free, and no two slots are neighbours. */
	g_autoptr(KvcObjectKey) large = plain(1);
	assert_int_equal(put(&store, large, 20000, 1), -ENOSPC);
	for (uint32_t i = 0; i < n; i += 2) {
		g_autoptr(KvcObjectKey) key = chunk(n + i);

		assert_int_equal(put(&store, key, 16384, i), 16384);
	}
	for (int pass = 0; pass < 2; pass++) {
		for (uint32_t i = 0; i < n; i++) {
			g_autoptr(KvcObjectKey) key = i % 2 ? chunk(i) : chunk(n + i);

			assert_int_equal(get(&store, key, i % 2 ? 10000 : 16384, i), 1);
		}
		store_close(&store);
		store_open(&store, place->path, BY_HEADERS);
	}
	store_close(&store);
}

/* One object that does not fit fails the task; the rest of it is whole or not there. */
static void
test_failure_is_of_the_whole_task(void **state)
{
	enum { N = 3 };
	Place *place = *state;
	KvcObjectKey *keys[N] = {chunk(0), chunk(1), chunk(2)};
	KvcMemoryObj memories[N] = {memory_new(20000, 0), memory_new(8 * MIB, 1),
				    memory_new(20000, 2)};
	KvcL2StoreResult result;
	Store store;

	store_open(&store, place->path, SMALL);
	store.ops->submit_store_task(store.adapter, keys, memories, N);
	while (store.ops->pop_completed_store_tasks(store.adapter, &result, 1) == 0)
		await_event(store.ops->get_store_event_fd(store.adapter));
	assert_int_equal(result.bytes_transferred, -ENOSPC);
	assert_false(find(&store, keys[1], NULL));
	for (uint32_t i = 0; i < N; i++) {
		assert_true(get(&store, keys[i], memories[i].bytes, i) >= 0);
		memory_free(&memories[i]);
		kvc_object_key_unref(keys[i]);
	}
	assert_true(usage_of(&store).bytes_used <= 40000);
	store_close(&store);
}

/* ---- What goes with the bytes -------------------------------------------------------------- */

static KvcXattrs *
xattrs_new(size_t bytes, uint8_t fill)
{
	g_autofree uint8_t *value = g_malloc(bytes);
	KvcXattrs *xattrs;

	memset(value, fill, bytes);
	assert_int_equal(kvc_xattrs_set(NULL, "user.note", value, bytes, &xattrs), 0);
	return xattrs;
}

static void
assert_info(Store *store, KvcObjectKey *key, uint32_t mode, size_t note_bytes, uint8_t fill)
{
	KvcL2ObjectInfo info;
	size_t bytes = 0;

	assert_true(find(store, key, &info));
	const uint8_t *note = kvc_xattrs_get(info.xattrs, "user.note", &bytes);
	assert_int_equal(info.mode, mode);
	assert_int_equal(info.version_ns, 1234567);
	assert_int_equal(bytes, note_bytes);
	assert_true(bytes == 0 || (note[0] == fill && note[bytes - 1] == fill));
	kvc_xattrs_unref(info.xattrs);
}

/* They are the same after a restart, small or with slots of their own, whoever set them last. */
static void
test_attributes(void **state)
{
	static const size_t notes[] = {10, 5000, 60000, 3000, 20};
	Place *place = *state;
	g_autoptr(KvcObjectKey) key = plain(1), absent = plain(2), moved = plain(3);
	KvcMemoryObj memory = memory_new(20000, 1);
	KvcObjectAttributes attributes = {
		.mode = 0100640, .uid = 5, .gid = 6, .version_ns = 1234567, .mtime_ns = 99};
	Store store;

	store_open(&store, place->path, SMALL);
	uint64_t capacity = usage_of(&store).capacity_bytes;
	for (size_t i = 0; i < G_N_ELEMENTS(notes); i++) {
		attributes.xattrs = xattrs_new(notes[i], (uint8_t)i);
		memory.attributes = &attributes;
		if (i == 0)
			assert_int_equal(put_object(&store, key, &memory), 20000);
		else
			assert_int_equal(store.ops->set_attributes(store.adapter, key, &attributes),
					 0);
		kvc_xattrs_unref(attributes.xattrs);
		for (int pass = 0; pass < 3; pass++) {
			assert_info(&store, key, 0100640, notes[i], (uint8_t)i);
			assert_int_equal(get(&store, key, 20000, 1), 1);
			store_close(&store);
			store_open(&store, place->path, pass ? BY_HEADERS : "");
		}
		assert_int_equal(store.ops->rename_key(store.adapter, key, moved), 0);
		assert_info(&store, moved, 0100640, notes[i], (uint8_t)i);
		assert_int_equal(store.ops->rename_key(store.adapter, moved, key), 0);
	}
	attributes.xattrs = NULL;
	assert_int_equal(store.ops->set_attributes(store.adapter, absent, &attributes), -ENOENT);
	assert_true(delete_key(&store, key));
	assert_int_equal(usage_of(&store).capacity_bytes, capacity);
	store_close(&store);
	memory_free(&memory);
}

/* A chunk that is there is not written again, but gets the attributes. */
static void
test_skipped_store_sets_attributes(void **state)
{
	Place *place = *state;
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcMemoryObj memory = memory_new(5000, 1);
	KvcObjectAttributes attributes = {.mode = 0100600, .version_ns = 1234567, .mtime_ns = 1};
	Store store;

	memory.attributes = &attributes;
	store_open(&store, place->path, SMALL);
	assert_int_equal(put_object(&store, key, &memory), 5000);
	attributes.mode = 0100644;
	attributes.version_ns = 7654321;
	assert_int_equal(put_object(&store, key, &memory), 0);
	assert_info(&store, key, 0100644, 0, 0);
	/* With other bytes it is another object. */
	assert_int_equal(put(&store, key, 5000, 2), 5000);
	assert_int_equal(get(&store, key, 5000, 2), 1);
	store_close(&store);
	memory_free(&memory);
}

/* ---- Checkpoints --------------------------------------------------------------------------- */

static char *
counter(const char *path, const char *extra, const char *name)
{
	Store store;

	store_open(&store, path, extra);
	g_autoptr(GPtrArray) keys = list_keys(&store); /* it is ready then */
	char *value = line_of(&store, name);
	store_close(&store);
	return value;
}

/* After a close the superblocks say that the checkpoint is all; the first change takes it back. */
static void
test_checkpoint_is_clean_or_not(void **state)
{
	Place *place = *state;
	g_autoptr(KvcObjectKey) key = chunk(2);
	Store store;

	make_store(place->path);
	assert_true(super_of(place->path).is_clean);
	assert_int_equal(super_of(place->path).checkpoint_objects, 1);
	uint64_t sequence = super_of(place->path).sequence;
	assert_holds(place->path, ""); /* nothing changes, nothing is written */
	assert_int_equal(super_of(place->path).sequence, sequence);
	store_open(&store, place->path, "");
	assert_int_equal(put(&store, key, 100, 1), 100);
	assert_false(super_of(place->path).is_clean);
	store_close(&store);
	assert_true(super_of(place->path).is_clean);
	assert_int_equal(super_of(place->path).checkpoint_objects, 2);
	/* When nothing changes any more it is written without a close. */
	store_open(&store, place->path, ",meta_checkpoint_interval_sec=0.01");
	assert_true(delete_key(&store, key));
	for (int i = 0; !super_of(place->path).is_clean && i < 1000; i++)
		g_usleep(10000);
	assert_true(super_of(place->path).is_clean);
	assert_int_equal(super_of(place->path).checkpoint_objects, 1);
	assert_int_equal(put(&store, key, 100, 1), 100);
	assert_false(super_of(place->path).is_clean);
	store_close(&store);
}

/* A damaged one is not believed; the headers have all there is. */
static void
test_damaged_checkpoint(void **state)
{
	Place *place = *state;

	make_store(place->path);
	for (uint64_t at = 0; at < super_of(place->path).checkpoint_bytes; at += 9) {
		file_patch(place->path, RAW_BLOCK_CHECKPOINT_OFFSET + at, "\xa5", 1);
		if (at % 27 == 0) {
			g_autofree char *errors = counter(place->path, "", "checkpoint_errors");

			assert_string_equal(errors, "1");
		} else {
			assert_holds(place->path, "");
		}
		/* It was written again. */
		g_autofree char *errors = counter(place->path, "", "checkpoint_errors");
		assert_string_equal(errors, "0");
		assert_holds(place->path, "");
	}
}

/* Without the option the checkpoint is not used, and is not believed afterwards either. */
static void
test_load_checkpoint_on_init_is_false(void **state)
{
	Place *place = *state;
	g_autoptr(KvcObjectKey) key = chunk(1);
	size_t bytes;
	Store store;

	make_store(place->path);
	store_open(&store, place->path, BY_HEADERS);
	assert_true(delete_key(&store, key));
	g_autofree uint8_t *file = file_read(place->path, &bytes); /* as after a kill */
	store_close(&store);
	file_write(place->path, file, bytes);
	assert_is_empty(place->path, "");
}

/* What does not fit into the checkpoint is found by the headers. */
static void
test_checkpoint_without_room(void **state)
{
	Place *place = *state;
	KvcMemoryObj memory = memory_new(100, 1);
	KvcObjectAttributes attributes = {.mode = 0100640, .xattrs = xattrs_new(60000, 3)};
	Store store;

	memory.attributes = &attributes;
	store_open(&store, place->path, SMALL);
	for (uint32_t i = 0; i < 5; i++) {
		g_autoptr(KvcObjectKey) key = plain(i);

		assert_int_equal(put_object(&store, key, &memory), 100);
	}
	store_close(&store);
	assert_false(super_of(place->path).is_clean);
	store_open(&store, place->path, "");
	g_autoptr(GPtrArray) keys = list_keys(&store);
	assert_int_equal(keys->len, 5);
	store_close(&store);
	kvc_xattrs_unref(attributes.xattrs);
	memory_free(&memory);
}

/* Two headers for one key, as a kill leaves them: the newer one is right, the older one is gone. */
static void
test_newer_generation_wins(void **state)
{
	Place *place = *state;
	g_autoptr(KvcObjectKey) key = plain(1);
	uint8_t old[RAW_BLOCK_PAGE_BYTES];
	size_t bytes;
	Store store;

	store_open(&store, place->path, SMALL);
	assert_int_equal(put(&store, key, 1000, 1), 1000);
	RawBlockSuper super = super_of(place->path);
	g_autofree uint8_t *before = file_read(place->path, &bytes);
	memcpy(old, before + super.headers_offset, sizeof(old)); /* of slot 0 */
	assert_int_equal(put(&store, key, 1000, 2), 1000);
	store_close(&store);
	file_patch(place->path, super.headers_offset, old, sizeof(old));

	for (int pass = 0; pass < 2; pass++) {
		store_open(&store, place->path, BY_HEADERS);
		assert_int_equal(get(&store, key, 1000, 2), 1);
		assert_int_equal(usage_of(&store).objects, 1);
		if (pass == 1)
			assert_true(delete_key(&store, key));
		store_close(&store);
	}
	assert_is_empty(place->path, BY_HEADERS);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_paths, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_files, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_what_is_not_empty_is_refused, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_foreign_formats, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_mirrored_superblocks, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_other_sizes_are_refused, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_one_at_a_time, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_block_device, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_sizes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_unaligned_memory, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_space, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_failure_is_of_the_whole_task, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_attributes, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_skipped_store_sets_attributes, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_checkpoint_is_clean_or_not, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_damaged_checkpoint, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_load_checkpoint_on_init_is_false, set_up,
						tear_down),
		cmocka_unit_test_setup_teardown(test_checkpoint_without_room, set_up, tear_down),
		cmocka_unit_test_setup_teardown(test_newer_generation_wins, set_up, tear_down),
	};

	log_silence();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
