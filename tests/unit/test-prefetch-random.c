/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Random requests over adapters that do nothing before the test says so: after each step the lock
 * maps of all handles add up to what L1 and the adapters have locked, whatever phase anything is
 * in; at the end no lock, no fd, no byte is left. KVC_SEED repeats a run.
 */

#include "tests/unit/prefetch-fixture.h"

#include <stdlib.h>

#define STEPS 1500
#define HANDLES 8
#define TAKEN 16

typedef struct Walk {
	Bench b;
	GRand *random;
	Call *calls[HANDLES]; /* NULL: free */
	KvcL1Object *taken[TAKEN];
	unsigned n_taken;
	GPtrArray *dropped; /* calls whose free is still to come */
} Walk;

static unsigned
pick(Walk *w, unsigned n)
{
	return (unsigned)g_rand_int_range(w->random, 0, (gint32)n);
}

static void
step_submit(Walk *w)
{
	static const unsigned modes[] = {
		0,
		0,
		KVC_PREFETCH_HOLD,
		KVC_PREFETCH_URGENT,
		KVC_PREFETCH_NO_LOCK,
		KVC_PREFETCH_LOOKUP_ONLY,
		KVC_PREFETCH_L1_ONLY,
	};
	unsigned h = pick(w, HANDLES);
	if (w->calls[h])
		return;
	size_t n = 1 + pick(w, N);
	KvcObjectKey *keys[N];
	for (size_t i = 0; i < n; i++)
		keys[i] = w->b.keys[pick(w, 4) ? i : pick(w, N)];
	w->calls[h] = g_new0(Call, 1);
	submit_with(&w->b, w->calls[h], n,
		    (KvcPrefetchParams){
			    .keys = keys,
			    .flags = modes[pick(w, G_N_ELEMENTS(modes))] |
				     (pick(w, 2) ? KVC_PREFETCH_FULL : 0),
			    .read_locks = pick(w, 4),
			    .max_locked_bytes = pick(w, 4) ? 0 : 1 + pick(w, 20000),
			    .timeout_ns = pick(w, 4) ? 0 : 1 + pick(w, 3000000),
		    });
}

static void
step_drop(Walk *w, unsigned h)
{
	Call *call = g_steal_pointer(&w->calls[h]);
	if (!call)
		return;
	kvc_prefetch_handle_drop(call->handle, on_freed);
	g_ptr_array_add(w->dropped, call);
}

static void
step_take(Walk *w, unsigned h)
{
	Call *call = w->calls[h];
	if (!call || w->n_taken == TAKEN)
		return;
	size_t i = pick(w, (unsigned)call->handle->total_requested_keys);
	KvcL1Object *object = kvc_prefetch_handle_take_object(call->handle, i);
	if (object)
		w->taken[w->n_taken++] = object;
}

static void
give_one_back(Walk *w)
{
	if (w->n_taken > 0)
		kvc_l1_manager_finish_read(w->b.env->context.l1, w->taken[--w->n_taken], 1);
}

static void
step_change_l2(Walk *w)
{
	FakeAdapter *fake = w->b.env->fakes[pick(w, 2)];
	KvcObjectKey *key = w->b.keys[pick(w, N)];
	switch (pick(w, 4)) {
	case 0:
		pthread_mutex_lock(&fake->lock);
		if (!g_hash_table_add(fake->bad_keys, key))
			g_hash_table_remove(fake->bad_keys, key);
		pthread_mutex_unlock(&fake->lock);
		break;
	case 1:
		kvc_key_index_remove(w->b.env->context.index, key, 3);
		break;
	default: {
		g_autoptr(GBytes) data = bytes_of(key, size_of(key), 0);
		fake_put(fake, key, pick(w, 3) ? data : NULL);
		break;
	}
	}
}

static void
step_change_l1(Walk *w)
{
	KvcL1Manager *l1 = w->b.env->context.l1;
	KvcObjectKey *key = w->b.keys[pick(w, N)];
	if (pick(w, 3)) {
		kvc_l1_manager_evict(l1, key);
		return;
	}
	/* Deleted, and confirmed at once. */
	kvc_key_index_hide(w->b.env->context.index, key, 3, 0);
	kvc_l1_manager_delete(l1, key, true);
	kvc_key_index_unhide(w->b.env->context.index, key, 3, 0);
}

