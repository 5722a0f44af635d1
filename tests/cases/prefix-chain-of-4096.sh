#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A chain of 4096 chunks, made file by file: the chain itself is stored now and then, not with each of them; after a
# restart it is there, whole and in order, and each chunk reads back through it. Who opens the directory can read the
# first chunk long before the last one is loaded.
#
# parallel
# timeout: 300

. "$(dirname "$0")/lib.sh"

N=4096
CHUNK_BYTES=4096
prefix=$RANK/prompt

# make_chain: N files in the prefix directory, each with its own number in it.
make_chain() {
	python3 - "$prefix" "$N" "$CHUNK_BYTES" >"$WORK/names" <<'P'
import hashlib, os, sys
directory, n, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(directory)
for i in range(n):
    name = hashlib.sha256(b"%d" % i).hexdigest()
    with open(f"{directory}/{name}", "wb", buffering=0) as f:
        f.write(b"%08d" % i * (size // 8))
    print(name)
P
}

# check_chain: opened once, as an engine does it, read in order to the end.
check_chain() {
	python3 - "$prefix" "$WORK/names" "$CHUNK_BYTES" <<'P' || fail "a chunk through the prefix directory"
import os, sys
directory, names, size = sys.argv[1], open(sys.argv[2]).read().split(), int(sys.argv[3])
held = os.open(directory, os.O_RDONLY)
for i, name in enumerate(names):
    with open(f"{directory}/{name}", "rb", buffering=0) as f:
        if f.read(size + 1) != b"%08d" % i * (size // 8):
            sys.exit(f"chunk {i}")
os.close(held)
P
}

# ---- Made, stored, and found again -----------------------------------------------------------

start_fs
make_chain
control flush /
bytes=$(stat -c %s "$prefix/.keys")
saved=$(stat_counter mount_chains_saved)
stored=$(stat_counter store_bytes)
assert_eq $((N * 65)) "$bytes" "bytes of the chain"
echo "the chain of $bytes bytes was saved $saved times; $((stored - N * CHUNK_BYTES)) bytes stored beside the chunks"
# At most once a second, and at the flush; an L2 that stores it again whole each time would take N / 2 times its size.
assert_le "$saved" $((SECONDS + 2)) "times that the chain was saved"
assert_le $((stored - N * CHUNK_BYTES)) $((saved * bytes)) "bytes stored beside the chunks"
restart_fs
expect_output "$(cat "$WORK/names")" ls -U "$prefix"
check_chain
assert_eq "$N" "$(stat_counter loads_completed)" "loads"
assert_eq 1 "$(stat_counter chain_loads)" "loads of the chain"
stop_fs

# ---- The first chunk before the last one is loaded -------------------------------------------

# All chunks together take four seconds.
start_bare --l2-adapter type=mock,max_size_gb=1,mock_bandwidth_gb=0.004
make_chain
control flush /
control evict /
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
exec 9<"$prefix"
expect_output 00000000 head -c 8 "$prefix/$(head -n 1 "$WORK/names")"
loaded=$(stat_counter loads_completed)
echo "when the first chunk was read $loaded of $N were loaded"
assert_le "$((loaded + 1))" $((N - 1)) "chunks loaded when the first one was read, and the last"
wait_until 60 "the whole chain is loaded and held" status_is l1_read_locks "$N"
exec 9<&-
wait_until 10 "no read lock after the directory was closed" status_is l1_read_locks 0
stop_fs
