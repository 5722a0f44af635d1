/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A written file from CREATE to its commit. A file under a hash name is invisible until its last
 * writer closed it; a temporary file is visible to all and never stored, and becomes an object by
 * rename. The object is published once, by whoever sees the last writer go or renames after that,
 * and only when it can be proven complete: closed by a living process, not empty, no write lost for
 * lack of memory.
 */

#include "fs/internal.h"
#include "fs/reservation.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* ---- Creating ------------------------------------------------------------------------------ */

KvcfsInode *
kvcfs_staging_new_locked(const KvcfsStagingParams *params)
{
	KvcfsInode *inode = kvcfs_inode_new_locked(params->dir->fs, KVCFS_OBJECT, NULL, NULL, NULL);
	KvcfsStaging *st = g_new0(KvcfsStaging, 1);
	inode->mode = S_IFREG | (params->mode & 07777);
	inode->uid = params->uid;
	inode->gid = params->gid;
	inode->staging = st;
	st->closing.staging = st;
	st->object = params->object;
	st->dir = kvcfs_inode_ref_locked(params->dir);
	st->is_direct = params->is_direct || !params->object;
	st->is_expected = params->is_expected;
	st->is_overwrite = params->is_overwrite;
	st->guess_bytes = params->guess_bytes;
	st->owner = params->owner;
	st->n_owner_opens = 1;
	st->n_writers = params->is_expected ? 0 : 1;
	pthread_mutex_init(&st->copy_lock, NULL);
	kvcfs_reservation_begin_locked(st);
	return inode;
}

GPtrArray *
kvcfs_staging_writers_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	return g_hash_table_lookup(fs->writing, key);
}

bool
kvcfs_is_being_written_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	return kvcfs_staging_writers_locked(fs, key) != NULL;
}

void
kvcfs_staging_set_target_locked(KvcfsInode *inode, KvcObjectKey *key)
{
	Kvcfs *fs = inode->fs;
	GPtrArray *writers = kvcfs_staging_writers_locked(fs, key);
	inode->staging->target = kvc_object_key_ref(key);
	inode->ino = kvcfs_key_ino(key);
	if (!writers) {
		writers = g_ptr_array_new();
		g_hash_table_insert(fs->writing, kvc_object_key_ref(key), writers);
	}
	g_ptr_array_add(writers, inode);
}

static void
leave_writing_locked(KvcfsInode *inode, const KvcfsStaging *st)
{
	Kvcfs *fs = inode->fs;
	KvcObjectKey *target = st->target;
	GPtrArray *writers = target ? kvcfs_staging_writers_locked(fs, target) : NULL;
	if (writers && g_ptr_array_remove(writers, inode) && writers->len == 0)
		g_hash_table_remove(fs->writing, target);
}

/* Whose size hint a file in DIR follows. */
static KvcfsInode *
hint_dir(KvcfsInode *dir)
{
	return dir->kind == KVCFS_PREFIX ? dir->parent : dir;
}

bool
kvcfs_staging_set_name_locked(KvcfsInode *inode, KvcfsInode *dir, const char *name)
{
	KvcfsStaging *st = inode->staging;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	kvcfs_staging_set_target_locked(inode, key);
	st->named_ns = kvcfs_now_ns();
	if (dir->kind == KVCFS_PREFIX) {
		st->prefix = kvcfs_inode_ref_locked(dir);
		kvcfs_prefix_take_position_locked(dir, key);
	}
	return st->n_writers > 0 || st->is_expected;
}

/* For those who change the table while they go through it. */
static GPtrArray *
copy_writers_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	GPtrArray *writers = kvcfs_staging_writers_locked(fs, key);
	return writers ? g_ptr_array_copy(writers, NULL, NULL) : g_ptr_array_new();
}

void
kvcfs_staging_lose_name_locked(KvcfsInode *inode)
{
	inode->staging->is_target_gone = true;
	inode->is_unlinked = true;
	leave_writing_locked(inode, inode->staging);
}

