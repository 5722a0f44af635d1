/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Listing: ListObjectsV2, in the order of the names. A cursor is the number of the prefix that is
 * listed and the last name that was given, from which the store goes on:
 *
 *	<number of the prefix>:<name in the bucket>
 *
 * A page has name, size and time of an object, but no metadata. Plain files and chains are asked
 * for theirs, many at once; chunks, of which there may be millions, are not: their mode is unknown
 * until they are looked up.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <kvcache/key-codec.h>

#include "s3.h"

#define PAGE_ENTRIES 1000
/* A call ends with what it has after so long: the caller comes again. */
#define CALL_NS (1 * KVC_SEC_NS)

typedef struct Listing {
	S3Connection *connection;
	const KvcKeyScope *scope;
	GPtrArray *prefixes;
	guint at;   /* the prefix */
	char *last; /* name, "" at the beginning of a prefix */
	KvcL2ListEntry *entries;
	size_t n, max;
} Listing;

/* false: no cursor of ours. */
static bool
take_cursor(Listing *l, const char *cursor)
{
	char *end;

	if (!cursor) {
		l->last = g_strdup("");
		return true;
	}
	guint64 at = g_ascii_strtoull(cursor, &end, 10);
	if (end == cursor || *end != ':' || at >= l->prefixes->len)
		return false;
	l->at = (guint)at;
	l->last = g_strdup(end + 1);
	return true;
}

/* ---- One page of the store ----------------------------------------------------------------- */

static int
ask_page(Listing *l, S3Page *page, int64_t deadline_ns)
{
	S3Store *store = l->connection->store;
	const char *prefix = g_ptr_array_index(l->prefixes, l->at);
	char count[16];
	const char *pairs[16] = {"list-type", "2", "encoding-type", "url", "max-keys", count};
	size_t n = 6;
	S3Exchange x;

	g_snprintf(count, sizeof(count), "%zu", MIN(l->max - l->n, PAGE_ENTRIES));
	if (*prefix) {
		pairs[n++] = "prefix";
		pairs[n++] = prefix;
	}
	if (*l->last) {
		pairs[n++] = "start-after";
		pairs[n++] = l->last;
	}
	s3_exchange_init(&x, store, "GET", NULL, s3_query_format(pairs));
	s3_run(l->connection, &x, 1, deadline_ns);
	int rc = s3_conclude(store, &x, false);
	if (rc == -ENOENT)
		rc = -ENODEV;
	if (rc == 0 && (!x.text || !s3_page_parse(x.text->str, x.text->len, page)))
		rc = s3_note_nonsense(store, &x, "no ListBucketResult");
	s3_exchange_clear(&x);
	return rc;
}

/* It is in the scope, and in the form that it would be stored in; else NULL. */
static KvcObjectKey *
key_of(const Listing *l, const char *name)
{
	g_autofree char *store_name = s3_name_parse(l->connection->store->prefix, name);
	g_autoptr(KvcObjectKey) key = store_name ? kvc_store_name_parse(store_name) : NULL;

	if (!key || (l->scope && key->scope != l->scope))
		return NULL;
	return g_steal_pointer(&key);
}

/* The entries of PAGE that are keys; the cursor goes behind the last one. */
static int
take_page(Listing *l, const S3Page *page)
{
	for (guint i = 0; i < page->entries->len && l->n < l->max; i++) {
		const S3Entry *entry = &g_array_index(page->entries, S3Entry, i);
		KvcObjectKey *key = key_of(l, entry->name);

		/* What is not in order would be listed for ever. */
		if (strcmp(entry->name, l->last) <= 0)
			return -EPROTO;
		g_free(l->last);
		l->last = g_strdup(entry->name);
		if (!key)
			continue;
		l->entries[l->n++] = (KvcL2ListEntry){
			.key = key, .info = {.bytes = entry->bytes, .mtime_ns = entry->mtime_ns}};
	}
	return 0;
}

/* ---- Attributes ---------------------------------------------------------------------------- */

