/* SPDX-License-Identifier: Apache-2.0 */

#include "tests/unit/storage-manager-fixture.h"

#include <fcntl.h>
#include <poll.h>

#define NO_LIMIT INT64_C(-1)

static bool
is_readable(int fd)
{
	struct pollfd event = {.fd = fd, .events = POLLIN};
	return poll(&event, 1, 0) == 1;
}

static void
test_known_at_once(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 1, 0);
	assert_int_equal(handle->request_id, -1);
	assert_int_equal(kvc_prefetch_handle_wait(handle, 0), 0);
	assert_int_equal(kvc_prefetch_handle_wait(handle, NO_LIMIT), 0);
	assert_true(is_readable(kvc_prefetch_handle_get_event_fd(handle)));
	assert_int_equal(result_of(f, handle), 1);
	kvc_prefetch_handle_drop(handle, NULL);
}

static void
test_held_until_started(void **state)
{
	Fixture *f = *state;
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 1, KVC_PREFETCH_HOLD);
	int fd = kvc_prefetch_handle_get_event_fd(handle);
	assert_true(fd >= 0);
	assert_int_equal(kvc_prefetch_handle_wait(handle, 0), -ETIMEDOUT);
	int64_t begin_ns = kvc_now_ns();
	assert_int_equal(kvc_prefetch_handle_wait(handle, 20 * KVC_MSEC_NS), -ETIMEDOUT);
	assert_true(kvc_now_ns() - begin_ns >= 20 * KVC_MSEC_NS);
	assert_false(is_readable(fd));
	kvc_prefetch_handle_start(handle);
	/* It stays so, also once the result was taken. */
	assert_int_equal(kvc_prefetch_handle_wait(handle, NO_LIMIT), 0);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), 1);
	assert_int_equal(kvc_storage_manager_query_prefetch_status(f->sm, handle), -ENODATA);
	assert_int_equal(kvc_prefetch_handle_wait(handle, 0), 0);
	assert_int_equal(kvc_prefetch_handle_get_event_fd(handle), fd);
	assert_true(is_readable(fd));
	/* It goes with the handle. */
	kvc_prefetch_handle_drop(handle, NULL);
	wait_until(fcntl(fd, F_GETFD) < 0);
	assert_int_equal(errno, EBADF);
}

static void
test_asked_for_after_the_end(void **state)
{
	Fixture *f = *state;
	Callbacks callbacks = {0};
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch_with(f, 0, 2, 0, 0, &callbacks);
	wait_until(__atomic_load_n(&callbacks.done, __ATOMIC_RELAXED) == 1);
	assert_true(is_readable(kvc_prefetch_handle_get_event_fd(handle)));
	assert_int_equal(kvc_prefetch_handle_wait(handle, 0), 0);
	kvc_prefetch_handle_drop(handle, on_freed);
	wait_until(__atomic_load_n(&callbacks.freed, __ATOMIC_ACQUIRE) == 1);
}

static void *
wait_for(void *handle)
{
	return GINT_TO_POINTER(kvc_prefetch_handle_wait(handle, 20 * KVC_SEC_NS) == 0);
}

static void
test_several_threads_and_cancel(void **state)
{
	enum { THREADS = 4 };
	Fixture *f = *state;
	pthread_t threads[THREADS];
	start(f, MOCK, NULL);
	put_in_l2(f, 0, 100);
	KvcPrefetchHandle *handle = prefetch(f, 0, 1, KVC_PREFETCH_HOLD);
	for (int i = 0; i < THREADS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, wait_for, handle), 0);
	kvc_prefetch_handle_cancel(handle);
	for (int i = 0; i < THREADS; i++) {
		void *was_woken = NULL;
		assert_int_equal(pthread_join(threads[i], &was_woken), 0);
		assert_true(GPOINTER_TO_INT(was_woken));
	}
	assert_int_equal(result_of(f, handle), 0);
	kvc_prefetch_handle_drop(handle, NULL);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(test_known_at_once),
		TEST(test_held_until_started),
		TEST(test_asked_for_after_the_end),
		TEST(test_several_threads_and_cancel),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
