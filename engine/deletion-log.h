/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_DELETION_LOG_H
#define ENGINE_DELETION_LOG_H

/*
 * The deletions that an adapter has not confirmed, kept in a file, so that they are done even if
 * the engine is killed. Every function but open may be called with LOG
 * NULL: then nothing is kept. Any thread, unless said otherwise.
 */

#include "engine/controller-context.h"

typedef struct KvcDeletionLog KvcDeletionLog;

/*
 * Opens the log at PATH for the adapters of CONTEXT (with its stats), which must be open. NULL with
 * ERROR set that names the file. Blocks.
 */
KvcDeletionLog *
kvc_deletion_log_open(const char *path, const KvcControllerContext *context, GError **error);
/*
 * Starts the log's threads. PROGRESS(user, synced, error) is called in one of them, and at last in
 * free, without locks, each time more is synced or a try failed (ERROR: -errno, else 0); it must
 * not block.
 */
void kvc_deletion_log_start(KvcDeletionLog *log,
			    void (*progress)(void *user, uint64_t synced, int error),
			    void *user);
/* Writes and syncs what is left. Blocks. */
void kvc_deletion_log_free(KvcDeletionLog *log);

/*
 * Calls FUNC(user, key, adapter, id) for each deletion that an earlier run left for one of the
 * adapters. Before anything is added; FUNC must not call the log.
 */
void
kvc_deletion_log_replay(KvcDeletionLog *log,
			void (*func)(void *user, KvcObjectKey *key, size_t adapter, uint64_t id),
			void *user);

/*
 * ADAPTER, just opened, has INDEX now; replays what is left for it. Before anything is added for
 * it. FUNC is called without locks.
 */
void
kvc_deletion_log_attach(KvcDeletionLog *log,
			size_t index,
			KvcL2Adapter *adapter,
			void (*func)(void *user, KvcObjectKey *key, size_t adapter, uint64_t id),
			void *user);
/* No adapter has INDEX any more: what is not confirmed is kept until its store is there again. */
void kvc_deletion_log_detach(KvcDeletionLog *log, size_t index);

/* KEY is to be deleted from ADAPTERS (bits). Returns the deletion's id, never 0. Never blocks. */
uint64_t kvc_deletion_log_add(KvcDeletionLog *log, KvcObjectKey *key, uint32_t adapters);
/* Waits a moment until all that was added is safe from a SIGKILL; see kvc_record_log_settle(). */
void kvc_deletion_log_settle(KvcDeletionLog *log);
/*
 * ADAPTER does not have KEY any more, as deletion ID wanted. false: a newer deletion of it was
 * added, which is not confirmed by that. true: *POSITION is what must be synced before KEY may be
 * stored again, 0 for nothing. Never blocks.
 */
bool kvc_deletion_log_confirm(
	KvcDeletionLog *log, KvcObjectKey *key, size_t adapter, uint64_t id, uint64_t *position);

/* As of the record log. Without a log a sync succeeds at once. */
void kvc_deletion_log_request_sync(KvcDeletionLog *log);
void kvc_deletion_log_sync(KvcDeletionLog *log, void (*done)(void *user, int error), void *user);

typedef struct KvcDeletionLogStatus {
	const char *state; /* "ok", "none", or why it cannot be written; static */
	bool is_failing;
	uint64_t pending;	  /* deletions not confirmed */
	uint64_t unknown;	  /* of these, those of adapters that are not configured */
	uint64_t errors, corrupt; /* failed writes; damaged records */
} KvcDeletionLogStatus;
/* From memory. */
void kvc_deletion_log_get_status(KvcDeletionLog *log, KvcDeletionLogStatus *status);

#endif
