/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The PrefetchController's thread and its limits.
 *
 *	QUEUED -> LOOKUP -> (HELD ->) LOADING -> ANSWERED -> retired
 *
 * L1 is probed in the caller's thread. What is not settled by that becomes a message; from then on
 * the request's state belongs to the thread. A request answers at most once and early where it must
 * (the deadline, drop, stop), while what adapters still do for it goes on: late lookup results are
 * unlocked when they come, late loads are admitted for whoever comes next. Only then the request is
 * retired.
 */

#include "engine/adapter-call.h"
#include "engine/prefetch-private.h"
#include "kvcache/io.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

/* How often a stop that waits for an adapter says so. */
#define STOP_REPORT_MS 10000

/* ---- Shared by the parts ------------------------------------------------------------------- */

bool
kvc_prefetch_controller_post(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	kvc_mutex_lock(&c->lock);
	bool is_open = !c->is_stopped;
	bool is_first = c->messages.length == 0;
	if (is_open && !r->has_message) {
		r->has_message = true;
		g_queue_push_tail_link(&c->messages, &r->message_link);
		kvc_prefetch_request_ref(r);
	}
	kvc_mutex_unlock(&c->lock);
	if (is_open && is_first)
		kvc_eventfd_signal(c->event_fd);
	return is_open;
}

void
kvc_prefetch_unlock_later(KvcPrefetchController *c, size_t adapter, KvcObjectKey *key)
{
	g_ptr_array_add(c->unlocks[adapter], kvc_object_key_ref(key));
}

void
kvc_prefetch_flush_unlocks(KvcPrefetchController *c)
{
	for (size_t a = 0; a < c->n_adapters; a++) {
		GPtrArray *keys = c->unlocks[a];
		if (!keys || keys->len == 0)
			continue;
		kvc_adapter_unlock(&c->context->adapters[a], (KvcObjectKey *const *)keys->pdata,
				   keys->len);
		g_ptr_array_set_size(keys, 0);
	}
}

KvcPrefetchSlot *
kvc_prefetch_slot_ref(KvcPrefetchSlot *slot)
{
	slot->refs++;
	return slot;
}

void
kvc_prefetch_slot_unref(void *data)
{
	KvcPrefetchSlot *slot = data;
	if (--slot->refs > 0)
		return;
	slot->controller->n_slots--;
	g_free(slot);
}

void
kvc_prefetch_take_slot(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	r->slot = g_new(KvcPrefetchSlot, 1);
	*r->slot = (KvcPrefetchSlot){c, 1};
	c->n_slots++;
}

void
kvc_prefetch_give_slot_back(KvcPrefetchRequest *r)
{
	g_clear_pointer(&r->slot, kvc_prefetch_slot_unref);
}

bool
kvc_prefetch_may_log(KvcPrefetchController *c)
{
	int64_t now = kvc_now_ns();
	if (c->logged_ns != 0 && now - c->logged_ns < KVC_SEC_NS)
		return false;
	c->logged_ns = now;
	return true;
}

/* ---- Submission ---------------------------------------------------------------------------- */

static void
probe_all(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	if (r->flags & (KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_NO_LOCK)) {
		for (size_t i = 0; i < r->n; i++)
			kvc_prefetch_request_probe(r, i);
		return;
	}
	kvc_l1_manager_reserve_read_for(c->context->l1, r->keys, r->n, r->read_locks, r->owner,
					r->objects, NULL);
	for (size_t i = 0; i < r->n; i++)
		r->cells[i].is_held = r->objects[i] != NULL;
}

static void
count_hits(KvcPrefetchController *c, const KvcPrefetchRequest *r)
{
	uint64_t hits = 0;
	for (size_t i = 0; i < r->n; i++)
		hits += r->cells[i].is_held;
	kvc_stats_add(c->context->stats, hits_l1, hits);
	kvc_stats_add(c->context->stats, misses, r->n - hits);
}

/* No L2 request is needed, or none is possible: the handle never meets the controller thread. */
static void
answer_at_once(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	bool is_lookup_only = r->flags & KVC_PREFETCH_LOOKUP_ONLY;
	count_hits(c, r);
	r->handle.request_id = -1;
	r->found = (ssize_t)kvc_prefetch_request_note_existing(r);
	if (is_lookup_only)
		kvc_prefetch_request_give_back(r, 0, r->n, KVC_PREFETCH_KEY_NOT_LOADED);
	else
		kvc_prefetch_request_trim(r);
	r->result = is_lookup_only ? r->found : (ssize_t)kvc_prefetch_request_count_held(r);
	kvc_mutex_lock(&r->lock);
	r->is_retired = true;
	kvc_mutex_unlock(&r->lock);
	kvc_stats_add(c->context->stats, prefetches_completed, 1);
}

