/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The thread between the engine and the inner adapter: it takes what was submitted, holds or delays
 * it, passes it on, takes the result, spoils it, and tells it. Only this thread submits to the
 * inner adapter and queries it, so nothing of that needs a lock.
 */

#include <errno.h>
#include <poll.h>
#include <string.h>

#include <kvcache/io.h>

#include "fault_inject.h"

/* How often the switch is looked at while a task waits for it. */
#define HOLD_MS 10
#define POP_MAX 16

#define OF_STORES (FAULT_STORE_ERROR)
#define OF_LOOKUPS (FAULT_LOOKUP_ERROR | FAULT_LOOKUP_MISS)
#define OF_LOADS (FAULT_LOAD_MISS | FAULT_LOAD_SHORT | FAULT_LOAD_CORRUPT | FAULT_LOAD_SILENT)
#define OF_ALL (FAULT_DELAY | FAULT_HANG | FAULT_LOST_RESULT)

/* ---- Any thread ---------------------------------------------------------------------------- */

void
fault_task_clear(KvcTask *task)
{
	kvc_bitmap_free(((FaultTask *)task)->selected);
}

KvcL2TaskId
fault_submit(KvcL2Adapter *adapter,
	     KvcTaskKind kind,
	     KvcObjectKey *const *keys,
	     const KvcMemoryObj *objects,
	     size_t n)
{
	FaultAdapter *fault = (FaultAdapter *)adapter;
	KvcTask *task = kvc_task_new(fault->base.board, sizeof(FaultTask), kind, keys, objects, n);

	((FaultTask *)task)->selected = kvc_bitmap_new(n);
	KvcL2TaskId id = kvc_task_post(task, 1);
	pthread_mutex_lock(&fault->lock);
	g_queue_push_tail(&fault->incoming, task);
	pthread_mutex_unlock(&fault->lock);
	kvc_eventfd_signal(fault->wake_fd);
	return id;
}

/* ---- Requests, on the thread --------------------------------------------------------------- */

static void
set_held(FaultAdapter *fault, FaultTask *task, bool is_held)
{
	if (task->is_held == is_held)
		return;
	task->is_held = is_held;
	pthread_mutex_lock(&fault->lock);
	fault->n_held += is_held ? 1 : -1;
	pthread_mutex_unlock(&fault->lock);
}

/* The keys of a failing store that no fault happens to are stored: a store fails as late as that.
 */
static bool
submit_store(FaultAdapter *fault, FaultTask *task)
{
	g_autofree KvcObjectKey **keys = g_new(KvcObjectKey *, task->base.n);
	g_autofree KvcMemoryObj *objects = g_new(KvcMemoryObj, task->base.n);
	bool fails = fault->faults & FAULT_STORE_ERROR && kvc_bitmap_count(task->selected) > 0;
	size_t n = 0;

	for (size_t i = 0; i < task->base.n; i++) {
		if (fails && kvc_bitmap_test(task->selected, i))
			continue;
		keys[n] = task->base.keys[i];
		objects[n++] = task->base.objects[i];
	}
	task->result = fails ? fault->error : 0;
	if (n == 0 && fails)
		return false;
	task->inner_id = fault->inner->ops->submit_store_task(fault->inner, keys, objects, n);
	return true;
}

/* False: there is nothing to ask the inner adapter for, the task is at its result. */
static bool
submit(FaultAdapter *fault, FaultTask *task)
{
	KvcL2Adapter *inner = fault->inner;

	switch (task->base.kind) {
	case KVC_TASK_STORE:
		return submit_store(fault, task);
	case KVC_TASK_LOOKUP:
		task->inner_id = inner->ops->submit_lookup_and_lock_task(inner, task->base.keys,
									 task->base.n);
		return true;
	default:
		task->inner_id = inner->ops->submit_load_task(inner, task->base.keys,
							      task->base.objects, task->base.n);
		return true;
	}
}

