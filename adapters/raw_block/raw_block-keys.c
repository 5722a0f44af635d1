/* SPDX-License-Identifier: Apache-2.0 */

/* Deletions, renames, new attributes: each is one header, written in place. */

#include <errno.h>

#include "raw_block.h"

static bool
is_busy(const RawBlockNode *node)
{
	return node->locks > 0 || node->stores > 0;
}

/* ---- Deletions ----------------------------------------------------------------------------- */

/* Takes the key to delete it. NULL: it is locked, or being stored. */
static RawBlockNode *
begin_delete(RawBlock *rb, const KvcObjectKey *key)
{
	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_await_change_locked(rb, key);
	if (!node)
		node = raw_block_get_locked(rb, key);
	bool begun = !is_busy(node);
	if (begun)
		node->is_changing = node->is_deleting = true;
	pthread_mutex_unlock(&rb->lock);
	return begun ? node : NULL;
}

/* Within a change; NODE is taken. 0 or -errno: nothing changed. */
static int
delete_node(RawBlock *rb, RawBlockNode *node)
{
	int rc = raw_block_bury_zombies(rb, node->key);

	if (rc == 0 && node->entry)
		rc = raw_block_write_tombstone(rb, node->entry);
	if (rc < 0)
		raw_block_note_error(rb, KVC_TASK_STORE, "delete", node->key, -rc);
	pthread_mutex_lock(&rb->lock);
	if (rc == 0) {
		RawBlockEntry *old = raw_block_set_entry_locked(rb, node, NULL);

		if (old)
			raw_block_entry_unref_locked(rb, old);
	}
	raw_block_end_node_change_locked(rb, node);
	pthread_mutex_unlock(&rb->lock);
	return rc;
}

int
raw_block_delete_keys(RawBlock *rb, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	int result = 0;

	if (!raw_block_await_ready(rb))
		return -ECANCELED;
	int rc = raw_block_begin_change(rb);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		RawBlockNode *node = begin_delete(rb, keys[i]);

		if (!node)
			continue;
		rc = delete_node(rb, node);
		if (rc == 0)
			kvc_bitmap_set(deleted, i);
		result = result < 0 ? result : rc;
	}
	raw_block_end_change(rb);
	return result;
}

/* Nobody else uses the adapter any more. */
void
raw_block_remove_stored(RawBlock *rb)
{
	uint64_t order = 0;
	RawBlockNode *node;

	if (rb->persist || !rb->is_ready || raw_block_begin_change(rb) < 0)
		return;
	while ((node = raw_block_next_node_locked(rb, order))) {
		order = node->order;
		if (!node->entry->is_ours)
			continue;
		node->locks = 0; /* nobody is left to give them back */
		delete_node(rb, node);
	}
	raw_block_end_change(rb);
}

/* ---- Headers in place ---------------------------------------------------------------------- */

/*
 * Writes HEADER, that of ENTRY with other fields, for KEY. 0: it is in the index too; else -errno,
 * and what was there before is written again.
 */
static int
rewrite(RawBlock *rb,
	RawBlockEntry *entry,
	const KvcObjectKey *old_key,
	const KvcObjectKey *key,
	RawBlockHeader *header,
	KvcXattrs *xattrs)
{
	bool written, ignored;
	int rc = raw_block_write_header(rb, key, xattrs, header, &written);

	pthread_mutex_lock(&rb->lock);
	if (rc == 0)
		raw_block_set_header_locked(rb, entry, header, xattrs);
	else
		raw_block_space_give(&rb->space, header->record);
	pthread_mutex_unlock(&rb->lock);
	if (rc == 0 || !written)
		return rc;
	/* The old record may stay where it is; writing it again makes no difference to anybody. */
	RawBlockHeader old = entry->header;
	if (raw_block_write_header(rb, old_key, entry->xattrs, &old, &ignored) == 0) {
		pthread_mutex_lock(&rb->lock);
		raw_block_set_header_locked(rb, entry, &old, entry->xattrs);
		pthread_mutex_unlock(&rb->lock);
	}
	return rc;
}

static bool
has_attributes(const RawBlockEntry *entry, const KvcObjectAttributes *attributes)
{
	const RawBlockHeader *header = &entry->header;

	return header->mtime_ns == attributes->mtime_ns && header->mode == attributes->mode &&
	       header->uid == attributes->uid && header->gid == attributes->gid &&
	       entry->xattrs == attributes->xattrs;
}

