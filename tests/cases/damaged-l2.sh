#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What is damaged in the L2 directory behind the daemon's back is a miss, never wrong bytes, and does not keep the
# right object from being written again: an empty file, a file cut short, other bytes of the same size.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

empty=$(chunk_hash empty) short=$(chunk_hash short) flipped=$(chunk_hash flipped)

l2_file() {
	echo "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data"
}

mkchunk "$WORK/good" 1M 1
: >"$(l2_file "$empty")"
start_fs
mkdir -p "$RANK"
for h in "$short" "$flipped"; do
	cp "$WORK/good" "$RANK/$h"
	sync "$RANK/$h"
done
stop_fs
truncate -s 300K "$(l2_file "$short")"
dd if=/dev/zero of="$(l2_file "$flipped")" bs=4k count=1 conv=notrunc status=none
start_fs

# A miss, and not listed where the file itself gives it away.
expect_errno ENOENT stat "$RANK/$empty"
expect_errno ENOENT stat "$RANK/$short"
if cat "$RANK/$flipped" >/dev/null 2>&1; then
	fail "corrupt bytes were read"
fi
expect_output "" find "$RANK" -name "$empty" -o -name "$short"

# And the object can be written again, in place and by rename.
for h in "$empty" "$short" "$flipped"; do
	cp "$WORK/good" "$RANK/.$h.tmp"
	mv "$RANK/.$h.tmp" "$RANK/$h"
	assert_same "$WORK/good" "$RANK/$h"
	sync "$RANK/$h"
done
restart_fs
for h in "$empty" "$short" "$flipped"; do
	assert_same "$WORK/good" "$RANK/$h"
done
stop_fs
