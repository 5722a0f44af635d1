/* SPDX-License-Identifier: Apache-2.0 */

/* The adapter over TLS: certificates that are good, and those that are not. */

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test-resp-util.h"

static char *directory;
static int port;

/* ---- Certificates -------------------------------------------------------------------------- */

static void
run_command(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	g_autofree char *command = g_strdup_vprintf(format, args);
	va_end(args);
	g_autofree char *whole =
		g_strdup_printf("cd '%s' && %s >>openssl.log 2>&1", directory, command);
	if (system(whole) != 0)
		fail_msg("%s", command);
}

#define NEW_KEY "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes"

static void
make_ca(const char *name)
{
	run_command("openssl req -x509 " NEW_KEY " -keyout %s.key -out %s.crt -days 2 "
		    "-subj '/CN=%s of the test'",
		    name, name, name);
}

/* Signed by CA, for the names of a subjectAltName. */
static void
make_certificate(const char *name, const char *ca, const char *names)
{
	run_command("openssl req " NEW_KEY " -keyout %s.key -out %s.csr -subj '/CN=%s'", name, name,
		    name);
	run_command("echo 'subjectAltName=%s' >%s.ext && openssl x509 -req -in %s.csr -CA %s.crt "
		    "-CAkey %s.key -CAcreateserial -days 2 -extfile %s.ext -out %s.crt",
		    names, name, name, ca, ca, name, name);
}

static int
set_up(void **state)
{
	set_up_directory(state);
	directory = g_path_get_dirname(socket_path);
	make_ca("ca");
	make_ca("wrong-ca");
	make_certificate("server", "ca", "DNS:localhost,IP:127.0.0.1");
	make_certificate("elsewhere", "ca", "DNS:cache.example,DNS:*.example.org");
	make_certificate("client", "ca", "DNS:client");
	make_certificate("wrong-client", "wrong-ca", "DNS:client");
	return 0;
}

/* ---- The server ---------------------------------------------------------------------------- */

static int
find_port(void)
{
	struct sockaddr_in address = {.sin_family = AF_INET,
				      .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t size = sizeof(address);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	assert_int_equal(bind(fd, (struct sockaddr *)&address, size), 0);
	assert_int_equal(getsockname(fd, (struct sockaddr *)&address, &size), 0);
	close(fd);
	return ntohs(address.sin_port);
}

/* With the certificate NAME; AUTH_CLIENTS: "yes": who connects has to have one, too. */
static void
start_tls_server(const char *name, const char *auth_clients)
{
	g_autofree char *port_text = g_strdup_printf("%d", port);
	g_autofree char *cert = g_strdup_printf("%s/%s.crt", directory, name);
	g_autofree char *key = g_strdup_printf("%s/%s.key", directory, name);
	g_autofree char *ca = g_strdup_printf("%s/ca.crt", directory);
	char *argv[] = {"redis-server",
			"--port",
			"0",
			"--bind",
			"127.0.0.1",
			"--tls-port",
			port_text,
			"--tls-cert-file",
			cert,
			"--tls-key-file",
			key,
			"--tls-ca-cert-file",
			ca,
			"--tls-auth-clients",
			(char *)auth_clients,
			"--unixsocket",
			socket_path,
			"--dir",
			directory,
			"--save",
			"",
			NULL};

	assert_true(g_spawn_async(NULL, argv, NULL,
				  G_SPAWN_SEARCH_PATH | G_SPAWN_DO_NOT_REAP_CHILD |
					  G_SPAWN_STDOUT_TO_DEV_NULL,
				  NULL, NULL, &server, NULL));
	assert_answer("PONG", "PING");
}

static int
start(void **state)
{
	port = find_port();
	start_tls_server("server", "no");
	return 0;
}

/* ---- The adapter --------------------------------------------------------------------------- */

/* At HOST; '@' in MORE is the directory. Time-outs are not to be seen. NULL with ERROR set. */
static KvcL2Adapter *
open_adapter(Resp *r, const char *host, const char *more, GError **error)
{
	g_auto(GStrv) parts = g_strsplit(more, "@", -1);
	g_autofree char *paths = g_strjoinv(directory, parts);
	g_autofree char *specification = g_strdup_printf(
		"type=resp,host=%s,port=%d,%s%s", host, port, paths,
		strstr(more, "_timeout") ? "" : ",request_timeout=20,connection_timeout=20");

	*r = (Resp){0};
	r->adapter = kvc_l2_adapter_open(specification, &r->options, error);
	if (!r->adapter)
		return NULL;
	r->ops = r->adapter->ops;
	r->scope = kvc_key_scope_new("org/model", 0x01000100, 0, NULL, NULL);
	r->plain = kvc_key_scope_new_plain("a/b", NULL);
	return r->adapter;
}

static Resp
tls_new(const char *host, const char *more)
{
	g_autoptr(GError) error = NULL;
	Resp r;

	if (!open_adapter(&r, host, more, &error))
		fail_msg("%s", error->message);
	return r;
}

static void
assert_works(const char *host, const char *more)
{
	Resp r = tls_new(host, more);
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);
	char data[5];

	assert_answer("OK", "FLUSHALL");
	assert_int_equal(store(&r, key, "12345", 5), 5);
	assert_true(load(&r, key, data, 5));
	assert_memory_equal(data, "12345", 5);
	assert_line(&r, "server", "ok");
	assert_line(&r, "io_mode", "tls");
	resp_free(&r);
}

