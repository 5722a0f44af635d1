/* SPDX-License-Identifier: Apache-2.0 */

#include "test-fs-util.h"

#include <dirent.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/fsuid.h>
#include <sys/mount.h>
#include <sys/xattr.h>
#include <unistd.h>

char *
dir_new(const char *parent)
{
	char *dir = g_strdup_printf("%s/kvcache-test-fs-XXXXXX", parent);

	assert_non_null(g_mkdtemp(dir));
	return dir;
}

const char *
temp_parent(void)
{
	const char *dir = getenv("TMPDIR");

	return dir ? dir : "/var/tmp";
}

void
remove_tree(const char *path)
{
	DIR *dir = opendir(path);
	const struct dirent *entry;

	while (dir && (entry = readdir(dir))) {
		g_autofree char *below = g_build_filename(path, entry->d_name, NULL);

		if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
			continue;
		if (unlink(below) < 0)
			remove_tree(below);
	}
	if (dir)
		closedir(dir);
	rmdir(path);
}

/* Opens an adapter on DIR (kept); EXTRA: more options. */
void
fs_open(Fs *fs, const char *dir, const char *extra)
{
	g_autofree char *text = g_strdup_printf("type=fs,base_path=%s%s", dir, extra);
	GError *error = NULL;

	fs->dir = g_strdup(dir);
	fs->adapter = kvc_l2_adapter_open(text, &fs->options, &error);
	if (!fs->adapter)
		fail_msg("%s", error->message);
	fs->ops = fs->adapter->ops;
}

void
fs_close(Fs *fs)
{
	fs->ops->close(fs->adapter);
	kvc_options_free(fs->options);
	g_free(fs->dir);
}

void
fs_new(Fs *fs, const char *extra)
{
	g_autofree char *dir = dir_new(temp_parent());

	fs_open(fs, dir, extra);
}

void
fs_free(Fs *fs)
{
	g_autofree char *dir = g_strdup(fs->dir);

	fs_close(fs);
	remove_tree(dir);
}

KvcObjectKey *
key_new(const char *model,
	uint32_t rank,
	uint32_t group,
	const char *salt,
	KvcSpace space,
	const void *name,
	size_t len)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new(model, rank, group, salt, NULL);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, len, NULL);

	assert_non_null(key);
	return key;
}

KvcObjectKey *
chunk(uint32_t number)
{
	uint8_t hash[4] = {(uint8_t)(number >> 24), (uint8_t)(number >> 16), (uint8_t)(number >> 8),
			   (uint8_t)number};

	return key_new("org/model", 0x01000100, 0, NULL, KVC_SPACE_CHUNK, hash, sizeof(hash));
}

KvcObjectKey *
chain(const char *name)
{
	return key_new("org/model", 0x01000100, 0, NULL, KVC_SPACE_PREFIX, name, strlen(name));
}

KvcObjectKey *
plain(const char *directory, const char *name)
{
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain(directory, NULL);
	KvcObjectKey *key = kvc_object_key_new(scope, KVC_SPACE_PLAIN, name, strlen(name), NULL);

	assert_non_null(key);
	return key;
}

KvcObjectKey *
numbered_chain(uint32_t number)
{
	g_autofree char *name = g_strdup_printf("p%u", number);

	return chain(name);
}

KvcMemoryObj
object_new(size_t bytes, uint32_t seed)
{
	KvcMemoryObj object = {NULL, bytes, kvc_io_align_up(bytes)};
	uint64_t x = seed * UINT64_C(2654435761) + 1;

	if (bytes == 0)
		return object;
	uint64_t *words = object.data = aligned_alloc(4096, object.mapped_bytes);
	for (size_t i = 0; i < object.mapped_bytes / sizeof(*words); i++)
		words[i] = x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
	memset((char *)object.data + bytes, 0, object.mapped_bytes - bytes);
	return object;
}

void
await_event(int fd)
{
	struct pollfd poll_fd = {fd, POLLIN, 0};

	assert_int_equal(poll(&poll_fd, 1, 60000), 1);
	kvc_eventfd_drain(fd);
}

int64_t
store_many(Fs *fs, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n)
{
	KvcL2TaskId id = fs->ops->submit_store_task(fs->adapter, keys, objects, n);
	KvcL2StoreResult result;

	await_event(fs->ops->get_store_event_fd(fs->adapter));
	assert_int_equal(fs->ops->pop_completed_store_tasks(fs->adapter, &result, 1), 1);
	assert_int_equal(result.task_id, id);
	return result.bytes_transferred;
}

