/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_RECORD_LOG_H
#define KVCACHE_RECORD_LOG_H

/*
 * A small file of records that outlives the process: one line of text each, with a CRC32C. Records
 * are only ever appended; when most of the file is of no use any more, what is live is written to a
 * new file that takes its place. The user has the state in memory, as tables that are protected by
 * the log's lock, and appends what changes them; the log does all I/O without the lock, in threads
 * of its own: the writer writes at once and calls the callbacks, the syncer syncs once a second or
 * when asked to.
 *
 * A position is the number of records appended before and including one. It is "written" when
 * write(2) has returned (safe from a SIGKILL), "synced" when fdatasync(2) has (safe from a loss of
 * power).
 *
 * When a write fails the log is failing: nothing more is appended to the file, the state goes on in
 * memory, and once a second the log tries to write a whole new file from that. Until then the file
 * still says what it said before.
 */

#include "kvcache/decls.h"

#include <glib.h>
#include <stdbool.h>
#include <stdint.h>

KVC_BEGIN_DECLS

typedef struct KvcRecordLog KvcRecordLog;

/* The callbacks get USER of the configuration. */
typedef struct KvcRecordLogConfig {
	const char *path;   /* of the file; copied. PATH.new is used as well */
	const char *format; /* the first line of the file: what it is, and its version; static */
	const char *thread_name; /* at most 15 characters; static */
	/* Required. A record of the file, in order, from open. false: it makes no sense. */
	bool (*load)(void *user, char *record);
	/* Required, with the lock held. How many records the state would need. */
	size_t (*count_live)(void *user);
	/* Required, with the lock held. The state as an array of items (transfer full). */
	GPtrArray *(*snapshot)(void *user);
	/* Required, without locks, in the writer. Appends the record of ITEM to TEXT. */
	void (*format_item)(void *user, const void *item, GString *text);
	/*
	 * Optional, without locks, in the writer (or in kvc_record_log_free()): all up to SYNCED is
	 * synced. ERROR: 0, or -errno while the log is failing, once for each try. Must not block.
	 */
	void (*progress)(void *user, uint64_t synced, int error);
	void *user;
} KvcRecordLogConfig;

/*
 * Reads the file, calls load for each record, and writes the file anew; NULL with ERROR set (it
 * names the file) when it is not of this format (then it is left as it is), cannot be read or
 * cannot be written. A torn end, left by a crash, is dropped; a damaged record before the end is
 * logged with its line number, counted and left out. A full disk is not an error: the log is
 * failing then. Nothing is called before kvc_record_log_start(). Blocks.
 */
KvcRecordLog *kvc_record_log_open(const KvcRecordLogConfig *config, GError **error);
/* Starts the threads. */
void kvc_record_log_start(KvcRecordLog *log);
/* Writes and syncs what is left, ends the threads. Blocks. NULL is allowed. */
void kvc_record_log_free(KvcRecordLog *log);

/* The lock of the user's tables: for work in memory only. Innermost: no other is taken under it. */
void kvc_record_log_lock(KvcRecordLog *log);
void kvc_record_log_unlock(KvcRecordLog *log);
/* With the lock held. Appends RECORD (no newline in it) and returns its position. Never blocks. */
uint64_t kvc_record_log_append(KvcRecordLog *log, const char *record);
/* With the lock held. May the record at POSITION be in the file, now or later? */
bool kvc_record_log_is_kept(KvcRecordLog *log, uint64_t position);

/*
 * Without locks. Waits until all that was appended before is written. A disk that hangs is not
 * waited for: at most a second, and not at all while the log is failing or the last wait was in
 * vain.
 */
void kvc_record_log_settle(KvcRecordLog *log);
/* Syncs now rather than within a second. Never blocks; any thread. */
void kvc_record_log_request_sync(KvcRecordLog *log);
/*
 * Calls DONE(user, 0) once all that was appended before is synced, DONE(user, -errno) when that
 * failed. Possibly before this returns, else in the writer. DONE must not block.
 */
void kvc_record_log_sync(KvcRecordLog *log, void (*done)(void *user, int error), void *user);

typedef struct KvcRecordLogStatus {
	int error;	  /* 0, or the -errno for which it is failing */
	uint64_t errors;  /* writes, syncs and new files that failed */
	uint64_t corrupt; /* damaged records that were left out */
} KvcRecordLogStatus;
/* From memory. */
void kvc_record_log_get_status(KvcRecordLog *log, KvcRecordLogStatus *status);

/*
 * Text for one field of a record, and back: percent-encodes blanks, '%' and all that is not
 * printable ASCII; "" is "%". Transfer full; unescape returns NULL for what escape does not write.
 */
char *kvc_record_field_escape(const char *text);
char *kvc_record_field_unescape(const char *field);

KVC_END_DECLS

#endif
