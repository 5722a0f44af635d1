/* SPDX-License-Identifier: Apache-2.0 */

/* The fs adapter on a real directory: names and bytes on disk, what is not ours, what is broken. */

#include "test-fs-util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Names as they are on disk; changing one of these loses what users have stored. */
static const struct {
	const char *model;
	uint32_t rank, group;
	const char *salt;
	KvcSpace space;
	const char *name;
	const char *path;
} names[] = {
	{"org/model", 0x01000100, 0, NULL, 0, "\x9f\x86\xd0\x81",
	 "org-SEP-model@0x01000100@0@9f86d081.data"},
	{"m", 0x02010201, 0x1f, NULL, 0, "\1\2\3\4\5\6\7\10",
	 "m@0x02010201@1f@0102030405060708.data"},
	{"/abs", 1, 0, "tenant-a", 0, "abcd", "-SEP-abs@0x00000001@0@61626364@tenant-a.data"},
	{"org/model", 0x01000100, 0, NULL, 2, "p-v3", "prefix/org/model/@01000100/p-v3"},
	{"m", 0x01000100, 0x1f, NULL, 2, "p", "prefix/m/@01000100@1f/p"},
	{"m", 0x01000100, 0, "t", 2, "p", "prefix/m/@01000100@0@t/p"},
	{"/abs/m", 1, 0, NULL, 2, "p", "prefix/%2Fabs/m/@00000001/p"},
	{"a//b", 1, 0, NULL, 2, "p", "prefix/a/%2Fb/@00000001/p"},
	{"a/", 1, 0, NULL, 2, "p", "prefix/a%2F/@00000001/p"},
	{"../.", 1, 0, NULL, 2, "p", "prefix/%2E%2E/%2E/@00000001/p"},
	{".kvcache/x", 1, 0, NULL, 2, "p", "prefix/%2Ekvcache/x/@00000001/p"},
	{"50%", 1, 0, NULL, 2, "%41", "prefix/50%25/@00000001/%41"},
	{"/", 1, 0, NULL, 2, "p", "prefix/%2F/@00000001/p"},
	{"//", 1, 0, NULL, 2, "p", "prefix/%2F%2F/@00000001/p"},
};

static void
test_names_and_bytes(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autoptr(KvcObjectKey) key =
			key_new(names[i].model, names[i].rank, names[i].group, names[i].salt,
				names[i].space, names[i].name, strlen(names[i].name));
		KvcMemoryObj object = object_new(1000 + i, i);
		g_autofree char *path = path_of(&fs, names[i].path), *data = NULL;
		gsize bytes;

		assert_int_equal(store_many(&fs, &key, &object, 1), 1000 + i);
		if (!g_file_get_contents(path, &data, &bytes, NULL))
			fail_msg("%s is not there", names[i].path);
		assert_int_equal(bytes, 1000 + i);
		assert_memory_equal(data, object.data, bytes);
		assert_true(load(&fs, key, 1000 + i, i));
		free(object.data);
	}

	/* And the list brings the same keys back. */
	KvcL2ListEntry entries[64];
	char *cursor = NULL;
	ssize_t n = fs.ops->list(fs.adapter, NULL, &cursor, entries, G_N_ELEMENTS(entries));
	assert_int_equal(n, G_N_ELEMENTS(names));
	assert_null(cursor);
	for (ssize_t i = 0; i < n; i++) {
		KvcL2ObjectInfo info;

		assert_true(lookup_and_lock(&fs, entries[i].key, &info));
		assert_int_equal(info.bytes, entries[i].info.bytes);
		kvc_object_key_unref(entries[i].key);
	}
	assert_describes(&fs, "foreign_files", "0");
	fs_free(&fs);
}

