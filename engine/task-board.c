/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/task-board.h"

#include "engine/lock.h"

#include <errno.h>
#include <unistd.h>

struct KvcTaskBoard {
	/* Immutable after open */
	void (*clear)(KvcTask *task);
	int event_fds[KVC_TASK_KINDS];

	KvcMutex lock;
	/* Protected by lock */
	pthread_cond_t idle; /* no task is outstanding */
	KvcL2TaskId last_id;
	GHashTable *tasks;  /* all by id, until they were told; owns them */
	GQueue stored;	    /* store tasks that are done */
	size_t outstanding; /* tasks that are not done */
};

/* ---- The board ----------------------------------------------------------------------------- */

KvcTaskBoard *
kvc_task_board_new(void (*clear)(KvcTask *task), GError **error)
{
	KvcTaskBoard *board = g_new0(KvcTaskBoard, 1);
	int rc = 0;

	board->clear = clear;
	kvc_mutex_init(&board->lock, KVC_LOCK_TASK_BOARD);
	kvc_cond_init(&board->idle);
	board->tasks = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL,
					     (GDestroyNotify)kvc_task_discard);
	for (size_t i = 0; i < KVC_TASK_KINDS; i++) {
		board->event_fds[i] = kvc_eventfd_new();
		rc = MIN(rc, board->event_fds[i]);
	}
	if (rc == 0)
		return board;
	g_set_error(error, KVC_OPTIONS_ERROR, -rc, "cannot make an event fd: %s", g_strerror(-rc));
	kvc_task_board_free(board);
	return NULL;
}

void
kvc_task_board_free(KvcTaskBoard *board)
{
	if (!board)
		return;
	g_queue_clear(&board->stored);
	g_hash_table_unref(board->tasks);
	for (size_t i = 0; i < KVC_TASK_KINDS; i++)
		if (board->event_fds[i] >= 0)
			close(board->event_fds[i]);
	pthread_cond_destroy(&board->idle);
	kvc_mutex_deinit(&board->lock);
	g_free(board);
}

void
kvc_task_board_await_idle(KvcTaskBoard *board)
{
	if (!board)
		return;
	kvc_mutex_lock(&board->lock);
	while (board->outstanding > 0)
		kvc_cond_wait_until(&board->idle, &board->lock, 0);
	kvc_mutex_unlock(&board->lock);
}

int
kvc_task_board_event_fd(const KvcTaskBoard *board, KvcTaskKind kind)
{
	return board->event_fds[kind];
}

/* ---- Tasks --------------------------------------------------------------------------------- */

