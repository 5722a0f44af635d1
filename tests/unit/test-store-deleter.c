/* SPDX-License-Identifier: Apache-2.0 */

/* Deletions that an adapter fails: what the log and the status say of them. */

#include "tests/unit/store-fixture.h"

#include "kvcache/storage-manager.h"

#include <stdlib.h>
#include <sys/stat.h>

/* ---- What is logged -------------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	GString *text;
} logged = {PTHREAD_MUTEX_INITIALIZER, NULL};

static GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, void *user)
{
	pthread_mutex_lock(&logged.lock);
	for (gsize i = 0; i < n; i++)
		if (strcmp(fields[i].key, "MESSAGE") == 0)
			g_string_append_printf(logged.text, "%s\n", (const char *)fields[i].value);
	pthread_mutex_unlock(&logged.lock);
	return g_log_writer_default(level, fields, n, user);
}

static int
set_up(void **state)
{
	g_string_truncate(logged.text, 0);
	return 0;
}

/* How often the log says that KEY could not be deleted because of ERRNUM; NULL: any key. */
static int
count_logged(const KvcObjectKey *key, int errnum)
{
	g_autofree char *name = key ? kvc_object_key_to_string(key) : g_strdup("");
	g_autofree char *text = g_strdup_printf("could not delete %s%s", name, key ? ": " : "");
	int n = 0;
	pthread_mutex_lock(&logged.lock);
	for (const char *at = logged.text->str; (at = strstr(at, text)); at++)
		n += !key || g_str_has_prefix(at + strlen(text), g_strerror(errnum));
	pthread_mutex_unlock(&logged.lock);
	return n;
}

static uint64_t
get(const uint64_t *value)
{
	return __atomic_load_n(value, __ATOMIC_RELAXED);
}

/* ---- The controller -------------------------------------------------------------------------- */