static void
check_sizes(Fs *fs)
{
	static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 70272, MIB, 32 * MIB};

	for (uint32_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcObjectKey) key = chunk(i);
		KvcL2ObjectInfo info;

		assert_int_equal(store(fs, key, sizes[i], i), sizes[i]);
		assert_true(lookup_and_lock(fs, key, &info));
		assert_int_equal(info.bytes, sizes[i]);
		assert_true(info.mtime_ns > 0);
		assert_true(load(fs, key, sizes[i], i));
		assert_false(load(fs, key, sizes[i] + 1, i));
		if (sizes[i] > 0)
			assert_false(load(fs, key, sizes[i] - 1, i));
	}
	assert_describes(fs, "health", "ok");
}

static void
test_sizes_direct(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	check_sizes(&fs);
	fs_free(&fs);
}

static void
test_sizes_buffered(void **state)
{
	Fs fs;

	fs_new(&fs, ",use_odirect=false,workers=1,io_depth_bytes=1M");
	assert_describes(&fs, "io_mode", "buffered");
	check_sizes(&fs);
	fs_free(&fs);
}

static void
test_tmpfs(void **state)
{
	g_autofree char *dir = NULL;
	Fs fs;

	if (access("/dev/shm", W_OK) < 0)
		skip();
	dir = dir_new("/dev/shm");
	fs_open(&fs, dir, "");
	check_sizes(&fs);
	fs_free(&fs);
}

static void
check_ramfs(Fs *fs)
{
	check_sizes(fs);
	assert_describes(fs, "io_mode", "buffered");
	assert_describes(fs, "checksums", "unsupported");
}

static void
test_direct_refused(void **state)
{
	run_on_ramfs(check_ramfs);
}

static void
test_xattrs(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(0x9f86d081);
	g_autofree char *path = NULL;
	char text[32];
	Fs fs;

	fs_new(&fs, "");
	KvcMemoryObj object = {aligned_alloc(4096, 4096), 9, 4096};
	memset(object.data, 0, 4096);
	memcpy(object.data, "123456789", 9);
	assert_int_equal(store_many(&fs, &key, &object, 1), 9);
	path = path_of(&fs, names[0].path);
	assert_int_equal(getxattr(path, "user.kvcache.crc32c", text, sizeof(text)), 8);
	assert_memory_equal(text, "e3069283", 8);
	assert_int_equal(getxattr(path, "user.kvcache.size", text, sizeof(text)), 1);
	assert_memory_equal(text, "9", 1);
	assert_describes(&fs, "checksums", "crc32c");
	free(object.data);
	fs_free(&fs);
}

static void
flip_byte(const char *path, off_t offset)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	uint8_t byte;

	assert_int_equal(pread(fd, &byte, 1, offset), 1);
	byte ^= 1;
	assert_int_equal(pwrite(fd, &byte, 1, offset), 1);
	close(fd);
}

/* A miss, not found again, replaced by the next store. */
static void
check_corrupt(Fs *fs, KvcObjectKey *key, const char *counter, const char *count)
{
	KvcL2ObjectInfo info;

	assert_false(load(fs, key, 70272, 1));
	assert_describes(fs, counter, count);
	assert_false(lookup_and_lock(fs, key, &info));
	assert_int_equal(store(fs, key, 70272, 1), 70272);
	assert_true(load(fs, key, 70272, 1));
	assert_true(lookup_and_lock(fs, key, &info));
}

static void
test_corrupt_files(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(0x9f86d081);
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	path = path_of(&fs, names[0].path);
	assert_int_equal(store(&fs, key, 70272, 1), 70272);
	flip_byte(path, 70271);
	check_corrupt(&fs, key, "crc_mismatches", "1");
	assert_int_equal(setxattr(path, "user.kvcache.crc32c", "xyz", 3, 0), 0);
	check_corrupt(&fs, key, "crc_mismatches", "2");
	assert_int_equal(setxattr(path, "user.kvcache.size", "70271", 5, 0), 0);
	check_corrupt(&fs, key, "size_mismatches", "1");
	assert_int_equal(truncate(path, 70000), 0);
	check_corrupt(&fs, key, "size_mismatches", "2");
	fs_free(&fs);

	fs_new(&fs, ",verify_checksum=false");
	g_free(path);
	path = path_of(&fs, names[0].path);
	store(&fs, key, 70272, 1);
	assert_int_equal(setxattr(path, "user.kvcache.crc32c", "00000000", 8, 0), 0);
	assert_true(load(&fs, key, 70272, 1));
	assert_describes(&fs, "checksums", "off");
	fs_free(&fs);
}

