/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Requests about names: LOOKUP, CREATE, MKDIR, UNLINK, RMDIR (RENAME: rename.c). The kernel holds
 * the directory's lock until they are answered, so they are answered from memory, and what they
 * wait for is bounded: LOOKUP, UNLINK and RENAME for a writer that has closed (50 ms, and its
 * commit), LOOKUP and RMDIR for a chain, LOOKUP for L2's word on an unknown name (--lookup-wait).
 * What is removed or made waits for its record in the state directory, and a second at most where
 * that hangs.
 */

#include "fs/dir-log.h"
#include "fs/internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

/* ---- LOOKUP -------------------------------------------------------------------------------- */

/* A LOOKUP of an object's name; owned by whoever drives it. */
typedef struct Lookup {
	Kvcfs *fs;
	fuse_req_t req;
	KvcfsInode *dir; /* owned reference */
	KvcObjectKey *key;
	bool has_waited_chain, has_waited_commit, has_asked_l2, has_checked;
} Lookup;

static void lookup_step(Lookup *lookup);

static void
lookup_free(Lookup *lookup)
{
	kvc_object_key_unref(lookup->key);
	kvcfs_inode_unref(lookup->dir, 1);
	g_free(lookup);
}

static void
lookup_end(Lookup *lookup, int errnum)
{
	kvcfs_redirect_not_found(lookup->fs, lookup->key, fuse_req_ctx(lookup->req)->pid);
	fuse_reply_err(lookup->req, errnum);
	lookup_free(lookup);
}

static void
after_chain(fuse_req_t req, KvcfsWake why, void *user)
{
	Lookup *lookup = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		lookup_end(lookup, EINTR);
	else
		lookup_step(lookup);
}

static void
after_commit(fuse_req_t req, KvcfsWake why, void *user)
{
	Lookup *lookup = user;
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_count(lookup->fs, lookups_waited_commit_in_vain);
	after_chain(req, why, lookup);
}

static bool
after_l2(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Lookup *lookup = user;
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_count(lookup->fs, lookups_timed_out);
	after_chain(req, why, lookup);
	return false;
}

static void
ask_l2_for(Kvcfs *fs,
	   fuse_req_t req,
	   KvcObjectKey *key,
	   bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user),
	   void *user)
{
	int64_t wait = fs->config.lookup_wait_ns;
	KvcPrefetchParams params = {
		.keys = &key,
		.n_keys = 1,
		.flags = KVC_PREFETCH_LOOKUP_ONLY | KVC_PREFETCH_URGENT,
		.timeout_ns = wait,
	};
	kvcfs_count(fs, lookups_asked_l2);
	kvcfs_fetch_start(fs, req, &params, false, kvcfs_now_ns() + wait, answer, user);
}

static void
ask_l2(Lookup *lookup)
{
	lookup->has_asked_l2 = true;
	ask_l2_for(lookup->fs, lookup->req, lookup->key, after_l2, lookup);
}

/* A writer of the name has closed it: its RELEASE, which commits, is on its way. */
static bool
waits_for_commit(Lookup *lookup)
{
	KvcfsClosingFilter filter = {.key = lookup->key};
	if (lookup->has_waited_commit || !kvcfs_is_closing(lookup->fs, &filter))
		return false;
	lookup->has_waited_commit = true;
	kvcfs_count(lookup->fs, lookups_waited_commit);
	kvcfs_wait_for_commit(lookup->fs, lookup->req, &filter, after_commit, lookup);
	return true;
}

/* The caller's own file, that nobody else may see yet. true: answered. */
static bool
lookup_found_own(Lookup *lookup)
{
	Kvcfs *fs = lookup->fs;
	KvcfsCaller caller =
		kvcfs_own_file_caller(fs, lookup->key, NULL, fuse_req_ctx(lookup->req)->pid);
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_own_file_find_locked(fs, lookup->key, &caller);
	if (inode)
		kvcfs_inode_ref_locked(inode);
	pthread_mutex_unlock(&fs->names);
	if (!inode)
		return false;
	kvcfs_reply_entry(lookup->req, inode);
	lookup_free(lookup);
	return true;
}

