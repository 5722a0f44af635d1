/* SPDX-License-Identifier: Apache-2.0 */

#include <string.h>

#include <kvcache/crc.h>

#include "raw_block-format.h"

#define SUPER_MAGIC "KVCRAWB1"
#define LMCACHE_MAGIC "LMCIDX01"
#define HEADER_MAGIC "KVCSLOT1"
#define MAGIC_BYTES 8u
#define MIB (UINT64_C(1) << 20)
/* Room in the checkpoint for each slot; what needs more takes from what needs less. */
#define CHECKPOINT_BYTES_PER_SLOT 256u
#define CHECKPOINT_EXTRA_BYTES (64u << 10)

/* Offsets in a superblock. */
enum {
	SUPER_VERSION = 8,
	SUPER_CRC = 12,
	SUPER_SEQUENCE = 16,
	SUPER_STORE_ID = 24,
	SUPER_SLOT_BYTES = 40,
	SUPER_N_SLOTS = 48,
	SUPER_CHECKPOINT_ROOM = 56,
	SUPER_HEADERS_OFFSET = 64,
	SUPER_SLOTS_OFFSET = 72,
	SUPER_IS_CLEAN = 80,
	SUPER_CHECKPOINT_CRC = 84,
	SUPER_CHECKPOINT_BYTES = 88,
	SUPER_CHECKPOINT_OBJECTS = 96,
	SUPER_LAST_GENERATION = 104,
};

/* Offsets in a header. */
enum {
	HEADER_CRC = 8,
	HEADER_KIND = 12,
	HEADER_STORE_ID = 16,
	HEADER_OBJECT = 32,
	HEADER_RECORD = 112,
};

/* Offsets in what a header and an entry of a checkpoint say of an object. */
enum {
	OBJECT_SLOT = 0,
	OBJECT_GENERATION = 8,
	OBJECT_BYTES = 16,
	OBJECT_N_SLOTS = 24,
	OBJECT_PAYLOAD_CRC = 28,
	OBJECT_MTIME = 32,
	OBJECT_VERSION = 40,
	OBJECT_MODE = 48,
	OBJECT_UID = 52,
	OBJECT_GID = 56,
	OBJECT_RECORD_BYTES = 60,
	OBJECT_RECORD_SLOT = 64,
	OBJECT_RECORD_N_SLOTS = 72,
	OBJECT_RECORD_CRC = 76,
	OBJECT_SIZE = 80,
};

/* Offsets in an entry of a checkpoint. */
enum {
	ENTRY_BYTES = 0,
	ENTRY_ZERO = 4,
	ENTRY_OBJECT = 8,
	ENTRY_RECORD = 88,
	ENTRY_ALIGN = 8,
};

/* Offsets in a record; model, salt and name follow, then the extended attributes. */
enum {
	RECORD_SPACE = 0,
	RECORD_ZERO = 1,
	RECORD_NAME_BYTES = 2,
	RECORD_MODEL_BYTES = 4,
	RECORD_SALT_BYTES = 8,
	RECORD_RANK = 12,
	RECORD_GROUP = 16,
	RECORD_XATTRS = 20,
	RECORD_TEXTS = 24,
	XATTR_SIZES = 6, /* before each attribute */
};

G_STATIC_ASSERT(HEADER_OBJECT + OBJECT_SIZE == HEADER_RECORD);
G_STATIC_ASSERT(ENTRY_OBJECT + OBJECT_SIZE == ENTRY_RECORD);
G_STATIC_ASSERT(RAW_BLOCK_PAGE_BYTES - HEADER_RECORD == RAW_BLOCK_RECORD_INLINE_BYTES);

/* ---- Numbers ------------------------------------------------------------------------------- */

static uint16_t
get_16(const uint8_t *at)
{
	return (uint16_t)(at[0] | at[1] << 8);
}

