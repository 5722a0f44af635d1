# SPDX-License-Identifier: Apache-2.0
"""What the model says of files that are written, read and mapped, whatever space they are in."""

import errno
import multiprocessing
import os
import random
import re
import time

from mixer.calls import Worker

N_WORKERS = 3
MAX_BYTES = 3 << 20
TEMPORARY = [".a", "b.tmp", "c.part"]
RENAME_NOREPLACE, RENAME_EXCHANGE = 1, 2
HUGE_PAGE = 2 << 20


class Mismatch(Exception):
    pass


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

    def __init__(self, data, attribute=None):
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
        self.written_end = 0  # None: not known
        self.place = None  # in a prefix directory, which comes with it

    def content(self):
        return self.base.data if self.data is None else self.data

    def change(self):
        if self.data is None:
            self.data = bytearray(self.base.data)
            self.written_end = None
        return self.data

    def put(self, piece, offset):
        put(self.change(), piece, offset)
        self.needs_tail &= offset + len(piece) < len(self.data)
        if self.written_end is not None:
            self.written_end = max(self.written_end, offset + len(piece))

    def set_size(self, size):
        data = self.change()
        if size > len(data):
            self.needs_tail = True
            data.extend(bytes(size - len(data)))
        elif size < len(data):
            # What is left may end with a hole.
            self.needs_tail = size > 0
            self.written_end = None if size > 0 else 0
            del data[size:]

    def is_unproven(self):
        """Its end is in another page than what was written last, however large the pages are."""
        return self.needs_tail and self.written_end is not None and (
            self.written_end == 0 or (self.written_end - 1) // HUGE_PAGE < (len(self.data) - 1) // HUGE_PAGE)


class Handle:
    """FILE is a Writing, or what is committed: then writing is refused also to who has opened it for that."""

    def __init__(self, number, worker, flags, file):
        self.number, self.worker, self.flags, self.file = number, worker, flags, file
        self.can_write = flags & os.O_ACCMODE != os.O_RDONLY
        self.can_read = flags & os.O_ACCMODE != os.O_WRONLY
        self.map_bytes = 0

    def content(self):
        return self.file.content() if isinstance(self.file, Writing) else self.file.data

    def is_writer(self):
        return self.can_write and isinstance(self.file, Writing)


def put(data, piece, offset):
    if offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(piece)] = piece


class Group:
    """A directory, its model and its processes. What a name means is told by those that inherit from it."""

    def __init__(self, directory, seed, has_passthrough, control):
        self.random = random.Random(seed)
        self.has_passthrough = has_passthrough
        self.root = Dir(None, directory)
        self.control = control
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
        self.log.append(f"{worker}: {name} " + " ".join(map(self.show, args)))
        self.pipes[worker].send((name, args))
        result = self.pipes[worker].recv()
        if result[0]:
            self.log[-1] += " " + errno.errorcode[result[0]]
        return result

    def show(self, value):
        """Short: paths below the directory, the begin of long names."""
        if isinstance(value, bytes) and len(value) > 64 and not value.endswith(b"\n"):
            return f"<{len(value)} bytes>"
        text = str(value).replace(self.root.path(), "")
        return re.sub(r"[0-9a-fg]{24,}", lambda match: match[0][:12] + "~", text)

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
            self.log.pop()
            time.sleep(0.05)

    # ---- Choices

    def any_bytes(self):
        size = self.random.choice([1, 100, 4096, 5000, 70272, 300000])
        return self.random.randbytes(self.random.randint(1, size))

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
        if self.handles[number].is_writer():
            file.n_writers += 1
            self.writings.add(file)

    # ---- The operations

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
        if handle.is_writer() and w.needs_tail and not (w.is_unproven() and self.random.random() < 0.5):
            self.write(handle, b"!", len(w.data) - 1)
        if handle.is_writer() and w.n_writers == 1 and w.target and self.is_twin(w, *w.target):
            self.write(handle, b"!", len(w.data))
        if handle.map_bytes and not (self.has_passthrough and self.random.random() < 0.5):
            self.unmap(handle)
        self.expect(0, worker, "close", handle.number)
        del self.handles[handle.number]
        if handle.map_bytes:
            self.kept_maps[handle.number] = handle
        if handle.is_writer():
            self.writer_closed(w)
        if handle.map_bytes and w not in self.writings and w.target:
            # A store before the commit would be a write after the close.
            self.wait_for_commit(worker, handle, w.target)

    def is_twin(self, w, directory, name):
        return False

    def wait_for_commit(self, worker, handle, target):
        """Who looks for the name waits for it; not its maker, who may see his own file: then nothing is stored."""
        others = [i for i in range(N_WORKERS) if i != worker and not self.is_own(i, target)]
        if others:
            self.check_file(others[0], *target)
        else:
            self.unmap(handle)
            del self.kept_maps[handle.number]

    def do_close_copy(self, worker):
        """Nothing comes of it."""
        handle = self.any_handle(lambda h: h.worker == worker)
        if handle:
            self.expect(0, worker, "close_copy", handle.number)

    def write(self, handle, data, offset):
        if not handle.is_writer():
            self.expect(errno.EROFS, handle.worker, "pwrite", handle.number, data, offset)
            return
        self.expect_value(len(data), handle.worker, "pwrite", handle.number, data, offset)
        handle.file.put(data, offset)

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
        if not handle.is_writer():
            self.expect(errno.EROFS, worker, "append", handle.number, data)
            return
        self.expect_value(len(data), worker, "append", handle.number, data)
        handle.file.put(data, len(handle.content()))

    def do_ftruncate(self, worker):
        """Not of what is mapped: a store behind the new end is a SIGBUS."""
        handle = self.any_handle(lambda h: h.worker == worker and h.can_write and not self.is_mapped(h.file))
        if not handle:
            return
        size = self.random.randint(0, self.random.choice([1, 1000, MAX_BYTES]))
        self.expect(0 if handle.is_writer() else errno.EROFS, worker, "ftruncate", handle.number, size)
        if handle.is_writer():
            handle.file.set_size(size)

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
        handle = self.any_handle(lambda h: h.worker == worker and h.is_writer() and h.can_read and not h.map_bytes
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
        handle.file.put(data, offset)

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

    def do_unlink_temporary(self, worker):
        directory, name = self.any_dir(), self.random.choice(TEMPORARY)
        self.expect(0 if name in directory.temporary else errno.ENOENT, worker, "unlink", f"{directory.path()}/{name}")
        self.displace(directory, name)

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

    def step(self):
        name = self.random.choices(list(self.WEIGHTS), list(self.WEIGHTS.values()))[0]
        worker = self.random.randrange(N_WORKERS)
        if len(self.handles) > 24:
            name = "close"
        getattr(self, "do_" + name)(worker)

    def finish(self):
        while self.handles:
            self.do_close(self.random.randrange(N_WORKERS))
        for handle in self.kept_maps.values():
            self.unmap(handle)
        self.check_all()


def difference(want, got):
    if not isinstance(want, bytes):
        return f"expected {want}, got {got}"
    if len(want) != len(got):
        return f"expected {len(want)} bytes, got {len(got)}"
    first = next(i for i in range(len(want)) if want[i] != got[i])
    n = sum(a != b for a, b in zip(want, got))
    return f"{n} of {len(want)} bytes differ, the first at {first}"
