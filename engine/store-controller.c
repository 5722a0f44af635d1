/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The StoreController's thread. Everything it is told comes as a message through one queue: commits
 * from the L1Manager's listener (which runs inside a shard's lock and only appends and signals),
 * deletions, flushes, and the results of the deletion threads. All records belong to the thread.
 */

#include "engine/deletion-log.h"
#include "engine/store-private.h"
#include "kvcache/io.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

/* How often a stop that waits for an adapter says so. */
#define STOP_REPORT_NS (10 * KVC_SEC_NS)
/* The thread blocks on nothing. */
#define SETTLE_NS KVC_SEC_NS

bool
kvc_store_controller_post(KvcStoreController *c, KvcStoreMessage *message)
{
	kvc_mutex_lock(&c->lock);
	bool is_open = !c->is_stopping;
	bool is_first = c->messages.length == 0;
	if (is_open) {
		message->link.data = message;
		g_queue_push_tail_link(&c->messages, &message->link);
		c->n_posted++;
		c->is_idle = false;
	}
	kvc_mutex_unlock(&c->lock);
	if (is_open && is_first)
		kvc_eventfd_signal(c->event_fd);
	return is_open;
}

static void
message_free(KvcStoreMessage *message)
{
	if (message->object)
		kvc_l1_object_unref(message->object);
	if (message->key)
		kvc_object_key_unref(message->key);
	if (message->new_key)
		kvc_object_key_unref(message->new_key);
	if (message->keys)
		g_ptr_array_unref(message->keys);
	if (message->deleted)
		kvc_bitmap_free(message->deleted);
	g_free(message);
}

static void
on_write_finished(KvcL1ManagerListener *l, KvcL1Object *object)
{
	KvcStoreController *c = (KvcStoreController *)l;
	if (!object->is_dirty) /* there is no adapter */
		return;
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_COMMIT;
	message->object = kvc_l1_object_ref(object);
	if (!kvc_store_controller_post(c, message)) {
		/* Not the last reference: the table has one. */
		kvc_l1_object_unref(message->object);
		g_free(message);
	}
}

/*
 * What is hidden of the old name by now is of the new one (key-index.h). The log is told at once: a
 * deletion of the old name that follows is a newer one.
 */
static void
note_outdated(KvcStoreController *c, KvcStoreMessage *message, uint32_t renaming)
{
	uint32_t hidden = kvc_key_index_hidden_from(c->context->index, message->new_key);
	/* What nobody has is yet to be stored: then an older version is all there is. */
	if (message->object || !(renaming & ~hidden))
		return;
	message->outdated = hidden & message->renamers;
	if (message->outdated)
		message->delete_id = kvc_deletion_log_add(c->context->deletions, message->key,
							  message->outdated);
}

static void
on_renamed(KvcL1ManagerListener *l,
	   KvcObjectKey *old_key,
	   KvcObjectKey *new_key,
	   KvcL1Object *object)
{
	KvcStoreController *c = (KvcStoreController *)l;
	if (!kvc_controller_context_active(c->context))
		return;
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_RENAME;
	message->key = kvc_object_key_ref(old_key);
	message->new_key = kvc_object_key_ref(new_key);
	message->object = object && object->is_dirty ? kvc_l1_object_ref(object) : NULL;
	message->adapters = kvc_controller_context_active(c->context);
	message->renamers = kvc_controller_context_renamers(c->context);
	KvcObjectInfo info = {0};
	if (kvc_key_index_get(c->context->index, new_key, &info) == 0)
		message->version = info.version;
	note_outdated(c, message, info.renaming);
	__atomic_fetch_add(&c->n_renames, 1, __ATOMIC_RELAXED);
	if (!kvc_store_controller_post(c, message)) {
		__atomic_fetch_sub(&c->n_renames, 1, __ATOMIC_RELAXED);
		message_free(message);
	}
}

void
kvc_store_controller_submit_delete(KvcStoreController *c,
				   KvcObjectKey *key,
				   uint32_t adapters,
				   uint64_t id)
{
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_DELETE;
	message->key = kvc_object_key_ref(key);
	message->adapters = adapters;
	message->delete_id = id;
	if (!kvc_store_controller_post(c, message)) {
		kvc_object_key_unref(message->key);
		g_free(message);
	}
}

