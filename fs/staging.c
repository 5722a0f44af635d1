/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A written file from CREATE to its commit. A file under a hash name is invisible until its last
 * writer closed it; a temporary file is visible to all and never stored, and becomes an object by
 * rename. The object is published once, by whoever sees the last writer go or renames after that,
 * and only when it can be proven complete: closed by a living process, not empty, no write lost for
 * lack of memory.
 */

#include "fs/internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define FIRST_RESERVATION_BYTES (2u << 20)

/* From its FLUSH to its commit. */
static void
begin_closing_locked(KvcfsInode *inode)
{
	KvcfsStaging *st = inode->staging;
	kvcfs_closing_begin_locked(inode->fs, st->target, !st->is_closing);
	st->is_closing = true;
}

/* ---- Creating ------------------------------------------------------------------------------ */

static KvcfsInode *
rank_of(KvcfsInode *dir)
{
	return dir->kind == KVCFS_RANK ? dir : dir->parent;
}

KvcfsInode *
kvcfs_temp_lookup_locked(KvcfsInode *dir, const char *name)
{
	return dir->temps ? g_hash_table_lookup(dir->temps, name) : NULL;
}

/* Removes the name; returns the table's reference for the caller to drop without the lock. */
static KvcfsInode *
remove_temp_locked(KvcfsInode *dir, const char *name)
{
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	if (!inode)
		return NULL;
	g_hash_table_remove(dir->temps, name);
	inode->staging->temp_dir = NULL;
	g_clear_pointer(&inode->staging->temp_name, g_free);
	return inode;
}

/* Gives INODE a temporary name; returns whom it displaces (as remove_temp_locked). */
static KvcfsInode *
add_temp_locked(KvcfsInode *dir, const char *name, KvcfsInode *inode)
{
	KvcfsInode *old = remove_temp_locked(dir, name);
	if (old)
		old->is_unlinked = true;
	if (!dir->temps)
		dir->temps = g_hash_table_new(g_str_hash, g_str_equal);
	inode->staging->temp_dir = dir;
	inode->staging->temp_name = g_strdup(name);
	inode->staging->sequence = ++dir->fs->next_temp;
	g_hash_table_insert(dir->temps, inode->staging->temp_name, kvcfs_inode_ref_locked(inode));
	return old;
}

/* The object that INODE will become, and the position it takes in a prefix directory. */
static void
set_target_locked(KvcfsInode *inode, KvcfsInode *dir, const char *name)
{
	KvcfsStaging *st = inode->staging;
	st->target = kvcfs_name_to_key(dir->scope, name);
	if (dir->kind == KVCFS_PREFIX) {
		st->prefix = kvcfs_inode_ref_locked(dir);
		kvcfs_prefix_take_position_locked(dir, st->target);
	}
}

int
kvcfs_staging_create(KvcfsInode *dir,
		     const char *name,
		     const struct fuse_ctx *ctx,
		     mode_t mode,
		     KvcfsInode **out)
{
	Kvcfs *fs = dir->fs;
	KvcfsInode *rank = rank_of(dir);
	KvcL1Object *object;
	pthread_mutex_lock(&fs->names);
	uint64_t bytes = rank->last_bytes ? rank->last_bytes : FIRST_RESERVATION_BYTES;
	pthread_mutex_unlock(&fs->names);
	int rc = kvc_storage_manager_reserve_write(fs->sm, NULL, bytes, &object);
	if (rc < 0) {
		kvcfs_count(fs, creates_no_room);
		return rc;
	}
	KvcfsInode *displaced = NULL;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_inode_new_locked(fs, KVCFS_OBJECT, NULL, NULL, NULL);
	inode->mode = S_IFREG | (mode & 07777);
	inode->uid = ctx->uid;
	inode->gid = ctx->gid;
	inode->staging = g_new0(KvcfsStaging, 1);
	inode->staging->object = object;
	inode->staging->rank = kvcfs_inode_ref_locked(rank);
	inode->staging->n_writers = 1;
	if (kvcfs_name_classify(name) == KVCFS_NAME_HASH) {
		set_target_locked(inode, dir, name);
		inode->ino = inode->staging->target->hash;
	} else {
		displaced = add_temp_locked(dir, name, inode);
	}
	pthread_mutex_unlock(&fs->names);
	if (displaced)
		kvcfs_inode_unref(displaced, 1);
	kvcfs_count(fs, creates);
	*out = inode;
	return 0;
}

/* ---- Writing ------------------------------------------------------------------------------- */

