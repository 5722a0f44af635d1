/* SPDX-License-Identifier: Apache-2.0 */

/*
 * What a client keeps open or mapped: it never changes what was committed, and its memory counts.
 * A client's descriptor is one of its own on the same file, as the kernel opens it for FUSE.
 */

#include "engine/l1-lease.h"
#include "kvcache/io.h"
#include "tests/unit/l1-manager-fixture.h"

#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int
client_open(const KvcL1Object *object, int flags)
{
	int fd = kvc_reopen(kvc_l1_object_get_fd(object), flags);
	assert_true(fd >= 0);
	return fd;
}

/* A shared mapping with no descriptor behind it. */
static uint8_t *
client_map(const KvcL1Object *object, uint64_t bytes, bool is_writable)
{
	int fd = client_open(object, is_writable ? O_RDWR : O_RDONLY);
	int protection = is_writable ? PROT_READ | PROT_WRITE : PROT_READ;
	uint8_t *data = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
	assert_true(data != MAP_FAILED);
	close(fd);
	return data;
}

static void
assert_lingering(Fixture *f, uint64_t files, uint64_t bytes)
{
	assert_int_equal(kvc_l1_memory_lingering_files(f->memory), files);
	assert_int_equal(kvc_l1_memory_lingering_bytes(f->memory), bytes);
}

/* Sweeps may be paused for ten times what the last one took. */
static void
sweep_until_empty(Fixture *f)
{
	for (unsigned i = 0; i < 20000 && kvc_l1_memory_lingering_files(f->memory) > 0; i++) {
		kvc_l1_memory_sweep(f->memory);
		g_usleep(1000);
	}
	assert_lingering(f, 0, 0);
}

/* ---- Leases -------------------------------------------------------------------------------- */

static void
test_leases_work_here(void **state)
{
	Fixture *f = *state;
	assert_int_equal(kvc_l1_memory_lease_error(f->memory), 0);
}

static void
test_no_writer(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, PAGE, 1);
	int reader = client_open(object, O_RDONLY);
	/* The object's own descriptor can write. */
	assert_int_equal(kvc_l1_lease_prove_no_writer(reader), -EAGAIN);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(kvc_l1_lease_prove_no_writer(reader), 0);
	/* Nothing is held: an open for writing is not kept waiting. */
	int writer = client_open(object, O_WRONLY | O_NONBLOCK);
	assert_int_equal(kvc_l1_lease_prove_no_writer(reader), -EAGAIN);
	close(writer);
	assert_int_equal(kvc_l1_lease_prove_no_writer(reader), 0);
	close(reader);
}

static void
test_unused(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, PAGE, 1);
	int fd = client_open(object, O_RDONLY);
	assert_int_equal(kvc_l1_lease_prove_unused(fd), -EAGAIN);
	close(fd);
	uint8_t *data = client_map(object, PAGE, false);
	assert_int_equal(kvc_l1_lease_prove_unused(object->fd), -EAGAIN);
	munmap(data, PAGE);
	assert_int_equal(kvc_l1_lease_prove_unused(object->fd), 0);
	fcntl(object->fd, F_SETLEASE, F_UNLCK);
	kvc_l1_manager_abort_write(f->m, object);
}

/* ---- Commits ------------------------------------------------------------------------------- */

