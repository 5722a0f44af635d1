/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Tasks of a connector: cut into batches at the submit, put together again by the demux thread,
 * which also fails batches that no worker has taken in time.
 */

#include "engine/connector-private.h"

#include <errno.h>

/* A batch is of one large object, or of small ones up to this. */
#define BATCH_BYTES (4u << 20)
/* How long lookups and loads may wait for a worker, in request time-outs. */
#define LOOKUP_PATIENCE 1
#define LOAD_PATIENCE 4

/* ---- Making -------------------------------------------------------------------------------- */

/* Whoever waits for a batch waits for all of it, so a task of few objects is spread. */
static size_t
batch_items(const KvcConnector *c, ConnectorKind kind, size_t n)
{
	if (kind == CONNECTOR_LOOKUP)
		return c->ops->max_batch;
	return MIN(c->ops->max_batch, MAX(n / c->n_workers, 1));
}

static void
cut(KvcConnector *c, ConnectorTask *task)
{
	size_t max = batch_items(c, task->kind, task->n);
	ConnectorBatch *batch = NULL;

	task->batches = g_new0(ConnectorBatch, MAX(task->n, 1));
	for (size_t i = 0; i < task->n; i++) {
		uint64_t bytes = task->items[i].item.object.bytes;

		if (!batch || batch->n >= max || batch->bytes + bytes > BATCH_BYTES) {
			batch = &task->batches[task->n_batches++];
			batch->task = task;
			batch->first = i;
		}
		batch->n++;
		batch->bytes += bytes;
	}
	if (task->n == 0) {
		task->batches[0].task = task;
		task->n_batches = 1;
	}
	task->remaining = task->n_batches;
}

ConnectorTask *
kvc_connector_task_new(KvcConnector *c,
		       ConnectorKind kind,
		       KvcObjectKey *const *keys,
		       const KvcMemoryObj *objects,
		       size_t n)
{
	ConnectorTask *task = g_new0(ConnectorTask, 1);

	task->kind = kind;
	task->n = n;
	task->items = g_new0(ConnectorItem, n);
	for (size_t i = 0; i < n; i++) {
		KvcConnectorItem *item = &task->items[i].item;

		item->key = kvc_object_key_ref(keys[i]);
		item->error = -EINPROGRESS;
		if (objects)
			item->object = objects[i];
	}
	cut(c, task);
	return task;
}

void
kvc_connector_task_free(ConnectorTask *task)
{
	for (size_t i = 0; i < task->n; i++) {
		KvcConnectorItem *item = &task->items[i].item;

		kvc_object_key_unref(item->key);
		kvc_xattrs_unref(item->info.xattrs);
		g_free((char *)item->name);
	}
	g_free(task->items);
	g_free(task->batches);
	g_free(task);
}

static int64_t
expiry(const KvcConnector *c, ConnectorKind kind)
{
	if (kind == CONNECTOR_STORE)
		return 0;
	return kvc_now_ns() +
	       c->request_timeout_ns * (kind == CONNECTOR_LOOKUP ? LOOKUP_PATIENCE : LOAD_PATIENCE);
}

KvcL2TaskId
kvc_connector_task_submit(KvcConnector *c, ConnectorTask *task)
{
	int64_t expires_ns = expiry(c, task->kind);

	kvc_mutex_lock(&c->lock);
	KvcL2TaskId id = task->id = ++c->last_id;
	if (task->kind != CONNECTOR_STORE)
		g_hash_table_insert(c->tasks, &task->id, task);
	else
		for (size_t i = 0; i < task->n; i++)
			kvc_connector_add_store_locked(c, task->items[i].item.key);
	for (size_t i = 0; i < task->n_batches; i++) {
		ConnectorBatch *batch = &task->batches[i];

		batch->expires_ns = expires_ns;
		if (batch->n == 0)
			kvc_connector_complete_locked(c, batch);
		else
			g_queue_push_tail(&c->queues[task->kind], batch);
	}
	pthread_cond_broadcast(&c->work);
	pthread_cond_signal(&c->completed); /* there may be another first deadline */
	kvc_mutex_unlock(&c->lock);
	return id;
}

