/* SPDX-License-Identifier: Apache-2.0 */

/*
 * max_capacity_gb: what is in the directory, by key, and which chunks were used least recently.
 *
 * The directory is counted once at the start; stores wait for that, on no thread. From then on each
 * store takes its room before it writes: chunks go, the least recently used first, that are not
 * locked and not being stored. Plain files and chains count, but are never evicted. What others
 * store is counted when it is looked up, what others remove is forgotten when it is missed.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>

#include "fs.h"

#define PAGE 256

typedef struct Entry {
	GList link; /* in the queue; data is NULL while it is not */
	KvcObjectKey *key;
	uint64_t bytes;
} Entry;

struct FsCapacity {
	FsAdapter *fs;
	uint64_t max_bytes;

	/* Protected by lock, under which nothing else is locked and nothing blocks */
	pthread_mutex_t lock;
	GHashTable *entries; /* by key */
	GQueue queue;	     /* of the chunks, the one used last at the tail */
	uint64_t used, reserved;
	unsigned stores;    /* that have got room and not ended */
	GPtrArray *waiting; /* KvcWork, until the directory is counted; then NULL */
	GPtrArray *parked;  /* KvcWork, until one of the stores that have room ends */
	GHashTable *gone;   /* keys that were missed or removed until then; then NULL */
};

static void
entry_free(void *data)
{
	Entry *entry = data;

	kvc_object_key_unref(entry->key);
	g_free(entry);
}

FsCapacity *
fs_capacity_new(FsAdapter *fs, uint64_t max_bytes)
{
	FsCapacity *c = g_new0(FsCapacity, 1);

	c->fs = fs;
	c->max_bytes = max_bytes;
	pthread_mutex_init(&c->lock, NULL);
	c->entries =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, NULL, entry_free);
	g_queue_init(&c->queue);
	c->waiting = g_ptr_array_new();
	c->parked = g_ptr_array_new();
	c->gone = g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
					(GDestroyNotify)kvc_object_key_unref, NULL);
	return c;
}

void
fs_capacity_free(FsCapacity *c)
{
	if (!c)
		return;
	g_hash_table_unref(c->entries);
	g_clear_pointer(&c->waiting, g_ptr_array_unref);
	g_clear_pointer(&c->gone, g_hash_table_unref);
	g_ptr_array_unref(c->parked);
	pthread_mutex_destroy(&c->lock);
	g_free(c);
}

/* ---- What is there ------------------------------------------------------------------------- */

static void
unlink_locked(FsCapacity *c, Entry *entry)
{
	if (entry->link.data)
		g_queue_unlink(&c->queue, &entry->link);
	entry->link.data = NULL;
}

static void
link_locked(FsCapacity *c, Entry *entry, bool is_last)
{
	if (entry->key->space != KVC_SPACE_CHUNK)
		return;
	entry->link.data = entry;
	if (is_last)
		g_queue_push_tail_link(&c->queue, &entry->link);
	else
		g_queue_push_head_link(&c->queue, &entry->link);
}

static Entry *
add_locked(FsCapacity *c, KvcObjectKey *key, uint64_t bytes, bool is_last)
{
	Entry *entry = g_new0(Entry, 1);

	entry->key = kvc_object_key_ref(key);
	entry->bytes = bytes;
	c->used += bytes;
	g_hash_table_insert(c->entries, entry->key, entry);
	link_locked(c, entry, is_last);
	return entry;
}

static void
touch_locked(FsCapacity *c, Entry *entry)
{
	if (!entry->link.data)
		return; /* being evicted, or nothing that is */
	unlink_locked(c, entry);
	link_locked(c, entry, true);
}

static void
note_locked(FsCapacity *c, KvcObjectKey *key, uint64_t bytes)
{
	Entry *entry = g_hash_table_lookup(c->entries, key);

	if (!entry) {
		add_locked(c, key, bytes, true);
		return;
	}
	c->used += bytes - entry->bytes;
	entry->bytes = bytes;
	touch_locked(c, entry);
}

void
fs_capacity_note(FsCapacity *c, KvcObjectKey *key, uint64_t bytes)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	note_locked(c, key, bytes);
	pthread_mutex_unlock(&c->lock);
}