static void
post_key(KvcStoreController *c, KvcStoreMessageType type, KvcObjectKey *key)
{
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = type;
	message->key = kvc_object_key_ref(key);
	if (!kvc_store_controller_post(c, message))
		message_free(message);
}

void
kvc_store_controller_submit_store(KvcStoreController *c, KvcObjectKey *key)
{
	/* Not evicted before the thread sees to it. */
	KvcL1Object *object = kvc_l1_manager_make_dirty(c->context->l1, key);
	if (!object)
		return;
	kvc_l1_object_unref(object);
	post_key(c, KVC_STORE_MESSAGE_STORE, key);
}

void
kvc_store_controller_submit_attributes(KvcStoreController *c, KvcObjectKey *key)
{
	post_key(c, KVC_STORE_MESSAGE_ATTRIBUTES, key);
}

static void
post_waiter(KvcStoreController *c,
	    KvcObjectKey *key,
	    bool is_await,
	    void (*done)(void *user, int error),
	    void *user)
{
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_FLUSH;
	message->key = kvc_object_key_ref(key);
	message->waiter = g_new0(KvcFlushWaiter, 1);
	message->waiter->is_await = is_await;
	message->waiter->done = done;
	message->waiter->user = user;
	if (!kvc_store_controller_post(c, message)) {
		kvc_object_key_unref(message->key);
		g_free(message->waiter);
		g_free(message);
		done(user, -ESHUTDOWN);
	}
}

void
kvc_store_controller_flush(KvcStoreController *c,
			   KvcObjectKey *key,
			   void (*done)(void *user, int error),
			   void *user)
{
	post_waiter(c, key, false, done, user);
}

void
kvc_store_controller_await_rename(KvcStoreController *c,
				  KvcObjectKey *key,
				  void (*done)(void *user, int error),
				  void *user)
{
	post_waiter(c, key, true, done, user);
}

int
kvc_store_controller_drain(KvcStoreController *c, int64_t timeout_ns)
{
	int64_t now = kvc_now_ns();
	int64_t deadline = now + MIN(timeout_ns, INT64_MAX - now);
	int rc = 0;
	kvc_deletion_log_request_sync(c->context->deletions);
	kvc_mutex_lock(&c->lock);
	if (c->n_drains++ == 0 && !c->is_idle)
		kvc_eventfd_signal(c->event_fd);
	while (!c->is_idle && !c->is_stopping && rc == 0)
		rc = kvc_cond_wait_until(&c->idle, &c->lock, deadline);
	c->n_drains--;
	bool is_idle = c->is_idle;
	kvc_mutex_unlock(&c->lock);
	return is_idle ? 0 : -ETIMEDOUT;
}

void
kvc_store_controller_settle(KvcStoreController *c)
{
	int64_t deadline = kvc_now_ns() + SETTLE_NS;
	int rc = 0;
	/* Without a rename all of a deletion is in the log since it was submitted. */
	if (__atomic_load_n(&c->n_renames, __ATOMIC_RELAXED) == 0)
		return;
	kvc_mutex_lock(&c->lock);
	uint64_t posted = c->n_posted;
	while (c->n_handled < posted && !c->is_stopping && rc == 0)
		rc = kvc_cond_wait_until(&c->handled, &c->lock, deadline);
	kvc_mutex_unlock(&c->lock);
}

/* ---- The thread ---------------------------------------------------------------------------- */

static void
handle_message(KvcStoreController *c, KvcStoreMessage *message)
{
	switch (message->type) {
	case KVC_STORE_MESSAGE_COMMIT:
		kvc_store_record_commit(c, message->object);
		break;
	case KVC_STORE_MESSAGE_STORE:
		kvc_store_record_store_resident(c, message->key);
		break;
	case KVC_STORE_MESSAGE_DELETE:
		kvc_store_logged_note_sources(c, message->key);
		kvc_store_left_delete(c, message->key);
		kvc_store_record_delete(c, message->key, message->adapters, message->delete_id);
		break;
	case KVC_STORE_MESSAGE_FLUSH:
		kvc_store_record_flush(c, message->key, message->waiter);
		break;
	case KVC_STORE_MESSAGE_DELETED:
		kvc_store_record_deleted(c, message);
		break;
	case KVC_STORE_MESSAGE_ATTRIBUTES:
		kvc_store_attributes_changed(c, message->key);
		break;
	case KVC_STORE_MESSAGE_ATTRIBUTES_SET:
		kvc_store_attributes_set(c, message);
		break;
	case KVC_STORE_MESSAGE_RENAME:
		kvc_store_rename_submit(c, message);
		break;
	case KVC_STORE_MESSAGE_RENAMED:
		kvc_store_rename_done(c, message);
		break;
	case KVC_STORE_MESSAGE_SYNCED:
		kvc_store_logged_synced(c, message->position, message->error);
		break;
	}
}

