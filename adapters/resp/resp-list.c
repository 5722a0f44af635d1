/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listing by SCAN, which has no order, and gives a name twice while the server rehashes. A listing
 * is in the order of the names instead: its cursor is the last name that was given, behind the
 * number of a window, which is what was read ahead:
 *
 *	<number of the window>:<name>
 *
 * A window has the next names, as many as fit into resp_list_bytes; it costs a whole SCAN. So a
 * million keys are one or two, and however many there are, memory is bounded. A window that is lost
 * (there are few, and those of listings that were given up must go) is made anew from the cursor.
 *
 * The chunks of a scope and its chains have nothing in common that a pattern could say, so a window
 * of a scope is two SCANs.
 */

#include <errno.h>
#include <string.h>

#include <kvcache/key-codec.h>

#include "resp-cluster.h"

/* A page without an entry ends after so long: the caller comes again. */
#define PAGE_US (G_USEC_PER_SEC * 1)
#define COUNT "1000"
#define MAX_WINDOWS 4
#define MAX_AGAIN 3
#define IDLE_US (60 * G_USEC_PER_SEC)
/* Of a name, beside its bytes: the pointer and what malloc adds. */
#define NAME_OVERHEAD 24

size_t resp_list_bytes = 128u << 20;

typedef struct Window {
	uint64_t number;
	KvcKeyScope *scope; /* or NULL: everything */
	gint64 used_us;
	char *last;	   /* its names come after this one, "" for all of them */
	GPtrArray *names;  /* owned; sorted, each once, when it is ready */
	size_t bytes;	   /* of them */
	char *bound;	   /* names after this one did not fit, or NULL */
	bool is_ready;	   /* the SCANs are done */
	guint at;	   /* names before are given */
	char *patterns[3]; /* ended by NULL; "" for everything */
	unsigned pattern;  /* that is scanned */
	char *scan_cursor; /* of the server */
	char *server;	   /* whose cursor that is */
	/* Of a cluster */
	GPtrArray *masters; /* that are scanned one after the other */
	guint master;
	uint64_t map_version; /* of that time */
	unsigned again;	      /* since it had changed at the end */
} Window;

static void
window_free(void *data)
{
	Window *window = data;

	for (size_t i = 0; i < G_N_ELEMENTS(window->patterns); i++)
		g_free(window->patterns[i]);
	kvc_key_scope_unref(window->scope);
	g_ptr_array_unref(window->names);
	g_free(window->last);
	g_free(window->bound);
	g_free(window->scan_cursor);
	g_free(window->server);
	g_clear_pointer(&window->masters, g_ptr_array_unref);
	g_free(window);
}

GPtrArray *
resp_windows_new(void)
{
	return g_ptr_array_new_with_free_func(window_free);
}

/* ---- Patterns ------------------------------------------------------------------------------ */

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
set_patterns(Window *window)
{
	const KvcKeyScope *scope = window->scope;
	g_autofree char *model = NULL, *rank = NULL;

	if (!scope) {
		window->patterns[0] = g_strdup("");
	} else if (scope->is_plain) {
		window->patterns[0] = pattern_of(g_strconcat("kvcfs:1:", scope->model_name,
							     *scope->model_name ? "/" : "", NULL));
	} else {
		model = kvc_model_path_format(scope);
		rank = kvc_rank_format(scope);
		window->patterns[0] = pattern_of(g_strdup_printf(
			"%s@%08x@%x@", scope->model_name, scope->kv_rank, scope->object_group_id));
		window->patterns[1] = pattern_of(g_strdup_printf("kvcfs:2:%s/%s/", model, rank));
	}
}

/* ---- Windows ------------------------------------------------------------------------------- */

/* What comes after LAST (transfer full). */
static void
begin_window(Window *window, char *last)
{
	g_free(window->last);
	window->last = last;
	g_ptr_array_set_size(window->names, 0);
	window->bytes = 0;
	g_clear_pointer(&window->bound, g_free);
	window->is_ready = false;
	window->at = 0;
	window->pattern = 0;
	g_clear_pointer(&window->scan_cursor, g_free);
	g_clear_pointer(&window->masters, g_ptr_array_unref);
	window->master = 0;
	window->again = 0;
}

