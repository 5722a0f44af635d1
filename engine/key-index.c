/* SPDX-License-Identifier: Apache-2.0 */

/*
 * An entry lives in one of 64 tables by the key's hash. The order of a scope's keys is an array of
 * (sequence, key), ascending, with holes where keys left; it is compacted when half of it is holes,
 * so a listing can stop at any sequence and go on after it later.
 *
 * Adding or removing an entry takes the scope's lock, then the shard's; everything else the shard's
 * only.
 */

#include "engine/key-index-private.h"
#include "engine/lock.h"

#include <errno.h>
#include <string.h>

/* "." and ".." come before the first key of a directory. */
#define FIRST_SEQUENCE 16

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
	kvc_xattrs_unref(entry->attributes.xattrs);
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
		if (index->shards[i].moves)
			g_hash_table_unref(index->shards[i].moves);
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

static Hidden *
find_hidden_locked(Shard *shard, const KvcObjectKey *key)
{
	return shard->hidden ? g_hash_table_lookup(shard->hidden, key) : NULL;
}

static bool
is_deleted_locked(Shard *shard, const KvcObjectKey *key, uint32_t tier)
{
	const Hidden *hidden = find_hidden_locked(shard, key);
	return hidden && (hidden->adapters & tier);
}

static bool
is_moving_locked(Shard *shard, const KvcObjectKey *key, uint32_t tier)
{
	if (!shard->moves || tier == KVC_TIER_L1)
		return false;
	const Moves *moves = g_hash_table_lookup(shard->moves, key);
	unsigned a = (unsigned)__builtin_ctz(tier);
	return moves && (moves->counts[MOVE_FROM][a] > 0 || moves->counts[MOVE_TO][a] > 0);
}

static bool
is_hidden_locked(Shard *shard, const KvcObjectKey *key, uint32_t tier)
{
	return is_deleted_locked(shard, key, tier) || is_moving_locked(shard, key, tier);
}

/* What somebody says of KEY; nothing of it is owned. */
typedef struct Report {
	KvcObjectKey *key;
	uint32_t tier;
	uint64_t bytes;
	const KvcObjectAttributes *attributes;
	bool is_commit;	    /* of a key whose versions differ, to L1 */
	uint32_t older;	    /* out: tiers that are found to have an older version */
	int64_t version_ns; /* out: of a commit */
} Report;

/* DELETE_ID 0: it is hidden for another reason than a deletion. */
static void
hide_locked(Shard *shard, KvcObjectKey *key, uint32_t adapters, uint64_t delete_id)
{
	if (!adapters)
		return;
	if (!shard->hidden)
		shard->hidden = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						      (GDestroyNotify)kvc_object_key_unref, g_free);
	Hidden *hidden = find_hidden_locked(shard, key);
	if (!hidden) {
		hidden = g_new0(Hidden, 1);
		g_hash_table_insert(shard->hidden, kvc_object_key_ref(key), hidden);
	}
	hidden->adapters |= adapters;
	hidden->delete_id = MAX(hidden->delete_id, delete_id);
}

/* The bytes of ENTRY are others from now on. */
static void
renew_version_locked(KvcKeyIndex *index, Entry *entry)
{
	entry->version = __atomic_add_fetch(&index->last_version, 1, __ATOMIC_RELAXED);
}

/* What those that told of ENTRY have is older than what R tells of; so may be what L1 loaded. */
static void
outdate_locked(KvcKeyIndex *index, Shard *shard, Entry *entry, Report *r)
{
	r->older = entry->tiers & (entry->attributes.told | KVC_TIER_L1);
	hide_locked(shard, r->key, r->older & ~KVC_TIER_L1, 0);
	entry->tiers &= ~r->older;
	kvc_key_attributes_clear(&entry->attributes);
	renew_version_locked(index, entry);
}

/*
 * False: the adapter is not believed. What it has of a key that was committed meanwhile is the
 * version before, unless we know that the new one was stored there. Of adapters that were not
 * stored to alike when we were killed, only those with the newest version are believed.
 */