int64_t
store(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed)
{
	KvcMemoryObj object = object_new(bytes, seed);
	int64_t result = store_many(fs, &key, &object, 1);

	free(object.data);
	return result;
}

KvcBitmap *
load_many(Fs *fs, KvcObjectKey *const *keys, const KvcMemoryObj *objects, size_t n)
{
	KvcBitmap *loaded = kvc_bitmap_new(n);
	KvcL2TaskId id = fs->ops->submit_load_task(fs->adapter, keys, objects, n);
	int rc;

	while ((rc = fs->ops->query_load_result(fs->adapter, id, loaded)) == 0)
		await_event(fs->ops->get_load_event_fd(fs->adapter));
	assert_int_equal(rc, 1);
	assert_int_equal(fs->ops->query_load_result(fs->adapter, id, loaded), -ENOENT);
	kvc_eventfd_drain(fs->ops->get_load_event_fd(fs->adapter));
	return loaded;
}

/* Does KEY load, and are its bytes those of SEED? */
bool
load(Fs *fs, KvcObjectKey *key, size_t bytes, uint32_t seed)
{
	KvcMemoryObj object = object_new(bytes, seed + 1), expected = object_new(bytes, seed);
	g_autoptr(KvcBitmap) loaded = load_many(fs, &key, &object, 1);
	bool result = kvc_bitmap_test(loaded, 0);

	if (result && bytes > 0)
		assert_memory_equal(object.data, expected.data, bytes);
	free(object.data);
	free(expected.data);
	return result;
}

bool
lookup_and_lock(Fs *fs, KvcObjectKey *key, KvcL2ObjectInfo *info)
{
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2TaskId id = fs->ops->submit_lookup_and_lock_task(fs->adapter, &key, 1);

	await_event(fs->ops->get_lookup_and_lock_event_fd(fs->adapter));
	assert_int_equal(fs->ops->query_lookup_and_lock_result(fs->adapter, id, found, info), 1);
	return kvc_bitmap_test(found, 0);
}

bool
delete_key(Fs *fs, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);

	assert_int_equal(fs->ops->delete_keys(fs->adapter, &key, 1, deleted), 0);
	return kvc_bitmap_test(deleted, 0);
}

typedef struct Wanted {
	const char *name;
	char *value;
} Wanted;

static void
note_line(void *user, const char *name, const char *value)
{
	Wanted *wanted = user;

	if (!strcmp(name, wanted->name))
		wanted->value = g_strdup(value);
}

void
assert_describes(Fs *fs, const char *name, const char *value)
{
	Wanted wanted = {name, NULL};

	fs->ops->describe(fs->adapter, note_line, &wanted);
	assert_non_null(wanted.value);
	assert_string_equal(wanted.value, value);
	g_free(wanted.value);
}

char *
path_of(Fs *fs, const char *name)
{
	return g_build_filename(fs->dir, name, NULL);
}

bool
exists(Fs *fs, const char *name)
{
	g_autofree char *path = path_of(fs, name);

	return access(path, F_OK) == 0;
}

void
put_file(Fs *fs, const char *name, const void *data, size_t bytes)
{
	g_autofree char *path = path_of(fs, name);

	assert_true(g_file_set_contents(path, data, (gssize)bytes, NULL));
}

KvcL2Usage
usage_of(Fs *fs)
{
	KvcL2Usage usage;

	fs->ops->usage(fs->adapter, &usage);
	return usage;
}

/* The keys in the order of the listing, in pages of PAGE. */
GPtrArray *
list_keys(Fs *fs, const KvcKeyScope *scope, size_t page)
{
	GPtrArray *keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	g_autofree KvcL2ListEntry *entries = g_new0(KvcL2ListEntry, page);
	char *cursor = NULL;

	do {
		ssize_t n = fs->ops->list(fs->adapter, scope, &cursor, entries, page);

		assert_in_range(n, 0, page);
		for (ssize_t i = 0; i < n; i++)
			g_ptr_array_add(keys, entries[i].key);
	} while (cursor);
	return keys;
}

