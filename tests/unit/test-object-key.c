/* SPDX-License-Identifier: Apache-2.0 */

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

#include "kvcache/object-key.h"

#define MODEL "meta-llama/Llama-3.1-8B"

static KvcKeyScope *
new_scope(const char *model, uint32_t rank, uint32_t group, const char *salt)
{
	g_autoptr(GError) error = NULL;
	KvcKeyScope *scope = kvc_key_scope_new(model, rank, group, salt, &error);

	assert_null(error);
	assert_non_null(scope);
	return scope;
}

static KvcObjectKey *
new_key(KvcKeyScope *scope, KvcSpace space, const void *hash, size_t len)
{
	g_autoptr(GError) error = NULL;
	KvcObjectKey *key = kvc_object_key_new(scope, space, hash, len, &error);

	assert_null(error);
	assert_non_null(key);
	return key;
}

static KvcKeyScope *
new_plain_scope(const char *directory)
{
	g_autoptr(GError) error = NULL;
	KvcKeyScope *scope = kvc_key_scope_new_plain(directory, &error);

	assert_null(error);
	assert_non_null(scope);
	return scope;
}

/* A scope that has keys of SPACE. */
static KvcKeyScope *
new_scope_for(KvcSpace space)
{
	return space == KVC_SPACE_PLAIN ? new_plain_scope("dir") : new_scope(MODEL, 0, 0, NULL);
}

static void
assert_scope_refused(const char *model, const char *salt, const char *quoted)
{
	g_autoptr(GError) error = NULL;

	assert_null(kvc_key_scope_new(model, 0, 0, salt, &error));
	assert_true(g_error_matches(error, KVC_KEY_ERROR, EINVAL));
	assert_non_null(strstr(error->message, quoted));
	/* A NULL error is fine, too. */
	assert_null(kvc_key_scope_new(model, 0, 0, salt, NULL));
}

static void
assert_key_refused(KvcSpace space, const void *hash, size_t len, int code)
{
	g_autoptr(KvcKeyScope) scope = new_scope_for(space);
	g_autoptr(GError) error = NULL;

	assert_null(kvc_object_key_new(scope, space, hash, len, &error));
	assert_true(g_error_matches(error, KVC_KEY_ERROR, code));
}

static void
test_equal_scopes_are_the_same(void **state)
{
	g_autoptr(KvcKeyScope) a = new_scope(MODEL, 0x01000100, 3, "tenant");
	g_autofree char *model = g_strdup(MODEL);
	g_autoptr(KvcKeyScope) b = new_scope(model, 0x01000100, 3, "tenant");
	g_autoptr(KvcKeyScope) no_salt = new_scope(MODEL, 0x01000100, 3, NULL);
	g_autoptr(KvcKeyScope) empty_salt = new_scope(MODEL, 0x01000100, 3, "");

	assert_ptr_equal(a, b);
	assert_ptr_equal(no_salt, empty_salt);
	assert_string_equal(no_salt->cache_salt, "");
	assert_string_equal(a->model_name, MODEL);
	assert_string_equal(a->cache_salt, "tenant");
	assert_int_equal(a->kv_rank, 0x01000100);
	assert_int_equal(a->object_group_id, 3);
	assert_true(a->model_name != model);
}

static void
test_every_field_tells_scopes_apart(void **state)
{
	KvcKeyScope *scopes[] = {
		new_scope("ab", 1, 2, "c"),
		new_scope("a", 1, 2, "bc"), /* the same letters, split elsewhere */
		new_scope("abc", 1, 2, NULL),
		new_scope("ab", 2, 1, "c"),
		new_scope("ab", 1, 3, "c"),
		new_scope("ab", 3, 2, "c"),
		new_scope("ab", 1, 2, "d"),
		new_scope("ac", 1, 2, "c"),
	};

	for (size_t i = 0; i < G_N_ELEMENTS(scopes); i++)
		for (size_t j = 0; j < i; j++)
			assert_ptr_not_equal(scopes[i], scopes[j]);
	for (size_t i = 0; i < G_N_ELEMENTS(scopes); i++)
		kvc_key_scope_unref(scopes[i]);
}

