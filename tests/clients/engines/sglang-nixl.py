# SPDX-License-Identifier: Apache-2.0
"""SGLang, HiCacheNixl with a FILE plugin: 256 buckets, written in place under the final name, without O_TRUNC, by Linux
AIO with O_DIRECT; also opened O_RDWR to read. Lookups are one stat a name for the whole list. The cleaner looks at
statvfs, scans the buckets, sorts by mtime and unlinks with 8 threads; clear() walks and removes."""

import concurrent.futures
import hashlib
import os

from aio import PREAD, PWRITE, process_aio
from engine_client import MODEL, N_PROCESSES, Engine, aligned, aligned_copy, direct_if_aligned, main


class SglangNixl(Engine):
    def start(self):
        self.makedirs(self.root)
        os.path.realpath(self.root)
        self.aio = process_aio()

    def name(self, block):
        return f"{block.hash}_{MODEL.replace('/', '-')}_{block.owner}_{N_PROCESSES}_k"

    def path(self, block):
        name = self.name(block)
        bucket = hashlib.blake2b(name.encode(), digest_size=8).digest()[0]
        return os.path.join(self.root, f"{bucket:02x}", name)

    def files(self, block):
        return [self.path(block)]

    def store(self, block, data):
        path = self.path(block)
        self.makedirs(os.path.dirname(path))
        fd = self.calls.open(path, os.O_RDWR | os.O_CREAT | direct_if_aligned(block.size), 0o644)
        self.calls("aio", self.aio.transfer, PWRITE, fd, aligned_copy(data), block.size)
        self.calls.close(fd)

    def lookup(self, blocks):
        return [self.exists(self.path(block)) for block in blocks]

    def load(self, block):
        try:
            fd = self.calls.open(self.path(block), os.O_RDWR | direct_if_aligned(block.size))
        except FileNotFoundError:
            return None
        buffer = aligned(block.size)
        self.calls("aio", self.aio.transfer, PREAD, fd, buffer, block.size)
        self.calls.close(fd)
        return buffer

    def oldest_first(self):
        times = {}
        for bucket in sorted(self.calls.listdir(self.root)):
            with os.scandir(os.path.join(self.root, bucket)) as entries:
                for entry in entries:
                    try:
                        times[entry.path] = entry.stat().st_mtime
                    except FileNotFoundError:
                        continue  # another process has removed it
        return sorted(times, key=times.get)

    def delete(self, blocks):
        """As the cleaner does it: it groups the names of a block (here one) and takes the oldest."""
        self.calls.statvfs(self.root)
        mine = {self.path(block) for block in blocks}
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(self.unlink, [path for path in self.oldest_first() if path in mine]))

    def clear(self):
        for path in self.walk():
            self.unlink(path)


main(SglangNixl)
