#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T1, LMCache #4991: two writers share one temporary name. The first closes it and pauses; the second opens it with
# O_TRUNC and writes a part; the first renames it; the second fails, or dies, before it is complete. The rename succeeds,
# the block is never the second's part, now or after a restart, and a third writer stores it as if nothing had been.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/lmcache"
begin a b dies

# share SECOND NAME: up to the rename, the second's 32 bytes being in the file.
share() {
	step a 0 open "$2.tmp" wct
	step a 0 write 7 64
	step a 0 close
	step "$1" 0 open "$2.tmp" wct
	step "$1" 0 write 8 32
	step a 0 rename "$2.tmp" "$2"
	expect_errno ENOENT stat "$2"
}

# stored_by_third NAME: which nobody has stored.
stored_by_third() {
	expect_errno ENOENT stat "$1"
	expect_errno ENOENT open-read "$1"
	expect_errno ENOENT stat "$1.tmp"
	step a 0 open "$1.tmp" wct
	step a 0 write 7 64
	step a 0 close
	step a 0 rename "$1.tmp" "$1"
	expect_data "$1" 7 64
}

# Its next write fails.
for name in "$RANK/$(chunk_hash 0)" "$MNT/lmcache/$(chunk_hash 0).data"; do
	share b "$name"
	step b EFBIG limit 32 pwrite 8 32 32
	step b EIO limit 32 close
	step b ENOENT unlink "$name.tmp"
	stored_by_third "$name"
done

# It is killed.
name=$RANK/$(chunk_hash 1)
share dies "$name"
kill_client dies
# A lookup may wait for a writer that is closing; then it is certain.
for i in 1 2 3; do
	expect_errno ENOENT open-read "$name"
	sleep 0.06
done
stored_by_third "$name"

# The same, and a restart before anybody stores it again.
begin dies.again
share dies.again "$RANK/$(chunk_hash 2)"
kill_client dies.again
wait_until 10 "what was displaced or killed is gone" status_is l1_objects 3
restart_fs
stored_by_third "$RANK/$(chunk_hash 2)"
expect_data "$name" 7 64
stop_fs

# Its next write fails because L1 is full: its close says so.
L1_SIZE=64M
start_bare --io-mode=direct --eviction-trigger-watermark 1 --max-object-size 64M
mkdir -p "$RANK"
mkchunk "$WORK/data" 8M
begin c d
for i in 0 1 2 3 4 5 6; do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i")"
	hold "$RANK/$(chunk_hash "$i")"
done
key=$(chunk_hash key)
other=$MNT/$MODEL/@02000200
mkdir -p "$other"
tmp=$other/.k.tmp
step c 0 open "$tmp" wct
step c 0 write 7 64
step c 0 close
step d 0 open "$tmp" wct
step d 0 write 8 32
step c 0 rename "$tmp" "$other/$key"
step d ENOSPC pwrite 8 64K 30M
step d ENOSPC close
step d ENOENT unlink "$tmp"
expect_errno ENOENT stat "$other/$key"
expect_errno ENOENT open-read "$other/$key"
step c 0 open "$tmp" wct
step c 0 write 7 64
step c 0 close
step c 0 rename "$tmp" "$other/$key"
"$CLIENTS/pattern" 7 64 >"$WORK/expected"
assert_same "$WORK/expected" "$other/$key"
let_go
stop_fs
