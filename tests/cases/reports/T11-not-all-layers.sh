#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T11, vLLM's ExampleConnector, which takes the directory of a prompt as a hit: the directory is there with the first
# layer, as on any file system, also on another mount; a layer that nobody has finished is ENOENT at open, and no part
# of it is ever read.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
prompt=0123456789abcdef0123456789abcdef
mkdir -p "$MNT/vllm/$prompt"
begin writer

# layer N
layer() {
	echo "$MNT/vllm/$prompt/model.layers.$1.self_attn.attn.safetensors"
}

# only_layer_0 LAYER
only_layer_0() {
	expect_errno 0 stat "$MNT/vllm/$prompt"
	expect_data "$(layer 0)" 10 1M
	expect_errno ENOENT open-read "$(layer 1)"
	expect_errno ENOENT open-read "$(layer 5)"
	expect_output "$(basename "$(layer 0)")" ls -A "$MNT/vllm/$prompt"
}

expect_errno 0 stat "$MNT/vllm/$prompt"
expect_errno ENOENT open-read "$(layer 0)"
step writer 0 open "$(layer 0)" wct
step writer 0 write 10 1M
expect_errno ENOENT open-read "$(layer 0)"
step writer 0 close
step writer 0 open "$(layer 1)" wct
step writer 0 write 11 512K
only_layer_0
control flush /
beside only_layer_0

step writer 0 pwrite 11 1M 0
step writer 0 close
expect_data "$(layer 1)" 11 1M
expect_errno ENOENT open-read "$(layer 5)"
restart_fs
expect_data "$(layer 0)" 10 1M
expect_data "$(layer 1)" 11 1M
expect_errno ENOENT open-read "$(layer 5)"
stop_fs