/* The server is in STATE afterwards, and the words of its error have TEXT in them. */
static void
assert_refused(const char *host, const char *more, int error, const char *state, const char *text)
{
	Resp r = tls_new(host, more);
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);
	char data[5];

	assert_answer("OK", "FLUSHALL");
	assert_int_equal(store(&r, key, "12345", 5), error);
	assert_false(load(&r, key, data, 5));
	assert_int_equal(lookup(&r, key), -2);
	assert_line(&r, "server", state);
	assert_line(&r, "health", "failed");
	g_autofree char *words = get_line(&r, "server_error");
	if (!words || !strstr(words, text))
		fail_msg("\"%s\" is not about \"%s\"", words, text);
	resp_free(&r);
	assert_answer("0", "DBSIZE");
}

/* ---- Tests --------------------------------------------------------------------------------- */

#define CA "tls_enable=true,tls_ca_file=@/ca.crt"
#define WRONG_CA "tls_enable=true,tls_ca_file=@/wrong-ca.crt"

static void
test_values(void **state)
{
	static const size_t sizes[] = {0, 1, 16383, 16384, 16385, 5000001, 32 << 20};
	Resp r = tls_new("localhost", CA);
	g_autofree char *data = g_malloc(32 << 20), *read = g_malloc(32 << 20);
	KvcL2ListEntry entries[8];
	g_autofree char *cursor = NULL;

	for (size_t i = 0; i < 32 << 20; i++)
		data[i] = (char)((i * 2654435761u) >> 13);
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		g_autoptr(KvcObjectKey) key = chunk(&r, (uint32_t)i);

		assert_int_equal(store(&r, key, data, sizes[i]), sizes[i]);
		assert_int_equal(lookup(&r, key), sizes[i]);
		memset(read, 0, sizes[i]);
		if (!load(&r, key, read, sizes[i]))
			fail_msg("%zu bytes", sizes[i]);
		assert_memory_equal(read, data, sizes[i]);
		assert_false(load(&r, key, read, sizes[i] + 1));
	}
	ssize_t n = r.ops->list(r.adapter, r.scope, &cursor, entries, G_N_ELEMENTS(entries));
	assert_int_equal(n, G_N_ELEMENTS(sizes));
	for (ssize_t i = 0; i < n; i++)
		kvc_object_key_unref(entries[i].key);
	resp_free(&r);
}

static void
test_trust(void **state)
{
	assert_works("127.0.0.1", CA);
	assert_refused("localhost", WRONG_CA, -EKEYREJECTED, "untrusted", "certificate");
	/* Those that the system trusts. */
	assert_refused("localhost", "tls_enable=true", -EKEYREJECTED, "untrusted", "certificate");
	assert_works("localhost", WRONG_CA ",tls_verify=false");
}

static void
test_names(void **state)
{
	assert_works("127.0.0.1", CA ",tls_server_name=localhost");
	assert_refused("localhost", CA ",tls_server_name=cache.example", -EKEYREJECTED, "untrusted",
		       "ostname mismatch");
	stop_server(NULL);
	start_tls_server("elsewhere", "no");
	assert_refused("localhost", CA, -EKEYREJECTED, "untrusted", "ostname mismatch");
	assert_refused("127.0.0.1", CA, -EKEYREJECTED, "untrusted", "IP address mismatch");
	assert_works("localhost", CA ",tls_server_name=cache.example");
	assert_works("localhost", CA ",tls_server_name=one.example.org");
}

