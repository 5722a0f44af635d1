/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_KEY_CODEC_H
#define KVCACHE_KEY_CODEC_H

/*
 * LMCache's spellings of an object key in its stores (facts/lmcache.md 1.3). Space 0 only.
 * Everything here is pure and may be called from any thread.
 */

#include "kvcache/object-key.h"

G_BEGIN_DECLS

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

/* Lower-case hex of LEN bytes (transfer full), and back: NULL unless TEXT is lower-case, even. */
char *kvc_hex_encode(const void *data, size_t len);
/* Decodes LEN digits of TEXT into OUT (LEN / 2 bytes); false unless all lower-case hex and even. */
bool kvc_hex_decode(const char *text, size_t len, uint8_t *out);

G_END_DECLS

#endif
