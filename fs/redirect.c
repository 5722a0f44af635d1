/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The kernel sends OPEN, not CREATE, for a name that exists, and all opens of an inode share one
 * file. Who wants to write a committed object needs another inode: its OPEN is answered ESTALE
 * once, the kernel walks the path again, and the LOOKUPs of that thread for that name are answered
 * with a private inode (do_filp_open() of Linux, fs/namei.c: LOOKUP_REVAL).
 *
 * A redirect holds a reference on the private inode, since the FORGET of the first LOOKUP comes
 * between the two. It ends when it is used, with the thread, or after REDIRECT_NS: else the
 * thread's next stat of that name would land on it.
 *
 * Who reads may be sent back, too, when what he found was replaced since. The kernel walks once
 * only: the version that this second LOOKUP finds is read-locked for the OPEN that follows. A later
 * one under the inode of that version could have another size than the kernel knows, and the answer
 * to a GETATTR does not always mend that (its fs/fuse/inode.c: attr_version).
 */

#include "fs/internal.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

/* On a loaded machine the thread may be away for seconds before it walks again. */
#define REDIRECT_NS INT64_C(5000000000)
#define SWEEP_NS INT64_C(1000000000)

typedef struct Redirect {
	/* What is looked up: an object, or a temporary file by its name. */
	KvcObjectKey *key; /* owned, or NULL */
	KvcfsInode *dir;   /* owned reference, or NULL */
	char *name;	   /* or NULL */
	KvcfsInode *inode; /* owned reference; NULL: only "its one retry is used" */
	/* What the LOOKUP of a retry found, an owned reference, and its version: a read lock. */
	KvcfsInode *found;
	KvcL1Object *found_object;
	/* What an OPEN for writing was of, and may have lost its name. Owned reference, or NULL */
	KvcfsInode *origin;
	bool truncates;
	unsigned n_not_found; /* LOOKUPs for it that found nothing */
	int64_t deadline_ns;  /* CLOCK_MONOTONIC */
} Redirect;

static void
redirect_free(Redirect *redirect)
{
	if (!redirect)
		return;
	if (redirect->key)
		kvc_object_key_unref(redirect->key);
	if (redirect->dir)
		kvcfs_inode_unref(redirect->dir, 1);
	if (redirect->inode)
		kvcfs_inode_unref(redirect->inode, 1);
	if (redirect->origin)
		kvcfs_inode_unref(redirect->origin, 1);
	if (redirect->found) {
		kvc_storage_manager_finish_read(redirect->found->fs->sm, redirect->found_object);
		kvcfs_inode_unref(redirect->found, 1);
	}
	g_free(redirect->name);
	g_free(redirect);
}

/* The redirect of TID leaves the table; to be freed without the lock. */
static Redirect *
steal_locked(Kvcfs *fs, pid_t tid)
{
	Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	g_hash_table_remove(fs->redirects, GINT_TO_POINTER(tid));
	__atomic_store_n(&fs->n_redirects, g_hash_table_size(fs->redirects), __ATOMIC_RELEASE);
	return redirect;
}

/* One that we may not ask about is there. */
static bool
has_ended(pid_t tid)
{
	return kill(tid, 0) != 0 && errno == ESRCH;
}

/* Those whose time is over, of all threads; to be freed without the lock. */
static GPtrArray *
steal_expired_locked(Kvcfs *fs, int64_t now)
{
	GPtrArray *expired = g_ptr_array_new_with_free_func((GDestroyNotify)redirect_free);
	GHashTableIter iter;
	Redirect *redirect;
	void *tid;
	g_hash_table_iter_init(&iter, fs->redirects);
	while (g_hash_table_iter_next(&iter, &tid, (void **)&redirect)) {
		if (redirect->deadline_ns > now && !has_ended(GPOINTER_TO_INT(tid)))
			continue;
		g_ptr_array_add(expired, redirect);
		g_hash_table_iter_remove(&iter);
	}
	__atomic_store_n(&fs->n_redirects, g_hash_table_size(fs->redirects), __ATOMIC_RELEASE);
	return expired;
}

static void arm_sweep(Kvcfs *fs);

static void
sweep(fuse_req_t req, KvcfsWake why, void *user)
{
	Kvcfs *fs = user;
	int64_t now = why == KVCFS_WAKE_TIMEOUT ? kvcfs_now_ns() : INT64_MAX;
	pthread_mutex_lock(&fs->names);
	GPtrArray *expired = steal_expired_locked(fs, now);
	bool is_empty = g_hash_table_size(fs->redirects) == 0;
	fs->is_sweep_armed = !is_empty;
	pthread_mutex_unlock(&fs->names);
	g_ptr_array_unref(expired);
	if (!is_empty)
		arm_sweep(fs);
}

