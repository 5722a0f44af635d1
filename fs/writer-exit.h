/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_WRITER_EXIT_H
#define FS_WRITER_EXIT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* How the thread that sent a FLUSH came to close its descriptor. */
typedef enum {
	KVCFS_WRITER_CLOSED,  /* close(2), or an exit that closed what was left */
	KVCFS_WRITER_KILLED,  /* it is ending by a signal: it may have been in the middle of a write
			       */
	KVCFS_WRITER_CUT_OFF, /* it is ending by exit and had other threads, or is in the middle of
			       * execve(2): a thread may have been in the middle of a write */
	KVCFS_WRITER_UNKNOWN, /* not to be seen from here (another pid name space): taken as a close
			       */
} KvcfsWriterExit;

/*
 * Looks at /proc/TID/statm and stat: what do_exit() has let go of by then. TID as in the FUSE
 * request, which is not answered yet; 0: unknown. Does not block.
 */
KvcfsWriterExit kvcfs_writer_exit_look(pid_t tid);

/* The process that thread TID belongs to, from /proc/TID/status; 0: it cannot be told. Does not
 * block. */
pid_t kvcfs_writer_process(pid_t tid);

/* When thread TID started, in clock ticks since the boot: with it TID names one thread for ever. 0:
 * it cannot be told. Does not block. */
uint64_t kvcfs_writer_start(pid_t tid);

/* How long a file may be that thread TID writes (RLIMIT_FSIZE), in bytes; UINT64_MAX: no limit, or
 * it cannot be told. Does not block. */
uint64_t kvcfs_writer_file_limit(pid_t tid);

#endif
