/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes and OPEN. An OPEN of what is not in L1 waits for its load, bounded and interruptible.
 */

#include "fs/internal.h"
#include "kvcache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

/* ---- Attributes ---------------------------------------------------------------------------- */

static void
reply_attr(fuse_req_t req, KvcfsInode *inode)
{
	struct stat st;
	int rc = kvcfs_inode_get_attr(inode, &st);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	fuse_reply_attr(req, &st, kvcfs_inode_is_lasting(inode) ? KVCFS_ATTR_TIMEOUT : 0);
}

/*
 * INODE has been removed, and nobody has it open. Of a plain or a temporary file (without a key)
 * the kernel asks in the middle of an open that has found it just before, and goes on to OPEN; of a
 * hash also for a name in a prefix directory that it will be told to forget, and has to look once
 * more.
 */
static void
reply_removed(fuse_req_t req, KvcfsInode *inode, struct stat *st)
{
	const KvcObjectKey *key = kvcfs_inode_get_key(inode);
	if (!key || key->space == KVC_SPACE_PLAIN)
		fuse_reply_attr(req, st, 0);
	else
		fuse_reply_err(req, ESTALE);
}

void
kvcfs_op_getattr(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	struct stat st;
	int rc = kvcfs_inode_get_attr(inode, &st);
	bool is_file = inode->kind == KVCFS_OBJECT;
	if (rc == -ENOENT && is_file && (inode->is_unlinked || !kvcfs_inode_get_key(inode)))
		reply_removed(req, inode, &st);
	else if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_attr(req, &st, kvcfs_inode_is_lasting(inode) ? KVCFS_ATTR_TIMEOUT : 0);
}

static bool
is_staging(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	bool is_staging = inode->staging != NULL;
	pthread_mutex_unlock(&inode->fs->names);
	return is_staging;
}

/* The thread's next LOOKUPs find a private inode that it may write: -ESTALE, or why it may not. */
static int
redirect_writer(fuse_req_t req, KvcfsInode *inode, bool truncate)
{
	Kvcfs *fs = inode->fs;
	KvcfsInode *private;
	if (__atomic_load_n(&fs->is_draining, __ATOMIC_RELAXED))
		return -EROFS;
	pid_t tid = fuse_req_ctx(req)->pid;
	/* Who may create the name does so then: the kernel does not tell us. */
	if (inode->is_unlinked)
		return kvcfs_redirect_retry_writer(fs, tid, inode, truncate) ? -ESTALE : -ENOENT;
	/* A caller in another pid name space cannot be told from others there. */
	if (tid == 0) {
		kvcfs_count(fs, overwrites_refused);
		return -EOPNOTSUPP;
	}
	int rc = kvcfs_overwrite_begin(inode, truncate, &private);
	if (rc < 0)
		return rc;
	kvcfs_redirect_writer(fs, tid, inode, truncate, private);
	return -ESTALE;
}

/* truncate(2) of a committed object: as an open for writing. */
static int
truncate_object(fuse_req_t req, KvcfsInode *inode, uint64_t bytes)
{
	KvcObjectInfo info;
	if (!inode->key || kvc_storage_manager_stat(inode->fs->sm, inode->key, &info) < 0)
		return -ENOENT;
	if (bytes == info.bytes)
		return 0;
	return inode->key->space == KVC_SPACE_PLAIN ? redirect_writer(req, inode, bytes == 0)
						    : -EROFS;
}

static int
set_size(fuse_req_t req, KvcfsInode *inode, off_t bytes, const struct fuse_file_info *fi)
{
	switch (inode->kind) {
	case KVCFS_OBJECT:
		return is_staging(inode) ? kvcfs_staging_set_size(inode, (uint64_t)bytes)
					 : truncate_object(req, inode, (uint64_t)bytes);
	case KVCFS_KEYS:
		if (bytes != 0)
			return -EINVAL;
		if (fi && kvcfs_handle_of(fi)->kind == KVCFS_HANDLE_KEYS_WRITE)
			kvcfs_keys_begin_replacement(kvcfs_handle_of(fi));
		else
			kvcfs_prefix_clear(inode->parent, false);
		kvcfs_dir_forget_attr(inode->parent);
		return 0;
	case KVCFS_CONTROL:
		return 0; /* what "echo > evict" does first */
	default:
		return -EISDIR;
	}
}