static bool
is_believed_locked(KvcKeyIndex *index, Shard *shard, Entry *entry, Report *r)
{
	if (is_hidden_locked(shard, r->key, r->tier))
		return false;
	if (r->tier == KVC_TIER_L1 || !entry || (entry->tiers & r->tier))
		return true;
	int age = entry->is_committed ? -1 : 0;
	if (r->key->space != KVC_SPACE_CHUNK && !age && !entry->renaming)
		age = kvc_key_attributes_compare(&entry->attributes, entry->tiers, r->attributes);
	if (age > 0)
		outdate_locked(index, shard, entry, r);
	if (age >= 0)
		return true;
	hide_locked(shard, r->key, r->tier, 0);
	r->older = entry->is_committed ? 0 : r->tier;
	return false;
}

static void
update_locked(KvcKeyIndex *index, Shard *shard, Entry *entry, Report *r)
{
	if (r->is_commit) {
		hide_locked(shard, r->key, (entry->tiers | entry->renaming) & ~KVC_TIER_L1, 0);
		entry->tiers = entry->renaming = 0;
		entry->is_committed = true;
		r->version_ns = kvc_key_attributes_stamp(&entry->attributes);
		renew_version_locked(index, entry);
	}
	/* What L1 has, and what was stored, is newer than what a tier reports. */
	if (r->tier == KVC_TIER_L1 || !(entry->tiers & (KVC_TIER_L1 | r->tier)))
		entry->bytes = r->bytes;
	kvc_key_attributes_update(&entry->attributes, r->attributes, r->tier);
	entry->tiers |= r->tier;
	entry->is_removed = false;
}

/* False: the key is not known. */
static bool
update_known(KvcKeyIndex *index, Report *r)
{
	Shard *shard = shard_of(index, r->key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, r->key);
	bool is_believed = is_believed_locked(index, shard, entry, r);
	if (entry && is_believed)
		update_locked(index, shard, entry, r);
	kvc_mutex_unlock(&shard->lock);
	return entry || !is_believed;
}

/* ENTRY, which is in no table, becomes the last one of ORDER; its key is set. */
static void
enter_locked(KvcKeyIndex *index, Order *order, Shard *shard, Entry *entry)
{
	entry->order = order;
	entry->sequence = order->next_sequence++;
	renew_version_locked(index, entry);
	g_hash_table_insert(shard->entries, entry->key, entry);
	Slot slot = {.sequence = entry->sequence, .key = kvc_object_key_ref(entry->key)};
	g_array_append_val(order->slots, slot);
	order->n_live++;
	__atomic_fetch_add(&index->count, 1, __ATOMIC_RELAXED);
}

static void
report(KvcKeyIndex *index, Report *r)
{
	if (update_known(index, r))
		return;
	Order *order = find_order(index, r->key->scope, true);
	Shard *shard = shard_of(index, r->key);
	kvc_mutex_lock(&order->lock);
	kvc_mutex_lock(&shard->lock);
	bool is_first = false;
	Entry *entry = g_hash_table_lookup(shard->entries, r->key);
	if (is_believed_locked(index, shard, entry, r)) {
		is_first = !entry && order->n_live == 0;
		if (!entry) {
			entry = g_new0(Entry, 1);
			entry->key = kvc_object_key_ref(r->key);
			enter_locked(index, order, shard, entry);
		}
		update_locked(index, shard, entry, r);
	}
	kvc_mutex_unlock(&shard->lock);
	kvc_mutex_unlock(&order->lock);
	if (is_first && index->scope_known)
		index->scope_known(index->user, r->key->scope);
}

uint32_t
kvc_key_index_add_with(KvcKeyIndex *index,
		       KvcObjectKey *key,
		       uint32_t tier,
		       uint64_t bytes,
		       const KvcObjectAttributes *attributes)
{
	Report r = {key, tier, bytes, attributes, false, 0, 0};
	report(index, &r);
	return r.older;
}

