/* SPDX-License-Identifier: Apache-2.0 */
#include "fs/loop.h"

#include <errno.h>
#include <fcntl.h>
#include <glib.h>
#include <linux/fuse.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "kvcache/io.h"

/* As many requests can be in handlers at a time. */
#define THREADS 16
#define CORES_PER_READER 4
/*
 * To be woken costs a reader (and the caller, who waits for it) 10 us and more on a virtual
 * machine, several times what a short request takes. While requests follow each other it looks for
 * the next one this long before it sleeps.
 */
#define LOOK_NS INT64_C(20000)
#define FOLLOWS_NS (3 * LOOK_NS)

struct KvcfsLoop {
	/* Immutable while threads run. */
	struct fuse_session *se;
	/* What readers sleep in; -1: in read(2). */
	int epoll_fd;
	/* Protects what follows; nothing is called under it. */
	pthread_mutex_t lock;
	pthread_cond_t may_read;
	/* How many more threads may read. */
	int permits;
	/* Those that were started and not joined, and how many of them have not ended. */
	pthread_t threads[THREADS];
	int n_threads;
	int n_active;
	int error;
	/* n_active went down. */
	pthread_cond_t ended;
};

/* The loop whose permit to read this thread has. */
static _Thread_local KvcfsLoop *reads_for;

/*
 * From here on read(2) does not sleep. Of the readers that sleep in what this returns one is woken
 * for a request: it reads until there is none. -1: read(2) sleeps, as on one core, where there is
 * nothing to gain.
 */
static int
make_epoll(struct fuse_session *se)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLET};
	int se_fd = fuse_session_fd(se);
	if (g_get_num_processors() == 1)
		return -1;
	int fd = epoll_create1(EPOLL_CLOEXEC);
	if (fd < 0)
		return -1;
	int flags = fcntl(se_fd, F_GETFL);
	if (epoll_ctl(fd, EPOLL_CTL_ADD, se_fd, &event) != 0 || flags < 0 ||
	    fcntl(se_fd, F_SETFL, flags | O_NONBLOCK) != 0) {
		close(fd);
		return -1;
	}
	return fd;
}

KvcfsLoop *
kvcfs_loop_new(struct fuse_session *se)
{
	KvcfsLoop *loop = g_new0(KvcfsLoop, 1);
	loop->se = se;
	loop->epoll_fd = -1;
	loop->permits = CLAMP((int)g_get_num_processors() / CORES_PER_READER, 1, THREADS);
	pthread_mutex_init(&loop->lock, NULL);
	pthread_cond_init(&loop->may_read, NULL);
	pthread_cond_init(&loop->ended, NULL);
	return loop;
}

void
kvcfs_loop_free(KvcfsLoop *loop)
{
	if (loop == NULL)
		return;
	pthread_cond_destroy(&loop->ended);
	pthread_cond_destroy(&loop->may_read);
	pthread_mutex_destroy(&loop->lock);
	if (loop->epoll_fd >= 0)
		close(loop->epoll_fd);
	g_free(loop);
}

/* ---- Who reads ----------------------------------------------------------------------------- */

static void
take_permit(KvcfsLoop *loop)
{
	if (reads_for != NULL)
		return;
	pthread_mutex_lock(&loop->lock);
	while (loop->permits == 0)
		pthread_cond_wait(&loop->may_read, &loop->lock);
	loop->permits--;
	pthread_mutex_unlock(&loop->lock);
	reads_for = loop;
}

void
kvcfs_loop_hand_over(void)
{
	KvcfsLoop *loop = reads_for;
	if (loop == NULL)
		return;
	reads_for = NULL;
	pthread_mutex_lock(&loop->lock);
	loop->permits++;
	pthread_mutex_unlock(&loop->lock);
	pthread_cond_signal(&loop->may_read);
}

static bool
is_read_only(uint32_t flags)
{
	return (flags & (O_ACCMODE | O_TRUNC)) == O_RDONLY;
}

bool
kvcfs_loop_is_short(const void *mem, size_t size)
{
	struct fuse_in_header in;
	struct fuse_open_in open_in;
	struct fuse_release_in release_in;
	if (mem == NULL || size < sizeof in)
		return false;
	memcpy(&in, mem, sizeof in);
	const void *arg = (const char *)mem + sizeof in;
	size -= sizeof in;

	switch (in.opcode) {
	case FUSE_LOOKUP:
	case FUSE_FORGET:
	case FUSE_GETATTR:
	case FUSE_INTERRUPT:
		return true;
	case FUSE_OPEN:
		if (size < sizeof open_in)
			return false;
		memcpy(&open_in, arg, sizeof open_in);
		return is_read_only(open_in.flags);
	case FUSE_RELEASE:
		if (size < sizeof release_in)
			return false;
		memcpy(&release_in, arg, sizeof release_in);
		return is_read_only(release_in.flags);
	default:
		return false;
	}
}

