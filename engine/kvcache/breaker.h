/* SPDX-License-Identifier: Apache-2.0 */
#ifndef KVCACHE_BREAKER_H
#define KVCACHE_BREAKER_H

/*
 * A circuit breaker: what cannot be reached is not asked again and again.
 *
 *	closed      everything goes
 *	open        nothing goes, until the cool-down is over
 *	half-open   one request goes, the probe: its success closes, its failure opens again with
 *	            twice the cool-down; a probe that does not end is followed by another one
 *
 * KVC_BREAKER_FAILURES connection errors in a row open it. What ends while it is open, and was
 * begun before, changes nothing.
 *
 * The engine has one for each adapter (KvcL2Adapter.breaker). It asks it before every task and
 * tells it what it sees itself: the errno of stores, deletions, renames, attributes and listings,
 * and what a lookup found. A lookup or a load has no errno: an adapter whose store cannot be
 * reached calls kvc_breaker_note() for these, and fills in KVC_L2_NOT_ASKED. Any thread; no other
 * lock is taken inside.
 */

#include "kvcache/decls.h"

#include <stdbool.h>
#include <stdint.h>

KVC_BEGIN_DECLS

#define KVC_BREAKER_FAILURES 5

typedef struct KvcBreaker KvcBreaker;

typedef enum {
	KVC_BREAKER_CLOSED,
	KVC_BREAKER_OPEN,
	KVC_BREAKER_HALF_OPEN,
} KvcBreakerState;

typedef struct KvcBreakerStatus {
	KvcBreakerState state;
	uint64_t opened;  /* how often it went from closed to open */
	uint64_t refused; /* requests that it did not let through */
	bool is_slowest;  /* not closed, and the cool-down has its maximum */
} KvcBreakerStatus;

/*
 * ECONNREFUSED, ECONNRESET, ECONNABORTED, EPIPE, ETIMEDOUT, EHOSTUNREACH, EHOSTDOWN, ENETUNREACH,
 * ENETDOWN, ENETRESET, ENOTCONN (ERROR is -errno). Not EIO, which is about one object as well.
 */
bool kvc_is_connection_error(int error);

/* Cool-downs in nanoseconds: the first one, and what it is doubled up to. */
KvcBreaker *kvc_breaker_new(int64_t cooldown_ns, int64_t max_cooldown_ns);
void kvc_breaker_free(KvcBreaker *breaker);

/*
 * May a request go now? Whoever is told true has to make it and to note how it ended: it may be the
 * probe. False is counted. BREAKER NULL: always true, as it has no state here and below.
 */
bool kvc_breaker_admit(KvcBreaker *breaker);
/* The same without taking or counting anything. */
bool kvc_breaker_would_admit(KvcBreaker *breaker);
/*
 * A request ended: 0 or -errno. An error that is not a connection error says that the store was
 * reached, as a success does.
 */
void kvc_breaker_note(KvcBreaker *breaker, int error);
void kvc_breaker_get_status(KvcBreaker *breaker, KvcBreakerStatus *status);
/* "closed", "open" or "half-open". */
const char *kvc_breaker_state_name(KvcBreakerState state);

KVC_END_DECLS

#endif