int64_t
kvc_key_index_replace_with(KvcKeyIndex *index,
			   KvcObjectKey *key,
			   uint64_t bytes,
			   const KvcObjectAttributes *attributes)
{
	Report r = {key, KVC_TIER_L1, bytes, attributes, true, 0, 0};
	report(index, &r);
	return r.version_ns;
}

uint32_t
kvc_key_index_set_bytes(
	KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier, uint32_t version, uint64_t bytes)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && entry->version == version && (entry->tiers & tier) &&
	    !(entry->tiers & KVC_TIER_L1) && entry->bytes != bytes) {
		entry->bytes = bytes;
		renew_version_locked(index, entry);
		version = entry->version;
	}
	kvc_mutex_unlock(&shard->lock);
	return version;
}

/* ---- Replaced by somebody else -------------------------------------------------------------- */

bool
kvc_key_index_is_other(KvcKeyIndex *index,
		       const KvcObjectKey *key,
		       uint32_t tier,
		       uint32_t version,
		       uint64_t bytes,
		       const KvcObjectAttributes *attributes)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	const Entry *entry = g_hash_table_lookup(shard->entries, key);
	bool is_other =
		entry && entry->version == version && (entry->tiers & tier) &&
		kvc_key_attributes_are_other(&entry->attributes, attributes, entry->bytes != bytes);
	kvc_mutex_unlock(&shard->lock);
	return is_other;
}

bool
kvc_key_index_renew(KvcKeyIndex *index,
		    KvcObjectKey *key,
		    uint32_t tier,
		    uint32_t version,
		    uint64_t bytes,
		    const KvcObjectAttributes *attributes)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	bool is_renewed = entry && entry->version == version && (entry->tiers & tier) &&
			  !(entry->tiers & KVC_TIER_L1) && !entry->renaming;
	if (is_renewed) {
		hide_locked(shard, key, entry->tiers & ~tier, 0);
		entry->tiers = tier;
		entry->bytes = bytes;
		entry->is_committed = false;
		kvc_key_attributes_clear(&entry->attributes);
		kvc_key_attributes_update(&entry->attributes, attributes, tier);
		renew_version_locked(index, entry);
	}
	kvc_mutex_unlock(&shard->lock);
	return is_renewed;
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

static bool
is_known(const Entry *entry)
{
	return (entry->tiers | entry->renaming) != 0;
}

/* Takes ENTRY out of its table and its order, whose lock is held too. */
static void
steal_entry_locked(KvcKeyIndex *index, Shard *shard, Entry *entry)
{
	leave_order_locked(entry->order, entry->sequence);
	g_hash_table_steal(shard->entries, entry->key);
	__atomic_fetch_sub(&index->count, 1, __ATOMIC_RELAXED);
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
	bool lost = entry && !is_known(entry);
	if (lost) {
		steal_entry_locked(index, shard, entry);
		entry_free(entry);
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
	*is_lost = !is_known(entry);
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

void
kvc_key_index_remove_version(KvcKeyIndex *index,
			     KvcObjectKey *key,
			     uint32_t tiers,
			     uint32_t version)
{
	Shard *shard = shard_of(index, key);
	bool is_lost = false;
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && entry->version == version)
		clear_tiers_locked(shard, key, tiers, &is_lost);
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, key);
}

void
kvc_key_index_remove_elsewhere(KvcKeyIndex *index,
			       KvcObjectKey *key,
			       uint32_t tier,
			       uint32_t version)
{
	Shard *shard = shard_of(index, key);
	bool is_lost = false;
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && entry->version == version && (entry->tiers & tier)) {
		clear_tiers_locked(shard, key, tier, &is_lost);
		entry->is_removed = entry->tiers == KVC_TIER_L1 && !entry->renaming;
	}
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, key);
}

uint32_t
kvc_key_index_hide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters, uint64_t delete_id)
{
	Shard *shard = shard_of(index, key);
	bool is_lost = false;
	kvc_mutex_lock(&shard->lock);
	hide_locked(shard, key, adapters, delete_id);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	uint32_t had = entry ? entry->renaming : 0;
	if (entry)
		entry->renaming = 0;
	had |= clear_tiers_locked(shard, key, UINT32_MAX, &is_lost);
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, key);
	return had;
}

