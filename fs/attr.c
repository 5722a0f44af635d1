/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Where attributes are. Those of a committed object belong to the engine: they outlive the inode,
 * eviction, and the daemon. A file on its way has them in its inode until the commit hands them
 * over, and an inode keeps a copy of what it last saw, for fstat() after an unlink. Directories and
 * the rest have them in the inode only, a prefix directory with its chain as well.
 */

#include "fs/internal.h"

#include <errno.h>

static bool
is_committed_locked(const KvcfsInode *inode)
{
	return inode->kind == KVCFS_OBJECT && !inode->staging && inode->key &&
	       !inode->is_unlinked && !kvcfs_inode_is_replaced_locked(inode);
}

/* A committed object opened for writing that nobody has written to, as touch(1) does. */
static bool
is_unwritten_copy_locked(const KvcfsInode *inode)
{
	const KvcfsStaging *st = inode->staging;
	return st && st->is_overwrite && !st->object && !st->sealed.st_ino && !st->is_target_gone;
}

KvcObjectKey *
kvcfs_attr_engine_key(KvcfsInode *inode)
{
	KvcObjectKey *key = NULL;
	pthread_mutex_lock(&inode->fs->names);
	if (is_unwritten_copy_locked(inode))
		key = inode->staging->target;
	else if (is_committed_locked(inode) || inode->kind == KVCFS_PREFIX)
		key = inode->key;
	if (key)
		kvc_object_key_ref(key);
	pthread_mutex_unlock(&inode->fs->names);
	return key;
}

/* ---- SETATTR ------------------------------------------------------------------------------- */

static int64_t
time_to_set(const struct timespec *ts, bool is_now)
{
	int64_t ns = ts->tv_sec * INT64_C(1000000000) + ts->tv_nsec;
	/* 0 is "unknown" in the engine; archives do set the epoch. */
	return is_now ? kvcfs_wall_ns() : ns == 0 ? 1 : ns;
}

/* What is set, in the engine's terms: KvcAttribute bits. */
static unsigned
translate(const struct stat *attr, int to_set, KvcObjectAttributes *attributes)
{
	const int mtime = FUSE_SET_ATTR_MTIME | FUSE_SET_ATTR_MTIME_NOW;
	const int atime = FUSE_SET_ATTR_ATIME | FUSE_SET_ATTR_ATIME_NOW;
	*attributes = (KvcObjectAttributes){
		.mode = attr->st_mode,
		.uid = attr->st_uid,
		.gid = attr->st_gid,
		.mtime_ns = time_to_set(&attr->st_mtim, to_set & FUSE_SET_ATTR_MTIME_NOW),
		.atime_ns = time_to_set(&attr->st_atim, to_set & FUSE_SET_ATTR_ATIME_NOW),
	};
	return (to_set & FUSE_SET_ATTR_MODE ? KVC_ATTRIBUTE_MODE : 0u) |
	       (to_set & FUSE_SET_ATTR_UID ? KVC_ATTRIBUTE_UID : 0u) |
	       (to_set & FUSE_SET_ATTR_GID ? KVC_ATTRIBUTE_GID : 0u) |
	       (to_set & mtime ? KVC_ATTRIBUTE_MTIME : 0u) |
	       (to_set & atime ? KVC_ATTRIBUTE_ATIME : 0u);
}

static int64_t
written_ns(const struct stat *backing)
{
	return backing->st_mtim.tv_sec * INT64_C(1000000000) + backing->st_mtim.tv_nsec;
}

/* When INODE's file was last written to, by the clock of the kernel; 0: it has none. */
static int64_t
look_when_written_locked(const KvcfsInode *inode)
{
	struct stat backing;
	if (!inode->staging || !inode->staging->object ||
	    fstat(kvc_l1_object_get_fd(inode->staging->object), &backing) != 0)
		return 0;
	return written_ns(&backing);
}

static void
set_in_inode_locked(KvcfsInode *inode, const KvcObjectAttributes *attributes, unsigned which)
{
	inode->ctime_ns = kvcfs_wall_ns();
	if (which & KVC_ATTRIBUTE_MODE)
		inode->mode = (inode->mode & S_IFMT) | (attributes->mode & 07777);
	if (which & KVC_ATTRIBUTE_UID)
		inode->uid = attributes->uid;
	if (which & KVC_ATTRIBUTE_GID)
		inode->gid = attributes->gid;
	if ((inode->kind == KVCFS_DIR || inode->kind == KVCFS_RANK) &&
	    (which & (KVC_ATTRIBUTE_MODE | KVC_ATTRIBUTE_UID | KVC_ATTRIBUTE_GID)))
		kvcfs_tree_update_locked(inode);
	if (which & KVC_ATTRIBUTE_ATIME)
		inode->atime_ns = attributes->atime_ns;
	if (which & KVC_ATTRIBUTE_MTIME) {
		inode->mtime_ns = attributes->mtime_ns;
		inode->written_ns = look_when_written_locked(inode);
	}
	if (inode->kind == KVCFS_KEYS && (which & KVC_ATTRIBUTE_MTIME))
		kvcfs_chain_set_time_locked(inode->parent, inode->mtime_ns);
}

