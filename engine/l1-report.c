/* SPDX-License-Identifier: Apache-2.0 */

/* What is in L1 and who holds it, for people: counts, a dump, locks that expired or leaked. */

#include "engine/l1-private.h"

#include <inttypes.h>

void
kvc_l1_manager_get_counts(KvcL1Manager *m, KvcL1Counts *counts)
{
	const uint64_t *from = (const uint64_t *)&m->counts;
	uint64_t *to = (uint64_t *)counts;
	for (size_t i = 0; i < sizeof(*counts) / sizeof(uint64_t); i++)
		to[i] = __atomic_load_n(&from[i], __ATOMIC_RELAXED);
}

/* Some object of a table, referenced, or NULL. */
static KvcL1Object *
ref_any(KvcL1Shard *shard)
{
	GHashTableIter iter;
	KvcL1Object *object = NULL;
	kvc_mutex_lock(&shard->lock);
	g_hash_table_iter_init(&iter, shard->objects);
	if (g_hash_table_iter_next(&iter, NULL, (void **)&object))
		kvc_l1_object_ref(object);
	kvc_mutex_unlock(&shard->lock);
	return object;
}

double
kvc_l1_manager_measure_huge_pages(KvcL1Manager *m)
{
	kvc_listener_forbid(__func__);
	uint64_t total = 0, huge = 0;
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		/* One at a time: what is referenced cannot be evicted. */
		KvcL1Object *object = ref_any(&m->shards[i]);
		if (!object)
			continue;
		int64_t bytes = kvc_l1_object_measure_huge_bytes(object);
		total += object->charged_bytes;
		kvc_l1_object_unref(object);
		if (bytes < 0)
			return -1;
		huge += (uint64_t)bytes;
	}
	return total == 0 ? -1 : (double)huge / (double)total;
}

/* ---- Dump ---------------------------------------------------------------------------------- */

/* What a line says, taken under the shard's lock and made into text without it. */
typedef struct Entry {
	KvcObjectKey *key; /* owned, or NULL */
	KvcL1State state;
	uint64_t bytes, charged_bytes;
	unsigned read_locks;
	bool is_temporary, is_dirty, is_unreplicated, is_pinned;
	GString *holders; /* NULL: none */
} Entry;

static void
append_hold(GString *text, const KvcL1Hold *hold, int64_t now_ns)
{
	g_string_append_printf(text, "%s%s %" PRIu64, text->len > 0 ? ", " : "", hold->owner.name,
			       hold->owner.id);
	if (!hold->is_write)
		g_string_append_printf(text, " x%u", hold->count);
	g_string_append_printf(text, " %.3f s", (double)(now_ns - hold->since_ns) / KVC_SEC_NS);
}

static void
take_entry(GArray *entries, KvcL1Object *object, int64_t now_ns)
{
	bool is_staging = object->state == KVC_L1_STAGING;
	Entry entry = {
		.key = object->key ? kvc_object_key_ref(object->key) : NULL,
		.state = object->state,
		.bytes = is_staging ? 0 : object->bytes,
		.charged_bytes = __atomic_load_n(&object->charged_bytes, __ATOMIC_RELAXED),
		.read_locks = object->read_locks,
		.is_temporary = object->is_temporary,
		.is_dirty = object->is_dirty,
		.is_unreplicated = object->is_unreplicated,
		.is_pinned = object->is_pinned,
	};
	for (const KvcL1Hold *hold = object->holds; hold; hold = hold->next) {
		if (!entry.holders)
			entry.holders = g_string_new(NULL);
		append_hold(entry.holders, hold, now_ns);
	}
	g_array_append_val(entries, entry);
}

static void
take_shard(KvcL1Shard *shard, bool held_only, GArray *entries)
{
	int64_t now_ns = kvc_now_ns();
	GHashTableIter iter;
	KvcL1Object *object;
	kvc_mutex_lock(&shard->lock);
	g_hash_table_iter_init(&iter, shard->objects);
	while (!held_only && g_hash_table_iter_next(&iter, NULL, (void **)&object))
		take_entry(entries, object, now_ns);
	/* What is in no table is known by who holds it; an object with several holds comes once. */
	for (const KvcL1Hold *hold = shard->holds; hold; hold = hold->shard_next)
		if (hold == hold->object->holds &&
		    (held_only || hold->object->state != KVC_L1_RESIDENT))
			take_entry(entries, hold->object, now_ns);
	kvc_mutex_unlock(&shard->lock);
}

