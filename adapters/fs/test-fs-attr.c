/* SPDX-License-Identifier: Apache-2.0 */

/* What goes with the bytes: how it is on disk, and that it comes back. */

#include "test-fs-util.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#define SEC_NS INT64_C(1000000000)
#define MTIME_NS (INT64_C(981173106) * SEC_NS + 123456789)

static KvcXattrs *
xattrs_new(const char *name, const void *value, size_t bytes)
{
	KvcXattrs *xattrs = NULL;

	assert_int_equal(kvc_xattrs_set(NULL, name, value, bytes, &xattrs), 0);
	return xattrs;
}

static int64_t
store_with(Fs *fs, KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	KvcMemoryObj object = object_new(1000, 1);

	object.attributes = attributes;
	int64_t result = store_many(fs, &key, &object, 1);
	free(object.data);
	return result;
}

/* The only file there is. */
static char *
only_file(Fs *fs)
{
	g_autoptr(GDir) dir = g_dir_open(fs->dir, 0, NULL);
	char *path = path_of(fs, g_dir_read_name(dir));

	assert_null(g_dir_read_name(dir));
	return path;
}

static void
assert_text(const char *path, const char *name, const char *expected)
{
	char text[64];
	ssize_t len = getxattr(path, name, text, sizeof(text) - 1);

	if (!expected) {
		assert_int_equal(len, -1);
		assert_int_equal(errno, ENODATA);
		return;
	}
	assert_int_equal(len, strlen(expected));
	assert_memory_equal(text, expected, (size_t)len);
}

static void
assert_info(const KvcL2ObjectInfo *info, uint32_t mode, uint32_t uid, const char *x)
{
	size_t bytes = 0;
	const void *value = kvc_xattrs_get(info->xattrs, "user.x", &bytes);

	assert_int_equal(info->bytes, 1000);
	assert_int_equal(info->mtime_ns, MTIME_NS);
	assert_int_equal(info->mode, mode);
	assert_int_equal(info->uid, uid);
	assert_int_equal(value != NULL, x != NULL);
	if (x)
		assert_int_equal(bytes, strlen(x));
	if (x && bytes)
		assert_memory_equal(value, x, bytes);
	assert_null(kvc_xattrs_get(info->xattrs, "user.kvcache.size", NULL));
	assert_null(kvc_xattrs_get(info->xattrs, "user.kvcache.attr", NULL));
}

/* Lookup and list say the same. */
static void
assert_told(Fs *fs, KvcObjectKey *key, uint32_t mode, uint32_t uid, const char *x)
{
	KvcL2ObjectInfo info;
	KvcL2ListEntry entry;
	char *cursor = NULL;

	assert_true(lookup_and_lock(fs, key, &info));
	fs->ops->submit_unlock(fs->adapter, &key, 1);
	assert_info(&info, mode, uid, x);
	kvc_xattrs_unref(info.xattrs);
	assert_int_equal(fs->ops->list(fs->adapter, NULL, &cursor, &entry, 1), 1);
	assert_info(&entry.info, mode, uid, x);
	kvc_xattrs_unref(entry.info.xattrs);
	kvc_object_key_unref(entry.key);
	g_free(cursor);
}

static void
test_a_store_keeps_them(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autoptr(KvcXattrs) xattrs = xattrs_new("user.x", "1", 1);
	KvcObjectAttributes attributes = {
		.mtime_ns = MTIME_NS, .mode = 0100600, .uid = 12, .gid = 34, .xattrs = xattrs};
	struct stat st;
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	g_autofree char *path = only_file(&fs);
	assert_told(&fs, key, 0100600, 12, "1");
	assert_text(path, "user.kvcache.attr", "600 12 34");
	assert_text(path, "user.x", "1");
	assert_int_equal(stat(path, &st), 0);
	assert_int_equal(st.st_mode & 07777, 0600);
	assert_int_equal(st.st_uid, getuid());
	assert_int_equal(st.st_mtim.tv_sec, MTIME_NS / SEC_NS);
	assert_int_equal(st.st_mtim.tv_nsec, MTIME_NS % SEC_NS);
	assert_true(load(&fs, key, 1000, 1));
	assert_describes(&fs, "attribute_errors", "0");
	fs_free(&fs);
}

