/* SPDX-License-Identifier: Apache-2.0 */

/* The engine as a whole, on mock adapters; what survives a restart on the fs adapter. */

#include "engine/lock.h"
#include "kvcache/registry.h"
#include "kvcache/storage-manager.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define PAGE UINT64_C(4096)
#define L1_SIZE (2 * MIB)
#define MOCK "type=mock,max_size_gb=0.1"
#define A (1u << 0)
#define B (1u << 1)
#define L1 KVC_TIER_L1

#define wait_until(condition)                                                                      \
	do {                                                                                       \
		int64_t until_ = kvc_now_ns() + 20 * KVC_SEC_NS;                                   \
		while (!(condition) && kvc_now_ns() < until_)                                      \
			g_usleep(500);                                                             \
		if (!(condition))                                                                  \
			fail_msg("waited in vain for: %s", #condition);                            \
	} while (0)

/* A policy as LMCache's skip_l1: stored everywhere, then not kept in memory. */
static uint32_t
everywhere(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return (1u << n) - 1;
}

static bool
always(const KvcObjectKey *key)
{
	return true;
}

static const KvcStorePolicy test_skip_l1 = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = "test-skip-l1",
	.summary = "everywhere, then not kept",
	.select_store_targets = everywhere,
	.select_l1_deletion = always,
};
KVC_REGISTER(kvc_register_store_policy, test_skip_l1)

typedef struct Fixture {
	KvcStorageManager *sm;
	KvcKeyScope *scope;
	char *directory;      /* of the fs adapter, or NULL */
	int n_lost, n_scopes; /* Atomic */
} Fixture;

static void
on_lost(void *user, KvcObjectKey *key)
{
	__atomic_fetch_add(&((Fixture *)user)->n_lost, 1, __ATOMIC_RELAXED);
}

static void
on_scope(void *user, KvcKeyScope *scope)
{
	__atomic_fetch_add(&((Fixture *)user)->n_scopes, 1, __ATOMIC_RELAXED);
}

static int
lost(Fixture *f)
{
	return __atomic_load_n(&f->n_lost, __ATOMIC_RELAXED);
}

static void
start_with_policy(Fixture *f, const char *first, const char *second, const char *policy)
{
	const char *const adapters[] = {first, second, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = L1_SIZE,
		.l2_adapters = first ? adapters : NULL,
		.store_policy = policy,
		.eviction_trigger_watermark = 2, /* only reservations evict */
		.key_lost = on_lost,
		.scope_known = on_scope,
		.user = f,
	};
	g_autoptr(GError) error = NULL;
	f->sm = kvc_storage_manager_new(&config, &error);
	if (!f->sm)
		fail_msg("%s", error->message);
	assert_int_equal(kvc_storage_manager_wait_listed(f->sm, 20 * KVC_SEC_NS), 0);
}

static void
start(Fixture *f, const char *first, const char *second)
{
	start_with_policy(f, first, second, NULL);
}

static void
stop(Fixture *f)
{
	kvc_storage_manager_free(g_steal_pointer(&f->sm));
}

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	f->scope = kvc_key_scope_new("org/model", 0x01000100, 0, NULL, NULL);
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;
	if (f->sm)
		stop(f);
	kvc_key_scope_unref(f->scope);
	if (f->directory) {
		g_autofree char *command = g_strdup_printf("rm -rf '%s'", f->directory);
		assert_int_equal(system(command), 0);
		g_free(f->directory);
	}
	g_free(f);
	return 0;
}

/* ---- What the tests are made of ------------------------------------------------------------ */

static KvcObjectKey *
key_in(KvcKeyScope *scope, KvcSpace space, unsigned number)
{
	char name[9];
	g_snprintf(name, sizeof(name), "%08x", number);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, 8, NULL);
	assert_non_null(key);
	return key;
}

static KvcObjectKey *
key_of(Fixture *f, unsigned number)
{
	return key_in(f->scope, KVC_SPACE_CHUNK, number);
}

static uint8_t
byte_of(unsigned number, unsigned version)
{
	return (uint8_t)(number * 7 + version * 101 + 1);
}

static int
commit(Fixture *f, KvcObjectKey *key, uint64_t bytes, uint8_t value, KvcFinishMode mode)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	KvcL1Object *object = NULL;
	int rc = kvc_storage_manager_reserve_write(f->sm, key, bytes, &object);
	if (rc < 0)
		return rc;
	memset(data, value, bytes);
	assert_int_equal(pwrite(kvc_l1_object_get_fd(object), data, bytes, 0), bytes);
	return kvc_storage_manager_finish_write(f->sm, object, key, mode);
}

static int
try_put(Fixture *f, unsigned number, uint64_t bytes, unsigned version)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return commit(f, key, bytes, byte_of(number, version), KVC_FINISH_FIRST_WINS);
}

static void
put(Fixture *f, unsigned number, uint64_t bytes)
{
	assert_int_equal(try_put(f, number, bytes, 0), 0);
}

