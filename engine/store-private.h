/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STORE_PRIVATE_H
#define ENGINE_STORE_PRIVATE_H

/*
 * The parts of the StoreController: store-controller.c has the thread and its messages,
 * store-record.c the order of what happens to one key, store-rename.c what links two of them,
 * store-task.c batches and their completion, store-attributes.c changes of attributes,
 * store-deleter.c the threads in which adapters delete, rename and set attributes, store-logged.c
 * confirmed deletions, store-given-up.c what could not be stored, store-left-behind.c what that
 * left under an old name.
 */

#include "engine/lock.h"
#include "engine/store-controller.h"

#define KVC_STORE_TRIES 3
#define KVC_STORE_BATCH_KEYS 16
#define KVC_STORE_BATCH_BYTES (UINT64_C(64) << 20)
/* Of all adapters together; a larger object is alone on its adapter. */
#define KVC_STORE_BYTES_IN_FLIGHT (UINT64_C(256) << 20)
/* What an object counts at least there: it bounds the mappings. */
#define KVC_STORE_MIN_CHARGE_BYTES (UINT64_C(64) << 10)
/* A store behind a deletion that failed so often (3 s) is given up: its object must not stay dirty.
 */
#define KVC_STORE_BLOCKED_TRIES 7

/* A queue for each delay: what is appended to one of them is due in order. */
#define KVC_STORE_BACKOFFS 11
#define KVC_STORE_BACKOFF_DELETE 2	/* the first one of deletions */
#define KVC_STORE_BACKOFF_LAST_DELETE 9 /* and the last one */
#define KVC_STORE_BACKOFF_PUT_OFF 10	/* stores on an adapter that cannot be reached */

typedef struct KvcStoreRecord KvcStoreRecord;
typedef struct KvcStoreRename KvcStoreRename;

/* What a record, or a rename, does on one adapter. */
typedef struct KvcStoreTarget {
	KvcStoreRecord *record; /* or NULL: */
	KvcStoreRename *rename;
	GQueue *ready_queue; /* the one that READY_LINK is in, or NULL */
	GList ready_link;
	GList link; /* in a back-off queue, or in the one of those that wait for the log */
	int64_t due_ns;
	uint64_t sync_position; /* in the deletion log: of the last confirmation */
	uint64_t n_reached;	/* the adapter's, at the last failed store or before the first */
	uint8_t adapter;
	uint8_t store_tries;	/* failed ones */
	bool has_failed;	/* also in a try that does not count: it is alone in a batch */
	uint8_t delete_tries;	/* failed ones */
	bool is_delete_failing; /* the last try ended with an error */
	int8_t backoff;		/* the queue it is in, or -1 */
} KvcStoreTarget;

typedef struct KvcFlushWaiter {
	struct KvcFlushWaiter *next;
	uint64_t order;
	bool is_await; /* only for a rename, only until the object can be loaded */
	void (*done)(void *user, int error);
	void *user;
} KvcFlushWaiter;

/*
 * One key that has something to be done; owned by the controller thread. Sets of adapters are bits;
 * an adapter is in at most one of todo, busy and waiting, in at most one of the delete_ ones, and
 * in at most one of waiting, delete_waiting and delete_syncing (which share a link).
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
	uint32_t delete_syncing; /* confirmed, but that is not on disk yet */
	uint64_t delete_id;	 /* of the newest deletion; 0: none */
	uint64_t delete_order;
	uint32_t attributes_todo, attributes_busy; /* to be told to the adapter, being told */
	uint64_t attributes_order;
	int error;		 /* of the last store: 0 or -EIO */
	uint32_t blocked_failed; /* where it was given up since something else had to end first */
	bool has_none;		 /* the last store ended, and no adapter has its object */
	bool is_cancelled;	 /* the store of OBJECT: another message says what becomes of it */
	bool is_unsettled;
	GList link; /* in unsettled */
	KvcFlushWaiter *waiters;
	KvcStoreRename *after;	/* nothing is done on an adapter before it ended there, or NULL */
	KvcStoreRename *before; /* it waits for what is left here: this record gets nothing more */
	GSList *deferred; /* KvcStoreRename: they delete an old name once this has nothing to store
			   */
	KvcStoreTarget *targets; /* owned; one an adapter */
};