static void
unhide_locked(Shard *shard, KvcObjectKey *key, uint32_t adapters)
{
	Hidden *hidden = find_hidden_locked(shard, key);
	if (!hidden)
		return;
	hidden->adapters &= ~adapters;
	if (!hidden->adapters)
		g_hash_table_remove(shard->hidden, key);
}

void
kvc_key_index_hide_from(KvcKeyIndex *index,
			KvcObjectKey *key,
			uint32_t adapters,
			uint64_t delete_id)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	hide_locked(shard, key, adapters, delete_id);
	kvc_mutex_unlock(&shard->lock);
}

uint32_t
kvc_key_index_hidden_from(KvcKeyIndex *index, const KvcObjectKey *key)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	const Hidden *hidden = find_hidden_locked(shard, key);
	uint32_t adapters = hidden ? hidden->adapters : 0;
	kvc_mutex_unlock(&shard->lock);
	return adapters;
}

static gboolean
forget_hidden(void *key, void *value, void *user)
{
	Hidden *hidden = value;
	hidden->adapters &= ~GPOINTER_TO_UINT(user);
	return hidden->adapters == 0;
}

static void
forget_hidden_locked(Shard *shard, uint32_t adapter)
{
	if (shard->hidden)
		g_hash_table_foreach_remove(shard->hidden, forget_hidden,
					    GUINT_TO_POINTER(adapter));
}

/* Appends the keys (referenced) that nobody has any more to LOST, those that L1 has to LEFT. */
static void
forget_entries_locked(Shard *shard, uint32_t adapter, GPtrArray *lost, GPtrArray *left)
{
	GHashTableIter iter;
	Entry *entry;
	g_hash_table_iter_init(&iter, shard->entries);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&entry)) {
		bool had = (entry->tiers | entry->renaming) & adapter;
		entry->tiers &= ~adapter;
		entry->renaming &= ~adapter;
		if (!is_known(entry))
			g_ptr_array_add(lost, kvc_object_key_ref(entry->key));
		else if (had && (entry->tiers | entry->renaming) == KVC_TIER_L1)
			g_ptr_array_add(left, kvc_object_key_ref(entry->key));
	}
}

GPtrArray *
kvc_key_index_forget(KvcKeyIndex *index, uint32_t adapter)
{
	GPtrArray *left = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	for (size_t i = 0; i < N_SHARDS; i++) {
		Shard *shard = &index->shards[i];
		g_autoptr(GPtrArray) lost =
			g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
		kvc_mutex_lock(&shard->lock);
		forget_hidden_locked(shard, adapter);
		forget_entries_locked(shard, adapter, lost, left);
		kvc_mutex_unlock(&shard->lock);
		for (guint j = 0; j < lost->len; j++)
			remove_if_lost(index, lost->pdata[j]);
	}
	return left;
}

void
kvc_key_index_unhide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters, uint64_t delete_id)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	const Hidden *hidden = find_hidden_locked(shard, key);
	if (hidden && hidden->delete_id <= delete_id)
		unhide_locked(shard, key, adapters);
	kvc_mutex_unlock(&shard->lock);
}

void
kvc_key_index_note_stored(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && (entry->tiers & KVC_TIER_L1)) {
		unhide_locked(shard, key, tier);
		if (!is_moving_locked(shard, key, tier))
			entry->tiers |= tier;
		entry->is_removed = false;
	}
	kvc_mutex_unlock(&shard->lock);
}

void
kvc_key_index_note_outdated(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && (entry->tiers & KVC_TIER_L1) && !is_moving_locked(shard, key, tier)) {
		hide_locked(shard, key, tier, 0);
		entry->tiers &= ~tier;
	}
	kvc_mutex_unlock(&shard->lock);
}

/* ---- Renaming ------------------------------------------------------------------------------ */

