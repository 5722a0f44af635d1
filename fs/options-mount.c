/* SPDX-License-Identifier: Apache-2.0 */

/*
 * "-o OPT,OPT,...": what mount(8) and fstab pass, what libfuse takes, and our own options. And the
 * command line of mount.kvcachefs, which mount(8) runs.
 *
 * A comma separates options. mount(8) splits at each comma too and drops what it sees twice, so a
 * backslash does not get everything through it: in the value of one of our lists a semicolon
 * therefore stands for a comma.
 */

#include "fs/options-table.h"

#include "kvcache/registry.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

typedef enum {
	IS_PASSED,  /* libfuse and the kernel know it */
	IS_IGNORED, /* for mount(8), systemd or a tool that reads fstab */
} Use;

typedef struct MountOption {
	const char *name;
	Use use;
	bool has_value;
} MountOption;

/* clang-format off */
static const MountOption table[] = {
	{"allow_other", IS_PASSED},
	{"auto_unmount", IS_PASSED},
	{"default_permissions", IS_PASSED},
	{"fsname", IS_PASSED, true},
	{"subtype", IS_PASSED, true},
	{"ro", IS_PASSED},
	{"rw", IS_PASSED},
	{"suid", IS_PASSED},
	{"nosuid", IS_PASSED},
	{"dev", IS_PASSED},
	{"nodev", IS_PASSED},
	{"exec", IS_PASSED},
	{"noexec", IS_PASSED},
	{"sync", IS_PASSED},
	{"async", IS_PASSED},
	{"dirsync", IS_PASSED},
	{"atime", IS_PASSED},
	{"noatime", IS_PASSED},
	{"defaults", IS_IGNORED},
	{"auto", IS_IGNORED},
	{"noauto", IS_IGNORED},
	{"nofail", IS_IGNORED},
	{"_netdev", IS_IGNORED},
	{"user", IS_IGNORED},
	{"nouser", IS_IGNORED},
	{"users", IS_IGNORED},
	{"owner", IS_IGNORED},
	{"group", IS_IGNORED},
	{"relatime", IS_IGNORED},
};
/* clang-format on */

static const MountOption *
find_mount_option(const char *name)
{
	for (size_t i = 0; i < G_N_ELEMENTS(table); i++)
		if (strcmp(name, table[i].name) == 0)
			return &table[i];
	return NULL;
}

static bool
is_comment(const char *name)
{
	return g_ascii_strncasecmp(name, "x-", 2) == 0 || strcmp(name, "comment") == 0;
}

/* ---- Splitting ----------------------------------------------------------------------------- */

/* The option at *AT (transfer full), quoting kept; *AT moves behind the comma after it. */
static char *
next_item(const char **at)
{
	const char *start = *at, *p = start;
	while (*p != '\0' && *p != ',')
		p += p[0] == '\\' && p[1] != '\0' ? 2 : 1;
	*at = *p == ',' ? p + 1 : p;
	return g_strndup(start, (size_t)(p - start));
}

/* A backslash quotes a comma, a semicolon and itself. IN_LIST: a plain semicolon is a comma. */
static char *
unquote(const char *text, bool in_list)
{
	GString *value = g_string_new(NULL);
	for (const char *p = text; *p != '\0'; p++) {
		if (p[0] == '\\' && p[1] != '\0' && strchr(",;\\", p[1]) != NULL)
			g_string_append_c(value, *++p);
		else
			g_string_append_c(value, in_list && *p == ';' ? ',' : *p);
	}
	return g_string_free(value, FALSE);
}

/* What libfuse makes VALUE again of. */
static char *
quote(const char *value)
{
	GString *text = g_string_new(NULL);
	for (const char *p = value; *p != '\0'; p++) {
		if (*p == ',' || *p == '\\')
			g_string_append_c(text, '\\');
		g_string_append_c(text, *p);
	}
	return g_string_free(text, FALSE);
}

/* ---- Options ------------------------------------------------------------------------------- */

/* VALUE: it was given one, or NULL; what cannot have been meant for that is not suggested. */
static bool
fail_unknown(const char *name, const char *value, GError **error)
{
	const char *names[G_N_ELEMENTS(table) + 1] = {NULL};
	for (size_t i = 0, n = 0; i < G_N_ELEMENTS(table); i++)
		if (table[i].has_value == (value != NULL))
			names[n++] = table[i].name;
	if (strcmp(name, "remount") == 0)
		return kvcfs_options_fail(error, EINVAL,
					  "mount options: kvcachefs cannot be remounted");
	const char *nearest = kvc_nearest_name(name, names);
	if (nearest != NULL && strcmp(nearest, name) == 0)
		nearest = NULL; /* it exists, but not here */
	g_autofree char *suggestion = kvcfs_option_suggest("", name);
	if (nearest != NULL && suggestion[0] == '\0') {
		g_free(suggestion);
		suggestion = g_strdup_printf("; did you mean \"%s\"?", nearest);
	}
	return kvcfs_options_fail(error, EINVAL, "mount options: unknown option \"%s\"%s", name,
				  suggestion);
}

