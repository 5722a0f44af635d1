#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# What a new file will need is guessed from the last one of its directory, and no file is refused for the sake of a
# guess: many small ones are made beside each other where the last one was large, and a large one finds the room that
# others only reserved.
#
# parallel

. "$(dirname "$0")/lib.sh"

# Guesses may have half of it: four of 8 MB.
L1_SIZE=64M
start_fs --max-object-size 16M --eviction-trigger-watermark 1
mkdir -p "$MNT/small" "$MNT/large" "$MNT/temporary"
mkchunk "$WORK/data" 8M
for dir in small large temporary; do
	cp "$WORK/data" "$MNT/$dir/first"
	rm "$MNT/$dir/first"
done
control flush /

declare -a small=(c0 c1 c2 c3 c4 c5 c6)
begin "${small[@]}"
for i in "${!small[@]}"; do
	step "c$i" 0 open "$MNT/small/$i" wct
	step "c$i" 0 write "$i" 4K
done
for i in "${!small[@]}"; do
	step "c$i" 0 close
	expect_data "$MNT/small/$i" "$i" 4K
done
assert_eq $((${#small[@]} - 4)) "$(stat_counter mount_creates_unreserved)" "files that nothing was guessed for"

# Temporary files that are closed and not renamed yet keep no guess from others, and stay what they are.
for i in "${!small[@]}"; do
	printf '%s\n' "open $MNT/temporary/$i.tmp wct" "write $i 5001" close "utimens $MNT/temporary/$i.tmp 1000000001"
done >"$WORK/temporary"
steps "$(cat "$WORK/temporary")"
assert_eq $((${#small[@]} - 4)) "$(stat_counter mount_creates_unreserved)" "files that nothing was guessed for"
expect_output 1000000001 stat -c %Y "$MNT/temporary/0.tmp"
mv "$MNT/temporary/0.tmp" "$MNT/temporary/0"
expect_data "$MNT/temporary/0" 0 5001
expect_output 1000000001 stat -c %Y "$MNT/temporary/0"
control flush /
assert_eq 0 "$(stat_counter l1_reserve_failed_no_memory)" "reservations that failed"

# Four that write nothing have half of L1, and 48 MB are written beside them.
for i in 0 1 2 3; do
	step "c$i" 0 open "$MNT/large/idle.$i" rwct
	step "c$i" 0 write "$i" 1M
done
for i in 4 5 6; do
	step "c$i" 0 open "$MNT/large/$i" wct
	step "c$i" 0 write "$i" 16M
done
assert_le 1 "$(stat_counter l1_reserve_failed_no_memory)" "reservations that failed"
# What they have written is theirs, and counted.
assert_le $((52 << 20)) "$(status l1_used_bytes)" l1_used_bytes
assert_le "$(status l1_used_bytes)" "$(status l1_capacity_bytes)" l1_used_bytes
for i in 4 5 6; do
	step "c$i" 0 close
	expect_data "$MNT/large/$i" "$i" 16M
done
control flush /
# And those may still write what they have reserved.
for i in 0 1 2 3; do
	step "c$i" 0 pwrite "$i" 8M 0
	step "c$i" 0 check "$i" 8M
done
for i in 0 1 2 3; do
	step "c$i" 0 close
	expect_data "$MNT/large/idle.$i" "$i" 8M
done
control flush /
for i in 4 5 6; do
	expect_data "$MNT/large/$i" "$i" 16M
done
assert_eq 0 "$(stat_counter mount_creates_no_room)" mount_creates_no_room
rm -r "$MNT"/{small,large,temporary}
wait_until 10 "all of L1 is free again" status_is l1_used_bytes 0
stop_fs
