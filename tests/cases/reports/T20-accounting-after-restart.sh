#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T20, LMCache #4564, PR 4571, #1454, #2273: after a restart, and after a kill, the tier has forgotten what it holds. The
# same names with the same sizes and times are listed, the usage is the same, and what is removed then is taken off it.
#
# parallel

. "$(dirname "$0")/../lib.sh"

L1_SIZE=64M
start_fs
mkdir -p "$RANK" "$MNT/lmcache/sub"
for i in {0..23}; do
	"$CLIENTS/pattern" "$i" $(((1 + i) * 100000)) >"$RANK/$(chunk_hash "$i")"
	"$CLIENTS/pattern" "$i" $(((1 + i) * 70000)) >"$MNT/lmcache/sub/$i.data"
done
bytes=$((170000 * 24 * 25 / 2))
control flush /

listing() {
	find "$RANK" "$MNT/lmcache" -type f -printf '%P %s %T@\n' | sort
}

# in_use: by statfs, in blocks of 4096 bytes.
in_use() {
	stat -f -c '%b %f' "$MNT" | awk '{ print $1 - $2 }'
}

# expect_usage BYTES
expect_usage() {
	wait_until 10 "bytes in L2" status_is l2.0.used_bytes "$1"
	# L1 is free on demand. The two numbers of statfs are rounded.
	used=$(in_use)
	assert_le $(($1 / 4096)) "$used" "blocks in use"
	assert_le "$used" $(($1 / 4096 + 1)) "blocks in use"
}

before=$(listing)
assert_eq 48 "$(wc -l <<<"$before")" "files listed"
expect_usage "$bytes"
for how in stop_fs kill_fs; do
	$how
	start_fs
	expect_usage "$bytes"
	assert_eq "$before" "$(listing)" "listing after $how"
done
expect_data "$RANK/$(chunk_hash 23)" 23 2400000
rm "$RANK/$(chunk_hash 23)" "$MNT/lmcache/sub/23.data"
expect_usage $((bytes - 170000 * 24))
restart_fs
expect_usage $((bytes - 170000 * 24))
assert_eq 46 "$(listing | wc -l)" "files listed"
stop_fs
