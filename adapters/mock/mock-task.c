/* SPDX-License-Identifier: Apache-2.0 */

/* Tasks: a queue in the order in which they are due, and the thread that does what they mean. */

#include <errno.h>
#include <string.h>

#include "mock.h"

static int
compare_due(const void *a, const void *b, void *user)
{
	const MockTask *left = a, *right = b;

	if (left->due_ns != right->due_ns)
		return left->due_ns < right->due_ns ? -1 : 1;
	return left->base.id < right->base.id ? -1 : left->base.id > right->base.id;
}

/* When TASK would be complete: its bytes go over the line behind those of earlier tasks. */
static int64_t
due_time_locked(MockAdapter *mock, const MockTask *task)
{
	int64_t now = kvc_now_ns();
	uint64_t bytes = 0;

	for (size_t i = 0; task->base.objects && i < task->base.n; i++)
		bytes += task->base.objects[i].bytes;
	int64_t latency = mock->latency_ns;
	if (mock->jitter_ns > 0)
		latency += (int64_t)(g_rand_double(mock->random) * mock->jitter_ns);
	if (bytes == 0 || mock->bytes_per_sec == 0)
		return now + latency;
	mock->busy_until_ns = MAX(mock->busy_until_ns, now);
	mock->busy_until_ns += (int64_t)((double)bytes / mock->bytes_per_sec * 1e9);
	return mock->busy_until_ns + latency;
}

KvcL2TaskId
mock_submit(KvcL2Adapter *adapter,
	    KvcTaskKind kind,
	    KvcObjectKey *const *keys,
	    const KvcMemoryObj *objects,
	    size_t n)
{
	MockAdapter *mock = (MockAdapter *)adapter;
	KvcTask *base = kvc_task_new(mock->base.board, sizeof(MockTask), kind, keys, objects, n);
	MockTask *task = (MockTask *)base;
	KvcL2TaskId id = kvc_task_post(base, 1);

	pthread_mutex_lock(&mock->lock);
	task->due_ns = due_time_locked(mock, task);
	for (size_t i = 0; kind == KVC_TASK_STORE && i < n; i++)
		mock_get_record_locked(mock, base->keys[i])->stores++;
	g_tree_insert(mock->queue, task, task);
	pthread_cond_signal(&mock->wake);
	pthread_mutex_unlock(&mock->lock);
	return id;
}

/* The copies are made without the lock: a submit never waits for them. */
static int64_t
run_store(MockAdapter *mock, KvcTask *task)
{
	int64_t result = 0;

	for (size_t i = 0; i < task->n; i++) {
		GBytes *data = g_bytes_new(task->objects[i].data, task->objects[i].bytes);

		pthread_mutex_lock(&mock->lock);
		int64_t rc = mock_store_object_locked(mock, task->keys[i], data,
						      task->objects[i].attributes);
		if (result >= 0)
			result = rc < 0 ? rc : result + rc;
		pthread_mutex_unlock(&mock->lock);
	}
	return result;
}

static void
run_lookup(MockAdapter *mock, KvcTask *task)
{
	pthread_mutex_lock(&mock->lock);
	for (size_t i = 0; i < task->n; i++) {
		MockRecord *record = mock_find_stored_locked(mock, task->keys[i]);

		if (!record)
			continue;
		record->locks++;
		mock->n_locks++;
		task->hits[i] = true;
		task->info[i] = mock_get_info_locked(record);
	}
	pthread_mutex_unlock(&mock->lock);
}

static void
run_load(MockAdapter *mock, KvcTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		KvcMemoryObj *object = &task->objects[i];
		g_autoptr(GBytes) data = NULL;

		pthread_mutex_lock(&mock->lock);
		MockRecord *record = mock_find_stored_locked(mock, task->keys[i]);
		if (record && g_bytes_get_size(record->data) == object->bytes)
			data = g_bytes_ref(record->data);
		if (data)
			mock->n_loads++;
		else
			mock->n_load_misses++;
		pthread_mutex_unlock(&mock->lock);
		if (!data)
			continue;
		if (object->bytes > 0)
			memcpy(object->data, g_bytes_get_data(data, NULL), object->bytes);
		task->hits[i] = true;
	}
}

