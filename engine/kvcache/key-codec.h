/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_KEY_CODEC_H
#define KVCACHE_KEY_CODEC_H

/*
 * The spellings of an object key: LMCache's file names in its stores (space 0 only), the paths of
 * the mount, which adapters use for the other spaces, and one line of text for any key. All of it
 * is pure, for any thread.
 */

#include "kvcache/decls.h"
#include "kvcache/object-key.h"

KVC_BEGIN_DECLS

/*
 * The file name of KEY in an LMCache `fs` directory:
 *   <model, '/' as "-SEP-">@0x%08x(rank)@%x(group)@<hash hex>[@<salt>].data
 * Returns it (transfer full), or NULL with ERROR set: EINVAL when the name would be read back as
 * another key (the model contains "-SEP-" or makes one at a '/', as "a-SEP/b" does; a group of 8
 * hex digits without a salt looks like the hash of the older form) or the space is not 0;
 * ENAMETOOLONG beyond 255 bytes.
 */
char *kvc_lmcache_file_name_format(const KvcObjectKey *key, GError **error);
/*
 * The key of a file name: the form above, also the older one without the group (third field of 8 or
 * more hex digits and even length: the hash). NULL when the name is not of that form in its one
 * canonical spelling (except for the missing group) - then it is not ours; no error is set.
 */
KvcObjectKey *kvc_lmcache_file_name_parse(const char *name);

/*
 * The name of KEY in a store of names and values, as LMCache's native connectors (`resp`, `s3`)
 * have it:
 *   <model>@%08x(rank)@%x(group)@<hash hex>[@<salt>]
 * and for what LMCache does not know "kvcfs:1:<path>" of a plain file and "kvcfs:2:<model
 * path>/<rank>/<name>" of a prefix chain, as in the mount. Any bytes but NUL. NULL (transfer full)
 * for the one kind of key that has none: a chunk of a model whose name begins with "kvcfs:".
 */
#define KVC_STORE_NAME_PLAIN "kvcfs:1:"
#define KVC_STORE_NAME_PREFIX "kvcfs:2:"
char *kvc_store_name_format(const KvcObjectKey *key);
/* The key of that name (transfer full); NULL: the name is not ours, in its one spelling. */
KvcObjectKey *kvc_store_name_parse(const char *name);

/* The first component that is no model: the directory of control files. */
#define KVC_CONTROL_DIR ".kvcache"

/*
 * The directory of a scope in the mount, and below prefix/ in a store, is
 * <model path>/<rank component>. Injective both ways: parse(format(scope)) == scope for every
 * scope, and format(parse(path)) == path for every path that is accepted.
 *
 * The model name of SCOPE as a relative path (transfer full): its '/' make components, none of
 * which is empty, ".", ".." or begins with '@', and the first is not KVC_CONTROL_DIR; what would be
 * is percent-encoded, as is '%'. No bound on the length: what a file system refuses is its own
 * affair.
 */
char *kvc_model_path_format(const KvcKeyScope *scope);
/* "@%08x(rank)", then "@%x(group)" if it or the salt is set, then "@salt" if set (transfer full).
 */
char *kvc_rank_format(const KvcKeyScope *scope);
/*
 * The scope of the directory MODEL_PATH/COMPONENT (transfer full), MODEL_PATH being encoded. NULL
 * with ERROR set, KVC_KEY_ERROR and EINVAL, unless both are in their one canonical spelling.
 */
KvcKeyScope *kvc_rank_parse(const char *model_path, const char *component, GError **error);

/*
 * All fields of KEY as one line of printable ASCII without blanks, with a version in front
 * (transfer full). Fit to be kept: what a later version writes differently gets another version.
 */
char *kvc_object_key_serialize(const KvcObjectKey *key);
/* The key of that line (transfer full), or NULL: TEXT is not what the function above returns. */
KvcObjectKey *kvc_object_key_deserialize(const char *text);
/* SHA-256 of that line, 64 digits of lower-case hex (transfer full). */
char *kvc_object_key_digest(const KvcObjectKey *key);

/* Lower-case hex of LEN bytes (transfer full), and back: NULL unless TEXT is lower-case, even. */
char *kvc_hex_encode(const void *data, size_t len);
/* Decodes LEN digits of TEXT into OUT (LEN / 2 bytes); false unless all lower-case hex and even. */
bool kvc_hex_decode(const char *text, size_t len, uint8_t *out);

KVC_END_DECLS

#endif
