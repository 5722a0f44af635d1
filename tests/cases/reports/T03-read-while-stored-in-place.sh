#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T3, LMCache #207: a block is read while another process stores it in place, under its final name. It is ENOENT, for
# stat, open and listings, until the close of its writer has returned, and then it is whole in one read.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
dir=$MNT/lmcache
mkdir -p "$RANK" "$dir"
begin writer reader

absent() {
	step reader ENOENT stat "$1"
	step reader ENOENT open "$1" r
	! is_listed "${1%/*}" "${1##*/}" || fail "$1 is listed"
}

for name in "$RANK/$(chunk_hash 0)" "$dir/vllm@meta-llama-Llama-3.1-8B@1@0@$(chunk_hash 0)@bfloat16.pt"; do
	absent "$name"
	step writer 0 open "$name" wct
	absent "$name"
	step writer 0 pwrite 1 4M 0
	absent "$name"
	step writer 0 pwrite 2 28M 4M
	absent "$name"
	step writer 0 close
	step reader 0 stat "$name"
	{
		"$CLIENTS/pattern" 1 4M
		"$CLIENTS/pattern" 2 28M
	} >"$WORK/expected"
	dd if="$name" of="$WORK/read" bs=64M count=1 status=none
	assert_same "$WORK/expected" "$WORK/read"
done
stop_fs
