/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What goes with an object, as its metadata; LMCache's objects have none.
 *
 *	x-amz-meta-kvcfs: 1 <CRC32C, hex, or "-"> <mode, octal> <uid> <gid> <mtime ns> <version ns>
 *	x-amz-meta-kvcfs-xattrs: base64 of "<length> <length>\n<name><value>" for each
 *
 * A mode of 0 is an unknown one. A store takes 2 KB of metadata in all: extended attributes that
 * have no room are left out.
 */

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "s3.h"

/* Before base64, so that both headers and their names have less than 2 KB. */
#define XATTRS_MAX_BYTES 1350

/* ---- Out ----------------------------------------------------------------------------------- */

/* false: one or more are left out. */
static bool
format_xattrs(KvcXattrs *xattrs, GString *out)
{
	const char *name;
	const void *value;
	size_t cursor = 0, value_bytes;
	bool has_all = true;

	while (kvc_xattrs_next(xattrs, &cursor, &name, &value, &value_bytes)) {
		size_t before = out->len;

		g_string_append_printf(out, "%zu %zu\n%s", strlen(name), value_bytes, name);
		g_string_append_len(out, value, (gssize)value_bytes);
		if (out->len <= XATTRS_MAX_BYTES)
			continue;
		g_string_truncate(out, before);
		has_all = false;
	}
	return has_all;
}

bool
s3_meta_add(S3Exchange *x, const S3Meta *meta)
{
	const KvcObjectAttributes *a = &meta->attributes;
	g_autoptr(GString) xattrs = g_string_new(NULL);
	bool has_all = format_xattrs(a->xattrs, xattrs);
	char crc[16] = "-";

	if (meta->has_crc)
		g_snprintf(crc, sizeof(crc), "%08x", meta->crc);
	g_autofree char *text = g_strdup_printf("1 %s %o %u %u %" PRId64 " %" PRId64, crc, a->mode,
						a->uid, a->gid, a->mtime_ns, a->version_ns);
	s3_exchange_add_header(x, S3_META_HEADER, text);
	if (xattrs->len > 0) {
		g_autofree char *encoded =
			g_base64_encode((const guchar *)xattrs->str, xattrs->len);

		s3_exchange_add_header(x, S3_META_XATTRS_HEADER, encoded);
	}
	return has_all;
}

/* ---- In ------------------------------------------------------------------------------------ */

/* The next of TEXT into *SET; one that a set cannot keep is left out. false: nonsense, or the end.
 */
static bool
parse_xattr(const char **text, size_t *len, KvcXattrs **set)
{
	const char *end = memchr(*text, '\n', *len);
	size_t name_bytes, value_bytes;
	int used = 0;
	KvcXattrs *more;

	if (!end)
		return false;
	g_autofree char *line = g_strndup(*text, (size_t)(end - *text));
	*len -= (size_t)(end + 1 - *text);
	*text = end + 1;
	if (sscanf(line, "%zu %zu%n", &name_bytes, &value_bytes, &used) != 2 || line[used] ||
	    name_bytes > *len || value_bytes > *len - name_bytes)
		return false;
	g_autofree char *name = g_strndup(*text, name_bytes);
	if (kvc_xattr_name_is_user(name) &&
	    kvc_xattrs_set(*set, name, *text + name_bytes, value_bytes, &more) == 0) {
		kvc_xattrs_unref(*set);
		*set = more;
	}
	*text += name_bytes + value_bytes;
	*len -= name_bytes + value_bytes;
	return true;
}

static KvcXattrs *
parse_xattrs(const char *encoded)
{
	size_t len;
	g_autofree guchar *data = g_base64_decode(encoded, &len);
	const char *text = (const char *)data;
	KvcXattrs *set = NULL;

	while (parse_xattr(&text, &len, &set))
		;
	return set;
}

void
s3_meta_parse(const S3Exchange *x, S3Meta *meta)
{
	KvcObjectAttributes *a = &meta->attributes;
	char crc[16];
	int used = 0;

	*meta = (S3Meta){0};
	if (!x->meta ||
	    sscanf(x->meta, "1 %15s %o %u %u %" SCNd64 " %" SCNd64 "%n", crc, &a->mode, &a->uid,
		   &a->gid, &a->mtime_ns, &a->version_ns, &used) != 6 ||
	    x->meta[used] || (a->mode && (a->mode & ~07777u) != S_IFREG)) {
		meta->attributes = (KvcObjectAttributes){0};
	} else {
		uint64_t value = 0;

		meta->has_crc = strlen(crc) == 8 &&
				g_ascii_string_to_unsigned(crc, 16, 0, UINT32_MAX, &value, NULL);
		meta->crc = (uint32_t)value;
		/* -1 means something else to the engine. */
		if (a->mtime_ns == KVC_L2_NOT_ASKED)
			a->mtime_ns = 0;
		a->version_ns = MAX(a->version_ns, 0);
		if (a->mode && x->meta_xattrs)
			a->xattrs = parse_xattrs(x->meta_xattrs);
		else if (!a->mode)
			a->uid = a->gid = 0;
	}
	if (a->mtime_ns == 0 && x->last_modified > 0)
		a->mtime_ns = x->last_modified * KVC_SEC_NS;
}

void
s3_meta_clear(S3Meta *meta)
{
	kvc_xattrs_unref(g_steal_pointer(&meta->attributes.xattrs));
}
