#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Who made a file that is being written has ended, and another process has got the number of that thread or process: it
# is not the maker, and neither sees, renames nor removes the file. Nor is .keys hidden from it, as from the thread that
# has just made a prefix directory.
#
# parallel
# not-in: user: only root can choose the next process id

. "$(dirname "$0")/lib.sh"

require_cmd python3
cat >"$WORK/reuse.py" <<'P'
import os, sys, threading, time
name, kind = sys.argv[1:]

def make():
    flags = os.O_CREAT | os.O_WRONLY | (os.O_EXCL if kind == "process" else 0)
    fd = os.open(name, flags, 0o644)
    os.write(fd, b"not whole")
    return fd

def maker_thread():
    made = []
    thread = threading.Thread(target=lambda: made.extend((make(), threading.get_native_id())))
    thread.start()
    thread.join()
    return made

def maker_process():
    # A process that has ended, whose descriptor its child holds: this one's grandchild.
    r, w = os.pipe()
    end_r, end_w = os.pipe()
    pid = os.fork()
    if pid == 0:
        make()
        if os.fork() == 0:
            os.close(end_w)
            os.write(w, b".")
            os.read(end_r, 1)
        os._exit(0)
    os.close(end_r)
    os.waitpid(pid, 0)
    os.read(r, 1)
    return end_w, pid

def make_prefix(directory):
    """The number of the process that made it, and has ended."""
    pid = os.fork()
    if pid == 0:
        os.mkdir(directory)
        os._exit(errno_of(os.stat, directory + "/.keys"))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 2, "the maker sees .keys"
    return pid

def with_number(number, call):
    """What CALL returns in a process with this id; None: the number was given to another one."""
    with open("/proc/sys/kernel/ns_last_pid", "w") as f:
        f.write(str(number - 1))
    pid = os.fork()
    if pid == 0:
        os._exit(call() if os.getpid() == number else 99)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

def errno_of(call, *args):
    try:
        call(*args)
        return 0
    except OSError as e:
        return e.errno

def try_all():
    return errno_of(os.stat, name) or errno_of(os.rename, name, name + ".stolen") or errno_of(os.unlink, name)

if not os.access("/proc/sys/kernel/ns_last_pid", os.W_OK):
    sys.exit(77)
for attempt in range(100 if kind == "prefix" else 0):
    number = make_prefix(f"{name}{attempt}")
    time.sleep(0.05)
    seen = with_number(number, lambda: errno_of(os.stat, f"{name}{attempt}/.keys"))
    assert seen in (0, 99), f"another process with the number of who made the prefix: error {seen} for .keys"
    if seen != 99:
        break
for attempt in range(0 if kind == "prefix" else 100):
    fd, number = maker_thread() if kind == "thread" else maker_process()
    time.sleep(0.05)  # the start is known to a hundredth of a second
    seen = with_number(number, try_all)
    assert seen in (2, 99), f"another {kind} with the maker's number: error {seen}, not ENOENT"
    os.close(fd)
    while not os.path.exists(name):
        time.sleep(0.01)
    os.unlink(name)
    if seen != 99:
        break
if seen == 99:
    sys.exit(77)
P
start_fs
mkdir -p "$MNT/dir" "$RANK"
for kind in thread process prefix; do
	path=$MNT/dir/name
	[[ $kind != prefix ]] || path=$RANK/prefix
	rc=0
	timeout 60 python3 "$WORK/reuse.py" "$path" "$kind" || rc=$?
	((rc != 77)) || skip "the number of a thread cannot be had again here"
	assert_eq 0 "$rc" "$kind"
done
stop_fs