ConnectorTask *
kvc_connector_task_take(KvcConnector *c, KvcL2TaskId id, ConnectorKind kind, int *result)
{
	kvc_mutex_lock(&c->lock);
	ConnectorTask *task = g_hash_table_lookup(c->tasks, &id);
	if (!task || task->kind != kind)
		*result = -ENOENT;
	else
		*result = task->done ? 1 : 0;
	if (*result == 1)
		g_hash_table_steal(c->tasks, &id);
	kvc_mutex_unlock(&c->lock);
	return *result == 1 ? task : NULL;
}

/* ---- Completing ---------------------------------------------------------------------------- */

void
kvc_connector_complete_locked(KvcConnector *c, ConnectorBatch *batch)
{
	g_queue_push_tail(&c->completions, batch);
	pthread_cond_signal(&c->completed);
}

/* BATCH is in no queue. */
static void
fail_batch_locked(KvcConnector *c, ConnectorBatch *batch, int error)
{
	ConnectorTask *task = batch->task;

	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		KvcConnectorItem *item = &task->items[i].item;

		item->error = error;
		if (task->kind == CONNECTOR_STORE)
			kvc_connector_end_store_locked(c, item->key);
	}
	kvc_connector_complete_locked(c, batch);
}

void
kvc_connector_fail_queued_locked(KvcConnector *c, int error)
{
	ConnectorBatch *batch;

	for (size_t kind = 0; kind < CONNECTOR_KINDS; kind++)
		while ((batch = g_queue_pop_head(&c->queues[kind])))
			fail_batch_locked(c, batch, error);
}

/* Fails what has waited too long; when the next one would have, 0: none. */
static int64_t
expire_locked(KvcConnector *c)
{
	int64_t next_ns = 0;

	for (size_t kind = 0; kind < CONNECTOR_KINDS; kind++) {
		GQueue *queue = &c->queues[kind];
		ConnectorBatch *batch;

		while ((batch = g_queue_peek_head(queue)) && batch->expires_ns &&
		       batch->expires_ns <= kvc_now_ns())
			fail_batch_locked(c, g_queue_pop_head(queue), -ETIMEDOUT);
		if (batch && batch->expires_ns && (!next_ns || batch->expires_ns < next_ns))
			next_ns = batch->expires_ns;
	}
	return next_ns;
}

/* What a store task of this batch has come to. */
static void
add_result_locked(KvcConnector *c, ConnectorTask *task, const ConnectorBatch *batch)
{
	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		const ConnectorItem *item = &task->items[i];
		int error = item->item.error;

		if (error < 0 && task->result >= 0)
			task->result = error;
		else if (task->result >= 0 && !item->is_skipped)
			task->result += (int64_t)item->item.object.bytes;
	}
}

static void
publish_locked(KvcConnector *c, ConnectorBatch *batch)
{
	ConnectorTask *task = batch->task;

	if (task->kind == CONNECTOR_STORE)
		add_result_locked(c, task, batch);
	if (--task->remaining > 0)
		return;
	int event_fd = c->event_fds[task->kind];
	task->done = true;
	if (task->kind == CONNECTOR_STORE)
		g_queue_push_tail(&c->stored, task);
	kvc_eventfd_signal(event_fd);
}

void *
kvc_connector_demux_main(void *user)
{
	KvcConnector *c = user;

	pthread_setname_np(pthread_self(), "kvc-demux");
	kvc_mutex_lock(&c->lock);
	for (;;) {
		int64_t next_ns = expire_locked(c);
		ConnectorBatch *batch = g_queue_pop_head(&c->completions);

		if (batch)
			publish_locked(c, batch);
		else if (c->is_demux_stopping)
			break;
		else
			kvc_cond_wait_until(&c->completed, &c->lock, next_ns);
	}
	kvc_mutex_unlock(&c->lock);
	return NULL;
}
