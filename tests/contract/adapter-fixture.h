/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_CONTRACT_ADAPTER_FIXTURE_H
#define TESTS_CONTRACT_ADAPTER_FIXTURE_H

/*
 * What the contract suite of adapters is written with: a subject (an adapter and an instance of
 * it), keys, memory, and tasks that are waited for. All of it asserts; nothing here is for two
 * threads at once, but what takes a Subject may be called for it by one thread a kind of task.
 */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

#define WAIT_MS 60000
#define EVENT_FDS 3
#define MIB ((size_t)1 << 20)
/* A store below this is a small one: what needs room is left out. */
#define SMALL_BYTES (256 * MIB)

/* What a test is about: one adapter, and with a specification an instance of it. */
typedef struct Subject {
	const KvcL2AdapterOps *ops;
	const char *specification; /* NULL: it cannot be opened here */

	char *directory; /* or NULL */
	char *loop;	 /* a loop device over a file in the directory, or NULL */
	unsigned number; /* or 0 */
	KvcOptions *options;
	KvcL2Adapter *adapter;
	KvcKeyScope *scope, *plain_scope;
} Subject;

/* What this run opens, ended by NULL. */
extern char **specifications;

/* The tests of one file, ended by a NULL name. */
extern const struct CMUnitTest adapter_basic_tests[];
extern const struct CMUnitTest adapter_store_tests[];
extern const struct CMUnitTest adapter_lookup_tests[];
extern const struct CMUnitTest adapter_load_tests[];
extern const struct CMUnitTest adapter_key_tests[];
extern const struct CMUnitTest adapter_list_tests[];
extern const struct CMUnitTest adapter_restart_tests[];
extern const struct CMUnitTest adapter_thread_tests[];

/* ---- Instances ----------------------------------------------------------------------------- */

/*
 * Makes the small tmpfs that "@TMPFS@" in a specification means, in a mount name space of this
 * process. NULL where that is not allowed; else its path, which ends with the process.
 */
const char *make_tmpfs(void);
void remove_tmpfs(void);

/* Can this process make the loop device that "@LOOP@" in a specification means? */
bool may_make_loop(void);

/* contract-adapter --victim SPECIFICATION: stores until it is killed, see adapter-restart.c. */
int victim_main(const char *specification);

/* For cmocka: STATE is a Subject; it gets an instance with an empty store, which ends with it. */
int set_up(void **state);
int tear_down(void **state);

/* Opens the store of SUBJECT (again) with SUFFIX, "" or ",key=value", behind its specification. */
void subject_open(Subject *subject, const char *suffix);
void subject_close(Subject *subject);
/* SPECIFICATION with the directory or number of SUBJECT, made if there is none (transfer full). */
char *subject_specification(Subject *subject);
/* Is what is stored still there after a restart? */
bool subject_is_persistent(const Subject *subject);
/* Would the store notice that bytes were changed? */
bool subject_has_checksums(const Subject *subject);
/* The line NAME of describe (transfer full), or NULL. */
char *subject_line(const Subject *subject, const char *name);
/* What usage says; zeros without that slot. */
KvcL2Usage subject_usage(const Subject *subject);
/* Does it have usage, of its objects only and as of now? */
bool subject_has_exact_usage(const Subject *subject);
bool subject_is_small(const Subject *subject);

/* ---- Keys and memory ----------------------------------------------------------------------- */

KvcObjectKey *key_new(const Subject *subject, KvcSpace space, uint32_t number);
/* N chunks from number FIRST on (transfer full, of keys_free). */
KvcObjectKey **keys_new(const Subject *subject, uint32_t first, size_t n);
void keys_free(KvcObjectKey **keys, size_t n);

/* As the engine gives it: page aligned, zero behind the bytes, which depend on SEED. */
KvcMemoryObj memory_new(size_t bytes, uint32_t seed);
void memory_free(KvcMemoryObj *memory);
bool memory_equal(const KvcMemoryObj *a, const KvcMemoryObj *b);
/* N of BYTES each, seeds from SEED on. */
KvcMemoryObj *memories_new(size_t n, size_t bytes, uint32_t seed);
void memories_free(KvcMemoryObj *memories, size_t n);

/* ---- Tasks --------------------------------------------------------------------------------- */

void await_event(int fd);
/* Is there an event that nobody read? */
bool has_event(int fd);

/* Waits for the one store in flight. */
int64_t await_store(const Subject *subject, KvcL2TaskId id);
int64_t store(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *memory);
int64_t store_many(const Subject *subject,
		   KvcObjectKey *const *keys,
		   const KvcMemoryObj *memories,
		   size_t n);

/* The bits (transfer full); INFO (N entries, zero on entry) may be NULL. What is found is locked.
 */
KvcBitmap *await_lookup(const Subject *subject, KvcL2TaskId id, size_t n, KvcL2ObjectInfo *info);
KvcBitmap *
lookup_many(const Subject *subject, KvcObjectKey *const *keys, size_t n, KvcL2ObjectInfo *info);
/* Whether it is there; locked then. BYTES may be NULL. */
bool lookup_and_lock(const Subject *subject, KvcObjectKey *key, uint64_t *bytes);
void unlock(const Subject *subject, KvcObjectKey *key);
/* Whether it is there, and leaves no lock. */
bool is_found(const Subject *subject, KvcObjectKey *key);

KvcBitmap *await_load(const Subject *subject, KvcL2TaskId id, size_t n);
KvcBitmap *load_many(const Subject *subject,
		     KvcObjectKey *const *keys,
		     const KvcMemoryObj *memories,
		     size_t n);
bool load(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *memory);
/* Loads KEY into memory of the size of WANT: it is there, and these are its bytes. */
void assert_loads(const Subject *subject, KvcObjectKey *key, const KvcMemoryObj *want);
/* Loads KEY as an object of BYTES: it must be a miss. */
void assert_misses(const Subject *subject, KvcObjectKey *key, size_t bytes);

/* Whether it is gone; false: it is locked. Only with a delete_keys slot. */
bool delete_key(const Subject *subject, KvcObjectKey *key);

/* How often KEY is listed, SCOPE may be NULL, PAGE entries a page; each time with BYTES. */
unsigned count_listed(const Subject *subject,
		      const KvcKeyScope *scope,
		      KvcObjectKey *key,
		      size_t bytes,
		      size_t page);
/* The keys of a whole listing in their order (owned by the array). */
GPtrArray *list_keys(const Subject *subject, const KvcKeyScope *scope, size_t page);
/* One page; appends its keys to KEYS. */
void list_page(const Subject *subject,
	       const KvcKeyScope *scope,
	       char **cursor,
	       size_t page,
	       GPtrArray *keys);

#endif
