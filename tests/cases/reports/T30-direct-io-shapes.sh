#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T30, O_DIRECT refused, or accepted and then EINVAL (vLLM PR 49734, 44016, 43674; LMCache #4364, #4386, #962; SGLang
# PR 25173): one page, 32 MiB, a header of 28 bytes and a body, a length of 5001, a buffer 3 bytes off, and a read past
# the end: all with exact byte counts, for temporary files, committed ones and what is in L2 only.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

start_fs
mkdir -p "$RANK" "$MNT/plain"
cat >"$WORK/shapes.py" <<'P'
import itertools, mmap, os, random, sys
phase, seed, *directories = sys.argv[1:]
ROOM = 33 << 20
memory = memoryview(mmap.mmap(-1, ROOM))
source = memoryview(mmap.mmap(-1, ROOM))
source[:] = random.Random(int(seed)).randbytes(4096) * (ROOM // 4096)
# Lengths of the writes one after the other; how far the buffers are off a page.
shapes = [([4096], 0), ([33554432], 0), ([28, 70272 - 28], 0), ([5001], 0), ([8192], 3), ([5001], 3), ([28, 2097152], 3)]

def pieces(lengths, off):
    at = off
    for n in lengths:
        yield source[at : at + n]
        at += n

for directory, (i, (lengths, off)) in itertools.product(directories, enumerate(shapes)):
    total = sum(lengths)
    path = os.path.join(directory, f"{i:064x}")
    if phase == "write":
        # LMCache writes under a temporary name, SGLang's NIXL under the final one.
        name = f"{path}.tmp" if i % 2 else path
        fd = os.open(name, os.O_CREAT | os.O_RDWR | os.O_DIRECT, 0o644)
        for piece in pieces(lengths, off):
            assert os.write(fd, piece) == len(piece), (path, len(piece))
        assert os.fstat(fd).st_size == total, path
    else:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
        assert os.fstat(fd).st_size == total, path
    # All; with room for a page more; the tail; at the end; behind it.
    buffer = memory[off:]
    for offset, room in ((0, total + 4096), (total - 1, 4096), (4095, 5001), (total, 4096), (total + 4096, 4096)):
        want = max(0, min(room, total - offset))
        n = os.preadv(fd, [buffer[:room]], offset)
        assert n == want, (path, offset, room, n)
        assert buffer[:n] == source[off + offset : off + offset + n], (path, offset)
    os.close(fd)
    if phase == "write" and i % 2:
        os.replace(f"{path}.tmp", path)
P
shapes() {
	python3 "$WORK/shapes.py" "$1" "$SEED" "$RANK" "$MNT/plain" || fail "$1"
}
shapes write
shapes committed
control flush /
control evict /
shapes loaded
assert_eq 14 "$(stat_counter loads_completed)" "objects loaded from L2"
stop_fs
