/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The calls of the framework on a cluster. Each is made of commands with a key each, which can be
 * sent elsewhere one by one: while a slot moves, a value may still be here and its attributes be
 * looked for there. Only MSET has two, in the same slot; of a slot that moves it becomes two
 * commands, first the value, so that attributes are never those of a value that comes later.
 *
 * There is no rename: the two names are on two nodes. The engine stores the new one instead.
 */

#include <errno.h>
#include <string.h>

#include "resp-cluster.h"

/* ---- Commands ------------------------------------------------------------------------------ */

static void
append_one(GString *text, const char *command, const char *key)
{
	const char *const argv[] = {command, key, NULL};

	resp_append_command(text, argv);
}

static void
append_attr_command(GString *text, const char *command, const KvcConnectorItem *item)
{
	g_autofree char *attr_name = resp_slot_attr_name(item->name);

	append_one(text, command, attr_name);
}

static void
append_get(GString *text, const KvcConnectorItem *item)
{
	append_one(text, "GET", item->name);
}

static void
append_strlen(GString *text, const KvcConnectorItem *item)
{
	append_one(text, "STRLEN", item->name);
}

static void
append_exists(GString *text, const KvcConnectorItem *item)
{
	append_one(text, "EXISTS", item->name);
}

static void
append_del(GString *text, const KvcConnectorItem *item)
{
	append_one(text, "DEL", item->name);
}

static void
append_get_attr(GString *text, const KvcConnectorItem *item)
{
	append_attr_command(text, "GET", item);
}

static void
append_del_attr(GString *text, const KvcConnectorItem *item)
{
	append_attr_command(text, "DEL", item);
}

/* The name and the attributes that the object of ITEM comes with, as arguments. */
static void
append_attr_arguments(GString *text, const KvcConnectorItem *item)
{
	g_autofree char *name = resp_slot_attr_name(item->name);
	g_autoptr(GString) attr = resp_attr_format(item->object.attributes, item->object.bytes);

	g_string_append_printf(text, "$%zu\r\n%s\r\n$%zu\r\n", strlen(name), name, attr->len);
	g_string_append_len(text, attr->str, (gssize)attr->len);
	g_string_append(text, "\r\n");
}

static void
append_set_attr(GString *text, const KvcConnectorItem *item)
{
	g_string_append(text, "*3\r\n$3\r\nSET\r\n");
	append_attr_arguments(text, item);
}

static void
append_set(GString *text, const KvcConnectorItem *item)
{
	g_string_append_printf(text, "*3\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
			       strlen(item->name), item->name, item->object.bytes);
}

static void
append_mset(GString *text, const KvcConnectorItem *item)
{
	g_string_append_printf(text, "*5\r\n$4\r\nMSET\r\n$%zu\r\n%s\r\n$%zu\r\n",
			       strlen(item->name), item->name, item->object.bytes);
}

/* ---- Replies ------------------------------------------------------------------------------- */

static int
read_strlen(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	int64_t number = 0;
	int rc = resp_read_number(r, item, &number, deadline_ns);

	if (rc == 0 && item->error == 0)
		item->info.bytes = (uint64_t)number;
	return rc;
}

/* What an error reply says of attributes is no matter of the object's. */
static int
read_attr(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	item->error = 0;
	return resp_read_attributes(r, item, deadline_ns);
}

static int
read_exists(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	int64_t number = 0;
	int rc = resp_read_number(r, item, &number, deadline_ns);

	if (rc == 0 && item->error == 0 && number == 0)
		item->error = -ENOENT;
	return rc;
}

static int
read_ok(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	return resp_read_done(r, item, '+', deadline_ns);
}

static int
read_count(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns)
{
	return resp_read_done(r, item, ':', deadline_ns);
}

static const RespOp op_get = {.append = append_get, .read = resp_read_value};
static const RespOp op_strlen = {.append = append_strlen, .read = read_strlen};
static const RespOp op_exists = {.append = append_exists, .read = read_exists};
static const RespOp op_get_attr = {.append = append_get_attr, .read = read_attr};
static const RespOp op_del = {.append = append_del, .read = read_count, .is_change = true};
static const RespOp op_del_attr = {
	.append = append_del_attr, .read = read_count, .is_change = true};