bool
mock_take_failure(MockAdapter *mock, int64_t *left, double rate)
{
	pthread_mutex_lock(&mock->lock);
	bool fails = *left > 0;
	if (fails)
		(*left)--;
	else if (rate > 0)
		fails = g_rand_double(mock->random) < rate;
	pthread_mutex_unlock(&mock->lock);
	return fails;
}

/* The engine sees no errno of lookups and loads: the breaker is told. */
static int64_t
run_unreachable(MockAdapter *mock, KvcTask *task)
{
	for (size_t i = 0; task->kind == KVC_TASK_LOOKUP && i < task->n; i++)
		task->info[i].mtime_ns = KVC_L2_NOT_ASKED;
	if (task->kind != KVC_TASK_STORE)
		kvc_breaker_note(mock->base.l2.breaker, -ECONNREFUSED);
	return -ECONNREFUSED;
}

/* What the task comes to. */
static int64_t
run_task(MockAdapter *mock, KvcTask *task)
{
	if (mock_take_failure(mock, &mock->fail_connections, mock->connection_failure_rate))
		return run_unreachable(mock, task);
	switch (task->kind) {
	case KVC_TASK_STORE:
		if (mock_take_failure(mock, &mock->fail_stores, mock->store_failure_rate))
			return -EIO;
		return run_store(mock, task);
	case KVC_TASK_LOOKUP:
		run_lookup(mock, task);
		return 0;
	default:
		if (!mock_take_failure(mock, &mock->fail_loads, mock->load_failure_rate))
			run_load(mock, task);
		return 0;
	}
}

static void
end_stores_locked(MockAdapter *mock, const KvcTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		MockRecord *record = g_hash_table_lookup(mock->records, task->keys[i]);

		record->stores--;
		mock_drop_record_locked(mock, record);
	}
}

/* Takes the first task that is due, waiting for it; NULL: stop. */
static MockTask *
next_task_locked(MockAdapter *mock)
{
	while (!mock->stopping) {
		GTreeNode *node = g_tree_node_first(mock->queue);

		if (!node) {
			pthread_cond_wait(&mock->wake, &mock->lock);
			continue;
		}
		MockTask *task = g_tree_node_key(node);
		if (task->due_ns <= kvc_now_ns()) {
			g_tree_remove(mock->queue, task);
			return task;
		}
		struct timespec due = {task->due_ns / KVC_SEC_NS, task->due_ns % KVC_SEC_NS};
		pthread_cond_timedwait(&mock->wake, &mock->lock, &due);
	}
	return NULL;
}

void *
mock_main(void *user)
{
	MockAdapter *mock = user;
	MockTask *next;

	pthread_mutex_lock(&mock->lock);
	while ((next = next_task_locked(mock))) {
		KvcTask *task = &next->base;

		pthread_mutex_unlock(&mock->lock);
		int64_t result = run_task(mock, task);
		pthread_mutex_lock(&mock->lock);
		if (task->kind == KVC_TASK_STORE)
			end_stores_locked(mock, task);
		kvc_task_end_part(task, result);
	}
	pthread_mutex_unlock(&mock->lock);
	return NULL;
}

void
mock_tasks_init(MockAdapter *mock)
{
	pthread_condattr_t attr;

	pthread_mutex_init(&mock->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&mock->wake, &attr);
	pthread_condattr_destroy(&attr);
	mock->queue = g_tree_new_full(compare_due, NULL, NULL, NULL);
}

void
mock_tasks_deinit(MockAdapter *mock)
{
	g_tree_unref(mock->queue);
	pthread_cond_destroy(&mock->wake);
	pthread_mutex_destroy(&mock->lock);
}
