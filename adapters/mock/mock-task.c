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
	return left->id < right->id ? -1 : left->id > right->id;
}

void
mock_task_free(MockTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		kvc_object_key_unref(task->keys[i]);
		if (task->info)
			kvc_xattrs_unref(task->info[i].xattrs);
	}
	g_free(task->keys);
	g_free(task->objects);
	g_free(task->info);
	g_free(task->hits);
	g_free(task);
}

MockTask *
mock_task_new(MockKind kind, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n)
{
	MockTask *task = g_new0(MockTask, 1);

	task->kind = kind;
	task->n = n;
	task->keys = g_new0(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		task->keys[i] = kvc_object_key_ref(keys[i]);
	if (objects)
		task->objects = g_memdup2(objects, n * sizeof(*objects));
	if (kind != MOCK_STORE)
		task->hits = g_new0(bool, n);
	if (kind == MOCK_LOOKUP)
		task->info = g_new0(KvcL2ObjectInfo, n);
	return task;
}

/* When TASK would be complete: its bytes go over the line behind those of earlier tasks. */
static int64_t
due_time_locked(MockAdapter *mock, const MockTask *task)
{
	int64_t now = kvc_now_ns();
	uint64_t bytes = 0;

	for (size_t i = 0; task->objects && i < task->n; i++)
		bytes += task->objects[i].bytes;
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
mock_task_submit(KvcL2Adapter *adapter, MockTask *task)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	KvcL2TaskId id = task->id = ++mock->last_id;
	task->due_ns = due_time_locked(mock, task);
	for (size_t i = 0; task->kind == MOCK_STORE && i < task->n; i++)
		mock_get_record_locked(mock, task->keys[i])->stores++;
	if (task->kind != MOCK_STORE)
		g_hash_table_insert(mock->tasks, &task->id, task);
	g_tree_insert(mock->queue, task, task);
	pthread_cond_signal(&mock->wake);
	pthread_mutex_unlock(&mock->lock);
	return id;
}

/* Moves a finished task out of the table; *RESULT is what the query answers. */
MockTask *
mock_task_take(KvcL2Adapter *adapter, KvcL2TaskId id, MockKind kind, int *result)
{
	MockAdapter *mock = (MockAdapter *)adapter;

	pthread_mutex_lock(&mock->lock);
	MockTask *task = g_hash_table_lookup(mock->tasks, &id);
	if (!task || task->kind != kind)
		*result = -ENOENT;
	else
		*result = task->done ? 1 : 0;
	if (*result == 1)
		g_hash_table_steal(mock->tasks, &id);
	pthread_mutex_unlock(&mock->lock);
	return *result == 1 ? task : NULL;
}

/* The copies are made without the lock: a submit never waits for them. */
static void
run_store(MockAdapter *mock, MockTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		GBytes *data = g_bytes_new(task->objects[i].data, task->objects[i].bytes);

		pthread_mutex_lock(&mock->lock);
		int64_t rc = mock_store_object_locked(mock, task->keys[i], data,
						      task->objects[i].attributes);
		if (task->result >= 0)
			task->result = rc < 0 ? rc : task->result + rc;
		pthread_mutex_unlock(&mock->lock);
	}
}

static void
run_lookup(MockAdapter *mock, MockTask *task)
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
run_load(MockAdapter *mock, MockTask *task)
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

static void
run_task(MockAdapter *mock, MockTask *task)
{
	if (mock_take_failure(mock, &mock->fail_connections, mock->connection_failure_rate)) {
		task->result = -ECONNREFUSED;
		if (task->kind != MOCK_STORE) /* the engine sees no errno of them */
			kvc_breaker_note(mock->base.breaker, -ECONNREFUSED);
		return;
	}
	switch (task->kind) {
	case MOCK_STORE:
		if (mock_take_failure(mock, &mock->fail_stores, mock->store_failure_rate))
			task->result = -EIO;
		else
			run_store(mock, task);
		break;
	case MOCK_LOOKUP:
		run_lookup(mock, task);
		break;
	default:
		if (!mock_take_failure(mock, &mock->fail_loads, mock->load_failure_rate))
			run_load(mock, task);
		break;
	}
}

static void
end_stores_locked(MockAdapter *mock, const MockTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		MockRecord *record = g_hash_table_lookup(mock->records, task->keys[i]);

		record->stores--;
		mock_drop_record_locked(mock, record);
	}
}

static void
publish_locked(MockAdapter *mock, MockTask *task)
{
	int event_fd = mock->event_fds[task->kind];

	if (task->kind == MOCK_STORE) {
		end_stores_locked(mock, task);
		g_queue_push_tail(&mock->stored, task);
	}
	task->done = true;
	kvc_eventfd_signal(event_fd);
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
	MockTask *task;

	pthread_mutex_lock(&mock->lock);
	while ((task = next_task_locked(mock))) {
		pthread_mutex_unlock(&mock->lock);
		run_task(mock, task);
		pthread_mutex_lock(&mock->lock);
		publish_locked(mock, task);
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
	mock->tasks = g_hash_table_new_full(g_int64_hash, g_int64_equal, NULL,
					    (GDestroyNotify)mock_task_free);
	g_queue_init(&mock->stored);
}

/* Pending stores are in the queue only; lookups and loads are in the table as well. */
void
mock_tasks_deinit(MockAdapter *mock)
{
	for (GTreeNode *node = g_tree_node_first(mock->queue); node;
	     node = g_tree_node_next(node)) {
		MockTask *task = g_tree_node_key(node);

		if (task->kind == MOCK_STORE)
			g_queue_push_tail(&mock->stored, task);
	}
	g_tree_unref(mock->queue);
	g_queue_clear_full(&mock->stored, (GDestroyNotify)mock_task_free);
	g_hash_table_unref(mock->tasks);
	pthread_cond_destroy(&mock->wake);
	pthread_mutex_destroy(&mock->lock);
}