/* Is there nothing that an adapter could add? */
static bool
is_settled(const KvcPrefetchController *c, const KvcPrefetchRequest *r)
{
	return r->handle.l1_prefix_hit_count == r->n ||
	       !kvc_controller_context_active(c->context) || (r->flags & KVC_PREFETCH_L1_ONLY);
}

static size_t
leading_held(const KvcPrefetchRequest *r)
{
	size_t i = 0;
	while (i < r->n && r->cells[i].is_held)
		i++;
	return i;
}

KvcPrefetchHandle *
kvc_prefetch_controller_submit(KvcPrefetchController *c, const KvcPrefetchParams *params)
{
	KvcPrefetchRequest *r = kvc_prefetch_request_new(c, params);
	kvc_stats_add(c->context->stats, prefetches, 1);
	probe_all(c, r);
	r->handle.l1_prefix_hit_count = leading_held(r);
	if (is_settled(c, r)) {
		answer_at_once(c, r);
		kvc_prefetch_dump_register(c, r);
		return &r->handle;
	}
	kvc_prefetch_dump_register(c, r);
	__atomic_fetch_add(&c->n_active, 1, __ATOMIC_RELAXED);
	if (!kvc_prefetch_controller_post(c, r)) {
		__atomic_fetch_sub(&c->n_active, 1, __ATOMIC_RELEASE);
		answer_at_once(c, r);
	}
	return &r->handle;
}

size_t
kvc_prefetch_controller_active(KvcPrefetchController *c)
{
	return (size_t)__atomic_load_n(&c->n_active, __ATOMIC_ACQUIRE);
}

/* ---- Messages ------------------------------------------------------------------------------ */

static void
wait_for_slot(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	r->queue = &c->pending;
	if (r->flags & KVC_PREFETCH_URGENT)
		g_queue_push_head_link(&c->pending, &r->queue_link);
	else
		g_queue_push_tail_link(&c->pending, &r->queue_link);
}

static void
get_to_know(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	r->is_known = true;
	kvc_prefetch_request_ref(r);
	g_queue_push_tail_link(&c->requests, &r->link);
	if (r->deadline_ns && (c->next_deadline_ns == 0 || r->deadline_ns < c->next_deadline_ns))
		c->next_deadline_ns = r->deadline_ns;
	wait_for_slot(c, r);
}

static void
drop(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	r->is_dropped = true;
	if (r->phase != KVC_REQUEST_ANSWERED) {
		kvc_stats_add(c->context->stats, prefetches_cancelled, 1);
		kvc_prefetch_request_answer(r, 0);
	}
	kvc_prefetch_request_finish_drop(r);
}

/* What is loading goes on; a lookup ends first, its plan then sees the wish. */
static void
cancel(KvcPrefetchRequest *r)
{
	if (r->phase == KVC_REQUEST_QUEUED || r->phase == KVC_REQUEST_HELD) {
		kvc_prefetch_request_answer(r, r->n);
	} else if (r->phase == KVC_REQUEST_LOADING) {
		for (size_t i = r->cursor; i < r->end; i++)
			if (!r->cells[i].is_held)
				kvc_prefetch_request_lose(r, i, KVC_PREFETCH_KEY_NOT_LOADED);
	}
}

static void
handle_message(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	if (!r->is_known)
		get_to_know(c, r);
	kvc_mutex_lock(&r->lock);
	bool wants_drop = r->wants_drop;
	bool wants_cancel = r->wants_cancel;
	bool wants_start = r->wants_start;
	bool is_retired = r->is_retired;
	kvc_mutex_unlock(&r->lock);
	if (is_retired)
		return;
	if (wants_drop && !r->is_dropped)
		drop(c, r);
	else if (wants_cancel)
		cancel(r);
	else if (wants_start && r->phase == KVC_REQUEST_HELD && !r->queue)
		wait_for_slot(c, r);
}

static void
handle_messages(KvcPrefetchController *c)
{
	kvc_mutex_lock(&c->lock);
	c->is_halting = c->is_stopping;
	uint32_t wanted = c->wanted;
	kvc_mutex_unlock(&c->lock);
	kvc_prefetch_adapters_attach(c, wanted & ~(c->active | c->draining));
	kvc_prefetch_adapters_detach(c, c->active & ~wanted);
	kvc_mutex_lock(&c->lock);
	GList *link;
	while ((link = g_queue_pop_head_link(&c->messages))) {
		KvcPrefetchRequest *r = link->data;
		r->has_message = false;
		kvc_mutex_unlock(&c->lock);
		handle_message(c, r);
		kvc_prefetch_request_unref(r);
		kvc_mutex_lock(&c->lock);
	}
	kvc_mutex_unlock(&c->lock);
}

/* ---- The thread ---------------------------------------------------------------------------- */

