/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Calls of a store, and its connections. A connection that turns out to be dead is made anew once
 * within a call. While the store cannot be connected to, one thread at a time tries, with growing
 * pauses, and everything else fails at once with the errno of the last try.
 */

#define G_LOG_DOMAIN "kvcache"

#include "engine/connector-private.h"

#include <errno.h>

#define BACKOFF_FIRST_NS (100 * KVC_MSEC_NS)
#define BACKOFF_MAX_NS (5 * KVC_SEC_NS)
/* 1 us for each KB: 1 GB/s of one connection's share would be 1000 times as fast. */
#define NS_PER_BYTE 1000

int64_t
kvc_connector_deadline(const KvcConnector *c, uint64_t bytes)
{
	return kvc_now_ns() + c->request_timeout_ns + (int64_t)(bytes * NS_PER_BYTE);
}

/* ---- Connections --------------------------------------------------------------------------- */

/* May this thread try? Else -errno. */
static int
begin_connect_locked(KvcConnector *c)
{
	if (c->is_stopping)
		return -ECANCELED;
	if (c->connect_error == 0)
		return 0;
	if (c->is_connecting || kvc_now_ns() < c->retry_ns)
		return c->connect_error;
	c->is_connecting = true;
	return 0;
}

static void
note_connect_locked(KvcConnector *c, int rc)
{
	bool is_news = rc != c->connect_error;

	c->is_connecting = false;
	c->connect_error = rc;
	if (rc == 0) {
		c->n_connects++;
		c->backoff_ns = 0;
	} else {
		c->backoff_ns = CLAMP(2 * c->backoff_ns, BACKOFF_FIRST_NS, BACKOFF_MAX_NS);
		c->retry_ns = kvc_now_ns() + c->backoff_ns;
	}
	if (is_news && rc < 0)
		g_warning("%s %s: cannot connect: %s (errno %d)", c->base.l2.ops->type_name,
			  c->location, g_strerror(-rc), -rc);
	else if (is_news)
		g_message("%s %s: connected again", c->base.l2.ops->type_name, c->location);
}

int
kvc_connector_connect(ConnectorLink *link)
{
	KvcConnector *c = link->connector;
	void *connection = NULL;

	if (link->connection)
		return 0;
	kvc_mutex_lock(&c->lock);
	int rc = begin_connect_locked(c);
	kvc_mutex_unlock(&c->lock);
	if (rc < 0)
		return rc;
	rc = c->ops->connect(c->store, &connection, kvc_now_ns() + c->connect_timeout_ns);
	kvc_mutex_lock(&c->lock);
	note_connect_locked(c, rc);
	if (rc == 0)
		link->connection = connection;
	kvc_mutex_unlock(&c->lock);
	return rc;
}

void
kvc_connector_disconnect(ConnectorLink *link)
{
	KvcConnector *c = link->connector;

	kvc_mutex_lock(&c->lock);
	void *connection = g_steal_pointer(&link->connection);
	kvc_mutex_unlock(&c->lock);
	if (connection)
		c->ops->disconnect(connection);
}

/* ---- Calls --------------------------------------------------------------------------------- */

/* Those of ITEMS that have no error yet come first; how many. */
static size_t
gather_pending(KvcConnectorItem **items, size_t n)
{
	size_t pending = 0;

	for (size_t i = 0; i < n; i++) {
		KvcConnectorItem *item = items[i];

		if (item->error != -EINPROGRESS)
			continue;
		items[i] = items[pending];
		items[pending++] = item;
	}
	return pending;
}

int
kvc_connector_call(ConnectorLink *link,
		   KvcConnectorCall call,
		   KvcConnectorItem **items,
		   size_t n,
		   uint64_t bytes)
{
	KvcConnector *c = link->connector;
	bool is_old = link->connection, again = true;
	int rc = 0;

	n = gather_pending(items, n);
	while (n > 0 && again) {
		rc = kvc_connector_connect(link);
		if (rc < 0)
			break;
		rc = call(link->connection, items, n, kvc_connector_deadline(c, bytes));
		if (rc == 0)
			break;
		kvc_connector_disconnect(link);
		again = is_old && rc != -ETIMEDOUT;
		is_old = false;
		n = gather_pending(items, n);
	}
	for (size_t i = 0; i < n; i++)
		if (items[i]->error == -EINPROGRESS)
			items[i]->error = rc < 0 ? rc : -EPROTO;
	return n == 0 ? 0 : rc;
}

/* ---- What there is to say ------------------------------------------------------------------ */

void
kvc_connector_note(KvcConnector *c, KvcTaskKind kind, int error)
{
	static const char *const names[KVC_TASK_KINDS] = {"store", "lookup", "load"};

	if (error == -ECANCELED)
		return;
	kvc_mutex_lock(&c->lock);
	if (error < 0) {
		c->last_error_ns = kvc_now_ns();
		c->n_errors[kind]++;
		g_free(c->last_error);
		c->last_error = g_strdup_printf("%s failed: %s (errno %d)", names[kind],
						g_strerror(-error), -error);
	}
	c->errors[kind] = error;
	kvc_mutex_unlock(&c->lock);
	if (kind != KVC_TASK_STORE) /* the engine sees no errno of them */
		kvc_breaker_note(c->base.l2.breaker, error);
}
