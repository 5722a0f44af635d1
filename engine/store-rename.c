/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Renames.
 *
 *	record of OLD, sealed --+              +--> record of OLD, new: what comes after
 *	                        +--> rename ---+
 *	record of NEW, sealed --+              +--> record of NEW, new: what comes after
 *
 * A rename seals the records of both keys: they get nothing more, what they have begun ends, what
 * they have not begun to store is dropped, since the rename has the object that matters. Both keys
 * get a new record. On each adapter apart from the others the rename begins when the sealed records
 * have ended there, and the new records begin when the rename has: so one dead adapter blocks no
 * other one. A record may be sealed again before that, and the rename then waits its turn.
 *
 * The object is stored under NEW only where the rename did not bring it: where OLD was not, or had
 * other bytes. What a rename brought, or found, under NEW that is not the object and will not be
 * overwritten is deleted. An adapter that cannot rename stores NEW, and then OLD is deleted; a
 * store of a newer OLD, or a rename onto it, does that as well. The same goes for an adapter that
 * has an older version of OLD only: whenever we are killed, no name has bytes that it never had.
 * Where the object need not be stored, since another adapter has it, an older version is deleted.
 *
 * OLD is hidden until all this ended, and NEW on the adapters that rename (key-index.h). Nothing of
 * it is remembered across a crash: OLD is there again where the rename had not been done, unless
 * NEW was deleted: then the deletion log has OLD as well (store-logged.c).
 *
 * A rename begins and ends in kvc_store_rename_run() only: whoever kicks it may be in the midst of
 * one of its records.
 */

#include "engine/store-private.h"

#include <errno.h>

/* How far back a failing rename is looked for. */
#define STUCK_DEPTH 8
/* Of how many names that are renamed to each other in turn an old name is deleted once only. */
#define MAX_CYCLE 8

/* ---- Who waits for whom -------------------------------------------------------------------- */

static KvcStoreRecord *
previous(const KvcStoreRecord *r)
{
	if (!r->after)
		return NULL;
	return r == r->after->from ? r->after->from_before : r->after->to_before;
}

KvcStoreRecord *
kvc_store_rename_newer(const KvcStoreRecord *r)
{
	const KvcStoreRename *m = r->before;
	if (!m)
		return NULL;
	return r == m->from_before ? m->from : m->to;
}

/* On which of WANTED is R's key being stored, deleted or renamed, by R or by something newer? */
static uint32_t
busy_since(const KvcStoreRecord *r, uint32_t wanted)
{
	uint32_t bits = 0;
	for (; r && (wanted & ~bits); r = kvc_store_rename_newer(r)) {
		const KvcStoreRename *m = r->before;
		bits |= wanted & (r->busy | r->delete_busy);
		if (!m)
			break;
		bits |= wanted & m->busy;
		/* Where this one has to rename, nothing that is newer has begun. */
		wanted &= ~((m->todo | m->waiting) & ~m->by_store);
	}
	return bits;
}

static uint32_t
work_of(const KvcStoreRecord *r)
{
	return r->todo | r->busy | r->waiting | r->delete_syncing | r->attributes_busy |
	       kvc_store_record_deleting(r);
}

uint32_t
kvc_store_rename_blocks(const KvcStoreRecord *r, uint32_t wanted)
{
	uint32_t bits = 0;
	/* In a long chain what is wanted is blocked near its end. */
	for (const KvcStoreRecord *before; r && r->after && (wanted & ~bits); r = before) {
		const KvcStoreRename *m = r->after;
		uint32_t here = m->todo | m->busy | m->waiting;
		/* That OLD goes there does not concern NEW; and a new OLD may overwrite it. */
		bits |= r == m->to ? here & ~m->by_store : here;
		before = previous(r);
		if (before)
			bits |= work_of(before);
	}
	return bits & wanted;
}

/* On which of WANTED something of R, or of what was before it, has to end? */
static uint32_t
active(const KvcStoreRecord *r, uint32_t wanted)
{
	if (!r || !wanted)
		return 0;
	uint32_t work = work_of(r) & wanted;
	return work | kvc_store_rename_blocks(r, wanted & ~work);
}