/*
 * A rename that some adapter has not done; owned by the controller thread. Sets of adapters are
 * bits; a pending one is in exactly one of deferred, todo, busy and waiting.
 */
struct KvcStoreRename {
	KvcObjectKey *old_key, *new_key;
	KvcStoreRecord *from_before, *to_before; /* what came before, or NULL: it ended */
	KvcStoreRecord *from, *to;		 /* what comes after */
	KvcL1Object *object; /* what TO was given to store, borrowed, only to compare; or NULL */
	int fd;		     /* of it, or -1: L1 had none, or one that needed no store */
	uint32_t by_store;   /* cannot rename: NEW is stored, then OLD is deleted */
	uint32_t deferred;   /* of these: NEW is not stored yet */
	uint32_t todo, busy, waiting;
	uint32_t fresh;	      /* have the bytes of the object as OLD */
	uint32_t purge;	      /* renamed what is not the object any more: NEW must go */
	uint32_t outdated;    /* have an older version as OLD: NEW must go, then OLD */
	uint64_t outdated_id; /* of these in the log */
	uint64_t delete_id;   /* in the log: NEW is deleted, so OLD is too; 0: it is not */
	uint64_t version;     /* of the object in the index, 0: it had none */
	bool carries;	      /* what FROM_BEFORE is storing is the object */
	bool is_listed;	      /* among the deferred ones of a record */
	bool is_kicked;
	GList link;		 /* in renames */
	GList kick_link;	 /* in kicked */
	KvcStoreTarget *targets; /* owned; one an adapter */
};

static inline uint32_t
kvc_store_record_deleting(const KvcStoreRecord *r)
{
	return r->delete_todo | r->delete_busy | r->delete_waiting;
}

static inline uint32_t
kvc_store_rename_pending(const KvcStoreRename *m)
{
	return m->deferred | m->todo | m->busy | m->waiting;
}

/* A batch for one adapter: open while it is put together, then in flight. */
typedef struct KvcStoreTask {
	KvcL2TaskId id;
	size_t adapter;
	uint64_t bytes;
	size_t n;
	KvcStoreRecord *records[KVC_STORE_BATCH_KEYS];
	KvcObjectKey *keys[KVC_STORE_BATCH_KEYS];
	KvcMemoryObj objects[KVC_STORE_BATCH_KEYS];
	KvcObjectAttributes attributes[KVC_STORE_BATCH_KEYS]; /* of the objects; owned xattrs */
} KvcStoreTask;

/*
 * What is stored on one adapter. Each has its own queue and its own share of the bytes in flight,
 * so that one that is slow or hangs does not hold up the others.
 */
typedef struct KvcStoreLane {
	GQueue first;	   /* KvcStoreTarget, in order: somebody waits for them */
	GQueue ready;	   /* KvcStoreTarget, in order: after these */
	GHashTable *tasks; /* KvcStoreTask in flight, by id */
	uint64_t bytes_in_flight;
	/* A set of keys (owned) that no adapter has because this one could not be reached for long;
	 * and whether they are worth another try. */
	GHashTable *given_up;
	bool is_reached;
	int64_t probe_ns; /* when one of them is tried, with nothing known; 0: there are none */
} KvcStoreLane;

typedef enum {
	KVC_STORE_MESSAGE_COMMIT,
	KVC_STORE_MESSAGE_STORE,
	KVC_STORE_MESSAGE_DELETE,
	KVC_STORE_MESSAGE_FLUSH,
	KVC_STORE_MESSAGE_DELETED,
	KVC_STORE_MESSAGE_ATTRIBUTES,
	KVC_STORE_MESSAGE_ATTRIBUTES_SET,
	KVC_STORE_MESSAGE_RENAME,
	KVC_STORE_MESSAGE_RENAMED,
	KVC_STORE_MESSAGE_SYNCED,
} KvcStoreMessageType;

