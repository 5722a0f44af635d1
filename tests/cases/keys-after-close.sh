#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .keys has every entry that was closed before it is opened. (A mapping makes a commit late.)
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir -p "$RANK"
mkdir "$RANK/closed"
MODE=$EXPECTED_IO_MODE python3 - "$RANK/closed" <<'P' || fail "an entry is not in .keys after its close"
import ctypes, os, sys
prefix = sys.argv[1]
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
for is_mapped in False, True:
    for is_renamed in False, True:
        for i in range(30):
            name = f"{is_mapped:02x}{is_renamed:02x}{i:04x}"
            made = f"{prefix}/.entry.tmp" if is_renamed else f"{prefix}/{name}"
            fd = os.open(made, os.O_CREAT | os.O_RDWR)
            os.write(fd, b"data")
            if is_renamed:
                os.rename(made, f"{prefix}/{name}")
            if is_mapped:
                address = libc.mmap(None, 4, 3, 1, fd, 0)
            os.close(fd)
            if is_mapped and os.environ["MODE"] == "direct":  # there it keeps the file open
                libc.munmap(address, 4)
            assert name in open(f"{prefix}/.keys").read().split(), name
            assert os.stat(f"{prefix}/.keys").st_size == len(open(f"{prefix}/.keys").read())
P
stop_fs