/* A task that was just submitted: draws the keys that a fault happens to. */
static void
accept_task(FaultAdapter *fault, FaultTask *task, bool is_on)
{
	static const unsigned of_kind[] = {OF_STORES | OF_ALL, OF_LOOKUPS | OF_ALL,
					   OF_LOADS | OF_ALL};
	unsigned faults = fault->faults & of_kind[task->base.kind];

	for (size_t i = 0; is_on && faults && i < task->base.n; i++)
		if (fault_take(fault, task->base.keys[i], i))
			kvc_bitmap_set(task->selected, i);
	bool is_hit = kvc_bitmap_count(task->selected) > 0;
	task->due_ns = is_hit && faults & FAULT_DELAY ? kvc_now_ns() + fault->delay_ns : 0;
	set_held(fault, task, is_hit && faults & FAULT_HANG);
	g_ptr_array_add(fault->running, task);
}

/* ---- Results, on the thread ---------------------------------------------------------------- */

static void
spoil_lookup(FaultAdapter *fault, FaultTask *task)
{
	KvcL2Adapter *inner = fault->inner;
	bool fails = fault->faults & FAULT_LOOKUP_ERROR;

	if (!(fault->faults & OF_LOOKUPS))
		return;
	size_t i = kvc_bitmap_next(task->selected, 0);
	if (fails && i < task->base.n)
		kvc_breaker_note(fault->base.l2.breaker, fault->error);
	for (; i < task->base.n; i = kvc_bitmap_next(task->selected, i + 1)) {
		if (task->base.hits[i])
			inner->ops->submit_unlock(inner, &task->base.keys[i], 1);
		task->base.hits[i] = false;
		kvc_xattrs_unref(task->base.info[i].xattrs);
		task->base.info[i] = (KvcL2ObjectInfo){.mtime_ns = fails ? KVC_L2_NOT_ASKED : 0};
	}
}

static void
spoil_load(FaultAdapter *fault, FaultTask *task)
{
	for (size_t i = kvc_bitmap_next(task->selected, 0); i < task->base.n;
	     i = kvc_bitmap_next(task->selected, i + 1)) {
		KvcMemoryObj *object = &task->base.objects[i];
		uint8_t *data = object->data;
		size_t half = object->bytes / 2;

		if (fault->faults & FAULT_LOAD_SHORT && object->bytes > 0)
			memset(data + half, 0xa5, object->bytes - half);
		if (fault->faults & (FAULT_LOAD_CORRUPT | FAULT_LOAD_SILENT) && object->bytes > 0)
			data[half] ^= 0x10;
		if (fault->faults & (FAULT_LOAD_MISS | FAULT_LOAD_SHORT | FAULT_LOAD_CORRUPT))
			task->base.hits[i] = false;
	}
}

static void
take_result(FaultAdapter *fault, FaultTask *task, bool is_on)
{
	if (task->base.kind == KVC_TASK_LOOKUP)
		spoil_lookup(fault, task);
	else if (task->base.kind == KVC_TASK_LOAD)
		spoil_load(fault, task);
	task->stage = STAGE_RESULT;
	set_held(fault, task,
		 is_on && fault->faults & FAULT_LOST_RESULT &&
			 kvc_bitmap_count(task->selected) > 0);
}

static void
take_store_results(FaultAdapter *fault, bool is_on)
{
	KvcL2StoreResult results[POP_MAX];
	size_t n;

	while ((n = fault->inner->ops->pop_completed_store_tasks(fault->inner, results, POP_MAX)))
		for (size_t i = 0; i < n; i++)
			for (guint j = 0; j < fault->running->len; j++) {
				FaultTask *task = g_ptr_array_index(fault->running, j);

				if (task->base.kind != KVC_TASK_STORE ||
				    task->stage != STAGE_INNER ||
				    task->inner_id != results[i].task_id)
					continue;
				if (task->result == 0)
					task->result = results[i].bytes_transferred;
				take_result(fault, task, is_on);
			}
}

