/* SPDX-License-Identifier: Apache-2.0 */

/* From the reservation to the commit, and memory that does not suffice. */

#include "tests/unit/l1-manager-fixture.h"

#include <fcntl.h>
#include <sys/resource.h>

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

/* What may wait is done ahead; the key comes with the commit, which may also not come. */
static void
test_sealed_before_it_has_a_key(void **state)
{
	Fixture *f = *state;
	for (int turn = 0; turn < 2; turn++) {
		KvcL1Object *object;
		assert_int_equal(
			kvc_l1_manager_reserve_write(f->m, NULL, MIB, false, &object, NULL),
			KVC_L1_SUCCESS);
		fill_file(object, 100, 9);
		assert_int_equal(kvc_l1_manager_seal_write(f->m, object), KVC_L1_SUCCESS);
		assert_int_equal(used(f), PAGE);
		assert_int_equal(counts_of(f).staging_objects, 0);
		assert_int_equal(counts_of(f).staging_bytes, 0);
		assert_absent(f, 9);
		assert_int_equal(kvc_l1_manager_seal_write(f->m, object),
				 KVC_L1_KEY_IN_WRONG_STATE);
		if (turn == 0) {
			assert_int_equal(kvc_l1_manager_abort_write(f->m, object), KVC_L1_SUCCESS);
			assert_int_equal(used(f), 0);
		} else {
			assert_int_equal(finish(f, object, 9, KVC_FINISH_FIRST_WINS),
					 KVC_L1_SUCCESS);
		}
	}
	assert_heard(f, "wf:9");
	KvcL1Object *object = read_lock(f, 9);
	assert_content(object, 100, 9);
	read_unlock(f, object);
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
test_trim_gives_room_back(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, CAPACITY, false);
	assert_int_equal(kvc_l1_object_set_size(object, PAGE + 1), 0);
	kvc_l1_manager_trim_write(f->m, object, PAGE + 1);
	assert_int_equal(object->charged_bytes, 2 * PAGE);
	assert_int_equal(used(f), 2 * PAGE);
	assert_int_equal(counts_of(f).staging_bytes, 2 * PAGE);
	/* Never more than there was. */
	kvc_l1_manager_trim_write(f->m, object, MIB);
	assert_int_equal(used(f), 2 * PAGE);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, MIB, NULL), KVC_L1_SUCCESS);
	assert_int_equal(used(f), MIB);
	assert_true(allocated(object) >= MIB - 2 * PAGE);
	kvc_l1_manager_abort_write(f->m, object);
	assert_int_equal(used(f), 0);
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
	assert_int_equal(finish(f, object, 1, KVC_FINISH_REPLACE), KVC_L1_OUT_OF_MEMORY);
	assert_absent(f, 1);
	object = reserve(f, 2, PAGE, true);
	assert_int_equal(ftruncate(object->fd, (off_t)(4 * CAPACITY)), 0);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_OUT_OF_MEMORY);
	assert_null(locked);
	assert_absent(f, 2);
	assert_int_equal(used(f), 0);
	assert_heard(f, "rw:1 rw:2");
}

static KvcL1Object *
reserve_load(Fixture *f, uint32_t number, uint64_t bytes)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Write write = {.key = key, .bytes = bytes, .is_temporary = true, .is_sized = true};
	assert_int_equal(
		kvc_l1_manager_reserve_writes(f->m, &write, 1, KVC_RESERVE_ALL, KVC_OWNER_USER), 1);
	return write.object;
}

/* As an adapter does, to the end of the last page. */
static void
fill_by_mapping(KvcL1Object *object, uint8_t value)
{
	KvcMemoryObj mapped;
	assert_int_equal(kvc_l1_object_map(object, true, &mapped), 0);
	if (mapped.data)
		memset(mapped.data, value, mapped.mapped_bytes);
	kvc_l1_object_unmap(&mapped);
}

