/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The calls of the framework: each sends the commands of a whole batch, then reads the replies. A
 * batch is a few megabytes at most, or one object: what the server has to keep for us is bounded.
 */

#include <errno.h>
#include <string.h>

#include "resp.h"

/* COMMAND with the name of each item. */
static int
send_for_items(RespConnection *r,
	       const char *command,
	       KvcConnectorItem *const *items,
	       size_t n,
	       int64_t deadline_ns)
{
	g_autoptr(GString) text = g_string_new(NULL);

	for (size_t i = 0; i < n; i++) {
		const char *const argv[] = {command, items[i]->name, NULL};

		resp_append_command(text, argv);
	}
	return resp_send_string(r, text, deadline_ns);
}

int
resp_read_value(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	const KvcMemoryObj *object = &item->object;
	RespReply reply;
	int rc = resp_read_reply(r, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply.type == '-') {
		item->error = reply.error;
		return 0;
	}
	if (reply.type != '$')
		return -EPROTO;
	if (reply.number >= 0) {
		bool fits = (uint64_t)reply.number == object->bytes;

		rc = resp_read_bytes(r, fits ? object->data : NULL, (size_t)reply.number,
				     deadline_ns);
		if (rc < 0)
			return rc;
		if (fits)
			resp_note_success(r->store, false);
		item->error = fits ? 0 : -ENOENT;
		return 0;
	}
	item->error = -ENOENT;
	return 0;
}

int
resp_get(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	int rc = send_for_items(r, "GET", items, n, deadline_ns);

	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = resp_read_value(r, items[i], deadline_ns);
	return rc;
}

/* The reply to a change. */
int
resp_read_done(RespConnection *r, KvcConnectorItem *item, char type, int64_t deadline_ns)
{
	RespReply reply;
	int rc = resp_read_reply(r, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply.type != '-' && reply.type != type)
		return -EPROTO;
	item->error = reply.error;
	if (reply.error == 0)
		resp_note_success(r->store, true);
	return 0;
}

/* The parts of a batch of SET: what belongs to nobody else is in owned. */
typedef struct Parts {
	GArray *iov;
	GPtrArray *owned;
} Parts;

static void
append_part(Parts *parts, const void *data, size_t bytes)
{
	struct iovec iov = {(void *)data, bytes};

	g_array_append_val(parts->iov, iov);
}

/* TEXT (transfer full). */
static void
append_text(Parts *parts, GString *text)
{
	append_part(parts, text->str, text->len);
	g_ptr_array_add(parts->owned, g_string_free(text, FALSE));
}

/*
 * A value and its attributes change together, by MSET. Where it has none, those of the one before
 * go first: two replies.
 */
static void
append_value(Parts *parts, KvcConnectorItem *item)
{
	g_autofree char *attr_name = resp_attr_name(item->name);
	const char *const argv[] = {"DEL", attr_name, NULL};
	bool has_attr = resp_attr_is_needed(item->key, item->object.attributes);
	GString *text = g_string_new(NULL);

	if (!has_attr)
		resp_append_command(text, argv);
	g_string_append(text, has_attr ? "*5\r\n$4\r\nMSET\r\n" : "*3\r\n$3\r\nSET\r\n");
	g_string_append_printf(text, "$%zu\r\n%s\r\n$%zu\r\n", strlen(item->name), item->name,
			       item->object.bytes);
	append_text(parts, text);
	append_part(parts, item->object.data, item->object.bytes);
	append_part(parts, "\r\n", 2);
	if (!has_attr)
		return;
	text = g_string_new(NULL);
	g_autoptr(GString) attr = resp_attr_format(item->object.attributes, item->object.bytes);
	g_string_append_printf(text, "$%zu\r\n%s\r\n$%zu\r\n", strlen(attr_name), attr_name,
			       attr->len);
	g_string_append_len(text, attr->str, (gssize)attr->len);
	g_string_append(text, "\r\n");
	append_text(parts, text);
}

/* The replies to append_value(); what becomes of old attributes is no matter of the object's. */
static int
read_stored(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	RespReply reply;

	if (!resp_attr_is_needed(item->key, item->object.attributes)) {
		int rc = resp_read_reply(r, &reply, deadline_ns);

		if (rc < 0)
			return rc;
		if (reply.type != '-' && reply.type != ':')
			return -EPROTO;
	}
	return resp_read_done(r, item, '+', deadline_ns);
}

static int
send_values(RespConnection *r, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autoptr(GArray) iov = g_array_new(FALSE, FALSE, sizeof(struct iovec));
	g_autoptr(GPtrArray) owned = g_ptr_array_new_with_free_func(g_free);
	Parts parts = {iov, owned};

	for (size_t i = 0; i < n; i++)
		append_value(&parts, items[i]);
	return resp_send(r, (struct iovec *)(void *)iov->data, iov->len, deadline_ns);
}

int
resp_set(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	g_autofree KvcConnectorItem **sent = g_new(KvcConnectorItem *, n);
	size_t n_sent = 0;

	for (size_t i = 0; i < n; i++) {
		/* The server would end the connection in the middle of it. */
		if (items[i]->object.bytes > RESP_MAX_VALUE_BYTES)
			items[i]->error = -EFBIG;
		else
			sent[n_sent++] = items[i];
	}
	int rc = resp_settle_doubts(r, deadline_ns);
	if (rc < 0)
		return rc;
	r->is_changing = true;
	rc = send_values(r, sent, n_sent, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n_sent; i++)
		rc = read_stored(r, sent[i], deadline_ns);
	r->is_changing = rc < 0;
	return rc;
}

