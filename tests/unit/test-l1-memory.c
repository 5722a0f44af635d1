/* SPDX-License-Identifier: Apache-2.0 */

#include "engine/l1-memory.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#define MIB (UINT64_C(1) << 20)
#define CAPACITY (4 * MIB)
#define OVERRUN (1 * MIB)

static int
set_up(void **state)
{
	g_autoptr(GError) error = NULL;
	*state = kvc_l1_memory_new(CAPACITY, OVERRUN, &error);
	assert_null(error);
	assert_non_null(*state);
	return 0;
}

static int
tear_down(void **state)
{
	assert_int_equal(kvc_l1_memory_used(*state), 0);
	assert_int_equal(kvc_l1_memory_files(*state), 0);
	kvc_l1_memory_free(*state);
	return 0;
}

static void
skip_without_tmpfs(KvcL1Memory *memory)
{
	if (strcmp(kvc_l1_memory_kind(memory), "tmpfs") != 0) {
		print_message("no private tmpfs here\n");
		skip();
	}
}

static void
test_page_round(void **state)
{
	(void)state;
	assert_int_equal(kvc_l1_page_round(0), 0);
	assert_int_equal(kvc_l1_page_round(1), 4096);
	assert_int_equal(kvc_l1_page_round(4095), 4096);
	assert_int_equal(kvc_l1_page_round(4096), 4096);
	assert_int_equal(kvc_l1_page_round(4097), 8192);
	assert_int_equal(kvc_l1_page_round((UINT64_C(1) << 40) + 1), (UINT64_C(1) << 40) + 4096);
}

static void
test_new_is_empty(void **state)
{
	KvcL1Memory *memory = *state;
	const char *kind = kvc_l1_memory_kind(memory);
	assert_int_equal(kvc_l1_memory_capacity(memory), CAPACITY);
	assert_int_equal(kvc_l1_memory_used(memory), 0);
	assert_int_equal(kvc_l1_memory_files(memory), 0);
	assert_int_equal(kvc_l1_memory_full_epoch(memory), 0);
	assert_true(strcmp(kind, "tmpfs") == 0 || strcmp(kind, "memfd") == 0);
}