static void
test_scope_checks_its_fields(void **state)
{
	g_autofree char *long_salt = g_strnfill(KVC_SALT_MAX_CHARS + 1, 's');

	assert_scope_refused("", NULL, "model name \"\" is empty");
	assert_scope_refused("a@b", NULL, "\"a@b\" contains '@'");
	assert_scope_refused("\xff", NULL, "\"\\377\" is not UTF-8");
	assert_scope_refused("m", "a@b", "\"a@b\"");
	assert_scope_refused("m", "a/b", "\"a/b\"");
	assert_scope_refused("m", "a\\b", "'\\'");
	assert_scope_refused("m", "\xc3", "\"\\303\" is not UTF-8");
	assert_scope_refused("m", long_salt, "129 characters, at most 128");
}

static void
test_salt_is_counted_in_characters(void **state)
{
	g_autoptr(GString) salt = g_string_new(NULL);
	KvcKeyScope *scope;

	for (int i = 0; i < KVC_SALT_MAX_CHARS; i++)
		g_string_append(salt, "\xe2\x82\xac"); /* a euro sign: three bytes */
	scope = new_scope("m", 0, 0, salt->str);
	assert_int_equal(strlen(scope->cache_salt), 3 * KVC_SALT_MAX_CHARS);
	kvc_key_scope_unref(scope);
	g_string_append(salt, "\xe2\x82\xac");
	assert_scope_refused("m", salt->str, "129 characters");
}

static void
test_key_checks_its_name(void **state)
{
	g_autofree char *name = g_strnfill(KVC_NAME_MAX_BYTES + 1, 'n');
	g_autoptr(KvcKeyScope) scope = new_scope(MODEL, 0, 0, NULL);
	g_autoptr(KvcKeyScope) plain_scope = new_plain_scope("");

	assert_key_refused(KVC_SPACE_CHUNK, "abc", 3, EINVAL);
	assert_key_refused(KVC_SPACE_CHUNK, name, KVC_CHUNK_HASH_MAX_BYTES + 1, EINVAL);
	assert_key_refused(KVC_SPACE_PLAIN, name, KVC_NAME_MAX_BYTES + 1, ENAMETOOLONG);
	assert_key_refused(KVC_SPACE_PLAIN, "", 0, EINVAL);
	assert_key_refused(KVC_SPACE_PLAIN, NULL, 0, EINVAL);
	assert_key_refused(KVC_SPACE_PLAIN, ".", 1, EINVAL);
	assert_key_refused(KVC_SPACE_PREFIX, "..", 2, EINVAL);
	assert_key_refused(KVC_SPACE_PREFIX, "a/b", 3, EINVAL);
	assert_key_refused(KVC_SPACE_PLAIN, "a\0b", 3, EINVAL);
	assert_key_refused((KvcSpace)3, "abcd", 4, EINVAL);

	kvc_object_key_unref(new_key(scope, KVC_SPACE_CHUNK, "\0/.\0", 4));
	kvc_object_key_unref(new_key(scope, KVC_SPACE_CHUNK, name, KVC_CHUNK_HASH_MAX_BYTES));
	kvc_object_key_unref(new_key(plain_scope, KVC_SPACE_PLAIN, name, KVC_NAME_MAX_BYTES));
	kvc_object_key_unref(new_key(plain_scope, KVC_SPACE_PLAIN, "...", 3));
	kvc_object_key_unref(new_key(plain_scope, KVC_SPACE_PLAIN, "\xff", 1));
}

static void
test_spaces_belong_to_scopes(void **state)
{
	g_autoptr(KvcKeyScope) ordinary = new_scope(MODEL, 0, 0, NULL);
	g_autoptr(KvcKeyScope) plain = new_plain_scope("dir");
	g_autoptr(GError) error = NULL;

	assert_null(kvc_object_key_new(ordinary, KVC_SPACE_PLAIN, "abcd", 4, &error));
	assert_true(g_error_matches(error, KVC_KEY_ERROR, EINVAL));
	assert_non_null(strstr(error->message, "space 1 in an ordinary scope"));
	assert_null(kvc_object_key_new(plain, KVC_SPACE_CHUNK, "abcd", 4, NULL));
	assert_null(kvc_object_key_new(plain, KVC_SPACE_PREFIX, "abcd", 4, NULL));
}

