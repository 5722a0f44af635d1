/* SPDX-License-Identifier: Apache-2.0 */

/* What kvcache/policy.h promises, of every registered policy. */

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

#define KEYS 64
#define KEY_BYTES 1000

static KvcObjectKey *keys[KEYS];

static int
make_keys(void **state)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);

	for (uint32_t i = 0; i < KEYS; i++) {
		keys[i] = kvc_object_key_new(scope, KVC_SPACE_CHUNK, &i, sizeof(i), NULL);
		assert_non_null(keys[i]);
	}
	return 0;
}

/* Also: no policy has kept a reference. */
static int
free_keys(void **state)
{
	for (size_t i = 0; i < KEYS; i++) {
		assert_int_equal(keys[i]->refs, 1);
		kvc_object_key_unref(keys[i]);
	}
	return 0;
}

/* As the engine describes its adapters. */
static void
describe_adapters(KvcAdapterDescriptor *adapters, KvcOptions **options)
{
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		options[i] = kvc_options_parse("type=mock,max_size_gb=1", NULL);
		adapters[i] = (KvcAdapterDescriptor){i, kvc_options_type(options[i]), options[i]};
	}
}

static void
free_options(KvcOptions **options)
{
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++)
		kvc_options_free(options[i]);
}

static void
check_header(uint32_t api,
	     uint32_t struct_size,
	     size_t expected_size,
	     const char *name,
	     const char *summary)
{
	assert_int_equal(api, KVC_POLICY_API);
	assert_int_equal(struct_size, expected_size);
	assert_int_equal(strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_"), strlen(name));
	assert_true(summary && *summary && !strchr(summary, '\n'));
}

/* ---- Store --------------------------------------------------------------------------------- */

static void
test_store_policy(void **state)
{
	const KvcStorePolicy *policy = *state;
	KvcAdapterDescriptor adapters[KVC_MAX_ADAPTERS];
	KvcOptions *options[KVC_MAX_ADAPTERS];

	check_header(policy->api, policy->struct_size, sizeof(*policy), policy->name,
		     policy->summary);
	assert_ptr_equal(kvc_find_store_policy(policy->name, NULL), policy);
	assert_non_null(policy->select_store_targets);
	describe_adapters(adapters, options);
	for (size_t n = 0; n <= KVC_MAX_ADAPTERS; n++) {
		for (size_t i = 0; i < KEYS; i++) {
			uint32_t targets = policy->select_store_targets(keys[i], adapters, n);

			/* Only adapters that there are. */
			assert_int_equal(targets >> n, 0);
			if (policy->select_l1_deletion)
				policy->select_l1_deletion(keys[i]);
		}
	}
	free_options(options);
}

/* ---- Prefetch ------------------------------------------------------------------------------ */

/* Every third key is nowhere; the others are on one, several or all adapters. */
static bool
is_found(size_t key, size_t adapter)
{
	return key % 3 != 0 && (key % 5 == 0 || (key >> (adapter % 4)) & 1);
}

static void
check_plan(const KvcPrefetchPolicy *policy, const KvcAdapterDescriptor *adapters, size_t n)
{
	KvcBitmap *found[KVC_MAX_ADAPTERS], *plan[KVC_MAX_ADAPTERS];

	for (size_t a = 0; a < n; a++) {
		found[a] = kvc_bitmap_new(KEYS);
		plan[a] = kvc_bitmap_new(KEYS);
		for (size_t i = 0; i < KEYS; i++)
			if (is_found(i, a))
				kvc_bitmap_set(found[a], i);
	}
	policy->select_load_plan(keys, KEYS, (const KvcBitmap *const *)found, adapters, n, plan);
	for (size_t i = 0; i < KEYS; i++) {
		unsigned planned = 0;

		for (size_t a = 0; a < n; a++) {
			/* FOUND is only looked at. */
			assert_int_equal(kvc_bitmap_test(found[a], i), is_found(i, a));
			if (!kvc_bitmap_test(plan[a], i))
				continue;
			assert_true(is_found(i, a));
			planned++;
		}
		assert_true(planned <= 1);
	}
	for (size_t a = 0; a < n; a++) {
		kvc_bitmap_free(found[a]);
		kvc_bitmap_free(plan[a]);
	}
}

static void
test_prefetch_policy(void **state)
{
	const KvcPrefetchPolicy *policy = *state;
	KvcAdapterDescriptor adapters[KVC_MAX_ADAPTERS];
	KvcOptions *options[KVC_MAX_ADAPTERS];

	check_header(policy->api, policy->struct_size, sizeof(*policy), policy->name,
		     policy->summary);
	assert_ptr_equal(kvc_find_prefetch_policy(policy->name, NULL), policy);
	assert_non_null(policy->select_load_plan);
	describe_adapters(adapters, options);
	for (size_t n = 1; n <= KVC_MAX_ADAPTERS; n++)
		check_plan(policy, adapters, n);
	free_options(options);
}

/* ---- Eviction ------------------------------------------------------------------------------ */

static bool
is_even(void *user, const KvcObjectKey *key)
{
	return key->chunk_hash[0] % 2 == 0;
}

/* Victims of BYTES and COUNT: eligible, each once, and known. Returns how many. */
static unsigned
select_victims(const KvcEvictionPolicy *policy,
	       KvcEvictionState *state,
	       uint64_t bytes,
	       size_t count,
	       GHashTable *known)
{
	g_autoptr(GPtrArray) victims =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	g_autoptr(GHashTable) seen = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);

	policy->select_victims(state, bytes, count, is_even, NULL, victims);
	for (guint i = 0; i < victims->len; i++) {
		assert_true(is_even(NULL, victims->pdata[i]));
		assert_true(g_hash_table_contains(known, victims->pdata[i]));
		assert_true(g_hash_table_add(seen, victims->pdata[i]));
	}
	return victims->len;
}

