/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_S3_S3_SIGN_H
#define ADAPTERS_S3_S3_SIGN_H

/*
 * AWS Signature Version 4, in headers. All of it is pure, for any thread.
 *
 * The rules are those of "Authenticating Requests: Using the Authorization Header (AWS Signature
 * Version 4)" in the Amazon S3 API reference; test-s3-sign.c has the published examples.
 */

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* In place of a hash of the payload. */
#define S3_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"

typedef struct S3Header {
	const char *name; /* lower case */
	const char *value;
} S3Header;

/* Who signs, for what, when. Strings belong to the caller. */
typedef struct S3Signer {
	const char *access_key, *secret_key;
	const char *region, *service;
	const char *date; /* as s3_sign_date() has it */
} S3Signer;

/* A request as it is signed. */
typedef struct S3Signed {
	const char *method;
	const char *path;  /* encoded as it is sent, begins with '/' */
	const char *query; /* s3_query_format(), or "" */
	const S3Header *headers;
	size_t n_headers; /* with host, and all x-amz-; in any order, each name once */
	const char *payload_hash;
} S3Signed;

/* TIME_NS since the epoch as YYYYMMDDTHHMMSSZ (transfer full). */
char *s3_sign_date(int64_t time_ns);
/* The value of the header Authorization (transfer full). */
char *s3_sign(const S3Signer *signer, const S3Signed *request);

/*
 * Appends TEXT with every byte but A-Z a-z 0-9 - . _ ~ as %XX; '/' stays if KEEP_SLASH.
 */
void s3_append_encoded(GString *out, const char *text, bool keep_slash);
/* The pairs of name and value, NULL at the end, encoded and sorted by name (transfer full). */
char *s3_query_format(const char *const *pairs);

#endif
