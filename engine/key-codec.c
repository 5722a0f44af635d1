/* SPDX-License-Identifier: Apache-2.0 */

/*
 * File names of LMCache. A file name is fields joined with '@', which no field may contain:
 *
 *	model@0xRANK@GROUP@HASH.data		model@0xRANK@GROUP@HASH@SALT.data
 *	model@0xRANK@HASH.data			model@0xRANK@HASH@SALT.data
 *
 * The second line is from before there were groups.
 * Four fields may be either kind; the third one decides: a hash has at least 8 digits and an even
 * number of them, and groups are small. The few keys whose name would be read back as another key
 * (a group of 8 digits without a salt, a model that the substitution of '/' does not bring back)
 * are refused by the formatter, so that no name ever means two keys.
 *
 * Paths of the mount, and of what is stored under the same names. The model is cut at
 * its '/' into components; what a path cannot carry is written %XX:
 *
 *	'%'					everywhere
 *	'/'					at the start, at the end, behind another one
 *	'.'					both of a component "..", the one of "."
 *	the '.' of a first component ".kvcache"	elsewhere it is a name like any other
 *
 * ('@' cannot occur in a model.) A parser decodes generously, then formats what it got and
 * compares: so the formatter alone says which spelling is the canonical one.
 */

#include "kvcache/key-codec.h"

#include <errno.h>
#include <string.h>

#define FILE_NAME_MAX_BYTES 255
#define FILE_NAME_SUFFIX ".data"
#define SLASH "-SEP-"

/* ---- Hex ----------------------------------------------------------------------------------- */

char *
kvc_hex_encode(const void *data, size_t len)
{
	static const char digits[] = "0123456789abcdef";
	const uint8_t *bytes = data;
	char *text = g_malloc(2 * len + 1);

	for (size_t i = 0; i < len; i++) {
		text[2 * i] = digits[bytes[i] >> 4];
		text[2 * i + 1] = digits[bytes[i] & 0xf];
	}
	text[2 * len] = '\0';
	return text;
}

/* The value of a lower-case digit, or -1. */
static int
hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return -1;
}

static bool
is_hex(const char *text, size_t len)
{
	for (size_t i = 0; i < len; i++)
		if (hex_value(text[i]) < 0)
			return false;
	return true;
}

bool
kvc_hex_decode(const char *text, size_t len, uint8_t *out)
{
	if (len % 2 != 0 || !is_hex(text, len))
		return false;
	for (size_t i = 0; i < len / 2; i++)
		out[i] = (uint8_t)(hex_value(text[2 * i]) << 4 | hex_value(text[2 * i + 1]));
	return true;
}

/* 1 to 8 lower-case digits. */
static bool
parse_hex_u32(const char *text, uint32_t *value)
{
	size_t len = strlen(text);
	uint32_t v = 0;

	if (len < 1 || len > 8 || !is_hex(text, len))
		return false;
	for (size_t i = 0; i < len; i++)
		v = v << 4 | (uint32_t)hex_value(text[i]);
	*value = v;
	return true;
}

/* ---- File names ---------------------------------------------------------------------------- */

static char *
replace(const char *text, const char *from, const char *to)
{
	g_auto(GStrv) pieces = g_strsplit(text, from, -1);

	return g_strjoinv(to, pieces);
}

/* The model as it stands in a name, or NULL with ERROR set. */
static char *
format_model(const char *model, GError **error)
{
	g_autofree char *text = replace(model, "/", SLASH);
	g_autofree char *back = replace(text, SLASH, "/");

	/* Not only a model with -SEP- in it: "a-SEP/b" would come back as "a/SEP-b". */
	if (strcmp(back, model)) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL,
			    "model name \"%s\" cannot be told from \"%s\" once '/' is " SLASH,
			    model, back);
		return NULL;
	}
	return g_steal_pointer(&text);
}

static bool
check_file_name_fields(const KvcObjectKey *key, GError **error)
{
	const KvcKeyScope *scope = key->scope;

	if (key->space != KVC_SPACE_CHUNK) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL,
			    "a key of space %d has no LMCache file name", key->space);
		return false;
	}
	if (scope->object_group_id >= 0x10000000 && !*scope->cache_salt) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL,
			    "group %x without a salt would be read as a hash in a file name",
			    scope->object_group_id);
		return false;
	}
	return true;
}

char *
kvc_lmcache_file_name_format(const KvcObjectKey *key, GError **error)
{
	const KvcKeyScope *scope = key->scope;
	g_autofree char *model = NULL, *hash = NULL, *name = NULL;
	size_t len;

	if (!check_file_name_fields(key, error))
		return NULL;
	model = format_model(scope->model_name, error);
	if (!model)
		return NULL;
	hash = kvc_object_key_hash_hex(key);
	name = g_strdup_printf("%s@0x%08x@%x@%s%s%s" FILE_NAME_SUFFIX, model, scope->kv_rank,
			       scope->object_group_id, hash, *scope->cache_salt ? "@" : "",
			       scope->cache_salt);
	len = strlen(name);
	if (len > FILE_NAME_MAX_BYTES) {
		g_set_error(error, KVC_KEY_ERROR, ENAMETOOLONG,
			    "file name \"%s\" has %zu bytes, at most %d are allowed", name, len,
			    FILE_NAME_MAX_BYTES);
		return NULL;
	}
	return g_steal_pointer(&name);
}

