/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_GATE_ADAPTER_H
#define TESTS_UNIT_GATE_ADAPTER_H

/*
 * The adapter "test-gate": a mock whose calls can be held. A lookup or load that is held has not
 * ended when it is asked for; a description or a listing keeps its caller, before it has read
 * anything or, of a directory, when it has read everything.
 */

#include "kvcache/io.h"
#include "kvcache/registry.h"

#include <glib.h>

enum {
	HOLD_LOADS = 1,
	HOLD_LOOKUPS = 2,
	HOLD_DESCRIBE = 4,
	HOLD_LIST = 8,
	HOLD_LIST_END = 16, /* of directories */
};

static const KvcL2AdapterOps *mock_ops;
static KvcL2AdapterOps gate_ops;
/* Atomic. */
static KvcL2Adapter *opened; /* the last one, or NULL */
static unsigned held;	     /* of HOLD_ */
static unsigned n_blocked;   /* calls that are held */
static unsigned n_lists;     /* of a directory: begun */
static unsigned n_passed;    /* that may end all the same */
static bool is_endless;	     /* of a directory there is always another page */

static inline unsigned
get(unsigned *counter)
{
	return __atomic_load_n(counter, __ATOMIC_ACQUIRE);
}

static inline bool
is_held(unsigned what)
{
	return get(&held) & what;
}

static inline bool
is_blocked(void)
{
	return get(&n_blocked) > 0;
}

static inline void
hold(unsigned what)
{
	__atomic_fetch_or(&held, what, __ATOMIC_RELEASE);
}

static inline void
release(unsigned what)
{
	__atomic_fetch_and(&held, ~what, __ATOMIC_RELEASE);
	KvcL2Adapter *adapter = __atomic_load_n(&opened, __ATOMIC_ACQUIRE);
	if (!adapter)
		return;
	kvc_eventfd_signal(mock_ops->get_load_event_fd(adapter));
	/* What waits for this may close the adapter then. */
	kvc_eventfd_signal(mock_ops->get_lookup_and_lock_event_fd(adapter));
}

/* Lets the first N listings of a directory end. */
static inline void
pass_lists(unsigned n)
{
	__atomic_store_n(&n_passed, n, __ATOMIC_RELEASE);
}

static inline void
set_endless(bool value)
{
	__atomic_store_n(&is_endless, value, __ATOMIC_RELEASE);
}

/* ---- The adapter --------------------------------------------------------------------------- */

/* The listing NUMBER; 0: another call. */
static void
block_while(unsigned what, unsigned number)
{
	if (!is_held(what))
		return;
	__atomic_fetch_add(&n_blocked, 1, __ATOMIC_RELEASE);
	while (is_held(what) && (number == 0 || get(&n_passed) < number))
		g_usleep(500);
	__atomic_fetch_sub(&n_blocked, 1, __ATOMIC_RELEASE);
}

static KvcL2Adapter *
gate_open(const KvcOptions *options, GError **error)
{
	KvcL2Adapter *adapter = mock_ops->open(options, error);
	if (adapter)
		adapter->ops = &gate_ops;
	__atomic_store_n(&opened, adapter, __ATOMIC_RELEASE);
	return adapter;
}

static void
gate_close(KvcL2Adapter *adapter)
{
	if (__atomic_load_n(&opened, __ATOMIC_ACQUIRE) == adapter)
		__atomic_store_n(&opened, NULL, __ATOMIC_RELEASE);
	mock_ops->close(adapter);
}

static int
gate_query_load(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *loaded)
{
	return is_held(HOLD_LOADS) ? 0 : mock_ops->query_load_result(adapter, id, loaded);
}

static int
gate_query_lookup(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info)
{
	if (is_held(HOLD_LOOKUPS))
		return 0;
	return mock_ops->query_lookup_and_lock_result(adapter, id, found, info);
}

static void
gate_describe(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	block_while(HOLD_DESCRIBE, 0);
	mock_ops->describe(adapter, func, user);
}

static ssize_t
gate_list(KvcL2Adapter *adapter,
	  const KvcKeyScope *scope,
	  char **cursor,
	  KvcL2ListEntry *entries,
	  size_t max)
{
	block_while(HOLD_LIST, 0);
	if (*cursor && !**cursor)
		g_clear_pointer(cursor, g_free);
	ssize_t n = mock_ops->list(adapter, scope, cursor, entries, max);
	if (!scope)
		return n;
	block_while(HOLD_LIST_END, __atomic_add_fetch(&n_lists, 1, __ATOMIC_ACQ_REL));
	if (__atomic_load_n(&is_endless, __ATOMIC_ACQUIRE) && n >= 0 && !*cursor)
		*cursor = g_strdup("");
	return n;
}

/* Something changes all the time; asked where the adapter is shared. */
static int
gate_get_changes(KvcL2Adapter *adapter,
		 const KvcKeyScope *scope,
		 uint64_t *stamp,
		 int64_t *changed_ns)
{
	static uint64_t last_stamp;
	*stamp = ++last_stamp;
	*changed_ns = kvc_wall_ns();
	return 0;
}

static inline void
register_gate(void)
{
	mock_ops = kvc_find_l2_adapter("mock", NULL);
	g_assert(mock_ops);
	gate_ops = *mock_ops;
	gate_ops.type_name = "test-gate";
	gate_ops.open = gate_open;
	gate_ops.close = gate_close;
	gate_ops.query_load_result = gate_query_load;
	gate_ops.query_lookup_and_lock_result = gate_query_lookup;
	gate_ops.describe = gate_describe;
	gate_ops.list = gate_list;
	gate_ops.get_changes = gate_get_changes;
	kvc_register_l2_adapter(&gate_ops);
}

#endif