static void
test_clients(void **state)
{
	stop_server(NULL);
	start_tls_server("server", "yes");
	assert_works("localhost", CA ",tls_cert_file=@/client.crt,tls_key_file=@/client.key");
	assert_refused("localhost", CA, -EKEYREJECTED, "untrusted", "certificate required");
	assert_refused("localhost",
		       CA ",tls_cert_file=@/wrong-client.crt,tls_key_file=@/wrong-client.key",
		       -EKEYREJECTED, "untrusted", "unknown ca");
}

/* A certificate that is renewed while the adapter runs is taken with the next connection. */
static void
test_restart(void **state)
{
	run_command("cp wrong-ca.crt trusted.crt");
	Resp r = tls_new("localhost", "tls_enable=true,tls_ca_file=@/trusted.crt");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);

	assert_int_equal(store(&r, key, "1", 1), -EKEYREJECTED);
	run_command("cp ca.crt trusted.crt");
	for (int i = 0; i < 1000 && store(&r, key, "1", 1) != 1; i++)
		g_usleep(20000);
	assert_int_equal(lookup(&r, key), 1);
	stop_server(NULL);
	assert_int_equal(store(&r, key, "1", 1), -ECONNREFUSED);
	assert_line(&r, "server", "unreachable");
	start_tls_server("server", "no");
	for (int i = 0; i < 1000 && store(&r, key, "1", 1) != 1; i++)
		g_usleep(20000);
	assert_line(&r, "server", "ok");
	resp_free(&r);
}

/* One side speaks TLS, the other does not: an error, in time. */
static void
test_one_side(void **state)
{
	g_autofree char *port_text = g_strdup_printf("%d", find_port());
	int tls_port = port;
	Resp r = tls_new("localhost", "tls_enable=false");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);

	assert_true(store(&r, key, "1", 1) < 0);
	resp_free(&r);
	assert_answer("OK", "CONFIG SET port %s", port_text);
	port = atoi(port_text);
	/* The server takes it for the first half of a line. */
	assert_refused("localhost", CA ",request_timeout=0.5,connection_timeout=0.5", -ETIMEDOUT,
		       "unreachable", "does this port speak TLS?");
	port = tls_port;
}

/* A server that does not answer, before the handshake and after it. */
static void
test_stopped(void **state)
{
	Resp r = tls_new("localhost", CA ",request_timeout=0.3,connection_timeout=0.3");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);

	while (store(&r, key, "1", 1) < 0)
		g_usleep(20000);
	kill(server, SIGSTOP);
	for (int i = 0; i < 10; i++)
		assert_int_equal(lookup(&r, key), -2);
	assert_line(&r, "server", "unreachable");
	kill(server, SIGCONT);
	for (int i = 0; i < 1000 && lookup(&r, key) != 1; i++)
		g_usleep(20000);
	assert_int_equal(lookup(&r, key), 1);
	resp_free(&r);
}

static void
test_options(void **state)
{
	static const struct {
		const char *more, *text;
	} wrong[] = {
		{"tls_ca_file=@/ca.crt", "need tls_enable=true"},
		{"tls_enable=true,tls_ca_file=ca.crt", "absolute"},
		{"tls_enable=true,tls_ca_file=@/none.crt", "none.crt"},
		{"tls_enable=true,tls_ca_file=@/ca.key", "ca.key"},
		{CA ",tls_cert_file=@/client.crt", "go together"},
		{CA ",tls_cert_file=@/client.crt,tls_key_file=@/server.key", "server.key"},
		{CA ",tls_cert_file=@/client.key,tls_key_file=@/client.key", "client.key"},
	};
	g_autoptr(GError) error = NULL;
	Resp r;

	for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
		g_autoptr(GError) one = NULL;

		assert_null(open_adapter(&r, "localhost", wrong[i].more, &one));
		if (!strstr(one->message, wrong[i].text))
			fail_msg("%s: %s", wrong[i].more, one->message);
		kvc_options_free(r.options);
	}
	assert_null(kvc_l2_adapter_open("type=resp,unix_socket=/x,tls_enable=true", &r.options,
					&error));
	assert_non_null(strstr(error->message, "unix_socket"));
	kvc_options_free(r.options);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, start, stop_server)
	const struct CMUnitTest tests[] = {
		TEST(test_values),  TEST(test_trust),	 TEST(test_names),   TEST(test_clients),
		TEST(test_restart), TEST(test_one_side), TEST(test_stopped), TEST(test_options),
	};
	static const char *const programs[] = {"redis-server", "openssl"};

	for (size_t i = 0; i < G_N_ELEMENTS(programs); i++) {
		g_autofree char *path = g_find_program_in_path(programs[i]);

		if (path)
			continue;
		printf("skipped: no command %s\n", programs[i]);
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, set_up, tear_down_directory);
}
