/* SPDX-License-Identifier: Apache-2.0 */

/* The file system as a whole: building it, its session, taking it apart; and the table of
 * operations. */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <malloc.h>
#include <string.h>
#include <unistd.h>

/* Inodes that the kernel has forgotten, until their memory is given back. */
#define TRIM_AFTER 10000

const char *const kvcfs_stat_names[KVCFS_N_STATS] = {
#define X(name, help) [KVCFS_STAT_##name] = #name,
	KVCFS_STATS(X)
#undef X
};

/* ---- From the engine: any thread, only posts ------------------------------------------------ */

static void
on_key_lost(void *user, KvcObjectKey *key)
{
	Kvcfs *fs = user;
	kvcfs_notifier_key_lost(fs->notifier, key);
}

static void
on_scope_known(void *user, KvcKeyScope *scope)
{
	Kvcfs *fs = user;
	__atomic_fetch_add(&fs->scopes_version, 1, __ATOMIC_ACQ_REL);
}

/* ---- Building ------------------------------------------------------------------------------ */

static void
make_tables(Kvcfs *fs)
{
	fs->dirs = g_hash_table_new(NULL, NULL);
	fs->objects = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	fs->renounced = g_hash_table_new(NULL, NULL);
	fs->prefixes = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	fs->closing = g_hash_table_new(NULL, NULL);
	fs->guesses = g_hash_table_new(NULL, NULL);
	fs->writing = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					    (GDestroyNotify)kvc_object_key_unref,
					    (GDestroyNotify)g_ptr_array_unref);
	fs->published = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					      (GDestroyNotify)kvc_object_key_unref, g_free);
	fs->checked = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					    (GDestroyNotify)kvc_object_key_unref, g_free);
	fs->redirects = g_hash_table_new(NULL, NULL);
	fs->handles = g_hash_table_new(NULL, NULL);
	fs->held_dirs = g_ptr_array_new();
	fs->open_prefixes = g_ptr_array_new();
}

static void
make_fixed_inodes(Kvcfs *fs)
{
	int64_t now = kvcfs_wall_ns();
	g_autoptr(KvcKeyScope) scope = kvc_key_scope_new_plain("", NULL);
	fs->next_ino = FUSE_ROOT_ID;
	pthread_mutex_lock(&fs->names);
	fs->root = kvcfs_inode_new_locked(fs, KVCFS_DIR, NULL, "", scope);
	g_hash_table_insert(fs->dirs, scope, fs->root);
	fs->root->mtime_ns = now;
	fs->root->uid = getuid();
	fs->root->gid = getgid();
	fs->control_root =
		kvcfs_inode_new_locked(fs, KVCFS_CONTROL_ROOT, fs->root, KVCFS_CONTROL_DIR, NULL);
	fs->control_root->mtime_ns = now;
	fs->controls = g_ptr_array_new();
	for (int i = 0; i < kvcfs_control_count(); i++) {
		KvcfsInode *control = kvcfs_inode_new_locked(fs, KVCFS_CONTROL, fs->control_root,
							     kvcfs_control_name(i), NULL);
		control->control = i;
		control->mode = S_IFREG | kvcfs_control_mode(i);
		control->mtime_ns = now;
		g_ptr_array_add(fs->controls, control);
	}
	pthread_mutex_unlock(&fs->names);
}

typedef struct Copy {
	void (*run)(void *user);
	void *user;
} Copy;

static void
run_copy(void *data, void *user)
{
	Copy *copy = data;
	copy->run(copy->user);
	g_free(copy);
}

void
kvcfs_copy(Kvcfs *fs, void (*run)(void *user), void *user)
{
	Copy *copy = g_new(Copy, 1);
	*copy = (Copy){run, user};
	g_thread_pool_push(fs->copier, copy, NULL);
}

/* What was asked for is done. */
static void
end_copies(Kvcfs *fs)
{
	GThreadPool *copier = g_steal_pointer(&fs->copier);
	if (copier)
		g_thread_pool_free(copier, FALSE, TRUE);
}

static void
free_parts(Kvcfs *fs)
{
	end_copies(fs);
	if (fs->sm) {
		kvcfs_inodes_free_stagings(fs);
		kvc_storage_manager_free(fs->sm);
	}
	kvcfs_notifier_free(fs->notifier);
	kvcfs_pendings_free(fs->pendings);
	kvcfs_inodes_free_all(fs);
	kvcfs_dir_log_free(fs->dir_log);
	g_ptr_array_unref(fs->controls);
	g_hash_table_unref(fs->handles);
	g_hash_table_unref(fs->dirs);
	g_hash_table_unref(fs->objects);
	g_hash_table_unref(fs->renounced);
	g_hash_table_unref(fs->prefixes);
	g_hash_table_unref(fs->closing);
	g_hash_table_unref(fs->writing);
	g_hash_table_unref(fs->guesses);
	g_hash_table_unref(fs->published);
	g_hash_table_unref(fs->checked);
	g_hash_table_unref(fs->redirects);
	g_ptr_array_unref(fs->held_dirs);
	g_ptr_array_unref(fs->open_prefixes);
	pthread_mutex_destroy(&fs->names);
	pthread_mutex_destroy(&fs->save_lock);
	g_free((char *)fs->config.mount_point);
	g_free((char *)fs->config.options_text);
	g_free(fs);
}

