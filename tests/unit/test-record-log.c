/* SPDX-License-Identifier: Apache-2.0 */

/* A table of names and values, kept in a record log. */

#include "kvcache/record-log.h"

#include "engine/lock.h"
#include "tests/unit/log-fixture.h"

#include <sys/syscall.h>
#include <unistd.h>

#define FORMAT "test-table 3"

/* fdatasync(2) of this program, which takes as long as a test wants, and fails. */
static bool are_syncs_held; /* Atomic */
static int n_held;	    /* Atomic */
static bool fails_next;	    /* Atomic */

int
fdatasync(int fd)
{
	__atomic_fetch_add(&n_held, 1, __ATOMIC_RELAXED);
	while (__atomic_load_n(&are_syncs_held, __ATOMIC_RELAXED))
		g_usleep(1000);
	__atomic_fetch_sub(&n_held, 1, __ATOMIC_RELAXED);
	if (__atomic_exchange_n(&fails_next, false, __ATOMIC_RELAXED)) {
		errno = EIO;
		return -1;
	}
	return (int)syscall(SYS_fdatasync, fd);
}

static void
hold_syncs(bool hold)
{
	__atomic_store_n(&are_syncs_held, hold, __ATOMIC_RELAXED);
}

typedef struct Table {
	GHashTable *values; /* Protected by the log's lock */
	KvcRecordLog *log;
	uint64_t position; /* of the last record */
	int n_failed;	   /* Atomic: tries of which progress told */
	uint64_t synced;   /* Atomic */
} Table;

static bool
load(void *user, char *record)
{
	Table *table = user;
	g_auto(GStrv) fields = g_strsplit(record, " ", -1);
	if (g_strv_length(fields) == 3 && strcmp(fields[0], "set") == 0) {
		g_hash_table_replace(table->values, g_strdup(fields[1]), g_strdup(fields[2]));
		return true;
	}
	if (g_strv_length(fields) != 2 || strcmp(fields[0], "unset") != 0)
		return false;
	g_hash_table_remove(table->values, fields[1]);
	return true;
}

static size_t
count_live(void *user)
{
	return g_hash_table_size(((Table *)user)->values);
}

static GPtrArray *
snapshot(void *user)
{
	GPtrArray *items = g_ptr_array_new_with_free_func(g_free);
	GHashTableIter iter;
	const char *name, *value;
	g_hash_table_iter_init(&iter, ((Table *)user)->values);
	while (g_hash_table_iter_next(&iter, (void **)&name, (void **)&value))
		g_ptr_array_add(items, g_strdup_printf("set %s %s", name, value));
	return items;
}

static void
format_item(void *user, const void *item, GString *text)
{
	g_string_append(text, item);
}

static void
progress(void *user, uint64_t synced, int error)
{
	Table *table = user;
	__atomic_store_n(&table->synced, synced, __ATOMIC_RELAXED);
	__atomic_fetch_add(&table->n_failed, error < 0, __ATOMIC_RELAXED);
}

static bool
try_open(Table *table, const char *path, GError **error)
{
	KvcRecordLogConfig config = {
		.path = path,
		.format = FORMAT,
		.thread_name = "test-log",
		.load = load,
		.count_live = count_live,
		.snapshot = snapshot,
		.format_item = format_item,
		.progress = progress,
		.user = table,
	};
	*table = (Table){
		.values = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free),
	};
	table->log = kvc_record_log_open(&config, error);
	if (!table->log)
		g_hash_table_unref(table->values);
	return table->log != NULL;
}

static void
open_table(Table *table, const char *path)
{
	g_autoptr(GError) error = NULL;
	if (!try_open(table, path, &error))
		fail_msg("%s", error->message);
	kvc_record_log_start(table->log);
}

static void
close_table(Table *table)
{
	kvc_record_log_free(table->log);
	g_hash_table_unref(table->values);
}

static void
set(Table *table, const char *name, unsigned value)
{
	g_autofree char *record = g_strdup_printf("set %s %u", name, value);
	kvc_record_log_lock(table->log);
	g_hash_table_replace(table->values, g_strdup(name), g_strdup_printf("%u", value));
	table->position = kvc_record_log_append(table->log, record);
	kvc_record_log_unlock(table->log);
}

