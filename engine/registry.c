/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One sorted array for each kind of module. Constructors fill them before main in an order nobody
 * knows, so they are plain zeroed memory that needs no start; afterwards nothing changes them.
 */

#include "kvcache/registry.h"

#include <errno.h>
#include <string.h>

#define MAX_MODULES 64

typedef struct Module {
	const char *name;
	const void *object;
} Module;

typedef struct Registry {
	/* Immutable after the constructors ran. */
	const char *kind;
	size_t n;
	Module modules[MAX_MODULES]; /* in order of name */
} Registry;

static Registry l2_adapters = {.kind = "L2 adapter"};
static Registry store_policies = {.kind = "store policy"};
static Registry prefetch_policies = {.kind = "prefetch policy"};
static Registry eviction_policies = {.kind = "eviction policy"};

static const KvcOptionSpec common_options[] = {
	/* kvc_l2_adapter_open() fills in the adapter's own default. */
	{.name = "shared",
	 .type = KVC_OPTION_BOOL,
	 .help = "others write to the same store: ask it about unknown keys"},
	{.name = "persist_enabled",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "keep what is stored when the adapter is closed"},
	{.name = NULL},
};

/* ---- Any kind ------------------------------------------------------------------------------ */

/* Where NAME is or belongs. */
static size_t
position_of(const Registry *registry, const char *name)
{
	size_t i = 0;

	while (i < registry->n && strcmp(registry->modules[i].name, name) < 0)
		i++;
	return i;
}

static bool
is_at(const Registry *registry, size_t i, const char *name)
{
	return i < registry->n && !strcmp(registry->modules[i].name, name);
}

static void
register_module(Registry *registry, const char *name, const void *object)
{
	size_t i = position_of(registry, name);
	Module *place = &registry->modules[i];

	if (is_at(registry, i, name))
		g_error("%s \"%s\" is registered twice", registry->kind, name);
	if (registry->n == MAX_MODULES)
		g_error("%s \"%s\": more than %d are registered", registry->kind, name,
			MAX_MODULES);
	memmove(place + 1, place, (registry->n - i) * sizeof(*place));
	*place = (Module){.name = name, .object = object};
	registry->n++;
}

static const void *
module_at(const Registry *registry, size_t i)
{
	return i < registry->n ? registry->modules[i].object : NULL;
}

static const void *
find_module(const Registry *registry, const char *name, GError **error)
{
	const char *names[MAX_MODULES + 1] = {NULL};
	g_autofree char *known = NULL;
	const char *nearest;
	size_t i = position_of(registry, name);

	if (is_at(registry, i, name))
		return registry->modules[i].object;
	for (i = 0; i < registry->n; i++)
		names[i] = registry->modules[i].name;
	nearest = kvc_nearest_name(name, names);
	known = g_strjoinv(", ", (char **)names);
	g_set_error(error, KVC_OPTIONS_ERROR, ENOENT, "there is no %s \"%s\"%s%s%s; known: %s",
		    registry->kind, name, nearest ? ", did you mean \"" : "",
		    nearest ? nearest : "", nearest ? "\"?" : "", *known ? known : "none");
	return NULL;
}

/* What every vtable begins with; a module built against other headers is refused here. */
static void
check_header(const Registry *registry,
	     const char *name,
	     uint32_t api,
	     uint32_t expected_api,
	     uint32_t struct_size,
	     size_t expected_size)
{
	if (api != expected_api)
		g_error("%s: api is %u, this engine has %u", registry->kind, api, expected_api);
	if (struct_size != expected_size)
		g_error("%s: struct_size is %u, this engine has %zu", registry->kind, struct_size,
			expected_size);
	if (!name || !*name)
		g_error("%s: its name is missing", registry->kind);
}

#define CHECK_HEADER(registry, object, object_name, expected_api)                                  \
	check_header(registry, object_name, (object)->api, expected_api, (object)->struct_size,    \
		     sizeof(*(object)))

#define REQUIRE_SLOT(registry, object_name, object, slot)                                          \
	do {                                                                                       \
		if (!(object)->slot)                                                               \
			g_error("%s \"%s\": the required slot " #slot " is NULL",                  \
				(registry)->kind, object_name);                                    \
	} while (0)

/* ---- Each kind ----------------------------------------------------------------------------- */

