/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kvcache/key-codec.h"

#define HASH "9f86d081"
#define RANK "0x01000100"

static unsigned
get_seed(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();

	print_message("KVC_TEST_SEED=%u\n", seed);
	return seed;
}

static KvcObjectKey *
make_key(const char *model, uint32_t rank, uint32_t group, const char *hash, const char *salt)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(model, rank, group, salt, NULL);
	uint8_t bytes[KVC_CHUNK_HASH_MAX_BYTES];
	KvcObjectKey *key;

	assert_non_null(scope);
	assert_true(strlen(hash) <= 2 * sizeof(bytes));
	assert_true(kvc_hex_decode(hash, strlen(hash), bytes));
	key = kvc_object_key_new(scope, KVC_SPACE_CHUNK, bytes, strlen(hash) / 2, NULL);
	assert_non_null(key);
	return key;
}

/* KEY is consumed. */
static void
assert_names(KvcObjectKey *key, const char *name)
{
	g_autoptr(KvcObjectKey) owned = key;
	g_autoptr(KvcObjectKey) parsed = kvc_lmcache_file_name_parse(name);

	assert_non_null(parsed);
	assert_true(kvc_object_key_equal(parsed, owned));
}

static void
assert_both_ways(KvcObjectKey *key, const char *name)
{
	g_autoptr(GError) error = NULL;
	g_autofree char *formatted = kvc_lmcache_file_name_format(key, &error);

	assert_null(error);
	assert_string_equal(formatted, name);
	assert_names(key, name);
}

static void
assert_format_refused(KvcObjectKey *key, int code)
{
	g_autoptr(KvcObjectKey) owned = key;
	g_autoptr(GError) error = NULL;

	assert_null(kvc_lmcache_file_name_format(owned, &error));
	assert_true(g_error_matches(error, KVC_KEY_ERROR, code));
}

static void
test_hex(void **state)
{
	uint8_t bytes[4] = {0};
	g_autofree char *text = kvc_hex_encode("\x00\x9f\xff", 3);
	g_autofree char *empty = kvc_hex_encode("", 0);

	assert_string_equal(text, "009fff");
	assert_string_equal(empty, "");
	assert_true(kvc_hex_decode("009fff", 6, bytes));
	assert_memory_equal(bytes, "\x00\x9f\xff", 3);
	assert_true(kvc_hex_decode("12zz", 2, bytes)); /* the length counts, not the end */
	assert_int_equal(bytes[0], 0x12);
	assert_true(kvc_hex_decode("", 0, bytes));
	assert_false(kvc_hex_decode("123", 3, bytes));
	assert_false(kvc_hex_decode("1G", 2, bytes));
	assert_false(kvc_hex_decode("AB", 2, bytes));
	assert_false(kvc_hex_decode(" 1", 2, bytes));
	assert_false(kvc_hex_decode("1\0", 2, bytes));
}

static void
test_names_of_lmcache(void **state)
{
	assert_both_ways(make_key("meta-llama/Llama-3.1-8B", 0x01000100, 0, HASH, NULL),
			 "meta-llama-SEP-Llama-3.1-8B@" RANK "@0@" HASH ".data");
	assert_both_ways(make_key("m", 0x01000100, 0x1f, HASH, "tenant-a"),
			 "m@" RANK "@1f@" HASH "@tenant-a.data");
	assert_both_ways(make_key("/models/m", 0xffffffff, 0xfffffff, HASH "00", NULL),
			 "-SEP-models-SEP-m@0xffffffff@fffffff@" HASH "00.data");
	assert_both_ways(make_key("m", 0, 0xffffffff, HASH, "s"),
			 "m@0x00000000@ffffffff@" HASH "@s.data");
	/* Salts that look like other fields. */
	assert_both_ways(make_key("m", 0, 0, HASH, HASH), "m@0x00000000@0@" HASH "@" HASH ".data");
	assert_both_ways(make_key("m", 0, 0, HASH, "x.data"),
			 "m@0x00000000@0@" HASH "@x.data.data");
}

