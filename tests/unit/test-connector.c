/* SPDX-License-Identifier: Apache-2.0 */

/* The connector framework, over a store that hangs and fails when it is told to. */

#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/contract/connector-memory.c"

#include <kvcache/io.h>
#include <kvcache/key-codec.h>

#define WAIT_MS 20000
#define BYTES 1000

typedef struct Fixture {
	KvcOptions *options;
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	MemoryStore *store;
	KvcBreaker *breaker;
	KvcKeyScope *scope;
	char data[BYTES];
} Fixture;

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);

	f->adapter = kvc_l2_adapter_open("type=connector_memory", &f->options, NULL);
	assert_non_null(f->adapter);
	f->ops = f->adapter->ops;
	f->store = memory_last;
	f->breaker = f->adapter->breaker = kvc_breaker_new(1, 1);
	f->scope = kvc_key_scope_new("m", 1, 0, NULL, NULL);
	memset(f->data, 'x', BYTES);
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;

	f->ops->close(f->adapter);
	kvc_breaker_free(f->breaker);
	kvc_options_free(f->options);
	kvc_key_scope_unref(f->scope);
	g_free(f);
	return 0;
}

static KvcObjectKey *
key_new(const Fixture *f, KvcSpace space, uint32_t number)
{
	g_autofree char *name = g_strdup_printf("n%07u", number);

	return kvc_object_key_new(f->scope, space, name, strlen(name), NULL);
}

static void
await_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&event, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

static int64_t
await_store(const Fixture *f, KvcL2TaskId id)
{
	KvcL2StoreResult result;

	while (f->ops->pop_completed_store_tasks(f->adapter, &result, 1) == 0)
		await_event(f->ops->get_store_event_fd(f->adapter));
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

static KvcL2TaskId
submit_store(Fixture *f, KvcObjectKey *key, size_t bytes)
{
	KvcMemoryObj object = {f->data, bytes, 4096};

	return f->ops->submit_store_task(f->adapter, &key, &object, 1);
}

/* 1: found; 0: not there; -1: not asked. */
static int
lookup(const Fixture *f, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info = {0};
	KvcL2TaskId id = f->ops->submit_lookup_and_lock_task(f->adapter, &key, 1);

	while (f->ops->query_lookup_and_lock_result(f->adapter, id, found, &info) == 0)
		await_event(f->ops->get_lookup_and_lock_event_fd(f->adapter));
	if (kvc_bitmap_test(found, 0))
		return 1;
	return info.mtime_ns == KVC_L2_NOT_ASKED ? -1 : 0;
}

static size_t
load_many(const Fixture *f, KvcObjectKey *const *keys, size_t n)
{
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(n);
	g_autofree char *memory = g_malloc0(n * BYTES);
	g_autofree KvcMemoryObj *objects = g_new0(KvcMemoryObj, n);

	for (size_t i = 0; i < n; i++)
		objects[i] = (KvcMemoryObj){memory + i * BYTES, BYTES, BYTES};
	KvcL2TaskId id = f->ops->submit_load_task(f->adapter, keys, objects, n);
	while (f->ops->query_load_result(f->adapter, id, loaded) == 0)
		await_event(f->ops->get_load_event_fd(f->adapter));
	for (size_t i = 0; i < n; i++)
		if (kvc_bitmap_test(loaded, i))
			assert_int_equal(memory[i * BYTES], 'x');
	return kvc_bitmap_count(loaded);
}

typedef struct Line {
	const char *name;
	char value[100];
} Line;

static void
note_line(void *user, const char *name, const char *value)
{
	Line *line = user;

	if (!strcmp(name, line->name))
		g_strlcpy(line->value, value, sizeof(line->value));
}

static void
assert_line(const Fixture *f, const char *name, const char *value)
{
	Line line = {.name = name};

	f->ops->describe(f->adapter, note_line, &line);
	assert_string_equal(line.value, value);
}

/* More objects than fit into a batch; what is not there is a bit that is clear. */
static void
test_batches(void **state)
{
	Fixture *f = *state;
	KvcObjectKey *keys[50];
	KvcMemoryObj objects[50];

	for (uint32_t i = 0; i < 50; i++) {
		keys[i] = key_new(f, KVC_SPACE_CHUNK, i);
		objects[i] = (KvcMemoryObj){f->data, BYTES, 4096};
	}
	KvcL2TaskId id = f->ops->submit_store_task(f->adapter, keys, objects, 49);
	assert_int_equal(await_store(f, id), 49 * BYTES);
	assert_int_equal(load_many(f, keys, 50), 49);
	/* Chunks that are there are not written again. */
	id = f->ops->submit_store_task(f->adapter, keys, objects, 50);
	assert_int_equal(await_store(f, id), BYTES);
	assert_line(f, "skipped", "49");
	assert_int_equal(load_many(f, keys, 0), 0);
	assert_int_equal(await_store(f, f->ops->submit_store_task(f->adapter, keys, objects, 0)),
			 0);
	for (uint32_t i = 0; i < 50; i++)
		kvc_object_key_unref(keys[i]);
}

/* The store of a chain that was submitted last wins, however many workers there are. */
static void
test_stores_of_one_key_keep_their_order(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_new(f, KVC_SPACE_PREFIX, 1);
	KvcL2ObjectInfo info = {0};

	for (unsigned round = 0; round < 50; round++) {
		g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);

		for (size_t bytes = 1; bytes <= 20; bytes++)
			submit_store(f, key, bytes);
		KvcL2StoreResult results[20];
		for (size_t n = 0; n < 20;)
			n += f->ops->pop_completed_store_tasks(f->adapter, results, 20);
		KvcL2TaskId id = f->ops->submit_lookup_and_lock_task(f->adapter, &key, 1);
		while (f->ops->query_lookup_and_lock_result(f->adapter, id, found, &info) == 0)
			await_event(f->ops->get_lookup_and_lock_event_fd(f->adapter));
		assert_int_equal(info.bytes, 20);
		f->ops->submit_unlock(f->adapter, &key, 1);
	}
}

