/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A connection: hiredis makes it (and resp-tls.c makes it secure) and parses replies that are
 * arrays; what goes over it by the megabyte is sent from and received into the engine's memory
 * here. A buffer takes what comes between: lines, and the first bytes of a value that came with its
 * line.
 *
 * A change that the server has not answered when its connection is given up may still be carried
 * out: a server that was stopped finds it in its socket. Before the next change, over whatever
 * connection, such a connection is killed on the server, which answers in order: what it has not
 * done by then, it never does.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "resp-cluster.h"

/* ---- Bytes --------------------------------------------------------------------------------- */

/* Until EVENTS of the socket, the deadline, or no progress for too long. */
static int
await(const RespConnection *r, short events, int64_t deadline_ns)
{
	struct pollfd event = {.fd = r->fd, .events = events};
	int64_t left = MIN(deadline_ns - kvc_now_ns(), r->store->idle_ns);
	int rc;

	if (left <= 0)
		return -ETIMEDOUT;
	do
		rc = poll(&event, 1, (int)(left / 1000000) + 1);
	while (rc < 0 && errno == EINTR);
	return rc > 0 ? 0 : rc == 0 ? -ETIMEDOUT : -errno;
}

/* What is left of IOV after BYTES. */
static void
advance(struct iovec **iov, size_t *n, size_t bytes)
{
	while (*n > 0 && bytes >= (*iov)->iov_len) {
		bytes -= (*iov)->iov_len;
		(*iov)++;
		(*n)--;
	}
	if (*n > 0) {
		(*iov)->iov_base = (char *)(*iov)->iov_base + bytes;
		(*iov)->iov_len -= bytes;
	}
}

/* Bytes, or -errno; -EAGAIN: not before EVENTS. */
static ssize_t
try_to_send(RespConnection *r, struct iovec *iov, size_t n, short *events)
{
	struct msghdr message = {.msg_iov = iov, .msg_iovlen = n};

	if (r->tls)
		return resp_tls_send(r->tls, r->store, iov->iov_base, iov->iov_len, events);
	ssize_t sent = sendmsg(r->fd, &message, MSG_NOSIGNAL);
	return sent < 0 ? -errno : sent;
}

int
resp_send(RespConnection *r, struct iovec *iov, size_t n, int64_t deadline_ns)
{
	advance(&iov, &n, 0);
	while (n > 0) {
		short events = POLLOUT;
		ssize_t sent = try_to_send(r, iov, n, &events);

		if (sent >= 0) {
			advance(&iov, &n, (size_t)sent);
			continue;
		}
		if (sent == -EINTR)
			continue;
		if (sent != -EAGAIN)
			return (int)sent;
		int rc = await(r, events, deadline_ns);
		if (rc < 0)
			return rc;
	}
	return 0;
}

int
resp_send_string(RespConnection *r, const GString *text, int64_t deadline_ns)
{
	struct iovec iov = {text->str, text->len};

	return resp_send(r, &iov, 1, deadline_ns);
}

/* Bytes (0: the end), or -errno; -EAGAIN: not before EVENTS. */
static ssize_t
try_to_receive(RespConnection *r, const struct iovec iov[2], short *events)
{
	const struct iovec *first = &iov[iov[0].iov_len == 0];

	if (r->tls)
		return resp_tls_receive(r->tls, r->store, first->iov_base, first->iov_len, events);
	ssize_t got = readv(r->fd, iov, 2);
	return got < 0 ? -errno : got;
}

/* At least one byte, first into DATA (BYTES, may be 0), then into the buffer, which is used up. */
static ssize_t
receive(RespConnection *r, void *data, size_t bytes, int64_t deadline_ns)
{
	struct iovec iov[2] = {{data, bytes}, {r->buffer + r->end, sizeof(r->buffer) - r->end}};

	for (;;) {
		short events = POLLIN;
		ssize_t got = try_to_receive(r, iov, &events);

		if (got > 0)
			return got;
		if (got == 0)
			return -ECONNRESET;
		if (got == -EINTR)
			continue;
		if (got != -EAGAIN)
			return got;
		int rc = await(r, events, deadline_ns);
		if (rc < 0)
			return rc;
	}
}

/* More into the buffer; what is used of it goes. */
static int
fill(RespConnection *r, int64_t deadline_ns)
{
	memmove(r->buffer, r->buffer + r->at, r->end - r->at);
	r->end -= r->at;
	r->at = 0;
	if (r->end == sizeof(r->buffer))
		return -EPROTO;
	ssize_t got = receive(r, NULL, 0, deadline_ns);
	if (got < 0)
		return (int)got;
	r->end += (size_t)got;
	return 0;
}

