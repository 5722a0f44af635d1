/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_FAKE_ADAPTER_H
#define TESTS_UNIT_FAKE_ADAPTER_H

/*
 * A scripted adapter that does nothing by itself. A task is executed when it is submitted, or,
 * while its kind is held, when the test releases it; so every order of events can be made. The
 * adapter counts what it is asked and every breach of the interface's contract.
 */

#include "engine/controller-context.h"
#include "engine/lock.h"
#include "kvcache/io.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

/* Waits up to ten seconds for what other threads do, which need not last. */
#define wait_until(condition)                                                                      \
	do {                                                                                       \
		int64_t until_ = kvc_now_ns() + 10 * KVC_SEC_NS;                                   \
		bool is_met_;                                                                      \
		while (!(is_met_ = (condition)) && kvc_now_ns() < until_)                          \
			nap(1);                                                                    \
		if (!is_met_)                                                                      \
			fail_msg("waited in vain for: %s", #condition);                            \
	} while (0)

static inline void
nap(unsigned ms)
{
	struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = (ms % 1000) * 1000000};
	nanosleep(&time, NULL);
}

/* ---- The adapter --------------------------------------------------------------------------- */

typedef enum { FAKE_STORE, FAKE_LOOKUP, FAKE_LOAD, FAKE_KINDS } FakeKind;

typedef struct FakeObject {
	GBytes *data; /* NULL: absent */
	int64_t mtime_ns;
	KvcObjectAttributes attributes; /* of the last store or set */
	int locks;
	int stores, deletes; /* going on; renames count as deletions */
} FakeObject;

typedef struct FakeTask {
	KvcL2TaskId id;
	FakeKind kind;
	GPtrArray *keys;
	KvcMemoryObj *objects;
	bool is_done;
	int64_t result;
	KvcBitmap *bits;
	KvcL2ObjectInfo *info;
} FakeTask;

typedef struct FakeAdapter {
	KvcL2Adapter base;
	KvcL2AdapterOps ops;
	int fds[FAKE_KINDS];
	pthread_mutex_t lock;
	pthread_cond_t changed;
	/* Protected by lock. */
	GHashTable *objects;
	GPtrArray *tasks; /* in order of submission, until queried */
	KvcL2TaskId last_id;
	bool hold[FAKE_KINDS];
	bool rude[FAKE_KINDS];					 /* queries answer -ENOENT */
	bool refuse[FAKE_KINDS];				 /* submits answer 0 */
	int fail_stores, fail_loads, fail_deletes, fail_renames; /* the next so many */
	int fail_attributes;
	int store_error;	       /* what failed stores say; 0: EIO */
	const KvcObjectKey *bad_store; /* stores of this one fail, and of what is with it */
	bool hold_deletes, hold_renames;
	bool is_unreachable;  /* lookups cannot say whether they would find it */
	GHashTable *bad_keys; /* loads of these fail */
	GArray *batches;      /* sizes of store tasks, in keys */
	GPtrArray *log;	      /* "store KEY", "load KEY", "delete KEY" as submitted */
	bool mixed_sizes, mixed_scopes;
	int n_locks;
	/* Breaches of the contract. */
	int bad_queries, bad_unlocks, overlaps;
} FakeAdapter;

static inline FakeObject *
fake_object(FakeAdapter *fake, const KvcObjectKey *key)
{
	FakeObject *object = g_hash_table_lookup(fake->objects, key);
	if (!object) {
		object = g_new0(FakeObject, 1);
		g_hash_table_insert(fake->objects, kvc_object_key_ref(key), object);
	}
	return object;
}

static inline void
fake_object_free(void *data)
{
	FakeObject *object = data;
	g_clear_pointer(&object->data, g_bytes_unref);
	kvc_object_attributes_clear(&object->attributes);
	g_free(object);
}

static inline void
fake_task_free(void *data)
{
	FakeTask *task = data;
	g_ptr_array_unref(task->keys);
	g_free(task->objects);
	g_free(task->info);
	kvc_bitmap_free(task->bits);
	g_free(task);
}

static inline void
fake_log(FakeAdapter *fake, const char *what, const KvcObjectKey *key)
{
	g_autofree char *hex = kvc_object_key_hash_hex(key);
	g_ptr_array_add(fake->log, g_strdup_printf("%s %s", what, hex));
}

static inline void
fake_keep_attributes(FakeObject *object, const KvcObjectAttributes *attributes)
{
	kvc_object_attributes_clear(&object->attributes);
	if (attributes)
		object->attributes = kvc_object_attributes_copy(attributes);
}

