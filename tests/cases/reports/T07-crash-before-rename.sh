#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T7, vLLM RFC #54363 item 3, llm-d #721: a process dies between the write of its temporary file and the rename. The
# block is absent, the temporary file is never in L2 nor on another mount, and it is gone with the mount, unmounted or
# killed. A live writer that is late renames it as if nothing had been.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
base=$MNT/meta-llama_0123456789ab_r0
dir=$base/abc/de_g0
mkdir -p "$dir" "$RANK"
block=$dir/$(chunk_hash block).bin
temporary=${block}_123.tmp
object=$RANK/$(chunk_hash object)

only_late_ones() {
	assert_eq "" "$(find "$MNT" -name '*.tmp*')" "temporary files"
	expect_errno ENOENT stat "$MNT/${block#"$1"/}"
	expect_errno ENOENT stat "$RANK/${object##*/}"
}

for how in stop_fs kill_fs; do
	begin "dying.$how" "late.$how"
	for name in "$block $temporary" "$object $object.tmp"; do
		read -r name staging <<<"$name"
		step "dying.$how" 0 open "$staging" wcx
		step "dying.$how" 0 write 1 4M
		step "dying.$how" 0 close
	done
	kill_client "dying.$how"
	step "late.$how" 0 open "${block%.bin}.$how.bin_7.tmp" wcx
	step "late.$how" 0 write 2 4M
	step "late.$how" 0 close

	control flush /
	expect_errno ENOENT stat "$block"
	expect_errno ENOENT stat "$object"
	expect_errno 0 stat "$temporary"
	assert_eq 0 "$(stat_counter stores)" "stores of temporary files"
	beside only_late_ones "$MNT"

	step "late.$how" 0 rename "${block%.bin}.$how.bin_7.tmp" "${block%.bin}.$how.bin"
	control flush /
	$how
	assert_eq "1" "$(l2_files | grep -c "\.$how\.bin\$")" "blocks of late writers in L2"
	start_fs
	only_late_ones "$MNT"
	expect_data "${block%.bin}.$how.bin" 2 4M
done
assert_eq 2 "$(l2_files | wc -l)" "files in L2: $(l2_files)"
stop_fs
