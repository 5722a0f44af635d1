/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/l1-manager.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define CAPACITY (4 * MIB)
#define OVERRUN (2 * MIB)
#define PAGE UINT64_C(4096)

static int n_criticals; /* Atomic */

static GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, gpointer user)
{
	if (level & G_LOG_LEVEL_CRITICAL)
		__atomic_fetch_add(&n_criticals, 1, __ATOMIC_RELAXED);
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

static unsigned
number_of(const KvcObjectKey *key)
{
	uint32_t number;
	memcpy(&number, key->chunk_hash, 4);
	return number;
}

static void
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

static void
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
static void
assert_heard(Fixture *f, const char *expected)
{
	for (size_t i = 0; i < G_N_ELEMENTS(f->ears); i++) {
		assert_string_equal(f->ears[i].heard->str, expected);
		g_string_truncate(f->ears[i].heard, 0);
	}
}

static int
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
	*state = f;
	return 0;
}

/* All memory comes back, and no object is left locked or unfinished. */
static int
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

static void
skip_without_tmpfs(Fixture *f)
{
	if (strcmp(kvc_l1_memory_kind(f->memory), "tmpfs") != 0) {
		print_message("no private tmpfs here\n");
		skip();
	}
}

static KvcObjectKey *
key_of(Fixture *f, uint32_t number)
{
	KvcObjectKey *key = kvc_object_key_new(f->scope, KVC_SPACE_CHUNK, &number, 4, NULL);
	assert_non_null(key);
	return key;
}

static KvcL1Object *
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

static void
fill_file(const KvcL1Object *object, uint64_t bytes, uint8_t value)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	memset(data, value, bytes);
	assert_int_equal(pwrite(object->fd, data, bytes, 0), bytes);
}

static void
assert_content(const KvcL1Object *object, uint64_t bytes, uint8_t value)
{
	g_autofree uint8_t *data = g_malloc(bytes + 1);
	assert_int_equal(object->bytes, bytes);
	assert_int_equal(pread(object->fd, data, bytes + 1, 0), bytes);
	for (uint64_t i = 0; i < bytes; i++)
		assert_int_equal(data[i], value);
}

static KvcL1Error
finish(Fixture *f, KvcL1Object *object, uint32_t number, KvcFinishMode mode)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_finish_write(f->m, object, key, mode);
}

/* An object of BYTES, all VALUE. */
static void
put(Fixture *f, uint32_t number, uint64_t bytes, uint8_t value)
{
	KvcL1Object *object = reserve(f, number, bytes, false);
	fill_file(object, bytes, value);
	assert_int_equal(finish(f, object, number, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
}

static KvcL1Error
try_read(Fixture *f, uint32_t number, KvcL1Object **object)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Error error = KVC_L1_OUT_OF_MEMORY;
	size_t hits = kvc_l1_manager_reserve_read(f->m, &key, 1, 1, object, &error);
	assert_int_equal(hits, error == KVC_L1_SUCCESS);
	assert_true((*object != NULL) == (error == KVC_L1_SUCCESS));
	return error;
}

static KvcL1Object *
read_lock(Fixture *f, uint32_t number)
{
	KvcL1Object *object;
	assert_int_equal(try_read(f, number, &object), KVC_L1_SUCCESS);
	return object;
}

static void
read_unlock(Fixture *f, KvcL1Object *object)
{
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 1), KVC_L1_SUCCESS);
}

static void
assert_absent(Fixture *f, uint32_t number)
{
	KvcL1Object *object;
	assert_int_equal(try_read(f, number, &object), KVC_L1_KEY_NOT_EXIST);
}

static KvcL1Error
delete_key(Fixture *f, uint32_t number, bool force)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_delete(f->m, key, force);
}

static KvcL1Error
evict(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_evict(f->m, key);
}

static bool
is_evictable(Fixture *f, uint32_t number, bool with_unreplicated)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_is_key_evictable(f->m, key, with_unreplicated);
}

static bool
is_unreplicated(Fixture *f, uint32_t number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return kvc_l1_manager_is_key_unreplicated(f->m, key);
}

static KvcL1Counts
counts_of(Fixture *f)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(f->m, &counts);
	return counts;
}

static uint64_t
used(Fixture *f)
{
	return kvc_l1_memory_used(f->memory);
}

