/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The workers of a connector. Loads go before stores, but one store is always under way if one
 * waits, and one worker is always left for loads. Lookups have workers of their own: they are short
 * and somebody waits for them.
 */

#include "engine/connector-private.h"

#include <errno.h>

#define USAGE_NS (10 * KVC_SEC_NS)

/* ---- Taking -------------------------------------------------------------------------------- */

static bool
has_room_locked(const KvcConnector *c, const ConnectorBatch *batch)
{
	return c->bytes_in_flight == 0 ||
	       c->bytes_in_flight + batch->bytes <= c->max_bytes_in_flight;
}

/* The first store, unless one of its keys is busy: then all wait, which keeps their order. */
static ConnectorBatch *
peek_store_locked(KvcConnector *c)
{
	ConnectorBatch *batch = g_queue_peek_head(&c->queues[KVC_TASK_STORE]);
	unsigned max = MAX(c->n_workers - 1, 1);

	if (!batch || c->running[KVC_TASK_STORE] >= max || !has_room_locked(c, batch))
		return NULL;
	for (size_t i = batch->first; i < batch->first + batch->n; i++)
		if (!kvc_connector_may_store_locked(c, batch->task->items[i].item.key))
			return NULL;
	return batch;
}

static ConnectorBatch *
peek_load_locked(KvcConnector *c)
{
	ConnectorBatch *batch = g_queue_peek_head(&c->queues[KVC_TASK_LOAD]);

	return batch && has_room_locked(c, batch) ? batch : NULL;
}

/* What LINK is to do next, out of its queue; NULL: nothing now. */
static ConnectorBatch *
take_locked(KvcConnector *c, const ConnectorLink *link)
{
	ConnectorBatch *batch;

	if (link->is_lookup) {
		batch = g_queue_peek_head(&c->queues[KVC_TASK_LOOKUP]);
	} else {
		ConnectorBatch *store = peek_store_locked(c), *load = peek_load_locked(c);

		batch = load && (!store || c->running[KVC_TASK_STORE] > 0) ? load : store;
	}
	if (!batch)
		return NULL;
	KvcTaskKind kind = batch->task->base.kind;
	g_queue_pop_head(&c->queues[kind]);
	c->running[kind]++;
	c->bytes_in_flight += batch->bytes;
	for (size_t i = batch->first; kind == KVC_TASK_STORE && i < batch->first + batch->n; i++)
		kvc_connector_begin_store_locked(c, batch->task->items[i].item.key, true);
	return batch;
}

static void
end_locked(KvcConnector *c, ConnectorBatch *batch)
{
	KvcTaskKind kind = batch->task->base.kind;

	c->running[kind]--;
	c->bytes_in_flight -= batch->bytes;
	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		const ConnectorItem *item = &batch->task->items[i];
		KvcObjectKey *key = item->item.key;
		bool is_done = item->item.error == 0;

		if (kind == KVC_TASK_LOAD) {
			c->n_loads += is_done;
			c->n_load_misses += item->item.error == -ENOENT;
		}
		if (kind != KVC_TASK_STORE)
			continue;
		c->n_stores += is_done && !item->is_skipped;
		c->n_skipped += item->is_skipped;
		if (c->ours && is_done && !item->is_skipped)
			g_hash_table_add(c->ours, kvc_object_key_ref(key));
		kvc_connector_begin_store_locked(c, key, false);
		kvc_connector_end_store_locked(c, key);
	}
	kvc_connector_complete_locked(c, batch);
	pthread_cond_broadcast(&c->work); /* for room, and for keys that are free */
}

/* ---- Doing --------------------------------------------------------------------------------- */

/* The items of BATCH (transfer container), with names; those without one have their error. */
static KvcConnectorItem **
name_items(ConnectorBatch *batch)
{
	KvcConnectorItem **items = g_new(KvcConnectorItem *, batch->n);

	for (size_t i = 0; i < batch->n; i++) {
		KvcConnectorItem *item = &batch->task->items[batch->first + i].item;

		items[i] = item;
		item->name = kvc_store_name_format(item->key);
		if (!item->name)
			item->error = batch->task->base.kind == KVC_TASK_STORE ? -EINVAL : -ENOENT;
	}
	return items;
}

/* To those of ITEMS that are skipped; one that is gone meanwhile is stored after all. */
static int
give_attributes(ConnectorLink *link, KvcConnectorItem *const *items, size_t n)
{
	const KvcConnectorOps *ops = link->connector->ops;
	g_autofree KvcConnectorItem **skipped = g_new(KvcConnectorItem *, n);
	size_t n_skipped = 0;

	for (size_t i = 0; ops->set_attributes && i < n; i++) {
		if (!((ConnectorItem *)items[i])->is_skipped || !items[i]->object.attributes)
			continue;
		items[i]->error = -EINPROGRESS;
		skipped[n_skipped++] = items[i];
	}
	int rc = kvc_connector_call(link, ops->set_attributes, skipped, n_skipped, 0);
	for (size_t i = 0; i < n_skipped; i++) {
		bool is_gone = skipped[i]->error == -ENOENT;

		((ConnectorItem *)skipped[i])->is_skipped = !is_gone;
		/* Attributes that cannot be kept do not fail a store. */
		skipped[i]->error = is_gone ? -EINPROGRESS : 0;
	}
	return rc;
}

