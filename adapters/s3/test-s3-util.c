/* SPDX-License-Identifier: Apache-2.0 */

/* See test-s3-util.h. */

#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "test-s3-util.h"

#define WAIT_MS 30000

atomic_int fake_mode, fake_left;
int fake_port;
char *fake_request;
char *credentials_path;

/* ---- The server ---------------------------------------------------------------------------- */

typedef struct Object {
	GString *body;
	char *meta; /* its x-amz-meta- headers, each with a line end */
} Object;

static int listener = -1;
static pthread_t acceptor;
static GPtrArray *threads;
static GArray *sockets;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static GHashTable *objects; /* path -> Object */
static char *listing, *wanted_key;

static void
object_free(void *data)
{
	Object *object = data;

	g_string_free(object->body, TRUE);
	g_free(object->meta);
	g_free(object);
}

void
fake_set(FakeMode mode, int left)
{
	atomic_store(&fake_left, left);
	atomic_store(&fake_mode, (int)mode);
}

static void
set_string(char **where, const char *text)
{
	pthread_mutex_lock(&lock);
	g_free(*where);
	*where = g_strdup(text);
	pthread_mutex_unlock(&lock);
}

void
fake_set_listing(const char *text)
{
	set_string(&listing, text);
}

void
fake_set_key(const char *key)
{
	set_string(&wanted_key, key);
}

static void
add_answer(GString *out, const char *status, const char *headers, const char *body, size_t len)
{
	g_string_append_printf(out, "HTTP/1.1 %s\r\n%sContent-Length: %zu\r\n\r\n", status, headers,
			       len);
	g_string_append_len(out, body, (gssize)len);
}

static void
add_text(GString *out, const char *status, const char *text)
{
	add_answer(out, status, "Content-Type: application/xml\r\n", text, strlen(text));
}

static void
add_error(GString *out, const char *status, const char *code)
{
	g_autofree char *text = g_strdup_printf("<?xml version=\"1.0\"?>\n<Error><Code>%s</Code>"
						"<Message>Said the test.</Message></Error>",
						code);

	add_text(out, status, text);
}

/* The lines of HEAD that are metadata. */
static char *
meta_of(const char *head)
{
	g_auto(GStrv) lines = g_strsplit(head, "\r\n", -1);
	GString *meta = g_string_new(NULL);

	for (char **line = lines; *line; line++)
		if (!g_ascii_strncasecmp(*line, "x-amz-meta-", 11))
			g_string_append_printf(meta, "%s\r\n", *line);
	return g_string_free(meta, FALSE);
}

static void
put(const char *path, const char *head, const GString *body)
{
	Object *object = g_new0(Object, 1);
	Object *old = g_hash_table_lookup(objects, path);
	bool is_copy = strstr(head, "x-amz-copy-source:");

	if (is_copy && old)
		object->body = g_string_new_len(old->body->str, (gssize)old->body->len);
	else
		object->body = g_string_new_len(body->str, (gssize)body->len);
	object->meta = meta_of(head);
	g_hash_table_replace(objects, g_strdup(path), object);
}

/* HEAD or GET of an object. */
static void
get(GString *out, bool is_head, const Object *object, FakeMode mode)
{
	g_autofree char *headers =
		g_strdup_printf("ETag: \"%u\"\r\n%s", g_str_hash(object->body->str), object->meta);
	g_autoptr(GString) body = g_string_new_len(object->body->str, (gssize)object->body->len);

	if (mode == FAKE_LONG)
		g_string_append_c(body, 'x');
	if (mode == FAKE_FLIPPED && body->len)
		body->str[0] ^= 1;
	if (is_head && mode == FAKE_NO_LENGTH) {
		g_string_append_printf(out, "HTTP/1.1 200 OK\r\n%s\r\n", headers);
		return;
	}
	add_answer(out, "200 OK", headers, body->str, body->len);
	if (is_head)
		g_string_truncate(out, out->len - body->len);
	else if (mode == FAKE_SHORT)
		g_string_truncate(out, out->len - (body->len + 1) / 2);
}

static void
answer_object(GString *out,
	      const char *method,
	      const char *path,
	      const char *head,
	      const GString *body,
	      FakeMode mode)
{
	const Object *object = g_hash_table_lookup(objects, path);

	if (!strcmp(method, "PUT")) {
		put(path, head, body);
		if (mode == FAKE_COPY_ERROR)
			add_error(out, "200 OK", "InternalError");
		else
			add_text(out, "200 OK",
				 strstr(head, "x-amz-copy-source:")
					 ? "<CopyObjectResult><ETag>x</ETag></CopyObjectResult>"
					 : "");
	} else if (!strcmp(method, "DELETE")) {
		g_hash_table_remove(objects, path);
		g_string_append(out, "HTTP/1.1 204 No Content\r\n\r\n");
	} else if (!object && !strcmp(method, "HEAD")) {
		g_string_append(out, "HTTP/1.1 404 Not Found\r\n\r\n");
	} else if (!object) {
		add_error(out, "404 Not Found", "NoSuchKey");
	} else {
		get(out, !strcmp(method, "HEAD"), object, mode);
	}
}

