/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_PREFETCH_PRIVATE_H
#define ENGINE_PREFETCH_PRIVATE_H

/*
 * The parts of the PrefetchController: prefetch-controller.c has the thread, its messages and the
 * limits, prefetch-handle.c what callers do with a handle, prefetch-wait.c how they wait for one,
 * prefetch-request.c how a request ends, prefetch-lookup.c the lookup phase and the plan,
 * prefetch-load.c the loads, prefetch-dump.c what is held by whom.
 */

#include "engine/lock.h"
#include "engine/prefetch-controller.h"

/* Bounds on the loads in flight of all requests; the bytes also by a quarter of L1. */
#define KVC_PREFETCH_BYTES_IN_FLIGHT (UINT64_C(256) << 20)
/* Lookups an adapter may owe an answer to, those of requests that gave up on it included. */
#define KVC_PREFETCH_LOOKUPS_IN_FLIGHT 1024
#define KVC_PREFETCH_LOADS_IN_FLIGHT 256
/* How often a load begins anew because its key was written meanwhile. */
#define KVC_PREFETCH_RENEWALS 3

typedef struct KvcPrefetchRequest KvcPrefetchRequest;

/*
 * A place among the max_in_flight requests. It is given back with the last of the request and the
 * loads that it has waited for: what drains counts, too. Owned by the controller thread.
 */
typedef struct KvcPrefetchSlot {
	KvcPrefetchController *controller;
	unsigned refs;
} KvcPrefetchSlot;

/* One object on its way from L2, for everyone who wants it. Owned by the controller thread. */
typedef struct KvcPrefetchLoad {
	KvcObjectKey *key;
	GArray *waiters; /* of KvcPrefetchWaiter; may be empty */
	KvcL1Object *object;
	KvcMemoryObj memory;
	size_t adapter;
	KvcL2TaskId task_id;
	bool is_loaded;			  /* what the adapter answered */
	uint32_t version;		  /* of the key when the load was submitted */
	uint32_t tried;			  /* adapters it was asked of */
	unsigned renewals;		  /* begun anew: tried was emptied */
	uint16_t locks[KVC_MAX_ADAPTERS]; /* L2 locks, taken over from the waiters */
	GPtrArray *slots; /* of KvcPrefetchSlot: of who waits or has waited; NULL: none */
	GList link;	  /* among the loads in flight of the adapter */
} KvcPrefetchLoad;

typedef struct KvcPrefetchWaiter {
	KvcPrefetchRequest *request;
	size_t i;
} KvcPrefetchWaiter;

typedef enum {
	KVC_REQUEST_QUEUED, /* nothing asked yet */
	KVC_REQUEST_LOOKUP,
	KVC_REQUEST_HELD, /* planned, waits for start() or, started, for a slot */
	KVC_REQUEST_LOADING,
	KVC_REQUEST_ANSWERED, /* late lookup results may still come */
} KvcRequestPhase;

/*
 * What is known and held of one key. With the handle's objects this is the request's whole lock
 * state, exact after each step: what is locked in L1 (the objects), what is locked in L2 (locked),
 * what is reserved in L1 (load). kvc_prefetch_controller_dump() shows it.
 */
typedef struct KvcPrefetchCell {
	KvcPrefetchLoad *load; /* on its way, or NULL */
	uint32_t position;     /* in the lookup tasks; UINT32_MAX: L1 had it */
	uint16_t known;	       /* adapters that the index named when the lookup was submitted */
	uint16_t found;	       /* adapters that have it */
	uint16_t locked;       /* adapters whose lock is held for this request */
	uint32_t version;      /* when it was looked up; 0: was not known */
	int8_t source;	       /* the adapter to load it from, or -1 */
	uint8_t state;	       /* KvcPrefetchKeyState: why it is not held; 0: nothing is wrong */
	bool exists;	       /* was found by the early result; immutable after */
	bool is_held; /* L1 has it: read-locked for this request, unless it takes no locks */
} KvcPrefetchCell;

