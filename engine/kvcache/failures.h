/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_FAILURES_H
#define KVCACHE_FAILURES_H

/*
 * What an adapter knows of its failures, for its status and the log: how many of each kind, the
 * last one in words, what that makes of its health, and warnings that cannot flood the log.
 *
 * "failed" after KVC_FAILURES_IN_A_ROW of them without a success between, or when the adapter says
 * so; "degraded" while a kind has not succeeded since its last failure, and for 60 seconds after
 * any; else "ok". A lack of room (ENOSPC, EDQUOT), EROFS and ENAMETOOLONG do not count for
 * "failed": what is there can be read. Any thread; nothing blocks; no other lock is taken inside.
 */

#include "kvcache/adapter.h"
#include "kvcache/decls.h"
#include "kvcache/task-board.h"

#include <stdbool.h>
#include <stdint.h>

KVC_BEGIN_DECLS

#define KVC_FAILURES_IN_A_ROW 8

typedef struct KvcFailures KvcFailures;

/* What lines of the log begin with: the adapter's type and where its data is. Copies both. */
KvcFailures *kvc_failures_new(const char *type_name, const char *location);
/* FAILURES may be NULL. */
void kvc_failures_free(KvcFailures *failures);

/*
 * A task of KIND could not do WHAT ("open") with SUBJECT (a path or a key as text; NULL: it is
 * about the whole store) because of ERRNUM (positive): counted, remembered, and logged as
 * kvc_failures_warn() does. Returns how many there were in a row; 0: it does not count for that.
 */
unsigned kvc_failures_note(
	KvcFailures *failures, KvcTaskKind kind, const char *what, const char *subject, int errnum);
/* TEXT is the last error, of no task: neither counted nor logged, health is degraded for a while.
 */
void kvc_failures_remember(KvcFailures *failures, const char *text);
/* The count alone. */
void kvc_failures_count(KvcFailures *failures, KvcTaskKind kind);
/*
 * KIND succeeded. IS_PROOF: so the store works, and failures before were not in a row. Cheap while
 * nothing has failed: no lock.
 */
void kvc_failures_clear(KvcFailures *failures, KvcTaskKind kind, bool is_proof);
/* Failures in a row; without a lock while nothing has failed. */
unsigned kvc_failures_in_a_row(KvcFailures *failures);

/*
 * A line of warning, at most one a second, and none for the SUBJECT (may be NULL) that had the last
 * one; the next one says how many were left out.
 */
void kvc_failures_warn(KvcFailures *failures, const char *subject, const char *format, ...)
	G_GNUC_PRINTF(3, 4);

/*
 * For describe: "health" (IS_FAILED: the adapter knows that nothing works), "last_error" if there
 * was one, "store_errors", "lookup_errors", "load_errors".
 */
void kvc_failures_describe(KvcFailures *failures, bool is_failed, KvcDescribeFunc func, void *user);

KVC_END_DECLS

#endif
