/* SPDX-License-Identifier: Apache-2.0 */

/* Its life: construction, work without L2, the end, and what is there after a restart. */

#include "tests/unit/storage-manager-fixture.h"

/* ---- Construction -------------------------------------------------------------------------- */

static void
assert_refused(const KvcStorageManagerConfig *config, const char *named)
{
	g_autoptr(GError) error = NULL;
	assert_null(kvc_storage_manager_new(config, &error));
	assert_non_null(error);
	if (!strstr(error->message, named))
		fail_msg("'%s' does not name '%s'", error->message, named);
}

static void
test_errors_of_construction_are_named(void **state)
{
	const char *many[KVC_MAX_ADAPTERS + 2] = {NULL};
	const char *const unknown[] = {MOCK, "type=nosuch", NULL};
	const char *const bad[] = {MOCK ",latency_ms=x", NULL};
	KvcStorageManagerConfig config = {.l1_size_bytes = L1_SIZE};
	(void)state;
	config.l1_size_bytes = 0;
	assert_refused(&config, "l1_size_bytes");
	config.l1_size_bytes = L1_SIZE;
	config.store_policy = "nosuch-store";
	assert_refused(&config, "nosuch-store");
	config.store_policy = NULL;
	config.prefetch_policy = "nosuch-prefetch";
	assert_refused(&config, "nosuch-prefetch");
	config.prefetch_policy = NULL;
	config.eviction_policy = "nosuch-eviction";
	assert_refused(&config, "nosuch-eviction");
	config.eviction_policy = NULL;
	config.l2_adapters = unknown;
	assert_refused(&config, "nosuch");
	assert_refused(&config, "l2.1");
	config.l2_adapters = bad;
	assert_refused(&config, "latency_ms");
	for (size_t i = 0; i <= KVC_MAX_ADAPTERS; i++)
		many[i] = MOCK;
	config.l2_adapters = many;
	assert_refused(&config, "17");
}

static void
test_most_adapters(void **state)
{
	const char *many[KVC_MAX_ADAPTERS + 1] = {NULL};
	Fixture *f = *state;
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++)
		many[i] = "type=mock,max_size_gb=0.01";
	KvcStorageManagerConfig config = {.l1_size_bytes = L1_SIZE, .l2_adapters = many};
	f->sm = kvc_storage_manager_new(&config, NULL);
	assert_non_null(f->sm);
	put(f, 1, 100);
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | 0xffff);
	assert_int_equal(delete_key(f, 1), 0);
	drain(f);
	assert_int_equal(look_up(f, 1, 2), 0);
}

/* ---- The key of a commit ------------------------------------------------------------------- */

static int
reserve_and_finish(Fixture *f, KvcObjectKey *reserved, KvcObjectKey *finished, KvcFinishMode mode)
{
	KvcL1Object *object;
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, reserved, 100, &object), 0);
	assert_int_equal(kvc_l1_object_set_size(object, 100), 0);
	return kvc_storage_manager_finish_write(f->sm, object, finished, mode);
}

static void
test_a_commit_takes_the_key_of_its_reservation(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	g_autoptr(KvcObjectKey) one = key_of(f, 1);
	g_autoptr(KvcObjectKey) two = key_of(f, 2);
	assert_int_equal(reserve_and_finish(f, one, NULL, KVC_FINISH_FIRST_WINS), 0);
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(reserve_and_finish(f, one, NULL, KVC_FINISH_REPLACE), 0);
	assert_int_equal(reserve_and_finish(f, NULL, NULL, KVC_FINISH_FIRST_WINS), -EINVAL);
	assert_int_equal(reserve_and_finish(f, NULL, NULL, KVC_FINISH_REPLACE), -EINVAL);
	assert_int_equal(reserve_and_finish(f, one, two, KVC_FINISH_REPLACE), -EINVAL);
	assert_int_equal(tiers(f, 2), 0);
	assert_status(f, "l1_objects", "1");
}