static KvcL1Object *
try_read(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object = NULL;
	int rc = kvc_storage_manager_reserve_read(f->sm, key, &object);
	assert_int_equal(rc, object ? 0 : -ENOENT);
	return object;
}

static bool
has_content(KvcL1Object *object, uint64_t bytes, uint8_t value)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	if (kvc_l1_object_get_bytes(object) != bytes ||
	    pread(kvc_l1_object_get_fd(object), data, bytes + 1, 0) != (ssize_t)bytes)
		return false;
	for (uint64_t i = 0; i < bytes; i++)
		if (data[i] != value)
			return false;
	return true;
}

static void
assert_in_l1(Fixture *f, unsigned number, uint64_t bytes, unsigned version)
{
	KvcL1Object *object = try_read(f, number);
	assert_non_null(object);
	assert_true(has_content(object, bytes, byte_of(number, version)));
	kvc_storage_manager_finish_read(f->sm, object);
}

static bool
is_in_l1(Fixture *f, unsigned number)
{
	KvcL1Object *object = try_read(f, number);
	if (object)
		kvc_storage_manager_finish_read(f->sm, object);
	return object != NULL;
}

/* 0: not known. */
static uint32_t
tiers(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectInfo info;
	int rc = kvc_storage_manager_stat(f->sm, key, &info);
	assert_true(rc == 0 || rc == -ENOENT);
	return rc == 0 ? info.tiers : 0;
}

static int
delete_key(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_storage_manager_delete(f->sm, key);
}

static int
evict(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_storage_manager_evict(f->sm, key);
}

typedef struct Flushed {
	int count; /* Atomic */
	int error;
} Flushed;

static void
on_flushed(void *user, int error)
{
	Flushed *flushed = user;
	flushed->error = error;
	__atomic_fetch_add(&flushed->count, 1, __ATOMIC_RELEASE);
}

static int
count_of(const Flushed *flushed)
{
	return __atomic_load_n(&flushed->count, __ATOMIC_ACQUIRE);
}

static int
flush(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	Flushed flushed = {0};
	kvc_storage_manager_flush(f->sm, key, on_flushed, &flushed);
	wait_until(count_of(&flushed) > 0);
	assert_int_equal(count_of(&flushed), 1);
	return flushed.error;
}

static void
drain(Fixture *f)
{
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
}

/* In L2 and nowhere else. */
static void
put_in_l2(Fixture *f, unsigned number, uint64_t bytes)
{
	put(f, number, bytes);
	assert_int_equal(flush(f, number), 0);
	assert_int_equal(evict(f, number), 0);
	assert_false(is_in_l1(f, number));
}

typedef struct Wanted {
	const char *name;
	char *value;
} Wanted;

static void
find_line(void *user, const char *name, const char *value)
{
	Wanted *wanted = user;
	if (strcmp(name, wanted->name) == 0) {
		assert_null(wanted->value);
		wanted->value = g_strdup(value);
	}
}

static char *
status_of(Fixture *f, const char *name)
{
	Wanted wanted = {name, NULL};
	kvc_storage_manager_report_status(f->sm, find_line, &wanted);
	assert_non_null(wanted.value);
	return wanted.value;
}

static void
assert_status(Fixture *f, const char *name, const char *expected)
{
	g_autofree char *value = status_of(f, name);
	assert_string_equal(value, expected);
}

static bool
is_status(Fixture *f, const char *name, const char *expected)
{
	g_autofree char *value = status_of(f, name);
	return strcmp(value, expected) == 0;
}

static unsigned
stat_of(Fixture *f, const char *name)
{
	Wanted wanted = {name, NULL};
	kvc_storage_manager_report_stats(f->sm, find_line, &wanted);
	assert_non_null(wanted.value);
	unsigned value = (unsigned)strtoul(wanted.value, NULL, 10);
	g_free(wanted.value);
	return value;
}

/* ---- Prefetches ---------------------------------------------------------------------------- */

typedef struct Callbacks {
	int planned, done, freed; /* Atomic */
} Callbacks;

static void
on_planned(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Callbacks *)user)->planned, 1, __ATOMIC_RELAXED);
}

static void
on_done(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Callbacks *)user)->done, 1, __ATOMIC_RELAXED);
}

static void
on_freed(void *user)
{
	__atomic_fetch_add(&((Callbacks *)user)->freed, 1, __ATOMIC_RELEASE);
}

/* Keys FROM to TO - 1. */
static KvcPrefetchHandle *
prefetch_with(Fixture *f,
	      unsigned from,
	      unsigned to,
	      unsigned flags,
	      int64_t timeout_ns,
	      Callbacks *callbacks)
{
	g_autoptr(GPtrArray) keys =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	for (unsigned i = from; i < to; i++)
		g_ptr_array_add(keys, key_of(f, i));
	KvcPrefetchParams params = {
		.keys = (KvcObjectKey *const *)keys->pdata,
		.n_keys = keys->len,
		.flags = flags,
		.max_locked_bytes = L1_SIZE,
		.timeout_ns = timeout_ns,
		.planned = callbacks ? on_planned : NULL,
		.done = callbacks ? on_done : NULL,
		.user = callbacks,
	};
	return kvc_storage_manager_submit_prefetch_task(f->sm, &params);
}

