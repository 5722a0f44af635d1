#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T12, UCM: the shards of a block are written in parallel into one temporary file that each task opens, without O_TRUNC,
# and the task with the last index renames it, whether or not the others have ended. All of them write into one file; the
# block is absent until the last one has closed it, and then it has every byte.
#
# parallel

. "$(dirname "$0")/../lib.sh"

require_cmd python3
start_fs
mkdir -p "$MNT/ucm/12" "$RANK"

# Quarters in the order 3 1 0 2, by processes; the rename is after quarter 3.
begin q0 q1 q2 q3
for name in "$MNT/ucm/12/$(chunk_hash 0 | cut -c 1-32)" "$RANK/$(chunk_hash 0)"; do
	for q in 0 1 2 3; do
		step "q$q" 0 open "$name.tmp" wc
	done
	for q in 3 1 0 2; do
		step "q$q" 0 pwrite "$q" 1M "${q}M"
		step "q$q" 0 close
		[[ $q != 3 ]] || step q3 0 rename "$name.tmp" "$name"
		[[ $q == 2 ]] || expect_errno ENOENT stat "$name"
		[[ $q == 2 ]] || expect_errno ENOENT open-read "$name"
	done
	for q in 0 1 2 3; do
		"$CLIENTS/pattern" "$q" 1M
	done >"$WORK/expected"
	assert_same "$WORK/expected" "$name"
	expect_errno ENOENT stat "$name.tmp"
done

# By threads, as they come: each has opened it before the rename.
cat >"$WORK/dump.py" <<'P'
import os, random, sys, threading

SHARD, SHARDS = 256 << 10, 4

def shard(block, index):
    return bytes([block * SHARDS + index + 1]) * SHARD

def dump(name, block, index, barrier):
    fd = os.open(name + ".tmp", os.O_CREAT | os.O_WRONLY, 0o644)
    barrier.wait()
    assert os.pwrite(fd, shard(block, index), index * SHARD) == SHARD
    os.close(fd)
    if index == SHARDS - 1:
        os.rename(name + ".tmp", name)

threading.excepthook = lambda args: (sys.__excepthook__(*args[:3]), os._exit(1))
directory, *hashes = sys.argv[1:]
for block, name in enumerate(hashes):
    barrier = threading.Barrier(SHARDS)
    order = random.sample(range(SHARDS), SHARDS)
    tasks = [threading.Thread(target=dump, args=(f"{directory}/{name}", block, i, barrier)) for i in order]
    for task in tasks:
        task.start()
    for task in tasks:
        task.join()
    with open(f"{directory}/{name}", "rb", 0) as f:
        data = f.read(SHARD * SHARDS + 1)
    assert data == b"".join(shard(block, i) for i in range(SHARDS)), f"block {block}: {len(data)} bytes, or other ones"
P
mapfile -t hashes < <(for i in {1..12}; do chunk_hash "$i"; done)
for dir in "$MNT/ucm/12" "$RANK"; do
	python3 "$WORK/dump.py" "$dir" "${hashes[@]}" || fail "parallel shards in $dir"
	assert_eq 13 "$(ls -A "$dir" | wc -l)" "blocks in $dir"
done
stop_fs
assert_eq 26 "$(l2_files | wc -l)" "blocks in L2"
