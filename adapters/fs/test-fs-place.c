/* SPDX-License-Identifier: Apache-2.0 */

/* base_path becomes another directory while the adapter is open. */

#include "test-fs-util.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static void
note_health(void *user, const char *name, const char *value)
{
	if (!strcmp(name, "health"))
		*(bool *)user = !strcmp(value, "failed");
}

static bool
is_failed(Fs *fs)
{
	bool failed = false;

	fs->ops->describe(fs->adapter, note_health, &failed);
	return failed;
}

/* It looks once a second by itself. */
static void
await_failed(Fs *fs, bool failed)
{
	for (int i = 0; i < 3000 && is_failed(fs) != failed; i++)
		g_usleep(10000);
	assert_int_equal(is_failed(fs), failed);
}

static int
delete_rc(Fs *fs, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);
	int rc = fs->ops->delete_keys(fs->adapter, &key, 1, deleted);

	assert_false(kvc_bitmap_test(deleted, 0));
	return rc;
}

static void
assert_refuses(Fs *fs, KvcObjectKey *there)
{
	g_autoptr(KvcObjectKey) other = chunk(77);
	KvcObjectAttributes attributes = {.mode = 0600};
	KvcL2ObjectInfo info = {0};
	KvcL2ListEntry entry;
	char *cursor = NULL;

	assert_int_equal(store(fs, other, 100, 1), -EHOSTDOWN);
	assert_int_equal(store(fs, there, 100, 1), -EHOSTDOWN);
	assert_false(lookup_and_lock(fs, there, &info));
	assert_true(info.mtime_ns == KVC_L2_NOT_ASKED);
	assert_false(load(fs, there, 100, 1));
	assert_int_equal(delete_rc(fs, there), -EHOSTDOWN);
	assert_int_equal(fs->ops->rename_key(fs->adapter, there, other), -EHOSTDOWN);
	assert_int_equal(fs->ops->set_attributes(fs->adapter, there, &attributes), -EHOSTDOWN);
	assert_int_equal(fs->ops->list(fs->adapter, NULL, &cursor, &entry, 1), -EHOSTDOWN);
	assert_null(cursor);
}

static void
test_moved_away_and_back(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), prefix = chain("p"), later = chunk(2);
	g_autofree char *dir = NULL, *away = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	away = g_strconcat(dir, ".away", NULL);
	assert_int_equal(store(&fs, key, 100, 1), 100);
	assert_int_equal(store(&fs, prefix, 100, 1), 100);
	log_begin();
	assert_int_equal(rename(dir, away), 0);
	await_failed(&fs, true);
	assert_refuses(&fs, key);
	assert_refuses(&fs, prefix);

	/* Another one in its place is not taken, and nothing is left in it. */
	assert_int_equal(mkdir(dir, 0755), 0);
	g_usleep(1500000); /* it has looked again */
	assert_true(is_failed(&fs));
	assert_refuses(&fs, key);
	assert_int_equal(rmdir(dir), 0);
	assert_int_equal(log_count("was moved or removed"), 1);
	assert_int_equal(log_count("failed: cannot"), 0);
	assert_int_equal(log_count("the directory is back"), 0);

	assert_int_equal(rename(away, dir), 0);
	await_failed(&fs, false);
	assert_int_equal(log_count("the directory is back"), 1);
	log_end();
	assert_true(load(&fs, key, 100, 1));
	assert_true(load(&fs, prefix, 100, 1));
	assert_int_equal(store(&fs, later, 100, 1), 100);
	assert_true(delete_key(&fs, key));
	fs_free(&fs);
}

/* One refused lookup or load says that nothing can be reached. */
static void
test_breaker(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcBreakerStatus status;
	KvcL2ObjectInfo info;
	Fs fs;

	for (int is_load = 0; is_load <= 1; is_load++) {
		fs_new(&fs, "");
		fs.adapter->breaker = kvc_breaker_new(3600 * INT64_C(1000000000), 0);
		assert_int_equal(store(&fs, key, 100, 1), 100);
		remove_tree(fs.dir);
		await_failed(&fs, true);
		kvc_breaker_get_status(fs.adapter->breaker, &status);
		assert_int_equal(status.state, KVC_BREAKER_CLOSED);
		if (is_load)
			assert_false(load(&fs, key, 100, 1));
		else
			assert_false(lookup_and_lock(&fs, key, &info));
		kvc_breaker_get_status(fs.adapter->breaker, &status);
		assert_int_equal(status.state, KVC_BREAKER_OPEN);
		KvcBreaker *breaker = fs.adapter->breaker;
		fs_free(&fs);
		kvc_breaker_free(breaker);
	}
}

/* The store that finds out says it, before the next look. */
static void
test_removed(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autofree char *dir = NULL;
	Fs fs;

	fs_new(&fs, "");
	dir = g_strdup(fs.dir);
	remove_tree(dir);
	assert_int_equal(store(&fs, key, 100, 1), -EHOSTDOWN);
	assert_true(is_failed(&fs));
	assert_refuses(&fs, key);
	assert_int_equal(mkdir(dir, 0755), 0);
	assert_refuses(&fs, key);
	fs_close(&fs);

	/* A restart takes it. */
	fs_open(&fs, dir, "");
	assert_int_equal(store(&fs, key, 100, 1), 100);
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_moved_away_and_back),
		cmocka_unit_test(test_breaker),
		cmocka_unit_test(test_removed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