typedef struct Truncate {
	KvcfsInode *inode; /* owned reference */
	struct stat attr;
	int to_set;
	fuse_req_t req;
} Truncate;

static void
truncate_end(Truncate *truncate, int rc)
{
	if (rc < 0) {
		fuse_reply_err(truncate->req, -rc);
	} else {
		kvcfs_attr_set(truncate->inode, &truncate->attr, truncate->to_set);
		reply_attr(truncate->req, truncate->inode);
	}
	kvcfs_inode_unref(truncate->inode, 1);
	g_free(truncate);
}

static void
truncate_copy(void *user)
{
	Truncate *truncate = user;
	uint64_t bytes = (uint64_t)truncate->attr.st_size;
	truncate_end(truncate, kvcfs_overwrite_truncate(truncate->inode, bytes));
}

/* What has been loaded is copied now, which the engine's thread must not wait for. */
static void
after_truncate_load(fuse_req_t req, int error, void *user)
{
	Truncate *truncate = user;
	if (error < 0)
		truncate_end(truncate, error);
	else
		kvcfs_copy(truncate->inode->fs, truncate_copy, truncate);
}

/* The second half of truncate(2), on the private inode. */
static void
truncate_private(fuse_req_t req, KvcfsInode *inode, const struct stat *attr, int to_set)
{
	Truncate *truncate = g_new(Truncate, 1);
	*truncate = (Truncate){kvcfs_inode_ref(inode), *attr, to_set, req};
	kvcfs_overwrite_load(req, inode, after_truncate_load, truncate);
}

void
kvcfs_op_setattr(
	fuse_req_t req, fuse_ino_t ino, struct stat *attr, int to_set, struct fuse_file_info *fi)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	if ((to_set & FUSE_SET_ATTR_SIZE) && inode->kind == KVCFS_OBJECT &&
	    kvcfs_redirect_take(inode, fuse_req_ctx(req)->pid)) {
		truncate_private(req, inode, attr, to_set);
		return;
	}
	int rc = to_set & FUSE_SET_ATTR_SIZE ? set_size(req, inode, attr->st_size, fi) : 0;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	kvcfs_attr_set(inode, attr, to_set);
	reply_attr(req, inode);
}

/* ---- OPEN of an object --------------------------------------------------------------------- */

static void
note_opened(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	kvcfs_attr_note_open_locked(inode);
	pthread_mutex_unlock(&inode->fs->names);
}

/* Answers OPEN with HANDLE (owned), passed through to FD where that is in effect. false: -ESTALE.
 */
static bool
reply_open(fuse_req_t req, KvcfsHandle *handle, int fd, bool is_direct, struct fuse_file_info *fi)
{
	int id = kvcfs_io_open(handle->inode, fd, handle->object, is_direct);
	if (id == -ESTALE)
		return false;
	handle->is_counted = id >= 0;
	fi->fh = (uintptr_t)handle;
	fi->direct_io = id == 0;
	fi->keep_cache = 0;
	if (handle->object) {
		note_opened(handle->inode);
		kvcfs_redirect_forget_retry(handle->inode->fs, fuse_req_ctx(req)->pid,
					    handle->inode->key);
	}
	/* Once it is answered the handle may be gone. */
	if (id < 0)
		fuse_reply_err(req, -id);
	if (id < 0 || kvcfs_reply_open(req, fi, id) != 0)
		kvcfs_handle_release(handle);
	return true;
}

#define OPEN_TRIES 8

/*
 * INODE was replaced, and others still have the version that it was. The kernel may look the name
 * up once more; if it has done so, that version was the current one at some time during this open.
 */
