/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RESP_RESP_H
#define ADAPTERS_RESP_RESP_H

/* Private to the adapter. */

#include <kvcache/connector.h>
#include <kvcache/io.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include <hiredis/hiredis.h>

#define RESP_MAX_BATCH 64
/* proto-max-bulk-len of a server that was not told otherwise. */
#define RESP_MAX_VALUE_BYTES (512u << 20)

/* What the server last refused with, until it takes the same again. */
typedef enum {
	RESP_OK,
	RESP_UNREACHABLE,
	RESP_NOAUTH,
	RESP_UNTRUSTED,
	RESP_LOADING,
	RESP_OOM,
	RESP_READONLY,
	RESP_CLUSTERDOWN,
	RESP_STATES,
} RespState;

typedef struct RespNode RespNode;

/* A connection that was given up with a change that the server has not answered. */
typedef struct RespDoubt {
	RespNode *node; /* or NULL */
	int64_t id;
	char *run_id; /* of the server, owned */
} RespDoubt;

typedef struct RespTlsOptions {
	bool enable, verify;
	char *ca_file, *cert_file, *key_file, *server_name; /* each may be NULL */
} RespTlsOptions;

typedef struct RespTls RespTls;

typedef struct RespStore {
	/* Immutable after open */
	char *host; /* or NULL */
	int port;
	char *unix_socket; /* or NULL */
	char *username, *password_file;
	RespTlsOptions tls;
	int database;
	uint64_t capacity_bytes; /* 0: what the server says */
	int64_t idle_ns;	 /* a request may be without any progress for so long */
	int64_t connect_ns;
	bool is_cluster;

	/* Protected by lock */
	pthread_mutex_t lock;
	char *server_error;  /* the last one */
	GPtrArray *doubtful; /* of RespDoubt */
	/* Of a cluster */
	GPtrArray *nodes; /* of RespNode, owned: all that were ever known */
	RespNode **slots; /* whose each slot is, or NULL */
	bool has_map;
	uint64_t map_version; /* changes with it */
	bool is_map_wanted;   /* it is not right any more */
	bool is_map_asked;    /* somebody does */
	int64_t map_due_ns;   /* not before */
	uint64_t n_map_renewals, n_redirects;

	/* Of the one thread at a time that lists: the framework's caller_mutex */
	GPtrArray *windows; /* resp_windows_new() */
	uint64_t last_window;

	/* Atomic */
	atomic_int state;
	atomic_uint n_doubtful;
} RespStore;

/* Where an error reply of a cluster sends us. */
typedef enum {
	RESP_STAY,
	RESP_MOVED,
	RESP_ASK,
	RESP_TRY_AGAIN,
} RespRedirect;

typedef struct RespConnection {
	RespStore *store;
	RespNode *node; /* of a cluster, or NULL */
	RespRedirect redirect;
	RespNode *redirect_to;
	redisContext *context;
	int fd;	      /* the context's, nonblocking */
	RespTls *tls; /* or NULL */
	int64_t id;
	char *run_id;
	bool is_changing; /* a change was sent and not answered */
	size_t at, end;	  /* what of the buffer was received and not used */
	char buffer[16384];
} RespConnection;

/* The line of a reply: of a string only the length. */
typedef struct RespReply {
	char type;	/* + - : $, or * of an array, whose replies come next */
	int64_t number; /* of ':' and '$' (-1: there is none); replies in the array */
	int error;	/* -errno of '-', else 0 */
} RespReply;

/* resp-connection.c. All block until DEADLINE_NS at most; 0 or -errno of the connection. */

int resp_connect(void *store, void **connection, int64_t deadline_ns);
/* To NODE; NULL: to the one server. */
int resp_connect_to(RespStore *store, RespNode *node, RespConnection **r, int64_t deadline_ns);
void resp_disconnect(void *connection);
void resp_interrupt(void *connection);
int resp_send(RespConnection *connection, struct iovec *iov, size_t n, int64_t deadline_ns);
int resp_send_string(RespConnection *connection, const GString *text, int64_t deadline_ns);
int resp_read_reply(RespConnection *connection, RespReply *reply, int64_t deadline_ns);
/* The BYTES of a string after its line, into DATA; NULL: they are thrown away. */
int resp_read_bytes(RespConnection *connection, void *data, size_t bytes, int64_t deadline_ns);
/* Any command and its reply (freeReplyObject). ARGV ends with NULL. */
int resp_command(RespConnection *connection,
		 const char *const *argv,
		 redisReply **reply,
		 int64_t deadline_ns);
/* Appends a command of strings without NUL, ended by NULL. */
void resp_append_command(GString *text, const char *const *argv);
/* Before each change: those that are in doubt are over, whatever has become of them. */
int resp_settle_doubts(RespConnection *connection, int64_t deadline_ns);