/* Of N entries, at most S3_MAX_BATCH; one that is gone meanwhile keeps what the page said. */
static int
ask_attributes(Listing *l, KvcL2ListEntry *const *entries, size_t n, int64_t deadline_ns)
{
	KvcConnectorItem items[S3_MAX_BATCH], *asked[S3_MAX_BATCH] = {0};

	for (size_t i = 0; i < n; i++) {
		items[i] = (KvcConnectorItem){.key = entries[i]->key,
					      .name = kvc_store_name_format(entries[i]->key),
					      .error = -EINPROGRESS};
		asked[i] = &items[i];
	}
	int rc = s3_exists(l->connection, asked, n, deadline_ns);
	for (size_t i = 0; i < n; i++) {
		if (items[i].error == 0)
			entries[i]->info = items[i].info;
		g_free((char *)items[i].name);
	}
	return rc;
}

static int
add_attributes(Listing *l, int64_t deadline_ns)
{
	KvcL2ListEntry *asked[S3_MAX_BATCH];
	size_t n = 0;
	int rc = 0;

	for (size_t i = 0; rc == 0 && i < l->n; i++) {
		if (l->entries[i].key->space != KVC_SPACE_CHUNK)
			asked[n++] = &l->entries[i];
		if (n > 0 && (n == S3_MAX_BATCH || i == l->n - 1)) {
			rc = ask_attributes(l, asked, n, deadline_ns);
			n = 0;
		}
	}
	return rc;
}

/* ---- Listing ------------------------------------------------------------------------------- */

/* *IS_LAST: nothing comes after these entries. */
static int
fill(Listing *l, bool *is_last, int64_t deadline_ns)
{
	int64_t end_ns = kvc_now_ns() + CALL_NS;
	int rc = 0;

	while (rc == 0 && l->n < l->max && kvc_now_ns() < end_ns) {
		S3Page page;

		rc = ask_page(l, &page, deadline_ns);
		if (rc < 0)
			break;
		rc = take_page(l, &page);
		if (rc == 0 && page.is_truncated && page.entries->len == 0)
			rc = -EPROTO;
		if (rc == 0 && !page.is_truncated && l->at + 1 == l->prefixes->len)
			*is_last = true;
		else if (rc == 0 && !page.is_truncated) {
			l->at++;
			g_free(l->last);
			l->last = g_strdup("");
		}
		s3_page_clear(&page);
		if (*is_last)
			break;
	}
	return rc < 0 ? rc : add_attributes(l, deadline_ns);
}

static void
drop_entries(Listing *l)
{
	for (size_t i = 0; i < l->n; i++) {
		kvc_object_key_unref(l->entries[i].key);
		kvc_xattrs_unref(l->entries[i].info.xattrs);
		l->entries[i] = (KvcL2ListEntry){0};
	}
}

/* A whole listing tells how much there is. */
static void
note_usage(Listing *l, bool is_first, bool is_last)
{
	S3Store *store = l->connection->store;

	if (l->scope)
		return;
	pthread_mutex_lock(&store->lock);
	if (is_first)
		store->listed = (KvcL2Usage){0};
	for (size_t i = 0; i < l->n; i++) {
		store->listed.bytes_used += l->entries[i].info.bytes;
		store->listed.objects++;
	}
	if (is_last)
		store->usage = store->listed;
	pthread_mutex_unlock(&store->lock);
}

ssize_t
s3_list(void *user_connection,
	const KvcKeyScope *scope,
	char **cursor,
	KvcL2ListEntry *entries,
	size_t max,
	int64_t deadline_ns)
{
	S3Connection *connection = user_connection;
	g_autofree char *given = g_steal_pointer(cursor);
	Listing l = {.connection = connection, .scope = scope, .entries = entries, .max = max};
	bool is_last = false;
	int rc = -EINVAL;

	l.prefixes = s3_name_prefixes(connection->store->prefix, scope);
	if (take_cursor(&l, given))
		rc = fill(&l, &is_last, deadline_ns);
	if (rc < 0) {
		drop_entries(&l);
	} else {
		note_usage(&l, !given, is_last);
		if (!is_last)
			*cursor = g_strdup_printf("%u:%s", l.at, l.last);
	}
	g_ptr_array_unref(l.prefixes);
	g_free(l.last);
	return rc < 0 ? rc : (ssize_t)l.n;
}
