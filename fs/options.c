/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options.h"

#include <errno.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "kvcache/registry.h"

typedef enum {
	ARG_FLAG,	  /* bool */
	ARG_STRING,	  /* char * */
	ARG_LIST,	  /* GPtrArray *, repeatable */
	ARG_SIZE,	  /* uint64_t */
	ARG_DOUBLE,	  /* double */
	ARG_UINT,	  /* unsigned */
	ARG_SECONDS,	  /* int64_t, in ns */
	ARG_MILLISECONDS, /* int64_t, in ns */
} ArgType;

typedef struct OptionDef {
	const char *name;
	char short_name;
	ArgType type;
	size_t offset;
	double min, max;
	const char *default_value; /* NULL: none, or computed */
	const char *arg;
	const char *help;
} OptionDef;

#define AT(field) offsetof(KvcfsOptions, field)
#define DAY_SECONDS 86400.0

/* clang-format off */
static const OptionDef defs[] = {
	{"l1-size", 0, ARG_SIZE, AT(l1_size_bytes), 0, 0, NULL, "SIZE",
	 "Memory for the cache, K, M, G, T as powers of 1024 (default: a quarter of memory)"},
	{"l1-overrun", 0, ARG_SIZE, AT(l1_overrun_bytes), 0, 0, NULL, "SIZE",
	 "More of it, for files that outgrow what was reserved (default: a tenth, at least 256M)"},
	{"max-object-size", 0, ARG_SIZE, AT(max_object_size_bytes), 0, 0, NULL, "SIZE",
	 "Files beyond it are refused, EFBIG (default: an eighth of --l1-size)"},
	{"l2-adapter", 0, ARG_LIST, AT(l2_adapters), 0, 0, NULL, "SPEC",
	 "A slower store behind it, \"type=NAME,option=value\" (repeatable, in order of index)"},
	{"l2-store-policy", 0, ARG_STRING, AT(store_policy), 0, 0, "default", "NAME",
	 "Which objects are stored where"},
	{"l2-prefetch-policy", 0, ARG_STRING, AT(prefetch_policy), 0, 0, "default", "NAME",
	 "Which store an object is loaded from"},
	{"l2-prefetch-max-in-flight", 0, ARG_UINT, AT(prefetch_max_in_flight), 1, 4096, "8", "N",
	 "Prefetch requests at the same time"},
	{"l2-prefetch-load-timeout", 0, ARG_SECONDS, AT(load_timeout_ns), 0.001, DAY_SECONDS, "10",
	 "SECONDS", "Longest wait of an open for its load"},
	{"lookup-wait", 0, ARG_MILLISECONDS, AT(lookup_wait_ns), 0, 60000, "20", "MILLISECONDS",
	 "Longest wait of a lookup for shared stores"},
	{"eviction-policy", 0, ARG_STRING, AT(eviction_policy), 0, 0, "lru", "NAME",
	 "Which objects leave memory first"},
	{"eviction-trigger-watermark", 0, ARG_DOUBLE, AT(eviction_trigger_watermark), 0.01, 1, "0.8",
	 "FRACTION", "Memory in use at which eviction begins"},
	{"eviction-ratio", 0, ARG_DOUBLE, AT(eviction_ratio), 0.001, 1, "0.2", "FRACTION",
	 "Memory freed by one round of eviction"},
	{"io-mode", 0, ARG_STRING, AT(io_mode), 0, 0, "auto", "MODE",
	 "auto, passthrough (or do not start) or direct"},
	{"state-dir", 0, ARG_STRING, AT(state_dir), 0, 0, NULL, "DIR",
	 "State of this mount (default: /var/lib/kvcachefs/state/ID as root, else "
	 "$XDG_STATE_HOME/kvcachefs/ID)"},
	{"drain-timeout", 0, ARG_SECONDS, AT(drain_timeout_ns), 0, DAY_SECONDS, "60", "SECONDS",
	 "Longest time to store what is not stored yet before the end"},
	{"foreground", 'f', ARG_FLAG, AT(foreground), 0, 0, NULL, NULL,
	 "Stay in the foreground, log to stderr"},
	{"options", 'o', ARG_LIST, AT(mount_options), 0, 0, NULL, "OPT[,OPT...]",
	 "Mount options, as for mount(8) and FUSE"},
	{"version", 'V', ARG_FLAG, AT(version), 0, 0, NULL, NULL, "Print the version"},
	{"help", 'h', ARG_FLAG, AT(help), 0, 0, NULL, NULL, "Print this text"},
};
/* clang-format on */

static const char *const io_mode_names[] = {
	[KVCFS_IO_AUTO] = "auto",
	[KVCFS_IO_PASSTHROUGH] = "passthrough",
	[KVCFS_IO_DIRECT] = "direct",
	NULL,
};