static void
arm_sweep(Kvcfs *fs)
{
	kvcfs_pending_release(
		kvcfs_pending_new(fs->pendings, NULL, kvcfs_now_ns() + SWEEP_NS, sweep, fs));
}

/* REDIRECT (owned) becomes the one of TID. */
static void
add(Kvcfs *fs, pid_t tid, Redirect *redirect)
{
	redirect->deadline_ns = kvcfs_now_ns() + REDIRECT_NS;
	pthread_mutex_lock(&fs->names);
	Redirect *old = steal_locked(fs, tid);
	g_hash_table_insert(fs->redirects, GINT_TO_POINTER(tid), redirect);
	__atomic_store_n(&fs->n_redirects, g_hash_table_size(fs->redirects), __ATOMIC_RELEASE);
	bool must_arm = !fs->is_sweep_armed;
	fs->is_sweep_armed = true;
	pthread_mutex_unlock(&fs->names);
	redirect_free(old);
	if (must_arm)
		arm_sweep(fs);
}

void
kvcfs_redirect_object(Kvcfs *fs, pid_t tid, KvcObjectKey *key, KvcfsInode *inode)
{
	Redirect *redirect = g_new0(Redirect, 1);
	redirect->key = kvc_object_key_ref(key);
	redirect->inode = inode;
	add(fs, tid, redirect);
}

void
kvcfs_redirect_writer(Kvcfs *fs, pid_t tid, KvcfsInode *origin, bool truncates, KvcfsInode *private)
{
	Redirect *redirect = g_new0(Redirect, 1);
	redirect->key = kvc_object_key_ref(kvcfs_inode_get_key(origin));
	redirect->inode = private;
	redirect->origin = kvcfs_inode_ref(origin);
	redirect->truncates = truncates;
	add(fs, tid, redirect);
}

void
kvcfs_redirect_temp(Kvcfs *fs, pid_t tid, KvcfsInode *dir, const char *name, KvcfsInode *inode)
{
	Redirect *redirect = g_new0(Redirect, 1);
	redirect->dir = kvcfs_inode_ref(dir);
	redirect->name = g_strdup(name);
	redirect->inode = inode;
	add(fs, tid, redirect);
}

static bool
is_meant(const Redirect *redirect, const KvcfsInode *dir, const char *name, const KvcObjectKey *key)
{
	if (redirect->key)
		return key && kvc_object_key_equal(redirect->key, key);
	return redirect->dir == dir && strcmp(redirect->name, name) == 0;
}

/* Is INODE what its key stands for now? */
static bool
is_current_locked(const KvcfsInode *inode)
{
	return inode->key && !inode->staging &&
	       g_hash_table_lookup(inode->fs->objects, inode->key) == inode;
}

static bool
had_key_locked(const KvcfsInode *inode, const KvcObjectKey *key)
{
	for (const KvcfsRetired *r = inode->retired; r; r = r->next)
		if (r->free_func == (GDestroyNotify)kvc_object_key_unref &&
		    kvc_object_key_equal(r->data, key))
			return true;
	return false;
}

/* The private INODE, which nobody has opened, has no name to commit to. */
static bool
is_gone_locked(const KvcfsInode *inode)
{
	const KvcfsStaging *st = inode->staging;
	return st && st->is_expected && st->is_target_gone;
}

KvcfsInode *
kvcfs_redirect_lookup(KvcfsInode *dir, const char *name, pid_t tid)
{
	Kvcfs *fs = dir->fs;
	KvcfsInode *inode = NULL, *lost = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0 || !dir->scope)
		return NULL;
	g_autoptr(KvcObjectKey) key = kvcfs_name_to_key(dir->scope, name);
	pthread_mutex_lock(&fs->names);
	Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_for_it = redirect && redirect->inode && redirect->deadline_ns > kvcfs_now_ns() &&
			 is_meant(redirect, dir, name, key);
	/* Removed since: this LOOKUP finds what is there now, see steal_lost(). */
	if (is_for_it && redirect->origin && is_gone_locked(redirect->inode))
		lost = g_steal_pointer(&redirect->inode);
	else if (is_for_it)
		inode = kvcfs_inode_ref_locked(redirect->inode);
	pthread_mutex_unlock(&fs->names);
	if (lost)
		kvcfs_inode_unref(lost, 1);
	return inode;
}

