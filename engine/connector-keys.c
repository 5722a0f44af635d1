/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state of keys that something is going on with; one that is idle has no entry. The locks are
 * counts on this side: they keep this mount from deleting an object, not somebody else.
 *
 * A lookup takes its lock before it asks, so that "found" means "will not be deleted". Stores of
 * one key are carried out one after the other, in the order of their submission: the queue of
 * stores waits for the one before, and for a deletion.
 */

#include "engine/connector-private.h"

typedef struct ConnectorKey {
	KvcObjectKey *key;
	unsigned locks;
	unsigned stores; /* submitted, not ended */
	bool is_storing; /* one of them has been begun */
	bool is_deleting;
	bool is_renaming; /* what is under the key changes, but something may well be there */
} ConnectorKey;

static void
key_free(void *data)
{
	ConnectorKey *state = data;

	kvc_object_key_unref(state->key);
	g_free(state);
}

GHashTable *
kvc_connector_keys_new(void)
{
	return g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, NULL, key_free);
}

static ConnectorKey *
find(KvcConnector *c, const KvcObjectKey *key)
{
	return g_hash_table_lookup(c->keys, key);
}

static ConnectorKey *
get(KvcConnector *c, KvcObjectKey *key)
{
	ConnectorKey *state = find(c, key);

	if (state)
		return state;
	state = g_new0(ConnectorKey, 1);
	state->key = kvc_object_key_ref(key);
	g_hash_table_insert(c->keys, state->key, state);
	return state;
}

static void
drop_if_idle(KvcConnector *c, ConnectorKey *state)
{
	if (state->locks == 0 && state->stores == 0 && !state->is_deleting)
		g_hash_table_remove(c->keys, state->key);
}

bool
kvc_connector_lock_key_locked(KvcConnector *c, KvcObjectKey *key, bool *is_renamed)
{
	ConnectorKey *state = get(c, key);

	*is_renamed = state->is_renaming;
	if (state->is_deleting)
		return false;
	state->locks++;
	return true;
}

void
kvc_connector_unlock_key_locked(KvcConnector *c, const KvcObjectKey *key)
{
	ConnectorKey *state = find(c, key);

	if (!state || state->locks == 0)
		return;
	state->locks--;
	drop_if_idle(c, state);
}

void
kvc_connector_add_store_locked(KvcConnector *c, KvcObjectKey *key)
{
	get(c, key)->stores++;
}

bool
kvc_connector_may_store_locked(KvcConnector *c, const KvcObjectKey *key)
{
	ConnectorKey *state = find(c, key);

	return !state->is_storing && !state->is_deleting;
}

void
kvc_connector_begin_store_locked(KvcConnector *c, const KvcObjectKey *key, bool begun)
{
	find(c, key)->is_storing = begun;
}

void
kvc_connector_end_store_locked(KvcConnector *c, const KvcObjectKey *key)
{
	ConnectorKey *state = find(c, key);

	state->stores--;
	drop_if_idle(c, state);
}

bool
kvc_connector_begin_delete_locked(KvcConnector *c, KvcObjectKey *key, bool is_rename)
{
	ConnectorKey *state = get(c, key);

	if (state->locks > 0 || state->stores > 0 || state->is_deleting)
		return false;
	state->is_deleting = true;
	state->is_renaming = is_rename;
	return true;
}

void
kvc_connector_end_delete_locked(KvcConnector *c, const KvcObjectKey *key)
{
	ConnectorKey *state = find(c, key);

	state->is_deleting = state->is_renaming = false;
	drop_if_idle(c, state);
	pthread_cond_broadcast(&c->work);
}

uint64_t
kvc_connector_count_locks_locked(KvcConnector *c)
{
	GHashTableIter iter;
	gpointer state;
	uint64_t locks = 0;

	g_hash_table_iter_init(&iter, c->keys);
	while (g_hash_table_iter_next(&iter, NULL, &state))
		locks += ((ConnectorKey *)state)->locks;
	return locks;
}
