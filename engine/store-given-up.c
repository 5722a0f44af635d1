/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What an adapter could not take. A failed store is tried three times and then given up: the object
 * is clean, in L1 only, and evicted last. A flush tries it again. While an adapter cannot be
 * reached the tries do not count: the object is put off, and given up only when that takes long.
 * Those are kept in a set of the adapter's lane: one of them is tried now and then, and all of them
 * when the adapter has taken anything.
 */

#include "engine/store-private.h"

#include <errno.h>

/* How often one of those that were given up is tried, if the breaker lets it. */
#define PROBE_NS KVC_SEC_NS
/* At a probe: how many are looked at until one is found that is worth a try. */
#define MAX_LOOKED_AT 1000
/* Beyond that a flush tries them again. */
#define MAX_GIVEN_UP 1000000

void
kvc_store_give_up(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	r->failed |= 1u << adapter;
	kvc_stats_add(c->context->stats, stores_failed, 1);
	__atomic_fetch_add(&slot->stores_failed, 1, __ATOMIC_RELAXED);
	if (!kvc_store_may_log(c))
		return;
	g_autofree char *name = kvc_object_key_to_string(r->key);
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, adapter);
	g_warning("%s could not store %s: %s", who, name, g_strerror(-error));
}

/* Not counted nor logged again when it is one that had been given up, as a probe. */
static void
give_up_for_long(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	KvcStoreLane *lane = &c->lanes[adapter];
	if (lane->probe_ns == 0)
		lane->probe_ns = kvc_now_ns() + PROBE_NS;
	if (!r->stored && g_hash_table_contains(lane->given_up, r->key)) {
		r->failed |= 1u << adapter;
		kvc_stats_add(c->context->stats, stores_put_off, 1);
		return;
	}
	kvc_store_give_up(c, r, adapter, error);
	if (!r->stored && g_hash_table_size(lane->given_up) < MAX_GIVEN_UP)
		g_hash_table_add(lane->given_up, kvc_object_key_ref(r->key));
}

/*
 * While the adapter may come back soon the object waits for it, dirty. Not for ever, else L1 would
 * be full of dirty objects in the end and refuse writers.
 */
void
kvc_store_put_off(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error)
{
	KvcBreakerStatus status;
	kvc_breaker_get_status(c->context->adapters[adapter].breaker, &status);
	if (status.is_slowest) {
		give_up_for_long(c, r, adapter, error);
		return;
	}
	kvc_stats_add(c->context->stats, stores_put_off, 1);
	r->waiting |= 1u << adapter;
	kvc_store_arm(c, &r->targets[adapter], KVC_STORE_BACKOFF_PUT_OFF);
}

/* ---- Another chance ------------------------------------------------------------------------ */

/* Does no adapter have what L1 has, though there is one, and nobody has removed it there? */
static bool
is_only_in_l1(KvcStoreController *c, KvcObjectKey *key)
{
	KvcObjectInfo info;
	return c->active && kvc_key_index_get(c->context->index, key, &info) == 0 &&
	       info.tiers == KVC_TIER_L1 && !info.is_removed;
}

void
kvc_store_try_given_up(KvcStoreController *c, KvcStoreRecord *r)
{
	/* Its store is under way, or its commit to be told, after a rename perhaps. */
	if (kvc_l1_manager_is_key_dirty(c->context->l1, r->key))
		return;
	if (kvc_l1_manager_is_key_unreplicated(c->context->l1, r->key) || is_only_in_l1(c, r->key))
		kvc_store_record_take_resident(c, r);
}

void
kvc_store_try_unblocked(KvcStoreController *c, KvcStoreRecord *r)
{
	if (r->object || r->next || r->before || c->is_halting ||
	    !(r->blocked_failed & ~kvc_store_record_blocked(r, r->blocked_failed)))
		return;
	r->blocked_failed = 0;
	kvc_store_try_given_up(c, r);
}

/* False: there is nothing to store of KEY any more. */
static bool
try_key(KvcStoreController *c, KvcObjectKey *key)
{
	KvcStoreRecord *r = kvc_store_record_get(c, key);
	kvc_store_try_given_up(c, r);
	bool is_tried = r->next || r->object;
	kvc_store_record_advance(c, r);
	return is_tried;
}

static void
try_lane(KvcStoreController *c, KvcStoreLane *lane)
{
	lane->is_reached = false;
	if (g_hash_table_size(lane->given_up) == 0)
		return;
	g_autoptr(GHashTable) keys = g_steal_pointer(&lane->given_up);
	lane->given_up = kvc_store_key_set_new();
	lane->probe_ns = 0;
	GHashTableIter iter;
	void *key;
	g_hash_table_iter_init(&iter, keys);
	while (g_hash_table_iter_next(&iter, &key, NULL))
		try_key(c, key);
}

void
kvc_store_try_reached(KvcStoreController *c)
{
	for (size_t a = 0; a < c->n_adapters && c->active; a++)
		if (c->lanes[a].is_reached)
			try_lane(c, &c->lanes[a]);
}

/* It stays in the set until the adapter took it. */
static void
try_one(KvcStoreController *c, KvcStoreLane *lane)
{
	GHashTableIter iter;
	void *key;
	unsigned n = 0;
	g_hash_table_iter_init(&iter, lane->given_up);
	while (n++ < MAX_LOOKED_AT && g_hash_table_iter_next(&iter, &key, NULL)) {
		if (try_key(c, key))
			return;
		g_hash_table_iter_remove(&iter);
	}
}

void
kvc_store_probe(KvcStoreController *c, int64_t now_ns)
{
	for (uint32_t bits = c->active; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		KvcStoreLane *lane = &c->lanes[a];
		if (lane->probe_ns == 0 || lane->probe_ns > now_ns)
			continue;
		if (kvc_breaker_would_admit(c->context->adapters[a].breaker))
			try_one(c, lane);
		bool is_empty = g_hash_table_size(lane->given_up) == 0;
		lane->probe_ns = is_empty ? 0 : now_ns + PROBE_NS;
	}
}