static void
test_names_without_group(void **state)
{
	assert_names(make_key("a/b", 0x01000100, 0, HASH, NULL), "a-SEP-b@" RANK "@" HASH ".data");
	/* Four fields: a third one of 8 or more hex digits and even length is the hash. */
	assert_names(make_key("m", 0x01000100, 0, HASH, "tenant"),
		     "m@" RANK "@" HASH "@tenant.data");
	assert_names(make_key("m", 0x01000100, 0, HASH, "deadbeef"),
		     "m@" RANK "@" HASH "@deadbeef.data");
	assert_names(make_key("m", 0x01000100, 0, "00000000", "t"), "m@" RANK "@00000000@t.data");
	assert_names(make_key("m", 0x01000100, 0xabcdef, HASH, NULL),
		     "m@" RANK "@abcdef@" HASH ".data");
	assert_names(make_key("m", 0x01000100, 0xabcdef1, HASH, NULL),
		     "m@" RANK "@abcdef1@" HASH ".data");
}

static void
test_other_names_are_not_ours(void **state)
{
	static const char *const names[] = {
		"",
		".data",
		"m@" RANK "@0@" HASH,
		"m@" RANK "@0@" HASH ".data.tmp",
		"m@" RANK "@0@" HASH ".Data",
		"@" RANK "@0@" HASH ".data",
		"m@" RANK ".data",
		"m@" HASH ".data",
		"m@" RANK "@0@" HASH "@s@t.data",
		"m@" RANK "@0@" HASH "@.data",
		"m@" RANK "@" HASH "@.data",
		"m@" RANK "@0@" HASH "@a\\b.data",
		"a/m@" RANK "@0@" HASH ".data",
		"m@" RANK "@0@" HASH "@a/b.data",
		"\xff@" RANK "@0@" HASH ".data",
		/* rank */
		"m@01000100@0@" HASH ".data",
		"m@0X01000100@0@" HASH ".data",
		"m@0x1000100@0@" HASH ".data",
		"m@0x001000100@0@" HASH ".data",
		"m@0x0100010A@0@" HASH ".data",
		"m@0x0100010g@0@" HASH ".data",
		"m@0x+1000100@0@" HASH ".data",
		"m@ 0x1000100@0@" HASH ".data",
		/* group */
		"m@" RANK "@@" HASH ".data",
		"m@" RANK "@00@" HASH ".data",
		"m@" RANK "@01@" HASH ".data",
		"m@" RANK "@F@" HASH ".data",
		"m@" RANK "@-1@" HASH ".data",
		"m@" RANK "@0x1@" HASH ".data",
		"m@" RANK "@100000000@" HASH ".data",
		"m@" RANK "@100000000@" HASH "@s.data",
		"m@" RANK "@00000001@" HASH "@s.data",
		/* hash */
		"m@" RANK "@0@.data",
		"m@" RANK "@0@9f86d0.data",
		"m@" RANK "@0@9f86d0811.data",
		"m@" RANK "@0@9F86D081.data",
		"m@" RANK "@0@9f86d08x.data",
		"m@" RANK "@9f86d0.data",
	};

	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		if (kvc_lmcache_file_name_parse(names[i]))
			fail_msg("accepted: %s", names[i]);
}

static void
test_hash_lengths(void **state)
{
	g_autofree char *longest = g_strnfill(2 * KVC_CHUNK_HASH_MAX_BYTES, 'a');
	g_autofree char *name = g_strdup_printf("m@" RANK "@0@%s.data", longest);
	g_autofree char *too_long = g_strdup_printf("m@" RANK "@0@%saa.data", longest);

	assert_both_ways(make_key("m", 0x01000100, 0, longest, NULL), name);
	assert_null(kvc_lmcache_file_name_parse(too_long));
}

