/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_REGISTRY_H
#define KVCACHE_REGISTRY_H

/*
 * What modules register from their constructors:
 *
 *	KVC_REGISTER(kvc_register_l2_adapter, fs_adapter_ops)
 *
 * Registration aborts on a duplicate name, an api or struct_size that does not fit, or a required
 *slot that is NULL: those are programming errors of the module. Registration is single-threaded
 *(before main), reading is from any thread.
 */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"
#include "kvcache/policy.h"

KVC_BEGIN_DECLS

void kvc_register_l2_adapter(const KvcL2AdapterOps *ops);
void kvc_register_store_policy(const KvcStorePolicy *policy);
void kvc_register_prefetch_policy(const KvcPrefetchPolicy *policy);
void kvc_register_eviction_policy(const KvcEvictionPolicy *policy);

#define KVC_REGISTER(function, object)                                                             \
	__attribute__((constructor)) static void kvc_register_constructor_##object(void)           \
	{                                                                                          \
		function(&object);                                                                 \
	}

/* By name; NULL with ERROR set that quotes NAME and lists the known ones. */
const KvcL2AdapterOps *kvc_find_l2_adapter(const char *name, GError **error);
const KvcStorePolicy *kvc_find_store_policy(const char *name, GError **error);
const KvcPrefetchPolicy *kvc_find_prefetch_policy(const char *name, GError **error);
const KvcEvictionPolicy *kvc_find_eviction_policy(const char *name, GError **error);

/* The I-th in order of name, NULL past the end: for --help, status and the contract tests. */
const KvcL2AdapterOps *kvc_l2_adapter_at(size_t i);
const KvcStorePolicy *kvc_store_policy_at(size_t i);
const KvcPrefetchPolicy *kvc_prefetch_policy_at(size_t i);
const KvcEvictionPolicy *kvc_eviction_policy_at(size_t i);

/*
 * Parses and checks a specification ("type=fs,base_path=/data" or JSON), finds the adapter and
 * opens it. NULL with ERROR set. OPTIONS_OUT gets the checked options (transfer full); they must
 * outlive the adapter.
 */
KvcL2Adapter *
kvc_l2_adapter_open(const char *specification, KvcOptions **options_out, GError **error);

KVC_END_DECLS

#endif
