#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# One process makes a name with O_EXCL, another one renames a temporary file to it with RENAME_NOREPLACE, at the same
# time: one of them fails, whatever the order, and the other one's file is there.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
cat >"$WORK/race.py" <<'P'
import ctypes, errno, os, random, sys, time
libc = ctypes.CDLL(None, use_errno=True)
directory, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
AT_FDCWD, RENAME_NOREPLACE = -100, 1
name, new = directory + "/lock", directory + "/lock.tmp"
rng = random.Random(seed)
to_child, from_child = os.pipe(), os.pipe()

def spin(microseconds):
    end = time.perf_counter() + microseconds / 1e6
    while time.perf_counter() < end:
        pass

def maker():
    while (wait := os.read(to_child[0], 4)) and len(wait) == 4:
        spin(int(wait))
        try:
            fd = os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            os.write(fd, b"maker")
            os.close(fd)
            os.write(from_child[1], b"0")
        except FileExistsError:
            os.write(from_child[1], b"1")

if os.fork() == 0:
    os.close(to_child[1])
    maker()
    os._exit(0)
won, end, rounds = [0, 0], time.time() + seconds, 0
while time.time() < end:
    rounds += 1
    with open(new, "w") as f:
        f.write("renamed")
    os.write(to_child[1], b"%04d" % rng.randrange(100))
    spin(rng.randrange(600))
    has_renamed = libc.renameat2(AT_FDCWD, new.encode(), AT_FDCWD, name.encode(), RENAME_NOREPLACE) == 0
    if not has_renamed and ctypes.get_errno() != errno.EEXIST:
        sys.exit(f"round {rounds}: {os.strerror(ctypes.get_errno())}")
    has_made = os.read(from_child[0], 1) == b"0"
    if has_renamed and has_made:
        sys.exit(f"round {rounds}: both have the name")
    if not has_renamed and not has_made:
        sys.exit(f"round {rounds}: nobody has the name")
    want = "renamed" if has_renamed else "maker"
    if open(name).read() != want:
        sys.exit(f"round {rounds}: {open(name).read()}, not {want}")
    won[has_made] += 1
    os.unlink(name)
    if not has_renamed:
        os.unlink(new)
print(f"{rounds} rounds; renamed first {won[0]}, made first {won[1]}")
P
start_bare
mkdir "$MNT/dir"
python3 "$WORK/race.py" "$MNT/dir" "$SEED" 4 || fail "the race"
stop_fs