/* ---- Without L2 ---------------------------------------------------------------------------- */

static void
test_without_l2(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	assert_false(kvc_storage_manager_has_l2(f->sm));
	assert_false(kvc_storage_manager_has_shared_l2(f->sm));
	put(f, 1, 100);
	assert_int_equal(tiers(f, 1), L1);
	assert_in_l1(f, 1, 100, 0);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(flush(f, 2), -ENOENT);
	drain(f);
	assert_status(f, "health", "ok");
	assert_status(f, "l1_dirty_objects", "0");
	/* There is no copy to rely on. */
	assert_int_equal(evict(f, 1), -EBUSY);
	assert_int_equal(evict(f, 2), -ENOENT);
	assert_int_equal(load(f, 1, 3), 1);
	assert_int_equal(delete_key(f, 2), -ENOENT);
	assert_int_equal(lost(f), 0);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(lost(f), 1);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(delete_key(f, 1), -ENOENT);
	assert_int_equal(lost(f), 1);
}

static void
test_eviction_without_a_copy_loses_the_key_once(void **state)
{
	Fixture *f = *state;
	start(f, NULL, NULL);
	for (unsigned i = 0; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	/* The StoreController must have let go of them. */
	drain(f);
	assert_int_equal(lost(f), 0);
	put(f, 4, L1_SIZE / 4);
	assert_int_equal(lost(f), 1);
	assert_int_equal(tiers(f, 0), 0);
	assert_int_equal(tiers(f, 1), L1);
	assert_int_equal(stat_of(f, "l1_evicted_objects"), 1);
}

/* ---- Unfinished objects -------------------------------------------------------------------- */

static void
test_difference_3_unfinished_is_not_there(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object;
	KvcListEntry entry;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	start(f, MOCK, NULL);
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, key, 100, &object), 0);
	assert_int_equal(pwrite(kvc_l1_object_get_fd(object), "x", 1, 0), 1);
	assert_int_equal(tiers(f, 1), 0);
	assert_false(is_in_l1(f, 1));
	assert_int_equal(kvc_storage_manager_list(f->sm, f->scope, 7, 0, &entry, 1), 0);
	assert_int_equal(load(f, 1, 2), 0);
	assert_int_equal(flush(f, 1), -ENOENT);
	assert_int_equal(evict(f, 1), -ENOENT);
	assert_int_equal(delete_key(f, 1), -ENOENT);
	assert_status(f, "l1_staging_objects", "1");
	/* No room is ever made of it. */
	assert_int_equal(try_put(f, 2, L1_SIZE, 0), -ENOSPC);
	kvc_storage_manager_abort_write(f->sm, object);
	assert_status(f, "l1_used_bytes", "0");
	drain(f);
	assert_int_equal(stat_of(f, "stores"), 0);
	assert_int_equal(lost(f), 0);
}

static void
test_reservation_grows_and_fails(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object, *other;
	start(f, NULL, NULL);
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, NULL, 100, &object), 0);
	assert_int_equal(kvc_l1_object_get_reserved_bytes(object), PAGE);
	assert_int_equal(kvc_storage_manager_extend_write(f->sm, object, MIB), 0);
	assert_int_equal(kvc_l1_object_get_reserved_bytes(object), MIB);
	assert_int_equal(kvc_storage_manager_extend_write(f->sm, object, L1_SIZE + 1), -ENOSPC);
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, NULL, MIB + 1, &other), -ENOSPC);
	assert_false(kvc_l1_object_was_memory_full(object));
	kvc_storage_manager_abort_write(f->sm, object);
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, NULL, L1_SIZE, &other), 0);
	kvc_storage_manager_abort_write(f->sm, other);
}

/* ---- The end ------------------------------------------------------------------------------- */

