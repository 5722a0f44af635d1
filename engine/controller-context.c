/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/controller-context.h"

/* What a commit brought meanwhile is newer, and the index knows it as L1's. */
static bool
is_unknown_in_l1(void *user, KvcL1Object *object)
{
	KvcObjectInfo info;
	return kvc_key_index_get(user, object->key, &info) < 0 || !(info.tiers & KVC_TIER_L1);
}

void
kvc_controller_context_note_older(const KvcControllerContext *context,
				  KvcObjectKey *key,
				  uint32_t tiers)
{
	uint32_t adapters = tiers & ~KVC_TIER_L1;
	kvc_stats_add(context->stats, older_versions, (uint64_t)__builtin_popcount(adapters));
	/* Read-locked or not: who has it open keeps it, later ones must not get it. */
	if (tiers & KVC_TIER_L1)
		kvc_l1_manager_delete_if(context->l1, key, is_unknown_in_l1, context->index);
}