/* false: the connection ends after it. */
static bool
answer(GString *out, const char *head, const GString *body)
{
	static const char nothing[] =
		"<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>";
	g_auto(GStrv) words = g_strsplit_set(head, " \r", 3);
	bool is_bucket = strchr(words[1], '?'), is_head = !strcmp(words[0], "HEAD");
	FakeMode mode = (FakeMode)atomic_load(&fake_mode);
	bool is_for_all = mode == FAKE_DENIED || mode == FAKE_NOBUCKET || mode == FAKE_NONSENSE ||
			  mode == FAKE_HANG;

	if (is_bucket && !is_for_all)
		mode = FAKE_OK;
	else if (atomic_load(&fake_left) == 0)
		mode = FAKE_OK;
	else if (atomic_load(&fake_left) > 0 && mode != FAKE_OK)
		atomic_fetch_sub(&fake_left, 1);
	if (wanted_key && !strstr(head, wanted_key))
		mode = FAKE_DENIED;
	if (mode == FAKE_DENIED)
		add_error(out, "403 Forbidden", is_head ? "" : "SignatureDoesNotMatch");
	else if (mode == FAKE_CLOCK)
		add_error(out, "403 Forbidden", "RequestTimeTooSkewed");
	else if (mode == FAKE_SLOWDOWN)
		add_error(out, "503 Slow Down", "SlowDown");
	else if (mode == FAKE_NOBUCKET)
		add_error(out, "404 Not Found", "NoSuchBucket");
	else if (mode == FAKE_FULL)
		add_error(out, "507 Insufficient Storage", "InsufficientStorage");
	else if (mode == FAKE_NONSENSE)
		add_text(out, "200 OK", "<html><body>Welcome!</body></html>");
	else if (is_bucket)
		add_text(out, "200 OK", listing ? listing : nothing);
	else if (mode != FAKE_RESET && mode != FAKE_HANG)
		answer_object(out, words[0], words[1], head, body, mode);
	if (is_head && out->len && mode != FAKE_OK && mode != FAKE_NO_LENGTH) {
		char *end = strstr(out->str, "\r\n\r\n");

		g_string_truncate(out, (gsize)(end + 4 - out->str));
	}
	return mode != FAKE_RESET && mode != FAKE_SHORT && mode != FAKE_NO_LENGTH;
}

/* false: the client is gone. */
static bool
read_more(int fd, GString *data)
{
	char buffer[65536];
	ssize_t n = recv(fd, buffer, sizeof(buffer), 0);

	if (n > 0)
		g_string_append_len(data, buffer, n);
	return n > 0;
}

static bool
serve_one(int fd, GString *data)
{
	char *end;

	while (!(end = strstr(data->str, "\r\n\r\n")))
		if (!read_more(fd, data))
			return false;
	size_t head_len = (size_t)(end + 4 - data->str), body_len = 0;
	g_autofree char *head = g_strndup(data->str, head_len);
	g_autofree char *lower = g_ascii_strdown(head, -1);
	const char *length = strstr(lower, "\r\ncontent-length: ");
	if (length)
		body_len = strtoul(length + 18, NULL, 10);
	while (data->len < head_len + body_len)
		if (!read_more(fd, data))
			return false;
	g_autoptr(GString) body = g_string_new_len(data->str + head_len, (gssize)body_len);
	g_autoptr(GString) out = g_string_new(NULL);
	g_string_erase(data, 0, (gssize)(head_len + body_len));
	pthread_mutex_lock(&lock);
	g_free(fake_request);
	fake_request = g_strdup(head);
	bool goes_on = answer(out, head, body);
	pthread_mutex_unlock(&lock);
	return send(fd, out->str, out->len, MSG_NOSIGNAL) == (ssize_t)out->len && goes_on;
}

static void *
connection_main(void *user)
{
	int fd = GPOINTER_TO_INT(user);
	g_autoptr(GString) data = g_string_new(NULL);

	while (serve_one(fd, data))
		;
	shutdown(fd, SHUT_RDWR);
	return NULL;
}

static void *
accept_main(void *user)
{
	int fd;

	while ((fd = accept(listener, NULL, NULL)) >= 0) {
		pthread_t thread;

		assert_int_equal(
			pthread_create(&thread, NULL, connection_main, GINT_TO_POINTER(fd)), 0);
		pthread_mutex_lock(&lock);
		g_ptr_array_add(threads, (void *)thread);
		g_array_append_val(sockets, fd);
		pthread_mutex_unlock(&lock);
	}
	return NULL;
}

int
fake_start(void **state)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof(address);

	fake_set(FAKE_OK, -1);
	fake_set_listing(NULL);
	fake_set_key(NULL);
	objects = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, object_free);
	threads = g_ptr_array_new();
	sockets = g_array_new(FALSE, FALSE, sizeof(int));
	listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(listener, 100), 0);
	assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &len), 0);
	fake_port = ntohs(address.sin_port);
	assert_int_equal(pthread_create(&acceptor, NULL, accept_main, NULL), 0);
	credentials_path = g_strdup_printf("%s/kvc-s3.%d", g_get_tmp_dir(), (int)getpid());
	write_credentials("AKIATEST");
	return 0;
}

