/* SPDX-License-Identifier: Apache-2.0 */

/* Every object goes to every adapter and leaves L1 once it is there. */

#include <kvcache/registry.h>

static uint32_t
store_skip_l1_select_store_targets(const KvcObjectKey *key,
				   const KvcAdapterDescriptor *adapters,
				   size_t n)
{
	(void)key;
	(void)adapters;
	return (UINT32_C(1) << n) - 1; /* n is at most KVC_MAX_ADAPTERS */
}

static bool
store_skip_l1_select_l1_deletion(const KvcObjectKey *key)
{
	(void)key;
	return true;
}

static const KvcStorePolicy store_skip_l1_policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = "skip_l1",
	.summary = "every object to every adapter, then it is deleted from L1",
	.select_store_targets = store_skip_l1_select_store_targets,
	.select_l1_deletion = store_skip_l1_select_l1_deletion,
};

KVC_REGISTER(kvc_register_store_policy, store_skip_l1_policy)