static KvcPrefetchHandle *
prefetch(Fixture *f, unsigned from, unsigned to, unsigned flags)
{
	return prefetch_with(f, from, to, flags, 0, NULL);
}

static ssize_t
result_of(Fixture *f, KvcPrefetchHandle *handle)
{
	int64_t until = kvc_now_ns() + 20 * KVC_SEC_NS;
	ssize_t result;
	/* A result is given once: not asked twice. */
	do {
		result = kvc_storage_manager_query_prefetch_status(f->sm, handle);
		if (result == -EAGAIN)
			g_usleep(500);
	} while (result == -EAGAIN && kvc_now_ns() < until);
	return result;
}

static ssize_t
found_of(KvcPrefetchHandle *handle)
{
	wait_until(kvc_prefetch_handle_get_found(handle) != -EAGAIN);
	return kvc_prefetch_handle_get_found(handle);
}

/* How much of the run is there, without loading it. */
static ssize_t
look_up(Fixture *f, unsigned from, unsigned to)
{
	KvcPrefetchHandle *handle = prefetch(f, from, to, KVC_PREFETCH_LOOKUP_ONLY);
	ssize_t found = found_of(handle);
	kvc_prefetch_handle_drop(handle, NULL);
	return found;
}

static ssize_t
load(Fixture *f, unsigned from, unsigned to)
{
	KvcPrefetchHandle *handle = prefetch(f, from, to, 0);
	ssize_t result = result_of(f, handle);
	kvc_prefetch_handle_drop(handle, NULL);
	return result;
}

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
	assert_refused(&config, "#2");
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

/* ---- Stores -------------------------------------------------------------------------------- */

static void
test_written_is_stored(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	assert_true(kvc_storage_manager_has_l2(f->sm));
	assert_false(kvc_storage_manager_has_shared_l2(f->sm));
	put(f, 1, 5000);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A | B);
	assert_int_equal(stat_of(f, "stores_completed"), 2);
	assert_int_equal(stat_of(f, "store_bytes"), 10000);
	assert_status(f, "l1_dirty_objects", "0");
	/* Again: nothing to do. */
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(flush(f, 2), -ENOENT);
	assert_int_equal(stat_of(f, "stores"), 2);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.l1_capacity_bytes, L1_SIZE);
	assert_int_equal(capacity.l1_used_bytes, 2 * PAGE);
	assert_int_equal(capacity.l1_pinned_bytes, 0);
	assert_int_equal(capacity.l2_used_bytes, 10000);
	assert_int_equal(capacity.objects, 1);
}

static void
test_shared_is_an_option_of_every_adapter(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK ",shared=true");
	assert_true(kvc_storage_manager_has_shared_l2(f->sm));
}

static void
test_drain_waits_and_gives_up(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=300", NULL);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 0), 0);
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_MSEC_NS), -ETIMEDOUT);
	assert_int_equal(tiers(f, 1), L1);
	assert_status(f, "l1_dirty_objects", "1");
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_status(f, "l1_dirty_objects", "0");
}

static void
test_difference_7_failed_store_is_retried(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=2", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(stat_of(f, "stores_retried"), 2);
	assert_int_equal(stat_of(f, "stores_failed"), 0);
	assert_status(f, "l1_unreplicated_objects", "0");
	drain(f);
	assert_status(f, "health", "ok");
}

static void
test_difference_7_given_up_is_not_silent(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=3", NULL);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), -EIO);
	assert_int_equal(stat_of(f, "stores_failed"), 1);
	assert_status(f, "l2.0.stores_failed", "1");
	assert_status(f, "l1_unreplicated_objects", "1");
	assert_status(f, "l1_dirty_objects", "0");
	assert_status(f, "health", "degraded");
	/* It says so each time it is asked. */
	assert_int_equal(flush(f, 1), -EIO);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_int_equal(evict(f, 1), -EBUSY);
	assert_in_l1(f, 1, 100, 0);
	/* The adapter is well again: others are stored, and go before this one. */
	put(f, 2, 100);
	put(f, 3, L1_SIZE - 2 * PAGE);
	assert_int_equal(flush(f, 2), 0);
	assert_int_equal(flush(f, 3), 0);
	put(f, 4, 100);
	assert_true(is_in_l1(f, 1));
	assert_false(is_in_l1(f, 2));
	assert_int_equal(flush(f, 4), 0);
	put(f, 5, L1_SIZE);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(lost(f), 1);
	assert_status(f, "l1_unreplicated_objects", "0");
	drain(f);
}

