/* SPDX-License-Identifier: Apache-2.0 */

/* The files of .kvcache: texts made when they are opened, and paths written to be acted on. */

#include "config.h"
#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

#define EVICT_WAIT_NS INT64_C(1000000000)
#define CHAIN_STEP_NS (INT64_C(100) * 1000 * 1000)
#define EVICT_RETRY_NS INT64_C(20000000)

typedef struct Control {
	const char *name;
	mode_t mode;
	GString *(*text)(Kvcfs *fs);
	void (*act)(fuse_req_t req, Kvcfs *fs, GPtrArray *keys, size_t size);
} Control;

/* ---- Texts --------------------------------------------------------------------------------- */

static void
append_line(void *user, const char *name, const char *value)
{
	g_string_append_printf(user, "%s %s\n", name, value);
}

static void G_GNUC_PRINTF(3, 4)
	append_format(GString *text, const char *name, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_string_append_printf(text, "%s ", name);
	g_string_append_vprintf(text, format, args);
	g_string_append_c(text, '\n');
	va_end(args);
}

/* Of the mount, not of the engine. */
static void
append_mount_status(GString *text, Kvcfs *fs)
{
	int64_t now = kvcfs_now_ns(), oldest;
	unsigned waiting = kvcfs_pendings_count(fs->pendings, &oldest);
	append_line(text, "version", KVC_VERSION);
	append_format(text, "pid", "%d", (int)getpid());
	append_format(text, "uptime_seconds", "%" PRId64, (now - fs->start_ns) / 1000000000);
	append_line(text, "mount_point", fs->config.mount_point);
	append_line(text, "io_mode", fs->is_passthrough ? "passthrough" : "direct");
	append_line(text, "draining",
		    __atomic_load_n(&fs->is_draining, __ATOMIC_RELAXED) ? "yes" : "no");
	append_format(text, "requests_waiting", "%u", waiting);
	append_format(text, "oldest_request_seconds", "%.3f",
		      waiting > 0 ? (double)(now - oldest) / 1e9 : 0.0);
}

static GString *
status_text(Kvcfs *fs)
{
	GString *text = g_string_new(NULL);
	GString *engine = g_string_new(NULL);
	kvc_storage_manager_report_status(fs->sm, append_line, engine);
	/* Health comes first, then how the mount does its I/O. */
	char *rest = strchr(engine->str, '\n');
	KvcRecordLogStatus log;
	kvcfs_dir_log_get_status(fs->dir_log, &log);
	if (log.error && g_str_has_prefix(engine->str, "health ok\n"))
		append_line(text, "health", "degraded");
	else
		g_string_append_len(text, engine->str, rest + 1 - engine->str);
	append_mount_status(text, fs);
	append_line(text, "directory_log", log.error ? g_strerror(-log.error) : "ok");
	g_string_append(text, rest + 1);
	g_string_free(engine, TRUE);
	return text;
}

static GString *
stats_text(Kvcfs *fs)
{
	GString *text = g_string_new(NULL);
	kvc_storage_manager_report_stats(fs->sm, append_line, text);
	for (size_t i = 0; i < KVCFS_N_STATS; i++)
		g_string_append_printf(text, "mount_%s %" PRIu64 "\n", kvcfs_stat_names[i],
				       __atomic_load_n(&fs->stats[i], __ATOMIC_RELAXED));
	return text;
}

static GString *
config_text(Kvcfs *fs)
{
	return g_string_new(fs->config.options_text);
}

/* ---- evict --------------------------------------------------------------------------------- */

typedef struct Evict {
	Kvcfs *fs;
	GPtrArray *keys; /* owned; what is left to do */
	size_t size;
	int64_t deadline_ns;
} Evict;

static void evict_step(fuse_req_t req, Evict *evict);

static void
evict_end(fuse_req_t req, Evict *evict, int errnum)
{
	if (errnum)
		fuse_reply_err(req, errnum);
	else
		fuse_reply_write(req, evict->size);
	g_ptr_array_unref(evict->keys);
	g_free(evict);
}

static void
evict_again(fuse_req_t req, KvcfsWake why, void *user)
{
	if (why == KVCFS_WAKE_INTERRUPT)
		evict_end(req, user, EINTR);
	else
		evict_step(req, user);
}

/* What is locked, loading or on its way to L2 is waited for, 1 s. */
static void
evict_step(fuse_req_t req, Evict *evict)
{
	Kvcfs *fs = evict->fs;
	for (guint i = 0; i < evict->keys->len;) {
		if (kvc_storage_manager_evict(fs->sm, evict->keys->pdata[i]) == -EBUSY)
			i++;
		else
			g_ptr_array_remove_index_fast(evict->keys, i);
	}
	int64_t now = kvcfs_now_ns();
	if (evict->keys->len == 0)
		evict_end(req, evict, 0);
	else if (now >= evict->deadline_ns)
		evict_end(req, evict, EBUSY);
	else
		kvcfs_pending_release(kvcfs_pending_new(fs->pendings, req, now + EVICT_RETRY_NS,
							evict_again, evict));
}

