# SPDX-License-Identifier: Apache-2.0
"""LMCache, LocalDiskBackend: one flat directory, written in place under the final name, by open("wb") or with
O_DIRECT and without O_TRUNC where the size allows it; read with one readinto. Neither result is looked at. Which
blocks there are is known in memory only; a file that is gone is dropped from there. os.remove is not guarded."""

import os

from engine_client import MODEL, Engine, aligned, aligned_copy, main


class LmcacheLocalDisk(Engine):
    threads = 4

    def start(self):
        if not self.exists(self.root):
            self.makedirs(self.root)
        self.granularity = self.calls.statvfs(self.root).f_bsize
        self.calls.count("f_bsize", str(self.granularity))
        # Each phase is a process of its own here: what was stored is told, not found.
        self.dropped = set()

    def files(self, block):
        return [os.path.join(self.root, f"{MODEL.replace('/', '-')}@4@{block.owner}@{block.hash}@bfloat16.pt")]

    def direct(self, block):
        return block.size % self.granularity == 0 and block.size >= 4 << 20

    def store(self, block, data):
        (path,) = self.files(block)
        if self.direct(block):
            fd = self.calls.open(path, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
            self.calls.write(fd, aligned_copy(data))
            self.calls.close(fd)
        else:
            with self.calls("open", open, path, "wb") as file:
                self.calls("write", file.write, data)

    def lookup(self, blocks):
        return [block.index < 1 << 20 and block.hash not in self.dropped for block in blocks]

    def load(self, block):
        (path,) = self.files(block)
        buffer = aligned(block.size)
        try:
            if self.direct(block):
                fd = self.calls.open(path, os.O_RDONLY | os.O_DIRECT)
                with os.fdopen(fd, "rb", buffering=0) as file:
                    self.calls("readinto", file.readinto, buffer)
            else:
                with self.calls("open", open, path, "rb") as file:
                    self.calls("readinto", file.readinto, buffer)
        except FileNotFoundError:
            self.dropped.add(block.hash)
            return None
        return buffer

    def delete(self, blocks):
        for block in blocks:
            self.calls.remove(self.files(block)[0])
            self.dropped.add(block.hash)


main(LmcacheLocalDisk)
