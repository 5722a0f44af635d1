/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Thousands of random operations from several threads on an engine over two L2 adapters of type
 * mock, whose tasks overtake each other, fail, and cannot reach the store, against a model of what
 * may be read (engine-model.h). At rest nothing may be left.
 *
 * KVC_TEST_SEED=N does the same operations again (what the threads do to each other differs);
 * KVC_TEST_SECONDS=N: how long, all tests together (default 5).
 */

#include "tests/random/engine-operations.h"

/* ---- Prefetches ---------------------------------------------------------------------------- */

static void
on_planned(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Calls *)user)->n_planned, 1, __ATOMIC_SEQ_CST);
}

static void
on_done(void *user, KvcPrefetchHandle *handle)
{
	__atomic_fetch_add(&((Calls *)user)->n_done, 1, __ATOMIC_SEQ_CST);
}

static void
on_freed(void *user)
{
	Calls *calls = user;

	if (calls->n_planned > 1 || calls->n_done > 1) {
		fprintf(stderr, "planned called %d times, done %d\n", calls->n_planned,
			calls->n_done);
		__atomic_fetch_add(&calls->test->n_wrong, 1, __ATOMIC_SEQ_CST);
	}
	__atomic_fetch_sub(&calls->test->n_handles, 1, __ATOMIC_SEQ_CST);
	g_free(calls);
}

static void
drop_handle(Worker *w, size_t i)
{
	kvc_prefetch_handle_drop(w->handles[i].handle, on_freed);
	w->handles[i] = w->handles[--w->n_handles];
}

/*
 * A request that is planned and not started has locks in L2, and deletions and renames wait for
 * these: who waits for a flush must not hold them himself, nor must two who wait for each other.
 */
static void
drop_idle_handles(Worker *w)
{
	for (size_t i = w->n_handles; i-- > 0;)
		if ((w->handles[i].flags & KVC_PREFETCH_HOLD) && !w->handles[i].is_started)
			drop_handle(w, i);
}

static Handle *
submit_prefetch(Worker *w, ModelKey *keys, size_t n_keys, const Draw *d, unsigned flags)
{
	KvcObjectKey *list[N_KEYS];
	Handle *h = &w->handles[w->n_handles++];

	*h = (Handle){.flags = flags, .n = MIN(1 + d->n % N_KEYS, n_keys - d->key % n_keys)};
	h->has_timeout = d->choice % 4 == 0;
	h->n_locks = 1 + d->choice % 3;
	h->calls = g_new0(Calls, 1);
	h->calls->test = w->test;
	for (size_t i = 0; i < h->n; i++) {
		/* Now and then a key twice. */
		ModelKey *k = &keys[(d->key % n_keys) + (d->choice % 16 == 1 ? i / 2 : i)];
		h->marks[i] = model_mark(k);
		list[i] = k->key;
	}
	KvcPrefetchParams params = {
		.keys = list,
		.n_keys = h->n,
		.flags = flags,
		.read_locks = h->n_locks,
		.timeout_ns = h->has_timeout ? (1 + d->choice % 8) * KVC_MSEC_NS : 0,
		.max_locked_bytes = d->choice % 8 == 2 ? 2 * MAX_OBJECT_BYTES : L1_SIZE,
		.planned = on_planned,
		.done = on_done,
		.user = h->calls,
	};
	__atomic_fetch_add(&w->test->n_handles, 1, __ATOMIC_SEQ_CST);
	h->handle = kvc_storage_manager_submit_prefetch_task(w->test->sm, &params);
	return h;
}

static void
take_object(Worker *w, Handle *h, size_t i, unsigned choice)
{
	KvcL1Object *object = kvc_prefetch_handle_take_object(h->handle, i);

	if (!object)
		return;
	if (++h->n_taken[i] > h->n_locks ||
	    (h->flags & (KVC_PREFETCH_NO_LOCK | KVC_PREFETCH_LOOKUP_ONLY)))
		wrong(w, h->marks[i].key, "taken, but no lock was left");
	check_object(w, h->marks[i], object, "prefetch");
	hold_or_release(w, object, choice);
}