static void
test_equality_and_hash_cover_every_field(void **state)
{
	g_autoptr(KvcKeyScope) scope = new_scope(MODEL, 0, 0, NULL);
	g_autoptr(KvcKeyScope) other_scope = new_scope(MODEL, 1, 0, NULL);
	g_autoptr(KvcKeyScope) plain_scope = new_plain_scope(MODEL);
	g_autoptr(KvcObjectKey) key = new_key(scope, KVC_SPACE_PREFIX, "abcd", 4);
	g_autoptr(KvcObjectKey) same = new_key(scope, KVC_SPACE_PREFIX, "abcd", 4);
	KvcObjectKey *others[] = {
		new_key(scope, KVC_SPACE_CHUNK, "abcd", 4),
		new_key(plain_scope, KVC_SPACE_PLAIN, "abcd", 4),
		new_key(scope, KVC_SPACE_PREFIX, "abce", 4),
		new_key(scope, KVC_SPACE_PREFIX, "abc", 3),
		new_key(other_scope, KVC_SPACE_PREFIX, "abcd", 4),
	};

	assert_ptr_not_equal(key, same);
	assert_true(kvc_object_key_equal(key, same));
	assert_true(kvc_object_key_equal(key, key));
	assert_true(key->hash == same->hash);
	assert_int_equal(kvc_object_key_hash(key), kvc_object_key_hash(same));
	for (size_t i = 0; i < G_N_ELEMENTS(others); i++) {
		assert_false(kvc_object_key_equal(key, others[i]));
		assert_false(key->hash == others[i]->hash);
		/* Were the hashes equal by chance, the fields would still tell. */
		others[i]->hash = key->hash;
		assert_false(kvc_object_key_equal(key, others[i]));
		kvc_object_key_unref(others[i]);
	}
}

/* Zeros of another length are another hash; trailing ones must not be lost in padding. */
static void
test_hash_covers_the_length(void **state)
{
	static const uint8_t zeros[KVC_CHUNK_HASH_MAX_BYTES];
	g_autoptr(KvcKeyScope) scope = new_scope(MODEL, 0, 0, NULL);
	uint64_t hashes[KVC_CHUNK_HASH_MAX_BYTES + 1];

	for (size_t len = KVC_CHUNK_HASH_MIN_BYTES; len <= KVC_CHUNK_HASH_MAX_BYTES; len++) {
		g_autoptr(KvcObjectKey) key = new_key(scope, KVC_SPACE_CHUNK, zeros, len);

		hashes[len] = key->hash;
		for (size_t shorter = KVC_CHUNK_HASH_MIN_BYTES; shorter < len; shorter++)
			assert_false(hashes[shorter] == hashes[len]);
	}
}

/* The low and the high bits choose tables and places in them: both must spread counting names. */
static void
test_hash_spreads(void **state)
{
	enum { KEYS = 64 * 200 };
	g_autoptr(KvcKeyScope) scope = new_scope(MODEL, 0, 0, NULL);
	unsigned low[64] = {0}, high[64] = {0};

	for (uint32_t i = 0; i < KEYS; i++) {
		g_autoptr(KvcObjectKey) key = new_key(scope, KVC_SPACE_CHUNK, &i, sizeof(i));

		low[key->hash % 64]++;
		high[key->hash >> 58]++;
	}
	/* 200 expected each, standard deviation 14. */
	for (int i = 0; i < 64; i++) {
		assert_in_range(low[i], 100, 300);
		assert_in_range(high[i], 100, 300);
	}
}

static void
test_key_keeps_its_scope(void **state)
{
	KvcKeyScope *scope = new_scope(MODEL, 7, 0, "t");
	KvcObjectKey *key = new_key(scope, KVC_SPACE_CHUNK, "abcd", 4);

	kvc_key_scope_unref(scope);
	assert_ptr_equal(kvc_object_key_ref(key), key);
	kvc_object_key_unref(key);
	assert_string_equal(key->scope->model_name, MODEL);
	assert_int_equal(key->scope->kv_rank, 7);
	kvc_object_key_unref(key);
	kvc_object_key_unref(NULL);
	kvc_key_scope_unref(NULL);
}

static void
assert_spelling(KvcKeyScope *scope, KvcSpace space, const char *name, const char *expected)
{
	g_autoptr(KvcObjectKey) key = new_key(scope, space, name, strlen(name));
	g_autofree char *text = kvc_object_key_to_string(key);

	assert_string_equal(text, expected);
}