/* LMCache's own: no xattrs; also under the name from before there were groups. */
static void
test_files_of_lmcache(void **state)
{
	static const char *const paths[] = {"org-SEP-model@0x01000100@0@00000001.data",
					    "org-SEP-model@0x01000100@00000002.data",
					    "org-SEP-model@0x01000100@00000003.data",
					    "org-SEP-model@0x01000100@0@00000003.data"};
	KvcMemoryObj object = object_new(5000, 42);
	KvcL2ListEntry entries[8];
	char *cursor = NULL;
	Fs fs;

	fs_new(&fs, "");
	for (size_t i = 0; i < G_N_ELEMENTS(paths); i++)
		put_file(&fs, paths[i], object.data, 5000);
	for (uint32_t i = 1; i <= 3; i++) {
		g_autoptr(KvcObjectKey) key = chunk(i);

		assert_true(load(&fs, key, 5000, 42));
	}
	ssize_t n = fs.ops->list(fs.adapter, NULL, &cursor, entries, G_N_ELEMENTS(entries));
	assert_int_equal(n, 3);
	for (ssize_t i = 0; i < n; i++) {
		assert_true(delete_key(&fs, entries[i].key));
		kvc_object_key_unref(entries[i].key);
	}
	for (size_t i = 0; i < G_N_ELEMENTS(paths); i++)
		assert_false(exists(&fs, paths[i]));
	free(object.data);
	fs_free(&fs);
}

static void
test_duplicates_are_skipped(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), other = chunk(2), prefix = chain("p");
	KvcObjectKey *keys[] = {key, other};
	KvcMemoryObj objects[] = {object_new(5000, 1), object_new(300, 2)};
	KvcL2Usage usage = {0};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store(&fs, key, 5000, 1), 5000);
	assert_int_equal(store(&fs, key, 5000, 1), 0);
	assert_true(load(&fs, key, 5000, 1));
	assert_int_equal(store_many(&fs, keys, objects, 2), 300);
	assert_describes(&fs, "skipped", "2");
	/* The file says that its bytes are others: what was confirmed must be these. */
	assert_int_equal(store(&fs, key, 5000, 2), 5000);
	assert_true(load(&fs, key, 5000, 2));
	assert_int_equal(store(&fs, key, 6000, 3), 6000); /* another size is not a duplicate */
	assert_true(load(&fs, key, 6000, 3));
	assert_int_equal(store(&fs, prefix, 64, 4), 64);
	assert_int_equal(store(&fs, prefix, 64, 5), 64);
	assert_true(load(&fs, prefix, 64, 5));
	fs.ops->usage(fs.adapter, &usage);
	assert_int_equal(usage.bytes_used, 6000 + 300 + 64);
	assert_int_equal(usage.objects, 3);
	assert_true(usage.capacity_bytes > usage.bytes_used);
	free(objects[0].data);
	free(objects[1].data);
	fs_free(&fs);
}

/* The last one submitted is the one that stays, in whatever order they get ready. */
static void
test_replacing_keeps_order(void **state)
{
	g_autoptr(KvcObjectKey) prefix = chain("p");
	KvcMemoryObj big = object_new(8 * MIB, 1), small = object_new(64, 2);
	KvcL2StoreResult results[2];
	size_t popped = 0;
	Fs fs;

	fs_new(&fs, "");
	fs.ops->submit_store_task(fs.adapter, &prefix, &big, 1);
	fs.ops->submit_store_task(fs.adapter, &prefix, &small, 1);
	while (popped < 2) {
		await_event(fs.ops->get_store_event_fd(fs.adapter));
		popped += fs.ops->pop_completed_store_tasks(fs.adapter, results, 2);
	}
	assert_true(load(&fs, prefix, 64, 2));
	free(big.data);
	free(small.data);
	fs_free(&fs);
}

