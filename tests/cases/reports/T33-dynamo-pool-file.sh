#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T33, F_SETFL(O_DIRECT) and fallocate refused (Dynamo PR 2680, 4508, 7833): a pool file as Dynamo makes it: mkostemp,
# O_DIRECT by F_SETFL, fallocate, zeros by writes of 16 MiB, ftruncate, unlink while it is open, slots written and read
# by the descriptor; at the close all of its memory is free. A pool of 1 GiB is more than --max-object-size: EFBIG.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

# pool BYTES ERRNO: what its fallocate must say.
pool() {
	python3 - "$MNT/dynamo" "$1" "$2" "$MNT/.kvcache/status" <<'P' || fail "a pool of $1 bytes"
import ctypes, errno, fcntl, mmap, os, random, sys, tempfile
directory, size, want, status = sys.argv[1:]
size = int(size)
ZEROS, SLOT = 16 << 20, 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]

def fallocate(n):
    return "0" if libc.fallocate(fd, 0, 0, n) == 0 else errno.errorcode[ctypes.get_errno()]

def used():
    with open(status) as file:
        return next(int(line.split()[1]) for line in file if line.startswith("l1_used_bytes "))

fd, path = tempfile.mkstemp(prefix="dynamo-kvbm-disk-cache-", dir=directory)
assert os.fstat(fd).st_mode & 0o777 == 0o600
fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_DIRECT)
assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT
assert fallocate(size) == want, (fallocate(size), want)
if want != "0":
    assert os.fstat(fd).st_size == 0
    os.unlink(path)
    os.close(fd)
    sys.exit(0)
assert os.fstat(fd).st_size == size

# Its fallback: zeros behind the end, and back to the size.
buffer = memoryview(mmap.mmap(-1, ZEROS))
for offset in range(0, size, ZEROS):
    assert os.pwrite(fd, buffer, offset) == ZEROS
assert os.pwrite(fd, buffer[:SLOT], size) == SLOT
os.ftruncate(fd, size)
assert os.fstat(fd).st_size == size

os.unlink(path)
assert os.listdir(directory) == [] and not os.path.exists(path)
slots = {}
for i in random.Random(size).sample(range(size // SLOT), 16):
    slots[i] = bytes([i + 1]) * SLOT
    buffer[:SLOT] = slots[i]
    assert os.pwrite(fd, buffer[:SLOT], i * SLOT) == SLOT
for i in range(size // SLOT):
    assert os.preadv(fd, [buffer[:SLOT]], i * SLOT) == SLOT
    assert buffer[:SLOT] == slots.get(i, bytes(SLOT)), i
assert os.fstat(fd).st_nlink == 0 and os.fstat(fd).st_size == size
assert used() >= size, used()
os.close(fd)
P
}

L1_SIZE=256M
start_fs --max-object-size 128M
mkdir "$MNT/dynamo"
pool $((96 << 20)) 0
wait_until 20 "the memory of the pool is free" status_is l1_used_bytes 0
pool $((1 << 30)) EFBIG
wait_until 20 "all memory is free" status_is l1_used_bytes 0
assert_eq "" "$(ls -A "$MNT/dynamo")" "what is left of the pools"
control flush /
assert_eq "" "$(find "$L2" -path '*/dynamo/*')" "what is in L2 of the pools"
stop_fs
