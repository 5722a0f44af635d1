/* SPDX-License-Identifier: Apache-2.0 */

/* The adapter on a Redis server of its own, and on one that is not what it should be. */

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

#include <hiredis/hiredis.h>

#define WAIT_MS 30000
#define SKIPPED 77

static char *directory, *socket_path, *password_path;
static GPid server;

static int
set_up_directory(void **state)
{
	directory = g_dir_make_tmp("kvc-resp.XXXXXX", NULL);
	socket_path = g_strdup_printf("%s/socket", directory);
	password_path = g_strdup_printf("%s/password", directory);
	return 0;
}

static int
tear_down_directory(void **state)
{
	g_autofree char *command = g_strdup_printf("rm -rf '%s'", directory);

	return system(command);
}

/* ---- The server ---------------------------------------------------------------------------- */

static redisContext *
client_new(void)
{
	for (int i = 0; i < 1000; i++) {
		redisContext *client = redisConnectUnix(socket_path);

		if (client && !client->err)
			return client;
		if (client)
			redisFree(client);
		g_usleep(10000);
	}
	fail_msg("no server");
	return NULL;
}

/* What a command answers, as text (transfer full). */
G_GNUC_PRINTF(1, 2)
static char *
ask(const char *format, ...)
{
	redisContext *client = client_new();
	va_list args;

	va_start(args, format);
	redisReply *reply = redisvCommand(client, format, args);
	va_end(args);
	assert_non_null(reply);
	char *text = reply->type == REDIS_REPLY_INTEGER ? g_strdup_printf("%lld", reply->integer)
							: g_strdup(reply->str);
	freeReplyObject(reply);
	redisFree(client);
	return text;
}

#define assert_answer(want, ...)                                                                   \
	do {                                                                                       \
		g_autofree char *answer = ask(__VA_ARGS__);                                        \
		assert_string_equal(answer ? answer : "nil", want);                                \
	} while (0)

static int
start_server(void **state)
{
	char *argv[] = {"redis-server", "--port", "0", "--unixsocket", socket_path, "--dir",
			directory,	"--save", "",  "--appendonly", "no",	    "--loglevel",
			"warning",	NULL};

	assert_true(g_spawn_async(NULL, argv, NULL,
				  G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD |
					  G_SPAWN_STDOUT_TO_DEV_NULL,
				  NULL, NULL, &server, NULL));
	redisFree(client_new());
	return 0;
}

static int
stop_server(void **state)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	unlink(socket_path);
	return 0;
}

/* ---- The adapter --------------------------------------------------------------------------- */

typedef struct Resp {
	KvcOptions *options;
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcKeyScope *scope, *plain;
} Resp;

static Resp
resp_new_patient(const char *seconds, const char *more)
{
	g_autofree char *specification =
		g_strdup_printf("type=resp,unix_socket=%s,request_timeout=%s,"
				"connection_timeout=0.3%s",
				socket_path, seconds, more);
	g_autoptr(GError) error = NULL;
	Resp r = {0};

	r.adapter = kvc_l2_adapter_open(specification, &r.options, &error);
	if (!r.adapter)
		fail_msg("%s", error->message);
	r.ops = r.adapter->ops;
	r.scope = kvc_key_scope_new("org/model", 0x01000100, 0, NULL, NULL);
	r.plain = kvc_key_scope_new_plain("a/b", NULL);
	return r;
}

static Resp
resp_new(const char *more)
{
	return resp_new_patient("1", more);
}

static void
resp_free(Resp *r)
{
	r->ops->close(r->adapter);
	kvc_options_free(r->options);
	kvc_key_scope_unref(r->scope);
	kvc_key_scope_unref(r->plain);
}

static KvcObjectKey *
chunk(const Resp *r, uint32_t number)
{
	uint8_t hash[4] = {0xab, (uint8_t)(number >> 16), (uint8_t)(number >> 8), (uint8_t)number};

	return kvc_object_key_new(r->scope, KVC_SPACE_CHUNK, hash, sizeof(hash), NULL);
}

static void
await_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&event, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

