/* SPDX-License-Identifier: Apache-2.0 */

/* See test-resp-util.h. */

#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <hiredis/hiredis.h>

#include "test-resp-util.h"

#define WAIT_MS 30000

char *socket_path, *password_path;
GPid server;
static char *directory;

int
set_up_directory(void **state)
{
	directory = g_dir_make_tmp("kvc-resp.XXXXXX", NULL);
	socket_path = g_strdup_printf("%s/socket", directory);
	password_path = g_strdup_printf("%s/password", directory);
	return 0;
}

int
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
char *
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

int
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

int
stop_server(void **state)
{
	kill(server, SIGKILL);
	waitpid(server, NULL, 0);
	unlink(socket_path);
	return 0;
}

/* ---- The adapter --------------------------------------------------------------------------- */

Resp
resp_open(const char *specification)
{
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

Resp
resp_new_with(const char *seconds, const char *more)
{
	g_autofree char *specification =
		g_strdup_printf("type=resp,unix_socket=%s,request_timeout=%s,"
				"connection_timeout=%s%s",
				socket_path, seconds, seconds, more);

	return resp_open(specification);
}

Resp
resp_new(const char *more)
{
	return resp_new_with("20", more);
}

void
resp_free(Resp *r)
{
	r->ops->close(r->adapter);
	kvc_options_free(r->options);
	kvc_key_scope_unref(r->scope);
	kvc_key_scope_unref(r->plain);
}

KvcObjectKey *
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

int64_t
store_with(const Resp *r,
	   KvcObjectKey *key,
	   const char *data,
	   size_t bytes,
	   const KvcObjectAttributes *attributes)
{
	KvcMemoryObj object = {(char *)data, bytes, kvc_io_align_up(bytes), attributes};
	KvcL2TaskId id = r->ops->submit_store_task(r->adapter, &key, &object, 1);
	KvcL2StoreResult result;

	while (r->ops->pop_completed_store_tasks(r->adapter, &result, 1) == 0)
		await_event(r->ops->get_store_event_fd(r->adapter));
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

int64_t
store(const Resp *r, KvcObjectKey *key, const char *data, size_t bytes)
{
	return store_with(r, key, data, bytes, NULL);
}

int64_t
lookup_info(const Resp *r, KvcObjectKey *key, KvcL2ObjectInfo *wanted)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info = {0};
	KvcL2TaskId id = r->ops->submit_lookup_and_lock_task(r->adapter, &key, 1);

	while (r->ops->query_lookup_and_lock_result(r->adapter, id, found, &info) == 0)
		await_event(r->ops->get_lookup_and_lock_event_fd(r->adapter));
	r->ops->submit_unlock(r->adapter, &key, 1);
	if (wanted)
		*wanted = info;
	else
		kvc_xattrs_unref(info.xattrs);
	if (kvc_bitmap_test(found, 0))
		return (int64_t)info.bytes;
	return info.mtime_ns == KVC_L2_NOT_ASKED ? -2 : -1;
}

int64_t
lookup(const Resp *r, KvcObjectKey *key)
{
	return lookup_info(r, key, NULL);
}

bool
load(const Resp *r, KvcObjectKey *key, char *data, size_t bytes)
{
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	KvcMemoryObj object = {data, bytes, kvc_io_align_up(bytes)};
	KvcL2TaskId id = r->ops->submit_load_task(r->adapter, &key, &object, 1);

	while (r->ops->query_load_result(r->adapter, id, loaded) == 0)
		await_event(r->ops->get_load_event_fd(r->adapter));
	return kvc_bitmap_test(loaded, 0);
}

int
delete_key(const Resp *r, KvcObjectKey *key, bool *is_gone)
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

char *
get_line(const Resp *r, const char *name)
{
	g_autoptr(GHashTable) lines =
		g_hash_table_new_full(g_str_hash, g_str_equal, g_free, g_free);

	r->ops->describe(r->adapter, note_line, lines);
	return g_strdup(g_hash_table_lookup(lines, name));
}

void
assert_line(const Resp *r, const char *name, const char *want)
{
	g_autofree char *value = get_line(r, name);

	assert_string_equal(value, want);
}