static void
lookup_found(Lookup *lookup)
{
	Kvcfs *fs = lookup->fs;
	pid_t tid = fuse_req_ctx(lookup->req)->pid;
	KvcfsInode *inode = kvcfs_redirect_found(fs, lookup->key, tid);
	pthread_mutex_lock(&fs->names);
	if (!inode)
		inode = kvcfs_object_inode_locked(fs, lookup->key);
	kvcfs_readahead_note_locked(inode, lookup->dir);
	pthread_mutex_unlock(&fs->names);
	kvcfs_redirect_keep_found(inode, tid);
	kvcfs_reply_entry(lookup->req, inode);
	lookup_free(lookup);
}

/* A rename of the directory meanwhile has given its files other keys. */
static bool
has_moved(Lookup *lookup)
{
	Kvcfs *fs = lookup->fs;
	pthread_mutex_lock(&fs->names);
	KvcKeyScope *scope = lookup->dir->scope;
	pthread_mutex_unlock(&fs->names);
	if (scope == lookup->key->scope)
		return false;
	g_autoptr(KvcObjectKey) old = lookup->key;
	lookup->key =
		kvc_object_key_new(scope, old->space, old->chunk_hash, old->chunk_hash_len, NULL);
	return true;
}

/* Goes as far as it can without waiting; each wait is done once. */
static void
lookup_step(Lookup *lookup)
{
	Kvcfs *fs = lookup->fs;
	KvcfsInode *dir = lookup->dir;
	if (dir->kind == KVCFS_PREFIX && !lookup->has_waited_chain &&
	    !kvcfs_prefix_is_loaded(dir)) {
		int64_t deadline = kvcfs_now_ns() + fs->config.lookup_wait_ns;
		lookup->has_waited_chain = true;
		kvcfs_prefix_wait(dir, lookup->req, deadline, after_chain, lookup);
		return;
	}
	/* What a plain file was is of no use any more. */
	if (lookup->key->space == KVC_SPACE_PLAIN && waits_for_commit(lookup))
		return;
	bool is_there = kvcfs_dir_has_object(lookup->dir, lookup->key);
	if (!is_there) {
		if (waits_for_commit(lookup))
			return;
		/* Or the commit ended between the two questions. */
		is_there = kvcfs_dir_has_object(lookup->dir, lookup->key);
	}
	if (is_there && !lookup->has_checked && kvcfs_coherence_is_due(fs, lookup->key)) {
		lookup->has_checked = lookup->has_asked_l2 = true;
		kvcfs_coherence_check(fs, lookup->req, lookup->key, after_chain, lookup);
		return;
	}
	if (is_there) {
		lookup_found(lookup);
		return;
	}
	bool is_named = kvcfs_dir_names(lookup->dir, lookup->key);
	if (has_moved(lookup))
		lookup_step(lookup);
	else if (lookup_found_own(lookup))
		return;
	else if (is_named && !lookup->has_asked_l2 && kvc_storage_manager_has_shared_l2(fs->sm))
		ask_l2(lookup);
	else
		lookup_end(lookup, ENOENT);
}

/* KEY is taken. */
static void
lookup_object(fuse_req_t req, KvcfsInode *dir, KvcObjectKey *key)
{
	Lookup *lookup = g_new0(Lookup, 1);
	lookup->fs = dir->fs;
	lookup->req = req;
	lookup->dir = kvcfs_inode_ref(dir);
	lookup->key = key;
	lookup_step(lookup);
}

static KvcfsInode *
lookup_temp(KvcfsInode *dir, const char *name)
{
	pthread_mutex_lock(&dir->fs->names);
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	if (inode)
		kvcfs_inode_ref_locked(inode);
	pthread_mutex_unlock(&dir->fs->names);
	return inode;
}

static bool
is_keys_file(const KvcfsInode *dir, const char *name)
{
	return dir->kind == KVCFS_PREFIX && strcmp(name, KVCFS_KEYS_FILE) == 0;
}

