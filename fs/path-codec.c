/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include "kvcache/key-codec.h"

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
