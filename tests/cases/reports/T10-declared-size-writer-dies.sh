#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T10, vLLM's ExampleConnector with safetensors up to 0.7: the writer declares the final size first, and dies before it
# has written it all. The file is ENOENT, and not one of full length whose end is zeros; nor is the block that it was
# to replace any other than before.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
dir=$MNT/vllm/0123456789abcdef0123456789abcdef
mkdir -p "$dir" "$RANK"
used=$(status l1_used_bytes)
declare -a names=("$dir/model.layers.0.self_attn.attn.safetensors" "$RANK/$(chunk_hash 0)")
for name in "${names[@]}"; do
	client=${name##*/}
	begin "$client"
	step "$client" 0 open "$name" wct
	step "$client" 0 ftruncate 8M
	for offset in 0 1 2; do
		step "$client" 0 pwrite "$offset" 1M "${offset}M"
	done
	kill_client "$client"
	expect_errno ENOENT stat "$name"
	expect_errno ENOENT open-read "$name"
done
expect_output "" ls -A "$dir"
wait_until 10 "the memory is free again" status_is l1_used_bytes "$used"

# The block that is there stays.
"$CLIENTS/pattern" 9 8M >"${names[0]}"
begin again
step again 0 open "${names[0]}" wct
step again 0 ftruncate 8M
step again 0 pwrite 1 3M 0
kill_client again
expect_data "${names[0]}" 9 8M
restart_fs
expect_data "${names[0]}" 9 8M
expect_errno ENOENT stat "${names[1]}"
stop_fs
