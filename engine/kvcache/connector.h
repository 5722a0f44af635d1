/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_CONNECTOR_H
#define KVCACHE_CONNECTOR_H

/*
 * The connector framework: a store with blocking calls becomes an L2 adapter. It has worker threads
 * with a connection each, one queue of completions that a thread sorts onto the three event fds,
 * lock counts on this side, deadlines, and a bound on the bytes in flight. The store has to say how
 * to connect and what get, set, exists and remove mean. adapters/README.md walks through one.
 *
 * A call is about a batch: N items, at most max_batch of the vtable, so with 1 it is about a single
 * one. No call is made under a lock, and no connection is used by two threads at the same time,
 * except that interrupt may come at any time.
 */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"
#include "kvcache/task-board.h"

#include <stdint.h>

KVC_BEGIN_DECLS

/* The adapter; begins with a KvcBoardAdapter. */
typedef struct KvcConnector KvcConnector;

/* One object of a batch. What is not said to be set is only read by the store. */
typedef struct KvcConnectorItem {
	KvcObjectKey *key;
	const char *name;     /* as kvc_store_name_format() spells the key */
	KvcMemoryObj object;  /* of get and set: the engine's memory, not a copy of it */
	KvcL2ObjectInfo info; /* set by exists, at least bytes */
	/*
	 * Set by the store: 0: done; -ENOENT: there is none, or it has another size than object
	 * says; else -errno, of this object only. -EINPROGRESS when the call begins.
	 */
	int error;
} KvcConnectorItem;

/*
 * Calls may block until DEADLINE_NS (CLOCK_MONOTONIC), not longer: then they return -ETIMEDOUT.
 * They return 0 when every item has its error set, else -errno: the connection is of no use any
 * more. It is disconnected, and the items that are still -EINPROGRESS are tried once again over a
 * new one, unless the time was over: every call must be such that it can be repeated.
 */
typedef int (*KvcConnectorCall)(void *connection,
				KvcConnectorItem *const *items,
				size_t n,
				int64_t deadline_ns);

typedef struct KvcConnectorOps {
	uint32_t struct_size; /* sizeof(KvcConnectorOps) */
	size_t max_batch;     /* items that one call takes, at least 1 */

	/*
	 * Required. *CONNECTION is a new connection that has proven that the store answers. 0 or
	 * -errno; an errno of kvc_is_connection_error() when the store cannot be reached.
	 */
	int (*connect)(void *store, void **connection, int64_t deadline_ns);
	/* Required. Must not block. */
	void (*disconnect)(void *connection);
	/* Optional, any thread, must not block: a call of CONNECTION that is going on ends soon. */
	void (*interrupt)(void *connection);

	/* Required. Fills the memory of each item with an object of exactly that size. */
	KvcConnectorCall get;
	/* Required. Nothing partial is ever visible; what is there already is replaced. */
	KvcConnectorCall set;
	KvcConnectorCall exists; /* required */
	KvcConnectorCall remove; /* required; -ENOENT is as good as 0 */

	/*
	 * Optional, with kvc_connector_set_attributes in the adapter's vtable; see there. Each item
	 * that is stored gets the attributes of its object, which are not NULL. Also called for a
	 * store that is skipped.
	 */
	KvcConnectorCall set_attributes;
	/* Optional, with kvc_connector_rename_key in the adapter's vtable; see there. */
	int (*rename)(void *connection,
		      const KvcConnectorItem *old_item,
		      const KvcConnectorItem *new_item,
		      int64_t deadline_ns);
	/* Optional, with kvc_connector_list and kvc_connector_get_changes; as list there. */
	ssize_t (*list)(void *connection,
			const KvcKeyScope *scope,
			char **cursor,
			KvcL2ListEntry *entries,
			size_t max,
			int64_t deadline_ns);
	/* Optional, with kvc_connector_usage: asked every few seconds. 0 or -errno. */
	int (*size)(void *connection, KvcL2Usage *usage, int64_t deadline_ns);

	/* Optional, never blocks, any thread: lines of status beside those of the framework. */
	void (*describe)(void *store, KvcDescribeFunc func, void *user);
	/* Optional: STORE is not used any more, all connections are gone. */
	void (*free)(void *store);
} KvcConnectorOps;

