/* SPDX-License-Identifier: Apache-2.0 */

/*
 * engine-bench ROUNDS KEYS DIRECTORY: measures the engine without a mount and prints a table; a row
 * is what, the median of ROUNDS rounds, the lowest, the unit, and the target where there is one.
 *
 * DIRECTORY must not exist: it becomes the base_path of an `fs` adapter, filled with KEYS empty
 * files before that adapter is opened, and is left to the caller.
 */

#include "engine/key-index.h"
#include "engine/lock.h"
#include "kvcache/storage-manager.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <semaphore.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MODEL "meta-llama/Llama-3.1-8B"
#define FILE_MODEL "meta-llama-SEP-Llama-3.1-8B"
#define RANK 0x01000100
#define GROUP 0
#define MAX_ROUNDS 101
#define N_KEYS 4096
#define HASH_BYTES 32
#define OBJECT_BYTES 4096
#define WAIT_NS (120 * KVC_SEC_NS)
#define PAIRS 4000     /* a thread and round */
#define RESIDENT 50000 /* objects at the measurement of kernel memory */
#define LIST_PAGE 1024 /* entries a call */

static unsigned rounds;
static KvcKeyScope *scope;

/* ---- Printing ------------------------------------------------------------------------------ */

static int
compare_doubles(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return x < y ? -1 : x > y;
}

/* TARGET 0: there is none. Sorts VALUES. */
static void
print_row(const char *what, double *values, unsigned n, const char *unit, double target)
{
	char text[64] = "";

	qsort(values, n, sizeof(double), compare_doubles);
	double median = values[n / 2];
	if (target > 0)
		snprintf(text, sizeof(text), "< %g: %s", target,
			 median < target ? "met" : "MISSED");
	printf("%-62s %10.2f %10.2f %-8s %s\n", what, median, values[0], unit, text);
	fflush(stdout);
}

static void
print_value(const char *what, double value, const char *unit, double target)
{
	print_row(what, &value, 1, unit, target);
}

/* ---- Keys and objects ---------------------------------------------------------------------- */

static void
fill_hash(uint8_t hash[HASH_BYTES], uint64_t number)
{
	uint64_t x = number;

	/* SplitMix64 (Steele, Lea, Flood): as spread as a digest. */
	for (size_t i = 0; i < HASH_BYTES / sizeof(x); i++) {
		uint64_t z = x += UINT64_C(0x9e3779b97f4a7c15);
		z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
		z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
		z ^= z >> 31;
		memcpy(hash + i * sizeof(z), &z, sizeof(z));
	}
}

static KvcObjectKey *
key_new(uint64_t number)
{
	uint8_t hash[HASH_BYTES];

	fill_hash(hash, number);
	KvcObjectKey *key = kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, sizeof(hash), NULL);
	if (!key)
		errx(1, "no key");
	return key;
}

static KvcObjectKey **
keys_new(uint64_t first, size_t n)
{
	KvcObjectKey **keys = g_new(KvcObjectKey *, n);

	for (size_t i = 0; i < n; i++)
		keys[i] = key_new(first + i);
	return keys;
}

static void
keys_free(KvcObjectKey **keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		kvc_object_key_unref(keys[i]);
	g_free(keys);
}

static KvcStorageManager *
engine_new(uint64_t l1_size_bytes, const char *adapter)
{
	const char *const adapters[] = {adapter, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = l1_size_bytes,
		.l2_adapters = adapters,
		.eviction_trigger_watermark = 2, /* nothing goes by itself */
	};
	GError *error = NULL;
	KvcStorageManager *sm = kvc_storage_manager_new(&config, &error);

	if (!sm)
		errx(1, "%s", error->message);
	return sm;
}

static void
put(KvcStorageManager *sm, KvcObjectKey *key)
{
	KvcL1Object *object;
	int rc = kvc_storage_manager_reserve_write(sm, key, OBJECT_BYTES, &object);

	if (rc == 0)
		rc = kvc_l1_object_set_size(object, OBJECT_BYTES);
	if (rc == 0)
		kvc_l1_object_get_fd(object); /* as for a client, which has to be gone */
	if (rc == 0)
		rc = kvc_storage_manager_finish_write(sm, object, key, KVC_FINISH_REPLACE);
	if (rc != 0)
		errx(1, "cannot write an object: %s", strerror(-rc));
}

