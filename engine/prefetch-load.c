/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Loads: one task a key, in the order of the chain, so that the first chunk is readable as soon as
 * it has arrived. A load belongs to nobody: requests wait for it, and may leave it; it is admitted
 * to L1 with the read locks of each waiter that is left, in one step (invariant 8). The L2 locks of
 * its waiters become the load's and go back after that (the specification's phase 2 unlock).
 *
 * What was read is right only if the key's version is the one it had when the load was submitted,
 * and the index still names the adapter: else the key was written anew, renamed or deleted
 * meanwhile. L1 asks for that inside its lock, so nothing comes between the answer and the
 * admission. A key that was written anew is loaded anew.
 */

#include "engine/adapter-call.h"
#include "engine/prefetch-private.h"

#include <errno.h>
#include <inttypes.h>

/* Of the reservation, and of the read locks until each waiter has its own. */
#define LOAD_OWNER kvc_lock_owner("load", 0)

static void
return_locks(KvcPrefetchController *c, KvcPrefetchLoad *load, size_t adapter)
{
	for (; load->locks[adapter] > 0; load->locks[adapter]--)
		kvc_prefetch_unlock_later(c, adapter, load->key);
}

/* ---- Waiters ------------------------------------------------------------------------------- */

static void
attach(KvcPrefetchRequest *r, size_t i, KvcPrefetchLoad *load)
{
	KvcPrefetchCell *cell = &r->cells[i];
	KvcPrefetchWaiter waiter = {r, i};
	if (load->object && load->waiters->len == 0)
		__atomic_fetch_sub(&r->controller->n_active, 1, __ATOMIC_RELEASE);
	g_array_append_val(load->waiters, waiter);
	cell->load = load;
	r->n_loading++;
	if (r->slot) {
		if (!load->slots)
			load->slots = g_ptr_array_new_with_free_func(kvc_prefetch_slot_unref);
		g_ptr_array_add(load->slots, kvc_prefetch_slot_ref(r->slot));
	}
	for (uint32_t bits = cell->locked; bits; bits &= bits - 1)
		load->locks[__builtin_ctz(bits)]++;
	cell->locked = 0;
}

void
kvc_prefetch_load_detach(KvcPrefetchRequest *r, size_t i)
{
	KvcPrefetchLoad *load = g_steal_pointer(&r->cells[i].load);
	r->n_loading--;
	for (guint w = 0; w < load->waiters->len; w++) {
		const KvcPrefetchWaiter *waiter =
			&g_array_index(load->waiters, KvcPrefetchWaiter, w);
		if (waiter->request != r || waiter->i != i)
			continue;
		g_array_remove_index_fast(load->waiters, w);
		if (load->waiters->len == 0)
			__atomic_fetch_add(&r->controller->n_active, 1, __ATOMIC_RELAXED);
		return;
	}
	g_assert_not_reached();
}

void
kvc_prefetch_load_return_locks(KvcPrefetchController *c, size_t adapter)
{
	GHashTableIter iter;
	KvcPrefetchLoad *load;
	g_hash_table_iter_init(&iter, c->loads);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&load))
		if (load->adapter != adapter)
			return_locks(c, load, adapter);
}

/* ---- The end of a load --------------------------------------------------------------------- */

static void
arrive(KvcPrefetchRequest *r, size_t i, KvcL1Object *locked)
{
	r->cells[i].is_held = true;
	if (r->flags & KVC_PREFETCH_NO_LOCK)
		return;
	kvc_l1_manager_move_read_locks(r->controller->context->l1, locked, r->read_locks,
				       LOAD_OWNER, r->owner);
	kvc_mutex_lock(&r->lock);
	r->objects[i] = locked;
	kvc_mutex_unlock(&r->lock);
}

static void
answer_if_done(KvcPrefetchRequest *r)
{
	if (r->phase == KVC_REQUEST_LOADING && !r->queue && r->n_loading == 0)
		kvc_prefetch_request_answer(r, r->n);
}