static uint64_t
allocated(const KvcL1Object *object)
{
	struct stat st;
	assert_int_equal(fstat(object->fd, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

/* ---- Errors have words --------------------------------------------------------------------- */

static void
test_strerror(void **state)
{
	(void)state;
	for (int a = KVC_L1_SUCCESS; a <= KVC_L1_OUT_OF_MEMORY; a++) {
		assert_true(strlen(kvc_l1_strerror((KvcL1Error)a)) > 0);
		for (int b = KVC_L1_SUCCESS; b < a; b++)
			assert_string_not_equal(kvc_l1_strerror((KvcL1Error)a),
						kvc_l1_strerror((KvcL1Error)b));
	}
	assert_string_equal(kvc_l1_strerror((KvcL1Error)99), "unknown error");
}

/* ---- Reading ------------------------------------------------------------------------------- */

static void
test_reserve_read_of_a_mixture(void **state)
{
	Fixture *f = *state;
	KvcL1Object *objects[4];
	KvcL1Error errors[4];
	put(f, 1, 100, 1);
	put(f, 3, 100, 3);
	KvcObjectKey *keys[] = {key_of(f, 1), key_of(f, 2), key_of(f, 3), key_of(f, 1)};
	assert_heard(f, "rw:1 wf:1 rw:3 wf:3");
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, keys, 4, 1, objects, errors), 3);
	assert_int_equal(errors[0], KVC_L1_SUCCESS);
	assert_int_equal(errors[1], KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(errors[2], KVC_L1_SUCCESS);
	assert_null(objects[1]);
	/* A key named twice is locked twice. */
	assert_ptr_equal(objects[0], objects[3]);
	assert_int_equal(objects[0]->read_locks, 2);
	assert_int_equal(counts_of(f).read_locks, 3);
	assert_int_equal(counts_of(f).locked_bytes, 2 * PAGE);
	assert_heard(f, "rr:1 rr:3 rr:1");
	read_unlock(f, objects[0]);
	read_unlock(f, objects[2]);
	read_unlock(f, objects[3]);
	assert_heard(f, "rf:1 rf:3 rf:1");
	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
		kvc_object_key_unref(keys[i]);
	/* No keys at all. */
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, keys, 0, 1, objects, NULL), 0);
}

static void
test_many_read_locks(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object;
	put(f, 1, 100, 1);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, &key, 1, 200, &object, NULL), 1);
	assert_int_equal(counts_of(f).read_locks, 200);
	assert_int_equal(counts_of(f).locked_bytes, PAGE);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 150), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).locked_bytes, PAGE);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 50), KVC_L1_SUCCESS);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
}

static void
test_double_finish_read(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock(f, 1);
	read_unlock(f, object);
	assert_heard(f, "rw:1 wf:1 rr:1 rf:1");
	assert_int_equal(n_criticals, 0);
	/* Alive: the table has it. */
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 1), KVC_L1_KEY_IN_WRONG_STATE);
	assert_int_equal(n_criticals, 1);
	assert_heard(f, "");
	object = read_lock(f, 1);
	/* More than are held: none is released. */
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 2), KVC_L1_KEY_IN_WRONG_STATE);
	assert_int_equal(n_criticals, 2);
	assert_int_equal(counts_of(f).read_locks, 1);
	assert_int_equal(object->refs, 2);
	read_unlock(f, object);
}

/* ---- Reserving ----------------------------------------------------------------------------- */

static void
test_reservation_is_allocated_and_empty(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 3 * PAGE + 1, false);
	assert_int_equal(kvc_l1_object_get_reserved_bytes(object), 4 * PAGE);
	assert_int_equal(kvc_l1_object_get_bytes(object), 0);
	assert_true(allocated(object) >= 4 * PAGE);
	assert_int_equal(kvc_l1_object_get_fd(object), object->fd);
	assert_int_equal(used(f), 4 * PAGE);
	assert_int_equal(kvc_l1_memory_files(f->memory), 1);
	assert_int_equal(counts_of(f).staging_objects, 1);
	assert_int_equal(counts_of(f).staging_bytes, 4 * PAGE);
	fill_file(object, 10, 1);
	assert_int_equal(kvc_l1_object_get_bytes(object), 10);
	assert_int_equal(kvc_l1_manager_abort_write(f->m, object), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_reserved), 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_aborted), 1);
	assert_heard(f, "rw:1");
}

static void
test_reserve_nothing(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 0, false);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	object = read_lock(f, 1);
	assert_content(object, 0, 0);
	read_unlock(f, object);
}

static void
test_staging_is_invisible(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 100, false);
	fill_file(object, 100, 1);
	assert_absent(f, 1);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(evict(f, 1), KVC_L1_KEY_NOT_EXIST);
	assert_false(is_evictable(f, 1, true));
	assert_heard(f, "rw:1");
	kvc_l1_manager_abort_write(f->m, object);
	assert_absent(f, 1);
}

