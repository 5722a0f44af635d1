/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listing by SCAN. A page of it may have more names than were asked for, and a server is not asked
 * twice for the same one: what is left over is in our cursor, so no state is kept here.
 *
 *	<pattern>:<cursor of the server>:<name in hex>,<name in hex>,...
 *
 * The chunks of a scope and its chains have nothing in common that a pattern could say, so they are
 * two passes. A server that rehashes meanwhile may give a name twice.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/key-codec.h>

#include "resp.h"

/* A page without an entry ends after so long: the caller comes again. */
#define PAGE_NS KVC_SEC_NS
#define COUNT "256"

typedef struct ListPass {
	RespConnection *r;
	const KvcKeyScope *scope;
	KvcL2ListEntry *entries;
	size_t n, max;
	char *patterns[3]; /* owned, ended by NULL; "" for everything */
	unsigned pattern;
	char *cursor;	  /* of the server; "0" at the end of a pattern, NULL: not begun */
	GPtrArray *names; /* owned, those not looked at from the end */
} ListPass;

/* PREFIX (transfer full) and anything. */
static char *
pattern_of(char *prefix)
{
	GString *pattern = g_string_new(NULL);

	for (const char *p = prefix; *p; p++) {
		if (strchr("*?[]\\^-", *p))
			g_string_append_c(pattern, '\\');
		g_string_append_c(pattern, *p);
	}
	g_free(prefix);
	g_string_append_c(pattern, '*');
	return g_string_free(pattern, FALSE);
}

static void
set_patterns(ListPass *pass)
{
	const KvcKeyScope *scope = pass->scope;
	g_autofree char *model = NULL, *rank = NULL;

	if (!scope) {
		pass->patterns[0] = g_strdup("");
	} else if (scope->is_plain) {
		pass->patterns[0] = pattern_of(g_strconcat("kvcfs:1:", scope->model_name,
							   *scope->model_name ? "/" : "", NULL));
	} else {
		model = kvc_model_path_format(scope);
		rank = kvc_rank_format(scope);
		pass->patterns[0] = pattern_of(g_strdup_printf(
			"%s@%08x@%x@", scope->model_name, scope->kv_rank, scope->object_group_id));
		pass->patterns[1] = pattern_of(g_strdup_printf("kvcfs:2:%s/%s/", model, rank));
	}
}

static bool
parse_cursor(ListPass *pass, const char *cursor)
{
	g_auto(GStrv) fields = cursor ? g_strsplit(cursor, ":", -1) : NULL;

	if (!cursor)
		return true;
	if (g_strv_length(fields) != 3)
		return false;
	pass->pattern = (unsigned)strtoul(fields[0], NULL, 10);
	if (pass->pattern >= G_N_ELEMENTS(pass->patterns) || !pass->patterns[pass->pattern])
		return false;
	pass->cursor = *fields[1] ? g_strdup(fields[1]) : NULL;
	g_auto(GStrv) names = g_strsplit(fields[2], ",", -1);
	for (char **hex = names; *hex; hex++) {
		size_t digits = strlen(*hex);
		char *name = g_malloc0(digits / 2 + 1);

		g_ptr_array_add(pass->names, name);
		if (!kvc_hex_decode(*hex, digits, (uint8_t *)name))
			return false;
	}
	return true;
}

static char *
format_cursor(const ListPass *pass)
{
	GString *cursor = g_string_new(NULL);

	g_string_append_printf(cursor, "%u:%s:", pass->pattern, pass->cursor ? pass->cursor : "");
	for (guint i = 0; i < pass->names->len; i++) {
		const char *name = g_ptr_array_index(pass->names, i);
		g_autofree char *hex = kvc_hex_encode(name, strlen(name));

		g_string_append_printf(cursor, "%s%s", i ? "," : "", hex);
	}
	return g_string_free(cursor, FALSE);
}

/* The names of a reply to SCAN, each once. */
static int
take_names(ListPass *pass, const redisReply *reply)
{
	g_autoptr(GHashTable) seen = g_hash_table_new(g_str_hash, g_str_equal);

	if (reply->type == REDIS_REPLY_ERROR)
		return resp_note_refusal(pass->r->store, reply->str, reply->len);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
	    reply->element[0]->type != REDIS_REPLY_STRING ||
	    strspn(reply->element[0]->str, "0123456789") != reply->element[0]->len ||
	    reply->element[1]->type != REDIS_REPLY_ARRAY)
		return -EPROTO;
	g_free(pass->cursor);
	pass->cursor = g_strdup(reply->element[0]->str);
	for (size_t i = 0; i < reply->element[1]->elements; i++) {
		const redisReply *name = reply->element[1]->element[i];

		if (name->type != REDIS_REPLY_STRING)
			return -EPROTO;
		if (strlen(name->str) == name->len && g_hash_table_add(seen, name->str))
			g_ptr_array_add(pass->names, g_strdup(name->str));
	}
	return 0;
}

