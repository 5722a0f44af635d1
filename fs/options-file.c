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

typedef struct ConfigFile {
	KvcfsOptions *options;
	const char *path;
	char **lines;
	GKeyFile *keys;
} ConfigFile;

/* From 1; 0 when the key cannot be found again. The last one counts, as for GKeyFile. */
static unsigned
find_line(const ConfigFile *file, const char *key)
{
	unsigned line = 0;
	size_t len = strlen(key);
	for (unsigned i = 0; file->lines[i] != NULL; i++) {
		const char *p = file->lines[i] + strspn(file->lines[i], " \t");
		if (strncmp(p, key, len) == 0 && p[len + strspn(p + len, " \t")] == '=')
			line = i + 1;
	}
	return line;
}

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
set_flag(
	ConfigFile *file, const OptionDef *def, const char *origin, const char *key, GError **error)
{
	g_autoptr(GError) failure = NULL;
	bool is_on = g_key_file_get_boolean(file->keys, GROUP, key, &failure);
	if (failure != NULL)
		return kvcfs_options_fail(error, EINVAL, "--%s: neither true nor false", def->name);
	return !is_on || kvcfs_option_set(file->options, def, NULL, origin, error);
}

static bool
set_key(ConfigFile *file, const OptionDef *def, const char *key, GError **error)
{
	KvcfsOptions *options = file->options;
	unsigned line = find_line(file, key);
	g_autofree char *value = g_key_file_get_value(file->keys, GROUP, key, NULL);
	g_autofree char *origin = g_strdup_printf(KVCFS_ORIGIN_FILE "%s:%u", file->path, line);
	guint first = options->mount_options->len;
	bool is_set = def->type == ARG_FLAG
			      ? set_flag(file, def, origin, key, error)
			      : kvcfs_option_set(options, def, g_strchomp(value), origin, error);
	if (is_set && def->short_name == 'o')
		is_set = kvcfs_options_take_mount_options(options, first, origin, error);
	if (!is_set)
		g_prefix_error(error, "%s:%u: ", file->path, line);
	return is_set;
}

/* A key whose option is set on the command line; mount options add up instead. */
static bool
is_overridden(const ConfigFile *file, const OptionDef *def, const GHashTable *given)
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
compare_keys(const void *a, const void *b)
{
	unsigned long x, y;
	find_key(*(char *const *)a, &x);
	find_key(*(char *const *)b, &y);
	return x < y ? -1 : x > y;
}

static bool
set_keys(ConfigFile *file, GError **error)
{
	gsize n;
	g_auto(GStrv) keys = g_key_file_get_keys(file->keys, GROUP, &n, NULL);
	g_autoptr(GHashTable) given = collect_given(file->options);
	qsort(keys, n, sizeof *keys, compare_keys);
	for (gsize i = 0; i < n; i++) {
		unsigned long index;
		const OptionDef *def = find_key(keys[i], &index);
		if (def == NULL) {
			g_autofree char *suggestion = kvcfs_option_suggest("", keys[i]);
			return kvcfs_options_fail(error, EINVAL, "%s:%u: unknown key \"%s\"%s",
						  file->path, find_line(file, keys[i]), keys[i],
						  suggestion);
		}
		if (!is_overridden(file, def, given) && !set_key(file, def, keys[i], error))
			return false;
	}
	return true;
}

static bool
check_groups(const ConfigFile *file, GError **error)
{
	g_auto(GStrv) groups = g_key_file_get_groups(file->keys, NULL);
	for (char **group = groups; *group != NULL; group++)
		if (strcmp(*group, GROUP) != 0)
			return kvcfs_options_fail(
				error, EINVAL, "%s: unknown group [%s], only [" GROUP "] is known",
				file->path, *group);
	if (groups[0] == NULL)
		return kvcfs_options_fail(error, EINVAL, "%s: there is no group [" GROUP "]",
					  file->path);
	return true;
}

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
	gsize len;
	g_autofree char *text = read_text(path, &len, error);
	g_autoptr(GKeyFile) keys = g_key_file_new();
	g_autoptr(GError) failure = NULL;
	if (text == NULL)
		return false;
	if (!g_key_file_load_from_data(keys, text, len, G_KEY_FILE_NONE, &failure))
		return kvcfs_options_fail(error, EINVAL, "%s: %s", path, failure->message);
	g_auto(GStrv) lines = g_strsplit(text, "\n", -1);
	ConfigFile file = {options, path, lines, keys};
	return check_groups(&file, error) && set_keys(&file, error);
}