static void
test_one_of_two_adapters_fails(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_stores=1000", MOCK);
	put(f, 1, 100);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(tiers(f, 1), L1 | B);
	assert_status(f, "l1_unreplicated_objects", "0");
	assert_int_equal(stat_of(f, "stores_failed"), 1);
	assert_status(f, "l2.0.health", "degraded");
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_difference_9_skip_l1_deletes_after_the_last(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK, MOCK ",latency_ms=100", "test-skip-l1");
	put(f, 1, 100);
	wait_until(tiers(f, 1) & A);
	if (!(tiers(f, 1) & B))
		assert_true(tiers(f, 1) & L1);
	drain(f);
	assert_int_equal(tiers(f, 1), A | B);
	assert_false(is_in_l1(f, 1));
	assert_status(f, "l1_used_bytes", "0");
	assert_int_equal(lost(f), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_difference_9_only_if_one_succeeded(void **state)
{
	Fixture *f = *state;
	start_with_policy(f, MOCK ",fail_stores=3", MOCK ",fail_stores=1000", "test-skip-l1");
	put(f, 1, 100);
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), -EIO);
	assert_in_l1(f, 1, 100, 0);
	put(f, 2, 100);
	assert_int_equal(flush(f, 2), 0);
	wait_until(!is_in_l1(f, 2));
	assert_int_equal(tiers(f, 2), A);
	assert_int_equal(tiers(f, 1), L1);
}

/* ---- Who wins ------------------------------------------------------------------------------ */