static int
scan(ListPass *pass, int64_t deadline_ns)
{
	const char *pattern = pass->patterns[pass->pattern];
	const char *const argv[] = {"SCAN", pass->cursor ? pass->cursor : "0", "COUNT",
				    COUNT,  *pattern ? "MATCH" : NULL,	       pattern,
				    NULL};
	redisReply *reply;
	int rc = resp_command(pass->r, argv, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	rc = take_names(pass, reply);
	freeReplyObject(reply);
	return rc;
}

static void
item_clear(void *data)
{
	KvcConnectorItem *item = data;

	kvc_object_key_unref(item->key);
	g_free((char *)item->name);
}

/* Those of the names that are keys of the scope, as many as there is room for. */
static GArray *
take_items(ListPass *pass)
{
	GArray *items = g_array_new(FALSE, TRUE, sizeof(KvcConnectorItem));
	size_t max = MIN(pass->max - pass->n, RESP_MAX_BATCH);

	g_array_set_clear_func(items, item_clear);
	while (items->len < max && pass->names->len > 0) {
		g_autofree char *name = g_ptr_array_steal_index(pass->names, pass->names->len - 1);
		g_autoptr(KvcObjectKey) key = kvc_store_name_parse(name);

		if (!key || (pass->scope && key->scope != pass->scope))
			continue;
		KvcConnectorItem item = {.key = g_steal_pointer(&key),
					 .name = g_steal_pointer(&name),
					 .error = -EINPROGRESS};
		g_array_append_val(items, item);
	}
	return items;
}

/* Entries out of the names. */
static int
take_entries(ListPass *pass, int64_t deadline_ns)
{
	g_autoptr(GArray) items = take_items(pass);
	KvcConnectorItem *asked[RESP_MAX_BATCH];

	if (items->len == 0)
		return 0;
	for (guint i = 0; i < items->len; i++)
		asked[i] = &g_array_index(items, KvcConnectorItem, i);
	int rc = resp_exists(pass->r, asked, items->len, deadline_ns);
	if (rc < 0)
		return rc;
	for (guint i = 0; i < items->len; i++) {
		if (asked[i]->error < 0)
			continue;
		pass->entries[pass->n].key = kvc_object_key_ref(asked[i]->key);
		pass->entries[pass->n++].info = asked[i]->info;
	}
	return 0;
}

static bool
is_scanned(const ListPass *pass)
{
	return pass->cursor && !strcmp(pass->cursor, "0");
}

/* Is there another pattern? */
static bool
next_pattern(ListPass *pass)
{
	if (!pass->patterns[pass->pattern + 1])
		return false;
	pass->pattern++;
	g_clear_pointer(&pass->cursor, g_free);
	return true;
}

/* *MORE: it is not the last page. */
static int
fill_page(ListPass *pass, bool *more, int64_t deadline_ns)
{
	gint64 end_us = g_get_monotonic_time() + PAGE_NS / 1000;
	int rc = 0;

	*more = true;
	while (rc == 0 && pass->n < pass->max) {
		if (pass->names->len > 0) {
			rc = take_entries(pass, deadline_ns);
		} else if (is_scanned(pass)) {
			*more = next_pattern(pass);
			if (!*more)
				return 0;
		} else if (g_get_monotonic_time() > end_us) {
			return 0;
		} else {
			rc = scan(pass, deadline_ns);
		}
	}
	return rc;
}

ssize_t
resp_list(void *connection,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max,
	  int64_t deadline_ns)
{
	g_autoptr(GPtrArray) names = g_ptr_array_new_with_free_func(g_free);
	g_autofree char *at = g_steal_pointer(cursor);
	ListPass pass = {
		.r = connection, .scope = scope, .entries = entries, .max = max, .names = names};
	bool more;
	int rc = -EINVAL;

	set_patterns(&pass);
	if (parse_cursor(&pass, at))
		rc = fill_page(&pass, &more, deadline_ns);
	if (rc == 0 && more)
		*cursor = format_cursor(&pass);
	for (size_t i = 0; rc < 0 && i < pass.n; i++)
		kvc_object_key_unref(entries[i].key);
	for (size_t i = 0; i < G_N_ELEMENTS(pass.patterns); i++)
		g_free(pass.patterns[i]);
	g_free(pass.cursor);
	return rc < 0 ? rc : (ssize_t)pass.n;
}
