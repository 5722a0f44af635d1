/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The order of what happens to one key.
 *
 * A record stores one object at a time, on all its targets at once. A newer commit waits in NEXT
 * until the one in flight ended; a newer one still replaces it there. On each adapter a store and a
 * deletion never overlap: a deletion waits for the store in flight, everything stored later waits
 * for the deletion. Messages come in the order of the L1 tables only within commits: a commit that
 * followed a deletion may be told first. So a deletion does not drop what it finds queued without
 * looking whether that object is still the resident one; if it is, it is stored (again) after the
 * deletion.
 */

#include "engine/deletion-log.h"
#include "engine/store-private.h"

#include <errno.h>

#define LOGGED_PER_SECOND 10
/* How often a streak of failed deletions is in the log, after its first one. */
#define DELETE_LOG_NS (60 * KVC_SEC_NS)

static const int64_t backoff_delays_ns[KVC_STORE_BACKOFFS] = {
	100 * KVC_MSEC_NS,		      /* stores */
	400 * KVC_MSEC_NS,  50 * KVC_MSEC_NS, /* deletions */
	100 * KVC_MSEC_NS,  200 * KVC_MSEC_NS,	400 * KVC_MSEC_NS,
	800 * KVC_MSEC_NS,  1600 * KVC_MSEC_NS, 3200 * KVC_MSEC_NS,
	5000 * KVC_MSEC_NS, 250 * KVC_MSEC_NS, /* what is put off */
};

#define deleting kvc_store_record_deleting

/* Where a deletion has to end, and to be on disk in the log, before anything else. */
static uint32_t
blocked_by_deletion(const KvcStoreRecord *r)
{
	return deleting(r) | r->delete_syncing;
}

uint32_t
kvc_store_record_blocked(const KvcStoreRecord *r, uint32_t wanted)
{
	uint32_t here = (blocked_by_deletion(r) | r->attributes_busy) & wanted;
	return here | kvc_store_rename_blocks(r, wanted & ~here);
}

/* The index of the lowest bit; takes it out. */
static size_t
take_bit(uint32_t *bits)
{
	unsigned bit = (unsigned)__builtin_ctz(*bits);
	*bits &= *bits - 1;
	return bit;
}

static void
count_pending(KvcStoreController *c, size_t adapter, int change)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	__atomic_fetch_add(&slot->deletes_pending, (uint64_t)change, __ATOMIC_RELAXED);
}

KvcStoreRecord *
kvc_store_record_get(KvcStoreController *c, KvcObjectKey *key)
{
	KvcStoreRecord *r = g_hash_table_lookup(c->records, key);
	if (r)
		return r;
	r = g_new0(KvcStoreRecord, 1);
	r->targets = kvc_store_targets_new(c, r, NULL);
	r->key = kvc_object_key_ref(key);
	r->link.data = r;
	g_hash_table_insert(c->records, r->key, r);
	return r;
}

void
kvc_store_leave_ready(KvcStoreTarget *t)
{
	if (t->ready_queue)
		g_queue_unlink(t->ready_queue, &t->ready_link);
	t->ready_queue = NULL;
}

/* What somebody waits for goes first. */
static void
enter_ready(KvcStoreLane *lane, KvcStoreTarget *t)
{
	GQueue *queue = t->record->waiters ? &lane->first : &lane->ready;
	if (t->ready_queue == queue || t->ready_queue == &lane->first)
		return;
	kvc_store_leave_ready(t);
	t->ready_queue = queue;
	g_queue_push_tail_link(queue, &t->ready_link);
}

static void
leave_queues(KvcStoreController *c, KvcStoreRecord *r)
{
	for (size_t a = 0; a < c->n_adapters; a++)
		kvc_store_leave_ready(&r->targets[a]);
	if (r->is_unsettled)
		g_queue_unlink(&c->unsettled, &r->link);
	r->is_unsettled = false;
}

/* ---- Back-off ------------------------------------------------------------------------------ */

void
kvc_store_disarm(KvcStoreController *c, KvcStoreTarget *t)
{
	if (t->backoff >= 0)
		g_queue_unlink(&c->backoff[t->backoff], &t->link);
	t->backoff = -1;
}

