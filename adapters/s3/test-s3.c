/* SPDX-License-Identifier: Apache-2.0 */

/* What the adapter makes of a store that is down, refuses, or answers what it should not. */

#include <unistd.h>

#include "test-s3-util.h"

#define TEXT "some bytes of an object"

static uint64_t
number(const S3Test *t, const char *name)
{
	g_autofree char *line = s3_test_line(t, name);

	assert_non_null(line);
	return g_ascii_strtoull(line, NULL, 10);
}

static void
assert_has(const char *text, const char *part)
{
	if (!text || !strstr(text, part))
		fail_msg("\"%s\" is not in \"%s\"", part, text);
}

static void
test_what_is_sent(void **state)
{
	S3Test t = s3_test_new("10", ",key_prefix=kv/");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "c d.bin");
	KvcL2ObjectInfo info;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_has(fake_request, "PUT /bucket/kv/kvcfs%3A1%3Aa/b/c%20d.bin HTTP/1.1\r\n");
	assert_has(fake_request, "authorization: AWS4-HMAC-SHA256 Credential=AKIATEST/");
	assert_has(fake_request, "/us-east-1/s3/aws4_request, SignedHeaders=host;"
				 "x-amz-content-sha256;x-amz-date;x-amz-meta-kvcfs, ");
	assert_has(fake_request, "x-amz-content-sha256: UNSIGNED-PAYLOAD\r\n");
	assert_null(strstr(fake_request, "secret"));
	assert_true(s3_test_finds(&t, key, &info));
	assert_int_equal(info.bytes, strlen(TEXT));
	assert_int_equal(info.mode, 0100640);
	assert_true(info.uid == 1 && info.gid == 2 && info.mtime_ns == 3 && info.version_ns == 4);
	assert_true(s3_test_loads(&t, key, TEXT));
	s3_test_assert_line(&t, "server", "ok");
	s3_test_assert_line(&t, "health", "ok");
	s3_test_free(&t);
}

/* Two times it is asked to wait, then it is served. */
static void
test_slow_down_passes(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

	fake_set(FAKE_SLOWDOWN, 2);
	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_int_equal(number(&t, "retries"), 2);
	s3_test_assert_line(&t, "server", "ok");
	assert_true(s3_test_loads(&t, key, TEXT));
	s3_test_free(&t);
}

