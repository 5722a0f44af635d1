/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The checkpoint: the whole index in one piece, and a superblock that says that it is all there is.
 * Before anything changes the superblocks say that it is not; so whatever is on the device at a
 * kill, a checkpoint is either right or not looked at.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <time.h>

#include <kvcache/crc.h>

#include "raw_block.h"

#define PIECE_BYTES ((size_t)8 << 20)
/* Objects that are encoded without letting go of the lock. */
#define BATCH 1000

typedef int (*MoveFunc)(RawBlock *rb, uint8_t *data, size_t bytes, uint64_t offset);

static int
read_piece(RawBlock *rb, uint8_t *data, size_t bytes, uint64_t offset)
{
	return raw_block_read(rb, data, bytes, offset);
}

static int
write_piece(RawBlock *rb, uint8_t *data, size_t bytes, uint64_t offset)
{
	return raw_block_write(rb, data, bytes, offset);
}

/* Whole pages between DATA and the checkpoint. 0 or -errno. */
static int
move(RawBlock *rb, MoveFunc func, uint8_t *data, size_t bytes)
{
	int rc = 0;

	for (size_t at = 0; rc == 0 && at < bytes; at += PIECE_BYTES)
		rc = func(rb, data + at, MIN(PIECE_BYTES, bytes - at),
			  RAW_BLOCK_CHECKPOINT_OFFSET + at);
	return rc;
}

