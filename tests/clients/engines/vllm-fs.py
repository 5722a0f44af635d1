# SPDX-License-Identifier: Apache-2.0
"""vLLM, OffloadingConnector with the tier "fs": a config.json beside a tree of hashes; an O_DIRECT probe at the start; a
temporary file made with O_EXCL, one write of the whole block, os.replace; one readv of the whole block; lookups by
access(F_OK) of all names of a step. A load that fails in any way unlinks the file. As of PR 57912 a CRC is set as an
xattr of the temporary file and compared after the read."""

import json
import os
import random
import struct
import zlib

from engine_client import MODEL, Engine, aligned, aligned_copy, direct_if_aligned, main

CRC = "user.vllm.kv_crc32c"


class VllmFs(Engine):
    threads = 4

    def start(self):
        base = os.path.join(self.root, f"{MODEL.replace('/', '_')}_0123456789ab")
        self.makedirs(base)
        config = os.path.join(base, "config.json")
        if not self.exists(config):
            with self.calls("open", open, config, "w") as file:
                json.dump({"model": MODEL, "block_size": 16}, file)
        probe = os.path.join(base, f".o_direct_probe_{random.getrandbits(63)}.tmp")
        fd = self.calls.open(probe, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_DIRECT, 0o644)
        self.calls.write(fd, aligned(4096))
        self.calls.close(fd)
        self.calls.remove(probe)
        self.suffix = random.getrandbits(63)

    def path(self, block):
        tree = f"{MODEL.replace('/', '_')}_0123456789ab_r0"
        return os.path.join(self.root, tree, block.hash[:3], f"{block.hash[3:5]}_g0", f"{block.hash}.bin")

    def files(self, block):
        return [self.path(block)]

    def store(self, block, data):
        final = self.path(block)
        if self.exists(final):
            return
        self.makedirs(os.path.dirname(final))
        temporary = f"{final}_{self.suffix}.tmp"
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_TRUNC | direct_if_aligned(block.size)
        fd = self.calls.open(temporary, flags, 0o644)
        if self.calls.write(fd, aligned_copy(data)) != block.size:
            raise OSError(f"short write of {block.hash}")
        self.calls.close(fd)
        self.calls.setxattr(temporary, CRC, struct.pack("<I", zlib.crc32(data)))
        self.calls.replace(temporary, final)

    def lookup(self, blocks):
        return [self.calls.access(self.path(block), os.F_OK) for block in blocks]

    def load(self, block):
        path = self.path(block)
        buffer = aligned(block.size)
        try:
            fd = self.calls.open(path, os.O_RDONLY | direct_if_aligned(block.size))
            try:
                if self.calls.readv(fd, [buffer]) != block.size:
                    raise OSError(f"short read of {block.hash}")
            finally:
                self.calls.close(fd)
            if self.calls.getxattr(path, CRC) != struct.pack("<I", zlib.crc32(buffer)):
                raise OSError(f"CRC of {block.hash}")
        except OSError:
            self.unlink(path)
            return None
        return buffer


main(VllmFs)
