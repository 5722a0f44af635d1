/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PATH_CODEC_H
#define FS_PATH_CODEC_H

/*
 * Path components <-> fields of an ObjectKey. Pure; any thread. Injective both ways:
 * only the one canonical spelling is accepted. The model and the rank are spelled by the engine,
 * since adapters spell them alike; the names of files are here.
 */

#include "kvcache/key-codec.h"

#define KVCFS_CONTROL_DIR KVC_CONTROL_DIR
#define KVCFS_KEYS_FILE ".keys"

/* What the name of a file is, by the directory it is in. */
typedef enum {
	KVCFS_NAME_HASH,      /* an object: 8 to 128 lower-case hex digits, even */
	KVCFS_NAME_PLAIN,     /* an object of a plain directory: any name that is not temporary */
	KVCFS_NAME_TEMPORARY, /* the one table of temporary names */
	KVCFS_NAME_OTHER,     /* no file may have it; a prefix directory may */
} KvcfsNameClass;

bool kvcfs_name_is_hash(const char *name);
/* Are all files below the plain directory DIRECTORY temporary? */
bool kvcfs_directory_is_temporary(const char *directory);
/* By the one table of temporary names; DIRECTORY: the path of a plain directory, or NULL. */
bool kvcfs_name_is_temporary(const char *directory, const char *name);
/* In a directory with SCOPE: of a rank (and its prefix directories), or plain. */
KvcfsNameClass kvcfs_name_classify(const KvcKeyScope *scope, const char *name);

/*
 * More temporary names: PATTERNS of fnmatch(3), NULL-terminated, copied. Before other threads are
 * started. A hash in a rank is never temporary.
 */
void kvcfs_names_set_temporary(const char *const *patterns);

/* The key of NAME in SCOPE (transfer full), NULL: not the name of an object. */
KvcObjectKey *kvcfs_name_to_key(KvcKeyScope *scope, const char *name);
/* And back (transfer full). */
char *kvcfs_key_to_name(const KvcObjectKey *key);

#endif
