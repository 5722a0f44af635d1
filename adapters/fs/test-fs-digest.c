/* SPDX-License-Identifier: Apache-2.0 */

/* Keys whose path no file can have: <digest>.kvc, with the key in an xattr. */

#include "test-fs-util.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#define KEY_XATTR "user.kvcache.key"
#define UNFIT 10

/* BYTES times 'n'. */
static KvcObjectKey *
long_chain(const char *salt, size_t bytes)
{
	g_autofree char *name = g_strnfill(bytes, 'n');

	return key_new("m", 1, 0, salt, KVC_SPACE_PREFIX, name, bytes);
}

static KvcObjectKey *
long_plain(size_t component, size_t n_components, size_t name)
{
	g_autofree char *text = g_strnfill(component, 'd'), *file = g_strnfill(name, 'n');
	g_autoptr(GString) directory = g_string_new(text);

	for (size_t i = 1; i < n_components; i++)
		g_string_append_printf(directory, "/%s", text);
	return plain(directory->str, file);
}

/* Of each kind of key one that has no path of its own. */
static void
make_unfit(KvcObjectKey *keys[UNFIT])
{
	g_autofree char *model = g_strnfill(240, 'm'), *salt = g_strnfill(100, 's');
	g_autoptr(GString) wide_salt = g_string_new(NULL);

	for (int i = 0; i < 128; i++)
		g_string_append(wide_salt, "\xe2\x82\xac");
	keys[0] = key_new("a-SEP-b", 1, 0, NULL, KVC_SPACE_CHUNK, "abcd", 4);
	keys[1] = key_new("m", 1, 0x10000000, NULL, KVC_SPACE_CHUNK, "abcd", 4);
	keys[2] = key_new(model, 1, 0, salt, KVC_SPACE_CHUNK, "abcd", 4);
	keys[3] = long_plain(3, 1, 256);
	keys[4] = long_plain(256, 1, 3);
	keys[5] = plain("d", ".kvcfs.1.2.tmp");
	keys[6] = plain("d/@01000100", "file");
	keys[7] = plain(".kvcache", "status");
	keys[8] = long_chain(NULL, 256);
	keys[9] = long_chain(wide_salt->str, 3);
}

static void
free_unfit(KvcObjectKey *keys[UNFIT])
{
	for (size_t i = 0; i < UNFIT; i++)
		kvc_object_key_unref(keys[i]);
}

static char *
digest_name(const KvcObjectKey *key)
{
	g_autofree char *digest = kvc_object_key_digest(key);

	return g_strconcat(digest, ".kvc", NULL);
}

static void
check_stored(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed)
{
	g_autofree char *name = digest_name(key), *expected = kvc_object_key_serialize(key);
	g_autofree char *text = xattr_of(fs, name, KEY_XATTR);
	KvcL2ObjectInfo info;

	if (!exists(fs, name))
		fail_msg("%s is not there for %s", name, expected);
	assert_non_null(text);
	assert_string_equal(text, expected);
	assert_true(load(fs, key, bytes, seed));
	assert_true(lookup_and_lock(fs, key, &info));
	assert_int_equal(info.bytes, bytes);
	fs->ops->submit_unlock(fs->adapter, &key, 1);
	assert_int_equal(count_listed(fs, key), 1);
}