KvcTask *
kvc_task_new(KvcTaskBoard *board,
	     size_t struct_bytes,
	     KvcTaskKind kind,
	     KvcObjectKey *const *keys,
	     const KvcMemoryObj *objects,
	     size_t n)
{
	KvcTask *task = g_malloc0(struct_bytes);

	task->board = board;
	task->kind = kind;
	task->n = n;
	task->keys = g_new(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		task->keys[i] = kvc_object_key_ref(keys[i]);
	if (objects)
		task->objects = g_memdup2(objects, n * sizeof(*objects));
	if (kind != KVC_TASK_STORE)
		task->hits = g_new0(bool, n);
	if (kind == KVC_TASK_LOOKUP)
		task->info = g_new0(KvcL2ObjectInfo, n);
	return task;
}

void
kvc_task_discard(KvcTask *task)
{
	if (task->board->clear)
		task->board->clear(task);
	for (size_t i = 0; i < task->n; i++) {
		kvc_object_key_unref(task->keys[i]);
		if (task->info)
			kvc_xattrs_unref(task->info[i].xattrs);
	}
	g_free(task->keys);
	g_free(task->objects);
	g_free(task->hits);
	g_free(task->info);
	g_free(task);
}

/* The event comes first: once nothing is outstanding the fds may be gone. */
static void
publish_locked(KvcTask *task)
{
	KvcTaskBoard *board = task->board;

	task->is_done = true;
	if (task->kind == KVC_TASK_STORE)
		g_queue_push_tail(&board->stored, task);
	kvc_eventfd_signal(board->event_fds[task->kind]);
	if (--board->outstanding == 0)
		pthread_cond_broadcast(&board->idle);
}

KvcL2TaskId
kvc_task_post(KvcTask *task, size_t parts)
{
	KvcTaskBoard *board = task->board;

	task->remaining = parts;
	kvc_mutex_lock(&board->lock);
	KvcL2TaskId id = task->id = ++board->last_id;
	g_hash_table_insert(board->tasks, &task->id, task);
	board->outstanding++;
	if (parts == 0)
		publish_locked(task);
	kvc_mutex_unlock(&board->lock);
	return id;
}

void
kvc_task_end_part(KvcTask *task, int64_t result)
{
	KvcTaskBoard *board = task->board;
	int64_t none = 0;

	if (result < 0)
		__atomic_compare_exchange_n(&task->error, &none, result, false, __ATOMIC_RELAXED,
					    __ATOMIC_RELAXED);
	else
		__atomic_fetch_add(&task->moved, result, __ATOMIC_RELAXED);
	if (__atomic_fetch_sub(&task->remaining, 1, __ATOMIC_ACQ_REL) > 1)
		return;
	kvc_mutex_lock(&board->lock);
	publish_locked(task);
	kvc_mutex_unlock(&board->lock);
}

/* ---- Results ------------------------------------------------------------------------------- */

/* A task that is done leaves the table (transfer full); *RESULT is what the query answers. */
static KvcTask *
take(KvcTaskBoard *board, KvcL2TaskId id, KvcTaskKind kind, int *result)
{
	kvc_mutex_lock(&board->lock);
	KvcTask *task = g_hash_table_lookup(board->tasks, &id);
	if (!task || task->kind != kind)
		*result = -ENOENT;
	else
		*result = task->is_done ? 1 : 0;
	if (*result == 1)
		g_hash_table_steal(board->tasks, &id);
	kvc_mutex_unlock(&board->lock);
	return *result == 1 ? task : NULL;
}

/* ---- Slots of the vtable ------------------------------------------------------------------- */

static KvcTaskBoard *
board_of(KvcL2Adapter *adapter)
{
	return ((KvcBoardAdapter *)adapter)->board;
}

int
kvc_task_board_get_store_event_fd(KvcL2Adapter *adapter)
{
	return board_of(adapter)->event_fds[KVC_TASK_STORE];
}

int
kvc_task_board_get_lookup_and_lock_event_fd(KvcL2Adapter *adapter)
{
	return board_of(adapter)->event_fds[KVC_TASK_LOOKUP];
}

int
kvc_task_board_get_load_event_fd(KvcL2Adapter *adapter)
{
	return board_of(adapter)->event_fds[KVC_TASK_LOAD];
}

size_t
kvc_task_board_pop_completed_store_tasks(KvcL2Adapter *adapter,
					 KvcL2StoreResult *results,
					 size_t max)
{
	KvcTaskBoard *board = board_of(adapter);
	GQueue popped = G_QUEUE_INIT;
	KvcTask *task;
	size_t n = 0;

	kvc_mutex_lock(&board->lock);
	while (n < max && (task = g_queue_pop_head(&board->stored))) {
		results[n].task_id = task->id;
		results[n++].bytes_transferred = task->error < 0 ? task->error : task->moved;
		g_hash_table_steal(board->tasks, &task->id);
		g_queue_push_tail(&popped, task);
	}
	kvc_mutex_unlock(&board->lock);
	g_queue_clear_full(&popped, (GDestroyNotify)kvc_task_discard);
	return n;
}

static void
tell_hits(const KvcTask *task, KvcBitmap *bitmap)
{
	for (size_t i = 0; i < task->n; i++)
		if (task->hits[i])
			kvc_bitmap_set(bitmap, i);
}

int
kvc_task_board_query_lookup_and_lock_result(KvcL2Adapter *adapter,
					    KvcL2TaskId task_id,
					    KvcBitmap *found,
					    KvcL2ObjectInfo *info)
{
	int result;
	KvcTask *task = take(board_of(adapter), task_id, KVC_TASK_LOOKUP, &result);

	if (!task)
		return result;
	tell_hits(task, found);
	for (size_t i = 0; i < task->n; i++) {
		info[i] = task->info[i];
		task->info[i].xattrs = NULL; /* the caller's */
	}
	kvc_task_discard(task);
	return result;
}

int
kvc_task_board_query_load_result(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded)
{
	int result;
	KvcTask *task = take(board_of(adapter), task_id, KVC_TASK_LOAD, &result);

	if (!task)
		return result;
	tell_hits(task, loaded);
	kvc_task_discard(task);
	return result;
}