/* Draining requests keep their slot: a dead adapter must not gather lookups without end. */
static bool
may_begin(KvcPrefetchController *c)
{
	KvcPrefetchRequest *r = g_queue_peek_head(&c->pending);
	return r && ((r->flags & KVC_PREFETCH_URGENT) || c->n_slots < c->max_in_flight);
}

static void
pump_pending(KvcPrefetchController *c)
{
	while (may_begin(c)) {
		KvcPrefetchRequest *r = g_queue_peek_head(&c->pending);
		bool is_urgent = r->flags & KVC_PREFETCH_URGENT;
		g_queue_unlink(&c->pending, &r->queue_link);
		r->queue = NULL;
		if (!is_urgent)
			kvc_prefetch_take_slot(c, r);
		if (r->phase == KVC_REQUEST_QUEUED)
			kvc_prefetch_lookup_begin(r);
		else
			kvc_prefetch_load_enqueue(r);
	}
}

static void
expire(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	kvc_stats_add(c->context->stats, prefetches_timed_out, 1);
	if (r->phase == KVC_REQUEST_QUEUED || r->phase == KVC_REQUEST_LOOKUP)
		kvc_stats_add(c->context->stats, lookups_timed_out, 1);
	kvc_prefetch_request_answer(r, r->n);
}

static void
expire_all(KvcPrefetchController *c)
{
	int64_t now = kvc_now_ns();
	if (c->next_deadline_ns == 0 || now < c->next_deadline_ns)
		return;
	int64_t first = INT64_MAX;
	GList *next;
	for (GList *link = c->requests.head; link; link = next) {
		KvcPrefetchRequest *r = link->data;
		next = link->next;
		if (r->deadline_ns == 0 || r->phase == KVC_REQUEST_ANSWERED)
			continue;
		if (r->deadline_ns <= now)
			expire(c, r);
		else
			first = MIN(first, r->deadline_ns);
	}
	c->next_deadline_ns = first == INT64_MAX ? 0 : first;
}

static void
answer_all(KvcPrefetchController *c)
{
	GList *next;
	for (GList *link = c->requests.head; link; link = next) {
		KvcPrefetchRequest *r = link->data;
		next = link->next;
		if (r->phase != KVC_REQUEST_ANSWERED)
			kvc_prefetch_request_answer(r, 0);
	}
}

/* True: nothing is in flight, and nobody can submit any more. */
static bool
is_stopped(KvcPrefetchController *c)
{
	if (!c->is_halting || c->requests.length > 0 || g_hash_table_size(c->loads) > 0)
		return false;
	kvc_mutex_lock(&c->lock);
	c->is_stopped = c->messages.length == 0;
	kvc_mutex_unlock(&c->lock);
	return c->is_stopped;
}

static int
poll_timeout_ms(KvcPrefetchController *c)
{
	if (c->is_refused)
		return 0;
	if (c->is_halting)
		return STOP_REPORT_MS;
	if (c->next_deadline_ns == 0)
		return -1;
	int64_t ms = (c->next_deadline_ns - kvc_now_ns() + KVC_MSEC_NS - 1) / KVC_MSEC_NS;
	return (int)CLAMP(ms, 0, 60000);
}

/* Which adapters they belong to, two each: how many adapters. */
static size_t
fill_fds(KvcPrefetchController *c, struct pollfd *fds, size_t *adapters)
{
	size_t n = 0;
	for (uint32_t bits = c->active | c->draining; bits; bits &= bits - 1) {
		size_t a = adapters[n] = (size_t)__builtin_ctz(bits);
		fds[2 * n] = (struct pollfd){c->lookup_fds[a], POLLIN, 0};
		fds[2 * n + 1] = (struct pollfd){c->load_fds[a], POLLIN, 0};
		n++;
	}
	fds[2 * n] = (struct pollfd){c->event_fd, POLLIN, 0};
	return n;
}

static void
wait_for_events(KvcPrefetchController *c)
{
	struct pollfd fds[2 * KVC_MAX_ADAPTERS + 1];
	size_t adapters[KVC_MAX_ADAPTERS];
	size_t n = fill_fds(c, fds, adapters);
	bool ask_all = c->is_refused;
	int rc = poll(fds, 2 * n + 1, poll_timeout_ms(c));
	c->is_refused = false;
	if (rc == 0 && c->is_halting && !ask_all)
		kvc_prefetch_dump_log(c);
	for (size_t f = 0; f < 2 * n + 1; f++)
		if (rc > 0 && fds[f].revents)
			kvc_eventfd_drain(fds[f].fd);
		else
			fds[f].revents = 0;
	for (size_t a = 0; a < n; a++) {
		if (fds[2 * a].revents || ask_all)
			kvc_prefetch_lookup_drain(c, adapters[a]);
		if (fds[2 * a + 1].revents || ask_all)
			kvc_prefetch_load_drain(c, adapters[a]);
	}
}

