/* SPDX-License-Identifier: Apache-2.0 */

#include "adapter-fixture.h"

#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <unistd.h>

#define TMPFS_OPTIONS "size=64m,mode=0700"

/* ---- A small tmpfs ------------------------------------------------------------------------- */

static char *tmpfs;

static bool
write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "w");

	if (!file)
		return false;
	bool is_written = fputs(text, file) >= 0;
	return fclose(file) == 0 && is_written;
}

/* Root needs no user name space. */
static bool
enter_name_space(void)
{
	unsigned uid = geteuid(), gid = getegid();
	g_autofree char *uid_map = g_strdup_printf("0 %u 1", uid);
	g_autofree char *gid_map = g_strdup_printf("0 %u 1", gid);

	if (unshare(CLONE_NEWNS) == 0)
		return true;
	return unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0 &&
	       write_file("/proc/self/setgroups", "deny") &&
	       write_file("/proc/self/uid_map", uid_map) &&
	       write_file("/proc/self/gid_map", gid_map);
}

const char *
make_tmpfs(void)
{
	tmpfs = g_dir_make_tmp("kvc-contract.XXXXXX", NULL);
	if (!tmpfs)
		return NULL;
	if (!enter_name_space() || mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) < 0 ||
	    mount("tmpfs", tmpfs, "tmpfs", 0, TMPFS_OPTIONS) < 0) {
		rmdir(tmpfs);
		g_clear_pointer(&tmpfs, g_free);
		return NULL;
	}
	return tmpfs;
}

void
remove_tmpfs(void)
{
	if (tmpfs) {
		umount2(tmpfs, MNT_DETACH);
		rmdir(tmpfs);
	}
	g_clear_pointer(&tmpfs, g_free);
}

/* ---- Loop devices -------------------------------------------------------------------------- */

#define LOOP_BYTES (280 * MIB)

/* What losetup prints (transfer full), or NULL: it failed. */
static char *
run_losetup(const char *options, const char *path)
{
	g_autofree char *command = g_strdup_printf("losetup %s '%s'", options, path);
	g_autofree char *output = NULL;
	int status;

	if (!g_spawn_command_line_sync(command, &output, NULL, &status, NULL) || status != 0)
		return NULL;
	return g_strchomp(g_steal_pointer(&output));
}

/* A loop device of LOOP_BYTES, empty, over a file in DIRECTORY (transfer full), or NULL. */
static char *
make_loop(const char *directory)
{
	g_autofree char *path = g_build_filename(directory, "disk", NULL);

	if (!write_file(path, "") || truncate(path, LOOP_BYTES) < 0)
		return NULL;
	return run_losetup("--find --show", path);
}

static void
remove_loop(char *loop)
{
	if (loop)
		g_free(run_losetup("--detach", loop));
	g_free(loop);
}

/* ---- Instances ----------------------------------------------------------------------------- */

static void
remove_directory(const char *directory)
{
	g_autofree char *command = g_strdup_printf("rm -rf '%s'", directory);

	assert_int_equal(system(command), 0);
}

static char *
replace(const char *text, const char *what, const char *with)
{
	g_auto(GStrv) parts = g_strsplit(text, what, -1);

	return g_strjoinv(with, parts);
}

bool
may_make_loop(void)
{
	g_autofree char *directory = g_dir_make_tmp("kvc-contract.XXXXXX", NULL);

	if (!directory)
		return false;
	char *loop = geteuid() == 0 ? make_loop(directory) : NULL;
	bool is_made = loop != NULL;
	remove_loop(loop);
	remove_directory(directory);
	return is_made;
}

char *
subject_specification(Subject *subject)
{
	static unsigned last_number;
	bool is_small = strstr(subject->specification, "@TMPFS@");
	bool has_loop = strstr(subject->specification, "@LOOP@");

	if (strstr(subject->specification, "@NUMBER@")) {
		if (!subject->number)
			subject->number = ++last_number;
		g_autofree char *number = g_strdup_printf("%u", subject->number);
		return replace(subject->specification, "@NUMBER@", number);
	}
	if (!subject->directory && is_small) {
		subject->directory = g_build_filename(tmpfs, "XXXXXX", NULL);
		assert_non_null(g_mkdtemp(subject->directory));
	} else if (!subject->directory &&
		   (has_loop || strstr(subject->specification, "@DIRECTORY@"))) {
		subject->directory = g_dir_make_tmp("kvc-contract.XXXXXX", NULL);
		assert_non_null(subject->directory);
	}
	if (!subject->directory)
		return g_strdup(subject->specification);
	if (has_loop && !subject->loop) {
		subject->loop = make_loop(subject->directory);
		assert_non_null(subject->loop);
	}
	if (has_loop)
		return replace(subject->specification, "@LOOP@", subject->loop);
	return replace(subject->specification, is_small ? "@TMPFS@" : "@DIRECTORY@",
		       subject->directory);
}

void
subject_open(Subject *subject, const char *suffix)
{
	g_autofree char *specification = subject_specification(subject);
	g_autofree char *whole = g_strconcat(specification, suffix, NULL);
	g_autoptr(GError) error = NULL;

	assert_null(subject->adapter);
	subject->adapter = kvc_l2_adapter_open(whole, &subject->options, &error);
	if (!subject->adapter)
		fail_msg("%s: %s", whole, error->message);
	/* One that is opened may do less than its type. */
	subject->ops = subject->adapter->ops;
}

