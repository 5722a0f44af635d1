/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A key as one line of printable ASCII, for what is kept on disk beside objects. Fields behind the
 * version, joined with ':', which no field contains once it is encoded:
 *
 *	kvc1:0:<model>:<rank>:<group>:<salt>:<chunk_hash in hex>
 *	kvc1:1:<directory>:<name>
 *	kvc1:2:<model>:<rank>:<group>:<salt>:<name>
 *
 * Bytes that are not printable ASCII, and '%', ':' and ' ', are written %XX. A reader decodes
 * generously, then writes what it got and compares, so that one key has one spelling only: its
 * digest would not be a name otherwise.
 */

#include <string.h>

#include "kvcache/key-codec.h"

#define VERSION "kvc1"
/* Beside letters, digits and "-._~", which GLib never encodes. */
#define UNENCODED "!\"#$&'()*+,/;<=>?@[\\]^`{|}"

static char *
encode(const char *text)
{
	return g_uri_escape_string(text, UNENCODED, FALSE);
}

static char *
encode_name(const KvcObjectKey *key)
{
	g_autofree char *name = NULL;

	if (key->space == KVC_SPACE_CHUNK)
		return kvc_object_key_hash_hex(key);
	name = g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);
	return encode(name);
}

char *
kvc_object_key_serialize(const KvcObjectKey *key)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *model = encode(scope->model_name);
	g_autofree char *salt = encode(scope->cache_salt);
	g_autofree char *name = encode_name(key);

	if (scope->is_plain)
		return g_strdup_printf(VERSION ":%d:%s:%s", key->space, model, name);
	return g_strdup_printf(VERSION ":%d:%s:%x:%x:%s:%s", key->space, model, scope->kv_rank,
			       scope->object_group_id, salt, name);
}

/* Decodes the fields in place; false when one of them cannot be. */
static bool
decode_fields(char **fields)
{
	for (char **field = fields; *field; field++) {
		char *decoded = g_uri_unescape_string(*field, NULL);

		if (!decoded)
			return false;
		g_free(*field);
		*field = decoded;
	}
	return true;
}

/* What is not a number comes back as another one, which the comparison at the end tells. */
static uint32_t
parse_number(const char *text)
{
	return (uint32_t)g_ascii_strtoull(text, NULL, 16);
}

static KvcObjectKey *
parse_chunk(KvcKeyScope *scope, const char *hex)
{
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	size_t digits = strlen(hex);

	if (digits > 2 * sizeof(hash) || !kvc_hex_decode(hex, digits, hash))
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, digits / 2, NULL);
}

static KvcObjectKey *
parse_plain(char *const *fields)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(fields[0], NULL);

	if (!scope)
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_PLAIN, fields[1], strlen(fields[1]), NULL);
}

static KvcObjectKey *
parse_ordinary(const char *space, char *const *fields)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(fields[0], parse_number(fields[1]),
							 parse_number(fields[2]), fields[3], NULL);

	if (!scope)
		return NULL;
	if (!strcmp(space, "0"))
		return parse_chunk(scope, fields[4]);
	if (!strcmp(space, "2"))
		return kvc_object_key_new(scope, KVC_SPACE_PREFIX, fields[4], strlen(fields[4]),
					  NULL);
	return NULL;
}

KvcObjectKey *
kvc_object_key_deserialize(const char *text)
{
	g_auto(GStrv) fields = g_strsplit(text, ":", -1);
	unsigned n = g_strv_length(fields);
	g_autoptr(KvcObjectKey) key = NULL;
	g_autofree char *canonical = NULL;

	if (n < 4 || strcmp(fields[0], VERSION) || !decode_fields(fields))
		return NULL;
	if (n == 4 && !strcmp(fields[1], "1"))
		key = parse_plain(fields + 2);
	else if (n == 7)
		key = parse_ordinary(fields[1], fields + 2);
	if (!key)
		return NULL;
	canonical = kvc_object_key_serialize(key);
	return strcmp(canonical, text) ? NULL : g_steal_pointer(&key);
}

char *
kvc_object_key_digest(const KvcObjectKey *key)
{
	g_autofree char *text = kvc_object_key_serialize(key);

	return g_compute_checksum_for_string(G_CHECKSUM_SHA256, text, -1);
}
