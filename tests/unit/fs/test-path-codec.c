/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 20000

/* ---- Names --------------------------------------------------------------------------------- */

static void
assert_class_in(const KvcKeyScope *scope, const char *name, KvcfsNameClass expected)
{
	KvcfsNameClass class = kvcfs_name_classify(scope, name);
	if (class != expected)
		fail_msg("'%s' in '%s' is of class %d, not %d", name, scope->model_name, (int)class,
			 (int)expected);
}

/* In a rank directory, whose model has the name of a directory of temporary files. */
static void
assert_class(const char *name, KvcfsNameClass expected)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("tmp/m", 1, 0, NULL, NULL);
	assert_class_in(scope, name, expected);
}

static void
assert_plain_class(const char *directory, const char *name, KvcfsNameClass expected)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(directory, NULL);
	assert_class_in(scope, name, expected);
}

static void
test_names_in_plain_directories(void **state)
{
	assert_plain_class("", "9f86d081", KVCFS_NAME_PLAIN);
	assert_plain_class("a/b", "\xff \n", KVCFS_NAME_PLAIN);
	assert_plain_class("a", "@user", KVCFS_NAME_PLAIN);
	assert_plain_class("a", "@01000100", KVCFS_NAME_OTHER);
	assert_plain_class("a", "x.tmp", KVCFS_NAME_TEMPORARY);
	assert_plain_class("a/tmp/b", "x", KVCFS_NAME_TEMPORARY);
	assert_plain_class(".tmp", "x", KVCFS_NAME_TEMPORARY);
	assert_plain_class("tmp1", "tmp", KVCFS_NAME_PLAIN);
}

static void
test_hash_names(void **state)
{
	g_autofree char *longest = g_strnfill(128, 'a');
	g_autofree char *too_long = g_strnfill(130, 'a');
	static const char *const good[] = {"00000000", "9f86d081", "deadbeef01",
					   "0123456789abcdef"};
	static const char *const bad[] = {"",	       "9f86d0",    "9f86d08",	 "9f86d0811",
					  "9F86D081",  "9f86d08A",  "9f86d08g",	 "0x9f86d081",
					  "9f86d081 ", " 9f86d081", "9f86d081x1"};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(good); i++)
		assert_class(good[i], KVCFS_NAME_HASH);
	for (size_t i = 0; i < G_N_ELEMENTS(bad); i++)
		assert_class(bad[i], KVCFS_NAME_OTHER);
	assert_class(longest, KVCFS_NAME_HASH);
	assert_class(too_long, KVCFS_NAME_OTHER);
	longest[127] = '\0';
	assert_class(longest, KVCFS_NAME_OTHER);
}

/* The one table of paths. */
static void
test_temporary_names(void **state)
{
	static const char *const temporary[] = {
		/* Begins with a dot. */
		".9f86d081.tmp.4711",
		".x",
		".keys",
		/* Ends in. */
		"9f86d081~",
		"9f86d081.tmp",
		"x.temp",
		"x.part",
		"x.act",
		".tmp",
		"~",
		/* Contains .tmp. */
		"9f86d081.tmp.4711",
		"a.tmp.b.c",
		/* Ends in .tmp and 6 to 8 word characters. */
		"9f86d081.tmpAbC12_",
		"x.tmpabcdefg",
		"x.tmp12345678",
		"x.tmpa.tmpabcdef",
	};
	static const char *const other[] = {
		"x.tmpabcde",  "x.tmpabcdefghi", "x.tmpabc-ef",
		"x.tmpabcde.", "x.tmpa bcde",	 "x.tmp\xc3\xa4\xc3\xa4",
		"tmp",	       "tmpabcdef",	 "x.temporary",
		"part",	       "x.parts",	 "x~y",
		"x.acts",      "x.temps",	 "act",
		"x.TMP",       "9f86d081.data",
	};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(temporary); i++)
		assert_class(temporary[i], KVCFS_NAME_TEMPORARY);
	for (size_t i = 0; i < G_N_ELEMENTS(other); i++)
		assert_class(other[i], KVCFS_NAME_OTHER);
}

static void
test_directory_of_temporary_files(void **state)
{
	static const char *const below[] = {"tmp", ".tmp", "a/tmp", "a/.tmp/b", "tmp/b"};
	static const char *const not_below[] = {"", "a", "tmpx/b", "a/xtmp", ".tmpx", "a.tmp/b"};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(below); i++)
		if (!kvcfs_name_is_temporary(below[i], "data.bin"))
			fail_msg("below %s a file is not temporary", below[i]);
	for (size_t i = 0; i < G_N_ELEMENTS(not_below); i++) {
		if (kvcfs_name_is_temporary(not_below[i], "data.bin"))
			fail_msg("below \"%s\" a file is temporary", not_below[i]);
		assert_true(kvcfs_name_is_temporary(not_below[i], "data.bin.tmp"));
		assert_true(kvcfs_name_is_temporary(not_below[i], ".data"));
	}
}