void
subject_close(Subject *subject)
{
	subject->ops->close(g_steal_pointer(&subject->adapter));
	kvc_options_free(g_steal_pointer(&subject->options));
}

int
set_up(void **state)
{
	Subject *subject = *state;
	/* Of a store that cannot give each test a place of its own: a command that empties it. */
	const char *reset = g_getenv("KVC_CONTRACT_RESET");

	if (reset)
		assert_int_equal(system(reset), 0);
	subject_open(subject, "");
	subject->scope = kvc_key_scope_new("some/model", 0x01000100, 0, NULL, NULL);
	subject->plain_scope = kvc_key_scope_new_plain("some/directory", NULL);
	return 0;
}

int
tear_down(void **state)
{
	Subject *subject = *state;

	if (subject->adapter)
		subject_close(subject);
	kvc_key_scope_unref(g_steal_pointer(&subject->scope));
	kvc_key_scope_unref(g_steal_pointer(&subject->plain_scope));
	remove_loop(g_steal_pointer(&subject->loop));
	if (subject->directory)
		remove_directory(subject->directory);
	g_clear_pointer(&subject->directory, g_free);
	subject->number = 0;
	return 0;
}

typedef struct Line {
	const char *name;
	char *value;
} Line;

static void
take_line(void *user, const char *name, const char *value)
{
	Line *line = user;

	if (!strcmp(name, line->name) && !line->value)
		line->value = g_strdup(value);
}

char *
subject_line(const Subject *subject, const char *name)
{
	Line line = {.name = name};

	subject->ops->describe(subject->adapter, take_line, &line);
	return line.value;
}

bool
subject_is_persistent(const Subject *subject)
{
	g_autofree char *location = subject_line(subject, "location");

	return strcmp(location, "memory of this process") != 0;
}

bool
subject_has_checksums(const Subject *subject)
{
	g_autofree char *checksums = subject_line(subject, "checksums");

	return !checksums || (strcmp(checksums, "off") && strcmp(checksums, "unsupported"));
}

KvcL2Usage
subject_usage(const Subject *subject)
{
	KvcL2Usage usage = {0};

	if (subject->ops->usage)
		subject->ops->usage(subject->adapter, &usage);
	return usage;
}

bool
subject_has_exact_usage(const Subject *subject)
{
	g_autofree char *usage = subject_line(subject, "usage");

	assert_true(!usage || !strcmp(usage, "estimated"));
	return subject->ops->usage && !usage;
}

bool
subject_is_small(const Subject *subject)
{
	uint64_t capacity = subject_usage(subject).capacity_bytes;

	return capacity > 0 && capacity < SMALL_BYTES;
}

/* ---- Keys and memory ----------------------------------------------------------------------- */

KvcObjectKey *
key_new(const Subject *subject, KvcSpace space, uint32_t number)
{
	KvcKeyScope *scope = space == KVC_SPACE_PLAIN ? subject->plain_scope : subject->scope;
	g_autofree char *name = g_strdup_printf("n%07u", number);
	KvcObjectKey *key = kvc_object_key_new(scope, space, name, strlen(name), NULL);

	assert_non_null(key);
	return key;
}

KvcObjectKey **
keys_new(const Subject *subject, uint32_t first, size_t n)
{
	KvcObjectKey **keys = g_new0(KvcObjectKey *, n);

	for (size_t i = 0; i < n; i++)
		keys[i] = key_new(subject, KVC_SPACE_CHUNK, first + (uint32_t)i);
	return keys;
}

void
keys_free(KvcObjectKey **keys, size_t n)
{
	for (size_t i = 0; i < n; i++)
		kvc_object_key_unref(keys[i]);
	g_free(keys);
}

/* One page of noise, of which each page of the object differs by its number. */
KvcMemoryObj
memory_new(size_t bytes, uint32_t seed)
{
	KvcMemoryObj memory = {.bytes = bytes, .mapped_bytes = kvc_io_align_up(bytes)};
	uint32_t page[KVC_IO_ALIGN_BYTES / sizeof(uint32_t)], noise = seed * 2654435761u + 1;

	if (bytes == 0)
		return memory;
	memory.data = mmap(NULL, memory.mapped_bytes, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_ptr_not_equal(memory.data, MAP_FAILED);
	for (size_t i = 0; i < G_N_ELEMENTS(page); i++) {
		noise ^= noise << 13;
		noise ^= noise >> 17;
		noise ^= noise << 5;
		page[i] = noise;
	}
	for (size_t at = 0; at < bytes; at += sizeof(page)) {
		page[1] = (uint32_t)(at / sizeof(page));
		memcpy((uint8_t *)memory.data + at, page, MIN(sizeof(page), bytes - at));
	}
	return memory;
}

void
memory_free(KvcMemoryObj *memory)
{
	if (memory->data)
		munmap(memory->data, memory->mapped_bytes);
	memory->data = NULL;
}

bool
memory_equal(const KvcMemoryObj *a, const KvcMemoryObj *b)
{
	return a->bytes == b->bytes && (a->bytes == 0 || !memcmp(a->data, b->data, a->bytes));
}

KvcMemoryObj *
memories_new(size_t n, size_t bytes, uint32_t seed)
{
	KvcMemoryObj *memories = g_new0(KvcMemoryObj, n);

	for (size_t i = 0; i < n; i++)
		memories[i] = memory_new(bytes, seed + (uint32_t)i);
	return memories;
}

void
memories_free(KvcMemoryObj *memories, size_t n)
{
	for (size_t i = 0; i < n; i++)
		memory_free(&memories[i]);
	g_free(memories);
}
