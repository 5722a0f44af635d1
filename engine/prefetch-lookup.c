/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The lookup phase: every adapter is asked for the keys that L1 does not have, the index learns
 * what they answer, and when all have answered the plan is made over L1 and L2 together (difference
 * 1). What is locked outside of the plan goes back at once (the specification's phase 1 unlock).
 */

#include "engine/adapter-call.h"
#include "engine/prefetch-private.h"

static void plan(KvcPrefetchRequest *r);

/* ---- Submission ---------------------------------------------------------------------------- */

static void
note_known(KvcPrefetchController *c, KvcObjectKey *key, KvcPrefetchCell *cell)
{
	KvcObjectInfo info;
	if (kvc_key_index_get(c->context->index, key, &info) < 0)
		return;
	cell->known = (uint16_t)(info.tiers & ~info.renaming);
	cell->version = info.version;
}

static void
collect_keys(KvcPrefetchRequest *r)
{
	r->lookup_keys = g_new(KvcObjectKey *, r->n);
	r->lookup_cells = g_new(uint32_t, r->n);
	for (size_t i = 0; i < r->n; i++) {
		if (r->cells[i].is_held)
			continue;
		r->cells[i].position = (uint32_t)r->n_lookup_keys;
		note_known(r->controller, r->keys[i], &r->cells[i]);
		r->lookup_cells[r->n_lookup_keys] = (uint32_t)i;
		r->lookup_keys[r->n_lookup_keys++] = r->keys[i];
	}
}

void
kvc_prefetch_lookup_begin(KvcPrefetchRequest *r)
{
	KvcPrefetchController *c = r->controller;
	size_t n_adapters = c->n_adapters;
	r->phase = KVC_REQUEST_LOOKUP;
	collect_keys(r);
	r->lookups = g_new0(KvcPrefetchLookup, n_adapters);
	r->n_lookups = n_adapters;
	for (size_t a = 0; a < n_adapters; a++) {
		KvcAdapterSlot *slot = &c->context->adapters[a];
		KvcPrefetchLookup *lookup = &r->lookups[a];
		lookup->found = kvc_bitmap_new(r->n_lookup_keys);
		lookup->info = g_new0(KvcL2ObjectInfo, r->n_lookup_keys);
		if (!(c->active & (1u << a)))
			continue;
		/* What nobody else writes to is as it is known. */
		if ((r->flags & KVC_PREFETCH_RENEW) && !slot->is_shared)
			continue;
		/* It does not answer: asking more often would only gather requests without end. */
		if (c->lookups[a].length >= KVC_PREFETCH_LOOKUPS_IN_FLIGHT) {
			kvc_stats_add(c->context->stats, lookups_refused, 1);
			continue;
		}
		if (!kvc_adapter_admits(slot)) {
			kvc_stats_add(c->context->stats, lookups_unreachable, 1);
			continue;
		}
		lookup->link.data = r;
		lookup->is_pending = true;
		r->n_lookups_pending++;
		g_queue_push_tail_link(&c->lookups[a], &lookup->link);
		lookup->task_id = kvc_adapter_submit_lookup(slot, r->lookup_keys, r->n_lookup_keys);
		if (lookup->task_id == 0)
			c->is_refused = true;
	}
	kvc_stats_add(c->context->stats, lookups, r->n_lookups_pending);
	kvc_stats_add(c->context->stats, lookup_keys, r->n_lookups_pending * r->n_lookup_keys);
	if (r->n_lookups_pending == 0)
		plan(r);
}

/* ---- Plan ---------------------------------------------------------------------------------- */

static void
report_plan_errors(KvcPrefetchController *c, size_t n)
{
	kvc_stats_add(c->context->stats, plan_errors, n);
	if (n > 0 && kvc_prefetch_may_log(c))
		g_warning(
			"prefetch policy %s: %zu keys planned twice, or where they were not found",
			c->policy->name, n);
}

/* The policy's plan; of adapters that it gives one key the first has it. */
static void
select_sources(KvcPrefetchRequest *r)
{
	size_t n_errors = 0;
	const KvcPrefetchController *c = r->controller;
	const KvcBitmap *found[KVC_MAX_ADAPTERS];
	KvcBitmap *plan[KVC_MAX_ADAPTERS];
	KvcAdapterDescriptor view[KVC_MAX_ADAPTERS];
	uint32_t asked = c->active & ((1u << r->n_lookups) - 1);
	size_t n = kvc_controller_context_view(c->context, asked, view);
	for (size_t v = 0; v < n; v++) {
		found[v] = r->lookups[view[v].index].found;
		plan[v] = kvc_bitmap_new(r->n_lookup_keys);
	}
	kvc_lock_assert_none_held("select_load_plan");
	c->policy->select_load_plan(r->lookup_keys, r->n_lookup_keys, found, view, n, plan);
	for (size_t v = 0; v < n; v++) {
		size_t a = view[v].index;
		size_t j = kvc_bitmap_next(plan[v], 0);
		for (; j < r->n_lookup_keys; j = kvc_bitmap_next(plan[v], j + 1)) {
			KvcPrefetchCell *cell = &r->cells[r->lookup_cells[j]];
			if (cell->source < 0 && (cell->found & (1u << a)))
				cell->source = (int8_t)a;
			else
				n_errors++;
		}
		kvc_bitmap_free(plan[v]);
	}
	report_plan_errors(r->controller, n_errors);
}

bool
kvc_prefetch_request_probe(KvcPrefetchRequest *r, size_t i)
{
	const KvcControllerContext *context = r->controller->context;
	if (r->flags & KVC_PREFETCH_RENEW)
		return false;
	if (r->flags & (KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_NO_LOCK)) {
		KvcObjectInfo info;
		r->cells[i].is_held = kvc_key_index_get(context->index, r->keys[i], &info) == 0 &&
				      (info.tiers & KVC_TIER_L1);
		return r->cells[i].is_held;
	}
	KvcL1Object *object;
	if (kvc_l1_manager_reserve_read_for(context->l1, &r->keys[i], 1, r->read_locks, r->owner,
					    &object, NULL) == 0)
		return false;
	kvc_mutex_lock(&r->lock);
	r->objects[i] = object;
	kvc_mutex_unlock(&r->lock);
	r->cells[i].is_held = true;
	return true;
}

/* What became resident since the submit is a hit, as far as it matters. */
static void
probe_again(KvcPrefetchRequest *r)
{
	for (size_t i = 0; i < r->n; i++) {
		const KvcPrefetchCell *cell = &r->cells[i];
		if (!cell->is_held && !cell->found && !kvc_prefetch_request_probe(r, i) &&
		    !(r->flags & KVC_PREFETCH_FULL))
			return;
	}
}

static void
count_stats(KvcPrefetchRequest *r)
{
	uint64_t hits_l1 = 0, hits_l2 = 0, misses = 0;
	if (r->flags & KVC_PREFETCH_RENEW)
		return; /* nobody has asked for them */
	for (size_t i = 0; i < r->n; i++) {
		hits_l1 += r->cells[i].is_held;
		hits_l2 += !r->cells[i].is_held && r->cells[i].found;
		misses += !r->cells[i].is_held && !r->cells[i].found;
	}
	kvc_stats_add(r->controller->context->stats, hits_l1, hits_l1);
	kvc_stats_add(r->controller->context->stats, hits_l2, hits_l2);
	kvc_stats_add(r->controller->context->stats, misses, misses);
}

uint64_t
kvc_prefetch_request_bytes(const KvcPrefetchRequest *r, size_t i, size_t adapter)
{
	return r->lookups[adapter].info[r->cells[i].position].bytes;
}

static uint64_t
locked_bytes(KvcPrefetchRequest *r, size_t i)
{
	kvc_mutex_lock(&r->lock);
	uint64_t bytes = r->objects[i] ? r->objects[i]->bytes : 0;
	kvc_mutex_unlock(&r->lock);
	return bytes;
}

void
kvc_prefetch_request_trim(KvcPrefetchRequest *r)
{
	bool is_full = r->flags & KVC_PREFETCH_FULL;
	uint64_t bytes = 0;
	for (size_t i = 0; i < r->end; i++) {
		const KvcPrefetchCell *cell = &r->cells[i];
		bool is_planned = cell->is_held || cell->source >= 0;
		uint64_t more = 0;
		if (cell->is_held)
			more = locked_bytes(r, i);
		else if (is_planned)
			more = kvc_prefetch_request_bytes(r, i, (size_t)cell->source);
		if (is_planned && more <= r->max_locked_bytes - bytes) {
			bytes += more;
			continue;
		}
		kvc_prefetch_request_give_back(r, i, i + 1,
					       is_planned ? KVC_PREFETCH_KEY_OVER_BOUND
							  : KVC_PREFETCH_KEY_NOT_LOADED);
		if (!is_full) {
			kvc_prefetch_request_give_back(r, i + 1, r->end,
						       KVC_PREFETCH_KEY_AFTER_GAP);
			r->end = i;
		}
	}
}

static bool
has_loads_to_begin(const KvcPrefetchRequest *r)
{
	for (size_t i = 0; i < r->end; i++)
		if (!r->cells[i].is_held && r->cells[i].source >= 0)
			return true;
	return false;
}

/* What follows the plan: the answer, the wait for start(), or the loads. */
static void
proceed(KvcPrefetchRequest *r)
{
	kvc_mutex_lock(&r->lock);
	bool is_cancelled = r->wants_cancel;
	bool is_held = (r->flags & KVC_PREFETCH_HOLD) && !r->wants_start;
	kvc_mutex_unlock(&r->lock);
	if (is_cancelled || !has_loads_to_begin(r)) {
		kvc_prefetch_request_answer(r, r->n);
	} else if (is_held) {
		r->phase = KVC_REQUEST_HELD;
		kvc_prefetch_give_slot_back(r);
	} else {
		kvc_prefetch_load_enqueue(r);
	}
}

static void
plan(KvcPrefetchRequest *r)
{
	bool is_lookup_only = r->flags & KVC_PREFETCH_LOOKUP_ONLY;
	if (!is_lookup_only)
		select_sources(r);
	probe_again(r);
	count_stats(r);
	size_t found = kvc_prefetch_request_note_existing(r);
	if (is_lookup_only) {
		kvc_prefetch_request_cut(r, 0, KVC_PREFETCH_KEY_NOT_LOADED);
		kvc_prefetch_request_publish_found(r, found);
		kvc_prefetch_request_answer(r, r->n);
		return;
	}
	kvc_prefetch_request_trim(r);
	for (size_t i = 0; i < r->end; i++) {
		int source = r->cells[i].is_held ? -1 : r->cells[i].source;
		kvc_prefetch_request_return_l2_lock(r, i,
						    source < 0 ? UINT32_MAX : ~(1u << source));
	}
	kvc_prefetch_flush_unlocks(r->controller);
	kvc_prefetch_request_publish_found(r, found);
	proceed(r);
}

/* ---- Results ------------------------------------------------------------------------------- */

/*
 * Does what the lookup found in TIER say of what size the key, now known as INFO, is there? Not if
 * it was stored there since the lookup began: then it may be about the version before.
 */
static bool
is_of_this_version(const KvcPrefetchCell *cell, const KvcObjectInfo *info, uint32_t tier)
{
	return info->version == cell->version && (cell->known & tier);
}

/*
 * Tells the index; false: the key is being deleted from this adapter, or renamed there: what was
 * found is what will be replaced. FOUND is given the size that the key has now.
 */
static bool
note_found(KvcPrefetchController *c,
	   KvcObjectKey *key,
	   uint32_t tier,
	   KvcL2ObjectInfo *found,
	   KvcPrefetchCell *cell)
{
	KvcObjectInfo info;
	KvcKeyIndex *index = c->context->index;
	KvcObjectAttributes attributes = kvc_l2_object_info_attributes(found);
	uint32_t older = 0;
	bool is_known = kvc_key_index_get(index, key, &info) == 0;
	/* Committed since the lookup began, and stored here or not yet. */
	bool is_newer = is_known && cell->version != 0 && info.version != cell->version;
	if (!is_newer && !(is_known && (info.tiers & tier)))
		older = kvc_key_index_add_with(index, key, tier, found->bytes, &attributes);
	else if (!is_newer && is_of_this_version(cell, &info, tier))
		cell->version =
			kvc_key_index_set_bytes(index, key, tier, cell->version, found->bytes);
	if (older)
		kvc_controller_context_note_older(c->context, key, older);
	if (kvc_key_index_get(index, key, &info) < 0 || !(info.tiers & ~info.renaming & tier))
		return false;
	found->bytes = info.bytes;
	if (cell->version == 0)
		cell->version = info.version;
	return true;
}

/* Key J of the lookup of a KVC_PREFETCH_RENEW: it is found if the store could be asked. */
static void
renew_key(KvcPrefetchRequest *r, size_t adapter, size_t j)
{
	KvcPrefetchController *c = r->controller;
	KvcPrefetchLookup *lookup = &r->lookups[adapter];
	KvcPrefetchCell *cell = &r->cells[r->lookup_cells[j]];
	KvcObjectKey *key = r->lookup_keys[j];
	uint16_t bit = (uint16_t)(1u << adapter);
	bool is_found = kvc_bitmap_test(lookup->found, j);
	if (!is_found && lookup->info[j].mtime_ns == KVC_L2_NOT_ASKED)
		return;
	if (is_found && (cell->known & bit) && (c->active & bit))
		kvc_prefetch_renew_found(c, key, bit, &lookup->info[j], cell);
	else if (is_found && (c->active & bit))
		note_found(c, key, bit, &lookup->info[j], cell);
	else if (cell->known & bit)
		kvc_prefetch_renew_absent(c, key, bit, cell);
	cell->found |= bit;
	if (is_found)
		kvc_prefetch_unlock_later(c, adapter, key);
	kvc_xattrs_unref(g_steal_pointer(&lookup->info[j].xattrs));
}

static void
merge_result(KvcPrefetchRequest *r, size_t adapter)
{
	KvcPrefetchController *c = r->controller;
	KvcPrefetchLookup *lookup = &r->lookups[adapter];
	uint16_t bit = (uint16_t)(1u << adapter);
	for (size_t j = 0; j < r->n_lookup_keys; j++) {
		KvcPrefetchCell *cell = &r->cells[r->lookup_cells[j]];
		KvcObjectKey *key = r->lookup_keys[j];
		if (r->flags & KVC_PREFETCH_RENEW) {
			renew_key(r, adapter, j);
			continue;
		}
		if (!kvc_bitmap_test(lookup->found, j)) {
			/* Only what was known before: a store may have ended meanwhile. */
			if ((cell->known & bit) && lookup->info[j].mtime_ns != KVC_L2_NOT_ASKED)
				kvc_key_index_remove_version(c->context->index, key, bit,
							     cell->version);
			continue;
		}
		bool exists = (c->active & bit) && note_found(c, key, bit, &lookup->info[j], cell);
		kvc_xattrs_unref(g_steal_pointer(&lookup->info[j].xattrs));
		if (!exists)
			kvc_bitmap_clear(lookup->found, j);
		if (!exists || r->phase != KVC_REQUEST_LOOKUP) {
			kvc_prefetch_unlock_later(c, adapter, key);
			continue;
		}
		cell->found |= bit;
		cell->locked |= bit;
	}
}

static void
finish_lookup(KvcPrefetchRequest *r, size_t adapter, bool has_result)
{
	KvcPrefetchLookup *lookup = &r->lookups[adapter];
	g_queue_unlink(&r->controller->lookups[adapter], &lookup->link);
	lookup->is_pending = false;
	r->n_lookups_pending--;
	if (has_result)
		merge_result(r, adapter);
	else
		kvc_bitmap_clear_all(lookup->found);
	if (r->phase == KVC_REQUEST_LOOKUP && r->n_lookups_pending == 0)
		plan(r);
	else if (r->phase != KVC_REQUEST_LOOKUP)
		kvc_prefetch_request_retire_if_idle(r);
}

void
kvc_prefetch_lookup_drain(KvcPrefetchController *c, size_t adapter)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	GList *next;
	for (GList *link = c->lookups[adapter].head; link; link = next) {
		KvcPrefetchRequest *r = link->data;
		KvcPrefetchLookup *lookup = &r->lookups[adapter];
		next = link->next;
		int rc = kvc_adapter_query_lookup(slot, lookup->task_id, lookup->found,
						  lookup->info, r->n_lookup_keys);
		/* An adapter that does not know its own task has found nothing. */
		if (rc != 0)
			finish_lookup(r, adapter, rc == 1);
	}
	kvc_prefetch_flush_unlocks(c);
}
