/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_OBJECT_KEY_H
#define KVCACHE_OBJECT_KEY_H

/*
 * KvcObjectKey names one object in every tier.
 *
 * What the objects of one directory share (model, rank, group, salt) is a KvcKeyScope, interned:
 * two scopes with equal fields are the same pointer for as long as one of them is referenced. A key
 * is a scope, a space and a chunk_hash. Both are immutable and reference counted; every function
 * here may be called from any thread.
 */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

KVC_BEGIN_DECLS

/* Longest chunk_hash of a chunk (space 0), and the shortest one. */
#define KVC_CHUNK_HASH_MIN_BYTES 4
#define KVC_CHUNK_HASH_MAX_BYTES 64
/* Longest name carried in chunk_hash in the other spaces. */
#define KVC_NAME_MAX_BYTES 1023
/* Longest cache_salt, in characters (not bytes), as LMCache counts it. */
#define KVC_SALT_MAX_CHARS 128

typedef enum {
	KVC_SPACE_CHUNK = 0,  /* a chunk of KV cache: what the specification knows */
	KVC_SPACE_PLAIN = 1,  /* a plain file: model_name is its directory, chunk_hash its name */
	KVC_SPACE_PREFIX = 2, /* the chain of a prefix directory: chunk_hash is its name */
} KvcSpace;

/* Error domain of the key constructors and the codecs; the code is an errno value. */
#define KVC_KEY_ERROR (kvc_key_error_quark())
GQuark kvc_key_error_quark(void);

typedef struct KvcKeyScope {
	/* Immutable. All strings are owned by the scope; cache_salt is "" when there is none. */
	const char *model_name;
	const char *cache_salt;
	uint32_t kv_rank;
	uint32_t object_group_id;
	bool is_plain; /* a directory of plain files: model_name is its path, the rest is empty */
} KvcKeyScope;

typedef struct KvcObjectKey {
	/* Immutable. */
	KvcKeyScope *scope;	 /* owned reference */
	uint64_t hash;		 /* over all fields; equal keys have equal hashes */
	int refs;		 /* Atomic; use the functions */
	uint16_t chunk_hash_len; /* bytes */
	uint8_t space;		 /* KvcSpace */
	uint8_t chunk_hash[];
} KvcObjectKey;

/*
 * Returns the scope with these fields (transfer full), or NULL with ERROR set and EINVAL as its
 * code when a field is not allowed: model_name not UTF-8, empty or with '@'; cache_salt with any of
 * "@ / \ NUL" or more than KVC_SALT_MAX_CHARS characters. CACHE_SALT may be NULL for none.
 */
KvcKeyScope *kvc_key_scope_new(const char *model_name,
			       uint32_t kv_rank,
			       uint32_t object_group_id,
			       const char *cache_salt,
			       GError **error);
/*
 * Returns the scope of the plain files of one directory (transfer full), or NULL with ERROR set
 * (EINVAL). DIRECTORY is the path below the mount's root, any bytes: "" for the root itself, else
 * components with one '/' between two of them, none of which is "." or "..".
 */
KvcKeyScope *kvc_key_scope_new_plain(const char *directory, GError **error);
KvcKeyScope *kvc_key_scope_ref(KvcKeyScope *scope);
void kvc_key_scope_unref(KvcKeyScope *scope);

/*
 * Returns a new key (transfer full), or NULL with ERROR set (EINVAL, ENAMETOOLONG). CHUNK_HASH is
 * copied; LEN in bytes. The scope gets a reference of its own. In space 0 LEN must be 4..64; in the
 * other spaces 1..1023 with no '/' and no NUL, and not "." or "..". A plain scope has keys of space
 * 1 only, an ordinary one of the others.
 */
KvcObjectKey *kvc_object_key_new(
	KvcKeyScope *scope, KvcSpace space, const void *chunk_hash, size_t len, GError **error);
KvcObjectKey *kvc_object_key_ref(const KvcObjectKey *key);
void kvc_object_key_unref(KvcObjectKey *key);

/* For GHashTable: over all fields. */
unsigned kvc_object_key_hash(const void *key);
gboolean kvc_object_key_equal(const void *a, const void *b);

/* A one-line spelling for logs and errors, not a codec (transfer full). */
char *kvc_object_key_to_string(const KvcObjectKey *key);

/* chunk_hash in lower-case hex (transfer full). */
char *kvc_object_key_hash_hex(const KvcObjectKey *key);

G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcKeyScope, kvc_key_scope_unref)
G_DEFINE_AUTOPTR_CLEANUP_FUNC(KvcObjectKey, kvc_object_key_unref)

KVC_END_DECLS

#endif
