/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Least recently used, in three classes: prefetched objects go first, those that no adapter could
 * store go when nothing else is left, all others between. Each class is a queue, its head the
 * coldest. An object appears at the tail and moves there when it is used; it keeps its class, so
 * that a prefetched object which was read still goes before what was written here.
 *
 * Victims are taken from the heads. A key that may not go now (locked, dirty) is passed over and
 * stays where it is: a selection costs its victims and what it passed over, never all that is
 * known.
 */

#include <kvcache/registry.h>

#include <pthread.h>

typedef struct LruNode {
	GList link;	   /* in its class's queue; data is the node */
	KvcObjectKey *key; /* owned reference */
	uint64_t bytes;
	KvcEvictionClass klass;
} LruNode;

struct KvcEvictionState {
	pthread_mutex_t lock;
	/* Protected by lock. */
	GHashTable *nodes; /* KvcObjectKey (the node's) -> LruNode, owned */
	GQueue queues[3];  /* by KvcEvictionClass, of LruNode */
};

static void
lru_node_free(LruNode *node)
{
	kvc_object_key_unref(node->key);
	g_free(node);
}

static KvcEvictionState *
lru_state_new(void)
{
	KvcEvictionState *state = g_new0(KvcEvictionState, 1);

	pthread_mutex_init(&state->lock, NULL);
	state->nodes = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	for (size_t i = 0; i < G_N_ELEMENTS(state->queues); i++)
		g_queue_init(&state->queues[i]);
	return state;
}

static void
lru_state_free(KvcEvictionState *state)
{
	GHashTableIter iter;
	void *node;

	g_hash_table_iter_init(&iter, state->nodes);
	while (g_hash_table_iter_next(&iter, NULL, &node)) {
		g_hash_table_iter_steal(&iter);
		lru_node_free(node);
	}
	g_hash_table_unref(state->nodes);
	pthread_mutex_destroy(&state->lock);
	g_free(state);
}

static LruNode *
lru_add_node_locked(KvcEvictionState *state, const KvcObjectKey *key)
{
	LruNode *node = g_new0(LruNode, 1);

	node->link.data = node;
	node->key = kvc_object_key_ref(key);
	g_hash_table_insert(state->nodes, node->key, node);
	return node;
}

static void
lru_created(KvcEvictionState *state,
	    const KvcObjectKey *key,
	    uint64_t bytes,
	    KvcEvictionClass klass)
{
	LruNode *node;

	pthread_mutex_lock(&state->lock);
	node = g_hash_table_lookup(state->nodes, key);
	if (node)
		g_queue_unlink(&state->queues[node->klass], &node->link);
	else
		node = lru_add_node_locked(state, key);
	node->bytes = bytes;
	node->klass = klass;
	g_queue_push_tail_link(&state->queues[klass], &node->link);
	pthread_mutex_unlock(&state->lock);
}

static void
lru_touched(KvcEvictionState *state, const KvcObjectKey *key)
{
	LruNode *node;

	pthread_mutex_lock(&state->lock);
	node = g_hash_table_lookup(state->nodes, key);
	if (node) {
		g_queue_unlink(&state->queues[node->klass], &node->link);
		g_queue_push_tail_link(&state->queues[node->klass], &node->link);
	}
	pthread_mutex_unlock(&state->lock);
}

static void
lru_removed(KvcEvictionState *state, const KvcObjectKey *key)
{
	LruNode *node;

	pthread_mutex_lock(&state->lock);
	node = g_hash_table_lookup(state->nodes, key);
	if (node) {
		g_hash_table_remove(state->nodes, key);
		g_queue_unlink(&state->queues[node->klass], &node->link);
	}
	pthread_mutex_unlock(&state->lock);
	if (node)
		lru_node_free(node);
}

static void
lru_select_victims(KvcEvictionState *state,
		   uint64_t bytes,
		   size_t count,
		   bool (*eligible)(void *user, const KvcObjectKey *key),
		   void *user,
		   GPtrArray *victims)
{
	static const KvcEvictionClass order[] = {KVC_EVICTION_FIRST, KVC_EVICTION_NORMAL,
						 KVC_EVICTION_LAST};
	uint64_t found_bytes = 0;
	size_t found = 0;

	pthread_mutex_lock(&state->lock);
	for (size_t i = 0; i < G_N_ELEMENTS(order); i++) {
		GList *link = state->queues[order[i]].head;

		for (; link && (found_bytes < bytes || found < count); link = link->next) {
			LruNode *node = link->data;

			if (!eligible(user, node->key))
				continue;
			g_ptr_array_add(victims, kvc_object_key_ref(node->key));
			found_bytes += node->bytes;
			found++;
		}
	}
	pthread_mutex_unlock(&state->lock);
}

static const KvcEvictionPolicy lru_eviction_policy = {
	.api = KVC_POLICY_API,
	.struct_size = sizeof(KvcEvictionPolicy),
	.name = "lru",
	.summary = "least recently used; prefetched objects first",
	.state_new = lru_state_new,
	.state_free = lru_state_free,
	.created = lru_created,
	.touched = lru_touched,
	.removed = lru_removed,
	.select_victims = lru_select_victims,
};

KVC_REGISTER(kvc_register_eviction_policy, lru_eviction_policy)
