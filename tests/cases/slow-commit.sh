#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A commit that takes long (what the writer keeps mapped is copied first) is of its own file only: it goes where the name
# has been renamed to meanwhile, or nowhere if that was removed, and what others have put under the old name stays.
#
# parallel
# not-in: direct: a mapping keeps the file open there, nothing is committed before it goes
# not-in: user: a mapping keeps the file open there, nothing is committed before it goes

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=8G # nothing is evicted
cat >"$WORK/slow.py" <<'P'
import ctypes, os, sys, time

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]

BYTES = 256 << 20
name, how = sys.argv[1:]
other = name + ".moved"

def put(path, text):
    with open(path, "w") as f:
        f.write(text)

def committed():
    stats = os.path.dirname(os.path.dirname(name)) + "/.kvcache/stats"
    lines = dict(line.split() for line in open(stats) if line.startswith("mount_writes_"))
    return sum(int(n) for key, n in lines.items() if key.startswith(("mount_writes_published", "mount_writes_not_")))

def wait_for_commits(total):
    end = time.time() + 60
    while committed() < total and time.time() < end:
        time.sleep(0.01)
    assert committed() >= total, "a commit has not come"

# Before its RELEASE has come, an open would be of the same file that is not committed yet.
before = committed()
put(name, "the first")
wait_for_commits(before + 1)
if how == "moved-over":
    put(other, "replaced")
    wait_for_commits(before + 2)
before = committed()
fd = os.open(name, os.O_RDWR | os.O_TRUNC)
os.pwrite(fd, b"!", BYTES - 1)
# Not Python's mmap: that duplicates the descriptor.
assert libc.mmap(None, BYTES, 3, 1, fd, 0) != ctypes.c_void_p(-1).value
os.close(fd)
if os.fork() == 0:
    if how == "removed":
        os.unlink(name)
    else:
        os.rename(name, other)
    os._exit(0)
assert os.wait()[1] == 0
put(name, "of another process")
wait_for_commits(before + 2)

def has_size(path, size):
    """The kernel may keep a size for a second."""
    end = time.time() + 3
    while time.time() < end and not (os.path.exists(path) and os.path.getsize(path) == size):
        time.sleep(0.01)
    return os.path.exists(path) and os.path.getsize(path) == size

assert has_size(name, len("of another process")), "the other process's file is gone, or replaced"
assert open(name).read() == "of another process"
if how == "removed":
    assert os.listdir(os.path.dirname(name)) == [os.path.basename(name)], "what was removed is there"
else:
    assert has_size(other, BYTES), "what was renamed is another file"
    os.unlink(other)
os.unlink(name)
P
start_bare
assert_eq ok "$(status l1_leases)" l1_leases
mkdir "$MNT/dir"
for how in moved moved-over removed; do
	for round in 1 2; do
		python3 "$WORK/slow.py" "$MNT/dir/name" "$how" || fail "$how, round $round"
	done
done
# What was removed before its commit began is not copied.
assert_le 4 "$(stat_counter l1_commits_copied)" l1_commits_copied
wait_until 10 "no staging file is left" status_is l1_staging_objects 0
wait_until 10 "no read lock is left" status_is l1_read_locks 0
wait_until 10 "no byte is left" status_is l1_used_bytes 0
stop_fs
