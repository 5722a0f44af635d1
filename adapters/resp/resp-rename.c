/* SPDX-License-Identifier: Apache-2.0 */

/* What a change of the name, or of the attributes alone, is: several commands at once. */

#include <errno.h>
#include <string.h>

#include "resp.h"

/* ---- Attributes ---------------------------------------------------------------------------- */

static void
append(GString *text, const char *command, const char *name, const GString *value)
{
	const char *const argv[] = {command, name, NULL};

	if (!value) {
		resp_append_command(text, argv);
		return;
	}
	g_string_append_printf(text, "*3\r\n$%zu\r\n%s\r\n$%zu\r\n%s\r\n$%zu\r\n", strlen(command),
			       command, strlen(name), name, value->len);
	g_string_append_len(text, value->str, (gssize)value->len);
	g_string_append(text, "\r\n");
}

/* What ITEM is to have (or NULL). */
static GString *
merge(const KvcConnectorItem *item)
{
	KvcObjectAttributes merged = resp_attr_merge(item->object.attributes, &item->info);

	return resp_attr_is_needed(item->key, &merged) ? resp_attr_format(&merged, item->info.bytes)
						       : NULL;
}

/* Of those that are there. */
static int
send_attributes(RespConnection *r, KvcConnectorItem *items, size_t n, int64_t deadline_ns)
{
	g_autoptr(GString) text = g_string_new(NULL);

	for (size_t i = 0; i < n; i++) {
		g_autofree char *name = resp_attr_name(items[i].name);
		GString *value;

		if (items[i].error < 0)
			continue;
		value = merge(&items[i]);
		append(text, value ? "SET" : "DEL", name, value);
		if (value)
			g_string_free(value, TRUE);
	}
	return resp_send_string(r, text, deadline_ns);
}

static int
change_attributes(RespConnection *r, KvcConnectorItem *items, size_t n, int64_t deadline_ns)
{
	g_autofree KvcConnectorItem **asked = g_new(KvcConnectorItem *, n);
	RespReply reply;

	for (size_t i = 0; i < n; i++)
		asked[i] = &items[i];
	int rc = resp_exists(r, asked, n, deadline_ns);
	if (rc == 0)
		rc = resp_settle_doubts(r, deadline_ns);
	if (rc < 0)
		return rc;
	r->is_changing = true;
	rc = send_attributes(r, items, n, deadline_ns);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		if (items[i].error < 0)
			continue;
		rc = resp_read_reply(r, &reply, deadline_ns);
		if (rc == 0 && !strchr("+-:", reply.type))
			rc = -EPROTO;
		if (rc == 0)
			items[i].error = reply.error;
	}
	r->is_changing = rc < 0;
	return rc;
}

/* What is there now is asked for into copies: the caller's items may come with an info. */
int
resp_set_attributes(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autofree KvcConnectorItem *copies = g_new(KvcConnectorItem, n);

	for (size_t i = 0; i < n; i++) {
		copies[i] = *items[i];
		copies[i].info = (KvcL2ObjectInfo){0};
		copies[i].error = -EINPROGRESS;
	}
	int rc = change_attributes(connection, copies, n, deadline_ns);
	for (size_t i = 0; i < n; i++) {
		kvc_xattrs_unref(copies[i].info.xattrs);
		if (rc == 0)
			items[i]->error = copies[i].error;
	}
	return rc;
}

/* ---- Names --------------------------------------------------------------------------------- */

/* *VALUE (transfer full): the attributes of NAME, or NULL: it has none. */
static int
read_attributes(RespConnection *r, const char *name, GString **value, int64_t deadline_ns)
{
	const char *const argv[] = {"GET", name, NULL};
	redisReply *reply;
	int rc = resp_command(r, argv, &reply, deadline_ns);

	*value = NULL;
	if (rc < 0)
		return rc;
	if (reply->type == REDIS_REPLY_STRING)
		*value = g_string_new_len(reply->str, (gssize)reply->len);
	freeReplyObject(reply);
	return 0;
}

/* N replies; *ERROR is the first of an error, if it was 0. */
static int
read_errors(RespConnection *r, int64_t n, int *error, int64_t deadline_ns)
{
	RespReply reply;

	for (int64_t i = 0; i < n; i++) {
		int rc = resp_read_reply(r, &reply, deadline_ns);

		if (rc < 0)
			return rc;
		if (!strchr("+-:", reply.type))
			return -EPROTO;
		if (*error == 0)
			*error = reply.error;
	}
	return 0;
}

/* Of MULTI, four commands, and EXEC. */
static int
read_transaction(RespConnection *r, int *error, int64_t deadline_ns)
{
	RespReply reply;
	int rc = read_errors(r, 4, error, deadline_ns);

	if (rc == 0)
		rc = resp_read_reply(r, &reply, deadline_ns);
	if (rc < 0)
		return rc;
	if (reply.type == '*' && reply.number == 3)
		return read_errors(r, 3, error, deadline_ns);
	if (reply.type != '-')
		return -EPROTO;
	if (*error == 0)
		*error = reply.error;
	return 0;
}

int
resp_rename(void *connection,
	    const KvcConnectorItem *old_item,
	    const KvcConnectorItem *new_item,
	    int64_t deadline_ns)
{
	RespConnection *r = connection;
	g_autofree char *old_attr = resp_attr_name(old_item->name);
	g_autofree char *new_attr = resp_attr_name(new_item->name);
	g_autoptr(GString) text = g_string_new(NULL);
	const char *const rename[] = {"RENAME", old_item->name, new_item->name, NULL};
	const char *const multi[] = {"MULTI", NULL}, *const exec[] = {"EXEC", NULL};
	GString *value = NULL;
	int error = 0, rc = resp_settle_doubts(r, deadline_ns);

	if (rc == 0)
		rc = read_attributes(r, old_attr, &value, deadline_ns);
	if (rc < 0)
		return rc;
	resp_append_command(text, multi);
	resp_append_command(text, rename);
	append(text, value ? "SET" : "DEL", new_attr, value);
	append(text, "DEL", old_attr, NULL);
	resp_append_command(text, exec);
	if (value)
		g_string_free(value, TRUE);
	r->is_changing = true;
	rc = resp_send_string(r, text, deadline_ns);
	if (rc == 0)
		rc = read_transaction(r, &error, deadline_ns);
	r->is_changing = rc < 0;
	if (rc == 0 && error == 0)
		resp_note_success(r->store, true);
	return rc < 0 ? rc : error;
}