/*
 * What was set on the object KEY is set on the copies that will replace it, or their commits would
 * undo it.
 */
static void
set_in_overwriters(Kvcfs *fs,
		   const KvcObjectKey *key,
		   const KvcObjectAttributes *attributes,
		   unsigned which)
{
	pthread_mutex_lock(&fs->names);
	const GPtrArray *writers = kvcfs_staging_writers_locked(fs, key);
	for (guint i = 0; writers && i < writers->len; i++) {
		KvcfsInode *inode = writers->pdata[i];
		if (inode->staging->is_overwrite)
			set_in_inode_locked(inode, attributes, which);
	}
	pthread_mutex_unlock(&fs->names);
}

/* A prefix directory's go with its chain: the whole of them, the engine's default is a file's. */
static void
set_of_prefix(KvcfsInode *prefix, KvcObjectKey *key, unsigned which)
{
	Kvcfs *fs = prefix->fs;
	pthread_mutex_lock(&fs->names);
	KvcObjectAttributes attributes = {
		.mode = prefix->mode,
		.uid = prefix->uid,
		.gid = prefix->gid,
		.mtime_ns = prefix->mtime_ns,
	};
	pthread_mutex_unlock(&fs->names);
	which |= KVC_ATTRIBUTE_MODE | KVC_ATTRIBUTE_UID | KVC_ATTRIBUTE_GID;
	kvc_storage_manager_set_attributes(fs->sm, key, &attributes, which & ~KVC_ATTRIBUTE_ATIME);
}

void
kvcfs_attr_set(KvcfsInode *inode, const struct stat *attr, int to_set)
{
	Kvcfs *fs = inode->fs;
	KvcObjectAttributes attributes;
	unsigned which = translate(attr, to_set, &attributes);
	if (which == 0)
		return;
	g_autoptr(KvcObjectKey) key = kvcfs_attr_engine_key(inode);
	if (key && inode->kind == KVCFS_OBJECT &&
	    kvc_storage_manager_set_attributes(fs->sm, key, &attributes, which) == 0) {
		set_in_overwriters(fs, key, &attributes, which);
		return;
	}
	pthread_mutex_lock(&fs->names);
	set_in_inode_locked(inode, &attributes, which);
	pthread_mutex_unlock(&fs->names);
	if (key && inode->kind == KVCFS_PREFIX)
		set_of_prefix(inode, key, which);
}

/* ---- Between the inode and the engine ------------------------------------------------------- */

int64_t
kvcfs_attr_given_mtime_locked(const KvcfsInode *inode, const struct stat *backing)
{
	return written_ns(backing) == inode->written_ns ? inode->mtime_ns : 0;
}

void
kvcfs_attr_give(KvcfsInode *inode, KvcL1Object *object)
{
	struct stat backing;
	bool has_stat = fstat(kvc_l1_object_get_fd(object), &backing) == 0;
	pthread_mutex_lock(&inode->fs->names);
	KvcObjectAttributes attributes = {
		.mode = S_IFREG | (inode->mode & 07777),
		.uid = inode->uid,
		.gid = inode->gid,
		.xattrs = inode->xattrs,
	};
	if (inode->kind == KVCFS_OBJECT && has_stat) {
		attributes.mtime_ns = kvcfs_attr_given_mtime_locked(inode, &backing);
		attributes.atime_ns = inode->atime_ns;
	} else if (inode->kind == KVCFS_PREFIX) {
		attributes.mtime_ns = inode->mtime_ns;
	}
	kvc_l1_object_set_attributes(object, &attributes);
	pthread_mutex_unlock(&inode->fs->names);
}

void
kvcfs_attr_settle_locked(KvcfsInode *inode, KvcObjectKey *key)
{
	if (inode->is_pinned)
		kvc_storage_manager_set_pinned(inode->fs->sm, key, true);
}

void
kvcfs_attr_remember_locked(KvcfsInode *inode, const KvcObjectInfo *info)
{
	inode->mtime_ns = info->mtime_ns;
	inode->atime_ns = info->atime_ns;
	inode->ctime_ns = info->ctime_ns;
	if (info->mode == 0)
		return;
	inode->mode = (inode->mode & S_IFMT) | (info->mode & 07777);
	inode->uid = info->uid;
	inode->gid = info->gid;
}

void
kvcfs_attr_remember_prefix_locked(KvcfsInode *prefix, const KvcObjectInfo *info)
{
	kvcfs_attr_remember_locked(prefix, info);
	kvc_xattrs_unref(prefix->xattrs);
	prefix->xattrs = kvc_storage_manager_get_xattrs(prefix->fs->sm, prefix->key);
}

void
kvcfs_attr_note_open_locked(KvcfsInode *inode)
{
	KvcObjectInfo info;
	if (!is_committed_locked(inode))
		return;
	kvc_storage_manager_note_access(inode->fs->sm, inode->key);
	if (kvc_storage_manager_stat(inode->fs->sm, inode->key, &info) == 0)
		kvcfs_attr_remember_locked(inode, &info);
}
