/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RAW_BLOCK_RAW_BLOCK_H
#define ADAPTERS_RAW_BLOCK_RAW_BLOCK_H

/*
 * Private to the adapter: see README.md for what it does and how the files fit together.
 *
 * Threads: submits and queries come from the engine. A pool of workers does what blocks shortly
 * (headers, CRC), a thread of its own does lookups so that they never wait for those, the ring of
 * KvcIo moves payload; a job goes worker -> ring -> worker. The keeper reads the index at first and
 * writes it when nothing changes any more.
 *
 * Locks: change_lock before lock; those of the engine's parts inside of either. None is held over
 * I/O, but change_lock over the two superblocks that say that the checkpoint is not all any more.
 */

#include <kvcache/failures.h>
#include <kvcache/io.h>
#include <kvcache/pool.h>
#include <kvcache/task-board.h>
#include <pthread.h>
#include <stdatomic.h>

#include "raw_block-format.h"

typedef struct RawBlock RawBlock;

/* ---- raw_block-space.c: which slots are free ----------------------------------------------- */

typedef struct RawBlockSpace {
	uint64_t *used; /* a bit a slot */
	uint32_t n_slots, n_free;
	uint32_t next; /* where the next search begins */
} RawBlockSpace;

void raw_block_space_init(RawBlockSpace *space, uint32_t n_slots);
void raw_block_space_deinit(RawBlockSpace *space);
/* N neighbouring slots, used from now on; false: there are none. N 0 takes nothing. */
bool raw_block_space_take(RawBlockSpace *space, uint32_t n, RawBlockRun *run);
void raw_block_space_give(RawBlockSpace *space, RawBlockRun run);
/* These very slots are used from now on; false: one of them is already, and nothing changed. */
bool raw_block_space_claim(RawBlockSpace *space, RawBlockRun run);

/* ---- raw_block-index.c: what is stored, and what is going on with each key ----------------- */

/* Nodes that have an entry, in their order; nothing is ever put in but at the end. */
typedef struct RawBlockOrder {
	GArray *places; /* of RawBlockPlace; those of nodes that left are empty for a while */
	guint n_empty;
} RawBlockOrder;

/* One object on the device. Its slots are not used again before the last reference is gone. */
typedef struct RawBlockEntry {
	/* Protected by lock */
	RawBlockHeader header;
	KvcXattrs *xattrs;
	unsigned refs;
	bool is_corrupt; /* was found to be: a miss, and replaced by the next store */
	bool is_ours;	 /* stored by this run */
} RawBlockEntry;

/* One key: there is something stored under it, or something is going on with it. */
typedef struct RawBlockNode {
	/* Immutable */
	KvcObjectKey *key;
	/* Protected by lock */
	RawBlockEntry *entry; /* NULL: nothing is stored */
	uint64_t order;	      /* of listings; 0: nothing is stored */
	uint64_t published;   /* sequence of the last store that was published */
	unsigned locks, stores;
	bool is_changing; /* somebody writes a header for this key */
	bool is_deleting; /* that is a deletion */
	bool is_renaming; /* what is under the key changes, but something may well be there */
} RawBlockNode;

/* An object whose tombstone could not be written: its slots stay used, its key is not gone. */
typedef struct RawBlockZombie {
	KvcObjectKey *key;
	RawBlockEntry *entry;
} RawBlockZombie;

typedef struct RawBlockPlace {
	uint64_t order;
	RawBlockNode *node; /* NULL: it has left */
} RawBlockPlace;

void raw_block_index_init(RawBlock *rb);
void raw_block_index_deinit(RawBlock *rb);
/* All of these: rb->lock is held. */
RawBlockNode *raw_block_find_locked(RawBlock *rb, const KvcObjectKey *key);
RawBlockNode *raw_block_get_locked(RawBlock *rb, const KvcObjectKey *key);
/* Forgets NODE when it says nothing any more. */
void raw_block_drop_if_idle_locked(RawBlock *rb, RawBlockNode *node);
/* The node of KEY once nobody changes it, or NULL; the lock is let go meanwhile. */
RawBlockNode *raw_block_await_change_locked(RawBlock *rb, const KvcObjectKey *key);
/* The change of NODE is over. */
void raw_block_end_node_change_locked(RawBlock *rb, RawBlockNode *node);
/* What is stored and may be served, or NULL. */
RawBlockEntry *raw_block_entry_locked(RawBlockNode *node);
/*
 * The first node behind the place ORDER (0: of all), or NULL. Costs a binary search, and what has
 * left since.
 */
