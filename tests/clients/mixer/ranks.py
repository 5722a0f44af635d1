# SPDX-License-Identifier: Apache-2.0
"""Objects in rank directories, and prefix directories, which refer to them in an order.

An object never changes: the first writer of a name who closes a whole file makes it, and it stays until it is removed.
A prefix directory is an ordered set of places. Who creates an entry takes one at the end, unless another writer has it;
it is a reference from his commit on, or given up with the last writer. What is linked or appended is a reference at the
end. An entry is visible while there is a reference and an object; the directory lists the entries before the first that
is not there (yet).
"""

import errno
import os

from mixer.model import MAX_BYTES, N_WORKERS, RENAME_EXCHANGE, RENAME_NOREPLACE, TEMPORARY, File, Group, Mismatch, Writing

RANKS = ["@01000100", "@02000201@1a@tenant"]
HASHES = ["00000001", "deadbeef", "abcdef0123456789", "9f86d081884c7d65" * 4, "60303ae22b998861" * 4, "c0ffee00" * 16]
NO_HASHES = ["DEADBEEF", "deadbee", "dead", "c0ffee00" * 16 + "00", "object"]
PREFIXES = ["p", "q", "prefix v3"]
BAD_LINES = [b"\n", b"no-hash\n", b"DEADBEEF\n", b"deadbee\n", b"deadbeef\r\n", b"deadbeef deadbeef\n"]


class Rank:
    def __init__(self, parent, name):
        self.parent, self.name = parent, name
        self.objects, self.prefixes, self.temporary = {}, {}, {}
        self.rank = self

    def path(self):
        return self.parent.path() + "/" + self.name

    def visible(self, name):
        return self.objects.get(name)

    def n_links(self, name):
        return 1 + sum(p.has(name) for p in self.prefixes.values())


class Place:
    def __init__(self, name):
        self.name, self.is_reference, self.n_writers = name, False, 0


class Prefix:
    def __init__(self, rank, name):
        self.rank, self.name = rank, name
        self.places, self.temporary = {}, {}  # places in their order
        self.has_keys = True

    def path(self):
        return self.rank.path() + "/" + self.name

    def chain(self):
        return [p.name for p in self.places.values() if p.is_reference]

    def run(self):
        """A place that a writer still holds is a gap."""
        found = []
        for place in self.places.values():
            if not place.is_reference or place.name not in self.rank.objects:
                break
            found.append(place.name)
        return found

    def text(self):
        return "".join(name + "\n" for name in self.chain()).encode()

    def has(self, name):
        return name in self.chain()

    def visible(self, name):
        return self.rank.objects.get(name) if self.has(name) else None

    def is_written(self):
        return any(p.n_writers for p in self.places.values())

    def is_full(self):
        return bool(self.run() or self.temporary)

    def append(self, names):
        for name in names:
            if not self.has(name):
                place = self.places.pop(name, None) or Place(name)
                place.is_reference = True
                self.places[name] = place

    def drop(self, name):
        self.places[name].is_reference = False
        if not self.places[name].n_writers:
            del self.places[name]

    def replace(self, names):
        """Writers keep their places, behind the new chain."""
        for name in self.chain():
            self.drop(name)
        written, self.places = self.places, {}
        for name in names:
            if name not in self.places:
                self.places[name] = written.pop(name, None) or Place(name)
                self.places[name].is_reference = True
        self.places |= written
        self.has_keys = True

    def take(self, name):
        place = self.places.setdefault(name, Place(name))
        place.n_writers += 1
        return place

    def writer_closed(self, place, has_committed):
        place.n_writers -= 1
        place.is_reference |= has_committed
        if not place.n_writers and not place.is_reference:
            del self.places[place.name]


class KeysWriter:
    """Who replaces a chain: as a whole when he closes, unless a write was refused."""

    def __init__(self, number, worker, prefix):
        self.number, self.worker, self.prefix = number, worker, prefix
        self.names, self.has_failed = [], False