static inline void
fake_run_store(FakeAdapter *fake, FakeTask *task)
{
	bool fails = fake->fail_stores > 0;
	fake->fail_stores -= fails;
	for (guint i = 0; fake->bad_store && i < task->keys->len; i++)
		fails |= kvc_object_key_equal(task->keys->pdata[i], fake->bad_store);
	task->result = !fails ? 0 : fake->store_error ? -fake->store_error : -EIO;
	for (guint i = 0; i < task->keys->len; i++) {
		FakeObject *object = fake_object(fake, task->keys->pdata[i]);
		object->stores--;
		if (fails)
			continue;
		g_clear_pointer(&object->data, g_bytes_unref);
		object->data = g_bytes_new(task->objects[i].data, task->objects[i].bytes);
		object->mtime_ns = 1;
		fake_keep_attributes(object, task->objects[i].attributes);
		task->result += (int64_t)task->objects[i].bytes;
	}
}

static inline void
fake_run_lookup(FakeAdapter *fake, FakeTask *task)
{
	for (guint i = 0; i < task->keys->len; i++) {
		FakeObject *object = fake_object(fake, task->keys->pdata[i]);
		if (fake->is_unreachable)
			task->info[i].mtime_ns = KVC_L2_NOT_ASKED;
		if (fake->is_unreachable || !object->data)
			continue;
		object->locks++;
		fake->n_locks++;
		kvc_bitmap_set(task->bits, i);
		task->info[i].bytes = g_bytes_get_size(object->data);
		task->info[i].mtime_ns = object->mtime_ns;
		task->info[i].version_ns = object->attributes.version_ns;
	}
}

static inline void
fake_run_load(FakeAdapter *fake, FakeTask *task)
{
	for (guint i = 0; i < task->keys->len; i++) {
		FakeObject *object = fake_object(fake, task->keys->pdata[i]);
		const KvcMemoryObj *memory = &task->objects[i];
		bool fails = fake->fail_loads > 0;
		fake->fail_loads -= fails;
		/* The memory must be there, whether the load succeeds or not. */
		if (memory->data)
			memset(memory->data, 0xee, memory->mapped_bytes);
		if (fails || !object->data || g_bytes_get_size(object->data) != memory->bytes ||
		    g_hash_table_contains(fake->bad_keys, task->keys->pdata[i]))
			continue;
		if (memory->data)
			memcpy(memory->data, g_bytes_get_data(object->data, NULL), memory->bytes);
		kvc_bitmap_set(task->bits, i);
	}
}

static inline void
fake_run(FakeAdapter *fake, FakeTask *task)
{
	if (task->kind == FAKE_STORE)
		fake_run_store(fake, task);
	else if (task->kind == FAKE_LOOKUP)
		fake_run_lookup(fake, task);
	else
		fake_run_load(fake, task);
	task->is_done = true;
	kvc_eventfd_signal(fake->fds[task->kind]);
}

static inline void
fake_note_store(FakeAdapter *fake, FakeTask *task)
{
	g_array_append_val(fake->batches, task->keys->len);
	for (guint i = 0; i < task->keys->len; i++) {
		KvcObjectKey *key = task->keys->pdata[i];
		FakeObject *object = fake_object(fake, key);
		fake->overlaps += object->deletes > 0 || object->stores > 0;
		object->stores++;
		fake->mixed_sizes |= task->objects[i].bytes != task->objects[0].bytes;
		fake->mixed_scopes |= key->scope != ((KvcObjectKey *)task->keys->pdata[0])->scope;
	}
}

static inline KvcL2TaskId
fake_submit(KvcL2Adapter *adapter,
	    FakeKind kind,
	    KvcObjectKey *const *keys,
	    const KvcMemoryObj *objects,
	    size_t n)
{
	static const char *const names[] = {"store", "lookup", "load"};
	FakeAdapter *fake = (FakeAdapter *)adapter;
	FakeTask *task = g_new0(FakeTask, 1);
	task->kind = kind;
	task->keys = g_ptr_array_new_with_free_func((GDestroyNotify)kvc_object_key_unref);
	task->objects = objects ? g_memdup2(objects, n * sizeof(*objects)) : NULL;
	task->bits = kvc_bitmap_new(n);
	task->info = g_new0(KvcL2ObjectInfo, n);
	pthread_mutex_lock(&fake->lock);
	for (size_t i = 0; i < n; i++) {
		g_ptr_array_add(task->keys, kvc_object_key_ref(keys[i]));
		if (kind != FAKE_LOOKUP)
			fake_log(fake, names[kind], keys[i]);
	}
	KvcL2TaskId id = 0;
	if (fake->refuse[kind]) {
		fake_task_free(task);
	} else {
		id = task->id = ++fake->last_id;
		if (kind == FAKE_STORE)
			fake_note_store(fake, task);
		g_ptr_array_add(fake->tasks, task);
		if (!fake->hold[kind])
			fake_run(fake, task);
	}
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
	return id;
}