static void
test_first_wins_in_l1(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	assert_int_equal(try_put(f, 1, 100, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(try_put(f, 1, 7000, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(stat_of(f, "l1_writes_dropped"), 2);
	assert_in_l1(f, 1, 100, 0);
	drain(f);
	assert_int_equal(stat_of(f, "stores"), 1);
	assert_status(f, "l1_used_bytes", "4096");
}

static void
test_other_size_in_l2_wins(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	assert_int_equal(try_put(f, 1, 101, 1), KVC_FINISHED_DROPPED);
	assert_int_equal(tiers(f, 1), A);
	assert_false(is_in_l1(f, 1));
	assert_status(f, "l1_used_bytes", "0");
	/* The same size: a copy in L1, the store finds it there. */
	assert_int_equal(try_put(f, 1, 100, 0), 0);
	assert_int_equal(tiers(f, 1), L1 | A);
	drain(f);
	assert_int_equal(stat_of(f, "store_bytes"), 100);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_replace_wins_in_every_tier(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	g_autoptr(KvcObjectKey) key = key_in(f->scope, KVC_SPACE_PLAIN, 1);
	KvcObjectInfo info;
	KvcL1Object *object;
	assert_int_equal(commit(f, key, 100, 1, KVC_FINISH_REPLACE), 0);
	drain(f);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	assert_int_equal(commit(f, key, 250, 2, KVC_FINISH_REPLACE), 0);
	assert_int_equal(commit(f, key, 300, 3, KVC_FINISH_REPLACE), 0);
	drain(f);
	assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
	assert_int_equal(info.tiers, L1 | A);
	assert_int_equal(info.bytes, 300);
	assert_int_equal(kvc_storage_manager_evict(f->sm, key), 0);
	KvcPrefetchParams params = {.keys = &key, .n_keys = 1};
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(f->sm, &params);
	assert_int_equal(result_of(f, handle), 1);
	object = kvc_prefetch_handle_take_object(handle, 0);
	assert_non_null(object);
	assert_true(has_content(object, 300, 3));
	kvc_storage_manager_finish_read(f->sm, object);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(lost(f), 0);
}

/* ---- Deletion ------------------------------------------------------------------------------ */

static void
test_delete_from_every_tier(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put(f, 1, 100);
	put_in_l2(f, 2, 100);
	drain(f);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(delete_key(f, 2), 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(tiers(f, 2), 0);
	assert_int_equal(lost(f), 2);
	assert_int_equal(delete_key(f, 1), -ENOENT);
	assert_false(is_in_l1(f, 1));
	drain(f);
	assert_int_equal(stat_of(f, "deletes_completed"), 4);
	assert_int_equal(look_up(f, 1, 3), 0);
	assert_int_equal(load(f, 2, 3), 0);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.l2_used_bytes, 0);
	assert_int_equal(capacity.l1_used_bytes, 0);
	assert_int_equal(capacity.objects, 0);
}

static void
test_delete_then_create_again(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=20", NULL);
	put(f, 1, 100);
	drain(f);
	for (unsigned version = 1; version < 8; version++) {
		uint64_t bytes = 100 + version * 1000;
		assert_int_equal(delete_key(f, 1), 0);
		assert_int_equal(try_put(f, 1, bytes, version), 0);
		/* Visible at once, whatever the adapter still has. */
		assert_true(tiers(f, 1) & L1);
		assert_in_l1(f, 1, bytes, version);
		if (version % 3 == 0)
			g_usleep(15000);
	}
	drain(f);
	assert_int_equal(tiers(f, 1), L1 | A);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 7100, 7);
}

static void
test_delete_while_it_is_being_stored(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=50", NULL);
	put(f, 1, 100);
	wait_until(stat_of(f, "stores") == 1);
	assert_int_equal(delete_key(f, 1), 0);
	drain(f);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(lost(f), 1);
	assert_status(f, "l1_used_bytes", "0");
}

static void
test_readers_keep_what_is_deleted(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, 100);
	drain(f);
	KvcL1Object *object = try_read(f, 1);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(try_put(f, 1, 200, 1), 0);
	drain(f);
	assert_true(has_content(object, 100, byte_of(1, 0)));
	assert_in_l1(f, 1, 200, 1);
	kvc_storage_manager_finish_read(f->sm, object);
	assert_status(f, "l1_used_bytes", "4096");
}

/* The lookup's lock makes the adapter skip it: the key stays hidden, and the deletion comes. */
static void
test_deleted_does_not_return_while_locked_in_l2(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *held = prefetch(f, 1, 2, KVC_PREFETCH_HOLD);
	assert_int_equal(found_of(held), 1);
	assert_int_equal(delete_key(f, 1), 0);
	wait_until(stat_of(f, "deletes_retried") > 0);
	assert_int_equal(tiers(f, 1), 0);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(load(f, 1, 2), 0);
	kvc_prefetch_handle_start(held);
	assert_int_equal(result_of(f, held), 0);
	assert_false(is_in_l1(f, 1));
	assert_int_equal(tiers(f, 1), 0);
	kvc_prefetch_handle_drop(held, NULL);
	drain(f);
	assert_int_equal(stat_of(f, "deletes_completed"), 1);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_int_equal(lost(f), 1);
}

static void
test_delete_while_it_is_being_loaded(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=100", NULL);
	put_in_l2(f, 1, 100);
	put_in_l2(f, 2, 100);
	KvcPrefetchHandle *one = prefetch(f, 1, 2, 0), *two = prefetch(f, 2, 3, 0);
	wait_until(stat_of(f, "loads") == 2);
	assert_int_equal(delete_key(f, 1), 0);
	assert_int_equal(delete_key(f, 2), 0);
	/* One is made anew meanwhile: what the load brings must not take its place. */
	assert_int_equal(try_put(f, 2, 300, 1), 0);
	assert_int_equal(result_of(f, one), 0);
	assert_false(is_in_l1(f, 1));
	assert_int_equal(tiers(f, 1), 0);
	result_of(f, two);
	assert_in_l1(f, 2, 300, 1);
	kvc_prefetch_handle_drop(one, NULL);
	kvc_prefetch_handle_drop(two, NULL);
	drain(f);
	assert_int_equal(look_up(f, 1, 2), 0);
	assert_in_l1(f, 2, 300, 1);
	assert_int_equal(tiers(f, 2), L1 | A);
	assert_int_equal(evict(f, 2), 0);
	assert_int_equal(load(f, 2, 3), 1);
	assert_in_l1(f, 2, 300, 1);
}

/* ---- Eviction ------------------------------------------------------------------------------ */

static void
test_evict_rules(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=100", NULL);
	assert_int_equal(evict(f, 1), -ENOENT);
	put(f, 1, 100);
	/* Dirty. */
	assert_int_equal(evict(f, 1), -EBUSY);
	assert_int_equal(flush(f, 1), 0);
	KvcL1Object *object = try_read(f, 1);
	assert_int_equal(evict(f, 1), -EBUSY);
	kvc_storage_manager_finish_read(f->sm, object);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(tiers(f, 1), A);
	assert_int_equal(lost(f), 0);
	/* Known, and not in L1. */
	assert_int_equal(evict(f, 1), -ENOENT);
	assert_status(f, "l1_used_bytes", "0");
}

static void
test_difference_8_writing_more_than_l1_holds(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < 20; i++) {
		put(f, i, L1_SIZE / 4);
		assert_int_equal(flush(f, i), 0);
	}
	assert_int_equal(stat_of(f, "l1_evicted_objects"), 16);
	assert_int_equal(lost(f), 0);
	for (unsigned i = 0; i < 20; i++)
		assert_int_equal(tiers(f, i), i < 16 ? A : (L1 | A));
	/* All of it can be had again, a part at a time. */
	assert_int_equal(load(f, 0, 4), 4);
	assert_in_l1(f, 3, L1_SIZE / 4, 0);
}

static void
test_difference_7_full_of_dirty_is_enospc(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=300", NULL);
	for (unsigned i = 0; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	assert_int_equal(try_put(f, 4, 100, 0), -ENOSPC);
	assert_true(stat_of(f, "l1_reserve_failed_no_memory") >= 1);
	for (unsigned i = 0; i < 4; i++)
		assert_in_l1(f, i, L1_SIZE / 4, 0);
	drain(f);
	put(f, 4, 100);
	assert_int_equal(tiers(f, 0), A);
}

/* ---- Prefetch ------------------------------------------------------------------------------ */

static void
test_difference_1_plan_over_l1_and_l2(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < 4; i++)
		put(f, i, 1000 + i);
	drain(f);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(evict(f, 3), 0);
	/* L1={0,2}, L2={0,1,2,3}, and 4 nowhere. */
	KvcPrefetchHandle *handle = prefetch(f, 0, 5, 0);
	assert_true(handle->request_id >= 0);
	assert_int_equal(handle->l1_prefix_hit_count, 1);
	assert_int_equal(handle->total_requested_keys, 5);
	assert_int_equal(found_of(handle), 4);
	assert_int_equal(result_of(f, handle), 4);
	/* Once. */
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), -ENODATA);
	assert_int_equal(stat_of(f, "loads"), 2);
	assert_status(f, "l1_read_locks", "4");
	for (unsigned i = 0; i < 4; i++)
		assert_int_equal(evict(f, i), -EBUSY);
	kvc_prefetch_handle_drop(handle, NULL);
	wait_until(is_status(f, "l1_read_locks", "0"));
	for (unsigned i = 0; i < 4; i++)
		assert_in_l1(f, i, 1000 + i, 0);
}

