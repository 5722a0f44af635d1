/* SPDX-License-Identifier: Apache-2.0 */

/* The L2 adapter "fs": one file an object in a directory. See README.md. */

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/xattr.h>
#include <time.h>
#include <unistd.h>

#include <kvcache/registry.h>

#include "fs.h"

static const KvcOptionSpec fs_options[] = {
	{.name = "base_path",
	 .type = KVC_OPTION_STRING,
	 .required = true,
	 .help = "directory of the objects (absolute; made if absent)"},
	{.name = "use_odirect",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "read and write past the page cache where the file system allows it"},
	{.name = "io_depth_bytes",
	 .type = KVC_OPTION_SIZE,
	 .default_value = "256M",
	 .min = 1 << 20,
	 .max = 1ULL << 40,
	 .help = "bytes of payload in flight"},
	{.name = "workers",
	 .type = KVC_OPTION_INT,
	 .default_value = "4",
	 .min = 1,
	 .max = 64,
	 .help = "threads that open, check and rename files"},
	{.name = "verify_checksum",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "true",
	 .help = "compare each load with the CRC32C of its store"},
	{.name = "layout",
	 .type = KVC_OPTION_STRING,
	 .default_value = "lmcache",
	 .help = "names of the files: lmcache (its fs and fs_native), nixl_dynamic"},
	{.name = "shard_dirs",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "new objects go into ab/cd/, the begin of their hash; both places are read"},
	{.name = "relative_tmp_dir",
	 .type = KVC_OPTION_STRING,
	 .help = "directory below base_path for files being written; not set: beside their name"},
	{.name = "max_capacity_gb",
	 .type = KVC_OPTION_DOUBLE,
	 .default_value = "0",
	 .max = 1 << 30,
	 .help = "GiB of objects, beyond which the chunks used least recently go; 0: no limit"},
	{.name = "fsync",
	 .type = KVC_OPTION_BOOL,
	 .default_value = "false",
	 .help = "a store ends when it is on stable storage, so does a deletion"},
	{.name = "orphan_age_s",
	 .type = KVC_OPTION_INT,
	 .default_value = "0",
	 .max = 1 << 30,
	 .help = "seconds that a temporary file of a dead process is left alone"},
	{.name = NULL},
};

#define GIB (UINT64_C(1) << 30)

static const KvcL2AdapterOps fs_adapter_ops;

static FsAdapter *
adapter_new(const KvcOptions *options)
{
	FsAdapter *fs = g_new0(FsAdapter, 1);
	pthread_condattr_t monotonic;
	struct timespec now;

	fs->base.l2.ops = &fs_adapter_ops;
	fs->base_path = g_strdup(kvc_options_get_string(options, "base_path"));
	fs->want_direct = kvc_options_get_bool(options, "use_odirect");
	fs->verify = kvc_options_get_bool(options, "verify_checksum");
	fs->persist = kvc_options_get_bool(options, "persist_enabled");
	fs->shard_dirs = kvc_options_get_bool(options, "shard_dirs");
	fs->temp_dir = g_strdup(kvc_options_get_string(options, "relative_tmp_dir"));
	fs->fsync = kvc_options_get_bool(options, "fsync");
	fs->orphan_age_s = kvc_options_get_int(options, "orphan_age_s");
	double max_gib = kvc_options_get_double(options, "max_capacity_gb");
	if (max_gib > 0)
		fs->capacity = fs_capacity_new(fs, (uint64_t)(max_gib * (double)GIB));
	fs->base_fd = -1;
	fs->failures = kvc_failures_new("fs", fs->base_path);
	clock_gettime(CLOCK_REALTIME_COARSE, &now); /* what the kernel stamps files with */
	fs->opened_ns = now.tv_sec * INT64_C(1000000000) + now.tv_nsec;

	pthread_mutex_init(&fs->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&fs->closed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	pthread_mutex_init(&fs->replace_lock, NULL);
	fs_keys_init(fs);
	if (!fs->persist)
		fs->ours = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
						 (GDestroyNotify)kvc_object_key_unref, NULL);
	return fs;
}

static void
adapter_free(FsAdapter *fs)
{
	if (fs->base_fd >= 0)
		close(fs->base_fd);
	kvc_task_board_free(fs->base.board);
	g_clear_pointer(&fs->ours, g_hash_table_unref);
	fs_keys_deinit(fs);
	pthread_mutex_destroy(&fs->replace_lock);
	pthread_cond_destroy(&fs->closed);
	pthread_mutex_destroy(&fs->lock);
	kvc_failures_free(fs->failures);
	fs_window_free(fs->window);
	fs_capacity_free(fs->capacity);
	g_free(fs->temp_dir);
	g_free(fs->base_path);
	g_free(fs);
}

static bool
fail(GError **error, int errnum, const char *what, const char *subject)
{
	g_set_error(error, KVC_OPTIONS_ERROR, errnum, "cannot %s \"%s\": %s", what, subject,
		    g_strerror(errnum));
	return false;
}

/*
 * Finds out what the file system can do, on a file without a name, so that status is right from the
 * start. What the probe cannot find out shows with the first object.
 */
