# SPDX-License-Identifier: Apache-2.0
"""Plain files and their directories."""

import errno
import os

from mixer.model import MAX_BYTES, N_WORKERS, RENAME_NOREPLACE, TEMPORARY, Dir, File, Group, Mismatch, Writing

NAMES = ["a", "b", "c", "long" + "g" * 60]


class PlainGroup(Group):
    def any_dir(self):
        return self.random.choice(list(self.root.all()))

    def any_place(self):
        return self.any_dir(), self.random.choice(NAMES)

    def is_own(self, worker, place):
        """Its maker sees a plain file before its commit: calls that would need to know who are not made."""
        return any(w.owner == worker and w.target == place and not w.is_overwrite for w in self.writings)

    def commit(self, w):
        directory, name = w.target
        if w.data is not None and not w.needs_tail:
            directory.files[name] = File(bytes(w.data), w.attribute)
        self.writings.discard(w)

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
        "open_read": 6, "open_write": 14, "open_temporary": 8, "close": 20, "close_copy": 1, "write": 16,
        "append": 4, "ftruncate": 3, "read": 10, "fstat": 4, "fsync": 1, "map": 3, "map_store": 4, "kept_map":
        2, "stat": 6, "read_file": 6, "unlink": 3, "unlink_temporary": 1, "rename": 5, "rename_temporary": 6,
        "rename_temporaries": 1, "link": 1, "truncate": 2, "set_attribute": 1, "get_attribute": 1, "listdir": 2,
        "mkdir": 1, "rmdir": 1, "rename_dir": 1,
    }

    def check_all(self):
        for directory in self.root.all():
            worker = self.random.randrange(N_WORKERS)
            self.check_listing(worker, directory)
            for name in NAMES:
                if not self.is_own(worker, (directory, name)):
                    self.check_file(worker, directory, name)

    def state(self):
        for directory in self.root.all():
            yield "names", directory.path(), sorted([*directory.files, *directory.dirs])
            for name, file in directory.files.items():
                yield "file", f"{directory.path()}/{name}", file.data