static void
test_to_string_fits_one_line(void **state)
{
	g_autoptr(KvcKeyScope) simple = new_scope(MODEL, 0x01000100, 0, NULL);
	g_autoptr(KvcKeyScope) directory = new_plain_scope("a\nb/@01000100");
	g_autoptr(KvcKeyScope) root = new_plain_scope("");
	g_autoptr(KvcKeyScope) salted = new_scope("a\nb\xc3\xa9", 0xffffffff, 0x1f, "t");

	assert_spelling(simple, KVC_SPACE_CHUNK, "\x9f\x01\x02\x03", MODEL "@01000100@0/9f010203");
	assert_spelling(directory, KVC_SPACE_PLAIN, "n\t\xff", "a\\nb/@01000100/n\\t\\377");
	assert_spelling(root, KVC_SPACE_PLAIN, "n", "n");
	assert_spelling(salted, KVC_SPACE_PREFIX, "p", "prefix:a\\nb\xc3\xa9@ffffffff@1f@t/p");
}

static void
test_hash_hex(void **state)
{
	g_autoptr(KvcKeyScope) scope = new_scope(MODEL, 0, 0, NULL);
	g_autoptr(KvcObjectKey) key = new_key(scope, KVC_SPACE_CHUNK, "\x00\x0f\xf0\xff", 4);
	g_autofree char *hex = kvc_object_key_hash_hex(key);

	assert_string_equal(hex, "000ff0ff");
}

/* ---- Threads ------------------------------------------------------------------------------- */

enum { THREADS = 8, ROUNDS = 20000, RACE_SCOPES = 3 };

/* Returns NULL, or a text that says what was wrong (cmocka's asserts are for the main thread). */
static void *
race_scopes(void *user)
{
	for (uint32_t round = 0; round < ROUNDS; round++) {
		uint32_t rank = round % RACE_SCOPES;
		KvcKeyScope *a = kvc_key_scope_new("race", rank, 0, "salt", NULL);
		KvcKeyScope *b = kvc_key_scope_new("race", rank, 0, "salt", NULL);
		KvcObjectKey *key = kvc_object_key_new(a, KVC_SPACE_CHUNK, &round, 4, NULL);

		if (a != b)
			return "two live scopes with equal fields";
		kvc_key_scope_unref(a);
		kvc_key_scope_unref(b);
		if (key->scope->kv_rank != rank || strcmp(key->scope->cache_salt, "salt"))
			return "a scope changed under its key";
		kvc_object_key_unref(key);
	}
	return NULL;
}

/* Counts go to 0 and scopes come back all the time: meant for the sanitizers, too. */
static void
test_interning_is_free_of_races(void **state)
{
	pthread_t threads[THREADS];
	void *problem;

	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, race_scopes, NULL), 0);
	for (int i = 0; i < THREADS; i++) {
		pthread_join(threads[i], &problem);
		if (problem)
			fail_msg("%s", (char *)problem);
	}
}

static void
test_plain_scopes(void **state)
{
	g_autoptr(KvcKeyScope) root = kvc_key_scope_new_plain("", NULL);
	g_autoptr(KvcKeyScope) dir = kvc_key_scope_new_plain("a/b@c/\xff", NULL);
	g_autoptr(KvcKeyScope) same = kvc_key_scope_new_plain("a/b@c/\xff", NULL);
	g_autoptr(KvcKeyScope) plain = kvc_key_scope_new_plain("m", NULL);
	g_autoptr(KvcKeyScope) model = kvc_key_scope_new("m", 0, 0, NULL, NULL);
	static const char *const refused[] = {"/", "/a", "a/", "a//b", ".", "..", "a/./b", "a/.."};

	assert_non_null(root);
	assert_true(dir->is_plain);
	assert_ptr_equal(dir, same);
	assert_ptr_not_equal(plain, model);
	for (size_t i = 0; i < G_N_ELEMENTS(refused); i++)
		assert_null(kvc_key_scope_new_plain(refused[i], NULL));
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_plain_scopes),
		cmocka_unit_test(test_equal_scopes_are_the_same),
		cmocka_unit_test(test_every_field_tells_scopes_apart),
		cmocka_unit_test(test_scope_checks_its_fields),
		cmocka_unit_test(test_salt_is_counted_in_characters),
		cmocka_unit_test(test_key_checks_its_name),
		cmocka_unit_test(test_spaces_belong_to_scopes),
		cmocka_unit_test(test_equality_and_hash_cover_every_field),
		cmocka_unit_test(test_hash_covers_the_length),
		cmocka_unit_test(test_hash_spreads),
		cmocka_unit_test(test_key_keeps_its_scope),
		cmocka_unit_test(test_to_string_fits_one_line),
		cmocka_unit_test(test_hash_hex),
		cmocka_unit_test(test_interning_is_free_of_races),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
