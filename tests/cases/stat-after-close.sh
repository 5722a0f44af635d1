#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What a process has closed it finds, however long the commit takes (what the writer keeps mapped is copied).
#
# parallel
# not-in: direct: a mapping keeps the file open there, nothing is committed before it goes
# not-in: user: a mapping keeps the file open there, nothing is committed before it goes

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=4G
cat >"$WORK/close.py" <<'P'
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
BYTES = 512 << 20
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
data = b"x" * (16 << 20)
for i in range(BYTES // len(data)):
    os.write(fd, data)
assert libc.mmap(None, BYTES, 3, 1, fd, 0) != ctypes.c_void_p(-1).value
os.close(fd)
print(os.stat(sys.argv[1]).st_size)
P
start_bare
mkdir "$MNT/dir"
expect_output $((512 << 20)) python3 "$WORK/close.py" "$MNT/dir/name"
stop_fs
