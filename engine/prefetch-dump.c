/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Who holds what: the lock maps of every handle, and the loads on their way. The controller thread
 * makes the lines between two steps, when the maps are exact; handles that it has forgotten have
 * L1 locks only, which their own lock protects.
 */

#include "engine/prefetch-private.h"
#include "kvcache/io.h"

#include <inttypes.h>
#include <stdarg.h>

/* Lines of the log that a stop writes at a time. */
#define MAX_LOG_LINES 20

typedef struct Sum {
	uint64_t l1_locks, l2_locks, reserved;
} Sum;

void
kvc_prefetch_dump_register(KvcPrefetchController *c, KvcPrefetchRequest *r)
{
	kvc_mutex_lock(&c->lock);
	g_queue_push_tail_link(&c->handles, &r->handle_link);
	kvc_mutex_unlock(&c->lock);
}

void
kvc_prefetch_dump_unregister(KvcPrefetchRequest *r)
{
	KvcPrefetchController *c = r->controller;
	kvc_mutex_lock(&c->lock);
	g_queue_unlink(&c->handles, &r->handle_link);
	kvc_mutex_unlock(&c->lock);
}

static bool
ref_if_alive(KvcPrefetchRequest *r)
{
	int refs = __atomic_load_n(&r->refs, __ATOMIC_RELAXED);
	while (refs > 0)
		if (__atomic_compare_exchange_n(&r->refs, &refs, refs + 1, false, __ATOMIC_ACQ_REL,
						__ATOMIC_RELAXED))
			return true;
	return false;
}

/* ---- Lines --------------------------------------------------------------------------------- */

static void G_GNUC_PRINTF(3, 4) add_line(GPtrArray *lines, char *name, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_ptr_array_add(lines, name);
	g_ptr_array_add(lines, g_strdup_vprintf(format, args));
	va_end(args);
}

static uint64_t
locks_of_key(KvcPrefetchRequest *r, size_t i)
{
	kvc_mutex_lock(&r->lock);
	uint64_t locks = r->objects[i] ? r->read_locks - (r->taken ? r->taken[i] : 0) : 0;
	kvc_mutex_unlock(&r->lock);
	return locks;
}

static void
append_key(GString *map, bool is_in_map, size_t i)
{
	if (is_in_map)
		g_string_append_printf(map, "%s%zu", map->len > 0 ? "," : "", i);
}

static void
describe_request(KvcPrefetchRequest *r, bool is_retired, GPtrArray *lines, Sum *sum)
{
	static const char *const phases[] = {"queued", "lookup", "held", "loading", "answered"};
	g_autoptr(GString) l1 = g_string_new(NULL);
	g_autoptr(GString) l2 = g_string_new(NULL);
	g_autoptr(GString) reserved = g_string_new(NULL);
	for (size_t i = 0; i < r->n; i++) {
		uint64_t locks = locks_of_key(r, i);
		sum->l1_locks += locks;
		append_key(l1, locks > 0, i);
		if (is_retired)
			continue;
		sum->l2_locks += (unsigned)__builtin_popcount(r->cells[i].locked);
		append_key(l2, r->cells[i].locked != 0, i);
		append_key(reserved, r->cells[i].load != NULL, i);
	}
	add_line(lines, g_strdup_printf("prefetch.%" PRId64, r->handle.request_id),
		 "%s, %zu keys, L1 locks: %s; L2 locks: %s; reserved: %s",
		 is_retired ? "retired" : phases[r->phase], r->n, l1->str, l2->str, reserved->str);
}

static void
describe_load(const KvcPrefetchController *c,
	      const KvcPrefetchLoad *load,
	      GPtrArray *lines,
	      Sum *sum)
{
	g_autofree char *key = kvc_object_key_to_string(load->key);
	unsigned locks = 0;
	for (size_t a = 0; a < c->n_adapters; a++)
		locks += load->locks[a];
	sum->l2_locks += locks;
	sum->reserved += load->object != NULL;
	add_line(lines, g_strdup_printf("load.%s", key),
		 "l2.%zu, %zu bytes, %u waiters, %u L2 locks", load->adapter, load->memory.bytes,
		 load->waiters->len, locks);
}

