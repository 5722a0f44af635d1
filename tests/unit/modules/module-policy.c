/* SPDX-License-Identifier: Apache-2.0 */

/* A store policy out of tree: everything goes to the last adapter. */

#include <kvcache/registry.h>

G_GNUC_UNUSED static uint32_t
select_last(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	return n > 0 ? 1u << (n - 1) : 0;
}

static const KvcStorePolicy policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcStorePolicy),
	.name = NAME,
	.summary = "out of tree",
#ifndef NO_SLOT
	.select_store_targets = select_last,
#endif
};

KVC_REGISTER(kvc_register_store_policy, policy)