static void
unset(Table *table, const char *name)
{
	g_autofree char *record = g_strdup_printf("unset %s", name);
	kvc_record_log_lock(table->log);
	g_hash_table_remove(table->values, name);
	table->position = kvc_record_log_append(table->log, record);
	kvc_record_log_unlock(table->log);
}

static void
assert_value(Table *table, const char *name, const char *expected)
{
	const char *value = g_hash_table_lookup(table->values, name);
	if (g_strcmp0(value, expected) != 0)
		fail_msg("%s is %s, not %s", name, value, expected);
}

static bool
is_kept(Table *table, uint64_t position)
{
	kvc_record_log_lock(table->log);
	bool kept = kvc_record_log_is_kept(table->log, position);
	kvc_record_log_unlock(table->log);
	return kept;
}

static int
sync_table(Table *table)
{
	Synced synced = {0};
	kvc_record_log_sync(table->log, on_synced, &synced);
	return wait_synced(&synced);
}

static KvcRecordLogStatus
status_of(Table *table)
{
	KvcRecordLogStatus status;
	kvc_record_log_get_status(table->log, &status);
	return status;
}

/* Three values: a 1, b 2, c 3, in lines 2 to 4. */
static void
make_file(const char *path)
{
	Table table;
	open_table(&table, path);
	set(&table, "a", 1);
	set(&table, "b", 2);
	set(&table, "c", 3);
	close_table(&table);
}

/* ---- The file ------------------------------------------------------------------------------ */

static void
test_what_was_appended_is_there_again(void **state)
{
	Dir *dir = *state;
	Table table;
	make_file(dir->file);
	open_table(&table, dir->file);
	assert_value(&table, "a", "1");
	unset(&table, "a");
	set(&table, "b", 20);
	close_table(&table);
	open_table(&table, dir->file);
	assert_value(&table, "a", NULL);
	assert_value(&table, "b", "20");
	assert_value(&table, "c", "3");
	assert_int_equal(status_of(&table).corrupt, 0);
	close_table(&table);
	assert_false(file_exists(dir, "log.new"));
}

static void
assert_has_set_x(Dir *dir, unsigned value)
{
	g_autofree char *record = g_strdup_printf("set x %u\n", value);
	g_autofree char *text = read_file(dir->file);
	assert_non_null(strstr(text, record));
}

static void
test_settled_is_in_the_file_and_synced_is_told(void **state)
{
	Dir *dir = *state;
	Table table;
	open_table(&table, dir->file);
	for (unsigned i = 0; i < 30; i++) {
		set(&table, "x", i);
		kvc_record_log_settle(table.log);
		assert_has_set_x(dir, i);
	}
	assert_int_equal(sync_table(&table), 0);
	assert_int_equal(__atomic_load_n(&table.synced, __ATOMIC_RELAXED), table.position);
	/* Nobody asks: within a second or two. */
	set(&table, "x", 1000);
	wait_until(__atomic_load_n(&table.synced, __ATOMIC_RELAXED) == table.position);
	close_table(&table);
}

/* A SIGKILL takes nothing away that was appended while the disk is busy with a sync. */
static void
test_settled_is_in_the_file_during_a_sync(void **state)
{
	Dir *dir = *state;
	Table table;
	open_table(&table, dir->file);
	set(&table, "x", 1);
	hold_syncs(true);
	kvc_record_log_request_sync(table.log);
	wait_until(__atomic_load_n(&n_held, __ATOMIC_RELAXED) == 1);
	for (unsigned i = 2; i < 10; i++) {
		set(&table, "x", i);
		kvc_record_log_settle(table.log);
		assert_has_set_x(dir, i);
	}
	assert_int_equal(__atomic_load_n(&table.synced, __ATOMIC_RELAXED), 0);
	hold_syncs(false);
	assert_int_equal(sync_table(&table), 0);
	assert_int_equal(__atomic_load_n(&table.synced, __ATOMIC_RELAXED), table.position);
	close_table(&table);
}

/* It is told once, and mended by a new file. */
static void
test_a_failed_sync_is_one_failure(void **state)
{
	Dir *dir = *state;
	Table table;
	open_table(&table, dir->file);
	set(&table, "x", 1);
	kvc_record_log_settle(table.log);
	__atomic_store_n(&fails_next, true, __ATOMIC_RELAXED);
	kvc_record_log_request_sync(table.log);
	wait_until(status_of(&table).errors == 1);
	wait_until(status_of(&table).error == 0);
	assert_int_equal(sync_table(&table), 0);
	close_table(&table);
	assert_int_equal(__atomic_load_n(&table.n_failed, __ATOMIC_RELAXED), 1);
}

