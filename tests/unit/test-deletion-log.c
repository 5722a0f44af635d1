/* SPDX-License-Identifier: Apache-2.0 */

/* Deletions that outlive the engine; the order of a deletion, its confirmation and later stores. */

#include "tests/unit/store-fixture.h"

#include "engine/deletion-log.h"
#include "engine/record-file.h"
#include "tests/unit/log-fixture.h"

#define HEADER "kvcachefs deletions 1\n"

/* A fake's location is its type, so that two have different ones. */
static void
describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	func(user, "health", "ok");
	func(user, "location", adapter->ops->type_name);
}

static void
name_adapters(Env *env, const char *first, const char *second)
{
	const char *const names[] = {first, second};
	for (size_t a = 0; a < env->context.n_adapters; a++) {
		env->fakes[a]->ops.type_name = names[a];
		env->fakes[a]->ops.describe = describe;
	}
}

static KvcDeletionLog *
open_log(const char *path, Env *env)
{
	g_autoptr(GError) error = NULL;
	KvcDeletionLog *log = kvc_deletion_log_open(path, &env->context, &error);
	if (!log)
		fail_msg("%s", error->message);
	return log;
}

static void
add_replayed(void *user, KvcObjectKey *key, size_t adapter, uint64_t id)
{
	g_autofree char *hex = kvc_object_key_hash_hex(key);
	assert_true(id > 0);
	g_ptr_array_add(user, g_strdup_printf("%zu %s", adapter, hex));
}