typedef struct KvcStoreMessage {
	GList link;
	KvcStoreMessageType type;
	KvcL1Object *object; /* COMMIT; RENAME: what must be stored, or NULL */
	/* STORE, DELETE, FLUSH, ATTRIBUTES, ATTRIBUTES_SET; RENAME: the old one */
	KvcObjectKey *key;
	KvcObjectKey *new_key;	/* RENAME */
	KvcStoreRename *rename; /* RENAMED */
	uint32_t adapters;	/* DELETE, RENAME: those that it concerns */
	uint32_t renamers;	/* RENAME: of these, the ones that can */
	uint32_t outdated;	/* RENAME: of these, the ones that have an older version */
	uint64_t version;	/* RENAME: what the index has as the new key; 0: nothing */
	uint64_t delete_id;	/* DELETE; RENAME: of the old one, where it is outdated */
	KvcFlushWaiter *waiter; /* FLUSH */
	size_t adapter;		/* DELETED, RENAMED, ATTRIBUTES_SET */
	GPtrArray *keys;
	KvcBitmap *deleted;
	/* The adapter's: RENAMED, ATTRIBUTES_SET, or of those that are not deleted; SYNCED: the
	 * log's. */
	int error;
	uint64_t position; /* SYNCED: all up to here */
} KvcStoreMessage;

typedef struct KvcStoreDeleter KvcStoreDeleter;

struct KvcStoreController {
	KvcL1ManagerListener listener; /* must be first */

	/* Immutable after start. */
	const KvcControllerContext *context;
	const KvcStorePolicy *policy;
	uint64_t max_bytes_in_flight; /* of all adapters together */
	int event_fd;
	pthread_t thread;
	bool is_running;
	KvcStoreDeleter *deleters[KVC_MAX_ADAPTERS]; /* NULL: the adapter has nothing for it */

	KvcMutex lock;
	pthread_cond_t idle;
	/* Protected by lock. */
	GQueue messages;
	uint64_t n_posted, n_handled; /* messages */
	pthread_cond_t handled;
	unsigned n_drains; /* going on */
	bool is_idle;
	bool is_stopping;
	uint32_t wanted, attached; /* adapters (bits): as they ought to be, as they are */
	uint32_t targets;	   /* of the wanted ones: new stores may go there */
	pthread_cond_t adapters_changed;

	unsigned n_renames; /* Atomic: posted, and not over; or an old name is left of it */

	/* Owned by the controller thread. */
	uint64_t n_taken;		  /* messages */
	size_t n_adapters;		  /* what arrays of targets have */
	uint32_t active, draining;	  /* attached adapters (bits) */
	uint32_t wanted_now, targets_now; /* as of the last messages */
	uint64_t lane_bytes;		  /* an active adapter's share of what may be in flight */
	int adapter_fds[KVC_MAX_ADAPTERS];
	GHashTable *records;
	KvcStoreLane lanes[KVC_MAX_ADAPTERS];
	GHashTable *left; /* old names that stayed in L2, by the new one: store-left-behind.c */
	GQueue unsettled; /* records whose object had gone: the message that says why is on its way
			   */
	GQueue backoff[KVC_STORE_BACKOFFS];
	GQueue renames;	     /* KvcStoreRename */
	GQueue kicked;	     /* of these, some may have something to begin or end */
	GQueue syncing;	     /* targets whose confirmed deletion is not on disk, by position */
	uint64_t log_synced; /* the deletion log is, up to here */
	bool is_log_failing;
	GQueue open;	/* KvcStoreTask, being put together */
	GQueue refused; /* KvcStoreTask that the adapter did not take */
	size_t n_tasks;
	uint64_t last_order;
	bool is_halting; /* submits nothing any more */
	int64_t log_since_ns;
	unsigned n_logged;
	int64_t delete_logged_ns[KVC_MAX_ADAPTERS]; /* the last failed deletion in the log; 0: none
						     */
	int64_t attributes_logged_ns[KVC_MAX_ADAPTERS]; /* the same of attributes */
};

/* store-controller.c: false: the controller stopped, the message is the caller's again. */
bool kvc_store_controller_post(KvcStoreController *c, KvcStoreMessage *message);

static inline const KvcL2AdapterOps *
kvc_store_ops(const KvcStoreController *c, size_t adapter)
{
	return c->context->adapters[adapter].adapter->ops;
}

