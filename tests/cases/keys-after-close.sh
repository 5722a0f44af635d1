#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .keys has every entry that was closed before it is opened. (A mapping makes a commit late.) A replacement of .keys ends
# what was closed before it, and a removal what .keys had brought.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=2G # an eighth of it is the largest file
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

mkdir "$RANK/order"
python3 - "$RANK/order" <<'P' || fail "the order of closes"
import os, sys, time
prefix = sys.argv[1]
keys = f"{prefix}/.keys"


def chain():
    with open(keys) as f:
        return f.read()


for i in range(10):
    names = [f"{i:04x}{j:04x}" for j in range(3)]
    # What has holes takes longer to commit: it is given its memory then.
    entry = os.open(f"{prefix}/{names[0]}", os.O_CREAT | os.O_WRONLY)
    os.pwrite(entry, b"end", 200 << 20)
    replacements = [os.open(keys, os.O_WRONLY | os.O_TRUNC) for _ in range(2)]
    for fd, name in zip(replacements, names[1:]):
        os.write(fd, f"{name}\n".encode())
    os.close(entry)
    os.close(replacements[0])
    os.close(replacements[1])
    assert chain() == f"{names[2]}\n", f"{i}: {chain()!r}"
    time.sleep(0.1)
    assert chain() == f"{names[2]}\n", f"{i}, later: {chain()!r}"
    os.unlink(f"{os.path.dirname(prefix)}/{names[0]}")

    entry = f"{prefix}/{names[2]}"
    with open(entry, "w") as f:
        f.write("data")
    with open(keys, "w") as f:
        f.write(f"{names[2]}\n{names[1]}\n")
    os.unlink(entry)
    time.sleep(0.01)
    assert chain() == f"{names[1]}\n", f"{i}, removed: {chain()!r}"
P
stop_fs
