/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/path-codec.h"

#include "kvcache/key-codec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 20000

/* ---- Names --------------------------------------------------------------------------------- */

static void
assert_class(const char *name, KvcfsNameClass expected)
{
	KvcfsNameClass class = kvcfs_name_classify(name);
	if (class != expected)
		fail_msg("'%s' is of class %d, not %d", name, (int)class, (int)expected);
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

/* The one table of design.md 3. */
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

/* ---- One way and the other ----------------------------------------------------------------- */

static KvcKeyScope *
scope_new(const char *model, uint32_t rank, uint32_t group, const char *salt)
{
	g_autoptr(GError) error = NULL;
	KvcKeyScope *scope = kvc_key_scope_new(model, rank, group, salt, &error);
	assert_null(error);
	return scope;
}

/* The path of the scope is the expected one, and is read back as the same scope. */
static void
assert_formats(KvcKeyScope *scope, const char *expected_model, const char *expected_rank)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *model = kvcfs_model_path_format(scope);
	g_autofree char *rank = kvcfs_rank_format(scope);
	if (expected_model)
		assert_string_equal(model, expected_model);
	if (expected_rank)
		assert_string_equal(rank, expected_rank);
	g_autoptr(KvcKeyScope) parsed = kvcfs_rank_parse(model, rank, &error);
	if (!parsed)
		fail_msg("model '%s' rank '%s': %s", model, rank, error->message);
	/* Interned: equal fields are one pointer. */
	assert_ptr_equal(parsed, scope);
}

static void
assert_model(const char *model, const char *path)
{
	g_autoptr(KvcKeyScope) scope = scope_new(model, 0x01000100, 0, NULL);
	assert_formats(scope, path, "@01000100");
}

static void
test_model_encodings(void **state)
{
	(void)state;
	assert_model("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B");
	assert_model("/models/x", "%2Fmodels/x");
	assert_model("x/", "x%2F");
	assert_model("/", "%2F");
	assert_model("a//b", "a/%2Fb");
	assert_model("a///b", "a/%2F%2Fb");
	assert_model("//", "%2F%2F");
	assert_model(".", "%2E");
	assert_model("..", "%2E.");
	assert_model("a/./b", "a/%2E/b");
	assert_model("a/../b", "a/%2E./b");
	assert_model("../a", "%2E./a");
	assert_model("a/..", "a/%2E.");
	assert_model("...", "...");
	assert_model(".hidden/..x", ".hidden/..x");
	assert_model("100%", "100%25");
	assert_model("a%2Fb", "a%252Fb");
	assert_model("\xc3\xa4 b\n\\\"", "\xc3\xa4 b\n\\\"");
}

/* Only at the root is it the control directory. */
static void
test_control_directory_is_encoded_first_only(void **state)
{
	(void)state;
	assert_model(".kvcache", "%2Ekvcache");
	assert_model(".kvcache/x", "%2Ekvcache/x");
	assert_model("x/.kvcache", "x/.kvcache");
	assert_model(".kvcache2", ".kvcache2");
	assert_model(".kvcach", ".kvcach");
	assert_model("kvcache", "kvcache");
}

static void
test_rank_spellings(void **state)
{
	static const struct {
		uint32_t rank, group;
		const char *salt, *expected;
	} cases[] = {
		{0x01000100, 0, "", "@01000100"},
		{0, 0, "", "@00000000"},
		{UINT32_MAX, UINT32_MAX, "", "@ffffffff@ffffffff"},
		{0x01000100, 1, "", "@01000100@1"},
		{0x01000100, 0x1a, "", "@01000100@1a"},
		{0x01000100, 0, "tenant-a", "@01000100@0@tenant-a"},
		{0xab, 0xc, "t", "@000000ab@c@t"},
		{1, 0, "%2F", "@00000001@0@%2F"},
		{1, 0, " .\xc3\xa4", "@00000001@0@ .\xc3\xa4"},
	};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
		g_autoptr(KvcKeyScope) scope =
			scope_new("m", cases[i].rank, cases[i].group, cases[i].salt);
		assert_formats(scope, "m", cases[i].expected);
	}
}

static void
assert_refused(const char *model, const char *rank)
{
	g_autoptr(GError) error = NULL;
	g_autoptr(KvcKeyScope) scope = kvcfs_rank_parse(model, rank, &error);
	if (scope)
		fail_msg("accepted: model '%s' rank '%s'", model, rank);
	assert_non_null(error);
	assert_true(error->domain == KVC_KEY_ERROR);
	assert_int_equal(error->code, EINVAL);
}

static void
test_other_rank_spellings_are_refused(void **state)
{
	static const char *const ranks[] = {
		"",
		"@",
		"01000100",
		"@1000100",
		"@001000100",
		"@0100010A",
		"@0x01000100",
		"@0100010g",
		"@ 1000100",
		"@+1000100",
		"@-1000100",
		"@01000100 ",
		"@01000100@",
		"@01000100@0",
		"@01000100@01",
		"@01000100@A",
		"@01000100@0x1",
		"@01000100@ 1",
		"@01000100@1@",
		"@01000100@0@",
		"@01000100@@salt",
		"@01000100@00@s",
		"@01000100@0@a@b",
		"@01000100@100000000",
		"@100000000",
		"@01000100@0@a\\b",
		"@@01000100",
		"@01000100/x",
		"@01000100@0@a/b",
	};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(ranks); i++)
		assert_refused("m", ranks[i]);
}

