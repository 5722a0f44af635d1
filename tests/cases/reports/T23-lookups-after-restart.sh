#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T23, lookups never hit because the index is in memory only (SGLang #26886, #33883; Mooncake #3817; UCM #900): what
# one node has stored, stat, scandir and open find on another node, and on the same one after a restart and a kill.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

SIZE=70272
declare -a hashes=()
for i in 0 1 2 3; do
	hashes+=("$(chunk_hash "$i")")
done

# expect_hits MOUNT: stat, access, scandir and open agree, in this order and in the other one.
expect_hits() {
	python3 - "$1" "$MODEL" "$SIZE" "${hashes[@]}" <<'P' || fail "the lookups of $1"
import os, sys
mount, model, size, *hashes = sys.argv[1:]
for directory, suffix in ((f"{mount}/{model}/@01000100", ""), (f"{mount}/hicache/0a/1b", ".bin")):
    names = sorted(name + suffix for name in hashes)
    paths = [os.path.join(directory, name) for name in names]
    absent = os.path.join(directory, "f" * 64 + suffix)
    asks = [
        lambda: [os.stat(path).st_size for path in paths] == [int(size)] * len(paths),
        lambda: all(os.access(path, os.R_OK) for path in paths),
        lambda: sorted(entry.name for entry in os.scandir(directory) if entry.is_file()) == names,
        lambda: all(len(open(path, "rb").read()) == int(size) for path in paths),
        lambda: not os.path.exists(absent),
    ]
    for i, ask in enumerate(asks if suffix else reversed(asks)):
        assert ask(), (directory, i)
P
}

start_fs
mkdir -p "$RANK" "$MNT/hicache/0a/1b"
for i in "${!hashes[@]}"; do
	"$CLIENTS/pattern" "$i" "$SIZE" >"$RANK/${hashes[i]}"
	"$CLIENTS/pattern" "$i" "$SIZE" >"$MNT/hicache/0a/1b/${hashes[i]}.bin"
done
expect_hits "$MNT"
control flush /

# Node B, while A goes on. Nobody has made a directory there.
pid_a=$DAEMON_PID
mkdir "$WORK/b"
MNT=$WORK/b STATE=$WORK/state-b start_fs
expect_hits "$WORK/b"
for i in "${!hashes[@]}"; do
	expect_data "$WORK/b/$MODEL/@01000100/${hashes[i]}" "$i" "$SIZE"
	expect_data "$WORK/b/hicache/0a/1b/${hashes[i]}.bin" "$i" "$SIZE"
done
MNT=$WORK/b stop_fs
DAEMON_PID=$pid_a

restart_fs
expect_hits "$MNT"
kill_fs
start_fs
expect_hits "$MNT"
stop_fs
# The node's own memory of the directories is gone.
rm -r "$STATE"
start_fs
expect_hits "$MNT"
stop_fs
