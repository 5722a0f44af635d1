/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/stats.h"

#define X(name, help) [KVC_STAT_##name] = #name,
const char *const kvc_stat_names[KVC_N_STATS] = {KVC_STATS(X)};
#undef X

#define X(name, help) [KVC_STAT_##name] = help,
const char *const kvc_stat_help[KVC_N_STATS] = {KVC_STATS(X)};
#undef X