static void
step(Walk *w)
{
	unsigned h = pick(w, HANDLES);
	FakeAdapter *fake = w->b.env->fakes[pick(w, 2)];
	switch (pick(w, 12)) {
	case 0:
	case 1:
	case 2:
		step_submit(w);
		break;
	case 3:
		step_drop(w, h);
		break;
	case 4:
		if (w->calls[h])
			kvc_prefetch_handle_start(w->calls[h]->handle);
		break;
	case 5:
		if (w->calls[h])
			kvc_prefetch_handle_cancel(w->calls[h]->handle);
		break;
	case 6:
		step_take(w, h);
		break;
	case 7:
		give_one_back(w);
		break;
	case 8:
		step_change_l2(w);
		break;
	case 9:
		step_change_l1(w);
		break;
	case 10:
		fake_release_nth(fake, FAKE_LOOKUP, pick(w, 3));
		break;
	default:
		fake_release_nth(fake, FAKE_LOAD, pick(w, 4));
		break;
	}
}

static void
finish(Walk *w)
{
	Bench *b = &w->b;
	for (unsigned h = 0; h < HANDLES; h++)
		step_drop(w, h);
	while (w->n_taken > 0)
		give_one_back(w);
	for (guint i = 0; i < w->dropped->len; i++)
		wait_until(get(&((Call *)w->dropped->pdata[i])->freed) == 1);
	/* The callers wait for no adapter; what these still do ends now. */
	for (size_t a = 0; a < 2; a++) {
		fake_release(b->env->fakes[a], FAKE_LOOKUP);
		fake_release(b->env->fakes[a], FAKE_LOAD);
	}
	wait_idle(b);
	Total t = total(b);
	assert_int_equal(t.l1_locks + t.l2_locks + t.reserved + t.bytes_in_flight, 0);
	assert_int_equal(t.handles + t.slots, 0);
}

static void
test_random_requests_leave_nothing_behind(void **state)
{
	const char *given = g_getenv("KVC_SEED");
	guint32 seed = given ? (guint32)strtoul(given, NULL, 10) : g_random_int();
	print_message("seed %u\n", seed);
	Walk w = {.b = bench_new(2, &first, 3)};
	w.random = g_rand_new_with_seed(seed);
	w.dropped = g_ptr_array_new_with_free_func(g_free);
	put_l2(&w.b, 0, "013");
	put_l2(&w.b, 1, "124");
	for (size_t a = 0; a < 2; a++)
		w.b.env->fakes[a]->hold[FAKE_LOOKUP] = w.b.env->fakes[a]->hold[FAKE_LOAD] = true;
	unsigned fds = count_fds();
	for (unsigned i = 0; i < STEPS; i++) {
		step(&w);
		wait_until(maps_are_exact(&w.b, w.n_taken));
	}
	finish(&w);
	for (size_t i = 0; i < N; i++)
		kvc_l1_manager_delete(w.b.env->context.l1, w.b.keys[i], true);
	assert_int_equal(count_fds(), fds);
	g_ptr_array_unref(w.dropped);
	g_rand_free(w.random);
	bench_free(&w.b);
}

static void *
stop_thread(void *data)
{
	kvc_prefetch_controller_stop(data);
	return NULL;
}

/* The same, stopped in the middle: every request is answered, and nothing is left all the same. */
static void
test_random_requests_are_answered_by_stop(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		guint32 seed = g_random_int();
		print_message("seed %u\n", seed);
		Walk w = {.b = bench_new(2, &first, 2)};
		pthread_t thread;
		w.random = g_rand_new_with_seed(seed);
		w.dropped = g_ptr_array_new_with_free_func(g_free);
		put_l2(&w.b, 0, "013");
		put_l2(&w.b, 1, "124");
		for (size_t a = 0; a < 2; a++)
			w.b.env->fakes[a]->hold[FAKE_LOOKUP] = w.b.env->fakes[a]->hold[FAKE_LOAD] =
				true;
		for (unsigned i = 0; i < 60; i++)
			step(&w);
		pthread_create(&thread, NULL, stop_thread, w.b.c);
		for (unsigned h = 0; h < HANDLES; h++)
			if (w.calls[h])
				wait_until(kvc_prefetch_controller_query(
						   w.b.c, w.calls[h]->handle) != -EAGAIN);
		for (size_t a = 0; a < 2; a++) {
			fake_release(w.b.env->fakes[a], FAKE_LOOKUP);
			fake_release(w.b.env->fakes[a], FAKE_LOAD);
		}
		pthread_join(thread, NULL);
		assert_int_equal(env_counts(w.b.env).staging_objects, 0);
		assert_true(maps_are_exact(&w.b, w.n_taken));
		finish(&w);
		g_ptr_array_unref(w.dropped);
		g_rand_free(w.random);
		bench_free(&w.b);
	}
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_random_requests_leave_nothing_behind),
		cmocka_unit_test(test_random_requests_are_answered_by_stop),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