static int
compare_strings(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* What the log in FILE has for the adapters of ENV: "ADAPTER NUMBER" each, NUMBER of key_new(). */
static void
assert_replay(Env *env, const char *file, const char *expected)
{
	KvcDeletionLog *log = open_log(file, env);
	g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
	kvc_deletion_log_replay(log, add_replayed, lines);
	g_ptr_array_sort(lines, compare_strings);
	g_autoptr(GString) text = g_string_new(NULL);
	for (guint i = 0; i < lines->len; i++) {
		/* The hash is the number's last digits, as text. */
		const char *line = lines->pdata[i];
		g_string_append_printf(text, "%.2s%c ", line, line[strlen(line) - 1]);
	}
	assert_string_equal(text->str, expected);
	kvc_deletion_log_free(log);
}

static KvcDeletionLogStatus
status_of(KvcDeletionLog *log)
{
	KvcDeletionLogStatus status;
	kvc_deletion_log_get_status(log, &status);
	return status;
}

static int
sync_log(KvcDeletionLog *log)
{
	Synced synced = {0};
	kvc_deletion_log_sync(log, on_synced, &synced);
	return wait_synced(&synced);
}

/* ---- The log alone ------------------------------------------------------------------------- */

static void
test_what_is_not_confirmed_is_replayed(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(2, CAPACITY);
	name_adapters(env, "one", "two");
	KvcObjectKey **keys = keys_new(env, 4);
	KvcDeletionLog *log = open_log(dir->file, env);
	uint64_t ids[4], position;
	kvc_deletion_log_start(log, NULL, NULL);
	for (size_t i = 0; i < 4; i++)
		ids[i] = kvc_deletion_log_add(log, keys[i], i == 3 ? 2 : 3);
	assert_int_equal(status_of(log).pending, 7);
	assert_true(kvc_deletion_log_confirm(log, keys[0], 0, ids[0], &position));
	assert_true(position > 0);
	assert_true(kvc_deletion_log_confirm(log, keys[1], 0, ids[1], &position));
	assert_true(kvc_deletion_log_confirm(log, keys[1], 1, ids[1], &position));
	/* A second time, and where it was never deleted. */
	assert_true(kvc_deletion_log_confirm(log, keys[1], 1, ids[1], &position));
	assert_int_equal(position, 0);
	assert_true(kvc_deletion_log_confirm(log, keys[3], 0, ids[3], &position));
	assert_int_equal(position, 0);
	assert_int_equal(status_of(log).pending, 4);
	assert_int_equal(sync_log(log), 0);
	assert_replay(env, copy_file(dir), "0 2 1 0 1 2 1 3 ");
	kvc_deletion_log_free(log);
	assert_replay(env, dir->file, "0 2 1 0 1 2 1 3 ");
	keys_free(keys, 4);
	env_free(env);
}

static void
test_an_older_confirmation_is_none(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(1, CAPACITY);
	name_adapters(env, "one", NULL);
	g_autoptr(KvcObjectKey) key = key_new(env, 5);
	KvcDeletionLog *log = open_log(dir->file, env);
	kvc_deletion_log_start(log, NULL, NULL);
	uint64_t position, first = kvc_deletion_log_add(log, key, 1);
	uint64_t second = kvc_deletion_log_add(log, key, 1);
	assert_false(kvc_deletion_log_confirm(log, key, 0, first, &position));
	assert_int_equal(sync_log(log), 0);
	assert_replay(env, copy_file(dir), "0 5 ");
	assert_true(kvc_deletion_log_confirm(log, key, 0, second, &position));
	assert_int_equal(sync_log(log), 0);
	assert_replay(env, copy_file(dir), "");
	kvc_deletion_log_free(log);
	env_free(env);
}

/* By type and location, not by index; what is not configured is kept and counted. */
static void
test_a_deletion_is_of_one_store_only(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(2, CAPACITY), *other = env_new(1, CAPACITY);
	name_adapters(env, "one", "two");
	g_autoptr(KvcObjectKey) key = key_new(env, 1), key2 = key_new(env, 2);
	KvcDeletionLog *log = open_log(dir->file, env);
	kvc_deletion_log_start(log, NULL, NULL);
	kvc_deletion_log_add(log, key, 1);
	kvc_deletion_log_add(log, key2, 2);
	kvc_deletion_log_free(log);
	name_adapters(env, "two", "one");
	assert_replay(env, dir->file, "0 2 1 1 ");
	name_adapters(other, "three", NULL);
	log = open_log(dir->file, other);
	assert_int_equal(status_of(log).pending, 2);
	assert_int_equal(status_of(log).unknown, 2);
	kvc_deletion_log_free(log);
	assert_non_null(strstr(logged.text->str, "not configured: two two"));
	name_adapters(other, "one", NULL);
	assert_replay(other, dir->file, "0 1 ");
	log = open_log(dir->file, other);
	assert_int_equal(status_of(log).unknown, 1);
	kvc_deletion_log_free(log);
	assert_replay(env, dir->file, "0 2 1 1 ");
	env_free(other);
	env_free(env);
}

static void
test_two_stores_in_one_place_are_two(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(2, CAPACITY);
	name_adapters(env, "same", "same");
	g_autoptr(KvcObjectKey) key = key_new(env, 7);
	KvcDeletionLog *log = open_log(dir->file, env);
	kvc_deletion_log_start(log, NULL, NULL);
	kvc_deletion_log_add(log, key, 2);
	kvc_deletion_log_free(log);
	assert_replay(env, dir->file, "1 7 ");
	env_free(env);
}

static void
test_a_store_that_cannot_delete_has_none(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(1, CAPACITY);
	name_adapters(env, "one", NULL);
	env->fakes[0]->ops.delete_keys = NULL;
	g_autoptr(KvcObjectKey) key = key_new(env, 7);
	KvcDeletionLog *log = open_log(dir->file, env);
	kvc_deletion_log_start(log, NULL, NULL);
	kvc_deletion_log_add(log, key, 1);
	assert_int_equal(status_of(log).pending, 0);
	kvc_deletion_log_free(log);
	assert_replay(env, dir->file, "");
	env_free(env);
}

static void
test_damage_costs_one_deletion(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(1, CAPACITY);
	name_adapters(env, "one", NULL);
	KvcObjectKey **keys = keys_new(env, 3);
	KvcDeletionLog *log = open_log(dir->file, env);
	kvc_deletion_log_start(log, NULL, NULL);
	for (size_t i = 0; i < 3; i++)
		kvc_deletion_log_add(log, keys[i], 1);
	kvc_deletion_log_free(log);
	/* Lines: format, adapter, three deletions. The adapter's own line is not needed. */
	damage_line(dir->file, 2);
	damage_line(dir->file, 4);
	g_string_truncate(logged.text, 0);
	assert_replay(env, dir->file, "0 0 0 2 ");
	assert_non_null(strstr(logged.text->str, "line 2 is damaged"));
	assert_non_null(strstr(logged.text->str, "line 4 is damaged"));
	assert_int_equal(env_stat(env, deletion_log_corrupt), 2);
	keys_free(keys, 3);
	env_free(env);
}

static void
test_a_record_that_makes_no_sense_is_left_out(void **state)
{
	Dir *dir = *state;
	Env *env = env_new(1, CAPACITY);
	static const char *const records[] = {
		"delete",
		"delete 0123456789abcdef",
		"delete 0123456789abcdef nokey",
		"remove 0123456789abcdef kvc1:1::a",
		"delete 0123456789abcde kvc1:1::a",
		"adapter 0123456789abcdef fs",
	};
	name_adapters(env, "one", NULL);
	for (size_t i = 0; i < G_N_ELEMENTS(records); i++) {
		g_autoptr(GString) text = g_string_new(HEADER);
		kvc_record_line_append(text, records[i]);
		kvc_record_line_append(text, "delete 0123456789abcdef kvc1:1::a");
		assert_true(g_file_set_contents(dir->file, text->str, -1, NULL));
		KvcDeletionLog *log = open_log(dir->file, env);
		if (status_of(log).corrupt != 1)
			fail_msg("\"%s\" was taken", records[i]);
		assert_int_equal(status_of(log).unknown, 1);
		kvc_deletion_log_free(log);
	}
	env_free(env);
}

/* ---- With the StoreController -------------------------------------------------------------- */

/*
 * A log that is larger than LIMIT, because of deletions of a store that is not there: with no file
 * larger than LIMIT it cannot be written, and L1 can.
 */
#define LIMIT (64 << 10)

static void
make_large_file(Dir *dir)
{
	g_autoptr(GString) text = g_string_new(HEADER);
	g_autofree char *padding = g_strnfill(200, 'x');
	for (unsigned i = 0; text->len < 2 * LIMIT; i++) {
		g_autofree char *record =
			g_strdup_printf("delete 0123456789abcdef kvc1:1::%u%s", i, padding);
		kvc_record_line_append(text, record);
	}
	assert_true(g_file_set_contents(dir->file, text->str, -1, NULL));
}

static Bench
bench_logged(Dir *dir)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	name_adapters(b.env, "one", NULL);
	b.env->context.deletions = open_log(dir->file, b.env);
	kvc_store_controller_start(b.store);
	return b;
}