typedef struct KvcPrefetchLookup {
	KvcL2TaskId task_id;
	bool is_pending;
	KvcBitmap *found;
	KvcL2ObjectInfo *info;
	GList link; /* among the pending lookups of the adapter */
} KvcPrefetchLookup;

struct KvcPrefetchRequest {
	KvcPrefetchHandle handle; /* must be first */
	int refs;		  /* Atomic: the caller, the controller, and whoever is at work */

	/* Immutable after submit. */
	KvcPrefetchController *controller;
	KvcLockOwner owner; /* of its read locks, until they are taken out */
	KvcObjectKey **keys;
	size_t n;
	unsigned flags;
	unsigned read_locks; /* on each key */
	uint64_t max_locked_bytes;
	int64_t deadline_ns; /* 0: none */
	void (*planned)(void *user, KvcPrefetchHandle *handle);
	void (*done)(void *user, KvcPrefetchHandle *handle);
	void *user;

	KvcMutex lock;
	/* Protected by lock. */
	KvcL1Object **objects; /* read_locks less taken locks each, or NULL */
	unsigned *taken;       /* by the caller; NULL while read_locks is 1 */
	ssize_t found;	       /* -1: not known yet */
	ssize_t result;	       /* -1: not known yet */
	int done_event_fd;     /* made when asked for, -1 until then */
	bool is_consumed;
	bool wants_start, wants_cancel, wants_drop;
	bool is_retired; /* the controller has forgotten it: no callback comes any more */
	void (*user_free)(void *user);

	/* Protected by the lock of the controller's queue. */
	GList message_link;
	GList handle_link; /* in handles */
	bool has_message;

	/* Owned by the controller thread, from the submit on. */
	KvcRequestPhase phase;
	bool is_known;	       /* in the controller's list of requests */
	KvcPrefetchSlot *slot; /* counts against max_in_flight; or NULL */
	bool is_dropped;
	KvcPrefetchCell *cells;
	KvcPrefetchLookup *lookups; /* one an adapter: */
	size_t n_lookups;	    /* those that were known when it began */
	KvcObjectKey **lookup_keys; /* borrowed from keys */
	uint32_t *lookup_cells;	    /* position -> cell */
	size_t n_lookup_keys;
	size_t n_lookups_pending;
	size_t end;	  /* of the plan: nothing is held from here on */
	size_t cursor;	  /* loads before it have begun */
	size_t n_loading; /* cells with a load */
	GList link;	  /* in requests */
	GQueue *queue;	  /* the one that QUEUE_LINK is in, or NULL */
	GList queue_link; /* waits for a slot, or has loads to begin */
};

struct KvcPrefetchController {
	/* Immutable after start. */
	const KvcControllerContext *context;
	const KvcPrefetchPolicy *policy;
	unsigned max_in_flight;
	uint64_t max_bytes_in_flight;
	int event_fd;
	pthread_t thread;
	bool is_running;

	int n_active;		 /* Atomic: requests not retired, and loads that nobody waits for */
	int64_t last_request_id; /* Atomic */

	KvcMutex lock;
	pthread_cond_t dumped;
	/* Protected by lock. */
	GQueue messages; /* of requests, a reference each */
	GQueue handles;	 /* KvcPrefetchRequest that are alive */
	GQueue dumps;	 /* KvcPrefetchDump, wanted */
	bool is_stopping;
	bool is_stopped;	   /* nobody takes messages any more */
	uint32_t wanted, attached; /* adapters (bits): as they ought to be, as they are */
	pthread_cond_t adapters_changed;

