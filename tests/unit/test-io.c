/* SPDX-License-Identifier: Apache-2.0 */

/* The ring: pieces, depth, end of file, errors, many transfers at once, free with I/O in flight. */

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <kvcache/io.h>

#define MIB ((size_t)1 << 20)

/* Counts transfers that are back. */
typedef struct Waiter {
	pthread_mutex_t lock;
	pthread_cond_t wake;
	unsigned done;
} Waiter;

static Waiter waiter = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, 0};

static void
note_done(KvcIoTransfer *transfer)
{
	Waiter *w = transfer->user;

	pthread_mutex_lock(&w->lock);
	w->done++;
	pthread_cond_signal(&w->wake);
	pthread_mutex_unlock(&w->lock);
}

static void
await_done(unsigned n)
{
	pthread_mutex_lock(&waiter.lock);
	while (waiter.done < n)
		pthread_cond_wait(&waiter.wake, &waiter.lock);
	waiter.done -= n;
	pthread_mutex_unlock(&waiter.lock);
}

static KvcIo *
io_new(size_t depth_bytes)
{
	GError *error = NULL;
	KvcIo *io = kvc_io_new("test-ring-with-a-long-name", depth_bytes, &error);

	if (!io) {
		fprintf(stderr, "skipped: %s\n", error->message);
		exit(77);
	}
	return io;
}

static int
temp_file(void)
{
	const char *dir = getenv("TMPDIR");
	int fd = open(dir ? dir : "/var/tmp", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);

	assert_true(fd >= 0);
	return fd;
}

static void
set_direct(int fd)
{
	if (fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_DIRECT) < 0)
		assert_true(kvc_io_is_direct_refused(errno));
}

static uint8_t *
pattern_new(size_t bytes, unsigned seed)
{
	size_t mapped = MAX(kvc_io_align_up(bytes), 4096);
	uint64_t *words = aligned_alloc(4096, mapped);
	uint64_t x = seed * UINT64_C(2654435761) + 1;

	for (size_t i = 0; i < mapped / sizeof(*words); i++)
		words[i] = x = x * UINT64_C(6364136223846793005) + 1442695040888963407u;
	return (uint8_t *)words;
}

static KvcIoTransfer
transfer_of(int fd, bool is_write, void *data, uint64_t offset, size_t bytes)
{
	return (KvcIoTransfer){.fd = fd,
			       .is_write = is_write,
			       .data = data,
			       .offset = offset,
			       .bytes = bytes,
			       .done = note_done,
			       .user = &waiter};
}

static void
run(KvcIo *io, KvcIoTransfer *transfer)
{
	kvc_io_submit(io, transfer);
	await_done(1);
}

static void
test_helpers(void **state)
{
	assert_int_equal(kvc_io_align_up(0), 0);
	assert_int_equal(kvc_io_align_up(1), 4096);
	assert_int_equal(kvc_io_align_up(4096), 4096);
	assert_int_equal(kvc_io_align_up(4097), 8192);
	assert_true(kvc_io_is_direct_refused(EINVAL));
	assert_true(kvc_io_is_direct_refused(EOPNOTSUPP));
	assert_true(kvc_io_is_direct_refused(EPERM));
	assert_false(kvc_io_is_direct_refused(EIO));
	assert_false(kvc_io_is_direct_refused(0));
}

static void
test_eventfd(void **state)
{
	int fd = kvc_eventfd_new();
	eventfd_t count = 0;

	assert_true(fd >= 0);
	kvc_eventfd_drain(fd); /* must not block on an empty one */
	kvc_eventfd_signal(fd);
	kvc_eventfd_signal(fd);
	assert_int_equal(eventfd_read(fd, &count), 0);
	assert_int_equal(count, 2);
	kvc_eventfd_signal(fd);
	kvc_eventfd_drain(fd);
	assert_int_equal(eventfd_read(fd, &count), -1);
	assert_int_equal(errno, EAGAIN);
	/* A full counter must not block either. */
	assert_int_equal(eventfd_write(fd, UINT64_MAX - 1), 0);
	kvc_eventfd_signal(fd);
	close(fd);
}

