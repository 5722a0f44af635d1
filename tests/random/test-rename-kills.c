/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random commits, renames, deletions and evictions of a few plain files, over two scripted adapters
 * that are held up and fail at random. At random points both stand still as if we were killed: what
 * they have then, less what a replay of the deletion log deletes, is what the next run finds. In
 * the end, when all is stored, L1, the index and the adapters must agree.
 *
 * Lost by a kill, as documented, is what no adapter had taken; and a rename that an adapter has not
 * done is undone there. So nothing is asked of what is not confirmed, or still being renamed.
 *
 * Many short runs, each with its seed, for a quarter of KVC_TEST_SECONDS (default 2): what they
 * find depends on what overlaps in the StoreController. KVC_TEST_SEED: one run with this seed,
 * which also says in which mode. What was done is printed when a run fails: wN=V writes the version
 * V as the name N, H, F and R hold, fail and release an adapter, K is a kill.
 */

#include "tests/unit/rename-log-fixture.h"

#define N_KEYS 5
#define N_STEPS 40

typedef enum { BOTH_RENAME, ONE_RENAMES, STORES_FAIL, FIRST_FAILS, N_MODES } Mode;

static const char *const mode_names[] = {
	"both adapters rename",
	"the second one cannot rename",
	"stores fail",
	"the first one fails to store",
};

typedef struct Model {
	Two t;
	Dir *dir;
	GRand *rand;
	Mode mode;
	KvcObjectKey *keys[N_KEYS];
	unsigned versions[N_KEYS]; /* what each name ought to have, 0: nothing */
	unsigned n_versions;
	/* By version: the name that it was written as, which ones had it, was it deleted? */
	unsigned written_as[N_STEPS + 1];
	bool had[N_STEPS + 1][N_KEYS];
	bool is_deleted[N_STEPS + 1];
	GString *trace;
} Model;

static Model model;

static void
add_trace(Model *m, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_string_append_vprintf(m->trace, format, args);
	va_end(args);
}

static void
ensure(Model *m, bool is_met, const char *what, size_t a, unsigned i)
{
	if (is_met)
		return;
	KvcObjectInfo info = info_of(&m->t, m->keys[i]);
	fail_msg("%s: adapter %zu, name %u, which ought to have %u, has the tiers %x and is "
		 "renaming %x",
		 what, a, i, m->versions[i], info.tiers, info.renaming);
}

/* ---- What is done -------------------------------------------------------------------------- */

static void
write_name(Model *m, unsigned i)
{
	unsigned v = ++m->n_versions;
	write_version(&m->t, m->keys[i], v);
	m->written_as[v] = i;
	m->had[v][i] = true;
	m->versions[i] = v;
	add_trace(m, "w%u=%u ", i, v);
}

static void
delete_name(Model *m, unsigned i)
{
	if (m->versions[i] == 0)
		return;
	add_trace(m, "rm%u ", i);
	delete_logged(&m->t, m->keys[i], 3);
	m->is_deleted[m->versions[i]] = true;
	m->versions[i] = 0;
}

static void
rename_name(Model *m, unsigned i, unsigned j)
{
	if (i == j || m->versions[i] == 0)
		return;
	int rc = try_rename(&m->t.b, m->keys[i], m->keys[j]);
	if (rc == -EXDEV && m->mode == ONE_RENAMES) /* it is not in L1 */
		return;
	assert_int_equal(rc, 0);
	add_trace(m, "mv%u>%u ", i, j);
	m->versions[j] = m->versions[i];
	m->versions[i] = 0;
	m->had[m->versions[j]][j] = true;
}

/* Not what no adapter took. */
static void
evict_name(Model *m, unsigned i)
{
	KvcL1Manager *l1 = m->t.b.env->context.l1;
	if (kvc_l1_manager_is_key_evictable(l1, m->keys[i], false) &&
	    kvc_l1_manager_evict(l1, m->keys[i]) == KVC_L1_SUCCESS)
		add_trace(m, "ev%u ", i);
}

static void
act(Model *m)
{
	unsigned i = (unsigned)g_rand_int_range(m->rand, 0, N_KEYS);
	unsigned j = (unsigned)g_rand_int_range(m->rand, 0, N_KEYS);
	switch (g_rand_int_range(m->rand, 0, 8)) {
	case 0:
	case 1:
	case 2:
		write_name(m, i);
		break;
	case 3:
		delete_name(m, i);
		break;
	case 4:
		evict_name(m, i);
		break;
	default:
		rename_name(m, i, j);
	}
}

