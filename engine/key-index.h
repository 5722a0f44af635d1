/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_KEY_INDEX_H
#define ENGINE_KEY_INDEX_H

/*
 * Every known key and the tiers that have it: 64 tables by hash, and per scope the order in which
 * its keys became known. What the mount's LOOKUP and READDIR are answered from, without any wait. A
 * key that is being deleted is hidden from the adapters that have not confirmed yet.
 */

#include "kvcache/storage-manager.h"

typedef struct KvcKeyIndex KvcKeyIndex;

KvcKeyIndex *kvc_key_index_new(void (*key_lost)(void *user, KvcObjectKey *key),
			       void (*scope_known)(void *user, KvcKeyScope *scope),
			       void *user);
void kvc_key_index_free(KvcKeyIndex *index);

/*
 * KEY is in TIER (one bit of KvcObjectInfo.tiers). BYTES: of an adapter only if it was not known to
 * have KEY: what is known is newer than a listing. An adapter from which KEY is being deleted is
 * ignored. ATTRIBUTES (the caller's; mtime 0: keep or now): what the tier knows of KEY besides. A
 * commit (tier L1) replaces what was known; an adapter is believed only where nothing is. Returns
 * the tiers that are thereby found to have an older version than another adapter, by version_ns of
 * both: the adapters among them are hidden, as after a replacement.
 */
uint32_t kvc_key_index_add_with(KvcKeyIndex *index,
				KvcObjectKey *key,
				uint32_t tier,
				uint64_t bytes,
				const KvcObjectAttributes *attributes);
/* The same where nothing but the mtime is known. */
static inline void
kvc_key_index_add(
	KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier, uint64_t bytes, int64_t mtime_ns)
{
	const KvcObjectAttributes attributes = {.mtime_ns = mtime_ns};
	kvc_key_index_add_with(index, key, tier, bytes, &attributes);
}
/* What an adapter says of an object, as attributes; the reference to xattrs stays INFO's. */
static inline KvcObjectAttributes
kvc_l2_object_info_attributes(const KvcL2ObjectInfo *info)
{
	return (KvcObjectAttributes){
		.mtime_ns = info->mtime_ns,
		.mode = info->mode,
		.uid = info->uid,
		.gid = info->gid,
		.xattrs = info->xattrs,
		.version_ns = info->version_ns,
	};
}
/*
 * L1 has a new version of KEY: what adapters have, or are found to have later, is one before, and
 * hidden until the new one is stored there (kvc_key_index_note_stored). ATTRIBUTES as in
 * kvc_key_index_add_with(). Returns version_ns of the new one.
 */
int64_t kvc_key_index_replace_with(KvcKeyIndex *index,
				   KvcObjectKey *key,
				   uint64_t bytes,
				   const KvcObjectAttributes *attributes);
/*
 * TIER (one bit) has what L1 has of KEY, and what it hid there is gone. Nothing changes for a key
 * that L1 does not have (any more): it was deleted or evicted while the store ended.
 */
void kvc_key_index_note_stored(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier);
/*
 * TIER (one bit) may have an older version than the one that L1 has: it is hidden there as if it
 * had been known when L1 got the new one. Nothing changes for a key that L1 does not have, nor
 * while a rename of it or onto it is pending on TIER: the end of that one says what is there.
 */
void kvc_key_index_note_outdated(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier);
/*
 * What TIER (one bit) has of KEY is of this size: of another one than known, if somebody else
 * replaced it there, and then another version (KvcObjectInfo.version), which is returned. Only if
 * KEY has VERSION yet, and L1 does not have it; else returns VERSION.
 */
uint32_t kvc_key_index_set_bytes(
	KvcKeyIndex *index, KvcObjectKey *key, uint32_t tier, uint32_t version, uint64_t bytes);
/*
 * Does what TIER (one bit) tells now of KEY differ from what it is known to have: by version_ns
 * where both have one, else by size or mtime? False too unless KEY has VERSION yet, and TIER has
 * it.
 */
bool kvc_key_index_is_other(KvcKeyIndex *index,
			    const KvcObjectKey *key,
			    uint32_t tier,
			    uint32_t version,
			    uint64_t bytes,
			    const KvcObjectAttributes *attributes);
/*
 * Somebody else has replaced what TIER (one bit) has of KEY: that is the object from now on,
 * another version, and what other adapters have is one before, hidden. Only if KEY has VERSION yet,
 * L1 does not have it, and no rename onto it is pending; else false.
 */
bool kvc_key_index_renew(KvcKeyIndex *index,
			 KvcObjectKey *key,
			 uint32_t tier,
			 uint32_t version,
			 uint64_t bytes,
			 const KvcObjectAttributes *attributes);
/* KEY is not, or no longer, in TIERS; calls key_lost when it was the last. */
void kvc_key_index_remove(KvcKeyIndex *index, KvcObjectKey *key, uint32_t tiers);
/* The same, but only if KEY has this version (KvcObjectInfo.version) yet. */
void kvc_key_index_remove_version(KvcKeyIndex *index,
				  KvcObjectKey *key,
				  uint32_t tiers,
				  uint32_t version);