static void
test_the_default_is_not_written(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcObjectAttributes attributes = {.mtime_ns = MTIME_NS, .mode = KVC_MODE_DEFAULT};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	g_autofree char *path = only_file(&fs);
	assert_text(path, "user.kvcache.attr", NULL);
	assert_told(&fs, key, 0, 0, NULL);
	/* There and back. */
	attributes.mode = 0100400;
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), 0);
	assert_told(&fs, key, 0100400, 0, NULL);
	attributes.mode = KVC_MODE_DEFAULT;
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), 0);
	assert_text(path, "user.kvcache.attr", NULL);
	fs_free(&fs);
}

static void
test_set_replaces_all(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autoptr(KvcXattrs) old = xattrs_new("user.old", "1", 1);
	g_autoptr(KvcXattrs) new = xattrs_new("user.x", "", 0);
	KvcObjectAttributes attributes = {.mtime_ns = 1, .mode = 0100600, .xattrs = old};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), -ENOENT);
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	g_autofree char *path = only_file(&fs);
	attributes = (KvcObjectAttributes){
		.mtime_ns = MTIME_NS, .mode = 0100640, .uid = 5, .xattrs = new};
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), 0);
	assert_told(&fs, key, 0100640, 5, "");
	assert_text(path, "user.old", NULL);
	/* What the adapter itself goes by is still there. */
	assert_text(path, "user.kvcache.size", "1000");
	assert_true(load(&fs, key, 1000, 1));
	fs_free(&fs);
}

/* LMCache's, with an xattr of somebody else: a store of the same object adds ours. */
static void
test_a_skipped_store_adds_them(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autoptr(KvcXattrs) xattrs = xattrs_new("user.x", "1", 1);
	KvcObjectAttributes attributes = {
		.mtime_ns = MTIME_NS, .mode = 0100600, .uid = 1, .xattrs = xattrs};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store(&fs, key, 1000, 1), 1000);
	g_autofree char *path = only_file(&fs);
	assert_int_equal(setxattr(path, "user.theirs", "t", 1, 0), 0);
	assert_int_equal(store_with(&fs, key, &attributes), 0);
	assert_describes(&fs, "skipped", "1");
	assert_told(&fs, key, 0100600, 1, "1");
	assert_text(path, "user.theirs", "t");
	fs_free(&fs);
}

/* ext4 has 4 KiB for all of them, others more: in any case the bytes are stored. */
static void
test_too_big_for_the_file_system(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	g_autofree char *big = g_malloc0(KVC_XATTR_VALUE_MAX_BYTES);
	g_autoptr(KvcXattrs) xattrs = xattrs_new("user.big", big, KVC_XATTR_VALUE_MAX_BYTES);
	KvcObjectAttributes attributes = {.mtime_ns = MTIME_NS, .mode = 0100600, .xattrs = xattrs};
	KvcL2ObjectInfo info;
	Fs fs;

	fs_new(&fs, "");
	log_begin();
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	assert_true(load(&fs, key, 1000, 1));
	assert_true(lookup_and_lock(&fs, key, &info));
	assert_int_equal(info.mode, 0100600);
	assert_int_equal(info.mtime_ns, MTIME_NS);
	bool is_kept = kvc_xattrs_get(info.xattrs, "user.big", NULL) != NULL;
	assert_describes(&fs, "attribute_errors", is_kept ? "0" : "1");
	assert_int_equal(log_count("are not kept"), is_kept ? 0 : 1);
	log_end();
	assert_describes(&fs, "health", "ok");
	kvc_xattrs_unref(info.xattrs);
	fs_free(&fs);
}

/* What others have written into our xattr, or never wrote, is no reason to lose the object. */
static void
test_unreadable_modes(void **state)
{
	static const char *const texts[] = {"",	     "rw-r--r--", "600",
					    "600 1", "77777 0 0", "600 0 0 more"};
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcObjectAttributes attributes = {.mtime_ns = MTIME_NS};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	g_autofree char *path = only_file(&fs);
	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
		assert_int_equal(setxattr(path, "user.kvcache.attr", texts[i], strlen(texts[i]), 0),
				 0);
		assert_told(&fs, key, 0, 0, NULL);
	}
	fs_free(&fs);
}

#define VERSION_NS INT64_C(1700000000123456789)