/*
 * The redirect of TID when the name KEY is the one that it wants to write, but what its first OPEN
 * was of has lost that name; it leaves the table. NULL: there is none, or it has not been in vain
 * N_NOT_FOUND times.
 */
static Redirect *
steal_lost(Kvcfs *fs, const KvcObjectKey *key, pid_t tid, unsigned n_not_found)
{
	Redirect *lost = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return NULL;
	pthread_mutex_lock(&fs->names);
	Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_writers = redirect && redirect->origin && redirect->deadline_ns > kvcfs_now_ns();
	if (is_writers &&
	    ((!redirect->inode && redirect->key && kvc_object_key_equal(redirect->key, key)) ||
	     had_key_locked(redirect->origin, key)) &&
	    (n_not_found == 0 || ++redirect->n_not_found >= n_not_found))
		lost = steal_locked(fs, tid);
	pthread_mutex_unlock(&fs->names);
	return lost;
}

KvcfsInode *
kvcfs_redirect_found(Kvcfs *fs, KvcObjectKey *key, pid_t tid)
{
	KvcfsInode *private = NULL;
	Redirect *lost = steal_lost(fs, key, tid, 0);
	if (!lost || __atomic_load_n(&fs->is_draining, __ATOMIC_RELAXED)) {
		redirect_free(lost);
		return NULL;
	}
	pthread_mutex_lock(&fs->names);
	KvcfsInode *inode = kvcfs_object_inode_locked(fs, key);
	pthread_mutex_unlock(&fs->names);
	if (kvcfs_overwrite_begin(inode, lost->truncates, &private) == 0) {
		kvcfs_inode_ref(private);
		kvcfs_redirect_object(fs, tid, key, private);
	}
	kvcfs_inode_unref(inode, 1);
	redirect_free(lost);
	return private;
}

void
kvcfs_redirect_not_found(Kvcfs *fs, const KvcObjectKey *key, pid_t tid)
{
	/* The kernel asks twice in one walk: is what it has still right, and what is there. */
	redirect_free(steal_lost(fs, key, tid, 2));
}

void
kvcfs_redirect_created(Kvcfs *fs, const KvcObjectKey *key, pid_t tid)
{
	redirect_free(steal_lost(fs, key, tid, 0));
}

/* ---- Temporary files that lose their names --------------------------------------------------- */

/* Does TID want to write the temporary file NAME in DIR, and what its OPEN was of has lost that
 * name? */
static bool
wants_temp_locked(const Redirect *redirect, const KvcfsInode *dir, const char *name)
{
	const KvcfsInode *origin = redirect ? redirect->origin : NULL;
	return origin && redirect->deadline_ns > kvcfs_now_ns() && origin->was_temp_in == dir &&
	       g_strcmp0(origin->was_temp_name, name) == 0;
}

KvcfsInode *
kvcfs_redirect_found_temp(KvcfsInode *dir, const char *name, pid_t tid)
{
	Kvcfs *fs = dir->fs;
	KvcfsInode *there = NULL, *fresh = NULL, *its_dir = NULL;
	g_autofree char *its_name = NULL;
	Redirect *lost = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return NULL;
	pthread_mutex_lock(&fs->names);
	const Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	if (wants_temp_locked(redirect, dir, name) && redirect->truncates)
		there = kvcfs_temp_lookup_locked(dir, name);
	if (there) {
		kvcfs_inode_ref_locked(there);
		lost = steal_locked(fs, tid);
	}
	pthread_mutex_unlock(&fs->names);
	if (!there)
		return NULL;
	if (kvcfs_staging_displace(there, &fresh, &its_dir, &its_name) > 0) {
		kvcfs_inode_ref(fresh);
		kvcfs_redirect_temp(fs, tid, dir, name, fresh);
	}
	if (its_dir)
		kvcfs_inode_unref(its_dir, 1);
	kvcfs_inode_unref(there, 1);
	redirect_free(lost);
	return fresh;
}

void
kvcfs_redirect_created_temp(KvcfsInode *dir, const char *name, pid_t tid)
{
	Kvcfs *fs = dir->fs;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return;
	pthread_mutex_lock(&fs->names);
	const Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_over = wants_temp_locked(redirect, dir, name);
	Redirect *lost = is_over ? steal_locked(fs, tid) : NULL;
	pthread_mutex_unlock(&fs->names);
	redirect_free(lost);
}

