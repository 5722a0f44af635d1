/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys and the paths of their files, relative to base_path:
 *
 *	space 0	the file name of LMCache (key-codec.h), directly in base_path
 *	space 1	plain/<directory>/<name>, as in the mount, any bytes
 *	space 2	prefix/<model path>/<rank component>/<name>, as in the mount (key-codec.h)
 *	any	<digest>.kvc directly in base_path, if that is no path for a file (fs-digest.c)
 *
 * What is fit follows from the key alone, so that a directory can be copied to another file system.
 * Both directions are exact: what does not come back is not ours.
 */

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <kvcache/key-codec.h>

#include "fs.h"

/* The longest path leaves room for /proc/self/fd/N/ before it, or for a temporary name in it. */
#define COMPONENT_MAX_BYTES 255
#define PATH_MAX_BYTES (PATH_MAX - 128)

static char *
format_prefix_path(const KvcObjectKey *key)
{
	g_autofree char *model = kvc_model_path_format(key->scope);
	g_autofree char *rank = kvc_rank_format(key->scope);
	g_autofree char *name = g_strndup((const char *)key->chunk_hash, key->chunk_hash_len);

	return g_strdup_printf(FS_PREFIX_DIR "/%s/%s/%s", model, rank, name);
}

static bool
is_rank(const char *component)
{
	g_autoptr(KvcKeyScope) scope = kvc_rank_parse("m", component, NULL);

	return scope;
}

/* Is PATH, from the root of the mount, one of a plain file there? */
static bool
is_plain_path(const char *path)
{
	g_auto(GStrv) components = g_strsplit(path, "/", -1);

	if (!strcmp(components[0], KVC_CONTROL_DIR))
		return false;
	for (char **component = components; *component; component++)
		if (is_rank(*component))
			return false;
	return true;
}

/* NULL when the mount has no such file. */
static char *
format_plain_path(const KvcObjectKey *key)
{
	const char *directory = key->scope->model_name;
	g_autofree char *path = g_strdup_printf("%s%s%.*s", directory, *directory ? "/" : "",
						key->chunk_hash_len, (const char *)key->chunk_hash);

	return is_plain_path(path) ? g_strconcat(FS_PLAIN_DIR "/", path, NULL) : NULL;
}

/* Can a file have this path here, and is it not taken for one of our temporary files? */
static bool
is_fit(const char *path)
{
	const char *component = path;
	int pid;

	if (strlen(path) > PATH_MAX_BYTES)
		return false;
	for (const char *slash; (slash = strchr(component, '/')); component = slash + 1)
		if (slash - component > COMPONENT_MAX_BYTES)
			return false;
	return strlen(component) <= COMPONENT_MAX_BYTES && !fs_temp_name_parse(component, &pid);
}

char *
fs_path_format(const KvcObjectKey *key)
{
	g_autofree char *path = NULL;

	switch ((KvcSpace)key->space) {
	case KVC_SPACE_CHUNK:
		path = kvc_lmcache_file_name_format(key, NULL);
		break;
	case KVC_SPACE_PLAIN:
		path = format_plain_path(key);
		break;
	case KVC_SPACE_PREFIX:
		path = format_prefix_path(key);
		break;
	}
	return path && is_fit(path) ? g_steal_pointer(&path) : fs_digest_name_format(key);
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

/* PATH is below prefix/: <model path>/<rank>/<name>. */
static KvcObjectKey *
parse_prefix_path(const char *path)
{
	g_autofree char *model = g_strdup(path);
	const char *name = cut_last(model), *rank = cut_last(model);
	g_autoptr(KvcKeyScope) scope = rank ? kvc_rank_parse(model, rank, NULL) : NULL;

	if (!scope)
		return NULL;
	return kvc_object_key_new(scope, KVC_SPACE_PREFIX, name, strlen(name), NULL);
}

/* PATH is below plain/. */
static KvcObjectKey *
parse_plain_path(const char *path)
{
	g_autofree char *directory = g_strdup(path);
	const char *name = cut_last(directory);
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(name ? directory : "", NULL);

	if (!scope)
		return NULL;
	if (!name)
		name = path;
	return kvc_object_key_new(scope, KVC_SPACE_PLAIN, name, strlen(name), NULL);
}

KvcObjectKey *
fs_path_parse(const char *path)
{
	g_autoptr(KvcObjectKey) key = NULL;
	g_autofree char *canonical = NULL, *legacy = NULL;

	if (g_str_has_prefix(path, FS_PREFIX_DIR "/"))
		key = parse_prefix_path(path + strlen(FS_PREFIX_DIR "/"));
	else if (g_str_has_prefix(path, FS_PLAIN_DIR "/"))
		key = parse_plain_path(path + strlen(FS_PLAIN_DIR "/"));
	else
		key = kvc_lmcache_file_name_parse(path);
	if (!key)
		return NULL;
	canonical = fs_path_format(key);
	if (!strcmp(canonical, path))
		return g_steal_pointer(&key);
	legacy = fs_path_format_legacy(key, canonical);
	return g_strcmp0(legacy, path) ? NULL : g_steal_pointer(&key);
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
