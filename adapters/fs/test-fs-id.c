/* SPDX-License-Identifier: Apache-2.0 */

/* A file is served only as the object that it was written for, also when it has a CRC that fits. */

#include "test-fs-util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#define ID_XATTR "user.kvcache.id"
#define A_NAME "plain/d/a"
#define B_NAME "plain/d/b"
#define BYTES 5000

static char *
id_of(const KvcObjectKey *key)
{
	char *digest = kvc_object_key_digest(key);

	digest[16] = '\0';
	return digest;
}

static void
set_id(Fs *fs, const char *name, const char *text)
{
	g_autofree char *path = path_of(fs, name);

	assert_int_equal(setxattr(path, ID_XATTR, text, strlen(text), 0), 0);
}

static void
assert_id(Fs *fs, const char *name, const KvcObjectKey *key)
{
	g_autofree char *expected = id_of(key), *text = xattr_of(fs, name, ID_XATTR);

	assert_non_null(text);
	assert_string_equal(text, expected);
}

/* Behind the adapter's back. */
static void
move(Fs *fs, const char *from, const char *to)
{
	g_autofree char *old_path = path_of(fs, from), *new_path = path_of(fs, to);

	assert_int_equal(rename(old_path, new_path), 0);
}

static void
assert_miss(Fs *fs, KvcObjectKey *key)
{
	KvcL2ObjectInfo info;

	for (uint32_t seed = 1; seed < 4; seed++)
		assert_false(load(fs, key, BYTES, seed));
	assert_false(lookup_and_lock(fs, key, &info));
	assert_int_equal(count_listed(fs, key), 0);
}

static void
assert_hit(Fs *fs, KvcObjectKey *key, uint32_t seed)
{
	KvcL2ObjectInfo info;

	assert_true(load(fs, key, BYTES, seed));
	assert_true(lookup_and_lock(fs, key, &info));
	fs->ops->submit_unlock(fs->adapter, &key, 1);
	assert_int_equal(count_listed(fs, key), 1);
}

static void
test_swapped_files(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), b = plain("d", "b");
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	store(&fs, b, BYTES, 2);
	assert_id(&fs, A_NAME, a);
	move(&fs, A_NAME, "swap");
	move(&fs, B_NAME, A_NAME);
	move(&fs, "swap", B_NAME);
	log_begin();
	assert_false(load(&fs, a, BYTES, 2));
	assert_describes(&fs, "id_mismatches", "1");
	assert_int_equal(log_count("\"" A_NAME "\" was written under another name"), 1);
	log_end();
	assert_miss(&fs, a);
	assert_miss(&fs, b);
	assert_true(exists(&fs, A_NAME));
	assert_true(exists(&fs, B_NAME));
	assert_describes(&fs, "crc_mismatches", "0");
	assert_describes(&fs, "size_mismatches", "0");
	assert_describes(&fs, "load_errors", "0");
	assert_int_equal(fs.ops->rename_key(fs.adapter, a, b), -ENOENT);
	/* What is stored is there; and swapped back the other one is as well. */
	store(&fs, a, BYTES, 3);
	assert_hit(&fs, a, 3);
	assert_miss(&fs, b);
	move(&fs, B_NAME, A_NAME);
	assert_hit(&fs, a, 1);
	fs_free(&fs);
}

/* A chunk that is there is not stored again: not if it is another one. */
static void
test_a_swapped_chunk_is_stored_again(void **state)
{
	static const char one[] = "org-SEP-model@0x01000100@0@00000001.data";
	static const char two[] = "org-SEP-model@0x01000100@0@00000002.data";
	g_autoptr(KvcObjectKey) a = chunk(1), b = chunk(2);
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	store(&fs, b, BYTES, 1);
	move(&fs, two, one);
	assert_miss(&fs, a);
	assert_int_equal(store(&fs, a, BYTES, 1), BYTES);
	assert_describes(&fs, "skipped", "0");
	assert_id(&fs, one, a);
	assert_hit(&fs, a, 1);
	assert_int_equal(store(&fs, a, BYTES, 1), 0);
	assert_describes(&fs, "skipped", "1");
	fs_free(&fs);
}

