/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_KEY_INDEX_PRIVATE_H
#define ENGINE_KEY_INDEX_PRIVATE_H

/* Shared by key-index.c and key-index-attributes.c only. */

#include "engine/key-index.h"
#include "engine/lock.h"

/* Of a known key; protected by the lock of its shard. Small: there are millions. */
typedef struct KvcKeyAttributes {
	int64_t mtime_ns;
	int64_t atime_ns, ctime_ns; /* 0: as mtime_ns */
	int64_t version_ns;
	KvcXattrs *xattrs; /* owned reference or NULL */
	uint32_t uid, gid;
	uint32_t hits;
	uint16_t mode; /* S_IFREG and permission bits, 0: unknown */
	uint16_t told; /* adapters (bits) that said VERSION_NS of what they have as this key */
} KvcKeyAttributes;

#define N_SHARDS 64

typedef struct Order {
	KvcKeyScope *scope; /* owned */
	KvcMutex lock;
	/* Protected by lock. */
	GArray *slots; /* of Slot */
	size_t n_live;
	uint64_t next_sequence;
} Order;

typedef struct Slot {
	uint64_t sequence;
	KvcObjectKey *key; /* owned, NULL: a hole */
} Slot;

/* Protected by the shard's lock. */
typedef struct Entry {
	KvcObjectKey *key; /* owned */
	Order *order;
	uint64_t bytes;
	uint64_t sequence;
	uint32_t tiers;
	uint32_t version; /* of the bytes; see KvcObjectInfo */
	KvcKeyAttributes attributes;
	uint32_t renaming; /* adapters that have it under a former name; none of tiers */
	bool is_committed; /* in this run: an adapter not known to have it has a version before */
	bool is_removed;   /* see KvcObjectInfo; only while TIERS is L1 */
} Entry;

/* Protected by the shard's lock. What ADAPTERS (bits) say of a key is not believed. */
typedef struct Hidden {
	uint32_t adapters;
	uint64_t delete_id; /* of its newest deletion, 0: none */
} Hidden;

/* How many renames of one key an adapter has not confirmed. */
typedef enum { MOVE_FROM, MOVE_TO } Move;
typedef struct Moves {
	uint32_t counts[2][KVC_MAX_ADAPTERS];
} Moves;

typedef struct Shard {
	KvcMutex lock;
	GHashTable *entries; /* key -> Entry */
	GHashTable *hidden;  /* key -> Hidden, NULL while nothing was hidden */
	GHashTable *moves;   /* key -> Moves, NULL while nothing was renamed */
} Shard;

struct KvcKeyIndex {
	/* Immutable. */
	void (*key_lost)(void *user, KvcObjectKey *key);
	void (*scope_known)(void *user, KvcKeyScope *scope);
	void *user;

	Shard shards[N_SHARDS];
	KvcMutex scopes_lock;
	GHashTable *orders;    /* Protected by scopes_lock: KvcKeyScope -> Order, never removed */
	uint64_t count;	       /* Atomic */
	uint32_t last_version; /* Atomic */
};

/* The attributes of KEY, with the lock of its shard held until unlock; NULL: not known, no lock. */
KvcKeyAttributes *kvc_key_index_lock_attributes(KvcKeyIndex *index, const KvcObjectKey *key);
void kvc_key_index_unlock_attributes(KvcKeyIndex *index, const KvcObjectKey *key);

/*
 * What TIER (one bit) knows: a commit replaces, an adapter fills in what is not known; at last,
 * now.
 */
void kvc_key_attributes_update(KvcKeyAttributes *a, const KvcObjectAttributes *from, uint32_t tier);
/* The bytes are committed now: returns their version_ns, larger than the one before. */
int64_t kvc_key_attributes_stamp(KvcKeyAttributes *a);
/*
 * Is the version that an adapter told of with FROM older (< 0) or newer (> 0) than what TIERS told
 * of? 0: it is the same, or one of the two is not known.
 */
int kvc_key_attributes_compare(const KvcKeyAttributes *a,
			       uint32_t tiers,
			       const KvcObjectAttributes *from);
/*
 * Is what an adapter that is known to have this version tells now FROM another one? By the stamps
 * of both, else by the size (the caller's word for it) and the mtime.
 */
bool kvc_key_attributes_are_other(const KvcKeyAttributes *a,
				  const KvcObjectAttributes *from,
				  bool has_other_size);
/* Forgets all that is known of the bytes before. */
void kvc_key_attributes_clear(KvcKeyAttributes *a);
void kvc_key_attributes_fill_info(const KvcKeyAttributes *a, KvcObjectInfo *info);

#endif
