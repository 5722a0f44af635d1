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
for other, name in zip(sys.argv[2::2], sys.argv[3::2]):
    os.rename(other, name)
os.close(fd)
with open(sys.argv[-1], "rb") as f:
    print(os.stat(sys.argv[-1]).st_size, os.fstat(f.fileno()).st_size, len(f.read(100)))
P
start_bare
mkdir "$MNT/dir"
size=$((512 << 20))
expect_output "$size $size 100" python3 "$WORK/close.py" "$MNT/dir/name"

# Also where the kernel has the name of a file that was there before.
echo old >"$MNT/dir/old"
python3 "$WORK/close.py" "$MNT/dir/.tmp" "$MNT/dir/.tmp" "$MNT/dir/new" "$MNT/dir/old" "$MNT/dir/new" >"$WORK/seen"
assert_eq "$size 100" "$(cut -d " " -f 2- "$WORK/seen")" "what is open after the close" # for a second the kernel keeps what stat says
stop_fs