/* Somebody else's, or an older kvcachefs': what its name says. */
static void
test_files_without_an_id(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), b = plain("d", "b");
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	path = path_of(&fs, A_NAME);
	store(&fs, a, BYTES, 1);
	assert_int_equal(removexattr(path, ID_XATTR), 0);
	assert_hit(&fs, a, 1);
	assert_int_equal(fs.ops->rename_key(fs.adapter, a, b), 0);
	assert_hit(&fs, b, 1);
	assert_null(xattr_of(&fs, B_NAME, ID_XATTR));
	assert_describes(&fs, "id_mismatches", "0");
	fs_free(&fs);
}

static void
test_values(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), b = plain("d", "b"), c = plain("d", "c");
	g_autofree char *a_id = id_of(a), *b_id = id_of(b), *c_id = id_of(c);
	g_autofree char *first = g_strdup_printf("%s,%s", a_id, b_id);
	g_autofree char *last = g_strdup_printf("%s,%s", b_id, a_id);
	g_autofree char *neither = g_strdup_printf("%s,%s", b_id, c_id);
	g_autofree char *three = g_strdup_printf("%s,%s,%s", a_id, b_id, c_id);
	g_autofree char *no_comma = g_strdup_printf("%s %s", a_id, b_id);
	const char *const good[] = {a_id, first, last}, *const bad[] = {b_id,	  neither, three,
									no_comma, "",	   "x"};
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	for (size_t i = 0; i < G_N_ELEMENTS(good); i++) {
		set_id(&fs, A_NAME, good[i]);
		assert_hit(&fs, a, 1);
	}
	for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
		set_id(&fs, A_NAME, bad[i]);
		assert_miss(&fs, a);
	}
	fs_free(&fs);
}

/* Under the new name it names the new key only: put back by hand it is not the old object. */
static void
test_a_rename(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), b = plain("d", "b");
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	assert_int_equal(fs.ops->rename_key(fs.adapter, a, b), 0);
	assert_id(&fs, B_NAME, b);
	move(&fs, B_NAME, A_NAME);
	assert_miss(&fs, a);
	fs_free(&fs);
}

/* A digest name has the whole key instead. */
static void
test_digest_names(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), unfit = plain("d", ".kvcfs.1.1.tmp");
	g_autofree char *digest = kvc_object_key_digest(unfit);
	g_autofree char *name = g_strconcat(digest, ".kvc", NULL);
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	assert_int_equal(fs.ops->rename_key(fs.adapter, a, unfit), 0);
	assert_null(xattr_of(&fs, name, ID_XATTR));
	assert_hit(&fs, unfit, 1);
	assert_int_equal(fs.ops->rename_key(fs.adapter, unfit, a), 0);
	assert_id(&fs, A_NAME, a);
	assert_hit(&fs, a, 1);
	fs_free(&fs);
}

/* A crash before the file moves, and one after: it is the object, once, and can be renamed. */
static void
check_crash(bool has_moved)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), b = plain("d", "b"), c = plain("d", "c");
	g_autofree char *a_id = id_of(a), *b_id = id_of(b);
	g_autofree char *both = g_strdup_printf("%s,%s", b_id, a_id);
	KvcObjectKey *there = has_moved ? b : a, *not_there = has_moved ? a : b;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	set_id(&fs, A_NAME, both);
	if (has_moved)
		move(&fs, A_NAME, B_NAME);
	assert_hit(&fs, there, 1);
	assert_miss(&fs, not_there);
	assert_int_equal(fs.ops->rename_key(fs.adapter, there, c), 0);
	assert_id(&fs, "plain/d/c", c);
	assert_hit(&fs, c, 1);
	assert_describes(&fs, "id_mismatches", "0");
	fs_free(&fs);
}

static void
test_crashes_while_it_moves(void **state)
{
	check_crash(false);
	check_crash(true);
}

/* What could not move names its own key alone again. */
static void
test_a_rename_that_fails(void **state)
{
	g_autoptr(KvcObjectKey) a = plain("d", "a"), below = plain("d/b", "x"), b = plain("d", "b");
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, BYTES, 1);
	store(&fs, below, BYTES, 2);
	assert_int_equal(fs.ops->rename_key(fs.adapter, a, b), -EISDIR);
	assert_id(&fs, A_NAME, a);
	assert_hit(&fs, a, 1);
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_swapped_files),
		cmocka_unit_test(test_a_swapped_chunk_is_stored_again),
		cmocka_unit_test(test_files_without_an_id),
		cmocka_unit_test(test_values),
		cmocka_unit_test(test_a_rename),
		cmocka_unit_test(test_digest_names),
		cmocka_unit_test(test_crashes_while_it_moves),
		cmocka_unit_test(test_a_rename_that_fails),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
