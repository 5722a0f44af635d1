/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_REGISTRY_H
#define KVCACHE_REGISTRY_H

/*
 * What modules register from their constructors:
 *
 *	KVC_REGISTER(kvc_register_l2_adapter, fs_adapter_ops)
 *
 * A duplicate name, an api or struct_size that does not fit, or a required slot that is NULL are
 * programming errors of the module: before main they abort, a module that is loaded later is
 * refused. All functions are for any thread.
 *
 * A name that is not registered is looked for as NAME.so, for an adapter in
 * $libdir/kvcachefs/adapters (or the directory that the environment variable KVC_ADAPTER_DIR
 * names), for a policy in $libdir/kvcachefs/policies (KVC_POLICY_DIR). Such a file is a shared
 * object that registers itself in the same way; it is loaded once and stays.
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

/*
 * By name, loaded if need be (then it blocks); NULL with ERROR set that quotes NAME and lists the
 * known ones, or says why its file was refused.
 */
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