static KvcfsInode *
lookup_directory(KvcfsInode *dir, const char *name)
{
	switch (dir->kind) {
	case KVCFS_DIR:
		if (!dir->parent && strcmp(name, KVCFS_CONTROL_DIR) == 0)
			return kvcfs_inode_ref(dir->fs->control_root);
		return kvcfs_tree_lookup(dir, name);
	case KVCFS_CONTROL_ROOT:
		return kvcfs_control_lookup(dir->fs, name);
	case KVCFS_RANK:
		return kvcfs_prefix_lookup(dir, name);
	default:
		return NULL;
	}
}

static bool
has_objects(const KvcfsInode *dir)
{
	return dir->kind == KVCFS_RANK || dir->kind == KVCFS_PREFIX || dir->kind == KVCFS_DIR;
}

/* Everything but the name of an object. */
static KvcfsInode *
lookup_other(KvcfsInode *dir, const char *name)
{
	KvcfsInode *inode = NULL;
	if (is_keys_file(dir, name))
		return kvcfs_prefix_shows_keys_file(dir) ? kvcfs_prefix_keys_inode(dir) : NULL;
	bool is_temporary =
		has_objects(dir) && kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_TEMPORARY;
	if (is_temporary)
		inode = lookup_temp(dir, name);
	/* A directory may have any name where there are plain files. */
	if (!inode && (!is_temporary || dir->kind == KVCFS_DIR))
		inode = lookup_directory(dir, name);
	return inode;
}

/* ---- LOOKUP of a prefix directory that is not known ----------------------------------------- */

typedef struct PrefixLookup {
	KvcfsInode *rank; /* owned reference */
	char *name;	  /* owned */
} PrefixLookup;

static bool
after_l2_prefix(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	PrefixLookup *lookup = user;
	KvcfsInode *inode = NULL;
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_count(lookup->rank->fs, lookups_timed_out);
	if (why != KVCFS_WAKE_INTERRUPT)
		inode = kvcfs_prefix_lookup(lookup->rank, lookup->name);
	if (inode)
		kvcfs_reply_entry(req, inode);
	else
		fuse_reply_err(req, why == KVCFS_WAKE_INTERRUPT ? EINTR : ENOENT);
	kvcfs_inode_unref(lookup->rank, 1);
	g_free(lookup->name);
	g_free(lookup);
	return false;
}

/* Another mount may have made it. true: answered, now or later. */
static bool
asks_for_prefix(fuse_req_t req, KvcfsInode *rank, const char *name)
{
	Kvcfs *fs = rank->fs;
	if (rank->kind != KVCFS_RANK || strlen(name) > KVC_NAME_MAX_BYTES ||
	    kvcfs_name_classify(rank->scope, name) != KVCFS_NAME_OTHER ||
	    !kvc_storage_manager_has_shared_l2(fs->sm))
		return false;
	g_autoptr(KvcObjectKey) key =
		kvc_object_key_new(rank->scope, KVC_SPACE_PREFIX, name, strlen(name), NULL);
	if (!key)
		return false;
	PrefixLookup *lookup = g_new(PrefixLookup, 1);
	*lookup = (PrefixLookup){kvcfs_inode_ref(rank), g_strdup(name)};
	ask_l2_for(fs, req, key, after_l2_prefix, lookup);
	return true;
}

static void
lookup_now(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	pid_t tid = fuse_req_ctx(req)->pid;
	KvcfsInode *inode = kvcfs_redirect_lookup(dir, name, tid);
	if (!inode)
		inode = kvcfs_redirect_found_temp(dir, name, tid);
	if (!inode && !(is_keys_file(dir, name) && kvcfs_prefix_hides_keys_file(dir, tid)))
		inode = lookup_other(dir, name);
	KvcObjectKey *key = !inode && has_objects(dir) ? kvcfs_name_to_key(dir->scope, name) : NULL;
	if (inode)
		kvcfs_reply_entry(req, inode);
	else if (key)
		lookup_object(req, dir, key);
	else if (!asks_for_prefix(req, dir, name))
		fuse_reply_err(req, strlen(name) > KVC_NAME_MAX_BYTES ? ENAMETOOLONG : ENOENT);
}

/* ---- LOOKUP where somebody has closed .keys, or of .keys where an entry ---------------------- */

typedef struct KeysLookup {
	KvcfsInode *prefix; /* owned reference */
	char *name;	    /* owned */
} KeysLookup;

