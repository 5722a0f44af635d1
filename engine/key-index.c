/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An entry lives in one of 64 tables by the key's hash. The order of a scope's keys is an array of
 * (sequence, key), ascending, with holes where keys left; it is compacted when half of it is holes,
 * so a listing can stop at any sequence and go on after it later.
 *
 * Adding or removing an entry takes the scope's lock, then the shard's; everything else the shard's
 * only.
 */

#include "engine/key-index.h"
#include "engine/lock.h"

#include <errno.h>
#include <string.h>

#define N_SHARDS 64
/* "." and ".." come before the first key of a directory. */
#define FIRST_SEQUENCE 16

typedef struct Order {
	KvcKeyScope *scope; /* owned */
	KvcMutex lock;
	/* Protected by lock. */
	GArray *slots; /* of Slot */
	size_t n_live;
	uint64_t next_sequence;
} Order;

typedef struct Slot {
	uint64_t sequence;
	KvcObjectKey *key; /* owned, NULL: a hole */
} Slot;

/* Protected by the shard's lock. */
typedef struct Entry {
	KvcObjectKey *key; /* owned */
	Order *order;
	uint64_t bytes;
	int64_t mtime_ns;
	uint64_t sequence;
	uint32_t tiers;
} Entry;

typedef struct Shard {
	KvcMutex lock;
	GHashTable *entries; /* key -> Entry */
	GHashTable *hidden;  /* key -> adapters (bits), NULL while nothing is hidden */
} Shard;

struct KvcKeyIndex {
	/* Immutable. */
	void (*key_lost)(void *user, KvcObjectKey *key);
	void (*scope_known)(void *user, KvcKeyScope *scope);
	void *user;

	Shard shards[N_SHARDS];
	KvcMutex scopes_lock;
	GHashTable *orders; /* Protected by scopes_lock: KvcKeyScope -> Order, never removed */
	uint64_t count;	    /* Atomic */
};

static Shard *
shard_of(KvcKeyIndex *index, const KvcObjectKey *key)
{
	return &index->shards[(key->hash >> 8) % N_SHARDS];
}

static void
order_free(void *data)
{
	Order *order = data;
	for (size_t i = 0; i < order->slots->len; i++) {
		Slot *slot = &g_array_index(order->slots, Slot, i);
		if (slot->key)
			kvc_object_key_unref(slot->key);
	}
	g_array_unref(order->slots);
	kvc_mutex_deinit(&order->lock);
	kvc_key_scope_unref(order->scope);
	g_free(order);
}

static void
entry_free(void *data)
{
	Entry *entry = data;
	kvc_object_key_unref(entry->key);
	g_free(entry);
}

KvcKeyIndex *
kvc_key_index_new(void (*key_lost)(void *user, KvcObjectKey *key),
		  void (*scope_known)(void *user, KvcKeyScope *scope),
		  void *user)
{
	KvcKeyIndex *index = g_new0(KvcKeyIndex, 1);
	index->key_lost = key_lost;
	index->scope_known = scope_known;
	index->user = user;
	for (size_t i = 0; i < N_SHARDS; i++) {
		kvc_mutex_init(&index->shards[i].lock, KVC_LOCK_INDEX_SHARD);
		index->shards[i].entries = g_hash_table_new_full(
			kvc_object_key_hash, kvc_object_key_equal, NULL, entry_free);
	}
	kvc_mutex_init(&index->scopes_lock, KVC_LOCK_INDEX_SCOPES);
	index->orders = g_hash_table_new_full(NULL, NULL, NULL, order_free);
	return index;
}

void
kvc_key_index_free(KvcKeyIndex *index)
{
	for (size_t i = 0; i < N_SHARDS; i++) {
		g_hash_table_unref(index->shards[i].entries);
		if (index->shards[i].hidden)
			g_hash_table_unref(index->shards[i].hidden);
		kvc_mutex_deinit(&index->shards[i].lock);
	}
	g_hash_table_unref(index->orders);
	kvc_mutex_deinit(&index->scopes_lock);
	g_free(index);
}

static Order *
find_order(KvcKeyIndex *index, KvcKeyScope *scope, bool create)
{
	kvc_mutex_lock(&index->scopes_lock);
	Order *order = g_hash_table_lookup(index->orders, scope);
	if (!order && create) {
		order = g_new0(Order, 1);
		order->scope = kvc_key_scope_ref(scope);
		kvc_mutex_init(&order->lock, KVC_LOCK_INDEX_SCOPE);
		order->slots = g_array_new(FALSE, FALSE, sizeof(Slot));
		order->next_sequence = FIRST_SEQUENCE;
		g_hash_table_insert(index->orders, scope, order);
	}
	kvc_mutex_unlock(&index->scopes_lock);
	return order;
}