/* ---- How the adapters are disturbed -------------------------------------------------------- */

static void
hold_all(FakeAdapter *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_renames = fake->hold_deletes = fake->hold[FAKE_STORE] = true;
	pthread_mutex_unlock(&fake->lock);
}

static void
release_all(FakeAdapter *fake)
{
	fake_release_renames(fake);
	fake_release_deletes(fake);
	fake_release(fake, FAKE_STORE);
}

/* A store that fails three times is given up. */
static int
random_failures(Model *m, size_t a)
{
	switch (m->mode) {
	case BOTH_RENAME:
		return 1;
	case ONE_RENAMES:
		return 0;
	case STORES_FAIL:
		return g_rand_int_range(m->rand, 0, 4);
	default:
		return a == 0 ? g_rand_int_range(m->rand, 0, 12) : 0;
	}
}

static void
let_fail(Model *m, size_t a)
{
	FakeAdapter *fake = m->t.b.env->fakes[a];
	int stores = random_failures(m, a);
	add_trace(m, "F%zu:%d ", a, stores);
	pthread_mutex_lock(&fake->lock);
	fake->fail_renames = fake->fail_deletes = 2;
	fake->fail_stores = stores;
	pthread_mutex_unlock(&fake->lock);
}

static void
disturb(Model *m)
{
	size_t a = (size_t)g_rand_int_range(m->rand, 0, 2);
	switch (g_rand_int_range(m->rand, 0, 6)) {
	case 0:
		add_trace(m, "H%zu ", a);
		hold_all(m->t.b.env->fakes[a]);
		break;
	case 1:
		let_fail(m, a);
		break;
	case 2:
		nap(1);
		break;
	default:
		add_trace(m, "R%zu ", a);
		release_all(m->t.b.env->fakes[a]);
	}
}

/* ---- What must be -------------------------------------------------------------------------- */

static bool
has_version(Model *m, size_t a, unsigned i, unsigned v)
{
	return fake_has_version(m->t.b.env->fakes[a], m->keys[i], m->keys[m->written_as[v]], v);
}

/* 0: it has none. */
static unsigned
find_version(Model *m, size_t a, unsigned i)
{
	for (unsigned v = m->n_versions; v > 0; v--)
		if (has_version(m, a, i, v))
			return v;
	assert_false(fake_has(m->t.b.env->fakes[a], m->keys[i], NULL));
	return 0;
}

/* At any time. */
static void
check_l1(Model *m)
{
	for (unsigned i = 0; i < N_KEYS; i++) {
		unsigned v = m->versions[i];
		uint32_t known = info_of(&m->t, m->keys[i]).tiers;
		ensure(m, (known != 0) == (v != 0), "known", 0, i);
		if (known & KVC_TIER_L1)
			ensure(m, is_in_l1(&m->t, m->keys[i], m->keys[m->written_as[v]], v), "L1",
			       0, i);
	}
}

/* FOUND: what the next run finds on adapter A as the name I. */
static void
check_found(Model *m, size_t a, unsigned i, unsigned found)
{
	KvcObjectInfo info = info_of(&m->t, m->keys[i]);
	bool is_confirmed = info.tiers & ~info.renaming & (1u << a);
	if (is_confirmed)
		ensure(m, found == m->versions[i], "lost", a, i);
	if (found == 0)
		return;
	ensure(m, m->had[found][i], "never had that", a, i);
	ensure(m, !m->is_deleted[found], "deleted, and there again", a, i);
}

/* Killed now: both adapters stand still. */
static void
check_kill(Model *m)
{
	hold_all(m->t.b.env->fakes[0]);
	hold_all(m->t.b.env->fakes[1]);
	nap(2);
	go_round(&m->t);
	go_round(&m->t);
	add_trace(m, "K ");
	g_autoptr(GArray) all = replay(&m->t, m->dir);
	for (size_t a = 0; a < 2; a++) {
		for (unsigned i = 0; i < N_KEYS; i++) {
			bool is_gone = is_replayed(all, a, m->keys[i]);
			check_found(m, a, i, is_gone ? 0 : find_version(m, a, i));
		}
	}
}

/* Was what no adapter could take, and L1 has as another name, the name I before? */
static bool
is_left_behind(Model *m, unsigned i)
{
	for (unsigned j = 0; j < N_KEYS; j++)
		if (m->versions[j] && m->had[m->versions[j]][i] &&
		    info_of(&m->t, m->keys[j]).tiers == KVC_TIER_L1)
			return true;
	return false;
}