static void
test_committed_descriptor_only_reads(void **state)
{
	Fixture *f = *state;
	put(f, 1, PAGE, 7);
	KvcL1Object *object = read_lock(f, 1);
	assert_int_equal(fcntl(object->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	assert_true(fcntl(object->fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(pwrite(object->fd, "x", 1, 0), -1);
	assert_content(object, PAGE, 7);
	read_unlock(f, object);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 0);
	assert_lingering(f, 0, 0);
}

static void
test_kept_writable_mapping_cannot_change_it(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, 2 * PAGE, false);
	fill_file(object, PAGE + 5, 7);
	uint8_t *data = client_map(object, 2 * PAGE, true);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	memset(data, 9, 2 * PAGE);
	object = read_lock(f, 1);
	assert_content(object, PAGE + 5, 7);
	assert_int_equal(fcntl(object->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	read_unlock(f, object);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 1);
	/* Both files count, until the mapping is gone. */
	assert_lingering(f, 1, 2 * PAGE);
	assert_int_equal(used(f), 4 * PAGE);
	assert_int_equal(kvc_l1_memory_files(f->memory), 2);
	munmap(data, 2 * PAGE);
	sweep_until_empty(f);
	assert_int_equal(used(f), 2 * PAGE);
	assert_int_equal(kvc_l1_memory_files(f->memory), 1);
}

static void
test_kept_writable_descriptor_cannot_change_it(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, PAGE, 7);
	int fd = client_open(object, O_WRONLY);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(pwrite(fd, "x", 1, 0), 1);
	assert_int_equal(ftruncate(fd, 1), 0);
	object = read_lock(f, 1);
	assert_content(object, PAGE, 7);
	read_unlock(f, object);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 1);
	close(fd);
	sweep_until_empty(f);
}

static void
test_kept_reader_is_no_reason_to_copy(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, PAGE, 7);
	uint8_t *data = client_map(object, PAGE, false);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 0);
	assert_int_equal(data[PAGE - 1], 7);
	munmap(data, PAGE);
}

static void *
close_later(void *data)
{
	g_usleep(100 * 1000);
	close(GPOINTER_TO_INT(data));
	return NULL;
}

/* The kernel was slow to drop the writer's descriptor: the machine was busy. */
static void
test_no_room_for_the_copy_of_a_late_writer(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, CAPACITY - MIB, false);
	fill_file(object, CAPACITY - MIB, 7);
	int fd = client_open(object, O_RDWR);
	GThread *writer = g_thread_new("writer", close_later, GINT_TO_POINTER(fd));
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	g_thread_join(writer);
	object = read_lock(f, 1);
	assert_content(object, CAPACITY - MIB, 7);
	read_unlock(f, object);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commit_copies_failed), 0);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 0);
	assert_int_equal(used(f), CAPACITY - MIB);
}

static void
test_no_room_for_the_copy(void **state)
{
	Fixture *f = *state;
	KvcL1Object *object = reserve(f, 1, CAPACITY - MIB, false);
	fill_file(object, CAPACITY - MIB, 7);
	int fd = client_open(object, O_RDWR);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_OUT_OF_MEMORY);
	assert_absent(f, 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commit_copies_failed), 1);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 0);
	assert_lingering(f, 1, CAPACITY - MIB);
	assert_int_equal(used(f), CAPACITY - MIB);
	close(fd);
	sweep_until_empty(f);
	assert_int_equal(used(f), 0);
}

static void
test_load_that_is_still_mapped_is_copied(void **state)
{
	Fixture *f = *state;
	KvcL1Object *locked = NULL, *object = reserve(f, 1, PAGE, true);
	fill_file(object, PAGE, 7);
	uint8_t *data = client_map(object, PAGE, true);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	data[0] = 9;
	assert_content(locked, PAGE, 7);
	read_unlock(f, locked);
	munmap(data, PAGE);
	sweep_until_empty(f);
}

/* ---- Memory that lingers ------------------------------------------------------------------- */

static void
test_mapping_keeps_the_memory_of_an_evicted_object_charged(void **state)
{
	Fixture *f = *state;
	int errnum = 0;
	put(f, 1, CAPACITY - MIB, 7);
	KvcL1Object *object = read_lock(f, 1);
	uint8_t *data = client_map(object, CAPACITY - MIB, false);
	read_unlock(f, object);
	assert_int_equal(evict(f, 1), KVC_L1_SUCCESS);
	assert_lingering(f, 1, CAPACITY - MIB);
	assert_int_equal(used(f), CAPACITY - MIB);
	/* No writer is promised what the mapping keeps. */
	assert_int_equal(try_reserve(f, 2 * MIB, &errnum), KVC_L1_OUT_OF_MEMORY);
	assert_int_equal(errnum, ENOSPC);
	assert_int_equal(data[0], 7);
	munmap(data, CAPACITY - MIB);
	/* A reservation looks again by itself. */
	g_usleep(20000);
	assert_int_equal(try_reserve(f, 2 * MIB, &errnum), KVC_L1_SUCCESS);
	assert_lingering(f, 0, 0);
	assert_int_equal(used(f), 0);
}

