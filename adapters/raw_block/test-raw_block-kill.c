/* SPDX-License-Identifier: Apache-2.0 */

/*
 * kill -9 at any time. A victim, a process of its own, does random operations on a store and says
 * before each what it begins, and after it that it was confirmed. It is killed at a random point;
 * then everything that was confirmed must be so, each operation that had begun is done or not done,
 * and nothing else is there. The next victim goes on with the same store.
 *
 * KVC_TEST_ROUNDS: how many (30). KVC_TEST_SEED: of the operations; when the kill comes is up to
 * the machine.
 */

#include "test-raw_block-util.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#define ROUNDS 30
#define KEYS 48
#define IN_FLIGHT 4
#define SLOT_BYTES 8192
#define MAX_BYTES (5 * SLOT_BYTES)
#define MAX_RECORDS 200

typedef enum {
	OP_STORE,
	OP_DELETE,
	OP_RENAME,
	OP_ATTRIBUTES,
} Op;

/* Written to the pipe in one piece. */
typedef struct Record {
	Op op;
	bool is_confirmed;
	int64_t result; /* when confirmed */
	uint32_t key, to;
	uint64_t seed; /* of what is stored; its size follows from it */
} Record;

static KvcObjectKey *
key_of(uint32_t number)
{
	switch (number % 3) {
	case 0:
		return chunk(number);
	case 1:
		return plain(number);
	default:
		return prefix(number);
	}
}

static size_t
bytes_of(uint64_t seed)
{
	return random_below(&seed, 8) == 0 ? 0 : 1 + random_below(&seed, MAX_BYTES);
}

/* ---- The victim ---------------------------------------------------------------------------- */

typedef struct Victim {
	Store store;
	uint64_t random;
	struct {
		KvcL2TaskId id; /* 0: free */
		Record record;
		KvcMemoryObj memory;
	} flights[IN_FLIGHT];
} Victim;

static void
say(const Record *record)
{
	if (write(STDOUT_FILENO, record, sizeof(*record)) != sizeof(*record))
		_exit(3);
}

static void
confirm(Record record, int64_t result)
{
	record.is_confirmed = true;
	record.result = result;
	say(&record);
}

static bool
is_in_flight(const Victim *victim, uint32_t key)
{
	for (size_t i = 0; i < IN_FLIGHT; i++)
		if (victim->flights[i].id && victim->flights[i].record.key == key)
			return true;
	return false;
}

static void
await_store(Victim *victim)
{
	KvcL2StoreResult result;
	Store *store = &victim->store;

	while (store->ops->pop_completed_store_tasks(store->adapter, &result, 1) == 0)
		await_event(store->ops->get_store_event_fd(store->adapter));
	for (size_t i = 0; i < IN_FLIGHT; i++) {
		if (victim->flights[i].id != result.task_id)
			continue;
		confirm(victim->flights[i].record, result.bytes_transferred);
		victim->flights[i].id = 0;
		memory_free(&victim->flights[i].memory);
	}
}

static void
begin_store(Victim *victim, const Record *record)
{
	g_autoptr(KvcObjectKey) key = key_of(record->key);
	size_t i = 0;

	while (i < IN_FLIGHT && victim->flights[i].id)
		if (++i == IN_FLIGHT) {
			await_store(victim);
			i = 0;
		}
	victim->flights[i].record = *record;
	victim->flights[i].memory = memory_new(bytes_of(record->seed), record->seed);
	say(record);
	victim->flights[i].id = victim->store.ops->submit_store_task(victim->store.adapter, &key,
								     &victim->flights[i].memory, 1);
}

static void
run_now(Victim *victim, const Record *record)
{
	Store *store = &victim->store;
	g_autoptr(KvcObjectKey) key = key_of(record->key), to = key_of(record->to);
	KvcObjectAttributes attributes = {.mode = 0100600, .mtime_ns = (int64_t)record->seed};
	int64_t result = 0;

	say(record);
	if (record->op == OP_DELETE)
		result = delete_key(store, key) ? 0 : -EBUSY;
	else if (record->op == OP_RENAME)
		result = store->ops->rename_key(store->adapter, key, to);
	else
		result = store->ops->set_attributes(store->adapter, key, &attributes);
	confirm(*record, result);
}