#define TASKS 40
#define OBJECTS 10

static void
test_concurrent_tasks(void **state)
{
	KvcObjectKey *keys[TASKS * OBJECTS];
	KvcMemoryObj objects[TASKS * OBJECTS], back[TASKS * OBJECTS];
	KvcL2TaskId loads[TASKS];
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(OBJECTS);
	size_t popped = 0;
	Fs fs;

	fs_new(&fs, ",io_depth_bytes=4M");
	for (uint32_t i = 0; i < TASKS * OBJECTS; i++) {
		keys[i] = i % 5 ? chunk(i) : numbered_chain(i);
		objects[i] = object_new(i % 9 * 77777, i);
		back[i] = object_new(i % 9 * 77777, i + 1);
	}
	for (size_t i = 0; i < TASKS; i++)
		fs.ops->submit_store_task(fs.adapter, &keys[i * OBJECTS], &objects[i * OBJECTS],
					  OBJECTS);
	while (popped < TASKS) {
		KvcL2StoreResult results[7];

		await_event(fs.ops->get_store_event_fd(fs.adapter));
		for (size_t n; (n = fs.ops->pop_completed_store_tasks(fs.adapter, results, 7)) > 0;)
			for (popped += n; n > 0; n--)
				assert_true(results[n - 1].bytes_transferred > 0);
	}
	for (size_t i = 0; i < TASKS; i++)
		loads[i] = fs.ops->submit_load_task(fs.adapter, &keys[i * OBJECTS],
						    &back[i * OBJECTS], OBJECTS);
	for (size_t i = 0; i < TASKS; i++) {
		kvc_bitmap_clear_all(loaded);
		while (fs.ops->query_load_result(fs.adapter, loads[i], loaded) == 0)
			await_event(fs.ops->get_load_event_fd(fs.adapter));
		assert_int_equal(kvc_bitmap_count(loaded), OBJECTS);
	}
	for (size_t i = 0; i < TASKS * OBJECTS; i++) {
		if (objects[i].bytes > 0)
			assert_memory_equal(objects[i].data, back[i].data, objects[i].bytes);
		kvc_object_key_unref(keys[i]);
		free(objects[i].data);
		free(back[i].data);
	}
	fs_free(&fs);
}

static void
test_locks_against_delete(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(0x9f86d081), absent = chunk(2);
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, key, 100, 1);
	assert_false(lookup_and_lock(&fs, absent, &info));
	assert_true(lookup_and_lock(&fs, key, &info));
	assert_true(lookup_and_lock(&fs, key, &info));
	assert_false(delete_key(&fs, key));
	fs.ops->submit_unlock(fs.adapter, &key, 1);
	assert_false(delete_key(&fs, key));
	assert_true(exists(&fs, names[0].path));
	fs.ops->submit_unlock(fs.adapter, &key, 1);
	fs.ops->submit_unlock(fs.adapter, &key, 1);
	fs.ops->submit_unlock(fs.adapter, &absent, 1);
	assert_true(delete_key(&fs, key));
	assert_false(exists(&fs, names[0].path));
	assert_true(delete_key(&fs, key));
	assert_false(lookup_and_lock(&fs, key, &info));
	assert_false(load(&fs, key, 100, 1));
	fs_free(&fs);
}

static void
test_delete_skips_stores_in_flight(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcMemoryObj object = object_new(32 * MIB, 1);
	KvcL2StoreResult result;
	Fs fs;

	fs_new(&fs, "");
	fs.ops->submit_store_task(fs.adapter, &key, &object, 1);
	assert_false(delete_key(&fs, key));
	await_event(fs.ops->get_store_event_fd(fs.adapter));
	assert_int_equal(fs.ops->pop_completed_store_tasks(fs.adapter, &result, 1), 1);
	assert_true(delete_key(&fs, key));
	free(object.data);
	fs_free(&fs);
}

