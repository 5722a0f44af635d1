/* SPDX-License-Identifier: Apache-2.0 */
#ifndef ENGINE_L1_LEASE_H
#define ENGINE_L1_LEASE_H

/*
 * Who else has a file open or mapped, asked of the kernel by means of leases (fcntl(2),
 * F_SETLEASE). For files that their asker owns. Neither blocks; any thread.
 */

/*
 * Has nobody the file of FD, which must be read-only, open or mapped for writing? 0: nobody;
 * -EAGAIN: somebody; else -errno: the kernel gives no leases. Nothing is held afterwards.
 */
int kvc_l1_lease_prove_no_writer(int fd);
/*
 * Has nobody but FD (and its duplicates and mappings) the file open or mapped? As above. The lease
 * that proves it lasts until FD is closed, which is what the caller does with it.
 */
int kvc_l1_lease_prove_unused(int fd);

#endif