static Window *
window_new(RespStore *store, const KvcKeyScope *scope, const char *last)
{
	Window *window = g_new0(Window, 1);

	window->number = ++store->last_window;
	window->scope = scope ? kvc_key_scope_ref((KvcKeyScope *)scope) : NULL;
	window->names = g_ptr_array_new_with_free_func(g_free);
	set_patterns(window);
	begin_window(window, g_strdup(last));
	return window;
}

/* The name that the next one of WINDOW comes after. */
static const char *
last_given(const Window *window)
{
	return window->at > 0 ? g_ptr_array_index(window->names, window->at - 1) : window->last;
}

/* Those of nobody go, so that there is room for one more. */
static void
drop_windows(RespStore *store)
{
	gint64 now_us = g_get_monotonic_time();

	for (guint i = store->windows->len; i-- > 0;) {
		const Window *window = g_ptr_array_index(store->windows, i);

		if (now_us - window->used_us > IDLE_US)
			g_ptr_array_remove_index(store->windows, i);
	}
	/* They are in the order of their last use. */
	if (store->windows->len >= MAX_WINDOWS)
		g_ptr_array_remove_index(store->windows, 0);
}

/* The window of a cursor (transfer full; in no array), or a new one; NULL: no cursor of ours. */
static Window *
take_window(RespStore *store, const KvcKeyScope *scope, const char *cursor)
{
	guint64 number = 0;
	char *last = (char *)"";

	if (cursor) {
		number = g_ascii_strtoull(cursor, &last, 10);
		if (last == cursor || *last != ':')
			return NULL;
		last++;
	}
	for (guint i = 0; number && i < store->windows->len; i++) {
		Window *window = g_ptr_array_index(store->windows, i);

		if (window->number == number && window->scope == scope &&
		    !strcmp(last_given(window), last))
			return g_ptr_array_steal_index(store->windows, i);
	}
	drop_windows(store);
	return window_new(store, scope, last);
}