/*
 * Tells the waiters and frees LOAD. A request may wait for it twice, and an answer may free a
 * request: hence all are taken out first, then told, and answered last.
 */
static void
end_load(KvcPrefetchController *c,
	 KvcPrefetchLoad *load,
	 KvcPrefetchKeyState state,
	 KvcL1Object *locked)
{
	g_autoptr(GArray) waiters = g_steal_pointer(&load->waiters);
	KvcPrefetchWaiter *w = (KvcPrefetchWaiter *)(void *)waiters->data;
	g_hash_table_remove(c->loads, load->key);
	for (size_t a = 0; a < c->n_adapters; a++)
		return_locks(c, load, a);
	kvc_prefetch_flush_unlocks(c);
	for (guint k = 0; k < waiters->len; k++) {
		kvc_prefetch_request_ref(w[k].request);
		w[k].request->cells[w[k].i].load = NULL;
		w[k].request->n_loading--;
	}
	for (guint k = 0; k < waiters->len; k++) {
		KvcPrefetchRequest *r = w[k].request;
		if (state == KVC_PREFETCH_KEY_HELD)
			arrive(r, w[k].i, locked);
		else if (w[k].i < r->end && !kvc_prefetch_request_probe(r, w[k].i))
			kvc_prefetch_request_lose(r, w[k].i, state);
	}
	for (guint k = 0; k < waiters->len; k++) {
		answer_if_done(w[k].request);
		kvc_prefetch_request_unref(w[k].request);
	}
	kvc_object_key_unref(load->key);
	g_clear_pointer(&load->slots, g_ptr_array_unref);
	g_free(load);
}

/* ---- Versions ------------------------------------------------------------------------------ */

/* Is what LOAD has read what its adapter has now? */
static bool
is_current(const KvcPrefetchController *c, const KvcPrefetchLoad *load)
{
	KvcObjectInfo info;
	return kvc_key_index_get(c->context->index, load->key, &info) == 0 &&
	       info.version == load->version &&
	       (info.tiers & ~info.renaming & (1u << load->adapter));
}

bool
kvc_prefetch_load_may_admit(void *controller, KvcL1Object *object)
{
	const KvcPrefetchController *c = controller;
	g_assert(c->admitting && c->admitting->object == object);
	return is_current(c, c->admitting);
}

/* Is the key of LOAD known with other bytes by now? */
static bool
is_renewed(const KvcPrefetchController *c, const KvcPrefetchLoad *load)
{
	KvcObjectInfo info;
	return kvc_key_index_get(c->context->index, load->key, &info) == 0 &&
	       info.version != load->version;
}

/* What a load of key I from ADAPTER would read now. */
typedef struct Source {
	size_t adapter;
	uint32_t version;
	uint64_t bytes;
} Source;

/* False: the adapter does not have the key any more, or not yet. */
static bool
choose_version(const KvcPrefetchRequest *r, size_t i, size_t adapter, Source *source)
{
	KvcObjectInfo info;
	if (kvc_key_index_get(r->controller->context->index, r->keys[i], &info) < 0 ||
	    !(info.tiers & ~info.renaming & (1u << adapter)))
		return false;
	/* A version that is newer than the lookup: then the index knows its size. */
	bool is_as_found = info.version == r->cells[i].version;
	*source = (Source){
		.adapter = adapter,
		.version = info.version,
		.bytes = is_as_found ? kvc_prefetch_request_bytes(r, i, adapter) : info.bytes,
	};
	return true;
}

/* ---- Admission ----------------------------------------------------------------------------- */