static void
after_keys(fuse_req_t req, KvcfsWake why, void *user)
{
	KeysLookup *lookup = user;
	if (why == KVCFS_WAKE_TIMEOUT)
		kvcfs_count(lookup->prefix->fs, lookups_waited_commit_in_vain);
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else
		lookup_now(req, lookup->prefix, lookup->name);
	kvcfs_inode_unref(lookup->prefix, 1);
	g_free(lookup->name);
	g_free(lookup);
}

/* Its RELEASE, which may change the chain, is on its way. The kernel looks .keys up each time. */
static bool
waits_for_keys(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	Kvcfs *fs = dir->fs;
	KvcfsClosingFilter filter = {.prefix = dir, .with_entries = is_keys_file(dir, name)};
	if (dir->kind != KVCFS_PREFIX || !kvcfs_is_closing(fs, &filter))
		return false;
	KeysLookup *lookup = g_new(KeysLookup, 1);
	*lookup = (KeysLookup){kvcfs_inode_ref(dir), g_strdup(name)};
	kvcfs_count(fs, lookups_waited_commit);
	kvcfs_wait_for_commit(fs, req, &filter, after_keys, lookup);
	return true;
}

void
kvcfs_op_lookup(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	KvcfsInode *dir = kvcfs_inode_of(kvcfs_of(req), parent);
	kvcfs_count(dir->fs, lookups);
	if (!waits_for_keys(req, dir, name))
		lookup_now(req, dir, name);
}

/* ---- CREATE -------------------------------------------------------------------------------- */

static int
check_create(KvcfsInode *dir, const char *name)
{
	if (dir->kind == KVCFS_CONTROL_ROOT)
		return -EACCES;
	if (__atomic_load_n(&dir->fs->is_draining, __ATOMIC_RELAXED))
		return -EROFS;
	if (strlen(name) > KVC_NAME_MAX_BYTES)
		return -ENAMETOOLONG;
	if (kvcfs_tree_has_child(dir, name))
		return -EISDIR;
	return kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_OTHER ? -EINVAL : 0;
}

/* .keys was removed and is made again. */
static void
create_keys_file(fuse_req_t req, KvcfsInode *prefix, struct fuse_file_info *fi)
{
	KvcfsInode *keys = kvcfs_prefix_keys_inode(prefix);
	KvcfsHandle *handle = kvcfs_handle_new(KVCFS_HANDLE_KEYS_WRITE, keys);
	struct fuse_entry_param entry = {.ino = kvcfs_inode_nodeid(keys)};
	kvcfs_prefix_keys_created(prefix);
	kvcfs_inode_get_attr(keys, &entry.attr);
	handle->text = g_string_new(NULL);
	/* It replaces the chain when it is closed; ">>" appends to what there is. */
	handle->is_replacing = !(fi->flags & O_APPEND) || (fi->flags & O_TRUNC);
	handle->write_offset = handle->is_replacing ? 0 : kvcfs_prefix_text_len(prefix);
	fi->fh = (uintptr_t)handle;
	fi->direct_io = 1;
	if (kvcfs_reply_create(req, &entry, fi, 0) != 0) {
		kvcfs_handle_free(handle);
		kvcfs_inode_unref(keys, 1);
	}
}

static void
undo_create(KvcfsHandle *handle, KvcfsInode *dir, const char *name)
{
	KvcfsInode *inode = handle->inode;
	kvcfs_handle_release(handle);
	pthread_mutex_lock(&dir->fs->names);
	bool is_ours = kvcfs_temp_lookup_locked(dir, name) == inode && inode->staging &&
		       inode->staging->n_writers == 0;
	pthread_mutex_unlock(&dir->fs->names);
	if (is_ours)
		kvcfs_temp_unlink(dir, name);
	kvcfs_inode_unref(inode, 1);
}

