/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_OBJECT_H
#define ENGINE_L1_OBJECT_H

/* The memory of one L1 object, for the L1Manager only. */

#include "engine/l1-manager.h"

#define KVC_L1_SHARDS 64

/*
 * A staging object with BYTES, rounded up to pages (charged by the caller), allocated: 0 or -errno.
 * Its file is empty, or, IS_SIZED, has BYTES and keeps that size.
 */
int kvc_l1_object_create(KvcL1Manager *manager,
			 KvcL1Memory *memory,
			 uint64_t bytes,
			 bool is_sized,
			 KvcL1Object **out);
/* Allocates the file's bytes from BEGIN to before END without changing its size: 0 or -errno. */
int kvc_l1_object_allocate(KvcL1Object *object, uint64_t begin, uint64_t end);
/*
 * Takes the size the file has as the object's, frees what was reserved beyond it, fills holes (they
 * are data now, and reading them must not take memory), and makes the charge exact. 0 or -errno.
 */
int kvc_l1_object_seal(KvcL1Object *object, KvcL1Memory *memory);
/*
 * From now on the file cannot be written through the object's descriptor: 0 if nobody else can
 * write it either, KVC_L1_STILL_WRITABLE if that cannot be proven within WAIT_NS. Without locks;
 * the object is sealed and only its owner knows it. May be asked again.
 */
#define KVC_L1_STILL_WRITABLE 1
int kvc_l1_object_protect(KvcL1Object *object, int64_t wait_ns);
/*
 * Replaces the object's file by a copy of its bytes of this moment that nobody else has ever seen.
 * The caller has charged what the object is charged for once more, and a file; the object takes
 * that over, the old file keeps its own until it is given back. 0 or -errno.
 */
int kvc_l1_object_make_private(KvcL1Object *object);
/*
 * The same file under KEY, as a new object without locks (transfer full; in no table yet). File,
 * memory and charge stay with the object that was reserved, which lives as long as any of them.
 */
KvcL1Object *kvc_l1_object_new_alias(KvcL1Object *object, KvcObjectKey *key);
/* Would its memory return with the one reference that the table has? */
bool kvc_l1_object_is_unshared(const KvcL1Object *object);
/* Bytes of the object that lie on huge pages, or -1 where the kernel cannot tell. */
int64_t kvc_l1_object_measure_huge_bytes(KvcL1Object *object);

#endif