/*
 * The same for TIER (one bit), from which somebody else has removed KEY; if L1 alone has it then,
 * it is KvcObjectInfo.is_removed until somebody commits it or an adapter has it again.
 */
void kvc_key_index_remove_elsewhere(KvcKeyIndex *index,
				    KvcObjectKey *key,
				    uint32_t tier,
				    uint32_t version);
/*
 * Removes KEY from every tier and hides it from ADAPTERS (bits) until they have confirmed this
 * deletion (kvc_key_index_unhide with DELETE_ID, which grows). Returns the tiers it was in, 0 if
 * unknown. Calls key_lost.
 */
uint32_t
kvc_key_index_hide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters, uint64_t delete_id);
/* What these adapters (bits) have of KEY is not believed: an older version, or a deleted one. */
uint32_t kvc_key_index_hidden_from(KvcKeyIndex *index, const KvcObjectKey *key);
/* Hides KEY from ADAPTERS, in which it is not, and changes nothing else. */
void kvc_key_index_hide_from(KvcKeyIndex *index,
			     KvcObjectKey *key,
			     uint32_t adapters,
			     uint64_t delete_id);
/* ADAPTERS confirmed deletion DELETE_ID of KEY: believes them again, unless a newer one is known.
 */
void
kvc_key_index_unhide(KvcKeyIndex *index, KvcObjectKey *key, uint32_t adapters, uint64_t delete_id);
/*
 * ADAPTER (one bit) is gone, and no rename is pending on it: forgets all about it. Calls key_lost
 * for the keys that only it had. Returns the keys that it had and only L1 has now (transfer full).
 */
GPtrArray *kvc_key_index_forget(KvcKeyIndex *index, uint32_t adapter);

/*
 * The entry of OLD_KEY becomes that of NEW_KEY, at the end of its scope, in place of what was
 * there. IS_RESIDENT: L1 has it. What the MOVABLE adapters have is in KvcObjectInfo.renaming until
 * end_rename. Until then OLD_KEY is hidden from ADAPTERS and NEW_KEY from MOVABLE ones (a subset):
 * what they say is about the time before. Calls key_lost for OLD_KEY, and scope_known.
 */
void kvc_key_index_rename(KvcKeyIndex *index,
			  KvcObjectKey *old_key,
			  KvcObjectKey *new_key,
			  bool is_resident,
			  uint32_t adapters,
			  uint32_t movable);
/*
 * What an adapter has as the new key after a rename: what OLD_KEY was known to be; nothing, and
 * what was hidden there is gone; or something else, which stays hidden until it is stored over (as
 * after kvc_key_index_replace_with).
 */
typedef enum { KVC_RENAME_PRESENT, KVC_RENAME_ABSENT, KVC_RENAME_STALE } KvcRenameEnd;
/*
 * The rename ended on ADAPTER (one bit): OLD_KEY is not hidden by it any more, but for IS_LISTING:
 * what the adapter listed before may be told yet.
 */
void kvc_key_index_end_rename_from(KvcKeyIndex *index,
				   KvcObjectKey *old_key,
				   uint32_t adapter,
				   bool is_listing);
/*
 * The same for NEW_KEY, if ADAPTER is one of the movable ones. Another rename of the key may have
 * begun: then that one's end decides. True: no tier has NEW_KEY now; calls key_lost.
 */
bool kvc_key_index_end_rename_to(KvcKeyIndex *index,
				 KvcObjectKey *new_key,
				 uint32_t adapter,
				 KvcRenameEnd end,
				 bool is_listing);

int kvc_key_index_get(KvcKeyIndex *index, const KvcObjectKey *key, KvcObjectInfo *info);
size_t kvc_key_index_list(KvcKeyIndex *index,
			  KvcKeyScope *scope,
			  unsigned spaces,
			  uint64_t after,
			  KvcListEntry *entries,
			  size_t max);
GPtrArray *kvc_key_index_list_scopes(KvcKeyIndex *index);
uint64_t kvc_key_index_count(KvcKeyIndex *index);

/* Attributes of known keys, as the functions of the StorageManager of the same names. */

int kvc_key_index_set_attributes(KvcKeyIndex *index,
				 const KvcObjectKey *key,
				 const KvcObjectAttributes *attributes,
				 unsigned which);
/* All there is (transfer full, to be cleared): 0 or -ENOENT. */
int kvc_key_index_get_attributes(KvcKeyIndex *index,
				 const KvcObjectKey *key,
				 KvcObjectAttributes *attributes);
/* VALUE NULL: removes NAME. */
int kvc_key_index_set_xattr(KvcKeyIndex *index,
			    const KvcObjectKey *key,
			    const char *name,
			    const void *value,
			    size_t bytes,
			    int flags);
void kvc_key_index_note_access(KvcKeyIndex *index, const KvcObjectKey *key);

#endif
