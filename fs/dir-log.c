/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The records, with the fields escaped:
 *
 *	mkdir PATH MODE UID GID		MODE in octal; once more for other attributes
 *	rmdir PATH
 *	rename OLD NEW			with all below OLD
 */

#include "fs/dir-log.h"

#include <stdlib.h>
#include <string.h>

#define FORMAT "kvcachefs directories 1"

struct KvcfsDirLog {
	KvcRecordLog *records;
	void (*failed)(void *user);
	void *user;
	/* Protected by the log's lock. */
	GHashTable *entries; /* path (the entry's) -> KvcfsDirEntry (owned) */
};

/* ---- The table ----------------------------------------------------------------------------- */

static void
entry_free(void *data)
{
	KvcfsDirEntry *entry = data;
	g_free(entry->path);
	g_free(entry);
}

static KvcfsDirEntry *
entry_copy(const KvcfsDirEntry *entry, const char *path)
{
	KvcfsDirEntry *copy = g_memdup2(entry, sizeof(*entry));
	copy->path = g_strdup(path);
	return copy;
}

static void
put_locked(KvcfsDirLog *log, const KvcfsDirEntry *entry)
{
	KvcfsDirEntry *copy = entry_copy(entry, entry->path);
	g_hash_table_replace(log->entries, copy->path, copy);
}

/* "" for PATH itself, "/..." for what is below it, else NULL. */
static const char *
below(const char *path, const char *top)
{
	size_t len = strlen(top);
	bool is_below = strncmp(path, top, len) == 0 && (path[len] == '\0' || path[len] == '/');
	return is_below ? path + len : NULL;
}

static bool
rename_locked(KvcfsDirLog *log, const char *old_path, const char *new_path)
{
	g_autoptr(GPtrArray) moved = g_ptr_array_new_with_free_func(entry_free);
	GHashTableIter iter;
	const KvcfsDirEntry *entry;
	bool is_replaced = g_hash_table_remove(log->entries, new_path);
	g_hash_table_iter_init(&iter, log->entries);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&entry)) {
		const char *rest = below(entry->path, old_path);
		if (!rest)
			continue;
		g_autofree char *path = g_strconcat(new_path, rest, NULL);
		g_ptr_array_add(moved, entry_copy(entry, path));
		g_hash_table_iter_remove(&iter);
	}
	for (guint i = 0; i < moved->len; i++)
		put_locked(log, moved->pdata[i]);
	return is_replaced || moved->len > 0;
}

/* ---- Records ------------------------------------------------------------------------------- */

static void
format_item(void *user, const void *item, GString *text)
{
	const KvcfsDirEntry *entry = item;
	g_autofree char *path = kvc_record_field_escape(entry->path);
	g_string_append_printf(text, "mkdir %s %o %u %u", path, entry->mode & 07777, entry->uid,
			       entry->gid);
}

static bool
parse_number(const char *text, int base, unsigned *value)
{
	char *end;
	unsigned long long number = strtoull(text, &end, base);
	*value = (unsigned)number;
	return g_ascii_isdigit(text[0]) && *end == '\0' && number <= UINT32_MAX;
}

static bool
load_mkdir(KvcfsDirLog *log, char *path, char **numbers)
{
	KvcfsDirEntry entry = {.path = path};
	if (!parse_number(numbers[0], 8, &entry.mode) || entry.mode > 07777 ||
	    !parse_number(numbers[1], 10, &entry.uid) || !parse_number(numbers[2], 10, &entry.gid))
		return false;
	put_locked(log, &entry);
	return true;
}

static bool
load_record(void *user, char *record)
{
	KvcfsDirLog *log = user;
	g_auto(GStrv) fields = g_strsplit(record, " ", -1);
	unsigned n = g_strv_length(fields);
	g_autofree char *path = n > 1 ? kvc_record_field_unescape(fields[1]) : NULL;
	if (!path)
		return false;
	if (n == 5 && strcmp(fields[0], "mkdir") == 0)
		return load_mkdir(log, path, fields + 2);
	if (n == 2 && strcmp(fields[0], "rmdir") == 0) {
		g_hash_table_remove(log->entries, path);
		return true;
	}
	g_autofree char *new_path = n == 3 ? kvc_record_field_unescape(fields[2]) : NULL;
	if (!new_path || strcmp(fields[0], "rename") != 0)
		return false;
	rename_locked(log, path, new_path);
	return true;
}

static size_t
count_live(void *user)
{
	const KvcfsDirLog *log = user;
	return g_hash_table_size(log->entries);
}

static GPtrArray *
take_snapshot(void *user)
{
	const KvcfsDirLog *log = user;
	GPtrArray *items = g_ptr_array_new_with_free_func(entry_free);
	GHashTableIter iter;
	const KvcfsDirEntry *entry;
	g_hash_table_iter_init(&iter, log->entries);
	while (g_hash_table_iter_next(&iter, NULL, (void **)&entry))
		g_ptr_array_add(items, entry_copy(entry, entry->path));
	return items;
}

