/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_STATS_H
#define ENGINE_STATS_H

/*
 * The counters of one engine: one table, from which .kvcache/stats comes. Atomic, any thread.
 * Every failure has one; its name says the reason.
 */

#include <stdint.h>

#define KVC_STATS(X)                                                                               \
	X(l1_writes_reserved, "Reservations for writing handed out")                               \
	X(l1_writes_finished, "Objects committed to L1 by a writer")                               \
	X(l1_writes_dropped, "Complete objects dropped because the key existed already")           \
	X(l1_writes_aborted, "Reservations given back without a commit")                           \
	X(l1_commits_copied, "Commits of a copy, since the file could still be written")           \
	X(l1_commit_copies_failed, "Commits dropped since there was no room for that copy")        \
	X(l1_reserve_failed_no_memory, "Reservations refused: L1 full of what may not go")         \
	X(l1_reserve_failed_error, "Reservations refused by an error of the L1 file system")       \
	X(l1_evicted_objects, "Objects evicted from L1")                                           \
	X(l1_evicted_bytes, "Bytes evicted from L1")                                               \
	X(l1_expired_locks, "Locks held for longer than a lock should be; they stay")              \
	X(l1_leaked_locks, "Locks that nobody had given back at the end of the engine")            \
	X(hits_l1, "Keys found in L1 when asked for")                                              \
	X(hits_l2, "Keys found in L2 when asked for")                                              \
	X(misses, "Keys found nowhere when asked for")                                             \
	X(lookups, "Lookup tasks submitted to adapters")                                           \
	X(lookup_keys, "Keys in them")                                                             \
	X(lookups_refused, "Lookups not submitted: the adapter owes too many answers")             \
	X(lookups_unreachable, "Lookups not submitted: the adapter's breaker is open")             \
	X(lookups_timed_out, "Requests whose lookup phase ended at the deadline")                  \
	X(prefetches, "Prefetch requests submitted")                                               \
	X(prefetches_completed, "Prefetch requests answered")                                      \
	X(prefetches_timed_out, "Prefetch requests answered at their deadline")                    \
	X(prefetches_cancelled, "Prefetch requests given back before they were answered")          \
	X(plan_errors, "Keys that a prefetch policy planned wrongly: twice, or not found")         \
	X(loads, "Objects whose load from L2 was submitted")                                       \
	X(chain_loads, "Chains of prefix directories whose load from L2 was submitted")            \
	X(loads_completed, "Objects loaded from L2")                                               \
	X(load_bytes, "Bytes loaded from L2")                                                      \
	X(loads_joined, "Loads that another request had begun already")                            \
	X(loads_failed_missing, "Loads that failed: vanished, wrong size or checksum")             \
	X(loads_failed_deleted, "Of these, objects deleted while they were loading")               \
	X(loads_failed_contended, "Of these, objects written anew while they were loading")        \
	X(loads_failed_no_memory, "Loads that failed: no room in L1")                              \
	X(loads_unreachable, "Loads not submitted: the adapter's breaker is open")                 \
	X(stores, "Objects whose store to an adapter was submitted")                               \
	X(stores_completed, "Objects stored")                                                      \
	X(store_bytes, "Bytes written to L2")                                                      \
	X(stores_retried, "Stores tried again after a failure")                                    \
	X(stores_put_off, "Stores put off: the adapter cannot be reached")                         \
	X(stores_failed, "Objects an adapter could not store in all tries, or while unreachable")  \
	X(stores_unknown, "Completed stores an adapter told that nobody had submitted")            \
	X(store_policy_errors, "Times the store policy chose an adapter that is not there")        \
	X(stores_outdated,                                                                         \
	  "Failed stores not tried again: replaced, renamed, deleted, or the adapter removed")     \
	X(stores_blocked,                                                                          \
	  "Failed stores never begun: a deletion or rename of the name did not end")               \
	X(stores_unreachable,                                                                      \
	  "Stores put off or failed unsubmitted: the adapter's breaker is open")                   \
	X(stores_unmapped, "Stores retried or failed unsubmitted: the object cannot be mapped")    \
	X(deletes, "Deletions submitted to adapters")                                              \
	X(deletes_completed, "Deletions confirmed")                                                \
	X(deletes_retried, "Deletions tried again")                                                \
	X(deletes_failed, "Tries to delete that an adapter failed with an error")                  \
	X(deletes_unsupported, "Deletions an adapter cannot do: there the object stays")           \
	X(attributes_set, "Changes of attributes taken to an adapter")                             \
	X(attributes_failed, "Changes of attributes an adapter could not take")                    \
	X(renames, "Objects renamed")                                                              \
	X(renames_retried, "Renames an adapter was asked for again")                               \
	X(rename_errors,                                                                           \
	  "Tries to rename that an adapter failed with an error, or renames given up")             \
	X(renames_lost, "Renamed objects that no tier had any more")                               \
	X(deletes_replayed, "Deletions that an earlier run left, submitted again")                 \
	X(deletion_log_errors, "Failed tries to write or sync the log of deletions")               \
	X(deletion_log_corrupt, "Damaged records of the log of deletions, left out")               \
	X(listed_keys, "Keys found in L2 by the listing at the start")                             \
	X(list_failed, "Listings of an adapter that ended with an error")                          \
	X(older_versions, "Files that an adapter was found to have an older version of")           \
	X(relists, "Directories of a shared L2 listed again, since somebody changed them")         \
	X(renewed_replaced, "Files that somebody else has replaced in a shared L2")                \
	X(renewed_removed, "Files in L1 that somebody else has removed from every L2")

typedef enum {
#define X(name, help) KVC_STAT_##name,
	KVC_STATS(X)
#undef X
		KVC_N_STATS
} KvcStat;

typedef struct KvcStats {
	uint64_t values[KVC_N_STATS]; /* Atomic */
} KvcStats;

extern const char *const kvc_stat_names[KVC_N_STATS];
extern const char *const kvc_stat_help[KVC_N_STATS];

#define kvc_stats_add(stats, name, n)                                                              \
	((void)__atomic_fetch_add(&(stats)->values[KVC_STAT_##name], (n), __ATOMIC_RELAXED))
#define kvc_stats_get(stats, name)                                                                 \
	__atomic_load_n(&(stats)->values[KVC_STAT_##name], __ATOMIC_RELAXED)

#endif
