/* SPDX-License-Identifier: Apache-2.0 */

/* Mode, owner, times and extended attributes of the keys in the index. */

#include "engine/key-index-private.h"
#include "engine/lock.h"

#include <errno.h>
#include <sys/stat.h>

#define PERMISSIONS 07777

static void
take_owner(KvcKeyAttributes *a, const KvcObjectAttributes *from)
{
	a->mode = (uint16_t)from->mode;
	a->uid = from->uid;
	a->gid = from->gid;
}

static void
take_xattrs(KvcKeyAttributes *a, KvcXattrs *xattrs)
{
	KvcXattrs *old = a->xattrs;
	a->xattrs = kvc_xattrs_ref(xattrs);
	kvc_xattrs_unref(old);
}

/* A user of the store may have replaced what TIER told of before. */
static void
take_version(KvcKeyAttributes *a, const KvcObjectAttributes *from, uint32_t adapter)
{
	a->told &= (uint16_t)~adapter;
	if (from->version_ns > a->version_ns) {
		a->version_ns = from->version_ns;
		a->told = 0;
	}
	if (from->version_ns && from->version_ns == a->version_ns)
		a->told |= (uint16_t)adapter;
}

void
kvc_key_attributes_update(KvcKeyAttributes *a, const KvcObjectAttributes *from, uint32_t tier)
{
	bool is_l1 = tier == KVC_TIER_L1;
	if (!is_l1)
		take_version(a, from, tier);
	if (is_l1 && from->mtime_ns != 0) {
		a->ctime_ns = kvc_wall_ns();
		a->atime_ns = from->atime_ns;
	}
	if (from->mtime_ns != 0 && (is_l1 || a->mtime_ns == 0))
		a->mtime_ns = from->mtime_ns;
	if (a->mtime_ns == 0)
		a->mtime_ns = kvc_wall_ns();
	if (is_l1 ? from->mode == 0 : a->mode != 0)
		return;
	take_owner(a, from);
	if (is_l1 || from->xattrs)
		take_xattrs(a, from->xattrs);
}

int64_t
kvc_key_attributes_stamp(KvcKeyAttributes *a)
{
	/* A store may tell anything. */
	int64_t next = a->version_ns < INT64_MAX ? a->version_ns + 1 : INT64_MAX;
	a->version_ns = MAX(kvc_wall_ns(), next); /* the clock may have gone back */
	a->told = 0;
	return a->version_ns;
}

int
kvc_key_attributes_compare(const KvcKeyAttributes *a,
			   uint32_t tiers,
			   const KvcObjectAttributes *from)
{
	int64_t known = a->version_ns, told = from->version_ns;
	if (!(a->told & tiers) || told == 0)
		return 0;
	return (told > known) - (told < known);
}

bool
kvc_key_attributes_are_other(const KvcKeyAttributes *a,
			     const KvcObjectAttributes *from,
			     bool has_other_size)
{
	if (a->version_ns && from->version_ns)
		return a->version_ns != from->version_ns;
	return has_other_size || (from->mtime_ns && from->mtime_ns != a->mtime_ns);
}

void
kvc_key_attributes_clear(KvcKeyAttributes *a)
{
	kvc_xattrs_unref(a->xattrs);
	*a = (KvcKeyAttributes){.hits = a->hits};
}

void
kvc_key_attributes_fill_info(const KvcKeyAttributes *a, KvcObjectInfo *info)
{
	info->mtime_ns = a->mtime_ns;
	info->atime_ns = a->atime_ns ? a->atime_ns : a->mtime_ns;
	info->ctime_ns = a->ctime_ns ? a->ctime_ns : a->mtime_ns;
	info->mode = a->mode;
	info->uid = a->uid;
	info->gid = a->gid;
	info->hits = a->hits;
}

/* A change by a user: from now on the index knows better than any adapter. */
static void
note_change(KvcKeyAttributes *a)
{
	a->ctime_ns = kvc_wall_ns();
	if (a->mode == 0)
		a->mode = KVC_MODE_DEFAULT;
}

int
kvc_key_index_set_attributes(KvcKeyIndex *index,
			     const KvcObjectKey *key,
			     const KvcObjectAttributes *attributes,
			     unsigned which)
{
	KvcKeyAttributes *a = kvc_key_index_lock_attributes(index, key);
	if (!a)
		return -ENOENT;
	note_change(a);
	if (which & KVC_ATTRIBUTE_MODE)
		a->mode = (uint16_t)(S_IFREG | (attributes->mode & PERMISSIONS));
	if (which & KVC_ATTRIBUTE_UID)
		a->uid = attributes->uid;
	if (which & KVC_ATTRIBUTE_GID)
		a->gid = attributes->gid;
	if (which & KVC_ATTRIBUTE_MTIME)
		a->mtime_ns = attributes->mtime_ns;
	if (which & KVC_ATTRIBUTE_ATIME)
		a->atime_ns = attributes->atime_ns;
	kvc_key_index_unlock_attributes(index, key);
	return 0;
}

int
kvc_key_index_get_attributes(KvcKeyIndex *index,
			     const KvcObjectKey *key,
			     KvcObjectAttributes *attributes)
{
	const KvcKeyAttributes *a = kvc_key_index_lock_attributes(index, key);
	if (!a)
		return -ENOENT;
	*attributes = (KvcObjectAttributes){
		.mtime_ns = a->mtime_ns,
		.atime_ns = a->atime_ns,
		.mode = a->mode,
		.uid = a->uid,
		.gid = a->gid,
		.xattrs = kvc_xattrs_ref(a->xattrs),
		.version_ns = a->version_ns,
	};
	kvc_key_index_unlock_attributes(index, key);
	return 0;
}

int
kvc_key_index_set_xattr(KvcKeyIndex *index,
			const KvcObjectKey *key,
			const char *name,
			const void *value,
			size_t bytes,
			int flags)
{
	KvcXattrs *changed = NULL;
	KvcKeyAttributes *a = kvc_key_index_lock_attributes(index, key);
	if (!a)
		return -ENOENT;
	int rc = kvc_xattrs_change(a->xattrs, name, value, bytes, flags, &changed);
	if (rc == 0) {
		kvc_xattrs_unref(a->xattrs);
		a->xattrs = changed;
		note_change(a);
	}
	kvc_key_index_unlock_attributes(index, key);
	return rc;
}

void
kvc_key_index_note_access(KvcKeyIndex *index, const KvcObjectKey *key)
{
	KvcKeyAttributes *a = kvc_key_index_lock_attributes(index, key);
	if (!a)
		return;
	a->atime_ns = kvc_wall_ns();
	if (a->hits < UINT32_MAX)
		a->hits++;
	kvc_key_index_unlock_attributes(index, key);
}
