/* SPDX-License-Identifier: Apache-2.0 */

/* Plain files: below plain/ under the path they have in the mount, and the directories they make.
 */

#include "fs.h"
#include "test-fs-util.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Names as they are on disk; changing one of these loses what users have stored. */
static const struct {
	const char *directory, *name, *path;
} names[] = {
	{"", "file", "plain/file"},
	{"hicache", "anything.bin", "plain/hicache/anything.bin"},
	{"a/b", "c d", "plain/a/b/c d"},
	{"a", "\xff\n%2F\\", "plain/a/\xff\n%2F\\"},
	{"\xfe/x:y", ":", "plain/\xfe/x:y/:"},
	{"@here", "me@home", "plain/@here/me@home"},
	{"plain/prefix", "plain", "plain/plain/prefix/plain"},
	{"a/.kvcache", ".kvcache", "plain/a/.kvcache/.kvcache"},
	{"", "org-SEP-model@0x01000100@0@9f86d081.data",
	 "plain/org-SEP-model@0x01000100@0@9f86d081.data"},
};

static void
make_directory(Fs *fs, const char *name)
{
	g_autofree char *path = path_of(fs, name);

	assert_int_equal(g_mkdir_with_parents(path, 0755), 0);
}

static void
test_names_and_bytes(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autoptr(KvcObjectKey) key = plain(names[i].directory, names[i].name);
		KvcMemoryObj object = object_new(1000 + i, i);
		g_autofree char *path = path_of(&fs, names[i].path), *data = NULL;
		KvcL2ObjectInfo info;
		gsize bytes;

		assert_false(lookup_and_lock(&fs, key, &info));
		assert_int_equal(store_many(&fs, &key, &object, 1), 1000 + i);
		if (!g_file_get_contents(path, &data, &bytes, NULL))
			fail_msg("%s is not there", names[i].path);
		assert_int_equal(bytes, 1000 + i);
		assert_memory_equal(data, object.data, bytes);
		assert_true(load(&fs, key, 1000 + i, i));
		assert_true(lookup_and_lock(&fs, key, &info));
		assert_int_equal(info.bytes, 1000 + i);
		free(object.data);
	}
	fs_free(&fs);
}

static uint64_t
changes_of(Fs *fs, const KvcObjectKey *key)
{
	const int64_t minute = 60 * INT64_C(1000000000), now = g_get_real_time() * 1000;
	uint64_t stamp;
	int64_t changed_ns;

	assert_int_equal(fs->ops->get_changes(fs->adapter, key->scope, &stamp, &changed_ns), 0);
	assert_in_range(changed_ns, now - minute, now + minute);
	/* Times of files are coarser than that. */
	g_usleep(50 * 1000);
	return stamp;
}

/* A store, a replacement and a removal, each in its scope only. */
static void
test_changes_of_a_scope(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("a", "file"), b = plain("b", "file");
	g_autoptr(KvcObjectKey) first = chunk(1), second = chunk(2), prefix = chain("p");
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 10, 1);
	store(&fs, b, 10, 1);
	store(&fs, first, 10, 1);
	store(&fs, prefix, 10, 1);
	uint64_t stamp_a = changes_of(&fs, a), stamp_b = changes_of(&fs, b);
	uint64_t stamp = changes_of(&fs, first);
	assert_true(stamp_a == changes_of(&fs, a));
	store(&fs, a, 10, 2);
	assert_true(stamp_a != changes_of(&fs, a));
	assert_true(stamp_b == changes_of(&fs, b));
	assert_true(stamp == changes_of(&fs, first));
	assert_true(delete_key(&fs, b));
	KvcL2ObjectInfo info;
	assert_false(lookup_and_lock(&fs, b, &info));
	store(&fs, second, 10, 1);
	uint64_t next = changes_of(&fs, first);
	assert_true(next != stamp);
	store(&fs, prefix, 20, 2);
	stamp = changes_of(&fs, first);
	assert_true(next != stamp);
	assert_true(delete_key(&fs, first));
	assert_true(stamp != changes_of(&fs, first));
	fs_free(&fs);
}