/* All messages at once, so that the lock is taken once a wake-up. */
static GQueue
take_messages(KvcStoreController *c)
{
	kvc_mutex_lock(&c->lock);
	GQueue messages = c->messages;
	g_queue_init(&c->messages);
	c->n_taken = c->n_posted;
	c->is_halting = c->is_stopping;
	c->wanted_now = c->wanted;
	/* With them: a deletion that was submitted before is told before a store begins. */
	c->targets_now = c->targets;
	kvc_mutex_unlock(&c->lock);
	return messages;
}

static void
handle_messages(KvcStoreController *c)
{
	GQueue messages = take_messages(c);
	GList *link;
	/* First: a commit from here on goes to none that is not wanted. */
	if (!c->is_halting)
		kvc_store_adapters_follow(c);
	while ((link = g_queue_pop_head_link(&messages))) {
		handle_message(c, link->data);
		message_free(link->data);
	}
	/* Whatever made an object go had been told by now, or will be. */
	while (!c->is_halting && (link = g_queue_pop_head_link(&c->unsettled))) {
		KvcStoreRecord *r = link->data;
		r->is_unsettled = false;
		kvc_store_record_advance(c, r);
	}
}

static void
tell_idle(KvcStoreController *c)
{
	kvc_mutex_lock(&c->lock);
	c->is_idle =
		c->messages.length == 0 && (g_hash_table_size(c->records) == 0 ||
					    (c->n_drains > 0 && kvc_store_logged_may_leave_all(c)));
	if (c->is_idle)
		pthread_cond_broadcast(&c->idle);
	c->n_handled = c->n_taken;
	pthread_cond_broadcast(&c->handled);
	kvc_mutex_unlock(&c->lock);
}

static int
poll_timeout_ms(KvcStoreController *c)
{
	if (c->unsettled.length > 0 || c->refused.length > 0 ||
	    (c->kicked.length > 0 && !c->is_halting))
		return 0;
	int64_t due = c->is_halting ? kvc_now_ns() + STOP_REPORT_NS : kvc_store_next_due_ns(c);
	if (due == 0)
		return -1;
	int64_t ms = (due - kvc_now_ns() + KVC_MSEC_NS - 1) / KVC_MSEC_NS;
	return (int)CLAMP(ms, 0, 60000);
}

static void
wait_for_events(KvcStoreController *c)
{
	struct pollfd fds[KVC_MAX_ADAPTERS + 1];
	size_t adapters[KVC_MAX_ADAPTERS], n = 0;
	for (uint32_t bits = c->active | c->draining; bits; bits &= bits - 1) {
		adapters[n] = (size_t)__builtin_ctz(bits);
		fds[n] = (struct pollfd){c->adapter_fds[adapters[n]], POLLIN, 0};
		n++;
	}
	fds[n] = (struct pollfd){c->event_fd, POLLIN, 0};
	int rc = poll(fds, n + 1, poll_timeout_ms(c));
	if (rc == 0 && c->is_halting && c->n_tasks > 0)
		g_warning("stop: waiting for %zu stores in flight", c->n_tasks);
	if (rc <= 0)
		return;
	if (fds[n].revents)
		kvc_eventfd_drain(c->event_fd);
	for (size_t i = 0; i < n; i++) {
		if (!fds[i].revents)
			continue;
		kvc_eventfd_drain(fds[i].fd);
		kvc_store_drain_completions(c, adapters[i]);
	}
}

