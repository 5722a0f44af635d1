/* SPDX-License-Identifier: Apache-2.0 */

/* Open files: what each holds, and the backing id that the opens of one inode share. */

#include "fs/internal.h"
#include "kvcache/io.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

KvcfsHandle *
kvcfs_handle_new(KvcfsHandleKind kind, KvcfsInode *inode)
{
	KvcfsHandle *handle = g_new0(KvcfsHandle, 1);
	handle->kind = kind;
	handle->fd = -1;
	handle->closing.keys = kind == KVCFS_HANDLE_KEYS_WRITE ? handle : NULL;
	pthread_mutex_lock(&inode->fs->names);
	handle->inode = kvcfs_inode_ref_locked(inode);
	g_hash_table_add(inode->fs->handles, handle);
	pthread_mutex_unlock(&inode->fs->names);
	return handle;
}

static void
unref_inodes(GPtrArray *inodes)
{
	for (guint i = 0; i < inodes->len; i++)
		kvcfs_inode_unref(inodes->pdata[i], 1);
	g_ptr_array_unref(inodes);
}

static void
release_object(KvcfsHandle *handle)
{
	if (handle->object)
		kvc_storage_manager_finish_read_for(handle->inode->fs->sm, handle->object,
						    handle->opener);
}

void
kvcfs_handle_take_object(KvcfsHandle *handle, KvcL1Object *object)
{
	release_object(handle);
	handle->object = object;
	kvc_storage_manager_move_read_lock(handle->inode->fs->sm, object, KVC_OWNER_USER,
					   handle->opener);
}

void
kvcfs_handle_free(KvcfsHandle *handle)
{
	Kvcfs *fs = handle->inode->fs;
	pthread_mutex_lock(&fs->names);
	g_hash_table_remove(fs->handles, handle);
	pthread_mutex_unlock(&fs->names);
	if (handle->is_counted)
		kvcfs_io_close(handle->inode);
	release_object(handle);
	if (handle->fd >= 0)
		close(handle->fd);
	if (handle->fetch)
		kvcfs_fetch_drop(handle->fetch);
	if (handle->text)
		g_string_free(handle->text, TRUE);
	if (handle->children)
		unref_inodes(handle->children);
	if (handle->key_set)
		g_hash_table_unref(handle->key_set);
	if (handle->keys)
		g_ptr_array_unref(handle->keys);
	kvcfs_inode_unref(handle->inode, 1);
	g_free(handle);
}

static void
leave_prefix(KvcfsHandle *handle)
{
	Kvcfs *fs = handle->inode->fs;
	pthread_mutex_lock(&fs->names);
	g_ptr_array_remove_fast(fs->open_prefixes, handle);
	g_ptr_array_remove_fast(fs->held_dirs, handle);
	pthread_mutex_unlock(&fs->names);
	kvcfs_prefix_save(handle->inode);
}

void
kvcfs_handle_release(KvcfsHandle *handle)
{
	KvcfsInode *inode = kvcfs_inode_ref(handle->inode);
	bool is_writer = handle->kind == KVCFS_HANDLE_WRITE;
	if (handle->has_loaded && kvc_l1_object_take_unread(handle->object))
		kvcfs_count(inode->fs, loads_unread);
	if (handle->kind == KVCFS_HANDLE_PREFIX_DIR)
		leave_prefix(handle);
	if (handle->kind == KVCFS_HANDLE_KEYS_WRITE)
		kvcfs_keys_release(handle);
	if (is_writer)
		kvcfs_staging_count_release(inode, 1);
	kvcfs_handle_free(handle);
	if (is_writer) {
		kvcfs_staging_release_writer(inode);
		kvcfs_staging_count_release(inode, -1);
	}
	kvcfs_inode_unref(inode, 1);
}

void
kvcfs_handles_release_all(Kvcfs *fs)
{
	for (;;) {
		GHashTableIter iter;
		void *handle;
		pthread_mutex_lock(&fs->names);
		g_hash_table_iter_init(&iter, fs->handles);
		bool found = g_hash_table_iter_next(&iter, &handle, NULL);
		pthread_mutex_unlock(&fs->names);
		if (!found)
			return;
		kvcfs_handle_release(handle);
	}
}