/* ---- The threads --------------------------------------------------------------------------- */

static void
set_error(KvcfsLoop *loop, int error)
{
	pthread_mutex_lock(&loop->lock);
	if (loop->error == 0)
		loop->error = error;
	pthread_mutex_unlock(&loop->lock);
}

typedef struct {
	KvcfsLoop *loop;
	struct fuse_buf buf;
	/* When its last request had been answered, if that was a short one; or 0. */
	int64_t answered_ns;
	/* The request before that had come soon after another. */
	bool is_busy;
} Thread;

/* Also of a thread that is cancelled. The first that ends tells run(), which ends the others. */
static void
thread_ends(void *data)
{
	Thread *self = data;
	KvcfsLoop *loop = self->loop;
	free(self->buf.mem);
	kvcfs_loop_hand_over();
	pthread_mutex_lock(&loop->lock);
	loop->n_active--;
	pthread_cond_signal(&loop->ended);
	pthread_mutex_unlock(&loop->lock);
}

/* Only here a thread can be cancelled: a handler is never cut short. */
static int
receive(Thread *self)
{
	int64_t answered_ns = self->answered_ns;
	int n;
	pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL);
	while ((n = fuse_session_receive_buf(self->loop->se, &self->buf)) == -EAGAIN) {
		struct epoll_event event;
		if (!self->is_busy || kvc_now_ns() - answered_ns >= LOOK_NS)
			epoll_wait(self->loop->epoll_fd, &event, 1, -1);
	}
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	self->is_busy = answered_ns != 0 && kvc_now_ns() - answered_ns < FOLLOWS_NS;
	self->answered_ns = 0;
	return n;
}

static void
answer_until_exit(Thread *self)
{
	KvcfsLoop *loop = self->loop;
	for (;;) {
		take_permit(loop);
		if (fuse_session_exited(loop->se))
			return;
		int n = receive(self);
		if (n == -EINTR)
			continue;
		if (n <= 0) {
			if (n < 0)
				set_error(loop, n);
			fuse_session_exit(loop->se);
			return;
		}
		if ((self->buf.flags & FUSE_BUF_IS_FD) != 0 ||
		    !kvcfs_loop_is_short(self->buf.mem, self->buf.size))
			kvcfs_loop_hand_over();
		fuse_session_process_buf(loop->se, &self->buf);
		if (reads_for != NULL && loop->epoll_fd >= 0)
			self->answered_ns = kvc_now_ns();
	}
}

static void *
answer_requests(void *data)
{
	Thread self = {.loop = data};
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL);
	pthread_setname_np(pthread_self(), "kvcfs-request");
	pthread_cleanup_push(thread_ends, &self);
	answer_until_exit(&self);
	pthread_cleanup_pop(true);
	return NULL;
}

static void
wake_locked(KvcfsLoop *loop)
{
	for (int i = 0; i < loop->n_threads; i++)
		pthread_cancel(loop->threads[i]);
}

void
kvcfs_loop_wake(KvcfsLoop *loop)
{
	pthread_mutex_lock(&loop->lock);
	wake_locked(loop);
	pthread_mutex_unlock(&loop->lock);
}

static void
start_threads_locked(KvcfsLoop *loop)
{
	while (loop->n_threads < THREADS) {
		int error = pthread_create(&loop->threads[loop->n_threads], NULL, answer_requests,
					   loop);
		if (error != 0) {
			/* Fewer will do, none will not. */
			g_warning("thread %d for requests: %s", loop->n_threads, g_strerror(error));
			if (loop->n_threads == 0)
				loop->error = -error;
			break;
		}
		loop->n_threads++;
		loop->n_active++;
	}
}

int
kvcfs_loop_run(KvcfsLoop *loop)
{
	loop->epoll_fd = make_epoll(loop->se);
	pthread_mutex_lock(&loop->lock);
	start_threads_locked(loop);
	int n_threads = loop->n_threads;
	while (n_threads > 0 && loop->n_active == n_threads)
		pthread_cond_wait(&loop->ended, &loop->lock);
	wake_locked(loop);
	while (loop->n_active > 0)
		pthread_cond_wait(&loop->ended, &loop->lock);
	/* From here wake() finds none: who was joined must not be cancelled. */
	loop->n_threads = 0;
	int error = loop->error;
	pthread_mutex_unlock(&loop->lock);
	for (int i = 0; i < n_threads; i++)
		pthread_join(loop->threads[i], NULL);
	return error;
}