static void
test_difference_6_stop_answers_every_handle(void **state)
{
	enum { N = 12 };
	Fixture *f = *state;
	Callbacks callbacks[N] = {0};
	start(f, MOCK ",latency_ms=40", NULL);
	for (unsigned i = 0; i < 4; i++)
		put_in_l2(f, i, 1000);
	for (unsigned i = 0; i < N; i++) {
		unsigned flags = i % 3 == 0   ? KVC_PREFETCH_HOLD
				 : i % 3 == 1 ? KVC_PREFETCH_URGENT
					      : 0;
		KvcPrefetchHandle *handle = prefetch_with(f, i % 4, 5, flags, 0, &callbacks[i]);
		if (i % 4 == 3)
			g_usleep(15000);
		if (i % 5 == 0)
			kvc_prefetch_handle_cancel(handle);
		kvc_prefetch_handle_drop(handle, on_freed);
	}
	stop(f);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(callbacks[i].freed, 1);
		assert_true(callbacks[i].planned <= 1 && callbacks[i].done <= 1);
	}
}

static void
test_difference_6_stop_with_loads_in_flight(void **state)
{
	Fixture *f = *state;
	Callbacks callbacks = {0};
	start(f, MOCK ",latency_ms=100", NULL);
	for (unsigned i = 0; i < 3; i++)
		put_in_l2(f, i, 100000);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 3, 0, 0, &callbacks);
	wait_until(stat_of(f, "loads") == 3);
	kvc_prefetch_handle_drop(handle, on_freed);
	stop(f);
	assert_int_equal(callbacks.freed, 1);
}

static void
test_difference_6_stop_answers_every_flush(void **state)
{
	Fixture *f = *state;
	Flushed flushed[3] = {0};
	start(f, MOCK ",latency_ms=100", NULL);
	for (unsigned i = 0; i < 3; i++) {
		g_autoptr(KvcObjectKey) key = key_of(f, i);
		put(f, i, 100);
		kvc_storage_manager_flush(f->sm, key, on_flushed, &flushed[i]);
		if (i == 0)
			wait_until(stat_of(f, "stores") > 0);
	}
	assert_int_equal(delete_key(f, 2), 0);
	stop(f);
	for (unsigned i = 0; i < 3; i++)
		assert_int_equal(count_of(&flushed[i]), 1);
}

/* ---- Listing ------------------------------------------------------------------------------- */

static char *
list(Fixture *f, KvcKeyScope *scope, unsigned spaces)
{
	GString *text = g_string_new(NULL);
	KvcListEntry entries[3];
	uint64_t after = 0;
	size_t n;
	while ((n = kvc_storage_manager_list(f->sm, scope, spaces, after, entries, 3)) > 0)
		for (size_t i = 0; i < n; i++) {
			g_string_append_printf(text, "%s%.8s", text->len ? " " : "",
					       (const char *)entries[i].key->chunk_hash);
			after = entries[i].info.sequence;
			kvc_object_key_unref(entries[i].key);
		}
	return g_string_free(text, FALSE);
}

static void
test_list_in_order(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 9; i > 4; i--)
		put(f, i, 100);
	drain(f);
	assert_int_equal(evict(f, 8), 0);
	assert_int_equal(delete_key(f, 7), 0);
	g_autofree char *text = list(f, f->scope, 1);
	assert_string_equal(text, "00000009 00000008 00000006 00000005");
	assert_int_equal(f->n_scopes, 1);
	g_autoptr(GPtrArray) scopes = kvc_storage_manager_list_scopes(f->sm);
	assert_int_equal(scopes->len, 1);
	assert_ptr_equal(scopes->pdata[0], f->scope);
	drain(f);
}

static char *
make_directory(Fixture *f)
{
	f->directory = g_dir_make_tmp("kvc-test-XXXXXX", NULL);
	assert_non_null(f->directory);
	return g_strdup_printf("type=fs,base_path=%s", f->directory);
}