static void
bench_logged_free(Bench *b)
{
	kvc_store_controller_stop(b->store);
	kvc_deletion_log_free(b->env->context.deletions);
	b->env->context.deletions = NULL;
	bench_free(b);
}

/* As the StorageManager deletes. */
static void
delete_logged(Bench *b, KvcObjectKey *key)
{
	uint64_t id = kvc_deletion_log_add(b->env->context.deletions, key, 1);
	kvc_key_index_hide(b->env->context.index, key, 1, id);
	kvc_l1_manager_delete(b->env->context.l1, key, true);
	kvc_store_controller_submit_delete(b->store, key, 1, id);
	kvc_store_controller_settle(b->store);
	kvc_deletion_log_settle(b->env->context.deletions);
}

static void
hold_deletes(FakeAdapter *fake, bool hold)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_deletes = hold;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

static unsigned
count_log(FakeAdapter *fake, const char *what)
{
	unsigned n = 0;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->log->len; i++)
		n += g_str_has_prefix(fake->log->pdata[i], what);
	pthread_mutex_unlock(&fake->lock);
	return n;
}

/* At each step: what would a SIGKILL now, and a restart, delete? */
static void
test_written_again_is_never_deleted_by_a_replay(void **state)
{
	Dir *dir = *state;
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	hold_deletes(fake, true);
	delete_logged(&b, key);
	assert_int_equal(sync_log(b.env->context.deletions), 0);
	/* Not confirmed: deleted. */
	assert_replay(b.env, copy_file(dir), "0 1 ");
	/* Written again, visible at once, not stored before the deletion is confirmed. */
	env_write(b.env, key, 200, 1, KVC_FINISH_FIRST_WINS);
	assert_true(env_tiers(b.env, key) & KVC_TIER_L1);
	wait_until(count_log(fake, "delete") == 1);
	assert_int_equal(count_log(fake, "store"), 1);
	assert_replay(b.env, copy_file(dir), "0 1 ");
	/* The store is held, so all that can be seen is from before it was done. */
	fake->hold[FAKE_STORE] = true;
	hold_deletes(fake, false);
	wait_until(count_log(fake, "store") == 2);
	assert_replay(b.env, copy_file(dir), "");
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	bench_logged_free(&b);
}