/* Has nothing of what H asked for changed since? */
static bool
is_unchanged(const Handle *h)
{
	for (size_t i = 0; i < h->n; i++)
		if (h->marks[i].key->is_shared || h->marks[i].from != h->marks[i].key->log->len - 1)
			return false;
	return true;
}

static void
check_count(Worker *w, const Handle *h, ssize_t count, const char *what)
{
	size_t at_most = 0, at_least = 0;

	if (count > (ssize_t)h->n)
		wrong(w, h->marks[0].key, "%s: %zd of %zu", what, count, h->n);
	if (!is_unchanged(h))
		return;
	for (size_t i = 0; i < h->n; i++) {
		const ModelKey *k = h->marks[i].key;
		bool is_sure = must_be_known(w, k) && !k->was_renamed;
		bool is_run = !(h->flags & KVC_PREFETCH_FULL);

		at_most += !is_deleted(k) && (!is_run || at_most == i);
		at_least += is_sure && (!is_run || at_least == i);
	}
	if (count > (ssize_t)at_most)
		wrong(w, h->marks[0].key, "%s: %zd of %zu keys, but only %zu are not deleted", what,
		      count, h->n, at_most);
	if ((h->flags & KVC_PREFETCH_LOOKUP_ONLY) && !h->has_timeout && !h->is_cancelled &&
	    count < (ssize_t)at_least)
		wrong(w, h->marks[0].key, "%s: %zd of %zu keys, but %zu are known", what, count,
		      h->n, at_least);
}

/* Each key of the answer is locked; one lock is taken, unless all were before. COUNT: how many
 * keys. */
static void
check_held(Worker *w, Handle *h, ssize_t count, unsigned choice)
{
	KvcBitmap *held = kvc_bitmap_new(h->n);
	ssize_t n = 0;

	if (kvc_prefetch_handle_get_keys(h->handle, NULL, held) != 0)
		wrong(w, h->marks[0].key, "answered, but its keys are not known");
	for (size_t i = kvc_bitmap_next(held, 0); i < h->n; i = kvc_bitmap_next(held, i + 1)) {
		n++;
		if (!(h->flags & KVC_PREFETCH_FULL) && i >= (size_t)count)
			wrong(w, h->marks[i].key, "held behind the run of %zd keys", count);
		take_object(w, h, i, choice);
		if (h->n_taken[i] == 0)
			wrong(w, h->marks[i].key, "in the answer, but not locked");
	}
	if (n != count)
		wrong(w, h->marks[0].key, "%zd keys held, the result was %zd", n, count);
	kvc_bitmap_free(held);
}

/* The result, if there is one: each key of it is locked. */
static ssize_t
query_handle(Worker *w, Handle *h, unsigned choice)
{
	ssize_t result = kvc_storage_manager_query_prefetch_status(w->test->sm, h->handle);

	if (result == -EAGAIN)
		return result;
	if (h->has_result && h->handle->request_id >= 0 && result != -ENODATA)
		wrong(w, h->marks[0].key, "a result was given twice: %zd", result);
	if (h->has_result && h->handle->request_id >= 0)
		return result;
	if (result < 0) {
		wrong(w, h->marks[0].key, "no result: %zd", result);
		return result;
	}
	h->has_result = true;
	check_count(w, h, result, "result");
	if (h->flags & (KVC_PREFETCH_NO_LOCK | KVC_PREFETCH_LOOKUP_ONLY))
		return result;
	check_held(w, h, result, choice);
	return result;
}

static void
wait_for_handle(Worker *w, Handle *h, unsigned choice)
{
	int64_t until = kvc_now_ns() + PATIENCE_NS;

	if ((h->flags & KVC_PREFETCH_HOLD) && !h->is_started) {
		kvc_prefetch_handle_start(h->handle);
		h->is_started = true;
	}
	while (!h->has_result && query_handle(w, h, choice) == -EAGAIN) {
		if (kvc_now_ns() > until) {
			wrong(w, h->marks[0].key, "a prefetch did not end");
			return;
		}
		g_usleep(200);
	}
}

