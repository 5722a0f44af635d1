#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two mounts over one L2: a prefix directory that one makes the other finds, with its entries in order. A chain that one
# replaces, or appends to, is the other's as soon as it opens the directory or .keys once --coherence has passed, also
# after restarts; an entry that has left the chain is not found there any more. A directory that one removes is gone.
#
# parallel

. "$(dirname "$0")/lib.sh"

# Longer than --coherence below.
grow_old() {
	sleep 0.3
}

lines() {
	printf '%s\n' "$@"
}

is_absent() {
	! [[ -e $1 ]]
}

start_both --coherence 0.2 --lookup-wait 2000
rank_b=$MNT_B/$MODEL/@01000100
a=$RANK/prompt b=$rank_b/prompt
mkdir -p "$RANK" "$rank_b"
declare -a c=()
for i in 0 1 2 3; do
	c+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 64K "$i"
done

# ---- Made ------------------------------------------------------------------------------------

expect_errno ENOENT stat "$b"
mkdir "$a"
for i in 0 1 2; do
	cp "$WORK/data.$i" "$a/${c[i]}"
done
control flush /
expect_output "$(lines "${c[@]:0:3}" .keys)" ls -UA "$b"
expect_output "$(lines "${c[@]:0:3}")" cat "$b/.keys"
for i in 0 1 2; do
	assert_same "$WORK/data.$i" "$b/${c[i]}"
done

# ---- Replaced, and appended to by the other --------------------------------------------------

lines "${c[2]}" "${c[0]}" >"$a/.keys"
control flush /
grow_old
expect_output "$(lines "${c[2]}" "${c[0]}")" ls -U "$b"
wait_until 10 "the name that left the chain is forgotten" is_absent "$b/${c[1]}"
assert_same "$WORK/data.1" "$rank_b/${c[1]}"
cp "$WORK/data.3" "$b/${c[3]}"
on_b control flush /
grow_old
expect_output "$(lines "${c[2]}" "${c[0]}" "${c[3]}")" ls -U "$a"
assert_same "$WORK/data.3" "$a/${c[3]}"
# Without an opendir; each appends to what the other has made of it.
lines "${c[1]}" >>"$a/.keys"
control flush /
grow_old
expect_output "$(lines "${c[2]}" "${c[0]}" "${c[3]}" "${c[1]}")" cat "$b/.keys"

# ---- Restarted -------------------------------------------------------------------------------

on_b restart_fs --coherence 0.2 --lookup-wait 2000
expect_output "$(lines "${c[2]}" "${c[0]}" "${c[3]}" "${c[1]}")" ls -U "$b"
lines "${c[0]}" "${c[1]}" >"$b/.keys"
on_b control flush /
grow_old
expect_output "$(lines "${c[0]}" "${c[1]}")" ls -U "$a"
restart_fs --coherence 0.2 --lookup-wait 2000
expect_output "$(lines "${c[0]}" "${c[1]}")" ls -U "$a"

# ---- Removed ---------------------------------------------------------------------------------

rm -r "$a"
control flush /
grow_old
expect_errno ENOENT open-directory "$b"
wait_until 10 "the name of the directory is forgotten" is_absent "$b"
assert_same "$WORK/data.0" "$rank_b/${c[0]}"
mkdir "$b"
expect_output "" ls -U "$b"
stop_both
