# SPDX-License-Identifier: Apache-2.0
"""vLLM, SharedStorageConnector (ExampleConnector): a directory for each prompt, in it a safetensors file for each layer;
the directory's name is all that a lookup asks for. The variants are those of the safetensors library: "in-place" (up
to 0.7) sets the length first and writes under the final name; "named-temporary" (since 0.8) makes a file of mode 0600
beside it and renames it. Both write 1 MiB at a time, and read through two private mappings."""

import hashlib
import json
import mmap
import os
import struct
import tempfile

from engine_client import Engine, main

N_LAYERS = 4
PIECE = 1 << 20


class VllmExample(Engine):
    def start(self):
        self.makedirs(self.root)

    # Four blocks of one process are the layers of a prompt.
    def directory(self, block):
        prompt = block.index // (N_LAYERS * 4) * 4 + block.owner
        return os.path.join(self.root, hashlib.md5(f"{block.size}/{prompt}".encode()).hexdigest())

    def path(self, block):
        layer = block.index // 4 % N_LAYERS
        return os.path.join(self.directory(block), f"model.layers.{layer}.self_attn.attn.safetensors")

    def files(self, block):
        return [self.path(block)]

    def header(self, block):
        entry = {"dtype": "U8", "shape": [block.size], "data_offsets": [0, block.size]}
        text = json.dumps({"kv_cache": entry}).encode()
        text += b" " * (-len(text) % 8)
        return struct.pack("<Q", len(text)) + text

    def write_pieces(self, fd, block, data):
        header = self.header(block)
        self.calls.ftruncate(fd, len(header) + len(data))
        # The library's buffer of 1 MiB: the header and the beginning of the data go out together.
        content = header + data[: PIECE - len(header)].tobytes()
        self.calls.write(fd, content)
        for start in range(len(content) - len(header), len(data), PIECE):
            self.calls.write(fd, data[start : start + PIECE])

    def store(self, block, data):
        path = self.path(block)
        self.makedirs(os.path.dirname(path))
        if self.variant == "in-place":
            fd = self.calls.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            self.write_pieces(fd, block, data)
            self.calls.close(fd)
        else:
            # mkstemp opens with O_RDWR | O_CREAT | O_EXCL and mode 0600.
            fd, temporary = self.calls("mkstemp", tempfile.mkstemp, dir=os.path.dirname(path), prefix=".tmp")
            self.write_pieces(fd, block, data)
            self.calls.close(fd)
            self.calls.rename(temporary, path)

    def lookup(self, blocks):
        return [self.exists(self.directory(block)) for block in blocks]

    def load(self, block):
        path = self.path(block)
        try:
            fd = self.calls.open(path, os.O_RDONLY)
        except FileNotFoundError:
            return None
        size = self.calls.fstat(fd).st_size
        with self.calls("mmap", mmap.mmap, fd, size, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ) as mapping:
            (length,) = struct.unpack_from("<Q", mapping)
            entry = json.loads(mapping[8 : 8 + length])["kv_cache"]
        self.calls.close(fd)
        # torch's UntypedStorage.from_file(shared=False).
        fd = self.calls.open(path, os.O_RDONLY)
        self.calls.fstat(fd)
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        mapping = self.calls("mmap", mmap.mmap, fd, size, flags=mmap.MAP_PRIVATE, prot=protection)
        self.calls.close(fd)
        begin, end = entry["data_offsets"]
        return memoryview(mapping)[8 + length + begin : 8 + length + end]

    def delete(self, blocks):
        """Nothing in vLLM removes them; this is rm -r of each prompt."""
        for block in blocks:
            self.unlink(self.path(block))
        for directory in sorted({self.directory(block) for block in blocks}):
            self.calls.rmdir(directory)


main(VllmExample)
