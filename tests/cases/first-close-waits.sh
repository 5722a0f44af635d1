#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# The commit of a hash waits for a writer of the same hash that was closed before (first-close-wins): how that wait ends
# when the other one keeps its file for long, is killed, when the name is removed, and when the mount goes.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
# first-and-second NAME [killed]: writes and closes both. The first one's file is on its way through a socket meanwhile,
# so that it is closed, by FLUSH, and not released, without another FLUSH, until a line comes on stdin.
cat >"$WORK/first-and-second.py" <<'P'
import os, signal, socket, sys

name = sys.argv[1]
first = os.open(name, os.O_WRONLY | os.O_CREAT)
os.write(first, b"first" * 1000)
one_end, other_end = socket.socketpair()
socket.send_fds(one_end, [b"."], [first])
second = os.open(name, os.O_WRONLY | os.O_CREAT)
os.write(second, b"second" * 1000)
os.close(first)
os.close(second)
if sys.argv[2:] == ["killed"]:
    os.kill(os.getpid(), signal.SIGKILL)
print("closed", flush=True)
sys.stdin.readline()
one_end.close()
other_end.close()
print("let go", flush=True)
sys.stdin.readline()
P

# begin [DIRECTORY/]: sets `name` and the client's number.
n=0
begin() {
	n=$((n + 1))
	name=$RANK/${1:-}$(chunk_hash $n)
	client=c$n
	start_client "$client" python3 "$WORK/first-and-second.py" "$name"
	client_hear "$client" closed
}

# let_go_and_end: the first one is released, and the client has ended.
let_go_and_end() {
	client_say "$client" go
	client_hear "$client" "let go"
	client_say "$client" end
	wait "$CLIENT_PID" || fail "the client"
}

# begin_and_remove [DIRECTORY/]: what was removed while both were on their way does not return.
begin_and_remove() {
	local i
	begin "$@"
	rm -f "$name"
	expect_errno ENOENT stat "$name"
	let_go_and_end
	for ((i = 0; i < 6; i++)); do
		expect_errno ENOENT stat "$name"
		sleep 0.1
	done
}

is_word() {
	[[ $(head -c ${#1} "$name") == "$1" && $(stat -c %s "$name") == $((${#1} * 1000)) ]]
}

start_fs
mkdir -p "$RANK"

# It is waited for, but not for ever; then the second one is the object, and stays it.
begin
wait_until 10 "the second one is the object" is_word second
client_say "$client" go
client_hear "$client" "let go"
wait_until 10 "the first one is a duplicate" counter_is mount_writes_duplicate 1
is_word second || fail "an object was replaced"
client_say "$client" end

# A process that is killed has closed the first one all the same.
name=$RANK/$(chunk_hash 100)
python3 "$WORK/first-and-second.py" "$name" killed && fail "it was not killed"
wait_until 10 "one of them is a duplicate" counter_is mount_writes_duplicate 2
is_word first || fail "the killed writer's file was closed first"

begin_and_remove
gone=$name
mkdir "$RANK/prefix"
begin_and_remove prefix/
control flush /
stop_fs
start_fs
expect_errno ENOENT stat "$name"
expect_errno ENOENT stat "$gone"

# The mount goes: one of the two is what was written, as a whole.
begin
umount -l "$MNT"
let_go_and_end
wait_gone "$DAEMON_PID"
start_fs
is_word first || is_word second || fail "neither is there after the mount went"
stop_fs
