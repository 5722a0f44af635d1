/* SPDX-License-Identifier: Apache-2.0 */

/*
 * delete_keys blocks, so each adapter that has it gets a thread. The results go back to the
 * controller as messages; retries and order are its business.
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
	GPtrArray *keys; /* owned references */
	bool is_stopping;
};

static GPtrArray *
keys_new(void)
{
	return g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
}

/* Up to a batch of keys, in the order of their submission; NULL: stop. */
static GPtrArray *
take_batch(KvcStoreDeleter *d)
{
	GPtrArray *batch = NULL;
	kvc_mutex_lock(&d->lock);
	while (d->keys->len == 0 && !d->is_stopping)
		kvc_cond_wait_until(&d->wake, &d->lock, 0);
	if (!d->is_stopping) {
		batch = keys_new();
		guint n = MIN(d->keys->len, BATCH_KEYS);
		for (guint i = 0; i < n; i++)
			g_ptr_array_add(batch, kvc_object_key_ref(d->keys->pdata[i]));
		g_ptr_array_remove_range(d->keys, 0, n);
	}
	kvc_mutex_unlock(&d->lock);
	return batch;
}

static void *
deleter_thread(void *data)
{
	KvcStoreDeleter *d = data;
	KvcL2Adapter *adapter = d->controller->context->adapters[d->adapter].adapter;
	GPtrArray *batch;
	pthread_setname_np(pthread_self(), "kvc-delete");
	while ((batch = take_batch(d))) {
		KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
		message->type = KVC_STORE_MESSAGE_DELETED;
		message->adapter = d->adapter;
		message->keys = batch;
		message->deleted = kvc_bitmap_new(batch->len);
		message->error = adapter->ops->delete_keys(
			adapter, (KvcObjectKey *const *)batch->pdata, batch->len, message->deleted);
		if (!kvc_store_controller_post(d->controller, message)) {
			g_ptr_array_unref(message->keys);
			kvc_bitmap_free(message->deleted);
			g_free(message);
		}
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
	kvc_mutex_init(&d->lock, KVC_LOCK_DELETER_QUEUE);
	kvc_cond_init(&d->wake);
	int rc = pthread_create(&d->thread, NULL, deleter_thread, d);
	g_assert(rc == 0);
	return d;
}

void
kvc_store_deleter_submit(KvcStoreDeleter *d, KvcObjectKey *key)
{
	kvc_mutex_lock(&d->lock);
	g_ptr_array_add(d->keys, kvc_object_key_ref(key));
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
	pthread_cond_destroy(&d->wake);
	kvc_mutex_deinit(&d->lock);
	g_free(d);
}
