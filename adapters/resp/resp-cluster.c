/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A connection to a cluster: one to each node that was needed. A batch goes to all the nodes that
 * have its keys, then the replies are read as they come, so that a node that does not answer holds
 * up no other one. What was answered with MOVED or ASK goes to the node that was named, a bounded
 * number of times.
 *
 * The map is asked for again when somebody was sent elsewhere or a node is gone, by one thread and
 * at most once a second. A node that cannot be reached is tried by one thread at a time, with
 * growing pauses; whatever it has fails at once meanwhile.
 */

#define G_LOG_DOMAIN "kvcache"

#include <errno.h>
#include <poll.h>
#include <string.h>

#include "resp-cluster.h"

#define MSEC_NS 1000000LL
#define SEC_NS 1000000000LL
#define MAX_ROUNDS 16
#define PAUSE_US 5000 /* times the round: for a map that is changing */
#define MAP_PERIOD_NS SEC_NS
#define BACKOFF_FIRST_NS (100 * MSEC_NS)
#define BACKOFF_MAX_NS (5 * SEC_NS)

/* ---- Nodes --------------------------------------------------------------------------------- */

static int
begin_connect_locked(RespClient *client, RespNode *node)
{
	if (client->is_interrupted)
		return -ECANCELED;
	if (node->is_down && (node->is_probing || kvc_now_ns() < node->retry_ns))
		return -EHOSTDOWN;
	node->is_probing = node->is_down;
	return 0;
}

static void
note_node(RespStore *store, RespNode *node, int rc)
{
	pthread_mutex_lock(&store->lock);
	bool is_news = node->is_down != (rc < 0);
	node->is_probing = false;
	node->is_down = rc < 0;
	if (rc < 0) {
		node->backoff_ns = CLAMP(2 * node->backoff_ns, BACKOFF_FIRST_NS, BACKOFF_MAX_NS);
		node->retry_ns = kvc_now_ns() + node->backoff_ns;
	} else {
		node->backoff_ns = 0;
	}
	store->is_map_wanted |= rc < 0 || is_news;
	pthread_mutex_unlock(&store->lock);
	if (is_news && rc < 0)
		g_warning("resp: node %s cannot be reached: %s (errno %d)", node->name,
			  g_strerror(-rc), -rc);
	else if (is_news)
		g_message("resp: node %s is there again", node->name);
}

static RespConnection *
find_connection(const RespClient *client, const RespNode *node)
{
	for (guint i = 0; i < client->connections->len; i++) {
		RespConnection *r = g_ptr_array_index(client->connections, i);

		if (r->node == node)
			return r;
	}
	return NULL;
}

int
resp_cluster_connection(RespClient *client, RespNode *node, RespConnection **r, int64_t deadline_ns)
{
	RespStore *store = client->store;
	int64_t now_ns = kvc_now_ns();

	*r = find_connection(client, node);
	if (*r)
		return 0;
	pthread_mutex_lock(&store->lock);
	int rc = begin_connect_locked(client, node);
	pthread_mutex_unlock(&store->lock);
	if (rc < 0)
		return rc;
	/* Others need the rest of the time. */
	rc = resp_connect_to(store, node, r,
			     now_ns + MIN(store->connect_ns, MAX((deadline_ns - now_ns) / 2, 0)));
	note_node(store, node, rc);
	if (rc < 0)
		return rc;
	pthread_mutex_lock(&store->lock);
	g_ptr_array_add(client->connections, *r);
	pthread_mutex_unlock(&store->lock);
	return 0;
}

void
resp_cluster_drop(RespClient *client, RespConnection *r, int rc)
{
	RespStore *store = client->store;

	if (rc == -ETIMEDOUT)
		note_node(store, r->node, rc);
	pthread_mutex_lock(&store->lock);
	g_ptr_array_remove_fast(client->connections, r);
	pthread_mutex_unlock(&store->lock);
	resp_disconnect(r);
}

/* ---- The map ------------------------------------------------------------------------------- */

