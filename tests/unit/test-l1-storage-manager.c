/* SPDX-License-Identifier: Apache-2.0 */

/* What the StorageManager offers of its L1Manager: reserve modes, owners, clear, dump, leaks. */

#include "tests/unit/storage-manager-fixture.h"

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[8192]; /* Protected by log_lock: what was logged, one a line */

static GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer user)
{
	pthread_mutex_lock(&log_lock);
	for (gsize i = 0; i < n; i++)
		if (strcmp(fields[i].key, "MESSAGE") == 0) {
			g_strlcat(log_text, fields[i].value, sizeof(log_text));
			g_strlcat(log_text, "\n", sizeof(log_text));
		}
	pthread_mutex_unlock(&log_lock);
	return G_LOG_WRITER_HANDLED;
}

/* What the dump says of key NUMBER (transfer full), or NULL. */
static char *
dump_of(Fixture *f, unsigned number, bool held_only)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	g_autofree char *name = kvc_object_key_to_string(key);
	Wanted wanted = {name, NULL};
	kvc_storage_manager_dump_l1(f->sm, held_only, find_line, &wanted);
	return wanted.value;
}

static bool
is_held(Fixture *f, unsigned number)
{
	g_autofree char *line = dump_of(f, number, true);
	return line != NULL;
}

static void
assert_dump(Fixture *f, unsigned number, const char *part)
{
	g_autofree char *line = dump_of(f, number, false);
	if (!line || !strstr(line, part))
		fail_msg("\"%s\" is not in \"%s\"", part, line ? line : "(nothing)");
}

/* ---- Modes --------------------------------------------------------------------------------- */

static void
reserve_two(Fixture *f, KvcReserveMode mode, int first, int second)
{
	KvcWrite writes[] = {{.key = key_of(f, 1), .bytes = 100},
			     {.key = key_of(f, 2), .bytes = 100}};
	assert_int_equal(kvc_storage_manager_reserve_writes(f->sm, writes, 2, mode),
			 (first == 0) + (second == 0));
	assert_int_equal(writes[0].error, first);
	assert_int_equal(writes[1].error, second);
	for (size_t i = 0; i < 2; i++) {
		assert_true((writes[i].object != NULL) == (writes[i].error == 0));
		if (writes[i].object)
			kvc_storage_manager_abort_write(f->sm, writes[i].object);
		kvc_object_key_unref(writes[i].key);
	}
}

static void
test_reserve_modes(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	put(f, 1, 100);
	reserve_two(f, KVC_RESERVE_NEW, -EEXIST, 0);
	reserve_two(f, KVC_RESERVE_UPDATE, 0, -ENOENT);
	reserve_two(f, KVC_RESERVE_ALL, 0, 0);
	assert_in_l1(f, 1, 100, 0);
	KvcWrite write = {.bytes = L1_SIZE + 1};
	assert_int_equal(kvc_storage_manager_reserve_writes(f->sm, &write, 1, KVC_RESERVE_ALL), 0);
	assert_int_equal(write.error, -ENOSPC);
	assert_null(write.object);
}

/* ---- Owners -------------------------------------------------------------------------------- */

static void
test_owners_are_in_the_dump(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	KvcPrefetchParams params = {.keys = &key, .n_keys = 1, .read_locks = 2};
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(f->sm, &params);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 1);
	assert_dump(f, 1, "resident bytes=100 charged_bytes=4096 read_locks=2 held by prefetch ");
	assert_dump(f, 1, " x2 0.");
	/* What is taken out of the handle is its taker's, who may name himself. */
	KvcL1Object *object = kvc_prefetch_handle_take_object(handle, 0);
	assert_dump(f, 1, "user 0 x1 0.");
	kvc_storage_manager_move_read_lock(f->sm, object, KVC_OWNER_USER,
					   kvc_lock_owner("reader", 9));
	assert_dump(f, 1, "reader 9 x1 0.");
	assert_dump(f, 1, "prefetch ");
	kvc_prefetch_handle_drop(handle, NULL);
	kvc_storage_manager_finish_read_for(f->sm, object, kvc_lock_owner("reader", 9));
	assert_false(is_held(f, 1));
	assert_dump(f, 1, "read_locks=0");
}

/* A load and a store are owners too: both are given time to be seen. */
static void
test_stores_and_loads_are_in_the_dump(void **state)
{
	Fixture *f = *state;
	start(f, "type=mock,max_size_gb=0.1,latency_ms=300", NULL);
	put(f, 1, 100);
	char *line = NULL;
	wait_until((line = dump_of(f, 1, true)) != NULL);
	assert_non_null(strstr(line, " dirty held by store to adapter 0 x1 "));
	g_free(line);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	KvcPrefetchParams params = {.keys = &key, .n_keys = 1};
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(f->sm, &params);
	wait_until((line = dump_of(f, 1, true)) != NULL);
	assert_non_null(strstr(line, "staging bytes=0 charged_bytes=4096 read_locks=0 temporary "
				     "held by load 0 "));
	g_free(line);
	assert_int_equal(kvc_prefetch_handle_wait(handle, 20 * KVC_SEC_NS), 0);
	assert_dump(f, 1,
		    "resident bytes=100 charged_bytes=4096 read_locks=1 temporary held by "
		    "prefetch ");
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
test_leaked_lock_is_named(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	g_autofree char *name = kvc_object_key_to_string(key);
	KvcL1Object *object = try_read(f, 1);
	kvc_storage_manager_move_read_lock(f->sm, object, KVC_OWNER_USER,
					   kvc_lock_owner("reader", 9));
	assert_int_equal(stat_of(f, "l1_leaked_locks"), 0);
	assert_int_equal(stat_of(f, "l1_expired_locks"), 0);
	log_text[0] = '\0';
	stop(f);
	g_autofree char *expected =
		g_strdup_printf("l1: leaked: %s: 1 read locks of reader 9, ", name);
	assert_non_null(strstr(log_text, expected));
}

static void
test_what_is_given_back_is_no_leak(void **state)
{
	Fixture *f = *state;
	log_text[0] = '\0';
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_in_l1(f, 1, 100, 0);
	stop(f);
	assert_null(strstr(log_text, "leaked"));
}

/* ---- Clearing ------------------------------------------------------------------------------ */

static void
test_clear_l1(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	put(f, 2, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
	wait_until(!is_held(f, 1) && !is_held(f, 2));
	KvcL1Object *object = try_read(f, 2);
	assert_int_equal(kvc_storage_manager_clear_l1(f->sm, false), 1);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(tiers(f, 2), A | L1);
	assert_int_equal(kvc_storage_manager_clear_l1(f->sm, true), 1);
	assert_int_equal(tiers(f, 2), A);
	assert_true(has_content(object, 100, byte_of(2, 0)));
	kvc_storage_manager_finish_read(f->sm, object);
	assert_int_equal(lost(f), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_reserve_modes),
		TEST(test_owners_are_in_the_dump),
		TEST(test_stores_and_loads_are_in_the_dump),
		TEST(test_leaked_lock_is_named),
		TEST(test_what_is_given_back_is_no_leak),
		TEST(test_clear_l1),
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
