/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Every adapter that can list is listed into the index, in a thread of its own, once.
 *
 * Killed between two stores of one version we leave adapters with different ones. The index shows
 * the newest, by the stamps of their commits, and hides the others. At the end of the listing they
 * are deleted, but not from a shared store: its other users have clocks of their own, and see to it
 * themselves.
 */

#include "engine/adapter-call.h"
#include "engine/storage-manager-private.h"
#include "engine/store-controller.h"

#include <errno.h>

#define PAGE 256

typedef struct Older {
	KvcObjectKey *key; /* owned */
	uint32_t adapters;
} Older;

static void
older_clear(void *data)
{
	kvc_object_key_unref(((Older *)data)->key);
}

static void
note_older(KvcStorageManager *sm, GArray *all, KvcObjectKey *key, uint32_t tiers)
{
	Older older = {kvc_object_key_ref(key), tiers & ~KVC_TIER_L1};
	g_array_append_val(all, older);
	kvc_controller_context_note_older(&sm->context, key, tiers);
}

static void
delete_older(KvcStorageManager *sm, const Older *older)
{
	KvcControllerContext *context = &sm->context;
	kvc_rwlock_lock_shared(&sm->adapters_lock);
	uint32_t adapters = older->adapters & kvc_controller_context_active(context) &
			    kvc_key_index_hidden_from(context->index, older->key);
	for (uint32_t bits = adapters; bits; bits &= bits - 1)
		if (context->adapters[__builtin_ctz(bits)].is_shared)
			adapters &= ~(bits & -bits);
	if (adapters) {
		uint64_t id = kvc_storage_manager_add_deletion(sm, older->key, adapters);
		kvc_key_index_hide_from(context->index, older->key, adapters, id);
		kvc_store_controller_submit_delete(sm->store, older->key, adapters, id);
	}
	kvc_rwlock_unlock(&sm->adapters_lock);
}

static ssize_t
list_page(KvcListing *listing, char **cursor, GArray *all_older)
{
	KvcControllerContext *context = &listing->sm->context;
	KvcAdapterSlot *slot = &context->adapters[listing->adapter];
	KvcL2ListEntry entries[PAGE] = {0};
	ssize_t n = kvc_adapter_list(slot, cursor, entries, PAGE);
	for (ssize_t i = 0; i < n; i++) {
		KvcObjectAttributes attributes = kvc_l2_object_info_attributes(&entries[i].info);
		uint32_t older = kvc_key_index_add_with(context->index, entries[i].key,
							1u << listing->adapter,
							entries[i].info.bytes, &attributes);
		if (older)
			note_older(listing->sm, all_older, entries[i].key, older);
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
	g_autoptr(GArray) older = g_array_new(FALSE, FALSE, sizeof(Older));
	char *cursor = NULL;
	ssize_t n;
	g_array_set_clear_func(older, older_clear);
	pthread_setname_np(pthread_self(), "kvc-list");
	do {
		n = list_page(listing, &cursor, older);
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
	for (guint i = 0; i < older->len; i++)
		delete_older(sm, &g_array_index(older, Older, i));
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
