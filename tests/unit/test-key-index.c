/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/key-index.h"
#include "engine/lock.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/unit/key-fixture.h"

#define A (1u << 0)
#define B (1u << 1)
#define L1 KVC_TIER_L1
#define ALL_SPACES 7u

typedef struct Fixture {
	KvcKeyIndex *index;
	KvcKeyScope *scope;
	/* Protected by lock: what the index told. */
	pthread_mutex_t lock;
	GHashTable *lost; /* key -> count */
	unsigned n_lost, n_scopes_known;
	KvcKeyScope *last_scope; /* not owned */
} Fixture;

static void
on_lost(void *user, KvcObjectKey *key)
{
	Fixture *f = user;
	pthread_mutex_lock(&f->lock);
	unsigned n = GPOINTER_TO_UINT(g_hash_table_lookup(f->lost, key));
	g_hash_table_replace(f->lost, kvc_object_key_ref(key), GUINT_TO_POINTER(n + 1));
	f->n_lost++;
	pthread_mutex_unlock(&f->lock);
	/* No lock of the index is held that a call back could need. */
	if (f->index)
		kvc_key_index_get(f->index, key, NULL);
}

static void
on_scope(void *user, KvcKeyScope *scope)
{
	Fixture *f = user;
	pthread_mutex_lock(&f->lock);
	f->n_scopes_known++;
	f->last_scope = scope;
	pthread_mutex_unlock(&f->lock);
	g_ptr_array_unref(kvc_key_index_list_scopes(f->index));
}

static int
set_up(void **state)
{
	Fixture *f = g_new0(Fixture, 1);
	pthread_mutex_init(&f->lock, NULL);
	f->lost = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					(GDestroyNotify)kvc_object_key_unref, NULL);
	f->index = kvc_key_index_new(on_lost, on_scope, f);
	f->scope = kvc_key_scope_new("model", 1, 0, NULL, NULL);
	*state = f;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *f = *state;
	kvc_key_index_free(g_steal_pointer(&f->index));
	g_hash_table_unref(f->lost);
	kvc_key_scope_unref(f->scope);
	pthread_mutex_destroy(&f->lock);
	g_free(f);
	return 0;
}

static KvcObjectKey *
key_of(Fixture *f, unsigned number)
{
	return key_in(f->scope, KVC_SPACE_CHUNK, number);
}

static void
add(Fixture *f, unsigned number, uint32_t tier)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	kvc_key_index_add(f->index, key, tier, number + 1, 1000);
}

static void
remove_tiers(Fixture *f, unsigned number, uint32_t tiers)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	kvc_key_index_remove(f->index, key, tiers);
}

static KvcObjectInfo
info_of(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectInfo info = {0};
	assert_int_equal(kvc_key_index_get(f->index, key, &info), 0);
	return info;
}

static bool
is_known(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	int rc = kvc_key_index_get(f->index, key, NULL);
	assert_true(rc == 0 || rc == -ENOENT);
	return rc == 0;
}

static unsigned
lost_of(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	return GPOINTER_TO_UINT(g_hash_table_lookup(f->lost, key));
}

static unsigned
number_of(const KvcObjectKey *key)
{
	char name[9] = {0};
	assert_int_equal(key->chunk_hash_len, 8);
	memcpy(name, key->chunk_hash, 8);
	return (unsigned)strtoul(name, NULL, 16);
}

/* The numbers in the order of the listing, in pages of PAGE, as "1 2 3". */
static char *
list(Fixture *f, KvcKeyScope *scope, unsigned spaces, size_t page)
{
	GString *text = g_string_new(NULL);
	g_autofree KvcListEntry *entries = g_new0(KvcListEntry, page);
	uint64_t after = 0;
	size_t n;
	while ((n = kvc_key_index_list(f->index, scope, spaces, after, entries, page)) > 0) {
		assert_true(n <= page);
		for (size_t i = 0; i < n; i++) {
			assert_true(entries[i].info.sequence > after);
			after = entries[i].info.sequence;
			g_string_append_printf(text, "%s%u", text->len ? " " : "",
					       number_of(entries[i].key));
			kvc_object_key_unref(entries[i].key);
		}
	}
	return g_string_free(text, FALSE);
}

