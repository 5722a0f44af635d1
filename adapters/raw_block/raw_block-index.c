/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The index: all that lookups and listings tell is in memory. A key that is idle and has nothing
 * stored has no node.
 *
 * Whoever writes a header for a key has it to itself (is_changing): commits of stores, deletions,
 * renames and new attributes of one key come one after the other.
 */

#include <errno.h>

#include "raw_block.h"

/* ---- Order --------------------------------------------------------------------------------- */

/* Empty places are taken out when they are the most, but not of a short list. */
#define PLACES_MIN 1024

static RawBlockPlace *
place_at(RawBlockOrder *order, guint i)
{
	return &g_array_index(order->places, RawBlockPlace, i);
}

/* The first place that is not before NUMBER. */
static guint
find_place(RawBlockOrder *order, uint64_t number)
{
	guint low = 0, high = order->places->len;

	while (low < high) {
		guint middle = low + (high - low) / 2;

		if (place_at(order, middle)->order < number)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static void
remove_empty(RawBlockOrder *order)
{
	guint n = 0;

	for (guint i = 0; i < order->places->len; i++)
		if (place_at(order, i)->node)
			*place_at(order, n++) = *place_at(order, i);
	g_array_set_size(order->places, n);
	order->n_empty = 0;
}

static void
leave_order(RawBlockOrder *order, RawBlockNode *node)
{
	place_at(order, find_place(order, node->order))->node = NULL;
	node->order = 0;
	order->n_empty++;
	if (order->places->len > PLACES_MIN && order->n_empty > order->places->len / 2)
		remove_empty(order);
}

RawBlockNode *
raw_block_next_node_locked(RawBlock *rb, uint64_t order)
{
	RawBlockOrder *all = &rb->order;

	for (guint i = find_place(all, order + 1); i < all->places->len; i++)
		if (place_at(all, i)->node)
			return place_at(all, i)->node;
	return NULL;
}

/* ---- Nodes --------------------------------------------------------------------------------- */

static void
node_free(void *data)
{
	RawBlockNode *node = data;

	kvc_object_key_unref(node->key);
	if (node->entry) {
		kvc_xattrs_unref(node->entry->xattrs);
		g_free(node->entry);
	}
	g_free(node);
}

static void
zombie_free(void *data)
{
	RawBlockZombie *zombie = data;

	kvc_object_key_unref(zombie->key);
	if (zombie->entry) {
		kvc_xattrs_unref(zombie->entry->xattrs);
		g_free(zombie->entry);
	}
	g_free(zombie);
}

void
raw_block_index_init(RawBlock *rb)
{
	rb->nodes =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, NULL, node_free);
	rb->order.places = g_array_new(FALSE, FALSE, sizeof(RawBlockPlace));
	rb->zombies = g_ptr_array_new_with_free_func(zombie_free);
}

void
raw_block_index_deinit(RawBlock *rb)
{
	g_array_unref(rb->order.places);
	g_hash_table_unref(rb->nodes);
	g_ptr_array_unref(rb->zombies);
	raw_block_space_deinit(&rb->space);
}

RawBlockNode *
raw_block_find_locked(RawBlock *rb, const KvcObjectKey *key)
{
	return g_hash_table_lookup(rb->nodes, key);
}

RawBlockNode *
raw_block_get_locked(RawBlock *rb, const KvcObjectKey *key)
{
	RawBlockNode *node = raw_block_find_locked(rb, key);

	if (node)
		return node;
	node = g_new0(RawBlockNode, 1);
	node->key = kvc_object_key_ref(key);
	g_hash_table_insert(rb->nodes, node->key, node);
	return node;
}

void
raw_block_drop_if_idle_locked(RawBlock *rb, RawBlockNode *node)
{
	if (!node->entry && node->locks == 0 && node->stores == 0 && !node->is_changing)
		g_hash_table_remove(rb->nodes, node->key);
}

RawBlockNode *
raw_block_await_change_locked(RawBlock *rb, const KvcObjectKey *key)
{
	RawBlockNode *node;

	while ((node = raw_block_find_locked(rb, key)) && node->is_changing)
		pthread_cond_wait(&rb->wake, &rb->lock);
	return node;
}

void
raw_block_end_node_change_locked(RawBlock *rb, RawBlockNode *node)
{
	node->is_changing = node->is_deleting = node->is_renaming = false;
	raw_block_drop_if_idle_locked(rb, node);
	pthread_cond_broadcast(&rb->wake);
}

RawBlockEntry *
raw_block_entry_locked(RawBlockNode *node)
{
	return node && node->entry && !node->entry->is_corrupt ? node->entry : NULL;
}

/* Counts what ENTRY adds to the store, or takes away. */
static void
count_locked(RawBlock *rb, const RawBlockEntry *entry, bool adds)
{
	size_t need = raw_block_entry_bytes(&entry->header);

	rb->objects = adds ? rb->objects + 1 : rb->objects - 1;
	rb->bytes_used += adds ? entry->header.bytes : -entry->header.bytes;
	rb->checkpoint_need = adds ? rb->checkpoint_need + need : rb->checkpoint_need - need;
}

RawBlockEntry *
raw_block_set_entry_locked(RawBlock *rb, RawBlockNode *node, RawBlockEntry *entry)
{
	RawBlockEntry *old = node->entry;

	if (old)
		count_locked(rb, old, false);
	if (entry)
		count_locked(rb, entry, true);
	if (entry && !old) {
		node->order = ++rb->last_order;
		RawBlockPlace place = {node->order, node};
		g_array_append_val(rb->order.places, place);
	} else if (!entry && old) {
		leave_order(&rb->order, node);
	}
	node->entry = entry;
	return old;
}

void
raw_block_set_header_locked(RawBlock *rb,
			    RawBlockEntry *entry,
			    const RawBlockHeader *header,
			    KvcXattrs *xattrs)
{
	RawBlockRun record = entry->header.record;
	KvcXattrs *old = entry->xattrs;

	count_locked(rb, entry, false);
	entry->header = *header;
	entry->xattrs = kvc_xattrs_ref(xattrs);
	count_locked(rb, entry, true);
	raw_block_space_give(&rb->space, record);
	kvc_xattrs_unref(old);
}

KvcL2ObjectInfo
raw_block_info_locked(const RawBlockEntry *entry)
{
	const RawBlockHeader *header = &entry->header;

	return (KvcL2ObjectInfo){
		.bytes = header->bytes,
		.mtime_ns = header->mtime_ns,
		.mode = header->mode,
		.uid = header->uid,
		.gid = header->gid,
		.xattrs = kvc_xattrs_ref(entry->xattrs),
		.version_ns = header->version_ns,
	};
}

RawBlockEntry *
raw_block_entry_new(const RawBlockHeader *header, KvcXattrs *xattrs)
{
	RawBlockEntry *entry = g_new0(RawBlockEntry, 1);

	entry->header = *header;
	entry->xattrs = kvc_xattrs_ref(xattrs);
	entry->refs = 1;
	return entry;
}

void
raw_block_entry_unref_locked(RawBlock *rb, RawBlockEntry *entry)
{
	if (--entry->refs > 0)
		return;
	raw_block_space_give(&rb->space, entry->header.data);
	raw_block_space_give(&rb->space, entry->header.record);
	kvc_xattrs_unref(entry->xattrs);
	g_free(entry);
}