/* Every way to cut the file within its last record. */
static void
test_a_torn_end_is_cut(void **state)
{
	Dir *dir = *state;
	Table table;
	make_file(dir->file);
	gsize len;
	g_autofree char *text = NULL;
	assert_true(g_file_get_contents(dir->file, &text, &len, NULL));
	size_t last = len - 1;
	while (text[last - 1] != '\n')
		last--;
	for (size_t cut = last + 1; cut < len; cut++) {
		assert_true(g_file_set_contents(dir->file, text, (gssize)cut, NULL));
		open_table(&table, dir->file);
		assert_value(&table, "b", "2");
		assert_value(&table, "c", NULL);
		assert_int_equal(status_of(&table).corrupt, 0);
		set(&table, "d", 4);
		close_table(&table);
		open_table(&table, dir->file);
		assert_value(&table, "b", "2");
		assert_value(&table, "d", "4");
		assert_int_equal(status_of(&table).corrupt, 0);
		close_table(&table);
	}
}

/* What a loss of power leaves: the size grew, the bytes did not come. */
static void
test_an_end_of_zeros_is_cut(void **state)
{
	Dir *dir = *state;
	Table table;
	make_file(dir->file);
	assert_int_equal(truncate(dir->file, 8192), 0);
	open_table(&table, dir->file);
	assert_value(&table, "c", "3");
	assert_int_equal(status_of(&table).corrupt, 0);
	close_table(&table);
	g_autofree char *text = read_file(dir->file);
	assert_true(strlen(text) < 200);
}

static void
test_a_damaged_record_is_reported_and_nothing_else_lost(void **state)
{
	Dir *dir = *state;
	make_file(dir->file);
	gsize len;
	g_autofree char *text = NULL;
	assert_true(g_file_get_contents(dir->file, &text, &len, NULL));
	char *begin = strchr(text, '\n') + 1, *third = strchr(begin, '\n') + 1;
	char *end = strchr(third, '\n');
	g_autofree char *name_of_second = g_strndup(strstr(third, "set ") + 4, 1);
	/* Each byte of the third line but the newline, one after the other. */
	for (char *at = third; at < end; at++) {
		Table table;
		*at ^= 1;
		assert_true(g_file_set_contents(dir->file, text, (gssize)len, NULL));
		*at ^= 1;
		g_string_truncate(logged.text, 0);
		open_table(&table, dir->file);
		assert_int_equal(g_hash_table_size(table.values), 2);
		assert_value(&table, name_of_second, NULL);
		assert_int_equal(status_of(&table).corrupt, 1);
		close_table(&table);
		assert_non_null(strstr(logged.text->str, "/log: line 3 is damaged"));
	}
}

static void
test_another_format_is_left_alone(void **state)
{
	Dir *dir = *state;
	static const char *const texts[] = {"test-table 2\n", "test-table 3", "test-table 33\n",
					    "\n", "what is this?\n"};
	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
		Table table;
		g_autoptr(GError) error = NULL;
		assert_true(g_file_set_contents(dir->file, texts[i], -1, NULL));
		assert_false(try_open(&table, dir->file, &error));
		assert_non_null(strstr(error->message, dir->file));
		assert_non_null(strstr(error->message, FORMAT));
		g_autofree char *text = read_file(dir->file);
		assert_string_equal(text, texts[i]);
	}
}

static void
test_what_cannot_be_written_is_an_error(void **state)
{
	Dir *dir = *state;
	Table table;
	g_autoptr(GError) error = NULL;
	g_autofree char *file = g_build_filename(dir->path, "absent", "log", NULL);
	assert_false(try_open(&table, file, &error));
	assert_non_null(strstr(error->message, file));
	assert_non_null(strstr(error->message, g_strerror(ENOENT)));
}