static bool fail(GError **error, int code, const char *format, ...) G_GNUC_PRINTF(3, 4);

static bool
fail(GError **error, int code, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_autofree char *text = g_strdup_vprintf(format, args);
	va_end(args);
	g_set_error_literal(error, KVC_OPTIONS_ERROR, code, text);
	return false;
}

/* ---- Values -------------------------------------------------------------------------------- */

static bool
parse_number(const OptionDef *def, const char *text, double *value, GError **error)
{
	char *end;
	double number = g_ascii_strtod(text, &end);
	if (end == text || *end != '\0' || !isfinite(number))
		return fail(error, EINVAL, "--%s: \"%s\" is not a number", def->name, text);
	if (number < def->min || number > def->max)
		return fail(error, ERANGE, "--%s: %s is not within %g..%g", def->name, text,
			    def->min, def->max);
	if (def->type == ARG_UINT && number != floor(number))
		return fail(error, EINVAL, "--%s: \"%s\" is not a whole number", def->name, text);
	*value = number;
	return true;
}

static bool
parse_size_value(const OptionDef *def, const char *text, uint64_t *bytes, GError **error)
{
	if (!kvc_parse_size(text, bytes, error)) {
		g_prefix_error(error, "--%s: ", def->name);
		return false;
	}
	if (*bytes == 0)
		return fail(error, ERANGE, "--%s: must not be 0", def->name);
	return true;
}

static bool
set_value(KvcfsOptions *options, const OptionDef *def, const char *text, GError **error)
{
	void *field = (char *)options + def->offset;
	double number = 0;

	switch (def->type) {
	case ARG_FLAG:
		*(bool *)field = true;
		return true;
	case ARG_STRING:
		g_free(*(char **)field);
		*(char **)field = g_strdup(text);
		return true;
	case ARG_LIST:
		g_ptr_array_add(*(GPtrArray **)field, g_strdup(text));
		return true;
	case ARG_SIZE:
		return parse_size_value(def, text, field, error);
	default:
		break;
	}
	if (!parse_number(def, text, &number, error))
		return false;
	if (def->type == ARG_DOUBLE)
		*(double *)field = number;
	else if (def->type == ARG_UINT)
		*(unsigned *)field = (unsigned)number;
	else
		*(int64_t *)field = (int64_t)(number * (def->type == ARG_SECONDS ? 1e9 : 1e6));
	return true;
}

static const OptionDef *
find_def(const char *option)
{
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++) {
		bool is_long = g_str_has_prefix(option, "--");
		if (is_long ? strcmp(option + 2, defs[i].name) == 0
			    : option[1] == defs[i].short_name)
			return &defs[i];
	}
	return NULL;
}

static gboolean
on_option(const char *name, const char *value, void *user, GError **error)
{
	return set_value(user, find_def(name), value, error);
}

/* ---- Defaults ------------------------------------------------------------------------------ */

static void
min_with_file(uint64_t *bytes, const char *path)
{
	g_autofree char *text = NULL;
	if (!g_file_get_contents(path, &text, NULL, NULL))
		return;
	uint64_t limit = g_ascii_strtoull(text, NULL, 10); /* "max" is 0 */
	if (limit > 0 && limit < *bytes)
		*bytes = limit;
}

/* A quarter of the machine's memory, or of what the daemon's own memory cgroup may use. */
static uint64_t
default_l1_size(void)
{
	uint64_t bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
	g_autofree char *text = NULL;
	char *group = NULL;

	min_with_file(&bytes, "/sys/fs/cgroup/memory.max");
	if (g_file_get_contents("/proc/self/cgroup", &text, NULL, NULL))
		group = strstr(text, "0::/");
	if (group != NULL) {
		group += strlen("0::");
		*strchrnul(group, '\n') = '\0';
		for (char *slash; (slash = strrchr(group, '/')) != NULL; *slash = '\0') {
			g_autofree char *path =
				g_strdup_printf("/sys/fs/cgroup%s/memory.max", group);
			min_with_file(&bytes, path);
		}
	}
	return bytes / 4 & ~(uint64_t)4095;
}

static KvcfsOptions *
options_new(void)
{
	KvcfsOptions *options = g_new0(KvcfsOptions, 1);
	options->mount_options = g_ptr_array_new_with_free_func(g_free);
	options->l2_adapters = g_ptr_array_new_with_free_func(g_free);
	options->l1_size_bytes = default_l1_size();
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++)
		if (defs[i].default_value != NULL)
			set_value(options, &defs[i], defs[i].default_value, NULL);
	return options;
}