/*
 * Nothing goes on any more. Given up by every adapter, an older version is still there and hidden,
 * also under the name that it had before it was renamed; given up by one of them it is deleted
 * there.
 */
static void
check_end(Model *m, size_t a, unsigned i)
{
	KvcObjectInfo info = info_of(&m->t, m->keys[i]);
	unsigned v = m->versions[i], found = find_version(m, a, i);
	bool is_given_up = v ? info.tiers == KVC_TIER_L1 : is_left_behind(m, i);
	bool is_hidden =
		kvc_key_index_hidden_from(m->t.b.env->context.index, m->keys[i]) & (1u << a);
	ensure(m, !info.renaming, "renaming", a, i);
	if (info.tiers & (1u << a))
		ensure(m, found == v, "not there", a, i);
	else if (!is_given_up)
		ensure(m, found == 0, "too much", a, i);
	else
		ensure(m, found == 0 || (m->had[found][i] && is_hidden), "shown", a, i);
	if (!is_given_up)
		ensure(m, !is_hidden, "hidden", a, i);
	if (v && !(info.tiers & (1u << a)))
		ensure(m, env_stat(m->t.b.env, stores_failed) > 0, "not stored", a, i);
	if (v && m->mode == FIRST_FAILS)
		ensure(m, info.tiers & 2, "not stored", a, i);
}

/* A drain leaves failing deletions that are in the log to the next run. */
static bool
is_quiet(Model *m, size_t a)
{
	const KvcAdapterSlot *slot = &m->t.b.env->slots[a];
	return get(&slot->deletes_pending) == 0 && get(&slot->renames_pending) == 0;
}

static void
finish(Model *m)
{
	for (size_t a = 0; a < 2; a++)
		release_all(m->t.b.env->fakes[a]);
	drain(&m->t.b);
	wait_until(is_quiet(m, 0) && is_quiet(m, 1));
	go_round(&m->t);
	add_trace(m, "end ");
	check_l1(m);
	for (size_t a = 0; a < 2; a++)
		for (unsigned i = 0; i < N_KEYS; i++)
			check_end(m, a, i);
	assert_int_equal(env_counts(m->t.b.env).dirty_objects, 0);
	assert_int_equal(env_stat(m->t.b.env, renames_lost), 0);
}

/* ---- The runs ------------------------------------------------------------------------------ */

static void
model_init(Model *m, unsigned seed, Dir *dir)
{
	*m = (Model){
		.t = two_new(2),
		.dir = dir,
		.rand = g_rand_new_with_seed(seed),
		.mode = seed % N_MODES,
		.trace = g_string_new(NULL),
	};
	open_log(&m->t, dir);
	if (m->mode == ONE_RENAMES)
		m->t.b.env->fakes[1]->ops.rename_key = NULL;
	for (unsigned i = 0; i < N_KEYS; i++)
		m->keys[i] = key_new(m->t.b.env, i + 3);
	kvc_store_controller_start(m->t.b.store);
}

static void
model_deinit(Model *m)
{
	for (unsigned i = 0; i < N_KEYS; i++)
		kvc_object_key_unref(m->keys[i]);
	two_logged_free(&m->t);
	g_rand_free(m->rand);
	g_string_free(g_steal_pointer(&m->trace), TRUE);
}

static void
run(unsigned seed, Dir *dir)
{
	Model *m = &model;
	print_message("KVC_TEST_SEED=%u (%s)\n", seed, mode_names[seed % N_MODES]);
	model_init(m, seed, dir);
	for (unsigned step = 0; step < N_STEPS; step++) {
		act(m);
		check_l1(m);
		disturb(m);
		if (g_rand_int_range(m->rand, 0, 8) == 0)
			check_kill(m);
	}
	finish(m);
	model_deinit(m);
}

static void
test_a_kill_loses_and_returns_nothing(void **state)
{
	const char *seconds = g_getenv("KVC_TEST_SECONDS"), *seed = g_getenv("KVC_TEST_SEED");
	gint64 until = g_get_monotonic_time() +
		       G_USEC_PER_SEC * (seconds ? strtoll(seconds, NULL, 10) : 2) / 4;
	do
		run(seed ? (unsigned)strtoul(seed, NULL, 10) : g_random_int(), *state);
	while (!seed && g_get_monotonic_time() < until);
}

static int
tear_down(void **state)
{
	if (model.trace)
		print_message("%s\n", model.trace->str);
	return dir_tear_down(state);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup_teardown(test_a_kill_loses_and_returns_nothing, dir_set_up,
						tear_down),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
