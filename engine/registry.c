/* SPDX-License-Identifier: Apache-2.0 */

/*
 * One sorted array for each kind of module. Constructors fill them in an order nobody knows: those
 * of the program before main, so they are plain memory that needs no start; those of a module that
 * is loaded later (registry-load.c) in dlopen(). What is registered stays for ever.
 */

#include "kvcache/registry.h"

#include "engine/lock.h"
#include "engine/registry-private.h"

#include <errno.h>
#include <string.h>

#define MAX_MODULES 64

typedef struct Module {
	const char *name;
	const void *object;
} Module;

struct KvcRegistry {
	const char *kind; /* immutable */
	bool is_adapter;
	/* Protected by registries_lock. */
	size_t n;
	Module modules[MAX_MODULES]; /* in order of name */
};

static KvcMutex registries_lock = {PTHREAD_MUTEX_INITIALIZER, KVC_LOCK_REGISTRIES};
static KvcRegistry l2_adapters = {.kind = "L2 adapter", .is_adapter = true};
static KvcRegistry store_policies = {.kind = "store policy"};
static KvcRegistry prefetch_policies = {.kind = "prefetch policy"};
static KvcRegistry eviction_policies = {.kind = "eviction policy"};

static const KvcOptionSpec common_options[] = {
	/* kvc_l2_adapter_open() fills in the adapter's own default. */
	{.name = "shared",
	 .type = KVC_OPTION_BOOL,
	 .help = "others write to the same store: ask it about unknown keys"},
	{.name = "persist_enabled",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "keep what is stored when the adapter is closed"},
	{.name = "breaker_cooldown_s",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "1",
	 .min = 0.001,
	 .max = 3600,
	 .help = "seconds before a store that cannot be reached is tried again"},
	{.name = "breaker_max_s",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "60",
	 .min = 0.001,
	 .max = 3600,
	 .help = "what they are doubled up to"},
	{.name = NULL},
};

/* ---- Any kind ------------------------------------------------------------------------------ */

/* Where NAME is or belongs. */
static size_t
position_of_locked(const KvcRegistry *registry, const char *name)
{
	size_t i = 0;

	while (i < registry->n && strcmp(registry->modules[i].name, name) < 0)
		i++;
	return i;
}

static const void *
lookup_locked(const KvcRegistry *registry, const char *name)
{
	size_t i = position_of_locked(registry, name);
	bool is_there = i < registry->n && !strcmp(registry->modules[i].name, name);

	return is_there ? registry->modules[i].object : NULL;
}

static const void *
lookup(const KvcRegistry *registry, const char *name)
{
	kvc_mutex_lock(&registries_lock);
	const void *object = lookup_locked(registry, name);
	kvc_mutex_unlock(&registries_lock);
	return object;
}

bool
kvc_registry_has(const KvcRegistry *registry, const char *name)
{
	return lookup(registry, name) != NULL;
}

const char *
kvc_registry_kind(const KvcRegistry *registry)
{
	return registry->kind;
}

char *
kvc_registry_add(KvcRegistry *registry, const char *name, const void *object)
{
	char *problem = NULL;

	kvc_mutex_lock(&registries_lock);
	size_t i = position_of_locked(registry, name);
	Module *place = &registry->modules[i];
	if (lookup_locked(registry, name)) {
		problem = g_strdup_printf("%s \"%s\" is registered twice", registry->kind, name);
	} else if (registry->n == MAX_MODULES) {
		problem = g_strdup_printf("%s \"%s\": more than %d are registered", registry->kind,
					  name, MAX_MODULES);
	} else {
		memmove(place + 1, place, (registry->n - i) * sizeof(*place));
		*place = (Module){.name = name, .object = object};
		registry->n++;
	}
	kvc_mutex_unlock(&registries_lock);
	return problem;
}

static const void *
module_at(const KvcRegistry *registry, size_t i)
{
	kvc_mutex_lock(&registries_lock);
	const void *object = i < registry->n ? registry->modules[i].object : NULL;
	kvc_mutex_unlock(&registries_lock);
	return object;
}

static void
set_unknown(const KvcRegistry *registry, const char *name, const char *path, GError **error)
{
	const char *names[MAX_MODULES + 1] = {NULL};

	kvc_mutex_lock(&registries_lock);
	for (size_t i = 0; i < registry->n; i++)
		names[i] = registry->modules[i].name;
	kvc_mutex_unlock(&registries_lock);
	const char *nearest = kvc_nearest_name(name, names);
	g_autofree char *known = g_strjoinv(", ", (char **)names);
	g_set_error(error, KVC_OPTIONS_ERROR, ENOENT, "there is no %s \"%s\"%s%s%s; known: %s%s%s",
		    registry->kind, name, nearest ? ", did you mean \"" : "",
		    nearest ? nearest : "", nearest ? "\"?" : "", *known ? known : "none",
		    path ? "; there is no file " : "", path ? path : "");
}

static const void *
find_module(KvcRegistry *registry, const char *name, GError **error)
{
	g_autofree char *path = NULL;
	const void *object = lookup(registry, name);

	if (object)
		return object;
	/* One at a time: its constructor would wait for itself. */
	if (kvc_registry_is_loading()) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "%s \"%s\": a module that is being loaded cannot load one",
			    registry->kind, name);
		return NULL;
	}
	switch (kvc_registry_load(registry, registry->is_adapter, name, &path, error)) {
	case KVC_MODULE_LOADED:
		return lookup(registry, name);
	case KVC_MODULE_ABSENT:
		set_unknown(registry, name, path, error);
		return NULL;
	default:
		return NULL;
	}
}