void
kvcfs_options_free(KvcfsOptions *options)
{
	if (options == NULL)
		return;
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++)
		if (defs[i].type == ARG_STRING)
			g_free(*(char **)((char *)options + defs[i].offset));
	g_ptr_array_unref(options->mount_options);
	g_ptr_array_unref(options->l2_adapters);
	g_free(options->mountpoint);
	g_free(options);
}

/* ---- Parsing ------------------------------------------------------------------------------- */

static GOptionContext *
context_new(KvcfsOptions *options)
{
	static GOptionEntry entries[G_N_ELEMENTS(defs) + 1];
	static char help[G_N_ELEMENTS(defs)][256];

	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++) {
		const char *value = defs[i].default_value;
		g_snprintf(help[i], sizeof help[i], "%s%s%s%s", defs[i].help,
			   value != NULL ? " (default: " : "", value != NULL ? value : "",
			   value != NULL ? ")" : "");
		entries[i] = (GOptionEntry){
			.long_name = defs[i].name,
			.short_name = defs[i].short_name,
			.flags = G_OPTION_FLAG_FILENAME |
				 (defs[i].type == ARG_FLAG ? G_OPTION_FLAG_NO_ARG : 0),
			.arg = G_OPTION_ARG_CALLBACK,
			.arg_data = (void *)on_option,
			.description = help[i],
			.arg_description = defs[i].arg,
		};
	}
	GOptionContext *context = g_option_context_new("MOUNTPOINT");
	GOptionGroup *group = g_option_group_new("main", "", "", options, NULL);
	g_option_group_add_entries(group, entries);
	g_option_context_set_main_group(context, group);
	g_option_context_set_help_enabled(context, FALSE);
	return context;
}

/* GOption's words for an unknown option, with the nearest known one. */
static void
improve_unknown_option(GError **error)
{
	const char *names[G_N_ELEMENTS(defs) + 1] = {NULL};
	const char *option = strchr((*error)->message, '-');
	const char *nearest = NULL;
	if (!g_error_matches(*error, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION) ||
	    option == NULL)
		return;
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++)
		names[i] = defs[i].name;
	g_autofree char *name = g_strndup(option, strcspn(option, "="));
	if (g_str_has_prefix(name, "--"))
		nearest = kvc_nearest_name(name + 2, names);
	GError *better = g_error_new(KVC_OPTIONS_ERROR, EINVAL, "unknown option \"%s\"%s%s%s", name,
				     nearest != NULL ? "; did you mean \"--" : " (see --help)",
				     nearest != NULL ? nearest : "", nearest != NULL ? "\"?" : "");
	g_clear_error(error);
	*error = better;
}

static bool
take_mountpoint(KvcfsOptions *options, int argc, char **argv, GError **error)
{
	int i = 1;
	if (i < argc && strcmp(argv[i], "--") == 0)
		i++;
	if (i == argc || argv[i][0] == '\0')
		return fail(error, EINVAL,
			    "no mount point given (kvcachefs [OPTION...] MOUNTPOINT, see --help)");
	if (i + 1 < argc)
		return fail(error, EINVAL, "one mount point expected, \"%s\" is too many",
			    argv[i + 1]);
	options->mountpoint = g_strdup(argv[i]);
	return true;
}

static bool
check_io_mode(const KvcfsOptions *options, GError **error)
{
	if (g_strv_contains(io_mode_names, options->io_mode))
		return true;
	return fail(error, EINVAL, "--io-mode: \"%s\" is none of auto, passthrough, direct",
		    options->io_mode);
}

static bool
check_policies(const KvcfsOptions *options, GError **error)
{
	if (kvc_find_store_policy(options->store_policy, error) == NULL) {
		g_prefix_error(error, "--l2-store-policy: ");
		return false;
	}
	if (kvc_find_prefetch_policy(options->prefetch_policy, error) == NULL) {
		g_prefix_error(error, "--l2-prefetch-policy: ");
		return false;
	}
	if (kvc_find_eviction_policy(options->eviction_policy, error) == NULL) {
		g_prefix_error(error, "--eviction-policy: ");
		return false;
	}
	return true;
}

/* The checked options of a specification and its adapter. */
static KvcOptions *
check_adapter(const char *specification, const KvcL2AdapterOps **ops, GError **error)
{
	g_autoptr(KvcOptions) parsed = kvc_options_parse(specification, error);
	if (parsed != NULL)
		*ops = kvc_find_l2_adapter(kvc_options_type(parsed), error);
	if (parsed == NULL || *ops == NULL ||
	    !kvc_options_check(parsed, (*ops)->options, kvc_l2_adapter_common_options, error)) {
		g_prefix_error(error, "--l2-adapter: ");
		return NULL;
	}
	return g_steal_pointer(&parsed);
}

