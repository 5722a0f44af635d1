/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_EVICTION_CONTROLLER_H
#define ENGINE_EVICTION_CONTROLLER_H

/*
 * Frees L1: at once when a reservation lacks room (difference 8), and ahead of need from a thread
 * that wakes when usage passes the trigger watermark. Feeds the policy from the L1Manager's
 * listeners.
 */

#include "engine/l1-manager.h"

typedef struct KvcEvictionController KvcEvictionController;

/*
 * Registers its listener and make_room with L1; MEMORY and L1 outlive it. WATERMARK and RATIO are
 * shares (0..1) of the capacity: at the watermark, RATIO of the bytes in use are freed.
 */
KvcEvictionController *kvc_eviction_controller_new(KvcL1Manager *l1,
						   KvcL1Memory *memory,
						   const KvcEvictionPolicy *policy,
						   double watermark,
						   double ratio);
void kvc_eviction_controller_start(KvcEvictionController *c);
void kvc_eviction_controller_stop(KvcEvictionController *c);
/* After kvc_l1_manager_free(). */
void kvc_eviction_controller_free(KvcEvictionController *c);

#endif