static int
ask_map(RespClient *client, RespNode *node, int64_t deadline_ns)
{
	static const char *const slots[] = {"CLUSTER", "SLOTS", NULL};
	RespConnection *r;
	redisReply *reply;
	int rc = resp_cluster_connection(client, node, &r, deadline_ns);

	if (rc < 0)
		return rc;
	rc = resp_command(r, slots, &reply, deadline_ns);
	if (rc == 0 && reply->type == REDIS_REPLY_ERROR) {
		rc = resp_note_refusal(client->store, reply->str, reply->len);
		freeReplyObject(reply);
		return rc == -EIO ? -EINVAL : rc; /* it is of no cluster */
	}
	if (rc == 0) {
		rc = resp_map_take(client->store, reply, node->host);
		freeReplyObject(reply);
	}
	if (rc < 0)
		resp_cluster_drop(client, r, rc);
	return rc;
}

/* Those of any use, the ones that CLIENT is connected to first (transfer container). */
static GPtrArray *
known_nodes(RespClient *client)
{
	GPtrArray *nodes = g_ptr_array_new();

	pthread_mutex_lock(&client->store->lock);
	for (int is_connected = 1; is_connected >= 0; is_connected--)
		for (guint i = 0; i < client->store->nodes->len; i++) {
			RespNode *node = g_ptr_array_index(client->store->nodes, i);

			if (!!find_connection(client, node) == is_connected)
				g_ptr_array_add(nodes, node);
		}
	pthread_mutex_unlock(&client->store->lock);
	return nodes;
}

/* Of any node that answers. */
static int
renew_map(RespClient *client, int64_t deadline_ns)
{
	g_autoptr(GPtrArray) nodes = known_nodes(client);
	int rc = -ECONNREFUSED;

	for (guint i = 0; rc < 0 && i < nodes->len && kvc_now_ns() < deadline_ns; i++) {
		/* A part of the time for each: one may hang. */
		int64_t left_ns = deadline_ns - kvc_now_ns();

		rc = ask_map(client, g_ptr_array_index(nodes, i),
			     kvc_now_ns() + (i + 1 < nodes->len ? left_ns / 2 : left_ns));
	}
	return rc;
}

static void
renew_map_if_wanted(RespClient *client, int64_t deadline_ns)
{
	RespStore *store = client->store;
	int64_t now_ns = kvc_now_ns();

	pthread_mutex_lock(&store->lock);
	bool is_due = store->is_map_wanted && !store->is_map_asked && now_ns >= store->map_due_ns;
	if (is_due) {
		store->is_map_asked = true;
		store->is_map_wanted = false;
		store->map_due_ns = now_ns + MAP_PERIOD_NS;
	}
	pthread_mutex_unlock(&store->lock);
	if (!is_due)
		return;
	int rc = renew_map(client, now_ns + MIN(SEC_NS, (deadline_ns - now_ns) / 4));
	pthread_mutex_lock(&store->lock);
	store->is_map_asked = false;
	store->is_map_wanted |= rc < 0;
	pthread_mutex_unlock(&store->lock);
}

/* TEXT is that of an error reply to R: does it send us elsewhere? */
bool
resp_cluster_note_redirect(RespConnection *r, const char *text, size_t len)
{
	RespStore *store = r->store;
	g_autofree char *line = g_strndup(text, len);
	g_auto(GStrv) words = g_strsplit(line, " ", 3);
	bool is_moved = !g_strcmp0(words[0], "MOVED"), is_ask = !g_strcmp0(words[0], "ASK");

	if (!g_strcmp0(words[0], "TRYAGAIN")) {
		r->redirect = RESP_TRY_AGAIN;
		return true;
	}
	if ((!is_moved && !is_ask) || g_strv_length(words) != 3)
		return false;
	guint64 slot = g_ascii_strtoull(words[1], NULL, 10);
	pthread_mutex_lock(&store->lock);
	RespNode *node = resp_node_parse_locked(store, words[2], r->node->host);
	if (node && slot < RESP_SLOTS) {
		r->redirect = is_moved ? RESP_MOVED : RESP_ASK;
		r->redirect_to = node;
		store->n_redirects++;
		if (is_moved && store->slots[slot] != node) {
			store->slots[slot] = node;
			store->map_version++;
			store->is_map_wanted = true;
		}
	}
	pthread_mutex_unlock(&store->lock);
	return r->redirect != RESP_STAY;
}

/* ---- Connecting ---------------------------------------------------------------------------- */

/* Is there any node that answers? */
static int
prove(RespClient *client, int64_t deadline_ns)
{
	g_autoptr(GPtrArray) masters = resp_map_masters(client->store, NULL);
	RespConnection *r;
	int rc = -ECONNREFUSED;

	for (guint i = 0; rc < 0 && i < masters->len; i++)
		rc = resp_cluster_connection(client, g_ptr_array_index(masters, i), &r,
					     deadline_ns);
	return rc;
}

