#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# With an L2 a stream of four times L1 is written and read back whole: what L1 lost comes from L2.
#
# parallel

. "$(dirname "$0")/lib.sh"

L1_SIZE=128M
start_fs
mkdir -p "$RANK"
n=32
for ((i = 0; i < n; i++)); do
	mkchunk "$WORK/data" 16M "$i"
	sha "$WORK/data" >"$WORK/sha.$i"
	cp "$WORK/data" "$RANK/$(chunk_hash "$i")"
done
control flush /
for ((i = 0; i < n; i++)); do
	assert_eq "$(cat "$WORK/sha.$i")" "$(sha "$RANK/$(chunk_hash "$i")")" "sha256 of chunk $i"
	assert_le "$(status l1_used_bytes)" "$(status l1_capacity_bytes)" "l1_used_bytes"
done
assert_eq 0 "$(stat_counter stores_failed)" stores_failed
assert_eq "$n" "$(find "$RANK" -type f | wc -l)" "objects listed"
stop_fs
