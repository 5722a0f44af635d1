# SPDX-License-Identifier: Apache-2.0
"""llm-d, llmd_fs_backend and its external pvc_evictor: vLLM's tree; the writer looks whether a block is there by open
and close, and if so moves its atime alone (utimensat with UTIME_OMIT); a temporary file written by an ofstream (one
writev of nothing and the block), rename; a reader seeks to the end for the size. The evictor scans the tree, takes
what has an atime older than an hour, removes by "xargs -0 rm -f", then climbs with rmdir."""

import ctypes
import json
import os
import random
import subprocess
import time

from engine_client import MODEL, Engine, aligned, main

BASE = f"{MODEL.replace('/', '_')}_0123456789ab"
AT_FDCWD = -100
UTIME_NOW, UTIME_OMIT = (1 << 30) - 1, (1 << 30) - 2
HOUR = 3600
RM_BATCH = 100

libc = ctypes.CDLL(None, use_errno=True)


class Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


def set_atime(path, atime):
    """os.utime cannot leave out one of the two."""
    times = (Timespec * 2)(atime, Timespec(0, UTIME_OMIT))
    if libc.utimensat(AT_FDCWD, path.encode(), times, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), path)


class LlmdFs(Engine):
    threads = 4

    def start(self):
        self.makedirs(os.path.join(self.root, BASE))
        config = os.path.join(self.root, BASE, "config.json")
        if not self.exists(config):
            with self.calls("open", open, config, "w") as file:
                json.dump({"model": MODEL}, file)
        self.suffix = random.getrandbits(32)

    def path(self, block):
        shard = os.path.join(block.hash[:3], f"{block.hash[3:5]}_g0")
        return os.path.join(self.root, f"{BASE}_r0", shard, f"{block.hash}.bin")

    def files(self, block):
        return [self.path(block)]

    def is_stored(self, path):
        """ifstream.good(), and then it counts as used."""
        try:
            self.calls.close(self.calls.open(path, os.O_RDONLY))
        except FileNotFoundError:
            return False
        self.calls("utimensat", set_atime, path, Timespec(0, UTIME_NOW))
        return True

    def store(self, block, data):
        final = self.path(block)
        if self.is_stored(final):
            return
        self.makedirs(os.path.dirname(final))
        temporary = f"{final}_{self.suffix}.tmp"
        fd = self.calls.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
        self.calls.writev(fd, [b"", data])
        self.calls.close(fd)
        self.calls.rename(temporary, final)

    def store_all(self, blocks):
        super().store_all(blocks)
        # Another request with the same beginning.
        super().store_all(blocks[: len(blocks) // 4])

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        try:
            fd = self.calls.open(self.path(block), os.O_RDONLY)
        except FileNotFoundError:
            return None
        size = self.calls.lseek(fd, 0, os.SEEK_END)
        buffer = aligned(size)
        self.calls.lseek(fd, 0, os.SEEK_SET)
        self.calls.readv(fd, [buffer])
        self.calls.close(fd)
        return buffer

    # The evictor. What its crawlers see depends on how far the others are: those calls are not counted.

    def cold_files(self, directory):
        try:
            entries = list(os.scandir(directory))
        except FileNotFoundError:
            return  # removed by another one
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from self.cold_files(entry.path)
            elif entry.name.endswith(".bin") and self.is_cold(entry):
                yield entry.path

    def is_cold(self, entry):
        try:
            return entry.stat().st_atime < time.time() - HOUR
        except FileNotFoundError:
            return False

    def evict_cold(self, expected):
        self.calls.statvfs(self.root)
        mine = {self.path(block) for block in expected}
        cold = [path for path in self.cold_files(os.path.join(self.root, f"{BASE}_r0")) if path in mine]
        if set(cold) != mine:
            raise AssertionError(f"the evictor finds {len(cold)} cold blocks, not {len(mine)}")
        for first in range(0, len(cold), RM_BATCH):
            names = b"\0".join(path.encode() for path in cold[first : first + RM_BATCH])
            self.calls("rm", subprocess.run, ["xargs", "-0", "rm", "-f"], input=names, check=True)
        for path in cold:
            self.remove_empty(os.path.dirname(path))

    def remove_empty(self, directory):
        while directory != self.root:
            try:
                os.rmdir(directory)
            except FileNotFoundError:
                pass
            except OSError:
                return
            directory = os.path.dirname(directory)

    def delete(self, blocks):
        """Two rounds: what was used within the hour survives the first."""
        cold, warm = blocks[::2], blocks[1::2]
        for block in blocks:
            before = self.calls.stat(self.path(block)).st_mtime_ns
            age = 2 * HOUR if block in cold else HOUR // 2
            self.calls("utimensat", set_atime, self.path(block), Timespec(int(time.time()) - age, 0))
            if self.calls.stat(self.path(block)).st_mtime_ns != before:
                raise AssertionError(f"the mtime of {block} moved with its atime")
        self.evict_cold(cold)
        for block in warm:
            self.calls("utimensat", set_atime, self.path(block), Timespec(int(time.time()) - 2 * HOUR, 0))
        self.evict_cold(warm)


main(LlmdFs)