static bool
pass_to_fuse(KvcfsOptions *options,
	     const MountOption *option,
	     const char *value,
	     const char *origin,
	     GError **error)
{
	bool needs_value = option->has_value && (value == NULL || value[0] == '\0');
	if (needs_value || (!option->has_value && value != NULL))
		return kvcfs_options_fail(error, EINVAL, "mount options: \"%s\" %s", option->name,
					  needs_value ? "needs a value" : "takes no value");
	/* It is how a later start finds this mount again. */
	if (strcmp(option->name, "subtype") == 0 && strcmp(value, "kvcachefs") != 0)
		return kvcfs_options_fail(error, EINVAL,
					  "mount options: subtype \"%s\" is not kvcachefs", value);
	options->has_allow_other |= strcmp(option->name, "allow_other") == 0;
	if (strcmp(option->name, "ro") == 0 || strcmp(option->name, "rw") == 0)
		options->is_read_only = option->name[1] == 'o';
	g_autofree char *quoted = quote(value != NULL ? value : "");
	g_hash_table_insert(options->origins,
			    g_strdup_printf("options.%u", options->mount_options->len),
			    g_strdup(origin));
	g_ptr_array_add(options->mount_options,
			g_strconcat(option->name, value != NULL ? "=" : "", quoted, NULL));
	return true;
}

/* One of our own. Whether to stay in the foreground, mount(8) decides. */
static bool
set_own(KvcfsOptions *options,
	const OptionDef *def,
	const char *value,
	const char *origin,
	GError **error)
{
	bool is_config = strcmp(def->name, "config") == 0;
	if (def->type == ARG_FLAG || def->short_name == 'o' ||
	    (kvcfs_option_is_command_only(def) && !is_config))
		return fail_unknown(def->name, value, error);
	if (value == NULL)
		return kvcfs_options_fail(error, EINVAL, "mount options: \"%s\" needs a value",
					  def->name);
	if (kvcfs_option_set(options, def, value, origin, error))
		return true;
	g_prefix_error(error, "mount options: ");
	return false;
}

static bool
has_spec(const KvcOptionSpec *specs, const char *name)
{
	for (; specs != NULL && specs->name != NULL; specs++)
		if (strcmp(specs->name, name) == 0)
			return true;
	return false;
}

static bool
is_option_of_adapter(const char *name)
{
	const KvcL2AdapterOps *ops;
	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)) != NULL; i++)
		if (has_spec(ops->options, name))
			return true;
	return has_spec(kvc_l2_adapter_get_common_options(), name);
}

static bool
take_item(KvcfsOptions *options, const char *item, const char *origin, GError **error)
{
	size_t len = strcspn(item, "=");
	g_autofree char *name = g_strndup(item, len);
	const OptionDef *own = kvcfs_option_find(name);
	const MountOption *option = find_mount_option(name);
	g_autofree char *value = NULL;
	if (item[len] == '=')
		value = unquote(item + len + 1, own != NULL && own->type == ARG_LIST);
	if (own != NULL)
		return set_own(options, own, value, origin, error);
	if (is_comment(name) || (option != NULL && option->use == IS_IGNORED))
		return true;
	if (option == NULL && options->l2_adapters->len > 0 && is_option_of_adapter(name))
		return kvcfs_options_fail(error, EINVAL,
					  "mount options: unknown option \"%s\"; if it belongs to "
					  "l2-adapter, write a semicolon before it, not a comma",
					  name);
	if (option == NULL)
		return fail_unknown(name, value, error);
	return pass_to_fuse(options, option, value, origin, error);
}

bool
kvcfs_options_take_mount_options(KvcfsOptions *options,
				 guint first,
				 const char *origin,
				 GError **error)
{
	g_autoptr(GPtrArray) given = g_ptr_array_new_with_free_func(g_free);
	while (options->mount_options->len > first)
		g_ptr_array_add(given, g_ptr_array_steal_index(options->mount_options, first));
	for (guint i = 0; i < given->len; i++) {
		const char *at = given->pdata[i];
		while (*at != '\0') {
			g_autofree char *item = next_item(&at);
			if (*item != '\0' && !take_item(options, item, origin, error))
				return false;
		}
	}
	return true;
}