static void
test_key_given_at_the_end(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object;
	assert_int_equal(kvc_l1_manager_reserve_write(f->m, NULL, 100, false, &object, NULL),
			 KVC_L1_SUCCESS);
	fill_file(object, 100, 9);
	assert_heard(f, "");
	assert_int_equal(finish(f, object, 9, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_heard(f, "wf:9");
	object = read_lock(f, 9);
	assert_content(object, 100, 9);
	read_unlock(f, object);
	assert_int_equal(kvc_l1_manager_reserve_write(f->m, NULL, 100, false, &object, NULL),
			 KVC_L1_SUCCESS);
	kvc_l1_manager_abort_write(f->m, object);
}

static KvcL1Error
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

static void
test_out_of_memory(void **state)
{
	Fixture *f = *state;
	int errnum = 0;
	put(f, 1, MIB, 1);
	assert_int_equal(try_reserve(f, CAPACITY, &errnum), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(errnum, ENOSPC);
	assert_int_equal(try_reserve(f, CAPACITY - MIB + 1, NULL), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(try_reserve(f, CAPACITY + 1, NULL), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(kvc_stats_get(&f->stats, l1_reserve_failed_no_memory), 3);
	assert_int_equal(kvc_stats_get(&f->stats, l1_reserve_failed_error), 0);
	/* Nothing was taken, what is there stays. */
	assert_int_equal(used(f), MIB);
	assert_int_equal(kvc_l1_memory_files(f->memory), 1);
	assert_heard(f, "rw:1 wf:1");
	assert_int_equal(try_reserve(f, CAPACITY - MIB, &errnum), KVC_L1_SUCCESS);
	KvcL1Object *object = read_lock(f, 1);
	assert_content(object, MIB, 1);
	read_unlock(f, object);
}

static void
test_reserve_says_which_error(void **state)
{
	Fixture *f = *state;
	struct rlimit limit, none;
	int errnum = 0;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){0, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	KvcL1Error error = try_reserve(f, 100, &errnum);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(error, KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(errnum, EMFILE);
	assert_int_equal(kvc_stats_get(&f->stats, l1_reserve_failed_error), 1);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 0);
}

/* ---- Making room --------------------------------------------------------------------------- */

static bool
make_room(void *user, uint64_t bytes, unsigned files)
{
	Fixture *f = user;
	f->room_asked++;
	f->room_bytes = bytes;
	f->room_files = files;
	if (f->victim)
		kvc_l1_manager_evict(f->m, f->victim);
	return f->rooms > 0 && f->rooms-- > 0;
}

static void
test_difference_8_reservation_asks_for_room(void **state)
{
	Fixture *f = *state;
	int errnum = 0;
	kvc_l1_manager_set_make_room(f->m, make_room, f);
	put(f, 1, 2 * MIB, 1);
	put(f, 2, 2 * MIB, 2);
	assert_int_equal(f->room_asked, 0);
	/* Nothing can go: asked once, refused. */
	assert_int_equal(try_reserve(f, MIB - 5, &errnum), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(errnum, ENOSPC);
	assert_int_equal(f->room_asked, 1);
	assert_int_equal(f->room_bytes, MIB);
	assert_int_equal(f->room_files, 1);
	/* It never fits: not asked, nothing evicted for it. */
	assert_int_equal(try_reserve(f, CAPACITY + PAGE, NULL), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(f->room_asked, 1);
	f->victim = key_of(f, 1);
	f->rooms = 1;
	assert_int_equal(try_reserve(f, MIB, &errnum), KVC_L1_SUCCESS);
	assert_int_equal(f->room_asked, 2);
	assert_int_equal(used(f), 2 * MIB);
	kvc_object_key_unref(f->victim);
}

/* Others may take what was freed: it ends all the same. */
static void
test_making_room_ends(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_make_room(f->m, make_room, f);
	put(f, 1, CAPACITY, 1);
	f->rooms = UINT_MAX;
	assert_int_equal(try_reserve(f, MIB, NULL), KVC_L1_OUT_OF_MEMORY);
	assert_true(f->room_asked > 1 && f->room_asked < 100);
}

static void
test_extend(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	int errnum = 0;
	fill_file(object, PAGE, 5);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, 10, &errnum), KVC_L1_SUCCESS);
	assert_int_equal(object->charged_bytes, PAGE);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, MIB + 1, &errnum),
			 KVC_L1_SUCCESS);
	assert_int_equal(object->charged_bytes, MIB + PAGE);
	assert_int_equal(used(f), MIB + PAGE);
	assert_int_equal(counts_of(f).staging_bytes, MIB + PAGE);
	assert_true(allocated(object) >= MIB + PAGE);
	assert_int_equal(kvc_l1_object_get_bytes(object), PAGE);
	/* Too much: as it was. */
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, CAPACITY + 1, &errnum),
			 KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(errnum, ENOSPC);
	assert_int_equal(used(f), MIB + PAGE);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, CAPACITY, &errnum),
			 KVC_L1_SUCCESS);
	assert_int_equal(used(f), CAPACITY);
	fill_file(object, MIB, 6);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(used(f), MIB);
	object = read_lock(f, 1);
	assert_content(object, MIB, 6);
	read_unlock(f, object);
}

static void
test_extend_asks_for_room(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_make_room(f->m, make_room, f);
	put(f, 1, 3 * MIB, 1);
	KvcL1Object *object = reserve(f, 2, MIB, false);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, 3 * MIB, NULL),
			 KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(f->room_bytes, 2 * MIB);
	assert_int_equal(f->room_files, 0);
	f->victim = key_of(f, 1);
	f->rooms = 1;
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, 3 * MIB, NULL), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 3 * MIB);
	kvc_l1_manager_abort_write(f->m, object);
	kvc_object_key_unref(f->victim);
}

/* ---- Commit -------------------------------------------------------------------------------- */

static void
test_commit_trims_to_the_page(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 2 * MIB, false);
	assert_int_equal(used(f), 2 * MIB);
	fill_file(object, 5000, 7);
	int64_t before = kvc_wall_ns();
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 2 * PAGE);
	assert_int_equal(counts_of(f).staging_bytes, 0);
	object = read_lock(f, 1);
	assert_content(object, 5000, 7);
	assert_int_equal(object->charged_bytes, 2 * PAGE);
	assert_int_equal(allocated(object), 2 * PAGE);
	assert_true(object->mtime_ns >= before && object->mtime_ns <= kvc_wall_ns());
	assert_int_equal(counts_of(f).locked_bytes, 2 * PAGE);
	read_unlock(f, object);
	/* All the rest of the budget is there to be had. */
	assert_int_equal(try_reserve(f, CAPACITY - 2 * PAGE, NULL), KVC_L1_SUCCESS);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 0);
}

