/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The state of keys that something is going on with. A key that is idle has no entry: what exists
 * is what the directory says.
 *
 * A deletion holds a key for one unlink. A lookup takes its lock before it looks, so that "found"
 * means "will not be deleted"; a store that was submitted before a deletion makes that skip the
 * key, one that was submitted after waits for it. A rename is a deletion of both keys, except that
 * a lookup waits for it: an object that takes the place of another is never missed.
 */

#include "fs.h"

typedef struct KeyState {
	KvcObjectKey *key;
	unsigned locks;
	unsigned stores;    /* in flight */
	uint64_t published; /* sequence of the last store that was published */
	bool deleting;	    /* or being renamed */
	bool renaming;	    /* what is under the key changes, but something may well be there */
	bool corrupt;	    /* the file below is */
	ino_t ino;
	int64_t mtime_ns;
} KeyState;

static void
state_free(void *data)
{
	KeyState *state = data;

	kvc_object_key_unref(state->key);
	g_free(state);
}

static KeyState *
find_locked(FsAdapter *fs, const KvcObjectKey *key)
{
	return g_hash_table_lookup(fs->keys, key);
}

static KeyState *
get_locked(FsAdapter *fs, const KvcObjectKey *key)
{
	KeyState *state = find_locked(fs, key);

	if (state)
		return state;
	state = g_new0(KeyState, 1);
	state->key = kvc_object_key_ref(key);
	g_hash_table_insert(fs->keys, state->key, state);
	return state;
}

static bool
is_busy(const KeyState *state)
{
	return state->locks > 0 || state->stores > 0;
}

static void
drop_if_idle_locked(FsAdapter *fs, KeyState *state)
{
	if (!is_busy(state) && !state->deleting && !state->corrupt)
		g_hash_table_remove(fs->keys, state->key);
}

bool
fs_keys_lock(FsAdapter *fs, const KvcObjectKey *key)
{
	KeyState *state;

	pthread_mutex_lock(&fs->keys_lock);
	while ((state = get_locked(fs, key))->renaming)
		pthread_cond_wait(&fs->keys_wake, &fs->keys_lock);
	bool locked = !state->deleting;
	if (locked)
		state->locks++;
	pthread_mutex_unlock(&fs->keys_lock);
	return locked;
}

static void
unlock_locked(FsAdapter *fs, const KvcObjectKey *key)
{
	KeyState *state = find_locked(fs, key);

	if (!state || state->locks == 0)
		return;
	state->locks--;
	drop_if_idle_locked(fs, state);
}

void
fs_keys_unlock(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	unlock_locked(fs, key);
	pthread_mutex_unlock(&fs->keys_lock);
}

void
fs_keys_unlock_many(FsAdapter *fs, KvcObjectKey *const *keys, size_t n)
{
	pthread_mutex_lock(&fs->keys_lock);
	for (size_t i = 0; i < n; i++)
		unlock_locked(fs, keys[i]);
	pthread_mutex_unlock(&fs->keys_lock);
}

uint64_t
fs_keys_begin_store(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	get_locked(fs, key)->stores++;
	uint64_t sequence = ++fs->last_sequence;
	pthread_mutex_unlock(&fs->keys_lock);
	return sequence;
}

void
fs_keys_end_store(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	KeyState *state = find_locked(fs, key);
	state->stores--;
	drop_if_idle_locked(fs, state);
	pthread_mutex_unlock(&fs->keys_lock);
}

void
fs_keys_await_delete(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	while (find_locked(fs, key)->deleting)
		pthread_cond_wait(&fs->keys_wake, &fs->keys_lock);
	pthread_mutex_unlock(&fs->keys_lock);
}

bool
fs_keys_note_publish(FsAdapter *fs, const KvcObjectKey *key, uint64_t sequence)
{
	pthread_mutex_lock(&fs->keys_lock);
	KeyState *state = find_locked(fs, key);
	bool latest = sequence > state->published;
	if (latest)
		state->published = sequence;
	pthread_mutex_unlock(&fs->keys_lock);
	return latest;
}

bool
fs_keys_begin_delete(FsAdapter *fs, const KvcObjectKey *key)
{
	KeyState *state;

	pthread_mutex_lock(&fs->keys_lock);
	while ((state = get_locked(fs, key))->deleting)
		pthread_cond_wait(&fs->keys_wake, &fs->keys_lock);
	bool begun = !is_busy(state);
	if (begun)
		state->deleting = true;
	pthread_mutex_unlock(&fs->keys_lock);
	return begun;
}

void
fs_keys_end_delete(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	KeyState *state = find_locked(fs, key);
	state->deleting = state->renaming = false;
	drop_if_idle_locked(fs, state);
	pthread_cond_broadcast(&fs->keys_wake);
	pthread_mutex_unlock(&fs->keys_lock);
}

bool
fs_keys_begin_rename(FsAdapter *fs, const KvcObjectKey *old_key, const KvcObjectKey *new_key)
{
	KeyState *from, *to;

	pthread_mutex_lock(&fs->keys_lock);
	/* Both at once: nothing is held while waiting, whatever others rename. */
	while ((from = get_locked(fs, old_key))->deleting ||
	       (to = get_locked(fs, new_key))->deleting)
		pthread_cond_wait(&fs->keys_wake, &fs->keys_lock);
	bool begun = !is_busy(from) && !is_busy(to);
	if (begun)
		from->deleting = from->renaming = to->deleting = to->renaming = true;
	drop_if_idle_locked(fs, from);
	drop_if_idle_locked(fs, to);
	pthread_mutex_unlock(&fs->keys_lock);
	return begun;
}

void
fs_keys_end_rename(FsAdapter *fs, const KvcObjectKey *old_key, const KvcObjectKey *new_key)
{
	fs_keys_end_delete(fs, old_key);
	fs_keys_end_delete(fs, new_key);
}

void
fs_keys_note_corrupt(FsAdapter *fs, const KvcObjectKey *key, const struct stat *st)
{
	pthread_mutex_lock(&fs->keys_lock);
	KeyState *state = get_locked(fs, key);
	state->corrupt = true;
	state->ino = st->st_ino;
	state->mtime_ns = fs_mtime_ns(st);
	pthread_mutex_unlock(&fs->keys_lock);
}

void
fs_keys_forget_corrupt(FsAdapter *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->keys_lock);
	KeyState *state = find_locked(fs, key);
	if (state) {
		state->corrupt = false;
		drop_if_idle_locked(fs, state);
	}
	pthread_mutex_unlock(&fs->keys_lock);
}

bool
fs_keys_is_corrupt(FsAdapter *fs, const KvcObjectKey *key, const struct stat *st)
{
	pthread_mutex_lock(&fs->keys_lock);
	const KeyState *state = find_locked(fs, key);
	bool corrupt = state && state->corrupt && state->ino == st->st_ino &&
		       state->mtime_ns == fs_mtime_ns(st);
	pthread_mutex_unlock(&fs->keys_lock);
	return corrupt;
}

void
fs_keys_init(FsAdapter *fs)
{
	pthread_mutex_init(&fs->keys_lock, NULL);
	pthread_cond_init(&fs->keys_wake, NULL);
	fs->keys =
		g_hash_table_new_full(kvc_object_key_hash, kvc_object_key_equal, NULL, state_free);
}

void
fs_keys_deinit(FsAdapter *fs)
{
	g_hash_table_unref(fs->keys);
	pthread_cond_destroy(&fs->keys_wake);
	pthread_mutex_destroy(&fs->keys_lock);
}
