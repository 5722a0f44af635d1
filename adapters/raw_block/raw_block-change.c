/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Headers are written here. The order of writes makes a kill safe at any point:
 *
 *	payload, then the record if it has slots of its own, then the header, in one page: the
 *	object is there from then on. The tombstone of what it replaces comes after that; between
 *	the two both are there, and the larger generation counts.
 *	A deletion is a tombstone, in one page, over the header.
 *	Slots are free again after their tombstone only.
 */

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "raw_block.h"

int
raw_block_begin_change(RawBlock *rb)
{
	int rc = 0;

	pthread_mutex_lock(&rb->change_lock);
	while (rb->is_checkpointing)
		pthread_cond_wait(&rb->change_wake, &rb->change_lock);
	if (rb->super.is_clean) {
		rb->super.is_clean = false;
		rc = raw_block_write_super(rb);
		if (rc == 0)
			rc = raw_block_sync(rb);
		rb->super.is_clean = rc < 0; /* not for certain: it is written again */
	}
	if (rc == 0)
		rb->changes++;
	pthread_mutex_unlock(&rb->change_lock);
	return rc;
}

void
raw_block_end_change(RawBlock *rb)
{
	pthread_mutex_lock(&rb->change_lock);
	rb->changes--;
	rb->changed_ns = kvc_now_ns();
	pthread_mutex_unlock(&rb->change_lock);
}

uint64_t
raw_block_next_generation(RawBlock *rb)
{
	return atomic_fetch_add(&rb->last_generation, 1) + 1;
}

static int
write_page(RawBlock *rb, uint32_t slot, const void *page)
{
	return raw_block_write(rb, page, RAW_BLOCK_PAGE_BYTES,
			       rb->super.headers_offset + (uint64_t)slot * RAW_BLOCK_PAGE_BYTES);
}

/* Writes a record into slots of its own. */
static int
write_record(RawBlock *rb, const uint8_t *record, const RawBlockHeader *header)
{
	size_t used = header->record_bytes, bytes = kvc_io_align_up(used);
	uint8_t *pages = aligned_alloc(RAW_BLOCK_PAGE_BYTES, bytes);

	if (!pages)
		return -ENOMEM;
	memcpy(pages, record, used);
	memset(pages + used, 0, bytes - used);
	int rc = raw_block_write(rb, pages, bytes, raw_block_slot_offset(rb, header->record.slot));
	free(pages);
	return rc;
}

int
raw_block_write_header(RawBlock *rb,
		       const KvcObjectKey *key,
		       const KvcXattrs *xattrs,
		       RawBlockHeader *header,
		       bool *written)
{
	_Alignas(RAW_BLOCK_PAGE_BYTES) uint8_t page[RAW_BLOCK_PAGE_BYTES];
	g_autofree uint8_t *record = raw_block_record_encode(key, xattrs, header);
	int rc = 0;

	*written = false;
	header->record = (RawBlockRun){0};
	if (!record)
		return -ENAMETOOLONG;
	if (header->record_bytes > RAW_BLOCK_RECORD_INLINE_BYTES) {
		uint32_t n = raw_block_slots_for(&rb->super, header->record_bytes);

		pthread_mutex_lock(&rb->lock);
		bool taken = raw_block_space_take(&rb->space, n, &header->record);
		pthread_mutex_unlock(&rb->lock);
		rc = taken ? write_record(rb, record, header) : -ENOSPC;
	}
	if (rc == 0) {
		header->generation = raw_block_next_generation(rb);
		raw_block_header_encode(&rb->super, header, record, page);
		*written = true;
		rc = write_page(rb, header->data.slot, page);
	}
	return rc;
}

int
raw_block_write_tombstone(RawBlock *rb, const RawBlockEntry *entry)
{
	_Alignas(RAW_BLOCK_PAGE_BYTES) uint8_t page[RAW_BLOCK_PAGE_BYTES];
	uint32_t slot = entry->header.data.slot;

	raw_block_tombstone_encode(&rb->super, slot, raw_block_next_generation(rb), page);
	int rc = write_page(rb, slot, page);
	/* Not before: a sync at the same time would not flush it. */
	atomic_store(&rb->is_unsynced, true);
	return rc;
}

void
raw_block_add_zombie(RawBlock *rb, const KvcObjectKey *key, RawBlockEntry *entry)
{
	RawBlockZombie *zombie = g_new0(RawBlockZombie, 1);

	zombie->key = kvc_object_key_ref(key);
	zombie->entry = entry;
	pthread_mutex_lock(&rb->lock);
	g_ptr_array_add(rb->zombies, zombie);
	pthread_mutex_unlock(&rb->lock);
}

void
raw_block_bury(RawBlock *rb, const KvcObjectKey *key, RawBlockEntry *entry)
{
	int rc = raw_block_write_tombstone(rb, entry);

	if (rc < 0) {
		raw_block_note_error(rb, KVC_TASK_STORE, "write the tombstone of", key, -rc);
		raw_block_add_zombie(rb, key, entry);
		return;
	}
	pthread_mutex_lock(&rb->lock);
	raw_block_entry_unref_locked(rb, entry);
	pthread_mutex_unlock(&rb->lock);
}

/* Takes one of KEY's out of the array (transfer full), or NULL. */
static RawBlockZombie *
steal_zombie_locked(RawBlock *rb, const KvcObjectKey *key)
{
	for (guint i = 0; i < rb->zombies->len; i++) {
		RawBlockZombie *zombie = rb->zombies->pdata[i];

		if (!key || kvc_object_key_equal(zombie->key, key))
			return g_ptr_array_steal_index(rb->zombies, i);
	}
	return NULL;
}

int
raw_block_bury_zombies(RawBlock *rb, const KvcObjectKey *key)
{
	for (;;) {
		pthread_mutex_lock(&rb->lock);
		RawBlockZombie *zombie = steal_zombie_locked(rb, key);
		pthread_mutex_unlock(&rb->lock);
		if (!zombie)
			return 0;
		int rc = raw_block_write_tombstone(rb, zombie->entry);
		pthread_mutex_lock(&rb->lock);
		if (rc < 0) {
			g_ptr_array_add(rb->zombies, zombie);
		} else {
			raw_block_entry_unref_locked(rb, zombie->entry);
			kvc_object_key_unref(zombie->key);
			g_free(zombie);
		}
		pthread_mutex_unlock(&rb->lock);
		if (rc < 0)
			return rc;
	}
}