static void
test_other_model_spellings_are_refused(void **state)
{
	static const char *const models[] = {
		"",	  "/m",	   "m/",    "a//b",  "a/./b",	  "..",		  ".",
		"a/..",	  "%",	   "a%",    "a%2",   "a%zz",	  "a%2f",	  "%2emodel",
		"%61",	  "a%00b", "a%40b", "m%2Fn", "a%2F%2Fb",  "%2E%2E",	  ".kvcache",
		"%2E/%2", "a@b",   "%FF",   "\xff",  "%2Ekvcach", "x/%2Ekvcache", "%2E%2e",
		"% 41",	  "%+1a",
	};
	(void)state;
	for (size_t i = 0; i < G_N_ELEMENTS(models); i++)
		assert_refused(models[i], "@01000100");
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

/* COUNT pieces out of those that mean something to the codec. */
static char *
random_text(GRand *rand, const char *const *pieces, size_t n, int count)
{
	GString *text = g_string_new(NULL);
	while (count-- > 0)
		g_string_append(text, pieces[g_rand_int_range(rand, 0, (gint32)n)]);
	return g_string_free(text, FALSE);
}

static char *
random_model(GRand *rand)
{
	static const char *const pieces[] = {"/",  "/",	   "a",	  ".",	"..",	    "%",
					     "%2", "%2F",  "2E",  "~",	".kvcache", "\xc3\xa4",
					     " ",  "B-7b", "tmp", "\\", "-SEP-",    "\n"};
	return random_text(rand, pieces, G_N_ELEMENTS(pieces), g_rand_int_range(rand, 1, 9));
}

static uint32_t
random_u32(GRand *rand)
{
	return g_rand_int(rand) >> g_rand_int_range(rand, 0, 32);
}

static KvcKeyScope *
random_scope(GRand *rand)
{
	static const char *const pieces[] = {"a", "%", ".", "tenant", "\xc3\xb6", " ", "0", "~"};
	g_autofree char *model = random_model(rand);
	g_autofree char *salt =
		random_text(rand, pieces, G_N_ELEMENTS(pieces), g_rand_int_range(rand, 0, 4));
	uint32_t group = g_rand_boolean(rand) ? random_u32(rand) : 0;
	return scope_new(model, random_u32(rand), group, salt);
}

/* What no path can carry must not be in what was formatted. */
static void
assert_is_path(const char *path)
{
	g_auto(GStrv) components = g_strsplit(path, "/", -1);
	assert_string_not_equal(components[0], KVCFS_CONTROL_DIR);
	for (char **c = components; *c; c++) {
		assert_true((*c)[0] != '\0' && (*c)[0] != '@');
		assert_string_not_equal(*c, ".");
		assert_string_not_equal(*c, "..");
	}
}

static void
test_every_scope_comes_back(void **state)
{
	GRand *rand = rand_new();
	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		g_autoptr(KvcKeyScope) scope = random_scope(rand);
		g_autofree char *model = kvcfs_model_path_format(scope);
		assert_is_path(model);
		assert_formats(scope, NULL, NULL);
	}
	g_rand_free(rand);
}

/* What is accepted at all is the one spelling. */
static void
test_every_accepted_path_comes_back(void **state)
{
	static const char *const models[] = {"/",   "a",   ".",	 "%",	     "2E",  "2F", "%2F",
					     "%2E", "%25", "2e", ".kvcache", "%2e", "..", "b"};
	static const char *const ranks[] = {"@", "@", "0", "0100010", "01000100",
					    "a", "F", "1", " "};
	GRand *rand = rand_new();
	int accepted = 0;
	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		g_autofree char *model = random_text(rand, models, G_N_ELEMENTS(models),
						     g_rand_int_range(rand, 1, 7));
		g_autofree char *tail =
			random_text(rand, ranks, G_N_ELEMENTS(ranks), g_rand_int_range(rand, 0, 4));
		g_autofree char *rank = g_strconcat("@01000100", tail, NULL);
		g_autoptr(KvcKeyScope) scope = kvcfs_rank_parse(model, rank, NULL);
		if (!scope)
			continue;
		accepted++;
		assert_formats(scope, model, rank);
	}
	assert_true(accepted > ROUNDS / 100);
	g_rand_free(rand);
}

static void
test_every_hash_comes_back(void **state)
{
	g_autoptr(KvcKeyScope) scope = scope_new("m", 1, 0, NULL);
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

/* Different models have different paths. */
static void
test_models_do_not_meet(void **state)
{
	g_autoptr(GHashTable) paths =
		g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);
	GRand *rand = rand_new();
	(void)state;
	for (int i = 0; i < ROUNDS; i++) {
		g_autofree char *model = random_model(rand);
		g_autoptr(KvcKeyScope) scope = scope_new(model, 1, 0, NULL);
		char *path = kvcfs_model_path_format(scope);
		const char *other = g_hash_table_lookup(paths, path);
		if (other && strcmp(other, model) != 0)
			fail_msg("'%s' and '%s' are both '%s'", model, other, path);
		g_hash_table_replace(paths, path, g_strdup(model));
	}
	assert_true(g_hash_table_size(paths) > ROUNDS / 4);
	g_rand_free(rand);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hash_names),
		cmocka_unit_test(test_temporary_names),
		cmocka_unit_test(test_name_to_key),
		cmocka_unit_test(test_model_encodings),
		cmocka_unit_test(test_control_directory_is_encoded_first_only),
		cmocka_unit_test(test_rank_spellings),
		cmocka_unit_test(test_other_rank_spellings_are_refused),
		cmocka_unit_test(test_other_model_spellings_are_refused),
		cmocka_unit_test(test_every_scope_comes_back),
		cmocka_unit_test(test_every_accepted_path_comes_back),
		cmocka_unit_test(test_every_hash_comes_back),
		cmocka_unit_test(test_models_do_not_meet),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
