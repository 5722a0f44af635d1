/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/dir-log.h"

#include "engine/record-file.h"
#include "tests/unit/log-fixture.h"

static int n_failed; /* Atomic */

static void
on_failed(void *user)
{
	__atomic_fetch_add(&n_failed, 1, __ATOMIC_RELAXED);
}

static KvcfsDirLog *
open_log(const char *path)
{
	g_autoptr(GError) error = NULL;
	KvcfsDirLog *log = kvcfs_dir_log_open(path, on_failed, NULL, &error);
	if (!log)
		fail_msg("%s", error->message);
	return log;
}

static void
add(KvcfsDirLog *log, const char *path, mode_t mode, uid_t uid)
{
	KvcfsDirEntry entry = {(char *)path, mode, uid, uid + 1};
	kvcfs_dir_log_add(log, &entry);
}

static void
append_entry(void *user, const KvcfsDirEntry *entry)
{
	g_string_append_printf(user, "%s %o %u %u\n", entry->path, entry->mode, entry->uid,
			       entry->gid);
}

static void
assert_entries(KvcfsDirLog *log, const char *expected)
{
	g_autoptr(GString) text = g_string_new(NULL);
	kvcfs_dir_log_foreach(log, append_entry, text);
	assert_string_equal(text->str, expected);
}

/* The same in a log that is opened as after a SIGKILL, and in one after a proper end. */
static void
assert_kept(Dir *dir, KvcfsDirLog **log, const char *expected)
{
	Synced synced = {0};
	kvcfs_dir_log_settle(*log);
	kvcfs_dir_log_sync(*log, on_synced, &synced);
	assert_int_equal(wait_synced(&synced), 0);
	KvcfsDirLog *copy = open_log(copy_file(dir));
	assert_entries(copy, expected);
	kvcfs_dir_log_free(copy);
	kvcfs_dir_log_free(*log);
	*log = open_log(dir->file);
	assert_entries(*log, expected);
}

static void
test_directories_are_remembered(void **state)
{
	Dir *dir = *state;
	KvcfsDirLog *log = open_log(dir->file);
	assert_entries(log, "");
	add(log, "m/@01000100", 0700, 3);
	add(log, "m", 01777, 0);
	add(log, "with blank\nand line", 0755, 5);
	assert_kept(dir, &log,
		    "m 1777 0 1\n"
		    "m/@01000100 700 3 4\n"
		    "with blank\nand line 755 5 6\n");
	kvcfs_dir_log_remove(log, "m/@01000100");
	kvcfs_dir_log_remove(log, "absent");
	add(log, "m", 0711, 8);
	KvcfsDirEntry changed = {(char *)"with blank\nand line", 0500, 1, 2};
	kvcfs_dir_log_update(log, &changed);
	changed.path = (char *)"never made";
	kvcfs_dir_log_update(log, &changed);
	assert_kept(dir, &log, "m 711 8 9\nwith blank\nand line 500 1 2\n");
	kvcfs_dir_log_free(log);
}

static void
test_a_rename_moves_all_below(void **state)
{
	Dir *dir = *state;
	KvcfsDirLog *log = open_log(dir->file);
	add(log, "a", 0700, 1);
	add(log, "a/b", 0701, 1);
	add(log, "a/b/c", 0702, 1);
	add(log, "ab", 0703, 1);
	add(log, "z", 0704, 1);
	kvcfs_dir_log_rename(log, "a", "z");
	assert_kept(dir, &log, "ab 703 1 2\nz 700 1 2\nz/b 701 1 2\nz/b/c 702 1 2\n");
	kvcfs_dir_log_rename(log, "z/b", "ab/x");
	kvcfs_dir_log_rename(log, "unknown", "other");
	assert_kept(dir, &log, "ab 703 1 2\nab/x 701 1 2\nab/x/c 702 1 2\nz 700 1 2\n");
	/* What an engine made has no record, what somebody made below it has. */
	kvcfs_dir_log_remove(log, "ab");
	kvcfs_dir_log_rename(log, "ab", "q");
	assert_kept(dir, &log, "q/x 701 1 2\nq/x/c 702 1 2\nz 700 1 2\n");
	kvcfs_dir_log_free(log);
}

