/* SPDX-License-Identifier: Apache-2.0 */

/* The adapter on a Redis server of its own, and on one that is not what it should be. */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "test-resp-util.h"

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
	Resp r = resp_new("");
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
	Resp r = resp_new_with("2", "");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);
	bool is_gone;

	for (unsigned i = 0; i < 20; i++) /* all workers have connections */
		assert_int_equal(store(&r, key, "12", 1 + i % 2), 1 + i % 2);
	kill(server, SIGSTOP);
	int64_t start = g_get_monotonic_time();
	assert_int_equal(lookup(&r, key), -2);
	assert_true(store(&r, key, "345", 3) < 0);
	assert_true(g_get_monotonic_time() - start < 15 * G_USEC_PER_SEC);
	kill(server, SIGCONT);
	while (delete_key(&r, key, &is_gone) < 0)
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
		Resp r = resp_new_with("0.3", "");
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
