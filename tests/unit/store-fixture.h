/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STORE_FIXTURE_H
#define TESTS_UNIT_STORE_FIXTURE_H

/* A StoreController over scripted adapters. */

#include "tests/unit/controller-fixture.h"

#include "engine/store-private.h"

#define CAPACITY (UINT64_C(64) << 20)
#define DRAIN_NS (60 * KVC_SEC_NS) /* two cores may have many to serve */

typedef struct Bench {
	Env *env;
	KvcStoreController *store;
	uint64_t last_delete_id;
} Bench;

static inline uint32_t
store_everywhere(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return (1u << n) - 1;
}

static inline uint32_t
store_nowhere(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return 0;
}

static inline bool
delete_always(const KvcObjectKey *key)
{
	return true;
}

static const KvcStorePolicy everywhere = {.select_store_targets = store_everywhere};
static const KvcStorePolicy nowhere = {.select_store_targets = store_nowhere};
static const KvcStorePolicy skip_l1 = {
	.select_store_targets = store_everywhere,
	.select_l1_deletion = delete_always,
};

/* Not started: what is committed before the start is seen in one go. */
static inline Bench
bench_new(size_t n_adapters, uint64_t capacity, const KvcStorePolicy *policy)
{
	Bench b = {.env = env_new(n_adapters, capacity)};
	b.store = kvc_store_controller_new(&b.env->context, policy, NULL);
	assert_non_null(b.store);
	return b;
}

static inline Bench
bench_started(size_t n_adapters, const KvcStorePolicy *policy)
{
	Bench b = bench_new(n_adapters, CAPACITY, policy);
	kvc_store_controller_start(b.store);
	return b;
}

/* Each store that was begun, or could not be, ends in one way. */
static inline void
assert_stores_add_up(Bench *b)
{
	assert_int_equal(
		env_stat(b->env, stores) + env_stat(b->env, stores_blocked) +
			env_stat(b->env, stores_unreachable) + env_stat(b->env, stores_unmapped),
		env_stat(b->env, stores_completed) + env_stat(b->env, stores_retried) +
			env_stat(b->env, stores_put_off) + env_stat(b->env, stores_failed) +
			env_stat(b->env, stores_outdated));
}

static inline void
bench_free(Bench *b)
{
	kvc_store_controller_stop(b->store);
	assert_stores_add_up(b);
	kvc_store_controller_free(b->store);
	env_free(b->env);
}

static inline void
drain(Bench *b)
{
	assert_int_equal(kvc_store_controller_drain(b->store, DRAIN_NS), 0);
}

/* As the StorageManager deletes. */
static inline void
delete_key(Bench *b, KvcObjectKey *key, uint32_t adapters)
{
	uint64_t id = __atomic_add_fetch(&b->last_delete_id, 1, __ATOMIC_RELAXED);
	kvc_key_index_hide(b->env->context.index, key, adapters, id);
	kvc_l1_manager_delete(b->env->context.l1, key, true);
	kvc_store_controller_submit_delete(b->store, key, adapters, id);
}

static inline bool
is_hidden(Bench *b, KvcObjectKey *key, uint32_t adapter)
{
	KvcKeyIndex *index = b->env->context.index;
	kvc_key_index_add(index, key, adapter, 1, 1);
	bool hidden = !(env_tiers(b->env, key) & adapter);
	kvc_key_index_remove(index, key, adapter);
	return hidden;
}

typedef struct Flushed {
	int error;
	int calls; /* Atomic */
} Flushed;

static inline void
on_flushed(void *user, int error)
{
	Flushed *flushed = user;
	flushed->error = error;
	__atomic_fetch_add(&flushed->calls, 1, __ATOMIC_RELEASE);
}

static inline int
calls(Flushed *flushed)
{
	return __atomic_load_n(&flushed->calls, __ATOMIC_ACQUIRE);
}

#endif
