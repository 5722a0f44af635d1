/* SPDX-License-Identifier: Apache-2.0 */

/* Listings in pages, and many keys. */

#include "adapter-fixture.h"

#define N_KEYS 300
#define PAGE 7
#define MANY 10000
#define MANY_A_TASK 1000

/* KEYS (N) are stored, of BYTES each. */
static void
store_keys(const Subject *subject, KvcObjectKey *const *keys, size_t n, size_t bytes)
{
	KvcMemoryObj *memories = memories_new(n, bytes, 1);

	assert_int_equal(store_many(subject, keys, memories, n), n * bytes);
	memories_free(memories, n);
}

static GHashTable *
set_of(GPtrArray *keys)
{
	GHashTable *set = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);

	for (guint i = 0; i < keys->len; i++) /* each once */
		assert_true(g_hash_table_add(set, g_ptr_array_index(keys, i)));
	return set;
}

/* LISTED are the N KEYS, each once. */
static void
assert_lists(GPtrArray *listed, KvcObjectKey *const *keys, size_t n)
{
	g_autoptr(GHashTable) set = set_of(listed);

	assert_int_equal(listed->len, n);
	for (size_t i = 0; i < n; i++)
		assert_true(g_hash_table_contains(set, keys[i]));
}

static void
test_list_of_nothing(void **state)
{
	Subject *subject = *state;
	KvcL2ListEntry entry;
	char *cursor = NULL;

	if (!subject->ops->list)
		skip();
	assert_int_equal(subject->ops->list(subject->adapter, NULL, &cursor, &entry, 1), 0);
	assert_null(cursor);
	assert_int_equal(subject->ops->list(subject->adapter, subject->scope, &cursor, &entry, 1),
			 0);
	assert_null(cursor);
}

/* The order does not depend on the page, nor on when it is listed. */
static void
test_list_order_is_stable(void **state)
{
	static const size_t pages[] = {1, PAGE, N_KEYS - 1, N_KEYS, 2 * N_KEYS};
	Subject *subject = *state;

	if (!subject->ops->list)
		skip();
	KvcObjectKey **keys = keys_new(subject, 0, N_KEYS);
	store_keys(subject, keys, N_KEYS, 0);
	g_autoptr(GPtrArray) first = list_keys(subject, NULL, PAGE);
	assert_lists(first, keys, N_KEYS);
	for (size_t i = 0; i < G_N_ELEMENTS(pages); i++) {
		g_autoptr(GPtrArray) again = list_keys(subject, NULL, pages[i]);

		assert_int_equal(again->len, N_KEYS);
		for (guint j = 0; j < N_KEYS; j++)
			assert_true(kvc_object_key_equal(g_ptr_array_index(again, j),
							 g_ptr_array_index(first, j)));
	}
	keys_free(keys, N_KEYS);
}

static void
append_page(const Subject *subject, char **cursor, GPtrArray *listed)
{
	list_page(subject, NULL, cursor, PAGE, listed);
}

/* What comes and goes between two pages may be missed; the rest is there once. */
static void
test_list_while_it_changes(void **state)
{
	Subject *subject = *state;

	if (!subject->ops->list || !subject->ops->delete_keys)
		skip();
	KvcObjectKey **keys = keys_new(subject, 0, N_KEYS), **new_keys;
	g_autoptr(GPtrArray) listed =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	char *cursor = NULL;
	size_t n_new = 0, n_old = 0;

	new_keys = keys_new(subject, N_KEYS, N_KEYS);
	store_keys(subject, keys, N_KEYS, 0);
	do {
		guint from = listed->len;

		append_page(subject, &cursor, listed);
		for (guint i = from; i < listed->len; i++)
			assert_true(delete_key(subject, g_ptr_array_index(listed, i)));
		if (n_new < N_KEYS)
			store_keys(subject, &new_keys[n_new++], 1, 0);
	} while (cursor && listed->len < 3 * N_KEYS);
	assert_null(cursor);
	g_autoptr(GHashTable) set = set_of(listed);
	for (size_t i = 0; i < N_KEYS; i++)
		n_old += g_hash_table_contains(set, keys[i]);
	assert_int_equal(n_old, N_KEYS);
	keys_free(keys, N_KEYS);
	keys_free(new_keys, N_KEYS);
}

