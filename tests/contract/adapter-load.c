/* SPDX-License-Identifier: Apache-2.0 */

/* Loads: what is not proven to be the object is a miss, whatever happened to it. */

#include "adapter-fixture.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define BYTES 100001
#define NEEDLE_BYTES 64

/* Nobody looked any of them up before. */
static void
test_load_is_fine_grained(void **state)
{
	enum { N = 70 };
	Subject *subject = *state;
	KvcObjectKey **keys = keys_new(subject, 0, N);
	KvcMemoryObj *written = memories_new(N, 3000, 1), *read = memories_new(N, 3000, 500);

	for (size_t i = 0; i < N; i += 2)
		assert_int_equal(store(subject, keys[i], &written[i]), 3000);
	read[4].bytes = 2999; /* of another size than what is there */
	g_autoptr(KvcBitmap) loaded = load_many(subject, keys, read, N);
	for (size_t i = 0; i < N; i++) {
		bool is_there = i % 2 == 0 && i != 4;

		assert_int_equal(kvc_bitmap_test(loaded, i), is_there);
		assert_true(!is_there || memory_equal(&read[i], &written[i]));
	}
	keys_free(keys, N);
	memories_free(written, N);
	memories_free(read, N);
}

/* The object is shorter or longer than what is asked for. */
static void
test_other_sizes_are_misses(void **state)
{
	static const size_t sizes[] = {0, 1, 4096, 8191, 8193, 12288, 2 * MIB};
	Subject *subject = *state;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcObjectKey) empty_key = key_new(subject, KVC_SPACE_PLAIN, 1);
	KvcMemoryObj memory = memory_new(8192, 1), empty = memory_new(0, 1);

	assert_int_equal(store(subject, key, &memory), 8192);
	assert_int_equal(store(subject, empty_key, &empty), 0);
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		assert_misses(subject, key, sizes[i]);
		if (sizes[i] > 0)
			assert_misses(subject, empty_key, sizes[i]);
	}
	assert_loads(subject, key, &memory);
	assert_loads(subject, empty_key, &empty);
	memory_free(&memory);
}

/* The same number in two spaces and two scopes are different objects. */
static void
test_no_key_is_served_as_another(void **state)
{
	Subject *subject = *state;
	g_autoptr(KvcKeyScope) other_scope =
		kvc_key_scope_new("some/model", 0x01000101, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) chunk = key_new(subject, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcObjectKey) prefix = key_new(subject, KVC_SPACE_PREFIX, 1);
	g_autoptr(KvcObjectKey) plain = key_new(subject, KVC_SPACE_PLAIN, 1);
	g_autoptr(KvcObjectKey) other = kvc_object_key_new(
		other_scope, KVC_SPACE_CHUNK, chunk->chunk_hash, chunk->chunk_hash_len, NULL);
	KvcMemoryObj memory = memory_new(5000, 1);

	assert_int_equal(store(subject, chunk, &memory), 5000);
	assert_misses(subject, prefix, 5000);
	assert_misses(subject, plain, 5000);
	assert_misses(subject, other, 5000);
	assert_false(is_found(subject, other));
	memory_free(&memory);
}

/* ---- Damage from outside ------------------------------------------------------------------- */

typedef struct Place {
	char *path; /* NULL: nowhere */
	size_t offset;
	bool is_whole_file;
} Place;

/* Where the bytes of MEMORY are in the file PATH; without a look at holes, which may be large. */
static void
find_in_file(const char *path, const KvcMemoryObj *memory, Place *place)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t bytes = fd < 0 ? 0 : lseek(fd, 0, SEEK_END), from = 0;
	char *data = bytes > 0 ? mmap(NULL, (size_t)bytes, PROT_READ, MAP_SHARED, fd, 0) : NULL;
	char *at = NULL;

	while (data && !at && (from = lseek(fd, from, SEEK_DATA)) >= 0) {
		off_t to = lseek(fd, from, SEEK_HOLE);

		at = memmem(data + from, (size_t)(to - from), memory->data, NEEDLE_BYTES);
		from = to;
	}
	if (at) {
		place->offset = (size_t)(at - data);
		place->is_whole_file = (size_t)bytes == memory->bytes;
		place->path = g_strdup(path);
	}
	if (data)
		munmap(data, (size_t)bytes);
	if (fd >= 0)
		close(fd);
}

