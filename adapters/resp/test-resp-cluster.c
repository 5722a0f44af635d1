/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The adapter on a cluster: names and their slots, slots that move, a node that stops and one that
 * is gone. Without arguments it runs itself by with-redis-cluster.sh, which is beside its source.
 */

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "resp-cluster.h"
#include "test-resp-util.h"

#define N_NODES 3
#define N_CHUNKS 60

static char **nodes; /* host:port */
static char *nodes_option;

/* ---- The cluster --------------------------------------------------------------------------- */

/* What redis-cli prints when node NODE is asked (transfer full), without the last newline. */
static char *
cli(unsigned node, const char *format, ...)
{
	g_autofree char *arguments = NULL, *command = NULL, *out = NULL;
	va_list args;

	va_start(args, format);
	arguments = g_strdup_vprintf(format, args);
	va_end(args);
	command = g_strdup_printf("redis-cli -p %s %s", strrchr(nodes[node], ':') + 1, arguments);
	assert_true(g_spawn_command_line_sync(command, &out, NULL, NULL, NULL));
	return g_strdup(g_strchomp(out));
}

static char *
id_of(unsigned node)
{
	return cli(node, "CLUSTER MYID");
}

static pid_t
pid_of(unsigned node)
{
	g_autofree char *path = g_strdup_printf("%s/%s/pid", g_getenv("KVC_CLUSTER"),
						strrchr(nodes[node], ':') + 1);
	g_autofree char *text = NULL;

	assert_true(g_file_get_contents(path, &text, NULL, NULL));
	return atoi(text);
}

/* Who has the slot of KEY. */
static unsigned
owner_of(KvcObjectKey *key)
{
	g_autofree char *name = kvc_store_name_format(key);
	g_autofree char *answer = NULL;

	for (unsigned i = 0; i < N_NODES; i++) {
		g_free(answer);
		answer = cli(i, "STRLEN '%s'", name);
		if (!g_str_has_prefix(answer, "MOVED"))
			return i;
	}
	fail_msg("nobody has %s", name);
	return 0;
}

static Resp
cluster_new(const char *seconds)
{
	g_autofree char *specification =
		g_strdup_printf("type=resp,cluster_mode=true,startup_nodes=%s,username=kvc,"
				"password_file=%s,request_timeout=%s,connection_timeout=%s",
				nodes_option, password_path, seconds, seconds);

	return resp_open(specification);
}

static int
empty_cluster(void **state)
{
	for (unsigned i = 0; i < N_NODES; i++)
		g_free(cli(i, "FLUSHALL"));
	return 0;
}

static void
fill(const Resp *r)
{
	for (uint32_t i = 0; i < N_CHUNKS; i++) {
		g_autoptr(KvcObjectKey) key = chunk(r, i);
		g_autofree char *data = g_strnfill(1000 + i, (char)('a' + i % 26));

		assert_int_equal(store(r, key, data, 1000 + i), 1000 + i);
	}
}

static bool
is_right(const Resp *r, uint32_t i)
{
	g_autoptr(KvcObjectKey) key = chunk(r, i);
	g_autofree char *data = g_strnfill(1000 + i, '?');
	g_autofree char *want = g_strnfill(1000 + i, (char)('a' + i % 26));

	if (!load(r, key, data, 1000 + i))
		return false;
	assert_memory_equal(data, want, 1000 + i);
	return true;
}

/* ---- Names --------------------------------------------------------------------------------- */

static void
test_slots(void **state)
{
	static const char *const names[] = {"m@1@0@ab", "{a}b", "x{a}y{b}", "{}x",  "a}b{",
					    "}{",	"{x",	"a{}b}c",   "{{a}}"};

	assert_int_equal(resp_slot("123456789"), 0x31c3);
	assert_int_equal(resp_slot("{user1000}.following"), resp_slot("{user1000}.followers"));
	assert_int_equal(resp_slot("foo{{bar}}zap"), resp_slot("{bar"));
	assert_int_equal(resp_slot("foo{bar}{zap}"), resp_slot("bar"));
	assert_int_not_equal(resp_slot("foo{}{bar}"), resp_slot("bar"));
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
		g_autofree char *attr = resp_slot_attr_name(names[i]);
		g_autofree char *theirs = cli(0, "CLUSTER KEYSLOT '%s'", names[i]);
		g_autofree char *theirs_attr = cli(0, "CLUSTER KEYSLOT '%s'", attr);
		g_autofree char *ours = g_strdup_printf("%u", resp_slot(names[i]));

		assert_true(g_str_has_prefix(attr, RESP_ATTR_PREFIX));
		assert_string_equal(theirs, ours);
		assert_string_equal(theirs_attr, ours);
	}
}