void
kvc_store_arm(KvcStoreController *c, KvcStoreTarget *t, int backoff)
{
	g_assert(t->backoff < 0);
	t->backoff = (int8_t)backoff;
	t->due_ns = kvc_now_ns() + backoff_delays_ns[backoff];
	g_queue_push_tail_link(&c->backoff[backoff], &t->link);
}

static void
fire(KvcStoreController *c, KvcStoreTarget *t)
{
	KvcStoreRecord *r = t->record;
	uint32_t bit = 1u << t->adapter;
	kvc_store_disarm(c, t);
	if (t->rename) {
		kvc_store_rename_retry(c, t->rename, t->adapter);
		return;
	}
	if (r->waiting & bit) {
		r->waiting &= ~bit;
		r->todo |= bit;
	} else {
		r->delete_waiting &= ~bit;
		r->delete_todo |= bit;
	}
	kvc_store_record_advance(c, r);
}

void
kvc_store_fire_backoffs(KvcStoreController *c, int64_t now_ns)
{
	for (size_t i = 0; i < KVC_STORE_BACKOFFS; i++) {
		KvcStoreTarget *t;
		while ((t = g_queue_peek_head(&c->backoff[i])) && t->due_ns <= now_ns)
			fire(c, t);
	}
}

int64_t
kvc_store_next_due_ns(KvcStoreController *c)
{
	int64_t due = 0;
	for (size_t i = 0; i < KVC_STORE_BACKOFFS; i++) {
		KvcStoreTarget *t = g_queue_peek_head(&c->backoff[i]);
		if (t && (due == 0 || t->due_ns < due))
			due = t->due_ns;
	}
	for (uint32_t bits = c->active; bits; bits &= bits - 1) {
		const KvcStoreLane *lane = &c->lanes[__builtin_ctz(bits)];
		if (lane->probe_ns && (due == 0 || lane->probe_ns < due))
			due = lane->probe_ns;
	}
	return due;
}

/* ---- Stores -------------------------------------------------------------------------------- */

/* A dead adapter fails every object there is: the counter has them all, the log a few. */
bool
kvc_store_may_log(KvcStoreController *c)
{
	int64_t now = kvc_now_ns();
	if (now - c->log_since_ns > KVC_SEC_NS) {
		c->log_since_ns = now;
		c->n_logged = 0;
	}
	return c->n_logged++ < LOGGED_PER_SECOND;
}

/*
 * R->object was replaced while it was on its way: the adapter may have it all the same. Where a
 * rename waits for R, what the adapter has goes to the new name, and the rename knows what it is.
 */
static void
note_outdated(KvcStoreController *c, const KvcStoreRecord *r, size_t adapter)
{
	if (r->key->space != KVC_SPACE_CHUNK && !r->before)
		kvc_key_index_note_outdated(c->context->index, r->key, 1u << adapter);
}

static void
reset_tries(KvcStoreController *c, KvcStoreRecord *r)
{
	for (size_t a = 0; a < c->n_adapters; a++) {
		KvcStoreTarget *t = &r->targets[a];
		t->store_tries = 0;
		t->has_failed = false;
		if (c->active & (1u << a)) /* else somebody may be filling in the slot */
			t->n_reached = __atomic_load_n(&c->context->adapters[a].n_reached,
						       __ATOMIC_RELAXED);
	}
}

/*
 * A store on T's adapter ended with ERROR: is the adapter gone? If others got through since T's
 * last try it is not, and the connection broke because of this object.
 */
static bool
is_outage(KvcStoreController *c, KvcStoreTarget *t, int error)
{
	const KvcAdapterSlot *slot = &c->context->adapters[t->adapter];
	uint64_t n_reached = __atomic_load_n(&slot->n_reached, __ATOMIC_RELAXED);
	bool others_got_through = n_reached != t->n_reached;
	t->n_reached = n_reached;
	return slot->breaker && kvc_is_connection_error(error) && !others_got_through;
}

