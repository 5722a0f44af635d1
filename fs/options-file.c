/* SPDX-License-Identifier: Apache-2.0 */

/*
 * --config FILE: a key file with one group, [kvcachefs]. Its keys are the long options. A list is
 * one key NAME, or numbered keys NAME.0, NAME.1, ... in the order of the numbers, since a value may
 * have any character. Values are taken as they are: a backslash is for the option to see.
 */

#include "fs/options-table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define GROUP "kvcachefs"
/* Beyond it the file is something else. */
#define FILE_MAX_BYTES ((size_t)1 << 20)

/* A line "KEY = VALUE". */
typedef struct Entry {
	unsigned line; /* from 1 */
	char *key, *value;
	const OptionDef *def;
	unsigned long index; /* of a list */
} Entry;

typedef struct ConfigFile {
	KvcfsOptions *options;
	const char *path;
	GArray *entries; /* of Entry, in the order of the file, then of their indexes */
} ConfigFile;

static void
clear_entry(Entry *entry)
{
	g_free(entry->key);
	g_free(entry->value);
}

static bool fail_at(const ConfigFile *file, unsigned line, GError **error, const char *format, ...)
	G_GNUC_PRINTF(4, 5);

static bool
fail_at(const ConfigFile *file, unsigned line, GError **error, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_autofree char *text = g_strdup_vprintf(format, args);
	va_end(args);
	return kvcfs_options_fail(error, EINVAL, "%s:%u: %s", file->path, line, text);
}

/* ---- Lines --------------------------------------------------------------------------------- */

/* "NAME" or, for a list, "NAME.NUMBER"; *INDEX is the number. */
static const OptionDef *
find_key(const char *key, unsigned long *index)
{
	const char *dot = strrchr(key, '.');
	const OptionDef *def = kvcfs_option_find(key);
	*index = 0;
	if (def == NULL && dot != NULL && dot[1] != '\0' &&
	    dot[1 + strspn(dot + 1, "0123456789")] == '\0') {
		g_autofree char *name = g_strndup(key, (size_t)(dot - key));
		def = kvcfs_option_find(name);
		*index = strtoul(dot + 1, NULL, 10);
		if (def != NULL && def->type != ARG_LIST)
			def = NULL;
	}
	return def != NULL && kvcfs_option_is_command_only(def) ? NULL : def;
}

static bool
parse_group(const ConfigFile *file, unsigned line, const char *text, GError **error)
{
	if (strcmp(text, "[" GROUP "]") == 0)
		return true;
	return fail_at(file, line, error, "unknown group %s, only [" GROUP "] is known", text);
}

/* An option is there once, an entry of a list too. */
static bool
check_first(const ConfigFile *file, const Entry *entry, GError **error)
{
	for (guint i = 0; i < file->entries->len; i++) {
		const Entry *before = &g_array_index(file->entries, Entry, i);
		if (before->def == entry->def && before->index == entry->index)
			return fail_at(file, entry->line, error,
				       "\"%s\" is in line %u already, as \"%s\"", entry->key,
				       before->line, before->key);
	}
	return true;
}

/* TEXT is changed. */
static bool
parse_entry(ConfigFile *file, unsigned line, char *text, GError **error)
{
	char *equals = strchr(text, '=');
	if (equals == NULL || equals == text)
		return fail_at(file, line, error, "\"%s\" is not KEY = VALUE", text);
	*equals = '\0';
	Entry entry = {.line = line, .key = g_strchomp(text), .value = g_strchug(equals + 1)};
	entry.def = find_key(entry.key, &entry.index);
	if (entry.def == NULL) {
		g_autofree char *suggestion = kvcfs_option_suggest("", entry.key);
		return fail_at(file, line, error, "unknown key \"%s\"%s", entry.key, suggestion);
	}
	if (!check_first(file, &entry, error))
		return false;
	entry.key = g_strdup(entry.key);
	entry.value = g_strdup(entry.value);
	g_array_append_val(file->entries, entry);
	return true;
}

static bool
parse_lines(ConfigFile *file, const char *text, GError **error)
{
	g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
	bool has_group = false;
	for (unsigned i = 0; lines[i] != NULL; i++) {
		char *line = g_strstrip(lines[i]);
		if (line[0] == '\0' || line[0] == '#')
			continue;
		bool is_good = true;
		if (line[0] == '[') {
			is_good = parse_group(file, i + 1, line, error);
			has_group = true;
		} else if (!has_group) {
			is_good = fail_at(file, i + 1, error,
					  "\"%s\" is in no group: the line [" GROUP
					  "] is missing before it",
					  line);
		} else {
			is_good = parse_entry(file, i + 1, line, error);
		}
		if (!is_good)
			return false;
	}
	return has_group ||
	       kvcfs_options_fail(error, EINVAL, "%s: there is no group [" GROUP "]", file->path);
}

/* ---- Options ------------------------------------------------------------------------------- */

