/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Old names that stayed in L2: the object was renamed, no adapter could take it under its new name,
 * and an older version of it, or itself, is still there as the old one. That is better than
 * nothing, so it is kept and not shown. It goes when the new name is deleted or replaced, else it
 * would be there again after a restart, and when the new name is stored after all.
 */

#include "engine/deletion-log.h"
#include "engine/store-private.h"

/* One old name of one new name, the key of the table. */
typedef struct Left {
	KvcObjectKey *old_key; /* owned */
	uint32_t adapters;
} Left;

static void
left_free(void *data)
{
	Left *left = data;
	kvc_object_key_unref(left->old_key);
	g_free(left);
}

static void
lefts_free(void *data)
{
	g_slist_free_full(data, left_free);
}

GHashTable *
kvc_store_left_new(void)
{
	return g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
				     (GDestroyNotify)kvc_object_key_unref, lefts_free);
}

static void
prepend(KvcStoreController *c, KvcObjectKey *new_key, Left *left)
{
	void *key = NULL, *lefts = NULL;
	if (g_hash_table_steal_extended(c->left, new_key, &key, &lefts))
		kvc_object_key_unref(key);
	lefts = g_slist_prepend(lefts, left);
	g_hash_table_insert(c->left, kvc_object_key_ref(new_key), lefts);
}

/* Those of KEY (transfer full), no longer in the table. */
static GSList *
steal(KvcStoreController *c, const KvcObjectKey *key)
{
	void *new_key, *lefts;
	if (!g_hash_table_steal_extended(c->left, key, &new_key, &lefts))
		return NULL;
	kvc_object_key_unref(new_key);
	return lefts;
}

static void
end(KvcStoreController *c, Left *left)
{
	__atomic_fetch_sub(&c->n_renames, 1, __ATOMIC_RELAXED);
	left_free(left);
}

void
kvc_store_left_add(KvcStoreController *c,
		   KvcObjectKey *new_key,
		   KvcObjectKey *old_key,
		   uint32_t adapters)
{
	Left *left = g_new(Left, 1);
	left->old_key = kvc_object_key_ref(old_key);
	left->adapters = adapters;
	__atomic_fetch_add(&c->n_renames, 1, __ATOMIC_RELAXED);
	prepend(c, new_key, left);
}

/* Not where something newer has the old name by now, or is being renamed to it. */
static void
delete_left(KvcStoreController *c, const Left *left)
{
	KvcObjectInfo info;
	uint32_t adapters = left->adapters & (c->active | c->draining);
	if (kvc_key_index_get(c->context->index, left->old_key, &info) == 0)
		adapters &= ~(info.tiers | info.renaming);
	if (!adapters)
		return;
	uint64_t id = kvc_deletion_log_add(c->context->deletions, left->old_key, adapters);
	kvc_key_index_hide_from(c->context->index, left->old_key, adapters, id);
	kvc_store_record_delete(c, left->old_key, adapters, id);
}

void
kvc_store_left_delete(KvcStoreController *c, const KvcObjectKey *new_key)
{
	GSList *lefts = steal(c, new_key);
	while (lefts) {
		Left *left = lefts->data;
		lefts = g_slist_delete_link(lefts, lefts);
		delete_left(c, left);
		end(c, left);
	}
}

void
kvc_store_left_rename(KvcStoreController *c, const KvcObjectKey *key, KvcObjectKey *new_key)
{
	kvc_store_left_delete(c, new_key);
	GSList *lefts = steal(c, key);
	while (lefts) {
		Left *left = lefts->data;
		lefts = g_slist_delete_link(lefts, lefts);
		if (kvc_object_key_equal(left->old_key, new_key)) /* it is that again */
			end(c, left);
		else
			prepend(c, new_key, left);
	}
}

void
kvc_store_left_leave(KvcStoreController *c, size_t adapter)
{
	GHashTableIter iter;
	void *lefts;
	g_hash_table_iter_init(&iter, c->left);
	while (g_hash_table_iter_next(&iter, NULL, &lefts))
		for (GSList *link = lefts; link; link = link->next)
			((Left *)link->data)->adapters &= ~(1u << adapter);
}