/* The identity of a file of L1; 0: cannot be had, and is no file's. */
static ino_t
file_id(int fd)
{
	struct stat st;
	return fstat(fd, &st) == 0 ? st.st_ino : 0;
}

/*
 * The kernel keeps the descriptor that is registered: not one that can write, which would stand
 * against the proof at the commit that nobody can write any more. A committed object's cannot.
 */
static int
register_backing(Kvcfs *fs, int fd, bool is_committed)
{
	int read_only = -1;
	if (!is_committed && (fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDONLY)
		read_only = kvc_reopen(fd, O_RDONLY);
	int id = kvcfs_backing_open(fs->se, read_only >= 0 ? read_only : fd);
	if (read_only >= 0)
		close(read_only);
	return id;
}

/* The first open decides: passed through or not, and on what file. */
static int
open_first_locked(KvcfsInode *inode, int fd, KvcL1Object *object, bool is_direct)
{
	Kvcfs *fs = inode->fs;
	int id = 0;
	if (fs->is_passthrough && !is_direct)
		id = register_backing(fs, fd, object != NULL);
	if (id >= 0)
		inode->backing_id = id;
	inode->open_object = object;
	inode->open_file = object ? 0 : file_id(fd);
	if (object)
		inode->open_bytes = kvc_l1_object_get_bytes(object);
	return id;
}

/*
 * Is it the file that all opens have? One that has been renamed is another object, and the first of
 * the two may be closed first.
 */
static bool
is_open_file_locked(KvcfsInode *inode, int fd, const KvcL1Object *object)
{
	if (object && object == inode->open_object)
		return true;
	if (inode->open_object)
		inode->open_file = file_id(kvc_l1_object_get_fd(inode->open_object));
	bool is_same = inode->open_file == file_id(fd);
	if (is_same)
		inode->open_object = NULL;
	return is_same;
}

/*
 * One backing id an inode, from its first open to its last release: a second one for the same inode
 * is EIO, and one left registered keeps its memory after a crash (Linux, fs/fuse/iomode.c and
 * backing.c). Without passthrough the opens of an inode share its page cache, so the same holds for
 * the file.
 */
int
kvcfs_io_open(KvcfsInode *inode, int fd, KvcL1Object *object, bool is_direct)
{
	int id;
	pthread_mutex_lock(&inode->io_lock);
	if (inode->n_opens == 0)
		id = open_first_locked(inode, fd, object, is_direct);
	else
		id = is_open_file_locked(inode, fd, object) ? inode->backing_id : -ESTALE;
	if (id >= 0)
		inode->n_opens++;
	pthread_mutex_unlock(&inode->io_lock);
	if (id < 0 && id != -ESTALE)
		kvcfs_count(inode->fs, backing_open_failed);
	return id;
}

KvcL1Object *
kvcfs_io_lock_again(KvcfsInode *inode)
{
	KvcL1Object *object = NULL;
	pthread_mutex_lock(&inode->io_lock);
	if (inode->n_opens > 0)
		object = inode->open_object;
	if (object)
		kvc_storage_manager_reserve_read_again(inode->fs->sm, object);
	pthread_mutex_unlock(&inode->io_lock);
	return object;
}

void
kvcfs_io_close(KvcfsInode *inode)
{
	Kvcfs *fs = inode->fs;
	KvcL1Object *commit_lock = NULL;
	pthread_mutex_lock(&inode->io_lock);
	g_assert(inode->n_opens > 0);
	if (--inode->n_opens == 0) {
		if (inode->backing_id > 0)
			kvcfs_backing_close(fs->se, inode->backing_id);
		inode->backing_id = 0;
		commit_lock = g_steal_pointer(&inode->commit_lock);
	}
	pthread_mutex_unlock(&inode->io_lock);
	if (commit_lock)
		kvc_storage_manager_finish_read(fs->sm, commit_lock);
}
