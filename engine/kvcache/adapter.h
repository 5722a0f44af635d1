/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_ADAPTER_H
#define KVCACHE_ADAPTER_H

/*
 * The L2 adapter interface, for stores, lookups and loads alike: a submit that returns at once, an
 * event fd that says that a result is there, a query that gives each result once.
 *
 * An adapter is a const vtable that registers itself from a constructor; an instance is a struct
 * whose first member is a KvcL2Adapter. All slots may be called from any thread and at the same
 * time, except open and close. No slot is called under an engine lock. "Never blocks" means: no
 * I/O, no wait for I/O; a short mutex is fine.
 */

#include "kvcache/attributes.h"
#include "kvcache/bitmap.h"
#include "kvcache/breaker.h"
#include "kvcache/decls.h"
#include "kvcache/object-key.h"
#include "kvcache/options.h"

KVC_BEGIN_DECLS

#define KVC_L2_ADAPTER_API 1

/* Unique within one adapter, never 0. */
typedef uint64_t KvcL2TaskId;

typedef struct KvcL2Adapter KvcL2Adapter;
typedef struct KvcL2AdapterOps KvcL2AdapterOps;

struct KvcL2Adapter {
	const KvcL2AdapterOps *ops; /* set by open */
	/* The engine's, set after open, alive until close returned; or NULL. See breaker.h. */
	KvcBreaker *breaker;
};

/*
 * The memory of one object while a task needs it, mapped by the engine from before the submit until
 * the result was queried. DATA is page aligned. On a store the bytes from BYTES to MAPPED_BYTES are
 * zero and may be written out with the rest; on a load they may be overwritten.
 */
typedef struct KvcMemoryObj {
	void *data;
	size_t bytes;	     /* size of the object */
	size_t mapped_bytes; /* bytes rounded up to 4096; 0 for an empty object, whose data is NULL
			      */
	/* On a store: what goes with the bytes, valid as long as these. NULL: nothing is known. */
	const KvcObjectAttributes *attributes;
} KvcMemoryObj;

typedef struct KvcL2ObjectInfo {
	uint64_t bytes;	  /* size of the object */
	int64_t mtime_ns; /* when it was stored, since the epoch; 0: the store does not know */
	/* As in KvcObjectAttributes; 0 and NULL where the store does not know. */
	uint32_t mode, uid, gid;
	KvcXattrs *xattrs;  /* a reference that is the caller's once lookup or list returned it */
	int64_t version_ns; /* what came with the bytes; of two adapters the newer is believed */
} KvcL2ObjectInfo;

/* In mtime_ns of a key that a lookup did not find: the store could not be asked, it may be there.
 */
#define KVC_L2_NOT_ASKED INT64_C(-1)

typedef struct KvcL2StoreResult {
	KvcL2TaskId task_id;
	/* Bytes really written (duplicates that were skipped count 0), or -errno: the task failed.
	 */
	int64_t bytes_transferred;
} KvcL2StoreResult;

typedef struct KvcL2ListEntry {
	KvcObjectKey *key; /* owned by the caller after list returned */
	KvcL2ObjectInfo info;
} KvcL2ListEntry;

typedef struct KvcL2Usage {
	uint64_t bytes_used;
	uint64_t capacity_bytes; /* 0: unknown */
	uint64_t objects;
} KvcL2Usage;

/* Called by describe for each line of status, e.g. ("io_mode", "direct"). Must not be kept. */
typedef void (*KvcDescribeFunc)(void *user, const char *name, const char *value);

struct KvcL2AdapterOps {
	/* Set to KVC_L2_ADAPTER_API and sizeof(KvcL2AdapterOps); checked at registration. */
	uint32_t api;
	uint32_t struct_size;
	const char *type_name; /* as in "type=..." */
	const char *summary;   /* one line for --help */
	/* The adapter's own; kvc_l2_adapter_get_common_options() are taken as well. */
	const KvcOptionSpec *options;
	bool shared_by_default; /* others may write to the same store: ask it about unknown keys */
	bool uniform_batches;	/* every object of one store task must have one size */

	/*
	 * Required. Opens an instance; OPTIONS are checked and belong to the caller, alive only
	 * during the call. NULL with ERROR set that names the offender. Any thread, also while the
	 * engine runs and other instances work; may block briefly (make a directory), must not scan
	 * the store.
	 */
	KvcL2Adapter *(*open)(const KvcOptions *options, GError **error);
	/*
	 * Required. Completes or fails every submitted task first (nobody queries them any more),
	 * stops every thread, releases every fd. The engine unmaps the buffers afterwards. Any
	 * thread, once nobody calls another slot of this instance: after both controllers let go of
	 * it, which go on when it is removed at run time. Blocks.
	 */
	void (*close)(KvcL2Adapter *adapter);

	/*
	 * Required. Three eventfds (EFD_NONBLOCK), distinct across all instances, owned by the
	 * adapter. It writes 1 to one after a result of that kind can be queried, also one that was
	 * there at the submit. The engine reads it, then queries until nothing is left.
	 */
	int (*get_store_event_fd)(KvcL2Adapter *adapter);
	int (*get_lookup_and_lock_event_fd)(KvcL2Adapter *adapter);
	int (*get_load_event_fd)(KvcL2Adapter *adapter);

