/* SPDX-License-Identifier: Apache-2.0 */

/* Renaming an object: its file moves, with its xattrs, between all kinds of paths. */

#include "test-fs-util.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#define KEY_XATTR "user.kvcache.key"

/* Keys of every kind, two of each: files with paths of their own, and digest names. */
enum { FIT_PLAIN, UNFIT_PLAIN, FIT_CHUNK, UNFIT_CHUNK, PREFIX, KINDS };

static KvcObjectKey *
key_of(int kind, uint32_t number)
{
	g_autofree char *name = g_strdup_printf("%08x", number);
	g_autofree char *temp = g_strdup_printf(".kvcfs.1.%u.tmp", number);
	g_autofree char *directory = g_strdup_printf("d/%u", number);

	switch (kind) {
	case FIT_PLAIN:
		return plain(directory, "file");
	case UNFIT_PLAIN:
		return plain("d", temp);
	case FIT_CHUNK:
		return chunk(number);
	case UNFIT_CHUNK:
		return key_new("a-SEP-b", 1, 0, NULL, KVC_SPACE_CHUNK, name, 8);
	default:
		return chain(name);
	}
}

static int
rename_key(Fs *fs, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	return fs->ops->rename_key(fs->adapter, old_key, new_key);
}

static void
assert_absent(Fs *fs, KvcObjectKey *key, size_t bytes)
{
	KvcL2ObjectInfo info;

	assert_false(load(fs, key, bytes, 1));
	assert_false(lookup_and_lock(fs, key, &info));
	assert_int_equal(count_listed(fs, key), 0);
}

static void
assert_present(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed)
{
	KvcL2ObjectInfo info;

	assert_true(load(fs, key, bytes, seed));
	assert_true(lookup_and_lock(fs, key, &info));
	assert_int_equal(info.bytes, bytes);
	fs->ops->submit_unlock(fs->adapter, &key, 1);
	assert_int_equal(count_listed(fs, key), 1);
}

static void
check_between(Fs *fs, int old_kind, int new_kind)
{
	g_autoptr(KvcObjectKey) old_key = key_of(old_kind, 1), new_key = key_of(new_kind, 2);

	assert_int_equal(store(fs, old_key, 5000, 1), 5000);
	assert_int_equal(rename_key(fs, old_key, new_key), 0);
	assert_absent(fs, old_key, 5000);
	assert_present(fs, new_key, 5000, 1);
	assert_int_equal(usage_of(fs).objects, 1);
	assert_int_equal(usage_of(fs).bytes_used, 5000);

	/* Onto an object that exists; the way back too. */
	assert_int_equal(store(fs, old_key, 300, 2), 300);
	assert_int_equal(rename_key(fs, old_key, new_key), 0);
	assert_present(fs, new_key, 300, 2);
	assert_int_equal(rename_key(fs, new_key, old_key), 0);
	assert_present(fs, old_key, 300, 2);
	assert_absent(fs, new_key, 300);
	assert_int_equal(usage_of(fs).objects, 1);
	assert_int_equal(usage_of(fs).bytes_used, 300);
	assert_describes(fs, "foreign_files", "0");
	assert_true(delete_key(fs, old_key));
	assert_int_equal(usage_of(fs).objects, 0);
}

static void
test_between_all_kinds(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	for (int old_kind = 0; old_kind < KINDS; old_kind++)
		for (int new_kind = 0; new_kind < KINDS; new_kind++)
			check_between(&fs, old_kind, new_kind);
	assert_describes(&fs, "renames", "75");
	assert_describes(&fs, "health", "ok");
	/* Directories went with their files. */
	assert_true(exists(&fs, "plain"));
	assert_false(exists(&fs, "plain/d"));
	assert_false(exists(&fs, "prefix/org"));
	fs_free(&fs);
}