static void
test_slow_down_stays(void **state)
{
	S3Test t = s3_test_new("2", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	KvcL2ObjectInfo info;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	fake_set(FAKE_SLOWDOWN, -1);
	assert_int_equal(s3_test_store(&t, key, TEXT), -EHOSTDOWN);
	s3_test_assert_line(&t, "server", "slowdown");
	g_autofree char *text = s3_test_line(&t, "server_error");
	assert_string_equal(text, "PUT: HTTP 503 SlowDown: Said the test.");
	assert_false(s3_test_finds(&t, key, &info));
	assert_int_equal(info.mtime_ns, KVC_L2_NOT_ASKED);
	assert_false(s3_test_loads(&t, key, TEXT));
	assert_true(number(&t, "slowdowns") >= 2);
	fake_set(FAKE_OK, -1);
	assert_true(s3_test_loads(&t, key, TEXT));
	s3_test_assert_line(&t, "server", "ok");
	s3_test_free(&t);
}

typedef struct Refusal {
	FakeMode mode;
	int error;
	const char *server, *text;
} Refusal;

/* A store is refused: its errno, and what status says. */
static void
test_refusals(void **state)
{
	static const Refusal refusals[] = {
		{FAKE_DENIED, -EACCES, "denied", "SignatureDoesNotMatch"},
		{FAKE_CLOCK, -EACCES, "clock", "RequestTimeTooSkewed"},
		{FAKE_NOBUCKET, -ENODEV, "nobucket", "NoSuchBucket"},
		{FAKE_FULL, -ENOSPC, "full", "InsufficientStorage"},
	};

	for (size_t i = 0; i < G_N_ELEMENTS(refusals); i++) {
		const Refusal *r = &refusals[i];
		S3Test t = s3_test_new("10", "");
		g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

		fake_set(FAKE_OK, -1);
		assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
		fake_set(r->mode, -1);
		assert_int_equal(s3_test_store(&t, key, TEXT), r->error);
		s3_test_assert_line(&t, "server", r->server);
		g_autofree char *text = s3_test_line(&t, "server_error");
		assert_has(text, r->text);
		fake_set(FAKE_OK, -1);
		assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
		s3_test_assert_line(&t, "server", "ok");
		s3_test_free(&t);
	}
}

/* From the start on: nothing can be done, and it is said why. */
static void
test_denied_at_the_start(void **state)
{
	fake_set(FAKE_DENIED, -1);
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	KvcL2ObjectInfo info;

	assert_int_equal(s3_test_store(&t, key, TEXT), -EACCES);
	s3_test_assert_line(&t, "server", "denied");
	s3_test_assert_line(&t, "health", "failed");
	assert_false(s3_test_finds(&t, key, &info));
	assert_int_equal(info.mtime_ns, KVC_L2_NOT_ASKED);
	s3_test_free(&t);
}

static void
test_nonsense(void **state)
{
	fake_set(FAKE_NONSENSE, -1);
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

	assert_int_equal(s3_test_store(&t, key, TEXT), -EIO);
	s3_test_assert_line(&t, "server", "error");
	g_autofree char *text = s3_test_line(&t, "server_error");
	assert_has(text, "no ListBucketResult");
	assert_true(number(&t, "bad_answers") > 0);
	s3_test_free(&t);
}

static void
test_lengths(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	KvcL2ObjectInfo info;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_false(s3_test_loads(&t, key, TEXT "and more"));
	assert_false(s3_test_loads(&t, key, "some"));
	s3_test_assert_line(&t, "server", "ok");
	fake_set(FAKE_LONG, -1);
	assert_false(s3_test_loads(&t, key, TEXT));
	fake_set(FAKE_SHORT, -1);
	assert_false(s3_test_loads(&t, key, TEXT));
	s3_test_assert_line(&t, "server", "error");
	assert_int_equal(number(&t, "bad_answers"), 1);
	fake_set(FAKE_SHORT, 1);
	assert_true(s3_test_loads(&t, key, TEXT)); /* tried again */
	s3_test_assert_line(&t, "server", "ok");
	fake_set(FAKE_NO_LENGTH, -1);
	assert_false(s3_test_finds(&t, key, &info));
	assert_int_equal(info.mtime_ns, KVC_L2_NOT_ASKED);
	s3_test_free(&t);
}

/* Other bytes are never served. Once they may be the line's, twice they are the store's. */
static void
test_other_bytes(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	fake_set(FAKE_FLIPPED, 1);
	assert_true(s3_test_loads(&t, key, TEXT));
	assert_int_equal(number(&t, "crc_mismatches"), 0);
	fake_set(FAKE_FLIPPED, -1);
	assert_false(s3_test_loads(&t, key, TEXT));
	assert_int_equal(number(&t, "crc_mismatches"), 1);
	fake_set(FAKE_OK, -1);
	assert_false(s3_test_finds(&t, key, NULL)); /* until it is stored again */
	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_true(s3_test_finds(&t, key, NULL));
	assert_true(s3_test_loads(&t, key, TEXT));
	s3_test_free(&t);
}

/* Nothing blocks for ever, and the end does not wait. */
static void
test_no_answer(void **state)
{
	fake_set(FAKE_HANG, -1);
	S3Test t = s3_test_new("0.5", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	int64_t begin_ns = kvc_now_ns();

	assert_int_equal(s3_test_store(&t, key, TEXT), -ETIMEDOUT);
	s3_test_assert_line(&t, "server", "unreachable");
	assert_in_range(kvc_now_ns() - begin_ns, 0, 10 * KVC_SEC_NS);
	s3_test_free(&t);

	t = s3_test_new("60", "");
	KvcMemoryObj memory = {.data = TEXT, .bytes = strlen(TEXT)};
	t.ops->submit_store_task(t.adapter, &key, &memory, 1);
	g_usleep(200000);
	begin_ns = kvc_now_ns();
	s3_test_free(&t);
	assert_in_range(kvc_now_ns() - begin_ns, 0, 10 * KVC_SEC_NS);
}

static void
test_nobody_there(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	fake_stop(NULL);
	for (int i = 0; i < 2; i++) /* the first one may have begun without a question */
		assert_int_equal(s3_test_store(&t, key, TEXT), -ECONNREFUSED);
	s3_test_assert_line(&t, "server", "unreachable");
	s3_test_assert_line(&t, "health", "failed");
	s3_test_free(&t);
	fake_start(NULL);
}

/* A connection that ends before the answer is made anew. */
static void
test_broken_connection(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");

	fake_set(FAKE_RESET, 1);
	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_true(s3_test_loads(&t, key, TEXT));
	s3_test_free(&t);
}

static void
test_failed_copy(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	KvcObjectAttributes attributes = {.mode = 0100600, .mtime_ns = 77};
	KvcL2ObjectInfo info;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	assert_int_equal(t.ops->set_attributes(t.adapter, key, &attributes), 0);
	assert_has(fake_request, "x-amz-copy-source: /bucket/kvcfs:1:a/b/x\r\n");
	assert_has(fake_request, "x-amz-metadata-directive: REPLACE\r\n");
	assert_true(s3_test_finds(&t, key, &info));
	assert_true(info.mode == 0100600 && info.mtime_ns == 77 && info.version_ns == 4);
	assert_true(s3_test_loads(&t, key, TEXT));
	fake_set(FAKE_COPY_ERROR, -1);
	assert_int_equal(t.ops->set_attributes(t.adapter, key, &attributes), -EIO);
	g_autofree char *text = s3_test_line(&t, "server_error");
	assert_has(text, "InternalError");
	s3_test_free(&t);
}

/* Keys that are valid for some hours are renewed by somebody else. */
static void
test_credentials_are_renewed(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	int64_t rc = 0;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	fake_set_key("AKIANEW");
	assert_int_equal(s3_test_store(&t, key, TEXT), -EACCES);
	write_credentials("AKIANEW");
	for (int i = 0; i < 100 && rc <= 0; i++) {
		g_usleep(100000);
		rc = s3_test_store(&t, key, TEXT);
	}
	assert_int_equal(rc, strlen(TEXT));
	s3_test_free(&t);
}

static void
test_long_names(void **state)
{
	S3Test t = s3_test_new("10", "");
	g_autofree char *longest = g_strnfill(980, 'n'), *too_long = g_strnfill(1023, 'n');
	g_autoptr(KvcObjectKey) long_key = s3_test_key(&t, longest);
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, too_long);

	assert_int_equal(s3_test_store(&t, long_key, TEXT), strlen(TEXT));
	assert_true(s3_test_loads(&t, long_key, TEXT));
	assert_int_equal(s3_test_store(&t, key, TEXT), -ENAMETOOLONG);
	assert_false(s3_test_finds(&t, key, NULL));
	g_autofree char *text = s3_test_line(&t, "server_error");
	assert_has(text, "more than 1024, cannot be stored: kvcfs:e:");
	s3_test_free(&t);
}

static void
test_bad_listings(void **state)
{
	static const char *const pages[] = {
		"",
		"<ListBucketResult>",
		"<Other></Other>",
		"<ListBucketResult><Contents><Key>k</Key></Contents></ListBucketResult>",
		"<ListBucketResult><Contents><Key>k</Key><Size>-1</Size></Contents>"
		"</ListBucketResult>",
		"<ListBucketResult><Contents><Size>1</Size></Contents></ListBucketResult>",
	};
	S3Test t = s3_test_new("10", "");
	g_autoptr(KvcObjectKey) key = s3_test_key(&t, "x");
	KvcL2ListEntry entries[10];
	char *cursor = NULL;

	assert_int_equal(s3_test_store(&t, key, TEXT), strlen(TEXT));
	for (size_t i = 0; i < G_N_ELEMENTS(pages); i++) {
		fake_set_listing(pages[i]);
		assert_int_equal(t.ops->list(t.adapter, NULL, &cursor, entries, 10), -EIO);
		assert_null(cursor);
		s3_test_assert_line(&t, "server", "error");
	}
	/* Out of order, and a next page of which nothing is known: they would never end. */
	fake_set_listing("<ListBucketResult><Contents><Key>b</Key><Size>1</Size></Contents>"
			 "<Contents><Key>a</Key><Size>1</Size></Contents></ListBucketResult>");
	assert_int_equal(t.ops->list(t.adapter, NULL, &cursor, entries, 10), -EPROTO);
	fake_set_listing("<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>");
	assert_int_equal(t.ops->list(t.adapter, NULL, &cursor, entries, 10), -EPROTO);
	s3_test_free(&t);
}

static void
assert_refused(const char *options, const char *part)
{
	g_autofree char *specification = g_strconcat("type=s3,", options, NULL);
	g_autoptr(GError) error = NULL;
	KvcOptions *checked = NULL;

	assert_null(kvc_l2_adapter_open(specification, &checked, &error));
	assert_has(error->message, part);
	assert_null(strstr(error->message, "secret+"));
}

static void
test_options(void **state)
{
	g_unsetenv("AWS_ACCESS_KEY_ID");
	assert_refused("s3_bucket=kvc", "s3_endpoint");
	assert_refused("s3_endpoint=http://h/bucket", "s3_bucket");
	assert_refused("s3_endpoint=http://h,s3_bucket=a/b", "\"a/b\" is no name of a bucket");
	assert_refused("s3_endpoint=h:1,s3_bucket=kvc", "AWS_ACCESS_KEY_ID");
	assert_refused("s3_endpoint=h:1,s3_bucket=kvc,credentials_file=x", "absolute");
	assert_refused("s3_endpoint=h:1,s3_bucket=kvc,credentials_file=/nowhere/x", "/nowhere/x");
	assert_refused("s3_endpoint=h:1,s3_bucket=kvc,key_prefix=/x", "key_prefix");
	g_autofree char *profile =
		g_strdup_printf("s3_endpoint=h:1,s3_bucket=kvc,credentials_profile=other,"
				"credentials_file=%s",
				credentials_path);
	assert_refused(profile, "[other]");
	/* As s3fs has it. */
	assert_true(g_file_set_contents(credentials_path, "AKIATEST:secret+key\n", -1, NULL));
	assert_refused(profile, "not in the form");
}

int
main(void)
{
#define TEST(f) cmocka_unit_test_setup_teardown(f, fake_start, fake_stop)
	static const struct CMUnitTest tests[] = {
		TEST(test_what_is_sent),
		TEST(test_slow_down_passes),
		TEST(test_slow_down_stays),
		TEST(test_refusals),
		TEST(test_denied_at_the_start),
		TEST(test_nonsense),
		TEST(test_lengths),
		TEST(test_other_bytes),
		TEST(test_no_answer),
		TEST(test_nobody_there),
		TEST(test_broken_connection),
		TEST(test_failed_copy),
		TEST(test_credentials_are_renewed),
		TEST(test_long_names),
		TEST(test_bad_listings),
		TEST(test_options),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
