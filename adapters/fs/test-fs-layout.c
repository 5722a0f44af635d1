/* SPDX-License-Identifier: Apache-2.0 */

/* The names of files: layout=nixl_dynamic, shard_dirs. */

#include "test-fs-util.h"

#include <stdlib.h>
#include <string.h>

#define BYTES 5000

/* The file NAME with the bytes of an object of SEED; its directories are made. */
static void
put_object(Fs *fs, const char *name, uint32_t seed)
{
	KvcMemoryObj object = object_new(BYTES, seed);
	g_autofree char *path = path_of(fs, name), *parent = g_path_get_dirname(path);

	assert_int_equal(g_mkdir_with_parents(parent, 0755), 0);
	put_file(fs, name, object.data, BYTES);
	free(object.data);
}

static bool
is_found(Fs *fs, KvcObjectKey *key)
{
	KvcL2ObjectInfo info;
	bool found = lookup_and_lock(fs, key, &info);

	if (found) {
		assert_int_equal(info.bytes, BYTES);
		fs->ops->submit_unlock(fs->adapter, &key, 1);
	}
	return found;
}

/* The file NAME is the one object KEY, both ways. */
static void
check_name(Fs *fs, KvcObjectKey *key, const char *name, uint32_t seed)
{
	put_object(fs, name, seed);
	assert_true(is_found(fs, key));
	assert_int_equal(count_listed(fs, key), 1);
	assert_true(load(fs, key, BYTES, seed));
	assert_true(delete_key(fs, key));
	assert_false(exists(fs, name));
	assert_false(is_found(fs, key));
	assert_int_equal(store(fs, key, BYTES, seed), BYTES);
	assert_true(exists(fs, name));
	assert_true(load(fs, key, BYTES, seed));
	assert_int_equal(count_listed(fs, key), 1);
}

static const uint8_t hash[6] = {0xab, 0xcd, 0x01, 0x02, 0x03, 0x04};

static KvcObjectKey *
key_of(const char *model, uint32_t group, const char *salt)
{
	return key_new(model, 0x08030803, group, salt, KVC_SPACE_CHUNK, hash, sizeof(hash));
}

static void
test_nixl_names(void **state)
{
	g_autoptr(KvcObjectKey) simple = key_of("gpt2", 0, NULL);
	g_autoptr(KvcObjectKey) slashes = key_of("/org/model-1.5_b_00000001_0", 0x1a, NULL);
	g_autoptr(KvcObjectKey) salted = key_of("org/model", 0, "tenant_a-1.bin");
	Fs fs;

	fs_new(&fs, ",layout=nixl_dynamic");
	check_name(&fs, simple, "gpt2_08030803_0_abcd01020304.bin", 1);
	check_name(&fs, slashes, "--org--model-1.5_b_00000001_0_08030803_1a_abcd01020304.bin", 2);
	check_name(&fs, salted, "org--model_08030803_0_abcd01020304@tenant_a-1.bin.bin", 3);
	assert_true(load(&fs, simple, BYTES, 1));
	assert_describes(&fs, "foreign_files", "0");
	fs_free(&fs);

	fs_new(&fs, ",layout=nixl_dynamic,shard_dirs=true");
	check_name(&fs, simple, "ab/cd/gpt2_08030803_0_abcd01020304.bin", 1);
	check_name(&fs, salted, "ab/cd/org--model_08030803_0_abcd01020304@tenant_a-1.bin.bin", 3);
	fs_free(&fs);
}

/* What is not spelled as it is written here is no object, and stays. */
static void
test_nixl_foreign(void **state)
{
	static const char *const names[] = {
		"gpt2@0x08030803@0@abcd01020304.data",
		"gpt2_08030803_00_abcd01020304.bin",
		"gpt2_8030803_0_abcd01020304.bin",
		"gpt2_08030803_0_ABCD01020304.bin",
		"gpt2_08030803_0_abcd0102030.bin",
		"gpt2_08030803_0_abcd01020304@.bin",
		"gpt2_08030803_0_abcd01020304.bin.tmp.1",
		"gpt2_08030803_123456789_abcd01020304.bin",
		"gpt2_08030803_+1_abcd01020304.bin",
		"_08030803_0_abcd01020304.bin",
		"salted-v1_9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08.bin",
		"08030803_0_abcd01020304.bin",
		"obj_1_6ba7b810.bin",
		".bin",
	};
	g_autofree char *count = g_strdup_printf("%zu", G_N_ELEMENTS(names));
	Fs fs;

	fs_new(&fs, ",layout=nixl_dynamic");
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		put_object(&fs, names[i], 1);
	g_autoptr(GPtrArray) keys = list_keys(&fs, NULL, 100);
	assert_int_equal(keys->len, 0);
	assert_describes(&fs, "foreign_files", count);
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		assert_true(exists(&fs, names[i]));
	fs_free(&fs);
}

/* Models that "--" would make one of are two objects. */
static void
test_nixl_ambiguous(void **state)
{
	static const char *const models[] = {"a/b", "a--b", "a-/b", "a/-b"};
	KvcObjectKey *keys[G_N_ELEMENTS(models)];
	Fs fs;

	fs_new(&fs, ",layout=nixl_dynamic");
	for (uint32_t i = 0; i < G_N_ELEMENTS(models); i++) {
		keys[i] = key_of(models[i], 0, NULL);
		assert_false(is_found(&fs, keys[i]));
		assert_int_equal(store(&fs, keys[i], BYTES, i), BYTES);
	}
	for (uint32_t i = 0; i < G_N_ELEMENTS(models); i++) {
		assert_true(load(&fs, keys[i], BYTES, i));
		assert_int_equal(count_listed(&fs, keys[i]), 1);
		kvc_object_key_unref(keys[i]);
	}
	assert_describes(&fs, "foreign_files", "0");
	fs_free(&fs);
}

