/* SPDX-License-Identifier: Apache-2.0 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "kvcache/key-codec.h"

static KvcObjectKey *
new_key(KvcKeyScope *scope, KvcSpace space, const void *name, size_t len)
{
	KvcObjectKey *key = scope ? kvc_object_key_new(scope, space, name, len, NULL) : NULL;

	assert_non_null(key);
	return key;
}

static KvcObjectKey *
new_ordinary(const char *model, const char *salt, KvcSpace space, const char *name)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(model, 0x01000100, 0x1f, salt, NULL);

	return new_key(scope, space, name, strlen(name));
}

static KvcObjectKey *
new_plain(const char *directory, const char *name)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(directory, NULL);

	return new_key(scope, KVC_SPACE_PLAIN, name, strlen(name));
}

/* KEY is consumed. */
static void
assert_text(KvcObjectKey *key, const char *text)
{
	g_autoptr(KvcObjectKey) owned = key;
	g_autofree char *serialized = kvc_object_key_serialize(key);
	g_autoptr(KvcObjectKey) back = kvc_object_key_deserialize(text);

	assert_string_equal(serialized, text);
	assert_non_null(back);
	assert_true(kvc_object_key_equal(back, key));
}

static void
test_one_line_for_each_space(void **state)
{
	assert_text(new_ordinary("org/m", NULL, KVC_SPACE_CHUNK, "\x01\x02\x03\xff"),
		    "kvc1:0:org/m:1000100:1f::010203ff");
	assert_text(new_ordinary("org/m", "tenant", KVC_SPACE_CHUNK, "\x01\x02\x03\xff"),
		    "kvc1:0:org/m:1000100:1f:tenant:010203ff");
	assert_text(new_ordinary("a:b c%d", "e:f", KVC_SPACE_PREFIX, "v:3\n"),
		    "kvc1:2:a%3Ab%20c%25d:1000100:1f:e%3Af:v%3A3%0A");
	assert_text(new_plain("", "file"), "kvc1:1::file");
	assert_text(new_plain("a/@01000100/b", "\x01\xff@:\x7f"),
		    "kvc1:1:a/@01000100/b:%01%FF@%3A%7F");
}

static void
test_other_texts_are_no_keys(void **state)
{
	static const char *const texts[] = {
		"",
		"kvc1",
		"kvc1:",
		"kvc1:1",
		"kvc1:1:a",
		"kvc1:1:a:",
		"kvc1:1:a:b:",
		"kvc1:1:a:b\n",
		" kvc1:1:a:b",
		"kvc2:1:a:b",
		"KVC1:1:a:b",
		"kvc1:0:a:b",
		"kvc1:2:a:b",
		"kvc1:01:a:b",
		"kvc1:3:m:0:0::n",
		/* a name or directory that is none */
		"kvc1:1:a/:b",
		"kvc1:1:/a:b",
		"kvc1:1:a/../c:b",
		"kvc1:1:a:..",
		"kvc1:1:a:b/c",
		"kvc1:1:a:b%2Fc",
		"kvc1:1:a:b%00",
		/* other spellings of a key */
		"kvc1:1:a:%62",
		"kvc1:1:a:%3a",
		"kvc1:1:a:b c",
		"kvc1:1:a:%",
		"kvc1:1:a:%4",
		"kvc1:1:a:%zz",
		"kvc1:1:a:\xff",
		/* ordinary keys */
		"kvc1:1:m:0:0::6e616d65",
		"kvc1:0:m:0:0::name",
		"kvc1:0:m:0:0::010203",
		"kvc1:0:m:0:0::01020304:",
		"kvc1:0:m:0:0:01020304",
		"kvc1:0:m:0:0::0102030A",
		"kvc1:0:m:00:0::01020304",
		"kvc1:0:m:0x1:0::01020304",
		"kvc1:0:m:A:0::01020304",
		"kvc1:0:m::0::01020304",
		"kvc1:0:m:-1:0::01020304",
		"kvc1:0:m:100000000:0::01020304",
		"kvc1:0:m:0: 1::01020304",
		"kvc1:0:m@n:0:0::01020304",
		"kvc1:0::0:0::01020304",
		"kvc1:0:%FF:0:0::01020304",
		"kvc1:0:m:0:0:a/b:01020304",
	};

	for (size_t i = 0; i < G_N_ELEMENTS(texts); i++)
		if (kvc_object_key_deserialize(texts[i]))
			fail_msg("accepted: %s", texts[i]);
}

/* Digests are names in stores that outlive this program: the value must never change. */
static void
test_digest_is_sha256_of_the_line(void **state)
{
	g_autoptr(KvcObjectKey) key = new_plain("", "file");
	g_autoptr(KvcObjectKey) other = new_plain("", "File");
	g_autofree char *digest = kvc_object_key_digest(key);
	g_autofree char *other_digest = kvc_object_key_digest(other);

	assert_string_equal(digest,
			    "738d6648ae70f9f51b7572082e1f40dd5ab3cf4cd4bbbfba6169823d37634588");
	assert_string_not_equal(digest, other_digest);
}