	/* Owned by the controller thread. */
	size_t n_adapters;	   /* one more than the last one that was ever attached */
	uint32_t active, draining; /* attached adapters (bits) */
	int lookup_fds[KVC_MAX_ADAPTERS], load_fds[KVC_MAX_ADAPTERS];
	GQueue requests;
	GQueue pending;			  /* wait for a slot: to look up, or to load */
	GQueue loading[2];		  /* have loads to begin: urgent ones, others */
	GQueue lookups[KVC_MAX_ADAPTERS]; /* KvcPrefetchRequest by its lookup's link */
	GQueue loads_in_flight[KVC_MAX_ADAPTERS];
	GHashTable *loads;		      /* KvcPrefetchLoad by its key */
	GPtrArray *unlocks[KVC_MAX_ADAPTERS]; /* keys whose L2 lock goes back, referenced */
	KvcBitmap *load_result;		      /* one bit */
	const KvcPrefetchLoad *admitting;     /* what L1 is asking about, or NULL */
	int64_t logged_ns;		      /* the last line in the log, 0: none */
	unsigned n_slots;
	unsigned n_loads_in_flight;
	uint64_t bytes_in_flight;
	int64_t next_deadline_ns; /* not later than the first one; 0: none */
	bool is_halting;
	bool is_refused; /* an adapter took no task: ask them all, they will not signal */
};

/* ---- prefetch-controller.c ----------------------------------------------------------------- */

/* Queues a message that R has changed (or is new). R's lock may be held. False: stopped. */
bool kvc_prefetch_controller_post(KvcPrefetchController *c, KvcPrefetchRequest *r);
/* The L2 lock of KEY goes back with the next flush. */
void kvc_prefetch_unlock_later(KvcPrefetchController *c, size_t adapter, KvcObjectKey *key);
void kvc_prefetch_flush_unlocks(KvcPrefetchController *c);
void kvc_prefetch_take_slot(KvcPrefetchController *c, KvcPrefetchRequest *r);
void kvc_prefetch_give_slot_back(KvcPrefetchRequest *r);
KvcPrefetchSlot *kvc_prefetch_slot_ref(KvcPrefetchSlot *slot);
void kvc_prefetch_slot_unref(void *slot);
/* May one more line be in the log? At most one a second. */
bool kvc_prefetch_may_log(KvcPrefetchController *c);

/* ---- prefetch-handle.c --------------------------------------------------------------------- */

KvcPrefetchRequest *kvc_prefetch_request_new(KvcPrefetchController *c,
					     const KvcPrefetchParams *params);
KvcPrefetchRequest *kvc_prefetch_request_ref(KvcPrefetchRequest *r);
void kvc_prefetch_request_unref(KvcPrefetchRequest *r);
/* Releases the read locks of the keys from BEGIN to END - 1. */
void kvc_prefetch_request_release_objects(KvcPrefetchRequest *r, size_t begin, size_t end);
/* Keys that L1 has: of the unbroken run, in fetch mode full all. Owner of the cells only. */
size_t kvc_prefetch_request_count_held(const KvcPrefetchRequest *r);
/* Notes which keys exist, as far as that is known, and returns how many as count_held does. */
size_t kvc_prefetch_request_note_existing(KvcPrefetchRequest *r);

/* The caller gave R back and no callback comes any more. Takes the caller's reference. */
void kvc_prefetch_request_finish_drop(KvcPrefetchRequest *r);

/* ---- prefetch-request.c -------------------------------------------------------------------- */

/*
 * Gives back everything held or wanted of the keys from BEGIN to END - 1; STATE is why, for those
 * that have no reason yet. L2 locks go back with the next flush.
 */
void kvc_prefetch_request_give_back(KvcPrefetchRequest *r,
				    size_t begin,
				    size_t end,
				    KvcPrefetchKeyState state);
/* The plan of R ends at key END: what lies behind is given back. */
void kvc_prefetch_request_cut(KvcPrefetchRequest *r, size_t end, KvcPrefetchKeyState state);
/* Key I will not be held, for this reason: the plan ends there, or has a hole. */
void kvc_prefetch_request_lose(KvcPrefetchRequest *r, size_t i, KvcPrefetchKeyState state);
/*
 * Gives back what the mode and the bound on bytes exclude, of what is held or planned. Touches
 * nothing of the controller's while nothing is locked in L2.
 */