int
kvcfs_staging_join(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	/* Without a writer but with a target it is being committed. */
	bool may_join = st && (st->n_writers > 0 || !st->target);
	if (may_join)
		st->n_writers++;
	pthread_mutex_unlock(&fs->names);
	return may_join ? 0 : -EROFS;
}

bool
kvcfs_staging_displace(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	g_autofree char *name = NULL;
	KvcfsInode *dir = NULL;
	pthread_mutex_lock(&fs->names);
	if (inode->staging && inode->staging->temp_dir) {
		dir = kvcfs_inode_ref_locked(inode->staging->temp_dir);
		name = g_strdup(inode->staging->temp_name);
	}
	pthread_mutex_unlock(&fs->names);
	if (!dir)
		return false;
	kvcfs_staging_unlink(dir, name);
	kvcfs_inode_unref(dir, 1);
	return true;
}

/*
 * For the time of a change the caller is one more writer: the object stays, and what it takes to
 * make room is done without the lock.
 */
static int
change(KvcfsInode *inode, uint64_t reserve, bool set_size, uint64_t bytes)
{
	Kvcfs *fs = inode->fs;
	int rc = kvcfs_write_proof_check_size(fs, MAX(reserve, bytes));
	if (rc == 0)
		rc = kvcfs_staging_join(inode);
	if (rc < 0)
		return rc;
	KvcL1Object *object = inode->staging->object;
	rc = kvc_storage_manager_extend_write(fs->sm, object, reserve);
	if (rc == 0 && set_size)
		rc = kvc_l1_object_set_size(object, bytes);
	pthread_mutex_lock(&fs->names);
	kvcfs_write_proof_seen_locked(inode->staging);
	pthread_mutex_unlock(&fs->names);
	kvcfs_staging_release_writer(inode);
	return rc;
}

int
kvcfs_staging_reserve(KvcfsInode *inode, uint64_t bytes)
{
	return change(inode, bytes, false, 0);
}

int
kvcfs_staging_set_size(KvcfsInode *inode, uint64_t bytes)
{
	return change(inode, bytes, true, bytes);
}

void
kvcfs_staging_renew_flush(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	if (inode->staging && inode->staging->target)
		begin_closing_locked(inode);
	pthread_mutex_unlock(&inode->fs->names);
}

int
kvcfs_staging_flush(KvcfsInode *inode, pid_t tid)
{
	Kvcfs *fs = inode->fs;
	KvcfsWriterExit how = kvcfs_writer_exit_look(tid);
	uint64_t file_limit = kvcfs_writer_file_limit(tid), bytes = 0;
	int rc = 0;
	if (how == KVCFS_WRITER_UNKNOWN)
		kvcfs_count(fs, writers_unknown);
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	if (st && kvcfs_write_proof_flush_locked(st, how, file_limit)) {
		rc = kvcfs_write_proof_damage(fs, st, NULL);
		bytes = kvc_l1_object_get_bytes(st->object);
		st->flushed_ns = kvcfs_now_ns();
		if (st->target)
			begin_closing_locked(inode);
	}
	pthread_mutex_unlock(&fs->names);
	if (rc == -EFBIG)
		kvcfs_write_proof_check_size(fs, bytes);
	return rc;
}

/* ---- The commit ---------------------------------------------------------------------------- */

/* Takes the staging from its inode, which answers for the object KEY from now on (NULL: for
 * nothing). */
static KvcfsStaging *
take_staging_locked(KvcfsInode *inode)
{
	KvcfsStaging *st = g_steal_pointer(&inode->staging);
	if (st->target && !inode->key) {
		inode->key = kvc_object_key_ref(st->target);
		inode->open_bytes = kvc_l1_object_get_bytes(st->object);
	}
	return st;
}

static void
free_staging(Kvcfs *fs, KvcfsStaging *st)
{
	if (st->object)
		kvc_storage_manager_abort_write(fs->sm, st->object);
	if (st->target)
		kvc_object_key_unref(st->target);
	if (st->prefix)
		kvcfs_inode_unref(st->prefix, 1);
	kvcfs_inode_unref(st->rank, 1);
	g_free(st->temp_name);
	g_free(st);
}

