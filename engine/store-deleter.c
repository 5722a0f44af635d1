/* SPDX-License-Identifier: Apache-2.0 */

/*
 * delete_keys and set_attributes block, so each adapter that has one gets a thread. The results go
 * back to the controller as messages; retries and order are its business.
 */

#include "engine/store-private.h"

#define BATCH_KEYS 256

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
	bool is_stopping;
};

static GPtrArray *
keys_new(void)
{
	return g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
}

/* Up to a batch of the keys in QUEUE, in the order of their submission. */
static GPtrArray *
take_batch_locked(GPtrArray *queue)
{
	GPtrArray *batch = keys_new();
	guint n = MIN(queue->len, BATCH_KEYS);
	for (guint i = 0; i < n; i++)
		g_ptr_array_add(batch, kvc_object_key_ref(queue->pdata[i]));
	g_ptr_array_remove_range(queue, 0, n);
	return batch;
}

/* Waits for work; false: stop. */
static bool
take_batches(KvcStoreDeleter *d, GPtrArray **keys, GPtrArray **changed)
{
	kvc_mutex_lock(&d->lock);
	while (d->keys->len == 0 && d->changed->len == 0 && !d->is_stopping)
		kvc_cond_wait_until(&d->wake, &d->lock, 0);
	bool has_work = !d->is_stopping;
	if (has_work) {
		*keys = take_batch_locked(d->keys);
		*changed = take_batch_locked(d->changed);
	}
	kvc_mutex_unlock(&d->lock);
	return has_work;
}

/* Takes BATCH over. */
static void
delete_batch(KvcStoreDeleter *d, GPtrArray *batch)
{
	KvcL2Adapter *adapter = d->controller->context->adapters[d->adapter].adapter;
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_DELETED;
	message->adapter = d->adapter;
	message->keys = batch;
	message->deleted = kvc_bitmap_new(batch->len);
	message->error = adapter->ops->delete_keys(adapter, (KvcObjectKey *const *)batch->pdata,
						   batch->len, message->deleted);
	if (!kvc_store_controller_post(d->controller, message)) {
		g_ptr_array_unref(message->keys);
		kvc_bitmap_free(message->deleted);
		g_free(message);
	}
}

/* The two never have work of the same key at the same time: the records see to it. */
static void *
deleter_thread(void *data)
{
	KvcStoreDeleter *d = data;
	GPtrArray *keys, *changed;
	pthread_setname_np(pthread_self(), "kvc-delete");
	while (take_batches(d, &keys, &changed)) {
		if (keys->len > 0)
			delete_batch(d, keys);
		else
			g_ptr_array_unref(keys);
		for (guint i = 0; i < changed->len; i++)
			kvc_store_attributes_apply(d->controller, d->adapter, changed->pdata[i]);
		g_ptr_array_unref(changed);
	}
	return NULL;
}

KvcStoreDeleter *
kvc_store_deleter_start(KvcStoreController *c, size_t adapter)
{
	KvcStoreDeleter *d = g_new0(KvcStoreDeleter, 1);
	d->controller = c;
	d->adapter = adapter;
	d->keys = keys_new();
	d->changed = keys_new();
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
kvc_store_deleter_stop(KvcStoreDeleter *d)
{
	kvc_mutex_lock(&d->lock);
	d->is_stopping = true;
	pthread_cond_signal(&d->wake);
	kvc_mutex_unlock(&d->lock);
	pthread_join(d->thread, NULL);
	g_ptr_array_unref(d->keys);
	g_ptr_array_unref(d->changed);
	pthread_cond_destroy(&d->wake);
	kvc_mutex_deinit(&d->lock);
	g_free(d);
}
