/* SPDX-License-Identifier: Apache-2.0 */

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <kvcache/registry.h>

enum { KEYS = 26 };

typedef struct Fixture {
	const KvcEvictionPolicy *policy;
	KvcEvictionState *state;
	KvcObjectKey *keys[KEYS]; /* 'a' to 'z' */
	char ineligible[KEYS + 1];
	unsigned asked; /* calls of the eligible function */
} Fixture;

static int
set_up(void **state)
{
	Fixture *fixture = g_new0(Fixture, 1);
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain("", NULL);

	fixture->policy = kvc_find_eviction_policy("lru", NULL);
	fixture->state = fixture->policy->state_new();
	for (int i = 0; i < KEYS; i++) {
		char name = (char)('a' + i);

		fixture->keys[i] = kvc_object_key_new(scope, KVC_SPACE_PLAIN, &name, 1, NULL);
	}
	*state = fixture;
	return 0;
}

static int
tear_down(void **state)
{
	Fixture *fixture = *state;

	fixture->policy->state_free(fixture->state);
	for (int i = 0; i < KEYS; i++) {
		/* The policy has given its references back. */
		assert_int_equal(fixture->keys[i]->refs, 1);
		kvc_object_key_unref(fixture->keys[i]);
	}
	g_free(fixture);
	return 0;
}

static KvcObjectKey *
key_of(Fixture *fixture, char name)
{
	return fixture->keys[name - 'a'];
}

static void
create(Fixture *fixture, const char *names, uint64_t bytes, KvcEvictionClass klass)
{
	for (; *names; names++)
		fixture->policy->created(fixture->state, key_of(fixture, *names), bytes, klass);
}

static void
touch(Fixture *fixture, char name)
{
	fixture->policy->touched(fixture->state, key_of(fixture, name));
}

static void
remove_key(Fixture *fixture, char name)
{
	fixture->policy->removed(fixture->state, key_of(fixture, name));
}

static bool
is_eligible(void *user, const KvcObjectKey *key)
{
	Fixture *fixture = user;

	fixture->asked++;
	return !strchr(fixture->ineligible, key->chunk_hash[0]);
}

static void
assert_victims(Fixture *fixture, uint64_t bytes, size_t count, const char *expected)
{
	g_autoptr(GPtrArray) victims =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	g_autoptr(GString) names = g_string_new(NULL);

	fixture->asked = 0;
	fixture->policy->select_victims(fixture->state, bytes, count, is_eligible, fixture,
					victims);
	for (unsigned i = 0; i < victims->len; i++) {
		const KvcObjectKey *key = g_ptr_array_index(victims, i);

		g_string_append_c(names, (char)key->chunk_hash[0]);
	}
	assert_string_equal(names->str, expected);
}

static void
test_oldest_goes_first(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abcd", 10, KVC_EVICTION_NORMAL);
	assert_victims(fixture, 0, 4, "abcd");
	touch(fixture, 'b');
	assert_victims(fixture, 0, 4, "acdb");
	touch(fixture, 'b');
	touch(fixture, 'a');
	assert_victims(fixture, 0, 4, "cdba");
	/* Selecting forgets nothing. */
	assert_victims(fixture, 0, 4, "cdba");
}

static void
test_until_bytes_and_count(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abcd", 10, KVC_EVICTION_NORMAL);
	assert_victims(fixture, 0, 0, "");
	assert_victims(fixture, 1, 0, "a");
	assert_victims(fixture, 10, 0, "a");
	assert_victims(fixture, 11, 0, "ab");
	assert_victims(fixture, 0, 2, "ab");
	assert_victims(fixture, 11, 3, "abc");
	assert_victims(fixture, 40, 1, "abcd");
	assert_victims(fixture, 1000, 1000, "abcd");
}

static void
test_classes_go_one_after_the_other(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "ab", 10, KVC_EVICTION_LAST);
	create(fixture, "cd", 10, KVC_EVICTION_NORMAL);
	create(fixture, "ef", 10, KVC_EVICTION_FIRST);
	assert_victims(fixture, 0, 6, "efcdab");
	/* A use does not change the class. */
	touch(fixture, 'e');
	touch(fixture, 'a');
	assert_victims(fixture, 0, 6, "fecdba");
}

static void
test_created_again_updates(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abc", 10, KVC_EVICTION_NORMAL);
	create(fixture, "a", 10, KVC_EVICTION_NORMAL);
	assert_victims(fixture, 0, 3, "bca");
	create(fixture, "c", 30, KVC_EVICTION_FIRST);
	assert_victims(fixture, 0, 3, "cba");
	assert_victims(fixture, 30, 0, "c");
	create(fixture, "c", 10, KVC_EVICTION_LAST);
	assert_victims(fixture, 30, 0, "bac");
}

static void
test_removed_is_forgotten(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abc", 10, KVC_EVICTION_NORMAL);
	remove_key(fixture, 'b');
	assert_victims(fixture, 0, 3, "ac");
	assert_int_equal(key_of(fixture, 'b')->refs, 1);
	create(fixture, "b", 10, KVC_EVICTION_NORMAL);
	assert_victims(fixture, 0, 3, "acb");
}

static void
test_unknown_keys_are_ignored(void **state)
{
	Fixture *fixture = *state;

	touch(fixture, 'x');
	remove_key(fixture, 'x');
	assert_victims(fixture, 0, 1, "");
}