static GPtrArray *
ref_handles(KvcPrefetchController *c)
{
	GPtrArray *handles =
		g_ptr_array_new_with_free_func((GDestroyNotify)kvc_prefetch_request_unref);
	kvc_mutex_lock(&c->lock);
	for (GList *link = c->handles.head; link; link = link->next)
		if (ref_if_alive(link->data))
			g_ptr_array_add(handles, link->data);
	kvc_mutex_unlock(&c->lock);
	return handles;
}

/* IS_OWNER: on the controller thread, or after its end. */
static GPtrArray *
make_lines(KvcPrefetchController *c)
{
	GPtrArray *lines = g_ptr_array_new_with_free_func(g_free);
	g_autoptr(GPtrArray) handles = ref_handles(c);
	Sum sum = {0};
	for (guint k = 0; k < handles->len; k++) {
		KvcPrefetchRequest *r = handles->pdata[k];
		kvc_mutex_lock(&r->lock);
		bool is_retired = r->is_retired;
		kvc_mutex_unlock(&r->lock);
		describe_request(r, is_retired, lines, &sum);
	}
	for (size_t a = 0; a < c->n_adapters; a++)
		for (GList *link = c->loads_in_flight[a].head; link; link = link->next)
			describe_load(c, link->data, lines, &sum);
	add_line(lines, g_strdup("total"),
		 "%" PRIu64 " L1 locks, %" PRIu64 " L2 locks, %" PRIu64
		 " reserved, %u handles, %u slots, %" PRIu64 " bytes in flight",
		 sum.l1_locks, sum.l2_locks, sum.reserved, handles->len, c->n_slots,
		 c->bytes_in_flight);
	return lines;
}

/* ---- Asking for them ----------------------------------------------------------------------- */

void
kvc_prefetch_dump_serve(KvcPrefetchController *c)
{
	kvc_mutex_lock(&c->lock);
	KvcPrefetchDump *dump;
	while ((dump = g_queue_pop_head(&c->dumps))) {
		kvc_mutex_unlock(&c->lock);
		GPtrArray *lines = make_lines(c);
		kvc_mutex_lock(&c->lock);
		dump->lines = lines;
		dump->is_done = true;
		pthread_cond_broadcast(&c->dumped);
	}
	kvc_mutex_unlock(&c->lock);
}

void
kvc_prefetch_dump_log(KvcPrefetchController *c)
{
	g_autoptr(GPtrArray) lines = make_lines(c);
	guint first = lines->len > 2 * MAX_LOG_LINES ? lines->len - 2 * MAX_LOG_LINES : 0;
	for (guint i = first; i < lines->len; i += 2)
		g_warning("stop: waiting: %s: %s", (const char *)lines->pdata[i],
			  (const char *)lines->pdata[i + 1]);
}

void
kvc_prefetch_controller_dump(KvcPrefetchController *c, KvcDescribeFunc func, void *user)
{
	KvcPrefetchDump dump = {0};
	kvc_mutex_lock(&c->lock);
	bool has_thread = c->is_running && !c->is_stopped;
	if (has_thread) {
		g_queue_push_tail(&c->dumps, &dump);
		kvc_eventfd_signal(c->event_fd);
		while (!dump.is_done)
			kvc_cond_wait_until(&c->dumped, &c->lock, 0);
	}
	kvc_mutex_unlock(&c->lock);
	if (!has_thread)
		dump.lines = make_lines(c);
	for (guint i = 0; i < dump.lines->len; i += 2)
		func(user, dump.lines->pdata[i], dump.lines->pdata[i + 1]);
	g_ptr_array_unref(dump.lines);
}