static int
set_attributes(RawBlock *rb, RawBlockNode *node, const KvcObjectAttributes *attributes)
{
	RawBlockHeader header = node->entry->header;
	int rc = raw_block_begin_change(rb);

	if (rc < 0)
		return rc;
	header.mtime_ns = attributes->mtime_ns ? attributes->mtime_ns : header.mtime_ns;
	KvcXattrs *xattrs = node->entry->xattrs;
	/* Without a mode nothing is known but the time. */
	if (attributes->mode != 0) {
		header.mode = attributes->mode;
		header.uid = attributes->uid;
		header.gid = attributes->gid;
		xattrs = attributes->xattrs;
	}
	rc = rewrite(rb, node->entry, node->key, node->key, &header, xattrs);
	raw_block_end_change(rb);
	return rc;
}

int
raw_block_set_attributes(RawBlock *rb, KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	if (!raw_block_await_ready(rb))
		return -ECANCELED;
	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_await_change_locked(rb, key);
	RawBlockEntry *entry = raw_block_entry_locked(node);
	bool is_other = entry && !has_attributes(entry, attributes);
	if (is_other)
		node->is_changing = true;
	pthread_mutex_unlock(&rb->lock);
	if (!is_other)
		return entry ? 0 : -ENOENT;
	int rc = set_attributes(rb, node, attributes);
	if (rc < 0) {
		atomic_fetch_add(&rb->stats.attribute_errors, 1);
		raw_block_note_error(rb, KVC_TASK_STORE, "set the attributes of", key, -rc);
	}
	pthread_mutex_lock(&rb->lock);
	raw_block_end_node_change_locked(rb, node);
	pthread_mutex_unlock(&rb->lock);
	return rc;
}

/* ---- Renames ------------------------------------------------------------------------------- */

/* Takes both keys, as soon as nobody else has one of them; nothing is held while waiting. */
static int
begin_rename(RawBlock *rb,
	     const KvcObjectKey *old_key,
	     const KvcObjectKey *new_key,
	     RawBlockNode **from,
	     RawBlockNode **to)
{
	int rc = 0;

	pthread_mutex_lock(&rb->lock);
	for (;;) {
		*from = raw_block_await_change_locked(rb, old_key);
		*to = raw_block_find_locked(rb, new_key);
		if (!*to || !(*to)->is_changing)
			break;
		pthread_cond_wait(&rb->wake, &rb->lock);
	}
	if ((*from && is_busy(*from)) || (*to && is_busy(*to)))
		rc = -EBUSY;
	else if (!raw_block_entry_locked(*from))
		rc = -ENOENT;
	if (rc == 0) {
		*to = raw_block_get_locked(rb, new_key);
		(*from)->is_changing = (*from)->is_renaming = true;
		(*to)->is_changing = (*to)->is_renaming = true;
	}
	pthread_mutex_unlock(&rb->lock);
	return rc;
}

/* Both are taken. 0 or -errno, then nothing has changed. */
static int
move_entry(RawBlock *rb, RawBlockNode *from, RawBlockNode *to)
{
	RawBlockEntry *entry = from->entry;
	RawBlockHeader header = entry->header;
	int rc = raw_block_begin_change(rb);

	if (rc < 0)
		return rc;
	/* Or an older object comes back under the old key. */
	rc = raw_block_bury_zombies(rb, from->key);
	if (rc == 0)
		rc = rewrite(rb, entry, from->key, to->key, &header, entry->xattrs);
	if (rc == 0) {
		pthread_mutex_lock(&rb->lock);
		raw_block_set_entry_locked(rb, from, NULL);
		RawBlockEntry *replaced = raw_block_set_entry_locked(rb, to, entry);
		pthread_mutex_unlock(&rb->lock);
		if (replaced)
			raw_block_bury(rb, to->key, replaced);
	}
	raw_block_end_change(rb);
	return rc;
}

static int
check_rename_to_itself(RawBlock *rb, const KvcObjectKey *key)
{
	pthread_mutex_lock(&rb->lock);
	bool is_there = raw_block_entry_locked(raw_block_find_locked(rb, key));
	pthread_mutex_unlock(&rb->lock);
	return is_there ? 0 : -ENOENT;
}

int
raw_block_rename_key(RawBlock *rb, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	RawBlockNode *from, *to;

	if (!raw_block_await_ready(rb))
		return -ECANCELED;
	if (kvc_object_key_equal(old_key, new_key))
		return check_rename_to_itself(rb, old_key);
	int rc = begin_rename(rb, old_key, new_key, &from, &to);
	if (rc < 0)
		return rc;
	rc = move_entry(rb, from, to);
	if (rc == 0)
		atomic_fetch_add(&rb->stats.renames, 1);
	else
		raw_block_note_error(rb, KVC_TASK_STORE, "rename", old_key, -rc);
	pthread_mutex_lock(&rb->lock);
	raw_block_end_node_change_locked(rb, from);
	raw_block_end_node_change_locked(rb, to);
	pthread_mutex_unlock(&rb->lock);
	return rc;
}
