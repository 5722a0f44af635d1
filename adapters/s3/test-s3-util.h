/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_S3_TEST_S3_UTIL_H
#define ADAPTERS_S3_TEST_S3_UTIL_H

/* A server that answers what it is told to, and an adapter that asks it. */

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

/* What the server does with requests for objects, all of them or "once" the first of them. */
typedef enum {
	FAKE_OK,
	FAKE_SLOWDOWN,	 /* 503 SlowDown */
	FAKE_DENIED,	 /* 403 SignatureDoesNotMatch, also for the bucket */
	FAKE_CLOCK,	 /* 403 RequestTimeTooSkewed */
	FAKE_NOBUCKET,	 /* 404 NoSuchBucket, also for the bucket */
	FAKE_FULL,	 /* 507 */
	FAKE_SHORT,	 /* half of the body, then the end */
	FAKE_LONG,	 /* a byte more than there is */
	FAKE_FLIPPED,	 /* another byte */
	FAKE_NO_LENGTH,	 /* of HEAD */
	FAKE_NONSENSE,	 /* 200 and HTML, also for the bucket */
	FAKE_HANG,	 /* no answer, also for the bucket */
	FAKE_RESET,	 /* the end of the connection */
	FAKE_COPY_ERROR, /* 200 and an error: a copy */
} FakeMode;

extern atomic_int fake_mode, fake_left; /* FAKE_LEFT: so many requests, -1: all */
extern int fake_port;
/* The last request line with headers, and the body of the last listing (owned by it). */
extern char *fake_request;

int fake_start(void **state);
int fake_stop(void **state);
void fake_set(FakeMode mode, int left);
/* A listing is answered with TEXT (copied); NULL: of nothing. */
void fake_set_listing(const char *text);
/* Only this access key is accepted; NULL: any. */
void fake_set_key(const char *key);

typedef struct S3Test {
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcOptions *options;
	KvcKeyScope *plain;
} S3Test;

extern char *credentials_path;
void write_credentials(const char *access_key);
/* SECONDS of request_timeout; MORE options. */
S3Test s3_test_new(const char *seconds, const char *more);
void s3_test_free(S3Test *t);
KvcObjectKey *s3_test_key(const S3Test *t, const char *name);
int64_t s3_test_store(const S3Test *t, KvcObjectKey *key, const char *text);
/* The bytes are TEXT. */
bool s3_test_loads(const S3Test *t, KvcObjectKey *key, const char *text);
bool s3_test_finds(const S3Test *t, KvcObjectKey *key, KvcL2ObjectInfo *info);
char *s3_test_line(const S3Test *t, const char *name);
void s3_test_assert_line(const S3Test *t, const char *name, const char *value);

#endif