static uint32_t
get_32(const uint8_t *at)
{
	uint32_t value;

	memcpy(&value, at, sizeof(value));
	return GUINT32_FROM_LE(value);
}

static uint64_t
get_64(const uint8_t *at)
{
	uint64_t value;

	memcpy(&value, at, sizeof(value));
	return GUINT64_FROM_LE(value);
}

static void
put_16(uint8_t *at, uint16_t value)
{
	at[0] = (uint8_t)value;
	at[1] = (uint8_t)(value >> 8);
}

static void
put_32(uint8_t *at, uint32_t value)
{
	value = GUINT32_TO_LE(value);
	memcpy(at, &value, sizeof(value));
}

static void
put_64(uint8_t *at, uint64_t value)
{
	value = GUINT64_TO_LE(value);
	memcpy(at, &value, sizeof(value));
}

static uint64_t
align_up(uint64_t value, uint64_t to)
{
	return (value + to - 1) / to * to;
}

/* Of a page, whose CRC is at AT and counts as zero. */
static uint32_t
page_crc(const uint8_t *page, size_t at)
{
	static const uint8_t zeros[4];
	uint32_t crc = kvc_crc32c(0, page, at);

	crc = kvc_crc32c(crc, zeros, sizeof(zeros));
	return kvc_crc32c(crc, page + at + 4, RAW_BLOCK_PAGE_BYTES - at - 4);
}

/* ---- Superblocks --------------------------------------------------------------------------- */

uint64_t
raw_block_super_end(const RawBlockSuper *super)
{
	return super->slots_offset + super->n_slots * super->slot_bytes;
}

static bool
is_slot_size(uint64_t bytes)
{
	return bytes >= RAW_BLOCK_SLOT_MIN_BYTES && bytes <= RAW_BLOCK_SLOT_MAX_BYTES &&
	       bytes % RAW_BLOCK_PAGE_BYTES == 0;
}

/* Slots of whole MiB begin at one. */
static void
place(RawBlockSuper *super)
{
	uint64_t alignment = super->slot_bytes % MIB == 0 ? MIB : RAW_BLOCK_PAGE_BYTES;

	super->checkpoint_room =
		align_up(super->n_slots * CHECKPOINT_BYTES_PER_SLOT + CHECKPOINT_EXTRA_BYTES,
			 RAW_BLOCK_PAGE_BYTES);
	super->headers_offset = RAW_BLOCK_CHECKPOINT_OFFSET + super->checkpoint_room;
	super->slots_offset =
		align_up(super->headers_offset + super->n_slots * RAW_BLOCK_PAGE_BYTES, alignment);
}

bool
raw_block_super_lay_out(RawBlockSuper *super, uint64_t slot_bytes, uint64_t total_bytes)
{
	*super = (RawBlockSuper){.slot_bytes = slot_bytes};
	if (!is_slot_size(slot_bytes))
		return false;
	uint64_t each = slot_bytes + RAW_BLOCK_PAGE_BYTES + CHECKPOINT_BYTES_PER_SLOT;
	super->n_slots = MIN(total_bytes / each, RAW_BLOCK_SLOTS_MAX);
	/* The superblocks, and what alignment costs: a few dozen slots at most. */
	for (; super->n_slots > 0; super->n_slots--) {
		place(super);
		if (raw_block_super_end(super) <= total_bytes)
			return true;
	}
	return false;
}

