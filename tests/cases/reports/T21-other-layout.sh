#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T21, silent reuse of another layout (vLLM #55904; blackwell-llm-docker PR 25): the same hash or file name in two
# directories, with other sizes and bytes, are two objects: read, evicted, restarted and removed each on its own.
#
# parallel

. "$(dirname "$0")/../lib.sh"

hash=$(chunk_hash 0)
# vLLM's and fast_file's directories; ranks, groups, salts and models of ours.
declare -a layouts=(llama_aaaa_r0 llama_bbbb_r0 namespace-x "$MODEL/@01000100" "$MODEL/@01000101"
	"$MODEL/@01000100@1" "$MODEL/@01000100@0@tenant-a" meta-llama-Llama-3.1-8B/@01000100)

path_of() {
	case ${layouts[$1]} in
	*@*) echo "$MNT/${layouts[$1]}/$hash" ;;
	*) echo "$MNT/${layouts[$1]}/$hash.bin" ;;
	esac
}

size_of() {
	echo $((65536 + $1 * 4097))
}

# expect_layouts FIRST: those from FIRST on are what was written, those before it are absent.
expect_layouts() {
	local i
	for i in "${!layouts[@]}"; do
		if ((i < $1)); then
			expect_errno ENOENT stat "$(path_of "$i")"
		else
			assert_same "$WORK/data.$i" "$(path_of "$i")"
		fi
	done
}

start_fs
for i in "${!layouts[@]}"; do
	mkdir -p "$MNT/${layouts[i]}"
	# What the others have stored is no hit here.
	expect_errno ENOENT stat "$(path_of "$i")"
	expect_errno ENOENT open-read "$(path_of "$i")"
	"$CLIENTS/pattern" "$i" "$(size_of "$i")" >"$WORK/data.$i"
	cp "$WORK/data.$i" "$(path_of "$i")"
done
expect_layouts 0
assert_eq 0 "$(stat_counter mount_writes_duplicate)" "blocks dropped as already there"
control flush /
control evict /
expect_layouts 0
assert_eq "${#layouts[@]}" "$(stat_counter loads_completed)" "objects loaded"
restart_fs
for ((i = 0; i < ${#layouts[@]}; i += 3)); do
	expect_layouts "$i"
	for ((j = i; j < i + 3 && j < ${#layouts[@]}; j++)); do
		rm "$(path_of "$j")"
	done
done
expect_layouts "${#layouts[@]}"
stop_fs
