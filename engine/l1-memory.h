/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_MEMORY_H
#define ENGINE_L1_MEMORY_H

/*
 * L1 memory: a private tmpfs in no name space (memfd where that is refused), one unlinked file an
 * object, and the budget that says how many bytes and files there may be (design.md 2).
 */

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

typedef struct KvcL1Memory KvcL1Memory;

/* CAPACITY and OVERRUN in bytes; NULL with ERROR set. */
KvcL1Memory *kvc_l1_memory_new(uint64_t capacity, uint64_t overrun, GError **error);
void kvc_l1_memory_free(KvcL1Memory *memory); /* all files must be closed */

/* Takes BYTES (rounded up to pages by the caller) and FILES from the budget; false: no room. */
bool kvc_l1_memory_charge(KvcL1Memory *memory, uint64_t bytes, unsigned files);
/* The same, beyond the budget where need be: for bytes that are in the memory already. */
void kvc_l1_memory_charge_over(KvcL1Memory *memory, uint64_t bytes);
void kvc_l1_memory_uncharge(KvcL1Memory *memory, uint64_t bytes, unsigned files);

/* A new empty file, or -errno. */
int kvc_l1_memory_create_file(KvcL1Memory *memory);
/* Samples the free space; when it is used up, the epoch moves on: writes since may have failed. */
void kvc_l1_memory_sample_full(KvcL1Memory *memory);
/* An allocation has just failed: for a moment there was no room for anybody. */
void kvc_l1_memory_note_full(KvcL1Memory *memory);
uint64_t kvc_l1_memory_full_epoch(KvcL1Memory *memory);

uint64_t kvc_l1_memory_capacity(const KvcL1Memory *memory);
uint64_t kvc_l1_memory_used(const KvcL1Memory *memory);
uint64_t kvc_l1_memory_files(const KvcL1Memory *memory);
uint64_t kvc_l1_memory_files_limit(const KvcL1Memory *memory);
const char *kvc_l1_memory_kind(const KvcL1Memory *memory); /* "tmpfs" or "memfd" */

uint64_t kvc_l1_page_round(uint64_t bytes);

#endif
