/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_PREFETCH_FIXTURE_H
#define TESTS_UNIT_PREFETCH_FIXTURE_H

/* A PrefetchController over scripted adapters, and requests that note what they were called back.
 */

#include "tests/unit/controller-fixture.h"

#include "engine/prefetch-private.h"

#include <dirent.h>

#define CAPACITY (UINT64_C(64) << 20)
#define N 5

/* What the tests' policy decides: the first adapter that has a key. */
static inline void
plan_first(KvcObjectKey *const *keys,
	   size_t n_keys,
	   const KvcBitmap *const *found,
	   const KvcAdapterDescriptor *adapters,
	   size_t n_adapters,
	   KvcBitmap **plan)
{
	for (size_t a = 0; a < n_adapters; a++) {
		kvc_bitmap_or(plan[a], found[a]);
		for (size_t b = 0; b < a; b++)
			kvc_bitmap_andnot(plan[a], found[b]);
	}
}

/* A policy that claims everything for everybody, found or not. */
static inline void
plan_badly(KvcObjectKey *const *keys,
	   size_t n_keys,
	   const KvcBitmap *const *found,
	   const KvcAdapterDescriptor *adapters,
	   size_t n_adapters,
	   KvcBitmap **plan)
{
	for (size_t a = 0; a < n_adapters; a++)
		for (size_t i = 0; i < n_keys; i++)
			kvc_bitmap_set(plan[a], i);
}

static const KvcPrefetchPolicy first = {.select_load_plan = plan_first};
static const KvcPrefetchPolicy retain = {.select_load_plan = plan_first, .retain = true};
static const KvcPrefetchPolicy bad = {.select_load_plan = plan_badly};

typedef struct Bench {
	Env *env;
	KvcPrefetchController *c;
	KvcObjectKey **keys; /* N of them */
} Bench;

static inline Bench
bench_new(size_t n_adapters, const KvcPrefetchPolicy *policy, unsigned max_in_flight)
{
	Bench b = {.env = env_new(n_adapters, CAPACITY)};
	b.c = kvc_prefetch_controller_new(&b.env->context, policy, max_in_flight, NULL);
	assert_non_null(b.c);
	b.keys = keys_new(b.env, N);
	kvc_prefetch_controller_start(b.c);
	return b;
}

static inline void
bench_free(Bench *b)
{
	kvc_prefetch_controller_stop(b->c);
	assert_int_equal(kvc_prefetch_controller_active(b->c), 0);
	KvcStats *stats = &b->env->stats;
	assert_int_equal(kvc_stats_get(stats, prefetches),
			 kvc_stats_get(stats, prefetches_completed) +
				 kvc_stats_get(stats, prefetches_cancelled));
	assert_int_equal(kvc_stats_get(stats, loads),
			 kvc_stats_get(stats, loads_completed) +
				 kvc_stats_get(stats, loads_failed_missing));
	kvc_prefetch_controller_free(b->c);
	keys_free(b->keys, N);
	env_free(b->env);
}

/* Sizes differ from key to key (difference 5). */
static inline size_t
size_of(const KvcObjectKey *key)
{
	return 100 + (key->hash % 5) * 3000;
}

/* Puts the keys whose digit is in WHICH ("013") into L1, clean; or into adapter A. */
static inline void
put_l1(Bench *b, const char *which)
{
	for (const char *p = which; *p; p++) {
		KvcObjectKey *key = b->keys[*p - '0'];
		KvcL1Object *object;
		env_write(b->env, key, size_of(key), 0, KVC_FINISH_REPLACE);
		kvc_l1_manager_reserve_read(b->env->context.l1, &key, 1, 1, &object, NULL);
		kvc_l1_manager_set_clean(b->env->context.l1, object, true);
		kvc_l1_manager_finish_read(b->env->context.l1, object, 1);
	}
}