static inline FakeTask *
fake_find(FakeAdapter *fake, FakeKind kind, KvcL2TaskId id)
{
	for (guint i = 0; i < fake->tasks->len; i++) {
		FakeTask *task = fake->tasks->pdata[i];
		if (task->kind == kind && task->id == id)
			return task;
	}
	return NULL;
}

static inline int
fake_query(KvcL2Adapter *adapter,
	   FakeKind kind,
	   KvcL2TaskId id,
	   KvcBitmap *bits,
	   KvcL2ObjectInfo *info)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	int rc = 0;
	pthread_mutex_lock(&fake->lock);
	FakeTask *task = fake_find(fake, kind, id);
	if (!task) {
		/* Refused tasks have the id 0, which may be asked for. */
		fake->bad_queries += id != 0;
		rc = -ENOENT;
	} else if (task->is_done) {
		assert_int_equal(kvc_bitmap_count(bits), 0);
		kvc_bitmap_or(bits, task->bits);
		if (info)
			memcpy(info, task->info, task->keys->len * sizeof(*info));
		rc = fake->rude[kind] ? -ENOENT : 1;
		g_ptr_array_remove(fake->tasks, task);
	}
	pthread_mutex_unlock(&fake->lock);
	return rc;
}

static inline KvcL2TaskId
fake_submit_store(KvcL2Adapter *adapter,
		  KvcObjectKey *const *keys,
		  const KvcMemoryObj *objects,
		  size_t n)
{
	return fake_submit(adapter, FAKE_STORE, keys, objects, n);
}

static inline size_t
fake_pop_stores(KvcL2Adapter *adapter, KvcL2StoreResult *results, size_t max)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	size_t n = 0;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->tasks->len && n < max;) {
		FakeTask *task = fake->tasks->pdata[i];
		if (task->kind != FAKE_STORE || !task->is_done) {
			i++;
			continue;
		}
		results[n++] = (KvcL2StoreResult){task->id, task->result};
		g_ptr_array_remove_index(fake->tasks, i);
	}
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static inline KvcL2TaskId
fake_submit_lookup(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	return fake_submit(adapter, FAKE_LOOKUP, keys, NULL, n);
}

static inline int
fake_query_lookup(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *found, KvcL2ObjectInfo *info)
{
	return fake_query(adapter, FAKE_LOOKUP, id, found, info);
}

static inline void
fake_unlock(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	pthread_mutex_lock(&fake->lock);
	for (size_t i = 0; i < n; i++) {
		FakeObject *object = fake_object(fake, keys[i]);
		fake->bad_unlocks += object->locks == 0;
		fake->n_locks -= object->locks > 0;
		object->locks -= object->locks > 0;
	}
	pthread_mutex_unlock(&fake->lock);
}

static inline KvcL2TaskId
fake_submit_load(KvcL2Adapter *adapter,
		 KvcObjectKey *const *keys,
		 const KvcMemoryObj *objects,
		 size_t n)
{
	return fake_submit(adapter, FAKE_LOAD, keys, objects, n);
}

static inline int
fake_query_load(KvcL2Adapter *adapter, KvcL2TaskId id, KvcBitmap *loaded)
{
	return fake_query(adapter, FAKE_LOAD, id, loaded, NULL);
}

static inline int
fake_delete(KvcL2Adapter *adapter, KvcObjectKey *const *keys, size_t n, KvcBitmap *deleted)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	int result = 0;
	pthread_mutex_lock(&fake->lock);
	for (size_t i = 0; i < n; i++) {
		FakeObject *object = fake_object(fake, keys[i]);
		fake_log(fake, "delete", keys[i]);
		fake->overlaps += object->stores > 0;
		object->deletes++;
	}
	pthread_cond_broadcast(&fake->changed);
	while (fake->hold_deletes)
		pthread_cond_wait(&fake->changed, &fake->lock);
	for (size_t i = 0; i < n; i++) {
		FakeObject *object = fake_object(fake, keys[i]);
		object->deletes--;
		if (object->locks > 0)
			continue;
		if (fake->fail_deletes > 0) {
			fake->fail_deletes--;
			result = -EROFS;
			continue;
		}
		g_clear_pointer(&object->data, g_bytes_unref);
		kvc_bitmap_set(deleted, i);
	}
	pthread_mutex_unlock(&fake->lock);
	return result;
}

