/* SPDX-License-Identifier: Apache-2.0 */

#include "kvcache/breaker.h"

#include "engine/lock.h"

#include <errno.h>

struct KvcBreaker {
	/* Immutable. */
	int64_t first_cooldown_ns, max_cooldown_ns;

	KvcMutex lock;
	/* Protected by lock. STATE and FAILURES are written under it and may be read without. */
	KvcBreakerState state;
	unsigned failures; /* in a row, while closed */
	int64_t cooldown_ns;
	int64_t probe_ns; /* when the next probe may go, unless closed */
	uint64_t opened, refused;
};

bool
kvc_is_connection_error(int error)
{
	switch (-error) {
	case ECONNREFUSED:
	case ECONNRESET:
	case ECONNABORTED:
	case EPIPE:
	case ETIMEDOUT:
	case EHOSTUNREACH:
	case EHOSTDOWN:
	case ENETUNREACH:
	case ENETDOWN:
	case ENETRESET:
	case ENOTCONN:
		return true;
	default:
		return false;
	}
}

KvcBreaker *
kvc_breaker_new(int64_t cooldown_ns, int64_t max_cooldown_ns)
{
	KvcBreaker *b = g_new0(KvcBreaker, 1);
	b->first_cooldown_ns = MAX(cooldown_ns, 1);
	b->max_cooldown_ns = MAX(max_cooldown_ns, b->first_cooldown_ns);
	kvc_mutex_init(&b->lock, KVC_LOCK_LEAF);
	return b;
}

void
kvc_breaker_free(KvcBreaker *b)
{
	if (!b)
		return;
	kvc_mutex_deinit(&b->lock);
	g_free(b);
}

static void
set_state_locked(KvcBreaker *b, KvcBreakerState state)
{
	__atomic_store_n(&b->state, state, __ATOMIC_RELAXED);
}

static void
set_failures_locked(KvcBreaker *b, unsigned failures)
{
	__atomic_store_n(&b->failures, failures, __ATOMIC_RELAXED);
}

static bool
is_closed(const KvcBreaker *b)
{
	return __atomic_load_n(&b->state, __ATOMIC_RELAXED) == KVC_BREAKER_CLOSED;
}

static bool
would_admit_locked(const KvcBreaker *b)
{
	return b->state == KVC_BREAKER_CLOSED || kvc_now_ns() >= b->probe_ns;
}

bool
kvc_breaker_admit(KvcBreaker *b)
{
	if (!b || is_closed(b))
		return true;
	kvc_mutex_lock(&b->lock);
	bool admits = would_admit_locked(b);
	if (!admits) {
		b->refused++;
	} else if (b->state != KVC_BREAKER_CLOSED) {
		set_state_locked(b, KVC_BREAKER_HALF_OPEN);
		b->probe_ns = kvc_now_ns() + b->cooldown_ns;
	}
	kvc_mutex_unlock(&b->lock);
	return admits;
}

bool
kvc_breaker_would_admit(KvcBreaker *b)
{
	if (!b || is_closed(b))
		return true;
	kvc_mutex_lock(&b->lock);
	bool admits = would_admit_locked(b);
	kvc_mutex_unlock(&b->lock);
	return admits;
}

static void
open_locked(KvcBreaker *b)
{
	if (b->state == KVC_BREAKER_CLOSED) {
		b->opened++;
		b->cooldown_ns = b->first_cooldown_ns;
	} else {
		b->cooldown_ns = MIN(2 * b->cooldown_ns, b->max_cooldown_ns);
	}
	set_state_locked(b, KVC_BREAKER_OPEN);
	b->probe_ns = kvc_now_ns() + b->cooldown_ns;
}

static void
note_failure_locked(KvcBreaker *b)
{
	if (b->state == KVC_BREAKER_CLOSED)
		set_failures_locked(b, b->failures + 1);
	if (b->state == KVC_BREAKER_HALF_OPEN ||
	    (b->state == KVC_BREAKER_CLOSED && b->failures >= KVC_BREAKER_FAILURES))
		open_locked(b);
}

void
kvc_breaker_note(KvcBreaker *b, int error)
{
	if (!b)
		return;
	bool is_failure = kvc_is_connection_error(error);
	if (!is_failure && is_closed(b) && __atomic_load_n(&b->failures, __ATOMIC_RELAXED) == 0)
		return;
	kvc_mutex_lock(&b->lock);
	if (is_failure) {
		note_failure_locked(b);
	} else if (b->state != KVC_BREAKER_OPEN) {
		set_failures_locked(b, 0);
		set_state_locked(b, KVC_BREAKER_CLOSED);
	}
	kvc_mutex_unlock(&b->lock);
}

void
kvc_breaker_get_status(KvcBreaker *b, KvcBreakerStatus *status)
{
	*status = (KvcBreakerStatus){.state = KVC_BREAKER_CLOSED};
	if (!b)
		return;
	kvc_mutex_lock(&b->lock);
	status->state = b->state;
	status->opened = b->opened;
	status->refused = b->refused;
	status->is_slowest = b->state != KVC_BREAKER_CLOSED && b->cooldown_ns == b->max_cooldown_ns;
	kvc_mutex_unlock(&b->lock);
}

const char *
kvc_breaker_state_name(KvcBreakerState state)
{
	static const char *const names[] = {
		[KVC_BREAKER_CLOSED] = "closed",
		[KVC_BREAKER_OPEN] = "open",
		[KVC_BREAKER_HALF_OPEN] = "half-open",
	};
	return names[state];
}