static inline void
put_l2(Bench *b, size_t adapter, const char *which)
{
	for (const char *p = which; *p; p++) {
		KvcObjectKey *key = b->keys[*p - '0'];
		g_autoptr(GBytes) data = bytes_of(key, size_of(key), 0);
		fake_put(b->env->fakes[adapter], key, data);
	}
}

static inline void
put_large(Bench *b, size_t bytes)
{
	for (size_t i = 0; i < N; i++) {
		g_autoptr(GBytes) data = bytes_of(b->keys[i], bytes, 0);
		fake_put(b->env->fakes[0], b->keys[i], data);
	}
}

/* ---- A request and what it called back ---------------------------------------------------------
 */

typedef struct Call {
	KvcPrefetchHandle *handle;
	/* Atomic. */
	int planned, done, freed;
	int found_when_planned;
	bool drop_when_done, start_when_done;
	struct Call *drop_other_when_done;
} Call;

static inline void
on_planned(void *user, KvcPrefetchHandle *handle)
{
	Call *call = user;
	assert_int_equal(__atomic_load_n(&call->done, __ATOMIC_ACQUIRE), 0);
	call->found_when_planned = (int)kvc_prefetch_handle_get_found(handle);
	__atomic_fetch_add(&call->planned, 1, __ATOMIC_RELEASE);
}

static inline void
on_freed(void *user)
{
	Call *call = user;
	__atomic_fetch_add(&call->freed, 1, __ATOMIC_RELEASE);
}

static inline void
on_done(void *user, KvcPrefetchHandle *handle)
{
	Call *call = user;
	assert_int_equal(__atomic_load_n(&call->freed, __ATOMIC_ACQUIRE), 0);
	if (call->drop_when_done)
		kvc_prefetch_handle_drop(handle, on_freed);
	if (call->start_when_done)
		kvc_prefetch_handle_start(handle);
	if (call->drop_other_when_done)
		kvc_prefetch_handle_drop(call->drop_other_when_done->handle, on_freed);
	__atomic_fetch_add(&call->done, 1, __ATOMIC_RELEASE);
}

static inline int
get(int *value)
{
	return __atomic_load_n(value, __ATOMIC_ACQUIRE);
}

static inline void
submit_with(Bench *b, Call *call, size_t n, KvcPrefetchParams params)
{
	if (!params.keys)
		params.keys = b->keys;
	params.n_keys = n;
	params.planned = on_planned;
	params.done = on_done;
	params.user = call;
	call->handle = kvc_prefetch_controller_submit(b->c, &params);
	assert_non_null(call->handle);
}

static inline void
submit(Bench *b, Call *call, size_t n, unsigned flags)
{
	submit_with(b, call, n, (KvcPrefetchParams){.flags = flags});
}

/* Waits for the answer and returns it. */
static inline int
answer(Bench *b, Call *call)
{
	if (call->handle->request_id >= 0)
		wait_until(get(&call->done) == 1);
	return (int)kvc_prefetch_controller_query(b->c, call->handle);
}

static inline void
drop(Call *call)
{
	kvc_prefetch_handle_drop(call->handle, on_freed);
	wait_until(get(&call->freed) == 1);
}

static inline int
run(Bench *b, size_t n, unsigned flags)
{
	Call call = {0};
	submit(b, &call, n, flags);
	int result = answer(b, &call);
	drop(&call);
	return result;
}

static inline bool
is_resident(Bench *b, size_t i)
{
	KvcL1Object *object;
	KvcL1Manager *l1 = b->env->context.l1;
	if (kvc_l1_manager_reserve_read(l1, &b->keys[i], 1, 1, &object, NULL) == 0)
		return false;
	g_autoptr(GBytes) data = bytes_of(b->keys[i], size_of(b->keys[i]), 0);
	assert_true(object_has(object, data));
	kvc_l1_manager_finish_read(l1, object, 1);
	return true;
}

static inline uint64_t
read_locks(Bench *b)
{
	return env_counts(b->env).read_locks;
}

