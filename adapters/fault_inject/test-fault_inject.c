/* SPDX-License-Identifier: Apache-2.0 */

/* Each fault, and each way to select what it happens to, over the mock. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/io.h>
#include <kvcache/registry.h>

#define INNER "type=fault_inject,inner=type=mock\\,max_size_gb=1"
#define N 8
#define BYTES 1000

typedef struct Fixture {
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcOptions *options;
	KvcObjectKey *keys[N];
	KvcMemoryObj objects[N]; /* filled with 'a' and on */
	char data[N][4096];
} Fixture;

static Fixture *
fixture_new(const char *options)
{
	Fixture *f = g_new0(Fixture, 1);
	g_autofree char *specification = g_strconcat(INNER, options, NULL);
	g_autoptr(GError) error = NULL;
	KvcKeyScope *scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);

	f->adapter = kvc_l2_adapter_open(specification, &f->options, &error);
	if (!f->adapter)
		fail_msg("%s: %s", specification, error->message);
	f->ops = f->adapter->ops;
	for (int i = 0; i < N; i++) {
		char name[5] = {'k', 'e', 'y', (char)('0' + i)};

		f->keys[i] = kvc_object_key_new(scope, KVC_SPACE_CHUNK, name, 4, NULL);
		memset(f->data[i], 'a' + i, BYTES);
		f->objects[i] = (KvcMemoryObj){f->data[i], BYTES, 4096, NULL};
	}
	kvc_key_scope_unref(scope);
	return f;
}

static void
fixture_free(Fixture *f)
{
	f->ops->close(f->adapter);
	kvc_options_free(f->options);
	for (int i = 0; i < N; i++)
		kvc_object_key_unref(f->keys[i]);
	g_free(f);
}

static bool
has_event(int fd, int ms)
{
	struct pollfd event = {fd, POLLIN, 0};

	return poll(&event, 1, ms) == 1;
}

static void
await_event(int fd)
{
	assert_true(has_event(fd, 20000));
	kvc_eventfd_drain(fd);
}

