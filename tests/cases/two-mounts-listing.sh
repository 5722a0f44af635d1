#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two mounts over one L2: what one stores, replaces, renames and removes in a directory, the other lists once
# --coherence has passed: objects and prefix directories of a rank, plain files of a plain directory. A directory in
# which nothing changed is not listed again.
#
# parallel

. "$(dirname "$0")/lib.sh"

# Longer than --coherence below, and than what the times of a store are believed to tell apart.
grow_old() {
	sleep 0.4
}

start_both --coherence 0.2 --lookup-wait 3000
rank_b=$MNT_B/$MODEL/@01000100
a=$MNT/dir b=$MNT_B/dir
mkdir -p "$RANK" "$rank_b" "$a" "$b"
expect_output "" ls -A "$rank_b"
expect_output "" ls -A "$b"

# ---- A rank ----------------------------------------------------------------------------------

declare -a c=()
for i in 0 1 2; do
	c+=("$(chunk_hash "$i")")
	mkchunk "$RANK/${c[i]}" 64K "$i"
done
mkdir "$RANK/prompt"
control flush /
grow_old
expect_output "$(printf '%s\n' "${c[@]}" prompt | sort)" ls -A "$rank_b"
mkchunk "$WORK/0" 64K 0
assert_same "$WORK/0" "$rank_b/${c[0]}"
rm "$RANK/${c[1]}"
rmdir "$RANK/prompt"
control flush /
grow_old
expect_output "$(printf '%s\n' "${c[0]}" "${c[2]}" | sort)" ls -A "$rank_b"
on_b control flush /
rm "$rank_b/${c[2]}"
on_b control flush /
grow_old
# The one that it has in memory it serves on.
expect_output "$(printf '%s\n' "${c[0]}" "${c[2]}" | sort)" ls -A "$RANK"

# ---- A directory of plain files --------------------------------------------------------------

for i in 1 2 3; do
	mkchunk "$a/$i" "${i}K" "$i"
done
control flush /
grow_old
expect_output $'1\n2\n3' ls -A "$b"
cat "$b/1" "$b/2" >"$WORK/read"
mv "$a/1" "$a/4"
rm "$a/2"
mkchunk "$a/3" 5K 5
control flush /
grow_old
expect_output $'3\n4' ls -A "$b"
assert_eq "5120 1024" "$(stat -c %s "$b/3") $(stat -c %s "$b/4")" "sizes"

# ---- Unchanged -------------------------------------------------------------------------------

ls "$b" "$rank_b" >"$WORK/listed"
grow_old
ls "$b" "$rank_b" >"$WORK/listed"
relists=$(on_b stat_counter relists)
for _ in 1 2 3; do
	grow_old
	ls "$b" "$rank_b" >"$WORK/again"
	assert_same "$WORK/listed" "$WORK/again"
done
assert_eq "$relists" "$(on_b stat_counter relists)" "relists without a change"
stop_both