/* Read locks that its waiters want. */
static unsigned
count_locks(const KvcPrefetchLoad *load)
{
	unsigned n = 0;
	for (guint w = 0; w < load->waiters->len; w++) {
		const KvcPrefetchWaiter *waiter =
			&g_array_index(load->waiters, KvcPrefetchWaiter, w);
		if (!(waiter->request->flags & KVC_PREFETCH_NO_LOCK))
			n += waiter->request->read_locks;
	}
	return n;
}

/* Makes the loaded object resident, or drops it: HELD, or why not. */
static KvcPrefetchKeyState
admit(KvcPrefetchController *c, KvcPrefetchLoad *load, KvcL1Object **locked)
{
	kvc_l1_object_mark_unread(load->object);
	c->admitting = load;
	KvcL1Error error = kvc_l1_manager_finish_write_and_reserve_read(
		c->context->l1, load->object, count_locks(load), locked);
	c->admitting = NULL;
	if (error == KVC_L1_SUCCESS)
		return KVC_PREFETCH_KEY_HELD;
	if (error == KVC_L1_OUT_OF_MEMORY)
		return KVC_PREFETCH_KEY_L1_OOM;
	if (is_renewed(c, load)) {
		kvc_stats_add(c->context->stats, loads_failed_contended, 1);
		return KVC_PREFETCH_KEY_L1_CONTENDED;
	}
	kvc_stats_add(c->context->stats, loads_failed_deleted, 1);
	return KVC_PREFETCH_KEY_LOST;
}

/* ---- Submission ---------------------------------------------------------------------------- */

/* 0, -ENOSPC (L1 is full of what may not go), -errno. */
static int
prepare_object(KvcPrefetchController *c, KvcPrefetchLoad *load, uint64_t bytes)
{
	KvcL1Manager *l1 = c->context->l1;
	KvcL1Write write = {
		.key = load->key,
		.bytes = bytes,
		.is_temporary = !c->policy->retain,
		.is_sized = true,
	};
	if (kvc_l1_manager_reserve_writes(l1, &write, 1, KVC_RESERVE_ALL, LOAD_OWNER) == 0)
		return -write.errnum;
	KvcL1Object *object = write.object;
	int rc = kvc_l1_object_map(object, true, &load->memory);
	if (rc < 0) {
		kvc_l1_manager_abort_write(l1, object);
		return rc;
	}
	load->object = object;
	return 0;
}

/* PENDING: it is on its way. */
static KvcPrefetchKeyState
submit_load_to(KvcPrefetchController *c, KvcPrefetchLoad *load, const Source *source)
{
	size_t adapter = source->adapter;
	int rc = prepare_object(c, load, source->bytes);
	if (rc < 0) {
		kvc_stats_add(c->context->stats, loads_failed_no_memory, 1);
		if (rc != -ENOSPC && kvc_prefetch_may_log(c))
			g_warning("prefetch: no memory for an object of %" PRIu64 " bytes: %s",
				  source->bytes, g_strerror(-rc));
		return KVC_PREFETCH_KEY_L1_OOM;
	}
	load->adapter = adapter;
	load->version = source->version;
	load->tried |= 1u << adapter;
	c->n_loads_in_flight++;
	c->bytes_in_flight += load->memory.bytes;
	g_queue_push_tail_link(&c->loads_in_flight[adapter], &load->link);
	if (load->key->space == KVC_SPACE_PREFIX)
		kvc_stats_add(c->context->stats, chain_loads, 1);
	else
		kvc_stats_add(c->context->stats, loads, 1);
	load->task_id =
		kvc_adapter_submit_load(&c->context->adapters[adapter], load->key, &load->memory);
	if (load->task_id == 0)
		c->is_refused = true;
	return KVC_PREFETCH_KEY_PENDING;
}

/* An adapter not tried yet that has the key of LOAD, as one of its waiters was told. */
static bool
find_source(KvcPrefetchLoad *load, Source *source)
{
	for (guint w = 0; w < load->waiters->len; w++) {
		const KvcPrefetchWaiter *waiter =
			&g_array_index(load->waiters, KvcPrefetchWaiter, w);
		const KvcPrefetchRequest *r = waiter->request;
		uint32_t left = r->cells[waiter->i].found & ~load->tried;
		for (; left; left &= left - 1)
			if (choose_version(r, waiter->i, (size_t)__builtin_ctz(left), source))
				return true;
	}
	return false;
}