/* Each key once, whatever the page; every space beside the others. */
static void
test_list(void **state)
{
	g_autoptr(KvcObjectKey) flat = chunk(1), prefix = chain("p");
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain("a", NULL);
	g_autoptr(KvcKeyScope) none = kvc_key_scope_new_plain("b", NULL);
	Fs fs;

	fs_new(&fs, "");
	store(&fs, flat, 10, 1);
	store(&fs, prefix, 10, 1);
	for (uint32_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autoptr(KvcObjectKey) key = plain(names[i].directory, names[i].name);

		store(&fs, key, 10, i);
	}
	for (size_t page = 1; page <= 64; page = page * 2 + 1) {
		g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, page);
		g_autoptr(GPtrArray) in_scope = list_keys(&fs, scope, page);
		g_autoptr(GPtrArray) in_none = list_keys(&fs, none, page);
		g_autoptr(GHashTable) seen =
			g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);

		for (guint i = 0; i < keys->len; i++)
			g_hash_table_add(seen, keys->pdata[i]);
		assert_int_equal(keys->len, G_N_ELEMENTS(names) + 2);
		assert_int_equal(g_hash_table_size(seen), keys->len);
		for (uint32_t i = 0; i < G_N_ELEMENTS(names); i++) {
			g_autoptr(KvcObjectKey) key = plain(names[i].directory, names[i].name);

			assert_true(g_hash_table_contains(seen, key));
		}
		assert_int_equal(in_scope->len, 1);
		assert_ptr_equal(((KvcObjectKey *)in_scope->pdata[0])->scope, scope);
		assert_int_equal(in_none->len, 0);
		assert_describes(&fs, "foreign_files", "0");
	}
	fs_free(&fs);
}

static void
assert_same_keys(GPtrArray *keys, GPtrArray *wanted)
{
	assert_int_equal(keys->len, wanted->len);
	for (guint i = 0; i < keys->len; i++)
		assert_true(kvc_object_key_equal(keys->pdata[i], wanted->pdata[i]));
}

/* A directory of which not all names are kept at once; two passes that drop each other's. */
static void
test_list_windows(void **state)
{
	const guint all_names = fs_window_names;
	static const char *const directories[] = {"", "a", "a/b", "b"};
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < 60; i++) {
		g_autofree char *name = g_strdup_printf("%u", i * 7919 % 1000);
		g_autoptr(KvcObjectKey) key = plain(directories[i % 4], name);

		store(&fs, key, 10, i);
	}
	g_autoptr(GPtrArray) wanted = list_keys(&fs, NULL, 1000);
	assert_int_equal(wanted->len, 60);
	for (guint window = 2; window < 40; window += 3) {
		fs_window_names = window;
		for (size_t page = 1; page <= 64; page = page * 2 + 1) {
			g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, page);

			assert_same_keys(keys, wanted);
		}
		KvcL2ListEntry entries[2];
		char *cursors[2] = {NULL};
		guint at[2] = {0};

		while (at[0] < 60 || at[1] < 60) {
			guint pass = at[0] <= at[1] ? 0 : 1;
			ssize_t n =
				fs.ops->list(fs.adapter, NULL, &cursors[pass], entries, 1 + pass);

			assert_true(n > 0);
			for (ssize_t i = 0; i < n; i++) {
				assert_true(kvc_object_key_equal(entries[i].key,
								 wanted->pdata[at[pass]++]));
				kvc_object_key_unref(entries[i].key);
			}
		}
		g_free(cursors[0]);
		g_free(cursors[1]);
	}
	fs_window_names = all_names;
	fs_free(&fs);
}

/* What is below plain/ and cannot be a plain file of the mount. */
static void
test_foreign_files(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("d", "file");
	g_autofree char *link = NULL, *fifo = NULL;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, key, 10, 1);
	make_directory(&fs, "plain/d/@01000100/x");
	make_directory(&fs, "plain/.kvcache");
	make_directory(&fs, "plain/empty/directory");
	put_file(&fs, "plain/d/@01000100/x/file", "x", 1);
	put_file(&fs, "plain/@00000001", "x", 1);
	put_file(&fs, "plain/.kvcache/status", "x", 1);
	link = path_of(&fs, "plain/d/link");
	assert_int_equal(symlink("file", link), 0);
	fifo = path_of(&fs, "plain/d/fifo");
	assert_int_equal(mkfifo(fifo, 0644), 0);
	/* Being written: neither an object nor foreign. */
	put_file(&fs, "plain/d/.kvcfs.1.2.tmp", "x", 1);

	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 3);
	assert_int_equal(keys->len, 1);
	assert_true(kvc_object_key_equal(keys->pdata[0], key));
	assert_describes(&fs, "foreign_files", "5");
	assert_describes(&fs, "health", "ok");
	fs_free(&fs);
}

/* Makes directories below the one of FD until their path has BYTES, and a file there. */
static void
make_deep_file(int fd, size_t bytes)
{
	g_autofree char *name = g_strnfill(250, 'd');

	for (size_t at = 0; at < bytes; at += 251) {
		assert_int_equal(mkdirat(fd, name, 0755), 0);
		int next = openat(fd, name, O_RDONLY | O_DIRECTORY);
		assert_true(next >= 0);
		close(fd);
		fd = next;
	}
	int file = openat(fd, "file", O_WRONLY | O_CREAT, 0644);
	assert_true(file >= 0);
	close(file);
	close(fd);
}

