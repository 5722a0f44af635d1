/* SPDX-License-Identifier: Apache-2.0 */

/*
 * delete_keys, rename_key and set_attributes block, so each adapter that has one gets a thread. The
 * results go back to the controller as messages; retries and order are its business.
 */

#include "engine/adapter-call.h"
#include "engine/store-private.h"

#include <errno.h>

#define BATCH_KEYS 256

typedef struct Rename {
	KvcStoreRename *rename;
	KvcObjectKey *old_key; /* owned */
	KvcObjectKey *new_key; /* owned; NULL: OLD_KEY is deleted */
} Rename;

struct KvcStoreDeleter {
	/* Immutable after start. */
	KvcStoreController *controller;
	size_t adapter;
	pthread_t thread;

	KvcMutex lock;
	pthread_cond_t wake;
	/* Protected by lock. */
	GPtrArray *keys;    /* to be deleted; owned references */
	GPtrArray *changed; /* whose attributes are to be set; owned references */
	GQueue renames;	    /* of Rename */
	bool is_stopping;
};

static void
rename_free(void *data)
{
	Rename *rename = data;
	kvc_object_key_unref(rename->old_key);
	if (rename->new_key)
		kvc_object_key_unref(rename->new_key);
	g_free(rename);
}

static GPtrArray *
take_batch_locked(GPtrArray *queue)
{
	guint n = MIN(queue->len, BATCH_KEYS);
	if (n == 0)
		return NULL;
	GPtrArray *batch = kvc_store_keys_new();
	for (guint i = 0; i < n; i++)
		g_ptr_array_add(batch, kvc_object_key_ref(queue->pdata[i]));
	g_ptr_array_remove_range(queue, 0, n);
	return batch;
}

/* Up to a batch of keys of each kind, in the order of their submission, and one rename; false:
 * stop.
 */
static bool
take_work(KvcStoreDeleter *d, GPtrArray **batch, GPtrArray **changed, Rename **rename)
{
	kvc_mutex_lock(&d->lock);
	while (d->keys->len == 0 && d->changed->len == 0 && d->renames.length == 0 &&
	       !d->is_stopping)
		kvc_cond_wait_until(&d->wake, &d->lock, 0);
	bool goes_on = !d->is_stopping;
	*batch = goes_on ? take_batch_locked(d->keys) : NULL;
	*changed = goes_on ? take_batch_locked(d->changed) : NULL;
	*rename = goes_on ? g_queue_pop_head(&d->renames) : NULL;
	kvc_mutex_unlock(&d->lock);
	return goes_on;
}

static void
delete_batch(KvcStoreDeleter *d, KvcAdapterSlot *slot, GPtrArray *batch)
{
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_DELETED;
	message->adapter = d->adapter;
	message->keys = batch;
	message->deleted = kvc_bitmap_new(batch->len);
	message->error = kvc_adapter_delete(slot, (KvcObjectKey *const *)batch->pdata, batch->len,
					    message->deleted);
	if (!kvc_store_controller_post(d->controller, message)) {
		g_ptr_array_unref(message->keys);
		kvc_bitmap_free(message->deleted);
		g_free(message);
	}
}

/* 0; -EBUSY: it is locked; or the adapter's -errno. */
static int
delete_one(KvcAdapterSlot *slot, KvcObjectKey *key)
{
	KvcBitmap *deleted = kvc_bitmap_new(1);
	int rc = kvc_adapter_delete(slot, &key, 1, deleted);
	if (kvc_bitmap_test(deleted, 0))
		rc = 0;
	else if (rc == 0)
		rc = -EBUSY;
	kvc_bitmap_free(deleted);
	return rc;
}

static void
do_rename(KvcStoreDeleter *d, KvcAdapterSlot *slot, Rename *rename)
{
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_RENAMED;
	message->adapter = d->adapter;
	message->rename = rename->rename;
	if (rename->new_key)
		message->error = kvc_adapter_rename(slot, rename->old_key, rename->new_key);
	else
		message->error = delete_one(slot, rename->old_key);
	rename_free(rename);
	if (!kvc_store_controller_post(d->controller, message))
		g_free(message);
}

static void
set_attributes(KvcStoreDeleter *d, GPtrArray *changed)
{
	for (guint i = 0; i < changed->len; i++)
		kvc_store_attributes_apply(d->controller, d->adapter, changed->pdata[i]);
	g_ptr_array_unref(changed);
}

/* There is never work of two kinds for one key at the same time: the records see to it. */
static void *
deleter_thread(void *data)
{
	KvcStoreDeleter *d = data;
	KvcAdapterSlot *slot = &d->controller->context->adapters[d->adapter];
	GPtrArray *batch, *changed;
	Rename *rename;
	pthread_setname_np(pthread_self(), "kvc-delete");
	while (take_work(d, &batch, &changed, &rename)) {
		if (batch)
			delete_batch(d, slot, batch);
		if (changed)
			set_attributes(d, changed);
		if (rename)
			do_rename(d, slot, rename);
	}
	return NULL;
}

KvcStoreDeleter *
kvc_store_deleter_start(KvcStoreController *c, size_t adapter)
{
	KvcStoreDeleter *d = g_new0(KvcStoreDeleter, 1);
	d->controller = c;
	d->adapter = adapter;
	d->keys = kvc_store_keys_new();
	d->changed = kvc_store_keys_new();
	kvc_mutex_init(&d->lock, KVC_LOCK_DELETER_QUEUE);
	kvc_cond_init(&d->wake);
	int rc = pthread_create(&d->thread, NULL, deleter_thread, d);
	g_assert(rc == 0);
	return d;
}

static void
submit(KvcStoreDeleter *d, GPtrArray *queue, KvcObjectKey *key)
{
	kvc_mutex_lock(&d->lock);
	g_ptr_array_add(queue, kvc_object_key_ref(key));
	pthread_cond_signal(&d->wake);
	kvc_mutex_unlock(&d->lock);
}

void
kvc_store_deleter_submit(KvcStoreDeleter *d, KvcObjectKey *key)
{
	submit(d, d->keys, key);
}

void
kvc_store_deleter_submit_attributes(KvcStoreDeleter *d, KvcObjectKey *key)
{
	submit(d, d->changed, key);
}

void
kvc_store_deleter_submit_rename(KvcStoreDeleter *d,
				KvcStoreRename *m,
				KvcObjectKey *old_key,
				KvcObjectKey *new_key)
{
	Rename *rename = g_new(Rename, 1);
	rename->rename = m;
	rename->old_key = kvc_object_key_ref(old_key);
	rename->new_key = new_key ? kvc_object_key_ref(new_key) : NULL;
	kvc_mutex_lock(&d->lock);
	g_queue_push_tail(&d->renames, rename);
	pthread_cond_signal(&d->wake);
	kvc_mutex_unlock(&d->lock);
}

void
kvc_store_deleter_stop(KvcStoreDeleter *d)
{
	kvc_mutex_lock(&d->lock);
	d->is_stopping = true;
	pthread_cond_signal(&d->wake);
	kvc_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	g_ptr_array_unref(d->keys);
	g_ptr_array_unref(d->changed);
	g_queue_clear_full(&d->renames, rename_free);
	pthread_cond_destroy(&d->wake);
	kvc_mutex_deinit(&d->lock);
	g_free(d);
}