/* Checksum and size move with the bytes; the key only where the name does not tell it. */
static void
test_xattrs(void **state)
{
	g_autoptr(KvcObjectKey) fit = key_of(FIT_PLAIN, 1), unfit = key_of(UNFIT_PLAIN, 2);
	g_autofree char *digest = kvc_object_key_digest(unfit);
	g_autofree char *name = g_strconcat(digest, ".kvc", NULL);
	g_autofree char *key_text = kvc_object_key_serialize(unfit);
	Fs fs;

	fs_new(&fs, "");
	store(&fs, fit, 5000, 1);
	g_autofree char *crc = xattr_of(&fs, "plain/d/1/file", "user.kvcache.crc32c");
	assert_non_null(crc);
	assert_int_equal(rename_key(&fs, fit, unfit), 0);
	g_autofree char *crc_then = xattr_of(&fs, name, "user.kvcache.crc32c");
	g_autofree char *size_then = xattr_of(&fs, name, "user.kvcache.size");
	g_autofree char *key_then = xattr_of(&fs, name, KEY_XATTR);
	assert_non_null(crc_then);
	assert_string_equal(crc_then, crc);
	assert_string_equal(size_then, "5000");
	assert_string_equal(key_then, key_text);

	assert_int_equal(rename_key(&fs, unfit, fit), 0);
	g_autofree char *crc_back = xattr_of(&fs, "plain/d/1/file", "user.kvcache.crc32c");
	assert_string_equal(crc_back, crc);
	assert_null(xattr_of(&fs, "plain/d/1/file", KEY_XATTR));
	fs_free(&fs);
}

static void
test_absent_objects(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(FIT_PLAIN, 1), b = key_of(FIT_PLAIN, 2);
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(rename_key(&fs, a, b), -ENOENT);
	assert_int_equal(rename_key(&fs, a, a), -ENOENT);
	store(&fs, b, 100, 2);
	assert_int_equal(rename_key(&fs, a, b), -ENOENT);
	assert_true(load(&fs, b, 100, 2));
	assert_int_equal(rename_key(&fs, b, b), 0);
	assert_true(load(&fs, b, 100, 2));

	/* Cut, or known to be corrupt: not an object that could take the place of one. */
	store(&fs, a, 100, 1);
	path = path_of(&fs, "plain/d/1/file");
	assert_int_equal(truncate(path, 50), 0);
	assert_int_equal(rename_key(&fs, a, b), -ENOENT);
	store(&fs, a, 100, 1);
	assert_int_equal(setxattr(path, "user.kvcache.crc32c", "00000000", 8, 0), 0);
	assert_false(load(&fs, a, 100, 1));
	assert_int_equal(rename_key(&fs, a, b), -ENOENT);
	assert_true(load(&fs, b, 100, 2));
	assert_describes(&fs, "store_errors", "0");
	fs_free(&fs);
}

/* What was corrupt under the new key is forgotten with its file. */
static void
test_replaces_a_corrupt_file(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(FIT_PLAIN, 1), b = key_of(FIT_PLAIN, 2);
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 100, 1);
	store(&fs, b, 100, 2);
	path = path_of(&fs, "plain/d/2/file");
	assert_int_equal(setxattr(path, "user.kvcache.crc32c", "00000000", 8, 0), 0);
	assert_false(load(&fs, b, 100, 2));
	assert_int_equal(rename_key(&fs, a, b), 0);
	assert_present(&fs, b, 100, 1);
	fs_free(&fs);
}

static void
test_locked_keys(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(FIT_PLAIN, 1), b = key_of(UNFIT_CHUNK, 2);
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 100, 1);
	store(&fs, b, 50, 2);
	assert_true(lookup_and_lock(&fs, a, &info));
	assert_int_equal(rename_key(&fs, a, b), -EBUSY);
	assert_int_equal(rename_key(&fs, b, a), -EBUSY);
	fs.ops->submit_unlock(fs.adapter, &a, 1);
	assert_true(load(&fs, a, 100, 1));
	assert_true(load(&fs, b, 50, 2));
	assert_int_equal(rename_key(&fs, a, b), 0);
	assert_present(&fs, b, 100, 1);
	fs_free(&fs);
}

static void
test_stores_in_flight(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(FIT_PLAIN, 1), b = key_of(FIT_PLAIN, 2);
	KvcMemoryObj object = object_new(64 * MIB, 1);
	KvcL2StoreResult result;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, b, 10, 2);
	fs.ops->submit_store_task(fs.adapter, &a, &object, 1);
	int onto = rename_key(&fs, b, a), of = rename_key(&fs, a, b);
	await_event(fs.ops->get_store_event_fd(fs.adapter));
	assert_int_equal(fs.ops->pop_completed_store_tasks(fs.adapter, &result, 1), 1);
	assert_int_equal(onto, -EBUSY);
	assert_int_equal(of, -EBUSY);
	assert_int_equal(rename_key(&fs, a, b), 0);
	assert_true(load(&fs, b, 64 * MIB, 1));
	free(object.data);
	fs_free(&fs);
}

