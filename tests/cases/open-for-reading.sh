#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# open for reading: what is in L1 is there at once, what is only in L2 is loaded once and is there whole, what is
# nowhere or got lost on the way is ENOENT and never EIO. The read lock lasts to the last close.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

# l2_file HASH
l2_file() {
	echo "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data"
}

start_fs
mkdir -p "$RANK"
declare -a h=()
for i in 0 1 2 3 4; do
	h+=("$(chunk_hash "$i")")
	"$CLIENTS/pattern" "$i" 3M >"$RANK/${h[i]}"
done

# In L1: no load.
begin a b
for i in 0 1 2 3 4; do
	expect_data "$RANK/${h[i]}" "$i" 3M
done
assert_eq 0 "$(stat_counter loads)" "loads of what is resident"
wait_until 10 "no read lock at rest" status_is l1_read_locks 0

# One lock an open, whatever happens to its descriptor, and the object stays for so long.
step a 0 open "$RANK/${h[0]}" r
step b 0 open "$RANK/${h[0]}" r
assert_eq 2 "$(status l1_read_locks)" "read locks of two opens"
step a 0 dup
step a 0 close
assert_eq 2 "$(status l1_read_locks)" "read locks of two opens, one of them by a duplicate"
control flush /
expect_errno write:EBUSY write "$MNT/.kvcache/evict" "$RANK/${h[0]}"$'\n'
step a 0 drop
wait_until 10 "one read lock" status_is l1_read_locks 1
step b 0 check 0 3M
step b 0 close
wait_until 10 "no read lock" status_is l1_read_locks 0

# Only in L2: loaded once, however many want it at the same time.
for i in 0 1 2 3 4; do
	evict "$RANK/${h[i]}"
done
assert_eq 0 "$(status l1_objects)" "objects in L1 after evict"
expect_errno 0 stat "$RANK/${h[1]}"
assert_eq 0 "$(stat_counter loads)" "loads by stat"
"$CLIENTS/pattern" 1 3M >"$WORK/data.1"
declare -a pids=()
for i in 0 1 2 3 4 5; do
	cmp "$WORK/data.1" "$RANK/${h[1]}" &
	pids+=($!)
done
for pid in "${pids[@]}"; do
	wait "$pid" || fail "one of six readers of an object that is only in L2"
done
assert_eq 1 "$(stat_counter loads_completed)" "loads of six opens"
# Attributes are cached for a second.
wait_until 3 "resident after a load" resident "$RANK/${h[1]}"

# An open and close to see whether it exists costs a load, and is counted; once, and not when somebody has read it.
unread_is() {
	wait_until 10 "no read lock" status_is l1_read_locks 0
	assert_eq "$1" "$(stat_counter mount_loads_unread)" "mount_loads_unread after $2"
}
unread_is 0 "opens that read"
evict "$RANK/${h[1]}"
expect_errno 0 open-read "$RANK/${h[1]}"
unread_is 1 "an open that reads nothing"
expect_errno 0 open-read "$RANK/${h[1]}"
unread_is 1 "an open of what is resident"
for flags in r rn; do
	for how in check map-check; do
		evict "$RANK/${h[1]}"
		step a 0 open "$RANK/${h[1]}" $flags
		step a 0 $how 1 3M
		step a 0 close
		unread_is 1 "$how with $flags"
	done
done

# Nowhere.
absent=$(chunk_hash absent)
expect_errno ENOENT open-read "$RANK/$absent"
expect_errno ENOENT open-readwrite "$RANK/$absent"
expect_errno ENOENT open-read "$MNT/$MODEL/@02000200/$absent"

# Lost on the way: gone from L2, cut short, or changed behind our back. A miss, which an engine computes anew.
rm "$(l2_file "${h[2]}")"
truncate -s 1M "$(l2_file "${h[3]}")"
printf x | dd of="$(l2_file "${h[4]}")" bs=1 seek=1000000 conv=notrunc status=none
for i in 2 3 4; do
	expect_errno ENOENT open-read "$RANK/${h[i]}"
	expect_errno ENOENT open-read "$RANK/${h[i]}"
done
assert_le 3 "$(stat_counter mount_opens_missed)" mount_opens_missed
wait_until 10 "no read lock after misses" status_is l1_read_locks 0
# And writes again.
for i in 2 3 4; do
	"$CLIENTS/pattern" 9 2M >"$RANK/${h[i]}"
	expect_data "$RANK/${h[i]}" 9 2M
done
stop_fs
