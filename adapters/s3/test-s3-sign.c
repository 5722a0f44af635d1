/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Signatures that AWS has published: the examples of the S3 API reference ("Signature Calculations
 * for the Authorization Header: Transferring Payload in a Single Chunk"), and those of its test
 * suite for Signature Version 4 whose requests S3 could get too.
 */

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "s3-sign.h"

#define EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

static const S3Signer s3 = {
	.access_key = "AKIAIOSFODNN7EXAMPLE",
	.secret_key = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
	.region = "us-east-1",
	.service = "s3",
	.date = "20130524T000000Z",
};
static const S3Signer suite = {
	.access_key = "AKIDEXAMPLE",
	.secret_key = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY",
	.region = "us-east-1",
	.service = "service",
	.date = "20150830T123600Z",
};

#define S3_HOST                                                                                    \
	{                                                                                          \
		"host", "examplebucket.s3.amazonaws.com"                                           \
	}
#define S3_DATE                                                                                    \
	{                                                                                          \
		"x-amz-date", "20130524T000000Z"                                                   \
	}
#define SUITE_HOST                                                                                 \
	{                                                                                          \
		"host", "example.amazonaws.com"                                                    \
	}
#define SUITE_DATE                                                                                 \
	{                                                                                          \
		"x-amz-date", "20150830T123600Z"                                                   \
	}

typedef struct Vector {
	const S3Signer *signer;
	const char *method, *path, *query, *payload_hash;
	S3Header headers[8]; /* a NULL name ends them */
	const char *signed_headers, *signature;
} Vector;

static const Vector vectors[] = {
	{&s3,
	 "GET",
	 "/test.txt",
	 "",
	 EMPTY_HASH,
	 {S3_HOST, {"range", "bytes=0-9"}, {"x-amz-content-sha256", EMPTY_HASH}, S3_DATE},
	 "host;range;x-amz-content-sha256;x-amz-date",
	 "f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41"},
	{&s3,
	 "PUT",
	 "/test%24file.text",
	 "",
	 "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072",
	 {{"x-amz-storage-class", "REDUCED_REDUNDANCY"},
	  S3_DATE,
	  S3_HOST,
	  {"date", "Fri, 24 May 2013 00:00:00 GMT"},
	  {"x-amz-content-sha256",
	   "44ce7dd67c959e0d3524ffac1771dfbba87d2b6b4b4e99e42034a8b803f8b072"}},
	 "date;host;x-amz-content-sha256;x-amz-date;x-amz-storage-class",
	 "98ad721746da40c64f1a55b78f14c238d841ea1380cd77a1b5971af0ece108bd"},
	{&s3,
	 "GET",
	 "/",
	 "lifecycle=",
	 EMPTY_HASH,
	 {S3_HOST, {"x-amz-content-sha256", EMPTY_HASH}, S3_DATE},
	 "host;x-amz-content-sha256;x-amz-date",
	 "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"},
	{&s3,
	 "GET",
	 "/",
	 "max-keys=2&prefix=J",
	 EMPTY_HASH,
	 {S3_HOST, {"x-amz-content-sha256", EMPTY_HASH}, S3_DATE},
	 "host;x-amz-content-sha256;x-amz-date",
	 "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"},
	/* get-vanilla */
	{&suite,
	 "GET",
	 "/",
	 "",
	 EMPTY_HASH,
	 {SUITE_HOST, SUITE_DATE},
	 "host;x-amz-date",
	 "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"},
	/* get-vanilla-query-order-key-case */
	{&suite,
	 "GET",
	 "/",
	 "Param1=value1&Param2=value2",
	 EMPTY_HASH,
	 {SUITE_HOST, SUITE_DATE},
	 "host;x-amz-date",
	 "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"},
	/* get-vanilla-query-unreserved */
	{&suite,
	 "GET",
	 "/",
	 "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz="
	 "-._~0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz",
	 EMPTY_HASH,
	 {SUITE_HOST, SUITE_DATE},
	 "host;x-amz-date",
	 "9c3e54bfcdf0b19771a7f523ee5669cdf59bc7cc0884027167c21bb143a40197"},
	/* get-utf8 */
	{&suite,
	 "GET",
	 "/%E1%88%B4",
	 "",
	 EMPTY_HASH,
	 {SUITE_HOST, SUITE_DATE},
	 "host;x-amz-date",
	 "8318018e0b0f223aa2bbf98705b62bb787dc9c0e678f255a891fd03141be5d85"},
	/* get-header-value-trim */
	{&suite,
	 "GET",
	 "/",
	 "",
	 EMPTY_HASH,
	 {SUITE_HOST, {"my-header1", " value1"}, {"my-header2", " \"a   b   c\""}, SUITE_DATE},
	 "host;my-header1;my-header2;x-amz-date",
	 "acc3ed3afb60bb290fc8d2dd0098b9911fcaa05412b367055dee359757a9c736"},
	/* post-vanilla */
	{&suite,
	 "POST",
	 "/",
	 "",
	 EMPTY_HASH,
	 {SUITE_HOST, SUITE_DATE},
	 "host;x-amz-date",
	 "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"},
	/* post-x-www-form-urlencoded */
	{&suite,
	 "POST",
	 "/",
	 "",
	 "9095672bbd1f56dfc5b65f3e153adc8731a4a654192329106275f4c7b24d0b6e",
	 {{"content-type", "application/x-www-form-urlencoded"}, SUITE_HOST, SUITE_DATE},
	 "content-type;host;x-amz-date",
	 "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a"},
};

static void
test_published_vectors(void **state)
{
	for (size_t i = 0; i < G_N_ELEMENTS(vectors); i++) {
		const Vector *v = &vectors[i];
		S3Signed request = {
			.method = v->method,
			.path = v->path,
			.query = v->query,
			.headers = v->headers,
			.payload_hash = v->payload_hash,
		};

		while (v->headers[request.n_headers].name)
			request.n_headers++;
		g_autofree char *text = s3_sign(v->signer, &request);
		g_autofree char *want =
			g_strdup_printf("AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, "
					"SignedHeaders=%s, Signature=%s",
					v->signer->access_key, v->signer->date, v->signer->region,
					v->signer->service, v->signed_headers, v->signature);
		if (strcmp(text, want) != 0)
			fail_msg("vector %zu:\n%s\n%s", i, text, want);
	}
}

/* The payload of the second example. */
static void
test_published_payload(void **state)
{
	g_autofree char *hash =
		g_compute_checksum_for_string(G_CHECKSUM_SHA256, "Welcome to Amazon S3.", -1);

	assert_string_equal(hash, vectors[1].payload_hash);
}

static void
test_encoding(void **state)
{
	g_autoptr(GString) text = g_string_new(NULL);

	s3_append_encoded(text, "a/b@0 %\xc3\xa4~-._+=:", true);
	assert_string_equal(text->str, "a/b%400%20%25%C3%A4~-._%2B%3D%3A");
	g_string_truncate(text, 0);
	s3_append_encoded(text, "a/b", false);
	assert_string_equal(text->str, "a%2Fb");
}

static void
test_query(void **state)
{
	static const char *const pairs[] = {"prefix",	"a/b c", "list-type", "2",
					    "max-keys", "10",	 NULL};
	static const char *const none[] = {NULL};
	g_autofree char *query = s3_query_format(pairs), *nothing = s3_query_format(none);

	assert_string_equal(query, "list-type=2&max-keys=10&prefix=a%2Fb%20c");
	assert_string_equal(nothing, "");
}

static void
test_date(void **state)
{
	g_autofree char *date = s3_sign_date(INT64_C(1440938160) * 1000000000 + 999999999);

	assert_string_equal(date, "20150830T123600Z");
}

int
main(void)
{
	static const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_published_vectors),
		cmocka_unit_test(test_published_payload),
		cmocka_unit_test(test_encoding),
		cmocka_unit_test(test_query),
		cmocka_unit_test(test_date),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