bool
kvcfs_options_foreach_path(const KvcfsOptions *options,
			   KvcfsPathFunc func,
			   void *user,
			   GError **error)
{
	for (size_t i = 0; i + 1 < options->l2_adapters->len; i++) {
		const char *specification = options->l2_adapters->pdata[i];
		const KvcL2AdapterOps *ops = NULL;
		g_autoptr(KvcOptions) parsed = check_adapter(specification, &ops, error);
		if (parsed == NULL)
			return false;
		for (const KvcOptionSpec *spec = ops->options; spec != NULL && spec->name; spec++) {
			if (spec->type != KVC_OPTION_STRING ||
			    !g_str_has_suffix(spec->name, "path"))
				continue;
			const char *path = kvc_options_get_string(parsed, spec->name);
			if (path != NULL && !func(user, specification, spec->name, path, error))
				return false;
		}
	}
	return true;
}

/* The daemon changes its directory to "/": what a relative path means would change with it. */
static bool
check_absolute(
	void *user, const char *specification, const char *name, const char *path, GError **error)
{
	if (g_path_is_absolute(path))
		return true;
	return fail(error, EINVAL, "--l2-adapter: %s \"%s\" is not an absolute path", name, path);
}

KvcfsOptions *
kvcfs_options_parse(int argc, char **argv, GError **error)
{
	g_autoptr(KvcfsOptions) options = options_new();
	g_autoptr(GOptionContext) context = context_new(options);
	GError *failure = NULL;
	if (!g_option_context_parse(context, &argc, &argv, &failure)) {
		improve_unknown_option(&failure);
		g_propagate_error(error, failure);
		return NULL;
	}
	if (options->help || options->version)
		return g_steal_pointer(&options);
	g_ptr_array_add(options->l2_adapters, NULL);
	if (!take_mountpoint(options, argc, argv, error) || !check_io_mode(options, error) ||
	    !check_policies(options, error) ||
	    !kvcfs_options_foreach_path(options, check_absolute, NULL, error))
		return NULL;
	if (options->state_dir != NULL) {
		char *absolute = g_canonicalize_filename(options->state_dir, NULL);
		g_free(options->state_dir);
		options->state_dir = absolute;
	}
	return g_steal_pointer(&options);
}

void
kvcfs_options_fill_engine(const KvcfsOptions *options, KvcStorageManagerConfig *config)
{
	*config = (KvcStorageManagerConfig){
		.l1_size_bytes = options->l1_size_bytes,
		.l1_overrun_bytes = options->l1_overrun_bytes,
		.l2_adapters = (const char *const *)options->l2_adapters->pdata,
		.store_policy = options->store_policy,
		.prefetch_policy = options->prefetch_policy,
		.eviction_policy = options->eviction_policy,
		.eviction_trigger_watermark = options->eviction_trigger_watermark,
		.eviction_ratio = options->eviction_ratio,
		.prefetch_max_in_flight = options->prefetch_max_in_flight,
	};
}

void
kvcfs_options_fill_fs(const KvcfsOptions *options, KvcfsConfig *config)
{
	*config = (KvcfsConfig){
		.lookup_wait_ns = options->lookup_wait_ns,
		.load_timeout_ns = options->load_timeout_ns,
		.max_object_size_bytes = options->max_object_size_bytes,
	};
	for (KvcfsIoMode mode = KVCFS_IO_AUTO; mode <= KVCFS_IO_DIRECT; mode++)
		if (strcmp(options->io_mode, io_mode_names[mode]) == 0)
			config->io_mode = mode;
}

/* ---- Help ---------------------------------------------------------------------------------- */

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
		g_string_append_printf(text, "      %-28s %s", left, spec->help);
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
	append_specs(text, kvc_l2_adapter_common_options);
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
kvcfs_options_get_help(void)
{
	g_autoptr(KvcfsOptions) options = options_new();
	g_autoptr(GOptionContext) context = context_new(options);
	g_autoptr(GString) text = g_string_new(NULL);

	append_adapters(text);
	APPEND_POLICIES(text, "Store policies (--l2-store-policy)", KvcStorePolicy,
			kvc_store_policy_at);
	APPEND_POLICIES(text, "Prefetch policies (--l2-prefetch-policy)", KvcPrefetchPolicy,
			kvc_prefetch_policy_at);
	APPEND_POLICIES(text, "Eviction policies (--eviction-policy)", KvcEvictionPolicy,
			kvc_eviction_policy_at);
	g_option_context_set_summary(context, "Mounts a tiered LLM KV cache as a file system.");
	g_option_context_set_description(context, text->str);
	return g_option_context_get_help(context, TRUE, NULL);
}