int
resp_cluster_connect(void *user, void **connection, int64_t deadline_ns)
{
	RespStore *store = user;
	RespClient *client = g_new0(RespClient, 1);

	client->store = store;
	client->connections = g_ptr_array_new();
	pthread_mutex_lock(&store->lock);
	bool has_map = store->has_map;
	pthread_mutex_unlock(&store->lock);
	int rc = -ECONNREFUSED;
	if (has_map)
		rc = prove(client, kvc_now_ns() + (deadline_ns - kvc_now_ns()) / 2);
	/* Others may have taken the place of all masters that we know. */
	if (rc < 0)
		rc = renew_map(client, deadline_ns);
	if (rc == 0) {
		*connection = client;
		return 0;
	}
	resp_cluster_disconnect(client);
	return rc == -EHOSTDOWN ? -ECONNREFUSED : rc;
}

void
resp_cluster_disconnect(void *connection)
{
	RespClient *client = connection;

	for (guint i = 0; i < client->connections->len; i++)
		resp_disconnect(g_ptr_array_index(client->connections, i));
	g_ptr_array_unref(client->connections);
	g_free(client);
}

void
resp_cluster_interrupt(void *connection)
{
	RespClient *client = connection;

	pthread_mutex_lock(&client->store->lock);
	client->is_interrupted = true;
	for (guint i = 0; i < client->connections->len; i++)
		resp_interrupt(g_ptr_array_index(client->connections, i));
	pthread_mutex_unlock(&client->store->lock);
}

/* ---- Batches ------------------------------------------------------------------------------- */

typedef struct Pending {
	KvcConnectorItem *item;
	RespNode *node; /* where it goes in this round */
	RespNode *ask;	/* the slot is moving there, or NULL */
	bool is_repeated;
	bool is_done;
} Pending;

typedef struct Group {
	RespNode *node;
	RespConnection *r;
	bool was_there; /* the connection: it may have been closed meanwhile */
	GPtrArray *pending;
	bool is_over;
} Group;

typedef struct Batch {
	RespClient *client;
	const RespOp *op;
	Pending *pending;
	size_t n;
	GArray *groups; /* of the round */
	int64_t deadline_ns;
} Batch;

static void
group_clear(void *data)
{
	g_ptr_array_unref(((Group *)data)->pending);
}

static void
add_to_group(Batch *batch, Pending *p)
{
	for (guint i = 0; i < batch->groups->len; i++) {
		Group *group = &g_array_index(batch->groups, Group, i);

		if (group->node == p->node) {
			g_ptr_array_add(group->pending, p);
			return;
		}
	}
	Group group = {.node = p->node, .pending = g_ptr_array_new()};
	g_ptr_array_add(group.pending, p);
	g_array_append_val(batch->groups, group);
}

/* Slots of nobody get no group: the next map may have them. */
static void
make_groups(Batch *batch)
{
	RespStore *store = batch->client->store;

	g_array_set_size(batch->groups, 0);
	pthread_mutex_lock(&store->lock);
	for (size_t i = 0; i < batch->n; i++) {
		Pending *p = &batch->pending[i];

		if (p->is_done)
			continue;
		p->node = p->ask ? p->ask : resp_slot_owner_locked(store, resp_slot(p->item->name));
		if (p->node)
			add_to_group(batch, p);
		else
			store->is_map_wanted = true;
	}
	pthread_mutex_unlock(&store->lock);
}

/* RC of the connection. What was sent over an old one is sent once more. */
static void
fail_group(Batch *batch, Group *group, int rc)
{
	bool again = group->was_there && rc != -ETIMEDOUT;

	group->is_over = true;
	if (group->r)
		resp_cluster_drop(batch->client, g_steal_pointer(&group->r), rc);
	for (guint i = 0; i < group->pending->len; i++) {
		Pending *p = g_ptr_array_index(group->pending, i);

		if (p->is_done || (again && !p->is_repeated)) {
			p->is_repeated = true;
			continue;
		}
		p->item->error = rc == -ECANCELED ? rc : -EIO;
		p->is_done = true;
	}
}