/* A chunk that is there with this size is the same one. */
static int
skip_known(ConnectorLink *link, ConnectorBatch *batch)
{
	g_autofree KvcConnectorItem **asked = g_new(KvcConnectorItem *, batch->n);
	size_t n = 0;

	for (size_t i = batch->first; i < batch->first + batch->n; i++) {
		KvcConnectorItem *item = &batch->task->items[i].item;

		if (item->key->space == KVC_SPACE_CHUNK && item->error == -EINPROGRESS)
			asked[n++] = item;
	}
	int rc = kvc_connector_call(link, link->connector->ops->exists, asked, n, 0);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		ConnectorItem *item = (ConnectorItem *)asked[i];

		item->is_skipped =
			asked[i]->error == 0 && asked[i]->info.bytes == asked[i]->object.bytes;
		if (!item->is_skipped)
			asked[i]->error = -EINPROGRESS;
	}
	return give_attributes(link, asked, n);
}

/* The first error that says something about the store. */
static int
first_error(KvcConnectorItem *const *items, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (items[i]->error < 0 && items[i]->error != -ENOENT && items[i]->error != -EBUSY)
			return items[i]->error;
	return 0;
}

static void
lock_keys_locked(KvcConnector *c, KvcConnectorItem *const *items, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		ConnectorItem *item = (ConnectorItem *)items[i];
		bool is_renamed;

		if (items[i]->error != -EINPROGRESS)
			continue;
		item->is_locked = kvc_connector_lock_key_locked(c, items[i]->key, &is_renamed);
		if (!item->is_locked)
			items[i]->error = is_renamed ? -EBUSY : -ENOENT;
	}
}

static void
lookup(ConnectorLink *link, KvcConnectorItem **items, size_t n)
{
	KvcConnector *c = link->connector;

	kvc_mutex_lock(&c->lock);
	lock_keys_locked(c, items, n);
	kvc_mutex_unlock(&c->lock);
	kvc_connector_call(link, c->ops->exists, items, n, 0);
	kvc_mutex_lock(&c->lock);
	for (size_t i = 0; i < n; i++)
		if (((ConnectorItem *)items[i])->is_locked && items[i]->error < 0)
			kvc_connector_unlock_key_locked(c, items[i]->key);
	kvc_mutex_unlock(&c->lock);
}

static void
run(ConnectorLink *link, ConnectorBatch *batch)
{
	KvcConnector *c = link->connector;
	KvcTaskKind kind = batch->task->base.kind;
	g_autofree KvcConnectorItem **items = name_items(batch);
	size_t n = batch->n;

	if (kind == KVC_TASK_LOOKUP) {
		lookup(link, items, n);
	} else if (kind == KVC_TASK_LOAD) {
		kvc_connector_call(link, c->ops->get, items, n, batch->bytes);
	} else {
		int rc = skip_known(link, batch);

		if (rc == 0)
			kvc_connector_call(link, c->ops->set, items, n, batch->bytes);
		for (size_t i = 0; i < n; i++)
			if (items[i]->error == -EINPROGRESS)
				items[i]->error = rc;
	}
	kvc_connector_note(c, kind, first_error(items, n));
}

/* How much there is; nobody waits for it. A store that cannot be reached is noticed here too. */
static void
renew_usage(ConnectorLink *link)
{
	KvcConnector *c = link->connector;
	KvcL2Usage usage = {0};
	int rc = kvc_connector_connect(link);

	if (rc == 0) {
		rc = c->ops->size(link->connection, &usage, kvc_connector_deadline(c, 0));
		if (rc < 0)
			kvc_connector_disconnect(link);
	}
	kvc_mutex_lock(&c->lock);
	c->usage_due_ns = kvc_now_ns() + (rc < 0 ? KVC_SEC_NS : USAGE_NS);
	if (rc == 0)
		c->usage = usage;
	kvc_mutex_unlock(&c->lock);
}

void *
kvc_connector_worker_main(void *user)
{
	ConnectorLink *link = user;
	KvcConnector *c = link->connector;
	bool has_usage = c->ops->size && link == &c->links[0];

	kvc_mutex_lock(&c->lock);
	while (!c->is_stopping) {
		ConnectorBatch *batch = take_locked(c, link);
		bool is_due = has_usage && kvc_now_ns() >= c->usage_due_ns;

		if (!batch && !is_due) {
			kvc_cond_wait_until(&c->work, &c->lock, has_usage ? c->usage_due_ns : 0);
			continue;
		}
		kvc_mutex_unlock(&c->lock);
		if (batch)
			run(link, batch);
		else
			renew_usage(link);
		kvc_mutex_lock(&c->lock);
		if (batch)
			end_locked(c, batch);
	}
	kvc_mutex_unlock(&c->lock);
	kvc_connector_disconnect(link);
	return NULL;
}