/* Where has the deletion of R, which came before a rename, failed too often? */
static uint32_t
stuck_before(const KvcStoreRecord *r)
{
	uint32_t bits = 0, left = r ? kvc_store_record_deleting(r) | r->delete_syncing : 0;
	for (; left; left &= left - 1) {
		unsigned a = (unsigned)__builtin_ctz(left);
		if (r->targets[a].delete_tries >= KVC_STORE_BLOCKED_TRIES)
			bits |= 1u << a;
	}
	return bits;
}

static uint32_t
stuck(const KvcStoreRename *m, unsigned depth)
{
	/* Also where M itself has ended: what comes after it waits for that too. */
	uint32_t bits = stuck_before(m->from_before) | stuck_before(m->to_before);
	for (uint32_t left = kvc_store_rename_pending(m); left; left &= left - 1) {
		unsigned a = (unsigned)__builtin_ctz(left);
		if (m->targets[a].delete_tries >= KVC_STORE_BLOCKED_TRIES)
			bits |= 1u << a;
	}
	const KvcStoreRename *from = m->from_before ? m->from_before->after : NULL;
	const KvcStoreRename *to = m->to_before ? m->to_before->after : NULL;
	if (depth > 0 && from)
		bits |= stuck(from, depth - 1);
	if (depth > 0 && to && to != from)
		bits |= stuck(to, depth - 1);
	return bits;
}

uint32_t
kvc_store_rename_stuck(const KvcStoreRecord *r)
{
	if (!r->after || !r->todo)
		return 0;
	uint32_t blocked = kvc_store_rename_blocks(r, r->todo);
	return blocked ? blocked & stuck(r->after, STUCK_DEPTH) : 0;
}

uint32_t
kvc_store_rename_has_old(const KvcStoreRecord *r)
{
	uint32_t bits = 0, brought = 0;
	/* Of several the oldest one takes what is there now; what one brings is to be deleted. */
	for (; r && r->after; r = previous(r)) {
		const KvcStoreRename *m = r->after;
		uint32_t here = (m->todo | m->busy | m->waiting) & ~(m->by_store | m->outdated);
		uint32_t is_there = m->fd < 0 ? UINT32_MAX : m->fresh;
		bits &= ~here;
		if (r == m->to)
			brought |= here;
		else if (!m->delete_id)
			bits |= here & ~m->purge & is_there & ~brought;
	}
	return bits;
}

bool
kvc_store_rename_pass_deletion(const KvcStoreRecord *r, size_t adapter)
{
	uint32_t bit = 1u << adapter;
	uint64_t id = r->delete_id;
	while (r && r->after) {
		KvcStoreRename *m = r->after;
		if (r == m->from && m->delete_id && (kvc_store_rename_pending(m) & bit)) {
			m->delete_id = MAX(m->delete_id, id);
			return true;
		}
		KvcStoreRecord *before = previous(r);
		if (before && (kvc_store_record_deleting(before) & bit)) {
			before->delete_id = MAX(before->delete_id, id);
			return true;
		}
		r = before;
	}
	return false;
}

bool
kvc_store_rename_is_target(const KvcStoreRecord *r)
{
	return r->after && r == r->after->to;
}

KvcStoreRecord *
kvc_store_rename_find_deleting(KvcStoreController *c, KvcObjectKey *key, uint32_t bit)
{
	KvcStoreRecord *r = g_hash_table_lookup(c->records, key);
	while (r && !(r->delete_busy & bit))
		r = previous(r);
	g_assert(r);
	return r;
}

KvcStoreRecord *
kvc_store_rename_find_setting(KvcStoreController *c, KvcObjectKey *key, uint32_t bit)
{
	KvcStoreRecord *r = g_hash_table_lookup(c->records, key);
	while (r && !(r->attributes_busy & bit))
		r = previous(r);
	g_assert(r);
	return r;
}

/* ---- Ends on one adapter --------------------------------------------------------------------- */

static void
count_pending(KvcStoreController *c, uint32_t adapters, int change)
{
	for (; adapters; adapters &= adapters - 1) {
		KvcAdapterSlot *slot = &c->context->adapters[__builtin_ctz(adapters)];
		__atomic_fetch_add(&slot->renames_pending, (uint64_t)change, __ATOMIC_RELAXED);
	}
}

