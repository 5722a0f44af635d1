/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The thread that has all connections. A request waits in the queue of its kind, is tried over one
 * of the easy handles, and after a failure that may pass waits for its next try, without a handle.
 *
 * Bytes go from the caller's memory into curl's send buffer, and from its receive buffer into the
 * caller's memory. No lock is held while curl works or DONE is called.
 */

#include <errno.h>
#include <string.h>

#include <kvcache/connector.h>
#include <kvcache/io.h>

#include "s3-http.h"

#define FIRST_PAUSE_NS (100 * KVC_MSEC_NS)
#define MAX_PAUSE_NS (5 * KVC_SEC_NS)
#define BUFFER_BYTES (512L << 10)
#define POLL_MS 1000
/* A broken connection is not one that was too slow for this: it is tried again fewer times. */
#define BROKEN_TRIES 3

typedef enum { BULK, SMALL, KINDS } Kind;

struct S3Http {
	/* Immutable after open */
	char *base_url, *ca_file;
	unsigned max[KINDS];
	int64_t connect_timeout_ns, idle_ns;
	struct curl_slist *(*prepare)(S3Exchange *x, void *user);
	void *user;
	CURLM *multi;
	pthread_t thread;

	/* Protected by lock */
	pthread_mutex_t lock;
	GQueue submitted;	/* of S3Exchange */
	GPtrArray *interrupted; /* owners */
	bool is_stopping;

	/* Owned by the thread */
	GQueue queues[KINDS];
	GPtrArray *active; /* with a handle */
	GPtrArray *paused; /* until http.due_ns */
	GPtrArray *idle;   /* CURL, not used */
	unsigned running[KINDS];

	/* Atomic */
	atomic_uint_fast64_t n_requests, n_retries;
	atomic_uint n_in_flight;
};

static Kind
kind_of(const S3Exchange *x)
{
	return x->is_bulk ? BULK : SMALL;
}

/* ---- Ending -------------------------------------------------------------------------------- */

static void
end_exchange(S3Http *http, S3Exchange *x, int error)
{
	x->error = error;
	atomic_fetch_sub(&http->n_in_flight, 1);
	x->done(x, x->user);
}

static void
forget_answer(S3Exchange *x)
{
	g_clear_pointer(&x->error_text, g_free);
	g_clear_pointer(&x->etag, g_free);
	g_clear_pointer(&x->meta, g_free);
	g_clear_pointer(&x->meta_xattrs, g_free);
	if (x->text)
		g_string_truncate(x->text, 0);
	x->status = 0;
	x->received = x->http.sent = 0;
	x->is_too_long = false;
	x->content_length = x->last_modified = x->retry_after_s = -1;
}

/* X has no handle afterwards. */
static void
release_handle(S3Http *http, S3Exchange *x)
{
	curl_multi_remove_handle(http->multi, x->http.easy);
	curl_easy_reset(x->http.easy);
	g_ptr_array_add(http->idle, g_steal_pointer(&x->http.easy));
	g_clear_pointer(&x->http.headers, curl_slist_free_all);
	g_ptr_array_remove_fast(http->active, x);
	http->running[kind_of(x)]--;
}

static int
errno_of(CURLcode code)
{
	switch (code) {
	case CURLE_OK:
		return 0;
	case CURLE_OPERATION_TIMEDOUT:
		return -ETIMEDOUT;
	case CURLE_COULDNT_CONNECT:
		return -ECONNREFUSED;
	case CURLE_COULDNT_RESOLVE_HOST:
	case CURLE_COULDNT_RESOLVE_PROXY:
		return -EHOSTUNREACH;
	case CURLE_SEND_ERROR:
	case CURLE_RECV_ERROR:
	case CURLE_GOT_NOTHING:
		return -ECONNRESET;
	case CURLE_SSL_CONNECT_ERROR:
	case CURLE_PEER_FAILED_VERIFICATION:
	case CURLE_SSL_CACERT_BADFILE:
		return -ECONNABORTED;
	default: /* among them an answer that ends early */
		return -EIO;
	}
}

