/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/options-table.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "kvcache/registry.h"

#define AT(field) offsetof(KvcfsOptions, field)
#define DAY_SECONDS 86400.0
#define fail kvcfs_options_fail

/* clang-format off */
static const OptionDef defs[] = {
	{"l1-size", 0, ARG_SIZE, AT(l1_size_bytes), 0, 0, NULL, "SIZE",
	 "Memory for the cache, K, M, G, T as powers of 1024 (default: a quarter of memory)"},
	{"l1-overrun", 0, ARG_SIZE, AT(l1_overrun_bytes), 0, 0, NULL, "SIZE",
	 "More of it, for files that outgrow what was reserved (default: a tenth, at least 256M)"},
	{"max-object-size", 0, ARG_SIZE, AT(max_object_size_bytes), 0, 0, NULL, "SIZE",
	 "Files beyond it are refused, EFBIG (default: an eighth of L1)"},
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
	{"coherence", 0, ARG_SECONDS, AT(coherence_ns), 0, DAY_SECONDS, "1", "SECONDS",
	 "How old what is known of a shared store may be"},
	{"eviction-policy", 0, ARG_STRING, AT(eviction_policy), 0, 0, "lru", "NAME",
	 "Which objects leave memory first"},
	{"eviction-trigger-watermark", 0, ARG_DOUBLE, AT(eviction_trigger_watermark), 0.01, 1, "0.8",
	 "FRACTION", "Memory in use at which eviction begins"},
	{"eviction-ratio", 0, ARG_DOUBLE, AT(eviction_ratio), 0.001, 1, "0.2", "FRACTION",
	 "Memory freed by one round of eviction"},
	{"io-mode", 0, ARG_STRING, AT(io_mode), 0, 0, "auto", "MODE",
	 "auto, passthrough (or do not start) or direct"},
	{"readahead", 0, ARG_UINT, AT(readahead), 0, 1024, "4", "N",
	 "Entries of a prefix directory loaded ahead of the one that is opened, 0: none"},
	{"temp-names", 0, ARG_LIST, AT(temp_names), 0, 0, NULL, "PATTERN[,PATTERN...]",
	 "More names of temporary files, as patterns of a shell (repeatable)"},
	{"state-dir", 0, ARG_STRING, AT(state_dir), 0, 0, NULL, "DIR",
	 "State of this mount (default: /var/lib/kvcachefs/state/ID as root, else "
	 "$XDG_STATE_HOME/kvcachefs/ID)"},
	{"drain-timeout", 0, ARG_SECONDS, AT(drain_timeout_ns), 0, DAY_SECONDS, "60", "SECONDS",
	 "Longest time to store what is not stored yet before the end"},
	{"config", 0, ARG_STRING, AT(config_file), 0, 0, NULL, "FILE",
	 "Read options from FILE; those of the command line win"},
	{"foreground", 'f', ARG_FLAG, AT(foreground), 0, 0, NULL, NULL,
	 "Stay in the foreground"},
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

bool
kvcfs_options_fail(GError **error, int code, const char *format, ...)
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

	/* "-o" without options is what mount(8) may say. */
	if ((def->type == ARG_STRING || def->type == ARG_LIST) && *text == '\0' &&
	    def->short_name != 'o')
		return fail(error, EINVAL, "--%s: must not be empty", def->name);
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

/* ---- The table ----------------------------------------------------------------------------- */

const OptionDef *
kvcfs_option_table(size_t *n)
{
	*n = G_N_ELEMENTS(defs);
	return defs;
}

const OptionDef *
kvcfs_option_find(const char *name)
{
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++)
		if (strcmp(name, defs[i].name) == 0)
			return &defs[i];
	return NULL;
}

bool
kvcfs_option_is_command_only(const OptionDef *def)
{
	static const char *const names[] = {"help", "version", "config", NULL};
	return g_strv_contains(names, def->name);
}

char *
kvcfs_option_suggest(const char *dashes, const char *name)
{
	const char *names[G_N_ELEMENTS(defs) + 1] = {NULL};
	for (size_t i = 0; i < G_N_ELEMENTS(defs); i++)
		names[i] = defs[i].name;
	const char *nearest = kvc_nearest_name(name, names);
	if (nearest && strcmp(nearest, name) == 0)
		nearest = NULL; /* it exists, but not here */
	return nearest ? g_strdup_printf("; did you mean \"%s%s\"?", dashes, nearest)
		       : g_strdup("");
}

/* "NAME", or of a list's entry "NAME.I". */
static char *
origin_key(const OptionDef *def, guint i)
{
	return def->type == ARG_LIST ? g_strdup_printf("%s.%u", def->name, i) : g_strdup(def->name);
}