/* As submit_load_to(), but an adapter that cannot be reached is not asked. */
static KvcPrefetchKeyState
submit_load(KvcPrefetchController *c, KvcPrefetchLoad *load, const Source *wanted)
{
	Source source = *wanted;
	while (!kvc_adapter_admits(&c->context->adapters[source.adapter])) {
		kvc_stats_add(c->context->stats, loads_unreachable, 1);
		load->tried |= 1u << source.adapter;
		if (!find_source(load, &source))
			return KVC_PREFETCH_KEY_LOST;
	}
	return submit_load_to(c, load, &source);
}

/* The load of LOAD failed or was refused: begins another one where it can. As submit_load(). */
static KvcPrefetchKeyState
submit_again(KvcPrefetchController *c, KvcPrefetchLoad *load, KvcPrefetchKeyState state)
{
	Source source;
	if (is_renewed(c, load) && load->renewals++ < KVC_PREFETCH_RENEWALS)
		load->tried = 0;
	return find_source(load, &source) ? submit_load(c, load, &source) : state;
}

/* The adapter has answered, and the mapping is gone. */
static void
finish_load(KvcPrefetchController *c, KvcPrefetchLoad *load)
{
	KvcStats *stats = c->context->stats;
	uint64_t bytes = load->memory.bytes;
	KvcL1Object *locked = NULL;
	bool is_orphan = load->waiters->len == 0, is_loaded = load->is_loaded;
	c->n_loads_in_flight--;
	c->bytes_in_flight -= bytes;
	load->memory = (KvcMemoryObj){0};
	KvcPrefetchKeyState state = KVC_PREFETCH_KEY_LOST;
	if (is_loaded)
		state = admit(c, load, &locked);
	else
		kvc_l1_manager_abort_write(c->context->l1, load->object);
	load->object = NULL;
	if (is_orphan)
		__atomic_fetch_sub(&c->n_active, 1, __ATOMIC_RELEASE);
	if (!is_loaded) {
		/* What L2 has by now may be another version, of another size. */
		if (!kvc_adapter_is_unreachable(&c->context->adapters[load->adapter]))
			kvc_key_index_remove_version(c->context->index, load->key,
						     1u << load->adapter, load->version);
		return_locks(c, load, load->adapter);
	}
	if (state == KVC_PREFETCH_KEY_HELD) {
		if (load->key->space != KVC_SPACE_PREFIX) {
			kvc_stats_add(stats, loads_completed, 1);
			kvc_stats_add(stats, load_bytes, bytes);
		}
	} else {
		kvc_stats_add(stats, loads_failed_missing, 1);
		state = submit_again(c, load, state);
	}
	if (state != KVC_PREFETCH_KEY_PENDING)
		end_load(c, load, state, locked);
}

static void
join(KvcPrefetchRequest *r, size_t i, KvcPrefetchLoad *load)
{
	kvc_stats_add(r->controller->context->stats, loads_joined, 1);
	attach(r, i, load);
}

static bool
is_over_limit(const KvcPrefetchController *c, uint64_t bytes)
{
	return c->n_loads_in_flight >= KVC_PREFETCH_LOADS_IN_FLIGHT ||
	       (c->n_loads_in_flight > 0 && c->bytes_in_flight + bytes > c->max_bytes_in_flight);
}

/* Begins the load of key I, which may be there or on its way by now; false: the limits forbid it.
 */
