/* SPDX-License-Identifier: Apache-2.0 */

/* max_capacity_gb, relative_tmp_dir, fsync, orphan_age_s. */

#include "test-fs-util.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define N 10
/* Just room for ten objects: 0.009765625 GiB. */
#define CAPACITY ",max_capacity_gb=0.009765625"

static KvcObjectKey *keys[64];

static int
make_keys(void **state)
{
	for (uint32_t i = 0; i < G_N_ELEMENTS(keys); i++)
		keys[i] = chunk(i);
	return 0;
}

static int
drop_keys(void **state)
{
	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
		kvc_object_key_unref(keys[i]);
	return 0;
}

static bool
is_there(Fs *fs, uint32_t i)
{
	g_autofree char *name = g_strdup_printf("org-SEP-model@0x01000100@0@%08x.data", i);

	return exists(fs, name);
}

/* What all files in the directory have. */
static uint64_t
bytes_on_disk(Fs *fs)
{
	DIR *dir = opendir(fs->dir);
	const struct dirent *entry;
	uint64_t bytes = 0;
	struct stat st;

	assert_non_null(dir);
	while ((entry = readdir(dir)))
		if (fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
		    S_ISREG(st.st_mode))
			bytes += (uint64_t)st.st_size;
	closedir(dir);
	return bytes;
}

static void
test_evicts_least_recently_used(void **state)
{
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, CAPACITY);
	assert_int_equal(usage_of(&fs).capacity_bytes, N * MIB);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(store(&fs, keys[i], MIB, i), MIB);
	assert_true(load(&fs, keys[0], MIB, 0));
	assert_true(lookup_and_lock(&fs, keys[1], &info));
	for (uint32_t i = N; i < N + 3; i++)
		assert_int_equal(store(&fs, keys[i], MIB, i), MIB);
	for (uint32_t i = 0; i < N + 3; i++) {
		bool is_evicted = i == 2 || i == 3 || i == 4;

		assert_int_equal(is_there(&fs, i), !is_evicted);
		assert_int_equal(load(&fs, keys[i], MIB, i), !is_evicted);
	}
	assert_int_equal(usage_of(&fs).bytes_used, N * MIB);
	assert_int_equal(usage_of(&fs).objects, N);
	assert_describes(&fs, "evicted", "3");
	fs_free(&fs);
}

/* Refused, and nothing is evicted for what has no room in any case. */
static void
test_refuses(void **state)
{
	g_autoptr(KvcObjectKey) file = plain("d", "file"), other = plain("d", "other");
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, CAPACITY);
	assert_int_equal(store(&fs, keys[0], MIB, 0), MIB);
	assert_int_equal(store(&fs, keys[1], (N + 1) * MIB, 0), -ENOSPC);
	assert_true(load(&fs, keys[0], MIB, 0));
	/* Plain files stay, whatever comes. */
	assert_int_equal(store(&fs, file, 9 * MIB, 7), 9 * MIB);
	assert_int_equal(store(&fs, keys[2], MIB, 2), MIB);
	assert_false(is_there(&fs, 0));
	assert_int_equal(store(&fs, other, 2 * MIB, 8), -ENOSPC);
	assert_true(load(&fs, file, 9 * MIB, 7));
	assert_int_equal(store(&fs, keys[3], MIB, 3), MIB);
	assert_true(lookup_and_lock(&fs, keys[3], &info));
	assert_int_equal(store(&fs, keys[4], MIB, 4), -ENOSPC);
	assert_true(load(&fs, keys[3], MIB, 3));
	fs.ops->submit_unlock(fs.adapter, &keys[3], 1);
	assert_int_equal(store(&fs, keys[4], MIB, 4), MIB);
	assert_true(delete_key(&fs, file));
	assert_int_equal(usage_of(&fs).bytes_used, MIB);
	fs_free(&fs);
}

/* What was there before counts, in whatever name; too much of it goes at the start, oldest first.
 */
static void
test_counts_at_start(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	g_autofree char *dir = g_strdup(fs.dir);
	for (uint32_t i = 0; i < 2 * N; i++) {
		g_autofree char *old = g_strdup_printf("org-SEP-model@0x01000100@%08x.data", i);
		g_autofree char *path = path_of(&fs, old);
		struct timespec times[2] = {{1000 + (time_t)i, 0}, {1000 + (time_t)i, 0}};

		put_file(&fs, old, "", 0);
		assert_int_equal(truncate(path, (off_t)MIB), 0);
		assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	}
	put_file(&fs, "foreign", "x", 1);
	for (int round = 0; round < 2; round++) {
		fs_close(&fs);
		fs_open(&fs, dir, CAPACITY);
		uint32_t number = 30 + (uint32_t)round;
		assert_int_equal(store(&fs, keys[number], MIB, number), MIB);
		assert_int_equal(usage_of(&fs).bytes_used, N * MIB);
		assert_int_equal(bytes_on_disk(&fs), N * MIB + 1);
	}
	assert_true(load(&fs, keys[30], MIB, 30));
	g_autofree char *oldest = g_strdup_printf("org-SEP-model@0x01000100@%08x.data", N + 2);
	g_autofree char *gone = g_strdup_printf("org-SEP-model@0x01000100@%08x.data", N + 1);
	assert_true(exists(&fs, oldest));
	assert_false(exists(&fs, gone));
	assert_true(exists(&fs, "foreign"));
	fs_free(&fs);
}

