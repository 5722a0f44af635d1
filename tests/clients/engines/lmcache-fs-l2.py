# SPDX-License-Identifier: Apache-2.0
"""LMCache in its multi-process mode, the L2 adapter "fs": one flat directory of ObjectKey names; a temporary name that
is the same in all processes (beside the file, or with the variant "tmp-dir" the final name in a directory "tmp");
one write, with O_DIRECT and without O_TRUNC where the size allows it; os.replace; reads in a loop; lookups stat every
key. It recovers by a scandir with sizes, and relies on an open file staying readable after its unlink."""

import os

from engine_client import MODEL, Engine, aligned, aligned_copy, equal, main


class LmcacheFsL2(Engine):
    def start(self):
        self.makedirs(self.root)
        if self.variant == "tmp-dir":
            self.makedirs(os.path.join(self.root, "tmp"))
        self.granularity = self.calls.statvfs(self.root).f_bsize
        with self.calls.scandir(self.root) as entries:
            for entry in entries:
                if entry.name.endswith(".data") and entry.is_file(follow_symlinks=False):
                    self.calls.count("recovered", f"{entry.stat().st_size} bytes")

    def name(self, block):
        rank = 4 << 24 | block.owner << 16 | 4 << 8 | block.owner
        return f"{MODEL.replace('/', '-SEP-')}@0x{rank:08x}@0@{block.hash}@tenant-a.data"

    def path(self, block):
        return os.path.join(self.root, self.name(block))

    def files(self, block):
        return [self.path(block)]

    def temporary(self, block):
        if self.variant == "tmp-dir":
            return os.path.join(self.root, "tmp", self.name(block))
        return self.path(block).removesuffix(".data") + ".tmp"

    def store(self, block, data):
        final = self.path(block)
        if self.exists(final):
            return
        temporary = self.temporary(block)
        if block.size % self.granularity == 0:
            fd = self.calls.open(temporary, os.O_CREAT | os.O_WRONLY | os.O_DIRECT, 0o644)
            self.calls.write(fd, aligned_copy(data))
            self.calls.close(fd)
        else:
            with self.calls("open", open, temporary, "wb") as file:
                self.calls("write", file.write, data)
        self.calls.replace(temporary, final)

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def read(self, file, size):
        buffer = aligned(size)
        n = 0
        while n < size:
            got = self.calls("readinto", file.readinto, buffer[n:])
            if got == 0:
                return None
            n += got
        return buffer

    def load(self, block):
        try:
            with self.calls("open", open, self.path(block), "rb") as file:
                return self.read(file, block.size)
        except FileNotFoundError:
            return None

    def delete(self, blocks):
        """Every eighth block has a reader when it is evicted."""
        for i, block in enumerate(blocks):
            if i % 8 != 0:
                self.unlink(self.path(block))
                continue
            with self.calls("open", open, self.path(block), "rb") as file:
                self.unlink(self.path(block))
                if not equal(self.data.of(block), self.read(file, block.size)):
                    raise AssertionError(f"{block} after its unlink")


main(LmcacheFsL2)
