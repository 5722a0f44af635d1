/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/adapter-health.h"

#include "engine/lock.h"

#include <glib.h>
#include <string.h>

#define PERIOD_NS (15 * KVC_SEC_NS)
#define MIN_OUTCOMES 8

static const char *const names[] = {
	[KVC_HEALTH_OK] = "ok",
	[KVC_HEALTH_DEGRADED] = "degraded",
	[KVC_HEALTH_FAILED] = "failed",
};

/* An outcome that meets the turn of a period may be lost: rates, not books. */
void
kvc_adapter_health_note_at(KvcAdapterHealth *health, bool is_good, int64_t now_ns)
{
	int64_t period = now_ns / PERIOD_NS + 1; /* not 0, which is a zeroed half */
	typeof(health->halves[0]) *half = &health->halves[period & 1];
	int64_t old = __atomic_load_n(&half->period, __ATOMIC_RELAXED);
	if (old != period && __atomic_compare_exchange_n(&half->period, &old, period, false,
							 __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
		__atomic_store_n(&half->good, 0, __ATOMIC_RELAXED);
		__atomic_store_n(&half->bad, 0, __ATOMIC_RELAXED);
	}
	__atomic_fetch_add(is_good ? &half->good : &half->bad, 1, __ATOMIC_RELAXED);
}

KvcHealth
kvc_adapter_health_get_at(const KvcAdapterHealth *health, int64_t now_ns)
{
	int64_t period = now_ns / PERIOD_NS + 1;
	uint64_t good = 0, bad = 0;
	for (size_t i = 0; i < G_N_ELEMENTS(health->halves); i++) {
		if (__atomic_load_n(&health->halves[i].period, __ATOMIC_RELAXED) < period - 1)
			continue;
		good += __atomic_load_n(&health->halves[i].good, __ATOMIC_RELAXED);
		bad += __atomic_load_n(&health->halves[i].bad, __ATOMIC_RELAXED);
	}
	if (good + bad < MIN_OUTCOMES)
		return KVC_HEALTH_OK;
	if (bad > good)
		return KVC_HEALTH_FAILED;
	return bad * 10 >= good + bad ? KVC_HEALTH_DEGRADED : KVC_HEALTH_OK;
}

void
kvc_adapter_health_note(KvcAdapterHealth *health, bool is_good)
{
	kvc_adapter_health_note_at(health, is_good, kvc_now_ns());
}

KvcHealth
kvc_adapter_health_get(const KvcAdapterHealth *health)
{
	return kvc_adapter_health_get_at(health, kvc_now_ns());
}

KvcHealth
kvc_health_parse(const char *name)
{
	for (size_t i = 0; i < G_N_ELEMENTS(names); i++)
		if (strcmp(name, names[i]) == 0)
			return (KvcHealth)i;
	return KVC_HEALTH_DEGRADED;
}

const char *
kvc_health_name(KvcHealth health)
{
	return names[health];
}
