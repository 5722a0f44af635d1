/* SPDX-License-Identifier: Apache-2.0 */

/*
 * close(2) returns after FLUSH, the commit comes with the RELEASE behind it (0.1 ms typical). Who
 * asks for the name in between waits, bounded: the descriptor may live on in a fork, a dup or a
 * mapping.
 */

#include "fs/internal.h"

void
kvcfs_closing_begin_locked(Kvcfs *fs, KvcObjectKey *key, bool is_new)
{
	KvcfsClosing *closing = g_hash_table_lookup(fs->closing, key);
	if (!closing) {
		closing = g_new0(KvcfsClosing, 1);
		g_hash_table_insert(fs->closing, kvc_object_key_ref(key), closing);
	}
	closing->count += is_new;
	closing->flushed_ns = kvcfs_now_ns();
}

void
kvcfs_closing_end_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	KvcfsClosing *closing = g_hash_table_lookup(fs->closing, key);
	if (--closing->count == 0)
		g_hash_table_remove(fs->closing, key);
}

/* ---- Plain files that are written again and again ------------------------------------------- */

/*
 * An open may get a later version than its lookup has seen (file-ops.c). So the kernel must ask for
 * name and size of what has changed lately, whichever inode that is by now.
 */
#define SETTLED_NS INT64_C(1000000000)
#define MANY_PUBLISHED 256

static gboolean
is_settled(void *key, void *value, void *user)
{
	return *(int64_t *)user - *(int64_t *)value > SETTLED_NS;
}

void
kvcfs_note_published_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	int64_t now = kvcfs_now_ns();
	if (key->space != KVC_SPACE_PLAIN)
		return;
	if (g_hash_table_size(fs->published) >= fs->published_limit) {
		g_hash_table_foreach_remove(fs->published, is_settled, &now);
		fs->published_limit = 2 * g_hash_table_size(fs->published) + MANY_PUBLISHED;
	}
	g_hash_table_replace(fs->published, kvc_object_key_ref(key), g_memdup2(&now, sizeof(now)));
}

bool
kvcfs_is_just_published_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	int64_t now = kvcfs_now_ns();
	int64_t *when = g_hash_table_lookup(fs->published, key);
	return when && !is_settled(NULL, when, &now);
}

/* ---- Waiting ------------------------------------------------------------------------------- */

/* Until when KEY (or, with NULL, SCOPE) is worth waiting for; 0: nobody is closing it. */
static int64_t
closing_deadline_locked(Kvcfs *fs, const KvcObjectKey *key, const KvcKeyScope *scope)
{
	KvcfsClosing *closing = NULL;
	if (key) {
		closing = g_hash_table_lookup(fs->closing, key);
	} else {
		GHashTableIter iter;
		KvcObjectKey *k;
		KvcfsClosing *c;
		g_hash_table_iter_init(&iter, fs->closing);
		while (g_hash_table_iter_next(&iter, (void **)&k, (void **)&c))
			if (k->scope == scope && (!closing || c->flushed_ns > closing->flushed_ns))
				closing = c;
	}
	int64_t deadline = closing ? closing->flushed_ns + KVCFS_COMMIT_WAIT_NS : 0;
	return deadline > kvcfs_now_ns() ? deadline : 0;
}

bool
kvcfs_is_closing(Kvcfs *fs, const KvcObjectKey *key, const KvcKeyScope *scope)
{
	pthread_mutex_lock(&fs->names);
	bool is_closing = closing_deadline_locked(fs, key, scope) != 0;
	pthread_mutex_unlock(&fs->names);
	return is_closing;
}

typedef struct CommitWaiter {
	Kvcfs *fs;
	KvcObjectKey *key; /* or NULL */
	KvcKeyScope *scope;
	KvcfsPending *pending;
	int refs;	  /* Protected by names: the submitter and the answer */
	bool is_answered; /* Protected by names */
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user);
	void *user;
} CommitWaiter;

static void
unref_waiter_locked(CommitWaiter *waiter)
{
	if (--waiter->refs == 0)
		g_free(waiter);
}

static void
answer_waiter(fuse_req_t req, KvcfsWake why, void *user)
{
	CommitWaiter *waiter = user;
	Kvcfs *fs = waiter->fs;
	pthread_mutex_lock(&fs->names);
	waiter->is_answered = true;
	/* Still in the list: nobody will wake it. */
	KvcfsPending *unwoken = NULL;
	if (g_ptr_array_remove_fast(fs->commit_waiters, waiter))
		unwoken = waiter->pending;
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user) = waiter->answer;
	void *answer_user = waiter->user;
	unref_waiter_locked(waiter);
	pthread_mutex_unlock(&fs->names);
	if (unwoken)
		kvcfs_pending_release(unwoken);
	answer(req, why, answer_user);
}

void
kvcfs_wait_for_commit(Kvcfs *fs,
		      fuse_req_t req,
		      KvcObjectKey *key,
		      KvcKeyScope *scope,
		      void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		      void *user)
{
	CommitWaiter *waiter = g_new0(CommitWaiter, 1);
	*waiter = (CommitWaiter){fs, key, scope, NULL, 2, false, answer, user};
	pthread_mutex_lock(&fs->names);
	int64_t deadline = closing_deadline_locked(fs, key, scope);
	pthread_mutex_unlock(&fs->names);
	KvcfsPending *pending =
		kvcfs_pending_new(fs->pendings, req, deadline, answer_waiter, waiter);
	pthread_mutex_lock(&fs->names);
	bool is_answered = waiter->is_answered;
	bool waits = !is_answered && closing_deadline_locked(fs, key, scope) != 0;
	waiter->pending = pending;
	if (waits)
		g_ptr_array_add(fs->commit_waiters, waiter);
	unref_waiter_locked(waiter);
	pthread_mutex_unlock(&fs->names);
	if (is_answered)
		kvcfs_pending_release(pending);
	else if (!waits)
		kvcfs_pending_wake(pending);
}

/* Takes out who waits for KEY; to be woken without the lock. */
static GPtrArray *
take_waiters_locked(Kvcfs *fs, const KvcObjectKey *key)
{
	GPtrArray *pendings = NULL;
	bool is_closing = g_hash_table_contains(fs->closing, key);
	for (guint i = 0; i < fs->commit_waiters->len;) {
		CommitWaiter *waiter = fs->commit_waiters->pdata[i];
		/* Another writer of the name may be closing too: perhaps the one waited for. */
		bool is_ours = waiter->key ? !is_closing && kvc_object_key_equal(waiter->key, key)
					   : waiter->scope == key->scope;
		if (!is_ours) {
			i++;
			continue;
		}
		if (!pendings)
			pendings = g_ptr_array_new();
		g_ptr_array_add(pendings, waiter->pending);
		g_ptr_array_remove_index_fast(fs->commit_waiters, i);
	}
	return pendings;
}

void
kvcfs_commit_wake(Kvcfs *fs, const KvcObjectKey *key)
{
	pthread_mutex_lock(&fs->names);
	GPtrArray *pendings = take_waiters_locked(fs, key);
	pthread_mutex_unlock(&fs->names);
	kvcfs_pending_wake_all(pendings);
}