static void
test_all_in_l1_needs_no_request(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 0, 100);
	put(f, 1, 100);
	drain(f);
	KvcPrefetchHandle *handle = prefetch(f, 0, 2, 0);
	assert_int_equal(handle->request_id, -1);
	assert_int_equal(handle->l1_prefix_hit_count, 2);
	assert_int_equal(kvc_prefetch_handle_get_found(handle), 2);
	/* Always. */
	for (int i = 0; i < 2; i++)
		assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 2);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_status(f, "l1_read_locks", "0");
	assert_int_equal(stat_of(f, "lookups"), 0);
}

static void
test_difference_2_failed_load_leaves_nothing(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_loads=1", NULL);
	put_in_l2(f, 0, 100);
	assert_int_equal(load(f, 0, 1), 0);
	assert_false(is_in_l1(f, 0));
	wait_until(is_status(f, "l1_used_bytes", "0"));
	assert_status(f, "l1_staging_objects", "0");
	assert_int_equal(stat_of(f, "loads_failed_missing"), 1);
	drain(f);
	/* It was not stored either: the next load has the bytes of old. */
	assert_int_equal(stat_of(f, "stores"), 1);
	put_in_l2(f, 1, 100);
	assert_int_equal(load(f, 1, 2), 1);
	assert_in_l1(f, 1, 100, 0);
}

static void
test_other_adapter_helps_out(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",fail_loads=1000", MOCK);
	put_in_l2(f, 0, 100);
	assert_int_equal(load(f, 0, 1), 1);
	assert_in_l1(f, 0, 100, 0);
}

static void
test_difference_4_loaded_is_never_stored_back(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, MOCK);
	put_in_l2(f, 0, 100);
	unsigned stores = stat_of(f, "stores");
	assert_int_equal(load(f, 0, 1), 1);
	assert_status(f, "l1_temporary_objects", "1");
	assert_status(f, "l1_dirty_objects", "0");
	drain(f);
	g_usleep(20000);
	assert_int_equal(stat_of(f, "stores"), stores);
	assert_int_equal(stat_of(f, "l1_writes_finished"), 1);
	/* Clean from the start: it may go at once. */
	assert_int_equal(evict(f, 0), 0);
}

static void
test_difference_5_sizes_differ_in_one_batch(void **state)
{
	static const uint64_t sizes[] = {100, 0, 5000, 4096, 300000, 1, 8191};
	enum { N = G_N_ELEMENTS(sizes) };
	Fixture *f = *state;
	start(f, MOCK, NULL);
	for (unsigned i = 0; i < N; i++)
		put(f, i, sizes[i]);
	drain(f);
	for (unsigned i = 0; i < N; i++)
		assert_int_equal(evict(f, i), 0);
	assert_int_equal(load(f, 0, N), N);
	for (unsigned i = 0; i < N; i++)
		assert_in_l1(f, i, sizes[i], 0);
}