const char *
kvcfs_option_origin(const KvcfsOptions *options, const OptionDef *def, guint i)
{
	g_autofree char *key = origin_key(def, i);
	const char *origin = g_hash_table_lookup(options->origins, key);
	if (origin != NULL)
		return origin;
	bool is_computed = def->type == ARG_SIZE && def->default_value == NULL;
	return is_computed ? KVCFS_ORIGIN_COMPUTED : KVCFS_ORIGIN_DEFAULT;
}

bool
kvcfs_option_set(KvcfsOptions *options,
		 const OptionDef *def,
		 const char *text,
		 const char *origin,
		 GError **error)
{
	guint i = 0;
	if (def->type == ARG_LIST)
		i = (*(GPtrArray **)((char *)options + def->offset))->len;
	if (!set_value(options, def, text, error))
		return false;
	g_hash_table_insert(options->origins, origin_key(def, i), g_strdup(origin));
	return true;
}

/* What the option's value was found to be, too late to know where: ERROR gets the place in front.
 */
static bool
name_place(const KvcfsOptions *options, const char *name, guint i, GError **error)
{
	const char *origin = kvcfs_option_origin(options, kvcfs_option_find(name), i);
	if (g_str_has_prefix(origin, KVCFS_ORIGIN_FILE))
		g_prefix_error(error, "%s: ", origin + strlen(KVCFS_ORIGIN_FILE));
	return false;
}

static gboolean
on_option(const char *name, const char *value, void *user, GError **error)
{
	const OptionDef *def = NULL;
	if (g_str_has_prefix(name, "--"))
		def = kvcfs_option_find(name + 2);
	for (size_t i = 0; def == NULL; i++)
		if (defs[i].short_name == name[1])
			def = &defs[i];
	return kvcfs_option_set(user, def, value, KVCFS_ORIGIN_COMMAND_LINE, error);
}

/* ---- Defaults ------------------------------------------------------------------------------ */

static KvcfsOptions *
options_new(void)
{
	KvcfsOptions *options = g_new0(KvcfsOptions, 1);
	options->mount_options = g_ptr_array_new_with_free_func(g_free);
	options->l2_adapters = g_ptr_array_new_with_free_func(g_free);
	options->temp_names = g_ptr_array_new_with_free_func(g_free);
	options->origins = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
	options->l1_size_bytes = kvcfs_default_l1_size();
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
	g_ptr_array_unref(options->temp_names);
	g_hash_table_unref(options->origins);
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
	const char *option = strchr((*error)->message, '-');
	if (!g_error_matches(*error, G_OPTION_ERROR, G_OPTION_ERROR_UNKNOWN_OPTION) ||
	    option == NULL)
		return;
	g_autofree char *name = g_strndup(option, strcspn(option, "="));
	g_autofree char *suggestion =
		g_str_has_prefix(name, "--") ? kvcfs_option_suggest("--", name + 2) : g_strdup("");
	GError *better = g_error_new(KVC_OPTIONS_ERROR, EINVAL, "unknown option \"%s\"%s", name,
				     *suggestion ? suggestion : " (see --help)");
	g_clear_error(error);
	*error = better;
}

/* GOption takes "--foreground=false" and drops the value. */
static bool
check_flags(char **arguments, GError **error)
{
	for (char **word = arguments + 1; *word != NULL && strcmp(*word, "--") != 0; word++) {
		size_t len = strcspn(*word, "=");
		if (!g_str_has_prefix(*word, "--") || (*word)[len] == '\0')
			continue;
		g_autofree char *name = g_strndup(*word + 2, len - 2);
		const OptionDef *def = kvcfs_option_find(name);
		if (def != NULL && def->type == ARG_FLAG)
			return fail(error, EINVAL,
				    "--%s takes no value (given: true, left out: false)", name);
	}
	return true;
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
		return fail(
			error, EINVAL,
			"one mount point expected, \"%s\" is too many (with a source it is mount "
			"-t kvcachefs, and there is no remount)",
			argv[i + 1]);
	options->mountpoint = g_strdup(argv[i]);
	return true;
}

static bool
check_io_mode(const KvcfsOptions *options, GError **error)
{
	if (g_strv_contains(io_mode_names, options->io_mode))
		return true;
	fail(error, EINVAL, "--io-mode: \"%s\" is none of auto, passthrough, direct",
	     options->io_mode);
	return name_place(options, "io-mode", 0, error);
}

static bool
check_policies(const KvcfsOptions *options, GError **error)
{
	const char *wrong = NULL;
	if (kvc_find_store_policy(options->store_policy, error) == NULL)
		wrong = "l2-store-policy";
	else if (kvc_find_prefetch_policy(options->prefetch_policy, error) == NULL)
		wrong = "l2-prefetch-policy";
	else if (kvc_find_eviction_policy(options->eviction_policy, error) == NULL)
		wrong = "eviction-policy";
	if (wrong == NULL)
		return true;
	g_prefix_error(error, "--%s: ", wrong);
	return name_place(options, wrong, 0, error);
}

