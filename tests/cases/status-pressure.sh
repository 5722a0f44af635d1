#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Reading .kvcache/status never keeps an object in L1: while three processes do nothing else, a stream of six times
# L1 is written without one create failing.
#
# parallel

. "$(dirname "$0")/lib.sh"

L1_SIZE=64M
start_bare --eviction-trigger-watermark 1
mkdir -p "$RANK"
mkchunk "$WORK/data" 2M

read_status() {
	local -a lines
	while mapfile -t lines <"$MNT/.kvcache/status"; do
		((${#lines[@]} > 5)) || exit 1
		echo >>"$WORK/reads.$1"
	done
}
declare -a readers=()
for i in 1 2 3; do
	read_status "$i" &
	readers+=($!)
	wait_until 10 "reader $i reads" test -s "$WORK/reads.$i"
done

for ((i = 0; i < 200; i++)); do
	path=$RANK/$(printf '%064x' "$i")
	printf '%s\n' "create-$i open $path wct" "write-$i write $i 2M" "close-$i close" "stat-$i stat $path"
done >"$WORK/steps.in"
"$CLIENTS/file-steps" <"$WORK/steps.in" >"$WORK/steps"
assert_eq "" "$(grep -v ' 0$' "$WORK/steps" || true)" "steps that failed"
assert_eq 800 "$(wc -l <"$WORK/steps")" "steps"
# Once more at the pace of a shell.
for ((i = 0; i < 60; i++)); do
	cp "$WORK/data" "$RANK/$(chunk_hash "$i")" || fail "create $i"
done
assert_same "$WORK/data" "$RANK/$(chunk_hash 59)"
for i in "${readers[@]}"; do
	! is_gone "$i" || fail "a reader of status ended"
	kill "$i"
done
echo "reads of status: $(wc -l "$WORK"/reads.* | tail -n 1)"
assert_eq 0 "$(stat_counter mount_creates_no_room)" mount_creates_no_room
assert_le 150 "$(stat_counter l1_evicted_objects)" l1_evicted_objects
assert_le "$(status l1_used_bytes)" "$(status l1_capacity_bytes)" l1_used_bytes
wait
stop_fs