static void
evict(KvcStorageManager *sm, KvcObjectKey *key)
{
	int64_t until = kvc_now_ns() + WAIT_NS;
	int rc;

	/* Busy until the controller has let go of it. */
	while ((rc = kvc_storage_manager_evict(sm, key)) == -EBUSY && kvc_now_ns() < until)
		usleep(100);
	if (rc != 0)
		errx(1, "cannot evict: %s", strerror(-rc));
}

/* ---- Prefetch ------------------------------------------------------------------------------ */

typedef struct Waiting {
	sem_t planned, done, freed;
} Waiting;

static void
on_planned(void *user, KvcPrefetchHandle *handle)
{
	sem_post(&((Waiting *)user)->planned);
}

static void
on_done(void *user, KvcPrefetchHandle *handle)
{
	sem_post(&((Waiting *)user)->done);
}

static void
on_freed(void *user)
{
	sem_post(&((Waiting *)user)->freed);
}

static void
wait_for(sem_t *sem)
{
	while (sem_wait(sem) < 0)
		if (errno != EINTR)
			err(1, "sem_wait");
}

/* Nanoseconds from the submit until everything was given back. */
static int64_t
time_prefetch(KvcStorageManager *sm, KvcObjectKey *const *keys, size_t n, unsigned flags)
{
	Waiting waiting;
	KvcPrefetchParams params = {
		.keys = keys,
		.n_keys = n,
		.flags = flags,
		.planned = on_planned,
		.done = on_done,
		.user = &waiting,
	};

	sem_init(&waiting.planned, 0, 0);
	sem_init(&waiting.done, 0, 0);
	sem_init(&waiting.freed, 0, 0);
	int64_t begin = kvc_now_ns();
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(sm, &params);
	wait_for(flags & KVC_PREFETCH_HOLD ? &waiting.planned : &waiting.done);
	ssize_t found = kvc_prefetch_handle_get_found(handle);
	kvc_prefetch_handle_drop(handle, on_freed);
	wait_for(&waiting.freed);
	int64_t ns = kvc_now_ns() - begin;
	if (found != (ssize_t)n)
		errx(1, "%zd of %zu keys found", found, n);
	sem_destroy(&waiting.planned);
	sem_destroy(&waiting.done);
	sem_destroy(&waiting.freed);
	return ns;
}

/* Every second key of KEYS is in L1, all of them are in the mock. */
static void
bench_prefetch(void)
{
	double plan_us[MAX_ROUNDS], loaded_us[MAX_ROUNDS];
	KvcStorageManager *sm = engine_new(UINT64_C(1) << 30, "type=mock,max_size_gb=1");
	KvcObjectKey **keys = keys_new(0, N_KEYS);

	for (size_t i = 0; i < N_KEYS; i++)
		put(sm, keys[i]);
	if (kvc_storage_manager_drain(sm, WAIT_NS) < 0)
		errx(1, "the mock did not store");
	for (size_t i = 1; i < N_KEYS; i += 2)
		evict(sm, keys[i]);
	time_prefetch(sm, keys, N_KEYS, KVC_PREFETCH_HOLD);
	for (unsigned round = 0; round < rounds; round++) {
		int64_t plan_ns = time_prefetch(sm, keys, N_KEYS, KVC_PREFETCH_HOLD);
		int64_t all_ns = time_prefetch(sm, keys, N_KEYS, 0);

		plan_us[round] = (double)plan_ns / N_KEYS / 1e3;
		loaded_us[round] = (double)(all_ns - plan_ns) / (N_KEYS / 2.0) / 1e3;
		for (size_t i = 1; i < N_KEYS; i += 2)
			evict(sm, keys[i]);
	}
	print_row("lookup, plan, locks, release of 4096 keys, half in L1", plan_us, rounds,
		  "us/key", 2);
	print_row("a loaded object of 4 KiB adds (2048 of 4096 keys)", loaded_us, rounds, "us", 25);
	keys_free(keys, N_KEYS);
	kvc_storage_manager_free(sm);
}

/* ---- Writing ------------------------------------------------------------------------------- */

typedef struct Writer {
	KvcStorageManager *sm;
	KvcObjectKey **keys;
	pthread_t thread;
} Writer;

