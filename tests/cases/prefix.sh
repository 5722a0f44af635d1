#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A chain written into P/.keys survives a restart: ls -U P shows exactly the chain, in order; what the open
# directory loads stays read-locked until it is closed.
#
# quick

. "$(dirname "$0")/lib.sh"

n=8
prefix=$RANK/system-prompt-v3

declare -a chain=()
start_fs
mkdir -p "$RANK"
for ((i = 0; i < n; i++)); do
	chain+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 32M "$i"
done
# Written in another order than the chain's.
for ((i = n - 1; i >= 0; i--)); do
	cp "$WORK/data.$i" "$RANK/${chain[i]}"
done
mkdir "$prefix"
printf '%s\n' "${chain[@]}" >"$prefix/.keys"
expect_output "$(printf '%s\n' "${chain[@]}")" ls -U "$prefix"
expect_output "$(printf '%s\n' "${chain[@]}")" cat "$prefix/.keys"
assert_eq 2 "$(stat -c %h "$RANK/${chain[0]}")" "links of a chunk that one prefix refers to"

restart_fs
assert_eq 0 "$(status l1_objects)" "objects in L1 after the start"

# While a process holds the directory open, what was loaded stays locked.
exec 9<"$prefix"
wait_until 20 "8 read locks while P is open" status_is l1_read_locks "$n"
exec 9<&-
wait_until 10 "no read lock after P was closed" status_is l1_read_locks 0

expect_output "$(printf '%s\n' "${chain[@]}")" ls -U "$prefix"
expect_output "$(printf '%s\n' "${chain[@]}" .keys)" ls -UA "$prefix"
expect_output "$(printf '%s\n' "${chain[@]}")" cat "$prefix/.keys"
for ((i = 0; i < n; i++)); do
	assert_eq "$(sha "$WORK/data.$i")" "$(sha "$prefix/${chain[i]}")" "sha256 of chunk $i in P"
	assert_eq "$(sha "$WORK/data.$i")" "$(sha "$RANK/${chain[i]}")" "sha256 of chunk $i in the rank directory"
done
wait_until 10 "no read lock at rest" status_is l1_read_locks 0
# Each chunk came from L2 once, though it was wanted by the open directory and by its readers; the chain is counted apart.
assert_eq "$n" "$(stat_counter loads_completed)" loads_completed
assert_eq 1 "$(stat_counter chain_loads)" chain_loads
stop_fs
