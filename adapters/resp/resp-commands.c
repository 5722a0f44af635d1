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

static int
read_value(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
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
		rc = read_value(r, items[i], deadline_ns);
	return rc;
}

/* The reply to a change. */
static int
read_done(RespConnection *r, KvcConnectorItem *item, char type, int64_t deadline_ns)
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

static int
send_values(RespConnection *r, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autofree struct iovec *iov = g_new(struct iovec, 3 * n);
	g_autoptr(GPtrArray) heads = g_ptr_array_new_with_free_func(g_free);

	for (size_t i = 0; i < n; i++) {
		size_t bytes = items[i]->object.bytes;
		char *head = g_strdup_printf("*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
					     strlen(items[i]->name), items[i]->name, bytes);

		g_ptr_array_add(heads, head);
		iov[3 * i] = (struct iovec){head, strlen(head)};
		iov[3 * i + 1] = (struct iovec){items[i]->object.data, bytes};
		iov[3 * i + 2] = (struct iovec){(char *)"\r\n", 2};
	}
	return resp_send(r, iov, 3 * n, deadline_ns);
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
		rc = read_done(r, sent[i], '+', deadline_ns);
	r->is_changing = rc < 0;
	return rc;
}

int
resp_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	int rc = resp_settle_doubts(r, deadline_ns);

	if (rc < 0)
		return rc;
	r->is_changing = true;
	rc = send_for_items(r, "DEL", items, n, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n; i++)
		rc = read_done(r, items[i], ':', deadline_ns);
	r->is_changing = rc < 0;
	return rc;
}

static int
read_number(RespConnection *r, KvcConnectorItem *item, int64_t *number, int64_t deadline_ns)
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

/* STRLEN is 0 of what is not there as well. */
int
resp_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	RespConnection *r = connection;
	g_autofree KvcConnectorItem **empty = g_new(KvcConnectorItem *, n);
	size_t n_empty = 0;
	int64_t number;
	int rc = send_for_items(r, "STRLEN", items, n, deadline_ns);

	for (size_t i = 0; rc == 0 && i < n; i++) {
		rc = read_number(r, items[i], &number, deadline_ns);
		if (rc < 0 || items[i]->error < 0)
			continue;
		items[i]->info.bytes = (uint64_t)number;
		if (number == 0)
			empty[n_empty++] = items[i];
	}
	if (rc == 0 && n_empty > 0)
		rc = send_for_items(r, "EXISTS", empty, n_empty, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n_empty; i++) {
		rc = read_number(r, empty[i], &number, deadline_ns);
		if (rc == 0 && empty[i]->error == 0 && number == 0)
			empty[i]->error = -ENOENT;
	}
	return rc;
}

int
resp_rename(void *connection,
	    const KvcConnectorItem *old_item,
	    const KvcConnectorItem *new_item,
	    int64_t deadline_ns)
{
	RespConnection *r = connection;
	const char *const argv[] = {"RENAME", old_item->name, new_item->name, NULL};
	redisReply *reply;
	int rc = resp_settle_doubts(r, deadline_ns);

	if (rc < 0)
		return rc;
	r->is_changing = true;
	rc = resp_command(r, argv, &reply, deadline_ns);
	if (rc < 0)
		return rc;
	r->is_changing = false;
	if (reply->type == REDIS_REPLY_ERROR)
		rc = !strcmp(reply->str, "ERR no such key")
			     ? -ENOENT
			     : resp_note_refusal(r->store, reply->str, reply->len);
	else
		resp_note_success(r->store, true);
	freeReplyObject(reply);
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
