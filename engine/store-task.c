/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Batches. Each adapter takes what is ready for it in order, as far as its share of the bytes in
 * flight goes: each target's object is read-locked, mapped once for all that are busy with it, and
 * put into an open batch of the adapter: of one scope, and of one size where the adapter wants
 * that. A batch that failed before is tried again key by key.
 */

#include "engine/adapter-call.h"
#include "engine/store-private.h"

#include <errno.h>

/* Batches being put together at a time; one more submits the oldest. */
#define MAX_OPEN 64

/* Of the read lock of a store to ADAPTER. */
#define STORE_OWNER(adapter) kvc_lock_owner("store to adapter", (adapter))

static uint64_t
charge(const KvcStoreRecord *r)
{
	return MAX(r->object->bytes, KVC_STORE_MIN_CHARGE_BYTES);
}

static void
submit_task(KvcStoreController *c, KvcStoreTask *task)
{
	KvcAdapterSlot *slot = &c->context->adapters[task->adapter];
	kvc_stats_add(c->context->stats, stores, task->n);
	c->n_tasks++;
	task->id = kvc_adapter_submit_store(slot, task->keys, task->objects, task->n);
	if (task->id == 0)
		g_queue_push_tail(&c->refused, task);
	else
		g_hash_table_insert(c->lanes[task->adapter].tasks, &task->id, task);
}

static bool
fits(const KvcStoreController *c, const KvcStoreTask *task, const KvcStoreRecord *r, size_t adapter)
{
	return task->adapter == adapter && task->keys[0]->scope == r->key->scope &&
	       task->bytes + r->memory.bytes <= KVC_STORE_BATCH_BYTES &&
	       (!kvc_store_ops(c, adapter)->uniform_batches ||
		task->objects[0].bytes == r->memory.bytes);
}

/* The open batch that R may join, or NULL. */
static GList *
find_open(KvcStoreController *c, const KvcStoreRecord *r, size_t adapter)
{
	GList *link = c->open.head;
	while (link && !fits(c, link->data, r, adapter))
		link = link->next;
	return link;
}

static GList *
open_task(KvcStoreController *c, size_t adapter)
{
	KvcStoreTask *task = g_new0(KvcStoreTask, 1);
	task->adapter = adapter;
	if (c->open.length >= MAX_OPEN)
		submit_task(c, g_queue_pop_head(&c->open));
	g_queue_push_tail(&c->open, task);
	return c->open.tail;
}

static void
add_to_batch(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	bool is_retry = r->targets[adapter].has_failed;
	GList *link = is_retry ? NULL : find_open(c, r, adapter);
	if (!link)
		link = open_task(c, adapter);
	KvcStoreTask *task = link->data;
	task->records[task->n] = r;
	task->keys[task->n] = r->key;
	task->objects[task->n] = r->memory;
	/* Of this moment: a later change waits for the end of the store. */
	KvcObjectAttributes *attributes = &task->attributes[task->n];
	if (kvc_key_index_get_attributes(c->context->index, r->key, attributes) == 0) {
		/* But the stamp is that of these bytes: a commit may be in the index already. */
		if (r->object->version_ns)
			attributes->version_ns = r->object->version_ns;
		task->objects[task->n].attributes = attributes;
	}
	task->bytes += r->memory.bytes;
	task->n++;
	r->busy |= 1u << adapter;
	c->lanes[adapter].bytes_in_flight += charge(r);
	if (is_retry || task->n == KVC_STORE_BATCH_KEYS) {
		g_queue_delete_link(&c->open, link);
		submit_task(c, task);
	}
}

/* Read-locks R's object; false: another one or none is resident by now. */
static bool
lock_object(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	KvcL1Object *locked;
	if (kvc_l1_manager_reserve_read_for(c->context->l1, &r->key, 1, 1, STORE_OWNER(adapter),
					    &locked, NULL) == 0)
		return false;
	if (locked == r->object)
		return true;
	kvc_l1_manager_finish_read_for(c->context->l1, locked, 1, STORE_OWNER(adapter));
	return false;
}

static void
drop_store(KvcStoreController *c, KvcStoreRecord *r)
{
	for (size_t a = 0; a < c->n_adapters; a++)
		kvc_store_leave_ready(&r->targets[a]);
	r->todo = 0;
	r->is_unsettled = true;
	g_queue_push_tail_link(&c->unsettled, &r->link);
}

static void
submit_target(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	if (!lock_object(c, r, adapter)) {
		drop_store(c, r);
		return;
	}
	r->todo &= ~(1u << adapter);
	int rc = r->busy ? 0 : kvc_l1_object_map(r->object, false, &r->memory);
	if (rc == 0) {
		add_to_batch(c, r, adapter);
		return;
	}
	kvc_l1_manager_finish_read_for(c->context->l1, r->object, 1, STORE_OWNER(adapter));
	kvc_stats_add(c->context->stats, stores_unmapped, 1);
	kvc_store_record_fail(c, r, adapter, rc);
	kvc_store_record_advance(c, r);
}