static void *
write_main(void *user)
{
	Writer *writer = user;

	for (size_t i = 0; i < PAIRS; i++)
		put(writer->sm, writer->keys[i]);
	return NULL;
}

/* Reserve and finish of new keys; without an L2, and without writing any bytes. */
static void
bench_writes(unsigned n_threads)
{
	double pairs[MAX_ROUNDS];
	char what[80];
	KvcStorageManager *sm = engine_new(UINT64_C(1) << 30, NULL);
	Writer writers[2];

	for (unsigned t = 0; t < n_threads; t++)
		writers[t] = (Writer){.sm = sm, .keys = keys_new((uint64_t)(t + 1) << 32, PAIRS)};
	for (unsigned round = 0; round < rounds; round++) {
		int64_t begin = kvc_now_ns();

		for (unsigned t = 0; t < n_threads; t++)
			if (pthread_create(&writers[t].thread, NULL, write_main, &writers[t]))
				errx(1, "no thread");
		for (unsigned t = 0; t < n_threads; t++)
			pthread_join(writers[t].thread, NULL);
		pairs[round] = n_threads * PAIRS * 1e9 / (double)(kvc_now_ns() - begin);
		for (unsigned t = 0; t < n_threads; t++)
			for (size_t i = 0; i < PAIRS; i++)
				kvc_storage_manager_delete(sm, writers[t].keys[i]);
	}
	snprintf(what, sizeof(what), "reserve and finish of objects of 4 KiB, %u thread%s",
		 n_threads, n_threads > 1 ? "s" : "");
	print_row(what, pairs, rounds, "pairs/s", 0);
	for (unsigned t = 0; t < n_threads; t++)
		keys_free(writers[t].keys, PAIRS);
	kvc_storage_manager_free(sm);
}

/* ---- A million keys ------------------------------------------------------------------------ */

static int64_t
thread_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
	return ts.tv_sec * KVC_SEC_NS + ts.tv_nsec;
}

/* CPU time of the thread: what else the machine does is not in it. */
static void
bench_growth(size_t n_keys)
{
	KvcKeyIndex *index = kvc_key_index_new(NULL, NULL, NULL);
	int64_t longest = 0, begin = thread_ns(), all = begin;

	for (size_t i = 0; i < n_keys; i++) {
		KvcObjectKey *key = key_new(i);

		begin = thread_ns();
		kvc_key_index_add(index, key, 1, OBJECT_BYTES, 1);
		longest = MAX(longest, thread_ns() - begin);
		kvc_object_key_unref(key);
	}
	all = thread_ns() - all;
	print_value("the longest addition to the index on the way to all keys (CPU)",
		    (double)longest / 1e6, "ms", 0);
	print_value("all additions, the making of the keys included (CPU)", (double)all / 1e9, "s",
		    0);
	kvc_key_index_free(index);
}

static size_t
heap_bytes(void)
{
	struct mallinfo2 info = mallinfo2();

	return info.uordblks + info.hblkhd;
}

static void
fill_directory(const char *directory, size_t n_keys)
{
	char name[sizeof(FILE_MODEL) + 32 + 2 * HASH_BYTES];
	uint8_t hash[HASH_BYTES];

	if (mkdir(directory, 0755) < 0)
		err(1, "mkdir %s", directory);
	int dir = open(directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir < 0)
		err(1, "open %s", directory);
	for (size_t i = 0; i < n_keys; i++) {
		int at = snprintf(name, sizeof(name), FILE_MODEL "@0x%08x@%u@", RANK, GROUP);

		fill_hash(hash, i);
		for (size_t j = 0; j < HASH_BYTES; j++)
			at += snprintf(name + at, sizeof(name) - (size_t)at, "%02x", hash[j]);
		snprintf(name + at, sizeof(name) - (size_t)at, ".data");
		if (mknodat(dir, name, S_IFREG | 0644, 0) < 0)
			err(1, "make %s", name);
	}
	close(dir);
}

static size_t
list_all(KvcStorageManager *sm)
{
	static KvcListEntry entries[LIST_PAGE];
	size_t n, total = 0;
	uint64_t after = 0;

	while ((n = kvc_storage_manager_list(sm, scope, 1u << KVC_SPACE_CHUNK, after, entries,
					     LIST_PAGE)) > 0) {
		after = entries[n - 1].info.sequence;
		total += n;
		for (size_t i = 0; i < n; i++)
			kvc_object_key_unref(entries[i].key);
	}
	return total;
}

