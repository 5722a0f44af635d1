/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STORE_PRIVATE_H
#define ENGINE_STORE_PRIVATE_H

/*
 * The parts of the StoreController: store-controller.c has the thread and its messages,
 * store-record.c the order of what happens to one key, store-task.c batches and their completion,
 * store-deleter.c the threads in which adapters delete.
 */

#include "engine/lock.h"
#include "engine/store-controller.h"

#define KVC_STORE_TRIES 3
#define KVC_STORE_BATCH_KEYS 16
#define KVC_STORE_BATCH_BYTES (UINT64_C(64) << 20)
#define KVC_STORE_BYTES_IN_FLIGHT (UINT64_C(256) << 20)
/* What an object counts at least there: it bounds the mappings. */
#define KVC_STORE_MIN_CHARGE_BYTES (UINT64_C(64) << 10)
/* A store behind a deletion that failed so often (3 s) is given up: its object must not stay dirty.
 */
#define KVC_STORE_BLOCKED_TRIES 7

/* A queue for each delay: what is appended to one of them is due in order. */
#define KVC_STORE_BACKOFFS 10
#define KVC_STORE_BACKOFF_DELETE 2 /* the first one of deletions */

typedef struct KvcStoreRecord KvcStoreRecord;

/* What a record does on one adapter. */
typedef struct KvcStoreTarget {
	KvcStoreRecord *record;
	GList link; /* in a back-off queue */
	int64_t due_ns;
	uint8_t adapter;
	uint8_t store_tries;	/* failed ones */
	uint8_t delete_tries;	/* failed ones */
	bool is_delete_failing; /* the last try ended with an error */
	int8_t backoff;		/* the queue it is in, or -1 */
} KvcStoreTarget;

typedef struct KvcFlushWaiter {
	struct KvcFlushWaiter *next;
	uint64_t order;
	void (*done)(void *user, int error);
	void *user;
} KvcFlushWaiter;

/*
 * One key that has something to be done; owned by the controller thread. Sets of adapters are bits;
 * an adapter is in at most one of todo, busy and waiting, and in at most one of the delete_ ones.
 * Orders say what was submitted before what, for the flush waiters.
 */
struct KvcStoreRecord {
	KvcObjectKey *key;
	KvcL1Object *next; /* the newest commit, not begun; or NULL */
	uint64_t next_order;
	KvcL1Object *object; /* being stored, or NULL */
	uint64_t object_order;
	KvcMemoryObj memory; /* of object, mapped while busy is not empty */
	uint32_t todo, busy, waiting;
	uint32_t stored, failed; /* how it ended */
	uint32_t delete_todo, delete_busy, delete_waiting;
	uint64_t delete_order;
	int error;     /* of the last store: 0 or -EIO */
	GQueue *queue; /* the one that LINK is in, or NULL */
	GList link;
	KvcFlushWaiter *waiters;
	KvcStoreTarget targets[];
};

/* A batch for one adapter: open while it is put together, then in flight. */
typedef struct KvcStoreTask {
	KvcL2TaskId id;
	size_t adapter;
	uint64_t bytes;
	size_t n;
	KvcStoreRecord *records[KVC_STORE_BATCH_KEYS];
	KvcObjectKey *keys[KVC_STORE_BATCH_KEYS];
	KvcMemoryObj objects[KVC_STORE_BATCH_KEYS];
} KvcStoreTask;

typedef enum {
	KVC_STORE_MESSAGE_COMMIT,
	KVC_STORE_MESSAGE_DELETE,
	KVC_STORE_MESSAGE_FLUSH,
	KVC_STORE_MESSAGE_DELETED,
} KvcStoreMessageType;

typedef struct KvcStoreMessage {
	GList link;
	KvcStoreMessageType type;
	KvcL1Object *object;	/* COMMIT */
	KvcObjectKey *key;	/* DELETE, FLUSH */
	uint32_t adapters;	/* DELETE */
	KvcFlushWaiter *waiter; /* FLUSH */
	size_t adapter;		/* DELETED */
	GPtrArray *keys;
	KvcBitmap *deleted;
	int error; /* the adapter's, of those that are not deleted */
} KvcStoreMessage;

typedef struct KvcStoreDeleter KvcStoreDeleter;

struct KvcStoreController {
	KvcL1ManagerListener listener; /* must be first */

	/* Immutable after start. */
	const KvcControllerContext *context;
	const KvcStorePolicy *policy;
	int event_fd;
	pthread_t thread;
	bool is_running;
	KvcStoreDeleter *deleters[KVC_MAX_ADAPTERS]; /* NULL: the adapter cannot delete */

	KvcMutex lock;
	pthread_cond_t idle;
	/* Protected by lock. */
	GQueue messages;
	bool is_idle;
	bool is_stopping;

	/* Owned by the controller thread. */
	GHashTable *records;
	GQueue ready;	  /* records with something to submit, in order */
	GQueue unsettled; /* records whose object had gone: the message that says why is on its way
			   */
	GQueue backoff[KVC_STORE_BACKOFFS];
	GQueue open;			     /* KvcStoreTask, being put together */
	GQueue refused;			     /* KvcStoreTask that the adapter did not take */
	GHashTable *tasks[KVC_MAX_ADAPTERS]; /* in flight, by id */
	size_t n_tasks;
	uint64_t bytes_in_flight;
	uint64_t last_order;
	bool is_halting; /* submits nothing any more */
	int64_t log_since_ns;
	unsigned n_logged;
	int64_t delete_logged_ns[KVC_MAX_ADAPTERS]; /* the last failed deletion in the log; 0: none
						     */
};

/* store-controller.c: false: the controller stopped, the message is the caller's again. */
bool kvc_store_controller_post(KvcStoreController *c, KvcStoreMessage *message);

/* store-record.c */
void kvc_store_record_commit(KvcStoreController *c, KvcL1Object *object);
void kvc_store_record_delete(KvcStoreController *c, KvcObjectKey *key, uint32_t adapters);
void kvc_store_record_flush(KvcStoreController *c, KvcObjectKey *key, KvcFlushWaiter *waiter);
void kvc_store_record_deleted(KvcStoreController *c, const KvcStoreMessage *message);
/* Begins whatever can be begun for R, answers its waiters, frees it when nothing is left. */
void kvc_store_record_advance(KvcStoreController *c, KvcStoreRecord *r);
/* R's object is on ADAPTER: the index learns it. */
void kvc_store_record_note_stored(KvcStoreController *c, KvcStoreRecord *r, size_t adapter);
/* The store of R's object on ADAPTER failed with -errno: again after a while, or never. */
void kvc_store_record_fail(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error);
void kvc_store_record_free(KvcStoreController *c, KvcStoreRecord *r, int waiters_error);
/* Moves what is due out of the back-off queues. */
void kvc_store_fire_backoffs(KvcStoreController *c, int64_t now_ns);
/* When the next one is due, or 0. */
int64_t kvc_store_next_due_ns(KvcStoreController *c);

/* store-task.c */
void kvc_store_process_ready(KvcStoreController *c);
void kvc_store_drain_completions(KvcStoreController *c, size_t adapter);
void kvc_store_fail_refused(KvcStoreController *c);

/* store-deleter.c */
KvcStoreDeleter *kvc_store_deleter_start(KvcStoreController *c, size_t adapter);
void kvc_store_deleter_submit(KvcStoreDeleter *d, KvcObjectKey *key);
/* Waits for the call in progress, drops what is queued, joins, frees. */
void kvc_store_deleter_stop(KvcStoreDeleter *d);

#endif