static void G_GNUC_NORETURN
victim_main(const char *path, uint64_t seed)
{
	Victim victim = {.random = seed};

	log_silence();
	/* The pause of the keeper: it writes checkpoints between the operations. */
	store_open(&victim.store, path, ",meta_checkpoint_interval_sec=0.002");
	for (;;) {
		Record record = {.key = random_below(&victim.random, KEYS),
				 .to = random_below(&victim.random, KEYS),
				 .seed = random_next(&victim.random)};
		uint32_t dice = random_below(&victim.random, 100);

		record.op = dice < 55	? OP_STORE
			    : dice < 75 ? OP_DELETE
			    : dice < 90 ? OP_RENAME
					: OP_ATTRIBUTES;
		if (is_in_flight(&victim, record.key) || is_in_flight(&victim, record.to))
			await_store(&victim);
		else if (record.op == OP_STORE)
			begin_store(&victim, &record);
		else
			run_now(&victim, &record);
		if (dice == 99)
			g_usleep(5000);
	}
}

/* ---- What must be there -------------------------------------------------------------------- */

/* 0: nothing; else the seed of what is stored. */
typedef struct State {
	uint64_t is[2]; /* what may be there; twice the same: for certain */
	bool is_begun;	/* an operation has begun, and was not confirmed */
} State;

static State states[KEYS];
/* A rename that has begun and was not confirmed: both of its keys are as before, or none. */
static bool renames;
static Record renamed;

static void
note_begin(const Record *record)
{
	State *state = &states[record->key], *to = &states[record->to];

	assert_false(state->is_begun);
	switch (record->op) {
	case OP_STORE:
		state->is[1] = record->seed;
		state->is_begun = true;
		break;
	case OP_DELETE:
		state->is[1] = 0;
		state->is_begun = true;
		break;
	case OP_RENAME:
		if (record->key == record->to || state->is[0] == 0)
			break;
		to->is[1] = state->is[0];
		state->is[1] = 0;
		state->is_begun = to->is_begun = renames = true;
		renamed = *record;
		break;
	case OP_ATTRIBUTES:
		break;
	}
}

static void
settle(State *state, bool is_done)
{
	state->is[!is_done] = state->is[is_done];
	state->is_begun = false;
}

static void
note_confirmed(const Record *record)
{
	State *state = &states[record->key], *to = &states[record->to];
	bool was_there = state->is[0] != 0;
	int64_t bytes = record->op == OP_STORE ? (int64_t)bytes_of(record->seed) : 0;

	switch (record->op) {
	case OP_STORE:
		/* There is room for all of them; the same chunk is never stored twice, but nothing
		 * is. */
		assert_int_equal(record->result, bytes);
		settle(state, true);
		break;
	case OP_DELETE:
		assert_int_equal(record->result, 0);
		settle(state, true);
		break;
	case OP_RENAME:
		assert_int_equal(record->result, was_there ? 0 : -ENOENT);
		if (record->key == record->to || !was_there)
			break;
		settle(state, true);
		settle(to, true);
		renames = false;
		break;
	case OP_ATTRIBUTES:
		assert_int_equal(record->result, was_there ? 0 : -ENOENT);
		break;
	}
}

/* Which of the two is there? It is so from now on. */
static unsigned
check_key(Store *store, uint32_t number)
{
	State *state = &states[number];
	g_autoptr(KvcObjectKey) key = key_of(number);
	KvcL2ObjectInfo info = {0};
	bool is_there = find(store, key, &info);

	kvc_xattrs_unref(info.xattrs);
	for (unsigned i = 0; i < 2; i++) {
		uint64_t seed = state->is[i];

		if (is_there != (seed != 0))
			continue;
		if (!is_there ||
		    (info.bytes == bytes_of(seed) && get(store, key, info.bytes, seed) == 1)) {
			settle(state, i);
			return i;
		}
	}
	fail_msg("key %u: %s, with %" G_GUINT64_FORMAT " bytes; it may be %" G_GUINT64_FORMAT
		 " or %" G_GUINT64_FORMAT,
		 number, is_there ? "there" : "not there", info.bytes, state->is[0], state->is[1]);
	return 0;
}