/* Is the adapter still being listed: may what it had a moment ago be told yet? */
static inline bool
kvc_store_is_listing(const KvcStoreController *c, size_t adapter)
{
	return __atomic_load_n(&c->context->adapters[adapter].is_listing, __ATOMIC_ACQUIRE);
}

/* store-record.c */
/* The record that takes what is new for KEY, made when there is none; to be advanced. */
KvcStoreRecord *kvc_store_record_get(KvcStoreController *c, KvcObjectKey *key);
void kvc_store_record_commit(KvcStoreController *c, KvcL1Object *object);
/* Stores what L1 has of KEY, dirty or not, unless that is under way. */
void kvc_store_record_store_resident(KvcStoreController *c, KvcObjectKey *key);
void
kvc_store_record_delete(KvcStoreController *c, KvcObjectKey *key, uint32_t adapters, uint64_t id);
void kvc_store_record_flush(KvcStoreController *c, KvcObjectKey *key, KvcFlushWaiter *waiter);
void kvc_store_record_deleted(KvcStoreController *c, const KvcStoreMessage *message);
/* Begins whatever can be begun for R, answers its waiters, frees it when nothing is left. */
void kvc_store_record_advance(KvcStoreController *c, KvcStoreRecord *r);
/* Those of WANTED on which R may not store now. */
uint32_t kvc_store_record_blocked(const KvcStoreRecord *r, uint32_t wanted);
/* R's object is on ADAPTER: the index learns it. */
void kvc_store_record_note_stored(KvcStoreController *c, KvcStoreRecord *r, size_t adapter);
/* The store of R's object on ADAPTER failed with -errno: again after a while, or never. */
void kvc_store_record_fail(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error);
static inline GPtrArray *
kvc_store_keys_new(void)
{
	return g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
}
static inline GHashTable *
kvc_store_key_set_new(void)
{
	return g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
				     (GDestroyNotify)kvc_object_key_unref, NULL);
}
void kvc_store_record_free(KvcStoreController *c, KvcStoreRecord *r, int waiters_error);
/* Is in no queue of a lane after this. */
void kvc_store_leave_ready(KvcStoreTarget *t);
/* R is not deleted from ADAPTER, unless that is under way. */
void kvc_store_record_drop_delete(KvcStoreController *c, KvcStoreRecord *r, size_t adapter);
/* R does not delete what a rename has yet to take from its key. */
void kvc_store_record_spare(KvcStoreController *c, KvcStoreRecord *r);
/* Moves what is due out of the back-off queues. */
void kvc_store_fire_backoffs(KvcStoreController *c, int64_t now_ns);
/* When the next one is due, or 0. */
int64_t kvc_store_next_due_ns(KvcStoreController *c);

/* R, if there is one for KEY, gets nothing more and is found no more: M waits for what is begun. */
KvcStoreRecord *kvc_store_record_seal(KvcStoreController *c, KvcObjectKey *key, KvcStoreRename *m);
/* Is nothing left of a sealed record? */
bool kvc_store_record_is_over(const KvcStoreRecord *r);
/* OBJECT (transfer full) is what R stores, on adapters that the caller adds to todo. */
void kvc_store_record_store_again(KvcStoreController *c, KvcStoreRecord *r, KvcL1Object *object);
void kvc_store_arm(KvcStoreController *c, KvcStoreTarget *t, int backoff);
void kvc_store_disarm(KvcStoreController *c, KvcStoreTarget *t);
/* May one more failure be in the log? */
bool kvc_store_may_log(KvcStoreController *c);

/* What L1 has of R's key, if anything, is to be stored next. */
void kvc_store_record_take_resident(KvcStoreController *c, KvcStoreRecord *r);

/* store-given-up.c */
/* ADAPTER gets R's object no more (-errno). */
void kvc_store_give_up(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error);
/*
 * R's object cannot go to ADAPTER now, which cannot be reached (-errno): later, and that is no
 * failed try. Once its cool-down is the longest the object is given up, until ADAPTER takes one.
 */