/* Where in the files below DIRECTORY the bytes of MEMORY are. */
static Place
find_payload(const char *directory, const KvcMemoryObj *memory)
{
	g_autoptr(GDir) dir = g_dir_open(directory, 0, NULL);
	Place place = {0};
	const char *name;

	assert_non_null(dir);
	while (!place.path && (name = g_dir_read_name(dir))) {
		g_autofree char *path = g_build_filename(directory, name, NULL);

		if (g_file_test(path, G_FILE_TEST_IS_DIR))
			place = find_payload(path, memory);
		else if (g_file_test(path, G_FILE_TEST_IS_REGULAR))
			find_in_file(path, memory, &place);
	}
	return place;
}

typedef enum {
	DAMAGE_FIRST,
	DAMAGE_LAST,
	DAMAGE_SHORT,
	DAMAGE_LONG,
	DAMAGE_EMPTY,
	DAMAGE_GONE
} Damage;

static void
flip_byte(const char *path, size_t offset)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
	byte ^= 0x10;
	assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
	close(fd);
}

static void
damage(const Place *place, Damage how)
{
	switch (how) {
	case DAMAGE_FIRST:
		flip_byte(place->path, place->offset);
		break;
	case DAMAGE_LAST:
		flip_byte(place->path, place->offset + BYTES - 1);
		break;
	case DAMAGE_SHORT:
		assert_int_equal(truncate(place->path, BYTES - 1), 0);
		break;
	case DAMAGE_LONG:
		assert_int_equal(truncate(place->path, BYTES + 1), 0);
		break;
	case DAMAGE_EMPTY:
		assert_int_equal(truncate(place->path, 0), 0);
		break;
	case DAMAGE_GONE:
		assert_int_equal(unlink(place->path), 0);
		break;
	}
}

/*
 * Damaged, it is a miss; known to be damaged, it is not found, and the next store heals it. false:
 * the file has others as well, and is no file to be cut.
 */
static bool
check_damage(const Subject *subject, uint32_t number, Damage how)
{
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, number);
	KvcMemoryObj memory = memory_new(BYTES, 1000 + number);

	assert_int_equal(store(subject, key, &memory), BYTES);
	Place place = find_payload(subject->directory, &memory);
	assert_non_null(place.path);
	bool is_applicable = place.is_whole_file || how <= DAMAGE_LAST;
	if (is_applicable) {
		damage(&place, how);
		assert_misses(subject, key, BYTES);
		assert_false(is_found(subject, key));
		assert_int_equal(store(subject, key, &memory), BYTES);
		assert_loads(subject, key, &memory);
	}
	g_free(place.path);
	memory_free(&memory);
	return is_applicable;
}

static void
test_damage_is_a_miss(void **state)
{
	Subject *subject = *state;

	if (!subject->directory)
		skip();
	Damage first = subject_has_checksums(subject) ? DAMAGE_FIRST : DAMAGE_SHORT;

	for (Damage how = first; how <= DAMAGE_GONE && check_damage(subject, how, how); how++)
		;
}

const struct CMUnitTest adapter_load_tests[] = {
	{"load_is_fine_grained", test_load_is_fine_grained, set_up, tear_down, NULL},
	{"other_sizes_are_misses", test_other_sizes_are_misses, set_up, tear_down, NULL},
	{"no_key_is_served_as_another", test_no_key_is_served_as_another, set_up, tear_down, NULL},
	{"damage_is_a_miss", test_damage_is_a_miss, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
