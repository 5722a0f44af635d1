/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Three kinds of records:
 *
 *	adapter ADAPTER TYPE LOCATION	for those who read the file, and for messages
 *	delete ADAPTER KEY
 *	gone ADAPTER KEY
 *
 * ADAPTER is a hash of the adapter's type and location, so that a record needs no other one to be
 * understood: a deletion is done on the store it was meant for, whatever the index of its adapter
 * is now, and kept while that store is not configured.
 *
 * A replay must not delete what was stored after the deletion. "delete" is written before the
 * unlink is answered (settle), and the adapter's confirmation is written as "gone". Were "gone"
 * lost in a crash, the replay would delete the object that somebody has stored under the key since.
 * So the order is: "gone" is synced, then the store of that key to that adapter is submitted; the
 * StoreController waits for the position that confirm returns (store-logged.c). A clock is not
 * asked: comparing times of two machines, or of one whose clock was set, would decide wrongly. Only
 * a "gone" that is damaged later can make a replay delete too much: an object that is missing is a
 * miss, an object that returns is worse.
 *
 * Only this engine's stores are meant: what another host has stored in a shared store since is
 * deleted by a replay, as it would be by a deletion that took as long.
 *
 * While the log fails, "gone" cannot be written. Where "delete" never came into the file either, no
 * replay can happen and nothing waits; else the store of that key waits until the log can be
 * written, or is given up as behind an adapter that does not delete.
 *
 * A deletion has an id, in memory only: an adapter's confirmation of one deletion is none of a
 * second one that was added meanwhile.
 */

#include "engine/deletion-log.h"

#include "engine/lock.h"
#include "kvcache/key-codec.h"
#include "kvcache/record-log.h"

#include <string.h>

#define FORMAT "kvcachefs deletions 1"
#define ID_DIGITS 16

/* Of one key on one adapter. */
typedef struct Deletion {
	uint64_t id;
	uint64_t position; /* of its record; 0: it is from the file */
} Deletion;

/* A store that deletions are meant for. */
typedef struct Store {
	char *id; /* ID_DIGITS of hex */
	char *type, *location;
	bool can_delete;
	bool is_attached;    /* it is an adapter now */
	GHashTable *pending; /* Protected by the log's lock: key (owned) -> Deletion (owned) */
} Store;

struct KvcDeletionLog {
	KvcStats *stats;
	KvcRecordLog *records;
	void (*progress)(void *user, uint64_t synced, int error);
	void *user;
	/* Protected by the log's lock. Stores only come. */
	GPtrArray *stores;
	Store *adapters[KVC_MAX_ADAPTERS]; /* by index, or NULL */
	uint64_t last_id, last_position;
};

/* ---- Stores -------------------------------------------------------------------------------- */

static void
store_free(void *data)
{
	Store *store = data;
	g_hash_table_unref(store->pending);
	g_free(store->id);
	g_free(store->type);
	g_free(store->location);
	g_free(store);
}

static Store *
add_store(KvcDeletionLog *log, const char *id, const char *type, const char *location)
{
	Store *store = g_new0(Store, 1);
	store->id = g_strdup(id);
	store->type = g_strdup(type);
	store->location = g_strdup(location);
	store->pending = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					       (GDestroyNotify)kvc_object_key_unref, g_free);
	g_ptr_array_add(log->stores, store);
	return store;
}

static Store *
find_store(KvcDeletionLog *log, const char *id)
{
	for (guint i = 0; i < log->stores->len; i++) {
		Store *store = log->stores->pdata[i];
		if (strcmp(store->id, id) == 0)
			return store;
	}
	return NULL;
}

/* The id of the N-th adapter with this type and location; two with the same are told apart. */
static char *
id_of(const char *type, const char *location, unsigned n)
{
	g_autofree char *text = n == 0 ? g_strdup_printf("%s %s", type, location)
				       : g_strdup_printf("%s %s %u", type, location, n);
	char *id = g_compute_checksum_for_string(G_CHECKSUM_SHA256, text, -1);
	id[ID_DIGITS] = '\0';
	return id;
}

static void
take_location(void *user, const char *name, const char *value)
{
	char **location = user;
	if (strcmp(name, "location") == 0 && !*location)
		*location = g_strdup(value);
}

/* The first id of this type and location that no adapter has. */
static char *
free_id_locked(KvcDeletionLog *log, const char *type, const char *location)
{
	for (unsigned n = 0;; n++) {
		char *id = id_of(type, location, n);
		const Store *store = find_store(log, id);
		if (!store || !store->is_attached)
			return id;
		g_free(id);
	}
}