static unsigned
count_listed(const Resp *r)
{
	unsigned n_listed = 0;
	char *cursor = NULL;

	do {
		KvcL2ListEntry entries[7] = {0};
		ssize_t n = r->ops->list(r->adapter, r->scope, &cursor, entries, 7);

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++)
			kvc_object_key_unref(entries[i].key);
		n_listed += (unsigned)n;
	} while (cursor);
	return n_listed;
}

static void
test_spread(void **state)
{
	Resp r = cluster_new("20");

	fill(&r);
	for (unsigned i = 0; i < N_NODES; i++) {
		g_autofree char *n = cli(i, "DBSIZE");
		assert_true(atoi(n) > 5);
	}
	for (uint32_t i = 0; i < N_CHUNKS; i++)
		assert_true(is_right(&r, i));
	assert_int_equal(count_listed(&r), N_CHUNKS);
	assert_line(&r, "health", "ok");
	assert_line(&r, "cluster_nodes", "3");
	assert_line(&r, "cluster_slots_unserved", "0");
	resp_free(&r);
}

/* ---- Slots that move ----------------------------------------------------------------------- */

/* Slot of KEY: FROM gives it to TO, and how far it has got at the end. */
static void
begin_move(unsigned slot, unsigned from, unsigned to)
{
	g_autofree char *from_id = id_of(from), *to_id = id_of(to);
	g_autofree char *a = cli(to, "CLUSTER SETSLOT %u IMPORTING %s", slot, from_id);
	g_autofree char *b = cli(from, "CLUSTER SETSLOT %u MIGRATING %s", slot, to_id);

	assert_string_equal(a, "OK");
	assert_string_equal(b, "OK");
}

static void
move_key(const char *name, unsigned from, unsigned to)
{
	g_autofree char *answer =
		cli(from, "MIGRATE 127.0.0.1 %s '%s' 0 5000", strrchr(nodes[to], ':') + 1, name);

	assert_string_equal(answer, "OK");
}

static void
end_move(unsigned slot, unsigned from, unsigned to)
{
	g_autofree char *to_id = id_of(to);

	for (unsigned i = 0; i < N_NODES; i++)
		g_free(cli((to + i) % N_NODES, "CLUSTER SETSLOT %u NODE %s", slot, to_id));
}

/* The value is found on either side, with or without its attributes; changes go where they must. */
static void
test_ask(void **state)
{
	static const KvcObjectAttributes private = {.mode = 0100600};
	Resp r = cluster_new("20");
	g_autoptr(KvcObjectKey) key = chunk(&r, 1);
	g_autofree char *name = kvc_store_name_format(key);
	g_autofree char *attr = resp_slot_attr_name(name);
	unsigned slot = resp_slot(name), from = owner_of(key), to = (from + 1) % N_NODES;
	KvcL2ObjectInfo info;
	char data[5];
	bool is_gone;

	assert_int_equal(store_with(&r, key, "12345", 5, &private), 5);
	begin_move(slot, from, to);
	move_key(attr, from, to); /* the value is here, its attributes are there */
	assert_int_equal(lookup_info(&r, key, &info), 5);
	assert_int_equal(info.mode, 0100600);
	assert_true(load(&r, key, data, 5));
	move_key(name, from, to);
	assert_int_equal(lookup_info(&r, key, &info), 5);
	assert_int_equal(info.mode, 0100600);
	assert_true(load(&r, key, data, 5));
	assert_memory_equal(data, "12345", 5);
	assert_int_equal(delete_key(&r, key, &is_gone), 0);
	assert_true(is_gone);
	assert_int_equal(lookup(&r, key), -1);
	/* A new one, of two values: TRYAGAIN to who wants to set both. */
	assert_int_equal(store_with(&r, key, "abcd", 4, &private), 4);
	assert_int_equal(lookup_info(&r, key, &info), 4);
	assert_int_equal(info.mode, 0100600);
	end_move(slot, from, to);
	assert_int_equal(lookup_info(&r, key, &info), 4);
	assert_true(load(&r, key, data, 4));
	assert_memory_equal(data, "abcd", 4);
	begin_move(slot, to, from);
	move_key(attr, to, from);
	move_key(name, to, from);
	end_move(slot, to, from);
	assert_int_equal(lookup(&r, key), 4);
	g_autofree char *redirects = get_line(&r, "cluster_redirects");
	assert_true(atoi(redirects) > 5);
	resp_free(&r);
}

static volatile bool is_moving;

/* There and back, all the time: slots of objects, one after the other. */
static void *
move_slots(void *user)
{
	const Resp *r = user;

	for (uint32_t i = 0; i < 6; i++) {
		g_autoptr(KvcObjectKey) key = chunk(r, i);
		g_autofree char *name = kvc_store_name_format(key);
		unsigned slot = resp_slot(name), from = owner_of(key), to = (from + 1) % N_NODES;

		begin_move(slot, from, to);
		move_key(name, from, to);
		end_move(slot, from, to);
	}
	is_moving = false;
	return NULL;
}