static const RespOp op_set_attr = {.append = append_set_attr, .read = read_ok, .is_change = true};
static const RespOp op_set = {
	.append = append_set, .has_value = true, .read = read_ok, .is_change = true};
static const RespOp op_mset = {.append = append_mset,
			       .has_value = true,
			       .append_after = append_attr_arguments,
			       .read = read_ok,
			       .is_change = true,
			       .is_multi = true};

/* ---- Calls --------------------------------------------------------------------------------- */

/*
 * A call of several runs goes on after one of which some items failed: those have their error, and
 * the others must not be left as if all was done. The first rc is the call's.
 */
static int
first_of(int rc, int next)
{
	return rc < 0 ? rc : next;
}

typedef bool (*Wanted)(const KvcConnectorItem *item);

/* OP for those of ITEMS that are WANTED. */
static int
run_some(RespClient *client,
	 const RespOp *op,
	 KvcConnectorItem *const *items,
	 size_t n,
	 Wanted is_wanted,
	 int64_t deadline_ns)
{
	g_autofree KvcConnectorItem **some = g_new(KvcConnectorItem *, n);
	size_t n_some = 0;

	for (size_t i = 0; i < n; i++)
		if (is_wanted(items[i]))
			some[n_some++] = items[i];
	return n_some > 0 ? resp_cluster_run(client, op, some, n_some, deadline_ns) : 0;
}

static int
cluster_get(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	return resp_cluster_run(connection, &op_get, items, n, deadline_ns);
}

static bool
is_fine(const KvcConnectorItem *item)
{
	return item->error == 0;
}

static bool
is_empty(const KvcConnectorItem *item)
{
	return item->error == 0 && item->info.bytes == 0;
}

/* STRLEN is 0 of what is not there as well. */
int
resp_cluster_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	for (size_t i = 0; i < n; i++) {
		kvc_xattrs_unref(items[i]->info.xattrs);
		items[i]->info = (KvcL2ObjectInfo){0};
	}
	int rc = resp_cluster_run(connection, &op_strlen, items, n, deadline_ns);
	rc = first_of(rc, run_some(connection, &op_exists, items, n, is_empty, deadline_ns));
	return first_of(rc, run_some(connection, &op_get_attr, items, n, is_fine, deadline_ns));
}

static bool
has_attr(const KvcConnectorItem *item)
{
	return item->error == -EINPROGRESS &&
	       resp_attr_is_needed(item->key, item->object.attributes);
}

static bool
has_no_attr(const KvcConnectorItem *item)
{
	return item->error == -EINPROGRESS && !has_attr(item);
}

static bool
must_split(const KvcConnectorItem *item)
{
	return item->error == -EAGAIN;
}

static bool
is_split(const KvcConnectorItem *item)
{
	return item->error == 0 && resp_attr_is_needed(item->key, item->object.attributes);
}

/* Value, then attributes, of those whose slot moves. */
static int
set_split(RespClient *client, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autofree KvcConnectorItem **split = g_new(KvcConnectorItem *, n);
	size_t n_split = 0;

	for (size_t i = 0; i < n; i++)
		if (must_split(items[i]))
			split[n_split++] = items[i];
	if (n_split == 0)
		return 0;
	int rc = resp_cluster_run(client, &op_set, split, n_split, deadline_ns);
	return first_of(rc, run_some(client, &op_set_attr, split, n_split, is_split, deadline_ns));
}

/* Of those without attributes, the ones before go first: they may be of the same size. */
static int
set_plain(RespClient *client, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	g_autofree KvcConnectorItem **plain = g_new(KvcConnectorItem *, n);
	size_t n_plain = 0;

	for (size_t i = 0; i < n; i++)
		if (has_no_attr(items[i]))
			plain[n_plain++] = items[i];
	if (n_plain == 0)
		return 0;
	int rc = resp_cluster_run(client, &op_del_attr, plain, n_plain, deadline_ns);
	return first_of(rc, run_some(client, &op_set, plain, n_plain, is_fine, deadline_ns));
}

static int
cluster_set(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	for (size_t i = 0; i < n; i++)
		if (items[i]->object.bytes > RESP_MAX_VALUE_BYTES)
			items[i]->error = -EFBIG;
	int rc = set_plain(connection, items, n, deadline_ns);
	rc = first_of(rc, run_some(connection, &op_mset, items, n, has_attr, deadline_ns));
	return first_of(rc, set_split(connection, items, n, deadline_ns));
}