/* What others have stored is counted once it was looked up, what they have removed once missed. */
static void
test_counts_others(void **state)
{
	g_autofree char *name = g_strdup("org-SEP-model@0x01000100@0@00000005.data");
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, CAPACITY);
	assert_int_equal(store(&fs, keys[1], MIB, 1), MIB);
	put_file(&fs, name, "abc", 3);
	assert_true(lookup_and_lock(&fs, keys[5], &info));
	fs.ops->submit_unlock(fs.adapter, &keys[5], 1);
	assert_int_equal(usage_of(&fs).bytes_used, MIB + 3);
	g_autofree char *path = path_of(&fs, name);
	assert_int_equal(unlink(path), 0);
	assert_false(lookup_and_lock(&fs, keys[5], &info));
	assert_int_equal(usage_of(&fs).bytes_used, MIB);
	fs_free(&fs);
}

/* What is renamed or stored again counts with its bytes, whether it was known or not. */
static void
test_counts_renamed(void **state)
{
	g_autoptr(KvcObjectKey) theirs = plain("d", "theirs"), moved = plain("d", "moved");
	Fs fs;

	fs_new(&fs, CAPACITY);
	assert_int_equal(store(&fs, keys[1], 100, 1), 100); /* the directory was counted */
	g_autofree char *sub_dir = path_of(&fs, "plain/d");
	assert_int_equal(g_mkdir_with_parents(sub_dir, 0755), 0);
	put_file(&fs, "plain/d/theirs", "abc", 3);
	assert_int_equal(fs.ops->rename_key(fs.adapter, theirs, moved), 0);
	assert_int_equal(usage_of(&fs).bytes_used, 103);
	put_file(&fs, "org-SEP-model@0x01000100@0@00000005.data", "12345", 5);
	assert_true(store(&fs, keys[5], 5, 1) == 0); /* skipped: LMCache's tell no CRC */
	assert_int_equal(usage_of(&fs).bytes_used, 108);
	fs_free(&fs);
}

/* What was listed for the count but is removed before it is counted does not count. */
static void
test_removed_while_counted(void **state)
{
	enum { FILES = 4000 };
	Fs fs;

	fs_new(&fs, "");
	g_autofree char *dir = g_strdup(fs.dir);
	for (uint32_t i = 0; i < FILES; i++) {
		g_autofree char *name = g_strdup_printf("org-SEP-model@0x01000100@0@%08x.data", i);

		put_file(&fs, name, "x", 1);
	}
	fs_close(&fs);
	for (int delay_us = 0; delay_us < 20000; delay_us += 2000) {
		fs_open(&fs, dir, CAPACITY);
		g_usleep((gulong)delay_us);
		for (int i = 10; i < 30; i++)
			assert_true(delete_key(&fs, keys[i]));
		assert_int_equal(store(&fs, keys[1], 1, 1), 0); /* waits until it was counted */
		assert_int_equal(usage_of(&fs).bytes_used, FILES - 20);
		assert_int_equal(usage_of(&fs).objects, FILES - 20);
		for (int i = 10; i < 30; i++)
			assert_int_equal(store(&fs, keys[i], 1, 1), 1);
		fs_close(&fs);
	}
	fs_open(&fs, dir, "");
	fs_free(&fs);
}

/* ---- Many at once -------------------------------------------------------------------------- */

typedef struct Watch {
	Fs *fs;
	atomic_bool stop;
	uint64_t most;
} Watch;

static void *
watch_main(void *user)
{
	Watch *watch = user;

	while (!atomic_load(&watch->stop)) {
		watch->most = MAX(watch->most, bytes_on_disk(watch->fs));
		g_usleep(500);
	}
	return NULL;
}