/* INODE (owned) has one writer more, for the handle that is made here. */
static void
answer_create(fuse_req_t req,
	      KvcfsInode *dir,
	      const char *name,
	      KvcfsInode *inode,
	      struct fuse_file_info *fi)
{
	KvcfsHandle *handle = kvcfs_handle_new(KVCFS_HANDLE_WRITE, inode);
	struct fuse_entry_param entry = {.ino = kvcfs_inode_nodeid(inode)};
	kvcfs_inode_get_attr(inode, &entry.attr);
	/* We are its writer: the object stays, and with it the descriptor, until we are released.
	 */
	int fd = kvcfs_staging_get_fd(inode), id = 0;
	if (!kvcfs_staging_is_copy(inode)) {
		handle->fd = fcntl(fd, F_DUPFD_CLOEXEC, 3);
		id = handle->fd < 0 ? -errno : 0;
	}
	if (id == 0)
		id = kvcfs_io_open(inode, fd, NULL, inode->staging->is_direct);
	handle->is_counted = id >= 0;
	fi->fh = (uintptr_t)handle;
	fi->direct_io = id == 0;
	if (id >= 0 && kvcfs_reply_create(req, &entry, fi, id) == 0)
		return;
	if (id < 0)
		fuse_reply_err(req, -id);
	undo_create(handle, dir, name);
}

/*
 * The name has come to be a plain file's since the kernel looked: as an open of that. What has to
 * be loaded cannot be waited for here, and who only reads gets another inode: then the kernel looks
 * once more.
 */
static bool
opens_existing(fuse_req_t req, KvcfsInode *dir, const char *name, struct fuse_file_info *fi)
{
	Kvcfs *fs = dir->fs;
	pid_t tid = fuse_req_ctx(req)->pid;
	KvcfsInode *private = NULL;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	if ((fi->flags & (O_EXCL | O_TRUNC)) || !key || key->space != KVC_SPACE_PLAIN ||
	    !kvcfs_object_exists(fs, key))
		return false;
	if ((fi->flags & O_ACCMODE) != O_RDONLY && tid != 0) {
		pthread_mutex_lock(&fs->names);
		KvcfsInode *inode = kvcfs_object_inode_locked(fs, key);
		pthread_mutex_unlock(&fs->names);
		kvcfs_overwrite_begin(inode, false, &private);
		kvcfs_inode_unref(inode, 1);
	}
	if (private && kvcfs_staging_get_fd(private) >= 0 && kvcfs_staging_join(private) == 0) {
		answer_create(req, dir, name, private, fi);
		return true;
	}
	if (private)
		kvcfs_redirect_object(fs, tid, key, private);
	fuse_reply_err(req, ESTALE);
	return true;
}

static void
forget_redirect(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	g_autoptr(KvcObjectKey) key = dir->scope ? kvcfs_name_to_key(dir->scope, name) : NULL;
	if (key)
		kvcfs_redirect_created(dir->fs, key, fuse_req_ctx(req)->pid);
	else
		kvcfs_redirect_created_temp(dir, name, fuse_req_ctx(req)->pid);
}

void
kvcfs_op_create(
	fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode, struct fuse_file_info *fi)
{
	KvcfsInode *dir = kvcfs_inode_of(kvcfs_of(req), parent);
	KvcfsInode *inode;
	int rc = check_create(dir, name);
	if (rc == 0 && is_keys_file(dir, name)) {
		create_keys_file(req, dir, fi);
		return;
	}
	forget_redirect(req, dir, name);
	if (rc == 0 && opens_existing(req, dir, name, fi))
		return;
	if (rc == 0)
		rc = kvcfs_staging_create(dir, name, fuse_req_ctx(req), mode, fi->flags, &inode);
	if (rc == 0 && kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_TEMPORARY)
		kvcfs_dir_changed(dir);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		answer_create(req, dir, name, inode, fi);
}

/* ---- The rest ------------------------------------------------------------------------------ */