/* Its size and its memory are those of the reservation, and its end is clean. */
static void
test_load(void **state)
{
	Fixture *f = *state;
	const uint64_t sizes[] = {0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE, MIB + 7, 3 * MIB};
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		uint64_t exact = kvc_l1_page_round(sizes[i]);
		KvcL1Object *locked, *object = reserve_load(f, 1, sizes[i]);
		KvcMemoryObj mapped;
		assert_int_equal(kvc_l1_object_get_bytes(object), sizes[i]);
		assert_int_equal(allocated(object), exact);
		fill_by_mapping(object, 0x42);
		assert_int_equal(
			kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			KVC_L1_SUCCESS);
		assert_content(locked, sizes[i], 0x42);
		assert_int_equal(allocated(locked), exact);
		assert_int_equal(used(f), exact);
		assert_true(locked->mtime_ns > 0);
		assert_int_equal(fcntl(locked->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
		assert_int_equal(kvc_l1_object_map(locked, false, &mapped), 0);
		for (uint64_t at = sizes[i]; at < exact; at++)
			assert_int_equal(((uint8_t *)mapped.data)[at], 0);
		kvc_l1_object_unmap(&mapped);
		read_unlock(f, locked);
		assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
		assert_int_equal(used(f), 0);
	}
}

/* Whoever has had its descriptor may have changed its size. */
static void
test_load_that_was_given_out_is_looked_at(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked, *object = reserve_load(f, 1, 2 * PAGE);
	fill_by_mapping(object, 7);
	assert_int_equal(ftruncate(kvc_l1_object_get_fd(object), PAGE), 0);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	assert_content(locked, PAGE, 7);
	assert_int_equal(used(f), PAGE);
	read_unlock(f, locked);
}

static void
test_load_that_was_extended_is_trimmed(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked, *object = reserve_load(f, 1, PAGE);
	int errnum = 0;
	fill_by_mapping(object, 7);
	assert_int_equal(kvc_l1_manager_extend_write(f->m, object, 8 * PAGE, &errnum),
			 KVC_L1_SUCCESS);
	assert_int_equal(used(f), 8 * PAGE);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	assert_content(locked, PAGE, 7);
	assert_int_equal(allocated(locked), PAGE);
	assert_int_equal(used(f), PAGE);
	read_unlock(f, locked);
}

static void
test_two_writers_same_key(void **state)
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

typedef struct Taken {
	Fixture *f;
	bool is_taken;
	unsigned n_calls;
} Taken;

static bool
is_taken(void *user, KvcL1Object *object, bool is_resident)
{
	Taken *taken = user;
	assert_false(is_resident);
	assert_int_equal(object->bytes, 100);
	assert_non_null(object->key);
	taken->n_calls++;
	return taken->is_taken;
}

/* Asked in the step that makes it resident: what L1 evicted a moment before is in the other tier.
 */
static void
test_first_wins_asks_the_other_tiers(void **state)
{
	Fixture *f = *state;
	Taken taken = {f, true, 0};
	kvc_l1_manager_set_is_taken(f->m, is_taken, &taken);
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, 100, 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_KEY_NOT_WRITABLE);
	assert_int_equal(counts_of(f).objects, 0);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_stats_get(&f->stats, l1_writes_dropped), 1);
	object = reserve(f, 1, PAGE, false);
	fill_file(object, 100, 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	assert_int_equal(taken.n_calls, 1);
	taken.is_taken = false;
	object = reserve(f, 2, PAGE, false);
	fill_file(object, 100, 1);
	assert_int_equal(finish(f, object, 2, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(taken.n_calls, 2);
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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_reservation_is_allocated_and_empty),
		TEST(test_reserve_nothing),
		TEST(test_staging_is_invisible),
		TEST(test_key_given_at_the_end),
		TEST(test_sealed_before_it_has_a_key),
		TEST(test_out_of_memory),
		TEST(test_reserve_says_which_error),
		TEST(test_difference_8_reservation_asks_for_room),
		TEST(test_making_room_ends),
		TEST(test_extend),
		TEST(test_extend_asks_for_room),
		TEST(test_trim_gives_room_back),
		TEST(test_commit_trims_to_the_page),
		TEST(test_outgrown_reservation_is_charged_at_commit),
		TEST(test_outgrown_beyond_the_budget),
		TEST(test_holes_are_filled_and_charged),
		TEST(test_commit_that_cannot_be_sealed),
		TEST(test_load),
		TEST(test_load_that_was_given_out_is_looked_at),
		TEST(test_load_that_was_extended_is_trimmed),
		TEST(test_two_writers_same_key),
		TEST(test_first_wins_asks_the_other_tiers),
		TEST(test_reserve_of_a_resident_and_a_locked_key),
		TEST(test_replace),
		TEST(test_full_memory_poisons_every_staging_object),
		TEST(test_full_memory_is_noticed_at_release),
		TEST(test_full_memory_is_noticed_at_commit),
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
