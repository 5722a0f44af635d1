/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What callers do with a handle, from any thread. Everything but a look at the result is a wish
 * that is noted under the handle's lock and told to the controller thread; a handle that the
 * controller has forgotten (or never knew: request_id -1) is dealt with at once.
 */

#include "engine/prefetch-private.h"

#include <errno.h>
#include <unistd.h>

/* Objects released for each time the lock is taken. */
#define RELEASE_BATCH 64

static KvcPrefetchRequest *
of_handle(KvcPrefetchHandle *handle)
{
	return (KvcPrefetchRequest *)handle;
}

KvcPrefetchRequest *
kvc_prefetch_request_new(KvcPrefetchController *c, const KvcPrefetchParams *params)
{
	KvcPrefetchRequest *r = g_new0(KvcPrefetchRequest, 1);
	size_t n = params->n_keys;
	r->handle.total_requested_keys = n;
	r->handle.submit_time_ns = kvc_now_ns();
	r->refs = 1;
	r->controller = c;
	r->handle.request_id = __atomic_fetch_add(&c->last_request_id, 1, __ATOMIC_RELAXED);
	r->owner = kvc_lock_owner("prefetch", (uint64_t)r->handle.request_id);
	r->n = r->end = n;
	r->keys = g_new(KvcObjectKey *, n);
	r->objects = g_new0(KvcL1Object *, n);
	r->cells = g_new(KvcPrefetchCell, n);
	for (size_t i = 0; i < n; i++) {
		r->keys[i] = kvc_object_key_ref(params->keys[i]);
		r->cells[i] = (KvcPrefetchCell){.position = UINT32_MAX, .source = -1};
	}
	r->flags = params->flags;
	r->read_locks = MAX(params->read_locks, 1);
	if (r->read_locks > 1)
		r->taken = g_new0(unsigned, n);
	r->max_locked_bytes = params->max_locked_bytes ? params->max_locked_bytes
						       : c->context->l1_capacity_bytes / 2;
	if (params->timeout_ns > 0)
		r->deadline_ns = r->handle.submit_time_ns +
				 MIN(params->timeout_ns, INT64_MAX - r->handle.submit_time_ns);
	r->planned = params->planned;
	r->done = params->done;
	r->user = params->user;
	kvc_mutex_init(&r->lock, KVC_LOCK_PREFETCH_HANDLE);
	r->found = r->result = -1;
	r->done_event_fd = -1;
	r->message_link.data = r->handle_link.data = r->link.data = r->queue_link.data = r;
	return r;
}

KvcPrefetchRequest *
kvc_prefetch_request_ref(KvcPrefetchRequest *r)
{
	__atomic_fetch_add(&r->refs, 1, __ATOMIC_RELAXED);
	return r;
}

static void
lookups_free(KvcPrefetchRequest *r)
{
	for (size_t a = 0; a < r->n_lookups; a++) {
		kvc_bitmap_free(r->lookups[a].found);
		g_free(r->lookups[a].info);
	}
	g_free(r->lookups);
	g_free(r->lookup_keys);
	g_free(r->lookup_cells);
}