/* The index learns what the adapter A has as NEW. */
static void
end_new(KvcStoreController *c, KvcStoreRename *m, size_t a, KvcRenameEnd end)
{
	if (!kvc_key_index_end_rename_to(c->context->index, m->new_key, 1u << a, end,
					 kvc_store_is_listing(c, a)))
		return;
	kvc_stats_add(c->context->stats, renames_lost, 1);
	if (!kvc_store_may_log(c))
		return;
	g_autofree char *name = kvc_object_key_to_string(m->new_key);
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, a);
	g_warning("%s did not have what was renamed to %s: it is lost", who, name);
}

static void
end_on_adapter(KvcStoreController *c, KvcStoreRename *m, size_t a, KvcRenameEnd end)
{
	KvcStoreTarget *t = &m->targets[a];
	uint32_t bit = 1u << a;
	count_pending(c, bit, -1);
	if (t->is_delete_failing)
		__atomic_fetch_sub(&c->context->adapters[a].renames_failing, 1, __ATOMIC_RELAXED);
	t->is_delete_failing = false;
	t->delete_tries = 0;
	kvc_key_index_end_rename_from(c->context->index, m->old_key, bit,
				      kvc_store_is_listing(c, a));
	if (c->active & bit)
		kvc_store_logged_confirm_rename(c, m, a);
	if (!(m->by_store & bit))
		end_new(c, m, a, end);
}

/*
 * M is to delete OLD from these ADAPTERS after a store of R. So are earlier ones of the same name
 * that wait for it: M does that for them. What deletes R's key finds M before it finds them.
 */
static void
supersede(KvcStoreController *c, KvcStoreRecord *r, const KvcStoreRename *m, uint32_t adapters)
{
	unsigned n = 0;
	for (GSList *link = r->deferred, *next; link && n < MAX_CYCLE; link = next, n++) {
		KvcStoreRename *earlier = link->data;
		next = link->next;
		if (earlier == m || !kvc_object_key_equal(earlier->old_key, m->old_key))
			continue;
		uint32_t bits = earlier->deferred & adapters;
		earlier->deferred &= ~bits;
		for (; bits; bits &= bits - 1)
			end_on_adapter(c, earlier, (size_t)__builtin_ctz(bits), KVC_RENAME_ABSENT);
		if (earlier->deferred)
			continue;
		earlier->is_listed = false;
		r->deferred = g_slist_delete_link(r->deferred, link);
		kvc_store_rename_kick(c, earlier);
	}
}

/* ---- Beginning ----------------------------------------------------------------------------- */

static KvcStoreRename *
rename_new(KvcStoreController *c, const KvcStoreMessage *message)
{
	KvcStoreRename *m = g_new0(KvcStoreRename, 1);
	m->targets = kvc_store_targets_new(c, NULL, m);
	m->old_key = kvc_object_key_ref(message->key);
	m->new_key = kvc_object_key_ref(message->new_key);
	m->object = message->object;
	m->version = message->version;
	m->fd = message->object ? message->object->fd : -1;
	m->todo = message->renamers;
	m->outdated = m->purge = message->outdated;
	m->outdated_id = message->delete_id;
	m->by_store = m->deferred = message->adapters & ~message->renamers;
	m->link.data = m->kick_link.data = m;
	g_queue_push_tail_link(&c->renames, &m->link);
	count_pending(c, kvc_store_rename_pending(m), 1);
	return m;
}

/* Who waits for the sealed record SEALED waits for TO. */
static void
inherit(KvcStoreController *c, KvcStoreRecord *sealed, KvcStoreRecord *to)
{
	if (!sealed)
		return;
	to->deferred = g_slist_concat(to->deferred, g_steal_pointer(&sealed->deferred));
	while (sealed->waiters) {
		KvcFlushWaiter *w = sealed->waiters;
		sealed->waiters = w->next;
		w->order = c->last_order;
		w->next = to->waiters;
		to->waiters = w;
	}
}

/*
 * What the adapters were not told of OLD yet they are told of NEW. That goes for what is under way
 * too: the index has it under NEW by now, so it may find nothing.
 */