KvcOptions *
kvcfs_check_adapter(const char *specification, const KvcL2AdapterOps **ops, GError **error)
{
	g_autoptr(KvcOptions) parsed = kvc_options_parse(specification, error);
	if (parsed != NULL)
		*ops = kvc_find_l2_adapter(kvc_options_type(parsed), error);
	if (parsed == NULL || *ops == NULL ||
	    !kvc_options_check(parsed, (*ops)->options, kvc_l2_adapter_get_common_options(),
			       error)) {
		return NULL;
	}
	return g_steal_pointer(&parsed);
}

static bool
foreach_path_of(const char *specification, KvcfsPathFunc func, void *user, GError **error)
{
	const KvcL2AdapterOps *ops = NULL;
	g_autoptr(KvcOptions) parsed = kvcfs_check_adapter(specification, &ops, error);
	if (parsed == NULL)
		return false;
	for (const KvcOptionSpec *spec = ops->options; spec != NULL && spec->name; spec++) {
		if (spec->type != KVC_OPTION_STRING || !g_str_has_suffix(spec->name, "path"))
			continue;
		const char *path = kvc_options_get_string(parsed, spec->name);
		if (path != NULL && !func(user, specification, spec->name, path, error))
			return false;
	}
	return true;
}

/* The type of a specification that may be malformed; NULL: none that is registered. */
static const char *
find_type(const char *specification)
{
	g_autoptr(KvcOptions) parsed = kvc_options_parse(specification, NULL);
	const KvcL2AdapterOps *ops;
	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)) != NULL; i++) {
		g_autofree char *begin = g_strdup_printf("type=%s,", ops->type_name);
		if (parsed ? strcmp(kvc_options_type(parsed), ops->type_name) == 0
			   : g_str_has_prefix(specification, begin))
			return ops->type_name;
	}
	return NULL;
}

/*
 * "the 2nd --l2-adapter (fs)" for errors (transfer full). Nothing else of a specification is told:
 * what is malformed may have a password in it, anywhere.
 */
static char *
describe_adapter(const KvcfsOptions *options, guint i)
{
	static const char *const ends[] = {"st", "nd", "rd"};
	const char *type = find_type(options->l2_adapters->pdata[i]);
	const char *end = i % 10 < 3 && i / 10 % 10 != 1 ? ends[i % 10] : "th";
	g_autofree char *which = options->l2_adapters->len > 2
					 ? g_strdup_printf("the %u%s ", i + 1, end)
					 : g_strdup("");
	return g_strconcat(which, "--l2-adapter", type != NULL ? " (" : "",
			   type != NULL ? type : "", type != NULL ? ")" : "", NULL);
}