static const char *
state_name(KvcL1State state)
{
	static const char *const names[] = {
		[KVC_L1_STAGING] = "staging",
		[KVC_L1_RESIDENT] = "resident",
		[KVC_L1_DETACHED] = "detached",
	};
	return names[state];
}

static void
tell_entry(Entry *entry, KvcDescribeFunc func, void *user)
{
	g_autofree char *name =
		entry->key ? kvc_object_key_to_string(entry->key) : g_strdup("(no key yet)");
	g_autofree char *text = g_strdup_printf(
		"%s bytes=%" PRIu64 " charged_bytes=%" PRIu64 " read_locks=%u%s%s%s%s%s%s",
		state_name(entry->state), entry->bytes, entry->charged_bytes, entry->read_locks,
		entry->is_temporary ? " temporary" : "", entry->is_dirty ? " dirty" : "",
		entry->is_unreplicated ? " unreplicated" : "", entry->is_pinned ? " pinned" : "",
		entry->holders ? " held by " : "", entry->holders ? entry->holders->str : "");
	func(user, name, text);
	if (entry->key)
		kvc_object_key_unref(entry->key);
	if (entry->holders)
		g_string_free(entry->holders, TRUE);
}

void
kvc_l1_manager_dump(KvcL1Manager *m, bool held_only, KvcDescribeFunc func, void *user)
{
	kvc_listener_forbid(__func__);
	g_autoptr(GArray) entries = g_array_new(FALSE, FALSE, sizeof(Entry));
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		take_shard(&m->shards[i], held_only, entries);
		for (guint j = 0; j < entries->len; j++)
			tell_entry(&g_array_index(entries, Entry, j), func, user);
		g_array_set_size(entries, 0);
	}
}

/* ---- Expired locks ------------------------------------------------------------------------- */

/* Counts the expired locks of SHARD; the first that was not reported yet is described. */
static uint64_t
count_expired(KvcL1Manager *m, KvcL1Shard *shard, int64_t now_ns, uint64_t *n_new, char **first)
{
	uint64_t n = 0;
	kvc_mutex_lock(&shard->lock);
	for (KvcL1Hold *hold = shard->holds; hold; hold = hold->shard_next) {
		if (now_ns - hold->since_ns < (hold->is_write ? m->write_ttl_ns : m->read_ttl_ns))
			continue;
		n += hold->count;
		if (hold->is_reported)
			continue;
		hold->is_reported = true;
		*n_new += hold->count;
		if (!*first) {
			g_autoptr(GString) holder = g_string_new(NULL);
			const KvcObjectKey *key = hold->object->key;
			g_autofree char *name =
				key ? kvc_object_key_to_string(key) : g_strdup("(no key yet)");
			append_hold(holder, hold, now_ns);
			*first = g_strdup_printf("%s, held by %s", name, holder->str);
		}
	}
	kvc_mutex_unlock(&shard->lock);
	return n;
}

uint64_t
kvc_l1_manager_report_expired(KvcL1Manager *m, int64_t now_ns)
{
	kvc_listener_forbid(__func__);
	uint64_t n = 0, n_new = 0;
	g_autofree char *first = NULL;
	for (size_t i = 0; i < KVC_L1_SHARDS; i++)
		n += count_expired(m, &m->shards[i], now_ns, &n_new, &first);
	if (n_new > 0) {
		kvc_stats_add(m->stats, l1_expired_locks, n_new);
		g_message("l1: %" PRIu64 " more locks are held for long (they stay), one is on %s",
			  n_new, first);
	}
	return n;
}

/* ---- Leaks --------------------------------------------------------------------------------- */

static void
report_leak(const KvcL1Hold *hold)
{
	const KvcObjectKey *key = hold->object->key;
	g_autofree char *name = key ? kvc_object_key_to_string(key) : g_strdup("(no key yet)");
	g_warning("l1: leaked: %s: %u %s of %s %" PRIu64 ", %.3f s old", name, hold->count,
		  hold->is_write ? "reservation" : "read locks", hold->owner.name, hold->owner.id,
		  (double)(kvc_now_ns() - hold->since_ns) / KVC_SEC_NS);
}

void
kvc_l1_report_leaks(KvcL1Manager *m)
{
	for (size_t i = 0; i < KVC_L1_SHARDS; i++) {
		KvcL1Hold *hold;
		while ((hold = m->shards[i].holds)) {
			report_leak(hold);
			kvc_stats_add(m->stats, l1_leaked_locks, hold->count);
			if (hold->is_write)
				kvc_l1_manager_abort_write(m, hold->object);
			else
				kvc_l1_manager_finish_read_for(m, hold->object, hold->count,
							       hold->owner);
		}
	}
}
