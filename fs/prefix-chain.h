/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_PREFIX_CHAIN_H
#define FS_PREFIX_CHAIN_H

/* The chain of a prefix directory as data, for prefix-dir.c. Everything is protected by names. */

#include "fs/internal.h"

typedef struct KvcfsRef {
	KvcObjectKey *key;  /* owned */
	unsigned n_writers; /* creats under this name that have not committed or given up */
	bool is_committed;  /* part of the chain; else only a position that a writer holds */
} KvcfsRef;

struct KvcfsChain {
	GPtrArray *refs;    /* of KvcfsRef (owned), in order */
	GHashTable *by_key; /* key -> KvcfsRef */
	size_t text_bytes;  /* the length of kvcfs_chain_text() */
	bool is_loaded;	    /* what L1 or L2 has is in refs */
	bool is_loading;
	uint32_t version;  /* KvcObjectInfo.version of what was loaded or saved; 0: nothing was */
	GPtrArray *former; /* of KvcObjectKey: refs before a renewal, until is_loaded; or NULL */
	bool is_dirty;	   /* to be saved; holds a reference on the inode */
	bool is_saving;
	bool is_keys_file_removed;
	/* The thread that does not see .keys yet, see prefix-dir.c; 0: none. Its number comes
	 * again, but not with the same start (kvcfs_writer_start). */
	pid_t maker;
	uint64_t maker_start;
	GPtrArray *load_waiters; /* of KvcfsPending, or NULL */
	KvcfsInode *keys_inode;	 /* not owned */
	int64_t mtime_ns;	 /* of .keys */
	guint readahead_at;	 /* in refs: where the last open was found; any number */
};

/* A line for each reference that is part of the chain (transfer full). */
GString *kvcfs_chain_text(const KvcfsChain *chain);
/* All of its keys in order, also those of positions (transfer full). */
GPtrArray *kvcfs_chain_keys(const KvcfsChain *chain);
/* May its text become BYTES longer? */
bool kvcfs_chain_has_room(const KvcfsChain *chain, size_t bytes);
/* The kernel may know entries OLD (keys): it is told which are none any more. */
void kvcfs_chain_forget_entries_locked(KvcfsInode *prefix, const GPtrArray *old);
/* What is in refs is the chain; of what they were before a renewal the kernel is told as above. */
void kvcfs_chain_set_loaded_locked(KvcfsInode *prefix);
/* The reference to KEY, appended unless it is there. */
KvcfsRef *kvcfs_chain_append_locked(KvcfsInode *prefix, KvcObjectKey *key, bool committed);
/* Makes REF a reference, which st_nlink counts, or a place that writers only hold. */
void kvcfs_chain_set_committed_locked(KvcfsInode *prefix, KvcfsRef *ref, bool is_committed);
void kvcfs_chain_remove_locked(KvcfsInode *prefix, KvcfsRef *ref);
/* Drops all but the positions that writers hold. */
void kvcfs_chain_clear_locked(KvcfsInode *prefix);
/* Puts the chain TEXT before what is there, and marks it loaded. Lines that are no hash are
 * skipped. */
void kvcfs_chain_install_locked(KvcfsInode *prefix, const char *text, size_t len);
/* Appends; stops with -EINVAL at the first line that is no hash. A last line may lack its newline.
 */
int kvcfs_chain_append_lines_locked(KvcfsInode *prefix, const char *text, size_t len);
/* The chain is TEXT, lines that were checked; the places that writers hold come behind it. */
void kvcfs_chain_replace_locked(KvcfsInode *prefix, const char *text, size_t len);
bool kvcfs_chain_are_lines(const char *text, size_t len);

#endif
