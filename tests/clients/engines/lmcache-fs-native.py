# SPDX-License-Identifier: Apache-2.0
"""LMCache, the C++ connector fs_native: the names of the fs adapter without a group; worker threads; a temporary name
that is the same in all processes, O_TRUNC and, where length and address are aligned, O_DIRECT; a write loop, close,
rename; a read loop; std::filesystem's exists and remove."""

import os

from engine_client import MODEL, Engine, aligned, aligned_copy, direct_if_aligned, main


class LmcacheFsNative(Engine):
    threads = 8

    def start(self):
        self.makedirs(self.root)
        self.calls.statvfs(self.root)

    def path(self, block, suffix=".data"):
        rank = 4 << 24 | block.owner << 16 | 4 << 8 | block.owner
        return os.path.join(self.root, f"{MODEL.replace('/', '-SEP-')}@0x{rank:08x}@{block.hash}{suffix}")

    def files(self, block):
        return [self.path(block)]

    def store(self, block, data):
        final, temporary = self.path(block), self.path(block, ".tmp")
        if self.exists(final):
            return
        flags = os.O_CREAT | os.O_WRONLY | os.O_TRUNC | direct_if_aligned(block.size)
        fd = self.calls.open(temporary, flags, 0o644)
        rest = aligned_copy(data)
        while rest:
            rest = rest[self.calls.write(fd, rest) :]
        self.calls.close(fd)
        self.calls.rename(temporary, final)

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        try:
            fd = self.calls.open(self.path(block), os.O_RDONLY | direct_if_aligned(block.size))
        except FileNotFoundError:
            return None
        buffer = aligned(block.size)
        n = 0
        while n < block.size:
            got = self.calls.readv(fd, [buffer[n:]])
            if got == 0:
                raise OSError(f"short file {block.hash}")
            n += got
        self.calls.close(fd)
        return buffer

    def delete(self, blocks):
        self.in_threads(lambda block: self.unlink(self.path(block)), blocks)


main(LmcacheFsNative)
