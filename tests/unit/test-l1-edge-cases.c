/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The edge cases of the specification's L1Manager, one test each, and who holds what. Beside these:
 * double_finish_read and read_locks_200 in test-l1-manager.c, two_writers_same_key in
 * test-l1-manager-write.c, concurrent_evict_vs_reserve_read in test-l1-manager-threads.c.
 */

#include "tests/unit/l1-manager-fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#define PREFETCH kvc_lock_owner("prefetch", 7)
#define STORE kvc_lock_owner("store", 7)

static KvcL1Object *
read_lock_for(Fixture *f, uint32_t number, unsigned read_locks, KvcLockOwner owner)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcL1Object *object;
	assert_int_equal(
		kvc_l1_manager_reserve_read_for(f->m, &key, 1, read_locks, owner, &object, NULL),
		1);
	return object;
}

/* A reservation of PAGE bytes of key NUMBER. */
static KvcL1Write
write_of(Fixture *f, uint32_t number)
{
	return (KvcL1Write){.key = key_of(f, number), .bytes = PAGE};
}

/* Reserves N of them; what is reserved has an object, what is not has an error. */
static void
reserve_writes(Fixture *f, KvcL1Write *writes, size_t n, KvcReserveMode mode)
{
	size_t reserved = kvc_l1_manager_reserve_writes(f->m, writes, n, mode, STORE);
	for (size_t i = 0; i < n; i++) {
		reserved -= writes[i].object != NULL;
		assert_true((writes[i].object != NULL) == (writes[i].error == KVC_L1_SUCCESS));
	}
	assert_int_equal(reserved, 0);
}

static void
end_writes(Fixture *f, KvcL1Write *writes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		if (writes[i].object)
			assert_int_equal(kvc_l1_manager_abort_write(f->m, writes[i].object),
					 KVC_L1_SUCCESS);
		kvc_object_key_unref(writes[i].key);
	}
}

static void
assert_refused(Fixture *f, uint32_t number, KvcReserveMode mode, KvcL1Error error)
{
	KvcL1Write write = write_of(f, number);
	uint64_t before = used(f);
	reserve_writes(f, &write, 1, mode);
	assert_int_equal(write.error, error);
	assert_int_equal(used(f), before);
	end_writes(f, &write, 1);
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* The key is gone, by force: who holds the object gives it back, nobody else does. */
static void
test_finish_read_of_unknown_key(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock(f, 1);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_SUCCESS);
	assert_absent(f, 1);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 1, STORE),
			 KVC_L1_KEY_IN_WRONG_STATE);
	assert_int_equal(n_criticals, 1);
	assert_int_equal(counts_of(f).read_locks, 1);
	read_unlock(f, object);
	assert_int_equal(used(f), 0);
	assert_heard(f, "rw:1 wf:1 rr:1 del:1 rf:1");
}

static void
test_finish_read_of_another_owners_lock(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock_for(f, 1, 2, PREFETCH);
	/* As many locks as there are, but not his. */
	assert_ptr_equal(read_lock_for(f, 1, 1, STORE), object);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 2, STORE),
			 KVC_L1_KEY_IN_WRONG_STATE);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 1), KVC_L1_KEY_IN_WRONG_STATE);
	assert_non_null(strstr(log_text, ": store 7 releases 2 read locks that it does not hold"));
	assert_non_null(strstr(log_text, ": user 0 releases 1 read locks that it does not hold"));
	assert_int_equal(n_criticals, 2);
	assert_int_equal(counts_of(f).read_locks, 3);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 1, STORE), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 2, PREFETCH), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).locked_bytes, 0);
}

static void
test_moved_locks_have_another_owner(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock_for(f, 1, 3, PREFETCH);
	assert_int_equal(kvc_l1_manager_move_read_locks(f->m, object, 2, PREFETCH, STORE),
			 KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).read_locks, 3);
	assert_int_equal(kvc_l1_manager_move_read_locks(f->m, object, 2, PREFETCH, STORE),
			 KVC_L1_KEY_IN_WRONG_STATE);
	assert_non_null(strstr(log_text, ": prefetch 7 passes on 2 read locks"));
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 2, PREFETCH),
			 KVC_L1_KEY_IN_WRONG_STATE);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 2, STORE), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 1, PREFETCH), KVC_L1_SUCCESS);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
}

