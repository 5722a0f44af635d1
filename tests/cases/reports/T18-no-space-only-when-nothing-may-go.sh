#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T18, DingoCache PR 83, vLLM PR 165 of local-inference-lab: ENOSPC only when nothing can be evicted. Readers have every
# block open: a write that finds no room is ENOSPC, evicts nothing and leaves nothing; when one of them closes the same
# write succeeds. What may go makes room by itself.
#
# parallel

. "$(dirname "$0")/../lib.sh"

# Room for eight objects of 8 MB and a half.
L1_SIZE=68M
# All of it: no room is kept free ahead of need.
start_bare --eviction-trigger-watermark 1
mkdir -p "$RANK"
mkchunk "$WORK/data" 8M

# Readers hold seven objects of 8 MB: 56 of 68 MB. The directory's next reservation is 8 MB.
declare -a h=()
for i in 0 1 2 3 4 5 6; do
	h+=("$(chunk_hash "$i")")
	cp "$WORK/data" "$RANK/${h[i]}"
	start_client "holder$i" "$CLIENTS/hold-open" "$RANK/${h[i]}" "$WORK/data"
	client_hear "holder$i" open
done
start_client writer "$CLIENTS/hold-writer" "$RANK/$(chunk_hash writer)" 1 8M
client_hear writer written
cp "$WORK/data" "$RANK/$(chunk_hash refused)" 2>"$WORK/refused" && fail "8 MB were taken where 4 are left"
grep -q "No space left on device" "$WORK/refused" || fail "no ENOSPC, but: $(cat "$WORK/refused")"
expect_errno ENOENT stat "$RANK/$(chunk_hash refused)"
assert_le 1 "$(stat_counter l1_reserve_failed_no_memory)" l1_reserve_failed_no_memory
assert_eq 0 "$(stat_counter l1_evicted_objects)" l1_evicted_objects
assert_eq 7 "$(find "$RANK" -type f ! -name '.*' | wc -l)" "objects listed"

# One reader ends: its object may go, and does.
client_say holder0 go
client_hear holder0 equal
cp "$WORK/data" "$RANK/$(chunk_hash refused)"
assert_same "$WORK/data" "$RANK/$(chunk_hash refused)"
expect_errno ENOENT open-read "$RANK/${h[0]}"
client_say writer close
client_hear writer closed
for i in 1 2 3 4 5 6; do
	client_say "holder$i" go
	client_hear "holder$i" equal
done
wait

# Twice the capacity goes through without an error, and the budget holds.
for ((i = 0; i < 16; i++)); do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i" stream)"
	assert_le "$(status l1_used_bytes)" "$(status l1_capacity_bytes)" "l1_used_bytes"
done
assert_same "$WORK/data" "$RANK/$(chunk_hash 15 stream)"
assert_le 1 "$(stat_counter l1_evicted_objects)" l1_evicted_objects
stop_fs