static int64_t
store(const Resp *r, KvcObjectKey *key, const char *data, size_t bytes)
{
	KvcMemoryObj object = {(char *)data, bytes, kvc_io_align_up(bytes)};
	KvcL2TaskId id = r->ops->submit_store_task(r->adapter, &key, &object, 1);
	KvcL2StoreResult result;

	while (r->ops->pop_completed_store_tasks(r->adapter, &result, 1) == 0)
		await_event(r->ops->get_store_event_fd(r->adapter));
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

/* Bytes of the object; -1: not there; -2: not asked. */
static int64_t
lookup(const Resp *r, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info = {0};
	KvcL2TaskId id = r->ops->submit_lookup_and_lock_task(r->adapter, &key, 1);

	while (r->ops->query_lookup_and_lock_result(r->adapter, id, found, &info) == 0)
		await_event(r->ops->get_lookup_and_lock_event_fd(r->adapter));
	r->ops->submit_unlock(r->adapter, &key, 1);
	if (kvc_bitmap_test(found, 0))
		return (int64_t)info.bytes;
	return info.mtime_ns == KVC_L2_NOT_ASKED ? -2 : -1;
}

static bool
load(const Resp *r, KvcObjectKey *key, char *data, size_t bytes)
{
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	KvcMemoryObj object = {data, bytes, kvc_io_align_up(bytes)};
	KvcL2TaskId id = r->ops->submit_load_task(r->adapter, &key, &object, 1);

	while (r->ops->query_load_result(r->adapter, id, loaded) == 0)
		await_event(r->ops->get_load_event_fd(r->adapter));
	return kvc_bitmap_test(loaded, 0);
}

static int delete (const Resp *r, KvcObjectKey *key, bool *is_gone)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);
	int rc = r->ops->delete_keys(r->adapter, &key, 1, deleted);

	*is_gone = kvc_bitmap_test(deleted, 0);
	return rc;
}

static void
note_line(void *user, const char *name, const char *value)
{
	g_hash_table_replace(user, g_strdup(name), g_strdup(value));
}

static char *
get_line(const Resp *r, const char *name)
{
	g_autoptr(GHashTable) lines =
		g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);

	r->ops->describe(r->adapter, note_line, lines);
	return g_strdup(g_hash_table_lookup(lines, name));
}

static void
assert_line(const Resp *r, const char *name, const char *want)
{
	g_autofree char *value = get_line(r, name);

	assert_string_equal(value, want);
}

/* ---- Bytes and names ----------------------------------------------------------------------- */

/* What LMCache has written is read, and what is written is what it would read. */
static void
test_names_and_values(void **state)
{
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1), theirs = chunk(&r, 2);
	g_autoptr(KvcObjectKey) plain =
		kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "f g", 3, NULL);
	char data[6];

	assert_int_equal(store(&r, key, "a\0\r\nb", 5), 5);
	assert_answer("5", "STRLEN org/model@01000100@0@ab000001");
	assert_int_equal(store(&r, key, "a\0\r\nb", 5), 0); /* it is there */
	assert_int_equal(store(&r, plain, "1", 1), 1);
	assert_answer("1", "GET %s", "kvcfs:1:a/b/f g");
	assert_int_equal(store(&r, plain, "", 0), 0);
	assert_int_equal(lookup(&r, plain), 0);
	assert_true(load(&r, plain, NULL, 0));
	assert_answer("OK", "SET org/model@01000100@0@ab000002 theirs");
	assert_int_equal(lookup(&r, theirs), 6);
	assert_true(load(&r, theirs, data, 6));
	assert_memory_equal(data, "theirs", 6);
	/* Another size is a miss, and the connection is good after it. */
	assert_false(load(&r, theirs, data, 5));
	assert_true(load(&r, key, data, 5));
	assert_memory_equal(data, "a\0\r\nb", 5);
	assert_answer("1", "DEL org/model@01000100@0@ab000002");
	assert_int_equal(lookup(&r, theirs), -1);
	assert_answer("1", "RPUSH org/model@01000100@0@ab000002 x"); /* no string */
	assert_int_equal(lookup(&r, theirs), -1);
	assert_false(load(&r, theirs, data, 5));
	assert_line(&r, "health", "ok");
	assert_line(&r, "server", "ok");
	resp_free(&r);
}

