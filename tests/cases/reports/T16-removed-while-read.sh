#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T16, LMCache's delete of its fs L2, LMCache #1981, vLLM PR 254 of local-inference-lab: a block is removed while it is
# read, and others need the memory. The reader gets all of it; the memory is free again when it closes; whoever removes
# the block a second time gets ENOENT, also when several do it at once.
#
# parallel

. "$(dirname "$0")/../lib.sh"

L1_SIZE=96M
start_fs --max-object-size 48M
mkdir -p "$RANK" "$MNT/lmcache"
mkchunk "$WORK/data" 32M
for name in "$RANK/$(chunk_hash 0)" "$MNT/lmcache/$(chunk_hash 0).data"; do
	cp "$WORK/data" "$name"
	exec {fd}<"$name"
	dd bs=1M count=1 iflag=fullblock status=none <&"$fd" >"$WORK/read"

	# Two evictors remove what they think is theirs.
	declare -a pids=()
	for i in 0 1 2 3; do
		"$CLIENTS/try-call" unlink "$name" {fd}<&- >"$WORK/unlink.$i" &
		pids+=($!)
	done
	wait "${pids[@]}"
	assert_eq "0 ENOENT ENOENT ENOENT" "$(sort "$WORK"/unlink.[0-3] | xargs)" "four who remove it"
	expect_errno ENOENT stat "$name"

	# Twice what is left of L1.
	for i in {1..8}; do
		cp "$WORK/data" "${name%/*}/.other.tmp"
		mv -T "${name%/*}/.other.tmp" "$RANK/$(chunk_hash "$i" "${name%%/*}")"
		rm -f "$RANK/$(chunk_hash $((i - 1)) "${name%%/*}")"
	done
	cat <&"$fd" >>"$WORK/read"
	assert_same "$WORK/data" "$WORK/read"
	rm -f "$RANK"/*
	wait_until 10 "the reader's block is all that is in memory" status_is l1_used_bytes $((32 << 20))
	exec {fd}<&-
	wait_until 10 "the memory is free again" status_is l1_used_bytes 0
	expect_errno ENOENT unlink "$name"
done
stop_fs
