/* SPDX-License-Identifier: Apache-2.0 */

/*
 * contract-adapter [SPECIFICATION...]: what kvcache/adapter.h promises, of every registered
 * adapter. Those that a SPECIFICATION opens are opened; of the others the vtable is looked at.
 * "@DIRECTORY@" in a specification becomes an empty directory of its own.
 *
 * A module names its specification in its meson.build (module_contracts), so that a new folder is
 * tested here by itself.
 */

#include <errno.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmocka.h>

#include <kvcache/kvcache.h>

#define WAIT_MS 60000
#define EVENT_FDS 3

/* What a test is about: one adapter, and with a specification an instance of it. */
typedef struct Subject {
	const KvcL2AdapterOps *ops;
	const char *specification; /* NULL: it cannot be opened here */

	char *directory; /* or NULL */
	KvcOptions *options;
	KvcL2Adapter *adapter;
	KvcKeyScope *scope, *plain_scope;
} Subject;

/* ---- Instances ----------------------------------------------------------------------------- */

static void
remove_directory(const char *directory)
{
	g_autofree char *command = g_strdup_printf("rm -rf '%s'", directory);

	assert_int_equal(system(command), 0);
}

/* SPECIFICATION with a directory of *DIRECTORY if it wants one. */
static char *
with_directory(const char *specification, char **directory)
{
	g_auto(GStrv) parts = g_strsplit(specification, "@DIRECTORY@", -1);

	if (g_strv_length(parts) > 1) {
		*directory = g_dir_make_tmp("kvc-contract.XXXXXX", NULL);
		assert_non_null(*directory);
	}
	return g_strjoinv(*directory, parts);
}

static int
set_up(void **state)
{
	Subject *subject = *state;
	g_autofree char *specification =
		with_directory(subject->specification, &subject->directory);
	g_autoptr(GError) error = NULL;

	subject->adapter = kvc_l2_adapter_open(specification, &subject->options, &error);
	if (!subject->adapter)
		fail_msg("%s: %s", specification, error->message);
	subject->scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);
	subject->plain_scope = kvc_key_scope_new_plain("some/directory", NULL);
	return 0;
}

static int
tear_down(void **state)
{
	Subject *subject = *state;

	subject->ops->close(g_steal_pointer(&subject->adapter));
	kvc_options_free(g_steal_pointer(&subject->options));
	kvc_key_scope_unref(g_steal_pointer(&subject->scope));
	kvc_key_scope_unref(g_steal_pointer(&subject->plain_scope));
	if (subject->directory)
		remove_directory(subject->directory);
	g_clear_pointer(&subject->directory, g_free);
	return 0;
}

static KvcObjectKey *
key_new(const Subject *subject, KvcSpace space, uint32_t number)
{
	KvcKeyScope *scope = space == KVC_SPACE_PLAIN ? subject->plain_scope : subject->scope;
	g_autofree char *name = g_strdup_printf("n%07u", number);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, strlen(name), NULL);

	assert_non_null(key);
	return key;
}

/* ---- Tasks --------------------------------------------------------------------------------- */

/* As the engine gives it: page aligned, zero behind the bytes. */
static KvcMemoryObj
memory_new(size_t bytes, uint32_t seed)
{
	KvcMemoryObj memory = {.bytes = bytes, .mapped_bytes = kvc_io_align_up(bytes)};

	if (bytes == 0)
		return memory;
	memory.data = mmap(NULL, memory.mapped_bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory.data, MAP_FAILED);
	for (size_t i = 0; i < bytes; i++)
		((uint8_t *)memory.data)[i] = (uint8_t)((i * 2654435761u + seed) >> 11);
	return memory;
}

static void
memory_free(KvcMemoryObj *memory)
{
	if (memory->data)
		munmap(memory->data, memory->mapped_bytes);
}

static void
await_event(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};

	assert_int_equal(poll(&event, 1, WAIT_MS), 1);
	kvc_eventfd_drain(fd);
}

static int64_t
store(const Subject *subject, KvcObjectKey *key, KvcMemoryObj *memory)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcL2TaskId id = ops->submit_store_task(subject->adapter, &key, memory, 1);
	KvcL2StoreResult result = {0};

	assert_int_not_equal(id, 0);
	while (ops->pop_completed_store_tasks(subject->adapter, &result, 1) == 0)
		await_event(ops->get_store_event_fd(subject->adapter));
	assert_int_equal(result.task_id, id);
	assert_int_equal(ops->pop_completed_store_tasks(subject->adapter, &result, 1), 0);
	return result.bytes_transferred;
}

/* Whether it is there; locked then. */
static bool
lookup_and_lock(const Subject *subject, KvcObjectKey *key, uint64_t *bytes)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcL2TaskId id = ops->submit_lookup_and_lock_task(subject->adapter, &key, 1);
	g_autoptr(KvcBitmap) found = kvc_bitmap_new(1);
	KvcL2ObjectInfo info = {0};
	int rc;

	assert_int_not_equal(id, 0);
	while ((rc = ops->query_lookup_and_lock_result(subject->adapter, id, found, &info)) == 0)
		await_event(ops->get_lookup_and_lock_event_fd(subject->adapter));
	assert_int_equal(rc, 1);
	kvc_xattrs_unref(info.xattrs);
	rc = ops->query_lookup_and_lock_result(subject->adapter, id, found, &info);
	assert_int_equal(rc, -ENOENT);
	*bytes = info.bytes;
	return kvc_bitmap_test(found, 0);
}