static int
send_deletions(RespConnection *r, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autoptr(GString) text = g_string_new(NULL);

	for (size_t i = 0; i < n; i++) {
		g_autofree char *attr_name = resp_attr_name(items[i]->name);
		const char *const argv[] = {"DEL", items[i]->name, attr_name, NULL};

		resp_append_command(text, argv);
	}
	return resp_send_string(r, text, deadline_ns);
}

int
resp_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	int rc = resp_settle_doubts(r, deadline_ns);

	if (rc < 0)
		return rc;
	r->is_changing = true;
	rc = send_deletions(r, items, n, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = resp_read_done(r, items[i], ':', deadline_ns);
	r->is_changing = rc < 0;
	return rc;
}

int
resp_read_number(RespConnection *r, KvcConnectorItem *item, int64_t *number, int64_t deadline_ns)
{
	RespReply reply;
	int rc = resp_read_reply(r, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply.type != '-' && reply.type != ':')
		return -EPROTO;
	item->error = reply.error;
	*number = reply.number;
	if (reply.error == 0)
		resp_note_success(r->store, false);
	return 0;
}

/* STRLEN of each, and its attributes. */
static int
send_questions(RespConnection *r, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autoptr(GString) text = g_string_new(NULL);

	for (size_t i = 0; i < n; i++) {
		g_autofree char *attr_name = resp_attr_name(items[i]->name);
		const char *const length[] = {"STRLEN", items[i]->name, NULL};
		const char *const attr[] = {"GET", attr_name, NULL};

		resp_append_command(text, length);
		resp_append_command(text, attr);
	}
	return resp_send_string(r, text, deadline_ns);
}

/* Into the info of ITEM, if it is there. */
int
resp_read_attributes(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	g_autofree char *text = NULL;
	RespReply reply;
	int rc = resp_read_reply(r, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply.type != '-' && reply.type != '$')
		return -EPROTO;
	if (reply.type == '-' || reply.number < 0)
		return 0;
	if (reply.number <= RESP_ATTR_MAX_BYTES)
		text = g_malloc((size_t)reply.number + 1);
	rc = resp_read_bytes(r, text, (size_t)reply.number, deadline_ns);
	if (rc == 0 && text && item->error == 0)
		resp_attr_parse(text, (size_t)reply.number, &item->info);
	return rc;
}

static void
forget_info(KvcConnectorItem *item)
{
	kvc_xattrs_unref(item->info.xattrs);
	item->info = (KvcL2ObjectInfo){0};
}

/* The answers to send_questions() about ITEM. Its error is set when both are there. */
static int
read_answers(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	int64_t number;
	int rc = resp_read_number(r, item, &number, deadline_ns);
	int error = item->error;

	if (rc < 0)
		return rc;
	item->info.bytes = error == 0 ? (uint64_t)number : 0;
	rc = resp_read_attributes(r, item, deadline_ns);
	item->error = rc < 0 ? -EINPROGRESS : error;
	return rc;
}

/* STRLEN is 0 of what is not there as well. */
int
resp_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	g_autofree KvcConnectorItem **empty = g_new(KvcConnectorItem *, n);
	size_t n_empty = 0;
	int64_t number;
	int rc = send_questions(r, items, n, deadline_ns);

	for (size_t i = 0; rc == 0 && i < n; i++) {
		forget_info(items[i]);
		rc = read_answers(r, items[i], deadline_ns);
		if (rc < 0 || items[i]->error < 0 || items[i]->info.bytes > 0)
			continue;
		items[i]->error = -EINPROGRESS;
		empty[n_empty++] = items[i];
	}
	if (rc == 0 && n_empty > 0)
		rc = send_for_items(r, "EXISTS", empty, n_empty, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n_empty; i++) {
		rc = resp_read_number(r, empty[i], &number, deadline_ns);
		if (rc == 0 && empty[i]->error == 0 && number == 0)
			empty[i]->error = -ENOENT;
	}
	return rc;
}

static uint64_t
find_number(const char *text, const char *name)
{
	const char *at = strstr(text, name);

	return at ? g_ascii_strtoull(at + strlen(name), NULL, 10) : 0;
}

/* Of the whole server: it does not know what is ours. */
int
resp_size(void *connection, KvcL2Usage *usage, int64_t deadline_ns)
{
	static const char *const info[] = {"INFO", "memory", NULL}, *const size[] = {"DBSIZE",
										     NULL};
	RespConnection *r = connection;
	redisReply *reply;
	int rc = resp_command(r, info, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply->type == REDIS_REPLY_STRING) {
		usage->bytes_used = find_number(reply->str, "\nused_memory:");
		usage->capacity_bytes = find_number(reply->str, "\nmaxmemory:");
	}
	freeReplyObject(reply);
	rc = resp_command(r, size, &reply, deadline_ns);
	if (rc < 0)
		return rc;
	if (reply->type == REDIS_REPLY_INTEGER)
		usage->objects = (uint64_t)reply->integer;
	freeReplyObject(reply);
	if (r->store->capacity_bytes)
		usage->capacity_bytes = r->store->capacity_bytes;
	return 0;
}
