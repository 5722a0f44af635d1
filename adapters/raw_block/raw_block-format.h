/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ADAPTERS_RAW_BLOCK_RAW_BLOCK_FORMAT_H
#define ADAPTERS_RAW_BLOCK_RAW_BLOCK_FORMAT_H

/*
 * What is on the device, see README.md: superblocks, slot headers, records, entries of a
 * checkpoint. No I/O and no state, for any thread. Whatever bytes a decoder is given, it reads
 * within them, and what it accepts is in bounds of the store.
 */

#include <kvcache/attributes.h>
#include <kvcache/object-key.h>

/* The unit of everything: written and read as one, aligned to it. */
#define RAW_BLOCK_PAGE_BYTES 4096u
#define RAW_BLOCK_VERSION 1u

/* The two superblocks, and where the rest begins. */
#define RAW_BLOCK_SUPER_A_OFFSET 0u
#define RAW_BLOCK_SUPER_B_OFFSET (64u << 10)
#define RAW_BLOCK_CHECKPOINT_OFFSET (128u << 10)

#define RAW_BLOCK_SLOT_MIN_BYTES 4096u
#define RAW_BLOCK_SLOT_MAX_BYTES (UINT64_C(1) << 40)
#define RAW_BLOCK_SLOTS_MAX (UINT64_C(1) << 31)
/* Key and extended attributes of one object. */
#define RAW_BLOCK_RECORD_MAX_BYTES (1u << 20)
/* A record up to here is in the header of its slot. */
#define RAW_BLOCK_RECORD_INLINE_BYTES (RAW_BLOCK_PAGE_BYTES - 112u)

typedef struct RawBlockSuper {
	uint64_t sequence;
	uint8_t store_id[16]; /* another one for each time that it was formatted */
	uint64_t slot_bytes, n_slots;
	uint64_t checkpoint_room; /* bytes */
	uint64_t headers_offset, slots_offset;
	bool is_clean; /* the checkpoint has all there is */
	uint64_t checkpoint_bytes, checkpoint_objects;
	uint32_t checkpoint_crc;
	uint64_t last_generation; /* of the checkpoint */
} RawBlockSuper;

typedef enum {
	RAW_BLOCK_SUPER_VALID,
	RAW_BLOCK_SUPER_EMPTY,	 /* zeros */
	RAW_BLOCK_SUPER_FOREIGN, /* not of this kind at all */
	RAW_BLOCK_SUPER_LMCACHE, /* LMCache's raw_block */
	RAW_BLOCK_SUPER_DAMAGED, /* its CRC or a field is not right */
	RAW_BLOCK_SUPER_NEWER,	 /* of a version that is not known here */
} RawBlockSuperState;

/* Where the store ends: bytes of the device that it needs. */
uint64_t raw_block_super_end(const RawBlockSuper *super);
/*
 * Lays out a store of slots of SLOT_BYTES in TOTAL_BYTES; the rest of SUPER is zero. false: not one
 * slot has room, or SLOT_BYTES is none that is allowed.
 */
bool raw_block_super_lay_out(RawBlockSuper *super, uint64_t slot_bytes, uint64_t total_bytes);
/* PAGE has RAW_BLOCK_PAGE_BYTES, here and below. */
void raw_block_super_encode(const RawBlockSuper *super, void *page);
/* SUPER is set if it is valid, VERSION if it is newer. */
RawBlockSuperState
raw_block_super_decode(const void *page, RawBlockSuper *super, uint32_t *version);

/* Has PAGE, whatever else is wrong with it, the id of the store SUPER? */
bool raw_block_super_has_id(const void *page, const RawBlockSuper *super);

/* N neighbouring slots. */
typedef struct RawBlockRun {
	uint32_t slot, n;
} RawBlockRun;

/* An object, without its key and extended attributes: those are its record. */
typedef struct RawBlockHeader {
	uint64_t generation; /* of two headers for one key the larger one is right */
	uint64_t bytes;
	uint32_t payload_crc;
	RawBlockRun data;   /* at least one slot; its first one's header is this */
	RawBlockRun record; /* the slots of a record that is not in the header, or 0 */
	uint32_t record_bytes, record_crc;
	int64_t mtime_ns, version_ns;
	uint32_t mode, uid, gid;
} RawBlockHeader;

typedef enum {
	RAW_BLOCK_HEADER_NONE, /* nothing of this store */
	RAW_BLOCK_HEADER_OBJECT,
	RAW_BLOCK_HEADER_TOMBSTONE,
} RawBlockHeaderKind;

/* The slots that BYTES occupy, at least 1; 0: more than there may be. */
uint32_t raw_block_slots_for(const RawBlockSuper *super, uint64_t bytes);
/* RECORD, of HEADER->record_bytes, goes into the page if the header says that it is there. */
void raw_block_header_encode(const RawBlockSuper *super,
			     const RawBlockHeader *header,
			     const void *record,
			     void *page);
void raw_block_tombstone_encode(const RawBlockSuper *super,
				uint32_t slot,
				uint64_t generation,
				void *page);
/*
 * The header of SLOT. Of an object *RECORD points into PAGE, or is NULL when it is elsewhere; its
 * CRC is not looked at then. Of a tombstone only the generation is set.
 */
RawBlockHeaderKind raw_block_header_decode(const RawBlockSuper *super,
					   uint32_t slot,
					   const void *page,
					   RawBlockHeader *header,
					   const uint8_t **record);

/* The record of an object (transfer full), or NULL: it is too long. Sets record_bytes and its CRC.
 */
uint8_t *
raw_block_record_encode(const KvcObjectKey *key, const KvcXattrs *xattrs, RawBlockHeader *header);
/*
 * Key and extended attributes (transfer full) of a record of HEADER->record_bytes; false: it is
 * damaged. *SCOPE is the scope of the record before, or NULL, and becomes that of this one; the
 * caller unrefs the last one.
 */
bool raw_block_record_decode(const RawBlockHeader *header,
			     const uint8_t *record,
			     KvcKeyScope **scope,
			     KvcObjectKey **key,
			     KvcXattrs **xattrs);

/* Bytes of an object in a checkpoint. */
size_t raw_block_entry_bytes(const RawBlockHeader *header);
/* Writes so many to OUT. */
void raw_block_entry_encode(const RawBlockHeader *header, const void *record, uint8_t *out);
/*
 * The entry at *AT of a checkpoint of BYTES; *AT moves behind it. *RECORD points into DATA. false:
 * the checkpoint is damaged.
 */
bool raw_block_entry_decode(const RawBlockSuper *super,
			    const uint8_t *data,
			    size_t bytes,
			    size_t *at,
			    RawBlockHeader *header,
			    const uint8_t **record);

#endif
