/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_CONTROLLER_FIXTURE_H
#define TESTS_UNIT_CONTROLLER_FIXTURE_H

/* What the tests of both controllers stand on: an L1 with its index, over scripted adapters. */

#include "tests/unit/fake-adapter.h"
#include "tests/unit/key-fixture.h"

#define MAX_FAKES 3

/* ---- The engine around a controller -------------------------------------------------------- */

typedef struct Env {
	KvcL1ManagerListener index_listener; /* must be first */
	KvcStats stats;
	KvcL1Memory *memory;
	KvcControllerContext context;
	KvcAdapterSlot slots[MAX_FAKES];
	KvcAdapterDescriptor descriptors[MAX_FAKES];
	FakeAdapter *fakes[MAX_FAKES];
	KvcKeyScope *scope;
} Env;

static inline void
env_on_admitted(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcKeyIndex *index = ((Env *)l)->context.index;
	const KvcObjectAttributes attributes = {.mtime_ns = object->mtime_ns};
	if (object->key->space == KVC_SPACE_CHUNK)
		kvc_key_index_add(index, object->key, KVC_TIER_L1, object->bytes, object->mtime_ns);
	else
		object->version_ns =
			kvc_key_index_replace_with(index, object->key, object->bytes, &attributes);
}

static inline void
env_on_loaded(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_key_index_add(((Env *)l)->context.index, object->key, KVC_TIER_L1, object->bytes, 0);
}

static inline void
env_on_deleted(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_key_index_remove(((Env *)l)->context.index, object->key, KVC_TIER_L1);
}

static inline void
env_on_renamed(KvcL1ManagerListener *l,
	       KvcObjectKey *old_key,
	       KvcObjectKey *new_key,
	       KvcL1Object *object)
{
	KvcControllerContext *context = &((Env *)l)->context;
	kvc_key_index_rename(context->index, old_key, new_key, object != NULL,
			     (1u << context->n_adapters) - 1,
			     kvc_controller_context_renamers(context));
}

static inline KvcKeyScope *
scope_of(uint32_t rank)
{
	KvcKeyScope *scope = kvc_key_scope_new("model", rank, 0, NULL, NULL);
	assert_non_null(scope);
	return scope;
}

static inline Env *
env_new(size_t n_adapters, uint64_t capacity)
{
	Env *env = g_new0(Env, 1);
	env->memory = kvc_l1_memory_new(capacity, 16 << 20, NULL);
	assert_non_null(env->memory);
	env->context.stats = &env->stats;
	env->context.index = kvc_key_index_new(NULL, NULL, NULL);
	env->context.l1 = kvc_l1_manager_new(env->memory, &env->stats);
	env->context.l1_capacity_bytes = capacity;
	env->context.adapters = env->slots;
	env->context.descriptors = env->descriptors;
	env->context.n_adapters = n_adapters;
	env->index_listener.on_write_finished = env_on_admitted;
	env->index_listener.on_prefetch_finished = env_on_loaded;
	env->index_listener.on_deleted_by_manager = env_on_deleted;
	env->index_listener.on_renamed = env_on_renamed;
	kvc_l1_manager_register_listener(env->context.l1, &env->index_listener);
	kvc_l1_manager_set_tracks_dirty(env->context.l1, n_adapters > 0);
	for (size_t a = 0; a < n_adapters; a++) {
		env->fakes[a] = fake_new();
		env->slots[a].adapter = &env->fakes[a]->base;
		env->descriptors[a].index = a;
	}
	env->scope = scope_of(0x01000100);
	return env;
}

/* Everything must have been given back: locks of both kinds, memory, and no contract broken. */
static inline void
env_free(Env *env)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(env->context.l1, &counts);
	assert_int_equal(counts.read_locks, 0);
	assert_int_equal(counts.locked_bytes, 0);
	assert_int_equal(counts.staging_objects, 0);
	assert_int_equal(counts.staging_bytes, 0);
	for (size_t a = 0; a < env->context.n_adapters; a++) {
		FakeAdapter *fake = env->fakes[a];
		assert_int_equal(fake->n_locks, 0);
		assert_int_equal(fake->bad_queries, 0);
		assert_int_equal(fake->bad_unlocks, 0);
		assert_int_equal(fake->overlaps, 0);
		assert_int_equal(fake->tasks->len, 0);
		fake_free(fake);
	}
	kvc_l1_manager_free(env->context.l1);
	assert_int_equal(kvc_l1_memory_used(env->memory), 0);
	assert_int_equal(kvc_l1_memory_files(env->memory), 0);
	kvc_l1_memory_free(env->memory);
	kvc_key_index_free(env->context.index);
	kvc_key_scope_unref(env->scope);
	g_free(env);
}

static inline KvcObjectKey *
key_new(Env *env, unsigned number)
{
	return key_in(env->scope, env->scope->is_plain ? KVC_SPACE_PLAIN : KVC_SPACE_CHUNK, number);
}

/* N keys, numbered from 0 (transfer full: keys_free). */
static inline KvcObjectKey **
keys_new(Env *env, size_t n)
{
	KvcObjectKey **keys = g_new(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		keys[i] = key_new(env, (unsigned)i);
	return keys;
}

static inline void
keys_free(KvcObjectKey **keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		kvc_object_key_unref(keys[i]);
	g_free(keys);
}

/* Bytes that differ from key to key and from version to version. */
static inline GBytes *
bytes_of(const KvcObjectKey *key, size_t size, unsigned version)
{
	size_t n = size / sizeof(uint64_t) + 1;
	uint64_t *data = g_new(uint64_t, n);
	uint64_t x = key->hash ^ (version * UINT64_C(0x9e3779b97f4a7c15));
	for (size_t i = 0; i < n; i++)
		data[i] = x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return g_bytes_new_take(data, size);
}

/* Commits KEY to L1 as a writer does. */
static inline void
env_write(Env *env, KvcObjectKey *key, size_t size, unsigned version, KvcFinishMode mode)
{
	g_autoptr(GBytes) data = bytes_of(key, size, version);
	KvcL1Object *object;
	int errnum = 0;
	assert_int_equal(
		kvc_l1_manager_reserve_write(env->context.l1, key, size, false, &object, &errnum),
		KVC_L1_SUCCESS);
	assert_int_equal(pwrite(object->fd, g_bytes_get_data(data, NULL), size, 0), size);
	assert_int_equal(kvc_l1_manager_finish_write(env->context.l1, object, key, mode),
			 KVC_L1_SUCCESS);
}

static inline bool
object_has(KvcL1Object *object, GBytes *data)
{
	size_t size = g_bytes_get_size(data);
	g_autofree char *read = g_malloc(size + 1);
	return object->bytes == size && pread(object->fd, read, size + 1, 0) == (ssize_t)size &&
	       memcmp(read, g_bytes_get_data(data, NULL), size) == 0;
}

static inline KvcL1Counts
env_counts(Env *env)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(env->context.l1, &counts);
	return counts;
}

static inline uint32_t
env_tiers(Env *env, const KvcObjectKey *key)
{
	KvcObjectInfo info;
	return kvc_key_index_get(env->context.index, key, &info) == 0 ? info.tiers : 0;
}

#define env_stat(env, name) kvc_stats_get(&(env)->stats, name)

#endif