/* May a try that ended so be followed by another one? */
static bool
may_pass(CURLcode code, const S3Exchange *x)
{
	if (code == CURLE_OK)
		return x->status == 429 || x->status == 500 ||
		       (x->status >= 502 && x->status <= 504);
	return x->http.tries < BROKEN_TRIES &&
	       (code == CURLE_SEND_ERROR || code == CURLE_RECV_ERROR || code == CURLE_GOT_NOTHING ||
		code == CURLE_PARTIAL_FILE);
}

/* Twice as long each time, and at random, so that not all come again together. */
static int64_t
pause_ns(const S3Exchange *x)
{
	int64_t most_ns = MIN(FIRST_PAUSE_NS << (x->http.tries - 1), MAX_PAUSE_NS);
	int64_t ns = most_ns / 2 + (int64_t)(g_random_double() * (double)most_ns / 2);

	return x->retry_after_s > 0 ? MAX(ns, x->retry_after_s * KVC_SEC_NS) : ns;
}

static void
end_try(S3Http *http, S3Exchange *x, CURLcode code)
{
	const char *text = curl_easy_strerror(code);
	long os_error = 0;

	curl_easy_getinfo(x->http.easy, CURLINFO_RESPONSE_CODE, &x->status);
	curl_easy_getinfo(x->http.easy, CURLINFO_OS_ERRNO, &os_error);
	release_handle(http, x);
	x->http.due_ns = kvc_now_ns() + pause_ns(x);
	if (x->http.tries < S3_HTTP_TRIES && may_pass(code, x) && x->http.due_ns < x->deadline_ns) {
		atomic_fetch_add(&http->n_retries, 1);
		g_ptr_array_add(http->paused, x);
		return;
	}
	/* The body of what is too long was not waited for. */
	if (code == CURLE_WRITE_ERROR && x->is_too_long)
		code = CURLE_OK;
	if (code != CURLE_OK)
		x->error_text = os_error && code == CURLE_COULDNT_CONNECT
					? g_strdup_printf("%s: %s", text, g_strerror((int)os_error))
					: g_strdup(text);
	end_exchange(http, x, errno_of(code));
}

/* ---- Callbacks of curl --------------------------------------------------------------------- */

static size_t
write_body(char *data, size_t size, size_t n, void *user)
{
	S3Exchange *x = user;
	long status = 0;

	curl_easy_getinfo(x->http.easy, CURLINFO_RESPONSE_CODE, &status);
	if (x->has_sink && status == 200) {
		if (n > x->sink_bytes - x->received) {
			x->is_too_long = true;
			return 0;
		}
		memcpy((char *)x->sink + x->received, data, n);
	} else {
		if (!x->text)
			x->text = g_string_new(NULL);
		if (x->text->len + n > S3_HTTP_MAX_TEXT_BYTES)
			return 0;
		g_string_append_len(x->text, data, (gssize)n);
	}
	x->received += n;
	return n;
}

static size_t
read_body(char *data, size_t size, size_t n, void *user)
{
	S3Exchange *x = user;

	n = MIN(size * n, x->body_bytes - x->http.sent);
	if (n > 0)
		memcpy(data, (const char *)x->body + x->http.sent, n);
	x->http.sent += n;
	return n;
}

/* When the connection turned out to be dead before anything was answered. */
static int
seek_body(void *user, curl_off_t offset, int origin)
{
	S3Exchange *x = user;

	if (origin != SEEK_SET || offset < 0 || (size_t)offset > x->body_bytes)
		return CURL_SEEKFUNC_FAIL;
	x->http.sent = (size_t)offset;
	return CURL_SEEKFUNC_OK;
}

/* The value (transfer full) of the header NAME, if LINE is one; else NULL. */
static char *
header_value(const char *line, size_t len, const char *name)
{
	size_t name_len = strlen(name);

	if (len <= name_len || line[name_len] != ':' || g_ascii_strncasecmp(line, name, name_len))
		return NULL;
	return g_strstrip(g_strndup(line + name_len + 1, len - name_len - 1));
}

static void
take_string(char **where, const char *line, size_t len, const char *name)
{
	char *value = header_value(line, len, name);

	if (!value)
		return;
	g_free(*where);
	*where = value;
}

