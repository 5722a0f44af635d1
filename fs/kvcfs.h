/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_KVCFS_H
#define FS_KVCFS_H

/* The file system as main.c and mount.c see it: built before the mount, freed after it. */

#include "fs/passthrough.h"
#include "kvcache/storage-manager.h"

typedef struct Kvcfs Kvcfs;

typedef enum { KVCFS_IO_AUTO, KVCFS_IO_PASSTHROUGH, KVCFS_IO_DIRECT } KvcfsIoMode;

typedef struct KvcfsConfig {
	KvcfsIoMode io_mode;
	const char *mount_point;	/* absolute: for paths written to control files. Copied */
	int64_t lookup_wait_ns;		/* --lookup-wait, default 20 ms */
	int64_t coherence_ns;		/* --coherence, default 1 s */
	const char *directory_log;	/* where directories outlive the mount, or NULL. Not kept */
	int64_t load_timeout_ns;	/* --l2-prefetch-load-timeout, default 10 s */
	uint64_t max_object_size_bytes; /* --max-object-size; 0: an eighth of L1 */
	unsigned readahead;		/* --readahead: entries loaded ahead of the one opened */
	const char *options_text;	/* what .kvcache/config says. Copied */
} KvcfsConfig;

extern const struct fuse_lowlevel_ops kvcfs_ops; /* userdata: the Kvcfs */

/*
 * Builds the file system and its engine: ENGINE's callbacks and user are set by this function. NULL
 * with ERROR set. Starts threads: call after daemonizing.
 */
Kvcfs *kvcfs_new(const KvcfsConfig *config, KvcStorageManagerConfig *engine, GError **error);
/* After fuse_session_mount(): the session that replies and notifications go through. */
void kvcfs_set_session(Kvcfs *fs, struct fuse_session *se);
/*
 * After INIT was processed: settles the effective io mode (tries one backing id). false with ERROR
 * set when --io-mode=passthrough cannot be had.
 */
bool kvcfs_settle_io_mode(Kvcfs *fs, GError **error);
KvcStorageManager *kvcfs_get_storage_manager(Kvcfs *fs);
/* From now on new writers get EROFS; writes the chains of all prefix directories out. */
void kvcfs_begin_drain(Kvcfs *fs);
/*
 * After the session loop ended: answers what is pending, releases every handle. The kernel drops
 * the RELEASEs that are queued when it unmounts: with ALL_CLOSED (an unmount that was not busy) a
 * writer that has flushed counts as closed and its file is committed. Then the engine can be
 * drained.
 */
void kvcfs_end_session(Kvcfs *fs, bool all_closed);
/* Frees everything, the engine included (drain it first). */
void kvcfs_free(Kvcfs *fs);

#endif
