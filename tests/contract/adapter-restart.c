/* SPDX-License-Identifier: Apache-2.0 */

/* What is left when an instance ends: by close, with tasks in flight, by kill -9. */

#include "adapter-fixture.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_OBJECTS 20
#define IN_FLIGHT 24
#define VICTIM_TASKS 4
#define VICTIM_CONFIRMED 60
#define VICTIM_OBJECTS 100000

/* ---- Close and open ------------------------------------------------------------------------ */

static void
test_reopen(void **state)
{
	Subject *subject = *state;
	bool persists = subject_is_persistent(subject);
	KvcObjectKey **keys = keys_new(subject, 0, N_OBJECTS);
	KvcMemoryObj *memories = memories_new(N_OBJECTS, 5000, 1);

	store_many(subject, keys, memories, N_OBJECTS);
	assert_true(lookup_and_lock(subject, keys[0], NULL)); /* ends with the instance */
	if (subject->ops->delete_keys)
		assert_true(delete_key(subject, keys[1]));
	subject_close(subject);
	subject_open(subject, "");
	for (size_t i = 0; i < N_OBJECTS; i++) {
		bool is_there = persists && (i != 1 || !subject->ops->delete_keys);

		assert_int_equal(is_found(subject, keys[i]), is_there);
		if (is_there)
			assert_loads(subject, keys[i], &memories[i]);
		else
			assert_misses(subject, keys[i], 5000);
	}
	if (persists)
		assert_int_equal(store(subject, keys[2], &memories[2]), 0);
	if (subject->ops->delete_keys) {
		assert_true(delete_key(subject, keys[0]));
		assert_false(is_found(subject, keys[0]));
	}
	keys_free(keys, N_OBJECTS);
	memories_free(memories, N_OBJECTS);
}

/* Without persist_enabled what this run stored goes with it, and nothing else. */
static void
test_persist_enabled_is_false(void **state)
{
	Subject *subject = *state;

	if (!subject_is_persistent(subject))
		skip();
	KvcObjectKey **keys = keys_new(subject, 0, 2 * N_OBJECTS);
	KvcMemoryObj *memories = memories_new(2 * N_OBJECTS, 5000, 1);
	g_autoptr(KvcObjectKey) plain = key_new(subject, KVC_SPACE_PLAIN, 1);
	g_autoptr(KvcObjectKey) prefix = key_new(subject, KVC_SPACE_PREFIX, 1);

	store_many(subject, keys, memories, N_OBJECTS);
	subject_close(subject);
	subject_open(subject, ",persist_enabled=false");
	/* Half of these are skipped: an earlier run stored them. */
	assert_int_equal(store_many(subject, keys, memories, 2 * N_OBJECTS), N_OBJECTS * 5000);
	assert_int_equal(store(subject, plain, &memories[0]), 5000);
	assert_int_equal(store(subject, prefix, &memories[0]), 5000);
	assert_loads(subject, keys[2 * N_OBJECTS - 1], &memories[2 * N_OBJECTS - 1]);
	subject_close(subject);
	subject_open(subject, "");
	for (size_t i = 0; i < 2 * N_OBJECTS; i++) {
		assert_int_equal(is_found(subject, keys[i]), i < N_OBJECTS);
		if (i < N_OBJECTS)
			assert_loads(subject, keys[i], &memories[i]);
	}
	assert_false(is_found(subject, plain));
	assert_false(is_found(subject, prefix));
	if (subject->ops->list) {
		g_autoptr(GPtrArray) listed = list_keys(subject, NULL, 16);

		assert_int_equal(listed->len, N_OBJECTS);
	}
	keys_free(keys, 2 * N_OBJECTS);
	memories_free(memories, 2 * N_OBJECTS);
}

/* Each is whole or not there; the memory of none is touched after close (ASan sees it). */
static void
test_close_with_tasks_in_flight(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	KvcObjectKey **keys = keys_new(subject, 0, IN_FLIGHT);
	KvcMemoryObj *memories = memories_new(IN_FLIGHT, MIB / 2 + 1, 1);
	KvcMemoryObj *loads = memories_new(IN_FLIGHT, MIB / 2 + 1, 99);

	store_many(subject, keys, memories, IN_FLIGHT / 2);
	for (size_t i = 0; i < IN_FLIGHT; i++) {
		ops->submit_store_task(subject->adapter, &keys[i], &memories[i], 1);
		ops->submit_lookup_and_lock_task(subject->adapter, &keys[i], 1);
		ops->submit_load_task(subject->adapter, &keys[i], &loads[i], 1);
	}
	subject_close(subject);
	memories_free(loads, IN_FLIGHT);
	subject_open(subject, "");
	bool persists = subject_is_persistent(subject);
	for (size_t i = 0; i < IN_FLIGHT; i++) {
		bool is_there = is_found(subject, keys[i]);

		assert_true(persists || !is_there);
		if (is_there)
			assert_loads(subject, keys[i], &memories[i]);
		else
			assert_misses(subject, keys[i], MIB / 2 + 1);
		assert_true(is_there || !persists || i >= IN_FLIGHT / 2);
	}
	keys_free(keys, IN_FLIGHT);
	memories_free(memories, IN_FLIGHT);
}