static void
test_eviction_policy(void **state)
{
	const KvcEvictionPolicy *policy = *state;
	g_autoptr(GHashTable) known = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	KvcEvictionState *eviction;
	unsigned all;

	check_header(policy->api, policy->struct_size, sizeof(*policy), policy->name,
		     policy->summary);
	assert_ptr_equal(kvc_find_eviction_policy(policy->name, NULL), policy);
	eviction = policy->state_new();
	/* Nothing is known. */
	policy->touched(eviction, keys[0]);
	policy->removed(eviction, keys[0]);
	assert_int_equal(select_victims(policy, eviction, 1, 1, known), 0);
	for (size_t i = 0; i < KEYS; i++) {
		policy->created(eviction, keys[i], KEY_BYTES, (KvcEvictionClass)(i % 3));
		g_hash_table_add(known, keys[i]);
	}
	for (size_t i = 0; i < KEYS; i += 7)
		policy->touched(eviction, keys[i]);
	/* All that may go, as often as it is asked: nothing is forgotten before it is removed. */
	all = select_victims(policy, eviction, UINT64_MAX, SIZE_MAX, known);
	assert_int_equal(select_victims(policy, eviction, UINT64_MAX, SIZE_MAX, known), all);
	/* A policy that never evicts selects none; the others all that may go. */
	assert_true(all == 0 || all == KEYS / 2);
	if (all > 0) {
		assert_int_equal(select_victims(policy, eviction, 3 * KEY_BYTES, 0, known), 3);
		assert_int_equal(select_victims(policy, eviction, 3 * KEY_BYTES - 1, 0, known), 3);
		assert_int_equal(select_victims(policy, eviction, 0, 5, known), 5);
	}
	for (size_t i = 0; i < KEYS; i++) {
		policy->removed(eviction, keys[i]);
		g_hash_table_remove(known, keys[i]);
	}
	assert_int_equal(select_victims(policy, eviction, UINT64_MAX, SIZE_MAX, known), 0);
	/* What is known at the end goes with the state. */
	policy->created(eviction, keys[0], KEY_BYTES, KVC_EVICTION_NORMAL);
	policy->state_free(eviction);
}

/* ---- All of them --------------------------------------------------------------------------- */

static void
add_test(GArray *tests,
	 const char *kind,
	 const char *name,
	 CMUnitTestFunction function,
	 const void *policy)
{
	struct CMUnitTest test = {
		.name = g_strdup_printf("%s policy: %s", kind, name),
		.test_func = function,
		.initial_state = (void *)policy,
	};

	g_array_append_val(tests, test);
}

int
main(void)
{
	GArray *tests = g_array_new(FALSE, FALSE, sizeof(struct CMUnitTest));
	const KvcStorePolicy *store;
	const KvcPrefetchPolicy *prefetch;
	const KvcEvictionPolicy *eviction;

	for (size_t i = 0; (store = kvc_store_policy_at(i)) != NULL; i++)
		add_test(tests, "store", store->name, test_store_policy, store);
	for (size_t i = 0; (prefetch = kvc_prefetch_policy_at(i)) != NULL; i++)
		add_test(tests, "prefetch", prefetch->name, test_prefetch_policy, prefetch);
	for (size_t i = 0; (eviction = kvc_eviction_policy_at(i)) != NULL; i++)
		add_test(tests, "eviction", eviction->name, test_eviction_policy, eviction);
	const struct CMUnitTest *all = (const struct CMUnitTest *)(void *)tests->data;
	int failed = _cmocka_run_group_tests("policies", all, tests->len, make_keys, free_keys);
	for (guint i = 0; i < tests->len; i++)
		g_free((char *)all[i].name);
	g_array_unref(tests);
	return failed;
}
