/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Names in stores of names and values. Those of chunks are LMCache's, verbatim; the model may have
 * any character but '@' in it, so one that begins like our own names has no place there.
 * A parser decodes generously, then formats what it got and compares.
 */

#include "kvcache/key-codec.h"

#include <string.h>

/* How our own begin. */
#define OWN "kvcfs:"

static char *
format_chunk(const KvcObjectKey *key)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *hash = NULL;

	if (g_str_has_prefix(scope->model_name, OWN))
		return NULL;
	hash = kvc_object_key_hash_hex(key);
	return g_strdup_printf("%s@%08x@%x@%s%s%s", scope->model_name, scope->kv_rank,
			       scope->object_group_id, hash, *scope->cache_salt ? "@" : "",
			       scope->cache_salt);
}

char *
kvc_store_name_format(const KvcObjectKey *key)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *name = NULL, *model = NULL, *rank = NULL;

	if (key->space == KVC_SPACE_CHUNK)
		return format_chunk(key);
	name = g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);
	if (key->space == KVC_SPACE_PLAIN)
		return g_strconcat(KVC_STORE_NAME_PLAIN, scope->model_name,
				   *scope->model_name ? "/" : "", name, NULL);
	model = kvc_model_path_format(scope);
	rank = kvc_rank_format(scope);
	return g_strconcat(KVC_STORE_NAME_PREFIX, model, "/", rank, "/", name, NULL);
}

static KvcObjectKey *
parse_chunk(const char *name)
{
	g_auto(GStrv) fields = g_strsplit(name, "@", -1);
	unsigned n = g_strv_length(fields);
	g_autoptr(KvcKeyScope) scope = NULL;
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	size_t digits;

	if (n < 4 || n > 5)
		return NULL;
	digits = strlen(fields[3]);
	if (digits > 2 * sizeof(hash) || !kvc_hex_decode(fields[3], digits, hash))
		return NULL;
	/* What is no number becomes another one, which the comparison tells. */
	scope = kvc_key_scope_new(fields[0], (uint32_t)g_ascii_strtoull(fields[1], NULL, 16),
				  (uint32_t)g_ascii_strtoull(fields[2], NULL, 16), fields[4], NULL);
	return scope ? kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, digits / 2, NULL) : NULL;
}

static KvcObjectKey *
parse_plain(const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
	g_autofree char *directory = g_strndup(path, slash ? (size_t)(slash - path) : 0);
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(directory, NULL);

	return scope ? kvc_object_key_new(scope, KVC_SPACE_PLAIN, name, strlen(name), NULL) : NULL;
}

/* Cuts the last component off PATH and returns it; NULL: there is only one, or PATH is NULL. */
static char *
cut_last(char *path)
{
	char *slash = path ? strrchr(path, '/') : NULL;

	if (!slash)
		return NULL;
	*slash = '\0';
	return slash + 1;
}

static KvcObjectKey *
parse_prefix(const char *path)
{
	g_autofree char *model = g_strdup(path);
	const char *name = cut_last(model), *rank = name ? cut_last(model) : NULL;
	g_autoptr(KvcKeyScope) scope = rank ? kvc_rank_parse(model, rank, NULL) : NULL;

	return scope ? kvc_object_key_new(scope, KVC_SPACE_PREFIX, name, strlen(name), NULL) : NULL;
}

KvcObjectKey *
kvc_store_name_parse(const char *name)
{
	g_autoptr(KvcObjectKey) key = NULL;
	g_autofree char *canonical = NULL;

	if (g_str_has_prefix(name, KVC_STORE_NAME_PLAIN))
		key = parse_plain(name + strlen(KVC_STORE_NAME_PLAIN));
	else if (g_str_has_prefix(name, KVC_STORE_NAME_PREFIX))
		key = parse_prefix(name + strlen(KVC_STORE_NAME_PREFIX));
	else
		key = parse_chunk(name);
	if (!key)
		return NULL;
	canonical = kvc_store_name_format(key);
	return g_strcmp0(canonical, name) ? NULL : g_steal_pointer(&key);
}
