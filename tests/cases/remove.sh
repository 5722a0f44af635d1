#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# rm in the rank directory deletes an object from L1 and L2 for good; whoever has it open reads on.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

start_fs
mkdir -p "$RANK"
declare -a h=()
for i in 0 1 2 3; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 4M "$i"
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
control flush /
assert_eq 4 "$(find "$L2" -maxdepth 1 -name '*.data' | wc -l)" "objects in L2"

in_l2() {
	[[ -e "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@$1.data" ]]
}

# 0: an open reader. 1: only in L2. 2: not stored yet when it is removed.
start_client holder "$CLIENTS/hold-open" "$RANK/${h[0]}" "$WORK/data.0"
client_hear holder open
evict "$RANK/${h[1]}"
rm "$RANK/${h[0]}" "$RANK/${h[1]}"
fresh=$(chunk_hash fresh)
cp "$WORK/data.2" "$RANK/$fresh"
rm "$RANK/$fresh"
for hash in "${h[0]}" "${h[1]}" "$fresh"; do
	expect_errno ENOENT stat "$RANK/$hash"
	expect_errno ENOENT open-read "$RANK/$hash"
done
assert_eq "$(printf '%s\n' "${h[2]}" "${h[3]}" | sort)" "$(ls "$RANK")" "what is left"
client_say holder go
client_hear holder equal
wait "$CLIENT_PID"
for hash in "${h[0]}" "${h[1]}" "$fresh"; do
	wait_until 10 "$hash leaves L2" eval "! in_l2 $hash"
done

# Written again it is there again.
cp "$WORK/data.1" "$RANK/${h[1]}"
sync "$RANK/${h[1]}"
assert_same "$WORK/data.1" "$RANK/${h[1]}"
in_l2 "${h[1]}" || fail "written again and not in L2"

# Removed just before the unmount: does not come back.
rm "$RANK/${h[2]}"
restart_fs
expect_errno ENOENT stat "$RANK/${h[0]}"
expect_errno ENOENT stat "$RANK/${h[2]}"
assert_eq "$(printf '%s\n' "${h[1]}" "${h[3]}" | sort)" "$(ls "$RANK")" "what is left after a restart"
assert_same "$WORK/data.3" "$RANK/${h[3]}"
stop_fs