Kvcfs *
kvcfs_new(const KvcfsConfig *config, KvcStorageManagerConfig *engine, GError **error)
{
	Kvcfs *fs = g_new0(Kvcfs, 1);
	fs->config = *config;
	fs->config.mount_point = g_strdup(config->mount_point);
	fs->config.options_text = g_strdup(config->options_text);
	fs->start_ns = kvcfs_now_ns();
	pthread_mutex_init(&fs->names, NULL);
	pthread_mutex_init(&fs->save_lock, NULL);
	make_tables(fs);
	make_fixed_inodes(fs);
	fs->pendings = kvcfs_pendings_new(&fs->stats[KVCFS_STAT_interrupted]);
	fs->copier = g_thread_pool_new(run_copy, NULL, -1, FALSE, NULL);
	fs->notifier = kvcfs_notifier_new(fs);
	engine->key_lost = on_key_lost;
	engine->scope_known = on_scope_known;
	engine->user = fs;
	fs->l1_capacity_bytes = engine->l1_size_bytes;
	fs->l1_overrun_bytes = engine->l1_overrun_bytes;
	if (fs->config.max_object_size_bytes == 0)
		fs->config.max_object_size_bytes = engine->l1_size_bytes / 8;
	if (kvcfs_tree_open_log(fs, config->directory_log, error))
		fs->sm = kvc_storage_manager_new(engine, error);
	if (!fs->sm) {
		free_parts(fs);
		return NULL;
	}
	kvcfs_tree_restore(fs);
	return fs;
}

KvcStorageManager *
kvcfs_get_storage_manager(Kvcfs *fs)
{
	return fs->sm;
}

/* ---- The session --------------------------------------------------------------------------- */

void
kvcfs_set_session(Kvcfs *fs, struct fuse_session *se)
{
	fs->se = se;
}

/* The proof that passthrough works here: one file of L1 can be registered. */
static int
try_backing(Kvcfs *fs)
{
	KvcL1Object *object;
	if (!kvcfs_passthrough_is_negotiated())
		return -EOPNOTSUPP;
	int rc = kvc_storage_manager_reserve_write(fs->sm, NULL, 0, &object);
	if (rc < 0)
		return rc;
	int id = kvcfs_backing_open(fs->se, kvc_l1_object_get_fd(object));
	if (id > 0)
		kvcfs_backing_close(fs->se, id);
	kvc_storage_manager_abort_write(fs->sm, object);
	return id > 0 ? 0 : id;
}

bool
kvcfs_settle_io_mode(Kvcfs *fs, GError **error)
{
	if (fs->config.io_mode == KVCFS_IO_DIRECT)
		return true;
	int rc = try_backing(fs);
	fs->is_passthrough = rc == 0;
	if (rc == 0)
		return true;
	if (fs->config.io_mode == KVCFS_IO_PASSTHROUGH) {
		g_set_error(error, G_FILE_ERROR, g_file_error_from_errno(-rc),
			    "--io-mode=passthrough: the kernel refuses it here: %s",
			    g_strerror(-rc));
		return false;
	}
	g_message("no passthrough (%s): io mode is direct", g_strerror(-rc));
	return true;
}

/* Descriptors that are still open write past us: what they filled cannot be proven complete. */
static void
distrust_writers(Kvcfs *fs)
{
	GHashTableIter iter;
	KvcfsHandle *handle;
	pthread_mutex_lock(&fs->names);
	g_hash_table_iter_init(&iter, fs->handles);
	while (g_hash_table_iter_next(&iter, (void **)&handle, NULL))
		handle->has_failed |= handle->kind == KVCFS_HANDLE_KEYS_WRITE;
	for (KvcfsInode *inode = fs->inodes; inode; inode = inode->next)
		if (inode->staging && inode->staging->n_writers > 0)
			inode->staging->is_killed = true;
	pthread_mutex_unlock(&fs->names);
}

#define CHAIN_STEP_US 100000

void
kvcfs_begin_drain(Kvcfs *fs)
{
	__atomic_store_n(&fs->is_draining, true, __ATOMIC_SEQ_CST);
	kvcfs_prefix_save_all(fs);
}

/* What was added to a chain that is only in L2 can be written once that is loaded. */
static void
load_dirty_chains(Kvcfs *fs)
{
	int64_t deadline = kvcfs_now_ns() + fs->config.load_timeout_ns;
	while (kvcfs_prefix_save_all(fs) == -EAGAIN && kvcfs_now_ns() < deadline)
		g_usleep(CHAIN_STEP_US);
}