static void
test_difference_10_early_answer_and_held_loads(void **state)
{
	Fixture *f = *state;
	Callbacks callbacks = {0};
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 1, 100);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 3, KVC_PREFETCH_HOLD, 0, &callbacks);
	assert_int_equal(found_of(handle), 2);
	wait_until(__atomic_load_n(&callbacks.planned, __ATOMIC_RELAXED) == 1);
	g_usleep(20000);
	assert_int_equal(stat_of(f, "loads"), 0);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), -EAGAIN);
	assert_null(kvc_prefetch_handle_take_object(handle, 0));
	kvc_prefetch_handle_start(handle);
	kvc_prefetch_handle_start(handle);
	assert_int_equal(result_of(f, handle), 2);
	KvcL1Object *object = kvc_prefetch_handle_take_object(handle, 1);
	assert_true(has_content(object, 100, byte_of(1, 0)));
	assert_null(kvc_prefetch_handle_take_object(handle, 1));
	assert_null(kvc_prefetch_handle_take_object(handle, 2));
	assert_null(kvc_prefetch_handle_take_object(handle, 3));
	kvc_prefetch_handle_drop(handle, on_freed);
	wait_until(__atomic_load_n(&callbacks.freed, __ATOMIC_ACQUIRE) == 1);
	assert_int_equal(callbacks.planned, 1);
	assert_int_equal(callbacks.done, 1);
	/* What was taken out stays locked. */
	wait_until(is_status(f, "l1_read_locks", "1"));
	assert_int_equal(evict(f, 1), -EBUSY);
	kvc_storage_manager_finish_read(f->sm, object);
}

static void
test_difference_10_lookup_only_and_no_lock(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	put_in_l2(f, 1, 100);
	assert_int_equal(look_up(f, 0, 3), 2);
	assert_int_equal(stat_of(f, "loads"), 0);
	assert_status(f, "l1_used_bytes", "0");
	KvcPrefetchHandle *handle = prefetch(f, 0, 3, KVC_PREFETCH_NO_LOCK);
	assert_int_equal(result_of(f, handle), 2);
	assert_status(f, "l1_read_locks", "0");
	assert_null(kvc_prefetch_handle_take_object(handle, 0));
	assert_in_l1(f, 0, 100, 0);
	assert_in_l1(f, 1, 100, 0);
	kvc_prefetch_handle_drop(handle, NULL);
	assert_int_equal(delete_key(f, 0), 0);
	drain(f);
}

static void
test_difference_10_deadline_and_draining(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=150", NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 1, 0, 220 * KVC_MSEC_NS, NULL);
	assert_int_equal(result_of(f, handle), 0);
	assert_int_equal(stat_of(f, "prefetches_timed_out"), 1);
	kvc_prefetch_handle_drop(handle, NULL);
	/* The load that was under way is for who comes next. */
	wait_until(is_in_l1(f, 0));
	assert_in_l1(f, 0, 100, 0);
	wait_until(is_status(f, "prefetches_active", "0"));
	assert_int_equal(stat_of(f, "loads"), 1);
}

static void
test_difference_11_temporary_goes_first_not_at_release(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 0, L1_SIZE / 4);
	for (unsigned i = 1; i < 4; i++)
		put(f, i, L1_SIZE / 4);
	drain(f);
	for (int i = 0; i < 2; i++)
		assert_int_equal(load(f, 0, 1), 1);
	wait_until(is_status(f, "l1_read_locks", "0"));
	assert_true(is_in_l1(f, 0));
	assert_int_equal(stat_of(f, "loads"), 1);
	put(f, 4, L1_SIZE / 4);
	assert_false(is_in_l1(f, 0));
	for (unsigned i = 1; i < 5; i++)
		assert_true(is_in_l1(f, i));
	drain(f);
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

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_KEYS 24
#define N_STEPS 250

typedef struct Worker {
	Fixture *f;
	unsigned number, bad;
} Worker;

/* The size and the bytes of a key are always the same: whoever reads sees all or nothing. */
static uint64_t
size_of(unsigned number)
{
	return 1 + number * 4001;
}

static bool
is_right(KvcL1Object *object, unsigned number)
{
	return has_content(object, size_of(number), byte_of(number, 0));
}