static void
assert_listed(Fixture *f, const char *expected)
{
	for (size_t page = 1; page <= 100; page = page * 3 + 1) {
		g_autofree char *text = list(f, f->scope, ALL_SPACES, page);
		assert_string_equal(text, expected);
	}
}

/* ---- What is known ------------------------------------------------------------------------- */

static void
test_unknown_key(void **state)
{
	Fixture *f = *state;
	KvcListEntry entry;
	assert_false(is_known(f, 1));
	remove_tiers(f, 1, L1 | A);
	assert_int_equal(f->n_lost, 0);
	assert_int_equal(kvc_key_index_count(f->index), 0);
	assert_int_equal(kvc_key_index_list(f->index, f->scope, ALL_SPACES, 0, &entry, 1), 0);
	g_autoptr(GPtrArray) scopes = kvc_key_index_list_scopes(f->index);
	assert_int_equal(scopes->len, 0);
}

static void
test_tiers_add_up(void **state)
{
	Fixture *f = *state;
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, A);
	add(f, 1, B);
	add(f, 1, L1);
	add(f, 1, L1);
	assert_int_equal(info_of(f, 1).tiers, A | B | L1);
	assert_int_equal(kvc_key_index_count(f->index), 1);
	remove_tiers(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, A | L1);
	assert_int_equal(f->n_lost, 0);
}

static void
test_last_tier_loses_the_key_once(void **state)
{
	Fixture *f = *state;
	add(f, 1, A);
	add(f, 1, L1);
	remove_tiers(f, 1, L1);
	assert_int_equal(lost_of(f, 1), 0);
	remove_tiers(f, 1, B);
	assert_int_equal(lost_of(f, 1), 0);
	assert_true(is_known(f, 1));
	remove_tiers(f, 1, A);
	assert_int_equal(lost_of(f, 1), 1);
	assert_false(is_known(f, 1));
	remove_tiers(f, 1, A | L1);
	assert_int_equal(lost_of(f, 1), 1);
	assert_int_equal(kvc_key_index_count(f->index), 0);
	/* It may come back and go again. */
	add(f, 1, B);
	remove_tiers(f, 1, UINT32_MAX);
	assert_int_equal(lost_of(f, 1), 2);
	assert_int_equal(f->n_lost, 2);
}

static void
test_bytes_of_l1_win(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	kvc_key_index_add(f->index, key, A, 100, 0);
	assert_int_equal(info_of(f, 1).bytes, 100);
	kvc_key_index_add(f->index, key, L1, 200, 0);
	assert_int_equal(info_of(f, 1).bytes, 200);
	kvc_key_index_add(f->index, key, B, 300, 0);
	assert_int_equal(info_of(f, 1).bytes, 200);
	/* A replaced object in L1. */
	kvc_key_index_add(f->index, key, L1, 250, 0);
	assert_int_equal(info_of(f, 1).bytes, 250);
	kvc_key_index_set_bytes(f->index, key, B, info_of(f, 1).version, 300);
	assert_int_equal(info_of(f, 1).bytes, 250);
}

/* A page of a listing may be older than what was stored since. */
static void
test_bytes_of_what_is_known_stay(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	kvc_key_index_add(f->index, key, A, 100, 0);
	kvc_key_index_add(f->index, key, A, 300, 0);
	assert_int_equal(info_of(f, 1).bytes, 100);
	uint32_t version = info_of(f, 1).version;
	kvc_key_index_set_bytes(f->index, key, B, version, 300);
	kvc_key_index_set_bytes(f->index, key, A, version + 1, 300);
	assert_int_equal(info_of(f, 1).bytes, 100);
	kvc_key_index_set_bytes(f->index, key, A, version, 300);
	assert_int_equal(info_of(f, 1).bytes, 300);
}