static void
use_handle(Worker *w, size_t i, const Draw *d)
{
	Handle *h = &w->handles[i];
	ssize_t found;

	switch (d->choice % 8) {
	case 0:
		drop_handle(w, i);
		break;
	case 1:
		kvc_prefetch_handle_cancel(h->handle);
		h->is_cancelled = true;
		break;
	case 2:
		kvc_prefetch_handle_start(h->handle);
		h->is_started = true;
		break;
	case 3:
		found = kvc_prefetch_handle_get_found(h->handle);
		if (found != -EAGAIN)
			check_count(w, h, found, "found");
		break;
	case 4:
		query_handle(w, h, d->n);
		break;
	case 5:
		take_object(w, h, d->n % h->n, d->key);
		break;
	default:
		wait_for_handle(w, h, d->n);
		drop_handle(w, i);
	}
}

static void
begin_prefetch(Worker *w, const Draw *d)
{
	static const unsigned kinds[] = {
		0,
		0,
		KVC_PREFETCH_HOLD,
		KVC_PREFETCH_URGENT,
		KVC_PREFETCH_NO_LOCK,
		KVC_PREFETCH_LOOKUP_ONLY,
		KVC_PREFETCH_HOLD | KVC_PREFETCH_URGENT,
		KVC_PREFETCH_HOLD | KVC_PREFETCH_NO_LOCK,
		KVC_PREFETCH_FULL,
		KVC_PREFETCH_FULL | KVC_PREFETCH_HOLD,
		KVC_PREFETCH_FULL | KVC_PREFETCH_LOOKUP_ONLY,
		KVC_PREFETCH_L1_ONLY,
	};

	if (w->n_handles == N_HANDLES)
		drop_handle(w, d->n % N_HANDLES);
	submit_prefetch(w, d->is_shared ? w->test->shared[d->kind] : w->own[d->kind],
			d->is_shared ? N_SHARED : N_OWN, d, kinds[d->flags % G_N_ELEMENTS(kinds)]);
}

/* ---- Workers ------------------------------------------------------------------------------- */

static Draw
draw(GRand *rand)
{
	Draw d = {
		.operation = (unsigned)g_rand_int_range(rand, 0, 32),
		.kind = (unsigned)g_rand_int_range(rand, 0, 2),
		.key = (unsigned)g_rand_int_range(rand, 0, N_OWN * N_SHARED),
		.other = (unsigned)g_rand_int_range(rand, 0, N_OWN),
		.flags = (unsigned)g_rand_int_range(rand, 0, 64),
		.n = (unsigned)g_rand_int_range(rand, 0, 64),
		.choice = (unsigned)g_rand_int_range(rand, 0, 1 << 16),
	};

	d.is_shared = g_rand_int_range(rand, 0, 4) == 0;
	return d;
}

static void
random_step(Worker *w)
{
	Draw d = draw(w->rand);
	w->traced[w->step % N_TRACED] = d;
	ModelKey *k = d.is_shared ? &w->test->shared[d.kind][d.key % N_SHARED]
				  : &w->own[d.kind][d.key % N_OWN];

	if (d.operation < 9)
		commit_key(w, k, &d);
	else if (d.operation < 11)
		delete_key(w, k);
	else if (d.operation < 13)
		rename_key(w, k, &w->own[0][d.other], d.flags);
	else if (d.operation < 16)
		evict_key(w, k);
	else if (d.operation < 17) {
		drop_idle_handles(w);
		flush_key(w, k, d.choice);
	} else if (d.operation < 18)
		change_mode(w, k, d.choice);
	else if (d.operation < 19)
		list_own(w, d.kind);
	else if (d.operation < 20)
		commit_other_chunk(w, k, &d);
	else if (d.operation < 21)
		check_stat(w, k);
	else if (d.operation < 23)
		read_key(w, k, d.choice);
	else if (d.operation < 27 || w->n_handles == 0)
		begin_prefetch(w, &d);
	else
		use_handle(w, d.n % w->n_handles, &d);
}