/* resp-state.c */

/* The -errno of an error reply (without its '-'); noted. */
int resp_note_refusal(RespStore *store, const char *text, size_t len);
void resp_note_unreachable(RespStore *store, const char *text);
/* Of the two, one does not accept the other's certificate. */
void resp_note_untrusted(RespStore *store, const char *text);
/* The server did what it was asked. */
void resp_note_success(RespStore *store, bool is_change);
void resp_describe(void *store, KvcDescribeFunc func, void *user);

/* resp-tls.c; or no-tls.c, where there is nothing of it. */

/* Can what they name be used? */
bool resp_tls_check(const RespTlsOptions *options, GError **error);
/* Over FD, to the server at HOST. NULL: a certificate or key is not good; noted. */
RespTls *resp_tls_new(RespStore *store, const char *host, int fd);
void resp_tls_free(RespTls *tls);
/* There are bytes that poll() does not know of. */
bool resp_tls_has_input(const RespTls *tls);
/*
 * None of them blocks. -EAGAIN: *EVENTS of the socket have to be waited for. -EKEYREJECTED: one
 * side does not accept the other's certificate; noted. Else 0, bytes, or -errno of the connection.
 */
int resp_tls_handshake(RespTls *tls, RespStore *store, short *events);
ssize_t
resp_tls_send(RespTls *tls, RespStore *store, const void *data, size_t bytes, short *events);
ssize_t resp_tls_receive(RespTls *tls, RespStore *store, void *data, size_t bytes, short *events);

/* resp-attr.c: what goes with a value, in a value of its own that others do not look at. */

#define RESP_ATTR_PREFIX "kvcfs:a:"
/* Of a value that can be one: all xattrs, their lengths, and the first line. */
#define RESP_ATTR_MAX_BYTES (256u << 10)

/* The name (transfer full) that the attributes of NAME have. */
char *resp_attr_name(const char *name);
/* Is there something to say? ATTRIBUTES may be NULL. */
bool resp_attr_is_needed(const KvcObjectKey *key, const KvcObjectAttributes *attributes);
/* The text (transfer full) of the attributes of a value of BYTES. */
GString *resp_attr_format(const KvcObjectAttributes *attributes, uint64_t bytes);
/* What is to be there where there is INFO: what is not GIVEN stays, the version in any case. */
KvcObjectAttributes resp_attr_merge(const KvcObjectAttributes *given, const KvcL2ObjectInfo *info);
/* Into INFO, whose bytes are set, unless the text is about a value of another size, or nonsense. */
void resp_attr_parse(const char *text, size_t len, KvcL2ObjectInfo *info);

/* resp-list.c */

/* Names are read ahead, so many bytes; a test has less. */
extern size_t resp_list_bytes;
GPtrArray *resp_windows_new(void);

struct RespClient;

/* What lists: one of the two is there. */
typedef struct RespLister {
	RespStore *store;
	RespConnection *r;
	struct RespClient *client;
} RespLister;

/* As resp_list(). */
ssize_t resp_list_from(const RespLister *lister,
		       const KvcKeyScope *scope,
		       char **cursor,
		       KvcL2ListEntry *entries,
		       size_t max,
		       int64_t deadline_ns);

/* resp-cluster.c: an error reply of a node. true: it sends us elsewhere, see redirect. */
bool resp_cluster_note_redirect(RespConnection *r, const char *text, size_t len);

/* resp.c */

void resp_store_free(void *store);

/* resp-commands.c: the reply to a command about ITEM, which gets its error. */

int resp_read_value(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns);
int resp_read_done(RespConnection *r, KvcConnectorItem *item, char type, int64_t deadline_ns);
int
resp_read_number(RespConnection *r, KvcConnectorItem *item, int64_t *number, int64_t deadline_ns);
/* To GET of the attributes; an item without an error gets them. */
int resp_read_attributes(RespConnection *r, KvcConnectorItem *item, int64_t deadline_ns);

/* resp-commands.c, resp-list.c: KvcConnectorOps. */

int resp_get(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int resp_set(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int resp_exists(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int resp_remove(void *connection, KvcConnectorItem *const *items, size_t n, int64_t deadline_ns);
int resp_set_attributes(void *connection,
			KvcConnectorItem *const *items,
			size_t n,
			int64_t deadline_ns);
int resp_rename(void *connection,
		const KvcConnectorItem *old_item,
		const KvcConnectorItem *new_item,
		int64_t deadline_ns);
int resp_size(void *connection, KvcL2Usage *usage, int64_t deadline_ns);
ssize_t resp_list(void *connection,
		  const KvcKeyScope *scope,
		  char **cursor,
		  KvcL2ListEntry *entries,
		  size_t max,
		  int64_t deadline_ns);

#endif
