#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Processes that write, remove, rename and read two files of a directory at the same time.

    name-races.py DIRECTORY SECONDS ROLES

ROLES, a process each: W opens with O_CREAT|O_TRUNC and writes, U removes, M renames one file to the other, R reads. An
open that may create ends with ENOENT in one of fifty cases at most (the kernel walks a path twice, and both may come
too late), and whoever reads a file reads the whole of it. Prints how often each call was made; exit 1 when one ended as
it must not.
"""

import multiprocessing
import os
import random
import sys
import time

DATA = b"ABCDEFGH" * 4000


def write(path):
    fd = os.open(path, os.O_CREAT | os.O_TRUNC | os.O_WRONLY)
    try:
        os.write(fd, DATA)
    finally:
        os.close(fd)


def read(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        data = os.read(fd, 2 * len(DATA))
    finally:
        os.close(fd)
    if data != DATA:
        raise ValueError(f"{len(data)} bytes read of {len(DATA)}")


def play(role, paths, seconds, number, queue):
    choose = random.Random(number).sample
    # Beside a rename an open may find the name gone twice in one walk: then the kernel gives up with ESTALE.
    allowed = {"W": ("ESTALE", "ENOENT"), "R": ("ENOENT", "ESTALE"), "U": ("ENOENT",), "M": ("ENOENT",)}[role]
    counts, bad = {}, []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        one, other = choose(paths, 2)
        how = "ok"
        try:
            if role == "W":
                write(one)
            elif role == "U":
                os.unlink(one)
            elif role == "M":
                os.rename(one, other)
            else:
                read(one)
        except OSError as e:
            how = {2: "ENOENT", 116: "ESTALE"}.get(e.errno, e.strerror)
            if how not in allowed:
                bad.append(f"{role}: {how}")
        except ValueError as e:
            bad.append(f"{role}: {e}")
        if how == "ESTALE":
            # What a failed open for writing leaves behind is no file that anybody reads.
            for path in paths:
                try:
                    read(path)
                except FileNotFoundError:
                    pass
                except (OSError, ValueError) as e:
                    if getattr(e, "errno", 0) != 116:
                        bad.append(f"{role} after ESTALE: {e}")
        counts[how] = counts.get(how, 0) + 1
    queue.put((role, counts, bad))


def main():
    directory, seconds, roles = sys.argv[1], float(sys.argv[2]), sys.argv[3]
    paths = [directory + "/a", directory + "/b"]
    queue = multiprocessing.Queue()
    for number, role in enumerate(roles):
        multiprocessing.Process(target=play, args=(role, paths, seconds, number, queue)).start()
    failed = False
    for _ in roles:
        role, counts, bad = queue.get(timeout=seconds + 60)
        print(role, counts, *bad[:5])
        failed |= bool(bad) or not counts.get("ok")
        failed |= role == "W" and 50 * counts.get("ENOENT", 0) > sum(counts.values())
    sys.exit(failed)


if __name__ == "__main__":
    main()
