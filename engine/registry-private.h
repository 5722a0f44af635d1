/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_REGISTRY_PRIVATE_H
#define ENGINE_REGISTRY_PRIVATE_H

/* Shared by registry.c (what is registered) and registry-load.c (modules out of tree) only. */

#include "kvcache/registry.h"

typedef struct KvcRegistry KvcRegistry;

/* ---- registry.c ---- */

bool kvc_registry_has(const KvcRegistry *registry, const char *name);
const char *kvc_registry_kind(const KvcRegistry *registry);
/* NULL, or why it cannot be (transfer full). */
char *kvc_registry_add(KvcRegistry *registry, const char *name, const void *object);

/* ---- registry-load.c ---- */

typedef enum {
	KVC_MODULE_LOADED,
	KVC_MODULE_ABSENT,  /* no such file: *PATH says which one, NULL: NAME is none of a file */
	KVC_MODULE_REFUSED, /* ERROR is set */
} KvcModuleLoad;

/*
 * Loads the module NAME out of the directory of adapters, or of policies, and adds what it
 * registers; on success NAME is in REGISTRY. Blocks: reads files, runs the module's constructors.
 */
KvcModuleLoad kvc_registry_load(
	KvcRegistry *registry, bool is_adapter, const char *name, char **path, GError **error);
/* Is this thread in the constructors of a module that is being loaded? */
bool kvc_registry_is_loading(void);
/* There it does not register at once; PROBLEM (transfer full) as of kvc_registry_add(). */
void kvc_registry_note_loaded(KvcRegistry *registry,
			      const char *name,
			      const void *object,
			      char *problem);

#endif
