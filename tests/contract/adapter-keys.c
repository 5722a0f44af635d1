/* SPDX-License-Identifier: Apache-2.0 */

/* Every field of a key in every space, at its ends and with what stores tend to stumble over. */

#include "adapter-fixture.h"

#define BYTES 40

static void
add(GPtrArray *keys, KvcKeyScope *scope, KvcSpace space, const void *hash, size_t len)
{
	g_autoptr(GError) error = NULL;
	KvcObjectKey *key = kvc_object_key_new(scope, space, hash, len, &error);

	if (!key)
		fail_msg("%s", error->message);
	g_ptr_array_add(keys, key);
}

/* A scope and chunks and prefixes in it. */
static void
add_scope(GPtrArray *keys, const char *model, uint32_t rank, uint32_t group, const char *salt)
{
	static const char *const prefixes[] = {"system-v3", "n0000001", "a b", "@", "%2F", "x.tmp"};
	g_autoptr(GError) error = NULL;
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(model, rank, group, salt, &error);
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];

	if (!scope)
		fail_msg("%s", error->message);
	for (size_t i = 0; i < sizeof(hash); i++)
		hash[i] = (uint8_t)(i * 37); /* begins with 0 */
	add(keys, scope, KVC_SPACE_CHUNK, hash, KVC_CHUNK_HASH_MIN_BYTES);
	add(keys, scope, KVC_SPACE_CHUNK, hash, 5);
	add(keys, scope, KVC_SPACE_CHUNK, hash, 32);
	add(keys, scope, KVC_SPACE_CHUNK, hash, sizeof(hash));
	memset(hash, 0xff, sizeof(hash));
	add(keys, scope, KVC_SPACE_CHUNK, hash, sizeof(hash));
	add(keys, scope, KVC_SPACE_CHUNK, "n0000001", 8); /* as one of the prefixes */
	for (size_t i = 0; i < G_N_ELEMENTS(prefixes); i++)
		add(keys, scope, KVC_SPACE_PREFIX, prefixes[i], strlen(prefixes[i]));
}

static void
add_chunks(GPtrArray *keys)
{
	g_autofree char *long_model = g_strnfill(240, 'm'), *longer_model = g_strnfill(3000, 'm');
	g_autofree char *long_salt = g_strnfill(KVC_SALT_MAX_CHARS, 's');
	g_autofree char *slashes = g_strdup("a/b/c/d/e/f/g/h/i/j");

	add_scope(keys, "m", 0, 0, NULL);
	add_scope(keys, "M", 0, 0, NULL);
	add_scope(keys, "org/model", 0x01000100, 0, NULL);
	add_scope(keys, "org/model", 0x01000101, 0, NULL);
	add_scope(keys, "org/model", UINT32_MAX, UINT32_MAX, NULL);
	add_scope(keys, "org/model", 0x01000100, 1, "salt");
	add_scope(keys, "org/model", 0x01000100, 0x12345678, NULL); /* looks like a hash */
	add_scope(keys, "org/model", 0, 0, long_salt);
	add_scope(keys, "org/model", 0, 0, "\xc3\xa4 \xe2\x82\xac");
	add_scope(keys, "org-SEP-model", 0, 0, NULL);
	add_scope(keys, "a-SEP/b", 0, 0, NULL);
	add_scope(keys, "\xe6\xa8\xa1\xe5\x9e\x8b/v1 %41 \\ \n\t*?", 0, 0, NULL);
	add_scope(keys, "/leading//double/", 0, 0, NULL);
	add_scope(keys, "../up/./here", 0, 0, NULL);
	add_scope(keys, ".kvcache", 0, 0, NULL);
	add_scope(keys, slashes, 0, 0, NULL);
	add_scope(keys, long_model, 1, 2, "s");
	add_scope(keys, longer_model, 1, 2, "s");
}

static void
add_plain(GPtrArray *keys, const char *directory, const char *name)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(directory, &error);

	if (!scope)
		fail_msg("%s", error->message);
	add(keys, scope, KVC_SPACE_PLAIN, name, strlen(name));
}

static void
add_plain_files(GPtrArray *keys)
{
	g_autofree char *name_255 = g_strnfill(255, 'n'), *name_256 = g_strnfill(256, 'n');
	g_autofree char *name_max = g_strnfill(KVC_NAME_MAX_BYTES, 'n');

	add_plain(keys, "", "in the root");
	add_plain(keys, "", "-SEP-");
	add_plain(keys, "", ".hidden");
	add_plain(keys, "hicache", "page_0.bin");
	add_plain(keys, "hicache", "page_0.BIN");
	add_plain(keys, "hicache", "9f86d081.data");
	add_plain(keys, "hicache", ".kvcfs.1.1.tmp");
	add_plain(keys, "hicache", "\xff\xfe\x01");
	add_plain(keys, "hicache", "line\nbreak");
	add_plain(keys, "hicache", "*?[a]\\\"'$(x) ");
	add_plain(keys, "hicache", name_255);
	add_plain(keys, "hicache", name_256);
	add_plain(keys, "hicache", name_max);
	add_plain(keys, "hicache/deep/deeper/deepest", "x");
	add_plain(keys, name_256, "x");
	add_plain(keys, "plain", "x");
	add_plain(keys, "prefix/some", "x");
	add_plain(keys, "x/@01000100", "system-v3");
	add_plain(keys, ".kvcache", "status");
}

