/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_KEY_FIXTURE_H
#define TESTS_UNIT_KEY_FIXTURE_H

/* Numbered keys of every space; included behind cmocka's own prerequisites. */

#include "kvcache/object-key.h"

#include <cmocka.h>

static inline KvcObjectKey *
key_in(KvcKeyScope *scope, KvcSpace space, unsigned number)
{
	char name[9];
	g_snprintf(name, sizeof(name), "%08x", number);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, 8, NULL);
	assert_non_null(key);
	return key;
}

/* The plain file with this number; all of them are in one directory. */
static inline KvcObjectKey *
plain_key_new(unsigned number)
{
	g_autoptr(KvcKeyScope) directory = kvc_key_scope_new_plain("plain/files", NULL);
	assert_non_null(directory);
	return key_in(directory, KVC_SPACE_PLAIN, number);
}

#endif