static void
on_progress(void *user, uint64_t synced, int error)
{
	KvcfsDirLog *log = user;
	if (error < 0)
		log->failed(log->user);
}

/* ---- Lifetime ------------------------------------------------------------------------------ */

KvcfsDirLog *
kvcfs_dir_log_open(const char *path, void (*failed)(void *user), void *user, GError **error)
{
	KvcfsDirLog *log = g_new0(KvcfsDirLog, 1);
	KvcRecordLogConfig config = {
		.path = path,
		.format = FORMAT,
		.thread_name = "kvcfs-dirlog",
		.load = load_record,
		.count_live = count_live,
		.snapshot = take_snapshot,
		.format_item = format_item,
		.progress = on_progress,
		.user = log,
	};
	log->failed = failed;
	log->user = user;
	log->entries = g_hash_table_new_full(g_str_hash, g_str_equal, NULL, entry_free);
	log->records = kvc_record_log_open(&config, error);
	if (!log->records) {
		kvcfs_dir_log_free(log);
		return NULL;
	}
	kvc_record_log_start(log->records);
	return log;
}

void
kvcfs_dir_log_free(KvcfsDirLog *log)
{
	if (!log)
		return;
	kvc_record_log_free(log->records);
	g_hash_table_unref(log->entries);
	g_free(log);
}

/* ---- What happens to directories ----------------------------------------------------------- */

static void
set_entry(KvcfsDirLog *log, const KvcfsDirEntry *entry, bool only_known)
{
	if (!log)
		return;
	g_autoptr(GString) record = g_string_new(NULL);
	format_item(NULL, entry, record);
	kvc_record_log_lock(log->records);
	if (!only_known || g_hash_table_contains(log->entries, entry->path)) {
		put_locked(log, entry);
		kvc_record_log_append(log->records, record->str);
	}
	kvc_record_log_unlock(log->records);
}

void
kvcfs_dir_log_add(KvcfsDirLog *log, const KvcfsDirEntry *entry)
{
	set_entry(log, entry, false);
}

void
kvcfs_dir_log_update(KvcfsDirLog *log, const KvcfsDirEntry *entry)
{
	set_entry(log, entry, true);
}

void
kvcfs_dir_log_remove(KvcfsDirLog *log, const char *path)
{
	if (!log)
		return;
	g_autofree char *field = kvc_record_field_escape(path);
	g_autofree char *record = g_strconcat("rmdir ", field, NULL);
	kvc_record_log_lock(log->records);
	if (g_hash_table_remove(log->entries, path))
		kvc_record_log_append(log->records, record);
	kvc_record_log_unlock(log->records);
}

void
kvcfs_dir_log_rename(KvcfsDirLog *log, const char *old_path, const char *new_path)
{
	if (!log)
		return;
	g_autofree char *old_field = kvc_record_field_escape(old_path);
	g_autofree char *new_field = kvc_record_field_escape(new_path);
	g_autofree char *record = g_strdup_printf("rename %s %s", old_field, new_field);
	kvc_record_log_lock(log->records);
	if (rename_locked(log, old_path, new_path))
		kvc_record_log_append(log->records, record);
	kvc_record_log_unlock(log->records);
}

void
kvcfs_dir_log_settle(KvcfsDirLog *log)
{
	if (log)
		kvc_record_log_settle(log->records);
}

void
kvcfs_dir_log_sync(KvcfsDirLog *log, void (*done)(void *user, int error), void *user)
{
	if (log)
		kvc_record_log_sync(log->records, done, user);
	else
		done(user, 0);
}

/* ---- Reading ------------------------------------------------------------------------------- */

static int
compare_paths(const void *a, const void *b)
{
	const KvcfsDirEntry *const *x = a, *const *y = b;
	return strcmp((*x)->path, (*y)->path);
}

void
kvcfs_dir_log_foreach(KvcfsDirLog *log,
		      void (*func)(void *user, const KvcfsDirEntry *entry),
		      void *user)
{
	if (!log)
		return;
	kvc_record_log_lock(log->records);
	g_autoptr(GPtrArray) entries = take_snapshot(log);
	kvc_record_log_unlock(log->records);
	/* A path is a prefix of all below it, so it sorts before them. */
	g_ptr_array_sort(entries, compare_paths);
	for (guint i = 0; i < entries->len; i++)
		func(user, entries->pdata[i]);
}

void
kvcfs_dir_log_get_status(KvcfsDirLog *log, KvcRecordLogStatus *status)
{
	*status = (KvcRecordLogStatus){0};
	if (log)
		kvc_record_log_get_status(log->records, status);
}