/* How often KEY is listed. */
size_t
count_listed(Fs *fs, const KvcObjectKey *key)
{
	g_autoptr(GPtrArray) keys = list_keys(fs, NULL, 5);
	size_t n = 0;

	for (guint i = 0; i < keys->len; i++)
		n += kvc_object_key_equal(keys->pdata[i], key) ? 1 : 0;
	return n;
}

/* The xattr of the file NAME as text (transfer full), or NULL when there is none. */
char *
xattr_of(Fs *fs, const char *name, const char *xattr)
{
	g_autofree char *path = path_of(fs, name);
	char text[4096];
	ssize_t len = getxattr(path, xattr, text, sizeof(text));

	return len < 0 ? NULL : g_strndup(text, (gsize)len);
}

typedef struct Ramfs {
	void (*check)(Fs *fs);
	bool is_skipped;
} Ramfs;

static void *
ramfs_main(void *user)
{
	Ramfs *ramfs = user;
	g_autofree char *dir = dir_new(temp_parent());
	Fs fs;

	ramfs->is_skipped = unshare(CLONE_FS | CLONE_NEWNS) < 0 ||
			    mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
			    mount("ramfs", dir, "ramfs", 0, NULL) < 0;
	if (!ramfs->is_skipped) {
		fs_open(&fs, dir, "");
		ramfs->check(&fs);
		fs_close(&fs);
		umount(dir);
	}
	rmdir(dir);
	return NULL;
}

/*
 * Runs CHECK on an adapter on ramfs, which refuses O_DIRECT and has no user xattrs. In a thread, so
 * that the name space of the other tests stays as it is; skips the test without the right to mount.
 */
void
run_on_ramfs(void (*check)(Fs *fs))
{
	Ramfs ramfs = {check, false};
	pthread_t thread;

	assert_int_equal(pthread_create(&thread, NULL, ramfs_main, &ramfs), 0);
	pthread_join(thread, NULL);
	if (ramfs.is_skipped)
		skip();
}

/* What is logged while a test wants to know. */
static struct {
	pthread_mutex_t lock;
	GString *text;
} logged = {PTHREAD_MUTEX_INITIALIZER, NULL};

static GLogWriterOutput
on_log(GLogLevelFlags level, const GLogField *fields, gsize n, void *user)
{
	pthread_mutex_lock(&logged.lock);
	bool is_wanted = logged.text;
	for (gsize i = 0; is_wanted && i < n; i++)
		if (!strcmp(fields[i].key, "MESSAGE"))
			g_string_append_printf(logged.text, "%s\n", (const char *)fields[i].value);
	pthread_mutex_unlock(&logged.lock);
	return is_wanted ? G_LOG_WRITER_HANDLED : g_log_writer_default(level, fields, n, user);
}

void
log_begin(void)
{
	static bool is_set;

	if (!is_set)
		g_log_set_writer_func(on_log, NULL, NULL); /* once in a process */
	is_set = true;
	pthread_mutex_lock(&logged.lock);
	logged.text = g_string_new(NULL);
	pthread_mutex_unlock(&logged.lock);
}

/* How often TEXT was logged since the begin. */
int
log_count(const char *text)
{
	int n = 0;

	pthread_mutex_lock(&logged.lock);
	for (const char *at = logged.text->str; (at = strstr(at, text)); at++)
		n++;
	pthread_mutex_unlock(&logged.lock);
	return n;
}

void
log_end(void)
{
	pthread_mutex_lock(&logged.lock);
	g_string_free(g_steal_pointer(&logged.text), TRUE);
	pthread_mutex_unlock(&logged.lock);
}

/* An adapter whose threads are not root to the file system (those of a mount are, often). */
void
fs_open_unprivileged(Fs *fs, const char *dir)
{
	if (geteuid() == 0) {
		assert_int_equal(chown(dir, 65534, (gid_t)-1), 0);
		setfsuid(65534);
	}
	fs_open(fs, dir, "");
	setfsuid(geteuid());
}

/* A listing as the thread of such an adapter does it. */
ssize_t
list_unprivileged(Fs *fs, char **cursor, KvcL2ListEntry *entries, size_t max)
{
	if (geteuid() == 0)
		setfsuid(65534);
	ssize_t n = fs->ops->list(fs->adapter, NULL, cursor, entries, max);
	setfsuid(geteuid());
	for (ssize_t i = 0; i < n; i++)
		kvc_object_key_unref(entries[i].key);
	return n;
}