static void
act_evict(fuse_req_t req, Kvcfs *fs, GPtrArray *keys, size_t size)
{
	Evict *evict = g_new(Evict, 1);
	*evict = (Evict){fs, g_ptr_array_ref(keys), size, kvcfs_now_ns() + EVICT_WAIT_NS};
	evict_step(req, evict);
}

/* ---- flush --------------------------------------------------------------------------------- */

static void
reply_flush(fuse_req_t req, int error, size_t size)
{
	if (error < 0)
		fuse_reply_err(req, EIO);
	else
		fuse_reply_write(req, size);
}

static void
act_flush(fuse_req_t req, Kvcfs *fs, GPtrArray *keys, size_t size)
{
	KvcfsFlushWait *wait = kvcfs_flush_wait_new(fs, req, keys->len + 2, reply_flush, size);
	for (guint i = 0; i < keys->len; i++)
		kvc_storage_manager_flush(fs->sm, keys->pdata[i], kvcfs_flush_wait_done, wait);
	kvc_storage_manager_sync_deletions(fs->sm, kvcfs_flush_wait_done, wait);
	kvcfs_dir_log_sync(fs->dir_log, kvcfs_flush_wait_done, wait);
}

/* ---- The table ----------------------------------------------------------------------------- */

static const Control controls[] = {
	{"status", 0444, status_text, NULL}, {"stats", 0444, stats_text, NULL},
	{"config", 0444, config_text, NULL}, {"evict", 0600, NULL, act_evict},
	{"flush", 0600, NULL, act_flush},    {"prefetch", 0600, NULL, kvcfs_control_act_prefetch},
};

int
kvcfs_control_count(void)
{
	return (int)G_N_ELEMENTS(controls);
}

const char *
kvcfs_control_name(int control)
{
	return controls[control].name;
}

mode_t
kvcfs_control_mode(int control)
{
	return controls[control].mode;
}

bool
kvcfs_is_control_root(const KvcfsInode *dir, const char *name)
{
	return dir == dir->fs->root && strcmp(name, KVCFS_CONTROL_DIR) == 0;
}

KvcfsInode *
kvcfs_control_lookup(Kvcfs *fs, const char *name)
{
	KvcfsInode *inode = NULL;
	pthread_mutex_lock(&fs->names);
	for (size_t i = 0; i < G_N_ELEMENTS(controls); i++)
		if (strcmp(controls[i].name, name) == 0)
			inode = kvcfs_inode_ref_locked(fs->controls->pdata[i]);
	pthread_mutex_unlock(&fs->names);
	return inode;
}

void
kvcfs_control_open(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	const Control *control = &controls[inode->control];
	kvcfs_loop_hand_over(); /* a text is made from much */
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY;
	if (is_write ? !control->act : !control->text) {
		fuse_reply_err(req, EACCES);
		return;
	}
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_CONTROL_WRITE : KVCFS_HANDLE_TEXT, inode);
	if (control->text)
		handle->text = control->text(inode->fs);
	fi->fh = (uintptr_t)handle;
	fi->direct_io = 1;
	if (kvcfs_reply_open(req, fi, 0) != 0)
		kvcfs_handle_free(handle);
}

/* ---- Paths that are written ---------------------------------------------------------------- */

static void
add_listed_keys(Kvcfs *fs, KvcfsInode *dir, GPtrArray *keys)
{
	KvcListEntry entries[64];
	uint64_t after = 0;
	size_t n;
	do {
		n = kvc_storage_manager_list(fs->sm, dir->scope, UINT32_MAX, after, entries,
					     G_N_ELEMENTS(entries));
		for (size_t i = 0; i < n; i++) {
			after = entries[i].info.sequence;
			g_ptr_array_add(keys, entries[i].key);
		}
	} while (n > 0);
}

static void
add_prefix_keys(KvcfsInode *prefix, GPtrArray *keys)
{
	g_autoptr(GPtrArray) chain = kvcfs_prefix_keys(prefix);
	for (guint i = 0; i < chain->len; i++)
		g_ptr_array_add(keys, kvc_object_key_ref(chain->pdata[i]));
	g_ptr_array_add(keys, kvc_object_key_ref(prefix->key));
}

/* What a directory stands for: everything below it. */
static void
add_dir_keys(KvcfsInode *dir, GPtrArray *keys)
{
	if (dir->kind == KVCFS_PREFIX) {
		add_prefix_keys(dir, keys);
		return;
	}
	g_autoptr(GPtrArray) dirs = kvcfs_tree_dirs_below(dir);
	for (guint i = 0; i < dirs->len; i++) {
		add_listed_keys(dir->fs, dirs->pdata[i], keys);
		kvcfs_inode_unref(dirs->pdata[i], 1);
	}
}

