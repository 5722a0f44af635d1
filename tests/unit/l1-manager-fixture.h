/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_L1_MANAGER_FIXTURE_H
#define TESTS_UNIT_L1_MANAGER_FIXTURE_H

/* An L1Manager with two listeners that write down what they hear. */

#include "engine/l1-manager.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define CAPACITY (4 * MIB)
#define OVERRUN (2 * MIB)
#define PAGE UINT64_C(4096)

static int n_criticals; /* Atomic */
static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[4096]; /* Protected by log_lock: what was logged in this test, one a line */

static inline GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer user)
{
	if (level & G_LOG_LEVEL_CRITICAL)
		__atomic_fetch_add(&n_criticals, 1, __ATOMIC_RELAXED);
	pthread_mutex_lock(&log_lock);
	for (gsize i = 0; i < n; i++)
		if (strcmp(fields[i].key, "MESSAGE") == 0) {
			g_strlcat(log_text, fields[i].value, sizeof(log_text));
			g_strlcat(log_text, "\n", sizeof(log_text));
		}
	pthread_mutex_unlock(&log_lock);
	return G_LOG_WRITER_HANDLED;
}

/* A listener writes down what it hears: "wf:1" is on_write_finished of key 1. */
typedef struct Ear {
	KvcL1ManagerListener listener; /* must be first */
	pthread_mutex_t lock;
	GString *heard; /* Protected by lock */
} Ear;

typedef struct Fixture {
	KvcL1Memory *memory;
	KvcL1Manager *m;
	KvcStats stats;
	KvcKeyScope *scope;
	Ear ears[2];
	/* What make_room is to do. */
	unsigned rooms, room_asked, room_files;
	uint64_t room_bytes;
	KvcObjectKey *victim;
} Fixture;

static inline unsigned
number_of(const KvcObjectKey *key)
{
	uint32_t number;
	memcpy(&number, key->chunk_hash, 4);
	return number;
}

static inline void
hear(KvcL1ManagerListener *l, const char *what, const KvcL1Object *object)
{
	Ear *ear = (Ear *)l;
	pthread_mutex_lock(&ear->lock);
	g_string_append_printf(ear->heard, "%s%s:%u", ear->heard->len ? " " : "", what,
			       number_of(object->key));
	pthread_mutex_unlock(&ear->lock);
}

#define HEARD(name, what)                                                                          \
	static void name(KvcL1ManagerListener *l, KvcL1Object *object)                             \
	{                                                                                          \
		hear(l, what, object);                                                             \
	}
HEARD(on_reserved_read, "rr")
HEARD(on_read_finished, "rf")
HEARD(on_reserved_write, "rw")
HEARD(on_write_finished, "wf")
HEARD(on_prefetch_finished, "pf")
HEARD(on_deleted, "del")
HEARD(on_accessed, "acc")
HEARD(on_store_ended, "se")

static inline void
ear_init(Ear *ear)
{
	*ear = (Ear){.listener = {
			     .on_reserved_read = on_reserved_read,
			     .on_read_finished = on_read_finished,
			     .on_reserved_write = on_reserved_write,
			     .on_write_finished = on_write_finished,
			     .on_prefetch_finished = on_prefetch_finished,
			     .on_deleted_by_manager = on_deleted,
			     .on_accessed = on_accessed,
			     .on_store_ended = on_store_ended,
		     }};
	pthread_mutex_init(&ear->lock, NULL);
	ear->heard = g_string_new(NULL);
}

/* What was heard since the last call, by both. */
static inline void
assert_heard(Fixture *f, const char *expected)
{
	for (size_t i = 0; i < G_N_ELEMENTS(f->ears); i++) {
		assert_string_equal(f->ears[i].heard->str, expected);
		g_string_truncate(f->ears[i].heard, 0);
	}
}

static inline int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	f->memory = kvc_l1_memory_new(CAPACITY, OVERRUN, NULL);
	assert_non_null(f->memory);
	f->m = kvc_l1_manager_new(f->memory, &f->stats);
	f->scope = kvc_key_scope_new("model", 1, 0, NULL, NULL);
	for (size_t i = 0; i < G_N_ELEMENTS(f->ears); i++) {
		ear_init(&f->ears[i]);
		kvc_l1_manager_register_listener(f->m, &f->ears[i].listener);
	}
	n_criticals = 0;
	log_text[0] = '\0';
	*state = f;
	return 0;
}

