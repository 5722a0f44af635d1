/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include "kvcache/key-codec.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* ---- Names in rank and prefix directories -------------------------------------------------- */

static bool
is_hash(const char *name, size_t len)
{
	if (len < 2 * KVC_CHUNK_HASH_MIN_BYTES || len > 2 * KVC_CHUNK_HASH_MAX_BYTES || len % 2)
		return false;
	return strspn(name, "0123456789abcdef") == len;
}

/* ".tmp" followed by 6 to 8 word characters at the end: mkstemp and friends. */
static bool
ends_in_tmp_and_word(const char *name)
{
	const char *tmp = NULL;
	for (const char *p = strstr(name, ".tmp"); p; p = strstr(p + 1, ".tmp"))
		tmp = p;
	if (!tmp)
		return false;
	const char *word = tmp + 4;
	size_t len = strlen(word);
	if (len < 6 || len > 8)
		return false;
	for (size_t i = 0; i < len; i++)
		if (!g_ascii_isalnum(word[i]) && word[i] != '_')
			return false;
	return true;
}

static bool
is_temporary(const char *name)
{
	static const char *const suffixes[] = {"~", ".tmp", ".temp", ".part", ".act"};
	if (name[0] == '.' || strstr(name, ".tmp."))
		return true;
	for (size_t i = 0; i < G_N_ELEMENTS(suffixes); i++)
		if (g_str_has_suffix(name, suffixes[i]))
			return true;
	return ends_in_tmp_and_word(name);
}

KvcfsNameClass
kvcfs_name_classify(const char *name)
{
	if (is_hash(name, strlen(name)))
		return KVCFS_NAME_HASH;
	return is_temporary(name) ? KVCFS_NAME_TEMPORARY : KVCFS_NAME_OTHER;
}

KvcObjectKey *
kvcfs_name_to_key(KvcKeyScope *scope, const char *name)
{
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	size_t len = strlen(name);
	if (!is_hash(name, len) || !kvc_hex_decode(name, len, hash))
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, len / 2, NULL);
}

/* ---- The model part ------------------------------------------------------------------------ */

/*
 * A model is cut at its '/'; what a path cannot carry is percent-encoded: '%' everywhere, a '/'
 * that leads, trails or follows another, a component "." or ".." (its first dot), a first component
 * ".kvcache" (its first dot), and a '@' cannot occur.
 */
static bool
must_encode(const char *model, size_t i)
{
	char c = model[i];
	if (c == '%')
		return true;
	if (c == '/')
		return i == 0 || model[i + 1] == '\0' || model[i - 1] == '/';
	if (c != '.' || (i > 0 && model[i - 1] != '/'))
		return false;
	size_t len = strcspn(model + i, "/");
	if (len <= 2 && strspn(model + i, ".") >= len)
		return true;
	return i == 0 && len == strlen(KVCFS_CONTROL_DIR) &&
	       strncmp(model, KVCFS_CONTROL_DIR, len) == 0;
}

char *
kvcfs_model_path_format(const KvcKeyScope *scope)
{
	const char *model = scope->model_name;
	GString *path = g_string_new(NULL);
	for (size_t i = 0; model[i]; i++) {
		if (must_encode(model, i))
			g_string_append_printf(path, "%%%02X", (unsigned char)model[i]);
		else
			g_string_append_c(path, model[i]);
	}
	return g_string_free(path, FALSE);
}

static char *
decode_model(const char *path)
{
	GString *model = g_string_new(NULL);
	for (size_t i = 0; path[i]; i++) {
		char c = path[i];
		if (c == '%') {
			int high = g_ascii_xdigit_value(path[i + 1]);
			int low = high < 0 ? -1 : g_ascii_xdigit_value(path[i + 2]);
			if (low < 0 || high * 16 + low == 0) {
				g_string_free(model, TRUE);
				return NULL;
			}
			c = (char)(high * 16 + low);
			i += 2;
		}
		g_string_append_c(model, c);
	}
	return g_string_free(model, FALSE);
}

/* ---- The rank component -------------------------------------------------------------------- */

char *
kvcfs_rank_format(const KvcKeyScope *scope)
{
	if (scope->cache_salt[0])
		return g_strdup_printf("@%08x@%x@%s", scope->kv_rank, scope->object_group_id,
				       scope->cache_salt);
	if (scope->object_group_id)
		return g_strdup_printf("@%08x@%x", scope->kv_rank, scope->object_group_id);
	return g_strdup_printf("@%08x", scope->kv_rank);
}

static KvcKeyScope *
parse_fields(const char *model, const char *component, GError **error)
{
	g_auto(GStrv) fields = g_strsplit(component + 1, "@", 4);
	guint n = g_strv_length(fields);
	guint64 rank = 0, group = 0;
	if (n < 1 || n > 3 ||
	    !g_ascii_string_to_unsigned(fields[0], 16, 0, G_MAXUINT32, &rank, NULL) ||
	    (n > 1 && !g_ascii_string_to_unsigned(fields[1], 16, 0, G_MAXUINT32, &group, NULL))) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s' is not a rank", component);
		return NULL;
	}
	return kvc_key_scope_new(model, (uint32_t)rank, (uint32_t)group, n > 2 ? fields[2] : "",
				 error);
}

KvcKeyScope *
kvcfs_rank_parse(const char *model_path, const char *component, GError **error)
{
	g_autofree char *model = decode_model(model_path);
	if (!model || component[0] != '@') {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s' is not a model", model_path);
		return NULL;
	}
	g_autoptr(KvcKeyScope) scope = parse_fields(model, component, error);
	if (!scope)
		return NULL;
	g_autofree char *canonical = kvcfs_rank_format(scope);
	g_autofree char *canonical_path = kvcfs_model_path_format(scope);
	if (strcmp(canonical, component) != 0 || strcmp(canonical_path, model_path) != 0) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s/%s' is spelled '%s/%s'", model_path,
			    component, canonical_path, canonical);
		return NULL;
	}
	return g_steal_pointer(&scope);
}
