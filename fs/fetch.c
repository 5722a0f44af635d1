/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A request that waits for a prefetch. Two parties hold the fetch: the submitter until it knows the
 * handle, and the answer (or who keeps it); the last one drops the handle.
 */

#include "fs/internal.h"

static void
free_fetch(void *user)
{
	KvcfsFetch *fetch = user;
	/* No callback came and none can come: the deadline or an interrupt has answered. */
	if (!__atomic_exchange_n(&fetch->is_woken, 1, __ATOMIC_ACQ_REL))
		kvcfs_pending_release(fetch->pending);
	g_free(fetch);
}

void
kvcfs_fetch_drop(KvcfsFetch *fetch)
{
	if (__atomic_fetch_sub(&fetch->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	kvc_prefetch_handle_drop(kvcfs_fetch_handle(fetch), free_fetch);
}

static void
answer_fetch(fuse_req_t req, KvcfsWake why, void *user)
{
	KvcfsFetch *fetch = user;
	/* Who keeps it may drop it before we are back here. */
	__atomic_fetch_add(&fetch->refs, 1, __ATOMIC_RELAXED);
	if (!fetch->answer(req, why, fetch, fetch->user))
		kvcfs_fetch_drop(fetch);
	kvcfs_fetch_drop(fetch);
}

static void
on_event(void *user, KvcPrefetchHandle *handle)
{
	KvcfsFetch *fetch = user;
	if (__atomic_exchange_n(&fetch->is_woken, 1, __ATOMIC_ACQ_REL))
		return;
	__atomic_store_n(&fetch->handle, handle, __ATOMIC_RELEASE);
	kvcfs_pending_wake(fetch->pending);
}

void
kvcfs_fetch_start(Kvcfs *fs,
		  fuse_req_t req,
		  KvcPrefetchParams *params,
		  bool on_planned,
		  int64_t deadline_ns,
		  bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user),
		  void *user)
{
	KvcfsFetch *fetch = g_new0(KvcfsFetch, 1);
	kvcfs_loop_hand_over(); /* thousands of keys may be submitted */
	fetch->fs = fs;
	fetch->refs = 2;
	fetch->answer = answer;
	fetch->user = user;
	/* An interrupt may answer before the submit: the caller's keys could be gone by then. */
	g_autoptr(GPtrArray) keys =
		g_ptr_array_new_full((guint)params->n_keys, (GDestroyNotify)kvc_object_key_unref);
	for (size_t i = 0; i < params->n_keys; i++)
		g_ptr_array_add(keys, kvc_object_key_ref(params->keys[i]));
	fetch->pending = kvcfs_pending_new(fs->pendings, req, deadline_ns, answer_fetch, fetch);
	params->keys = (KvcObjectKey *const *)keys->pdata;
	params->user = fetch;
	params->planned = on_planned ? on_event : NULL;
	params->done = on_event;
	KvcPrefetchHandle *handle = kvc_storage_manager_submit_prefetch_task(fs->sm, params);
	__atomic_store_n(&fetch->handle, handle, __ATOMIC_RELEASE);
	if (handle->request_id < 0)
		on_event(fetch, handle);
	kvcfs_fetch_drop(fetch);
}

/* ---- One object that is to be loaded for an OPEN --------------------------------------------- */

static void
load_object(Kvcfs *fs,
	    fuse_req_t req,
	    KvcObjectKey *key,
	    int64_t deadline_ns,
	    bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user),
	    void *user)
{
	KvcPrefetchParams params = {
		.keys = &key,
		.n_keys = 1,
		.flags = KVC_PREFETCH_URGENT,
		.timeout_ns = MAX(deadline_ns - kvcfs_now_ns(), 1),
	};
	kvcfs_fetch_start(fs, req, &params, false, deadline_ns, answer, user);
}

/* Waits until L2 has followed a rename of KEY, then loads it. */
typedef struct Await {
	Kvcfs *fs;
	KvcObjectKey *key; /* owned */
	KvcfsPending *pending;
	int refs; /* Atomic: the answer and the engine */
	int64_t deadline_ns;
	bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user);
	void *user;
} Await;

static void
unref_await(Await *await)
{
	if (__atomic_fetch_sub(&await->refs, 1, __ATOMIC_ACQ_REL) != 1)
		return;
	kvc_object_key_unref(await->key);
	g_free(await);
}

static void
answer_await(fuse_req_t req, KvcfsWake why, void *user)
{
	Await *await = user;
	if (why == KVCFS_WAKE_DONE)
		load_object(await->fs, req, await->key, await->deadline_ns, await->answer,
			    await->user);
	else
		await->answer(req, why, NULL, await->user);
	unref_await(await);
}

static void
on_renamed(void *user, int error)
{
	Await *await = user;
	kvcfs_pending_wake(await->pending);
	unref_await(await);
}

void
kvcfs_fetch_object(Kvcfs *fs,
		   fuse_req_t req,
		   KvcObjectKey *key,
		   bool (*answer)(fuse_req_t req, KvcfsWake why, KvcfsFetch *fetch, void *user),
		   void *user)
{
	int64_t deadline = kvcfs_now_ns() + fs->config.load_timeout_ns;
	KvcObjectInfo info;
	if (kvc_storage_manager_stat(fs->sm, key, &info) < 0 || !info.renaming) {
		load_object(fs, req, key, deadline, answer, user);
		return;
	}
	Await *await = g_new0(Await, 1);
	*await = (Await){fs, kvc_object_key_ref(key), NULL, 2, deadline, answer, user};
	g_autoptr(KvcObjectKey) held = kvc_object_key_ref(key);
	await->pending = kvcfs_pending_new(fs->pendings, req, deadline, answer_await, await);
	kvc_storage_manager_await_rename(fs->sm, held, on_renamed, await);
}
