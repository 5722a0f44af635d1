#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Another mount has changed a chain, and the new one cannot be loaded: L1 is full of what readers hold. Whoever replaces
# the chain then ends the entries of the one before, also those that the kernel still knows.
#
# parallel

. "$(dirname "$0")/lib.sh"

is_absent() {
	! [[ -e $1 ]]
}

L1_SIZE=64M
holders=8
start_both --coherence 0.2 --lookup-wait 2000 --eviction-trigger-watermark 1
rank_b=$MNT_B/$MODEL/@01000100
mkdir -p "$RANK" "$rank_b"
mkdir "$RANK/p"
declare -a c=()
for i in 0 1; do
	c+=("$(chunk_hash "$i" entry)")
	mkchunk "$RANK/p/${c[i]}" 4K "$i"
done
control flush /
expect_output "${c[0]}"$'\n'"${c[1]}" ls -U "$rank_b/p"
stat "$rank_b/p/${c[0]}" "$rank_b/p/${c[1]}" >/dev/null

echo "${c[1]}" >"$RANK/p/.keys"
control flush /
mkchunk "$WORK/data" 8M
for ((i = 0; i < holders; i++)); do
	cp "$WORK/data" "$rank_b/$(chunk_hash "$i")"
	start_client "holder$i" "$CLIENTS/hold-open" "$rank_b/$(chunk_hash "$i")" "$WORK/data"
	client_hear "holder$i" open
done
assert_eq "$(on_b status l1_capacity_bytes)" "$(on_b status l1_used_bytes)" "what L1 is full of"
expect_errno EIO open-read "$rank_b/p/.keys"
assert_le 1 "$(on_b stat_counter mount_chains_load_failed)" mount_chains_load_failed
stat "$rank_b/p/${c[0]}" >/dev/null
: >"$rank_b/p/.keys"
for i in 0 1; do
	wait_until 10 "the kernel forgets entry $i" is_absent "$rank_b/p/${c[i]}"
done
for ((i = 0; i < holders; i++)); do
	client_say "holder$i" go
	client_hear "holder$i" equal
done
wait
stop_both
