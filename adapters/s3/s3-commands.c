/* SPDX-License-Identifier: Apache-2.0 */

/* The calls of the framework, each about a batch of objects: all requests of it go at once. */

#include <errno.h>
#include <string.h>

#include <kvcache/crc.h>

#include "s3.h"

/* A store that has answered so short ago need not be asked whether it is there. */
#define PROBE_NS (2 * KVC_SEC_NS)

/* What one kind of call does with an item. */
typedef struct Command {
	const char *method;
	bool is_bulk, is_change;
	int too_long; /* -errno of a name that is too long */
	/* Optional: fills in X. 0, or the error of the item: it is not asked. */
	int (*begin)(S3Store *store, KvcConnectorItem *item, S3Exchange *x);
	/* Optional: X went well. The error of the item. */
	int (*end)(S3Connection *connection,
		   KvcConnectorItem *item,
		   const char *name,
		   S3Exchange *x);
} Command;

typedef struct Request {
	KvcConnectorItem *item;
	char *name;
} Request;

/* Of the items that are asked, into REQUESTS and XS; how many. */
static size_t
begin_all(S3Store *store,
	  const Command *command,
	  KvcConnectorItem *const *items,
	  size_t n,
	  Request *requests,
	  S3Exchange *xs)
{
	size_t n_asked = 0;

	for (size_t i = 0; i < n; i++) {
		Request *request = &requests[n_asked];
		S3Exchange *x = &xs[n_asked];
		char *name = s3_name_format(store->prefix, items[i]->name);

		s3_exchange_init(x, store, command->method, name, NULL);
		x->is_bulk = command->is_bulk;
		int error = strlen(name) > S3_MAX_NAME_BYTES ? command->too_long : 0;
		if (error == -ENAMETOOLONG)
			s3_note_name(store, name);
		if (error == 0 && command->begin)
			error = command->begin(store, items[i], x);
		if (error == 0) {
			*request = (Request){items[i], name};
			n_asked++;
			continue;
		}
		items[i]->error = error;
		s3_exchange_clear(x);
		g_free(name);
	}
	return n_asked;
}

/* 0, or -errno of the store: the items that it is about keep -EINPROGRESS. */
static int
run(S3Connection *connection,
    const Command *command,
    KvcConnectorItem *const *items,
    size_t n,
    int64_t deadline_ns)
{
	S3Store *store = connection->store;
	g_autofree Request *requests = g_new(Request, n);
	g_autofree S3Exchange *xs = g_new(S3Exchange, n);
	int rc = 0;

	n = begin_all(store, command, items, n, requests, xs);
	s3_run(connection, xs, n, deadline_ns);
	for (size_t i = 0; i < n; i++) {
		KvcConnectorItem *item = requests[i].item;
		int error = s3_conclude(store, &xs[i], command->is_change);

		if (error == 0 && command->end)
			error = command->end(connection, item, requests[i].name, &xs[i]);
		if (error == -ECANCELED || kvc_is_connection_error(error))
			rc = error;
		else
			item->error = error;
		s3_exchange_clear(&xs[i]);
		g_free(requests[i].name);
	}
	return rc;
}

/* ---- Get ----------------------------------------------------------------------------------- */

static int
begin_get(S3Store *store, KvcConnectorItem *item, S3Exchange *x)
{
	x->has_sink = true;
	x->sink = item->object.data;
	x->sink_bytes = item->object.bytes;
	return 0;
}

/* 0: the memory of ITEM has the object; -EBADMSG: it has other bytes; else its error. */
static int
check_get(S3Store *store, const KvcConnectorItem *item, const S3Exchange *x)
{
	const KvcMemoryObj *object = &item->object;
	S3Meta meta;

	if (x->status != 200)
		return s3_note_nonsense(store, x, "not the whole object");
	if (x->is_too_long || x->received != object->bytes)
		return -ENOENT; /* of another size */
	s3_meta_parse(x, &meta);
	bool is_good = !meta.has_crc || kvc_crc32c(0, object->data, object->bytes) == meta.crc;
	s3_meta_clear(&meta);
	return is_good ? 0 : -EBADMSG;
}

/* Bytes that are wrong are asked for once more: a connection without TLS may have done that. */
static int
end_get(S3Connection *connection, KvcConnectorItem *item, const char *name, S3Exchange *x)
{
	S3Store *store = connection->store;
	int rc = check_get(store, item, x);
	S3Exchange again;

	if (rc != -EBADMSG)
		return rc;
	s3_exchange_init(&again, store, "GET", name, NULL);
	again.is_bulk = true;
	begin_get(store, item, &again);
	s3_run(connection, &again, 1, x->deadline_ns);
	rc = s3_conclude(store, &again, false);
	if (rc == 0)
		rc = check_get(store, item, &again);
	if (rc == -EBADMSG) {
		atomic_fetch_add(&store->n_crc_mismatches, 1);
		s3_note_damaged(store, name, again.etag);
		s3_note_nonsense(store, &again, "not the bytes that were stored");
		rc = -EIO;
	}
	s3_exchange_clear(&again);
	return rc;
}

