#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# fsync of a committed object (sync FILE) returns when it is in L2, and is EIO when no L2 took it; on a file that is
# still being written, on a directory, and without an L2 it is 0. .kvcache/flush does it for a path.
#
# parallel

. "$(dirname "$0")/lib.sh"

stored_files() {
	find "$L2" -name '*.data' -o -path '*/plain/*' -type f | wc -l
}

# Stores take their time: 32 MB at 100 MB/s.
start_bare --l2-adapter type=mock,max_size_gb=1,mock_bandwidth_gb=0.1
mkdir -p "$RANK" "$MNT/plain"
begin a
for name in "$RANK/$(chunk_hash 0)" "$MNT/plain/file"; do
	# Still being written: 0, at once, and nothing is visible for it.
	step a 0 open "$name" wct
	step a 0 write 1 32M
	step a 0 fsync
	expect_errno ENOENT stat "$name"
	step a 0 close
	sync "$name"
	assert_eq 0 "$(status l1_dirty_objects)" "dirty objects after sync $name"
done
assert_eq 2 "$(stat_counter stores_completed)" stores_completed

# sync -d and fsync by a reader, twice; of a directory: at once.
step a 0 open "$RANK/$(chunk_hash 0)" r
step a 0 fsync
step a 0 fsync
step a 0 close
sync -d "$MNT/plain/file"
"$CLIENTS/pattern" 3 64M >"$RANK/$(chunk_hash large)"
begin=${EPOCHREALTIME/./}
sync "$RANK" "$MNT/plain" "$MNT"
ms=$(((${EPOCHREALTIME/./} - begin) / 1000))
echo "sync of directories: $ms ms"
assert_le "$ms" 400 "milliseconds of sync of directories beside a store of 640 ms"
sync "$RANK/$(chunk_hash large)"
assert_eq 0 "$(status l1_dirty_objects)" "dirty objects after sync"
kill_fs

# Into a directory: there after a kill.
start_fs
mkdir -p "$RANK" "$MNT/plain"
for i in 1 2 3; do
	"$CLIENTS/pattern" "$i" 2M >"$RANK/$(chunk_hash "$i")"
	"$CLIENTS/pattern" "$i" 2M >"$MNT/plain/$i"
done
sync "$RANK/$(chunk_hash 1)" "$MNT/plain/1"
control flush "$MODEL/@01000100/$(chunk_hash 2)"
control flush "$MNT/plain/2"
control flush "$RANK"
control flush plain
assert_eq 6 "$(stored_files)" "files in L2 after sync and flush"
kill_fs
start_fs
for i in 1 2 3; do
	expect_data "$RANK/$(chunk_hash "$i")" "$i" 2M
	expect_data "$MNT/plain/$i" "$i" 2M
	sync "$RANK/$(chunk_hash "$i")" "$MNT/plain/$i"
done
expect_errno write:ENOENT write "$MNT/.kvcache/flush" $'plain/absent\n'
stop_fs

# Every target fails: EIO; the object is served from L1 all the same.
start_bare --l2-adapter type=mock,max_size_gb=1,fail_stores=1000
mkdir -p "$RANK"
"$CLIENTS/pattern" 4 1M >"$RANK/$(chunk_hash 4)"
begin b
step b 0 open "$RANK/$(chunk_hash 4)" r
step b EIO fsync
step b 0 check 4 1M
step b 0 close
# Not "failed" yet: that takes eight failed tries, and these were three, or six.
assert_eq degraded "$(status health)" health
got=$("$CLIENTS/try-call" write "$MNT/.kvcache/flush" "$RANK"$'\n')
assert_eq write:EIO "$got" "flush of what no L2 takes"
assert_eq 1 "$(status l1_unreplicated_objects)" l1_unreplicated_objects
kill_fs

# One of two fails: it is stored.
start_bare --l2-adapter type=mock,max_size_gb=1,fail_stores=1000 --l2-adapter type=mock,max_size_gb=1
mkdir -p "$RANK"
"$CLIENTS/pattern" 5 1M >"$RANK/$(chunk_hash 5)"
sync "$RANK/$(chunk_hash 5)"
kill_fs

# Without an L2.
start_bare
mkdir -p "$RANK" "$MNT/plain"
for name in "$RANK/$(chunk_hash 6)" "$MNT/plain/6"; do
	"$CLIENTS/pattern" 6 1M >"$name"
	sync "$name" "$(dirname "$name")"
	control flush "$name"
done
stop_fs