RawBlockNode *raw_block_next_node_locked(RawBlock *rb, uint64_t order);
/* Puts ENTRY (may be NULL, takes the reference) under NODE; returns what was there before. */
RawBlockEntry *raw_block_set_entry_locked(RawBlock *rb, RawBlockNode *node, RawBlockEntry *entry);
/*
 * ENTRY, which is in the index, has HEADER and XATTRS from now on; the slots of its record before
 * are free if they are others.
 */
void raw_block_set_header_locked(RawBlock *rb,
				 RawBlockEntry *entry,
				 const RawBlockHeader *header,
				 KvcXattrs *xattrs);
/* What lookup and list tell; with a reference to the extended attributes. */
KvcL2ObjectInfo raw_block_info_locked(const RawBlockEntry *entry);
RawBlockEntry *raw_block_entry_new(const RawBlockHeader *header, KvcXattrs *xattrs);
void raw_block_entry_unref_locked(RawBlock *rb, RawBlockEntry *entry);

/* ---- raw_block-device.c -------------------------------------------------------------------- */

/* Opens the device, and formats it if it is to be; the superblock is known then. */
bool raw_block_device_open(RawBlock *rb, const KvcOptions *options, GError **error);
void raw_block_device_close(RawBlock *rb);
/* Whole pages, page aligned. 0 or -errno; what is behind the end is -EIO. Blocks. */
int raw_block_read(RawBlock *rb, void *data, size_t bytes, uint64_t offset);
int raw_block_write(RawBlock *rb, const void *data, size_t bytes, uint64_t offset);
/* Flushes what was written to the device. 0 or -errno. Blocks. */
int raw_block_sync(RawBlock *rb);
/* Writes both superblocks, with the next sequence. 0 or -errno. */
int raw_block_write_super(RawBlock *rb);
uint64_t raw_block_slot_offset(const RawBlock *rb, uint32_t slot);

/* ---- raw_block-change.c: headers on the device --------------------------------------------- */

/*
 * Between these two headers may be written: the superblocks say meanwhile that the checkpoint is
 * not all. 0 or -errno. Blocks.
 */
int raw_block_begin_change(RawBlock *rb);
void raw_block_end_change(RawBlock *rb);
uint64_t raw_block_next_generation(RawBlock *rb);
/*
 * Writes a header for KEY, and its record where that has slots of its own (which HEADER gets; they
 * are the caller's then, also when it fails). HEADER's record and generation are set here. 0 or
 * -errno. *WRITTEN: the header may be on the device, whatever is returned.
 */
int raw_block_write_header(RawBlock *rb,
			   const KvcObjectKey *key,
			   const KvcXattrs *xattrs,
			   RawBlockHeader *header,
			   bool *written);
/* Writes the tombstone of ENTRY. 0 or -errno. */
int raw_block_write_tombstone(RawBlock *rb, const RawBlockEntry *entry);
/* The same, and gives ENTRY's reference back; if it fails the entry is a zombie. Within a change.
 */
void raw_block_bury(RawBlock *rb, const KvcObjectKey *key, RawBlockEntry *entry);
/* ENTRY (takes the reference) of KEY may still be on the device, and must not be. */
void raw_block_add_zombie(RawBlock *rb, const KvcObjectKey *key, RawBlockEntry *entry);
/* Tries again for those of KEY (NULL: all). 0 or -errno: there still are some. Within a change. */
int raw_block_bury_zombies(RawBlock *rb, const KvcObjectKey *key);

/* ---- raw_block-start.c, raw_block-checkpoint.c --------------------------------------------- */

/* Fills the index from the checkpoint or from all headers. Blocks; ends early when closing. */
void raw_block_start(RawBlock *rb);
/* Reads the checkpoint; false: it is none, the index is empty then. */
bool raw_block_checkpoint_read(RawBlock *rb);
/* Writes it, unless it is right already or somebody changes something. Blocks. */
void raw_block_checkpoint_write(RawBlock *rb);
/* Thread function, USER is the RawBlock. */
void *raw_block_keeper_main(void *user);
/* Waits until the index is complete; false: it will not be, the adapter closes. */
bool raw_block_await_ready(RawBlock *rb);

/* ---- The tasks: raw_block-task.c, raw_block-store.c, raw_block-load.c, raw_block-keys.c ---- */

typedef struct RawBlockTask RawBlockTask;