	/*
	 * Required, never blocks. Stores N objects; keys are referenced by the adapter as needed,
	 * OBJECTS (the array) is copied, their memory stays valid until the result was popped. The
	 * whole task succeeds or fails. A key of space 0 that is already stored with this size is
	 * skipped (but gets the attributes), unless the store can tell by a checksum that its bytes
	 * are others; in the other spaces it is replaced. Nothing partial is
	 * ever visible under a key. Attributes that the store cannot keep do not fail the task.
	 * Returns the task id.
	 */
	KvcL2TaskId (*submit_store_task)(KvcL2Adapter *adapter,
					 KvcObjectKey *const *keys,
					 const KvcMemoryObj *objects,
					 size_t n);
	/* Required, never blocks. Moves up to MAX results out, each exactly once; returns how many.
	 */
	size_t (*pop_completed_store_tasks)(KvcL2Adapter *adapter,
					    KvcL2StoreResult *results,
					    size_t max);

	/* Required, never blocks. Looks N keys up and locks (counts) the found ones against
	 * deletion. */
	KvcL2TaskId (*submit_lookup_and_lock_task)(KvcL2Adapter *adapter,
						   KvcObjectKey *const *keys,
						   size_t n);
	/*
	 * Required, never blocks. 1: done; FOUND (N bits, clear on entry) and INFO (N entries, zero
	 * on entry; those with a bit) are filled, and the task id is forgotten. 0: still pending.
	 * -ENOENT: no such task or already queried. Where the store cannot be reached the bit is
	 * clear and INFO's mtime_ns is KVC_L2_NOT_ASKED: without it the engine forgets that the key
	 * is there.
	 */
	int (*query_lookup_and_lock_result)(KvcL2Adapter *adapter,
					    KvcL2TaskId task_id,
					    KvcBitmap *found,
					    KvcL2ObjectInfo *info);
	/* Required, never blocks. Drops one lock of each key; unknown or unlocked keys are ignored.
	 */
	void (*submit_unlock)(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n);

	/*
	 * Required, never blocks. Loads N objects of exactly objects[i].bytes into their memory. A
	 * load needs no lookup before it.
	 */
	KvcL2TaskId (*submit_load_task)(KvcL2Adapter *adapter,
					KvcObjectKey *const *keys,
					const KvcMemoryObj *objects,
					size_t n);
	/*
	 * Required, never blocks. As query_lookup_and_lock_result; bit i of LOADED: the memory of
	 * key i holds its bytes, proven by size and checksum where the store has one. Missing,
	 * short, long and corrupt data: clear.
	 */
	int (*query_load_result)(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded);

	/*
	 * Optional, blocks (called from a thread of the engine's own). Deletes N keys; sets the bit
	 * of each that is gone (absent counts as gone), skips locked ones. 0 or the first -errno.
	 */
	int (*delete_keys)(KvcL2Adapter *adapter,
			   KvcObjectKey *const *keys,
			   size_t n,
			   KvcBitmap *deleted);
	/*
	 * Optional, blocks (the same thread as delete_keys). The object OLD is from now on the
	 * object NEW, in one step, and takes the place of what is there; its bytes are not written
	 * again. 0; -ENOENT: there is no OLD; -EBUSY: one of the two is locked or being stored, try
	 * again; else -errno, nothing changed.
	 */
	int (*rename_key)(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key);
	/*
	 * Optional, blocks (the same thread as delete_keys; no store of KEY is in flight). The
	 * object gets these attributes instead of those it has, but keeps its version_ns: the bytes
	 * are not others. ATTRIBUTES is the caller's. 0; -ENOENT: it is not stored; else -errno, as
	 * many as could be were set.
	 */
	int (*set_attributes)(KvcL2Adapter *adapter,
			      KvcObjectKey *key,
			      const KvcObjectAttributes *attributes);
	/*
	 * Optional, blocks. One page of what is stored: up to MAX entries in a stable order.
	 * *CURSOR is NULL for the first page; the adapter frees it (g_free) and sets the next one,
	 * NULL at the end. SCOPE NULL: everything. Entries that come or go meanwhile may be missed.
	 * Returns how many entries, or -errno (then *CURSOR is NULL).
	 */
	ssize_t (*list)(KvcL2Adapter *adapter,
			const KvcKeyScope *scope,
			char **cursor,
			KvcL2ListEntry *entries,
			size_t max);
	/*
	 * Optional, blocks. Has anybody stored, replaced or removed an entry of SCOPE? *STAMP is
	 * then another one than before, to be compared only; *CHANGED_NS is when that was last
	 * done, by the store's clock, since the epoch (0: never): changes shortly before and after
	 * may have one stamp. It may change for other reasons too. Without this slot a shared
	 * store is not listed again. 0 or -errno.
	 */
	int (*get_changes)(KvcL2Adapter *adapter,
			   const KvcKeyScope *scope,
			   uint64_t *stamp,
			   int64_t *changed_ns);
	/* Optional, never blocks. */
	void (*usage)(KvcL2Adapter *adapter, KvcL2Usage *usage);
	/*
	 * Required, never blocks. Lines for status; at least "health" (ok, degraded, failed),
	 * "io_mode" and "location" (where the data is, one line). Of a store whose usage is not
	 * exact, because it is asked only now and then or has more than these objects, also
	 * "usage": "estimated".
	 */
	void (*describe)(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user);
};

/* FUNC with the number COUNT; for describe. Any thread. */
void kvc_describe_count(KvcDescribeFunc func, void *user, const char *name, uint64_t count);
/* The table of options that every adapter takes; static. */
const KvcOptionSpec *kvc_l2_adapter_get_common_options(void);

KVC_END_DECLS

#endif