void kvc_store_put_off(KvcStoreController *c, KvcStoreRecord *r, size_t adapter, int error);
/* What every target of R failed to store, or was written while there was none, is stored next. */
void kvc_store_try_given_up(KvcStoreController *c, KvcStoreRecord *r);
/* The same for what was given up behind a deletion or a rename, once that ended after all. */
void kvc_store_try_unblocked(KvcStoreController *c, KvcStoreRecord *r);
/* The same for what was given up because its adapter could not be reached, once that one was. */
void kvc_store_try_reached(KvcStoreController *c);
/* Tries one of them now and then: nobody else may ask an adapter that nobody needs. */
void kvc_store_probe(KvcStoreController *c, int64_t now_ns);

/* store-left-behind.c */
GHashTable *kvc_store_left_new(void);
/* What ADAPTERS have as OLD_KEY stays, since nothing could be stored as NEW_KEY. */
void kvc_store_left_add(KvcStoreController *c,
			KvcObjectKey *new_key,
			KvcObjectKey *old_key,
			uint32_t adapters);
/* NEW_KEY was stored, deleted or replaced: its old names are deleted. */
void kvc_store_left_delete(KvcStoreController *c, const KvcObjectKey *new_key);
/* KEY was renamed to NEW_KEY, and with it what its old names are for. */
void kvc_store_left_rename(KvcStoreController *c, const KvcObjectKey *key, KvcObjectKey *new_key);
/* ADAPTER goes. */
void kvc_store_left_leave(KvcStoreController *c, size_t adapter);

/* store-rename.c */
void kvc_store_rename_submit(KvcStoreController *c, const KvcStoreMessage *message);
void kvc_store_rename_done(KvcStoreController *c, const KvcStoreMessage *message);
/* M's back-off on ADAPTER is over. */
void kvc_store_rename_retry(KvcStoreController *c, KvcStoreRename *m, size_t adapter);
/* M may have something to begin or to end: soon, in kvc_store_rename_run(). */
void kvc_store_rename_kick(KvcStoreController *c, KvcStoreRename *m);
/* Something of R has ended: earlier renames may have waited for it to delete an old name. */
void kvc_store_rename_kick_past(KvcStoreController *c, const KvcStoreRecord *r);
void kvc_store_rename_run(KvcStoreController *c);
void kvc_store_rename_free(KvcStoreController *c, KvcStoreRename *m);
/* Those of WANTED on which R must wait for a rename, or for what came before it. */
uint32_t kvc_store_rename_blocks(const KvcStoreRecord *r, uint32_t wanted);
/* Of those on which R wants to store, the ones where it has failed so often that nobody ought to
 * wait for it. */
uint32_t kvc_store_rename_stuck(const KvcStoreRecord *r);
/*
 * The adapters that have under R's key what they have yet to rename: a deletion of what R's key was
 * since is none of that.
 */
uint32_t kvc_store_rename_has_old(const KvcStoreRecord *r);
/*
 * ADAPTER has nothing that R's deletion is about. An older one of the key may be yet to be done
 * there: then that one's end confirms R's in the log as well. False: there is none.
 */
bool kvc_store_rename_pass_deletion(const KvcStoreRecord *r, size_t adapter);
/* The record of R's key that comes after R, or NULL. */
KvcStoreRecord *kvc_store_rename_newer(const KvcStoreRecord *r);
/* Is R's key the new name of a rename that is pending? */
bool kvc_store_rename_is_target(const KvcStoreRecord *r);
/* The one of KEY's records that is deleting on the adapter BIT. */
KvcStoreRecord *
kvc_store_rename_find_deleting(KvcStoreController *c, KvcObjectKey *key, uint32_t bit);
/* The record of KEY, sealed or not, that is setting attributes on the adapter with BIT. */
KvcStoreRecord *
kvc_store_rename_find_setting(KvcStoreController *c, KvcObjectKey *key, uint32_t bit);
/* R has stored or deleted on ADAPTER: an old name that was to be deleted there is gone, too. */
void kvc_store_rename_overwritten(KvcStoreController *c, const KvcStoreRecord *r, size_t adapter);
/* R has nothing to store any more: old names that waited for it may be deleted. */
void kvc_store_rename_settle(KvcStoreController *c, KvcStoreRecord *r);