void
fs_capacity_settle(FsCapacity *c, KvcObjectKey *key, uint64_t bytes)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->reserved -= bytes;
	note_locked(c, key, bytes);
	pthread_mutex_unlock(&c->lock);
}

void
fs_capacity_touch(FsCapacity *c, const KvcObjectKey *key)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	Entry *entry = g_hash_table_lookup(c->entries, key);
	if (entry)
		touch_locked(c, entry);
	pthread_mutex_unlock(&c->lock);
}

void
fs_capacity_forget(FsCapacity *c, KvcObjectKey *key)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	Entry *entry = g_hash_table_lookup(c->entries, key);
	if (c->gone) /* the listing may have seen it */
		g_hash_table_add(c->gone, kvc_object_key_ref(key));
	if (entry) {
		c->used -= entry->bytes;
		unlink_locked(c, entry);
		g_hash_table_remove(c->entries, key);
	}
	pthread_mutex_unlock(&c->lock);
}

void
fs_capacity_get_usage(FsCapacity *c, KvcL2Usage *usage)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	usage->bytes_used = c->used;
	usage->objects = g_hash_table_size(c->entries);
	pthread_mutex_unlock(&c->lock);
	if (usage->capacity_bytes == 0 || usage->capacity_bytes > c->max_bytes)
		usage->capacity_bytes = c->max_bytes;
}

/* ---- Room ---------------------------------------------------------------------------------- */

/* false: no file can be removed now; that it is locked or being stored is fine. */
static bool
evict(FsCapacity *c, KvcObjectKey *key)
{
	FsAdapter *fs = c->fs;

	if (!fs_keys_begin_delete(fs, key))
		return true;
	int errnum = fs_remove_files(fs, key);
	fs_keys_end_delete(fs, key);
	if (errnum == 0) {
		atomic_fetch_add(&fs->stats.evicted, 1);
		return true;
	}
	g_autofree char *path = fs_path_format(fs, key);
	fs_note_error(fs, KVC_TASK_STORE, "evict", path, errnum);
	return false;
}

/* Evicts the chunk that was used least recently, unless it is locked. Lets go of the lock. */
static bool
evict_first_locked(FsCapacity *c)
{
	Entry *entry = c->queue.head->data;
	g_autoptr(KvcObjectKey) key = kvc_object_key_ref(entry->key);

	unlink_locked(c, entry);
	pthread_mutex_unlock(&c->lock);
	bool is_possible = evict(c, key);
	pthread_mutex_lock(&c->lock);
	/* It may have been stored anew meanwhile. */
	entry = g_hash_table_lookup(c->entries, key);
	if (entry && !entry->link.data)
		link_locked(c, entry, true);
	return is_possible;
}

/* Until USED is at most MAX_BYTES; false: what is left is locked, or is not evicted at all. */
static bool
shrink_locked(FsCapacity *c, uint64_t max_bytes)
{
	for (guint tries = c->queue.length; c->used + c->reserved > max_bytes; tries--) {
		if (tries == 0 || c->queue.length == 0 || atomic_load(&c->fs->closing) ||
		    !evict_first_locked(c))
			return false;
	}
	return true;
}

/* Each is run again. */
static void
push_all(FsCapacity *c, GPtrArray *works)
{
	for (guint i = 0; i < works->len; i++)
		kvc_pool_push(c->fs->workers, KVC_POOL_FINISH, works->pdata[i]);
	g_ptr_array_unref(works);
}

int
fs_capacity_reserve(FsCapacity *c, uint64_t bytes, KvcWork *work)
{
	int rc = 0;

	if (!c)
		return 0;
	pthread_mutex_lock(&c->lock);
	if (bytes <= c->max_bytes && shrink_locked(c, c->max_bytes - bytes)) {
		c->reserved += bytes;
		c->stores++;
	} else if (bytes <= c->max_bytes && c->stores > 0) {
		/* What is being stored can be evicted soon, or fails. */
		g_ptr_array_add(c->parked, work);
		rc = -EAGAIN;
	} else {
		rc = -ENOSPC;
	}
	pthread_mutex_unlock(&c->lock);
	return rc;
}