#define IN_SHARD(n) "00/00/org-SEP-model@0x01000100@0@0000000" n ".data"
#define FLAT(n) "org-SEP-model@0x01000100@0@0000000" n ".data"
#define OLD(n) "org-SEP-model@0x01000100@0000000" n ".data"

/* Where a new object goes follows the option; all are read, listed once and deleted, with it or
 * without. */
static void
test_shard_dirs(void **state)
{
	KvcObjectKey *keys[] = {chunk(0), chunk(1), chunk(2), chunk(3)};
	Fs fs;

	fs_new(&fs, ",shard_dirs=true");
	g_autofree char *dir = g_strdup(fs.dir);
	assert_int_equal(store(&fs, keys[0], BYTES, 0), BYTES);
	assert_true(exists(&fs, IN_SHARD("0")));
	assert_false(exists(&fs, FLAT("0")));
	put_object(&fs, FLAT("1"), 1);
	put_object(&fs, OLD("2"), 2);
	put_object(&fs, IN_SHARD("3"), 3);
	put_object(&fs, FLAT("3"), 3);
	put_object(&fs, OLD("3"), 3);
	put_object(&fs, "00/foreign", 1);
	put_object(&fs, "00/01/" FLAT("0"), 1);
	put_object(&fs, "00/00/" OLD("5"), 1);
	for (int on = 1; on >= 0; on--) {
		fs_close(&fs);
		fs_open(&fs, dir, on ? ",shard_dirs=true" : ",shard_dirs=false");
		for (uint32_t i = 0; i < G_N_ELEMENTS(keys); i++) {
			assert_true(is_found(&fs, keys[i]));
			assert_true(load(&fs, keys[i], BYTES, i));
			assert_int_equal(count_listed(&fs, keys[i]), 1);
		}
		for (size_t page = 1; page < 6; page++) {
			g_autoptr(GPtrArray) all = list_keys(&fs, NULL, page);
			g_autoptr(GPtrArray) scope = list_keys(&fs, keys[0]->scope, page);

			assert_int_equal(all->len, G_N_ELEMENTS(keys));
			assert_int_equal(scope->len, G_N_ELEMENTS(keys));
		}
		assert_describes(&fs, "foreign_files", "3");
	}
	assert_int_equal(store(&fs, keys[0], BYTES, 0), BYTES);
	assert_true(exists(&fs, FLAT("0")));
	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++)
		assert_true(delete_key(&fs, keys[i]));
	fs_close(&fs);
	fs_open(&fs, dir, ",shard_dirs=true");
	for (size_t i = 0; i < G_N_ELEMENTS(keys); i++) {
		assert_false(is_found(&fs, keys[i]));
		kvc_object_key_unref(keys[i]);
	}
	assert_true(exists(&fs, "00/foreign"));
	assert_true(exists(&fs, "00/00/" OLD("5")));
	fs_free(&fs);
}

/* An object that others store into directories of their own is seen by the next lookup. */
static void
test_shard_dirs_of_others(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1);
	uint64_t stamp;
	int64_t changed_ns;
	Fs fs;

	fs_new(&fs, ",shard_dirs=true");
	assert_false(is_found(&fs, key));
	put_object(&fs, IN_SHARD("1"), 1);
	assert_true(is_found(&fs, key));
	assert_true(load(&fs, key, BYTES, 1));
	assert_int_equal(fs.ops->get_changes(fs.adapter, key->scope, &stamp, &changed_ns), 0);
	assert_true(changed_ns > 0);
	fs_free(&fs);
}

/* Those that come while this one runs without shard_dirs: found, and a deleted object stays so. */
static void
test_shard_dirs_made_later(void **state)
{
	g_autoptr(KvcObjectKey) key = chunk(1), other = chunk(2);
	Fs fs;

	fs_new(&fs, "");
	assert_int_equal(store(&fs, key, BYTES, 1), BYTES);
	put_object(&fs, IN_SHARD("1"), 1);
	put_object(&fs, IN_SHARD("2"), 2);
	assert_true(is_found(&fs, other));
	assert_true(load(&fs, other, BYTES, 2));
	assert_true(delete_key(&fs, key));
	assert_int_equal(count_listed(&fs, key), 0);
	assert_false(is_found(&fs, key));
	assert_int_equal(count_listed(&fs, other), 1);
	fs_free(&fs);
}

/* A refused option is named. */
static void
test_bad_layout(void **state)
{
	static const char *const bad[] = {"layout=nixl", "layout=", "shard_dirs=maybe"};

	for (size_t i = 0; i < G_N_ELEMENTS(bad); i++) {
		g_autofree char *text =
			g_strdup_printf("type=fs,base_path=/nonexistent/x,%s", bad[i]);
		g_autofree char *name = g_strndup(bad[i], strcspn(bad[i], "="));
		g_autoptr(GError) error = NULL;
		KvcOptions *options;

		assert_null(kvc_l2_adapter_open(text, &options, &error));
		assert_non_null(strstr(error->message, name));
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_nixl_names),
		cmocka_unit_test(test_nixl_foreign),
		cmocka_unit_test(test_nixl_ambiguous),
		cmocka_unit_test(test_shard_dirs),
		cmocka_unit_test(test_shard_dirs_of_others),
		cmocka_unit_test(test_shard_dirs_made_later),
		cmocka_unit_test(test_bad_layout),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