static void
test_reserve_read_of_write_locked_key(void **state)
{
	Fixture *f = *state;
	KvcL1Object *first = reserve(f, 1, 100, false);
	fill_file(first, 100, 1);
	assert_absent(f, 1);
	assert_int_equal(finish(f, first, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	/* Being written again: what is there stays readable, the new one is not. */
	KvcL1Object *second = reserve(f, 1, 100, false);
	fill_file(second, 100, 2);
	KvcL1Object *object = read_lock(f, 1);
	assert_ptr_equal(object, first);
	assert_content(object, 100, 1);
	read_unlock(f, object);
	kvc_l1_manager_abort_write(f->m, second);
}

static void
test_read_locks_0(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	assert_heard(f, "rw:1 wf:1");
	KvcObjectKey *keys[] = {key_of(f, 1), key_of(f, 2)};
	KvcL1Object *objects[2] = {(KvcL1Object *)f, (KvcL1Object *)f};
	KvcL1Error errors[2];
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, keys, 2, 0, objects, errors), 1);
	assert_null(objects[0]);
	assert_null(objects[1]);
	assert_int_equal(errors[0], KVC_L1_SUCCESS);
	assert_int_equal(errors[1], KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(counts_of(f).read_locks, 0);
	assert_heard(f, "");
	/* None to give back is no error either. */
	KvcL1Object *object = read_lock(f, 1);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, object, 0), KVC_L1_SUCCESS);
	assert_heard(f, "rr:1");
	assert_int_equal(counts_of(f).read_locks, 1);
	read_unlock(f, object);
	kvc_object_key_unref(keys[0]);
	kvc_object_key_unref(keys[1]);
}

/* ---- Reserving ----------------------------------------------------------------------------- */

static void
test_reserve_write_new_on_existing(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	assert_refused(f, 1, KVC_RESERVE_NEW, KVC_L1_KEY_NOT_WRITABLE);
	KvcL1Object *object = read_lock(f, 1);
	assert_content(object, 100, 1);
	read_unlock(f, object);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
	KvcL1Write write = write_of(f, 1);
	reserve_writes(f, &write, 1, KVC_RESERVE_NEW);
	assert_int_equal(write.error, KVC_L1_SUCCESS);
	end_writes(f, &write, 1);
}

static void
test_reserve_write_new_on_read_locked(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock(f, 1);
	assert_refused(f, 1, KVC_RESERVE_NEW, KVC_L1_KEY_NOT_WRITABLE);
	assert_int_equal(object->read_locks, 1);
	read_unlock(f, object);
}

static void
put_temporary(Fixture *f, uint32_t number)
{
	KvcL1Object *locked, *object = reserve(f, number, 100, true);
	fill_file(object, 100, (uint8_t)number);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 0, &locked),
			 KVC_L1_SUCCESS);
}

static void
test_reserve_write_new_on_temporary(void **state)
{
	Fixture *f = *state;
	put_temporary(f, 1);
	assert_refused(f, 1, KVC_RESERVE_NEW, KVC_L1_KEY_NOT_WRITABLE);
	assert_int_equal(counts_of(f).temporary_objects, 1);
}

/* Somebody else's reservation is no reason: nobody sees it. */
static void
test_reserve_write_new_on_write_locked(void **state)
{
	Fixture *f = *state;
	KvcL1Write writes[] = {write_of(f, 1), write_of(f, 1)};
	reserve_writes(f, &writes[0], 1, KVC_RESERVE_NEW);
	reserve_writes(f, &writes[1], 1, KVC_RESERVE_NEW);
	assert_int_equal(writes[1].error, KVC_L1_SUCCESS);
	assert_ptr_not_equal(writes[0].object, writes[1].object);
	end_writes(f, writes, 2);
}

