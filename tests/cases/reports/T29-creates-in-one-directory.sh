#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T29, creates in one directory wait for each other (UCM PR 707, 711): no lock of the directory is held while data is
# written: 64 writers have each written half of their block before the first of them may go on, meanwhile
# others look up, list, create, rename and remove there; then all of them close and rename.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

start_fs
mkdir -p "$RANK" "$MNT/ucm"
for directory in "$RANK" "$MNT/ucm"; do
	timeout -s KILL 60 python3 - "$directory" <<'P' || fail "64 writers in $directory"
import os, sys, threading
directory = sys.argv[1]
WRITERS, HALF = 64, 150_001
barrier = threading.Barrier(WRITERS + 1)
errors = []

def path(i):
    return f"{directory}/{i:064x}"

def write(i):
    try:
        data = bytes([i]) * HALF
        # UCM's name for a block on its way.
        temporary = f"{path(i)}.tmp"
        fd = os.open(temporary, os.O_CREAT | os.O_WRONLY, 0o644)
        assert os.write(fd, data) == HALF
        barrier.wait()
        barrier.wait()
        assert os.write(fd, data) == HALF
        os.close(fd)
        os.rename(temporary, path(i))
    except BaseException as error:
        errors.append(error)
        barrier.abort()

writers = [threading.Thread(target=write, args=(i,)) for i in range(WRITERS)]
for writer in writers:
    writer.start()
barrier.wait()
# Each of them has its file open and half of it written.
other = path(1000)
assert len([name for name in os.listdir(directory) if name.endswith(".tmp")]) == WRITERS
assert not os.path.exists(path(0)) and os.stat(f"{path(0)}.tmp").st_size == HALF
with open(f"{other}.tmp", "wb") as file:
    file.write(b"other")
os.rename(f"{other}.tmp", other)
assert open(other, "rb").read() == b"other"
os.unlink(other)
barrier.wait()
for writer in writers:
    writer.join()
assert not errors, errors
assert sorted(os.listdir(directory)) == sorted(os.path.basename(path(i)) for i in range(WRITERS))
for i in range(WRITERS):
    with open(path(i), "rb") as file:
        assert file.read() == bytes([i]) * (2 * HALF), i
P
done
stop_fs
