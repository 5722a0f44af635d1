#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Two mounts over one L2: a chunk that one removes, and the other has in memory, does not return to L2: neither a flush
# of the other, nor sync, nor its unmount stores it. It serves the chunk until it is evicted, which it can be. Written
# anew there, also with another size, it is stored.
#
# parallel

. "$(dirname "$0")/lib.sh"

# Longer than --coherence below, and than what the times of a store are believed to tell apart.
grow_old() {
	sleep 0.4
}

state_of() {
	getfattr --only-values -n user.kvcache.state "$1"
}

# assert_stored HASH...: L2 has these, and nothing else.
assert_stored() {
	local hash
	assert_eq "$(for hash in "$@"; do echo "${MODEL/\//-SEP-}@0x01000100@0@$hash.data"; done | sort)" "$(l2_files)" "L2"
}

require_cmd getfattr
start_both --coherence 0.2 --lookup-wait 3000
rank_b=$MNT_B/$MODEL/@01000100
mkdir -p "$RANK" "$rank_b"
declare -a c=()
for i in 0 1 2 3 4; do
	c+=("$(chunk_hash "$i")")
	mkchunk "$WORK/$i" 64K "$i"
	cp "$WORK/$i" "$RANK/${c[i]}"
done
control flush /
for i in 0 1 2 3 4; do
	assert_same "$WORK/$i" "$rank_b/${c[i]}"
	assert_eq replicated "$(state_of "$rank_b/${c[i]}")" "state of chunk $i"
done

# Removed by A; B has it in memory.
rm "$RANK/${c[0]}" "$RANK/${c[1]}" "$RANK/${c[2]}" "$RANK/${c[3]}"
control flush /
assert_stored "${c[4]}"
grow_old
ls "$rank_b" >"$WORK/listed"
for i in 0 1 2 3; do
	assert_eq removed "$(state_of "$rank_b/${c[i]}")" "state of chunk $i"
	assert_eq l1 "$(getfattr --only-values -n user.kvcache.tiers "$rank_b/${c[i]}")" "tiers of chunk $i"
done
sync "$rank_b/${c[0]}"
on_b control flush "/$MODEL/@01000100/${c[1]}"
on_b control flush /
assert_stored "${c[4]}"
assert_same "$WORK/0" "$rank_b/${c[0]}"
on_b control evict "/$MODEL/@01000100/${c[0]}"
expect_errno ENOENT open-read "$rank_b/${c[0]}"

# Written anew.
cp "$WORK/1" "$rank_b/${c[1]}"
mkchunk "$WORK/other" 100000 9
cp "$WORK/other" "$rank_b/${c[2]}"
sync "$rank_b/${c[1]}" "$rank_b/${c[2]}"
assert_stored "${c[1]}" "${c[2]}" "${c[4]}"
assert_eq replicated "$(state_of "$rank_b/${c[1]}")" "state of what was written anew"
assert_same "$WORK/other" "$rank_b/${c[2]}"
assert_same "$WORK/other" "$RANK/${c[2]}"

# Somebody else writes it: it is in L2 as before.
cp "$WORK/3" "$RANK/${c[3]}"
control flush /
grow_old
ls "$rank_b" >"$WORK/listed"
assert_eq replicated "$(state_of "$rank_b/${c[3]}")" "state of what the other wrote anew"
rm "$RANK/${c[3]}"
control flush /
grow_old
ls "$rank_b" >"$WORK/listed"

# At its end too.
on_b stop_fs
assert_stored "${c[1]}" "${c[2]}" "${c[4]}"
stop_fs
