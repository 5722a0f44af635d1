#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Files larger than L1, and writers that fill its memory: close() or rename says so, nothing cut short becomes
# visible, and the next file can be written.
#
# quick
# parallel

. "$(dirname "$0")/lib.sh"

require_cmd python3
L1_SIZE=64M
start_bare --max-object-size 64M
mkdir -p "$RANK" "$MNT/$MODEL/@01000101"
big=$(chunk_hash big)

# Larger than L1: it could never be loaded again.
if head -c 80M /dev/zero | tr '\0' x >"$RANK/$big" 2>"$WORK/err"; then
	expect_errno ENOENT stat "$RANK/$big"
fi
expect_errno ENOENT stat "$RANK/$big"
# Without passthrough it is the write that is refused.
assert_le 1 $(($(stat_counter mount_writes_not_published_too_big) +
	$(stat_counter mount_writes_not_published_memory_full))) "counted"

# It does not make the next reservation impossible.
head -c 40M /dev/urandom >"$WORK/large"
cp "$WORK/large" "$RANK/$(chunk_hash large)"
echo small >"$RANK/$(chunk_hash small)"
expect_output small cat "$RANK/$(chunk_hash small)"

# A writer that meets a full memory, which is empty again when it closes.
python3 - "$MNT/$MODEL/@01000101" "$RANK/$(chunk_hash cut)" <<'P'
import os, sys, time
big = os.open(sys.argv[1] + "/.big", os.O_CREAT | os.O_RDWR)
cut = os.open(sys.argv[2], os.O_CREAT | os.O_RDWR)
def fill(fd, n):
    done = 0
    try:
        while done < n:
            k = os.write(fd, b"z" * (1 << 20))
            done += k
            if k < 1 << 20:
                break
    except OSError:
        pass
    return done
while fill(big, 1 << 33): # what was written before may be given back yet
    time.sleep(0.2)
done = fill(cut, 8 << 20)
assert done < 8 << 20, "the memory was never full"
os.ftruncate(big, 0)
try:
    os.close(cut)
except OSError:
    pass
P
sleep 0.2
expect_errno ENOENT stat "$RANK/$(chunk_hash cut)"

# A temporary file of absurd size onto .keys, and committed: an error, and the daemon lives.
mkdir "$RANK/P"
python3 - "$RANK" "$(chunk_hash sparse)" <<'P'
import errno, os, sys
rank, name = sys.argv[1:]
for target in (rank + "/P/.keys", rank + "/" + name):
    fd = os.open(rank + "/.x", os.O_CREAT | os.O_RDWR)
    try:
        os.pwrite(fd, b"a", 1 << 50)  # without passthrough this fails already
    except OSError:
        pass
    try:
        os.close(fd)
    except OSError:
        pass
    try:
        os.rename(rank + "/.x", target)
    except OSError as e:
        assert e.errno in (errno.EFBIG, errno.EINVAL, errno.ENOSPC), e
    else:
        raise SystemExit("rename onto " + target + " succeeded")
    os.unlink(rank + "/.x")
P
expect_errno ENOENT stat "$RANK/$(chunk_hash sparse)"
echo again >"$RANK/$(chunk_hash again)"
expect_output again cat "$RANK/$(chunk_hash again)"
rm -f "$RANK"/[0-9a-f]*
rmdir "$RANK/P"
rm -f "$MNT/$MODEL/@01000101/.big"
wait_until 10 "all of L1 is free again" status_is l1_used_bytes 0
stop_fs