static void
inherit_attributes(const KvcStoreController *c, KvcStoreRename *m)
{
	if (m->to_before)
		m->to_before->attributes_todo = 0;
	if (!m->from_before)
		return;
	m->to->attributes_todo |=
		c->active & (m->from_before->attributes_todo | m->from_before->attributes_busy);
	m->to->attributes_order = m->from_before->attributes_order;
	m->from_before->attributes_todo = 0;
}

void
kvc_store_rename_submit(KvcStoreController *c, const KvcStoreMessage *message)
{
	KvcStoreRename *m = rename_new(c, message);
	kvc_store_left_rename(c, m->old_key, m->new_key);
	m->from_before = kvc_store_record_seal(c, m->old_key, m);
	m->to_before = kvc_store_record_seal(c, m->new_key, m);
	m->carries =
		m->from_before && m->from_before->object && m->from_before->object->fd == m->fd;
	m->from = kvc_store_record_get(c, m->old_key);
	m->to = kvc_store_record_get(c, m->new_key);
	m->from->after = m->to->after = m;
	if (message->object) {
		m->to->next = kvc_l1_object_ref(message->object);
		m->to->next_order = ++c->last_order;
	}
	inherit(c, m->from_before, m->to);
	inherit(c, m->to_before, m->to);
	inherit_attributes(c, m);
	m->is_listed = m->deferred != 0;
	if (m->is_listed) {
		m->to->deferred = g_slist_prepend(m->to->deferred, m);
		supersede(c, m->to, m, m->deferred);
	}
	if (m->from_before)
		kvc_store_record_advance(c, m->from_before);
	if (m->to_before)
		kvc_store_record_advance(c, m->to_before);
	kvc_store_record_advance(c, m->to);
	kvc_store_rename_kick(c, m);
}

void
kvc_store_rename_kick(KvcStoreController *c, KvcStoreRename *m)
{
	if (m->is_kicked)
		return;
	m->is_kicked = true;
	g_queue_push_tail_link(&c->kicked, &m->kick_link);
}

void
kvc_store_rename_kick_past(KvcStoreController *c, const KvcStoreRecord *r)
{
	for (; r && r->after; r = previous(r)) {
		KvcStoreRename *m = r->after;
		if (r == m->from && (m->todo & m->by_store))
			kvc_store_rename_kick(c, m);
	}
}

/* ---- On one adapter ------------------------------------------------------------------------ */

/* The record that stores M's object after all: of NEW, or of what it was renamed to since. */
static KvcStoreRecord *
storing_record(const KvcStoreRename *m)
{
	KvcStoreRecord *r = m->to;
	while (r && r->before)
		r = r == r->before->from_before ? r->before->to : NULL;
	return r;
}

/*
 * What the adapter A has of OLD, if anything, is an older version: renamed, a crash before the
 * store of NEW would leave it under a name that it never had. So NEW is stored, and then OLD
 * deleted, as where an adapter cannot rename. False: NEW is not to be stored there.
 */
static bool
store_instead(KvcStoreController *c, KvcStoreRename *m, size_t a)
{
	uint32_t bit = 1u << a;
	KvcStoreRecord *r = m->delete_id ? NULL : storing_record(m);
	bool is_there = m->fd < 0 || (m->fresh & bit);
	if (is_there || !kvc_store_ops(c, a)->delete_keys)
		return false;
	if (r && !((r->next ? kvc_store_select_targets(c, r->key) : r->todo) & bit))
		return false;
	end_new(c, m, a, KVC_RENAME_STALE);
	m->by_store |= bit;
	if (!r) { /* it was replaced meanwhile: nothing is stored */
		m->todo |= bit;
		return false;
	}
	m->todo &= ~bit;
	m->deferred |= bit;
	if (!m->is_listed)
		r->deferred = g_slist_prepend(r->deferred, m);
	m->is_listed = true;
	supersede(c, r, m, bit);
	return true;
}

/* Is the adapter with BIT to delete OLD or NEW, and not to rename? */
static bool
is_deleting(const KvcStoreRename *m, uint32_t bit)
{
	return (m->by_store | m->purge | m->outdated) & bit;
}

