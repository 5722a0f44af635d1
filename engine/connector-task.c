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
batch_items(const KvcConnector *c, KvcTaskKind kind, size_t n)
{
	if (kind == KVC_TASK_LOOKUP)
		return c->ops->max_batch;
	return MIN(c->ops->max_batch, MAX(n / c->n_workers, 1));
}

static void
cut(KvcConnector *c, ConnectorTask *task)
{
	size_t n = task->base.n, max = batch_items(c, task->base.kind, n);
	ConnectorBatch *batch = NULL;

	task->batches = g_new0(ConnectorBatch, n);
	for (size_t i = 0; i < n; i++) {
		uint64_t bytes = task->items[i].item.object.bytes;

		if (!batch || batch->n >= max || batch->bytes + bytes > BATCH_BYTES) {
			batch = &task->batches[task->n_batches++];
			batch->task = task;
			batch->first = i;
		}
		batch->n++;
		batch->bytes += bytes;
	}
}

static void
make_items(ConnectorTask *task)
{
	task->items = g_new0(ConnectorItem, task->base.n);
	for (size_t i = 0; i < task->base.n; i++) {
		KvcConnectorItem *item = &task->items[i].item;

		item->key = task->base.keys[i];
		item->error = -EINPROGRESS;
		if (task->base.objects)
			item->object = task->base.objects[i];
	}
}

void
kvc_connector_task_clear(KvcTask *base)
{
	ConnectorTask *task = (ConnectorTask *)base;

	for (size_t i = 0; i < base->n; i++) {
		kvc_xattrs_unref(task->items[i].item.info.xattrs);
		g_free((char *)task->items[i].item.name);
	}
	g_free(task->items);
	g_free(task->batches);
}

static int64_t
expiry(const KvcConnector *c, KvcTaskKind kind)
{
	if (kind == KVC_TASK_STORE)
		return 0;
	return kvc_now_ns() +
	       c->request_timeout_ns * (kind == KVC_TASK_LOOKUP ? LOOKUP_PATIENCE : LOAD_PATIENCE);
}

KvcL2TaskId
kvc_connector_submit(KvcConnector *c,
		     KvcTaskKind kind,
		     KvcObjectKey *const *keys,
		     const KvcMemoryObj *objects,
		     size_t n)
{
	int64_t expires_ns = expiry(c, kind);
	ConnectorTask *task =
		(ConnectorTask *)kvc_task_new(c->base.board, sizeof(*task), kind, keys, objects, n);

	make_items(task);
	cut(c, task);
	size_t n_batches = task->n_batches;
	ConnectorBatch *batches = task->batches;
	/* No batch is over before the lock is let go; without one the task may be gone at once. */
	kvc_mutex_lock(&c->lock);
	KvcL2TaskId id = kvc_task_post(&task->base, n_batches);
	for (size_t i = 0; kind == KVC_TASK_STORE && i < n; i++)
		kvc_connector_add_store_locked(c, keys[i]);
	for (size_t i = 0; i < n_batches; i++) {
		batches[i].expires_ns = expires_ns;
		g_queue_push_tail(&c->queues[kind], &batches[i]);
	}
	pthread_cond_broadcast(&c->work);
	pthread_cond_signal(&c->completed); /* there may be another first deadline */
	kvc_mutex_unlock(&c->lock);
	return id;
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
		if (task->base.kind == KVC_TASK_STORE)
			kvc_connector_end_store_locked(c, item->key);
	}
	kvc_connector_complete_locked(c, batch);
}

void
kvc_connector_fail_queued_locked(KvcConnector *c, int error)
{
	ConnectorBatch *batch;

	for (size_t kind = 0; kind < KVC_TASK_KINDS; kind++)
		while ((batch = g_queue_pop_head(&c->queues[kind])))
			fail_batch_locked(c, batch, error);
}

/* Fails what has waited too long; when the next one would have, 0: none. */
static int64_t
expire_locked(KvcConnector *c)
{
	int64_t next_ns = 0;

	for (size_t kind = 0; kind < KVC_TASK_KINDS; kind++) {
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

/* What a store has come to with this batch: bytes, or the first error. */
static int64_t
sum_up(const ConnectorTask *task, const ConnectorBatch *batch)
{
	int64_t bytes = 0;

	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		const ConnectorItem *item = &task->items[i];

		if (item->item.error < 0)
			return item->item.error;
		bytes += item->is_skipped ? 0 : (int64_t)item->item.object.bytes;
	}
	return bytes;
}

static void
publish(ConnectorBatch *batch)
{
	ConnectorTask *task = batch->task;
	KvcTask *base = &task->base;
	int64_t result = base->kind == KVC_TASK_STORE ? sum_up(task, batch) : 0;

	for (size_t i = batch->first; base->hits && i < batch->first + batch->n; i++)
		base->hits[i] = task->items[i].item.error == 0;
	for (size_t i = batch->first; base->info && i < batch->first + batch->n; i++) {
		KvcConnectorItem *item = &task->items[i].item;

		if (item->error == 0) {
			base->info[i] = item->info;
			item->info.xattrs = NULL;
		} else if (item->error != -ENOENT) {
			base->info[i].mtime_ns = KVC_L2_NOT_ASKED;
		}
	}
	kvc_task_end_part(base, result);
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
			publish(batch);
		else if (c->is_demux_stopping)
			break;
		else
			kvc_cond_wait_until(&c->completed, &c->lock, next_ns);
	}
	kvc_mutex_unlock(&c->lock);
	return NULL;
}