static void
test_mtime_is_kept_or_now(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	int64_t before = kvc_wall_ns();
	kvc_key_index_add(f->index, key, A, 1, 0);
	int64_t first = info_of(f, 1).mtime_ns;
	assert_true(first >= before && first <= kvc_wall_ns());
	kvc_key_index_add(f->index, key, B, 1, 0);
	kvc_key_index_add(f->index, key, L1, 1, 0);
	assert_int_equal(info_of(f, 1).mtime_ns, first);
	/* A commit has a time of its own; a store that reports another does not change it. */
	kvc_key_index_add(f->index, key, L1, 1, 5000);
	assert_int_equal(info_of(f, 1).mtime_ns, 5000);
	kvc_key_index_add(f->index, key, A, 1, 6000);
	assert_int_equal(info_of(f, 1).mtime_ns, 5000);
}

static void
test_spaces_and_scopes_are_apart(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcKeyScope) other = kvc_key_scope_new("model", 2, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) file = plain_key_new(9);
	kvc_key_index_add(f->index, file, A, 1, 1);
	for (unsigned space = 0; space < 3; space += 2) {
		g_autoptr(KvcObjectKey) key = key_in(f->scope, (KvcSpace)space, 7);
		g_autoptr(KvcObjectKey) far = key_in(other, (KvcSpace)space, 8 + space);
		kvc_key_index_add(f->index, key, A << space, 10 + space, 1);
		kvc_key_index_add(f->index, far, A, 1, 1);
	}
	assert_int_equal(kvc_key_index_count(f->index), 5);
	assert_int_equal(info_of(f, 7).tiers, A);
	assert_int_equal(info_of(f, 7).bytes, 10);
	g_autofree char *all = list(f, other, ALL_SPACES, 2);
	g_autofree char *plain = list(f, file->scope, 1u << KVC_SPACE_PLAIN, 2);
	g_autofree char *chains = list(f, other, 1u << KVC_SPACE_PREFIX, 2);
	g_autofree char *none = list(f, other, 0, 2);
	assert_string_equal(all, "8 10");
	assert_string_equal(plain, "9");
	assert_string_equal(chains, "10");
	assert_string_equal(none, "");
}

/* ---- Scopes -------------------------------------------------------------------------------- */

static void
test_scope_known_with_its_first_key(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcKeyScope) other = kvc_key_scope_new("model", 2, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) far = key_in(other, KVC_SPACE_CHUNK, 1);
	add(f, 1, A);
	assert_int_equal(f->n_scopes_known, 1);
	assert_ptr_equal(f->last_scope, f->scope);
	add(f, 2, A);
	add(f, 1, L1);
	assert_int_equal(f->n_scopes_known, 1);
	kvc_key_index_add(f->index, far, L1, 1, 1);
	assert_int_equal(f->n_scopes_known, 2);
	assert_ptr_equal(f->last_scope, other);
	/* Unknown when its last key went, known again with the next. */
	remove_tiers(f, 1, A | L1);
	remove_tiers(f, 2, A);
	g_autoptr(GPtrArray) scopes = kvc_key_index_list_scopes(f->index);
	assert_int_equal(scopes->len, 1);
	assert_ptr_equal(scopes->pdata[0], other);
	add(f, 3, A);
	assert_int_equal(f->n_scopes_known, 3);
	g_autoptr(GPtrArray) again = kvc_key_index_list_scopes(f->index);
	assert_int_equal(again->len, 2);
}

/* ---- Order --------------------------------------------------------------------------------- */

static void
test_order_is_of_first_knowledge(void **state)
{
	Fixture *f = *state;
	add(f, 5, A);
	add(f, 3, L1);
	add(f, 9, A);
	add(f, 5, L1);
	assert_listed(f, "5 3 9");
	/* "." and ".." come before. */
	assert_true(info_of(f, 5).sequence > 2);
	remove_tiers(f, 3, L1);
	assert_listed(f, "5 9");
	add(f, 3, L1);
	assert_listed(f, "5 9 3");
	remove_tiers(f, 5, A);
	assert_listed(f, "5 9 3");
}