static size_t
take_header(char *line, size_t size, size_t n, void *user)
{
	S3Exchange *x = user;
	g_autofree char *length = header_value(line, n, "content-length");
	g_autofree char *modified = header_value(line, n, "last-modified");
	g_autofree char *retry = header_value(line, n, "retry-after");

	if (length)
		x->content_length = g_ascii_strtoll(length, NULL, 10);
	if (modified)
		x->last_modified = (int64_t)curl_getdate(modified, NULL);
	if (retry)
		x->retry_after_s = CLAMP(g_ascii_strtoll(retry, NULL, 10), 0, 3600);
	take_string(&x->etag, line, n, "etag");
	take_string(&x->meta, line, n, "x-amz-meta-kvcfs");
	take_string(&x->meta_xattrs, line, n, "x-amz-meta-kvcfs-xattrs");
	return n;
}

/* ---- Trying -------------------------------------------------------------------------------- */

static long
in_ms(int64_t ns)
{
	return (long)CLAMP(ns / KVC_MSEC_NS, 1, INT32_MAX);
}

static void
set_method(CURL *easy, const S3Exchange *x)
{
	if (!strcmp(x->method, "PUT")) {
		curl_easy_setopt(easy, CURLOPT_UPLOAD, 1L);
		curl_easy_setopt(easy, CURLOPT_INFILESIZE_LARGE, (curl_off_t)x->body_bytes);
	} else if (!strcmp(x->method, "HEAD")) {
		curl_easy_setopt(easy, CURLOPT_NOBODY, 1L);
	} else {
		curl_easy_setopt(easy, CURLOPT_CUSTOMREQUEST, x->method);
	}
}

static void
set_up(S3Http *http, S3Exchange *x)
{
	CURL *easy = x->http.easy;
	g_autofree char *url =
		g_strconcat(http->base_url, x->path, *x->query ? "?" : "", x->query, NULL);

	curl_easy_setopt(easy, CURLOPT_PRIVATE, x);
	curl_easy_setopt(easy, CURLOPT_URL, url);
	curl_easy_setopt(easy, CURLOPT_PATH_AS_IS, 1L);
	curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
	curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
	curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
	/* Who gives up waits for no answer of a name server, with all other transfers. */
	curl_easy_setopt(easy, CURLOPT_QUICK_EXIT, 1L);
	curl_easy_setopt(easy, CURLOPT_USERAGENT, "kvcachefs");
	if (http->ca_file)
		curl_easy_setopt(easy, CURLOPT_CAINFO, http->ca_file);
	curl_easy_setopt(easy, CURLOPT_HTTPHEADER, x->http.headers);
	curl_easy_setopt(easy, CURLOPT_BUFFERSIZE, x->is_bulk ? BUFFER_BYTES : 16384L);
	curl_easy_setopt(easy, CURLOPT_UPLOAD_BUFFERSIZE, x->is_bulk ? BUFFER_BYTES : 16384L);
	curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, in_ms(http->connect_timeout_ns));
	curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, in_ms(x->deadline_ns - kvc_now_ns()));
	curl_easy_setopt(easy, CURLOPT_LOW_SPEED_LIMIT, 1L);
	curl_easy_setopt(easy, CURLOPT_LOW_SPEED_TIME,
			 (long)((http->idle_ns + KVC_SEC_NS - 1) / KVC_SEC_NS));
	curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, write_body);
	curl_easy_setopt(easy, CURLOPT_WRITEDATA, x);
	curl_easy_setopt(easy, CURLOPT_READFUNCTION, read_body);
	curl_easy_setopt(easy, CURLOPT_READDATA, x);
	curl_easy_setopt(easy, CURLOPT_SEEKFUNCTION, seek_body);
	curl_easy_setopt(easy, CURLOPT_SEEKDATA, x);
	curl_easy_setopt(easy, CURLOPT_HEADERFUNCTION, take_header);
	curl_easy_setopt(easy, CURLOPT_HEADERDATA, x);
	set_method(easy, x);
}

