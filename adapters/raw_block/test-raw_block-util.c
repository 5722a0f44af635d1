/* SPDX-License-Identifier: Apache-2.0 */

#include "test-raw_block-util.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define WAIT_MS 60000

/* ---- Files --------------------------------------------------------------------------------- */

static char *
make_dir(const char *parent)
{
	char *dir = g_build_filename(parent, "kvcache-test-raw_block-XXXXXX", NULL);

	assert_non_null(g_mkdtemp(dir));
	return dir;
}

char *
disk_dir_new(void)
{
	const char *parent = getenv("TMPDIR");

	return make_dir(parent ? parent : "/var/tmp");
}

char *
dir_new(void)
{
	return access("/dev/shm", W_OK) == 0 ? make_dir("/dev/shm") : disk_dir_new();
}

void
dir_remove(char *dir)
{
	g_autofree char *command = g_strdup_printf("rm -rf '%s'", dir);

	assert_int_equal(system(command), 0);
	g_free(dir);
}

uint8_t *
file_read(const char *path, size_t *bytes)
{
	char *data = NULL;

	assert_true(g_file_get_contents(path, &data, bytes, NULL));
	return (uint8_t *)data;
}

void
file_patch(const char *path, uint64_t offset, const void *data, size_t bytes)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	assert_int_equal(pwrite(fd, data, bytes, (off_t)offset), bytes);
	close(fd);
}

void
file_write(const char *path, const void *data, size_t bytes)
{
	file_patch(path, 0, data, bytes);
	assert_int_equal(truncate(path, (off_t)bytes), 0);
}

RawBlockSuper
super_of(const char *path)
{
	uint8_t page[RAW_BLOCK_PAGE_BYTES];
	RawBlockSuper super;
	uint32_t version;
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	assert_int_equal(pread(fd, page, sizeof(page), RAW_BLOCK_SUPER_A_OFFSET), sizeof(page));
	close(fd);
	assert_int_equal(raw_block_super_decode(page, &super, &version), RAW_BLOCK_SUPER_VALID);
	return super;
}

/* ---- The store ----------------------------------------------------------------------------- */

static KvcL2Adapter *
try_open(Store *store, const char *path, const char *extra, GError **error)
{
	g_autofree char *text = g_strdup_printf("type=raw_block,device_path=%s%s", path, extra);

	return kvc_l2_adapter_open(text, &store->options, error);
}

void
store_open(Store *store, const char *path, const char *extra)
{
	g_autoptr(GError) error = NULL;

	store->adapter = try_open(store, path, extra, &error);
	if (!store->adapter)
		fail_msg("%s", error->message);
	store->ops = store->adapter->ops;
	store->path = g_strdup(path);
}

char *
refusal(const char *path, const char *extra)
{
	g_autoptr(GError) error = NULL;
	Store store = {0};

	if (try_open(&store, path, extra, &error))
		fail_msg("%s was opened", path);
	return g_strdup(error->message);
}

void
store_close(Store *store)
{
	store->ops->close(store->adapter);
	kvc_options_free(store->options);
	g_free(store->path);
}

static GLogWriterOutput
ignore_log(GLogLevelFlags level, const GLogField *fields, gsize n_fields, void *user)
{
	return G_LOG_WRITER_HANDLED;
}

void
log_silence(void)
{
	g_log_set_writer_func(ignore_log, NULL, NULL);
}

/* ---- Random numbers ------------------------------------------------------------------------ */

uint64_t
random_next(uint64_t *state)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
	return x ^ x >> 31;
}

uint32_t
random_below(uint64_t *state, uint32_t n)
{
	return (uint32_t)(random_next(state) % n);
}

uint64_t
test_seed(void)
{
	const char *text = getenv("KVC_TEST_SEED");
	uint64_t seed;

	if (text)
		seed = g_ascii_strtoull(text, NULL, 10);
	else
		assert_int_equal(getrandom(&seed, sizeof(seed), 0), sizeof(seed));
	seed = text ? seed : seed % 1000000000;
	printf("seed %" G_GUINT64_FORMAT " (replay with KVC_TEST_SEED)\n", seed);
	return seed;
}

/* ---- Keys and memory ----------------------------------------------------------------------- */

static KvcObjectKey *
key_new(KvcKeyScope *scope, KvcSpace space, uint32_t number)
{
	g_autofree char *name = g_strdup_printf("n%07u", number);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, strlen(name), NULL);

	assert_non_null(key);
	return key;
}

KvcObjectKey *
chunk(uint32_t number)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);

	return key_new(scope, KVC_SPACE_CHUNK, number);
}