static void
test_listing_goes_on_after_what_left(void **state)
{
	Fixture *f = *state;
	KvcListEntry entries[3];
	for (unsigned i = 0; i < 6; i++)
		add(f, i, A);
	assert_int_equal(kvc_key_index_list(f->index, f->scope, ALL_SPACES, 0, entries, 3), 3);
	uint64_t after = entries[2].info.sequence;
	assert_int_equal(entries[1].info.bytes, 2);
	assert_int_equal(entries[1].info.tiers, A);
	for (size_t i = 0; i < 3; i++)
		kvc_object_key_unref(entries[i].key);
	remove_tiers(f, 2, A);
	remove_tiers(f, 3, A);
	add(f, 2, A);
	assert_int_equal(kvc_key_index_list(f->index, f->scope, ALL_SPACES, after, entries, 3), 3);
	assert_int_equal(number_of(entries[0].key), 4);
	assert_int_equal(number_of(entries[1].key), 5);
	assert_int_equal(number_of(entries[2].key), 2);
	after = entries[2].info.sequence;
	for (size_t i = 0; i < 3; i++)
		kvc_object_key_unref(entries[i].key);
	assert_int_equal(kvc_key_index_list(f->index, f->scope, ALL_SPACES, after, entries, 3), 0);
	assert_int_equal(kvc_key_index_list(f->index, f->scope, ALL_SPACES, UINT64_MAX, entries, 3),
			 0);
}

/* More than half holes: the order is compacted, sequences stay. */
static void
test_sequences_survive_compaction(void **state)
{
	enum { N = 2000 };
	Fixture *f = *state;
	uint64_t sequences[N];
	GString *expected = g_string_new(NULL);
	for (unsigned i = 0; i < N; i++) {
		add(f, i, A);
		sequences[i] = info_of(f, i).sequence;
		assert_true(i == 0 || sequences[i] > sequences[i - 1]);
	}
	for (unsigned i = 0; i < N; i++)
		if (i % 50 != 7)
			remove_tiers(f, i, A);
	for (unsigned i = 7; i < N; i += 50) {
		assert_int_equal(info_of(f, i).sequence, sequences[i]);
		g_string_append_printf(expected, "%s%u", expected->len ? " " : "", i);
	}
	assert_listed(f, expected->str);
	assert_int_equal(kvc_key_index_count(f->index), N / 50);
	assert_int_equal(f->n_lost, N - N / 50);
	add(f, N, A);
	assert_true(info_of(f, N).sequence > sequences[N - 1]);
	g_string_free(expected, TRUE);
}

/* ---- Against an obviously right one -------------------------------------------------------- */

typedef struct Model {
	uint32_t tiers[200], hidden[200];
	GArray *order; /* of unsigned */
	unsigned lost;
} Model;

static void
model_leave(Model *model, unsigned number)
{
	for (guint i = 0; i < model->order->len; i++)
		if (g_array_index(model->order, unsigned, i) == number)
			g_array_remove_index(model->order, i--);
	model->lost++;
}

static void
model_add(Model *model, unsigned number, uint32_t tier)
{
	if (model->hidden[number] & tier)
		return;
	if (model->tiers[number] == 0)
		g_array_append_val(model->order, number);
	model->tiers[number] |= tier;
}

static void
model_remove(Model *model, unsigned number, uint32_t tiers)
{
	uint32_t had = model->tiers[number];
	model->tiers[number] &= ~tiers;
	if (had && model->tiers[number] == 0)
		model_leave(model, number);
}

