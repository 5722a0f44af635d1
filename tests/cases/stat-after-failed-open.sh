#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# An open with O_TRUNC of a committed file that fails after it was sent to a file of its own (its path is a link of
# /proc, which the kernel does not look up again; or a directory of it is renamed): the thread's stat still sees the
# committed file, not the one that it did not open.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

check_in_mode() {
	local mode=$1 file size
	start_fs "--io-mode=$mode"
	mkdir -p "$MNT/plain"
	file=$MNT/plain/$mode
	echo hello >"$file"
	hold "$file"
	# In this very process: test is a builtin.
	if : 2>/dev/null >"/dev/fd/${held[0]}"; then
		fail "a committed file was truncated in place"
	fi
	[[ -s $file ]] || fail "$mode: an open that failed has made the file empty"
	size=$(stat -c %s "$file")
	assert_eq 6 "$size" "size for others"
	let_go
	# Who does open it for writing sees it empty, then what he writes.
	begin "$mode"
	step "$mode" 0 open "$file" rwct
	step "$mode" 0 check 1 0
	step "$mode" 0 pwrite 1 10 0
	step "$mode" 0 check 1 10
	step "$mode" 0 close
	expect_data "$file" 1 10
	expect_errno 0 truncate "$file" 4
	assert_eq 4 "$(stat -c %s "$file")" "size after truncate"
	stop_fs
}

for mode in "${IO_MODES[@]}"; do
	check_in_mode "$mode"
done
