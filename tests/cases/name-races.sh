#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Names that are written, removed, renamed and read at the same time: an open that may create does not end with ENOENT,
# nobody reads a part of a file. And what a process has just closed is meant by its flush.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir "$MNT/dir"
for roles in WUR WWUU WMR WMUR; do
	python3 "$SRC/tests/clients/name-races.py" "$MNT/dir" 2 "$roles" || fail "$roles"
done
rm -f "$MNT/dir/a" "$MNT/dir/b"

python3 - "$MNT" "$L2/plain/dir" <<'P' || fail "a flush of what has just been closed"
import os, sys
mount, l2 = sys.argv[1:]
for i in range(200):
    with open(f"{mount}/dir/file{i}", "w") as f:
        f.write("data")
    with open(f"{mount}/.kvcache/flush", "w") as f:
        f.write("/\n" if i % 2 else f"/dir/file{i}\n")
    assert os.path.exists(f"{l2}/file{i}"), f"file{i} is not in L2 after the flush"
P
stop_fs
