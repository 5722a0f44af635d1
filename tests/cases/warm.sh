#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .kvcache/prefetch loads what a path stands for and answers when it is there; at most half of L1; it can be
# interrupted. --readahead loads the entries after one that is opened. Neither leaves a lock.
#
# parallel

. "$(dirname "$0")/lib.sh"

L1_SIZE=64M
n=8
prefix=$RANK/system-prompt

declare -a chain=()
start_fs
mkdir -p "$prefix"
for ((i = 0; i < n; i++)); do
	chain+=("$(chunk_hash "$i")")
	mkchunk "$prefix/${chain[i]}" 1M "$i"
done
other=$MNT/$MODEL/@01000200
mkdir -p "$other"
mkchunk "$other/${chain[0]}" 1M
control flush /

objects_are() {
	status_is l1_objects "$1"
}
empty_l1() {
	control evict /
	wait_until 10 "L1 is empty" objects_are 0
}

# Each kind of path; the write returns when it is loaded.
empty_l1
control prefetch "$prefix/${chain[3]}"
objects_are 1 || fail "an object: $(status l1_objects) objects in L1"
control prefetch "$prefix/${chain[3]}"
assert_eq 1 "$(stat_counter mount_prefetch_objects)" "what is in L1 is not asked for"
empty_l1
control prefetch "$prefix"
assert_le "$n" "$(status l1_objects)" "objects in L1 after a prefix directory"
assert_le "$(status l1_objects)" $((n + 1)) "objects in L1 after a prefix directory"
empty_l1
control prefetch "/$MODEL/@01000200"
objects_are 1 || fail "a rank directory: $(status l1_objects) objects in L1"
empty_l1
control prefetch "$MODEL"
assert_le $((n + 1)) "$(status l1_objects)" "objects in L1 after a model"
empty_l1
control prefetch /
assert_le $((n + 1)) "$(status l1_objects)" "objects in L1 after the root"
assert_eq 0 "$(status l1_read_locks)" "locks after a prefetch"
assert_eq 0 "$(stat_counter mount_prefetch_failed)" mount_prefetch_failed
assert_eq "$(stat_counter mount_prefetch_objects)" "$(stat_counter mount_prefetch_loaded)" "objects loaded, none having failed"
# Nothing holds them.
empty_l1

expect_errno write:ENOENT write "$MNT/.kvcache/prefetch" "no-such-model"$'\n'
expect_errno write:ENOENT write "$MNT/.kvcache/prefetch" "$RANK/$(chunk_hash absent)"$'\n'
expect_errno write:EINVAL write "$MNT/.kvcache/prefetch" $'\n'
expect_errno write:EINVAL write "$MNT/.kvcache/prefetch" "../x"$'\n'
assert_eq 600 "$(stat -c %a "$MNT/.kvcache/prefetch")" "mode of prefetch"

