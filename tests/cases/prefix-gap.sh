#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A prefix shows the unbroken run of chunks that exist in L1 or L2 together: a chunk that nobody has ends it, a
# chunk that only L2 has does not.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

declare -a h=()
start_fs
mkdir -p "$RANK"
for i in 0 1 2 3 4; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 4M "$i"
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done

# {0,2} in L1 and {0,1,2,3} in L2: 4.
mkdir "$RANK/mixed" "$RANK/broken"
printf '%s\n' "${h[@]:0:4}" >"$RANK/mixed/.keys"
printf '%s\n' "${h[@]}" >"$RANK/broken/.keys"
control flush /
evict "$MODEL/@01000100/${h[1]}" "$MODEL/@01000100/${h[3]}"
for i in 1 3; do
	# Attributes are cached for a second.
	wait_until 5 "chunk $i has left L1" eval "! resident '$RANK/${h[i]}'"
done
for i in 0 2; do
	resident "$RANK/${h[i]}" || fail "chunk $i has left L1"
done
expect_output "$(printf '%s\n' "${h[@]:0:4}")" ls -U "$RANK/mixed"
for i in 0 1 2 3; do
	assert_same "$WORK/data.$i" "$RANK/mixed/${h[i]}"
done

# Chunk 3 removed behind the daemon's back: 0 to 2, though 4 is still in L1 and L2.
wait_until 10 "no read lock at rest" status_is l1_read_locks 0
evict "$MODEL/@01000100/${h[3]}"
rm "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@${h[3]}.data"
expect_output "$(printf '%s\n' "${h[@]:0:3}")" ls -U "$RANK/broken"
expect_errno ENOENT open-read "$RANK/${h[3]}"
# Written again, the chain is whole again.
cp "$WORK/data.3" "$RANK/${h[3]}"
expect_output "$(printf '%s\n' "${h[@]}")" ls -U "$RANK/broken"
stop_fs