/* ---- Replies ------------------------------------------------------------------------------- */

/* *LINE is in the buffer until the next read; without its end. */
static int
read_line(RespConnection *r, char **line, size_t *len, int64_t deadline_ns)
{
	for (;;) {
		char *begin = r->buffer + r->at;
		char *end = memmem(begin, r->end - r->at, "\r\n", 2);

		if (end) {
			*line = begin;
			*len = (size_t)(end - begin);
			r->at += *len + 2;
			return 0;
		}
		int rc = fill(r, deadline_ns);
		if (rc < 0)
			return rc;
	}
}

static bool
parse_number(const char *text, size_t len, int64_t *number)
{
	g_autofree char *copy = g_strndup(text, len);

	return g_ascii_string_to_signed(copy, 10, -1, INT64_MAX, number, NULL);
}

int
resp_read_reply(RespConnection *r, RespReply *reply, int64_t deadline_ns)
{
	char *line;
	size_t len;
	int rc = read_line(r, &line, &len, deadline_ns);

	*reply = (RespReply){0};
	if (rc < 0)
		return rc;
	if (len == 0)
		return -EPROTO;
	reply->type = *line;
	switch (*line) {
	case '-':
		if (r->node && resp_cluster_note_redirect(r, line + 1, len - 1))
			reply->error = -EAGAIN;
		else
			reply->error = resp_note_refusal(r->store, line + 1, len - 1);
		return 0;
	case '+':
		return 0;
	case ':':
	case '$':
	case '*':
		return parse_number(line + 1, len - 1, &reply->number) ? 0 : -EPROTO;
	default:
		return -EPROTO;
	}
}

/* BYTES out of the buffer, as far as it has them; how many. */
static size_t
take(RespConnection *r, void *data, size_t bytes)
{
	size_t n = MIN(bytes, r->end - r->at);

	if (data && n > 0)
		memcpy(data, r->buffer + r->at, n);
	r->at += n;
	return n;
}

int
resp_read_bytes(RespConnection *r, void *data, size_t bytes, int64_t deadline_ns)
{
	size_t got = take(r, data, bytes);
	char end[2];

	while (got < bytes) {
		r->at = r->end = 0;
		size_t direct = data ? bytes - got : 0;
		ssize_t n = receive(r, data ? (char *)data + got : NULL, direct, deadline_ns);

		if (n < 0)
			return (int)n;
		size_t in_place = MIN((size_t)n, direct);
		r->end = (size_t)n - in_place;
		got += in_place;
		got += take(r, data ? (char *)data + got : NULL, bytes - got);
	}
	for (size_t i = 0; i < 2;) {
		i += take(r, end + i, 2 - i);
		int rc = i < 2 ? fill(r, deadline_ns) : 0;
		if (rc < 0)
			return rc;
	}
	return memcmp(end, "\r\n", 2) ? -EPROTO : 0;
}

void
resp_append_command(GString *text, const char *const *argv)
{
	g_string_append_printf(text, "*%u\r\n", g_strv_length((char **)argv));
	for (; *argv; argv++)
		g_string_append_printf(text, "$%zu\r\n%s\r\n", strlen(*argv), *argv);
}

int
resp_command(RespConnection *r, const char *const *argv, redisReply **reply, int64_t deadline_ns)
{
	redisReader *reader = r->context->reader;
	g_autoptr(GString) text = g_string_new(NULL);
	void *object = NULL;

	*reply = NULL;
	resp_append_command(text, argv);
	int rc = resp_send_string(r, text, deadline_ns);
	while (rc == 0 && !object) {
		if (redisReaderFeed(reader, r->buffer + r->at, r->end - r->at) != REDIS_OK)
			return -EPROTO;
		r->at = r->end = 0;
		if (redisReaderGetReply(reader, &object) != REDIS_OK)
			return -EPROTO;
		if (!object)
			rc = fill(r, deadline_ns);
	}
	if (rc == 0 && reader->pos != reader->len) { /* more than was asked for */
		freeReplyObject(object);
		return -EPROTO;
	}
	*reply = object;
	return rc;
}

/* ---- Connecting ---------------------------------------------------------------------------- */