static void
write_and_read_back(KvcIo *io, size_t bytes, uint64_t offset, bool direct)
{
	int fd = temp_file();
	uint8_t *data = pattern_new(bytes, (unsigned)bytes), *back = pattern_new(bytes, 1);
	KvcIoTransfer transfer = transfer_of(fd, true, data, offset, bytes);

	if (direct)
		set_direct(fd);
	run(io, &transfer);
	assert_int_equal(transfer.error, 0);
	assert_int_equal(transfer.transferred, bytes);
	transfer = transfer_of(fd, false, back, offset, bytes);
	run(io, &transfer);
	assert_int_equal(transfer.error, 0);
	assert_int_equal(transfer.transferred, bytes);
	assert_memory_equal(data, back, bytes);
	close(fd);
	free(data);
	free(back);
}

static void
test_sizes(void **state)
{
	static const size_t sizes[] = {
		0, 1, 4095, 4096, 70272, MIB - 1, MIB, MIB + 1, 5 * MIB + 12345, 32 * MIB};
	KvcIo *io = io_new(8 * MIB);

	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		write_and_read_back(io, sizes[i], 0, false);
		write_and_read_back(io, sizes[i], 4096 * i, false);
		write_and_read_back(io, kvc_io_align_up(sizes[i]), 4096 * i, true);
	}
	kvc_io_free(io);
}

/* A depth smaller than a piece still moves one piece at a time. */
static void
test_smallest_depth(void **state)
{
	KvcIo *io = io_new(1);

	write_and_read_back(io, 5 * MIB + 4096, 0, true);
	write_and_read_back(io, 5 * MIB + 1, 0, false);
	kvc_io_free(io);
}

/* A file of FILE_BYTES read with ASKED bytes gives exactly what is there. */
static void
read_past_end(KvcIo *io, size_t file_bytes, size_t asked, bool direct)
{
	int fd = temp_file();
	uint8_t *data = pattern_new(file_bytes, 7), *back = pattern_new(asked, 8);

	assert_int_equal(pwrite(fd, data, file_bytes, 0), file_bytes);
	if (direct)
		set_direct(fd);
	KvcIoTransfer transfer = transfer_of(fd, false, back, 0, asked);
	run(io, &transfer);
	assert_int_equal(transfer.error, 0);
	assert_int_equal(transfer.transferred, file_bytes);
	assert_memory_equal(data, back, file_bytes);
	close(fd);
	free(data);
	free(back);
}

static void
test_end_of_file(void **state)
{
	/* 1536: a whole number of sectors, but no whole block. */
	static const size_t sizes[] = {0, 1, 511, 512, 1536, 4096, 4608, 70272, MIB, 3 * MIB + 512};
	KvcIo *io = io_new(64 * MIB);

	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		read_past_end(io, sizes[i], 8 * MIB, false);
		read_past_end(io, sizes[i], 8 * MIB, true);
		read_past_end(io, sizes[i], kvc_io_align_up(sizes[i]) + 4096, true);
	}
	kvc_io_free(io);
}

static void
test_errors(void **state)
{
	KvcIo *io = io_new(4 * MIB);
	uint8_t *data = pattern_new(8 * MIB, 3);
	int fd = open("/dev/full", O_WRONLY | O_CLOEXEC);
	KvcIoTransfer transfer = transfer_of(-1, false, data, 0, 8 * MIB);

	run(io, &transfer);
	assert_int_equal(transfer.error, -EBADF);
	assert_int_equal(transfer.transferred, 0);

	assert_true(fd >= 0);
	transfer = transfer_of(fd, true, data, 0, 8 * MIB);
	run(io, &transfer);
	assert_int_equal(transfer.error, -ENOSPC);
	close(fd);

	/* Unaligned O_DIRECT: the caller learns that it was refused. */
	fd = temp_file();
	set_direct(fd);
	transfer = transfer_of(fd, true, data + 1, 0, 4096);
	run(io, &transfer);
	assert_true(transfer.error == 0 || kvc_io_is_direct_refused(-transfer.error));
	close(fd);

	/* And the ring still works. */
	write_and_read_back(io, 3 * MIB, 0, true);
	kvc_io_free(io);
	free(data);
}

