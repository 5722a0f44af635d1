/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Which node of a cluster has a name: CRC16 (XMODEM) of it, or of what is between its first '{' and
 * the next '}' if that is anything, modulo 16384. The map says whose slot it is; nodes are never
 * freed while the store is there, so pointers to them are good without the lock.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "resp-cluster.h"

/* So many nodes are ever known: a server that invents them does no harm. */
#define MAX_NODES 1024

static uint16_t
crc16(const char *data, size_t len)
{
	uint16_t crc = 0;

	for (size_t i = 0; i < len; i++) {
		crc ^= (uint16_t)((uint8_t)data[i] << 8);
		for (int bit = 0; bit < 8; bit++)
			crc = (uint16_t)(crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1);
	}
	return crc;
}

/* What of NAME is hashed; *LEN of it. */
static const char *
hashed_part(const char *name, size_t *len)
{
	const char *open = strchr(name, '{');
	const char *close = open ? strchr(open + 1, '}') : NULL;

	*len = close && close > open + 1 ? (size_t)(close - open - 1) : strlen(name);
	return close && close > open + 1 ? open + 1 : name;
}

unsigned
resp_slot(const char *name)
{
	size_t len;
	const char *part = hashed_part(name, &len);

	return crc16(part, len) % RESP_SLOTS;
}

char *
resp_slot_attr_name(const char *name)
{
	size_t len;

	if (hashed_part(name, &len) != name) /* the same braces are the first ones there too */
		return g_strconcat(RESP_ATTR_PREFIX, name, NULL);
	if (!strchr(name, '}'))
		return g_strdup_printf(RESP_ATTR_PREFIX "{%s}", name);
	/* Its braces are in the way: any tag of the same slot, 16384 tries on average. */
	for (unsigned i = 0;; i++) {
		char tag[12];

		g_snprintf(tag, sizeof(tag), "%x", i);
		if (crc16(tag, strlen(tag)) % RESP_SLOTS == resp_slot(name))
			return g_strdup_printf(RESP_ATTR_PREFIX "{%s}%s", tag, name);
	}
}

/* ---- Nodes --------------------------------------------------------------------------------- */

void
resp_node_free(void *data)
{
	RespNode *node = data;

	g_free(node->host);
	g_free(node->name);
	g_free(node);
}

RespNode *
resp_node_get_locked(RespStore *store, const char *host, int port)
{
	for (guint i = 0; i < store->nodes->len; i++) {
		RespNode *node = g_ptr_array_index(store->nodes, i);

		if (node->port == port && !strcmp(node->host, host))
			return node;
	}
	if (store->nodes->len >= MAX_NODES || port <= 0 || port > 65535)
		return NULL;
	RespNode *node = g_new0(RespNode, 1);
	node->host = g_strdup(host);
	node->port = port;
	node->name = g_strdup_printf(strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port);
	g_ptr_array_add(store->nodes, node);
	return node;
}

RespNode *
resp_node_parse_locked(RespStore *store, const char *text, const char *same_host)
{
	const char *colon = strrchr(text, ':');
	char *end = NULL;

	if (!colon)
		return NULL;
	long port = strtol(colon + 1, &end, 10);
	if (end == colon + 1 || *end)
		return NULL;
	g_autofree char *host = g_strndup(text, (size_t)(colon - text));
	if (*host == '[' && host[strlen(host) - 1] == ']') {
		memmove(host, host + 1, strlen(host));
		host[strlen(host) - 1] = '\0';
	}
	return resp_node_get_locked(store, *host ? host : same_host, (int)port);
}

/* ---- The map ------------------------------------------------------------------------------- */

RespNode *
resp_slot_owner_locked(RespStore *store, unsigned slot)
{
	return store->slots[slot];
}

/* [first, last, [host, port, ...], replicas...]; false: nonsense. */
static bool
take_range_locked(RespStore *store,
		  RespNode **slots,
		  const redisReply *range,
		  const char *same_host)
{
	if (range->type != REDIS_REPLY_ARRAY || range->elements < 2 ||
	    range->element[0]->type != REDIS_REPLY_INTEGER ||
	    range->element[1]->type != REDIS_REPLY_INTEGER)
		return false;
	long long first = range->element[0]->integer, last = range->element[1]->integer;
	if (first < 0 || last >= RESP_SLOTS || first > last)
		return false;
	if (range->elements == 2) /* of nobody */
		return true;
	const redisReply *master = range->element[2];
	if (master->type != REDIS_REPLY_ARRAY || master->elements < 2 ||
	    master->element[1]->type != REDIS_REPLY_INTEGER)
		return false;
	const redisReply *host = master->element[0];
	bool is_named = host->type == REDIS_REPLY_STRING && host->len > 0 && strcmp(host->str, "?");
	RespNode *node = resp_node_get_locked(store, is_named ? host->str : same_host,
					      (int)master->element[1]->integer);
	if (!node)
		return false;
	for (long long slot = first; slot <= last; slot++)
		slots[slot] = node;
	return true;
}

int
resp_map_take(RespStore *store, const redisReply *reply, const char *same_host)
{
	g_autofree RespNode **slots = g_new0(RespNode *, RESP_SLOTS);
	/* None: a node that has lost its file of the cluster. */
	bool is_good = reply->type == REDIS_REPLY_ARRAY && reply->elements > 0;

	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; is_good && i < reply->elements; i++)
		is_good = take_range_locked(store, slots, reply->element[i], same_host);
	if (is_good) {
		store->has_map = true;
		store->n_map_renewals++;
		if (memcmp(store->slots, slots, RESP_SLOTS * sizeof(*slots)) != 0) {
			memcpy(store->slots, slots, RESP_SLOTS * sizeof(*slots));
			store->map_version++;
		}
	}
	pthread_mutex_unlock(&store->lock);
	return is_good ? 0 : -EPROTO;
}

static gint
compare_nodes(gconstpointer a, gconstpointer b)
{
	return strcmp((*(RespNode *const *)a)->name, (*(RespNode *const *)b)->name);
}

GPtrArray *
resp_map_masters(RespStore *store, uint64_t *version)
{
	GPtrArray *masters = g_ptr_array_new();

	pthread_mutex_lock(&store->lock);
	for (unsigned i = 0; i < RESP_SLOTS; i++) {
		RespNode *node = store->slots[i];

		if (node && (i == 0 || store->slots[i - 1] != node) &&
		    !g_ptr_array_find(masters, node, NULL))
			g_ptr_array_add(masters, node);
	}
	if (version)
		*version = store->map_version;
	pthread_mutex_unlock(&store->lock);
	g_ptr_array_sort(masters, compare_nodes);
	return masters;
}