static void
test_deleted_replaced_and_aborted_ones_linger(void **state)
{
	Fixture *f = *state;
	uint8_t *data[3];
	for (unsigned i = 0; i < 3; i++) {
		KvcL1Object *object = reserve(f, i, PAGE, false);
		fill_file(object, PAGE, (uint8_t)i);
		data[i] = client_map(object, PAGE, false);
		if (i == 0)
			kvc_l1_manager_abort_write(f->m, object);
		else
			assert_int_equal(finish(f, object, i, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	}
	assert_lingering(f, 1, PAGE);
	assert_int_equal(delete_key(f, 1, false), KVC_L1_SUCCESS);
	KvcL1Object *other = reserve(f, 2, PAGE, false);
	assert_int_equal(finish(f, other, 2, KVC_FINISH_REPLACE), KVC_L1_SUCCESS);
	assert_lingering(f, 3, 3 * PAGE);
	assert_int_equal(used(f), 3 * PAGE);
	munmap(data[1], PAGE);
	for (unsigned i = 0; i < 20000 && kvc_l1_memory_lingering_files(f->memory) > 2; i++) {
		kvc_l1_memory_sweep(f->memory);
		g_usleep(1000);
	}
	assert_lingering(f, 2, 2 * PAGE);
	assert_int_equal(data[0][0], 0);
	assert_int_equal(data[2][0], 2);
	munmap(data[0], PAGE);
	munmap(data[2], PAGE);
	sweep_until_empty(f);
	assert_int_equal(used(f), 0);
}

static int
allow_rename(void *user, bool is_resident)
{
	return 0;
}

/* The new name's object has no file of its own. */
static void
test_file_given_out_under_another_name_lingers(void **state)
{
	Fixture *f = *state;
	g_autoptr(KvcObjectKey) from = key_of(f, 1);
	g_autoptr(KvcObjectKey) to = key_of(f, 2);
	put(f, 1, PAGE, 7);
	assert_int_equal(kvc_l1_manager_rename(f->m, from, to, allow_rename, NULL), 0);
	KvcL1Object *object = read_lock(f, 2);
	uint8_t *data = client_map(object, PAGE, false);
	read_unlock(f, object);
	assert_int_equal(evict(f, 2), KVC_L1_SUCCESS);
	assert_lingering(f, 1, PAGE);
	assert_int_equal(data[0], 7);
	munmap(data, PAGE);
	sweep_until_empty(f);
}

/* What a sweep releases was full memory: who wrote meanwhile cannot be proven complete. */
static void
test_fullness_is_seen_before_a_sweep_releases(void **state)
{
	Fixture *f = *state;
	skip_without_tmpfs(f);
	put(f, 1, CAPACITY - MIB, 7);
	KvcL1Object *object = read_lock(f, 1);
	uint8_t *data = client_map(object, PAGE, false);
	read_unlock(f, object);
	evict(f, 1);
	KvcL1Object *writer = reserve(f, 2, PAGE, false);
	int fd = client_open(writer, O_RDWR);
	g_autofree uint8_t *bytes = g_malloc0(2 * CAPACITY);
	/* Past the reservation and the overrun: cut short. */
	assert_true(pwrite(fd, bytes, 2 * CAPACITY, 0) < (ssize_t)(2 * CAPACITY));
	munmap(data, PAGE);
	sweep_until_empty(f);
	assert_true(kvc_l1_object_was_memory_full(writer));
	close(fd);
	kvc_l1_manager_abort_write(f->m, writer);
}

#define STEPS 300

/* Puts, maps, deletes and unmaps while another thread does the same and both sweep. */
static void *
linger_from_a_thread(void *user)
{
	Fixture *f = user;
	static unsigned next; /* Atomic */
	for (unsigned i = 0; i < STEPS; i++) {
		unsigned number = 1000 + __atomic_fetch_add(&next, 1, __ATOMIC_RELAXED);
		put(f, number, PAGE, 1);
		KvcL1Object *object = read_lock(f, number);
		uint8_t *data = client_map(object, PAGE, false);
		read_unlock(f, object);
		assert_int_equal(delete_key(f, number, false), KVC_L1_SUCCESS);
		kvc_l1_memory_sweep(f->memory);
		assert_int_equal(data[0], 1);
		munmap(data, PAGE);
	}
	return NULL;
}

static void
test_threads_lose_nothing(void **state)
{
	pthread_t threads[4];
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, linger_from_a_thread, *state),
				 0);
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
		pthread_join(threads[i], NULL);
	sweep_until_empty(*state);
	assert_int_equal(used(*state), 0);
}