static void
test_every_operation(void **state)
{
	KvcObjectKey *keys[UNFIT];
	g_autofree char *dir = NULL;
	KvcL2ObjectInfo info;
	Fs fs;

	make_unfit(keys);
	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	for (uint32_t i = 0; i < UNFIT; i++) {
		assert_false(lookup_and_lock(&fs, keys[i], &info));
		assert_false(load(&fs, keys[i], 100 + i, i));
		assert_true(delete_key(&fs, keys[i]));
		assert_int_equal(store(&fs, keys[i], 100 + i, i), 100 + i);
	}
	g_usleep(20000); /* the clock of file times is coarse */
	fs_close(&fs);
	fs_open(&fs, dir, "");
	for (uint32_t i = 0; i < UNFIT; i++)
		check_stored(&fs, keys[i], 100 + i, i);
	assert_describes(&fs, "foreign_files", "0");
	assert_describes(&fs, "unsupported_keys", "0");
	/* A chunk that is there is skipped, the others are replaced. */
	assert_int_equal(store(&fs, keys[0], 100, 0), 0);
	assert_int_equal(store(&fs, keys[5], 105, 7), 105);
	check_stored(&fs, keys[5], 105, 7);
	assert_int_equal(usage_of(&fs).objects, UNFIT);
	for (uint32_t i = 0; i < UNFIT; i++) {
		g_autofree char *name = digest_name(keys[i]);

		assert_true(delete_key(&fs, keys[i]));
		assert_false(exists(&fs, name));
		assert_false(load(&fs, keys[i], 100 + i, i));
	}
	assert_int_equal(usage_of(&fs).objects, 0);
	free_unfit(keys);
	fs_free(&fs);
}

/* The longest names that files can have are not replaced by digests. */
static void
test_longest_names(void **state)
{
	g_autoptr(KvcObjectKey) wide = long_plain(255, 1, 255), deep = long_plain(99, 39, 60);
	g_autoptr(KvcObjectKey) deeper = long_plain(99, 39, 80), prefix = long_chain(NULL, 255);
	g_autofree char *deeper_name = digest_name(deeper);
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store(&fs, wide, 10, 1), 10);
	assert_int_equal(store(&fs, deep, 10, 2), 10);
	assert_int_equal(store(&fs, prefix, 10, 3), 10);
	g_autoptr(GPtrArray) natural = list_keys(&fs, NULL, 5);
	assert_int_equal(natural->len, 3);
	assert_true(load(&fs, wide, 10, 1));
	assert_true(load(&fs, deep, 10, 2));
	assert_false(exists(&fs, deeper_name));
	/* Few file systems have room for an xattr of 4000 bytes, and those that have keep it. */
	int64_t stored = store(&fs, deeper, 10, 4);
	if (stored < 0) {
		assert_int_equal(stored, -ENAMETOOLONG);
		assert_describes(&fs, "unsupported_keys", "1");
		assert_false(exists(&fs, deeper_name));
		assert_describes(&fs, "health", "ok");
	} else {
		check_stored(&fs, deeper, 10, 4);
	}
	fs_free(&fs);
}

static void
set_key_xattr(Fs *fs, const char *name, const char *text)
{
	g_autofree char *path = path_of(fs, name);

	assert_int_equal(setxattr(path, KEY_XATTR, text, strlen(text), 0), 0);
}

/* Not found, not loaded, not listed, not deleted; replaced by the next store. */
static void
check_foreign(Fs *fs, KvcObjectKey *key, const char *name)
{
	KvcL2ObjectInfo info;

	assert_false(lookup_and_lock(fs, key, &info));
	assert_true(info.mtime_ns != KVC_L2_NOT_ASKED);
	assert_false(load(fs, key, 100, 1));
	assert_int_equal(count_listed(fs, key), 0);
	assert_describes(fs, "foreign_files", "1");
	assert_true(delete_key(fs, key));
	assert_true(exists(fs, name));
	assert_int_equal(store(fs, key, 100, 1), 100);
	check_stored(fs, key, 100, 1);
	assert_describes(fs, "foreign_files", "0");
}