static void
open_replaced(fuse_req_t req, KvcfsHandle *handle, bool has_retried, struct fuse_file_info *fi)
{
	Kvcfs *fs = handle->inode->fs;
	kvcfs_object_inode_renounce(handle->inode);
	bool may_retry = !has_retried &&
			 kvcfs_redirect_retry_once(fs, fuse_req_ctx(req)->pid, handle->inode->key);
	for (int i = 0; !may_retry && i < OPEN_TRIES; i++) {
		KvcL1Object *old = kvcfs_io_lock_again(handle->inode);
		if (old)
			kvcfs_handle_take_object(handle, old);
		/* Without: the last one has just closed it, and any version may be opened. */
		if (reply_open(req, handle, kvc_l1_object_get_fd(handle->object), false, fi))
			return;
	}
	kvcfs_count(fs, opens_stale);
	fuse_reply_err(req, ESTALE);
	kvcfs_handle_release(handle);
}

/* May OBJECT be a later version than the one that the kernel found as INODE, and asked for? */
static bool
is_later_version(KvcfsInode *inode, const KvcL1Object *object)
{
	pthread_mutex_lock(&inode->fs->names);
	bool is_later = inode->key->space == KVC_SPACE_PLAIN &&
			(kvcfs_inode_is_replaced_locked(inode) ||
			 inode->told_bytes != kvc_l1_object_get_bytes(object));
	pthread_mutex_unlock(&inode->fs->names);
	return is_later;
}

/*
 * With the read lock OBJECT (owned). A later version is opened under the old inode only when the
 * kernel has looked once more already; it then keeps no attributes of it.
 */
static void
open_locked_object(fuse_req_t req,
		   KvcfsInode *inode,
		   KvcL1Object *object,
		   bool has_loaded,
		   struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	pid_t tid = fuse_req_ctx(req)->pid;
	bool is_later = is_later_version(inode, object);
	if (is_later && kvcfs_redirect_retry_once(fs, tid, inode->key)) {
		kvcfs_count(fs, opens_stale);
		fuse_reply_err(req, ESTALE);
		kvc_storage_manager_finish_read(fs->sm, object);
		return;
	}
	KvcfsHandle *handle = kvcfs_handle_new(KVCFS_HANDLE_READ, inode);
	handle->opener = kvc_lock_owner("open by thread", (uint64_t)tid);
	/* The kernel does not say what is read with O_NOATIME. */
	handle->has_loaded = has_loaded && !(fi->flags & O_NOATIME);
	fi->noflush = 1;
	kvc_storage_manager_reserve_read_again(fs->sm, object);
	kvcfs_handle_take_object(handle, object);
	if (!reply_open(req, handle, kvc_l1_object_get_fd(object), false, fi))
		open_replaced(req, handle, is_later, fi);
	kvc_storage_manager_finish_read(fs->sm, object);
}

/* An OPEN that waits for something. */
typedef struct OpenWait {
	KvcfsInode *inode; /* owned reference */
	KvcObjectKey *key; /* owned: what commits are waited for, or NULL */
	struct fuse_file_info fi;
} OpenWait;

static OpenWait *
open_wait_new(KvcfsInode *inode, const struct fuse_file_info *fi)
{
	OpenWait *wait = g_new(OpenWait, 1);
	*wait = (OpenWait){kvcfs_inode_ref(inode), NULL, *fi};
	return wait;
}

static void
open_wait_free(OpenWait *wait)
{
	kvcfs_inode_unref(wait->inode, 1);
	if (wait->key)
		kvc_object_key_unref(wait->key);
	g_free(wait);
}

static bool
after_load(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	OpenWait *wait = user;
	Kvcfs *fs = wait->inode->fs;
	KvcL1Object *object = kvcfs_fetch_take_object(fetch, why);
	if (object) {
		open_locked_object(req, wait->inode, object, true, &wait->fi);
	} else if (why == KVCFS_WAKE_INTERRUPT) {
		fuse_reply_err(req, EINTR);
	} else {
		/* Nowhere, lost on the way, or not in time: a miss, never EIO:
		 * engines recompute on the one and stop on the other. */
		kvcfs_count(fs, opens_missed);
		fuse_reply_err(req, ENOENT);
	}
	open_wait_free(wait);
	return false;
}