static void
test_more_temporary_names(void **state)
{
	static const char *const patterns[] = {"*.inflight", "w-[0-9]*", "9f86*", NULL};
	static const char *const none[] = {NULL};
	(void)state;
	assert_class("a.inflight", KVCFS_NAME_OTHER);
	kvcfs_names_set_temporary(patterns);
	assert_class("a.inflight", KVCFS_NAME_TEMPORARY);
	assert_class("w-7", KVCFS_NAME_TEMPORARY);
	assert_class("w-x", KVCFS_NAME_OTHER);
	assert_class("a.inflight2", KVCFS_NAME_OTHER);
	assert_true(kvcfs_name_is_temporary("a", "x.inflight"));
	/* A pattern cannot make an object vanish. */
	assert_class("9f86d081884c7d65", KVCFS_NAME_HASH);
	kvcfs_names_set_temporary(none);
	assert_class("a.inflight", KVCFS_NAME_OTHER);
}

static void
test_name_to_key(void **state)
{
	static const uint8_t hash[] = {0x9f, 0x86, 0xd0, 0x81, 0xff};
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("m", 7, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(scope, "9f86d081ff");
	(void)state;
	assert_non_null(key);
	assert_ptr_equal(key->scope, scope);
	assert_int_equal(key->space, KVC_SPACE_CHUNK);
	assert_int_equal(key->chunk_hash_len, sizeof(hash));
	assert_memory_equal(key->chunk_hash, hash, sizeof(hash));
	assert_null(kvcfs_name_to_key(scope, "9F86D081FF"));
	assert_null(kvcfs_name_to_key(scope, "9f86d081f"));
	assert_null(kvcfs_name_to_key(scope, "9f86d0"));
	assert_null(kvcfs_name_to_key(scope, ""));
}

/* ---- Random ones --------------------------------------------------------------------------- */

static GRand *
rand_new(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	guint32 seed = text ? (guint32)strtoul(text, NULL, 0) : g_random_int();
	print_message("KVC_TEST_SEED=%u\n", seed);
	return g_rand_new_with_seed(seed);
}

static void
test_every_hash_comes_back(void **state)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("m", 1, 0, NULL, NULL);
	GRand *rand = rand_new();
	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
		size_t len = (size_t)g_rand_int_range(rand, KVC_CHUNK_HASH_MIN_BYTES,
						      KVC_CHUNK_HASH_MAX_BYTES + 1);
		for (size_t j = 0; j < len; j++)
			hash[j] = (uint8_t)g_rand_int(rand);
		g_autoptr(KvcObjectKey) key =
			kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, len, NULL);
		g_autofree char *name = kvc_object_key_hash_hex(key);
		assert_class(name, KVCFS_NAME_HASH);
		g_autoptr(KvcObjectKey) parsed = kvcfs_name_to_key(scope, name);
		assert_true(kvc_object_key_equal(parsed, key));
	}
	g_rand_free(rand);
}

/* ---- Directories --------------------------------------------------------------------------- */

/* Spelled by the engine (test-key-codec-path.c): here that the root's own directory is no model. */
static void
test_control_directory_is_no_model(void **state)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(KVCFS_CONTROL_DIR, 7, 1, NULL, NULL);
	g_autofree char *model = kvc_model_path_format(scope);
	g_autofree char *rank = kvc_rank_format(scope);
	g_autoptr(KvcKeyScope) parsed = kvc_rank_parse(model, rank, NULL);
	g_autoptr(GError) error = NULL;
	(void)state;
	assert_string_equal(model, "%2Ekvcache");
	assert_string_equal(rank, "@00000007@1");
	assert_ptr_equal(parsed, scope);
	assert_null(kvc_rank_parse(KVCFS_CONTROL_DIR, rank, &error));
	assert_true(g_error_matches(error, KVC_KEY_ERROR, EINVAL));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hash_names),
		cmocka_unit_test(test_names_in_plain_directories),
		cmocka_unit_test(test_temporary_names),
		cmocka_unit_test(test_directory_of_temporary_files),
		cmocka_unit_test(test_more_temporary_names),
		cmocka_unit_test(test_name_to_key),
		cmocka_unit_test(test_every_hash_comes_back),
		cmocka_unit_test(test_control_directory_is_no_model),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