static void
test_deletion_skips_what_is_busy(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_new(f, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);

	await_store(f, submit_store(f, key, BYTES));
	assert_int_equal(lookup(f, key), 1);
	assert_int_equal(lookup(f, key), 1);
	assert_line(f, "locks", "2");
	for (unsigned locks = 2; locks > 0; locks--) {
		assert_int_equal(f->ops->delete_keys(f->adapter, &key, 1, deleted), 0);
		assert_false(kvc_bitmap_test(deleted, 0));
		f->ops->submit_unlock(f->adapter, &key, 1);
	}
	f->ops->submit_unlock(f->adapter, &key, 1); /* of nothing */
	g_atomic_int_set(&f->store->is_hanging, 1);
	KvcL2TaskId id = submit_store(f, key, BYTES - 1);
	assert_int_equal(f->ops->delete_keys(f->adapter, &key, 1, deleted), 0);
	assert_false(kvc_bitmap_test(deleted, 0));
	g_atomic_int_set(&f->store->is_hanging, 0);
	await_store(f, id);
	assert_int_equal(f->ops->delete_keys(f->adapter, &key, 1, deleted), 0);
	assert_true(kvc_bitmap_test(deleted, 0));
	assert_int_equal(lookup(f, key), 0);
}

/* A connection that is dead is made anew within the call: nobody sees that the store restarted. */
static void
test_connects_again(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_new(f, KVC_SPACE_CHUNK, 1);

	assert_int_equal(await_store(f, submit_store(f, key, BYTES)), BYTES);
	for (unsigned i = 0; i < 8; i++) { /* whichever workers have connections */
		assert_int_equal(lookup(f, key), 1);
		assert_int_equal(load_many(f, &key, 1), 1);
	}
	g_atomic_int_set(&f->store->fail_calls, 1);
	assert_int_not_equal(lookup(f, key), 0);
	g_atomic_int_set(&f->store->fail_calls, 0);
	assert_int_equal(lookup(f, key), 1);
}

/* Then all is answered at once, with its errno, nothing is "not there", and the breaker knows. */
static void
test_store_that_is_down(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_new(f, KVC_SPACE_CHUNK, 1);
	KvcBreakerStatus status;

	g_atomic_int_set(&f->store->connect_error, -ECONNREFUSED);
	for (unsigned i = 0; i < 100; i++)
		assert_int_equal(lookup(f, key), -1);
	assert_true((unsigned)g_atomic_int_get(&f->store->connects) < 20);
	assert_int_equal(await_store(f, submit_store(f, key, BYTES)), -ECONNREFUSED);
	assert_int_equal(load_many(f, &key, 1), 0);
	kvc_breaker_get_status(f->breaker, &status);
	assert_true(status.opened > 0);
	assert_line(f, "health", "failed");
	assert_line(f, "last_error", "load failed: Connection refused (errno 111)");

	g_atomic_int_set(&f->store->connect_error, 0);
	int64_t end = g_get_monotonic_time() + 10 * G_USEC_PER_SEC;
	while (await_store(f, submit_store(f, key, BYTES)) < 0) {
		assert_true(g_get_monotonic_time() < end);
		g_usleep(10000);
	}
	assert_int_equal(lookup(f, key), 1);
	assert_line(f, "health", "degraded");
}