static void
test_an_older_format_is_left_alone(void **state)
{
	Dir *dir = *state;
	static const char text[] = "kvcachefs directories 0\nm\n";
	g_autoptr(GError) error = NULL;
	assert_true(g_file_set_contents(dir->file, text, -1, NULL));
	assert_null(kvcfs_dir_log_open(dir->file, on_failed, NULL, &error));
	assert_non_null(strstr(error->message, dir->file));
	g_autofree char *after = read_file(dir->file);
	assert_string_equal(after, text);
}

static void
test_nonsense_with_a_good_checksum_is_left_out(void **state)
{
	Dir *dir = *state;
	static const char *const records[] = {"mkdir a 755 1",
					      "mkdir a 855 1 1",
					      "mkdir a 10000 1 1",
					      "mkdir a 755 -1 1",
					      "mkdir a 755 1 1 1",
					      "rmdir",
					      "rename a",
					      "chmod a",
					      "mkdir a% 755 1 1",
					      "",
					      "mkdir a 755 1 4294967296"};
	for (size_t i = 0; i < G_N_ELEMENTS(records); i++) {
		g_autoptr(GString) text = g_string_new("kvcachefs directories 1\n");
		kvc_record_line_append(text, "mkdir before 755 1 2");
		kvc_record_line_append(text, records[i]);
		kvc_record_line_append(text, "mkdir past 755 1 2");
		assert_true(g_file_set_contents(dir->file, text->str, -1, NULL));
		KvcfsDirLog *log = open_log(dir->file);
		KvcRecordLogStatus status;
		kvcfs_dir_log_get_status(log, &status);
		if (status.corrupt != 1)
			fail_msg("\"%s\" was taken", records[i]);
		assert_entries(log, "before 755 1 2\npast 755 1 2\n");
		kvcfs_dir_log_free(log);
	}
}

static void
test_a_full_disk_is_told_and_mended(void **state)
{
	Dir *dir = *state;
	KvcfsDirLog *log = open_log(dir->file);
	KvcRecordLogStatus status;
	Synced synced = {0}, again = {0};
	__atomic_store_n(&n_failed, 0, __ATOMIC_RELAXED);
	add(log, "before", 0755, 1);
	kvcfs_dir_log_sync(log, on_synced, &synced);
	assert_int_equal(wait_synced(&synced), 0);
	limit_files(64);
	add(log, "during", 0755, 1);
	wait_until(__atomic_load_n(&n_failed, __ATOMIC_RELAXED) > 0);
	kvcfs_dir_log_get_status(log, &status);
	assert_int_equal(status.error, -EFBIG);
	assert_entries(log, "before 755 1 2\nduring 755 1 2\n");
	limit_files(RLIM_INFINITY);
	do
		kvcfs_dir_log_get_status(log, &status);
	while (status.error);
	kvcfs_dir_log_sync(log, on_synced, &again);
	assert_int_equal(wait_synced(&again), 0);
	assert_kept(dir, &log, "before 755 1 2\nduring 755 1 2\n");
	kvcfs_dir_log_free(log);
}

static void
test_without_a_log_nothing_is_remembered(void **state)
{
	KvcRecordLogStatus status = {.error = -1};
	Synced synced = {0};
	add(NULL, "a", 0755, 1);
	kvcfs_dir_log_rename(NULL, "a", "b");
	kvcfs_dir_log_remove(NULL, "b");
	kvcfs_dir_log_settle(NULL);
	kvcfs_dir_log_sync(NULL, on_synced, &synced);
	assert_int_equal(wait_synced(&synced), 0);
	assert_entries(NULL, "");
	kvcfs_dir_log_get_status(NULL, &status);
	assert_int_equal(status.error, 0);
	kvcfs_dir_log_free(NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_directories_are_remembered),
		TEST_IN_DIR(test_a_rename_moves_all_below),
		TEST_IN_DIR(test_an_older_format_is_left_alone),
		TEST_IN_DIR(test_nonsense_with_a_good_checksum_is_left_out),
		TEST_IN_DIR(test_a_full_disk_is_told_and_mended),
		cmocka_unit_test(test_without_a_log_nothing_is_remembered),
	};
	capture_log();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
