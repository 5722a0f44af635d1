/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Other attributes, or another name: copies within the store. No payload goes over the line. A
 * rename is a copy and a deletion: killed between the two, both names are there.
 */

#include <errno.h>
#include <string.h>

#include "s3.h"

/* ---- Copying ------------------------------------------------------------------------------- */

/* X: the object FROM becomes TO. */
static void
begin_copy(S3Exchange *x, S3Store *store, const char *from, const char *to)
{
	g_autoptr(GString) source = g_string_new(NULL);

	g_string_append_printf(source, "/%s/", store->bucket);
	s3_append_encoded(source, from, true);
	/* Some stores take these only as they are. */
	g_string_replace(source, "%40", "@", 0);
	g_string_replace(source, "%3A", ":", 0);
	s3_exchange_init(x, store, "PUT", to, NULL);
	s3_exchange_add_header(x, "x-amz-copy-source", source->str);
}

/* A copy that takes long is answered with 200 before it has failed. */
static int
end_copy(S3Store *store, const S3Exchange *x)
{
	g_autofree char *code = NULL, *message = NULL, *text = NULL;
	int rc = s3_conclude(store, x, true);

	if (rc < 0)
		return rc;
	if (x->text && strstr(x->text->str, "<CopyObjectResult"))
		return 0;
	if (!x->text || !s3_error_parse(x->text->str, x->text->len, &code, &message))
		return s3_note_nonsense(store, x, "no CopyObjectResult");
	text = g_strdup_printf("%s: %s", code, message ? message : "");
	return s3_note_nonsense(store, x, text);
}

/* ---- Attributes ---------------------------------------------------------------------------- */

/* What is given, and what is there of the rest; its version stays in any case. */
static S3Meta
merge(const KvcObjectAttributes *given, const S3Meta *old)
{
	S3Meta merged = *old;
	KvcObjectAttributes *a = &merged.attributes;

	if (given->mtime_ns)
		a->mtime_ns = given->mtime_ns;
	if (given->mode) {
		a->mode = given->mode;
		a->uid = given->uid;
		a->gid = given->gid;
		a->xattrs = given->xattrs; /* no reference of its own */
	}
	return merged;
}

/* Of one that is there and unchanged since HEAD, the answer of which is in HEAD. */
static int
replace_meta(S3Connection *connection,
	     const char *name,
	     const KvcObjectAttributes *attributes,
	     const S3Exchange *head,
	     int64_t deadline_ns)
{
	S3Store *store = connection->store;
	S3Exchange x;
	S3Meta old;

	s3_meta_parse(head, &old);
	S3Meta meta = merge(attributes, &old);
	begin_copy(&x, store, name, name);
	s3_exchange_add_header(&x, "x-amz-metadata-directive", "REPLACE");
	if (head->etag)
		s3_exchange_add_header(&x, "x-amz-copy-source-if-match", head->etag);
	if (!s3_meta_add(&x, &meta))
		atomic_fetch_add(&store->n_attributes_dropped, 1);
	s3_meta_clear(&old);
	s3_run(connection, &x, 1, deadline_ns);
	int rc = end_copy(store, &x);
	s3_exchange_clear(&x);
	return rc;
}

static int
set_attributes(S3Connection *connection, const KvcConnectorItem *item, int64_t deadline_ns)
{
	S3Store *store = connection->store;
	g_autofree char *name = s3_name_format(store->prefix, item->name);
	S3Exchange head;

	if (strlen(name) > S3_MAX_NAME_BYTES)
		return -ENOENT;
	s3_exchange_init(&head, store, "HEAD", name, NULL);
	s3_run(connection, &head, 1, deadline_ns);
	int rc = s3_conclude(store, &head, false);
	if (rc == 0 && (head.content_length < 0 || s3_is_damaged(store, name, head.etag)))
		rc = -ENOENT;
	if (rc == 0)
		rc = replace_meta(connection, name, item->object.attributes, &head, deadline_ns);
	s3_exchange_clear(&head);
	return rc;
}

int
s3_set_attributes(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	for (size_t i = 0; i < n; i++) {
		int rc = set_attributes(connection, items[i], deadline_ns);

		if (rc == -ECANCELED || kvc_is_connection_error(rc))
			return rc;
		items[i]->error = rc;
	}
	return 0;
}

/* ---- Names --------------------------------------------------------------------------------- */

static int
delete_name(S3Connection *connection, const char *name, int64_t deadline_ns)
{
	S3Store *store = connection->store;
	S3Exchange x;

	s3_exchange_init(&x, store, "DELETE", name, NULL);
	s3_run(connection, &x, 1, deadline_ns);
	int rc = s3_conclude(store, &x, true);
	s3_exchange_clear(&x);
	return rc == -ENOENT ? 0 : rc;
}

int
s3_rename(void *user_connection,
	  const KvcConnectorItem *old_item,
	  const KvcConnectorItem *new_item,
	  int64_t deadline_ns)
{
	S3Connection *connection = user_connection;
	S3Store *store = connection->store;
	g_autofree char *from = s3_name_format(store->prefix, old_item->name);
	g_autofree char *to = s3_name_format(store->prefix, new_item->name);
	S3Exchange x;

	if (strlen(to) > S3_MAX_NAME_BYTES) {
		s3_note_name(store, to);
		return -ENAMETOOLONG;
	}
	begin_copy(&x, store, from, to);
	s3_run(connection, &x, 1, deadline_ns);
	int rc = end_copy(store, &x);
	s3_exchange_clear(&x);
	if (rc < 0)
		return rc;
	s3_note_damaged(store, to, NULL);
	return delete_name(connection, from, deadline_ns);
}
