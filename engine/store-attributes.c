/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Attributes that change after an object was stored. The index is where they are; a change only
 * says that an adapter is behind, and what is set is what the index has when the adapter's turn
 * comes. On each adapter that never overlaps a store or a deletion of the key: a change that
 * overtakes a store in flight is told when that ended, and a store that has not begun brings the
 * change along.
 */

#include "engine/adapter-call.h"
#include "engine/store-private.h"

#include <errno.h>

/* How often a streak of failures is in the log, for each adapter. */
#define LOG_NS (60 * KVC_SEC_NS)

void
kvc_store_attributes_changed(KvcStoreController *c, KvcObjectKey *key)
{
	KvcObjectInfo info;
	if (kvc_key_index_get(c->context->index, key, &info) < 0)
		return;
	KvcStoreRecord *r = kvc_store_record_get(c, key);
	uint32_t behind = 0;
	/* The index names one that goes until it is gone. */
	for (uint32_t bits = (info.tiers | r->busy) & c->active; bits; bits &= bits - 1) {
		size_t a = (size_t)__builtin_ctz(bits);
		if (kvc_store_ops(c, a)->set_attributes)
			behind |= 1u << a;
	}
	if (behind && !(r->attributes_todo | r->attributes_busy))
		r->attributes_order = ++c->last_order;
	r->attributes_todo |= behind;
	kvc_store_record_advance(c, r);
}

void
kvc_store_attributes_advance(KvcStoreController *c, KvcStoreRecord *r)
{
	uint32_t waits = r->todo | r->busy | r->waiting | r->attributes_busy | r->delete_syncing |
			 kvc_store_record_deleting(r);
	uint32_t begin = r->attributes_todo & ~waits;
	begin &= ~kvc_store_rename_blocks(r, begin);
	r->attributes_todo &= ~begin;
	r->attributes_busy |= begin;
	for (size_t a = 0; a < c->n_adapters; a++)
		if (begin & (1u << a))
			kvc_store_deleter_submit_attributes(c->deleters[a], r->key);
}

void
kvc_store_attributes_apply(KvcStoreController *c, size_t adapter, KvcObjectKey *key)
{
	KvcAdapterSlot *slot = &c->context->adapters[adapter];
	KvcObjectAttributes attributes;
	KvcStoreMessage *message = g_new0(KvcStoreMessage, 1);
	message->type = KVC_STORE_MESSAGE_ATTRIBUTES_SET;
	message->adapter = adapter;
	message->key = kvc_object_key_ref(key);
	message->error = kvc_key_index_get_attributes(c->context->index, key, &attributes);
	if (message->error == 0) {
		message->error = kvc_adapter_set_attributes(slot, key, &attributes);
		kvc_object_attributes_clear(&attributes);
	}
	if (!kvc_store_controller_post(c, message)) {
		kvc_object_key_unref(message->key);
		g_free(message);
	}
}

static void
log_failure(KvcStoreController *c, const KvcStoreMessage *message)
{
	int64_t now = kvc_now_ns(), *logged_ns = &c->attributes_logged_ns[message->adapter];
	if (*logged_ns && now - *logged_ns < LOG_NS)
		return;
	*logged_ns = now;
	g_autofree char *name = kvc_object_key_to_string(message->key);
	g_autofree char *who = kvc_controller_context_adapter_name(c->context, message->adapter);
	g_warning("%s could not set the attributes of %s: %s", who, name,
		  g_strerror(-message->error));
}

void
kvc_store_attributes_set(KvcStoreController *c, const KvcStoreMessage *message)
{
	KvcStoreRecord *r = kvc_store_rename_find_setting(c, message->key, 1u << message->adapter);
	r->attributes_busy &= ~(1u << message->adapter);
	if (message->error == 0) {
		kvc_stats_add(c->context->stats, attributes_set, 1);
	} else if (message->error != -ENOENT) {
		kvc_stats_add(c->context->stats, attributes_failed, 1);
		log_failure(c, message);
	}
	kvc_store_record_advance(c, r);
}