static void
query_inner(FaultAdapter *fault, FaultTask *task, bool is_on)
{
	const KvcL2AdapterOps *ops = fault->inner->ops;
	g_autoptr(KvcBitmap) hits = kvc_bitmap_new(task->base.n);
	int rc = task->base.kind == KVC_TASK_LOOKUP
			 ? ops->query_lookup_and_lock_result(fault->inner, task->inner_id, hits,
							     task->base.info)
			 : ops->query_load_result(fault->inner, task->inner_id, hits);

	if (rc != 1)
		return;
	for (size_t i = 0; i < task->base.n; i++)
		task->base.hits[i] = kvc_bitmap_test(hits, i);
	take_result(fault, task, is_on);
}

/* ---- The thread ---------------------------------------------------------------------------- */

/* Moves TASK on as far as it goes now; true: it is done, and from now on another thread's. */
static bool
step(FaultAdapter *fault, FaultTask *task, bool is_on)
{
	if (task->is_held && !is_on)
		set_held(fault, task, false);
	if (task->stage == STAGE_REQUEST && !task->is_held && task->due_ns <= kvc_now_ns()) {
		task->stage = STAGE_INNER;
		if (!submit(fault, task))
			take_result(fault, task, is_on);
	}
	if (task->stage == STAGE_INNER && task->base.kind != KVC_TASK_STORE)
		query_inner(fault, task, is_on);
	if (task->stage != STAGE_RESULT || task->is_held)
		return false;
	kvc_task_end_part(&task->base, task->result);
	return true;
}

/* Milliseconds until a task has to be looked at without an event; -1: none. */
static int
wait_ms(const FaultAdapter *fault)
{
	int64_t wait = -1, now = kvc_now_ns();

	for (guint i = 0; i < fault->running->len; i++) {
		const FaultTask *task = g_ptr_array_index(fault->running, i);
		int64_t own = -1;

		if (task->is_held)
			own = fault->switch_path ? HOLD_MS : -1;
		else if (task->stage == STAGE_REQUEST)
			own = MAX(task->due_ns - now, 0) / 1000000 + 1;
		if (own >= 0 && (wait < 0 || own < wait))
			wait = own;
	}
	return (int)MIN(wait, 1000);
}

/* What was submitted since; false: the adapter is being closed. */
static bool
take_incoming(FaultAdapter *fault, bool is_on)
{
	GQueue incoming;

	pthread_mutex_lock(&fault->lock);
	bool goes_on = !fault->stopping;
	incoming = fault->incoming;
	g_queue_init(&fault->incoming);
	pthread_mutex_unlock(&fault->lock);
	/* The engine sets it before its first task. */
	if (fault->inner->breaker != fault->base.l2.breaker)
		fault->inner->breaker = fault->base.l2.breaker;
	while (!g_queue_is_empty(&incoming))
		accept_task(fault, g_queue_pop_head(&incoming), is_on);
	return goes_on;
}

static void
step_all(FaultAdapter *fault, bool is_on)
{
	take_store_results(fault, is_on);
	for (guint i = 0; i < fault->running->len;) {
		if (step(fault, g_ptr_array_index(fault->running, i), is_on))
			g_ptr_array_remove_index(fault->running, i);
		else
			i++;
	}
}

void *
fault_main(void *user)
{
	FaultAdapter *fault = user;
	const KvcL2AdapterOps *ops = fault->inner->ops;
	struct pollfd fds[] = {
		{.fd = fault->wake_fd, .events = POLLIN},
		{.fd = ops->get_store_event_fd(fault->inner), .events = POLLIN},
		{.fd = ops->get_lookup_and_lock_event_fd(fault->inner), .events = POLLIN},
		{.fd = ops->get_load_event_fd(fault->inner), .events = POLLIN},
	};

	for (;;) {
		poll(fds, G_N_ELEMENTS(fds), wait_ms(fault));
		for (size_t i = 0; i < G_N_ELEMENTS(fds); i++)
			if (fds[i].revents)
				kvc_eventfd_drain(fds[i].fd);
		bool is_on = fault_is_on(fault);
		if (!take_incoming(fault, is_on))
			return NULL;
		step_all(fault, is_on);
	}
}
