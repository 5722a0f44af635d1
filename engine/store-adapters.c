/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Adapters come and go. The manager says which ones are wanted, the thread follows: a new one is
 * attached before the messages that may name it, one that is not wanted gets nothing new and is
 * detached once nothing of it is left. What had been begun ends. Of what had not, stores go to
 * other adapters if no other one has the object; deletions and renames are done as long as they
 * do not fail (the deletion log keeps those); changes of attributes are dropped.
 */

#include "engine/adapter-call.h"
#include "engine/store-private.h"
#include "kvcache/io.h"

#include <errno.h>

/* What a policy says of adapters that are not there is its error, and goes for nothing. */
static void
note_policy_error(KvcStoreController *c, uint32_t unknown, size_t n)
{
	kvc_stats_add(c->context->stats, store_policy_errors, 1);
	if (kvc_store_may_log(c))
		g_warning("store policy %s chose l2.%d, there are %zu", c->policy->name,
			  __builtin_ctz(unknown), n);
}

uint32_t
kvc_store_select_targets(KvcStoreController *c, const KvcObjectKey *key)
{
	KvcAdapterDescriptor view[KVC_MAX_ADAPTERS];
	size_t n = kvc_controller_context_view(c->context, c->active & c->targets_now, view);
	kvc_lock_assert_none_held("select_store_targets");
	uint32_t chosen = c->policy->select_store_targets(key, view, n);
	uint32_t targets = 0;
	if (chosen >> n)
		note_policy_error(c, chosen & ~((1u << n) - 1), n);
	for (size_t i = 0; i < n; i++)
		if (chosen & (1u << i))
			targets |= 1u << view[i].index;
	return targets;
}

/* ---- Attaching ----------------------------------------------------------------------------- */

static GQueue *
queue_of(KvcStoreController *c, const KvcStoreTarget *t)
{
	if (t->backoff >= 0)
		return &c->backoff[t->backoff];
	return t->record && (t->record->delete_syncing & (1u << t->adapter)) ? &c->syncing : NULL;
}

/* LINK was copied from where QUEUE (or NULL) has it: it takes that place. */
static void
take_place(GQueue *queue, GList *link, KvcStoreTarget *t)
{
	link->data = t;
	if (!queue)
		return;
	if (link->prev)
		link->prev->next = link;
	else
		queue->head = link;
	if (link->next)
		link->next->prev = link;
	else
		queue->tail = link;
}

/* TO takes the place of FROM, also in the queues that it is in. */
static void
move_target(KvcStoreController *c, KvcStoreTarget *to, KvcStoreTarget *from)
{
	GQueue *queue = queue_of(c, from);
	*to = *from;
	take_place(queue, &to->link, to);
	take_place(to->ready_queue, &to->ready_link, to);
}

KvcStoreTarget *
kvc_store_targets_new(KvcStoreController *c, KvcStoreRecord *r, KvcStoreRename *m)
{
	KvcStoreTarget *targets = g_new0(KvcStoreTarget, c->n_adapters);
	for (size_t a = 0; a < c->n_adapters; a++) {
		KvcStoreTarget *t = &targets[a];
		t->record = r;
		t->rename = m;
		t->link.data = t->ready_link.data = t;
		t->adapter = (uint8_t)a;
		t->backoff = -1;
	}
	return targets;
}

static KvcStoreTarget *
grow_targets(KvcStoreController *c,
	     KvcStoreTarget *old,
	     size_t n_old,
	     KvcStoreRecord *r,
	     KvcStoreRename *m)
{
	KvcStoreTarget *targets = kvc_store_targets_new(c, r, m);
	for (size_t a = 0; a < n_old; a++)
		move_target(c, &targets[a], &old[a]);
	g_free(old);
	return targets;
}

/* Every record, the sealed ones included. */
static GPtrArray *
list_records(KvcStoreController *c)
{
	GPtrArray *records = g_ptr_array_new();
	GHashTableIter iter;
	void *r;
	g_hash_table_iter_init(&iter, c->records);
	while (g_hash_table_iter_next(&iter, NULL, &r))
		g_ptr_array_add(records, r);
	for (GList *link = c->renames.head; link; link = link->next) {
		const KvcStoreRename *m = link->data;
		if (m->from_before)
			g_ptr_array_add(records, m->from_before);
		if (m->to_before)
			g_ptr_array_add(records, m->to_before);
	}
	return records;
}

static void
make_room_for(KvcStoreController *c, size_t a)
{
	size_t n_old = c->n_adapters;
	if (a < n_old)
		return;
	c->n_adapters = a + 1;
	g_autoptr(GPtrArray) records = list_records(c);
	for (guint i = 0; i < records->len; i++) {
		KvcStoreRecord *r = records->pdata[i];
		r->targets = grow_targets(c, r->targets, n_old, r, NULL);
	}
	for (GList *link = c->renames.head; link; link = link->next) {
		KvcStoreRename *m = link->data;
		m->targets = grow_targets(c, m->targets, n_old, NULL, m);
	}
}

/* What each active adapter may have in flight. */
static void
share_out(KvcStoreController *c)
{
	c->lane_bytes = c->max_bytes_in_flight / (uint64_t)MAX(__builtin_popcount(c->active), 1);
}

static void
publish_attached(KvcStoreController *c)
{
	kvc_mutex_lock(&c->lock);
	c->attached = c->active | c->draining;
	pthread_cond_broadcast(&c->adapters_changed);
	kvc_mutex_unlock(&c->lock);
}