/* The time-out is 200 ms; a queue behind it is not served one after the other. */
static void
test_store_that_hangs(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_new(f, KVC_SPACE_CHUNK, 1);
	KvcL2TaskId ids[100];
	int64_t start = g_get_monotonic_time();

	g_atomic_int_set(&f->store->is_hanging, 1);
	for (unsigned i = 0; i < 100; i++)
		ids[i] = f->ops->submit_lookup_and_lock_task(f->adapter, &key, 1);
	for (unsigned i = 0; i < 100; i++) {
		g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
		KvcL2ObjectInfo info = {0};

		while (f->ops->query_lookup_and_lock_result(f->adapter, ids[i], found, &info) == 0)
			await_event(f->ops->get_lookup_and_lock_event_fd(f->adapter));
		assert_true(info.mtime_ns == KVC_L2_NOT_ASKED);
	}
	assert_true(g_get_monotonic_time() - start < 2 * G_USEC_PER_SEC);
	assert_line(f, "locks", "0");
	g_atomic_int_set(&f->store->is_hanging, 0);
}

/* Close interrupts what hangs, and nothing is touched afterwards. */
static void
test_close_with_pending_tasks(void **state)
{
	Fixture *f = *state;
	KvcObjectKey *keys[30];
	char *memory = g_malloc0(30 * BYTES);
	KvcMemoryObj objects[30];

	g_atomic_int_set(&f->store->is_hanging, 1);
	for (uint32_t i = 0; i < 30; i++) {
		keys[i] = key_new(f, KVC_SPACE_CHUNK, i);
		objects[i] = (KvcMemoryObj){memory + i * BYTES, BYTES, BYTES};
	}
	f->ops->submit_store_task(f->adapter, keys, objects, 30);
	f->ops->submit_load_task(f->adapter, keys, objects, 30);
	f->ops->submit_lookup_and_lock_task(f->adapter, keys, 30);
	int64_t start = g_get_monotonic_time();
	tear_down(state);
	assert_true(g_get_monotonic_time() - start < G_USEC_PER_SEC);
	g_free(memory);
	for (uint32_t i = 0; i < 30; i++)
		kvc_object_key_unref(keys[i]);
}

static void
check_name(KvcKeyScope *scope, KvcSpace space, const char *name, size_t len, const char *want)
{
	g_autoptr(KvcKeyScope) owned = scope;
	g_autoptr(KvcObjectKey) key = kvc_object_key_new(scope, space, name, len, NULL);
	g_autofree char *got = kvc_store_name_format(key);

	assert_string_equal(got, want);
	g_autoptr(KvcObjectKey) back = kvc_store_name_parse(got);
	assert_true(back && kvc_object_key_equal(back, key));
}

/* LMCache's, written out here; and ours. */
static void
test_names(void **state)
{
	static const char *const foreign[] = {
		"",
		"x",
		"m@01000100@0",
		"m@0x01000100@0@deadbeef",
		"m@1000100@0@deadbeef",
		"m@01000100@00@deadbeef",
		"m@01000100@0@DEADBEEF",
		"m@01000100@0@deadbe",
		"m@01000100@0@deadbeef@",
		"m@01000100@0@deadbeef@a@b",
		"m@01000100@deadbeef",
		"@01000100@0@deadbeef",
		"kvcfs:1:",
		"kvcfs:1:/x",
		"kvcfs:1:a//b",
		"kvcfs:1:a/../b",
		"kvcfs:2:m/x/n",
		"kvcfs:2:m/@1/n",
		"kvcfs:3:m",
	};
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("kvcfs:1:x", 1, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) key = kvc_object_key_new(scope, KVC_SPACE_CHUNK, "abcd", 4, NULL);

	check_name(kvc_key_scope_new("meta-llama/L-3.1", 0x01000100, 0, NULL, NULL),
		   KVC_SPACE_CHUNK, "\xde\xad\xbe\xef", 4, "meta-llama/L-3.1@01000100@0@deadbeef");
	check_name(kvc_key_scope_new("m", 0x02010201, 0x1f, "tenant", NULL), KVC_SPACE_CHUNK,
		   "\0\1\2\3", 4, "m@02010201@1f@00010203@tenant");
	check_name(kvc_key_scope_new_plain("", NULL), KVC_SPACE_PLAIN, "f", 1, "kvcfs:1:f");
	check_name(kvc_key_scope_new_plain("a/b", NULL), KVC_SPACE_PLAIN, "\xff *", 3,
		   "kvcfs:1:a/b/\xff *");
	check_name(kvc_key_scope_new("a/b", 0x01000100, 0, "t", NULL), KVC_SPACE_PREFIX, "p", 1,
		   "kvcfs:2:a/b/@01000100@0@t/p");
	assert_null(kvc_store_name_format(key));
	for (size_t i = 0; i < G_N_ELEMENTS(foreign); i++)
		assert_null(kvc_store_name_parse(foreign[i]));
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_batches),
		TEST(test_stores_of_one_key_keep_their_order),
		TEST(test_deletion_skips_what_is_busy),
		TEST(test_connects_again),
		TEST(test_store_that_is_down),
		TEST(test_store_that_hangs),
		cmocka_unit_test_setup(test_close_with_pending_tasks, set_up),
		cmocka_unit_test(test_names),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