void
kvc_store_record_fail(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	KvcStoreTarget *t = &r->targets[adapter];
	if (r->next)
		r->next_order = r->object_order; /* who waits for this one gets the newer one */
	if (c->is_halting || r->next || r->before || (deleting(r) & (1u << adapter))) {
		kvc_stats_add(c->context->stats, stores_outdated, 1);
		note_outdated(c, r, adapter);
		return;
	}
	if (!(c->active & (1u << adapter))) {
		kvc_stats_add(c->context->stats, stores_outdated, 1);
		kvc_store_adapters_retarget(c, r);
		return;
	}
	t->has_failed = true;
	if (is_outage(c, t, error)) {
		kvc_store_put_off(c, r, adapter, error);
		return;
	}
	if (++t->store_tries >= KVC_STORE_TRIES) {
		kvc_store_give_up(c, r, adapter, error);
		return;
	}
	kvc_stats_add(c->context->stats, stores_retried, 1);
	r->waiting |= 1u << adapter;
	kvc_store_arm(c, t, t->store_tries - 1);
}

/* Forgets what has not been submitted of the store that R is at. */
static void
cancel_store(KvcStoreController *c, KvcStoreRecord *r)
{
	uint32_t waiting = r->waiting;
	while (waiting)
		kvc_store_disarm(c, &r->targets[take_bit(&waiting)]);
	r->waiting = 0;
	r->todo = 0;
	r->is_cancelled = true;
}

static void
begin_store(KvcStoreController *c, KvcStoreRecord *r)
{
	r->object = g_steal_pointer(&r->next);
	r->object_order = r->next_order;
	r->stored = r->failed = 0;
	r->blocked_failed = 0;
	r->is_cancelled = false;
	r->todo = kvc_store_select_targets(c, r->key);
	reset_tries(c, r);
}

/*
 * An adapter that did not take the object, and has an older version of it, would show that one
 * after a restart, or bring it under another name by a rename. No flush waits for this.
 */
static void
delete_older(KvcStoreController *c, KvcStoreRecord *r)
{
	if (r->key->space == KVC_SPACE_CHUNK || r->next || r->before || r->is_cancelled)
		return;
	/* Not what a rename has yet to take from this name. */
	uint32_t failed = r->failed & c->active & ~blocked_by_deletion(r);
	failed &= ~kvc_store_rename_has_old(r);
	uint32_t older = failed & kvc_key_index_hidden_from(c->context->index, r->key);
	for (size_t a = 0; a < c->n_adapters; a++)
		if ((failed & (1u << a)) && kvc_store_is_listing(c, a)) /* nobody knows yet */
			older |= 1u << a;
	if (!older)
		return;
	uint64_t id = kvc_deletion_log_add(c->context->deletions, r->key, older);
	kvc_key_index_hide_from(c->context->index, r->key, older, id);
	r->delete_id = MAX(r->delete_id, id);
	if (!deleting(r))
		r->delete_order = UINT64_MAX;
	r->delete_todo |= older;
	while (older)
		count_pending(c, take_bit(&older), 1);
}

/* The last target of the object ended, or it needs none any more. */
static void
end_store(KvcStoreController *c, KvcStoreRecord *r)
{
	g_autoptr(KvcObjectKey) key = kvc_object_key_ref(r->key);
	KvcL1Object *object = g_steal_pointer(&r->object);
	bool all_failed = r->failed && !r->stored;
	r->error = all_failed ? -EIO : 0;
	r->has_none = !r->stored && !deleting(r);
	if (r->next != object && !r->is_cancelled)
		kvc_l1_manager_set_clean(c->context->l1, object, !all_failed);
	if (r->stored && !r->next && !r->before && !deleting(r) && c->policy->select_l1_deletion &&
	    c->policy->select_l1_deletion(key))
		kvc_l1_manager_delete(c->context->l1, key, false);
	if (r->stored && r->failed)
		delete_older(c, r);
	if (r->stored)
		kvc_store_left_delete(c, key);
	kvc_l1_object_unref(object);
}

