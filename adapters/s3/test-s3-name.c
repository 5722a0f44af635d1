/* SPDX-License-Identifier: Apache-2.0 */

/* Names in the bucket, and what a store says in XML. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/key-codec.h>

#include "s3.h"

static void
assert_name(const char *store_name, const char *want)
{
	g_autofree char *name = s3_name_format("", store_name);
	g_autofree char *prefixed = s3_name_format("a b/", store_name);
	g_autofree char *back = s3_name_parse("", name),
			*back_too = s3_name_parse("a b/", prefixed);

	if (want)
		assert_string_equal(name, want);
	assert_string_equal(back, store_name);
	assert_string_equal(back_too, store_name);
	assert_true(g_utf8_validate(name, -1, NULL));
	assert_null(s3_name_parse("other/", name));
}

static void
test_names(void **state)
{
	g_autofree char *longest = g_strnfill(200, 'x'), *too_long = g_strnfill(450, '%');

	assert_name("org/model@01000100@0@9f86d081", "org/model@01000100@0@9f86d081");
	assert_name("kvcfs:1:a b/c%41+", "kvcfs:1:a b/c%41+");
	assert_name(longest, longest);
	assert_name("a//b", "kvcfs:e:a%2F%2Fb");
	assert_name("a/../b", "kvcfs:e:a%2F%2E%2E%2Fb");
	assert_name("a/", "kvcfs:e:a%2F");
	assert_name("tab\t", "kvcfs:e:tab%09");
	assert_name("\xff", "kvcfs:e:%FF");
	assert_name("kvcfs:e:x", "kvcfs:e:kvcfs:e:x");
	assert_name(too_long, NULL);
}

/* Of one key there is one spelling; the others are somebody else's. */
static void
test_other_spellings(void **state)
{
	static const char *const names[] = {
		"kvcfs:e:a", "kvcfs:e:a%2f%2fb", "kvcfs:e:%", "kvcfs:e:a%2F/%2Fb", "a//b",
		"a\t",	     "kvcfs:e:%00"};

	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		assert_null(s3_name_parse("", names[i]));
}

/* The names of a scope begin with one of its prefixes. */
static void
test_prefixes(void **state)
{
	static const char *const models[] = {"org/model", "a//b", "x\ty"};

	for (size_t i = 0; i < G_N_ELEMENTS(models); i++) {
		g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(models[i], 7, 1, "salt", NULL);
		g_autoptr(KvcObjectKey) key =
			kvc_object_key_new(scope, KVC_SPACE_CHUNK, "abcdefgh", 8, NULL);
		g_autofree char *store_name = kvc_store_name_format(key);
		g_autofree char *name = s3_name_format("p/", store_name);
		g_autoptr(GPtrArray) prefixes = s3_name_prefixes("p/", scope);
		bool has_prefix = false;

		for (guint j = 0; j < prefixes->len; j++)
			has_prefix = has_prefix || g_str_has_prefix(name, prefixes->pdata[j]);
		assert_true(has_prefix);
	}
}

static void
test_page(void **state)
{
	static const char text[] =
		"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n"
		"<ListBucketResult xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\">"
		"<Name>bucket</Name><Prefix/><KeyCount>2</KeyCount><MaxKeys>1000</MaxKeys>"
		"<EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>"
		"<Contents><Key>a+b%2Bc%40d</Key><LastModified>2009-10-12T17:50:30.500Z"
		"</LastModified><ETag>&quot;fba9&quot;</ETag><Size>434234</Size>"
		"<Owner><ID>1</ID><DisplayName>Size</DisplayName></Owner></Contents>"
		"<Contents><Key>z</Key><Size>0</Size></Contents>"
		"</ListBucketResult>";
	static const char plain[] = "<ListBucketResult><Contents><Key>a+b%20&amp;</Key><Size>1"
				    "</Size></Contents></ListBucketResult>";
	S3Page page;

	assert_true(s3_page_parse(text, strlen(text), &page));
	assert_true(page.is_truncated);
	assert_int_equal(page.entries->len, 2);
	const S3Entry *entry = &g_array_index(page.entries, S3Entry, 0);
	assert_string_equal(entry->name, "a b+c@d");
	assert_int_equal(entry->bytes, 434234);
	assert_int_equal(entry->mtime_ns, INT64_C(1255369830500000000));
	s3_page_clear(&page);
	/* A store that does not encode them does not say that it does. */
	assert_true(s3_page_parse(plain, strlen(plain), &page));
	assert_string_equal(g_array_index(page.entries, S3Entry, 0).name, "a+b%20&");
	s3_page_clear(&page);
	for (size_t len = 0; len < strlen(text); len++)
		assert_false(s3_page_parse(text, len, &page));
}

static void
test_error(void **state)
{
	static const char text[] = "<?xml version=\"1.0\"?><Error><Code>NoSuchKey</Code><Message>"
				   "The key &lt;x&gt;</Message><Resource>/x</Resource></Error>";
	g_autofree char *code = NULL, *message = NULL;

	assert_true(s3_error_parse(text, strlen(text), &code, &message));
	assert_string_equal(code, "NoSuchKey");
	assert_string_equal(message, "The key <x>");
	for (size_t len = 0; len < strlen(text); len++)
		assert_false(s3_error_parse(text, len, &code, &message));
	assert_false(s3_error_parse("<Error></Error>", 15, &code, &message));
}

int
main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_names),	 cmocka_unit_test(test_other_spellings),
		cmocka_unit_test(test_prefixes), cmocka_unit_test(test_page),
		cmocka_unit_test(test_error),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