void
raw_block_super_encode(const RawBlockSuper *super, void *page)
{
	uint8_t *to = page;

	memset(to, 0, RAW_BLOCK_PAGE_BYTES);
	memcpy(to, SUPER_MAGIC, MAGIC_BYTES);
	put_32(to + SUPER_VERSION, RAW_BLOCK_VERSION);
	put_64(to + SUPER_SEQUENCE, super->sequence);
	memcpy(to + SUPER_STORE_ID, super->store_id, sizeof(super->store_id));
	put_64(to + SUPER_SLOT_BYTES, super->slot_bytes);
	put_64(to + SUPER_N_SLOTS, super->n_slots);
	put_64(to + SUPER_CHECKPOINT_ROOM, super->checkpoint_room);
	put_64(to + SUPER_HEADERS_OFFSET, super->headers_offset);
	put_64(to + SUPER_SLOTS_OFFSET, super->slots_offset);
	put_32(to + SUPER_IS_CLEAN, super->is_clean);
	put_32(to + SUPER_CHECKPOINT_CRC, super->checkpoint_crc);
	put_64(to + SUPER_CHECKPOINT_BYTES, super->checkpoint_bytes);
	put_64(to + SUPER_CHECKPOINT_OBJECTS, super->checkpoint_objects);
	put_64(to + SUPER_LAST_GENERATION, super->last_generation);
	put_32(to + SUPER_CRC, page_crc(to, SUPER_CRC));
}

/* Is it the one layout that there is for its slots? */
static bool
is_laid_out(const RawBlockSuper *super)
{
	RawBlockSuper placed = *super;

	if (!is_slot_size(super->slot_bytes) || super->n_slots == 0 ||
	    super->n_slots > RAW_BLOCK_SLOTS_MAX ||
	    super->n_slots > (UINT64_C(1) << 62) / super->slot_bytes)
		return false;
	place(&placed);
	return placed.checkpoint_room == super->checkpoint_room &&
	       placed.headers_offset == super->headers_offset &&
	       placed.slots_offset == super->slots_offset &&
	       super->checkpoint_bytes <= super->checkpoint_room;
}

static bool
is_zero(const uint8_t *page)
{
	return page[0] == 0 && !memcmp(page, page + 1, RAW_BLOCK_PAGE_BYTES - 1);
}

RawBlockSuperState
raw_block_super_decode(const void *page, RawBlockSuper *super, uint32_t *version)
{
	const uint8_t *from = page;

	if (is_zero(from))
		return RAW_BLOCK_SUPER_EMPTY;
	if (!memcmp(from, LMCACHE_MAGIC, MAGIC_BYTES))
		return RAW_BLOCK_SUPER_LMCACHE;
	if (memcmp(from, SUPER_MAGIC, MAGIC_BYTES) != 0)
		return RAW_BLOCK_SUPER_FOREIGN;
	if (get_32(from + SUPER_CRC) != page_crc(from, SUPER_CRC))
		return RAW_BLOCK_SUPER_DAMAGED;
	*version = get_32(from + SUPER_VERSION);
	if (*version != RAW_BLOCK_VERSION)
		return RAW_BLOCK_SUPER_NEWER;
	*super = (RawBlockSuper){
		.sequence = get_64(from + SUPER_SEQUENCE),
		.slot_bytes = get_64(from + SUPER_SLOT_BYTES),
		.n_slots = get_64(from + SUPER_N_SLOTS),
		.checkpoint_room = get_64(from + SUPER_CHECKPOINT_ROOM),
		.headers_offset = get_64(from + SUPER_HEADERS_OFFSET),
		.slots_offset = get_64(from + SUPER_SLOTS_OFFSET),
		.is_clean = get_32(from + SUPER_IS_CLEAN) == 1,
		.checkpoint_crc = get_32(from + SUPER_CHECKPOINT_CRC),
		.checkpoint_bytes = get_64(from + SUPER_CHECKPOINT_BYTES),
		.checkpoint_objects = get_64(from + SUPER_CHECKPOINT_OBJECTS),
		.last_generation = get_64(from + SUPER_LAST_GENERATION),
	};
	memcpy(super->store_id, from + SUPER_STORE_ID, sizeof(super->store_id));
	return is_laid_out(super) ? RAW_BLOCK_SUPER_VALID : RAW_BLOCK_SUPER_DAMAGED;
}

bool
raw_block_super_has_id(const void *page, const RawBlockSuper *super)
{
	return !memcmp((const uint8_t *)page + SUPER_STORE_ID, super->store_id,
		       sizeof(super->store_id));
}