static void
random_step(Fixture *f, Model *model, GRand *rand)
{
	unsigned number = (unsigned)g_rand_int_range(rand, 0, 200);
	uint32_t tier = (uint32_t[]){A, B, L1}[g_rand_int_range(rand, 0, 3)];
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	switch (g_rand_int_range(rand, 0, 8)) {
	case 0:
		assert_int_equal(kvc_key_index_hide(f->index, key, tier & ~L1, 0),
				 model->tiers[number]);
		model->hidden[number] |= tier & ~L1;
		model_remove(model, number, UINT32_MAX);
		break;
	case 1:
	case 2:
		kvc_key_index_unhide(f->index, key, tier & ~L1, 0);
		model->hidden[number] &= ~tier;
		break;
	case 3:
	case 4:
		kvc_key_index_remove(f->index, key, tier);
		model_remove(model, number, tier);
		break;
	default:
		kvc_key_index_add(f->index, key, tier, 1, 1);
		model_add(model, number, tier);
	}
	KvcObjectInfo info = {0};
	kvc_key_index_get(f->index, key, &info);
	assert_int_equal(info.tiers, model->tiers[number]);
}

static void
assert_as_model(Fixture *f, const Model *model)
{
	g_autoptr(GString) expected = g_string_new(NULL);
	for (guint i = 0; i < model->order->len; i++)
		g_string_append_printf(expected, "%s%u", i ? " " : "",
				       g_array_index(model->order, unsigned, i));
	g_autofree char *text = list(f, f->scope, ALL_SPACES, 17);
	assert_string_equal(text, expected->str);
	assert_int_equal(kvc_key_index_count(f->index), model->order->len);
	assert_int_equal(f->n_lost, model->lost);
}

static void
test_matches_a_model(void **state)
{
	const char *text = getenv("KVC_TEST_SEED");
	guint32 seed = text ? (guint32)strtoul(text, NULL, 0) : g_random_int();
	GRand *rand = g_rand_new_with_seed(seed);
	Model model = {.order = g_array_new(FALSE, FALSE, sizeof(unsigned))};
	print_message("KVC_TEST_SEED=%u\n", seed);
	for (int i = 0; i < 30000; i++) {
		random_step(*state, &model, rand);
		if (i % 100 == 0)
			assert_as_model(*state, &model);
	}
	g_array_unref(model.order);
	g_rand_free(rand);
}

/* ---- Hidden keys --------------------------------------------------------------------------- */

static void
test_hide_removes_and_keeps_away(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	add(f, 1, A);
	add(f, 1, B);
	add(f, 1, L1);
	assert_int_equal(kvc_key_index_hide(f->index, key, A | B, 0), A | B | L1);
	assert_int_equal(lost_of(f, 1), 1);
	assert_false(is_known(f, 1));
	assert_listed(f, "");
	/* A listing or a late lookup does not bring it back. */
	add(f, 1, A);
	add(f, 1, B);
	assert_false(is_known(f, 1));
	assert_int_equal(kvc_key_index_count(f->index), 0);
	/* A new commit is visible at once, and only there. */
	add(f, 1, L1);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, L1);
	kvc_key_index_unhide(f->index, key, A, 0);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, L1);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, L1 | A);
	kvc_key_index_unhide(f->index, key, B, 0);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, L1 | A | B);
	assert_int_equal(lost_of(f, 1), 1);
}

static void
test_hide_unknown_key(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	assert_int_equal(kvc_key_index_hide(f->index, key, A, 0), 0);
	assert_int_equal(f->n_lost, 0);
	assert_int_equal(f->n_scopes_known, 0);
	add(f, 1, A);
	assert_false(is_known(f, 1));
	assert_int_equal(f->n_scopes_known, 0);
	/* Hidden twice, confirmed in turn. */
	assert_int_equal(kvc_key_index_hide(f->index, key, B, 0), 0);
	kvc_key_index_unhide(f->index, key, A, 0);
	add(f, 1, B);
	assert_false(is_known(f, 1));
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, A);
	kvc_key_index_unhide(f->index, key, B, 0);
	kvc_key_index_unhide(f->index, key, A | B, 0);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, A | B);
}

static void
test_an_older_deletion_unhides_nothing(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	add(f, 1, A);
	assert_int_equal(kvc_key_index_hide(f->index, key, A | B, 3), A);
	assert_int_equal(kvc_key_index_hide(f->index, key, A | B, 4), 0);
	kvc_key_index_unhide(f->index, key, A, 3);
	add(f, 1, A);
	assert_false(is_known(f, 1));
	/* Told in the wrong order, of two threads. */
	assert_int_equal(kvc_key_index_hide(f->index, key, A, 2), 0);
	kvc_key_index_unhide(f->index, key, A, 3);
	add(f, 1, A);
	assert_false(is_known(f, 1));
	kvc_key_index_unhide(f->index, key, A, 4);
	add(f, 1, A);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, A);
}

