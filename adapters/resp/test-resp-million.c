/* SPDX-License-Identifier: Apache-2.0 */

/* A listing of 1,000,000 objects. */

#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include <kvcache/key-codec.h>

#include "test-resp-util.h"

static long
peak_kb(void)
{
	struct rusage usage;

	getrusage(RUSAGE_SELF, &usage);
	return usage.ru_maxrss;
}

/* Each key once, in order; how long a page is waited for, and what memory it takes, is printed. */
static void
test_a_million(void **state)
{
	gint64 begin_us, longest_us = 0;
	char *cursor = NULL;
	guint n = 0, n_pages = 0;
	g_autofree char *last = NULL;

	assert_answer("1000000", "EVAL %s 0",
		      "for i = 1, 1000000 do redis.call('SET', string.format("
		      "'org/model@01000100@0@%064x', i), 'x') end return 1000000");
	Resp r = resp_new(""); /* the server had no time before */
	long before_kb = peak_kb();
	begin_us = g_get_monotonic_time();
	do {
		KvcL2ListEntry entries[256] = {0};
		gint64 page_us = g_get_monotonic_time();
		ssize_t got = r.ops->list(r.adapter, NULL, &cursor, entries, 256);

		longest_us = MAX(longest_us, g_get_monotonic_time() - page_us);
		assert_true(got >= 0);
		for (ssize_t i = 0; i < got; i++) {
			g_autofree char *name = kvc_store_name_format(entries[i].key);

			assert_true(!last || strcmp(last, name) < 0);
			g_free(last);
			last = g_steal_pointer(&name);
			kvc_object_key_unref(entries[i].key);
		}
		n += (guint)got;
		n_pages++;
	} while (cursor);
	printf("%u keys, %u pages, %.1f s, the longest page %.2f s, %ld MB\n", n, n_pages,
	       (double)(g_get_monotonic_time() - begin_us) / 1e6, (double)longest_us / 1e6,
	       (peak_kb() - before_kb) / 1024);
	assert_int_equal(n, 1000000);
	resp_free(&r);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_million, start_server, stop_server),
	};
	g_autofree char *program = g_find_program_in_path("redis-server");

	if (!program) {
		printf("skipped: no command redis-server\n");
		return SKIPPED;
	}
	return cmocka_run_group_tests(tests, set_up_directory, tear_down_directory);
}
