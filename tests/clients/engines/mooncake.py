# SPDX-License-Identifier: Apache-2.0
"""Mooncake store, a file for each key: 16 x 16 directories; written in place under the final name by one pwritev of key
and value, and unlinked when that was short; read by one preadv, whose size must match. A start walks everything and
asks for the space."""

import os
import struct

from engine_client import MODEL, Engine, aligned, main


class Mooncake(Engine):
    threads = 2

    def start(self):
        self.makedirs(os.path.join(self.root, "fsdir"))
        self.calls.statvfs(self.root)
        for path in self.walk():
            self.calls.stat(path)

    def key(self, block):
        return f"{MODEL}:{block.hash}:{block.owner}"

    def path(self, block):
        letters = "abcdefghijklmnop"
        low = int(block.hash[-2:], 16)
        name = self.key(block).replace("/", "_").replace(":", "_")
        return os.path.join(self.root, "fsdir", letters[low & 15], letters[low >> 4], name)

    def files(self, block):
        return [self.path(block)]

    def header(self, block):
        key = self.key(block).encode()
        return struct.pack("<II", len(key), block.size) + key

    def store(self, block, data):
        path = self.path(block)
        self.makedirs(os.path.dirname(path))
        fd = self.calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        header = self.header(block)
        n = self.calls.pwritev(fd, [header, data], 0)
        self.calls.close(fd)
        if n != len(header) + block.size:
            self.calls.unlink(path)
            raise OSError(f"short write of {block.hash}")

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        try:
            fd = self.calls.open(self.path(block), os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        header = bytearray(len(self.header(block)))
        buffer = aligned(block.size)
        n = self.calls.preadv(fd, [header, buffer], 0)
        self.calls.close(fd)
        if n != len(header) + block.size or header != self.header(block):
            raise OSError(f"size or key of {block.hash}")
        return buffer


main(Mooncake)
