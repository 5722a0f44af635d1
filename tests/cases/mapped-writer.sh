#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# A writer that maps its file shared and writable, closes it, and stores through the mapping afterwards: what was
# published at the close is a copy that never changes, in L1 and in L2.
#
# parallel
# not-in: direct: a mapping keeps the file open there, nothing is committed before it goes
# not-in: user: a mapping keeps the file open there, nothing is committed before it goes

. "$(dirname "$0")/lib.sh"

require_cmd python3
cat >"$WORK/store.py" <<'P'
import mmap, ctypes, os, sys
name, target = sys.argv[1:]
size = 1 << 20
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
fd = os.open(name, os.O_CREAT | os.O_RDWR)
os.write(fd, b"a" * size)
# Not Python's mmap: that duplicates the descriptor.
address = libc.mmap(None, size, 3, 1, fd, 0)
os.close(fd)
if target != name:
    os.rename(name, target)
print("closed", flush=True)
sys.stdin.readline()
ctypes.memset(address, ord("b"), size)
print("stored", flush=True)
sys.stdin.readline()
P
head -c 1M /dev/zero | tr '\0' a >"$WORK/expected"

start_fs
assert_eq ok "$(status l1_leases)" l1_leases
mkdir -p "$RANK"
n=0
for how in direct renamed; do
	h=$(chunk_hash "$how")
	name=$RANK/$h
	[[ $how == direct ]] || name=$RANK/.$h.tmp
	start_client "$how" python3 "$WORK/store.py" "$name" "$RANK/$h"
	client_hear "$how" closed
	wait_until 10 "$how: published" eval "[[ -e '$RANK/$h' ]]"
	n=$((n + 1))
	assert_eq "$n" "$(stat_counter l1_commits_copied)" l1_commits_copied
	start_client "reader-$how" "$CLIENTS/hold-open" "$RANK/$h" "$WORK/expected"
	client_hear "reader-$how" open
	client_say "$how" go
	client_hear "$how" stored
	client_say "reader-$how" go
	client_hear "reader-$how" equal
	assert_same "$WORK/expected" "$RANK/$h"
	# The writer's file is not the object's any more, and counts while it is mapped.
	assert_eq 1 "$(status l1_lingering_objects)" l1_lingering_objects
	assert_eq $((1 << 20)) "$(status l1_lingering_bytes)" l1_lingering_bytes
	client_say "$how" end
	wait_until 10 "the mapping has gone" status_is l1_lingering_objects 0
done

# A reader that has the temporary file open does not bring its bytes to those who open the object.
h=$(chunk_hash reader)
start_client writer python3 "$WORK/store.py" "$RANK/.$h.tmp" "$RANK/.$h.tmp"
client_hear writer closed
exec 8<"$RANK/.$h.tmp"
mv "$RANK/.$h.tmp" "$RANK/$h"
client_say writer go
client_hear writer stored
assert_same "$WORK/expected" "$RANK/$h"
"$CLIENTS/mmap-equals-read" "$RANK/$h"
exec 8<&-
client_say writer end
assert_same "$WORK/expected" "$RANK/$h"

# Without a mapping nothing is copied.
n=$(stat_counter l1_commits_copied)
for i in 1 2 3 4 5 6 7 8; do
	cp "$WORK/expected" "$RANK/$(chunk_hash "$i" plain)"
done
assert_eq "$n" "$(stat_counter l1_commits_copied)" "copies after plain writes"
restart_fs
for how in direct renamed reader; do
	assert_same "$WORK/expected" "$RANK/$(chunk_hash "$how")"
done
stop_fs