/* ---- Without leases ------------------------------------------------------------------------ */

/* As with fs.leases-enable = 0, for this process only. */
static bool
forbid_leases(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_fcntl, 0, 3),
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[1])),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, F_SETLEASE, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EINVAL),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = {G_N_ELEMENTS(code), code};
	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

static void
commit_without_leases(void)
{
	Fixture *f = NULL;
	set_up((void **)&f);
	assert_int_equal(kvc_l1_memory_lease_error(f->memory), EINVAL);
	KvcL1Object *object = reserve(f, 1, PAGE, false);
	fill_file(object, PAGE, 7);
	uint8_t *data = client_map(object, PAGE, true);
	assert_int_equal(finish(f, object, 1, KVC_FINISH_FIRST_WINS), KVC_L1_SUCCESS);
	data[0] = 9;
	object = read_lock(f, 1);
	assert_content(object, PAGE, 7);
	read_unlock(f, object);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 1);
	assert_lingering(f, 0, 0);
	assert_int_equal(used(f), PAGE);
	tear_down((void **)&f);
}

/* Nobody else can have the file open: that needs no lease. */
static void
load_without_leases(void)
{
	Fixture *f = NULL;
	set_up((void **)&f);
	KvcL1Object *locked = NULL, *object = reserve(f, 1, PAGE, true);
	fill_file(object, PAGE, 7);
	assert_int_equal(kvc_l1_manager_finish_write_and_reserve_read(f->m, object, 1, &locked),
			 KVC_L1_SUCCESS);
	assert_content(locked, PAGE, 7);
	assert_int_equal(fcntl(locked->fd, F_GETFL) & O_ACCMODE, O_RDONLY);
	read_unlock(f, locked);
	assert_int_equal(kvc_stats_get(&f->stats, l1_commits_copied), 0);
	tear_down((void **)&f);
}

static void
run_without_leases(void (*func)(void))
{
	int status;
	pid_t pid = fork();
	assert_true(pid >= 0);
	if (pid == 0) {
		if (!forbid_leases())
			_exit(77);
		func();
		_exit(0);
	}
	assert_int_equal(waitpid(pid, &status, 0), pid);
	if (WIFEXITED(status) && WEXITSTATUS(status) == 77)
		skip();
	assert_int_equal(status, 0);
}

static void
test_without_leases_commits_copy(void **state)
{
	run_without_leases(commit_without_leases);
}

static void
test_without_leases_loads_do_not_copy(void **state)
{
	run_without_leases(load_without_leases);
}

int
main(void)
{
	g_log_set_writer_func(on_log, NULL, NULL);
	const struct CMUnitTest tests[] = {
		TEST(test_leases_work_here),
		TEST(test_no_writer),
		TEST(test_unused),
		TEST(test_committed_descriptor_only_reads),
		TEST(test_kept_writable_mapping_cannot_change_it),
		TEST(test_kept_writable_descriptor_cannot_change_it),
		TEST(test_kept_reader_is_no_reason_to_copy),
		TEST(test_no_room_for_the_copy),
		TEST(test_no_room_for_the_copy_of_a_late_writer),
		TEST(test_load_that_is_still_mapped_is_copied),
		TEST(test_file_given_out_under_another_name_lingers),
		TEST(test_mapping_keeps_the_memory_of_an_evicted_object_charged),
		TEST(test_deleted_replaced_and_aborted_ones_linger),
		TEST(test_fullness_is_seen_before_a_sweep_releases),
		TEST(test_threads_lose_nothing),
		cmocka_unit_test(test_without_leases_commits_copy),
		cmocka_unit_test(test_without_leases_loads_do_not_copy),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
