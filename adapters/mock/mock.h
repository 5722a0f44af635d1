/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_MOCK_MOCK_H
#define ADAPTERS_MOCK_MOCK_H

/* Private to the adapter. */

#include <kvcache/io.h>
#include <kvcache/task-board.h>
#include <pthread.h>

#define GIB 1073741824.0

typedef struct MockTask {
	KvcTask base;
	int64_t due_ns;
} MockTask;

/* All that is known of a key. Without data it only carries the count of stores in flight. */
typedef struct MockRecord {
	KvcObjectKey *key;
	GBytes *data;			/* NULL: not stored */
	uint64_t sequence;		/* place in order of first storing; the cursor of list */
	KvcObjectAttributes attributes; /* of data */
	unsigned locks;
	unsigned stores; /* in flight */
} MockRecord;

typedef struct MockAdapter {
	KvcBoardAdapter base;

	/* Immutable after open */
	uint64_t capacity_bytes;
	double bytes_per_sec; /* 0: unlimited */
	int64_t latency_ns;
	double store_failure_rate, load_failure_rate, connection_failure_rate, jitter_ns;
	pthread_t thread;

	/* Protected by lock */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	bool stopping;
	int64_t busy_until_ns;				   /* when the bandwidth is free again */
	int64_t fail_stores, fail_loads, fail_connections; /* how many are left */
	GRand *random;
	GTree *queue;	     /* of pending tasks, by due time and id; does not own them */
	GHashTable *records; /* by key */
	GTree *by_sequence;  /* of records with data; does not own them */
	uint64_t last_sequence;
	uint64_t bytes_used;
	uint64_t n_stores, n_loads, n_skipped, n_load_misses, n_evicted;
	uint64_t n_locks; /* of all records */
} MockAdapter;

/* mock-object.c: what is stored. Callers hold the lock. */

MockRecord *mock_find_stored_locked(MockAdapter *mock, const KvcObjectKey *key);
/* The record of KEY, made if there is none. */
MockRecord *mock_get_record_locked(MockAdapter *mock, const KvcObjectKey *key);
/* Forgets RECORD when it says nothing any more. */
void mock_drop_record_locked(MockAdapter *mock, MockRecord *record);
void mock_drop_data_locked(MockAdapter *mock, MockRecord *record);
/* Bytes written (0: it was there), or -errno. DATA is taken over; ATTRIBUTES may be NULL. */
int64_t mock_store_object_locked(MockAdapter *mock,
				 KvcObjectKey *key,
				 GBytes *data,
				 const KvcObjectAttributes *attributes);
/* ATTRIBUTES may be NULL: only the time is known then. */
void mock_set_attributes_locked(MockRecord *record, const KvcObjectAttributes *attributes);
KvcL2ObjectInfo mock_get_info_locked(const MockRecord *record);
/* 0, -EBUSY or -ENOENT, as rename_key. */
int
mock_rename_object_locked(MockAdapter *mock, const KvcObjectKey *old_key, KvcObjectKey *new_key);
void mock_objects_init(MockAdapter *mock);
void mock_objects_deinit(MockAdapter *mock);

/* mock-task.c: the queue and its thread */

/* A task that is done when its time has come; its id. OBJECTS is NULL for a lookup. */
KvcL2TaskId mock_submit(KvcL2Adapter *adapter,
			KvcTaskKind kind,
			KvcObjectKey *const *keys,
			const KvcMemoryObj *objects,
			size_t n);
void mock_tasks_init(MockAdapter *mock);
void mock_tasks_deinit(MockAdapter *mock);
/* Takes one of the failures that are left, else lets RATE decide; true: what is to be done fails.
 */
bool mock_take_failure(MockAdapter *mock, int64_t *left, double rate);
/* Thread function, USER is the MockAdapter. */
void *mock_main(void *user);

#endif
