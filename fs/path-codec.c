/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include "kvcache/key-codec.h"

#include <fnmatch.h>
#include <string.h>

static char **more_temporary; /* immutable once threads run; NULL: none */

/* ---- Names in rank and prefix directories -------------------------------------------------- */

bool
kvcfs_name_is_hash(const char *name)
{
	size_t len = strlen(name);
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

/* Is one of the components of DIRECTORY "tmp" or ".tmp"? */
bool
kvcfs_directory_is_temporary(const char *directory)
{
	g_auto(GStrv) components = g_strsplit(directory, "/", -1);
	return g_strv_contains((const char *const *)components, "tmp") ||
	       g_strv_contains((const char *const *)components, ".tmp");
}

bool
kvcfs_name_is_temporary(const char *directory, const char *name)
{
	static const char *const suffixes[] = {"~", ".tmp", ".temp", ".part", ".act"};
	if (name[0] == '.' || strstr(name, ".tmp."))
		return true;
	for (size_t i = 0; i < G_N_ELEMENTS(suffixes); i++)
		if (g_str_has_suffix(name, suffixes[i]))
			return true;
	for (char **pattern = more_temporary; pattern && *pattern; pattern++)
		if (fnmatch(*pattern, name, 0) == 0)
			return true;
	return ends_in_tmp_and_word(name) || (directory && kvcfs_directory_is_temporary(directory));
}

/* "@..." that reads as a rank is the name of a directory. */
static bool
is_rank(const char *name)
{
	g_autoptr(KvcKeyScope) scope = name[0] == '@' ? kvc_rank_parse("m", name, NULL) : NULL;
	return scope != NULL;
}

void
kvcfs_names_set_temporary(const char *const *patterns)
{
	g_strfreev(more_temporary);
	more_temporary = g_strdupv((char **)patterns);
}

KvcfsNameClass
kvcfs_name_classify(const KvcKeyScope *scope, const char *name)
{
	if (scope->is_plain && kvcfs_name_is_temporary(scope->model_name, name))
		return KVCFS_NAME_TEMPORARY;
	if (scope->is_plain)
		return is_rank(name) ? KVCFS_NAME_OTHER : KVCFS_NAME_PLAIN;
	if (kvcfs_name_is_hash(name))
		return KVCFS_NAME_HASH;
	return kvcfs_name_is_temporary(NULL, name) ? KVCFS_NAME_TEMPORARY : KVCFS_NAME_OTHER;
}

KvcObjectKey *
kvcfs_name_to_key(KvcKeyScope *scope, const char *name)
{
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	size_t len = strlen(name);
	KvcfsNameClass class = kvcfs_name_classify(scope, name);
	if (class == KVCFS_NAME_PLAIN)
		return kvc_object_key_new(scope, KVC_SPACE_PLAIN, name, len, NULL);
	if (class != KVCFS_NAME_HASH || !kvc_hex_decode(name, len, hash))
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, len / 2, NULL);
}

char *
kvcfs_key_to_name(const KvcObjectKey *key)
{
	if (key->space == KVC_SPACE_CHUNK)
		return kvc_object_key_hash_hex(key);
	return g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);
}
