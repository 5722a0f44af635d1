/* SPDX-License-Identifier: Apache-2.0 */

/*
 * A set of extended attributes is one block: its head, then for each the length of the value (4
 * bytes), the name with its NUL, the value. Sets are small, so a search walks them.
 */

#include "kvcache/attributes.h"

#include <errno.h>
#include <string.h>
#include <sys/xattr.h>

struct KvcXattrs {
	int refs;     /* Atomic */
	size_t bytes; /* of items */
	char items[];
};

KvcXattrs *
kvc_xattrs_ref(KvcXattrs *xattrs)
{
	if (xattrs)
		__atomic_fetch_add(&xattrs->refs, 1, __ATOMIC_RELAXED);
	return xattrs;
}

void
kvc_xattrs_unref(KvcXattrs *xattrs)
{
	if (xattrs && __atomic_fetch_sub(&xattrs->refs, 1, __ATOMIC_ACQ_REL) == 1)
		g_free(xattrs);
}

bool
kvc_xattr_name_is_user(const char *name)
{
	return g_str_has_prefix(name, KVC_XATTR_USER_PREFIX) &&
	       name[strlen(KVC_XATTR_USER_PREFIX)] && !g_str_has_prefix(name, KVC_XATTR_OWN_PREFIX);
}

bool
kvc_xattrs_next(const KvcXattrs *xattrs,
		size_t *cursor,
		const char **name,
		const void **value,
		size_t *bytes)
{
	if (!xattrs || *cursor >= xattrs->bytes)
		return false;
	const char *item = xattrs->items + *cursor;
	uint32_t value_bytes;
	memcpy(&value_bytes, item, sizeof(value_bytes));
	const char *own_name = item + sizeof(value_bytes);
	const char *own_value = own_name + strlen(own_name) + 1;
	*cursor = (size_t)(own_value - xattrs->items) + value_bytes;
	if (name)
		*name = own_name;
	if (value)
		*value = own_value;
	if (bytes)
		*bytes = value_bytes;
	return true;
}

/* Where the item NAME begins and ends; false: there is none. */
static bool
find(const KvcXattrs *xattrs, const char *name, size_t *begin, size_t *end)
{
	const char *other;
	*begin = *end = 0;
	while (kvc_xattrs_next(xattrs, end, &other, NULL, NULL)) {
		if (strcmp(other, name) == 0)
			return true;
		*begin = *end;
	}
	return false;
}

const void *
kvc_xattrs_get(const KvcXattrs *xattrs, const char *name, size_t *bytes)
{
	size_t begin, end;
	const void *value = NULL;
	if (find(xattrs, name, &begin, &end))
		kvc_xattrs_next(xattrs, &begin, NULL, &value, bytes);
	return value;
}

/* XATTRS without what lies from BEGIN to END, with MORE bytes of room at its end; NULL: empty. */
static KvcXattrs *
copy_without(const KvcXattrs *xattrs, size_t begin, size_t end, size_t more)
{
	size_t old = xattrs ? xattrs->bytes : 0, kept = old - (end - begin);
	if (kept + more == 0)
		return NULL;
	KvcXattrs *copy = g_malloc(sizeof(*copy) + kept + more);
	copy->refs = 1;
	copy->bytes = kept + more;
	if (begin > 0)
		memcpy(copy->items, xattrs->items, begin);
	if (old > end)
		memcpy(copy->items + begin, xattrs->items + end, old - end);
	return copy;
}

int
kvc_xattrs_set(
	const KvcXattrs *xattrs, const char *name, const void *value, size_t bytes, KvcXattrs **out)
{
	size_t begin, end, name_bytes = strlen(name) + 1;
	uint32_t value_bytes = (uint32_t)bytes;
	if (name_bytes == 1 || name_bytes > KVC_XATTR_NAME_MAX_BYTES + 1)
		return -ERANGE;
	if (bytes > KVC_XATTR_VALUE_MAX_BYTES)
		return -E2BIG;
	if (!find(xattrs, name, &begin, &end))
		begin = end = 0;
	size_t more = sizeof(value_bytes) + name_bytes + bytes;
	if ((xattrs ? xattrs->bytes : 0) - (end - begin) + more > KVC_XATTRS_MAX_BYTES)
		return -ENOSPC;
	KvcXattrs *set = copy_without(xattrs, begin, end, more);
	char *item = set->items + set->bytes - more;
	memcpy(item, &value_bytes, sizeof(value_bytes));
	memcpy(item + sizeof(value_bytes), name, name_bytes);
	if (bytes > 0)
		memcpy(item + sizeof(value_bytes) + name_bytes, value, bytes);
	*out = set;
	return 0;
}

int
kvc_xattrs_remove(const KvcXattrs *xattrs, const char *name, KvcXattrs **out)
{
	size_t begin, end;
	if (!find(xattrs, name, &begin, &end))
		return -ENODATA;
	*out = copy_without(xattrs, begin, end, 0);
	return 0;
}

/* May NAME be set with these FLAGS? 0 or -errno. */
static int
check_flags(const KvcXattrs *xattrs, const char *name, int flags)
{
	bool exists = kvc_xattrs_get(xattrs, name, NULL) != NULL;
	if ((flags & XATTR_CREATE) && exists)
		return -EEXIST;
	return (flags & XATTR_REPLACE) && !exists ? -ENODATA : 0;
}

int
kvc_xattrs_change(const KvcXattrs *xattrs,
		  const char *name,
		  const void *value,
		  size_t bytes,
		  int flags,
		  KvcXattrs **out)
{
	if (!value)
		return kvc_xattrs_remove(xattrs, name, out);
	int rc = check_flags(xattrs, name, flags);
	return rc < 0 ? rc : kvc_xattrs_set(xattrs, name, value, bytes, out);
}

KvcObjectAttributes
kvc_object_attributes_copy(const KvcObjectAttributes *attributes)
{
	KvcObjectAttributes copy = *attributes;
	kvc_xattrs_ref(copy.xattrs);
	return copy;
}

void
kvc_object_attributes_clear(KvcObjectAttributes *attributes)
{
	kvc_xattrs_unref(attributes->xattrs);
	*attributes = (KvcObjectAttributes){0};
}