static bool
load(const Subject *subject, KvcObjectKey *key, KvcMemoryObj *memory)
{
	const KvcL2AdapterOps *ops = subject->ops;
	KvcL2TaskId id = ops->submit_load_task(subject->adapter, &key, memory, 1);
	g_autoptr(KvcBitmap) loaded = kvc_bitmap_new(1);
	int rc;

	assert_int_not_equal(id, 0);
	while ((rc = ops->query_load_result(subject->adapter, id, loaded)) == 0)
		await_event(ops->get_load_event_fd(subject->adapter));
	assert_int_equal(rc, 1);
	assert_int_equal(ops->query_load_result(subject->adapter, id, loaded), -ENOENT);
	return kvc_bitmap_test(loaded, 0);
}

/* ---- The vtable, of every adapter ---------------------------------------------------------- */

static void
check_option(const KvcOptionSpec *specs, const KvcOptionSpec *spec)
{
	const KvcOptionSpec *common = kvc_l2_adapter_get_common_options();

	assert_true(spec->help && *spec->help && !strchr(spec->help, '\n'));
	assert_false(spec->required && spec->default_value);
	assert_true(spec->min <= spec->max);
	for (const KvcOptionSpec *other = specs; other != spec; other++)
		assert_string_not_equal(other->name, spec->name);
	for (const KvcOptionSpec *other = common; other->name; other++)
		assert_string_not_equal(other->name, spec->name);
}

static void
test_vtable(void **state)
{
	const KvcL2AdapterOps *ops = ((Subject *)*state)->ops;

	assert_int_equal(ops->api, KVC_L2_ADAPTER_API);
	assert_int_equal(ops->struct_size, sizeof(*ops));
	assert_ptr_equal(kvc_find_l2_adapter(ops->type_name, NULL), ops);
	assert_int_equal(strspn(ops->type_name, "abcdefghijklmnopqrstuvwxyz0123456789_"),
			 strlen(ops->type_name));
	assert_true(ops->summary && *ops->summary && !strchr(ops->summary, '\n'));
	assert_non_null(ops->open);
	assert_non_null(ops->close);
	assert_non_null(ops->get_store_event_fd);
	assert_non_null(ops->get_lookup_and_lock_event_fd);
	assert_non_null(ops->get_load_event_fd);
	assert_non_null(ops->submit_store_task);
	assert_non_null(ops->pop_completed_store_tasks);
	assert_non_null(ops->submit_lookup_and_lock_task);
	assert_non_null(ops->query_lookup_and_lock_result);
	assert_non_null(ops->submit_unlock);
	assert_non_null(ops->submit_load_task);
	assert_non_null(ops->query_load_result);
	assert_non_null(ops->describe);
	assert_non_null(ops->options);
	for (const KvcOptionSpec *spec = ops->options; spec->name; spec++)
		check_option(ops->options, spec);
}

/* ---- An instance --------------------------------------------------------------------------- */

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

static void
get_event_fds(const Subject *subject, int *fds)
{
	fds[0] = subject->ops->get_store_event_fd(subject->adapter);
	fds[1] = subject->ops->get_lookup_and_lock_event_fd(subject->adapter);
	fds[2] = subject->ops->get_load_event_fd(subject->adapter);
}

static void
test_event_fds_are_distinct(void **state)
{
	Subject *subject = *state;
	Subject other = {.ops = subject->ops, .specification = subject->specification};
	void *other_state = &other;
	int fds[2 * EVENT_FDS];

	set_up(&other_state);
	get_event_fds(subject, fds);
	get_event_fds(&other, fds + EVENT_FDS);
	for (int i = 0; i < 2 * EVENT_FDS; i++) {
		assert_true(fds[i] >= 0);
		for (int j = 0; j < i; j++)
			assert_int_not_equal(fds[i], fds[j]);
	}
	tear_down(&other_state);
}

static void
delete_key(const Subject *subject, KvcObjectKey *key)
{
	g_autoptr(KvcBitmap) deleted = kvc_bitmap_new(1);
	uint64_t bytes;

	if (!subject->ops->delete_keys)
		return;
	assert_int_equal(subject->ops->delete_keys(subject->adapter, &key, 1, deleted), 0);
	assert_true(kvc_bitmap_test(deleted, 0));
	assert_false(lookup_and_lock(subject, key, &bytes));
}

/* How often KEY is listed, which has BYTES. */
static unsigned
count_listed(const Subject *subject, KvcObjectKey *key, size_t bytes)
{
	KvcL2ListEntry entries[16] = {0};
	char *cursor = NULL;
	unsigned count = 0;

	do {
		ssize_t n = subject->ops->list(subject->adapter, key->scope, &cursor, entries,
					       G_N_ELEMENTS(entries));

		assert_true(n >= 0);
		for (ssize_t i = 0; i < n; i++) {
			if (kvc_object_key_equal(entries[i].key, key)) {
				count++;
				assert_int_equal(entries[i].info.bytes, bytes);
			}
			kvc_xattrs_unref(entries[i].info.xattrs);
			kvc_object_key_unref(entries[i].key);
		}
	} while (cursor);
	return count;
}