static bool
set_flag(ConfigFile *file, const Entry *entry, const char *origin, GError **error)
{
	bool is_on = strcmp(entry->value, "true") == 0;
	if (!is_on && strcmp(entry->value, "false") != 0)
		return kvcfs_options_fail(error, EINVAL, "%s: \"%s\" is neither true nor false",
					  entry->key, entry->value);
	return !is_on || kvcfs_option_set(file->options, entry->def, NULL, origin, error);
}

static bool
set_entry(ConfigFile *file, const Entry *entry, GError **error)
{
	KvcfsOptions *options = file->options;
	g_autofree char *origin =
		g_strdup_printf(KVCFS_ORIGIN_FILE "%s:%u", file->path, entry->line);
	guint first = options->mount_options->len;
	bool is_set = entry->def->type == ARG_FLAG
			      ? set_flag(file, entry, origin, error)
			      : kvcfs_option_set(options, entry->def, entry->value, origin, error);
	if (is_set && entry->def->short_name == 'o')
		is_set = kvcfs_options_take_mount_options(options, first, origin, error);
	if (!is_set)
		g_prefix_error(error, "%s:%u: ", file->path, entry->line);
	return is_set;
}

/* A key whose option is set on the command line; mount options add up instead. */
static bool
is_overridden(const OptionDef *def, const GHashTable *given)
{
	return def->short_name != 'o' && g_hash_table_contains((GHashTable *)given, def);
}

/* What is set before the file is read. */
static GHashTable *
collect_given(const KvcfsOptions *options)
{
	size_t n;
	const OptionDef *defs = kvcfs_option_table(&n);
	GHashTable *given = g_hash_table_new(NULL, NULL);
	for (size_t i = 0; i < n; i++)
		if (strcmp(kvcfs_option_origin(options, &defs[i], 0), KVCFS_ORIGIN_COMMAND_LINE) ==
		    0)
			g_hash_table_add(given, (void *)&defs[i]);
	return given;
}

static int
compare_entries(const void *a, const void *b)
{
	const Entry *x = a, *y = b;
	if (x->index != y->index)
		return x->index < y->index ? -1 : 1;
	return x->line < y->line ? -1 : x->line > y->line;
}

static bool
set_entries(ConfigFile *file, GError **error)
{
	g_autoptr(GHashTable) given = collect_given(file->options);
	g_array_sort(file->entries, compare_entries);
	for (guint i = 0; i < file->entries->len; i++) {
		const Entry *entry = &g_array_index(file->entries, Entry, i);
		if (!is_overridden(entry->def, given) && !set_entry(file, entry, error))
			return false;
	}
	return true;
}

/* ---- The file ------------------------------------------------------------------------------ */

/* Reads at most SIZE bytes of FD: how many, or -errno. */
static ssize_t
read_bytes(int fd, char *text, size_t size)
{
	size_t done = 0;
	ssize_t n = 1;
	while (n > 0 && done < size) {
		n = TEMP_FAILURE_RETRY(read(fd, text + done, size - done));
		done += n > 0 ? (size_t)n : 0;
	}
	return n < 0 ? -errno : (ssize_t)done;
}

/* What the file PATH has (transfer full, ends in NUL), NULL with ERROR set. */
static char *
read_text(const char *path, size_t *len, GError **error)
{
	struct stat st;
	/* A fifo must not keep the start. */
	int fd = open(path, O_RDONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
	if (fd < 0 || fstat(fd, &st) < 0) {
		kvcfs_options_fail(error, EINVAL, "--config: %s: %s", path, g_strerror(errno));
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	g_autofree char *text = g_malloc(FILE_MAX_BYTES + 1);
	ssize_t n = S_ISREG(st.st_mode) ? read_bytes(fd, text, FILE_MAX_BYTES + 1) : 0;
	bool is_good = false;
	close(fd);
	if (!S_ISREG(st.st_mode))
		kvcfs_options_fail(error, EINVAL, "--config: %s is not a regular file", path);
	else if (n < 0)
		kvcfs_options_fail(error, EINVAL, "--config: %s: %s", path, g_strerror((int)-n));
	else if ((size_t)n > FILE_MAX_BYTES)
		kvcfs_options_fail(error, EINVAL, "--config: %s has more than %zu bytes", path,
				   FILE_MAX_BYTES);
	else
		is_good = true;
	if (!is_good)
		return NULL;
	text[n] = '\0';
	*len = (size_t)n;
	return g_steal_pointer(&text);
}

bool
kvcfs_options_read_file(KvcfsOptions *options, GError **error)
{
	g_autofree char *path = g_canonicalize_filename(options->config_file, NULL);
	size_t len;
	g_autofree char *text = read_text(path, &len, error);
	if (text == NULL)
		return false;
	if (memchr(text, '\0', len) != NULL)
		return kvcfs_options_fail(error, EINVAL, "--config: %s is not a text file", path);
	g_autoptr(GArray) entries = g_array_new(FALSE, FALSE, sizeof(Entry));
	g_array_set_clear_func(entries, (GDestroyNotify)clear_entry);
	ConfigFile file = {options, path, entries};
	return parse_lines(&file, text, error) && set_entries(&file, error);
}