static void
test_outgrown_reservation_is_charged_at_commit(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, 5 * PAGE - 1, 8);
	assert_int_equal(used(f), PAGE);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 5 * PAGE);
	object = read_lock(f, 1);
	assert_content(object, 5 * PAGE - 1, 8);
	read_unlock(f, object);
}

/* The bytes are in the memory already: beyond the budget, until something goes. */
static void
test_outgrown_beyond_the_budget(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	put(f, 2, CAPACITY - PAGE, 2);
	fill_file(object, MIB, 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(used(f), CAPACITY + MIB - PAGE);
	assert_int_equal(try_reserve(f, PAGE, NULL), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(evict(f, 2), KVC_L1_SUCCESS);
	assert_int_equal(used(f), MIB);
	assert_int_equal(try_reserve(f, PAGE, NULL), KVC_L1_SUCCESS);
}

/* Holes are data once committed: reading them must not take memory. */
static void
test_holes_are_filled_and_charged(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	assert_int_equal(pwrite(object->fd, "x", 1, MIB - 1), 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	object = read_lock(f, 1);
	assert_int_equal(object->bytes, MIB);
	assert_int_equal(used(f), MIB);
	assert_true(allocated(object) >= MIB);
	char byte = 1;
	assert_int_equal(pread(object->fd, &byte, 1, MIB / 2), 1);
	assert_int_equal(byte, 0);
	read_unlock(f, object);
}

/* A size that no memory can back cannot be committed: dropped, the key stays as before. */
static void
test_commit_that_cannot_be_sealed(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked = NULL;
	skip_without_tmpfs(f);
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	assert_int_equal(ftruncate(object->fd, (off_t)(4 * CAPACITY)), 0);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_REPLACE), KVC_L1_KEY_IN_WRONG_STATE);
	assert_absent(f, 1);
	object = reserve(f, 2, PAGE, true);
	assert_int_equal(ftruncate(object->fd, (off_t)(4 * CAPACITY)), 0);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_KEY_IN_WRONG_STATE);
	assert_null(locked);
	assert_absent(f, 2);
	assert_int_equal(used(f), 0);
	assert_heard(f, "rw:1 rw:2");
}

static void
test_two_writers_of_one_key(void **state)
{
	Fixture *f = *state;
	KvcL1Object *a = reserve(f, 1, PAGE, false), *b = reserve(f, 1, 2 * PAGE, false);
	assert_ptr_not_equal(a, b);
	assert_int_not_equal(a->fd, b->fd);
	fill_file(a, 100, 0xaa);
	fill_file(b, 200, 0xbb);
	assert_int_equal(finish(f, b, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	fill_file(a, 100, 0xac);
	assert_int_equal(finish(f, a, 1, KVC_FINISH_FIRST_WINS), KVC_L1_KEY_NOT_WRITABLE);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_dropped), 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_finished), 1);
	KvcL1Object *object = read_lock(f, 1);
	assert_content(object, 200, 0xbb);
	read_unlock(f, object);
	assert_int_equal(used(f), PAGE);
	assert_int_equal(counts_of(f).objects, 1);
	assert_heard(f, "rw:1 rw:1 wf:1 rr:1 rf:1");
}

static void
test_reserve_of_a_resident_and_a_locked_key(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *reader = read_lock(f, 1), *writer = reserve(f, 1, 100, false);
	fill_file(writer, 100, 2);
	assert_content(reader, 100, 1);
	assert_int_equal(finish(f, writer, 1, KVC_FINISH_FIRST_WINS), KVC_L1_KEY_NOT_WRITABLE);
	assert_content(reader, 100, 1);
	read_unlock(f, reader);
}

static void
test_replace(void **state)
{
	Fixture *f = *state;
	put(f, 1, 3 * PAGE, 1);
	KvcL1Object *old = read_lock(f, 1), *object = reserve(f, 1, PAGE, false);
	assert_heard(f, "rw:1 wf:1 rr:1 rw:1");
	fill_file(object, 50, 2);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	/* The key did not go: no deletion is told. */
	assert_heard(f, "wf:1");
	assert_int_equal(counts_of(f).objects, 1);
	KvcL1Object *now = read_lock(f, 1);
	assert_ptr_equal(now, object);
	assert_content(now, 50, 2);
	/* The reader keeps the bytes it opened. */
	assert_content(old, 3 * PAGE, 1);
	assert_int_equal(old->state, KVC_L1_DETACHED);
	assert_int_equal(used(f), 4 * PAGE);
	assert_int_equal(counts_of(f).locked_bytes, 4 * PAGE);
	read_unlock(f, old);
	assert_int_equal(used(f), PAGE);
	read_unlock(f, now);
	object = reserve(f, 2, 10, false);
	assert_int_equal(finish(f, object, 2, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).objects, 2);
}