bool
kvcfs_options_foreach_path(const KvcfsOptions *options,
			   KvcfsPathFunc func,
			   void *user,
			   GError **error)
{
	for (guint i = 0; i + 1 < options->l2_adapters->len; i++) {
		if (foreach_path_of(options->l2_adapters->pdata[i], func, user, error))
			continue;
		g_autofree char *which = describe_adapter(options, i);
		g_prefix_error(error, "%s: ", which);
		return name_place(options, "l2-adapter", i, error);
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
	return fail(error, EINVAL, "%s \"%s\" is not an absolute path", name, path);
}

/* A larger one could never be loaded again. */
static bool
check_max_object_size(const KvcfsOptions *options, GError **error)
{
	if (options->max_object_size_bytes <= options->l1_size_bytes)
		return true;
	fail(error, EINVAL,
	     "--max-object-size: %" PRIu64 " bytes are more than L1 holds (--l1-size, %" PRIu64
	     " bytes)",
	     options->max_object_size_bytes, options->l1_size_bytes);
	return name_place(options, "max-object-size", 0, error);
}

/* Behind the bracket expression that P begins, NULL: it is not closed. */
static const char *
skip_bracket(const char *p)
{
	p += p[1] == '!' || p[1] == '^' ? 2 : 1;
	/* A bracket that comes first is one of the characters. */
	for (bool is_first = true; *p != '\0' && (*p != ']' || is_first); is_first = false) {
		const char *end = NULL;
		if (p[0] == '[' && p[1] != '\0' && strchr(":.=", p[1]) != NULL)
			end = strstr(p + 2, (char[]){p[1], ']', '\0'});
		if (end != NULL)
			p = end + 2;
		else
			p += p[0] == '\\' && p[1] != '\0' ? 2 : 1;
	}
	return *p == ']' ? p + 1 : NULL;
}

/* What is wrong with PATTERN, NULL: it can match a name. fnmatch() would silently match nothing. */
static const char *
find_pattern_error(const char *pattern)
{
	if (*pattern == '\0' || strchr(pattern, '/') != NULL)
		return "is no pattern of a name";
	for (const char *p = pattern; p != NULL && *p != '\0';) {
		if (*p == '[')
			p = skip_bracket(p);
		else if (p[0] == '\\' && p[1] == '\0')
			return "ends in a backslash";
		else
			p += *p == '\\' ? 2 : 1;
		if (p == NULL)
			return "has a [ that is not closed";
	}
	return NULL;
}

/* "a,b" in one entry becomes two; a pattern must be able to name a file. */
static bool
split_temp_names(KvcfsOptions *options, GError **error)
{
	GPtrArray *patterns = g_ptr_array_new_with_free_func(g_free);
	bool is_good = true;
	for (guint i = 0; is_good && i < options->temp_names->len; i++) {
		g_auto(GStrv) parts = g_strsplit(options->temp_names->pdata[i], ",", -1);
		for (char **part = parts; is_good && *part != NULL; part++) {
			const char *wrong = find_pattern_error(*part);
			is_good = wrong == NULL;
			if (!is_good) {
				fail(error, EINVAL, "--temp-names: \"%s\" %s", *part, wrong);
				name_place(options, "temp-names", i, error);
			}
			g_ptr_array_add(patterns, g_strdup(*part));
		}
	}
	g_ptr_array_unref(options->temp_names);
	options->temp_names = patterns;
	return is_good;
}

/* What the command line, the mount options and the file say together. */
static bool
complete(KvcfsOptions *options, GError **error)
{
	if (!kvcfs_options_take_mount_options(options, 0, KVCFS_ORIGIN_COMMAND_LINE, error))
		return false;
	guint n_given = options->mount_options->len;
	if ((options->config_file != NULL && !kvcfs_options_read_file(options, error)) ||
	    !split_temp_names(options, error))
		return false;
	kvcfs_options_put_last(options, n_given);
	g_ptr_array_add(options->l2_adapters, NULL);
	g_ptr_array_add(options->temp_names, NULL);
	if (options->max_object_size_bytes == 0)
		options->max_object_size_bytes = options->l1_size_bytes / 8;
	if (options->l1_overrun_bytes == 0)
		options->l1_overrun_bytes = kvc_l1_overrun_default(options->l1_size_bytes);
	if (!kvcfs_check_l1_size(options->l1_size_bytes, error) ||
	    !check_max_object_size(options, error) || !check_io_mode(options, error) ||
	    !check_policies(options, error) ||
	    !kvcfs_options_foreach_path(options, check_absolute, NULL, error))
		return false;
	if (options->state_dir != NULL) {
		char *absolute = g_canonicalize_filename(options->state_dir, NULL);
		g_free(options->state_dir);
		options->state_dir = absolute;
	}
	return true;
}

KvcfsOptions *
kvcfs_options_parse(int argc, char **argv, GError **error)
{
	g_autoptr(KvcfsOptions) options = options_new();
	g_autoptr(GOptionContext) context = context_new(options);
	g_auto(GStrv) arguments = g_strdupv(argv);
	if (!kvcfs_options_take_mount_helper(options, &argc, &arguments, error) ||
	    !check_flags(arguments, error))
		return NULL;
	/* GOption moves what it leaves, and owns nothing of it. */
	g_autofree char **rest = g_memdup2(arguments, sizeof *rest * ((size_t)argc + 1));
	GError *failure = NULL;
	if (!g_option_context_parse(context, &argc, &rest, &failure)) {
		improve_unknown_option(&failure);
		g_propagate_error(error, failure);
		return NULL;
	}
	if (options->help || options->version)
		return g_steal_pointer(&options);
	if (!take_mountpoint(options, argc, rest, error) || !complete(options, error))
		return NULL;
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
		.coherence_ns = options->coherence_ns,
		.max_object_size_bytes = options->max_object_size_bytes,
		.readahead = options->readahead,
	};
	for (KvcfsIoMode mode = KVCFS_IO_AUTO; mode <= KVCFS_IO_DIRECT; mode++)
		if (strcmp(options->io_mode, io_mode_names[mode]) == 0)
			config->io_mode = mode;
}

char *
kvcfs_options_get_help(void)
{
	g_autoptr(KvcfsOptions) options = options_new();
	g_autoptr(GOptionContext) context = context_new(options);
	g_autofree char *modules = kvcfs_options_describe_modules();

	g_option_context_set_summary(context, "Mounts a tiered LLM KV cache as a file system.");
	g_option_context_set_description(context, modules);
	return g_option_context_get_help(context, TRUE, NULL);
}
