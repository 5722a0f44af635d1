/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ADAPTER_HEALTH_H
#define ENGINE_ADAPTER_HEALTH_H

/* How an adapter does, from what its tasks came to. Any thread, no lock. */

#include <stdbool.h>
#include <stdint.h>

/* In order of severity. */
typedef enum { KVC_HEALTH_OK, KVC_HEALTH_DEGRADED, KVC_HEALTH_FAILED } KvcHealth;

/* Outcomes of the last 15 to 30 seconds. Zeroed: none. Atomic. */
typedef struct KvcAdapterHealth {
	struct {
		int64_t period;
		uint64_t good, bad;
	} halves[2];
} KvcAdapterHealth;

/* One task ended. */
void kvc_adapter_health_note(KvcAdapterHealth *health, bool is_good);
/*
 * With too few outcomes nothing can be said: ok. Else failed if more than half of them are bad,
 * degraded if a tenth is.
 */
KvcHealth kvc_adapter_health_get(const KvcAdapterHealth *health);
/* The same at another time than now, for tests. */
void kvc_adapter_health_note_at(KvcAdapterHealth *health, bool is_good, int64_t now_ns);
KvcHealth kvc_adapter_health_get_at(const KvcAdapterHealth *health, int64_t now_ns);

/* What an adapter says of itself; a word that is unknown is no good one. */
KvcHealth kvc_health_parse(const char *name);
const char *kvc_health_name(KvcHealth health);

#endif
