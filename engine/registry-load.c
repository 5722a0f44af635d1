/* SPDX-License-Identifier: Apache-2.0 */

/*
 * Modules out of tree: DIRECTORY/NAME.so, loaded when NAME is asked for the first time. Its
 * constructors call kvc_register_...() as those of this tree do; what they register is gathered
 * first and counts only when all of it is good, so that a file that is refused leaves nothing
 * behind. A module that was accepted stays loaded: its vtables are in use.
 */

#include "config.h"
#include "engine/lock.h"
#include "engine/registry-private.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* More than anybody writes; a file name has to hold it. */
#define MAX_NAME 64

typedef struct Registration {
	KvcRegistry *registry;
	const char *name;
	const void *object;
} Registration;

typedef struct Loading {
	GArray *registrations; /* of Registration */
	char *problem;	       /* the first one, or NULL */
} Loading;

/* One module at a time: a constructor cannot say whose it is. */
static KvcMutex load_lock = {PTHREAD_MUTEX_INITIALIZER, KVC_LOCK_MODULE_LOAD};
static _Thread_local Loading *loading;

bool
kvc_registry_is_loading(void)
{
	return loading != NULL;
}

void
kvc_registry_note_loaded(KvcRegistry *registry, const char *name, const void *object, char *problem)
{
	Registration registration = {registry, name, object};

	if (!problem)
		g_array_append_val(loading->registrations, registration);
	else if (!loading->problem)
		loading->problem = problem;
	else
		g_free(problem);
}

/* Names that are a file of that directory and of no other one. */
static bool
is_file_name(const char *name)
{
	size_t len =
		strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-");

	return len > 0 && len <= MAX_NAME && name[len] == '\0';
}

static char *
path_of(bool is_adapter, const char *name)
{
	const char *variable = is_adapter ? "KVC_ADAPTER_DIR" : "KVC_POLICY_DIR";
	const char *directory = secure_getenv(variable);

	if (!directory || !*directory)
		directory = is_adapter ? KVC_ADAPTER_DIR : KVC_POLICY_DIR;
	return g_strdup_printf("%s/%s.so", directory, name);
}

static bool
is_registered_before(const Loading *l, guint i)
{
	const Registration *all = (const Registration *)(const void *)l->registrations->data;

	for (guint j = 0; j < i; j++)
		if (all[j].registry == all[i].registry && !strcmp(all[j].name, all[i].name))
			return true;
	return kvc_registry_has(all[i].registry, all[i].name);
}

/* NULL, or what is wrong with what the module registered. */
static char *
find_problem(const Loading *l, const KvcRegistry *registry, const char *name)
{
	const char *other = NULL;
	bool is_there = false;

	if (l->problem)
		return g_strdup(l->problem);
	for (guint i = 0; i < l->registrations->len; i++) {
		const Registration *r = &g_array_index(l->registrations, Registration, i);

		if (is_registered_before(l, i))
			return g_strdup_printf("%s \"%s\" is registered twice",
					       kvc_registry_kind(r->registry), r->name);
		if (r->registry != registry)
			continue;
		other = r->name;
		is_there |= !strcmp(r->name, name);
	}
	if (is_there)
		return NULL;
	if (other)
		return g_strdup_printf("it registers \"%s\", not \"%s\"", other, name);
	return g_strdup_printf("it registers no %s", kvc_registry_kind(registry));
}

/* Only too many are a problem now; the ones before stay, and the module with them. */
static char *
add_all(const Loading *l)
{
	char *problem = NULL;

	for (guint i = 0; i < l->registrations->len && !problem; i++) {
		const Registration *r = &g_array_index(l->registrations, Registration, i);

		problem = kvc_registry_add(r->registry, r->name, r->object);
	}
	return problem;
}

/* NULL, or why PATH is refused. */
static char *
load_locked(KvcRegistry *registry, const char *name, const char *path)
{
	Loading l = {.registrations = g_array_new(FALSE, FALSE, sizeof(Registration))};

	loading = &l;
	void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	char *problem = handle ? NULL : g_strdup(dlerror());
	loading = NULL;
	if (!problem)
		problem = find_problem(&l, registry, name);
	if (problem && handle)
		dlclose(handle);
	else if (!problem)
		problem = add_all(&l);
	g_array_unref(l.registrations);
	g_free(l.problem);
	return problem;
}

KvcModuleLoad
kvc_registry_load(
	KvcRegistry *registry, bool is_adapter, const char *name, char **path, GError **error)
{
	if (!is_file_name(name))
		return KVC_MODULE_ABSENT;
	*path = path_of(is_adapter, name);
	struct stat st;
	int rc = stat(*path, &st);
	if (rc < 0 && errno == ENOENT)
		return KVC_MODULE_ABSENT;
	if (rc == 0 && !S_ISREG(st.st_mode)) { /* dlopen() would wait for a FIFO's writer */
		g_set_error(error, KVC_OPTIONS_ERROR, EINVAL,
			    "%s \"%s\": cannot load %s: it is not a regular file",
			    kvc_registry_kind(registry), name, *path);
		return KVC_MODULE_REFUSED;
	}
	kvc_mutex_lock(&load_lock);
	/* Another thread may have loaded it meanwhile. */
	bool is_there = kvc_registry_has(registry, name);
	g_autofree char *problem = is_there ? NULL : load_locked(registry, name, *path);
	kvc_mutex_unlock(&load_lock);
	if (!problem)
		return KVC_MODULE_LOADED;
	g_set_error(error, KVC_OPTIONS_ERROR, EINVAL, "%s \"%s\": cannot load %s: %s",
		    kvc_registry_kind(registry), name, *path, problem);
	return KVC_MODULE_REFUSED;
}
