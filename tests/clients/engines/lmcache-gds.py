# SPDX-License-Identifier: Apache-2.0
"""LMCache, GdsBackend without cuFile: two levels of directories; a header of 4096 bytes by open("wb"), then ftruncate
and the data through a shared writable mapping of the temporary file, then rename; a metadata file beside it in the
same way, later. Loads map privately with MAP_POPULATE; the metadata is opened with O_NOATIME. A start reads the
metadata of all."""

import ctypes
import json
import mmap
import os
import secrets
import urllib.parse

from engine_client import MODEL, Engine, address_of, aligned, main

HEADER_BYTES = 4096

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def map_file(size, protection, flags, fd):
    """Python's own mmap keeps a duplicate of the descriptor."""
    address = libc.mmap(None, size, protection, flags, fd, 0)
    if address == ctypes.c_void_p(-1).value:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return address


class LmcacheGds(Engine):
    threads = 4

    def start(self):
        self.makedirs(self.root)
        self.made = set()
        for first in sorted(self.calls.listdir(self.root)):
            for second in sorted(os.listdir(os.path.join(self.root, first))):
                with os.scandir(os.path.join(self.root, first, second)) as entries:
                    for entry in entries:
                        if entry.name.endswith(".metadata"):
                            self.read_metadata(entry.path)

    def path(self, block):
        key = f"vllm@{MODEL}@4@{block.owner}@{block.hash}@bfloat16"
        name = urllib.parse.quote(key, safe="") + ".kvcache.safetensors"
        return os.path.join(self.root, block.hash[:2], block.hash[2:4], name)

    def files(self, block):
        return [self.path(block) + ".metadata", self.path(block)]

    def store(self, block, data):
        final = self.path(block)
        directory = os.path.dirname(final)
        if directory not in self.made:
            self.makedirs(directory)
            self.made.add(directory)
        temporary = f"{final}.tmp{secrets.token_hex(4)}"
        with self.calls("open", open, temporary, "wb") as file:
            self.calls("write", file.write, bytes(HEADER_BYTES))
        fd = self.calls.open(temporary, os.O_RDWR)
        size = HEADER_BYTES + block.size
        self.calls.ftruncate(fd, size)
        address = self.calls("mmap", map_file, size, mmap.PROT_WRITE, mmap.MAP_SHARED, fd)
        ctypes.memmove(address + HEADER_BYTES, address_of(data), block.size)
        libc.munmap(address, size)
        self.calls.close(fd)
        self.calls.rename(temporary, final)
        temporary = f"{final}.metadata.tmp{secrets.token_hex(4)}"
        with self.calls("open", open, temporary, "wb") as file:
            self.calls("write", file.write, json.dumps({"size": block.size, "dtype": "bfloat16"}).encode())
        self.calls.rename(temporary, f"{final}.metadata")

    def lookup(self, blocks):
        return [self.exists(self.path(block) + ".metadata") for block in blocks]

    def read_metadata(self, path):
        fd = self.calls.open(path, os.O_RDONLY | os.O_NOATIME)
        metadata = json.loads(self.calls("read metadata", os.read, fd, HEADER_BYTES))
        self.calls.close(fd)
        return metadata["size"]

    def load(self, block):
        try:
            if self.read_metadata(self.path(block) + ".metadata") != block.size:
                raise OSError(f"metadata of {block.hash}")
            fd = self.calls.open(self.path(block), os.O_RDONLY)
        except FileNotFoundError:
            return None
        size = HEADER_BYTES + block.size
        if self.calls.fstat(fd).st_size < size:
            raise OSError(f"short file {block.hash}")
        flags = mmap.MAP_PRIVATE | mmap.MAP_POPULATE
        address = self.calls("mmap", map_file, size, mmap.PROT_READ, flags, fd)
        self.calls.close(fd)
        buffer = aligned(block.size)
        ctypes.memmove(address_of(buffer), address + HEADER_BYTES, block.size)
        libc.munmap(address, size)
        return buffer


main(LmcacheGds)