static void
probe(FsAdapter *fs)
{
	int fd = openat(fs->base_fd, ".", O_TMPFILE | O_WRONLY | O_CLOEXEC, 0600);

	if (fd < 0)
		return;
	if (fs->want_direct && fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT) < 0)
		fs_note_refused(fs, errno);
	if (fsetxattr(fd, "user.kvcache.size", "0", 1, 0) < 0 && errno == ENOTSUP)
		fs_note_no_xattrs(fs, errno);
	close(fd);
}

static bool
open_directory(FsAdapter *fs, GError **error)
{
	if (!g_path_is_absolute(fs->base_path)) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "base_path \"%s\" is not an absolute path", fs->base_path);
		return false;
	}
	if (g_mkdir_with_parents(fs->base_path, 0755) < 0)
		return fail(error, errno, "make the directory", fs->base_path);
	fs->base_fd = open(fs->base_path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fs->base_fd < 0)
		return fail(error, errno, "open the directory", fs->base_path);
	return true;
}

/* Below base_path, and nowhere where objects are. */
static bool
is_temp_dir_name(const char *path)
{
	g_auto(GStrv) components = g_strsplit(path, "/", -1);

	for (char **component = components; *component; component++)
		if (!**component || !strcmp(*component, ".") || !strcmp(*component, ".."))
			return false;
	return *components && strcmp(*components, FS_PLAIN_DIR) &&
	       strcmp(*components, FS_PREFIX_DIR) && !fs_is_shard_name(*components);
}

static bool
open_temp_dir(FsAdapter *fs, GError **error)
{
	struct stat base, st;

	if (!fs->temp_dir)
		return true;
	if (!is_temp_dir_name(fs->temp_dir)) {
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "option \"relative_tmp_dir\": \"%s\" is not a directory below "
			    "base_path where no objects are",
			    fs->temp_dir);
		return false;
	}
	g_autofree char *file = g_strconcat(fs->temp_dir, "/file", NULL);
	int rc = fs_make_parents(fs, file);
	if (rc == 0 && fstatat(fs->base_fd, fs->temp_dir, &st, 0) < 0)
		rc = -errno;
	if (rc == 0 && !S_ISDIR(st.st_mode))
		rc = -ENOTDIR;
	if (rc == 0 && fstat(fs->base_fd, &base) == 0 && base.st_dev != st.st_dev)
		rc = -EXDEV;
	return rc == 0 || fail(error, -rc, "use the relative_tmp_dir", fs->temp_dir);
}

/* Also without the option: a run before this one may have had it. */
static void
find_shards(FsAdapter *fs)
{
	bool has_shards = fs->shard_dirs;

	for (unsigned i = 0; i < 256 && !has_shards; i++) {
		char name[4];
		struct stat st;

		g_snprintf(name, sizeof(name), "%02x", i);
		has_shards = fstatat(fs->base_fd, name, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
			     S_ISDIR(st.st_mode);
	}
	atomic_store(&fs->has_shards, has_shards);
}

static bool
read_layout(FsAdapter *fs, const KvcOptions *options, GError **error)
{
	static const char *const names[] = {
		[FS_LAYOUT_LMCACHE] = "lmcache",
		[FS_LAYOUT_NIXL_DYNAMIC] = "nixl_dynamic",
	};
	const char *name = kvc_options_get_string(options, "layout");

	for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
		if (strcmp(name, names[i]))
			continue;
		fs->layout = (FsLayout)i;
		return true;
	}
	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
		    "option \"layout\": \"%s\" is none of lmcache, nixl_dynamic", name);
	return false;
}

/* Starts everything that runs; what was started is stopped by stop_threads(). */
static bool
start_threads(FsAdapter *fs, const KvcOptions *options, GError **error)
{
	size_t depth = kvc_options_get_size(options, "io_depth_bytes");
	unsigned workers = (unsigned)kvc_options_get_int(options, "workers");
	/* Stores may fill half of the ring; loads are queued ahead so that it never runs dry. */
	KvcPoolLimit loads = {.max_works = FS_JOBS_MAX, .max_bytes = 2 * depth};
	KvcPoolLimit stores = {.max_works = FS_JOBS_MAX, .max_bytes = depth / 2};
	int rc;

	fs->base.board = kvc_task_board_new(fs_task_clear, error);
	if (!fs->base.board)
		return false;
	fs->io = kvc_io_new("kvc-fs-ring", depth, error);
	if (!fs->io)
		return false;
	fs->workers = kvc_pool_new("kvc-fs-work", workers, &loads, &stores, error);
	if (!fs->workers)
		return false;
	fs->lookups = kvc_pool_new("kvc-fs-lookup", FS_LOOKUP_THREADS, NULL, NULL, error);
	if (!fs->lookups)
		return false;
	rc = -pthread_create(&fs->janitor, NULL, fs_janitor_main, fs);
	/* The last one: it ends when the adapter is closed only. */
	if (rc == 0)
		rc = -pthread_create(&fs->watcher, NULL, fs_place_main, fs);
	if (rc < 0)
		return fail(error, -rc, "start the threads for", fs->base_path);
	pthread_setname_np(fs->janitor, "kvc-fs-janitor");
	pthread_setname_np(fs->watcher, "kvc-fs-watcher");
	return true;
}