static void
begin_on_adapter(KvcStoreController *c, KvcStoreRename *m, size_t a)
{
	uint32_t bit = 1u << a;
	if (!is_deleting(m, bit) && store_instead(c, m, a)) {
		kvc_store_rename_kick(c, m);
		return;
	}
	bool deletes = is_deleting(m, bit);
	m->todo &= ~bit;
	if (deletes && !kvc_store_ops(c, a)->delete_keys) {
		kvc_stats_add(c->context->stats, deletes_unsupported, 1);
		end_on_adapter(c, m, a, KVC_RENAME_STALE);
		return;
	}
	m->busy |= bit;
	if (m->purge & bit)
		kvc_store_deleter_submit_rename(c->deleters[a], m, m->new_key, NULL);
	else
		kvc_store_deleter_submit_rename(c->deleters[a], m, m->old_key,
						deletes ? NULL : m->new_key);
}

static void
note_failure(KvcStoreController *c, KvcStoreRename *m, size_t a, int error)
{
	KvcStoreTarget *t = &m->targets[a];
	kvc_stats_add(c->context->stats, rename_errors, 1);
	if (t->is_delete_failing)
		return;
	t->is_delete_failing = true;
	__atomic_fetch_add(&c->context->adapters[a].renames_failing, 1, __ATOMIC_RELAXED);
	if (!kvc_store_may_log(c))
		return;
	g_autofree char *name = kvc_object_key_to_string(m->old_key);
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, a);
	g_warning("%s could not rename %s: %s; trying again", who, name, g_strerror(-error));
}

static void
wait_on_adapter(KvcStoreController *c, KvcStoreRename *m, size_t a, int error)
{
	KvcStoreTarget *t = &m->targets[a];
	int backoff = KVC_STORE_BACKOFF_DELETE + t->delete_tries;
	if (error != -EBUSY)
		note_failure(c, m, a, error);
	t->delete_tries = MIN(t->delete_tries + 1, UINT8_MAX);
	m->waiting |= 1u << a;
	kvc_store_arm(c, t, MIN(backoff, KVC_STORE_BACKOFF_LAST_DELETE));
}

void
kvc_store_rename_retry(KvcStoreController *c, KvcStoreRename *m, size_t adapter)
{
	kvc_stats_add(c->context->stats, renames_retried, 1);
	m->waiting &= ~(1u << adapter);
	m->todo |= 1u << adapter;
	kvc_store_rename_kick(c, m);
}

/* An adapter that ought to have had the object had not: is it in L1? */
static bool
store_resident(KvcStoreController *c, KvcStoreRename *m, uint32_t bit)
{
	KvcObjectInfo info;
	KvcStoreRecord *to = m->to;
	if (kvc_key_index_get(c->context->index, m->new_key, &info) < 0 || !(info.renaming & bit))
		return false;
	if (!to->object) {
		KvcL1Object *object = kvc_l1_manager_make_dirty(c->context->l1, m->new_key);
		if (!object)
			return false;
		kvc_store_record_store_again(c, to, object);
		to->stored = info.tiers & ~info.renaming & ~KVC_TIER_L1;
	}
	to->todo |= bit;
	return true;
}

/* Will a store overwrite what the adapter has as NEW? */
static bool
is_overwritten(KvcStoreController *c, KvcStoreRename *m, uint32_t bit)
{
	const KvcStoreRecord *to = m->to;
	if (to->before)
		return false;
	if (to->next)
		return kvc_store_select_targets(c, to->key) & bit;
	return (to->todo & bit) || ((!to->object || m->fd < 0) && store_resident(c, m, bit));
}

