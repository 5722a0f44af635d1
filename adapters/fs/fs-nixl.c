/* SPDX-License-Identifier: Apache-2.0 */

/*
 * File names of LMCache's nixl_store_dynamic:
 *
 *	<model, '/' as "--">_%08x(rank)_%x(group)_<hash hex>[@<salt>].bin
 *
 * Read from the right, since a model may have '_' in it. A model that "--" does not bring back
 * ("a--b", "a-/b") has no such name.
 */

#include <string.h>

#include <kvcache/key-codec.h>

#include "fs.h"

#define SUFFIX ".bin"
#define SLASH "--"
#define RANK_DIGITS 8

static char *
replace(const char *text, const char *from, const char *to)
{
	g_auto(GStrv) pieces = g_strsplit(text, from, -1);

	return g_strjoinv(to, pieces);
}

char *
fs_nixl_name_format(const KvcObjectKey *key)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *model = replace(scope->model_name, "/", SLASH);
	g_autofree char *back = replace(model, SLASH, "/");
	const char *salt = scope->cache_salt;

	if (strcmp(back, scope->model_name))
		return NULL;
	g_autofree char *hash = kvc_object_key_hash_hex(key);
	return g_strdup_printf("%s_%08x_%x_%s%s%s" SUFFIX, model, scope->kv_rank,
			       scope->object_group_id, hash, *salt ? "@" : "", salt);
}

/* Cuts what is behind the last '_' of TEXT off and returns it, or NULL. */
static char *
cut_field(char *text)
{
	char *at = strrchr(text, '_');

	if (!at)
		return NULL;
	*at = '\0';
	return at + 1;
}

static bool
parse_hex_u32(const char *text, uint32_t *value)
{
	guint64 number;
	bool is_hex = *text && text[strspn(text, "0123456789abcdef")] == '\0' &&
		      strlen(text) <= RANK_DIGITS &&
		      g_ascii_string_to_unsigned(text, 16, 0, UINT32_MAX, &number, NULL);

	if (is_hex)
		*value = (uint32_t)number;
	return is_hex;
}

KvcObjectKey *
fs_nixl_name_parse(const char *name)
{
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	uint32_t rank, group;

	if (!g_str_has_suffix(name, SUFFIX))
		return NULL;
	g_autofree char *text = g_strndup(name, strlen(name) - strlen(SUFFIX));
	char *salt = strchr(text, '@');
	if (salt)
		*salt++ = '\0';
	const char *digits = cut_field(text);
	const char *group_text = digits ? cut_field(text) : NULL;
	const char *rank_text = group_text ? cut_field(text) : NULL;
	if (!rank_text || !parse_hex_u32(group_text, &group) || !parse_hex_u32(rank_text, &rank))
		return NULL;
	size_t len = strlen(digits);
	if (len > 2 * sizeof(hash) || !kvc_hex_decode(digits, len, hash))
		return NULL;
	g_autofree char *model = replace(text, SLASH, "/");
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(model, rank, group, salt, NULL);
	return scope ? kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, len / 2, NULL) : NULL;
}
