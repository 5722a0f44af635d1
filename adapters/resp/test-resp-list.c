/* SPDX-License-Identifier: Apache-2.0 */

/* Listings: all of it once and in one order, however little fits into the memory for the names. */

#include <errno.h>
#include <stdio.h>

#include "resp.h"
#include "test-resp-util.h"

#define N_CHUNKS 1000

static void
fill(const Resp *r)
{
	g_autoptr(KvcObjectKey) chain =
		kvc_object_key_new(r->scope, KVC_SPACE_PREFIX, "p", 1, NULL);
	g_autoptr(KvcObjectKey) plain = kvc_object_key_new(r->plain, KVC_SPACE_PLAIN, "f", 1, NULL);

	for (uint32_t i = 0; i < N_CHUNKS; i++) {
		g_autoptr(KvcObjectKey) key = chunk(r, i);
		store(r, key, "0123456789", 1 + i % 10);
	}
	store(r, chain, "c", 1);
	store(r, plain, "p", 1);
}

/* A page more of a listing; false: it was the last. */
static bool
add_page(const Resp *r, const KvcKeyScope *scope, char **cursor, GPtrArray *listed, size_t max)
{
	KvcL2ListEntry entries[100] = {0};
	ssize_t n = r->ops->list(r->adapter, scope, cursor, entries, max);

	assert_true(n >= 0);
	for (ssize_t i = 0; i < n; i++) {
		assert_true(entries[i].info.bytes >= 1 && entries[i].info.bytes <= 10);
		g_ptr_array_add(listed, entries[i].key);
	}
	return *cursor;
}

static GPtrArray *
list(const Resp *r, const KvcKeyScope *scope, size_t page)
{
	GPtrArray *listed = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	char *cursor = NULL;

	while (add_page(r, scope, &cursor, listed, page))
		;
	return listed;
}

static void
assert_same(const GPtrArray *a, const GPtrArray *b)
{
	assert_int_equal(a->len, b->len);
	for (guint i = 0; i < a->len; i++)
		assert_true(kvc_object_key_equal(a->pdata[i], b->pdata[i]));
}

static void
assert_once(const GPtrArray *listed, guint n)
{
	g_autoptr(GHashTable) seen = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);

	for (guint i = 0; i < listed->len; i++)
		assert_true(g_hash_table_add(seen, listed->pdata[i]));
	assert_int_equal(listed->len, n);
}

static void
test_list(void **state)
{
	Resp r = resp_new(",database_id=3");
	KvcL2ListEntry entries[7] = {0};
	char *cursor = NULL;

	fill(&r);
	assert_answer("0", "DBSIZE"); /* of database 0 */
	g_autoptr(GPtrArray) all = list(&r, NULL, 7);
	g_autoptr(GPtrArray) chunks = list(&r, r.scope, 7);
	g_autoptr(GPtrArray) plain = list(&r, r.plain, 7);
	assert_once(all, N_CHUNKS + 2);
	assert_once(chunks, N_CHUNKS + 1);
	assert_once(plain, 1);
	cursor = g_strdup("nonsense");
	assert_int_equal(r.ops->list(r.adapter, NULL, &cursor, entries, 7), -EINVAL);
	assert_null(cursor);
	cursor = g_strdup("7");
	assert_int_equal(r.ops->list(r.adapter, NULL, &cursor, entries, 7), -EINVAL);
	resp_free(&r);
}

/* Some 40 windows instead of one, also of pages that are larger than a window. */
static void
test_small_windows(void **state)
{
	Resp r = resp_new("");

	fill(&r);
	g_autoptr(GPtrArray) all = list(&r, NULL, 100);
	g_autoptr(GPtrArray) chunks = list(&r, r.scope, 100);
	resp_list_bytes = 3000;
	g_autoptr(GPtrArray) again = list(&r, NULL, 7);
	g_autoptr(GPtrArray) chunks_again = list(&r, r.scope, 100);
	assert_same(all, again);
	assert_same(chunks, chunks_again);
	/* Not a single name fits. */
	resp_list_bytes = 1;
	g_autoptr(GPtrArray) once_more = list(&r, r.scope, 100);
	assert_same(chunks, once_more);
	resp_list_bytes = 128u << 20;
	resp_free(&r);
}

/* More listings than there are windows, in turns; and the server comes back as another one. */
static void
test_lost_windows(void **state)
{
	enum { N = 9 };
	Resp r = resp_new("");
	GPtrArray *listed[N];
	char *cursors[N] = {NULL};
	bool any = true;

	fill(&r);
	g_autoptr(GPtrArray) all = list(&r, NULL, 100);
	for (size_t i = 0; i < N; i++)
		listed[i] = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	for (unsigned turn = 0; any; turn++) {
		any = false;
		for (size_t i = 0; i < N; i++)
			if (turn == 0 || cursors[i])
				any |= add_page(&r, NULL, &cursors[i], listed[i], 100);
	}
	for (size_t i = 0; i < N; i++) {
		assert_same(listed[i], all);
		g_ptr_array_unref(listed[i]);
	}
	resp_free(&r);
}

/* The SCAN of a server that is started anew meanwhile begins anew too. */
static void
test_list_over_a_restart(void **state)
{
	Resp r = resp_new("");
	g_autoptr(GPtrArray) listed =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	KvcL2ListEntry entries[100];
	char *cursor = NULL;
	ssize_t n = -1;

	fill(&r);
	resp_list_bytes = 30000;
	g_autoptr(GPtrArray) all = list(&r, NULL, 100);
	assert_true(add_page(&r, NULL, &cursor, listed, 100));
	assert_answer("OK", "SAVE");
	stop_server(NULL);
	start_server(NULL);
	while (cursor) {
		g_autofree char *kept = g_strdup(cursor);

		memset(entries, 0, sizeof(entries));
		n = r.ops->list(r.adapter, NULL, &cursor, entries, 100);
		for (ssize_t i = 0; i < n; i++)
			g_ptr_array_add(listed, entries[i].key);
		if (n >= 0)
			continue;
		assert_null(cursor); /* it is connected to again soon */
		g_usleep(20000);
		cursor = g_steal_pointer(&kept);
	}
	assert_same(listed, all);
	resp_list_bytes = 128u << 20;
	resp_free(&r);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, start_server, stop_server)
	const struct CMUnitTest tests[] = {
		TEST(test_list),
		TEST(test_small_windows),
		TEST(test_lost_windows),
		TEST(test_list_over_a_restart),
	};
	g_autofree char *program = g_find_program_in_path("redis-server");

	if (!program) {
		printf("skipped: no command redis-server\n");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, set_up_directory, tear_down_directory);
}
