/* SPDX-License-Identifier: Apache-2.0 */

/* Attributes of known keys: the index has them, the StoreController takes changes to L2. */

#include "engine/storage-manager-private.h"
#include "engine/store-controller.h"
#include "kvcache/crc.h"

#include <errno.h>

/* Times of access are nobody's business in L2. */
#define STORED_ATTRIBUTES (~(unsigned)KVC_ATTRIBUTE_ATIME)

int
kvc_storage_manager_set_attributes(KvcStorageManager *sm,
				   KvcObjectKey *key,
				   const KvcObjectAttributes *attributes,
				   unsigned which)
{
	if (which == 0)
		return kvc_key_index_get(sm->context.index, key, NULL);
	int rc = kvc_key_index_set_attributes(sm->context.index, key, attributes, which);
	if (rc == 0 && (which & STORED_ATTRIBUTES))
		kvc_store_controller_submit_attributes(sm->store, key);
	return rc;
}

KvcXattrs *
kvc_storage_manager_get_xattrs(KvcStorageManager *sm, KvcObjectKey *key)
{
	KvcObjectAttributes attributes;
	if (kvc_key_index_get_attributes(sm->context.index, key, &attributes) < 0)
		return NULL;
	return attributes.xattrs;
}

static int
change_xattr(KvcStorageManager *sm,
	     KvcObjectKey *key,
	     const char *name,
	     const void *value,
	     size_t bytes,
	     int flags)
{
	if (!kvc_xattr_name_is_user(name))
		return -EOPNOTSUPP;
	int rc = kvc_key_index_set_xattr(sm->context.index, key, name, value, bytes, flags);
	if (rc == 0)
		kvc_store_controller_submit_attributes(sm->store, key);
	return rc;
}

int
kvc_storage_manager_set_xattr(KvcStorageManager *sm,
			      KvcObjectKey *key,
			      const char *name,
			      const void *value,
			      size_t bytes,
			      int flags)
{
	return change_xattr(sm, key, name, value ? value : "", bytes, flags);
}

int
kvc_storage_manager_remove_xattr(KvcStorageManager *sm, KvcObjectKey *key, const char *name)
{
	return change_xattr(sm, key, name, NULL, 0, 0);
}

void
kvc_storage_manager_note_access(KvcStorageManager *sm, KvcObjectKey *key)
{
	kvc_key_index_note_access(sm->context.index, key);
}

int
kvc_storage_manager_set_pinned(KvcStorageManager *sm, KvcObjectKey *key, bool pinned)
{
	int rc = kvc_key_index_get(sm->context.index, key, NULL);
	if (rc == 0)
		kvc_l1_manager_set_pinned(sm->context.l1, key, pinned);
	return rc;
}

void
kvc_storage_manager_get_residency(KvcStorageManager *sm, KvcObjectKey *key, KvcResidency *residency)
{
	kvc_l1_manager_get_residency(sm->context.l1, key, residency);
}

/* Two at the same time find the same. */
static int
compute_crc32c(KvcL1Object *object, uint32_t *crc)
{
	KvcMemoryObj memory;
	int rc = kvc_l1_object_map(object, false, &memory);
	if (rc < 0)
		return rc;
	*crc = kvc_crc32c(0, memory.data, memory.bytes);
	kvc_l1_object_unmap(&memory);
	__atomic_store_n(&object->crc32c, KVC_L1_CRC_KNOWN | *crc, __ATOMIC_RELAXED);
	return 0;
}

int
kvc_storage_manager_get_crc32c(KvcStorageManager *sm, KvcObjectKey *key, uint32_t *crc)
{
	KvcL1Object *object;
	if (kvc_l1_manager_reserve_read(sm->context.l1, &key, 1, 1, &object, NULL) == 0)
		return -ENODATA;
	uint64_t known = __atomic_load_n(&object->crc32c, __ATOMIC_RELAXED);
	int rc = 0;
	if (known & KVC_L1_CRC_KNOWN)
		*crc = (uint32_t)known;
	else
		rc = compute_crc32c(object, crc);
	kvc_l1_manager_finish_read(sm->context.l1, object, 1);
	return rc;
}
