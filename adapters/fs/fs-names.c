/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys and the paths of their files, relative to base_path:
 *
 *	space 0	the file name of LMCache (key-codec.h), directly in base_path
 *	space 2	prefix/<model path>/<rank component>/<name>, as in the mount (key-codec.h)
 *
 * Both directions are exact: what does not come back is not ours.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#include "fs.h"

static char *
format_prefix_path(const KvcObjectKey *key, int *errnum)
{
	g_autofree char *model = kvc_model_path_format(key->scope);
	g_autofree char *rank = kvc_rank_format(key->scope);
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
	g_autoptr(KvcKeyScope) scope = kvc_rank_parse(model_path, rank_name, NULL);
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
