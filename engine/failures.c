/* SPDX-License-Identifier: Apache-2.0 */

#define G_LOG_DOMAIN "kvcache"

#include "kvcache/failures.h"

#include "engine/lock.h"

#include <errno.h>
#include <stdatomic.h>

#define DEGRADED_NS (60 * KVC_SEC_NS)
#define WARN_NS KVC_SEC_NS

struct KvcFailures {
	/* Immutable */
	char *type_name, *location;

	/* Atomic */
	_Atomic uint64_t counts[KVC_TASK_KINDS];
	atomic_bool is_clear; /* no failing, none in a row; written under the lock */

	KvcMutex lock;
	/* Protected by lock */
	char *last_error;
	int64_t last_error_ns;
	bool failing[KVC_TASK_KINDS]; /* no success since the last failure */
	unsigned in_a_row;
	int64_t warned_ns;
	char *warned_subject;
	unsigned n_suppressed;
};

KvcFailures *
kvc_failures_new(const char *type_name, const char *location)
{
	KvcFailures *f = g_new0(KvcFailures, 1);

	f->type_name = g_strdup(type_name);
	f->location = g_strdup(location);
	f->is_clear = true;
	kvc_mutex_init(&f->lock, KVC_LOCK_LEAF);
	return f;
}

void
kvc_failures_free(KvcFailures *f)
{
	if (!f)
		return;
	kvc_mutex_deinit(&f->lock);
	g_free(f->type_name);
	g_free(f->location);
	g_free(f->last_error);
	g_free(f->warned_subject);
	g_free(f);
}

/* ---- The log ------------------------------------------------------------------------------- */

/* How many warnings were left out before this one, or -1: leave this one out too. */
static int
take_warning_locked(KvcFailures *f, const char *subject)
{
	int64_t now = kvc_now_ns();
	int n_suppressed = (int)f->n_suppressed;
	bool is_again = subject && !g_strcmp0(f->warned_subject, subject);

	if (is_again || (f->warned_ns && now - f->warned_ns < WARN_NS)) {
		f->n_suppressed++;
		return -1;
	}
	f->warned_ns = now;
	f->n_suppressed = 0;
	g_free(f->warned_subject);
	f->warned_subject = g_strdup(subject);
	return n_suppressed;
}

static void
warn(const KvcFailures *f, const char *text, int n_suppressed)
{
	if (n_suppressed >= 0)
		g_warning("%s %s: %s (%d more not shown)", f->type_name, f->location, text,
			  n_suppressed);
}

void
kvc_failures_warn(KvcFailures *f, const char *subject, const char *format, ...)
{
	va_list arguments;

	kvc_mutex_lock(&f->lock);
	int n_suppressed = take_warning_locked(f, subject);
	kvc_mutex_unlock(&f->lock);
	if (n_suppressed < 0)
		return;
	va_start(arguments, format);
	g_autofree char *text = g_strdup_vprintf(format, arguments);
	va_end(arguments);
	warn(f, text, n_suppressed);
}

/* ---- Notes --------------------------------------------------------------------------------- */

static bool
is_of_the_store(int errnum)
{
	return errnum != ENOSPC && errnum != EDQUOT && errnum != EROFS && errnum != ENAMETOOLONG;
}

void
kvc_failures_count(KvcFailures *f, KvcTaskKind kind)
{
	atomic_fetch_add(&f->counts[kind], 1);
}

static void
remember_locked(KvcFailures *f, const char *text)
{
	f->last_error_ns = kvc_now_ns();
	g_free(f->last_error);
	f->last_error = g_strdup(text);
}

void
kvc_failures_remember(KvcFailures *f, const char *text)
{
	kvc_mutex_lock(&f->lock);
	remember_locked(f, text);
	kvc_mutex_unlock(&f->lock);
}

unsigned
kvc_failures_note(
	KvcFailures *f, KvcTaskKind kind, const char *what, const char *subject, int errnum)
{
	static const char *const names[KVC_TASK_KINDS] = {"store", "lookup", "load"};
	const char *quote = subject ? "\"" : "";
	g_autofree char *text =
		g_strdup_printf("%s failed: cannot %s%s%s%s%s: %s (errno %d)", names[kind], what,
				subject ? " " : "", quote, subject ? subject : "", quote,
				g_strerror(errnum), errnum);
	unsigned in_a_row = 0;

	kvc_failures_count(f, kind);
	kvc_mutex_lock(&f->lock);
	remember_locked(f, text);
	f->failing[kind] = true;
	if (is_of_the_store(errnum))
		in_a_row = ++f->in_a_row;
	atomic_store(&f->is_clear, false);
	int n_suppressed = take_warning_locked(f, subject);
	kvc_mutex_unlock(&f->lock);
	warn(f, text, n_suppressed);
	return in_a_row;
}

void
kvc_failures_clear(KvcFailures *f, KvcTaskKind kind, bool is_proof)
{
	if (atomic_load(&f->is_clear))
		return;
	kvc_mutex_lock(&f->lock);
	f->failing[kind] = false;
	if (is_proof)
		f->in_a_row = 0;
	bool is_clear = f->in_a_row == 0;
	for (size_t i = 0; i < KVC_TASK_KINDS; i++)
		is_clear = is_clear && !f->failing[i];
	atomic_store(&f->is_clear, is_clear);
	kvc_mutex_unlock(&f->lock);
}

unsigned
kvc_failures_in_a_row(KvcFailures *f)
{
	if (atomic_load(&f->is_clear))
		return 0;
	kvc_mutex_lock(&f->lock);
	unsigned in_a_row = f->in_a_row;
	kvc_mutex_unlock(&f->lock);
	return in_a_row;
}

/* ---- Status -------------------------------------------------------------------------------- */

static const char *
health_locked(const KvcFailures *f)
{
	bool is_failing = f->last_error && kvc_now_ns() - f->last_error_ns < DEGRADED_NS;

	if (f->in_a_row >= KVC_FAILURES_IN_A_ROW)
		return "failed";
	for (size_t i = 0; i < KVC_TASK_KINDS; i++)
		is_failing = is_failing || f->failing[i];
	return is_failing ? "degraded" : "ok";
}

void
kvc_failures_describe(KvcFailures *f, bool is_failed, KvcDescribeFunc func, void *user)
{
	static const char *const names[KVC_TASK_KINDS] = {"store_errors", "lookup_errors",
							  "load_errors"};

	kvc_mutex_lock(&f->lock);
	const char *health = is_failed ? "failed" : health_locked(f);
	g_autofree char *last_error = g_strdup(f->last_error);
	kvc_mutex_unlock(&f->lock);
	func(user, "health", health);
	if (last_error)
		func(user, "last_error", last_error);
	for (size_t i = 0; i < KVC_TASK_KINDS; i++)
		kvc_describe_count(func, user, names[i], atomic_load(&f->counts[i]));
}
