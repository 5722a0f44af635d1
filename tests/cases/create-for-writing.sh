#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# open and creat for writing give each writer a file of its own; everybody else sees the last committed one, or none.
# O_EXCL on a temporary or plain name that somebody is writing is EEXIST, which is what lock files are made of.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/plain"
begin a b c

# Two writers with O_CREAT|O_EXCL of one hash name: an inode each. The first complete one wins.
hash=$(chunk_hash both)
step a 0 open "$RANK/$hash" wcx
step b 0 open "$RANK/$hash" rwcx
expect_errno ENOENT stat "$RANK/$hash"
expect_output "" ls -A "$RANK"
step a 0 write 1 1M
step b 0 write 2 1M
step b 0 check 2 1M
expect_errno ENOENT open-read "$RANK/$hash"
step b 0 close
expect_data "$RANK/$hash" 2 1M
step a 0 close
expect_data "$RANK/$hash" 2 1M
assert_eq 1 "$(stat_counter mount_writes_duplicate)" mount_writes_duplicate
# It exists now.
expect_errno EEXIST create-exclusive "$RANK/$hash"
expect_errno EEXIST create-exclusive "$RANK/$hash"

# O_TRUNC of a hash that exists: the old one is read until the new one is there, and after: the first one wins.
step a 0 open "$RANK/$hash" wct
expect_data "$RANK/$hash" 2 1M
step a 0 write 3 2M
expect_data "$RANK/$hash" 2 1M
step a 0 close
expect_data "$RANK/$hash" 2 1M

# A temporary name that somebody is writing, or has written.
for dir in "$RANK" "$MNT/plain"; do
	name=$dir/.lock.tmp
	step a 0 open "$name" wcx
	step b EEXIST open "$name" wcx
	step a 0 write 1 10
	step b EEXIST open "$name" wcx
	# Without O_EXCL and O_TRUNC one joins.
	step b 0 open "$name" wc
	step b 0 pwrite 2 10 10
	step b 0 close
	step a 0 close
	step b EEXIST open "$name" wcx
	assert_eq 20 "$(stat -c %s "$name")" "size of what two have written"
	step a 0 unlink "$name"
	step b 0 open "$name" wcx
	step b 0 close
	rm "$name"
done

# A plain name is invisible until its commit, to all but O_EXCL.
name=$MNT/plain/file
step a 0 open "$name" wcx
step a 0 write 1 1M
expect_errno ENOENT stat "$name"
expect_errno ENOENT open-read "$name"
expect_output "" ls -A "$MNT/plain"
step b EEXIST open "$name" wcx
step a 0 close
expect_data "$name" 1 1M
step b EEXIST open "$name" wcx
# Written again: the old one is seen until the new one is complete; the last one wins.
step a 0 open "$name" wct
step a 0 write 2 2M
expect_data "$name" 1 1M
assert_eq $((1 << 20)) "$(stat -c %s "$name")" "size while it is written again"
step b 0 open "$name" wct
step b 0 write 3 3M
step a 0 close
expect_data "$name" 2 2M
step b 0 close
expect_data "$name" 3 3M

# The lock of a program that died is no lock.
start_client dead "$CLIENTS/hold-writer" "$MNT/plain/lock" 1 4K
client_hear dead written
step b EEXIST open "$MNT/plain/lock" wcx
kill -KILL "$CLIENT_PID"
wait "$CLIENT_PID" || true
wait_until 5 "the lock of a dead writer can be had" eval \
	'[[ $("$CLIENTS/try-call" create-exclusive "$MNT/plain/lock") == 0 ]]'

# Of four that make one lock file at the same time, one gets it.
for i in 1 2 3 4 5; do
	declare -a pids=()
	: >"$WORK/answers"
	for j in 1 2 3 4; do
		printf 'lock open %s wcx\nwrite write 1 16\nclose close\n' "$MNT/plain/LOCK.$i" |
			"$CLIENTS/file-steps" | grep '^lock' >>"$WORK/answers" &
		pids+=($!)
	done
	wait "${pids[@]}"
	assert_eq "1" "$(grep -cx 'lock 0' "$WORK/answers")" "holders of lock $i"
	assert_eq "3" "$(grep -cx 'lock EEXIST' "$WORK/answers")" "refused for lock $i"
	rm "$MNT/plain/LOCK.$i"
done
stop_fs