static Store *
attach_locked(KvcDeletionLog *log, size_t index, KvcL2Adapter *adapter, const char *location)
{
	const char *type = adapter->ops->type_name;
	g_autofree char *id = free_id_locked(log, type, location);
	Store *store = find_store(log, id);
	if (!store) {
		store = add_store(log, id, type, location);
	} else if (!store->type) {
		store->type = g_strdup(type);
		store->location = g_strdup(location);
	}
	store->can_delete = adapter->ops->delete_keys != NULL;
	store->is_attached = true;
	log->adapters[index] = store;
	return store;
}

static char *
location_of(KvcL2Adapter *adapter)
{
	char *location = NULL;
	adapter->ops->describe(adapter, take_location, &location);
	return location ? location : g_strdup("");
}

static uint64_t
count_locked(const KvcDeletionLog *log, bool unknown_only)
{
	uint64_t n = 0;
	for (guint i = 0; i < log->stores->len; i++) {
		const Store *store = log->stores->pdata[i];
		if (!unknown_only || !store->is_attached)
			n += g_hash_table_size(store->pending);
	}
	return n;
}

/* ---- Records ------------------------------------------------------------------------------- */

static char *
record_of(const char *what, const Store *store, const KvcObjectKey *key)
{
	g_autofree char *text = kvc_object_key_serialize(key);
	return g_strdup_printf("%s %s %s", what, store->id, text);
}

static char *
adapter_record_of(const Store *store)
{
	g_autofree char *type = kvc_record_field_escape(store->type);
	g_autofree char *location = kvc_record_field_escape(store->location);
	return g_strdup_printf("adapter %s %s %s", store->id, type, location);
}

static void
append(KvcDeletionLog *log, const char *what, const Store *store, const KvcObjectKey *key)
{
	g_autofree char *record = record_of(what, store, key);
	log->last_position = kvc_record_log_append(log->records, record);
}

static bool
load_adapter(KvcDeletionLog *log, const char *id, char *rest)
{
	char *blank = strchr(rest, ' ');
	if (!blank)
		return false;
	*blank = '\0';
	g_autofree char *type = kvc_record_field_unescape(rest);
	g_autofree char *location = kvc_record_field_unescape(blank + 1);
	if (!type || !location)
		return false;
	Store *store = find_store(log, id);
	if (!store) {
		add_store(log, id, type, location);
	} else if (!store->type) {
		store->type = g_steal_pointer(&type);
		store->location = g_steal_pointer(&location);
	}
	return true;
}

static bool
load_record(void *user, char *record)
{
	KvcDeletionLog *log = user;
	char *id = strchr(record, ' ');
	char *rest = id ? strchr(id + 1, ' ') : NULL;
	if (!rest || rest - id != ID_DIGITS + 1)
		return false;
	*id++ = *rest++ = '\0';
	if (strcmp(record, "adapter") == 0)
		return load_adapter(log, id, rest);
	g_autoptr(KvcObjectKey) key = kvc_object_key_deserialize(rest);
	bool is_delete = strcmp(record, "delete") == 0;
	if (!key || (!is_delete && strcmp(record, "gone") != 0))
		return false;
	Store *store = find_store(log, id);
	if (!store)
		store = add_store(log, id, NULL, NULL);
	if (is_delete) {
		Deletion *deletion = g_new0(Deletion, 1);
		deletion->id = ++log->last_id;
		g_hash_table_replace(store->pending, kvc_object_key_ref(key), deletion);
	} else {
		g_hash_table_remove(store->pending, key);
	}
	return true;
}

/* KEY NULL: the record that says what STORE is. */
typedef struct Item {
	const Store *store;
	KvcObjectKey *key; /* owned */
} Item;

static void
item_free(void *data)
{
	Item *item = data;
	if (item->key)
		kvc_object_key_unref(item->key);
	g_free(item);
}

static void
add_item(GPtrArray *items, const Store *store, KvcObjectKey *key)
{
	Item *item = g_new(Item, 1);
	*item = (Item){store, key ? kvc_object_key_ref(key) : NULL};
	g_ptr_array_add(items, item);
}

