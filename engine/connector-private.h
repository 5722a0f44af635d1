/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_CONNECTOR_PRIVATE_H
#define ENGINE_CONNECTOR_PRIVATE_H

/*
 * The parts of a connector. A task is cut into batches; each goes through the queue of its kind to
 * a worker, then through the queue of completions to the demux thread, which publishes the task
 * with its last batch.
 */

#include "engine/lock.h"
#include "kvcache/connector.h"
#include "kvcache/io.h"
#include "kvcache/key-codec.h"
#include "kvcache/task-board.h"

typedef struct ConnectorTask ConnectorTask;

typedef struct ConnectorItem {
	KvcConnectorItem item; /* the name is owned */
	bool is_skipped;       /* store: it was there */
	bool is_locked;	       /* lookup: the key has a lock for it */
} ConnectorItem;

typedef struct ConnectorBatch {
	ConnectorTask *task;
	size_t first, n; /* items of the task */
	uint64_t bytes;
	int64_t expires_ns; /* 0, or when it fails if no worker has taken it */
} ConnectorBatch;

struct ConnectorTask {
	KvcTask base; /* its parts are the batches */
	ConnectorItem *items;
	ConnectorBatch *batches;
	size_t n_batches;
};

/* A connection and who uses it. */
typedef struct ConnectorLink {
	KvcConnector *connector;
	void *connection; /* NULL: none; its user's, but written under the lock */
	pthread_t thread; /* of a worker */
	bool is_started;
	bool is_lookup; /* the worker does lookups, not loads and stores */
} ConnectorLink;

#define CONNECTOR_LOOKUP_WORKERS 2

struct KvcConnector {
	KvcBoardAdapter base;

	/* Immutable after open. */
	const KvcConnectorOps *ops;
	void *store;
	char *location, *io_mode;
	unsigned n_workers, n_links; /* loads and stores; those and the lookups */
	size_t max_bytes_in_flight;
	int64_t connect_timeout_ns, request_timeout_ns;
	ConnectorLink *links;
	pthread_t demux;
	bool is_demux_started;

	/* What deletes, renames and lists, in the thread of its caller: one at a time. */
	pthread_mutex_t caller_mutex; /* held over blocking calls; no other lock is held then */
	ConnectorLink caller;	      /* protected by caller_mutex */

	KvcMutex lock;
	/* Protected by lock. */
	pthread_cond_t work;	  /* there is something to do, or somebody ended */
	pthread_cond_t completed; /* for the demux thread */
	bool is_stopping;	  /* nothing new begins */
	bool is_demux_stopping;
	GQueue queues[KVC_TASK_KINDS]; /* of ConnectorBatch: no worker has them */
	GQueue completions;	       /* of ConnectorBatch: the demux thread has not seen them */
	unsigned running[KVC_TASK_KINDS];
	uint64_t bytes_in_flight;
	GHashTable *keys; /* KvcObjectKey -> ConnectorKey: those that are not idle */
	GHashTable *ours; /* set of KvcObjectKey that this instance stored, or NULL */
	/* Connecting: after a failure nobody tries before retry_ns, and then one at a time. */
	int connect_error; /* of the last try, 0: it succeeded */
	bool is_connecting;
	int64_t retry_ns, backoff_ns;
	/* What status says. */
	KvcL2Usage usage;
	int64_t usage_due_ns;
	int errors[KVC_TASK_KINDS]; /* of the last batch of each kind, 0: it was fine */
	int64_t last_error_ns;
	char *last_error;
	uint64_t n_stores, n_loads, n_skipped, n_load_misses, n_renames, n_connects;
	uint64_t n_errors[KVC_TASK_KINDS];
};

/* connector-keys.c: what goes on with a key. Callers hold the lock. */

/* false: it is being deleted. */
bool kvc_connector_lock_key_locked(KvcConnector *c, KvcObjectKey *key, bool *is_renamed);
void kvc_connector_unlock_key_locked(KvcConnector *c, const KvcObjectKey *key);
/* A store of KEY was submitted, may be begun, is begun, has ended. */
void kvc_connector_add_store_locked(KvcConnector *c, KvcObjectKey *key);
bool kvc_connector_may_store_locked(KvcConnector *c, const KvcObjectKey *key);
void kvc_connector_begin_store_locked(KvcConnector *c, const KvcObjectKey *key, bool begun);
void kvc_connector_end_store_locked(KvcConnector *c, const KvcObjectKey *key);
/* false: it is busy. */
bool kvc_connector_begin_delete_locked(KvcConnector *c, KvcObjectKey *key, bool is_rename);
void kvc_connector_end_delete_locked(KvcConnector *c, const KvcObjectKey *key);
uint64_t kvc_connector_count_locks_locked(KvcConnector *c);
GHashTable *kvc_connector_keys_new(void);

/* connector-call.c: the store's calls. May block, without the lock. */

/*
 * CALL for N items over the connection of LINK, made if there is none. Every item has an error
 * afterwards. 0, or -errno of the connection. ITEMS is reordered.
 */
int kvc_connector_call(ConnectorLink *link,
		       KvcConnectorCall call,
		       KvcConnectorItem **items,
		       size_t n,
		       uint64_t bytes);
/* 0 or -errno: LINK has a connection. */
int kvc_connector_connect(ConnectorLink *link);
void kvc_connector_disconnect(ConnectorLink *link);
/* As KvcConnectorConfig.request_timeout_ns. */
int64_t kvc_connector_deadline(const KvcConnector *c, uint64_t bytes);
/* ERROR (-errno, or 0: it went well) of KIND. Tells the breaker of lookups and loads. */
void kvc_connector_note(KvcConnector *c, KvcTaskKind kind, int error);

/* connector-task.c */

/* Begins a task; its id. OBJECTS is NULL for a lookup. */
KvcL2TaskId kvc_connector_submit(KvcConnector *c,
				 KvcTaskKind kind,
				 KvcObjectKey *const *keys,
				 const KvcMemoryObj *objects,
				 size_t n);
/* For the board. */
void kvc_connector_task_clear(KvcTask *task);
/* BATCH needs no worker any more. */
void kvc_connector_complete_locked(KvcConnector *c, ConnectorBatch *batch);
/* Fails what no worker has taken. */
void kvc_connector_fail_queued_locked(KvcConnector *c, int error);
/* Thread function, USER is the KvcConnector. */
void *kvc_connector_demux_main(void *user);

/* connector-work.c: thread function, USER is the ConnectorLink. */
void *kvc_connector_worker_main(void *user);

#endif