static void
test_large_values(void **state)
{
	static const size_t sizes[] = {1, 16383, 16384, 16385, 5000001, 64 << 20};
	Resp r = resp_new_patient("20", "");
	g_autofree char *data = g_malloc(64 << 20), *read = g_malloc(64 << 20);

	for (size_t i = 0; i < 64 << 20; i++)
		data[i] = (char)((i * 2654435761u) >> 13);
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcObjectKey) key = chunk(&r, (uint32_t)i);

		assert_int_equal(store(&r, key, data, sizes[i]), sizes[i]);
		memset(read, 0, sizes[i]);
		if (!load(&r, key, read, sizes[i]))
			fail_msg("%zu bytes", sizes[i]);
		assert_memory_equal(read, data, sizes[i]);
	}
	resp_free(&r);
}

static void
test_list(void **state)
{
	Resp r = resp_new(",database_id=3");
	g_autoptr(GHashTable) seen =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
				      (GDestroyNotify)kvc_object_key_unref, NULL);
	KvcL2ListEntry entries[7] = {0};
	char *cursor = NULL;

	for (uint32_t i = 0; i < 1000; i++) {
		g_autoptr(KvcObjectKey) key = chunk(&r, i);
		store(&r, key, "0123456789", 1 + i % 10);
	}
	assert_answer("0", "DBSIZE"); /* of database 0 */
	g_autoptr(KvcObjectKey) chain = kvc_object_key_new(r.scope, KVC_SPACE_PREFIX, "p", 1, NULL);
	g_autoptr(KvcObjectKey) plain = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "f", 1, NULL);
	store(&r, chain, "c", 1);
	store(&r, plain, "p", 1);
	do {
		ssize_t n = r.ops->list(r.adapter, r.scope, &cursor, entries, 7);

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++)
			assert_true(g_hash_table_add(seen, entries[i].key));
	} while (cursor);
	assert_int_equal(g_hash_table_size(seen), 1001);
	assert_true(g_hash_table_contains(seen, chain));
	assert_int_equal(r.ops->list(r.adapter, r.plain, &cursor, entries, 7), 1);
	assert_true(kvc_object_key_equal(entries[0].key, plain));
	kvc_object_key_unref(entries[0].key);
	assert_null(cursor);
	cursor = g_strdup("nonsense");
	assert_int_equal(r.ops->list(r.adapter, NULL, &cursor, entries, 7), -EINVAL);
	assert_null(cursor);
	resp_free(&r);
}

static void
test_rename(void **state)
{
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) a = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "a", 1, NULL);
	g_autoptr(KvcObjectKey) b = kvc_object_key_new(r.plain, KVC_SPACE_PLAIN, "b", 1, NULL);

	store(&r, a, "1", 1);
	store(&r, b, "22", 2);
	assert_int_equal(r.ops->rename_key(r.adapter, a, b), 0);
	assert_answer("1", "GET kvcfs:1:a/b/b");
	assert_int_equal(r.ops->rename_key(r.adapter, a, b), -ENOENT);
	resp_free(&r);
}

static void
test_not_persistent(void **state)
{
	Resp r = resp_new(",persist_enabled=false");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1), kept = chunk(&r, 2);

	assert_answer("OK", "SET org/model@01000100@0@ab000002 x");
	store(&r, key, "1", 1);
	store(&r, kept, "y", 1); /* skipped: not ours */
	resp_free(&r);
	assert_answer("0", "EXISTS org/model@01000100@0@ab000001");
	assert_answer("1", "EXISTS org/model@01000100@0@ab000002");
}

/* ---- A server in trouble ------------------------------------------------------------------- */