static void
begin_moves_locked(Shard *shard, KvcObjectKey *key, Move move, uint32_t adapters)
{
	if (!adapters)
		return;
	if (!shard->moves)
		shard->moves = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						     (GDestroyNotify)kvc_object_key_unref, g_free);
	Moves *moves = g_hash_table_lookup(shard->moves, key);
	if (!moves) {
		moves = g_new0(Moves, 1);
		g_hash_table_insert(shard->moves, kvc_object_key_ref(key), moves);
	}
	for (uint32_t bits = adapters; bits; bits &= bits - 1)
		moves->counts[move][__builtin_ctz(bits)]++;
}

/* True: no other such rename of KEY is pending on ADAPTER. */
static bool
end_move_locked(Shard *shard, KvcObjectKey *key, Move move, uint32_t adapter)
{
	static const Moves none;
	Moves *moves = g_hash_table_lookup(shard->moves, key);
	bool is_last = --moves->counts[move][__builtin_ctz(adapter)] == 0;
	if (memcmp(moves, &none, sizeof(none)) == 0)
		g_hash_table_remove(shard->moves, key);
	return is_last;
}

/* Forgets what is hidden of KEY, and returns it. */
static Hidden
take_hidden_locked(Shard *shard, KvcObjectKey *key)
{
	const Hidden *hidden = find_hidden_locked(shard, key);
	Hidden taken = {0};
	if (hidden) {
		taken = *hidden;
		g_hash_table_remove(shard->hidden, key);
	}
	return taken;
}

/*
 * What is hidden of OLD_KEY will be of NEW_KEY: an older version, renamed with the rest. OLD_KEY is
 * hidden by the rename itself. Where NEW_KEY cannot be renamed over it is an older version now.
 */
static void
hide_renamed_locked(Shard *from,
		    Shard *to,
		    KvcObjectKey *old_key,
		    KvcObjectKey *new_key,
		    uint32_t movable,
		    uint32_t replaced)
{
	if (new_key->space == KVC_SPACE_CHUNK)
		return;
	Hidden old = take_hidden_locked(from, old_key), new = take_hidden_locked(to, new_key);
	hide_locked(to, new_key, (old.adapters & movable) | (replaced & ~movable), 0);
	hide_locked(to, new_key, new.adapters & ~movable, new.delete_id);
}

/* Both orders' and both tables' locks are held. True: NEW_KEY is the first one of its scope. */
static bool
rekey_locked(KvcKeyIndex *index,
	     KvcObjectKey *old_key,
	     KvcObjectKey *new_key,
	     bool is_resident,
	     uint32_t movable,
	     Order *new_order)
{
	Shard *from = shard_of(index, old_key), *to = shard_of(index, new_key);
	Entry *entry = g_hash_table_lookup(from->entries, old_key);
	Entry *replaced = g_hash_table_lookup(to->entries, new_key);
	hide_renamed_locked(from, to, old_key, new_key, movable,
			    replaced ? replaced->tiers & ~KVC_TIER_L1 : 0);
	if (replaced) {
		steal_entry_locked(index, to, replaced);
		entry_free(replaced);
	}
	if (!entry)
		return false;
	steal_entry_locked(index, from, entry);
	kvc_object_key_unref(entry->key);
	entry->key = kvc_object_key_ref(new_key);
	entry->attributes.told = 0; /* of the former name */
	entry->renaming = (entry->tiers | entry->renaming) & movable;
	entry->tiers = is_resident ? KVC_TIER_L1 : 0;
	enter_locked(index, new_order, to, entry);
	return new_order->n_live == 1;
}

