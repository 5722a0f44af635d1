/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RESP_TEST_RESP_UTIL_H
#define ADAPTERS_RESP_TEST_RESP_UTIL_H

/* A Redis server of a test's own, an adapter on it, and each operation as one blocking call. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

#define SKIPPED 77

extern char *socket_path, *password_path; /* in the directory */
extern GPid server;

/* Of a group of tests. */
int set_up_directory(void **state);
int tear_down_directory(void **state);

/* Of a test. */
int start_server(void **state);
int stop_server(void **state);
/* What a command answers, as text (transfer full). */
char *ask(const char *format, ...) G_GNUC_PRINTF(1, 2);

#define assert_answer(want, ...)                                                                   \
	do {                                                                                       \
		g_autofree char *answer = ask(__VA_ARGS__);                                        \
		assert_string_equal(answer ? answer : "nil", want);                                \
	} while (0)

typedef struct Resp {
	KvcOptions *options;
	KvcL2Adapter *adapter;
	const KvcL2AdapterOps *ops;
	KvcKeyScope *scope, *plain;
} Resp;

/* The adapter of SPECIFICATION; fails the test when it cannot be opened. */
Resp resp_open(const char *specification);
/* With options MORE, each with a comma before it. The time-outs are SECONDS, or not to be seen. */
Resp resp_new_with(const char *seconds, const char *more);
Resp resp_new(const char *more);
void resp_free(Resp *r);
KvcObjectKey *chunk(const Resp *r, uint32_t number);

/* Bytes that were stored, or -errno. */
int64_t store(const Resp *r, KvcObjectKey *key, const char *data, size_t bytes);
int64_t store_with(const Resp *r,
		   KvcObjectKey *key,
		   const char *data,
		   size_t bytes,
		   const KvcObjectAttributes *attributes);
/* Bytes of the object; -1: not there; -2: not asked. INFO may be NULL. */
int64_t lookup_info(const Resp *r, KvcObjectKey *key, KvcL2ObjectInfo *info);
int64_t lookup(const Resp *r, KvcObjectKey *key);
bool load(const Resp *r, KvcObjectKey *key, char *data, size_t bytes);
int delete_key(const Resp *r, KvcObjectKey *key, bool *is_gone);
/* A line of its description (transfer full). */
char *get_line(const Resp *r, const char *name);
void assert_line(const Resp *r, const char *name, const char *want);

#endif
