/* SPDX-License-Identifier: Apache-2.0 */

/* What an operator sees of the engine: lines of status, lines of stats, capacity. From memory only.
 */

#include "engine/adapter-call.h"
#include "engine/adapter-set.h"
#include "engine/deletion-log.h"
#include "engine/prefetch-controller.h"
#include "engine/storage-manager-private.h"

#include <inttypes.h>
#include <stdarg.h>
#include <string.h>

typedef struct Report {
	KvcDescribeFunc func;
	void *user;
	size_t adapter;
	KvcHealth health; /* of the adapter at hand */
	size_t n_degraded, n_failed;
} Report;

static void G_GNUC_PRINTF(3, 4) line(Report *r, const char *name, const char *format, ...)
{
	va_list args;
	va_start(args, format);
	g_autofree char *value = g_strdup_vprintf(format, args);
	va_end(args);
	r->func(r->user, name, value);
}

static void
adapter_health(void *user, const char *name, const char *value)
{
	Report *r = user;
	if (strcmp(name, "health") == 0)
		r->health = kvc_health_parse(value);
}

static void
adapter_line(void *user, const char *name, const char *value)
{
	Report *r = user;
	g_autofree char *full = g_strdup_printf("l2.%zu.%s", r->adapter, name);
	if (strcmp(name, "health") == 0)
		value = kvc_health_name(r->health);
	r->func(r->user, full, value);
}

/*
 * Health of adapter I, the worst of: what it says itself, what its tasks came to, whether the last
 * stores, a deletion, a rename or the listing failed, and whether it can be reached.
 */
static void
judge_adapter(KvcStorageManager *sm, size_t i, Report *r)
{
	KvcAdapterSlot *slot = &sm->context.adapters[i];
	r->adapter = i;
	r->health = KVC_HEALTH_OK;
	kvc_adapter_describe(slot, adapter_health, r);
	r->health = MAX(r->health, kvc_adapter_health_get(&slot->health));
	if (__atomic_load_n(&slot->store_failures, __ATOMIC_RELAXED) > 0 ||
	    __atomic_load_n(&slot->deletes_failing, __ATOMIC_RELAXED) > 0 ||
	    __atomic_load_n(&slot->renames_failing, __ATOMIC_RELAXED) > 0 ||
	    __atomic_load_n(&sm->listings[i].error, __ATOMIC_RELAXED) < 0)
		r->health = MAX(r->health, KVC_HEALTH_DEGRADED);
	if (kvc_adapter_is_unreachable(slot))
		r->health = KVC_HEALTH_FAILED;
}

static const char *
overall_health(KvcStorageManager *sm, Report *r, const KvcL1Counts *counts)
{
	size_t n = 0;
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		if (!kvc_adapter_set_hold(sm, i))
			continue;
		judge_adapter(sm, i, r);
		kvc_adapter_set_release(sm, i);
		r->n_degraded += r->health != KVC_HEALTH_OK;
		r->n_failed += r->health == KVC_HEALTH_FAILED;
		n++;
	}
	if (n > 0 && r->n_failed == n)
		return "failed";
	KvcDeletionLogStatus deletions;
	kvc_deletion_log_get_status(sm->context.deletions, &deletions);
	r->n_degraded += deletions.is_failing;
	return r->n_degraded > 0 || (n > 0 && counts->unreplicated_objects > 0) ? "degraded" : "ok";
}