/* Zeros; NULL: there is no memory. */
static uint8_t *
map_memory(size_t bytes)
{
	void *data = mmap(NULL, MAX(bytes, RAW_BLOCK_PAGE_BYTES), PROT_READ | PROT_WRITE,
			  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	return data == MAP_FAILED ? NULL : data;
}

static void
unmap_memory(uint8_t *data, size_t bytes)
{
	if (data)
		munmap(data, MAX(bytes, RAW_BLOCK_PAGE_BYTES));
}

/* ---- Reading ------------------------------------------------------------------------------- */

/* false: it is not stored under a key of its own, in slots of its own. */
static bool
add_entry(RawBlock *rb, const RawBlockHeader *header, KvcObjectKey *key, KvcXattrs *xattrs)
{
	pthread_mutex_lock(&rb->lock);
	RawBlockNode *node = raw_block_get_locked(rb, key);
	bool is_free = !node->entry && raw_block_space_claim(&rb->space, header->data);
	bool is_all_free = is_free && raw_block_space_claim(&rb->space, header->record);
	if (is_all_free)
		raw_block_set_entry_locked(rb, node, raw_block_entry_new(header, xattrs));
	pthread_mutex_unlock(&rb->lock);
	return is_all_free;
}

static bool
decode(RawBlock *rb, const uint8_t *data, size_t bytes)
{
	KvcKeyScope *scope = NULL;
	bool is_right = true;
	size_t at = 0;

	while (is_right && at < bytes && !atomic_load(&rb->closing)) {
		g_autoptr(KvcObjectKey) key = NULL;
		g_autoptr(KvcXattrs) xattrs = NULL;
		RawBlockHeader header;
		const uint8_t *record;

		is_right = raw_block_entry_decode(&rb->super, data, bytes, &at, &header, &record) &&
			   raw_block_record_decode(&header, record, &scope, &key, &xattrs) &&
			   add_entry(rb, &header, key, xattrs);
	}
	if (scope)
		kvc_key_scope_unref(scope);
	return is_right && at == bytes && rb->objects == rb->super.checkpoint_objects;
}

static void
forget_all(RawBlock *rb)
{
	pthread_mutex_lock(&rb->lock);
	g_array_set_size(rb->order.places, 0);
	rb->order.n_empty = 0;
	/* What somebody waits with has no entry yet. */
	GHashTableIter iter;
	void *value;
	g_hash_table_iter_init(&iter, rb->nodes);
	while (g_hash_table_iter_next(&iter, NULL, &value)) {
		RawBlockNode *node = value;

		if (node->entry)
			kvc_xattrs_unref(node->entry->xattrs);
		g_clear_pointer(&node->entry, g_free);
		node->order = 0;
		if (node->locks == 0 && node->stores == 0)
			g_hash_table_iter_remove(&iter);
	}
	uint32_t n_slots = rb->space.n_slots;
	raw_block_space_deinit(&rb->space);
	raw_block_space_init(&rb->space, n_slots);
	rb->objects = rb->bytes_used = rb->checkpoint_need = 0;
	pthread_mutex_unlock(&rb->lock);
}

bool
raw_block_checkpoint_read(RawBlock *rb)
{
	const RawBlockSuper *super = &rb->super;
	size_t bytes = super->checkpoint_bytes, pages = kvc_io_align_up(bytes);
	uint8_t *data = super->is_clean ? map_memory(pages) : NULL;

	if (!data)
		return false;
	int rc = move(rb, read_piece, data, pages);
	bool is_right = rc == 0 && kvc_crc32c(0, data, bytes) == super->checkpoint_crc &&
			decode(rb, data, bytes);
	unmap_memory(data, pages);
	if (is_right) {
		atomic_store(&rb->last_generation, super->last_generation);
		return true;
	}
	if (!atomic_load(&rb->closing)) {
		atomic_fetch_add(&rb->stats.checkpoint_errors, 1);
		g_warning("raw_block %s: the checkpoint is damaged: reading all headers", rb->path);
	}
	forget_all(rb);
	return false;
}

/* ---- Writing ------------------------------------------------------------------------------- */

/* Encodes up to BATCH nodes behind *ORDER; false: that was the last one, or there is no room. */
static bool
encode_batch_locked(RawBlock *rb, uint64_t *order, uint8_t *data, size_t bytes, size_t *at)
{
	const RawBlockNode *node = NULL;

	for (unsigned i = 0; i < BATCH && (node = raw_block_next_node_locked(rb, *order)); i++) {
		RawBlockHeader header = node->entry->header;
		g_autofree uint8_t *record =
			raw_block_record_encode(node->key, node->entry->xattrs, &header);
		size_t size = record ? raw_block_entry_bytes(&header) : SIZE_MAX;

		if (size > bytes - *at)
			return false;
		raw_block_entry_encode(&header, record, data + *at);
		*at += size;
		*order = node->order;
	}
	return node != NULL;
}

/* All of the index, which does not change meanwhile; bytes that it has. */
static size_t
encode(RawBlock *rb, uint8_t *data, size_t bytes)
{
	bool has_more = true;
	uint64_t order = 0;
	size_t at = 0;

	while (has_more) {
		/* Others look things up between two batches. */
		pthread_mutex_lock(&rb->lock);
		has_more = encode_batch_locked(rb, &order, data, bytes, &at);
		pthread_mutex_unlock(&rb->lock);
	}
	return at;
}

/* 0 or -errno. */
static int
write_all(RawBlock *rb, size_t bytes, uint64_t objects)
{
	size_t pages = kvc_io_align_up(bytes);
	uint8_t *data = map_memory(pages);
	int rc = 0;

	if (!data)
		return -ENOMEM;
	if (rb->super.is_clean) { /* but not used: it is overwritten now */
		rb->super.is_clean = false;
		rc = raw_block_write_super(rb);
	}
	if (rc == 0 && encode(rb, data, bytes) != bytes)
		rc = -EPROTO;
	uint32_t crc = kvc_crc32c(0, data, bytes);
	if (rc == 0)
		rc = move(rb, write_piece, data, pages);
	unmap_memory(data, pages);
	/* Everything that it tells of, too. */
	if (rc == 0)
		rc = raw_block_sync(rb);
	if (rc < 0)
		return rc;
	rb->super.is_clean = true;
	rb->super.checkpoint_bytes = bytes;
	rb->super.checkpoint_objects = objects;
	rb->super.checkpoint_crc = crc;
	rb->super.last_generation = atomic_load(&rb->last_generation);
	/* If that fails it may be so or not; before the next change it will not be. */
	return raw_block_write_super(rb);
}

/* May it be written now? Then nobody changes anything until end_checkpoint(). */
static bool
begin_checkpoint(RawBlock *rb, size_t *bytes, uint64_t *objects)
{
	pthread_mutex_lock(&rb->change_lock);
	pthread_mutex_lock(&rb->lock);
	*bytes = rb->checkpoint_need;
	*objects = rb->objects;
	bool is_right = rb->super.is_clean && rb->is_loaded_by_checkpoint;
	/* What could not be buried comes back by its header only. */
	bool may_write = rb->is_ready && !is_right && rb->changes == 0 && rb->zombies->len == 0;
	pthread_mutex_unlock(&rb->lock);
	bool has_room = *bytes <= rb->super.checkpoint_room;
	rb->is_checkpointing = may_write && has_room;
	if (may_write && !has_room)
		rb->changed_ns = kvc_now_ns(); /* after an interval again */
	pthread_mutex_unlock(&rb->change_lock);
	if (may_write && !has_room)
		atomic_fetch_add(&rb->stats.checkpoint_errors, 1);
	return may_write && has_room;
}

static void
end_checkpoint(RawBlock *rb)
{
	pthread_mutex_lock(&rb->change_lock);
	rb->is_checkpointing = false;
	rb->changed_ns = kvc_now_ns(); /* if it failed, after an interval again */
	pthread_cond_broadcast(&rb->change_wake);
	pthread_mutex_unlock(&rb->change_lock);
}

void
raw_block_checkpoint_write(RawBlock *rb)
{
	size_t bytes;
	uint64_t objects;

	if (!begin_checkpoint(rb, &bytes, &objects))
		return;
	int rc = write_all(rb, bytes, objects);
	if (rc < 0) {
		atomic_fetch_add(&rb->stats.checkpoint_errors, 1);
		raw_block_note_error(rb, KVC_TASK_STORE, "write the checkpoint", NULL, -rc);
	} else {
		atomic_fetch_add(&rb->stats.checkpoints, 1);
		pthread_mutex_lock(&rb->lock);
		rb->is_loaded_by_checkpoint = true; /* the next start will be */
		pthread_mutex_unlock(&rb->lock);
	}
	end_checkpoint(rb);
}

/* ---- The keeper ---------------------------------------------------------------------------- */

/* Has nothing changed for so long that it is time? */
static bool
is_quiet(RawBlock *rb)
{
	pthread_mutex_lock(&rb->change_lock);
	bool is_due = rb->checkpoint_ns > 0 && !rb->super.is_clean && rb->changes == 0 &&
		      kvc_now_ns() - rb->changed_ns >= rb->checkpoint_ns;
	pthread_mutex_unlock(&rb->change_lock);
	return is_due;
}

/* What was deleted is gone a second later, whatever happens to the power. */
static void
sync_tombstones(RawBlock *rb, int64_t *synced_ns)
{
	int64_t now = kvc_now_ns();

	if (!atomic_load(&rb->is_unsynced) || now - *synced_ns < KVC_SEC_NS)
		return;
	*synced_ns = now;
	int rc = raw_block_sync(rb);
	if (rc < 0)
		raw_block_note_error(rb, KVC_TASK_STORE, "flush deletions", NULL, -rc);
}

/* false: the adapter closes. */
static bool
pause_keeper(RawBlock *rb)
{
	int64_t pause = rb->checkpoint_ns > 0 ? MIN(rb->checkpoint_ns, KVC_SEC_NS) : KVC_SEC_NS;
	int64_t due = kvc_now_ns() + pause;
	struct timespec until = {due / KVC_SEC_NS, due % KVC_SEC_NS};
	int rc = 0;

	pthread_mutex_lock(&rb->lock);
	while (rc == 0 && !atomic_load(&rb->closing))
		rc = pthread_cond_timedwait(&rb->keeper_wake, &rb->lock, &until);
	pthread_mutex_unlock(&rb->lock);
	return !atomic_load(&rb->closing);
}

void *
raw_block_keeper_main(void *user)
{
	RawBlock *rb = user;
	int64_t synced_ns = 0;

	raw_block_start(rb);
	while (pause_keeper(rb)) {
		sync_tombstones(rb, &synced_ns);
		if (is_quiet(rb))
			raw_block_checkpoint_write(rb);
	}
	return NULL;
}

bool
raw_block_await_ready(RawBlock *rb)
{
	pthread_mutex_lock(&rb->lock);
	while (!rb->is_ready && !atomic_load(&rb->closing))
		pthread_cond_wait(&rb->wake, &rb->lock);
	pthread_mutex_unlock(&rb->lock);
	return !atomic_load(&rb->closing);
}