static void
test_hide_from_nobody(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	add(f, 1, L1);
	assert_int_equal(kvc_key_index_hide(f->index, key, 0, 0), L1);
	assert_int_equal(lost_of(f, 1), 1);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, A);
	kvc_key_index_unhide(f->index, key, A, 0);
}

static void
test_no_callbacks_needed(void **state)
{
	(void)state;
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("m", 1, 0, NULL, NULL);
	g_autoptr(KvcObjectKey) key = key_in(scope, KVC_SPACE_CHUNK, 1);
	KvcKeyIndex *index = kvc_key_index_new(NULL, NULL, NULL);
	kvc_key_index_add(index, key, A, 1, 1);
	kvc_key_index_remove(index, key, A);
	kvc_key_index_add(index, key, L1, 1, 1);
	kvc_key_index_hide(index, key, A, 0);
	kvc_key_index_add(index, key, L1, 1, 1);
	kvc_key_index_free(index);
	/* Nothing is left of the references. */
	assert_int_equal(key->refs, 1);
}

/* ---- Threads ------------------------------------------------------------------------------- */

#define N_THREADS 4
#define N_KEYS 64
#define N_STEPS 4000

typedef struct Worker {
	Fixture *fixture;
	unsigned number;
	unsigned bad;
} Worker;

/* Each thread has a tier of its own: what it added is there until it takes it away. */
static void *
add_and_remove(void *user)
{
	Worker *w = user;
	uint32_t tier = w->number == 0 ? L1 : 1u << w->number;
	for (unsigned i = 0; i < N_STEPS; i++) {
		g_autoptr(KvcObjectKey) key = key_of(w->fixture, i % N_KEYS);
		KvcObjectInfo info = {0};
		kvc_key_index_add(w->fixture->index, key, tier, 1, 1);
		w->bad += kvc_key_index_get(w->fixture->index, key, &info) != 0 ||
			  !(info.tiers & tier) || info.sequence == 0;
		kvc_key_index_remove(w->fixture->index, key, tier);
		w->bad += kvc_key_index_get(w->fixture->index, key, &info) == 0 &&
			  (info.tiers & tier);
	}
	return NULL;
}

static void *
list_again_and_again(void *user)
{
	Worker *w = user;
	KvcListEntry entries[7];
	for (unsigned i = 0; i < N_STEPS / 20; i++) {
		uint64_t after = 0;
		size_t n;
		while ((n = kvc_key_index_list(w->fixture->index, w->fixture->scope, ALL_SPACES,
					       after, entries, 7)) > 0)
			for (size_t j = 0; j < n; j++) {
				w->bad += entries[j].info.sequence <= after ||
					  entries[j].info.tiers == 0;
				after = entries[j].info.sequence;
				kvc_object_key_unref(entries[j].key);
			}
		g_ptr_array_unref(kvc_key_index_list_scopes(w->fixture->index));
	}
	return NULL;
}

static void
run_threads(Fixture *f, void *(*work)(void *), void *(*other)(void *))
{
	pthread_t threads[N_THREADS + 1];
	Worker workers[N_THREADS + 1];
	for (unsigned i = 0; i <= N_THREADS; i++) {
		workers[i] = (Worker){f, i, 0};
		assert_int_equal(pthread_create(&threads[i], NULL, i < N_THREADS ? work : other,
						&workers[i]),
				 0);
	}
	for (unsigned i = 0; i <= N_THREADS; i++) {
		pthread_join(threads[i], NULL);
		assert_int_equal(workers[i].bad, 0);
	}
}