/* Before main nobody could be told; a module that is being loaded is refused. */
static void
register_module(KvcRegistry *registry, const char *name, const void *object, char *problem)
{
	if (kvc_registry_is_loading()) {
		kvc_registry_note_loaded(registry, name, object, problem);
		return;
	}
	if (!problem)
		problem = kvc_registry_add(registry, name, object);
	if (problem)
		g_error("%s", problem);
}

/* What every vtable begins with: a module built against other headers has another one. */
static char *
find_header_problem(const KvcRegistry *registry,
		    uint32_t api,
		    uint32_t expected_api,
		    uint32_t struct_size,
		    size_t expected_size)
{
	if (api != expected_api)
		return g_strdup_printf("%s: api is %u, this engine has %u", registry->kind, api,
				       expected_api);
	if (struct_size != expected_size)
		return g_strdup_printf("%s: struct_size is %u, this engine has %zu", registry->kind,
				       struct_size, expected_size);
	return NULL;
}

static char *
find_name_problem(const KvcRegistry *registry, const char *name)
{
	return name && *name ? NULL : g_strdup_printf("%s: its name is missing", registry->kind);
}

/* Nothing else of the object is looked at before its header is known to be good. */
#define FIND_PROBLEM(registry, object, expected_api)                                               \
	((object) ? find_header_problem(registry, (object)->api, expected_api,                     \
					(object)->struct_size, sizeof(*(object)))                  \
		  : g_strdup_printf("%s: it is NULL", (registry)->kind))

#define REQUIRE_SLOT(problem, registry, object_name, object, slot)                                 \
	do {                                                                                       \
		if (!problem && !(object)->slot)                                                   \
			problem =                                                                  \
				g_strdup_printf("%s \"%s\": the required slot " #slot " is NULL",  \
						(registry)->kind, object_name);                    \
	} while (0)

/* ---- Each kind ----------------------------------------------------------------------------- */

void
kvc_register_l2_adapter(const KvcL2AdapterOps *ops)
{
	KvcRegistry *registry = &l2_adapters;
	char *problem = FIND_PROBLEM(registry, ops, KVC_L2_ADAPTER_API);
	const char *name = problem ? NULL : ops->type_name;

	if (!problem)
		problem = find_name_problem(registry, name);
	REQUIRE_SLOT(problem, registry, name, ops, open);
	REQUIRE_SLOT(problem, registry, name, ops, close);
	REQUIRE_SLOT(problem, registry, name, ops, get_store_event_fd);
	REQUIRE_SLOT(problem, registry, name, ops, get_lookup_and_lock_event_fd);
	REQUIRE_SLOT(problem, registry, name, ops, get_load_event_fd);
	REQUIRE_SLOT(problem, registry, name, ops, submit_store_task);
	REQUIRE_SLOT(problem, registry, name, ops, pop_completed_store_tasks);
	REQUIRE_SLOT(problem, registry, name, ops, submit_lookup_and_lock_task);
	REQUIRE_SLOT(problem, registry, name, ops, query_lookup_and_lock_result);
	REQUIRE_SLOT(problem, registry, name, ops, submit_unlock);
	REQUIRE_SLOT(problem, registry, name, ops, submit_load_task);
	REQUIRE_SLOT(problem, registry, name, ops, query_load_result);
	REQUIRE_SLOT(problem, registry, name, ops, describe);
	register_module(registry, name, ops, problem);
}

void
kvc_register_store_policy(const KvcStorePolicy *policy)
{
	KvcRegistry *registry = &store_policies;
	char *problem = FIND_PROBLEM(registry, policy, KVC_POLICY_API);
	const char *name = problem ? NULL : policy->name;

	if (!problem)
		problem = find_name_problem(registry, name);
	REQUIRE_SLOT(problem, registry, name, policy, select_store_targets);
	register_module(registry, name, policy, problem);
}

void
kvc_register_prefetch_policy(const KvcPrefetchPolicy *policy)
{
	KvcRegistry *registry = &prefetch_policies;
	char *problem = FIND_PROBLEM(registry, policy, KVC_POLICY_API);
	const char *name = problem ? NULL : policy->name;

	if (!problem)
		problem = find_name_problem(registry, name);
	REQUIRE_SLOT(problem, registry, name, policy, select_load_plan);
	register_module(registry, name, policy, problem);
}

void
kvc_register_eviction_policy(const KvcEvictionPolicy *policy)
{
	KvcRegistry *registry = &eviction_policies;
	char *problem = FIND_PROBLEM(registry, policy, KVC_POLICY_API);
	const char *name = problem ? NULL : policy->name;

	if (!problem)
		problem = find_name_problem(registry, name);
	REQUIRE_SLOT(problem, registry, name, policy, state_new);
	REQUIRE_SLOT(problem, registry, name, policy, state_free);
	REQUIRE_SLOT(problem, registry, name, policy, created);
	REQUIRE_SLOT(problem, registry, name, policy, touched);
	REQUIRE_SLOT(problem, registry, name, policy, removed);
	REQUIRE_SLOT(problem, registry, name, policy, select_victims);
	register_module(registry, name, policy, problem);
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

void
kvc_describe_count(KvcDescribeFunc func, void *user, const char *name, uint64_t count)
{
	char text[24];

	g_snprintf(text, sizeof(text), "%" G_GUINT64_FORMAT, count);
	func(user, name, text);
}

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
	if (adapter->ops != ops) { /* of a vtable that was copied under another name */
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "L2 adapter \"%s\": what it opened has the vtable of another type",
			    ops->type_name);
		(adapter->ops ? adapter->ops : ops)->close(adapter);
		return NULL;
	}
	*options_out = g_steal_pointer(&options);
	return adapter;
}
