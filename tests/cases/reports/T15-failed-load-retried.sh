#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T15, vLLM #49176, PR 49328: a lookup says that a block is there, then it is removed elsewhere, and the load fails for
# ever because the lookup never learns of it. The open is ENOENT, and from then on the lookup is too; so is it when
# L2 has lost the block, or another mount has removed it.
#
# parallel

. "$(dirname "$0")/../lib.sh"

start_fs
mkdir -p "$RANK" "$MNT/vllm"
begin scheduler evictor

# expect_miss NAME: a load that fails once, and is never tried again.
expect_miss() {
	step scheduler ENOENT open "$1" r
	step scheduler ENOENT stat "$1"
	# vLLM removes what it could not load.
	step scheduler ENOENT unlink "$1"
	! is_listed "${1%/*}" "${1##*/}" || fail "$1 is listed"
}

# l2_file PATH
l2_file() {
	local name=${1##*/}
	if [[ $1 == "$MNT/vllm/"* ]]; then
		echo "$L2/plain/vllm/$name"
	else
		echo "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$name.data"
	fi
}

remove() {
	rm "$MNT/${1#"$2"/}"
}

for name in "$RANK/$(chunk_hash 0)" "$MNT/vllm/$(chunk_hash 0).bin"; do
	# Another process removes it, in L1 or in L2.
	for where in l1 l2; do
		"$CLIENTS/pattern" 1 1M >"$name"
		control flush "$name"
		[[ $where == l1 ]] || evict "$name"
		step scheduler 0 stat "$name"
		step evictor 0 unlink "$name"
		expect_miss "$name"
	done

	# It is lost in L2.
	"$CLIENTS/pattern" 2 1M >"$name"
	evict "$name"
	step scheduler 0 stat "$name"
	rm "$(l2_file "$name")"
	expect_miss "$name"

	# Another mount removes it.
	"$CLIENTS/pattern" 3 1M >"$name"
	evict "$name"
	step scheduler 0 stat "$name"
	beside remove "$name" "$MNT"
	expect_miss "$name"

	# What is stored then is found.
	"$CLIENTS/pattern" 4 1M >"$name"
	step scheduler 0 stat "$name"
	expect_data "$name" 4 1M
done
stop_fs
