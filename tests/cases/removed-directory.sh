#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A directory that was removed does not come back while others come to be known: in a tree of so many that it takes a
# while to look through them.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
python3 - "$L2/plain/many" <<'P'
import os, sys
for i in range(10000):
    os.makedirs(f"{sys.argv[1]}/{i:04d}")
    with open(f"{sys.argv[1]}/{i:04d}/file", "w") as f:
        f.write("data")
P
start_fs
wait_until 60 "the L2 is listed" status_is l2.0.listed yes
python3 - "$MNT" <<'P' || fail "a removed directory is there again"
import multiprocessing, os, sys, time

end = time.monotonic() + 4


def make_and_remove(number, counts):
    base = f"{sys.argv[1]}/base{number}"
    n = n_back = 0
    os.mkdir(base)
    while time.monotonic() < end:
        os.mkdir(f"{base}/directory")
        with open(f"{base}/directory/file", "w") as f:
            f.write("data")
        os.stat(f"{base}/directory/file")
        os.unlink(f"{base}/directory/file")
        os.rmdir(f"{base}/directory")
        n += 1
        if os.listdir(base):
            n_back += 1
            os.rmdir(f"{base}/directory")
    counts.put((n, n_back))


counts = multiprocessing.Queue()
processes = [multiprocessing.Process(target=make_and_remove, args=(i, counts)) for i in range(4)]
for process in processes:
    process.start()
found = [counts.get() for _ in processes]
print("rounds, and how often it was back:", *found)
assert not any(n_back for _, n_back in found)
P
stop_fs
