/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Deletions that an adapter has confirmed: it is believed again of that key. Before the next store
 * of the key there the confirmation must be on disk, if there is a deletion log, else a replay
 * after a crash would delete what was stored (see deletion-log.c). Such targets are in the queue
 * SYNCING, in the order of their positions, since one thread confirms.
 */

#include "engine/deletion-log.h"
#include "engine/store-private.h"

/* In the log's thread. */
static void
on_progress(void *user, uint64_t synced, int error)
{
	KvcStoreController *c = user;
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_SYNCED;
	message->position = synced;
	message->error = error;
	if (!kvc_store_controller_post(c, message))
		g_free(message);
}

void
kvc_store_logged_start(KvcStoreController *c)
{
	kvc_deletion_log_start(c->context->deletions, on_progress, c);
}

static void
note_source(KvcStoreController *c, KvcStoreRename *m)
{
	uint32_t pending = kvc_store_rename_pending(m);
	if (m->from_before) /* where OLD is what an earlier rename has yet to take */
		pending &= ~kvc_store_rename_has_old(m->from_before);
	if (pending)
		m->delete_id = kvc_deletion_log_add(c->context->deletions, m->old_key, pending);
	/* OLD need not wait for a store of NEW. */
	m->todo |= m->deferred;
	m->deferred = 0;
	kvc_store_rename_kick(c, m);
}

void
kvc_store_logged_note_sources(KvcStoreController *c, const KvcObjectKey *key)
{
	g_autoptr(GSList) sources = NULL;
	const KvcStoreRecord *r = g_hash_table_lookup(c->records, key);
	for (; r && kvc_store_rename_is_target(r); r = r->after->from_before)
		sources = g_slist_prepend(sources, r->after);
	/* The oldest first: what ends last of several with one name has its newest id. */
	for (GSList *link = sources; link && c->context->deletions; link = link->next)
		note_source(c, link->data);
}

/* Nothing of R's key is stored on ADAPTER until the log is on disk up to POSITION. */
static void
hold_back(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, uint64_t position)
{
	KvcStoreTarget *t = &r->targets[adapter];
	t->sync_position = MAX(t->sync_position, position);
	if (t->sync_position <= c->log_synced)
		return;
	kvc_store_logged_forget(c, r, 1u << adapter);
	if (r->waiting & (1u << adapter)) { /* it waits here now */
		kvc_store_disarm(c, t);
		r->waiting &= ~(1u << adapter);
		r->todo |= 1u << adapter;
	}
	r->delete_syncing |= 1u << adapter;
	g_queue_push_tail_link(&c->syncing, &t->link);
}

void
kvc_store_logged_confirm_rename(KvcStoreController *c, KvcStoreRename *m, size_t adapter)
{
	uint64_t position, id = m->delete_id;
	if (m->outdated & (1u << adapter))
		id = MAX(id, m->outdated_id);
	if (id == 0)
		return;
	/* OLD may be there again, and is to be deleted then: that confirms both. */
	for (KvcStoreRecord *r = m->from; r; r = kvc_store_rename_newer(r)) {
		if (!(kvc_store_record_deleting(r) & (1u << adapter)))
			continue;
		r->delete_id = MAX(r->delete_id, id);
		return;
	}
	if (kvc_deletion_log_confirm(c->context->deletions, m->old_key, adapter, id, &position))
		hold_back(c, m->from, adapter, position);
}

/*
 * Neither what is still there, for the adapter cannot delete, nor what a listing may have read
 * before; nor what the adapter hid of a plain key that it renames: that is about what was before
 * R's deletion. The index knows whether a newer deletion is on its way.
 */
static void
unhide(KvcStoreController *c, const KvcStoreRecord *r, size_t adapter)
{
	const KvcL2AdapterOps *ops = kvc_store_ops(c, adapter);
	bool is_gone = ops->delete_keys && !kvc_store_is_listing(c, adapter);
	bool is_renamed = r->before && r->key->space != KVC_SPACE_CHUNK && ops->rename_key;
	if (is_gone && !is_renamed)
		kvc_key_index_unhide(c->context->index, r->key, 1u << adapter, r->delete_id);
}

void
kvc_store_logged_confirm(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	uint64_t position;
	unhide(c, r, adapter);
	/* Else a newer deletion is on its way, or a rename has yet to take OLD away for one. */
	if (kvc_deletion_log_confirm(c->context->deletions, r->key, adapter, r->delete_id,
				     &position))
		hold_back(c, r, adapter, position);
}

void
kvc_store_logged_forget(KvcStoreController *c, KvcStoreRecord *r, uint32_t adapters)
{
	for (size_t a = 0; a < c->n_adapters; a++)
		if (r->delete_syncing & adapters & (1u << a))
			g_queue_unlink(&c->syncing, &r->targets[a].link);
	r->delete_syncing &= ~adapters;
}

void
kvc_store_logged_hurry(KvcStoreController *c, const KvcStoreRecord *r)
{
	if (r->delete_syncing && (r->object || r->next || r->before))
		kvc_deletion_log_request_sync(c->context->deletions);
}

/* The log cannot be written: a store behind it is not held up for ever. */
static void
count_failed_try(KvcStoreController *c)
{
	GList *following;
	for (GList *link = c->syncing.head; link; link = following) {
		KvcStoreTarget *t = link->data;
		following = link->next;
		t->delete_tries = MIN(t->delete_tries + 1, UINT8_MAX);
		kvc_store_record_advance(c, t->record);
	}
}

void
kvc_store_logged_synced(KvcStoreController *c, uint64_t position, int error)
{
	KvcStoreTarget *t;
	c->log_synced = position;
	c->is_log_failing = error < 0;
	while ((t = g_queue_peek_head(&c->syncing)) && t->sync_position <= position) {
		KvcStoreRecord *r = t->record;
		kvc_store_logged_forget(c, r, 1u << t->adapter);
		t->delete_tries = 0;
		kvc_store_record_advance(c, r);
	}
	if (c->is_log_failing)
		count_failed_try(c);
}

/* A deletion that has failed and is in the log: the next run may do it as well. */
static bool
may_be_left(KvcStoreController *c, const KvcStoreRecord *r)
{
	/* Without a log only what an older version is deleted for: nobody asked for that. */
	if (!c->context->deletions && r->delete_order != UINT64_MAX)
		return false;
	/* Nothing remembers a rename across the end: it would be undone. */
	if (r->object || r->next || r->after || r->delete_todo || r->delete_busy ||
	    r->attributes_todo || r->attributes_busy)
		return false;
	if (!c->is_log_failing && r->delete_syncing)
		return false;
	for (size_t a = 0; a < c->n_adapters; a++)
		if ((r->delete_waiting & (1u << a)) &&
		    (c->is_log_failing || !r->targets[a].is_delete_failing))
			return false;
	return true;
}

bool
kvc_store_logged_may_leave_all(KvcStoreController *c)
{
	GHashTableIter iter;
	KvcStoreRecord *r;
	g_hash_table_iter_init(&iter, c->records);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&r))
		if (!may_be_left(c, r))
			return false;
	return true;
}
