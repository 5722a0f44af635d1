/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The two controllers at once, as in the engine: one stores, one looks up, loads and unlocks, on
 * the same keys; the thread of deletions and listings beside them.
 */

#include "adapter-fixture.h"

#include <pthread.h>

#define N_KEYS 240
#define A_TASK 6
#define ROUNDS 8
#define BYTES 3000

typedef struct Shared {
	const Subject *subject;
	KvcObjectKey **keys;
	KvcMemoryObj *memories;
	unsigned loaded; /* the prefetch thread's */
} Shared;

static void *
store_main(void *user)
{
	Shared *shared = user;

	for (int round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < N_KEYS; i += A_TASK) {
			int64_t rc = store_many(shared->subject, shared->keys + i,
						shared->memories + i, A_TASK);

			assert_true(rc >= 0 && rc <= A_TASK * BYTES && rc % BYTES == 0);
		}
	return NULL;
}

/* What is found is locked, so it loads, whoever deletes. */
static void *
prefetch_main(void *user)
{
	Shared *shared = user;
	KvcMemoryObj *memories = memories_new(A_TASK, BYTES, 7777);

	for (int round = 0; round < ROUNDS; round++)
		for (size_t i = 0; i < N_KEYS; i += A_TASK) {
			KvcObjectKey **keys = shared->keys + i, *locked[A_TASK];
			g_autoptr(KvcBitmap) found =
				lookup_many(shared->subject, keys, A_TASK, NULL);
			g_autoptr(KvcBitmap) loaded =
				load_many(shared->subject, keys, memories, A_TASK);
			size_t n_locked = 0;

			for (size_t j = 0; j < A_TASK; j++) {
				if (!kvc_bitmap_test(found, j))
					continue;
				locked[n_locked++] = keys[j];
				assert_true(kvc_bitmap_test(loaded, j));
				assert_true(memory_equal(&memories[j], &shared->memories[i + j]));
				shared->loaded++;
			}
			shared->subject->ops->submit_unlock(shared->subject->adapter, locked,
							    n_locked);
		}
	memories_free(memories, A_TASK);
	return NULL;
}

static void
delete_and_list(const Subject *subject, KvcObjectKey *const *keys)
{
	for (int round = 0; round < ROUNDS; round++) {
		g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(N_KEYS / 4);

		if (subject->ops->delete_keys)
			assert_int_equal(subject->ops->delete_keys(subject->adapter, keys,
								   N_KEYS / 4, deleted),
					 0);
		if (subject->ops->list) {
			g_autoptr(GPtrArray) listed = list_keys(subject, NULL, 50);

			assert_true(listed->len <= N_KEYS);
		}
		subject_usage(subject);
	}
}

static void
test_concurrent_use(void **state)
{
	Subject *subject = *state;
	Shared shared = {
		.subject = subject,
		.keys = keys_new(subject, 0, N_KEYS),
		.memories = memories_new(N_KEYS, BYTES, 1),
	};
	pthread_t threads[2];

	/* The last ones are there from the start and are not deleted. */
	store_many(subject, shared.keys + N_KEYS / 2, shared.memories + N_KEYS / 2, N_KEYS / 2);
	assert_int_equal(pthread_create(&threads[0], NULL, store_main, &shared), 0);
	assert_int_equal(pthread_create(&threads[1], NULL, prefetch_main, &shared), 0);
	delete_and_list(subject, shared.keys);
	pthread_join(threads[0], NULL);
	pthread_join(threads[1], NULL);
	assert_true(shared.loaded >= ROUNDS * N_KEYS / 2);
	/* All locks were given back. */
	for (size_t i = 0; subject->ops->delete_keys && i < N_KEYS; i++)
		assert_true(delete_key(subject, shared.keys[i]));
	keys_free(shared.keys, N_KEYS);
	memories_free(shared.memories, N_KEYS);
}

/* Two instances in one process do not disturb each other. */
static void *
use_own_instance(void *user)
{
	Subject *subject = user;
	KvcObjectKey **keys = keys_new(subject, 0, 40);
	KvcMemoryObj *memories = memories_new(40, BYTES, 1);

	for (size_t i = 0; i < 40; i++)
		assert_int_equal(store(subject, keys[i], &memories[i]), BYTES);
	for (size_t i = 0; i < 40; i++)
		assert_loads(subject, keys[i], &memories[i]);
	keys_free(keys, 40);
	memories_free(memories, 40);
	return NULL;
}

static void
test_two_instances(void **state)
{
	Subject *subject = *state;
	Subject other = {.ops = subject->ops, .specification = subject->specification};
	void *other_state = &other;
	pthread_t thread;

	if (g_getenv("KVC_CONTRACT_RESET")) /* both would be in one place */
		skip();
	set_up(&other_state);
	assert_int_equal(pthread_create(&thread, NULL, use_own_instance, &other), 0);
	use_own_instance(subject);
	pthread_join(thread, NULL);
	tear_down(&other_state);
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 0);
	assert_true(is_found(subject, key));
}

const struct CMUnitTest adapter_thread_tests[] = {
	{"concurrent_use", test_concurrent_use, set_up, tear_down, NULL},
	{"two_instances", test_two_instances, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
