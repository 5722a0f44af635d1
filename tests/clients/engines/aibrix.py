# SPDX-License-Identifier: Apache-2.0
"""AIBrix, the SHFS connector: two levels of directories below the connection's; a name as long as the key; a temporary
name that is the same in all processes; one write, os.replace, then exists and the size once more; a get asks exists
and the size, and reads all."""

import os

from engine_client import Engine, aligned, main


class Aibrix(Engine):
    threads = 2

    def start(self):
        self.makedirs(os.path.join(self.root, "conn-0"))

    def path(self, block):
        name = block.hash.encode().hex()
        return os.path.join(self.root, "conn-0", name[:2], name[2:4], name)

    def files(self, block):
        return [self.path(block)]

    def is_complete(self, block):
        path = self.path(block)
        return self.exists(path) and self.calls.stat(path).st_size == block.size

    def store(self, block, data):
        final = self.path(block)
        if self.exists(final):
            return
        self.makedirs(os.path.dirname(final))
        temporary = final + ".tmp"
        with self.calls("open", open, temporary, "wb") as file:
            self.calls("write", file.write, data)
        self.calls.replace(temporary, final)
        if not self.is_complete(block):
            raise OSError(f"{block.hash} is not there after its rename")

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        if not self.is_complete(block):
            return None
        buffer = aligned(block.size)
        with self.calls("open", open, self.path(block), "rb") as file:
            if self.calls("readinto", file.readinto, buffer) != block.size:
                raise OSError(f"short read of {block.hash}")
        return buffer


main(Aibrix)