static void
test_foreign_files(void **state)
{
	g_autoptr(KvcObjectKey) key = key_new("a-SEP-b", 1, 0, NULL, KVC_SPACE_CHUNK, "abcd", 4);
	g_autoptr(KvcObjectKey) fit = plain("d", "file");
	g_autofree char *name = digest_name(key), *fit_name = digest_name(fit), *path = NULL;
	g_autofree char *text = kvc_object_key_serialize(key), *fit_text = NULL;
	g_autofree char *longer = g_strconcat(text, "00", NULL);
	Fs fs;

	fs_new(&fs, "");
	path = path_of(&fs, name);
	assert_int_equal(store(&fs, key, 100, 1), 100);
	assert_int_equal(removexattr(path, KEY_XATTR), 0);
	check_foreign(&fs, key, name);
	set_key_xattr(&fs, name, "nonsense");
	check_foreign(&fs, key, name);
	set_key_xattr(&fs, name, longer);
	check_foreign(&fs, key, name);
	set_key_xattr(&fs, name, "");
	check_foreign(&fs, key, name);
	assert_true(delete_key(&fs, key));

	/* A key that has a path of its own is looked for there only. */
	put_file(&fs, fit_name, "x", 1);
	fit_text = kvc_object_key_serialize(fit);
	set_key_xattr(&fs, fit_name, fit_text);
	assert_int_equal(count_listed(&fs, fit), 0);
	assert_describes(&fs, "foreign_files", "1");
	assert_false(load(&fs, fit, 1, 1));
	fs_free(&fs);
}

/* Two files that somebody exchanged: neither is served for the other. */
static void
test_exchanged_files(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", ".kvcfs.1.1.tmp"), b = plain("d", ".kvcfs.1.2.tmp");
	g_autofree char *a_name = digest_name(a), *b_name = digest_name(b);
	g_autofree char *a_path = NULL, *b_path = NULL, *aside = NULL;
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 100, 1);
	store(&fs, b, 100, 2);
	a_path = path_of(&fs, a_name);
	b_path = path_of(&fs, b_name);
	aside = path_of(&fs, "aside");
	assert_int_equal(rename(a_path, aside), 0);
	assert_int_equal(rename(b_path, a_path), 0);
	assert_int_equal(rename(aside, b_path), 0);
	assert_false(load(&fs, a, 100, 2));
	assert_false(load(&fs, b, 100, 1));
	assert_false(lookup_and_lock(&fs, a, &info));
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 5);
	assert_int_equal(keys->len, 0);
	assert_describes(&fs, "foreign_files", "2");
	fs_free(&fs);
}

/* Other names that end alike are not digests. */
static void
test_other_names(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	put_file(&fs, "notes.kvc", "x", 1);
	put_file(&fs, ".kvc", "x", 1);
	put_file(&fs, "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeFF.kvc", "x",
		 1);
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 5);
	assert_int_equal(keys->len, 0);
	assert_describes(&fs, "foreign_files", "3");
	fs_free(&fs);
}

/* Told and counted, not the fault of the store; what has a path of its own goes on. */
static void
check_without_xattrs(Fs *fs)
{
	g_autoptr(KvcObjectKey) unfit = plain("d", ".kvcfs.1.1.tmp"), fit = plain("d", "file");
	KvcL2ObjectInfo info;

	log_begin();
	assert_int_equal(store(fs, unfit, 100, 1), -ENOTSUP);
	assert_int_equal(store(fs, unfit, 100, 1), -ENOTSUP);
	assert_int_equal(log_count("no file can have this name here"), 1);
	log_end();
	assert_int_equal(store(fs, fit, 100, 1), 100);
	assert_false(lookup_and_lock(fs, unfit, &info));
	assert_false(load(fs, unfit, 100, 1));
	assert_true(load(fs, fit, 100, 1));
	assert_describes(fs, "unsupported_keys", "2");
	assert_describes(fs, "store_errors", "0");
	assert_describes(fs, "health", "ok");
	g_autoptr(GPtrArray) keys = list_keys(fs, NULL, 5);
	assert_int_equal(keys->len, 1);
}

static void
test_no_xattrs(void **state)
{
	run_on_ramfs(check_without_xattrs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_operation), cmocka_unit_test(test_longest_names),
		cmocka_unit_test(test_foreign_files),	cmocka_unit_test(test_exchanged_files),
		cmocka_unit_test(test_other_names),	cmocka_unit_test(test_no_xattrs),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
