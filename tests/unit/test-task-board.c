/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include <kvcache/io.h>
#include <kvcache/task-board.h>

#define KEYS 3

typedef struct Task {
	KvcTask task;
	char *text; /* what the adapter has to free */
} Task;

typedef struct Fixture {
	KvcBoardAdapter adapter;
	KvcTaskBoard *board;
	KvcKeyScope *scope;
	KvcObjectKey *keys[KEYS];
	KvcMemoryObj objects[KEYS];
} Fixture;

static int n_cleared;

static void
clear_task(KvcTask *task)
{
	g_clear_pointer(&((Task *)task)->text, g_free);
	n_cleared++;
}

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);

	f->board = f->adapter.board = kvc_task_board_new(clear_task, NULL);
	assert_non_null(f->board);
	f->scope = kvc_key_scope_new("m", 1, 0, NULL, NULL);
	for (size_t i = 0; i < KEYS; i++) {
		char name[8];

		g_snprintf(name, sizeof(name), "n%07zu", i);
		f->keys[i] = kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, name, 8, NULL);
		f->objects[i].bytes = 100 + i;
	}
	n_cleared = 0;
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;

	kvc_task_board_free(f->board);
	for (size_t i = 0; i < KEYS; i++)
		kvc_object_key_unref(f->keys[i]);
	kvc_key_scope_unref(f->scope);
	g_free(f);
	return 0;
}

static KvcTask *
task_new(Fixture *f, KvcTaskKind kind)
{
	const KvcMemoryObj *objects = kind == KVC_TASK_LOOKUP ? NULL : f->objects;
	KvcTask *task = kvc_task_new(f->board, sizeof(Task), kind, f->keys, objects, KEYS);

	((Task *)task)->text = g_strdup("its own");
	return task;
}

/* Has the event fd of KIND been written since? Resets it. */
static bool
had_event(Fixture *f, KvcTaskKind kind)
{
	uint64_t count;

	return read(kvc_task_board_event_fd(f->board, kind), &count, sizeof(count)) ==
	       sizeof(count);
}

static size_t
pop(Fixture *f, KvcL2StoreResult *results, size_t max)
{
	return kvc_task_board_pop_completed_store_tasks(&f->adapter.l2, results, max);
}

/* ---- Stores -------------------------------------------------------------------------------- */

static void
a_store_is_done_with_its_last_part(void **state)
{
	Fixture *f = *state;
	KvcTask *task = task_new(f, KVC_TASK_STORE);
	KvcL2StoreResult result;
	KvcL2TaskId id = kvc_task_post(task, KEYS);

	assert_true(id > 0);
	assert_int_equal(task->objects[2].bytes, 102);
	kvc_task_end_part(task, 100);
	kvc_task_end_part(task, 0); /* skipped */
	assert_int_equal(pop(f, &result, 1), 0);
	assert_false(had_event(f, KVC_TASK_STORE));
	kvc_task_end_part(task, 102);
	assert_true(had_event(f, KVC_TASK_STORE));
	assert_int_equal(pop(f, &result, 1), 1);
	assert_int_equal(result.task_id, id);
	assert_int_equal(result.bytes_transferred, 202);
	assert_int_equal(n_cleared, 1);
	assert_int_equal(pop(f, &result, 1), 0);
}

static void
a_store_comes_to_its_first_error(void **state)
{
	Fixture *f = *state;
	KvcTask *task = task_new(f, KVC_TASK_STORE);
	KvcL2StoreResult result;

	kvc_task_post(task, KEYS);
	kvc_task_end_part(task, 100);
	kvc_task_end_part(task, -ENOSPC);
	kvc_task_end_part(task, -EIO);
	assert_int_equal(pop(f, &result, 1), 1);
	assert_int_equal(result.bytes_transferred, -ENOSPC);
}

static void
stores_are_popped_in_the_order_of_their_ends(void **state)
{
	Fixture *f = *state;
	KvcTask *tasks[KEYS];
	KvcL2TaskId ids[KEYS];
	KvcL2StoreResult results[KEYS];

	for (size_t i = 0; i < KEYS; i++) {
		tasks[i] = task_new(f, KVC_TASK_STORE);
		ids[i] = kvc_task_post(tasks[i], 1);
	}
	for (size_t i = KEYS; i-- > 0;)
		kvc_task_end_part(tasks[i], 0);
	assert_int_equal(pop(f, results, 2), 2);
	assert_int_equal(results[0].task_id, ids[2]);
	assert_int_equal(results[1].task_id, ids[1]);
	assert_int_equal(pop(f, results, 2), 1);
	assert_int_equal(results[0].task_id, ids[0]);
}

static void
a_task_without_parts_is_done_at_once(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcBitmap) none = kvc_bitmap_new(0);
	KvcL2StoreResult result;
	KvcTask *task = kvc_task_new(f->board, sizeof(Task), KVC_TASK_STORE, NULL, NULL, 0);
	KvcTask *load = kvc_task_new(f->board, sizeof(Task), KVC_TASK_LOAD, NULL, NULL, 0);

	kvc_task_post(task, 0);
	assert_true(had_event(f, KVC_TASK_STORE));
	assert_int_equal(pop(f, &result, 1), 1);
	assert_int_equal(result.bytes_transferred, 0);
	KvcL2TaskId id = kvc_task_post(load, 0);
	assert_true(had_event(f, KVC_TASK_LOAD));
	assert_int_equal(kvc_task_board_query_load_result(&f->adapter.l2, id, none), 1);
	kvc_task_board_await_idle(f->board);
}