static int
cluster_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns)
{
	int rc = resp_cluster_run(connection, &op_del_attr, items, n, deadline_ns);

	return first_of(rc, run_some(connection, &op_del, items, n, is_fine, deadline_ns));
}

static bool
keeps_attr(const KvcConnectorItem *item)
{
	return item->error == 0 && item->object.attributes;
}

static bool
loses_attr(const KvcConnectorItem *item)
{
	return item->error == 0 && !item->object.attributes;
}

/* COPIES are asked what is there; then their object has what is to be there. */
static int
change_attributes(RespClient *client, KvcConnectorItem *copies, size_t n, int64_t deadline_ns)
{
	g_autofree KvcConnectorItem **asked = g_new(KvcConnectorItem *, n);
	g_autofree KvcObjectAttributes *merged = g_new(KvcObjectAttributes, n);

	for (size_t i = 0; i < n; i++)
		asked[i] = &copies[i];
	int rc = resp_cluster_exists(client, asked, n, deadline_ns);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		merged[i] = resp_attr_merge(copies[i].object.attributes, &copies[i].info);
		copies[i].object.bytes = copies[i].info.bytes;
		copies[i].object.attributes =
			resp_attr_is_needed(copies[i].key, &merged[i]) ? &merged[i] : NULL;
	}
	/* First those that go: what one of the two sets the other one does not look at. */
	g_autofree KvcConnectorItem **lose = g_new(KvcConnectorItem *, n);
	size_t n_lose = 0;
	for (size_t i = 0; i < n; i++)
		if (loses_attr(&copies[i]))
			lose[n_lose++] = &copies[i];
	rc = run_some(client, &op_set_attr, asked, n, keeps_attr, deadline_ns);
	if (rc == 0 && n_lose > 0)
		rc = resp_cluster_run(client, &op_del_attr, lose, n_lose, deadline_ns);
	return rc;
}

static int
cluster_set_attributes(void *connection,
		       KvcConnectorItem *const *items,
		       size_t n,
		       int64_t deadline_ns)
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

/* Of the masters that answer. */
static int
cluster_size(void *connection, KvcL2Usage *usage, int64_t deadline_ns)
{
	RespClient *client = connection;
	RespStore *store = client->store;
	g_autoptr(GPtrArray) masters = resp_map_masters(store, NULL);
	int error = -ECONNREFUSED;

	for (guint i = 0; i < masters->len; i++) {
		KvcL2Usage part = {0};
		RespConnection *r;
		int rc = resp_cluster_connection(client, g_ptr_array_index(masters, i), &r,
						 deadline_ns);

		if (rc < 0)
			continue;
		rc = resp_size(r, &part, deadline_ns);
		if (rc < 0) {
			resp_cluster_drop(client, r, rc);
			continue;
		}
		error = 0;
		usage->bytes_used += part.bytes_used;
		usage->objects += part.objects;
		usage->capacity_bytes += part.capacity_bytes;
	}
	if (store->capacity_bytes)
		usage->capacity_bytes = store->capacity_bytes;
	return error;
}

static ssize_t
cluster_list(void *connection,
	     const KvcKeyScope *scope,
	     char **cursor,
	     KvcL2ListEntry *entries,
	     size_t max,
	     int64_t deadline_ns)
{
	RespClient *client = connection;

	return resp_list_from(&(RespLister){client->store, NULL, client}, scope, cursor, entries,
			      max, deadline_ns);
}

const KvcConnectorOps resp_cluster_ops = {
	.struct_size = sizeof(KvcConnectorOps),
	.max_batch = RESP_MAX_BATCH,
	.connect = resp_cluster_connect,
	.disconnect = resp_cluster_disconnect,
	.interrupt = resp_cluster_interrupt,
	.get = cluster_get,
	.set = cluster_set,
	.exists = resp_cluster_exists,
	.remove = cluster_remove,
	.set_attributes = cluster_set_attributes,
	.list = cluster_list,
	.size = cluster_size,
	.check = resp_cluster_check,
	.describe = resp_cluster_describe,
	.free = resp_store_free,
};
