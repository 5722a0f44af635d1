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
	GList link;	/* in all */
	int64_t due_ns; /* to be answered, afterwards to be freed */
	bool is_queued; /* in due */
	bool is_answered;
	bool is_over; /* the answer has returned */
	bool is_interrupted;
	bool is_released; /* the waker has given its reference back */
};

struct KvcfsPendings {
	uint64_t *n_interrupted; /* Atomic */
	pthread_mutex_t lock;
	pthread_cond_t wake;
	pthread_t thread;
	/* Protected by lock. */
	GQueue all;
	GTree *due;	      /* of these, the ones with something to be done, by when */
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

static int
compare_due(const void *a, const void *b, void *user)
{
	const KvcfsPending *p = a, *q = b;
	if (p->due_ns != q->due_ns)
		return p->due_ns < q->due_ns ? -1 : 1;
	return p == q ? 0 : p < q ? -1 : 1;
}

static void
unqueue_locked(KvcfsPending *p)
{
	if (p->is_queued)
		g_tree_remove(p->owner->due, p);
	p->is_queued = false;
}

static void
queue_locked(KvcfsPending *p, int64_t due_ns)
{
	unqueue_locked(p);
	p->due_ns = due_ns;
	p->is_queued = true;
	g_tree_insert(p->owner->due, p, p);
	wake_thread_locked(p->owner, due_ns);
}

/* Claims the answer; the caller then calls p->answer without the lock. */
static bool
claim_locked(KvcfsPending *p)
{
	if (p->is_answered)
		return false;
	p->is_answered = true;
	unqueue_locked(p);
	p->owner->n_answering++;
	return true;
}

static KvcfsWake
due_reason(const KvcfsPending *p)
{
	return p->is_interrupted || p->owner->is_stopping ? KVCFS_WAKE_INTERRUPT
							  : KVCFS_WAKE_TIMEOUT;
}

static void
free_locked(KvcfsPending *p)
{
	g_queue_unlink(&p->owner->all, &p->link);
	g_free(p);
}

/*
 * Returns an unanswered one that is due (claimed), or NULL; frees what has been answered long
 * enough; *NEXT is when to look again. At a stop everything is due.
 */
static KvcfsPending *
find_due_locked(KvcfsPendings *pendings, int64_t now, int64_t *next)
{
	GTreeNode *first;
	*next = INT64_MAX;
	while ((first = g_tree_node_first(pendings->due))) {
		KvcfsPending *p = g_tree_node_key(first);
		bool is_due = p->due_ns <= now;
		if (!is_due && !pendings->is_stopping) {
			*next = p->due_ns;
			break;
		}
		if (claim_locked(p))
			return p;
		unqueue_locked(p);
		if (is_due)
			free_locked(p);
	}
	return NULL;
}

static void
answer(KvcfsPending *p, KvcfsWake why)
{
	KvcfsPendings *pendings = p->owner;
	p->answer(p->req, why, p->user);
	pthread_mutex_lock(&pendings->lock);
	p->is_over = true;
	if (--pendings->n_answering == 0)
		pthread_cond_broadcast(&pendings->idle);
	if (p->is_released)
		queue_locked(p, now_ns() + GRACE_NS);
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
			if (p->is_interrupted)
				__atomic_fetch_add(pendings->n_interrupted, 1, __ATOMIC_RELAXED);
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
kvcfs_pendings_new(uint64_t *n_interrupted)
{
	KvcfsPendings *pendings = g_new0(KvcfsPendings, 1);
	pthread_condattr_t attr;
	pendings->n_interrupted = n_interrupted;
	pthread_mutex_init(&pendings->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&pendings->wake, &attr);
	pthread_condattr_destroy(&attr);
	pthread_cond_init(&pendings->idle, NULL);
	pendings->due = g_tree_new_full(compare_due, NULL, NULL, NULL);
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
	g_tree_unref(pendings->due);
	while (pendings->all.head)
		free_locked(pendings->all.head->data);
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
	if (p->is_queued && !p->is_answered)
		queue_locked(p, INT64_MIN);
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
	};
	p->link.data = p;
	/* Before it can be answered: afterwards the request may be gone. */
	if (req)
		fuse_req_interrupt_func(req, on_interrupt, p);
	pthread_mutex_lock(&pendings->lock);
	g_queue_push_tail_link(&pendings->all, &p->link);
	bool is_stopping = pendings->is_stopping && claim_locked(p);
	if (!is_stopping)
		queue_locked(p, p->is_interrupted ? INT64_MIN : deadline_ns);
	pthread_mutex_unlock(&pendings->lock);
	if (is_stopping)
		answer(p, KVCFS_WAKE_INTERRUPT);
	return p;
}

static void
release_locked(KvcfsPending *p)
{
	p->is_released = true;
	if (p->is_over)
		queue_locked(p, now_ns() + GRACE_NS);
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
	for (GList *link = pendings->all.head; link; link = link->next) {
		const KvcfsPending *p = link->data;
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
