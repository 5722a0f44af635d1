#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A writer that ends without a close is published only if nothing can have been cut off: a process without threads that
# exits. Threads that are cut off by exit or exec, an exec itself, a holder that is killed, a descriptor that is lost in a socket:
# never. A descriptor that a child keeps: the object appears when the child ends.
#
# parallel
# timeout: 300

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=1G
start_bare --max-object-size 512M
mkdir -p "$RANK"

# gone HASH: not visible, now and after whatever is still on its way.
gone() {
	expect_errno ENOENT stat "$RANK/$1"
	expect_errno ENOENT open-read "$RANK/$1"
}

counted() {
	assert_eq "$2" "$(stat_counter "mount_writes_not_published_$1")" "mount_writes_not_published_$1"
}

# ---- A thread inside write() ------------------------------------------------------------------

# cut HOW FILE: ends by HOW while a daemon thread is inside a write of 256 MiB.
cat >"$WORK/cut.py" <<'P'
import os, sys, threading, time
how, name = sys.argv[1:]
data = bytes(256 << 20)
fd = os.open(name, os.O_CREAT | os.O_WRONLY)
done = []
def write():
    done.append(os.write(fd, data))
threading.Thread(target=write, daemon=True).start()
while os.fstat(fd).st_size == 0:
    time.sleep(0.0005)
if how == "exec":
    os.execv("/bin/true", ["true"])
# Where the write was faster it is whole, and a thread has it still: not published either.
sys.exit(0)
P
for ((i = 0; i < 50; i++)); do
	python3 "$WORK/cut.py" exit "$RANK/$(chunk_hash "$i" cut)"
	expect_errno ENOENT stat "$RANK/$(chunk_hash "$i" cut)"
done
assert_eq 0 "$(stat_counter mount_writes_published)" mount_writes_published
wait_until 20 "all 50 have ended" eval '(($(stat_counter mount_writes_not_published_cut_off) == 50))'
for ((i = 0; i < 50; i++)); do
	gone "$(chunk_hash "$i" cut)"
done
for ((i = 0; i < 5; i++)); do
	python3 "$WORK/cut.py" exec "$RANK/$(chunk_hash "$i" exec)"
	expect_errno ENOENT stat "$RANK/$(chunk_hash "$i" exec)"
done
wait_until 20 "all of exec have ended" eval '(($(stat_counter mount_writes_not_published_cut_off) == 55))'
assert_eq 0 "$(stat_counter mount_writes_published)" mount_writes_published

# ---- Ends of whole processes ------------------------------------------------------------------