static void *
prefetch_thread(void *data)
{
	KvcPrefetchController *c = data;
	for (;;) {
		handle_messages(c);
		if (c->is_halting) {
			answer_all(c);
			if (is_stopped(c))
				break;
		} else {
			expire_all(c);
			do {
				pump_pending(c);
				kvc_prefetch_load_pump(c); /* what was there already ends here */
			} while (may_begin(c));
		}
		kvc_prefetch_adapters_finish(c);
		kvc_prefetch_dump_serve(c);
		wait_for_events(c);
	}
	kvc_prefetch_dump_serve(c);
	return NULL;
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

/* Invariant 1: what is signalled on a shared fd would be taken for something else. */
static bool
check_event_fds(const KvcControllerContext *context, GError **error)
{
	g_autoptr(GHashTable) seen = g_hash_table_new(NULL, NULL);
	for (size_t a = 0; a < context->n_adapters; a++) {
		KvcL2Adapter *adapter = context->adapters[a].adapter;
		int fds[] = {
			adapter->ops->get_store_event_fd(adapter),
			adapter->ops->get_lookup_and_lock_event_fd(adapter),
			adapter->ops->get_load_event_fd(adapter),
		};
		for (size_t i = 0; i < G_N_ELEMENTS(fds); i++) {
			if (g_hash_table_add(seen, GINT_TO_POINTER(fds[i])))
				continue;
			g_autofree char *who = kvc_controller_context_adapter_name(context, a);
			g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
				    "%s uses event fd %d for two purposes", who, fds[i]);
			return false;
		}
	}
	return true;
}

KvcPrefetchController *
kvc_prefetch_controller_new(const KvcControllerContext *context,
			    const KvcPrefetchPolicy *policy,
			    unsigned max_in_flight,
			    GError **error)
{
	g_assert(context->n_adapters <= KVC_MAX_ADAPTERS);
	if (!check_event_fds(context, error))
		return NULL;
	int fd = kvc_eventfd_new();
	if (fd < 0) {
		g_set_error(error, KVC_OPTIONS_ERROR, -fd,
			    "PrefetchController: cannot create an eventfd: %s", g_strerror(-fd));
		return NULL;
	}
	KvcPrefetchController *c = g_new0(KvcPrefetchController, 1);
	c->context = context;
	c->policy = policy;
	c->max_in_flight = MAX(max_in_flight, 1);
	c->max_bytes_in_flight = MIN(KVC_PREFETCH_BYTES_IN_FLIGHT, context->l1_capacity_bytes / 4);
	c->event_fd = fd;
	kvc_mutex_init(&c->lock, KVC_LOCK_PREFETCH_QUEUE);
	kvc_cond_init(&c->dumped);
	kvc_l1_manager_set_may_admit(context->l1, kvc_prefetch_load_may_admit, c);
	c->loads = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	c->load_result = kvc_bitmap_new(1);
	kvc_cond_init(&c->adapters_changed);
	c->wanted = kvc_controller_context_active(context);
	kvc_prefetch_adapters_attach(c, c->wanted);
	return c;
}

void
kvc_prefetch_controller_start(KvcPrefetchController *c)
{
	c->is_running = pthread_create(&c->thread, NULL, prefetch_thread, c) == 0;
	g_assert(c->is_running);
	pthread_setname_np(c->thread, "kvc-prefetch");
}

void
kvc_prefetch_controller_stop(KvcPrefetchController *c)
{
	kvc_mutex_lock(&c->lock);
	bool was_stopping = c->is_stopping;
	c->is_stopping = true;
	pthread_cond_broadcast(&c->adapters_changed);
	kvc_mutex_unlock(&c->lock);
	if (was_stopping)
		return;
	kvc_eventfd_signal(c->event_fd);
	if (c->is_running)
		pthread_join(c->thread, NULL);
	else
		prefetch_thread(c); /* never started: answers what was submitted */
}

void
kvc_prefetch_controller_free(KvcPrefetchController *c)
{
	kvc_prefetch_controller_stop(c);
	/* They would use what is freed here. */
	if (c->handles.length > 0)
		g_critical("%u prefetch handles were not given back", c->handles.length);
	for (size_t a = 0; a < c->n_adapters; a++)
		if (c->unlocks[a])
			g_ptr_array_unref(c->unlocks[a]);
	pthread_cond_destroy(&c->adapters_changed);
	g_hash_table_unref(c->loads);
	kvc_bitmap_free(c->load_result);
	pthread_cond_destroy(&c->dumped);
	kvc_mutex_deinit(&c->lock);
	close(c->event_fd);
	g_free(c);
}
