/* SPDX-License-Identifier: Apache-2.0 */

/* Mode, owner, times and extended attributes of the keys in the index. */

#include "engine/key-index-private.h"
#include "engine/lock.h"

#include <errno.h>
#include <sys/stat.h>

#define PERMISSIONS 07777
#define COARSE_NS 1000

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

void
kvc_key_attributes_update(KvcKeyAttributes *a, const KvcObjectAttributes *from, bool is_l1)
{
	if (is_l1 && from->mtime_ns != 0) {
		a->ctime_ns = kvc_wall_ns();
		a->atime_ns = from->atime_ns;
	}
	if (from->mtime_ns != 0 && (is_l1 || a->mtime_ns == 0)) {
		a->mtime_ns = from->mtime_ns;
		a->is_told = !is_l1;
	}
	if (a->mtime_ns == 0)
		a->mtime_ns = kvc_wall_ns();
	if (is_l1 ? from->mode == 0 : a->mode != 0)
		return;
	take_owner(a, from);
	if (is_l1 || from->xattrs)
		take_xattrs(a, from->xattrs);
}

/* A store that keeps less than a nanosecond: the second is all that can be compared. */
static bool
is_coarse(int64_t mtime_ns)
{
	return mtime_ns % COARSE_NS == 0;
}

int
kvc_key_attributes_compare(const KvcKeyAttributes *a, const KvcObjectAttributes *from)
{
	int64_t unit = is_coarse(a->mtime_ns) || is_coarse(from->mtime_ns) ? KVC_SEC_NS : 1;
	if (!a->is_told || from->mtime_ns == 0)
		return 0;
	int64_t known = a->mtime_ns / unit, told = from->mtime_ns / unit;
	return (told > known) - (told < known);
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
	if (which & KVC_ATTRIBUTE_MTIME) {
		a->mtime_ns = attributes->mtime_ns;
		a->is_told = false;
	}
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