#define FILES 1000

/* Lists by pages of 7 and counts each chunk once. */
static size_t
list_all(Fs *fs, const KvcKeyScope *scope, uint8_t *seen)
{
	KvcL2ListEntry entries[7];
	char *cursor = NULL;
	size_t total = 0;

	do {
		ssize_t n = fs->ops->list(fs->adapter, scope, &cursor, entries, 7);

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++, total++) {
			const uint8_t *hash = entries[i].key->chunk_hash;

			if (entries[i].key->space == KVC_SPACE_CHUNK)
				seen[hash[2] << 8 | hash[3]]++;
			kvc_object_key_unref(entries[i].key);
		}
	} while (cursor);
	return total;
}

static void
test_list_pages(void **state)
{
	uint8_t seen[FILES] = {0};
	g_autoptr(KvcObjectKey) p1 = chain("p1"), p2 = chain("b"), other = NULL;
	g_autofree char *link = NULL;
	KvcL2Usage usage;
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < FILES; i++) {
		g_autofree char *name = g_strdup_printf("org-SEP-model@0x01000100@0@%08x.data", i);

		put_file(&fs, name, "abc", 3);
	}
	g_usleep(20000); /* the clock of file times is coarse; a restart has everything before it */
	g_autofree char *dir = g_strdup(fs.dir);
	fs_close(&fs);
	fs_open(&fs, dir, "");

	put_file(&fs, "README.txt", "x", 1);
	put_file(&fs, ".kvcfs.1.2.tmp", "x", 1);
	link = path_of(&fs, "org-SEP-model@0x01000100@0@ffffffff.data");
	assert_int_equal(symlink("README.txt", link), 0);
	other = key_new("other", 1, 2, "s", KVC_SPACE_PREFIX, "p", 1);
	assert_int_equal(store(&fs, p1, 10, 1), 10);
	assert_int_equal(store(&fs, p2, 10, 1), 10);
	assert_int_equal(store(&fs, other, 10, 1), 10);

	for (int pass = 1; pass <= 2; pass++) {
		assert_int_equal(list_all(&fs, NULL, seen), FILES + 3);
		for (size_t i = 0; i < FILES; i++)
			assert_int_equal(seen[i], pass);
		assert_describes(&fs, "foreign_files", "2");
		fs.ops->usage(fs.adapter, &usage);
		assert_int_equal(usage.objects, FILES + 3);
		assert_int_equal(usage.bytes_used, FILES * 3 + 30);
	}
	assert_int_equal(list_all(&fs, p1->scope, seen), FILES + 2);
	assert_int_equal(list_all(&fs, other->scope, seen), 1);

	char *cursor = g_strdup("nonsense");
	KvcL2ListEntry entry;
	assert_int_equal(fs.ops->list(fs.adapter, NULL, &cursor, &entry, 1), -EINVAL);
	assert_null(cursor);
	fs_free(&fs);
}

static void
test_restart(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), prefix = chain("p");
	g_autofree char *dir = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	store(&fs, key, 70272, 1);
	store(&fs, prefix, 130, 2);
	fs_close(&fs);
	fs_open(&fs, dir, ",persist_enabled=false");
	assert_true(load(&fs, key, 70272, 1));
	assert_true(load(&fs, prefix, 130, 2));
	assert_int_equal(store(&fs, key, 70272, 1), 0);

	/* What this run stores goes with it, what was there stays. */
	g_autoptr(KvcObjectKey) gone = chunk(2), gone_prefix = chain("q");
	assert_int_equal(store(&fs, gone, 10, 1), 10);
	assert_int_equal(store(&fs, gone_prefix, 10, 1), 10);
	fs_close(&fs);
	fs_open(&fs, dir, "");
	assert_true(load(&fs, key, 70272, 1));
	assert_true(load(&fs, prefix, 130, 2));
	assert_false(load(&fs, gone, 10, 1));
	assert_false(load(&fs, gone_prefix, 10, 1));
	fs_free(&fs);
}

