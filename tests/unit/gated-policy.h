/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_GATED_POLICY_H
#define TESTS_UNIT_GATED_POLICY_H

/*
 * A store policy in which the StoreController's thread can be held up: what happens meanwhile it
 * learns in one go. Every object goes to every adapter.
 */

#include "tests/unit/fake-adapter.h"

static enum { GATE_OPEN, GATE_CLOSED, GATE_WAITED_AT } gate; /* Atomic */

static inline uint32_t
gated(const KvcObjectKey *key, const KvcAdapterDescriptor *adapters, size_t n)
{
	if (__atomic_load_n(&gate, __ATOMIC_ACQUIRE) == GATE_CLOSED)
		__atomic_store_n(&gate, GATE_WAITED_AT, __ATOMIC_RELEASE);
	while (__atomic_load_n(&gate, __ATOMIC_ACQUIRE) != GATE_OPEN)
		nap(1);
	return (1u << n) - 1;
}

static const KvcStorePolicy gated_policy = {.select_store_targets = gated};

/* The next one to be stored waits, and the thread with it. */
static inline void
gate_close(void)
{
	__atomic_store_n(&gate, GATE_CLOSED, __ATOMIC_RELEASE);
}

static inline void
gate_wait(void)
{
	wait_until(__atomic_load_n(&gate, __ATOMIC_ACQUIRE) == GATE_WAITED_AT);
}

static inline void
gate_open(void)
{
	__atomic_store_n(&gate, GATE_OPEN, __ATOMIC_RELEASE);
}

#endif
