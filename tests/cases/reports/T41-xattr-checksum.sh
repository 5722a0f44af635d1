#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T41, a checksum in an extended attribute (vLLM PR 57912): the 4 bytes of user.vllm.kv_crc32c that are set on the
# temporary file stay with the object over its rename, eviction, a load from L2 and a remount; one that is set on a
# committed object stores no bytes again. (xattrs.sh has the rest.)
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

SIZE=1124352

# on_both WORDS of Python: for a hash object and a plain file: path, temporary, NAME (of the attribute) are theirs.
on_both() {
	python3 - "$RANK/$(chunk_hash 0)" "$MNT/vllm/aa/bb_g0/$(chunk_hash 0).bin" "$SIZE" 3<<<"$1" <<'P' || fail "$1"
import os, sys
NAME, CRC = "user.vllm.kv_crc32c", bytes([0, 0xFF, 0x7F, 1])
size = int(sys.argv.pop())
with os.fdopen(3) as file:
    steps = file.read()
for path in sys.argv[1:]:
    temporary = f"{path}_4711.tmp"
    exec(steps)
P
}

start_fs
mkdir -p "$RANK" "$MNT/vllm/aa/bb_g0"
# What vLLM asks as it starts: whether the directory takes them.
on_both '
probe = os.path.join(os.path.dirname(path), ".probe.tmp")
with open(probe, "wb") as file:
    os.setxattr(file.fileno(), "user.vllm.probe", b"1")
assert os.getxattr(probe, "user.vllm.probe") == b"1"
os.unlink(probe)'
on_both '
with open(temporary, "wb") as file:
    file.write(b"k" * size)
os.setxattr(temporary, NAME, CRC)
os.replace(temporary, path)
assert os.getxattr(path, NAME) == CRC and NAME in os.listxattr(path)'

evict "$RANK" "$MNT/vllm"
assert_eq 0 "$(status l1_objects)" "objects left in L1"
on_both 'assert os.getxattr(path, NAME) == CRC'
assert_eq 0 "$(stat_counter loads)" "getxattr loaded something"
on_both '
with open(path, "rb") as file:
    assert file.read() == b"k" * size and os.getxattr(file.fileno(), NAME) == CRC'
assert_eq 2 "$(stat_counter loads_completed)" "objects loaded from L2"
restart_fs
on_both 'assert os.getxattr(path, NAME) == CRC and os.stat(path).st_size == size'

stores=$(stat_counter stores)
on_both '
before = os.stat(path)
os.setxattr(path, NAME, CRC[::-1])
after = os.stat(path)
assert (before.st_ino, before.st_size, before.st_mtime_ns) == (after.st_ino, after.st_size, after.st_mtime_ns)'
on_both '
fd = os.open(path, os.O_RDONLY)
os.fsync(fd)
os.close(fd)'
assert_eq "$stores 0" "$(stat_counter stores) $(stat_counter mount_writes_published)" "stores and commits by setxattr"
restart_fs
on_both 'assert os.getxattr(path, NAME) == CRC[::-1]'
stop_fs
