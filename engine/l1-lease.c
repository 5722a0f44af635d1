/* SPDX-License-Identifier: Apache-2.0 */

/*
 * The kernel grants a read lease only while no descriptor and no mapping can write the file, and a
 * write lease only while there is no other descriptor or mapping at all. Descriptors that FUSE
 * passthrough opened for a client count like any other, and so do the mappings made of them.
 *
 * Who opens the file while a lease is held waits until it is given back, and the holder gets a
 * signal: SIGIO, which would end the process. Leases here last for microseconds, on files that
 * nobody is about to open; to be safe all the same the signal is one that is ignored by default, so
 * that no handler of the process has to be touched.
 */

#include "engine/l1-lease.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>

static int
take(int fd, int type)
{
	if (fcntl(fd, F_SETSIG, SIGURG) != 0 || fcntl(fd, F_SETLEASE, type) != 0)
		return -errno;
	return 0;
}

int
kvc_l1_lease_prove_no_writer(int fd)
{
	int rc = take(fd, F_RDLCK);
	if (rc == 0)
		fcntl(fd, F_SETLEASE, F_UNLCK);
	return rc;
}

int
kvc_l1_lease_prove_unused(int fd)
{
	return take(fd, F_WRLCK);
}
