#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random operations on a mount, checked against a model in memory, in the manner of fsx and fsstress.

    operation-mixer.py --seed N [--seconds N | --steps N] [--groups N] [--passthrough] DIRECTORY [STATE]

Each group has a directory of its own, a model and three processes. The group draws one call after the other, has one
of its processes make it, and compares the result with the model's: so a seed gives the same calls again. The groups run
at the same time. With STATE, what must be there at the end is written to that file; with --verify STATE it is looked
for, and nothing else done.

The model: a written file is nobody's but its writer's until its last close, which makes it the content of its name;
readers keep what they have opened; a temporary file is seen by all and becomes a file by rename.
"""

import argparse
import ctypes
import errno
import multiprocessing
import os
import pickle
import random
import sys
import time
import traceback

N_WORKERS = 3
MAX_BYTES = 3 << 20
NAMES = ["a", "b", "c", "long" + "g" * 60]
TEMPORARY = [".a", "b.tmp", "c.part"]
RENAME_NOREPLACE = 1
AT_FDCWD = -100

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
libc.msync.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Mismatch(Exception):
    pass


# ---- The processes that make the calls --------------------------------------------------------------------------------


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

    def read_file(self, path):
        with open(path, "rb") as f:
            return f.read()

    def rename(self, old, new, flags):
        check(libc.renameat2(AT_FDCWD, os.fsencode(old), AT_FDCWD, os.fsencode(new), flags))

    def listdir(self, path):
        return sorted(os.listdir(path))

    def link(self, old, new):
        os.link(old, new)

    def set_attribute(self, path, value):
        os.setxattr(path, "user.mixer", value)

    def get_attribute(self, path):
        return os.getxattr(path, "user.mixer")

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


# ---- The model --------------------------------------------------------------------------------------------------------


class Dir:
    def __init__(self, parent, name):
        self.parent, self.name = parent, name
        self.dirs, self.files, self.temporary = {}, {}, {}

    def path(self):
        return self.name if self.parent is None else self.parent.path() + "/" + self.name

    def all(self):
        yield self
        for child in self.dirs.values():
            yield from child.all()


class File:
    """What has been committed under a name."""

    def __init__(self, data, attribute):
        self.data, self.attribute = data, attribute


class Writing:
    """A file that is being written, or a temporary one. DATA is None for a copy of BASE that nobody has changed."""

    def __init__(self, owner):
        self.owner = owner
        self.data, self.base = bytearray(), None
        self.target = None  # (dir, name)
        self.is_overwrite = False
        self.temporary = None  # (dir, name)
        self.n_writers = 0
        self.attribute = None
        self.needs_tail = False  # declared to a size that nobody has written to

    def content(self):
        return self.base.data if self.data is None else self.data

    def change(self):
        if self.data is None:
            self.data = bytearray(self.base.data)
        return self.data


class Handle:
    def __init__(self, number, worker, flags, file):
        self.number, self.worker, self.flags, self.file = number, worker, flags, file
        self.can_write = flags & os.O_ACCMODE != os.O_RDONLY
        self.can_read = flags & os.O_ACCMODE != os.O_WRONLY
        self.map_bytes = 0

    def content(self):
        return self.file.content() if isinstance(self.file, Writing) else self.file.data


def put(data, piece, offset):
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


class Group:
    def __init__(self, directory, seed, has_passthrough):
        self.random = random.Random(seed)
        self.has_passthrough = has_passthrough
        self.root = Dir(None, directory)
        self.handles, self.kept_maps, self.writings = {}, {}, set()
        self.next_number = 0
        self.log = []
        self.pipes = []
        for _ in range(N_WORKERS):
            ours, theirs = multiprocessing.Pipe()
            if os.fork() == 0:
                ours.close()
                for pipe in self.pipes:
                    pipe.close()
                Worker().serve(theirs)
                os._exit(0)
            theirs.close()
            self.pipes.append(ours)
        os.mkdir(directory)

    # ---- Calls

    def call(self, worker, name, *args):
        shown = [f"<{len(a)} bytes>" if isinstance(a, bytes) else a for a in args]
        self.log.append(f"{worker}: {name} {shown}")
        self.pipes[worker].send((name, args))
        result = self.pipes[worker].recv()
        if result[0]:
            self.log[-1] += " " + errno.errorcode[result[0]]
        return result

    def expect(self, want, worker, name, *args):
        """WANT: an errno, or 0; returns the value."""
        got, value = self.call(worker, name, *args)
        if got != want:
            names = [errno.errorcode.get(e, "success") for e in (want, got)]
            raise Mismatch(f"{self.log[-1]}: expected {names[0]}, got {names[1]}")
        return value

    def expect_value(self, want, worker, name, *args):
        got = self.expect(0, worker, name, *args)
        if got != want:
            raise Mismatch(f"{self.log[-1]}: {difference(want, got)}")

    def expect_soon(self, want, worker, name, *args):
        """The kernel may keep what stat(2) says for a second."""
        end = time.monotonic() + 5
        while True:
            result = self.call(worker, name, *args)
            if result == want:
                return
            if time.monotonic() > end:
                raise Mismatch(f"{self.log[-1]}: expected {want}, got {result}")
            time.sleep(0.05)

    # ---- Choices

    def any_dir(self):
        return self.random.choice(list(self.root.all()))

    def any_bytes(self):
        size = self.random.choice([1, 100, 4096, 5000, 70272, 300000])
        return self.random.randbytes(self.random.randint(1, size))

    def any_place(self):
        return self.any_dir(), self.random.choice(NAMES)

    def is_own(self, worker, place):
        """Its maker sees a plain file before its commit: calls that would need to know who are not made."""
        return any(w.owner == worker and w.target == place and not w.is_overwrite for w in self.writings)

    def is_written(self, place):
        return any(w.target == place for w in self.writings)

    def any_handle(self, condition):
        handles = [h for h in self.handles.values() if condition(h)]
        return self.random.choice(handles) if handles else None

    def is_mapped(self, file):
        return any(h.file is file and h.map_bytes for h in [*self.handles.values(), *self.kept_maps.values()])

    def is_open(self, file):
        return any(h.file is file for h in self.handles.values())

    # ---- What has happened

    def lose_overwriters(self, place):
        for w in self.writings:
            if w.is_overwrite and w.target == place:
                w.target = None

    def commit(self, w):
        directory, name = w.target
        if w.data is not None:
            directory.files[name] = File(bytes(w.data), w.attribute)
        self.writings.discard(w)

    def writer_closed(self, w):
        w.n_writers -= 1
        if w.n_writers > 0:
            return
        if w.target:
            self.commit(w)
        elif not w.temporary:
            self.writings.discard(w)

    def displace(self, directory, name):
        old = directory.temporary.pop(name, None)
        if old:
            old.temporary = None
            if old.n_writers == 0:
                self.writings.discard(old)

    def add_handle(self, worker, flags, file, number):
        self.handles[number] = Handle(number, worker, flags, file)
        if isinstance(file, Writing) and self.handles[number].can_write:
            file.n_writers += 1
            self.writings.add(file)

    # ---- The operations

    def do_open_read(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)):
            return
        self.next_number += 1
        file = directory.files.get(name)
        self.expect(0 if file else errno.ENOENT, worker, "open", self.next_number, f"{directory.path()}/{name}", os.O_RDONLY)
        if file:
            self.add_handle(worker, os.O_RDONLY, file, self.next_number)

    def do_open_write(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)):
            return
        flags = self.random.choice([os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        flags |= self.random.choice([0, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL, os.O_TRUNC])
        self.next_number += 1
        file = directory.files.get(name)
        want = 0
        if flags & os.O_EXCL and (file or self.is_written((directory, name))):
            want = errno.EEXIST
        elif not file and not flags & os.O_CREAT:
            want = errno.ENOENT
        self.expect(want, worker, "open", self.next_number, f"{directory.path()}/{name}", flags)
        if want:
            return
        w = Writing(worker)
        w.target = (directory, name)
        if file:
            w.is_overwrite = True
            w.attribute = file.attribute
            if not flags & os.O_TRUNC:
                w.data, w.base = None, file
        self.add_handle(worker, flags, w, self.next_number)

    def do_open_temporary(self, worker):
        directory, name = self.any_dir(), self.random.choice(TEMPORARY)
        flags = self.random.choice([os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
        if flags != os.O_RDONLY:
            flags |= self.random.choice([0, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL, os.O_TRUNC])
        self.next_number += 1
        w = directory.temporary.get(name)
        want = 0
        if flags & os.O_EXCL and w:
            want = errno.EEXIST
        elif not w and not flags & os.O_CREAT:
            want = errno.ENOENT
        self.expect(want, worker, "open", self.next_number, f"{directory.path()}/{name}", flags)
        if want:
            return
        if not w or flags & os.O_TRUNC:
            self.displace(directory, name)
            w = Writing(worker)
            w.temporary = (directory, name)
            directory.temporary[name] = w
        self.add_handle(worker, flags, w, self.next_number)

    def do_close(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker)
        if not handle:
            return
        w = handle.file
        if handle.can_write and w.needs_tail:
            self.write(handle, b"!", len(w.data) - 1)
        if handle.map_bytes and not (self.has_passthrough and self.random.random() < 0.5):
            self.unmap(handle)
        self.expect(0, worker, "close", handle.number)
        del self.handles[handle.number]
        if handle.map_bytes:
            self.kept_maps[handle.number] = handle
        if handle.can_write:
            self.writer_closed(w)
        if handle.map_bytes and w not in self.writings and w.target:
            # A store before the commit would be a write after the close: not published.
            other = (worker + 1) % N_WORKERS
            if not self.is_own(other, w.target):
                self.check_file(other, *w.target)

    def write(self, handle, data, offset):
        self.expect_value(len(data), handle.worker, "pwrite", handle.number, data, offset)
        put(handle.file.change(), data, offset)
        handle.file.needs_tail &= offset + len(data) < len(handle.file.data)

    def do_write(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write)
        if not handle:
            return
        data = self.any_bytes()
        size = len(handle.content())
        offset = self.random.choice([0, size, self.random.randint(0, size), self.random.randint(0, MAX_BYTES // 2)])
        self.write(handle, data, min(offset, MAX_BYTES - len(data)))

    def do_append(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write)
        data = self.any_bytes()
        if not handle or len(handle.content()) + len(data) > MAX_BYTES:
            return
        self.expect_value(len(data), worker, "append", handle.number, data)
        put(handle.file.change(), data, len(handle.content()))
        handle.file.needs_tail = False

    def do_ftruncate(self, worker):
        """Not of what is mapped: a store behind the new end is a SIGBUS."""
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write and not self.is_mapped(h.file))
        if not handle:
            return
        size = self.random.randint(0, self.random.choice([1, 1000, MAX_BYTES]))
        self.expect(0, worker, "ftruncate", handle.number, size)
        data = handle.file.change()
        handle.file.needs_tail = size > len(data) or (handle.file.needs_tail and size > 0)
        if size < len(data):
            # What is left may end with a hole.
            handle.file.needs_tail = size > 0
            del data[size:]
        else:
            data.extend(bytes(size - len(data)))

    def do_read(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker and h.can_read)
        if not handle:
            return
        content = handle.content()
        offset = self.random.choice([0, self.random.randint(0, len(content) + 10)])
        size = self.random.choice([10, 5000, MAX_BYTES])
        self.expect_value(bytes(content[offset : offset + size]), worker, "pread", handle.number, size, offset)

    def do_fstat(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker)
        if handle:
            self.expect_value(len(handle.content()), worker, "fstat", handle.number)

    def do_fsync(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write)
        if handle:
            self.expect(0, worker, "fsync", handle.number)

    def do_map(self, worker):
        """Not of a copy: until it is changed that is mapped as the committed file."""
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write and h.can_read and not h.map_bytes
                                 and h.file.data is not None and not h.file.base and len(h.file.data) > 0)
        if handle:
            self.expect(0, worker, "map", handle.number, len(handle.file.data))
            handle.map_bytes = len(handle.file.data)

    def do_map_store(self, worker):
        handle = self.any_handle(lambda h: h.worker == worker and h.map_bytes)
        if not handle:
            return
        data = self.any_bytes()[: handle.map_bytes]
        offset = self.random.randint(0, handle.map_bytes - len(data))
        self.expect(0, worker, "map_store", handle.number, data, offset)
        put(handle.file.data, data, offset)

    def unmap(self, handle):
        self.expect(0, handle.worker, "unmap", handle.number)
        handle.map_bytes = 0

    def do_kept_map(self, worker):
        """A store through a mapping after the close changes nothing that anyone sees who opens the file then. Who had
        it open as a temporary file has the writer's."""
        kept = [h for h in self.kept_maps.values() if h.worker == worker]
        if not kept:
            return
        handle = self.random.choice(kept)
        if self.random.random() < 0.5:
            self.unmap(handle)
            del self.kept_maps[handle.number]
        elif handle.file not in self.writings and handle.file.target and not self.is_open(handle.file):
            self.expect(0, worker, "map_store", handle.number, b"x" * min(100, handle.map_bytes), 0)

    def do_stat(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)):
            return
        file = directory.files.get(name)
        want = (0, len(file.data)) if file else (errno.ENOENT, None)
        self.expect_soon(want, worker, "stat", f"{directory.path()}/{name}")

    def do_read_file(self, worker):
        directory, name = self.any_place()
        if not self.is_own(worker, (directory, name)):
            self.check_file(worker, directory, name)

    def check_file(self, worker, directory, name):
        file = directory.files.get(name)
        if file:
            self.expect_value(file.data, worker, "read_file", f"{directory.path()}/{name}")
        else:
            self.expect(errno.ENOENT, worker, "read_file", f"{directory.path()}/{name}")

    def do_unlink(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)):
            return
        file = directory.files.pop(name, None)
        self.expect(0 if file else errno.ENOENT, worker, "unlink", f"{directory.path()}/{name}")
        if file:
            self.lose_overwriters((directory, name))

    def do_unlink_temporary(self, worker):
        directory, name = self.any_dir(), self.random.choice(TEMPORARY)
        self.expect(0 if name in directory.temporary else errno.ENOENT, worker, "unlink", f"{directory.path()}/{name}")
        self.displace(directory, name)

    def do_rename(self, worker):
        old, new = self.any_place(), self.any_place()
        if self.is_own(worker, old) or self.is_own(worker, new):
            return
        flags = self.random.choice([0, 0, RENAME_NOREPLACE])
        file, target = old[0].files.get(old[1]), new[0].files.get(new[1])
        want = 0
        if not file:
            want = errno.ENOENT
        elif flags and (target or self.is_written(new)):
            want = errno.EEXIST
        self.expect(want, worker, "rename", f"{old[0].path()}/{old[1]}", f"{new[0].path()}/{new[1]}", flags)
        if want or old == new:
            return
        self.lose_overwriters(new)
        for w in self.writings:
            if w.is_overwrite and w.target == old:
                w.target = new
        new[0].files[new[1]] = old[0].files.pop(old[1])

    def do_rename_temporary(self, worker):
        directory, name = self.any_dir(), self.random.choice(TEMPORARY)
        new = self.any_place()
        if self.is_own(worker, new):
            return
        flags = self.random.choice([0, 0, RENAME_NOREPLACE])
        w = directory.temporary.get(name)
        want = 0
        if not w:
            want = errno.ENOENT
        elif flags and (new[1] in new[0].files or self.is_written(new)):
            want = errno.EEXIST
        self.expect(want, worker, "rename", f"{directory.path()}/{name}", f"{new[0].path()}/{new[1]}", flags)
        if want:
            return
        del directory.temporary[name]
        w.temporary = None
        self.lose_overwriters(new)
        w.target = new
        if w.n_writers == 0:
            self.commit(w)

    def do_rename_temporaries(self, worker):
        old, new = [(self.any_dir(), self.random.choice(TEMPORARY)) for _ in range(2)]
        w = old[0].temporary.get(old[1])
        self.expect(0 if w else errno.ENOENT, worker, "rename", f"{old[0].path()}/{old[1]}", f"{new[0].path()}/{new[1]}", 0)
        if not w or old == new:
            return
        del old[0].temporary[old[1]]
        self.displace(*new)
        new[0].temporary[new[1]] = w
        w.temporary = new

    def do_link(self, worker):
        old, new = self.any_place(), self.any_place()
        if self.is_own(worker, old) or self.is_own(worker, new):
            return
        want = errno.EPERM
        if old[1] not in old[0].files:
            want = errno.ENOENT
        elif new[1] in new[0].files:
            want = errno.EEXIST
        self.expect(want, worker, "link", f"{old[0].path()}/{old[1]}", f"{new[0].path()}/{new[1]}")

    def do_truncate(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)):
            return
        size = self.random.randint(0, self.random.choice([1, 1000, MAX_BYTES]))
        file = directory.files.get(name)
        self.expect(0 if file else errno.ENOENT, worker, "truncate", f"{directory.path()}/{name}", size)
        if file:
            data = file.data[:size] + bytes(max(0, size - len(file.data)))
            directory.files[name] = File(data, file.attribute)

    def do_set_attribute(self, worker):
        directory, name = self.any_place()
        if self.is_own(worker, (directory, name)) or self.is_written((directory, name)):
            return
        file = directory.files.get(name)
        value = self.random.randbytes(10)
        self.expect(0 if file else errno.ENOENT, worker, "set_attribute", f"{directory.path()}/{name}", value)
        if file:
            file.attribute = value

    def do_get_attribute(self, worker):
        directory, name = self.any_place()
        file = directory.files.get(name)
        if not file or self.is_own(worker, (directory, name)) or self.is_written((directory, name)):
            return
        want = (0, file.attribute) if file.attribute else (errno.ENODATA, None)
        self.expect_soon(want, worker, "get_attribute", f"{directory.path()}/{name}")

    def do_listdir(self, worker):
        self.check_listing(worker, self.any_dir())

    def check_listing(self, worker, directory):
        want = {*directory.files, *directory.temporary, *directory.dirs}
        own = {n for n in NAMES if self.is_own(worker, (directory, n))}
        got = self.expect(0, worker, "listdir", directory.path())
        if want - own != set(got) - own or len(got) != len(set(got)):
            raise Mismatch(f"{self.log[-1]}: expected {sorted(want)}, got {got}")

    def do_mkdir(self, worker):
        parent, name = self.any_dir(), self.random.choice(["d", "e"])
        if len(list(self.root.all())) > 5:
            return
        want = errno.EEXIST if name in parent.dirs else 0
        self.expect(want, worker, "mkdir", f"{parent.path()}/{name}")
        if not want:
            parent.dirs[name] = Dir(parent, name)

    def do_rmdir(self, worker):
        directory = self.any_dir()
        if directory is self.root or any(w.target and w.target[0] is directory for w in self.writings):
            return
        is_full = directory.files or directory.dirs or directory.temporary
        self.expect(errno.ENOTEMPTY if is_full else 0, worker, "rmdir", directory.path())
        if not is_full:
            del directory.parent.dirs[directory.name]

    def do_rename_dir(self, worker):
        directory, parent, name = self.any_dir(), self.any_dir(), self.random.choice(["d", "e"])
        target = parent.dirs.get(name)
        if directory is self.root or parent in directory.all() or directory is target:
            return
        if target and (directory in target.all() or any(w.target and w.target[0] is target for w in self.writings)):
            return
        is_full = target and (target.files or target.dirs or target.temporary)
        old = directory.path()
        self.expect(errno.ENOTEMPTY if is_full else 0, worker, "rename", old, f"{parent.path()}/{name}", 0)
        if not is_full:
            del directory.parent.dirs[directory.name]
            parent.dirs[name] = directory
            directory.parent, directory.name = parent, name

    WEIGHTS = {
        "open_read": 6, "open_write": 14, "open_temporary": 8, "close": 20, "write": 16, "append": 4, "ftruncate": 3,
        "read": 10, "fstat": 4, "fsync": 1, "map": 3, "map_store": 4, "kept_map": 2, "stat": 6, "read_file": 6,
        "unlink": 3, "unlink_temporary": 1, "rename": 5, "rename_temporary": 6, "rename_temporaries": 1, "link": 1,
        "truncate": 2, "set_attribute": 1, "get_attribute": 1, "listdir": 2, "mkdir": 1, "rmdir": 1, "rename_dir": 1,
    }

    def step(self):
        name = self.random.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        worker = self.random.randrange(N_WORKERS)
        if len(self.handles) > 24:
            name = "close"
        getattr(self, "do_" + name)(worker)

    def check_all(self):
        for directory in self.root.all():
            worker = self.random.randrange(N_WORKERS)
            self.check_listing(worker, directory)
            for name in NAMES:
                if not self.is_own(worker, (directory, name)):
                    self.check_file(worker, directory, name)

    def finish(self):
        while self.handles:
            self.do_close(self.random.randrange(N_WORKERS))
        for handle in self.kept_maps.values():
            self.unmap(handle)
        self.check_all()
        return {f"{d.path()}/{n}": f.data for d in self.root.all() for n, f in d.files.items()}