void
kvcfs_staging_object_removed_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	g_autoptr(GPtrArray) writers = copy_writers_locked(fs, key);
	for (guint i = 0; i < writers->len; i++) {
		KvcfsInode *inode = writers->pdata[i];
		if (inode->staging->is_overwrite)
			kvcfs_staging_lose_name_locked(inode);
	}
}

void
kvcfs_staging_name_removed_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcfsInode *prefix)
{
	const GPtrArray *writers = kvcfs_staging_writers_locked(fs, key);
	int64_t now = kvcfs_now_ns();
	for (guint i = 0; writers && i < writers->len; i++) {
		KvcfsStaging *st = ((KvcfsInode *)writers->pdata[i])->staging;
		if (!prefix)
			st->removed_ns = now;
		else if (st->prefix == prefix)
			st->entry_removed_ns = now;
	}
}

void
kvcfs_staging_retarget_locked(KvcfsInode *inode, KvcObjectKey *key)
{
	const KvcfsStaging *st = inode->staging;
	leave_writing_locked(inode, st);
	kvcfs_inode_retire_locked(inode, st->target, (GDestroyNotify)kvc_object_key_unref);
	kvcfs_staging_set_target_locked(inode, key);
}

void
kvcfs_staging_object_moved_locked(Kvcfs *fs, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	g_autoptr(GPtrArray) writers = copy_writers_locked(fs, old_key);
	for (guint i = 0; i < writers->len; i++) {
		KvcfsInode *inode = writers->pdata[i];
		if (inode->staging->is_overwrite)
			kvcfs_staging_retarget_locked(inode, new_key);
	}
}

void
kvcfs_staging_scope_moved_locked(Kvcfs *fs, KvcKeyScope *old_scope, KvcKeyScope *scope)
{
	g_autoptr(GPtrArray) moved = g_ptr_array_new();
	GHashTableIter iter;
	KvcObjectKey *key;
	GPtrArray *writers;
	g_hash_table_iter_init(&iter, fs->writing);
	while (g_hash_table_iter_next(&iter, (void **)&key, (void **)&writers))
		for (guint i = 0; key->scope == old_scope && i < writers->len; i++)
			g_ptr_array_add(moved, writers->pdata[i]);
	for (guint i = 0; i < moved->len; i++) {
		KvcfsInode *inode = moved->pdata[i];
		const KvcObjectKey *old = inode->staging->target;
		g_autoptr(KvcObjectKey) new_key = kvc_object_key_new(
			scope, old->space, old->chunk_hash, old->chunk_hash_len, NULL);
		kvcfs_staging_retarget_locked(inode, new_key);
	}
}

/* O_EXCL: nobody may have the name or be writing it (lock files). Hash names have no owner. */
static bool
is_taken_locked(KvcfsInode *dir, const char *name)
{
	if (kvcfs_temp_lookup_locked(dir, name))
		return true;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	return key && key->space == KVC_SPACE_PLAIN &&
	       (kvcfs_is_being_written_locked(dir->fs, key) || kvcfs_object_exists(dir->fs, key));
}