/* ---- Objects ------------------------------------------------------------------------------- */

uint32_t
raw_block_slots_for(const RawBlockSuper *super, uint64_t bytes)
{
	uint64_t n = bytes == 0 ? 1 : (bytes - 1) / super->slot_bytes + 1;

	return n > RAW_BLOCK_SLOTS_MAX ? 0 : (uint32_t)n;
}

static void
put_object(uint8_t *to, const RawBlockHeader *header)
{
	put_64(to + OBJECT_SLOT, header->data.slot);
	put_64(to + OBJECT_GENERATION, header->generation);
	put_64(to + OBJECT_BYTES, header->bytes);
	put_32(to + OBJECT_N_SLOTS, header->data.n);
	put_32(to + OBJECT_PAYLOAD_CRC, header->payload_crc);
	put_64(to + OBJECT_MTIME, (uint64_t)header->mtime_ns);
	put_64(to + OBJECT_VERSION, (uint64_t)header->version_ns);
	put_32(to + OBJECT_MODE, header->mode);
	put_32(to + OBJECT_UID, header->uid);
	put_32(to + OBJECT_GID, header->gid);
	put_32(to + OBJECT_RECORD_BYTES, header->record_bytes);
	put_64(to + OBJECT_RECORD_SLOT, header->record.slot);
	put_32(to + OBJECT_RECORD_N_SLOTS, header->record.n);
	put_32(to + OBJECT_RECORD_CRC, header->record_crc);
}

static bool
are_slots(const RawBlockSuper *super, uint64_t slot, uint32_t n)
{
	return n <= super->n_slots && slot <= super->n_slots - n;
}

static bool
overlap(const RawBlockRun *a, const RawBlockRun *b)
{
	return (uint64_t)a->slot < (uint64_t)b->slot + b->n &&
	       (uint64_t)b->slot < (uint64_t)a->slot + a->n;
}

/* What is in bounds, and what its slots are just enough for. */
static bool
get_object(const RawBlockSuper *super, const uint8_t *from, RawBlockHeader *header)
{
	uint64_t slot = get_64(from + OBJECT_SLOT), record = get_64(from + OBJECT_RECORD_SLOT);

	*header = (RawBlockHeader){
		.generation = get_64(from + OBJECT_GENERATION),
		.bytes = get_64(from + OBJECT_BYTES),
		.payload_crc = get_32(from + OBJECT_PAYLOAD_CRC),
		.data = {(uint32_t)slot, get_32(from + OBJECT_N_SLOTS)},
		.record = {(uint32_t)record, get_32(from + OBJECT_RECORD_N_SLOTS)},
		.record_bytes = get_32(from + OBJECT_RECORD_BYTES),
		.record_crc = get_32(from + OBJECT_RECORD_CRC),
		.mtime_ns = (int64_t)get_64(from + OBJECT_MTIME),
		.version_ns = (int64_t)get_64(from + OBJECT_VERSION),
		.mode = get_32(from + OBJECT_MODE),
		.uid = get_32(from + OBJECT_UID),
		.gid = get_32(from + OBJECT_GID),
	};
	uint32_t bytes = header->record_bytes;
	uint32_t n = bytes <= RAW_BLOCK_RECORD_INLINE_BYTES ? 0 : raw_block_slots_for(super, bytes);
	return are_slots(super, slot, header->data.n) &&
	       are_slots(super, record, header->record.n) &&
	       header->data.n == raw_block_slots_for(super, header->bytes) && header->data.n > 0 &&
	       bytes >= RECORD_TEXTS && bytes <= RAW_BLOCK_RECORD_MAX_BYTES &&
	       header->record.n == n && !overlap(&header->data, &header->record);
}

