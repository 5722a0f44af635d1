/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_TASK_BOARD_H
#define KVCACHE_TASK_BOARD_H

/*
 * What every adapter does with its tasks, whatever thread works on them: an id at the submit, a
 * count of the parts that are not over, a result that is told once, and the three event fds.
 *
 * - submit: kvc_task_new(), then the adapter's own fields, kvc_task_post(), then the parts go to
 * its threads.
 * - the threads: fill in hits and info, and kvc_task_end_part() once for each part.
 * - query, pop: KVC_TASK_BOARD_SLOTS.
 * - close: kvc_task_board_await_idle(), stop the threads, kvc_task_board_free().
 *
 * A task belongs to the board from the post on, and whoever works on a part of it may use it until
 * that part is over. An adapter with a board begins with a KvcBoardAdapter, and its task with a
 * KvcTask. mock/ is the plainest user.
 */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KVC_BEGIN_DECLS

typedef enum {
	KVC_TASK_STORE,
	KVC_TASK_LOOKUP,
	KVC_TASK_LOAD,
	KVC_TASK_KINDS,
} KvcTaskKind;

typedef struct KvcTaskBoard KvcTaskBoard;

typedef struct KvcTask {
	/* Immutable after post */
	KvcL2TaskId id;
	KvcTaskKind kind;
	KvcTaskBoard *board;
	size_t n;
	KvcObjectKey **keys;   /* a reference of each */
	KvcMemoryObj *objects; /* a copy of the array; NULL of a lookup */

	/* Written by whoever works on key i, before its part is over; cleared at first */
	bool *hits; /* lookup: it is there, and locked; load: its bytes are; NULL of a store */
	KvcL2ObjectInfo *info; /* lookup, else NULL; what is in here is the task's */

	/* Atomic, for kvc_task_end_part() */
	size_t remaining; /* parts that are not over */
	int64_t moved;	  /* store: bytes written */
	int64_t error;	  /* store: 0, or -errno of the first part that failed */

	/* Protected by the board's lock */
	bool is_done;
} KvcTask;

/* What an adapter with a board begins with. */
typedef struct KvcBoardAdapter {
	KvcL2Adapter l2;
	KvcTaskBoard *board; /* immutable after open */
} KvcBoardAdapter;

/*
 * A board (transfer full), with the event fds. CLEAR (may be NULL) frees what the adapter's task
 * has behind its KvcTask; any thread, no lock is held. NULL with ERROR set: no more descriptors.
 */
KvcTaskBoard *kvc_task_board_new(void (*clear)(KvcTask *task), GError **error);
/*
 * Frees all its tasks, also those that are not over, and closes the fds. No other thread uses the
 * board or a task of it any more. BOARD may be NULL.
 */
void kvc_task_board_free(KvcTaskBoard *board);
/* Waits until all tasks that were posted are over. Blocks; for close. BOARD may be NULL. */
void kvc_task_board_await_idle(KvcTaskBoard *board);
/* Owned by the board. Never blocks, as all that follows; any thread. */
int kvc_task_board_event_fd(const KvcTaskBoard *board, KvcTaskKind kind);

/*
 * A task of STRUCT_BYTES, zeroed but for the KvcTask at its begin. References KEYS and copies
 * OBJECTS (NULL: there are none). Not posted, it is freed with kvc_task_discard().
 */
KvcTask *kvc_task_new(KvcTaskBoard *board,
		      size_t struct_bytes,
		      KvcTaskKind kind,
		      KvcObjectKey *const *keys,
		      const KvcMemoryObj *objects,
		      size_t n);
void kvc_task_discard(KvcTask *task);
/*
 * TASK (transfer full) can be asked for from now on, under the id that is returned, and is done
 * when so many PARTS are over; with 0 it is at once, and may be gone. The caller must keep what it
 * needs to hand out the parts: with the last one the task may be gone as well.
 */
KvcL2TaskId kvc_task_post(KvcTask *task, size_t parts);
/*
 * One part of TASK is over; the caller does not touch the task any more. RESULT: of a store the
 * bytes that were written, or -errno, of which the first is what the task comes to; of others it is
 * ignored. The last part publishes the task: no lock is taken before that. No lock of the adapter
 * that is taken around a query is needed, but may be held.
 */
void kvc_task_end_part(KvcTask *task, int64_t result);

/* Slots of KvcL2AdapterOps; see there. ADAPTER is a KvcBoardAdapter. */
int kvc_task_board_get_store_event_fd(KvcL2Adapter *adapter);
int kvc_task_board_get_lookup_and_lock_event_fd(KvcL2Adapter *adapter);
int kvc_task_board_get_load_event_fd(KvcL2Adapter *adapter);
size_t kvc_task_board_pop_completed_store_tasks(KvcL2Adapter *adapter,
						KvcL2StoreResult *results,
						size_t max);
/* Tells hits, and info of all keys: that of a miss may say KVC_L2_NOT_ASKED. */
int kvc_task_board_query_lookup_and_lock_result(KvcL2Adapter *adapter,
						KvcL2TaskId task_id,
						KvcBitmap *found,
						KvcL2ObjectInfo *info);
int kvc_task_board_query_load_result(KvcL2Adapter *adapter, KvcL2TaskId task_id, KvcBitmap *loaded);

/* In the initialiser of a KvcL2AdapterOps: the slots that the board fills. */
#define KVC_TASK_BOARD_SLOTS                                                                       \
	.get_store_event_fd = kvc_task_board_get_store_event_fd,                                   \
	.get_lookup_and_lock_event_fd = kvc_task_board_get_lookup_and_lock_event_fd,               \
	.get_load_event_fd = kvc_task_board_get_load_event_fd,                                     \
	.pop_completed_store_tasks = kvc_task_board_pop_completed_store_tasks,                     \
	.query_lookup_and_lock_result = kvc_task_board_query_lookup_and_lock_result,               \
	.query_load_result = kvc_task_board_query_load_result

KVC_END_DECLS

#endif
