#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# 10,000 times a process writes and closes an object and another opens it at once: it is always there, whole,
# and equal.
#
# timeout: 180

. "$(dirname "$0")/lib.sh"

L1_SIZE=512M
start_bare
mkdir -p "$RANK"
"$CLIENTS/close-open-race" "$RANK" 10000 200
wait_until 10 "no object is left" status_is l1_objects 0
wait_until 10 "no byte is left" status_is l1_used_bytes 0
assert_eq 0 "$(status l1_read_locks)" l1_read_locks
stop_fs
