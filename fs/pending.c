/* SPDX-License-Identifier: Apache-2.0 */

#include "fs/pending.h"

#include <errno.h>
#include <pthread.h>
#include <time.h>

/*
 * libfuse may be about to call the interrupt function of a request that is being answered. So an
 * answered one is not freed before this has passed.
 */
#define GRACE_NS (INT64_C(1000) * 1000 * 1000)

struct KvcfsPending {
	/* Immutable. */
	KvcfsPendings *owner;
	fuse_req_t req;
	void (*answer)(fuse_req_t req, KvcfsWake why, void *user);
	void *user;
	int64_t since_ns;

	/* Protected by the owner's lock. */
	int64_t deadline_ns; /* when answered and released: when to free */
	bool is_answered;
	bool is_interrupted;
	bool is_released; /* the waker has given its reference back */
};

struct KvcfsPendings {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	/* Protected by lock. */
	GPtrArray *all;
	int64_t wake_at_ns;   /* when the thread will look again by itself */
	unsigned n_answering; /* claimed, their answer is running */
	pthread_cond_t idle;  /* none is */
	bool is_stopping;
};

static int64_t
now_ns(void)
{
	struct timespec ts;
	clock_gettime(CLOCK_MONOTONIC, &ts);
	return ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec;
}

/* The thread must look before AT. */
static void
wake_thread_locked(KvcfsPendings *pendings, int64_t at)
{
	if (at < pendings->wake_at_ns) {
		pendings->wake_at_ns = at;
		pthread_cond_signal(&pendings->wake);
	}
}

/* Claims the answer; the caller then calls p->answer without the lock. */
static bool
claim_locked(KvcfsPending *p)
{
	if (p->is_answered)
		return false;
	p->is_answered = true;
	p->owner->n_answering++;
	return true;
}

static KvcfsWake
due_reason(const KvcfsPending *p)
{
	return p->is_interrupted || p->owner->is_stopping ? KVCFS_WAKE_INTERRUPT
							  : KVCFS_WAKE_TIMEOUT;
}

/*
 * One pass: returns an unanswered one that is due (claimed), or NULL; frees what has been answered
 * long enough; *NEXT is when to look again.
 */
static KvcfsPending *
find_due_locked(KvcfsPendings *pendings, int64_t now, int64_t *next)
{
	*next = INT64_MAX;
	for (guint i = 0; i < pendings->all->len;) {
		KvcfsPending *p = pendings->all->pdata[i];
		bool is_due = p->is_interrupted || pendings->is_stopping || p->deadline_ns <= now;
		if (!p->is_answered && is_due && claim_locked(p))
			return p;
		if (p->is_answered && p->is_released && p->deadline_ns <= now) {
			g_ptr_array_remove_index_fast(pendings->all, i);
			g_free(p);
			continue;
		}
		if (!p->is_answered || p->is_released)
			*next = MIN(*next, p->deadline_ns);
		i++;
	}
	return NULL;
}

static void
answer(KvcfsPending *p, KvcfsWake why)
{
	KvcfsPendings *pendings = p->owner;
	p->answer(p->req, why, p->user);
	pthread_mutex_lock(&pendings->lock);
	p->deadline_ns = now_ns() + GRACE_NS;
	if (--pendings->n_answering == 0)
		pthread_cond_broadcast(&pendings->idle);
	if (p->is_released)
		wake_thread_locked(pendings, p->deadline_ns);
	pthread_mutex_unlock(&pendings->lock);
}

static void
wait_locked(KvcfsPendings *pendings, int64_t next)
{
	pendings->wake_at_ns = next;
	while (pendings->wake_at_ns == next && now_ns() < next) {
		if (next == INT64_MAX) {
			pthread_cond_wait(&pendings->wake, &pendings->lock);
			continue;
		}
		struct timespec ts = {next / 1000000000, next % 1000000000};
		if (pthread_cond_timedwait(&pendings->wake, &pendings->lock, &ts) == ETIMEDOUT)
			break;
	}
}

static void *
deadline_thread(void *data)
{
	KvcfsPendings *pendings = data;
	pthread_setname_np(pthread_self(), "kvcfs-deadline");
	pthread_mutex_lock(&pendings->lock);
	for (;;) {
		int64_t next;
		pendings->wake_at_ns = 0;
		KvcfsPending *p = find_due_locked(pendings, now_ns(), &next);
		if (p) {
			KvcfsWake why = due_reason(p);
			pthread_mutex_unlock(&pendings->lock);
			answer(p, why);
			pthread_mutex_lock(&pendings->lock);
		} else if (pendings->is_stopping) {
			break;
		} else {
			wait_locked(pendings, next);
		}
	}
	pthread_mutex_unlock(&pendings->lock);
	return NULL;
}