/* ---- Dirty --------------------------------------------------------------------------------- */

static void
test_difference_7_dirty_is_not_evicted(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 1, 100, 1);
	assert_int_equal(counts_of(f).dirty_objects, 1);
	assert_int_equal(counts_of(f).dirty_bytes, PAGE);
	assert_false(is_evictable(f, 1, true));
	assert_int_equal(evict(f, 1), KVC_L1_KEY_IS_LOCKED);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	KvcL1Object *object = read_lock(f, 1);
	kvc_l1_manager_set_clean(f->m, object, true);
	assert_int_equal(counts_of(f).dirty_objects, 0);
	assert_int_equal(counts_of(f).dirty_bytes, 0);
	assert_false(is_evictable(f, 1, true));
	assert_int_equal(evict(f, 1), KVC_L1_KEY_IS_LOCKED);
	read_unlock(f, object);
	assert_true(is_evictable(f, 1, false));
	assert_false(is_unreplicated(f, 1));
	assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
	assert_heard(f, "rw:1 wf:1 rr:1 se:1 rf:1 del:1");
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_bytes), 100);
}

static void
set_clean(Fixture *f, uint32_t number, bool replicated)
{
	KvcL1Object *object = read_lock(f, number);
	kvc_l1_manager_set_clean(f->m, object, replicated);
	read_unlock(f, object);
}

static void
test_unreplicated_is_evicted_last_only(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 1, 100, 1);
	assert_false(is_unreplicated(f, 1));
	set_clean(f, 1, false);
	set_clean(f, 1, false);
	assert_int_equal(counts_of(f).unreplicated_objects, 1);
	assert_int_equal(counts_of(f).dirty_objects, 0);
	assert_true(is_unreplicated(f, 1));
	assert_false(is_evictable(f, 1, false));
	assert_true(is_evictable(f, 1, true));
	/* A later store that succeeds. */
	set_clean(f, 1, true);
	assert_int_equal(counts_of(f).unreplicated_objects, 0);
	assert_true(is_evictable(f, 1, false));
	set_clean(f, 1, false);
	assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).unreplicated_objects, 0);
	assert_false(is_unreplicated(f, 1));
}

/* The store of an object that was deleted or replaced meanwhile says nothing of the key. */
static void
test_store_of_a_detached_object_ends_silently(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 1, 100, 1);
	KvcL1Object *old = kvc_l1_object_ref(read_lock(f, 1));
	read_unlock(f, old);
	KvcL1Object *object = reserve(f, 1, 100, false);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).dirty_objects, 1);
	assert_heard(f, "rw:1 wf:1 rr:1 rf:1 rw:1 wf:1");
	kvc_l1_manager_set_clean(f->m, old, true);
	kvc_l1_manager_set_clean(f->m, old, false);
	assert_heard(f, "");
	assert_int_equal(counts_of(f).dirty_objects, 1);
	assert_int_equal(counts_of(f).unreplicated_objects, 0);
	assert_int_equal(evict(f, 1), KVC_L1_KEY_IS_LOCKED);
	kvc_l1_object_unref(old);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).dirty_objects, 0);
	assert_int_equal(counts_of(f).dirty_bytes, 0);
}

/* ---- Admission by prefetch ----------------------------------------------------------------- */

static void
test_difference_4_prefetched_is_told_apart(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked = NULL, *object = reserve(f, 1, MIB, true);
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	fill_file(object, 300, 3);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 3, &locked),
			 KVC_L1_SUCCESS);
	assert_ptr_equal(locked, object);
	assert_content(locked, 300, 3);
	assert_int_equal(locked->read_locks, 3);
	assert_int_equal(counts_of(f).read_locks, 3);
	assert_int_equal(counts_of(f).temporary_objects, 1);
	assert_int_equal(used(f), PAGE);
	/* Never dirty, and no finished write that the StoreController would hear. */
	assert_int_equal(counts_of(f).dirty_objects, 0);
	assert_heard(f, "rw:1 pf:1");
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, locked, 3), KVC_L1_SUCCESS);
	/* Difference 11: temporary is not gone with its last reader. */
	object = read_lock(f, 1);
	assert_content(object, 300, 3);
	read_unlock(f, object);
	assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).temporary_objects, 0);
}

static void
test_warm_admission(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked, *object = reserve(f, 1, 100, false);
	fill_file(object, 100, 4);
	locked = object;
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 0, &locked),
			 KVC_L1_SUCCESS);
	assert_null(locked);
	assert_int_equal(counts_of(f).read_locks, 0);
	assert_int_equal(counts_of(f).temporary_objects, 0);
	assert_heard(f, "rw:1 pf:1");
	object = read_lock(f, 1);
	assert_content(object, 100, 4);
	read_unlock(f, object);
}