static void
test_ineligible_keys_keep_their_place(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abcd", 10, KVC_EVICTION_NORMAL);
	create(fixture, "ef", 10, KVC_EVICTION_FIRST);
	strcpy(fixture->ineligible, "ace");
	assert_victims(fixture, 0, 2, "fb");
	assert_victims(fixture, 0, 6, "fbd");
	strcpy(fixture->ineligible, "");
	assert_victims(fixture, 0, 6, "efabcd");
	strcpy(fixture->ineligible, "abcdef");
	assert_victims(fixture, 1000, 1000, "");
}

static void
test_cost_is_victims_and_passed_over(void **state)
{
	Fixture *fixture = *state;

	create(fixture, "abcdefghijklmnopqrstuvwxyz", 10, KVC_EVICTION_NORMAL);
	assert_victims(fixture, 0, 3, "abc");
	assert_int_equal(fixture->asked, 3);
	strcpy(fixture->ineligible, "bc");
	assert_victims(fixture, 0, 3, "ade");
	assert_int_equal(fixture->asked, 5);
}

/* ---- Against an obviously right one ------------------------------------------------------------
 */

typedef struct Model {
	char order[3][KEYS + 1]; /* by class: names, coldest first */
	uint64_t bytes[KEYS];
} Model;

static int
model_forget(Model *model, char name)
{
	for (int klass = 0; klass < 3; klass++) {
		char *at = strchr(model->order[klass], name);

		if (at) {
			memmove(at, at + 1, strlen(at));
			return klass;
		}
	}
	return -1;
}

static void
model_append(Model *model, int klass, char name)
{
	size_t len = strlen(model->order[klass]);

	model->order[klass][len] = name;
	model->order[klass][len + 1] = '\0';
}

static void
model_victims(const Model *model, const char *ineligible, uint64_t bytes, size_t count, char *out)
{
	static const int order[] = {KVC_EVICTION_FIRST, KVC_EVICTION_NORMAL, KVC_EVICTION_LAST};
	g_autofree char *all = g_strconcat(model->order[order[0]], model->order[order[1]],
					   model->order[order[2]], NULL);
	uint64_t sum = 0;
	size_t n = 0;

	for (const char *name = all; *name && (sum < bytes || n < count); name++)
		if (!strchr(ineligible, *name)) {
			out[n++] = *name;
			sum += model->bytes[*name - 'a'];
		}
	out[n] = '\0';
}

static void
random_ineligible(GRand *rand, char *out)
{
	for (char name = 'a'; name <= 'z'; name++)
		if (g_rand_int_range(rand, 0, 3) == 0)
			*out++ = name;
	*out = '\0';
}

static void
random_step(Fixture *fixture, Model *model, GRand *rand)
{
	char name = (char)('a' + g_rand_int_range(rand, 0, KEYS));
	char text[] = {name, '\0'}, expected[KEYS + 1];
	int klass = g_rand_int_range(rand, 0, 3);
	uint64_t bytes = (uint64_t)g_rand_int_range(rand, 0, 100);
	size_t count = (size_t)g_rand_int_range(rand, 0, KEYS);

	switch (g_rand_int_range(rand, 0, 4)) {
	case 0:
		create(fixture, text, bytes, (KvcEvictionClass)klass);
		model_forget(model, name);
		model_append(model, klass, name);
		model->bytes[name - 'a'] = bytes;
		break;
	case 1:
		touch(fixture, name);
		klass = model_forget(model, name);
		if (klass >= 0)
			model_append(model, klass, name);
		break;
	case 2:
		remove_key(fixture, name);
		model_forget(model, name);
		break;
	default:
		random_ineligible(rand, fixture->ineligible);
		model_victims(model, fixture->ineligible, bytes * 10, count, expected);
		assert_victims(fixture, bytes * 10, count, expected);
	}
}

static void
test_matches_a_model(void **state)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();
	g_autoptr(GRand) rand = g_rand_new_with_seed(seed);
	Model model = {0};

	print_message("KVC_TEST_SEED=%u\n", seed);
	for (int i = 0; i < 50000; i++)
		random_step(*state, &model, rand);
}

/* ---- Threads ------------------------------------------------------------------------------- */

static bool
is_always_eligible(void *user, const KvcObjectKey *key)
{
	return true;
}

static void *
use_from_a_thread(void *user)
{
	Fixture *fixture = user;

	for (int i = 0; i < 5000; i++) {
		char name = (char)('a' + i % KEYS);
		g_autoptr(GPtrArray) victims =
			g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);

		fixture->policy->created(fixture->state, key_of(fixture, name), 1,
					 (KvcEvictionClass)(i % 3));
		touch(fixture, (char)('a' + i * 7 % KEYS));
		fixture->policy->select_victims(fixture->state, 3, 3, is_always_eligible, NULL,
						victims);
		remove_key(fixture, (char)('a' + i * 11 % KEYS));
	}
	return NULL;
}

static void
test_any_thread_may_call(void **state)
{
	pthread_t threads[4];

	for (int i = 0; i < 4; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, use_from_a_thread, *state), 0);
	for (int i = 0; i < 4; i++)
		pthread_join(threads[i], NULL);
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		TEST(test_oldest_goes_first),
		TEST(test_until_bytes_and_count),
		TEST(test_classes_go_one_after_the_other),
		TEST(test_created_again_updates),
		TEST(test_removed_is_forgotten),
		TEST(test_unknown_keys_are_ignored),
		TEST(test_ineligible_keys_keep_their_place),
		TEST(test_cost_is_victims_and_passed_over),
		TEST(test_matches_a_model),
		TEST(test_any_thread_may_call),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
