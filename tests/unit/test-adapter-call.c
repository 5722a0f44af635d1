/* SPDX-License-Identifier: Apache-2.0 */

/* Rule: no call into an adapter under a lock of the engine. */

#include "engine/adapter-call.h"
#include "tests/unit/controller-fixture.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>

#ifdef KVC_DEBUG_LOCKS

typedef void (*Call)(KvcAdapterSlot *slot, KvcObjectKey *key);

static void
call_submit_store(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcMemoryObj object = {0};
	kvc_adapter_submit_store(slot, &key, &object, 1);
}

static void
call_pop_stores(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcL2StoreResult result;
	kvc_adapter_pop_stores(slot, &result, 1);
}

static void
call_submit_lookup(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	kvc_adapter_submit_lookup(slot, &key, 1);
}

static void
call_query_lookup(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcBitmap *found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info;
	kvc_adapter_query_lookup(slot, 1, found, &info, 1);
	kvc_bitmap_free(found);
}

static void
call_unlock(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	kvc_adapter_unlock(slot, &key, 1);
}

static void
call_submit_load(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcMemoryObj object = {0};
	kvc_adapter_submit_load(slot, key, &object);
}

static void
call_query_load(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcBitmap *loaded = kvc_bitmap_new(1);
	kvc_adapter_query_load(slot, 1, loaded);
	kvc_bitmap_free(loaded);
}

static void
call_delete(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcBitmap *deleted = kvc_bitmap_new(1);
	kvc_adapter_delete(slot, &key, 1, deleted);
	kvc_bitmap_free(deleted);
}

static void
call_rename(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	kvc_adapter_rename(slot, key, key);
}

static void
call_set_attributes(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcObjectAttributes attributes = {0};
	kvc_adapter_set_attributes(slot, key, &attributes);
}

static void
call_usage(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcL2Usage usage;
	kvc_adapter_usage(slot, &usage);
}

static const struct {
	const char *name;
	Call call;
} calls[] = {
	{"submit_store_task", call_submit_store},
	{"pop_completed_store_tasks", call_pop_stores},
	{"submit_lookup_and_lock_task", call_submit_lookup},
	{"query_lookup_and_lock_result", call_query_lookup},
	{"submit_unlock", call_unlock},
	{"submit_load_task", call_submit_load},
	{"query_load_result", call_query_load},
	{"delete_keys", call_delete},
	{"rename_key", call_rename},
	{"set_attributes", call_set_attributes},
	{"usage", call_usage},
};

/* In a child that holds a lock of RANK, or none (0): its last words, "" when it came back. */
static char *
last_words(Call call, KvcLockRank rank)
{
	char text[512];
	int fds[2], status;
	size_t len = 0;
	ssize_t n;
	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){0, 0});
		signal(SIGABRT, SIG_DFL);
		dup2(fds[1], STDERR_FILENO);
		Env *env = env_new(1, 1 << 20);
		KvcObjectKey *key = key_new(env, 1);
		KvcMutex lock;
		kvc_mutex_init(&lock, rank);
		if (rank)
			kvc_mutex_lock(&lock);
		call(&env->slots[0], key);
		_exit(0);
	}
	close(fds[1]);
	while ((n = read(fds[0], text + len, sizeof(text) - 1 - len)) > 0)
		len += (size_t)n;
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
		len = 0;
	else
		assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
	return g_strndup(text, len);
}

static void
test_a_call_under_a_lock_aborts(void **state)
{
	for (size_t i = 0; i < G_N_ELEMENTS(calls); i++) {
		g_autofree char *expected = g_strdup_printf(
			"kvcache: calling %s while holding L1_SHARD", calls[i].name);
		g_autofree char *text = last_words(calls[i].call, KVC_LOCK_L1_SHARD);
		if (!strstr(text, expected))
			fail_msg("\"%s\" is not in: %s", expected, text);
		g_autofree char *without = last_words(calls[i].call, (KvcLockRank)0);
		assert_string_equal(without, "");
	}
}

#endif

/* Outcomes reach the breaker: what an errno says, and what a lookup says of itself. */
static void
test_outcomes_reach_the_breaker(void **state)
{
	Env *env = env_new(1, 1 << 20);
	KvcAdapterSlot *slot = &env->slots[0];
	g_autoptr(KvcObjectKey) key = key_new(env, 1);
	KvcBreakerStatus status;
	slot->breaker = kvc_breaker_new(3600 * KVC_SEC_NS, 3600 * KVC_SEC_NS);
	for (int i = 0; i < KVC_BREAKER_FAILURES; i++)
		kvc_breaker_note(slot->breaker, -EPIPE);
	kvc_breaker_get_status(slot->breaker, &status);
	assert_int_equal(status.state, KVC_BREAKER_OPEN);
	/* The adapter is not asked. */
	KvcBitmap *deleted = kvc_bitmap_new(1);
	assert_int_equal(kvc_adapter_delete(slot, &key, 1, deleted), -EHOSTDOWN);
	assert_int_equal(kvc_adapter_rename(slot, key, key), -EHOSTDOWN);
	assert_false(kvc_adapter_admits(slot));
	assert_int_equal(fake_count(env->fakes[0], "delete", key), 0);
	assert_int_equal(fake_count(env->fakes[0], "rename", key), 0);
	kvc_bitmap_free(deleted);
	kvc_breaker_free(slot->breaker);

	/* A lookup that asked nothing ends a probe, one that asked closes. */
	slot->breaker = kvc_breaker_new(1, 1);
	for (int round = 0; round < 2; round++) {
		KvcBitmap *found = kvc_bitmap_new(1);
		KvcL2ObjectInfo info = {0};
		for (int i = 0; i < KVC_BREAKER_FAILURES; i++)
			kvc_breaker_note(slot->breaker, -EPIPE);
		wait_until(kvc_adapter_admits(slot));
		env->fakes[0]->is_unreachable = round == 0;
		KvcL2TaskId id = kvc_adapter_submit_lookup(slot, &key, 1);
		assert_int_equal(kvc_adapter_query_lookup(slot, id, found, &info, 1), 1);
		kvc_breaker_get_status(slot->breaker, &status);
		assert_int_equal(status.state, round == 0 ? KVC_BREAKER_OPEN : KVC_BREAKER_CLOSED);
		kvc_bitmap_free(found);
	}
	kvc_breaker_free(slot->breaker);
	env_free(env);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
#ifdef KVC_DEBUG_LOCKS
		cmocka_unit_test(test_a_call_under_a_lock_aborts),
#endif
		cmocka_unit_test(test_outcomes_reach_the_breaker),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