/* One object of a store or load task. */
typedef struct RawBlockJob {
	/* Immutable after submit */
	RawBlock *rb;
	RawBlockTask *task;
	KvcObjectKey *key;
	KvcMemoryObj object;
	uint64_t sequence;

	/* Owned by whoever runs the job */
	KvcWork work;
	KvcIoTransfer transfer;
	void *bounce;	 /* instead of memory that O_DIRECT does not take; NULL: none */
	RawBlockRun run; /* store: taken, not in the index yet */
	bool has_crc;	 /* store: of a look at what is there */
	uint32_t crc;
	RawBlockEntry *entry; /* load: a reference */
	RawBlockHeader header;
	bool loaded;	  /* load: proven */
	atomic_int parts; /* store: CRC and payload are under way at the same time */
} RawBlockJob;

struct RawBlockTask {
	KvcTask base;
	RawBlock *rb;
	/* Owned by the pool until done */
	RawBlockJob *jobs; /* store, load */
	KvcWork work;	   /* lookup */
};

/* For the board: frees the jobs. */
void raw_block_task_clear(KvcTask *task);
/* Begins a task; its id. OBJECTS is NULL for a lookup. */
KvcL2TaskId raw_block_submit(KvcL2Adapter *adapter,
			     KvcTaskKind kind,
			     KvcObjectKey *const *keys,
			     const KvcMemoryObj *objects,
			     size_t n);
/* The job is over with RESULT. Nobody may touch it afterwards. */
void raw_block_job_end(RawBlockJob *job, int64_t result);
/*
 * Starts the transfer of the payload from or to the slots of RUN; DONE is called on the ring, or at
 * once if there is no memory for it.
 */
void raw_block_job_transfer(RawBlockJob *job,
			    RawBlockRun run,
			    bool is_write,
			    void (*done)(KvcIoTransfer *transfer));

void raw_block_store_begin(KvcWork *work);
void raw_block_load_begin(KvcWork *work);
void raw_block_lookup_run(KvcWork *work);

/* See KvcL2AdapterOps for these. */
int raw_block_delete_keys(RawBlock *rb, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted);
int raw_block_rename_key(RawBlock *rb, KvcObjectKey *old_key, KvcObjectKey *new_key);
int
raw_block_set_attributes(RawBlock *rb, KvcObjectKey *key, const KvcObjectAttributes *attributes);
ssize_t raw_block_list(
	RawBlock *rb, const KvcKeyScope *scope, char **cursor, KvcL2ListEntry *entries, size_t max);
/* Removes what this run stored (persist_enabled=false). */
void raw_block_remove_stored(RawBlock *rb);

/* ---- raw_block-health.c -------------------------------------------------------------------- */

typedef struct RawBlockStats {
	_Atomic uint64_t stores, loads, skipped, renames, load_misses;
	_Atomic uint64_t crc_mismatches, damaged_headers, unsupported_keys, attribute_errors;
	_Atomic uint64_t checkpoints, checkpoint_errors;
} RawBlockStats;

/* As kvc_failures_note(); KEY may be NULL: about the whole store. */
void raw_block_note_error(
	RawBlock *rb, KvcTaskKind kind, const char *what, const KvcObjectKey *key, int errnum);
void raw_block_usage(RawBlock *rb, KvcL2Usage *usage);
void raw_block_describe(RawBlock *rb, KvcDescribeFunc func, void *user);

struct RawBlock {
	KvcBoardAdapter base;

	/* Immutable after open */
	char *path;
	int fd;	     /* what is read and written */
	int lock_fd; /* holds the device for this process; never given to the ring */
	bool is_direct, verify, persist, use_checkpoint;
	int64_t checkpoint_ns; /* after so long without a change; 0: only at the end */
	KvcIo *io;
	KvcPool *workers, *lookups;
	KvcFailures *failures;
	pthread_t keeper;

	/* Protected by change_lock */
	pthread_mutex_t change_lock;
	pthread_cond_t change_wake; /* no checkpoint is being written any more */
	RawBlockSuper super;	    /* sequence and checkpoint; the rest is immutable after open */
	unsigned changes;	    /* between begin and end */
	bool is_checkpointing;
	int64_t changed_ns; /* monotonic: the last change or checkpoint ended */

	/* Protected by lock */
	pthread_mutex_t lock;
	pthread_cond_t wake;	    /* a node's change ended, the index is ready, closing is set */
	pthread_cond_t keeper_wake; /* closing is set */
	GHashTable *nodes;
	RawBlockOrder order;
	RawBlockSpace space;
	GPtrArray *zombies;
	bool is_ready;
	uint64_t last_order, last_sequence;
	uint64_t objects, bytes_used;
	uint64_t checkpoint_need; /* bytes of all entries in a checkpoint */
	bool is_loaded_by_checkpoint;

	/* Atomic */
	atomic_bool closing;
	atomic_bool is_unsynced; /* tombstones were written since the last fdatasync */
	_Atomic uint64_t last_generation;
	RawBlockStats stats;
};

#endif
