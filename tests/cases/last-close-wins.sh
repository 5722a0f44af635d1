#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Several write a plain file, each its own version: the one that was closed last is the file, however long the commits
# take; so is one renamed to the name after that.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=2G # an eighth of it is the largest file
start_fs
mkdir "$MNT/plain"
python3 - "$MNT/plain" <<'P' || fail "an older version has replaced a newer one"
import os, sys, time

directory = sys.argv[1]
FLAGS = os.O_WRONLY | os.O_CREAT | os.O_TRUNC


def content(path):
    with open(path, "rb") as f:
        return f.read(100)


# What has holes takes longer to commit: it is given its memory then.
def open_slow(path, size):
    fd = os.open(path, FLAGS)
    os.pwrite(fd, b"slow", 0)
    os.pwrite(fd, b"end", size)
    return fd


for i in range(8):
    path = f"{directory}/file{i % 2}"
    slow, quick = open_slow(path, 200 << 20), os.open(path, FLAGS)
    os.write(quick, b"quick")
    os.close(slow)
    os.close(quick)
    assert content(path) == b"quick", f"{path}: {content(path)[:10]}"
    time.sleep(0.1)
    assert content(path) == b"quick", f"{path}: {content(path)[:10]}, later"

# A copy of a descriptor that is closed later counts.
slow, quick = open_slow(path, 1 << 20), os.open(path, FLAGS)
copy = os.dup(slow)
os.close(slow)
os.write(quick, b"quick")
os.close(quick)
assert content(path) == b"quick"
os.pwrite(copy, b"copy", 0)
os.close(copy)
assert content(path)[:4] == b"copy", content(path)[:10]

# The rename is what counts of a file that was closed before.
with open(path + ".tmp", "wb") as f:
    f.write(b"renamed")
quick = os.open(path, FLAGS)
os.write(quick, b"quick")
os.close(quick)
assert content(path) == b"quick"
os.rename(path + ".tmp", path)
assert content(path) == b"renamed"
P
echo "replaced before the commit: $(stat_counter mount_writes_not_published_replaced)"
restart_fs
expect_output renamed cat "$MNT/plain/file1"
expect_output quick head -c 5 "$MNT/plain/file0"
stop_fs
