/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Adapters come and go, as in store-adapters.c. One that goes is asked nothing any more, the locks
 * that requests hold on it go back, and what they wanted from it they load from another adapter
 * that has it, or their plan ends there. Lookups and loads in flight end first.
 */

#include "engine/prefetch-private.h"
#include "kvcache/io.h"

#include <errno.h>

static void
publish_attached(KvcPrefetchController *c)
{
	kvc_mutex_lock(&c->lock);
	c->attached = c->active | c->draining;
	pthread_cond_broadcast(&c->adapters_changed);
	kvc_mutex_unlock(&c->lock);
}

void
kvc_prefetch_adapters_attach(KvcPrefetchController *c, uint32_t adapters)
{
	if (!adapters)
		return;
	for (uint32_t bits = adapters; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		KvcL2Adapter *adapter = c->context->adapters[a].adapter;
		c->n_adapters = MAX(c->n_adapters, a + 1);
		c->lookup_fds[a] = adapter->ops->get_lookup_and_lock_event_fd(adapter);
		c->load_fds[a] = adapter->ops->get_load_event_fd(adapter);
		if (!c->unlocks[a])
			c->unlocks[a] = g_ptr_array_new_with_free_func(
				(GDestroyNotify)kvc_object_key_unref);
		c->active |= 1u << a;
	}
	publish_attached(c);
}

/* Key I of R has to come from elsewhere; true: there is nobody. */
static bool
leave_cell(KvcPrefetchRequest *r, size_t i, size_t a)
{
	KvcPrefetchCell *cell = &r->cells[i];
	kvc_prefetch_request_return_l2_lock(r, i, 1u << a);
	cell->found &= (uint16_t) ~(1u << a);
	if (cell->source != (int8_t)a || cell->load)
		return false;
	cell->source = cell->found ? (int8_t)__builtin_ctz(cell->found) : -1;
	return cell->source < 0 && !cell->is_held;
}

static void
leave_request(KvcPrefetchRequest *r, size_t a)
{
	/* Also what is planned later, when the slot may be another adapter's. */
	if (a < r->n_lookups)
		kvc_bitmap_clear_all(r->lookups[a].found);
	for (size_t i = 0; i < r->end; i++)
		if (leave_cell(r, i, a))
			kvc_prefetch_request_lose(r, i, KVC_PREFETCH_KEY_LOST);
}

void
kvc_prefetch_adapters_detach(KvcPrefetchController *c, uint32_t adapters)
{
	c->active &= ~adapters;
	c->draining |= adapters;
	for (uint32_t bits = adapters; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		for (GList *link = c->requests.head; link; link = link->next)
			leave_request(link->data, a);
		kvc_prefetch_load_return_locks(c, a);
	}
	kvc_prefetch_flush_unlocks(c);
}

void
kvc_prefetch_adapters_finish(KvcPrefetchController *c)
{
	uint32_t done = 0;
	for (uint32_t bits = c->draining; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		if (c->lookups[a].length == 0 && c->loads_in_flight[a].length == 0)
			done |= 1u << a;
	}
	if (!done)
		return;
	kvc_prefetch_flush_unlocks(c);
	c->draining &= ~done;
	publish_attached(c);
}

int
kvc_prefetch_controller_set_adapter(KvcPrefetchController *c,
				    size_t adapter,
				    bool is_wanted,
				    int64_t deadline_ns)
{
	uint32_t bit = 1u << adapter, expected = is_wanted ? bit : 0;
	int rc = 0;
	kvc_mutex_lock(&c->lock);
	c->wanted = (c->wanted & ~bit) | expected;
	kvc_mutex_unlock(&c->lock);
	kvc_eventfd_signal(c->event_fd);
	kvc_mutex_lock(&c->lock);
	while ((c->attached & bit) != expected && !c->is_stopping && rc == 0)
		rc = kvc_cond_wait_until(&c->adapters_changed, &c->lock, deadline_ns);
	bool is_done = (c->attached & bit) == expected;
	kvc_mutex_unlock(&c->lock);
	return is_done ? 0 : -ETIMEDOUT;
}