static int
send_group(Batch *batch, Group *group)
{
	const RespOp *op = batch->op;
	size_t n = group->pending->len;
	g_autofree struct iovec *iov = g_new(struct iovec, 3 * n);
	g_autoptr(GPtrArray) texts = g_ptr_array_new_with_free_func(g_free);
	size_t n_iov = 0;
	int rc = op->is_change ? resp_settle_doubts(group->r, batch->deadline_ns) : 0;

	if (rc < 0)
		return rc;
	for (size_t i = 0; i < n; i++) {
		const Pending *p = g_ptr_array_index(group->pending, i);
		GString *text = g_string_new(p->ask ? "*1\r\n$6\r\nASKING\r\n" : NULL);

		op->append(text, p->item);
		iov[n_iov++] = (struct iovec){text->str, text->len};
		g_ptr_array_add(texts, g_string_free(text, FALSE));
		if (!op->has_value)
			continue;
		iov[n_iov++] = (struct iovec){p->item->object.data, p->item->object.bytes};
		text = g_string_new("\r\n");
		if (op->append_after)
			op->append_after(text, p->item);
		iov[n_iov++] = (struct iovec){text->str, text->len};
		g_ptr_array_add(texts, g_string_free(text, FALSE));
	}
	group->r->is_changing = op->is_change;
	return resp_send(group->r, iov, n_iov, batch->deadline_ns);
}

static int
read_one(Batch *batch, RespConnection *r, Pending *p)
{
	RespReply asking;
	int rc = p->ask ? resp_read_reply(r, &asking, batch->deadline_ns) : 0;

	r->redirect = RESP_STAY;
	if (rc == 0)
		rc = batch->op->read(r, p->item, batch->deadline_ns);
	if (rc < 0)
		return rc;
	if (r->redirect == RESP_STAY) {
		p->is_done = true;
	} else if (batch->op->is_multi && r->redirect != RESP_MOVED) {
		p->item->error = -EAGAIN;
		p->is_done = true;
	} else if (r->redirect != RESP_TRY_AGAIN) {
		p->ask = r->redirect == RESP_ASK ? r->redirect_to : NULL;
	}
	return 0;
}

static void
read_group(Batch *batch, Group *group)
{
	int rc = 0;

	for (guint i = 0; rc == 0 && i < group->pending->len; i++)
		rc = read_one(batch, group->r, g_ptr_array_index(group->pending, i));
	if (rc < 0) {
		fail_group(batch, group, rc);
		return;
	}
	group->r->is_changing = false;
	group->is_over = true;
}

/* Something came already, so that poll() may not tell. */
static bool
has_input(const RespConnection *r)
{
	return r->at < r->end || (r->tls && resp_tls_has_input(r->tls));
}

/* One that there is something to read of; NULL: there is no time left. */
static Group *
await_group(Batch *batch)
{
	g_autofree struct pollfd *events = g_new0(struct pollfd, batch->groups->len);
	int64_t left_ns = MIN(batch->deadline_ns - kvc_now_ns(), batch->client->store->idle_ns);
	int rc;

	for (guint i = 0; i < batch->groups->len; i++) {
		Group *group = &g_array_index(batch->groups, Group, i);

		if (!group->is_over && has_input(group->r))
			return group;
		events[i] =
			(struct pollfd){.fd = group->is_over ? -1 : group->r->fd, .events = POLLIN};
	}
	do
		rc = poll(events, batch->groups->len, (int)(MAX(left_ns, 0) / MSEC_NS));
	while (rc < 0 && errno == EINTR);
	for (guint i = 0; rc > 0 && i < batch->groups->len; i++)
		if (events[i].revents)
			return &g_array_index(batch->groups, Group, i);
	return NULL;
}

static bool
is_over(const Batch *batch)
{
	for (guint i = 0; i < batch->groups->len; i++)
		if (!g_array_index(batch->groups, Group, i).is_over)
			return false;
	return true;
}

static void
run_groups(Batch *batch)
{
	for (guint i = 0; i < batch->groups->len; i++) {
		Group *group = &g_array_index(batch->groups, Group, i);

		group->was_there = find_connection(batch->client, group->node);
		int rc = resp_cluster_connection(batch->client, group->node, &group->r,
						 batch->deadline_ns);
		if (rc < 0)
			fail_group(batch, group, rc);
	}
	for (guint i = 0; i < batch->groups->len; i++) {
		Group *group = &g_array_index(batch->groups, Group, i);
		int rc = group->is_over ? 0 : send_group(batch, group);

		if (rc < 0)
			fail_group(batch, group, rc);
	}
	while (!is_over(batch)) {
		Group *group = await_group(batch);

		if (group) {
			read_group(batch, group);
			continue;
		}
		for (guint i = 0; i < batch->groups->len; i++)
			if (!g_array_index(batch->groups, Group, i).is_over)
				fail_group(batch, &g_array_index(batch->groups, Group, i),
					   -ETIMEDOUT);
	}
}