/* A command of which only success matters. -errno: also the server's refusal. */
static int
handshake(RespConnection *r, const char *const *argv, int64_t deadline_ns)
{
	redisReply *reply;
	int rc = resp_command(r, argv, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (reply->type == REDIS_REPLY_ERROR) {
		rc = resp_note_refusal(r->store, reply->str, reply->len);
		if (rc == -EIO) /* it does not know the user, the database, ... */
			rc = -EINVAL;
	}
	freeReplyObject(reply);
	return rc;
}

static int
authenticate(RespConnection *r, int64_t deadline_ns)
{
	const RespStore *store = r->store;
	g_autofree char *password = NULL;
	g_autoptr(GError) error = NULL;

	if (!store->password_file)
		return 0;
	if (!g_file_get_contents(store->password_file, &password, NULL, &error)) {
		resp_note_refusal(r->store, error->message, strlen(error->message));
		return -EACCES;
	}
	password[strcspn(password, "\r\n")] = '\0';
	const char *const with_user[] = {"AUTH", store->username, password, NULL};
	const char *const without[] = {"AUTH", password, NULL};
	int rc = handshake(r, store->username ? with_user : without, deadline_ns);
	explicit_bzero(password, strlen(password));
	return rc == -EINVAL ? -EACCES : rc;
}

/* The id of the server's process, for doubts. Not everybody may ask. */
static int
read_run_id(RespConnection *r, int64_t deadline_ns)
{
	static const char *const info[] = {"INFO", "server", NULL};
	redisReply *reply;
	int rc = resp_command(r, info, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	const char *line = reply->type == REDIS_REPLY_STRING ? strstr(reply->str, "run_id:") : NULL;
	r->run_id = line ? g_strndup(line, strcspn(line, "\r\n")) : g_strdup("");
	freeReplyObject(reply);
	return 0;
}

static int
greet(RespConnection *r, int64_t deadline_ns)
{
	static const char *const ping[] = {"PING", NULL}, *const id[] = {"CLIENT", "ID", NULL};
	g_autofree char *database = g_strdup_printf("%d", r->store->database);
	const char *const select[] = {"SELECT", database, NULL};
	int rc = authenticate(r, deadline_ns);

	if (rc == 0)
		rc = handshake(r, ping, deadline_ns);
	if (rc == 0 && r->store->database)
		rc = handshake(r, select, deadline_ns);
	if (rc == 0)
		rc = read_run_id(r, deadline_ns);
	if (rc == 0) {
		redisReply *reply;

		rc = resp_command(r, id, &reply, deadline_ns);
		if (rc == 0 && reply->type == REDIS_REPLY_INTEGER)
			r->id = reply->integer;
		if (rc == 0)
			freeReplyObject(reply);
	}
	return rc;
}

/* TLS, if it is to be, before anything else. */
static int
secure(RespConnection *r, int64_t deadline_ns)
{
	RespStore *store = r->store;
	short events;
	int rc;

	if (!store->tls.enable)
		return 0;
	r->tls = resp_tls_new(store, r->node ? r->node->host : store->host, r->fd);
	if (!r->tls)
		return -EKEYREJECTED;
	while ((rc = resp_tls_handshake(r->tls, store, &events)) == -EAGAIN) {
		rc = await(r, events, deadline_ns);
		if (rc < 0)
			break;
	}
	return rc;
}

/* The errno of a connect that failed: a connection error in any case, the text has the rest. */
static int
connect_error(const redisContext *context, int errnum)
{
	if (!context)
		return -ENOMEM;
	return context->err == REDIS_ERR_IO && kvc_is_connection_error(-errnum) ? -errnum
										: -ECONNREFUSED;
}

int
resp_connect_to(RespStore *store, RespNode *node, RespConnection **connection, int64_t deadline_ns)
{
	const char *host = node ? node->host : store->host;
	int port = node ? node->port : store->port;
	int64_t left_us = MAX((deadline_ns - kvc_now_ns()) / 1000, 1000);
	struct timeval timeout = {left_us / 1000000, left_us % 1000000};
	redisContext *context;

	errno = 0;
	context = store->unix_socket ? redisConnectUnixWithTimeout(store->unix_socket, timeout)
				     : redisConnectWithTimeout(host, port, timeout);
	if (!context || context->err) {
		int rc = connect_error(context, errno);

		resp_note_unreachable(store, context ? context->errstr : "no memory");
		if (context)
			redisFree(context);
		return rc;
	}
	if (!store->unix_socket)
		redisEnableKeepAlive(context);
	fcntl(context->fd, F_SETFD, FD_CLOEXEC);
	fcntl(context->fd, F_SETFL, fcntl(context->fd, F_GETFL) | O_NONBLOCK);
	RespConnection *r = g_new0(RespConnection, 1);
	r->store = store;
	r->node = node;
	r->context = context;
	r->fd = context->fd;
	int rc = secure(r, deadline_ns);
	bool is_secure = rc == 0;
	if (is_secure)
		rc = greet(r, deadline_ns);
	if (rc == 0) {
		resp_note_success(store, false);
		*connection = r;
		return 0;
	}
	if (rc == -EACCES)
		atomic_store(&store->state, RESP_NOAUTH);
	if (kvc_is_connection_error(rc) && rc != -EHOSTDOWN)
		resp_note_unreachable(store, !is_secure && rc == -ETIMEDOUT
						     ? "TLS: no answer (does this port speak TLS?)"
						     : g_strerror(-rc));
	resp_disconnect(r);
	return rc;
}

int
resp_connect(void *store, void **connection, int64_t deadline_ns)
{
	RespConnection *r;
	int rc = resp_connect_to(store, NULL, &r, deadline_ns);

	if (rc == 0)
		*connection = r;
	return rc;
}

void
resp_interrupt(void *connection)
{
	shutdown(((RespConnection *)connection)->fd, SHUT_RDWR);
}

void
resp_disconnect(void *connection)
{
	RespConnection *r = connection;
	RespStore *store = r->store;

	if (r->is_changing && r->id > 0) {
		RespDoubt *doubt = g_new(RespDoubt, 1);

		*doubt = (RespDoubt){r->node, r->id, g_steal_pointer(&r->run_id)};
		pthread_mutex_lock(&store->lock);
		g_ptr_array_add(store->doubtful, doubt);
		atomic_store(&store->n_doubtful, store->doubtful->len);
		pthread_mutex_unlock(&store->lock);
	}
	resp_tls_free(r->tls);
	redisFree(r->context);
	g_free(r->run_id);
	g_free(r);
}

/* ---- Doubts -------------------------------------------------------------------------------- */

/* Also proves that the server of R is the one that there is now. */
static int
settle(RespConnection *r, const RespDoubt *doubt, int64_t deadline_ns)
{
	g_autofree char *id = g_strdup_printf("%" G_GINT64_FORMAT, doubt->id);
	const char *const kill[] = {"CLIENT", "KILL", "ID", id, NULL};
	const char *const ping[] = {"PING", NULL};
	/* Another process has never heard of it. */
	bool is_same = !g_strcmp0(doubt->run_id, r->run_id);
	redisReply *reply;
	int rc = resp_command(r, is_same ? kill : ping, &reply, deadline_ns);

	if (rc < 0)
		return rc;
	if (is_same && reply->type == REDIS_REPLY_ERROR)
		g_warning("resp: CLIENT KILL is refused (%s): a change that timed out may still "
			  "be carried out late",
			  reply->str);
	freeReplyObject(reply);
	return 0;
}

/* One about NODE. */
static bool
take_doubt(RespStore *store, RespNode *node, RespDoubt *doubt)
{
	bool any = false;

	pthread_mutex_lock(&store->lock);
	for (guint i = 0; !any && i < store->doubtful->len; i++) {
		const RespDoubt *d = g_ptr_array_index(store->doubtful, i);

		any = d->node == node;
		if (any)
			*doubt = (RespDoubt){node, d->id, g_strdup(d->run_id)};
	}
	pthread_mutex_unlock(&store->lock);
	return any;
}

static void
drop_doubt(RespStore *store, const RespDoubt *settled)
{
	pthread_mutex_lock(&store->lock);
	for (guint i = 0; i < store->doubtful->len; i++) {
		const RespDoubt *doubt = g_ptr_array_index(store->doubtful, i);

		if (doubt->node == settled->node && doubt->id == settled->id &&
		    !g_strcmp0(doubt->run_id, settled->run_id)) {
			g_ptr_array_remove_index(store->doubtful, i);
			break;
		}
	}
	atomic_store(&store->n_doubtful, store->doubtful->len);
	pthread_mutex_unlock(&store->lock);
}

int
resp_settle_doubts(RespConnection *r, int64_t deadline_ns)
{
	RespDoubt doubt;
	int rc = 0;

	while (rc == 0 && atomic_load(&r->store->n_doubtful) > 0 &&
	       take_doubt(r->store, r->node, &doubt)) {
		rc = settle(r, &doubt, deadline_ns);
		if (rc == 0)
			drop_doubt(r->store, &doubt);
		g_free(doubt.run_id);
	}
	return rc;
}
