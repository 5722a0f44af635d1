/* SPDX-License-Identifier: Apache-2.0 */

/* What the mock holds: records by key, those with data also in the order of their first store. */

#include <errno.h>

#include "mock.h"

static int
compare_sequence(const void *a, const void *b, void *user)
{
	const MockRecord *left = a, *right = b;

	return left->sequence < right->sequence ? -1 : left->sequence > right->sequence;
}

static void
record_free(MockRecord *record)
{
	kvc_object_key_unref(record->key);
	g_clear_pointer(&record->data, g_bytes_unref);
	kvc_object_attributes_clear(&record->attributes);
	g_free(record);
}

/* The record of KEY with data, or NULL. */
MockRecord *
mock_find_stored_locked(MockAdapter *mock, const KvcObjectKey *key)
{
	MockRecord *record = g_hash_table_lookup(mock->records, key);

	return record && record->data ? record : NULL;
}

MockRecord *
mock_get_record_locked(MockAdapter *mock, const KvcObjectKey *key)
{
	MockRecord *record = g_hash_table_lookup(mock->records, key);

	if (record)
		return record;
	record = g_new0(MockRecord, 1);
	record->key = kvc_object_key_ref(key);
	g_hash_table_insert(mock->records, record->key, record);
	return record;
}

/* Forgets RECORD when it says nothing any more. */
void
mock_drop_record_locked(MockAdapter *mock, MockRecord *record)
{
	if (!record->data && record->locks == 0 && record->stores == 0)
		g_hash_table_remove(mock->records, record->key);
}

void
mock_drop_data_locked(MockAdapter *mock, MockRecord *record)
{
	g_tree_remove(mock->by_sequence, record);
	mock->bytes_used -= g_bytes_get_size(record->data);
	g_clear_pointer(&record->data, g_bytes_unref);
	kvc_object_attributes_clear(&record->attributes);
	mock_drop_record_locked(mock, record);
}

/* Evicts in order of first storing until BYTES fit; locked objects and those being stored stay. */
static bool
make_room_locked(MockAdapter *mock, uint64_t bytes)
{
	GTreeNode *node = g_tree_node_first(mock->by_sequence);

	while (mock->bytes_used + bytes > mock->capacity_bytes && node) {
		MockRecord *record = g_tree_node_key(node);

		node = g_tree_node_next(node);
		if (record->locks > 0 || record->stores > 0)
			continue;
		mock_drop_data_locked(mock, record);
		mock->n_evicted++;
	}
	return mock->bytes_used + bytes <= mock->capacity_bytes;
}

void
mock_set_attributes_locked(MockRecord *record, const KvcObjectAttributes *attributes)
{
	KvcObjectAttributes old = record->attributes;

	record->attributes =
		attributes ? kvc_object_attributes_copy(attributes) : (KvcObjectAttributes){0};
	if (record->attributes.mtime_ns == 0)
		record->attributes.mtime_ns = kvc_wall_ns();
	record->attributes.version_ns = old.version_ns; /* of the bytes, which stay */
	kvc_object_attributes_clear(&old);
}

KvcL2ObjectInfo
mock_get_info_locked(const MockRecord *record)
{
	const KvcObjectAttributes *attributes = &record->attributes;

	return (KvcL2ObjectInfo){
		.bytes = g_bytes_get_size(record->data),
		.mtime_ns = attributes->mtime_ns,
		.mode = attributes->mode,
		.uid = attributes->uid,
		.gid = attributes->gid,
		.xattrs = kvc_xattrs_ref(attributes->xattrs),
		.version_ns = attributes->version_ns,
	};
}

int64_t
mock_store_object_locked(MockAdapter *mock,
			 KvcObjectKey *key,
			 GBytes *data,
			 const KvcObjectAttributes *attributes)
{
	g_autoptr(GBytes) owned = data;
	MockRecord *record = mock_get_record_locked(mock, key);
	uint64_t bytes = g_bytes_get_size(data);
	uint64_t old_bytes = record->data ? g_bytes_get_size(record->data) : 0;

	if (record->data && key->space == KVC_SPACE_CHUNK && old_bytes == bytes) {
		mock->n_skipped++;
		if (attributes)
			mock_set_attributes_locked(record, attributes);
		return 0;
	}
	mock->bytes_used -= old_bytes;
	bool fits = make_room_locked(mock, bytes);
	mock->bytes_used += fits ? bytes : old_bytes;
	if (!fits)
		return -ENOSPC;

	if (record->data) {
		g_bytes_unref(record->data);
	} else {
		record->sequence = ++mock->last_sequence;
		g_tree_insert(mock->by_sequence, record, record);
	}
	record->data = g_steal_pointer(&owned);
	mock_set_attributes_locked(record, attributes);
	record->attributes.version_ns = attributes ? attributes->version_ns : 0;
	mock->n_stores++;
	return (int64_t)bytes;
}

static bool
is_busy(const MockRecord *record)
{
	return record && (record->locks > 0 || record->stores > 0);
}

/* A record that is not busy has data, else it would be gone. */
int
mock_rename_object_locked(MockAdapter *mock, const KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	MockRecord *record = g_hash_table_lookup(mock->records, old_key);
	MockRecord *replaced = g_hash_table_lookup(mock->records, new_key);

	if (is_busy(record) || is_busy(replaced))
		return -EBUSY;
	if (!record)
		return -ENOENT;
	if (record == replaced)
		return 0;
	if (replaced)
		mock_drop_data_locked(mock, replaced);
	g_hash_table_steal(mock->records, record->key);
	kvc_object_key_unref(record->key);
	record->key = kvc_object_key_ref(new_key);
	g_hash_table_insert(mock->records, record->key, record);
	return 0;
}

void
mock_objects_init(MockAdapter *mock)
{
	mock->records = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, NULL,
					      (GDestroyNotify)record_free);
	mock->by_sequence = g_tree_new_full(compare_sequence, NULL, NULL, NULL);
}

void
mock_objects_deinit(MockAdapter *mock)
{
	g_tree_unref(mock->by_sequence);
	g_hash_table_unref(mock->records);
}