static bool
begin_load(KvcPrefetchRequest *r, size_t i)
{
	KvcPrefetchController *c = r->controller;
	Source source;
	/* First: a commit after this changes the version, one before it is seen by the probe. */
	bool has_source = choose_version(r, i, (size_t)r->cells[i].source, &source);
	if (kvc_prefetch_request_probe(r, i)) {
		kvc_prefetch_request_return_l2_lock(r, i, UINT32_MAX);
		return true;
	}
	KvcPrefetchLoad *load = g_hash_table_lookup(c->loads, r->keys[i]);
	if (load) {
		join(r, i, load);
		return true;
	}
	if (is_over_limit(c, has_source ? source.bytes : 0))
		return false;
	load = g_new0(KvcPrefetchLoad, 1);
	load->key = kvc_object_key_ref(r->keys[i]);
	load->waiters = g_array_new(FALSE, FALSE, sizeof(KvcPrefetchWaiter));
	load->link.data = load;
	g_hash_table_insert(c->loads, load->key, load);
	attach(r, i, load);
	KvcPrefetchKeyState state = KVC_PREFETCH_KEY_LOST;
	if (has_source || find_source(load, &source))
		state = submit_load(c, load, &source);
	if (state != KVC_PREFETCH_KEY_PENDING)
		end_load(c, load, state, NULL);
	return true;
}

void
kvc_prefetch_load_enqueue(KvcPrefetchRequest *r)
{
	KvcPrefetchController *c = r->controller;
	r->phase = KVC_REQUEST_LOADING;
	r->queue = &c->loading[r->flags & KVC_PREFETCH_URGENT ? 0 : 1];
	g_queue_push_tail_link(r->queue, &r->queue_link);
}

void
kvc_prefetch_load_pump(KvcPrefetchController *c)
{
	for (;;) {
		GQueue *queue = &c->loading[c->loading[0].length > 0 ? 0 : 1];
		KvcPrefetchRequest *r = g_queue_peek_head(queue);
		if (!r)
			break;
		while (r->cursor < r->end &&
		       (r->cells[r->cursor].is_held || r->cells[r->cursor].source < 0))
			r->cursor++;
		if (r->cursor >= r->end) {
			g_queue_unlink(queue, &r->queue_link);
			r->queue = NULL;
			answer_if_done(r);
			continue;
		}
		size_t i = r->cursor++;
		if (!begin_load(r, i)) {
			r->cursor = i;
			break;
		}
	}
	kvc_prefetch_flush_unlocks(c);
}

/* Those of ADAPTER that it has answered move to DONE. */
static void
take_answered(KvcPrefetchController *c, size_t adapter, GQueue *done)
{
	GList *next;
	for (GList *link = c->loads_in_flight[adapter].head; link; link = next) {
		KvcPrefetchLoad *load = link->data;
		next = link->next;
		kvc_bitmap_clear_all(c->load_result);
		int rc = kvc_adapter_query_load(&c->context->adapters[adapter], load->task_id,
						c->load_result);
		if (rc == 0)
			continue;
		/* An adapter that does not know its own task has loaded nothing. */
		load->is_loaded = rc == 1 && kvc_bitmap_test(c->load_result, 0);
		g_queue_unlink(&c->loads_in_flight[adapter], link);
		g_queue_push_tail_link(done, link);
	}
}

void
kvc_prefetch_load_drain(KvcPrefetchController *c, size_t adapter)
{
	g_autoptr(GArray) mapped = g_array_new(FALSE, FALSE, sizeof(KvcMemoryObj));
	GQueue done = G_QUEUE_INIT;
	GList *link;
	take_answered(c, adapter, &done);
	for (link = done.head; link; link = link->next)
		g_array_append_val(mapped, ((KvcPrefetchLoad *)link->data)->memory);
	kvc_l1_object_unmap_all((KvcMemoryObj *)(void *)mapped->data, mapped->len);
	while ((link = g_queue_pop_head_link(&done)))
		finish_load(c, link->data);
	kvc_prefetch_flush_unlocks(c);
}
