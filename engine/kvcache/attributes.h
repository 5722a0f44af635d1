/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_ATTRIBUTES_H
#define KVCACHE_ATTRIBUTES_H

/*
 * What an object carries besides its bytes: mode, owner, times, and extended attributes. A set of
 * extended attributes never changes: a change makes another set, so that a store may read the old
 * one meanwhile without a lock. All functions may be called from any thread.
 */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KVC_BEGIN_DECLS

/* Name and value of an extended attribute, and all of those of one object together. */
#define KVC_XATTR_NAME_MAX_BYTES 255
#define KVC_XATTR_VALUE_MAX_BYTES (64u << 10)
#define KVC_XATTRS_MAX_BYTES (65u << 10) /* so that all names can be listed: Linux has 64 KiB */

/* What a user may set begins with the first, but not with the second: those are computed. */
#define KVC_XATTR_USER_PREFIX "user."
#define KVC_XATTR_OWN_PREFIX "user.kvcache."

/* Immutable, reference counted. NULL is the empty set wherever one is taken or returned. */
typedef struct KvcXattrs KvcXattrs;

KvcXattrs *kvc_xattrs_ref(KvcXattrs *xattrs);
void kvc_xattrs_unref(KvcXattrs *xattrs);

/* May a user set the extended attribute NAME? */
bool kvc_xattr_name_is_user(const char *name);
/* The value of NAME, owned by the set, and its length in bytes; NULL: there is none. */
const void *kvc_xattrs_get(const KvcXattrs *xattrs, const char *name, size_t *bytes);
/*
 * Walks the set: *CURSOR is 0 at first. true: NAME (may be NULL), VALUE (may be NULL) and BYTES
 * (may be NULL) are those of the next one, owned by the set.
 */
bool kvc_xattrs_next(const KvcXattrs *xattrs,
		     size_t *cursor,
		     const char **name,
		     const void **value,
		     size_t *bytes);
/*
 * *OUT (transfer full) is XATTRS with NAME set to a copy of BYTES bytes of VALUE. 0; -ERANGE: NAME
 * is empty or too long; -E2BIG: the value is too long; -ENOSPC: the set would be too big.
 */
int kvc_xattrs_set(const KvcXattrs *xattrs,
		   const char *name,
		   const void *value,
		   size_t bytes,
		   KvcXattrs **out);
/* *OUT (transfer full) is XATTRS without NAME. 0, or -ENODATA: it was not there. */
int kvc_xattrs_remove(const KvcXattrs *xattrs, const char *name, KvcXattrs **out);

/*
 * What setxattr(2) with FLAGS does, or with VALUE NULL removexattr(2): *OUT (transfer full) is the
 * set after it. 0, or -errno of the two above, -EEXIST or -ENODATA.
 */
int kvc_xattrs_change(const KvcXattrs *xattrs,
		      const char *name,
		      const void *value,
		      size_t bytes,
		      int flags,
		      KvcXattrs **out);

/* The mode of an object of which nothing is known: S_IFREG, rw-r--r--. */
#define KVC_MODE_DEFAULT 0100644u

typedef struct KvcObjectAttributes {
	int64_t mtime_ns; /* since the epoch; 0: unknown */
	int64_t atime_ns; /* the same; no store keeps it */
	uint32_t mode;	  /* S_IFREG and permission bits; 0: unknown, as are UID and GID then */
	uint32_t uid, gid;
	KvcXattrs *xattrs; /* a reference of its own, where the function does not say otherwise */
	/*
	 * When the engine committed the bytes, by the clock of that host, in ns since the epoch:
	 * the larger of two is of the newer version. 0: unknown. Only the engine sets it.
	 */
	int64_t version_ns;
} KvcObjectAttributes;

/* A copy with a reference of its own; kvc_object_attributes_clear() gives that back. */
KvcObjectAttributes kvc_object_attributes_copy(const KvcObjectAttributes *attributes);
void kvc_object_attributes_clear(KvcObjectAttributes *attributes);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcXattrs, kvc_xattrs_unref)

KVC_END_DECLS

#endif
