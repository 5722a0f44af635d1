/* SPDX-License-Identifier: Apache-2.0 */

/* With fsync: what is synced, when, and what comes of it when that fails. */

#include "test-fs-util.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* What fsync() below was called with: paths, as they were then. */
static pthread_mutex_t synced_lock = PTHREAD_MUTEX_INITIALIZER;
static GPtrArray *synced;
static int sync_errnum; /* it fails with it, unless 0 */

/* In place of the C library's, for the adapter too. */
int
fsync(int fd)
{
	g_autofree char *link = g_strdup_printf("/proc/self/fd/%d", fd);

	pthread_mutex_lock(&synced_lock);
	int errnum = sync_errnum;
	if (synced)
		g_ptr_array_add(synced, g_file_read_link(link, NULL));
	pthread_mutex_unlock(&synced_lock);
	if (errnum) {
		errno = errnum;
		return -1;
	}
	return (int)syscall(SYS_fsync, fd);
}

static void
sync_begin(int errnum)
{
	pthread_mutex_lock(&synced_lock);
	synced = g_ptr_array_new_with_free_func(g_free);
	sync_errnum = errnum;
	pthread_mutex_unlock(&synced_lock);
}

/* The paths since sync_begin(), below the directory of FS, with a space behind each. */
static char *
sync_end(Fs *fs)
{
	GString *text = g_string_new(NULL);

	pthread_mutex_lock(&synced_lock);
	for (guint i = 0; i < synced->len; i++) {
		const char *path = synced->pdata[i];

		if (!path || !g_str_has_prefix(path, fs->dir))
			continue;
		path += strlen(fs->dir);
		if (strstr(path, "/.kvcfs.")) /* without its number */
			g_string_append_printf(text, "%.*s/TEMP ", (int)(strrchr(path, '/') - path),
					       path);
		else
			g_string_append_printf(text, "%s ", *path ? path : "/");
	}
	g_clear_pointer(&synced, g_ptr_array_unref);
	sync_errnum = 0;
	pthread_mutex_unlock(&synced_lock);
	return g_string_free(text, FALSE);
}

static void
assert_synced(Fs *fs, const char *expected)
{
	g_autofree char *text = sync_end(fs);

	assert_string_equal(text, expected);
}

static void
test_fsync(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), other = chunk(2);
	g_autoptr(KvcObjectKey) file = plain("a/b", "c"), moved = plain("d", "e");
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(2);
	KvcObjectKey *keys[] = {key, other};
	Fs fs;

	fs_new(&fs, ",fsync=true");
	sync_begin(0);
	assert_int_equal(store(&fs, key, 5000, 1), 5000);
	assert_synced(&fs, "/TEMP / "); /* before it has its name, and the name after that */
	sync_begin(0);
	assert_int_equal(store(&fs, file, 100, 1), 100);
	assert_synced(&fs, "/plain/a/b/TEMP /plain/a/b /plain/a /plain / ");

	/* What was there already may be of somebody who did not sync it. */
	sync_begin(0);
	assert_int_equal(store(&fs, key, 5000, 1), 0);
	assert_synced(&fs, "/org-SEP-model@0x01000100@0@00000001.data / ");

	/* Both directories; those that are gone are, as those above them say. */
	sync_begin(0);
	assert_int_equal(fs.ops->rename_key(fs.adapter, file, moved), 0);
	assert_synced(&fs, "/plain/d /plain / /plain / ");
	sync_begin(0);
	assert_true(delete_key(&fs, moved));
	assert_synced(&fs, "/plain / ");

	/* Several of one directory: once. */
	assert_int_equal(store(&fs, other, 100, 1), 100);
	sync_begin(0);
	assert_int_equal(fs.ops->delete_keys(fs.adapter, keys, 2, deleted), 0);
	assert_synced(&fs, "/ ");
	assert_true(kvc_bitmap_test(deleted, 0) && kvc_bitmap_test(deleted, 1));
	fs_free(&fs);
}

static void
test_fsync_is_off(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	Fs fs;

	fs_new(&fs, "");
	sync_begin(0);
	assert_int_equal(store(&fs, key, 5000, 1), 5000);
	assert_int_equal(store(&fs, key, 5000, 1), 0);
	assert_true(delete_key(&fs, key));
	assert_synced(&fs, "");
	fs_free(&fs);
}

/* A store that is not on the disk has failed; a deletion that is not is told to be tried again. */
static void
test_failing_fsync(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);
	Fs fs;

	fs_new(&fs, ",fsync=true");
	sync_begin(EIO);
	assert_int_equal(store(&fs, key, 5000, 1), -EIO);
	g_free(sync_end(&fs));
	assert_false(exists(&fs, "org-SEP-model@0x01000100@0@00000001.data"));
	assert_describes(&fs, "store_errors", "1");
	assert_int_equal(store(&fs, key, 5000, 1), 5000);

	sync_begin(EIO);
	assert_int_equal(store(&fs, key, 5000, 1), -EIO); /* there, but maybe not on the disk */
	/* Nor is its deletion, also when it is tried again and nothing is there any more. */
	for (int i = 0; i < 2; i++) {
		assert_int_equal(
			fs.ops->delete_keys(fs.adapter, (KvcObjectKey *[]){key}, 1, deleted), -EIO);
		assert_false(kvc_bitmap_test(deleted, 0));
	}
	g_free(sync_end(&fs));
	assert_true(delete_key(&fs, key));
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_fsync),
		cmocka_unit_test(test_fsync_is_off),
		cmocka_unit_test(test_failing_fsync),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