static void
remove_deep(int fd)
{
	g_autofree char *name = g_strnfill(250, 'd');
	int next = openat(fd, name, O_RDONLY | O_DIRECTORY);

	unlinkat(fd, "file", 0);
	if (next >= 0)
		remove_deep(next);
	unlinkat(fd, name, AT_REMOVEDIR);
	close(fd);
}

/* Deeper than a path can say: foreign, not an error. */
static void
test_deep_directories(void **state)
{
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	make_directory(&fs, "plain");
	path = path_of(&fs, "plain");
	make_deep_file(open(path, O_RDONLY | O_DIRECTORY), 5000);
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 3);
	assert_int_equal(keys->len, 0);
	assert_describes(&fs, "foreign_files", "1");
	assert_describes(&fs, "health", "ok");
	remove_deep(open(path, O_RDONLY | O_DIRECTORY));
	fs_free(&fs);
}

/* Names are files and directories in turn; what is empty goes, its parents too. */
static void
test_files_and_directories_in_turn(void **state)
{
	g_autoptr(KvcObjectKey) file = plain("", "a"), below = plain("a/b", "c");
	g_autoptr(KvcObjectKey) beside = plain("a", "d");
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	for (uint32_t i = 0; i < 3; i++) {
		assert_int_equal(store(&fs, file, 100, i), 100);
		assert_false(lookup_and_lock(&fs, below, &info));
		assert_true(delete_key(&fs, below));
		/* Both at a time cannot be. */
		assert_int_equal(store(&fs, below, 50, i), -ENOTDIR);
		assert_true(load(&fs, file, 100, i));
		assert_true(delete_key(&fs, file));

		assert_int_equal(store(&fs, below, 50, i), 50);
		assert_int_equal(store(&fs, beside, 50, i), 50);
		assert_false(lookup_and_lock(&fs, file, &info));
		assert_true(delete_key(&fs, file)); /* is not there: not the directory */
		assert_int_equal(store(&fs, file, 100, i), -EISDIR);
		assert_true(load(&fs, below, 50, i));
		assert_true(delete_key(&fs, below));
		assert_false(exists(&fs, "plain/a/b"));
		assert_true(exists(&fs, "plain/a"));
		assert_true(delete_key(&fs, beside));
		assert_false(exists(&fs, "plain/a"));
		assert_true(exists(&fs, "plain"));
	}
	assert_int_equal(usage_of(&fs).objects, 0);
	assert_int_equal(usage_of(&fs).bytes_used, 0);
	fs_free(&fs);
}

static void
test_chains_prune_too(void **state)
{
	g_autoptr(KvcObjectKey) key = chain("p");
	Fs fs;

	fs_new(&fs, "");
	store(&fs, key, 10, 1);
	assert_true(exists(&fs, "prefix/org/model/@01000100/p"));
	assert_true(delete_key(&fs, key));
	assert_false(exists(&fs, "prefix/org"));
	assert_true(exists(&fs, "prefix"));
	fs_free(&fs);
}

/* A store that fails leaves no directories. */
static void
test_failed_store_leaves_nothing(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("a/b/c", "d");
	Fs fs;

	fs_new(&fs, "");
	make_directory(&fs, "plain/a");
	put_file(&fs, "plain/a/b", "x", 1);
	assert_int_equal(store(&fs, key, 10, 1), -ENOTDIR);
	assert_true(exists(&fs, "plain/a/b"));
	assert_describes(&fs, "store_errors", "1");

	g_autofree char *blocking = path_of(&fs, "plain/a/b");
	assert_int_equal(unlink(blocking), 0);
	make_directory(&fs, "plain/a/b/c/d/mine"); /* not from before this adapter: stays */
	assert_int_equal(store(&fs, key, 10, 1), -EISDIR);
	assert_true(exists(&fs, "plain/a/b/c/d/mine"));
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 3);
	assert_int_equal(keys->len, 0);
	fs_free(&fs);
}

static void
make_old(Fs *fs, const char *name)
{
	const struct timespec times[2] = {{1000000000, 0}, {1000000000, 0}};
	g_autofree char *path = path_of(fs, name);

	assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
}

/* Directories that a crash left empty are no obstacle to a file of that name. */
static void
test_left_over_directories(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("", "a");
	g_autofree char *from = NULL, *to = NULL;
	int64_t stored;
	Fs fs;

	fs_new(&fs, "");
	g_usleep(50000);
	make_directory(&fs, "plain");
	make_directory(&fs, "aside/b/c");
	make_old(&fs, "aside/b/c");
	make_old(&fs, "aside/b");
	make_old(&fs, "aside");
	from = path_of(&fs, "aside");
	to = path_of(&fs, "plain/a");
	assert_int_equal(rename(from, to), 0);
	/* Again if the cleaning at open, which should be over, is in the middle of them. */
	for (int i = 0; (stored = store(&fs, key, 10, 1)) == -EISDIR && i < 1000; i++)
		g_usleep(1000);
	assert_int_equal(stored, 10);
	assert_true(load(&fs, key, 10, 1));
	assert_int_equal(usage_of(&fs).objects, 1);
	fs_free(&fs);
}