static void
bench_recovery(const char *directory, size_t n_keys)
{
	double list_s[MAX_ROUNDS];
	g_autofree char *adapter = g_strdup_printf("type=fs,base_path=%s", directory);

	fill_directory(directory, n_keys);
	size_t before = heap_bytes();
	int64_t begin = kvc_now_ns();
	KvcStorageManager *sm = engine_new(UINT64_C(64) << 20, adapter);
	if (kvc_storage_manager_wait_listed(sm, 20 * WAIT_NS) < 0)
		errx(1, "not listed in time");
	double recover_s = (double)(kvc_now_ns() - begin) / 1e9;
	size_t after = heap_bytes();
	for (unsigned round = 0; round < rounds; round++) {
		begin = kvc_now_ns();
		size_t n = list_all(sm);
		list_s[round] = (double)(kvc_now_ns() - begin) / 1e9;
		if (n != n_keys)
			errx(1, "%zu of %zu keys listed", n, n_keys);
	}
	print_value("heap a known key, hashes of 32 bytes (mallinfo2)",
		    (double)(after - before) / (double)n_keys, "bytes", 400);
	print_value("recovery of all keys at the start, from an fs directory", recover_s, "s", 0);
	print_row("listing of all keys, from memory", list_s, rounds, "s", 0);
	kvc_storage_manager_free(sm);
}

/* ---- Kernel memory ------------------------------------------------------------------------- */

/* What the kernel has for itself, in KiB; objects' pages are not in it. */
static long
kernel_kb(void)
{
	FILE *file = fopen("/proc/meminfo", "re");
	char name[64];
	long kb, sum = 0;

	if (!file)
		err(1, "/proc/meminfo");
	while (fscanf(file, "%63s %ld%*[^\n]", name, &kb) == 2)
		if (!strcmp(name, "Slab:") || !strcmp(name, "PageTables:") ||
		    !strcmp(name, "VmallocUsed:"))
			sum += kb;
	fclose(file);
	return sum;
}

static void
bench_kernel_memory(void)
{
	size_t n = RESIDENT;
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		err(1, "getrlimit");
	/* L1 takes at most 95 % of the descriptors. */
	if (limit.rlim_cur < n + n / 10)
		n = limit.rlim_cur / 10 * 8;
	KvcStorageManager *sm = engine_new(UINT64_C(1) << 30, NULL);
	KvcObjectKey **keys = keys_new(UINT64_C(9) << 32, n);
	long before = kernel_kb();
	for (size_t i = 0; i < n; i++)
		put(sm, keys[i]);
	print_value("kernel memory a resident object (the whole machine's difference)",
		    (double)(kernel_kb() - before) * 1024 / (double)n, "bytes", 0);
	keys_free(keys, n);
	kvc_storage_manager_free(sm);
}

/* As many as there may be: a resident object has one. */
static void
raise_descriptor_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) < 0)
		err(1, "getrlimit");
	if (limit.rlim_max < 2 * RESIDENT && geteuid() == 0)
		limit.rlim_max = 2 * RESIDENT;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

int
main(int argc, char **argv)
{
	long long n_keys = argc == 4 ? atoll(argv[2]) : 0;

	if (argc != 4 || atoi(argv[1]) < 1 || atoi(argv[1]) > MAX_ROUNDS || n_keys < 1)
		errx(2, "usage: engine-bench ROUNDS KEYS DIRECTORY; at most %d rounds", MAX_ROUNDS);
	rounds = (unsigned)atoi(argv[1]);
	scope = kvc_key_scope_new(MODEL, RANK, GROUP, NULL, NULL);
	raise_descriptor_limit();
	printf("%-62s %10s %10s %-8s %s\n", "what", "median", "lowest", "unit", "target");
	bench_prefetch();
	bench_writes(1);
	bench_writes(2);
	bench_growth((size_t)n_keys);
	bench_recovery(argv[3], (size_t)n_keys);
	bench_kernel_memory();
	printf("\nbuild: %s\n", BENCH_BUILD);
	kvc_key_scope_unref(scope);
	return 0;
}