/* All memory comes back, and no object is left locked or unfinished. */
static inline int
tear_down(void **state)
{
	Fixture *f = *state;
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(f->m, &counts);
	assert_int_equal(counts.read_locks, 0);
	assert_int_equal(counts.locked_bytes, 0);
	assert_int_equal(counts.staging_objects, 0);
	assert_int_equal(counts.staging_bytes, 0);
	kvc_l1_manager_free(f->m);
	assert_int_equal(kvc_l1_memory_used(f->memory), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 0);
	kvc_l1_memory_free(f->memory);
	for (size_t i = 0; i < G_N_ELEMENTS(f->ears); i++) {
		g_string_free(f->ears[i].heard, TRUE);
		pthread_mutex_destroy(&f->ears[i].lock);
	}
	kvc_key_scope_unref(f->scope);
	g_free(f);
	return 0;
}

static inline void
skip_without_tmpfs(Fixture *f)
{
	if (strcmp(kvc_l1_memory_kind(f->memory), "tmpfs") != 0) {
		print_message("no private tmpfs here\n");
		skip();
	}
}

static inline KvcObjectKey *
key_of(Fixture *f, uint32_t number)
{
	KvcObjectKey *key = kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, &number, 4, NULL);
	assert_non_null(key);
	return key;
}

static inline KvcL1Object *
reserve(Fixture *f, uint32_t number, uint64_t bytes, bool is_temporary)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object = NULL;
	int errnum = 0;
	assert_int_equal(
		kvc_l1_manager_reserve_write(f->m, key, bytes, is_temporary, &object, &errnum),
		KVC_L1_SUCCESS);
	assert_non_null(object);
	return object;
}

/* Whether BYTES can be reserved; they are given back. */
static inline KvcL1Error
try_reserve(Fixture *f, uint64_t bytes, int *errnum)
{
	KvcL1Object *object = NULL;
	g_autoptr(KvcObjectKey) key = key_of(f, 77);
	KvcL1Error error = kvc_l1_manager_reserve_write(f->m, key, bytes, false, &object, errnum);
	if (error == KVC_L1_SUCCESS)
		kvc_l1_manager_abort_write(f->m, object);
	else
		assert_null(object);
	return error;
}

static inline void
fill_file(const KvcL1Object *object, uint64_t bytes, uint8_t value)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	memset(data, value, bytes);
	assert_int_equal(pwrite(object->fd, data, bytes, 0), bytes);
}

static inline void
assert_content(const KvcL1Object *object, uint64_t bytes, uint8_t value)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	assert_int_equal(object->bytes, bytes);
	assert_int_equal(pread(object->fd, data, bytes + 1, 0), bytes);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(data[i], value);
}

static inline KvcL1Error
finish(Fixture *f, KvcL1Object *object, uint32_t number, KvcFinishMode mode)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_finish_write(f->m, object, key, mode);
}

/* An object of BYTES, all VALUE. */
static inline void
put(Fixture *f, uint32_t number, uint64_t bytes, uint8_t value)
{
	KvcL1Object *object = reserve(f, number, bytes, false);
	fill_file(object, bytes, value);
	assert_int_equal(finish(f, object, number, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
}

static inline KvcL1Error
try_read(Fixture *f, uint32_t number, KvcL1Object **object)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Error error = KVC_L1_OUT_OF_MEMORY;
	size_t hits = kvc_l1_manager_reserve_read(f->m, &key, 1, 1, object, &error);
	assert_int_equal(hits, error == KVC_L1_SUCCESS);
	assert_true((*object != NULL) == (error == KVC_L1_SUCCESS));
	return error;
}

static inline KvcL1Object *
read_lock(Fixture *f, uint32_t number)
{
	KvcL1Object *object;
	assert_int_equal(try_read(f, number, &object), KVC_L1_SUCCESS);
	return object;
}

static inline void
read_unlock(Fixture *f, KvcL1Object *object)
{
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 1), KVC_L1_SUCCESS);
}

static inline void
assert_absent(Fixture *f, uint32_t number)
{
	KvcL1Object *object;
	assert_int_equal(try_read(f, number, &object), KVC_L1_KEY_NOT_EXIST);
}

static inline KvcL1Error
delete_key(Fixture *f, uint32_t number, bool force)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_delete(f->m, key, force);
}

static inline KvcL1Error
evict(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_evict(f->m, key);
}

static inline bool
is_evictable(Fixture *f, uint32_t number, bool with_unreplicated)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_is_key_evictable(f->m, key, with_unreplicated);
}

static inline bool
is_unreplicated(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_is_key_unreplicated(f->m, key);
}

static inline KvcL1Counts
counts_of(Fixture *f)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(f->m, &counts);
	return counts;
}

static inline uint64_t
used(Fixture *f)
{
	return kvc_l1_memory_used(f->memory);
}

static inline uint64_t
allocated(const KvcL1Object *object)
{
	struct stat st;
	assert_int_equal(fstat(object->fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)

#endif
