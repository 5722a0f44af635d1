/* SPDX-License-Identifier: Apache-2.0 */

/* What an instance says of itself, its event fds, and the life of an object in one go. */

#include "adapter-fixture.h"

#include <fcntl.h>
#include <unistd.h>

typedef struct Described {
	unsigned health, io_mode, location;
} Described;

static void
note_line(void *user, const char *name, const char *value)
{
	Described *described = user;

	assert_true(*name && !strchr(value, '\n'));
	if (!strcmp(name, "health")) {
		described->health++;
		assert_true(!strcmp(value, "ok") || !strcmp(value, "degraded") ||
			    !strcmp(value, "failed"));
	}
	described->io_mode += !strcmp(name, "io_mode");
	described->location += !strcmp(name, "location");
}

static void
test_describes_itself(void **state)
{
	Subject *subject = *state;
	Described described = {0};

	assert_ptr_equal(subject->adapter->ops, subject->ops);
	subject->ops->describe(subject->adapter, note_line, &described);
	assert_int_equal(described.health, 1);
	assert_int_equal(described.io_mode, 1);
	assert_int_equal(described.location, 1);
}

/* ---- Event fds ----------------------------------------------------------------------------- */

static void
add_event_fds(GArray *fds, const Subject *subject)
{
	int own[EVENT_FDS] = {
		subject->ops->get_store_event_fd(subject->adapter),
		subject->ops->get_lookup_and_lock_event_fd(subject->adapter),
		subject->ops->get_load_event_fd(subject->adapter),
	};

	for (int i = 0; i < EVENT_FDS; i++) {
		for (guint j = 0; j < fds->len; j++)
			assert_int_not_equal(own[i], g_array_index(fds, int, j));
		assert_true(fcntl(own[i], F_GETFL) & O_NONBLOCK);
		g_array_append_val(fds, own[i]);
	}
	/* They stay what they are. */
	assert_int_equal(subject->ops->get_store_event_fd(subject->adapter), own[0]);
	assert_int_equal(subject->ops->get_lookup_and_lock_event_fd(subject->adapter), own[1]);
	assert_int_equal(subject->ops->get_load_event_fd(subject->adapter), own[2]);
}

/* Of this instance, of another one, and of one of every other specification. */
static void
test_event_fds_are_distinct(void **state)
{
	Subject *subject = *state;
	g_autoptr(GArray) fds = g_array_new(FALSE, FALSE, sizeof(int));
	guint n = g_strv_length(specifications);
	g_autofree Subject *others = g_new0(Subject, n);

	add_event_fds(fds, subject);
	for (guint i = 0; i < n; i++) {
		g_autoptr(KvcOptions) options = kvc_options_parse(specifications[i], NULL);
		void *other = &others[i];

		others[i].ops = kvc_find_l2_adapter(kvc_options_type(options), NULL);
		others[i].specification = specifications[i];
		set_up(&other);
		add_event_fds(fds, &others[i]);
	}
	for (guint i = 0; i < n; i++) {
		void *other = &others[i];

		tear_down(&other);
	}
	/* The others took nothing of this one with them. */
	assert_true(fcntl(g_array_index(fds, int, 0), F_GETFL) & O_NONBLOCK);
}

/* Each kind of result wakes its own controller, and no other. */
static void
test_each_kind_has_its_event(void **state)
{
	Subject *subject = *state;
	const KvcL2AdapterOps *ops = subject->ops;
	int store_fd = ops->get_store_event_fd(subject->adapter);
	int lookup_fd = ops->get_lookup_and_lock_event_fd(subject->adapter);
	int load_fd = ops->get_load_event_fd(subject->adapter);
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj memory = memory_new(100, 1);

	assert_false(has_event(store_fd) || has_event(lookup_fd) || has_event(load_fd));
	KvcL2TaskId id = ops->submit_store_task(subject->adapter, &key, &memory, 1);
	await_event(store_fd);
	assert_false(has_event(store_fd) || has_event(lookup_fd) || has_event(load_fd));
	assert_int_equal(await_store(subject, id), 100);

	id = ops->submit_lookup_and_lock_task(subject->adapter, &key, 1);
	await_event(lookup_fd);
	assert_false(has_event(store_fd) || has_event(lookup_fd) || has_event(load_fd));
	g_autoptr(KvcBitmap) found = await_lookup(subject, id, 1, NULL);

	id = ops->submit_load_task(subject->adapter, &key, &memory, 1);
	await_event(load_fd);
	assert_false(has_event(store_fd) || has_event(lookup_fd) || has_event(load_fd));
	g_autoptr(KvcBitmap) loaded = await_load(subject, id, 1);
	assert_true(kvc_bitmap_test(found, 0) && kvc_bitmap_test(loaded, 0));
	memory_free(&memory);
}

/* ---- Round trips --------------------------------------------------------------------------- */

/* Absent, stored, found, loaded, listed, unlocked, deleted, absent. */
static void
round_trip(const Subject *subject, KvcObjectKey *key, size_t bytes)
{
	KvcMemoryObj written = memory_new(bytes, key->space);
	uint64_t found_bytes;

	assert_false(lookup_and_lock(subject, key, NULL));
	assert_misses(subject, key, bytes);
	assert_int_equal(store(subject, key, &written), bytes);
	assert_true(lookup_and_lock(subject, key, &found_bytes));
	assert_int_equal(found_bytes, bytes);
	assert_loads(subject, key, &written);
	if (subject->ops->list)
		assert_int_equal(count_listed(subject, key->scope, key, bytes, 16), 1);
	unlock(subject, key);
	if (subject->ops->delete_keys) {
		assert_true(delete_key(subject, key));
		assert_false(lookup_and_lock(subject, key, NULL));
		assert_misses(subject, key, bytes);
		if (subject->ops->list)
			assert_int_equal(count_listed(subject, key->scope, key, bytes, 16), 0);
	}
	memory_free(&written);
}

/* Nothing, one byte, around a page and a piece of the ring, not a multiple of anything. */
static void
test_round_trips(void **state)
{
	static const size_t sizes[] = {1, 0, 100001, 511, 4095, 4096, 4097, MIB, 3 * MIB + 1};
	Subject *subject = *state;

	for (KvcSpace space = KVC_SPACE_CHUNK; space <= KVC_SPACE_PREFIX; space++) {
		size_t n = space == KVC_SPACE_CHUNK ? G_N_ELEMENTS(sizes) : 3;

		for (size_t i = 0; i < n; i++) {
			g_autoptr(KvcObjectKey) key = key_new(subject, space, (uint32_t)i);

			round_trip(subject, key, sizes[i]);
		}
	}
}

static void
test_large_object(void **state)
{
	Subject *subject = *state;
	size_t bytes = subject_is_small(subject) ? 8 * MIB : 64 * MIB;
	g_autoptr(KvcObjectKey) key = key_new(subject, KVC_SPACE_CHUNK, 1);
	KvcMemoryObj memory = memory_new(bytes, 1);

	assert_int_equal(store(subject, key, &memory), bytes);
	assert_loads(subject, key, &memory);
	memory_free(&memory);
}

const struct CMUnitTest adapter_basic_tests[] = {
	{"describes_itself", test_describes_itself, set_up, tear_down, NULL},
	{"event_fds_are_distinct", test_event_fds_are_distinct, set_up, tear_down, NULL},
	{"each_kind_has_its_event", test_each_kind_has_its_event, set_up, tear_down, NULL},
	{"round_trips", test_round_trips, set_up, tear_down, NULL},
	{"large_object", test_large_object, set_up, tear_down, NULL},
	{NULL, NULL, NULL, NULL, NULL},
};