static void
header_begin(const RawBlockSuper *super, RawBlockHeaderKind kind, uint8_t *page)
{
	memset(page, 0, RAW_BLOCK_PAGE_BYTES);
	memcpy(page, HEADER_MAGIC, MAGIC_BYTES);
	put_32(page + HEADER_KIND, kind);
	memcpy(page + HEADER_STORE_ID, super->store_id, sizeof(super->store_id));
}

void
raw_block_header_encode(const RawBlockSuper *super,
			const RawBlockHeader *header,
			const void *record,
			void *page)
{
	uint8_t *to = page;

	header_begin(super, RAW_BLOCK_HEADER_OBJECT, to);
	put_object(to + HEADER_OBJECT, header);
	if (header->record.n == 0)
		memcpy(to + HEADER_RECORD, record, header->record_bytes);
	put_32(to + HEADER_CRC, page_crc(to, HEADER_CRC));
}

void
raw_block_tombstone_encode(const RawBlockSuper *super,
			   uint32_t slot,
			   uint64_t generation,
			   void *page)
{
	uint8_t *to = page;

	header_begin(super, RAW_BLOCK_HEADER_TOMBSTONE, to);
	put_64(to + HEADER_OBJECT + OBJECT_SLOT, slot);
	put_64(to + HEADER_OBJECT + OBJECT_GENERATION, generation);
	put_32(to + HEADER_CRC, page_crc(to, HEADER_CRC));
}

RawBlockHeaderKind
raw_block_header_decode(const RawBlockSuper *super,
			uint32_t slot,
			const void *page,
			RawBlockHeader *header,
			const uint8_t **record)
{
	const uint8_t *from = page;
	const uint8_t *object = from + HEADER_OBJECT;

	if (memcmp(from, HEADER_MAGIC, MAGIC_BYTES) != 0 ||
	    memcmp(from + HEADER_STORE_ID, super->store_id, sizeof(super->store_id)) != 0 ||
	    get_64(object + OBJECT_SLOT) != slot ||
	    get_32(from + HEADER_CRC) != page_crc(from, HEADER_CRC))
		return RAW_BLOCK_HEADER_NONE;
	if (get_32(from + HEADER_KIND) == RAW_BLOCK_HEADER_TOMBSTONE) {
		*header = (RawBlockHeader){.generation = get_64(object + OBJECT_GENERATION)};
		return RAW_BLOCK_HEADER_TOMBSTONE;
	}
	if (get_32(from + HEADER_KIND) != RAW_BLOCK_HEADER_OBJECT ||
	    !get_object(super, object, header))
		return RAW_BLOCK_HEADER_NONE;
	*record = header->record.n == 0 ? from + HEADER_RECORD : NULL;
	return RAW_BLOCK_HEADER_OBJECT;
}

/* ---- Records ------------------------------------------------------------------------------- */

/* Bytes of the extended attributes in a record. */
static size_t
xattrs_bytes(const KvcXattrs *xattrs)
{
	size_t cursor = 0, bytes, all = 0;
	const char *name;

	while (kvc_xattrs_next(xattrs, &cursor, &name, NULL, &bytes))
		all += XATTR_SIZES + strlen(name) + bytes;
	return all;
}

static uint8_t *
put_bytes(uint8_t *at, const void *data, size_t bytes)
{
	if (bytes > 0)
		memcpy(at, data, bytes);
	return at + bytes;
}

/* How many there are. */
static uint32_t
put_xattrs(uint8_t *at, const KvcXattrs *xattrs)
{
	size_t cursor = 0, bytes;
	const char *name;
	const void *value;
	uint32_t n = 0;

	for (; kvc_xattrs_next(xattrs, &cursor, &name, &value, &bytes); n++) {
		put_16(at, (uint16_t)strlen(name));
		put_32(at + 2, (uint32_t)bytes);
		at = put_bytes(at + XATTR_SIZES, name, strlen(name));
		at = put_bytes(at, value, bytes);
	}
	return n;
}