void
kvc_register_l2_adapter(const KvcL2AdapterOps *ops)
{
	const char *name = ops->type_name;

	CHECK_HEADER(&l2_adapters, ops, name, KVC_L2_ADAPTER_API);
	REQUIRE_SLOT(&l2_adapters, name, ops, open);
	REQUIRE_SLOT(&l2_adapters, name, ops, close);
	REQUIRE_SLOT(&l2_adapters, name, ops, get_store_event_fd);
	REQUIRE_SLOT(&l2_adapters, name, ops, get_lookup_and_lock_event_fd);
	REQUIRE_SLOT(&l2_adapters, name, ops, get_load_event_fd);
	REQUIRE_SLOT(&l2_adapters, name, ops, submit_store_task);
	REQUIRE_SLOT(&l2_adapters, name, ops, pop_completed_store_tasks);
	REQUIRE_SLOT(&l2_adapters, name, ops, submit_lookup_and_lock_task);
	REQUIRE_SLOT(&l2_adapters, name, ops, query_lookup_and_lock_result);
	REQUIRE_SLOT(&l2_adapters, name, ops, submit_unlock);
	REQUIRE_SLOT(&l2_adapters, name, ops, submit_load_task);
	REQUIRE_SLOT(&l2_adapters, name, ops, query_load_result);
	REQUIRE_SLOT(&l2_adapters, name, ops, describe);
	register_module(&l2_adapters, name, ops);
}

void
kvc_register_store_policy(const KvcStorePolicy *policy)
{
	CHECK_HEADER(&store_policies, policy, policy->name, KVC_POLICY_API);
	REQUIRE_SLOT(&store_policies, policy->name, policy, select_store_targets);
	register_module(&store_policies, policy->name, policy);
}

void
kvc_register_prefetch_policy(const KvcPrefetchPolicy *policy)
{
	CHECK_HEADER(&prefetch_policies, policy, policy->name, KVC_POLICY_API);
	REQUIRE_SLOT(&prefetch_policies, policy->name, policy, select_load_plan);
	register_module(&prefetch_policies, policy->name, policy);
}

void
kvc_register_eviction_policy(const KvcEvictionPolicy *policy)
{
	const char *name = policy->name;

	CHECK_HEADER(&eviction_policies, policy, name, KVC_POLICY_API);
	REQUIRE_SLOT(&eviction_policies, name, policy, state_new);
	REQUIRE_SLOT(&eviction_policies, name, policy, state_free);
	REQUIRE_SLOT(&eviction_policies, name, policy, created);
	REQUIRE_SLOT(&eviction_policies, name, policy, touched);
	REQUIRE_SLOT(&eviction_policies, name, policy, removed);
	REQUIRE_SLOT(&eviction_policies, name, policy, select_victims);
	register_module(&eviction_policies, name, policy);
}

const KvcL2AdapterOps *
kvc_find_l2_adapter(const char *name, GError **error)
{
	return find_module(&l2_adapters, name, error);
}

const KvcStorePolicy *
kvc_find_store_policy(const char *name, GError **error)
{
	return find_module(&store_policies, name, error);
}

const KvcPrefetchPolicy *
kvc_find_prefetch_policy(const char *name, GError **error)
{
	return find_module(&prefetch_policies, name, error);
}

const KvcEvictionPolicy *
kvc_find_eviction_policy(const char *name, GError **error)
{
	return find_module(&eviction_policies, name, error);
}

const KvcL2AdapterOps *
kvc_l2_adapter_at(size_t i)
{
	return module_at(&l2_adapters, i);
}

const KvcStorePolicy *
kvc_store_policy_at(size_t i)
{
	return module_at(&store_policies, i);
}

const KvcPrefetchPolicy *
kvc_prefetch_policy_at(size_t i)
{
	return module_at(&prefetch_policies, i);
}

const KvcEvictionPolicy *
kvc_eviction_policy_at(size_t i)
{
	return module_at(&eviction_policies, i);
}

/* ---- Opening ------------------------------------------------------------------------------- */

const KvcOptionSpec *
kvc_l2_adapter_get_common_options(void)
{
	return common_options;
}

/* Against the common table, with what this adapter says of "shared" as its default. */
static bool
check_adapter_options(KvcOptions *options, const KvcL2AdapterOps *ops, GError **error)
{
	KvcOptionSpec common[G_N_ELEMENTS(common_options)];

	memcpy(common, common_options, sizeof(common));
	for (KvcOptionSpec *spec = common; spec->name; spec++)
		if (!strcmp(spec->name, "shared"))
			spec->default_value = ops->shared_by_default ? "true" : "false";
	return kvc_options_check(options, ops->options, common, error);
}

KvcL2Adapter *
kvc_l2_adapter_open(const char *specification, KvcOptions **options_out, GError **error)
{
	g_autoptr(KvcOptions) options = kvc_options_parse(specification, error);
	const KvcL2AdapterOps *ops;
	KvcL2Adapter *adapter;

	if (!options)
		return NULL;
	ops = kvc_find_l2_adapter(kvc_options_type(options), error);
	if (!ops || !check_adapter_options(options, ops, error))
		return NULL;
	adapter = ops->open(options, error);
	if (!adapter)
		return NULL;
	g_assert(adapter->ops == ops);
	*options_out = g_steal_pointer(&options);
	return adapter;
}