static inline int
l2_locks(Bench *b, size_t adapter)
{
	return fake_get(b->env->fakes[adapter], &b->env->fakes[adapter]->n_locks);
}

/* ---- The lock maps ------------------------------------------------------------------------- */

typedef struct Total {
	unsigned long l1_locks, l2_locks, reserved, bytes_in_flight;
	unsigned handles, slots;
} Total;

static inline void
find_total(void *user, const char *name, const char *value)
{
	Total *t = user;
	if (strcmp(name, "total") != 0)
		return;
	assert_int_equal(sscanf(value,
				"%lu L1 locks, %lu L2 locks, %lu reserved, %u handles, %u slots, "
				"%lu bytes in flight",
				&t->l1_locks, &t->l2_locks, &t->reserved, &t->handles, &t->slots,
				&t->bytes_in_flight),
			 6);
}

static inline Total
total(Bench *b)
{
	Total t = {.handles = UINT32_MAX};
	kvc_prefetch_controller_dump(b->c, find_total, &t);
	assert_true(t.handles != UINT32_MAX);
	return t;
}

/*
 * Do the maps of all handles add up to what L1 and the adapters have locked and reserved, TAKEN
 * read locks apart, which callers have moved out of their handles?
 */
static inline bool
maps_are_exact(Bench *b, unsigned long taken)
{
	Total t = total(b);
	KvcL1Counts counts = env_counts(b->env);
	unsigned long locks = 0;
	for (size_t a = 0; a < b->env->context.n_adapters; a++)
		locks += (unsigned long)l2_locks(b, a);
	return t.l1_locks + taken == counts.read_locks && t.l2_locks == locks &&
	       t.reserved == counts.staging_objects;
}

static inline unsigned
count_fds(void)
{
	unsigned n = 0;
	DIR *dir = opendir("/proc/self/fd");
	assert_non_null(dir);
	while (readdir(dir))
		n++;
	closedir(dir);
	return n;
}

static inline void
wait_idle(Bench *b)
{
	wait_until(kvc_prefetch_controller_active(b->c) == 0);
}

/* ---- Deadlines ----------------------------------------------------------------------------- */

/* Has the first adapter HELD tasks of KIND? False: CALL was answered before it had. */
static inline bool
has_begun(Bench *b, Call *call, FakeKind kind, unsigned held)
{
	FakeAdapter *fake = b->env->fakes[0];
	wait_until(fake_count_held(fake, kind) == held || get(&call->done) == 1);
	return fake_count_held(fake, kind) == held;
}

/*
 * Submits a request whose deadline comes after its tasks of KIND have begun, with which the first
 * adapter holds HELD of them. A deadline that came before is doubled; returns how many there were.
 */
static inline unsigned
submit_with_deadline(
	Bench *b, Call *call, size_t n, KvcPrefetchParams params, FakeKind kind, unsigned held)
{
	size_t active = kvc_prefetch_controller_active(b->c);
	unsigned n_early = 0;
	for (;; params.timeout_ns *= 2, n_early++) {
		submit_with(b, call, n, params);
		if (has_begun(b, call, kind, held))
			return n_early;
		drop(call);
		wait_until(kvc_prefetch_controller_active(b->c) == active);
		*call = (Call){0};
	}
}

/* Releases the NTH load: true: CALL has it, false: CALL was answered before it came. */
static inline bool
is_released_in_time(Bench *b, Call *call, unsigned nth)
{
	uint64_t completed = env_stat(b->env, loads_completed);
	fake_release_nth(b->env->fakes[0], FAKE_LOAD, nth);
	wait_until(env_stat(b->env, loads_completed) == completed + 1);
	return get(&call->done) == 0;
}

/* For a deadline that came too early: everything ends. */
static inline void
bench_give_up(Bench *b, Call *call)
{
	fake_release(b->env->fakes[0], FAKE_LOAD);
	drop(call);
	wait_idle(b);
	bench_free(b);
}

#endif