void
kvcfs_op_mkdir(fuse_req_t req, fuse_ino_t parent, const char *name, mode_t mode)
{
	KvcfsInode *dir = kvcfs_inode_of(kvcfs_of(req), parent);
	KvcfsInode *inode = NULL;
	struct stat owner = {.st_uid = fuse_req_ctx(req)->uid, .st_gid = fuse_req_ctx(req)->gid};
	if (kvcfs_inode_gives_group(dir, &owner.st_gid))
		mode |= S_ISGID;
	int rc = -EACCES;
	if (dir->kind == KVCFS_DIR)
		rc = kvcfs_tree_mkdir(dir, name, mode, &inode);
	else if (dir->kind == KVCFS_RANK)
		rc = kvcfs_prefix_mkdir(dir, name, mode, &inode);
	else if (dir->kind == KVCFS_PREFIX)
		rc = -EINVAL;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	pid_t tid = fuse_req_ctx(req)->pid;
	uint64_t start = inode->kind == KVCFS_PREFIX ? kvcfs_writer_start(tid) : 0;
	if (inode->kind == KVCFS_PREFIX) /* its chain carries them */
		kvcfs_attr_set(inode, &owner, FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID);
	pthread_mutex_lock(&dir->fs->names);
	inode->uid = owner.st_uid;
	inode->gid = owner.st_gid;
	kvcfs_dir_changed_locked(dir);
	if (inode->kind == KVCFS_PREFIX)
		kvcfs_prefix_set_maker_locked(inode, tid, start);
	if (dir->kind == KVCFS_DIR)
		kvcfs_tree_remember_locked(inode);
	pthread_mutex_unlock(&dir->fs->names);
	kvcfs_dir_log_settle(dir->fs->dir_log);
	kvcfs_reply_entry(req, inode);
}

/*
 * rm in a rank or plain directory: from every tier. Who has it open goes on with this inode. What
 * TID itself is about to commit under the name goes as well.
 */
static int
unlink_object(KvcfsInode *dir, const char *name, pid_t tid)
{
	Kvcfs *fs = dir->fs;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	if (!key)
		return -ENOENT;
	KvcfsCaller caller = kvcfs_own_file_caller(fs, key, NULL, tid);
	/* In one step for who commits under this name. */
	pthread_mutex_lock(&fs->names);
	kvcfs_notifier_set_own(key);
	int rc = kvc_storage_manager_delete(fs->sm, key);
	kvcfs_notifier_set_own(NULL);
	if (rc == 0) {
		kvcfs_object_moved_locked(fs, key, NULL);
		kvcfs_staging_object_removed_locked(fs, key);
		kvcfs_staging_name_removed_locked(fs, key, NULL);
	}
	bool had_own_file = kvcfs_own_file_unlink_locked(fs, key, &caller);
	pthread_mutex_unlock(&fs->names);
	if (rc < 0)
		return rc == -ENOENT && had_own_file ? 0 : rc;
	kvc_storage_manager_settle_deletions(fs->sm);
	return 0;
}

static int
unlink_keys_file(KvcfsInode *prefix)
{
	if (!kvcfs_prefix_shows_keys_file(prefix))
		return -ENOENT;
	kvcfs_prefix_clear(prefix, true);
	return 0;
}

static void
unlink_now(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	int rc = -ENOENT;
	if (dir->kind == KVCFS_CONTROL_ROOT)
		rc = -EACCES;
	else if (is_keys_file(dir, name))
		rc = unlink_keys_file(dir);
	else if (kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_TEMPORARY)
		rc = kvcfs_temp_unlink(dir, name);
	else if (dir->kind == KVCFS_PREFIX)
		rc = kvcfs_prefix_unlink(dir, name);
	else
		rc = unlink_object(dir, name, fuse_req_ctx(req)->pid);
	if (rc == 0)
		kvcfs_dir_changed(dir);
	fuse_reply_err(req, -rc);
}

/* An UNLINK or RMDIR that waits. Interrupted or not, it is then done. */
typedef struct Removal {
	KvcfsInode *dir;    /* owned reference */
	char *name;	    /* owned */
	KvcObjectKey *key;  /* owned: what commits are waited for, or NULL */
	KvcfsInode *prefix; /* owned reference: RMDIR of it, or NULL */
} Removal;

static Removal *
removal_new(KvcfsInode *dir, const char *name, KvcObjectKey *key)
{
	Removal *removal = g_new(Removal, 1);
	*removal = (Removal){kvcfs_inode_ref(dir), g_strdup(name), key, NULL};
	return removal;
}

static void
removal_free(Removal *removal)
{
	kvcfs_inode_unref(removal->dir, 1);
	kvc_object_key_unref(removal->key);
	if (removal->prefix)
		kvcfs_inode_unref(removal->prefix, 1);
	g_free(removal->name);
	g_free(removal);
}