static int
may_rename(void *user, bool is_resident)
{
	return 0;
}

static void
hold_renames(FakeAdapter *fake, bool hold)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_renames = hold;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

/* What is deleted under a name that the store does not know yet is not back under the one before.
 */
static void
test_a_deletion_is_also_of_what_is_not_renamed_yet(void **state)
{
	Dir *dir = *state;
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	KvcL1Manager *l1 = b.env->context.l1;
	kvc_key_scope_unref(b.env->scope);
	b.env->scope = kvc_key_scope_new_plain("directory", NULL);
	KvcObjectKey **keys = keys_new(b.env, 4);
	env_write(b.env, keys[1], 100, 0, KVC_FINISH_REPLACE);
	drain(&b);
	hold_renames(fake, true);
	assert_int_equal(kvc_l1_manager_rename(l1, keys[1], keys[2], may_rename, NULL), 0);
	assert_int_equal(kvc_l1_manager_rename(l1, keys[2], keys[3], may_rename, NULL), 0);
	delete_logged(&b, keys[3]);
	assert_int_equal(status_of(b.env->context.deletions).pending, 3);
	assert_replay(b.env, copy_file(dir), "0 1 0 2 0 3 ");
	/* A newer object of the old name is stored when the log no more says that it is deleted. */
	env_write(b.env, keys[1], 100, 1, KVC_FINISH_REPLACE);
	fake->hold[FAKE_STORE] = true;
	hold_renames(fake, false);
	wait_until(count_log(fake, "store") == 2);
	wait_until(status_of(b.env->context.deletions).pending == 0);
	assert_int_equal(sync_log(b.env->context.deletions), 0);
	assert_replay(b.env, copy_file(dir), "");
	fake_release(fake, FAKE_STORE);
	drain(&b);
	assert_int_equal(env_tiers(b.env, keys[1]), KVC_TIER_L1 | 1);
	for (unsigned i = 2; i < 4; i++)
		assert_false(fake_has(fake, keys[i], NULL));
	keys_free(keys, 4);
	bench_logged_free(&b);
}

static void
test_a_store_waits_for_a_log_that_cannot_be_written(void **state)
{
	Dir *dir = *state;
	make_large_file(dir);
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1), other = key_new(b.env, 2);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	env_write(b.env, other, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	hold_deletes(fake, true);
	delete_logged(&b, key);
	assert_int_equal(sync_log(b.env->context.deletions), 0);
	env_write(b.env, key, 200, 1, KVC_FINISH_FIRST_WINS);
	limit_files(LIMIT);
	hold_deletes(fake, false);
	/* Confirmed, but that is not in the file: a replay would delete a second object. */
	wait_until(env_stat(b.env, deletion_log_errors) >= 2);
	assert_int_equal(env_stat(b.env, deletes_completed), 1);
	assert_int_equal(count_log(fake, "store"), 2);
	assert_true(status_of(b.env->context.deletions).is_failing);
	limit_files(RLIM_INFINITY);
	wait_until(!status_of(b.env->context.deletions).is_failing);
	wait_until(count_log(fake, "store") == 3);
	drain(&b);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_replay(b.env, copy_file(dir), "");
	bench_logged_free(&b);
}

static void
test_deletions_go_on_in_memory_on_a_full_disk(void **state)
{
	Dir *dir = *state;
	make_large_file(dir);
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	KvcDeletionLog *log = b.env->context.deletions;
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1), kept = key_new(b.env, 2);
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	env_write(b.env, kept, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	limit_files(LIMIT);
	delete_logged(&b, kept);
	wait_until(status_of(log).is_failing);
	assert_true(sync_log(log) < 0);
	/* It is in no file: what is written again need not wait, and a drain does not. */
	delete_logged(&b, key);
	env_write(b.env, key, 200, 1, KVC_FINISH_FIRST_WINS);
	drain(&b);
	assert_int_equal(env_stat(b.env, deletes_completed), 2);
	assert_int_equal(count_log(fake, "store"), 3);
	assert_int_equal(env_tiers(b.env, key), KVC_TIER_L1 | 1);
	assert_true(status_of(log).is_failing);
	limit_files(RLIM_INFINITY);
	wait_until(!status_of(log).is_failing);
	assert_replay(b.env, copy_file(dir), "");
	bench_logged_free(&b);
}

