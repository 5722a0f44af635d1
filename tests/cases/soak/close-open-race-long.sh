#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The close-then-open race of cases/close-open-race.sh 200,000 times, over an L2 and in direct mode as well.
#
# timeout: 1800

. "$(dirname "$0")/../lib.sh"

L1_SIZE=1G
start_bare
mkdir -p "$RANK"
"$CLIENTS/close-open-race" "$RANK" 200000 2000
stop_fs
start_fs
mkdir -p "$RANK"
"$CLIENTS/close-open-race" "$RANK" 50000 200
stop_fs
start_bare --io-mode=direct
mkdir -p "$RANK"
"$CLIENTS/close-open-race" "$RANK" 50000 200
wait_until 10 "no object is left" status_is l1_objects 0
stop_fs