static void
test_ambiguous_models_are_refused(void **state)
{
	assert_format_refused(make_key("a-SEP-b", 0, 0, HASH, NULL), EINVAL);
	assert_format_refused(make_key("-SEP-", 0, 0, HASH, NULL), EINVAL);
	/* No -SEP- in it, yet "x-SEP-SEP-y" reads back as x/SEP-y. */
	assert_format_refused(make_key("x-SEP/y", 0, 0, HASH, NULL), EINVAL);
	assert_both_ways(make_key("x/SEP-y", 0, 0, HASH, NULL),
			 "x-SEP-SEP-y@0x00000000@0@" HASH ".data");
	assert_both_ways(make_key("x-SEP", 0, 0, HASH, NULL), "x-SEP@0x00000000@0@" HASH ".data");
}

static void
test_ambiguous_groups_are_refused(void **state)
{
	assert_format_refused(make_key("m", 0, 0x10000000, HASH, NULL), EINVAL);
	assert_format_refused(make_key("m", 0, 0xffffffff, HASH, NULL), EINVAL);
	assert_both_ways(make_key("m", 0, 0x10000000, HASH, "s"),
			 "m@0x00000000@10000000@" HASH "@s.data");
}

static void
test_other_spaces_are_refused(void **state)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("m", 0, 0, NULL, NULL);
	g_autoptr(KvcKeyScope) plain = kvc_key_scope_new_plain("m", NULL);

	assert_format_refused(kvc_object_key_new(plain, KVC_SPACE_PLAIN, "file", 4, NULL), EINVAL);
	assert_format_refused(kvc_object_key_new(scope, KVC_SPACE_PREFIX, "pref", 4, NULL), EINVAL);
}

static void
test_names_fit_a_directory(void **state)
{
	size_t rest = strlen("@" RANK "@0@" HASH ".data");
	g_autofree char *model = g_strnfill(255 - rest, 'm');
	g_autofree char *longer = g_strconcat(model, "m", NULL);
	g_autofree char *name = g_strconcat(model, "@" RANK "@0@" HASH ".data", NULL);
	g_autofree char *long_name = g_strconcat(longer, "@" RANK "@0@" HASH ".data", NULL);

	assert_int_equal(strlen(name), 255);
	assert_both_ways(make_key(model, 0x01000100, 0, HASH, NULL), name);
	assert_format_refused(make_key(longer, 0x01000100, 0, HASH, NULL), ENAMETOOLONG);
	assert_null(kvc_lmcache_file_name_parse(long_name));
}

/* ---- Properties ---------------------------------------------------------------------------- */

/* 1 to MAX pieces of PIECES. */
static char *
random_text(GRand *rand, const char *const *pieces, int n_pieces, int max)
{
	GString *text = g_string_new(NULL);

	for (int i = g_rand_int_range(rand, 1, max + 1); i > 0; i--)
		g_string_append(text, pieces[g_rand_int_range(rand, 0, n_pieces)]);
	return g_string_free(text, FALSE);
}

static char *
random_hash(GRand *rand)
{
	uint8_t bytes[KVC_CHUNK_HASH_MAX_BYTES];
	int len = g_rand_int_range(rand, KVC_CHUNK_HASH_MIN_BYTES, KVC_CHUNK_HASH_MAX_BYTES + 1);

	if (g_rand_boolean(rand))
		len = KVC_CHUNK_HASH_MIN_BYTES;
	for (int i = 0; i < len; i++)
		bytes[i] = (uint8_t)g_rand_int(rand);
	return kvc_hex_encode(bytes, (size_t)len);
}

static KvcObjectKey *
random_key(GRand *rand)
{
	static const char *const model_pieces[] = {"/",	  "-SEP-", "-SEP",     "SEP-", "-",
						   "SEP", "a",	   "b",	       "--",   ".",
						   "0x",  "%",	   "\xc3\xa9", " "};
	static const char *const salt_pieces[] = {"a",	   "0",		 "deadbeef",	 ".data",
						  "-SEP-", "0x00000000", "\xe2\x82\xac", "-",
						  " ",	   "%2f"};
	g_autofree char *model = random_text(rand, model_pieces, G_N_ELEMENTS(model_pieces), 8);
	g_autofree char *salt = random_text(rand, salt_pieces, G_N_ELEMENTS(salt_pieces), 6);
	g_autofree char *hash = random_hash(rand);
	uint32_t group = g_rand_int(rand) >> g_rand_int_range(rand, 0, 32);
	uint32_t rank = g_rand_int(rand) >> g_rand_int_range(rand, 0, 32);

	return make_key(model, rank, group, hash, g_rand_boolean(rand) ? salt : NULL);
}