static void
test_update_on_absent(void **state)
{
	Fixture *f = *state;
	assert_refused(f, 1, KVC_RESERVE_UPDATE, KVC_L1_KEY_NOT_EXIST);
	/* Not there either: it is not finished. */
	KvcL1Object *object = reserve(f, 1, 100, false);
	assert_refused(f, 1, KVC_RESERVE_UPDATE, KVC_L1_KEY_NOT_EXIST);
	kvc_l1_manager_abort_write(f->m, object);
}

static void
test_update_on_read_locked_has_a_fresh_buffer(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *reader = read_lock(f, 1);
	KvcL1Write write = write_of(f, 1);
	reserve_writes(f, &write, 1, KVC_RESERVE_UPDATE);
	assert_int_equal(write.error, KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_object_get_bytes(write.object), 0);
	fill_file(write.object, 50, 2);
	assert_int_equal(finish(f, write.object, 1, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	assert_content(reader, 100, 1);
	KvcL1Object *object = read_lock(f, 1);
	assert_content(object, 50, 2);
	read_unlock(f, object);
	read_unlock(f, reader);
	kvc_object_key_unref(write.key);
}

static void
test_all_on_mixture(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	put(f, 2, 100, 2);
	put_temporary(f, 3);
	KvcL1Object *reader = read_lock(f, 2);
	KvcL1Write writes[] = {write_of(f, 1), write_of(f, 2), write_of(f, 3), write_of(f, 4)};
	reserve_writes(f, writes, 4, KVC_RESERVE_ALL);
	for (size_t i = 0; i < 4; i++)
		assert_int_equal(writes[i].error, KVC_L1_SUCCESS);
	end_writes(f, writes, 4);
	/* The same keys in the other modes. */
	KvcL1Write news[] = {write_of(f, 1), write_of(f, 2), write_of(f, 3), write_of(f, 4)};
	reserve_writes(f, news, 4, KVC_RESERVE_NEW);
	KvcL1Write updates[] = {write_of(f, 1), write_of(f, 2), write_of(f, 3), write_of(f, 4)};
	reserve_writes(f, updates, 4, KVC_RESERVE_UPDATE);
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(news[i].error, i < 3 ? KVC_L1_KEY_NOT_WRITABLE : KVC_L1_SUCCESS);
		assert_int_equal(updates[i].error, i < 3 ? KVC_L1_SUCCESS : KVC_L1_KEY_NOT_EXIST);
	}
	end_writes(f, news, 4);
	end_writes(f, updates, 4);
	read_unlock(f, reader);
}

/* Each key for itself: what has no room leaves the others theirs. */
static void
test_oom_with_mixture(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Write writes[] = {write_of(f, 1), write_of(f, 2), write_of(f, 3), write_of(f, 4)};
	writes[1].bytes = CAPACITY + 1;
	writes[2].bytes = CAPACITY - 2 * PAGE;
	assert_int_equal(kvc_l1_manager_reserve_writes(f->m, writes, 4, KVC_RESERVE_ALL, PREFETCH),
			 2);
	assert_int_equal(writes[0].error, KVC_L1_SUCCESS);
	assert_int_equal(writes[0].errnum, 0);
	assert_int_equal(writes[1].error, KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(writes[1].errnum, ENOSPC);
	assert_null(writes[1].object);
	assert_int_equal(writes[2].error, KVC_L1_SUCCESS);
	assert_int_equal(writes[3].error, KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(used(f), CAPACITY);
	assert_int_equal(kvc_stats_get(&f->stats, l1_reserve_failed_no_memory), 2);
	assert_heard(f, "rw:1 wf:1 rw:1 rw:3");
	end_writes(f, writes, 4);
	assert_int_equal(used(f), PAGE);
}

/* Each occurrence is a reservation of its own, and a lock of its own. */
static void
test_duplicate_keys(void **state)
{
	Fixture *f = *state;
	KvcL1Write writes[] = {write_of(f, 1), write_of(f, 2), write_of(f, 1)};
	reserve_writes(f, writes, 3, KVC_RESERVE_NEW);
	assert_int_equal(writes[0].error, KVC_L1_SUCCESS);
	assert_int_equal(writes[2].error, KVC_L1_SUCCESS);
	assert_ptr_not_equal(writes[0].object, writes[2].object);
	assert_int_not_equal(writes[0].object->fd, writes[2].object->fd);
	assert_int_equal(counts_of(f).staging_objects, 3);
	fill_file(writes[0].object, 100, 1);
	fill_file(writes[2].object, 200, 2);
	assert_int_equal(finish(f, writes[0].object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(finish(f, writes[2].object, 1, KVC_FINISH_FIRST_WINS),
			 KVC_L1_KEY_NOT_WRITABLE);
	writes[0].object = writes[2].object = NULL;
	end_writes(f, writes, 3);
	assert_int_equal(used(f), PAGE);
	KvcObjectKey *keys[] = {key_of(f, 1), key_of(f, 1)};
	KvcL1Object *objects[2];
	assert_int_equal(kvc_l1_manager_reserve_read(f->m, keys, 2, 2, objects, NULL), 2);
	assert_ptr_equal(objects[0], objects[1]);
	assert_int_equal(objects[0]->read_locks, 4);
	assert_content(objects[0], 100, 1);
	assert_int_equal(kvc_l1_manager_finish_read(f->m, objects[0], 4), KVC_L1_SUCCESS);
	kvc_object_key_unref(keys[0]);
	kvc_object_key_unref(keys[1]);
}

/* ---- Deleting ------------------------------------------------------------------------------ */

static void
test_delete_while_read_locked(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *object = read_lock_for(f, 1, 2, PREFETCH);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	kvc_l1_manager_finish_read_for(f->m, object, 1, PREFETCH);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	kvc_l1_manager_finish_read_for(f->m, object, 1, PREFETCH);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
}

static void
test_delete_while_write_locked(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 100, false);
	fill_file(object, 100, 1);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(delete_key(f, 1, true), KVC_L1_KEY_NOT_EXIST);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	object = read_lock(f, 1);
	assert_content(object, 100, 1);
	read_unlock(f, object);
}

/* What is locked, dirty or pinned stays, and so do reservations. */
static void
test_clear_with_locks(void **state)
{
	Fixture *f = *state;
	for (uint32_t i = 1; i <= 3; i++)
		put(f, i, 100, (uint8_t)i);
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 4, 100, 4);
	g_autoptr(KvcObjectKey) pinned = key_of(f, 3);
	kvc_l1_manager_set_pinned(f->m, pinned, true);
	KvcL1Object *reader = read_lock(f, 2), *writer = reserve(f, 5, 100, false);
	assert_int_equal(kvc_l1_manager_clear(f->m, false), 1);
	assert_absent(f, 1);
	for (uint32_t i = 2; i <= 4; i++)
		read_unlock(f, read_lock(f, i));
	assert_int_equal(counts_of(f).staging_objects, 1);
	read_unlock(f, reader);
	assert_int_equal(kvc_l1_manager_clear(f->m, false), 1);
	assert_absent(f, 2);
	assert_int_equal(finish(f, writer, 5, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(counts_of(f).objects, 3);
}

static void
test_forced_clear_with_locks(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	for (uint32_t i = 1; i <= 3; i++)
		put(f, i, 100, (uint8_t)i);
	g_autoptr(KvcObjectKey) pinned = key_of(f, 3);
	kvc_l1_manager_set_pinned(f->m, pinned, true);
	KvcL1Object *reader = read_lock(f, 2), *writer = reserve(f, 4, 100, false);
	assert_int_equal(kvc_l1_manager_clear(f->m, true), 3);
	for (uint32_t i = 1; i <= 4; i++)
		assert_absent(f, i);
	assert_content(reader, 100, 2);
	assert_int_equal(counts_of(f).objects, 0);
	assert_int_equal(counts_of(f).dirty_objects, 0);
	assert_int_equal(counts_of(f).read_locks, 1);
	read_unlock(f, reader);
	kvc_l1_manager_abort_write(f->m, writer);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_l1_manager_clear(f->m, true), 0);
}

/* Difference 11: it is the first to be evicted, but not gone with its last reader. */
static void
test_last_release_of_temporary_object(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked, *object = reserve(f, 1, 100, true);
	fill_file(object, 100, 1);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	read_unlock(f, locked);
	assert_heard(f, "rw:1 pf:1 rf:1");
	assert_int_equal(counts_of(f).temporary_objects, 1);
	locked = read_lock(f, 1);
	assert_content(locked, 100, 1);
	read_unlock(f, locked);
	assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
	assert_int_equal(used(f), 0);
}

/* ---- Time to live -------------------------------------------------------------------------- */

#define LATER (kvc_now_ns() + 3 * KVC_SEC_NS)

static void
test_expiry_of_a_read_lock_is_only_reported(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_lock_ttl(f->m, 2 * KVC_SEC_NS, 100 * KVC_SEC_NS);
	put(f, 1, 100, 1);
	KvcL1Object *writer = reserve(f, 2, 100, false);
	KvcL1Object *object = read_lock_for(f, 1, 2, PREFETCH);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, kvc_now_ns()), 0);
	assert_string_equal(log_text, "");
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 2);
	assert_non_null(strstr(log_text, "l1: 2 more locks are held for long"));
	assert_non_null(strstr(log_text, "held by prefetch 7 x2 3.0"));
	/* Each once. */
	log_text[0] = '\0';
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 2);
	assert_string_equal(log_text, "");
	assert_int_equal(kvc_stats_get(&f->stats, l1_expired_locks), 2);
	/* It is still a lock. */
	assert_int_equal(evict(f, 1), KVC_L1_KEY_IS_LOCKED);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_KEY_IS_LOCKED);
	assert_false(is_evictable(f, 1, true));
	read_unlock(f, read_lock(f, 1));
	assert_content(object, 100, 1);
	assert_int_equal(counts_of(f).read_locks, 2);
	/* One lock more renews them. */
	kvc_l1_manager_reserve_read_again_for(f->m, object, PREFETCH);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, kvc_now_ns()), 0);
	assert_int_equal(kvc_l1_manager_finish_read_for(f->m, object, 3, PREFETCH), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 0);
	kvc_l1_manager_abort_write(f->m, writer);
}

