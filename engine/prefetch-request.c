/* SPDX-License-Identifier: Apache-2.0 */

/*
 * How a request ends. At any time a request's cells say exactly what it holds (L1 locks, L2 locks,
 * a place among the waiters of a load), so every end - the normal one, the deadline, cancel, drop,
 * a load that failed, stop - is the same walk: give back what lies beyond the answer, then answer.
 */

#include "engine/prefetch-private.h"

#include "kvcache/io.h"

void
kvc_prefetch_request_return_l2_lock(KvcPrefetchRequest *r, size_t i, uint32_t adapters)
{
	uint32_t bits = r->cells[i].locked & adapters;
	r->cells[i].locked &= (uint16_t)~bits;
	for (; bits; bits &= bits - 1)
		kvc_prefetch_unlock_later(r->controller, (size_t)__builtin_ctz(bits), r->keys[i]);
}

void
kvc_prefetch_request_give_back(KvcPrefetchRequest *r,
			       size_t begin,
			       size_t end,
			       KvcPrefetchKeyState state)
{
	for (size_t i = begin; i < end; i++) {
		KvcPrefetchCell *cell = &r->cells[i];
		if (cell->load)
			kvc_prefetch_load_detach(r, i);
		kvc_prefetch_request_return_l2_lock(r, i, UINT32_MAX);
		cell->is_held = false;
		cell->source = -1;
		if (!cell->state)
			cell->state = (uint8_t)state;
	}
	kvc_prefetch_request_release_objects(r, begin, end);
}

void
kvc_prefetch_request_cut(KvcPrefetchRequest *r, size_t end, KvcPrefetchKeyState state)
{
	if (end < r->end) {
		kvc_prefetch_request_give_back(r, end, r->end, state);
		r->end = end;
	}
	kvc_prefetch_flush_unlocks(r->controller);
}

void
kvc_prefetch_request_lose(KvcPrefetchRequest *r, size_t i, KvcPrefetchKeyState state)
{
	if (i >= r->end)
		return;
	kvc_prefetch_request_give_back(r, i, i + 1, state);
	if (r->flags & KVC_PREFETCH_FULL)
		kvc_prefetch_flush_unlocks(r->controller);
	else
		kvc_prefetch_request_cut(r, i, KVC_PREFETCH_KEY_AFTER_GAP);
}

/* ---- What is held -------------------------------------------------------------------------- */

size_t
kvc_prefetch_request_count_held(const KvcPrefetchRequest *r)
{
	size_t n = 0;
	for (size_t i = 0; i < r->end; i++) {
		if (r->cells[i].is_held)
			n++;
		else if (!(r->flags & KVC_PREFETCH_FULL))
			break;
	}
	return n;
}

size_t
kvc_prefetch_request_note_existing(KvcPrefetchRequest *r)
{
	size_t n = 0, run = r->n;
	for (size_t i = 0; i < r->n; i++) {
		KvcPrefetchCell *cell = &r->cells[i];
		cell->exists = cell->is_held || cell->found;
		n += cell->exists;
		if (cell->exists)
			continue;
		cell->state = KVC_PREFETCH_KEY_NOT_FOUND;
		run = MIN(run, i);
	}
	return r->flags & KVC_PREFETCH_FULL ? n : run;
}

/* What the answer does not hold goes back; returns what it holds. */
static size_t
settle(KvcPrefetchRequest *r, size_t end)
{
	size_t held = kvc_prefetch_request_count_held(r);
	if (!(r->flags & KVC_PREFETCH_FULL))
		end = MIN(end, held);
	kvc_prefetch_request_cut(r, end, KVC_PREFETCH_KEY_NOT_LOADED);
	for (size_t i = 0; i < r->end; i++)
		if (!r->cells[i].is_held)
			kvc_prefetch_request_lose(r, i, KVC_PREFETCH_KEY_NOT_LOADED);
	return kvc_prefetch_request_count_held(r);
}

/* ---- The answer ---------------------------------------------------------------------------- */

void
kvc_prefetch_request_publish_found(KvcPrefetchRequest *r, size_t found)
{
	kvc_mutex_lock(&r->lock);
	r->found = (ssize_t)found;
	kvc_mutex_unlock(&r->lock);
	if (r->planned && !r->is_dropped)
		r->planned(r->user, &r->handle);
}

static void
publish_result(KvcPrefetchRequest *r, size_t result)
{
	kvc_mutex_lock(&r->lock);
	r->result = (ssize_t)result;
	if (r->done_event_fd >= 0)
		kvc_eventfd_signal(r->done_event_fd);
	kvc_mutex_unlock(&r->lock);
	if (r->is_dropped)
		return;
	kvc_stats_add(r->controller->context->stats, prefetches_completed, 1);
	if (r->done)
		r->done(r->user, &r->handle);
}

void
kvc_prefetch_request_answer(KvcPrefetchRequest *r, size_t end)
{
	bool is_lookup_only = r->flags & KVC_PREFETCH_LOOKUP_ONLY;
	r->phase = KVC_REQUEST_ANSWERED;
	if (r->queue)
		g_queue_unlink(r->queue, &r->queue_link);
	r->queue = NULL;
	size_t held = settle(r, is_lookup_only ? 0 : end);
	if (r->found < 0) {
		for (size_t i = 0; i < r->end; i++)
			r->cells[i].exists = r->cells[i].is_held;
		kvc_prefetch_request_publish_found(r, held);
	}
	publish_result(r, is_lookup_only ? (size_t)r->found : held);
	kvc_prefetch_request_retire_if_idle(r);
}

void
kvc_prefetch_request_retire_if_idle(KvcPrefetchRequest *r)
{
	KvcPrefetchController *c = r->controller;
	if (r->phase != KVC_REQUEST_ANSWERED || r->n_lookups_pending > 0)
		return;
	kvc_prefetch_give_slot_back(r);
	g_queue_unlink(&c->requests, &r->link);
	kvc_mutex_lock(&r->lock);
	r->is_retired = true;
	bool is_dropped_now = r->wants_drop && !r->is_dropped;
	kvc_mutex_unlock(&r->lock);
	if (is_dropped_now) {
		r->is_dropped = true;
		kvc_prefetch_request_finish_drop(r);
	}
	kvc_prefetch_request_unref(r);
	__atomic_fetch_sub(&c->n_active, 1, __ATOMIC_RELEASE);
}