static void
test_files_limit_leaves_descriptors(void **state)
{
	static const uint64_t expected[][2] = {
		{100000, 95000}, {2560, 2432}, {1024, 896}, {256, 128}, {64, 32}};
	struct rlimit limit;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	for (size_t i = 0; i < G_N_ELEMENTS(expected); i++) {
		if (expected[i][0] > limit.rlim_max)
			continue;
		struct rlimit some = {expected[i][0], limit.rlim_max};
		assert_int_equal(setrlimit(RLIMIT_NOFILE, &some), 0);
		KvcL1Memory *memory = kvc_l1_memory_new(CAPACITY, 0, NULL);
		assert_non_null(memory);
		assert_int_equal(kvc_l1_memory_files_limit(memory), expected[i][1]);
		kvc_l1_memory_free(memory);
	}
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void
test_charge_is_exact(void **state)
{
	KvcL1Memory *memory = *state;
	assert_true(kvc_l1_memory_charge(memory, CAPACITY - 4096, 1));
	assert_false(kvc_l1_memory_charge(memory, 4097, 0));
	assert_true(kvc_l1_memory_charge(memory, 4096, 0));
	assert_int_equal(kvc_l1_memory_used(memory), CAPACITY);
	assert_false(kvc_l1_memory_charge(memory, 1, 0));
	/* Nothing more is asked for: a file alone still fits. */
	assert_true(kvc_l1_memory_charge(memory, 0, 1));
	kvc_l1_memory_uncharge(memory, CAPACITY, 2);
}

static void
test_refused_charge_takes_nothing(void **state)
{
	KvcL1Memory *memory = *state;
	unsigned limit = (unsigned)kvc_l1_memory_files_limit(memory);
	assert_false(kvc_l1_memory_charge(memory, CAPACITY + 1, 3));
	assert_int_equal(kvc_l1_memory_files(memory), 0);
	assert_false(kvc_l1_memory_charge(memory, UINT64_MAX, 1));
	assert_int_equal(kvc_l1_memory_files(memory), 0);
	assert_false(kvc_l1_memory_charge(memory, 4096, limit + 1));
	assert_int_equal(kvc_l1_memory_used(memory), 0);
	assert_true(kvc_l1_memory_charge(memory, 4096, limit));
	assert_false(kvc_l1_memory_charge(memory, 4096, 1));
	assert_int_equal(kvc_l1_memory_used(memory), 4096);
	assert_false(kvc_l1_memory_charge(memory, UINT64_MAX, 0));
	kvc_l1_memory_uncharge(memory, 4096, limit);
}

static void
test_charge_over_goes_beyond_and_counts(void **state)
{
	KvcL1Memory *memory = *state;
	assert_true(kvc_l1_memory_charge(memory, CAPACITY, 1));
	kvc_l1_memory_charge_over(memory, 8192);
	assert_int_equal(kvc_l1_memory_used(memory), CAPACITY + 8192);
	kvc_l1_memory_uncharge(memory, 4096, 0);
	/* Still over the budget. */
	assert_false(kvc_l1_memory_charge(memory, 1, 0));
	assert_false(kvc_l1_memory_charge(memory, 0, 0));
	kvc_l1_memory_uncharge(memory, 8192, 0);
	assert_true(kvc_l1_memory_charge(memory, 4096, 0));
	kvc_l1_memory_uncharge(memory, CAPACITY, 1);
}

static void
test_file_is_private(void **state)
{
	struct stat st;
	int fd = kvc_l1_memory_create_file(*state);
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_true(S_ISREG(st.st_mode));
	assert_int_equal(st.st_nlink, 0);
	assert_int_equal(st.st_size, 0);
	assert_int_equal(st.st_blocks, 0);
	assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
	assert_int_equal(fcntl(fd, F_GETFL) & O_ACCMODE, O_RDWR);
	close(fd);
}

static void
test_create_file_says_why_it_fails(void **state)
{
	struct rlimit limit, none;
	assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
	none = (struct rlimit){0, limit.rlim_max};
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
	int rc = kvc_l1_memory_create_file(*state);
	assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
	assert_int_equal(rc, -EMFILE);
}

/* Writes until the memory is full; how many bytes went in. */
static uint64_t
fill(int fd)
{
	static char page[4096];
	uint64_t bytes = 0;
	memset(page, 0x5a, sizeof(page));
	for (;;) {
		ssize_t n = pwrite(fd, page, sizeof(page), (off_t)bytes);
		if (n < 0)
			assert_int_equal(errno, ENOSPC);
		if (n <= 0 || bytes > 16 * CAPACITY)
			return bytes;
		bytes += (uint64_t)n;
	}
}

static void
test_tmpfs_holds_budget_and_overrun(void **state)
{
	KvcL1Memory *memory = *state;
	skip_without_tmpfs(memory);
	int fd = kvc_l1_memory_create_file(memory);
	assert_true(fd >= 0);
	assert_int_equal(fill(fd), CAPACITY + OVERRUN);
	close(fd);
}

static void
test_epoch_moves_when_full(void **state)
{
	KvcL1Memory *memory = *state;
	skip_without_tmpfs(memory);
	kvc_l1_memory_sample_full(memory);
	assert_int_equal(kvc_l1_memory_full_epoch(memory), 0);
	int fd = kvc_l1_memory_create_file(memory);
	fill(fd);
	/* Looking at the epoch is not sampling. */
	assert_int_equal(kvc_l1_memory_full_epoch(memory), 0);
	kvc_l1_memory_sample_full(memory);
	uint64_t epoch = kvc_l1_memory_full_epoch(memory);
	assert_true(epoch > 0);
	close(fd);
	kvc_l1_memory_sample_full(memory);
	assert_int_equal(kvc_l1_memory_full_epoch(memory), epoch);
}

static void
test_epoch_stands_while_a_page_is_free(void **state)
{
	KvcL1Memory *memory = *state;
	skip_without_tmpfs(memory);
	int fd = kvc_l1_memory_create_file(memory);
	assert_int_equal(fallocate(fd, 0, 0, (off_t)(CAPACITY + OVERRUN - 4096)), 0);
	kvc_l1_memory_sample_full(memory);
	assert_int_equal(kvc_l1_memory_full_epoch(memory), 0);
	assert_int_equal(fallocate(fd, 0, 0, (off_t)(CAPACITY + OVERRUN)), 0);
	kvc_l1_memory_sample_full(memory);
	assert_true(kvc_l1_memory_full_epoch(memory) > 0);
	close(fd);
}

#define STEPS 20000

/* Never more than the budget in use, whoever looks. */
static void *
charge_from_a_thread(void *user)
{
	KvcL1Memory *memory = user;
	uint64_t charged = 0, too_much = 0;
	for (unsigned i = 0; i < STEPS; i++) {
		uint64_t bytes = MIB + i % 7 * 4096;
		if (kvc_l1_memory_charge(memory, bytes, 1)) {
			charged++;
			too_much += kvc_l1_memory_used(memory) > CAPACITY;
			kvc_l1_memory_uncharge(memory, bytes, 1);
		}
	}
	return GUINT_TO_POINTER(too_much ? 2 : charged > 0);
}

static void
test_threads_never_exceed_the_budget(void **state)
{
	pthread_t threads[6];
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++)
		assert_int_equal(pthread_create(&threads[i], NULL, charge_from_a_thread, *state),
				 0);
	for (size_t i = 0; i < G_N_ELEMENTS(threads); i++) {
		void *result;
		pthread_join(threads[i], &result);
		assert_int_equal(GPOINTER_TO_UINT(result), 1);
	}
}

int
main(void)
{
#define TEST(function) cmocka_unit_test_setup_teardown(function, set_up, tear_down)
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_page_round),
		TEST(test_new_is_empty),
		TEST(test_files_limit_leaves_descriptors),
		TEST(test_charge_is_exact),
		TEST(test_refused_charge_takes_nothing),
		TEST(test_charge_over_goes_beyond_and_counts),
		TEST(test_file_is_private),
		TEST(test_create_file_says_why_it_fails),
		TEST(test_tmpfs_holds_budget_and_overrun),
		TEST(test_epoch_moves_when_full),
		TEST(test_epoch_stands_while_a_page_is_free),
		TEST(test_threads_never_exceed_the_budget),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
