#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# statfs: the capacity of memory and L2 together, in blocks of 4096 bytes; what can be evicted counts as free.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

L1_SIZE=64M
start_bare --l2-adapter type=mock,max_size_gb=1
total=$(((64 + 1024) << 20 >> 12))

expect_output "4096 4096 1023" stat -f -c '%s %S %l' "$MNT"
expect_output "$total $total $total" stat -f -c '%b %f %a' "$MNT"
expect_output "$total" stat -f -c %b "$MNT/.kvcache/status"

mkdir -p "$RANK"
for i in 0 1 2 3; do
	mkchunk "$RANK/$(chunk_hash "$i")" 4M "$i"
done
control flush /
assert_eq 4 "$(status l1_objects)" "objects in L1"
# All of L1 is free on demand; L2 is not ours to empty.
free_is() {
	[[ $(stat -f -c %f "$MNT") == "$1" ]]
}
wait_until 10 "what is replicated is free" free_is $((total - (16 << 20 >> 12)))
assert_eq "$total" "$(stat -f -c %b "$MNT")" "capacity"

# An open object and a pinned one are not.
mkchunk "$WORK/data" 4M 0
start_client holder "$CLIENTS/hold-open" "$RANK/$(chunk_hash 0)" "$WORK/data"
client_hear holder open
wait_until 10 "what is open is not free" free_is $((total - (20 << 20 >> 12)))
setfattr -n user.kvcache.pinned -v 1 "$RANK/$(chunk_hash 1)"
wait_until 10 "what is pinned is not free" free_is $((total - (24 << 20 >> 12)))
client_say holder go
client_hear holder equal
wait "$CLIENT_PID"
setfattr -n user.kvcache.pinned -v 0 "$RANK/$(chunk_hash 1)"
wait_until 10 "all is free again" free_is $((total - (16 << 20 >> 12)))

files=$(stat -f -c %c "$MNT")
assert_le 4 "$files" "files"
assert_le 1 "$(stat -f -c %d "$MNT")" "free files"
df "$MNT" >/dev/null
stop_fs
