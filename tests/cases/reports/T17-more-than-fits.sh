#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T17, LMCache #4664, Mooncake #2475, vLLM #54779, PR 52784, SGLang PR 26670: a tier without bounds fills what it is
# on. Ten times what memory holds is written, and no write fails: older blocks go, memory is never above its capacity,
# the newest blocks and a pinned one are there. With an L2 a small file that nobody has used for long is there too.
#
# parallel

. "$(dirname "$0")/../lib.sh"

L1_SIZE=16M

# block N: its path in "block".
block() {
	printf -v block '%s/%064x' "$RANK" "$1"
}

# write_blocks FIRST LAST: of 1 MiB, by one client.
write_blocks() {
	local i text=''
	for ((i = $1; i <= $2; i++)); do
		block "$i"
		text+="open $block wcx"$'\n'"write $i 1M"$'\n'"close"$'\n'
	done
	steps "$text"
}

# expect_block N
expect_block() {
	block "$1"
	expect_data "$block" "$1" 1M
}

start_bare
mkdir -p "$RANK"
write_blocks 0 0
block 0
setfattr -n user.kvcache.pinned -v 1 "$block"
for ((first = 1; first <= 160; first += 16)); do
	write_blocks "$first" $((first + 15))
	assert_le "$(status l1_used_bytes)" $((16 << 20)) "l1_used_bytes"
	expect_block $((first + 15))
done
expect_block 0
block 1
expect_errno ENOENT open-read "$block"
assert_le $((161 - 16)) "$(stat_counter l1_evicted_objects)" l1_evicted_objects
assert_le "$(find "$RANK" -type f | wc -l)" 16 "blocks that are listed"
stop_fs

start_bare --l2-adapter type=mock,max_size_gb=1
mkdir -p "$RANK" "$MNT/vllm"
echo '{"model": "m"}' >"$MNT/vllm/config.json"
write_blocks 1 40
assert_le "$(status l1_used_bytes)" $((16 << 20)) "l1_used_bytes"
expect_output '{"model": "m"}' cat "$MNT/vllm/config.json"
expect_block 1
expect_block 40
stop_fs