/* They are also cleaned up at open, whoever needs them. */
static void
test_cleaning_at_open(void **state)
{
	static const char left_over[] = "plain/a/b/.kvcfs.999999999.1.tmp";
	g_autoptr(KvcObjectKey) key = plain("kept", "file");
	g_autofree char *dir = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	store(&fs, key, 10, 1);
	make_directory(&fs, "plain/a/b");
	put_file(&fs, left_over, "x", 1);
	fs_close(&fs);
	g_usleep(20000);
	fs_open(&fs, dir, "");
	for (int i = 0; i < 500 && exists(&fs, "plain/a"); i++)
		g_usleep(10000);
	assert_false(exists(&fs, "plain/a"));
	assert_true(load(&fs, key, 10, 1));
	fs_free(&fs);
}

typedef struct Churn {
	Fs fs;
	KvcObjectKey *key;
	atomic_bool stopping;
	int64_t result; /* of the last store; below 0: one failed */
} Churn;

static void *
churn_main(void *user)
{
	Churn *churn = user;

	while (!atomic_load(&churn->stopping) && churn->result >= 0) {
		churn->result = store(&churn->fs, churn->key, 10, 1);
		delete_key(&churn->fs, churn->key);
	}
	return NULL;
}

/* Another mount takes a file and its directories away while the next file comes: nothing fails. */
static void
test_pruning_races_with_stores(void **state)
{
	g_autoptr(KvcObjectKey) other = plain("a/b/c/d/e", "other");
	g_autoptr(KvcObjectKey) key = plain("a/b/c/d/e", "file");
	Churn churn = {.key = other};
	pthread_t thread;
	Fs fs;

	fs_new(&fs, "");
	fs_open(&churn.fs, fs.dir, "");
	assert_int_equal(pthread_create(&thread, NULL, churn_main, &churn), 0);
	for (uint32_t i = 0; i < 500; i++) {
		assert_int_equal(store(&fs, key, 10, i), 10);
		assert_true(load(&fs, key, 10, i));
		assert_true(delete_key(&fs, key));
	}
	atomic_store(&churn.stopping, true);
	pthread_join(thread, NULL);
	assert_int_equal(churn.result, 10);
	assert_describes(&fs, "store_errors", "0");
	assert_false(exists(&fs, "plain/a"));
	assert_int_equal(usage_of(&fs).objects, 0);
	fs_close(&churn.fs);
	fs_free(&fs);
}

static void
test_replaced_and_restarted(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("d", "file"), gone = plain("x/y", "z");
	g_autofree char *dir = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	assert_int_equal(store(&fs, key, 100, 1), 100);
	assert_int_equal(store(&fs, key, 100, 2), 100);
	assert_int_equal(store(&fs, key, 30, 3), 30);
	assert_int_equal(usage_of(&fs).objects, 1);
	assert_int_equal(usage_of(&fs).bytes_used, 30);
	fs_close(&fs);
	fs_open(&fs, dir, ",persist_enabled=false");
	assert_true(load(&fs, key, 30, 3));
	assert_int_equal(store(&fs, gone, 10, 1), 10);
	fs_close(&fs);
	fs_open(&fs, dir, "");
	assert_false(exists(&fs, "plain/x"));
	assert_true(load(&fs, key, 30, 3));
	fs_free(&fs);
}

/* A file that was cut is not listed with the wrong size. */
static void
test_cut_files_are_not_listed(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("d", "file");
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, key, 100, 1);
	assert_int_equal(count_listed(&fs, key), 1);
	path = path_of(&fs, "plain/d/file");
	assert_int_equal(truncate(path, 99), 0);
	assert_int_equal(count_listed(&fs, key), 0);
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names_and_bytes),
		cmocka_unit_test(test_changes_of_a_scope),
		cmocka_unit_test(test_list),
		cmocka_unit_test(test_list_windows),
		cmocka_unit_test(test_foreign_files),
		cmocka_unit_test(test_deep_directories),
		cmocka_unit_test(test_files_and_directories_in_turn),
		cmocka_unit_test(test_chains_prune_too),
		cmocka_unit_test(test_failed_store_leaves_nothing),
		cmocka_unit_test(test_left_over_directories),
		cmocka_unit_test(test_cleaning_at_open),
		cmocka_unit_test(test_pruning_races_with_stores),
		cmocka_unit_test(test_replaced_and_restarted),
		cmocka_unit_test(test_cut_files_are_not_listed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