static void
test_threads_add_remove_and_list(void **state)
{
	Fixture *f = *state;
	run_threads(f, add_and_remove, list_again_and_again);
	assert_int_equal(kvc_key_index_count(f->index), 0);
	assert_listed(f, "");
	assert_true(f->n_lost >= N_KEYS);
	assert_true(f->n_lost <= N_THREADS * N_STEPS);
}

/* All remove all: one of them loses each key, nobody a second time. */
static void *
remove_all(void *user)
{
	Worker *w = user;
	for (unsigned i = 0; i < N_STEPS; i++) {
		uint32_t tier = w->number == 0 ? L1 : 1u << w->number;
		remove_tiers(w->fixture, i, tier);
	}
	return NULL;
}

static void
test_threads_lose_each_key_once(void **state)
{
	Fixture *f = *state;
	for (unsigned i = 0; i < N_STEPS; i++)
		for (unsigned t = 0; t < N_THREADS; t++)
			add(f, i, t == 0 ? L1 : 1u << t);
	run_threads(f, remove_all, list_again_and_again);
	assert_int_equal(kvc_key_index_count(f->index), 0);
	assert_int_equal(f->n_lost, N_STEPS);
	for (unsigned i = 0; i < N_STEPS; i++)
		assert_int_equal(lost_of(f, i), 1);
}

/* A store that has the version before is not asked for the new one. */
static void
test_replaced_versions_hide_older_copies(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	add(f, 1, A);
	add(f, 1, B);
	const KvcObjectAttributes attributes = {.mtime_ns = 5};
	kvc_key_index_replace_with(f->index, key, 77, &attributes);
	assert_int_equal(info_of(f, 1).tiers, L1);
	assert_int_equal(info_of(f, 1).bytes, 77);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, L1);
	kvc_key_index_note_stored(f->index, key, A);
	add(f, 1, A);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, L1 | A);
}

/* The listing comes to it after the commit: what it found is a version before. */
static void
test_what_is_found_of_a_committed_key_is_older(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = key_of(f, 1);
	const KvcObjectAttributes attributes = {.mtime_ns = 5};
	kvc_key_index_replace_with(f->index, key, 77, &attributes);
	add(f, 1, A);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, L1);
	kvc_key_index_note_stored(f->index, key, A);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, L1 | A);
	kvc_key_index_remove(f->index, key, L1);
	add(f, 1, B);
	assert_int_equal(info_of(f, 1).tiers, A);
	/* What was loaded says nothing of other stores. */
	add(f, 2, A);
	add(f, 2, L1);
	add(f, 2, B);
	assert_int_equal(info_of(f, 2).tiers, L1 | A | B);
}

/* What an adapter renamed that was not known to have it is something else. */
static void
test_a_rename_of_what_was_not_known_is_hidden(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) from = key_of(f, 1);
	g_autoptr(KvcObjectKey) to = key_in(f->scope, KVC_SPACE_PREFIX, 2);
	add(f, 1, L1);
	add(f, 1, A);
	kvc_key_index_rename(f->index, from, to, true, A | B, A | B);
	kvc_key_index_end_rename_from(f->index, from, A, false);
	assert_false(kvc_key_index_end_rename_to(f->index, to, A, KVC_RENAME_PRESENT, false));
	kvc_key_index_end_rename_from(f->index, from, B, false);
	assert_false(kvc_key_index_end_rename_to(f->index, to, B, KVC_RENAME_PRESENT, false));
	kvc_key_index_add(f->index, to, B, 1, 1);
	KvcObjectInfo info;
	assert_int_equal(kvc_key_index_get(f->index, to, &info), 0);
	assert_int_equal(info.tiers, L1 | A);
}

