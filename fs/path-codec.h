/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PATH_CODEC_H
#define FS_PATH_CODEC_H

/*
 * Path components <-> fields of an ObjectKey (design.md 3). Pure; any thread. Injective both ways:
 * only the one canonical spelling is accepted. The model and the rank are spelled by the engine,
 * since adapters spell them alike; the names of files are here.
 */

#include "kvcache/key-codec.h"

#define KVCFS_CONTROL_DIR KVC_CONTROL_DIR
#define KVCFS_KEYS_FILE ".keys"

/* What a name in a rank or prefix directory is. */
typedef enum {
	KVCFS_NAME_HASH,      /* an object: 8 to 128 lower-case hex digits, even */
	KVCFS_NAME_TEMPORARY, /* the one table of temporary names */
	KVCFS_NAME_OTHER,     /* no file may have it; a prefix directory may */
} KvcfsNameClass;

KvcfsNameClass kvcfs_name_classify(const char *name);

/*
 * Is a file NAME in the plain DIRECTORY (its path below the mount's root, "" for the root) a
 * temporary one: by its name, or because a component of the path is "tmp" or ".tmp"? Components up
 * to a rank's ("@01000100") are of a model's name and do not count.
 */
bool kvcfs_name_is_temporary(const char *directory, const char *name);
/*
 * More temporary names: PATTERNS of fnmatch(3), NULL-terminated, copied. Before other threads are
 * started; a hash is never temporary.
 */
void kvcfs_names_set_temporary(const char *const *patterns);

/* The key of a hash NAME in SCOPE (transfer full); the name must be of class HASH. */
KvcObjectKey *kvcfs_name_to_key(KvcKeyScope *scope, const char *name);

#endif
