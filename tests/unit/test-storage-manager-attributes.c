/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes through the engine as a whole: commit, L2, restart; pins; the checksum. */

#include "tests/unit/storage-manager-fixture.h"

#include "kvcache/crc.h"

/* Commits with mode 0600, an mtime, and user.x=1. */
static void
put_with_attributes(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	g_autoptr(KvcXattrs) xattrs = NULL;
	KvcL1Object *object = NULL;
	assert_int_equal(kvc_xattrs_set(NULL, "user.x", "1", 1, &xattrs), 0);
	KvcObjectAttributes attributes = {
		.mtime_ns = 12345, .mode = 0100600, .uid = 1, .gid = 2, .xattrs = xattrs};
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, key, 4, &object), 0);
	assert_int_equal(pwrite(kvc_l1_object_get_fd(object), "1234", 4, 0), 4);
	kvc_l1_object_set_attributes(object, &attributes);
	assert_int_equal(
		kvc_storage_manager_finish_write(f->sm, object, key, KVC_FINISH_FIRST_WINS), 0);
}

static void
assert_attributes(Fixture *f, unsigned number, uint32_t mode, const char *x)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectInfo info;
	size_t bytes = 0;
	assert_int_equal(kvc_storage_manager_stat(f->sm, key, &info), 0);
	assert_int_equal(info.mtime_ns, 12345);
	assert_int_equal(info.mode, 0100000 | mode);
	assert_int_equal(info.uid, 1);
	assert_int_equal(info.gid, 2);
	g_autoptr(KvcXattrs) xattrs = kvc_storage_manager_get_xattrs(f->sm, key);
	const void *value = kvc_xattrs_get(xattrs, "user.x", &bytes);
	assert_non_null(value);
	assert_int_equal(bytes, strlen(x));
	assert_memory_equal(value, x, bytes);
}

static void
change(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectAttributes attributes = {.mode = 0640};
	assert_int_equal(
		kvc_storage_manager_set_attributes(f->sm, key, &attributes, KVC_ATTRIBUTE_MODE), 0);
	assert_int_equal(kvc_storage_manager_set_xattr(f->sm, key, "user.x", "22", 2, 0), 0);
	assert_int_equal(kvc_storage_manager_set_xattr(f->sm, key, "user.kvcache.x", "", 0, 0),
			 -EOPNOTSUPP);
	assert_int_equal(kvc_storage_manager_remove_xattr(f->sm, key, "user.y"), -ENODATA);
}

static void
test_they_outlive_eviction(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_with_attributes(f, 1);
	assert_attributes(f, 1, 0600, "1");
	change(f, 1);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(evict(f, 1), 0);
	assert_attributes(f, 1, 0640, "22");
	assert_int_equal(load(f, 1, 2), 1);
	assert_attributes(f, 1, 0640, "22");
	assert_int_equal(delete_key(f, 1), 0);
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	assert_null(kvc_storage_manager_get_xattrs(f->sm, key));
	assert_int_equal(kvc_storage_manager_set_xattr(f->sm, key, "user.x", "1", 1, 0), -ENOENT);
}

static void
test_they_outlive_the_engine(void **state)
{
	Fixture *f = *state;
	f->directory = g_dir_make_tmp("kvc-attributes-XXXXXX", NULL);
	g_autofree char *fs = g_strdup_printf("type=fs,base_path=%s", f->directory);
	start(f, fs, NULL);
	put_with_attributes(f, 1);
	put_with_attributes(f, 2);
	change(f, 2);
	drain(f);
	if (!is_status(f, "l2.0.attribute_errors", "0") ||
	    is_status(f, "l2.0.checksums", "unsupported"))
		skip(); /* a directory without xattrs */
	stop(f);
	start(f, fs, NULL);
	assert_attributes(f, 1, 0600, "1");
	assert_attributes(f, 2, 0640, "22");
}

static void
test_a_duplicate_changes_nothing(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_with_attributes(f, 1);
	assert_int_equal(try_put(f, 1, 4, 1), KVC_FINISHED_DROPPED);
	assert_attributes(f, 1, 0600, "1");
}

static void
set_pinned(Fixture *f, unsigned number, bool pinned)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	assert_int_equal(kvc_storage_manager_set_pinned(f->sm, key, pinned), 0);
}

static KvcResidency
residency_of(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcResidency residency;
	kvc_storage_manager_get_residency(f->sm, key, &residency);
	return residency;
}

static void
test_a_pinned_object_is_not_evicted(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 1, MIB);
	assert_int_equal(flush(f, 1), 0);
	set_pinned(f, 1, true);
	assert_status(f, "l1_pinned_objects", "1");
	assert_status(f, "l1_pinned_bytes", "1048576");
	assert_int_equal(evict(f, 1), -EBUSY);
	/* L1 has 2 MiB: these take turns in what is left. */
	for (unsigned i = 2; i < 6; i++) {
		put(f, i, MIB);
		assert_int_equal(flush(f, i), 0);
	}
	assert_true(is_in_l1(f, 1));
	KvcL1Object *object = NULL;
	assert_int_equal(kvc_storage_manager_reserve_write(f->sm, NULL, 2 * MIB, &object), -ENOSPC);
	KvcCapacity capacity;
	kvc_storage_manager_get_capacity(f->sm, &capacity);
	assert_int_equal(capacity.l1_pinned_bytes, MIB);
	set_pinned(f, 1, false);
	assert_status(f, "l1_pinned_objects", "0");
	assert_int_equal(evict(f, 1), 0);
}

static void
test_a_pin_holds_for_what_is_loaded_later(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 1, PAGE);
	set_pinned(f, 1, true);
	assert_true(residency_of(f, 1).is_pinned);
	assert_false(residency_of(f, 1).is_resident);
	assert_status(f, "l1_pinned_objects", "0");
	assert_int_equal(load(f, 1, 2), 1);
	assert_status(f, "l1_pinned_objects", "1");
	wait_until(residency_of(f, 1).read_locks == 0);
	assert_int_equal(evict(f, 1), -EBUSY);
	/* Deleted, and made again: another object. */
	assert_int_equal(delete_key(f, 1), 0);
	assert_status(f, "l1_pinned_objects", "0");
	put(f, 1, PAGE);
	assert_false(residency_of(f, 1).is_pinned);
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(evict(f, 1), 0);
}

static void
test_the_checksum_is_of_what_is_resident(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	uint32_t crc = 0;
	start(f, MOCK, NULL);
	assert_int_equal(kvc_storage_manager_get_crc32c(f->sm, key, &crc), -ENODATA);
	put_with_attributes(f, 1);
	for (unsigned i = 0; i < 2; i++) {
		crc = 0;
		assert_int_equal(kvc_storage_manager_get_crc32c(f->sm, key, &crc), 0);
		assert_int_equal(crc, kvc_crc32c(0, "1234", 4));
	}
	assert_int_equal(flush(f, 1), 0);
	assert_int_equal(evict(f, 1), 0);
	assert_int_equal(kvc_storage_manager_get_crc32c(f->sm, key, &crc), -ENODATA);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_they_outlive_eviction),
		TEST(test_they_outlive_the_engine),
		TEST(test_a_duplicate_changes_nothing),
		TEST(test_a_pinned_object_is_not_evicted),
		TEST(test_a_pin_holds_for_what_is_loaded_later),
		TEST(test_the_checksum_is_of_what_is_resident),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