static void
test_a_failing_deletion_is_logged_once_and_pending(void **state)
{
	Bench b = bench_started(2, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	KvcAdapterSlot *slot = &b.env->slots[0];
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	b.env->fakes[0]->fail_deletes = 3;
	delete_key(&b, key, 3);
	wait_until(env_stat(b.env, deletes_failed) == 2);
	assert_int_equal(get(&slot->deletes_pending), 1);
	assert_int_equal(get(&slot->deletes_failing), 1);
	assert_int_equal(get(&b.env->slots[1].deletes_failing), 0);
	drain(&b);
	assert_int_equal(env_stat(b.env, deletes_failed), 3);
	assert_int_equal(env_stat(b.env, deletes_completed), 2);
	assert_int_equal(get(&slot->deletes_pending), 0);
	assert_int_equal(get(&slot->deletes_failing), 0);
	assert_int_equal(get(&b.env->slots[1].deletes_pending), 0);
	assert_int_equal(count_logged(key, EROFS), 1);

	/* The next streak is told again, but each of its keys is not. */
	g_autoptr(KvcObjectKey) other = key_new(b.env, 2), third = key_new(b.env, 3);
	b.env->fakes[0]->fail_deletes = 4;
	delete_key(&b, other, 1);
	wait_until(env_stat(b.env, deletes_failed) >= 4);
	delete_key(&b, third, 1);
	drain(&b);
	assert_int_equal(count_logged(other, EROFS), 1);
	assert_int_equal(count_logged(NULL, 0), 2);
	bench_free(&b);
}

static void
test_a_locked_key_is_pending_and_no_failure(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	FakeAdapter *fake = b.env->fakes[0];
	env_write(b.env, key, 100, 0, KVC_FINISH_FIRST_WINS);
	drain(&b);
	pthread_mutex_lock(&fake->lock);
	fake_object(fake, key)->locks = fake->n_locks = 1;
	pthread_mutex_unlock(&fake->lock);
	delete_key(&b, key, 1);
	delete_key(&b, key, 1);
	wait_until(env_stat(b.env, deletes_retried) >= 1);
	assert_int_equal(get(&b.env->slots[0].deletes_pending), 1);
	assert_int_equal(get(&b.env->slots[0].deletes_failing), 0);
	fake_unlock(&fake->base, (KvcObjectKey *const[]){key}, 1);
	drain(&b);
	assert_int_equal(get(&b.env->slots[0].deletes_pending), 0);
	assert_int_equal(env_stat(b.env, deletes_failed), 0);
	assert_int_equal(count_logged(NULL, 0), 0);
	bench_free(&b);
}

static void
test_nothing_is_pending_where_nothing_can_be_deleted(void **state)
{
	Bench b = bench_new(1, CAPACITY, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->ops.delete_keys = NULL;
	kvc_store_controller_start(b.store);
	delete_key(&b, key, 1);
	drain(&b);
	assert_int_equal(get(&b.env->slots[0].deletes_pending), 0);
	bench_free(&b);
}

static void
test_a_stop_leaves_nothing_pending(void **state)
{
	Bench b = bench_started(1, &everywhere);
	g_autoptr(KvcObjectKey) key = key_new(b.env, 1);
	b.env->fakes[0]->fail_deletes = 1000;
	delete_key(&b, key, 1);
	wait_until(env_stat(b.env, deletes_failed) >= 1);
	kvc_store_controller_stop(b.store);
	assert_int_equal(get(&b.env->slots[0].deletes_pending), 0);
	assert_int_equal(get(&b.env->slots[0].deletes_failing), 0);
	bench_free(&b);
}

/* ---- The status ------------------------------------------------------------------------------ */

typedef struct Wanted {
	const char *name, *value;
	bool is_seen;
} Wanted;

static void
see_line(void *user, const char *name, const char *value)
{
	Wanted *wanted = user;
	if (strcmp(name, wanted->name) == 0)
		wanted->is_seen = strcmp(value, wanted->value) == 0;
}

static bool
status_is(KvcStorageManager *sm, const char *name, const char *value)
{
	Wanted wanted = {name, value, false};
	kvc_storage_manager_report_status(sm, see_line, &wanted);
	return wanted.is_seen;
}

static void
put(KvcStorageManager *sm, KvcObjectKey *key)
{
	KvcL1Object *object;
	assert_int_equal(kvc_storage_manager_reserve_write(sm, key, 4, &object), 0);
	assert_int_equal(pwrite(kvc_l1_object_get_fd(object), "1234", 4, 0), 4);
	assert_int_equal(kvc_storage_manager_finish_write(sm, object, key, KVC_FINISH_FIRST_WINS),
			 0);
	assert_int_equal(kvc_storage_manager_drain(sm, DRAIN_NS), 0);
}

/* A directory in the place of the file is what not even root can unlink. */
static void
test_the_status_shows_it_until_it_is_confirmed(void **state)
{
	const char *parent = getenv("TMPDIR");
	g_autofree char *dir =
		g_strdup_printf("%s/kvcache-test-delete-XXXXXX", parent ? parent : "/var/tmp");
	assert_non_null(g_mkdtemp(dir));
	g_autofree char *spec = g_strdup_printf("type=fs,base_path=%s", dir);
	g_autofree char *path = g_strdup_printf("%s/model@0x01000100@0@3030303030303031.data", dir);
	KvcStorageManagerConfig config = {.l1_size_bytes = CAPACITY,
					  .l2_adapters = (const char *const[]){spec, NULL}};
	KvcStorageManager *sm = kvc_storage_manager_new(&config, NULL);
	assert_non_null(sm);
	g_autoptr(KvcKeyScope) scope = scope_of(0x01000100);
	g_autoptr(KvcObjectKey) key = key_in(scope, KVC_SPACE_CHUNK, 1);
	put(sm, key);
	assert_true(status_is(sm, "l2.0.deletes_pending", "0"));
	assert_true(status_is(sm, "health", "ok"));

	assert_int_equal(unlink(path), 0);
	assert_int_equal(mkdir(path, 0755), 0);
	assert_int_equal(kvc_storage_manager_delete(sm, key), 0);
	wait_until(status_is(sm, "l2.0.health", "degraded"));
	assert_true(status_is(sm, "l2.0.deletes_pending", "1"));
	assert_true(status_is(sm, "health", "degraded"));
	assert_int_equal(count_logged(key, EISDIR), 1);

	assert_int_equal(rmdir(path), 0);
	assert_int_equal(kvc_storage_manager_drain(sm, DRAIN_NS), 0);
	assert_true(status_is(sm, "l2.0.deletes_pending", "0"));
	assert_true(status_is(sm, "l2.0.health", "ok"));
	assert_true(status_is(sm, "health", "ok"));
	kvc_storage_manager_free(sm);
	assert_int_equal(rmdir(dir), 0);
}

#define TEST(name) cmocka_unit_test_setup(name, set_up)

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_a_failing_deletion_is_logged_once_and_pending),
		TEST(test_a_locked_key_is_pending_and_no_failure),
		TEST(test_nothing_is_pending_where_nothing_can_be_deleted),
		TEST(test_a_stop_leaves_nothing_pending),
		TEST(test_the_status_shows_it_until_it_is_confirmed),
	};
	logged.text = g_string_new(NULL);
	g_log_set_writer_func(on_log, NULL, NULL);
	int failed = cmocka_run_group_tests(tests, NULL, NULL);
	g_string_free(logged.text, TRUE);
	return failed;
}