/* The same checks as for a deletion, of both keys. */
static inline int
fake_run_rename(FakeAdapter *fake, FakeObject *from, FakeObject *to)
{
	if (from->locks > 0 || to->locks > 0)
		return -EBUSY;
	if (fake->fail_renames > 0) {
		fake->fail_renames--;
		return -EROFS;
	}
	if (!from->data)
		return -ENOENT;
	g_clear_pointer(&to->data, g_bytes_unref);
	to->data = g_steal_pointer(&from->data);
	kvc_object_attributes_clear(&to->attributes);
	to->attributes = from->attributes;
	from->attributes = (KvcObjectAttributes){0};
	to->mtime_ns = from->mtime_ns;
	return 0;
}

static inline int
fake_rename(KvcL2Adapter *adapter, KvcObjectKey *old_key, KvcObjectKey *new_key)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	pthread_mutex_lock(&fake->lock);
	FakeObject *from = fake_object(fake, old_key), *to = fake_object(fake, new_key);
	fake_log(fake, "rename", old_key);
	fake->overlaps += from->stores > 0 || to->stores > 0 || from->deletes + to->deletes > 0;
	from->deletes++;
	to->deletes++;
	pthread_cond_broadcast(&fake->changed);
	while (fake->hold_renames)
		pthread_cond_wait(&fake->changed, &fake->lock);
	int rc = fake_run_rename(fake, from, to);
	from->deletes--;
	to->deletes--;
	pthread_mutex_unlock(&fake->lock);
	return rc;
}

static inline int
fake_set_attributes(KvcL2Adapter *adapter, KvcObjectKey *key, const KvcObjectAttributes *attributes)
{
	FakeAdapter *fake = (FakeAdapter *)adapter;
	pthread_mutex_lock(&fake->lock);
	FakeObject *object = fake_object(fake, key);
	fake_log(fake, "attributes", key);
	fake->overlaps += object->stores > 0 || object->deletes > 0;
	bool fails = fake->fail_attributes > 0;
	fake->fail_attributes -= fails;
	int rc = fails ? -ENOSPC : object->data ? 0 : -ENOENT;
	if (rc == 0)
		fake_keep_attributes(object, attributes);
	pthread_mutex_unlock(&fake->lock);
	return rc;
}

static inline int
fake_store_fd(KvcL2Adapter *adapter)
{
	return ((FakeAdapter *)adapter)->fds[FAKE_STORE];
}

static inline int
fake_lookup_fd(KvcL2Adapter *adapter)
{
	return ((FakeAdapter *)adapter)->fds[FAKE_LOOKUP];
}

static inline int
fake_load_fd(KvcL2Adapter *adapter)
{
	return ((FakeAdapter *)adapter)->fds[FAKE_LOAD];
}

static inline FakeAdapter *
fake_new(void)
{
	FakeAdapter *fake = g_new0(FakeAdapter, 1);
	fake->base.ops = &fake->ops;
	fake->ops = (KvcL2AdapterOps){
		.api = KVC_L2_ADAPTER_API,
		.struct_size = sizeof(KvcL2AdapterOps),
		.type_name = "fake",
		.get_store_event_fd = fake_store_fd,
		.get_lookup_and_lock_event_fd = fake_lookup_fd,
		.get_load_event_fd = fake_load_fd,
		.submit_store_task = fake_submit_store,
		.pop_completed_store_tasks = fake_pop_stores,
		.submit_lookup_and_lock_task = fake_submit_lookup,
		.query_lookup_and_lock_result = fake_query_lookup,
		.submit_unlock = fake_unlock,
		.submit_load_task = fake_submit_load,
		.query_load_result = fake_query_load,
		.delete_keys = fake_delete,
		.rename_key = fake_rename,
		.set_attributes = fake_set_attributes,
	};
	for (size_t i = 0; i < FAKE_KINDS; i++)
		fake->fds[i] = kvc_eventfd_new();
	pthread_mutex_init(&fake->lock, NULL);
	pthread_cond_init(&fake->changed, NULL);
	fake->objects =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal,
				      (GDestroyNotify)kvc_object_key_unref, fake_object_free);
	fake->bad_keys = g_hash_table_new(kvc_object_key_hash, kvc_object_key_equal);
	fake->tasks = g_ptr_array_new_with_free_func(fake_task_free);
	fake->batches = g_array_new(FALSE, FALSE, sizeof(guint));
	fake->log = g_ptr_array_new_with_free_func(g_free);
	return fake;
}