/* Workers before the ring (they submit to it), both before either is freed (it pushes to them). */
static void
stop_threads(FsAdapter *fs)
{
	if (fs->watcher)
		pthread_join(fs->watcher, NULL);
	if (fs->janitor)
		pthread_join(fs->janitor, NULL);
	kvc_pool_stop(fs->workers);
	kvc_pool_stop(fs->lookups);
	kvc_io_free(fs->io);
	kvc_pool_free(fs->workers);
	kvc_pool_free(fs->lookups);
}

static void
stop_sleepers(FsAdapter *fs)
{
	pthread_mutex_lock(&fs->lock);
	atomic_store(&fs->closing, true);
	pthread_cond_broadcast(&fs->closed);
	pthread_mutex_unlock(&fs->lock);
}

static KvcL2Adapter *
fs_open(const KvcOptions *options, GError **error)
{
	FsAdapter *fs = adapter_new(options);

	if (!read_layout(fs, options, error) || !open_directory(fs, error) ||
	    !open_temp_dir(fs, error)) {
		adapter_free(fs);
		return NULL;
	}
	probe(fs);
	find_shards(fs);
	fs_note_space(fs);
	if (!start_threads(fs, options, error)) {
		stop_sleepers(fs);
		stop_threads(fs);
		adapter_free(fs);
		return NULL;
	}
	return &fs->base.l2;
}

static void
fs_close(KvcL2Adapter *adapter)
{
	FsAdapter *fs = (FsAdapter *)adapter;

	stop_sleepers(fs);
	kvc_task_board_await_idle(fs->base.board);
	stop_threads(fs);
	fs_remove_stored(fs);
	adapter_free(fs);
}

static KvcL2TaskId
fs_submit_store_task(KvcL2Adapter *adapter,
		     KvcObjectKey *const *keys,
		     const KvcMemoryObj *objects,
		     size_t n)
{
	return fs_submit(adapter, KVC_TASK_STORE, keys, objects, n);
}

static KvcL2TaskId
fs_submit_lookup_and_lock_task(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return fs_submit(adapter, KVC_TASK_LOOKUP, keys, NULL, n);
}

static void
fs_submit_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	fs_keys_unlock_many((FsAdapter *)adapter, keys, n);
}

static KvcL2TaskId
fs_submit_load_task(KvcL2Adapter *adapter,
		    KvcObjectKey *const *keys,
		    const KvcMemoryObj *objects,
		    size_t n)
{
	return fs_submit(adapter, KVC_TASK_LOAD, keys, objects, n);
}

static int
fs_delete_keys_slot(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	return fs_delete_keys((FsAdapter *)adapter, keys, n, deleted);
}

static int
fs_set_attributes_slot(KvcL2Adapter *adapter,
		       KvcObjectKey *key,
		       const KvcObjectAttributes *attributes)
{
	return fs_set_attributes((FsAdapter *)adapter, key, attributes);
}

static int
fs_rename_key_slot(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	return fs_rename_key((FsAdapter *)adapter, old_key, new_key);
}

static ssize_t
fs_list_slot(KvcL2Adapter *adapter,
	     const KvcKeyScope *scope,
	     char **cursor,
	     KvcL2ListEntry *entries,
	     size_t max)
{
	return fs_list((FsAdapter *)adapter, scope, cursor, entries, max);
}

static int
fs_get_changes_slot(KvcL2Adapter *adapter,
		    const KvcKeyScope *scope,
		    uint64_t *stamp,
		    int64_t *changed_ns)
{
	return fs_get_changes((FsAdapter *)adapter, scope, stamp, changed_ns);
}

static void
fs_usage_slot(KvcL2Adapter *adapter, KvcL2Usage *usage)
{
	fs_usage((FsAdapter *)adapter, usage);
}

static void
fs_describe_slot(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	fs_describe((FsAdapter *)adapter, func, user);
}

static const KvcL2AdapterOps fs_adapter_ops = {
	.api = KVC_L2_ADAPTER_API,
	.struct_size = sizeof(KvcL2AdapterOps),
	.type_name = "fs",
	.summary = "one file an object in a directory, as LMCache's fs adapter names them",
	.options = fs_options,
	.shared_by_default = true,
	.open = fs_open,
	.close = fs_close,
	KVC_TASK_BOARD_SLOTS,
	.submit_store_task = fs_submit_store_task,
	.submit_lookup_and_lock_task = fs_submit_lookup_and_lock_task,
	.submit_unlock = fs_submit_unlock,
	.submit_load_task = fs_submit_load_task,
	.delete_keys = fs_delete_keys_slot,
	.rename_key = fs_rename_key_slot,
	.set_attributes = fs_set_attributes_slot,
	.list = fs_list_slot,
	.get_changes = fs_get_changes_slot,
	.usage = fs_usage_slot,
	.describe = fs_describe_slot,
};

KVC_REGISTER(kvc_register_l2_adapter, fs_adapter_ops)