/* ---- Lookups and loads --------------------------------------------------------------------- */

static void
a_load_is_told_once(void **state)
{
	Fixture *f = *state;
	KvcL2Adapter *adapter = &f->adapter.l2;
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(KEYS), found = kvc_bitmap_new(KEYS);
	KvcL2ObjectInfo info[KEYS] = {{0}};
	KvcTask *task = task_new(f, KVC_TASK_LOAD);
	KvcL2TaskId id = kvc_task_post(task, KEYS);

	assert_int_equal(kvc_task_board_query_load_result(adapter, id, loaded), 0);
	task->hits[1] = true;
	for (size_t i = 0; i < KEYS; i++)
		kvc_task_end_part(task, 0);
	assert_true(had_event(f, KVC_TASK_LOAD));
	assert_int_equal(kvc_task_board_query_lookup_and_lock_result(adapter, id, found, info),
			 -ENOENT);
	assert_int_equal(kvc_task_board_query_load_result(adapter, id, loaded), 1);
	assert_int_equal(kvc_bitmap_count(loaded), 1);
	assert_true(kvc_bitmap_test(loaded, 1));
	assert_int_equal(kvc_task_board_query_load_result(adapter, id, loaded), -ENOENT);
}

static void
a_lookup_hands_its_info_over(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(KEYS);
	KvcL2ObjectInfo info[KEYS] = {{0}};
	KvcTask *task = task_new(f, KVC_TASK_LOOKUP);
	KvcL2TaskId id = kvc_task_post(task, 1);

	task->hits[0] = true;
	task->info[0].bytes = 100;
	task->info[1].mtime_ns = KVC_L2_NOT_ASKED;
	kvc_task_end_part(task, 0);
	assert_true(had_event(f, KVC_TASK_LOOKUP));
	assert_int_equal(
		kvc_task_board_query_lookup_and_lock_result(&f->adapter.l2, id, found, info), 1);
	assert_int_equal(kvc_bitmap_count(found), 1);
	assert_int_equal(info[0].bytes, 100);
	assert_int_equal(info[1].mtime_ns, KVC_L2_NOT_ASKED);
	assert_int_equal(info[2].mtime_ns, 0);
	assert_int_equal(n_cleared, 1);
}

/* ---- Closing ------------------------------------------------------------------------------- */

/* Also what nobody queries any more, and what never ends. */
static void
a_board_frees_its_tasks(void **state)
{
	Fixture *f = *state;
	KvcTask *done = task_new(f, KVC_TASK_STORE);

	kvc_task_post(done, 1);
	kvc_task_end_part(done, 0);
	kvc_task_post(task_new(f, KVC_TASK_STORE), 1);
	kvc_task_post(task_new(f, KVC_TASK_LOOKUP), 2);
	kvc_task_discard(task_new(f, KVC_TASK_LOAD));
	assert_int_equal(n_cleared, 1);
	kvc_task_board_free(g_steal_pointer(&f->board));
	assert_int_equal(n_cleared, 4);
	f->board = f->adapter.board = kvc_task_board_new(NULL, NULL);
}

typedef struct Worker {
	KvcTask **tasks;
	size_t n, part;
} Worker;

static void *
worker_main(void *user)
{
	Worker *worker = user;

	for (size_t i = 0; i < worker->n; i++) {
		KvcTask *task = worker->tasks[i];

		task->hits[worker->part] = true;
		kvc_task_end_part(task, 1);
	}
	return NULL;
}

/* Whoever waits sees all that the threads wrote, in whichever order they ended. */
static void
parts_end_in_many_threads(void **state)
{
	enum { TASKS = 2000 };
	Fixture *f = *state;
	g_autofree KvcTask **tasks = g_new(KvcTask *, TASKS);
	g_autofree KvcL2TaskId *ids = g_new(KvcL2TaskId, TASKS);
	Worker workers[KEYS];
	pthread_t threads[KEYS];

	for (size_t i = 0; i < TASKS; i++) {
		tasks[i] = task_new(f, KVC_TASK_LOAD);
		ids[i] = kvc_task_post(tasks[i], KEYS);
	}
	for (size_t i = 0; i < KEYS; i++) {
		workers[i] = (Worker){.tasks = tasks, .n = TASKS, .part = i};
		assert_int_equal(pthread_create(&threads[i], NULL, worker_main, &workers[i]), 0);
	}
	kvc_task_board_await_idle(f->board);
	for (size_t i = 0; i < TASKS; i++) {
		g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(KEYS);

		assert_int_equal(kvc_task_board_query_load_result(&f->adapter.l2, ids[i], loaded),
				 1);
		assert_int_equal(kvc_bitmap_count(loaded), KEYS);
	}
	for (size_t i = 0; i < KEYS; i++)
		pthread_join(threads[i], NULL);
	assert_int_equal(n_cleared, TASKS);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#define TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
		TEST(a_store_is_done_with_its_last_part),
		TEST(a_store_comes_to_its_first_error),
		TEST(stores_are_popped_in_the_order_of_their_ends),
		TEST(a_task_without_parts_is_done_at_once),
		TEST(a_load_is_told_once),
		TEST(a_lookup_hands_its_info_over),
		TEST(a_board_frees_its_tasks),
		TEST(parts_end_in_many_threads),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
