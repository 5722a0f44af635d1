# SPDX-License-Identifier: Apache-2.0
"""SGLang, HiCacheFile (--hicache-storage-backend file): one flat directory; a temporary file, written by numpy's tofile
(stdio over a duplicate of the descriptor), then os.replace; read with one unbuffered readinto; lookups by stat, and for
hybrid models by a scandir of the whole directory. The evictor lists at the start and removes by mtime. Only ENOENT is
a miss, any other error ends the engine's thread."""

import ctypes
import os
import threading
import uuid

from engine_client import MODEL, N_PROCESSES, Engine, address_of, aligned, main

libc = ctypes.CDLL(None, use_errno=True)
libc.fdopen.restype = ctypes.c_void_p
libc.fwrite.restype = ctypes.c_size_t
BATCH = 128


def check_stdio(failed):
    if failed:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def fwrite_all(fd, data):
    stream = libc.fdopen(fd, b"wb")
    check_stdio(not stream)
    n = libc.fwrite(ctypes.c_void_p(address_of(data)), 1, len(data), ctypes.c_void_p(stream))
    check_stdio(n != len(data))
    check_stdio(libc.fclose(ctypes.c_void_p(stream)) != 0)


class SglangFile(Engine):
    def start(self):
        if self.rank == 0 and not self.exists(self.root):
            self.makedirs(self.root)
        self.calls.statvfs(self.root)
        self.evictable(self.rank)

    def suffix(self, rank):
        return f"_{MODEL.replace('/', '-')}_{rank}_{N_PROCESSES}.bin"

    def path(self, block):
        # The ranks of a model with MLA (DeepSeek, whose blocks are the small ones) share their files.
        suffix = "_deepseek-ai-DeepSeek-V3.bin" if block.size == 70272 else self.suffix(block.owner)
        return os.path.join(self.root, block.hash + suffix)

    def files(self, block):
        return [self.path(block)]

    def evictable(self, rank):
        """A rank's files, the oldest first."""
        times = {}
        for name in self.calls.listdir(self.root):
            if name.endswith(self.suffix(rank)):
                path = os.path.join(self.root, name)
                times[path] = self.calls.stat(path).st_mtime
        return sorted(times, key=times.get)

    def store(self, block, data):
        final = self.path(block)
        if self.exists(final):
            return
        temporary = f"{final}.tmp.{os.getpid()}.{threading.get_ident()}.{uuid.uuid4().hex}"
        with self.calls("open", open, temporary, "wb") as file:
            self.calls("fwrite", fwrite_all, os.dup(file.fileno()), data)
            file.seek(len(data))
        self.calls.replace(temporary, final)

    def lookup(self, blocks):
        # The generic path stops at the first miss; that of hybrid models lists everything. The counts are the same.
        found = []
        for first in range(0, len(blocks), BATCH):
            for block in blocks[first : first + BATCH]:
                found.append(self.exists(self.path(block)))
                if not found[-1]:
                    break
            if not found[-1]:
                break
        with self.calls.scandir(self.root) as entries:
            names = {entry.name for entry in entries if entry.is_file()}
        listed = [os.path.basename(self.path(block)) in names for block in blocks]
        if listed[: len(found)] != found:
            raise AssertionError("scandir and stat differ")
        return found

    def load(self, block):
        page = aligned(block.size)
        try:
            with self.calls("open", open, self.path(block), "rb", buffering=0) as file:
                if self.calls("readinto", file.readinto, page) != block.size:
                    raise OSError(f"short read of {block.hash}")
        except FileNotFoundError:
            return None
        return page

    def delete(self, blocks):
        """The evictor of the rank whose blocks these are, oldest first; the shared ones by name."""
        mine = {self.path(block) for block in blocks}
        for path in [path for path in self.evictable(blocks[0].owner) if path in mine] or sorted(mine):
            self.unlink(path)

    def clear(self):
        for name in self.calls.listdir(self.root):
            path = os.path.join(self.root, name)
            if os.path.isfile(path):
                self.unlink(path)


main(SglangFile)
