/* SPDX-License-Identifier: Apache-2.0 */

/* The paths of key-codec.c; its file names are in test-key-codec.c. */

#include "kvcache/key-codec.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define ROUNDS 20000

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
	g_autofree char *model = kvc_model_path_format(scope);
	g_autofree char *rank = kvc_rank_format(scope);
	if (expected_model)
		assert_string_equal(model, expected_model);
	if (expected_rank)
		assert_string_equal(rank, expected_rank);
	g_autoptr(KvcKeyScope) parsed = kvc_rank_parse(model, rank, &error);
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
	assert_model("..", "%2E%2E");
	assert_model("a/./b", "a/%2E/b");
	assert_model("a/../b", "a/%2E%2E/b");
	assert_model("../a", "%2E%2E/a");
	assert_model("a/..", "a/%2E%2E");
	assert_model("../.", "%2E%2E/%2E");
	assert_model("x.", "x.");
	assert_model("..x", "..x");
	assert_model("x..", "x..");
	assert_model("...", "...");
	assert_model("....", "....");
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
	g_autoptr(KvcKeyScope) scope = kvc_rank_parse(model, rank, &error);
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
		"",	  "/m",	    "m/",    "a//b",  "a/./b",	  "..",	       ".",
		"a/..",	  "%",	    "a%",    "a%2",   "a%zz",	  "a%2f",      "%2emodel",
		"%61",	  "a%00b",  "a%40b", "m%2Fn", "a%2F%2Fb", "%2E.",      ".kvcache",
		".%2E",	  "%2E/%2", "a@b",   "%FF",   "\xff",	  "%2Ekvcach", "x/%2Ekvcache",
		"%2E%2e", "% 41",   "%+1a",
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
	assert_string_not_equal(components[0], KVC_CONTROL_DIR);
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
		g_autofree char *model = kvc_model_path_format(scope);
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
		g_autoptr(KvcKeyScope) scope = kvc_rank_parse(model, rank, NULL);
		if (!scope)
			continue;
		accepted++;
		assert_formats(scope, model, rank);
	}
	assert_true(accepted > ROUNDS / 100);
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
		char *path = kvc_model_path_format(scope);
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
		cmocka_unit_test(test_model_encodings),
		cmocka_unit_test(test_control_directory_is_encoded_first_only),
		cmocka_unit_test(test_rank_spellings),
		cmocka_unit_test(test_other_rank_spellings_are_refused),
		cmocka_unit_test(test_other_model_spellings_are_refused),
		cmocka_unit_test(test_every_scope_comes_back),
		cmocka_unit_test(test_every_accepted_path_comes_back),
		cmocka_unit_test(test_models_do_not_meet),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
