/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_MEMORY_H
#define ENGINE_L1_MEMORY_H

/*
 * L1 memory: a private tmpfs in no name space (memfd where that is refused), one unlinked file an
 * object, and the budget that says how many bytes and files there may be. Any thread.
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
/*
 * Gives a file and the BYTES it is charged for back (takes FD), once it is certain that no client
 * has it open or mapped: until then it lingers, and stays charged. Not IS_GIVEN_OUT: no client can
 * ever have opened it, that is certain.
 */
void kvc_l1_memory_close_file(KvcL1Memory *memory, int fd, uint64_t bytes, bool is_given_out);
/*
 * Looks at what lingers again, and gives back what is unused by now: true if any was. Does nothing
 * while that would take more than a tenth of a processor.
 */
bool kvc_l1_memory_sweep(KvcL1Memory *memory);
/*
 * Is nobody able to write the file of FD (read-only) any more? Waits up to WAIT_NS for it, as the
 * kernel drops the last descriptor of a client only after it has told us; longer, up to a second,
 * on a machine that is late with our own sleeps, as it is late with that as well. Without locks.
 * false also where the kernel gives no leases.
 */
bool kvc_l1_memory_prove_no_writer(KvcL1Memory *memory, int fd, int64_t wait_ns);
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
/* Files that linger, and their bytes. */
uint64_t kvc_l1_memory_lingering_files(const KvcL1Memory *memory);
uint64_t kvc_l1_memory_lingering_bytes(const KvcL1Memory *memory);
/* Why the kernel gives no leases: an errno; 0: it does. */
int kvc_l1_memory_lease_error(const KvcL1Memory *memory);
/* What there may be beyond the capacity, and how much of that is in use, in bytes. */
uint64_t kvc_l1_memory_overrun(const KvcL1Memory *memory);
uint64_t kvc_l1_memory_overrun_used(const KvcL1Memory *memory);

uint64_t kvc_l1_page_round(uint64_t bytes);

#endif
