#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T26, start-up scan of a huge tree (LMCache #813; Mooncake #2982: a malformed file ends the scan): recursive scandirs
# of two levels of directories just after a start, while 64 writers add to them: they come to an end without an
# error, each name that was there for a whole scan is in it once; garbage in L2 is not shown, garbage on the
# mount is a plain file. (soak/T26-start-up-scan-long.sh: 65,536 directories.)
#
# parallel

. "$(dirname "$0")/../lib.sh"
require_cmd python3

# Directories of each of the two levels.
N_DIRS=${N_DIRS:-24}

python3 - "$L2/plain/gds" "$N_DIRS" <<'P'
import os, sys
root, n = sys.argv[1], int(sys.argv[2])
for i in range(n):
    for j in range(n):
        directory = f"{root}/{i:02x}/{j:02x}"
        os.makedirs(directory)
        for suffix in ("weka1", "metadata"):
            with open(f"{directory}/{i:02x}{j:02x}.{suffix}", "w") as file:
                file.write(suffix)
P
# Of no adapter: a name of LMCache's with a part too few, one that is cut off, and neither.
mkchunk "$L2/gpt2@0x01000100@9f86d081.data" 100
mkchunk "$L2/gpt2@0x010001" 100
mkchunk "$L2/.metadata.lock" 100
mkdir "$L2/gpt2@0x01000100@0@9f86d081.data"

scan() {
	python3 - "$MNT/gds" "$N_DIRS" <<'P' || fail "the scan"
import json, os, sys, threading
root, n = sys.argv[1], int(sys.argv[2])
WRITERS, FILES = 64, 8
lock, committed, errors = threading.Lock(), set(), []
for i in range(n):
    for j in range(n):
        committed |= {f"{root}/{i:02x}/{j:02x}/{i:02x}{j:02x}.{suffix}" for suffix in ("weka1", "metadata")}

# An engine's metadata that is none: not its JSON, not even text.
garbage = f"{root}/00/00/\udcff\udc80.metadata"
with open(garbage, "wb") as file:
    file.write(b"\x00\xff{")
committed.add(garbage)

def write(writer):
    try:
        for k in range(FILES):
            at = (writer * FILES + k) * 7919
            directory = f"{root}/{at // n % n:02x}/{at % n:02x}"
            path = f"{directory}/new-{writer}-{k}"
            os.makedirs(directory, exist_ok=True)
            with open(f"{path}.tmp", "w") as file:
                file.write("new")
            os.rename(f"{path}.tmp", path)
            with lock:
                committed.add(path)
    except OSError as error:
        errors.append(error)

def files_below(directory):
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                yield from files_below(entry.path)
            elif ".tmp" not in entry.name:
                yield entry.path

writers = [threading.Thread(target=write, args=(i,)) for i in range(WRITERS)]
for writer in writers:
    writer.start()
n_scans = 0
is_last = False
while not is_last:
    is_last = not any(writer.is_alive() for writer in writers)
    with lock:
        before = set(committed)
    found = list(files_below(root))
    assert len(set(found)) == len(found), f"{len(found) - len(set(found))} names twice"
    missing = before - set(found)
    assert not missing, f"{len(missing)} names are missing: {sorted(missing)[:3]}"
    n_scans += 1
assert not errors, errors
others = set(found) - committed
assert not others, f"names that nobody made: {sorted(others)[:3]}"
with open(garbage, "rb") as file:
    assert file.read() == b"\x00\xff{"
print(f"{n_scans} scans of {len(found)} files")
P
}

start_fs
# An OPENDIR waits for the list of L2, but not as long as that of so many may take.
((N_DIRS < 100)) || wait_until 600 "the L2 is listed" status_is l2.0.listed yes
scan
assert_eq "gds" "$(ls "$MNT")" "what is at the top"
stop_fs