uint8_t *
raw_block_record_encode(const KvcObjectKey *key, const KvcXattrs *xattrs, RawBlockHeader *header)
{
	const KvcKeyScope *scope = key->scope;
	size_t model = strlen(scope->model_name), salt = strlen(scope->cache_salt);
	size_t bytes = RECORD_TEXTS + model + salt + key->chunk_hash_len + xattrs_bytes(xattrs);

	if (bytes > RAW_BLOCK_RECORD_MAX_BYTES)
		return NULL;
	uint8_t *record = g_malloc0(bytes), *at = record + RECORD_TEXTS;
	record[RECORD_SPACE] = key->space;
	put_16(record + RECORD_NAME_BYTES, key->chunk_hash_len);
	put_32(record + RECORD_MODEL_BYTES, (uint32_t)model);
	put_32(record + RECORD_SALT_BYTES, (uint32_t)salt);
	put_32(record + RECORD_RANK, scope->kv_rank);
	put_32(record + RECORD_GROUP, scope->object_group_id);
	at = put_bytes(at, scope->model_name, model);
	at = put_bytes(at, scope->cache_salt, salt);
	at = put_bytes(at, key->chunk_hash, key->chunk_hash_len);
	put_32(record + RECORD_XATTRS, put_xattrs(at, xattrs));
	header->record_bytes = (uint32_t)bytes;
	header->record_crc = kvc_crc32c(0, record, bytes);
	return record;
}

/* Bytes that are read from front to back; what they do not have is NULL. */
typedef struct Reader {
	const uint8_t *at;
	size_t left;
} Reader;

static const uint8_t *
take(Reader *reader, size_t bytes)
{
	const uint8_t *at = reader->at;

	if (bytes > reader->left)
		return NULL;
	reader->at += bytes;
	reader->left -= bytes;
	return at;
}

/* A copy that ends with NUL (transfer full); NULL: there are not so many, or one of them is NUL. */
static char *
take_text(Reader *reader, size_t bytes)
{
	const uint8_t *at = take(reader, bytes);

	if (!at || memchr(at, '\0', bytes))
		return NULL;
	return g_strndup((const char *)at, bytes);
}

static bool
take_xattrs(Reader *reader, uint32_t n, KvcXattrs **xattrs)
{
	for (; n > 0; n--) {
		const uint8_t *sizes = take(reader, XATTR_SIZES);
		g_autofree char *name = sizes ? take_text(reader, get_16(sizes)) : NULL;
		const uint8_t *value = name ? take(reader, get_32(sizes + 2)) : NULL;
		KvcXattrs *old = *xattrs;

		if (!value || kvc_xattrs_set(old, name, value, get_32(sizes + 2), xattrs) < 0)
			return false;
		kvc_xattrs_unref(old);
	}
	return reader->left == 0;
}

static bool
is_text(const uint8_t *bytes, size_t n, const char *text)
{
	return strlen(text) == n && !memcmp(bytes, text, n);
}

/* Is it the scope of the record before? Then nothing is allocated. */
static bool
is_scope(const KvcKeyScope *scope, const uint8_t *fixed, Reader reader)
{
	size_t model_bytes = get_32(fixed + RECORD_MODEL_BYTES);
	size_t salt_bytes = get_32(fixed + RECORD_SALT_BYTES);
	const uint8_t *model = take(&reader, model_bytes), *salt = take(&reader, salt_bytes);

	return scope && model && salt &&
	       scope->is_plain == (fixed[RECORD_SPACE] == KVC_SPACE_PLAIN) &&
	       scope->kv_rank == get_32(fixed + RECORD_RANK) &&
	       scope->object_group_id == get_32(fixed + RECORD_GROUP) &&
	       is_text(model, model_bytes, scope->model_name) &&
	       is_text(salt, salt_bytes, scope->cache_salt);
}