/* Killed and started anew: the same connections go on, and an outage is told as what it is. */
static void
test_restart(void **state)
{
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);

	assert_int_equal(store(&r, key, "1", 1), 1);
	assert_int_equal(lookup(&r, key), 1);
	stop_server(NULL);
	assert_int_equal(lookup(&r, key), -2);
	assert_int_equal(store(&r, key, "1", 1), -ECONNREFUSED);
	assert_line(&r, "health", "failed");
	assert_line(&r, "server", "unreachable");
	start_server(NULL);
	for (int i = 0; i < 1000 && lookup(&r, key) == -2; i++)
		g_usleep(10000);
	assert_int_equal(lookup(&r, key), -1);
	assert_int_equal(store(&r, key, "1", 1), 1);
	assert_line(&r, "server", "ok");
	resp_free(&r);
}

/*
 * Nothing hangs, and what timed out is not carried out later: the server finds the SET in its
 * socket, but that connection is killed before the deletion.
 */
static void
test_stopped_server(void **state)
{
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);
	bool is_gone;

	for (unsigned i = 0; i < 20; i++) /* all workers have connections */
		assert_int_equal(store(&r, key, "12", 1 + i % 2), 1 + i % 2);
	kill(server, SIGSTOP);
	int64_t start = g_get_monotonic_time();
	assert_int_equal(lookup(&r, key), -2);
	assert_true(store(&r, key, "345", 3) < 0);
	assert_true(g_get_monotonic_time() - start < 5 * G_USEC_PER_SEC);
	kill(server, SIGCONT);
	while (delete (&r, key, &is_gone) < 0)
		g_usleep(10000);
	assert_true(is_gone);
	g_usleep(300000);
	assert_answer("0", "EXISTS org/model@01000100@0@ab000001");
	assert_int_equal(store(&r, key, "4", 1), 1);
	resp_free(&r);
}

static void
test_refusals(void **state)
{
	Resp r = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1), other = chunk(&r, 2);

	assert_int_equal(store(&r, key, "1", 1), 1);
	assert_answer("OK", "CONFIG SET maxmemory 1");
	assert_int_equal(store(&r, other, "1", 1), -ENOSPC);
	assert_line(&r, "server", "oom");
	assert_line(&r, "health", "degraded");
	assert_int_equal(lookup(&r, key), 1);
	assert_line(&r, "server", "oom");
	assert_answer("OK", "CONFIG SET maxmemory 0");
	assert_int_equal(store(&r, other, "1", 1), 1);
	assert_line(&r, "server", "ok");
	assert_answer("OK", "REPLICAOF 127.0.0.1 1");
	assert_int_equal(store(&r, other, "22", 2), -EROFS);
	assert_line(&r, "server", "readonly");
	assert_int_equal(lookup(&r, key), 1);
	assert_answer("OK", "REPLICAOF NO ONE");
	assert_int_equal(store(&r, other, "22", 2), 2);
	assert_line(&r, "server", "ok");
	resp_free(&r);
}

static void
test_passwords(void **state)
{
	g_autofree char *secret = g_strdup_printf(",password_file=%s", password_path);
	g_autofree char *user = g_strconcat(secret, ",username=joe", NULL);

	assert_answer("OK", "ACL SETUSER joe on >pencil allkeys +@all");
	assert_answer("OK", "CONFIG SET requirepass sesame");
	Resp none = resp_new("");
	g_autoptr(KvcObjectKey) key = chunk(&none, 1);
	assert_int_equal(store(&none, key, "1", 1), -EACCES);
	assert_int_equal(lookup(&none, key), -2);
	assert_line(&none, "server", "noauth");
	assert_line(&none, "health", "failed");
	resp_free(&none);

	g_assert_true(g_file_set_contents(password_path, "wrong\n", -1, NULL));
	chmod(password_path, 0600);
	Resp wrong = resp_new(secret);
	assert_int_equal(lookup(&wrong, key), -2);
	assert_line(&wrong, "server", "noauth");
	/* It is read again at each connect. */
	g_assert_true(g_file_set_contents(password_path, "sesame\n", -1, NULL));
	for (int i = 0; i < 1000 && lookup(&wrong, key) == -2; i++)
		g_usleep(10000);
	assert_int_equal(store(&wrong, key, "1", 1), 1);
	assert_line(&wrong, "server", "ok");
	resp_free(&wrong);

	g_assert_true(g_file_set_contents(password_path, "pencil", -1, NULL));
	Resp joe = resp_new(user);
	assert_int_equal(lookup(&joe, key), 1);
	resp_free(&joe);
}