# end HOW FILE
cat >"$WORK/end.py" <<'P'
import errno, os, signal, socket, sys, threading, time
how, name = sys.argv[1:]
fd = os.open(name, os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x" * 100000)
if how == "exit":
    os._exit(3)
if how == "exec":
    os.execv("/bin/true", ["true"])
if how == "thread":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    os._exit(0)
if how == "joined":
    # Gone by the time of the exit, as one that was cut off may be.
    thread = threading.Thread(target=os.write, args=(fd, b"y" * 100000))
    thread.start()
    thread.join()
    os._exit(0)
if how == "thread-closes":
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    os.close(fd)
    os._exit(0)
if how == "fork":
    # Parent and child hold it, both write, both end by themselves.
    if os.fork() == 0:
        os.write(fd, b"y" * 100000)
        os._exit(0)
    os.wait()
    os._exit(0)
if how == "dup-killed":
    # The parent closes as one should; a child that has it too is killed.
    if os.fork() == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    try:
        os.close(fd)
    except OSError as e:
        os._exit(0 if e.errno == errno.EIO else 1)
    os._exit(1)
if how == "term":
    os.kill(os.getpid(), signal.SIGTERM)
if how == "socket-killed":
    # In flight to nobody; its last reference goes with the socket, after the writer.
    a, b = socket.socketpair()
    socket.send_fds(a, [b"."], [fd])
    os.kill(os.getpid(), signal.SIGKILL)
if how == "socket-written":
    # Closed once, taken out of a socket by a child that is killed in the middle of the second half.
    a, b = socket.socketpair()
    socket.send_fds(a, [b"."], [fd])
    os.close(fd)
    if os.fork() == 0:
        fd = socket.recv_fds(b, 1, 1)[1][0]
        os.write(fd, b"y" * 1000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.wait()
    os._exit(0)
if how == "socket-lost":
    # Written by a holder that puts it into a socket without closing it: the socket's end has no FLUSH.
    a, b = socket.socketpair()
    r, w = os.pipe()
    other = os.dup(fd)
    socket.send_fds(a, [b"."], [fd])
    os.close(fd)
    pid = os.fork()
    if pid == 0:
        os.write(other, b"y" * 1000)
        os.write(w, b".")
        time.sleep(60)
    os.close(other)
    os.read(r, 1)
    os.kill(pid, signal.SIGKILL)
    os.wait()
    a.close()
    b.close()
    os._exit(0)
P
n_published=0
# ends HOW published|REASON
ends() {
	local hash
	hash=$(chunk_hash "$1" ends)
	if [[ $2 == published ]]; then
		n_published=$((n_published + 1))
		python3 "$WORK/end.py" "$1" "$RANK/$hash" || true
		wait_until 10 "$1: visible" eval "[[ -e '$RANK/$hash' ]]"
	else
		local before
		before=$(stat_counter "mount_writes_not_published_$2")
		python3 "$WORK/end.py" "$1" "$RANK/$hash" || true
		wait_until 10 "$1: counted" eval "((\$(stat_counter mount_writes_not_published_$2) == before + 1))"
		gone "$hash"
	fi
	assert_eq "$n_published" "$(stat_counter mount_writes_published)" "mount_writes_published after $1"
}

ends exit published
ends exec cut_off
ends fork published
ends thread-closes published
ends thread cut_off
ends joined cut_off
ends term killed
ends dup-killed killed
ends socket-killed killed
ends socket-written killed
ends socket-lost killed
assert_eq 200000 "$(stat -c %s "$RANK/$(chunk_hash fork ends)")" "bytes of parent and child"

# ---- Written after the last close -------------------------------------------------------------

# A descriptor that an io_uring has: no FLUSH when it goes.
cat >"$WORK/ring.py" <<'P'
import ctypes, mmap, os, struct, sys
SETUP, ENTER, REGISTER = 425, 426, 427
libc = ctypes.CDLL(None, use_errno=True)
def call(*args):
    n = libc.syscall(*[ctypes.c_long(a) if isinstance(a, int) else a for a in args])
    if n < 0:
        sys.exit(77)
    return n
params = (ctypes.c_ubyte * 120)()
ring = call(SETUP, 4, params)
p = bytes(params)
sq = struct.unpack_from("10I", p, 40)
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x" * 100000)
call(REGISTER, ring, 2, (ctypes.c_int * 1)(fd), 1)
os.close(fd)
rings = mmap.mmap(ring, 4096, offset=0)
sqes = mmap.mmap(ring, 4096, offset=0x10000000)
data = ctypes.create_string_buffer(b"y" * 1000)
# IORING_OP_WRITE (23) of the fixed file 0 (IOSQE_FIXED_FILE), behind what is there.
sqes[0:40] = struct.pack("BBHiQQIIQ", 23, 1, 0, 0, 100000, ctypes.addressof(data), 1000, 0, 0)
array, tail = sq[6], sq[1]
rings[array:array + 4] = struct.pack("I", 0)
rings[tail:tail + 4] = struct.pack("I", 1)
call(ENTER, ring, 1, 1, 1, 0, 0)
os._exit(0)
P
ring=$(chunk_hash ring)
rc=0
python3 "$WORK/ring.py" "$RANK/$ring" || rc=$?
if ((rc == 0)); then
	wait_until 10 "the ring's file is counted" eval '(($(stat_counter mount_writes_not_published_after_close) == 1))'
	gone "$ring"
else
	echo "no io_uring for the test: $rc"
fi

# ---- A child that keeps it --------------------------------------------------------------------

inherited=$(chunk_hash inherited)
python3 - "$RANK/$inherited" "$WORK/child" <<'P'
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x" * 100000)
os.set_inheritable(fd, True)
pid = os.posix_spawn("/bin/sleep", ["sleep", "60"], os.environ)
open(sys.argv[2], "w").write(str(pid))
os.close(fd)
P
child=$(cat "$WORK/child")
begin=$(date +%s%N)
expect_errno ENOENT stat "$RANK/$inherited"
took=$((($(date +%s%N) - begin) / 1000000))
echo "stat of a name whose descriptor lives on: $took ms"
assert_le "$took" 1000 "milliseconds of a stat that waits at most 50"
kill -KILL "$child"
wait_until 10 "a killed child is counted" eval "((\$(stat_counter mount_writes_not_published_killed) >= 6))"
gone "$inherited"
python3 - "$RANK/$inherited" <<'P'
import os, sys
fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
os.write(fd, b"x" * 100000)
os.set_inheritable(fd, True)
os.posix_spawn("/bin/sleep", ["sleep", "0.5"], os.environ)
os.close(fd)
P
expect_errno ENOENT stat "$RANK/$inherited"
wait_until 10 "the child has ended" eval "[[ -e '$RANK/$inherited' ]]"
assert_eq 100000 "$(stat -c %s "$RANK/$inherited")" "bytes of what a child kept"
rm "$RANK"/*
wait_until 10 "all memory is back" status_is l1_used_bytes 0
stop_fs