/* Absent, stored, found, loaded, listed, unlocked, deleted, absent. */
static void
round_trip(const Subject *subject, KvcObjectKey *key, size_t bytes)
{
	KvcMemoryObj written = memory_new(bytes, key->space), read = memory_new(bytes, ~0u);
	uint64_t found_bytes;

	assert_false(lookup_and_lock(subject, key, &found_bytes));
	assert_false(load(subject, key, &read));
	assert_int_equal(store(subject, key, &written), bytes);
	assert_true(lookup_and_lock(subject, key, &found_bytes));
	assert_int_equal(found_bytes, bytes);
	assert_true(load(subject, key, &read));
	if (bytes > 0)
		assert_memory_equal(read.data, written.data, bytes);
	if (subject->ops->list)
		assert_int_equal(count_listed(subject, key, bytes), 1);
	subject->ops->submit_unlock(subject->adapter, &key, 1);
	delete_key(subject, key);
	memory_free(&written);
	memory_free(&read);
}

static void
test_round_trips(void **state)
{
	static const KvcSpace spaces[] = {KVC_SPACE_CHUNK, KVC_SPACE_PLAIN, KVC_SPACE_PREFIX};
	static const size_t sizes[] = {1, 4096, 100001};
	Subject *subject = *state;

	for (size_t i = 0; i < G_N_ELEMENTS(spaces); i++) {
		for (size_t j = 0; j < G_N_ELEMENTS(sizes); j++) {
			g_autoptr(KvcObjectKey) key = key_new(subject, spaces[i], (uint32_t)j);

			round_trip(subject, key, sizes[j]);
		}
	}
}

/* ---- All of them --------------------------------------------------------------------------- */

static const struct CMUnitTest instance_tests[] = {
	{"describes_itself", test_describes_itself, set_up, tear_down, NULL},
	{"event_fds_are_distinct", test_event_fds_are_distinct, set_up, tear_down, NULL},
	{"round_trips", test_round_trips, set_up, tear_down, NULL},
};

static GPtrArray *subjects; /* owned */

static Subject *
subject_new(const KvcL2AdapterOps *ops)
{
	Subject *subject = g_new0(Subject, 1);
	subject->ops = ops;
	g_ptr_array_add(subjects, subject);
	return subject;
}

static void
add_test(GArray *tests, const struct CMUnitTest *test, Subject *subject)
{
	struct CMUnitTest named = *test;

	named.name = g_strdup_printf("%s: %s", subject->ops->type_name, test->name);
	named.initial_state = subject;
	g_array_append_val(tests, named);
}

static void
add_tests(GArray *tests, const KvcL2AdapterOps *ops, char **specifications)
{
	static const struct CMUnitTest vtable_test = {"vtable", test_vtable, NULL, NULL, NULL};
	Subject *subject = subject_new(ops);
	bool is_opened = false;

	add_test(tests, &vtable_test, subject);
	for (; *specifications; specifications++) {
		g_autoptr(KvcOptions) options = kvc_options_parse(*specifications, NULL);

		if (!options || strcmp(kvc_options_type(options), ops->type_name) != 0)
			continue;
		subject = subject_new(ops);
		subject->specification = *specifications;
		for (size_t i = 0; i < G_N_ELEMENTS(instance_tests); i++)
			add_test(tests, &instance_tests[i], subject);
		is_opened = true;
	}
	if (!is_opened)
		printf("%s: not opened, it has no specification here\n", ops->type_name);
}

/* A misspelt one would test nothing. */
static void
check_specifications(char **specifications)
{
	for (; *specifications; specifications++) {
		g_autoptr(GError) error = NULL;
		g_autoptr(KvcOptions) options = kvc_options_parse(*specifications, &error);

		if (!options || !kvc_find_l2_adapter(kvc_options_type(options), &error)) {
			fprintf(stderr, "%s: %s\n", *specifications, error->message);
			exit(1);
		}
	}
}

int
main(int argc, char **argv)
{
	GArray *tests = g_array_new(FALSE, FALSE, sizeof(struct CMUnitTest));
	const KvcL2AdapterOps *ops;

	check_specifications(argv + 1);
	subjects = g_ptr_array_new_with_free_func(g_free);
	for (size_t i = 0; (ops = kvc_l2_adapter_at(i)) != NULL; i++)
		add_tests(tests, ops, argv + 1);
	const struct CMUnitTest *all = (const struct CMUnitTest *)(void *)tests->data;
	int failed = _cmocka_run_group_tests("adapters", all, tests->len, NULL, NULL);
	for (guint i = 0; i < tests->len; i++)
		g_free((char *)all[i].name);
	g_array_unref(tests);
	g_ptr_array_unref(subjects);
	return failed;
}
