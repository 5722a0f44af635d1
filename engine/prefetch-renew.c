/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a shared store has by now of a key that is known already (KVC_PREFETCH_RENEW). Somebody else
 * may have replaced or removed it since it was stored or loaded here: then what L1 has of it is not
 * served any more. Three things stay as they are: what was committed here and is not stored yet is
 * newer by definition, chunks of one hash are the same bytes wherever they are, and who has the
 * object open keeps it.
 */

#include "engine/prefetch-private.h"

typedef struct Renewal {
	KvcKeyIndex *index;
	uint32_t version; /* of the key when the store was asked */
	uint32_t tiers;	  /* adapters that may have it yet */
} Renewal;

/* Asked by L1 inside the lock in which a commit tells the index. */
static bool
is_what_was_asked_for(void *user, KvcL1Object *object)
{
	const Renewal *renewal = user;
	KvcObjectInfo info;
	return !object->is_dirty && !object->is_unreplicated &&
	       kvc_key_index_get(renewal->index, object->key, &info) == 0 &&
	       info.version == renewal->version && !(info.tiers & ~(renewal->tiers | KVC_TIER_L1));
}

/* True: L1 does not have it, or not any more. */
static bool
drop_from_l1(KvcPrefetchController *c, KvcObjectKey *key, Renewal *renewal)
{
	KvcL1Manager *l1 = c->context->l1;
	KvcL1Object *none;
	return kvc_l1_manager_delete_if(l1, key, is_what_was_asked_for, renewal) ||
	       kvc_l1_manager_reserve_read(l1, &key, 1, 0, &none, NULL) == 0;
}

typedef struct Removal {
	KvcKeyIndex *index;
	uint32_t tier, version;
	bool is_clean;
} Removal;

/* In the lock of L1 the chunk stays clean meanwhile. */
static bool
note_removed(void *user, KvcL1Object *object)
{
	Removal *removal = user;
	removal->is_clean = !object->is_dirty && !object->is_unreplicated;
	if (removal->is_clean)
		kvc_key_index_remove_elsewhere(removal->index, object->key, removal->tier,
					       removal->version);
	return false;
}

/* L1 serves it on; but what is not on its way to a store must not get there any more. */
static void
remove_chunk(KvcPrefetchController *c, KvcObjectKey *key, uint32_t tier, uint32_t version)
{
	Removal removal = {c->context->index, tier, version, false};
	kvc_l1_manager_delete_if(c->context->l1, key, note_removed, &removal);
	if (!removal.is_clean)
		kvc_key_index_remove_version(c->context->index, key, tier, version);
}

void
kvc_prefetch_renew_absent(KvcPrefetchController *c,
			  KvcObjectKey *key,
			  uint32_t tier,
			  const KvcPrefetchCell *cell)
{
	Renewal renewal = {c->context->index, cell->version, 0};
	KvcObjectInfo info;
	if (key->space == KVC_SPACE_CHUNK) {
		remove_chunk(c, key, tier, cell->version);
		return;
	}
	kvc_key_index_remove_version(c->context->index, key, tier, cell->version);
	if (kvc_key_index_get(c->context->index, key, &info) < 0 || info.tiers != KVC_TIER_L1)
		return;
	if (kvc_l1_manager_delete_if(c->context->l1, key, is_what_was_asked_for, &renewal))
		kvc_stats_add(c->context->stats, renewed_removed, 1);
}

void
kvc_prefetch_renew_found(KvcPrefetchController *c,
			 KvcObjectKey *key,
			 uint32_t tier,
			 const KvcL2ObjectInfo *found,
			 const KvcPrefetchCell *cell)
{
	KvcKeyIndex *index = c->context->index;
	KvcObjectAttributes attributes = kvc_l2_object_info_attributes(found);
	Renewal renewal = {index, cell->version, UINT32_MAX};
	if (key->space == KVC_SPACE_CHUNK ||
	    !kvc_key_index_is_other(index, key, tier, cell->version, found->bytes, &attributes) ||
	    !drop_from_l1(c, key, &renewal))
		return;
	if (kvc_key_index_renew(index, key, tier, cell->version, found->bytes, &attributes))
		kvc_stats_add(c->context->stats, renewed_replaced, 1);
}