/* Of two renames to one name only the later one's end says what the store has. */
static void
test_the_last_of_two_renames_decides(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) first = key_of(f, 1);
	g_autoptr(KvcObjectKey) second = key_of(f, 2);
	g_autoptr(KvcObjectKey) name = key_of(f, 3);
	add(f, 1, A);
	add(f, 2, A);
	kvc_key_index_rename(f->index, first, name, false, A, A);
	kvc_key_index_rename(f->index, second, name, false, A, A);
	assert_int_equal(info_of(f, 3).renaming, A);
	kvc_key_index_end_rename_from(f->index, first, A, false);
	assert_false(kvc_key_index_end_rename_to(f->index, name, A, KVC_RENAME_ABSENT, false));
	assert_int_equal(info_of(f, 3).renaming, A);
	add(f, 1, A);
	assert_int_equal(info_of(f, 1).tiers, A);
	add(f, 2, A);
	assert_false(is_known(f, 2));
	kvc_key_index_end_rename_from(f->index, second, A, false);
	assert_false(kvc_key_index_end_rename_to(f->index, name, A, KVC_RENAME_PRESENT, false));
	assert_int_equal(info_of(f, 3).renaming, 0);
	assert_int_equal(info_of(f, 3).tiers, A);
	assert_int_equal(kvc_key_index_count(f->index), 2);
}

static uint32_t
version_of(Fixture *f, KvcObjectKey *key)
{
	KvcObjectInfo info;
	assert_int_equal(kvc_key_index_get(f->index, key, &info), 0);
	assert_true(info.version != 0);
	return info.version;
}

/* What a load compares: the same as long as the bytes are, another one after every change. */
static void
test_a_version_is_one_state_of_the_bytes(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) key = plain_key_new(1);
	g_autoptr(KvcObjectKey) other = plain_key_new(2);
	kvc_key_index_add(f->index, key, A, 10, 0);
	uint32_t old = version_of(f, key);
	/* More tiers with the same bytes, fewer of them. */
	kvc_key_index_add(f->index, key, B, 10, 0);
	kvc_key_index_add(f->index, key, L1, 10, 0);
	kvc_key_index_remove(f->index, key, A | L1);
	assert_int_equal(version_of(f, key), old);
	/* A commit. */
	kvc_key_index_replace_with(f->index, key, 20, &(KvcObjectAttributes){0});
	uint32_t new = version_of(f, key);
	assert_true(new != old);
	/* Who has looked at the old one forgets nothing of the new one. */
	kvc_key_index_remove_version(f->index, key, L1, old);
	assert_int_equal(version_of(f, key), new);
	kvc_key_index_remove_version(f->index, key, L1, new);
	assert_int_equal(kvc_key_index_get(f->index, key, NULL), -ENOENT);
	/* Gone and back. */
	kvc_key_index_add(f->index, key, L1, 20, 0);
	assert_true(version_of(f, key) != new);
	/* Another object's bytes under this name. */
	kvc_key_index_add(f->index, other, L1, 30, 0);
	old = version_of(f, key);
	new = version_of(f, other);
	kvc_key_index_rename(f->index, other, key, true, 0, 0);
	assert_true(version_of(f, key) != old && version_of(f, key) != new);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_unknown_key),
		TEST(test_what_is_found_of_a_committed_key_is_older),
		TEST(test_a_rename_of_what_was_not_known_is_hidden),
		TEST(test_the_last_of_two_renames_decides),
		TEST(test_tiers_add_up),
		TEST(test_last_tier_loses_the_key_once),
		TEST(test_bytes_of_l1_win),
		TEST(test_bytes_of_what_is_known_stay),
		TEST(test_mtime_is_kept_or_now),
		TEST(test_spaces_and_scopes_are_apart),
		TEST(test_scope_known_with_its_first_key),
		TEST(test_order_is_of_first_knowledge),
		TEST(test_listing_goes_on_after_what_left),
		TEST(test_sequences_survive_compaction),
		TEST(test_matches_a_model),
		TEST(test_hide_removes_and_keeps_away),
		TEST(test_hide_unknown_key),
		TEST(test_an_older_deletion_unhides_nothing),
		TEST(test_hide_from_nobody),
		TEST(test_replaced_versions_hide_older_copies),
		TEST(test_a_version_is_one_state_of_the_bytes),
		cmocka_unit_test(test_no_callbacks_needed),
		TEST(test_threads_add_remove_and_list),
		TEST(test_threads_lose_each_key_once),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
