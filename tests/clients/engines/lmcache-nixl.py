# SPDX-License-Identifier: Apache-2.0
"""LMCache, NIXL storage in its dynamic mode with shard_dirs: two levels of directories; a temporary file made without a
mode (0777 less the umask), written a page a request by Linux AIO, with O_DIRECT where the size allows it; rename;
stat for the size. A shutdown walks and unlinks what is temporary."""

import os
import uuid

from aio import PREAD, PWRITE, process_aio
from engine_client import MODEL, Engine, aligned, aligned_copy, direct_if_aligned, main

PAGE = 128 << 10


class LmcacheNixl(Engine):
    def start(self):
        self.makedirs(self.root)
        self.aio = process_aio()

    def path(self, block):
        rank = 4 << 24 | block.owner << 16 | 4 << 8 | block.owner
        name = f"{MODEL.replace('/', '--')}_{rank:08x}_0_{block.hash}@tenant-a.bin"
        return os.path.join(self.root, block.hash[:2], block.hash[2:4], name)

    def files(self, block):
        return [self.path(block)]

    def store(self, block, data):
        final = self.path(block)
        self.makedirs(os.path.dirname(final))
        temporary = f"{final}.tmp.{uuid.uuid4().hex}"
        fd = self.calls.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | direct_if_aligned(block.size))
        self.calls("aio", self.aio.transfer, PWRITE, fd, aligned_copy(data), PAGE)
        self.calls.close(fd)
        self.calls.rename(temporary, final)
        if self.calls.stat(final).st_size != block.size:
            raise OSError(f"stored size of {block.hash}")

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        try:
            fd = self.calls.open(self.path(block), os.O_RDWR | direct_if_aligned(block.size))
        except FileNotFoundError:
            return None
        buffer = aligned(block.size)
        self.calls("aio", self.aio.transfer, PREAD, fd, buffer, PAGE)
        self.calls.close(fd)
        return buffer

    def clear(self):
        # One that a process left.
        left = os.path.join(self.root, f"left.bin.tmp.{uuid.uuid4().hex}")
        self.calls.close(self.calls.open(left, os.O_RDWR | os.O_CREAT))
        for path in list(self.walk()):
            if ".tmp." not in path:
                raise AssertionError(f"left: {path}")
            self.unlink(path)


main(LmcacheNixl)
