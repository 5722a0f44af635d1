/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STORAGE_MANAGER_FIXTURE_H
#define TESTS_UNIT_STORAGE_MANAGER_FIXTURE_H

/* The engine as a whole, on mock adapters; what survives a restart on the fs adapter. */

#include "engine/lock.h"
#include "kvcache/storage-manager.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/unit/key-fixture.h"

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
		bool is_met_;                                                                      \
		while (!(is_met_ = (condition)) && kvc_now_ns() < until_)                          \
			g_usleep(500);                                                             \
		if (!is_met_)                                                                      \
			fail_msg("waited in vain for: %s", #condition);                            \
	} while (0)

typedef struct Fixture {
	KvcStorageManager *sm;
	KvcKeyScope *scope;
	char *directory;      /* of the fs adapter, or NULL */
	int n_lost, n_scopes; /* Atomic */
} Fixture;

static inline void
on_lost(void *user, KvcObjectKey *key)
{
	__atomic_fetch_add(&((Fixture *)user)->n_lost, 1, __ATOMIC_RELAXED);
}

static inline void
on_scope(void *user, KvcKeyScope *scope)
{
	__atomic_fetch_add(&((Fixture *)user)->n_scopes, 1, __ATOMIC_RELAXED);
}

static inline int
lost(Fixture *f)
{
	return __atomic_load_n(&f->n_lost, __ATOMIC_RELAXED);
}

static inline void
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

static inline void
start(Fixture *f, const char *first, const char *second)
{
	start_with_policy(f, first, second, NULL);
}

static inline void
stop(Fixture *f)
{
	kvc_storage_manager_free(g_steal_pointer(&f->sm));
}

static inline int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	f->scope = kvc_key_scope_new("org/model", 0x01000100, 0, NULL, NULL);
	*state = f;
	return 0;
}

static inline int
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

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

/* ---- What the tests are made of ------------------------------------------------------------ */

static inline KvcObjectKey *
key_of(Fixture *f, unsigned number)
{
	return key_in(f->scope, f->scope->is_plain ? KVC_SPACE_PLAIN : KVC_SPACE_CHUNK, number);
}

static inline uint8_t
byte_of(unsigned number, unsigned version)
{
	return (uint8_t)(number * 7 + version * 101 + 1);
}

static inline int
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

static inline int
try_put(Fixture *f, unsigned number, uint64_t bytes, unsigned version)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return commit(f, key, bytes, byte_of(number, version), KVC_FINISH_FIRST_WINS);
}

static inline void
put(Fixture *f, unsigned number, uint64_t bytes)
{
	assert_int_equal(try_put(f, number, bytes, 0), 0);
}

static inline KvcL1Object *
try_read(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object = NULL;
	int rc = kvc_storage_manager_reserve_read(f->sm, key, &object);
	assert_int_equal(rc, object ? 0 : -ENOENT);
	return object;
}

static inline bool
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

static inline void
assert_in_l1(Fixture *f, unsigned number, uint64_t bytes, unsigned version)
{
	KvcL1Object *object = try_read(f, number);
	assert_non_null(object);
	assert_true(has_content(object, bytes, byte_of(number, version)));
	kvc_storage_manager_finish_read(f->sm, object);
}

static inline bool
is_in_l1(Fixture *f, unsigned number)
{
	KvcL1Object *object = try_read(f, number);
	if (object)
		kvc_storage_manager_finish_read(f->sm, object);
	return object != NULL;
}

/* 0: not known. */
static inline uint32_t
tiers(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectInfo info;
	int rc = kvc_storage_manager_stat(f->sm, key, &info);
	assert_true(rc == 0 || rc == -ENOENT);
	return rc == 0 ? info.tiers : 0;
}

static inline int
delete_key(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_storage_manager_delete(f->sm, key);
}

static inline int
evict(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_storage_manager_evict(f->sm, key);
}

typedef struct Flushed {
	int count; /* Atomic */
	int error;
} Flushed;

static inline void
on_flushed(void *user, int error)
{
	Flushed *flushed = user;
	flushed->error = error;
	__atomic_fetch_add(&flushed->count, 1, __ATOMIC_RELEASE);
}

static inline int
count_of(const Flushed *flushed)
{
	return __atomic_load_n(&flushed->count, __ATOMIC_ACQUIRE);
}

static inline int
flush(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	Flushed flushed = {0};
	kvc_storage_manager_flush(f->sm, key, on_flushed, &flushed);
	wait_until(count_of(&flushed) > 0);
	assert_int_equal(count_of(&flushed), 1);
	return flushed.error;
}

static inline void
drain(Fixture *f)
{
	assert_int_equal(kvc_storage_manager_drain(f->sm, 20 * KVC_SEC_NS), 0);
}

/* In L2 and nowhere else. */
static inline void
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

static inline void
find_line(void *user, const char *name, const char *value)
{
	Wanted *wanted = user;
	if (strcmp(name, wanted->name) == 0) {
		assert_null(wanted->value);
		wanted->value = g_strdup(value);
	}
}

static inline char *
status_of(Fixture *f, const char *name)
{
	Wanted wanted = {name, NULL};
	kvc_storage_manager_report_status(f->sm, find_line, &wanted);
	assert_non_null(wanted.value);
	return wanted.value;
}

static inline void
assert_status(Fixture *f, const char *name, const char *expected)
{
	g_autofree char *value = status_of(f, name);
	assert_string_equal(value, expected);
}

static inline bool
is_status(Fixture *f, const char *name, const char *expected)
{
	g_autofree char *value = status_of(f, name);
	return strcmp(value, expected) == 0;
}

static inline unsigned
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

static inline void
on_planned(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Callbacks *)user)->planned, 1, __ATOMIC_RELAXED);
}

static inline void
on_done(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Callbacks *)user)->done, 1, __ATOMIC_RELAXED);
}

static inline void
on_freed(void *user)
{
	__atomic_fetch_add(&((Callbacks *)user)->freed, 1, __ATOMIC_RELEASE);
}

/* Keys FROM to TO - 1. */
static inline KvcPrefetchHandle *
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

static inline KvcPrefetchHandle *
prefetch(Fixture *f, unsigned from, unsigned to, unsigned flags)
{
	return prefetch_with(f, from, to, flags, 0, NULL);
}

static inline ssize_t
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

static inline ssize_t
found_of(KvcPrefetchHandle *handle)
{
	wait_until(kvc_prefetch_handle_get_found(handle) != -EAGAIN);
	return kvc_prefetch_handle_get_found(handle);
}

/* How much of the run is there, without loading it. */
static inline ssize_t
look_up(Fixture *f, unsigned from, unsigned to)
{
	KvcPrefetchHandle *handle = prefetch(f, from, to, KVC_PREFETCH_LOOKUP_ONLY);
	ssize_t found = found_of(handle);
	kvc_prefetch_handle_drop(handle, NULL);
	return found;
}

static inline ssize_t
load(Fixture *f, unsigned from, unsigned to)
{
	KvcPrefetchHandle *handle = prefetch(f, from, to, 0);
	ssize_t result = result_of(f, handle);
	kvc_prefetch_handle_drop(handle, NULL);
	return result;
}

#endif