static int64_t
store_n(Fixture *f, size_t n)
{
	KvcL2TaskId id = f->ops->submit_store_task(f->adapter, f->keys, f->objects, n);
	KvcL2StoreResult result;

	await_event(f->ops->get_store_event_fd(f->adapter));
	assert_int_equal(f->ops->pop_completed_store_tasks(f->adapter, &result, 1), 1);
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

static KvcBitmap *
lookup(Fixture *f, KvcL2ObjectInfo *info)
{
	KvcL2TaskId id = f->ops->submit_lookup_and_lock_task(f->adapter, f->keys, N);
	KvcBitmap *found = kvc_bitmap_new(N);

	memset(info, 0, N * sizeof(*info));
	await_event(f->ops->get_lookup_and_lock_event_fd(f->adapter));
	assert_int_equal(f->ops->query_lookup_and_lock_result(f->adapter, id, found, info), 1);
	return found;
}

/* Into memory of 'x'. */
static KvcBitmap *
load(Fixture *f, char (*data)[4096])
{
	KvcMemoryObj objects[N];
	KvcBitmap *loaded = kvc_bitmap_new(N);

	for (int i = 0; i < N; i++) {
		memset(data[i], 'x', sizeof(data[i]));
		objects[i] = (KvcMemoryObj){data[i], BYTES, 4096, NULL};
	}
	KvcL2TaskId id = f->ops->submit_load_task(f->adapter, f->keys, objects, N);
	await_event(f->ops->get_load_event_fd(f->adapter));
	assert_int_equal(f->ops->query_load_result(f->adapter, id, loaded), 1);
	return loaded;
}

/* All but the bits of MASK are set. */
static void
assert_all_but(const KvcBitmap *bits, unsigned mask)
{
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(kvc_bitmap_test(bits, i), !(mask >> i & 1));
}

static uint64_t count; /* of count_line */

static void
count_line(void *user, const char *name, const char *value)
{
	if (!strcmp(name, user))
		count = g_ascii_strtoull(value, NULL, 10);
}

static uint64_t
get_count(Fixture *f, const char *name)
{
	count = UINT64_MAX;
	f->ops->describe(f->adapter, count_line, (void *)name);
	return count;
}

/* ---- Loads and what selects ---------------------------------------------------------------- */

/* As LMCache's: found, but not loaded. */
static void
test_by_position(void **state)
{
	Fixture *f = fixture_new(",gap_indices=1:5");
	KvcL2ObjectInfo info[N];
	char data[N][4096];

	assert_int_equal(store_n(f, N), N * BYTES);
	g_autoptr(KvcBitmap) found = lookup(f, info);
	assert_all_but(found, 0);
	g_autoptr(KvcBitmap) loaded = load(f, data);
	assert_all_but(loaded, 1 << 1 | 1 << 5);
	assert_int_equal(get_count(f, "faults"), 2);
	fixture_free(f);
}

static void
test_by_key(void **state)
{
	Fixture *f = fixture_new(",drop_chunk_hashes=6b657932\\,6b657930"); /* key2, key0 */
	char data[N][4096];

	store_n(f, N);
	g_autoptr(KvcBitmap) loaded = load(f, data);
	assert_all_but(loaded, 1 << 2 | 1 << 0);
	fixture_free(f);
}

/* The same keys in every run of a seed, others with another one; redrawn also in one run. */
static void
test_by_rate(void **state)
{
	static const char *const options[] = {",rate=0.5,seed=3", ",rate=0.5,seed=3",
					      ",rate=0.5,seed=4", ",rate=0.5,seed=3,redraw=true"};
	unsigned misses[4][6] = {{0}};

	for (int run = 0; run < 4; run++) {
		Fixture *f = fixture_new(options[run]);
		char data[N][4096];

		store_n(f, N);
		for (int round = 0; round < 6; round++) {
			g_autoptr(KvcBitmap) loaded = load(f, data);

			for (unsigned i = 0; i < N; i++)
				misses[run][round] |= !kvc_bitmap_test(loaded, i) << i;
		}
		fixture_free(f);
	}
	assert_in_range(misses[0][0], 1, (1 << N) - 2); /* some, not all */
	for (int round = 0; round < 6; round++)
		assert_int_equal(misses[0][round], misses[0][0]);
	assert_memory_equal(misses[0], misses[1], sizeof(misses[0]));
	assert_int_not_equal(misses[0][0], misses[2][0]);
	assert_memory_not_equal(misses[0], misses[3], sizeof(misses[0]));
}

static void
test_max_faults(void **state)
{
	Fixture *f = fixture_new(",rate=1,max_faults=3");
	char data[N][4096];

	store_n(f, N);
	g_autoptr(KvcBitmap) first = load(f, data);
	assert_all_but(first, 7);
	g_autoptr(KvcBitmap) second = load(f, data);
	assert_all_but(second, 0);
	fixture_free(f);
}

static void
test_short_and_corrupt_loads(void **state)
{
	static const char *const names[] = {"load_short", "load_corrupt", "load_silent"};

	for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autofree char *options = g_strconcat(",gap_indices=2,faults=", names[i], NULL);
		Fixture *f = fixture_new(options);
		char data[N][4096];

		store_n(f, N);
		g_autoptr(KvcBitmap) loaded = load(f, data);
		assert_all_but(loaded, i == 2 ? 0 : 1 << 2);
		for (int j = 0; j < N; j++)
			assert_int_equal(memcmp(data[j], f->data[j], BYTES) != 0, j == 2);
		assert_memory_equal(data[2], f->data[2], BYTES / 2);
		assert_int_equal(data[2][BYTES], 'x');
		fixture_free(f);
	}
}

/* ---- Stores, lookups, unlocks, deletions --------------------------------------------------- */

static void
test_store_error(void **state)
{
	Fixture *f = fixture_new(",faults=store_error,gap_indices=1,error=ENOSPC,max_faults=2");
	KvcL2ObjectInfo info[N];

	assert_int_equal(store_n(f, N), -ENOSPC);
	g_autoptr(KvcBitmap) found = lookup(f, info);
	assert_all_but(found, 1 << 1);
	assert_int_equal(store_n(f, N), -ENOSPC);
	assert_int_equal(store_n(f, N), BYTES);
	fixture_free(f);
}

