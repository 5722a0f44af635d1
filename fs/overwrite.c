/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Writing what is committed. A committed object never changes: its writer gets a private inode
 * (redirect.c says how), which is a staging file of the same name. Opened with O_TRUNC it begins
 * empty; else it is in direct mode, reads are served from the committed object, and the first write
 * makes a copy. The last close commits it like any other staging file; nothing written, nothing
 * committed.
 */

#include "fs/internal.h"
#include "fs/reservation.h"

#include <errno.h>
#include <unistd.h>

int
kvcfs_overwrite_begin(KvcfsInode *inode, bool truncate, KvcfsInode **out)
{
	Kvcfs *fs = inode->fs;
	KvcfsStagingParams params = {.is_expected = true, .is_overwrite = true};
	pthread_mutex_lock(&fs->names);
	KvcfsInode *dir = kvcfs_tree_find_dir_locked(fs, inode->key->scope);
	if (dir)
		kvcfs_inode_ref_locked(dir);
	pthread_mutex_unlock(&fs->names);
	if (!dir)
		return -ENOENT;
	params.dir = dir;
	int rc = truncate ? kvcfs_reservation_guess(&params) : 0;
	if (rc == 0) {
		KvcObjectInfo info;
		pthread_mutex_lock(&fs->names);
		/* As of this moment: what is set on the object from here on finds the copy. */
		if (kvc_storage_manager_stat(fs->sm, inode->key, &info) == 0)
			kvcfs_attr_remember_locked(inode, &info);
		params.mode = inode->mode;
		params.uid = inode->uid;
		params.gid = inode->gid;
		*out = kvcfs_staging_new_locked(&params);
		kvcfs_staging_set_target_locked(*out, inode->key);
		(*out)->xattrs = kvc_storage_manager_get_xattrs(fs->sm, inode->key);
		(*out)->staging->is_target_gone = inode->is_unlinked; /* since we looked */
		/* What is in L1 cannot be lost any more before the OPEN comes. */
		if (!truncate)
			kvc_storage_manager_reserve_read(fs->sm, inode->key,
							 &(*out)->staging->base);
		pthread_mutex_unlock(&fs->names);
		kvcfs_count(fs, overwrites);
	}
	kvcfs_inode_unref(dir, 1);
	return rc;
}

/* ---- The committed object ------------------------------------------------------------------ */

typedef struct Load {
	KvcfsInode *inode; /* owned reference */
	void (*done)(fuse_req_t req, int error, void *user);
	void *user;
} Load;

/* BASE (owned) is what the private INODE is a copy of, unless it has one or has ended. */
static int
set_base(KvcfsInode *inode, KvcL1Object *base)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	if (st && !st->base && !st->object)
		st->base = g_steal_pointer(&base);
	pthread_mutex_unlock(&fs->names);
	if (base)
		kvc_storage_manager_finish_read(fs->sm, base);
	return st ? 0 : -ESTALE;
}

static bool
after_load(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user)
{
	Load *load = user;
	KvcL1Object *object = kvcfs_fetch_take_object(fetch, why);
	int rc = object			       ? set_base(load->inode, object)
		 : why == KVCFS_WAKE_INTERRUPT ? -EINTR
					       : -ENOENT;
	load->done(req, rc, load->user);
	kvcfs_inode_unref(load->inode, 1);
	g_free(load);
	return false;
}

void
kvcfs_overwrite_load(fuse_req_t req,
		     KvcfsInode *inode,
		     void (*done)(fuse_req_t req, int error, void *user),
		     void *user)
{
	Kvcfs *fs = inode->fs;
	KvcL1Object *object;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	bool is_there = st && (st->base || st->object);
	g_autoptr(KvcObjectKey) key = st ? kvc_object_key_ref(st->target) : NULL;
	pthread_mutex_unlock(&fs->names);
	if (!key || is_there) {
		done(req, key ? 0 : -ESTALE, user);
	} else if (kvc_storage_manager_reserve_read(fs->sm, key, &object) == 0) {
		done(req, set_base(inode, object), user);
	} else {
		Load *load = g_new(Load, 1);
		*load = (Load){kvcfs_inode_ref(inode), done, user};
		kvcfs_count(fs, opens_waited);
		kvcfs_fetch_object(fs, req, key, after_load, load);
	}
}

/* ---- The copy ------------------------------------------------------------------------------ */

/* In the kernel, from one file of L1 to another. */
static int
copy_bytes(int from, int to, uint64_t bytes)
{
	off_t in = 0, out = 0;
	while ((uint64_t)out < bytes) {
		ssize_t n = copy_file_range(from, &in, to, &out, bytes - (uint64_t)out, 0);
		if (n < 0 && errno != EINTR)
			return -errno;
		if (n == 0)
			return -EIO;
	}
	return 0;
}

static int
make_copy(KvcfsInode *inode, uint64_t bytes)
{
	Kvcfs *fs = inode->fs;
	KvcfsStaging *st = inode->staging;
	KvcL1Object *object;
	uint64_t base_bytes = st->base ? kvc_l1_object_get_bytes(st->base) : 0;
	if (st->target->space != KVC_SPACE_PLAIN)
		return -EROFS;
	int rc = kvcfs_reservation_new(fs, NULL, MAX(bytes, base_bytes), &object);
	if (rc == 0 && st->base) {
		rc = copy_bytes(kvc_l1_object_get_fd(st->base), kvc_l1_object_get_fd(object),
				base_bytes);
		if (rc < 0)
			kvc_storage_manager_abort_write(fs->sm, object);
	}
	if (rc < 0)
		return rc;
	kvcfs_count(fs, overwrites_copied);
	pthread_mutex_lock(&fs->names);
	st->object = object;
	pthread_mutex_unlock(&fs->names);
	return 0;
}

int
kvcfs_overwrite_copy(KvcfsInode *inode, uint64_t bytes)
{
	KvcfsStaging *st = inode->staging;
	pthread_mutex_lock(&st->copy_lock);
	int rc = st->object ? 0 : make_copy(inode, bytes);
	pthread_mutex_unlock(&st->copy_lock);
	return rc;
}

int
kvcfs_overwrite_truncate(KvcfsInode *inode, uint64_t bytes)
{
	int rc = kvcfs_staging_join(inode);
	if (rc < 0)
		return rc;
	rc = kvcfs_staging_set_size(inode, bytes);
	if (rc == 0)
		kvcfs_staging_declare_complete(inode);
	kvcfs_staging_release_writer(inode);
	return rc;
}
