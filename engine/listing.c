/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every adapter that can list is listed into the index, in a thread of its own, once.
 *
 * Killed between two stores of one version we leave adapters with different ones. The index shows
 * the newest, by the stamps of their commits, and hides the others. They are not deleted for it: an
 * adapter that was away during a rename has a later stamp under that name than what was renamed.
 */

#include "engine/adapter-call.h"
#include "engine/storage-manager-private.h"

#include <errno.h>

#define PAGE 256

static ssize_t
list_page(KvcListing *listing, char **cursor)
{
	KvcControllerContext *context = &listing->sm->context;
	KvcAdapterSlot *slot = &context->adapters[listing->adapter];
	KvcL2ListEntry entries[PAGE] = {0};
	ssize_t n = kvc_adapter_list(slot, NULL, cursor, entries, PAGE);
	for (ssize_t i = 0; i < n; i++) {
		KvcObjectAttributes attributes = kvc_l2_object_info_attributes(&entries[i].info);
		uint32_t older = kvc_key_index_add_with(context->index, entries[i].key,
							1u << listing->adapter,
							entries[i].info.bytes, &attributes);
		if (older)
			kvc_controller_context_note_older(context, entries[i].key, older);
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
	} while (n >= 0 && cursor && !__atomic_load_n(&listing->is_stopping, __ATOMIC_RELAXED));
	g_free(cursor);
	if (n < 0) {
		kvc_stats_add(&sm->stats, list_failed, 1);
		g_autofree char *who =
			kvc_controller_context_adapter_name(&sm->context, listing->adapter);
		g_warning("%s: listing failed: %s", who, g_strerror((int)-n));
	}
	__atomic_store_n(&sm->context.adapters[listing->adapter].is_listing, false,
			 __ATOMIC_RELEASE);
	kvc_mutex_lock(&sm->lock);
	__atomic_store_n(&listing->error, n < 0 ? (int)n : 0, __ATOMIC_RELAXED);
	listing->is_done = true;
	pthread_cond_broadcast(&sm->listed);
	kvc_mutex_unlock(&sm->lock);
	return NULL;
}

void
kvc_listing_init(KvcStorageManager *sm, size_t i)
{
	bool can_list = sm->context.adapters[i].adapter->ops->list != NULL;
	kvc_mutex_lock(&sm->lock);
	sm->listings[i] = (KvcListing){.sm = sm, .adapter = i, .is_done = !can_list};
	kvc_mutex_unlock(&sm->lock);
}

void
kvc_listing_start(KvcStorageManager *sm, size_t i)
{
	KvcListing *listing = &sm->listings[i];
	if (!sm->context.adapters[i].adapter->ops->list)
		return;
	listing->begun_ns = kvc_wall_ns();
	__atomic_store_n(&sm->context.adapters[i].is_listing, true, __ATOMIC_RELEASE);
	listing->is_running = pthread_create(&listing->thread, NULL, listing_thread, listing) == 0;
	g_assert(listing->is_running);
}

int
kvc_listing_stop(KvcStorageManager *sm, size_t i, int64_t deadline_ns)
{
	KvcListing *listing = &sm->listings[i];
	int rc = 0;
	if (!listing->is_running)
		return 0;
	__atomic_store_n(&listing->is_stopping, true, __ATOMIC_RELAXED);
	kvc_mutex_lock(&sm->lock);
	while (!listing->is_done && rc == 0)
		rc = kvc_cond_wait_until(&sm->listed, &sm->lock, deadline_ns);
	bool is_done = listing->is_done;
	kvc_mutex_unlock(&sm->lock);
	if (!is_done)
		return -ETIMEDOUT;
	pthread_join(listing->thread, NULL);
	listing->is_running = false;
	return 0;
}

int
kvc_storage_manager_wait_listed(KvcStorageManager *sm, int64_t timeout_ns)
{
	int64_t now = kvc_now_ns();
	int64_t deadline = now + MIN(timeout_ns, INT64_MAX - now);
	int rc = 0;
	kvc_mutex_lock(&sm->lock);
	for (size_t i = 0; i < kvc_controller_context_count(&sm->context) && rc == 0; i++)
		while (!sm->listings[i].is_done && rc == 0)
			rc = kvc_cond_wait_until(&sm->listed, &sm->lock, deadline);
	kvc_mutex_unlock(&sm->lock);
	return rc == 0 ? 0 : -ETIMEDOUT;
}