static void
test_store_error_of_all(void **state)
{
	Fixture *f = fixture_new(",faults=store_error,rate=1");

	assert_int_equal(store_n(f, 1), -EIO);
	assert_int_equal(store_n(f, N), -EIO);
	fixture_free(f);
}

static void
test_lookup_error(void **state)
{
	Fixture *f = fixture_new(",faults=lookup_error,gap_indices=3,error=ECONNREFUSED");
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N);
	KvcL2ObjectInfo info[N];
	KvcBreakerStatus status;

	f->adapter->breaker = kvc_breaker_new(INT64_C(3600) * 1000000000, 0);
	store_n(f, N);
	for (int i = 0; i < KVC_BREAKER_FAILURES; i++) {
		g_autoptr(KvcBitmap) found = lookup(f, info);

		assert_all_but(found, 1 << 3);
		for (int j = 0; j < N; j++)
			assert_int_equal(info[j].mtime_ns == KVC_L2_NOT_ASKED, j == 3);
		f->ops->submit_unlock(f->adapter, f->keys, N);
	}
	kvc_breaker_get_status(f->adapter->breaker, &status);
	assert_int_equal(status.state, KVC_BREAKER_OPEN);
	/* No lock was left on what was not reported. */
	assert_int_equal(f->ops->delete_keys(f->adapter, f->keys, N, deleted), 0);
	assert_all_but(deleted, 0);
	KvcBreaker *breaker = f->adapter->breaker;
	fixture_free(f);
	kvc_breaker_free(breaker);
}

static void
test_lookup_miss(void **state)
{
	Fixture *f = fixture_new(",faults=lookup_miss,gap_indices=0");
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N);
	KvcL2ObjectInfo info[N];

	store_n(f, N);
	g_autoptr(KvcBitmap) found = lookup(f, info);
	assert_all_but(found, 1);
	assert_int_equal(info[0].mtime_ns, 0);
	assert_int_equal(info[0].bytes, 0);
	assert_int_equal(f->ops->delete_keys(f->adapter, f->keys, N, deleted), 0);
	assert_all_but(deleted, 0xfe); /* the others are locked */
	fixture_free(f);
}

static void
test_lost_unlock(void **state)
{
	Fixture *f = fixture_new(",faults=lost_unlock,gap_indices=4");
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N);
	KvcL2ObjectInfo info[N];

	store_n(f, N);
	g_autoptr(KvcBitmap) found = lookup(f, info);
	f->ops->submit_unlock(f->adapter, f->keys, N);
	assert_int_equal(f->ops->delete_keys(f->adapter, f->keys, N, deleted), 0);
	assert_all_but(deleted, 1 << 4);
	fixture_free(f);
}

static void
test_delete_error(void **state)
{
	Fixture *f = fixture_new(",faults=delete_error,gap_indices=0,max_faults=3,error=EROFS");
	KvcObjectAttributes attributes = {.mode = 0100600};
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N);

	store_n(f, N);
	assert_int_equal(f->ops->set_attributes(f->adapter, f->keys[1], &attributes), -EROFS);
	assert_int_equal(f->ops->rename_key(f->adapter, f->keys[1], f->keys[2]), -EROFS);
	assert_int_equal(f->ops->delete_keys(f->adapter, f->keys, N, deleted), -EROFS);
	assert_all_but(deleted, 1);
	assert_int_equal(f->ops->delete_keys(f->adapter, f->keys, 1, deleted), 0);
	assert_all_but(deleted, 0);
	fixture_free(f);
}

/* ---- Time ---------------------------------------------------------------------------------- */

static void
test_delay(void **state)
{
	Fixture *f = fixture_new(",faults=delay,gap_indices=1,delay_ms=60");
	gint64 start_us = g_get_monotonic_time();

	assert_int_equal(store_n(f, 1), BYTES); /* has no position 1 */
	store_n(f, 2);
	assert_true(g_get_monotonic_time() - start_us >= 60000);
	fixture_free(f);
}