/* ---- Properties ---------------------------------------------------------------------------- */

static GRand *
new_rand(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();

	print_message("KVC_TEST_SEED=%u\n", seed);
	return g_rand_new_with_seed(seed);
}

/* 1 to MAX bytes without NUL and '/', and not "." or "..". */
static char *
random_name(GRand *rand, int max)
{
	int len = g_rand_int_range(rand, 1, max + 1);
	char *name = g_malloc0((size_t)len + 1);

	for (int i = 0; i < len; i++) {
		name[i] = (char)g_rand_int_range(rand, 1, 256);
		if (name[i] == '/' || name[i] == '.')
			name[i] = ':';
	}
	return name;
}

static KvcObjectKey *
random_plain_key(GRand *rand)
{
	g_autoptr(GString) directory = g_string_new(NULL);
	g_autofree char *name = random_name(rand, g_rand_boolean(rand) ? KVC_NAME_MAX_BYTES : 4);

	for (int i = g_rand_int_range(rand, 0, 4); i > 0; i--) {
		g_autofree char *component = random_name(rand, 6);

		g_string_append_printf(directory, "%s%s", directory->len ? "/" : "", component);
	}
	return new_plain(directory->str, name);
}

static KvcObjectKey *
random_ordinary_key(GRand *rand)
{
	static const char *const texts[] = {"m", "a:b", "%3A", "\xc3\xa9", "a b", "\n", "0", "::"};
	const char *model = texts[g_rand_int_range(rand, 0, G_N_ELEMENTS(texts))];
	const char *salt = texts[g_rand_int_range(rand, 0, G_N_ELEMENTS(texts))];
	uint32_t rank = g_rand_int(rand) >> g_rand_int_range(rand, 0, 32);
	uint32_t group = g_rand_int(rand) >> g_rand_int_range(rand, 0, 32);
	g_autoptr(KvcKeyScope) scope =
		kvc_key_scope_new(model, rank, group, g_rand_boolean(rand) ? salt : NULL, NULL);
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];

	if (g_rand_boolean(rand)) {
		g_autofree char *name = random_name(rand, 8);

		return new_key(scope, KVC_SPACE_PREFIX, name, strlen(name));
	}
	for (size_t i = 0; i < sizeof(hash); i++)
		hash[i] = (uint8_t)g_rand_int(rand);
	return new_key(scope, KVC_SPACE_CHUNK, hash,
		       (size_t)g_rand_int_range(rand, KVC_CHUNK_HASH_MIN_BYTES, sizeof(hash) + 1));
}

static KvcObjectKey *
random_key(GRand *rand)
{
	return g_rand_boolean(rand) ? random_plain_key(rand) : random_ordinary_key(rand);
}

static void
test_random_keys_come_back(void **state)
{
	g_autoptr(GRand) rand = new_rand();

	for (int i = 0; i < 20000; i++) {
		g_autoptr(KvcObjectKey) key = random_key(rand);
		g_autofree char *text = kvc_object_key_serialize(key);
		g_autoptr(KvcObjectKey) back = kvc_object_key_deserialize(text);

		for (const char *c = text; *c; c++)
			assert_in_range(*c, '!', '~');
		if (!back || !kvc_object_key_equal(back, key))
			fail_msg("does not come back: %s", text);
	}
}

static char *
mutate(GRand *rand, const char *text)
{
	static const char bytes[] = ":%012afAF/.kvc \n\xff";
	GString *mutated = g_string_new(text);
	gssize at = g_rand_int_range(rand, 0, (int)mutated->len);
	char byte = bytes[g_rand_int_range(rand, 0, sizeof(bytes) - 1)];

	switch (g_rand_int_range(rand, 0, 3)) {
	case 0:
		mutated->str[at] = byte;
		break;
	case 1:
		g_string_erase(mutated, at, 1);
		break;
	default:
		g_string_insert_c(mutated, at, byte);
	}
	return g_string_free(mutated, FALSE);
}

/* A text that is accepted is the one of its key: no key has two digests. */
static void
test_each_key_has_one_text(void **state)
{
	g_autoptr(GRand) rand = new_rand();
	int accepted = 0;

	for (int i = 0; i < 20000; i++) {
		g_autoptr(KvcObjectKey) key = random_ordinary_key(rand);
		g_autofree char *text = kvc_object_key_serialize(key);
		g_autofree char *mutated = mutate(rand, text);
		g_autoptr(KvcObjectKey) other = kvc_object_key_deserialize(mutated);

		if (!other)
			continue;
		accepted++;
		g_autofree char *back = kvc_object_key_serialize(other);
		assert_string_equal(back, mutated);
		assert_int_equal(kvc_object_key_equal(other, key), !strcmp(mutated, text));
	}
	assert_in_range(accepted, 100, 19900);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_one_line_for_each_space),
		cmocka_unit_test(test_other_texts_are_no_keys),
		cmocka_unit_test(test_digest_is_sha256_of_the_line),
		cmocka_unit_test(test_random_keys_come_back),
		cmocka_unit_test(test_each_key_has_one_text),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
