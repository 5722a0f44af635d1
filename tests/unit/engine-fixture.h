/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ENGINE_FIXTURE_H
#define TESTS_UNIT_ENGINE_FIXTURE_H

/* Both controllers and the eviction over one L1 and scripted adapters. */

#include "tests/unit/prefetch-fixture.h"

#include "engine/eviction-controller.h"
#include "engine/store-controller.h"
#include "kvcache/registry.h"

#define DRAIN_NS (20 * KVC_SEC_NS)

static inline uint32_t
store_everywhere(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return (1u << n) - 1;
}

static inline bool
delete_always(const KvcObjectKey *key)
{
	return true;
}

static const KvcStorePolicy everywhere = {.select_store_targets = store_everywhere};
static const KvcStorePolicy skip_l1 = {
	.select_store_targets = store_everywhere,
	.select_l1_deletion = delete_always,
};

typedef struct Engine {
	Bench b;
	KvcEvictionController *eviction;
	KvcStoreController *store;
} Engine;

/* LISTENER, if any, hears L1 after the engine's own. The StoreController is not started. */
static inline Engine
engine_new_with(size_t n_adapters,
		const KvcStorePolicy *store_policy,
		KvcL1ManagerListener *listener)
{
	Engine e = {.b.env = env_new(n_adapters, CAPACITY)};
	Env *env = e.b.env;
	/* Its thread does not run: only reservations evict. */
	e.eviction = kvc_eviction_controller_new(env->context.l1, env->memory,
						 kvc_find_eviction_policy("lru", NULL), 2, 0.2);
	e.store = kvc_store_controller_new(&env->context, store_policy, NULL);
	assert_non_null(e.store);
	if (listener)
		kvc_l1_manager_register_listener(env->context.l1, listener);
	e.b.c = kvc_prefetch_controller_new(&env->context, &first, 8, NULL);
	assert_non_null(e.b.c);
	e.b.keys = keys_new(env, N);
	kvc_prefetch_controller_start(e.b.c);
	return e;
}

static inline Engine
engine_new(size_t n_adapters, const KvcStorePolicy *store_policy)
{
	Engine e = engine_new_with(n_adapters, store_policy, NULL);
	kvc_store_controller_start(e.store);
	return e;
}

static inline void
engine_free(Engine *e)
{
	kvc_prefetch_controller_stop(e->b.c);
	kvc_store_controller_stop(e->store);
	kvc_store_controller_free(e->store);
	kvc_eviction_controller_stop(e->eviction);
	bench_free(&e->b);
	kvc_eviction_controller_free(e->eviction);
}

static inline void
engine_drain(Engine *e)
{
	assert_int_equal(kvc_store_controller_drain(e->store, DRAIN_NS), 0);
}

/* A writer commits the keys whose digit is in WHICH. */
static inline void
engine_write(Engine *e, const char *which)
{
	for (const char *p = which; *p; p++) {
		KvcObjectKey *key = e->b.keys[*p - '0'];
		env_write(e->b.env, key, size_of(key), 0, KVC_FINISH_FIRST_WINS);
	}
}

static inline void *
stop_prefetch_thread(void *data)
{
	kvc_prefetch_controller_stop(data);
	return NULL;
}

static inline void *
stop_store_thread(void *data)
{
	kvc_store_controller_stop(data);
	return NULL;
}

#endif