KvcObjectKey *
prefix(uint32_t number)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new("some/model", 0x01000100, 7, "me", NULL);

	return key_new(scope, KVC_SPACE_PREFIX, number);
}

KvcObjectKey *
plain(uint32_t number)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain("some/directory", NULL);

	return key_new(scope, KVC_SPACE_PLAIN, number);
}

KvcMemoryObj
memory_new(size_t bytes, uint64_t seed)
{
	KvcMemoryObj memory = {.bytes = bytes, .mapped_bytes = kvc_io_align_up(bytes)};

	if (bytes == 0)
		return memory;
	memory.data = mmap(NULL, memory.mapped_bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory.data, MAP_FAILED);
	for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
		uint64_t word = random_next(&seed);

		memcpy((uint8_t *)memory.data + at, &word, MIN(sizeof(word), bytes - at));
	}
	return memory;
}

void
memory_free(KvcMemoryObj *memory)
{
	if (memory->data)
		munmap(memory->data, memory->mapped_bytes);
	memory->data = NULL;
}

/* ---- Operations ---------------------------------------------------------------------------- */

void
await_event(int fd)
{
	struct pollfd wait = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&wait, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

int64_t
put_object(Store *store, KvcObjectKey *key, const KvcMemoryObj *memory)
{
	KvcL2StoreResult result;
	KvcL2TaskId id = store->ops->submit_store_task(store->adapter, &key, memory, 1);

	while (store->ops->pop_completed_store_tasks(store->adapter, &result, 1) == 0)
		await_event(store->ops->get_store_event_fd(store->adapter));
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

int64_t
put(Store *store, KvcObjectKey *key, size_t bytes, uint64_t seed)
{
	KvcMemoryObj memory = memory_new(bytes, seed);
	int64_t rc = put_object(store, key, &memory);

	memory_free(&memory);
	return rc;
}

static bool
load(Store *store, KvcObjectKey *key, const KvcMemoryObj *memory)
{
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	KvcL2TaskId id = store->ops->submit_load_task(store->adapter, &key, memory, 1);
	int rc;

	while ((rc = store->ops->query_load_result(store->adapter, id, loaded)) == 0)
		await_event(store->ops->get_load_event_fd(store->adapter));
	assert_int_equal(rc, 1);
	return kvc_bitmap_test(loaded, 0);
}

int
get(Store *store, KvcObjectKey *key, size_t bytes, uint64_t seed)
{
	KvcMemoryObj want = memory_new(bytes, seed), got = memory_new(bytes, ~seed);
	int result = load(store, key, &got);

	if (result == 1 && bytes > 0 && memcmp(want.data, got.data, bytes) != 0)
		result = -1;
	memory_free(&want);
	memory_free(&got);
	return result;
}

bool
find(Store *store, KvcObjectKey *key, KvcL2ObjectInfo *info)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo own = {0};
	KvcL2TaskId id = store->ops->submit_lookup_and_lock_task(store->adapter, &key, 1);
	int rc;

	while ((rc = store->ops->query_lookup_and_lock_result(store->adapter, id, found, &own)) ==
	       0)
		await_event(store->ops->get_lookup_and_lock_event_fd(store->adapter));
	assert_int_equal(rc, 1);
	if (kvc_bitmap_test(found, 0))
		store->ops->submit_unlock(store->adapter, &key, 1);
	if (info)
		*info = own;
	else
		kvc_xattrs_unref(own.xattrs);
	return kvc_bitmap_test(found, 0);
}

bool
delete_key(Store *store, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);

	assert_int_equal(store->ops->delete_keys(store->adapter, &key, 1, deleted), 0);
	return kvc_bitmap_test(deleted, 0);
}

GPtrArray *
list_keys(Store *store)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	KvcL2ListEntry entries[16];
	char *cursor = NULL;

	do {
		ssize_t n = store->ops->list(store->adapter, NULL, &cursor, entries, 16);

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++) {
			g_ptr_array_add(keys, entries[i].key);
			kvc_xattrs_unref(entries[i].info.xattrs);
		}
	} while (cursor);
	return keys;
}

typedef struct Line {
	const char *name;
	char *value;
} Line;

static void
take_line(void *user, const char *name, const char *value)
{
	Line *line = user;

	if (!strcmp(name, line->name) && !line->value)
		line->value = g_strdup(value);
}

char *
line_of(Store *store, const char *name)
{
	Line line = {.name = name};

	store->ops->describe(store->adapter, take_line, &line);
	assert_non_null(line.value);
	return line.value;
}

KvcL2Usage
usage_of(Store *store)
{
	KvcL2Usage usage;

	store->ops->usage(store->adapter, &usage);
	return usage;
}
