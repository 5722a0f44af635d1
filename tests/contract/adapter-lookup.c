/* SPDX-License-Identifier: Apache-2.0 */

/* Lookups, the locks that they take, and the deletions that those keep off. */

#include "adapter-fixture.h"

/* A bit for each key that is there, and its size; nothing is said of the others. */
static void
test_lookup_is_fine_grained(void **state)
{
	enum { N = 130 };
	Subject *subject = *state;
	KvcObjectKey **keys = keys_new(subject, 0, N);
	KvcL2ObjectInfo info[N] = {0};

	for (uint32_t i = 0; i < N; i += 3) {
		KvcMemoryObj memory = memory_new(i, i);

		assert_int_equal(store(subject, keys[i], &memory), i);
		memory_free(&memory);
	}
	g_autoptr(KvcBitmap) found = lookup_many(subject, keys, N, info);
	for (uint32_t i = 0; i < N; i++) {
		assert_int_equal(kvc_bitmap_test(found, i), i % 3 == 0);
		assert_int_equal(info[i].bytes, i % 3 == 0 ? i : 0);
		assert_true(i % 3 == 0 || !info[i].version_ns);
	}
	keys_free(keys, N);
}

/* Each lookup that found it counts, the same key twice in a task too. */
static void
test_locks_are_counted(void **state)
{
	Subject *subject = *state;

	if (!subject->ops->delete_keys)
		skip();
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcObjectKey *twice[] = {key, key};
	KvcMemoryObj memory = memory_new(100, 1);

	assert_int_equal(store(subject, key, &memory), 100);
	g_autoptr(KvcBitmap) found = lookup_many(subject, twice, 2, NULL);
	assert_int_equal(kvc_bitmap_count(found), 2);
	assert_true(lookup_and_lock(subject, key, NULL));
	for (int locks = 3; locks > 0; locks--) {
		assert_false(delete_key(subject, key));
		assert_loads(subject, key, &memory);
		unlock(subject, key);
	}
	assert_true(delete_key(subject, key));
	assert_misses(subject, key, 100);
	memory_free(&memory);
}

/* Unlocking what is not locked, or not there, is nothing: no count goes below none. */
static void
test_unlock_of_what_is_not_locked(void **state)
{
	Subject *subject = *state;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcObjectKey) unknown = key_new(subject, KVC_SPACE_PREFIX, 2);
	KvcObjectKey *both[] = {unknown, key, key};
	KvcMemoryObj memory = memory_new(100, 1);

	subject->ops->submit_unlock(subject->adapter, both, 3);
	assert_int_equal(store(subject, key, &memory), 100);
	subject->ops->submit_unlock(subject->adapter, both, 3);
	assert_true(lookup_and_lock(subject, key, NULL));
	if (subject->ops->delete_keys)
		assert_false(delete_key(subject, key));
	subject->ops->submit_unlock(subject->adapter, both, 3);
	assert_loads(subject, key, &memory);
	if (subject->ops->delete_keys)
		assert_true(delete_key(subject, key));
	subject->ops->submit_unlock(subject->adapter, both, 3);
	memory_free(&memory);
}

/* A lookup that finds nothing locks nothing: what is stored after it can be deleted. */
static void
test_a_miss_locks_nothing(void **state)
{
	Subject *subject = *state;

	if (!subject->ops->delete_keys)
		skip();
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj memory = memory_new(100, 1);

	assert_false(lookup_and_lock(subject, key, NULL));
	assert_int_equal(store(subject, key, &memory), 100);
	assert_true(delete_key(subject, key));
	memory_free(&memory);
}

/* Of one call: what is locked stays, the rest goes, what is absent counts as gone. */
static void
test_delete_returns_what_went(void **state)
{
	enum { N = 6 };
	Subject *subject = *state;

	if (!subject->ops->delete_keys)
		skip();
	KvcObjectKey **keys = keys_new(subject, 0, N);
	KvcMemoryObj *memories = memories_new(N, 300, 1);
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N);

	store_many(subject, keys, memories, 4); /* 4 and 5 are absent */
	assert_true(lookup_and_lock(subject, keys[1], NULL));
	assert_true(lookup_and_lock(subject, keys[3], NULL));
	assert_int_equal(subject->ops->delete_keys(subject->adapter, keys, N, deleted), 0);
	for (size_t i = 0; i < N; i++) {
		bool stays = i == 1 || i == 3;

		assert_int_equal(kvc_bitmap_test(deleted, i), !stays);
		assert_int_equal(is_found(subject, keys[i]), stays);
	}
	assert_loads(subject, keys[1], &memories[1]);
	assert_misses(subject, keys[0], 300);
	keys_free(keys, N);
	memories_free(memories, N);
}