static inline void
fake_free(FakeAdapter *fake)
{
	for (size_t i = 0; i < FAKE_KINDS; i++)
		close(fake->fds[i]);
	g_hash_table_unref(fake->objects);
	g_hash_table_unref(fake->bad_keys);
	g_ptr_array_unref(fake->tasks);
	g_array_unref(fake->batches);
	g_ptr_array_unref(fake->log);
	pthread_cond_destroy(&fake->changed);
	pthread_mutex_destroy(&fake->lock);
	g_free(fake);
}

/* ---- What the tests do with it ------------------------------------------------------------- */

/* Executes the I-th held task of KIND. */
static inline void
fake_release_nth(FakeAdapter *fake, FakeKind kind, unsigned nth)
{
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->tasks->len; i++) {
		FakeTask *task = fake->tasks->pdata[i];
		if (task->kind != kind || task->is_done || nth-- > 0)
			continue;
		fake_run(fake, task);
		break;
	}
	pthread_mutex_unlock(&fake->lock);
}

/* Executes what is held of KIND and holds nothing more. */
static inline void
fake_release(FakeAdapter *fake, FakeKind kind)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold[kind] = false;
	for (guint i = 0; i < fake->tasks->len; i++) {
		FakeTask *task = fake->tasks->pdata[i];
		if (task->kind == kind && !task->is_done)
			fake_run(fake, task);
	}
	pthread_mutex_unlock(&fake->lock);
}

static inline void
fake_release_deletes(FakeAdapter *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_deletes = false;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

static inline void
fake_release_renames(FakeAdapter *fake)
{
	pthread_mutex_lock(&fake->lock);
	fake->hold_renames = false;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

/* Tasks of KIND that are submitted and not executed. */
static inline unsigned
fake_count_held(FakeAdapter *fake, FakeKind kind)
{
	unsigned n = 0;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->tasks->len; i++) {
		FakeTask *task = fake->tasks->pdata[i];
		n += task->kind == kind && !task->is_done;
	}
	pthread_mutex_unlock(&fake->lock);
	return n;
}

static inline int
fake_get(FakeAdapter *fake, const int *value)
{
	pthread_mutex_lock(&fake->lock);
	int now = *value;
	pthread_mutex_unlock(&fake->lock);
	return now;
}

/* Has KEY, with these bytes (NULL: any)? */
static inline bool
fake_has(FakeAdapter *fake, const KvcObjectKey *key, GBytes *data)
{
	pthread_mutex_lock(&fake->lock);
	FakeObject *object = fake_object(fake, key);
	bool has = object->data && (!data || g_bytes_equal(object->data, data));
	pthread_mutex_unlock(&fake->lock);
	return has;
}

static inline void
fake_put(FakeAdapter *fake, const KvcObjectKey *key, GBytes *data)
{
	pthread_mutex_lock(&fake->lock);
	FakeObject *object = fake_object(fake, key);
	g_clear_pointer(&object->data, g_bytes_unref);
	object->data = data ? g_bytes_ref(data) : NULL;
	object->mtime_ns = 1000;
	pthread_mutex_unlock(&fake->lock);
}

/* How often the log has "WHAT KEY". */
static inline unsigned
fake_count(FakeAdapter *fake, const char *what, const KvcObjectKey *key)
{
	g_autofree char *hex = kvc_object_key_hash_hex(key);
	g_autofree char *line = g_strdup_printf("%s %s", what, hex);
	unsigned n = 0;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->log->len; i++)
		n += strcmp(fake->log->pdata[i], line) == 0;
	pthread_mutex_unlock(&fake->lock);
	return n;
}

/* The place of the last "WHAT KEY" in the log, -1: not there. */
static inline int
fake_position(FakeAdapter *fake, const char *what, const KvcObjectKey *key)
{
	g_autofree char *hex = kvc_object_key_hash_hex(key);
	g_autofree char *line = g_strdup_printf("%s %s", what, hex);
	int position = -1;
	pthread_mutex_lock(&fake->lock);
	for (guint i = 0; i < fake->log->len; i++)
		if (strcmp(fake->log->pdata[i], line) == 0)
			position = (int)i;
	pthread_mutex_unlock(&fake->lock);
	return position;
}

#endif
