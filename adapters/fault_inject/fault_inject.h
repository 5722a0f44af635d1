/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FAULT_INJECT_H
#define FAULT_INJECT_H

/* What the files of the adapter share. See README.md for what it does. */

#include <pthread.h>

#include <kvcache/task-board.h>

/* Bits of FaultAdapter.faults, in the order of fault_names. */
typedef enum {
	FAULT_LOAD_MISS = 1 << 0,
	FAULT_LOAD_SHORT = 1 << 1,
	FAULT_LOAD_CORRUPT = 1 << 2,
	FAULT_LOAD_SILENT = 1 << 3,
	FAULT_STORE_ERROR = 1 << 4,
	FAULT_LOOKUP_ERROR = 1 << 5,
	FAULT_LOOKUP_MISS = 1 << 6,
	FAULT_DELETE_ERROR = 1 << 7,
	FAULT_LOST_UNLOCK = 1 << 8,
	FAULT_DELAY = 1 << 9,
	FAULT_HANG = 1 << 10,
	FAULT_LOST_RESULT = 1 << 11,
} Fault;

typedef enum {
	STAGE_REQUEST, /* on its way to the inner adapter */
	STAGE_INNER,   /* submitted to it */
	STAGE_RESULT,  /* its result is not told yet */
} FaultStage;

/* All but the base is the thread's. */
typedef struct FaultTask {
	KvcTask base;
	KvcL2TaskId inner_id;
	FaultStage stage;
	bool is_held;	     /* until the switch is off */
	int64_t due_ns;	     /* of a delayed request */
	KvcBitmap *selected; /* the keys that a fault happens to */
	int64_t result;	     /* store */
} FaultTask;

typedef struct FaultAdapter {
	KvcBoardAdapter base;
	/* Immutable after open */
	KvcL2Adapter *inner;
	KvcOptions *inner_options;
	unsigned faults;
	double rate;
	uint64_t seed;
	bool redraw;
	GArray *positions; /* of size_t */
	GHashTable *names; /* chunk hashes in hex; owned */
	char *switch_path; /* or NULL */
	int64_t delay_ns;
	int error; /* -errno */
	int wake_fd;
	pthread_t thread;
	/* Protected by lock */
	pthread_mutex_t lock;
	bool stopping;
	GQueue incoming; /* submitted, not seen by the thread; does not own them */
	int64_t left;	 /* of max_faults; -1: no limit */
	uint64_t draws, n_faults, n_held;
	/* Owned by the thread */
	GPtrArray *running; /* all that is not done; does not own them */
} FaultAdapter;

/* ---- fault_inject-select.c: what a fault happens to. For any thread. ------------------------ */

/* The names of the bits of Fault, NULL-terminated. */
extern const char *const fault_names[];
/* Reads the options that select; false with ERROR set. */
bool fault_select_init(FaultAdapter *fault, const KvcOptions *options, GError **error);
void fault_select_deinit(FaultAdapter *fault);
/* Is switch_path there, or not set? Blocks shortly. */
bool fault_is_on(const FaultAdapter *fault);
/* Does a fault happen to the key at POSITION of a task? Counts it against max_faults then. */
bool fault_take(FaultAdapter *fault, const KvcObjectKey *key, size_t position);

/* ---- fault_inject-task.c: tasks and the thread that relays them ----------------------------- */

/* Begins a task; its id. OBJECTS is NULL for a lookup. */
KvcL2TaskId fault_submit(KvcL2Adapter *adapter,
			 KvcTaskKind kind,
			 KvcObjectKey *const *keys,
			 const KvcMemoryObj *objects,
			 size_t n);
/* For the board. */
void fault_task_clear(KvcTask *task);
/* Thread function, USER is the FaultAdapter. */
void *fault_main(void *user);

#endif