# A chunk that somebody removed from L2: those behind it are loaded all the same, and the write says so.
rm "$L2"/*0x01000100*"${chain[2]}".data
expect_errno write:EIO write "$MNT/.kvcache/prefetch" "$prefix"$'\n'
assert_le $((n - 1)) "$(status l1_objects)" "objects in L1 without the one that is gone"
assert_eq 1 "$(stat_counter mount_prefetch_failed)" mount_prefetch_failed
# Now it is known to be nowhere: a chain with a gap.
control evict /
wait_until 10 "L1 is empty" objects_are 0
control prefetch "$prefix"
assert_le $((n - 1)) "$(status l1_objects)" "objects in L1, the gap left out"
mkchunk "$RANK/${chain[2]}" 1M 2
control flush /
empty_l1

# ---- Readahead -------------------------------------------------------------------------------

loads() {
	stat_counter loads_completed
}
loads_are() {
	[[ $(loads) == "$1" ]]
}
restart_fs --readahead 3 --lookup-wait 10000 # in which the chain is loaded, too
cat "$prefix/${chain[0]}" >/dev/null
wait_until 10 "an entry and 3 after it are loaded" loads_are 4
assert_eq 3 "$(stat_counter mount_readahead_objects)" mount_readahead_objects
wait_until 10 "they are counted" counter_is mount_readahead_loaded 3
cat "$prefix/${chain[1]}" >/dev/null
wait_until 10 "one more is" loads_are 5
assert_eq 0 "$(stat_counter mount_opens_missed)" mount_opens_missed
assert_eq 1 "$(stat_counter mount_opens_waited)" "opens that waited: the first only"
wait_until 10 "no lock stays" status_is l1_read_locks 0
# At the end of the chain there is nothing ahead, and in the rank directory no chain.
cat "$prefix/${chain[n - 1]}" >/dev/null
cat "$other/${chain[0]}" >/dev/null
wait_until 10 "two more, and no readahead" loads_are 7
# Nor while the directory is open: it loads the whole chain.
requests=$(stat_counter mount_readahead_requests)
exec 9<"$prefix"
cat "$prefix/${chain[5]}" >/dev/null
wait_until 10 "an open directory loads all of it" loads_are 9
assert_eq "$requests" "$(stat_counter mount_readahead_requests)" "readahead under an open directory"
exec 9<&-

restart_fs --readahead 0 --lookup-wait 10000
cat "$prefix/${chain[0]}" >/dev/null
assert_eq "1 0" "$(loads) $(stat_counter mount_readahead_requests)" "loads and readahead with --readahead 0"
stop_fs

# ---- More than half of L1 --------------------------------------------------------------------

start_fs
many=$MNT/$MODEL/@01000300
mkdir -p "$many"
for ((i = 0; i < 12; i++)); do
	mkchunk "$many/$(chunk_hash "$i")" 4M "$i"
	control flush "$many"
done
control evict "$many"
wait_until 10 "L1 is empty" objects_are 0
control prefetch "$many"
assert_eq $((32 << 20)) "$(stat_counter load_bytes)" "half of L1"
assert_eq 4 "$(stat_counter mount_prefetch_over_bound)" mount_prefetch_over_bound
stop_fs

# ---- A load that fails -----------------------------------------------------------------------

start_bare --l2-adapter "type=mock,max_size_gb=1,fail_loads=1"
mkdir -p "$RANK"
for ((i = 0; i < n; i++)); do
	mkchunk "$RANK/${chain[i]}" 64K "$i"
done
control flush /
control evict /
expect_errno write:EIO write "$MNT/.kvcache/prefetch" "$MODEL"$'\n'
assert_eq 1 "$(stat_counter mount_prefetch_failed)" mount_prefetch_failed
assert_eq $((n - 1)) "$(status l1_objects)" "objects in L1 in spite of one that failed"
stop_fs

# An L2 that does not answer in time ends the write.
start_bare --l2-adapter "type=mock,max_size_gb=1,latency_ms=3000" --l2-prefetch-load-timeout 0.5
mkdir -p "$RANK"
mkchunk "$RANK/${chain[0]}" 64K
wait_until 20 "it is stored" status_is l1_dirty_objects 0
control evict /
expect_errno write:EIO write "$MNT/.kvcache/prefetch" "$MODEL"$'\n'
stop_fs

# ---- Interrupted -----------------------------------------------------------------------------

start_bare --l2-adapter "type=mock,max_size_gb=1,latency_ms=3000" --l2-prefetch-load-timeout 20
mkdir -p "$RANK"
mkchunk "$RANK/${chain[0]}" 64K
control flush /
control evict /
(echo / >"$MNT/.kvcache/prefetch") 2>"$WORK/interrupted" &
writer=$!
wait_until 10 "the load is in flight" counter_is loads 1
assert_eq 1 "$(status requests_waiting)" requests_waiting
kill -INT "$writer" 2>/dev/null || kill -TERM "$writer"
kill -TERM "$writer" 2>/dev/null || true
wait_until 2 "the writer ends at once" is_gone "$writer"
wait_until 10 "what has begun goes on" objects_are 1
assert_eq 0 "$(status requests_waiting)" requests_waiting
stop_fs