static bool
goes_away(Fs *fs, const char *name)
{
	for (int i = 0; i < 200 && exists(fs, name); i++)
		g_usleep(10000);
	return !exists(fs, name);
}

static void
test_left_over_temporaries(void **state)
{
	/* No process has the largest pid; 1 lives. */
	static const char dead[] = ".kvcfs.999999999.1.tmp", alive[] = ".kvcfs.1.1.tmp";
	static const char nested[] = "prefix/m/@00000001/.kvcfs.999999999.2.tmp";
	g_autofree char *own = g_strdup_printf(".kvcfs.%d.99999999.tmp", (int)getpid());
	g_autofree char *dir = NULL, *nested_dir = NULL;
	KvcL2ListEntry entries[4];
	char *cursor = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	nested_dir = path_of(&fs, "prefix/m/@00000001");
	assert_int_equal(g_mkdir_with_parents(nested_dir, 0755), 0);
	put_file(&fs, dead, "x", 1);
	put_file(&fs, alive, "x", 1);
	put_file(&fs, own, "x", 1);
	put_file(&fs, nested, "x", 1);
	assert_int_equal(fs.ops->list(fs.adapter, NULL, &cursor, entries, 4), 0);
	assert_describes(&fs, "foreign_files", "0");
	fs_close(&fs);

	g_usleep(20000);
	fs_open(&fs, dir, "");
	assert_true(goes_away(&fs, dead));
	assert_true(goes_away(&fs, nested));
	assert_true(goes_away(&fs, own)); /* of a former process with our pid: not locked */
	assert_true(exists(&fs, alive));
	fs_free(&fs);
}

/* Failures: told by the task, counted, shown; the other keys of the task are stored. */
static void
test_failures(void **state)
{
	g_autoptr(KvcObjectKey) good = chunk(1);
	g_autoptr(KvcObjectKey) blocked = chain("x");
	KvcObjectKey *keys[] = {blocked, good};
	KvcMemoryObj objects[2];
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < 2; i++)
		objects[i] = object_new(100, i);
	put_file(&fs, "prefix", "a file in the way", 17);
	assert_int_equal(store(&fs, blocked, 100, 1), -ENOTDIR);
	assert_describes(&fs, "health", "degraded");
	assert_describes(&fs, "store_errors", "1");
	assert_true(store_many(&fs, keys, objects, 2) < 0);
	assert_true(load(&fs, good, 100, 1));
	for (size_t i = 0; i < 2; i++)
		free(objects[i].data);
	fs_free(&fs);
}

/* Not a miss that is believed: counted, logged, shown, and over by itself. */
static void
test_failing_lookups(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), absent = chunk(2);
	g_autofree char *dir = dir_new(temp_parent());
	KvcL2ObjectInfo info = {0};
	Fs fs;

	fs_open_unprivileged(&fs, dir);
	assert_int_equal(store(&fs, key, 100, 1), 100);
	assert_false(lookup_and_lock(&fs, absent, &info));
	assert_int_equal(info.mtime_ns, 0);
	assert_describes(&fs, "lookup_errors", "0");
	assert_describes(&fs, "health", "ok");

	log_begin();
	assert_int_equal(chmod(dir, 0), 0);
	for (int i = 0; i < 3; i++) {
		info.mtime_ns = 0;
		assert_false(lookup_and_lock(&fs, key, &info));
		assert_true(info.mtime_ns == KVC_L2_NOT_ASKED);
	}
	assert_describes(&fs, "lookup_errors", "3");
	assert_describes(&fs, "health", "failed"); /* the directory itself cannot be used */
	assert_int_equal(log_count("lookup failed: cannot look for"), 1);
	assert_int_equal(log_count("Permission denied"), 1);
	log_end();

	assert_int_equal(chmod(dir, 0755), 0);
	assert_true(lookup_and_lock(&fs, key, &info));
	assert_true(info.mtime_ns > 0);
	assert_describes(&fs, "health", "degraded"); /* for a minute */
	fs_free(&fs);
}