static void
test_expiry_of_a_write_lock_is_only_reported(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_lock_ttl(f->m, 100 * KVC_SEC_NS, 2 * KVC_SEC_NS);
	KvcL1Object *object = reserve(f, 1, 100, false);
	fill_file(object, 50, 1);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 1);
	assert_non_null(strstr(log_text, "held by user 0 3.0"));
	assert_int_equal(kvc_stats_get(&f->stats, l1_expired_locks), 1);
	/* Unfinished is not readable, however old. */
	assert_absent(f, 1);
	assert_int_equal(counts_of(f).staging_objects, 1);
	kvc_l1_manager_abort_write(f->m, object);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 0);
}

static void
test_finish_after_expiry(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_lock_ttl(f->m, KVC_SEC_NS, KVC_SEC_NS);
	KvcL1Object *object = reserve(f, 1, 100, false);
	fill_file(object, 100, 1);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 1);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	object = read_lock(f, 1);
	assert_content(object, 100, 1);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, LATER), 1);
	read_unlock(f, object);
	assert_int_equal(n_criticals, 0);
}

/* The defaults are the specification's. */
static void
test_ttl_of_a_lock(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	KvcL1Object *writer = reserve(f, 2, 100, false), *reader = read_lock(f, 1);
	int64_t now_ns = kvc_now_ns();
	assert_int_equal(kvc_l1_manager_report_expired(f->m, now_ns + 200 * KVC_SEC_NS), 0);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, now_ns + 301 * KVC_SEC_NS), 1);
	assert_int_equal(kvc_l1_manager_report_expired(f->m, now_ns + 601 * KVC_SEC_NS), 2);
	assert_int_equal(kvc_stats_get(&f->stats, l1_expired_locks), 2);
	read_unlock(f, reader);
	kvc_l1_manager_abort_write(f->m, writer);
}

