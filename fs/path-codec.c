/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include "kvcache/key-codec.h"

#include <fnmatch.h>
#include <string.h>

static char **more_temporary; /* immutable once threads run; NULL: none */

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
	for (char **pattern = more_temporary; pattern && *pattern; pattern++)
		if (fnmatch(*pattern, name, 0) == 0)
			return true;
	return ends_in_tmp_and_word(name);
}

void
kvcfs_names_set_temporary(const char *const *patterns)
{
	g_strfreev(more_temporary);
	more_temporary = g_strdupv((char **)patterns);
}

/* "@" and 8 hex digits; what follows them (group, salt) is not looked at. */
static bool
is_rank(const char *component)
{
	return component[0] == '@' && strspn(component + 1, "0123456789abcdef") == 8;
}

bool
kvcfs_name_is_temporary(const char *directory, const char *name)
{
	bool is_below = false;
	g_auto(GStrv) components = g_strsplit(directory, "/", -1);
	for (char **component = components; *component; component++) {
		if (is_rank(*component))
			is_below = false;
		else if (strcmp(*component, "tmp") == 0 || strcmp(*component, ".tmp") == 0)
			is_below = true;
	}
	return is_below || is_temporary(name);
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