class RankGroup(Group):
    def __init__(self, *args):
        super().__init__(*args)
        self.ranks = []
        self.keys_writers, self.open_dirs = {}, []
        for name in RANKS:
            rank = Rank(self.root, name)
            self.expect(0, 0, "mkdir", rank.path())
            self.ranks.append(rank)

    # ---- Choices

    def any_rank(self):
        return self.random.choice([self.ranks[0], *self.ranks])

    def all_prefixes(self):
        return [p for rank in self.ranks for p in rank.prefixes.values()]

    def any_prefix(self):
        prefixes = self.all_prefixes()
        return self.random.choice(prefixes) if prefixes else None

    def any_dir(self):
        return self.random.choice([self.root, *self.ranks, *self.all_prefixes()])

    def any_place(self):
        prefix = self.any_prefix()
        return prefix if prefix and self.random.random() < 0.5 else self.any_rank(), self.random.choice(HASHES)

    def any_names(self):
        return self.random.sample(HASHES, self.random.randint(1, 4))

    def settle(self, worker, place):
        """What the kernel knows of an entry of a prefix directory ends a moment after what has made it end elsewhere:
        rm of the object, or another chain."""
        directory, name = place
        path = f"{directory.path()}/{name}"
        if isinstance(directory, Prefix):
            self.expect_soon((0 if directory.visible(name) else errno.ENOENT, None), worker, "exists", path)
        return path

    def settled_place(self, worker):
        place = self.any_place()
        return *place, self.settle(worker, place)

    # ---- What has happened

    def commit(self, w):
        rank, name = w.target
        is_whole = len(w.data) > 0 and not w.needs_tail
        if is_whole and name not in rank.objects:
            rank.objects[name] = File(bytes(w.data))
        if w.place:
            prefix, place = w.place
            prefix.writer_closed(place, is_whole)
        self.writings.discard(w)

    def is_twin(self, w, directory, name):
        """Where only L2 has an object, one of its hash and its size is taken for the same: these would not be."""
        file = directory.rank.objects.get(name)
        return file is not None and len(file.data) == len(w.data)

    def set_target(self, w, directory, name):
        w.target = (directory.rank, name)
        if isinstance(directory, Prefix):
            w.place = (directory, directory.take(name))

    # ---- Objects

    def do_open_read(self, worker):
        directory, name, path = self.settled_place(worker)
        self.next_number += 1
        file = directory.visible(name)
        self.expect(0 if file else errno.ENOENT, worker, "open", self.next_number, path, os.O_RDONLY)
        if file:
            self.add_handle(worker, os.O_RDONLY, file, self.next_number)

    def do_open_write(self, worker):
        directory, name, path = self.settled_place(worker)
        flags = self.random.choice([os.O_WRONLY, os.O_RDWR, os.O_RDWR])
        flags |= self.random.choice([0, os.O_CREAT, os.O_CREAT | os.O_TRUNC, os.O_CREAT | os.O_EXCL, os.O_TRUNC])
        self.next_number += 1
        file = directory.visible(name)
        want = 0
        if flags & os.O_EXCL and file:
            want = errno.EEXIST
        elif not file and not flags & os.O_CREAT:
            want = errno.ENOENT
        self.expect(want, worker, "open", self.next_number, path, flags)
        if want:
            return
        if file and not flags & os.O_TRUNC:
            self.add_handle(worker, flags, file, self.next_number)
            return
        w = Writing(worker)
        if file:
            w.target = (directory.rank, name)
            w.is_overwrite = True
        else:
            self.set_target(w, directory, name)
        self.add_handle(worker, flags, w, self.next_number)

    def do_truncate(self, worker):
        directory, name, path = self.settled_place(worker)
        size = self.random.choice([0, 5, MAX_BYTES])
        file = directory.visible(name)
        want = errno.EROFS if file else errno.ENOENT
        if file and len(file.data) == size:
            want = 0  # it changes nothing
        self.expect(want, worker, "truncate", path, size)

    def do_stat(self, worker):
        self.check_stat(worker, *self.any_place())

    def check_stat(self, worker, directory, name):
        file = directory.visible(name)
        want = (0, (len(file.data), directory.rank.n_links(name))) if file else (errno.ENOENT, None)
        self.expect_soon(want, worker, "stat_links", f"{directory.path()}/{name}")
        if file and isinstance(directory, Prefix):
            numbers = [self.expect(0, worker, "inode_number", f"{d.path()}/{name}") for d in (directory, directory.rank)]
            if numbers[0] != numbers[1]:
                raise Mismatch(f"{directory.path()}/{name}: inode numbers {numbers}")

    def do_read_file(self, worker):
        self.check_file(worker, *self.any_place())

    def check_file(self, worker, directory, name):
        path = self.settle(worker, (directory, name))
        file = directory.visible(name)
        if file:
            self.expect_value(file.data, worker, "read_file", path)
        else:
            self.expect(errno.ENOENT, worker, "read_file", path)

    def is_own(self, _worker, _place):
        """A hash name has no maker who sees it earlier."""
        return False

    def do_unlink(self, worker):
        directory, name, path = self.settled_place(worker)
        file = directory.visible(name)
        self.expect(0 if file else errno.ENOENT, worker, "unlink", path)
        if not file:
            return
        if isinstance(directory, Prefix):
            directory.drop(name)
        else:
            del directory.objects[name]
            self.lose_overwriters((directory, name))

    def do_rename(self, worker):
        """Between a rank and its prefix directories an object keeps its name, and only references come and go. Two
        names of one file: rename(2) does nothing."""
        (old, name), (new, new_name) = self.any_place(), self.any_place()
        if self.random.random() < 0.5:
            new_name = name
        flags = self.random.choice([0, 0, RENAME_NOREPLACE])
        paths = self.settle(worker, (old, name)), self.settle(worker, (new, new_name))
        is_same = old.rank is new.rank and name == new_name
        want = 0
        if not old.visible(name):
            want = errno.ENOENT
        elif flags and new.visible(new_name):
            want = errno.EEXIST
        elif not is_same:
            want = errno.EXDEV
        self.expect(want, worker, "rename", *paths, flags)
        if want or new.visible(new_name):
            return
        new.append([name])
        if isinstance(old, Prefix):
            old.drop(name)

    def do_rename_temporary(self, worker):
        old, temporary = self.any_dir(), self.random.choice(TEMPORARY)
        directory, name, path = self.settled_place(worker)
        flags = self.random.choice([0, 0, RENAME_NOREPLACE])
        w = old.temporary.get(temporary)
        want = 0
        if w and self.is_twin(w, directory, name):
            return
        if not w:
            want = errno.ENOENT
        elif flags and directory.visible(name):
            want = errno.EEXIST
        self.expect(want, worker, "rename", f"{old.path()}/{temporary}", path, flags)
        if want:
            return
        del old.temporary[temporary]
        w.temporary = None
        self.set_target(w, directory, name)
        if w.n_writers == 0:
            self.commit(w)

    def do_link(self, worker):
        (old, name), (new, new_name) = self.any_place(), self.any_place()
        if old.rank is not new.rank or self.random.random() < 0.7:
            new_name = name
        paths = self.settle(worker, (old, name)), self.settle(worker, (new, new_name))
        want = 0
        if not old.visible(name):
            want = errno.ENOENT
        elif new.visible(new_name):
            want = errno.EEXIST
        elif isinstance(new, Rank):
            want = errno.EPERM
        elif old.rank is not new.rank:
            want = errno.EXDEV
        elif name != new_name:
            want = errno.EINVAL
        self.expect(want, worker, "link", *paths)
        if not want:
            new.append([name])

    def do_refused(self, worker):
        """What is refused whoever asks."""
        rank, prefix, root = self.any_rank(), self.any_prefix(), self.root.path()
        no_hash, name = self.random.choice(NO_HASHES), self.random.choice(HASHES)
        object_path, is_there = f"{rank.path()}/{name}", name in rank.objects
        self.next_number += 1
        calls = [
            (errno.EINVAL, "open", self.next_number, f"{rank.path()}/{no_hash}", os.O_CREAT | os.O_WRONLY),
            (errno.ENOENT, "open", self.next_number, f"{rank.path()}/{no_hash}", os.O_RDONLY),
            (errno.EEXIST if is_there else errno.EINVAL, "mkdir", object_path),
            (errno.EEXIST if is_there else errno.EPERM, "symlink", "x", object_path),
            (errno.EXDEV, "rename", rank.path(), f"{root}/@03000300", 0),
            (errno.ENOTEMPTY if rank.objects or rank.prefixes or rank.temporary else None, "rmdir", rank.path()),
        ]
        if is_there:
            calls += [
                (errno.EPERM, "link", object_path, f"{root}/name"),
                (errno.EXDEV, "rename", object_path, f"{root}/name", 0),
                (errno.ENOTDIR, "rmdir", object_path),
            ]
        for other in [n for n in (*rank.objects, *rank.temporary) if n != name and is_there]:
            calls.append((errno.EINVAL, "rename", f"{rank.path()}/{other}", object_path, RENAME_EXCHANGE))
        for temporary in rank.temporary:
            calls.append((errno.EINVAL, "rename", f"{rank.path()}/{temporary}", f"{rank.path()}/{no_hash}", 0))
        if prefix:
            other = next(r for r in self.ranks if r is not prefix.rank)
            absent = [h for h in HASHES if h not in prefix.rank.objects]
            calls += [
                (errno.EINVAL, "open", self.next_number, f"{prefix.path()}/{no_hash}", os.O_CREAT | os.O_WRONLY),
                (errno.EINVAL, "mkdir", f"{prefix.path()}/d"),
                (errno.EISDIR, "unlink", prefix.path()),
                (errno.EXDEV, "rename", prefix.path(), f"{other.path()}/other", 0),
                (errno.EPERM if prefix.has_keys else errno.ENOENT, "link", f"{prefix.path()}/.keys", f"{root}/keys"),
            ]
            calls += [(errno.EINVAL, "rename", prefix.path(), f"{prefix.rank.path()}/{h}", 0) for h in absent]
        want, *call = self.random.choice(calls)
        if want is not None:
            self.expect(want, worker, *call)

    # ---- Memory

    def do_evict(self, worker):
        """What is in use stays: EBUSY."""
        directory, name, path = self.settled_place(worker)
        if directory.visible(name):
            line = path[len(os.path.dirname(self.control)) :].encode() + b"\n"
            self.expect(0, worker, "write_file", self.control + "/flush", os.O_WRONLY, [line])
            got, _ = self.call(worker, "write_file", self.control + "/evict", os.O_WRONLY, [line])
            if got not in (0, errno.EBUSY):
                raise Mismatch(self.log[-1])

    def do_open_dir(self, worker):
        """Its chunks are loaded, and stay in memory."""
        prefix = self.any_prefix()
        if prefix and len(self.open_dirs) < 3:
            self.next_number += 1
            self.expect(0, worker, "open", self.next_number, prefix.path(), os.O_RDONLY | os.O_DIRECTORY)
            self.open_dirs.append((worker, self.next_number))

    def do_close_dir(self, _):
        if self.open_dirs:
            worker, number = self.open_dirs.pop(self.random.randrange(len(self.open_dirs)))
            self.expect(0, worker, "close", number)

    # ---- Prefix directories

    def do_mkdir(self, worker):
        rank, name = self.any_rank(), self.random.choice(PREFIXES)
        want = errno.EEXIST if name in rank.prefixes else 0
        self.expect(want, worker, "mkdir", f"{rank.path()}/{name}")
        if want:
            return
        prefix = rank.prefixes[name] = Prefix(rank, name)
        # Its maker sees no .keys until he has listed it.
        if self.random.random() < 0.5:
            self.expect(errno.ENOENT, worker, "exists", f"{prefix.path()}/.keys")
        self.check_listing(worker, prefix)

    def do_rmdir(self, worker):
        prefix = self.any_prefix()
        # While somebody writes in what lists nothing it is not said whether it can be removed.
        if not prefix or (prefix.is_written() and not prefix.is_full()):
            return
        self.expect(errno.ENOTEMPTY if prefix.is_full() else 0, worker, "rmdir", prefix.path())
        if not prefix.is_full():
            del prefix.rank.prefixes[prefix.name]

    def do_rename_dir(self, worker):
        rank, name, new_name = self.any_rank(), self.random.choice(PREFIXES), self.random.choice(PREFIXES)
        flags = self.random.choice([0, 0, RENAME_NOREPLACE])
        prefix, target = rank.prefixes.get(name), rank.prefixes.get(new_name)
        want = 0
        if not prefix:
            want = errno.ENOENT
        elif flags and target:
            want = errno.EEXIST
        elif target and target is not prefix:
            if target.is_written() and not target.is_full():
                return
            want = errno.ENOTEMPTY if target.is_full() else 0
        self.expect(want, worker, "rename", f"{rank.path()}/{name}", f"{rank.path()}/{new_name}", flags)
        if not want:
            del rank.prefixes[name]
            prefix.name = new_name
            rank.prefixes[new_name] = prefix

    def do_listdir(self, worker):
        self.check_listing(worker, self.random.choice([*self.ranks, *self.all_prefixes()]))

    def check_listing(self, worker, directory):
        got = self.expect(0, worker, "listdir", directory.path())
        if isinstance(directory, Rank):
            want = sorted([*directory.objects, *directory.prefixes, *directory.temporary])
            ordered = sorted(got)
        else:
            want = directory.run() + [".keys"] * directory.has_keys + sorted(directory.temporary)
            ordered = [n for n in got if n not in TEMPORARY] + sorted(n for n in got if n in TEMPORARY)
        if want != ordered:
            raise Mismatch(f"{self.log[-1]}: expected {self.show(want)}, got {self.show(got)}")

    # ---- .keys

    def any_keys(self):
        prefix = self.any_prefix()
        return (prefix, prefix.path() + "/.keys") if prefix else (None, None)

    def is_held(self, prefix):
        return any(k.prefix is prefix for k in self.keys_writers.values())

    def any_pieces(self):
        """The text of some lines, in one write or two, and the names in it; None: it is refused."""
        names = self.any_names()
        lines = [name.encode() + b"\n" for name in names]
        n = self.random.randrange(len(lines))
        pieces = [b"".join(piece) for piece in (lines[:n], lines[n:]) if piece]
        if self.random.random() < 0.85:
            return pieces, names
        pieces[-1] += self.random.choice(BAD_LINES)
        return pieces, None

    def do_keys_read(self, worker):
        prefix, _ = self.any_keys()
        if prefix:
            self.check_keys(worker, prefix)

    def check_keys(self, worker, prefix):
        path = prefix.path() + "/.keys"
        if prefix.has_keys:
            self.expect_value(prefix.text(), worker, "read_file", path)
        else:
            self.expect(errno.ENOENT, worker, "read_file", path)

    def do_keys_append(self, worker):
        prefix, path = self.any_keys()
        if not prefix:
            return
        pieces, names = self.any_pieces()
        flags = os.O_WRONLY | os.O_APPEND | self.random.choice([0, os.O_CREAT])
        if not prefix.has_keys and not flags & os.O_CREAT:
            self.expect(errno.ENOENT, worker, "write_file", path, flags, pieces)
            return
        self.expect(0 if names else errno.EINVAL, worker, "write_file", path, flags, pieces)
        prefix.has_keys = True
        # What was written before the write that was refused is there.
        prefix.append(names or [n.decode() for piece in pieces[:-1] for n in piece.split()])

    def do_keys_replace(self, worker):
        prefix, path = self.any_keys()
        if not prefix:
            return
        pieces, names = self.any_pieces()
        if self.random.random() < 0.1:
            pieces, names = [], []
        must_cut = self.random.random() < 0.3
        flags = os.O_WRONLY | (0 if must_cut else os.O_TRUNC) | self.random.choice([0, os.O_CREAT])
        if not prefix.has_keys and not flags & os.O_CREAT:
            self.expect(errno.ENOENT, worker, "write_file", path, flags, pieces, must_cut)
            return
        self.expect(0 if names is not None else errno.EINVAL, worker, "write_file", path, flags, pieces, must_cut)
        prefix.has_keys = True
        if names is not None:
            prefix.replace(names)

    def do_keys_open(self, worker):
        prefix, path = self.any_keys()
        if not prefix or len(self.keys_writers) > 1:
            return
        self.next_number += 1
        self.expect(0, worker, "open", self.next_number, path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        prefix.has_keys = True
        self.keys_writers[self.next_number] = KeysWriter(self.next_number, worker, prefix)

    def do_keys_write(self, _):
        if not self.keys_writers:
            return
        keys = self.random.choice(list(self.keys_writers.values()))
        pieces, names = self.any_pieces()
        for piece in pieces:
            is_bad = names is None and piece is pieces[-1]
            # Whether a write after one that was refused is accepted is not said.
            got, _ = self.call(keys.worker, "write", keys.number, piece)
            if not keys.has_failed and got != (errno.EINVAL if is_bad else 0):
                raise Mismatch(f"{self.log[-1]}: {piece}")
            keys.has_failed |= is_bad
            keys.names += [] if is_bad else [n.decode() for n in piece.split()]

    def do_keys_close_copy(self, _):
        """No close of the writer: he goes on."""
        if self.keys_writers:
            keys = self.random.choice(list(self.keys_writers.values()))
            self.expect(0, keys.worker, "close_copy", keys.number)

    def do_keys_close(self, _):
        if not self.keys_writers:
            return
        keys = self.keys_writers.pop(self.random.choice(list(self.keys_writers)))
        self.expect(0, keys.worker, "close", keys.number)
        if not keys.has_failed:
            keys.prefix.replace(keys.names)

    def do_keys_rename(self, worker):
        """As an editor or rsync does it. Not while somebody else replaces the chain, whose file has lost its name then."""
        prefix, path = self.any_keys()
        if not prefix or self.is_held(prefix):
            return
        pieces, names = self.any_pieces()
        self.expect(0, worker, "write_file", path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, pieces)
        self.expect(0 if names else errno.EINVAL, worker, "rename", path + ".tmp", path, 0)
        if names:
            prefix.replace(names)
        else:
            self.expect_value(b"".join(pieces), worker, "read_file", path + ".tmp")
            self.expect(0, worker, "unlink", path + ".tmp")

    def do_keys_unlink(self, worker):
        prefix, path = self.any_keys()
        if not prefix or self.is_held(prefix):
            return
        self.expect(0 if prefix.has_keys else errno.ENOENT, worker, "unlink", path)
        if prefix.has_keys:
            prefix.replace([])
            prefix.has_keys = False

    WEIGHTS = {
        "open_read": 6, "open_write": 20, "open_temporary": 8, "close": 24, "close_copy": 1, "write": 16,
        "append": 3, "ftruncate": 3, "read": 8, "fstat": 2, "fsync": 1, "map": 3, "map_store": 4, "kept_map": 2,
        "stat": 4, "read_file": 6, "unlink": 8, "unlink_temporary": 1, "rename": 4, "rename_temporary": 6,
        "rename_temporaries": 2, "link": 8, "truncate": 1, "refused": 4, "evict": 2, "open_dir": 1,
        "close_dir": 1, "listdir": 5, "mkdir": 4, "rmdir": 3, "rename_dir": 3, "keys_read": 4, "keys_append": 3,
        "keys_replace": 3, "keys_open": 2, "keys_write": 3, "keys_close_copy": 1, "keys_close": 2,
        "keys_rename": 2, "keys_unlink": 1,
    }

    # ---- All of it

    def check_all(self):
        for directory in [*self.ranks, *self.all_prefixes()]:
            worker = self.random.randrange(N_WORKERS)
            self.check_listing(worker, directory)
            if isinstance(directory, Prefix):
                self.check_keys(worker, directory)
            for name in HASHES:
                self.check_file(worker, directory, name)

    def finish(self):
        while self.keys_writers:
            self.do_keys_close(0)
        while self.open_dirs:
            self.do_close_dir(0)
        super().finish()
        for directory in [*self.ranks, *self.all_prefixes()]:
            for name in HASHES:
                self.check_stat(0, directory, name)

    def state(self):
        """A chain and its objects outlast the daemon; no temporary file, and no removed .keys."""
        for rank in self.ranks:
            # A chain that only L2 has is counted once it was loaded: before, nobody in the daemon knows its references.
            for prefix in rank.prefixes.values():
                yield "loaded", prefix.path(), None
            for name in rank.objects:
                yield "links", f"{rank.path()}/{name}", rank.n_links(name)
            yield "names", rank.path(), sorted([*rank.objects, *rank.prefixes])
            for prefix in rank.prefixes.values():
                if prefix.has_keys:
                    yield "order", prefix.path(), prefix.run() + [".keys"]
                    yield "file", prefix.path() + "/.keys", prefix.text()
            for name, file in rank.objects.items():
                for directory in [rank, *rank.prefixes.values()]:
                    if directory.visible(name):
                        yield "file", f"{directory.path()}/{name}", file.data
