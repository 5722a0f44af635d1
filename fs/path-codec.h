/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PATH_CODEC_H
#define FS_PATH_CODEC_H

/*
 * Path components <-> fields of an ObjectKey (design.md 3). Pure; any thread. Injective both ways:
 * only the one canonical spelling is accepted.
 */

#include "kvcache/object-key.h"

#define KVCFS_CONTROL_DIR ".kvcache"
#define KVCFS_KEYS_FILE ".keys"

/* What a name in a rank or prefix directory is. */
typedef enum {
	KVCFS_NAME_HASH,      /* an object: 8 to 128 lower-case hex digits, even */
	KVCFS_NAME_TEMPORARY, /* the one table of temporary names */
	KVCFS_NAME_OTHER,     /* no file may have it; a prefix directory may */
} KvcfsNameClass;

KvcfsNameClass kvcfs_name_classify(const char *name);

/* The key of a hash NAME in SCOPE (transfer full); the name must be of class HASH. */
KvcObjectKey *kvcfs_name_to_key(KvcKeyScope *scope, const char *name);

/*
 * "@01000100", "@01000100@1", "@01000100@0@salt" of the directory whose model is MODEL_PATH (the
 * components above, joined by '/', still encoded). The scope (transfer full) or NULL with ERROR
 * set.
 */
KvcKeyScope *kvcfs_rank_parse(const char *model_path, const char *component, GError **error);
/* The rank component of SCOPE, and the encoded path of its model (transfer full). */
char *kvcfs_rank_format(const KvcKeyScope *scope);
char *kvcfs_model_path_format(const KvcKeyScope *scope);

#endif