void
kvc_prefetch_request_unref(KvcPrefetchRequest *r)
{
	if (__atomic_fetch_sub(&r->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	kvc_prefetch_dump_unregister(r);
	lookups_free(r);
	for (size_t i = 0; i < r->n; i++) {
		g_assert(!r->objects[i] && !r->cells[i].locked && !r->cells[i].load);
		kvc_object_key_unref(r->keys[i]);
	}
	if (r->done_event_fd >= 0)
		close(r->done_event_fd);
	kvc_mutex_deinit(&r->lock);
	g_free(r->keys);
	g_free(r->objects);
	g_free(r->taken);
	g_free(r->cells);
	g_free(r);
}

static unsigned
locks_left_locked(const KvcPrefetchRequest *r, size_t i)
{
	return r->read_locks - (r->taken ? r->taken[i] : 0);
}

void
kvc_prefetch_request_release_objects(KvcPrefetchRequest *r, size_t begin, size_t end)
{
	KvcL1Object *batch[RELEASE_BATCH];
	unsigned locks[RELEASE_BATCH];
	for (size_t i = begin; i < end;) {
		size_t n = 0;
		kvc_mutex_lock(&r->lock);
		for (; i < end && n < RELEASE_BATCH; i++) {
			if (!r->objects[i])
				continue;
			locks[n] = locks_left_locked(r, i);
			batch[n++] = g_steal_pointer(&r->objects[i]);
		}
		kvc_mutex_unlock(&r->lock);
		/* Not under the lock: the last reference of a detached object frees its memory. */
		for (size_t j = 0; j < n; j++)
			kvc_l1_manager_finish_read_for(r->controller->context->l1, batch[j],
						       locks[j], r->owner);
	}
}

void
kvc_prefetch_request_finish_drop(KvcPrefetchRequest *r)
{
	kvc_prefetch_request_release_objects(r, 0, r->n);
	if (r->user_free)
		r->user_free(r->user);
	kvc_prefetch_request_unref(r);
}

/* ---- The public functions ------------------------------------------------------------------ */

ssize_t
kvc_prefetch_handle_get_found(KvcPrefetchHandle *handle)
{
	KvcPrefetchRequest *r = of_handle(handle);
	kvc_mutex_lock(&r->lock);
	ssize_t found = r->found;
	kvc_mutex_unlock(&r->lock);
	return found < 0 ? -EAGAIN : found;
}

ssize_t
kvc_prefetch_controller_query(KvcPrefetchController *c, KvcPrefetchHandle *handle)
{
	KvcPrefetchRequest *r = of_handle(handle);
	kvc_mutex_lock(&r->lock);
	ssize_t result = r->result;
	if (result < 0)
		result = -EAGAIN;
	else if (r->is_consumed)
		result = -ENODATA;
	else
		r->is_consumed = handle->request_id >= 0;
	kvc_mutex_unlock(&r->lock);
	return result;
}

KvcPrefetchKeyState
kvc_prefetch_handle_get_key_state(KvcPrefetchHandle *handle, size_t i)
{
	KvcPrefetchRequest *r = of_handle(handle);
	kvc_mutex_lock(&r->lock);
	bool is_answered = r->result >= 0;
	kvc_mutex_unlock(&r->lock);
	/* Nobody writes them after the answer. */
	const KvcPrefetchCell *cell = &r->cells[i];
	if (!is_answered)
		return KVC_PREFETCH_KEY_PENDING;
	if (cell->is_held)
		return KVC_PREFETCH_KEY_HELD;
	return cell->state ? (KvcPrefetchKeyState)cell->state : KVC_PREFETCH_KEY_NOT_LOADED;
}

int
kvc_prefetch_handle_get_keys(KvcPrefetchHandle *handle, KvcBitmap *found, KvcBitmap *held)
{
	KvcPrefetchRequest *r = of_handle(handle);
	kvc_mutex_lock(&r->lock);
	bool is_known = (!found || r->found >= 0) && (!held || r->result >= 0);
	kvc_mutex_unlock(&r->lock);
	if (!is_known)
		return -EAGAIN;
	for (size_t i = 0; i < r->n; i++) {
		if (found && r->cells[i].exists)
			kvc_bitmap_set(found, i);
		if (held && r->cells[i].is_held)
			kvc_bitmap_set(held, i);
	}
	return 0;
}

KvcL1Object *
kvc_prefetch_handle_take_object(KvcPrefetchHandle *handle, size_t i)
{
	KvcPrefetchRequest *r = of_handle(handle);
	if (i >= r->n)
		return NULL;
	kvc_mutex_lock(&r->lock);
	KvcL1Object *object = r->objects[i];
	if (object && locks_left_locked(r, i) == 1)
		r->objects[i] = NULL;
	else if (object)
		r->taken[i]++;
	kvc_mutex_unlock(&r->lock);
	if (object)
		kvc_l1_manager_move_read_locks(r->controller->context->l1, object, 1, r->owner,
					       KVC_OWNER_USER);
	return object;
}

/* Notes a wish and tells the controller, unless nothing can come of it. */
static void
wish(KvcPrefetchRequest *r, bool *what)
{
	kvc_mutex_lock(&r->lock);
	if (!*what && !r->is_retired)
		kvc_prefetch_controller_post(r->controller, r);
	*what = true;
	kvc_mutex_unlock(&r->lock);
}

void
kvc_prefetch_handle_start(KvcPrefetchHandle *handle)
{
	KvcPrefetchRequest *r = of_handle(handle);
	wish(r, &r->wants_start);
}

void
kvc_prefetch_handle_cancel(KvcPrefetchHandle *handle)
{
	KvcPrefetchRequest *r = of_handle(handle);
	wish(r, &r->wants_cancel);
}

void
kvc_prefetch_handle_drop(KvcPrefetchHandle *handle, void (*user_free)(void *user))
{
	KvcPrefetchRequest *r = of_handle(handle);
	kvc_prefetch_request_ref(r);
	kvc_mutex_lock(&r->lock);
	bool is_retired = r->is_retired;
	r->wants_drop = true;
	r->user_free = user_free;
	/* Under the lock: once the controller sees the wish, it may be freed before we are done. */
	if (!is_retired)
		kvc_prefetch_controller_post(r->controller, r);
	kvc_mutex_unlock(&r->lock);
	if (is_retired)
		kvc_prefetch_request_finish_drop(r);
	kvc_prefetch_request_unref(r);
}