/* A dead adapter that does not delete or rename must not keep the object dirty for ever. */
static void
give_up_blocked(KvcStoreController *c, KvcStoreRecord *r)
{
	uint32_t stuck = kvc_store_rename_stuck(r);
	uint32_t waits = r->todo & (blocked_by_deletion(r) | stuck);
	while (waits) {
		size_t a = take_bit(&waits);
		if (r->targets[a].delete_tries < KVC_STORE_BLOCKED_TRIES && !(stuck & (1u << a)))
			continue;
		r->todo &= ~(1u << a);
		kvc_stats_add(c->context->stats, stores_blocked, 1);
		r->blocked_failed |= 1u << a;
		kvc_store_give_up(c, r, a, -EBUSY);
	}
}

static void
advance_stores(KvcStoreController *c, KvcStoreRecord *r)
{
	for (;;) {
		give_up_blocked(c, r);
		if (r->object && !(r->todo | r->busy | r->waiting))
			end_store(c, r);
		if (r->object || !r->next)
			break;
		begin_store(c, r);
	}
	uint32_t ready = r->todo & ~kvc_store_record_blocked(r, r->todo);
	for (size_t a = 0; a < c->n_adapters; a++) {
		if (ready & (1u << a))
			enter_ready(&c->lanes[a], &r->targets[a]);
		else
			kvc_store_leave_ready(&r->targets[a]);
	}
}

void
kvc_store_record_take_resident(KvcStoreController *c, KvcStoreRecord *r)
{
	if (r->next)
		return;
	KvcL1Object *object = kvc_l1_manager_make_dirty(c->context->l1, r->key);
	if (object && object == r->object) {
		kvc_l1_object_unref(object);
		return;
	}
	r->next = object;
	r->next_order = ++c->last_order;
}

void
kvc_store_record_commit(KvcStoreController *c, KvcL1Object *object)
{
	KvcStoreRecord *r = kvc_store_record_get(c, object->key);
	if (r->next)
		kvc_l1_object_unref(r->next);
	else
		r->next_order = ++c->last_order;
	r->next = kvc_l1_object_ref(object);
	if (kvc_store_rename_is_target(r))
		r->after->object = NULL;
	if (r->object && (r->todo | r->waiting)) {
		/* The newer one takes its place, also for those who wait for it. */
		r->next_order = r->object_order;
		cancel_store(c, r);
	}
	kvc_store_record_advance(c, r);
}

/* ---- Deletions ----------------------------------------------------------------------------- */

static void
log_failed_delete(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	int64_t now = kvc_now_ns(), *logged_ns = &c->delete_logged_ns[adapter];
	bool is_first = c->context->adapters[adapter].deletes_failing == 0;
	bool is_recent = *logged_ns && now - *logged_ns < DELETE_LOG_NS;
	if (is_first ? !kvc_store_may_log(c) : is_recent)
		return;
	*logged_ns = now;
	g_autofree char *name = kvc_object_key_to_string(r->key);
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, adapter);
	g_warning("%s could not delete %s: %s; it is tried again", who, name, g_strerror(-error));
}

/* A try to delete R ended with ERROR; 0: it did not fail (it is gone, or locked). */
static void
note_delete_error(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	KvcStoreTarget *t = &r->targets[adapter];
	bool fails = error < 0, failed = t->is_delete_failing;
	if (fails) {
		kvc_stats_add(c->context->stats, deletes_failed, 1);
		log_failed_delete(c, r, adapter, error);
	}
	t->is_delete_failing = fails;
	if (fails && !failed)
		__atomic_fetch_add(&slot->deletes_failing, 1, __ATOMIC_RELAXED);
	else if (failed && !fails)
		__atomic_fetch_sub(&slot->deletes_failing, 1, __ATOMIC_RELAXED);
}

static bool
is_resident(KvcStoreController *c, KvcL1Object *object)
{
	KvcL1Object *resident;
	KvcObjectKey *key = object->key;
	if (kvc_l1_manager_reserve_read(c->context->l1, &key, 1, 1, &resident, NULL) == 0)
		return false;
	bool same = resident == object;
	kvc_l1_manager_finish_read(c->context->l1, resident, 1);
	return same;
}