static void *
work(void *user)
{
	Worker *w = user;

	while (kvc_now_ns() < w->test->until_ns &&
	       __atomic_load_n(&w->test->n_wrong, __ATOMIC_SEQ_CST) == 0) {
		w->step++;
		random_step(w);
	}
	while (w->n_handles > 0)
		drop_handle(w, 0);
	for (size_t i = 0; i < N_HELD; i++)
		if (w->held[i].object)
			kvc_storage_manager_finish_read(w->test->sm, w->held[i].object);
	__atomic_fetch_add(&w->test->n_operations, (int)w->step, __ATOMIC_SEQ_CST);
	return NULL;
}

static void
worker_init(Worker *w, Test *test, unsigned number)
{
	g_autofree char *directory = g_strdup_printf("worker/%u", number);

	*w = (Worker){.test = test, .number = number, .last_own = (number + 1) << 24};
	w->rand = g_rand_new_with_seed(test->seed + number);
	w->scopes[0] = kvc_key_scope_new_plain(directory, NULL);
	w->scopes[1] = kvc_key_scope_new(directory, 0x01000100, 0, NULL, NULL);
	for (unsigned kind = 0; kind < 2; kind++)
		for (unsigned i = 0; i < N_OWN; i++)
			model_key_init(&w->own[kind][i], w->scopes[kind],
				       (number << 8 | i << 1) + (kind << 30) + 1, i, false);
}

static void
worker_deinit(Worker *w)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		for (unsigned i = 0; i < N_OWN; i++)
			model_key_deinit(&w->own[kind][i]);
		kvc_key_scope_unref(w->scopes[kind]);
	}
	g_rand_free(w->rand);
}

/* ---- At rest ------------------------------------------------------------------------------- */

static unsigned
count_fds(void)
{
	GDir *dir = g_dir_open("/proc/self/fd", 0, NULL);
	unsigned n = 0;

	assert_non_null(dir);
	while (g_dir_read_name(dir))
		n++;
	g_dir_close(dir);
	return n;
}

typedef struct Wanted {
	const char *name;
	int64_t value;
} Wanted;

static void
find_line(void *user, const char *name, const char *value)
{
	Wanted *wanted = user;

	if (strcmp(name, wanted->name) == 0)
		wanted->value = g_ascii_strtoll(value, NULL, 10);
}

static int64_t
status_of(Test *test, const char *name)
{
	Wanted wanted = {name, -1};

	kvc_storage_manager_report_status(test->sm, find_line, &wanted);
	if (wanted.value < 0)
		fail_msg("no line %s in status", name);
	return wanted.value;
}

static int64_t
stat_of(Test *test, const char *name)
{
	Wanted wanted = {name, -1};

	kvc_storage_manager_report_stats(test->sm, find_line, &wanted);
	if (wanted.value < 0)
		fail_msg("no line %s in stats", name);
	return wanted.value;
}

static void
await_status(Test *test, const char *name, int64_t value)
{
	int64_t until = kvc_now_ns() + PATIENCE_NS;

	while (status_of(test, name) != value && kvc_now_ns() < until)
		g_usleep(1000);
	if (status_of(test, name) != value)
		fail_msg("%s is %" PRId64 " at rest", name, status_of(test, name));
}

