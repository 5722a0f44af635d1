/* SPDX-License-Identifier: Apache-2.0 */

/* Waiting for the result of a request: an event fd, which costs only those who ask for one. */

#include "engine/prefetch-private.h"

#include "kvcache/io.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>

int
kvc_prefetch_handle_get_event_fd(KvcPrefetchHandle *handle)
{
	KvcPrefetchRequest *r = (KvcPrefetchRequest *)handle;
	kvc_mutex_lock(&r->lock);
	int fd = r->done_event_fd;
	if (fd < 0) {
		fd = kvc_eventfd_new();
		if (fd >= 0) {
			r->done_event_fd = fd;
			if (r->result >= 0)
				kvc_eventfd_signal(fd);
		}
	}
	kvc_mutex_unlock(&r->lock);
	return fd;
}

/* Until DEADLINE_NS, rounded up so that it does not end early; -1: none. */
static int
poll_timeout_ms(int64_t deadline_ns)
{
	if (deadline_ns < 0)
		return -1;
	int64_t left_ns = MAX(deadline_ns - kvc_now_ns(), 0);
	return (int)MIN((left_ns + KVC_MSEC_NS - 1) / KVC_MSEC_NS, INT_MAX);
}

int
kvc_prefetch_handle_wait(KvcPrefetchHandle *handle, int64_t timeout_ns)
{
	int64_t now_ns = kvc_now_ns();
	int64_t deadline_ns = timeout_ns < 0 ? -1 : now_ns + MIN(timeout_ns, INT64_MAX - now_ns);
	int fd = kvc_prefetch_handle_get_event_fd(handle);
	struct pollfd event = {.fd = fd, .events = POLLIN};
	if (fd < 0)
		return fd;
	for (;;) {
		int n = poll(&event, 1, poll_timeout_ms(deadline_ns));
		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return -errno;
		if (deadline_ns >= 0 && kvc_now_ns() >= deadline_ns)
			return -ETIMEDOUT;
	}
}