int
kvcfs_staging_create(KvcfsInode *dir,
		     const char *name,
		     const struct fuse_ctx *ctx,
		     mode_t mode,
		     int flags,
		     KvcfsInode **out)
{
	Kvcfs *fs = dir->fs;
	KvcfsInode *displaced = NULL, *joined = NULL;
	KvcfsStagingParams params = {
		.dir = hint_dir(dir),
		.mode = mode,
		.uid = ctx->uid,
		.gid = ctx->gid,
		.owner = kvcfs_own_file_maker(dir, name, ctx->pid, flags),
	};
	int rc = kvcfs_reservation_guess(&params);
	if (rc < 0)
		return rc;
	kvcfs_inode_gives_group(dir, &params.gid);
	pthread_mutex_lock(&fs->names);
	bool is_temporary = kvcfs_name_classify(dir->scope, name) == KVCFS_NAME_TEMPORARY;
	if (dir->is_unlinked)
		rc = -ENOENT;
	else if ((flags & O_EXCL) && is_taken_locked(dir, name))
		rc = -EEXIST;
	else if (!is_temporary && !kvcfs_dir_has_room_locked(dir))
		rc = -ENOSPC;
	else if (is_temporary && !(flags & O_TRUNC))
		joined = kvcfs_temp_lookup_locked(dir, name);
	if (joined) {
		*out = kvcfs_inode_ref_locked(joined);
		joined->staging->n_writers++;
		joined->staging->is_expected = false;
	} else if (rc == 0) {
		*out = kvcfs_staging_new_locked(&params);
		params.object = NULL;
		if (is_temporary)
			displaced = kvcfs_temp_add_locked(dir, name, *out);
		else
			kvcfs_staging_set_name_locked(*out, dir, name);
	}
	pthread_mutex_unlock(&fs->names);
	if (displaced)
		kvcfs_temp_forget(displaced);
	if (params.object)
		kvcfs_reservation_drop(&params);
	if (rc == 0)
		kvcfs_count(fs, creates);
	return rc;
}

/* ---- Writing ------------------------------------------------------------------------------- */

int
kvcfs_staging_join(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	/* Without a writer but with a target it is being committed, or expects its first one. */
	bool may_join = st && (st->n_writers > 0 || st->is_expected || !st->target);
	if (may_join) {
		st->n_writers++;
		st->is_expected = false;
	}
	pthread_mutex_unlock(&fs->names);
	return may_join ? 0 : -EROFS;
}

int
kvcfs_staging_displace(KvcfsInode *inode, KvcfsInode **out, KvcfsInode **dir_out, char **name)
{
	Kvcfs *fs = inode->fs;
	KvcfsInode *displaced = NULL;
	KvcfsStagingParams params = {.is_expected = true};
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	KvcfsInode *dir = st && st->temp_dir ? kvcfs_inode_ref_locked(st->temp_dir) : NULL;
	*name = dir ? g_strdup(st->temp_name) : NULL;
	if (dir)
		params.dir = kvcfs_inode_ref_locked(st->dir);
	params.mode = inode->mode;
	params.uid = inode->uid;
	params.gid = inode->gid;
	pthread_mutex_unlock(&fs->names);
	if (!dir)
		return 0;
	int rc = kvcfs_reservation_guess(&params);
	if (rc == 0) {
		pthread_mutex_lock(&fs->names);
		*out = kvcfs_staging_new_locked(&params);
		displaced = kvcfs_temp_add_locked(dir, *name, *out);
		pthread_mutex_unlock(&fs->names);
	}
	if (displaced)
		kvcfs_temp_forget(displaced);
	kvcfs_inode_unref(params.dir, 1);
	*dir_out = dir;
	return rc < 0 ? rc : 1;
}

/*
 * For the time of a change the caller is one more writer: the object stays, and what it takes to
 * make room is done without the lock.
 */
