#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random operations on a mount, checked against a model in memory, in the manner of fsx and fsstress.

    operation-mixer.py --seed N [--seconds N | --steps N] [--plain N] [--ranks N] [--passthrough] MOUNT DIRECTORY [STATE]

Each group has a directory of its own, a model and three processes. The group draws one call after the other, has one
of its processes make it, and compares the result with the model's: so a seed gives the same calls again. The groups run
at the same time: --plain ones with plain files (mixer/plain.py), --ranks ones with objects and prefix directories
(mixer/ranks.py). With STATE, what must be there at the end is written to that file; with --verify STATE it is looked
for, and nothing else done.

The model: a written file is nobody's but its writer's until its last close, which makes it the content of its name;
readers keep what they have opened; a temporary file is seen by all and becomes a file by rename.
"""

import argparse
import multiprocessing
import os
import pickle
import sys
import time
import traceback

sys.dont_write_bytecode = True

from mixer.model import Mismatch, difference
from mixer.plain import PlainGroup
from mixer.ranks import RankGroup


def run_group(kind, directory, seed, options, pipe):
    group = kind(directory, seed, options.passthrough, options.mount + "/.kvcache")
    end = time.monotonic() + options.seconds if options.seconds else None
    n = 0
    try:
        while n < options.steps if not end else time.monotonic() < end:
            group.step()
            n += 1
            if n % 200 == 0:
                group.check_all()
                del group.log[: -options.lines]
        group.finish()
        pipe.send((n, list(group.state())))
    except Exception as e:
        lines = group.log[-options.lines :]
        print(f"seed {seed}, step {n}, {directory}: {e}", *lines, sep="\n    ", flush=True)
        if not isinstance(e, Mismatch):
            traceback.print_exc()
        pipe.send((n, None))


def look(kind, path):
    if kind == "file":
        with open(path, "rb") as f:
            return f.read()
    if kind == "links":
        return os.stat(path).st_nlink
    names = os.listdir(path)
    if kind == "loaded":
        return None
    return names if kind == "order" else sorted(names)


def verify(state):
    with open(state, "rb") as f:
        wanted = pickle.load(f)
    bad = 0
    for kind, path, want in wanted:
        try:
            got = look(kind, path)
            message = difference(want, got) if got != want else None
        except OSError as e:
            message = e.strerror
        if message:
            print(f"{kind} {path}: {message}")
            bad += 1
    print(f"{len(wanted)} things looked for, {bad} of them wrong")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--plain", type=int, default=2)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--passthrough", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("mount")
    parser.add_argument("directory")
    parser.add_argument("state", nargs="?")
    options = parser.parse_args()
    if options.verify:
        sys.exit(verify(options.state) > 0)
    pipes, total, state, failed = [], 0, [], False
    kinds = [PlainGroup] * options.plain + [RankGroup] * options.ranks
    for i, kind in enumerate(kinds):
        ours, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            ours.close()
            run_group(kind, f"{options.mount}/{options.directory}/g{i}", options.seed + i, options, theirs)
            os._exit(0)
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        n, result = pipe.recv()
        total += n
        failed |= result is None
        state += result or []
    if options.state:
        with open(options.state, "wb") as f:
            pickle.dump(state, f)
    print(f"{total} operations, seed {options.seed}: {'FAILED' if failed else 'passed'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
