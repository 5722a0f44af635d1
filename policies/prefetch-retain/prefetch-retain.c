/* SPDX-License-Identifier: Apache-2.0 */

/* Each key from the first adapter that has it, and what is loaded stays like what was written. */

#include <kvcache/registry.h>

static void
prefetch_retain_select_load_plan(KvcObjectKey *const *keys,
				 size_t n_keys,
				 const KvcBitmap *const *found,
				 const KvcAdapterDescriptor *adapters,
				 size_t n_adapters,
				 KvcBitmap **plan)
{
	(void)keys;
	(void)n_keys;
	(void)adapters;
	for (size_t a = 0; a < n_adapters; a++) {
		kvc_bitmap_or(plan[a], found[a]);
		for (size_t earlier = 0; earlier < a; earlier++)
			kvc_bitmap_andnot(plan[a], plan[earlier]);
	}
}

static const KvcPrefetchPolicy prefetch_retain_policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcPrefetchPolicy),
	.name = "retain",
	.summary = "each key from the first adapter that has it; kept like written objects",
	.select_load_plan = prefetch_retain_select_load_plan,
	.retain = true,
};

KVC_REGISTER(kvc_register_prefetch_policy, prefetch_retain_policy)
