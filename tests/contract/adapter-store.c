/* SPDX-License-Identifier: Apache-2.0 */

/* Stores: ids, results, duplicates, failures, usage. */

#include "adapter-fixture.h"

#define TASKS 64
#define POP 5

/* Over stores, lookups and loads of one instance: none is 0, none is there twice. */
static void
test_task_ids_are_unique(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	g_autoptr(GHashTable) ids =
		g_hash_table_new_full(g_int64_hash, g_int64_equal, g_free, NULL);
	KvcObjectKey **keys = keys_new(subject, 0, TASKS);
	KvcMemoryObj *memories = memories_new(TASKS, 10, 1), *loads = memories_new(TASKS, 10, 9);
	KvcL2TaskId lookups[TASKS], load_ids[TASKS];

	for (size_t i = 0; i < TASKS; i++) {
		KvcL2TaskId id =
			ops->submit_store_task(subject->adapter, &keys[i], &memories[i], 1);

		assert_int_equal(await_store(subject, id), 10);
		lookups[i] = ops->submit_lookup_and_lock_task(subject->adapter, &keys[i], 1);
		load_ids[i] = ops->submit_load_task(subject->adapter, &keys[i], &loads[i], 1);
		assert_true(g_hash_table_add(ids, g_memdup2(&id, sizeof(id))));
		assert_true(g_hash_table_add(ids, g_memdup2(&lookups[i], sizeof(id))));
		assert_true(g_hash_table_add(ids, g_memdup2(&load_ids[i], sizeof(id))));
	}
	/* Queried in the other order than they were submitted in. */
	for (size_t i = TASKS; i-- > 0;) {
		g_autoptr(KvcBitmap) found = await_lookup(subject, lookups[i], 1, NULL);
		g_autoptr(KvcBitmap) loaded = await_load(subject, load_ids[i], 1);

		assert_true(kvc_bitmap_test(found, 0) && kvc_bitmap_test(loaded, 0));
		assert_true(memory_equal(&loads[i], &memories[i]));
	}
	keys_free(keys, TASKS);
	memories_free(memories, TASKS);
	memories_free(loads, TASKS);
}

/* A task that nobody submitted, and one of another kind, are not there. */
static void
test_unknown_tasks(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	g_autoptr(KvcBitmap) bits = kvc_bitmap_new(1);
	KvcL2ObjectInfo info = {0};
	KvcMemoryObj memory = memory_new(10, 1);
	KvcL2StoreResult result;
	KvcL2TaskId other = UINT64_MAX - 7;

	assert_int_equal(ops->query_lookup_and_lock_result(subject->adapter, other, bits, &info),
			 -ENOENT);
	assert_int_equal(ops->query_load_result(subject->adapter, other, bits), -ENOENT);
	assert_int_equal(ops->pop_completed_store_tasks(subject->adapter, &result, 1), 0);

	KvcL2TaskId lookup = ops->submit_lookup_and_lock_task(subject->adapter, &key, 1);
	KvcL2TaskId load_id = ops->submit_load_task(subject->adapter, &key, &memory, 1);
	assert_int_equal(ops->query_load_result(subject->adapter, lookup, bits), -ENOENT);
	assert_int_equal(ops->query_lookup_and_lock_result(subject->adapter, load_id, bits, &info),
			 -ENOENT);
	g_autoptr(KvcBitmap) found = await_lookup(subject, lookup, 1, NULL);
	g_autoptr(KvcBitmap) loaded = await_load(subject, load_id, 1);
	assert_int_equal(kvc_bitmap_count(found) + kvc_bitmap_count(loaded), 0);
	memory_free(&memory);
}

/* Many in flight, popped a few at a time: each is there once, with its own result. */
static void
test_each_result_is_popped_once(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	KvcObjectKey **keys = keys_new(subject, 0, TASKS);
	KvcMemoryObj memories[TASKS];
	KvcL2TaskId ids[TASKS];
	unsigned popped[TASKS] = {0}, n_popped = 0;
	KvcL2StoreResult results[POP];

	for (uint32_t i = 0; i < TASKS; i++) {
		memories[i] = memory_new(1 + i * 100, i);
		ids[i] = ops->submit_store_task(subject->adapter, &keys[i], &memories[i], 1);
	}
	while (n_popped < TASKS) {
		size_t n = ops->pop_completed_store_tasks(subject->adapter, results, POP);

		assert_true(n <= POP);
		if (n == 0)
			await_event(ops->get_store_event_fd(subject->adapter));
		for (size_t i = 0; i < n; i++, n_popped++) {
			size_t task = 0;

			while (task < TASKS && ids[task] != results[i].task_id)
				task++;
			assert_true(task < TASKS);
			popped[task]++;
			assert_int_equal(results[i].bytes_transferred, memories[task].bytes);
		}
	}
	for (size_t i = 0; i < TASKS; i++)
		assert_int_equal(popped[i], 1);
	assert_int_equal(ops->pop_completed_store_tasks(subject->adapter, results, POP), 0);
	for (size_t i = 0; i < TASKS; i++) {
		assert_loads(subject, keys[i], &memories[i]);
		memory_free(&memories[i]);
	}
	keys_free(keys, TASKS);
}

/* A chunk that is there with this size is skipped and counts nothing; the rest of its task counts.
 */