static void
report_l1(KvcStorageManager *sm, Report *r, const KvcL1Counts *counts)
{
	double huge = kvc_l1_manager_measure_huge_pages(sm->context.l1);
	int lease_error = kvc_l1_memory_lease_error(sm->memory);
	kvc_l1_memory_sweep(sm->memory);
	line(r, "l1_memory", "%s", kvc_l1_memory_kind(sm->memory));
	line(r, "l1_leases", "%s", lease_error ? g_strerror(lease_error) : "ok");
	if (huge < 0)
		line(r, "l1_huge_pages", "%s", counts->objects ? "unknown" : "0");
	else
		line(r, "l1_huge_pages", "%.3f", huge);
	line(r, "l1_capacity_bytes", "%" PRIu64, kvc_l1_memory_capacity(sm->memory));
	line(r, "l1_used_bytes", "%" PRIu64, kvc_l1_memory_used(sm->memory));
	line(r, "l1_overrun_bytes", "%" PRIu64, kvc_l1_memory_overrun(sm->memory));
	line(r, "l1_overrun_used_bytes", "%" PRIu64, kvc_l1_memory_overrun_used(sm->memory));
	line(r, "l1_lingering_objects", "%" PRIu64, kvc_l1_memory_lingering_files(sm->memory));
	line(r, "l1_lingering_bytes", "%" PRIu64, kvc_l1_memory_lingering_bytes(sm->memory));
	line(r, "l1_staging_bytes", "%" PRIu64, counts->staging_bytes);
	line(r, "l1_objects", "%" PRIu64, counts->objects);
	line(r, "l1_objects_limit", "%" PRIu64, kvc_l1_memory_files_limit(sm->memory));
	line(r, "l1_temporary_objects", "%" PRIu64, counts->temporary_objects);
	line(r, "l1_staging_objects", "%" PRIu64, counts->staging_objects);
	line(r, "l1_read_locks", "%" PRIu64, counts->read_locks);
	line(r, "l1_pinned_objects", "%" PRIu64, counts->pinned_objects);
	line(r, "l1_pinned_bytes", "%" PRIu64, counts->pinned_bytes);
	line(r, "l1_dirty_objects", "%" PRIu64, counts->dirty_objects);
	line(r, "l1_dirty_bytes", "%" PRIu64, counts->dirty_bytes);
	line(r, "l1_unreplicated_objects", "%" PRIu64, counts->unreplicated_objects);
}

static void
report_breaker(KvcAdapterSlot *slot, Report *r)
{
	KvcBreakerStatus status;
	kvc_breaker_get_status(slot->breaker, &status);
	g_autofree char *opened = g_strdup_printf("%" PRIu64, status.opened);
	g_autofree char *refused = g_strdup_printf("%" PRIu64, status.refused);
	adapter_line(r, "breaker", kvc_breaker_state_name(status.state));
	adapter_line(r, "breaker_opened", opened);
	adapter_line(r, "breaker_refused", refused);
}

static void
report_adapter(KvcStorageManager *sm, size_t i, Report *r)
{
	KvcAdapterSlot *slot = &sm->context.adapters[i];
	KvcListing *listing = &sm->listings[i];
	judge_adapter(sm, i, r);
	bool is_active = kvc_controller_context_active(&sm->context) & (1u << i);
	adapter_line(r, "type", slot->adapter->ops->type_name);
	adapter_line(r, "state", is_active ? "active" : "draining");
	kvc_adapter_describe(slot, adapter_line, r);
	report_breaker(slot, r);
	g_autofree char *failed = g_strdup_printf(
		"%" PRIu64, __atomic_load_n(&slot->stores_failed, __ATOMIC_RELAXED));
	adapter_line(r, "stores_failed", failed);
	g_autofree char *pending = g_strdup_printf(
		"%" PRIu64, __atomic_load_n(&slot->deletes_pending, __ATOMIC_RELAXED));
	adapter_line(r, "deletes_pending", pending);
	g_autofree char *renaming = g_strdup_printf(
		"%" PRIu64, __atomic_load_n(&slot->renames_pending, __ATOMIC_RELAXED));
	adapter_line(r, "renames_pending", renaming);
	kvc_mutex_lock(&sm->lock);
	bool done = listing->is_done;
	kvc_mutex_unlock(&sm->lock);
	int error = __atomic_load_n(&listing->error, __ATOMIC_RELAXED);
	g_autofree char *count =
		g_strdup_printf("%" PRIu64, __atomic_load_n(&listing->count, __ATOMIC_RELAXED));
	adapter_line(r, "listed", error ? g_strerror(-error) : done ? "yes" : count);
	adapter_line(r, "shared", slot->is_shared ? "yes" : "no");
	KvcL2Usage usage;
	if (kvc_adapter_usage(slot, &usage)) {
		g_autofree char *used = g_strdup_printf("%" PRIu64, usage.bytes_used);
		g_autofree char *capacity = g_strdup_printf("%" PRIu64, usage.capacity_bytes);
		adapter_line(r, "used_bytes", used);
		adapter_line(r, "capacity_bytes", capacity);
	}
}

