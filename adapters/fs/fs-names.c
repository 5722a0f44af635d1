/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys and the paths of their files, relative to base_path:
 *
 *	space 0	the file name of LMCache (key-codec.h), directly in base_path
 *	space 2	prefix/<model path>/@%08x[@group[@salt]]/<name>
 *
 * The model path is the model name with its '/' as they are; what a path cannot carry is written as
 * %XX: a '/' at the start, at the end or behind another one, a component "." or "..", a first
 * component ".kvcache", and '%'. Both directions are exact: what does not come back is not ours.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#include "fs.h"

/* Writes the component TEXT of LEN bytes; IS_FIRST: it is the first one of the model. */
static void
append_component(GString *path, const char *text, size_t len, bool is_first)
{
	bool is_dots = (len == 1 && text[0] == '.') || (len == 2 && !memcmp(text, "..", 2));
	bool is_control = is_first && len == 8 && !memcmp(text, ".kvcache", 8);

	for (size_t i = 0; i < len; i++) {
		if (text[i] == '%')
			g_string_append(path, "%25");
		else if (text[i] == '.' && (is_dots || (is_control && i == 0)))
			g_string_append(path, "%2E");
		else
			g_string_append_c(path, text[i]);
	}
}

static char *
format_model_path(const char *model)
{
	GString *path = g_string_new(NULL);
	const char *at = model;

	while (*at) {
		/* A '/' separates only between two things; elsewhere it is part of the name. */
		if (*at == '/') {
			bool separates = at > model && at[-1] != '/' && at[1] != '\0';

			g_string_append(path, separates ? "/" : "%2F");
			at++;
			continue;
		}
		size_t len = strcspn(at, "/");
		append_component(path, at, len, at == model);
		at += len;
	}
	return g_string_free(path, FALSE);
}

static char *
parse_model_path(const char *path)
{
	g_autofree char *model = g_uri_unescape_string(path, NULL);
	g_autofree char *back = model ? format_model_path(model) : NULL;

	return back && !strcmp(back, path) ? g_steal_pointer(&model) : NULL;
}

static char *
format_rank_name(const KvcKeyScope *scope)
{
	if (*scope->cache_salt)
		return g_strdup_printf("@%08x@%x@%s", scope->kv_rank, scope->object_group_id,
				       scope->cache_salt);
	if (scope->object_group_id)
		return g_strdup_printf("@%08x@%x", scope->kv_rank, scope->object_group_id);
	return g_strdup_printf("@%08x", scope->kv_rank);
}

static bool
parse_hex(const char *text, uint32_t *value)
{
	char *end;

	if (!g_ascii_isxdigit(*text))
		return false;
	uint64_t number = g_ascii_strtoull(text, &end, 16);
	*value = (uint32_t)number;
	return *end == '\0' && number <= UINT32_MAX;
}

/* The scope of a rank directory, or NULL; only the spelling that would be written is taken. */
static KvcKeyScope *
parse_rank_name(const char *model, const char *rank_name)
{
	g_auto(GStrv) fields = g_strsplit(rank_name, "@", -1);
	unsigned n = g_strv_length(fields);
	uint32_t rank, group = 0;

	if (n < 2 || n > 4 || *fields[0] || !parse_hex(fields[1], &rank))
		return NULL;
	if (n > 2 && !parse_hex(fields[2], &group))
		return NULL;
	g_autoptr(KvcKeyScope) scope =
		kvc_key_scope_new(model, rank, group, n > 3 ? fields[3] : NULL, NULL);
	g_autofree char *back = scope ? format_rank_name(scope) : NULL;
	return back && !strcmp(back, rank_name) ? g_steal_pointer(&scope) : NULL;
}

static char *
format_prefix_path(const KvcObjectKey *key, int *errnum)
{
	g_autofree char *model = format_model_path(key->scope->model_name);
	g_autofree char *rank = format_rank_name(key->scope);
	g_autofree char *name = g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);
	int pid;

	if (fs_temp_name_parse(name, &pid)) {
		*errnum = EINVAL;
		return NULL;
	}
	return g_strdup_printf(FS_PREFIX_DIR "/%s/%s/%s", model, rank, name);
}

char *
fs_path_format(const KvcObjectKey *key, int *errnum)
{
	g_autoptr(GError) error = NULL;
	char *path;

	if (key->space == KVC_SPACE_PREFIX)
		return format_prefix_path(key, errnum);
	if (key->space != KVC_SPACE_CHUNK) {
		*errnum = ENOTSUP;
		return NULL;
	}
	path = kvc_lmcache_file_name_format(key, &error);
	if (!path)
		*errnum = error->code;
	return path;
}

char *
fs_path_format_legacy(const KvcObjectKey *key, const char *path)
{
	const char *at = strchr(path, '@');
	size_t rank_len = strlen("@0x01000100");

	if (key->space != KVC_SPACE_CHUNK || key->scope->object_group_id || !at)
		return NULL;
	/* Without its "@0" for the group. */
	return g_strdup_printf("%.*s%s", (int)(at - path + rank_len), path, at + rank_len + 2);
}

KvcObjectKey *
fs_prefix_parse(const char *model_path, const char *rank_name, const char *name)
{
	g_autofree char *model = parse_model_path(model_path);
	g_autoptr(KvcKeyScope) scope = model ? parse_rank_name(model, rank_name) : NULL;
	int pid;

	if (!scope || fs_temp_name_parse(name, &pid))
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_PREFIX, name, strlen(name), NULL);
}

char *
fs_temp_path_new(const char *path)
{
	static _Atomic uint64_t
		counter; /* of the process: several adapters may share a directory */
	const char *slash = strrchr(path, '/');

	return g_strdup_printf("%.*s" FS_TEMP_PREFIX "%d.%" G_GUINT64_FORMAT FS_TEMP_SUFFIX,
			       slash ? (int)(slash + 1 - path) : 0, path, (int)getpid(),
			       atomic_fetch_add(&counter, 1));
}

static const char *
skip_digits(const char *text)
{
	while (g_ascii_isdigit(*text))
		text++;
	return text;
}

bool
fs_temp_name_parse(const char *name, int *pid)
{
	if (!g_str_has_prefix(name, FS_TEMP_PREFIX))
		return false;
	const char *at = name + strlen(FS_TEMP_PREFIX);
	const char *end = skip_digits(at);
	if (end == at || end - at > 9 || *end != '.')
		return false;
	*pid = atoi(at);
	at = end + 1;
	end = skip_digits(at);
	return end > at && !strcmp(end, FS_TEMP_SUFFIX);
}