/* What lookup and list say of KEY alike. */
static int64_t
version_of(Fs *fs, KvcObjectKey *key)
{
	KvcL2ObjectInfo info;
	KvcL2ListEntry entry;
	char *cursor = NULL;

	assert_true(lookup_and_lock(fs, key, &info));
	fs->ops->submit_unlock(fs->adapter, &key, 1);
	assert_int_equal(fs->ops->list(fs->adapter, NULL, &cursor, &entry, 1), 1);
	assert_true(kvc_object_key_equal(entry.key, key));
	assert_int_equal(entry.info.version_ns, info.version_ns);
	kvc_xattrs_unref(info.xattrs);
	kvc_xattrs_unref(entry.info.xattrs);
	kvc_object_key_unref(entry.key);
	g_free(cursor);
	return info.version_ns;
}

static void
test_the_version_stays_with_the_bytes(void **state)
{
	g_autoptr(KvcObjectKey) key = plain("d", "a"), renamed = plain("d", "b");
	KvcObjectAttributes attributes = {
		.mtime_ns = MTIME_NS, .mode = KVC_MODE_DEFAULT, .version_ns = VERSION_NS};
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	assert_int_equal(version_of(&fs, key), VERSION_NS);
	attributes.version_ns = 0;
	attributes.mode = 0100600;
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), 0);
	attributes.version_ns = VERSION_NS + 1;
	attributes.mode = KVC_MODE_DEFAULT;
	assert_int_equal(fs.ops->set_attributes(fs.adapter, key, &attributes), 0);
	assert_int_equal(version_of(&fs, key), VERSION_NS);
	assert_int_equal(fs.ops->rename_key(fs.adapter, key, renamed), 0);
	assert_int_equal(version_of(&fs, renamed), VERSION_NS);
	/* Other bytes, of a version that is known, or is not. */
	assert_int_equal(store_with(&fs, renamed, &attributes), 1000);
	assert_int_equal(version_of(&fs, renamed), VERSION_NS + 1);
	attributes.version_ns = 0;
	assert_int_equal(store_with(&fs, renamed, &attributes), 1000);
	assert_int_equal(version_of(&fs, renamed), 0);
	assert_describes(&fs, "attribute_errors", "0");
	fs_free(&fs);
}

static void
test_versions_that_are_none(void **state)
{
	static const char *const texts[] = {
		"", "0", "-1", "1x", " 1", "0x1", "9223372036854775808"};
	g_autoptr(KvcObjectKey) key = chunk(1);
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store(&fs, key, 1000, 1), 1000);
	g_autofree char *path = only_file(&fs);
	assert_text(path, "user.kvcache.version", NULL);
	assert_int_equal(version_of(&fs, key), 0);
	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++) {
		assert_int_equal(
			setxattr(path, "user.kvcache.version", texts[i], strlen(texts[i]), 0), 0);
		assert_int_equal(version_of(&fs, key), 0);
	}
	assert_int_equal(setxattr(path, "user.kvcache.version", "17", 2, 0), 0);
	assert_int_equal(version_of(&fs, key), 17);
	fs_free(&fs);
}

/* An mtime that was set, old or in the future, does not make the usage wrong. */
static void
test_usage_does_not_go_by_mtime(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	KvcObjectAttributes attributes = {.mtime_ns = MTIME_NS, .mode = KVC_MODE_DEFAULT};
	KvcL2ListEntry entries[2];
	KvcL2Usage usage = {0};
	char *cursor = NULL;
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store_with(&fs, key, &attributes), 1000);
	assert_int_equal(fs.ops->list(fs.adapter, NULL, &cursor, entries, 2), 1);
	assert_null(cursor);
	kvc_object_key_unref(entries[0].key);
	fs.ops->usage(fs.adapter, &usage);
	assert_int_equal(usage.bytes_used, 1000);
	assert_int_equal(usage.objects, 1);
	fs_free(&fs);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_a_store_keeps_them),
		cmocka_unit_test(test_the_default_is_not_written),
		cmocka_unit_test(test_set_replaces_all),
		cmocka_unit_test(test_a_skipped_store_adds_them),
		cmocka_unit_test(test_too_big_for_the_file_system),
		cmocka_unit_test(test_unreadable_modes),
		cmocka_unit_test(test_the_version_stays_with_the_bytes),
		cmocka_unit_test(test_versions_that_are_none),
		cmocka_unit_test(test_usage_does_not_go_by_mtime),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