static bool
is_hash(const char *text)
{
	size_t len = strlen(text);

	return len >= 2 * KVC_CHUNK_HASH_MIN_BYTES && len % 2 == 0 && is_hex(text, len);
}

static bool
parse_rank(const char *text, uint32_t *rank)
{
	return strlen(text) == 10 && !strncmp(text, "0x", 2) && parse_hex_u32(text + 2, rank);
}

static bool
parse_group(const char *text, uint32_t *group)
{
	return (*text != '0' || !strcmp(text, "0")) && parse_hex_u32(text, group);
}

static KvcObjectKey *
parse_key(const char *model_text, uint32_t rank, uint32_t group, const char *hash, const char *salt)
{
	g_autofree char *model = replace(model_text, SLASH, "/");
	g_autoptr(KvcKeyScope) scope = NULL;
	uint8_t bytes[KVC_CHUNK_HASH_MAX_BYTES];
	size_t digits = strlen(hash);

	if (digits > 2 * sizeof(bytes) || !kvc_hex_decode(hash, digits, bytes))
		return NULL;
	scope = kvc_key_scope_new(model, rank, group, salt, NULL);
	if (!scope)
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_CHUNK, bytes, digits / 2, NULL);
}

static KvcObjectKey *
parse_fields(char *const *fields, unsigned n)
{
	bool has_group = n == 5 || (n == 4 && !is_hash(fields[2]));
	unsigned at_hash = has_group ? 3 : 2;
	const char *salt = n > at_hash + 1 ? fields[at_hash + 1] : NULL;
	uint32_t rank, group = 0;

	if (!parse_rank(fields[1], &rank) || (has_group && !parse_group(fields[2], &group)))
		return NULL;
	if (salt && !*salt)
		return NULL;
	return parse_key(fields[0], rank, group, fields[at_hash], salt);
}

KvcObjectKey *
kvc_lmcache_file_name_parse(const char *name)
{
	g_autofree char *stem = NULL;
	g_auto(GStrv) fields = NULL;
	unsigned n;

	/* A '/' is no file name, and would come back as -SEP-. */
	if (strlen(name) > FILE_NAME_MAX_BYTES || !g_str_has_suffix(name, FILE_NAME_SUFFIX) ||
	    strchr(name, '/'))
		return NULL;
	stem = g_strndup(name, strlen(name) - strlen(FILE_NAME_SUFFIX));
	fields = g_strsplit(stem, "@", -1);
	n = g_strv_length(fields);
	return n >= 3 && n <= 5 ? parse_fields(fields, n) : NULL;
}

/* ---- Paths --------------------------------------------------------------------------------- */

/* Has the character at I no place in a path? */
static bool
must_encode(const char *model, size_t i)
{
	size_t begin = i, len;

	if (model[i] == '%')
		return true;
	if (model[i] == '/')
		return i == 0 || model[i + 1] == '\0' || model[i - 1] == '/';
	if (model[i] != '.')
		return false;
	while (begin > 0 && i - begin < 2 && model[begin - 1] != '/')
		begin--;
	len = strcspn(model + begin, "/");
	if (len <= 2)
		return strspn(model + begin, ".") >= len;
	return i == 0 && len == strlen(KVC_CONTROL_DIR) && !strncmp(model, KVC_CONTROL_DIR, len);
}

char *
kvc_model_path_format(const KvcKeyScope *scope)
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

char *
kvc_rank_format(const KvcKeyScope *scope)
{
	if (*scope->cache_salt)
		return g_strdup_printf("@%08x@%x@%s", scope->kv_rank, scope->object_group_id,
				       scope->cache_salt);
	if (scope->object_group_id)
		return g_strdup_printf("@%08x@%x", scope->kv_rank, scope->object_group_id);
	return g_strdup_printf("@%08x", scope->kv_rank);
}

/* "@rank[@group[@salt]]" of MODEL, or NULL with ERROR set. */
static KvcKeyScope *
parse_rank_component(const char *model, const char *component, GError **error)
{
	g_auto(GStrv) fields = g_strsplit(component, "@", -1);
	unsigned n = g_strv_length(fields);
	uint32_t rank, group = 0;

	if (n < 2 || n > 4 || *fields[0] || !parse_hex_u32(fields[1], &rank) ||
	    (n > 2 && !parse_group(fields[2], &group))) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s' is not a rank", component);
		return NULL;
	}
	return kvc_key_scope_new(model, rank, group, n > 3 ? fields[3] : NULL, error);
}

KvcKeyScope *
kvc_rank_parse(const char *model_path, const char *component, GError **error)
{
	g_autofree char *model = g_uri_unescape_string(model_path, NULL);
	g_autofree char *canonical = NULL, *canonical_path = NULL;
	g_autoptr(KvcKeyScope) scope = NULL;

	if (!model) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s' is not a model", model_path);
		return NULL;
	}
	scope = parse_rank_component(model, component, error);
	if (!scope)
		return NULL;
	canonical = kvc_rank_format(scope);
	canonical_path = kvc_model_path_format(scope);
	if (strcmp(canonical, component) || strcmp(canonical_path, model_path)) {
		g_set_error(error, KVC_KEY_ERROR, EINVAL, "'%s/%s' is spelled '%s/%s'", model_path,
			    component, canonical_path, canonical);
		return NULL;
	}
	return g_steal_pointer(&scope);
}
