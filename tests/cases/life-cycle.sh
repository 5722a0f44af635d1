#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Starting, stopping and starting again: the command returns when the mount answers; SIGTERM and an unmount drain to
# L2; what is wrong with a command line is said in one clear line.
#
# parallel

. "$(dirname "$0")/lib.sh"

declare -a h=()
for i in 0 1 2 3 4 5 6 7; do
	h+=("$(chunk_hash "$i")")
	mkchunk "$WORK/data.$i" 16M "$i"
done

# In the background: answers at once, and keeps none of its caller's descriptors (else this would hang).
output=$(timeout 20 "$KVCACHEFS" --l1-size 512M --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2" "$MNT") || fail "start"
assert_eq "" "$output" "output of a start"
expect_errno 0 stat "$MNT/.kvcache/status"
DAEMON_PID=$(find_daemon)
echo "$DAEMON_PID" >>"$WORK/daemons"
assert_eq / "$(readlink "/proc/$DAEMON_PID/cwd")" "working directory of the daemon"

# A live mount is never stacked on.
if "$KVCACHEFS" --l1-size 512M --state-dir "$STATE" "$MNT" >"$WORK/out" 2>&1; then
	fail "a second start on a live mount succeeded"
fi
cat "$WORK/out"
assert_eq 1 "$(grep -c " $MNT " /proc/self/mountinfo)" "mounts on the mount point"

# An unmount drains; a start that follows at once sees everything.
mkdir -p "$RANK"
for i in 0 1 2 3; do
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
old=$DAEMON_PID
umount "$MNT"
start_fs
for i in 0 1 2 3; do
	assert_same "$WORK/data.$i" "$RANK/${h[i]}"
done
wait_gone "$old" 20

# SIGTERM drains, unmounts, and ends with 0.
stop_fs
"$KVCACHEFS" -f --l1-size 512M --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2" "$MNT" >>"$DAEMON_LOG" 2>&1 &
DAEMON_PID=$!
wait_until 20 "kvcachefs -f mounts" is_mounted
for i in 4 5; do
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
kill -TERM "$DAEMON_PID"
rc=0
wait "$DAEMON_PID" || rc=$?
assert_eq 0 "$rc" "exit code after SIGTERM"
! is_mounted || fail "still mounted after SIGTERM"
for i in 4 5; do
	assert_same "$WORK/data.$i" "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@${h[i]}.data"
done

# The same with SIGINT (which a shell's background jobs ignore unless told), and with a client that keeps an object
# open.
env --default-signal=INT "$KVCACHEFS" -f --l1-size 512M --state-dir "$STATE" --l2-adapter "type=fs,base_path=$L2" "$MNT" >>"$DAEMON_LOG" 2>&1 &
DAEMON_PID=$!
wait_until 20 "kvcachefs -f mounts" is_mounted
for i in 6 7; do
	cp "$WORK/data.$i" "$RANK/${h[i]}"
done
start_client holder "$CLIENTS/hold-open" "$RANK/${h[6]}" "$WORK/data.6"
client_hear holder open
holder=$CLIENT_PID
kill -INT "$DAEMON_PID"
rc=0
wait "$DAEMON_PID" || rc=$?
assert_eq 0 "$rc" "exit code after SIGINT"
! is_mounted || fail "still mounted after SIGINT"
for i in 6 7; do
	assert_same "$WORK/data.$i" "$L2/meta-llama-SEP-Llama-3.1-8B@0x01000100@0@${h[i]}.data"
done
expect_reads_on holder "$holder"
start_fs
for i in 0 1 2 3 4 5 6 7; do
	assert_same "$WORK/data.$i" "$RANK/${h[i]}"
done
stop_fs

# What is wrong is said, with the word that is wrong, and leaves no mount.
# refused WORD OPTION...
refused() {
	local word=$1 rc=0
	shift
	timeout 20 "$KVCACHEFS" --state-dir "$STATE" "$@" >"$WORK/out" 2>&1 || rc=$?
	cat "$WORK/out"
	((rc != 0 && rc < 124)) || fail "$*: exit $rc"
	grep -qF -- "$word" "$WORK/out" || fail "$*: the message does not say \"$word\""
	! is_mounted || fail "$*: mounted"
}
refused "l1-sise" --l1-sise 1G "$MNT"
refused "12Q" --l1-size 12Q "$MNT"
refused "bsae_path" --l1-size 64M --l2-adapter "type=fs,bsae_path=$L2" "$MNT"
refused "base_path" --l1-size 64M --l2-adapter "type=fs,bsae_path=$L2" "$MNT"
refused "base_path" --l1-size 64M --l2-adapter "type=fs" "$MNT"
refused "sf" --l1-size 64M --l2-adapter "type=sf,base_path=$L2" "$MNT"
refused "fast" --l1-size 64M --io-mode=fast "$MNT"
refused "mru" --l1-size 64M --eviction-policy mru "$MNT"
refused "$WORK/absent" --l1-size 64M "$WORK/absent"
touch "$WORK/file"
refused "$WORK/file" --l1-size 64M "$WORK/file"
refused "" --l1-size 64M
"$KVCACHEFS" --help >"$WORK/out" || fail "--help"
for word in --l1-size --l2-adapter --io-mode; do
	grep -qF -- "$word" "$WORK/out" || fail "--help does not have $word"
done
"$KVCACHEFS" --version | grep -qE '[0-9]+\.[0-9]+\.[0-9]+' || fail "--version"