/* Results that nobody asked for end with the instance. */
static void
test_close_with_results_not_queried(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj memory = memory_new(100, 1);

	ops->submit_store_task(subject->adapter, &key, &memory, 1);
	await_event(ops->get_store_event_fd(subject->adapter));
	ops->submit_lookup_and_lock_task(subject->adapter, &key, 1);
	await_event(ops->get_lookup_and_lock_event_fd(subject->adapter));
	ops->submit_load_task(subject->adapter, &key, &memory, 1);
	await_event(ops->get_load_event_fd(subject->adapter));
	subject_close(subject);
	memory_free(&memory);
}

/* ---- kill -9 ------------------------------------------------------------------------------- */

static KvcMemoryObj
victim_memory(uint32_t number)
{
	return memory_new(1 + (number * 7919u) % 200000, number);
}

/* Stores object after object, several at a time, and writes the number of each that is confirmed.
 */
static void
victim_store(const Subject *subject, int fd)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcL2TaskId ids[VICTIM_TASKS] = {0};
	KvcMemoryObj memories[VICTIM_TASKS];
	uint32_t numbers[VICTIM_TASKS], next = 0;

	while (next < VICTIM_OBJECTS) {
		KvcL2StoreResult result;

		for (size_t i = 0; i < VICTIM_TASKS; i++) {
			if (ids[i] != 0)
				continue;
			g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, next);
			memories[i] = victim_memory(next);
			numbers[i] = next++;
			ids[i] = ops->submit_store_task(subject->adapter, &key, &memories[i], 1);
		}
		while (ops->pop_completed_store_tasks(subject->adapter, &result, 1) == 0)
			await_event(ops->get_store_event_fd(subject->adapter));
		for (size_t i = 0; i < VICTIM_TASKS; i++) {
			if (ids[i] != result.task_id)
				continue;
			if (result.bytes_transferred != (int64_t)memories[i].bytes ||
			    write(fd, &numbers[i], sizeof(numbers[i])) != sizeof(numbers[i]))
				_exit(1);
			memory_free(&memories[i]);
			ids[i] = 0;
		}
	}
}

/* The program of the victim; a process of its own, so that no thread of this one is forked. */
int
victim_main(const char *specification)
{
	g_autoptr(KvcOptions) options = kvc_options_parse(specification, NULL);
	Subject subject = {.ops = kvc_find_l2_adapter(kvc_options_type(options), NULL),
			   .specification = specification};
	void *state = &subject;

	set_up(&state);
	victim_store(&subject, STDOUT_FILENO);
	return 1;
}

/* Runs a victim on SPECIFICATION, kills it; what it had confirmed (owned). */
static GHashTable *
kill_victim(const char *specification)
{
	GHashTable *confirmed = g_hash_table_new(NULL, NULL);
	int fds[2];
	uint32_t number;

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		execl("/proc/self/exe", "contract-adapter", "--victim", specification, NULL);
		_exit(127);
	}
	close(fds[1]);
	while (read(fds[0], &number, sizeof(number)) == sizeof(number)) {
		g_hash_table_add(confirmed, GUINT_TO_POINTER(number));
		if (g_hash_table_size(confirmed) == VICTIM_CONFIRMED)
			kill(pid, SIGKILL);
	}
	close(fds[0]);
	int status;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return confirmed;
}

/* What was confirmed is there; of the rest each is whole or not there; nothing else is. */
static void
test_reopen_after_kill(void **state)
{
	Subject *subject = *state;

	if (!subject_is_persistent(subject))
		skip();
	g_autofree char *specification = subject_specification(subject);
	subject_close(subject);
	g_autoptr(GHashTable) confirmed = kill_victim(specification);
	subject_open(subject, "");

	unsigned found = 0, numbers = g_hash_table_size(confirmed) + 2 * VICTIM_TASKS;
	for (uint32_t i = 0; i < numbers; i++) {
		g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, i);
		KvcMemoryObj memory = victim_memory(i);
		bool is_there = is_found(subject, key);

		assert_true(is_there || !g_hash_table_contains(confirmed, GUINT_TO_POINTER(i)));
		if (is_there)
			assert_loads(subject, key, &memory);
		else
			assert_misses(subject, key, memory.bytes);
		found += is_there;
		memory_free(&memory);
	}
	if (subject->ops->list) {
		g_autoptr(GPtrArray) listed = list_keys(subject, NULL, 16);

		assert_int_equal(listed->len, found);
	}
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, VICTIM_OBJECTS);
	KvcMemoryObj memory = memory_new(5000, 1);
	assert_int_equal(store(subject, key, &memory), 5000);
	assert_loads(subject, key, &memory);
	memory_free(&memory);
}

const struct CMUnitTest adapter_restart_tests[] = {
	{"reopen", test_reopen, set_up, tear_down, NULL},
	{"persist_enabled_is_false", test_persist_enabled_is_false, set_up, tear_down, NULL},
	{"close_with_tasks_in_flight", test_close_with_tasks_in_flight, set_up, tear_down, NULL},
	{"close_with_results_not_queried", test_close_with_results_not_queried, set_up, tear_down,
	 NULL},
	{"reopen_after_kill", test_reopen_after_kill, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