void
kvc_key_index_rename(KvcKeyIndex *index,
		     KvcObjectKey *old_key,
		     KvcObjectKey *new_key,
		     bool is_resident,
		     uint32_t adapters,
		     uint32_t movable)
{
	Order *old_order = find_order(index, old_key->scope, true);
	Order *new_order = find_order(index, new_key->scope, true);
	Shard *from = shard_of(index, old_key), *to = shard_of(index, new_key);
	kvc_mutex_lock_both(&old_order->lock, &new_order->lock);
	kvc_mutex_lock_both(&from->lock, &to->lock);
	bool is_first = rekey_locked(index, old_key, new_key, is_resident, movable, new_order);
	begin_moves_locked(from, old_key, MOVE_FROM, adapters);
	begin_moves_locked(to, new_key, MOVE_TO, movable);
	kvc_mutex_unlock_both(&from->lock, &to->lock);
	kvc_mutex_unlock_both(&old_order->lock, &new_order->lock);
	if (index->key_lost)
		index->key_lost(index->user, old_key);
	if (is_first && index->scope_known)
		index->scope_known(index->user, new_key->scope);
}

/* The last rename to KEY ended on ADAPTER so. True: no tier has it any more. */
static bool
end_new_locked(Shard *shard, KvcObjectKey *key, uint32_t adapter, KvcRenameEnd end, bool is_listing)
{
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	uint32_t had = entry ? entry->renaming & adapter : 0;
	const Hidden *hidden = find_hidden_locked(shard, key);
	if (entry)
		entry->renaming &= ~adapter;
	if (end == KVC_RENAME_PRESENT && had && !is_deleted_locked(shard, key, adapter))
		entry->tiers |= adapter;
	else if (end == KVC_RENAME_ABSENT && !is_listing) {
		if (hidden && hidden->delete_id == 0)
			unhide_locked(shard, key, adapter);
	} else if ((entry || is_listing) && key->space != KVC_SPACE_CHUNK) {
		hide_locked(shard, key, adapter, 0);
	}
	return had && !is_known(entry);
}

void
kvc_key_index_end_rename_from(KvcKeyIndex *index,
			      KvcObjectKey *old_key,
			      uint32_t adapter,
			      bool is_listing)
{
	Shard *shard = shard_of(index, old_key);
	kvc_mutex_lock(&shard->lock);
	end_move_locked(shard, old_key, MOVE_FROM, adapter);
	if (is_listing)
		hide_locked(shard, old_key, adapter, 0);
	kvc_mutex_unlock(&shard->lock);
}

bool
kvc_key_index_end_rename_to(KvcKeyIndex *index,
			    KvcObjectKey *new_key,
			    uint32_t adapter,
			    KvcRenameEnd end,
			    bool is_listing)
{
	Shard *shard = shard_of(index, new_key);
	kvc_mutex_lock(&shard->lock);
	bool is_lost = end_move_locked(shard, new_key, MOVE_TO, adapter) &&
		       end_new_locked(shard, new_key, adapter, end, is_listing);
	kvc_mutex_unlock(&shard->lock);
	if (is_lost)
		remove_if_lost(index, new_key);
	return is_lost;
}

/* ---- Reading ------------------------------------------------------------------------------- */

int
kvc_key_index_get(KvcKeyIndex *index, const KvcObjectKey *key, KvcObjectInfo *info)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	bool known = entry && is_known(entry);
	if (known && info) {
		*info = (KvcObjectInfo){
			.tiers = entry->tiers | entry->renaming,
			.renaming = entry->renaming,
			.bytes = entry->bytes,
			.sequence = entry->sequence,
			.version = entry->version,
			.is_removed = entry->is_removed && entry->tiers == KVC_TIER_L1,
		};
		kvc_key_attributes_fill_info(&entry->attributes, info);
	}
	kvc_mutex_unlock(&shard->lock);
	return known ? 0 : -ENOENT;
}

KvcKeyAttributes *
kvc_key_index_lock_attributes(KvcKeyIndex *index, const KvcObjectKey *key)
{
	Shard *shard = shard_of(index, key);
	kvc_mutex_lock(&shard->lock);
	Entry *entry = g_hash_table_lookup(shard->entries, key);
	if (entry && is_known(entry))
		return &entry->attributes;
	kvc_mutex_unlock(&shard->lock);
	return NULL;
}

void
kvc_key_index_unlock_attributes(KvcKeyIndex *index, const KvcObjectKey *key)
{
	kvc_mutex_unlock(&shard_of(index, key)->lock);
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