static bool
has_room(const KvcStoreController *c, const KvcStoreLane *lane, const KvcStoreRecord *r)
{
	return lane->bytes_in_flight == 0 || lane->bytes_in_flight + charge(r) <= c->lane_bytes;
}

static void
put_off(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	r->todo &= ~(1u << adapter);
	kvc_stats_add(c->context->stats, stores_unreachable, 1);
	kvc_store_put_off(c, r, adapter, -EHOSTDOWN);
	kvc_store_record_advance(c, r);
}

static void
process_lane(KvcStoreController *c, size_t adapter)
{
	KvcStoreLane *lane = &c->lanes[adapter];
	for (;;) {
		GQueue *queue = lane->first.length > 0 ? &lane->first : &lane->ready;
		KvcStoreTarget *t = g_queue_peek_head(queue);
		if (!t || !has_room(c, lane, t->record))
			break;
		kvc_store_leave_ready(t);
		uint32_t wanted = t->record->todo & (1u << adapter);
		if (!(wanted & ~kvc_store_record_blocked(t->record, wanted)))
			continue;
		if (kvc_adapter_admits(&c->context->adapters[adapter]))
			submit_target(c, t->record, adapter);
		else
			put_off(c, t->record, adapter);
	}
}

void
kvc_store_process_ready(KvcStoreController *c)
{
	for (size_t a = 0; a < c->n_adapters; a++)
		process_lane(c, a);
	while (c->open.length > 0)
		submit_task(c, g_queue_pop_head(&c->open));
}

/* ---- Completion ---------------------------------------------------------------------------- */

static void
finish_target(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int64_t result)
{
	const KvcControllerContext *context = c->context;
	KvcL1Object *object = r->object;
	uint32_t bit = 1u << adapter;
	r->busy &= ~bit;
	kvc_store_rename_kick_past(c, r);
	c->lanes[adapter].bytes_in_flight -= charge(r);
	if (!r->busy)
		kvc_l1_object_unmap(&r->memory);
	if (result >= 0 && !(c->active & bit)) {
		/* It goes, and takes the object with it. */
		kvc_stats_add(context->stats, stores_completed, 1);
		kvc_store_rename_overwritten(c, r, adapter);
		kvc_store_adapters_retarget(c, r);
	} else if (result >= 0) {
		r->stored |= bit;
		kvc_stats_add(context->stats, stores_completed, 1);
		kvc_store_rename_overwritten(c, r, adapter);
		kvc_store_record_note_stored(c, r, adapter);
	} else {
		kvc_store_record_fail(c, r, adapter, (int)result);
	}
	kvc_l1_manager_finish_read_for(context->l1, object, 1, STORE_OWNER(adapter));
}

static void
complete_task(KvcStoreController *c, KvcStoreTask *task, int64_t result)
{
	KvcAdapterSlot *slot = &c->context->adapters[task->adapter];
	if (result >= 0) {
		kvc_stats_add(c->context->stats, store_bytes, (uint64_t)result);
		__atomic_store_n(&slot->store_failures, 0, __ATOMIC_RELAXED);
		c->lanes[task->adapter].is_reached = true;
	} else {
		__atomic_fetch_add(&slot->store_failures, 1, __ATOMIC_RELAXED);
	}
	c->n_tasks--;
	for (size_t i = 0; i < task->n; i++)
		finish_target(c, task->records[i], task->adapter, result);
	for (size_t i = 0; i < task->n; i++) {
		kvc_object_attributes_clear(&task->attributes[i]);
		kvc_store_record_advance(c, task->records[i]);
	}
	g_free(task);
}

static void
note_unknown(KvcStoreController *c, size_t adapter)
{
	kvc_stats_add(c->context->stats, stores_unknown, 1);
	if (!kvc_store_may_log(c))
		return;
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, adapter);
	g_warning("%s completed a store that is not ours", who);
}

void
kvc_store_drain_completions(KvcStoreController *c, size_t adapter)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	KvcL2StoreResult results[64];
	size_t n;
	do {
		n = kvc_adapter_pop_stores(slot, results, G_N_ELEMENTS(results));
		for (size_t i = 0; i < n; i++) {
			KvcStoreTask *task =
				g_hash_table_lookup(c->lanes[adapter].tasks, &results[i].task_id);
			if (!task) {
				note_unknown(c, adapter);
				continue;
			}
			g_hash_table_remove(c->lanes[adapter].tasks, &results[i].task_id);
			complete_task(c, task, results[i].bytes_transferred);
		}
	} while (n == G_N_ELEMENTS(results));
}

void
kvc_store_fail_refused(KvcStoreController *c)
{
	KvcStoreTask *task;
	while ((task = g_queue_pop_head(&c->refused)))
		complete_task(c, task, -EIO);
}