static void
test_a_file_that_is_mostly_past_is_compacted(void **state)
{
	Dir *dir = *state;
	Table table;
	open_table(&table, dir->file);
	set(&table, "keep", 7);
	for (unsigned i = 0; i < 50000; i++)
		set(&table, "x", i);
	kvc_record_log_settle(table.log);
	assert_int_equal(sync_table(&table), 0);
	/* The check is before a write. */
	set(&table, "y", 1);
	assert_int_equal(sync_table(&table), 0);
	set(&table, "y", 2);
	assert_int_equal(sync_table(&table), 0);
	g_autofree char *text = read_file(dir->file);
	assert_true(strlen(text) < 100000);
	/* As after a SIGKILL: what is in the file now. */
	Table again;
	open_table(&again, copy_file(dir));
	assert_value(&again, "keep", "7");
	assert_value(&again, "x", "49999");
	assert_value(&again, "y", "2");
	close_table(&again);
	close_table(&table);
}

/* ---- A full disk --------------------------------------------------------------------------- */

static void
test_a_full_disk_is_counted_and_mended(void **state)
{
	Dir *dir = *state;
	Table table;
	open_table(&table, dir->file);
	set(&table, "before", 1);
	uint64_t before = table.position;
	assert_int_equal(sync_table(&table), 0);
	limit_files(40);
	set(&table, "during", 2);
	uint64_t during = table.position;
	wait_until(status_of(&table).error == -EFBIG);
	assert_int_equal(sync_table(&table), -EFBIG);
	set(&table, "late", 3);
	assert_true(is_kept(&table, before));
	assert_false(is_kept(&table, during));
	assert_false(is_kept(&table, table.position));
	wait_until(__atomic_load_n(&table.n_failed, __ATOMIC_RELAXED) >= 2);
	assert_true(status_of(&table).errors >= 2);
	/* The file is as it was. */
	Table old;
	copy_file(dir);
	limit_files(RLIM_INFINITY);
	open_table(&old, dir->copy);
	assert_value(&old, "before", "1");
	assert_value(&old, "during", NULL);
	close_table(&old);
	wait_until(status_of(&table).error == 0);
	assert_true(is_kept(&table, during));
	assert_int_equal(sync_table(&table), 0);
	open_table(&old, copy_file(dir));
	assert_value(&old, "before", "1");
	assert_value(&old, "during", "2");
	assert_value(&old, "late", "3");
	close_table(&old);
	close_table(&table);
}

static void
test_a_disk_that_is_full_at_the_start_is_no_error(void **state)
{
	Dir *dir = *state;
	Table table;
	make_file(dir->file);
	limit_files(30);
	signal(SIGXFSZ, SIG_IGN);
	open_table(&table, dir->file);
	assert_value(&table, "c", "3");
	assert_int_equal(status_of(&table).error, -EFBIG);
	limit_files(RLIM_INFINITY);
	wait_until(status_of(&table).error == 0);
	close_table(&table);
}

/* ---- Fields -------------------------------------------------------------------------------- */

static void
test_every_field_comes_back(void **state)
{
	for (unsigned round = 0; round < 5000; round++) {
		char text[32];
		size_t len = (size_t)g_random_int_range(0, sizeof(text));
		for (size_t i = 0; i < len; i++)
			text[i] = (char)g_random_int_range(1, 256);
		text[len] = '\0';
		g_autofree char *field = kvc_record_field_escape(text);
		g_autofree char *again = kvc_record_field_unescape(field);
		assert_string_equal(again, text);
		for (const char *c = field; *c; c++)
			assert_true(g_ascii_isgraph(*c));
	}
	assert_null(kvc_record_field_unescape(""));
	assert_null(kvc_record_field_unescape("a%zz"));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_what_was_appended_is_there_again),
		TEST_IN_DIR(test_settled_is_in_the_file_and_synced_is_told),
		TEST_IN_DIR(test_settled_is_in_the_file_during_a_sync),
		TEST_IN_DIR(test_a_failed_sync_is_one_failure),
		TEST_IN_DIR(test_a_torn_end_is_cut),
		TEST_IN_DIR(test_an_end_of_zeros_is_cut),
		TEST_IN_DIR(test_a_damaged_record_is_reported_and_nothing_else_lost),
		TEST_IN_DIR(test_another_format_is_left_alone),
		TEST_IN_DIR(test_what_cannot_be_written_is_an_error),
		TEST_IN_DIR(test_a_file_that_is_mostly_past_is_compacted),
		TEST_IN_DIR(test_a_full_disk_is_counted_and_mended),
		TEST_IN_DIR(test_a_disk_that_is_full_at_the_start_is_no_error),
		cmocka_unit_test(test_every_field_comes_back),
	};
	capture_log();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