/* The adapter A renamed, or had no OLD (error -ENOENT). */
static void
end_rename(KvcStoreController *c, KvcStoreRename *m, size_t a, int error)
{
	uint32_t bit = 1u << a;
	/* What was to be deleted as NEW is overwritten. */
	if (error == 0)
		kvc_store_rename_overwritten(c, m->to_before, a);
	bool is_object = error == 0 && (m->fd < 0 || (m->fresh & bit));
	bool is_stored = is_object || is_overwritten(c, m, bit);
	/* A store of a chunk does not overwrite: all chunks of one hash are the same. */
	if (!is_stored || (!is_object && m->new_key->space == KVC_SPACE_CHUNK)) {
		m->purge |= bit;
		m->todo |= bit;
		return;
	}
	end_on_adapter(c, m, a, is_object ? KVC_RENAME_PRESENT : KVC_RENAME_STALE);
	if (is_object)
		kvc_store_left_delete(c, m->new_key);
	if (is_object && m->object && m->to->object == m->object) {
		m->to->todo &= ~bit;
		m->to->stored |= bit;
		kvc_store_record_note_stored(c, m->to, a);
	}
}

/* NEW has gone from the adapter with BIT, where it was replaced: now OLD. */
static void
delete_outdated(KvcStoreRename *m, uint32_t bit)
{
	m->purge &= ~bit;
	m->todo |= bit;
}

void
kvc_store_rename_done(KvcStoreController *c, const KvcStoreMessage *message)
{
	KvcStoreRename *m = message->rename;
	size_t a = message->adapter;
	uint32_t bit = 1u << a;
	m->busy &= ~bit;
	bool is_failed = message->error < 0 && message->error != -ENOENT;
	if (is_failed && message->error != -EBUSY && !(c->active & bit))
		end_on_adapter(c, m, a, KVC_RENAME_STALE);
	else if (is_failed)
		wait_on_adapter(c, m, a, message->error);
	else if (m->purge & m->outdated & bit)
		delete_outdated(m, bit);
	else if (is_deleting(m, bit))
		end_on_adapter(c, m, a, KVC_RENAME_ABSENT);
	else
		end_rename(c, m, a, message->error);
	kvc_store_rename_kick(c, m);
	kvc_store_rename_kick_past(c, m->from_before);
	kvc_store_rename_kick_past(c, m->to_before);
	/* They wait for it, and it for them: they stay. */
	kvc_store_record_advance(c, m->from);
	kvc_store_record_advance(c, m->to);
}

/* ---- Adapters that cannot rename ----------------------------------------------------------- */

void
kvc_store_rename_overwritten(KvcStoreController *c, const KvcStoreRecord *r, size_t adapter)
{
	uint32_t bit = 1u << adapter;
	for (; r && r->after; r = previous(r)) {
		KvcStoreRename *m = r->after;
		if (r != m->from || !((m->deferred | (m->todo & m->by_store)) & bit))
			continue;
		m->deferred &= ~bit;
		m->todo &= ~bit;
		end_on_adapter(c, m, adapter, KVC_RENAME_ABSENT);
		kvc_store_rename_kick(c, m);
	}
}

static void
give_up_deferred(KvcStoreController *c, KvcStoreRecord *r, KvcStoreRename *m)
{
	kvc_store_left_add(c, r->key, m->old_key, m->deferred);
	while (m->deferred) {
		size_t a = (size_t)__builtin_ctz(m->deferred);
		m->deferred &= m->deferred - 1;
		/* An older version, which nobody ought to find under a name that went on. */
		if (m->old_key->space != KVC_SPACE_CHUNK && kvc_store_ops(c, a)->rename_key)
			kvc_key_index_hide_from(c->context->index, m->old_key, 1u << a, 0);
		end_on_adapter(c, m, a, KVC_RENAME_ABSENT);
	}
	kvc_stats_add(c->context->stats, rename_errors, 1);
	if (!kvc_store_may_log(c))
		return;
	g_autofree char *name = kvc_object_key_to_string(m->old_key);
	g_warning("%s stays in L2: it could not be stored under its new name", name);
}

void
kvc_store_rename_settle(KvcStoreController *c, KvcStoreRecord *r)
{
	if (!r->deferred || r->object || r->next)
		return;
	GSList *renames = g_steal_pointer(&r->deferred);
	for (GSList *link = renames; link; link = link->next) {
		KvcStoreRename *m = link->data;
		bool is_known = kvc_key_index_get(c->context->index, m->old_key, NULL) == 0;
		/* Else nothing of it may stay beside a newer OLD, whose store may fail there. */
		if (r->has_none && !is_known)
			give_up_deferred(c, r, m);
		m->todo |= m->deferred;
		m->deferred = 0;
		m->is_listed = false;
		kvc_store_rename_kick(c, m);
	}
	g_slist_free(renames);
}