/* M is not deferred on ADAPTER, which goes, and not tried again there. */
void kvc_store_rename_leave(KvcStoreController *c, KvcStoreRename *m, size_t adapter);

/* store-adapters.c */
/* The adapters that the policy chooses for KEY (bits). */
uint32_t kvc_store_select_targets(KvcStoreController *c, const KvcObjectKey *key);
/* For a record or for a rename. */
KvcStoreTarget *kvc_store_targets_new(KvcStoreController *c, KvcStoreRecord *r, KvcStoreRename *m);
void kvc_store_adapters_attach(KvcStoreController *c, uint32_t adapters);
/* Attaches what is wanted and new, begins to detach what is not wanted any more. */
void kvc_store_adapters_follow(KvcStoreController *c);
/* Lets go of the draining ones that have nothing left. */
void kvc_store_adapters_finish(KvcStoreController *c);
/* The last target of R's object has gone and none has stored it: is there another one? */
void kvc_store_adapters_retarget(KvcStoreController *c, KvcStoreRecord *r);

/* store-task.c */
void kvc_store_process_ready(KvcStoreController *c);
void kvc_store_drain_completions(KvcStoreController *c, size_t adapter);
void kvc_store_fail_refused(KvcStoreController *c);

/* store-attributes.c */
void kvc_store_attributes_changed(KvcStoreController *c, KvcObjectKey *key);
void kvc_store_attributes_set(KvcStoreController *c, const KvcStoreMessage *message);
/* Begins what can be begun for R. */
void kvc_store_attributes_advance(KvcStoreController *c, KvcStoreRecord *r);
/* On the deleter's thread: sets what the index has by now, and posts the result. */
void kvc_store_attributes_apply(KvcStoreController *c, size_t adapter, KvcObjectKey *key);

/* store-logged.c */
void kvc_store_logged_start(KvcStoreController *c);
/*
 * KEY is being deleted: so is what is to be renamed to it, wherever that is not done yet. A crash
 * before that must not leave it under its former name.
 */
void kvc_store_logged_note_sources(KvcStoreController *c, const KvcObjectKey *key);
/* ADAPTER has OLD of M no more: the log, if it was told of M, and a store of a newer OLD learn it.
 */
void kvc_store_logged_confirm_rename(KvcStoreController *c, KvcStoreRename *m, size_t adapter);
/* ADAPTER has confirmed R's deletion (or cannot delete: it stays hidden): unhides the key, holds
 * stores back until the log has it. */
void kvc_store_logged_confirm(KvcStoreController *c, KvcStoreRecord *r, size_t adapter);
/* R waits for the log no more, on these adapters. */
void kvc_store_logged_forget(KvcStoreController *c, KvcStoreRecord *r, uint32_t adapters);
/* A store that is held back makes the log sync at once. */
void kvc_store_logged_hurry(KvcStoreController *c, const KvcStoreRecord *r);
void kvc_store_logged_synced(KvcStoreController *c, uint64_t position, int error);
/*
 * Is what is left nothing that a drain need wait for? Deletions that fail and are in the log, and
 * confirmations that the log cannot write.
 */
bool kvc_store_logged_may_leave_all(KvcStoreController *c);

/* store-deleter.c */
KvcStoreDeleter *kvc_store_deleter_start(KvcStoreController *c, size_t adapter);
void kvc_store_deleter_submit(KvcStoreDeleter *d, KvcObjectKey *key);
void kvc_store_deleter_submit_attributes(KvcStoreDeleter *d, KvcObjectKey *key);
/*
 * Renames OLD_KEY to NEW_KEY, or deletes OLD_KEY (NEW_KEY NULL), for M, which is told with a
 * message.
 */
void kvc_store_deleter_submit_rename(KvcStoreDeleter *d,
				     KvcStoreRename *m,
				     KvcObjectKey *old_key,
				     KvcObjectKey *new_key);
/* Waits for the call in progress, drops what is queued, joins, frees. */
void kvc_store_deleter_stop(KvcStoreDeleter *d);

#endif