/* ---- Who holds what ------------------------------------------------------------------------ */

static void
add_line(void *user, const char *name, const char *value)
{
	g_string_append_printf(user, "%s: %s\n", name, value);
}

static GString *
dump(Fixture *f, bool held_only)
{
	GString *text = g_string_new(NULL);
	kvc_l1_manager_dump(f->m, held_only, add_line, text);
	return text;
}

static bool
has_line(const GString *text, Fixture *f, uint32_t number, const char *begin)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	g_autofree char *name = kvc_object_key_to_string(key);
	g_autofree char *line = g_strdup_printf("%s: %s", name, begin);
	return strstr(text->str, line) != NULL;
}

static unsigned
count_lines(const GString *text)
{
	unsigned n = 0;
	for (const char *c = text->str; *c; c++)
		n += *c == '\n';
	return n;
}

static void
test_dump(void **state)
{
	Fixture *f = *state;
	kvc_l1_manager_set_tracks_dirty(f->m, true);
	put(f, 1, 100, 1);
	put(f, 2, 200, 2);
	put_temporary(f, 3);
	g_autoptr(KvcObjectKey) pinned = key_of(f, 3);
	kvc_l1_manager_set_pinned(f->m, pinned, true);
	KvcL1Object *old = read_lock_for(f, 2, 2, PREFETCH);
	read_lock_for(f, 2, 1, STORE);
	assert_int_equal(delete_key(f, 2, true), KVC_L1_SUCCESS);
	KvcL1Object *writer = reserve(f, 4, 2 * PAGE, false), *nameless;
	assert_int_equal(kvc_l1_manager_reserve_write(f->m, NULL, 1, false, &nameless, NULL),
			 KVC_L1_SUCCESS);
	GString *text = dump(f, false);
	assert_int_equal(count_lines(text), 5);
	assert_true(
		has_line(text, f, 1, "resident bytes=100 charged_bytes=4096 read_locks=0 dirty\n"));
	assert_true(has_line(text, f, 2,
			     "detached bytes=200 charged_bytes=4096 read_locks=3 held by "
			     "store 7 x1 0."));
	assert_non_null(strstr(text->str, " s, prefetch 7 x2 0."));
	assert_true(
		has_line(text, f, 3,
			 "resident bytes=100 charged_bytes=4096 read_locks=0 temporary pinned\n"));
	assert_true(has_line(text, f, 4,
			     "staging bytes=0 charged_bytes=8192 read_locks=0 held by "
			     "user 0 0."));
	assert_non_null(strstr(text->str, "(no key yet): staging bytes=0 charged_bytes=4096"));
	g_string_free(text, TRUE);
	text = dump(f, true);
	assert_int_equal(count_lines(text), 3);
	assert_false(has_line(text, f, 1, ""));
	assert_true(has_line(text, f, 2, "detached"));
	g_string_free(text, TRUE);
	kvc_l1_manager_finish_read_for(f->m, old, 2, PREFETCH);
	kvc_l1_manager_finish_read_for(f->m, old, 1, STORE);
	kvc_l1_manager_abort_write(f->m, writer);
	kvc_l1_manager_abort_write(f->m, nameless);
	text = dump(f, true);
	assert_string_equal(text->str, "");
	g_string_free(text, TRUE);
}