static KvcKeyScope *
scope_new(const uint8_t *fixed, const char *model, const char *salt)
{
	if (fixed[RECORD_SPACE] == KVC_SPACE_PLAIN)
		return kvc_key_scope_new_plain(model, NULL);
	return kvc_key_scope_new(model, get_32(fixed + RECORD_RANK), get_32(fixed + RECORD_GROUP),
				 salt, NULL);
}

/* The scope of FIXED in *SCOPE; false: it is none. */
static bool
take_scope(Reader *reader, const uint8_t *fixed, KvcKeyScope **scope)
{
	if (is_scope(*scope, fixed, *reader)) {
		take(reader, get_32(fixed + RECORD_MODEL_BYTES));
		take(reader, get_32(fixed + RECORD_SALT_BYTES));
		return true;
	}
	g_autofree char *model = take_text(reader, get_32(fixed + RECORD_MODEL_BYTES));
	g_autofree char *salt = model ? take_text(reader, get_32(fixed + RECORD_SALT_BYTES)) : NULL;
	KvcKeyScope *new = salt ? scope_new(fixed, model, salt) : NULL;
	if (!new)
		return false;
	if (*scope)
		kvc_key_scope_unref(*scope);
	*scope = new;
	return true;
}

bool
raw_block_record_decode(const RawBlockHeader *header,
			const uint8_t *record,
			KvcKeyScope **scope,
			KvcObjectKey **key,
			KvcXattrs **xattrs)
{
	Reader reader = {record, header->record_bytes};

	*key = NULL;
	*xattrs = NULL;
	if (header->record_crc != kvc_crc32c(0, record, header->record_bytes))
		return false;
	const uint8_t *fixed = take(&reader, RECORD_TEXTS);
	if (!fixed || fixed[RECORD_ZERO] != 0 || fixed[RECORD_SPACE] > KVC_SPACE_PREFIX ||
	    !take_scope(&reader, fixed, scope))
		return false;
	uint16_t name_bytes = get_16(fixed + RECORD_NAME_BYTES);
	const uint8_t *name = take(&reader, name_bytes);
	if (name)
		*key = kvc_object_key_new(*scope, fixed[RECORD_SPACE], name, name_bytes, NULL);
	if (*key && take_xattrs(&reader, get_32(fixed + RECORD_XATTRS), xattrs))
		return true;
	if (*key)
		kvc_object_key_unref(g_steal_pointer(key));
	kvc_xattrs_unref(g_steal_pointer(xattrs));
	return false;
}

/* ---- Entries of a checkpoint --------------------------------------------------------------- */

size_t
raw_block_entry_bytes(const RawBlockHeader *header)
{
	return align_up(ENTRY_RECORD + header->record_bytes, ENTRY_ALIGN);
}

void
raw_block_entry_encode(const RawBlockHeader *header, const void *record, uint8_t *out)
{
	size_t bytes = raw_block_entry_bytes(header);

	memset(out + bytes - ENTRY_ALIGN, 0, ENTRY_ALIGN);
	put_32(out + ENTRY_BYTES, (uint32_t)bytes);
	put_32(out + ENTRY_ZERO, 0);
	put_object(out + ENTRY_OBJECT, header);
	memcpy(out + ENTRY_RECORD, record, header->record_bytes);
}

bool
raw_block_entry_decode(const RawBlockSuper *super,
		       const uint8_t *data,
		       size_t bytes,
		       size_t *at,
		       RawBlockHeader *header,
		       const uint8_t **record)
{
	const uint8_t *entry = data + *at;

	if (bytes - *at < ENTRY_RECORD || get_32(entry + ENTRY_ZERO) != 0 ||
	    !get_object(super, entry + ENTRY_OBJECT, header))
		return false;
	size_t size = raw_block_entry_bytes(header);
	if (size > bytes - *at || get_32(entry + ENTRY_BYTES) != size)
		return false;
	*record = entry + ENTRY_RECORD;
	*at += size;
	return true;
}