def difference(want, got):
    if not isinstance(want, bytes):
        return f"expected {want}, got {got}"
    if len(want) != len(got):
        return f"expected {len(want)} bytes, got {len(got)}"
    first = next(i for i in range(len(want)) if want[i] != got[i])
    n = sum(a != b for a, b in zip(want, got))
    return f"{n} of {len(want)} bytes differ, the first at {first}"


def run_group(directory, seed, options, pipe):
    group = Group(directory, seed, options.passthrough)
    end = time.monotonic() + options.seconds if options.seconds else None
    n = 0
    try:
        while n < options.steps if not end else time.monotonic() < end:
            group.step()
            n += 1
            if n % 200 == 0:
                group.check_all()
                del group.log[:-400]
        pipe.send((n, group.finish()))
    except Exception as e:
        lines = group.log[-options.lines :]
        print(f"seed {seed}, step {n}, {directory}: {e}", *lines, sep="\n    ", flush=True)
        if not isinstance(e, Mismatch):
            traceback.print_exc()
        pipe.send((n, None))


def verify(state):
    with open(state, "rb") as f:
        files = pickle.load(f)
    bad = 0
    for path, data in files.items():
        try:
            with open(path, "rb") as f:
                got = f.read()
            if got != data:
                print(f"{path}: {difference(data, got)}")
                bad += 1
        except OSError as e:
            print(f"{path}: {e.strerror}")
            bad += 1
    print(f"{len(files)} files, {bad} of them wrong")
    return bad


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--groups", type=int, default=3)
    parser.add_argument("--lines", type=int, default=60)
    parser.add_argument("--passthrough", action="store_true")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("directory")
    parser.add_argument("state", nargs="?")
    options = parser.parse_args()
    if options.verify:
        sys.exit(verify(options.state) > 0)
    pipes, total, files, failed = [], 0, {}, False
    for i in range(options.groups):
        ours, theirs = multiprocessing.Pipe()
        if os.fork() == 0:
            ours.close()
            run_group(f"{options.directory}/g{i}", options.seed + i, options, theirs)
            os._exit(0)
        theirs.close()
        pipes.append(ours)
    for pipe in pipes:
        n, result = pipe.recv()
        total += n
        failed |= result is None
        files.update(result or {})
    if options.state:
        with open(options.state, "wb") as f:
            pickle.dump(files, f)
    print(f"{total} operations, seed {options.seed}: {'FAILED' if failed else 'passed'}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