static void
assert_logged_leak(Fixture *f, uint32_t number, const char *what)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	g_autofree char *name = kvc_object_key_to_string(key);
	g_autofree char *line = g_strdup_printf("l1: leaked: %s: %s, 0.", name, what);
	if (!strstr(log_text, line))
		fail_msg("not in the log: %s, but: %s", line, log_text);
}

/* What nobody gave back is named and counted, and nothing of it is left. */
static void
test_leaked_locks_are_named(void **state)
{
	Fixture *f = *state;
	for (uint32_t i = 1; i <= 3; i++)
		put(f, i, 100, (uint8_t)i);
	read_lock_for(f, 1, 2, PREFETCH);
	read_lock_for(f, 1, 1, STORE);
	read_lock_for(f, 2, 1, PREFETCH);
	assert_int_equal(delete_key(f, 2, true), KVC_L1_SUCCESS);
	reserve(f, 4, 100, false);
	f->ears[0].listener.on_read_finished = NULL;
	assert_heard(f, "rw:1 wf:1 rw:2 wf:2 rw:3 wf:3 rr:1 rr:1 rr:2 del:2 rw:4");
	kvc_l1_manager_free(f->m);
	assert_logged_leak(f, 1, "2 read locks of prefetch 7");
	assert_logged_leak(f, 1, "1 read locks of store 7");
	assert_logged_leak(f, 2, "1 read locks of prefetch 7");
	assert_logged_leak(f, 4, "1 reservation of user 0");
	assert_int_equal(kvc_stats_get(&f->stats, l1_leaked_locks), 5);
	assert_int_equal(n_criticals, 0);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 0);
	/* Nobody listens any more. */
	assert_heard(f, "");
	f->m = kvc_l1_manager_new(f->memory, &f->stats);
}

