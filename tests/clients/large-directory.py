# SPDX-License-Identifier: Apache-2.0
"""A directory with very many files, whose names are the numbers 0 to N-1 in 64 hex digits and SUFFIX.

    prepare PATTERN N        files of a page in an L2 directory; PATTERN has a % for the name
    list DIRECTORY N [SUFFIX]    readdir has each name once, with a type, an inode and an offset of its own
    change DIRECTORY N [SUFFIX]  the same while 300 names come and 300 go; offsets stay good, also that of a name that went
    stat DIRECTORY N [SUFFIX]    all of them, in an order of its own
    cost PID SMALL LARGE [SUFFIX]    what 1000 lookups of present and of absent names cost the process PID, in
                             directories of 1000 and of many: in both about the same
"""

import ctypes
import itertools
import os
import random
import sys

libc = ctypes.CDLL(None, use_errno=True)
libc.opendir.restype = libc.telldir.restype = ctypes.c_long
libc.opendir.argtypes = [ctypes.c_char_p]
for call in libc.readdir, libc.telldir, libc.closedir, libc.rewinddir:
    call.argtypes = [ctypes.c_long]
libc.seekdir.argtypes = [ctypes.c_long, ctypes.c_long]

DT_REG = 8
CHANGES = 300
BYTES = 4096
# Of the CPU time: a linear search would show as LARGE / SMALL.
COST_FACTOR = 8


class Dirent(ctypes.Structure):
    _fields_ = [
        ("ino", ctypes.c_uint64),
        ("off", ctypes.c_int64),
        ("reclen", ctypes.c_ushort),
        ("type", ctypes.c_ubyte),
        ("name", ctypes.c_char * 256),
    ]


libc.readdir.restype = ctypes.POINTER(Dirent)


def name_of(i, suffix):
    return f"{i:064x}{suffix}"


class Listing:
    """An open directory; iterates over (name, offset behind it)."""

    def __init__(self, directory):
        self.stream = libc.opendir(directory.encode())
        assert self.stream, os.strerror(ctypes.get_errno())

    def __iter__(self):
        while True:
            ctypes.set_errno(0)
            entry = libc.readdir(self.stream)
            if not entry:
                assert ctypes.get_errno() == 0, os.strerror(ctypes.get_errno())
                return
            name = entry.contents.name.decode()
            if name not in (".", ".."):
                assert entry.contents.type == DT_REG and entry.contents.ino != 0, (name, entry.contents.type)
                yield name, entry.contents.off

    def seek(self, offset):
        libc.seekdir(self.stream, offset)

    def rewind(self):
        libc.rewinddir(self.stream)


def prepare(pattern, n):
    for i in range(int(n)):
        fd = os.open(pattern.replace("%", name_of(i, "")), os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
        os.ftruncate(fd, BYTES)
        os.close(fd)


def check_complete(names, expected, allowed=()):
    """NAMES has all of EXPECTED, perhaps some of ALLOWED, none twice and no other."""
    found = set(names)
    assert len(found) == len(names), f"{len(names) - len(found)} names are there twice"
    assert not expected - found, f"{len(expected - found)} names are missing"
    others = found - expected - set(allowed)
    assert not others, f"{len(others)} names that nobody made: {sorted(others)[:3]}"


def list_all(directory, n, suffix=""):
    names, offsets = zip(*Listing(directory))
    check_complete(names, {name_of(i, suffix) for i in range(int(n))})
    assert len(set(offsets)) == len(offsets), "two names have one offset"


def change(directory, n, suffix=""):
    present = {name_of(i, suffix) for i in range(int(n))}
    new = [name_of(int(n) + i, suffix) for i in range(CHANGES)]
    listing = Listing(directory)
    entries = iter(listing)
    # So many that the C library's buffer has none of the other half.
    seen = list(itertools.islice(entries, int(n) // 2))
    names = [name for name, _ in seen]
    half = seen[-1][1]
    unseen = sorted(present - set(names))
    # From both halves, and the one that the listing goes on behind.
    gone = set(random.sample(names[:-1], CHANGES // 2 - 1)) | {names[-1]} | set(random.sample(unseen, CHANGES // 2))
    for name in gone:
        os.unlink(os.path.join(directory, name))
    for i, name in enumerate(new):
        temporary = os.path.join(directory, f".{i}.tmp")
        with open(temporary, "wb") as file:
            file.write(b"new")
        os.rename(temporary, os.path.join(directory, name))
    stays = present - gone
    names += [name for name, _ in entries]
    check_complete(names, stays, gone | set(new))

    # On from the same place: what is still there of the second half, the new ones, nothing of the first half.
    listing.seek(half)
    names = [name for name, _ in listing]
    check_complete(names, (stays & set(unseen)) | set(new))
    listing.rewind()
    check_complete([name for name, _ in listing], stays | set(new))
    # As it was, for who comes next.
    for name in new:
        os.unlink(os.path.join(directory, name))
    for name in gone:
        with open(os.path.join(directory, name), "wb") as file:
            file.write(b"k" * BYTES)


def stat_all(directory, n, suffix=""):
    order = list(range(int(n)))
    random.shuffle(order)
    for i in order:
        assert os.stat(os.path.join(directory, name_of(i, suffix))).st_size == BYTES


def cpu_ns(pid):
    tasks = f"/proc/{pid}/task"
    return sum(int(open(f"{tasks}/{task}/schedstat").read().split()[0]) for task in os.listdir(tasks))


def cost_of(pid, paths, are_there):
    before = cpu_ns(pid)
    for path in paths:
        assert os.path.exists(path) == are_there, path
    return cpu_ns(pid) - before


def cost(pid, small, large, suffix=""):
    for what, first, are_there in (("present", 0, True), ("absent", 1 << 40, False)):
        costs = [
            cost_of(pid, [os.path.join(directory, name_of(first + i, suffix)) for i in range(1000)], are_there)
            for directory in (small, large)
        ]
        print(f"a stat of a {what} name: {costs[0] / 1e6:.1f} and {costs[1] / 1e6:.1f} us of the daemon's CPU time")
        assert costs[1] < COST_FACTOR * costs[0], f"the lookups of {what} names cost {costs[1] / costs[0]:.0f} times as much"


PHASES = {"prepare": prepare, "list": list_all, "change": change, "stat": stat_all, "cost": cost}
PHASES[sys.argv[1]](*sys.argv[2:])
