#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# --drain-timeout ends a drain that gets nowhere; the exit status and the last words say that something was not stored.
#
# parallel

. "$(dirname "$0")/lib.sh"

# ---- --drain-timeout -------------------------------------------------------------------------

"$KVCACHEFS" -f --l1-size 64M --state-dir "$STATE" --drain-timeout 1 \
	--l2-adapter type=mock,max_size_gb=1,latency_ms=5000 "$MNT" >>"$DAEMON_LOG" 2>&1 &
DAEMON_PID=$!
echo "$DAEMON_PID" >>"$WORK/daemons"
wait_until 20 "the mount" is_mounted
wait_until 20 "it answers" test -e "$MNT/.kvcache/status"
[[ -e $STATE/lock ]] || fail "no lock in --state-dir"
mkdir -p "$RANK"
mkchunk "$RANK/$(chunk_hash 0)" 64K
begin=$SECONDS
kill -TERM "$DAEMON_PID"
rc=0
wait "$DAEMON_PID" || rc=$?
assert_eq 1 "$rc" "exit status of a drain that was cut short"
# The adapter has its task for 5 s; the end waits for that, the drain does not.
grep -qF "$MNT: objects not stored within --drain-timeout: 1; l2.0 (mock) ok" "$DAEMON_LOG" || fail "last words: $(tail -n 3 "$DAEMON_LOG")"
echo "ended after $((SECONDS - begin)) s"
! is_mounted || fail "still mounted"