/* Only what is below cannot be used. */
static void
test_many_failures(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), absent = chunk(2), bad = chain("p");
	g_autofree char *loop = NULL;
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	loop = path_of(&fs, "prefix");
	assert_int_equal(symlink("prefix", loop), 0);
	assert_int_equal(store(&fs, key, 100, 1), 100);
	for (int i = 1; i <= 7; i++)
		assert_false(lookup_and_lock(&fs, bad, &info));
	assert_describes(&fs, "health", "degraded");
	assert_false(lookup_and_lock(&fs, bad, &info));
	assert_describes(&fs, "health", "failed");
	assert_false(lookup_and_lock(&fs, absent, &info)); /* an answer */
	assert_describes(&fs, "health", "degraded");
	for (int i = 1; i <= 20; i++) {
		assert_false(lookup_and_lock(&fs, bad, &info));
		assert_true(load(&fs, key, 100, 1));
	}
	assert_describes(&fs, "health", "degraded");
	assert_describes(&fs, "lookup_errors", "28");
	fs_free(&fs);
}

static void
test_removed_directory(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	remove_tree(fs.dir);
	assert_int_equal(store(&fs, key, 100, 1), -EHOSTDOWN);
	assert_describes(&fs, "health", "failed");
	assert_false(lookup_and_lock(&fs, key, &info));
	assert_describes(&fs, "health", "failed");
	fs_free(&fs);
}

/* What can be read is listed, then the listing fails. */
static void
test_unreadable_directories(void **state)
{
	g_autoptr(KvcObjectKey) flat = chunk(1), a = chain("p"), b = NULL;
	g_autofree char *dir = dir_new(temp_parent()), *model = NULL;
	KvcL2ListEntry entries[8];
	char *cursor = NULL;
	Fs fs;

	b = key_new("z", 1, 0, NULL, KVC_SPACE_PREFIX, "p", 1);
	fs_open_unprivileged(&fs, dir);
	store(&fs, flat, 10, 1);
	store(&fs, a, 10, 1);
	store(&fs, b, 10, 1);
	assert_int_equal(list_unprivileged(&fs, &cursor, entries, 8), 3);
	assert_null(cursor);

	model = path_of(&fs, "prefix/org/model");
	assert_int_equal(chmod(model, 0), 0);
	log_begin();
	for (size_t max = 1; max <= 8; max += 7) {
		size_t found = 0;
		ssize_t n;

		do {
			n = list_unprivileged(&fs, &cursor, entries, max);
			found += n > 0 ? (size_t)n : 0;
		} while (cursor);
		assert_int_equal(n, -EACCES);
		assert_int_equal(found, 2);
	}
	assert_int_equal(log_count("lookup failed: cannot list \"prefix/org/model\""), 1);
	log_end();
	assert_describes(&fs, "health", "degraded");
	assert_int_equal(chmod(dir, 0), 0);
	assert_int_equal(list_unprivileged(&fs, &cursor, entries, 8), -EACCES);
	assert_null(cursor);

	assert_int_equal(chmod(dir, 0755), 0);
	assert_int_equal(chmod(model, 0755), 0);
	assert_int_equal(list_unprivileged(&fs, &cursor, entries, 8), 3);
	assert_null(cursor);
	fs_free(&fs);
}

/* LMCache's files do not say their size. */
static void
test_other_size_without_xattr(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(0x9f86d081);
	Fs fs;

	fs_new(&fs, "");
	put_file(&fs, names[0].path, "0123456789", 10);
	log_begin();
	for (int i = 0; i < 3; i++)
		assert_false(load(&fs, key, 11, 1));
	assert_int_equal(log_count("has 10 bytes, not the 11 that were looked up"), 1);
	assert_int_equal(log_count(names[0].path), 1);
	log_end();
	assert_describes(&fs, "size_mismatches", "3");
	fs_free(&fs);
}