/* ---- Listeners ----------------------------------------------------------------------------- */

/* Each call tells what it did, of the keys it did it to and of no other ones. */
static void
test_listener_sees_exact_key_sets(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	put(f, 3, 100, 3);
	assert_heard(f, "rw:1 wf:1 rw:3 wf:3");
	KvcL1Write writes[] = {write_of(f, 1), write_of(f, 2), write_of(f, 3)};
	reserve_writes(f, writes, 3, KVC_RESERVE_NEW);
	assert_heard(f, "rw:2");
	end_writes(f, writes, 3);
	KvcObjectKey *keys[] = {key_of(f, 1), key_of(f, 2), key_of(f, 3)};
	KvcL1Object *objects[3];
	kvc_l1_manager_reserve_read(f->m, keys, 3, 4, objects, NULL);
	assert_heard(f, "rr:1 rr:3");
	kvc_l1_manager_touch_keys(f->m, keys, 3);
	assert_heard(f, "acc:1 acc:3");
	kvc_l1_manager_finish_read(f->m, objects[0], 1);
	kvc_l1_manager_finish_read(f->m, objects[0], 3);
	assert_heard(f, "rf:1 rf:1");
	assert_int_equal(kvc_l1_manager_clear(f->m, false), 1);
	assert_heard(f, "del:1");
	kvc_l1_manager_finish_read(f->m, objects[2], 4);
	assert_heard(f, "rf:3");
	for (size_t i = 0; i < 3; i++)
		kvc_object_key_unref(keys[i]);
}

static void
test_memory_returns_to_zero_at_end(void **state)
{
	Fixture *f = *state;
	for (uint32_t i = 0; i < 20; i++) {
		put(f, i, 1 + i * 300, (uint8_t)i);
		if (i % 3 == 0)
			put_temporary(f, 100 + i);
		KvcL1Object *object = read_lock(f, i);
		if (i % 4 == 0)
			assert_int_equal(delete_key(f, i, true), KVC_L1_SUCCESS);
		read_unlock(f, object);
		kvc_l1_manager_abort_write(f->m, reserve(f, i, PAGE, true));
	}
	assert_int_equal(counts_of(f).objects, 15 + 7);
	assert_int_equal(kvc_l1_manager_clear(f->m, false), 15 + 7);
	assert_int_equal(used(f), 0);
	assert_int_equal(kvc_l1_memory_files(f->memory), 0);
	KvcL1Counts counts = counts_of(f), zero = {0};
	assert_memory_equal(&counts, &zero, sizeof(counts));
}

#ifdef KVC_DEBUG_LOCKS

static Fixture *in_listener; /* of the child */

static void
call_finish_read(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_l1_manager_finish_read(in_listener->m, object, 1);
}

