# SPDX-License-Identifier: Apache-2.0
"""The processes of the operation mixer, which make its calls."""

import ctypes
import os

AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


def check(rc):
    if rc in (-1, ctypes.c_void_p(-1).value):
        raise OSError(ctypes.get_errno(), "")
    return rc


class Worker:
    """Descriptors and mappings are known by the numbers that the group gives them."""

    def __init__(self):
        self.fds = {}
        self.maps = {}

    def open(self, number, path, flags):
        self.fds[number] = os.open(path, flags, 0o644)

    def close(self, number):
        os.close(self.fds.pop(number))

    def close_copy(self, number):
        """As a shell does it: the file stays open."""
        os.close(os.dup(self.fds[number]))

    def pwrite(self, number, data, offset):
        return os.pwrite(self.fds[number], data, offset)

    def append(self, number, data):
        os.lseek(self.fds[number], 0, os.SEEK_END)
        return os.write(self.fds[number], data)

    def pread(self, number, size, offset):
        return os.pread(self.fds[number], size, offset)

    def fstat(self, number):
        return os.fstat(self.fds[number]).st_size

    def ftruncate(self, number, size):
        os.ftruncate(self.fds[number], size)

    def write(self, number, data):
        return os.write(self.fds[number], data)

    def fsync(self, number):
        os.fsync(self.fds[number])

    def map(self, number, size):
        """Not Python's mmap: that duplicates the descriptor."""
        self.maps[number] = (check(libc.mmap(None, size, 3, 1, self.fds[number], 0)), size)

    def map_store(self, number, data, offset):
        ctypes.memmove(self.maps[number][0] + offset, data, len(data))

    def unmap(self, number):
        check(libc.munmap(*self.maps.pop(number)))

    def stat(self, path):
        return os.stat(path).st_size

    def stat_links(self, path):
        found = os.stat(path)
        return found.st_size, found.st_nlink

    def inode_number(self, path):
        return os.stat(path).st_ino

    def exists(self, path):
        os.stat(path)

    def read_file(self, path):
        with open(path, "rb") as f:
            return f.read()

    def write_file(self, path, flags, pieces, must_cut=False):
        """A write for each piece; MUST_CUT: an ftruncate to 0 before them."""
        fd = os.open(path, flags, 0o644)
        try:
            if must_cut:
                os.ftruncate(fd, 0)
            for piece in pieces:
                os.write(fd, piece)
        finally:
            os.close(fd)

    def rename(self, old, new, flags):
        check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))

    def listdir(self, path):
        return os.listdir(path)

    def link(self, old, new):
        os.link(old, new)

    def set_attribute(self, path, value):
        os.setxattr(path, "user.mixer", value)

    def get_attribute(self, path):
        return os.getxattr(path, "user.mixer")

    symlink = staticmethod(os.symlink)
    unlink = staticmethod(os.unlink)
    mkdir = staticmethod(os.mkdir)
    rmdir = staticmethod(os.rmdir)
    truncate = staticmethod(os.truncate)

    def serve(self, pipe):
        while True:
            try:
                name, args = pipe.recv()
            except EOFError:
                return
            try:
                pipe.send((0, getattr(self, name)(*args)))
            except OSError as e:
                pipe.send((e.errno, None))