/* Why ST must not become an object: 0, -errno for the caller, or 1: quietly not. Counted. */
static int
find_objection(Kvcfs *fs, const KvcfsStaging *st)
{
	KvcfsStat why;
	int rc = kvcfs_write_proof_damage(fs, st, &why);
	if (rc < 0) {
		kvcfs_count_stat(fs, why);
		return rc;
	}
	if (st->flushed_ns == 0) {
		kvcfs_count(fs, writes_not_published_unflushed);
		return -EIO;
	}
	uint64_t bytes = kvc_l1_object_get_bytes(st->object);
	if (bytes == 0) {
		kvcfs_count(fs, writes_not_published_empty);
		return 1;
	}
	/* Exact to a page on small pages, to 2 MiB on huge ones (facts/fuse.md 1.13). */
	if (lseek(kvc_l1_object_get_fd(st->object), (off_t)bytes - 1, SEEK_DATA) < 0) {
		kvcfs_count(fs, writes_not_published_tail);
		return 1;
	}
	return 0;
}

/* close() has returned already: this is the only place that can tell. */
static void
report_lost_write(Kvcfs *fs, const KvcfsStaging *st, int rc)
{
	g_autofree char *name = kvc_object_key_to_string(st->target);
	kvcfs_count(fs, writes_not_published_error);
	g_warning("%s was written but L1 could not take it: %s", name, g_strerror(-rc));
}

static int
publish(Kvcfs *fs, KvcfsInode *inode, KvcfsStaging *st)
{
	int rc = find_objection(fs, st);
	if (rc != 0)
		return rc;
	uint64_t bytes = kvc_l1_object_get_bytes(st->object);
	rc = kvc_storage_manager_finish_write(fs->sm, g_steal_pointer(&st->object), st->target,
					      KVC_FINISH_FIRST_WINS);
	if (rc == KVC_FINISHED_DROPPED)
		kvcfs_count(fs, writes_duplicate);
	else if (rc == 0)
		kvcfs_count(fs, writes_published);
	else
		report_lost_write(fs, st, rc);
	pthread_mutex_lock(&inode->io_lock);
	/* Readers of the temporary file go on with the object. */
	if (rc >= 0 && inode->n_opens > 0 && !inode->commit_lock)
		kvc_storage_manager_reserve_read(fs->sm, st->target, &inode->commit_lock);
	pthread_mutex_unlock(&inode->io_lock);
	pthread_mutex_lock(&fs->names);
	/* An oversized one must not make the next reservation impossible. */
	if (rc >= 0)
		st->rank->last_bytes =
			MIN(bytes, MAX(fs->l1_capacity_bytes / 8, FIRST_RESERVATION_BYTES));
	pthread_mutex_unlock(&fs->names);
	return rc;
}

/* The end of a staging that has a target: an object, or nothing. 0 or -errno for a rename. */
static int
commit(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = take_staging_locked(inode);
	pthread_mutex_unlock(&fs->names);
	int rc = publish(fs, inode, st);
	pthread_mutex_lock(&fs->names);
	bool is_object = rc == 0 || rc == KVC_FINISHED_DROPPED;
	bool is_known = kvc_storage_manager_stat(fs->sm, st->target, NULL) == 0;
	if (is_known && !g_hash_table_contains(fs->objects, st->target))
		g_hash_table_insert(fs->objects, inode->key, inode);
	pthread_mutex_unlock(&fs->names);
	if (st->prefix)
		kvcfs_prefix_settle_position(st->prefix, st->target, is_object && is_known);
	pthread_mutex_lock(&fs->names);
	if (st->is_closing)
		kvcfs_closing_end_locked(fs, st->target);
	pthread_mutex_unlock(&fs->names);
	kvcfs_commit_wake(fs, st->target);
	free_staging(fs, st);
	return rc < 0 ? rc : 0;
}

void
kvcfs_staging_release_writer(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcfsStaging *dead = NULL;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	bool is_last = st && --st->n_writers == 0;
	if (is_last)
		kvcfs_write_proof_release_locked(st);
	bool must_commit = is_last && st->target;
	if (is_last && !st->target) {
		/* A temporary file stays; what it is worth is known from here on. */
		st->is_killed |= st->flushed_ns == 0;
		if (!st->temp_dir) {
			kvcfs_count(fs, writes_not_published_unlinked);
			dead = take_staging_locked(inode);
		}
	}
	pthread_mutex_unlock(&fs->names);
	if (must_commit)
		commit(inode);
	if (dead)
		free_staging(fs, dead);
}

void
kvcfs_staging_free(KvcfsInode *inode)
{
	free_staging(inode->fs, g_steal_pointer(&inode->staging));
}

/* ---- Names of temporary files -------------------------------------------------------------- */

