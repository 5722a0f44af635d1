/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The index at the start: out of the checkpoint, or out of the headers of all slots. Those are read
 * from front to back, which takes 4 KiB a slot; what is an object is sorted by generation, so that
 * of two for one key, or for one slot, the newer is kept. The older one was replaced by it, and its
 * tombstone was not written before a kill: it is written now.
 *
 * A slot whose header cannot be read is not used: it may hold an object that is there next time. It
 * may as well belong to an object that begins before it.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "raw_block.h"

/* Headers that are read at once. */
#define BATCH 1024u

typedef struct Candidate {
	RawBlockHeader header;
	KvcObjectKey *key;
	KvcXattrs *xattrs;
} Candidate;

typedef struct Scan {
	RawBlock *rb;
	GArray *candidates;
	GArray *unreadable; /* of uint32_t: slots */
	KvcKeyScope *scope;
	uint64_t last_generation;
} Scan;

static void
candidate_clear(void *data)
{
	Candidate *candidate = data;

	kvc_object_key_unref(candidate->key);
	kvc_xattrs_unref(candidate->xattrs);
}

static int
compare_generation(const void *a, const void *b)
{
	const Candidate *left = a, *right = b;

	if (left->header.generation != right->header.generation)
		return left->header.generation > right->header.generation ? -1 : 1;
	return 0;
}

/* The record of HEADER that is in slots of its own (owned, with free), or NULL. */
static uint8_t *
read_record(RawBlock *rb, const RawBlockHeader *header)
{
	size_t bytes = kvc_io_align_up(header->record_bytes);
	uint8_t *data = aligned_alloc(RAW_BLOCK_PAGE_BYTES, bytes);

	if (data &&
	    raw_block_read(rb, data, bytes, raw_block_slot_offset(rb, header->record.slot)) == 0)
		return data;
	free(data);
	return NULL;
}

static void
add_candidate(Scan *scan, const RawBlockHeader *header, const uint8_t *record)
{
	Candidate candidate = {.header = *header};
	uint8_t *own = record ? NULL : read_record(scan->rb, header);

	record = record ? record : own;
	if (record && raw_block_record_decode(header, record, &scan->scope, &candidate.key,
					      &candidate.xattrs))
		g_array_append_val(scan->candidates, candidate);
	else
		atomic_fetch_add(&scan->rb->stats.damaged_headers, 1);
	free(own);
}

static void
look_at(Scan *scan, uint32_t slot, const uint8_t *page)
{
	RawBlockHeader header;
	const uint8_t *record;

	switch (raw_block_header_decode(&scan->rb->super, slot, page, &header, &record)) {
	case RAW_BLOCK_HEADER_OBJECT:
		add_candidate(scan, &header, record);
		break;
	case RAW_BLOCK_HEADER_TOMBSTONE:
		break;
	default:
		return;
	}
	scan->last_generation = MAX(scan->last_generation, header.generation);
}

/* What cannot be read at once is read one by one. */
static void
look_at_each(Scan *scan, uint32_t first, uint32_t n, uint8_t *pages)
{
	RawBlock *rb = scan->rb;

	for (uint32_t slot = first; slot < first + n; slot++) {
		uint64_t offset = rb->super.headers_offset + (uint64_t)slot * RAW_BLOCK_PAGE_BYTES;
		int rc = raw_block_read(rb, pages, RAW_BLOCK_PAGE_BYTES, offset);

		if (rc == 0) {
			look_at(scan, slot, pages);
			continue;
		}
		raw_block_note_error(rb, KVC_TASK_LOOKUP, "read a header", NULL, -rc);
		atomic_fetch_add(&rb->stats.damaged_headers, 1);
		g_array_append_val(scan->unreadable, slot);
	}
}

static void
read_headers(Scan *scan)
{
	RawBlock *rb = scan->rb;
	uint32_t n_slots = (uint32_t)rb->super.n_slots;
	uint8_t *pages = aligned_alloc(RAW_BLOCK_PAGE_BYTES, BATCH * RAW_BLOCK_PAGE_BYTES);

	for (uint32_t slot = 0; pages && slot < n_slots && !atomic_load(&rb->closing);
	     slot += BATCH) {
		uint32_t n = MIN(BATCH, n_slots - slot);
		uint64_t offset = rb->super.headers_offset + (uint64_t)slot * RAW_BLOCK_PAGE_BYTES;

		if (raw_block_read(rb, pages, n * RAW_BLOCK_PAGE_BYTES, offset) < 0) {
			look_at_each(scan, slot, n, pages);
			continue;
		}
		for (uint32_t i = 0; i < n; i++)
			look_at(scan, slot + i, pages + (size_t)i * RAW_BLOCK_PAGE_BYTES);
	}
	free(pages);
}

