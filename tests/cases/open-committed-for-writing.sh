#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A committed object that is opened for writing: with O_TRUNC a new file; else its bytes are there to be read, and the
# first write makes a private copy of a plain file and is EROFS for a hash. Others see the committed one until then.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

check_in_mode() {
	local mode=$1 hash file how
	start_fs "--io-mode=$mode"
	mkdir -p "$RANK" "$MNT/plain"
	hash=$RANK/$(chunk_hash "$mode")
	file=$MNT/plain/$mode
	begin "$mode.a" "$mode.b" "$mode.r"
	"$CLIENTS/pattern" 1 1M >"$hash"
	"$CLIENTS/pattern" 1 1M >"$file"
	step "$mode.r" 0 open "$hash" r

	# A hash: read through any descriptor, changed by none.
	for how in rw w rwc wc rwa; do
		step "$mode.a" 0 open "$hash" "$how"
		[[ $how != *r* ]] || step "$mode.a" 0 check 1 1M
		step "$mode.a" EROFS pwrite 2 10 0
		step "$mode.a" EROFS ftruncate 5
		[[ $how != *r* ]] || step "$mode.a" 0 map-check 1 1M
		step "$mode.a" 0 close
		expect_data "$hash" 1 1M
	done
	expect_errno EROFS truncate "$hash" 5
	expect_errno EROFS truncate "$hash" 0
	expect_errno 0 truncate "$hash" 1M # the size that it has: nothing changes
	expect_data "$hash" 1 1M
	step "$mode.r" 0 check 1 1M
	step "$mode.r" 0 close

	# A plain file: the first write copies, the close commits.
	step "$mode.r" 0 open "$file" r
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 check 1 1M
	step "$mode.a" 0 pwrite 2 64K 64K
	expect_data "$file" 1 1M
	step "$mode.b" 0 open "$file" rw
	step "$mode.b" 0 check 1 1M
	step "$mode.a" 0 close
	{
		"$CLIENTS/pattern" 1 64K
		"$CLIENTS/pattern" 2 64K
		"$CLIENTS/pattern" 1 1M | tail -c +131073
	} >"$WORK/changed"
	assert_same "$WORK/changed" "$file"
	step "$mode.b" 0 close
	assert_same "$WORK/changed" "$file"
	step "$mode.r" 0 check 1 1M
	step "$mode.r" 0 close

	# Opened and closed without a write: as it was.
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 close
	step "$mode.a" 0 open "$file" w
	step "$mode.a" 0 close
	assert_same "$WORK/changed" "$file"

	# O_APPEND, O_TRUNC, truncate, and a write past the end.
	step "$mode.a" 0 open "$file" wa
	step "$mode.a" 0 write 3 1000
	step "$mode.a" 0 write 4 1000
	step "$mode.a" 0 close
	{
		cat "$WORK/changed"
		"$CLIENTS/pattern" 3 1000
		"$CLIENTS/pattern" 4 1000
	} >"$WORK/appended"
	assert_same "$WORK/appended" "$file"
	expect_errno 0 truncate "$file" 1M
	assert_same "$WORK/changed" "$file"
	expect_errno 0 truncate "$file" 1100000
	{
		cat "$WORK/changed"
		head -c $((1100000 - (1 << 20))) /dev/zero
	} >"$WORK/grown"
	assert_same "$WORK/grown" "$file"
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 ftruncate 64K
	step "$mode.a" 0 check 1 64K
	step "$mode.a" 0 close
	expect_data "$file" 1 64K
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 pwrite 5 1K 127K
	step "$mode.a" 0 close
	assert_eq $((128 << 10)) "$(stat -c %s "$file")" "size after a write past the end"
	step "$mode.a" 0 open "$file" rwt
	step "$mode.a" size:0 check 1 64K
	expect_errno 0 stat "$file"
	assert_eq $((128 << 10)) "$(stat -c %s "$file")" "size while it is written again"
	step "$mode.a" 0 write 6 2M
	step "$mode.a" 0 check 6 2M
	step "$mode.a" 0 close
	expect_data "$file" 6 2M
	expect_errno 0 truncate "$file" 0
	assert_eq 0 "$(stat -c %s "$file")" "size after truncate to 0"
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 map-write 7 300K
	step "$mode.a" 0 close
	expect_data "$file" 7 300K

	# Only in L2: the same, after a load.
	evict "$file" "$hash"
	step "$mode.a" 0 open "$hash" rw
	step "$mode.a" 0 check 1 1M
	step "$mode.a" 0 close
	evict "$file"
	step "$mode.a" 0 open "$file" rw
	step "$mode.a" 0 check 7 300K
	step "$mode.a" 0 pwrite 8 300K 0
	step "$mode.a" 0 close
	expect_data "$file" 8 300K
	evict "$file"
	step "$mode.a" 0 open "$file" wa
	step "$mode.a" 0 write 8 1
	step "$mode.a" 0 close
	assert_eq 307201 "$(stat -c %s "$file")" "size after an append to what was in L2"

	# A writer that is killed changes nothing.
	step "$mode.b" 0 open "$file" rw
	step "$mode.b" 0 pwrite 9 300K 0
	kill -KILL "${step_pids[$mode.b]}"
	wait "${step_pids[$mode.b]}" || true
	sleep 0.1
	assert_eq 307201 "$(stat -c %s "$file")" "size after a killed writer"
	head -c 300K "$file" >"$WORK/head"
	expect_data "$WORK/head" 8 300K
	wait_until 10 "no read lock is left" status_is l1_read_locks 0
	stop_fs
}

check_in_mode auto
check_in_mode direct