int
kvcfs_staging_unlink(KvcfsInode *dir, const char *name)
{
	Kvcfs *fs = dir->fs;
	KvcfsStaging *dead = NULL;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = remove_temp_locked(dir, name);
	if (inode) {
		inode->is_unlinked = true;
		pthread_mutex_lock(&inode->io_lock);
		bool is_open = inode->n_opens > 0;
		pthread_mutex_unlock(&inode->io_lock);
		if (!is_open && inode->staging->n_writers == 0)
			dead = take_staging_locked(inode);
	}
	pthread_mutex_unlock(&fs->names);
	if (dead)
		free_staging(fs, dead);
	if (!inode)
		return -ENOENT;
	kvcfs_inode_unref(inode, 1);
	return 0;
}

/* rename onto .keys: the temporary file's text becomes the chain, the file is gone. */
static int
rename_to_keys(KvcfsInode *dir, const char *name, KvcfsInode *prefix)
{
	Kvcfs *fs = dir->fs;
	g_autofree char *text = NULL;
	ssize_t n = -ENOENT;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	if (inode && kvc_l1_object_get_bytes(inode->staging->object) > KVCFS_CHAIN_MAX_BYTES) {
		n = -EFBIG;
	} else if (inode) {
		uint64_t bytes = kvc_l1_object_get_bytes(inode->staging->object);
		text = g_malloc(bytes + 1);
		n = pread(kvc_l1_object_get_fd(inode->staging->object), text, bytes, 0);
		n = n < 0 ? -errno : n;
	}
	pthread_mutex_unlock(&fs->names);
	if (n < 0)
		return (int)n;
	int rc = kvcfs_prefix_replace(prefix, text, (size_t)n);
	return rc < 0 ? rc : kvcfs_staging_unlink(dir, name);
}

/* From one temporary name to another. */
static int
rename_temp(KvcfsInode *dir, const char *name, KvcfsInode *new_dir, const char *new_name)
{
	Kvcfs *fs = dir->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = remove_temp_locked(dir, name);
	KvcfsInode *displaced = inode ? add_temp_locked(new_dir, new_name, inode) : NULL;
	pthread_mutex_unlock(&fs->names);
	if (displaced)
		kvcfs_inode_unref(displaced, 1);
	if (!inode)
		return -ENOENT;
	kvcfs_inode_unref(inode, 1);
	return 0;
}

static int
rename_to_object(KvcfsInode *dir, const char *name, KvcfsInode *new_dir, const char *new_name)
{
	Kvcfs *fs = dir->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_temp_lookup_locked(dir, name);
	int rc = inode ? kvcfs_write_proof_damage(fs, inode->staging, NULL) : -ENOENT;
	if (rc < 0) {
		pthread_mutex_unlock(&fs->names);
		return rc;
	}
	remove_temp_locked(dir, name);
	set_target_locked(inode, new_dir, new_name);
	KvcfsStaging *st = inode->staging;
	KvcfsInode *old_rank = st->rank;
	st->rank = kvcfs_inode_ref_locked(rank_of(new_dir));
	bool is_open = st->n_writers > 0;
	if (is_open && st->flushed_ns)
		begin_closing_locked(inode);
	pthread_mutex_unlock(&fs->names);
	kvcfs_inode_unref(old_rank, 1);
	if (!is_open)
		rc = commit(inode);
	kvcfs_inode_unref(inode, 1);
	return rc;
}

static bool
exists(KvcfsInode *dir, const char *name, KvcfsNameClass class)
{
	Kvcfs *fs = dir->fs;
	if (class == KVCFS_NAME_HASH) {
		g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
		return kvcfs_object_exists(fs, key) &&
		       (dir->kind == KVCFS_RANK || kvcfs_prefix_has(dir, key));
	}
	pthread_mutex_lock(&fs->names);
	bool found = kvcfs_temp_lookup_locked(dir, name) != NULL;
	pthread_mutex_unlock(&fs->names);
	return found;
}

int
kvcfs_staging_rename(KvcfsInode *dir,
		     const char *name,
		     KvcfsInode *new_dir,
		     const char *new_name,
		     unsigned flags)
{
	KvcfsNameClass class = kvcfs_name_classify(new_name);
	if (new_dir->kind == KVCFS_PREFIX && strcmp(new_name, KVCFS_KEYS_FILE) == 0)
		return flags & RENAME_NOREPLACE ? -EEXIST : rename_to_keys(dir, name, new_dir);
	if (class == KVCFS_NAME_OTHER)
		return -EINVAL;
	if ((flags & RENAME_NOREPLACE) && exists(new_dir, new_name, class))
		return -EEXIST;
	if (class == KVCFS_NAME_TEMPORARY)
		return rename_temp(dir, name, new_dir, new_name);
	return rename_to_object(dir, name, new_dir, new_name);
}
