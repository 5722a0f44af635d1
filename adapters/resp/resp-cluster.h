/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RESP_RESP_CLUSTER_H
#define ADAPTERS_RESP_RESP_CLUSTER_H

/* Private to the adapter: a cluster, as a store whose connection is one to each of its nodes. */

#include "resp.h"

#define RESP_SLOTS 16384

struct RespNode {
	/* Immutable */
	char *host, *name; /* name: host:port */
	int port;

	/* Protected by the store's lock */
	bool is_down; /* the last try failed: nobody tries before retry_ns, and then one at a time
		       */
	bool is_probing; /* somebody does */
	int64_t retry_ns, backoff_ns;
};

/* The connection of the framework. */
typedef struct RespClient {
	RespStore *store;

	/* Protected by the store's lock; changed by the client's thread only */
	GPtrArray *connections; /* of RespConnection, owned */
	bool is_interrupted;
} RespClient;

/* A command with one key, that of an item, and its reply. */
typedef struct RespOp {
	/* Appends the command: text, and what is not copied (NULL: the text is all). */
	void (*append)(GString *text, const KvcConnectorItem *item);
	bool has_value; /* the bytes of the item's object and the end of the line come then, */
	void (*append_after)(GString *text, const KvcConnectorItem *item); /* and this, if any */
	/* Sets the item's error. 0 or -errno of the connection. */
	int (*read)(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns);
	bool is_change;
	bool is_multi; /* several keys of one slot: an item of a slot that moves gets -EAGAIN */
} RespOp;

/* resp-slots.c. Those with _locked: the caller holds the store's lock. */

unsigned resp_slot(const char *name);
/* As resp_attr_name(), in the slot of NAME. */
char *resp_slot_attr_name(const char *name);
void resp_node_free(void *node);
/* NULL: nonsense, or too many. */
RespNode *resp_node_get_locked(RespStore *store, const char *host, int port);
/* host:port, :port, [address]:port; SAME_HOST where none is said. */
RespNode *resp_node_parse_locked(RespStore *store, const char *text, const char *same_host);
RespNode *resp_slot_owner_locked(RespStore *store, unsigned slot);
/* The reply to CLUSTER SLOTS; 0 or -EPROTO. */
int resp_map_take(RespStore *store, const redisReply *reply, const char *same_host);
/* Those that have a slot (transfer container), by name. VERSION may be NULL. */
GPtrArray *resp_map_masters(RespStore *store, uint64_t *version);

/* resp-cluster.c */

int resp_cluster_connect(void *store, void **connection, int64_t deadline_ns);
void resp_cluster_disconnect(void *connection);
void resp_cluster_interrupt(void *connection);
/* *R (owned by CLIENT) leads to NODE. 0 or -errno: at once while NODE is down. */
int resp_cluster_connection(RespClient *client,
			    RespNode *node,
			    RespConnection **r,
			    int64_t deadline_ns);
/* R, which returned RC, is closed; its node is down if RC says so. */
void resp_cluster_drop(RespClient *client, RespConnection *r, int rc);
/*
 * OP for each of ITEMS, on the node that has it: every item has its error afterwards, -EIO where
 * the node cannot be reached. 0, or -errno: no node can.
 */
int resp_cluster_run(RespClient *client,
		     const RespOp *op,
		     KvcConnectorItem *const *items,
		     size_t n,
		     int64_t deadline_ns);
/* 0 or -errno: some node cannot be reached. */
int resp_cluster_check(void *store);
void resp_cluster_describe(void *store, KvcDescribeFunc func, void *user);

/* resp-cluster-commands.c */

int resp_cluster_exists(void *connection,
			KvcConnectorItem *const *items,
			size_t n,
			int64_t deadline_ns);
extern const KvcConnectorOps resp_cluster_ops;

#endif