static void *
store_thread(void *data)
{
	KvcStoreController *c = data;
	pthread_setname_np(pthread_self(), "kvc-store");
	for (;;) {
		handle_messages(c);
		kvc_store_fail_refused(c);
		if (c->is_halting && c->n_tasks == 0)
			break;
		if (!c->is_halting) {
			kvc_store_fire_backoffs(c, kvc_now_ns());
			kvc_store_try_reached(c);
			kvc_store_probe(c, kvc_now_ns());
			kvc_store_rename_run(c);
			kvc_store_process_ready(c);
			kvc_store_adapters_finish(c);
			tell_idle(c);
		}
		wait_for_events(c);
	}
	return NULL;
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

KvcStoreController *
kvc_store_controller_new(const KvcControllerContext *context,
			 const KvcStorePolicy *policy,
			 GError **error)
{
	g_assert(context->n_adapters <= KVC_MAX_ADAPTERS);
	int fd = kvc_eventfd_new();
	if (fd < 0) {
		g_set_error(error, KVC_OPTIONS_ERROR, -fd,
			    "StoreController: cannot create an eventfd: %s", g_strerror(-fd));
		return NULL;
	}
	KvcStoreController *c = g_new0(KvcStoreController, 1);
	c->listener.on_write_finished = on_write_finished;
	c->listener.on_renamed = on_renamed;
	c->context = context;
	c->policy = policy;
	c->max_bytes_in_flight = KVC_STORE_BYTES_IN_FLIGHT;
	c->event_fd = fd;
	c->is_idle = true;
	kvc_mutex_init(&c->lock, KVC_LOCK_STORE_QUEUE);
	kvc_cond_init(&c->idle);
	kvc_cond_init(&c->handled);
	c->records = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	c->left = kvc_store_left_new();
	for (size_t a = 0; a < KVC_MAX_ADAPTERS; a++)
		c->lanes[a].given_up = kvc_store_key_set_new();
	c->wanted = c->targets = kvc_controller_context_active(context);
	kvc_cond_init(&c->adapters_changed);
	kvc_l1_manager_register_listener(context->l1, &c->listener);
	return c;
}

void
kvc_store_controller_start(KvcStoreController *c)
{
	kvc_store_adapters_attach(c, c->wanted);
	kvc_store_logged_start(c);
	c->is_running = pthread_create(&c->thread, NULL, store_thread, c) == 0;
	g_assert(c->is_running);
}

/* What the thread left: no task is in flight any more. */
static void
release_all(KvcStoreController *c)
{
	GQueue messages = take_messages(c);
	GList *link;
	while ((link = g_queue_pop_head_link(&messages))) {
		KvcStoreMessage *message = link->data;
		if (message->waiter) {
			message->waiter->done(message->waiter->user, -ESHUTDOWN);
			g_free(message->waiter);
		}
		message_free(message);
	}
	/* Each has the sealed records before it. */
	while ((link = c->renames.head))
		kvc_store_rename_free(c, link->data);
	GHashTableIter iter;
	KvcStoreRecord *r;
	g_hash_table_iter_init(&iter, c->records);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&r)) {
		g_hash_table_iter_steal(&iter);
		kvc_store_record_free(c, r, -ESHUTDOWN);
	}
}

void
kvc_store_controller_stop(KvcStoreController *c)
{
	kvc_mutex_lock(&c->lock);
	bool was_stopping = c->is_stopping;
	c->is_stopping = true;
	pthread_cond_broadcast(&c->idle);
	pthread_cond_broadcast(&c->handled);
	pthread_cond_broadcast(&c->adapters_changed);
	kvc_mutex_unlock(&c->lock);
	if (was_stopping)
		return;
	kvc_eventfd_signal(c->event_fd);
	/* First: it gives them work. */
	if (c->is_running)
		pthread_join(c->thread, NULL);
	for (size_t a = 0; a < c->n_adapters; a++)
		if (c->deleters[a])
			kvc_store_deleter_stop(c->deleters[a]);
	release_all(c);
}

void
kvc_store_controller_free(KvcStoreController *c)
{
	kvc_store_controller_stop(c);
	g_hash_table_unref(c->records);
	g_hash_table_unref(c->left);
	for (size_t a = 0; a < KVC_MAX_ADAPTERS; a++)
		g_hash_table_unref(c->lanes[a].given_up);
	for (size_t a = 0; a < c->n_adapters; a++)
		if (c->lanes[a].tasks)
			g_hash_table_unref(c->lanes[a].tasks);
	pthread_cond_destroy(&c->adapters_changed);
	pthread_cond_destroy(&c->idle);
	pthread_cond_destroy(&c->handled);
	kvc_mutex_deinit(&c->lock);
	close(c->event_fd);
	g_free(c);
}