int
s3_get(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	static const Command get = {.method = "GET",
				    .is_bulk = true,
				    .too_long = -ENOENT,
				    .begin = begin_get,
				    .end = end_get};

	return run(connection, &get, items, n, deadline_ns);
}

/* ---- Set ----------------------------------------------------------------------------------- */

static int
begin_set(S3Store *store, KvcConnectorItem *item, S3Exchange *x)
{
	const KvcMemoryObj *object = &item->object;
	S3Meta meta = {.has_crc = true, .crc = kvc_crc32c(0, object->data, object->bytes)};

	if (object->bytes > S3_MAX_OBJECT_BYTES)
		return -EFBIG;
	if (object->attributes)
		meta.attributes = *object->attributes;
	if (!s3_meta_add(x, &meta))
		atomic_fetch_add(&store->n_attributes_dropped, 1);
	x->body = object->data;
	x->body_bytes = object->bytes;
	return 0;
}

static int
end_set(S3Connection *connection, KvcConnectorItem *item, const char *name, S3Exchange *x)
{
	s3_note_damaged(connection->store, name, NULL);
	s3_note_usage(connection->store, (int64_t)item->object.bytes);
	return 0;
}

int
s3_set(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	static const Command set = {.method = "PUT",
				    .is_bulk = true,
				    .is_change = true,
				    .too_long = -ENAMETOOLONG,
				    .begin = begin_set,
				    .end = end_set};

	return run(connection, &set, items, n, deadline_ns);
}

/* ---- Exists, remove ------------------------------------------------------------------------ */

static int
end_exists(S3Connection *connection, KvcConnectorItem *item, const char *name, S3Exchange *x)
{
	S3Store *store = connection->store;
	KvcL2ObjectInfo *info = &item->info;
	S3Meta meta;

	if (x->content_length < 0)
		return s3_note_nonsense(store, x, "no Content-Length");
	if (s3_is_damaged(store, name, x->etag))
		return -ENOENT;
	s3_meta_parse(x, &meta);
	kvc_xattrs_unref(info->xattrs);
	*info = (KvcL2ObjectInfo){
		.bytes = (uint64_t)x->content_length,
		.mtime_ns = meta.attributes.mtime_ns,
		.mode = meta.attributes.mode,
		.uid = meta.attributes.uid,
		.gid = meta.attributes.gid,
		.xattrs = meta.attributes.xattrs,
		.version_ns = meta.attributes.version_ns,
	};
	return 0;
}

int
s3_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	static const Command exists = {.method = "HEAD", .too_long = -ENOENT, .end = end_exists};

	return run(connection, &exists, items, n, deadline_ns);
}

static int
end_remove(S3Connection *connection, KvcConnectorItem *item, const char *name, S3Exchange *x)
{
	s3_note_damaged(connection->store, name, NULL);
	s3_note_usage(connection->store, -1);
	return 0;
}

int
s3_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	static const Command remove = {
		.method = "DELETE", .is_change = true, .too_long = -ENOENT, .end = end_remove};

	return run(connection, &remove, items, n, deadline_ns);
}

/* ---- The store ----------------------------------------------------------------------------- */

static int
probe(S3Connection *connection, int64_t deadline_ns)
{
	static const char *const query[] = {"list-type", "2", "max-keys", "1", NULL};
	S3Store *store = connection->store;
	S3Exchange x;
	S3Page page;

	if (kvc_now_ns() - atomic_load(&store->answered_ns) < PROBE_NS)
		return 0;
	s3_exchange_init(&x, store, "GET", NULL, s3_query_format(query));
	s3_run(connection, &x, 1, deadline_ns);
	int rc = s3_conclude(store, &x, false);
	if (rc == -ENOENT)
		rc = -ENODEV;
	if (rc == 0 && (!x.text || !s3_page_parse(x.text->str, x.text->len, &page)))
		rc = s3_note_nonsense(store, &x, "no ListBucketResult");
	else if (rc == 0)
		s3_page_clear(&page);
	s3_exchange_clear(&x);
	return rc;
}

int
s3_connect(void *user_store, void **connection, int64_t deadline_ns)
{
	S3Connection *c = g_new0(S3Connection, 1);

	c->store = user_store;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->ended, NULL);
	int rc = probe(c, deadline_ns);
	if (rc < 0)
		s3_disconnect(c);
	else
		*connection = c;
	return rc;
}

/* The protocol has no such question. */
int
s3_size(void *connection, KvcL2Usage *usage, int64_t deadline_ns)
{
	S3Store *store = ((S3Connection *)connection)->store;

	pthread_mutex_lock(&store->lock);
	*usage = store->usage;
	pthread_mutex_unlock(&store->lock);
	usage->capacity_bytes = store->capacity_bytes;
	return 0;
}