static int
compare_names(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Sorts; each name stays once. */
static void
sort_names(Window *window)
{
	GPtrArray *names = window->names;
	guint n = 0;

	g_ptr_array_sort(names, compare_names);
	for (guint i = 0; i < names->len; i++) {
		if (n > 0 && !strcmp(names->pdata[n - 1], names->pdata[i])) {
			window->bytes -= strlen(names->pdata[i]) + NAME_OVERHEAD;
			g_free(names->pdata[i]);
		} else {
			names->pdata[n++] = names->pdata[i];
		}
	}
	for (guint i = n; i < names->len; i++)
		names->pdata[i] = NULL;
	g_ptr_array_set_size(names, (gint)n);
}

/* There are too many names: the first half of the bytes stays, and at least one. */
static void
trim(Window *window)
{
	size_t bytes = 0;
	guint n = 0;

	sort_names(window);
	if (window->bytes <= resp_list_bytes)
		return;
	while (n < window->names->len && (n == 0 || bytes < resp_list_bytes / 2))
		bytes += strlen(g_ptr_array_index(window->names, n++)) + NAME_OVERHEAD;
	g_ptr_array_set_size(window->names, (gint)n);
	window->bytes = bytes;
	g_free(window->bound);
	window->bound = g_strdup(g_ptr_array_index(window->names, n - 1));
}

/* Could be one of ours; the rest is looked at when it is given. */
static bool
is_candidate(const Window *window, const char *name)
{
	return strcmp(name, window->last) > 0 &&
	       (!window->bound || strcmp(name, window->bound) <= 0) &&
	       !g_str_has_prefix(name, RESP_ATTR_PREFIX) &&
	       (strchr(name, '@') || g_str_has_prefix(name, "kvcfs:"));
}

/* The names of a reply to SCAN. */
static int
take_names(Window *window, RespStore *store, const redisReply *reply)
{
	if (reply->type == REDIS_REPLY_ERROR)
		return resp_note_refusal(store, reply->str, reply->len);
	if (reply->type != REDIS_REPLY_ARRAY || reply->elements != 2 ||
	    reply->element[0]->type != REDIS_REPLY_STRING || reply->element[0]->len == 0 ||
	    strspn(reply->element[0]->str, "0123456789") != reply->element[0]->len ||
	    reply->element[1]->type != REDIS_REPLY_ARRAY)
		return -EPROTO;
	g_free(window->scan_cursor);
	window->scan_cursor = g_strdup(reply->element[0]->str);
	for (size_t i = 0; i < reply->element[1]->elements; i++) {
		const redisReply *name = reply->element[1]->element[i];

		if (name->type != REDIS_REPLY_STRING)
			return -EPROTO;
		if (strlen(name->str) != name->len || !is_candidate(window, name->str))
			continue;
		g_ptr_array_add(window->names, g_strdup(name->str));
		window->bytes += name->len + NAME_OVERHEAD;
	}
	if (window->bytes > resp_list_bytes)
		trim(window);
	return 0;
}

/* A server that was restarted, or is another one, knows nothing of the cursor. */
static void
check_server(Window *window, const RespConnection *r)
{
	g_autofree char *server =
		*r->run_id ? g_strdup(r->run_id) : g_strdup_printf("%" G_GINT64_FORMAT, r->id);

	if (!g_strcmp0(window->server, server))
		return;
	g_free(window->server);
	window->server = g_steal_pointer(&server);
	window->pattern = 0;
	g_clear_pointer(&window->scan_cursor, g_free);
}

/* *R leads to what is scanned. */
static int
connect_to_scan(Window *window, const RespLister *lister, RespConnection **r, int64_t deadline_ns)
{
	*r = lister->r;
	if (lister->r)
		return 0;
	if (!window->masters)
		window->masters = resp_map_masters(lister->store, &window->map_version);
	if (window->masters->len == 0)
		return -EHOSTDOWN;
	return resp_cluster_connection(
		lister->client, g_ptr_array_index(window->masters, window->master), r, deadline_ns);
}

/* A node is done: the next one, or all of them anew if slots have moved meanwhile. */
static void
end_scan(Window *window, const RespLister *lister)
{
	uint64_t version = window->map_version;

	if (window->masters && ++window->master < window->masters->len) {
		window->pattern = 0;
		return;
	}
	if (window->masters)
		g_ptr_array_unref(resp_map_masters(lister->store, &version));
	if (version != window->map_version && window->again < MAX_AGAIN) {
		window->again++;
		window->pattern = 0;
		window->master = 0;
		g_clear_pointer(&window->masters, g_ptr_array_unref);
		return;
	}
	sort_names(window);
	window->is_ready = true;
}

/* One SCAN, or what is to be done after the last one. */
static int
scan_one(Window *window, const RespLister *lister, RespConnection *r, int64_t deadline_ns)
{
	const char *pattern = window->patterns[window->pattern];
	const char *const argv[] = {"SCAN",
				    window->scan_cursor ? window->scan_cursor : "0",
				    "COUNT",
				    COUNT,
				    *pattern ? "MATCH" : NULL,
				    pattern,
				    NULL};
	redisReply *reply;

	if (window->scan_cursor && !strcmp(window->scan_cursor, "0")) {
		g_clear_pointer(&window->scan_cursor, g_free);
		if (!window->patterns[++window->pattern])
			end_scan(window, lister);
		return 0;
	}
	int rc = resp_command(r, argv, &reply, deadline_ns);
	if (rc < 0 && lister->client)
		resp_cluster_drop(lister->client, r, rc);
	if (rc < 0)
		return rc;
	rc = take_names(window, lister->store, reply);
	freeReplyObject(reply);
	return rc;
}

static int
scan(Window *window, const RespLister *lister, int64_t deadline_ns)
{
	RespConnection *r;
	int rc = connect_to_scan(window, lister, &r, deadline_ns);

	if (rc < 0)
		return rc;
	check_server(window, r);
	return scan_one(window, lister, r, deadline_ns);
}

/* ---- Pages --------------------------------------------------------------------------------- */

typedef struct Page {
	KvcL2ListEntry *entries;
	size_t n, max;
	guint first; /* name of the window that it began with */
	bool is_last;
} Page;

static void
item_clear(void *data)
{
	KvcConnectorItem *item = data;

	kvc_object_key_unref(item->key);
	kvc_xattrs_unref(item->info.xattrs);
}

/* Those of the next names that are keys of the scope, as many as there is room for. */
static GArray *
take_items(Window *window, size_t max)
{
	GArray *items = g_array_new(FALSE, TRUE, sizeof(KvcConnectorItem));

	g_array_set_clear_func(items, item_clear);
	while (items->len < MIN(max, RESP_MAX_BATCH) && window->at < window->names->len) {
		const char *name = g_ptr_array_index(window->names, window->at++);
		g_autoptr(KvcObjectKey) key = kvc_store_name_parse(name);

		if (!key || (window->scope && key->scope != window->scope))
			continue;
		KvcConnectorItem item = {
			.key = g_steal_pointer(&key), .name = name, .error = -EINPROGRESS};
		g_array_append_val(items, item);
	}
	return items;
}

/* Entries out of the names; those that are gone meanwhile are left out. */
static int
take_entries(Window *window, const RespLister *lister, Page *page, int64_t deadline_ns)
{
	g_autoptr(GArray) items = take_items(window, page->max - page->n);
	KvcConnectorItem *asked[RESP_MAX_BATCH];

	if (items->len == 0)
		return 0;
	for (guint i = 0; i < items->len; i++)
		asked[i] = &g_array_index(items, KvcConnectorItem, i);
	int rc = lister->r ? resp_exists(lister->r, asked, items->len, deadline_ns)
			   : resp_cluster_exists(lister->client, asked, items->len, deadline_ns);
	for (guint i = 0; rc == 0 && i < items->len; i++) {
		/* What a node that is gone has is not gone. */
		if (lister->client && asked[i]->error < 0 && asked[i]->error != -ENOENT)
			return -EHOSTDOWN;
		if (asked[i]->error < 0)
			continue;
		page->entries[page->n].key = kvc_object_key_ref(asked[i]->key);
		page->entries[page->n++].info = asked[i]->info;
		asked[i]->info.xattrs = NULL;
	}
	return rc;
}

/* A page is of one window: until the next one comes, it can be given again. */
static int
fill_page(Window *window, const RespLister *lister, Page *page, int64_t deadline_ns)
{
	gint64 end_us = g_get_monotonic_time() + PAGE_US;
	int rc = 0;

	while (rc == 0 && page->n < page->max) {
		bool is_used_up = window->is_ready && window->at == window->names->len;

		if (is_used_up && !window->bound) {
			page->is_last = true;
			break;
		} else if (window->is_ready && !is_used_up) {
			rc = take_entries(window, lister, page, deadline_ns);
		} else if (page->n > 0 || g_get_monotonic_time() > end_us) {
			break;
		} else if (is_used_up) {
			begin_window(window, g_strdup(last_given(window)));
			page->first = 0;
		} else {
			rc = scan(window, lister, deadline_ns);
		}
	}
	return rc;
}

static void
drop_entries(Page *page)
{
	for (size_t i = 0; i < page->n; i++) {
		kvc_object_key_unref(page->entries[i].key);
		kvc_xattrs_unref(page->entries[i].info.xattrs);
		page->entries[i] = (KvcL2ListEntry){0};
	}
}

ssize_t
resp_list(void *connection,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max,
	  int64_t deadline_ns)
{
	RespConnection *r = connection;

	return resp_list_from(&(RespLister){r->store, r, NULL}, scope, cursor, entries, max,
			      deadline_ns);
}

ssize_t
resp_list_from(const RespLister *lister,
	       const KvcKeyScope *scope,
	       char **cursor,
	       KvcL2ListEntry *entries,
	       size_t max,
	       int64_t deadline_ns)
{
	RespStore *store = lister->store;
	g_autofree char *at = g_steal_pointer(cursor);
	Window *window = take_window(store, scope, at);

	if (!window)
		return -EINVAL;
	Page page = {.entries = entries, .max = max, .first = window->at};
	int rc = fill_page(window, lister, &page, deadline_ns);
	if (rc < 0) {
		drop_entries(&page);
		window->at = page.first;
	} else if (!page.is_last) {
		*cursor = g_strdup_printf("%" G_GUINT64_FORMAT ":%s", window->number,
					  last_given(window));
	}
	if (page.is_last) {
		window_free(window);
	} else { /* also after a failure: the caller may try again */
		window->used_us = g_get_monotonic_time();
		g_ptr_array_add(store->windows, window);
	}
	return rc < 0 ? rc : (ssize_t)page.n;
}
