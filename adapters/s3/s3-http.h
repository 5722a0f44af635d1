/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_S3_S3_HTTP_H
#define ADAPTERS_S3_S3_HTTP_H

/*
 * HTTP requests, many at once: one thread with a curl multi handle and a bounded number of
 * transfers. Bulk ones (payload) and small ones have a bound each, so that a lookup does not wait
 * for stores. What failed by a broken connection, or was answered with 429, 500, 502, 503 or 504,
 * is tried again after pauses that grow, as long as its deadline allows.
 */

#include <glib.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <curl/curl.h>

/* How often a request is tried. */
#define S3_HTTP_TRIES 5
/* A text answer is no longer. */
#define S3_HTTP_MAX_TEXT_BYTES (16u << 20)

typedef struct S3Http S3Http;
typedef struct S3Exchange S3Exchange;

/* A request and its answer. */
struct S3Exchange {
	/* Set before the submit, not changed after it. Strings and arrays are owned by it. */
	const char *method;
	char *path, *query; /* encoded; query may be "" */
	GPtrArray *headers; /* "name: value", each to be signed */
	const void *owner;  /* for s3_http_interrupt() */
	const void *body;   /* of a PUT; the caller's */
	size_t body_bytes;
	void *sink; /* where the body of a 200 goes, the caller's; NULL: into text */
	size_t sink_bytes;
	bool has_sink, is_bulk;
	int64_t deadline_ns; /* CLOCK_MONOTONIC */
	void (*done)(S3Exchange *x, void *user);
	void *user;

	/* The answer, when DONE is called. */
	int error;	  /* 0: there is one; else -errno */
	char *error_text; /* what curl says of it, or NULL */
	long status;
	size_t received;  /* bytes of the body */
	bool is_too_long; /* it is longer than the sink */
	GString *text;
	int64_t content_length; /* -1: none */
	int64_t last_modified;	/* seconds since the epoch, -1: none */
	char *etag, *meta, *meta_xattrs;
	int64_t retry_after_s; /* -1: none */

	/* The thread's. */
	struct {
		CURL *easy;
		struct curl_slist *headers;
		size_t sent;
		unsigned tries;
		int64_t due_ns;
	} http;
};

typedef struct S3HttpConfig {
	const char *base_url; /* before the path */
	const char *ca_file;  /* or NULL: the system's */
	unsigned max_bulk, max_small;
	int64_t connect_timeout_ns;
	int64_t idle_ns; /* a transfer may be without any progress for so long */
	/* The headers of the next try of X (transfer full), the signature among them. */
	struct curl_slist *(*prepare)(S3Exchange *x, void *user);
	void *user;
} S3HttpConfig;

/* NULL with ERROR set. */
S3Http *s3_http_new(const S3HttpConfig *config, GError **error);
/* What is still going on ends with -ECANCELED. */
void s3_http_free(S3Http *http);
/* Any thread, never blocks. DONE is called by the thread of HTTP, exactly once. */
void s3_http_submit(S3Http *http, S3Exchange *x);
/* What OWNER has submitted ends soon, with -ECANCELED. Any thread, never blocks. */
void s3_http_interrupt(S3Http *http, const void *owner);

typedef struct S3HttpCounters {
	uint64_t requests, retries;
	unsigned in_flight;
} S3HttpCounters;

S3HttpCounters s3_http_get_counters(S3Http *http);

#endif
