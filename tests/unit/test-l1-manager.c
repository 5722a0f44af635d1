/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/unit/l1-manager-fixture.h"

#include <sys/mman.h>

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
test_read_locks_200(void **state)
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

static bool
is_mapped(const void *data)
{
	return msync((void *)data, PAGE, MS_ASYNC) == 0;
}

/* Only what is named goes, whatever lies between; an empty object has no mapping. */
static void
test_unmap_all(void **state)
{
	Fixture *f = *state;
	KvcMemoryObj mapped[8], taken[7];
	KvcL1Object *objects[8];
	uint8_t *data[8];
	size_t n = 0;
	for (uint32_t i = 0; i < 8; i++) {
		objects[i] = reserve(f, i, 2 * PAGE, false);
		assert_int_equal(kvc_l1_object_set_size(objects[i], i == 6 ? 0 : PAGE + i * 100),
				 0);
		assert_int_equal(kvc_l1_object_map(objects[i], true, &mapped[i]), 0);
		data[i] = mapped[i].data;
		if (i != 3)
			taken[n++] = mapped[i];
	}
	kvc_l1_object_unmap_all(taken, n);
	for (size_t i = 0; i < n; i++)
		assert_null(taken[i].data);
	for (size_t i = 0; i < 8; i++)
		if (data[i])
			assert_int_equal(is_mapped(data[i]), i == 3);
	kvc_l1_object_unmap(&mapped[3]);
	assert_false(is_mapped(data[3]));
	kvc_l1_object_unmap_all(NULL, 0);
	for (size_t i = 0; i < 8; i++)
		kvc_l1_manager_abort_write(f->m, objects[i]);
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

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_strerror),
		TEST(test_reserve_read_of_a_mixture),
		TEST(test_read_locks_200),
		TEST(test_double_finish_read),
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
		TEST(test_unmap_all),
		TEST(test_huge_pages_are_a_share),
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
