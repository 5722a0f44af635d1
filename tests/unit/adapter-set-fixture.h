/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_ADAPTER_SET_FIXTURE_H
#define TESTS_UNIT_ADAPTER_SET_FIXTURE_H

/* An engine whose adapters come and go. */

#include "tests/unit/storage-manager-fixture.h"

#define WAIT (20 * KVC_SEC_NS)

static inline int
add(Fixture *f, const char *specification)
{
	g_autoptr(GError) error = NULL;
	int i = kvc_storage_manager_add_adapter(f->sm, specification, &error);
	if (i < 0)
		fail_msg("%s", error->message);
	return i;
}

static inline int
take_away(Fixture *f, size_t i)
{
	return kvc_storage_manager_remove_adapter(f->sm, i, WAIT);
}

#endif
