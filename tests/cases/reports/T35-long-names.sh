#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T35, a legal key whose name is too long (LMCache #4827, PR 4853): a model of 134 bytes and a salt of 128 make a name
# of 362 bytes: made, renamed from a temporary one, looked up, listed, stored, found after a restart, removed. So are
# names of up to f_namemax = 1023 bytes, which pathconf says as well; one byte more is ENAMETOOLONG.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

# check_names PHASE: make, find or remove.
check_names() {
	python3 - "$MNT" "$1" <<'P' || fail "$1"
import errno, os, sys
mount, phase = sys.argv[1:]
model = "/data/models/meta-llama/".ljust(134, "m")
salt, digest = "s" * 128, "9f86d081" * 8

directory = f"{mount}/lmcache"
rank = f"{mount}/%2F{model[1:]}/@01000100@0@{salt}"
lmcache = f"{model.replace('/', '-SEP-')}@0x01000100@0@{digest}@{salt}.data"
assert len(model) == 134 and len(salt) == 128 and len(lmcache) == 362, len(lmcache)
names = [lmcache] + [c * n for c, n in (("a", 254), ("b", 255), ("c", 256), ("d", 1019), ("e", 1023))]
# As LMCache makes its temporary name; and one that leaves room where the name has none.
temporary = {name: f"{name.removesuffix('.data')}.tmp" if len(name) < 1020 else ".tmp" for name in names}

def refused(call, *arguments):
    try:
        call(*arguments)
    except OSError as error:
        assert error.errno == errno.ENAMETOOLONG, error
    else:
        raise AssertionError(f"{call.__name__} of {len(os.path.basename(arguments[-1]))} bytes")

def content(name):
    return name.encode() * 7

if phase == "make":
    os.makedirs(directory)
    os.makedirs(rank)
    for name in names:
        path = f"{directory}/{name}"
        assert not os.path.exists(path)
        with open(f"{directory}/{temporary[name]}", "wb") as file:
            file.write(content(name))
        os.replace(f"{directory}/{temporary[name]}", path)
    with open(f"{directory}/first", "wb") as file:
        file.write(b"first")
    with open(f"{rank}/{digest}", "wb") as file:
        file.write(content(digest))
    for place in (mount, directory, f"{directory}/first", rank):
        assert os.pathconf(place, "PC_NAME_MAX") == os.statvfs(place).f_namemax == 1023
    for n in (1024, 1025, 4095):
        path = f"{directory}/{'x' * n}"
        refused(os.stat, path)
        refused(os.open, path, os.O_CREAT | os.O_WRONLY)
        refused(os.mkdir, path)
        refused(os.unlink, path)
        refused(os.rename, f"{directory}/first", path)
    with open(f"{directory}/first", "rb") as file:
        assert file.read() == b"first"
    os.unlink(f"{directory}/first")

if phase != "remove":
    assert sorted(os.listdir(directory)) == sorted(names)
    assert os.listdir(rank) == [digest]
    for path, data in [(f"{directory}/{name}", content(name)) for name in names] + [(f"{rank}/{digest}", content(digest))]:
        assert os.stat(path).st_size == len(data), path
        with open(path, "rb") as file:
            assert file.read() == data, path
else:
    for name in names:
        os.unlink(f"{directory}/{name}")
        assert not os.path.exists(f"{directory}/{name}")
    os.unlink(f"{rank}/{digest}")
    assert os.listdir(directory) == os.listdir(rank) == []
P
}

start_fs
check_names make
control flush /
assert_eq 0 "$(stat_counter stores_failed)" stores_failed
control evict /
check_names find
restart_fs
check_names find
check_names remove
restart_fs
assert_eq "" "$(ls "$MNT/lmcache")" "names that came back"
stop_fs