static GPtrArray *
take_snapshot(void *user)
{
	KvcDeletionLog *log = user;
	GPtrArray *items = g_ptr_array_new_with_free_func(item_free);
	for (guint i = 0; i < log->stores->len; i++) {
		Store *store = log->stores->pdata[i];
		GHashTableIter iter;
		KvcObjectKey *key;
		if (store->type && (store->is_attached || g_hash_table_size(store->pending) > 0))
			add_item(items, store, NULL);
		g_hash_table_iter_init(&iter, store->pending);
		while (g_hash_table_iter_next(&iter, (void **)&key, NULL))
			add_item(items, store, key);
	}
	return items;
}

static void
format_item(void *user, const void *data, GString *text)
{
	const Item *item = data;
	if (item->key) {
		g_autofree char *record = record_of("delete", item->store, item->key);
		g_string_append(text, record);
		return;
	}
	g_autofree char *record = adapter_record_of(item->store);
	g_string_append(text, record);
}

static size_t
count_live(void *user)
{
	const KvcDeletionLog *log = user;
	return count_locked(log, false) + log->stores->len;
}

static void
on_progress(void *user, uint64_t synced, int error)
{
	KvcDeletionLog *log = user;
	if (error < 0)
		kvc_stats_add(log->stats, deletion_log_errors, 1);
	if (log->progress)
		log->progress(log->user, synced, error);
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

static void
report_unknown(const KvcDeletionLog *log)
{
	for (guint i = 0; i < log->stores->len; i++) {
		const Store *store = log->stores->pdata[i];
		unsigned n = g_hash_table_size(store->pending);
		if (n > 0 && !store->is_attached)
			g_message("%u deletions are kept for a store that is not configured: %s %s",
				  n, store->type ? store->type : "type unknown",
				  store->location ? store->location : "");
	}
}

KvcDeletionLog *
kvc_deletion_log_open(const char *path, const KvcControllerContext *context, GError **error)
{
	KvcDeletionLog *log = g_new0(KvcDeletionLog, 1);
	KvcRecordLogConfig config = {
		.path = path,
		.format = FORMAT,
		.thread_name = "kvc-dellog",
		.load = load_record,
		.count_live = count_live,
		.snapshot = take_snapshot,
		.format_item = format_item,
		.progress = on_progress,
		.user = log,
	};
	log->stats = context->stats;
	log->stores = g_ptr_array_new_with_free_func(store_free);
	for (size_t i = 0; i < context->n_adapters; i++) {
		KvcL2Adapter *adapter = context->adapters[i].adapter;
		g_autofree char *location = location_of(adapter);
		attach_locked(log, i, adapter, location);
	}
	log->records = kvc_record_log_open(&config, error);
	if (!log->records) {
		kvc_deletion_log_free(log);
		return NULL;
	}
	KvcRecordLogStatus status;
	kvc_record_log_get_status(log->records, &status);
	kvc_stats_add(log->stats, deletion_log_errors, status.errors);
	kvc_stats_add(log->stats, deletion_log_corrupt, status.corrupt);
	report_unknown(log);
	return log;
}

void
kvc_deletion_log_start(KvcDeletionLog *log,
		       void (*progress)(void *user, uint64_t synced, int error),
		       void *user)
{
	if (!log)
		return;
	log->progress = progress;
	log->user = user;
	kvc_record_log_start(log->records);
}

void
kvc_deletion_log_free(KvcDeletionLog *log)
{
	if (!log)
		return;
	kvc_record_log_free(log->records);
	g_ptr_array_unref(log->stores);
	g_free(log);
}

void
kvc_deletion_log_replay(KvcDeletionLog *log,
			void (*func)(void *user, KvcObjectKey *key, size_t adapter, uint64_t id),
			void *user)
{
	for (size_t i = 0; log && i < KVC_MAX_ADAPTERS; i++) {
		const Store *store = log->adapters[i];
		if (!store)
			continue;
		GHashTableIter iter;
		KvcObjectKey *key;
		Deletion *deletion;
		g_hash_table_iter_init(&iter, store->pending);
		while (g_hash_table_iter_next(&iter, (void **)&key, (void **)&deletion)) {
			kvc_stats_add(log->stats, deletes_replayed, 1);
			func(user, key, i, deletion->id);
		}
	}
}

typedef struct Replayed {
	KvcObjectKey *key; /* owned */
	uint64_t id;
} Replayed;

static GArray *
list_pending_locked(const Store *store)
{
	GArray *list = g_array_new(FALSE, FALSE, sizeof(Replayed));
	GHashTableIter iter;
	KvcObjectKey *key;
	Deletion *deletion;
	g_hash_table_iter_init(&iter, store->pending);
	while (g_hash_table_iter_next(&iter, (void **)&key, (void **)&deletion)) {
		Replayed replayed = {kvc_object_key_ref(key), deletion->id};
		g_array_append_val(list, replayed);
	}
	return list;
}

void
kvc_deletion_log_attach(KvcDeletionLog *log,
			size_t index,
			KvcL2Adapter *adapter,
			void (*func)(void *user, KvcObjectKey *key, size_t adapter, uint64_t id),
			void *user)
{
	if (!log)
		return;
	g_autofree char *location = location_of(adapter);
	kvc_record_log_lock(log->records);
	Store *store = attach_locked(log, index, adapter, location);
	g_autofree char *record = adapter_record_of(store);
	log->last_position = kvc_record_log_append(log->records, record);
	g_autoptr(GArray) list = list_pending_locked(store);
	kvc_record_log_unlock(log->records);
	for (guint i = 0; i < list->len; i++) {
		Replayed *replayed = &g_array_index(list, Replayed, i);
		kvc_stats_add(log->stats, deletes_replayed, 1);
		func(user, replayed->key, index, replayed->id);
		kvc_object_key_unref(replayed->key);
	}
}

void
kvc_deletion_log_detach(KvcDeletionLog *log, size_t index)
{
	if (!log)
		return;
	kvc_record_log_lock(log->records);
	log->adapters[index]->is_attached = false;
	log->adapters[index] = NULL;
	kvc_record_log_unlock(log->records);
}

/* ---- Deletions ----------------------------------------------------------------------------- */

uint64_t
kvc_deletion_log_add(KvcDeletionLog *log, KvcObjectKey *key, uint32_t adapters)
{
	if (!log)
		return 0;
	kvc_record_log_lock(log->records);
	uint64_t id = ++log->last_id;
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		Store *store = log->adapters[i];
		if (!store || !(adapters & (1u << i)) || !store->can_delete)
			continue;
		append(log, "delete", store, key);
		Deletion *deletion = g_new(Deletion, 1);
		*deletion = (Deletion){id, log->last_position};
		/* An older one may be in the file: whoever confirms this one confirms both. */
		const Deletion *older = g_hash_table_lookup(store->pending, key);
		if (older)
			deletion->position = older->position;
		g_hash_table_replace(store->pending, kvc_object_key_ref(key), deletion);
	}
	kvc_record_log_unlock(log->records);
	return id;
}

