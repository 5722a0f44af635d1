/* SPDX-License-Identifier: Apache-2.0 */
#ifndef TESTS_UNIT_STORAGE_MANAGER_RENAME_FIXTURE_H
#define TESTS_UNIT_STORAGE_MANAGER_RENAME_FIXTURE_H

/* A StorageManager with a directory of numbered plain files. */

#include "tests/unit/storage-manager-fixture.h"

#define SIZE 5000

#define MOCK "type=mock,max_size_gb=0.1"
#define SLOW_MOCK MOCK ",latency_ms=2"

/* Plain files: what is renamed. */
static inline int
set_up_plain(void **state)
{
	set_up(state);
	Fixture *f = *state;
	kvc_key_scope_unref(f->scope);
	f->scope = kvc_key_scope_new_plain("directory", NULL);
	return 0;
}

#define PLAIN_TEST(function) cmocka_unit_test_setup_teardown(function, set_up_plain, tear_down)

static inline int
rename_number(Fixture *f, unsigned from, unsigned to, unsigned flags)
{
	g_autoptr(KvcObjectKey) old_key = key_of(f, from);
	g_autoptr(KvcObjectKey) new_key = key_of(f, to);
	return kvc_storage_manager_rename(f->sm, old_key, new_key, flags);
}

static inline KvcObjectInfo
info_of(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	KvcObjectInfo info = {0};
	kvc_storage_manager_stat(f->sm, key, &info);
	return info;
}

static inline int
await_rename(Fixture *f, unsigned number)
{
	g_autoptr(KvcObjectKey) key = key_of(f, number);
	Flushed awaited = {0};
	kvc_storage_manager_await_rename(f->sm, key, on_flushed, &awaited);
	wait_until(count_of(&awaited) > 0);
	return awaited.error;
}

static inline void
assert_loaded(Fixture *f, unsigned number, unsigned content)
{
	assert_int_equal(load(f, number, number + 1), 1);
	KvcL1Object *object = try_read(f, number);
	assert_non_null(object);
	assert_true(has_content(object, SIZE, byte_of(content, 0)));
	kvc_storage_manager_finish_read(f->sm, object);
}

#endif
