/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attributes of objects. LMCache's values are bare bytes, so they are a value of their own, under
 * the name of the object behind "kvcfs:a:", which is the name of no object: one line, then the
 * extended attributes, each with the lengths of its name and its value before it.
 *
 *	1 <bytes of the object> <mode, octal> <uid> <gid> <mtime ns> <version ns>
 *	<length> <length>
 *	<name><value>
 *
 * A mode of 0 is an unknown one. The size of the object tells when somebody has replaced the object
 * and not this. A chunk of which there is nothing to say but the time (0644, root, no xattrs) has
 * none, since there are many, and LMCache deletes them without their attributes.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "resp.h"

char *
resp_attr_name(const char *name)
{
	return g_strconcat(RESP_ATTR_PREFIX, name, NULL);
}

static bool
is_default(const KvcObjectAttributes *attributes)
{
	return attributes->mode == 0 ||
	       (attributes->mode == KVC_MODE_DEFAULT && attributes->uid == 0 &&
		attributes->gid == 0 && !attributes->xattrs);
}

bool
resp_attr_is_needed(const KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	return attributes && (key->space != KVC_SPACE_CHUNK || !is_default(attributes));
}

KvcObjectAttributes
resp_attr_merge(const KvcObjectAttributes *given, const KvcL2ObjectInfo *info)
{
	return (KvcObjectAttributes){
		.mtime_ns = given->mtime_ns ? given->mtime_ns : info->mtime_ns,
		.mode = given->mode ? given->mode : info->mode,
		.uid = given->mode ? given->uid : info->uid,
		.gid = given->mode ? given->gid : info->gid,
		.xattrs = given->mode ? given->xattrs : info->xattrs,
		.version_ns = info->version_ns,
	};
}

GString *
resp_attr_format(const KvcObjectAttributes *attributes, uint64_t bytes)
{
	const char *name;
	const void *value;
	size_t cursor = 0, value_bytes;

	GString *text = g_string_new(NULL);

	g_string_append_printf(text, "1 %" PRIu64 " %o %u %u %" PRId64 " %" PRId64 "\n", bytes,
			       attributes->mode, attributes->uid, attributes->gid,
			       attributes->mtime_ns, attributes->version_ns);
	while (kvc_xattrs_next(attributes->xattrs, &cursor, &name, &value, &value_bytes)) {
		g_string_append_printf(text, "%zu %zu\n%s", strlen(name), value_bytes, name);
		g_string_append_len(text, value, (gssize)value_bytes);
	}
	return text;
}

/* The line of TEXT (transfer full), which is then what comes after it; NULL: there is none. */
static char *
next_line(const char **text, size_t *len)
{
	const char *end = memchr(*text, '\n', *len);

	if (!end)
		return NULL;
	char *line = g_strndup(*text, (size_t)(end - *text));
	*len -= (size_t)(end + 1 - *text);
	*text = end + 1;
	return line;
}

/* One that a set cannot keep is left out. false: nonsense, or the end. */
static bool
parse_xattr(const char **text, size_t *len, KvcL2ObjectInfo *info)
{
	g_autofree char *line = next_line(text, len);
	size_t name_bytes, value_bytes;
	int end = 0;
	KvcXattrs *set;

	if (!line || sscanf(line, "%zu %zu%n", &name_bytes, &value_bytes, &end) != 2 || line[end] ||
	    name_bytes > *len || value_bytes > *len - name_bytes)
		return false;
	g_autofree char *name = g_strndup(*text, name_bytes);
	if (kvc_xattr_name_is_user(name) &&
	    kvc_xattrs_set(info->xattrs, name, *text + name_bytes, value_bytes, &set) == 0) {
		kvc_xattrs_unref(info->xattrs);
		info->xattrs = set;
	}
	*text += name_bytes + value_bytes;
	*len -= name_bytes + value_bytes;
	return true;
}

void
resp_attr_parse(const char *text, size_t len, KvcL2ObjectInfo *info)
{
	g_autofree char *line = next_line(&text, &len);
	uint64_t bytes;
	unsigned mode, uid, gid;
	int64_t mtime_ns, version_ns;
	int end = 0;

	if (!line ||
	    sscanf(line, "1 %" SCNu64 " %o %u %u %" SCNd64 " %" SCNd64 "%n", &bytes, &mode, &uid,
		   &gid, &mtime_ns, &version_ns, &end) != 6 ||
	    line[end] || bytes != info->bytes || (mode && (mode & ~07777u) != S_IFREG))
		return;
	/* -1 means something else to the engine. */
	info->mtime_ns = mtime_ns == KVC_L2_NOT_ASKED ? 0 : mtime_ns;
	info->version_ns = MAX(version_ns, 0);
	if (!mode)
		return;
	info->mode = mode;
	info->uid = uid;
	info->gid = gid;
	while (parse_xattr(&text, &len, info))
		;
}
