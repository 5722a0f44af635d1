/* SPDX-License-Identifier: Apache-2.0 */

/* Every object goes to every adapter and stays in L1. */

#include <kvcache/registry.h>

static uint32_t
store_default_select_store_targets(const KvcObjectKey *key,
				   const KvcAdapterDescriptor *adapters,
				   size_t n)
{
	(void)key;
	(void)adapters;
	return (UINT32_C(1) << n) - 1; /* n is at most KVC_MAX_ADAPTERS */
}

static const KvcStorePolicy store_default_policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = "default",
	.summary = "every object to every adapter; nothing is deleted from L1",
	.select_store_targets = store_default_select_store_targets,
};

KVC_REGISTER(kvc_register_store_policy, store_default_policy)