static void
open_for_reading(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	KvcObjectKey *key = kvcfs_inode_get_key(inode);
	KvcL1Object *object = kvcfs_redirect_take_found(inode, fuse_req_ctx(req)->pid);
	kvcfs_count(fs, opens);
	kvcfs_prefix_start_loads(fs, key);
	while (!object && kvc_storage_manager_reserve_read(fs->sm, key, &object) < 0) {
		KvcObjectKey *tried = key;
		key = kvcfs_inode_get_key(inode);
		if (key != tried)
			continue; /* renamed meanwhile */
		kvcfs_count(fs, opens_waited);
		kvcfs_fetch_object(fs, req, key, after_load, open_wait_new(inode, fi));
		return;
	}
	open_locked_object(req, inode, object, false, fi);
}

/* Answered, INODE may be forgotten: hence the reference. */
static void
open_for_reading_ahead(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	kvcfs_inode_ref(inode);
	open_for_reading(req, inode, fi);
	kvcfs_readahead(inode);
	kvcfs_inode_unref(inode, 1);
}

static void
open_object(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC);
	if (is_write) {
		fuse_reply_err(req, -redirect_writer(req, inode, fi->flags & O_TRUNC));
		return;
	}
	KvcObjectKey *key = kvcfs_inode_get_key(inode);
	/* Replaced by a rename it is as replaced by a commit: see open_locked_object(). */
	bool is_replaced = inode->is_unlinked && key->space == KVC_SPACE_PLAIN &&
			   kvcfs_object_exists(inode->fs, key);
	if (!inode->is_unlinked || is_replaced)
		open_for_reading_ahead(req, inode, fi);
	else if (kvcfs_redirect_retry_once(inode->fs, fuse_req_ctx(req)->pid, key))
		fuse_reply_err(req, ESTALE); /* another may have the name by now */
	else
		fuse_reply_err(req, ENOENT);
}

static void
after_check(fuse_req_t req, KvcfsWake why, void *user)
{
	OpenWait *wait = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else
		open_object(req, wait->inode, &wait->fi);
	open_wait_free(wait);
}

/* Another mount may have replaced it since the kernel looked. */
static void
check_and_open_object(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	KvcObjectKey *key = kvcfs_inode_get_key(inode);
	if (inode->is_unlinked || !kvcfs_coherence_is_due(inode->fs, key)) {
		open_object(req, inode, fi);
		return;
	}
	kvcfs_coherence_check(inode->fs, req, key, after_check, open_wait_new(inode, fi));
}

/* ---- OPEN of a file on its way -------------------------------------------------------------- */

/* A private inode (overwrite.c): direct mode, what is read depends on whether it was written to. */
static void
after_private_load(fuse_req_t req, int error, void *user)
{
	OpenWait *wait = user;
	KvcfsHandle *handle = kvcfs_handle_new(KVCFS_HANDLE_WRITE, wait->inode);
	if (error == -ENOENT)
		kvcfs_count(wait->inode->fs, opens_missed);
	if (error < 0) {
		fuse_reply_err(req, -error);
		kvcfs_handle_release(handle);
	} else if (!reply_open(req, handle, kvcfs_staging_get_fd(wait->inode), true, &wait->fi)) {
		fuse_reply_err(req, ESTALE);
		kvcfs_handle_release(handle);
	}
	open_wait_free(wait);
}

static void
open_private(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	kvcfs_overwrite_load(req, inode, after_private_load, open_wait_new(inode, fi));
}

/* With O_TRUNC, where the thread was not redirected to: 0 when INODE is to be opened. */
static int
truncate_staging(fuse_req_t req, KvcfsInode *inode)
{
	KvcfsInode *fresh, *dir;
	g_autofree char *name = NULL;
	if (fuse_req_ctx(req)->pid == 0)
		return kvcfs_staging_set_size(inode, 0); /* as redirect_writer() */
	int rc = kvcfs_staging_displace(inode, &fresh, &dir, &name);
	if (rc == 0)
		return kvcfs_staging_set_size(inode, 0); /* reached by /proc: it has no name */
	if (rc > 0) {
		kvcfs_redirect_temp(inode->fs, fuse_req_ctx(req)->pid, dir, name, fresh);
		rc = -ESTALE;
	}
	kvcfs_inode_unref(dir, 1);
	return rc;
}