/* Takes no lock of its own, but must not be called all the same. */
static void
call_abort_write(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_l1_manager_abort_write(in_listener->m, object);
}

static void
call_is_key_evictable(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_l1_manager_is_key_evictable(in_listener->m, object->key, true);
}

static void
wait_for_nothing(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcMutex lock;
	pthread_cond_t cond;
	kvc_mutex_init(&lock, KVC_LOCK_LEAF);
	kvc_cond_init(&cond);
	kvc_mutex_lock(&lock);
	kvc_cond_wait_until(&cond, &lock, kvc_now_ns() + KVC_MSEC_NS);
}

static void
only_takes_a_reference(KvcL1ManagerListener *l, KvcL1Object *object)
{
	kvc_l1_object_unref(kvc_l1_object_ref(object));
}

/* What a process says that reads an object and has a listener that does FUNC; "": it lives. */
static char *
last_words(Fixture *f, void (*func)(KvcL1ManagerListener *l, KvcL1Object *object))
{
	char text[512];
	int fds[2], status;
	size_t len = 0;
	ssize_t n;
	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		in_listener = f;
		f->ears[1].listener.on_reserved_read = func;
		read_unlock(f, read_lock(f, 1));
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	text[len] = '\0';
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (len == 0)
		assert_int_equal(status, 0);
	else
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	return g_strdup(text);
}

static void
test_invariant_6_listener_that_calls_back(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	char *words = last_words(f, call_finish_read);
	assert_string_equal(words, "kvcache: kvc_l1_manager_finish_read_for() called by a listener "
				   "of the L1Manager\n");
	g_free(words);
	words = last_words(f, call_abort_write);
	assert_string_equal(words, "kvcache: kvc_l1_manager_abort_write() called by a listener of "
				   "the L1Manager\n");
	g_free(words);
	words = last_words(f, call_is_key_evictable);
	assert_string_equal(words, "kvcache: kvc_l1_manager_is_key_evictable() called by a "
				   "listener of the L1Manager\n");
	g_free(words);
	words = last_words(f, only_takes_a_reference);
	assert_string_equal(words, "");
	g_free(words);
}

static void
test_invariant_6_listener_that_blocks(void **state)
{
	Fixture *f = *state;
	put(f, 1, 100, 1);
	char *words = last_words(f, wait_for_nothing);
	assert_non_null(strstr(words, "waiting with LEAF"));
	assert_non_null(strstr(words, "while holding L1_SHARD"));
	g_free(words);
}

#endif

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_finish_read_of_unknown_key),
		TEST(test_finish_read_of_another_owners_lock),
		TEST(test_moved_locks_have_another_owner),
		TEST(test_reserve_read_of_write_locked_key),
		TEST(test_read_locks_0),
		TEST(test_reserve_write_new_on_existing),
		TEST(test_reserve_write_new_on_read_locked),
		TEST(test_reserve_write_new_on_temporary),
		TEST(test_reserve_write_new_on_write_locked),
		TEST(test_update_on_absent),
		TEST(test_update_on_read_locked_has_a_fresh_buffer),
		TEST(test_all_on_mixture),
		TEST(test_oom_with_mixture),
		TEST(test_duplicate_keys),
		TEST(test_delete_while_read_locked),
		TEST(test_delete_while_write_locked),
		TEST(test_clear_with_locks),
		TEST(test_forced_clear_with_locks),
		TEST(test_last_release_of_temporary_object),
		TEST(test_expiry_of_a_read_lock_is_only_reported),
		TEST(test_expiry_of_a_write_lock_is_only_reported),
		TEST(test_finish_after_expiry),
		TEST(test_ttl_of_a_lock),
		TEST(test_dump),
		TEST(test_leaked_locks_are_named),
		TEST(test_listener_sees_exact_key_sets),
		TEST(test_memory_returns_to_zero_at_end),
#ifdef KVC_DEBUG_LOCKS
		TEST(test_invariant_6_listener_that_calls_back),
		TEST(test_invariant_6_listener_that_blocks),
#endif
	};
	g_log_set_writer_func(on_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