static void
test_admission_when_resident(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked = NULL;
	put(f, 1, 100, 1);
	KvcL1Object *object = reserve(f, 1, 2 * PAGE, true);
	fill_file(object, 2 * PAGE, 2);
	assert_heard(f, "rw:1 wf:1 rw:1");
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 2, &locked),
			 KVC_L1_SUCCESS);
	/* Ours is gone, the resident one carries the locks. */
	assert_heard(f, "");
	assert_int_equal(used(f), PAGE);
	assert_int_equal(counts_of(f).read_locks, 2);
	assert_int_equal(counts_of(f).temporary_objects, 0);
	assert_content(locked, 100, 1);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, locked, 2), KVC_L1_SUCCESS);
	object = reserve(f, 1, PAGE, true);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 0, &locked),
			 KVC_L1_SUCCESS);
	assert_null(locked);
	assert_int_equal(counts_of(f).objects, 1);
}

static void
test_difference_2_abort_was_never_there(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, MIB, true);
	fill_file(object, 100, 0xee);
	assert_int_equal(kvc_l1_manager_abort_write(f->m, object), KVC_L1_SUCCESS);
	assert_absent(f, 1);
	assert_int_equal(used(f), 0);
	/* Neither finished nor deleted. */
	assert_heard(f, "rw:1");
	/* It leaves a resident one of the same key alone. */
	put(f, 1, 100, 1);
	kvc_l1_manager_abort_write(f->m, reserve(f, 1, MIB, true));
	object = read_lock(f, 1);
	assert_content(object, 100, 1);
	read_unlock(f, object);
}

/* ---- Removal ------------------------------------------------------------------------------- */

static void
test_delete(void **state)
{
	Fixture *f = *state;
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(evict(f, 1), KVC_L1_KEY_NOT_EXIST);
	put(f, 1, 100, 1);
	put(f, 2, 100, 2);
	KvcL1Object *object = read_lock(f, 1);
	assert_heard(f, "rw:1 wf:1 rw:2 wf:2 rr:1");
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	assert_int_equal(evict(f, 1), KVC_L1_KEY_IS_LOCKED);
	assert_heard(f, "");
	read_unlock(f, object);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
	assert_heard(f, "rf:1 del:1");
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_NOT_EXIST);
	/* No eviction was counted, and the other stays. */
	assert_int_equal(kvc_stats_get(&f->stats, l1_evicted_objects), 0);
	assert_absent(f, 1);
	read_unlock(f, read_lock(f, 2));
}

static void
test_forced_delete_leaves_readers_their_object(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 1, 100, 1);
	KvcL1Object *old = read_lock(f, 1);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_SUCCESS);
	assert_heard(f, "rw:1 wf:1 rr:1 del:1");
	assert_absent(f, 1);
	assert_content(old, 100, 1);
	assert_int_equal(counts_of(f).objects, 0);
	assert_int_equal(counts_of(f).dirty_objects, 0);
	/* A new one of the same key is another object. */
	put(f, 1, 100, 2);
	KvcL1Object *now = read_lock(f, 1);
	assert_content(old, 100, 1);
	assert_content(now, 100, 2);
	read_unlock(f, old);
	assert_int_equal(used(f), PAGE);
	assert_int_equal(counts_of(f).read_locks, 1);
	read_unlock(f, now);
}

static void
test_touch(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *staging = reserve(f, 3, 100, false);
	KvcObjectKey *keys[] = {key_of(f, 2), key_of(f, 1), key_of(f, 3), key_of(f, 1)};
	assert_heard(f, "rw:1 wf:1 rw:3");
	kvc_l1_manager_touch_keys(f->m, keys, G_N_ELEMENTS(keys));
	assert_heard(f, "acc:1 acc:1");
	kvc_l1_manager_touch_keys(f->m, keys, 0);
	assert_heard(f, "");
	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
		kvc_object_key_unref(keys[i]);
	kvc_l1_manager_abort_write(f->m, staging);
}

/* ---- Memory of an object ------------------------------------------------------------------- */

static void
test_map(void **state)
{
	Fixture *f = *state;
	KvcMemoryObj mapped;
	KvcL1Object *locked, *object = reserve(f, 1, 3 * PAGE, true);
	assert_int_equal(kvc_l1_object_map(object, true, &mapped), 0);
	assert_null(mapped.data);
	assert_int_equal(mapped.mapped_bytes, 0);
	kvc_l1_object_unmap(&mapped);
	assert_int_equal(kvc_l1_object_set_size(object, PAGE + 10), 0);
	assert_int_equal(kvc_l1_object_map(object, true, &mapped), 0);
	assert_int_equal(mapped.bytes, PAGE + 10);
	assert_int_equal(mapped.mapped_bytes, 2 * PAGE);
	assert_int_equal((uintptr_t)mapped.data % PAGE, 0);
	/* To the end of the page, as an O_DIRECT read does. */
	memset(mapped.data, 0x42, mapped.mapped_bytes);
	kvc_l1_object_unmap(&mapped);
	assert_null(mapped.data);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	assert_content(locked, PAGE + 10, 0x42);
	assert_int_equal(used(f), 2 * PAGE);
	assert_int_equal(kvc_l1_object_map(locked, false, &mapped), 0);
	assert_int_equal(((uint8_t *)mapped.data)[PAGE + 9], 0x42);
	kvc_l1_object_unmap(&mapped);
	read_unlock(f, locked);
}