/* A reader may outlive the commit, when nothing may be left that can write. */
static int
own_descriptor(int fd, bool is_write)
{
	if (!is_write)
		return kvc_reopen(fd, O_RDONLY);
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);
	return copy < 0 ? -errno : copy;
}

/* A descriptor of the staging's file (the caller's), or -errno; *IS_DIRECT how to open it. */
static int
dup_staging(KvcfsInode *inode, bool is_write, bool *is_direct)
{
	Kvcfs *fs = inode->fs;
	int fd = -ENOENT;
	pthread_mutex_lock(&fs->names);
	const KvcfsStaging *st = inode->staging;
	const KvcL1Object *object = !st ? NULL : st->object ? st->object : st->base;
	if (object) {
		*is_direct = st->is_direct;
		fd = own_descriptor(kvc_l1_object_get_fd(object), is_write);
	}
	pthread_mutex_unlock(&fs->names);
	return fd;
}

/* The file of a staging is only sure to be there while names is held: the handle has its own. */
static void
open_staging_file(fuse_req_t req, KvcfsInode *inode, bool is_write, struct fuse_file_info *fi)
{
	bool is_direct = false;
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_WRITE : KVCFS_HANDLE_READ, inode);
	handle->fd = dup_staging(inode, is_write, &is_direct);
	fi->noflush = !is_write;
	if (handle->fd >= 0 && reply_open(req, handle, handle->fd, is_direct, fi))
		return;
	fuse_reply_err(req, handle->fd >= 0 ? ESTALE : -handle->fd);
	kvcfs_handle_release(handle);
}

/*
 * A temporary file, one whose writer passes it on through /proc, or a private one. true: answered.
 */
static bool
open_staging(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC);
	bool was_redirected = kvcfs_redirect_take(inode, fuse_req_ctx(req)->pid);
	int rc = 0;
	if (!is_staging(inode))
		return false;
	if (was_redirected && !is_write) {
		/* Of an open for writing that has failed: this one is of the committed file. */
		fuse_reply_err(req, ESTALE);
		return true;
	}
	if ((fi->flags & O_TRUNC) && !was_redirected)
		rc = truncate_staging(req, inode);
	if (rc == -EROFS) /* renamed meanwhile, and being committed */
		return false;
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return true;
	}
	if (is_write && kvcfs_staging_join(inode) < 0)
		return false;
	if (is_write)
		kvcfs_own_file_opened(inode, fuse_req_ctx(req)->pid);
	if (is_write && kvcfs_staging_is_copy(inode))
		open_private(req, inode, fi);
	else
		open_staging_file(req, inode, is_write, fi);
	return true;
}

static void
open_loaded_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
{
	KvcfsInode *prefix = keys->parent;
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY;
	KvcfsHandle *handle =
		kvcfs_handle_new(is_write ? KVCFS_HANDLE_KEYS_WRITE : KVCFS_HANDLE_TEXT, keys);
	/* In effect with the last close: see flush_keys(). */
	handle->is_replacing = is_write && (fi->flags & O_TRUNC);
	if (!is_write && (fi->flags & O_TRUNC))
		kvcfs_prefix_clear(prefix, false);
	GString *text = kvcfs_prefix_text(prefix);
	handle->write_offset = handle->is_replacing ? 0 : text->len;
	if (is_write)
		g_string_truncate(text, 0);
	handle->text = text;
	fi->fh = (uintptr_t)handle;
	fi->direct_io = 1;
	if (kvcfs_reply_open(req, fi, 0) != 0)
		kvcfs_handle_free(handle);
}

