/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_RENAME_LOG_FIXTURE_H
#define TESTS_UNIT_RENAME_LOG_FIXTURE_H

/* Two plain names over scripted adapters, with a deletion log. */

#include "engine/deletion-log.h"
#include "tests/unit/rename-fixture.h"

/* After the other one, which defines wait_until. */
#include "tests/unit/log-fixture.h"

static inline void
describe_fake(KvcL2Adapter *adapter, KvcDescribeFunc func, void *user)
{
	func(user, "location", adapter->ops->type_name);
}

/* T's adapters get a log in DIR, from nothing. */
static inline void
open_log(Two *t, Dir *dir)
{
	static const char *const names[] = {"one", "two"};
	g_autoptr(GError) error = NULL;
	for (size_t a = 0; a < t->b.env->context.n_adapters; a++) {
		t->b.env->fakes[a]->ops.describe = describe_fake;
		t->b.env->fakes[a]->ops.type_name = names[a];
	}
	g_unlink(dir->file);
	t->b.env->context.deletions = kvc_deletion_log_open(dir->file, &t->b.env->context, &error);
	if (!t->b.env->context.deletions)
		fail_msg("%s", error->message);
}

static inline void
two_logged_free(Two *t)
{
	kvc_store_controller_stop(t->b.store);
	kvc_deletion_log_free(t->b.env->context.deletions);
	t->b.env->context.deletions = NULL;
	two_free(t);
}

/* As the StorageManager deletes. */
static inline void
delete_logged(Two *t, KvcObjectKey *key, uint32_t adapters)
{
	uint64_t id = kvc_deletion_log_add(t->b.env->context.deletions, key, adapters);
	kvc_key_index_hide(t->b.env->context.index, key, adapters, id);
	kvc_l1_manager_delete(t->b.env->context.l1, key, true);
	kvc_store_controller_submit_delete(t->b.store, key, adapters, id);
}

typedef struct Replayed {
	size_t adapter;
	KvcObjectKey *key;
} Replayed;

static inline void
add_replayed(void *user, KvcObjectKey *key, size_t adapter, uint64_t id)
{
	Replayed one = {adapter, kvc_object_key_ref(key)};
	g_array_append_val((GArray *)user, one);
}

static inline void
replayed_clear(void *data)
{
	kvc_object_key_unref(((Replayed *)data)->key);
}

/* Replayed: what a run after a kill at this moment would delete. */
static inline GArray *
replay(Two *t, Dir *dir)
{
	Synced synced = {0};
	g_autoptr(GError) error = NULL;
	kvc_deletion_log_sync(t->b.env->context.deletions, on_synced, &synced);
	assert_int_equal(wait_synced(&synced), 0);
	KvcDeletionLog *log = kvc_deletion_log_open(copy_file(dir), &t->b.env->context, &error);
	if (!log)
		fail_msg("%s", error->message);
	GArray *all = g_array_new(FALSE, FALSE, sizeof(Replayed));
	g_array_set_clear_func(all, replayed_clear);
	kvc_deletion_log_replay(log, add_replayed, all);
	kvc_deletion_log_free(log);
	return all;
}

static inline bool
is_replayed(const GArray *all, size_t adapter, const KvcObjectKey *key)
{
	for (guint i = 0; i < all->len; i++) {
		const Replayed *one = &g_array_index(all, Replayed, i);
		if (one->adapter == adapter && kvc_object_key_equal(one->key, key))
			return true;
	}
	return false;
}

/* The StoreController has done what it could with all that it was told, and that had ended. */
static inline void
go_round(Two *t)
{
	g_autoptr(KvcObjectKey) other = key_new(t->b.env, 999);
	Flushed done = {0};
	kvc_store_controller_await_rename(t->b.store, other, on_flushed, &done);
	wait_until(calls(&done) == 1);
}

static inline void
fake_set(FakeAdapter *fake, bool *what, bool value)
{
	pthread_mutex_lock(&fake->lock);
	*what = value;
	pthread_cond_broadcast(&fake->changed);
	pthread_mutex_unlock(&fake->lock);
}

/* OLD is stored, and renamed: the first adapter is at that until fake_release_renames(). */
static inline void
rename_and_hold(Two *t)
{
	FakeAdapter *fake = t->b.env->fakes[0];
	write_version(t, t->old_key, 0);
	drain(&t->b);
	fake_set(fake, &fake->hold_renames, true);
	rename_keys(&t->b, t->old_key, t->new_key);
	wait_until(fake_count(fake, "rename", t->old_key) == 1);
}

#endif
