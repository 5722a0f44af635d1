/* SPDX-License-Identifier: Apache-2.0 */

/* The part of --help that comes from the registries: adapters with their options, and policies. */

#include "fs/options-table.h"

#include "kvcache/registry.h"

static void
append_specs(GString *text, const KvcOptionSpec *specs)
{
	static const char *const types[] = {
		[KVC_OPTION_STRING] = "TEXT",	[KVC_OPTION_BOOL] = "BOOL",
		[KVC_OPTION_INT] = "N",		[KVC_OPTION_SIZE] = "SIZE",
		[KVC_OPTION_DOUBLE] = "NUMBER",
	};
	for (const KvcOptionSpec *spec = specs; spec != NULL && spec->name != NULL; spec++) {
		g_autofree char *left = g_strdup_printf("%s=%s", spec->name, types[spec->type]);
		g_string_append_printf(text, "      %-30s  %s", left, spec->help);
		if (spec->required)
			g_string_append(text, " (required)");
		else if (spec->default_value != NULL)
			g_string_append_printf(text, " (default: %s)", spec->default_value);
		g_string_append_c(text, '\n');
	}
}

static void
append_adapters(GString *text)
{
	const KvcL2AdapterOps *ops;

	g_string_append(text, "L2 adapters (--l2-adapter type=NAME,option=value,...):\n");
	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)) != NULL; i++) {
		g_string_append_printf(text, "  %-16s %s\n", ops->type_name, ops->summary);
		append_specs(text, ops->options);
	}
	g_string_append(text, "  every adapter\n");
	append_specs(text, kvc_l2_adapter_get_common_options());
}

#define APPEND_POLICIES(text, title, type, at)                                                     \
	do {                                                                                       \
		const type *policy_;                                                               \
		g_string_append(text, "\n" title ":\n");                                           \
		for (size_t i_ = 0; (policy_ = at(i_)) != NULL; i_++)                              \
			g_string_append_printf(text, "  %-16s %s\n", policy_->name,                \
					       policy_->summary);                                  \
	} while (0)

char *
kvcfs_options_describe_modules(void)
{
	GString *text = g_string_new(NULL);

	append_adapters(text);
	APPEND_POLICIES(text, "Store policies (--l2-store-policy)", KvcStorePolicy,
			kvc_store_policy_at);
	APPEND_POLICIES(text, "Prefetch policies (--l2-prefetch-policy)", KvcPrefetchPolicy,
			kvc_prefetch_policy_at);
	APPEND_POLICIES(text, "Eviction policies (--eviction-policy)", KvcEvictionPolicy,
			kvc_eviction_policy_at);
	return g_string_free(text, FALSE);
}