/* ---- Adding -------------------------------------------------------------------------------- */

static bool
is_hidden_locked(Shard *shard, const KvcObjectKey *key, uint32_t tier)
{
	if (!shard->hidden)
		return false;
	return GPOINTER_TO_UINT(g_hash_table_lookup(shard->hidden, key)) & tier;
}

static void
update_locked(Entry *entry, uint32_t tier, uint64_t bytes, int64_t mtime_ns)
{
	/* What L1 has is newer than what a tier reports. */
	if (tier == KVC_TIER_L1 || !(entry->tiers & KVC_TIER_L1))
		entry->bytes = bytes;
	if (mtime_ns != 0 && (entry->mtime_ns == 0 || tier == KVC_TIER_L1))
		entry->mtime_ns = mtime_ns;
	entry->tiers |= tier;
}

/* Updates a known key; false: the key is not known. Hidden ones count as known. */
static bool
update_known(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier, uint64_t bytes, int64_t mtime_ns)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	bool known = is_hidden_locked(shard, key, tier);
	if (!known) {
		Entry *entry = g_hash_table_lookup(shard->entries, key);
		known = entry != NULL;
		if (entry)
			update_locked(entry, tier, bytes, mtime_ns);
	}
	kvc_mutex_unlock(&shard->lock);
	return known;
}

static Entry *
insert_locked(KvcKeyIndex *index, Order *order, Shard *shard, KvcObjectKey *key)
{
	Entry *entry = g_new0(Entry, 1);
	entry->key = kvc_object_key_ref(key);
	entry->order = order;
	entry->sequence = order->next_sequence++;
	g_hash_table_insert(shard->entries, entry->key, entry);
	Slot slot = {.sequence = entry->sequence, .key = kvc_object_key_ref(key)};
	g_array_append_val(order->slots, slot);
	order->n_live++;
	__atomic_fetch_add(&index->count, 1, __ATOMIC_RELAXED);
	return entry;
}

void
kvc_key_index_add(
	KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier, uint64_t bytes, int64_t mtime_ns)
{
	if (update_known(index, key, tier, bytes, mtime_ns))
		return;
	if (mtime_ns == 0)
		mtime_ns = kvc_wall_ns();
	Order *order = find_order(index, key->scope, true);
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&order->lock);
	kvc_mutex_lock(&shard->lock);
	bool is_first = false;
	if (!is_hidden_locked(shard, key, tier)) {
		Entry *entry = g_hash_table_lookup(shard->entries, key);
		if (!entry) {
			is_first = order->n_live == 0;
			entry = insert_locked(index, order, shard, key);
		}
		update_locked(entry, tier, bytes, mtime_ns);
	}
	kvc_mutex_unlock(&shard->lock);
	kvc_mutex_unlock(&order->lock);
	if (is_first && index->scope_known)
		index->scope_known(index->user, key->scope);
}

static void
hide_locked(Shard *shard, KvcObjectKey *key, uint32_t adapters)
{
	if (!adapters)
		return;
	if (!shard->hidden)
		shard->hidden = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						      (GDestroyNotify)kvc_object_key_unref, NULL);
	adapters |= GPOINTER_TO_UINT(g_hash_table_lookup(shard->hidden, key));
	g_hash_table_insert(shard->hidden, kvc_object_key_ref(key), GUINT_TO_POINTER(adapters));
}

void
kvc_key_index_replace(KvcKeyIndex *index, KvcObjectKey *key, uint64_t bytes, int64_t mtime_ns)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry) {
		hide_locked(shard, key, entry->tiers & ~KVC_TIER_L1);
		entry->tiers = 0;
		update_locked(entry, KVC_TIER_L1, bytes, mtime_ns);
	}
	kvc_mutex_unlock(&shard->lock);
	if (!entry)
		kvc_key_index_add(index, key, KVC_TIER_L1, bytes, mtime_ns);
}

/* ---- Removing ------------------------------------------------------------------------------ */