void
kvc_store_adapters_attach(KvcStoreController *c, uint32_t adapters)
{
	if (!adapters)
		return;
	for (uint32_t bits = adapters; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		KvcL2Adapter *adapter = c->context->adapters[a].adapter;
		const KvcL2AdapterOps *ops = adapter->ops;
		make_room_for(c, a);
		c->lanes[a].tasks = g_hash_table_new(g_int64_hash, g_int64_equal);
		c->adapter_fds[a] = ops->get_store_event_fd(adapter);
		if (ops->delete_keys || ops->rename_key || ops->set_attributes)
			c->deleters[a] = kvc_store_deleter_start(c, a);
		c->delete_logged_ns[a] = c->attributes_logged_ns[a] = 0;
		c->active |= 1u << a;
	}
	/* Perhaps these can have what others could not. */
	for (size_t a = 0; a < c->n_adapters; a++)
		c->lanes[a].is_reached = true;
	share_out(c);
	publish_attached(c);
}

/* ---- Detaching ----------------------------------------------------------------------------- */

void
kvc_store_adapters_retarget(KvcStoreController *c, KvcStoreRecord *r)
{
	if (!r->object || r->before || r->is_unsettled)
		return;
	if (!(r->todo | r->busy | r->waiting | r->stored | r->failed))
		r->todo = kvc_store_select_targets(c, r->key);
}

static void
leave_record(KvcStoreController *c, KvcStoreRecord *r, size_t a)
{
	uint32_t bit = 1u << a;
	const KvcAdapterSlot *slot = &c->context->adapters[a];
	bool had_store = r->object && ((r->todo | r->waiting | r->stored) & bit);
	if (r->waiting & bit)
		kvc_store_disarm(c, &r->targets[a]);
	r->todo &= ~bit;
	r->waiting &= ~bit;
	r->stored &= ~bit;
	r->attributes_todo &= ~bit;
	if (had_store)
		kvc_store_adapters_retarget(c, r);
	kvc_store_logged_forget(c, r, bit);
	if (r->targets[a].is_delete_failing || kvc_adapter_is_unreachable(slot))
		kvc_store_record_drop_delete(c, r, a);
	kvc_store_record_advance(c, r);
}

static void
detach(KvcStoreController *c, uint32_t adapters)
{
	c->active &= ~adapters;
	share_out(c);
	c->draining |= adapters;
	for (uint32_t bits = adapters; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		g_autoptr(GPtrArray) records = list_records(c);
		for (guint i = 0; i < records->len; i++)
			leave_record(c, records->pdata[i], a);
		for (GList *link = c->renames.head; link; link = link->next)
			kvc_store_rename_leave(c, link->data, a);
		kvc_store_left_leave(c, a);
		c->lanes[a].is_reached = true; /* others may have what it could not */
	}
}

static bool
is_drained(KvcStoreController *c, size_t a)
{
	uint32_t work = 0;
	if (g_hash_table_size(c->lanes[a].tasks) > 0 || c->refused.length > 0)
		return false;
	g_autoptr(GPtrArray) records = list_records(c);
	for (guint i = 0; i < records->len; i++) {
		const KvcStoreRecord *r = records->pdata[i];
		work |= r->todo | r->busy | r->waiting | r->attributes_busy | r->delete_syncing |
			kvc_store_record_deleting(r);
	}
	for (GList *link = c->renames.head; link; link = link->next)
		work |= kvc_store_rename_pending(link->data);
	return !(work & (1u << a));
}

void
kvc_store_adapters_finish(KvcStoreController *c)
{
	uint32_t done = 0;
	for (uint32_t bits = c->draining; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		if (!is_drained(c, a))
			continue;
		/* It has nothing to do: this does not wait for the adapter. */
		if (c->deleters[a])
			kvc_store_deleter_stop(g_steal_pointer(&c->deleters[a]));
		g_hash_table_unref(g_steal_pointer(&c->lanes[a].tasks));
		done |= 1u << a;
	}
	c->draining &= ~done;
	if (done)
		publish_attached(c);
}

void
kvc_store_adapters_follow(KvcStoreController *c)
{
	uint32_t new = c->wanted_now & ~(c->active | c->draining);
	uint32_t unwanted = c->active & ~c->wanted_now;
	kvc_store_adapters_attach(c, new);
	if (unwanted)
		detach(c, unwanted);
}

/* ---- What the manager calls ---------------------------------------------------------------- */

int
kvc_store_controller_set_adapter(KvcStoreController *c,
				 size_t adapter,
				 bool is_wanted,
				 int64_t deadline_ns)
{
	uint32_t bit = 1u << adapter, expected = is_wanted ? bit : 0;
	int rc = 0;
	kvc_mutex_lock(&c->lock);
	c->wanted = (c->wanted & ~bit) | expected;
	c->targets &= ~bit;
	kvc_mutex_unlock(&c->lock);
	kvc_eventfd_signal(c->event_fd);
	kvc_mutex_lock(&c->lock);
	while ((c->attached & bit) != expected && !c->is_stopping && rc == 0)
		rc = kvc_cond_wait_until(&c->adapters_changed, &c->lock, deadline_ns);
	bool is_done = (c->attached & bit) == expected;
	kvc_mutex_unlock(&c->lock);
	return is_done ? 0 : -ETIMEDOUT;
}

void
kvc_store_controller_set_target(KvcStoreController *c, size_t adapter)
{
	kvc_mutex_lock(&c->lock);
	c->targets |= 1u << adapter;
	kvc_mutex_unlock(&c->lock);
}
