/* SPDX-License-Identifier: Apache-2.0 */

/* At the start every adapter that can list is listed into the index, in a thread of its own. */

#include "engine/storage-manager-private.h"

#include <errno.h>

#define PAGE 256

static ssize_t
list_page(KvcListing *listing, char **cursor)
{
	KvcControllerContext *context = &listing->sm->context;
	KvcL2Adapter *adapter = context->adapters[listing->adapter].adapter;
	KvcL2ListEntry entries[PAGE] = {0};
	ssize_t n = adapter->ops->list(adapter, NULL, cursor, entries, PAGE);
	for (ssize_t i = 0; i < n; i++) {
		KvcObjectAttributes attributes = kvc_l2_object_info_attributes(&entries[i].info);
		kvc_key_index_add_with(context->index, entries[i].key, 1u << listing->adapter,
				       entries[i].info.bytes, &attributes);
		kvc_xattrs_unref(entries[i].info.xattrs);
		kvc_object_key_unref(entries[i].key);
	}
	return n;
}

static void *
listing_thread(void *data)
{
	KvcListing *listing = data;
	KvcStorageManager *sm = listing->sm;
	char *cursor = NULL;
	ssize_t n;
	pthread_setname_np(pthread_self(), "kvc-list");
	do {
		n = list_page(listing, &cursor);
		if (n > 0) {
			__atomic_fetch_add(&listing->count, (uint64_t)n, __ATOMIC_RELAXED);
			kvc_stats_add(&sm->stats, listed_keys, (uint64_t)n);
		}
	} while (n >= 0 && cursor && !__atomic_load_n(&sm->is_stopping, __ATOMIC_RELAXED));
	g_free(cursor);
	if (n < 0) {
		kvc_stats_add(&sm->stats, list_failed, 1);
		g_autofree char *who =
			kvc_controller_context_adapter_name(&sm->context, listing->adapter);
		g_warning("%s: listing failed: %s", who, g_strerror((int)-n));
	}
	kvc_mutex_lock(&sm->lock);
	__atomic_store_n(&listing->error, n < 0 ? (int)n : 0, __ATOMIC_RELAXED);
	listing->is_done = true;
	pthread_cond_broadcast(&sm->listed);
	kvc_mutex_unlock(&sm->lock);
	return NULL;
}

void
kvc_listing_start(KvcStorageManager *sm)
{
	for (size_t i = 0; i < sm->context.n_adapters; i++) {
		KvcListing *listing = &sm->listings[i];
		listing->sm = sm;
		listing->adapter = i;
		if (!sm->context.adapters[i].adapter->ops->list) {
			listing->is_done = true;
			continue;
		}
		listing->is_running =
			pthread_create(&listing->thread, NULL, listing_thread, listing) == 0;
		g_assert(listing->is_running);
	}
}

void
kvc_listing_stop(KvcStorageManager *sm)
{
	__atomic_store_n(&sm->is_stopping, true, __ATOMIC_RELAXED);
	for (size_t i = 0; i < sm->context.n_adapters; i++)
		if (sm->listings[i].is_running)
			pthread_join(sm->listings[i].thread, NULL);
}

int
kvc_storage_manager_wait_listed(KvcStorageManager *sm, int64_t timeout_ns)
{
	int64_t deadline = kvc_now_ns() + timeout_ns;
	int rc = 0;
	kvc_mutex_lock(&sm->lock);
	for (size_t i = 0; i < sm->context.n_adapters && rc == 0; i++)
		while (!sm->listings[i].is_done && rc == 0)
			rc = kvc_cond_wait_until(&sm->listed, &sm->lock, deadline);
	kvc_mutex_unlock(&sm->lock);
	return rc == 0 ? 0 : -ETIMEDOUT;
}
