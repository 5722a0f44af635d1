/* SPDX-License-Identifier: Apache-2.0 */

/*
 * LINK: "ln OBJECT PREFIX/" appends the object to the chain of a prefix directory of its rank. tar
 * and cp -a ask for it when they meet a file with more than one name. There are no other hard
 * links: an object has one key, and a key one name in a directory.
 */

#include "fs/internal.h"
#include "fs/prefix-chain.h"

#include <errno.h>

/* 0 and the *KEY of a committed object (transfer full), -EPERM: INODE is none, -ENOENT: it was. */
static int
get_committed_key(KvcfsInode *inode, KvcObjectKey **key)
{
	int rc = 0;
	pthread_mutex_lock(&inode->fs->names);
	if (inode->kind != KVCFS_OBJECT || inode->staging)
		rc = -EPERM;
	else if (!inode->key || inode->is_unlinked)
		rc = -ENOENT;
	else
		*key = kvc_object_key_ref(inode->key);
	pthread_mutex_unlock(&inode->fs->names);
	return rc;
}

int
kvcfs_prefix_link(KvcfsInode *prefix, KvcObjectKey *key)
{
	Kvcfs *fs = prefix->fs;
	bool must_arm = false;
	int rc = 0;
	pthread_mutex_lock(&fs->names);
	if (prefix->is_unlinked) {
		rc = -ENOENT;
	} else if (kvcfs_prefix_has_locked(prefix, key)) {
		rc = -EEXIST;
	} else if (!kvcfs_dir_has_room_locked(prefix)) {
		rc = -ENOSPC;
	} else {
		kvcfs_chain_append_locked(prefix, key, true);
		must_arm = kvcfs_prefix_changed_locked(prefix);
	}
	pthread_mutex_unlock(&fs->names);
	if (must_arm)
		kvcfs_prefix_arm_save_timer(fs);
	return rc;
}

static int
link_object(KvcfsInode *dir, KvcObjectKey *key, const char *name)
{
	if (dir->kind != KVCFS_PREFIX)
		return -EPERM;
	/* Equal scopes are the same pointer. */
	if (key->scope != dir->scope)
		return -EXDEV;
	g_autoptr(KvcObjectKey) named = kvcfs_name_to_key(dir->scope, name);
	if (!named || !kvc_object_key_equal(named, key))
		return -EINVAL;
	if (!kvcfs_object_exists(dir->fs, key))
		return -ENOENT;
	return kvcfs_prefix_link(dir, key);
}

void
kvcfs_op_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t new_parent, const char *new_name)
{
	Kvcfs *fs = kvcfs_of(req);
	KvcfsInode *inode = kvcfs_inode_of(fs, ino);
	g_autoptr(KvcObjectKey) key = NULL;
	int rc = get_committed_key(inode, &key);
	if (rc == 0)
		rc = link_object(kvcfs_inode_of(fs, new_parent), key, new_name);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		kvcfs_reply_entry(req, kvcfs_inode_ref(inode));
}