static void
test_holds_under_load(void **state)
{
	KvcMemoryObj objects[G_N_ELEMENTS(keys)];
	pthread_t thread;
	Watch watch;
	Fs fs;

	fs_new(&fs, CAPACITY ",use_odirect=false");
	watch = (Watch){.fs = &fs};
	assert_int_equal(pthread_create(&thread, NULL, watch_main, &watch), 0);
	for (uint32_t i = 0; i < G_N_ELEMENTS(keys); i++)
		objects[i] = object_new(MIB / 4, i);
	/* Sixteen in one task: those in flight count as well. */
	for (int round = 0; round < 3; round++)
		for (size_t i = 0; i < G_N_ELEMENTS(keys); i += 16)
			assert_true(store_many(&fs, keys + i, objects + i, 16) >= 0);
	atomic_store(&watch.stop, true);
	pthread_join(thread, NULL);
	assert_in_range(watch.most, MIB, N * MIB);
	assert_int_equal(usage_of(&fs).bytes_used, bytes_on_disk(&fs));
	for (uint32_t i = 0; i < G_N_ELEMENTS(keys); i++) {
		assert_int_equal(load(&fs, keys[i], MIB / 4, i), is_there(&fs, i));
		free(objects[i].data);
	}
	fs_free(&fs);
}

/* More in one task than there may be: each waits until those before it can be evicted. */
static void
test_more_than_there_is_room(void **state)
{
	KvcMemoryObj objects[3 * N];
	Fs fs;

	fs_new(&fs, CAPACITY);
	for (uint32_t i = 0; i < 3 * N; i++)
		objects[i] = object_new(MIB, i);
	assert_int_equal(store_many(&fs, keys, objects, 3 * N), 3 * N * MIB);
	assert_int_equal(usage_of(&fs).bytes_used, N * MIB);
	assert_int_equal(bytes_on_disk(&fs), N * MIB);
	assert_describes(&fs, "evicted", "20");
	assert_describes(&fs, "store_errors", "0");
	for (uint32_t i = 0; i < 3 * N; i++) {
		assert_int_equal(load(&fs, keys[i], MIB, i), is_there(&fs, i));
		free(objects[i].data);
	}
	fs_free(&fs);
}

/* ---- Temporary files ----------------------------------------------------------------------- */

static void
test_temp_dir(void **state)
{
	static const char dead[] = "scratch/tmp/.kvcfs.999999999.1.tmp";
	static const char theirs[] = "scratch/tmp/org-SEP-model@0x01000100@0@00000001.data";
	g_autoptr(KvcObjectKey) file = plain("a/b", "file"), p = chain("p");
	Fs fs;

	fs_new(&fs, ",relative_tmp_dir=scratch/tmp");
	g_autofree char *dir = g_strdup(fs.dir), *tmp = path_of(&fs, "scratch/tmp");
	put_file(&fs, dead, "x", 1);
	put_file(&fs, theirs, "x", 1);
	fs_close(&fs);
	g_usleep(20000);
	fs_open(&fs, dir, ",relative_tmp_dir=scratch/tmp,shard_dirs=true");
	for (int i = 0; i < 200 && exists(&fs, dead); i++)
		g_usleep(10000);
	assert_false(exists(&fs, dead));
	assert_describes(&fs, "orphans_removed", "1");
	assert_true(exists(&fs, theirs));
	assert_int_equal(store(&fs, keys[1], 5000, 1), 5000);
	assert_int_equal(store(&fs, file, 5000, 2), 5000);
	assert_int_equal(store(&fs, p, 5000, 3), 5000);
	assert_true(load(&fs, keys[1], 5000, 1));
	assert_true(load(&fs, file, 5000, 2));
	assert_true(load(&fs, p, 5000, 3));
	/* Files are made there: without it there are none, nor anywhere else. */
	g_autofree char *path = path_of(&fs, theirs);
	assert_int_equal(unlink(path), 0);
	assert_int_equal(rmdir(tmp), 0);
	put_file(&fs, "scratch/tmp", "in the way", 10);
	assert_int_equal(store(&fs, keys[2], 5000, 1), -ENOTDIR);
	assert_false(is_there(&fs, 2));
	fs_free(&fs);
}

