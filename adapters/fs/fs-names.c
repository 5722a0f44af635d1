/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Keys and the paths of their files, relative to base_path:
 *
 *	space 0	the file name of LMCache (key-codec.h, fs-nixl.c), directly in base_path or, with
 *		shard_dirs, below the first digits of the hash: ab/cd/<name>
 *	space 1	plain/<directory>/<name>, as in the mount, any bytes
 *	space 2	prefix/<model path>/<rank component>/<name>, as in the mount
 *		(both as kvc_store_name_format() has them behind its start)
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

/* Of a chunk: the name alone, or NULL. */
static char *
format_name(const FsAdapter *fs, const KvcObjectKey *key)
{
	return fs->layout == FS_LAYOUT_NIXL_DYNAMIC ? fs_nixl_name_format(key)
						    : kvc_lmcache_file_name_format(key, NULL);
}

/* Of a chunk with this NAME. */
static char *
format_sharded(const KvcObjectKey *key, const char *name)
{
	g_autofree char *hash = kvc_object_key_hash_hex(key);

	return g_strdup_printf("%.2s/%.2s/%s", hash, hash + 2, name);
}

/* Of a key that is no chunk; NULL when the mount has no such file. */
static char *
format_path(const KvcObjectKey *key)
{
	bool is_plain = key->space == KVC_SPACE_PLAIN;
	g_autofree char *name = kvc_store_name_format(key);
	const char *path = name + strlen(is_plain ? KVC_STORE_NAME_PLAIN : KVC_STORE_NAME_PREFIX);

	if (is_plain && !is_plain_path(path))
		return NULL;
	return g_strconcat(is_plain ? FS_PLAIN_DIR : FS_PREFIX_DIR, "/", path, NULL);
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
fs_path_format(const FsAdapter *fs, const KvcObjectKey *key)
{
	bool is_chunk = key->space == KVC_SPACE_CHUNK;
	g_autofree char *path = is_chunk ? format_name(fs, key) : format_path(key);

	if (!path || !is_fit(path))
		return fs_digest_name_format(key);
	return is_chunk && fs->shard_dirs ? format_sharded(key, path) : g_steal_pointer(&path);
}

/* The name that older versions of LMCache gave a chunk with this NAME, or NULL. */
static char *
format_legacy(const FsAdapter *fs, const KvcObjectKey *key, const char *name)
{
	const char *at = strchr(name, '@');
	size_t rank_len = strlen("@0x01000100");

	if (fs->layout != FS_LAYOUT_LMCACHE || key->scope->object_group_id || !at)
		return NULL;
	/* Without its "@0" for the group. */
	return g_strdup_printf("%.*s%s", (int)(at - name + rank_len), name, at + rank_len + 2);
}

char *
fs_path_format_other(const FsAdapter *fs, const KvcObjectKey *key, unsigned i)
{
	g_autofree char *name = key->space == KVC_SPACE_CHUNK ? format_name(fs, key) : NULL;

	if (!name || !is_fit(name))
		return NULL;
	if (fs->shard_dirs && i-- == 0)
		return g_steal_pointer(&name);
	/* Also when there were none at the start: somebody else may have made them since. */
	if (!fs->shard_dirs && i-- == 0)
		return format_sharded(key, name);
	return i == 0 ? format_legacy(fs, key, name) : NULL;
}

bool
fs_is_shard_name(const char *name)
{
	return strspn(name, "0123456789abcdef") == 2 && name[2] == '\0';
}

/* The key of a chunk whose file is PATH, in whatever spelling (transfer full), or NULL. */
static KvcObjectKey *
parse_chunk(const FsAdapter *fs, const char *path)
{
	const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;

	return fs->layout == FS_LAYOUT_NIXL_DYNAMIC ? fs_nixl_name_parse(name)
						    : kvc_lmcache_file_name_parse(name);
}

/* PATH is below plain/ or prefix/, START begins the store names of what is there. */
static KvcObjectKey *
parse_path(const char *start, const char *path)
{
	g_autofree char *name = g_strconcat(start, path, NULL);

	return kvc_store_name_parse(name);
}

KvcObjectKey *
fs_path_parse(const FsAdapter *fs, const char *path)
{
	g_autoptr(KvcObjectKey) key = NULL;
	g_autofree char *canonical = NULL;

	if (g_str_has_prefix(path, FS_PREFIX_DIR "/"))
		key = parse_path(KVC_STORE_NAME_PREFIX, path + strlen(FS_PREFIX_DIR "/"));
	else if (g_str_has_prefix(path, FS_PLAIN_DIR "/"))
		key = parse_path(KVC_STORE_NAME_PLAIN, path + strlen(FS_PLAIN_DIR "/"));
	else
		key = parse_chunk(fs, path);
	if (!key)
		return NULL;
	canonical = fs_path_format(fs, key);
	if (!strcmp(canonical, path))
		return g_steal_pointer(&key);
	for (unsigned i = 0;; i++) {
		g_autofree char *other = fs_path_format_other(fs, key, i);

		if (!other)
			return NULL;
		if (!strcmp(other, path))
			return g_steal_pointer(&key);
	}
}

char *
fs_temp_path_new(const FsAdapter *fs, const char *path)
{
	static _Atomic uint64_t
		counter; /* of the process: several adapters may share a directory */
	const char *slash = strrchr(path, '/');
	g_autofree char *dir = fs->temp_dir ? g_strconcat(fs->temp_dir, "/", NULL)
					    : g_strndup(path, slash ? slash + 1 - path : 0);

	return g_strdup_printf("%s" FS_TEMP_PREFIX "%d.%" G_GUINT64_FORMAT FS_TEMP_SUFFIX, dir,
			       (int)getpid(), atomic_fetch_add(&counter, 1));
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