void kvc_prefetch_request_trim(KvcPrefetchRequest *r);
/* Cuts at END and answers: callbacks, unless R was dropped. R may be gone when it returns. */
void kvc_prefetch_request_answer(KvcPrefetchRequest *r, size_t end);
/* Publishes the early result and calls back. */
void kvc_prefetch_request_publish_found(KvcPrefetchRequest *r, size_t found);
/* Forgets an answered request when nothing of it is outstanding. R may be gone when it returns. */
void kvc_prefetch_request_retire_if_idle(KvcPrefetchRequest *r);
void kvc_prefetch_request_return_l2_lock(KvcPrefetchRequest *r, size_t i, uint32_t adapters);

/* ---- prefetch-lookup.c --------------------------------------------------------------------- */

void kvc_prefetch_lookup_begin(KvcPrefetchRequest *r);
/* Is key I in L1 by now? Then it is held from here on. */
bool kvc_prefetch_request_probe(KvcPrefetchRequest *r, size_t i);
/* Size of key I on an adapter that has it. */
uint64_t kvc_prefetch_request_bytes(const KvcPrefetchRequest *r, size_t i, size_t adapter);
void kvc_prefetch_lookup_drain(KvcPrefetchController *c, size_t adapter);

/* ---- prefetch-load.c ----------------------------------------------------------------------- */

void kvc_prefetch_load_enqueue(KvcPrefetchRequest *r);
/* Begins what the limits allow. */
void kvc_prefetch_load_pump(KvcPrefetchController *c);
void kvc_prefetch_load_drain(KvcPrefetchController *c, size_t adapter);
/* R does not wait for key I any more; its load goes on. */
void kvc_prefetch_load_detach(KvcPrefetchRequest *r, size_t i);
/* Returns the locks on ADAPTER that loads from other ones hold. */
void kvc_prefetch_load_return_locks(KvcPrefetchController *c, size_t adapter);
/* Is OBJECT, being admitted, what the adapter has of its key now? Inside the L1 shard's lock. */
bool kvc_prefetch_load_may_admit(void *controller, KvcL1Object *object);

/* ---- prefetch-renew.c ---------------------------------------------------------------------- */

/*
 * TIER (one bit), which had KEY when CELL was noted, does not have it any more, or has FOUND: what
 * L1 has of a version before is dropped. The controller's thread.
 */
void kvc_prefetch_renew_absent(KvcPrefetchController *c,
			       KvcObjectKey *key,
			       uint32_t tier,
			       const KvcPrefetchCell *cell);
void kvc_prefetch_renew_found(KvcPrefetchController *c,
			      KvcObjectKey *key,
			      uint32_t tier,
			      const KvcL2ObjectInfo *found,
			      const KvcPrefetchCell *cell);

/* ---- prefetch-dump.c ----------------------------------------------------------------------- */

typedef struct KvcPrefetchDump {
	GPtrArray *lines; /* name, value, name, ...; owned strings */
	bool is_done;
} KvcPrefetchDump;

/* R has a handle from now on, until it is freed. */
void kvc_prefetch_dump_register(KvcPrefetchController *c, KvcPrefetchRequest *r);
void kvc_prefetch_dump_unregister(KvcPrefetchRequest *r);
/* Controller thread: makes the dumps that are wanted. */
void kvc_prefetch_dump_serve(KvcPrefetchController *c);
/* Controller thread: the state, into the log. */
void kvc_prefetch_dump_log(KvcPrefetchController *c);

/* ---- prefetch-adapters.c ------------------------------------------------------------------- */

void kvc_prefetch_adapters_attach(KvcPrefetchController *c, uint32_t adapters);
void kvc_prefetch_adapters_detach(KvcPrefetchController *c, uint32_t adapters);
/* Lets go of the draining ones that owe nothing any more. */
void kvc_prefetch_adapters_finish(KvcPrefetchController *c);

#endif