static void
test_start_lists_what_is_stored(void **state)
{
	Fixture *f = *state;
	g_autofree char *fs = make_directory(f);
	g_autoptr(KvcKeyScope) other = kvc_key_scope_new("other", 2, 3, "salt", NULL);
	g_autoptr(KvcObjectKey) far = key_in(other, KVC_SPACE_CHUNK, 7);
	g_autoptr(KvcObjectKey) chain = key_in(f->scope, KVC_SPACE_PREFIX, 8);
	start(f, fs, NULL);
	assert_true(kvc_storage_manager_has_shared_l2(f->sm));
	for (unsigned i = 0; i < 400; i++)
		put(f, i, 1 + i);
	assert_int_equal(commit(f, far, 50, 9, KVC_FINISH_FIRST_WINS), 0);
	assert_int_equal(commit(f, chain, 60, 9, KVC_FINISH_REPLACE), 0);
	drain(f);
	stop(f);

	f->n_scopes = f->n_lost = 0;
	start(f, fs, NULL);
	assert_status(f, "l2.0.listed", "yes");
	assert_status(f, "keys", "402");
	assert_int_equal(stat_of(f, "listed_keys"), 402);
	assert_int_equal(f->n_scopes, 2);
	KvcObjectInfo info;
	for (unsigned i = 0; i < 400; i += 37) {
		g_autoptr(KvcObjectKey) key = key_of(f, i);
		assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
		assert_int_equal(info.tiers, A);
		assert_int_equal(info.bytes, 1 + i);
		assert_true(info.mtime_ns > 0);
	}
	g_autofree char *chains = list(f, f->scope, 1u << KVC_SPACE_PREFIX);
	assert_string_equal(chains, "00000008");
	/* Nothing was loaded; it can be. */
	assert_status(f, "l1_used_bytes", "0");
	assert_int_equal(load(f, 0, 5), 5);
	assert_in_l1(f, 4, 5, 0);
	assert_int_equal(evict(f, 4), 0);
	/* What is deleted is not listed again. */
	assert_int_equal(delete_key(f, 4), 0);
	assert_int_equal(kvc_storage_manager_delete(f->sm, far), 0);
	drain(f);
	stop(f);
	start(f, fs, NULL);
	assert_status(f, "keys", "400");
	assert_int_equal(tiers(f, 4), 0);
	assert_int_equal(kvc_storage_manager_stat(f->sm, far, &info), -ENOENT);
}

/* Of two adapters, each listed for itself. */
static void
test_start_lists_every_adapter(void **state)
{
	Fixture *f = *state;
	g_autofree char *fs = make_directory(f);
	start(f, fs, NULL);
	put(f, 1, 100);
	drain(f);
	stop(f);
	start(f, MOCK, fs);
	assert_int_equal(tiers(f, 1), B);
	assert_status(f, "l2.0.listed", "yes");
	assert_status(f, "l2.1.listed", "yes");
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

/* Somebody else puts an object there after the listing: a prefetch finds it and the index learns.
 */
static void
test_shared_adapter_is_asked_for_unknown_keys(void **state)
{
	Fixture *f = *state;
	g_autofree char *fs = make_directory(f);
	start(f, fs, NULL);
	KvcStorageManager *reader = g_steal_pointer(&f->sm);
	start(f, fs, NULL);
	put(f, 1, 100);
	drain(f);
	stop(f);
	f->sm = reader;
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 1);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_errors_of_construction_are_named),
		TEST(test_most_adapters),
		TEST(test_a_commit_takes_the_key_of_its_reservation),
		TEST(test_without_l2),
		TEST(test_eviction_without_a_copy_loses_the_key_once),
		TEST(test_difference_3_unfinished_is_not_there),
		TEST(test_reservation_grows_and_fails),
		TEST(test_difference_6_stop_answers_every_handle),
		TEST(test_difference_6_stop_with_loads_in_flight),
		TEST(test_difference_6_stop_answers_every_flush),
		TEST(test_list_in_order),
		TEST(test_start_lists_what_is_stored),
		TEST(test_start_lists_every_adapter),
		TEST(test_shared_adapter_is_asked_for_unknown_keys),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