/* The third of four pieces cannot be read from memory: an error, and a gap-free count. */
static void
test_error_in_the_middle(void **state)
{
	KvcIo *io = io_new(64 * MIB);
	int fd = temp_file();
	uint8_t *data =
		mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	assert_true(data != MAP_FAILED);
	memset(data, 4, 4 * MIB);
	assert_int_equal(mprotect(data + 2 * MIB, MIB, PROT_NONE), 0);
	KvcIoTransfer transfer = transfer_of(fd, true, data, 0, 4 * MIB);
	run(io, &transfer);
	assert_int_equal(transfer.error, -EFAULT);
	assert_int_equal(transfer.transferred, 2 * MIB);
	close(fd);
	kvc_io_free(io);
	munmap(data, 4 * MIB);
}

#define CONCURRENT 200
#define SUBMITTERS 4

typedef struct Submitter {
	KvcIo *io;
	int fd;
	uint8_t *data;
	bool is_write;
	KvcIoTransfer transfers[CONCURRENT];
} Submitter;

static size_t
slot_bytes(size_t i)
{
	return 4096 * (i % 7) + i % 3 * MIB;
}

static void *
submit_all(void *user)
{
	Submitter *s = user;

	for (size_t i = 0; i < CONCURRENT; i++) {
		s->transfers[i] = transfer_of(s->fd, s->is_write, s->data + i * 4096, i * 3 * MIB,
					      slot_bytes(i));
		kvc_io_submit(s->io, &s->transfers[i]);
	}
	return NULL;
}

static void
run_submitters(Submitter *submitters)
{
	pthread_t threads[SUBMITTERS];

	for (size_t i = 0; i < SUBMITTERS; i++)
		assert_int_equal(pthread_create(&threads[i], NULL, submit_all, &submitters[i]), 0);
	for (size_t i = 0; i < SUBMITTERS; i++)
		pthread_join(threads[i], NULL);
	await_done(SUBMITTERS * CONCURRENT);
	for (size_t i = 0; i < SUBMITTERS; i++)
		for (size_t j = 0; j < CONCURRENT; j++) {
			assert_int_equal(submitters[i].transfers[j].error, 0);
			assert_int_equal(submitters[i].transfers[j].transferred, slot_bytes(j));
		}
}

static void
test_concurrent(void **state)
{
	KvcIo *io = io_new(16 * MIB);
	size_t bytes = CONCURRENT * 4096 + 4 * MIB;
	Submitter *submitters = g_new0(Submitter, SUBMITTERS);

	for (unsigned i = 0; i < SUBMITTERS; i++)
		submitters[i] = (Submitter){.io = io,
					    .fd = temp_file(),
					    .data = pattern_new(bytes, i),
					    .is_write = true};
	run_submitters(submitters);

	/* Each slot of each file holds its piece of the pattern of that file. */
	uint8_t *back = pattern_new(4 * MIB, 99);
	for (size_t i = 0; i < SUBMITTERS; i++)
		for (size_t j = 0; j < CONCURRENT; j++) {
			size_t n = slot_bytes(j);

			assert_int_equal(pread(submitters[i].fd, back, n, (off_t)(j * 3 * MIB)), n);
			assert_memory_equal(back, submitters[i].data + j * 4096, n);
		}
	kvc_io_free(io);
	for (size_t i = 0; i < SUBMITTERS; i++) {
		close(submitters[i].fd);
		free(submitters[i].data);
	}
	g_free(submitters);
	free(back);
}