typedef struct Stored {
	KvcKeyIndex *index;
	KvcObjectKey *key;
	uint32_t bit;
} Stored;

static void
note_resident_stored(void *user)
{
	const Stored *stored = user;
	kvc_key_index_note_stored(stored->index, stored->key, stored->bit);
}

/*
 * A version that was replaced or deleted meanwhile is not what the index knows: it stays hidden,
 * and whoever replaces or deletes it in this moment comes before us or after us. All chunks of one
 * hash are the same.
 */
void
kvc_store_record_note_stored(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	KvcL1Object *object = r->object;
	Stored stored = {c->context->index, r->key, 1u << adapter};
	if (r->before) /* the index has another object by now */
		return;
	bool is_noted = !r->next && !(deleting(r) & stored.bit) &&
			kvc_l1_manager_while_resident(c->context->l1, object, note_resident_stored,
						      &stored);
	if (is_noted)
		return;
	if (r->key->space == KVC_SPACE_CHUNK)
		kvc_key_index_add(stored.index, r->key, stored.bit, object->bytes,
				  object->mtime_ns);
	else
		note_outdated(c, r, adapter);
}

/*
 * Where the message of R's deletion comes late: the key was hidden from these ADAPTERS, and they
 * are known to have it (or to get it, by a rename). So it is something newer.
 */
static uint32_t
known_since(KvcStoreController *c, const KvcStoreRecord *r, uint32_t adapters)
{
	KvcObjectInfo info;
	if (kvc_key_index_get(c->context->index, r->key, &info) < 0)
		return 0;
	/* A rename that is not told yet comes after this deletion. */
	bool is_told = kvc_store_rename_is_target(r) && r->after->version == info.version;
	uint32_t tiers = is_told ? info.tiers : info.tiers & ~info.renaming;
	return tiers & adapters & ~deleting(r);
}

/* ADAPTER has nothing of what R deletes. */
static void
confirm_without(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	kvc_store_record_drop_delete(c, r, adapter);
	if (!kvc_store_rename_pass_deletion(r, adapter))
		kvc_store_logged_confirm(c, r, adapter);
}

void
kvc_store_record_spare(KvcStoreController *c, KvcStoreRecord *r)
{
	uint32_t spared = deleting(r) ? r->delete_todo & kvc_store_rename_has_old(r) : 0;
	while (spared)
		confirm_without(c, r, take_bit(&spared));
}

void
kvc_store_record_delete(KvcStoreController *c, KvcObjectKey *key, uint32_t adapters, uint64_t id)
{
	KvcStoreRecord *r = kvc_store_record_get(c, key);
	uint32_t attached = c->active | c->draining;
	KvcL1Object *newest = r->next ? r->next : r->object;
	bool store_again = newest && is_resident(c, newest);
	if (store_again && !r->next) {
		r->next = kvc_l1_object_ref(newest);
		r->next_order = r->object_order;
	} else if (!store_again && r->next) {
		kvc_l1_object_unref(g_steal_pointer(&r->next));
	}
	uint32_t others = newest ? 0 : known_since(c, r, adapters);
	others |= adapters & kvc_store_rename_has_old(r);
	r->delete_id = MAX(r->delete_id, id);
	adapters &= ~others;
	while (others)
		confirm_without(c, r, take_bit(&others));
	cancel_store(c, r);
	r->attributes_todo &= ~adapters;
	r->error = 0;
	kvc_store_logged_forget(c, r, adapters);
	if (!deleting(r) || r->delete_order == UINT64_MAX)
		r->delete_order = ++c->last_order;
	uint32_t begun = adapters & attached & ~deleting(r);
	while (begun)
		count_pending(c, take_bit(&begun), 1);
	r->delete_todo |= adapters & attached & ~r->delete_waiting;
	kvc_store_record_advance(c, r);
}

