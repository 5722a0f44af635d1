/* SPDX-License-Identifier: Apache-2.0 */

/*
 * four-step-prefetch L2 OUT HASH HASH HASH... ABSENT: what an inference engine does with the
 * library and without a mount. L2 is a directory of the fs adapter that has all of these chunks of
 * "some/model", rank 01000100, but the last one. The first two are prefetched, then all of them:
 * submit, poll or wait, read, release. What was read goes to OUT/HASH. Every step is checked.
 *
 * Built with the installed library only: cc $(pkg-config --cflags kvcache) four-step-prefetch.c
 * $(pkg-config --libs kvcache)
 */

#include <err.h>
#include <errno.h>
#include <kvcache/kvcache.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define CHECK(condition)                                                                           \
	do {                                                                                       \
		if (!(condition))                                                                  \
			errx(1, "line %d: not so: %s", __LINE__, #condition);                      \
	} while (0)

/* In a test that ends, however slow the machine. */
#define WAIT_NS (INT64_C(60) * 1000000000)

static int64_t
now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static KvcStorageManager *
open_cache(const char *l2)
{
	g_autofree char *adapter = g_strdup_printf("type=fs,base_path=%s", l2);
	const char *const adapters[] = {adapter, NULL};
	KvcStorageManagerConfig config = {
		.l1_size_bytes = UINT64_C(64) << 20,
		.l2_adapters = adapters,
	};
	g_autoptr(GError) error = NULL;
	KvcStorageManager *sm = kvc_storage_manager_new(&config, &error);

	if (sm == NULL)
		errx(1, "%s", error->message);
	return sm;
}

static KvcObjectKey *
parse_key(KvcKeyScope *scope, const char *hex)
{
	uint8_t hash[KVC_CHUNK_HASH_MAX_BYTES];
	KvcObjectKey *key;

	CHECK(strlen(hex) <= 2 * sizeof(hash) && kvc_hex_decode(hex, strlen(hex), hash));
	key = kvc_object_key_new(scope, KVC_SPACE_CHUNK, hash, strlen(hex) / 2, NULL);
	CHECK(key != NULL);
	return key;
}

/* 1. Submit. */
static KvcPrefetchHandle *
submit(KvcStorageManager *sm, KvcObjectKey *const *keys, size_t n)
{
	KvcPrefetchParams params = {.keys = keys, .n_keys = n};
	int64_t before_ns = now_ns();
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(sm, &params);

	CHECK(handle->total_requested_keys == n);
	CHECK(handle->submit_time_ns >= before_ns && handle->submit_time_ns <= now_ns());
	return handle;
}

/* 2. Poll. */
static size_t
poll_status(KvcStorageManager *sm, KvcPrefetchHandle *handle)
{
	int64_t deadline_ns = now_ns() + WAIT_NS;
	ssize_t total;

	while ((total = kvc_storage_manager_query_prefetch_status(sm, handle)) == -EAGAIN) {
		CHECK(now_ns() < deadline_ns);
		usleep(1000);
	}
	CHECK(total >= 0);
	return (size_t)total;
}

/* 2., without polling. */
static size_t
wait_status(KvcStorageManager *sm, KvcPrefetchHandle *handle)
{
	struct pollfd event = {.fd = kvc_prefetch_handle_get_event_fd(handle), .events = POLLIN};
	ssize_t total;

	CHECK(kvc_prefetch_handle_wait(handle, WAIT_NS) == 0);
	CHECK(poll(&event, 1, 0) == 1);
	total = kvc_storage_manager_query_prefetch_status(sm, handle);
	CHECK(total >= 0);
	return (size_t)total;
}

/* 3. Read, and give the read lock back. */
static void
read_object(KvcStorageManager *sm, KvcL1Object *object, const char *directory, const char *name)
{
	g_autofree char *path = g_build_filename(directory, name, NULL);
	size_t bytes = kvc_l1_object_get_bytes(object);
	void *data = mmap(NULL, bytes, PROT_READ, MAP_SHARED, kvc_l1_object_get_fd(object), 0);
	g_autoptr(GError) error = NULL;

	CHECK(data != MAP_FAILED);
	if (!g_file_set_contents(path, data, (gssize)bytes, &error))
		errx(1, "%s", error->message);
	munmap(data, bytes);
	kvc_storage_manager_finish_read(sm, object);
}

/* The first N keys are in L1 after it. */
static void
prefetch_from_l2(KvcStorageManager *sm, KvcObjectKey *const *keys, size_t n)
{
	KvcPrefetchHandle *handle = submit(sm, keys, n);

	CHECK(handle->request_id >= 0);
	CHECK(handle->l1_prefix_hit_count == 0);
	CHECK(poll_status(sm, handle) == n);
	CHECK(kvc_storage_manager_query_prefetch_status(sm, handle) == -ENODATA);
	/* 4. Release: all that was not taken out. */
	kvc_prefetch_handle_drop(handle, NULL);
}

/* Of N keys the first IN_L1 are in L1, and all but the last one in L2. */
static void
prefetch_from_both(KvcStorageManager *sm,
		   KvcObjectKey *const *keys,
		   size_t n,
		   size_t in_l1,
		   const char *directory,
		   char **names)
{
	KvcPrefetchHandle *handle = submit(sm, keys, n);
	size_t total;

	CHECK(handle->request_id >= 0);
	CHECK(handle->l1_prefix_hit_count == in_l1);
	total = wait_status(sm, handle);
	CHECK(total == n - 1);
	CHECK(kvc_prefetch_handle_get_found(handle) == (ssize_t)total);
	CHECK(kvc_storage_manager_query_prefetch_status(sm, handle) == -ENODATA);
	for (size_t i = 0; i < total; i++) {
		KvcL1Object *object = kvc_prefetch_handle_take_object(handle, i);

		CHECK(object != NULL);
		read_object(sm, object, directory, names[i]);
	}
	CHECK(kvc_prefetch_handle_take_object(handle, n - 1) == NULL);
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
prefetch_from_l1(KvcStorageManager *sm, KvcObjectKey *const *keys, size_t n)
{
	KvcPrefetchHandle *handle = submit(sm, keys, n);

	CHECK(handle->request_id == -1);
	CHECK(handle->l1_prefix_hit_count == n);
	/* At once, and as often as it is asked. */
	for (int i = 0; i < 3; i++)
		CHECK(kvc_storage_manager_query_prefetch_status(sm, handle) == (ssize_t)n);
	CHECK(wait_status(sm, handle) == n);
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
check_no_locks(void *user, const char *name, const char *value)
{
	if (strcmp(name, "l1_read_locks") == 0)
		*(bool *)user = strcmp(value, "0") == 0;
}

/* The controller's thread releases what a dropped handle held: soon. */
static void
wait_for_no_locks(KvcStorageManager *sm)
{
	int64_t deadline_ns = now_ns() + WAIT_NS;
	bool is_free = false;

	for (;;) {
		kvc_storage_manager_report_status(sm, check_no_locks, &is_free);
		if (is_free)
			return;
		CHECK(now_ns() < deadline_ns);
		usleep(1000);
	}
}

int
main(int argc, char **argv)
{
	size_t n = (size_t)argc - 3;
	char **names = argv + 3;
	KvcObjectKey **keys;
	KvcStorageManager *sm;
	KvcKeyScope *scope;

	if (argc < 7)
		errx(2, "usage: four-step-prefetch L2 OUT HASH HASH HASH... ABSENT");
	CHECK(kvc_api_version() >= KVC_API_VERSION);
	scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);
	keys = g_new(KvcObjectKey *, n);
	for (size_t i = 0; i < n; i++)
		keys[i] = parse_key(scope, names[i]);
	sm = open_cache(argv[1]);
	prefetch_from_l2(sm, keys, 2);
	prefetch_from_both(sm, keys, n, 2, argv[2], names);
	prefetch_from_l1(sm, keys, n - 1);
	wait_for_no_locks(sm);
	kvc_storage_manager_free(sm);
	for (size_t i = 0; i < n; i++)
		kvc_object_key_unref(keys[i]);
	kvc_key_scope_unref(scope);
	g_free(keys);
	return 0;
}