static void
test_free_in_flight(void **state)
{
	for (unsigned round = 0; round < 10; round++) {
		KvcIo *io = io_new(4 * MIB);
		Submitter *s = g_new0(Submitter, 1);

		*s = (Submitter){.io = io, .fd = temp_file(), .is_write = true};
		s->data = pattern_new(CONCURRENT * 4096 + 4 * MIB, round);
		submit_all(s);
		kvc_io_free(io); /* all are back when this returns */
		assert_int_equal(waiter.done, CONCURRENT);
		await_done(CONCURRENT);
		close(s->fd);
		free(s->data);
		g_free(s);
	}
	kvc_io_free(io_new(MIB));
	kvc_io_free(NULL);
}

/* DONE may free its transfer and submit another one, also while the ring is being freed. */
static atomic_int chain_left;

static void
chain_next(KvcIoTransfer *transfer)
{
	KvcIo *io = transfer->user;
	KvcIoTransfer *next = g_new(KvcIoTransfer, 1);

	assert_int_equal(transfer->error, 0);
	*next = *transfer;
	g_free(transfer);
	if (atomic_fetch_sub(&chain_left, 1) > 1)
		kvc_io_submit(io, next);
	else
		g_free(next);
}

static void
test_submit_from_done(void **state)
{
	KvcIo *io = io_new(4 * MIB);
	int fd = temp_file();
	uint8_t *data = pattern_new(4096, 5);
	KvcIoTransfer *first = g_new(KvcIoTransfer, 1);

	*first = transfer_of(fd, true, data, 0, 4096);
	first->done = chain_next;
	first->user = io;
	atomic_store(&chain_left, 500);
	kvc_io_submit(io, first);
	kvc_io_free(io);
	assert_int_equal(atomic_load(&chain_left), 0);
	close(fd);
	free(data);
}

/* What is registered is used for its own transfers only, at any alignment and of any size. */
static void
test_registered_file(void **state)
{
	static const size_t sizes[] = {0, 1, 4096, 100001, 3 * MIB + 5};
	int fd = temp_file(), other = temp_file();
	GError *error = NULL;
	KvcIo *io = kvc_io_new_for_file("test-ring", 4 * MIB, fd, &error);

	assert_non_null(io);
	for (size_t i = 0; i < G_N_ELEMENTS(sizes); i++) {
		uint8_t *one = pattern_new(sizes[i], 1), *two = pattern_new(sizes[i], 2);
		uint8_t *back = pattern_new(sizes[i], 3);
		KvcIoTransfer writes[] = {transfer_of(fd, true, one, 7, sizes[i]),
					  transfer_of(other, true, two, 7, sizes[i])};
		KvcIoTransfer read = transfer_of(fd, false, back, 7, sizes[i]);

		run(io, &writes[0]);
		run(io, &writes[1]);
		assert_int_equal(writes[0].error | writes[1].error, 0);
		run(io, &read);
		assert_int_equal(read.transferred, sizes[i]);
		assert_memory_equal(back, one, sizes[i]);
		read = transfer_of(other, false, back, 7, sizes[i]);
		run(io, &read);
		assert_memory_equal(back, two, sizes[i]);
		free(one);
		free(two);
		free(back);
	}
	kvc_io_free(io);
	close(fd);
	close(other);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_helpers),
		cmocka_unit_test(test_eventfd),
		cmocka_unit_test(test_sizes),
		cmocka_unit_test(test_smallest_depth),
		cmocka_unit_test(test_end_of_file),
		cmocka_unit_test(test_errors),
		cmocka_unit_test(test_error_in_the_middle),
		cmocka_unit_test(test_concurrent),
		cmocka_unit_test(test_free_in_flight),
		cmocka_unit_test(test_submit_from_done),
		cmocka_unit_test(test_registered_file),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
