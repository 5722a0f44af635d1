/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_KEY_INDEX_PRIVATE_H
#define ENGINE_KEY_INDEX_PRIVATE_H

/* Shared by key-index.c and key-index-attributes.c only. */

#include "engine/key-index.h"

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
/* Forgets all that is known of the bytes before. */
void kvc_key_attributes_clear(KvcKeyAttributes *a);
void kvc_key_attributes_fill_info(const KvcKeyAttributes *a, KvcObjectInfo *info);

#endif