/* While the file is there the task hangs; another one passes; without the file it goes on. */
static void
check_hang(const char *name)
{
	g_autofree char *path = g_build_filename(g_get_tmp_dir(), "kvc-fault-XXXXXX", NULL);
	int fd = g_mkstemp(path);
	g_autofree char *options =
		g_strdup_printf(",faults=%s,gap_indices=2,switch_path=%s", name, path);
	Fixture *f = fixture_new(options);
	int event_fd = f->ops->get_store_event_fd(f->adapter);
	KvcL2StoreResult result;

	assert_true(fd >= 0);
	close(fd);
	KvcL2TaskId id = f->ops->submit_store_task(f->adapter, f->keys, f->objects, N);
	assert_false(has_event(event_fd, 50));
	assert_int_equal(get_count(f, "held_tasks"), 1);
	store_n(f, 1);
	assert_int_equal(unlink(path), 0);
	await_event(event_fd);
	assert_int_equal(f->ops->pop_completed_store_tasks(f->adapter, &result, 1), 1);
	assert_int_equal(result.task_id, id);
	assert_true(result.bytes_transferred > 0);
	assert_int_equal(get_count(f, "held_tasks"), 0);
	/* And nothing hangs any more. */
	assert_int_equal(store_n(f, N), 0);
	fixture_free(f);
}

static void
test_hang(void **state)
{
	check_hang("hang");
}

static void
test_lost_result(void **state)
{
	check_hang("lost_result");
}

/* What hangs ends with the adapter. */
static void
test_close_while_it_hangs(void **state)
{
	Fixture *f = fixture_new(",faults=hang,rate=1");
	char data[4096];
	KvcMemoryObj object = {data, BYTES, 4096, NULL};

	f->ops->submit_store_task(f->adapter, f->keys, f->objects, N);
	f->ops->submit_lookup_and_lock_task(f->adapter, f->keys, N);
	f->ops->submit_load_task(f->adapter, f->keys, &object, 1);
	assert_false(has_event(f->ops->get_load_event_fd(f->adapter), 30));
	fixture_free(f);
}

/* ---- Configuration ------------------------------------------------------------------------- */

static void
test_refused(void **state)
{
	static const struct {
		const char *specification, *words;
	} refused[] = {
		{"type=fault_inject", "needs the option \"inner\""},
		{"type=fault_inject,inner=type=moc", "did you mean \"mock\""},
		{"type=fault_inject,inner=type=mock", "needs the option \"max_size_gb\""},
		{INNER ",faults=load_mis", "\"load_mis\" is not one of: load_miss"},
		{INNER ",gap_indices=1:x", "\"x\" is not a position"},
		{INNER ",drop_chunk_hashes=AB", "\"AB\" is not an even number"},
		{INNER ",error=EFOO", "\"EFOO\" is not one of: EIO"},
		{INNER ",persist_enabled=false", "belongs into \"inner\""},
	};

	for (size_t i = 0; i < G_N_ELEMENTS(refused); i++) {
		g_autoptr(GError) error = NULL;
		KvcOptions *options = NULL;

		assert_null(kvc_l2_adapter_open(refused[i].specification, &options, &error));
		if (!strstr(error->message, refused[i].words))
			fail_msg("\"%s\" does not say: %s", error->message, refused[i].words);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_by_position),
		cmocka_unit_test(test_by_key),
		cmocka_unit_test(test_by_rate),
		cmocka_unit_test(test_max_faults),
		cmocka_unit_test(test_short_and_corrupt_loads),
		cmocka_unit_test(test_store_error),
		cmocka_unit_test(test_store_error_of_all),
		cmocka_unit_test(test_lookup_error),
		cmocka_unit_test(test_lookup_miss),
		cmocka_unit_test(test_lost_unlock),
		cmocka_unit_test(test_delete_error),
		cmocka_unit_test(test_delay),
		cmocka_unit_test(test_hang),
		cmocka_unit_test(test_lost_result),
		cmocka_unit_test(test_close_while_it_hangs),
		cmocka_unit_test(test_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