static void
check_prefetched(Worker *w, unsigned from, unsigned flags)
{
	KvcPrefetchHandle *handle = prefetch(w->f, from, from + 4, flags);
	ssize_t n = -EAGAIN;
	for (int i = 0; i < 20000 && n == -EAGAIN; i++) {
		n = kvc_storage_manager_query_prefetch_status(w->f->sm, handle);
		if (n == -EAGAIN)
			g_usleep(1000);
	}
	w->bad += n < 0;
	for (ssize_t i = 0; i < n && !flags; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(handle, (size_t)i);
		w->bad += !object || !is_right(object, from + (unsigned)i);
		if (object)
			kvc_storage_manager_finish_read(w->f->sm, object);
	}
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
random_step(Worker *w, GRand *rand)
{
	Fixture *f = w->f;
	unsigned number = (unsigned)g_rand_int_range(rand, 0, N_KEYS);
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object;
	int rc;
	switch (g_rand_int_range(rand, 0, 8)) {
	case 0:
		rc = kvc_storage_manager_delete(f->sm, key);
		w->bad += rc != 0 && rc != -ENOENT;
		break;
	case 1:
		rc = kvc_storage_manager_evict(f->sm, key);
		w->bad += rc != 0 && rc != -ENOENT && rc != -EBUSY;
		break;
	case 2:
	case 3:
		check_prefetched(w, number, number % 5 ? 0 : KVC_PREFETCH_NO_LOCK);
		break;
	case 4:
	case 5:
		if (kvc_storage_manager_reserve_read(f->sm, key, &object) < 0)
			break;
		w->bad += !is_right(object, number);
		kvc_storage_manager_finish_read(f->sm, object);
		break;
	default:
		rc = commit(f, key, size_of(number), byte_of(number, 0), number % 2);
		w->bad += rc != 0 && rc != KVC_FINISHED_DROPPED && rc != -ENOSPC;
	}
}

static void *
work(void *user)
{
	Worker *w = user;
	GRand *rand = g_rand_new_with_seed(w->number);
	for (int i = 0; i < N_STEPS; i++)
		random_step(w, rand);
	g_rand_free(rand);
	return NULL;
}

static void
run_threads(Fixture *f)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();
	pthread_t threads[5];
	Worker workers[5];
	print_message("KVC_TEST_SEED=%u\n", seed);
	for (unsigned i = 0; i < 5; i++) {
		workers[i] = (Worker){f, seed + i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < 5; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
}

/* Facts 4.4, 1 and 10: at rest nothing is locked, and what was submitted has ended. */
static void
test_threads_leave_nothing_behind(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=1", MOCK);
	run_threads(f);
	wait_until(is_status(f, "prefetches_active", "0"));
	drain(f);
	wait_until(is_status(f, "l1_read_locks", "0"));
	assert_status(f, "l1_staging_objects", "0");
	assert_status(f, "l1_dirty_objects", "0");
	assert_int_equal(stat_of(f, "stores"), stat_of(f, "stores_completed") +
						       stat_of(f, "stores_retried") +
						       stat_of(f, "stores_failed"));
	assert_int_equal(stat_of(f, "loads"),
			 stat_of(f, "loads_completed") + stat_of(f, "loads_failed_missing"));
	assert_int_equal(stat_of(f, "prefetches"),
			 stat_of(f, "prefetches_completed") + stat_of(f, "prefetches_cancelled"));
	for (unsigned i = 0; i < N_KEYS; i++)
		delete_key(f, i);
	drain(f);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.objects, 0);
	assert_int_equal(capacity.l1_used_bytes, 0);
	assert_int_equal(capacity.l2_used_bytes, 0);
}

static void
test_threads_and_then_stop_at_once(void **state)
{
	Fixture *f = *state;
	start(f, MOCK ",latency_ms=10", NULL);
	run_threads(f);
	stop(f);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_errors_of_construction_are_named),
		TEST(test_most_adapters),
		TEST(test_without_l2),
		TEST(test_eviction_without_a_copy_loses_the_key_once),
		TEST(test_difference_3_unfinished_is_not_there),
		TEST(test_reservation_grows_and_fails),
		TEST(test_written_is_stored),
		TEST(test_shared_is_an_option_of_every_adapter),
		TEST(test_drain_waits_and_gives_up),
		TEST(test_difference_7_failed_store_is_retried),
		TEST(test_difference_7_given_up_is_not_silent),
		TEST(test_one_of_two_adapters_fails),
		TEST(test_difference_9_skip_l1_deletes_after_the_last),
		TEST(test_difference_9_only_if_one_succeeded),
		TEST(test_first_wins_in_l1),
		TEST(test_other_size_in_l2_wins),
		TEST(test_replace_wins_in_every_tier),
		TEST(test_delete_from_every_tier),
		TEST(test_delete_then_create_again),
		TEST(test_delete_while_it_is_being_stored),
		TEST(test_readers_keep_what_is_deleted),
		TEST(test_deleted_does_not_return_while_locked_in_l2),
		TEST(test_delete_while_it_is_being_loaded),
		TEST(test_evict_rules),
		TEST(test_difference_8_writing_more_than_l1_holds),
		TEST(test_difference_7_full_of_dirty_is_enospc),
		TEST(test_difference_1_plan_over_l1_and_l2),
		TEST(test_all_in_l1_needs_no_request),
		TEST(test_difference_2_failed_load_leaves_nothing),
		TEST(test_other_adapter_helps_out),
		TEST(test_difference_4_loaded_is_never_stored_back),
		TEST(test_difference_5_sizes_differ_in_one_batch),
		TEST(test_difference_10_early_answer_and_held_loads),
		TEST(test_difference_10_lookup_only_and_no_lock),
		TEST(test_difference_10_deadline_and_draining),
		TEST(test_difference_11_temporary_goes_first_not_at_release),
		TEST(test_difference_6_stop_answers_every_handle),
		TEST(test_difference_6_stop_with_loads_in_flight),
		TEST(test_difference_6_stop_answers_every_flush),
		TEST(test_list_in_order),
		TEST(test_start_lists_what_is_stored),
		TEST(test_start_lists_every_adapter),
		TEST(test_shared_adapter_is_asked_for_unknown_keys),
		TEST(test_threads_leave_nothing_behind),
		TEST(test_threads_and_then_stop_at_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
