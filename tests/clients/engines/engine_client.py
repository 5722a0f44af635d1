# SPDX-License-Identifier: Apache-2.0
"""What the engine-shaped clients share: blocks and their bytes, four processes, the phases, and a record of each call.

A client is a class with the paths and the system calls of one engine; this module has it store, look up, load and
delete all blocks from N_PROCESSES processes. A process looks at blocks that another one stored, and each phase begins
with a new object of the class, so nothing that one remembers helps. What a phase reports (how often each call ended
in what way, the sizes and modes of the files) does not depend on time or place: the shell cases run it on the mount
and on a disk and compare.

    PROGRAM [--seed N] [--variant NAME] [--blocks few|whole]

Each line of the input is "PHASE DIRECTORY REPORT [CONTROL-FILE]": store, lookup, load or delete in DIRECTORY. The
report goes to the file REPORT; then the line "REPORT ok" or "REPORT failed" is printed. With a CONTROL-FILE
(.kvcache/flush) a store waits for L2 where its blocks have another size from now on. All phases are in one program,
which uses its memory again: new memory is dear on a virtual machine (64 MiB measured: 350 ms, and 4 ms the second
time).
"""

import argparse
import collections
import concurrent.futures
import ctypes
import errno
import functools
import hashlib
import mmap
import multiprocessing
import os
import random
import sys
import threading
import traceback

N_PROCESSES = 4

libc = ctypes.CDLL(None)
libc.memcmp.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]

# Sizes of blocks and how many of each: 70,272 B is one token of DeepSeek-V3 and 1,124,352 B are 16 of them (both not a
# multiple of 4096), 32 MiB are 256 tokens of an 8B model. "few", 135 MiB, is for a test that has seconds for each engine;
# "whole", 1.3 GiB, has 200 of each but the largest.
BLOCK_SIZES = {
    "few": ((70272, 200), (1124352, 24), (4 << 20, 16), (32 << 20, 1)),
    "whole": ((70272, 200), (1124352, 200), (4 << 20, 200), (32 << 20, 8)),
}
LARGEST = 32 << 20

MODEL = "meta-llama/Llama-3.1-8B-Instruct"

Block = collections.namedtuple("Block", "index size hash owner")


def make_block(index, size, seed):
    name = hashlib.sha256(f"{seed}/{size}/{index}".encode()).hexdigest()
    return Block(index, size, name, index % N_PROCESSES)