static void
check_all(const char *path, const char *extra)
{
	Store store;
	unsigned n = 0;

	store_open(&store, path, extra);
	if (renames) {
		/* Told apart by what differs; if nothing does there is nothing to tell. */
		bool differs = states[renamed.key].is[0] != 0;
		unsigned from = check_key(&store, renamed.key), to = check_key(&store, renamed.to);

		assert_true(!differs || from == to);
		renames = false;
	}
	for (uint32_t i = 0; i < KEYS; i++) {
		check_key(&store, i);
		n += states[i].is[0] != 0;
	}
	g_autoptr(GPtrArray) keys = list_keys(&store);
	assert_int_equal(keys->len, n);
	assert_int_equal(usage_of(&store).objects, n);
	g_autofree char *mismatches = line_of(&store, "crc_mismatches");
	g_autofree char *damaged = line_of(&store, "damaged_headers");
	assert_string_equal(mismatches, "0");
	assert_string_equal(damaged, "0");
	store_close(&store);
}

/* ---- The rounds ---------------------------------------------------------------------------- */

/* Starts a victim, kills it after N_RECORDS or so; notes all that it has said. */
static unsigned
run_victim(const char *path, uint64_t seed, unsigned n_records)
{
	g_autofree char *text = g_strdup_printf("%" G_GUINT64_FORMAT, seed);
	unsigned n = 0;
	Record record;
	int fds[2], status;

	assert_int_equal(pipe(fds), 0);
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		dup2(fds[1], STDOUT_FILENO);
		close(fds[0]);
		close(fds[1]);
		execl("/proc/self/exe", "test-raw_block-kill", "--victim", path, text, NULL);
		_exit(127);
	}
	close(fds[1]);
	while (read(fds[0], &record, sizeof(record)) == sizeof(record)) {
		if (record.is_confirmed)
			note_confirmed(&record);
		else
			note_begin(&record);
		if (++n == n_records)
			kill(pid, SIGKILL);
	}
	close(fds[0]);
	assert_int_equal(waitpid(pid, &status, 0), pid);
	assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
	return n;
}

static void
test_kill(void **state)
{
	const char *text = getenv("KVC_TEST_ROUNDS");
	unsigned rounds = text ? (unsigned)atoi(text) : ROUNDS, records = 0;
	uint64_t seed = test_seed();
	char *dirs[] = {dir_new(), disk_dir_new()};

	for (size_t i = 0; i < G_N_ELEMENTS(dirs); i++) {
		g_autofree char *path = g_build_filename(dirs[i], "store", NULL);
		Store store;

		memset(states, 0, sizeof(states));
		store_open(&store, path, ",capacity_bytes=8M,slot_bytes=8K");
		store_close(&store);
		for (unsigned round = i; round < rounds; round += 2) {
			unsigned n = 1 + random_below(&seed, MAX_RECORDS);

			records += run_victim(path, random_next(&seed), n);
			/* By the headers the tombstones count; the close writes a checkpoint. */
			check_all(path, round % 4 < 2 ? "" : ",load_checkpoint_on_init=false");
			if (round % 3 == 0)
				check_all(path, "");
		}
		dir_remove(dirs[i]);
	}
	printf("%u rounds, %u records\n", rounds, records);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test(test_kill)};

	if (argc == 4 && !strcmp(argv[1], "--victim"))
		victim_main(argv[2], g_ascii_strtoull(argv[3], NULL, 10));
	log_silence();
	return cmocka_run_group_tests(tests, NULL, NULL);
}
