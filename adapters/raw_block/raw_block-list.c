/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listings, in the order in which the keys were first stored; an object that replaces another keeps
 * its place. The cursor is the place of the last entry.
 */

#include <errno.h>
#include <inttypes.h>

#include "raw_block.h"

/* Nodes that are looked at without letting go of the lock. */
#define BATCH 10000

typedef struct Page {
	const KvcKeyScope *scope;
	KvcL2ListEntry *entries;
	size_t n, max;
	uint64_t order; /* of the last node that was looked at */
} Page;

static void
add(Page *page, const RawBlockNode *node)
{
	page->order = node->order;
	if (node->entry->is_corrupt || (page->scope && node->key->scope != page->scope))
		return;
	page->entries[page->n++] = (KvcL2ListEntry){
		.key = kvc_object_key_ref(node->key),
		.info = raw_block_info_locked(node->entry),
	};
}

/* false: that was the end. */
static bool
list_batch_locked(RawBlock *rb, Page *page)
{
	RawBlockNode *node = NULL;

	for (unsigned i = 0; i < BATCH && page->n < page->max; i++) {
		node = raw_block_next_node_locked(rb, page->order);
		if (!node)
			return false;
		add(page, node);
	}
	return raw_block_next_node_locked(rb, page->order) != NULL;
}

ssize_t
raw_block_list(
	RawBlock *rb, const KvcKeyScope *scope, char **cursor, KvcL2ListEntry *entries, size_t max)
{
	g_autofree char *from = g_steal_pointer(cursor);
	Page page = {.scope = scope, .entries = entries, .max = max};
	bool has_more = true;

	if (from && !g_ascii_string_to_unsigned(from, 10, 1, UINT64_MAX, &page.order, NULL))
		return -EINVAL;
	if (!raw_block_await_ready(rb))
		return -ECANCELED;
	while (has_more && page.n < max) {
		pthread_mutex_lock(&rb->lock);
		has_more = list_batch_locked(rb, &page);
		pthread_mutex_unlock(&rb->lock);
	}
	if (has_more)
		*cursor = g_strdup_printf("%" PRIu64, page.order);
	return (ssize_t)page.n;
}
