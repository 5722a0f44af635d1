#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T46, the fsync contract (Mooncake's metadata: fsync of the file, rename, fsync of the directory; FlexKV: ftruncate and
# fsync): after a kill of the daemon a file of that sequence is there whole or not at all, its former version
# where it had one; it is there when "sync FILE" has returned.
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

SIZE=3000001

# store VERSION [sync]: that sequence for all files; then fsync of the committed ones.
store() {
	python3 - "$SIZE" "$1" "${2:-}" "$MNT/mooncake" "$RANK" <<'P' || fail "the stores of version $1"
import os, sys
size, version, sync, *directories = sys.argv[1:]
for directory in directories:
    for i in range(4):
        # Hash names are written once.
        name = f"{i}.meta" if directory.endswith("mooncake") else f"{version}{i}".encode().hex() * 8
        path = os.path.join(directory, name)
        fd = os.open(f"{path}.tmp", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        if i % 2:
            os.ftruncate(fd, int(size))
        assert os.write(fd, version.encode() * int(size)) == int(size)
        os.fsync(fd)
        os.close(fd)
        os.rename(f"{path}.tmp", path)
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(fd)
        os.close(fd)
        if sync:
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
P
}

# expect_versions DIRECTORY N PATTERN: N files, each whole and of one of those versions; no temporary ones.
expect_versions() {
	python3 - "$SIZE" "$@" <<'P' || fail "what is in $1"
import os, sys
size, directory, n, versions = sys.argv[1:]
names = os.listdir(directory)
least, most = (int(word) for word in n.split("-"))
assert least <= len(names) <= most, names
for name in names:
    assert ".tmp" not in name, name
    with open(os.path.join(directory, name), "rb") as file:
        data = file.read()
    assert len(data) == int(size) and data[:1].decode() in versions and data == data[:1] * len(data), (name, len(data))
    assert os.stat(os.path.join(directory, name)).st_size == len(data)
print(f"{len(names)} files in {directory}")
P
}

start_fs
mkdir -p "$MNT/mooncake" "$RANK"
store a
kill_fs
start_fs
expect_versions "$MNT/mooncake" 0-4 a
expect_versions "$RANK" 0-4 a

store b sync
kill_fs
start_fs
expect_versions "$MNT/mooncake" 4-4 b
expect_versions "$RANK" 4-8 ab
for i in 0 1 2 3; do
	hash=$(printf 'b%d' "$i" | od -An -tx1 | tr -d ' \n')
	hash=$hash$hash$hash$hash
	[[ -f $RANK/$hash$hash ]] || fail "b$i was synced and is not there"
done

# A version that was replaced, and not waited for: the one or the other.
store c
kill_fs
start_fs
expect_versions "$MNT/mooncake" 4-4 bc
expect_versions "$RANK" 4-12 abc
stop_fs