/* A file is in the way of a directory, a directory in the way of a file: nothing changes. */
static void
test_failures(void **state)
{
	g_autoptr(KvcObjectKey) file = plain("", "a"), below = plain("a/b", "c");
	g_autoptr(KvcObjectKey) unfit = key_of(UNFIT_PLAIN, 1), other = key_of(UNFIT_PLAIN, 2);
	g_autofree char *digest = kvc_object_key_digest(other), *blocked = NULL, *kept = NULL;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, file, 100, 1);
	store(&fs, unfit, 100, 2);
	assert_int_equal(rename_key(&fs, unfit, below), -ENOTDIR);
	assert_int_equal(rename_key(&fs, file, below), -ENOTDIR);
	assert_present(&fs, unfit, 100, 2);
	assert_present(&fs, file, 100, 1);
	assert_true(delete_key(&fs, file));
	store(&fs, below, 100, 1);
	assert_int_equal(rename_key(&fs, unfit, file), -EISDIR);
	assert_present(&fs, unfit, 100, 2);
	assert_describes(&fs, "store_errors", "3");
	assert_describes(&fs, "renames", "0");

	/* The key was written already when the move fails: it is taken back. */
	blocked = g_strdup_printf("%s/%s.kvc", fs.dir, digest);
	kept = g_build_filename(blocked, "kept", NULL);
	assert_int_equal(g_mkdir_with_parents(kept, 0755), 0);
	assert_int_equal(rename_key(&fs, unfit, other), -EISDIR);
	assert_present(&fs, unfit, 100, 2);
	assert_int_equal(rename_key(&fs, below, other), -EISDIR);
	assert_present(&fs, below, 100, 1);
	assert_null(xattr_of(&fs, "plain/a/b/c", KEY_XATTR));
	fs_free(&fs);
}

/* As a crash between the two steps leaves it: wrong under either name, served under none. */
static void
test_crash_in_the_middle(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(UNFIT_PLAIN, 1), b = key_of(UNFIT_PLAIN, 2);
	g_autofree char *digest = kvc_object_key_digest(a), *text = kvc_object_key_serialize(b);
	g_autofree char *path = NULL;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 100, 1);
	path = g_strdup_printf("%s/%s.kvc", fs.dir, digest);
	assert_int_equal(setxattr(path, KEY_XATTR, text, strlen(text), 0), 0);
	assert_absent(&fs, a, 100);
	assert_absent(&fs, b, 100);
	assert_describes(&fs, "foreign_files", "1");
	assert_int_equal(rename_key(&fs, a, b), -ENOENT);
	assert_int_equal(store(&fs, a, 100, 3), 100);
	assert_present(&fs, a, 100, 3);
	fs_free(&fs);
}

/* The name of an older LMCache would bring the old key back. */
static void
test_files_of_older_lmcache(void **state)
{
	static const char legacy[] = "org-SEP-model@0x01000100@00000001.data";
	g_autoptr(KvcObjectKey) old_key = chunk(1), new_key = chunk(2), third = chunk(3);
	Fs fs;

	fs_new(&fs, "");
	put_file(&fs, legacy, "abc", 3);
	assert_int_equal(rename_key(&fs, old_key, new_key), 0);
	assert_false(exists(&fs, legacy));
	assert_true(exists(&fs, "org-SEP-model@0x01000100@0@00000002.data"));
	assert_int_equal(store(&fs, old_key, 100, 1), 100);
	put_file(&fs, legacy, "abc", 3);
	assert_int_equal(rename_key(&fs, old_key, third), 0);
	assert_false(exists(&fs, legacy));
	assert_absent(&fs, old_key, 3);
	assert_present(&fs, third, 100, 1);
	fs_free(&fs);
}

/* What this run stored goes with it, under whatever name. */
static void
test_what_does_not_persist(void **state)
{
	g_autoptr(KvcObjectKey) old_one = key_of(FIT_PLAIN, 1), new_one = key_of(FIT_PLAIN, 2);
	g_autoptr(KvcObjectKey) renamed = key_of(UNFIT_PLAIN, 3), moved = key_of(FIT_PLAIN, 4);
	g_autofree char *dir = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	store(&fs, old_one, 100, 1);
	fs_close(&fs);
	fs_open(&fs, dir, ",persist_enabled=false");
	store(&fs, new_one, 100, 2);
	store(&fs, moved, 100, 3);
	assert_int_equal(rename_key(&fs, new_one, renamed), 0);
	assert_int_equal(rename_key(&fs, old_one, moved), 0);
	fs_close(&fs);
	fs_open(&fs, dir, "");
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 5);
	assert_int_equal(keys->len, 1);
	assert_true(load(&fs, moved, 100, 1));
	fs_free(&fs);
}

