#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A daemon that gets no processor for longer than a second, as on a machine with too much to do: who overwrites a file
# or opens it meanwhile waits, and sees no ESTALE.
#
# parallel
# timeout: 240

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir "$MNT/plain"
echo 0 >"$MNT/plain/file"
# Without end, each open in a walk of its own: for writing, for reading, for both.
cat >"$WORK/open.py" <<'P'
import os, sys
name = sys.argv[1]
n = 0
while not os.path.exists(sys.argv[2]):
    fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(fd, b"%d\n" % n)
    os.close(fd)
    for flags in (os.O_RDONLY, os.O_RDWR):
        fd = os.open(name, flags)
        if os.read(fd, 100) != b"%d\n" % n:
            sys.exit("another version")
        os.close(fd)
    n += 1
print(n, "versions")
P
python3 "$WORK/open.py" "$MNT/plain/file" "$WORK/end" &
client=$!
for ((i = 0; i < 16; i++)); do
	sleep 0.$((RANDOM % 3))$((RANDOM % 10))
	kill -STOP "$DAEMON_PID"
	sleep 1.2
	kill -CONT "$DAEMON_PID"
done
: >"$WORK/end"
wait "$client" || fail "an open beside a daemon that was stopped"
stop_fs