KvcfsPendings *
kvcfs_pendings_new(void)
{
	KvcfsPendings *pendings = g_new0(KvcfsPendings, 1);
	pthread_condattr_t attr;
	pthread_mutex_init(&pendings->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pendings->wake, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&pendings->idle, NULL);
	pendings->all = g_ptr_array_new();
	if (pthread_create(&pendings->thread, NULL, deadline_thread, pendings) != 0)
		g_error("cannot start a thread");
	return pendings;
}

void
kvcfs_pendings_stop(KvcfsPendings *pendings)
{
	pthread_mutex_lock(&pendings->lock);
	bool was_stopping = pendings->is_stopping;
	pendings->is_stopping = true;
	wake_thread_locked(pendings, INT64_MIN);
	pthread_mutex_unlock(&pendings->lock);
	if (was_stopping)
		return;
	pthread_join(pendings->thread, NULL);
	/* Answers run in the engine's threads too: what they use may be freed after this. */
	pthread_mutex_lock(&pendings->lock);
	while (pendings->n_answering > 0)
		pthread_cond_wait(&pendings->idle, &pendings->lock);
	pthread_mutex_unlock(&pendings->lock);
}

void
kvcfs_pendings_free(KvcfsPendings *pendings)
{
	kvcfs_pendings_stop(pendings);
	for (guint i = 0; i < pendings->all->len; i++)
		g_free(pendings->all->pdata[i]);
	g_ptr_array_unref(pendings->all);
	pthread_cond_destroy(&pendings->wake);
	pthread_cond_destroy(&pendings->idle);
	pthread_mutex_destroy(&pendings->lock);
	g_free(pendings);
}

/* Called by libfuse with the request's lock held: only marks. */
static void
on_interrupt(fuse_req_t req, void *data)
{
	KvcfsPending *p = data;
	pthread_mutex_lock(&p->owner->lock);
	p->is_interrupted = true;
	wake_thread_locked(p->owner, INT64_MIN);
	pthread_mutex_unlock(&p->owner->lock);
}

KvcfsPending *
kvcfs_pending_new(KvcfsPendings *pendings,
		  fuse_req_t req,
		  int64_t deadline_ns,
		  void (*answer_func)(fuse_req_t req, KvcfsWake why, void *user),
		  void *user)
{
	KvcfsPending *p = g_new0(KvcfsPending, 1);
	*p = (KvcfsPending){
		.owner = pendings,
		.req = req,
		.answer = answer_func,
		.user = user,
		.since_ns = now_ns(),
		.deadline_ns = deadline_ns,
	};
	/* Before it can be answered: afterwards the request may be gone. */
	if (req)
		fuse_req_interrupt_func(req, on_interrupt, p);
	pthread_mutex_lock(&pendings->lock);
	g_ptr_array_add(pendings->all, p);
	bool is_stopping = pendings->is_stopping && claim_locked(p);
	wake_thread_locked(pendings, p->is_interrupted ? INT64_MIN : deadline_ns);
	pthread_mutex_unlock(&pendings->lock);
	if (is_stopping)
		answer(p, KVCFS_WAKE_INTERRUPT);
	return p;
}

static void
release_locked(KvcfsPending *p)
{
	p->is_released = true;
	wake_thread_locked(p->owner, p->deadline_ns);
}

void
kvcfs_pending_wake(KvcfsPending *p)
{
	KvcfsPendings *pendings = p->owner;
	pthread_mutex_lock(&pendings->lock);
	bool mine = claim_locked(p);
	pthread_mutex_unlock(&pendings->lock);
	if (mine)
		answer(p, KVCFS_WAKE_DONE);
	kvcfs_pending_release(p);
}

void
kvcfs_pending_wake_all(GPtrArray *pendings)
{
	if (!pendings)
		return;
	for (guint i = 0; i < pendings->len; i++)
		kvcfs_pending_wake(pendings->pdata[i]);
	g_ptr_array_unref(pendings);
}

unsigned
kvcfs_pendings_count(KvcfsPendings *pendings, int64_t *oldest_ns)
{
	unsigned n = 0;
	*oldest_ns = 0;
	pthread_mutex_lock(&pendings->lock);
	for (guint i = 0; i < pendings->all->len; i++) {
		const KvcfsPending *p = pendings->all->pdata[i];
		if (p->is_answered || !p->req)
			continue;
		n++;
		if (*oldest_ns == 0 || p->since_ns < *oldest_ns)
			*oldest_ns = p->since_ns;
	}
	pthread_mutex_unlock(&pendings->lock);
	return n;
}

void
kvcfs_pending_release(KvcfsPending *p)
{
	KvcfsPendings *pendings = p->owner;
	pthread_mutex_lock(&pendings->lock);
	release_locked(p);
	pthread_mutex_unlock(&pendings->lock);
}