static void
test_random_keys_come_back(void **state)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(get_seed());
	int refused = 0, rounds = 20000;

	for (int i = 0; i < rounds; i++) {
		g_autoptr(KvcObjectKey) key = random_key(rand);
		g_autofree char *name = kvc_lmcache_file_name_format(key, NULL);
		g_autoptr(KvcObjectKey) parsed = NULL;

		if (!name) {
			refused++;
			continue;
		}
		parsed = kvc_lmcache_file_name_parse(name);
		if (!parsed || !kvc_object_key_equal(parsed, key))
			fail_msg("does not come back: %s", name);
	}
	assert_in_range(refused, 1, rounds - rounds / 4);
}

/* One byte changed, removed, doubled or cut off. */
static char *
mutate(GRand *rand, const char *name)
{
	static const char bytes[] = "@0x1aAfF-/.SEPdata\\ \xff";
	GString *text = g_string_new(name);
	gssize at = g_rand_int_range(rand, 0, (int)text->len);

	switch (g_rand_int_range(rand, 0, 4)) {
	case 0:
		text->str[at] = bytes[g_rand_int_range(rand, 0, sizeof(bytes) - 1)];
		break;
	case 1:
		g_string_erase(text, at, 1);
		break;
	case 2:
		g_string_insert_c(text, at, bytes[g_rand_int_range(rand, 0, sizeof(bytes) - 1)]);
		break;
	default:
		g_string_erase(text, at, g_rand_int_range(rand, 1, 12));
	}
	return g_string_free(text, FALSE);
}

/* The same name with the group that it lacks: after the second '@'. */
static char *
insert_group(const char *name)
{
	const char *at = strchr(strchr(name, '@') + 1, '@');

	return g_strdup_printf("%.*s@0%s", (int)(at - name), name, at);
}

/* Whatever is accepted is the one spelling of its key, or that without the group. */
static void
test_accepted_names_are_canonical(void **state)
{
	g_autoptr(GRand) rand = g_rand_new_with_seed(get_seed());
	int accepted = 0;

	for (int i = 0; i < 40000; i++) {
		g_autoptr(KvcObjectKey) key = random_key(rand);
		g_autofree char *name = kvc_lmcache_file_name_format(key, NULL);
		g_autofree char *mutant = name ? mutate(rand, name) : NULL;
		g_autoptr(KvcObjectKey) parsed =
			mutant ? kvc_lmcache_file_name_parse(mutant) : NULL;
		g_autofree char *formatted = NULL, *with_group = NULL;

		if (!parsed)
			continue;
		accepted++;
		formatted = kvc_lmcache_file_name_format(parsed, NULL);
		with_group = insert_group(mutant);
		if (!formatted && strlen(with_group) > 255)
			continue;
		assert_non_null(formatted);
		if (strcmp(formatted, mutant) && strcmp(formatted, with_group))
			fail_msg("not canonical: %s is %s", mutant, formatted);
	}
	assert_true(accepted > 1000);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_hex),
		cmocka_unit_test(test_names_of_lmcache),
		cmocka_unit_test(test_names_without_group),
		cmocka_unit_test(test_other_names_are_not_ours),
		cmocka_unit_test(test_hash_lengths),
		cmocka_unit_test(test_ambiguous_models_are_refused),
		cmocka_unit_test(test_ambiguous_groups_are_refused),
		cmocka_unit_test(test_other_spaces_are_refused),
		cmocka_unit_test(test_names_fit_a_directory),
		cmocka_unit_test(test_random_keys_come_back),
		cmocka_unit_test(test_accepted_names_are_canonical),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