/* What kvc_connector_new() takes; strings are copied. */
typedef struct KvcConnectorConfig {
	const KvcL2AdapterOps *adapter_ops;
	const KvcConnectorOps *ops;
	void *store;		    /* handed to connect, describe and free */
	const char *location;	    /* one line for status: where the data is */
	const char *io_mode;	    /* one word for status, such as "tcp" */
	unsigned n_workers;	    /* threads that load and store, 1 to 256 */
	size_t max_bytes_in_flight; /* of payload that they work on; one object is always allowed */
	int64_t connect_timeout_ns;
	int64_t request_timeout_ns; /* a batch has this, and 1 us for each KB, from its begin on */
	bool persist; /* false: what this instance has stored is removed when it is closed */
} KvcConnectorConfig;

/*
 * A new adapter (transfer full), for the open of its vtable. It owns STORE from now on, also when
 * it fails: NULL with ERROR set. Connects in the background: a store that is down is no error.
 */
KvcL2Adapter *kvc_connector_new(const KvcConnectorConfig *config, GError **error);

/* The slots of KvcL2AdapterOps that the task board does not fill; see there. */
void kvc_connector_close(KvcL2Adapter *adapter);
KvcL2TaskId kvc_connector_submit_store_task(KvcL2Adapter *adapter,
					    KvcObjectKey *const *keys,
					    const KvcMemoryObj *objects,
					    size_t n);
KvcL2TaskId kvc_connector_submit_lookup_and_lock_task(KvcL2Adapter *adapter,
						      KvcObjectKey *const *keys,
						      size_t n);
void kvc_connector_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n);
KvcL2TaskId kvc_connector_submit_load_task(KvcL2Adapter *adapter,
					   KvcObjectKey *const *keys,
					   const KvcMemoryObj *objects,
					   size_t n);
int kvc_connector_delete_keys(KvcL2Adapter *adapter,
			      KvcObjectKey *const *keys,
			      size_t n,
			      KvcBitmap *deleted);
int kvc_connector_rename_key(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key);
int kvc_connector_set_attributes(KvcL2Adapter *adapter,
				 KvcObjectKey *key,
				 const KvcObjectAttributes *attributes);
ssize_t kvc_connector_list(KvcL2Adapter *adapter,
			   const KvcKeyScope *scope,
			   char **cursor,
			   KvcL2ListEntry *entries,
			   size_t max);
/* The store is not asked: something may have changed every KVC_CONNECTOR_RELIST_S seconds. */
int kvc_connector_get_changes(KvcL2Adapter *adapter,
			      const KvcKeyScope *scope,
			      uint64_t *stamp,
			      int64_t *changed_ns);
void kvc_connector_usage(KvcL2Adapter *adapter, KvcL2Usage *usage);
void kvc_connector_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user);

#define KVC_CONNECTOR_RELIST_S 30

/* In the initialiser of a KvcL2AdapterOps: every slot that any connector has, but open. */
#define KVC_CONNECTOR_SLOTS                                                                        \
	KVC_TASK_BOARD_SLOTS,                                                                      \
		.close = kvc_connector_close,                                                      \
		.submit_store_task = kvc_connector_submit_store_task,                              \
		.submit_lookup_and_lock_task = kvc_connector_submit_lookup_and_lock_task,          \
		.submit_unlock = kvc_connector_submit_unlock,                                      \
		.submit_load_task = kvc_connector_submit_load_task,                                \
		.delete_keys = kvc_connector_delete_keys, .describe = kvc_connector_describe

KVC_END_DECLS

#endif