bool
kvcfs_redirect_retry_temp(Kvcfs *fs, pid_t tid, KvcfsInode *inode, bool truncates)
{
	if (tid == 0)
		return false; /* nobody in particular */
	pthread_mutex_lock(&fs->names);
	Redirect *old = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_used = old && old->origin && !old->key && old->deadline_ns > kvcfs_now_ns();
	old = is_used ? steal_locked(fs, tid) : NULL;
	pthread_mutex_unlock(&fs->names);
	redirect_free(old);
	if (is_used)
		return false;
	Redirect *redirect = g_new0(Redirect, 1);
	redirect->origin = kvcfs_inode_ref(inode);
	redirect->truncates = truncates;
	add(fs, tid, redirect);
	return true;
}

/* ---- The end --------------------------------------------------------------------------------- */

bool
kvcfs_redirect_take(KvcfsInode *inode, pid_t tid)
{
	Kvcfs *fs = inode->fs;
	Redirect *taken = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return false;
	pthread_mutex_lock(&fs->names);
	const Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	if (redirect && redirect->inode == inode)
		taken = steal_locked(fs, tid);
	pthread_mutex_unlock(&fs->names);
	redirect_free(taken);
	return taken != NULL;
}

bool
kvcfs_redirect_retry_once(Kvcfs *fs, pid_t tid, KvcObjectKey *key)
{
	if (tid == 0)
		return false; /* nobody in particular */
	pthread_mutex_lock(&fs->names);
	Redirect *old = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_used = old && !old->inode && old->key && kvc_object_key_equal(old->key, key) &&
		       old->deadline_ns > kvcfs_now_ns();
	old = is_used ? steal_locked(fs, tid) : NULL;
	pthread_mutex_unlock(&fs->names);
	redirect_free(old);
	if (!is_used)
		kvcfs_redirect_object(fs, tid, key, NULL);
	return !is_used;
}

bool
kvcfs_redirect_retry_writer(Kvcfs *fs, pid_t tid, KvcfsInode *inode, bool truncates)
{
	if (!kvcfs_redirect_retry_once(fs, tid, kvcfs_inode_get_key(inode)))
		return false;
	kvcfs_redirect_writer(fs, tid, inode, truncates, NULL);
	return true;
}

void
kvcfs_redirect_keep_found(KvcfsInode *inode, pid_t tid)
{
	Kvcfs *fs = inode->fs;
	KvcfsInode *old = NULL;
	KvcL1Object *object, *old_object = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return;
	/* With names, under which a commit replaces the object and its inode. */
	pthread_mutex_lock(&fs->names);
	Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	if (redirect && !redirect->inode && !redirect->origin && is_current_locked(inode) &&
	    redirect->key && kvc_object_key_equal(redirect->key, inode->key) &&
	    kvc_storage_manager_reserve_read(fs->sm, inode->key, &object) == 0) {
		old = redirect->found;
		old_object = redirect->found_object;
		redirect->found = kvcfs_inode_ref_locked(inode);
		redirect->found_object = object;
	}
	pthread_mutex_unlock(&fs->names);
	if (old) {
		kvc_storage_manager_finish_read(fs->sm, old_object);
		kvcfs_inode_unref(old, 1);
	}
}

KvcL1Object *
kvcfs_redirect_take_found(KvcfsInode *inode, pid_t tid)
{
	Kvcfs *fs = inode->fs;
	KvcL1Object *object = NULL;
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return NULL;
	pthread_mutex_lock(&fs->names);
	Redirect *redirect = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_found = redirect && redirect->found == inode;
	/* Replaced again before the LOOKUP was answered: the kernel knows another size. */
	if (is_found && inode->told_bytes == kvc_l1_object_get_bytes(redirect->found_object)) {
		object = g_steal_pointer(&redirect->found_object);
		redirect->found = NULL;
	}
	pthread_mutex_unlock(&fs->names);
	if (object)
		kvcfs_inode_unref(inode, 1); /* the caller has his own */
	return object;
}

void
kvcfs_redirect_forget_retry(Kvcfs *fs, pid_t tid, const KvcObjectKey *key)
{
	if (__atomic_load_n(&fs->n_redirects, __ATOMIC_ACQUIRE) == 0)
		return;
	pthread_mutex_lock(&fs->names);
	Redirect *old = g_hash_table_lookup(fs->redirects, GINT_TO_POINTER(tid));
	bool is_mine = old && !old->inode && old->key && kvc_object_key_equal(old->key, key);
	old = is_mine ? steal_locked(fs, tid) : NULL;
	pthread_mutex_unlock(&fs->names);
	redirect_free(old);
}

void
kvcfs_redirects_drop_all(Kvcfs *fs)
{
	pthread_mutex_lock(&fs->names);
	GPtrArray *all = steal_expired_locked(fs, INT64_MAX);
	pthread_mutex_unlock(&fs->names);
	g_ptr_array_unref(all);
}
