# SPDX-License-Identifier: Apache-2.0
"""LMCache, FSConnector (remote_url fs://): several base directories; a temporary name that is the same in all
processes; a header of 28 bytes and the body in two writes, os.replace; two readintos. All of it through aiofiles, so
each call of one file may come from another thread. Lookups stat all keys at once; list() is a glob."""

import asyncio
import functools
import glob
import os
import pathlib
import struct

from engine_client import LARGEST, MODEL, Engine, main, new_memory

HEADER = struct.Struct("<7I")
AT_ONCE = 4


@functools.cache
def request_buffers():
    return [new_memory(LARGEST) for _ in range(AT_ONCE)]


class LmcacheFsConnector(Engine):
    def start(self):
        self.buffers = request_buffers()
        self.bases = [os.path.join(self.root, name) for name in ("a", "b")]
        for base in self.bases:
            self.calls("mkdir", pathlib.Path(base).mkdir, parents=True, exist_ok=True)

    def path(self, block, suffix=".data"):
        base = self.bases[int(block.hash, 16) % len(self.bases)]
        return os.path.join(base, f"vllm@{MODEL.replace('/', '-')}@4@{block.owner}@{block.hash}@bfloat16{suffix}")

    def files(self, block):
        return [self.path(block)]

    async def in_a_thread(self, *call):
        return await asyncio.get_running_loop().run_in_executor(None, self.calls, *call)

    async def put(self, block, data):
        temporary = self.path(block, ".tmp")
        file = await self.in_a_thread("open", open, temporary, "wb")
        await self.in_a_thread("write", file.write, HEADER.pack(block.size, 1, 2, 3, 4, 5, 6))
        await self.in_a_thread("write", file.write, data)
        await self.in_a_thread("close", file.close)
        self.calls.replace(temporary, self.path(block))

    async def get(self, block, buffer):
        try:
            file = await self.in_a_thread("open", open, self.path(block), "rb")
        except FileNotFoundError:
            return None
        header, body = bytearray(HEADER.size), buffer[: block.size]
        await self.in_a_thread("readinto", file.readinto, header)
        size = HEADER.unpack(header)[0]
        n = await self.in_a_thread("readinto", file.readinto, body)
        await self.in_a_thread("close", file.close)
        return body if n == size == block.size else None

    def gather(self, function, blocks):
        """AT_ONCE at a time."""

        async def some():
            for first in range(0, len(blocks), AT_ONCE):
                await asyncio.gather(*map(function, blocks[first : first + AT_ONCE], self.buffers))

        asyncio.run(some())

    def store_all(self, blocks):
        self.gather(lambda block, _: self.put(block, self.data.of(block)), blocks)

    def lookup(self, blocks):
        async def all_of_them():
            loop = asyncio.get_running_loop()
            asked = (loop.run_in_executor(None, self.exists, self.path(block)) for block in blocks)
            return await asyncio.gather(*asked)

        return asyncio.run(all_of_them())

    def load(self, block):
        return asyncio.run(self.get(block, self.buffers[0]))

    def load_all(self, blocks, check):
        async def get_and_check(block, buffer):
            check(block, await self.get(block, buffer))

        self.gather(get_and_check, blocks)

    def clear(self):
        for base in self.bases:
            left = glob.glob("*.data", root_dir=base)
            if left:
                raise AssertionError(f"left in {base}: {left}")


main(LmcacheFsConnector)