static void
check_ended(Test *test)
{
	int rc = kvc_storage_manager_drain(test->sm, PATIENCE_NS);

	assert_true(rc == 0 || (test->loses && rc == -EIO));
	await_status(test, "prefetches_active", 0);
	await_status(test, "l1_read_locks", 0);
	await_status(test, "l1_dirty_objects", 0);
	await_status(test, "l1_staging_objects", 0);
	await_status(test, "l1_staging_bytes", 0);
	for (unsigned i = 0; i < 2; i++) {
		g_autofree char *locks = g_strdup_printf("l2.%u.locks", i);
		g_autofree char *deletes = g_strdup_printf("l2.%u.deletes_pending", i);
		g_autofree char *renames = g_strdup_printf("l2.%u.renames_pending", i);
		await_status(test, locks, 0);
		await_status(test, deletes, 0);
		await_status(test, renames, 0);
	}
	assert_int_equal(__atomic_load_n(&test->n_flushes, __ATOMIC_SEQ_CST), 0);
	assert_int_equal(__atomic_load_n(&test->n_handles, __ATOMIC_SEQ_CST), 0);
	assert_int_equal(stat_of(test, "stores") + stat_of(test, "stores_blocked") +
				 stat_of(test, "stores_unreachable") +
				 stat_of(test, "stores_unmapped"),
			 stat_of(test, "stores_completed") + stat_of(test, "stores_retried") +
				 stat_of(test, "stores_put_off") + stat_of(test, "stores_failed") +
				 stat_of(test, "stores_outdated"));
	assert_int_equal(stat_of(test, "loads"),
			 stat_of(test, "loads_completed") + stat_of(test, "loads_failed_missing"));
	assert_int_equal(stat_of(test, "prefetches"),
			 stat_of(test, "prefetches_completed") +
				 stat_of(test, "prefetches_cancelled"));
	assert_int_equal(stat_of(test, "deletes"), stat_of(test, "deletes_completed"));
}

/* With nothing else going on each key that is surely known can be loaded, and is what it is. */
static void
check_content(Worker *w)
{
	Draw d = {.choice = 3};

	for (unsigned kind = 0; kind < 2; kind++) {
		for (unsigned i = 0; i < N_OWN; i++) {
			ModelKey *k = &w->own[kind][i];
			d.key = i;
			check_stat(w, k);
			Handle *h = submit_prefetch(w, w->own[kind], N_OWN, &d, 0);
			wait_for_handle(w, h, 1);
			if (must_be_known(w, k) && h->n_taken[0] == 0)
				wrong(w, k, "content %u cannot be loaded", model_key_now(k));
			drop_handle(w, 0);
		}
		list_own(w, kind);
	}
}

static void
delete_everything(Test *test, Worker *workers)
{
	for (unsigned kind = 0; kind < 2; kind++) {
		for (unsigned i = 0; i < N_SHARED; i++)
			kvc_storage_manager_delete(test->sm, test->shared[kind][i].key);
		for (unsigned n = 0; n < N_WORKERS; n++)
			for (unsigned i = 0; i < N_OWN; i++)
				kvc_storage_manager_delete(test->sm, workers[n].own[kind][i].key);
	}
}

static void
check_rest(Test *test, Worker *workers, unsigned n_fds)
{
	KvcCapacity capacity;

	check_ended(test);
	for (unsigned i = 0; i < N_WORKERS; i++)
		check_content(&workers[i]);
	assert_int_equal(test->n_wrong, 0);
	await_status(test, "prefetches_active", 0);
	delete_everything(test, workers);
	check_ended(test);
	await_status(test, "l1_lingering_objects", 0);
	await_status(test, "l1_objects", 0);
	kvc_storage_manager_get_capacity(test->sm, &capacity);
	assert_int_equal(capacity.objects, 0);
	assert_int_equal(capacity.l1_used_bytes, 0);
	if (!test->loses)
		assert_int_equal(capacity.l2_used_bytes, 0);
	assert_int_equal(count_fds(), n_fds);
}

/* ---- Tests --------------------------------------------------------------------------------- */

static unsigned
seed_of_test(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	unsigned seed = text ? (unsigned)strtoul(text, NULL, 0) : g_random_int();

	print_message("KVC_TEST_SEED=%u\n", seed);
	return seed;
}

/* SHARE of the time that all tests have. */
static int64_t
time_ns(double share)
{
	const char *text = getenv("KVC_TEST_SECONDS");

	return (int64_t)((text ? g_ascii_strtod(text, NULL) : 5) * share * 1e9);
}