void
kvcfs_end_session(Kvcfs *fs, bool all_closed)
{
	load_dirty_chains(fs);
	kvcfs_pendings_stop(fs->pendings);
	end_copies(fs);
	if (!all_closed)
		distrust_writers(fs);
	kvcfs_redirects_drop_all(fs);
	kvcfs_handles_release_all(fs);
	int rc = kvcfs_prefix_save_all(fs);
	if (rc < 0)
		g_warning("the chain of a prefix directory could not be saved and is lost: %s",
			  g_strerror(-rc));
}

void
kvcfs_free(Kvcfs *fs)
{
	free_parts(fs);
}

/* ---- Operations ---------------------------------------------------------------------------- */

/*
 * The C library keeps what is freed, in an arena for each thread: of a listing of a million names
 * that the kernel has long forgotten that would be 400 MB. It takes milliseconds, in which who
 * wants memory may wait.
 */
static void
note_forgotten(Kvcfs *fs, size_t n)
{
	size_t before = __atomic_fetch_add(&fs->n_forgotten, n, __ATOMIC_RELAXED);
	if (before / TRIM_AFTER != (before + n) / TRIM_AFTER) {
		kvcfs_loop_hand_over();
		malloc_trim(0);
	}
}

static void
op_forget(fuse_req_t req, fuse_ino_t ino, uint64_t nlookup)
{
	if (ino != FUSE_ROOT_ID)
		kvcfs_inode_unref(kvcfs_inode_of(kvcfs_of(req), ino), nlookup);
	note_forgotten(kvcfs_of(req), 1);
	fuse_reply_none(req);
}

static void
op_forget_multi(fuse_req_t req, size_t count, struct fuse_forget_data *forgets)
{
	Kvcfs *fs = kvcfs_of(req);
	for (size_t i = 0; i < count; i++)
		if (forgets[i].ino != FUSE_ROOT_ID)
			kvcfs_inode_unref(kvcfs_inode_of(fs, forgets[i].ino), forgets[i].nlookup);
	note_forgotten(fs, count);
	fuse_reply_none(req);
}

/* What can be evicted counts as free, else external cleaners delete for ever. */
static void
op_statfs(fuse_req_t req, fuse_ino_t ino)
{
	Kvcfs *fs = kvcfs_of(req);
	KvcCapacity c;
	kvc_storage_manager_get_capacity(fs->sm, &c);
	uint64_t total = c.l1_capacity_bytes + c.l2_capacity_bytes;
	uint64_t l1_free = c.l1_capacity_bytes - MIN(c.l1_capacity_bytes, c.l1_pinned_bytes);
	uint64_t l2_free = c.l2_capacity_bytes - MIN(c.l2_capacity_bytes, c.l2_used_bytes);
	struct statvfs st = {
		.f_bsize = 4096,
		.f_frsize = 4096,
		.f_blocks = total / 4096,
		.f_bfree = (l1_free + l2_free) / 4096,
		.f_bavail = (l1_free + l2_free) / 4096,
		.f_files = c.objects + (1u << 20),
		.f_ffree = 1u << 20,
		.f_favail = 1u << 20,
		.f_namemax = KVC_NAME_MAX_BYTES,
	};
	fuse_reply_statfs(req, &st);
}

static void
op_fsyncdir(fuse_req_t req, fuse_ino_t ino, int datasync, struct fuse_file_info *fi)
{
	fuse_reply_err(req, 0);
}

/* As the manual of a file system that has no such files says; without these it is ENOSYS. */
static void
op_mknod(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, dev_t rdev)
{
	fuse_reply_err(req, EPERM);
}

static void
op_symlink(fuse_req_t req, const char *target, fuse_ino_t parent, const char *name)
{
	fuse_reply_err(req, EPERM);
}

const struct fuse_lowlevel_ops kvcfs_ops = {
	.lookup = kvcfs_op_lookup,
	.forget = op_forget,
	.forget_multi = op_forget_multi,
	.getattr = kvcfs_op_getattr,
	.setattr = kvcfs_op_setattr,
	.mkdir = kvcfs_op_mkdir,
	.mknod = op_mknod,
	.symlink = op_symlink,
	.unlink = kvcfs_op_unlink,
	.rmdir = kvcfs_op_rmdir,
	.rename = kvcfs_op_rename,
	.link = kvcfs_op_link,
	.create = kvcfs_op_create,
	.open = kvcfs_op_open,
	.read = kvcfs_op_read,
	.write = kvcfs_op_write,
	.flush = kvcfs_op_flush,
	.release = kvcfs_op_release,
	.fsync = kvcfs_op_fsync,
	.fallocate = kvcfs_op_fallocate,
	.lseek = kvcfs_op_lseek,
	.opendir = kvcfs_op_opendir,
	.readdir = kvcfs_op_readdir,
	.readdirplus = kvcfs_op_readdirplus,
	.releasedir = kvcfs_op_releasedir,
	.fsyncdir = op_fsyncdir,
	.statfs = op_statfs,
	.setxattr = kvcfs_op_setxattr,
	.getxattr = kvcfs_op_getxattr,
	.listxattr = kvcfs_op_listxattr,
	.removexattr = kvcfs_op_removexattr,
};