static bool
is_done(const Batch *batch)
{
	for (size_t i = 0; i < batch->n; i++)
		if (!batch->pending[i].is_done)
			return false;
	return true;
}

/* Without a node that could be asked the framework has to connect anew. */
static int
check_any(RespStore *store)
{
	int rc = -ECONNREFUSED;

	g_autoptr(GPtrArray) masters = resp_map_masters(store, NULL);
	pthread_mutex_lock(&store->lock);
	for (guint i = 0; i < masters->len; i++)
		if (!((RespNode *)g_ptr_array_index(masters, i))->is_down)
			rc = 0;
	pthread_mutex_unlock(&store->lock);
	return rc;
}

int
resp_cluster_run(RespClient *client,
		 const RespOp *op,
		 KvcConnectorItem *const *items,
		 size_t n,
		 int64_t deadline_ns)
{
	g_autofree Pending *pending = g_new0(Pending, n);
	g_autoptr(GArray) groups = g_array_new(FALSE, TRUE, sizeof(Group));
	Batch batch = {client, op, pending, n, groups, deadline_ns};
	bool has_failed = false;

	g_array_set_clear_func(groups, group_clear);
	for (size_t i = 0; i < n; i++)
		pending[i].item = items[i];
	for (unsigned round = 0; round < MAX_ROUNDS && !is_done(&batch); round++) {
		if (round > 0 && kvc_now_ns() >= deadline_ns)
			break;
		if (round > 1)
			g_usleep(PAUSE_US * round);
		renew_map_if_wanted(client, deadline_ns);
		make_groups(&batch);
		run_groups(&batch);
	}
	for (size_t i = 0; i < n; i++) {
		if (!pending[i].is_done)
			items[i]->error = -EIO;
		has_failed |= items[i]->error == -EIO;
	}
	return has_failed ? check_any(client->store) : 0;
}

/* ---- What there is to say ------------------------------------------------------------------ */

/*
 * The names of the masters that cannot be reached (transfer full), "" for none. Before there is a
 * map, those of the nodes that are to give one.
 */
static char *
name_down(RespStore *store, unsigned *n_masters)
{
	g_autoptr(GPtrArray) masters = resp_map_masters(store, NULL);
	GString *text = g_string_new(NULL);

	pthread_mutex_lock(&store->lock);
	const GPtrArray *nodes = store->has_map ? masters : store->nodes;
	for (guint i = 0; i < nodes->len; i++) {
		const RespNode *node = g_ptr_array_index(nodes, i);

		if (node->is_down)
			g_string_append_printf(text, "%s%s", text->len ? "," : "", node->name);
	}
	pthread_mutex_unlock(&store->lock);
	*n_masters = masters->len;
	return g_string_free(text, FALSE);
}

int
resp_cluster_check(void *user)
{
	unsigned n_masters;
	g_autofree char *down = name_down(user, &n_masters);

	return *down ? -EHOSTDOWN : 0;
}

void
resp_cluster_describe(void *user_store, KvcDescribeFunc func, void *user)
{
	RespStore *store = user_store;
	unsigned n_masters, n_lost = 0;
	g_autofree char *down = name_down(store, &n_masters);

	resp_describe(store, func, user);
	pthread_mutex_lock(&store->lock);
	for (unsigned i = 0; i < RESP_SLOTS; i++)
		n_lost += !store->slots[i];
	g_autofree char *redirects = g_strdup_printf("%" G_GUINT64_FORMAT, store->n_redirects);
	g_autofree char *renewals = g_strdup_printf("%" G_GUINT64_FORMAT, store->n_map_renewals);
	pthread_mutex_unlock(&store->lock);
	g_autofree char *nodes = g_strdup_printf("%u", n_masters);
	g_autofree char *lost = g_strdup_printf("%u", n_lost);
	func(user, "cluster_nodes", nodes);
	if (*down)
		func(user, "cluster_nodes_down", down);
	func(user, "cluster_slots_unserved", lost);
	func(user, "cluster_map_renewals", renewals);
	func(user, "cluster_redirects", redirects);
}