/* An object is not dirty for ever: after some tries it is given up, and says so. */
static void
test_a_store_behind_a_dead_log_is_given_up(void **state)
{
	Dir *dir = *state;
	make_large_file(dir);
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	Flushed flushed = {0};
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	hold_deletes(fake, true);
	delete_logged(&b, key);
	assert_int_equal(sync_log(b.env->context.deletions), 0);
	limit_files(LIMIT);
	hold_deletes(fake, false);
	wait_until(env_stat(b.env, deletion_log_errors) >= 1);
	env_write(b.env, key, 60, 1, KVC_FINISH_FIRST_WINS);
	kvc_store_controller_flush(b.store, key, on_flushed, &flushed);
	wait_until(calls(&flushed) == 1);
	assert_int_equal(flushed.error, -EIO);
	assert_int_equal(env_stat(b.env, stores_failed), 1);
	assert_int_equal(count_log(fake, "store"), 0);
	limit_files(RLIM_INFINITY);
	bench_logged_free(&b);
}

static int
allow_rename(void *user, bool is_resident)
{
	return 0;
}

/* What a stop leaves is done by the next start. */
static void
test_a_stop_keeps_what_is_not_confirmed(void **state)
{
	Dir *dir = *state;
	Bench b = bench_logged(dir);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 3);
	b.env->fakes[0]->fail_deletes = 1000;
	delete_logged(&b, key);
	/* A drain need not wait for it: there is always a next run. */
	drain(&b);
	assert_true(env_stat(b.env, deletes_failed) >= 1);
	assert_int_equal(env_stat(b.env, deletes_completed), 0);
	bench_logged_free(&b);
	Env *env = env_new(1, CAPACITY);
	name_adapters(env, "one", NULL);
	assert_replay(env, dir->file, "0 3 ");
	env_free(env);
}

/* It is in no log: a drain that went without it would undo it. */
static void
test_a_drain_waits_for_a_rename(void **state)
{
	Dir *dir = *state;
	Bench b = bench_logged(dir);
	FakeAdapter *fake = b.env->fakes[0];
	g_autoptr(KvcObjectKey) old_key = key_new(b.env, 1);
	g_autoptr(KvcObjectKey) new_key = key_new(b.env, 2);
	env_write(b.env, old_key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	fake->hold_renames = true;
	assert_int_equal(
		kvc_l1_manager_rename(b.env->context.l1, old_key, new_key, allow_rename, NULL), 0);
	wait_until(fake_count(fake, "rename", old_key) == 1);
	assert_int_equal(kvc_store_controller_drain(b.store, 50 * KVC_MSEC_NS), -ETIMEDOUT);
	fake_release_renames(fake);
	drain(&b);
	assert_true(fake_has(fake, new_key, NULL));
	bench_logged_free(&b);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST_IN_DIR(test_what_is_not_confirmed_is_replayed),
		TEST_IN_DIR(test_an_older_confirmation_is_none),
		TEST_IN_DIR(test_a_deletion_is_of_one_store_only),
		TEST_IN_DIR(test_two_stores_in_one_place_are_two),
		TEST_IN_DIR(test_a_store_that_cannot_delete_has_none),
		TEST_IN_DIR(test_damage_costs_one_deletion),
		TEST_IN_DIR(test_a_record_that_makes_no_sense_is_left_out),
		TEST_IN_DIR(test_written_again_is_never_deleted_by_a_replay),
		TEST_IN_DIR(test_a_deletion_is_also_of_what_is_not_renamed_yet),
		TEST_IN_DIR(test_a_store_waits_for_a_log_that_cannot_be_written),
		TEST_IN_DIR(test_deletions_go_on_in_memory_on_a_full_disk),
		TEST_IN_DIR(test_a_store_behind_a_dead_log_is_given_up),
		TEST_IN_DIR(test_a_stop_keeps_what_is_not_confirmed),
		TEST_IN_DIR(test_a_drain_waits_for_a_rename),
	};
	capture_log();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
