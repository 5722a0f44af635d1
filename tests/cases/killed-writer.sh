#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A writer killed by a signal publishes nothing: in the middle of a write or after the last one, under the final
# name or a temporary one, now or after a restart; and its memory returns.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

final=$(chunk_hash final)
temporary=$(chunk_hash temporary)
complete=$(chunk_hash complete)
replaced=$(chunk_hash replaced)
term=$(chunk_hash term)
good=$(chunk_hash good)

start_fs
mkdir -p "$RANK"
used=$(status l1_used_bytes)

# feed_dd OUTPUT: a dd that has written 8 MiB of more to come; sets dd_pid.
feed_dd() {
	rm -f "$WORK/feed"
	mkfifo "$WORK/feed"
	dd if="$WORK/feed" of="$1" bs=1M count=32 iflag=fullblock status=none 2>"$WORK/dd.err" &
	dd_pid=$!
	exec 7>"$WORK/feed"
	"$CLIENTS/pattern" "$SEED" 8M >&7
	wait_until 10 "dd has written 8 MiB" dd_has_written $((8 << 20))
}

dd_has_written() {
	awk -v want="$1" '$1 == "wchar:" { exit !($2 >= want) }' "/proc/$dd_pid/io"
}

# kill_dd: by SIGKILL, in the middle.
kill_dd() {
	kill -KILL "$dd_pid"
	exec 7>&-
	wait "$dd_pid" 2>/dev/null || true
}

feed_dd "$RANK/$final"
expect_errno ENOENT stat "$RANK/$final"
kill_dd
expect_errno ENOENT stat "$RANK/$final"
expect_errno ENOENT open-read "$RANK/$final"

feed_dd "$RANK/.$temporary.tmp.1"
expect_errno 0 stat "$RANK/.$temporary.tmp.1"
kill_dd
expect_errno ENOENT stat "$RANK/$temporary"
# Nobody can make the half an object by renaming it.
"$CLIENTS/try-call" rename "$RANK/.$temporary.tmp.1" "$RANK/$temporary"
expect_errno ENOENT stat "$RANK/$temporary"
rm -f "$RANK/.$temporary.tmp.1"

# All of it written, not closed: the daemon cannot know that it was all.
start_client complete "$CLIENTS/hold-writer" "$RANK/$complete" "$SEED" 4M
client_hear complete written
kill -KILL "$CLIENT_PID"
wait "$CLIENT_PID" 2>/dev/null || true
expect_errno ENOENT stat "$RANK/$complete"
start_client term "$CLIENTS/hold-writer" "$RANK/$term" "$SEED" 4M
client_hear term written
kill -TERM "$CLIENT_PID"
wait "$CLIENT_PID" 2>/dev/null || true
expect_errno ENOENT stat "$RANK/$term"

# The committed object beside them stays what it is.
mkchunk "$WORK/old" 3M 1
cp "$WORK/old" "$RANK/$replaced"
used_with_old=$(status l1_used_bytes)
expect_errno 0 open-truncate "$RANK/$replaced"
assert_same "$WORK/old" "$RANK/$replaced"

# One that ends by exit without a close was complete, and is published.
start_client good "$CLIENTS/hold-writer" "$RANK/$good" "$SEED" 4M
client_hear good written
client_say good exit
wait "$CLIENT_PID"
"$CLIENTS/pattern" "$SEED" 4M >"$WORK/good"
wait_until 5 "the object of a writer that exited" eval "[[ -e '$RANK/$good' ]]"
assert_same "$WORK/good" "$RANK/$good"

wait_until 10 "the bytes of killed writers return" status_at_most l1_used_bytes $((used_with_old + (4 << 20)))
rm "$RANK/$good" "$RANK/$replaced"
wait_until 10 "all bytes return" status_at_most l1_used_bytes "$used"

restart_fs
for hash in "$final" "$temporary" "$complete" "$term"; do
	expect_errno ENOENT stat "$RANK/$hash"
done
expect_errno ENOENT stat "$RANK/.$temporary.tmp.1"
assert_eq "" "$(find "$L2" -type f -name '*.data')" "objects in L2"
stop_fs