static void
begin_try(S3Http *http, S3Exchange *x)
{
	if (kvc_now_ns() >= x->deadline_ns) {
		end_exchange(http, x, -ETIMEDOUT);
		return;
	}
	forget_answer(x);
	x->http.tries++;
	x->http.easy = http->idle->len
			       ? g_ptr_array_steal_index_fast(http->idle, http->idle->len - 1)
			       : curl_easy_init();
	g_assert(x->http.easy); /* as any allocation */
	x->http.headers = http->prepare(x, http->user);
	set_up(http, x);
	g_ptr_array_add(http->active, x);
	http->running[kind_of(x)]++;
	atomic_fetch_add(&http->n_requests, 1);
	if (curl_multi_add_handle(http->multi, x->http.easy) != CURLM_OK) {
		release_handle(http, x);
		end_exchange(http, x, -EIO);
	}
}

/* Those whose pause is over get in line first. */
static void
resume_paused(S3Http *http)
{
	int64_t now_ns = kvc_now_ns();

	for (guint i = http->paused->len; i-- > 0;) {
		S3Exchange *x = g_ptr_array_index(http->paused, i);

		if (x->http.due_ns <= now_ns) {
			g_ptr_array_remove_index_fast(http->paused, i);
			g_queue_push_head(&http->queues[kind_of(x)], x);
		}
	}
}

static void
begin_tries(S3Http *http)
{
	resume_paused(http);
	for (Kind kind = 0; kind < KINDS; kind++)
		while (http->running[kind] < http->max[kind] &&
		       !g_queue_is_empty(&http->queues[kind]))
			begin_try(http, g_queue_pop_head(&http->queues[kind]));
}

static void
end_tries(S3Http *http)
{
	CURLMsg *message;
	int left;

	while ((message = curl_multi_info_read(http->multi, &left))) {
		CURLcode code = message->data.result;
		S3Exchange *x;

		if (message->msg != CURLMSG_DONE)
			continue;
		curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, (char **)(void *)&x);
		end_try(http, x, code);
	}
}

/* ---- The thread ---------------------------------------------------------------------------- */

/* OWNER NULL: of everybody. */
static void
cancel(S3Http *http, const void *owner)
{
	for (guint i = http->active->len; i-- > 0;) {
		S3Exchange *x = g_ptr_array_index(http->active, i);

		if (owner && x->owner != owner)
			continue;
		release_handle(http, x);
		end_exchange(http, x, -ECANCELED);
	}
	for (guint i = http->paused->len; i-- > 0;) {
		S3Exchange *x = g_ptr_array_index(http->paused, i);

		if (owner && x->owner != owner)
			continue;
		g_ptr_array_remove_index_fast(http->paused, i);
		end_exchange(http, x, -ECANCELED);
	}
	for (Kind kind = 0; kind < KINDS; kind++)
		for (GList *link = http->queues[kind].head, *next; link; link = next) {
			S3Exchange *x = link->data;

			next = link->next;
			if (owner && x->owner != owner)
				continue;
			g_queue_delete_link(&http->queues[kind], link);
			end_exchange(http, x, -ECANCELED);
		}
}

/* false: it is to stop. */
static bool
take_submitted(S3Http *http)
{
	g_autoptr(GPtrArray) interrupted = NULL;
	S3Exchange *x;

	pthread_mutex_lock(&http->lock);
	while ((x = g_queue_pop_head(&http->submitted)))
		g_queue_push_tail(&http->queues[kind_of(x)], x);
	if (http->interrupted->len > 0) {
		interrupted = http->interrupted;
		http->interrupted = g_ptr_array_new();
	}
	bool goes_on = !http->is_stopping;
	pthread_mutex_unlock(&http->lock);
	for (guint i = 0; interrupted && i < interrupted->len; i++)
		cancel(http, g_ptr_array_index(interrupted, i));
	return goes_on;
}

static int
poll_ms(const S3Http *http)
{
	int64_t ns = POLL_MS * KVC_MSEC_NS, now_ns = kvc_now_ns();

	for (guint i = 0; i < http->paused->len; i++) {
		const S3Exchange *x = g_ptr_array_index(http->paused, i);

		ns = MIN(ns, x->http.due_ns - now_ns);
	}
	return (int)CLAMP((ns + KVC_MSEC_NS - 1) / KVC_MSEC_NS, 0, POLL_MS);
}