int
fake_stop(void **state)
{
	shutdown(listener, SHUT_RDWR);
	pthread_join(acceptor, NULL);
	close(listener);
	for (guint i = 0; i < sockets->len; i++)
		shutdown(g_array_index(sockets, int, i), SHUT_RDWR);
	for (guint i = 0; i < threads->len; i++)
		pthread_join((pthread_t)threads->pdata[i], NULL);
	for (guint i = 0; i < sockets->len; i++)
		close(g_array_index(sockets, int, i));
	g_array_unref(sockets);
	g_ptr_array_unref(threads);
	g_hash_table_unref(objects);
	g_clear_pointer(&fake_request, g_free);
	fake_set_listing(NULL);
	fake_set_key(NULL);
	unlink(credentials_path);
	g_clear_pointer(&credentials_path, g_free);
	return 0;
}

/* ---- The adapter --------------------------------------------------------------------------- */

void
write_credentials(const char *access_key)
{
	g_autofree char *text = g_strdup_printf("[default]\naws_access_key_id = %s\n"
						"aws_secret_access_key = top/secret+\n",
						access_key);

	assert_true(g_file_set_contents_full(credentials_path, text, -1, G_FILE_SET_CONTENTS_NONE,
					     0600, NULL));
}

S3Test
s3_test_new(const char *seconds, const char *more)
{
	g_autofree char *specification = g_strdup_printf(
		"type=s3,s3_endpoint=http://127.0.0.1:%d,s3_bucket=bucket,credentials_file=%s,"
		"request_timeout=%s,connection_timeout=%s%s",
		fake_port, credentials_path, seconds, seconds, more);
	g_autoptr(GError) error = NULL;
	S3Test t = {0};

	t.adapter = kvc_l2_adapter_open(specification, &t.options, &error);
	if (!t.adapter)
		fail_msg("%s", error->message);
	t.ops = t.adapter->ops;
	t.plain = kvc_key_scope_new_plain("a/b", NULL);
	return t;
}

void
s3_test_free(S3Test *t)
{
	t->ops->close(t->adapter);
	kvc_options_free(t->options);
	kvc_key_scope_unref(t->plain);
}

KvcObjectKey *
s3_test_key(const S3Test *t, const char *name)
{
	return kvc_object_key_new(t->plain, KVC_SPACE_PLAIN, name, strlen(name), NULL);
}

static void
await(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&event, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

int64_t
s3_test_store(const S3Test *t, KvcObjectKey *key, const char *text)
{
	KvcObjectAttributes attributes = {
		.mode = 0100640, .uid = 1, .gid = 2, .mtime_ns = 3, .version_ns = 4};
	KvcMemoryObj memory = {
		.data = (void *)text, .bytes = strlen(text), .attributes = &attributes};
	KvcL2StoreResult result;

	t->ops->submit_store_task(t->adapter, &key, &memory, 1);
	while (t->ops->pop_completed_store_tasks(t->adapter, &result, 1) == 0)
		await(t->ops->get_store_event_fd(t->adapter));
	return result.bytes_transferred;
}

bool
s3_test_loads(const S3Test *t, KvcObjectKey *key, const char *text)
{
	size_t bytes = strlen(text);
	g_autofree char *data = g_malloc0(bytes + 1);
	KvcMemoryObj memory = {.data = data, .bytes = bytes};
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	KvcL2TaskId id = t->ops->submit_load_task(t->adapter, &key, &memory, 1);

	while (t->ops->query_load_result(t->adapter, id, loaded) == 0)
		await(t->ops->get_load_event_fd(t->adapter));
	if (kvc_bitmap_test(loaded, 0))
		assert_string_equal(data, text);
	return kvc_bitmap_test(loaded, 0);
}

bool
s3_test_finds(const S3Test *t, KvcObjectKey *key, KvcL2ObjectInfo *info)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo own = {0};
	KvcL2TaskId id = t->ops->submit_lookup_and_lock_task(t->adapter, &key, 1);

	while (t->ops->query_lookup_and_lock_result(t->adapter, id, found, &own) == 0)
		await(t->ops->get_lookup_and_lock_event_fd(t->adapter));
	if (kvc_bitmap_test(found, 0))
		t->ops->submit_unlock(t->adapter, &key, 1);
	kvc_xattrs_unref(g_steal_pointer(&own.xattrs));
	if (info)
		*info = own;
	return kvc_bitmap_test(found, 0);
}

typedef struct Line {
	const char *name;
	char *value;
} Line;

static void
take_line(void *user, const char *name, const char *value)
{
	Line *line = user;

	if (!strcmp(name, line->name) && !line->value)
		line->value = g_strdup(value);
}

char *
s3_test_line(const S3Test *t, const char *name)
{
	Line line = {.name = name};

	t->ops->describe(t->adapter, take_line, &line);
	return line.value;
}

void
s3_test_assert_line(const S3Test *t, const char *name, const char *value)
{
	g_autofree char *line = s3_test_line(t, name);

	assert_non_null(line);
	assert_string_equal(line, value);
}
