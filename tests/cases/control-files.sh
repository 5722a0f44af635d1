#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# .kvcache: status and stats have their lines, evict and flush take paths and say what is wrong with one.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs "--io-mode=$EXPECTED_IO_MODE"
mkdir -p "$RANK"
control=$MNT/.kvcache

for name in health io_mode l1_huge_pages l1_capacity_bytes l1_used_bytes l1_objects l1_read_locks l1_dirty_objects \
	l2.0.type l2.0.health l2.0.io_mode; do
	value=$(status "$name")
	[[ -n $value ]] || fail "status: no value for $name"
done
for name in stores stores_completed stores_failed loads loads_completed loads_failed_missing lookups prefetches hits_l1 \
	hits_l2 misses; do
	value=$(stat_counter "$name")
	[[ $value =~ ^[0-9]+$ ]] || fail "stats: $name is '$value'"
done
assert_eq "" "$(grep -vE '^[a-z0-9_.]+ .+$' "$control/status" "$control/stats" || true)" "lines that are not 'name value'"
assert_eq ok "$(status health)" health
assert_eq "$EXPECTED_IO_MODE" "$(status io_mode)" io_mode
assert_eq fs "$(status l2.0.type)" l2.0.type
assert_eq ok "$(status l2.0.health)" l2.0.health
assert_eq $((1 << 30)) "$(status l1_capacity_bytes)" l1_capacity_bytes
expect_output $'config\nevict\nflush\nprefetch\nstats\nstatus' ls "$control"
assert_eq "600 600" "$(stat -c %a "$control/evict" "$control/flush" | xargs)" "modes of files that act"
expect_errno "EACCES|EPERM|EROFS" unlink "$control/status"
expect_errno "EACCES|EPERM|EROFS" create "$control/other"

# One object of 4 MB, several spellings of its path.
hash=$(chunk_hash 0)
mkchunk "$WORK/data" 4M
cp "$WORK/data" "$RANK/$hash"
assert_eq 1 "$(status l1_objects)" l1_objects
assert_le $((4 << 20)) "$(status l1_used_bytes)" l1_used_bytes
control flush "$RANK/$hash"
assert_eq 0 "$(status l1_dirty_objects)" "l1_dirty_objects after flush"
assert_eq 1 "$(stat_counter stores_completed)" stores_completed
assert_same "$WORK/data" "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$hash.data"
n=0
for path in "$RANK/$hash" "$MODEL/@01000100/$hash" "/$MODEL/@01000100/$hash" "$MODEL/@01000100" "$MODEL" /; do
	control evict "$path"
	wait_until 5 "evict of $path" status_is l1_objects 0
	assert_same "$WORK/data" "$RANK/$hash"
	n=$((n + 1))
	assert_eq "$n" "$(stat_counter loads_completed)" "loads after evict of $path"
	control flush "$path"
done

# Two lines, two paths.
other=$(chunk_hash 1)
cp "$WORK/data" "$RANK/$other"
control flush "$RANK/$hash"$'\n'"$RANK/$other"
control evict "$RANK/$hash"$'\n'"$RANK/$other"
wait_until 5 "evict of two paths" status_is l1_objects 0

# What is wrong with a path.
absent=$(chunk_hash absent)
for file in evict flush; do
	expect_errno write:ENOENT write "$control/$file" "$RANK/$absent"$'\n'
	expect_errno write:ENOENT write "$control/$file" "no-such-model/@01000100/$hash"$'\n'
	expect_errno "write:EINVAL|write:ENOENT" write "$control/$file" "$MODEL/@01000100/${hash^^}"$'\n'
	expect_errno "write:EINVAL|write:ENOENT" write "$control/$file" "$MODEL/@0100/$hash"$'\n'
	expect_errno "write:EINVAL|write:ENOENT" write "$control/$file" "../$MODEL"$'\n'
done

# Something that is being read is not evicted: the write waits up to a second for it.
assert_same "$WORK/data" "$RANK/$hash"
start_client holder "$CLIENTS/hold-open" "$RANK/$hash" "$WORK/data"
client_hear holder open
expect_errno write:EBUSY write "$control/evict" "$RANK/$hash"$'\n'
client_say holder go
client_hear holder equal
wait "$CLIENT_PID"
control evict "$RANK/$hash"
stop_fs

# Without an L2 nothing is replicated, and nothing may be dropped.
start_bare
mkdir -p "$RANK"
cp "$WORK/data" "$RANK/$hash"
control flush /
expect_errno "write:EBUSY" write "$control/evict" "$RANK/$hash"$'\n'
assert_same "$WORK/data" "$RANK/$hash"
stop_fs