static int
change(KvcfsInode *inode, uint64_t reserve, bool set_size, uint64_t bytes)
{
	Kvcfs *fs = inode->fs;
	int rc = kvcfs_write_proof_check_size(inode, MAX(reserve, bytes));
	if (rc == 0)
		rc = kvcfs_staging_join(inode);
	if (rc < 0)
		return rc;
	rc = kvcfs_overwrite_copy(inode, reserve);
	KvcL1Object *object = inode->staging->object;
	if (rc == 0)
		rc = kvcfs_reservation_extend(inode, reserve);
	/* Who grows keeps what is behind the end: what is allocated twice counts as written. */
	bool is_cut = rc == 0 && set_size && bytes <= kvc_l1_object_get_bytes(object);
	if (rc == 0 && set_size)
		rc = kvc_l1_object_set_size(object, bytes);
	/* Each write asks for its room again: what was cut off must not stay charged. */
	if (rc == 0 && is_cut && !fs->is_passthrough)
		kvc_storage_manager_trim_write(fs->sm, object, bytes);
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

bool
kvcfs_staging_is_copy(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	const KvcfsStaging *st = inode->staging;
	bool is_copy = st && (st->base || !st->object);
	pthread_mutex_unlock(&inode->fs->names);
	return is_copy;
}

int
kvcfs_staging_get_fd(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	KvcfsStaging *st = inode->staging;
	KvcL1Object *object = !st ? NULL : st->object ? st->object : st->base;
	pthread_mutex_unlock(&inode->fs->names);
	return object ? kvc_l1_object_get_fd(object) : -1;
}

void
kvcfs_staging_declare_complete(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	inode->staging->flushed_ns = kvcfs_now_ns();
	inode->staging->is_declared_complete = true;
	pthread_mutex_unlock(&inode->fs->names);
}

void
kvcfs_staging_renew_flush(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	if (inode->staging && inode->staging->object)
		kvcfs_closing_begin_locked(inode->fs, &inode->staging->closing);
	pthread_mutex_unlock(&inode->fs->names);
}

int
kvcfs_staging_flush(KvcfsInode *inode, pid_t tid)
{
	Kvcfs *fs = inode->fs;
	KvcfsWriterExit how = kvcfs_writer_exit_look(tid);
	uint64_t file_limit = kvcfs_writer_file_limit(tid), bytes = 0;
	bool is_flushed = false;
	int rc = 0;
	if (how == KVCFS_WRITER_UNKNOWN)
		kvcfs_count(fs, writers_unknown);
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	if (st)
		kvcfs_own_file_closed_locked(st, tid);
	if (st && kvcfs_write_proof_flush_locked(st, how, file_limit)) {
		rc = kvcfs_write_proof_damage(fs, st, NULL);
		bytes = kvc_l1_object_get_bytes(st->object);
		st->flushed_ns = kvcfs_now_ns();
		kvcfs_closing_begin_locked(fs, &st->closing);
		is_flushed = true;
	}
	pthread_mutex_unlock(&fs->names);
	/* Who looks after the close() sees a change, and a listing then waits for the commit. */
	if (is_flushed)
		kvcfs_dir_gets_entry(fs, st);
	if (rc == -EFBIG)
		kvcfs_write_proof_check_size(inode, bytes);
	return rc;
}

/* ---- The commit ---------------------------------------------------------------------------- */

/* What a descriptor will see when the object is gone. */
static void
note_size_locked(KvcfsInode *inode)
{
	const KvcL1Object *object = inode->staging->object;
	pthread_mutex_lock(&inode->io_lock);
	if (object)
		inode->open_bytes = kvc_l1_object_get_bytes(object);
	pthread_mutex_unlock(&inode->io_lock);
}

/* Takes the staging from its inode, which answers for the object KEY from now on (NULL: for
 * nothing). */
static KvcfsStaging *
take_staging_locked(KvcfsInode *inode)
{
	KvcfsStaging *st = g_steal_pointer(&inode->staging);
	if (st->target && !inode->key)
		inode->key = kvc_object_key_ref(st->target);
	kvcfs_reservation_end_locked(st);
	return st;
}

static void
free_staging(Kvcfs *fs, KvcfsStaging *st)
{
	kvcfs_loop_hand_over(); /* memory is given back */
	pthread_mutex_lock(&fs->names);
	kvcfs_closing_end_locked(fs, &st->closing);
	pthread_mutex_unlock(&fs->names);
	if (st->object)
		kvc_storage_manager_abort_write(fs->sm, st->object);
	if (st->base)
		kvc_storage_manager_finish_read(fs->sm, st->base);
	if (st->target)
		kvc_object_key_unref(st->target);
	if (st->prefix)
		kvcfs_inode_unref(st->prefix, 1);
	kvcfs_inode_unref(st->dir, 1);
	pthread_mutex_destroy(&st->copy_lock);
	g_free(st->temp_name);
	g_free(st);
}

/* Beside what finish_write returns: quietly not an object. */
#define NOT_PUBLISHED (KVC_FINISHED_DROPPED + 1)

/* Why ST must not become an object: 0, -errno for the caller, or NOT_PUBLISHED. Counted. */
static int
find_objection(Kvcfs *fs, const KvcfsStaging *st)
{
	KvcfsStat why;
	if (!st->object)
		return NOT_PUBLISHED; /* nothing was written */
	if (st->is_target_gone) {
		kvcfs_count(fs, writes_not_published_unlinked);
		return NOT_PUBLISHED;
	}
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
	if (bytes == 0 && st->target->space == KVC_SPACE_PLAIN)
		return 0;
	if (bytes == 0) {
		kvcfs_count(fs, writes_not_published_empty);
		return NOT_PUBLISHED;
	}
	/* Exact to a page on small pages, to 2 MiB on huge ones. */
	if (!st->is_declared_complete &&
	    lseek(kvc_l1_object_get_fd(st->object), (off_t)bytes - 1, SEEK_DATA) < 0) {
		kvcfs_count(fs, writes_not_published_tail);
		return NOT_PUBLISHED;
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

/*
 * All that may wait: 0 and *OBJECT, which is what it will be but has no name yet, -errno or
 * NOT_PUBLISHED.
 */
static int
prepare(Kvcfs *fs, KvcfsInode *inode, KvcfsStaging *st, KvcL1Object **object)
{
	int rc = find_objection(fs, st);
	if (rc != 0)
		return rc;
	kvcfs_attr_give(inode, st->object);
	pthread_mutex_lock(&fs->names);
	/* Readers of a temporary file have it open. */
	(void)fstat(kvc_l1_object_get_fd(st->object), &st->sealed);
	*object = g_steal_pointer(&st->object);
	pthread_mutex_unlock(&fs->names);
	return kvc_storage_manager_seal_write(fs->sm, *object);
}

int64_t
kvcfs_staging_order(const KvcfsStaging *st)
{
	return MAX(st->flushed_ns, st->named_ns);
}

/* Versions that were closed before ST was, and commit later, must not replace it. */
static void
replace_older_locked(Kvcfs *fs, const KvcfsStaging *st)
{
	const GPtrArray *writers = kvcfs_staging_writers_locked(fs, st->target);
	for (guint i = 0; writers && i < writers->len; i++) {
		KvcfsStaging *other = ((KvcfsInode *)writers->pdata[i])->staging;
		if (other) /* not ST's own, that was taken from its inode */
			other->replaced_ns = MAX(other->replaced_ns, kvcfs_staging_order(st));
	}
}

/*
 * OBJECT (taken) gets the name that ST has now. Whoever removes, renames or publishes a name holds
 * names as well: so it is no other name's, what it replaces is what has the name at this moment,
 * and there is nothing to be put right afterwards, when others may have put a file there.
 */
static int
publish_locked(Kvcfs *fs, KvcfsInode *inode, KvcfsStaging *st, KvcL1Object *object)
{
	bool is_plain = st->target->space == KVC_SPACE_PLAIN;
	bool is_replaced = is_plain && kvcfs_staging_order(st) < st->replaced_ns;
	bool is_removed = st->is_target_gone || kvcfs_staging_order(st) < st->removed_ns;
	if (is_removed || is_replaced) {
		if (is_removed)
			kvcfs_count(fs, writes_not_published_unlinked);
		else
			kvcfs_count(fs, writes_not_published_replaced);
		st->object = object; /* given back with ST */
		return NOT_PUBLISHED;
	}
	uint64_t bytes = kvc_l1_object_get_bytes(object);
	int rc = kvc_storage_manager_finish_write(
		fs->sm, object, st->target, is_plain ? KVC_FINISH_REPLACE : KVC_FINISH_FIRST_WINS);
	if (rc < 0)
		return rc;
	if (rc == KVC_FINISHED_DROPPED)
		kvcfs_count(fs, writes_duplicate);
	else
		kvcfs_count(fs, writes_published);
	if (is_plain)
		replace_older_locked(fs, st);
	kvcfs_attr_settle_locked(inode, st->target);
	pthread_mutex_lock(&inode->io_lock);
	/* Readers of the temporary file go on with the object. */
	if (rc == 0 && inode->n_opens > 0 && !inode->commit_lock)
		kvc_storage_manager_reserve_read(fs->sm, st->target, &inode->commit_lock);
	pthread_mutex_unlock(&inode->io_lock);
	/* An oversized one must not make the next reservation impossible. */
	st->dir->last_bytes =
		MIN(bytes, MAX(fs->l1_capacity_bytes / 8, KVCFS_FIRST_RESERVATION_BYTES));
	return rc;
}

/* INODE did not become the object of its name: who has it open has a file without one. */
static void
lose_readers_locked(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->io_lock);
	inode->is_unlinked |= inode->n_opens > 0;
	pthread_mutex_unlock(&inode->io_lock);
}

/*
 * The staging stays where others find it until its object is in our tables: who removes or renames
 * the name meanwhile leaves word there.
 */
int
kvcfs_staging_commit(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcL1Object *object = NULL;
	kvcfs_loop_hand_over();
	pthread_mutex_lock(&fs->names);
	note_size_locked(inode);
	/* It may take as long as a copy does; who looks for the name waits for it. */
	inode->staging->is_committing = true;
	kvcfs_closing_begin_locked(fs, &inode->staging->closing);
	pthread_mutex_unlock(&fs->names);
	int rc = prepare(fs, inode, inode->staging, &object);
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = take_staging_locked(inode);
	if (rc == 0)
		rc = publish_locked(fs, inode, st, object);
	bool is_object = rc == 0 || rc == KVC_FINISHED_DROPPED;
	leave_writing_locked(inode, st);
	if (rc != 0)
		lose_readers_locked(inode);
	bool is_known = kvc_storage_manager_stat(fs->sm, st->target, NULL) == 0;
	/* The last one of a plain file wins, the first one of a hash. */
	bool is_newest = is_object && st->target->space == KVC_SPACE_PLAIN;
	KvcfsInode *old = g_hash_table_lookup(fs->objects, st->target);
	if (is_known && !inode->is_unlinked && (is_newest || !old)) {
		/* The kernel may have it under the name for as long as it was told. */
		if (old && old != inode)
			g_hash_table_add(fs->renounced, old);
		g_hash_table_replace(fs->objects, inode->key, inode);
	}
	if (is_newest)
		kvcfs_note_published_locked(fs, st->target);
	pthread_mutex_unlock(&fs->names);
	if (object && rc < 0)
		report_lost_write(fs, st, rc);
	bool is_entry = is_object && is_known && kvcfs_staging_order(st) >= st->entry_removed_ns;
	if (st->prefix)
		kvcfs_prefix_settle_position(st->prefix, st->target, is_entry);
	pthread_mutex_lock(&fs->names);
	bool is_given_up = st->is_given_up;
	pthread_mutex_unlock(&fs->names);
	/* A listing did not wait any longer: to it, a change of its own. */
	if (is_object && is_known && is_given_up)
		kvcfs_dir_gets_entry(fs, st);
	free_staging(fs, st);
	return rc < 0 ? rc : 0;
}

void
kvcfs_staging_count_release(KvcfsInode *inode, int change)
{
	pthread_mutex_lock(&inode->fs->names);
	if (inode->staging)
		inode->staging->n_releases += change;
	pthread_mutex_unlock(&inode->fs->names);
}

/* ---- The first complete file of a hash is the object ----------------------------------------- */

typedef struct LaterCommit {
	KvcfsInode *inode; /* owned reference */
	KvcObjectKey *key; /* owned reference */
} LaterCommit;

static void
commit_later(void *user)
{
	LaterCommit *later = user;
	kvcfs_staging_commit(later->inode);
	kvc_object_key_unref(later->key);
	kvcfs_inode_unref(later->inode, 1);
	g_free(later);
}

/* The commit may copy, which the thread of the deadlines must not wait for. */
static void
after_earlier(fuse_req_t req, KvcfsWake why, void *user)
{
	const LaterCommit *later = user;
	kvcfs_copy(later->inode->fs, commit_later, user);
}

static KvcfsClosingFilter
earlier_than(const KvcfsStaging *st, const KvcObjectKey *key)
{
	return (KvcfsClosingFilter){.key = key, .before_ns = kvcfs_staging_order(st)};
}

/*
 * Another writer of the hash that ST is to be was closed before it, and its RELEASE is still to
 * come: ST's commit waits for that, and is a duplicate then. NULL: there is none.
 */
static LaterCommit *
commits_later_locked(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcfsStaging *st = inode->staging;
	KvcfsClosingFilter filter = earlier_than(st, st->target);
	bool is_hash = st->target->space == KVC_SPACE_CHUNK && st->flushed_ns != 0;
	/* At the end of the session nobody waits any more. */
	if (!is_hash || __atomic_load_n(&fs->is_draining, __ATOMIC_SEQ_CST) ||
	    !kvcfs_is_closing_locked(fs, &filter))
		return NULL;
	LaterCommit *later = g_new(LaterCommit, 1);
	later->inode = kvcfs_inode_ref_locked(inode);
	later->key = kvc_object_key_ref(st->target);
	st->is_committing = true;
	kvcfs_closing_begin_locked(fs, &st->closing);
	return later;
}

void
kvcfs_staging_release_writer(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcfsStaging *dead = NULL;
	LaterCommit *later = NULL;
	KvcfsClosingFilter filter = {0};
	pthread_mutex_lock(&fs->names);
	KvcfsStaging *st = inode->staging;
	bool is_last = st && --st->n_writers == 0;
	if (is_last)
		kvcfs_write_proof_release_locked(st);
	bool must_commit = is_last && st->target;
	if (must_commit && (later = commits_later_locked(inode)) != NULL)
		filter = earlier_than(st, later->key);
	if (is_last && !st->target) {
		kvcfs_closing_end_locked(fs, &st->closing);
		/* A temporary file stays; what it is worth is known from here on. */
		st->is_killed |= st->flushed_ns == 0;
		if (!st->temp_dir) {
			kvcfs_count(fs, writes_not_published_unlinked);
			note_size_locked(inode); /* readers may have it open */
			dead = take_staging_locked(inode);
		}
	}
	pthread_mutex_unlock(&fs->names);
	if (later)
		kvcfs_wait_for_commit(fs, NULL, &filter, after_earlier, later);
	else if (must_commit)
		kvcfs_staging_commit(inode);
	if (dead)
		free_staging(fs, dead);
}

void
kvcfs_staging_drop_if_idle(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcfsStaging *dead = NULL;
	pthread_mutex_lock(&fs->names);
	const KvcfsStaging *st = inode->staging;
	pthread_mutex_lock(&inode->io_lock);
	bool is_open = inode->n_opens > 0;
	pthread_mutex_unlock(&inode->io_lock);
	if (st && !is_open && st->n_writers == 0 && !st->is_expected && !st->target)
		dead = take_staging_locked(inode);
	pthread_mutex_unlock(&fs->names);
	if (dead)
		free_staging(fs, dead);
}

void
kvcfs_staging_free(KvcfsInode *inode)
{
	pthread_mutex_lock(&inode->fs->names);
	leave_writing_locked(inode, inode->staging);
	kvcfs_reservation_end_locked(inode->staging);
	pthread_mutex_unlock(&inode->fs->names);
	free_staging(inode->fs, g_steal_pointer(&inode->staging));
}
