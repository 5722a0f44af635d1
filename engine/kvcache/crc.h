/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_CRC_H
#define KVCACHE_CRC_H

#include "kvcache/decls.h"

#include <glib.h>
#include <stddef.h>
#include <stdint.h>

KVC_BEGIN_DECLS

/*
 * CRC32C (Castagnoli, RFC 3720: init and final xor 0xffffffff) of LEN bytes. Start with CRC 0; feed
 * the result back in to continue: crc32c(crc32c(0, a), b) == crc32c(0, ab). ISA-L where it was
 * there at build time, else a table. Any thread.
 */
uint32_t kvc_crc32c(uint32_t crc, const void *data, size_t len);
/* "isa-l" or "table": which one is built in. */
const char *kvc_crc32c_implementation(void);

KVC_END_DECLS

#endif