static bool unlink_waits(fuse_req_t req, KvcfsInode *dir, const char *name);

static void
unlink_step(fuse_req_t req, KvcfsWake why, void *user)
{
	Removal *removal = user;
	/* The directory may have been renamed meanwhile, and the writer's file with it. */
	bool has_moved = removal->key->scope != removal->dir->scope;
	if (!has_moved || !unlink_waits(req, removal->dir, removal->name))
		unlink_now(req, removal->dir, removal->name);
	removal_free(removal);
}

/* Its RELEASE, which is on its way, would bring back what is removed now. */
static bool
unlink_waits(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	KvcObjectKey *key = has_objects(dir) ? kvcfs_name_to_key(dir->scope, name) : NULL;
	KvcfsClosingFilter filter = {.key = key};
	if (dir->kind == KVCFS_PREFIX)
		filter = (KvcfsClosingFilter){.prefix = dir, .with_entries = true};
	if (!key || !kvcfs_is_closing(dir->fs, &filter)) {
		kvc_object_key_unref(key);
		return false;
	}
	kvcfs_count(dir->fs, changes_waited_commit);
	kvcfs_wait_for_commit(dir->fs, req, &filter, unlink_step, removal_new(dir, name, key));
	return true;
}

void
kvcfs_op_unlink(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	KvcfsInode *dir = kvcfs_inode_of(kvcfs_of(req), parent);
	if (!unlink_waits(req, dir, name))
		unlink_now(req, dir, name);
}

static void
rmdir_now(fuse_req_t req, KvcfsInode *dir, const char *name)
{
	int rc = -ENOENT;
	if (dir->kind == KVCFS_DIR && !dir->parent && strcmp(name, KVCFS_CONTROL_DIR) == 0)
		rc = -EACCES;
	else if (dir->kind == KVCFS_DIR)
		rc = kvcfs_tree_rmdir(dir, name);
	else if (dir->kind == KVCFS_RANK)
		rc = kvcfs_prefix_rmdir(dir, name);
	if (rc == 0)
		kvcfs_dir_changed(dir);
	fuse_reply_err(req, -rc);
}

static void
rmdir_released(fuse_req_t req, KvcfsWake why, void *user)
{
	Removal *removal = user;
	rmdir_now(req, removal->dir, removal->name);
	removal_free(removal);
}

/* What somebody has closed in a prefix directory may be listed in a moment. */
static void
rmdir_when_released(fuse_req_t req, KvcfsInode *dir, const char *name, KvcfsInode *prefix)
{
	Kvcfs *fs = dir->fs;
	KvcfsClosingFilter filter = {.prefix = prefix, .with_entries = true};
	if (!prefix || !kvcfs_is_closing(fs, &filter)) {
		rmdir_now(req, dir, name);
		return;
	}
	Removal *removal = removal_new(dir, name, NULL);
	removal->prefix = kvcfs_inode_ref(prefix);
	kvcfs_count(fs, changes_waited_commit);
	kvcfs_wait_for_commit(fs, req, &filter, rmdir_released, removal);
}

static void
rmdir_loaded(fuse_req_t req, KvcfsWake why, void *user)
{
	Removal *removal = user;
	rmdir_when_released(req, removal->dir, removal->name, removal->prefix);
	removal_free(removal);
}

void
kvcfs_op_rmdir(fuse_req_t req, fuse_ino_t parent, const char *name)
{
	KvcfsInode *dir = kvcfs_inode_of(kvcfs_of(req), parent);
	KvcfsInode *prefix = dir->kind == KVCFS_RANK ? kvcfs_prefix_lookup(dir, name) : NULL;
	if (prefix && !kvcfs_prefix_is_loaded(prefix)) {
		/* Before its chain is loaded, nobody knows whether it lists anything. */
		Removal *removal = removal_new(dir, name, NULL);
		removal->prefix = kvcfs_inode_ref(prefix);
		kvcfs_prefix_wait(prefix, req, kvcfs_now_ns() + dir->fs->config.lookup_wait_ns,
				  rmdir_loaded, removal);
	} else {
		rmdir_when_released(req, dir, name, prefix);
	}
	if (prefix)
		kvcfs_inode_unref(prefix, 1);
}