static void
test_list_of_a_scope(void **state)
{
	enum { N = 20 };
	Subject *subject = *state;

	if (!subject->ops->list)
		skip();
	g_autoptr(KvcKeyScope) other = kvc_key_scope_new("some/model", 7, 0, NULL, NULL);
	g_autoptr(KvcKeyScope) below = kvc_key_scope_new_plain("some/directory/below", NULL);
	g_autoptr(KvcKeyScope) nothing = kvc_key_scope_new("some/mode", 0x01000100, 0, NULL, NULL);
	KvcObjectKey *keys[5 * N];

	for (uint32_t i = 0; i < N; i++) {
		keys[i] = key_new(subject, KVC_SPACE_CHUNK, i);
		keys[N + i] = key_new(subject, KVC_SPACE_PREFIX, i);
		keys[2 * N + i] = key_new(subject, KVC_SPACE_PLAIN, i);
		keys[3 * N + i] = kvc_object_key_new(other, KVC_SPACE_CHUNK, keys[i]->chunk_hash,
						     keys[i]->chunk_hash_len, NULL);
		keys[4 * N + i] = kvc_object_key_new(below, KVC_SPACE_PLAIN, keys[i]->chunk_hash,
						     keys[i]->chunk_hash_len, NULL);
	}
	store_keys(subject, keys, 5 * N, 0);
	g_autoptr(GPtrArray) of_scope = list_keys(subject, subject->scope, PAGE);
	g_autoptr(GPtrArray) of_plain = list_keys(subject, subject->plain_scope, PAGE);
	g_autoptr(GPtrArray) of_other = list_keys(subject, other, PAGE);
	g_autoptr(GPtrArray) of_below = list_keys(subject, below, PAGE);
	g_autoptr(GPtrArray) of_nothing = list_keys(subject, nothing, PAGE);
	g_autoptr(GPtrArray) of_all = list_keys(subject, NULL, PAGE);
	assert_lists(of_scope, keys, 2 * N);
	assert_lists(of_plain, keys + 2 * N, N);
	assert_lists(of_other, keys + 3 * N, N);
	assert_lists(of_below, keys + 4 * N, N);
	assert_int_equal(of_nothing->len, 0);
	assert_lists(of_all, keys, 5 * N);
	for (size_t i = 0; i < 5 * N; i++)
		kvc_object_key_unref(keys[i]);
}

/* ---- Many keys ----------------------------------------------------------------------------- */

static void
look_up_many(const Subject *subject, KvcObjectKey *const *keys, size_t n, size_t n_found)
{
	KvcL2ObjectInfo *info = g_new0(KvcL2ObjectInfo, n);
	g_autoptr(KvcBitmap) found = lookup_many(subject, keys, n, info);

	assert_int_equal(kvc_bitmap_count(found), n_found);
	subject->ops->submit_unlock(subject->adapter, keys, n);
	g_free(info);
}

/* Fewer, and without bytes, where they would go to a disk. */
static void
test_many_keys(void **state)
{
	Subject *subject = *state;
	bool is_small = subject_is_small(subject);
	size_t n = is_small ? MANY : MANY / 10, bytes = is_small ? 16 : 0;
	KvcObjectKey **keys = keys_new(subject, 0, n);

	for (size_t i = 0; i < n; i += MANY_A_TASK)
		store_keys(subject, keys + i, MANY_A_TASK, bytes);
	look_up_many(subject, keys, n, n);
	if (subject_has_exact_usage(subject))
		assert_int_equal(subject_usage(subject).objects, n);
	if (subject->ops->list) {
		g_autoptr(GPtrArray) listed = list_keys(subject, NULL, 500);

		assert_lists(listed, keys, n);
	}
	if (subject->ops->delete_keys) {
		g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(n);

		assert_int_equal(subject->ops->delete_keys(subject->adapter, keys, n, deleted), 0);
		assert_int_equal(kvc_bitmap_count(deleted), n);
		look_up_many(subject, keys, n, 0);
	}
	keys_free(keys, n);
}

const struct CMUnitTest adapter_list_tests[] = {
	{"list_of_nothing", test_list_of_nothing, set_up, tear_down, NULL},
	{"list_order_is_stable", test_list_order_is_stable, set_up, tear_down, NULL},
	{"list_while_it_changes", test_list_while_it_changes, set_up, tear_down, NULL},
	{"list_of_a_scope", test_list_of_a_scope, set_up, tear_down, NULL},
	{"many_keys", test_many_keys, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
