/* SPDX-License-Identifier: Apache-2.0 */

/*
 * close(2) returns after FLUSH, the commit comes with the RELEASE behind it (0.1 ms typical). Who
 * asks for the name in between waits, bounded: the descriptor may live on in a fork, a dup or a
 * mapping.
 */

#include "fs/internal.h"

void
kvcfs_closing_begin_locked(Kvcfs *fs, KvcfsClosing *closing)
{
	if (g_hash_table_add(fs->closing, closing))
		closing->since_ns = kvcfs_now_ns();
}

void
kvcfs_closing_end_locked(Kvcfs *fs, KvcfsClosing *closing)
{
	g_hash_table_remove(fs->closing, closing);
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

/*
 * The RELEASE is looked for in steps, together 50 ms. A step that comes late does not count, for a
 * second: a machine that is late with it is late with the RELEASE as well.
 */
#define FIRST_STEP_NS (INT64_C(50) * 1000)
#define LAST_STEP_NS (INT64_C(5) * 1000 * 1000)
#define LATE_NS (INT64_C(1) * 1000 * 1000)
#define N_STEPS 16
#define LONGEST_WAIT_NS (INT64_C(1) * 1000 * 1000 * 1000)

typedef struct CommitWait {
	Kvcfs *fs;
	KvcfsClosingFilter filter;
	int64_t since_ns;
	unsigned n_steps;
	int64_t step_ns, due_ns;
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user);
	void *user;
} CommitWait;

static bool
is_staging_asked_for(const KvcfsClosingFilter *filter, const KvcfsStaging *st)
{
	if (filter->before_ns &&
	    (st->flushed_ns == 0 || kvcfs_staging_order(st) >= filter->before_ns))
		return false;
	if (filter->dir) {
		const KvcfsInode *inode = kvcfs_temp_lookup_locked(filter->dir, filter->name);
		return inode && inode->staging == st;
	}
	if (!st->target || st->is_target_gone)
		return false;
	if (filter->with_entries)
		return st->prefix == filter->prefix;
	if (!filter->key && !filter->scope)
		return !filter->prefix;
	return filter->key ? kvc_object_key_equal(st->target, filter->key)
			   : st->target->scope == filter->scope;
}

static bool
is_chain_asked_for(const KvcfsClosingFilter *filter, const KvcfsHandle *keys)
{
	if (filter->prefix)
		return keys->inode->parent == filter->prefix;
	return !filter->dir && !filter->key && !filter->scope;
}

static bool
is_asked_for(const KvcfsClosingFilter *filter, const KvcfsClosing *closing)
{
	return closing->staging ? is_staging_asked_for(filter, closing->staging)
				: is_chain_asked_for(filter, closing->keys);
}

/* true: nobody waits any more. What is committing is waited for as long as it takes. */
static bool
gives_up_on(KvcfsClosing *closing)
{
	KvcfsStaging *st = closing->staging;
	if (!st)
		return true;
	if (st->is_committing || st->n_releases > 0)
		return false;
	st->is_given_up = true;
	return true;
}

/*
 * How many of those that had flushed at SINCE_NS have their RELEASE or commit to come. Where
 * GIVES_UP, those that can be given up are not waited for any more.
 */
static unsigned
count_closing_locked(Kvcfs *fs, const KvcfsClosingFilter *filter, int64_t since_ns, bool gives_up)
{
	unsigned n = 0;
	GHashTableIter iter;
	KvcfsClosing *closing;
	g_hash_table_iter_init(&iter, fs->closing);
	while (g_hash_table_iter_next(&iter, (void **)&closing, NULL)) {
		if (closing->since_ns > since_ns || !is_asked_for(filter, closing))
			continue;
		if (gives_up && gives_up_on(closing))
			g_hash_table_iter_remove(&iter);
		else
			n++;
	}
	return n;
}

bool
kvcfs_is_closing_locked(Kvcfs *fs, const KvcfsClosingFilter *filter)
{
	return count_closing_locked(fs, filter, INT64_MAX, false) > 0;
}

bool
kvcfs_is_closing(Kvcfs *fs, const KvcfsClosingFilter *filter)
{
	pthread_mutex_lock(&fs->names);
	bool is_closing = kvcfs_is_closing_locked(fs, filter);
	pthread_mutex_unlock(&fs->names);
	return is_closing;
}

static void
wait_step(fuse_req_t req, KvcfsWake why, void *user)
{
	CommitWait *wait = user;
	Kvcfs *fs = wait->fs;
	if (why != KVCFS_WAKE_INTERRUPT) {
		int64_t now = kvcfs_now_ns();
		wait->n_steps += now - wait->due_ns < LATE_NS;
		bool is_over = wait->n_steps > N_STEPS || now - wait->since_ns > LONGEST_WAIT_NS;
		pthread_mutex_lock(&fs->names);
		unsigned before = count_closing_locked(fs, &wait->filter, wait->since_ns, false);
		unsigned n = count_closing_locked(fs, &wait->filter, wait->since_ns, is_over);
		pthread_mutex_unlock(&fs->names);
		if (n > 0) {
			wait->step_ns = MIN(2 * wait->step_ns, LAST_STEP_NS);
			wait->due_ns = now + wait->step_ns;
			kvcfs_pending_release(kvcfs_pending_new(fs->pendings, req, wait->due_ns,
								wait_step, wait));
			return;
		}
		why = before > 0 ? KVCFS_WAKE_TIMEOUT : KVCFS_WAKE_DONE;
	}
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user) = wait->answer;
	void *answer_user = wait->user;
	g_free(wait);
	answer(req, why, answer_user);
}

void
kvcfs_wait_for_commit(Kvcfs *fs,
		      fuse_req_t req,
		      const KvcfsClosingFilter *filter,
		      void (*answer)(fuse_req_t req, KvcfsWake why, void *user),
		      void *user)
{
	CommitWait *wait = g_new(CommitWait, 1);
	int64_t now = kvcfs_now_ns();
	*wait = (CommitWait){fs, *filter, now, 0, FIRST_STEP_NS / 2, now, answer, user};
	wait_step(req, KVCFS_WAKE_DONE, wait);
}