/* After a deletion the key is as new: nothing of the old bytes returns. */
static void
test_stored_again_after_delete(void **state)
{
	Subject *subject = *state;

	if (!subject->ops->delete_keys)
		skip();
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj first = memory_new(5000, 1), second = memory_new(5000, 2);

	assert_int_equal(store(subject, key, &first), 5000);
	assert_true(delete_key(subject, key));
	assert_int_equal(store(subject, key, &second), 5000);
	assert_loads(subject, key, &second);
	memory_free(&first);
	memory_free(&second);
}

/* ---- Renames and attributes ---------------------------------------------------------------- */

static void
test_rename(void **state)
{
	Subject *subject = *state;

	const KvcL2AdapterOps *ops = subject->ops;

	if (!ops->rename_key)
		skip();
	g_autoptr(KvcObjectKey) old_key = key_new(subject, KVC_SPACE_PLAIN, 1);
	g_autoptr(KvcObjectKey) new_key = key_new(subject, KVC_SPACE_PLAIN, 2);
	KvcMemoryObj memory = memory_new(5000, 1), replaced = memory_new(70, 2);

	assert_int_equal(ops->rename_key(subject->adapter, old_key, new_key), -ENOENT);
	assert_int_equal(store(subject, old_key, &memory), 5000);
	assert_int_equal(store(subject, new_key, &replaced), 70);
	assert_true(lookup_and_lock(subject, new_key, NULL));
	assert_int_equal(ops->rename_key(subject->adapter, old_key, new_key), -EBUSY);
	assert_int_equal(ops->rename_key(subject->adapter, new_key, old_key), -EBUSY);
	unlock(subject, new_key);
	assert_int_equal(ops->rename_key(subject->adapter, old_key, new_key), 0);
	assert_false(is_found(subject, old_key));
	assert_misses(subject, old_key, 5000);
	assert_loads(subject, new_key, &memory);
	assert_int_equal(ops->rename_key(subject->adapter, new_key, new_key), 0);
	assert_loads(subject, new_key, &memory);
	memory_free(&memory);
	memory_free(&replaced);
}

static KvcL2ObjectInfo
get_info(const Subject *subject, KvcObjectKey *key)
{
	KvcL2ObjectInfo info = {0};
	g_autoptr(KvcBitmap) found = lookup_many(subject, &key, 1, &info);

	assert_true(kvc_bitmap_test(found, 0));
	unlock(subject, key);
	return info;
}

/* A store may know none of them; what it knows is what it was told last. */
static void
test_attributes(void **state)
{
	Subject *subject = *state;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_PLAIN, 1);
	KvcMemoryObj memory = memory_new(100, 1);
	KvcObjectAttributes attributes = {
		.mtime_ns = INT64_C(1700000000) * 1000000000,
		.mode = 0100640,
		.uid = 12,
		.gid = 34,
		.version_ns = INT64_C(1700000001) * 1000000000,
	};
	KvcObjectAttributes changed = attributes;

	memory.attributes = &attributes;
	assert_int_equal(store(subject, key, &memory), 100);
	KvcL2ObjectInfo info = get_info(subject, key);
	assert_true(info.mtime_ns == 0 || info.mtime_ns == attributes.mtime_ns);
	assert_true(info.mode == 0 || (info.mode == 0100640 && info.uid == 12 && info.gid == 34));
	assert_true(info.version_ns == 0 || info.version_ns == attributes.version_ns);
	bool has_mode = info.mode, has_version = info.version_ns;

	memory_free(&memory);
	if (!subject->ops->set_attributes)
		return;
	changed.mode = 0100600;
	changed.version_ns++;
	assert_int_equal(subject->ops->set_attributes(subject->adapter, key, &changed), 0);
	info = get_info(subject, key);
	assert_int_equal(info.mode, has_mode ? 0100600 : 0);
	assert_int_equal(info.version_ns, has_version ? attributes.version_ns : 0);
	g_autoptr(KvcObjectKey) absent = key_new(subject, KVC_SPACE_PLAIN, 2);
	assert_int_equal(subject->ops->set_attributes(subject->adapter, absent, &changed), -ENOENT);
}

const struct CMUnitTest adapter_lookup_tests[] = {
	{"lookup_is_fine_grained", test_lookup_is_fine_grained, set_up, tear_down, NULL},
	{"locks_are_counted", test_locks_are_counted, set_up, tear_down, NULL},
	{"unlock_of_what_is_not_locked", test_unlock_of_what_is_not_locked, set_up, tear_down,
	 NULL},
	{"a_miss_locks_nothing", test_a_miss_locks_nothing, set_up, tear_down, NULL},
	{"delete_returns_what_went", test_delete_returns_what_went, set_up, tear_down, NULL},
	{"stored_again_after_delete", test_stored_again_after_delete, set_up, tear_down, NULL},
	{"rename", test_rename, set_up, tear_down, NULL},
	{"attributes", test_attributes, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