/* For a whole directory, what no other tier has is passed over: it cannot go. */
static void
keep_replicated(Kvcfs *fs, GPtrArray *keys, guint first)
{
	for (guint i = first; i < keys->len;) {
		KvcObjectInfo info;
		bool has_copy = kvc_storage_manager_stat(fs->sm, keys->pdata[i], &info) == 0 &&
				(info.tiers & ~KVC_TIER_L1);
		if (has_copy)
			i++;
		else
			g_ptr_array_remove_index_fast(keys, i);
	}
}

static int
add_object_key(Kvcfs *fs, const char *const *names, size_t n, GPtrArray *keys)
{
	KvcfsInode *dir = n > 0 ? kvcfs_tree_resolve(fs, names, n - 1) : NULL;
	if (!dir)
		return -ENOENT;
	g_autoptr(KvcObjectKey) key =
		dir->scope ? kvcfs_name_to_key(dir->scope, names[n - 1]) : NULL;
	bool found = key && kvcfs_dir_has_object(dir, key);
	if (found)
		g_ptr_array_add(keys, g_steal_pointer(&key));
	kvcfs_inode_unref(dir, 1);
	return found ? 0 : -ENOENT;
}

/* Splits a path below the root; NULL: '.' or '..' in it. */
static GPtrArray *
split_path(char **parts)
{
	g_autoptr(GPtrArray) components = g_ptr_array_new();
	for (char **p = parts; *p; p++) {
		if (strcmp(*p, ".") == 0 || strcmp(*p, "..") == 0)
			return NULL;
		if (**p)
			g_ptr_array_add(components, *p);
	}
	return g_steal_pointer(&components);
}

static int
add_path_keys(Kvcfs *fs, const char *path, GPtrArray *keys, bool is_evict)
{
	const char *mount_point = fs->config.mount_point;
	size_t len = mount_point ? strlen(mount_point) : 0;
	if (len > 0 && strncmp(path, mount_point, len) == 0 && (path[len] == '/' || !path[len]))
		path += len;
	g_auto(GStrv) parts = g_strsplit(path, "/", -1);
	g_autoptr(GPtrArray) components = split_path(parts);
	if (!components)
		return -EINVAL;
	const char *const *names = (const char *const *)components->pdata;
	KvcfsInode *dir = kvcfs_tree_resolve(fs, names, components->len);
	if (!dir)
		return add_object_key(fs, names, components->len, keys);
	guint first = keys->len;
	add_dir_keys(dir, keys);
	if (is_evict)
		keep_replicated(fs, keys, first);
	kvcfs_inode_unref(dir, 1);
	return 0;
}

/* A write to a control file. */
typedef struct Command {
	KvcfsInode *inode; /* owned reference */
	char *text;	   /* owned */
	size_t len;
	int64_t deadline_ns; /* for the chains of a flush */
} Command;

static int
find_keys(Command *command, GPtrArray *keys)
{
	const Control *control = &controls[command->inode->control];
	g_auto(GStrv) lines = g_strsplit(command->text, "\n", -1);
	bool has_path = false;
	int rc = strlen(command->text) == command->len ? 0 : -EINVAL;
	for (char **line = lines; rc == 0 && *line; line++) {
		if (!**line)
			continue;
		has_path = true;
		rc = add_path_keys(command->inode->fs, *line, keys, control->act == act_evict);
	}
	return rc == 0 && !has_path ? -EINVAL : rc;
}

static void
run_command(fuse_req_t req, KvcfsWake why, void *user)
{
	Command *command = user;
	Kvcfs *fs = command->inode->fs;
	const Control *control = &controls[command->inode->control];
	g_autoptr(GPtrArray) keys =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	int64_t now = kvcfs_now_ns();
	int rc = why == KVCFS_WAKE_INTERRUPT ? -EINTR : kvcfs_prefix_save_all(fs);
	if (rc == -EAGAIN && control->act == act_flush && now < command->deadline_ns) {
		kvcfs_pending_release(kvcfs_pending_new(fs->pendings, req, now + CHAIN_STEP_NS,
							run_command, command));
		return;
	}
	if (rc < 0 && rc != -EINTR) /* a chain could not be written: chains_save_failed */
		rc = control->act == act_flush ? -EIO : 0;
	if (rc == 0)
		rc = find_keys(command, keys);
	size_t len = command->len;
	kvcfs_inode_unref(command->inode, 1);
	g_free(command->text);
	g_free(command);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		control->act(req, fs, keys, len);
}

void
kvcfs_control_write(fuse_req_t req, KvcfsInode *inode, const char *data, size_t len)
{
	Kvcfs *fs = inode->fs;
	Command *command = g_new(Command, 1);
	*command = (Command){kvcfs_inode_ref(inode), g_strndup(data, len), len,
			     kvcfs_now_ns() + fs->config.load_timeout_ns};
	/* What the caller has closed is meant as well. */
	kvcfs_wait_for_commit(fs, req, &(KvcfsClosingFilter){0}, run_command, command);
}
