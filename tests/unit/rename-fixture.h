/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_RENAME_FIXTURE_H
#define TESTS_UNIT_RENAME_FIXTURE_H

/* A StoreController over scripted adapters, and two plain names, of which one is renamed to the
 * other. */

#include "tests/unit/store-fixture.h"

typedef struct Two {
	Bench b;
	KvcObjectKey *old_key, *new_key;
} Two;

static inline Two
two_new(size_t n_adapters)
{
	Two t = {.b = bench_new(n_adapters, CAPACITY, &everywhere)};
	kvc_key_scope_unref(t.b.env->scope);
	t.b.env->scope = kvc_key_scope_new_plain("directory", NULL);
	t.old_key = key_new(t.b.env, 1);
	t.new_key = key_new(t.b.env, 2);
	return t;
}

static inline Two
two_started(size_t n_adapters)
{
	Two t = two_new(n_adapters);
	kvc_store_controller_start(t.b.store);
	return t;
}

static inline void
two_free(Two *t)
{
	bench_free(&t->b);
	kvc_object_key_unref(t->old_key);
	kvc_object_key_unref(t->new_key);
}

/* As the StorageManager decides. */
static inline int
check(void *user, bool is_resident)
{
	Env *env = user;
	if (kvc_controller_context_renamers(&env->context) + 1 == 1u << env->context.n_adapters)
		return 0;
	return is_resident ? KVC_L1_RENAME_STORE : -EXDEV;
}

static inline int
try_rename(Bench *b, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	return kvc_l1_manager_rename(b->env->context.l1, old_key, new_key, check, b->env);
}

static inline void
rename_keys(Bench *b, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	assert_int_equal(try_rename(b, old_key, new_key), 0);
}

/* The object under KEY: the bytes of version V of OF. */
static inline bool
fake_has_version(FakeAdapter *fake, KvcObjectKey *key, KvcObjectKey *of, unsigned v)
{
	g_autoptr(GBytes) data = bytes_of(of, 100, v);
	return fake_has(fake, key, data);
}

static inline void
write_version(Two *t, KvcObjectKey *key, unsigned v)
{
	env_write(t->b.env, key, 100, v, KVC_FINISH_REPLACE);
}

static inline bool
is_in_l1(Two *t, KvcObjectKey *key, KvcObjectKey *of, unsigned v)
{
	g_autoptr(GBytes) data = bytes_of(of, 100, v);
	KvcL1Object *object;
	if (kvc_l1_manager_reserve_read(t->b.env->context.l1, &key, 1, 1, &object, NULL) == 0)
		return false;
	bool has = object_has(object, data);
	kvc_l1_manager_finish_read(t->b.env->context.l1, object, 1);
	return has;
}

static inline KvcObjectInfo
info_of(Two *t, KvcObjectKey *key)
{
	KvcObjectInfo info = {0};
	kvc_key_index_get(t->b.env->context.index, key, &info);
	return info;
}

static inline uint64_t
get(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

#endif