static void
report_deletions(KvcStorageManager *sm, Report *r)
{
	KvcDeletionLogStatus status;
	kvc_deletion_log_get_status(sm->context.deletions, &status);
	line(r, "deletion_log", "%s", status.state);
	line(r, "deletion_log_pending", "%" PRIu64, status.pending);
	line(r, "deletion_log_unknown", "%" PRIu64, status.unknown);
}

void
kvc_storage_manager_report_status(KvcStorageManager *sm, KvcDescribeFunc func, void *user)
{
	Report r = {.func = func, .user = user};
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(sm->context.l1, &counts);
	line(&r, "health", "%s", overall_health(sm, &r, &counts));
	report_l1(sm, &r, &counts);
	line(&r, "keys", "%" PRIu64, kvc_key_index_count(sm->context.index));
	line(&r, "prefetches_active", "%zu", kvc_prefetch_controller_active(sm->prefetch));
	report_deletions(sm, &r);
	line(&r, "store_policy", "%s", sm->store_policy->name);
	line(&r, "prefetch_policy", "%s", sm->prefetch_policy->name);
	line(&r, "eviction_policy", "%s", sm->eviction_policy->name);
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		if (!kvc_adapter_set_hold(sm, i))
			continue;
		report_adapter(sm, i, &r);
		kvc_adapter_set_release(sm, i);
	}
}

void
kvc_storage_manager_report_stats(KvcStorageManager *sm, KvcDescribeFunc func, void *user)
{
	Report r = {.func = func, .user = user};
	kvc_l1_manager_report_expired(sm->context.l1, kvc_now_ns());
	for (size_t i = 0; i < KVC_N_STATS; i++)
		line(&r, kvc_stat_names[i], "%" PRIu64,
		     __atomic_load_n(&sm->stats.values[i], __ATOMIC_RELAXED));
}

void
kvc_storage_manager_dump_l1(KvcStorageManager *sm, bool held_only, KvcDescribeFunc func, void *user)
{
	kvc_l1_manager_dump(sm->context.l1, held_only, func, user);
}

void
kvc_storage_manager_get_capacity(KvcStorageManager *sm, KvcCapacity *capacity)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(sm->context.l1, &counts);
	uint64_t used = kvc_l1_memory_used(sm->memory);
	*capacity = (KvcCapacity){
		.l1_capacity_bytes = kvc_l1_memory_capacity(sm->memory),
		.l1_used_bytes = used,
		.l1_pinned_bytes = used - MIN(used, counts.free_bytes),
		.objects = kvc_key_index_count(sm->context.index),
	};
	for (size_t i = 0; i < KVC_MAX_ADAPTERS; i++) {
		KvcL2Usage usage;
		if (!kvc_adapter_set_hold(sm, i))
			continue;
		kvc_adapter_usage(&sm->context.adapters[i], &usage);
		kvc_adapter_set_release(sm, i);
		capacity->l2_capacity_bytes += usage.capacity_bytes;
		capacity->l2_used_bytes += usage.bytes_used;
	}
}

bool
kvc_storage_manager_is_half_dirty(KvcStorageManager *sm)
{
	KvcL1Counts counts;
	kvc_l1_manager_get_counts(sm->context.l1, &counts);
	return counts.dirty_bytes > kvc_l1_memory_capacity(sm->memory) / 2;
}
