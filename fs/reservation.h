/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_RESERVATION_H
#define FS_RESERVATION_H

/* The room of a file that is being written. */

#include "fs/internal.h"

/* What the first file of a directory gets, in bytes. */
#define KVCFS_FIRST_RESERVATION_BYTES (2u << 20)

/*
 * Reserves what a new file in PARAMS->dir may need: 0 and PARAMS has it, for
 * kvcfs_staging_new_locked() or kvcfs_reservation_drop(); or -errno, counted. Without names.
 */
int kvcfs_reservation_guess(KvcfsStagingParams *params);
void kvcfs_reservation_drop(KvcfsStagingParams *params);
/* ST is new; ST ends, and so does what is guessed of it. */
void kvcfs_reservation_begin_locked(KvcfsStaging *st);
void kvcfs_reservation_end_locked(KvcfsStaging *st);
/* kvc_storage_manager_reserve_write(); what others only hold for a guess is no reason to fail.
 * Without names. */
int kvcfs_reservation_new(Kvcfs *fs, KvcObjectKey *key, uint64_t bytes, KvcL1Object **object);
/* The same for BYTES of INODE, a staging with an object that the caller writes: 0 or -errno. */
int kvcfs_reservation_extend(KvcfsInode *inode, uint64_t bytes);

#endif