enum { ROUNDS = 300 };

typedef struct Replacer {
	Fs *fs;
	KvcObjectKey *temp, *target;
	int rc;
} Replacer;

/* Replaces the target again and again, as editors and atomic writers do. */
static void *
replace_main(void *user)
{
	Replacer *replacer = user;

	for (uint32_t i = 0; i < ROUNDS && replacer->rc == 0; i++) {
		if (store(replacer->fs, replacer->temp, 100 + i % 7, i) < 0)
			replacer->rc = -EIO;
		while (replacer->rc == 0) {
			int rc = rename_key(replacer->fs, replacer->temp, replacer->target);

			if (rc == 0)
				break;
			replacer->rc = rc == -EBUSY ? 0 : rc;
		}
	}
	return NULL;
}

/* A name that is replaced by renaming is never missing in between. */
static void
check_never_missing(int temp_kind, int target_kind)
{
	g_autoptr(KvcObjectKey) temp = key_of(temp_kind, 1), target = key_of(target_kind, 2);
	pthread_t thread;
	Fs fs;

	fs_new(&fs, "");
	store(&fs, target, 100, 0);
	Replacer replacer = {&fs, temp, target, 0};
	assert_int_equal(pthread_create(&thread, NULL, replace_main, &replacer), 0);
	for (int i = 0; i < 2 * ROUNDS; i++) {
		KvcL2ObjectInfo info;

		assert_true(lookup_and_lock(&fs, target, &info));
		assert_in_range(info.bytes, 100, 106);
		fs.ops->submit_unlock(fs.adapter, &target, 1);
	}
	pthread_join(thread, NULL);
	assert_int_equal(replacer.rc, 0);
	assert_int_equal(usage_of(&fs).objects, 1);
	fs_free(&fs);
}

static void
test_target_is_never_missing(void **state)
{
	check_never_missing(FIT_PLAIN, FIT_PLAIN);
	check_never_missing(FIT_PLAIN, UNFIT_PLAIN);
	check_never_missing(UNFIT_PLAIN, FIT_PLAIN);
}

typedef struct Swinger {
	Fs *fs;
	KvcObjectKey *a, *b;
	unsigned n_renamed;
} Swinger;

static void *
swing_main(void *user)
{
	Swinger *swinger = user;

	for (int i = 0; i < ROUNDS; i++)
		if (rename_key(swinger->fs, swinger->a, swinger->b) == 0)
			swinger->n_renamed++;
	return NULL;
}

/* Two threads, opposite directions: no deadlock, and the object is in one place at the end. */
static void
test_opposite_renames(void **state)
{
	g_autoptr(KvcObjectKey) a = key_of(FIT_PLAIN, 1), b = key_of(FIT_PLAIN, 2);
	pthread_t threads[2];
	Fs fs;

	fs_new(&fs, "");
	store(&fs, a, 100, 1);
	Swinger swingers[2] = {{&fs, a, b, 0}, {&fs, b, a, 0}};
	for (int i = 0; i < 2; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, swing_main, &swingers[i]), 0);
	for (int i = 0; i < 2; i++)
		pthread_join(threads[i], NULL);
	bool is_at_b = swingers[0].n_renamed == swingers[1].n_renamed + 1;
	assert_true(is_at_b || swingers[0].n_renamed == swingers[1].n_renamed);
	assert_present(&fs, is_at_b ? b : a, 100, 1);
	assert_absent(&fs, is_at_b ? a : b, 100);
	assert_true(swingers[0].n_renamed > 0);
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_between_all_kinds),
		cmocka_unit_test(test_xattrs),
		cmocka_unit_test(test_absent_objects),
		cmocka_unit_test(test_replaces_a_corrupt_file),
		cmocka_unit_test(test_locked_keys),
		cmocka_unit_test(test_stores_in_flight),
		cmocka_unit_test(test_failures),
		cmocka_unit_test(test_crash_in_the_middle),
		cmocka_unit_test(test_files_of_older_lmcache),
		cmocka_unit_test(test_what_does_not_persist),
		cmocka_unit_test(test_target_is_never_missing),
		cmocka_unit_test(test_opposite_renames),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