static void
test_huge_pages_are_a_share(void **state)
{
	Fixture *f = *state;
	assert_true(kvc_l1_manager_measure_huge_pages(f->m) == -1);
	put(f, 1, 2 * MIB, 1);
	put(f, 2, PAGE, 2);
	double share = kvc_l1_manager_measure_huge_pages(f->m);
	assert_true(share == -1 || (share >= 0 && share <= 1));
}

/* ---- The full epoch ------------------------------------------------------------------------ */

/* Writes past the reservation until the tmpfs refuses. */
static void
fill_tmpfs(const KvcL1Object *object)
{
	static char page[4096];
	off_t at = 0;
	ssize_t n;
	while ((n = pwrite(object->fd, page, sizeof(page), at)) == (ssize_t)sizeof(page))
		at += n;
	assert_true(n < 0 && errno == ENOSPC);
	assert_true((uint64_t)at > CAPACITY);
}

static void
test_full_memory_poisons_every_staging_object(void **state)
{
	Fixture *f = *state;
	skip_without_tmpfs(f);
	KvcL1Object *innocent = reserve(f, 1, PAGE, false), *greedy = reserve(f, 2, PAGE, false);
	assert_false(kvc_l1_object_was_memory_full(innocent));
	assert_false(kvc_l1_object_was_memory_full(greedy));
	fill_tmpfs(greedy);
	assert_true(kvc_l1_object_was_memory_full(innocent));
	assert_true(kvc_l1_object_was_memory_full(greedy));
	kvc_l1_manager_abort_write(f->m, greedy);
	/* It stays so although there is room again; a new one starts clean. */
	KvcL1Object *later = reserve(f, 3, PAGE, false);
	assert_true(kvc_l1_object_was_memory_full(innocent));
	assert_false(kvc_l1_object_was_memory_full(later));
	kvc_l1_manager_abort_write(f->m, innocent);
	kvc_l1_manager_abort_write(f->m, later);
}

/* Nobody looked while it was full: the release of the memory did. */
static void
test_full_memory_is_noticed_at_release(void **state)
{
	Fixture *f = *state;
	skip_without_tmpfs(f);
	KvcL1Object *innocent = reserve(f, 1, PAGE, false), *greedy = reserve(f, 2, PAGE, false);
	fill_tmpfs(greedy);
	kvc_l1_manager_abort_write(f->m, greedy);
	assert_true(kvc_l1_object_was_memory_full(innocent));
	kvc_l1_manager_abort_write(f->m, innocent);
}

/* A commit trims memory too. */
static void
test_full_memory_is_noticed_at_commit(void **state)
{
	Fixture *f = *state;
	skip_without_tmpfs(f);
	KvcL1Object *innocent = reserve(f, 1, PAGE, false), *big = reserve(f, 2, MIB, false);
	KvcL1Object *greedy = reserve(f, 3, PAGE, false);
	fill_tmpfs(greedy);
	fill_file(big, 10, 1);
	assert_int_equal(finish(f, big, 2, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_true(kvc_l1_object_was_memory_full(innocent));
	kvc_l1_manager_abort_write(f->m, greedy);
	kvc_l1_manager_abort_write(f->m, innocent);
}

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_KEYS 16
#define N_STEPS 1500

typedef struct Worker {
	Fixture *fixture;
	unsigned number;
	unsigned bad, hits;
} Worker;

/* The value of an object's bytes tells its key: its first byte is repeated, and is the key's. */
static bool
is_whole(const KvcL1Object *object, unsigned number)
{
	uint8_t data[600];
	ssize_t n = pread(object->fd, data, sizeof(data), 0);
	if (n < 100 || (uint64_t)n != object->bytes)
		return false;
	for (ssize_t i = 0; i < n; i++)
		if (data[i] != (uint8_t)number)
			return false;
	return true;
}

static void *
read_again_and_again(void *user)
{
	Worker *w = user;
	Fixture *f = w->fixture;
	for (unsigned i = 0; i < N_STEPS * 2; i++) {
		unsigned number = (i * 7 + w->number) % N_KEYS;
		g_autoptr(KvcObjectKey) key = key_of(f, number);
		KvcL1Object *object;
		if (kvc_l1_manager_reserve_read(f->m, &key, 1, 2, &object, NULL) == 0)
			continue;
		w->hits++;
		w->bad += !is_whole(object, number);
		w->bad += kvc_l1_manager_finish_read(f->m, object, 1) != KVC_L1_SUCCESS;
		w->bad += !is_whole(object, number);
		w->bad += kvc_l1_manager_finish_read(f->m, object, 1) != KVC_L1_SUCCESS;
	}
	return NULL;
}

static void *
evict_again_and_again(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < N_STEPS * 2; i++) {
		g_autoptr(KvcObjectKey) key = key_of(w->fixture, i % N_KEYS);
		KvcL1Error error = i % 11 == 0 ? kvc_l1_manager_delete(w->fixture->m, key, true)
					       : kvc_l1_manager_evict(w->fixture->m, key);
		w->bad += error != KVC_L1_SUCCESS && error != KVC_L1_KEY_NOT_EXIST &&
			  error != KVC_L1_KEY_IS_LOCKED;
		kvc_l1_manager_is_key_evictable(w->fixture->m, key, true);
	}
	return NULL;
}

static void
write_one(Worker *w, unsigned number, size_t bytes, unsigned how)
{
	Fixture *f = w->fixture;
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	uint8_t data[600];
	KvcL1Object *object, *locked = NULL;
	memset(data, (int)number, sizeof(data));
	if (kvc_l1_manager_reserve_write(f->m, key, bytes, how == 0, &object, NULL) !=
	    KVC_L1_SUCCESS) {
		w->bad++;
		return;
	}
	w->bad += pwrite(object->fd, data, bytes, 0) != (ssize_t)bytes;
	if (how == 0) {
		kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked);
		w->bad += !is_whole(locked, number);
		kvc_l1_manager_finish_read(f->m, locked, 1);
	} else if (how == 1) {
		kvc_l1_manager_abort_write(f->m, object);
	} else {
		kvc_l1_manager_finish_write(f->m, object, key, how % 2);
	}
}