static void
start(Test *test, double failures)
{
	g_autofree char *first =
		g_strdup_printf("type=mock,max_size_gb=1,latency_ms=0.2,jitter_ms=4,"
				"store_failure_rate=0.2,load_failure_rate=%g,seed=%u",
				failures, test->seed);
	g_autofree char *second =
		g_strdup_printf("type=mock,max_size_gb=1,jitter_ms=1,"
				"store_failure_rate=%g,load_failure_rate=%g,"
				"connection_failure_rate=%g,breaker_cooldown_s=0.005,"
				"breaker_max_s=0.04,seed=%u",
				failures, failures, failures, test->seed + 1);
	const char *const adapters[] = {first, second, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = L1_SIZE,
		.l2_adapters = adapters,
		.prefetch_max_in_flight = 3,
	};
	g_autoptr(GError) error = NULL;

	test->loses = failures > 0;
	test->sm = kvc_storage_manager_new(&config, &error);
	if (!test->sm)
		fail_msg("%s", error->message);
	assert_int_equal(kvc_storage_manager_wait_listed(test->sm, PATIENCE_NS), 0);
	test->shared_scopes[0] = kvc_key_scope_new_plain("shared", NULL);
	test->shared_scopes[1] = kvc_key_scope_new("shared", 0x01000100, 0, NULL, NULL);
	for (unsigned kind = 0; kind < 2; kind++)
		for (unsigned i = 0; i < N_SHARED; i++)
			model_key_init(&test->shared[kind][i], test->shared_scopes[kind],
				       (kind + 2) << 30 | i << 20, i, true);
}

static void
stop(Test *test)
{
	kvc_storage_manager_free(test->sm);
	for (unsigned kind = 0; kind < 2; kind++) {
		for (unsigned i = 0; i < N_SHARED; i++)
			model_key_deinit(&test->shared[kind][i]);
		kvc_key_scope_unref(test->shared_scopes[kind]);
	}
}

static void
run_workers(Test *test, Worker *workers, int64_t ns)
{
	test->until_ns = kvc_now_ns() + ns;
	for (unsigned i = 0; i < N_WORKERS; i++) {
		worker_init(&workers[i], test, i);
		assert_int_equal(pthread_create(&workers[i].thread, NULL, work, &workers[i]), 0);
	}
	for (unsigned i = 0; i < N_WORKERS; i++)
		pthread_join(workers[i].thread, NULL);
	print_message("%d operations\n", test->n_operations);
}

static void
run(double failures, double share, bool stops_at_once)
{
	static Worker workers[N_WORKERS];
	g_autofree Test *test = g_new0(Test, 1);
	unsigned n_fds = count_fds();

	test->seed = seed_of_test();
	start(test, failures);
	unsigned n_fds_open = count_fds();
	run_workers(test, workers, time_ns(share));
	assert_int_equal(test->n_wrong, 0);
	if (!stops_at_once)
		check_rest(test, workers, n_fds_open);
	stop(test);
	for (unsigned i = 0; i < N_WORKERS; i++)
		worker_deinit(&workers[i]);
	assert_int_equal(test->n_flushes, 0);
	assert_int_equal(test->n_handles, 0);
	assert_int_equal(count_fds(), n_fds);
}

/* One adapter fails stores, but never all: nothing that was committed may be lost. */
static void
test_model(void **state)
{
	run(0, 0.5, false);
}

static void
test_model_with_losses(void **state)
{
	run(0.2, 0.3, false);
}

static void
test_model_and_then_stop_at_once(void **state)
{
	for (unsigned i = 0; i < 4; i++)
		run(0.1, 0.05, true);
}

/* Failures are warned of from several threads. Not as glib does it, whose look at the time zone is
 * a race for ThreadSanitizer. */
static GLogWriterOutput
write_log(GLogLevelFlags level, const GLogField *fields, gsize n_fields, void *user)
{
	for (gsize i = 0; i < n_fields; i++)
		if (strcmp(fields[i].key, "MESSAGE") == 0)
			fprintf(stderr, "%s\n", (const char *)fields[i].value);
	return G_LOG_WRITER_HANDLED;
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_model),
		cmocka_unit_test(test_model_with_losses),
		cmocka_unit_test(test_model_and_then_stop_at_once),
	};

	g_log_set_writer_func(write_log, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
