#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# T2, LMCache #2517, PR 2674: processes store the same blocks at the same time by way of one temporary name, each unless
# the block exists, and rename it. The block is whole and correct whenever it is seen; whoever comes too late is told by
# rename that the temporary file has gone, and no temporary file is left.
#
# parallel

. "$(dirname "$0")/../lib.sh"

require_cmd python3
cat >"$WORK/race.py" <<'P'
import errno, multiprocessing, os, sys, threading, time, traceback

WRITERS, READERS, BYTES = 4, 1, 100_000

def data_of(name):
    text = name.encode()
    return (text * (BYTES // len(text) + 1))[:BYTES]

def check(path, name):
    """Whether it is there; whole, if it is."""
    try:
        with open(path, "rb", 0) as f:
            data = f.read(2 * BYTES)
    except FileNotFoundError:
        return False
    assert data == data_of(name), f"{name}: {len(data)} bytes, or other ones"
    return True

def write(directory, names, barrier, suffix):
    lost = 0
    for name in names:
        barrier.wait()
        for _ in range(3):
            path = f"{directory}/{name}{suffix}"
            if check(path, name):
                break
            temporary = f"{directory}/{name}.tmp"
            try:
                with open(temporary, "wb", 0) as f:
                    assert f.write(data_of(name)) == BYTES
                os.replace(temporary, path)
            except OSError as e:
                # ESTALE: the kernel found a temporary file twice, and each was renamed before it was opened.
                in_open = e.filename2 is None
                assert e.errno == (errno.ESTALE if in_open else errno.ENOENT), e
                lost += 1
                try:
                    os.unlink(temporary)
                except FileNotFoundError:
                    pass
    return lost

def read(directory, names, suffix, done):
    seen = 0
    while not done.is_set():
        for name in names:
            seen += check(f"{directory}/{name}{suffix}", name)
            time.sleep(0.001)
    return seen

def play(queue, barrier, what, *arguments):
    try:
        queue.put((what.__name__, what(*arguments), None))
    except threading.BrokenBarrierError:
        pass
    except (OSError, AssertionError):
        queue.put((what.__name__, 0, traceback.format_exc()))
        barrier.abort()

def main():
    directory, suffix, *names = sys.argv[1:]
    barrier, queue = multiprocessing.Barrier(WRITERS), multiprocessing.Queue()
    done = multiprocessing.Event()
    calls = [(write, directory, names, barrier, suffix)] * WRITERS + [(read, directory, names, suffix, done)] * READERS
    for call in calls:
        multiprocessing.Process(target=play, args=(queue, barrier, *call), daemon=True).start()
    totals = {"write": 0, "read": 0}
    for n in range(len(calls)):
        if n == WRITERS:
            done.set()
        role, count, error = queue.get(timeout=100)
        assert error is None, f"{role}: {error}"
        totals[role] += count
    print(f"stores that came too late: {totals['write']}; blocks read meanwhile: {totals['read']}")
    for name in names:
        assert check(f"{directory}/{name}{suffix}", name), f"{name}: absent in the end"

main()
P

start_fs
mkdir -p "$RANK" "$MNT/kv"
mapfile -t names < <(for i in {0..15}; do chunk_hash "$i"; done)
python3 "$WORK/race.py" "$MNT/kv" .data "${names[@]}" || fail "plain files"
python3 "$WORK/race.py" "$RANK" "" "${names[@]}" || fail "objects"
for dir in "$MNT/kv" "$RANK"; do
	assert_eq 16 "$(ls -A "$dir" | wc -l)" "files in $dir"
done
stop_fs
assert_eq 32 "$(l2_files | wc -l)" "blocks in L2"
