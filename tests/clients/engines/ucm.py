# SPDX-License-Identifier: Apache-2.0
"""UCM, PosixStore: 256 shard directories, mkdir'ed and chmod'ed at the start; each tensor slice of a block is a task of
its own that opens the one temporary file (without O_TRUNC and O_EXCL) and pwrites its part; who has the last slice
renames when *it* has finished. Lookups are access(F_OK | R_OK | W_OK) by several workers with a shared first miss, and
a hit sets both times. The garbage collector removes by mtime."""

import concurrent.futures
import os

from engine_client import N_PROCESSES, Engine, aligned, aligned_copy, direct_if_aligned, main

N_WORKERS = 4
LAST = N_PROCESSES - 1


class Ucm(Engine):
    def start(self):
        self.makedirs(self.root)
        for i in range(256):
            directory = os.path.join(self.root, f"{i:02x}")
            try:
                self.calls.mkdir(directory, 0o774)
            except FileExistsError:
                pass
            self.calls.chmod(directory, 0o774)

    def path(self, block):
        return os.path.join(self.root, block.hash[:2], block.hash[:32])

    def files(self, block):
        return [self.path(block)]

    def takes_part(self, block):
        return True

    def slice_of(self, block, rank):
        bytes_each = block.size // N_PROCESSES
        return rank * bytes_each, bytes_each

    def store(self, block, data):
        start, size = self.slice_of(block, self.rank)
        temporary = self.path(block) + ".tmp"
        flags = os.O_CREAT | os.O_WRONLY | direct_if_aligned(size)
        fd = self.calls.open(temporary, flags, 0o644)
        # On a disk too, one that opens it after the rename begins another file: all have it open before.
        self.barrier.wait()
        # Every other block is renamed before the other slices are written.
        renamed_first = block.index % 2 == 0
        if renamed_first and self.rank != LAST:
            self.barrier.wait()
        self.calls.pwrite(fd, aligned_copy(data[start : start + size]), start)
        self.calls.close(fd)
        if self.rank == LAST:
            self.calls.rename(temporary, self.path(block))
            if renamed_first:
                self.barrier.wait()
        self.barrier.wait()

    def lookup(self, blocks):
        first_miss = len(blocks)
        background = concurrent.futures.ThreadPoolExecutor(1)

        def stride(worker):
            nonlocal first_miss
            for i in range(worker, len(blocks), N_WORKERS):
                if i >= first_miss:
                    return
                path = self.path(blocks[i])
                # How many are asked for depends on the others: not counted.
                if os.access(path, os.F_OK | os.R_OK | os.W_OK):
                    background.submit(os.utime, path)
                else:
                    first_miss = min(first_miss, i)

        with background, concurrent.futures.ThreadPoolExecutor(N_WORKERS) as pool:
            list(pool.map(stride, range(N_WORKERS)))
        return [i < first_miss for i in range(len(blocks))]

    def load(self, block):
        buffer = aligned(block.size)
        direct = direct_if_aligned(block.size // N_PROCESSES)
        try:
            fd = self.calls.open(self.path(block), os.O_RDONLY | direct)
        except FileNotFoundError:
            return None
        for rank in range(N_PROCESSES):
            start, size = self.slice_of(block, rank)
            if self.calls.preadv(fd, [buffer[start : start + size]], start) != size:
                raise OSError(f"short read of {block.hash}")
        self.calls.close(fd)
        return buffer

    def oldest(self, n, paths):
        """Of these the n that the garbage collector takes: it reads each directory and stats all."""
        times = {}
        for directory in {os.path.dirname(path) for path in paths}:
            for name in os.listdir(directory):
                path = os.path.join(directory, name)
                if path in paths:
                    times[path] = os.stat(path).st_mtime_ns
        return sorted(times, key=times.get)[:n]

    def delete(self, blocks):
        paths = {self.path(block) for block in blocks}
        used = {self.path(block) for block in blocks[1::2]}
        for path in used:
            self.calls.utime(path)
        old = self.oldest(len(paths) - len(used), paths)
        if set(old) != paths - used:
            raise AssertionError("the garbage collector takes blocks that were used last")
        for path in old + self.oldest(len(used), used):
            self.calls.remove(path)


main(Ucm)