/* The index of the first slot with a sequence above AFTER. */
static size_t
find_slot_locked(const Order *order, uint64_t after)
{
	size_t low = 0, high = order->slots->len;
	while (low < high) {
		size_t middle = low + (high - low) / 2;
		if (g_array_index(order->slots, Slot, middle).sequence <= after)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void
compact_locked(Order *order)
{
	size_t kept = 0;
	for (size_t i = 0; i < order->slots->len; i++) {
		Slot slot = g_array_index(order->slots, Slot, i);
		if (slot.key)
			g_array_index(order->slots, Slot, kept++) = slot;
	}
	g_array_set_size(order->slots, kept);
}

static void
leave_order_locked(Order *order, uint64_t sequence)
{
	size_t i = find_slot_locked(order, sequence - 1);
	g_assert(i < order->slots->len);
	Slot *slot = &g_array_index(order->slots, Slot, i);
	g_assert(slot->sequence == sequence && slot->key);
	kvc_object_key_unref(slot->key);
	slot->key = NULL;
	order->n_live--;
	if (order->slots->len > 64 && order->n_live < order->slots->len / 2)
		compact_locked(order);
}

/* Drops the entry of KEY if no tier has it any more. */
static void
remove_if_lost(KvcKeyIndex *index, KvcObjectKey *key)
{
	Order *order = find_order(index, key->scope, false);
	if (!order)
		return;
	g_autoptr(KvcObjectKey) held = kvc_object_key_ref(key);
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&order->lock);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	bool lost = entry && entry->tiers == 0;
	if (lost) {
		leave_order_locked(order, entry->sequence);
		g_hash_table_remove(shard->entries, key);
		__atomic_fetch_sub(&index->count, 1, __ATOMIC_RELAXED);
	}
	kvc_mutex_unlock(&shard->lock);
	kvc_mutex_unlock(&order->lock);
	if (lost && index->key_lost)
		index->key_lost(index->user, held);
}

static uint32_t
clear_tiers_locked(Shard *shard, const KvcObjectKey *key, uint32_t tiers, bool *is_lost)
{
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (!entry)
		return 0;
	uint32_t had = entry->tiers;
	entry->tiers &= ~tiers;
	*is_lost = entry->tiers == 0;
	return had;
}

void
kvc_key_index_remove(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tiers)
{
	Shard *shard = shard_of(index, key);
	bool is_lost = false;
	kvc_mutex_lock(&shard->lock);
	clear_tiers_locked(shard, key, tiers, &is_lost);
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, key);
}

uint32_t
kvc_key_index_hide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters)
{
	Shard *shard = shard_of(index, key);
	bool is_lost = false;
	kvc_mutex_lock(&shard->lock);
	hide_locked(shard, key, adapters);
	uint32_t had = clear_tiers_locked(shard, key, UINT32_MAX, &is_lost);
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, key);
	return had;
}

void
kvc_key_index_unhide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	if (shard->hidden) {
		uint32_t left =
			GPOINTER_TO_UINT(g_hash_table_lookup(shard->hidden, key)) & ~adapters;
		if (left)
			g_hash_table_insert(shard->hidden, kvc_object_key_ref(key),
					    GUINT_TO_POINTER(left));
		else
			g_hash_table_remove(shard->hidden, key);
	}
	kvc_mutex_unlock(&shard->lock);
}

/* ---- Reading ------------------------------------------------------------------------------- */

int
kvc_key_index_get(KvcKeyIndex *index, const KvcObjectKey *key, KvcObjectInfo *info)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	bool known = entry && entry->tiers != 0;
	if (known && info)
		*info = (KvcObjectInfo){
			.tiers = entry->tiers,
			.bytes = entry->bytes,
			.mtime_ns = entry->mtime_ns,
			.sequence = entry->sequence,
		};
	kvc_mutex_unlock(&shard->lock);
	return known ? 0 : -ENOENT;
}

size_t
kvc_key_index_list(KvcKeyIndex *index,
		   KvcKeyScope *scope,
		   unsigned spaces,
		   uint64_t after,
		   KvcListEntry *entries,
		   size_t max)
{
	Order *order = find_order(index, scope, false);
	if (!order)
		return 0;
	size_t n = 0;
	kvc_mutex_lock(&order->lock);
	for (size_t i = find_slot_locked(order, after); i < order->slots->len && n < max; i++) {
		const Slot *slot = &g_array_index(order->slots, Slot, i);
		if (!slot->key || !(spaces & (1u << slot->key->space)))
			continue;
		KvcListEntry *entry = &entries[n];
		if (kvc_key_index_get(index, slot->key, &entry->info) == 0) {
			entry->key = kvc_object_key_ref(slot->key);
			n++;
		}
	}
	kvc_mutex_unlock(&order->lock);
	return n;
}

GPtrArray *
kvc_key_index_list_scopes(KvcKeyIndex *index)
{
	GPtrArray *scopes = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_key_scope_unref);
	GHashTableIter iter;
	Order *order;
	kvc_mutex_lock(&index->scopes_lock);
	g_hash_table_iter_init(&iter, index->orders);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&order)) {
		kvc_mutex_lock(&order->lock);
		if (order->n_live > 0)
			g_ptr_array_add(scopes, kvc_key_scope_ref(order->scope));
		kvc_mutex_unlock(&order->lock);
	}
	kvc_mutex_unlock(&index->scopes_lock);
	return scopes;
}

uint64_t
kvc_key_index_count(KvcKeyIndex *index)
{
	return __atomic_load_n(&index->count, __ATOMIC_RELAXED);
}