void
kvc_deletion_log_settle(KvcDeletionLog *log)
{
	if (log)
		kvc_record_log_settle(log->records);
}

bool
kvc_deletion_log_confirm(
	KvcDeletionLog *log, KvcObjectKey *key, size_t adapter, uint64_t id, uint64_t *position)
{
	bool is_newest = true;
	*position = 0;
	if (!log)
		return true;
	kvc_record_log_lock(log->records);
	Store *store = log->adapters[adapter];
	const Deletion *deletion = g_hash_table_lookup(store->pending, key);
	if (deletion && deletion->id > id) {
		is_newest = false;
	} else if (deletion) {
		if (kvc_record_log_is_kept(log->records, deletion->position)) {
			append(log, "gone", store, key);
			*position = log->last_position;
		}
		g_hash_table_remove(store->pending, key);
	}
	kvc_record_log_unlock(log->records);
	return is_newest;
}

/* ---- The rest ------------------------------------------------------------------------------ */

void
kvc_deletion_log_request_sync(KvcDeletionLog *log)
{
	if (log)
		kvc_record_log_request_sync(log->records);
}

void
kvc_deletion_log_sync(KvcDeletionLog *log, void (*done)(void *user, int error), void *user)
{
	if (log)
		kvc_record_log_sync(log->records, done, user);
	else
		done(user, 0);
}

void
kvc_deletion_log_get_status(KvcDeletionLog *log, KvcDeletionLogStatus *status)
{
	*status = (KvcDeletionLogStatus){.state = "none"};
	if (!log)
		return;
	KvcRecordLogStatus records;
	kvc_record_log_get_status(log->records, &records);
	status->is_failing = records.error != 0;
	status->state = records.error ? g_strerror(-records.error) : "ok";
	status->errors = records.errors;
	status->corrupt = records.corrupt;
	kvc_record_log_lock(log->records);
	status->pending = count_locked(log, false);
	status->unknown = count_locked(log, true);
	kvc_record_log_unlock(log->records);
}