/* One mount option moves from the first place to the last one. */
static void
rotate_once(KvcfsOptions *options)
{
	GPtrArray *array = options->mount_options;
	g_autofree char *first = NULL, *origin = NULL;
	for (guint i = 0; i < array->len; i++) {
		g_autofree char *key = g_strdup_printf("options.%u", i);
		g_autofree char *before = i > 0 ? g_strdup_printf("options.%u", i - 1) : NULL;
		char *value = g_strdup(g_hash_table_lookup(options->origins, key));
		if (i == 0)
			origin = value;
		else
			g_hash_table_insert(options->origins, g_steal_pointer(&before), value);
	}
	first = g_ptr_array_steal_index(array, 0);
	g_hash_table_insert(options->origins, g_strdup_printf("options.%u", array->len),
			    g_steal_pointer(&origin));
	g_ptr_array_add(array, g_steal_pointer(&first));
}

void
kvcfs_options_put_last(KvcfsOptions *options, guint n)
{
	const GPtrArray *array = options->mount_options;
	for (guint i = 0; i < n; i++)
		rotate_once(options);
	for (guint i = 0; i < array->len; i++)
		if (strcmp(array->pdata[i], "ro") == 0 || strcmp(array->pdata[i], "rw") == 0)
			options->is_read_only = strcmp(array->pdata[i], "ro") == 0;
}

/* ---- mount.kvcachefs ----------------------------------------------------------------------- */

typedef struct Helper {
	GPtrArray *arguments; /* of char *: our command line */
	bool is_fake;
} Helper;

static bool
read_helper_flags(Helper *helper, int argc, char **argv, GError **error)
{
	int c;
	opterr = 0;
	optind = 1;
	while ((c = getopt(argc, argv, "sfnvhVN:o:t:")) >= 0) {
		if (c == '?')
			return kvcfs_options_fail(
				error, EINVAL, "unknown option \"%s\" of mount.kvcachefs",
				optopt != 0 ? (char[]){'-', (char)optopt, '\0'} : argv[optind - 1]);
		helper->is_fake |= c == 'f';
		if (c == 'o') {
			g_ptr_array_add(helper->arguments, g_strdup("-o"));
			g_ptr_array_add(helper->arguments, g_strdup(optarg));
		} else if (c == 'h' || c == 'V') {
			g_ptr_array_add(helper->arguments, g_strdup(c == 'h' ? "-h" : "-V"));
		}
	}
	return true;
}

/* "-oOPTIONS", as people write for mount(8), in two words: GOption knows no value in the same one.
 */
static void
separate_options(int *argc, char ***argv)
{
	GPtrArray *words = g_ptr_array_new();
	bool is_open = true;
	for (int i = 0; i < *argc; i++) {
		char *word = (*argv)[i];
		is_open = is_open && strcmp(word, "--") != 0;
		if (is_open && i > 0 && g_str_has_prefix(word, "-o") && word[2] != '\0') {
			g_ptr_array_add(words, g_strdup("-o"));
			g_ptr_array_add(words, g_strdup(word + 2));
		} else {
			g_ptr_array_add(words, g_strdup(word));
		}
	}
	*argc = (int)words->len;
	g_ptr_array_add(words, NULL);
	g_strfreev(*argv);
	*argv = (char **)g_ptr_array_free(words, FALSE);
}

bool
kvcfs_options_take_mount_helper(KvcfsOptions *options, int *argc, char ***argv, GError **error)
{
	g_autofree char *name = g_path_get_basename((*argv)[0]);
	if (!g_str_has_prefix(name, "mount.")) {
		separate_options(argc, argv);
		return true;
	}
	g_autoptr(GPtrArray) arguments = g_ptr_array_new_with_free_func(g_free);
	Helper helper = {.arguments = arguments};
	g_autofree char **moved = g_memdup2(*argv, sizeof *moved * ((size_t)*argc + 1));
	g_ptr_array_add(arguments, g_strdup((*argv)[0]));
	if (!read_helper_flags(&helper, *argc, moved, error))
		return false;
	options->is_fake = helper.is_fake;
	int left = *argc - optind;
	bool is_question = left == 0 && arguments->len > 1;
	if (left != 2 && !is_question)
		return kvcfs_options_fail(error, EINVAL,
					  "mount.kvcachefs takes a SOURCE and a MOUNTPOINT (or run "
					  "kvcachefs [OPTION...] MOUNTPOINT)");
	if (left == 2) {
		g_autofree char *source = quote(moved[optind]);
		/* First, so that an fsname among the options wins. */
		g_ptr_array_insert(arguments, 1, g_strdup("-o"));
		g_ptr_array_insert(arguments, 2, g_strconcat("fsname=", source, NULL));
		g_ptr_array_add(arguments, g_strdup("--"));
		g_ptr_array_add(arguments, g_strdup(moved[optind + 1]));
	}
	*argc = (int)arguments->len;
	g_ptr_array_add(arguments, NULL);
	g_strfreev(*argv);
	*argv = (char **)g_ptr_array_free(g_steal_pointer(&arguments), FALSE);
	return true;
}
