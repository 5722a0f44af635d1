#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What is damaged in the L2 directory behind the daemon's back is a miss, never wrong bytes, and does not keep the
# right object from being written again: an empty file, a file cut short, other bytes of the same size, two files that
# were swapped.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

empty=$(chunk_hash empty) short=$(chunk_hash short) flipped=$(chunk_hash flipped)

l2_file() {
	echo "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data"
}

mkchunk "$WORK/good" 1M 1
mkchunk "$WORK/other" 1M 2
: >"$(l2_file "$empty")"
start_fs
mkdir -p "$RANK"
for h in "$short" "$flipped"; do
	cp "$WORK/good" "$RANK/$h"
	sync "$RANK/$h"
done
# Names of their own and a digest's: two each, in one directory.
long=$(printf 'x%.0s' {1..300})
mkdir -p "$MNT/files"
for name in "$RANK/$(chunk_hash first)" "$MNT/files/first" "$MNT/files/1$long"; do
	cp "$WORK/good" "$name"
	sync "$name"
done
for name in "$RANK/$(chunk_hash second)" "$MNT/files/second" "$MNT/files/2$long"; do
	cp "$WORK/other" "$name"
	sync "$name"
done
stop_fs
truncate -s 300K "$(l2_file "$short")"
dd if=/dev/zero of="$(l2_file "$flipped")" bs=4k count=1 conv=notrunc status=none
swap() {
	mv "$1" "$WORK/swap"
	mv "$2" "$1"
	mv "$WORK/swap" "$2"
}
swap "$(l2_file "$(chunk_hash first)")" "$(l2_file "$(chunk_hash second)")"
swap "$L2/plain/files/first" "$L2/plain/files/second"
digests=("$L2"/*.kvc)
assert_eq 2 "${#digests[@]}" "digest names in L2"
swap "${digests[0]}" "${digests[1]}"
start_fs

# Each has a CRC of its own that fits, but not the name: misses, counted, and the files stay.
for name in "$RANK/$(chunk_hash first)" "$RANK/$(chunk_hash second)" "$MNT/files/first" "$MNT/files/second" \
	"$MNT/files/1$long" "$MNT/files/2$long"; do
	expect_errno ENOENT open-read "$name"
done
expect_output "" ls "$MNT/files"
(($(status l2.0.id_mismatches) >= 4)) || fail "id_mismatches: $(status l2.0.id_mismatches)"
assert_eq 2 "$(status l2.0.foreign_files)" "digest names that are foreign"
[[ -e $L2/plain/files/first ]] || fail "a swapped file is gone"
cp "$WORK/good" "$MNT/files/first"
cp "$WORK/other" "$RANK/$(chunk_hash second)"
sync "$MNT/files/first" "$RANK/$(chunk_hash second)"

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
assert_same "$WORK/good" "$MNT/files/first"
assert_same "$WORK/other" "$RANK/$(chunk_hash second)"
expect_errno ENOENT open-read "$RANK/$(chunk_hash first)"
stop_fs