static void
test_duplicates_count_nothing(void **state)
{
	Subject *subject = *state;
	KvcObjectKey **keys = keys_new(subject, 0, 3);
	KvcMemoryObj *memories = memories_new(3, 5000, 1);
	KvcMemoryObj other_size = memory_new(6000, 5);

	assert_int_equal(store_many(subject, keys, memories, 2), 10000);
	assert_int_equal(store_many(subject, keys, memories, 2), 0);
	assert_int_equal(store_many(subject, keys, memories, 3), 5000);
	for (size_t i = 0; i < 3; i++)
		assert_loads(subject, keys[i], &memories[i]);
	/* With another size it is another object. */
	assert_int_equal(store(subject, keys[0], &other_size), 6000);
	assert_loads(subject, keys[0], &other_size);
	assert_misses(subject, keys[0], 5000);
	keys_free(keys, 3);
	memories_free(memories, 3);
	memory_free(&other_size);
}

/* Of another chunk under the same key the result tells which of the two is there. */
static void
test_duplicate_with_other_bytes(void **state)
{
	Subject *subject = *state;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj first = memory_new(5000, 1), second = memory_new(5000, 2);

	assert_int_equal(store(subject, key, &first), 5000);
	int64_t rc = store(subject, key, &second);
	assert_true(rc == 0 || rc == 5000);
	assert_loads(subject, key, rc == 0 ? &first : &second);
	memory_free(&first);
	memory_free(&second);
}

static void
test_others_are_replaced(void **state)
{
	Subject *subject = *state;

	for (KvcSpace space = KVC_SPACE_PLAIN; space <= KVC_SPACE_PREFIX; space++) {
		g_autoptr(KvcObjectKey) key = key_new(subject, space, 1);
		KvcMemoryObj first = memory_new(5000, 1), same_size = memory_new(5000, 2);
		KvcMemoryObj shorter = memory_new(7, 3);

		assert_int_equal(store(subject, key, &first), 5000);
		assert_int_equal(store(subject, key, &same_size), 5000);
		assert_loads(subject, key, &same_size);
		assert_int_equal(store(subject, key, &shorter), 7);
		assert_loads(subject, key, &shorter);
		assert_misses(subject, key, 5000);
		memory_free(&first);
		memory_free(&same_size);
		memory_free(&shorter);
	}
}

/* One object that does not fit fails the task; what failed is not there, and room is there again.
 */
static void
test_failure_is_of_the_whole_task(void **state)
{
	Subject *subject = *state;

	if (!subject_is_small(subject))
		skip();
	KvcObjectKey **keys = keys_new(subject, 0, 4);
	KvcMemoryObj *memories = memories_new(4, 4096, 1);
	size_t capacity = (size_t)subject_usage(subject).capacity_bytes;
	memory_free(&memories[1]);
	memories[1] = memory_new(capacity + MIB, 2);
	assert_int_equal(store_many(subject, keys, memories, 3), -ENOSPC);
	assert_false(is_found(subject, keys[1]));
	assert_misses(subject, keys[1], memories[1].bytes);
	/* What else was in the task is whole or not there. */
	for (size_t i = 0; i < 3; i += 2)
		if (is_found(subject, keys[i]))
			assert_loads(subject, keys[i], &memories[i]);
	assert_int_equal(store(subject, keys[3], &memories[3]), 4096);
	assert_loads(subject, keys[3], &memories[3]);
	assert_true(subject_usage(subject).bytes_used <= 5 * 4096);
	keys_free(keys, 4);
	memories_free(memories, 4);
}

static void
assert_usage(const Subject *subject, uint64_t objects, uint64_t bytes)
{
	KvcL2Usage usage = subject_usage(subject);

	assert_int_equal(usage.objects, objects);
	assert_int_equal(usage.bytes_used, bytes);
	assert_true(usage.capacity_bytes == 0 || usage.bytes_used <= usage.capacity_bytes);
}

static void
test_usage(void **state)
{
	Subject *subject = *state;

	if (!subject_has_exact_usage(subject))
		skip();
	g_autoptr(KvcObjectKey) plain = key_new(subject, KVC_SPACE_PLAIN, 1);
	KvcObjectKey **keys = keys_new(subject, 0, 3);
	KvcMemoryObj *memories = memories_new(3, 5000, 1);
	KvcMemoryObj shorter = memory_new(100, 1);

	assert_usage(subject, 0, 0);
	store_many(subject, keys, memories, 3);
	assert_usage(subject, 3, 15000);
	store_many(subject, keys, memories, 3);
	assert_usage(subject, 3, 15000);
	store(subject, plain, &memories[0]);
	assert_usage(subject, 4, 20000);
	store(subject, plain, &shorter);
	assert_usage(subject, 4, 15100);
	if (subject->ops->delete_keys) {
		assert_true(delete_key(subject, keys[0]));
		assert_true(delete_key(subject, keys[0]));
		assert_usage(subject, 3, 10100);
	}
	keys_free(keys, 3);
	memories_free(memories, 3);
	memory_free(&shorter);
}

const struct CMUnitTest adapter_store_tests[] = {
	{"task_ids_are_unique", test_task_ids_are_unique, set_up, tear_down, NULL},
	{"unknown_tasks", test_unknown_tasks, set_up, tear_down, NULL},
	{"each_result_is_popped_once", test_each_result_is_popped_once, set_up, tear_down, NULL},
	{"duplicates_count_nothing", test_duplicates_count_nothing, set_up, tear_down, NULL},
	{"duplicate_with_other_bytes", test_duplicate_with_other_bytes, set_up, tear_down, NULL},
	{"others_are_replaced", test_others_are_replaced, set_up, tear_down, NULL},
	{"failure_is_of_the_whole_task", test_failure_is_of_the_whole_task, set_up, tear_down,
	 NULL},
	{"usage", test_usage, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