void
fs_capacity_release(FsCapacity *c, uint64_t bytes)
{
	if (!c)
		return;
	pthread_mutex_lock(&c->lock);
	c->reserved -= bytes;
	c->stores--;
	GPtrArray *parked = c->parked;
	c->parked = g_ptr_array_new();
	pthread_mutex_unlock(&c->lock);
	push_all(c, parked);
}

bool
fs_capacity_free_bytes(FsCapacity *c, uint64_t bytes)
{
	if (!c)
		return false;
	pthread_mutex_lock(&c->lock);
	uint64_t used = c->used + c->reserved;
	bool is_freed = used >= bytes && shrink_locked(c, used - bytes);
	pthread_mutex_unlock(&c->lock);
	return is_freed;
}

/* ---- The start ----------------------------------------------------------------------------- */

bool
fs_capacity_await_count(FsCapacity *c, KvcWork *work)
{
	if (!c)
		return false;
	pthread_mutex_lock(&c->lock);
	bool is_waiting = c->waiting;
	if (is_waiting)
		g_ptr_array_add(c->waiting, work);
	pthread_mutex_unlock(&c->lock);
	return is_waiting;
}

static int
compare_ages(const void *a, const void *b)
{
	const KvcL2ListEntry *x = a, *y = b;

	return (x->info.mtime_ns > y->info.mtime_ns) - (x->info.mtime_ns < y->info.mtime_ns);
}

/* All that is listed, its xattrs dropped. */
static GArray *
list_all(FsAdapter *fs)
{
	GArray *all = g_array_new(FALSE, FALSE, sizeof(KvcL2ListEntry));
	KvcL2ListEntry page[PAGE];
	char *cursor = NULL;
	ssize_t n;

	do {
		n = fs_list(fs, NULL, &cursor, page, PAGE);
		for (ssize_t i = 0; i < n; i++) {
			kvc_xattrs_unref(g_steal_pointer(&page[i].info.xattrs));
			g_array_append_val(all, page[i]);
		}
	} while (n >= 0 && cursor && !atomic_load(&fs->closing));
	g_free(cursor);
	return all;
}

/* The oldest come first, all of them before what this run has used. */
static void
add_all(FsCapacity *c, GArray *all)
{
	g_array_sort(all, compare_ages);
	pthread_mutex_lock(&c->lock);
	for (guint i = all->len; i > 0; i--) {
		KvcL2ListEntry *entry = &g_array_index(all, KvcL2ListEntry, i - 1);

		if (!g_hash_table_contains(c->entries, entry->key) &&
		    !g_hash_table_contains(c->gone, entry->key))
			add_locked(c, entry->key, entry->info.bytes, false);
		kvc_object_key_unref(entry->key);
	}
	g_clear_pointer(&c->gone, g_hash_table_unref);
	pthread_mutex_unlock(&c->lock);
}

/* A limit beyond what the file system has room for will never be what makes room. */
static void
warn_if_too_large(FsCapacity *c)
{
	FsAdapter *fs = c->fs;

	pthread_mutex_lock(&fs->lock);
	uint64_t free_bytes = fs->space_known ? fs->free_bytes : UINT64_MAX / 2;
	pthread_mutex_unlock(&fs->lock);
	pthread_mutex_lock(&c->lock);
	uint64_t used = c->used;
	pthread_mutex_unlock(&c->lock);
	if (c->max_bytes > used + free_bytes)
		g_warning("fs %s: max_capacity_gb is %" G_GUINT64_FORMAT
			  " bytes, but the objects and what is free are %" G_GUINT64_FORMAT " only",
			  fs->base_path, c->max_bytes, used + free_bytes);
}

void
fs_capacity_count(FsCapacity *c)
{
	if (!c)
		return;
	GArray *all = list_all(c->fs);

	add_all(c, all);
	g_array_unref(all);
	warn_if_too_large(c);
	pthread_mutex_lock(&c->lock);
	bool is_within = shrink_locked(c, c->max_bytes);
	GPtrArray *waiting = g_steal_pointer(&c->waiting);
	pthread_mutex_unlock(&c->lock);
	if (!is_within && !atomic_load(&c->fs->closing))
		g_warning("fs %s: what cannot be evicted is more than max_capacity_gb",
			  c->fs->base_path);
	push_all(c, waiting);
}
