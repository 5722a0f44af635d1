/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_ADAPTER_SET_H
#define ENGINE_ADAPTER_SET_H

/* The adapters of one StorageManager: which there are, and how they come and go. */

#include "engine/storage-manager-private.h"

/* Fills the slots of the configuration, before the controllers are made. */
bool kvc_adapter_set_open(KvcStorageManager *sm, const char *const *specifications, GError **error);
/* Closes what is left, after the controllers stopped. */
void kvc_adapter_set_close(KvcStorageManager *sm);
/*
 * Is adapter I open? Then it stays so until release: for calls from threads of others. Never
 * blocks.
 */
bool kvc_adapter_set_hold(KvcStorageManager *sm, size_t i);
void kvc_adapter_set_release(KvcStorageManager *sm, size_t i);

#endif