void
kvc_store_rename_leave(KvcStoreController *c, KvcStoreRename *m, size_t adapter)
{
	uint32_t bit = 1u << adapter;
	bool is_failing = (m->waiting & bit) && m->targets[adapter].is_delete_failing;
	if (is_failing)
		kvc_store_disarm(c, &m->targets[adapter]);
	if (is_failing || (m->deferred & bit)) {
		m->waiting &= ~bit;
		m->deferred &= ~bit;
		end_on_adapter(c, m, adapter, KVC_RENAME_STALE);
	}
	kvc_store_rename_kick(c, m);
}

/* ---- The end ------------------------------------------------------------------------------- */

static void
drop_if_over(KvcStoreController *c, KvcStoreRecord **before)
{
	if (*before && kvc_store_record_is_over(*before))
		kvc_store_record_free(c, g_steal_pointer(before), 0);
}

void
kvc_store_rename_free(KvcStoreController *c, KvcStoreRename *m)
{
	count_pending(c, kvc_store_rename_pending(m), -1);
	for (size_t a = 0; a < c->n_adapters; a++)
		kvc_store_disarm(c, &m->targets[a]);
	if (m->from_before)
		kvc_store_record_free(c, m->from_before, -ESHUTDOWN);
	if (m->to_before)
		kvc_store_record_free(c, m->to_before, -ESHUTDOWN);
	if (m->is_kicked)
		g_queue_unlink(&c->kicked, &m->kick_link);
	g_queue_unlink(&c->renames, &m->link);
	__atomic_fetch_sub(&c->n_renames, 1, __ATOMIC_RELAXED);
	kvc_object_key_unref(m->old_key);
	kvc_object_key_unref(m->new_key);
	g_free(m->targets);
	g_free(m);
}

static void
end(KvcStoreController *c, KvcStoreRename *m)
{
	KvcStoreRecord *from = m->from, *to = m->to;
	from->after = to->after = NULL;
	kvc_store_rename_free(c, m);
	kvc_store_record_advance(c, from);
	kvc_store_record_advance(c, to);
}

/* Can nothing that comes after M begin or end on any adapter, nor be given up? */
static bool
holds_all(const KvcStoreController *c, const KvcStoreRename *m)
{
	uint32_t holds = (m->todo | m->busy | m->waiting) & ~m->by_store;
	return !((c->active | c->draining) & ~holds) && !stuck(m, STUCK_DEPTH);
}

static void
advance(KvcStoreController *c, KvcStoreRename *m)
{
	uint32_t fresh = m->fresh;
	if (m->from_before && m->carries)
		m->fresh |= m->from_before->stored;
	drop_if_over(c, &m->from_before);
	drop_if_over(c, &m->to_before);
	kvc_store_record_spare(c, m->from);
	uint32_t begin = m->todo & ~active(m->from_before, m->todo);
	begin &= ~active(m->to_before, begin);
	/* What is being stored, or renamed, over OLD ends first: it overwrites, or OLD is deleted
	 * then. */
	begin &= ~busy_since(m->from, begin & m->by_store);
	for (; begin; begin &= begin - 1)
		begin_on_adapter(c, m, (size_t)__builtin_ctz(begin));
	bool has_before = m->from_before || m->to_before;
	if (!kvc_store_rename_pending(m) && !has_before && !m->is_listed) {
		end(c, m);
		return;
	}
	/* Whoever waits for what was before it, or ought not to wait any more; in a long chain that
	 * ends with the next one. */
	bool is_news = m->fresh != fresh || !holds_all(c, m);
	if (is_news || !m->from->before)
		kvc_store_record_advance(c, m->from);
	if (is_news || !m->to->before)
		kvc_store_record_advance(c, m->to);
}

void
kvc_store_rename_run(KvcStoreController *c)
{
	GList *link;
	while ((link = g_queue_pop_head_link(&c->kicked))) {
		KvcStoreRename *m = link->data;
		m->is_kicked = false;
		advance(c, m);
	}
}
