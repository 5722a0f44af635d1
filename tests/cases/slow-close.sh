#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A close that is slowed because half of L1 is not stored yet is a close like any other: whoever opens the name after
# it finds it, whole and equal.
#
# parallel

. "$(dirname "$0")/lib.sh"

L1_SIZE=64M
other=$MNT/$MODEL/@02000200

# Two writers at once fill half of L1 after 16 objects of 2 MB; from then on a store, 100 ms, frees one close.
start_bare --l2-adapter type=mock,max_size_gb=1,mock_bandwidth_gb=0.02
mkdir -p "$RANK" "$other"
"$CLIENTS/close-open-race" -k -s 2M "$other" 24 0 >"$WORK/other.out" &
pid=$!
"$CLIENTS/close-open-race" -k -s 2M "$RANK" 24 0 >"$WORK/race.out"
wait "$pid"
echo "longest closes: $(tail -n 1 "$WORK/race.out") and $(tail -n 1 "$WORK/other.out") ms"
assert_le 10 "$(stat_counter mount_closes_slowed)" mount_closes_slowed
assert_eq 48 "$(stat_counter mount_writes_published)" mount_writes_published
assert_eq 0 "$(stat_counter mount_lookups_waited_commit_in_vain)" mount_lookups_waited_commit_in_vain
stop_fs

# A store that takes longer than a close may: 1 s, then the close ends all the same.
start_bare --l2-adapter type=mock,max_size_gb=1,latency_ms=60000 --drain-timeout 1
mkdir -p "$RANK"
"$CLIENTS/close-open-race" -k -s 2M "$RANK" 20 0 >"$WORK/race.out"
longest=$(tail -n 1 "$WORK/race.out")
echo "longest close: $longest ms"
assert_le 900 "$longest" "milliseconds of the longest close"
assert_le "$longest" 5000 "milliseconds of the longest close"
assert_le 2 "$(stat_counter mount_closes_slowed)" mount_closes_slowed

# Who waits for a flush can be killed, and that is counted.
(echo / >"$MNT/.kvcache/flush") 2>"$WORK/interrupted" &
flusher=$!
wait_until 10 "the flush waits" status_is requests_waiting 1
assert_eq 0 "$(stat_counter mount_interrupted)" mount_interrupted
kill -KILL "$flusher"
wait_gone "$flusher" 10
assert_eq 1 "$(stat_counter mount_interrupted)" mount_interrupted
kill_fs