class Data:
    """The bytes of each block: a window of one random stream, which repeats after a length that is no multiple of a
    page, so neither two blocks nor two pages of one are equal."""

    PERIOD = (1 << 20) + 4099
    STEP = 2357

    def __init__(self, seed):
        once = random.Random(seed).randbytes(self.PERIOD)
        self.stream = new_memory(self.PERIOD * (LARGEST // self.PERIOD + 2))
        for start in range(0, len(self.stream), self.PERIOD):
            self.stream[start : start + self.PERIOD] = once

    def of(self, block):
        start = block.index * self.STEP % self.PERIOD
        return self.stream[start : start + block.size]


class Calls:
    """Makes calls and counts, by name, how each ended: calls.open(...) is os.open(...), calls(name, f, ...) is
    f(...). Of what moves data the bytes are counted too."""

    MOVE_DATA = {"read", "readv", "pread", "preadv", "readinto", "write", "writev", "pwrite", "pwritev", "aio"}

    def __init__(self):
        self.results = collections.Counter()
        self.lock = threading.Lock()

    def count(self, name, result, n=1):
        with self.lock:
            self.results[f"{name} {result}"] += n

    def __call__(self, name, function, *arguments, **named):
        try:
            result = function(*arguments, **named)
        except OSError as error:
            self.count(name, errno.errorcode.get(error.errno, str(error.errno)))
            raise
        if isinstance(result, bool):
            self.count(name, str(result).lower())
            return result
        self.count(name, "ok")
        if name in self.MOVE_DATA:
            self.count(name, "bytes", result)
        return result

    def __getattr__(self, name):
        return functools.partial(self, name, getattr(os, name))


class Engine:
    """One engine in one process. What a client may set or define is documented here."""

    # Threads of each process that store and load.
    threads = 1

    def __init__(self, root, rank, calls, barrier, data, variant):
        self.root = root
        self.rank = rank
        self.calls = calls
        self.barrier = barrier  # of all processes
        self.data = data
        self.variant = variant

    def start(self):
        """What the engine does when it starts. Rank 0 does it before the others."""

    def files(self, block):
        """The paths of a stored block; the first one is what the engine asks for when it looks whether it has it."""
        raise NotImplementedError

    def takes_part(self, block):
        """Whether this process stores something of the block."""
        return block.owner == self.rank

    def store(self, block, data):
        raise NotImplementedError

    def store_all(self, blocks):
        self.in_threads(lambda block: self.store(block, self.data.of(block)), blocks)

    def lookup(self, blocks):
        """Which of the blocks are there, in order; may end at the first one that is not."""
        raise NotImplementedError

    def load(self, block):
        """The bytes of a block, None for a miss."""
        raise NotImplementedError

    def load_all(self, blocks, check):
        """Calls check(block, bytes) for each."""
        self.in_threads(lambda block: check(block, self.load(block)), blocks)

    def delete(self, blocks):
        for block in blocks:
            for path in self.files(block):
                self.unlink(path)

    def clear(self):
        """After all deletions, in rank 0 alone."""

    # What several engines do.

    def in_threads(self, function, blocks):
        if self.threads == 1:
            for block in blocks:
                function(block)
            return
        list(thread_pool(self.threads).map(function, blocks))

    def exists(self, path):
        """os.path.exists: one stat."""
        try:
            self.calls.stat(path)
        except OSError:
            return False
        return True

    def makedirs(self, path):
        self.calls.makedirs(path, exist_ok=True)

    def unlink(self, path):
        """Whether it was there."""
        try:
            self.calls.unlink(path)
        except FileNotFoundError:
            return False
        return True

    def walk(self):
        """All files below the root, as os.walk finds them."""
        for directory, _, names in os.walk(self.root, onerror=raise_error):
            for name in names:
                yield os.path.join(directory, name)


def raise_error(error):
    raise error


buffers = threading.local()


def new_memory(size):
    """Page-aligned, as that of engines is (pinned memory)."""
    return memoryview(mmap.mmap(-1, size))


def aligned(size):
    """A buffer that is the same one for each call of a thread."""
    if len(getattr(buffers, "mine", "")) < size:
        buffers.mine = new_memory(size)
    return buffers.mine[:size]


@functools.cache
def thread_pool(n):
    """Its threads keep their buffers."""
    return concurrent.futures.ThreadPoolExecutor(n)


def aligned_copy(data):
    buffer = aligned(len(data))
    buffer[:] = data
    return buffer


def direct_if_aligned(size):
    """O_DIRECT where the disk takes it too: engines check this, or ask the user to."""
    return os.O_DIRECT if size % 4096 == 0 else 0


def address_of(buffer):
    return ctypes.addressof((ctypes.c_char * len(buffer)).from_buffer(buffer))


def equal(data, got):
    """Whether bytes, a bytearray or a memoryview is this data. Python compares memoryviews one byte at a time."""
    if len(data) != len(got):
        return False
    return libc.memcmp(address_of(data), got if isinstance(got, bytes) else address_of(got), len(data)) == 0


# ---- The phases, in one process ----------------------------------------------------------------


def check_stored(engine, block):
    for path in engine.files(block):
        stat = engine.calls.stat(path)
        engine.calls.count("file", f"of {stat.st_size} bytes, mode {stat.st_mode:o}, {stat.st_nlink} link")


def store_phase(engine, blocks, absent):
    mine = [block for block in blocks if engine.takes_part(block)]
    engine.store_all(mine)
    for block in mine:
        check_stored(engine, block)


def leading_run(found):
    n = 0
    for hit in found:
        if not hit:
            break
        n += 1
    return n


def expect_run(engine, blocks, expected):
    n = leading_run(engine.lookup(blocks))
    if n != expected:
        raise AssertionError(f"lookup of {len(blocks)} blocks of {blocks[0].size}: found {n}, expected {expected}")


def lookup_phase(engine, blocks, absent):
    gap = (engine.rank + 1) * len(blocks) // (N_PROCESSES + 1)
    expect_run(engine, blocks, len(blocks))
    expect_run(engine, blocks[:gap] + [absent] + blocks[gap:], gap)
    expect_run(engine, [absent], 0)


def load_phase(engine, blocks, absent):
    def check(block, got):
        if got is None or not equal(engine.data.of(block), got):
            raise AssertionError(f"block {block}: {'missing' if got is None else 'wrong bytes'}")
        engine.calls.count("block", "verified")
        engine.calls.count("block", "bytes", block.size)

    engine.load_all([block for block in blocks if block.owner == (engine.rank + 1) % N_PROCESSES], check)
    if engine.load(absent) is not None:
        raise AssertionError("a block that was never stored is there")


def delete_phase(engine, blocks, absent):
    mine = [block for block in blocks if block.owner == (engine.rank + 2) % N_PROCESSES]
    if not mine:
        return
    engine.delete(mine)
    expect_run(engine, mine, 0)
    for block in mine:
        if engine.load(block) is not None:
            raise AssertionError(f"deleted block {block} is there")
    for path in engine.files(mine[0]):
        engine.unlink(path)


PHASES = {"store": store_phase, "lookup": lookup_phase, "load": load_phase, "delete": delete_phase}


def flush(control_file):
    """Waits until all is stored in L2: what follows does not depend on the speed of the disk then."""
    with open(control_file, "w") as control:
        control.write("/\n")


def run_rank(engine, block_sizes, phase, seed, control_file):
    if engine.rank == 0:
        engine.start()
    engine.barrier.wait()
    if engine.rank != 0:
        engine.start()
    engine.barrier.wait()
    index = 0
    for size, n in block_sizes:
        blocks = [make_block(i, size, seed) for i in range(index, index + n)]
        index += n
        PHASES[phase](engine, blocks, make_block(1 << 20, size, seed))
        engine.barrier.wait()
        if engine.rank == 0 and control_file:
            flush(control_file)
        engine.barrier.wait()
    if engine.rank == 0 and phase == "delete":
        engine.clear()


def inherit(*what):
    """In each process, first: what it has from its parent and cannot be sent to it."""
    global inherited
    inherited = what


def process_main(rank, phase, root, control_file):
    engine_class, barrier, data, seed, variant, block_sizes = inherited
    calls = Calls()
    try:
        engine = engine_class(root, rank, calls, barrier, data, variant)
        run_rank(engine, block_sizes, phase, seed, control_file)
    except BaseException as error:
        if not isinstance(error, threading.BrokenBarrierError):
            traceback.print_exc()
        barrier.abort()
        return calls.results, False
    return calls.results, True


def run_phase(pool, phase, root, report, control_file):
    """All processes at once: each waits for the others, so none has two ranks."""
    outcomes = list(
        pool.map(process_main, range(N_PROCESSES), *([x] * N_PROCESSES for x in (phase, root, control_file)))
    )
    total = sum((results for results, _ in outcomes), collections.Counter())
    with open(report, "w") as file:
        for line in sorted(total):
            print(f"{line}: {total[line]}", file=file)
    return all(succeeded for _, succeeded in outcomes)


def main(engine_class):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--variant", default="")
    parser.add_argument("--blocks", choices=BLOCK_SIZES, default="few")
    arguments = parser.parse_args()
    os.umask(0o022)
    context = multiprocessing.get_context("fork")
    data = Data(arguments.seed)
    shared = (
        engine_class,
        context.Barrier(N_PROCESSES),
        data,
        arguments.seed,
        arguments.variant,
        BLOCK_SIZES[arguments.blocks],
    )
    with concurrent.futures.ProcessPoolExecutor(N_PROCESSES, context, inherit, shared) as pool:
        for line in sys.stdin:
            phase, root, report, *control_file = line.split()
            succeeded = run_phase(pool, phase, root, report, control_file[0] if control_file else None)
            print(report, "ok" if succeeded else "failed", flush=True)
            if not succeeded:
                sys.exit(1)
