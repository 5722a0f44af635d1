#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# O_DIRECT is accepted at open and by F_SETFL, at any alignment, for reading and writing, with passthrough and without,
# and a read is never short before the end of the file.
#
# parallel

. "$(dirname "$0")/lib.sh"

# The last one is longer than any FUSE request.
declare -a sizes=(1 4096 4097 5000001 17000000)

check_in_mode() {
	local mode=$1 bytes name
	start_fs "--io-mode=$mode"
	mkdir -p "$RANK" "$MNT/plain"
	for bytes in "${sizes[@]}"; do
		for name in "$RANK/$(chunk_hash "$bytes" "$mode")" "$MNT/plain/$mode.$bytes"; do
			"$CLIENTS/direct-io" write "$name" "$bytes" "$bytes" >"$WORK/moved"
			expect_data "$name" "$bytes" "$bytes"
			"$CLIENTS/direct-io" read "$name" "$bytes" "$bytes" >"$WORK/moved"
		done
	done
	# A file that is still being written, and what was only in L2.
	begin "$mode"
	step "$mode" 0 open "$RANK/.open.tmp" rwctd
	step "$mode" 0 write 1 1000001
	step "$mode" 0 check 1 1000001
	step "$mode" 0 direct
	step "$mode" 0 pwrite 1 1000001 0
	step "$mode" 0 check 1 1000001
	step "$mode" 0 close
	for name in "$RANK/$(chunk_hash 5000001 "$mode")" "$MNT/plain/$mode.5000001"; do
		evict "$name"
		"$CLIENTS/direct-io" read "$name" 5000001 5000001 >"$WORK/moved"
	done
	stop_fs
}

if [[ $EXPECTED_IO_MODE == passthrough ]]; then
	check_in_mode passthrough
fi
check_in_mode direct