static void
test_options(void **state)
{
	static const char *const wrong[] = {
		"type=resp",
		"type=resp,host=h,unix_socket=/s",
		"type=resp,unix_socket=s",
		"type=resp,host=h,username=u",
		"type=resp,host=h,password_file=/does/not/exist",
		"type=resp,host=h,password=x",
	};
	KvcOptions *options = NULL;

	for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
		g_autoptr(GError) error = NULL;

		assert_null(kvc_l2_adapter_open(wrong[i], &options, &error));
		assert_non_null(error);
	}
}

/* ---- No server at all ---------------------------------------------------------------------- */

static const char *fake_answer;

/* Answers anything with the same. */
static void *
fake_connection(void *user)
{
	int fd = GPOINTER_TO_INT(user);
	char buffer[4096];

	while (recv(fd, buffer, sizeof(buffer), 0) > 0)
		if (send(fd, fake_answer, strlen(fake_answer), MSG_NOSIGNAL) < 0)
			break;
	close(fd);
	return NULL;
}

static void *
fake_main(void *user)
{
	pthread_t thread;
	int fd;

	while ((fd = accept(GPOINTER_TO_INT(user), NULL, NULL)) >= 0) {
		pthread_create(&thread, NULL, fake_connection, GINT_TO_POINTER(fd));
		pthread_detach(thread);
	}
	return NULL;
}

/* Whatever comes over the line: an error, in time. */
static void
test_nonsense(void **state)
{
	static const char *const answers[] = {
		"-LOADING Redis is loading the dataset in memory\r\n",
		"+OK\r\n+OK\r\n",
		"$5\r\n",
		"$99999999999999999999\r\n",
		"$-7\r\n",
		"*-1\r\n",
		"*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
		":\r\n",
		"\r\n",
		"HTTP/1.1 400 Bad Request\r\n\r\n",
		":0\r\n",
		"$0\r\n\r\n",
	};
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	pthread_t thread;
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	char data[8];

	g_strlcpy(address.sun_path, socket_path, sizeof(address.sun_path));
	assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
	assert_int_equal(listen(fd, 100), 0);
	pthread_create(&thread, NULL, fake_main, GINT_TO_POINTER(fd));
	for (size_t i = 0; i < G_N_ELEMENTS(answers); i++) {
		fake_answer = answers[i];
		Resp r = resp_new("");
		g_autoptr(KvcObjectKey) key = chunk(&r, 1);
		int64_t start = g_get_monotonic_time();

		assert_int_not_equal(lookup(&r, key), 8);
		assert_false(load(&r, key, data, 8));
		assert_true(store(&r, key, "12345678", 8) < 0);
		assert_true(g_get_monotonic_time() - start < 5 * G_USEC_PER_SEC);
		if (i == 0) {
			assert_int_equal(lookup(&r, key), -2);
			assert_line(&r, "server", "loading");
		}
		resp_free(&r);
	}
	shutdown(fd, SHUT_RDWR);
	pthread_join(thread, NULL);
	close(fd);
	unlink(socket_path);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, start_server, stop_server)
	const struct CMUnitTest tests[] = {
		TEST(test_names_and_values),
		TEST(test_large_values),
		TEST(test_list),
		TEST(test_rename),
		TEST(test_not_persistent),
		TEST(test_restart),
		TEST(test_stopped_server),
		TEST(test_refusals),
		TEST(test_passwords),
		cmocka_unit_test(test_options),
		cmocka_unit_test(test_nonsense),
	};
	g_autofree char *program = g_find_program_in_path("redis-server");

	if (!program) {
		printf("skipped: no command redis-server\n");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, set_up_directory, tear_down_directory);
}
