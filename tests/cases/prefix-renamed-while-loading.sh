#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A chain is being loaded from an L2 that hangs. Its directory is renamed, and another one gets the name: each has its
# own chain then. What is added to a chain that cannot be loaded is stored once it can.

. "$(dirname "$0")/lib.sh"

# Restarted, so the chains are in L2 only, which hangs until thaw.
freeze() {
	kill_fs
	start_fs --l2-prefetch-load-timeout 1
	stat "$first" "$second" >/dev/null
	kill -STOP "$mirror"
}

thaw() {
	kill -CONT "$mirror"
}

mkdir "$WORK/store"
"$CLIENTS/mirror-fs" "$WORK/store" "$L2" &
mirror=$!
wait_until 10 "the mirror is mounted" mountpoint -q "$L2"
start_fs
mkdir -p "$RANK"
first=$RANK/$(chunk_hash 1)
second=$RANK/$(chunk_hash 2)
mkchunk "$first" 64K 1
mkchunk "$second" 64K 2
mkdir "$RANK/p"
ln "$first" "$RANK/p/"
control flush /

# Nobody asks for it while L2 hangs, nor after that.
freeze
ln "$second" "$RANK/p/"
wait_until 10 "the load fails" counter_is mount_chains_load_failed 2
sleep 1
thaw
wait_until 10 "the chain is stored" counter_is mount_chains_saved 1
control flush /

freeze
stat "$RANK/p" >/dev/null
mv "$RANK/p" "$RANK/q"
mkdir "$RANK/p"
thaw
expect_output "${first##*/}"$'\n'"${second##*/}" cat "$RANK/q/.keys"
expect_output "" cat "$RANK/p/.keys"
stop_fs
umount "$L2"
wait_gone "$mirror" 10