/* Everything that was submitted is over when close returns; nothing temporary is left. */
static void
test_close_in_flight(void **state)
{
	KvcObjectKey *keys[50];
	KvcMemoryObj objects[50];
	Fs fs;

	fs_new(&fs, ",io_depth_bytes=1M");
	for (uint32_t i = 0; i < 50; i++) {
		keys[i] = chunk(i);
		objects[i] = object_new(2 * MIB, i);
	}
	fs.ops->submit_store_task(fs.adapter, keys, objects, 50);
	fs.ops->submit_load_task(fs.adapter, keys, objects, 50);
	fs.ops->submit_lookup_and_lock_task(fs.adapter, keys, 50);
	g_autofree char *dir = g_strdup(fs.dir);
	fs_close(&fs);
	for (uint32_t i = 0; i < 50; i++)
		free(objects[i].data);

	fs_open(&fs, dir, "");
	for (uint32_t i = 0; i < 50; i++) {
		KvcL2ObjectInfo info;

		if (lookup_and_lock(&fs, keys[i], &info))
			assert_true(load(&fs, keys[i], 2 * MIB, i));
		kvc_object_key_unref(keys[i]);
	}
	DIR *stream = opendir(dir);
	for (const struct dirent *entry; (entry = readdir(stream));)
		assert_false(g_str_has_prefix(entry->d_name, ".kvcfs."));
	closedir(stream);
	fs_free(&fs);
}

static void
test_empty_tasks(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_many(&fs, NULL, NULL, 0), 0);
	kvc_bitmap_free(load_many(&fs, NULL, NULL, 0));
	fs_free(&fs);
}

static void
test_open_errors(void **state)
{
	g_autoptr(GError) error = NULL;
	KvcOptions *options = NULL;

	assert_null(kvc_l2_adapter_open("type=fs", &options, &error));
	assert_non_null(strstr(error->message, "base_path"));
	g_clear_error(&error);
	assert_null(kvc_l2_adapter_open("type=fs,base_path=relative/path", &options, &error));
	assert_non_null(strstr(error->message, "relative/path"));
	g_clear_error(&error);
	assert_null(kvc_l2_adapter_open("type=fs,base_path=/dev/null/x", &options, &error));
	assert_non_null(strstr(error->message, "/dev/null/x"));
	g_clear_error(&error);
	assert_null(kvc_l2_adapter_open("type=fs,base_path=/tmp,workers=65", &options, &error));
	assert_non_null(error);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_and_bytes),
		cmocka_unit_test(test_sizes_direct),
		cmocka_unit_test(test_sizes_buffered),
		cmocka_unit_test(test_tmpfs),
		cmocka_unit_test(test_direct_refused),
		cmocka_unit_test(test_xattrs),
		cmocka_unit_test(test_corrupt_files),
		cmocka_unit_test(test_files_of_lmcache),
		cmocka_unit_test(test_duplicates_are_skipped),
		cmocka_unit_test(test_replacing_keeps_order),
		cmocka_unit_test(test_concurrent_tasks),
		cmocka_unit_test(test_locks_against_delete),
		cmocka_unit_test(test_delete_skips_stores_in_flight),
		cmocka_unit_test(test_list_pages),
		cmocka_unit_test(test_restart),
		cmocka_unit_test(test_left_over_temporaries),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_failing_lookups),
		cmocka_unit_test(test_many_failures),
		cmocka_unit_test(test_removed_directory),
		cmocka_unit_test(test_unreadable_directories),
		cmocka_unit_test(test_other_size_without_xattr),
		cmocka_unit_test(test_close_in_flight),
		cmocka_unit_test(test_empty_tasks),
		cmocka_unit_test(test_open_errors),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