static void *
write_again_and_again(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < N_STEPS; i++)
		write_one(w, (i * 5 + w->number) % N_KEYS, 100 + i % 500, i % 6);
	return NULL;
}

static void
test_threads_evict_against_reserve_read(void **state)
{
	static void *(*const works[])(void *) = {read_again_and_again, read_again_and_again,
						 write_again_and_again, write_again_and_again,
						 evict_again_and_again};
	Fixture *f = *state;
	pthread_t threads[G_N_ELEMENTS(works)];
	Worker workers[G_N_ELEMENTS(works)];
	for (unsigned i = 0; i < G_N_ELEMENTS(works); i++) {
		workers[i] = (Worker){f, i, 0, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, works[i], &workers[i]), 0);
	}
	for (unsigned i = 0; i < G_N_ELEMENTS(works); i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
	assert_int_equal(n_criticals, 0);
	/* What is left is what is charged. */
	assert_int_equal(used(f), counts_of(f).objects * PAGE);
	assert_int_equal(kvc_l1_memory_files(f->memory), counts_of(f).objects);
	for (unsigned i = 0; i < N_KEYS; i++)
		evict(f, i);
	assert_int_equal(counts_of(f).objects, 0);
	assert_int_equal(counts_of(f).temporary_objects, 0);
	assert_int_equal(used(f), 0);
}

static void *
commit_the_same(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < 100; i++) {
		KvcL1Object *object = reserve(w->fixture, i, 100, false);
		fill_file(object, 100, (uint8_t)w->number);
		KvcL1Error error = finish(w->fixture, object, i, KVC_FINISH_FIRST_WINS);
		w->hits += error == KVC_L1_SUCCESS;
		w->bad += error != KVC_L1_SUCCESS && error != KVC_L1_KEY_NOT_WRITABLE;
	}
	return NULL;
}

static void
test_threads_first_wins_once(void **state)
{
	Fixture *f = *state;
	pthread_t threads[4];
	Worker workers[4];
	unsigned won = 0;
	for (unsigned i = 0; i < 4; i++) {
		workers[i] = (Worker){f, i + 1, 0, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, commit_the_same, &workers[i]),
				 0);
	}
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
		won += workers[i].hits;
	}
	assert_int_equal(won, 100);
	assert_int_equal(counts_of(f).objects, 100);
	assert_int_equal(used(f), 100 * PAGE);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_dropped), 300);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strerror),
		TEST(test_reserve_read_of_a_mixture),
		TEST(test_many_read_locks),
		TEST(test_double_finish_read),
		TEST(test_reservation_is_allocated_and_empty),
		TEST(test_reserve_nothing),
		TEST(test_staging_is_invisible),
		TEST(test_key_given_at_the_end),
		TEST(test_out_of_memory),
		TEST(test_reserve_says_which_error),
		TEST(test_difference_8_reservation_asks_for_room),
		TEST(test_making_room_ends),
		TEST(test_extend),
		TEST(test_extend_asks_for_room),
		TEST(test_commit_trims_to_the_page),
		TEST(test_outgrown_reservation_is_charged_at_commit),
		TEST(test_outgrown_beyond_the_budget),
		TEST(test_holes_are_filled_and_charged),
		TEST(test_commit_that_cannot_be_sealed),
		TEST(test_two_writers_of_one_key),
		TEST(test_reserve_of_a_resident_and_a_locked_key),
		TEST(test_replace),
		TEST(test_difference_7_dirty_is_not_evicted),
		TEST(test_unreplicated_is_evicted_last_only),
		TEST(test_store_of_a_detached_object_ends_silently),
		TEST(test_difference_4_prefetched_is_told_apart),
		TEST(test_warm_admission),
		TEST(test_admission_when_resident),
		TEST(test_difference_2_abort_was_never_there),
		TEST(test_delete),
		TEST(test_forced_delete_leaves_readers_their_object),
		TEST(test_touch),
		TEST(test_map),
		TEST(test_huge_pages_are_a_share),
		TEST(test_full_memory_poisons_every_staging_object),
		TEST(test_full_memory_is_noticed_at_release),
		TEST(test_full_memory_is_noticed_at_commit),
		TEST(test_threads_evict_against_reserve_read),
		TEST(test_threads_first_wins_once),
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
