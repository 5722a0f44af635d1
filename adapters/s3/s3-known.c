/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What is known of the store's objects: about how much there is, and which are damaged. Those are
 * not there any more until they are stored again: else a chunk of the right size would never be
 * replaced.
 */

#include "s3.h"

/* More than these are a store that is of no use. */
#define MAX_DAMAGED 10000

bool
s3_is_damaged(S3Store *store, const char *name, const char *etag)
{
	pthread_mutex_lock(&store->lock);
	const char *known = g_hash_table_lookup(store->damaged, name);
	bool is_damaged = known && !g_strcmp0(known, etag);
	pthread_mutex_unlock(&store->lock);
	return is_damaged;
}

void
s3_note_damaged(S3Store *store, const char *name, const char *etag)
{
	pthread_mutex_lock(&store->lock);
	if (!etag)
		g_hash_table_remove(store->damaged, name);
	else if (g_hash_table_size(store->damaged) < MAX_DAMAGED)
		g_hash_table_replace(store->damaged, g_strdup(name), g_strdup(etag));
	pthread_mutex_unlock(&store->lock);
}

void
s3_note_usage(S3Store *store, int64_t bytes)
{
	KvcL2Usage *usage = &store->usage;

	pthread_mutex_lock(&store->lock);
	if (bytes >= 0) {
		usage->bytes_used += (uint64_t)bytes;
		usage->objects++;
	} else if (usage->objects > 0) {
		usage->bytes_used -= usage->bytes_used / usage->objects;
		usage->objects--;
	}
	pthread_mutex_unlock(&store->lock);
}
