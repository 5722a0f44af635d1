/* SPDX-License-Identifier: Apache-2.0 */

/* What a request is made of, and waiting for several of them. */

#include <errno.h>
#include <string.h>

#include "s3.h"

#define MAX_SIGNED 16

/* ---- Making -------------------------------------------------------------------------------- */

void
s3_exchange_init(S3Exchange *x, S3Store *store, const char *method, const char *name, char *query)
{
	GString *path = g_string_new(store->base_path);

	if (name || path->len == 0)
		g_string_append_c(path, '/');
	if (name)
		s3_append_encoded(path, name, true);
	*x = (S3Exchange){.method = method,
			  .path = g_string_free(path, FALSE),
			  .query = query ? query : g_strdup("")};
	x->headers = g_ptr_array_new_with_free_func(g_free);
}

void
s3_exchange_add_header(S3Exchange *x, const char *name, const char *value)
{
	g_ptr_array_add(x->headers, g_strdup_printf("%s: %s", name, value));
}

void
s3_exchange_clear(S3Exchange *x)
{
	g_free(x->path);
	g_free(x->query);
	g_clear_pointer(&x->headers, g_ptr_array_unref);
	g_free(x->error_text);
	if (x->text)
		g_string_free(x->text, TRUE);
	g_free(x->etag);
	g_free(x->meta);
	g_free(x->meta_xattrs);
}

/* ---- Signing ------------------------------------------------------------------------------- */

/* "name: value" (transfer none) of LINE, which is cut in two. */
static S3Header
split_header(char *line)
{
	char *colon = strchr(line, ':');

	*colon = '\0';
	return (S3Header){line, colon + 2};
}

static struct curl_slist *
append_header(struct curl_slist *list, const char *name, const char *value)
{
	g_autofree char *line = g_strdup_printf("%s: %s", name, value);

	return curl_slist_append(list, line);
}

struct curl_slist *
s3_prepare(S3Exchange *x, void *user)
{
	S3Store *store = user;
	S3Credentials credentials;
	g_autofree char *date = s3_sign_date(kvc_wall_ns());
	g_autoptr(GPtrArray) lines = g_ptr_array_new_with_free_func(g_free);
	S3Header headers[MAX_SIGNED] = {{"host", store->host},
					{"x-amz-content-sha256", S3_UNSIGNED_PAYLOAD},
					{"x-amz-date", date}};
	size_t n = 3;
	struct curl_slist *list = NULL;

	s3_credentials_get(store, &credentials);
	if (credentials.session_token)
		headers[n++] = (S3Header){"x-amz-security-token", credentials.session_token};
	for (guint i = 0; i < x->headers->len; i++) {
		char *line = g_strdup(g_ptr_array_index(x->headers, i));

		g_assert(n < MAX_SIGNED);
		g_ptr_array_add(lines, line);
		headers[n++] = split_header(line);
	}
	const S3Signer signer = {.access_key = credentials.access_key,
				 .secret_key = credentials.secret_key,
				 .region = store->region,
				 .service = "s3",
				 .date = date};
	const S3Signed request = {.method = x->method,
				  .path = x->path,
				  .query = x->query,
				  .headers = headers,
				  .n_headers = n,
				  .payload_hash = S3_UNSIGNED_PAYLOAD};
	g_autofree char *authorization = s3_sign(&signer, &request);
	for (size_t i = 0; i < n; i++)
		list = append_header(list, headers[i].name, headers[i].value);
	list = append_header(list, "authorization", authorization);
	if (!strcmp(x->method, "PUT"))
		list = append_header(list, "content-type", "application/octet-stream");
	list = curl_slist_append(list, "expect:"); /* no question before the body */
	s3_credentials_clear(&credentials);
	return list;
}

/* ---- Waiting ------------------------------------------------------------------------------- */

static void
note_done(S3Exchange *x, void *user)
{
	S3Connection *connection = user;

	pthread_mutex_lock(&connection->lock);
	if (--connection->pending == 0)
		pthread_cond_signal(&connection->ended);
	pthread_mutex_unlock(&connection->lock);
}

void
s3_run(S3Connection *connection, S3Exchange *xs, size_t n, int64_t deadline_ns)
{
	S3Http *http = connection->store->http;

	connection->pending = n;
	for (size_t i = 0; i < n; i++) {
		xs[i].owner = connection;
		xs[i].deadline_ns = deadline_ns;
		xs[i].done = note_done;
		xs[i].user = connection;
		s3_http_submit(http, &xs[i]);
	}
	if (atomic_load(&connection->is_interrupted))
		s3_http_interrupt(http, connection);
	pthread_mutex_lock(&connection->lock);
	while (connection->pending > 0)
		pthread_cond_wait(&connection->ended, &connection->lock);
	pthread_mutex_unlock(&connection->lock);
}

void
s3_interrupt(void *user)
{
	S3Connection *connection = user;

	atomic_store(&connection->is_interrupted, true);
	s3_http_interrupt(connection->store->http, connection);
}

void
s3_disconnect(void *user)
{
	S3Connection *connection = user;

	pthread_cond_destroy(&connection->ended);
	pthread_mutex_destroy(&connection->lock);
	g_free(connection);
}
