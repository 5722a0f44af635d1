/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_S3_S3_H
#define ADAPTERS_S3_S3_H

/* Private to the adapter. */

#include <pthread.h>
#include <stdatomic.h>

#include <kvcache/connector.h>
#include <kvcache/io.h>

#include "s3-http.h"
#include "s3-sign.h"

/* Items of one call of the framework: so many small requests of one worker are in flight. */
#define S3_MAX_BATCH 64
/* Of a name, the key prefix included: what the protocol allows. */
#define S3_MAX_NAME_BYTES 1024
/* What one PUT, and one copy within the store, can have. */
#define S3_MAX_OBJECT_BYTES (UINT64_C(5) << 30)

#define S3_NEVER_NS (-3600 * KVC_SEC_NS)

/* What the store last refused with, until it takes the same again. */
typedef enum {
	S3_OK,
	S3_UNREACHABLE,
	S3_DENIED,   /* the key, its secret, or what they may do */
	S3_CLOCK,    /* this host's clock is wrong */
	S3_NOBUCKET, /* there is no such bucket, or it is elsewhere */
	S3_SLOWDOWN, /* too many requests */
	S3_FULL,     /* no room, or a quota */
	S3_ERROR,    /* what it answers is an error of its own, or makes no sense */
	S3_STATES,
} S3State;

typedef struct S3Credentials {
	char *access_key, *secret_key;
	char *session_token; /* or NULL */
} S3Credentials;

typedef struct S3Store {
	/* Immutable after open */
	char *base_url; /* "http://host:port" */
	char *host;	/* as the header has it */
	char *bucket;
	char *base_path; /* "/bucket", or "" where the host is the bucket's */
	char *region;
	char *prefix;		 /* before every name, "" for none */
	char *credentials_file;	 /* or NULL: the environment */
	char *profile;		 /* section of it */
	uint64_t capacity_bytes; /* 0: unknown */
	S3Http *http;

	/* Protected by lock */
	pthread_mutex_t lock;
	S3Credentials credentials;
	int64_t credentials_read_ns; /* 0: never */
	int64_t credentials_mtime_ns;
	char *server_error;	  /* the last one */
	KvcL2Usage listed, usage; /* of the listing that goes on, and what is known */
	GHashTable *damaged;	  /* name -> ETag of what has not the bytes that were stored */

	/* Atomic */
	atomic_int state;
	atomic_int_fast64_t answered_ns; /* when it last answered, and nothing failed since */
	atomic_uint_fast64_t n_slowdowns, n_bad_answers, n_crc_mismatches, n_attributes_dropped;
} S3Store;

/* A "connection" of the framework: who waits for requests. The real ones are curl's. */
typedef struct S3Connection {
	S3Store *store;
	pthread_mutex_t lock;
	pthread_cond_t ended;
	size_t pending; /* protected by lock */
	atomic_bool is_interrupted;
} S3Connection;

/* s3-name.c */

/* The name of an object in the bucket, the prefix included (transfer full). */
char *s3_name_format(const char *prefix, const char *store_name);
/* The name that the connector knows it by (transfer full), or NULL: it is not ours. */
char *s3_name_parse(const char *prefix, const char *name);
/*
 * What all names of SCOPE begin with, and names of others may: strings, owned, in the order in
 * which they are listed. SCOPE NULL: everything.
 */
GPtrArray *s3_name_prefixes(const char *prefix, const KvcKeyScope *scope);

/* s3-xml.c */

typedef struct S3Entry {
	char *name;
	uint64_t bytes;
	int64_t mtime_ns; /* 0: unknown */
} S3Entry;

typedef struct S3Page {
	GArray *entries; /* of S3Entry */
	bool is_truncated;
} S3Page;

/* One answer to ListObjectsV2 with encoding-type=url. false: it is none. */
bool s3_page_parse(const char *text, size_t len, S3Page *page);
void s3_page_clear(S3Page *page);
/* *CODE and *MESSAGE (transfer full) of an error; false: it is none. */
bool s3_error_parse(const char *text, size_t len, char **code, char **message);

/* s3-credentials.c */

/* Reads them where they are; false with ERROR set. */
bool s3_credentials_read(S3Store *store, S3Credentials *credentials, GError **error);
void s3_credentials_clear(S3Credentials *credentials);
/* A copy of what is valid now (s3_credentials_clear()); a file that was changed is read again. */
void s3_credentials_get(S3Store *store, S3Credentials *credentials);

/* s3-request.c */

/* For the object NAME, which may be NULL: for the bucket. QUERY (transfer full) may be NULL. */
void
s3_exchange_init(S3Exchange *x, S3Store *store, const char *method, const char *name, char *query);
void s3_exchange_add_header(S3Exchange *x, const char *name, const char *value);
void s3_exchange_clear(S3Exchange *x);
/* All N of XS, until they have ended or DEADLINE_NS. */
void s3_run(S3Connection *connection, S3Exchange *xs, size_t n, int64_t deadline_ns);
/* S3HttpOps */
struct curl_slist *s3_prepare(S3Exchange *x, void *user);

/* s3-state.c */

/*
 * 0: it went well; -ENOENT: there is no such thing; else -errno, one of kvc_is_connection_error()
 * if it is not about this object. Noted. IS_CHANGE: the store took something.
 */
int s3_conclude(S3Store *store, const S3Exchange *x, bool is_change);
/* An answer that makes no sense: -EIO. */
int s3_note_nonsense(S3Store *store, const S3Exchange *x, const char *text);
/* NAME is too long to be stored. */
void s3_note_name(S3Store *store, const char *name);
void s3_describe(void *store, KvcDescribeFunc func, void *user);

/* s3-attr.c: what goes with an object, in its metadata. */

#define S3_META_HEADER "x-amz-meta-kvcfs"
#define S3_META_XATTRS_HEADER "x-amz-meta-kvcfs-xattrs"

typedef struct S3Meta {
	bool has_crc;
	uint32_t crc;			/* CRC32C of the bytes */
	KvcObjectAttributes attributes; /* its xattrs are a reference */
} S3Meta;

/* The headers of an object. false: some of the extended attributes have no room. */
bool s3_meta_add(S3Exchange *x, const S3Meta *meta);
/* Out of the headers of an answer; what is not there, or nonsense, is unknown. */
void s3_meta_parse(const S3Exchange *x, S3Meta *meta);
void s3_meta_clear(S3Meta *meta);

/* s3-known.c */

/* Something was stored (BYTES), or deleted (BYTES -1, as large as the others are). */
void s3_note_usage(S3Store *store, int64_t bytes);

/* Is what the store has under NAME, with this ETAG, known to be damaged? */
bool s3_is_damaged(S3Store *store, const char *name, const char *etag);
/* ETAG NULL: it is not any more. */
void s3_note_damaged(S3Store *store, const char *name, const char *etag);

/* s3-commands.c, s3-change.c, s3-list.c: KvcConnectorOps. */

int s3_connect(void *store, void **connection, int64_t deadline_ns);
void s3_disconnect(void *connection);
void s3_interrupt(void *connection);
int s3_get(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int s3_set(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int s3_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int s3_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int
s3_set_attributes(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int s3_rename(void *connection,
	      const KvcConnectorItem *old_item,
	      const KvcConnectorItem *new_item,
	      int64_t deadline_ns);
int s3_size(void *connection, KvcL2Usage *usage, int64_t deadline_ns);
ssize_t s3_list(void *connection,
		const KvcKeyScope *scope,
		char **cursor,
		KvcL2ListEntry *entries,
		size_t max,
		int64_t deadline_ns);

#endif
