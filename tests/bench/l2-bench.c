/* SPDX-License-Identifier: Apache-2.0 */

/*
 * l2-bench SPECIFICATION OBJECTS BYTES: stores OBJECTS chunks of BYTES each in an L2 adapter, loads
 * them into other memory, compares, loads them again, deletes them; does all that twice; and prints
 * "store BYTES_PER_SECOND" and "load BYTES_PER_SECOND" of the last store and the last load. A task
 * an object, all submitted at once.
 *
 * What comes before is for the memory, ours and that of a server: in a virtual machine the first
 * touch of a page can cost ten times as much as copying it.
 */

#include <kvcache/kvcache.h>

#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define WAIT_MS 60000

static const KvcL2AdapterOps *ops;
static KvcL2Adapter *adapter;
static size_t n_objects, object_bytes;
static KvcObjectKey **keys;

static double
now_s(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static void
await_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	if (poll(&event, 1, WAIT_MS) != 1)
		errx(1, "nothing has happened for %d s", WAIT_MS / 1000);
	kvc_eventfd_drain(fd);
}

static char *
map_memory(void)
{
	char *memory = mmap(NULL, n_objects * object_bytes, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "memory");
	return memory;
}

static KvcMemoryObj
object_at(char *memory, size_t i)
{
	return (KvcMemoryObj){memory + i * object_bytes, object_bytes, object_bytes, NULL};
}

/* Seconds that all of them took. */
static double
store_all(char *memory)
{
	double begin = now_s();

	for (size_t i = 0; i < n_objects; i++) {
		KvcMemoryObj object = object_at(memory, i);

		ops->submit_store_task(adapter, &keys[i], &object, 1);
	}
	for (size_t n = 0; n < n_objects;) {
		KvcL2StoreResult result;

		if (ops->pop_completed_store_tasks(adapter, &result, 1) == 0) {
			await_event(ops->get_store_event_fd(adapter));
			continue;
		}
		if (result.bytes_transferred != (int64_t)object_bytes)
			errx(1, "a store: %" G_GINT64_FORMAT, result.bytes_transferred);
		n++;
	}
	return now_s() - begin;
}

static double
load_all(char *memory)
{
	g_autofree KvcL2TaskId *tasks = g_new(KvcL2TaskId, n_objects);
	double begin = now_s();

	for (size_t i = 0; i < n_objects; i++) {
		KvcMemoryObj object = object_at(memory, i);

		tasks[i] = ops->submit_load_task(adapter, &keys[i], &object, 1);
	}
	for (size_t i = 0; i < n_objects; i++) {
		g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);

		while (ops->query_load_result(adapter, tasks[i], loaded) == 0)
			await_event(ops->get_load_event_fd(adapter));
		if (!kvc_bitmap_test(loaded, 0))
			errx(1, "object %zu was not loaded", i);
	}
	return now_s() - begin;
}

/* All of it, once; what is there afterwards is what was before. */
static void
run(char *stored, char *loaded, double *store_s, double *load_s)
{
	*store_s = store_all(stored);
	load_all(loaded);
	if (memcmp(stored, loaded, n_objects * object_bytes) != 0)
		errx(1, "what was loaded is not what was stored");
	*load_s = load_all(loaded);
	memset(loaded, 0, n_objects * object_bytes);
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(n_objects);
	if (!ops->delete_keys || ops->delete_keys(adapter, keys, n_objects, deleted) < 0 ||
	    kvc_bitmap_count(deleted) != n_objects)
		errx(1, "not all objects were deleted");
}

int
main(int argc, char **argv)
{
	g_autoptr(GError) error = NULL;
	KvcOptions *options = NULL;

	if (argc != 4)
		errx(2, "usage: l2-bench SPECIFICATION OBJECTS BYTES");
	n_objects = strtoul(argv[2], NULL, 10);
	object_bytes = strtoul(argv[3], NULL, 10);
	if (n_objects == 0 || object_bytes == 0 || object_bytes % 4096 != 0)
		errx(2, "objects, and bytes that are a multiple of 4096");
	adapter = kvc_l2_adapter_open(argv[1], &options, &error);
	if (!adapter)
		errx(1, "%s", error->message);
	ops = adapter->ops;
	KvcKeyScope *scope = kvc_key_scope_new("bench", 0x01000100, 0, NULL, NULL);
	char *stored = map_memory(), *loaded = map_memory();
	keys = g_new(KvcObjectKey *, n_objects);
	for (size_t i = 0; i < n_objects; i++) {
		uint64_t hash[4] = {i, 0, 0, 1};

		keys[i] = kvc_object_key_new(scope, KVC_SPACE_CHUNK, (uint8_t *)hash, sizeof(hash),
					     NULL);
		for (size_t at = 0; at < object_bytes; at += 8)
			memcpy(stored + i * object_bytes + at, &(uint64_t){i + at}, 8);
	}
	double bytes = (double)n_objects * (double)object_bytes, store_s, load_s;
	run(stored, loaded, &store_s, &load_s);
	run(stored, loaded, &store_s, &load_s);
	printf("store %.0f\n", bytes / store_s);
	printf("load %.0f\n", bytes / load_s);
	ops->close(adapter);
	kvc_options_free(options);
	for (size_t i = 0; i < n_objects; i++)
		kvc_object_key_unref(keys[i]);
	g_free(keys);
	kvc_key_scope_unref(scope);
	return 0;
}