/* true: it is in the index. */
static bool
add_to_index_locked(RawBlock *rb, const Candidate *candidate)
{
	const RawBlockHeader *header = &candidate->header;
	RawBlockNode *node = raw_block_get_locked(rb, candidate->key);
	bool is_free = !node->entry && raw_block_space_claim(&rb->space, header->data);
	if (is_free && !raw_block_space_claim(&rb->space, header->record)) {
		raw_block_space_give(&rb->space, header->data);
		is_free = false;
	}
	if (!is_free) {
		raw_block_drop_if_idle_locked(rb, node);
		return false;
	}
	raw_block_set_entry_locked(rb, node, raw_block_entry_new(header, candidate->xattrs));
	return true;
}

/*
 * A tombstone for what is not in the index. Where that cannot be written its key must not be said
 * to be gone.
 */
static void
bury_loser(RawBlock *rb, const Candidate *candidate, bool is_changing)
{
	RawBlockEntry *entry = raw_block_entry_new(&candidate->header, NULL);

	pthread_mutex_lock(&rb->lock);
	/* Those that are free are its own now; the others are somebody else's, and stay that. */
	if (!raw_block_space_claim(&rb->space, entry->header.data))
		entry->header.data.n = 0;
	if (!raw_block_space_claim(&rb->space, entry->header.record))
		entry->header.record.n = 0;
	pthread_mutex_unlock(&rb->lock);
	if (is_changing)
		raw_block_bury(rb, candidate->key, entry);
	else
		raw_block_add_zombie(rb, candidate->key, entry);
}

static void
fill_index(Scan *scan)
{
	RawBlock *rb = scan->rb;
	bool is_changing = false;

	g_array_sort(scan->candidates, compare_generation);
	for (guint i = 0; i < scan->candidates->len && !atomic_load(&rb->closing); i++) {
		Candidate *candidate = &g_array_index(scan->candidates, Candidate, i);

		pthread_mutex_lock(&rb->lock);
		bool is_added = add_to_index_locked(rb, candidate);
		pthread_mutex_unlock(&rb->lock);
		if (is_added)
			continue;
		is_changing = is_changing || raw_block_begin_change(rb) == 0;
		bury_loser(rb, candidate, is_changing);
	}
	if (is_changing)
		raw_block_end_change(rb);
}

/* Those that are no part of an object. */
static void
claim_unreadable(Scan *scan)
{
	RawBlock *rb = scan->rb;

	pthread_mutex_lock(&rb->lock);
	for (guint i = 0; i < scan->unreadable->len; i++) {
		uint32_t slot = g_array_index(scan->unreadable, uint32_t, i);

		raw_block_space_claim(&rb->space, (RawBlockRun){slot, 1});
	}
	pthread_mutex_unlock(&rb->lock);
}

static void
rebuild(RawBlock *rb)
{
	Scan scan = {
		.rb = rb,
		.candidates = g_array_new(FALSE, FALSE, sizeof(Candidate)),
		.unreadable = g_array_new(FALSE, FALSE, sizeof(uint32_t)),
	};
	int64_t begin = kvc_now_ns();

	g_array_set_clear_func(scan.candidates, candidate_clear);
	read_headers(&scan);
	atomic_store(&rb->last_generation, scan.last_generation);
	fill_index(&scan);
	claim_unreadable(&scan);
	g_message("raw_block %s: %" PRIu64 " objects found in %u headers in %" PRId64 " ms",
		  rb->path, rb->objects, rb->space.n_slots, (kvc_now_ns() - begin) / 1000000);
	if (scan.scope)
		kvc_key_scope_unref(scan.scope);
	g_array_unref(scan.candidates);
	g_array_unref(scan.unreadable);
}

void
raw_block_start(RawBlock *rb)
{
	bool is_right = rb->use_checkpoint && raw_block_checkpoint_read(rb);

	if (!is_right && !atomic_load(&rb->closing))
		rebuild(rb);
	pthread_mutex_lock(&rb->lock);
	rb->is_loaded_by_checkpoint = is_right;
	rb->is_ready = !atomic_load(&rb->closing);
	pthread_cond_broadcast(&rb->wake);
	pthread_mutex_unlock(&rb->lock);
}
