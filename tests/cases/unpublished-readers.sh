#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A temporary file is renamed to a name and does not become its object: empty, without its declared end, or because the
# first one of a hash wins. Who has it open sees that file on, in size and in bytes; the name is what it was before.
#
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
start_fs
mkdir -p "$RANK" "$MNT/plain"
python3 - "$RANK/$(chunk_hash name)" "$MNT/plain/name" <<'P' || fail "see above"
import os, sys, time

def check(what, name, fd, data, old):
    for wait in 0, 1.1 * is_known:  # what the kernel was told is good for a second
        time.sleep(wait)
        seen = os.fstat(fd).st_size, os.pread(fd, 1000, 0)
        assert seen == (len(data), data), f"{what}: the reader of {name} sees {seen}"
        assert open(name, "rb").read() == old, f"{what}: {name}"
        assert os.stat(name).st_size == len(old), f"{what}: size of {name}"

old = b"the object"
for name in sys.argv[1:]:
    is_hash = "@" in name
    temporary = os.path.join(os.path.dirname(name), "t.tmp")
    for is_known in False, True:  # to the kernel, by that name
        # Its end was never written; closed after the rename, and before.
        for is_early in False, True:
            with open(name, "wb") as f:
                f.write(old)
            if is_known:
                assert open(name, "rb").read() == old
            fd = os.open(temporary, os.O_CREAT | os.O_RDWR)
            reader = os.open(temporary, os.O_RDONLY)
            os.ftruncate(fd, 879)
            if is_early:
                os.close(fd)
            os.rename(temporary, name)
            if not is_early:
                os.close(fd)
            check("unwritten end", name, reader, bytes(879), old)
            os.close(reader)
            assert open(name, "rb").read() == old, f"{name} after the reader"
            os.unlink(name)
        for data in (b"", b"another", b"much longer than the object is") if is_hash else ():
            with open(name, "wb") as f:
                f.write(old)
            if is_known:
                assert open(name, "rb").read() == old
            with open(temporary, "wb") as f:
                f.write(data)
            reader = os.open(temporary, os.O_RDONLY)
            os.rename(temporary, name)
            check(f"{len(data)} bytes", name, reader, data, old)
            os.close(reader)
            os.unlink(name)
P
stop_fs