static void
test_orphan_age(void **state)
{
	static const char old[] = ".kvcfs.999999999.1.tmp", young[] = ".kvcfs.999999999.2.tmp";
	static const char locked[] = ".kvcfs.999999999.3.tmp", alive[] = ".kvcfs.1.1.tmp";
	struct timespec times[2] = {{1000, 0}, {1000, 0}};
	Fs fs;

	fs_new(&fs, "");
	g_autofree char *dir = g_strdup(fs.dir);
	put_file(&fs, old, "x", 1);
	put_file(&fs, young, "x", 1);
	put_file(&fs, locked, "x", 1);
	put_file(&fs, alive, "x", 1);
	static const char *const aged[] = {old, locked, alive};
	for (size_t i = 0; i < G_N_ELEMENTS(aged); i++) {
		g_autofree char *path = path_of(&fs, aged[i]);

		assert_int_equal(utimensat(AT_FDCWD, path, times, 0), 0);
	}
	g_autofree char *path = path_of(&fs, locked);
	int fd = open(path, O_RDONLY);
	assert_int_equal(flock(fd, LOCK_EX), 0);
	g_usleep(20000);
	fs_close(&fs);
	fs_open(&fs, dir, ",orphan_age_s=2");
	for (int i = 0; i < 50 && exists(&fs, old); i++)
		g_usleep(10000);
	assert_false(exists(&fs, old));
	assert_true(exists(&fs, young));
	/* It goes when it is old enough, without another start. */
	for (int i = 0; i < 600 && exists(&fs, young); i++)
		g_usleep(10000);
	assert_false(exists(&fs, young));
	assert_true(exists(&fs, locked));
	assert_true(exists(&fs, alive));
	close(fd);
	/* Closing does not wait for the age. */
	put_file(&fs, young, "x", 1);
	g_usleep(20000);
	fs_close(&fs);
	int64_t begin = g_get_monotonic_time();
	fs_open(&fs, dir, ",orphan_age_s=3600");
	g_usleep(50000);
	fs_free(&fs);
	assert_true(g_get_monotonic_time() - begin < 60 * G_USEC_PER_SEC);
}

/* Another process with our pid has the names that we would use. */
static void
test_taken_names(void **state)
{
	Fs fs;

	fs_new(&fs, "");
	for (int i = 0; i < 40; i++) {
		g_autofree char *name = g_strdup_printf(".kvcfs.%d.%d.tmp", (int)getpid(), i);

		put_file(&fs, name, "x", 1);
	}
	assert_int_equal(store(&fs, keys[1], 100, 1), 100);
	assert_true(load(&fs, keys[1], 100, 1));
	fs_free(&fs);
}

/* What it does to the medium nobody sees from here; everything else is as without. */
static void
test_fsync(void **state)
{
	g_autoptr(KvcObjectKey) file = plain("a/b", "file"), moved = plain("c/d", "moved");
	Fs fs;

	fs_new(&fs, ",fsync=true,shard_dirs=true");
	assert_int_equal(store(&fs, keys[1], 5000, 1), 5000);
	assert_int_equal(store(&fs, file, 5000, 2), 5000);
	assert_int_equal(fs.ops->rename_key(fs.adapter, file, moved), 0);
	assert_true(load(&fs, moved, 5000, 2));
	assert_true(load(&fs, keys[1], 5000, 1));
	assert_true(delete_key(&fs, moved));
	assert_true(delete_key(&fs, keys[1]));
	assert_describes(&fs, "store_errors", "0");
	fs_free(&fs);
}

static void
test_bad_values(void **state)
{
	static const char *const bad[] = {
		"relative_tmp_dir=/tmp",     "relative_tmp_dir=a/../../b",
		"relative_tmp_dir=",	     "relative_tmp_dir=plain/x",
		"relative_tmp_dir=a//b",     "relative_tmp_dir=.",
		"max_capacity_gb=-1",	     "max_capacity_gb=much",
		"max_capacity_gb=1G",	     "orphan_age_s=-1",
		"orphan_age_s=1h",	     "fsync=perhaps",
		"relative_tmp_dir=there/it", "relative_tmp_dir=ab/cd",
	};
	g_autofree char *dir = dir_new(temp_parent());
	g_autofree char *there = g_build_filename(dir, "there", NULL);

	assert_true(g_file_set_contents(there, "x", 1, NULL));
	for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
		g_autofree char *text = g_strdup_printf("type=fs,base_path=%s,%s", dir, bad[i]);
		g_autofree char *name = g_strndup(bad[i], strcspn(bad[i], "="));
		g_autoptr(GError) error = NULL;
		KvcOptions *options;

		assert_null(kvc_l2_adapter_open(text, &options, &error));
		assert_non_null(strstr(error->message, name));
	}
	remove_tree(dir);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_evicts_least_recently_used),
		cmocka_unit_test(test_refuses),
		cmocka_unit_test(test_counts_at_start),
		cmocka_unit_test(test_counts_others),
		cmocka_unit_test(test_counts_renamed),
		cmocka_unit_test(test_removed_while_counted),
		cmocka_unit_test(test_holds_under_load),
		cmocka_unit_test(test_more_than_there_is_room),
		cmocka_unit_test(test_temp_dir),
		cmocka_unit_test(test_orphan_age),
		cmocka_unit_test(test_taken_names),
		cmocka_unit_test(test_fsync),
		cmocka_unit_test(test_bad_values),
	};

	return cmocka_run_group_tests(tests, make_keys, drop_keys);
}