static void
after_chain(fuse_req_t req, KvcfsWake why, void *user)
{
	OpenWait *wait = user;
	bool is_loaded = kvcfs_prefix_is_loaded(wait->inode->parent);
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else if (!is_loaded)
		fuse_reply_err(req, EIO); /* not in time: an empty answer would be a lie */
	else
		open_loaded_keys(req, wait->inode, &wait->fi);
	open_wait_free(wait);
}

static void
load_and_open_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
{
	Kvcfs *fs = keys->fs;
	if ((fi->flags & O_TRUNC) || kvcfs_prefix_is_loaded(keys->parent)) {
		open_loaded_keys(req, keys, fi);
		return;
	}
	int64_t deadline = kvcfs_now_ns() + fs->config.load_timeout_ns;
	kvcfs_prefix_wait(keys->parent, req, deadline, after_chain, open_wait_new(keys, fi));
}

static void
after_chain_check(fuse_req_t req, KvcfsWake why, void *user)
{
	OpenWait *wait = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else if (!kvcfs_prefix_renew(wait->inode->parent))
		fuse_reply_err(req, ENOENT);
	else
		load_and_open_keys(req, wait->inode, &wait->fi);
	open_wait_free(wait);
}

static void
open_keys(fuse_req_t req, KvcfsInode *keys, struct fuse_file_info *fi)
{
	KvcfsInode *prefix = keys->parent;
	kvcfs_loop_hand_over(); /* a text is made of all its keys */
	if ((fi->flags & O_TRUNC) || !kvcfs_prefix_is_check_due(prefix)) {
		load_and_open_keys(req, keys, fi);
		return;
	}
	kvcfs_coherence_check(keys->fs, req, kvcfs_inode_get_key(prefix), after_chain_check,
			      open_wait_new(keys, fi));
}

static void
open_now(fuse_req_t req, KvcfsInode *inode, struct fuse_file_info *fi)
{
	bool is_write = (fi->flags & O_ACCMODE) != O_RDONLY || (fi->flags & O_TRUNC);
	if (open_staging(req, inode, fi))
		return;
	if (inode->key)
		check_and_open_object(req, inode, fi);
	else if (is_write && kvcfs_redirect_retry_temp(inode->fs, fuse_req_ctx(req)->pid, inode,
						       fi->flags & O_TRUNC))
		fuse_reply_err(req, ESTALE); /* who may create the name does so then */
	else
		fuse_reply_err(req, ENOENT);
}

static void
after_release(fuse_req_t req, KvcfsWake why, void *user)
{
	OpenWait *wait = user;
	if (why == KVCFS_WAKE_INTERRUPT)
		fuse_reply_err(req, EINTR);
	else
		open_now(req, wait->inode, &wait->fi);
	open_wait_free(wait);
}

/* Somebody has closed a newer version of the plain file INODE, and the kernel did not look its name
 * up again. */
static bool
waits_for_commit(fuse_req_t req, KvcfsInode *inode, const struct fuse_file_info *fi)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	bool is_plain = inode->key && inode->key->space == KVC_SPACE_PLAIN;
	KvcObjectKey *key = is_plain ? kvc_object_key_ref(inode->key) : NULL;
	pthread_mutex_unlock(&fs->names);
	KvcfsClosingFilter filter = {.key = key};
	bool is_closing = key && kvcfs_is_closing(fs, &filter);
	if (is_closing) {
		OpenWait *wait = open_wait_new(inode, fi);
		wait->key = key;
		kvcfs_count(fs, opens_waited_commit);
		kvcfs_wait_for_commit(fs, req, &filter, after_release, wait);
	} else if (key) {
		kvc_object_key_unref(key);
	}
	return is_closing;
}

void
kvcfs_op_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	KvcfsInode *inode = kvcfs_inode_of(kvcfs_of(req), ino);
	if (inode->kind == KVCFS_CONTROL)
		kvcfs_control_open(req, inode, fi);
	else if (inode->kind == KVCFS_KEYS)
		open_keys(req, inode, fi);
	else if (inode->kind != KVCFS_OBJECT)
		fuse_reply_err(req, EISDIR);
	else if (!waits_for_commit(req, inode, fi))
		open_now(req, inode, fi);
}