static bool
has_key(const GPtrArray *keys, const KvcObjectKey *key)
{
	return g_ptr_array_find_with_equal_func((GPtrArray *)keys, key, kvc_object_key_equal, NULL);
}

/* May a store refuse KEY with this -errno? */
static void
assert_may_refuse(const Subject *subject, const KvcObjectKey *key, int64_t rc)
{
	g_autofree char *max = subject_line(subject, "max_name_bytes");
	g_autofree char *name = max ? kvc_store_name_format(key) : NULL;

	if (!max)
		assert_true(rc == -ENOTSUP || rc == -ENAMETOOLONG);
	else
		assert_true(rc == -ENAMETOOLONG && strlen(name) > strtoul(max, NULL, 10));
}

/*
 * Stores KEYS with bytes of their own each. A store without extended attributes, or one of names
 * that says how long they may be, may refuse some: those leave KEYS.
 */
static void
store_all(const Subject *subject, GPtrArray *keys, const KvcMemoryObj *memories)
{
	KvcObjectKey **array = (KvcObjectKey **)keys->pdata;
	g_autofree char *checksums = subject_line(subject, "checksums");
	g_autofree char *max_name = subject_line(subject, "max_name_bytes");

	if (!max_name && (!checksums || strcmp(checksums, "unsupported") != 0)) {
		assert_int_equal(store_many(subject, array, memories, keys->len),
				 keys->len * BYTES);
		return;
	}
	for (guint i = 0; i < keys->len;) {
		int64_t rc = store(subject, array[i], &memories[i]);

		if (rc == BYTES) {
			i++;
			continue;
		}
		assert_may_refuse(subject, array[i], rc);
		assert_misses(subject, array[i], BYTES);
		g_ptr_array_remove_index(keys, i);
	}
}

static void
load_all(const Subject *subject, GPtrArray *keys, const KvcMemoryObj *memories)
{
	KvcObjectKey **array = (KvcObjectKey **)keys->pdata;
	KvcMemoryObj *read = memories_new(keys->len, BYTES, 7777);
	g_autoptr(KvcBitmap) loaded = load_many(subject, array, read, keys->len);

	for (guint i = 0; i < keys->len; i++)
		if (!kvc_bitmap_test(loaded, i) || !memory_equal(&read[i], &memories[i])) {
			g_autofree char *text = kvc_object_key_to_string(array[i]);

			fail_msg("not loaded: %s", text);
		}
	memories_free(read, keys->len);
}

static void
check_all(const Subject *subject, GPtrArray *keys, const KvcMemoryObj *memories)
{
	KvcL2ObjectInfo *info = g_new0(KvcL2ObjectInfo, keys->len);
	KvcObjectKey **array = (KvcObjectKey **)keys->pdata;
	g_autoptr(KvcBitmap) found = lookup_many(subject, array, keys->len, info);

	for (guint i = 0; i < keys->len; i++) {
		if (!kvc_bitmap_test(found, i)) {
			g_autofree char *text = kvc_object_key_to_string(array[i]);

			fail_msg("not found: %s", text);
		}
		assert_int_equal(info[i].bytes, BYTES);
	}
	load_all(subject, keys, memories);
	subject->ops->submit_unlock(subject->adapter, array, keys->len);
	g_free(info);
	if (!subject->ops->list)
		return;
	g_autoptr(GPtrArray) listed = list_keys(subject, NULL, 16);
	assert_int_equal(listed->len, keys->len);
	for (guint i = 0; i < keys->len; i++)
		if (!has_key(listed, array[i])) {
			g_autofree char *text = kvc_object_key_to_string(array[i]);

			fail_msg("not listed: %s", text);
		}
	for (guint from = 0, to; from < keys->len; from = to) {
		g_autoptr(GPtrArray) of_scope = list_keys(subject, array[from]->scope, 5);

		for (to = from; to < keys->len && array[to]->scope == array[from]->scope; to++)
			assert_true(has_key(of_scope, array[to]));
		assert_int_equal(of_scope->len, to - from);
	}
}

static void
delete_all(const Subject *subject, GPtrArray *keys)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(keys->len);

	assert_int_equal(subject->ops->delete_keys(subject->adapter,
						   (KvcObjectKey *const *)keys->pdata, keys->len,
						   deleted),
			 0);
	assert_int_equal(kvc_bitmap_count(deleted), keys->len);
	g_autoptr(KvcBitmap) found =
		lookup_many(subject, (KvcObjectKey *const *)keys->pdata, keys->len, NULL);
	assert_int_equal(kvc_bitmap_count(found), 0);
}

/* Before and after a restart, where there is one. */
static void
test_all_fields_and_spaces(void **state)
{
	Subject *subject = *state;
	g_autoptr(GPtrArray) keys =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);

	add_chunks(keys);
	add_plain_files(keys);
	guint n = keys->len;
	KvcMemoryObj *memories = memories_new(n, BYTES, 1);
	store_all(subject, keys, memories);
	check_all(subject, keys, memories);
	if (subject_is_persistent(subject)) {
		subject_close(subject);
		subject_open(subject, "");
		check_all(subject, keys, memories);
	}
	if (subject->ops->delete_keys)
		delete_all(subject, keys);
	memories_free(memories, n);
}

const struct CMUnitTest adapter_key_tests[] = {
	{"all_fields_and_spaces", test_all_fields_and_spaces, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
