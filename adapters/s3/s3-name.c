/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Names of objects in the bucket: those of kvc_store_name_format(), which are LMCache's, behind the
 * key prefix. A few of those are refused or changed by one store or the other:
 *
 *	what is not UTF-8, or has control characters (XML cannot carry them)
 *	a component, between two '/', that is empty, "." or ".." or longer than 200 bytes
 *	what itself begins as below
 *
 * Such a name is "kvcfs:e:" and the name with every byte but letters, digits and "-_@:" as %XX, cut
 * by a '/' after each 200 characters. What it begins with depends on what the name begins with, so
 * that the names of a scope still have their beginnings in common.
 */

#include <string.h>

#include <kvcache/key-codec.h>

#include "s3.h"

#define ESCAPED "kvcfs:e:"
#define PART_BYTES 200

/* ---- Escaping ------------------------------------------------------------------------------ */

static bool
is_plain_part(const char *part, size_t len)
{
	return len > 0 && len <= PART_BYTES && !(len == 1 && part[0] == '.') &&
	       !(len == 2 && part[0] == '.' && part[1] == '.');
}

static bool
is_plain(const char *name)
{
	if (g_str_has_prefix(name, ESCAPED) || !g_utf8_validate(name, -1, NULL))
		return false;
	for (const char *p = name; *p; p++)
		if (g_ascii_iscntrl(*p))
			return false;
	for (const char *part = name;;) {
		size_t len = strcspn(part, "/");

		if (!is_plain_part(part, len))
			return false;
		if (!part[len])
			return true;
		part += len + 1;
	}
}

/* ESCAPED and NAME (transfer full). */
static char *
escape(const char *name)
{
	GString *out = g_string_new(ESCAPED);
	size_t n = 0;

	for (const char *p = name; *p; p++) {
		char text[4];

		if (g_ascii_isalnum(*p) || strchr("-_@:", *p))
			g_snprintf(text, sizeof(text), "%c", *p);
		else
			g_snprintf(text, sizeof(text), "%%%02X", (unsigned char)*p);
		for (const char *q = text; *q; q++) {
			if (n > 0 && n % PART_BYTES == 0)
				g_string_append_c(out, '/');
			g_string_append_c(out, *q);
			n++;
		}
	}
	return g_string_free(out, FALSE);
}

/* What escape() made TEXT of (transfer full), or NULL. */
static char *
unescape(const char *text)
{
	g_autoptr(GString) joined = g_string_new(NULL);

	for (const char *p = text + strlen(ESCAPED); *p; p++)
		if (*p != '/')
			g_string_append_c(joined, *p);
	g_autofree char *name = g_uri_unescape_string(joined->str, NULL);
	if (!name || is_plain(name))
		return NULL;
	g_autofree char *again = escape(name);
	return !strcmp(again, text) ? g_steal_pointer(&name) : NULL;
}

char *
s3_name_format(const char *prefix, const char *store_name)
{
	g_autofree char *escaped = is_plain(store_name) ? NULL : escape(store_name);

	return g_strconcat(prefix, escaped ? escaped : store_name, NULL);
}

char *
s3_name_parse(const char *prefix, const char *name)
{
	if (!g_str_has_prefix(name, prefix))
		return NULL;
	name += strlen(prefix);
	if (g_str_has_prefix(name, ESCAPED))
		return unescape(name);
	return is_plain(name) ? g_strdup(name) : NULL;
}

/* ---- Of a scope ---------------------------------------------------------------------------- */

/* The names that begin with START (transfer full), in both spellings. */
static void
add(GPtrArray *prefixes, const char *prefix, char *start)
{
	g_autofree char *escaped = escape(start);

	g_ptr_array_add(prefixes, g_strconcat(prefix, start, NULL));
	g_ptr_array_add(prefixes, g_strconcat(prefix, escaped, NULL));
	g_free(start);
}

GPtrArray *
s3_name_prefixes(const char *prefix, const KvcKeyScope *scope)
{
	GPtrArray *prefixes = g_ptr_array_new_with_free_func(g_free);

	if (!scope) {
		g_ptr_array_add(prefixes, g_strdup(prefix));
	} else if (scope->is_plain) {
		add(prefixes, prefix,
		    g_strconcat(KVC_STORE_NAME_PLAIN, scope->model_name,
				*scope->model_name ? "/" : "", NULL));
	} else {
		g_autofree char *model = kvc_model_path_format(scope);
		g_autofree char *rank = kvc_rank_format(scope);

		add(prefixes, prefix,
		    g_strdup_printf("%s@%08x@%x@", scope->model_name, scope->kv_rank,
				    scope->object_group_id));
		add(prefixes, prefix, g_strdup_printf(KVC_STORE_NAME_PREFIX "%s/%s/", model, rank));
	}
	return prefixes;
}