static void
test_moved_while_loading(void **state)
{
	Resp r = cluster_new("20");
	pthread_t thread;
	unsigned n = 0;

	fill(&r);
	is_moving = true;
	assert_int_equal(pthread_create(&thread, NULL, move_slots, &r), 0);
	for (uint32_t i = 0; is_moving; i = (i + 1) % N_CHUNKS, n++)
		assert_true(is_right(&r, i));
	pthread_join(thread, NULL);
	for (uint32_t i = 0; i < N_CHUNKS; i++)
		assert_true(is_right(&r, i));
	assert_int_equal(count_listed(&r), N_CHUNKS);
	assert_line(&r, "health", "ok");
	printf("%u loads meanwhile\n", n);
	resp_free(&r);
}

/* ---- A node in trouble --------------------------------------------------------------------- */

/* What others have is there all the time, what the stopped one has is told in time, then again. */
static void
test_stopped_node(void **state)
{
	Resp r = cluster_new("3");
	pid_t pid = pid_of(1);
	unsigned n_mine = 0, n_right = 0;
	bool is_of_1[N_CHUNKS];

	for (int i = 0; i < 1000; i++) { /* the machine may be slow */
		g_autoptr(KvcObjectKey) key = chunk(&r, 1);
		if (store(&r, key, "x", 1) >= 0)
			break;
		g_usleep(10000);
	}
	empty_cluster(NULL);
	fill(&r);
	for (uint32_t i = 0; i < N_CHUNKS; i++) {
		g_autoptr(KvcObjectKey) key = chunk(&r, i);
		is_of_1[i] = owner_of(key) == 1;
		n_mine += is_of_1[i];
	}
	kill(pid, SIGSTOP);
	int64_t start = g_get_monotonic_time();
	for (uint32_t i = 0; i < N_CHUNKS; i++) {
		bool right = is_right(&r, i);

		assert_true(right || is_of_1[i]);
		assert_false(right && is_of_1[i]);
		n_right += right;
	}
	/* Not one time-out for each of the keys. */
	assert_true(g_get_monotonic_time() - start < 30 * G_USEC_PER_SEC);
	assert_int_equal(n_right, N_CHUNKS - n_mine);
	assert_line(&r, "health", "degraded");
	assert_line(&r, "cluster_nodes_down", nodes[1]);
	kill(pid, SIGCONT);
	for (int i = 0; i < 3000; i++) {
		g_autofree char *down = get_line(&r, "cluster_nodes_down");

		if (!down)
			break;
		for (uint32_t k = 0; k < N_CHUNKS; k++)
			if (is_of_1[k]) {
				is_right(&r, k);
				break;
			}
		g_usleep(10000);
	}
	for (uint32_t i = 0; i < N_CHUNKS; i++)
		assert_true(is_right(&r, i));
	resp_free(&r);
}

static void
test_options(void **state)
{
	static const char *const wrong[] = {
		"type=resp,cluster_mode=true",
		"type=resp,cluster_mode=true,unix_socket=/s",
		"type=resp,cluster_mode=true,host=h,database_id=1",
		"type=resp,cluster_mode=true,host=h,startup_nodes=h:1",
		"type=resp,cluster_mode=true,startup_nodes=h",
		"type=resp,cluster_mode=true,startup_nodes=h:x",
		"type=resp,startup_nodes=h:1",
	};
	KvcOptions *options = NULL;

	for (size_t i = 0; i < G_N_ELEMENTS(wrong); i++) {
		g_autoptr(GError) error = NULL;

		assert_null(kvc_l2_adapter_open(wrong[i], &options, &error));
		assert_non_null(error);
	}
}

int
main(int argc, char **argv)
{
#define TEST(function) cmocka_unit_test_setup(function, empty_cluster)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_slots),
		TEST(test_spread),
		TEST(test_ask),
		TEST(test_moved_while_loading),
		TEST(test_stopped_node),
		cmocka_unit_test(test_options),
	};

	if (argc != 3) {
		g_autofree char *directory = g_path_get_dirname(__FILE__);
		g_autofree char *script = g_strconcat(directory, "/with-redis-cluster.sh", NULL);

		execl(script, script, argv[0], "@NODES@", "@PASSWORD@", NULL);
		perror(script);
		return 1;
	}
	nodes_option = argv[1];
	nodes = g_strsplit(argv[1], ";", -1);
	password_path = argv[2];
	return cmocka_run_group_tests(tests, NULL, NULL);
}