static void *
http_main(void *user)
{
	S3Http *http = user;
	int running;

	pthread_setname_np(pthread_self(), "kvc-s3");
	while (take_submitted(http)) {
		begin_tries(http);
		curl_multi_perform(http->multi, &running);
		end_tries(http);
		begin_tries(http); /* in the place of those that ended */
		curl_multi_poll(http->multi, NULL, 0, poll_ms(http), NULL);
	}
	cancel(http, NULL);
	return NULL;
}

/* ---- From outside -------------------------------------------------------------------------- */

static gpointer
init_curl(gpointer user)
{
	return GINT_TO_POINTER(curl_global_init(CURL_GLOBAL_DEFAULT) + 1);
}

static S3Http *
http_alloc(const S3HttpConfig *config)
{
	S3Http *http = g_new0(S3Http, 1);

	http->base_url = g_strdup(config->base_url);
	http->ca_file = g_strdup(config->ca_file);
	http->max[BULK] = config->max_bulk;
	http->max[SMALL] = config->max_small;
	http->connect_timeout_ns = config->connect_timeout_ns;
	http->idle_ns = config->idle_ns;
	http->prepare = config->prepare;
	http->user = config->user;
	pthread_mutex_init(&http->lock, NULL);
	http->interrupted = g_ptr_array_new();
	http->active = g_ptr_array_new();
	http->paused = g_ptr_array_new();
	http->idle = g_ptr_array_new_with_free_func((GDestroyNotify)curl_easy_cleanup);
	return http;
}

/* There is no thread. */
static void
http_dealloc(S3Http *http)
{
	g_ptr_array_unref(http->idle);
	g_ptr_array_unref(http->paused);
	g_ptr_array_unref(http->active);
	g_ptr_array_unref(http->interrupted);
	if (http->multi)
		curl_multi_cleanup(http->multi);
	pthread_mutex_destroy(&http->lock);
	g_free(http->base_url);
	g_free(http->ca_file);
	g_free(http);
}

S3Http *
s3_http_new(const S3HttpConfig *config, GError **error)
{
	static GOnce once = G_ONCE_INIT;
	S3Http *http = http_alloc(config);
	int rc = EIO;

	if (GPOINTER_TO_INT(g_once(&once, init_curl, NULL)) == CURLE_OK + 1)
		http->multi = curl_multi_init();
	if (http->multi) {
		long max = (long)(config->max_bulk + config->max_small);

		/* As many as there are requests: none waits within curl, where it has no deadline.
		 */
		curl_multi_setopt(http->multi, CURLMOPT_MAXCONNECTS, max);
		rc = pthread_create(&http->thread, NULL, http_main, http);
	}
	if (rc == 0)
		return http;
	g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(rc), "cannot start curl: %s",
		    g_strerror(rc));
	http_dealloc(http);
	return NULL;
}

void
s3_http_free(S3Http *http)
{
	pthread_mutex_lock(&http->lock);
	http->is_stopping = true;
	pthread_mutex_unlock(&http->lock);
	curl_multi_wakeup(http->multi);
	pthread_join(http->thread, NULL);
	http_dealloc(http);
}

void
s3_http_submit(S3Http *http, S3Exchange *x)
{
	atomic_fetch_add(&http->n_in_flight, 1);
	pthread_mutex_lock(&http->lock);
	g_queue_push_tail(&http->submitted, x);
	pthread_mutex_unlock(&http->lock);
	curl_multi_wakeup(http->multi);
}

void
s3_http_interrupt(S3Http *http, const void *owner)
{
	pthread_mutex_lock(&http->lock);
	g_ptr_array_add(http->interrupted, (void *)owner);
	pthread_mutex_unlock(&http->lock);
	curl_multi_wakeup(http->multi);
}

S3HttpCounters
s3_http_get_counters(S3Http *http)
{
	return (S3HttpCounters){
		.requests = atomic_load(&http->n_requests),
		.retries = atomic_load(&http->n_retries),
		.in_flight = atomic_load(&http->n_in_flight),
	};
}
