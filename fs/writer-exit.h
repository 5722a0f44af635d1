/* SPDX-License-Identifier: Apache-2.0 */
#ifndef FS_WRITER_EXIT_H
#define FS_WRITER_EXIT_H

#include <sys/types.h>

/* How the thread that sent a FLUSH came to close its descriptor. */
typedef enum {
	KVCFS_WRITER_CLOSED,  /* close(2), or an exit that closed what was left */
	KVCFS_WRITER_KILLED,  /* it is ending by a signal: it may have been in the middle of a write
			       */
	KVCFS_WRITER_UNKNOWN, /* not to be seen from here (another pid name space): taken as a close
			       */
} KvcfsWriterExit;

/*
 * Looks at /proc/TID/stat: PF_EXITING in field 9 and a signal in field 52 (facts/fuse.md 1.13,
 * facts/engines.md b.5). TID as in the FUSE request; 0: unknown. Does not block.
 */
KvcfsWriterExit kvcfs_writer_exit_look(pid_t tid);

#endif