static void
begin_delete(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	uint32_t bit = 1u << adapter;
	r->delete_todo &= ~bit;
	if (!c->context->adapters[adapter].adapter->ops->delete_keys) {
		kvc_stats_add(c->context->stats, deletes_unsupported, 1);
		count_pending(c, adapter, -1);
		kvc_store_logged_confirm(c, r, adapter);
		return;
	}
	if (r->targets[adapter].delete_tries == 0)
		kvc_stats_add(c->context->stats, deletes, 1);
	else
		kvc_stats_add(c->context->stats, deletes_retried, 1);
	r->delete_busy |= bit;
	kvc_store_deleter_submit(c->deleters[adapter], r->key);
}

static void
advance_deletes(KvcStoreController *c, KvcStoreRecord *r)
{
	uint32_t begin = r->delete_todo & ~r->busy & ~r->delete_busy & ~r->attributes_busy;
	begin &= ~kvc_store_rename_blocks(r, begin);
	while (begin)
		begin_delete(c, r, take_bit(&begin));
}

static void
end_delete(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, bool is_deleted, int error)
{
	KvcStoreTarget *t = &r->targets[adapter];
	uint32_t bit = 1u << adapter;
	r->delete_busy &= ~bit;
	kvc_store_rename_kick_past(c, r);
	note_delete_error(c, r, adapter, is_deleted ? 0 : error);
	if (!is_deleted && error < 0 && !(c->active & bit)) {
		r->delete_todo |= bit;
		kvc_store_record_drop_delete(c, r, adapter);
		return;
	}
	if (!is_deleted) {
		/* Locked, or the adapter failed. A lock goes away soon, a dead store may take long.
		 */
		int backoff = KVC_STORE_BACKOFF_DELETE + t->delete_tries;
		t->delete_tries = MIN(t->delete_tries + 1, UINT8_MAX);
		r->delete_todo &= ~bit;
		r->delete_waiting |= bit;
		kvc_store_arm(c, t, MIN(backoff, KVC_STORE_BACKOFF_LAST_DELETE));
		return;
	}
	t->delete_tries = 0;
	c->lanes[adapter].is_reached = true;
	kvc_stats_add(c->context->stats, deletes_completed, 1);
	if (r->delete_todo & bit)
		return;
	count_pending(c, adapter, -1);
	kvc_store_rename_overwritten(c, r, adapter);
	kvc_store_logged_confirm(c, r, adapter);
}

void
kvc_store_record_drop_delete(KvcStoreController *c, KvcStoreRecord *r, size_t adapter)
{
	uint32_t bit = 1u << adapter;
	if (!((r->delete_todo | r->delete_waiting) & bit) || (r->delete_busy & bit))
		return;
	if (r->delete_waiting & bit)
		kvc_store_disarm(c, &r->targets[adapter]);
	r->delete_todo &= ~bit;
	r->delete_waiting &= ~bit;
	note_delete_error(c, r, adapter, 0);
	count_pending(c, adapter, -1);
}

void
kvc_store_record_deleted(KvcStoreController *c, const KvcStoreMessage *message)
{
	for (guint i = 0; i < message->keys->len; i++) {
		KvcStoreRecord *r = kvc_store_rename_find_deleting(c, message->keys->pdata[i],
								   1u << message->adapter);
		end_delete(c, r, message->adapter, kvc_bitmap_test(message->deleted, i),
			   message->error);
		kvc_store_record_advance(c, r);
	}
}

/* ---- Waiters and the end ------------------------------------------------------------------- */

void
kvc_store_record_store_resident(KvcStoreController *c, KvcObjectKey *key)
{
	KvcStoreRecord *r = kvc_store_record_get(c, key);
	kvc_store_record_take_resident(c, r);
	kvc_store_record_advance(c, r);
}

void
kvc_store_record_flush(KvcStoreController *c, KvcObjectKey *key, KvcFlushWaiter *waiter)
{
	KvcStoreRecord *r = kvc_store_record_get(c, key);
	if (!waiter->is_await)
		kvc_store_try_given_up(c, r);
	waiter->order = c->last_order;
	waiter->next = r->waiters;
	r->waiters = waiter;
	kvc_store_record_advance(c, r);
}

/* An object is loaded from any tier that has it: the other ones may be slow or dead. */
static bool
can_be_loaded(KvcStoreController *c, const KvcStoreRecord *r)
{
	KvcObjectInfo info;
	return kvc_key_index_get(c->context->index, r->key, &info) < 0 ||
	       (info.tiers & ~info.renaming);
}

static bool
is_answered(KvcStoreController *c, const KvcStoreRecord *r, const KvcFlushWaiter *w)
{
	bool is_target = kvc_store_rename_is_target(r);
	if (w->is_await)
		return !is_target || can_be_loaded(c, r);
	return !is_target && (!r->object || r->object_order > w->order) &&
	       (!r->next || r->next_order > w->order) &&
	       (!deleting(r) || r->delete_order > w->order) &&
	       (!(r->attributes_todo | r->attributes_busy) || r->attributes_order > w->order);
}

static void
answer_waiters(KvcStoreController *c, KvcStoreRecord *r)
{
	KvcFlushWaiter **link = &r->waiters;
	while (*link) {
		KvcFlushWaiter *w = *link;
		if (!is_answered(c, r, w)) {
			link = &w->next;
			continue;
		}
		*link = w->next;
		w->done(w->user, w->is_await ? 0 : r->error);
		g_free(w);
	}
}

void
kvc_store_record_advance(KvcStoreController *c, KvcStoreRecord *r)
{
	if (c->is_halting || r->is_unsettled)
		return;
	kvc_store_try_unblocked(c, r);
	advance_deletes(c, r);
	advance_stores(c, r);
	advance_deletes(c, r); /* of what a store that ended has left */
	kvc_store_logged_hurry(c, r);
	if (r->before) {
		kvc_store_rename_kick(c, r->before);
		return;
	}
	kvc_store_rename_settle(c, r);
	kvc_store_attributes_advance(c, r);
	answer_waiters(c, r);
	if (!r->next && kvc_store_record_is_over(r) && !r->attributes_todo) {
		g_hash_table_remove(c->records, r->key);
		kvc_store_record_free(c, r, 0);
	}
}

/* ---- For renames --------------------------------------------------------------------------- */

KvcStoreRecord *
kvc_store_record_seal(KvcStoreController *c, KvcObjectKey *key, KvcStoreRename *m)
{
	KvcStoreRecord *r = g_hash_table_lookup(c->records, key);
	if (!r)
		return NULL;
	g_hash_table_remove(c->records, key);
	leave_queues(c, r);
	cancel_store(c, r);
	if (r->next)
		kvc_l1_object_unref(g_steal_pointer(&r->next));
	r->before = m;
	return r;
}

bool
kvc_store_record_is_over(const KvcStoreRecord *r)
{
	return !r->object && !blocked_by_deletion(r) && !r->attributes_busy && !r->after;
}

void
kvc_store_record_store_again(KvcStoreController *c, KvcStoreRecord *r, KvcL1Object *object)
{
	g_assert(!r->object && !r->next);
	r->object = object;
	r->object_order = ++c->last_order;
	r->stored = r->failed = 0;
	r->is_cancelled = false;
	reset_tries(c, r);
}

void
kvc_store_record_free(KvcStoreController *c, KvcStoreRecord *r, int waiters_error)
{
	g_assert(!r->busy);
	leave_queues(c, r);
	kvc_store_logged_forget(c, r, UINT32_MAX);
	for (size_t a = 0; a < c->n_adapters; a++)
		kvc_store_disarm(c, &r->targets[a]);
	uint32_t unfinished = deleting(r);
	while (unfinished) {
		size_t a = take_bit(&unfinished);
		note_delete_error(c, r, a, 0);
		count_pending(c, a, -1);
	}
	while (r->waiters) {
		KvcFlushWaiter *w = r->waiters;
		r->waiters = w->next;
		w->done(w->user, waiters_error);
		g_free(w);
	}
	if (r->next)
		kvc_l1_object_unref(r->next);
	if (r->object)
		kvc_l1_object_unref(r->object);
	g_slist_free(r->deferred);
	kvc_object_key_unref(r->key);
	g_free(r->targets);
	g_free(r);
}
